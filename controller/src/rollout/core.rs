//! The state machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpufleet_protocol::Disruption;
use serde::{Deserialize, Serialize};

use super::Wave;

/// When a play stops taking new nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Thresholds {
    /// Ansible's: the play stops when more than this share of a wave failed, in percent.
    pub max_fail_percentage: Option<f64>,
    /// The run stops when more nodes than this failed, unreachable ones included.
    pub max_failures: Option<usize>,
    /// One failure stops the play.
    pub any_errors_fatal: bool,
}

/// What happened to a node (an index into the play's hosts) or to the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// The play begins.
    Begin,
    /// The node's next act needs a permit of this class.
    WantsPermit {
        host: usize,
        class: Disruption,
    },
    /// The proof asked for by [`Action::ProveIdle`]: nothing works on the node.
    Idle {
        host: usize,
    },
    /// The same, with another answer; not knowing is being busy.
    Busy {
        host: usize,
        reason: String,
    },
    /// The node's disruptive section is over, and it is verified.
    Released {
        host: usize,
    },
    Ended {
        host: usize,
        end: End,
    },
    /// Something that is not ours took the node out of service, or it came back.
    OthersOut {
        host: usize,
        out: bool,
    },
    /// A failed task says that one failure stops the play.
    Fatal,
    /// A task ends the play for everybody (`meta: end_play`): no further wave starts, and that is no fault.
    EndPlay,
    /// A person or a signal asks the run to stop.
    Interrupt,
    /// A node that ended held, unreachable or stopped takes part again.
    Reopen {
        host: usize,
    },
    /// Another process goes on: whoever was being checked or waited asks again.
    Resume,
}

/// How a node's part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Done,
    Failed,
    Held,
    Unreachable,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    StartWave {
        wave: usize,
    },
    Start {
        host: usize,
    },
    /// Find out, now, whether anything works on the node.
    ProveIdle {
        host: usize,
    },
    Grant {
        host: usize,
        class: Disruption,
    },
    Deny {
        host: usize,
        why: Denial,
    },
    /// The node waits for these to come back.
    Waits {
        host: usize,
        out: Vec<usize>,
    },
    FinishWave {
        wave: usize,
    },
    /// Nothing new starts from here on.
    Stop {
        reason: StopReason,
    },
    /// The play is over; these were never started.
    Finish {
        never_started: Vec<usize>,
    },
}

/// Why a permit is refused. The node is held, untouched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Denial {
    Busy {
        reason: String,
    },
    /// So many nodes are out for good that none may follow.
    BudgetSpent {
        out: Vec<usize>,
        budget: usize,
    },
    Stopped {
        reason: StopReason,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    FailPercentage { wave: usize, failed: usize, of: usize },
    Failures { failed: usize, allowed: usize },
    Canary { failed: usize },
    AnyError,
    WholeWave { wave: usize },
    Interrupted,
}

/// An event that cannot be in the state the node is in: a fault of the caller, never a panic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    #[error("no host {0} in this play")]
    NoSuchHost(usize),
    #[error("host {host} is {state}, where {input} makes no sense")]
    Impossible { host: usize, state: &'static str, input: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    Pending,
    Running,
    /// Wants a permit and waits for room in the budget.
    Queued(Disruption),
    /// Takes a place in the budget while its idleness is being proven; it may be out already, for a lower class.
    Proving {
        class: Disruption,
        was_out: bool,
    },
    Out,
    Ended {
        end: End,
        still_out: bool,
    },
}

impl Host {
    const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Queued(_) => "waiting for the budget",
            Self::Proving { .. } => "being checked for work",
            Self::Out => "out of service",
            Self::Ended { .. } => "finished",
        }
    }
}

/// One play over one set of hosts.
#[derive(Clone, Debug)]
pub struct Rollout {
    waves: Vec<Wave>,
    hosts: Vec<Host>,
    /// Out of service through somebody else, reachable or not.
    others: BTreeSet<usize>,
    /// Ours, proving or out, or ended while out.
    ours: BTreeSet<usize>,
    queue: VecDeque<usize>,
    /// Nodes out of service that are not in this play.
    elsewhere: usize,
    budget: usize,
    thresholds: Thresholds,
    current: Option<usize>,
    unfinished: usize,
    failed_in_wave: usize,
    failed_total: usize,
    stop: Option<StopReason>,
    finished: bool,
    /// The play ends with the current wave.
    last_wave: bool,
    announced: BTreeMap<usize, Vec<usize>>,
}

impl Rollout {
    /// A rollout that has not begun. `waves` divides `0..hosts`; `failures_so_far` counts those of earlier plays.
    pub fn new(
        hosts: usize,
        waves: Vec<Wave>,
        budget: usize,
        thresholds: Thresholds,
        failures_so_far: usize,
    ) -> Self {
        Self {
            waves,
            hosts: vec![Host::Pending; hosts],
            others: BTreeSet::new(),
            ours: BTreeSet::new(),
            queue: VecDeque::new(),
            elsewhere: 0,
            budget,
            thresholds,
            current: None,
            unfinished: 0,
            failed_in_wave: 0,
            failed_total: failures_so_far,
            stop: None,
            finished: false,
            last_wave: false,
            announced: BTreeMap::new(),
        }
    }

    /// Counts nodes out of service that are not in this play against its budget.
    #[must_use]
    pub fn with_out_elsewhere(mut self, nodes: usize) -> Self {
        self.elsewhere = nodes;
        self
    }

    /// Nodes out of service now, whoever took them out.
    pub fn out(&self) -> Vec<usize> {
        self.ours.union(&self.others).copied().collect()
    }

    /// Failed nodes, those of earlier plays included.
    pub fn failed(&self) -> usize {
        self.failed_total
    }

    /// Why nothing new starts, if so.
    pub fn stopped(&self) -> Option<&StopReason> {
        self.stop.as_ref()
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes what happened and tells what to do, in this order.
    ///
    /// # Errors
    /// An input that is impossible in the host's state; nothing changed then.
    pub fn step(&mut self, _now: jiff::Timestamp, input: Input) -> Result<Vec<Action>, RolloutError> {
        let mut actions = Vec::new();
        match input {
            Input::Begin => {
                if self.current.is_none() {
                    self.start_next_wave(&mut actions);
                }
            }
            Input::WantsPermit { host, class } => match self.state(host)? {
                // A node that is out already may need a higher class: its place in the budget is taken, but whether
                // it is idle has to be proven anew.
                Host::Out => {
                    self.set(host, Host::Proving { class, was_out: true });
                    actions.push(Action::ProveIdle { host });
                }
                Host::Running => {
                    self.set(host, Host::Queued(class));
                    self.queue.push_back(host);
                }
                state => return Err(impossible(host, state, "a wish for a permit")),
            },
            Input::Idle { host } => match self.state(host)? {
                Host::Proving { class, was_out } => match self.stop.clone() {
                    // Why not when it is out: it has to reach a safe point.
                    Some(reason) if !was_out => {
                        self.ours.remove(&host);
                        self.deny(host, Denial::Stopped { reason }, &mut actions);
                    }
                    _ => {
                        self.set(host, Host::Out);
                        actions.push(Action::Grant { host, class });
                    }
                },
                state => return Err(impossible(host, state, "a proof of idleness")),
            },
            Input::Busy { host, reason } => match self.state(host)? {
                Host::Proving { was_out, .. } => {
                    if was_out {
                        self.set(host, Host::Out);
                    } else {
                        self.ours.remove(&host);
                        self.set(host, Host::Running);
                    }
                    actions.push(Action::Deny { host, why: Denial::Busy { reason } });
                }
                state => return Err(impossible(host, state, "a proof of work")),
            },
            Input::Released { host } => match self.state(host)? {
                Host::Out => {
                    self.ours.remove(&host);
                    self.set(host, Host::Running);
                }
                Host::Running => {}
                state => return Err(impossible(host, state, "a release")),
            },
            Input::Ended { host, end } => self.end(host, end, &mut actions)?,
            Input::OthersOut { host, out } => {
                self.state(host)?;
                if out {
                    self.others.insert(host);
                } else {
                    self.others.remove(&host);
                }
            }
            Input::Fatal => self.halt(StopReason::AnyError, &mut actions),
            Input::EndPlay => self.last_wave = true,
            Input::Interrupt => self.halt(StopReason::Interrupted, &mut actions),
            Input::Reopen { host } => self.reopen(host)?,
            Input::Resume => self.resume(&mut actions),
        }
        self.serve_queue(&mut actions);
        self.finish_if_done(&mut actions);
        Ok(actions)
    }

    fn state(&self, host: usize) -> Result<Host, RolloutError> {
        self.hosts.get(host).copied().ok_or(RolloutError::NoSuchHost(host))
    }

    fn set(&mut self, host: usize, state: Host) {
        if let Some(slot) = self.hosts.get_mut(host) {
            *slot = state;
        }
    }

    fn end(&mut self, host: usize, end: End, actions: &mut Vec<Action>) -> Result<(), RolloutError> {
        let state = self.state(host)?;
        match state {
            Host::Pending | Host::Ended { .. } => return Err(impossible(host, state, "an end")),
            Host::Running | Host::Queued(_) | Host::Proving { .. } | Host::Out => {}
        }
        // Why: a node that failed while it was out is in nobody knows what state; its place stays taken.
        let is_out = matches!(state, Host::Out | Host::Proving { was_out: true, .. });
        let still_out = is_out && end != End::Done;
        if !still_out {
            self.ours.remove(&host);
        }
        if end == End::Unreachable {
            self.others.insert(host);
        }
        self.queue.retain(|queued| *queued != host);
        self.announced.remove(&host);
        self.set(host, Host::Ended { end, still_out });
        self.unfinished = self.unfinished.saturating_sub(1);
        if end == End::Done {
            return Ok(());
        }
        // Why held nodes count: a wave of which nobody may be touched says that the next one should wait, too.
        let failed = end != End::Held;
        self.failed_total += usize::from(failed);
        self.failed_in_wave += usize::from(failed);
        if failed {
            self.check_thresholds(actions);
        }
        Ok(())
    }

    fn reopen(&mut self, host: usize) -> Result<(), RolloutError> {
        let state = self.state(host)?;
        let Host::Ended { end, still_out } = state else {
            return Err(impossible(host, state, "another try"));
        };
        self.others.remove(&host);
        if end == End::Unreachable {
            self.failed_total = self.failed_total.saturating_sub(1);
            self.failed_in_wave = self.failed_in_wave.saturating_sub(1);
        }
        self.set(host, if still_out { Host::Out } else { Host::Running });
        self.unfinished += 1;
        self.finished = false;
        Ok(())
    }

    fn resume(&mut self, actions: &mut Vec<Action>) {
        if self.stop == Some(StopReason::Interrupted) {
            self.stop = None;
            self.finished = false;
        }
        self.queue.clear();
        self.announced.clear();
        for host in self.started() {
            match self.hosts.get(host).copied() {
                Some(Host::Queued(_)) => self.set(host, Host::Running),
                Some(Host::Proving { was_out: true, .. }) => self.set(host, Host::Out),
                Some(Host::Proving { was_out: false, .. }) => {
                    self.ours.remove(&host);
                    self.set(host, Host::Running);
                }
                _ => {}
            }
            actions.push(Action::Start { host });
        }
    }

    pub fn has_ended(&self, host: usize) -> bool {
        matches!(self.hosts.get(host), Some(Host::Ended { .. }))
    }

    /// Hosts that began and have not ended.
    pub fn started(&self) -> Vec<usize> {
        let unended = |host: &usize| {
            !matches!(self.hosts.get(*host), None | Some(Host::Pending | Host::Ended { .. }))
        };
        (0..self.hosts.len()).filter(unended).collect()
    }

    fn check_thresholds(&mut self, actions: &mut Vec<Action>) {
        let Some((index, wave)) = self.current.and_then(|index| Some((index, self.waves.get(index)?))) else {
            return;
        };
        let (failed, of, canary) = (self.failed_in_wave, wave.hosts.len(), wave.canary);
        if self.thresholds.any_errors_fatal {
            self.halt(StopReason::AnyError, actions);
        } else if canary {
            self.halt(StopReason::Canary { failed }, actions);
        } else if self.thresholds.max_failures.is_some_and(|allowed| self.failed_total > allowed) {
            let allowed = self.thresholds.max_failures.unwrap_or_default();
            self.halt(StopReason::Failures { failed: self.failed_total, allowed }, actions);
        } else if self
            .thresholds
            .max_fail_percentage
            .is_some_and(|max| failed as f64 * 100.0 > max * of as f64)
        {
            self.halt(StopReason::FailPercentage { wave: index, failed, of }, actions);
        } else if failed == of && index + 1 < self.waves.len() {
            self.halt(StopReason::WholeWave { wave: index }, actions);
        }
    }

    fn halt(&mut self, reason: StopReason, actions: &mut Vec<Action>) {
        if self.stop.is_some() || self.finished {
            return;
        }
        self.stop = Some(reason.clone());
        actions.push(Action::Stop { reason });
    }

    /// Gives places in the budget to those who wait, first come first served; tells the others where they stand.
    fn serve_queue(&mut self, actions: &mut Vec<Action>) {
        if let Some(reason) = self.stop.clone() {
            for host in std::mem::take(&mut self.queue) {
                self.deny(host, Denial::Stopped { reason: reason.clone() }, actions);
            }
            return;
        }
        while let Some(host) = self.queue.front().copied() {
            let out: BTreeSet<usize> =
                self.ours.union(&self.others).copied().filter(|node| *node != host).collect();
            if out.len() + self.elsewhere < self.budget {
                self.queue.pop_front();
                self.announced.remove(&host);
                let Some(Host::Queued(class)) = self.hosts.get(host).copied() else { continue };
                self.ours.insert(host);
                self.set(host, Host::Proving { class, was_out: false });
                actions.push(Action::ProveIdle { host });
                continue;
            }
            if self.gone_for_good(host) >= self.budget {
                let out = out.into_iter().collect();
                self.queue.pop_front();
                self.deny(host, Denial::BudgetSpent { out, budget: self.budget }, actions);
                continue;
            }
            break;
        }
        let out: Vec<usize> = self.out();
        for host in self.queue.iter().copied().collect::<Vec<_>>() {
            if self.announced.get(&host) != Some(&out) {
                self.announced.insert(host, out.clone());
                actions.push(Action::Waits { host, out: out.clone() });
            }
        }
    }

    /// How many places no wait will free: others' outages, and nodes that ended while out.
    fn gone_for_good(&self, asking: usize) -> usize {
        let ended = self.ours.iter().filter(|host| {
            matches!(self.hosts.get(**host), Some(Host::Ended { still_out: true, .. }))
                && !self.others.contains(host)
        });
        self.elsewhere + ended.count() + self.others.iter().filter(|host| **host != asking).count()
    }

    fn deny(&mut self, host: usize, why: Denial, actions: &mut Vec<Action>) {
        self.announced.remove(&host);
        self.set(host, Host::Running);
        actions.push(Action::Deny { host, why });
    }

    fn start_next_wave(&mut self, actions: &mut Vec<Action>) {
        let next = self.current.map_or(0, |current| current + 1);
        let Some(wave) = self.waves.get(next) else { return };
        self.current = Some(next);
        self.failed_in_wave = 0;
        self.unfinished = wave.hosts.len();
        actions.push(Action::StartWave { wave: next });
        for host in wave.hosts.clone() {
            self.set(host, Host::Running);
            actions.push(Action::Start { host });
        }
    }

    fn finish_if_done(&mut self, actions: &mut Vec<Action>) {
        if self.finished || self.unfinished > 0 {
            return;
        }
        if let Some(wave) = self.current {
            let next = wave + 1;
            actions.push(Action::FinishWave { wave });
            if self.stop.is_none() && !self.last_wave && next < self.waves.len() {
                self.start_next_wave(actions);
                return;
            }
        } else if self.stop.is_none() && !self.waves.is_empty() {
            return;
        }
        self.finished = true;
        let never_started = (0..self.hosts.len())
            .filter(|host| matches!(self.hosts.get(*host), Some(Host::Pending)))
            .collect();
        actions.push(Action::Finish { never_started });
    }

}

fn impossible(host: usize, state: Host, input: &'static str) -> RolloutError {
    RolloutError::Impossible { host, state: state.name(), input }
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::FailPercentage { failed, of, .. } => {
                write!(f, "{failed} of {of} nodes of the wave failed, more than `max_fail_percentage` allows")
            }
            Self::Failures { failed, allowed } => {
                write!(f, "{failed} nodes failed, more than the {allowed} that `max_failures` allows")
            }
            Self::Canary { failed: 1 } => f.write_str("a canary failed"),
            Self::Canary { failed } => write!(f, "{failed} canaries failed"),
            Self::AnyError => f.write_str("a node failed, and `any_errors_fatal` is set"),
            Self::WholeWave { .. } => f.write_str("every node of the wave failed"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

//! The state machine of a rollout: its state, and the effect of each input. `admission` decides who may go next,
//! `progress` handles time and the ends of waves.

use std::collections::BTreeSet;

use gpufleet_protocol::Disruption;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Action, Denial, End, Input, Opening, Policy, RolloutError, StopReason, Wave,
    host::{Host, impossible},
    places::{Marks, Places},
    progress::Stage,
    queue::Queue,
    survey::{Patience, Surveys},
};

/// Nodes that a run lost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The unreachable ones included.
    pub failed: usize,
    pub unreachable: usize,
}

/// What earlier plays of a run left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoFar {
    pub lost: Lost,
    /// Nodes that are out of service, and not in the play.
    pub out_elsewhere: usize,
}

/// The rollout of one play over one set of hosts.
///
/// The same inputs at the same times give the same rollout, so a journal of the inputs is enough to restore it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout {
    pub(super) waves: Vec<Wave>,
    pub(super) policy: Policy,
    pub(super) hosts: Vec<Host>,
    pub(super) places: Places,
    pub(super) queue: Queue,
    /// Queued hosts whose waiting was not announced yet.
    pub(super) unannounced: BTreeSet<usize>,
    pub(super) draining: BTreeSet<usize>,
    pub(super) surveys: Surveys,
    pub(super) patience: Patience,
    pub(super) stage: Stage,
    pub(super) current: Option<usize>,
    pub(super) unfinished: usize,
    /// Hosts whose gates were not answered at the end of the soak.
    pub(super) unchecked: BTreeSet<usize>,
    pub(super) failed_in_wave: usize,
    /// The wave that each host is in.
    pub(super) wave_of: Vec<usize>,
    pub(super) lost: Lost,
    /// Hosts of `lost` that earlier plays lost.
    pub(super) lost_before: Lost,
    pub(super) stop: Option<StopReason>,
    /// Whether the play ends with the current wave.
    pub(super) last_wave: bool,
    pub(super) now: Timestamp,
    /// The one opening of the window that this run uses.
    pub(super) opening: Option<Opening>,
    pub(super) closed: bool,
    /// Classes that do not fit into the rest of the window.
    pub(super) too_late: BTreeSet<Disruption>,
    /// When to survey again, if a host waits for that.
    pub(super) again: Option<Timestamp>,
    pub(super) wake: Option<Timestamp>,
}

impl Rollout {
    /// Creates a rollout that has not begun. `waves` divides those of `0..hosts` that take part; `so_far` counts
    /// hosts lost by earlier plays.
    pub fn new(hosts: usize, waves: Vec<Wave>, policy: Policy, so_far: Lost) -> Self {
        let mut wave_of = vec![usize::MAX; hosts];
        for (index, wave) in waves.iter().enumerate() {
            for host in &wave.hosts {
                if let Some(slot) = wave_of.get_mut(*host) {
                    *slot = index;
                }
            }
        }
        Self {
            waves,
            wave_of,
            places: Places::new(hosts, policy.domains.clone()),
            policy,
            hosts: vec![Host::Pending; hosts],
            queue: Queue::default(),
            unannounced: BTreeSet::new(),
            draining: BTreeSet::new(),
            surveys: Surveys::default(),
            patience: Patience::default(),
            stage: Stage::New,
            current: None,
            unfinished: 0,
            unchecked: BTreeSet::new(),
            failed_in_wave: 0,
            lost: so_far,
            lost_before: so_far,
            stop: None,
            last_wave: false,
            now: Timestamp::MIN,
            opening: None,
            closed: false,
            too_late: BTreeSet::new(),
            again: None,
            wake: None,
        }
    }

    /// Counts nodes out of service outside of this play against its budget, in addition to those that surveys report.
    #[must_use]
    pub fn with_out_elsewhere(mut self, nodes: usize) -> Self {
        self.places.set_elsewhere(nodes);
        self
    }

    /// Returns the nodes that are out of service, for any reason.
    pub fn out(&self) -> Vec<usize> {
        self.places.all_out()
    }

    /// Returns the nodes that this run took out of service, or is about to, and has not brought back.
    pub fn ours(&self) -> Vec<usize> {
        self.places.all_out().into_iter().filter(|host| self.places.marks(*host).ours).collect()
    }

    /// Returns the nodes that were started and have not ended, whose tasks have to run.
    pub fn in_flight(&self) -> Vec<usize> {
        let hosts = self.hosts.iter().enumerate();
        hosts.filter(|(_, host)| host.is_in_flight()).map(|(index, _)| index).collect()
    }

    /// Whether the node waits for a place that only nodes that are out now can free.
    pub fn waits_for_a_place(&self, host: usize) -> bool {
        matches!(self.hosts.get(host), Some(Host::Queued { .. })) && self.is_full_for(host)
    }

    /// Whether the node was started and has ended.
    pub fn has_ended(&self, host: usize) -> bool {
        matches!(self.hosts.get(host), Some(Host::Ended { .. }))
    }

    /// Returns the nodes that the run lost, in this play and in earlier ones.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// Returns the current wave, or the last one.
    pub fn current_wave(&self) -> Option<usize> {
        self.current
    }

    /// Returns the hosts of a wave.
    pub fn wave(&self, wave: usize) -> &[usize] {
        self.waves.get(wave).map_or(&[], |wave| &wave.hosts)
    }

    /// Whether the play began without this node, because an earlier play had lost it.
    pub fn is_in_no_wave(&self, host: usize) -> bool {
        self.wave_of.get(host) == Some(&usize::MAX)
    }

    /// Returns the input with what other plays changed, when a new controller takes the play up; `None` if nothing
    /// changed. `out` are nodes of this play that other plays have out of service, or that do not answer.
    pub fn news(&self, so_far: SoFar, out: &BTreeSet<usize>) -> Option<Input> {
        let known = SoFar { lost: self.lost_before, out_elsewhere: self.places.elsewhere() };
        let rest = self.at_rest();
        let same =
            |host: &usize| self.places.marks(*host).absent == (out.contains(host) || self.is_lost(*host));
        let out: Vec<usize> = rest.iter().copied().filter(|host| out.contains(host)).collect();
        (known != so_far || !rest.iter().all(same)).then_some(Input::Beside { so_far, out })
    }

    /// Returns why nothing new starts, if so.
    pub fn stopped(&self) -> Option<&StopReason> {
        self.stop.as_ref()
    }

    pub fn is_finished(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Handles an input and returns what to do, in this order. A time before the last one counts as the last one.
    ///
    /// # Errors
    /// If the input is impossible in the host's state; the rollout is then unchanged.
    pub fn step(&mut self, now: Timestamp, input: Input) -> Result<Vec<Action>, RolloutError> {
        let mut actions = Vec::new();
        // Nothing follows: these come before `Resume`, which handles the time that has passed.
        if matches!(input, Input::Reopen { .. } | Input::Returned { .. } | Input::Beside { .. }) {
            self.take(input, &mut actions)?;
            return Ok(actions);
        }
        let before = (self.now, self.opening, self.closed);
        self.now = self.now.max(now);
        self.follow_window();
        if let Err(error) = self.take(input, &mut actions) {
            (self.now, self.opening, self.closed) = before;
            return Err(error);
        }
        self.close_window(&mut actions);
        self.serve_queue(&mut actions);
        self.progress(&mut actions);
        self.set_alarm(&mut actions);
        Ok(actions)
    }

    /// Checks everything that can be refused before anything changes.
    fn take(&mut self, input: Input, actions: &mut Vec<Action>) -> Result<(), RolloutError> {
        match input {
            Input::Begin => self.begin(actions),
            Input::WantsPermit { host, class } => self.wants_permit(host, class, actions)?,
            Input::Drained { host } => match self.state(host)? {
                Host::Draining { class } => {
                    self.draining.remove(&host);
                    match self.refusal(class) {
                        Some(why) => self.refuse(host, why, actions),
                        None => {
                            self.set(host, Host::Proving { class, was_out: false });
                            actions.push(Action::ProveIdle { host });
                        }
                    }
                }
                state => return Err(impossible(host, state, "a drain that succeeded")),
            },
            Input::DrainRefused { host, by } => match self.state(host)? {
                Host::Draining { .. } => {
                    self.draining.remove(&host);
                    self.surveys.refused(host);
                    self.mark(host, |marks| (marks.ours, marks.surveyed) = (false, true));
                    self.deny(host, Denial::HeldByOthers { by }, actions);
                }
                state => return Err(impossible(host, state, "a drain that was refused")),
            },
            Input::DrainFailed { host, why, still_out } => match self.state(host)? {
                Host::Draining { .. } => {
                    self.draining.remove(&host);
                    self.mark(host, |marks| marks.ours = still_out);
                    self.set(host, Host::Running { holds: still_out });
                    let why = match self.stop.clone() {
                        Some(reason) => Denial::Stopped { reason },
                        None => Denial::NotDrained { why },
                    };
                    actions.push(Action::Deny { host, why });
                }
                state => return Err(impossible(host, state, "a drain that failed")),
            },
            Input::Surveyed { out, elsewhere, domains } => {
                if let Some(unknown) = out.iter().find(|host| **host >= self.hosts.len()) {
                    return Err(RolloutError::NoSuchHost { host: *unknown });
                }
                if !self.surveys.goes_on() {
                    self.patience = Patience::default();
                }
                let out = self.surveys.answered(out, self.now);
                for host in self.places.survey(&out, elsewhere, domains) {
                    self.settle(host);
                }
                for domain in self.patience.domains() {
                    if self.places.domain_tally(domain).gone < self.places.limit(domain) {
                        self.patience.end(Some(domain));
                    }
                }
            }
            Input::SurveyFailed { why } => {
                if !self.surveys.failed() {
                    return Err(RolloutError::NoSurvey);
                }
                for host in self.queue.hosts() {
                    self.deny(host, Denial::NotSurveyed { why: why.clone() }, actions);
                }
            }
            Input::Idle { host } => match self.state(host)? {
                Host::Proving { class, was_out } => match self.refusal(class) {
                    // A node that is out already is not denied: it has to reach a safe point.
                    Some(why) if !was_out => self.refuse(host, why, actions),
                    _ => {
                        self.set(host, Host::Out);
                        let deadline =
                            self.opening.map(|opening| opening.closes).filter(|closes| self.now < *closes);
                        actions.push(Action::Grant { host, class, deadline });
                    }
                },
                state => return Err(impossible(host, state, "a proof of idleness")),
            },
            Input::Busy { host, reason } => match self.state(host)? {
                Host::Proving { was_out: true, .. } => {
                    self.set(host, Host::Out);
                    actions.push(Action::Deny { host, why: Denial::Busy { reason } });
                }
                Host::Proving { .. } => self.refuse(host, Denial::Busy { reason }, actions),
                state => return Err(impossible(host, state, "a proof of work")),
            },
            Input::Released { host } => match self.state(host)? {
                Host::Out | Host::Running { .. } => {
                    self.mark(host, |marks| marks.ours = false);
                    self.set(host, Host::RUNNING);
                }
                state => return Err(impossible(host, state, "a release")),
            },
            Input::Ended { host, end } => self.end(host, end, actions)?,
            Input::SoakChecked { host, ok, why: _ } => {
                let state = self.state(host)?;
                if !self.unchecked.remove(&host) {
                    return Err(impossible(host, state, "a check after the soak"));
                }
                if !ok {
                    self.set(host, Host::Ended { end: End::Failed, still_out: false });
                    self.count_failure(host, actions);
                }
            }
            Input::Adopted { host } => match self.state(host)? {
                Host::Pending => self.mark(host, |marks| marks.ours = true),
                state => return Err(impossible(host, state, "an adoption")),
            },
            Input::Late { host } => match self.state(host)? {
                Host::Pending => self.mark(host, |marks| marks.late = true),
                state => return Err(impossible(host, state, "lateness")),
            },
            Input::OthersOut { host, out } => {
                self.state(host)?;
                self.mark(host, |marks| (marks.absent, marks.late) = (out, false));
            }
            Input::Fatal => self.halt(StopReason::AnyError, actions),
            Input::EndPlay => self.last_wave = true,
            Input::Interrupt => self.halt(StopReason::Interrupted, actions),
            Input::Tick => self.wake = None,
            Input::Resume => self.resume(actions),
            Input::Reopen { host } => match self.state(host)? {
                Host::Ended { end, still_out } if end != End::Failed => self.reopen(host, end, still_out),
                state => return Err(impossible(host, state, "another try")),
            },
            Input::Returned { host } => match self.state(host)? {
                Host::Pending if self.is_in_no_wave(host) => self.enlist(host),
                state => return Err(impossible(host, state, "a return")),
            },
            Input::Beside { so_far, out } => {
                if let Some(unknown) = out.iter().find(|host| **host >= self.hosts.len()) {
                    return Err(RolloutError::NoSuchHost { host: *unknown });
                }
                self.look_beside(so_far, &out.into_iter().collect(), actions);
            }
        }
        Ok(())
    }

    fn wants_permit(
        &mut self,
        host: usize,
        class: Disruption,
        actions: &mut Vec<Action>,
    ) -> Result<(), RolloutError> {
        match self.state(host)? {
            // A node that is out may need a higher class. It has its place in the budget, but its idleness must be
            // proven again.
            Host::Out => {
                self.set(host, Host::Proving { class, was_out: true });
                actions.push(Action::ProveIdle { host });
            }
            Host::Running { holds: true } => match self.refusal_to_claim(class) {
                // It does not wait for the window, as it would stay drained all that time.
                Some(why) => actions.push(Action::Deny { host, why }),
                None => self.claim(host, class, actions),
            },
            Host::Running { holds: false } => {
                let marks = self.places.marks(host);
                let counted = marks.absent || marks.surveyed;
                self.set(host, Host::Queued { class });
                self.queue.push(host, self.places.domain(host), counted, self.surveys.asked(), self.now);
                self.unannounced.insert(host);
                if let Some(why) = self.refusal_to_claim(class).filter(|_| self.has_opened()) {
                    self.deny(host, why, actions);
                }
            }
            state => return Err(impossible(host, state, "a wish for a permit")),
        }
        Ok(())
    }

    fn end(&mut self, host: usize, end: End, actions: &mut Vec<Action>) -> Result<(), RolloutError> {
        let state = self.state(host)?;
        // A node that failed while it was out is in an unknown state, so its place stays taken.
        let is_out = match state {
            Host::Pending | Host::Ended { .. } => return Err(impossible(host, state, "an end")),
            Host::Running { holds } => holds,
            Host::Queued { .. } => false,
            Host::Proving { was_out, .. } => was_out || self.policy.drains,
            Host::Draining { .. } | Host::Out => true,
        };
        let still_out = is_out && end != End::Done;
        self.queue.remove(host);
        self.unannounced.remove(&host);
        self.draining.remove(&host);
        self.mark(host, |marks| {
            (marks.ours, marks.ended) = (still_out, still_out);
            marks.absent |= end == End::Unreachable;
        });
        self.set(host, Host::Ended { end, still_out });
        self.unfinished = self.unfinished.saturating_sub(1);
        self.lost.unreachable += usize::from(end == End::Unreachable);
        // Held nodes do not count: they were not changed, and nothing failed.
        if matches!(end, End::Failed | End::Unreachable) {
            self.count_failure(host, actions);
        }
        Ok(())
    }

    /// Whether the host is in the current wave; one that takes part again may be in an earlier one.
    pub(super) fn is_of_this_wave(&self, host: usize) -> bool {
        self.current.is_some_and(|current| self.wave_of.get(host) == Some(&current))
    }

    pub(super) fn state(&self, host: usize) -> Result<Host, RolloutError> {
        self.hosts.get(host).copied().ok_or(RolloutError::NoSuchHost { host })
    }

    pub(super) fn set(&mut self, host: usize, state: Host) {
        if let Some(slot) = self.hosts.get_mut(host) {
            *slot = state;
        }
    }

    pub(super) fn mark(&mut self, host: usize, change: impl FnOnce(&mut Marks)) {
        self.places.mark(host, change);
        self.settle(host);
    }
}

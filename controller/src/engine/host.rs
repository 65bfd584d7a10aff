//! What is carried of a host from play to play.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use gpufleet_protocol::{
    Disruption,
    facts::{Facts, GpuFacts, GpuSystemState},
};

use crate::{
    engine::ports::link::{Link, Purpose},
    engine::ports::scheduler::Marker,
    event::{Judged, NodeOutcome, NodeState, RecapCounts, TaskReport},
    interpreter::{Copied, Cursor, HostVars, Position},
    rollout::WaveHost,
};

/// One host of the run.
pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) link: Option<(Arc<dyn Link>, Purpose)>,
    /// Variables that tasks set, facts included.
    pub(crate) vars: HostVars,
    pub(crate) facts: Option<Arc<Facts>>,
    pub(crate) tally: HostTally,
    /// The worst that happened so far.
    pub(crate) verdict: NodeState,
    pub(crate) message: Option<String>,
    pub(crate) play_wide: PlayWide,
    /// What the last prediction said.
    pub(crate) forecast: Option<Prediction>,
    /// Where it was when an earlier process of this run ended.
    pub(crate) resumed: Option<Box<Resumed>>,
    pub(crate) results: HostResults,
    pub(crate) custody: CustodyRecord,
}

/// What is counted of a host.
#[derive(Default)]
pub(crate) struct HostTally {
    /// Its tasks, by how they ended.
    pub(crate) counts: RecapCounts,
    /// What an audit could judge of it; empty for other verbs.
    pub(crate) judged: Judged,
    /// When something was done for it first.
    pub(crate) since: Option<Instant>,
    /// When its part in the play was over.
    pub(crate) until: Option<Instant>,
}

impl HostTally {
    /// How long it was worked on so far.
    fn seconds(&self) -> u64 {
        self.since.map_or(0, |since| {
            self.until.unwrap_or_else(Instant::now).saturating_duration_since(since).as_secs()
        })
    }
}

/// What this run did to a host's service and has to undo.
#[derive(Default)]
pub(crate) struct CustodyRecord {
    pub(crate) rebooted: bool,
    /// It was rebooted since its drain began: what the reboot lost may be missing.
    pub(crate) rebooted_drained: bool,
    /// It was given back by someone else while it was disturbed: it takes work, whatever the permit says.
    pub(crate) serves: bool,
    /// The reasons of this run's reboots: no reason causes a second one.
    pub(crate) rebooted_for: BTreeSet<String>,
    /// This run has power cycled it: at most once.
    pub(crate) power_cycled: bool,
    pub(crate) out_of_service: bool,
    /// The marker at its scheduler while it may be drained for us.
    pub(crate) drain: Option<Marker>,
    /// The marker of a run whose journal is lost, until its drain is taken over.
    pub(crate) left_behind: Option<Marker>,
    /// It was taken over from a run whose journal is lost: what was done to it is not known.
    pub(crate) adopted: bool,
    /// When its last reboot was asked for.
    pub(crate) rebooted_at: Option<jiff::Timestamp>,
}

/// What tasks of a host do to all hosts of the play.
#[derive(Default)]
pub(crate) struct PlayWide {
    /// The play stops, or ends, for all hosts.
    pub(crate) fatal: bool,
    pub(crate) end_play: bool,
    pub(crate) end_batch: bool,
    /// It did `meta: clear_host_errors` in this play.
    pub(crate) cleared_errors: bool,
}

/// How much memory a host's results take, in bytes.
#[derive(Default)]
pub(crate) struct HostResults {
    pub(crate) bytes: u64,
    /// The last one of them.
    pub(crate) last: u64,
}

/// What a prediction of one play on one host gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prediction {
    /// The most that it is sure to need.
    pub(crate) class: Disruption,
    /// A GPU reset and a reboot in the same play: one reboot can serve both.
    pub(crate) reset_and_reboot: bool,
    /// Stands for the tasks that have something to do; none where all is as declared.
    pub(crate) work: Option<u64>,
}

/// A reboot that was asked for and not seen through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingReboot {
    pub(crate) boot_id: String,
    pub(crate) deadline: Option<jiff::Timestamp>,
    /// The reboot is proven, and only the cursor was not told.
    pub(crate) proven: bool,
}

/// Where a host was when the run was cut off.
pub(crate) struct Resumed {
    pub(crate) cursor: Cursor,
    /// Reports whose events did not reach the journal.
    pub(crate) unreported: Vec<TaskReport>,
    /// How many of the next reports people have seen already.
    pub(crate) already: usize,
    pub(crate) reboot: Option<PendingReboot>,
    pub(crate) boot_id: Option<String>,
    /// What went wrong under the permit.
    pub(crate) unproven: Option<String>,
    pub(crate) latches: Vec<(Arc<str>, Option<Copied>)>,
    /// It failed in a way that ends all hosts, and others may not have been told.
    pub(crate) raised: Option<Position>,
    /// The replay failed: the cursor came to this task, and the journal has the answer to another one.
    pub(crate) astray: Option<String>,
    /// Where in the journal it last failed in such a way.
    pub(crate) raised_at: Option<usize>,
    /// Where in the journal it was last told of such a failure of another host, or of a threshold.
    pub(crate) halted: Option<usize>,
}

impl CustodyRecord {
    /// Takes over a drain of a run whose journal is lost.
    pub(crate) fn adopt(&mut self, marker: Marker) {
        self.drain = Some(marker);
        self.adopted = true;
        self.out_of_service = true;
    }

    /// Whether it is out of service through us, or may be.
    pub(crate) const fn is_out(&self) -> bool {
        self.out_of_service || (self.drain.is_some() && !self.serves)
    }
}

impl HostState {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            link: None,
            vars: HostVars::default(),
            facts: None,
            tally: HostTally::default(),
            verdict: NodeState::Pending,
            message: None,
            forecast: None,
            resumed: None,
            play_wide: PlayWide::default(),
            results: HostResults::default(),
            custody: CustodyRecord::default(),
        }
    }

    /// Whether the host takes part in further plays.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(
            self.verdict,
            NodeState::Failed | NodeState::Held | NodeState::Unreachable | NodeState::Skipped
        )
    }

    /// Whether it is out of service through us, or may be.
    pub(crate) const fn is_out(&self) -> bool {
        self.custody.is_out()
    }

    /// Whether other plays have to count it as out of service: through us, or because it does not answer.
    pub(crate) fn is_absent(&self) -> bool {
        self.verdict == NodeState::Unreachable || self.is_out()
    }

    /// Whether a resume can go on with it once a person has done something.
    pub(crate) const fn waits_for_a_person(&self) -> bool {
        match self.verdict {
            NodeState::Held => true,
            NodeState::Unreachable => self.is_out(),
            _ => false,
        }
    }

    /// What the division into waves needs to know of it. A reading has played the whole play by then; a run divides before a
    /// task fails, so that a node whose task fails is as good a canary in both. One whose reading comes to no end is none.
    pub(crate) fn in_waves(&self, gone: bool, writes: bool) -> WaveHost {
        let failed_later = !writes && self.verdict == NodeState::Failed && self.forecast.is_some();
        let gpus = self.facts.as_ref().map(|facts| facts.gpu.gpus.as_slice()).unwrap_or_default();
        WaveHost {
            class: self.hardware_class(),
            gpus: gpus.len(),
            flaws: gpus.iter().map(|gpu| gpu.errors.len()).sum(),
            work: self.forecast.and_then(|forecast| forecast.work),
            reachable: self.is_alive() || failed_later,
            late: false,
            gone,
        }
    }

    /// Hardware class: GPU models, driver and firmware; none where facts are not known, or the driver does not answer for
    /// every GPU on the bus: nothing that is done to such a node says anything of others.
    fn hardware_class(&self) -> Option<String> {
        let gpu = &self.facts.as_ref()?.gpu;
        let answers = match gpu.state {
            GpuSystemState::NoGpu => true,
            GpuSystemState::Ok => {
                gpu.gpus.len() >= gpu.pci_count as usize && gpu.gpus.iter().all(|gpu| !gpu.name.is_empty())
            }
            _ => false,
        };
        let kind = |gpu: &GpuFacts| format!("{} {}", gpu.name, gpu.vbios.as_deref().unwrap_or_default());
        let mut gpus: Vec<String> = gpu.gpus.iter().map(kind).collect();
        gpus.sort();
        gpus.dedup();
        let driver = gpu.driver_version.as_deref().unwrap_or_default();
        answers.then(|| format!("{}|{driver}", gpus.join(",")))
    }

    pub(crate) fn count(&mut self, reports: &[TaskReport]) {
        for report in reports {
            self.tally.counts.count(report);
        }
    }

    /// `meta: clear_host_errors`: hosts that were lost before take part in the next play.
    pub(crate) fn clear_errors(host_states: &mut [Self]) {
        let cleared =
            host_states.iter_mut().fold(false, |any, host_state| any | host_state.play_wide.cleared_errors);
        for host_state in host_states {
            // Why not a host that did it: it failed after that.
            let before = !std::mem::take(&mut host_state.play_wide.cleared_errors);
            let gone = matches!(host_state.verdict, NodeState::Failed | NodeState::Unreachable);
            if cleared && before && gone && !host_state.is_out() {
                host_state.verdict = NodeState::Pending;
                host_state.message = None;
            }
        }
    }

    /// Takes over a state that is worse than the one so far.
    pub(crate) fn worsen(&mut self, state: NodeState, message: Option<String>) {
        if super::verdict::badness(state) >= super::verdict::badness(self.verdict) {
            let changed = state != self.verdict;
            self.verdict = state;
            if changed || self.message.is_none() {
                self.message = message.or(self.message.take());
            }
        }
    }

    /// Its state and the reason. After an audit that could not judge everything, it is not known whether all is as declared.
    pub(crate) fn standing(&self) -> (NodeState, Option<String>) {
        match self.tally.judged.gap() {
            Some(gap) if self.verdict == NodeState::Compliant => (NodeState::Unknown, Some(gap)),
            _ => (self.verdict, self.message.clone()),
        }
    }

    pub(crate) fn outcome(&self) -> NodeOutcome {
        let (state, message) = self.standing();
        NodeOutcome {
            state: if state == NodeState::Pending { NodeState::Skipped } else { state },
            message,
            counts: self.tally.counts,
            seconds: self.tally.seconds(),
            rebooted: self.custody.rebooted,
            out_of_service: self.is_out(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleared_errors_bring_back_who_was_lost_before() {
        let host_state = |name: &str, verdict, cleared_errors| {
            let mut host_state = HostState::new(name.to_owned());
            (host_state.verdict, host_state.play_wide.cleared_errors) = (verdict, cleared_errors);
            host_state
        };
        let states = |cleared: bool| {
            let mut host_states = vec![
                host_state("lost before", NodeState::Failed, false),
                host_state("lost behind", NodeState::Failed, cleared),
                host_state("gone before", NodeState::Unreachable, false),
                host_state("fine", NodeState::Done, cleared),
                host_state("held", NodeState::Held, false),
            ];
            HostState::clear_errors(&mut host_states);
            assert!(!host_states.iter().any(|host_state| host_state.play_wide.cleared_errors));
            host_states.iter().map(|host_state| host_state.verdict).collect::<Vec<_>>()
        };
        use NodeState::{Done, Failed, Held, Pending, Unreachable};
        assert_eq!(states(true), [Pending, Failed, Pending, Done, Held]);
        assert_eq!(states(false), [Failed, Failed, Unreachable, Done, Held]);
    }

    #[test]
    fn a_node_is_a_canary_in_a_plan_if_it_is_one_in_the_run() {
        let host = |read: bool| HostState {
            verdict: NodeState::Failed,
            facts: Some(Default::default()),
            forecast: read.then(Default::default),
            ..HostState::new("gpu001".to_owned())
        };
        for read in [true, false] {
            assert_eq!(host(read).in_waves(false, false).reachable, read);
            assert!(!host(read).in_waves(false, true).reachable, "a run's own reading failed");
        }
    }
}

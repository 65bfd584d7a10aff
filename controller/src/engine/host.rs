//! What is kept of a host between the plays of a run.

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
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) link: Option<(Arc<dyn Link>, Purpose)>,
    /// Variables that tasks set, facts included.
    pub(crate) vars: HostVars,
    pub(crate) facts: Option<Arc<Facts>>,
    pub(crate) counts: RecapCounts,
    pub(crate) since: Option<Instant>,
    /// When its part in the play was over.
    pub(crate) until: Option<Instant>,
    /// The worst that happened so far.
    pub(crate) verdict: NodeState,
    pub(crate) message: Option<String>,
    pub(crate) play_wide: PlayWide,
    /// What an audit could judge of it; empty for other verbs.
    pub(crate) judged: Judged,
    /// What the last prediction said.
    pub(crate) forecast: Option<Prediction>,
    /// Where it stood when an earlier process of this run ended.
    pub(crate) resumed: Option<Box<Resumed>>,
    pub(crate) kept: KeptResults,
    pub(crate) custody: CustodyRecord,
}

/// What this run did to a host's service, and has to undo.
#[derive(Default)]
pub(crate) struct CustodyRecord {
    pub(crate) rebooted: bool,
    /// It was rebooted since its drain began: what that took may be missing on it.
    pub(crate) rebooted_drained: bool,
    /// Somebody gave it back while it was disturbed: it takes work, whatever the permit says.
    pub(crate) serves: bool,
    /// What reboots of this run were for: none is made twice for the same.
    pub(crate) rebooted_for: BTreeSet<String>,
    /// This run has power cycled it: at most once.
    pub(crate) power_cycled: bool,
    pub(crate) out_of_service: bool,
    /// What marks it at its scheduler while it may be drained for us.
    pub(crate) drain: Option<Marker>,
    /// What a run whose journal is lost left it drained with, until it is taken over.
    pub(crate) left_behind: Option<Marker>,
    /// It was taken over from a run whose journal is lost: nobody knows what was done to it.
    pub(crate) adopted: bool,
    /// When its last reboot was asked for.
    pub(crate) rebooted_at: Option<jiff::Timestamp>,
}

/// What the tasks of a host ask for all hosts of the play.
#[derive(Default)]
pub(crate) struct PlayWide {
    /// The play stops, or ends, for all hosts.
    pub(crate) fatal: bool,
    pub(crate) end_play: bool,
    pub(crate) end_batch: bool,
    /// It did `meta: clear_host_errors` in this play.
    pub(crate) cleared_errors: bool,
}

/// How much of a host's results is kept, in bytes.
#[derive(Default)]
pub(crate) struct KeptResults {
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
}

/// A reboot that was asked for and not seen through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingReboot {
    pub(crate) boot_id: String,
    pub(crate) deadline: Option<jiff::Timestamp>,
    /// It is proven, and only its cursor does not know.
    pub(crate) proven: bool,
}

/// Where a node stood when the run was cut off.
pub(crate) struct Resumed {
    pub(crate) cursor: Cursor,
    /// Reports whose events did not reach the journal.
    pub(crate) unreported: Vec<TaskReport>,
    /// Reports to come that people have seen already.
    pub(crate) already: usize,
    pub(crate) reboot: Option<PendingReboot>,
    pub(crate) boot_id: Option<String>,
    /// What went wrong under the permit.
    pub(crate) unproven: Option<String>,
    pub(crate) latches: Vec<(Arc<str>, Option<Copied>)>,
    /// It failed where any failure is everybody's, and the others may not have heard of it.
    pub(crate) raised: Option<Position>,
    /// The task that it came to where the journal has the answer of another one.
    pub(crate) astray: Option<String>,
    /// Where in the journal it failed so last.
    pub(crate) raised_at: Option<usize>,
    /// Where in the journal it last heard of such a failure elsewhere, or of a bound.
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

impl Slot {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            link: None,
            vars: HostVars::default(),
            facts: None,
            counts: RecapCounts::default(),
            since: None,
            until: None,
            verdict: NodeState::Pending,
            message: None,
            judged: Judged::default(),
            forecast: None,
            resumed: None,
            play_wide: PlayWide::default(),
            kept: KeptResults::default(),
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

    /// Whether a resume has something to do for it once a person has done their part.
    pub(crate) const fn waits_for_a_person(&self) -> bool {
        match self.verdict {
            NodeState::Held => true,
            NodeState::Unreachable => self.is_out(),
            _ => false,
        }
    }

    /// What the division into waves asks of it.
    pub(crate) fn in_waves(&self, gone: bool) -> WaveHost {
        let gpus = self.facts.as_ref().map(|facts| facts.gpu.gpus.as_slice()).unwrap_or_default();
        WaveHost {
            class: self.hardware_class(),
            gpus: gpus.len(),
            flaws: gpus.iter().map(|gpu| gpu.errors.len()).sum(),
            reachable: self.is_alive(),
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
            self.counts.count(report);
        }
    }

    /// `meta: clear_host_errors`: hosts that were lost before take part in the next play.
    pub(crate) fn clear_errors(slots: &mut [Self]) {
        let cleared = slots.iter_mut().fold(false, |any, slot| any | slot.play_wide.cleared_errors);
        for slot in slots {
            // Why not one that did it: what it lost it lost behind it.
            let before = !std::mem::take(&mut slot.play_wide.cleared_errors);
            let gone = matches!(slot.verdict, NodeState::Failed | NodeState::Unreachable);
            if cleared && before && gone && !slot.is_out() {
                slot.verdict = NodeState::Pending;
                slot.message = None;
            }
        }
    }

    /// Takes a state over when it is worse than the one so far.
    pub(crate) fn worsen(&mut self, state: NodeState, message: Option<String>) {
        if super::verdict::badness(state) >= super::verdict::badness(self.verdict) {
            let changed = state != self.verdict;
            self.verdict = state;
            if changed || self.message.is_none() {
                self.message = message.or(self.message.take());
            }
        }
    }

    /// Where it stands, and why: an audit that did not judge everything does not know whether all is as declared.
    pub(crate) fn standing(&self) -> (NodeState, Option<String>) {
        match self.judged.gap() {
            Some(gap) if self.verdict == NodeState::Compliant => (NodeState::Unknown, Some(gap)),
            _ => (self.verdict, self.message.clone()),
        }
    }

    pub(crate) fn outcome(&self) -> NodeOutcome {
        let (state, message) = self.standing();
        NodeOutcome {
            state: if state == NodeState::Pending { NodeState::Skipped } else { state },
            message,
            counts: self.counts,
            seconds: self.since.map_or(0, |since| {
                self.until.unwrap_or_else(Instant::now).saturating_duration_since(since).as_secs()
            }),
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
        let slot = |name: &str, verdict, cleared_errors| {
            let mut slot = Slot::new(name.to_owned());
            (slot.verdict, slot.play_wide.cleared_errors) = (verdict, cleared_errors);
            slot
        };
        let states = |cleared: bool| {
            let mut slots = vec![
                slot("lost before", NodeState::Failed, false),
                slot("lost behind", NodeState::Failed, cleared),
                slot("gone before", NodeState::Unreachable, false),
                slot("fine", NodeState::Done, cleared),
                slot("held", NodeState::Held, false),
            ];
            Slot::clear_errors(&mut slots);
            assert!(!slots.iter().any(|slot| slot.play_wide.cleared_errors));
            slots.iter().map(|slot| slot.verdict).collect::<Vec<_>>()
        };
        use NodeState::{Done, Failed, Held, Pending, Unreachable};
        assert_eq!(states(true), [Pending, Failed, Pending, Done, Held]);
        assert_eq!(states(false), [Failed, Failed, Unreachable, Done, Held]);
    }
}

//! How much memory what hosts keep of results may take: registered ones, items of loops, facts.
//!
//! Owns the bounds of a host and of the run. Counts up only, but for the tries of `until`, of which the last one stays: what
//! a later result takes the place of is counted still, so that a loop over loops has an end.

use std::sync::atomic::{AtomicU64, Ordering};

use gpufleet_protocol::{FailureKind, OpOutcome};

use crate::{engine::host::HostResults, interpreter::OpId};

/// What the results of one host may take, in bytes.
const OF_HOST: u64 = 24 << 20;
/// What those of all hosts may take together: so much, and so much more for each of them, in bytes.
const OF_RUN: u64 = 160 << 20;
const MORE_A_HOST: u64 = 1 << 20;
/// What is this small does not count, in bytes: a play may have any number of tasks. How many items a loop has may be the
/// node's word, so theirs count.
const TRIFLE: u64 = 4 << 10;

/// What all hosts of a run keep.
#[derive(Debug)]
pub struct ResultsBudget {
    bytes: AtomicU64,
    most: u64,
}

impl ResultsBudget {
    /// For a run of so many hosts.
    pub fn of(hosts: usize) -> Self {
        Self { bytes: AtomicU64::new(0), most: OF_RUN + MORE_A_HOST * hosts as u64 }
    }

    /// The outcome, or in its place why there is no room for it.
    pub(crate) fn within(&self, outcome: OpOutcome, id: &OpId, of_host: &mut HostResults) -> OpOutcome {
        let before = std::mem::take(&mut of_host.last);
        if id.retry > 0 {
            of_host.bytes -= before;
            self.bytes.fetch_sub(before, Ordering::Relaxed);
        }
        let weight = outcome.weight.bytes;
        if weight <= TRIFLE && id.item.is_none() {
            return outcome;
        }
        let refused = |whose: &str, most: u64| {
            OpOutcome::failed(
                FailureKind::Io,
                format!(
                    "there is no room for its result: what the tasks of {whose} gave and is kept, registered or in loops, \
                     would take more than {} MiB; what it did on the node is done. Register less, keep it in files there \
                     (`copy`) and `fetch` those",
                    most >> 20
                ),
            )
        };
        if of_host.bytes + weight > OF_HOST {
            return refused("this host", OF_HOST);
        }
        if self.bytes.fetch_add(weight, Ordering::Relaxed) + weight > self.most {
            self.bytes.fetch_sub(weight, Ordering::Relaxed);
            return refused("all hosts", self.most);
        }
        of_host.bytes += weight;
        of_host.last = weight;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Weight};

    use super::*;
    use crate::index::PlayIndex;

    fn outcome(bytes: u64) -> OpOutcome {
        OpOutcome { weight: Weight { bytes, room: None }, ..OpOutcome::new(OpStatus::Ok) }
    }

    fn id(item: Option<u32>, retry: u32) -> OpId {
        OpId { item, retry, ..OpId::new(PlayIndex(0), "tasks.0", "n") }
    }

    fn why(outcome: &OpOutcome) -> &str {
        match &outcome.status {
            OpStatus::Failed { message, .. } => message,
            _ => "",
        }
    }

    #[test]
    fn a_host_keeps_so_much_and_all_of_them_together() {
        let kept = ResultsBudget::of(1);
        let mut host_states: Vec<HostResults> = (0..18).map(|_| HostResults::default()).collect();
        for host_state in &mut host_states[..10] {
            assert_eq!(why(&kept.within(outcome(16 << 20), &id(None, 0), host_state)), "");
            let refused = kept.within(outcome(16 << 20), &id(None, 0), host_state);
            assert!(
                why(&refused).contains("the tasks of this host") && why(&refused).contains("24 MiB"),
                "{refused:?}"
            );
        }
        let refused = kept.within(outcome(16 << 20), &id(None, 0), &mut host_states[10]);
        assert!(
            why(&refused).contains("the tasks of all hosts") && why(&refused).contains("161 MiB"),
            "{refused:?}"
        );
        assert_eq!(
            why(&kept.within(outcome(512 << 10), &id(None, 0), &mut host_states[17])),
            "",
            "what fits is kept"
        );
        for _ in 0..100_000 {
            assert_eq!(why(&kept.within(outcome(TRIFLE), &id(None, 0), &mut host_states[0])), "");
        }
    }
    #[test]
    fn the_last_try_counts_and_the_smallest_item_of_a_loop() {
        let (kept, mut of_host) = (ResultsBudget::of(1), HostResults::default());
        for retry in 0..1000 {
            assert_eq!(why(&kept.within(outcome(1 << 20), &id(None, retry), &mut of_host)), "", "{retry}");
        }
        assert_eq!((of_host.bytes, kept.bytes.load(Ordering::Relaxed)), (1 << 20, 1 << 20));
        let items = (0..).take_while(|item| {
            why(&kept.within(outcome(TRIFLE), &id(Some(*item), 0), &mut of_host)).is_empty()
        });
        assert_eq!(items.count() as u64, (OF_HOST - (1 << 20)) / TRIFLE);
    }
}

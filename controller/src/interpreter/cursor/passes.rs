//! The ledger of what the play declared on the host, and the passes over it: asserted again after a reset or reboot,
//! looked at before one, verified at the end of a section.

use std::collections::VecDeque;

use gpufleet_protocol::{
    Disruption, NodeOp,
    op::{GpuGroup, GpuTask},
    tasks::KeepPresence,
};

use super::setup::Setup;
use super::state::{Pending, Purpose};
use crate::interpreter::action::{Action, Mode, Phase, Terms, Work, position};
use crate::interpreter::intervening::Intervener;
use crate::interpreter::ledger::{Entry, Ledger};

/// How many activations a play may see on one host before it fails.
const MAX_ACTIVATIONS: u32 = 8;
/// Behind all rounds of assertions after activations, so that no two operations have the same id.
const KEPT_AGAIN: u32 = 1 << 16;

#[derive(Default)]
pub(super) struct LedgerPasses {
    ledger: Ledger,
    /// Entries to plan again before anything else.
    reassert: VecDeque<usize>,
    /// Entries that later tasks may have changed. They are looked at before a reboot, which would hide who changed them.
    unsettled: VecDeque<usize>,
    /// Entries still to be verified.
    verify: VecDeque<usize>,
    activations: u32,
    /// Activations by commands, of which a loop may make any number.
    commanded: u32,
    verifications: u32,
    /// How often `gpu_keep` was sent once more because later tasks declared the GPUs otherwise.
    kept_again: u32,
    /// Something was applied since the last verification.
    touched: bool,
}

impl LedgerPasses {
    pub(super) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) const fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// What stands of the declared state of the GPUs, with what earlier plays declared of them.
    pub(super) fn declared_gpus(&self, earlier: &GpuGroup) -> GpuGroup {
        let mut all = earlier.clone();
        for (_, entry) in self.ledger.standing() {
            let NodeOp::GpuGroup(newer) = &entry.op else { continue };
            // What is hidden stays off the disks of nodes, and out of the differences that a plan shows.
            if entry.owners.iter().any(|owner| owner.task.no_log) {
                continue;
            }
            let mut kept = all.kept(newer).into_iter();
            all.members.retain(|_| kept.next().unwrap_or(true));
            // A reset is an act, and nothing that a boot takes away.
            let state = newer.members.iter().filter(|member| !matches!(member.task, GpuTask::GpuReset(_)));
            all.members.extend(state.cloned());
        }
        all
    }

    /// A section is over: sends `gpu_keep` once more if tasks behind it declared the GPUs otherwise, because a boot must not bring
    /// back what they undid.
    pub(super) fn keep_again(&mut self, earlier: &GpuGroup, setup: &Setup) -> Option<Pending> {
        let declared = self.declared_gpus(earlier).members;
        let (index, known) = self.ledger.standing().find_map(|(index, entry)| match &entry.op {
            NodeOp::KeepState(keep) if keep.policy.state == KeepPresence::Present => Some((index, keep)),
            _ => None,
        })?;
        if declared.is_empty() || known.members == declared {
            return None;
        }
        if let Some(NodeOp::KeepState(keep)) = self.ledger.entries.get_mut(index).map(|entry| &mut entry.op) {
            keep.members = declared;
        }
        self.kept_again += 1;
        self.sent(index, Phase::Reassert, KEPT_AGAIN + self.kept_again, setup)
    }

    /// Something was applied.
    pub(super) const fn touch(&mut self) {
        self.touched = true;
    }

    pub(super) const fn is_touched(&self) -> bool {
        self.touched
    }

    pub(super) const fn set_touched(&mut self, touched: bool) {
        self.touched = touched;
    }

    /// The entry that has to be sent again before the play goes on, and what for.
    pub(super) fn next_due(&mut self) -> Option<(usize, Phase)> {
        if let Some(entry) = self.reassert.pop_front() {
            return Some((entry, Phase::Reassert));
        }
        Some((self.unsettled.pop_front()?, Phase::Verify))
    }

    /// The next entry of the verification at the end of a section.
    pub(super) fn next_to_verify(&mut self) -> Option<usize> {
        self.verify.pop_front()
    }

    /// A section is over: what it declared is verified if anything was applied.
    pub(super) fn begin_verification(&mut self) {
        if std::mem::take(&mut self.touched) {
            self.verifications += 1;
            let mute = self.ledger.driver_is_awaited();
            let all = self.ledger.standing().filter(|(_, entry)| !(mute && is_of_gpus(&entry.op)));
            self.verify = all.map(|(index, _)| index).collect();
        }
    }

    /// A task failed: nothing that was due is sent again.
    pub(super) fn drop_due(&mut self) {
        self.reassert.clear();
        self.unsettled.clear();
    }

    /// The host failed: nothing is verified any more.
    pub(super) fn drop_verification(&mut self) {
        self.verify.clear();
    }

    /// Whether something of these kinds has to be looked at before the node reboots or its GPUs are reset: afterwards what a
    /// command changed could not be told from what the reboot lost. The task on top begins anew afterwards.
    pub(super) fn settle_before(&mut self, kinds: impl Fn(&NodeOp) -> bool) -> bool {
        let mute = self.ledger.driver_is_awaited();
        let seen = |op: &NodeOp| kinds(op) && !(mute && is_of_gpus(op));
        let touched = self.ledger.touched().filter(|(_, entry)| seen(&entry.op));
        self.unsettled = touched.map(|(index, _)| index).collect();
        self.verifications += u32::from(!self.unsettled.is_empty());
        !self.unsettled.is_empty()
    }

    /// The GPUs were reset or the node rebooted: what that may have lost is planned again before anything else. `except` is
    /// the entry that caused it.
    ///
    /// # Errors
    /// Why the host has to be given up.
    pub(super) fn activated(&mut self, class: Disruption, except: Option<usize>) -> Result<(), String> {
        self.ledger.activated(class);
        self.activations += 1;
        self.assert_again(except, |op| class == Disruption::Reboot || is_of_gpus(op))
    }

    /// A command may have reset GPUs, some or all of them.
    pub(super) fn reset_by_command(&mut self) {
        self.commanded += 1;
        self.again_first(None, is_of_gpus);
    }

    /// The kinds of GPU tasks whose declarations stand, each once.
    pub(super) fn kinds_of_gpus(&self) -> Vec<&'static str> {
        let mut kinds = Vec::new();
        for (_, entry) in self.ledger.standing() {
            let NodeOp::GpuGroup(group) = &entry.op else { continue };
            for kind in group.members.iter().map(|member| member.task.kind()) {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
        }
        kinds
    }

    /// Persistence came on: what was declared of the GPUs before it, the driver may have forgotten. `except` is the entry that
    /// brought it.
    ///
    /// # Errors
    /// Why the host has to be given up.
    pub(super) fn awake(&mut self, except: Option<usize>) -> Result<(), String> {
        let earlier =
            self.ledger.standing().any(|(index, entry)| Some(index) != except && is_of_gpus(&entry.op));
        if !earlier {
            return Ok(());
        }
        self.activations += 1;
        self.assert_again(except, is_of_gpus)
    }

    fn assert_again(&mut self, except: Option<usize>, lost: impl Fn(&NodeOp) -> bool) -> Result<(), String> {
        if self.activations > MAX_ACTIVATIONS {
            return Err(format!(
                "the node was reset or rebooted {} times in this play and still needs more",
                self.activations
            ));
        }
        self.again_first(except, lost);
        Ok(())
    }

    fn again_first(&mut self, except: Option<usize>, lost: impl Fn(&NodeOp) -> bool) {
        let mut lost_again = Vec::new();
        for (index, entry) in self.ledger.standing() {
            if lost(&entry.op) && Some(index) != except && !self.reassert.contains(&index) {
                let is_driver = matches!(entry.op, NodeOp::GpuDriver(_));
                lost_again.push((!is_driver, !keeps_awake(&entry.op), index));
            }
        }
        // Why the driver first: nothing of the GPUs can be asserted where it did not come up. Why persistence next: without it
        // the driver forgets what is set.
        lost_again.sort_by_key(|(other, late, _)| (*other, *late));
        self.reassert.extend(lost_again.into_iter().map(|(.., index)| index));
    }

    /// Adds what a task declared; says where it stands, if it stands at all.
    pub(super) fn declare(&mut self, entry: Entry) -> Option<usize> {
        self.ledger.declare(entry)
    }

    /// Notes what an operation may have done to what earlier tasks declared.
    pub(super) fn intervened(&mut self, action: &Action) {
        let Work::Node { op, .. } = &action.work else { return };
        let unwatched = action.terms.job.is_some_and(|job| job.poll_s == 0);
        self.ledger.intervened(op, &Intervener::of(action), unwatched);
    }

    /// What is written and waits for an activation, each once.
    pub(super) fn awaited(&self) -> Vec<String> {
        let mut reasons: Vec<String> = Vec::new();
        for awaiting in self.ledger.awaiting() {
            if !reasons.contains(&awaiting.reason) {
                reasons.push(awaiting.reason);
            }
        }
        reasons
    }

    /// Why the node may be rebooted: what waits for an activation, and what runs from the next boot on.
    pub(super) fn reboot_reasons(&self) -> Vec<String> {
        let mut reasons = self.awaited();
        let more = self.ledger.for_next_boot().iter().filter(|reason| !reasons.contains(reason));
        reasons.extend(more.cloned().collect::<Vec<_>>());
        reasons
    }

    /// What cannot be verified before an activation, in words.
    pub(super) fn unverified(&self) -> Option<&'static str> {
        let declared = self.ledger.standing().any(|(_, entry)| is_of_gpus(&entry.op));
        (declared && self.ledger.driver_is_awaited()).then_some(
            "what is declared of the GPUs was not verified: the driver answers for it after the reboot only",
        )
    }

    /// The operation that sends an entry once more.
    pub(super) fn again(&self, index: usize, phase: Phase, setup: &Setup) -> Option<Pending> {
        let asserted = self.activations + self.commanded;
        let rounds = if phase == Phase::Verify { self.verifications } else { asserted };
        self.sent(index, phase, rounds.saturating_sub(1), setup)
    }

    fn sent(&self, index: usize, phase: Phase, round: u32, setup: &Setup) -> Option<Pending> {
        let entry = self.ledger.entries.get(index)?;
        let owner = entry.owners.first()?;
        let (purpose, mode) = match phase {
            Phase::Verify => (Purpose::Verify(index), Mode::Predict),
            _ => (Purpose::Reassert(index), setup.mode),
        };
        let mut op = entry.op.clone();
        if let NodeOp::GpuGroup(group) = &mut op {
            group.defer_to_reboot = false;
        }
        let item = owner.item.as_ref().map(|(index, _)| *index);
        let disruption = entry.owners.iter().map(|owner| owner.task.kind.disruption).max();
        let no_log = entry.owners.iter().any(|owner| owner.task.no_log);
        let action = Action {
            id: setup.op_id(&owner.task.path, item, phase, round),
            task: owner.title.clone(),
            kind: owner.task.kind.name,
            position: position(&owner.task.span),
            mode,
            work: Work::Node { op: Box::new(op), blobs: entry.blobs.clone() },
            timeout_s: entry.timeout_s,
            run_as: entry.run_as.clone(),
            environment: entry.environment.clone(),
            no_log,
            disruption: disruption.unwrap_or_default(),
            terms: Terms::default(),
        };
        Some(Pending { action, purpose })
    }
}

/// Whether an operation asks the driver of GPUs, and lasts no longer than that is loaded. One that waits for a reboot
/// answers nobody.
const fn is_of_gpus(op: &NodeOp) -> bool {
    matches!(op, NodeOp::GpuGroup(_) | NodeOp::GpuDrainState(_))
}

/// Whether an operation keeps the driver of GPUs in memory.
fn keeps_awake(op: &NodeOp) -> bool {
    let NodeOp::GpuGroup(group) = op else { return false };
    group.members.iter().any(|member| matches!(member.task, GpuTask::GpuPersistence(_)))
}

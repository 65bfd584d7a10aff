//! GPU groups: several tasks, one desired state, one activation.

use std::sync::Arc;

use gpufleet_protocol::op::{GpuGroup, GpuMember};
use gpufleet_protocol::{NodeOp, OpOutcome, OpStatus};

use super::Cursor;
use super::state::{ActiveGroup, Frame, Pending, Purpose, Slot, SlotState};
use super::task::{Items, LOOP_UNKNOWN, Raw};
use crate::interpreter::action::{Action, Mode, Phase, RunAs, Work};
use crate::interpreter::ledger::{Entry, Owner};
use crate::interpreter::prepare::{Deed, Prepared};
use crate::interpreter::report::Status;
use crate::playbook::Task;

impl Cursor {
    pub(super) fn push_group(&mut self, tasks: Arc<[Arc<Task>]>) {
        self.frames.push(Frame::Group(Box::new(ActiveGroup {
            tasks,
            slots: Vec::new(),
            started: false,
            asked: false,
        })));
    }

    /// Evaluates every member at entry and sends those that act.
    pub(super) fn group_step(&mut self) {
        let Some(Frame::Group(group)) = self.frames.last() else { return };
        if group.started {
            // Why: nothing was sent, or its result was taken already.
            self.finish_group(None, None, None);
            return;
        }
        let tasks = Arc::clone(&group.tasks);
        if self.mode == Mode::Apply && self.settles(|op| matches!(op, NodeOp::GpuGroup(_))) {
            return;
        }
        let mut slots = Vec::new();
        let mut members = Vec::new();
        let mut terms: Option<(RunAs, Vec<(String, String)>)> = None;
        for (member, task) in tasks.iter().enumerate() {
            let (items, secret) = crate::template::watch(|| self.loop_items(task));
            let mut task = Arc::clone(task);
            if secret || self.hides(&task) {
                task = self.hidden(&task);
            }
            let mut all = Vec::new();
            let (values, early) = match items {
                Items::None => (vec![None], None),
                Items::These(values) => {
                    all = values.clone();
                    (values.into_iter().map(Some).collect(), None)
                }
                Items::Skip(reason) => (vec![None], Some(SlotState::Skip(reason))),
                Items::Possible => (vec![None], Some(self.open_slot(LOOP_UNKNOWN.to_owned()))),
                Items::Fail(message) => (vec![None], Some(SlotState::Fail(message))),
            };
            let mut early = early;
            for (index, value) in values.into_iter().enumerate() {
                let layer = match (&task.looped, &value) {
                    (Some(looped), Some(value)) => Some(Self::item_layer(looped, index, value, Some(&all))),
                    _ => None,
                };
                let scope = self.scope(&task, layer.clone());
                let prepared = match early.take() {
                    Some(state) => Err(state),
                    None => {
                        let (prepared, secret) = self.surroundings(&task).prepare(&task, &scope);
                        if secret {
                            task = self.hidden(&task);
                        }
                        Ok(prepared)
                    }
                };
                let item = value.as_ref().map(|value| {
                    (u32::try_from(index).unwrap_or(u32::MAX), Self::item_label(&task, value, &scope))
                });
                let owner = Owner { task: Arc::clone(&task), title: self.title(&task, &scope), item };
                let state = prepared.map_or_else(
                    |state| state,
                    |prepared| match prepared {
                        Prepared::Skip(reason) => SlotState::Skip(reason),
                        Prepared::Unmet(_) => SlotState::Skip("the condition does not hold".to_owned()),
                        Prepared::Possible(reason) => self.open_slot(reason),
                        Prepared::Fail(message) => SlotState::Fail(message),
                        Prepared::Do(ready) => match ready.deed {
                            Deed::Gpu(gpu) => {
                                terms.get_or_insert((ready.run_as, ready.environment));
                                members.push(GpuMember { task: gpu });
                                SlotState::Sent(members.len() - 1)
                            }
                            _ => SlotState::Fail("not a GPU task".to_owned()),
                        },
                    },
                );
                slots.push(Slot { member, owner, layer, state });
            }
        }
        // Why: a member that cannot even be evaluated must not leave the GPUs in half of the declared state.
        let broken = slots.iter().any(|slot| {
            matches!(slot.state, SlotState::Fail(_))
                && !Self::ignores_errors(&slot.owner.task, &self.scope(&slot.owner.task, None))
        });
        if broken {
            members.clear();
        }
        let sent: Vec<&Slot> = slots
            .iter()
            .filter(|slot| !members.is_empty() && matches!(slot.state, SlotState::Sent(_)))
            .collect();
        if let (Some(first), Some((run_as, environment))) = (sent.first(), terms) {
            let task = &first.owner.task;
            let action = Action {
                id: self.op_id(&task.path, None, Phase::Declared, 0),
                task: first.owner.title.clone(),
                kind: task.kind.name,
                file: Arc::from(task.span.file()),
                line: task.span.line,
                mode: self.mode,
                phase: Phase::Declared,
                work: Work::Node {
                    op: Box::new(NodeOp::GpuGroup(GpuGroup {
                        members,
                        defer_to_reboot: self.defer_to_reboot,
                    })),
                    blobs: Vec::new(),
                },
                timeout_s: sent.iter().filter_map(|slot| slot.owner.task.timeout_s).max(),
                run_as,
                environment,
                on_interrupt: crate::playbook::OnInterrupt::Hold,
                no_log: sent.iter().any(|slot| slot.owner.task.no_log),
                disruption: sent.iter().map(|slot| slot.owner.task.kind.disruption).max().unwrap_or_default(),
                wait: None,
                delegate: None,
                throttle: None,
                forgives_loss: tasks.iter().all(|task| task.ignore_unreachable),
                job: None,
                keeps: tasks.iter().any(|task| task.register.is_some()),
            };
            self.pending = Some(Pending { action, purpose: Purpose::Group });
        } else if broken {
            for slot in &mut slots {
                if matches!(slot.state, SlotState::Sent(_)) {
                    slot.state =
                        SlotState::Skip("another task of the same GPU group cannot be evaluated".to_owned());
                }
            }
        }
        if let Some(Frame::Group(group)) = self.frames.last_mut() {
            group.slots = slots;
            group.started = true;
        }
    }

    fn open_slot(&self, reason: String) -> SlotState {
        let raw = self.undecided(reason);
        let message = raw.message.unwrap_or_default();
        match raw.status {
            Some(Status::Possible) => SlotState::Possible(message),
            _ => SlotState::Fail(message),
        }
    }

    /// Gives every member its own result, in the order written; `lost` says why the node did not answer.
    pub(super) fn finish_group(
        &mut self,
        outcome: Option<OpOutcome>,
        action: Option<Action>,
        lost: Option<&str>,
    ) {
        let Some(Frame::Group(group)) = self.frames.pop() else { return };
        let ActiveGroup { tasks, slots, .. } = *group;
        let mut parts: Vec<Option<OpOutcome>> = Vec::new();
        let activated = outcome.as_ref().and_then(|outcome| {
            let members = outcome.members.iter().filter_map(|member| member.activated);
            members.chain(outcome.activated).max()
        });
        let mut whole = None;
        if let Some(mut outcome) = outcome {
            parts = std::mem::take(&mut outcome.members).into_iter().map(Some).collect();
            whole = Some(outcome);
        }
        if let (Some(whole), Some(action)) = (&whole, &action) {
            self.intervene(action, &whole.status);
        }
        let made = whole.iter().chain(parts.iter().flatten()).flat_map(|outcome| &outcome.changes);
        let noted = made.filter(|change| change.note.is_some()).cloned().collect();
        let mut kept = Vec::new();
        let mut owners = Vec::new();
        let mut awaiting = Vec::new();
        if let Some(whole) = &whole {
            awaiting.extend(whole.awaiting.iter().cloned());
        }
        let mut ends: Vec<Vec<_>> = tasks.iter().map(|_| Vec::new()).collect();
        let mut looped = vec![false; tasks.len()];
        // Why: an operation that failed as a whole has no results of members; one task bears it, the others were not done.
        let mut bearer = parts.is_empty();
        for slot in slots {
            let raw = match slot.state {
                SlotState::Skip(reason) => Raw::because(Status::Skipped, reason),
                SlotState::Possible(reason) => Raw::because(Status::Possible, reason),
                SlotState::Fail(message) => Raw::because(Status::Failed, message),
                SlotState::Sent(_) if let Some(reason) = lost => Raw::because(Status::Unreachable, reason),
                SlotState::Sent(index) => match (parts.get_mut(index).and_then(Option::take), &whole) {
                    (Some(part), _) => {
                        let lasting = matches!(part.status, OpStatus::Ok | OpStatus::Changed);
                        if lasting
                            && let Some(Work::Node { op, .. }) = action.as_ref().map(|action| &action.work)
                            && let NodeOp::GpuGroup(group) = &**op
                            && let Some(member) = group.members.get(index)
                        {
                            kept.push(member.clone());
                            owners.push(slot.owner.clone());
                            awaiting.extend(part.awaiting.iter().cloned());
                        }
                        self.raw_of(part)
                    }
                    (None, Some(whole)) if bearer => {
                        bearer = false;
                        self.raw_of(whole.clone())
                    }
                    _ => Raw::because(Status::Skipped, "not done: the GPU group failed"),
                },
            };
            let task = &slot.owner.task;
            let scope = self.scope(task, slot.layer.clone());
            let mut end = self.judge(task, &scope, 0, slot.owner.item.clone(), raw);
            if let Some(layer) = &slot.layer {
                end.tell_item(layer);
            }
            if end.report.item.is_some() {
                self.queue.push(end.report.clone());
            }
            if let Some(flag) = looped.get_mut(slot.member) {
                *flag |= slot.layer.is_some();
            }
            if let Some(list) = ends.get_mut(slot.member) {
                list.push(end);
            }
        }
        let mut failure = None;
        for ((task, ends), looped) in tasks.iter().zip(ends).zip(looped) {
            let own = self.settle(task, 0, looped, ends);
            failure = failure.or(own);
        }
        let mut place = None;
        if let (false, Some(action)) = (kept.is_empty(), action) {
            place = self.ledger.declare(Entry {
                owners,
                op: NodeOp::GpuGroup(GpuGroup { members: kept, defer_to_reboot: false }),
                blobs: Vec::new(),
                run_as: action.run_as,
                environment: action.environment,
                timeout_s: action.timeout_s,
                awaiting,
                noted,
                after: Vec::new(),
                overruled: false,
            });
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
        if let Some(class) = activated {
            self.activate(class, place);
        }
    }
}

//! GPU groups: several tasks, one desired state, one activation.

use std::sync::Arc;

use gpufleet_protocol::op::{GpuGroup, GpuMember, GpuTask};
use gpufleet_protocol::{NodeOp, OpOutcome, OpStatus};

use super::Cursor;
use super::judge::ignores_errors;
use super::looping::{LOOP_UNKNOWN, LoopItems, item_layer};
use super::state::{ActiveGroup, Frame, ItemState, MemberItem, Pending, Purpose};
use super::task::Raw;
use super::titles::{item_label, title};
use crate::event::{TaskStatus as Status, UNMET};
use crate::interpreter::action::{Action, Mode, Phase, RunAs, Terms, Work, position};
use crate::interpreter::ledger::{Entry, Owner};
use crate::interpreter::prepare::{Deed, Prepared};

impl Cursor {
    /// Evaluates every member at entry and sends those that act.
    pub(super) fn group_step(&mut self) {
        let Some(group) = self.frames.group() else { return };
        if group.started {
            // Why: nothing was sent, or its result was taken already.
            self.finish_group(None, None, None);
            return;
        }
        let tasks = Arc::clone(&group.tasks);
        if self.setup.mode == Mode::Apply && self.passes.settle_before(|op| matches!(op, NodeOp::GpuGroup(_)))
        {
            return;
        }
        let mut evaluated = Vec::new();
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
                LoopItems::None => (vec![None], None),
                LoopItems::These(values) => {
                    all = values.clone();
                    (values.into_iter().map(Some).collect(), None)
                }
                LoopItems::Skip(reason) => (vec![None], Some(ItemState::Skip(reason))),
                LoopItems::Possible => (vec![None], Some(self.left_open(LOOP_UNKNOWN.to_owned()))),
                LoopItems::Fail(message) => (vec![None], Some(ItemState::Fail(message))),
            };
            let mut early = early;
            for (index, value) in values.into_iter().enumerate() {
                let layer = match (&task.looped, &value) {
                    (Some(looped), Some(value)) => Some(item_layer(looped, index, value, Some(&all))),
                    _ => None,
                };
                let scope = self.scope(&task, layer.clone());
                let prepared = match early.take() {
                    Some(state) => Err(state),
                    None => {
                        let (prepared, secret) =
                            self.setup.surroundings(&task, &scope).prepare(&task, &scope);
                        if secret {
                            task = self.hidden(&task);
                        }
                        Ok(prepared)
                    }
                };
                let item = value.as_ref().map(|value| {
                    (u32::try_from(index).unwrap_or(u32::MAX), item_label(&task, value, &scope))
                });
                let owner = Owner { task: Arc::clone(&task), title: title(&task, &scope), item };
                let state = prepared.map_or_else(
                    |state| state,
                    |prepared| match prepared {
                        Prepared::Skip(reason) => ItemState::Skip(reason),
                        Prepared::Unmet(_) => ItemState::Skip(UNMET.to_owned()),
                        Prepared::Possible(reason) => self.left_open(reason),
                        Prepared::Fail(message) => ItemState::Fail(message),
                        Prepared::Do(ready) => match ready.deed {
                            Deed::Gpu(gpu) => {
                                terms.get_or_insert((ready.run_as, ready.environment));
                                members.push(GpuMember { task: gpu });
                                ItemState::Sent(members.len() - 1)
                            }
                            _ => ItemState::Fail("not a GPU task".to_owned()),
                        },
                    },
                );
                evaluated.push(MemberItem { member, owner, layer, state });
            }
        }
        // Why: if one member cannot be evaluated, the GPUs must not get half of the declared state.
        let broken = evaluated.iter().any(|one| {
            matches!(one.state, ItemState::Fail(_))
                && !ignores_errors(&one.owner.task, &self.scope(&one.owner.task, None))
        });
        if broken {
            members.clear();
        }
        let sent: Vec<&MemberItem> = evaluated
            .iter()
            .filter(|one| !members.is_empty() && matches!(one.state, ItemState::Sent(_)))
            .collect();
        if let (Some(first), Some((run_as, environment))) = (sent.first(), terms) {
            let task = &first.owner.task;
            let action = Action {
                id: self.setup.op_id(&task.path, None, Phase::Declared, 0),
                task: first.owner.title.clone(),
                kind: task.kind.name,
                position: position(&task.span),
                mode: self.setup.mode,
                work: Work::Node {
                    op: Box::new(NodeOp::GpuGroup(GpuGroup {
                        members,
                        defer_to_reboot: self.setup.switches.defer_to_reboot,
                    })),
                    blobs: Vec::new(),
                },
                timeout_s: sent.iter().filter_map(|one| one.owner.task.timeout_s).max(),
                run_as,
                environment,
                no_log: sent.iter().any(|one| one.owner.task.no_log),
                disruption: sent.iter().map(|one| one.owner.task.kind.disruption).max().unwrap_or_default(),
                terms: Terms {
                    forgives_loss: tasks.iter().all(|task| task.ignore_unreachable),
                    keeps: tasks.iter().any(|task| task.register.is_some()),
                    ..Terms::default()
                },
            };
            self.pending = Some(Pending { action, purpose: Purpose::Group });
        } else if broken {
            for one in &mut evaluated {
                if matches!(one.state, ItemState::Sent(_)) {
                    one.state =
                        ItemState::Skip("another task of the same GPU group cannot be evaluated".to_owned());
                }
            }
        }
        if let Some(group) = self.frames.group_mut() {
            group.items = evaluated;
            group.started = true;
        }
    }

    fn left_open(&self, reason: String) -> ItemState {
        let raw = self.setup.undecided(reason);
        let message = raw.message.unwrap_or_default();
        match raw.status {
            Some(Status::Possible) => ItemState::Possible(message),
            _ => ItemState::Fail(message),
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
        let ActiveGroup { tasks, items: evaluated, .. } = *group;
        let mut parts: Vec<Option<OpOutcome>> = Vec::new();
        let activated = outcome.as_ref().and_then(|outcome| {
            let members = outcome.members.iter().filter_map(|member| member.activated);
            members.chain(outcome.activated).max()
        });
        let mut whole = None;
        if let Some(mut outcome) = outcome {
            parts = std::mem::take(&mut outcome.members).into_iter().map(Some).collect();
            tell_whole(&mut parts, &outcome.warnings);
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
        let mut comes_on = false;
        if let Some(whole) = &whole {
            awaiting.extend(whole.awaiting.iter().cloned());
        }
        let mut ends: Vec<Vec<_>> = tasks.iter().map(|_| Vec::new()).collect();
        let mut looped = vec![false; tasks.len()];
        // Why: an operation that failed as a whole has no results of members. The first task fails, the others are skipped.
        let mut bearer = parts.is_empty();
        for one in evaluated {
            let raw = match one.state {
                ItemState::Skip(reason) => Raw::because(Status::Skipped, reason),
                ItemState::Possible(reason) => Raw::because(Status::Possible, reason),
                ItemState::Fail(message) => Raw::because(Status::Failed, message),
                ItemState::Sent(_) if let Some(reason) = lost => Raw::because(Status::Unreachable, reason),
                ItemState::Sent(index) => match (parts.get_mut(index).and_then(Option::take), &whole) {
                    (Some(part), _) => {
                        let lasting = matches!(part.status, OpStatus::Ok | OpStatus::Changed);
                        if lasting
                            && let Some(Work::Node { op, .. }) = action.as_ref().map(|action| &action.work)
                            && let NodeOp::GpuGroup(group) = &**op
                            && let Some(member) = group.members.get(index)
                            && !member.task.is_once()
                        {
                            kept.push(member.clone());
                            comes_on |= part.status == OpStatus::Changed
                                && matches!(member.task, GpuTask::GpuPersistence(_));
                            owners.push(one.owner.clone());
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
            let task = &one.owner.task;
            let scope = self.scope(task, one.layer.clone());
            let mut end = self.judge(task, &scope, 0, one.owner.item.clone(), raw);
            if let Some(layer) = &one.layer {
                end.tell_item(layer);
            }
            if end.report.item.is_some() {
                self.reports.push(end.report.clone());
            }
            if let Some(flag) = looped.get_mut(one.member) {
                *flag |= one.layer.is_some();
            }
            if let Some(list) = ends.get_mut(one.member) {
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
            place = self.passes.declare(Entry {
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
                act: false,
            });
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
        match activated {
            Some(class) => self.activate(class, place),
            None if comes_on => self.awake(place),
            None => {}
        }
    }
}

/// Gives what a group warns of as a whole, such as what a reset cleared, to its first member that changes something.
fn tell_whole(parts: &mut [Option<OpOutcome>], warnings: &[String]) {
    let said = |text: &&String| parts.iter().flatten().any(|part| part.warnings.contains(text));
    let unsaid: Vec<String> = warnings.iter().filter(|text| !said(text)).cloned().collect();
    let changes = |part: &Option<OpOutcome>| part.as_ref().is_some_and(|part| !part.changes.is_empty());
    let at = parts.iter().position(changes).unwrap_or(0);
    if let Some(Some(part)) = parts.get_mut(at) {
        part.warnings.extend(unsaid);
    }
}

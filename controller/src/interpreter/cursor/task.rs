//! One task: its loop, its items, its result.

use std::sync::Arc;

use gpufleet_protocol::disturbing::{Disturbance, class_of, kinds};
use gpufleet_protocol::lenient::parse_seconds;
use gpufleet_protocol::op::KeepState;
use gpufleet_protocol::tasks::{Class, IncludeVars, KeepPresence, Meta, RebootWhen};
use gpufleet_protocol::{Awaiting, Blocker, Change, Disruption, NodeOp};
use serde_json::{Map, Value as Json};

use super::Cursor;
use super::job::job;
use super::judge::handlers_of;
use super::looping::{LOOP_UNKNOWN, LoopItems, NO_ITEMS, item_layer, loop_items};
use super::retry::{breaks, succeeded, tries, whole};
use super::state::{Active, Frame, Pending, Purpose};
use super::steer::{has_unknown_host, throttle};
use super::titles::{item_label, title};
use super::variables::with_result;
use crate::event::{TaskStatus as Status, UNMET};
use crate::interpreter::action::{Action, Mode, OpId, Phase, RunAs, Terms, Work, position};
use crate::interpreter::prepare::{Deed, Prepared, Ready};
use crate::interpreter::snapshots::DelegatedFacts;
use crate::playbook::{SectionName, Task};
use crate::template::{self, Dict, Scope, Truth, Value};

/// The result of one item, before `failed_when` and `changed_when` judge it.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub status: Option<Status>,
    pub message: Option<String>,
    pub changes: Vec<Change>,
    pub awaiting: Vec<Awaiting>,
    pub blockers: Vec<Blocker>,
    pub warnings: Vec<String>,
    pub data: Map<String, Json>,
}

impl Raw {
    pub(super) fn of(status: Status) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    pub(super) fn because(status: Status, message: impl Into<String>) -> Self {
        Self { status: Some(status), message: Some(message.into()), ..Self::default() }
    }
}

/// What a play of Ansible's has to be told that expects a reboot here.
const NOT_REBOOTED: &str = "the node is not rebooted, because nothing that gpufleet declared waits for it; where the play \
                            decides, as in Ansible, write `reboot: {when: always}`";

/// Whether the play itself says when this task reboots, by a condition or a notification, and not by its parameter.
fn reboots_elsewhere(task: &Task) -> bool {
    let decided = !task.when.is_empty() || task.section == SectionName::Handlers;
    decided && task.params.get("when").is_none()
}

impl Cursor {
    /// The items of a task on this host.
    pub(super) fn loop_items(&self, task: &Task) -> LoopItems {
        match task.looped {
            Some(_) => loop_items(task, &self.scope(task, None)),
            None => LoopItems::None,
        }
    }

    /// Does the next thing for the task on top: begins it, an item, or ends it.
    pub(super) fn task_step(&mut self) {
        let Some(active) = self.frames.task_mut() else { return };
        let task = Arc::clone(&active.task);
        if !active.started {
            let task = self.decided(&task);
            if self.latch.lets_begin(&task) {
                self.begin(&task);
            }
            return;
        }
        let Some(active) = self.frames.task_mut() else { return };
        let count = active.items.as_ref().map_or(1, Vec::len);
        if active.next >= count {
            self.finish_task();
            return;
        }
        self.item(&task);
    }

    /// The task on top, with the keys that its host's variables decide. What cannot be decided fails the task when it begins.
    fn decided(&mut self, task: &Arc<Task>) -> Arc<Task> {
        let Some(flag) = &task.once_when else { return Arc::clone(task) };
        // Why it stays if it is unknown: in a check hosts must not each do a task that they may share.
        let once = match flag.holds(&self.scope(task, None)) {
            Ok(Truth::Unknown) | Err(_) => return Arc::clone(task),
            Ok(once) => once == Truth::True,
        };
        self.frames.replace_task(task, |own| (own.run_once, own.once_when) = (once, None))
    }

    /// Why it cannot be told whether a task is done once for all hosts.
    fn undecidable(&mut self, task: &Arc<Task>) -> Option<String> {
        let once = task.once_when.as_ref()?.holds(&self.scope(task, None));
        once.err().map(|error| format!("`run_once`: {error}"))
    }

    /// The task on top, with the `timeout` that the variables of its item give it.
    fn timed(&mut self, task: &Arc<Task>, scope: &Arc<Scope>) -> Result<Arc<Task>, String> {
        let Some(value) = &task.late_timeout else { return Ok(Arc::clone(task)) };
        let seconds = match template::resolve(value, scope).map_err(|error| format!("`timeout`: {error}"))? {
            Value::Null | Value::Omit | Value::Unknown => None,
            other => match parse_seconds(&other.to_text()) {
                Some(seconds) => Some(seconds),
                None => {
                    let kind = other.kind();
                    return Err(format!("`timeout` is a duration such as 90, 90s, 20m or 2h, not {kind}"));
                }
            },
        };
        Ok(self.frames.replace_task(task, |own| own.timeout_s = seconds))
    }

    fn begin(&mut self, task: &Arc<Task>) {
        let (items, secret) = template::watch(|| match self.undecidable(task) {
            Some(message) => LoopItems::Fail(message),
            None => self.loop_items(task),
        });
        let task = &if secret { self.seal(task) } else { self.veiled(task) };
        let undecided = self.setup.undecided(LOOP_UNKNOWN.to_owned());
        let Some(active) = self.frames.task_mut() else { return };
        active.started = true;
        let round = active.round;
        let end = match items {
            LoopItems::None => return,
            LoopItems::These(items) => {
                active.items = Some(items);
                return;
            }
            LoopItems::Skip(reason) => {
                Raw { data: nothing_in(&reason), ..Raw::because(Status::Skipped, reason) }
            }
            LoopItems::Possible => undecided,
            LoopItems::Fail(message) => Raw::because(Status::Failed, message),
        };
        let scope = self.scope(task, None);
        let end = self.judge(task, &scope, round, None, end);
        if let Some(active) = self.frames.task_mut() {
            active.next = 1;
            active.reports.push(end);
        }
    }

    /// The task on top, with `no_log` if its template says so.
    fn veiled(&mut self, task: &Arc<Task>) -> Arc<Task> {
        if !self.hides(task) {
            return Arc::clone(task);
        }
        self.frames.replace_task(task, |own| own.no_log = true)
    }

    /// Whether a template says that a task is hidden; one that cannot be decided hides it.
    pub(super) fn hides(&self, task: &Task) -> bool {
        let Some(flag) = task.hidden_when.as_ref().filter(|_| !task.no_log) else { return false };
        !matches!(flag.holds(&self.scope(task, None)), Ok(Truth::False))
    }

    /// From here on the task on top is treated as one with `no_log`.
    fn seal(&mut self, task: &Arc<Task>) -> Arc<Task> {
        let hidden = self.hidden(task);
        if let Some(active) = self.frames.task_mut() {
            active.task = Arc::clone(&hidden);
        }
        hidden
    }

    /// The same task with `no_log`, because a secret goes into it.
    pub(super) fn hidden(&mut self, task: &Arc<Task>) -> Arc<Task> {
        self.variables.seal(task);
        if task.no_log {
            return Arc::clone(task);
        }
        let mut hidden = (**task).clone();
        hidden.no_log = true;
        Arc::new(hidden)
    }

    /// The variables of the item that is on.
    fn item_scope(&self, active: &Active) -> (Arc<Scope>, Option<String>) {
        match (&active.task.looped, active.items.as_ref().and_then(|items| items.get(active.next))) {
            (Some(looped), Some(value)) => {
                let scope = self.scope(
                    &active.task,
                    Some(item_layer(looped, active.next, value, active.items.as_deref())),
                );
                // Why: as in Ansible, an item sees the result of the one before it.
                let scope = match active.reports.last() {
                    Some(before) => with_result(&active.task, &scope, &before.result),
                    None => scope,
                };
                let label = item_label(&active.task, value, &scope);
                (scope, Some(label))
            }
            _ => (self.scope(&active.task, None), None),
        }
    }

    fn item(&mut self, task: &Arc<Task>) {
        let Some(active) = self.frames.task() else { return };
        let ((scope, _), in_label) = template::watch(|| self.item_scope(active));
        let (round, possible) = (active.round, active.possible);
        let item = active.items.is_some().then(|| u32::try_from(active.next).unwrap_or(u32::MAX));
        let (mut prepared, in_task) = self.setup.surroundings(task, &scope).prepare(task, &scope);
        let sealed = (in_label || in_task).then(|| self.seal(task));
        if let Some(hidden) = sealed.as_ref().filter(|_| !task.no_log) {
            prepared = self.setup.surroundings(hidden, &scope).prepare(hidden, &scope).0;
        }
        let mut task = Arc::clone(sealed.as_ref().unwrap_or(task));
        // Why before the item is done: as in Ansible, a handler's name without a value fails the item, and it is not done.
        if matches!(prepared, Prepared::Do(_)) {
            match handlers_of(&task, &scope).and_then(|_| self.timed(&task, &scope)) {
                Ok(timed) => task = timed,
                Err(message) => prepared = Prepared::Fail(message),
            }
        }
        let raw = match prepared {
            // Why: as in Ansible, `meta` is not counted.
            Prepared::Skip(_) | Prepared::Unmet(_) if task.kind.is::<Meta>() => {
                self.frames.pop();
                return;
            }
            Prepared::Skip(reason) => Raw::because(Status::Skipped, reason),
            Prepared::Unmet(condition) => {
                let reason = ("skip_reason".to_owned(), Json::from("Conditional result was False"));
                let data =
                    [reason, ("false_condition".to_owned(), Json::from(condition))].into_iter().collect();
                Raw { data, ..Raw::because(Status::Skipped, UNMET) }
            }
            Prepared::Fail(message) if self.setup.mode == Mode::Predict && self.gaps.concern(&task) => {
                self.setup.undecided(message)
            }
            Prepared::Fail(message) => Raw::because(Status::Failed, message),
            Prepared::Possible(reason) => self.setup.undecided(reason),
            Prepared::Do(_) if possible => Raw::because(Status::Possible, "may be notified"),
            Prepared::Do(ready) => match self.act(&task, &scope, *ready, round, item) {
                Some(raw) => raw,
                None => return,
            },
        };
        self.item_done(raw);
    }

    /// Does what the controller can do itself, or asks for the rest.
    fn act(
        &mut self,
        task: &Arc<Task>,
        scope: &Arc<Scope>,
        ready: Ready,
        round: u32,
        item: Option<u32>,
    ) -> Option<Raw> {
        let mode = match self.setup.mode_of(task, scope) {
            Ok(mode) => mode,
            Err(message) => return Some(Raw::because(Status::Failed, message)),
        };
        let disturbance = match &ready.deed {
            Deed::Node { op, .. } => disturbance_of(op),
            _ => None,
        };
        // Why here: a play whose text disturbs nothing has no forecast, and its hosts wait for each other at every task, so
        // that those that wait for the budget would wait for ever.
        if let Some(found) = &disturbance
            && found.act.instead().is_none()
            && self.setup.play.disruption == Disruption::Live
        {
            let next = "write the command out, or use the kind that does the same";
            return Some(Raw::because(Status::Failed, found.hidden(next)));
        }
        let work = match ready.deed {
            Deed::Told { failed, message, data } => {
                let status = if failed { Status::Failed } else { Status::Ok };
                return Some(Raw { status: Some(status), message, data, ..Raw::default() });
            }
            Deed::Pause(pause) if self.setup.mode == Mode::Predict => {
                return Some(match pause.wait_s() {
                    Some(_) => Raw::because(Status::Possible, "waits only in a run"),
                    None => Raw::because(Status::Possible, "asks only in a run"),
                });
            }
            Deed::Pause(pause) => Work::Pause(pause),
            Deed::NodeObject(declared) => Work::NodeObject(declared),
            // Why: as in Ansible; a prediction writes nothing on this machine either.
            Deed::Fetch(_) if self.setup.mode == Mode::Predict => {
                return Some(Raw::because(Status::Possible, "brings files only in a run"));
            }
            Deed::Fetch(fetch) => Work::Fetch(fetch),
            Deed::SetFacts { facts, .. }
                if task.delegate_facts && self.sets_elsewhere(task, scope, &facts) =>
            {
                return Some(Raw::of(Status::Ok));
            }
            Deed::SetFacts { facts, lasting } => {
                let sealed = self.variables.is_sealed(task);
                let mut told = Map::new();
                let mut kept = Vec::new();
                for (name, value) in facts {
                    if !value.has_unknown() {
                        told.insert(name.to_string(), value.to_json());
                    }
                    let value = if sealed { value.sealed() } else { value };
                    self.latch.note(task, &name, &value);
                    if lasting {
                        kept.push((Arc::clone(&name), value.clone()));
                    }
                    // Why apart: as in Ansible, variables that tasks set win over those of files.
                    match task.kind.is::<IncludeVars>() {
                        true => self.variables.set_included(name, value),
                        false => self.variables.set(name, value),
                    }
                }
                self.variables.add_facts(kept);
                let data = [("ansible_facts".to_owned(), Json::Object(told))].into_iter().collect();
                return Some(Raw { data, ..Raw::of(Status::Ok) });
            }
            Deed::Meta(action) => return self.meta(action, task, scope, round),
            Deed::Include(wanted) => {
                self.include(task, &wanted, scope);
                return None;
            }
            Deed::Node { ref op, .. }
                if mode == Mode::Predict
                    && task.kind.class == Class::Command
                    && disturbance.is_none()
                    && !may_be_spared(op) =>
            {
                self.gaps.skip_command();
                return Some(self.setup.not_run());
            }
            Deed::Node { op, blobs } => Work::Node { op, blobs },
            Deed::Gpu(gpu) => {
                // Why: a GPU task outside of a group is a handler; it is a group of one.
                let members = vec![gpufleet_protocol::op::GpuMember { task: gpu }];
                let group = gpufleet_protocol::op::GpuGroup {
                    members,
                    defer_to_reboot: self.setup.switches.defer_to_reboot,
                };
                Work::Node { op: Box::new(NodeOp::GpuGroup(group)), blobs: Vec::new() }
            }
            Deed::Keep(policy) => {
                let members = match policy.state {
                    KeepPresence::Present => self.declared_gpus(),
                    KeepPresence::Absent => Vec::new(),
                };
                if members.is_empty() && policy.state == KeepPresence::Present {
                    let reason =
                        "nothing was declared of the GPUs up to here, so what the node keeps stays as it is";
                    return Some(Raw::because(Status::Skipped, reason));
                }
                let op = NodeOp::KeepState(KeepState { policy, members, sealed: None, dropped: Vec::new() });
                Work::Node { op: Box::new(op), blobs: Vec::new() }
            }
            Deed::Reboot { when, timeout_s } => {
                // What comes after it has no reboot to wait for, and needs its activation at once.
                self.setup.switches.defer_to_reboot = false;
                let reasons = self.passes.reboot_reasons();
                if when == RebootWhen::Required && reasons.is_empty() {
                    let mut raw = Raw::because(Status::Ok, "nothing waits for a reboot");
                    raw.warnings.extend(reboots_elsewhere(task).then(|| NOT_REBOOTED.to_owned()));
                    return Some(raw);
                }
                if self.setup.mode == Mode::Apply
                    && mode == Mode::Apply
                    && self.passes.settle_before(|_| true)
                {
                    return None;
                }
                Work::Reboot { when, timeout_s, reasons }
            }
            Deed::WaitForConnection { .. } if self.setup.mode == Mode::Predict => {
                return Some(Raw::of(Status::Ok));
            }
            Deed::WaitForConnection { timeout_s, delay_s } => Work::WaitForConnection { timeout_s, delay_s },
        };
        self.ask(task, scope, work, ready.run_as, ready.environment, round, item);
        None
    }

    /// Sets variables of another host, if the task sets them there; says whether it does.
    fn sets_elsewhere(&self, task: &Task, scope: &Arc<Scope>, facts: &[(Arc<str>, Value)]) -> bool {
        let sealed = self.variables.is_sealed(task);
        let value = |value: &Value| if sealed { value.sealed() } else { value.clone() };
        let set = facts.iter().map(|(name, set)| (Arc::clone(name), value(set))).collect();
        let given = DelegatedFacts { set, facts: Dict::default() };
        let host = self.setup.delegate(task, scope).ok().flatten();
        self.others.give(host.as_deref(), &given)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one action, put together at two places")]
    pub(super) fn ask(
        &mut self,
        task: &Arc<Task>,
        scope: &Arc<Scope>,
        work: Work,
        run_as: RunAs,
        environment: Vec<(String, String)>,
        round: u32,
        item: Option<u32>,
    ) {
        let purpose = if matches!(work, Work::Reboot { .. }) { Purpose::Reboot } else { Purpose::Task };
        let mode = self.setup.mode_of(task, scope).unwrap_or(self.setup.mode);
        if has_unknown_host(task, scope) {
            let raw =
                self.setup.undecided("is done by a host that hangs on the result of another task".to_owned());
            self.item_done(raw);
            return;
        }
        let terms = (self.setup.delegate(task, scope), throttle(task, scope), job(task, scope, mode));
        let (delegate, throttle, job) = match terms {
            (Ok(delegate), Ok(throttle), Ok(job)) => (delegate, throttle, job),
            (Err(message), ..) | (_, Err(message), _) | (.., Err(message)) => {
                self.item_done(Raw::because(Status::Failed, message));
                return;
            }
        };
        let (retry, wait) =
            self.frames.task_mut().map_or((0, None), |active| (active.retry, active.wait.take()));
        let action = Action {
            id: OpId { retry, ..self.setup.op_id(&task.path, item, Phase::Declared, round) },
            task: title(task, scope),
            kind: task.kind.name,
            position: position(&task.span),
            mode,
            timeout_s: task.timeout_s.or_else(|| own_timeout(&work)),
            disruption: task.disruption().max(disruption_of(&work)),
            work,
            run_as,
            environment,
            no_log: task.no_log,
            terms: Terms {
                wait,
                delegate,
                throttle,
                job,
                on_interrupt: task.on_interrupt,
                forgives_loss: task.ignore_unreachable,
                keeps: task.register.is_some() || item.is_some(),
            },
        };
        self.pending = Some(Pending { action, purpose });
    }

    /// Takes the result of the item that is on.
    pub(super) fn item_done(&mut self, mut raw: Raw) {
        let Some(active) = self.frames.task() else { return };
        let (scope, label) = self.item_scope(active);
        let (task, round, tried) = (Arc::clone(&active.task), active.round, active.retry);
        let item = label.map(|label| (u32::try_from(active.next).unwrap_or(u32::MAX), label));
        let tries = match tries(&task, &scope, &raw, self.setup.mode) {
            Ok(tries) => tries,
            Err(message) => {
                raw = Raw::because(Status::Failed, message);
                None
            }
        };
        if tries.is_some() {
            raw.data.insert("attempts".to_owned(), Json::from(tried + 1));
        }
        let mut end = self.judge(&task, &scope, round, item, raw);
        if let Some(tries) = tries {
            match succeeded(&task, &scope, &end) {
                Ok(true) => {}
                Ok(false) if tried + 1 < tries.most => {
                    if let Some(active) = self.frames.task_mut() {
                        active.retry += 1;
                        active.wait = Some((tries.delay_s, tries.most - tried - 1));
                    }
                    return;
                }
                Ok(false) => self.give_up(&task, &scope, tries.most - 1, &mut end),
                Err(message) => {
                    end.report.message = Some(message);
                    self.give_up(&task, &scope, tried + 1, &mut end);
                }
            }
        }
        if let (Some(looped), Some(active)) = (&task.looped, self.frames.task())
            && let Some(value) = active.items.as_ref().and_then(|items| items.get(active.next))
        {
            end.tell_item(&item_layer(looped, active.next, value, active.items.as_deref()));
        }
        let includes = task.site.is_some();
        if end.report.item.is_some() {
            let mut report = end.report.clone();
            if includes && report.status == Status::Ok {
                // Why: as in Ansible, each include is counted by itself.
                report.item = None;
            }
            self.reports.push(report);
        }
        let broken = match breaks(&task, &scope, &end, self.setup.mode) {
            Ok(broken) => broken,
            Err(message) => {
                end.report.message = Some(message);
                self.give_up(&task, &scope, tried + 1, &mut end);
                true
            }
        };
        let pause = task.looped.as_ref().and_then(|looped| looped.pause.as_ref());
        let pause = pause.and_then(|pause| template::resolve(pause, &scope).ok());
        let pause = pause.and_then(|pause| pause.to_text().trim().parse::<f64>().ok());
        let Some(active) = self.frames.task_mut() else { return };
        active.next = if broken { usize::MAX } else { active.next + 1 };
        active.retry = 0;
        active.wait = pause.map(|seconds| (whole(seconds).into(), 0));
        active.reports.push(end);
        // Why now: the report of a task comes before what follows from the task.
        if active.next >= active.items.as_ref().map_or(1, Vec::len) {
            self.finish_task();
        }
    }

    fn finish_task(&mut self) {
        let Some(Frame::Task(active)) = self.frames.pop() else { return };
        let Active { task, round, items, reports, included, .. } = *active;
        match self.settle(&task, round, items.is_some(), reports) {
            Some(failure) => self.fail(failure),
            // Why only now: as in Ansible, all that a loop includes is named before any of it is done.
            None => self.frames.push_included(included),
        }
    }
}

/// Whether a command is needless if a file is on the node (`creates`) or is not (`removes`).
fn may_be_spared(op: &NodeOp) -> bool {
    matches!(op, NodeOp::Exec(exec) if exec.creates.is_some() || exec.removes.is_some())
}

/// What a command disturbs, now that its text is known.
pub(super) fn disturbance_of(op: &NodeOp) -> Option<Disturbance> {
    if let NodeOp::Exec(exec) = op { exec.disturbance() } else { None }
}

fn disruption_of(work: &Work) -> Disruption {
    let Work::Node { op, .. } = work else { return Disruption::Live };
    class_of(kinds::of_op(op))
}

/// The timeout of work that waits, in seconds.
fn own_timeout(work: &Work) -> Option<u64> {
    let Work::Node { op, .. } = work else { return None };
    match &**op {
        NodeOp::WaitFor(wait) => {
            Some(wait.delay.saturating_add(wait.timeout).saturating_add(wait.connect_timeout + 30))
        }
        _ => None,
    }
}

/// What `register` gets of a loop without items.
fn nothing_in(reason: &str) -> Map<String, Json> {
    if reason != NO_ITEMS {
        return Map::new();
    }
    let told = ("skipped_reason".to_owned(), Json::from("No items in the list"));
    [("results".to_owned(), Json::Array(Vec::new())), told].into_iter().collect()
}

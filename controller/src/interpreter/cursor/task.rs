//! One task: its loop, its items, its result.

use std::sync::Arc;

use gpufleet_protocol::lenient::parse_seconds;
use gpufleet_protocol::tasks::{Class, IncludeVars, Meta, RebootWhen};
use gpufleet_protocol::{Awaiting, Blocker, Change, NodeOp};
use serde_json::{Map, Value as Json};

use super::judge::handlers_of;
use super::retry::whole;
use super::state::{Active, Brought, Frame, Pending, Purpose};
use super::{Cursor, Given};
use crate::interpreter::action::{Action, Mode, OpId, Phase, RunAs, Work};
use crate::interpreter::prepare::{Deed, Prepared, Ready, Surroundings};
use crate::interpreter::report::Status;
use crate::playbook::{Condition, Loop, Task};
use crate::template::{self, Dict, Scope, Truth, Value};

/// What became of one item, before the task's own conditions judge it.
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

const NO_ITEMS: &str = "the loop has no items";
pub(super) const LOOP_UNKNOWN: &str = "has a loop that hangs on the result of another task";

/// The items of a task's loop.
pub(super) enum Items {
    None,
    These(Vec<Value>),
    Skip(String),
    Possible,
    Fail(String),
}

impl Cursor {
    fn active(&mut self) -> Option<&mut Active> {
        match self.frames.last_mut() {
            Some(Frame::Task(active)) => Some(active),
            _ => None,
        }
    }

    /// Does the next thing for the task on top: begins it, an item, or ends it.
    pub(super) fn task_step(&mut self) {
        let Some(active) = self.active() else { return };
        let task = Arc::clone(&active.task);
        if !active.started {
            let task = self.decided(&task);
            if task.run_once && self.decided_latch.as_ref() != Some(&task.path) {
                self.open_latch = Some(Arc::clone(&task.path));
                return;
            }
            self.decided_latch = None;
            self.begin(&task);
            return;
        }
        let Some(active) = self.active() else { return };
        let count = active.items.as_ref().map_or(1, Vec::len);
        if active.next >= count {
            self.finish_task();
            return;
        }
        self.item(&task);
    }

    /// The task on top with what its host's variables decide of its keys; what cannot be told its beginning fails of.
    fn decided(&mut self, task: &Arc<Task>) -> Arc<Task> {
        let Some(flag) = &task.once_when else { return Arc::clone(task) };
        // Why it stays where it is unknown: what hosts share is nothing that each of them may do in a check.
        let once = match flag.holds(&self.scope(task, None)) {
            Ok(Truth::Unknown) | Err(_) => return Arc::clone(task),
            Ok(once) => once == Truth::True,
        };
        self.replaced(task, |own| (own.run_once, own.once_when) = (once, None))
    }

    /// The task on top with one thing changed.
    fn replaced(&mut self, task: &Task, change: impl FnOnce(&mut Task)) -> Arc<Task> {
        let mut own = task.clone();
        change(&mut own);
        let own = Arc::new(own);
        if let Some(active) = self.active() {
            active.task = Arc::clone(&own);
        }
        own
    }

    /// Why nobody can tell whether a task is done once for all hosts.
    fn undecidable(&mut self, task: &Arc<Task>) -> Option<String> {
        let once = task.once_when.as_ref()?.holds(&self.scope(task, None));
        once.err().map(|error| format!("`run_once`: {error}"))
    }

    /// The task on top with the time that the variables of its item give it.
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
        Ok(self.replaced(task, |own| own.timeout_s = seconds))
    }

    fn begin(&mut self, task: &Arc<Task>) {
        let (items, secret) = template::watch(|| match self.undecidable(task) {
            Some(message) => Items::Fail(message),
            None => self.loop_items(task),
        });
        let task = &if secret { self.seal(task) } else { self.veiled(task) };
        let undecided = self.undecided(LOOP_UNKNOWN.to_owned());
        let Some(active) = self.active() else { return };
        active.started = true;
        let round = active.round;
        let end = match items {
            Items::None => return,
            Items::These(items) => {
                active.items = Some(items);
                return;
            }
            Items::Skip(reason) => Raw { data: nothing_in(&reason), ..Raw::because(Status::Skipped, reason) },
            Items::Possible => undecided,
            Items::Fail(message) => Raw::because(Status::Failed, message),
        };
        let scope = self.scope(task, None);
        let end = self.judge(task, &scope, round, None, end);
        if let Some(active) = self.active() {
            active.next = 1;
            active.reports.push(end);
        }
    }

    /// The task on top, with `no_log` where a template of it says so.
    fn veiled(&mut self, task: &Arc<Task>) -> Arc<Task> {
        if !self.hides(task) {
            return Arc::clone(task);
        }
        self.replaced(task, |own| own.no_log = true)
    }

    /// Whether a template says that a task is hidden; one that cannot be decided hides it.
    pub(super) fn hides(&self, task: &Task) -> bool {
        let Some(flag) = task.hidden_when.as_ref().filter(|_| !task.no_log) else { return false };
        !matches!(flag.holds(&self.scope(task, None)), Ok(Truth::False))
    }

    /// From here on the task on top is treated as one with `no_log`.
    fn seal(&mut self, task: &Arc<Task>) -> Arc<Task> {
        let hidden = self.hidden(task);
        if let Some(active) = self.active() {
            active.task = Arc::clone(&hidden);
        }
        hidden
    }

    /// The same task with `no_log`, because a secret goes into it.
    pub(super) fn hidden(&mut self, task: &Arc<Task>) -> Arc<Task> {
        self.sealed.insert(Arc::clone(&task.path));
        if task.no_log {
            return Arc::clone(task);
        }
        let mut hidden = (**task).clone();
        hidden.no_log = true;
        Arc::new(hidden)
    }

    /// The loop of a task on this host.
    pub(super) fn loop_items(&self, task: &Arc<Task>) -> Items {
        let Some(looped) = &task.looped else { return Items::None };
        let scope = self.scope(task, None);
        if let Some(name) = &looped.lookup {
            return super::looping::items(name, looped, task, &scope);
        }
        let items = match template::resolve(&looped.items, &scope) {
            Ok(Value::List(list)) => list.items().to_vec(),
            Ok(Value::Unknown) => return Items::Possible,
            Ok(other) if looped.flatten => vec![other],
            Ok(other) => return Items::Fail(format!("`loop` wants a list, got {}", other.kind())),
            // Why: as in Ansible, a condition may guard a loop over something that is not there.
            Err(error) => {
                return match Condition::all(&task.when, &scope) {
                    Ok(Truth::False) => Items::Skip("the condition does not hold".to_owned()),
                    _ => Items::Fail(format!("`loop`: {error}")),
                };
            }
        };
        let items: Vec<Value> = if looped.flatten {
            items
                .into_iter()
                .flat_map(|item| match item {
                    Value::List(list) => list.items().to_vec(),
                    other => vec![other],
                })
                .collect()
        } else {
            items
        };
        let items = Value::kept(&items);
        if items.is_empty() { Items::Skip(NO_ITEMS.to_owned()) } else { Items::These(items) }
    }

    /// The loop's variables for one item.
    pub(super) fn item_layer(
        looped: &Loop,
        index: usize,
        value: &Value,
        items: Option<&[Value]>,
    ) -> Arc<Dict> {
        let mut layer = Dict::default();
        layer.insert(Arc::clone(&looped.variable), value.clone());
        layer.insert("ansible_loop_var", Value::str(&looped.variable));
        if let Some(name) = &looped.index_variable {
            layer.insert(Arc::clone(name), Value::Int(i64::try_from(index).unwrap_or(i64::MAX)));
        }
        if let Some(items) = items.filter(|_| looped.extended) {
            layer.insert("ansible_loop", whole_loop(items, index));
        }
        Arc::new(layer)
    }

    pub(super) fn item_label(task: &Task, value: &Value, scope: &Arc<Scope>) -> String {
        if task.no_log {
            return "(hidden)".to_owned();
        }
        let label = task.looped.as_ref().and_then(|looped| looped.label.as_ref());
        label
            .and_then(|label| template::resolve(label, scope).ok())
            .unwrap_or_else(|| value.clone())
            .to_text()
    }

    pub(super) fn surroundings(&self, task: &Task) -> Surroundings<'_> {
        Surroundings {
            search: Arc::clone(&task.search),
            play: &self.play,
            files: &*self.files,
            verbosity: self.host.verbosity,
            become_default: self.host.become_default,
            become_user: self.host.become_user.as_deref(),
        }
    }

    /// The variables of the item that is on.
    fn item_scope(&self, active: &Active) -> (Arc<Scope>, Option<String>) {
        match (&active.task.looped, active.items.as_ref().and_then(|items| items.get(active.next))) {
            (Some(looped), Some(value)) => {
                let scope = self.scope(
                    &active.task,
                    Some(Self::item_layer(looped, active.next, value, active.items.as_deref())),
                );
                // Why: as in Ansible, an item sees what the one before it gave.
                let scope = match active.reports.last() {
                    Some(before) => self.with_result(&active.task, &scope, &before.result),
                    None => scope,
                };
                let label = Self::item_label(&active.task, value, &scope);
                (scope, Some(label))
            }
            _ => (self.scope(&active.task, None), None),
        }
    }

    fn item(&mut self, task: &Arc<Task>) {
        let Some(Frame::Task(active)) = self.frames.last() else { return };
        let ((scope, _), in_label) = template::watch(|| self.item_scope(active));
        let (round, possible) = (active.round, active.possible);
        let item = active.items.is_some().then(|| u32::try_from(active.next).unwrap_or(u32::MAX));
        let (mut prepared, in_task) = self.surroundings(task).prepare(task, &scope);
        let sealed = (in_label || in_task).then(|| self.seal(task));
        if let Some(hidden) = sealed.as_ref().filter(|_| !task.no_log) {
            prepared = self.surroundings(hidden).prepare(hidden, &scope).0;
        }
        let mut task = Arc::clone(sealed.as_ref().unwrap_or(task));
        // Why before it is done: as in Ansible, a name without a value fails the item that is not done yet.
        if matches!(prepared, Prepared::Do(_)) {
            match handlers_of(&task, &scope).and_then(|_| self.timed(&task, &scope)) {
                Ok(timed) => task = timed,
                Err(message) => prepared = Prepared::Fail(message),
            }
        }
        let raw = match prepared {
            // Why: as in Ansible, steering the play counts nowhere.
            Prepared::Skip(_) | Prepared::Unmet(_) if task.kind.is::<Meta>() => {
                self.frames.pop();
                return;
            }
            Prepared::Skip(reason) => Raw::because(Status::Skipped, reason),
            Prepared::Unmet(condition) => {
                let reason = ("skip_reason".to_owned(), Json::from("Conditional result was False"));
                let data =
                    [reason, ("false_condition".to_owned(), Json::from(condition))].into_iter().collect();
                Raw { data, ..Raw::because(Status::Skipped, "the condition does not hold") }
            }
            Prepared::Fail(message) if self.mode == Mode::Predict && task.asks_for(&self.foretold) => {
                self.undecided(message)
            }
            Prepared::Fail(message) => Raw::because(Status::Failed, message),
            Prepared::Possible(reason) => self.undecided(reason),
            Prepared::Do(_) if possible => Raw::because(Status::Possible, "may be notified"),
            Prepared::Do(ready) => match self.act(&task, &scope, *ready, round, item) {
                Some(raw) => raw,
                None => return,
            },
        };
        self.item_done(raw);
    }

    /// Something unknown: possible in a prediction, and in a run a mistake of ours that must not pass for a result.
    pub(super) fn undecided(&self, reason: String) -> Raw {
        match self.mode {
            Mode::Predict => Raw::because(Status::Possible, reason),
            Mode::Apply => Raw::because(Status::Failed, format!("cannot be decided: it {reason}")),
        }
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
        let mode = match self.mode_of(task, scope) {
            Ok(mode) => mode,
            Err(message) => return Some(Raw::because(Status::Failed, message)),
        };
        let work = match ready.deed {
            Deed::Told { failed, message, data } => {
                let status = if failed { Status::Failed } else { Status::Ok };
                return Some(Raw { status: Some(status), message, data, ..Raw::default() });
            }
            Deed::Pause(pause) if self.mode == Mode::Predict => {
                return Some(match pause.wait_s() {
                    Some(_) => Raw::because(Status::Possible, "waits only in a run"),
                    None => Raw::because(Status::Possible, "asks only in a run"),
                });
            }
            Deed::Pause(pause) => Work::Pause(pause),
            // Why: as in Ansible; a prediction writes nothing on this machine either.
            Deed::Fetch(_) if self.mode == Mode::Predict => {
                return Some(Raw::because(Status::Possible, "brings files only in a run"));
            }
            Deed::Fetch(fetch) => Work::Fetch(fetch),
            Deed::SetFacts { facts, .. }
                if task.delegate_facts && self.sets_elsewhere(task, scope, &facts) =>
            {
                return Some(Raw::of(Status::Ok));
            }
            Deed::SetFacts { facts, lasting } => {
                // Why apart: as in Ansible, what tasks set stands above what files say.
                let from_files = task.kind.is::<IncludeVars>();
                let place = if from_files { &mut self.vars.included } else { &mut self.vars.set };
                let set = Arc::make_mut(place);
                let sealed = self.sealed.contains(&task.path);
                let mut told = Map::new();
                let mut kept = Vec::new();
                for (name, value) in facts {
                    if !value.has_unknown() {
                        told.insert(name.to_string(), value.to_json());
                    }
                    let value = if sealed { value.sealed() } else { value };
                    if let Some(latched) = self.latched.as_mut().filter(|_| task.run_once) {
                        latched.note(&name, &value);
                    }
                    if lasting {
                        kept.push((Arc::clone(&name), value.clone()));
                    }
                    set.insert(name, value);
                }
                self.add_facts(kept);
                let data = [("ansible_facts".to_owned(), Json::Object(told))].into_iter().collect();
                return Some(Raw { data, ..Raw::of(Status::Ok) });
            }
            Deed::Meta(action) => return self.meta(action, task, scope, round),
            Deed::Include(wanted) => {
                self.include(task, &wanted, scope);
                return None;
            }
            Deed::Node { ref op, .. }
                if mode == Mode::Predict && task.kind.class == Class::Command && !may_be_spared(op) =>
            {
                self.commands_ahead = true;
                return Some(self.not_run());
            }
            Deed::Node { op, blobs } => Work::Node { op, blobs },
            Deed::Gpu(gpu) => {
                // Why: a GPU task outside of a group is a handler; it is a group of one.
                let members = vec![gpufleet_protocol::op::GpuMember { task: gpu }];
                let group =
                    gpufleet_protocol::op::GpuGroup { members, defer_to_reboot: self.defer_to_reboot };
                Work::Node { op: Box::new(NodeOp::GpuGroup(group)), blobs: Vec::new() }
            }
            Deed::Reboot { when, timeout_s } => {
                let reasons = self.pending();
                if when == RebootWhen::Required && reasons.is_empty() {
                    return Some(Raw::because(Status::Ok, "nothing waits for a reboot"));
                }
                if self.mode == Mode::Apply && mode == Mode::Apply && self.settles(|_| true) {
                    return None;
                }
                Work::Reboot { when, timeout_s, reasons }
            }
            Deed::WaitForConnection { .. } if self.mode == Mode::Predict => {
                return Some(Raw::of(Status::Ok));
            }
            Deed::WaitForConnection { timeout_s, delay_s } => Work::WaitForConnection { timeout_s, delay_s },
        };
        self.ask(task, scope, work, ready.run_as, ready.environment, round, item);
        None
    }

    /// Whether something of these kinds has to be looked at before the node reboots or its GPUs are reset: after it nobody could
    /// tell what a command changed from what the reboot took. The task on top begins anew afterwards.
    pub(super) fn settles(&mut self, kinds: impl Fn(&NodeOp) -> bool) -> bool {
        let touched = self.ledger.touched().filter(|(_, entry)| kinds(&entry.op));
        self.unsettled = touched.map(|(index, _)| index).collect();
        self.verifications += u32::from(!self.unsettled.is_empty());
        !self.unsettled.is_empty()
    }

    /// What becomes of a command that is not run.
    pub(super) fn not_run(&self) -> Raw {
        match self.mode {
            Mode::Predict => Raw::because(Status::Possible, "runs only in a run"),
            Mode::Apply => Raw::because(Status::Skipped, "`check_mode: true`: it runs only in a run"),
        }
    }

    /// Whether what a task sets is another host's, which has it then.
    fn sets_elsewhere(&self, task: &Task, scope: &Arc<Scope>, facts: &[(Arc<str>, Value)]) -> bool {
        let sealed = self.sealed.contains(&task.path);
        let value = |value: &Value| if sealed { value.sealed() } else { value.clone() };
        let set = facts.iter().map(|(name, set)| (Arc::clone(name), value(set))).collect();
        let given = Given { set, facts: Dict::default() };
        let host = self.delegate(task, scope).ok().flatten();
        self.give(host.as_deref(), &given)
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
        let mode = self.mode_of(task, scope).unwrap_or(self.mode);
        if Self::is_anybodys(task, scope) {
            let raw = self.undecided("is done by a host that hangs on the result of another task".to_owned());
            self.item_done(raw);
            return;
        }
        let terms = (self.delegate(task, scope), Self::throttle(task, scope), self.job(task, scope, mode));
        let (delegate, throttle, job) = match terms {
            (Ok(delegate), Ok(throttle), Ok(job)) => (delegate, throttle, job),
            (Err(message), ..) | (_, Err(message), _) | (.., Err(message)) => {
                self.item_done(Raw::because(Status::Failed, message));
                return;
            }
        };
        let (retry, wait) = self.active().map_or((0, None), |active| (active.retry, active.wait.take()));
        let action = Action {
            id: OpId { retry, ..self.op_id(&task.path, item, Phase::Declared, round) },
            task: self.title(task, scope),
            kind: task.kind.name,
            file: Arc::from(task.span.file()),
            line: task.span.line,
            mode,
            phase: Phase::Declared,
            timeout_s: task.timeout_s.or_else(|| own_timeout(&work)),
            work,
            run_as,
            environment,
            no_log: task.no_log,
            on_interrupt: task.on_interrupt,
            disruption: task.kind.disruption,
            wait,
            delegate,
            throttle,
            forgives_loss: task.ignore_unreachable,
            job,
            keeps: task.register.is_some() || item.is_some(),
        };
        self.pending = Some(Pending { action, purpose });
    }

    /// Takes the result of the item that is on.
    pub(super) fn item_done(&mut self, mut raw: Raw) {
        let Some(Frame::Task(active)) = self.frames.last() else { return };
        let (scope, label) = self.item_scope(active);
        let (task, round, tried) = (Arc::clone(&active.task), active.round, active.retry);
        let item = label.map(|label| (u32::try_from(active.next).unwrap_or(u32::MAX), label));
        let tries = match self.tries(&task, &scope, &raw) {
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
            match self.succeeded(&task, &scope, &end) {
                Ok(true) => {}
                Ok(false) if tried + 1 < tries.most => {
                    if let Some(active) = self.active() {
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
        if let (Some(looped), Some(Frame::Task(active))) = (&task.looped, self.frames.last())
            && let Some(value) = active.items.as_ref().and_then(|items| items.get(active.next))
        {
            end.tell_item(&Self::item_layer(looped, active.next, value, active.items.as_deref()));
        }
        let includes = task.site.is_some();
        if end.report.item.is_some() {
            let mut report = end.report.clone();
            if includes && report.status == Status::Ok {
                // Why: as in Ansible, each time that something is included counts by itself.
                report.item = None;
            }
            self.queue.push(report);
        }
        let broken = match self.breaks(&task, &scope, &end) {
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
        let Some(active) = self.active() else { return };
        active.next = if broken { usize::MAX } else { active.next + 1 };
        active.retry = 0;
        active.wait = pause.map(|seconds| (whole(seconds).into(), 0));
        active.reports.push(end);
        // Why: the report of a task stands before whatever follows from it.
        if active.next >= active.items.as_ref().map_or(1, Vec::len) {
            self.finish_task();
        }
    }

    fn finish_task(&mut self) {
        let Some(Frame::Task(active)) = self.frames.pop() else { return };
        let Active { task, round, items, reports, included, .. } = *active;
        match self.settle(&task, round, items.is_some(), reports) {
            Some(failure) => self.fail(failure),
            // Why only now: as in Ansible, a loop names all that it includes before any of it is done.
            None => {
                for Brought { layer, role, turn, items } in included.into_iter().rev() {
                    self.frames.push(Frame::Include { layer, role, turn });
                    self.frames.push(Frame::List { items, next: 0 });
                }
            }
        }
    }
}

/// Whether the node may have what makes a command needless.
fn may_be_spared(op: &NodeOp) -> bool {
    matches!(op, NodeOp::Exec(exec) if exec.creates.is_some() || exec.removes.is_some())
}

/// How long work that waits has to be let, in seconds.
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

/// `ansible_loop`: where an item stands among all.
fn whole_loop(items: &[Value], index: usize) -> Value {
    let int = |number: usize| Value::Int(i64::try_from(number).unwrap_or(i64::MAX));
    let left = items.len().saturating_sub(index);
    let mut told: Vec<(&str, Value)> = vec![
        ("allitems", Value::list(items.to_vec())),
        ("index", int(index + 1)),
        ("index0", int(index)),
        ("first", Value::Bool(index == 0)),
        ("last", Value::Bool(left == 1)),
        ("length", int(items.len())),
        ("revindex", int(left)),
        ("revindex0", int(left.saturating_sub(1))),
    ];
    if let Some(before) = index.checked_sub(1).and_then(|before| items.get(before)) {
        told.push(("previtem", before.clone()));
    }
    if let Some(behind) = items.get(index + 1) {
        told.push(("nextitem", behind.clone()));
    }
    Value::map(told)
}

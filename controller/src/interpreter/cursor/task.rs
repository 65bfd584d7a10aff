//! One task: its loop, its items, its result.

use std::sync::Arc;

use gpufleet_protocol::tasks::{Class, MetaAction, RebootWhen};
use gpufleet_protocol::{Awaiting, Change};
use serde_json::{Map, Value as Json};

use super::state::{Active, Failure, Frame, ItemEnd, Pending, Purpose, Stage};
use super::{Copied, Cursor};
use crate::interpreter::action::{Action, Mode, OpId, Phase, RunAs, Work};
use crate::interpreter::prepare::{Deed, Prepared, Ready, Surroundings};
use crate::interpreter::report::{Status, TaskReport};
use crate::playbook::{Condition, Loop, Task, Wanted};
use crate::template::{self, Dict, Scope, Truth, Value};

/// What became of one item, before the task's own conditions judge it.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub status: Option<Status>,
    pub message: Option<String>,
    pub changes: Vec<Change>,
    pub awaiting: Vec<Awaiting>,
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

    fn begin(&mut self, task: &Arc<Task>) {
        let (items, secret) = template::watch(|| self.loop_items(task));
        let task = &if secret { self.seal(task) } else { Arc::clone(task) };
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
        let task = sealed.as_ref().unwrap_or(task);
        let raw = match prepared {
            // Why: as in Ansible, steering the play counts nowhere.
            Prepared::Skip(_) | Prepared::Unmet(_) if matches!(task.kind.name, "meta") => {
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
            Prepared::Do(ready) => match self.act(task, &scope, *ready, round, item) {
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
            Deed::SetFacts(facts) => {
                // Why apart: as in Ansible, what tasks set stands above what files say.
                let from_files = task.kind.name == "include_vars";
                let place = if from_files { &mut self.vars.included } else { &mut self.vars.set };
                let set = Arc::make_mut(place);
                let sealed = self.sealed.contains(&task.path);
                let mut told = Map::new();
                for (name, value) in facts {
                    if !value.has_unknown() {
                        told.insert(name.to_string(), value.to_json());
                    }
                    let value = if sealed { value.sealed() } else { value };
                    if let Some(latched) = self.latched.as_mut().filter(|_| task.run_once) {
                        latched.note(&name, &value);
                    }
                    set.insert(name, value);
                }
                let data = [("ansible_facts".to_owned(), Json::Object(told))].into_iter().collect();
                return Some(Raw { data, ..Raw::of(Status::Ok) });
            }
            Deed::Meta(action) => return self.meta(action, task, scope, round),
            Deed::Include(wanted) => {
                self.include(task, &wanted, scope);
                return None;
            }
            Deed::Node { .. } if mode == Mode::Predict && task.kind.class == Class::Command => {
                self.commands_ahead = true;
                return Some(match self.mode {
                    Mode::Predict => Raw::because(Status::Possible, "runs only in a run"),
                    Mode::Apply => Raw::because(Status::Skipped, "`check_mode: true`: it runs only in a run"),
                });
            }
            Deed::Node { op, blobs } => Work::Node { op, blobs },
            Deed::Gpu(gpu) => {
                // Why: a GPU task outside of a group is a handler; it is a group of one.
                let members = vec![gpufleet_protocol::op::GpuMember { task: gpu }];
                let group =
                    gpufleet_protocol::op::GpuGroup { members, defer_to_reboot: self.defer_to_reboot };
                Work::Node { op: Box::new(gpufleet_protocol::NodeOp::GpuGroup(group)), blobs: Vec::new() }
            }
            Deed::Reboot { when, timeout_s } => {
                let reasons = self.pending();
                if when == RebootWhen::Required && reasons.is_empty() {
                    return Some(Raw::because(Status::Ok, "nothing waits for a reboot"));
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

    #[expect(clippy::too_many_arguments, reason = "the parts of one action, put together at two places")]
    fn ask(
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
        let (delegate, throttle) = match (self.delegate(task, scope), Self::throttle(task, scope)) {
            (Ok(delegate), Ok(throttle)) => (delegate, throttle),
            (Err(message), _) | (_, Err(message)) => {
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
            mode: self.mode_of(task, scope).unwrap_or(self.mode),
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
        };
        self.pending = Some(Pending { action, purpose });
    }

    /// `check_mode` makes a task predict in a run.
    fn mode_of(&self, task: &Task, scope: &Arc<Scope>) -> Result<Mode, String> {
        let Some(flag) = &task.check_mode else { return Ok(self.mode) };
        match flag.holds(scope) {
            Ok(Truth::True) => Ok(Mode::Predict),
            // Why not in a prediction: a plan and an audit touch nothing, whatever a playbook says.
            Ok(_) => Ok(self.mode),
            Err(error) => Err(format!("`check_mode`: {error}")),
        }
    }

    /// The host that does the task, if it is another one.
    fn delegate(&self, task: &Task, scope: &Arc<Scope>) -> Result<Option<String>, String> {
        let Some(host) = &task.delegate_to else { return Ok(None) };
        match template::resolve(host, scope).map_err(|error| format!("`delegate_to`: {error}"))? {
            Value::Omit | Value::Null => Ok(None),
            host if host.has_unknown() => Err("`delegate_to` hangs on the result of another task".to_owned()),
            host => {
                let host = host.to_text();
                Ok(Some(host).filter(|host| !host.is_empty() && **host != *self.host.host))
            }
        }
    }

    fn throttle(task: &Task, scope: &Arc<Scope>) -> Result<Option<u32>, String> {
        let Some(value) = &task.throttle else { return Ok(None) };
        let value = template::resolve(value, scope).map_err(|error| format!("`throttle`: {error}"))?;
        match value.to_text().trim().parse::<u32>() {
            Ok(0) => Ok(None),
            Ok(most) => Ok(Some(most)),
            Err(_) => Err(format!("`throttle` wants a number, got {}", value.kind())),
        }
    }

    /// Puts the tasks of another file before whatever comes next.
    fn include(&mut self, task: &Arc<Task>, wanted: &Wanted, scope: &Arc<Scope>) {
        let Some(Frame::Task(active)) = self.frames.last() else { return };
        let (turn, value) =
            (active.next, active.items.as_ref().and_then(|items| items.get(active.next)).cloned());
        let layer = match (&task.looped, &value) {
            (Some(looped), Some(value)) => {
                Some(Self::item_layer(looped, turn, value, active.items.as_deref()))
            }
            _ => None,
        };
        let Some(site) = &task.site else {
            return self.item_done(Raw::because(Status::Failed, "nothing can be included from here"));
        };
        let included = match site.open(&self.program.library, wanted, turn) {
            Ok(included) => included,
            Err(why) => return self.item_done(Raw::because(Status::Failed, why)),
        };
        let known = |new: &Arc<Task>, known: &[Arc<Task>]| known.iter().any(|old| Arc::ptr_eq(old, new));
        for handler in &included.handlers {
            if !known(handler, &self.handlers) {
                self.handlers.push(Arc::clone(handler));
            }
        }
        self.roles.extend(included.role.iter().cloned());
        let label = value.map(|value| format!(" (item={})", Self::item_label(task, &value, scope)));
        let message = format!("included: {}{}", included.name, label.unwrap_or_default());
        let mut data = Map::new();
        data.insert("include".to_owned(), Json::String(included.name.clone()));
        self.item_done(Raw { message: Some(message), data, ..Raw::of(Status::Ok) });
        // Why not where it failed after all: `failed_when` may say so.
        if self.end.is_some() || self.stage == Stage::Finish {
            return;
        }
        let role = matches!(wanted, Wanted::Role(_));
        self.frames.push(Frame::Include { layer, role });
        self.frames.push(Frame::List { items: included.items, next: 0 });
    }

    fn meta(&mut self, action: MetaAction, task: &Arc<Task>, scope: &Arc<Scope>, round: u32) -> Option<Raw> {
        match action {
            MetaAction::Noop | MetaAction::ClearHostErrors | MetaAction::RefreshInventory => {}
            MetaAction::EndRole => {
                while let Some(frame) = self.frames.pop() {
                    match frame {
                        Frame::Include { role: true, .. } => break,
                        Frame::Block { block, .. } if block.is_role => break,
                        _ => {}
                    }
                }
                return None;
            }
            MetaAction::FlushHandlers => {
                self.frames.pop();
                self.flush_handlers();
                return None;
            }
            MetaAction::EndHost | MetaAction::EndPlay | MetaAction::EndBatch => {
                self.end_play |= action == MetaAction::EndPlay;
                self.end_batch |= action == MetaAction::EndBatch;
                self.end_here();
                return None;
            }
            MetaAction::ResetConnection => {
                if self.mode == Mode::Apply {
                    self.ask(task, scope, Work::ResetConnection, RunAs::Login, Vec::new(), round, None);
                    return None;
                }
            }
        }
        // Why: as in Ansible, steering the play counts nowhere.
        self.frames.pop();
        None
    }

    /// The play is over for this host, after the proof of what it declared.
    pub(super) fn end_here(&mut self) {
        self.frames.clear();
        self.waiting.clear();
        self.notified.clear();
        self.stage = match self.stage {
            Stage::Tasks(section) | Stage::Handlers(section) => Stage::VerifyStart(section),
            other => other,
        };
        self.ending = true;
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
            && let Value::Map(result) = &mut end.result
        {
            let result = Arc::make_mut(result);
            for (name, value) in Self::item_layer(looped, active.next, value, active.items.as_deref()).iter()
            {
                result.insert(Arc::clone(name), value.clone());
            }
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

    /// How often the item may be tried, where it may be tried again at all.
    fn tries(&self, task: &Task, scope: &Arc<Scope>, raw: &Raw) -> Result<Option<Tries>, String> {
        let Some(retry) = &task.retry else { return Ok(None) };
        let status = raw.status.unwrap_or(Status::Failed);
        let judged = matches!(status, Status::Ok | Status::Changed | Status::Failed | Status::Unknown);
        if self.mode == Mode::Predict || !judged {
            return Ok(None);
        }
        let number = |value: &Option<Value>, key: &str, default: f64| match value {
            None => Ok(default),
            Some(value) => {
                let value = template::resolve(value, scope).map_err(|error| format!("`{key}`: {error}"))?;
                let number = value.to_text().trim().parse::<f64>();
                number.map_err(|_| format!("`{key}` wants a number, got {}", value.kind()))
            }
        };
        let retries = number(&retry.retries, "retries", 3.0)?;
        let delay = number(&retry.delay, "delay", 5.0)?;
        Ok(Some(Tries { most: whole(retries).saturating_add(1), delay_s: whole(delay).into() }))
    }

    /// Whether `until` holds.
    fn succeeded(&self, task: &Task, scope: &Arc<Scope>, end: &ItemEnd) -> Result<bool, String> {
        let until = task.retry.as_ref().map(|retry| retry.until.as_slice()).unwrap_or_default();
        if until.is_empty() {
            return Ok(end.report.status != Status::Failed);
        }
        let scope = self.with_result(task, scope, &end.result);
        let holds = Condition::all(until, &scope);
        holds
            .map(|truth| truth == Truth::True)
            .map_err(|(condition, error)| format!("`until: {}`: {error}", condition.text))
    }

    /// Whether `break_when` ends the loop behind this item.
    fn breaks(&self, task: &Task, scope: &Arc<Scope>, end: &ItemEnd) -> Result<bool, String> {
        let conditions = task.looped.as_ref().map(|looped| looped.break_when.as_slice()).unwrap_or_default();
        if conditions.is_empty() || self.mode == Mode::Predict {
            return Ok(false);
        }
        let scope = self.with_result(task, scope, &end.result);
        Condition::all(conditions, &scope)
            .map(|truth| truth == Truth::True)
            .map_err(|(condition, error)| format!("`break_when: {}`: {error}", condition.text))
    }

    /// Makes a failure of an item that was tried often enough.
    fn give_up(&mut self, task: &Arc<Task>, scope: &Arc<Scope>, attempts: u32, end: &mut ItemEnd) {
        if let Value::Map(result) = &mut end.result {
            let result = Arc::make_mut(result);
            result.insert("failed", Value::Bool(true));
            result.insert("attempts", Value::Int(attempts.into()));
        }
        end.report.data.insert("attempts".to_owned(), Json::from(attempts));
        end.report.status = Status::Failed;
        end.report.ignored = Self::ignores_errors(task, scope);
        let why = end.report.message.get_or_insert_with(|| "`until` does not hold".to_owned()).clone();
        end.failure = (!end.report.ignored).then(|| Failure {
            task: end.report.task.clone(),
            message: why,
            fatal: task.any_errors_fatal,
            result: Some(end.result.clone()),
        });
        end.report.rescued = end.failure.is_some() && self.will_rescue();
    }

    /// The variables of a task with its own result among them.
    fn with_result(&self, task: &Task, scope: &Arc<Scope>, result: &Value) -> Arc<Scope> {
        match &task.register {
            Some(name) => {
                let layer: Dict = [(Arc::clone(name), result.clone())].into_iter().collect();
                scope.with(Arc::new(layer))
            }
            None => Arc::clone(scope),
        }
    }

    fn finish_task(&mut self) {
        let Some(Frame::Task(active)) = self.frames.pop() else { return };
        let Active { task, round, items, reports, .. } = *active;
        if let Some(failure) = self.settle(&task, round, items.is_some(), reports) {
            self.fail(failure);
        }
    }

    /// Applies `changed_when`, `failed_when` and `ignore_errors`.
    pub(super) fn judge(
        &mut self,
        task: &Arc<Task>,
        scope: &Arc<Scope>,
        round: u32,
        item: Option<(u32, String)>,
        mut raw: Raw,
    ) -> ItemEnd {
        let title = self.title(task, scope);
        let mut status = raw.status.unwrap_or(Status::Failed);
        let mut message = raw.message;
        let mut result = result_of(status, message.as_deref(), &raw.data);
        let judged = !matches!(status, Status::Skipped | Status::Unreachable | Status::Held);
        if judged {
            let scope = self.with_result(task, scope, &result);
            let failed = self.verdict(task.failed_when.as_deref(), &scope, "failed_when");
            let changed = self.verdict(task.changed_when.as_deref(), &scope, "changed_when");
            // Why: as in Ansible, what failed may have changed something too.
            let did_change = match &changed {
                Ok(Some(Truth::True)) => true,
                Ok(Some(Truth::False)) => false,
                _ => status == Status::Changed || is_true(&result, "changed"),
            };
            match (failed, changed) {
                (Err(error), _) | (_, Err(error)) => {
                    status = Status::Failed;
                    message = Some(error);
                }
                // Why: what a prediction does not run stays possible, whatever is said about its result.
                _ if status == Status::Possible => {}
                (Ok(Some(Truth::Unknown)), _) | (_, Ok(Some(Truth::Unknown))) => status = Status::Possible,
                (Ok(failed), Ok(changed)) => {
                    status = match (failed, changed, status) {
                        (Some(Truth::True), ..) => {
                            let why = "failed_when holds".to_owned();
                            message =
                                Some(message.map_or(why.clone(), |message| format!("{message} ({why})")));
                            Status::Failed
                        }
                        (None, _, Status::Failed) => Status::Failed,
                        (_, _, Status::Unknown) => Status::Unknown,
                        (_, Some(Truth::True), _) => Status::Changed,
                        (_, Some(Truth::False), _) => Status::Ok,
                        (Some(_), None, Status::Failed) if raw.changes.is_empty() => {
                            // Why: a command that ran has changed something, also when its exit code is accepted.
                            if task.kind.class == Class::Command { Status::Changed } else { Status::Ok }
                        }
                        (Some(_), None, Status::Failed) => Status::Changed,
                        (_, None | Some(Truth::Unknown), status) => status,
                    };
                }
            }
            if task.failed_when.is_some() && status != Status::Possible {
                raw.data.insert("failed_when_result".to_owned(), Json::Bool(status == Status::Failed));
            }
            raw.data.remove("changed");
            if did_change && status == Status::Failed {
                raw.data.insert("changed".to_owned(), Json::Bool(true));
            }
            result = if status == Status::Possible {
                Value::Unknown
            } else {
                result_of(status, message.as_deref(), &raw.data)
            };
        }
        let failed = status == Status::Failed;
        let ignored = failed && Self::ignores_errors(task, scope)
            || status == Status::Unreachable && task.ignore_unreachable;
        let text = message.clone().unwrap_or_else(|| "failed".to_owned());
        let failure = (failed && !ignored).then(|| Failure {
            task: title.clone(),
            message: if task.no_log { "failed; `no_log` hides why".to_owned() } else { text },
            fatal: task.any_errors_fatal,
            result: (!task.no_log).then(|| result.clone()),
        });
        let mut report = TaskReport {
            op_id: self.op_id(&task.path, item.as_ref().map(|(index, _)| *index), Phase::Declared, round),
            task: title,
            kind: task.kind.name.to_owned(),
            file: Arc::from(task.span.file()),
            line: task.span.line,
            phase: Phase::Declared,
            status,
            ignored,
            rescued: failure.is_some() && self.will_rescue(),
            message,
            changes: raw.changes,
            awaiting: raw.awaiting,
            item: item.map(|(_, label)| label),
            warnings: raw.warnings,
            data: raw.data,
        };
        if task.no_log {
            hide(&mut report);
        }
        if status == Status::Unknown {
            let reason = report.message.as_deref().unwrap_or("not readable");
            self.unknown.push(format!("{}: {reason}", report.task));
        }
        ItemEnd { report, result, failure }
    }

    fn verdict(
        &self,
        conditions: Option<&[Condition]>,
        scope: &Arc<Scope>,
        key: &str,
    ) -> Result<Option<Truth>, String> {
        let Some(conditions) = conditions else { return Ok(None) };
        Condition::all(conditions, scope)
            .map(Some)
            .map_err(|(condition, error)| format!("`{key}: {}`: {error}", condition.text))
    }

    /// Ends a task: registers, notifies, reports. Gives the failure that is nobody's yet.
    pub(super) fn settle(
        &mut self,
        task: &Arc<Task>,
        round: u32,
        looped: bool,
        mut ends: Vec<ItemEnd>,
    ) -> Option<Failure> {
        let mut end = match (looped, ends.len()) {
            (false, _) => ends.pop()?,
            (true, _) => self.sum_up(task, round, ends),
        };
        let scope = self.scope(task, None);
        if self.sealed.contains(&task.path) {
            end.result = end.result.sealed();
        }
        if let Some(name) = &task.register {
            if let Some(latched) = self.latched.as_mut().filter(|_| task.run_once) {
                latched.note(name, &end.result);
            }
            if self.mode == Mode::Predict && end.report.status == Status::Changed {
                self.foretold.insert(Arc::clone(name));
            }
            Arc::make_mut(&mut self.vars.set).insert(Arc::clone(name), end.result.clone());
        }
        let possible = end.report.status == Status::Possible;
        if end.report.status == Status::Changed || possible {
            let names: Result<Vec<_>, _> = task
                .notify
                .iter()
                .map(|name| template::resolve(name, &scope).map(|name| name.to_text()))
                .collect();
            let notified = match names {
                Ok(names) => self.notify(&names, possible, &scope),
                Err(error) => Err(format!("`notify`: {error}")),
            };
            if let Err(message) = notified {
                end.report.status = Status::Failed;
                end.report.message = Some(message.clone());
                let failure = Failure::of(end.report.task.clone(), message);
                end.failure = Some(Failure { fatal: task.any_errors_fatal, ..failure });
                end.report.rescued = self.will_rescue();
            }
        }
        if let Some(latched) = self.latched.as_mut().filter(|_| task.run_once) {
            latched.failed |= end.failure.is_some();
            self.latch_settled = true;
        }
        // Why: each time that something was included has been told by itself.
        if !(looped && task.site.is_some() && end.report.status == Status::Ok) {
            self.queue.push(end.report);
        }
        end.failure
    }

    /// The report of a whole loop.
    fn sum_up(&mut self, task: &Arc<Task>, round: u32, ends: Vec<ItemEnd>) -> ItemEnd {
        let has = |status: Status| ends.iter().any(|end| end.report.status == status);
        let failure = ends.iter().find_map(|end| end.failure.clone());
        // Why a failure before a loss: the loss of an item is here only where the task ignores it.
        let status = [
            Status::Failed,
            Status::Unreachable,
            Status::Held,
            Status::Unknown,
            Status::Changed,
            Status::Possible,
            Status::Ok,
            Status::Skipped,
        ]
        .into_iter()
        .find(|status| has(*status))
        .unwrap_or(Status::Skipped);
        let count = ends.iter().filter(|end| end.report.status == status).count();
        let first = ends.iter().find(|end| end.report.status == status);
        let message = match status {
            Status::Failed | Status::Unreachable | Status::Unknown => first.and_then(|end| {
                let why = end.report.message.clone()?;
                let item = end.report.item.clone().unwrap_or_default();
                Some(format!("{count} of {} items: {item}: {why}", ends.len()))
            }),
            _ => None,
        };
        let ignored = matches!(status, Status::Failed | Status::Unreachable)
            && failure.is_none()
            && ends.iter().filter(|end| end.report.status == status).all(|end| end.report.ignored);
        let result = if ends.iter().any(|end| matches!(end.result, Value::Unknown)) {
            Value::Unknown
        } else {
            let mut result: Dict = [
                (Arc::from("results"), Value::list(ends.iter().map(|end| end.result.clone()).collect())),
                (Arc::from("changed"), Value::Bool(ends.iter().any(|end| is_true(&end.result, "changed")))),
                (Arc::from("skipped"), Value::Bool(status == Status::Skipped)),
                (
                    Arc::from("msg"),
                    Value::str(match status {
                        _ if has(Status::Failed) => "One or more items failed",
                        Status::Skipped => "All items skipped",
                        _ => "All items completed",
                    }),
                ),
            ]
            .into_iter()
            .collect();
            if has(Status::Failed) {
                result.insert("failed", Value::Bool(true));
            }
            Value::Map(Arc::new(result))
        };
        let scope = self.scope(task, None);
        let mut report = TaskReport {
            op_id: self.op_id(&task.path, None, Phase::Declared, round),
            task: self.title(task, &scope),
            kind: task.kind.name.to_owned(),
            file: Arc::from(task.span.file()),
            line: task.span.line,
            phase: Phase::Declared,
            status,
            ignored,
            rescued: failure.is_some() && self.will_rescue(),
            message,
            changes: Vec::new(),
            awaiting: Vec::new(),
            item: None,
            warnings: Vec::new(),
            data: match is_true(&result, "changed") {
                true if status == Status::Failed => {
                    [("changed".to_owned(), Json::Bool(true))].into_iter().collect()
                }
                _ => Map::new(),
            },
        };
        if task.no_log {
            hide(&mut report);
        }
        ItemEnd { report, result, failure }
    }

    /// Another host ran the task: its variables come here too.
    pub(super) fn take_copy(&mut self, copied: Copied) {
        let Some(Frame::Task(active)) = self.frames.pop() else { return };
        let set = Arc::make_mut(&mut self.vars.set);
        for (name, value) in &copied.variables {
            set.insert(name.as_str(), Value::literal(value));
        }
        for name in &copied.unknown {
            set.insert(name.as_str(), Value::Unknown);
        }
        if copied.failed {
            let scope = self.scope(&active.task, None);
            let task = self.title(&active.task, &scope);
            let failure = Failure::of(task, "it failed on the host that ran it for all".to_owned());
            self.fail(Failure { fatal: true, ..failure });
        }
    }
}

/// How long work that waits has to be let, in seconds.
fn own_timeout(work: &Work) -> Option<u64> {
    let Work::Node { op, .. } = work else { return None };
    match &**op {
        gpufleet_protocol::NodeOp::WaitFor(wait) => {
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

fn is_true(result: &Value, name: &str) -> bool {
    matches!(result, Value::Map(map) if matches!(map.get(name), Some(Value::Bool(true))))
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

/// How often an item may be tried, and how long to wait in between.
#[derive(Clone, Copy)]
struct Tries {
    most: u32,
    delay_s: u64,
}

/// A number that a person wrote as a count.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded right here")]
fn whole(number: f64) -> u32 {
    number.clamp(0.0, 1e9).round() as u32
}

/// What `register` gets.
fn result_of(status: Status, message: Option<&str>, data: &Map<String, Json>) -> Value {
    if status == Status::Possible {
        return Value::Unknown;
    }
    let mut result = Dict::literal(data);
    let changed = status == Status::Changed
        || status == Status::Failed && data.get("changed") == Some(&Json::Bool(true));
    result.insert("changed", Value::Bool(changed));
    // Why: as in Ansible, what was skipped has no more fields than these.
    let skipped = status == Status::Skipped;
    if skipped {
        result.insert("skipped", Value::Bool(true));
        let reason = match message {
            Some("the condition does not hold") => "Conditional result was False",
            other => other.unwrap_or_default(),
        };
        if !result.contains("skip_reason") && !result.contains("skipped_reason") {
            result.insert("skip_reason", Value::str(reason));
        }
    } else {
        result.insert("failed", Value::Bool(status == Status::Failed));
    }
    if status == Status::Unreachable {
        result.insert("unreachable", Value::Bool(true));
    }
    // Why: what `debug` shows of a variable stands under its name only.
    let told = data.is_empty() || matches!(status, Status::Failed | Status::Unreachable);
    if let Some(message) = message
        && told
        && !skipped
        && !result.contains("msg")
    {
        result.insert("msg", Value::str(message));
    }
    for stream in ["stdout", "stderr"] {
        let lines = format!("{stream}_lines");
        if let Some(Value::Str(text)) = result.get(stream)
            && !result.contains(&lines)
        {
            let split = Value::list(text.lines().map(Value::str).collect());
            result.insert(lines, split);
        }
    }
    Value::Map(Arc::new(result))
}

/// Takes everything out of a report that `no_log` forbids.
pub(super) fn hide(report: &mut TaskReport) {
    report.data.retain(|name, _| name == "changed");
    report.warnings.clear();
    if report.message.is_some() {
        report.message = Some("hidden by `no_log`".to_owned());
    }
    for change in &mut report.changes {
        change.from = change.from.take().map(|_| "(hidden)".to_owned());
        change.to = "(hidden)".to_owned();
        change.diff = None;
        change.note = None;
    }
}

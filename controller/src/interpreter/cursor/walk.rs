//! The order of things: stages, blocks, handlers, what follows an activation.

use std::collections::BTreeSet;
use std::sync::Arc;

use gpufleet_protocol::op::{FactsRequest, GpuTask};
use gpufleet_protocol::{Disruption, NodeOp};

use super::position::Position;
use super::state::{Active, BlockPart, Failure, Frame, Notification, Pending, PlayStage, Purpose, Reach};
use super::{Cursor, End, EndState, Step};
use crate::interpreter::action::{Action, Mode, OpId, Phase, RunAs, Work, position};
use crate::playbook::{Flag, Item, Items, Strategy, Task};
use crate::template::{self, Dict, Scope, Truth, Value};

/// How many activations one play may see on one host before it is called hopeless.
const MAX_ACTIVATIONS: u32 = 8;

/// Whether an operation keeps the driver of GPUs in memory.
fn keeps_awake(op: &NodeOp) -> bool {
    let NodeOp::GpuGroup(group) = op else { return false };
    group.members.iter().any(|member| matches!(member.task, GpuTask::GpuPersistence(_)))
}

impl Cursor {
    /// What comes next.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends and takes answers in between: no iterator"
    )]
    pub fn next(&mut self) -> Step {
        // Why: what is left of others on this thread is not of this host.
        template::take_warnings();
        let step = self.next_step();
        self.keep_warnings();
        step
    }

    fn next_step(&mut self) -> Step {
        loop {
            if !self.queue.is_empty() {
                return Step::Report(std::mem::take(&mut self.queue));
            }
            if let Some(pending) = &self.pending {
                return Step::Run(Box::new(pending.action.clone()));
            }
            if let Some(state) = &self.end {
                if let Some(snapshots) = &self.snapshots {
                    snapshots.ended(&self.host.host, &self.vars, &self.taken);
                }
                return Step::End(End {
                    state: state.clone(),
                    fatal: self.fatal,
                    end_play: self.end_play,
                    end_batch: self.end_batch,
                    cleared_errors: self.cleared_errors,
                    unknown: self.unknown.clone(),
                    vars: self.vars.clone(),
                });
            }
            if let Some(key) = &self.open_latch {
                return Step::Latch { key: Arc::clone(key) };
            }
            if let Some(entry) = self.reassert.pop_front() {
                self.ask_again(entry, Phase::Reassert);
                continue;
            }
            if let Some(entry) = self.unsettled.pop_front() {
                self.ask_again(entry, Phase::Verify);
                continue;
            }
            if let Some(step) = self.advance() {
                return step;
            }
        }
    }

    /// The task on top, where a person has to say whether it runs and has not yet.
    fn question(&self) -> Option<Step> {
        let tasks: &[Arc<Task>] = match self.frames.last() {
            _ if !self.stepping => return None,
            Some(Frame::Task(active)) if !active.asked => std::slice::from_ref(&active.task),
            Some(Frame::Group(group)) if !group.asked => &group.tasks,
            _ => return None,
        };
        let titles: Vec<String> =
            tasks.iter().map(|task| self.title(task, &self.scope(task, None))).collect();
        Some(Step::Ask { task: Arc::clone(&tasks.first()?.path), title: titles.join(", ") })
    }

    /// A person's answer to the task on top.
    pub(super) fn answered(&mut self, run: bool) {
        if !run {
            self.frames.pop_if(|frame| matches!(frame, Frame::Task(_) | Frame::Group(_)));
            return;
        }
        match self.frames.last_mut() {
            Some(Frame::Task(active)) => active.asked = true,
            Some(Frame::Group(group)) => group.asked = true,
            _ => {}
        }
    }

    fn advance(&mut self) -> Option<Step> {
        if let Some(question) = self.question() {
            return Some(question);
        }
        if let Some((task, at)) = self.owed_barrier.take() {
            return Some(Step::Barrier { task, at });
        }
        let at = self.position();
        match self.frames.last_mut() {
            None => self.next_stage(at),
            Some(Frame::List { items, next }) => match items.get(*next) {
                Some(item) => {
                    let item = item.clone();
                    let first = match &item {
                        Item::Task(task) => Some(Arc::clone(task)),
                        Item::GpuGroup(tasks) => {
                            tasks.iter().find(|task| self.tags.runs(&task.tags)).cloned()
                        }
                        Item::Block(_) => None,
                    };
                    let first = first.filter(|task| self.tags.runs(&task.tags));
                    if let Some(task) = &first
                        && self.play.strategy == Strategy::Linear
                        && self.passed_barrier.as_ref() != Some(&task.path)
                    {
                        self.passed_barrier = Some(Arc::clone(&task.path));
                        self.passed.clone_from(&at);
                        if let Some(snapshots) = &self.snapshots {
                            // Why only there: what is told is kept, and costs a copy of the host's variables.
                            let tells = self.looks_at_others(task) || task.site.is_some();
                            snapshots.tell(&self.host.host, &at, tells.then_some((&self.vars, &self.taken)));
                        }
                        return Some(Step::Barrier { task: Arc::clone(&task.path), at });
                    }
                    *next += 1;
                    if let Some(task) = self.passed_barrier.as_ref().and(first) {
                        self.look_at_others(&task);
                    }
                    self.enter(item);
                    None
                }
                None => match self.end_of_part() {
                    Some(end) if self.passed != at => {
                        self.passed_barrier = Some(Arc::clone(&end));
                        self.passed.clone_from(&at);
                        Some(Step::Barrier { task: end, at })
                    }
                    _ => {
                        self.frames.pop();
                        None
                    }
                },
            },
            Some(Frame::Block { .. }) => {
                self.part_done();
                None
            }
            Some(Frame::Handlers { .. }) => {
                self.next_handler();
                None
            }
            Some(Frame::Include { .. }) => {
                self.frames.pop();
                None
            }
            Some(Frame::Task(_)) => {
                self.task_step();
                None
            }
            Some(Frame::Group(_)) => {
                self.group_step();
                None
            }
        }
    }

    fn enter(&mut self, item: Item) {
        match item {
            Item::Task(task) => {
                if self.tags.runs(&task.tags) {
                    self.push_task(task, 0, false);
                }
            }
            Item::GpuGroup(tasks) => {
                let chosen: Vec<_> =
                    tasks.iter().filter(|task| self.tags.runs(&task.tags)).cloned().collect();
                if !chosen.is_empty() {
                    self.push_group(chosen.into());
                }
            }
            Item::Block(block) => {
                // Why: as in Ansible, a role runs once in a play, unless it is given something else the next time.
                if block.once.as_ref().is_some_and(|once| !self.roles_run.insert(Arc::clone(once))) {
                    return;
                }
                let items = Items::clone(&block.body);
                self.frames.push(Frame::Block { block, part: BlockPart::Body, failure: None });
                self.frames.push(Frame::List { items, next: 0 });
            }
        }
    }

    pub(super) fn push_task(&mut self, task: Arc<Task>, round: u32, possible: bool) {
        self.frames.push(Frame::Task(Box::new(Active {
            task,
            round,
            items: None,
            next: 0,
            reports: Vec::new(),
            started: false,
            possible,
            asked: false,
            retry: 0,
            wait: None,
            included: Vec::new(),
        })));
    }

    /// A part of the block on top ended without failure.
    /// The name of the end of a block's part, where hosts wait for each other: in a linear play, while a failure elsewhere
    /// would still lead into its `rescue` or `always`.
    fn end_of_part(&self) -> Option<Arc<str>> {
        let [.., Frame::Block { block, part, .. }, Frame::List { items, .. }] = &*self.frames else {
            return None;
        };
        let catches = match part {
            BlockPart::Body => !block.rescue.is_empty() || !block.always.is_empty(),
            BlockPart::Rescue => !block.always.is_empty(),
            BlockPart::Always => false,
        };
        let waits = catches && self.play.strategy == Strategy::Linear && items.iter().any(Item::may_be_fatal);
        waits
            .then(|| items.iter().rev().find_map(Item::first_task))
            .flatten()
            .map(|task| format!("{}.end.{}", task.path, self.frames.len()).into())
    }

    /// The name of the place before a section's handlers, where hosts wait for each other: in a linear play, while a failure
    /// elsewhere would still keep the handlers from running.
    fn before_handlers(&self, section: usize) -> Option<Arc<str>> {
        let section = self.play.sections.get(section)?;
        let bounded = self.play.max_fail_percentage.is_some() || self.play.max_failures.is_some();
        let waits = self.play.strategy == Strategy::Linear
            && (bounded || section.items.iter().any(Item::may_be_fatal));
        waits.then(|| format!("{}.handlers", section.name).into())
    }

    fn part_done(&mut self) {
        let Some(Frame::Block { block, part, failure }) = self.frames.pop() else { return };
        match part {
            BlockPart::Body | BlockPart::Rescue => {
                let items = Items::clone(&block.always);
                self.frames.push(Frame::Block { block, part: BlockPart::Always, failure });
                self.frames.push(Frame::List { items, next: 0 });
            }
            BlockPart::Always => {
                if let Some(failure) = failure {
                    // Why: the others heard of it when it happened.
                    let heard = (self.raised.take(), self.owed_barrier.take());
                    self.fail(failure);
                    (self.raised, self.owed_barrier) = heard;
                }
            }
        }
    }

    /// Whether a failure now ends in a `rescue`.
    pub(super) fn will_rescue(&self) -> bool {
        self.frames.iter().any(
            |frame| matches!(frame, Frame::Block { block, part: BlockPart::Body, .. } if !block.rescue.is_empty()),
        )
    }

    /// Unwinds to whatever takes care of the failure; nothing does: the host failed.
    pub(super) fn fail(&mut self, mut failure: Failure) {
        self.reassert.clear();
        self.unsettled.clear();
        if failure.reach == Reach::Raised {
            self.raised = Some(self.end_of_caught());
            // Why: the others hear of it when it comes to a barrier itself, and before it does anything else.
            let linear = self.play.strategy == Strategy::Linear;
            let last = self.passed_barrier.as_ref().filter(|_| linear);
            self.owed_barrier = last.map(|path| (format!("{path}.failed").into(), self.position()));
        }
        let everybodys = |failure: &Failure| matches!(failure.reach, Reach::Copied | Reach::Raised);
        while let Some(frame) = self.frames.pop() {
            let (block, part) = match frame {
                Frame::Block { block, part, failure: before } => {
                    // Why: an `always` that fails too takes nothing back.
                    if failure.reach == Reach::Here && before.as_ref().is_some_and(everybodys) {
                        failure.reach = Reach::Copied;
                    }
                    (block, part)
                }
                Frame::Task(active) => {
                    // Why: the items that were done are told, although their loop does not end.
                    let Active { task, round, items, reports, .. } = *active;
                    self.settle(&task, round, items.is_some(), reports);
                    continue;
                }
                _ => continue,
            };
            match part {
                BlockPart::Body if !block.rescue.is_empty() => {
                    let items = Items::clone(&block.rescue);
                    // Why: as in Ansible, what failed elsewhere is not named here.
                    if failure.reach != Reach::Elsewhere {
                        self.note_failure(&failure);
                    }
                    self.frames.push(Frame::Block { block, part: BlockPart::Rescue, failure: None });
                    self.frames.push(Frame::List { items, next: 0 });
                    return;
                }
                BlockPart::Body | BlockPart::Rescue => {
                    let items = Items::clone(&block.always);
                    self.frames.push(Frame::Block { block, part: BlockPart::Always, failure: Some(failure) });
                    self.frames.push(Frame::List { items, next: 0 });
                    return;
                }
                BlockPart::Always => {}
            }
        }
        self.owed_barrier = None;
        self.fatal |= everybodys(&failure);
        self.verify.clear();
        let first = self.failed.is_none();
        self.failed.get_or_insert(failure);
        self.stage = PlayStage::Finish;
        if first && self.play.force_handlers && !self.waiting.is_empty() {
            self.flush_handlers();
        }
    }

    /// `ansible_failed_task` and `ansible_failed_result` for the rescue.
    fn note_failure(&mut self, failure: &Failure) {
        let name = failure.task.rsplit(" : ").next().unwrap_or(&failure.task);
        let task = match &failure.by {
            Some(task) => self.failed_task(task, name),
            None => Value::map([("name", Value::str(name))]),
        };
        let result = failure.result.clone().unwrap_or_else(|| {
            Value::map([
                ("failed", Value::Bool(true)),
                ("changed", Value::Bool(false)),
                ("msg", Value::str(&failure.message)),
            ])
        });
        let vars = Arc::make_mut(&mut self.run_vars);
        vars.insert("ansible_failed_task", task);
        vars.insert("ansible_failed_result", result);
    }

    /// The words of a task as Ansible tells a rescue of it; those that nobody wrote are left out but for the first ones.
    fn failed_task(&self, task: &Task, name: &str) -> Value {
        let scope = self.scope(task, None);
        let rendered =
            |value: &Value| crate::template::resolve(value, &scope).unwrap_or_else(|_| value.clone());
        let words = |words: &[String]| Value::list(words.iter().map(Value::str).collect());
        let args: Dict = match task.no_log {
            true => Dict::default(),
            false => {
                let entries = task.params.entries.iter();
                entries.map(|entry| (Arc::clone(&entry.name), rendered(&entry.value))).collect()
            }
        };
        let vars: Dict = task
            .vars
            .iter()
            .flat_map(|vars| vars.iter())
            .map(|(k, v)| (Arc::clone(k), rendered(v)))
            .collect();
        let when = task.when.iter().map(|condition| match &*condition.text {
            "true" | "True" => Value::Bool(true),
            text => Value::str(text),
        });
        let optional = |value: Option<Value>| value.unwrap_or(Value::Null);
        Value::map([
            ("name", Value::str(name)),
            ("action", Value::str(task.kind.name)),
            ("args", Value::Map(Arc::new(args))),
            ("tags", words(&task.tags)),
            ("vars", Value::Map(Arc::new(vars))),
            ("when", Value::list(when.collect())),
            ("register", optional(task.register.as_deref().map(Value::str))),
            ("loop", optional(task.looped.as_ref().map(|looped| rendered(&looped.items)))),
            ("notify", optional((!task.notify.is_empty()).then(|| Value::list(task.notify.clone())))),
            ("delegate_to", optional(task.delegate_to.as_ref().map(rendered))),
            ("no_log", Value::Bool(task.no_log)),
            ("run_once", if task.run_once { Value::Bool(true) } else { Value::Null }),
            ("any_errors_fatal", Value::Bool(task.any_errors_fatal)),
            (
                "timeout",
                Value::Int(task.timeout_s.and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0)),
            ),
        ])
    }

    pub(super) fn flush_handlers(&mut self) {
        // Why: a handler that flushes would run handlers of the flush it is in again.
        let flushing = self.frames.iter().any(|frame| matches!(frame, Frame::Handlers { .. }));
        if self.waiting.is_empty() || flushing {
            return;
        }
        // Why only now: as in Ansible, a handler of the same name that came with a role meanwhile stands for the earlier one.
        let scope = self.base_scope();
        for (name, possible) in std::mem::take(&mut self.waiting) {
            for handler in self.meant(&name, &scope) {
                self.note(Notification { handler, possible });
            }
        }
        self.flushes += 1;
        self.frames.push(Frame::Handlers { done: BTreeSet::new(), last: 0, pass: 0 });
    }

    /// The next notified handler in the order of definition.
    fn next_handler(&mut self) {
        let Some(Frame::Handlers { done, last, pass }) = self.frames.last_mut() else { return };
        // Why: as in Ansible, one that is notified by a later handler waits for the next pass.
        let open =
            self.notified.iter().map(|notice| notice.handler).filter(|handler| !done.contains(handler));
        let next = open.min_by_key(|handler| (*handler < *last, *handler));
        let Some(handler) = next else {
            // Why: a handler that was notified again by a later one has run in this flush already.
            self.notified.clear();
            self.frames.pop();
            return;
        };
        done.insert(handler);
        *pass += u32::from(handler < *last);
        *last = handler;
        let possible =
            self.notified.iter().filter(|notice| notice.handler == handler).all(|notice| notice.possible);
        self.notified.retain(|notice| notice.handler != handler);
        // Why: as in Ansible, tags choose tasks, and a chosen task's handlers run.
        if let Some(task) = self.handlers.get(handler).cloned() {
            let round = self.flushes.saturating_sub(1);
            self.push_task(task, round, possible);
        }
    }

    /// Notes the handlers that `names` mean.
    ///
    /// # Errors
    /// The first name that is no handler's.
    pub(super) fn notify(
        &mut self,
        names: &[String],
        possible: bool,
        scope: &Arc<Scope>,
    ) -> Result<(), String> {
        let flushing = self.frames.iter().any(|frame| matches!(frame, Frame::Handlers { .. }));
        for name in names {
            let meant = self.meant(name, scope);
            if meant.is_empty() {
                return Err(format!("no handler is called `{name}`"));
            }
            if flushing {
                meant.into_iter().for_each(|handler| self.note(Notification { handler, possible }));
            } else if !self.waiting.contains(&(name.clone(), possible)) {
                self.waiting.push((name.clone(), possible));
            }
        }
        Ok(())
    }

    fn note(&mut self, notice: Notification) {
        if !self.notified.contains(&notice) {
            self.notified.push(notice);
        }
    }

    /// The handlers that a notification means: one by its name, and those that listen.
    ///
    /// Source: `search_handlers_by_notification` of ansible-core 2.19: the last file or block that has the name decides,
    /// and within it the first handler.
    fn meant(&self, name: &str, scope: &Arc<Scope>) -> Vec<usize> {
        let place = |task: &Arc<Task>| task.path.rsplit_once('.').map(|(block, _)| block.to_owned());
        let mut blocks: Vec<Vec<usize>> = Vec::new();
        for (at, task) in self.handlers.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|before| self.handlers.get(before));
            match blocks.last_mut().filter(|_| before.is_some_and(|before| place(before) == place(task))) {
                Some(block) => block.push(at),
                None => blocks.push(vec![at]),
            }
        }
        let order = || blocks.iter().rev().flatten().copied();
        let named = |at: &usize| {
            let Some(task) = self.handlers.get(*at) else { return false };
            let is = |own: &str| {
                own == name
                    || task.role.as_ref().is_some_and(|role| {
                        name.strip_prefix(&*role.name).and_then(|rest| rest.strip_prefix(" : ")) == Some(own)
                    })
            };
            task.name.as_ref().is_some_and(|own| {
                own.as_str().is_some_and(is)
                    || !own.is_settled()
                        && crate::template::resolve(own, scope).is_ok_and(|own| own.as_str().is_some_and(is))
            })
        };
        let mut meant: Vec<usize> = order().find(named).into_iter().collect();
        let mut heard: Vec<&Value> = Vec::new();
        for at in order() {
            let Some(task) =
                self.handlers.get(at).filter(|task| task.listen.iter().any(|topic| topic == name))
            else {
                continue;
            };
            if let Some(own) = &task.name {
                if heard.contains(&own) {
                    continue;
                }
                heard.push(own);
            }
            meant.push(at);
        }
        meant
    }

    fn next_stage(&mut self, at: Position) -> Option<Step> {
        match self.stage {
            PlayStage::Facts if self.late_error.is_some() => {
                let message = self.late_error.take().unwrap_or_default();
                self.fail(Failure::of("vars_files".to_owned(), message));
            }
            PlayStage::Facts => {
                self.stage = PlayStage::Enter(0);
                if self.play.gather_facts {
                    self.ask_for_facts();
                }
            }
            PlayStage::Enter(section) => match self.play.sections.get(section) {
                Some(part) => {
                    self.frames.push(Frame::List { items: Items::clone(&part.items), next: 0 });
                    self.stage = PlayStage::Tasks(section);
                }
                None => self.stage = PlayStage::Finish,
            },
            PlayStage::Tasks(section) => {
                let meets = self.before_handlers(section);
                if let Some(task) = meets.filter(|task| self.passed_barrier.as_ref() != Some(task)) {
                    self.passed_barrier = Some(Arc::clone(&task));
                    self.passed.clone_from(&at);
                    return Some(Step::Barrier { task, at });
                }
                self.stage = PlayStage::Handlers(section);
                self.flush_handlers();
            }
            PlayStage::Handlers(section) => self.stage = PlayStage::VerifyStart(section),
            PlayStage::VerifyStart(section) => {
                self.stage = PlayStage::Verify(section);
                if self.mode == Mode::Apply && self.touched {
                    self.touched = false;
                    self.verifications += 1;
                    self.verify = self.ledger.standing().map(|(index, _)| index).collect();
                }
            }
            PlayStage::Verify(section) => match self.verify.pop_front() {
                Some(entry) => self.ask_again(entry, Phase::Verify),
                None => self.stage = PlayStage::SectionEnd(section),
            },
            PlayStage::SectionEnd(section) => {
                self.stage = if self.ending { PlayStage::Finish } else { PlayStage::Enter(section + 1) };
                let name = self.play.sections.get(section)?.name;
                return Some(Step::SectionEnd { section: name });
            }
            PlayStage::Finish => self.end = Some(self.final_state()),
        }
        None
    }

    /// What is written and waits for an activation, each once.
    pub(super) fn pending(&self) -> Vec<String> {
        let mut reasons: Vec<String> = Vec::new();
        for awaiting in self.ledger.awaiting() {
            if !reasons.contains(&awaiting.reason) {
                reasons.push(awaiting.reason.clone());
            }
        }
        reasons
    }

    fn final_state(&self) -> EndState {
        if self.failed.as_ref().is_some_and(|failure| failure.reach == Reach::Elsewhere) {
            return EndState::Stopped;
        }
        if let Some(failure) = &self.failed {
            return EndState::Failed { task: failure.task.clone(), message: failure.message.clone() };
        }
        let reasons = self.pending();
        match self.ledger.awaiting().map(|awaiting| awaiting.activation).max() {
            None => EndState::Done,
            Some(class) => EndState::PendingActivation {
                class,
                next: format!(
                    "pending {class}: add `reboot: {{when: required}}` behind the tasks of the play \"{}\"",
                    self.play.name
                ),
                reasons,
            },
        }
    }

    fn ask_for_facts(&mut self) {
        let escalate = matches!(self.play.privilege.escalate, Some(Flag::Fixed(true)))
            || self.play.privilege.escalate.is_none() && self.host.become_default;
        let op = NodeOp::Facts(FactsRequest { gpus: true, ..FactsRequest::default() });
        let action = Action {
            id: self.op_id("facts", None, Phase::Declared, 0),
            task: "Gathering Facts".to_owned(),
            kind: "gather_facts",
            position: position(&self.play.span),
            mode: self.mode,
            phase: Phase::Declared,
            work: Work::Node { op: Box::new(op), blobs: Vec::new() },
            timeout_s: None,
            run_as: if escalate { RunAs::Root } else { RunAs::Login },
            environment: Vec::new(),
            no_log: false,
            on_interrupt: crate::playbook::OnInterrupt::Hold,
            disruption: Disruption::Live,
            wait: None,
            delegate: None,
            throttle: None,
            forgives_loss: self.play.ignore_unreachable,
            job: None,
            keeps: true,
        };
        self.pending = Some(Pending { action, purpose: Purpose::Facts });
    }

    /// Sends a ledger entry once more.
    fn ask_again(&mut self, index: usize, phase: Phase) {
        let Some(entry) = self.ledger.entries.get(index) else { return };
        let Some(owner) = entry.owners.first() else { return };
        let (round, purpose, mode) = match phase {
            Phase::Verify => (self.verifications.saturating_sub(1), Purpose::Verify(index), Mode::Predict),
            _ => (self.activations.saturating_sub(1), Purpose::Reassert(index), self.mode),
        };
        let mut op = entry.op.clone();
        if let NodeOp::GpuGroup(group) = &mut op {
            group.defer_to_reboot = false;
        }
        let action = Action {
            id: self.op_id(&owner.task.path, owner.item.as_ref().map(|(index, _)| *index), phase, round),
            task: owner.title.clone(),
            kind: owner.task.kind.name,
            position: position(&owner.task.span),
            mode,
            phase,
            work: Work::Node { op: Box::new(op), blobs: entry.blobs.clone() },
            timeout_s: entry.timeout_s,
            run_as: entry.run_as.clone(),
            environment: entry.environment.clone(),
            no_log: entry.owners.iter().any(|owner| owner.task.no_log),
            on_interrupt: crate::playbook::OnInterrupt::Hold,
            disruption: entry.owners.iter().map(|owner| owner.task.kind.disruption).max().unwrap_or_default(),
            wait: None,
            delegate: None,
            throttle: None,
            forgives_loss: false,
            job: None,
            keeps: false,
        };
        self.pending = Some(Pending { action, purpose });
    }

    /// The GPUs were reset or the node rebooted: what that may have lost is planned again before anything else.
    pub(super) fn activate(&mut self, class: Disruption, except: Option<usize>) {
        if class < Disruption::GpuReset || self.failed.is_some() || self.end.is_some() {
            return;
        }
        self.activations += 1;
        self.ledger.activated(class);
        if self.activations > MAX_ACTIVATIONS {
            let message = format!(
                "the node was reset or rebooted {} times in this play and still needs more",
                self.activations
            );
            self.fail(Failure::of("assert again".to_owned(), message));
            return;
        }
        let mut lost_again = Vec::new();
        for (index, entry) in self.ledger.standing() {
            let lost = class == Disruption::Reboot || matches!(entry.op, NodeOp::GpuGroup(_));
            if lost && Some(index) != except && !self.reassert.contains(&index) {
                lost_again.push((!keeps_awake(&entry.op), index));
            }
        }
        // Why first: what comes before persistence is forgotten as soon as it is set.
        lost_again.sort_by_key(|(late, _)| *late);
        self.reassert.extend(lost_again.into_iter().map(|(_, index)| index));
    }

    pub(super) fn op_id(&self, task: &str, item: Option<u32>, phase: Phase, round: u32) -> OpId {
        OpId {
            play: self.index,
            task: Arc::from(task),
            item,
            phase,
            round,
            retry: 0,
            host: Arc::clone(&self.host.host),
        }
    }

    /// The name of a task with its templates rendered, as far as that goes.
    pub(super) fn title(&self, task: &Task, scope: &Arc<Scope>) -> String {
        let title = self.plain_title(task, scope);
        match &task.role {
            Some(role) => format!("{} : {title}", role.name),
            None => title,
        }
    }

    fn plain_title(&self, task: &Task, scope: &Arc<Scope>) -> String {
        match &task.name {
            None => task.word.to_string(),
            // Why not with a secret: names stand on every screen.
            Some(name) => match template::watch(|| template::resolve(name, scope)) {
                (Ok(Value::Unknown) | Err(_), _) | (_, true) => match name {
                    Value::Secret(_) => task.word.to_string(),
                    name => name.to_text(),
                },
                (Ok(name), false) => name.to_text(),
            },
        }
    }

    pub(super) fn ignores_errors(task: &Task, scope: &Arc<Scope>) -> bool {
        matches!(task.ignore_errors.holds(scope), Ok(Truth::True))
    }
}

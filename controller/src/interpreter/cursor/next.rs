//! The order of things: stages, handlers, what follows an activation.

use std::sync::Arc;

use gpufleet_protocol::op::FactsRequest;
use gpufleet_protocol::{Disruption, NodeOp};

use super::position::Position;
use super::state::{Failure, Frame, Pending, PlayStage, Purpose};
use super::titles::title;
use super::{Cursor, EndState, Step};
use crate::interpreter::action::{Action, Mode, Phase, RunAs, Terms, Work, position};
use crate::playbook::{Flag, Item, Items, Task};
use crate::template;

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
        self.reports.keep_warnings();
        step
    }

    fn next_step(&mut self) -> Step {
        loop {
            if !self.reports.is_empty() {
                return Step::Report(self.reports.take());
            }
            if let Some(pending) = &self.pending {
                return Step::Run(Box::new(pending.action.clone()));
            }
            if let Some(end) = self.ending.end(self.variables.host()) {
                self.others.leave_last_snapshot(self.variables.host());
                return Step::End(end);
            }
            if let Some(key) = self.latch.open() {
                return Step::Latch { key: Arc::clone(key) };
            }
            if let Some((entry, phase)) = self.passes.next_due() {
                self.pending = self.passes.again(entry, phase, &self.setup);
                continue;
            }
            if let Some(step) = self.advance() {
                return step;
            }
        }
    }

    /// The task on top, where a person has to say whether it runs and has not yet.
    fn question(&self) -> Option<Step> {
        let tasks: &[Arc<Task>] = match self.frames.top() {
            _ if !self.setup.switches.stepping => return None,
            Some(Frame::Task(active)) if !active.asked => std::slice::from_ref(&active.task),
            Some(Frame::Group(group)) if !group.asked => &group.tasks,
            _ => return None,
        };
        let titles: Vec<String> = tasks.iter().map(|task| title(task, &self.scope(task, None))).collect();
        Some(Step::Ask { task: Arc::clone(&tasks.first()?.path), title: titles.join(", ") })
    }

    fn advance(&mut self) -> Option<Step> {
        if let Some(question) = self.question() {
            return Some(question);
        }
        if let Some((task, at)) = self.others.take_owed_barrier() {
            return Some(Step::Barrier { task, at });
        }
        let at = self.frames.position();
        match self.frames.top_mut() {
            None => return self.next_stage(at),
            Some(Frame::List { items, next }) => match items.get(*next) {
                Some(item) => {
                    let item = item.clone();
                    return self.next_item(item, at);
                }
                None => return self.end_of_list(at),
            },
            Some(Frame::Handlers(flush)) => match self.handlers.next(flush) {
                Some(due) => self.frames.push_task(due.task, due.round, due.possible),
                None => _ = self.frames.pop(),
            },
            Some(Frame::Block { .. }) => self.end_part(),
            Some(Frame::Include { .. }) => _ = self.frames.pop(),
            Some(Frame::Task(_)) => self.task_step(),
            Some(Frame::Group(_)) => self.group_step(),
        }
        None
    }

    /// Enters an item of the list on top, behind the barrier before it.
    fn next_item(&mut self, item: Item, at: Position) -> Option<Step> {
        let tags = &self.setup.tags;
        let first = match &item {
            Item::Task(task) => Some(task).filter(|task| tags.runs(&task.tags)),
            Item::GpuGroup(tasks) => tasks.iter().find(|task| tags.runs(&task.tags)),
            Item::Block(_) => None,
        };
        if let Some(task) = first.filter(|task| self.setup.is_linear() && !self.others.has_passed(&task.path))
        {
            self.others.pass(&task.path, &at);
            // Why not always: a snapshot costs a copy of the host's variables.
            let is_asked_for = self.setup.looks_at_others(task) || task.site.is_some();
            self.others.leave_snapshot(is_asked_for.then(|| self.variables.host()));
            return Some(Step::Barrier { task: Arc::clone(&task.path), at });
        }
        if let Some(Frame::List { next, .. }) = self.frames.top_mut() {
            *next += 1;
        }
        if let Some(task) = first.filter(|_| self.others.has_passed_any()) {
            self.look_at_others(task);
        }
        self.frames.enter(item, &self.setup.tags);
        None
    }

    /// Leaves the list on top, behind the barrier at its end.
    fn end_of_list(&mut self, at: Position) -> Option<Step> {
        let barrier = self.frames.barrier_at_end_of_part().filter(|_| self.setup.is_linear());
        match barrier.filter(|_| !self.others.is_at(&at)) {
            Some(task) => {
                self.others.pass(&task, &at);
                Some(Step::Barrier { task, at })
            }
            None => {
                self.frames.pop();
                None
            }
        }
    }

    /// Takes over what others set for this host, and what they have told by now if a task asks for it.
    fn look_at_others(&mut self, task: &Task) {
        if let Some(given) = self.others.take_delegated() {
            self.variables.take_delegated(&given);
        }
        if self.setup.looks_at_others(task)
            && let Some(others) = self.others.others()
        {
            self.variables.update_peers(&others);
        }
    }

    pub(super) fn flush_handlers(&mut self) {
        // Why not within another flush: it would run that one's handlers again.
        if self.handlers.are_waiting() && !self.frames.is_flushing() {
            self.handlers.begin_flush(&self.base_scope());
            self.frames.push_flush();
        }
    }

    fn next_stage(&mut self, at: Position) -> Option<Step> {
        let stage = match self.frames.stage() {
            PlayStage::Facts => {
                if let Some(message) = self.variables.take_late_error() {
                    self.fail(Failure::of("vars_files".to_owned(), message));
                    return None;
                }
                if self.setup.play.gather_facts {
                    self.ask_for_facts();
                }
                PlayStage::Enter(0)
            }
            PlayStage::Enter(section) => match self.setup.play.sections.get(section) {
                Some(part) => {
                    self.frames.push_list(Items::clone(&part.items));
                    PlayStage::Tasks(section)
                }
                None => PlayStage::Finish,
            },
            PlayStage::Tasks(section) => {
                let barrier = self.setup.barrier_before_handlers(section);
                if let Some(task) = barrier.filter(|barrier| !self.others.has_passed(barrier)) {
                    self.others.pass(&task, &at);
                    return Some(Step::Barrier { task, at });
                }
                self.flush_handlers();
                PlayStage::Handlers(section)
            }
            PlayStage::Handlers(section) => {
                let earlier = Arc::clone(&self.variables.host().gpus);
                if let Some(pending) = self.passes.keep_again(&earlier, &self.setup) {
                    self.pending = Some(pending);
                    return None;
                }
                PlayStage::VerifyStart(section)
            }
            PlayStage::VerifyStart(section) => {
                if self.setup.mode == Mode::Apply {
                    self.passes.begin_verification();
                }
                PlayStage::Verify(section)
            }
            PlayStage::Verify(section) => match self.passes.next_to_verify() {
                Some(entry) => {
                    self.pending = self.passes.again(entry, Phase::Verify, &self.setup);
                    return None;
                }
                None => PlayStage::SectionEnd(section),
            },
            PlayStage::SectionEnd(section) => {
                let is_last = self.ending.ends_after_section();
                self.frames.set_stage(if is_last {
                    PlayStage::Finish
                } else {
                    PlayStage::Enter(section + 1)
                });
                let name = self.setup.play.sections.get(section)?.name;
                return Some(Step::SectionEnd { section: name });
            }
            PlayStage::Finish => {
                let gpus = self.passes.declared_gpus(&self.variables.host().gpus);
                self.variables.set_declared_gpus(gpus);
                let state = self.final_state();
                self.ending.set(state);
                return None;
            }
        };
        self.frames.set_stage(stage);
        None
    }

    fn final_state(&self) -> EndState {
        if let Some(failed) = self.ending.failed_state() {
            return failed;
        }
        let mut reasons = self.passes.awaited();
        reasons.extend(self.passes.unverified().map(str::to_owned));
        match self.passes.ledger().awaiting().map(|awaiting| awaiting.activation).max() {
            None => EndState::Done,
            Some(class) => EndState::PendingActivation {
                class,
                next: format!(
                    "pending {class}: add `reboot: {{when: required}}` behind the tasks of the play \"{}\"",
                    self.setup.play.name
                ),
                reasons,
            },
        }
    }

    fn ask_for_facts(&mut self) {
        let escalate = matches!(self.setup.play.privilege.escalate, Some(Flag::Fixed(true)))
            || self.setup.play.privilege.escalate.is_none() && self.setup.host.become_default;
        let op = NodeOp::Facts(FactsRequest { gpus: true, ..FactsRequest::default() });
        let action = Action {
            id: self.setup.op_id("facts", None, Phase::Declared, 0),
            task: "Gathering Facts".to_owned(),
            kind: "gather_facts",
            position: position(&self.setup.play.span),
            mode: self.setup.mode,
            work: Work::Node { op: Box::new(op), blobs: Vec::new() },
            timeout_s: None,
            run_as: if escalate { RunAs::Root } else { RunAs::Login },
            environment: Vec::new(),
            no_log: false,
            disruption: Disruption::Live,
            terms: Terms {
                forgives_loss: self.setup.play.ignore_unreachable,
                keeps: true,
                ..Terms::default()
            },
        };
        self.pending = Some(Pending { action, purpose: Purpose::Facts });
    }

    /// The GPUs were reset or the node rebooted: what that may have lost is planned again before anything else.
    pub(super) fn activate(&mut self, class: Disruption, except: Option<usize>) {
        if class < Disruption::GpuReset || self.ending.has_failed() || self.ending.is_over() {
            return;
        }
        let again = self.passes.activated(class, except);
        self.asserted_again(again);
    }

    /// Persistence came on: what the driver may have forgotten before is asserted next.
    pub(super) fn awake(&mut self, except: Option<usize>) {
        if !self.ending.has_failed() && !self.ending.is_over() {
            let again = self.passes.awake(except);
            self.asserted_again(again);
        }
    }

    fn asserted_again(&mut self, again: Result<(), String>) {
        if let Err(message) = again {
            self.fail(Failure::of("assert again".to_owned(), message));
        }
    }
}

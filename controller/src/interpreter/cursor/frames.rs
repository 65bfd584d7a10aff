//! Where a cursor stands: the stage of the play, and the lists, blocks and tasks that it is in.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::state::{Active, ActiveGroup, BlockPart, Failure, Flush, Frame, Included, PlayStage};
use crate::playbook::{Block, Item, Items, TagFilter, Task};
use crate::template::Dict;

pub(super) struct Frames {
    stage: PlayStage,
    /// Innermost last.
    stack: Vec<Frame>,
    /// Roles that ran, with what they were given.
    roles_run: HashSet<Arc<str>>,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self { stage: PlayStage::Facts, stack: Vec::new(), roles_run: HashSet::new() }
    }

    pub(super) const fn stage(&self) -> PlayStage {
        self.stage
    }

    pub(super) const fn set_stage(&mut self, stage: PlayStage) {
        self.stage = stage;
    }

    /// All of them, innermost last.
    pub(super) fn all(&self) -> &[Frame] {
        &self.stack
    }

    pub(super) fn top(&self) -> Option<&Frame> {
        self.stack.last()
    }

    pub(super) fn top_mut(&mut self) -> Option<&mut Frame> {
        self.stack.last_mut()
    }

    pub(super) fn pop(&mut self) -> Option<Frame> {
        self.stack.pop()
    }

    /// The task on top.
    pub(super) fn task(&self) -> Option<&Active> {
        match self.stack.last() {
            Some(Frame::Task(active)) => Some(active),
            _ => None,
        }
    }

    pub(super) fn task_mut(&mut self) -> Option<&mut Active> {
        match self.stack.last_mut() {
            Some(Frame::Task(active)) => Some(active),
            _ => None,
        }
    }

    /// The GPU group on top.
    pub(super) fn group(&self) -> Option<&ActiveGroup> {
        match self.stack.last() {
            Some(Frame::Group(group)) => Some(group),
            _ => None,
        }
    }

    pub(super) fn group_mut(&mut self) -> Option<&mut ActiveGroup> {
        match self.stack.last_mut() {
            Some(Frame::Group(group)) => Some(group),
            _ => None,
        }
    }

    /// The task on top with one thing changed.
    pub(super) fn replace_task(&mut self, task: &Task, change: impl FnOnce(&mut Task)) -> Arc<Task> {
        let mut own = task.clone();
        change(&mut own);
        let own = Arc::new(own);
        if let Some(active) = self.task_mut() {
            active.task = Arc::clone(&own);
        }
        own
    }

    pub(super) fn push_task(&mut self, task: Arc<Task>, round: u32, possible: bool) {
        self.stack.push(Frame::Task(Box::new(Active {
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

    pub(super) fn push_list(&mut self, items: Items) {
        self.stack.push(Frame::List { items, next: 0 });
    }

    /// Enters a part of a block. `failure` is what an `always` ends with.
    pub(super) fn push_block(&mut self, block: Arc<Block>, part: BlockPart, failure: Option<Failure>) {
        let items = match part {
            BlockPart::Body => &block.body,
            BlockPart::Rescue => &block.rescue,
            BlockPart::Always => &block.always,
        };
        let items = Items::clone(items);
        self.stack.push(Frame::Block { block, part, failure });
        self.push_list(items);
    }

    /// Enters handlers that were notified.
    pub(super) fn push_flush(&mut self) {
        self.stack.push(Frame::Handlers(Flush { done: BTreeSet::new(), last: 0, pass: 0 }));
    }

    /// Enters what the items of a loop included, the first one on top.
    pub(super) fn push_included(&mut self, included: Vec<Included>) {
        for Included { layer, role, turn, items } in included.into_iter().rev() {
            self.stack.push(Frame::Include { layer, role, turn });
            self.push_list(items);
        }
    }

    /// Enters an item of a list, as far as the tags choose it.
    pub(super) fn enter(&mut self, item: Item, tags: &TagFilter) {
        match item {
            Item::Task(task) => {
                if tags.runs(&task.tags) {
                    self.push_task(task, 0, false);
                }
            }
            Item::GpuGroup(tasks) => {
                let chosen: Vec<_> = tasks.iter().filter(|task| tags.runs(&task.tags)).cloned().collect();
                if !chosen.is_empty() {
                    self.stack.push(Frame::Group(Box::new(ActiveGroup {
                        tasks: chosen.into(),
                        items: Vec::new(),
                        started: false,
                        asked: false,
                    })));
                }
            }
            Item::Block(block) => {
                // Why: as in Ansible, a role runs once in a play, unless it is given something else the next time.
                if block.once.as_ref().is_some_and(|once| !self.roles_run.insert(Arc::clone(once))) {
                    return;
                }
                self.push_block(block, BlockPart::Body, None);
            }
        }
    }

    /// A person's answer to the task on top (`--step`).
    pub(super) fn answered(&mut self, run: bool) {
        if !run {
            self.stack.pop_if(|frame| matches!(frame, Frame::Task(_) | Frame::Group(_)));
            return;
        }
        match self.stack.last_mut() {
            Some(Frame::Task(active)) => active.asked = true,
            Some(Frame::Group(group)) => group.asked = true,
            _ => {}
        }
    }

    /// The loops' variables of the includes that it is in, innermost first.
    pub(super) fn included_layers(&self) -> impl Iterator<Item = Arc<Dict>> {
        self.stack.iter().rev().filter_map(|frame| match frame {
            Frame::Include { layer, .. } => layer.clone(),
            _ => None,
        })
    }

    /// Whether handlers are running.
    pub(super) fn is_flushing(&self) -> bool {
        self.stack.iter().any(|frame| matches!(frame, Frame::Handlers(_)))
    }

    /// Whether a failure now ends in a `rescue`.
    pub(super) fn will_rescue(&self) -> bool {
        self.stack.iter().any(
            |frame| matches!(frame, Frame::Block { block, part: BlockPart::Body, .. } if !block.rescue.is_empty()),
        )
    }

    /// The barrier at the end of the block's part that it is at the end of. There is one in a linear play if a failure of
    /// another host would lead into the block's `rescue` or `always`.
    pub(super) fn barrier_at_end_of_part(&self) -> Option<Arc<str>> {
        let [.., Frame::Block { block, part, .. }, Frame::List { items, .. }] = &*self.stack else {
            return None;
        };
        let waits = part.catches(block) && items.iter().any(Item::may_be_fatal);
        waits
            .then(|| items.iter().rev().find_map(Item::first_task))
            .flatten()
            .map(|task| format!("{}.end.{}", task.path, self.stack.len()).into())
    }

    /// `meta: end_role`.
    pub(super) fn leave_role(&mut self) {
        while let Some(frame) = self.stack.pop() {
            match frame {
                Frame::Include { role: true, .. } => break,
                Frame::Block { block, .. } if block.is_role => break,
                _ => {}
            }
        }
    }

    /// Leaves the section: what follows is the proof of what it declared.
    pub(super) fn leave_section(&mut self) {
        self.stack.clear();
        self.stage = match self.stage {
            PlayStage::Tasks(section) | PlayStage::Handlers(section) => PlayStage::VerifyStart(section),
            other => other,
        };
    }
}

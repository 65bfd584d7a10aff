//! The parts of a play that a cursor is in the middle of: frames, failures, items, groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::event::TaskReport;
use crate::interpreter::action::Action;
use crate::interpreter::ledger::Owner;
use crate::playbook::{Block, Items, Task};
use crate::template::{Dict, Value};

/// The stages of a play, in order. Indexes are those of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlayStage {
    Facts,
    /// Entering the section of this index.
    Enter(usize),
    Tasks(usize),
    Handlers(usize),
    /// Choosing what to verify.
    VerifyStart(usize),
    Verify(usize),
    SectionEnd(usize),
    Finish,
}

#[derive(Debug)]
pub(super) enum Frame {
    List {
        items: Items,
        next: usize,
    },
    Block {
        block: Arc<Block>,
        part: BlockPart,
        failure: Option<Failure>,
    },
    /// Handlers that were notified; each at most once.
    Handlers(Flush),
    Task(Box<Active>),
    /// An include, below the list of its tasks; with the loop's variables of the task that includes them.
    Include {
        layer: Option<Arc<Dict>>,
        /// Whether they are a role's.
        role: bool,
        /// Which item of its loop brought them in, from 0.
        turn: usize,
    },
    Group(Box<ActiveGroup>),
}

/// A run of notified handlers.
#[derive(Debug)]
pub(super) struct Flush {
    pub done: BTreeSet<usize>,
    /// The one that ran last.
    pub last: usize,
    /// How often it began anew at the first one.
    pub pass: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockPart {
    Body,
    Rescue,
    Always,
}

impl BlockPart {
    /// Whether a failure in it leads to another part of the block.
    pub(super) fn catches(self, block: &Block) -> bool {
        match self {
            Self::Body => !block.rescue.is_empty() || !block.always.is_empty(),
            Self::Rescue => !block.always.is_empty(),
            Self::Always => false,
        }
    }
}

/// Why a host cannot go on with the next task.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub task: String,
    pub message: String,
    pub reach: Reach,
    /// What failed, for `ansible_failed_task`; none where it was no task of this host.
    pub by: Option<Arc<Task>>,
    /// What the task gave, for `ansible_failed_result`.
    pub result: Option<Value>,
}

impl Failure {
    pub(super) fn of(task: String, message: String) -> Self {
        Self { task, message, reach: Reach::Here, by: None, result: None }
    }
}

/// Which hosts a failure ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Here,
    /// Of all hosts, without a message: each copies the result of a task that one host did for all.
    Copied,
    /// Of all hosts: the others have to be told.
    Raised,
    /// Of another host.
    Elsewhere,
}

impl Reach {
    /// Whether it is a failure of this host that ends all hosts.
    pub(super) const fn ends_all(self) -> bool {
        matches!(self, Self::Copied | Self::Raised)
    }

    /// Of a task's own failure.
    pub(super) const fn of(task: &Task) -> Self {
        match task.any_errors_fatal {
            false => Self::Here,
            // Why: the others take its result over, the failure too.
            true if task.run_once => Self::Copied,
            true => Self::Raised,
        }
    }
}

/// A task that is being done, item by item.
#[derive(Debug)]
pub(super) struct Active {
    pub task: Arc<Task>,
    /// Which flush of handlers, or 0.
    pub round: u32,
    /// The loop's items; none without a loop.
    pub items: Option<Vec<Value>>,
    pub next: usize,
    pub reports: Vec<ItemEnd>,
    pub started: bool,
    /// A handler that only may have been notified.
    pub possible: bool,
    /// A person wants it to run.
    pub asked: bool,
    /// Which retry of `until` the item is in, from 0.
    pub retry: u32,
    /// Before the retry: how long to wait, in seconds, and how many tries are left.
    pub wait: Option<(u64, u32)>,
    /// What its items included. All of it follows when the last item is done.
    pub included: Vec<Included>,
}

/// Tasks of an include, with the loop's variables of the task that includes them.
#[derive(Debug)]
pub(super) struct Included {
    pub layer: Option<Arc<Dict>>,
    pub role: bool,
    pub turn: usize,
    pub items: Items,
}

/// The end of one item, for the report of the whole task.
#[derive(Clone, Debug)]
pub(super) struct ItemEnd {
    pub report: TaskReport,
    pub result: Value,
    /// Failed, and not ignored.
    pub failure: Option<Failure>,
    /// The handlers that it names, or why that has no value.
    pub notify: Result<Vec<String>, String>,
}

impl ItemEnd {
    /// Adds the item to its result, as in Ansible.
    pub(super) fn tell_item(&mut self, layer: &Dict) {
        if let Value::Map(result) = &mut self.result {
            Arc::make_mut(result).extend(layer);
        }
    }
}

/// A GPU group that is being done.
#[derive(Debug)]
pub(super) struct ActiveGroup {
    pub tasks: Arc<[Arc<Task>]>,
    pub items: Vec<MemberItem>,
    pub started: bool,
    /// A person wants it to run.
    pub asked: bool,
}

/// One item of the loop of one task of a GPU group; a task without a loop has one.
#[derive(Debug)]
pub(super) struct MemberItem {
    pub member: usize,
    pub owner: Owner,
    /// The loop's variables.
    pub layer: Option<Arc<Dict>>,
    pub state: ItemState,
}

#[derive(Debug)]
pub(super) enum ItemState {
    Skip(String),
    Possible(String),
    Fail(String),
    /// Index among the members of the operation.
    Sent(usize),
}

/// An action that was asked for and not answered, with what it is for.
#[derive(Debug)]
pub(super) struct Pending {
    pub action: Action,
    pub purpose: Purpose,
}

#[derive(Debug)]
pub(super) enum Purpose {
    Facts,
    /// The item of the task on top of the frames.
    Task,
    Group,
    Reboot,
    Reassert(usize),
    Verify(usize),
}

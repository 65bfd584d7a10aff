//! Where a cursor stands.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::event::TaskReport;
use crate::interpreter::action::Action;
use crate::interpreter::ledger::Owner;
use crate::playbook::{Block, Items, Task};
use crate::template::{Dict, Value};

/// The parts of a play, in order.
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
    Handlers {
        done: BTreeSet<usize>,
        /// The one that ran last.
        last: usize,
        /// How often it began anew at the first one.
        pass: u32,
    },
    Task(Box<Active>),
    /// Tasks of another file, with the loop's variables of the task that includes them; below their list.
    Include {
        layer: Option<Arc<Dict>>,
        /// Whether they are a role's.
        role: bool,
        /// Which item of its loop brought them in, from 0.
        turn: usize,
    },
    Group(Box<ActiveGroup>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockPart {
    Body,
    Rescue,
    Always,
}

/// Why a host cannot go on as written.
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

/// Whose a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Here,
    /// Everybody's, each by itself: a task that one host did for all.
    Copied,
    /// Everybody's: the others have to be told.
    Raised,
    /// Another host's.
    Elsewhere,
}

impl Reach {
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

/// A notified handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notification {
    pub handler: usize,
    /// Only the run will tell whether it is notified.
    pub possible: bool,
}

/// A task on the way, item by item.
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
    /// What its items brought in: all of it follows when the last of them is done.
    pub included: Vec<Brought>,
}

/// Tasks that an include brought in, with its loop's variables; whether they are a role's.
#[derive(Debug)]
pub(super) struct Brought {
    pub layer: Option<Arc<Dict>>,
    pub role: bool,
    pub turn: usize,
    pub items: Items,
}

/// What became of one item, for the report of the whole task.
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
    /// As in Ansible, what a loop's item gave names the item.
    pub(super) fn tell_item(&mut self, layer: &Dict) {
        if let Value::Map(result) = &mut self.result {
            Arc::make_mut(result).extend(layer);
        }
    }
}

/// A GPU group that is out.
#[derive(Debug)]
pub(super) struct ActiveGroup {
    pub tasks: Arc<[Arc<Task>]>,
    pub slots: Vec<Member>,
    pub started: bool,
    /// A person wants it to run.
    pub asked: bool,
}

/// One item of one member.
#[derive(Debug)]
pub(super) struct Member {
    pub member: usize,
    pub owner: Owner,
    /// The loop's variables.
    pub layer: Option<Arc<Dict>>,
    pub state: MemberState,
}

#[derive(Debug)]
pub(super) enum MemberState {
    Skip(String),
    Possible(String),
    Fail(String),
    /// Index among the members of the operation.
    Sent(usize),
}

/// What an action that is out was asked for.
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

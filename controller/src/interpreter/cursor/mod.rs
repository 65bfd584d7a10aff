//! The cursor: one host's place in one play.

mod ending;
mod feed;
mod frames;
mod gpu;
mod handlers;
mod job;
mod judge;
mod latch;
mod looping;
mod next;
mod passes;
mod position;
mod prediction_gaps;
mod reports;
mod retry;
mod setup;
mod state;
mod steer;
mod synchronisation;
mod task;
mod titles;
mod unwind;
mod variables;

use std::sync::Arc;

use gpufleet_protocol::op::{GpuGroup, GpuMember};
use gpufleet_protocol::{Blocker, Disruption, OpOutcome};
use serde::{Deserialize, Serialize};

use super::action::{Action, Mode};
use super::files::Files;
use super::snapshots::HostSnapshots;
use crate::event::TaskReport;
use crate::index::PlayIndex;
use crate::playbook::{Play, Program, SectionName, TagFilter, Task};
use crate::template::{Dict, Scope, Value};

pub use latch::Copied;
pub use position::Position;

use ending::Ending;
use frames::Frames;
use handlers::Handlers;
use latch::Latch;
use passes::LedgerPasses;
use prediction_gaps::PredictionGaps;
use reports::Reports;
use setup::{Setup, Switches};
use state::Pending;
use synchronisation::Synchronisation;
use variables::Variables;

/// What is known of a host before its first task.
#[derive(Clone, Debug, Default)]
pub struct HostContext {
    pub host: Arc<str>,
    /// From the inventory, all groups merged.
    pub vars: Arc<Dict>,
    /// `groups`, `hostvars`, `inventory_hostname` and their like.
    pub magic: Arc<Dict>,
    /// How it is reached where neither the play nor a variable says: `ansible_connection`, `ansible_user`.
    pub reached: Arc<Dict>,
    /// From the command line; they win over everything else.
    pub extra: Arc<Dict>,
    /// How many `-v`.
    pub verbosity: u32,
    /// `-b`: tasks become another user unless they say otherwise.
    pub become_default: bool,
    pub become_user: Option<String>,
}

/// What a host carries from play to play: facts, registers and `set_fact`.
#[derive(Clone, Debug, Default)]
pub struct HostVars {
    pub facts: Arc<Dict>,
    pub set: Arc<Dict>,
    /// What `include_vars` read.
    pub included: Arc<Dict>,
    /// What earlier plays of the run declared of its GPUs, for `gpu_keep`.
    pub gpus: Arc<GpuGroup>,
}

/// What comes next for the host.
#[derive(Debug)]
pub enum Step {
    /// Do this, then feed its result. Asked again before that, the answer is the same.
    Run(Box<Action>),
    /// These tasks are done; nothing to feed.
    Report(Vec<TaskReport>),
    /// A linear play: go on when no other live host of the batch is before this place.
    Barrier { task: Arc<str>, at: Position },
    /// A task that runs on one host for all (`run_once`): feed [`Fed::Latch`].
    Latch { key: Arc<str> },
    /// `--step`: a person says whether this task runs; feed [`Fed::Asked`].
    Ask {
        /// Its path in the play; of a GPU group that of the first task.
        task: Arc<str>,
        title: String,
    },
    /// A section with its handlers and verification is over.
    SectionEnd { section: SectionName },
    /// Nothing more to do in this play; further calls say the same.
    End(End),
}

#[derive(Clone, Debug)]
pub struct End {
    pub state: EndState,
    /// The failed task wants the whole play to stop.
    pub fatal: bool,
    /// `meta: end_play`: the play ends for every host.
    pub end_play: bool,
    /// `meta: end_batch`: the batch ends for every host.
    pub end_batch: bool,
    /// `meta: clear_host_errors`: hosts that failed before come back with the next play.
    pub cleared_errors: bool,
    /// What could not be read, one sentence each: the host does not count as compliant.
    pub unknown: Vec<String>,
    pub vars: HostVars,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum EndState {
    Done,
    Failed {
        task: String,
        message: String,
    },
    Unreachable {
        reason: String,
    },
    Held {
        reason: String,
    },
    /// A failure of another host ended it, and no rescue took care of that.
    Stopped,
    /// Everything is written, but some of it becomes current only by an activation that the play does not make.
    PendingActivation {
        class: Disruption,
        reasons: Vec<String>,
        /// What to do, for people.
        next: String,
    },
}

/// The answer to a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "fed", content = "with")]
pub enum Fed {
    Outcome(Box<OpOutcome>),
    Unreachable {
        reason: String,
    },
    /// No permit was given, or a person has to decide.
    Held {
        reason: String,
        /// Who would have been disturbed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blockers: Vec<Blocker>,
    },
    /// The node refused the operation.
    Refused {
        reason: String,
    },
    /// The node is back with a new boot id (in predictions: would be).
    Rebooted,
    /// Not done on a person's word.
    Skipped {
        reason: String,
    },
    /// To a latch: run it here (none), or take another host's result.
    Latch(Option<Copied>),
    /// To [`Step::Ask`].
    Asked {
        run: bool,
    },
    /// What was asked is done and has no result (waiting, reconnecting).
    Done,
    /// To a barrier: another host ended the play or the batch for all hosts.
    Ended,
    /// To a barrier: another host failed, in a play or block that ends for all hosts on any failure (`any_errors_fatal`).
    Halted,
}

impl Fed {
    /// Creates the answer for what was not permitted.
    pub fn held(reason: impl Into<String>) -> Self {
        Self::Held { reason: reason.into(), blockers: Vec::new() }
    }

    /// Names who would have been disturbed, where it was not permitted.
    #[must_use]
    pub fn naming(mut self, who: Vec<Blocker>) -> Self {
        if let Self::Held { blockers, .. } = &mut self {
            *blockers = who;
        }
        self
    }
}

/// One host's place in one play. Deterministic: replaying the same feeds leads to the same place.
pub struct Cursor {
    setup: Setup,
    variables: Variables,
    frames: Frames,
    handlers: Handlers,
    others: Synchronisation,
    latch: Latch,
    passes: LedgerPasses,
    gaps: PredictionGaps,
    reports: Reports,
    ending: Ending,
    /// What was asked for and not answered.
    pending: Option<Pending>,
}

impl Cursor {
    /// Puts a host before the first task of a play; none when the program has no such play.
    pub fn new(
        program: &Arc<Program>,
        play: PlayIndex,
        host: Arc<HostContext>,
        vars: HostVars,
        mode: Mode,
        tags: Arc<TagFilter>,
        files: Arc<dyn Files>,
    ) -> Option<Self> {
        let index = play;
        let play = Arc::clone(program.plays.get(index.place())?);
        let (program, switches) = (Arc::clone(program), Switches::default());
        let setup = Setup { program, play, index, host, mode, tags, files, switches };
        Some(Self {
            variables: Variables::new(&setup, vars),
            frames: Frames::new(),
            handlers: Handlers::new(setup.play.handlers.clone()),
            others: Synchronisation::new(Arc::clone(&setup.host.host)),
            latch: Latch::default(),
            passes: LedgerPasses::default(),
            gaps: PredictionGaps::default(),
            reports: Reports::default(),
            ending: Ending::default(),
            pending: None,
            setup,
        })
    }

    /// What templates know of the other hosts: `hostvars`, the hosts of the play and of the batch.
    pub fn set_peers(&mut self, peers: Arc<Dict>, snapshots: Option<Arc<HostSnapshots>>) {
        self.variables.set_peers(peers);
        self.others.set_snapshots(snapshots);
    }

    /// Whether GPU groups leave their activation to a reboot that the play makes anyway.
    pub fn set_defer_to_reboot(&mut self, defer: bool) {
        self.setup.switches.defer_to_reboot = defer;
    }

    /// What `ansible_diff_mode` is.
    pub fn set_diff_mode(&mut self, diff: bool) {
        self.variables.set_diff_mode(diff);
    }

    /// Whether a prediction runs commands that say `check_mode: false`.
    pub fn set_runs_commands(&mut self, runs: bool) {
        self.setup.switches.runs_commands = runs;
    }

    /// Whether a person is asked before each task (`--step`).
    pub fn set_stepping(&mut self, stepping: bool) {
        self.setup.switches.stepping = stepping;
    }

    /// What is written and waits for a reset or reboot.
    pub fn awaiting(&self) -> Vec<gpufleet_protocol::Awaiting> {
        self.passes.ledger().awaiting().collect()
    }

    /// Whether the host failed, since this was asked last, in a way that ends all hosts, whether or not a rescue takes care of
    /// it. The place is the last one where a host may not have been told.
    pub fn raised(&mut self) -> Option<Position> {
        self.others.take_raised()
    }

    /// After a `run_once` task ran here: its result for the other hosts.
    pub fn latch_result(&mut self) -> Option<Copied> {
        self.latch.take_result()
    }

    /// What this run has declared of the GPUs up to here.
    fn declared_gpus(&self) -> Vec<GpuMember> {
        self.passes.declared_gpus(&self.variables.host().gpus).members
    }

    /// The variables that a task sees; `top` holds the loop's.
    fn scope(&self, task: &Task, top: Option<Arc<Dict>>) -> Arc<Scope> {
        self.variables.scope(&self.setup, task, top, self.frames.included_layers())
    }

    /// What is seen before any task.
    fn base_scope(&self) -> Arc<Scope> {
        self.variables.base_scope(&self.setup)
    }
}

/// Variables that are the same for all hosts of a play. `hostvars` has them for each of them.
pub(crate) fn for_all(play: &Play, mode: Mode, tags: &TagFilter, files: &dyn Files) -> Dict {
    [
        ("ansible_check_mode", Value::Bool(mode == Mode::Predict)),
        ("ansible_diff_mode", Value::Bool(false)),
        ("playbook_dir", Value::str(files.playbook_dir(&play.directory))),
        ("ansible_run_tags", words(&tags.only, "all")),
        ("ansible_skip_tags", words(&tags.skip, "")),
    ]
    .into_iter()
    .collect()
}

/// A list of words; one word where there is none, unless that is empty.
fn words(list: &[String], otherwise: &str) -> Value {
    let otherwise = Some(otherwise).filter(|word| list.is_empty() && !word.is_empty());
    Value::list(list.iter().map(String::as_str).chain(otherwise).map(Value::str).collect())
}

//! The cursor: one host's place in one play.

mod feed;
mod gpu;
mod job;
mod judge;
mod looping;
mod position;
mod retry;
mod scope;
mod state;
mod steer;
mod task;
mod walk;

use std::sync::Arc;

use gpufleet_protocol::{Disruption, OpOutcome};
use serde::{Deserialize, Serialize};

use super::action::{Action, Mode};
use super::files::{FileKind, Files};
use super::prepare;
use super::snapshots::{DelegatedFacts, HostSnapshots, Taken};
use crate::event::TaskReport;
use crate::index::PlayIndex;
use crate::playbook::{Play, Program, Role, SectionName, TagFilter, Task};
use crate::template::{self, Dict, Value};

pub use position::Position;
use state::{Frame, Pending, PlayStage};

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
}

/// What comes next for the host.
#[derive(Debug)]
pub enum Step {
    /// Do this, then feed its result. Asked again before that, the answer is the same.
    Run(Box<Action>),
    /// These tasks are done; nothing to feed.
    Report(Vec<TaskReport>),
    /// A linear play: go on when no other live host of the batch is before it any more.
    Barrier { task: Arc<str>, at: Position },
    /// A task that runs on one host: feed [`Fed::Latch`].
    Latch { key: Arc<str> },
    /// `--step`: a person says whether this task runs; feed [`Fed::Asked`].
    Ask {
        /// Its path in the play; that of the first one of a GPU group.
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
    /// A failure elsewhere ended it, and no rescue of its own took care of that.
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
    /// To a barrier: another host ended the play or the batch for everybody.
    Ended,
    /// To a barrier: another host failed where any failure is everybody's.
    Halted,
}

/// The result of a `run_once` task, for the other hosts of the batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Copied {
    /// Variables that it set, as JSON.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// Variables that it set in a prediction, and whose values only the run will tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    pub failed: bool,
}

impl Copied {
    fn note(&mut self, name: &str, value: &Value) {
        if value.has_unknown() {
            self.unknown.push(name.to_owned());
        } else {
            self.variables.insert(name.to_owned(), value.to_marked_json());
        }
    }
}

/// One host's place in one play. Deterministic: replaying the same feeds leads to the same place.
pub struct Cursor {
    program: Arc<Program>,
    play: Arc<Play>,
    index: PlayIndex,
    host: Arc<HostContext>,
    /// What holds where nothing else says anything.
    floor: Arc<Dict>,
    mode: Mode,
    tags: Arc<TagFilter>,
    files: Arc<dyn Files>,
    vars: HostVars,
    /// Tasks that a secret went into on this host: what they find out and set is secret too.
    sealed: std::collections::HashSet<Arc<str>>,
    /// Variables that the run sets: check mode, names of the play.
    run_vars: Arc<Dict>,
    /// What the run knows of the other hosts of the play.
    peers: Arc<Dict>,
    /// Where hosts tell each other their variables.
    snapshots: Option<Arc<HostSnapshots>>,
    /// Files of variables whose names hang on the host's.
    late_vars: Arc<Dict>,
    /// What is wrong with them.
    late_error: Option<String>,
    /// Those of the play, then those of roles that were included.
    handlers: Vec<Arc<Task>>,
    /// Roles whose variables all tasks see: the play's, then those that were included so.
    roles: Vec<Arc<Role>>,
    defer_to_reboot: bool,
    /// A person is asked before each task.
    stepping: bool,
    /// A prediction runs commands that say `check_mode: false`.
    runs_commands: bool,
    stage: PlayStage,
    frames: Vec<Frame>,
    pending: Option<Pending>,
    queue: Vec<TaskReport>,
    /// Names of handlers that were notified, until handlers run.
    waiting: Vec<(String, bool)>,
    notified: Vec<state::Notification>,
    /// Roles that ran, with what they were given.
    roles_run: std::collections::HashSet<Arc<str>>,
    flushes: u32,
    ledger: super::ledger::Ledger,
    /// Ledger entries to plan again before anything else.
    reassert: std::collections::VecDeque<usize>,
    activations: u32,
    /// Ledger entries still to be verified.
    verify: std::collections::VecDeque<usize>,
    verifications: u32,
    /// Entries that later tasks may have changed, to be looked at before a reboot mixes that with what it takes.
    unsettled: std::collections::VecDeque<usize>,
    /// A prediction met a command that only the run will carry out.
    commands_ahead: bool,
    /// Results of tasks that a prediction says would change something: only the run will tell all of them.
    foretold: std::collections::HashSet<Arc<str>>,
    /// Something was applied since the last verification.
    touched: bool,
    passed_barrier: Option<Arc<str>>,
    /// Where the barrier is that it passed last.
    passed: Position,
    /// What of others' gifts is among its variables.
    taken: Taken,
    open_latch: Option<Arc<str>>,
    /// The latch that this host won, until its task begins.
    decided_latch: Option<Arc<str>>,
    latched: Option<Copied>,
    /// Whether the task whose result `latched` gathers has ended.
    latch_settled: bool,
    unknown: Vec<String>,
    /// What templates warned of since a task's end was told.
    warned: Vec<String>,
    failed: Option<state::Failure>,
    fatal: bool,
    /// A failure here is everybody's, and nobody has asked yet.
    raised: Option<Position>,
    /// The barrier at which the others hear of it.
    owed_barrier: Option<(Arc<str>, Position)>,
    end_play: bool,
    end_batch: bool,
    cleared_errors: bool,
    /// The play ends for this host after the section it is in.
    ending: bool,
    end: Option<EndState>,
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
        let mut run_vars = for_all(&play, mode, &tags, &*files);
        run_vars.insert("ansible_play_name", Value::str(&play.name));
        run_vars.insert("ansible_verbosity", Value::Int(host.verbosity.into()));
        run_vars.insert("inventory_hostname", Value::str(&host.host));
        let roles_of_play = |keep: fn(&Role) -> bool| {
            let names = play.roles.iter().filter(|role| keep(role)).map(|role| Value::str(&role.name));
            Value::list(names.collect())
        };
        run_vars.insert("ansible_play_role_names", roles_of_play(|role| !role.is_dependency()));
        run_vars.insert("role_names", roles_of_play(|role| !role.is_dependency()));
        run_vars.insert("ansible_dependent_role_names", roles_of_play(Role::is_dependency));
        run_vars.insert("ansible_role_names", roles_of_play(|_| true));
        // Why: as in Ansible, facts that were not read are no mistake to look for.
        let mut floor: Dict =
            [("ansible_facts", Value::Map(Arc::default())), ("ansible_host", Value::str(&host.host))]
                .into_iter()
                .collect();
        floor.extend(&host.reached);
        for (name, said) in [("ansible_connection", &play.connection), ("ansible_user", &play.remote_user)] {
            if let Some(said) = said {
                floor.insert(name, said.clone());
            }
        }
        let (handlers, roles) = (play.handlers.clone(), play.roles.clone());
        let mut cursor = Self {
            floor: Arc::new(floor),
            program: Arc::clone(program),
            play,
            index,
            host,
            mode,
            tags,
            files,
            vars,
            sealed: std::collections::HashSet::new(),
            run_vars: Arc::new(run_vars),
            peers: Arc::default(),
            snapshots: None,
            late_vars: Arc::default(),
            late_error: None,
            handlers,
            roles,
            defer_to_reboot: false,
            stepping: false,
            runs_commands: false,
            stage: PlayStage::Facts,
            frames: Vec::new(),
            pending: None,
            queue: Vec::new(),
            waiting: Vec::new(),
            notified: Vec::new(),
            roles_run: std::collections::HashSet::new(),
            flushes: 0,
            ledger: super::ledger::Ledger::default(),
            reassert: std::collections::VecDeque::new(),
            activations: 0,
            verify: std::collections::VecDeque::new(),
            verifications: 0,
            unsettled: std::collections::VecDeque::new(),
            commands_ahead: false,
            foretold: std::collections::HashSet::new(),
            touched: false,
            passed_barrier: None,
            passed: Position::default(),
            taken: Taken::new(),
            open_latch: None,
            decided_latch: None,
            latched: None,
            latch_settled: false,
            unknown: Vec::new(),
            warned: Vec::new(),
            failed: None,
            fatal: false,
            raised: None,
            owed_barrier: None,
            end_play: false,
            end_batch: false,
            cleared_errors: false,
            ending: false,
            end: None,
        };
        cursor.read_late_files();
        Some(cursor)
    }

    /// What templates know of the other hosts: `hostvars`, the hosts of the play and of the batch.
    pub fn set_peers(&mut self, peers: Arc<Dict>, snapshots: Option<Arc<HostSnapshots>>) {
        self.peers = peers;
        self.snapshots = snapshots;
    }

    fn looks_at_others(&self, task: &Task) -> bool {
        task.asks_for_others || self.play.vars_ask_for_others()
    }

    /// Takes over what others set for this host, and what they have told by now if a task asks for it.
    fn look_at_others(&mut self, task: &Task) {
        let Some(snapshots) = self.snapshots.clone() else { return };
        if let Some(given) = snapshots.take(&self.host.host, &self.passed, &mut self.taken) {
            Arc::make_mut(&mut self.vars.facts).extend(&given.facts);
            Arc::make_mut(&mut self.vars.set).extend(&given.set);
        }
        if self.looks_at_others(task) {
            let others = snapshots.at(&self.passed, &self.host.host);
            Arc::make_mut(&mut self.peers).extend(&others);
        }
    }

    /// Sets variables of another host (`delegate_facts`); `false` where this host is meant.
    fn give(&self, to: Option<&str>, given: &DelegatedFacts) -> bool {
        match (to, &self.snapshots) {
            (Some(host), Some(snapshots)) => snapshots.give(&self.host.host, &self.passed, host, given),
            (Some(_), None) => {}
            (None, _) => return false,
        }
        true
    }

    /// Entries of `vars_files` with templates: of each the first file that is there.
    fn read_late_files(&mut self) {
        let mut merged = Dict::default();
        for late in &Arc::clone(&self.play).late_files {
            let scope = self.base_scope();
            let (mut found, mut tried) = (None, Vec::new());
            for name in &late.names {
                let name = match template::resolve(name, &scope) {
                    Ok(name) => name.to_text(),
                    Err(error) => {
                        tried.push(error.to_string());
                        continue;
                    }
                };
                let search = [self.play.directory.clone()];
                match self.files.read(FileKind::Vars, &search, &name) {
                    Ok(file) => {
                        found = Some(file);
                        break;
                    }
                    Err(why) => tried.push(why),
                }
            }
            let read = found.ok_or_else(|| tried.join("; ")).and_then(|file| prepare::variables(&file));
            match read {
                Ok(variables) => {
                    for (name, value) in variables {
                        merged.insert(name, value);
                    }
                    self.late_vars = Arc::new(merged.clone());
                }
                Err(why) => {
                    let span = &late.span;
                    self.late_error.get_or_insert(format!(
                        "{}:{}: `vars_files`: {why}",
                        span.file(),
                        span.line
                    ));
                }
            }
        }
    }

    /// Whether GPU groups leave their activation to a reboot that the play makes anyway.
    pub fn set_defer_to_reboot(&mut self, defer: bool) {
        self.defer_to_reboot = defer;
    }

    /// What `ansible_diff_mode` is.
    pub fn set_diff_mode(&mut self, diff: bool) {
        Arc::make_mut(&mut self.run_vars).insert("ansible_diff_mode", Value::Bool(diff));
    }

    /// Whether a prediction runs commands that say `check_mode: false`.
    pub fn set_runs_commands(&mut self, runs: bool) {
        self.runs_commands = runs;
    }

    /// Whether a person is asked before each task (`--step`).
    pub fn set_stepping(&mut self, stepping: bool) {
        self.stepping = stepping;
    }

    /// What is written and waits for a reset or reboot.
    pub fn awaiting(&self) -> Vec<gpufleet_protocol::Awaiting> {
        self.ledger.awaiting().cloned().collect()
    }

    /// Whether something failed here, since this was asked last, that is a failure of all other hosts too, whether or not
    /// a rescue takes care of it: up to where those are who may not have heard of it.
    pub fn raised(&mut self) -> Option<Position> {
        self.raised.take()
    }

    /// After a `run_once` task ran here: its result for the other hosts.
    pub fn latch_result(&mut self) -> Option<Copied> {
        // Why: a task that has several answers, or none yet, has no result to hand on.
        std::mem::take(&mut self.latch_settled).then(|| self.latched.take()).flatten()
    }
}

/// A list of words; one word where there is none, unless that is empty.
/// What is the same for all hosts of a play, and which `hostvars` has of each of them.
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

fn words(list: &[String], otherwise: &str) -> Value {
    let otherwise = Some(otherwise).filter(|word| list.is_empty() && !word.is_empty());
    Value::list(list.iter().map(String::as_str).chain(otherwise).map(Value::str).collect())
}

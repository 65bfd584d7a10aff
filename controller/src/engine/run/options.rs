//! What a run does and how, and what it knows of each of its plays.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use gpufleet_protocol::RunEpoch;

use crate::{
    engine::{
        node::settings::Overrules,
        ports::{
            confirm::Stepper,
            keep_signer::KeepSigner,
            scheduler::{EarlierRuns, Scheduler},
        },
        replay::durations::DurationHistory,
    },
    event::Verb,
    index::PlayIndex,
    interpreter::HostContext,
    playbook::{Overrides, TagFilter},
    rollout::Amount,
};

/// What a run does and how.
#[derive(Clone)]
pub struct Options {
    pub verb: Verb,
    /// Nodes worked on at once.
    pub forks: usize,
    pub rollout: RolloutOptions,
    pub tasks: TaskOptions,
    /// This run, with its epoch in milliseconds since 1970: a newer run fences an older one.
    pub holder: RunEpoch,
    /// Goes on with what another process began.
    pub resumed: bool,
    /// Only leads what is under way to a safe point, and begins nothing (`gpufleet abort`).
    pub winds_up: bool,
    pub overrules: Overrules,
    /// The boot of the machine that gpufleet itself runs on: a node in the same one is never disturbed.
    pub own_boot: Option<String>,
    pub earlier: EarlierRuns,
}

/// What the command line says over the plays' policies.
#[derive(Clone, Default)]
pub struct RolloutOptions {
    /// Wins over the plays' `max_unavailable`.
    pub max_unavailable: Option<Amount>,
    pub overrides: Overrides,
    /// Whether a limit leaves hosts of the plays out: of the others a share is at least one.
    pub limited: bool,
}

/// How tasks are done.
#[derive(Clone)]
pub struct TaskOptions {
    /// Seconds that a task may take if it does not say.
    pub timeout_s: u64,
    /// `--become`: for plays that do not say.
    pub default_become: bool,
    pub tags: Arc<TagFilter>,
    /// Whether tasks see that differences are wanted (`ansible_diff_mode`).
    pub diff: bool,
    /// Whether a reading runs commands that say `check_mode: false`, as a person asked for (`run --check`).
    pub runs_commands: bool,
    /// Whether the play that reads what checks judge runs commands of own checks.
    pub own_commands: bool,
    /// Asked before each task, if a person wants that.
    pub stepper: Option<Arc<dyn Stepper>>,
    /// The last play that changes what nodes keep.
    pub keeps: Option<PlayIndex>,
    /// Signs what nodes keep; none where no task does.
    pub keep_signer: Option<Arc<dyn KeepSigner>>,
}

/// What a run knows of each of its plays. Lists have an entry for each play, in order.
pub struct PlayInputs {
    /// Hosts, in order, after patterns and limits.
    pub hosts: Vec<Vec<String>>,
    /// Hosts that limits leave out: their outages count if the scheduler tells of them.
    pub neighbours: Vec<Vec<String>>,
    /// What the inventory says of each host; a play beyond the end has the first entry.
    pub contexts: Vec<Arc<HashMap<String, Arc<HostContext>>>>,
    /// By which of the connector's ways it logs in; a play beyond the end by the first one.
    pub logins: Vec<u16>,
    /// Who drains the nodes; none if they need not be drained.
    pub schedulers: Vec<Option<Arc<Scheduler>>>,
    /// What earlier journals show; plays beyond the end are not known.
    pub durations: Vec<DurationHistory>,
}

impl PlayInputs {
    pub(crate) fn hosts_of(&self, play: PlayIndex) -> &[String] {
        self.hosts.get(play.place()).map(Vec::as_slice).unwrap_or_default()
    }

    pub(crate) fn neighbours_of(&self, play: PlayIndex) -> &[String] {
        self.neighbours.get(play.place()).map(Vec::as_slice).unwrap_or_default()
    }

    /// What a play knows of each host.
    pub(crate) fn contexts_of(&self, play: PlayIndex) -> &Arc<HashMap<String, Arc<HostContext>>> {
        static NOBODY: LazyLock<Arc<HashMap<String, Arc<HostContext>>>> = LazyLock::new(Arc::default);
        self.contexts.get(play.place()).or_else(|| self.contexts.first()).unwrap_or(&NOBODY)
    }

    pub(crate) fn login_of(&self, play: PlayIndex) -> u16 {
        self.logins.get(play.place()).copied().unwrap_or_default()
    }

    pub(crate) fn scheduler_of(&self, play: PlayIndex) -> Option<Arc<Scheduler>> {
        self.schedulers.get(play.place()).cloned().flatten()
    }

    pub(crate) fn durations_of(&self, play: PlayIndex) -> DurationHistory {
        self.durations.get(play.place()).cloned().unwrap_or_default()
    }
}

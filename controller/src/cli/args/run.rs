//! `run`, `plan`, `audit`, `adopt` and `locks`: commands that carry playbooks.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{
    AskedPlaybooks, Connection, Escalation, Format, InventorySource, Keeping, PlaybookSource, StoreChoice,
    TaskChoice,
};

/// As in a play.
const MAX_SOAK_S: u64 = 30 * 24 * 60 * 60;

#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub struct RunArgs {
    #[command(flatten)]
    pub source: PlaybookSource,
    /// Only tells what would change, as `plan` does.
    #[arg(short = 'C', long, help_heading = "How it goes")]
    pub check: bool,
    /// With --check: exit code 3 when something would change.
    #[arg(long, requires = "check", help_heading = "How it goes")]
    pub fail_on_change: bool,
    /// Shows the text changes of files, and other changes as `from -> to`.
    #[arg(short = 'D', long, help_heading = "How it goes")]
    pub diff: bool,
    /// Asks before each task whether it runs: once for all nodes.
    #[arg(long, help_heading = "How it goes", conflicts_with = "check")]
    #[serde(default)]
    pub step: bool,
    /// Does not ask before nodes are disturbed; needed where there is no terminal to ask on.
    #[arg(short, long, help_heading = "How it goes")]
    pub yes: bool,
    #[command(flatten)]
    #[serde(skip)]
    pub listing: Listing,
    #[command(flatten)]
    pub bounds: Bounds,
    /// How long a wave is watched before the next begins, such as `10m`; wins over the plays'.
    #[arg(long, value_name = "TIME", value_parser = soak, help_heading = "Waves and safety")]
    pub soak: Option<u64>,
    /// Nodes that may fail before nothing new starts; wins over the plays'.
    #[arg(long, value_name = "N", help_heading = "Waves and safety")]
    pub max_failures: Option<u32>,
    #[command(flatten)]
    pub overruling: Overruling,
    #[command(flatten)]
    pub documents: Documents,
    #[command(flatten)]
    pub connection: Connection,
}

/// What is listed in place of a run; no node is contacted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Only shows, contacts nobody")]
pub struct Listing {
    /// Lists the hosts of each play.
    #[arg(long)]
    pub list_hosts: bool,
    /// Lists the tasks that would run.
    #[arg(long)]
    pub list_tasks: bool,
    /// Lists the tags of each play.
    #[arg(long)]
    pub list_tags: bool,
    /// Reads and checks the playbooks, and nothing else.
    #[arg(long)]
    pub syntax_check: bool,
}

impl Listing {
    pub const fn is_wanted(self) -> bool {
        self.list_hosts || self.list_tasks || self.list_tags || self.syntax_check
    }
}

/// What is written about a run.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Output")]
pub struct Documents {
    /// What goes to standard output; `human` unless given.
    #[arg(long, value_name = "FORMAT", visible_alias = "output")]
    #[serde(default)]
    pub format: Option<Format>,
    /// Shows how long each task took, the slowest first, and its slowest node.
    #[arg(long)]
    #[serde(default)]
    pub profile: bool,
    /// Writes the results as JUnit XML to this file: a suite a play, a case a task of a node.
    #[arg(long, value_name = "FILE")]
    #[serde(default)]
    pub junit: Option<PathBuf>,
}

impl Documents {
    pub fn format(&self) -> Format {
        self.format.unwrap_or_default()
    }
}

/// When nodes may be taken out, and how many.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Waves and safety")]
pub struct Bounds {
    /// Nodes that may be out of service at once, for whatever reason; overrides the plays'.
    #[arg(long, value_name = "N|%", value_parser = amount)]
    pub max_unavailable: Option<gpufleet::rollout::Amount>,
    /// When nodes may be disturbed, such as "Sat 02:00-06:00 Europe/Berlin"; wins over the plays'.
    #[arg(long, value_name = "TEXT", value_parser = window)]
    pub window: Option<gpufleet::rollout::Window>,
}

/// Safety checks that a person overrules.
#[derive(Clone, Copy, Debug, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Waves and safety")]
pub struct Overruling {
    /// Disturb nodes that are busy, or of which this is unknown; each overruled check is shown and recorded.
    #[arg(long)]
    pub force: bool,
    /// Take a scheduler's lock over from another run; only when its gpufleet is known to be gone.
    #[arg(long)]
    pub steal: bool,
}

#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub source: PlaybookSource,
    /// Shows every change, with the text changes of files.
    #[arg(short = 'D', long, help_heading = "Output")]
    pub diff: bool,
    /// Shows one node in full.
    #[arg(long, value_name = "HOST", help_heading = "Output")]
    pub node: Option<String>,
    /// Exit code 3 when something would change.
    #[arg(long, help_heading = "Output")]
    pub fail_on_change: bool,
    #[command(flatten)]
    pub listing: Listing,
    #[command(flatten)]
    pub bounds: Bounds,
    #[command(flatten)]
    pub documents: Documents,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Clone, Debug, Args)]
pub struct AuditArgs {
    /// Playbooks whose tasks are compared with the nodes.
    #[arg(value_name = "PLAYBOOK")]
    pub playbooks: Vec<PathBuf>,
    #[command(flatten)]
    pub checks: Checks,
    /// Exit code 3 also where commands alone were not judged: only a run can tell what they do.
    #[arg(long, help_heading = "Health and compliance")]
    pub strict: bool,
    #[command(flatten, next_help_heading = "Output")]
    pub store: StoreChoice,
    #[command(flatten)]
    pub choice: TaskChoice,
    #[command(flatten)]
    pub inventory: InventorySource,
    #[command(flatten)]
    pub escalation: Escalation,
    /// Folders in which roles are looked for, from the settings.
    #[arg(skip)]
    pub roles_path: Vec<String>,
    #[command(flatten)]
    pub keep: Keeping,
    #[command(flatten)]
    pub listing: Listing,
    #[command(flatten)]
    pub documents: Documents,
    #[command(flatten)]
    pub connection: Connection,
}

impl AuditArgs {
    /// The playbooks that were given.
    pub fn source(&self) -> PlaybookSource {
        PlaybookSource {
            playbooks: self.playbooks.clone(),
            choice: self.choice.clone(),
            inventory: self.inventory.clone(),
            escalation: self.escalation.clone(),
            text: None,
            roles_path: self.roles_path.clone(),
            keep: self.keep.clone(),
        }
    }
}

/// Which checks of the catalogue judge the nodes.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Health and compliance")]
pub struct Checks {
    /// Judges the health of the nodes by the baseline `core`; needs no playbook.
    #[arg(long)]
    pub health: bool,
    /// Judges the nodes by this baseline: `training`, `inference`, … or a YAML file; may be given several times.
    #[arg(long, value_name = "NAME|FILE")]
    pub baseline: Vec<String>,
    /// Findings that a person accepted for a time, with owner, reason and end.
    #[arg(long, value_name = "FILE")]
    pub waivers: Option<PathBuf>,
    /// Also reads what takes long: InfoROM checksums, each NVLink.
    #[arg(long)]
    pub deep: bool,
}

impl Checks {
    /// Whether nodes are judged by checks at all.
    pub fn are_wanted(&self) -> bool {
        self.health || !self.baseline.is_empty()
    }
}

#[derive(Clone, Debug, Args)]
pub struct AdoptArgs {
    /// Only what this run left; without it what any lost run left.
    #[arg(long = "run", value_name = "RUN")]
    pub run: Option<String>,
    #[command(flatten)]
    pub run_args: RunArgs,
}

#[derive(Clone, Debug, Args)]
pub struct LocksArgs {
    #[command(flatten)]
    pub source: AskedPlaybooks,
    #[command(flatten)]
    pub connection: Connection,
}

fn window(text: &str) -> Result<gpufleet::rollout::Window, String> {
    gpufleet::rollout::Window::parse(text).map_err(|error| error.to_string())
}

/// A duration that may be none at all.
fn soak(text: &str) -> Result<u64, String> {
    gpufleet_protocol::lenient::parse_seconds(text)
        .filter(|seconds| *seconds <= MAX_SOAK_S)
        .ok_or_else(|| "a duration such as 90s, 20m or 2h, and at most 30d".to_owned())
}

fn amount(text: &str) -> Result<gpufleet::rollout::Amount, String> {
    gpufleet::rollout::Amount::parse(text)
        .ok_or_else(|| "a number of nodes or a share such as 10%".to_owned())
}

//! Events: the only way to learn about a run.
//!
//! They are owned, serialisable and versioned; the terminal, `--format jsonl`, the report and the journal are sinks
//! of the same stream. This module owns their shape, and knows nothing of any sink or of who tells of events. What only a
//! resume reads is no event: it is the [journal](crate::journal)'s.

mod audit;
mod drain;
mod judged;
mod node;
mod op_id;
mod policy;
mod task;
mod verb;

pub use audit::{AuditScope, HEALTH, Judgement};
pub use drain::DrainStep;
pub use judged::Judged;
pub use node::{NodeOutcome, NodeState};
pub use op_id::{OpId, OpIdError};
pub use policy::{DomainShape, DurationOrigin, OutagePart, PolicyShape, WorstCase, WorstPart};
pub use task::{Phase, Position, RecapCounts, TaskReport, TaskStatus, UNMET};
pub use verb::{ResultScreen, Verb, VerbInfo};

use std::collections::BTreeMap;

use gpufleet_protocol::keep::KeptReport;
use gpufleet_protocol::{
    Certainty, Change, Disruption, Layer, Property, Subject, change, facts::Facts, message::IdleReport,
};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::index::PlayIndex;

/// Version of the shapes of events and of a journal's records; readers refuse a journal of a newer one.
///
/// 2: a change says its subject, property and typed values, where 1 had texts; a task's position has its true column; and
/// what a play began with is a record of its own. Journals of 1 are still read.
pub const EVENT_VERSION: u32 = 2;

/// One thing that happened, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Event {
    /// Counts from 0: in `--format jsonl` the lines of that output, in a journal its records, some of which are no
    /// events.
    pub seq: u64,
    /// RFC 3339.
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", tag = "event", content = "with")]
pub enum What {
    RunStarted(RunStarted),
    PlayStarted(PlayStarted),
    /// Everything is read; the next wave waits for the maintenance window.
    AwaitsWindow {
        play: PlayIndex,
        #[schemars(with = "String")]
        opens: Timestamp,
    },
    /// Nodes of one wave may begin.
    WaveStarted {
        play: PlayIndex,
        wave: usize,
        hosts: Vec<String>,
    },
    WaveFinished {
        play: PlayIndex,
        wave: usize,
    },
    /// What earlier audits remember of a host, for this one to compare with; null where that could not be read.
    Remembered {
        host: String,
        /// A value that only gpufleet reads; one of another release's shape is passed over.
        memory: Value,
    },
    Connected {
        host: String,
        /// Whether the helper had to be sent first.
        pushed: bool,
        ms: u64,
        /// The boot that it answers from: a resume sees an unexpected reboot by it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot_id: Option<String>,
    },
    /// The node asserts a state at each boot; told by every session.
    Kept {
        host: String,
        report: Box<KeptReport>,
    },
    FactsRead {
        host: String,
        #[schemars(with = "Map<String, Value>")]
        facts: Box<Facts>,
    },
    NodeState {
        host: String,
        state: NodeState,
        detail: Option<String>,
    },
    /// Written and synced before the act, so that a crash knows what may have happened.
    TaskStarted {
        host: String,
        op_id: OpId,
        task: String,
        kind: String,
    },
    /// A line about what a task is doing right now; not kept in the journal.
    Progress {
        host: String,
        text: String,
    },
    TaskFinished {
        host: String,
        report: TaskReport,
    },
    PermitWanted {
        host: String,
        class: Disruption,
        why: String,
    },
    PermitGranted {
        host: String,
        class: Disruption,
    },
    /// Something happened between the node and its scheduler.
    Drain {
        host: String,
        step: DrainStep,
    },
    /// A person's `--force` or `--steal` went over what a safety check said.
    Overridden {
        /// None where it concerns the whole run.
        host: Option<String>,
        what: String,
    },
    /// Back in service: verified, and its permit is gone.
    Released {
        host: String,
    },
    IdleChecked {
        host: String,
        #[schemars(with = "Map<String, Value>")]
        report: IdleReport,
    },
    /// Written and synced before the reboot is asked for.
    RebootIssued {
        host: String,
        boot_id: String,
        why: Vec<String>,
        /// When the node must be back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        deadline: Option<Timestamp>,
    },
    /// A reboot that was issued and refused: nothing was asked of the node that may still come.
    RebootRefused {
        host: String,
        /// What it was to be for.
        why: Vec<String>,
    },
    Rebooted {
        host: String,
        boot_id: String,
        seconds: u64,
    },
    /// Written and synced before a node that did not return is power cycled.
    PowerCycled {
        host: String,
        /// When the node must be back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<String>")]
        deadline: Option<Timestamp>,
    },
    NodeFinished {
        host: String,
        outcome: NodeOutcome,
    },
    /// Something that concerns the whole run: a threshold, a signal, a warning.
    Notice {
        level: Level,
        text: String,
    },
    RunFinished(RunFinished),
    /// Another process goes on where this run was cut off or stopped.
    RunResumed {
        epoch: u64,
        who: String,
        /// Version of the records from here on, as in `run_started`; 1 in records of versions before this field.
        #[serde(default = "first_version")]
        version: u32,
    },
}

const fn first_version() -> u32 {
    1
}

impl What {
    /// The host that it is about; none where it concerns the run or several hosts.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Remembered { host, .. }
            | Self::Connected { host, .. }
            | Self::Kept { host, .. }
            | Self::FactsRead { host, .. }
            | Self::NodeState { host, .. }
            | Self::TaskStarted { host, .. }
            | Self::Progress { host, .. }
            | Self::TaskFinished { host, .. }
            | Self::PermitWanted { host, .. }
            | Self::PermitGranted { host, .. }
            | Self::Released { host }
            | Self::IdleChecked { host, .. }
            | Self::Drain { host, .. }
            | Self::Overridden { host: Some(host), .. }
            | Self::RebootIssued { host, .. }
            | Self::RebootRefused { host, .. }
            | Self::Rebooted { host, .. }
            | Self::PowerCycled { host, .. }
            | Self::NodeFinished { host, .. } => Some(host),
            Self::RunStarted(_)
            | Self::PlayStarted(_)
            | Self::AwaitsWindow { .. }
            | Self::WaveStarted { .. }
            | Self::WaveFinished { .. }
            | Self::Notice { .. }
            | Self::Overridden { host: None, .. }
            | Self::RunResumed { .. }
            | Self::RunFinished(_) => None,
        }
    }
}

/// How a notice begins that tells of an interrupt.
pub(crate) const STOPPING: &str = "stopping: no new node starts";

/// What a state of `preflight` is about once the node was read and only waits for the others.
pub(crate) const READ: &str = "read";

/// How the reason of a node begins that somebody else has out of service.
pub(crate) const HELD_BY_OTHERS: &str = "somebody else holds it out of service";
/// Follows `run RUN` where a run of gpufleet has the node out; behind it stands what leads on.
pub(crate) const HELD_BY_A_RUN: &str = " has it drained: ";
/// How the reason begins why a node failed whose reboot was in vain.
pub const REBOOT_IN_VAIN: &str = "its reboot did not make current what waited for it";
/// Why a run stopped that was ended for good.
pub(crate) const ABORTED: &str = "aborted";
/// Why a run stopped that had nobody to ask.
pub(crate) const NOT_CONFIRMED: &str = "not confirmed: --yes is needed without a terminal";

/// How a notice ends that tells of a safety gate.
pub(crate) const NOTHING_NEW: &str = ": nothing new starts";

/// Whether a notice is about the end of one process of a run, and of no interest once another goes on.
pub(crate) fn tells_of_a_stop(text: &str) -> bool {
    text.starts_with(STOPPING) || text.ends_with(NOTHING_NEW)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Info,
    Warning,
    Error,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct RunStarted {
    pub version: u32,
    pub run_id: String,
    pub verb: Verb,
    /// Version of gpufleet.
    pub gpufleet: String,
    pub playbooks: Vec<String>,
    pub inventories: Vec<String>,
    /// Hosts that any play selects, in inventory order.
    pub hosts: Vec<String>,
    /// What was typed, secrets left out.
    pub command_line: Vec<String>,
    /// SHA-256 of program, inventory and variables: a resume with others is refused.
    pub digest: String,
    /// The same of each part, by its name: what changed can be named. Empty in records of versions before it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// SHA-256 of gpufleet and of the node files that it carries, by their names. Empty in records of versions before it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, String>,
    /// The hosts of the run by group of the inventory, without `all` and `ungrouped`. Empty in records of versions before it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, Vec<String>>,
    /// What checks judge the nodes by; left out where no check was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Box<AuditScope>>,
    /// What earlier audits of the same playbooks and baselines came to, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trend: Vec<EarlierAudit>,
}

impl RunStarted {
    /// Returns the beginning of a run of which nothing else is known: without playbooks, inventories and hosts.
    pub fn of(run_id: impl Into<String>, verb: Verb) -> Self {
        Self {
            version: EVENT_VERSION,
            run_id: run_id.into(),
            verb,
            gpufleet: String::new(),
            playbooks: Vec::new(),
            inventories: Vec::new(),
            hosts: Vec::new(),
            command_line: Vec::new(),
            digest: String::new(),
            inputs: BTreeMap::new(),
            programs: BTreeMap::new(),
            groups: BTreeMap::new(),
            audit: None,
            trend: Vec::new(),
        }
    }
}

/// What an earlier audit came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct EarlierAudit {
    #[schemars(with = "String")]
    pub at: Timestamp,
    pub nodes: u32,
    pub compliant: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct PlayStarted {
    pub play: PlayIndex,
    pub name: String,
    pub hosts: Vec<String>,
    pub waves: Vec<WaveShape>,
    pub max_unavailable: usize,
    /// None in records of versions before it.
    #[serde(default)]
    pub policy: Option<PolicyShape>,
    /// SHA-256 of what is done to a node: durations that were measured hold for the same work only. None in records of
    /// versions before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<String>,
}

/// One wave as it was planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct WaveShape {
    /// As written: `canary`, `10%`, `4`.
    pub label: String,
    pub hosts: Vec<String>,
    /// Nodes of unknown hardware class; canaries do not cover them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aside: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct RunFinished {
    pub exit_code: u8,
    /// One sentence.
    pub summary: String,
    /// Nodes that this run took out of service and did not bring back.
    pub out_of_service: Vec<String>,
    /// Why the run ended before its end, if it did.
    pub stopped: Option<String>,
    /// Whether `gpufleet resume` can go on with it.
    #[serde(default)]
    pub resumable: bool,
}

/// A change in the documents for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ChangeRecord {
    pub task: String,
    pub kind: String,
    /// The change as one sentence, ready to show: `GPU 0 power limit 700 -> 600 W`.
    pub text: String,
    pub subject: Subject,
    /// What of the subject differs, for example `power limit`.
    pub property: Property,
    /// Which of the node's layers holds the value; the live one where it is left out.
    #[serde(default, skip_serializing_if = "Layer::is_live")]
    pub layer: Layer,
    /// The value found.
    pub from: change::Value,
    /// The value declared.
    pub to: change::Value,
    pub disruption: Disruption,
    pub certainty: Certainty,
    /// The host that was changed, where `delegate_to` names another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated_to: Option<String>,
}

impl ChangeRecord {
    pub fn new(report: &TaskReport, change: &Change) -> Self {
        Self {
            task: report.task.clone(),
            kind: report.kind.clone(),
            text: change.to_string(),
            subject: change.subject.clone(),
            property: change.property.clone(),
            layer: change.layer,
            from: change.from.clone(),
            to: change.to.clone(),
            disruption: change.disruption,
            certainty: change.certainty,
            delegated_to: report.delegated_to.clone(),
        }
    }
}

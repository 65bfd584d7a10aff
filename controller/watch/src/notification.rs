//! What a receiver is told, and its JSON schema.

use gpufleet_compliance::{Action, Severity, Verdict};
use jiff::Timestamp;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Version of [`Notification`]; it changes when a reader of the old one would misread it.
pub const FORMAT: u32 = 1;
/// Nodes that a notification names; the others are counted.
pub const MOST_NAMED: usize = 100;

/// What a webhook is posted, and a command reads from standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "gpufleet notification", deny_unknown_fields)]
pub struct Notification {
    /// Version of this shape. A new number means that readers of the old one would misread it; new keys alone do not
    /// change it.
    pub format: u32,
    /// The same for every try of the same notification: a receiver that saw it already can drop it.
    pub id: String,
    pub kind: Kind,
    /// When the audit ended that it is about, RFC 3339.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The machine that audits.
    pub watcher: String,
    /// The schedule.
    pub schedule: String,
    /// The run of the audit; null where there was none.
    pub run_id: Option<String>,
    /// The same for everything that is told about the same cause: opened, changed, recovered.
    pub incident: String,
    /// One line for people.
    pub summary: String,
    /// What it is about; null where it is about the audit itself.
    pub finding: Option<Told>,
    /// How the fleet stood after the audit; null where the audit failed.
    pub fleet: Option<Standing>,
    /// Commands to go on with, ready to be pasted.
    pub commands: Vec<String>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A finding is new on these nodes.
    Opened,
    /// Its verdict is another one.
    Changed,
    /// It is gone: read, and judged ok.
    Recovered,
    /// It is told no more, without being gone: it was waived, or the node is not audited any more.
    Closed,
    /// Its verdict changes again and again: nothing more is told until it is calm.
    Flapping,
    /// It is still there.
    Reminder,
    /// More causes changed at once than are told one by one.
    Overflow,
    /// The audit itself could not be made.
    AuditFailed,
    AuditRecovered,
    /// Somebody asked whether notifications arrive.
    Test,
}

impl Kind {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Changed => "changed",
            Self::Recovered => "recovered",
            Self::Closed => "closed",
            Self::Flapping => "flapping",
            Self::Reminder => "reminder",
            Self::Overflow => "overflow",
            Self::AuditFailed => "audit_failed",
            Self::AuditRecovered => "audit_recovered",
            Self::Test => "test",
        }
    }
}

/// One cause, on all nodes whose verdict changed alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "finding", deny_unknown_fields)]
pub struct Told {
    /// The id of a check, the place of a task (`site.yaml:24`), or `node`.
    pub control: String,
    pub title: String,
    pub severity: Severity,
    /// The severity that was told last; it matters only to who is told.
    #[serde(skip)]
    pub severity_before: Option<Severity>,
    /// What holds now; null where it is gone.
    pub verdict: Option<Verdict>,
    /// What was told last; null where nothing was.
    pub before: Option<Verdict>,
    pub next_action: Action,
    /// Whether so many nodes have it that it is one incident of the fleet: at least 3, and 5 % of those audited. Then
    /// `next_action` is `investigate`, and nobody should act on single nodes.
    pub fleet_wide: bool,
    /// How many nodes this is about.
    pub nodes_total: usize,
    /// The first 100 of them.
    pub nodes: Vec<NodeTold>,
}

/// One node of a notification. What a node says of itself is not escaped here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "node", deny_unknown_fields)]
pub struct NodeTold {
    pub node: String,
    /// Such as `GPU 3`; empty for the node as a whole.
    pub subject: String,
    /// What was found, in one sentence.
    pub text: String,
    /// When the verdict became what it is, RFC 3339.
    #[schemars(with = "String")]
    pub since: Timestamp,
}

/// How many nodes have which verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "fleet", deny_unknown_fields)]
pub struct Standing {
    pub nodes: usize,
    pub fail: usize,
    pub unknown: usize,
    pub drift: usize,
    pub warn: usize,
    pub ok: usize,
    pub na: usize,
}

/// Returns the schema of a notification.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<Notification>().to_value();
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("$id".to_owned(), json!("https://gpufleet.invalid/schema/notification.schema.json"));
    }
    schema
}

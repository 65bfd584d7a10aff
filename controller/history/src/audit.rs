//! What one audit found, as the store keeps it.

use gpufleet_compliance::{Action, Severity, Verdict};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One finished audit. The id of its run makes it unique: recording it again changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    pub run: String,
    /// The host name of the machine that carried it out.
    pub controller: String,
    pub started: Timestamp,
    pub finished: Timestamp,
    pub playbooks: Vec<String>,
    pub baselines: Vec<String>,
    pub exit_code: u8,
    pub nodes: Vec<NodeReading>,
}

/// What an audit found about one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReading {
    pub node: String,
    /// When the node was read; the end of the audit where it was not.
    pub at: Timestamp,
    pub verdict: Verdict,
    pub action: Action,
    /// Whether nothing that counts is wrong with it.
    pub compliant: bool,
    /// 0 to 100; `None` where no check judged it.
    pub score: Option<u8>,
    /// How many judgements were made, of how many that apply.
    pub judged: u32,
    pub applicable: u32,
    /// Groups of the inventory, without `all` and `ungrouped`.
    pub groups: Vec<String>,
    /// Such as `8x H100 80GB HBM3`.
    pub hardware: Option<String>,
    pub driver: Option<String>,
    /// What is not ok, waived findings included.
    pub findings: Vec<Found>,
    /// Which controls were judged, so that a finding that is missing is known to be gone, or only not looked at.
    #[serde(default)]
    pub controls: Controls,
    /// What later audits need of this one to tell rates and growth. The store does not look into it.
    pub memory: Option<serde_json::Value>,
}

/// One finding of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Found {
    /// The id of a check, the place of a task, or `node`.
    pub control: String,
    pub title: String,
    pub severity: Severity,
    /// `GPU 3`, `/var`; empty for the node as a whole.
    pub subject: String,
    pub verdict: Verdict,
    pub action: Action,
    /// In one sentence, without the name of the node.
    pub text: String,
    /// What was read: `margin_c 4`.
    pub evidence: Vec<String>,
    /// The waiver that covers it.
    pub waived: Option<String>,
    /// The check whose finding is the cause of this one.
    pub explained_by: Option<String>,
}

/// What became of the controls that an audit asked of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Controls {
    /// Ids of those that were judged, or do not apply. What has no finding is ok.
    pub judged: Vec<String>,
    /// Ids of those that were asked for, and could not or not wholly be judged.
    pub not_judged: Vec<String>,
    /// Whether the node was read to the end: what is in neither list was then not asked for.
    pub complete: bool,
}

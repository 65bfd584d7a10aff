//! What the checks of an audit judge nodes by.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use gpufleet_compliance::{Finding, NodeVerdict, Policy, Waivers, fold, judge, waiver::Asked};
use gpufleet_language::diagnostic::SourceFile;
use gpufleet_protocol::signal::Signals;
use jiff::civil::Date;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The file of the play that reads what checks judge, which the command makes. It comes last on the command line, because
/// the folder of the first playbook has a meaning.
pub const HEALTH: &str = "<health>";

/// A resolved baseline, which hosts are in the groups that it names, and the waivers. With the signals of a node it gives the
/// same findings at any time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct AuditScope {
    pub policy: Policy,
    /// Hosts of the run by group, for the groups that the policy names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, BTreeSet<String>>,
    /// Hosts of the run that no check judges, because only a playbook names them: `localhost`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub without: BTreeSet<String>,
    /// The file of waivers as it was; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waivers: String,
    /// The day on the controller, by which waivers end.
    #[schemars(with = "String")]
    pub today: Date,
    #[serde(skip)]
    #[schemars(skip)]
    read: Read,
}

/// The waivers, read when they are first asked for.
#[derive(Clone, Debug, Default)]
struct Read(OnceLock<Arc<Waivers>>);

impl PartialEq for Read {
    /// They come from the text, which is compared.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl AuditScope {
    pub fn new(
        policy: Policy,
        groups: BTreeMap<String, BTreeSet<String>>,
        without: BTreeSet<String>,
        waivers: String,
        today: Date,
    ) -> Self {
        Self { policy, groups, without, waivers, today, read: Read::default() }
    }

    /// Judges the signals of a host.
    pub fn judge(&self, host: &str, signals: &Signals) -> (Vec<Finding>, NodeVerdict) {
        let member = |(_, hosts): &(&String, &BTreeSet<String>)| hosts.contains(host);
        let groups: Vec<&str> = self.groups.iter().filter(member).map(|(group, _)| group.as_str()).collect();
        let policy = self.policy.for_node(host, &groups);
        let mut findings = judge(&policy, signals);
        let asked = Asked { host, groups: &groups, today: self.today, gate: false };
        self.waivers().apply(&policy, signals, &asked, &mut findings);
        let verdict = fold(&policy, &mut findings);
        (findings, verdict)
    }

    fn waivers(&self) -> &Waivers {
        self.read.0.get_or_init(|| {
            let source = SourceFile::new("waivers", self.waivers.as_str());
            // None where a file of another release cannot be read any more: without waivers everything counts.
            Arc::new(Waivers::read(&source, &self.policy).unwrap_or_default())
        })
    }
}

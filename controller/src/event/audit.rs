//! What the checks of an audit judge nodes by.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use gpufleet_compliance::{
    Finding, Memory, NodeVerdict, Policy, Waivers, fold, judge_after, leave_to_tasks,
    outlier::{self, Compared, Peers},
    waiver::Asked,
};
use gpufleet_language::diagnostic::SourceFile;
use gpufleet_protocol::signal::Signals;
use jiff::{Timestamp, civil::Date};
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
    /// Hosts of the run by group, for every group of the inventory but `all`: nodes of one group have GPUs, or none has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub siblings: BTreeMap<String, BTreeSet<String>>,
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

/// What the checks say of one host.
#[derive(Clone, Debug)]
pub struct Judgement {
    pub findings: Vec<Finding>,
    pub verdict: NodeVerdict,
    /// What later audits need of this one.
    pub memory: Memory,
    /// What is compared with other hosts.
    pub peers: Peers,
}

impl AuditScope {
    pub fn new(
        policy: Policy,
        groups: BTreeMap<String, BTreeSet<String>>,
        without: BTreeSet<String>,
        waivers: String,
        today: Date,
    ) -> Self {
        Self { policy, groups, siblings: BTreeMap::new(), without, waivers, today, read: Read::default() }
    }

    /// Adds the groups of the inventory, by which nodes without GPUs are told from nodes that lost theirs.
    #[must_use]
    pub fn with_siblings(self, siblings: BTreeMap<String, BTreeSet<String>>) -> Self {
        Self { siblings, ..self }
    }

    /// Compares nodes with each other, and finds those without a GPU among others that have some.
    pub fn compare(&self, nodes: &[(&str, &Peers)]) -> Compared {
        let mut compared = outlier::compare(nodes.iter().map(|(_, peers)| *peers));
        let groups = self.siblings.iter().map(|(group, members)| (group.as_str(), members));
        for (place, found) in outlier::bare(nodes, groups) {
            compared.findings.entry(place).or_default().extend(found);
        }
        compared
    }

    /// Judges the signals of a host, which were read at this time, after what earlier audits remember of it. `declares` tells
    /// whether the playbooks of the audit have a task of a kind that judged the host.
    pub fn judge(
        &self,
        host: &str,
        signals: &Signals,
        earlier: Option<&Memory>,
        at: Timestamp,
        declares: &dyn Fn(&str) -> bool,
    ) -> Judgement {
        let groups = self.groups_of(host);
        let policy = self.policy.for_node(host, &groups);
        let at = at.as_second();
        // Growth and loss between two machines are none.
        let earlier = earlier.filter(|earlier| earlier.may_be_of(signals));
        let mut findings = judge_after(&policy, signals, earlier, at);
        leave_to_tasks(&policy, &mut findings, declares);
        let memory = Memory::after(earlier, signals, &findings, at);
        let asked = Asked { host, groups: &groups, today: self.today, gate: false };
        self.waivers().apply(&policy, signals, &asked, &mut findings);
        let verdict = fold(&policy, &mut findings);
        let peers = outlier::peers(&policy, signals, &groups);
        Judgement { findings, verdict, memory, peers }
    }

    /// Puts what a comparison with other hosts found into the findings of a host, and judges it anew.
    pub fn beside_others(
        &self,
        host: &str,
        findings: &mut Vec<Finding>,
        mut found: Vec<Finding>,
    ) -> NodeVerdict {
        let groups = self.groups_of(host);
        let policy = self.policy.for_node(host, &groups);
        let asked = Asked { host, groups: &groups, today: self.today, gate: false };
        // Without readings: a ceiling cannot be told to hold then, and the finding counts.
        self.waivers().apply(&policy, &Signals::default(), &asked, &mut found);
        // That of the waivers is among the findings already.
        found.retain(|finding| !finding.check.rules.is_empty() || !finding.check.outliers.is_empty());
        outlier::merge(findings, found);
        fold(&policy, findings)
    }

    /// The groups that the policy and the waivers name, and that the host is in.
    fn groups_of(&self, host: &str) -> Vec<&str> {
        let member = |(_, hosts): &(&String, &BTreeSet<String>)| hosts.contains(host);
        self.groups.iter().filter(member).map(|(group, _)| group.as_str()).collect()
    }

    /// Returns the waivers.
    pub fn waivers(&self) -> &Waivers {
        self.read.0.get_or_init(|| {
            let source = SourceFile::new("waivers", self.waivers.as_str());
            // None where a file of another release cannot be read any more: without waivers everything counts.
            Arc::new(Waivers::read(&source, &self.policy).unwrap_or_default())
        })
    }
}

//! A resolved baseline: what is asked of nodes, and what their readings are compared with.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use gpufleet_protocol::signal::SIGNALS;
use gpufleet_protocol::tasks::OwnReading;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::catalogue::{Catalogue, Check, CheckData, Remediation, RuleData};
use crate::rule::{self, Context, RuleError};
use crate::verdict::{Action, Severity, Verdict};

/// Parameters by check.
pub type Params = BTreeMap<String, BTreeMap<String, Value>>;

/// A resolved baseline as documents and journals hold it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyData {
    /// The baselines it was made of, joined by `+`.
    pub name: String,
    /// The ids of the checks, own checks included.
    pub checks: BTreeSet<String>,
    /// Parameters that differ from the catalogue's.
    #[serde(default)]
    pub params: Params,
    /// What is declared of every node.
    #[serde(default)]
    pub declared: BTreeMap<String, Value>,
    /// Checks that must be judged wherever they apply; otherwise the node is unknown.
    #[serde(default)]
    pub require: BTreeSet<String>,
    /// The least share of applicable checks that must be judged, from 0 to 1.
    #[serde(default)]
    pub min_coverage: f64,
    /// Whether a warning makes a node not compliant.
    #[serde(default)]
    pub warn_is_red: bool,
    /// What differs for groups of the inventory. A later entry wins over an earlier one.
    #[serde(default)]
    pub groups: Vec<GroupPolicy>,
    /// Checks of the user's own files.
    #[serde(default)]
    pub own_checks: Vec<OwnCheck>,
}

/// What differs for one group, or one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupPolicy {
    /// The name of a group or host of the inventory.
    pub group: String,
    /// Checks that it adds.
    #[serde(default)]
    pub checks: BTreeSet<String>,
    /// Checks that it leaves out.
    #[serde(default)]
    pub without: BTreeSet<String>,
    #[serde(default)]
    pub params: Params,
    #[serde(default)]
    pub declared: BTreeMap<String, Value>,
}

/// A check that a user wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OwnCheck {
    pub id: String,
    pub title: String,
    pub severity: Severity,
    /// What it reads beside the signals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<OwnReading>,
    /// The rule; where it holds, the check gives `verdict`.
    pub when: String,
    #[serde(default = "fail")]
    pub verdict: Verdict,
    #[serde(default = "investigate")]
    pub action: Action,
    #[serde(default)]
    pub why: String,
    #[serde(default)]
    pub remediation: String,
}

pub(crate) const fn fail() -> Verdict {
    Verdict::Fail
}

pub(crate) const fn investigate() -> Action {
    Action::Investigate
}

impl OwnCheck {
    /// Compiles it. Its scope is that of the signals that it reads.
    pub(crate) fn compile(&self) -> Result<Check, RuleError> {
        let catalogue = Catalogue::get();
        let params = BTreeMap::new();
        let own = self.read.as_ref();
        let context = Context { scope: None, params: &params, checks: catalogue.ids(), own };
        let code = rule::compile(&rule::parse(&self.when)?, context)?;
        let fault = format!("not so: {}", self.title);
        let data = CheckData {
            id: self.id.clone(),
            title: self.title.clone(),
            scope: code.scope(),
            severity: self.severity,
            tier: 1,
            requires: Vec::new(),
            na_when: None,
            params,
            rules: vec![RuleData {
                when: self.when.clone(),
                verdict: self.verdict.word().to_owned(),
                action: self.action,
                at_once: false,
                note: fault.clone(),
            }],
            outliers: Vec::new(),
            evidence: Vec::new(),
            declared_by: None,
            explained_by: Vec::new(),
            enter: 1,
            waivable: true,
            why: self.why.clone(),
            remediation: Remediation { text: self.remediation.clone(), reads: None },
            references: Vec::new(),
            fault,
        };
        let check = Check::compile(data, catalogue.ids(), own).map_err(|(_, error)| error)?;
        Ok(Check { evidence: code.signals, ..check })
    }
}

/// A resolved baseline, ready to judge with.
#[derive(Debug, Serialize, Deserialize)]
#[serde(from = "Recorded", into = "PolicyData")]
pub struct Policy {
    data: PolicyData,
    own: Vec<Arc<Check>>,
    /// By the positions of the entries of `groups` that a node falls under.
    nodes: Mutex<HashMap<Vec<usize>, Arc<NodePolicy>>>,
}

impl Clone for Policy {
    fn clone(&self) -> Self {
        Self { data: self.data.clone(), own: self.own.clone(), nodes: Mutex::default() }
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.data == other.data
    }
}

impl From<Policy> for PolicyData {
    fn from(policy: Policy) -> Self {
        policy.data
    }
}

/// Fails if the rule of an own check does not compile.
impl TryFrom<PolicyData> for Policy {
    type Error = String;

    fn try_from(data: PolicyData) -> Result<Self, String> {
        let own = data.own_checks.iter().map(|own| {
            own.compile().map(Arc::new).map_err(|error| format!("the check `{}`: {error}", own.id))
        });
        let own = own.collect::<Result<_, _>>()?;
        Ok(Self { data, own, nodes: Mutex::default() })
    }
}

/// A policy of a journal. An own check that this release cannot compile is a missing one: nodes are unknown then, and the
/// journal can still be read.
#[derive(Deserialize)]
struct Recorded(PolicyData);

impl From<Recorded> for Policy {
    fn from(Recorded(data): Recorded) -> Self {
        let own = data.own_checks.iter().filter_map(|own| own.compile().ok()).map(Arc::new).collect();
        Self { data, own, nodes: Mutex::default() }
    }
}

impl JsonSchema for Policy {
    fn schema_name() -> Cow<'static, str> {
        "Policy".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        PolicyData::json_schema(generator)
    }
}

impl Policy {
    /// Returns it as documents hold it.
    pub const fn data(&self) -> &PolicyData {
        &self.data
    }

    /// Returns a check of the catalogue or of this policy.
    pub fn check(&self, id: &str) -> Option<&Arc<Check>> {
        self.own.iter().find(|check| &*check.id == id).or_else(|| Catalogue::get().check(id))
    }

    /// Returns the checks that this policy names and this release does not know, as a journal of another release may.
    pub fn missing_checks(&self) -> Vec<&str> {
        self.data.checks.iter().map(String::as_str).filter(|id| self.check(id).is_none()).collect()
    }

    /// Returns the checks that any node is asked, in the order of the catalogue, own checks last.
    pub fn asked(&self) -> impl Iterator<Item = &Arc<Check>> {
        let groups = self.data.groups.iter().flat_map(|entry| &entry.checks);
        let ids: BTreeSet<&String> = self.data.checks.iter().chain(groups).collect();
        let mut asked: Vec<&Arc<Check>> = ids.into_iter().filter_map(|id| self.check(id)).collect();
        asked.sort_by_key(|check| Catalogue::get().position(&check.id).unwrap_or(usize::MAX));
        asked.into_iter()
    }

    /// Returns where a signal comes from, in words.
    pub fn source_of(&self, signal: &str) -> Cow<'_, str> {
        let own = self.data.own_checks.iter().filter_map(|own| own.read.as_ref());
        let id = signal.strip_suffix(".exit_code").unwrap_or(signal);
        if let Some(read) = own.into_iter().find(|read| read.id == id) {
            return match &read.file {
                Some(path) => format!("The file {path}.").into(),
                // Without its arguments, which may be secret.
                None => format!("The command {}.", read.command.first().map_or("", String::as_str)).into(),
            };
        }
        let known = SIGNALS.iter().copied().flatten().find(|info| info.name == signal);
        known.map_or_else(Cow::default, |info| info.source.into())
    }

    /// Whether an own check runs a command.
    pub fn runs_commands(&self) -> bool {
        self.own_readings().iter().any(|asked| asked.read.file.is_none())
    }

    /// Returns what own checks read beside the signals, and of which nodes.
    pub fn own_readings(&self) -> Vec<AskedReading<'_>> {
        self.data
            .own_checks
            .iter()
            .filter_map(|own| {
                let read = own.read.as_ref()?;
                let turns = self.data.groups.iter().filter_map(|entry| {
                    let on = entry.checks.contains(&own.id) && !entry.without.contains(&own.id);
                    (on || entry.without.contains(&own.id)).then_some((entry.group.as_str(), on))
                });
                let asked = AskedReading {
                    read,
                    everywhere: self.data.checks.contains(&own.id),
                    turns: turns.collect(),
                };
                (asked.everywhere || asked.turns.iter().any(|(_, on)| *on)).then_some(asked)
            })
            .collect()
    }

    /// Returns what holds for a node: the baseline, then each entry of `groups` that names one of its groups or the
    /// host itself. Nodes of the same groups share one answer.
    pub fn for_node(&self, host: &str, groups: &[&str]) -> Arc<NodePolicy> {
        let entries: Vec<usize> = (self.data.groups.iter().enumerate())
            .filter(|(_, entry)| entry.group == host || groups.contains(&entry.group.as_str()))
            .map(|(at, _)| at)
            .collect();
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = nodes.get(&entries) {
            return Arc::clone(known);
        }
        let made = Arc::new(self.make(&entries));
        nodes.insert(entries, Arc::clone(&made));
        made
    }

    fn make(&self, entries: &[usize]) -> NodePolicy {
        let mut checks = self.data.checks.clone();
        let mut params = self.data.params.clone();
        let mut declared = self.data.declared.clone();
        for entry in entries.iter().filter_map(|at| self.data.groups.get(*at)) {
            checks.extend(entry.checks.iter().cloned());
            checks.retain(|id| !entry.without.contains(id));
            for (check, values) in &entry.params {
                params.entry(check.clone()).or_default().extend(values.clone());
            }
            declared.extend(entry.declared.clone());
        }
        declared.retain(|_, value| !value.is_null());
        let checks_here = checks.clone();
        let mut found: Vec<&Arc<Check>> = checks.iter().filter_map(|id| self.check(id)).collect();
        found.sort_by_key(|check| Catalogue::get().position(&check.id).unwrap_or(usize::MAX));
        let checks = found.into_iter().map(|check| {
            let mut own = check.params.clone();
            own.extend(params.get(&*check.id).cloned().unwrap_or_default());
            PolicyCheck::new(Arc::clone(check), own, &declared)
        });
        NodePolicy {
            checks: checks.collect(),
            declared: declared.clone(),
            require: self
                .data
                .require
                .iter()
                .filter(|id| checks_hold(id, &self.data, entries))
                .cloned()
                // Required, so that a check of another release that this one lacks makes the node unknown.
                .chain(checks_here.into_iter().filter(|id| self.check(id).is_none()))
                .collect(),
            min_coverage: self.data.min_coverage,
            warn_is_red: self.data.warn_is_red,
        }
    }
}

/// Whether a required check is still asked where groups leave some out.
fn checks_hold(id: &str, data: &PolicyData, entries: &[usize]) -> bool {
    let without = |at: &usize| data.groups.get(*at).is_some_and(|entry| entry.without.contains(id));
    !entries.iter().any(without)
}

/// What an own check reads, and of which nodes.
#[derive(Debug)]
pub struct AskedReading<'a> {
    pub read: &'a OwnReading,
    /// Whether it is read of nodes of which `turns` says nothing.
    pub everywhere: bool,
    /// The groups or hosts of which it is read, or is not. A later one wins.
    pub turns: Vec<(&'a str, bool)>,
}

/// What holds for one node.
#[derive(Debug)]
pub struct NodePolicy {
    /// In the order of the catalogue, own checks last.
    pub checks: Vec<PolicyCheck>,
    pub declared: BTreeMap<String, Value>,
    pub require: BTreeSet<String>,
    /// From 0 to 1.
    pub min_coverage: f64,
    pub warn_is_red: bool,
}

/// A check with the parameters that it has here.
#[derive(Debug)]
pub struct PolicyCheck {
    pub check: Arc<Check>,
    pub params: BTreeMap<String, Value>,
    /// What each of the rules expects, in words; and all of them together.
    pub(crate) expected: Vec<Option<Arc<str>>>,
    pub(crate) expected_of_all: Option<Arc<str>>,
}

impl PolicyCheck {
    fn new(check: Arc<Check>, params: BTreeMap<String, Value>, declared: &BTreeMap<String, Value>) -> Self {
        let words = |declared_names: &[Arc<str>], param_names: &[Arc<str>]| -> Option<Arc<str>> {
            let mut text = String::new();
            for (names, values) in [(declared_names, declared), (param_names, &params)] {
                let mut seen = BTreeSet::new();
                for name in names.iter().filter(|name| seen.insert(Arc::clone(name))) {
                    if let Some(value) = values.get(&**name) {
                        let separator = if text.is_empty() { "" } else { "; " };
                        let _ = write!(text, "{separator}{name} {}", plain(value));
                    }
                }
            }
            (!text.is_empty()).then(|| text.into())
        };
        let expected =
            (check.rules.iter()).map(|rule| words(&rule.when.declared, &rule.when.params)).collect();
        let all_declared: Vec<_> = check.rules.iter().flat_map(|rule| &rule.when.declared).cloned().collect();
        let all_params: Vec<_> = check.rules.iter().flat_map(|rule| &rule.when.params).cloned().collect();
        let expected_of_all = words(&all_declared, &all_params);
        Self { check, params, expected, expected_of_all }
    }
}

/// Prints a value as a person writes it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

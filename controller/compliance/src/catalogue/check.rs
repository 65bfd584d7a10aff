//! One check: its data, and the rules compiled from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::rule::{self, Code, Context, RuleError};
use crate::verdict::{Action, Scope, Severity, Verdict};

/// A text that is wrong, and what is wrong with it.
type Mistake = (String, RuleError);
/// Signals and their scopes.
type Named = Vec<(Scope, Arc<str>)>;

/// A check as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckData {
    pub id: String,
    pub title: String,
    pub scope: Scope,
    pub severity: Severity,
    #[serde(default = "first_tier")]
    pub tier: u8,
    #[serde(default)]
    pub requires: Vec<String>,
    #[serde(default)]
    pub na_when: Option<String>,
    #[serde(default)]
    pub params: BTreeMap<String, Value>,
    pub rules: Vec<RuleData>,
    #[serde(default)]
    pub evidence: Vec<String>,
    #[serde(default)]
    pub explained_by: Vec<String>,
    #[serde(default = "yes")]
    pub waivable: bool,
    pub why: String,
    pub remediation: Remediation,
    #[serde(default)]
    pub references: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleData {
    pub when: String,
    /// A verdict, or `p.NAME` for the verdict that a parameter names.
    pub verdict: String,
    #[serde(default)]
    pub action: Action,
    pub note: String,
}

/// What to do about a finding.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remediation {
    pub text: String,
    /// A command for the node; `{gpu}` stands for the UUID of the GPU.
    #[serde(default)]
    pub command: Option<String>,
}

const fn first_tier() -> u8 {
    1
}

const fn yes() -> bool {
    true
}

/// A check that can be judged.
#[derive(Debug)]
pub struct Check {
    /// Group and name: `mem.remap_failed`.
    pub id: Arc<str>,
    /// What holds where it is ok.
    pub title: String,
    pub scope: Scope,
    pub severity: Severity,
    /// How dear its readings are: 1 for every audit, 2 and 3 for rarer ones.
    pub tier: u8,
    /// Signals without which there is nothing to judge.
    pub requires: Vec<(Scope, Arc<str>)>,
    pub na_when: Option<Code>,
    /// Parameters and their values where no baseline sets them.
    pub params: BTreeMap<String, Value>,
    /// Tried in this order. A check without rules is judged elsewhere.
    pub rules: Vec<Rule>,
    /// The signals that are shown with every finding.
    pub evidence: Vec<(Scope, Arc<str>)>,
    /// Checks whose findings are the cause of this check's.
    pub explained_by: Vec<Arc<str>>,
    pub waivable: bool,
    /// Why it matters.
    pub why: String,
    pub remediation: Remediation,
    /// Where the facts come from: addresses, or the names of documents.
    pub references: Vec<String>,
}

/// A condition and what it means.
#[derive(Debug)]
pub struct Rule {
    pub when: Code,
    /// The condition as it is written.
    pub text: String,
    pub verdict: RuleVerdict,
    pub action: Action,
    /// What is the case, in words.
    pub note: Arc<str>,
}

/// The verdict of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    Fixed(Verdict),
    /// That which a parameter names.
    Param(String),
}

impl Check {
    /// Returns the part of its id before the dot.
    pub fn group(&self) -> &str {
        self.id.split_once('.').map_or(&*self.id, |(group, _)| group)
    }

    /// Whether it judges by the verdicts of other checks, and so after them.
    pub fn is_derived(&self) -> bool {
        self.rules.iter().any(|rule| !rule.when.checks.is_empty())
    }

    /// Returns the signals that it reads or shows.
    pub fn signals(&self) -> impl Iterator<Item = &(Scope, Arc<str>)> {
        let codes = self.na_when.iter().chain(self.rules.iter().map(|rule| &rule.when));
        self.requires.iter().chain(codes.flat_map(|code| &code.signals)).chain(&self.evidence)
    }

    /// Compiles the data. `checks` are the ids that rules may name.
    ///
    /// # Errors
    /// The text of the rule or name that is wrong, and what is wrong with it.
    pub(crate) fn compile(data: CheckData, checks: &BTreeSet<String>) -> Result<Self, Mistake> {
        let context = Context { scope: Some(data.scope), params: &data.params, checks };
        let code = |text: &str| {
            rule::parse(text)
                .and_then(|expr| rule::compile(&expr, context))
                .map_err(|error| (text.to_owned(), error))
        };
        let names = |names: &[String]| -> Result<Named, Mistake> {
            let mut found = Vec::with_capacity(names.len());
            for name in names {
                // Why by a rule: its errors name the signal, and its scope is checked.
                let signal = code(&format!("{name} == null"))?;
                found.extend(signal.signals);
            }
            Ok(found)
        };
        let mut rules = Vec::with_capacity(data.rules.len());
        for rule in &data.rules {
            let verdict = match rule.verdict.strip_prefix("p.") {
                Some(param) => RuleVerdict::Param(param.to_owned()),
                None => RuleVerdict::Fixed(Verdict::of_word(&rule.verdict).ok_or_else(|| {
                    let error = RuleError::new("this is not a verdict", 0, rule.verdict.len())
                        .suggest(&rule.verdict, Verdict::ALL.iter().map(|verdict| verdict.word()));
                    (rule.verdict.clone(), error)
                })?),
            };
            rules.push(Rule {
                when: code(&rule.when)?,
                text: rule.when.clone(),
                verdict,
                action: rule.action,
                note: rule.note.as_str().into(),
            });
        }
        Ok(Self {
            requires: names(&data.requires)?,
            na_when: data.na_when.as_deref().map(code).transpose()?,
            evidence: names(&data.evidence)?,
            rules,
            explained_by: data.explained_by.iter().map(|id| id.as_str().into()).collect(),
            id: data.id.into(),
            title: data.title,
            scope: data.scope,
            severity: data.severity,
            tier: data.tier,
            params: data.params,
            waivable: data.waivable,
            why: data.why,
            remediation: data.remediation,
            references: data.references,
        })
    }
}

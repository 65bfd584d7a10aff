//! One check: its data, and the rules compiled from them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_protocol::signal::Signals;
use gpufleet_protocol::tasks::OwnReading;
use serde::Deserialize;
use serde_json::Value;

use crate::advice::PLACEHOLDERS;
use crate::memory::Hysteresis;
use crate::outlier::{Measure, Outlier};
use crate::rule::{self, Code, Context, NoOthers, RuleError, Scene};
use crate::verdict::{Action, Scope, Severity, Verdict};

/// Audits without a finding after which it is over, however many it took to count.
const MOST_CLEAR: u8 = 2;

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
    pub fault: String,
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
    pub outliers: Vec<OutlierData>,
    #[serde(default)]
    pub evidence: Vec<String>,
    /// The kind of task that declares what it compares with a default where no baseline declares it.
    #[serde(default)]
    pub declared_by: Option<String>,
    #[serde(default)]
    pub explained_by: Vec<String>,
    /// Audits in a row that must have a finding before it counts in full.
    #[serde(default = "one")]
    pub enter: u8,
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
    /// Whether the rule itself says for how long it must have been so, so that one audit is enough.
    #[serde(default)]
    pub at_once: bool,
    pub note: String,
}

/// A comparison with other nodes as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutlierData {
    /// A signal.
    pub of: String,
    #[serde(default)]
    pub when: Option<String>,
    #[serde(default)]
    pub alike: Vec<String>,
    #[serde(default)]
    pub same_place: bool,
    /// How values are compared; without one, they are the same or they are not.
    #[serde(default)]
    pub near: Option<f64>,
    #[serde(default)]
    pub high: Option<f64>,
    #[serde(default)]
    pub low: Option<f64>,
    #[serde(default)]
    pub action: Action,
    pub note: String,
}

/// What to do about a finding.
///
/// A catalogue has no command that changes a node: those follow from the action of a rule ([`Action::command`]), so that no
/// check can name one that its finding does not ask for, or that ends work without a drain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remediation {
    pub text: String,
    /// A command for the node that only reads; `{gpu}` stands for the UUID of the GPU.
    #[serde(default)]
    pub reads: Option<String>,
}

const fn one() -> u8 {
    1
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
    /// What is wrong where it is not, whichever rule decides.
    pub fault: String,
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
    /// What is compared with other nodes.
    pub outliers: Vec<Outlier>,
    /// The signals that are shown with every finding.
    pub evidence: Vec<(Scope, Arc<str>)>,
    /// The kind of task that declares what it compares with a default where no baseline declares it.
    pub declared_by: Option<String>,
    /// Checks whose findings are the cause of this check's.
    pub explained_by: Vec<Arc<str>>,
    /// How a finding comes and goes over audits.
    pub hysteresis: Hysteresis,
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
    pub at_once: bool,
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

    /// Returns what a finding of it is called. A title beside the badge `fail` would say the opposite of the badge.
    ///
    /// `note` is the finding's: an unknown one that no rule made says nothing of the fault.
    pub fn headline(&self, verdict: Verdict, note: &str) -> Cow<'_, str> {
        let by_rule = || self.rules.iter().any(|rule| note.starts_with(&*rule.note));
        match verdict {
            Verdict::Ok | Verdict::Na => Cow::Borrowed(&self.title),
            Verdict::Unknown if !by_rule() => Cow::Owned(format!("Not judged: {}", self.title)),
            _ => Cow::Borrowed(&self.fault),
        }
    }

    /// Returns the actions of its rules and comparisons, the weakest first.
    pub fn actions(&self) -> BTreeSet<Action> {
        let rules = self.rules.iter().map(|rule| rule.action);
        rules.chain(self.outliers.iter().map(|outlier| outlier.action)).collect()
    }

    /// Returns the destructive commands that its findings may ask for, the weakest first, with what stands for node and GPU.
    pub fn destructive(&self) -> impl Iterator<Item = (Action, String)> {
        let (node, gpu) = PLACEHOLDERS;
        let gpu = (self.scope == Scope::Gpu).then_some(gpu);
        self.actions().into_iter().filter_map(move |action| Some((action, action.command(node, gpu)?)))
    }

    /// Whether there may be something that it compares readings with, by what is declared of nodes: a value, or other nodes.
    pub(crate) fn is_comparable(&self, declared: &BTreeMap<String, Value>) -> bool {
        // Without any reading, so that nothing but what is declared decides.
        let signals = Signals::default();
        let scene = Scene::of(&signals, None, declared, &self.params, &NoOthers);
        !self.outliers.is_empty() || !self.na_when.as_ref().is_some_and(|na| na.holds(&scene).holds())
    }

    /// Whether that something is not known is what one of its rules finds, as with a driver that does not answer.
    pub fn finds_unknown(&self) -> bool {
        self.rules.iter().any(|rule| rule.verdict == RuleVerdict::Fixed(Verdict::Unknown))
    }

    /// Returns the signals that it reads or shows.
    pub fn signals(&self) -> impl Iterator<Item = &(Scope, Arc<str>)> {
        let compared = self.outliers.iter();
        let when = compared.clone().filter_map(|outlier| outlier.when.as_ref());
        let codes = self.na_when.iter().chain(self.rules.iter().map(|rule| &rule.when)).chain(when);
        let of_peers = compared.flat_map(|outlier| outlier.alike.iter().chain([&outlier.of]));
        let named = codes.flat_map(|code| code.signals.iter().chain(&code.of_ports));
        let own = self.requires.iter().chain(named).chain(&self.evidence);
        own.chain(of_peers)
    }

    /// Compiles the data. `checks` are the ids that rules may name, `own` is what the check itself reads.
    ///
    /// # Errors
    /// The text of the rule or name that is wrong, and what is wrong with it.
    pub(crate) fn compile(
        data: CheckData,
        checks: &BTreeSet<String>,
        own: Option<&OwnReading>,
    ) -> Result<Self, Mistake> {
        let context = Context { scope: Some(data.scope), params: &data.params, checks, own };
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
        let mut watches = false;
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
            let when = code(&rule.when)?;
            if when.watches && std::mem::replace(&mut watches, true) {
                let error = RuleError::new("another rule of this check watches a condition already", 0, 1);
                return Err((rule.when.clone(), error));
            }
            rules.push(Rule {
                when,
                text: rule.when.clone(),
                verdict,
                action: rule.action,
                at_once: rule.at_once,
                note: rule.note.as_str().into(),
            });
        }
        let mut outliers = Vec::with_capacity(data.outliers.len());
        for outlier in &data.outliers {
            let of = names(std::slice::from_ref(&outlier.of))?;
            let Some(of) = of.into_iter().next() else { continue };
            outliers.push(Outlier {
                of,
                when: outlier.when.as_deref().map(code).transpose()?,
                alike: names(&outlier.alike)?,
                same_place: outlier.same_place,
                measure: match (outlier.near, outlier.high, outlier.low) {
                    (Some(share), _, _) => Measure::Near(share),
                    (_, Some(least), _) => Measure::High(least),
                    (_, _, Some(ratio)) => Measure::Low(ratio),
                    (None, None, None) => Measure::Same,
                },
                action: outlier.action,
                note: outlier.note.as_str().into(),
            });
        }
        Ok(Self {
            outliers,
            requires: names(&data.requires)?,
            na_when: data.na_when.as_deref().map(code).transpose()?,
            evidence: names(&data.evidence)?,
            rules,
            declared_by: data.declared_by,
            explained_by: data.explained_by.iter().map(|id| id.as_str().into()).collect(),
            hysteresis: Hysteresis { enter: data.enter, clear: data.enter.min(MOST_CLEAR) },
            id: data.id.into(),
            title: data.title,
            fault: data.fault,
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

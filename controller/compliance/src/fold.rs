//! From findings to the verdict of a node.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde::Serialize;

use crate::finding::{DRIVER, Finding, NaReason, SILENT, Subject};
use crate::policy::NodePolicy;
use crate::texts;
use crate::verdict::{Action, Scope, Severity, Verdict};

/// What a node is, all in all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeVerdict {
    /// The worst of the findings that are not waived; unknown where too little was judged.
    pub verdict: Verdict,
    pub action: Action,
    /// Whether nothing is unwaived that should not be: no drift, unknown or fail, and enough judged.
    pub compliant: bool,
    pub coverage: Coverage,
    /// From 0 to 100: the points of the worst finding, at most the share of checks that were judged.
    pub score: u8,
}

/// How much of what applies could be judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Coverage {
    /// Findings that are ok, warn, drift or fail.
    pub judged: usize,
    /// All but what does not apply.
    pub applicable: usize,
    /// Those of the applicable ones that this audit did not set out to judge.
    pub not_yet: usize,
    /// Those of them that only need another audit to compare with.
    pub no_earlier: usize,
    pub not_judged: Vec<NotJudged>,
    /// Checks that are critical, or that the baseline requires, and of which something is not judged.
    #[serde(serialize_with = "texts::set")]
    pub critical_not_judged: BTreeSet<Arc<str>>,
}

/// A finding that is no judgement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotJudged {
    #[serde(serialize_with = "texts::one")]
    pub check: Arc<str>,
    pub subject: Subject,
    #[serde(serialize_with = "texts::one")]
    pub why: Arc<str>,
}

impl Coverage {
    /// Returns how many judgements this audit set out to make.
    pub const fn asked(&self) -> usize {
        self.applicable.saturating_sub(self.not_yet)
    }

    /// Returns the share that was judged of what this audit set out to judge, from 0 to 1; 1 where that is nothing.
    #[expect(clippy::cast_precision_loss, reason = "counts of findings")]
    pub fn ratio(&self) -> f64 {
        let asked = self.applicable - self.not_yet;
        if asked == 0 { 1.0 } else { self.judged as f64 / asked as f64 }
    }
}

/// What makes readings of a GPU fail as a whole.
const LISTING: [&str; 5] =
    ["inv.gpu_lost", "err.nvml_responsive", "sw.driver_loaded", "sw.module_match", "inv.gpu_count"];

/// Folds findings to the verdict of their node, and marks those that another one explains.
///
/// A symptom's verdict counts, its action does not. A finding gets explained by a cause on the same subject or on the
/// node that is not ok, and not waived. What is unknown explains nothing but what is unknown too.
pub fn fold(policy: &NodePolicy, findings: &mut [Finding]) -> NodeVerdict {
    let causes = explain(findings);
    let coverage = coverage(policy, findings);
    let worst =
        findings.iter().filter(|finding| finding.waived.is_none()).map(|finding| finding.verdict).max();
    let too_little = coverage.judged == 0
        || !coverage.critical_not_judged.is_empty()
        || coverage.ratio() < policy.min_coverage;
    let floor = if too_little { Verdict::Unknown } else { Verdict::Na };
    let verdict = worst.unwrap_or(Verdict::Na).max(floor);
    let red = if policy.warn_is_red { Verdict::Warn } else { Verdict::Drift };
    NodeVerdict {
        verdict,
        action: action(findings, &causes, verdict, too_little),
        compliant: verdict < red,
        score: score(findings, &coverage),
        coverage,
    }
}

/// Finds the cause of each finding, as its index. No two findings explain each other.
fn explain(findings: &mut [Finding]) -> Vec<Option<usize>> {
    let mut causes: Vec<Option<usize>> = vec![None; findings.len()];
    let bad: Vec<usize> =
        findings.iter().enumerate().filter(|(_, finding)| finding.counts()).map(|(at, _)| at).collect();
    let mut by_check: HashMap<Arc<str>, Vec<usize>> = HashMap::new();
    for &at in &bad {
        let Some(finding) = findings.get(at) else { continue };
        by_check.entry(Arc::clone(&finding.check.id)).or_default().push(at);
    }
    for &at in &bad {
        let Some(finding) = findings.get(at) else { continue };
        let own = finding.check.explained_by.iter().map(|id| &**id);
        let unread = finding.verdict == Verdict::Unknown && finding.check.scope == Scope::Gpu;
        // First, so that one silence has one cause, whatever else of the driver is unknown by it.
        let silent = (*finding.note == *SILENT).then_some(DRIVER);
        let found =
            silent.into_iter().chain(own).chain(LISTING.into_iter().filter(|_| unread)).find_map(|id| {
                by_check.get(id).into_iter().flatten().copied().find(|&other| {
                    let Some(cause) = findings.get(other) else { return false };
                    other != at
                        && cause.subject.concerns(&finding.subject)
                        && (cause.verdict != Verdict::Unknown || finding.verdict == Verdict::Unknown)
                        && !reaches(&causes, other, at)
                })
            });
        if let Some(slot) = causes.get_mut(at) {
            *slot = found;
        }
    }
    for at in 0..findings.len() {
        let cause = causes.get(at).copied().flatten().and_then(|cause| findings.get(cause));
        let id = cause.map(|cause| Arc::clone(&cause.check.id));
        if let Some(finding) = findings.get_mut(at) {
            finding.explained_by = id;
        }
    }
    causes
}

/// Whether the causes of `from` lead to `to`.
fn reaches(causes: &[Option<usize>], from: usize, to: usize) -> bool {
    let mut at = from;
    while at != to {
        match causes.get(at).copied().flatten() {
            Some(next) => at = next,
            None => return false,
        }
    }
    true
}

/// Returns the strongest action of what the node's verdict comes from. Behind a symptom stands its first cause, however
/// mild that one's own verdict is.
fn action(findings: &[Finding], causes: &[Option<usize>], verdict: Verdict, too_little: bool) -> Action {
    let mut strongest = Action::None;
    for (at, finding) in findings.iter().enumerate().filter(|(_, finding)| finding.counts()) {
        let mut first = at;
        while let Some(cause) = causes.get(first).copied().flatten() {
            first = cause;
        }
        let Some(cause) = findings.get(first) else { continue };
        if finding.verdict == verdict || cause.action == Action::Replace {
            strongest = strongest.max(cause.action);
        }
    }
    // What nothing was found about is for a person. Where something was, it says by itself what to do.
    match strongest {
        Action::None if too_little && verdict == Verdict::Unknown => Action::Investigate,
        strongest => strongest,
    }
}

fn coverage(policy: &NodePolicy, findings: &[Finding]) -> Coverage {
    let applies = |finding: &&Finding| finding.na != Some(NaReason::NotApplicable);
    let mut coverage = Coverage {
        judged: 0,
        applicable: 0,
        not_yet: 0,
        no_earlier: 0,
        not_judged: Vec::new(),
        critical_not_judged: BTreeSet::new(),
    };
    for finding in findings.iter().filter(applies) {
        coverage.applicable += 1;
        let no_earlier = finding.na == Some(NaReason::NotYet);
        coverage.no_earlier += usize::from(no_earlier);
        coverage.not_yet += usize::from(no_earlier || finding.na == Some(NaReason::NotAsked));
        if finding.verdict.is_judged() {
            coverage.judged += 1;
            continue;
        }
        let check = &finding.check;
        let critical = policy.require.contains(&*check.id) || check.severity == Severity::Critical;
        // Why not all: what needs an earlier reading is not judged on the first audit of every node.
        if critical && (finding.verdict == Verdict::Unknown || policy.require.contains(&*check.id)) {
            coverage.critical_not_judged.insert(Arc::clone(&check.id));
        }
        coverage.not_judged.push(NotJudged {
            check: Arc::clone(&check.id),
            subject: finding.subject.clone(),
            why: Arc::clone(&finding.note),
        });
    }
    for id in &policy.require {
        if !findings.iter().any(|finding| *finding.check.id == **id) {
            coverage.critical_not_judged.insert(id.as_str().into());
        }
    }
    coverage
}

fn score(findings: &[Finding], coverage: &Coverage) -> u8 {
    let least = findings.iter().filter(|finding| finding.waived.is_none()).map(points).min().unwrap_or(100);
    let asked = coverage.applicable - coverage.not_yet;
    let judged = coverage.judged.saturating_mul(100).checked_div(asked).unwrap_or(100);
    least.min(u8::try_from(judged).unwrap_or(100))
}

fn points(finding: &Finding) -> u8 {
    match (finding.verdict, finding.check.severity) {
        (Verdict::Na | Verdict::Ok, _) => 100,
        (Verdict::Warn, Severity::Info | Severity::Low) => 95,
        (Verdict::Warn, _) => 85,
        (Verdict::Drift, _) => 70,
        (Verdict::Unknown, _) => 40,
        (Verdict::Fail, Severity::Critical) => 0,
        (Verdict::Fail, Severity::High) => 15,
        (Verdict::Fail, _) => 25,
    }
}

#[cfg(test)]
mod tests;

//! A run as OpenMetrics, for Prometheus: verdicts, coverage and findings of nodes, and what was read of their GPUs.
//!
//! Label values are ids, never sentences. What was not read has no sample, so that an alert on its absence, or on the
//! age of `gpufleet_audit_timestamp_seconds`, sees it.

mod exposition;
mod readings;

use std::collections::{BTreeMap, HashMap};

use gpufleet_compliance::{Action, Severity};
use gpufleet_protocol::keep::KeptVerdict;
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};

use self::exposition::{Exposition, Family, Form, Kind, label};
pub(super) use self::readings::NodeReadings;
use super::{NodeModel, NodeResult, RunModel, Totals, Verdict};

/// The media type of the document, for an HTTP response.
pub const OPENMETRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

macro_rules! families {
    ($($id:ident = $name:literal, $kind:ident, $unit:literal, $help:literal;)+) => {
        $(static $id: Family = Family { name: $name, kind: Kind::$kind, unit: $unit, help: $help };)+
    };
}

families! {
    VERDICT = "gpufleet_node_verdict", StateSet, "", "The worst of what is known about the node.";
    RESULT = "gpufleet_node_result", StateSet, "", "Whether the node is as declared, or why nobody may say so.";
    ACTION = "gpufleet_node_next_action", StateSet, "", "What to do about the node.";
    CHECKS = "gpufleet_node_checks", Gauge, "", "Judgements of the checks, by verdict.";
    COVERAGE = "gpufleet_node_coverage_ratio", Gauge, "ratio", "Share of what applies to the node that was judged.";
    SCORE = "gpufleet_node_score", Gauge, "", "From 0 to 100: the points of the worst finding of the checks.";
    FINDINGS = "gpufleet_check_findings", Gauge, "", "Findings that are not ok; there is no series for what is ok.";
    COMPLIANT = "gpufleet_fleet_compliant_ratio", Gauge, "ratio", "Share of the selected nodes that is compliant.";
    NODES = "gpufleet_fleet_nodes", Gauge, "", "Nodes by verdict.";
    KEPT = "gpufleet_node_kept", StateSet, "", "How the node's latest boot asserted the GPU state that it keeps.";
    KEPT_PROBLEMS = "gpufleet_node_kept_concerns", Gauge, "", "What a person should look at of the kept GPU state.";
    DURATION = "gpufleet_audit_duration_seconds", Gauge, "seconds", "Time that the node took.";
    CPU = "gpufleet_audit_cpu_seconds", Gauge, "seconds", "CPU time that the readings took on the node.";
    AT = "gpufleet_audit_timestamp_seconds", Gauge, "seconds", "When the node was read.";
    EXPIRY = "gpufleet_waiver_expiry_timestamp_seconds", Gauge, "seconds",
        "When the waiver ends, at midnight UTC after its last day.";
}

/// One node, with the run that judged it last.
struct Row<'a> {
    name: String,
    node: &'a NodeModel,
    run: &'a RunModel,
}

/// The findings of a node that one series of `gpufleet_check_findings` counts.
type Series = (String, Severity, Verdict, bool);

/// Returns runs as one document; a node that several of them have is as in the last of these.
pub fn openmetrics(runs: &[&RunModel]) -> String {
    document(runs, Form::OpenMetrics)
}

/// Returns the same in the text format of Prometheus, for the textfile collector of node_exporter.
pub fn prometheus(runs: &[&RunModel]) -> String {
    document(runs, Form::Text)
}

fn document(runs: &[&RunModel], form: Form) -> String {
    let mut rows: Vec<Row<'_>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for run in runs {
        for node in run.nodes() {
            let row = Row { name: label(&node.name), node, run };
            match places.get(node.name.as_str()).and_then(|at| rows.get_mut(*at)) {
                Some(known) => *known = row,
                None => {
                    places.insert(&node.name, rows.len());
                    rows.push(row);
                }
            }
        }
    }
    let mut out = Exposition::new(form);
    verdicts(&mut out, &rows);
    findings(&mut out, &rows);
    fleet(&mut out, &rows, runs);
    reading(&mut out, &rows);
    kept(&mut out, &rows);
    waivers(&mut out, runs);
    let read: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let health = row.node.health.as_ref()?;
            Some((row.name.as_str(), row.node.driver_version().unwrap_or_default(), &health.readings))
        })
        .collect();
    readings::gpus(&mut out, &read);
    out.finish()
}

#[expect(clippy::cast_precision_loss, reason = "counts of nodes and findings")]
const fn number(count: usize) -> f64 {
    count as f64
}

fn seconds(at: Timestamp) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact for 200,000 years")]
    let ms = at.as_millisecond() as f64;
    ms / 1000.0
}

fn verdicts(out: &mut Exposition, rows: &[Row<'_>]) {
    let words = || Verdict::ALL.iter().map(|verdict| verdict.word());
    for Row { name, node, run } in rows {
        out.states(&VERDICT, &[("node", name)], words(), node.verdict(run.verb()).word());
    }
    for Row { name, node, run } in rows {
        let results = NodeResult::ALL.iter().map(|result| result.word());
        out.states(&RESULT, &[("node", name)], results, node.result(run.verb()).word());
    }
    for Row { name, node, run } in rows {
        let actions = Action::ALL.iter().map(|action| action.word());
        out.states(&ACTION, &[("node", name)], actions, node.next_action(run.verb()).word());
    }
    for Row { name, node, .. } in rows {
        let Some(health) = &node.health else { continue };
        for verdict in Verdict::ALL {
            let count = health.findings.iter().filter(|finding| finding.verdict == *verdict).count();
            out.sample(&CHECKS, &[("node", name), ("verdict", verdict.word())], number(count));
        }
    }
    for Row { name, node, run } in rows {
        let of = node.judgements(run);
        let share = match of.asked {
            0 if node.verdict(run.verb()) == Verdict::Unknown => 0.0,
            0 => continue,
            asked => number(of.made) / number(asked),
        };
        out.sample(&COVERAGE, &[("node", name)], share);
    }
    for Row { name, node, .. } in rows {
        if let Some(health) = &node.health {
            out.sample(&SCORE, &[("node", name)], f64::from(health.verdict.score));
        }
    }
}

fn kept(out: &mut Exposition, rows: &[Row<'_>]) {
    let kept = || rows.iter().filter_map(|row| Some((row.name.as_str(), row.node.kept.as_deref()?)));
    for (name, kept) in kept() {
        let Some(last) = kept.boots.last() else { continue };
        let words = KeptVerdict::ALL.iter().map(|verdict| verdict.as_str());
        out.states(&KEPT, &[("node", name)], words, last.verdict.as_str());
    }
    for (name, kept) in kept() {
        out.sample(&KEPT_PROBLEMS, &[("node", name)], number(kept.concerns().len()));
    }
}

fn findings(out: &mut Exposition, rows: &[Row<'_>]) {
    for Row { name, node, run } in rows {
        let mut series: BTreeMap<Series, usize> = BTreeMap::new();
        for found in node.findings(run.verb()) {
            let of = (found.control.id, found.control.severity, found.verdict, found.waived.is_some());
            *series.entry(of).or_default() += 1;
        }
        for ((check, severity, verdict, waived), count) in series {
            let check = label(&check);
            let labels = [
                ("node", name.as_str()),
                ("check", &check),
                ("severity", severity.word()),
                ("verdict", verdict.word()),
                ("waived", if waived { "true" } else { "false" }),
            ];
            out.sample(&FINDINGS, &labels, number(count));
        }
    }
}

fn fleet(out: &mut Exposition, rows: &[Row<'_>], runs: &[&RunModel]) {
    let mut shares: BTreeMap<String, f64> = BTreeMap::new();
    for run in runs.iter().filter(|run| !run.nodes().is_empty()) {
        let audit = run.run.as_ref().and_then(|run| run.audit.as_ref());
        let baseline = audit.map_or("none", |audit| &audit.policy.data().name);
        let totals = Totals::of(run);
        shares.insert(label(baseline), number(totals.compliant) / number(totals.nodes));
    }
    for (baseline, share) in shares {
        out.sample(&COMPLIANT, &[("baseline", &baseline)], share);
    }
    for verdict in Verdict::ALL {
        let count = rows.iter().filter(|row| row.node.verdict(row.run.verb()) == *verdict).count();
        out.sample(&NODES, &[("verdict", verdict.word())], number(count));
    }
}

/// What the readings of each node took, and when they were made.
fn reading(out: &mut Exposition, rows: &[Row<'_>]) {
    for Row { name, node, run } in rows {
        out.sample(
            &DURATION,
            &[("node", name)],
            number(usize::try_from(node.seconds(run.latest)).unwrap_or(0)),
        );
    }
    for Row { name, node, .. } in rows {
        if let Some(health) = &node.health {
            let tier = health.readings.tier.to_string();
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of CPU time")]
            let cpu = health.readings.cpu_ms as f64 / 1000.0;
            out.sample(&CPU, &[("node", name), ("tier", &tier)], cpu);
        }
    }
    for Row { name, node, .. } in rows {
        if let Some(at) = node.health.as_ref().map(|health| health.readings.at).or(node.facts_at) {
            out.sample(&AT, &[("node", name)], seconds(at));
        }
    }
}

fn waivers(out: &mut Exposition, runs: &[&RunModel]) {
    let mut ends: BTreeMap<(String, String), f64> = BTreeMap::new();
    let audits = runs.iter().filter_map(|run| run.run.as_ref()?.audit.as_ref());
    for waiver in audits.flat_map(|audit| audit.waivers().list()) {
        let end = waiver.expires.saturating_add(1.day()).to_zoned(TimeZone::UTC);
        if let Ok(end) = end {
            ends.insert((label(&waiver.id), label(&waiver.check)), seconds(end.timestamp()));
        }
    }
    for ((waiver, check), end) in ends {
        out.sample(&EXPIRY, &[("waiver", &waiver), ("check", &check)], end);
    }
}

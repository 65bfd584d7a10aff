use proptest::prelude::*;

use gpufleet_protocol::signal::Signal;

use super::*;
use crate::catalogue::Catalogue;
use crate::judge;
use crate::samples::{everything, node, policy, told, xid};

fn finding(check: &str, gpu: Option<usize>, verdict: Verdict, action: Action) -> Finding {
    Finding {
        check: Arc::clone(Catalogue::get().check(check).unwrap()),
        subject: match gpu {
            Some(index) => {
                Subject::Gpu { uuid: format!("GPU-{index}").into(), label: format!("GPU {index}").into() }
            }
            None => Subject::Node,
        },
        verdict,
        action,
        note: "".into(),
        expected: None,
        evidence: Vec::new(),
        na: (verdict == Verdict::Na).then_some(NaReason::NotApplicable),
        waived: None,
        explained_by: None,
        standing: None,
        watch: None,
    }
}

fn bare() -> Arc<NodePolicy> {
    policy("checks: ['*']\nmin_coverage: 0\n").for_node("x", &[])
}

#[test]
fn a_healthy_node_is_compliant_and_has_all_points() {
    let policy = policy("core").for_node("gpu001", &[]);
    let mut findings = judge(&policy, &node());
    let verdict = fold(&policy, &mut findings);
    assert_eq!((verdict.verdict, verdict.action, verdict.score), (Verdict::Ok, Action::None, 100));
    let coverage = verdict.coverage;
    assert!(verdict.compliant && coverage.no_earlier > 0);
    // What compares with an earlier audit, and nothing else.
    assert_eq!(coverage.not_judged.len(), coverage.no_earlier);
    assert_eq!(coverage.judged, coverage.asked());
}

#[test]
fn a_symptom_counts_and_its_cause_acts() {
    let mut signals = node();
    signals.gpus.remove(1);
    signals.node.insert("nvml_count".to_owned(), 1.into());
    signals.records.push(xid(79, "0000:51:00.0"));
    signals.gpus[0].readings.insert("remap_pending".to_owned(), 1.into());
    signals.records.push(xid(63, "0000:50:00.0"));
    let mut findings = judge(&everything(), &signals);
    let verdict = fold(&bare(), &mut findings);
    insta::assert_snapshot!(told(&findings), @r"
    inv.gpu_count [] fail reboot: a GPU is on the bus, and the driver does not list it <- err.xid_reboot
    err.xid_reboot [GPU at 0000:51:00.0] fail reboot: an Xid that only a reboot settles was logged
    err.xid_memory [GPU 0] warn none: a row was recorded for remapping <- mem.remap_pending
    mem.remap_pending [GPU 0] drift reset: a row is remapped at the next reset; work may go on until then
    ");
    assert_eq!((verdict.verdict, verdict.action, verdict.score), (Verdict::Fail, Action::Reboot, 0));
}

#[test]
fn behind_a_failing_symptom_stands_the_action_of_its_milder_cause() {
    let mut findings = vec![
        finding("mem.remap_pending", Some(0), Verdict::Drift, Action::Reset),
        finding("mem.uncorrected_volatile", Some(0), Verdict::Fail, Action::Investigate),
        finding("os.governor", None, Verdict::Drift, Action::Drain),
    ];
    let verdict = fold(&bare(), &mut findings);
    assert_eq!(findings[1].explained_by.as_deref(), Some("mem.remap_pending"));
    assert_eq!((verdict.verdict, verdict.action), (Verdict::Fail, Action::Reset));
}

#[test]
fn causes_are_looked_for_on_the_same_subject_or_its_node() {
    let mut findings = vec![
        finding("mem.remap_pending", Some(1), Verdict::Drift, Action::Reset),
        finding("mem.uncorrected_volatile", Some(0), Verdict::Fail, Action::Reset),
        finding("nvl.fabric_manager", None, Verdict::Fail, Action::Apply),
        finding("nvl.fabric_state", Some(0), Verdict::Fail, Action::Investigate),
    ];
    fold(&bare(), &mut findings);
    assert_eq!(findings[1].explained_by, None);
    assert_eq!(findings[3].explained_by.as_deref(), Some("nvl.fabric_manager"));
}

#[test]
fn what_is_unknown_explains_no_failure() {
    let mut findings = vec![
        finding("err.recovery_action", Some(0), Verdict::Unknown, Action::Investigate),
        finding("err.xid_reset", Some(0), Verdict::Fail, Action::Reset),
    ];
    let verdict = fold(&bare(), &mut findings);
    assert_eq!(findings[1].explained_by, None);
    assert_eq!(verdict.action, Action::Reset);
}

#[test]
fn a_dead_driver_is_one_cause_and_not_fifty() {
    let mut signals = node();
    signals.gpus.clear();
    for (name, value) in [("nvml_count", 0), ("nvml_init_code", 9)] {
        signals.node.insert(name.to_owned(), value.into());
    }
    signals.node.insert("module_version".to_owned(), gpufleet_protocol::signal::Signal::Absent);
    let mut findings = judge(&everything(), &signals);
    let verdict = fold(&everything(), &mut findings);
    assert_eq!((verdict.verdict, verdict.action), (Verdict::Fail, Action::Apply));
    let unexplained: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.counts() && finding.explained_by.is_none())
        .map(|finding| &*finding.check.id)
        .collect();
    assert_eq!(unexplained, ["sw.driver_loaded"]);
    assert!(verdict.coverage.critical_not_judged.contains("mem.remap_failed"));
}

/// What a helper says of a node whose driver hangs.
fn hung() -> gpufleet_protocol::signal::Signals {
    let unknown = || Signal::Unknown("NVML did not answer in 10 s (worker killed)".to_owned());
    let mut signals = node();
    signals.gpus.clear();
    signals.node.insert("worker_state".to_owned(), "hung".into());
    for name in ["nvml_init_code", "nvml_count", "driver_version", "cuda_version", "excluded_count"] {
        signals.node.insert(name.to_owned(), unknown());
    }
    for name in ["cc_feature", "cc_devtools", "cc_ready"] {
        signals.node.insert(name.to_owned(), unknown());
    }
    signals
}

#[test]
fn a_hung_driver_is_one_cause_and_asks_for_a_reboot() {
    let earlier = crate::Memory::after(None, &node(), &[], 0);
    for policy in [everything(), policy("core").for_node("gpu001", &[])] {
        // The node's first audit, and one after good ones.
        for earlier in [None, Some(&earlier)] {
            let mut findings = crate::judge_after(&policy, &hung(), earlier, 86_400);
            let verdict = fold(&policy, &mut findings);
            let counting = || findings.iter().filter(|finding| finding.counts());
            let causes: Vec<&str> =
                counting().filter(|it| it.explained_by.is_none()).map(|it| &*it.check.id).collect();
            assert_eq!(causes, ["err.nvml_responsive"]);
            assert_eq!((verdict.verdict, verdict.action), (Verdict::Unknown, Action::Reboot));
            for finding in counting().filter(|it| it.explained_by.is_some()) {
                assert!(finding.is_of_silent_driver(), "{}: {}", finding.check.id, finding.note);
            }
            let why = |it: &NotJudged| *it.why == *SILENT || it.check.starts_with("err.nvml");
            let of_gpus = |it: &&NotJudged| Catalogue::get().check(&it.check).unwrap().scope == Scope::Gpu;
            assert!(verdict.coverage.not_judged.iter().filter(of_gpus).all(why));
        }
    }
}

#[test]
fn replace_wins_over_what_is_worse() {
    let mut findings = vec![
        finding("pcie.width", Some(0), Verdict::Fail, Action::Investigate),
        finding("mem.class", Some(1), Verdict::Drift, Action::Replace),
    ];
    assert_eq!(fold(&bare(), &mut findings).action, Action::Replace);
}

#[test]
fn what_an_audit_did_not_set_out_to_judge_is_told_and_not_red() {
    let least = policy("checks: ['*']\nmin_coverage: 0.9\n").for_node("x", &[]);
    let ok = |gpu| finding("pcie.width", Some(gpu), Verdict::Ok, Action::None);
    let mut findings: Vec<Finding> = (0..8).map(ok).collect();
    let mut yet = finding("os.governor", None, Verdict::Na, Action::None);
    yet.na = Some(NaReason::NotYet);
    findings.push(yet);
    let verdict = fold(&least, &mut findings);
    assert_eq!((verdict.verdict, verdict.score, verdict.compliant), (Verdict::Ok, 100, true));
    let coverage = &verdict.coverage;
    assert_eq!((coverage.judged, coverage.applicable, coverage.not_yet), (8, 9, 1));
    assert_eq!(coverage.not_judged.len(), 1);
}

#[test]
fn the_score_is_no_higher_than_what_was_judged() {
    let unknown = |gpu| finding("pcie.width", Some(gpu), Verdict::Unknown, Action::Investigate);
    let mut findings: Vec<Finding> = (0..8).map(unknown).collect();
    findings.push(finding("os.governor", None, Verdict::Ok, Action::None));
    let verdict = fold(&bare(), &mut findings);
    assert_eq!((verdict.verdict, verdict.action, verdict.score), (Verdict::Unknown, Action::Investigate, 11));
    assert!(!verdict.compliant);
}

#[test]
fn a_required_check_that_nobody_judged_is_named() {
    let policy =
        policy("checks: ['*']\nmin_coverage: 0\nrequire: [nvl.links, os.governor]\n").for_node("x", &[]);
    let mut findings = vec![finding("os.governor", None, Verdict::Ok, Action::None)];
    let verdict = fold(&policy, &mut findings);
    assert_eq!(verdict.verdict, Verdict::Unknown);
    assert_eq!(
        verdict.coverage.critical_not_judged.iter().map(|id| &**id).collect::<Vec<_>>(),
        ["nvl.links"]
    );
    // Where it does not apply it is not missed.
    findings.push(finding("nvl.links", Some(0), Verdict::Na, Action::None));
    assert_eq!(fold(&policy, &mut findings).verdict, Verdict::Ok);
}

#[test]
fn a_warning_is_red_where_the_baseline_says_so() {
    let mut findings = vec![finding("os.governor", None, Verdict::Warn, Action::None)];
    assert!(fold(&bare(), &mut findings).compliant);
    let strict = policy("checks: ['*']\nmin_coverage: 0\nwarn_is_red: true\n").for_node("x", &[]);
    assert!(!fold(&strict, &mut findings).compliant);
}

fn some_finding() -> impl Strategy<Value = Finding> {
    let ids: Vec<&str> = Catalogue::get().checks().iter().map(|check| &*check.id).collect();
    let verdicts = prop::sample::select(Verdict::ALL);
    let actions = prop::sample::select(Action::ALL);
    (prop::sample::select(ids), prop::option::of(0_usize..2), verdicts, actions)
        .prop_map(|(check, gpu, verdict, action)| finding(check, gpu, verdict, action))
}

fn waive(finding: &mut Finding) {
    // As `Waivers::apply` has it: only what was judged, and can be waived.
    if matches!(finding.verdict, Verdict::Warn | Verdict::Drift | Verdict::Fail) && finding.check.waivable {
        finding.waived = Some("w".into());
    }
}

proptest! {
    /// What does not apply is left out: where it begins to apply, more is judged than before.
    #[test]
    fn a_worse_finding_never_makes_a_better_node(
        findings in prop::collection::vec(some_finding(), 1..12),
        at in any::<prop::sample::Index>(),
        worse in prop::sample::select(Verdict::ALL),
        least in 0.0..1.0_f64,
    ) {
        let policy = policy(&format!("checks: ['*']\nmin_coverage: {least}\n")).for_node("x", &[]);
        let mut changed = findings.clone();
        let mut findings = findings;
        let at = at.index(changed.len());
        prop_assume!(worse > changed[at].verdict && changed[at].verdict != Verdict::Na);
        changed[at].verdict = worse;
        let (before, after) = (fold(&policy, &mut findings), fold(&policy, &mut changed));
        prop_assert!(after.verdict >= before.verdict, "{before:?} {after:?}");
        prop_assert!(before.compliant || !after.compliant);
    }

    #[test]
    fn waivers_hide_neither_the_unknown_nor_what_cannot_be_waived(findings in prop::collection::vec(some_finding(), 1..12)) {
        let mut findings = findings;
        let before = fold(&bare(), &mut findings);
        findings.iter_mut().for_each(waive);
        let after = fold(&bare(), &mut findings);
        prop_assert!(after.verdict <= before.verdict);
        if findings.iter().any(|finding| finding.verdict == Verdict::Unknown) {
            prop_assert!(after.verdict >= Verdict::Unknown);
        }
        prop_assert_eq!(&after.coverage, &before.coverage);
        prop_assert!(after.score >= before.score);
    }

    #[test]
    fn the_order_of_findings_decides_nothing(findings in prop::collection::vec(some_finding(), 1..8)) {
        let mut forward = findings.clone();
        let mut backward: Vec<Finding> = findings.into_iter().rev().collect();
        let (a, b) = (fold(&bare(), &mut forward), fold(&bare(), &mut backward));
        prop_assert_eq!((a.verdict, a.score, a.compliant), (b.verdict, b.score, b.compliant));
    }
}

use gpufleet_language::diagnostic::SourceFile;
use jiff::civil::date;

use super::*;
use crate::samples::{node, policy, told};
use crate::{fold, judge};

const WAIVER: &str = "- id: slow-slot\n  check: pcie.width\n  match: {nodes: ['gpu0*'], subject: GPU 0}\n  \
                      reason: The riser is ordered.\n  owner: dc-team\n  created: 2026-11-01\n  expires: 2026-12-01\n";

fn read(text: &str) -> Waivers {
    Waivers::read(&SourceFile::new("waivers.yaml", text), &policy("core"))
        .unwrap_or_else(|errors| panic!("{errors}"))
}

fn refused(text: &str) -> String {
    Waivers::read(&SourceFile::new("waivers.yaml", text), &policy("core")).unwrap_err().to_string()
}

/// A node whose first GPU has half of its lanes, under waivers on a day.
fn applied(text: &str, host: &str, today: Date) -> (Vec<Finding>, crate::NodeVerdict) {
    let policy = policy("core").for_node(host, &[]);
    let mut signals = node();
    signals.gpus[0].readings.insert("pcie_width".to_owned(), 8.into());
    let mut findings = judge(&policy, &signals);
    let asked = Asked { host, groups: &["gpu"], today, gate: false };
    read(text).apply(&policy, &signals, &asked, &mut findings);
    let verdict = fold(&policy, &mut findings);
    (findings, verdict)
}

#[test]
fn a_waived_finding_stays_and_does_not_count() {
    let (findings, verdict) = applied(WAIVER, "gpu001", date(2026, 11, 23));
    assert_eq!(
        told(&findings),
        "pcie.width [GPU 0] fail investigate: the link runs with fewer lanes than it has (waived: slow-slot)"
    );
    assert_eq!((verdict.verdict, verdict.score, verdict.compliant), (Verdict::Ok, 100, true));
    assert_eq!(&*findings.last().unwrap().check.id, "audit.waiver");
}

#[test]
fn a_waiver_holds_for_its_nodes_and_its_days() {
    for (host, today, waived) in [
        ("gpu001", date(2026, 11, 1), true),
        ("gpu001", date(2026, 12, 1), true),
        ("gpu001", date(2026, 12, 2), false),
        ("gpu001", date(2026, 10, 31), false),
        ("cpu001", date(2026, 11, 23), false),
    ] {
        let (findings, _) = applied(WAIVER, host, today);
        assert_eq!(findings.iter().any(|finding| finding.waived.is_some()), waived, "{host} {today}");
    }
    let by_group = WAIVER.replace("nodes: ['gpu0*']", "groups: [gpu]");
    assert_eq!(applied(&by_group, "x", date(2026, 11, 23)).1.verdict, Verdict::Ok);
}

#[test]
fn an_ended_waiver_is_a_finding() {
    let (findings, verdict) = applied(WAIVER, "gpu001", date(2026, 12, 2));
    insta::assert_snapshot!(told(&findings), @r#"
    pcie.width [GPU 0] fail investigate: the link runs with fewer lanes than it has
    audit.waiver [] warn investigate: has ended: slow-slot of dc-team (2026-12-01)
    "#);
    assert_eq!(verdict.verdict, Verdict::Fail);
    // On a node without what it excused nothing fails.
    let core = policy("core").for_node("gpu001", &[]);
    let mut findings = judge(&core, &node());
    let asked = Asked { host: "gpu001", groups: &["gpu"], today: date(2026, 12, 2), gate: false };
    read(WAIVER).apply(&core, &node(), &asked, &mut findings);
    assert!(fold(&core, &mut findings).compliant);
    assert_eq!(findings.last().unwrap().verdict, Verdict::Warn);
    // One that ends soon warns.
    let (findings, _) = applied(WAIVER, "gpu001", date(2026, 11, 25));
    assert_eq!(findings.last().unwrap().verdict, Verdict::Warn);
    // Whoever it is not for hears nothing of it.
    assert!(
        !applied(WAIVER, "cpu001", date(2026, 12, 2))
            .0
            .iter()
            .any(|finding| &*finding.check.id == "audit.waiver")
    );
}

#[test]
fn what_is_worse_than_the_ceiling_counts_again() {
    let at = |lanes: u32| {
        applied(&format!("{WAIVER}  ceiling: pcie_width >= {lanes}\n"), "gpu001", date(2026, 11, 23)).1
    };
    assert_eq!(at(8).verdict, Verdict::Ok);
    assert_eq!(at(16).verdict, Verdict::Fail);
}

#[test]
fn the_gate_asks_only_for_its_own_waivers() {
    for (gate, verdict) in [("", Verdict::Fail), ("  gate: true\n", Verdict::Ok)] {
        let policy = policy("core").for_node("gpu001", &[]);
        let mut signals = node();
        signals.gpus[0].readings.insert("pcie_width".to_owned(), 8.into());
        let mut findings = judge(&policy, &signals);
        let asked = Asked { host: "gpu001", groups: &[], today: date(2026, 11, 23), gate: true };
        read(&format!("{WAIVER}{gate}")).apply(&policy, &signals, &asked, &mut findings);
        assert_eq!(fold(&policy, &mut findings).verdict, verdict);
    }
}

#[test]
fn neither_the_unknown_nor_what_cannot_be_waived_is_waived() {
    let policy = policy("core").for_node("gpu001", &[]);
    let mut signals = node();
    signals.gpus[0].readings.insert("pcie_width".to_owned(), Signal::Unknown("x".to_owned()));
    signals.gpus[0].readings.insert("remap_failed".to_owned(), 1.into());
    let mut findings = judge(&policy, &signals);
    let asked = Asked { host: "gpu001", groups: &[], today: date(2026, 11, 23), gate: false };
    let all = WAIVER.replace("check: pcie.width", "check: '*'").replace(", subject: GPU 0", "");
    read(&all).apply(&policy, &signals, &asked, &mut findings);
    insta::assert_snapshot!(told(&findings), @r#"
    mem.remap_failed [GPU 0] fail replace: a row could not be remapped
    mem.class [GPU 0] fail replace: class REPLACE: the board itself says so (waived: slow-slot)
    pcie.width [GPU 0] unknown investigate: `pcie_width`: x
    pcie.replay_rate [GPU 0] unknown investigate: `pcie_width`: x
    "#);
}

#[test]
fn mistakes_are_told_with_their_places() {
    insta::assert_snapshot!(
        refused(
            "- id: a\n  check: pcie.widht\n  match: {node: [x]}\n  owner: me\n  reason: ''\n  created: 2026-11-01\n  expires: soon\n"
        ),
        @r"
    error: `reason` is empty
      --> waivers.yaml:5:11
       |
     5 |   reason: ''
       |           ^^
    error: `expires` wants a date
      --> waivers.yaml:7:12
       |
     7 |   expires: soon
       |            ^^^^
    help: write it as 2026-02-28
    error: unknown key `node`
      --> waivers.yaml:3:11
       |
     3 |   match: {node: [x]}
       |           ^^^^ not a key of `match`
    help: did you mean `nodes`?
    error: `match` names no nodes and no groups
      --> waivers.yaml:3:10
       |
     3 |   match: {node: [x]}
       |          ^
    help: `nodes: ['*']` stands for every node
    error: no check matches `pcie.widht`
      --> waivers.yaml:2:10
       |
     2 |   check: pcie.widht
       |          ^^^^^^^^^^
    help: did you mean `pcie.width`?
    "
    );
    insta::assert_snapshot!(refused(&format!("{WAIVER}  ceiling: pcie_widht >= 8\n")), @r"
    error: there is no signal `pcie_widht`
      --> waivers.yaml:8:12
       |
     8 |   ceiling: pcie_widht >= 8
       |            ^^^^^^^^^^
    help: did you mean `pcie_width`?
    ");
}

#[test]
fn waivers_that_would_hold_too_long_or_too_much_are_refused() {
    let second = |id: &str| WAIVER.replace("slow-slot", id);
    let twice = format!(
        "{WAIVER}{}{}{}",
        WAIVER.replace("2026-12-01", "2027-03-01"),
        second("b").replace("pcie.width", "mem.remap_failed").replace("2026-12-01", "2026-10-01"),
        second("c").replace("pcie.width", "os.taint") + "  ceiling: pcie_width >= 8\n  gate: perhaps\n"
    );
    insta::assert_snapshot!(refused(&twice), @r#"
    error: a waiver holds for at most 90 days, and this one for 120
      --> waivers.yaml:14:12
        |
     14 |   expires: 2027-03-01
        |            ^^^^^^^^^^
    help: the last day can be 2027-01-30; renew it then, with its reason
    error: a waiver `slow-slot` stands above already
      --> waivers.yaml:8:7
       |
     8 | - id: slow-slot
       |       ^^^^^^^^^
    error: the waiver ends before it begins
      --> waivers.yaml:21:12
        |
     21 |   expires: 2026-10-01
        |            ^^^^^^^^^^
    error: `mem.remap_failed` cannot be waived
      --> waivers.yaml:16:10
        |
     16 |   check: mem.remap_failed
        |          ^^^^^^^^^^^^^^^^
    note: a node on which this check is not ok must not look healthy
    error: `gate` wants true or false, got a string
      --> waivers.yaml:30:9
        |
     30 |   gate: perhaps
        |         ^^^^^^^
    error: `os.taint` is a check of each node, and this reads a gpu
      --> waivers.yaml:29:12
        |
     29 |   ceiling: pcie_width >= 8
        |            ^^^^^^^^^^^^^^^
    "#);
}

//! GPUs that an earlier audit saw and this one does not.

use super::*;

#[test]
fn a_gpu_that_is_gone_is_missed() {
    let mut story = Story::new();
    story.audit();
    story.wait(DAY).put("nvml_count", 1).put("pci_count", 1);
    story.signals.gpus.pop();
    for _ in 0..3 {
        story.audit().wait(DAY);
        assert_eq!(
            &*story.finding("inv.gpu_count").note,
            "the node has fewer GPUs than in earlier audits, and none are declared"
        );
    }
    let declared = policy("checks: [inv.gpu_count]\ndeclared: {gpu_count: 1}\n").for_node("x", &[]);
    let findings = judge_after(&declared, &story.signals, story.memory.as_ref(), story.at);
    assert_eq!(findings[0].verdict, Verdict::Ok);
}

/// A node that lost all of them looks like one that never had any.
#[test]
fn a_node_that_lost_all_its_gpus_is_no_node_without_gpus() {
    let core = policy("core").for_node("x", &[]);
    // The driver is loaded and has no GPU; then its module does not load without one.
    for nvml in [Signal::from(0), Signal::Absent] {
        let mut story = Story::new();
        story.audit().wait(DAY).put("pci_count", 0);
        story.signals.node.insert("nvml_count".to_owned(), nvml);
        story.signals.gpus.clear();
        for _ in 0..3 {
            story.audit().wait(DAY);
            let count = story.finding("inv.gpu_count");
            assert_eq!(
                (count.verdict, count.action),
                (Verdict::Fail, crate::Action::Reboot),
                "{}",
                count.note
            );
            let mut findings = judge_after(&core, &story.signals, story.memory.as_ref(), story.at);
            let lost = findings.iter().find(|finding| &*finding.check.id == "inv.gpu_lost").unwrap();
            assert_eq!(&*lost.note, "no GPU is left, and the node should have 2");
            let verdict = crate::fold(&core, &mut findings);
            assert_eq!((verdict.compliant, verdict.action), (false, crate::Action::Reboot));
        }
    }
    // One that never had any is judged as before.
    let mut story = Story::new();
    story.put("pci_count", 0).put("nvml_count", 0);
    story.signals.gpus.clear();
    story.audit().wait(DAY).audit();
    assert_eq!(story.verdict("inv.gpu_count"), Verdict::Na);
    assert_eq!(story.verdict("inv.gpu_lost"), Verdict::Na);
}

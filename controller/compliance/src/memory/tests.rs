use serde_json::json;

use super::*;
use crate::samples::{everything, node, policy, told, xid};
use crate::{Action, NaReason, Scope, judge, judge_after};
use gpufleet_protocol::signal::Signal;

const START: i64 = 1_763_949_600; // 2025-11-24 02:00 UTC
const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;

/// A node over time.
struct Story {
    signals: Signals,
    memory: Option<Memory>,
    at: i64,
    findings: Vec<Finding>,
}

impl Story {
    fn new() -> Self {
        let mut signals = node();
        for name in ["boot_id_start", "boot_id_end"] {
            signals.node.insert(name.to_owned(), "b".into());
        }
        for name in ["driver_load_start", "driver_load_end"] {
            signals.node.insert(name.to_owned(), "l".into());
        }
        Self { signals, memory: None, at: START, findings: Vec::new() }
    }

    fn put(&mut self, name: &str, value: impl Into<Signal>) -> &mut Self {
        let (scope, _) = crate::vocabulary::lookup(name).unwrap();
        let readings = match scope {
            Scope::Node => &mut self.signals.node,
            Scope::Gpu => &mut self.signals.gpus[0].readings,
            Scope::Disk => &mut self.signals.disks[0].readings,
            Scope::Port => &mut self.signals.ports[0].readings,
        };
        readings.insert(name.to_owned(), value.into());
        self
    }

    fn wait(&mut self, seconds: i64) -> &mut Self {
        self.at += seconds;
        self.signals.uptime_s = self.signals.uptime_s.saturating_add_signed(seconds);
        self
    }

    fn boot(&mut self) -> &mut Self {
        let boot = format!("{}x", self.signals.boot_id.as_ref().unwrap());
        self.put("boot_id_start", boot.as_str()).put("boot_id_end", boot.as_str());
        self.signals.boot_id = Some(boot);
        self.signals.uptime_s = 300;
        self.load()
    }

    fn load(&mut self) -> &mut Self {
        let load = format!("l{}", self.at);
        self.put("driver_load_start", load.as_str()).put("driver_load_end", load.as_str())
    }

    fn audit(&mut self) -> &mut Self {
        self.findings = judge_after(&everything(), &self.signals, self.memory.as_ref(), self.at);
        let next = Memory::after(self.memory.as_ref(), &self.signals, &self.findings, self.at);
        let kept = serde_json::to_value(&next).unwrap();
        if next.is_whole() {
            assert_eq!(Memory::read(&kept).as_ref(), Some(&next), "it is read back as it was");
        }
        self.memory = Some(next);
        self
    }

    /// What is not ok, with its evidence of growth.
    fn told(&self) -> String {
        told(&self.findings)
    }

    fn finding(&self, check: &str) -> &Finding {
        self.findings.iter().find(|it| &*it.check.id == check).unwrap()
    }

    fn verdict(&self, check: &str) -> Verdict {
        self.finding(check).verdict
    }

    fn evidence(&self, check: &str, name: &str) -> String {
        let evidence = &self.finding(check).evidence;
        let found = evidence.iter().find(|(known, _)| &**known == name);
        found.map_or_else(
            || "none".to_owned(),
            |(_, signal)| signal.known().unwrap().as_str().unwrap().to_owned(),
        )
    }
}

#[test]
fn a_healthy_node_stays_healthy() {
    let mut story = Story::new();
    for _ in 0..20 {
        story.audit();
        assert_eq!(story.told(), "");
        story.wait(DAY);
    }
    story.boot().audit();
    assert_eq!(story.told(), "");
    let size = serde_json::to_string(&story.memory).unwrap().len();
    assert!(size < 2_000, "{size}");
}

/// What a real node with one H200 said. Its own faults are those of the machine that it ran on, and stay the same.
#[test]
fn a_recorded_node_says_the_same_each_day() {
    let mut story = Story::new();
    story.signals = serde_json::from_str(include_str!("../../../../tests/fuzz/corpus/signals/h200")).unwrap();
    story.signals.uptime_s = 5_000;
    story.audit();
    let first = story.told();
    for _ in 0..20 {
        story.wait(DAY).audit();
        assert_eq!(story.told(), first);
    }
}

/// Eight GPUs with all of their counters, as a deep audit reads them.
#[test]
fn the_memory_of_a_large_node_is_small() {
    let mut story = Story::new();
    let gpu = story.signals.gpus[0].clone();
    story.signals.gpus = (0..8)
        .map(|index| {
            let mut gpu = gpu.clone();
            gpu.id = format!("GPU-6c9f4a1e-0d5b-4a57-9f3a-7c2f0e1b8d{index:02}");
            gpu
        })
        .collect();
    for day in 1..=5_u64 {
        for (index, gpu) in (0_u64..).zip(&mut story.signals.gpus) {
            for name in ["ns_sw_power", "ns_sw_thermal", "pcie_l0_recovery"] {
                gpu.readings.insert(name.to_owned(), (day * 3_600_123_456_789 + index).into());
            }
        }
        story.audit().wait(DAY);
    }
    let size = serde_json::to_string(&story.memory).unwrap().len();
    assert!(size < 4_096, "{size}");
}

#[test]
fn without_an_earlier_audit_what_compares_is_not_judged_yet() {
    let mut story = Story::new();
    story.audit();
    for check in ["mem.uncorrected_aggregate", "mem.remap_growth", "os.edac_ce", "err.xid_repeat"] {
        let finding = story.finding(check);
        assert_eq!((finding.verdict, finding.na), (Verdict::Na, Some(NaReason::NotYet)), "{check}");
    }
    // A rule of the moment is enough for a verdict.
    assert_eq!(story.verdict("thermal.hw_slowdown"), Verdict::Ok);
    story.wait(DAY).audit();
    for check in ["mem.uncorrected_aggregate", "mem.remap_growth", "os.edac_ce", "err.xid_repeat"] {
        assert_eq!(story.verdict(check), Verdict::Ok, "{check}");
    }
}

#[test]
fn growth_is_told_with_its_window() {
    let mut story = Story::new();
    story.put("ecc_unc_agg", 3).audit();
    story.wait(DAY).put("ecc_unc_agg", 15).audit();
    assert_eq!(story.verdict("mem.uncorrected_aggregate"), Verdict::Warn);
    assert_eq!(
        story.evidence("mem.uncorrected_aggregate", "ecc_unc_agg_growth"),
        "12 in 24 h, since 2025-11-24 02:00 UTC"
    );
    // Without another error it is over, and the occasion is remembered: over boots too.
    story.wait(DAY).audit();
    assert_eq!(story.verdict("mem.uncorrected_aggregate"), Verdict::Ok);
    story.boot().wait(5 * DAY).put("ecc_unc_agg", 16).audit();
    assert_eq!(story.verdict("mem.uncorrected_aggregate"), Verdict::Fail);
    assert_eq!(
        story.evidence("mem.uncorrected_aggregate", "ecc_unc_agg_growth"),
        "13 in 6 days, since 2025-11-25 02:00 UTC"
    );
    // After 30 days the first occasions are forgotten.
    story.wait(40 * DAY).audit();
    story.wait(DAY).put("ecc_unc_agg", 17).audit();
    assert_eq!(story.verdict("mem.uncorrected_aggregate"), Verdict::Warn);
}

#[test]
fn another_board_has_another_history() {
    let mut story = Story::new();
    story.put("ecc_unc_agg", 3).audit();
    story.signals.gpus[0].id = "GPU-new".to_owned();
    story.wait(DAY).put("ecc_unc_agg", 9).audit();
    let finding = story.finding("mem.uncorrected_aggregate");
    assert_eq!((finding.verdict, finding.na), (Verdict::Na, Some(NaReason::NotYet)));
    // The old one comes back, and what it had is known.
    story.signals.gpus[0].id = "GPU-0".to_owned();
    story.wait(DAY).put("ecc_unc_agg", 4).audit();
    assert_eq!(
        story.evidence("mem.uncorrected_aggregate", "ecc_unc_agg_growth"),
        "1 in 2 days, since 2025-11-24 02:00 UTC"
    );
    // A total that falls is a board with another record of itself: nothing grew.
    story.wait(DAY).put("ecc_unc_agg", 0).audit();
    assert_ne!(story.verdict("mem.uncorrected_aggregate"), Verdict::Warn);
}

#[test]
fn a_rate_needs_its_window_in_one_life() {
    let mut story = Story::new();
    story.put("ecc_cor_vol", 0).audit();
    // 2 a second for 5 minutes: too short for a warning.
    story.wait(300).put("ecc_cor_vol", 600).audit();
    assert_eq!(story.verdict("mem.corrected_rate"), Verdict::Ok);
    // After 10 minutes it is one, of the first reading.
    story.wait(300).put("ecc_cor_vol", 1_200).audit();
    assert_eq!(story.verdict("mem.corrected_rate"), Verdict::Warn);
    assert_eq!(
        story.evidence("mem.corrected_rate", "ecc_cor_vol_growth"),
        "600 in 5 min, since 2025-11-24 02:05 UTC"
    );
    // The driver is loaded anew: what was counted before says nothing.
    story.wait(600).load().put("ecc_cor_vol", 5_000).audit();
    assert_eq!(story.verdict("mem.corrected_rate"), Verdict::Ok);
    // A counter that falls begins anew, without a load of the driver too.
    story.wait(600).put("ecc_cor_vol", 10).audit();
    story.wait(600).put("ecc_cor_vol", 6_000).audit();
    assert_eq!(
        story.evidence("mem.corrected_rate", "ecc_cor_vol_growth"),
        "5990 in 10 min, since 2025-11-24 02:30 UTC"
    );
    let mut storm = Story::new();
    storm.audit().wait(120).put("ecc_cor_vol", 200_000).audit();
    assert_eq!(storm.verdict("mem.corrected_rate"), Verdict::Warn, "provisional");
    storm.wait(120).put("ecc_cor_vol", 400_000).audit();
    assert_eq!(
        (storm.verdict("mem.corrected_rate"), storm.finding("mem.corrected_rate").action),
        (Verdict::Fail, Action::Drain)
    );
}

#[test]
fn audits_every_minute_find_a_window_that_is_long_enough() {
    let mut story = Story::new();
    story.audit();
    for minute in 1..60 {
        story.wait(60).put("ecc_cor_vol", minute * 120).audit();
        let wanted = if minute < 10 { Verdict::Ok } else { Verdict::Warn };
        assert_eq!(story.verdict("mem.corrected_rate"), wanted, "after {minute} minutes");
    }
}

#[test]
fn an_audit_right_after_another_adds_nothing() {
    let mut story = Story::new();
    story.audit();
    let before = story.memory.clone();
    story.wait(30).put("pcie_width", 8).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Warn);
    assert_eq!(story.memory, before);
}

#[test]
fn a_clock_that_was_set_back_harms_nothing() {
    let mut story = Story::new();
    story.put("ecc_unc_agg", 1).audit();
    story.wait(DAY).put("ecc_unc_agg", 2).put("ecc_cor_vol", 1).audit();
    // The controller's clock goes back a week, the node's uptime goes on.
    story.at -= 7 * DAY;
    story.signals.uptime_s += 1_000;
    story.put("ecc_cor_vol", 5_001).put("ecc_unc_agg", 3).audit();
    assert_eq!(story.verdict("mem.uncorrected_aggregate"), Verdict::Fail);
    assert_eq!(
        story.evidence("mem.corrected_rate", "ecc_cor_vol_growth"),
        "5000 in 16 min, since 2025-11-18 02:00 UTC"
    );
    story.wait(DAY).audit();
    insta::assert_snapshot!(story.told(), @r#"
    mem.uncorrected_aggregate [GPU 0] fail investigate: the board had new uncorrected errors on more than one occasion within 30 days
    mem.class [GPU 0] warn investigate: class INVESTIGATE: a part of the memory needs a look
    "#);
}

#[test]
fn what_cannot_be_read_is_unknown_and_not_forgotten() {
    let mut story = Story::new();
    story.put("ecc_unc_agg", 1).audit();
    story.wait(DAY).put("ecc_unc_agg", Signal::Unknown("timeout".to_owned())).audit();
    let finding = story.finding("mem.uncorrected_aggregate");
    assert_eq!((finding.verdict, &*finding.note), (Verdict::Unknown, "`ecc_unc_agg`: timeout"));
    story.wait(DAY).put("ecc_unc_agg", 2).audit();
    assert_eq!(
        story.evidence("mem.uncorrected_aggregate", "ecc_unc_agg_growth"),
        "1 in 24 h, since 2025-11-25 02:00 UTC"
    );
}

#[test]
fn deep_audits_compare_with_deep_ones() {
    let mut story = Story::new();
    story.put("nvl_replay", 5).audit();
    for name in ["nvl_replay", "nvl_recovery"] {
        for gpu in &mut story.signals.gpus {
            gpu.readings.remove(name);
        }
    }
    for _ in 0..6 {
        story.wait(DAY).audit();
        assert_eq!(story.finding("nvl.errors").na, Some(NaReason::NotAsked));
    }
    story.wait(DAY).put("nvl_replay", 6).put("nvl_recovery", 0).audit();
    assert_eq!(story.evidence("nvl.errors", "nvl_replay_growth"), "1 in 7 days, since 2025-11-24 02:00 UTC");
    assert_eq!(story.verdict("nvl.errors"), Verdict::Warn);
}

/// Growth of one counter for each rule that compares, and how much of it is no finding.
#[test]
fn growth_that_is_planted_is_found() {
    const S: u64 = 1_000_000_000;
    let planted: &[(&str, &str, i64, u64, u64, Verdict)] = &[
        ("mem.remap_growth", "remap_unc", DAY, 0, 1, Verdict::Warn),
        ("mem.remap_growth", "remap_cor", DAY, 8, 9, Verdict::Warn),
        ("mem.sram_uncorrected", "sram_unc_agg", DAY, 0, 1, Verdict::Warn),
        ("pcie.replay_rate", "pcie_replays", 600, 300, 400, Verdict::Warn),
        ("pcie.recovery", "pcie_l0_recovery", 600, 90, 200, Verdict::Warn),
        ("thermal.margin", "ns_hw_thermal", 600, 0, S, Verdict::Warn),
        ("thermal.hw_slowdown", "ns_hw_thermal", 600, 0, 1_000, Verdict::Warn),
        ("thermal.hw_slowdown", "ns_hw_thermal", 600, 0, 30 * S, Verdict::Fail),
        ("thermal.sw_slowdown", "ns_sw_thermal", 600, S, 60 * S, Verdict::Warn),
        ("power.brake", "ns_power_brake", 600, 0, 1_000, Verdict::Warn),
        ("power.brake", "ns_power_brake", 600, 0, 6 * S, Verdict::Fail),
        ("power.cap_share", "ns_sw_power", 600, 60 * S, 300 * S, Verdict::Warn),
        ("os.edac_ce", "edac_ce", DAY, 900, 2_000, Verdict::Warn),
        ("os.mce", "edac_ue", DAY, 0, 1, Verdict::Fail),
    ];
    let benchmark =
        policy("checks: ['*']\ndeclared: {profile: benchmark, power_w: 600}\n").for_node("x", &[]);
    for (check, name, seconds, harmless, much, wanted) in planted {
        for (by, wanted) in [(harmless, Verdict::Ok), (much, *wanted)] {
            let mut story = Story::new();
            story.put("power_limit_w", 600).put("util_gpu", 50).put("reasons", 0);
            if *check == "thermal.margin" && *by > 0 {
                story.put("margin_c", -3);
            }
            story.put(name, 1).audit().wait(*seconds).put(name, 1 + by);
            let findings = judge_after(&benchmark, &story.signals, story.memory.as_ref(), story.at);
            let found = findings.iter().find(|it| &*it.check.id == *check).unwrap();
            assert_eq!(found.verdict, wanted, "{check}: {name} by {by}: {}", found.note);
        }
    }
    // Idle links change their speed, and each change is a recovery.
    let mut story = Story::new();
    story.audit().wait(600).put("pcie_l0_recovery", 1_000).audit();
    assert_eq!(story.verdict("pcie.recovery"), Verdict::Ok);
}

#[test]
fn what_changed_during_the_audit_is_of_no_life() {
    let mut story = Story::new();
    story.audit();
    assert_eq!(story.verdict("audit.same_boot"), Verdict::Ok);
    story.wait(DAY).put("boot_id_end", "c").put("ecc_cor_vol", 90_000_000_u64).audit();
    assert_eq!(story.verdict("audit.same_boot"), Verdict::Unknown);
    assert_eq!(story.evidence("mem.corrected_rate", "ecc_cor_vol_growth"), "none");
    let mut story = Story::new();
    story.put("driver_load_end", "m").audit();
    assert_eq!(story.verdict("audit.same_boot"), Verdict::Unknown);
}

#[test]
fn huge_pages_are_as_declared() {
    let policy = policy("checks: [os.hugepages]\ndeclared: {hugepages: [2048kB=512]}\n").for_node("x", &[]);
    let mut story = Story::new();
    for (pages, wanted) in [(vec!["2048kB=512"], Verdict::Ok), (vec!["2048kB=256"], Verdict::Drift)] {
        story.put("hugepages_total", pages);
        assert_eq!(judge(&policy, &story.signals)[0].verdict, wanted);
    }
}

#[test]
fn windows_are_counted() {
    let mut story = Story::new();
    story.audit();
    for number in 1..=20 {
        story.wait(HOUR).put("nvl_replay", number).audit();
        let wanted = if number < 15 { Verdict::Warn } else { Verdict::Fail };
        assert_eq!(story.verdict("nvl.errors"), wanted, "{number}");
    }
    // 20 of 30, and they move on.
    for number in 1..=16 {
        story.wait(HOUR).audit();
        let wanted = if number <= 15 { Verdict::Fail } else { Verdict::Ok };
        assert_eq!(story.verdict("nvl.errors"), wanted, "{number}");
    }
}

#[test]
fn a_job_that_stands_still_is_told_of() {
    let mut story = Story::new();
    story.put("mem_used_ratio", 0.9).put("util_gpu", 0).put("process_count", 8).audit();
    let idle = |story: &Story| story.verdict("proc.stalled_job");
    story.wait(1_200).audit();
    assert_eq!(idle(&story), Verdict::Ok);
    story.wait(1_200).audit();
    assert_eq!(idle(&story), Verdict::Warn);
    assert_eq!(story.evidence("proc.stalled_job", "unchanged_since"), "2025-11-24 02:00 UTC");
    // One audit that finds work begins it anew, and so does one that does not know.
    for signal in [Signal::from(50), Signal::Unknown("timeout".to_owned())] {
        story.wait(2 * DAY).put("util_gpu", signal).audit();
        story.put("util_gpu", 0).wait(1_200).audit();
        story.wait(1_200).audit();
        assert_eq!(idle(&story), Verdict::Ok);
        story.wait(1_200).audit();
        assert_eq!(idle(&story), Verdict::Warn);
    }
    // Two audits a day apart prove nothing.
    let mut story = Story::new();
    story.put("mem_used_ratio", 0.9).put("util_gpu", 0).put("process_count", 8).audit();
    story.wait(DAY).audit();
    assert_eq!(idle(&story), Verdict::Ok);
}

#[test]
fn a_fault_that_comes_back_after_its_remedy_is_told_of() {
    let mut story = Story::new();
    story.audit();
    for round in 0..3 {
        story.wait(DAY);
        story.signals.records = vec![xid(119, "0000:50:00.0")];
        story.audit();
        assert_eq!(story.verdict("err.xid_reset"), Verdict::Fail);
        let wanted = if round < 2 { Verdict::Ok } else { Verdict::Fail };
        assert_eq!(story.verdict("err.xid_repeat"), wanted, "{round}");
        story.wait(DAY);
        story.signals.records.clear();
        story.audit();
        assert_eq!(story.verdict("err.xid_reset"), Verdict::Ok);
    }
    assert_eq!(story.verdict("err.xid_repeat"), Verdict::Fail, "for two weeks");
    // Another driver: what failed with the old one says nothing.
    let mut updated = Story { memory: story.memory.clone(), ..Story::new() };
    updated.at = story.at + DAY;
    updated.put("driver_version", "590.1").put("module_version", "590.1");
    updated.audit();
    assert_eq!(updated.verdict("err.xid_repeat"), Verdict::Ok);
    story.wait(15 * DAY).audit();
    assert_eq!(story.verdict("err.xid_repeat"), Verdict::Ok);
}

#[test]
fn a_crash_is_told_of_once() {
    let mut story = Story::new();
    story.put("pstore_files", 2).audit();
    assert_eq!(story.finding("os.reboot_unexpected").na, Some(NaReason::NotYet));
    story.wait(DAY).boot().audit();
    assert_eq!(story.verdict("os.reboot_unexpected"), Verdict::Ok, "the records are old");
    story.wait(DAY).boot().put("pstore_files", 3).audit();
    assert_eq!(story.verdict("os.reboot_unexpected"), Verdict::Fail);
    story.wait(DAY).audit();
    assert_eq!(story.verdict("os.reboot_unexpected"), Verdict::Ok);
}

#[test]
fn what_is_new_is_provisional_and_what_was_is_not_over_at_once() {
    let mut story = Story::new();
    story.audit();
    story.wait(DAY).put("pcie_width", 8).audit();
    insta::assert_snapshot!(story.told(), @"pcie.width [GPU 0] warn none: the link runs with fewer lanes than it has (provisional: in 1 of 2 audits in a row)");
    assert_eq!(story.finding("pcie.width").standing, Some(Standing::Provisional));
    story.wait(DAY).audit();
    insta::assert_snapshot!(story.told(), @"pcie.width [GPU 0] fail investigate: the link runs with fewer lanes than it has");
    story.wait(DAY).put("pcie_width", 16).audit();
    insta::assert_snapshot!(story.told(), @"pcie.width [GPU 0] fail none: The PCIe link lacks lanes (not seen in this audit; over after 2 audits in a row without it)");
    story.wait(DAY).audit();
    assert_eq!(story.told(), "");
    // After a boot at once.
    story.wait(2 * DAY).put("pcie_width", 8).audit().wait(DAY).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Fail);
    story.wait(DAY).boot().put("pcie_width", 16).audit();
    assert_eq!(story.told(), "");
}

/// Nobody knows then whether it is new.
#[test]
fn without_the_history_what_needs_several_audits_stays_provisional() {
    let mut story = Story::new();
    story.memory = Memory::read(&Value::Null);
    story.put("pcie_width", 8).audit();
    insta::assert_snapshot!(story.told(), @"pcie.width [GPU 0] warn none: the link runs with fewer lanes than it has (provisional: in 1 of 2 audits in a row)");
    assert_eq!(story.finding("err.xid_repeat").na, Some(NaReason::NotYet), "nothing is compared");
    assert!(story.memory.as_ref().is_some_and(|memory| !memory.is_whole()), "and nothing is kept");
}

#[test]
fn an_audit_that_does_not_read_it_changes_nothing() {
    let mut story = Story::new();
    story.audit();
    let shallow = |story: &mut Story| {
        let gpus = std::mem::take(&mut story.signals.gpus);
        story.signals.gpus = gpus.clone();
        for gpu in &mut story.signals.gpus {
            gpu.readings.retain(|name, _| !name.starts_with("pcie_"));
        }
        story.wait(DAY).audit();
        assert_eq!(story.finding("pcie.width").na, Some(NaReason::NotAsked));
        story.signals.gpus = gpus;
    };
    story.wait(DAY).put("pcie_width", 8).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Warn);
    shallow(&mut story);
    story.wait(DAY).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Fail, "the second time that it was read");
}

#[test]
fn a_gpu_that_does_not_answer_keeps_what_is_known_of_it() {
    let mut story = Story::new();
    story.audit().wait(DAY).put("pcie_width", 8).audit().wait(DAY).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Fail);
    let gpus = std::mem::take(&mut story.signals.gpus);
    story.wait(DAY).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Unknown);
    story.signals.gpus = gpus;
    story.wait(DAY).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Fail, "it is not new");
    // Not for ever.
    let gpus = std::mem::take(&mut story.signals.gpus);
    for _ in 0..40 {
        story.wait(DAY).audit();
    }
    story.signals.gpus = gpus;
    story.wait(DAY).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Warn);
}

#[test]
fn the_first_audit_of_a_node_waits_for_none() {
    let mut story = Story::new();
    story.put("pcie_width", 8).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Fail);
    story.wait(DAY).audit();
    assert_eq!(story.verdict("pcie.width"), Verdict::Fail);
}

#[test]
fn what_comes_and_goes_stays() {
    let mut story = Story::new();
    story.audit();
    for round in 0..3 {
        story.wait(HOUR).put("remap_pending", 1).audit();
        story.wait(HOUR).put("remap_pending", 0).audit();
        let wanted = if round < 1 { Verdict::Ok } else { Verdict::Drift };
        assert_eq!(story.verdict("mem.remap_pending"), wanted, "{round}");
    }
    let finding = story.finding("mem.remap_pending");
    assert_eq!(
        (finding.standing, &*finding.note),
        (Some(Standing::Flapping), "A row waits to be remapped (it changed 6 times within a day)")
    );
    story.wait(DAY + 1).audit();
    assert_eq!(story.told(), "");
}

#[test]
fn a_node_cannot_make_it_large() {
    let mut signals = node();
    let gpu = signals.gpus[0].clone();
    let mut earlier: Option<Memory> = None;
    for (round, at) in (0..6_u32).zip((START..).step_by(4_000)) {
        signals.uptime_s += 4_000;
        signals.boot_id = Some("b".repeat(5_000));
        signals.gpus = (0..200)
            .map(|index| {
                let mut gpu = gpu.clone();
                gpu.id = format!("GPU-{}-{index}", "u".repeat(usize::try_from(index).unwrap()));
                for signal in gpu.readings.values_mut() {
                    if signal.known().is_some_and(|it| it.is_number()) {
                        *signal = (u64::MAX / 2 + u64::from(round) * 7).into();
                    }
                }
                gpu.readings.insert("pcie_width".to_owned(), (round % 2).into());
                gpu
            })
            .collect();
        signals.disks[0].id = format!("/{}{round}", "d".repeat(100 * round as usize));
        signals.ports = (0..200)
            .map(|index| {
                let mut port = node().ports.remove(0);
                port.id = format!("{}{index}/1", "m".repeat(index));
                for name in ["link_downed", "ib_symbol_error", "ib_link_error_recovery"] {
                    port.readings.insert(name.to_owned(), (u64::MAX / 2 + u64::from(round) * 7).into());
                }
                port
            })
            .collect();
        let findings = judge_after(&everything(), &signals, earlier.as_ref(), at);
        let memory = Memory::after(earlier.as_ref(), &signals, &findings, at);
        let value = serde_json::to_value(&memory).unwrap();
        assert!(value.to_string().len() < 64_000, "{}", value.to_string().len());
        assert!(Memory::read(&value).is_some());
        earlier = Some(memory);
    }
}

#[test]
fn what_is_no_memory_is_not_read() {
    let good = serde_json::to_value(Memory::after(None, &node(), &[], START)).unwrap();
    assert!(Memory::read(&good).is_some());
    for (pointer, bad) in [
        ("/shape", json!(9)),
        ("/boards", json!(vec!["x"; 100])),
        ("/boards/0", json!("a\nb")),
        ("/ports", json!(vec!["x"; 100])),
        ("/ports/0", json!("a\nb")),
        ("/port/moments", json!([])),
        ("/every/moments", json!([])),
        ("/watches", json!({"x": {"y": {"changes": vec![1; 100]}}})),
        ("/totals/at", json!([1, 2, 3, 4])),
    ] {
        let mut value = good.clone();
        match value.pointer_mut(pointer) {
            Some(place) => *place = bad,
            None => value[&pointer[1..]] = bad,
        }
        assert!(Memory::read(&value).is_none(), "{pointer}");
    }
    for value in [json!([]), json!({}), json!("x")] {
        assert!(Memory::read(&value).is_none());
    }
}

#[test]
fn hard_facts_count_at_once() {
    for check in crate::Catalogue::get().checks() {
        let waits = check.hysteresis.enter > 1;
        let critical = check.severity == crate::Severity::Critical;
        for rule in check.rules.iter().filter(|_| critical && waits) {
            let verdict = &rule.verdict;
            let fails = *verdict == crate::catalogue::RuleVerdict::Fixed(Verdict::Fail);
            assert!(!fails || rule.at_once, "{}: {}", check.id, rule.text);
        }
    }
}

/// What net.ib_ports, net.ib_flap, net.ib_errors and pcie.aer say by a counter that grew.
#[test]
fn links_are_judged_by_what_happened_since_the_last_audit() {
    let mut story = Story::new();
    story.put("link_downed", 40).put("ib_symbol_error", 60_000).put("aer_fatal", 3).audit();
    assert_eq!(story.told(), "", "totals since the start say nothing");
    story.wait(HOUR).put("link_downed", 41).put("aer_nonfatal_without_ur", 1).audit();
    insta::assert_snapshot!(story.told(), @r#"
    pcie.aer [GPU 0] warn investigate: the link of the GPU, or one above it, lost a transaction
    net.ib_flap [mlx5_0/1] warn none: the link went down
    "#);
    assert_eq!(
        story.evidence("net.ib_flap", "link_downed_growth"),
        "1 in 60 min, since 2025-11-24 02:00 UTC"
    );
    story.wait(HOUR).put("link_downed", 46).put("aer_fatal", 4).put("ib_symbol_error", 61_000).audit();
    assert_eq!(story.verdict("net.ib_flap"), Verdict::Fail);
    assert_eq!(story.verdict("pcie.aer"), Verdict::Fail);
    assert_eq!(story.finding("net.ib_errors").standing, Some(Standing::Provisional));
    story.wait(HOUR).put("ib_symbol_error", 62_000).audit();
    assert_eq!(story.verdict("net.ib_errors"), Verdict::Warn);
    assert_eq!(story.finding("net.ib_flap").standing, Some(Standing::Lingering));
    // Two at a time do not look like much, and are many a day.
    for (links, expected) in [(48, Verdict::Fail), (50, Verdict::Fail), (50, Verdict::Fail)] {
        story.wait(HOUR).put("link_downed", links).audit();
        assert_eq!(story.verdict("net.ib_flap"), expected, "{links}");
    }
    // Five in a month are one a week.
    story.wait(30 * DAY).put("link_downed", 55).audit();
    assert_eq!(story.verdict("net.ib_flap"), Verdict::Warn);
    // A boot begins anew.
    story.wait(HOUR).boot().put("link_downed", 9).put("aer_fatal", 9).audit();
    assert_eq!((story.verdict("net.ib_flap"), story.verdict("pcie.aer")), (Verdict::Na, Verdict::Na));
}

#[test]
fn a_port_that_was_up_before_is_missed_until_it_is_back() {
    let mut story = Story::new();
    story.put("ib_up", 2).audit();
    assert_eq!(story.verdict("net.ib_ports"), Verdict::Na);
    for _ in 0..3 {
        story.wait(DAY).put("ib_up", 1).audit();
        assert_eq!(story.verdict("net.ib_ports"), Verdict::Warn);
    }
    story.wait(DAY).put("ib_up", 0).put("rdma_devices", 0);
    let ports = std::mem::take(&mut story.signals.ports);
    story.audit();
    assert_eq!(story.verdict("net.ib_ports"), Verdict::Warn, "the card is gone");
    story.signals.ports = ports;
    story.wait(DAY).put("ib_up", 2).put("rdma_devices", 1).audit();
    assert_eq!(story.verdict("net.ib_ports"), Verdict::Ok);
}

#[test]
fn a_process_is_stuck_if_every_audit_of_a_while_finds_one() {
    let mut story = Story::new();
    story.put("gpu_dstate_count", 1).put("gpu_stuck_mark", 40).audit();
    for expected in [Verdict::Ok, Verdict::Ok, Verdict::Warn] {
        story.wait(150).audit();
        assert_eq!(story.verdict("proc.dead_holder"), expected);
    }
    for mark in [50, 60, 20, 70] {
        story.wait(150).put("gpu_stuck_mark", mark).audit();
    }
    assert_eq!(
        story.verdict("proc.dead_holder"),
        Verdict::Ok,
        "another process, or one that goes on, is not stuck"
    );
    story.wait(150).put("gpu_dstate_count", 0).put("gpu_zombie_count", 1).audit();
    let found = story.finding("proc.dead_holder");
    assert!(found.verdict.is_not_ok(), "{found:?}");
    let mut story = Story::new();
    story.audit().wait(HOUR).put("gpu_zombie_count", 1).audit();
    assert_eq!(story.finding("proc.dead_holder").standing, Some(Standing::Provisional));
    story.wait(HOUR).audit();
    let found = story.finding("proc.dead_holder");
    assert_eq!((found.verdict, found.action), (Verdict::Warn, Action::Investigate));
}

mod gone;

mod properties {
    use super::*;
    use proptest::prelude::*;

    fn change() -> impl Strategy<Value = (u8, u64, i64)> {
        (0_u8..10, 0_u64..3, prop_oneof![Just(-5_000_i64), 0_i64..200, 500_i64..90_000])
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// What a check with no hysteresis says stands, whatever was before; and no finding is milder than a warning.
        #[test]
        fn nothing_before_hides_what_is(changes in prop::collection::vec(change(), 1..12)) {
            let mut story = Story::new();
            for (what, value, seconds) in changes {
                match what {
                    0 => drop(story.put("remap_failed", value.min(1))),
                    1 => drop(story.put("pcie_width", 8 * value)),
                    2 => drop(story.put("ecc_unc_agg", value)),
                    3 => drop(story.put("reasons", 0x40 * value)),
                    4 => drop(story.boot()),
                    5 => drop(story.put("margin_c", Signal::Unknown("x".to_owned()))),
                    6 => drop(story.put("lost_code", 15 * value.min(1))),
                    7 => drop(story.put("nvl_replay", value)),
                    8 => story.signals.records = vec![xid(79, "0000:50:00.0")],
                    _ => drop(story.put("mem_temp_c", 45 * value)),
                }
                let plain = judge(&everything(), &story.signals);
                if seconds < 0 { story.at += seconds; } else { story.wait(seconds); }
                story.audit();
                prop_assert_eq!(plain.len(), story.findings.len());
                for (plain, now) in plain.iter().zip(&story.findings) {
                    prop_assert_eq!((&plain.check.id, &plain.subject), (&now.check.id, &now.subject));
                    if plain.check.hysteresis.enter == 1 {
                        prop_assert!(now.verdict >= plain.verdict, "{} {:?}", plain.check.id, now);
                    }
                    if plain.verdict.is_not_ok() {
                        prop_assert!(now.verdict.is_not_ok(), "{} {:?}", plain.check.id, now);
                    }
                    if plain.verdict == Verdict::Unknown {
                        prop_assert!(now.verdict >= Verdict::Unknown, "{} {:?}", plain.check.id, now);
                    }
                }
                let size = serde_json::to_string(&story.memory).unwrap().len();
                prop_assert!(size < 8_000, "{size}");
            }
        }
    }
}

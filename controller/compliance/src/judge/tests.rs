use serde_json::json;

use super::*;
use crate::catalogue::Catalogue;
use crate::samples::{everything, node, policy, told, xid};

fn of<'a>(findings: &'a [Finding], check: &str) -> Vec<&'a Finding> {
    findings.iter().filter(|finding| *finding.check.id == *check).collect()
}

fn verdicts(signals: &Signals, check: &str) -> Vec<Verdict> {
    let findings = judge(&everything(), signals);
    of(&findings, check).iter().map(|finding| finding.verdict).collect()
}

fn with(change: impl FnOnce(&mut Signals)) -> Signals {
    let mut signals = node();
    change(&mut signals);
    signals
}

fn gpu(signals: &mut Signals, name: &str, signal: impl Into<Signal>) {
    signals.gpus[0].readings.insert(name.to_owned(), signal.into());
}

#[test]
fn a_healthy_node_has_no_finding() {
    let findings = judge(&everything(), &node());
    assert_eq!(told(&findings), "");
    assert!(findings.iter().filter(|finding| finding.verdict == Verdict::Ok).count() > 80);
    for baseline in crate::baseline::built_in() {
        let policy = policy(baseline.0).for_node("gpu001", &[]);
        let mut signals = node();
        if baseline.0 == "mig-shared" {
            for gpu in &mut signals.gpus {
                gpu.readings.extend(
                    [("mig_current", 1), ("mig_pending", 1)].map(|(name, on)| (name.to_owned(), on.into())),
                );
            }
        }
        assert_eq!(told(&judge(&policy, &signals)), "", "{}", baseline.0);
    }
}

#[test]
fn nothing_read_makes_nothing_ok() {
    let Signals { gpus, disks, ports, .. } = node();
    let mut empty = Signals { gpus, disks, ports, ..Signals::default() };
    for subject in empty.gpus.iter_mut().chain(&mut empty.disks).chain(&mut empty.ports) {
        subject.readings.clear();
    }
    for signals in [Signals::default(), empty] {
        let findings = judge(&everything(), &signals);
        let ok: Vec<_> = findings.iter().filter(|finding| finding.verdict.is_judged()).collect();
        assert!(ok.is_empty(), "{ok:?}");
        assert!(findings.iter().filter(|finding| finding.verdict == Verdict::Unknown).count() > 60);
    }
}

/// For each signal by itself: if it cannot be read, no check that names it may say more than it knows.
#[test]
fn each_reading_that_fails_is_seen_by_a_check() {
    let policy = everything();
    let healthy = judge(&policy, &node());
    for (scope, name) in Catalogue::get().signals() {
        let signals = with(|signals| {
            let readings = match scope {
                Scope::Node => &mut signals.node,
                Scope::Gpu => &mut signals.gpus[0].readings,
                Scope::Disk => &mut signals.disks[0].readings,
                Scope::Port => &mut signals.ports[0].readings,
            };
            readings.insert(name.to_owned(), Signal::Unknown("no permission".to_owned()));
        });
        for (before, after) in healthy.iter().zip(&judge(&policy, &signals)) {
            let required = after.check.requires.iter().any(|(_, required)| &**required == name);
            let of_this = scope != Scope::Gpu || after.subject.id() == signals.gpus[0].id;
            if required && of_this && before.verdict != Verdict::Na {
                assert_eq!(after.verdict, Verdict::Unknown, "{} without {name}", after.check.id);
                assert!(after.note.contains("no permission"), "{}: {}", after.check.id, after.note);
            }
            assert!(after.verdict != Verdict::Fail, "{} fails without {name}", after.check.id);
        }
    }
}

#[test]
fn a_rule_that_may_hold_makes_ok_unknown() {
    // The second rule needs the daemon's state only where it is declared.
    let signals = with(|signals| {
        signals.node.insert("persistenced".to_owned(), Signal::Unknown("no permission".to_owned()));
    });
    assert_eq!(verdicts(&signals, "cfg.persistence"), [Verdict::Ok, Verdict::Ok]);
    let declared = policy("checks: [cfg.persistence]\ndeclared: {persistence: daemon}\n").for_node("x", &[]);
    let findings = judge(&declared, &signals);
    insta::assert_snapshot!(told(&findings), @r#"
    cfg.persistence [GPU 0] unknown investigate: `persistenced`: no permission
    cfg.persistence [GPU 1] unknown investigate: `persistenced`: no permission
    "#);
    // A rule before it that holds decides, whatever the daemon's state is.
    let mut off = signals;
    gpu(&mut off, "persistence", 0);
    assert_eq!(judge(&declared, &off)[0].verdict, Verdict::Drift);
}

#[test]
fn a_mild_rule_does_not_hide_a_worse_one_that_may_hold() {
    // A double-bit error: contained, or the driver asks for a reset. Nobody knows.
    let mut signals = with(|signals| {
        signals.records.push(xid(48, "0000:50:00.0"));
        gpu(signals, "recovery_action", Signal::Unknown("timeout".to_owned()));
    });
    let findings = judge(&everything(), &signals);
    let finding = of(&findings, "err.xid_memory")[0];
    assert_eq!((finding.verdict, finding.action), (Verdict::Unknown, Action::Investigate));
    assert_eq!(&*finding.note, "a double-bit error was contained; `recovery_action`: timeout");
    // What is certain and worse is told as it is.
    signals.records.push(xid(95, "0000:50:00.0"));
    assert_eq!(verdicts(&signals, "err.xid_memory"), [Verdict::Fail, Verdict::Ok]);
}

#[test]
fn what_is_absent_does_not_apply() {
    let signals = with(|signals| {
        gpu(signals, "mem_temp_c", Signal::Absent);
        gpu(signals, "mem_max_c", Signal::Unknown("x".to_owned()));
        gpu(signals, "power_default_w", Signal::Absent);
        gpu(signals, "fabric_state", 0);
    });
    let findings = judge(&everything(), &signals);
    let told: Vec<String> =
        ["thermal.memory", "power.limit", "nvl.fabric_state", "cfg.mig_mode", "mem.remap_failed"]
            .iter()
            .map(|check| {
                let finding = of(&findings, check)[0];
                format!("{check} {} {:?}: {}", finding.verdict, finding.na, finding.note)
            })
            .collect();
    insta::assert_snapshot!(told.join("\n"), @r#"
    thermal.memory na Some(NotApplicable): there is no `mem_temp_c` here
    power.limit na Some(NotApplicable): it does not apply to this gpu: power_w is not declared, there is no power_default_w
    nvl.fabric_state na Some(NotApplicable): it does not apply to this gpu: fabric is not declared, fabric_state is 0
    cfg.mig_mode na Some(NotApplicable): not declared: mig
    mem.remap_failed ok None:
    "#);
}

#[test]
fn a_gpu_that_only_the_log_knows_is_told_of() {
    let signals = with(|signals| {
        signals.gpus.remove(1);
        signals.node.insert("nvml_count".to_owned(), 1.into());
        signals.records.push(xid(79, "0000:51:00.0"));
        signals.records.push(xid(13, "0000:77:00.0"));
    });
    let findings = judge(&everything(), &signals);
    insta::assert_snapshot!(told(&findings), @r#"
    inv.gpu_count [] fail reboot: a GPU is on the bus, and the driver does not list it
    err.xid_reboot [GPU at 0000:51:00.0] fail reboot: an Xid that only a reboot settles was logged
    "#);
    let gone = of(&findings, "err.xid_reboot")[1];
    assert_eq!(gone.subject.id(), "0000:51:00.0");
    let (name, lines) = gone.evidence.last().unwrap();
    assert_eq!(&**name, "kernel_log");
    assert_eq!(*lines, Signal::Known(json!(["NVRM: Xid (PCI:0000:51:00.0): 79, pid='<unknown>'"])));
}

#[test]
fn a_log_that_lost_its_beginning_proves_no_absence() {
    let signals = with(|signals| {
        signals.node.insert("log_from".to_owned(), "partial".into());
        signals.records.push(xid(119, "0000:50:00.0"));
    });
    let findings = judge(&everything(), &signals);
    assert_eq!(of(&findings, "err.xid_reset")[0].verdict, Verdict::Fail);
    assert_eq!(of(&findings, "err.xid_reset")[1].verdict, Verdict::Unknown);
    assert_eq!(&*of(&findings, "err.xid_reboot")[0].note, "the kernel's log does not reach back to the boot");
}

#[test]
fn without_gpus_there_is_nothing_to_judge_or_nobody_knows() {
    let mut signals = with(|signals| signals.gpus.clear());
    let findings = judge(&everything(), &signals);
    let finding = of(&findings, "mem.remap_failed")[0];
    assert_eq!((finding.verdict, &*finding.note), (Verdict::Unknown, "no GPU could be read"));
    assert_eq!(of(&findings, "cfg.mig_mode")[0].verdict, Verdict::Na);
    signals.node.insert("pci_count".to_owned(), 0.into());
    signals.node.insert("nvml_count".to_owned(), 0.into());
    assert_eq!(verdicts(&signals, "mem.remap_failed"), [Verdict::Na]);
    assert_eq!(verdicts(&signals, "sw.driver_loaded"), [Verdict::Na]);
}

#[test]
fn a_check_of_checks_sees_their_verdicts() {
    let signals = with(|signals| gpu(signals, "remap_failed", 1));
    assert_eq!(verdicts(&signals, "mem.class"), [Verdict::Fail, Verdict::Ok]);
    let signals = with(|signals| gpu(signals, "hist_none", 1));
    assert_eq!(verdicts(&signals, "mem.class"), [Verdict::Warn, Verdict::Ok]);
    let signals = with(|signals| gpu(signals, "sram_threshold", Signal::Unknown("no permission".to_owned())));
    let findings = judge(&everything(), &signals);
    assert_eq!(&*of(&findings, "mem.class")[0].note, "`mem.sram_threshold` could not be judged");
}

#[test]
fn parameters_and_declared_values_are_what_is_expected() {
    let text = "checks: [power.limit, disk.space, err.xid_other]\nparams:\n  disk.space: {warn: 0.5}\n  \
                err.xid_other: {unknown_verdict: fail}\ndeclared: {power_w: 600}\n";
    let policy = policy(text).for_node("gpu001", &[]);
    let signals = with(|signals| {
        signals.disks[0].readings.insert("disk_used_ratio".to_owned(), 0.6.into());
        signals.records.push(xid(999, "0000:50:00.0"));
    });
    let findings = judge(&policy, &signals);
    let limit = of(&findings, "power.limit")[0];
    assert_eq!(
        (limit.verdict, limit.expected.as_deref()),
        (Verdict::Drift, Some("power_w 600; tolerance_w 1"))
    );
    let space = of(&findings, "disk.space")[0];
    assert_eq!((space.verdict, space.expected.as_deref()), (Verdict::Warn, Some("warn 0.5")));
    assert_eq!(of(&findings, "err.xid_other")[0].verdict, Verdict::Fail);
}

#[test]
fn commands_name_the_gpu_unless_its_name_is_not_plain() {
    let mut signals = with(|signals| gpu(signals, "remap_pending", 1));
    let findings = judge(&everything(), &signals);
    let pending = of(&findings, "mem.remap_pending")[0];
    assert_eq!(pending.reads().as_deref(), Some("nvidia-smi -q -d ROW_REMAPPER -i GPU-0"));
    assert_eq!(
        pending.destructive("gpu001").as_deref(),
        Some("gpufleet exec gpu001 -b -m gpu_reset -a 'when=always gpus=GPU-0'")
    );
    signals.gpus[0].id = "GPU-0; rm -rf /".to_owned();
    let findings = judge(&everything(), &signals);
    let pending = of(&findings, "mem.remap_pending")[0];
    assert_eq!((pending.reads(), pending.destructive("gpu001")), (None, None));
}

/// A fault for each check and the verdict that it must give: on a healthy node nothing is found, which another test
/// proves.
#[test]
fn planted_faults_are_found() {
    let planted: &[(&str, &str, serde_json::Value, Verdict)] = &[
        ("inv.gpu_count", "nvml_count", json!(1), Verdict::Fail),
        ("inv.gpu_lost", "lost_code", json!(15), Verdict::Fail),
        ("inv.gpu_lost", "lost_code", json!(17), Verdict::Unknown),
        ("inv.excluded_gpu", "excluded_count", json!(1), Verdict::Warn),
        ("inv.model_uniform", "name", json!("NVIDIA H100"), Verdict::Warn),
        ("err.recovery_action", "recovery_action", json!(1), Verdict::Fail),
        ("err.recovery_action", "recovery_action", json!(42), Verdict::Fail),
        ("err.nvml_responsive", "worker_state", json!("hung"), Verdict::Unknown),
        ("err.nvml_responsive", "nvml_init_code", json!(999), Verdict::Unknown),
        ("err.log_complete", "log_from", json!("partial"), Verdict::Warn),
        ("mem.ecc_mode", "ecc_current", json!(0), Verdict::Warn),
        ("mem.ecc_pending", "ecc_pending", json!(0), Verdict::Drift),
        ("mem.uncorrected_volatile", "ecc_unc_vol", json!(1), Verdict::Warn),
        ("mem.corrected_rate", "ecc_cor_vol", json!(30_000_000), Verdict::Warn),
        ("mem.remap_pending", "remap_pending", json!(true), Verdict::Drift),
        ("mem.remap_failed", "remap_failed", json!(1), Verdict::Fail),
        ("mem.remap_budget", "hist_low", json!(2), Verdict::Warn),
        ("mem.retired_pages", "retired_sbe", json!(63), Verdict::Fail),
        ("mem.sram_threshold", "sram_threshold", json!(1), Verdict::Fail),
        ("mem.sram_uncorrected", "sram_unc_vol", json!(1), Verdict::Fail),
        ("mem.repair_pending", "repair_tpc", json!(1), Verdict::Drift),
        ("mem.unrepairable", "unrepairable", json!(1), Verdict::Fail),
        ("pcie.width", "pcie_width", json!(8), Verdict::Fail),
        ("nvl.links", "nvl_active", json!(17), Verdict::Fail),
        ("nvl.speed", "nvl_speed_min", json!(1), Verdict::Warn),
        ("nvl.fabric_state", "fabric_status", json!(999), Verdict::Fail),
        ("nvl.fabric_state", "fabric_state", json!(2), Verdict::Fail),
        ("nvl.fabric_health", "fabric_mask", json!(0x10), Verdict::Fail),
        ("nvl.fabric_manager", "fm_state", json!("absent"), Verdict::Fail),
        ("thermal.margin", "margin_c", json!(3), Verdict::Warn),
        ("thermal.memory", "mem_temp_c", json!(95), Verdict::Fail),
        ("thermal.hw_slowdown", "reasons", json!(0x48), Verdict::Warn),
        ("power.limit", "power_limit_w", json!(500), Verdict::Warn),
        ("power.enforced", "power_enforced_w", json!(600), Verdict::Warn),
        ("power.brake", "reasons", json!(0x88), Verdict::Warn),
        ("power.draw", "power_draw_w", json!(900), Verdict::Warn),
        ("clock.locked", "reasons", json!(2), Verdict::Warn),
        ("cfg.persistence", "persistence", json!(0), Verdict::Drift),
        ("cfg.mig_pending", "mig_pending", json!(1), Verdict::Drift),
        ("cfg.compute_mode", "compute_mode", json!(2), Verdict::Drift),
        ("cfg.mps", "mps_state", json!("stale_pipe"), Verdict::Drift),
        ("cfg.drain_state", "drain_state", json!(1), Verdict::Drift),
        ("sw.driver_loaded", "nvml_init_code", json!(9), Verdict::Fail),
        ("sw.module_match", "driver_version", json!("570.1"), Verdict::Fail),
        ("sw.gsp", "gsp_version", json!("570.1"), Verdict::Fail),
        ("sw.nouveau", "nouveau_loaded", json!(true), Verdict::Fail),
        ("sw.nouveau", "nova_loaded", json!(true), Verdict::Fail),
        ("sw.device_nodes", "wrong_major", json!(1), Verdict::Fail),
        ("proc.orphan_memory", "mem_used_mib", json!(4096), Verdict::Warn),
        ("proc.pids", "zombies", json!(2000), Verdict::Warn),
        ("os.systemd", "system_state", json!("degraded"), Verdict::Warn),
        ("os.clock_sync", "clock_unsync", json!(true), Verdict::Warn),
        ("os.taint", "taint", json!(16), Verdict::Fail),
        ("os.reboot_pending", "reboot_required", json!(true), Verdict::Warn),
        ("os.governor", "governor_bad", json!(64), Verdict::Drift),
        ("os.numa_affinity", "gpu_numa_node", json!(-1), Verdict::Warn),
        ("os.pressure", "psi_memory_full_avg300", json!(20.5), Verdict::Warn),
        ("disk.space", "inode_used_ratio", json!(0.99), Verdict::Fail),
        ("disk.readonly", "ro_unexpected", json!(1), Verdict::Fail),
        ("disk.raid", "md_degraded", json!(1), Verdict::Warn),
        ("disk.nfs", "nfs_hung_servers", json!(1), Verdict::Warn),
        ("audit.cost", "audit_cpu_ms", json!(900), Verdict::Warn),
        ("pcie.nic_width", "nic_width", json!(8), Verdict::Fail),
        ("pcie.nic_width", "nic_speed", json!(16), Verdict::Warn),
        ("net.ib_devices", "missing_uverbs", json!(1), Verdict::Fail),
        ("disk.nvme_health", "nvme_critical", json!(4), Verdict::Fail),
        ("disk.nvme_health", "nvme_critical", json!(8), Verdict::Fail),
        ("disk.nvme_health", "nvme_critical", json!(2), Verdict::Warn),
        ("disk.nvme_health", "nvme_spare_left", json!(-1), Verdict::Fail),
        ("disk.nvme_health", "nvme_used_percent", json!(101), Verdict::Warn),
    ];
    for (check, name, value, wanted) in planted {
        let signals = with(|signals| {
            let (scope, _) = crate::vocabulary::lookup(name).unwrap();
            let readings = match scope {
                Scope::Node => &mut signals.node,
                Scope::Gpu => &mut signals.gpus[0].readings,
                Scope::Disk => &mut signals.disks[0].readings,
                Scope::Port => &mut signals.ports[0].readings,
            };
            readings.insert((*name).to_owned(), Signal::Known(value.clone()));
        });
        assert_eq!(verdicts(&signals, check)[0], *wanted, "{check}: {name} {value}");
    }
}

#[test]
fn links_without_a_bridge_are_not_down() {
    let judged = |name: &str, active: u32, count: u32| {
        let signals = with(|signals| {
            gpu(signals, "name", name);
            gpu(signals, "nvl_active", active);
            gpu(signals, "nvl_count", count);
        });
        verdicts(&signals, "nvl.links")[0]
    };
    for (name, active, count) in
        [("NVIDIA A100 80GB PCIe", 0, 12), ("NVIDIA H100 PCIe", 0, 18), ("NVIDIA H100 NVL", 12, 18)]
    {
        assert_eq!(judged(name, active, count), Verdict::Ok, "{name}");
        // How many are meant, nothing but a declaration tells.
        let declared = policy(&format!("checks: [nvl.links]\ndeclared: {{nvlinks: {active}}}\n"));
        let fewer = with(|signals| {
            gpu(signals, "name", name);
            gpu(signals, "nvl_active", active.saturating_sub(1));
            gpu(signals, "nvl_count", count);
        });
        let wanted = if active == 0 { Verdict::Ok } else { Verdict::Fail };
        assert_eq!(judge(&declared.for_node("x", &[]), &fewer)[0].verdict, wanted, "{name}");
    }
    assert_eq!(judged("NVIDIA A100-SXM4-80GB", 11, 12), Verdict::Fail);
    assert_eq!(judged("NVIDIA A100-SXM4-80GB", 0, 12), Verdict::Fail);
}

#[test]
fn the_drivers_words_tell_fatal_nvlink_codes() {
    let judged = |line: &str| {
        let signals = with(|signals| {
            let text = format!("NVRM: Xid (PCI:0000:50:00): {line}");
            let code = line.split(',').next().and_then(|code| code.parse().ok());
            signals.records.push(gpufleet_protocol::signal::KernelRecord {
                text,
                code,
                ..xid(0, "0000:50:00.0")
            });
        });
        verdicts(&signals, "err.xid_nvlink5")[0]
    };
    assert_eq!(judged("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00"), Verdict::Warn);
    assert_eq!(judged("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13"), Verdict::Ok);
    assert_eq!(judged("149, NETIR_LINK_EVT Fatal, caused by previous Xid 145"), Verdict::Ok);
}

/// The shipped baselines that ask whether daemons may lock memory declare how much.
#[test]
fn memlock_of_daemons_is_judged_by_the_baselines_that_ask() {
    for baseline in ["training", "slurm"] {
        let signals = with(|signals| drop(signals.node.insert("memlock_limited".to_owned(), 1.into())));
        let findings = judge(&policy(baseline).for_node("gpu001", &[]), &signals);
        assert_eq!(of(&findings, "os.limits")[0].verdict, Verdict::Drift, "{baseline}");
    }
}

#[test]
fn traps_are_no_findings() {
    let harmless: &[(&str, serde_json::Value)] = &[
        // Marks that NVIDIA's own driver sets.
        ("taint", json!(4096 + 8192 + 1)),
        // A mask whose fields say "false": 2 in each.
        ("fabric_mask", json!(0b1000_1000)),
        ("ecc_cor_vol", json!(1000)),
        ("pcie_gen", json!(1)),
        // The power cap at work.
        ("reasons", json!(4)),
        ("recovery_action", json!(null)),
        ("mem_used_mib", json!(200)),
        // Totals since the machine was started.
        ("aer_fatal", json!(3)),
        ("link_downed", json!(12)),
        ("ib_symbol_error", json!(400)),
        // The write cache of a client's drive, and a drive with just enough left.
        ("nvme_critical", json!(0x10)),
        ("nvme_spare_left", json!(0)),
        // For seconds it is ordinary.
        ("gpu_dstate_count", json!(2)),
        ("gpu_zombie_count", json!(2)),
    ];
    for (name, value) in harmless {
        let signals = with(|signals| {
            let (scope, _) = crate::vocabulary::lookup(name).unwrap();
            let readings = match scope {
                Scope::Node => &mut signals.node,
                Scope::Port => &mut signals.ports[0].readings,
                _ => &mut signals.gpus[0].readings,
            };
            readings.insert((*name).to_owned(), value.clone().into());
        });
        assert_eq!(told(&judge(&everything(), &signals)), "", "{name} {value}");
    }
}

#[test]
fn what_this_audit_did_not_read_is_not_judged_yet() {
    let mut signals = with(|signals| {
        signals.gpus[0].readings.remove("inforom_code");
    });
    let findings = judge(&everything(), &signals);
    let finding = of(&findings, "sw.inforom_valid")[0];
    assert_eq!((finding.verdict, finding.na), (Verdict::Na, Some(NaReason::NotAsked)));
    assert_eq!(&*finding.note, "this audit did not read `inforom_code`");
    gpu(&mut signals, "inforom_code", 14);
    assert_eq!(verdicts(&signals, "sw.inforom_valid"), [Verdict::Fail, Verdict::Ok]);
}

/// Lines as the helper passes them on.
#[test]
fn lines_of_the_kernel_are_found() {
    use gpufleet_protocol::signal::KernelRecord;
    let line = |sort, text: &str| KernelRecord {
        at_us: None,
        sort,
        code: None,
        pci: None,
        settled: false,
        text: text.to_owned(),
    };
    let lines = [
        (
            "err.nvrm_assert",
            RecordSort::Nvrm,
            "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x55:2477)",
            Verdict::Fail,
        ),
        ("os.mce", RecordSort::Hardware, "EDAC MC0: 1 UE memory read error on CPU_SrcID#0", Verdict::Fail),
        (
            "os.mce",
            RecordSort::Hardware,
            "pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal)",
            Verdict::Warn,
        ),
        (
            "os.mce",
            RecordSort::Hardware,
            "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: be00000000800400",
            Verdict::Fail,
        ),
        (
            "os.mce",
            RecordSort::Hardware,
            "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 8: 8c00004000010093",
            Verdict::Warn,
        ),
        ("disk.io_errors", RecordSort::Disk, "block nvme0n1: no available path - failing I/O", Verdict::Fail),
        (
            "os.kernel_log",
            RecordSort::Kernel,
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s!",
            Verdict::Fail,
        ),
        (
            "os.kernel_log",
            RecordSort::Kernel,
            "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
            Verdict::Fail,
        ),
        ("os.kernel_log", RecordSort::Disk, "EXT4-fs (sda1): Remounting filesystem read-only", Verdict::Fail),
        (
            "os.oom",
            RecordSort::Oom,
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python",
            Verdict::Warn,
        ),
        (
            "os.oom",
            RecordSort::Oom,
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python",
            Verdict::Ok,
        ),
        ("disk.io_errors", RecordSort::Disk, "nvme nvme0: I/O 12 QID 3 timeout, aborting", Verdict::Warn),
        (
            "err.sxid",
            RecordSort::Sxid,
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32",
            Verdict::Ok,
        ),
        (
            "err.sxid",
            RecordSort::Sxid,
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30",
            Verdict::Fail,
        ),
    ];
    for (check, sort, text, wanted) in lines {
        let signals = with(|signals| signals.records.push(line(sort, text)));
        assert_eq!(verdicts(&signals, check), [wanted], "{text}");
    }
}

#[test]
fn a_node_that_lists_too_much_is_not_believed() {
    let mut signals = node();
    let gpu = signals.gpus[0].clone();
    signals.gpus = vec![gpu; 5_000];
    for (index, gpu) in signals.gpus.iter_mut().enumerate() {
        gpu.readings.insert("fabric_cluster".to_owned(), index.to_string().into());
        gpu.readings.insert("pcie_width".to_owned(), Signal::Unknown("x".repeat(10_000)));
    }
    let findings = judge(&everything(), &signals);
    let last = of(&findings, "nvl.fabric_clique").pop().unwrap();
    assert_eq!((last.verdict, &*last.note), (Verdict::Unknown, "the node lists 5000, and 256 were judged"));
    assert_eq!(of(&findings, "nvl.fabric_clique")[0].verdict, Verdict::Fail);
    assert!(of(&findings, "pcie.width")[0].note.chars().count() < 300);
}

/// The verdict and the note of one check under a baseline with these declared values.
/// For each mode that waits for a reset there is one finding, and a reset is advised only where it makes the declared value
/// current.
#[test]
fn a_reset_is_not_advised_where_it_would_make_another_mode_current_than_is_declared() {
    for (name, checks) in [("ecc", "mem.ecc_mode, mem.ecc_pending"), ("mig", "cfg.mig_mode, cfg.mig_pending")]
    {
        for (declared, current, pending) in (0..8).map(|bits| (bits & 1, bits >> 1 & 1, bits >> 2)) {
            let signals = with(|signals| {
                gpu(signals, &format!("{name}_current"), current);
                gpu(signals, &format!("{name}_pending"), pending);
            });
            let text = format!("checks: [{checks}]\ndeclared: {{{name}: {declared}}}\n");
            let findings = judge(&policy(&text).for_node("gpu001", &[]), &signals);
            let found: Vec<Action> = findings
                .iter()
                .filter(|finding| {
                    finding.subject.id() == signals.gpus[0].id && finding.verdict != Verdict::Ok
                })
                .map(|finding| finding.action)
                .collect();
            let expected = match (current == declared, pending == declared) {
                (true, true) => vec![],
                (false, true) => vec![Action::Reset],
                (_, false) => vec![Action::Apply],
            };
            assert_eq!(found, expected, "{name}: declared {declared}, current {current}, pending {pending}");
        }
    }
}

fn judged(check: &str, declared: &str, signals: &Signals) -> (Verdict, String) {
    // A pattern, as a check that is named without the value that it needs is a mistake.
    let text = format!("checks: ['{check}*']\ndeclared: {{{declared}}}\n");
    let findings = judge(&policy(&text).for_node("gpu001", &[]), signals);
    let found = findings.iter().find(|finding| *finding.check.id == *check).unwrap();
    (found.verdict, found.note.to_string())
}

fn port(signals: &mut Signals, at: usize, name: &str, value: impl Into<Signal>) {
    signals.ports[at].readings.insert(name.to_owned(), value.into());
}

/// A node with two compute ports, a slower port of storage, and a spare one that is down.
fn cabled() -> Signals {
    with(|signals| {
        let one = signals.ports[0].clone();
        signals.ports = (0..4)
            .map(|at| {
                let id = format!("mlx5_{at}/1");
                SubjectReadings { label: id.clone(), id, ..one.clone() }
            })
            .collect();
        port(signals, 2, "ib_rate_gbps", 100);
        port(signals, 2, "ib_layer", "Ethernet");
        port(signals, 3, "ib_state", "DOWN");
        port(signals, 3, "ib_phys_state", "Polling");
        port(signals, 3, "nic_width", 8);
        signals.node.insert("rdma_devices".to_owned(), 4.into());
        signals.node.insert("ib_up".to_owned(), 3.into());
    })
}

#[test]
fn only_declared_ports_must_be_up() {
    let mut signals = cabled();
    let ports = |declared: &str, signals: &Signals| judged("net.ib_ports", declared, signals).0;
    assert_eq!(ports("", &signals), Verdict::Na, "a spare port is no fault");
    for (declared, verdict) in [
        ("ib_ports: 3", Verdict::Ok),
        ("ib_ports: 4", Verdict::Fail),
        ("ib_ports: 2, ib_rate: 400", Verdict::Ok),
        ("ib_ports: 3, ib_rate: 400", Verdict::Fail),
        ("ib_ports: 1, ib_layer: Ethernet", Verdict::Ok),
        ("ib_ports: 1, ib_layer: Ethernet, ib_rate: 400", Verdict::Fail),
    ] {
        assert_eq!(ports(declared, &signals), verdict, "{declared}");
    }
    // It may run at 400: only where that decides is nothing known.
    port(&mut signals, 2, "ib_rate_gbps", Signal::Unknown("no permission".to_owned()));
    assert_eq!(ports("ib_ports: 2, ib_rate: 400", &signals), Verdict::Ok);
    assert_eq!(
        judged("net.ib_ports", "ib_ports: 3, ib_rate: 400", &signals),
        (Verdict::Unknown, "`ib_rate_gbps of mlx5_2/1`: no permission".to_owned())
    );
    signals.node.insert("rdma_devices".to_owned(), Signal::Unknown("x".to_owned()));
    assert_eq!(ports("ib_ports: 4", &signals), Verdict::Unknown);
    signals.ports.clear();
    signals.node.insert("rdma_devices".to_owned(), 0.into());
    signals.node.insert("ib_up".to_owned(), 0.into());
    assert_eq!((ports("", &signals), ports("ib_ports: 1", &signals)), (Verdict::Na, Verdict::Fail));
}

#[test]
fn a_card_without_a_link_is_not_judged_by_its_slot() {
    let findings = judge(&everything(), &cabled());
    let verdicts: Vec<Verdict> = of(&findings, "pcie.nic_width").iter().map(|it| it.verdict).collect();
    assert_eq!(verdicts, [Verdict::Ok, Verdict::Ok, Verdict::Ok, Verdict::Na]);
}

#[test]
fn without_ports_there_is_nothing_to_judge_or_nobody_knows() {
    let mut signals = with(|signals| signals.ports.clear());
    let told = |signals: &Signals| {
        let findings = judge(&everything(), signals);
        let finding = of(&findings, "net.ib_flap")[0];
        (finding.verdict, finding.note.to_string())
    };
    assert_eq!(told(&signals), (Verdict::Unknown, "no RDMA port could be read".to_owned()));
    signals.node.insert("rdma_devices".to_owned(), 0.into());
    assert_eq!(told(&signals), (Verdict::Na, "the node has no RDMA device".to_owned()));
}

/// A kubelet that removes no images, or evicts nothing, has no threshold, and the check's own count.
#[test]
fn images_are_judged_by_the_thresholds_of_the_kubelet() {
    let of = |values: &[(&str, Signal)]| {
        let signals = with(|signals| {
            for (name, value) in values {
                signals.node.insert((*name).to_owned(), value.clone());
            }
        });
        judged("ctr.image_space", "", &signals)
    };
    let ratio = |number: f64| Signal::from(number);
    assert_eq!(of(&[("image_used_ratio", ratio(0.8))]).0, Verdict::Ok);
    let early = [("image_kubelet_used_ratio", ratio(0.75)), ("image_gc_ratio", ratio(0.7))];
    assert_eq!(of(&early).0, Verdict::Warn);
    let others = [("image_used_ratio", ratio(0.75)), ("image_gc_ratio", ratio(0.7))];
    assert_eq!(of(&others).0, Verdict::Ok, "another runtime's store is no concern of the kubelet's");
    let evicts = [("image_kubelet_used_ratio", ratio(0.75)), ("image_evict_ratio", ratio(0.7))];
    assert_eq!(of(&evicts).0, Verdict::Fail);
    let bare = |used| {
        let none = [("image_gc_ratio", Signal::Absent), ("image_evict_ratio", Signal::Absent)];
        of(&[&none[..], &[("image_used_ratio", ratio(used))]].concat()).0
    };
    assert_eq!((bare(0.8), bare(0.9), bare(0.96)), (Verdict::Ok, Verdict::Warn, Verdict::Fail));
    assert_eq!(of(&[("image_inode_used_ratio", ratio(0.97))]).0, Verdict::Fail);
    assert_eq!(of(&[("image_used_ratio", Signal::Absent)]).0, Verdict::Na);
    assert_eq!(of(&[("image_used_ratio", Signal::Unknown("x".to_owned()))]).0, Verdict::Unknown);
    assert_eq!(of(&[("image_gc_ratio", Signal::Unknown("x".to_owned()))]).0, Verdict::Unknown);
}

#[test]
fn drivers_of_control_groups_and_images_are_judged() {
    let of = |check: &str, name: &str, value: Signal| {
        judged(check, "", &with(|signals| drop(signals.node.insert(name.to_owned(), value)))).0
    };
    let told = |name, value: &str| of("ctr.cgroup_driver", name, value.into());
    assert_eq!(told("kubelet_cgroup_driver", "systemd"), Verdict::Ok);
    assert_eq!(told("kubelet_cgroup_driver", "cgroupfs"), Verdict::Fail);
    assert_eq!(of("ctr.cgroup_driver", "kubelet_cgroup_driver", Signal::Absent), Verdict::Na);
    let unread = Signal::Unknown("x".to_owned());
    assert_eq!(of("ctr.cgroup_driver", "runtime_cgroup_driver", unread.clone()), Verdict::Unknown);
    for (count, verdict) in [(2, Verdict::Ok), (1, Verdict::Fail), (3, Verdict::Fail)] {
        assert_eq!(of("ctr.kubelet_gpus", "kubelet_gpus", count.into()), verdict, "{count} of 2");
    }
    assert_eq!(of("ctr.kubelet_gpus", "kubelet_gpus", Signal::Absent), Verdict::Na);
    assert_eq!(of("ctr.image_driver", "image_stores_slow", 1.into()), Verdict::Warn);
    assert_eq!(of("ctr.image_driver", "image_stores_unfit", 1.into()), Verdict::Fail);
    assert_eq!(of("ctr.image_driver", "image_stores_unfit", unread), Verdict::Unknown);
    assert_eq!(of("ctr.image_driver", "image_stores_slow", Signal::Absent), Verdict::Na);
}

#[test]
fn what_is_declared_of_the_system_is_compared() {
    let signals = with(|signals| {
        let words = "BOOT_IMAGE=/vmlinuz iommu=pt isolcpus=\"managed_irq, 2-5\"";
        signals.node.insert("cmdline".to_owned(), words.into());
        signals.node.insert("eth_links".to_owned(), vec!["eno1:up", "eno1:mtu=9000"].into());
        signals.node.insert("dmabuf_capable".to_owned(), false.into());
        signals.node.insert("memlock_limited".to_owned(), 1.into());
    });
    for (check, declared, verdict) in [
        ("os.cmdline", "", Verdict::Na),
        ("os.cmdline", "cmdline: [iommu=pt, 'isolcpus=managed_irq, 2-5']", Verdict::Ok),
        ("os.cmdline", "cmdline: [iommu=pt, nosmt]", Verdict::Drift),
        // A part of a word is no word.
        ("os.cmdline", "cmdline: [iommu]", Verdict::Drift),
        ("net.eth", "eth: [eno1:up]", Verdict::Ok),
        ("net.eth", "eth: [eno1:up, 'eno1:speed=25000']", Verdict::Drift),
        ("net.peermem", "", Verdict::Na),
        ("net.peermem", "gpudirect: true", Verdict::Drift),
        ("net.peermem", "gpudirect: false", Verdict::Ok),
        ("os.limits", "memlock: unlimited", Verdict::Drift),
        ("os.limits", "memlock: much", Verdict::Unknown),
        ("ctr.runtime", "runtime: containerd", Verdict::Ok),
        ("ctr.runtime", "runtime: docker", Verdict::Fail),
        ("ctr.runtime", "runtime: podman", Verdict::Unknown),
        ("ctr.image_roots", "", Verdict::Na),
        ("ctr.image_roots", "image_roots: [/data/containerd]", Verdict::Ok),
        ("ctr.image_roots", "image_roots: [/data/docker]", Verdict::Drift),
        ("net.nic_firmware", "nic_fw: ['28.39.1002']", Verdict::Ok),
        ("net.nic_firmware", "nic_fw: ['28.40.1000']", Verdict::Drift),
    ] {
        assert_eq!(judged(check, declared, &signals).0, verdict, "{check} {declared}");
    }
}

#[test]
fn access_control_and_ordering_are_judged_on_bare_metal_only() {
    let checks = ["pcie.acs", "pcie.relaxed_ordering"];
    let list = |names: &[&str]| Signal::from(names.to_vec());
    let on_node = |changes: &[(&str, Signal)]| {
        with(|signals| {
            let changes = changes.iter().map(|(name, signal)| ((*name).to_owned(), signal.clone()));
            signals.node.extend(changes);
        })
    };
    let bad = [("acs_redirects", list(&["0000:3a:01.0"])), ("relaxed_ordering_off", list(&["0000:3b:00.0"]))];
    let read = |extra: &[(&str, Signal)], declared: bool| {
        let signals = on_node(&[&bad, extra].concat());
        let text = match declared {
            true => "extends: training\ndeclared: {gpudirect: true}\nchecks: ['pcie.*']\n",
            false => "extends: training\nchecks: ['pcie.*']\n",
        };
        let findings = judge(&policy(text).for_node("gpu001", &[]), &signals);
        checks.map(|check| {
            let finding = of(&findings, check)[0];
            (finding.verdict, finding.note.to_string())
        })
    };
    assert_eq!(read(&[], true).map(|(verdict, _)| verdict), [Verdict::Warn, Verdict::Warn]);
    let [(acs, why), (ordering, _)] = read(&[("virtualization", "kvm".into())], true);
    assert_eq!((acs, ordering), (Verdict::Na, Verdict::Na));
    assert_eq!(why, "it does not apply to this node: virtualization is kvm, vfio_count is 0");
    let [(acs, _), (ordering, _)] = read(&[("vfio_count", 2.into())], true);
    assert_eq!((acs, ordering), (Verdict::Na, Verdict::Warn), "vfio needs the one and not the other");
    let unread = Signal::Unknown("only 64 bytes".to_owned());
    let unknown = read(&[("acs_redirects", unread.clone()), ("relaxed_ordering_off", unread)], true);
    assert_eq!(unknown.map(|(verdict, _)| verdict), [Verdict::Unknown, Verdict::Unknown]);
    let [(undeclared, why), _] = read(&[], false);
    assert_eq!(undeclared, Verdict::Na);
    assert!(why.contains("gpudirect is not declared"), "{why}");
}

#[test]
fn a_narrow_link_counts_in_full_only_where_nothing_lets_it_rest() {
    let narrow = |pstate: u32, util: u32, reasons: u32| {
        let signals = with(|signals| {
            gpu(signals, "pcie_width", 8);
            gpu(signals, "pstate", pstate);
            gpu(signals, "util_gpu", util);
            gpu(signals, "reasons", reasons);
        });
        verdicts(&signals, "pcie.width")[0]
    };
    assert_eq!(narrow(0, 0, 1), Verdict::Fail, "P0 is full speed");
    assert_eq!(narrow(2, 50, 0), Verdict::Fail, "it works");
    assert_eq!(narrow(8, 0, 1), Verdict::Warn, "it rests");
    let unsure = with(|signals| {
        gpu(signals, "pcie_width", 8);
        gpu(signals, "pstate", Signal::Unknown("timeout".to_owned()));
    });
    assert_eq!(verdicts(&unsure, "pcie.width")[0], Verdict::Unknown);
}

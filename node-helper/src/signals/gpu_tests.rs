//! Signals of readings that the worker made on the simulator, with one value changed each.

use std::collections::BTreeMap;

use gpufleet_protocol::nvml::{
    Fan, GpuInstance, GpuProcess, Lately, MemoryUse, MigProfile, Placement, RemappedRows, Staged,
};

use super::*;
use crate::{
    gpu::sim::{Sim, SimGpu, SimMachine},
    state::Record,
};

/// A word of the registry that a reading of this depth has.
const DEEP: [&str; 6] =
    ["nvl_speed_min", "nvl_speed_max", "nvl_replay", "nvl_recovery", "nvl_effective_ber", "nvl_symbol_ber"];

fn health(model: &str) -> Health {
    let text = match model {
        "a100" => include_str!("testdata/a100-80gb.json"),
        "h100" => include_str!("testdata/h100-80gb.json"),
        _ => include_str!("testdata/h200-141gb.json"),
    };
    serde_json::from_str(text).unwrap()
}

fn place() -> Place {
    Place { roots: Roots::below("/nowhere"), host_pids: true, now_s: 1_800_000_000 }
}

fn audited(health: Health) -> Audited {
    Audited { health: Ok(health), on_bus: 1, locks: BTreeMap::new() }
}

fn of(audited: &Audited) -> GpuSignals {
    signals(audited, &dead(audited, &place()), &place())
}

/// Returns the readings of the only GPU after a change.
fn changed(model: &str, change: impl FnOnce(&mut GpuReading, &mut HealthReading)) -> Readings {
    let mut health = health(model);
    change(&mut health.snapshot.gpus[0], &mut health.gpus[0]);
    of(&audited(health)).gpus.remove(0).readings
}

fn is_unknown(signal: &Signal) -> bool {
    matches!(signal, Signal::Unknown(_))
}

#[test]
fn nothing_is_unknown_of_a_healthy_gpu_and_every_name_is_registered() {
    for model in ["a100", "h100", "h200"] {
        let found = of(&audited(health(model)));
        let gpu = &found.gpus[0];
        let unknown: Vec<_> =
            gpu.readings.iter().chain(&found.node).filter(|(_, signal)| is_unknown(signal)).collect();
        assert!(unknown.is_empty(), "{model}: {unknown:?}");
        let registered = |scope: Scope| -> BTreeSet<&str> {
            SIGNALS
                .iter()
                .copied()
                .flatten()
                .filter(|info| info.scope == scope)
                .map(|info| info.name)
                .collect()
        };
        let names: BTreeSet<&str> = gpu.readings.keys().map(String::as_str).collect();
        let (wanted, node) = (registered(Scope::Gpu), registered(Scope::Node));
        assert!(names.is_subset(&wanted), "{model}: {:?}", names.difference(&wanted).collect::<Vec<_>>());
        for name in found.node.keys() {
            assert!(node.contains(name.as_str()), "{name}");
        }
        assert_eq!((gpu.label.as_str(), gpu.id.starts_with("GPU-")), ("GPU 0", true));
    }
}

#[test]
fn a_healthy_gpu_holds_against_the_rules() {
    for (model, arch, links) in
        [("a100", "Ampere", Some(12)), ("h100", "Hopper", None), ("h200", "Hopper", Some(18))]
    {
        let found = of(&audited(health(model)));
        let gpu = &found.gpus[0].readings;
        for name in [
            "lost_code",
            "recovery_action",
            "ecc_unc_vol",
            "ecc_unc_sram_vol",
            "ecc_unc_agg",
            "sram_threshold",
            "sram_unc_vol",
            "remap_pending",
            "remap_failed",
            "hist_low",
            "hist_none",
            "repair_channel",
            "repair_tpc",
            "unrepairable",
            "num_fans",
            "drain_state",
            "mig_current",
            "mig_orphans",
            "dead_pids",
            "process_count",
            "mem_used_mib",
            "util_gpu",
            "inforom_code",
            "compute_mode",
            "pcie_replays",
        ] {
            assert_eq!(gpu[name], Signal::from(0), "{model} {name}");
        }
        for name in ["persistence", "ecc_current", "ecc_pending", "ecc_default", "gsp_mode", "gsp_default"] {
            assert_eq!(gpu[name], Signal::from(1), "{model} {name}");
        }
        for name in [
            "retired_sbe",
            "retired_dbe",
            "retired_pending",
            "fan_min_percent",
            "c2c_enabled",
            "module_draw_w",
        ] {
            assert_eq!(gpu[name], Signal::Absent, "{model} {name}");
        }
        assert_eq!(gpu["arch"], Signal::from(arch));
        assert_eq!((&gpu["idle"], &gpu["busy"]), (&Signal::from(true), &Signal::from(false)));
        assert_eq!(gpu["pcie_width"], gpu["pcie_width_max"], "{model}");
        assert_eq!(gpu["nvl_active"], links.map_or(Signal::Absent, Signal::from), "{model}");
        assert_eq!(gpu["nvl_count"], gpu["nvl_active"], "{model}");
        assert_eq!(gpu["power_limit_w"], gpu["power_default_w"], "{model}");
        assert_eq!(gpu["gsp_version"], found.node["driver_version"], "{model}");
        assert_eq!(found.node["nvml_count"], Signal::from(1));
        assert_eq!(found.node["worker_state"], Signal::from("done"));
        assert_eq!((&found.node["excluded_count"], &found.node["cc_feature"]), (&0.into(), &0.into()));
    }
    let h200 = changed("h200", |_, _| {});
    assert_eq!(h200["tlimit_slowdown_c"], Signal::from(-2));
    assert_eq!((&h200["nvl_speed_min"], &h200["nvl_speed_max"]), (&26562.into(), &26562.into()));
    assert_eq!((&h200["fabric_state"], &h200["fabric_summary"]), (&3.into(), &0.into()));
    assert_eq!(h200["fabric_cluster"], Signal::from("00000000-0000-0000-0000-000000000000"));
}

#[test]
fn what_was_not_asked_for_has_no_name() {
    let readings = changed("h200", |_, reading| {
        reading.board = None;
        reading.deep = None;
    });
    for name in DEEP.into_iter().chain(["margin_c", "power_draw_w", "pcie_width_max", "inforom_code"]) {
        assert!(!readings.contains_key(name), "{name}");
    }
    assert_eq!(readings["pcie_width"], Signal::from(16));
}

#[test]
fn a_failed_reading_is_unknown_and_a_missing_one_absent() {
    let none = |code| changed("h200", |_, reading| *reading = HealthReading::none(code));
    let names = [
        "sram_threshold",
        "hist_none",
        "retired_dbe",
        "gsp_version",
        "fabric_state",
        "nvl_count",
        "mem_used_mib",
    ];
    for name in names {
        assert_eq!(none(Code::NOT_SUPPORTED)[name], Signal::Absent, "{name}");
        assert_eq!(none(Code::FUNCTION_NOT_FOUND)[name], Signal::Absent, "{name}");
        for code in [Code::NO_PERMISSION, Code::UNKNOWN, Code::GPU_IS_LOST, Code(17)] {
            assert!(is_unknown(&none(code)[name]), "{name} {code}");
        }
    }
    let blind = none(Code::UNKNOWN);
    assert!(is_unknown(&blind["idle"]) && is_unknown(&blind["busy"]));
    assert!(is_unknown(&blind["process_count"]) && is_unknown(&blind["dead_pids"]));
    assert_eq!(blind["lost_code"], Signal::from(0));
}

#[test]
fn mig_makes_refused_readings_absent_and_nothing_else() {
    let refused = |mig: bool| {
        changed("h200", |gpu, reading| {
            gpu.mig = Ok(Staged::settled(mig));
            gpu.ecc_uncorrected = Err(Code::NO_PERMISSION);
            gpu.remapped_rows = Err(Code::NO_PERMISSION);
            reading.work.memory = Err(Code::NO_PERMISSION);
            reading.work.gpu_percent = Err(Code::NO_PERMISSION);
            reading.memory.sram = Err(Code::NO_PERMISSION);
        })
    };
    for name in ["ecc_unc_vol", "remap_failed", "mem_used_mib", "memory_total_mib", "util_gpu"] {
        assert_eq!(refused(true)[name], Signal::Absent, "{name}");
        assert!(is_unknown(&refused(false)[name]), "{name}");
    }
    // The right to read this one is a matter of root, not of MIG.
    assert!(is_unknown(&refused(true)["sram_threshold"]));
}

#[test]
fn defects_have_their_signals() {
    let readings = changed("h200", |gpu, reading| {
        gpu.remapped_rows =
            Ok(RemappedRows { correctable: 1, uncorrectable: 2, pending: true, failed: true });
        gpu.recovery_action = Ok(2);
        gpu.pcie_width = Ok(8);
        gpu.power_limit_mw = Ok(512_500);
        reading.memory.retired_double = Ok(vec![1_799_999_000, 1_700_000_000]);
        let board = reading.board.as_mut().unwrap();
        board.heat.margin = Ok(-3);
        let fan = |speed, target| Fan { speed: Ok(speed), target: Ok(target) };
        board.fans = Ok(vec![fan(60, 60), fan(0, 55)]);
    });
    assert_eq!((&readings["remap_cor"], &readings["remap_unc"]), (&1.into(), &2.into()));
    assert_eq!((&readings["remap_pending"], &readings["remap_failed"]), (&1.into(), &1.into()));
    assert_eq!(readings["recovery_action"], Signal::from(2));
    assert_eq!(readings["pcie_width"], Signal::from(8));
    assert_eq!(readings["power_limit_w"], Signal::from(512.5));
    assert_eq!((&readings["retired_dbe"], &readings["retired_dbe_last_7d"]), (&2.into(), &1.into()));
    assert_eq!(readings["margin_c"], Signal::from(-3));
    assert_eq!((&readings["num_fans"], &readings["fan_min_percent"]), (&2.into(), &0.into()));
    assert_eq!(readings["fan_target"], Signal::from(55));
    let made_up = changed("h200", |gpu, _| gpu.pcie_width = Ok(255));
    assert_eq!(made_up["pcie_width"], Signal::Absent);
}

#[test]
fn an_unknown_recovery_action_is_not_known_to_be_none() {
    let old = changed("h200", |gpu, _| gpu.recovery_action = Err(Code::FUNCTION_NOT_FOUND));
    assert_eq!((&old["recovery_action"], &old["recovery_action_known"]), (&Signal::Absent, &false.into()));
    let failed = changed("h200", |gpu, _| gpu.recovery_action = Err(Code::UNKNOWN));
    assert!(is_unknown(&failed["recovery_action"]));
    assert_eq!(failed["recovery_action_known"], Signal::from(false));
}

#[test]
fn work_is_busy_and_neither_half_alone_is() {
    let state = |reasons: u64, percent: u32, mib: Option<u64>| {
        let readings = changed("h200", |gpu, reading| {
            reading.modes.clock_reasons = Ok(reasons);
            reading.work.gpu_percent = Ok(percent);
            let process = mib.map(|_| GpuProcess { pid: 1, memory_bytes: None, gpu_instance: None });
            gpu.processes = Ok(process.into_iter().collect());
        });
        (readings["idle"].clone(), readings["busy"].clone())
    };
    let (yes, no) = (Signal::from(true), Signal::from(false));
    assert_eq!(state(1, 0, None), (yes.clone(), no.clone()));
    assert_eq!(state(0, 97, Some(1)), (no.clone(), yes.clone()));
    assert_eq!(state(1, 97, Some(1)), (yes.clone(), no.clone()), "the bit decides");
    assert_eq!(state(0, 0, Some(1)), (no.clone(), no.clone()), "a context without work");
    assert_eq!(state(0, 0, None), (yes, no));
}

#[test]
fn a_lost_gpu_is_a_subject() {
    let mut two = health("h200");
    two.count = Ok(2);
    two.snapshot.gpus[0].index = 1;
    two.snapshot.unreadable = vec![(0, Code::GPU_IS_LOST)];
    let found = of(&audited(two));
    let labels: Vec<_> = found.gpus.iter().map(|gpu| gpu.label.as_str()).collect();
    assert_eq!(labels, ["GPU 0", "GPU 1"]);
    let lost = &found.gpus[0];
    assert_eq!((lost.id.as_str(), &lost.readings["lost_code"]), ("index 0", &15.into()));
    assert!(
        lost.readings.iter().filter(|(name, _)| *name != "lost_code").all(|(_, signal)| is_unknown(signal))
    );
    // It answered to its name and then fell off the bus.
    let later = changed("h200", |gpu, _| gpu.temperature_c = Err(Code::GPU_IS_LOST));
    assert_eq!(later["lost_code"], Signal::from(15));
    let last = changed("h200", |_, reading| {
        reading.lately =
            Some(Lately { power_draw_mw: Err(Code::GPU_IS_LOST), samples: Err(Code::NOT_SUPPORTED) });
    });
    assert_eq!(last["lost_code"], Signal::from(15));
    let corrupt = changed("h200", |gpu, reading| {
        gpu.vbios = Err(Code::CORRUPTED_INFOROM);
        reading.deep = None;
    });
    assert_eq!((&corrupt["inforom_code"], &corrupt["lost_code"]), (&14.into(), &0.into()));
}

#[test]
fn a_drained_gpu_is_a_subject_and_counts() {
    let mut two = health("h200");
    two.snapshot.gpus[0].index = 1;
    two.snapshot.drained = vec![DrainedGpu {
        index: 0,
        pci: "0000:1b:00.0".to_owned(),
        uuid: "GPU-7".to_owned(),
        name: "NVIDIA H200".to_owned(),
        minor: Some(0),
    }];
    let found = of(&audited(two));
    assert_eq!(found.node["nvml_count"], 2.into());
    let drained = &found.gpus[0];
    assert_eq!((drained.id.as_str(), drained.label.as_str()), ("GPU-7", "GPU 0"));
    let known: Vec<&str> = drained
        .readings
        .iter()
        .filter(|(_, signal)| **signal != Signal::Absent)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(known, ["drain_state", "lost_code", "name", "pci"]);
    assert_eq!((&drained.readings["drain_state"], &drained.readings["lost_code"]), (&1.into(), &0.into()));
}

#[test]
fn processes_that_do_not_exist_count_only_where_their_numbers_mean_something() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("proc/7")).unwrap();
    let place = |host_pids| Place { roots: Roots::below(folder.path()), host_pids, now_s: 0 };
    let mut health = health("h200");
    let process = |pid| GpuProcess { pid, memory_bytes: None, gpu_instance: None };
    health.snapshot.gpus[0].processes = Ok(vec![process(7), process(8), process(0)]);
    health.gpus[0].work.mps_pids = Ok(vec![7, 9]);
    let audited = audited(health);
    let read = |place: &Place| signals(&audited, &dead(&audited, place), place).gpus.remove(0).readings;
    let host = read(&place(true));
    assert_eq!((&host["dead_pids"], &host["process_count"]), (&2.into(), &4.into()));
    assert_eq!(read(&place(false))["dead_pids"], Signal::Absent);
}

#[test]
fn readings_of_a_moment_in_between_are_made_again() {
    let mut first = health("h200");
    let instance = GpuInstance {
        id: 1,
        profile_id: 9,
        placement: Placement { start: 0, size: 4 },
        compute_instances: Vec::new(),
    };
    let profile = MigProfile {
        id: 9,
        name: "3g.71gb".to_owned(),
        slices: 3,
        max_count: 2,
        memory_mib: 71_424,
        placements: Ok(Vec::new()),
    };
    let doubt = |health: &Health| health.pairs().any(|(gpu, reading)| doubtful(gpu, reading));
    assert!(!doubt(&first));
    first.gpus[0].work.memory = Ok(MemoryUse { total: 1 << 40, used: 300 << 20 });
    assert!(doubt(&first));
    settle(&mut first, health("h200"));
    assert!(!doubt(&first));
    first.snapshot.gpus[0].mig = Ok(Staged::settled(true));
    first.snapshot.gpus[0].instances = Ok(vec![instance]);
    first.snapshot.gpus[0].profiles = Ok(vec![profile]);
    assert!(doubt(&first));
    let readings = of(&audited(first)).gpus.remove(0).readings;
    assert_eq!(readings["mig_orphans"], Signal::from(1));
    assert_eq!(readings["mig_layout"], Signal::from(vec!["3g.71gb@0"]));
}

#[test]
fn without_a_reading_the_node_says_why() {
    let because = |error: NvmlError, init: Option<u32>, library: Option<&str>, on_bus: u32| {
        let why = NoHealth { error, init: init.map(Code), library: library.map(str::to_owned) };
        let found = of(&Audited { health: Err(why), on_bus, locks: BTreeMap::new() });
        assert!(found.gpus.is_empty());
        found.node
    };
    let detail = || "why".to_owned();
    let hung = because(NvmlError::Hung { detail: detail() }, None, None, 8);
    assert_eq!(hung["worker_state"], Signal::from("hung"));
    assert!(is_unknown(&hung["nvml_count"]) && is_unknown(&hung["nvml_init_code"]));
    let crashed = because(NvmlError::Crashed { detail: detail() }, None, None, 8);
    assert_eq!(crashed["worker_state"], Signal::from("crashed"));
    let mismatch = because(NvmlError::VersionMismatch { detail: detail() }, Some(18), Some("580.1"), 8);
    assert_eq!((&mismatch["nvml_init_code"], &mismatch["driver_version"]), (&18.into(), &"580.1".into()));
    assert_eq!(mismatch["worker_state"], Signal::from("done"));
    assert!(is_unknown(&mismatch["nvml_count"]));
    let bare = because(NvmlError::NoDriver { detail: detail() }, Some(12), None, 0);
    assert_eq!((&bare["nvml_count"], &bare["driver_version"]), (&Signal::Absent, &Signal::Absent));
    let missing = because(NvmlError::NoDriver { detail: detail() }, Some(9), None, 8);
    assert!(is_unknown(&missing["nvml_count"]));
    let never = because(NvmlError::NoWorker { detail: detail() }, None, None, 8);
    assert!(is_unknown(&never["worker_state"]) && is_unknown(&never["driver_version"]));
    let names = |readings: &Readings| readings.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&never), names(&of(&audited(health("h200"))).node));
}

/// Returns what a simulated node says within a fraction of a second.
fn read_of(sim: Sim) -> GpuSignals {
    let folder = tempfile::tempdir().unwrap();
    let machine = SimMachine::new(sim);
    let mut gpus = Gpus::with_machine(Box::new(machine.clone()), Record::of(Some(folder.path())));
    let found =
        read(&mut gpus, &Roots::below(folder.path()), false, &Deadline::after(Duration::from_millis(300)));
    assert!(!machine.get().open, "the worker holds no GPU");
    found
}

#[test]
fn a_whole_node_is_read() {
    let lost = SimGpu { index: 1, lost: true, ..SimGpu::new(1, true) };
    let found = read_of(Sim::new(vec![SimGpu::new(0, true), lost]));
    let ids: Vec<_> = found.gpus.iter().map(|gpu| gpu.id.as_str()).collect();
    assert_eq!(ids, ["GPU-0", "index 1"]);
    let mut orphan = SimGpu::new(0, true).with_instances(&[(9, 0, 4)]);
    orphan.instances[0].compute_instances.clear();
    let found = read_of(Sim::new(vec![orphan]));
    assert_eq!(found.gpus[0].readings["mig_orphans"], Signal::from(1), "also after it was asked for again");
    let mut sim = Sim::new(vec![SimGpu::new(0, true)]);
    sim.broken = Some(NvmlError::Hung { detail: "silent".to_owned() });
    let found = read_of(sim);
    assert_eq!((found.gpus.len(), &found.node["worker_state"]), (0, &"hung".into()));
}

#[test]
fn a_lock_of_ours_is_a_signal() {
    let health = health("h200");
    let uuid = health.snapshot.gpus[0].uuid.clone();
    let found = of(&Audited { health: Ok(health), on_bus: 1, locks: [(uuid, 1500)].into() });
    assert_eq!(found.gpus[0].readings["lock_record"], Signal::from(1500));
    assert_eq!(changed("h200", |_, _| {})["lock_record"], Signal::from(0));
}

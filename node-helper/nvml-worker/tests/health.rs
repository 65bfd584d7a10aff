//! The worker against the simulated library: what a healthy GPU answers, and what becomes of each call that fails.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    frame::{Decoder, Frame},
    nvml::{Answer, Answered, Ask, Asked, Code, Health},
};
use nvml_sim::{
    fault::{Effect, Rule},
    model::ModelKey,
    state::Machine,
    store::Store,
};
use serde_json::Value;

/// A simulated machine, and a worker on it.
struct Bench {
    folder: tempfile::TempDir,
    store: Store,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    decoder: Decoder,
    id: u64,
}

fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    [deps.join("libnvml_sim.so"), deps.parent().unwrap().join("libnvml_sim.so")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds the library with this test")
}

impl Bench {
    fn new(models: &[ModelKey]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("nvidiactl"), "").unwrap();
        std::os::unix::fs::symlink(library(), folder.path().join("libnvidia-ml.so.1")).unwrap();
        let mut machine = Machine::new("audit", models, "boot".to_owned());
        folder.path().to_str().unwrap().clone_into(&mut machine.device_dir);
        for gpu in &mut machine.gpus {
            gpu.persistence = true;
        }
        let state = folder.path().join("node.json");
        let store = Store::new(&state);
        store.create(&machine).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_gpufleet-nvml"))
            .env("LD_LIBRARY_PATH", folder.path())
            .env("GPUSIM_STATE", state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { folder, store, child, stdin, stdout, decoder: Decoder::default(), id: 0 }
    }

    fn ask(&mut self, request: Ask) -> Answer {
        self.id += 1;
        let frame = Frame::message(&Asked { id: self.id, request }).unwrap().encode().unwrap();
        self.stdin.as_mut().unwrap().write_all(&frame).unwrap();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                let answered: Answered = frame.decode().unwrap().unwrap();
                assert_eq!(answered.id, self.id);
                return answered.answer;
            }
            let count = self.stdout.read(&mut buffer).unwrap();
            assert!(count > 0, "the worker ended");
            self.decoder.feed(&buffer[..count]);
        }
    }

    fn health(&mut self, deep: bool) -> Health {
        match self.ask(Ask::Health { deep }) {
            Answer::Health(health) => *health,
            other => panic!("{other:?}"),
        }
    }

    fn fault(&self, function: &str, effect: Effect, times: Option<u64>) {
        let mut rule: Rule =
            serde_json::from_value(serde_json::json!({"function": function, "effect": effect})).unwrap();
        rule.times = times;
        self.store.set_faults(&[rule]).unwrap();
    }

    fn set(&self, word: &str, value: &str) {
        let set = |machine: &mut Machine| nvml_sim::defect::set(&mut machine.gpus[0], word, value);
        self.store.update(set).unwrap().unwrap().unwrap();
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
        let _ = self.folder.path();
    }
}

/// Returns the paths of all readings that failed with this code.
fn failed(value: &Value, code: u32) -> BTreeSet<String> {
    fn walk(value: &Value, code: u32, path: &str, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                if map.get("Err").and_then(Value::as_u64) == Some(code.into()) {
                    into.insert(path.to_owned());
                }
                for (key, value) in map.iter().filter(|(key, _)| *key != "Ok") {
                    walk(value, code, &format!("{path}/{key}"), into);
                }
                if let Some(value) = map.get("Ok") {
                    walk(value, code, path, into);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    walk(value, code, &format!("{path}/{index}"), into);
                }
            }
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    walk(value, code, "", &mut found);
    found
}

/// The helper's tests turn these readings into signals. `GPUFLEET_UPDATE_READINGS=1` writes them again.
#[test]
fn the_recorded_readings_of_the_helpers_tests_are_what_the_worker_reads() {
    for model in ModelKey::ALL {
        let health = Bench::new(&[model]).health(true);
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../src/signals/testdata/{model}.json"));
        let text = serde_json::to_string_pretty(&health).unwrap() + "\n";
        if std::env::var_os("GPUFLEET_UPDATE_READINGS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(std::fs::read_to_string(&path).unwrap_or_default() == text, "{} is old", path.display());
    }
}

#[test]
fn a_healthy_gpu_refuses_only_what_it_lacks() {
    for model in ModelKey::ALL {
        let value = serde_json::to_value(Bench::new(&[model]).health(true)).unwrap();
        for code in (1..=30).chain([999]).filter(|code| ![3, 13].contains(code)) {
            assert_eq!(failed(&value, code), BTreeSet::new(), "{model}: {code}");
        }
    }
}

#[test]
fn each_failed_call_fails_its_own_readings() {
    const GPU: &str = "/gpus/0";
    const SNAPSHOT: &str = "/snapshot/gpus/0";
    let table: &[(&str, &str, &[&str])] = &[
        ("nvmlGetExcludedDeviceCount", "", &["/excluded"]),
        ("nvmlSystemGetConfComputeState", "", &["/snapshot/confidential"]),
        ("nvmlSystemGetConfComputeGpusReadyState", "", &["/snapshot/confidential_ready"]),
        ("nvmlDeviceGetDefaultEccMode", GPU, &["/memory/ecc_default"]),
        ("nvmlDeviceGetTotalEccErrors", GPU, &["/memory/corrected_total", "/memory/uncorrected_total"]),
        ("nvmlDeviceGetMemoryErrorCounter", GPU, &["/memory/corrected_sram"]),
        ("nvmlDeviceGetSramEccErrorStatus", GPU, &["/memory/sram"]),
        ("nvmlDeviceGetRowRemapperHistogram", GPU, &["/memory/row_banks"]),
        ("nvmlDeviceGetRetiredPages_v2", GPU, &["/memory/retired_single", "/memory/retired_double"]),
        ("nvmlDeviceGetRetiredPagesPendingStatus", GPU, &["/memory/retired_pending"]),
        ("nvmlDeviceGetRepairStatus", GPU, &["/memory/repair"]),
        ("nvmlDeviceGetUnrepairableMemoryFlag_v1", GPU, &["/memory/unrepairable"]),
        ("nvmlDeviceGetGspFirmwareMode", GPU, &["/modes/gsp"]),
        ("nvmlDeviceGetGspFirmwareVersion", GPU, &["/modes/gsp_version"]),
        ("nvmlDeviceGetInforomImageVersion", GPU, &["/modes/inforom"]),
        ("nvmlDeviceQueryDrainState", GPU, &["/modes/drain"]),
        ("nvmlDeviceGetPerformanceState", GPU, &["/modes/performance_state"]),
        ("nvmlDeviceGetCurrentClocksEventReasons", GPU, &["/modes/clock_reasons"]),
        ("nvmlDeviceGetGpuFabricInfoV", GPU, &["/fabric"]),
        ("nvmlDeviceGetNvLinkState", GPU, &["/nvlinks", "/deep/links"]),
        ("nvmlDeviceGetUtilizationRates", GPU, &["/work/gpu_percent", "/work/memory_percent"]),
        ("nvmlDeviceGetClockInfo", GPU, &["/work/sm_clock_mhz"]),
        ("nvmlDeviceGetMemoryInfo_v2", GPU, &["/work/memory"]),
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3", GPU, &["/work/mps_pids"]),
        ("nvmlDeviceGetPowerUsage", GPU, &["/board/power_draw_mw"]),
        (
            "nvmlDeviceGetFieldValues",
            GPU,
            &[
                "/board/module_draw_mw",
                "/board/module_limit_mw",
                "/board/heat/slowdown_margin",
                "/board/heat/memory",
                "/board/slowed/software_power",
                "/board/slowed/software_thermal",
                "/board/slowed/hardware_thermal",
                "/board/slowed/power_brake",
                "/board/pcie/recoveries",
                "/deep/links/speeds",
                "/deep/links/replays",
                "/deep/links/recoveries",
            ],
        ),
        ("nvmlDeviceGetMarginTemperature", GPU, &["/board/heat/margin"]),
        ("nvmlDeviceGetTemperatureThreshold", GPU, &["/board/heat/memory_max"]),
        ("nvmlDeviceGetMaxPcieLinkGeneration", GPU, &["/board/pcie/generation_max"]),
        ("nvmlDeviceGetGpuMaxPcieLinkGeneration", GPU, &["/board/pcie/generation_gpu"]),
        ("nvmlDeviceGetMaxPcieLinkWidth", GPU, &["/board/pcie/width_max"]),
        ("nvmlDeviceGetPcieReplayCounter", GPU, &["/board/pcie/replays"]),
        ("nvmlDeviceGetNumFans", GPU, &["/board/fans"]),
        ("nvmlDeviceGetC2cModeInfoV", GPU, &["/board/c2c"]),
        ("nvmlDeviceGetPciInfo_v3", GPU, &["/modes/drain"]),
    ];
    let mut bench = Bench::new(&[ModelKey::H200]);
    for (function, place, paths) in table {
        bench.fault(function, Effect::Return(17), None);
        let value = serde_json::to_value(bench.health(true)).unwrap();
        let mut found = failed(&value, 17);
        found.retain(|path| !path.starts_with(SNAPSHOT));
        let wanted: BTreeSet<String> = paths.iter().map(|path| format!("{place}{path}")).collect();
        assert_eq!(found, wanted, "{function}");
    }
    // The result of this call is a reading of its own.
    bench.fault("nvmlDeviceValidateInforom", Effect::Return(14), None);
    assert_eq!(bench.health(true).gpus[0].deep.as_ref().unwrap().inforom, Code(14));
    bench.fault("nvmlDeviceGetCount_v2", Effect::Return(17), None);
    let health = bench.health(true);
    assert_eq!((health.count, health.gpus.len()), (Err(Code(17)), 0));
    assert_eq!(health.snapshot.unreadable, [(0, Code(17))]);
}

#[test]
fn older_drivers_are_read_by_older_calls() {
    let mut bench = Bench::new(&[ModelKey::H200]);
    bench.set("retired_double", "2");
    bench.set("event_reasons", "4");
    bench.fault("nvmlDeviceGetRetiredPages_v2", Effect::Return(13), None);
    let memory = bench.health(false).gpus.remove(0).memory;
    assert_eq!(memory.retired_double, Ok(vec![0, 0]), "without times");
    bench.fault("nvmlDeviceGetCurrentClocksEventReasons", Effect::Return(13), None);
    assert_eq!(bench.health(false).gpus[0].modes.clock_reasons, Ok(4));
    // The newest structure is refused at the first call of each reading.
    bench.fault("nvmlDeviceGetGpuFabricInfoV", Effect::Return(25), Some(1));
    let fabric = bench.health(false).gpus.remove(0).fabric.unwrap();
    assert_eq!((fabric.state, fabric.health_mask), (3, Ok(0)));
    assert_eq!(fabric.health_summary, Err(Code::FUNCTION_NOT_FOUND));
    bench.fault("nvmlDeviceGetGpuFabricInfoV", Effect::Return(25), None);
    let fabric = bench.health(false).gpus.remove(0).fabric.unwrap();
    assert_eq!((fabric.state, fabric.health_mask), (3, Err(Code::FUNCTION_NOT_FOUND)));
}

#[test]
fn a_code_that_may_not_come_again_is_asked_for_once_more() {
    for code in [999, 10] {
        // A new machine, because it counts the calls that a rule matched.
        let mut bench = Bench::new(&[ModelKey::H200; 8]);
        bench.fault("nvmlDeviceGetMarginTemperature", Effect::Return(code), Some(1));
        let asked = Instant::now();
        let margin = |health: &Health| health.gpus[0].board.as_ref().unwrap().heat.margin;
        assert_eq!(margin(&bench.health(true)), Ok(54), "{code}");
        assert!(asked.elapsed() >= Duration::from_secs(1));
        bench.fault("nvmlDeviceGetMarginTemperature", Effect::Return(code), None);
        let asked = Instant::now();
        assert_eq!(margin(&bench.health(true)), Err(Code(code)), "{code}");
        assert!(asked.elapsed() < Duration::from_secs(8), "one second for all GPUs");
    }
    let mut bench = Bench::new(&[ModelKey::H200]);
    bench.fault("nvmlGetExcludedDeviceCount", Effect::Return(999), Some(1));
    assert_eq!(bench.health(false).excluded, Ok(0));
}

#[test]
fn a_field_that_the_driver_leaves_as_it_was_is_no_zero() {
    let mut bench = Bench::new(&[ModelKey::H200]);
    bench.fault("nvmlDeviceGetFieldValues", Effect::Lie, None);
    let health = bench.health(true);
    let (gpu, reading) = (&health.snapshot.gpus[0], &health.gpus[0]);
    assert_eq!(gpu.recovery_action, Err(Code::UNKNOWN));
    let board = reading.board.as_ref().unwrap();
    assert_eq!(board.heat.memory, Err(Code::UNKNOWN));
    assert_eq!(board.slowed.hardware_thermal, Err(Code::UNKNOWN));
    // Once in a batch: the field is asked for alone.
    bench.fault("nvmlDeviceGetFieldValues", Effect::Lie, Some(2));
    let health = bench.health(false);
    assert_eq!(health.gpus[0].board.as_ref().unwrap().heat.slowdown_margin, Ok(-2));
}

#[test]
fn what_takes_long_is_read_when_asked_for() {
    let read = |count: usize, deep: bool| {
        let health = Bench::new(&vec![ModelKey::A100; count]).health(deep);
        assert_eq!(health.gpus.len(), count);
        (health.gpus[0].board.is_some(), health.gpus[0].deep.is_some())
    };
    // Width of the slot, NVLink and temperature margin are cheap.
    assert_eq!(read(8, false), (true, false));
    assert_eq!(read(8, true), (true, true));
}

#[test]
fn profiles_are_read_only_where_there_is_a_layout() {
    let mut bench = Bench::new(&[ModelKey::H200]);
    bench.fault("nvmlDeviceGetGpuInstanceProfileInfoV", Effect::Return(17), None);
    assert_eq!(bench.health(false).snapshot.gpus[0].profiles, Ok(Vec::new()));
    bench.store.set_faults(&[]).unwrap();
    let create = |machine: &mut Machine| {
        let gpu = &mut machine.gpus[0];
        gpu.mig = nvml_sim::state::Staged::settled(true);
        gpu.create_instance(gpu.spec().profiles[0].id, None)
    };
    bench.store.update(create).unwrap().unwrap();
    let gpu = bench.health(false).snapshot.gpus.remove(0);
    assert!(!gpu.profiles.unwrap().is_empty());
    let instances = gpu.instances.unwrap();
    assert_eq!((instances.len(), instances[0].compute_instances.len()), (1, 0));
    assert_eq!(gpu.remapped_rows, Err(Code::NOT_SUPPORTED), "refused while there are instances");
}

#[test]
fn defects_are_read() {
    let mut bench = Bench::new(&[ModelKey::H200, ModelKey::H200]);
    for (word, value) in [
        ("sram_uncorrected", "2"),
        ("sram_threshold", "on"),
        ("banks_none", "1"),
        ("repair_tpc", "on"),
        ("unrepairable", "on"),
        ("margin_c", "-3"),
        ("fans", "2"),
        ("fan_percent", "0"),
        ("pcie_width", "8"),
        ("nvlinks_down", "2"),
        ("fabric_status", "999"),
        ("fabric_mask", "5"),
        ("gsp_version", "580.65.06"),
        ("inforom_code", "14"),
    ] {
        bench.set(word, value);
    }
    bench.store.update(|machine| machine.gpus[1].lost = true).unwrap();
    let health = bench.health(true);
    assert_eq!(health.count, Ok(2));
    assert_eq!(health.snapshot.unreadable, [(1, Code::GPU_IS_LOST)]);
    let (gpu, reading) = health.pairs().next().unwrap();
    assert_eq!(gpu.ecc_uncorrected, Ok(2));
    assert_eq!(gpu.ecc_uncorrected_sram, Ok(2));
    assert_eq!(gpu.pcie_width, Ok(8));
    let sram = reading.memory.sram.unwrap();
    assert_eq!((sram.uncorrected, sram.threshold_exceeded), (2, true));
    assert_eq!(reading.memory.row_banks.unwrap().none, 1);
    assert!(reading.memory.repair.unwrap().tpc_pending);
    assert_eq!(reading.memory.unrepairable, Ok(true));
    assert_eq!(reading.modes.gsp_version.as_deref(), Ok("580.65.06"));
    let links = reading.nvlinks.unwrap();
    assert_eq!((links.count, links.active), (18, 16));
    let fabric = reading.fabric.as_ref().unwrap();
    assert_eq!((fabric.status, fabric.health_mask), (Code(999), Ok(5)));
    let board = reading.board.as_ref().unwrap();
    assert_eq!(board.heat.margin, Ok(-3));
    let fans = board.fans.as_ref().unwrap();
    assert_eq!((fans.len(), fans[0].speed, fans[0].target), (2, Ok(0), Ok(30)));
    assert_eq!(reading.deep.as_ref().unwrap().inforom, Code::CORRUPTED_INFOROM);
}

#[test]
fn another_library_than_module_is_told_with_its_version() {
    let mut bench = Bench::new(&[ModelKey::H100]);
    bench.store.update(|machine| "570.1".clone_into(&mut machine.module_version)).unwrap();
    let answer = bench.ask(Ask::Health { deep: false });
    let library = Some("580.159.04".to_owned());
    assert_eq!(answer, Answer::InitFailed { code: Code::VERSION_MISMATCH, library });
}

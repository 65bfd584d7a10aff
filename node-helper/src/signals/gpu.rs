//! Signals of GPUs, from one reading of NVML.
//!
//! Reads only. Names and sources stand in the registry of the protocol. Invariants: every GPU that the driver counts is
//! a subject, also one that is lost; what was not asked for (tiers of the worker) has no name in the readings.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::{
    nvml::{
        Board, Code, Deep, DrainedGpu, Fabric, GpuReading, Health, HealthReading, MemoryHealth, Modes,
        NvLinks, Reading, Work,
    },
    signal::{Readings, SIGNALS, Scope, Signal, SubjectReadings},
};
use serde_json::{Value, json};

use crate::{
    deadline::Deadline,
    gpu::{Audited, Gpus, NoHealth, NvmlError},
    os::roots::Roots,
};

/// After this time, the driver has forgotten killed processes (which took 0.2 s on an H200), and whoever creates MIG
/// instances has created the second half.
const SETTLE: Duration = Duration::from_secs(2);
/// More used memory than a GPU without a process ever has. Source: 0 on idle H100 and H200.
const HELD_MIB: u64 = 256;
/// Name of the first process namespace, in which NVML's process ids count. Source: Linux, `PROC_PID_INIT_INO`.
const HOST_PIDS: &str = "pid:[4026531836]";
const WEEK_S: u64 = 7 * 24 * 3600;
const MIB: u64 = 1024 * 1024;

/// Signals of the GPUs, and those of the node that NVML gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuSignals {
    /// In the order of their indexes.
    pub gpus: Vec<SubjectReadings>,
    pub node: Readings,
}

/// Reads the GPUs; `deep` takes tens of milliseconds more for each GPU.
pub fn read(gpus: &mut Gpus, roots: &Roots, deep: bool, deadline: &Deadline) -> GpuSignals {
    let place = Place::of(roots);
    let mut audited = gpus.audit(deep, deadline);
    let mut dead = dead(&audited, &place);
    if let Ok(health) = &mut audited.health
        && (!dead.values().all(BTreeSet::is_empty) || health.pairs().any(|pair| doubtful(pair.0, pair.1)))
    {
        wait(SETTLE, deadline);
        let again = gpus.audit(false, deadline);
        let still = self::dead(&again, &place);
        for (uuid, pids) in &mut dead {
            let now = still.get(uuid);
            pids.retain(|pid| now.is_some_and(|now| now.contains(pid)));
        }
        match again.health {
            Ok(second) => settle(health, second),
            Err(why) => audited.health = Err(why),
        }
    }
    gpus.release();
    signals(&audited, &dead, &place)
}

fn wait(time: Duration, deadline: &Deadline) {
    let until = deadline.within(time);
    while until.stop().is_none() {
        std::thread::sleep(Duration::from_millis(50).min(until.remaining()));
    }
}

/// What the kernel tells about the node's processes and buses.
pub(super) struct Place {
    roots: Roots,
    /// Whether the process ids of NVML are those of this process' `/proc`.
    host_pids: bool,
    /// Unix time; 0 if the clock is before it.
    now_s: u64,
}

impl Place {
    pub(super) fn of(roots: &Roots) -> Self {
        let namespace = std::fs::read_link(roots.proc("self/ns/pid"));
        Self {
            roots: roots.clone(),
            host_pids: namespace.is_ok_and(|name| name == Path::new(HOST_PIDS)),
            now_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        }
    }

    fn exists(&self, pid: u32) -> bool {
        self.roots.proc(&pid.to_string()).exists()
    }

    fn numa_node(&self, pci: &str) -> Signal {
        match std::fs::read_to_string(self.roots.path(format!("/sys/bus/pci/devices/{pci}/numa_node"))) {
            Ok(text) => match text.trim().parse::<i64>() {
                Ok(node) => node.into(),
                Err(_) => Signal::Unknown("numa_node holds no number".to_owned()),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Signal::Absent,
            Err(error) => Signal::Unknown(format!("numa_node: {error}")),
        }
    }
}

/// Returns the processes of each GPU that do not exist, by UUID.
fn dead(audited: &Audited, place: &Place) -> BTreeMap<String, BTreeSet<u32>> {
    let Ok(health) = &audited.health else { return BTreeMap::new() };
    if !place.host_pids {
        return BTreeMap::new();
    }
    health
        .pairs()
        .map(|(gpu, reading)| {
            let pids = pids(gpu, &reading.work).unwrap_or_default();
            (gpu.uuid.clone(), pids.into_iter().filter(|pid| *pid != 0 && !place.exists(*pid)).collect())
        })
        .collect()
}

/// Returns the processes with work on a GPU.
fn pids(gpu: &GpuReading, work: &Work) -> Reading<BTreeSet<u32>> {
    let mut pids: BTreeSet<u32> =
        gpu.processes.as_ref().map_err(|code| *code)?.iter().map(|p| p.pid).collect();
    match &work.mps_pids {
        Ok(clients) => pids.extend(clients),
        Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) => {}
        Err(code) => return Err(*code),
    }
    Ok(pids)
}

/// Whether the reading may be one of a moment in between: memory without a process, an instance that is half made.
fn doubtful(gpu: &GpuReading, reading: &HealthReading) -> bool {
    let used = reading.work.memory.map_or(0, |memory| memory.used / MIB);
    let held = used > HELD_MIB && pids(gpu, &reading.work).is_ok_and(|pids| pids.is_empty());
    (held && !mig(gpu)) || orphans(gpu).is_ok_and(|count| count > 0)
}

/// Replaces what a second reading settles.
fn settle(first: &mut Health, second: Health) {
    let mut second: BTreeMap<String, (GpuReading, HealthReading)> = second
        .snapshot
        .gpus
        .into_iter()
        .zip(second.gpus)
        .map(|(gpu, reading)| (gpu.uuid.clone(), (gpu, reading)))
        .collect();
    for (gpu, reading) in first.snapshot.gpus.iter_mut().zip(&mut first.gpus) {
        if let Some((new, of)) = second.remove(&gpu.uuid) {
            gpu.processes = new.processes;
            gpu.instances = new.instances;
            reading.work = of.work;
        }
    }
}

fn mig(gpu: &GpuReading) -> bool {
    gpu.mig.is_ok_and(|mode| mode.current)
}

fn orphans(gpu: &GpuReading) -> Reading<usize> {
    let instances = gpu.instances.as_ref().map_err(|code| *code)?;
    Ok(instances.iter().filter(|instance| instance.compute_instances.is_empty()).count())
}

pub(super) fn signals(
    audited: &Audited,
    dead: &BTreeMap<String, BTreeSet<u32>>,
    place: &Place,
) -> GpuSignals {
    let health = match &audited.health {
        Ok(health) => health,
        Err(why) => return GpuSignals { gpus: Vec::new(), node: unread(why, audited.on_bus) },
    };
    let mut gpus: Vec<(u32, SubjectReadings)> = health
        .pairs()
        .map(|(gpu, reading)| {
            let mut readings = of_gpu(gpu, reading, place);
            let dead = match dead.get(&gpu.uuid) {
                _ if !place.host_pids => Signal::Absent,
                Some(pids) => pids.len().into(),
                None => Signal::Absent,
            };
            // A list that cannot be read has no dead processes that are known.
            let dead = match readings.get("process_count") {
                Some(Signal::Unknown(why)) => Signal::Unknown(why.clone()),
                _ => dead,
            };
            readings.insert("dead_pids".to_owned(), dead);
            // Never absent: without a record no lock of ours is in effect.
            let lock = audited.locks.get(&gpu.uuid).copied().unwrap_or(0);
            readings.insert("lock_record".to_owned(), lock.into());
            (gpu.index, subject(gpu.uuid.clone(), gpu.index, readings))
        })
        .collect();
    // Without a count there is one entry that stands for no GPU.
    let lost = health.snapshot.unreadable.iter().filter(|_| health.count.is_ok());
    gpus.extend(lost.map(|(index, code)| (*index, lost_gpu(*index, *code))));
    gpus.extend(health.snapshot.drained.iter().map(|gpu| (gpu.index, drained_gpu(gpu))));
    gpus.sort_by_key(|(index, _)| *index);
    GpuSignals { gpus: gpus.into_iter().map(|(_, subject)| subject).collect(), node: of_node(health) }
}

fn subject(id: String, index: u32, readings: Readings) -> SubjectReadings {
    SubjectReadings { id, label: format!("GPU {index}"), readings }
}

/// A GPU without a handle: its UUID is unknown, so that it is known by its index.
fn lost_gpu(index: u32, code: Code) -> SubjectReadings {
    let names = SIGNALS.iter().copied().flatten().filter(|info| info.scope == Scope::Gpu);
    let mut readings: Readings =
        names.map(|info| (info.name.to_owned(), Signal::Unknown(code.to_string()))).collect();
    readings.insert("lost_code".to_owned(), code.0.into());
    if code == Code::CORRUPTED_INFOROM {
        readings.insert("inforom_code".to_owned(), code.0.into());
    }
    subject(format!("index {index}"), index, readings)
}

/// A drained GPU: nothing but its address answers, which is no defect.
fn drained_gpu(gpu: &DrainedGpu) -> SubjectReadings {
    let names = SIGNALS.iter().copied().flatten().filter(|info| info.scope == Scope::Gpu);
    let mut readings: Readings = names.map(|info| (info.name.to_owned(), Signal::Absent)).collect();
    readings.insert("drain_state".to_owned(), 1.into());
    readings.insert("lost_code".to_owned(), 0.into());
    readings.insert("pci".to_owned(), gpu.pci.clone().into());
    readings.insert("name".to_owned(), gpu.name.clone().into());
    let id = if gpu.uuid.is_empty() { format!("address {}", gpu.pci) } else { gpu.uuid.clone() };
    subject(id, gpu.index, readings)
}

fn of_node(health: &Health) -> Readings {
    let mut into = Taken::default();
    into.put("nvml_init_code", Ok(Code::SUCCESS.0));
    into.put("worker_state", Ok("done"));
    let drained = u32::try_from(health.snapshot.drained.len()).unwrap_or(0);
    into.put("nvml_count", health.count.map(|listed| listed + drained));
    into.put("driver_version", health.snapshot.driver_version.clone());
    into.put("cuda_version", health.snapshot.cuda_version);
    into.put("excluded_count", health.excluded);
    into.flag("cc_feature", health.snapshot.confidential.map(|state| state.enabled));
    into.flag("cc_devtools", health.snapshot.confidential.map(|state| state.devtools));
    into.flag("cc_ready", health.snapshot.confidential_ready);
    into.readings
}

/// Returns the signals of a node whose GPUs could not be read.
fn unread(why: &NoHealth, on_bus: u32) -> Readings {
    let no_driver = why.error.is_no_driver();
    let unknown = || Signal::Unknown(why.error.to_string());
    // Without a driver and without a GPU, nothing is missing.
    let missing = || if no_driver && on_bus == 0 { Signal::Absent } else { unknown() };
    let state = match &why.error {
        NvmlError::Hung { .. } => Signal::from("hung"),
        NvmlError::Crashed { .. } => Signal::from("crashed"),
        // The worker answered: `nvmlInit` failed.
        _ if why.init.is_some() => Signal::from("done"),
        _ => unknown(),
    };
    let version = match &why.library {
        Some(version) => version.as_str().into(),
        None if no_driver => Signal::Absent,
        None => unknown(),
    };
    [
        ("nvml_init_code", why.init.map_or_else(unknown, |code| code.0.into())),
        ("worker_state", state),
        ("nvml_count", missing()),
        ("driver_version", version),
        ("cuda_version", if no_driver { Signal::Absent } else { unknown() }),
        ("excluded_count", missing()),
        ("cc_feature", missing()),
        ("cc_devtools", missing()),
        ("cc_ready", missing()),
    ]
    .map(|(name, signal)| (name.to_owned(), signal))
    .into()
}

/// Collects readings, and the codes that say more than that one reading failed.
#[derive(Default)]
struct Taken {
    readings: Readings,
    /// Whether MIG is on: the driver then refuses some readings of the whole GPU.
    mig: bool,
    lost: Option<Code>,
    corrupted: bool,
}

impl Taken {
    fn put<T: Into<Value>>(&mut self, name: &str, reading: Reading<T>) {
        self.note(&reading);
        self.readings.insert(name.to_owned(), Signal::of(reading));
    }

    /// Takes what a reading says of the whole GPU.
    fn note<T>(&mut self, reading: &Reading<T>) {
        match reading {
            Err(code @ (Code::GPU_IS_LOST | Code::RESET_REQUIRED)) => self.lost = self.lost.or(Some(*code)),
            Err(Code::CORRUPTED_INFOROM) => self.corrupted = true,
            _ => {}
        }
    }

    /// A reading that NVML refuses for the whole GPU while MIG is on.
    fn put_whole<T: Into<Value>>(&mut self, name: &str, reading: Reading<T>) {
        let refused = self.mig && matches!(reading, Err(Code::NO_PERMISSION));
        self.put(name, if refused { Err(Code::NOT_SUPPORTED) } else { reading });
    }

    /// A state that rules compare with 0 and 1.
    fn flag(&mut self, name: &str, reading: Reading<bool>) {
        self.put(name, reading.map(u32::from));
    }
}

fn of_gpu(gpu: &GpuReading, reading: &HealthReading, place: &Place) -> Readings {
    let mut into = Taken { mig: mig(gpu), ..Taken::default() };
    identity(&mut into, gpu);
    memory(&mut into, gpu, &reading.memory, place.now_s);
    modes(&mut into, gpu, &reading.modes);
    links(&mut into, gpu, reading);
    work(&mut into, gpu, reading);
    if let Some(found) = &reading.board {
        board(&mut into, found);
    }
    if let Some(found) = &reading.deep {
        deep(&mut into, found);
    }
    if let Some(lately) = &reading.lately {
        into.put("power_draw_w", lately.power_draw_mw.map(watts));
        into.note(&lately.samples);
    }
    let numa =
        gpu.pci.as_ref().map_or_else(|code| Signal::Unknown(code.to_string()), |pci| place.numa_node(pci));
    into.readings.insert("gpu_numa_node".to_owned(), numa);
    into.put("lost_code", Ok(into.lost.unwrap_or(Code::SUCCESS).0));
    if into.corrupted {
        into.put("inforom_code", Ok(Code::CORRUPTED_INFOROM.0));
    }
    into.readings
}

fn identity(into: &mut Taken, gpu: &GpuReading) {
    into.put("uuid", Ok(gpu.uuid.clone()));
    into.put("name", gpu.name.clone());
    into.put("serial", gpu.serial.clone());
    into.put("board_part", gpu.board_part.clone());
    into.put("vbios", gpu.vbios.clone());
    into.put("pci", gpu.pci.clone());
    into.put("arch", gpu.architecture.map(architecture));
}

/// Returns the word for an `nvmlDeviceArchitecture_t`.
fn architecture(number: u32) -> String {
    match number {
        2 => "Kepler",
        3 => "Maxwell",
        4 => "Pascal",
        5 => "Volta",
        6 => "Turing",
        7 => "Ampere",
        8 => "Ada",
        9 => "Hopper",
        10 => "Blackwell",
        13 => "Rubin",
        other => return format!("architecture {other}"),
    }
    .to_owned()
}

fn memory(into: &mut Taken, gpu: &GpuReading, memory: &MemoryHealth, now_s: u64) {
    into.flag("ecc_current", gpu.ecc.map(|mode| mode.current));
    into.flag("ecc_pending", gpu.ecc.map(|mode| mode.pending));
    into.flag("ecc_default", memory.ecc_default);
    into.put_whole("ecc_cor_vol", gpu.ecc_corrected);
    into.put_whole("ecc_unc_vol", gpu.ecc_uncorrected);
    into.put_whole("ecc_cor_agg", memory.corrected_total);
    into.put_whole("ecc_unc_agg", memory.uncorrected_total);
    into.put_whole("ecc_cor_sram_vol", memory.corrected_sram);
    into.put_whole("ecc_unc_sram_vol", gpu.ecc_uncorrected_sram);
    into.flag("sram_threshold", memory.sram.map(|sram| sram.threshold_exceeded));
    into.put("sram_unc_vol", memory.sram.map(|sram| sram.uncorrected));
    into.put("sram_unc_agg", memory.sram.map(|sram| sram.uncorrected_total));
    into.put("sram_cor_agg", memory.sram.map(|sram| sram.corrected_total));
    into.put_whole("remap_cor", gpu.remapped_rows.map(|rows| rows.correctable));
    into.put_whole("remap_unc", gpu.remapped_rows.map(|rows| rows.uncorrectable));
    into.put_whole("remap_pending", gpu.remapped_rows.map(|rows| u32::from(rows.pending)));
    into.put_whole("remap_failed", gpu.remapped_rows.map(|rows| u32::from(rows.failed)));
    into.put_whole("hist_max", memory.row_banks.map(|banks| banks.max));
    into.put_whole("hist_high", memory.row_banks.map(|banks| banks.high));
    into.put_whole("hist_partial", memory.row_banks.map(|banks| banks.partial));
    into.put_whole("hist_low", memory.row_banks.map(|banks| banks.low));
    into.put_whole("hist_none", memory.row_banks.map(|banks| banks.none));
    into.put("retired_sbe", memory.retired_single);
    let double = memory.retired_double.as_ref().map_err(|code| *code);
    into.put("retired_dbe", double.map(Vec::len));
    let recent = |times: &Vec<u64>| times.iter().filter(|time| now_s.saturating_sub(**time) < WEEK_S).count();
    into.put("retired_dbe_last_7d", double.map(recent));
    into.flag("retired_pending", memory.retired_pending);
    into.flag("repair_channel", memory.repair.map(|repair| repair.channel_pending));
    into.flag("repair_tpc", memory.repair.map(|repair| repair.tpc_pending));
    into.flag("unrepairable", memory.unrepairable);
    into.put("recovery_action", gpu.recovery_action);
    into.put("recovery_action_known", Ok(gpu.recovery_action.is_ok()));
}

fn modes(into: &mut Taken, gpu: &GpuReading, modes: &Modes) {
    into.put("inforom", modes.inforom.clone());
    into.flag("persistence", gpu.persistence);
    into.put("compute_mode", gpu.compute_mode);
    into.flag("accounting", gpu.accounting);
    into.flag("drain_state", modes.drain);
    into.flag("gsp_mode", modes.gsp.map(|gsp| gsp.enabled));
    into.flag("gsp_default", modes.gsp.map(|gsp| gsp.default));
    into.put("gsp_version", modes.gsp_version.clone());
    into.put("pstate", modes.performance_state);
    into.put("reasons", modes.clock_reasons);
    into.flag("mig_current", gpu.mig.map(|mode| mode.current));
    into.flag("mig_pending", gpu.mig.map(|mode| mode.pending));
    into.put("mig_layout", layout(gpu));
    into.put("mig_orphans", orphans(gpu));
    into.put("power_limit_w", gpu.power_limit_mw.map(watts));
    into.put("power_default_w", gpu.power_default_mw.map(watts));
    into.put("power_enforced_w", gpu.power_enforced_mw.map(watts));
}

/// Returns profile and place of each instance.
fn layout(gpu: &GpuReading) -> Reading<Vec<String>> {
    let instances = gpu.instances.as_ref().map_err(|code| *code)?;
    let profiles = gpu.profiles.as_deref().unwrap_or_default();
    let name = |id: u32| {
        let known = profiles.iter().find(|profile| profile.id == id);
        known.map_or_else(|| format!("profile {id}"), |profile| profile.name.clone())
    };
    Ok(instances.iter().map(|one| format!("{}@{}", name(one.profile_id), one.placement.start)).collect())
}

/// Returns milliwatts in watts.
fn watts(milliwatts: impl Into<u64>) -> Value {
    let milliwatts = milliwatts.into();
    if milliwatts.is_multiple_of(1000) { json!(milliwatts / 1000) } else { json!(milliwatts as f64 / 1000.0) }
}

fn links(into: &mut Taken, gpu: &GpuReading, reading: &HealthReading) {
    // Numbers of no link, which a hypervisor makes up.
    let physical = |reading: Reading<u32>| match reading {
        Ok(0 | 255) => Err(Code::NOT_SUPPORTED),
        other => other,
    };
    into.put("pcie_gen", physical(gpu.pcie_generation));
    into.put("pcie_width", physical(gpu.pcie_width));
    if let Some(Board { pcie, .. }) = &reading.board {
        into.put("pcie_gen_max", physical(pcie.generation_max));
        into.put("pcie_gen_gpu", physical(pcie.generation_gpu));
        into.put("pcie_width_max", physical(pcie.width_max));
        into.put("pcie_replays", pcie.replays);
        into.put("pcie_l0_recovery", pcie.recoveries);
    }
    into.put("nvl_count", reading.nvlinks.map(|links| links.count));
    into.put("nvl_active", reading.nvlinks.map(|links| links.active));
    let fabric: Reading<&Fabric> = reading.fabric.as_ref().map_err(|code| *code);
    into.put("fabric_state", fabric.map(|fabric| fabric.state));
    into.put("fabric_status", fabric.map(|fabric| fabric.status.0));
    into.put("fabric_clique", fabric.map(|fabric| fabric.clique));
    into.put("fabric_cluster", fabric.map(|fabric| fabric.cluster.clone()));
    into.put("fabric_mask", fabric.and_then(|fabric| fabric.health_mask));
    into.put("fabric_summary", fabric.and_then(|fabric| fabric.health_summary));
}

fn work(into: &mut Taken, gpu: &GpuReading, reading: &HealthReading) {
    const IDLE_BIT: u64 = 0x1;
    let work = &reading.work;
    into.put("temp_c", gpu.temperature_c);
    into.put("sm_mhz", work.sm_clock_mhz);
    into.put("mem_mhz", gpu.memory_clock_mhz);
    let clocks = gpu.supported_memory_clocks_mhz.as_ref().map_err(|code| *code);
    into.put("mem_mhz_max", clocks.and_then(|all| all.iter().max().copied().ok_or(Code::NOT_SUPPORTED)));
    into.put_whole("util_gpu", work.gpu_percent);
    into.put_whole("util_mem", work.memory_percent);
    into.put_whole("memory_total_mib", work.memory.map(|memory| memory.total / MIB));
    into.put_whole("mem_used_mib", work.memory.map(|memory| memory.used / MIB));
    let ratio = |used: u64, total: u64| if total == 0 { None } else { Some(used as f64 / total as f64) };
    let share = work.memory.and_then(|memory| ratio(memory.used, memory.total).ok_or(Code::NOT_SUPPORTED));
    into.put_whole("mem_used_ratio", share);
    let count = pids(gpu, work).map(|pids| pids.len());
    into.put("process_count", count);
    let idle_bit = reading.modes.clock_reasons.map(|reasons| reasons & IDLE_BIT != 0);
    let unused = match (work.gpu_percent, count) {
        (Ok(1..), _) | (_, Ok(1..)) => Ok(false),
        (Ok(_), Ok(_)) => Ok(true),
        (Err(code), _) | (_, Err(code)) => Err(code),
    };
    // One half that holds decides; otherwise both must be known.
    let idle = match (idle_bit, unused) {
        (Ok(true), _) | (_, Ok(true)) => Ok(true),
        (Ok(false), Ok(false)) => Ok(false),
        (Err(code), _) | (_, Err(code)) => Err(code),
    };
    let busy = match (idle_bit, work.gpu_percent) {
        (Ok(true), _) | (_, Ok(..10)) => Ok(false),
        (Ok(false), Ok(_)) => Ok(true),
        (Err(code), _) | (_, Err(code)) => Err(code),
    };
    into.put_whole("idle", idle);
    into.put_whole("busy", busy);
}

fn board(into: &mut Taken, board: &Board) {
    into.put("power_draw_w", board.power_draw_mw.map(watts));
    into.put("module_draw_w", board.module_draw_mw.map(watts));
    into.put("module_limit_w", board.module_limit_mw.map(watts));
    into.put("margin_c", board.heat.margin);
    into.put("tlimit_slowdown_c", board.heat.slowdown_margin);
    into.put("mem_temp_c", board.heat.memory);
    into.put("mem_max_c", board.heat.memory_max);
    into.put("ns_sw_power", board.slowed.software_power);
    into.put("ns_sw_thermal", board.slowed.software_thermal);
    into.put("ns_hw_thermal", board.slowed.hardware_thermal);
    into.put("ns_power_brake", board.slowed.power_brake);
    let fans = board.fans.as_ref().map_err(|code| *code);
    into.put("num_fans", fans.map(Vec::len));
    let slowest = fans.and_then(|fans| {
        let mut slowest = None;
        for fan in fans {
            let speed = fan.speed?;
            if slowest.is_none_or(|(least, _)| speed < least) {
                slowest = Some((speed, fan.target));
            }
        }
        slowest.ok_or(Code::NOT_SUPPORTED)
    });
    into.put("fan_min_percent", slowest.map(|(speed, _)| speed));
    into.put("fan_target", slowest.and_then(|(_, target)| target));
    let c2c: Reading<NvLinks> = board.c2c;
    into.put("c2c_enabled", c2c.map(|_| 1));
    into.put("c2c_count", c2c.map(|links| links.count));
    into.put("c2c_active", c2c.map(|links| links.active));
}

fn deep(into: &mut Taken, deep: &Deep) {
    let inforom = match deep.inforom {
        code @ (Code::SUCCESS | Code::CORRUPTED_INFOROM) => Ok(code.0),
        code => Err(code),
    };
    into.put("inforom_code", inforom);
    let links = deep.links.as_ref().map_err(|code| *code);
    into.put("nvl_speed_min", links.and_then(|links| links.speeds).map(|(low, _)| low));
    into.put("nvl_speed_max", links.and_then(|links| links.speeds).map(|(_, high)| high));
    into.put("nvl_replay", links.and_then(|links| links.replays));
    into.put("nvl_recovery", links.and_then(|links| links.recoveries));
    into.put("nvl_effective_ber", links.and_then(|links| links.effective_error_rate));
    into.put("nvl_symbol_ber", links.and_then(|links| links.symbol_error_rate));
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;

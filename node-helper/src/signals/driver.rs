//! Signals of the NVIDIA driver and its services, as far as they are told without NVML.
//!
//! Reads no file of a GPU below `/proc/driver/nvidia/gpus`: the driver makes it under its lock, and a hung driver never
//! gives that back.

use std::{
    fs, io,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    time::Duration,
};

use gpufleet_protocol::signal::Signal;

use super::{
    Found, Named, Reader, is_missing,
    process::{DCGM, FABRIC_MANAGER, MPS, PERSISTENCED, Processes},
    signal,
    system::{Units, service},
};
use crate::{
    gpu::{
        bus::{self, Bus},
        clients, host, mps,
    },
    os::{roots::Roots, tree},
    process::Run,
};

pub const DCGM_UNITS: [&str; 2] = ["nvidia-dcgm.service", "dcgm.service"];
/// Time limit of each program.
const ANSWER: Duration = Duration::from_secs(5);
/// Names in `/proc/devices` whose number the files of GPUs have. Source: NVIDIA's open kernel modules, `nv.c`.
const FRONTENDS: [&str; 3] = ["nvidia", "nvidia-frontend", "nvidiactl"];
/// Functions of the RDMA core that take memory of GPUs. Source: kernel, drivers/infiniband/core/umem_dmabuf.c (Linux 5.12);
/// NVIDIA, DOCA.
pub const TAKES_DMA_BUF: &str = "ib_umem_dmabuf_get";
pub const TAKES_PEERS: &str = "ib_register_peer_memory_client";
/// Largest list of symbols that is read, in bytes; that of a big kernel has about 15 MiB.
const MOST_SYMBOLS: u64 = 128 * 1024 * 1024;

/// Counts the GPUs on the PCI bus, whatever the driver says.
pub fn gpus_on_bus(roots: &Roots) -> Signal {
    signal(bus_of(roots).map(|bus| Some(bus.gpus)))
}

fn bus_of(roots: &Roots) -> Result<Bus, String> {
    bus::read(roots).map_err(|error| format!("/sys/bus/pci/devices: {error}"))
}

pub fn read(reader: &Reader<'_>, units: &Units, processes: &Result<Processes, String>) -> Vec<Named> {
    let bus = bus_of(reader.roots);
    let version = module_version(reader);
    let loaded = matches!(version, Ok(Some(_)));
    let switches = switches_present(reader, &bus);
    let kind = module_kind(reader);
    let service = |names: &[&str], program| service(units, names, processes, program);
    vec![
        ("pci_count", signal(bus.clone().map(|bus| Some(bus.gpus)))),
        ("module_version", signal(version.clone())),
        ("installed_driver", signal(installed_driver(reader, &bus, &version))),
        ("nouveau_loaded", signal(module(reader, "nouveau"))),
        ("nova_loaded", signal(module(reader, "nova_core"))),
        ("peermem_loaded", signal(module(reader, "nvidia_peermem"))),
        ("drm_modeset", signal(drm_modeset(reader))),
        ("dmabuf_capable", signal(dmabuf_capable(reader, &kind))),
        ("module_kind", signal(kind)),
        ("missing_device_nodes", signal(missing_device_nodes(reader, loaded))),
        ("wrong_major", signal(wrong_major(reader))),
        ("fm_state", signal(service(&[host::FABRIC_MANAGER], Some(FABRIC_MANAGER)))),
        ("fm_version", signal(fm_version(reader, &switches))),
        ("switches_present", signal(switches)),
        ("imex_state", signal(imex_state(reader, units))),
        ("mps_state", signal(mps_state(reader, processes))),
        ("persistenced", signal(service(&[clients::PERSISTENCED], Some(PERSISTENCED)))),
        ("persistenced_enabled", persistenced_enabled(reader, units)),
        ("dcgm_state", signal(service(&DCGM_UNITS, Some(DCGM)))),
    ]
}

/// Whether a module is loaded or built in.
fn module(reader: &Reader<'_>, name: &str) -> Found<bool> {
    if !reader.exists("/sys/module")? {
        return Err("/sys/module: there is no such folder".to_owned());
    }
    reader.exists(&format!("/sys/module/{name}")).map(Some)
}

fn module_version(reader: &Reader<'_>) -> Found<String> {
    match reader.line("/sys/module/nvidia/version")? {
        Some(version) => Ok(Some(version)),
        None => match reader.text("/proc/driver/nvidia/version")? {
            Some(text) => host::version_of(&text)
                .map(|version| Some(version.to_owned()))
                .ok_or_else(|| "/proc/driver/nvidia/version: it names no version".to_owned()),
            None if module(reader, "nvidia")? == Some(true) => {
                Err("/sys/module/nvidia/version: there is no such file".to_owned())
            }
            None => Ok(None),
        },
    }
}

/// Returns `open` or `proprietary`; `None` if the driver is not loaded.
///
/// # Errors
/// If it cannot be read.
pub fn module_kind(reader: &Reader<'_>) -> Found<&'static str> {
    reader.parsed("/proc/driver/nvidia/version", |text| {
        let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
        Some(if line.contains("Open Kernel Module") { "open" } else { "proprietary" })
    })
}

/// Returns the version of the module that the running kernel would load now.
fn installed_driver(reader: &Reader<'_>, bus: &Result<Bus, String>, loaded: &Found<String>) -> Found<String> {
    if matches!((bus, loaded), (Ok(Bus { gpus: 0, .. }), Ok(None))) {
        return Ok(None);
    }
    let program = reader.roots.tool("modinfo").ok_or("there is no modinfo")?;
    let run = Run::new(program).args(["-F", "version", "nvidia"]).limit(4096);
    let done = run.finish(&reader.deadline.within(ANSWER)).map_err(|error| error.to_string())?;
    if !done.exit.success() {
        return if done.stderr().contains("not found") { Ok(None) } else { Err(done.complaint("modinfo")) };
    }
    version_in(&done.stdout()).map(Some).ok_or_else(|| "modinfo: it names no version".to_owned())
}

/// Returns the first word that is a version, such as `580.159.04`.
pub fn version_in(text: &str) -> Option<String> {
    let is = |word: &&str| {
        word.len() <= 40
            && word.contains('.')
            && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    text.split_whitespace().find(is).map(str::to_owned)
}

fn drm_modeset(reader: &Reader<'_>) -> Found<bool> {
    reader.parsed("/sys/module/nvidia_drm/parameters/modeset", |text| match text {
        "Y" | "1" => Some(true),
        "N" | "0" => Some(false),
        _ => None,
    })
}

fn dmabuf_capable(reader: &Reader<'_>, kind: &Found<&'static str>) -> Found<bool> {
    let Some(kind) = kind.clone()? else { return Ok(None) };
    let ib_core = module(reader, "ib_core")? == Some(true);
    let takes = || Ok(rdma_core(reader)?.map(|core| core.dma_buf));
    Ok(Some(without_dma_buf(kind, ib_core, takes)?.is_none()))
}

/// What the RDMA core of the running kernel takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RdmaCore {
    pub dma_buf: bool,
    pub peers: bool,
}

/// Asks the kernel's symbols and not its version: distributions and NVIDIA's own packages bring newer cores to older
/// kernels. `None` if it does not tell its symbols.
///
/// # Errors
/// If they cannot be read.
pub fn rdma_core(reader: &Reader<'_>) -> Found<RdmaCore> {
    const PATH: &str = "/proc/kallsyms";
    let told = |error: io::Error| format!("{PATH}: {error}");
    let file = match fs::File::open(reader.roots.path(PATH)) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(told(error)),
    };
    let mut lines = BufReader::new(file.take(MOST_SYMBOLS));
    let (mut core, mut any, mut line) = (RdmaCore::default(), false, Vec::new());
    while lines.by_ref().take(4096).read_until(b'\n', &mut line).map_err(told)? > 0 {
        any = true;
        // `ffffffffc0a01230 T ib_umem_dmabuf_get\t[ib_uverbs]`
        let text = String::from_utf8_lossy(&line);
        let name = text.split_whitespace().nth(2).unwrap_or_default();
        core.dma_buf |= name == TAKES_DMA_BUF;
        core.peers |= name == TAKES_PEERS;
        line.clear();
    }
    Ok(any.then_some(core))
}

/// Returns why network cards do not reach the memory of GPUs by dma-buf; `None` if they do. `takes` tells whether the RDMA core
/// takes it, and is asked only where that decides.
///
/// # Errors
/// If it is not known.
pub fn without_dma_buf(
    kind: &str,
    ib_core: bool,
    takes: impl FnOnce() -> Found<bool>,
) -> Result<Option<String>, String> {
    if kind != "open" {
        let why = "dma-buf needs the open kernel modules of the driver, and the proprietary ones are loaded";
        return Ok(Some(why.to_owned()));
    }
    if !ib_core {
        return Ok(Some("the module ib_core is not loaded".to_owned()));
    }
    match takes()? {
        Some(true) => Ok(None),
        Some(false) => Ok(Some(format!(
            "the RDMA core of this kernel takes no dma-buf ({TAKES_DMA_BUF}), as Linux from 5.12 and NVIDIA's DOCA do"
        ))),
        None => Err("the kernel does not tell its symbols (/proc/kallsyms), and so not whether its RDMA core takes dma-buf"
            .to_owned()),
    }
}

/// Whether there are NVSwitches.
///
/// # Errors
/// If that cannot be read.
pub fn switches(reader: &Reader<'_>) -> Result<bool, String> {
    Ok(switches_present(reader, &bus_of(reader.roots))?.unwrap_or(false))
}

fn switches_present(reader: &Reader<'_>, bus: &Result<Bus, String>) -> Found<bool> {
    if matches!(bus, Ok(Bus { switches: 1.., .. })) {
        return Ok(Some(true));
    }
    let files = bus::switch_files(reader.roots).map_err(|error| format!("/dev: {error}"))?;
    let listed = reader.names("/proc/driver/nvidia-nvswitch/devices")?.is_some_and(|names| !names.is_empty());
    if files > 0 || listed {
        return Ok(Some(true));
    }
    bus.as_ref().map(|_| Some(false)).map_err(Clone::clone)
}

/// Counts expected device files that are missing: the control file, one for each GPU of the driver, and that of unified
/// memory if its module is loaded.
fn missing_device_nodes(reader: &Reader<'_>, loaded: bool) -> Found<usize> {
    if !loaded {
        return Ok(None);
    }
    let gpus = reader.names("/proc/driver/nvidia/gpus")?.map_or(0, |names| names.len());
    let names = reader.names("/dev")?.ok_or("/dev: there is no such folder")?;
    let has = |name: &str| names.iter().any(|found| found == name);
    let of_gpus = names.iter().filter(|name| is_of_gpu(name)).count();
    let unified = module(reader, "nvidia_uvm")? == Some(true) && !has("nvidia-uvm");
    Ok(Some(usize::from(!has("nvidiactl")) + gpus.saturating_sub(of_gpus) + usize::from(unified)))
}

fn is_of_gpu(name: &str) -> bool {
    name.strip_prefix("nvidia")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Counts device files whose number is not the driver's of this boot.
fn wrong_major(reader: &Reader<'_>) -> Found<usize> {
    let Some(devices) = reader.text("/proc/devices")? else {
        return Err("/proc/devices: there is no such file".to_owned());
    };
    let major = |wanted: &[&str]| {
        devices.lines().find_map(|line| {
            let (number, name) = line.trim().split_once(' ')?;
            wanted.contains(&name).then(|| number.parse::<u32>().ok())?
        })
    };
    let (frontend, unified) = (major(&FRONTENDS), major(&["nvidia-uvm"]));
    if frontend.is_none() && unified.is_none() {
        return Ok(None);
    }
    let mut wrong = 0;
    for name in reader.names("/dev")?.unwrap_or_default() {
        let expected = match name.as_str() {
            "nvidia-uvm" | "nvidia-uvm-tools" => unified,
            "nvidiactl" | "nvidia-modeset" => frontend,
            name if is_of_gpu(name) => frontend,
            _ => continue,
        };
        let Some(expected) = expected else { continue };
        match fs::symlink_metadata(reader.roots.path(format!("/dev/{name}"))) {
            Ok(meta) if meta.file_type().is_char_device() => {
                wrong += usize::from(rustix::fs::major(meta.rdev()) != expected);
            }
            Ok(_) => wrong += 1,
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(format!("/dev/{name}: {error}")),
        }
    }
    Ok(Some(wrong))
}

/// Returns the version of the fabric manager's program, if there is something for it to do.
fn fm_version(reader: &Reader<'_>, switches: &Found<bool>) -> Found<String> {
    if switches.clone()? != Some(true) {
        return Ok(None);
    }
    let Some(program) = reader.roots.tool("nv-fabricmanager") else { return Ok(None) };
    let run = Run::new(program).arg("--version").limit(4096);
    let done = run.finish(&reader.deadline.within(ANSWER)).map_err(|error| error.to_string())?;
    version_in(&done.stdout()).map(Some).ok_or_else(|| done.complaint("nv-fabricmanager --version"))
}

/// Returns the word of `nvidia-imex-ctl`, such as `READY`, or that the daemon does not run.
fn imex_state(reader: &Reader<'_>, units: &Units) -> Found<String> {
    let Some(units) = units.as_ref().map_err(Clone::clone)? else { return Ok(None) };
    let Some(unit) = units.get(host::IMEX).filter(|unit| unit.exists) else { return Ok(None) };
    if !unit.runs() {
        return Ok(Some(if unit.failed || unit.restarting { "failed" } else { "stopped" }.to_owned()));
    }
    let program = reader.roots.tool("nvidia-imex-ctl").ok_or("there is no nvidia-imex-ctl")?;
    let run = Run::new(program).arg("-q").limit(4096);
    let done = run.finish(&reader.deadline.within(ANSWER)).map_err(|error| error.to_string())?;
    let text = done.stdout();
    let word = text.split_whitespace().next().filter(|word| {
        done.exit.success()
            && word.len() <= 40
            && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    });
    word.map(|word| Some(word.to_owned())).ok_or_else(|| done.complaint("nvidia-imex-ctl -q"))
}

/// Returns `running`, `absent`, or `stale_pipe` if only the directory of a dead daemon is left.
fn mps_state(reader: &Reader<'_>, processes: &Result<Processes, String>) -> Found<&'static str> {
    match processes {
        Ok(processes) if processes.runs(MPS) => return Ok(Some("running")),
        Ok(_) => {}
        Err(why) => return Err(why.clone()),
    }
    // Through open directories, because any user can put a link there.
    let pipes = match tree::dir_if_any(&reader.roots.path(mps::PIPES)) {
        Ok(pipes) => pipes,
        Err(error) => return Err(error.to_string()),
    };
    let left = match pipes {
        Some(pipes) => pipes.spot("control").look().map_err(|error| error.to_string())?.is_some(),
        None => false,
    };
    Ok(Some(if left { "stale_pipe" } else { "absent" }))
}

fn persistenced_enabled(reader: &Reader<'_>, units: &Units) -> Signal {
    match units {
        Err(why) => Signal::Unknown(why.clone()),
        Ok(None) => Signal::Absent,
        Ok(Some(units)) => {
            let enabled = units.get(clients::PERSISTENCED).is_some_and(|unit| unit.exists && unit.enabled);
            (enabled && reader.roots.tool("nvidia-persistenced").is_some()).into()
        }
    }
}

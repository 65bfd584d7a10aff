//! Processes that hold GPUs: a scan of `/proc/*/fd`, as `fuser` does, joined with NVML's process lists.
//!
//! Owns a process's name, user, and unit, job or pod. It does not judge whether a node is idle ([`super::idle`]).
//! Invariant: what cannot be read is reported as unknown, never left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use gpufleet_protocol::{message::GpuClient, nvml::Snapshot};

use super::mps;
use crate::os::users::Users;

/// Units that hold GPUs without working on them, in stop order.
pub const CLIENT_UNITS: &[&str] = &[
    mps::UNIT,
    "nvidia-mps.service",
    "dcgm-exporter.service",
    "nvidia-dcgm-exporter.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "nvsm-notifier.service",
    "nvsm-api-gateway.service",
    "nvsm-mqtt.service",
    "nvsm-core.service",
    "nvsm.service",
];

/// Whether a unit holds GPUs without working on them: one of [`CLIENT_UNITS`], or the MPS daemon of a device.
pub fn is_client_unit(unit: &str) -> bool {
    CLIENT_UNITS.contains(&unit) || mps::is_unit(unit)
}

/// Returns the place of a client unit in the order of stopping: MPS daemons first.
pub fn stop_order(unit: &str) -> (usize, &str) {
    (CLIENT_UNITS.iter().position(|known| *known == unit).unwrap_or(0), unit)
}

/// Client units that open every GPU when they start (NVIDIA DCGM user guide: its host engine watches all GPUs).
pub const HOLDS_ALL: &[&str] = &["nvidia-dcgm.service", "dcgm.service"];

/// The persistence daemon.
pub const PERSISTENCED: &str = "nvidia-persistenced.service";
/// Units that belong to the driver and keep running.
const DRIVER_UNITS: &[&str] = &[PERSISTENCED, "nvidia-fabricmanager.service", "nvidia-imex.service"];
/// Programs that belong to the driver, by the 15 characters that the kernel keeps of a name.
const DRIVER_PROGRAMS: &[&str] = &["nvidia-persiste", FABRIC_MANAGER, "nvidia-imex"];
/// The fabric manager's program, in the kernel's short form.
pub const FABRIC_MANAGER: &str = "nv-fabricmanage";
/// First word of the command line of gpufleet's NVML workers.
pub const WORKER: &str = "gpufleet-nvml";
/// Largest length of a command line in messages, in characters.
const COMMAND: usize = 100;

/// Paths of the process table and the accounts.
#[derive(Clone, Debug)]
pub struct Places {
    pub proc: PathBuf,
    pub etc: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc"), etc: PathBuf::from("/etc") }
    }
}

/// One process of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// The 15 characters of the name that the kernel keeps.
    pub comm: String,
    pub cgroup: String,
}

/// A process that holds a device file of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub client: GpuClient,
    /// Whether it belongs to the driver or to a unit that gpufleet stops itself, and so is no workload.
    pub service: bool,
    /// Whether it is the NVML worker of another gpufleet session, which only reads and ends within seconds.
    pub reader: bool,
    /// Whether it has a device file open, and is not only in NVML's list.
    pub open: bool,
}

/// One scan of the process table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    pub holders: Vec<Holder>,
    pub processes: Vec<Process>,
    /// What could not be read, one sentence each.
    pub unknown: Vec<String>,
}

impl Scan {
    /// Returns NVML workers of other gpufleet sessions.
    pub fn readers(&self) -> impl Iterator<Item = &GpuClient> {
        self.holders.iter().filter(|holder| holder.reader).map(|holder| &holder.client)
    }

    /// Returns processes that work on GPUs.
    pub fn workloads(&self) -> impl Iterator<Item = &GpuClient> {
        self.holders.iter().filter(|holder| !holder.service).map(|holder| &holder.client)
    }
}

/// Scans all processes but those in `own`.
///
/// `services` are main processes of units that gpufleet stops itself, for systems without their cgroups. `minors` maps
/// the number of `/dev/nvidiaN` to the GPU's index; `snapshot` adds the processes that NVML lists.
pub fn scan(
    places: &Places,
    own: &[u32],
    services: &[u32],
    minors: &BTreeMap<u32, u32>,
    snapshot: Option<&Snapshot>,
) -> Scan {
    let mut scan = Scan::default();
    let mut found: BTreeMap<u32, (BTreeSet<u32>, bool)> = BTreeMap::new();
    let pids = match pids(&places.proc) {
        Ok(pids) => pids,
        Err(error) => {
            scan.unknown.push(format!("the processes cannot be listed: {error}"));
            Vec::new()
        }
    };
    let mut closed = 0;
    for pid in pids {
        let folder = places.proc.join(pid.to_string());
        let Ok(comm) = fs::read_to_string(folder.join("comm")) else { continue };
        let cgroup = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
        scan.processes.push(Process { pid, comm: comm.trim().to_owned(), cgroup: cgroup_path(&cgroup) });
        if own.contains(&pid) {
            continue;
        }
        match devices(&folder.join("fd"), minors) {
            Ok(Some(gpus)) => {
                found.insert(pid, (gpus, true));
            }
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => closed += 1,
            // Ignored, because the process has ended meanwhile.
            Err(_) => {}
        }
    }
    if closed > 0 {
        let noun = if closed == 1 { "process" } else { "processes" };
        scan.unknown.push(format!("{closed} {noun} may not be looked into; gpufleet needs root for that"));
    }
    for gpu in snapshot.iter().flat_map(|snapshot| &snapshot.gpus) {
        // A GPU without NVML's list is no problem: the scan of open files finds the same processes.
        for process in gpu.processes.iter().flatten().filter(|process| !own.contains(&process.pid)) {
            found.entry(process.pid).or_default().0.insert(gpu.index);
        }
    }
    let users = Users::of(&places.etc);
    for (pid, (gpus, open)) in found {
        let process = scan.processes.iter().find(|process| process.pid == pid);
        let client = GpuClient {
            pid,
            command: command(&places.proc, pid),
            user: user(&places.proc, pid, &users),
            gpus: gpus.into_iter().collect(),
            unit: process.and_then(|process| owner(&process.cgroup)),
        };
        let reader = is_reader(&places.proc, pid);
        let of_system = uid(&places.proc, pid).is_some_and(|uid| uid < FIRST_USER);
        let service = reader
            || services.contains(&pid)
            || process.is_some_and(|process| is_service(process, of_system));
        scan.holders.push(Holder { client, service, reader, open });
    }
    scan
}

/// First uid of people. Source: login.defs(5), `SYS_UID_MAX` is 999.
const FIRST_USER: u32 = 1000;

/// Returns daemons of a name in the kernel's short form, and whether each hangs in the kernel (state D). Only those of
/// root and of system accounts, because anybody can give a process this name.
pub fn named(places: &Places, comm: &str) -> Vec<(u32, bool)> {
    let mut found = Vec::new();
    for pid in pids(&places.proc).unwrap_or_default() {
        let folder = places.proc.join(pid.to_string());
        let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        if fs::metadata(&folder).is_ok_and(|process| process.uid() >= FIRST_USER) {
            continue;
        }
        let Some((name, rest)) = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(") ")) else {
            continue;
        };
        // A zombie holds nothing.
        if name == comm && !rest.starts_with('Z') {
            found.push((pid, rest.starts_with('D')));
        }
    }
    found
}

/// Returns what tells a process from every other one of this boot: its number and, in clock ticks, its start.
pub fn identity(places: &Places, pid: u32) -> Option<String> {
    let stat = fs::read_to_string(places.proc.join(pid.to_string()).join("stat")).ok()?;
    // Source: proc_pid_stat(5): the 22nd field; the 3rd is the first behind the name.
    let started = stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(19)?;
    Some(format!("{pid}-{started}"))
}

fn pids(proc: &Path) -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> = fs::read_dir(proc)?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Returns the GPUs whose device files are open; an empty set if only control devices are.
pub fn devices(fd: &Path, minors: &BTreeMap<u32, u32>) -> io::Result<Option<BTreeSet<u32>>> {
    let mut gpus: Option<BTreeSet<u32>> = None;
    for entry in fs::read_dir(fd)?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let Some(name) = target.to_str().and_then(|text| text.strip_prefix("/dev/")) else { continue };
        let name = name.trim_end_matches(" (deleted)");
        if let Some(minor) = name.strip_prefix("nvidia").and_then(|rest| rest.parse::<u32>().ok()) {
            gpus.get_or_insert_default().insert(minors.get(&minor).copied().unwrap_or(minor));
        } else if is_control(name) {
            gpus.get_or_insert_default();
        }
    }
    Ok(gpus)
}

/// Whether it is a device file that belongs to no single GPU; a process that has one open keeps the driver busy.
fn is_control(name: &str) -> bool {
    matches!(name, "nvidiactl" | "nvidia-uvm" | "nvidia-uvm-tools" | "nvidia-modeset" | "nvidia-nvlink")
        || name.starts_with("nvidia-nvswitch")
        || name.starts_with("nvidia-caps/")
        || name.starts_with("nvidia-caps-imex-channels/")
}

/// Whether a process is an NVML worker of root or of this helper's user. Other users do not count, because any process
/// can take the name.
fn is_reader(proc: &Path, pid: u32) -> bool {
    let line = fs::read(proc.join(pid.to_string()).join("cmdline")).unwrap_or_default();
    let named = line.split(|byte| *byte == 0).next() == Some(WORKER.as_bytes());
    named && uid(proc, pid).is_some_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw())
}

/// Returns the path in the unified hierarchy, or in systemd's own if there is none.
fn cgroup_path(text: &str) -> String {
    let of =
        |prefix: &str| text.lines().find_map(|line| line.split_once(prefix).map(|(_, path)| path.to_owned()));
    of("0::").filter(|path| path != "/").or_else(|| of(":name=systemd:")).unwrap_or_default()
}

/// Whether it belongs to the driver or to a unit that gpufleet stops itself. `of_system`: whether root or a system account
/// runs it, because anybody can give a process the name of a program.
fn is_service(process: &Process, of_system: bool) -> bool {
    let ours = |unit: &str| is_client_unit(unit) || DRIVER_UNITS.contains(&unit);
    of_system && DRIVER_PROGRAMS.contains(&process.comm.as_str()) || unit(&process.cgroup).is_some_and(ours)
}

/// Returns the unit of the node's systemd of a cgroup path: the first part that is no slice. Those below it are of a
/// container with a systemd of its own, or of a user's, and may have any name; so are those below what systemd did not
/// make, such as `/lxc.payload.c1`, `/docker/ID` and `/kubepods`.
pub fn unit(cgroup: &str) -> Option<&str> {
    let first = cgroup.split('/').find(|part| !part.is_empty() && !part.ends_with(".slice"))?;
    (first.ends_with(".service") || first.ends_with(".scope")).then_some(first)
}

/// Returns the unit as people are told of it: of a user's systemd, the user's own unit with it.
fn told_unit(cgroup: &str) -> Option<String> {
    let outer = unit(cgroup)?;
    let (_, below) = cgroup.split_once(outer)?;
    match unit(below).filter(|_| outer.starts_with("user@")) {
        Some(inner) => Some(format!("{inner} of {outer}")),
        None => Some(outer.to_owned()),
    }
}

/// Returns the pod of a cgroup path: its UID with dashes, and whether the kubelet created it itself.
///
/// Source: kubelet's cgroup names, `pod<UID>` or `…-pod<UID_with_underscores>.slice`; the UID of a static pod is the
/// hexadecimal hash of its file, without dashes.
pub fn pod(cgroup: &str) -> Option<(String, bool)> {
    if !cgroup.contains("kubepods") {
        return None;
    }
    let part = cgroup.split('/').find_map(|part| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        part.rsplit_once("pod").map(|(_, uid)| uid).filter(|uid| uid.len() >= 32)
    })?;
    let uid = part.replace('_', "-");
    let fixed = !uid.contains('-');
    Some((uid, fixed))
}

/// Returns the Slurm job of a cgroup path.
pub fn job(cgroup: &str) -> Option<&str> {
    cgroup.split('/').find_map(|part| part.strip_prefix("job_"))
}

/// What runs a container, and how the owner of its processes is named.
pub const CONTAINERS: [(&str, &str); 2] = [("docker", "Docker container "), ("podman", "Podman container ")];
/// Characters of a container's name that Docker and Podman show, and take.
const SHORT: usize = 12;

/// Returns the container of a cgroup path: what runs it, and its short name.
///
/// Source: names of cgroups, `docker-ID.scope` and `libpod-ID.scope` with systemd, `docker/ID` and `libpod-ID` without.
fn container(cgroup: &str) -> Option<(&'static str, &str)> {
    let [docker, podman] = CONTAINERS.map(|(_, words)| words);
    let mut above = "";
    for part in cgroup.split('/') {
        let bare = part.strip_suffix(".scope").unwrap_or(part);
        let found = match (bare.strip_prefix("docker-"), bare.strip_prefix("libpod-")) {
            (Some(id), _) => Some((docker, id)),
            (_, Some(id)) => Some((podman, id)),
            _ if above == "docker" => Some((docker, bare)),
            _ => None,
        };
        let is_id = |id: &str| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some((words, id)) = found.filter(|(_, id)| is_id(id)) {
            return Some((words, id.get(..SHORT)?));
        }
        above = part;
    }
    None
}

/// Returns the job, else the pod, else the container, else the unit.
fn owner(cgroup: &str) -> Option<String> {
    if let Some(job) = job(cgroup) {
        return Some(format!("Slurm job {job}"));
    }
    if let Some((uid, _)) = pod(cgroup) {
        return Some(format!("pod {uid}"));
    }
    if let Some((words, id)) = container(cgroup) {
        return Some(format!("{words}{id}"));
    }
    told_unit(cgroup)
}

fn command(proc: &Path, pid: u32) -> String {
    let folder = proc.join(pid.to_string());
    let line = fs::read(folder.join("cmdline")).unwrap_or_default();
    let words: Vec<_> =
        line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    let mut text = words.join(" ");
    if text.is_empty() {
        text = fs::read_to_string(folder.join("comm"))
            .map_or_else(|_| "unknown".to_owned(), |c| c.trim().to_owned());
    }
    if text.chars().count() > COMMAND {
        text = text.chars().take(COMMAND - 1).chain(['…']).collect();
    }
    text
}

/// Returns the real user id.
fn uid(proc: &Path, pid: u32) -> Option<u32> {
    let status = fs::read_to_string(proc.join(pid.to_string()).join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

fn user(proc: &Path, pid: u32, users: &Users) -> String {
    match uid(proc, pid) {
        Some(uid) => users.user_name(uid).unwrap_or_else(|| format!("uid {uid}")),
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
#[path = "clients_tests.rs"]
mod tests;

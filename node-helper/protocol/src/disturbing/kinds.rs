//! What kinds for many purposes do to running work where they name what work needs: the table beside that of the programs.
//!
//! Kinds made for one such thing, such as `gpu_driver` or `docker_daemon`, know their classes themselves. Whatever is so
//! already disturbs nothing: the helper asks here for each step, the parser for the most that a task may come to.

use super::{Act, Disturbance, programs};
use crate::{
    NodeOp,
    tasks::{AptState, FileState, ModuleState, PackageState, ServiceState},
};

/// Packages of drivers, by the beginnings of their names.
const DRIVERS: [&str; 8] = [
    "nvidia-driver",
    "nvidia-kernel",
    "nvidia-dkms",
    "nvidia-open",
    "nvidia-headless",
    "cuda-drivers",
    "kmod-nvidia",
    "libnvidia-compute",
];
/// What begins likewise and runs nowhere.
const NEITHER: [&str; 3] = ["nvidia-driver-pinning", "nvidia-driver-assistant", "nvidia-driver-local-repo"];
/// Packages whose scripts stop a service that work needs when they are removed. Sources: the package lists of Ubuntu 24.04,
/// Debian 12 and EL 9, of Docker, Kubernetes and Slurm 24.11.
const OF_SERVICES: [&str; 15] = [
    "kubelet",
    "slurmd",
    "slurm-slurmd",
    "slurm-wlm",
    "munge",
    "containerd",
    "containerd.io",
    "moby-containerd",
    "docker-ce",
    "docker.io",
    "moby-engine",
    "cri-o",
    "k3s",
    "rke2-agent",
    "openibd",
];
/// As [`OF_SERVICES`], by the beginnings of their names, which a branch of the driver follows.
const OF_SERVICES_WITH_BRANCH: [&str; 3] = ["nvidia-fabricmanager", "nvidia-fabric-manager", "nvidia-imex"];

/// What to do about a task whose variables hid what it disturbs.
pub const WRITE_IT_OUT: &str = "write the name out, or the items of the loop";

/// Returns a package's name without version and architecture.
pub fn bare_package(name: &str) -> &str {
    name.split([':', '=', '>', '<', ' ']).next().unwrap_or(name)
}

/// Whether a package is of a GPU driver, and runs.
pub fn is_driver_package(name: &str) -> bool {
    let begins = |beginnings: &[&str]| beginnings.iter().any(|text| bare_package(name).starts_with(text));
    begins(&DRIVERS) && !begins(&NEITHER)
}

fn found(act: Option<Act>, words: &[&str]) -> Option<Disturbance> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    act.map(|act| Disturbance::of(act, &words))
}

/// Returns what an action of `systemctl` on a unit does.
pub fn of_unit(unit: &str, action: &str) -> Option<Disturbance> {
    found(programs::service(unit, action), &["systemctl", action, unit])
}

/// Returns what unloading a module of the kernel does.
pub fn of_unloading(module: &str) -> Option<Disturbance> {
    found(programs::unloads(module), &["modprobe", "-r", module])
}

/// Returns what removing a path does.
pub fn of_removal(path: &str) -> Option<Disturbance> {
    found(programs::removed(path), &["rm", path])
}

/// Returns what removing a package does.
pub fn of_package_removal(name: &str) -> Option<Disturbance> {
    let bare = bare_package(name);
    let act = match () {
        () if is_driver_package(bare) => Some(Act::TakesFromWork),
        () if OF_SERVICES.contains(&bare)
            || OF_SERVICES_WITH_BRANCH.iter().any(|text| bare.starts_with(text)) =>
        {
            Some(Act::StopsService)
        }
        () => None,
    };
    found(act, &["remove", bare])
}

fn of_packages(names: &[String]) -> Option<Disturbance> {
    names.iter().map(|name| of_package_removal(name)).fold(None, Disturbance::worse)
}

/// Returns the worst that an operation may do, as far as its parameters tell; nothing for kinds with a class of their own.
pub fn of_op(op: &NodeOp) -> Option<Disturbance> {
    match op {
        NodeOp::Exec(exec) => exec.disturbance(),
        NodeOp::Service(task) => of_unit(
            &task.name,
            match task.state? {
                ServiceState::Started => "start",
                ServiceState::Stopped => "stop",
                ServiceState::Restarted => "restart",
                ServiceState::Reloaded => "reload",
            },
        ),
        NodeOp::Modprobe(task) if task.state == ModuleState::Absent => of_unloading(&task.name),
        NodeOp::File(task) if task.state == Some(FileState::Absent) => of_removal(&task.path),
        NodeOp::Package(task) if task.state == PackageState::Absent => of_packages(&task.name),
        NodeOp::Dnf(task) if task.state == PackageState::Absent => of_packages(&task.name),
        NodeOp::Apt(task) if task.state == AptState::Absent => of_packages(&task.name),
        _ => None,
    }
}

//! The files of a node: those of a new node, and those that every boot writes.
//!
//! All of this happens outside of the node, before its root is mounted.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nvml_sim::fault::Effect;
use nvml_sim::state::Machine;

use super::processors;
use crate::spec::{NodeSpec, SHARE};

/// Names of the lab's binary inside a node, by directory.
const SBIN: [&str; 13] = [
    "reboot",
    "poweroff",
    "halt",
    "shutdown",
    "update-grub",
    "update-grub2",
    "grub-mkconfig",
    "grub2-mkconfig",
    "grubby",
    "modinfo",
    "modprobe",
    "rmmod",
    "insmod",
];
const BIN: [&str; 11] = [
    "nvidia-smi",
    "systemctl",
    "systemd-run",
    "nvidia-cuda-mps-control",
    "nvidia-persistenced",
    "gpusimctl",
    "docker",
    "dockerd",
    "nvidia-ctk",
    "nv-fabricmanager",
    "dcgmi",
];
/// Those of them that come with the NVIDIA driver.
const DRIVER_PROGRAMS: [&str; 4] =
    ["nvidia-smi", "nvidia-cuda-mps-control", "nvidia-persistenced", "nv-fabricmanager"];

/// Creates the directories and the first files of a node.
pub fn create(spec: &NodeSpec, faults: &[Effect]) -> io::Result<()> {
    for part in ["upper", "work", "root", "state", "home", "units", "boot", "sysctl.d", "grub.d"] {
        fs::create_dir_all(spec.dir.join(part))?;
    }
    fs::set_permissions(spec.state_dir(), fs::Permissions::from_mode(0o1777))?;
    fs::set_permissions(spec.dir.join("home"), fs::Permissions::from_mode(0o700))?;
    fs::write(spec.dir.join("home/.bashrc"), "# ~/.bashrc of a lab node\n")?;
    for log in ["setters.jsonl", "events.jsonl"] {
        fs::write(spec.state_dir().join(log), "")?;
        fs::set_permissions(spec.state_dir().join(log), fs::Permissions::from_mode(0o666))?;
        link(&format!("state/{log}"), &spec.dir.join(log))?;
    }
    let upper = spec.upper();
    // Without it, all nodes would be the host.
    fs::create_dir_all(upper.join("etc"))?;
    fs::write(upper.join("etc/machine-id"), format!("{}\n", uuid::Uuid::new_v4().simple()))?;
    let driver = !faults.contains(&Effect::NoDriver);
    let program = format!("{SHARE}/gpufleet-lab");
    let sbin = if is_link("/usr/sbin") { "usr/bin" } else { "usr/sbin" };
    for (dir, names) in [(sbin, SBIN.as_slice()), ("usr/bin", BIN.as_slice())] {
        for name in names {
            if driver || !DRIVER_PROGRAMS.contains(name) {
                link(&program, &upper.join(dir).join(name))?;
                // The host's own would be found first.
                for local in ["usr/local/sbin", "usr/local/bin"].map(|dir| Path::new(dir).join(name)) {
                    if fs::symlink_metadata(Path::new("/").join(&local)).is_ok() {
                        link(&program, &upper.join(local))?;
                    }
                }
            }
        }
    }
    if !["/usr/sbin/sysctl", "/sbin/sysctl", "/usr/bin/sysctl"].iter().any(|path| Path::new(path).exists()) {
        link(&program, &upper.join(sbin).join("sysctl"))?;
    }
    if driver {
        // An open module does not start without it.
        let firmware = format!("usr/lib/firmware/nvidia/{}/gsp_ga10x.bin", nvml_sim::state::DRIVER_VERSION);
        write(&upper.join(firmware), "")?;
    }
    if driver && !faults.contains(&Effect::NoLibrary) {
        for dir in library_dirs() {
            // Versioned, as in every driver: the name says which version the library is.
            let versioned = format!("libnvidia-ml.so.{}", nvml_sim::state::DRIVER_VERSION);
            link(&format!("{SHARE}/libnvidia-ml.so.1"), &upper.join(&dir).join(&versioned))?;
            link(&versioned, &upper.join(&dir).join("libnvidia-ml.so.1"))?;
        }
    }
    write(&upper.join("etc/hostname"), &format!("{}\n", spec.name))?;
    write(
        &upper.join("etc/hosts"),
        &format!("127.0.0.1 localhost\n127.0.1.1 {}\n::1 localhost\n", spec.name),
    )?;
    write(
        &upper.join("etc/default/grub"),
        "GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"console=ttyS0\"\n",
    )?;
    write(&upper.join("etc/sysctl.conf"), "# Kernel settings of a lab node\n")?;
    add_users(&upper)?;
    crate::programs::grub::write_config(&upper, &spec.dir.join("grub.d"))?;
    super::units::enable_vendor_units(&spec.dir.join("units"), driver)
}

/// Adds users for tests of logins without root: `ops` (uid 1000) and `admin` (uid 1001).
fn add_users(upper: &Path) -> io::Result<()> {
    let passwd =
        fs::read_to_string("/etc/passwd").unwrap_or_else(|_| "root:x:0:0:root:/root:/bin/sh\n".to_owned());
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let users = [("ops", 1000), ("admin", 1001)];
    let taken = |line: &str| {
        users
            .iter()
            .any(|(name, uid)| line.starts_with(&format!("{name}:")) || line.contains(&format!(":x:{uid}:")))
    };
    let mut lines: Vec<String> = passwd.lines().filter(|line| !taken(line)).map(str::to_owned).collect();
    for (name, uid) in users {
        lines.push(format!("{name}:x:{uid}:{uid}:{name}:/home/{name}:{shell}"));
        let home = upper.join("home").join(name);
        fs::create_dir_all(&home)?;
        // Ignored, because a user namespace has no such uid, and then it cannot log in.
        let _ = std::os::unix::fs::chown(&home, Some(uid), Some(uid));
    }
    write(&upper.join("etc/passwd"), &(lines.join("\n") + "\n"))?;
    let private = |name: &str, text: &str, mode| {
        let path = upper.join("etc").join(name);
        write(&path, text).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
    };
    private(
        "shadow",
        &format!(
            "root:*:20000:0:99999:7:::\nops:*:20000:0:99999:7:::\nadmin:{PASSWORD_HASH}:20000:0:99999:7:::\n"
        ),
        0o640,
    )?;
    private(
        "sudoers",
        "root ALL=(ALL:ALL) ALL\nops ALL=(ALL:ALL) NOPASSWD: ALL\nadmin ALL=(ALL:ALL) ALL\n",
        0o440,
    )
}

/// The hash of the password `lab`, for the host's own sudo; [`crate::programs::sudo`] replaces a missing one.
const PASSWORD_HASH: &str =
    "$6$gpufleetlab$vTWOsUJEgazXOJvXZgiDFl4FScC4e2PChrbHR.jYRSiODW62872KS.kfcivk9FZUVJepJ6RPf2P2MuWSQqodI0";

/// Returns where the dynamic loader searches on this distribution, relative to the root.
fn library_dirs() -> Vec<PathBuf> {
    let triple = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let found: Vec<PathBuf> = [triple.as_str(), "usr/lib64", "usr/lib"]
        .into_iter()
        .map(PathBuf::from)
        .filter(|dir| Path::new("/").join(dir).is_dir() && !is_link(Path::new("/").join(dir)))
        .collect();
    found.into_iter().take(1).collect()
}

fn is_link(path: impl AsRef<Path>) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink())
}

fn link(target: &str, path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, path)
}

pub fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, text)
}

/// Writes what depends on the boot: the command line, and the kernel's view of the GPUs.
pub fn prepare_boot(spec: &NodeSpec, machine: &Machine, faults: &[Effect]) -> io::Result<()> {
    let boot = spec.dir.join("boot");
    let upper = spec.upper();
    let cmdline = crate::programs::grub::booted_cmdline(&upper);
    write(&boot.join("cmdline"), &format!("{cmdline}\n"))?;
    write(&boot.join("boot_id"), &format!("{}\n", machine.boot_id))?;
    write(&boot.join("sysrq-trigger"), "")?;
    let driver = has_driver(machine, faults);
    write(&boot.join("modules"), &modules(machine, driver))?;
    let version = if driver { proc_version(machine) } else { String::new() };
    write(&boot.join("nvidia-version"), &version)?;
    if driver {
        write_proc_gpus(&boot.join("nvidia-gpus"), machine)?;
    }
    Ok(())
}

/// Writes `/proc/driver/nvidia/gpus`, in which the driver describes also GPUs that it hides from programs.
pub fn write_proc_gpus(folder: &Path, machine: &Machine) -> io::Result<()> {
    for gpu in machine.gpus.iter().filter(|gpu| !gpu.lost) {
        let (name, bus) = (gpu.spec().name(), gpu.bus.sysfs());
        let text = format!(
            "Model: \t\t {name}\nIRQ:   \t\t 41\nGPU UUID: \t {}\nBus Type: \t PCIe\nBus Location: \t {bus}\n\
             Device Minor: \t {}\nGPU Excluded:\t No\n",
            gpu.uuid, gpu.minor
        );
        write(&folder.join(bus).join("information"), &text)?;
    }
    Ok(())
}

/// Returns the text of `/proc/driver/nvidia/version`.
fn proc_version(machine: &Machine) -> String {
    let (arch, version) = (std::env::consts::ARCH, &machine.module_version);
    let first = match machine.proprietary {
        true => format!("NVIDIA UNIX {arch} Kernel Module  {version}  Release Build  (lab)"),
        false => format!("NVIDIA UNIX Open Kernel Module for {arch}  {version}  Release Build  (lab)"),
    };
    format!("NVRM version: {first}\nGCC version:  gcc version 12.2.0\n")
}

/// Shows a module that was loaded, below a node's root.
pub fn show_module(root: &Path, machine: &Machine, module: &str) -> io::Result<()> {
    let refs = module_refs(machine).into_iter().find(|(name, _)| *name == module).map_or(0, |(_, refs)| refs);
    write_module(&root.join("sys"), machine, module, refs)?;
    if module == "nvidia" {
        // Hosts whose kernel has no drivers have no such folder.
        if root.join("proc/driver").is_dir() {
            write(&root.join("proc/driver/nvidia/version"), &proc_version(machine))?;
            write_proc_gpus(&root.join("proc/driver/nvidia/gpus"), machine)?;
        }
        super::mounts::make_devices(&root.join("dev"), machine)?;
    }
    list_modules(root)
}

/// Hides a module that was unloaded.
pub fn hide_module(root: &Path, module: &str) -> io::Result<()> {
    let missing = |done: io::Result<()>| match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    missing(fs::remove_dir_all(root.join("sys/module").join(module)))?;
    if module == "nvidia" {
        missing(fs::remove_file(root.join("proc/driver/nvidia/version")))?;
        missing(fs::remove_dir_all(root.join("proc/driver/nvidia/gpus")))?;
        for entry in fs::read_dir(root.join("dev"))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("nvidia") {
                let path = entry.path();
                missing(if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) })?;
            }
        }
    }
    list_modules(root)
}

/// Writes `/proc/modules` again, from the modules of the driver that are shown.
fn list_modules(root: &Path) -> io::Result<()> {
    let list = root.join("proc/modules");
    let mut text = String::new();
    for name in ["nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia"] {
        if root.join("sys/module").join(name).exists() {
            text += &format!("{name} 1769472 0 - Live 0x0000000000000000 (O)\n");
        }
    }
    // Hosts whose kernel has no modules have no such file.
    if !list.exists() {
        return Ok(());
    }
    let others = fs::read_to_string(&list)?;
    let others = others.lines().filter(|line| !line.starts_with("nvidia"));
    text.extend(others.map(|line| format!("{line}\n")));
    fs::write(list, text)
}

fn has_driver(machine: &Machine, faults: &[Effect]) -> bool {
    !faults.contains(&Effect::NoDriver) && machine.driver_loaded
}

/// Writes a node's /sys: its GPUs, the driver's modules, a few properties of the machine.
pub fn write_sys(sys: &Path, machine: &Machine, faults: &[Effect]) -> io::Result<()> {
    let driver = has_driver(machine, faults);
    for (path, text) in [
        ("kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never\n"),
        ("class/dmi/id/product_name", "gpufleet lab node\n"),
        ("class/dmi/id/sys_vendor", "gpufleet\n"),
    ] {
        write(&sys.join(path), text)?;
    }
    processors::write_sys(sys)?;
    for name in ["class/net", "class/infiniband", "fs/cgroup", "module"] {
        fs::create_dir_all(sys.join(name))?;
    }
    write_bus(sys, machine, faults)?;
    if driver {
        for (module, refs) in module_refs(machine) {
            write_module(sys, machine, module, refs)?;
        }
    }
    Ok(())
}

/// Writes the GPUs and NVSwitches on the PCI bus, below a /sys.
pub fn write_bus(sys: &Path, machine: &Machine, faults: &[Effect]) -> io::Result<()> {
    let driver = has_driver(machine, faults);
    for name in ["bus/pci/devices", "bus/pci/drivers"] {
        fs::create_dir_all(sys.join(name))?;
    }
    for gpu in &machine.gpus {
        if gpu.lost {
            continue;
        }
        let dir = sys.join("bus/pci/devices").join(gpu.bus.sysfs());
        let field = |name| gpu.spec().field("nvmlDeviceGetPciInfo_v3", name);
        let (device, subsystem) = (field("pciDeviceId"), field("pciSubSystemId"));
        for (file, text) in [
            ("vendor", "0x10de\n".to_owned()),
            ("device", format!("0x{:04x}\n", device >> 16)),
            ("subsystem_vendor", format!("0x{:04x}\n", subsystem & 0xffff)),
            ("subsystem_device", format!("0x{:04x}\n", subsystem >> 16)),
            ("class", "0x030200\n".to_owned()),
            ("revision", "0xa1\n".to_owned()),
            ("numa_node", format!("{}\n", processors::numa_node(gpu.minor))),
            ("local_cpulist", format!("{}\n", processors::cpu_list(processors::numa_node(gpu.minor)))),
            ("current_link_width", "16\n".to_owned()),
            ("max_link_width", "16\n".to_owned()),
        ] {
            write(&dir.join(file), &text)?;
        }
        if !faults.contains(&Effect::NoReset) {
            write(&dir.join("reset"), "")?;
            write(&dir.join("reset_method"), "flr bus\n")?;
        }
        if driver {
            link("../../drivers/nvidia", &dir.join("driver"))?;
            fs::create_dir_all(sys.join("bus/pci/drivers/nvidia"))?;
        }
    }
    for number in 0..machine.nvswitches {
        let dir = sys.join("bus/pci/devices").join(format!("0000:e{number:x}:00.0"));
        write(&dir.join("vendor"), "0x10de\n")?;
        write(&dir.join("class"), "0x068000\n")?;
    }
    Ok(())
}

fn write_module(sys: &Path, machine: &Machine, module: &str, refs: u32) -> io::Result<()> {
    let dir = sys.join("module").join(module);
    write(&dir.join("refcnt"), &format!("{refs}\n"))?;
    write(&dir.join("version"), &format!("{}\n", machine.module_version))?;
    write(&dir.join("initstate"), "live\n")
}

fn module_refs(machine: &Machine) -> Vec<(&'static str, u32)> {
    let mut refs = vec![("nvidia", 2), ("nvidia_uvm", 0), ("nvidia_modeset", 0)];
    if machine.nvidia_drm_refs > 0 {
        refs.push(("nvidia_drm", machine.nvidia_drm_refs));
    }
    refs
}

fn modules(machine: &Machine, driver: bool) -> String {
    let mut text = String::new();
    if driver {
        for (module, refs) in module_refs(machine) {
            text += &format!("{module} 1769472 {refs} - Live 0x0000000000000000 (O)\n");
        }
    }
    text + "ext4 1003520 1 - Live 0x0000000000000000\noverlay 196608 0 - Live 0x0000000000000000\n"
}

/// Copies the host's kernel settings into the template that all nodes start from.
pub fn copy_kernel_settings(template: &Path) -> io::Result<()> {
    copy_settings(Path::new("/proc/sys"), template, 0)
}

fn copy_settings(from: &Path, to: &Path, depth: u32) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)?.flatten() {
        let name = entry.file_name();
        let (source, target) = (entry.path(), to.join(&name));
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            let per_interface = depth == 3
                && from.components().any(|part| matches!(part.as_os_str().to_str(), Some("conf" | "neigh")));
            if per_interface && !matches!(name.to_str(), Some("all" | "default" | "lo")) {
                continue;
            }
            if depth < 6 {
                copy_settings(&source, &target, depth + 1)?;
            }
        } else {
            // Some settings can only be written (drop_caches, flush), so unreadable ones become empty.
            fs::write(&target, fs::read(&source).unwrap_or_default())?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
}

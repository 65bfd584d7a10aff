//! The node's root: an overlay over the host's root, with its own parts of /proc, /sys and /dev.
//!
//! Runs as the first process of the node's namespaces, before anything else of the node. After [`enter`], nothing of
//! the host is reachable except for its read-only programs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use nvml_sim::fault::Effect;
use nvml_sim::state::Machine;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};

use crate::spec::{NodeSpec, SHARE};

/// What could not be mounted, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}{}", hint(source))]
pub struct MountError {
    what: String,
    source: io::Error,
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL) => {
            " (the lab's directory may lie on a file system that cannot be an overlay's upper layer, such as another overlay: try --dir on /dev/shm)"
        }
        Some(libc::EPERM) => " (the kernel forbids it: run as root, or allow unprivileged user namespaces)",
        _ => "",
    }
}

trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, MountError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, MountError> {
        self.map_err(|source| MountError { what: what(), source: source.into() })
    }
}

/// Top-level directories of the host that a node shares; others are not visible in a node.
const SYSTEM: [&str; 13] =
    ["bin", "boot", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "sbin", "srv", "usr", "var"];
/// Top-level directories that a node has for itself.
const OWN: [&str; 8] = ["proc", "sys", "dev", "run", "tmp", "root", "mnt", "media"];

/// Builds the node's root and moves into it.
pub fn enter(spec: &NodeSpec, machine: &Machine, faults: &[Effect]) -> Result<(), MountError> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .doing(|| "make mounts private".to_owned())?;
    let root = spec.dir.join("root");
    if spec.user_namespace {
        root_of_parts(spec, &root)?;
    } else {
        overlay(Path::new("/"), &spec.upper(), &spec.dir.join("work"), &root, false)?;
        hide_the_rest(&root)?;
    }
    devices(&root, machine, faults)?;
    for (dir, mode) in [("run", "mode=755"), ("tmp", "mode=1777"), ("dev/shm", "mode=1777")] {
        tmpfs(&root.join(dir), mode, noexec(faults))?;
    }
    bind(&spec.dir.join("home"), &root.join("root"))?;
    bind(&spec.state_dir(), &root.join("run/gpusim"))?;
    bind_read_only(&spec.share, &root.join(SHARE.trim_start_matches('/')))?;
    let sudo = spec.share.with_file_name("private").join("sudo");
    if sudo.exists() {
        bind(&sudo, &root.join("usr/bin/sudo"))?;
    }
    bind(&spec.dir.join("units"), &root.join("etc/systemd/system"))?;
    let bare = if faults.contains(&Effect::NoDriver) { "units-bare" } else { "units" };
    bind_read_only(&spec.share.join(bare), &root.join("usr/lib/systemd/system"))?;
    tmpfs(&root.join("sys"), "mode=755", MountFlags::empty())?;
    super::files::write_sys(&root.join("sys"), machine, faults).doing(|| "fill /sys".to_owned())?;
    bind(&spec.dir.join("sysctl.d"), &root.join("etc/sysctl.d"))?;
    bind(&spec.dir.join("grub.d"), &root.join("etc/default/grub.d"))?;
    for dir in ["run/systemd/system", "run/lock", "run/user", "run/sshd"] {
        fs::create_dir_all(root.join(dir)).doing(|| format!("make /{dir}"))?;
    }
    proc(spec, &root, faults)?;
    if faults.contains(&Effect::DiskFull) {
        for dir in ["var/lib", "var/tmp", "tmp", "root"] {
            tmpfs(&root.join(dir), "mode=1777,size=32k", MountFlags::empty())?;
            // Ignored, because this write is meant to fill the file system.
            let _ = fs::write(root.join(dir).join("full"), vec![0; 1 << 16]);
        }
    }
    for path in faults.iter().filter_map(|f| if let Effect::Full(path) = f { Some(path) } else { None }) {
        fill(&root.join("mnt"), &root.join(path.trim_start_matches('/')))?;
    }
    pivot(&root)?;
    rustix::system::sethostname(spec.name.as_bytes()).doing(|| "set the host name".to_owned())
}

/// Replaces a directory by a full file system with the same files; `beside` is used to build it.
fn fill(beside: &Path, at: &Path) -> Result<(), MountError> {
    fs::create_dir_all(at).doing(|| format!("make {}", at.display()))?;
    let mode = fs::metadata(at).doing(|| format!("look at {}", at.display()))?.permissions().mode() & 0o7777;
    tmpfs(beside, &format!("mode={mode:o},size=64m"), MountFlags::empty())?;
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(at.join("."))
        .arg(beside)
        .stdin(std::process::Stdio::null())
        .status()
        .doing(|| format!("copy {}", at.display()))?;
    if !copied.success() {
        return Err(MountError {
            what: format!("copy {}", at.display()),
            source: io::Error::other(copied.to_string()),
        });
    }
    // Down to single bytes, because a page may be left for a small file otherwise.
    if let Ok(mut file) = File::create(beside.join(".full")) {
        for size in [1 << 20, 4096, 1] {
            while io::Write::write_all(&mut file, &vec![0; size]).is_ok() {}
        }
    }
    mount_bind(beside, at).doing(|| format!("bind {}", at.display()))?;
    unmount(beside, UnmountFlags::DETACH).doing(|| format!("leave {}", beside.display()))
}

fn noexec(faults: &[Effect]) -> MountFlags {
    if faults.contains(&Effect::TmpNoexec) { MountFlags::NOEXEC } else { MountFlags::empty() }
}

fn overlay(
    lower: &Path,
    upper: &Path,
    work: &Path,
    at: &Path,
    in_user_namespace: bool,
) -> Result<(), MountError> {
    let mut options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    if in_user_namespace {
        options += ",userxattr";
    }
    mount("overlay", at, "overlay", MountFlags::empty(), &*c_string(&options))
        .doing(|| format!("mount an overlay of {} at {}", lower.display(), at.display()))
}

/// Builds the same root with an overlay for each top-level directory.
///
/// In a user namespace the kernel refuses to show / without the mounts on top of it, so / cannot be a lower layer
/// there; a directory without mounts below it can.
fn root_of_parts(spec: &NodeSpec, root: &Path) -> Result<(), MountError> {
    mount_bind(root, root).doing(|| "bind the node's root".to_owned())?;
    for entry in fs::read_dir("/").doing(|| "read /".to_owned())?.flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let at = root.join(&name);
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_symlink() {
            let target = fs::read_link(&path).doing(|| format!("read {}", path.display()))?;
            if fs::symlink_metadata(&at).is_err() {
                symlink(target, &at).doing(|| format!("link {}", at.display()))?;
            }
        } else if kind.is_dir() && OWN.iter().chain(&SYSTEM).any(|known| name.to_str() == Some(known)) {
            let (upper, work) = (spec.upper().join(&name), spec.dir.join("work").join(&name));
            for dir in [&at, &upper, &work] {
                fs::create_dir_all(dir).doing(|| format!("make {}", dir.display()))?;
            }
            if OWN.iter().any(|own| name.to_str() == Some(own)) {
                continue;
            }
            if overlay(&path, &upper, &work, &at, true).is_err() {
                // A directory with mounts below it: its files are copied, or left out if it is not part of the
                // system.
                if matches!(name.to_str(), Some("etc")) {
                    copy_missing(&path, &upper);
                    bind(&upper, &at)?;
                } else if matches!(name.to_str(), Some("usr" | "bin" | "sbin" | "lib" | "lib64" | "var")) {
                    overlay(&path, &upper, &work, &at, true)?;
                }
            }
        }
    }
    Ok(())
}

/// Hides what a real node would not have, such as the host's own data directories.
fn hide_the_rest(root: &Path) -> Result<(), MountError> {
    for entry in fs::read_dir(root).doing(|| "read the node's root".to_owned())?.flatten() {
        let name = entry.file_name();
        let known = OWN.iter().chain(&SYSTEM).any(|known| name.to_str() == Some(known));
        if !known && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            tmpfs(&entry.path(), "mode=755,size=4k", MountFlags::RDONLY)?;
        }
    }
    Ok(())
}

fn copy_missing(from: &Path, to: &Path) {
    let Ok(entries) = fs::read_dir(from) else { return };
    for entry in entries.flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let Ok(kind) = entry.file_type() else { continue };
        // Ignored, because files that this user may not read do not exist for the node.
        if kind.is_dir() {
            let _ = fs::create_dir_all(&target);
            copy_missing(&source, &target);
        } else if fs::symlink_metadata(&target).is_err() {
            if let (true, Ok(link)) = (kind.is_symlink(), fs::read_link(&source)) {
                let _ = symlink(link, &target);
            } else {
                let _ = fs::copy(&source, &target);
            }
        }
    }
}

fn c_string(text: &str) -> std::ffi::CString {
    std::ffi::CString::new(text).unwrap_or_default()
}

fn tmpfs(at: &Path, options: &str, flags: MountFlags) -> Result<(), MountError> {
    fs::create_dir_all(at).doing(|| format!("make {}", at.display()))?;
    mount("tmpfs", at, "tmpfs", flags | MountFlags::NOSUID, &*c_string(options))
        .doing(|| format!("mount a tmpfs at {}", at.display()))
}

/// Binds a directory or a file, and creates the mount point.
fn bind(from: &Path, at: &Path) -> Result<(), MountError> {
    if from.is_dir() {
        fs::create_dir_all(at).doing(|| format!("make {}", at.display()))?;
    } else if !at.exists() {
        File::create(at).doing(|| format!("make {}", at.display()))?;
    }
    mount_bind(from, at).doing(|| format!("bind {} at {}", from.display(), at.display()))
}

/// Binds what all nodes share, so that no node can change it.
fn bind_read_only(from: &Path, at: &Path) -> Result<(), MountError> {
    bind(from, at)?;
    // Ignored, because a user namespace may not change a mount's flags; its root cannot write there anyway.
    let _ = mount_remount(at, MountFlags::BIND | MountFlags::RDONLY, c"");
    Ok(())
}

fn devices(root: &Path, machine: &Machine, faults: &[Effect]) -> Result<(), MountError> {
    let dev = root.join("dev");
    tmpfs(&dev, "mode=755", MountFlags::empty())?;
    for name in ["null", "zero", "full", "random", "urandom", "tty"] {
        bind(&Path::new("/dev").join(name), &dev.join(name))?;
    }
    let pts = dev.join("pts");
    fs::create_dir_all(&pts).doing(|| "make /dev/pts".to_owned())?;
    mount(
        "devpts",
        &pts,
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        c"newinstance,ptmxmode=0666,mode=620",
    )
    .doing(|| "mount /dev/pts".to_owned())?;
    for (target, name) in [
        ("pts/ptmx", "ptmx"),
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
    ] {
        symlink(target, dev.join(name)).doing(|| format!("link /dev/{name}"))?;
    }
    super::processors::write_latency(&dev).doing(|| "make /dev/cpu_dma_latency".to_owned())?;
    super::kmsg::begin(&dev.join("kmsg")).doing(|| "make /dev/kmsg".to_owned())?;
    if faults.contains(&Effect::NoDriver) || !machine.driver_loaded {
        return Ok(());
    }
    make_devices(&dev, machine).doing(|| "make the files of GPUs in /dev".to_owned())
}

/// Makes the files of the GPUs, below a node's /dev.
pub fn make_devices(dev: &Path, machine: &Machine) -> io::Result<()> {
    let mut names: Vec<(String, u32)> = machine
        .gpus
        .iter()
        .filter(|gpu| !gpu.lost)
        .map(|gpu| (format!("nvidia{}", gpu.minor), 0o666))
        .collect();
    names.extend(["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(|name| (name.to_owned(), 0o666)));
    names.push(("nvidia-caps/nvidia-cap1".to_owned(), 0o400));
    names.push(("nvidia-caps/nvidia-cap2".to_owned(), 0o444));
    fs::create_dir_all(dev.join("nvidia-caps"))?;
    for (name, mode) in names {
        let path = dev.join(&name);
        File::create(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn proc(spec: &NodeSpec, root: &Path, faults: &[Effect]) -> Result<(), MountError> {
    let proc = root.join("proc");
    mount("proc", &proc, "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, c"")
        .doing(|| "mount /proc".to_owned())?;
    if faults.contains(&Effect::NoMemfdExec) {
        // The kernel keeps this setting for each process namespace, so the real one can be used.
        fs::write(proc.join("sys/vm/memfd_noexec"), "2")
            .doing(|| "forbid executable memory files".to_owned())?;
    }
    let boot = spec.dir.join("boot");
    let settings: PathBuf = boot.join("settings");
    fs::create_dir_all(&settings).doing(|| "make a place for kernel settings".to_owned())?;
    tmpfs(&settings, "mode=755", MountFlags::empty())?;
    for part in ["upper/kernel/random", "work"] {
        fs::create_dir_all(settings.join(part)).doing(|| "make a place for kernel settings".to_owned())?;
    }
    fs::copy(boot.join("boot_id"), settings.join("upper/kernel/random/boot_id"))
        .and_then(|_| fs::write(settings.join("upper/kernel/hostname"), format!("{}\n", spec.name)))
        .doing(|| "write kernel settings".to_owned())?;
    overlay(
        &spec.share.join("proc-sys"),
        &settings.join("upper"),
        &settings.join("work"),
        &proc.join("sys"),
        spec.user_namespace,
    )?;
    // sysrq too, because a node that reboots itself that way must not reach the host's kernel.
    for name in ["cmdline", "sysrq-trigger", "modules"] {
        if proc.join(name).exists() {
            bind(&boot.join(name), &proc.join(name))?;
        }
    }
    // The host has other CPUs than the node's /sys says.
    let status = boot.join("init-status");
    fs::read_to_string(proc.join("1/status"))
        .and_then(|text| fs::write(&status, super::processors::allowed_on_all(&text)))
        .doing(|| "write the status of process 1".to_owned())?;
    bind(&status, &proc.join("1/status"))?;
    let driver = proc.join("driver");
    if driver.is_dir() {
        tmpfs(&driver, "mode=555", MountFlags::empty())?;
        let version = fs::read_to_string(boot.join("nvidia-version")).unwrap_or_default();
        if !version.is_empty() {
            super::files::write(&driver.join("nvidia/version"), &version)
                .doing(|| "write /proc/driver/nvidia/version".to_owned())?;
        }
        for entry in std::fs::read_dir(boot.join("nvidia-gpus")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(entry.path().join("information")).unwrap_or_default();
            let folder = driver.join("nvidia/gpus").join(entry.file_name());
            super::files::write(&folder.join("information"), &text)
                .doing(|| "write /proc/driver/nvidia/gpus".to_owned())?;
        }
    }
    Ok(())
}

fn pivot(root: &Path) -> Result<(), MountError> {
    // A root for pivot_root must be a mount point of its own, which the overlay is.
    std::env::set_current_dir(root).doing(|| "enter the node's root".to_owned())?;
    rustix::process::pivot_root(".", ".").doing(|| "change to the node's root".to_owned())?;
    unmount(".", UnmountFlags::DETACH).doing(|| "leave the host's root".to_owned())?;
    std::env::set_current_dir("/").doing(|| "enter /".to_owned())?;
    Ok(())
}

//! A node's first processes: the launcher that creates the namespaces, and process 1 inside of them.
//!
//! When process 1 ends, the kernel ends all other processes of the node, so a reboot in the lab is a real one.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nvml_sim::fault::Effect;
use nvml_sim::store::Store;
use rustix::process::Signal;
use rustix::thread::UnshareFlags;
use serde_json::json;

use super::{files, mounts, ssh, units};
use crate::spec::{NodeSpec, SHARE, SshServer, ending};
use crate::{out, sys};

/// What failed during the start of a node.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
pub struct StartError {
    what: &'static str,
    source: io::Error,
}

fn to<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError { what, source: source.into() }
}

/// Creates the node's namespaces and runs its process 1. Returns how that ended.
pub fn launch(dir: &Path) -> Result<i32, StartError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(to("die with the lab"))?;
    let spec = NodeSpec::load(dir).map_err(to("read the node's description"))?;
    let flags = UnshareFlags::NEWPID | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    if spec.user_namespace {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        sys::unshare(UnshareFlags::NEWUSER).map_err(to("make a user namespace"))?;
        fs::write("/proc/self/setgroups", "deny")
            .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {uid} 1")))
            .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {gid} 1")))
            .map_err(to("become root of a user namespace"))?;
    }
    sys::unshare(flags).map_err(to("make namespaces (run as root, or allow user namespaces)"))?;
    let mut first = Command::new("/proc/self/exe")
        .arg("__init")
        .arg(dir)
        .stdin(Stdio::null())
        .spawn()
        .map_err(to("start the node's first process"))?;
    fs::write(dir.join("init.pid"), first.id().to_string()).map_err(to("note the first process"))?;
    let status = first.wait().map_err(to("wait for the first process"))?;
    let _ = fs::remove_file(dir.join("init.pid"));
    // A direct reboot(2) inside a process namespace ends its process 1 with one of these signals.
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (_, Some(libc::SIGHUP)) => ending::REBOOT,
        (_, Some(libc::SIGINT)) => ending::POWER_OFF,
        _ => ending::VANISHED,
    })
}

const SIGNALS: [i32; 5] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1];

/// Process 1 of a node.
pub fn init(dir: &Path) -> Result<i32, Box<dyn std::error::Error>> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    sys::block(&SIGNALS);
    let spec = NodeSpec::load(dir)?;
    let outside = Store::new(spec.state_file());
    let machine = outside.read()?;
    let faults = outside.node_faults();
    own_clock();
    // Here and not in the launcher, because a changed root affects all processes of the same mount namespace.
    sys::unshare(UnshareFlags::NEWNS).map_err(to("make a mount namespace"))?;
    mounts::enter(&spec, &machine, &faults)?;
    leave_the_host_alone();
    let _ = rustix::process::setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));

    let store = Store::new(nvml_sim::store::DEFAULT_STATE);
    store.log_event("boot", json!({"boot_id": machine.boot_id, "boots": machine.boots}));
    apply_sysctls();
    super::processors::boot();
    units::start_enabled();
    let mut server = if faults.contains(&Effect::RefuseSsh) {
        None
    } else {
        Some(start_ssh(&spec, &faults, machine.boots).map_err(to("start the SSH server"))?)
    };
    let end = faults.iter().find_map(|fault| match fault {
        Effect::VanishAfter(seconds) => Some((Instant::now() + Duration::from_secs(*seconds), false)),
        Effect::FreezeAfter(seconds) => Some((Instant::now() + Duration::from_secs(*seconds), true)),
        _ => None,
    });
    Ok(watch(&spec, &faults, &store, &mut server, end, machine.boots)
        .map_err(to("start the SSH server again"))?)
}

/// Waits for the end of the node: a reboot, a power-off, or a fault.
fn watch(
    spec: &NodeSpec,
    faults: &[Effect],
    store: &Store,
    server: &mut Option<Child>,
    end: Option<(Instant, bool)>,
    boots: u32,
) -> io::Result<i32> {
    // When the SSH server continues after a cut.
    let mut heals: Option<Instant> = None;
    loop {
        let next = end.map(|(at, _)| at).into_iter().chain(heals).min();
        let signal = match next {
            None => Some(sys::wait_signal(&SIGNALS)),
            Some(at) => sys::wait_signal_for(&SIGNALS, at.saturating_duration_since(Instant::now())),
        };
        if heals.is_some_and(|at| Instant::now() >= at) {
            heals = None;
            tell_ssh(server.as_ref(), Signal::CONT);
            store.log_event("healed", json!({}));
            if signal.is_none() {
                continue;
            }
        }
        match signal {
            None if end.is_none_or(|(at, _)| Instant::now() < at) => {}
            None if end.is_some_and(|(_, freeze)| freeze) => freeze_all(),
            None => return Ok(ending::VANISHED),
            Some(libc::SIGCHLD) => {
                while let Some((pid, _)) = sys::reap() {
                    if server.as_ref().is_some_and(|child| child.id() == pid as u32) {
                        out::error("the SSH server ended; starting it again");
                        *server = Some(start_ssh(spec, faults, boots)?);
                    }
                }
            }
            Some(libc::SIGUSR1) if store.beside("freeze").exists() => freeze_all(),
            Some(libc::SIGUSR1) if store.beside("cut").exists() => {
                let seconds = fs::read_to_string(store.beside("cut")).unwrap_or_default();
                let _ = fs::remove_file(store.beside("cut"));
                heals = Some(Instant::now() + Duration::from_secs(seconds.trim().parse().unwrap_or(0)));
                tell_ssh(server.as_ref(), Signal::STOP);
            }
            Some(libc::SIGUSR1) if store.beside("power-cut").exists() => {
                let _ = fs::remove_file(store.beside("power-cut"));
                return Ok(ending::REBOOT);
            }
            Some(libc::SIGUSR1) => return Ok(ending::VANISHED),
            Some(libc::SIGTERM) => return Ok(ending::POWER_OFF),
            Some(_) => {
                if faults.contains(&Effect::RebootIgnored) {
                    store.log_event("reboot ignored", json!({}));
                    continue;
                }
                store.log_event("shutdown", json!({}));
                // A program that requested it gets an answer, as on a real machine, which stops other services before
                // its SSH server.
                std::thread::sleep(Duration::from_millis(100));
                say_goodbye();
                if faults.contains(&Effect::ShutdownHangs) {
                    store.log_event("shutdown hangs", json!({}));
                    kill_all();
                    sleep_for_ever();
                }
                return Ok(ending::REBOOT);
            }
        }
    }
}

/// Sends SIGTERM to all processes, as a shutdown does, and gives them a moment to end.
fn say_goodbye() {
    let _ = rustix::process::kill_process(rustix::process::Pid::INIT, Signal::CONT);
    for pid in nvml_sim::holders::processes().into_iter().filter(|pid| *pid != 1) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
    let limit = Instant::now() + Duration::from_millis(200);
    while Instant::now() < limit && nvml_sim::holders::processes().len() > 1 {
        while sys::reap().is_some() {}
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Stops all processes forever: connections stay open, and nothing answers.
fn freeze_all() {
    for pid in nvml_sim::holders::processes().into_iter().filter(|pid| *pid != 1) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
            let _ = rustix::process::kill_process(pid, Signal::STOP);
        }
    }
    sleep_for_ever()
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn kill_all() {
    for pid in nvml_sim::holders::processes().into_iter().filter(|pid| *pid != 1) {
        if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Stops the SSH server with all its connections, or lets it continue. Commands that it started are left alone.
fn tell_ssh(server: Option<&Child>, signal: Signal) {
    let own = server.map(std::process::Child::id);
    let is_sshd = |pid: u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.starts_with("sshd:") || line.starts_with("/usr/sbin/sshd"))
    };
    for pid in nvml_sim::holders::processes() {
        if (Some(pid) == own || is_sshd(pid))
            && let Some(pid) = rustix::process::Pid::from_raw(pid as i32)
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Removes access to the host's kernel from the node's programs: its modules, clock, ports, network and log.
fn leave_the_host_alone() {
    use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
    for capability in [
        CapabilitySet::SYS_MODULE,
        CapabilitySet::SYS_TIME,
        CapabilitySet::SYS_RAWIO,
        CapabilitySet::NET_ADMIN,
        CapabilitySet::SYSLOG,
    ] {
        // Ignored, because without the right to do this the node has none of these either.
        let _ = remove_capability_from_bounding_set(capability);
    }
}

/// Gives the node's processes their own uptime. A kernel that cannot do this shows the host's.
fn own_clock() {
    let Ok(uptime) = fs::read_to_string("/proc/uptime") else { return };
    let Some(seconds) = uptime.split(['.', ' ']).next().and_then(|text| text.parse::<u64>().ok()) else {
        return;
    };
    if sys::unshare(UnshareFlags::from_bits_retain(libc::CLONE_NEWTIME as u32)).is_ok() {
        let _ = fs::write("/proc/self/timens_offsets", format!("boottime -{seconds} 0\n"));
    }
}

/// Applies the settings that survive a reboot, as systemd-sysctl does.
fn apply_sysctls() {
    let mut sources: Vec<PathBuf> = fs::read_dir("/etc/sysctl.d")
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    sources.sort();
    sources.push("/etc/sysctl.conf".into());
    for text in sources.iter().filter_map(|path| fs::read_to_string(path).ok()) {
        for (key, value) in crate::programs::sysctl::settings(&text) {
            let _ = fs::write(crate::programs::sysctl::file_of(&key), format!("{value}\n"));
        }
    }
}

fn start_ssh(spec: &NodeSpec, faults: &[Effect], boots: u32) -> io::Result<Child> {
    match spec.ssh_server {
        SshServer::Builtin => {
            let mut settings = ssh::Settings::of_node(spec, faults);
            settings.hang |= boots > 1 && faults.contains(&Effect::HangAfterBoot);
            let mut command = Command::new(format!("{SHARE}/gpufleet-lab"));
            command.arg("__sshd").env_clear().env("PATH", PATH).stdin(Stdio::piped());
            let mut child = sys::unblocked(&mut command).spawn()?;
            if let Some(stdin) = child.stdin.take() {
                serde_json::to_writer(stdin, &settings).map_err(io::Error::other)?;
            }
            Ok(child)
        }
        SshServer::Openssh => {
            let dir = Path::new("/run/sshd-lab");
            let key = dir.join("host_key");
            files::write(&key, &spec.host_key)?;
            fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
            files::write(&dir.join("authorized_keys"), &format!("{}\n", spec.authorized_key))?;
            let subsystem = if Path::new("/usr/lib/openssh/sftp-server").exists() {
                "Subsystem sftp /usr/lib/openssh/sftp-server\n"
            } else {
                ""
            };
            files::write(
                &dir.join("config"),
                &format!(
                    "ListenAddress 127.0.0.1\nPort {}\nHostKey {}\nAuthorizedKeysFile {}/authorized_keys\n\
                     PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n\
                     StrictModes no\nMaxStartups 500\nMaxSessions 100\nPrintMotd no\nAcceptEnv LANG LC_*\nPidFile none\n{subsystem}",
                    spec.port,
                    key.display(),
                    dir.display()
                ),
            )?;
            fs::create_dir_all("/run/sshd")?;
            let mut command = Command::new("/usr/sbin/sshd");
            command.args(["-D", "-e", "-f"]).arg(dir.join("config"));
            command.env_clear().env("PATH", PATH).stdin(Stdio::null());
            sys::unblocked(&mut command).spawn()
        }
    }
}

/// Where a node's processes look for programs.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

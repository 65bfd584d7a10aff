//! A fleet: its directory, its inventory, and one supervisor thread for each node.
//!
//! Owns everything outside of the nodes. A node's supervisor starts its process 1; when that ends, it applies the
//! effects of a reboot to the machine and starts it again after a while. If the lab dies for any reason, the kernel
//! ends the nodes too.

use std::fs;
use std::io::{self, Read as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpufleet_ports::{NoPort, Ports, ReservedPort};
use nvml_sim::fault::{Effect, Rule};
use nvml_sim::model::ModelKey;
use nvml_sim::state::Machine;
use nvml_sim::store::Store;

use crate::keys;
use crate::node::{files, ssh};
use crate::programs::modules::OnDisk;
use crate::rules::{self, Extras, RuleError, StateRule};
use crate::spec::{NodeSpec, SshServer, ending};
use crate::{power, restore};

/// The options of a fleet.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: usize,
    /// Models, assigned to the nodes in turn.
    pub gpus: Vec<ModelKey>,
    pub gpus_per_node: usize,
    pub dir: PathBuf,
    pub name_prefix: String,
    pub ssh_server: SshServer,
    pub boot_seconds: f64,
    pub seed_drift: bool,
    pub faults: Option<PathBuf>,
    pub states: Option<PathBuf>,
    pub nvml_library: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Rules(#[from] RuleError),
    #[error(
        "the simulated NVML library is not at {0}\nhelp: build it with `cargo build -p nvml-sim`, or name it with --nvml-lib"
    )]
    NoLibrary(PathBuf),
    #[error(
        "/usr/sbin/sshd is not installed\nhelp: install it (`apt-get install openssh-server`, `dnf install openssh-server`), or leave --sshd openssh out"
    )]
    NoSshd,
    #[error("{0} is not empty and no lab made it\nhelp: name an empty or a new directory with --dir")]
    ForeignDirectory(PathBuf),
    #[error("a lab with process id {pid} runs in {path}\nhelp: end that one first, or name another --dir")]
    Running { path: PathBuf, pid: u32 },
    #[error(
        "the path {0} holds a character (space, comma, colon, backslash) that a mount option cannot carry\nhelp: choose another --dir"
    )]
    UnfitPath(PathBuf),
    #[error("{node}: {message}")]
    State { node: String, message: String },
    #[error(transparent)]
    NoPort(#[from] NoPort),
    #[error("{node} did not come up; the end of its console:\n{tail}")]
    NotReady { node: String, tail: String },
}

fn io_at<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> LabError + 'a {
    move |source| LabError::Io { action, path: path.to_owned(), source }
}

const MARKER: &str = ".gpufleet-lab";
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A running fleet, which ends when dropped.
pub struct Fleet {
    dir: PathBuf,
    nodes: Vec<Supervised>,
    stop: Arc<Stop>,
}

struct Supervised {
    spec: NodeSpec,
    model: ModelKey,
    thread: Option<JoinHandle<()>>,
    _port: ReservedPort,
}

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Sleeps until the time is over or the fleet ends. Returns whether it ends.
    fn sleep(&self, time: Duration) -> bool {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, _) = self
            .changed
            .wait_timeout_while(asked, time, |asked| !*asked)
            .unwrap_or_else(PoisonError::into_inner);
        *asked
    }

    fn asked(&self) -> bool {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

impl Fleet {
    /// Creates the directory, starts the nodes and waits until each answers.
    pub fn start(options: &Options) -> Result<Self, LabError> {
        let fault_rules = options.faults.as_deref().map(rules::load_faults).transpose()?.unwrap_or_default();
        let state_rules = options.states.as_deref().map(rules::load_states).transpose()?.unwrap_or_default();
        if options.ssh_server == SshServer::Openssh && !Path::new("/usr/sbin/sshd").exists() {
            return Err(LabError::NoSshd);
        }
        let library = find_library(options.nvml_library.as_deref())?;
        let dir = claim_directory(&options.dir)?;
        let share = dir.join("share");
        make_share(&share, &library)?;
        make_sudo(&dir.join("private"))?;
        let login = dir.join("id_ed25519");
        let authorized_key = keys::write_pair(&login).map_err(io_at("write", &login))?;
        let mut fleet = Self { dir, nodes: Vec::new(), stop: Arc::default() };
        let mut ports = Ports::default();
        let mut known_hosts = String::new();
        let mut faults_of_nodes = Vec::new();
        for number in 0..options.nodes {
            let name = format!("{}{:03}", options.name_prefix, number + 1);
            let model =
                options.gpus.get(number % options.gpus.len().max(1)).copied().unwrap_or(ModelKey::H100);
            let (host_key, public) = keys::fresh(&name).map_err(io_at("make a host key in", &fleet.dir))?;
            let port = ports.reserve()?;
            let spec = NodeSpec {
                dir: fleet.dir.join("nodes").join(&name),
                name,
                share: share.clone(),
                port: port.number(),
                ssh_server: options.ssh_server,
                host_key,
                authorized_key: authorized_key.clone(),
                boot_seconds: options.boot_seconds,
                user_namespace: !rustix::process::geteuid().is_root(),
            };
            let faults = rules::faults_of(&fault_rules, &spec.name);
            create_node(&spec, model, number, options, &state_rules, &faults)?;
            let changed = faults.iter().any(|rule| rule.effect == Effect::HostKeyChanged);
            let shown = if changed {
                keys::fresh("old").map_err(io_at("make a key in", &fleet.dir))?.1
            } else {
                public
            };
            known_hosts += &format!("[127.0.0.1]:{} {}\n", spec.port, key_part(&shown));
            faults_of_nodes.push(faults);
            fleet.nodes.push(Supervised { spec, model, thread: None, _port: port });
        }
        let path = fleet.dir.join("known_hosts");
        fs::write(&path, known_hosts).map_err(io_at("write", &path))?;
        fleet.write_inventory()?;
        for node in &mut fleet.nodes {
            let (spec, stop) = (node.spec.clone(), Arc::clone(&fleet.stop));
            node.thread = Some(std::thread::spawn(move || supervise(&spec, &stop)));
        }
        let limit = Instant::now() + READY_LIMIT;
        for (node, faults) in fleet.nodes.iter().zip(&faults_of_nodes) {
            if !faults.iter().any(|rule| is_deaf(&rule.effect)) {
                wait_ready(node, limit)?;
            }
        }
        Ok(fleet)
    }

    pub fn inventory(&self) -> PathBuf {
        self.dir.join("inventory.yaml")
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn write_inventory(&self) -> Result<(), LabError> {
        let user = if rustix::process::geteuid().is_root() || !self.nodes.is_empty() { "root" } else { "" };
        let mut hosts = String::new();
        let mut groups: Vec<(String, String)> = Vec::new();
        let mut ssh_config = String::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let (name, port) = (&node.spec.name, node.spec.port);
            let rack = format!("rack{}", number / 4 + 1);
            let model = node.model.as_str().split('-').next().unwrap_or_default().to_owned();
            hosts +=
                &format!("    {name}: {{ansible_host: 127.0.0.1, ansible_port: {port}, rack: {rack}}}\n");
            for group in [model, rack] {
                match groups.iter_mut().find(|(known, _)| *known == group) {
                    Some((_, members)) => *members += &format!("        {name}:\n"),
                    None => groups.push((group, format!("        {name}:\n"))),
                }
            }
            ssh_config += &format!("Host {name}\n  HostName 127.0.0.1\n  Port {port}\n");
        }
        let groups: String =
            groups.iter().map(|(name, members)| format!("    {name}:\n      hosts:\n{members}")).collect();
        self.write("inventory.yaml", &inventory_text(&self.dir, user, &hosts, &groups))?;
        self.write(
            "ssh_config",
            &format!(
                "{ssh_config}Host *\n  User {user}\n  IdentityFile {dir}/id_ed25519\n  IdentitiesOnly yes\n  \
                 UserKnownHostsFile {dir}/known_hosts\n  StrictHostKeyChecking yes\n  LogLevel ERROR\n",
                dir = self.dir.display()
            ),
        )
    }

    fn write(&self, name: &str, text: &str) -> Result<(), LabError> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(io_at("write", &path))
    }

    /// Ends every node and waits until no process of it is left.
    pub fn stop(&mut self) {
        self.stop.ask();
        for node in &self.nodes {
            kill_node(&node.spec.dir);
        }
        for node in &mut self.nodes {
            // In a loop, because a node that was just starting may have got its process 1 after the first kill.
            while let Some(thread) = node.thread.take() {
                if thread.is_finished() {
                    let _ = thread.join();
                } else {
                    kill_node(&node.spec.dir);
                    std::thread::sleep(Duration::from_millis(2));
                    node.thread = Some(thread);
                }
            }
        }
        let _ = fs::remove_file(self.dir.join(MARKER).join("pid"));
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop();
    }
}

fn inventory_text(dir: &Path, user: &str, hosts: &str, groups: &str) -> String {
    let dir = dir.display();
    let children = if groups.is_empty() { String::new() } else { format!("  children:\n{groups}") };
    format!(
        "# Written by gpufleet-lab; true while the lab runs.\ngpu:\n  hosts:\n{hosts}  vars:\n    ansible_user: {user}\n    \
         ansible_ssh_private_key_file: {dir}/id_ed25519\n    \
         ansible_ssh_common_args: \"-o UserKnownHostsFile={dir}/known_hosts\"\n{children}"
    )
}

fn key_part(public: &str) -> String {
    public.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// Whether a node with this fault will never answer.
fn is_deaf(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::RefuseSsh | Effect::HangHandshake | Effect::VanishAfter(0) | Effect::FreezeAfter(0)
    )
}

fn find_library(named: Option<&Path>) -> Result<PathBuf, LabError> {
    if let Some(path) = named {
        return if path.is_file() { Ok(path.to_owned()) } else { Err(LabError::NoLibrary(path.to_owned())) };
    }
    let exe = std::env::current_exe().map_err(io_at("find", Path::new("this program")))?;
    let beside = exe.with_file_name("libnvml_sim.so");
    // The second, because a library that was built only for this program is among the dependencies. The newer one is
    // used.
    [beside.clone(), exe.with_file_name("deps").join("libnvml_sim.so")]
        .into_iter()
        .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
        .max()
        .map(|(_, path)| path)
        .ok_or(LabError::NoLibrary(beside))
}

/// Takes a directory for the lab: a new one, an empty one, or one of an earlier lab.
fn claim_directory(path: &Path) -> Result<PathBuf, LabError> {
    fs::create_dir_all(path).map_err(io_at("make", path))?;
    let path = path.canonicalize().map_err(io_at("find", path))?;
    if path.to_string_lossy().contains([' ', ',', ':', '\\', '\n', '"']) {
        return Err(LabError::UnfitPath(path));
    }
    let marker = path.join(MARKER);
    if marker.is_dir() {
        let running = fs::read_to_string(marker.join("pid")).ok().and_then(|text| text.trim().parse().ok());
        if let Some(pid) = running.filter(|pid| *pid != std::process::id() && nvml_sim::holders::alive(*pid))
        {
            return Err(LabError::Running { path, pid });
        }
        for part in ["nodes", "share", "private"] {
            let old = path.join(part);
            if old.exists() {
                fs::remove_dir_all(&old).map_err(io_at("clear", &old))?;
            }
        }
    } else if fs::read_dir(&path).map_err(io_at("read", &path))?.next().is_some() {
        return Err(LabError::ForeignDirectory(path));
    }
    fs::create_dir_all(&marker).map_err(io_at("make", &marker))?;
    fs::write(marker.join("pid"), std::process::id().to_string()).map_err(io_at("write", &marker))?;
    Ok(path)
}

fn make_share(share: &Path, library: &Path) -> Result<(), LabError> {
    fs::create_dir_all(share).map_err(io_at("make", share))?;
    let program = share.join("gpufleet-lab");
    let exe = std::env::current_exe().map_err(io_at("find", Path::new("this program")))?;
    fs::hard_link(&exe, &program)
        .or_else(|_| fs::copy(lab_program(), &program).map(|_| ()))
        .map_err(io_at("copy the lab's program to", &program))?;
    let target = share.join("libnvidia-ml.so.1");
    fs::copy(library, &target).map_err(io_at("copy the library to", &target))?;
    for (name, driver) in [("units", true), ("units-bare", false)] {
        let units = share.join(name);
        crate::node::units::write_vendor_units(&units, driver).map_err(io_at("write units to", &units))?;
    }
    let settings = share.join("proc-sys");
    files::copy_kernel_settings(&settings).map_err(io_at("copy kernel settings to", &settings))
}

/// Creates a setuid copy of the program for the nodes' `sudo`, if the host has none. Only root can enter its
/// directory.
fn make_sudo(private: &Path) -> Result<(), LabError> {
    use std::os::unix::fs::PermissionsExt as _;
    if !rustix::process::geteuid().is_root() || Path::new("/usr/bin/sudo").exists() {
        return Ok(());
    }
    fs::create_dir_all(private).map_err(io_at("make", private))?;
    fs::set_permissions(private, fs::Permissions::from_mode(0o700)).map_err(io_at("close", private))?;
    let sudo = private.join("sudo");
    fs::copy(lab_program(), &sudo)
        .and_then(|_| fs::set_permissions(&sudo, fs::Permissions::from_mode(0o4755)))
        .map_err(io_at("make", &sudo))
}

/// Returns the lab's own program as it was started; a newer build may have replaced the file.
fn lab_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

fn create_node(
    spec: &NodeSpec,
    model: ModelKey,
    number: usize,
    options: &Options,
    states: &[StateRule],
    faults: &[Rule],
) -> Result<(), LabError> {
    fs::create_dir_all(&spec.dir).map_err(io_at("make", &spec.dir))?;
    let models = vec![model; options.gpus_per_node];
    let mut machine = Machine::new(&spec.name, &models, uuid::Uuid::new_v4().to_string());
    let mut extras = if options.seed_drift { rules::drift(number, &mut machine) } else { Extras::default() };
    let more = rules::apply_states(states, &mut machine)
        .map_err(|message| LabError::State { node: spec.name.clone(), message })?;
    extras.enable.extend(more.enable);
    extras.sysctl.extend(more.sysctl);
    let node_faults: Vec<Effect> = faults
        .iter()
        .filter(|r| r.concerns(nvml_sim::fault::Subject::Node))
        .map(|r| r.effect.clone())
        .collect();
    if node_faults.contains(&Effect::LibMismatch) {
        machine.library_version = "580.173.02".to_owned();
    }
    files::create(spec, &node_faults).map_err(io_at("fill", &spec.dir))?;
    for unit in &extras.enable {
        let name = crate::node::units::full_name(unit);
        let wants = spec.dir.join("units/multi-user.target.wants");
        std::os::unix::fs::symlink(Path::new("/usr/lib/systemd/system").join(&name), wants.join(&name))
            .or_else(|error| if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
            .map_err(io_at("enable a unit in", &wants))?;
    }
    if !extras.sysctl.is_empty() {
        let path = spec.dir.join("sysctl.d/10-drift.conf");
        let text: String = extras.sysctl.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        fs::write(&path, text).map_err(io_at("write", &path))?;
    }
    let store = Store::new(spec.state_file());
    let failed = |error: nvml_sim::store::StoreError| LabError::State {
        node: spec.name.clone(),
        message: error.to_string(),
    };
    store.create(&machine).map_err(failed)?;
    store.set_faults(faults).map_err(failed)?;
    restore::keep(&spec.dir).map_err(io_at("keep a copy of", &spec.dir))?;
    spec.save().map_err(io_at("write", &spec.dir))
}

fn wait_ready(node: &Supervised, limit: Instant) -> Result<(), LabError> {
    let spec = &node.spec;
    let gave_up = || node.thread.as_ref().is_some_and(JoinHandle::is_finished);
    while Instant::now() < limit && !gave_up() {
        if speaks_ssh(spec.port) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let console = spec.dir.join("console.log");
    let text = fs::read_to_string(&console).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines.get(lines.len().saturating_sub(2)..).unwrap_or_default().join("\n");
    Err(LabError::NotReady { node: spec.name.clone(), tail })
}

pub fn speaks_ssh(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    let mut start = [0; 4];
    stream.read_exact(&mut start).is_ok() && &start == b"SSH-"
}

/// Ends a node by its process 1.
pub fn kill_node(dir: &Path) {
    let pid = fs::read_to_string(dir.join("init.pid")).ok().and_then(|text| text.trim().parse().ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Runs one node: boot, wait for its end, reboot or not. A node that is gone for good waits for its restoration.
fn supervise(spec: &NodeSpec, stop: &Stop) {
    let store = Store::new(spec.state_file());
    let console = spec.dir.join("console.log");
    let mut failures = 0;
    while !stop.asked() {
        let faults = store.node_faults();
        let Ok(machine) = store.read() else { break };
        if let Err(error) = files::prepare_boot(spec, &machine, &faults) {
            note(&console, &format!("cannot prepare the boot: {error}"));
            break;
        }
        let code = boot(spec, &console);
        let returns = match code {
            _ if switched(&spec.dir) => true,
            ending::REBOOT => {
                failures = 0;
                let _ = store.update(|machine| {
                    reboot(machine, &faults);
                    load_driver(spec, machine);
                });
                let seconds =
                    faults.iter().find_map(|f| if let Effect::BootSeconds(s) = f { Some(*s) } else { None });
                let pause =
                    Duration::from_secs_f64(seconds.unwrap_or(spec.boot_seconds).clamp(0.0, 86_400.0));
                !faults.contains(&Effect::NeverBoot) && !away(spec, stop, pause)
            }
            ending::POWER_OFF | ending::VANISHED => false,
            other => {
                note(&console, &format!("the node's first process ended with {other}"));
                failures += 1;
                if failures >= 3 || stop.sleep(Duration::from_millis(200)) {
                    break;
                }
                true
            }
        };
        if !returns && !switched(&spec.dir) && away(spec, stop, Duration::MAX) {
            break;
        }
        if power::asked(&spec.dir) {
            failures = 0;
            let _ = store.update(|machine| {
                machine.reboot(uuid::Uuid::new_v4().to_string());
                load_driver(spec, machine);
            });
            if let Err(error) = power::seen(&spec.dir) {
                note(&console, &format!("cannot be switched on: {error}"));
                break;
            }
        }
        if restore::asked(&spec.dir)
            && let Err(error) = restore::put_back(&spec.dir)
        {
            note(&console, &format!("cannot restore the node: {error}"));
            break;
        }
    }
}

/// Whether the node is to be restored or switched off and on.
fn switched(dir: &Path) -> bool {
    restore::asked(dir) || power::asked(dir)
}

/// Waits until the time is over, or the node is to be restored or switched on. Returns whether the fleet ends.
fn away(spec: &NodeSpec, stop: &Stop, time: Duration) -> bool {
    const LOOK: Duration = Duration::from_millis(20);
    let begin = Instant::now();
    while begin.elapsed() < time && !switched(&spec.dir) {
        if stop.sleep(LOOK.min(time - begin.elapsed().min(time))) {
            return true;
        }
    }
    stop.asked()
}

/// Loads the driver that the node's packages brought, as a boot does.
fn load_driver(spec: &NodeSpec, machine: &mut Machine) {
    match OnDisk::of(&spec.upper()) {
        Some(disk) => disk.boot(machine),
        None => machine.driver_loaded = false,
    }
}

/// Applies a reboot to a machine, with the node's faults.
fn reboot(machine: &mut Machine, faults: &[Effect]) {
    let before = machine.clone();
    machine.reboot(uuid::Uuid::new_v4().to_string());
    for fault in faults {
        match fault {
            Effect::SameBootId => machine.boot_id.clone_from(&before.boot_id),
            Effect::GpuMissing(index) if *index < machine.gpus.len() => {
                machine.gpus.remove(*index);
            }
            Effect::MigStaysPending => {
                for gpu in &mut machine.gpus {
                    if let Some(old) =
                        before.gpus.iter().find(|old| old.uuid == gpu.uuid && old.mig.is_pending())
                    {
                        gpu.mig = old.mig;
                    }
                }
            }
            _ => {}
        }
    }
}

fn boot(spec: &NodeSpec, console: &Path) -> i32 {
    let log = || {
        fs::File::options()
            .create(true)
            .append(true)
            .open(console)
            .map_or_else(|_| Stdio::null(), Stdio::from)
    };
    let mut command = Command::new(lab_program());
    command.arg("__node").arg(&spec.dir).stdin(Stdio::null()).stdout(log()).stderr(log()).current_dir("/");
    let child = crate::sys::unblocked(&mut command).spawn();
    match child.and_then(|mut child| child.wait()) {
        Ok(status) => status.code().unwrap_or(ending::VANISHED),
        Err(error) => {
            note(console, &format!("cannot start the node: {error}"));
            1
        }
    }
}

fn note(console: &Path, text: &str) {
    use std::io::Write as _;
    let _ = fs::File::options()
        .create(true)
        .append(true)
        .open(console)
        .and_then(|mut file| writeln!(file, "gpufleet-lab: {text}"));
}

/// Serves this machine itself, as the calling user, under the name `real`. Returns the inventory's path.
pub fn serve_real_host(dir: &Path) -> Result<PathBuf, LabError> {
    let dir = claim_directory(dir)?;
    let login = dir.join("id_ed25519");
    let authorized_key = keys::write_pair(&login).map_err(io_at("write", &login))?;
    let (host_key, public) = keys::fresh("real").map_err(io_at("make a host key in", &dir))?;
    let reserved = Ports::default().reserve()?;
    let port = reserved.number();
    let settings = ssh::Settings {
        port,
        host_key,
        authorized_key,
        banner: None,
        noise: None,
        hang: false,
        refuse_keys: false,
        as_invoking_user: true,
    };
    std::thread::spawn(move || {
        let _reserved = reserved;
        if let Err(error) = ssh::serve(settings) {
            crate::out::error(format!("gpufleet-lab: the SSH server ended: {error}"));
        }
    });
    let user = ssh::invoking_user();
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).map_err(io_at("write", &path))
    };
    write("known_hosts", format!("[127.0.0.1]:{port} {}\n", key_part(&public)))?;
    let hosts = format!("    real: {{ansible_host: 127.0.0.1, ansible_port: {port}}}\n");
    write("inventory.yaml", inventory_text(&dir, &user, &hosts, ""))?;
    write(
        "ssh_config",
        format!(
            "Host real\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {dir}/id_ed25519\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile {dir}/known_hosts\n  StrictHostKeyChecking yes\n",
            dir = dir.display()
        ),
    )?;
    let limit = Instant::now() + Duration::from_secs(10);
    while !speaks_ssh(port) && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(dir.join("inventory.yaml"))
}

#[cfg(test)]
mod tests {
    use nvml_sim::state::Staged;

    use super::*;

    #[test]
    fn a_faulty_reboot_changes_what_the_fault_says() {
        let machine = || {
            let mut machine = Machine::new("gpu001", &[ModelKey::A100; 2], "old".to_owned());
            machine.gpus[1].mig = Staged { current: false, pending: true };
            machine
        };
        let after = |faults: &[Effect]| {
            let mut machine = machine();
            reboot(&mut machine, faults);
            machine
        };
        let sound = after(&[]);
        assert!(sound.boot_id != "old" && sound.gpus[1].mig == Staged::settled(true));
        assert_eq!(after(&[Effect::SameBootId]).boot_id, "old");
        assert!(after(&[Effect::MigStaysPending]).gpus[1].mig.is_pending());
        let missing = after(&[Effect::GpuMissing(0)]);
        assert_eq!((missing.gpus.len(), missing.gpus[0].minor), (1, 1));
        assert_eq!(after(&[Effect::GpuMissing(7)]).gpus.len(), 2);
    }
}

//! A real Slurm cluster on this machine: its own munged, one slurmctld and a slurmd for each node, all on loopback.
//!
//! Owns the folder, the ports and the processes; several clusters can run at once. Invariant: only processes that
//! this value started are signalled.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use gpufleet::drain::{Call, LocalRunner, Output, RunError, Runner};
use gpufleet_ports::{Ports, ReservedPort};
use tempfile::TempDir;

/// Time limit for any step of the cluster.
const PATIENCE: Duration = Duration::from_secs(120);

/// The options of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions {
    pub nodes: usize,
    /// Slurm's setting for a node that was down and registers.
    pub return_to_service: u8,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { nodes: 2, return_to_service: 0 }
    }
}

/// The running cluster; its nodes are `gpu1`, `gpu2` and so on.
pub struct Cluster {
    folder: TempDir,
    munged: Child,
    controller: Mutex<Option<Child>>,
    /// Locked, because a test restarts them while others read.
    nodes: Vec<Mutex<Option<Child>>>,
    /// Reserved as long as the cluster exists, because its daemons come and go.
    _ports: Vec<ReservedPort>,
}

impl Cluster {
    /// Starts all daemons and waits until every node is idle.
    ///
    /// # Panics
    /// If a daemon is missing or does not come up, with the end of its log.
    pub fn start(options: ClusterOptions) -> Self {
        let folder = TempDir::with_prefix("gfslurm").expect("a folder for the cluster");
        let path = folder.path();
        for name in ["log", "spool", "state", "munge"] {
            std::fs::create_dir(path.join(name)).expect("a folder of the cluster");
        }
        // Daemons refuse a socket in a folder that others cannot enter, and a key that others can read.
        for (name, mode) in [("", 0o755), ("munge", 0o755), ("state", 0o700)] {
            std::fs::set_permissions(path.join(name), std::fs::Permissions::from_mode(mode)).expect("a mode");
        }
        let key = path.join("munge/key");
        let mut random = vec![0_u8; 128];
        std::io::Read::read_exact(
            &mut std::fs::File::open("/dev/urandom").expect("random bytes"),
            &mut random,
        )
        .expect("random bytes");
        std::fs::write(&key, random).expect("the key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("the key's mode");
        let mut free = Ports::default();
        let ports: Vec<ReservedPort> =
            (0..=options.nodes).map(|_| free.reserve().expect("a free port")).collect();
        configure(path, options, &ports);
        let file = |name: &str| path.join("munge").join(name).display().to_string();
        let munged = daemon(
            "munged",
            &[
                "--foreground".to_owned(),
                "--force".to_owned(),
                format!("--key-file={}", file("key")),
                format!("--socket={}", file("sock")),
                format!("--pid-file={}", file("pid")),
                format!("--log-file={}", file("log")),
                format!("--seed-file={}", file("seed")),
            ],
            path,
        );
        let cluster = Self {
            folder,
            munged,
            controller: Mutex::default(),
            nodes: (0..options.nodes).map(|_| Mutex::default()).collect(),
            _ports: ports,
        };
        let socket = cluster.path().join("munge/sock");
        cluster.wait("munged's socket", || socket.exists());
        cluster.start_controller();
        for node in 1..=options.nodes {
            cluster.start_node(node, false);
        }
        cluster.wait("idle nodes", || (1..=options.nodes).all(|node| cluster.state(node) == "IDLE"));
        cluster
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a runner for Slurm's programs on this cluster.
    pub fn runner(&self) -> ClusterRunner {
        ClusterRunner { conf: self.conf() }
    }

    /// Runs one of Slurm's programs as an administrator, and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn admin(&self, argv: &[&str]) -> String {
        let output = self.tried(argv);
        assert!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns one line of `scontrol show node`, for messages and conditions.
    pub fn show(&self, node: usize) -> String {
        String::from_utf8_lossy(
            &self.tried(&["scontrol", "show", "node", "-o", &format!("gpu{node}")]).stdout,
        )
        .trim()
        .to_owned()
    }

    /// Returns the value of `State=`.
    pub fn state(&self, node: usize) -> String {
        let line = self.show(node);
        line.split_whitespace().find_map(|word| word.strip_prefix("State=")).unwrap_or_default().to_owned()
    }

    /// Submits a job to one node and waits until it runs. Returns its number.
    pub fn run_job(&self, node: usize, script: &str) -> String {
        let file = self.path().join("log/job-%j.out").display().to_string();
        let id =
            self.admin(&["sbatch", "--parsable", "-w", &format!("gpu{node}"), "-o", &file, "--wrap", script]);
        self.wait("the job to run", || self.admin(&["squeue", "-h", "-j", &id, "-o", "%T"]) == "RUNNING");
        id
    }

    pub fn start_controller(&self) {
        *held(&self.controller) = Some(daemon("slurmctld", &["-D".to_owned()], self.folder.path()));
    }

    pub fn stop_controller(&self) {
        end(&mut held(&self.controller));
    }

    /// Starts a node's slurmd; with `rebooted` it reports that the node has just booted.
    pub fn start_node(&self, node: usize, rebooted: bool) {
        let mut arguments = vec!["-D".to_owned(), "-N".to_owned(), format!("gpu{node}")];
        arguments.extend(rebooted.then(|| "-b".to_owned()));
        *held(&self.nodes[node - 1]) = Some(daemon("slurmd", &arguments, self.folder.path()));
    }

    pub fn stop_node(&self, node: usize) {
        end(&mut held(&self.nodes[node - 1]));
    }

    /// Waits for a condition.
    ///
    /// # Panics
    /// If it does not hold in time, with the cluster's state.
    pub fn wait(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "no {what}:\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn logs(&self) -> String {
        let mut text = String::new();
        for node in 1..=self.nodes.len() {
            let _ = writeln!(text, "{}", self.show(node));
        }
        for entry in std::fs::read_dir(self.path().join("log")).into_iter().flatten().flatten() {
            let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(15)..].join("\n");
            let _ = writeln!(text, "--- {}\n{end}", entry.path().display());
        }
        text
    }

    /// Returns the path for `SLURM_CONF`.
    pub fn conf(&self) -> PathBuf {
        self.path().join("slurm.conf")
    }

    /// Returns slurmctld's own record of drains, in order.
    pub fn drains(&self) -> Drains {
        let log = std::fs::read_to_string(self.path().join("log/slurmctld.log")).unwrap_or_default();
        Drains::read(&log)
    }

    /// Returns when slurmctld set a node to a state without a drain, by its log: civil time.
    pub fn resumes(&self, node: usize) -> Vec<String> {
        let log = std::fs::read_to_string(self.path().join("log/slurmctld.log")).unwrap_or_default();
        let set = format!("update_node: node gpu{node} state set to ");
        let states = log.lines().filter_map(|line| line.split_once(&set));
        let resumes = states.filter(|(_, state)| !state.contains("DRAIN") && !state.contains("DOWN"));
        resumes.map(|(time, _)| time.trim().trim_matches(['[', ']']).to_owned()).collect()
    }

    /// Whether the node's slurmd was told to reboot it since the last call.
    pub fn takes_order(&self, node: usize) -> bool {
        std::fs::remove_file(self.path().join(format!("reboot.gpu{node}"))).is_ok()
    }

    fn tried(&self, argv: &[&str]) -> std::process::Output {
        Command::new("timeout")
            .arg("20")
            .args(argv)
            .env("SLURM_CONF", self.conf())
            .stdin(Stdio::null())
            .output()
            .expect("timeout runs")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if held(&self.controller).is_some() {
            let _ = self.tried(&["scancel", "--user=root"]);
            let deadline = Instant::now() + Duration::from_secs(8);
            while Instant::now() < deadline && !self.tried(&["squeue", "-h"]).stdout.is_empty() {
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        for node in &self.nodes {
            end(&mut held(node));
        }
        end(&mut held(&self.controller));
        let _ = self.munged.kill();
        let _ = self.munged.wait();
    }
}

/// Drains in slurmctld's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    /// Largest number of nodes that were drained at the same time.
    pub most: usize,
    /// How often each was drained.
    pub times: BTreeMap<String, usize>,
    /// The nodes that are drained at the end.
    pub left: BTreeSet<String>,
}

impl Drains {
    /// Parses lines such as `update_node: node gpu1 state set to DRAINING`.
    fn read(log: &str) -> Self {
        let mut drains = Self::default();
        for line in log.lines() {
            let Some((_, rest)) = line.split_once("update_node: node ") else { continue };
            let Some((node, state)) = rest.split_once(" state set to ") else { continue };
            if !state.contains("DRAIN") {
                drains.left.remove(node);
            } else if drains.left.insert(node.to_owned()) {
                *drains.times.entry(node.to_owned()).or_default() += 1;
            }
            drains.most = drains.most.max(drains.left.len());
        }
        drains
    }
}

/// Runs programs with the cluster's configuration in their environment.
pub struct ClusterRunner {
    conf: PathBuf,
}

impl Runner for ClusterRunner {
    fn place(&self) -> String {
        String::new()
    }

    fn run(&self, mut call: Call) -> BoxFuture<'_, Result<Output, RunError>> {
        call.env.push(("SLURM_CONF".to_owned(), self.conf.display().to_string()));
        Box::pin(async move { LocalRunner.run(call).await })
    }
}

fn daemon(program: &str, arguments: &[String], folder: &Path) -> Child {
    let log = std::fs::File::create(folder.join("log").join(
        format!("{program}.{}", arguments.join(".")).replace('/', "_").chars().take(80).collect::<String>(),
    ))
    .expect("a log");
    Command::new(program)
        .args(arguments)
        .env("SLURM_CONF", folder.join("slurm.conf"))
        // The reboot program does not get the name of its node.
        .env(
            "REBOOTED_NODE",
            arguments.iter().find(|word| word.starts_with("gpu")).map_or("none", String::as_str),
        )
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log"))
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{program} cannot be started ({error}): type `make test-systems`"))
}

fn held(child: &Mutex<Option<Child>>) -> MutexGuard<'_, Option<Child>> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a process, after a while by force.
fn end(child: &mut Option<Child>) {
    let Some(mut child) = child.take() else { return };
    let _ = Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status();
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Writes the configuration; the first port is slurmctld's.
fn configure(folder: &Path, options: ClusterOptions, ports: &[ReservedPort]) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("the host's name");
    let host = host.trim().split('.').next().unwrap_or_default().to_owned();
    let path = folder.display();
    let mut conf = format!(
        "ClusterName=gpufleet
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={}
SlurmctldPidFile={path}/slurmctld.pid
SlurmdPidFile={path}/slurmd.%n.pid
SlurmctldLogFile={path}/log/slurmctld.log
SlurmdLogFile={path}/log/slurmd.%n.log
SlurmdSpoolDir={path}/spool/%n
StateSaveLocation={path}/state
AuthType=auth/munge
AuthInfo=socket={path}/munge/sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
ReturnToService={}
SlurmdTimeout=10
ResumeTimeout=60
SlurmctldTimeout=10
InactiveLimit=0
KillWait=3
MinJobAge=300
RebootProgram={path}/reboot
TreeWidth=64
",
        ports[0].number(),
        options.return_to_service
    );
    for (index, port) in ports.iter().map(ReservedPort::number).enumerate().skip(1) {
        let _ = writeln!(
            conf,
            "NodeName=gpu{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1024 State=UNKNOWN"
        );
    }
    let _ = writeln!(
        conf,
        "PartitionName=train Nodes=gpu[1-{}] Default=YES MaxTime=INFINITE State=UP",
        options.nodes
    );
    std::fs::write(folder.join("slurm.conf"), conf).expect("slurm.conf");
    std::fs::write(folder.join("cgroup.conf"), "CgroupAutomount=no\n").expect("cgroup.conf");
    let reboot = folder.join("reboot");
    std::fs::write(
        &reboot,
        format!("#!/bin/sh\ntouch {path}/reboot.requested {path}/reboot.$REBOOTED_NODE\n"),
    )
    .expect("the reboot program");
    std::fs::set_permissions(&reboot, std::fs::Permissions::from_mode(0o755)).expect("its mode");
}

//! A fleet of the lab, started for one test and ended with it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::binary;

/// Time limit for a fleet to be ready, and to end.
const READY: Duration = Duration::from_secs(90);
const END: Duration = Duration::from_secs(20);

/// The options of a fleet.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    pub nodes: usize,
    /// Models, assigned to the nodes in turn.
    pub gpus: &'static str,
    pub gpus_per_node: usize,
    pub drift: bool,
    pub openssh: bool,
    pub boot_seconds: f64,
    /// Fault rules in YAML; tests/lab/README.md describes them.
    pub faults: String,
    /// Rules for initial states, in YAML.
    pub states: String,
}

impl Default for FleetOptions {
    fn default() -> Self {
        Self {
            nodes: 2,
            gpus: "h100-80gb",
            gpus_per_node: 2,
            drift: false,
            openssh: false,
            boot_seconds: 0.5,
            faults: String::new(),
            states: String::new(),
        }
    }
}

/// A running fleet.
pub struct Fleet {
    process: Child,
    dir: tempfile::TempDir,
}

impl Fleet {
    /// Starts a fleet and waits until it is ready.
    ///
    /// # Panics
    /// If the lab cannot run on this machine, with its output.
    pub fn start(options: &FleetOptions) -> Self {
        let dir = tempfile::Builder::new().prefix("gpufleet-lab-").tempdir().expect("a temporary folder");
        let mut command = Command::new(binary("gpufleet-lab"));
        command
            .arg("up")
            .args(["--nodes", &options.nodes.to_string(), "--gpu", options.gpus])
            .args(["--gpus-per-node", &options.gpus_per_node.to_string()])
            .args(["--boot-seconds", &options.boot_seconds.to_string()])
            .arg("--dir")
            .arg(dir.path().join("fleet"));
        for (flag, text) in [("--faults", &options.faults), ("--state", &options.states)] {
            if !text.is_empty() {
                let path = dir.path().join(format!("{}.yaml", flag.trim_start_matches('-')));
                std::fs::write(&path, text).expect("a file of rules");
                command.arg(flag).arg(path);
            }
        }
        if options.drift {
            command.arg("--seed-drift");
        }
        if options.openssh {
            command.args(["--sshd", "openssh"]);
        }
        let errors = dir.path().join("lab.err");
        let log = std::fs::File::create(&errors).expect("a log");
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the lab's program starts");
        let output = process.stdout.take().expect("a pipe");
        let (sender, first_line) = mpsc::channel();
        std::thread::spawn(move || {
            // All of it is read, because a full pipe would stop the lab.
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let fleet = Self { process, dir };
        let ready = first_line.recv_timeout(READY);
        if ready.as_deref() != Ok("ready") {
            let said = std::fs::read_to_string(&errors).unwrap_or_default();
            panic!("the lab is not ready: {ready:?}\n{said}");
        }
        fleet
    }

    pub fn dir(&self) -> PathBuf {
        self.dir.path().join("fleet")
    }

    pub fn inventory(&self) -> String {
        self.dir().join("inventory.yaml").display().to_string()
    }

    /// Returns the file with the host keys of the inventory's nodes.
    pub fn known_hosts(&self) -> PathBuf {
        self.dir().join("known_hosts")
    }

    fn node(&self, name: &str) -> PathBuf {
        self.dir().join("nodes").join(name)
    }

    /// Returns the state of a node's machine.
    pub fn machine(&self, name: &str) -> Value {
        let text =
            std::fs::read_to_string(self.node(name).join("state/node.json")).expect("the state of a node");
        serde_json::from_str(&text).expect("JSON")
    }

    pub fn boot_id(&self, name: &str) -> String {
        self.machine(name)["boot_id"].as_str().unwrap_or_default().to_owned()
    }

    fn log(&self, node: &str, file: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.node(node).join(file)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns every call that set something on a node's GPUs.
    pub fn setters(&self, node: &str) -> Vec<Value> {
        self.log(node, "setters.jsonl")
    }

    /// Returns boots, resets, and changes by systemctl.
    pub fn events(&self, node: &str) -> Vec<Value> {
        self.log(node, "events.jsonl")
    }

    pub fn boots(&self, node: &str) -> usize {
        self.events(node).iter().filter(|event| event["what"] == "boot").count()
    }

    /// Returns the path in the node's own layer, which holds what was written there.
    pub fn upper(&self, node: &str, path: &str) -> PathBuf {
        self.node(node).join("upper").join(path.trim_start_matches('/'))
    }

    /// Returns the text of a file that the node wrote.
    pub fn text(&self, node: &str, path: &str) -> Option<String> {
        std::fs::read_to_string(self.upper(node, path)).ok()
    }

    /// Runs `gpusimctl` in a node and returns its output.
    #[track_caller]
    pub fn control(&self, node: &str, arguments: &[&str]) -> String {
        let output = Command::new(binary("gpufleet-lab"))
            .args(["ctl", "--dir"])
            .arg(self.dir())
            .arg(node)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("the lab's program starts");
        assert!(output.status.success(), "gpusimctl {arguments:?} on {node}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs the lab's program on this fleet. Returns its output, or its error.
    fn lab(&self, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(binary("gpufleet-lab"))
            .args(arguments)
            .arg("--dir")
            .arg(self.dir())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("gpufleet-lab {arguments:?}: {output:?}"));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Restores all nodes to their state at the start, including their logs.
    ///
    /// # Errors
    /// The name of a node that does not come back.
    pub fn restore(&self) -> Result<(), String> {
        self.lab(&["restore"]).map(|_| ())
    }

    /// Returns everything declared on each node, one item in each line after the node's name.
    pub fn described(&self) -> String {
        self.lab(&["hash", "--text"]).unwrap_or_else(|error| error)
    }

    /// Returns a digest of [`Self::described`], one line for each node.
    pub fn digests(&self) -> String {
        self.lab(&["hash"]).unwrap_or_else(|error| error)
    }

    /// Returns reboots, resets and the nodes that were out at once, from the nodes' own logs.
    pub fn outages(&self) -> Value {
        let text = self.lab(&["outages"]).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Runs a command on a node with OpenSSH's client.
    pub fn ssh(&self, node: &str, command: &str) -> std::process::Output {
        self.ssh_from(node, command, Stdio::null())
    }

    /// As [`Self::ssh`], with a standard input.
    pub fn ssh_from(&self, node: &str, command: &str, input: impl Into<Stdio>) -> std::process::Output {
        Command::new("ssh")
            .arg("-F")
            .arg(self.dir().join("ssh_config"))
            .args(["-o", "ConnectTimeout=10", "-o", "BatchMode=yes", node, command])
            .stdin(input)
            .output()
            .expect("OpenSSH's client is installed (`make setup`)")
    }

    /// Returns the standard output of a command on a node, which must succeed.
    #[track_caller]
    pub fn read(&self, node: &str, command: &str) -> String {
        let output = self.ssh(node, command);
        assert!(output.status.success(), "{command} on {node}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Waits until a node answers over SSH.
    ///
    /// # Panics
    /// If it does not for a minute.
    #[track_caller]
    pub fn await_answer(&self, node: &str) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !self.ssh(node, "true").status.success() {
            assert!(Instant::now() < limit, "{node} does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Reboots a node, and waits until it answers again.
    ///
    /// # Panics
    /// If it does not for a minute.
    #[track_caller]
    pub fn reboot(&self, node: &str) {
        let before = self.boots(node);
        self.ssh(node, "reboot");
        let limit = Instant::now() + Duration::from_secs(60);
        while self.boots(node) == before {
            assert!(Instant::now() < limit, "{node} does not reboot");
            std::thread::sleep(Duration::from_millis(100));
        }
        self.await_answer(node);
    }

    /// Waits until the unit of the node's kept state has ended in this boot, and returns what came of it: the newest entry of the
    /// node's own list of boots.
    ///
    /// # Panics
    /// If it does not for a minute.
    #[track_caller]
    pub fn await_kept(&self, node: &str) -> Value {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let text = self.ssh(node, "cat /var/lib/gpufleet/keep/boots.json").stdout;
            let boots: Value = serde_json::from_slice(&text).unwrap_or_default();
            let last = boots.as_array().and_then(|boots| boots.last()).cloned().unwrap_or_default();
            if last["boot_id"] == self.boot_id(node) && last["verdict"] != "begun" {
                return last;
            }
            assert!(Instant::now() < limit, "{node} asserts nothing: {boots}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns what shows whether a node was touched: setters, boots and the boot id of each.
    pub fn activity(&self, nodes: &[String]) -> Vec<(String, usize, usize, String)> {
        let of =
            |name: &String| (name.clone(), self.setters(name).len(), self.boots(name), self.boot_id(name));
        nodes.iter().map(of).collect()
    }

    /// Returns the names of all nodes.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir().join("nodes")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Whether a file is in the node's own layer.
    pub fn has(&self, node: &str, path: &str) -> bool {
        let path: &Path = &self.upper(node, path);
        path.exists()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::INT);
        let limit = Instant::now() + END;
        while Instant::now() < limit {
            if self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

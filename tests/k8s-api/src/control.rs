//! The control interface for other processes: a JSON command in each line over a unix socket, and a JSON answer in
//! each line.
//!
//! Every command is also a value in Rust ([`Command`]), applied by [`Server::command`]. An answer is `{"ok": …}` or
//! `{"error": "…"}`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::{Denied, Token};
use crate::api::delete::DeleteOptions;
use crate::cluster::{Actor, Cluster};
use crate::faults::{Fault, Reach};
use crate::kubeconfig::write_private;
use crate::model::kubelet;
use crate::object::{self, set, unset};
use crate::resources::{ALL, NODES, PODS, Resource};
use crate::scenario::{Scenario, put_object};
use crate::server::{Server, Shared};
use crate::settings::{Controllers, Span};

/// A command to the cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Moves the clock.
    Advance {
        by: Span,
    },
    /// Sets the clock's speed; 0 stops it.
    Pace {
        factor: f64,
    },
    /// Returns the clock's time in milliseconds.
    Now,
    /// Adds what a scenario describes.
    Add {
        scenario: Box<Scenario>,
    },
    /// Creates or replaces an object.
    Put {
        object: Value,
    },
    /// Deletes an object as a user would.
    Delete {
        resource: String,
        #[serde(default)]
        namespace: String,
        name: String,
        #[serde(default)]
        grace: Option<i64>,
    },
    /// Cordons or uncordons a node as a user of kubectl.
    Cordon {
        node: String,
        #[serde(default = "human")]
        user: String,
    },
    Uncordon {
        node: String,
        #[serde(default = "human")]
        user: String,
    },
    /// Sets labels of a node; null removes one.
    Label {
        node: String,
        labels: BTreeMap<String, Option<String>>,
        #[serde(default = "human")]
        user: String,
    },
    Annotate {
        node: String,
        annotations: BTreeMap<String, Option<String>>,
        #[serde(default = "human")]
        user: String,
    },
    /// Sets the state of a node's kubelet: `running`, `sick`, `dead`.
    Kubelet {
        node: String,
        state: String,
    },
    /// A reboot: down for a while, then a new boot id.
    Reboot {
        node: String,
        down: Span,
    },
    /// The machine has booted under this id.
    Boot {
        node: String,
        boot_id: String,
    },
    /// Follows a simulated machine of the lab by its state file.
    Follow {
        node: String,
        state: PathBuf,
    },
    /// Changes a machine's GPUs; its node shows them after its device plugin has started again.
    Devices {
        node: String,
        devices: BTreeMap<String, i64>,
    },
    /// Restarts a device plugin that has no pod.
    RestartPlugin {
        node: String,
    },
    /// Sets whether a pod is ready.
    PodReady {
        namespace: String,
        name: String,
        ready: bool,
    },
    /// Sets which controllers run.
    Controllers(Controllers),
    Fault(Fault),
    ClearFaults,
    /// Makes the server unreachable for a time, or until another command.
    Reach {
        reach: Reach,
        #[serde(default)]
        during: Option<Span>,
    },
    /// Clears the history: older watches and pages expire.
    Compact,
    /// Makes a token valid, forever by default.
    Token {
        token: String,
        user: String,
        #[serde(default)]
        life: Option<Span>,
    },
    /// Expires a token now.
    ExpireToken {
        token: String,
    },
    Deny(Denied),
    AllowAll,
    /// Whether reads are logged too.
    LogReads {
        on: bool,
    },
    /// Returns the log after a number.
    Log {
        #[serde(default)]
        since: u64,
    },
    Get {
        resource: String,
        #[serde(default)]
        namespace: String,
        name: String,
    },
    List {
        resource: String,
        #[serde(default)]
        namespace: String,
    },
    /// Returns how many nodes are cordoned or not ready.
    Out,
}

fn human() -> String {
    "human".to_owned()
}

fn resource(name: &str) -> Result<&'static Resource, String> {
    ALL.into_iter().find(|r| r.plural == name).ok_or_else(|| format!("the server has no resource `{name}`"))
}

impl Server {
    /// Applies a command.
    pub fn command(&self, command: &Command) -> Result<Value, String> {
        apply(&self.shared, command)
    }

    /// Listens for commands on a unix socket until the server ends.
    pub fn control(&self, socket: &Path) -> std::io::Result<()> {
        // There is none unless an earlier server left it.
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket)?;
        let shared = self.shared.clone();
        std::thread::Builder::new().name("k8s-api-control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let shared = shared.clone();
                // A thread for each, because a client may keep its connection for its whole life.
                let _ = std::thread::Builder::new().spawn(move || converse(&shared, &stream));
            }
        })?;
        Ok(())
    }

    /// Writes `server.json`, `ca.crt` and `kubeconfig` (an admin's, with a client certificate) into a directory, and
    /// listens on its `control.sock`.
    pub fn publish(&self, dir: &Path) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        std::fs::create_dir_all(dir)?;
        let login = self.certificate("kubernetes-admin")?;
        write_private(&dir.join("kubeconfig"), &self.kubeconfig(&login))?;
        write_private(&dir.join("ca.crt"), &self.authority().certificate)?;
        self.control(&dir.join("control.sock"))?;
        let about = json!({"server": self.url(), "kubeconfig": dir.join("kubeconfig"), "control": dir.join("control.sock")});
        write_private(&dir.join("server.json"), &(about.to_string() + "\n"))?;
        Ok(())
    }
}

fn converse(shared: &Arc<Shared>, stream: &UnixStream) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        if line.trim().is_empty() {
            continue;
        }
        let answer = serde_json::from_str::<Command>(&line)
            .map_err(|e| format!("no command: {e}"))
            .and_then(|command| apply(shared, &command));
        let answer = match answer {
            Ok(value) => json!({"ok": value}),
            Err(why) => json!({"error": why}),
        };
        let mut writer = stream;
        if writer.write_all((answer.to_string() + "\n").as_bytes()).is_err() {
            return;
        }
    }
}

fn apply(shared: &Arc<Shared>, command: &Command) -> Result<Value, String> {
    match command {
        Command::Advance { by } => shared.clock.advance(Duration::from_millis(by.0.unsigned_abs())),
        Command::Pace { factor } => shared.clock.set_factor(*factor),
        _ => {}
    }
    let answer = shared.with(|cluster| on_cluster(cluster, command));
    shared.wake();
    answer
}

fn on_cluster(cluster: &mut Cluster, command: &Command) -> Result<Value, String> {
    match command {
        Command::Advance { .. } | Command::Pace { .. } | Command::Now => return Ok(json!(cluster.now_ms)),
        Command::Add { scenario } => {
            Scenario { age: Span(0), ..*scenario.clone() }.add_to(cluster).map_err(|e| e.to_string())?
        }
        Command::Put { object } => return put_object(cluster, object.clone()).map_err(|e| e.to_string()),
        Command::Delete { resource: kind, namespace, name, grace } => {
            let options = DeleteOptions { grace_s: *grace, ..DeleteOptions::default() };
            let actor = Actor::new("human", "kubectl");
            let deleted =
                cluster.delete(&actor, resource(kind)?, namespace, name, options).map_err(|f| f.message)?;
            return Ok(json!({"gone": deleted.gone}));
        }
        Command::Cordon { node, user } => {
            edit(cluster, node, user, |n| set(n, &["spec", "unschedulable"], json!(true)))?
        }
        Command::Uncordon { node, user } => edit(cluster, node, user, |n| {
            unset(n, &["spec", "unschedulable"]);
        })?,
        Command::Label { node, labels, user } => edit(cluster, node, user, |n| lay(n, "labels", labels))?,
        Command::Annotate { node, annotations, user } => {
            edit(cluster, node, user, |n| lay(n, "annotations", annotations))?
        }
        Command::Kubelet { node, state } => {
            machine(cluster, node)?;
            match state.as_str() {
                "running" => cluster.kubelet_starts(node),
                "sick" => cluster.kubelet_sick(node),
                "dead" => cluster.kubelet_dies(node),
                other => return Err(format!("a kubelet is `running`, `sick` or `dead`, not `{other}`")),
            }
        }
        Command::Reboot { node, down } => {
            machine(cluster, node)?;
            cluster.reboot(node, down.0);
        }
        Command::Boot { node, boot_id } => {
            machine(cluster, node)?;
            cluster.boot_as(node, boot_id.clone());
        }
        Command::Follow { node, state } => {
            machine(cluster, node)?;
            if let Some(machine) = cluster.machines.get_mut(node) {
                machine.lab = Some(state.clone());
            }
        }
        Command::Devices { node, devices } => {
            machine(cluster, node)?;
            cluster.set_devices(node, devices.clone());
        }
        Command::RestartPlugin { node } => {
            machine(cluster, node)?;
            cluster.plugin_starts(node);
        }
        Command::PodReady { namespace, name, ready } => {
            let pod = cluster
                .store
                .get(&PODS, namespace, name)
                .cloned()
                .ok_or_else(|| format!("there is no pod {namespace}/{name}"))?;
            let (now_ms, status) = (cluster.now_ms, if *ready { "True" } else { "False" });
            let actor = Actor::kubelet(object::text(&pod, "/spec/nodeName"));
            cluster.amend(&actor, &PODS, &pod, "status", |p| {
                object::set_condition(p, now_ms, json!({"type": "Ready", "status": status, "lastProbeTime": null, "lastTransitionTime": null}));
            });
        }
        Command::Controllers(controllers) => {
            cluster.settings.controllers = *controllers;
            cluster.budgets_of("");
            cluster.reconcile_soon();
        }
        Command::Fault(fault) => {
            let entry = cluster.entry(&Actor::new("test", "control"), "fault", &NODES, "", "");
            cluster.log.push(crate::log::Entry { detail: json!(fault), resource: String::new(), ..entry });
            cluster.faults.rules.push(fault.clone());
        }
        Command::ClearFaults => cluster.faults.rules.clear(),
        Command::Reach { reach, during } => {
            cluster.faults.reach = *reach;
            cluster.faults.until_ms = during.map(|d| cluster.now_ms + d.0);
        }
        Command::Compact => cluster.store.compact(),
        Command::Token { token, user, life } => {
            let expires_ms = life.map(|l| cluster.now_ms + l.0);
            cluster.access.tokens.insert(token.clone(), Token { user: user.clone(), expires_ms });
        }
        Command::ExpireToken { token } => {
            cluster.access.tokens.remove(token);
        }
        Command::Deny(denied) => cluster.access.denied.push(denied.clone()),
        Command::AllowAll => cluster.access.denied.clear(),
        Command::LogReads { on } => cluster.log_reads = *on,
        Command::Log { since } => return Ok(json!(cluster.log.since(*since))),
        Command::Get { resource: kind, namespace, name } => {
            return Ok(cluster.store.get(resource(kind)?, namespace, name).cloned().unwrap_or_default());
        }
        Command::List { resource: kind, namespace } => {
            return Ok(json!(cluster.store.all(resource(kind)?, namespace).collect::<Vec<_>>()));
        }
        Command::Out => return Ok(json!(cluster.out_of_service())),
    }
    Ok(Value::Null)
}

fn machine(cluster: &Cluster, node: &str) -> Result<(), String> {
    if cluster.machines.contains_key(node) {
        Ok(())
    } else {
        Err(format!("there is no machine behind a node `{node}`"))
    }
}

fn edit(
    cluster: &mut Cluster,
    node: &str,
    user: &str,
    change: impl FnOnce(&mut Value),
) -> Result<(), String> {
    let object =
        cluster.store.get(&NODES, "", node).cloned().ok_or_else(|| format!("there is no node `{node}`"))?;
    cluster.amend(&Actor::new(user, "kubectl-edit"), &NODES, &object, "", change);
    Ok(())
}

fn lay(node: &mut Value, field: &str, values: &BTreeMap<String, Option<String>>) {
    for (key, value) in values {
        match value {
            Some(value) => set(node, &["metadata", field, key], json!(value)),
            None => {
                unset(node, &["metadata", field, key]);
            }
        }
    }
}

/// A client of the control socket.
#[derive(Debug)]
pub struct Control {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("cannot talk to the server at {path}")]
    Socket { path: PathBuf, source: std::io::Error },
    #[error("the server refused: {0}")]
    Refused(String),
    #[error("the server answered with something else than an answer")]
    Answer(#[source] serde_json::Error),
}

impl Control {
    pub fn connect(socket: &Path) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(socket)
            .map_err(|source| ControlError::Socket { path: socket.to_owned(), source })?;
        Ok(Self { socket: socket.to_owned(), stream: BufReader::new(stream) })
    }

    /// Sends a command and waits for its answer.
    pub fn call(&mut self, command: &Command) -> Result<Value, ControlError> {
        let line = serde_json::to_string(command).map_err(ControlError::Answer)?;
        self.call_text(&line)
    }

    /// Sends a command given as text, and waits for its answer.
    pub fn call_text(&mut self, line: &str) -> Result<Value, ControlError> {
        let failed = |source| ControlError::Socket { path: self.socket.clone(), source };
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).map_err(failed)?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).map_err(failed)?;
        let mut answer: Value = serde_json::from_str(&answer).map_err(ControlError::Answer)?;
        match answer.get("error").and_then(Value::as_str) {
            Some(why) => Err(ControlError::Refused(why.to_owned())),
            None => Ok(answer["ok"].take()),
        }
    }
}

/// Names of the annotations that change the behaviour of a single pod, for scenarios written in Rust.
pub use kubelet::{MIRROR, NEVER_READY, NEVER_STOPS, RUNS, START, STOP};

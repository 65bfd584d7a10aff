//! A cluster of Kubernetes whose nodes are the machines of a lab, with a play that drains through it.

use std::time::Duration;

use gpufleet_k8s_api::{
    control::Command as Order,
    resources::NODES,
    scenario::Scenario,
    server::{Options, Server},
};
use serde_json::Value;

use crate::{Command, Fleet, FleetOptions, Home};

/// An API server over TLS, its nodes, and a home with a kubeconfig for it.
pub struct Cluster {
    pub server: Server,
    pub fleet: Fleet,
    pub home: Home,
    /// How long a command may take.
    within: Duration,
}

impl Cluster {
    /// Starts one with these machines. Each node has the device plugin and these `labels`, lines of YAML's flow style;
    /// `workloads` are more of its DaemonSets, and more keys of the scenario. Commands may take this long.
    pub fn start(options: &FleetOptions, labels: &str, workloads: &str, within: Duration) -> Self {
        let fleet = Fleet::start(options);
        let state = fleet.dir().join("nodes/gpu{}/state/node.json");
        let scenario = format!(
            r#"
pace: 1
nodes:
  - {{name: "gpu{{}}", count: {}, digits: 3, lab: "{}", plugin: app=plugin,
      labels: {{nvidia.com/gpu.deploy.device-plugin: "true", {labels}}}}}
daemon_sets:
  - {{name: plugin, namespace: gpu-operator, node_selector: {{nvidia.com/gpu.deploy.device-plugin: "true"}}}}
{workloads}"#,
            options.nodes,
            state.display()
        );
        let server =
            Server::start(Options { port: 0, scenario: Scenario::parse(&scenario).unwrap() }).unwrap();
        let home = Home::new();
        let login = server.certificate("gpufleet").unwrap();
        home.write("kubeconfig", &server.kubeconfig(&login));
        Self { server, fleet, home, within }
    }

    /// Prepares gpufleet with its inventory.
    pub fn command(&self, words: &[&str]) -> Command<'_> {
        let inventory = self.fleet.inventory();
        self.home.gpufleet(words.iter().copied().chain(["-i", &inventory])).within(self.within)
    }

    /// Prepares a run of `play.yaml`.
    pub fn run(&self) -> Command<'_> {
        self.command(&["run", "play.yaml", "--yes", "--format", "json"])
    }

    /// Has the server do something of its own.
    #[track_caller]
    pub fn order(&self, order: Value) {
        self.server.command(&serde_json::from_value::<Order>(order).unwrap()).unwrap();
    }

    /// The object of a node.
    #[track_caller]
    pub fn node(&self, name: &str) -> Value {
        self.server.object(&NODES, "", name).unwrap()
    }
}

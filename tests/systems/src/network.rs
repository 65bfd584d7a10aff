//! The network of a set of machines: a namespace for the controller, with a bridge, and one namespace for each
//! machine.
//!
//! Invariant: nothing of it is reachable from outside, and only namespaces that this value created are removed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Namespaces, which are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    name: String,
    machines: usize,
}

impl Network {
    /// Creates the namespaces. The cables of the machines are unplugged.
    ///
    /// # Panics
    /// If this machine cannot create them.
    pub(crate) fn new(machines: usize) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("gf{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let network = Self { name, machines };
        let hub = network.hub();
        ip(&["netns", "add", &hub]);
        ip(&["-n", &hub, "link", "set", "lo", "up"]);
        ip(&["-n", &hub, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", &hub, "address", "add", "10.99.0.254/24", "dev", "br0"]);
        ip(&["-n", &hub, "link", "set", "br0", "up"]);
        for number in 1..=machines {
            let (inside, plug) = (network.machine(number), plug(number));
            ip(&["netns", "add", &inside]);
            ip(&[
                "link", "add", &plug, "netns", &hub, "type", "veth", "peer", "name", "host0", "netns",
                &inside,
            ]);
            ip(&["-n", &hub, "link", "set", &plug, "master", "br0"]);
            ip(&["-n", &inside, "address", "add", &format!("{}/24", address(number)), "dev", "host0"]);
            ip(&["-n", &inside, "link", "set", "host0", "up"]);
        }
        network
    }

    /// Returns the namespace of the controller.
    pub(crate) fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    /// Returns the namespace of a machine; its name is unique on this host.
    pub(crate) fn machine(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in (1..=self.machines).map(|number| self.machine(number)).chain([self.hub()]) {
            if Path::new("/run/netns").join(&name).exists() {
                let _ = Command::new("ip").args(["netns", "delete", &name]).status();
            }
        }
    }
}

/// Plugs or unplugs a machine's cable. Unplugged, it is silent: no connection is closed.
pub(crate) fn plugged(hub: &str, number: usize, plugged: bool) {
    ip(&["-n", hub, "link", "set", &plug(number), if plugged { "up" } else { "down" }]);
}

pub(crate) fn address(number: usize) -> String {
    format!("10.99.0.{number}")
}

fn plug(number: usize) -> String {
    format!("node{number}")
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("ip cannot be started ({error}): type `make test-systems`"));
    assert!(
        output.status.success(),
        "ip {arguments:?}: {}; the tests need root and network namespaces",
        String::from_utf8_lossy(&output.stderr).trim()
    );
}

//! `rdma_link`: whether ports for RDMA are up and as fast as they should be. Only reads.

use gpufleet_protocol::{FailureKind, tasks::RdmaLink};
use serde_json::{Map, Value, json};

use super::{
    dcb::{self, Dcb},
    knobs, modprobe,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    signals::{
        Reader,
        network::{self, PortState},
    },
    world::Effect,
};

/// Differences that a message tells.
const MOST_TOLD: usize = 8;

#[derive(Debug)]
struct Port {
    device: String,
    state: PortState,
    /// Priorities that are paused one by one, or why they are not known; `None` if not asked.
    pfc: Option<Result<Vec<u8>, String>>,
    trust: Option<Result<String, String>>,
}

impl Port {
    fn name(&self) -> String {
        format!("{}/{}", self.device, self.state.port)
    }
}

#[derive(Debug)]
pub struct State {
    ports: Vec<Port>,
    /// Declared devices that are not there.
    gone: Vec<String>,
}

/// What a question about an interface ends with, where it is not answered.
fn untold(what: &str, trouble: Trouble) -> String {
    match trouble {
        Trouble::Failed { message, .. } | Trouble::Missing(message) | Trouble::PossibleBecause(message) => {
            message
        }
        Trouble::NotApplicable(_) | Trouble::Possible => format!("{what} is known only in the run"),
    }
}

fn pfc(node: &Node<'_>, interface: &str) -> Result<Vec<u8>, String> {
    let read = Dcb::find(node).and_then(|dcb| dcb.pfc(node, interface));
    let found = read.map_err(|trouble| untold("PFC", trouble))?;
    found.ok_or_else(|| format!("the driver of {interface} has no DCB"))
}

fn trust(node: &Node<'_>, interface: &str) -> Result<String, String> {
    let driver = knobs::link_name(node, &format!("/sys/class/net/{interface}/device/driver"));
    let read = dcb::trust(node, interface, driver.as_deref());
    let found = read.map_err(|trouble| untold("trust", trouble))?;
    found.map(|(word, _)| word).ok_or_else(|| format!("the driver of {interface} has no such setting"))
}

impl NodeKind for RdmaLink {
    type State = State;
    type Step = std::convert::Infallible;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        // What a boot brings up is seen after it.
        if node.world.rebooted() {
            return Err(Trouble::Possible);
        }
        let reader = Reader { roots: node.roots, deadline: node.deadline };
        let devices = match self.device.is_empty() {
            true => network::devices(&reader).map_err(Trouble::io)?,
            false => self.device.clone(),
        };
        // Cards, `dcb` and a subnet manager come with packages and modules.
        let brings = modprobe::brings_more_than(&node.world, "");
        if devices.is_empty() && self.ports.is_none() {
            if brings {
                return Err(Trouble::Possible);
            }
            return Err(Trouble::NotApplicable("this node has no RDMA device".to_owned()));
        }
        let mut state = State { ports: Vec::new(), gone: Vec::new() };
        for device in devices {
            let Some(found) = network::states_of(&reader, &device).map_err(Trouble::io)? else {
                state.gone.push(device);
                continue;
            };
            for found in found {
                let of_port = |what: &str| {
                    found
                        .interface
                        .clone()
                        .ok_or_else(|| format!("nothing tells the interface of {device}, whose {what} it is"))
                };
                let pfc =
                    self.pfc.is_some().then(|| of_port("PFC").and_then(|interface| pfc(node, &interface)));
                let trust = self
                    .trust
                    .is_some()
                    .then(|| of_port("trust").and_then(|interface| trust(node, &interface)));
                state.ports.push(Port { device: device.clone(), pfc, trust, state: found });
            }
        }
        if brings && self.plan(&state).is_err() {
            return Err(Trouble::Possible);
        }
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Self::Step>, Trouble> {
        let (mut wrong, mut unknown) = (Vec::new(), Vec::new());
        wrong.extend(state.gone.iter().map(|device| format!("there is no RDMA device {device}")));
        if let Some(least) = self.ports.filter(|least| state.ports.len() < *least as usize) {
            wrong.push(format!("there are {} ports, and {least} should be", state.ports.len()));
        }
        state.ports.iter().for_each(|port| self.judge(port, &mut wrong, &mut unknown));
        let told = |list: &[String]| {
            let shown = list.iter().take(MOST_TOLD).cloned().collect::<Vec<_>>().join("; ");
            match list.len().saturating_sub(MOST_TOLD) {
                0 => shown,
                more => format!("{shown}; and {more} more"),
            }
        };
        if !wrong.is_empty() {
            return Err(Trouble::failed(FailureKind::Unconverged, told(&wrong)));
        }
        if !unknown.is_empty() {
            return Err(Trouble::io(told(&unknown)));
        }
        Ok(Plan::default())
    }

    fn after(&self, _: &State, _: &Plan<Self::Step>) -> Vec<Effect> {
        Vec::new()
    }

    fn apply(&self, _: &Node<'_>, _: &State, _: &Plan<Self::Step>) -> Result<Map<String, Value>, Trouble> {
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let port = |port: &Port| {
            json!({
                "port": port.name(),
                "state": port.state.state,
                "phys_state": port.state.phys_state,
                "rate_gbps": port.state.rate_gbps,
                "link_layer": port.state.layer,
                "interface": port.state.interface,
            })
        };
        let ports: Vec<Value> = state.ports.iter().map(port).collect();
        [("ports".to_owned(), json!(ports))].into_iter().collect()
    }
}

trait Judge {
    fn judge(&self, port: &Port, wrong: &mut Vec<String>, unknown: &mut Vec<String>);
}

impl Judge for RdmaLink {
    fn judge(&self, port: &Port, wrong: &mut Vec<String>, unknown: &mut Vec<String>) {
        let name = port.name();
        let mut word = |what: &str,
                        found: &Option<String>,
                        wanted: &str,
                        why: &dyn Fn(&str) -> &'static str| {
            match found {
                Some(found) if found == wanted => {}
                Some(found) => wrong.push(format!("{what} of {name} is {found}, not {wanted}{}", why(found))),
                None => unknown.push(format!("the kernel does not tell {what} of {name}")),
            }
        };
        let state = &port.state;
        word("the state", &state.state, "ACTIVE", &|found| match found {
            "INIT" => " (no subnet manager has set it up)",
            "ARMED" => " (the subnet manager has not finished)",
            _ => "",
        });
        word("the physical state", &state.phys_state, "LinkUp", &|found| match found {
            "Polling" => " (the other end does not answer: cable, transceiver or switch port)",
            "Disabled" => " (it was switched off here)",
            _ => "",
        });
        if let Some(layer) = self.link_layer {
            word("the link layer", &state.layer, layer.as_str(), &|_| "");
        }
        match (self.rate_gbps, state.rate_gbps) {
            (Some(least), Some(rate)) if rate < f64::from(least) => {
                wrong.push(format!("{name} runs with {rate} Gbit/s, and should with at least {least}"));
            }
            (Some(_), None) => unknown.push(format!("the kernel does not tell the rate of {name}")),
            _ => {}
        }
        if state.layer.as_deref() == Some("InfiniBand") && (port.pfc.is_some() || port.trust.is_some()) {
            wrong.push(format!("{name} is a port of InfiniBand, which has neither PFC nor trust"));
            return;
        }
        match (&port.pfc, self.priorities()) {
            (Some(Ok(found)), Some(wanted)) if *found != wanted => {
                wrong.push(format!(
                    "PFC of {name} is on for {}, not for {}",
                    dcb::word(found),
                    dcb::word(&wanted)
                ));
            }
            (Some(Err(why)), _) => unknown.push(format!("PFC of {name} is not known: {why}")),
            _ => {}
        }
        match (&port.trust, self.trust) {
            (Some(Ok(found)), Some(wanted)) if found != wanted.as_str() => {
                wrong.push(format!("{name} trusts {found}, not {wanted}"));
            }
            (Some(Err(why)), _) => unknown.push(format!("trust of {name} is not known: {why}")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use gpufleet_protocol::{Disruption, OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure};

    fn bench() -> Bench {
        let bench = Bench::new();
        for (name, address, layer, rate) in [
            ("mlx5_0", "0000:3b:00.0", "InfiniBand", "400 Gb/sec (4X NDR)"),
            ("mlx5_1", "0000:5d:00.0", "Ethernet", "200 Gb/sec (2X NDR)"),
        ] {
            let folder = format!("sys/class/infiniband/{name}");
            for (file, text) in
                [("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", rate), ("link_layer", layer)]
            {
                bench.write(&format!("{folder}/ports/1/{file}"), &format!("{text}\n"));
            }
            bench.write(&format!("sys/devices/{address}/net/eth{}/mtu", name.len()), "1500\n");
            symlink(format!("../../../devices/{address}"), bench.path(&format!("{folder}/device"))).unwrap();
        }
        bench.write("sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0", "eth1\n");
        bench
    }

    fn run(bench: &Bench, task: Value, mode: Mode) -> OpOutcome {
        let task: RdmaLink = serde_json::from_value(task).unwrap();
        bench.run(&task, mode)
    }

    #[test]
    fn ports_that_are_as_declared_are_ok() {
        let bench = bench();
        for right in [
            json!({}),
            json!({"ports": 2, "rate_gbps": 200}),
            json!({"device": "mlx5_0", "rate_gbps": 400, "link_layer": "InfiniBand"}),
        ] {
            let done = run(&bench, right.clone(), Mode::Apply);
            assert_eq!(done.status, OpStatus::Ok, "{right}: {done:?}");
        }
        let done = run(&bench, json!({"device": "mlx5_1"}), Mode::Apply);
        assert_eq!(done.data["ports"][0]["interface"], "eth1");
        bench.activate(Disruption::Reboot);
        assert_eq!(run(&bench, json!({}), Mode::Predict).status, OpStatus::Possible);
        let none = run(&Bench::new(), json!({}), Mode::Apply);
        assert!(matches!(none.status, OpStatus::Failed { .. } | OpStatus::NotApplicable { .. }), "{none:?}");
    }

    #[test]
    fn what_differs_is_named_port_by_port() {
        let bench = bench();
        bench.write("sys/class/infiniband/mlx5_0/ports/1/state", "2: INIT\n");
        bench.write("sys/class/infiniband/mlx5_1/ports/1/phys_state", "2: Polling\n");
        let task = json!({"ports": 3, "rate_gbps": 400, "link_layer": "InfiniBand"});
        let wrong = run(&bench, task, Mode::Apply);
        assert_eq!(
            failure(&wrong),
            "there are 2 ports, and 3 should be; the state of mlx5_0/1 is INIT, not ACTIVE (no subnet manager has set it up); \
             the physical state of mlx5_1/1 is Polling, not LinkUp (the other end does not answer: cable, transceiver or \
             switch port); the link layer of mlx5_1/1 is Ethernet, not InfiniBand; mlx5_1/1 runs with 200 Gbit/s, and should \
             with at least 400"
        );
        let gone = run(&bench, json!({"device": ["mlx5_7"]}), Mode::Predict);
        assert_eq!(failure(&gone), "there is no RDMA device mlx5_7");
        std::fs::remove_file(bench.path("sys/class/infiniband/mlx5_1/ports/1/rate")).unwrap();
        bench.write("sys/class/infiniband/mlx5_1/ports/1/phys_state", "5: LinkUp\n");
        let unknown = run(&bench, json!({"device": "mlx5_1", "rate_gbps": 1}), Mode::Predict);
        assert!(matches!(&unknown.status, OpStatus::Unknown { reason } if reason.contains("the rate of")));
        bench.write("sys/class/infiniband/mlx5_1/ports/1/state", "4: \u{1b}[31m\n");
        let hostile = run(&bench, json!({"device": "mlx5_1"}), Mode::Predict);
        assert!(matches!(hostile.status, OpStatus::Unknown { .. }), "{hostile:?}");
    }

    #[test]
    fn what_earlier_tasks_bring_is_known_in_the_run() {
        let module = || Effect::Parameter { name: "modules/mlx5_ib".to_owned(), value: "loaded".to_owned() };
        let package = || Effect::Package { name: "rdma-core".to_owned(), version: Some("50".to_owned()) };
        for effect in [module as fn() -> Effect, package] {
            let bench = bench();
            bench.overlay.assume([effect()]);
            for open in
                [json!({"device": "mlx5_7"}), json!({"ports": 3}), json!({"device": "mlx5_1", "pfc": 3})]
            {
                let status = run(&bench, open.clone(), Mode::Predict).status;
                assert_eq!(status, OpStatus::Possible, "{open}");
            }
            assert_eq!(run(&bench, json!({"ports": 2}), Mode::Predict).status, OpStatus::Ok);
            assert!(failure(&run(&bench, json!({"ports": 3}), Mode::Apply)).contains("3 should be"));
            let bench = Bench::new();
            std::fs::create_dir_all(bench.path("sys/class")).unwrap();
            bench.overlay.assume([effect()]);
            assert_eq!(run(&bench, json!({}), Mode::Predict).status, OpStatus::Possible);
            let none = run(&bench, json!({}), Mode::Apply);
            assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
        }
    }

    #[test]
    fn what_cannot_be_read_of_ethernet_is_unknown_and_not_right() {
        let bench = bench();
        let task = || json!({"device": "mlx5_1", "pfc": 3, "trust": "dscp"});
        let unknown = run(&bench, task(), Mode::Predict);
        assert!(
            matches!(&unknown.status, OpStatus::Unknown { reason } if reason.contains("`dcb`") && reason.contains("trust of")),
            "{unknown:?}"
        );
        bench.script("usr/sbin/dcb", "#!/bin/sh\necho 'pfc-cap 8 macsec-bypass off delay 0'\necho 'prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off'\n");
        bench.write("sys/class/net/eth1/qos/trust", "dscp\n");
        assert_eq!(run(&bench, task(), Mode::Apply).status, OpStatus::Ok);
        bench.write("sys/class/net/eth1/qos/trust", "pcp\n");
        let wrong = run(&bench, json!({"device": "mlx5_1", "pfc": "none", "trust": "dscp"}), Mode::Apply);
        assert_eq!(
            failure(&wrong),
            "PFC of mlx5_1/1 is on for 3, not for none; mlx5_1/1 trusts pcp, not dscp"
        );
        let infiniband = run(&bench, json!({"device": "mlx5_0", "pfc": 3}), Mode::Apply);
        assert!(failure(&infiniband).contains("a port of InfiniBand"), "{infiniband:?}");
    }
}

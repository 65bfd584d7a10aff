//! `hostname`: the name of the node, in /etc/hostname and in the running kernel.
//!
//! systemd-hostnamed watches both, so that no tool has to run.

use std::{fs, path::PathBuf};

use gpufleet_protocol::{Change, Disruption, Layer, Property, Subject, tasks::Hostname};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::{self, At, Ownership},
    world::{Content, Effect, Entry, Owned},
};

#[derive(Debug)]
pub struct State {
    file: PathBuf,
    at_boot: String,
    live: String,
    domain: String,
}

#[derive(Debug)]
pub enum Step {
    File,
    Kernel,
}

/// Returns the first line that is no comment, as systemd reads the file.
fn first_word(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).next().unwrap_or_default()
}

impl NodeKind for Hostname {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let file = node.roots.etc("hostname");
        let text = node.world.read(&file)?.unwrap_or_default();
        let at_boot = first_word(&String::from_utf8_lossy(&text));
        let live = match node.world.parameter("kernel/hostname") {
            Some(name) => name,
            None if node.world.rebooted() && !at_boot.is_empty() => at_boot.clone(),
            None => {
                let told = node.roots.host_name();
                told.ok_or_else(|| Trouble::io("the kernel does not tell the name of the node"))?
            }
        };
        let domain = self.name.split_once('.').map_or("", |(_, domain)| domain).to_owned();
        Ok(State { file, at_boot, live, domain })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let change = |from: &str| {
            let (name, from) = (Property::new("host name"), (!from.is_empty()).then_some(from));
            Change::new(Subject::Node, name, from, &self.name, Disruption::Live)
        };
        if state.at_boot != self.name {
            plan.push(Step::File, change(&state.at_boot).at(Layer::Boot));
        }
        if state.live != self.name {
            plan.push(Step::Kernel, change(&state.live));
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let effect = |step: &Step| match step {
            Step::File => Effect::Path {
                path: state.file.clone(),
                entry: Entry::File {
                    owned: Owned { uid: 0, gid: 0, mode: 0o644 },
                    content: Content::Known(format!("{}\n", self.name).into_bytes().into()),
                },
            },
            Step::Kernel => {
                Effect::Parameter { name: "kernel/hostname".to_owned(), value: self.name.clone() }
            }
        };
        plan.steps.iter().map(effect).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::File => {
                    files::replace(&state.file, format!("{}\n", self.name).as_bytes(), Ownership::default())?;
                }
                Step::Kernel => {
                    // Not by /proc/sys, which is closed in many containers that have a name of their own.
                    if node.roots.is_real() {
                        rustix::system::sethostname(self.name.as_bytes()).map_err(|error| {
                            Trouble::io(format!(
                                "the kernel does not take {} as the name of the node: {error}",
                                self.name
                            ))
                        })?;
                    } else {
                        let path = node.roots.proc("sys/kernel/hostname");
                        fs::write(&path, format!("{}\n", self.name)).at("set", &path)?;
                    }
                }
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let short = self.name.split('.').next().unwrap_or_default();
        let facts = json!({
            "ansible_hostname": short, "ansible_nodename": self.name, "ansible_fqdn": self.name,
            "ansible_domain": state.domain,
        });
        [("name".to_owned(), json!(self.name)), ("ansible_facts".to_owned(), facts)].into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, told};

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("etc/hostname", "# ours\nold\n");
        bench.write("proc/sys/kernel/hostname", "dhcp-17\n");
        bench
    }

    fn named(name: &str) -> Hostname {
        serde_json::from_value(json!({"name": name})).unwrap()
    }

    #[test]
    fn a_node_is_named_once() {
        let bench = bench();
        let before = bench.snapshot();
        let predicted = bench.run(&named("gpu001.cluster"), Mode::Predict);
        assert_eq!(bench.snapshot(), before);
        assert_eq!(bench.run(&named("gpu001.cluster"), Mode::Predict).status, OpStatus::Ok);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&named("gpu001.cluster"), Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&named("gpu001.cluster"), Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        let shown: Vec<_> = done.changes.iter().map(told).collect();
        assert_eq!(
            shown,
            [
                ("host name at boot", Some("old"), "gpu001.cluster"),
                ("host name", Some("dhcp-17"), "gpu001.cluster")
            ]
        );
        assert_eq!(bench.read("etc/hostname"), "gpu001.cluster\n");
        assert_eq!(done.data["ansible_facts"]["ansible_hostname"], "gpu001");
        let settled = bench.snapshot();
        assert_eq!(bench.run(&named("gpu001.cluster"), Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
    }

    #[test]
    fn a_kernel_that_does_not_tell_is_unknown() {
        let bench = Bench::new();
        assert!(matches!(bench.run(&named("a"), Mode::Predict).status, OpStatus::Unknown { .. }));
    }
}

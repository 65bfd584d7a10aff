//! `kernel_blacklist`: modules that no hardware loads, in a file of modprobe.d.

use gpufleet_protocol::{
    Change, Disruption, Layer, Property, Subject,
    tasks::{KernelBlacklist, RepositoryState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::Ownership,
    tasks::{
        edits::{Present, Step, by_steps},
        initramfs::{Holds, Initramfs},
    },
};

/// Whether a line of modprobe.d is `blacklist NAME`.
fn lists(line: &str, name: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("blacklist") && words.next() == Some(name) && words.next().is_none()
}

#[derive(Debug)]
pub struct State {
    file: Present,
    /// Whether the file lists the module.
    listed: bool,
    /// What boots the node first, if the file changes.
    initramfs: Initramfs,
}

impl NodeKind for KernelBlacklist {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let file = Present::read(node, &self.blacklist_file)?;
        let listed = file.text()?.lines().any(|line| lists(line, &self.name));
        let initramfs = match listed == (self.state == RepositoryState::Present) {
            true => Initramfs::unasked(),
            false => Initramfs::read(node, &self.name, &[&file.place], true)?,
        };
        Ok(State { file, listed, initramfs })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let State { file, listed, initramfs } = state;
        let listed = *listed;
        let mut plan = Plan::default();
        let text = file.text()?;
        let wanted = self.state == RepositoryState::Present;
        if listed == wanted {
            return Ok(plan);
        }
        if let (Holds::Yes { .. }, Some(program)) = (&initramfs.holds, initramfs.program()) {
            plan.warnings.push(format!(
                "the initramfs holds {}, and is as before until something builds it again: a package of the driver, or {program}",
                self.name
            ));
        }
        let new = if wanted {
            let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            format!("{text}{gap}blacklist {}\n", self.name)
        } else {
            text.lines().filter(|line| !lists(line, &self.name)).map(|line| format!("{line}\n")).collect()
        };
        let word = |blacklisted: bool| if blacklisted { "blacklisted" } else { "not blacklisted" };
        let module = Subject::module(&self.name);
        let mut change = Change::new(module, Property::STATE, word(listed), word(wanted), Disruption::Live)
            .at(Layer::Boot);
        change.diff = file.diff(&new, false);
        plan.steps.extend(file.written(new, Ownership::default()));
        plan.changes.push(change);
        Ok(plan)
    }

    by_steps!();

    fn data(&self, _: &State) -> Map<String, Value> {
        let data = [("name", json!(self.name)), ("state", json!(self.state))];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::Bench;

    const FILE: &str = "etc/modprobe.d/blacklist-ansible.conf";

    fn task(name: &str, state: &str) -> KernelBlacklist {
        serde_json::from_value(json!({"name": name, "state": state})).unwrap()
    }

    #[test]
    fn a_module_is_listed_once_and_taken_out_again() {
        let bench = Bench::new();
        let nouveau = task("nouveau", "present");
        assert_eq!(bench.run(&nouveau, Mode::Predict).status, OpStatus::Changed);
        assert_eq!(bench.run(&nouveau, Mode::Predict).status, OpStatus::Ok);
        assert!(!bench.path("etc/modprobe.d").exists());
        assert_eq!(bench.run(&nouveau, Mode::Apply).status, OpStatus::Changed);
        bench.run(&task("nova_core", "present"), Mode::Apply);
        assert_eq!(bench.read(FILE), "blacklist nouveau\nblacklist nova_core\n");
        let before = bench.snapshot();
        assert_eq!(bench.run(&nouveau, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), before);
        bench.write(FILE, "# blacklist nouveau\nblacklist  nouveau\nblacklist nouveau-x\n");
        bench.run(&task("nouveau", "absent"), Mode::Apply);
        assert_eq!(bench.read(FILE), "# blacklist nouveau\nblacklist nouveau-x\n");
    }
}

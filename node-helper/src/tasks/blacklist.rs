//! `kernel_blacklist`: modules that no hardware loads, in a file of modprobe.d.

use std::path::Path;

use gpufleet_protocol::{
    Change, Disruption, Layer, Property, Subject,
    tasks::{KernelBlacklist, RepositoryState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::Ownership,
        lines::{self, Edit},
    },
    tasks::{
        edits::{self, Present},
        initramfs::Initramfs,
    },
    world::Effect,
};

/// Begins the path of a note that the images are older than a module's line. The file's time does not tell: other modules
/// have lines in it.
const PENDING: &str = "/var/lib/gpufleet/initramfs-pending-";

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
    /// What boots the node first.
    initramfs: Initramfs,
    /// There from before the file changes until the images are built.
    note: Present,
}

#[derive(Debug)]
pub enum Step {
    File(edits::Step),
    /// Rebuilds the initramfs.
    Initramfs,
}

impl NodeKind for KernelBlacklist {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let file = Present::read(node, &self.blacklist_file)?;
        let listed = file.text()?.lines().any(|line| lists(line, &self.name));
        let will_change = listed != (self.state == RepositoryState::Present);
        // A run that wrote the file may have died before it rebuilt the images.
        let note = Present::read(node, &format!("{PENDING}{}", self.name))?;
        let files: Vec<&Path> = file.bytes.is_some().then_some(file.place.as_path()).into_iter().collect();
        let initramfs = Initramfs::noted(node, &self.name, &files, will_change || note.bytes.is_some())?;
        Ok(State { file, listed, initramfs, note })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let State { file, listed, .. } = state;
        let listed = *listed;
        let mut plan = Plan::default();
        let text = file.text()?;
        let wanted = self.state == RepositoryState::Present;
        if listed == wanted {
            plan_build(self, state, state.note.bytes.is_some(), &mut plan);
            return Ok(plan);
        }
        let new = if wanted {
            let mut new = text.to_owned();
            lines::append(&mut new, &format!("blacklist {}", self.name));
            new
        } else {
            lines::edited(text, |_, line| Edit::remove_if(lists(line, &self.name)))
        };
        let word = |blacklisted: bool| if blacklisted { "blacklisted" } else { "not blacklisted" };
        let module = Subject::module(&self.name);
        let mut change = Change::new(module, Property::STATE, word(listed), word(wanted), Disruption::Live)
            .at(Layer::Boot);
        change.diff = file.diff(&new, false);
        plan.steps.extend(file.written(new, Ownership::default()).map(Step::File));
        plan.changes.push(change);
        plan_build(self, state, true, &mut plan);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let effects = |step: &Step| match step {
            Step::File(step) => vec![step.effect()],
            Step::Initramfs => state.initramfs.built(),
        };
        plan.steps.iter().flat_map(effects).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::File(step) => step.apply()?,
                Step::Initramfs => state.initramfs.build(node)?,
            }
        }
        Ok(Map::new())
    }

    fn data(&self, _: &State) -> Map<String, Value> {
        let data = [("name", json!(self.name)), ("state", json!(self.state))];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Plans a build of the images, with a note that outlives a killed helper.
fn plan_build(task: &KernelBlacklist, state: &State, outdated: bool, plan: &mut Plan<Step>) {
    let State { initramfs, note, .. } = state;
    initramfs.plan(&task.name, "an older blacklist", outdated, Step::Initramfs, plan);
    if plan.steps.iter().any(|step| matches!(step, Step::Initramfs)) {
        let noted = note.written(String::new(), Ownership::default()).map(Step::File);
        plan.steps.splice(0..0, noted);
        plan.steps.push(Step::File(note.removed()));
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{self, Bench};

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

    const BUILD: &str = "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho build >> $d/log\nfor i in $d/boot/*; do echo new > $i; done\n";

    #[test]
    fn an_image_that_holds_the_module_is_built_again() {
        let bench = Bench::new();
        bench.write("proc/sys/kernel/osrelease", "6.1\n");
        bench.write("boot/initrd.img-6.1", "old\n");
        bench.write("lib/modules/6.1/modules.builtin", "");
        bench.script("usr/bin/lsinitramfs", "#!/bin/sh\necho usr/lib/modules/6.1/kernel/nouveau.ko\n");
        bench.script("usr/sbin/update-initramfs", "#!/bin/sh\nexit 1\n");
        let nouveau = task("nouveau", "present");
        assert!(matches!(bench.run(&nouveau, Mode::Apply).status, OpStatus::Failed { .. }));
        assert_eq!(bench.read(FILE), "blacklist nouveau\n");
        // The next run makes up for it.
        bench.script("usr/sbin/update-initramfs", BUILD);
        let predicted = bench.run(&nouveau, Mode::Predict);
        assert_eq!(bench.run(&nouveau, Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&nouveau, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(done.changes[0].what(), "module nouveau in the initramfs");
        assert_eq!(bench.run(&nouveau, Mode::Apply).status, OpStatus::Ok);
        let nova = bench.run(&task("nova_core", "present"), Mode::Apply);
        assert_eq!((nova.changes.len(), bench.read("log").as_str()), (1, "build\n"), "not in the image");
        // The file is newer than the image now, and the image has all of it that counts there.
        for task in [nouveau, task("nova_core", "present"), task("nvidia", "absent")] {
            let before = bench.snapshot();
            assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok, "{}", task.name);
            assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok, "{}", task.name);
            assert_eq!(testing::changed(&before, &bench.snapshot()), Vec::<std::path::PathBuf>::new());
        }
    }

    #[test]
    fn a_module_whose_image_nobody_can_list_is_built_in_once() {
        let bench = Bench::new();
        bench.write("boot/initrd.img-6.1", "old\n");
        bench.write("lib/modules/6.1/modules.builtin", "");
        bench.script("usr/sbin/update-initramfs", BUILD);
        let nouveau = task("nouveau", "present");
        bench.killed(&nouveau, Disruption::Live, "update-initramfs");
        assert_eq!(bench.read(FILE), "blacklist nouveau\n");
        let done = bench.run(&nouveau, Mode::Apply);
        assert_eq!(done.changes[0].from_text().as_deref(), Some("perhaps with an older blacklist"));
        assert_eq!(bench.run(&nouveau, Mode::Apply).status, OpStatus::Ok);
        bench.run(&task("nouveau", "absent"), Mode::Apply);
        assert_eq!(bench.run(&task("nouveau", "absent"), Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.read("log"), "build\nbuild\n");
    }

    #[test]
    fn an_image_of_kernel_install_is_named_with_what_builds_it() {
        for place in ["efi/0123/6.1/initrd", "boot/efi/fedora/6.1/initrd.img-6.1", "boot/0123/6.1/initrd"] {
            let bench = Bench::new();
            bench.write(place, "old\n");
            bench.write("usr/lib/modules/6.1/vmlinuz", "kernel\n");
            let done = bench.run(&task("nouveau", "present"), Mode::Apply);
            let says = format!(
                "{} may hold nouveau with an older blacklist, and gpufleet does not build it: `kernel-install add 6.1 \
                 /usr/lib/modules/6.1/vmlinuz` does",
                bench.path(place).display()
            );
            assert_eq!(done.warnings, [says]);
            bench.script("usr/bin/lsinitrd", "#!/bin/sh\necho usr/lib/modules/6.1/kernel/xfs.ko\n");
            assert_eq!(bench.run(&task("nova_core", "present"), Mode::Apply).warnings, Vec::<String>::new());
        }
    }
}

//! `kernel_cmdline`: words of the kernel command line of every boot entry.
//!
//! Writing the configuration disturbs nobody; what waits for a reboot is told as awaiting, found by comparing with
//! the command line of the running kernel.

mod sources;
mod words;

use std::{fs, path::PathBuf};

use gpufleet_protocol::{Awaiting, Change, Disruption, FailureKind, tasks::KernelCmdline};
use serde_json::{Map, Value, json};

use self::sources::{Kind, Source, Sources};
use crate::{
    declare::{Declaration, Node, Plan, Trouble},
    os::files::{self, At, Ownership},
    process::Run,
    world::{Content, Effect, Entry, Owned},
};

const WHAT: &str = "kernel command line";

/// A program that writes what the boot loader reads, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generator {
    path: PathBuf,
    arguments: Vec<String>,
}

#[derive(Debug)]
pub struct State {
    sources: Sources,
    running: Vec<String>,
    grub: Option<Generator>,
    /// For `/etc/kernel/cmdline` without GRUB.
    plain: Vec<Generator>,
    /// Whether a missing generator is a fault: a stand-in root needs none.
    needs_generator: bool,
}

#[derive(Debug)]
pub enum Step {
    Write { path: PathBuf, text: String },
    Generate(Generator),
}

impl State {
    fn has_grub(&self) -> bool {
        self.sources.files.iter().any(|file| file.kind == Kind::GrubDefaults)
    }

    /// The command lines that the next boot can have, one list of words each.
    fn configured(&self) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        if self.has_grub() {
            all.push(sources::grub_words(&self.sources.files));
        }
        all.extend(
            self.sources.files.iter().filter(|file| file.kind != Kind::GrubDefaults).map(Source::words),
        );
        all
    }
}

fn grub_generator(node: &Node<'_>) -> Option<Generator> {
    let tool = |name: &str| node.roots.tool(name);
    if let Some(path) = tool("update-grub") {
        return Some(Generator { path, arguments: Vec::new() });
    }
    let (path, folder) = match (tool("grub2-mkconfig"), tool("grub-mkconfig")) {
        (Some(path), _) => (path, "/boot/grub2"),
        (None, Some(path)) => (path, "/boot/grub"),
        (None, None) => return None,
    };
    let target = node.roots.path(folder).join("grub.cfg");
    Some(Generator { path, arguments: vec!["-o".to_owned(), target.display().to_string()] })
}

fn plain_generators(node: &Node<'_>) -> Vec<Generator> {
    if let Some(path) = node.roots.tool("proxmox-boot-tool") {
        return vec![Generator { path, arguments: vec!["refresh".to_owned()] }];
    }
    let Some(path) = node.roots.tool("kernel-install") else { return Vec::new() };
    let modules = node.roots.path("/usr/lib/modules");
    let modules = if modules.is_dir() { modules } else { node.roots.path("/lib/modules") };
    let Ok(versions) = fs::read_dir(&modules) else { return Vec::new() };
    versions
        .flatten()
        .filter_map(|version| {
            let name = version.file_name().into_string().ok()?;
            let inside = version.path().join("vmlinuz");
            let beside = node.roots.path(format!("/boot/vmlinuz-{name}"));
            let image = [inside, beside].into_iter().find(|image| image.is_file())?;
            let arguments = vec!["add".to_owned(), name, image.display().to_string()];
            Some(Generator { path: path.clone(), arguments })
        })
        .collect()
}

impl Declaration for KernelCmdline {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let sources = sources::read(node)?;
        if sources.files.is_empty() {
            return Err(Trouble::invalid(
                "there is no boot loader configuration that gpufleet knows: neither /etc/default/grub nor \
                 /etc/kernel/cmdline nor entries of the Boot Loader Specification",
            ));
        }
        let path = node.roots.proc("cmdline");
        let running = fs::read(&path).at("read", &path)?;
        let mut state = State {
            sources,
            running: words::split(&String::from_utf8_lossy(&running)),
            grub: grub_generator(node),
            plain: plain_generators(node),
            needs_generator: node.roots.is_real(),
        };
        if node.world.rebooted() {
            state.running = state.configured().concat();
        }
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let (mut grub_changed, mut plain_changed) = (false, false);
        let mut ours = None;
        let mut pruned: Vec<Source> = Vec::new();
        for file in &state.sources.files {
            let is_drop_in = state.sources.drop_in.as_ref() == Some(&file.path);
            let adds = match file.kind {
                Kind::GrubDefaults => state.sources.drop_in.is_none(),
                Kind::Plain | Kind::Entry => true,
            };
            let text = file.edited(self, adds);
            let now = Source { text: text.clone(), ..file.clone() };
            if is_drop_in {
                ours = Some((file.clone(), now.clone()));
            } else if text != file.text {
                grub_changed |= file.kind == Kind::GrubDefaults;
                plain_changed |= file.kind == Kind::Plain;
                plan.steps.push(Step::Write { path: file.path.clone(), text });
            }
            pruned.push(now);
        }
        if let (true, Some(path)) = (state.has_grub(), &state.sources.drop_in) {
            let lacking = words::lacking(self, &sources::grub_words(&pruned));
            let before = ours.as_ref().map(|(before, _)| before.text.clone());
            let text = match (&ours, lacking.is_empty()) {
                (None, true) => None,
                (Some((_, now)), true) => Some(now.text.clone()),
                (ours, false) => {
                    let had = ours.as_ref().map(|(_, now)| sources::drop_in_words(now)).unwrap_or_default();
                    let all: Vec<&String> = had.iter().chain(lacking).collect();
                    Some(sources::drop_in(&all))
                }
            };
            if let Some(text) = text.filter(|text| before.as_ref() != Some(text)) {
                let place = pruned.iter().position(|file| {
                    file.path > *path
                        && file.kind == Kind::GrubDefaults
                        && file.path.parent() == path.parent()
                });
                pruned.retain(|file| file.path != *path);
                let at = place.unwrap_or(pruned.len()).min(pruned.len());
                pruned
                    .insert(at, Source { path: path.clone(), kind: Kind::GrubDefaults, text: text.clone() });
                if let Some(word) = words::lacking(self, &sources::grub_words(&pruned)).first() {
                    return Err(Trouble::invalid(format!(
                        "a file behind {} sets the kernel command line anew, so `{word}` cannot be added there",
                        path.display()
                    )));
                }
                grub_changed = true;
                plan.steps.push(Step::Write { path: path.clone(), text });
            }
        }
        let configured = state.configured();
        for word in &self.add {
            let one = KernelCmdline { add: vec![word.clone()], remove: Vec::new() };
            let right = |line: &Vec<String>| {
                words::lacking(&one, line).is_empty()
                    && !line.iter().any(|w| words::unwanted(self, w) && words::key(w) == words::key(word))
            };
            if !configured.iter().all(right) {
                let other = configured
                    .iter()
                    .flatten()
                    .find(|have| words::key(have) == words::key(word) && words::unwanted(self, have));
                let from = other.cloned().unwrap_or_else(|| format!("without {word}"));
                plan.changes.push(Change::new(WHAT, Some(from), word, class(self, state, word)));
            }
        }
        let added: Vec<String> = self.add.iter().map(|word| words::key(word)).collect();
        let mut gone: Vec<&String> = Vec::new();
        for word in configured.iter().flatten() {
            if words::unwanted(self, word) && !added.contains(&words::key(word)) && !gone.contains(&word) {
                gone.push(word);
                let class = if state.running.contains(word) { Disruption::Reboot } else { Disruption::Live };
                plan.changes.push(Change::new(WHAT, Some(word.clone()), format!("without {word}"), class));
            }
        }
        let stale = state.sources.generated.iter().any(|line| {
            let line = words::split(line);
            !words::lacking(self, &line).is_empty() || line.iter().any(|word| words::unwanted(self, word))
        });
        if grub_changed || (stale && plan.steps.is_empty()) {
            match &state.grub {
                Some(generator) => plan.steps.push(Step::Generate(generator.clone())),
                None if state.needs_generator => {
                    return Err(Trouble::invalid(
                        "/etc/default/grub is there, but none of update-grub, grub2-mkconfig and grub-mkconfig is",
                    ));
                }
                None => {}
            }
        }
        if stale && plan.changes.is_empty() && !plan.steps.is_empty() {
            let to = self.add.first().map_or_else(|| "regenerated".to_owned(), Clone::clone);
            let change = Change::new(WHAT, Some("not in grub.cfg".to_owned()), to, Disruption::Reboot);
            plan.changes.push(change.with_note("grub.cfg is older than /etc/default/grub"));
        }
        if plain_changed && !state.has_grub() {
            plan.steps.extend(state.plain.iter().cloned().map(Step::Generate));
        }
        plan.awaiting = awaiting(self, state);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let owned = Owned { uid: 0, gid: 0, mode: 0o644 };
        let file = |path: &PathBuf, text: String| Effect::Path {
            path: path.clone(),
            entry: Entry::File { owned, content: Content::Known(text.into_bytes().into()) },
        };
        let effects = plan.steps.iter().flat_map(|step| match step {
            Step::Write { path, text } => vec![file(path, text.clone())],
            Step::Generate(_) => {
                let generated = state.sources.generated_files.iter();
                generated.map(|(path, text)| file(path, sources::regenerated(self, text))).collect()
            }
        });
        effects.collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        _state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::Write { path, text } => files::replace(path, text.as_bytes(), Ownership::default())?,
                Step::Generate(generator) => {
                    let name = generator.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    (node.progress)(format!("running {name}"));
                    let done = Run::new(&generator.path)
                        .args(&generator.arguments)
                        .user(node.user.clone())
                        .finish(node.deadline)?;
                    if !done.exit.success() {
                        return Err(Trouble::failed(FailureKind::Exit, done.complaint(&name)));
                    }
                }
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("running".to_owned(), json!(state.running.join(" ")));
        data
    }
}

/// Whether the running kernel needs a reboot for a word that is added.
fn class(task: &KernelCmdline, state: &State, word: &str) -> Disruption {
    let one = KernelCmdline { add: vec![word.to_owned()], remove: Vec::new() };
    let other = |have: &String| words::key(have) == words::key(word) && words::unwanted(task, have);
    if words::lacking(&one, &state.running).is_empty() && !state.running.iter().any(other) {
        Disruption::Live
    } else {
        Disruption::Reboot
    }
}

/// What the running kernel still lacks or has too much.
fn awaiting(task: &KernelCmdline, state: &State) -> Vec<Awaiting> {
    let lacking = words::lacking(task, &state.running);
    let added: Vec<String> = lacking.iter().map(|word| words::key(word)).collect();
    let mut reasons: Vec<String> =
        lacking.iter().map(|word| format!("the running kernel was booted without `{word}`")).collect();
    reasons.extend(
        state
            .running
            .iter()
            .filter(|word| words::unwanted(task, word) && !added.contains(&words::key(word)))
            .map(|word| format!("the running kernel was booted with `{word}`")),
    );
    reasons.into_iter().map(|reason| Awaiting { activation: Disruption::Reboot, reason }).collect()
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, changed};

    fn declared(add: &[&str], remove: &[&str]) -> KernelCmdline {
        let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        KernelCmdline { add: own(add), remove: own(remove) }
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet\n");
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"\"\n");
        bench
    }

    #[test]
    fn a_word_is_written_and_awaits_a_reboot() {
        let bench = bench();
        bench.script(
            "usr/sbin/update-grub",
            &format!("#!/bin/sh\necho ran >> {}\n", bench.path("ran").display()),
        );
        let task = declared(&["iommu=pt"], &[]);
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        let change = &done.changes[0];
        assert_eq!(
            (change.what.as_str(), change.from.as_deref(), change.to.as_str()),
            (WHAT, Some("without iommu=pt"), "iommu=pt")
        );
        assert_eq!(change.disruption, Disruption::Reboot);
        assert_eq!(done.awaiting[0].reason, "the running kernel was booted without `iommu=pt`");
        assert_eq!(done.awaiting, predicted.awaiting);
        assert_eq!(
            bench.read("etc/default/grub"),
            "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\nGRUB_CMDLINE_LINUX=\"iommu=pt\"\n"
        );
        assert_eq!(bench.read("ran"), "ran\n");
        let again = bench.run(&task, Mode::Apply);
        assert_eq!((again.status, again.awaiting.len()), (OpStatus::Ok, 1));
        assert_eq!(bench.read("ran"), "ran\n");
        bench.write("proc/cmdline", "root=/dev/sda1 quiet iommu=pt\n");
        let rebooted = bench.run(&task, Mode::Apply);
        assert_eq!((rebooted.status, rebooted.awaiting.len()), (OpStatus::Ok, 0));
    }

    #[test]
    fn an_assumed_reboot_takes_the_word_over() {
        let bench = bench();
        let task = declared(&["iommu=pt"], &["quiet"]);
        assert_eq!(bench.run(&task, Mode::Predict).awaiting.len(), 2);
        let again = bench.run(&task, Mode::Predict);
        assert_eq!((again.status, again.awaiting.len()), (OpStatus::Ok, 2));
        bench.overlay.activate(Disruption::Reboot);
        let after = bench.run(&task, Mode::Predict);
        assert_eq!((after.status, after.awaiting.len()), (OpStatus::Ok, 0));
    }

    #[test]
    fn a_prediction_foresees_the_generated_file() {
        let bench = bench();
        bench.write("boot/grub/grub.cfg", "menuentry x {\n\tlinux /vmlinuz root=/a quiet\n}\n");
        bench.script("usr/sbin/update-grub", "#!/bin/sh\n");
        let task = declared(&["iommu=pt"], &[]);
        assert_eq!(bench.run(&task, Mode::Predict).changes.len(), 1);
        bench.overlay.activate(Disruption::Reboot);
        let after = bench.run(&task, Mode::Predict);
        assert_eq!((after.status, after.changes), (OpStatus::Ok, vec![]));
    }

    #[test]
    fn drop_ins_are_used_where_the_distribution_reads_them() {
        let bench = bench();
        bench.write("etc/default/grub.d/50-cloudimg.cfg", "GRUB_CMDLINE_LINUX_DEFAULT=\"console=ttyS0\"\n");
        assert_eq!(bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply).status, OpStatus::Changed);
        let ours = "etc/default/grub.d/99-gpufleet.cfg";
        assert_eq!(
            bench.read(ours),
            "# Written by gpufleet.\nGRUB_CMDLINE_LINUX=\"${GRUB_CMDLINE_LINUX} iommu=pt\"\n"
        );
        assert_eq!(bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.run(&declared(&["a=1"], &[]), Mode::Apply).status, OpStatus::Changed);
        assert_eq!(
            bench.read(ours),
            "# Written by gpufleet.\nGRUB_CMDLINE_LINUX=\"${GRUB_CMDLINE_LINUX} iommu=pt a=1\"\n"
        );
        let swapped = bench.run(&declared(&["iommu=off"], &["console"]), Mode::Apply);
        assert_eq!(swapped.changes[0].from.as_deref(), Some("iommu=pt"));
        assert_eq!(bench.read("etc/default/grub.d/50-cloudimg.cfg"), "GRUB_CMDLINE_LINUX_DEFAULT=\"\"\n");
        assert_eq!(
            bench.run(&declared(&["iommu=off", "a=1"], &["console"]), Mode::Apply).status,
            OpStatus::Ok
        );
    }

    #[test]
    fn boot_entries_are_each_edited() {
        let bench = Bench::new();
        bench.write("proc/cmdline", "root=/a\n");
        bench.write("etc/kernel/cmdline", "root=/a\n");
        for name in ["one", "two"] {
            bench.write(&format!("boot/loader/entries/{name}.conf"), "title x\noptions root=/a quiet\n");
        }
        assert_eq!(bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("etc/kernel/cmdline"), "root=/a iommu=pt\n");
        assert_eq!(bench.read("boot/loader/entries/two.conf"), "title x\noptions root=/a quiet iommu=pt\n");
        assert_eq!(bench.run(&declared(&["iommu=pt"], &[]), Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_stale_grub_cfg_is_generated_again() {
        let bench = bench();
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX=\"iommu=pt\"\n");
        bench.write("boot/grub/grub.cfg", "menuentry x {\n\tlinux /vmlinuz root=/a\n}\n");
        let cfg = bench.path("boot/grub/grub.cfg");
        bench.script(
            "usr/sbin/update-grub",
            &format!("#!/bin/sh\necho 'linux /vmlinuz iommu=pt' > {}\n", cfg.display()),
        );
        let task = declared(&["iommu=pt"], &[]);
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((done.status, done.changes.len()), (OpStatus::Changed, 1));
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn an_unreadable_kernel_is_unknown() {
        let bench = bench();
        std::fs::remove_file(bench.path("proc/cmdline")).unwrap();
        let done = bench.run(&declared(&["a"], &[]), Mode::Predict);
        assert!(matches!(done.status, OpStatus::Unknown { .. }), "{done:?}");
    }

    #[test]
    fn without_a_boot_loader_it_says_so() {
        let bench = Bench::new();
        bench.write("proc/cmdline", "x\n");
        let done = bench.run(&declared(&["a"], &[]), Mode::Predict);
        let OpStatus::Failed { kind: FailureKind::Invalid, message } = done.status else {
            panic!("{done:?}")
        };
        assert!(message.contains("neither /etc/default/grub"), "{message}");
    }

    #[test]
    fn a_failing_generator_is_a_failure() {
        let bench = bench();
        bench.script("usr/sbin/update-grub", "#!/bin/sh\necho broken >&2\nexit 1\n");
        let done = bench.run(&declared(&["a"], &[]), Mode::Apply);
        let OpStatus::Failed { message, .. } = done.status else { panic!("{done:?}") };
        assert_eq!(message, "update-grub: exit status 1: broken");
    }
}

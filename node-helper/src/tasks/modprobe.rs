//! `modprobe`: a module of the running kernel, and of every boot.
//!
//! Reads /proc/modules and the list of built-in modules for the running kernel, modules-load.d and modprobe.d for
//! boots. Uses Ansible's file names, so that either tool finds the other's files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use gpufleet_protocol::{
    Awaiting, Change, Disruption, Layer, Property, Subject,
    change::Value as Typed,
    tasks::{Modprobe, ModulePersistence, ModuleState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, FileError, Ownership},
        lines::{self, Edit},
        tree,
    },
    tasks::{
        initramfs::{Holds, Initramfs},
        kernel_cmdline::split,
        modprobe_d::{self, Foreign, OPTIONS, canonical},
        module_values::{self, Differing},
        started, tool,
    },
    world::{Content, Effect, Entry, Owned, World},
};

const LOAD: &str = "/etc/modules-load.d";
/// Under which a prediction assumes modules, and the value of one that it loads.
const ASSUMED: &str = "modules/";
const LOADED: &str = "loaded";

#[derive(Debug)]
pub struct State {
    loaded: bool,
    /// Whether it is unknown if something loads it at boot, because no file says so.
    open: bool,
    /// Whether it is part of the kernel itself and cannot be unloaded.
    built_in: bool,
    /// Files of modules-load.d that name the module; `options`: files of modprobe.d with its options.
    load: Vec<(PathBuf, String)>,
    options: Vec<(PathBuf, String)>,
    /// Files of modprobe.d with commented-out options of the module.
    former: Vec<PathBuf>,
    load_folder: PathBuf,
    options_folder: PathBuf,
    initramfs: Initramfs,
    /// The options that the loaded module has other values of.
    differing: Vec<Differing>,
    /// Whether the options at boot are older than this boot, so that another one changes nothing.
    since_boot: bool,
    /// Where files outside of /etc set a declared option otherwise.
    foreign: Vec<Foreign>,
    /// The file outside of /etc that a new one of ours would hide.
    hides: Option<PathBuf>,
}

#[derive(Debug)]
pub enum Step {
    Load,
    Unload,
    File(PathBuf, String),
    /// Rebuilds the initramfs.
    Initramfs,
}

/// Returns the name of a prediction's assumption whether a module is loaded.
fn assumption(name: &str) -> String {
    format!("{ASSUMED}{name}")
}

/// Whether an earlier task of a prediction unloads a module.
pub fn is_unloaded(world: &World, name: &str) -> bool {
    world.parameter(&assumption(&canonical(name))).is_some_and(|assumed| assumed != LOADED)
}

/// Whether an earlier task of a prediction loads a module.
pub fn is_loaded_by_plan(world: &World, name: &str) -> bool {
    world.parameter(&assumption(&canonical(name))).is_some_and(|assumed| assumed == LOADED)
}

/// Whether an earlier task of a prediction installs a package, or loads a module other than `name`: either may bring devices,
/// and symbols of the kernel.
pub fn brings_more_than(world: &World, name: &str) -> bool {
    let name = canonical(name);
    world.brings_packages() || world.has_parameter(ASSUMED, LOADED, |module| module != name)
}

/// Whether a module is part of the kernel or in a file that loads it at boot (modules-load.d(5)).
///
/// # Errors
/// If such a file cannot be read.
pub fn comes_at_boot(node: &Node<'_>, name: &str) -> Result<bool, Trouble> {
    let name = canonical(name);
    let mut found = built_in(node, &name);
    for folder in [LOAD, "/run/modules-load.d", "/usr/lib/modules-load.d"] {
        found = found || !files_with(node, folder, |text| has_load(text, &name))?.is_empty();
    }
    Ok(found)
}

/// Whether a line of modules-load.d names the module.
fn loads(line: &str, name: &str) -> bool {
    canonical(line.trim()) == name
}

fn has_load(text: &str, name: &str) -> bool {
    text.lines().any(|line| loads(line, name))
}

fn commented(text: &str, ours: impl Fn(&str) -> bool) -> String {
    lines::edited(text, |_, line| if ours(line) { Edit::Set(format!("#{line}")) } else { Edit::Keep })
}

fn files_with(
    node: &Node<'_>,
    folder: &str,
    ours: impl Fn(&str) -> bool,
) -> Result<Vec<(PathBuf, String)>, Trouble> {
    let folder = node.roots.path(folder);
    let mut found = Vec::new();
    for name in node.world.names(&folder)?.into_iter().filter(|name| name.ends_with(".conf")) {
        let path = folder.join(name);
        let Some(bytes) = node.world.read(&path)? else { continue };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if ours(&text) {
            found.push((path, text));
        }
    }
    Ok(found)
}

fn built_in(node: &Node<'_>, name: &str) -> bool {
    let release = fs::read_to_string(node.roots.proc("sys/kernel/osrelease")).unwrap_or_default();
    let list = node.roots.path(format!("/lib/modules/{}/modules.builtin", release.trim()));
    let text = fs::read_to_string(list).unwrap_or_default();
    text.lines().any(|line| {
        let base = line.rsplit('/').next().unwrap_or_default();
        canonical(base.split(".ko").next().unwrap_or_default()) == name
    })
}

impl NodeKind for Modprobe {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let name = canonical(&self.name);
        let path = node.roots.proc("modules");
        let text = match node.world.read(&path)? {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            // Of a kernel without loadable modules; every other one has the file, be it empty (kernel, `CONFIG_MODULES`).
            None if node.roots.proc("sys/kernel").is_dir()
                && !node.roots.proc("sys/kernel/modprobe").exists() =>
            {
                if self.state == ModuleState::Present && !built_in(node, &name) {
                    return Err(Trouble::NotApplicable(format!(
                        "the running kernel loads no modules (there is no /proc/modules), and {} is no part of it",
                        self.name
                    )));
                }
                String::new()
            }
            None => {
                let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
                return Err(FileError::new("read", path, missing).into());
            }
        };
        let now = text.lines().any(|line| line.split(' ').next().map(canonical).as_deref() == Some(&name));
        let load = files_with(node, LOAD, |text| has_load(text, &name))?;
        let (loaded, open) = match node.world.parameter(&assumption(&name)) {
            Some(assumed) => (assumed == LOADED, false),
            // Unknown even if it is not loaded now: an administrator may have unloaded a module that the hardware
            // loads.
            None if node.world.rebooted() => (!load.is_empty(), load.is_empty()),
            None => (now, false),
        };
        let built_in = !now && built_in(node, &name);
        let mut state = State {
            loaded,
            open: open && !built_in,
            built_in,
            load,
            options: files_with(node, OPTIONS, |text| !modprobe_d::options(text, &name).is_empty())?,
            former: files_with(node, OPTIONS, |text| modprobe_d::had_options(text, &name))?
                .into_iter()
                .map(|(path, _)| path)
                .collect(),
            load_folder: node.roots.path(LOAD),
            options_folder: node.roots.path(OPTIONS),
            initramfs: Initramfs::unasked(),
            differing: match now && loaded && node.world.parameter(&assumption(&name)).is_none() {
                true if !node.world.rebooted() => {
                    module_values::differing(node, &name, &self.options_line())?
                }
                _ => Vec::new(),
            },
            since_boot: false,
            foreign: Vec::new(),
            hides: None,
        };
        if self.persistent == ModulePersistence::Present && !self.options_line().is_empty() {
            let changes = self.changes_options(&state);
            let holder = state.options.first().map(|(path, _)| path.clone()).filter(|_| !changes);
            let own = self.own_file(&state);
            let files = modprobe_d::files(node)?;
            let holder = holder.as_deref().unwrap_or(&own);
            state.foreign = modprobe_d::foreign(node, &files, &name, holder, &self.options_line());
            if node.world.read(&own)?.is_none() {
                state.hides = modprobe_d::hidden_by(&files, &own);
            }
        }
        if !state.differing.is_empty() && !state.options.is_empty() && !self.changes_options(&state) {
            let files: Vec<PathBuf> = state.options.iter().map(|(path, _)| path.clone()).collect();
            state.since_boot = started::precede_boot(node, &files)?;
        }
        if self.declares_options(&state) {
            let own = self.own_file(&state);
            let mut files: Vec<&Path> = state.options.iter().map(|(path, _)| path.as_path()).collect();
            // Former files too: a run that commented the options out may have died before it rebuilt the images.
            files.extend(state.former.iter().map(PathBuf::as_path));
            if node.world.follow(&own)?.1 != Entry::Absent && !files.contains(&own.as_path()) {
                files.push(&own);
            }
            state.initramfs = Initramfs::read(node, &self.name, &files, self.changes_options(&state))?;
        }
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let name = canonical(&self.name);
        let there = state.loaded || state.built_in;
        let module = || Subject::module(&self.name);
        let change =
            |from: &str, to: &str| Change::new(module(), Property::STATE, from, to, Disruption::Live);
        match self.state {
            wanted if state.open => {
                let to = if wanted == ModuleState::Present { "loaded" } else { "not loaded" };
                let open = Change::new(module(), Property::STATE, Typed::Unknown, to, Disruption::Live)
                    .with_note("whether something loads it at boot is known only in the run");
                plan.changes.push(open.possible());
            }
            ModuleState::Present if !there => {
                plan.push(Step::Load, change("not loaded", "loaded"));
            }
            ModuleState::Absent if state.built_in => {
                return Err(Trouble::invalid(format!(
                    "{} is part of the kernel itself: it cannot be unloaded",
                    self.name
                )));
            }
            ModuleState::Absent if state.loaded => {
                plan.push(Step::Unload, change("loaded", "not loaded"));
            }
            _ => {}
        }
        match self.persistent {
            ModulePersistence::Disabled => {}
            ModulePersistence::Present => {
                if state.load.is_empty() {
                    let path = state.load_folder.join(format!("{}.conf", self.name));
                    let change = change("left to others", "loaded").at(Layer::Boot);
                    plan.push(Step::File(path, format!("{}\n", self.name)), change);
                }
                self.plan_options(state, &name, &mut plan);
            }
            ModulePersistence::Absent => {
                for (path, text) in &state.load {
                    let text = commented(text, |line| loads(line, &name));
                    let change = change("loaded", "left to others").at(Layer::Boot);
                    plan.push(Step::File(path.clone(), text), change);
                }
                for (path, text) in &state.options {
                    let from = modprobe_d::options(text, &name).into_iter().next().unwrap_or_default();
                    let text = modprobe_d::without_options(text, &name);
                    plan.push(Step::File(path.clone(), text), self.options_change(from, Typed::Absent));
                }
            }
        }
        let writes =
            |step: &Step| matches!(step, Step::File(path, _) if path.starts_with(&state.options_folder));
        let written = plan.steps.iter().any(writes);
        state.initramfs.plan(&self.name, "older options", written, Step::Initramfs, &mut plan);
        self.judge_values(state, &mut plan);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let name = canonical(&self.name);
        let assume = |there: bool| Effect::Parameter {
            name: assumption(&name),
            value: if there { LOADED } else { "" }.to_owned(),
        };
        let file = |path: &PathBuf, text: String| Effect::Path {
            path: path.clone(),
            entry: Entry::File {
                owned: Owned { uid: 0, gid: 0, mode: 0o644 },
                content: Content::Known(text.into_bytes().into()),
            },
        };
        let effect = |step: &Step| {
            vec![match step {
                Step::Load => assume(true),
                Step::Unload => assume(false),
                Step::File(path, text) => file(path, text.clone()),
                Step::Initramfs => return state.initramfs.built(),
            }]
        };
        let opened = state.open.then(|| assume(self.state == ModuleState::Present));
        plan.steps.iter().flat_map(effect).chain(opened).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::Load | Step::Unload => {
                    let path = tool::find(node, "modprobe", "the package `kmod` brings it")?;
                    let run = tool::run(node, path);
                    let (run, what) = match step {
                        Step::Load => (
                            run.args(["--", &self.name]).args(self.options().unwrap_or_default()),
                            format!("modprobe {}", self.name),
                        ),
                        _ => (run.args(["-r", "--", &self.name]), format!("modprobe -r {}", self.name)),
                    };
                    tool::act(node, &run, &what)?;
                }
                Step::File(path, text) => {
                    if let Some(folder) = path.parent() {
                        tree::make_dirs(folder)?;
                    }
                    files::replace(path, text.as_bytes(), Ownership::default())?;
                }
                Step::Initramfs => state.initramfs.build(node)?,
            }
        }
        Ok(Map::new())
    }

    fn data(&self, _: &State) -> Map<String, Value> {
        let all = [
            ("name", json!(self.name)),
            ("params", json!(self.params)),
            ("state", json!(self.state)),
            ("persistent", json!(self.persistent)),
        ];
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// The options of a module at boot.
trait BootOptions {
    /// The file that gets the options.
    fn own_file(&self, state: &State) -> PathBuf;
    /// Whether the task declares options at boot.
    fn declares_options(&self, state: &State) -> bool;
    /// Whether the options at boot differ from the declared ones.
    fn changes_options(&self, state: &State) -> bool;
    fn plan_options(&self, state: &State, name: &str, plan: &mut Plan<Step>);
    fn options_change(&self, from: impl Into<Typed>, to: impl Into<Typed>) -> Change;
    /// What the loaded module makes of the declared options.
    fn judge_values(&self, state: &State, plan: &mut Plan<Step>);
}

impl BootOptions for Modprobe {
    fn own_file(&self, state: &State) -> PathBuf {
        state.options_folder.join(format!("{}.conf", self.name))
    }

    fn judge_values(&self, state: &State, plan: &mut Plan<Step>) {
        if self.state == ModuleState::Absent {
            return;
        }
        let name = canonical(&self.name);
        let lasts = self.persistent == ModulePersistence::Present;
        if state.built_in && lasts && !self.params.trim().is_empty() {
            let first = split(&self.options_line()).into_iter().next().unwrap_or_default();
            plan.warnings.push(format!(
                "{} is part of the kernel itself, which reads no options of it from modprobe.d: `kernel_cmdline: {{add: \
                 [{name}.{first}]}}` sets them",
                self.name
            ));
        }
        for Differing { name: option, now, wanted } in &state.differing {
            let told = format!("the module {} runs with {option}={now}, not {wanted}", self.name);
            let stale = matches!(state.initramfs.holds, Holds::Yes { stale: true });
            if lasts && state.since_boot && !stale {
                // A reboot for it would find the same again.
                plan.warnings.push(format!(
                    "{told}, though its options were there when the node booted: the module writes the value in another way, \
                     does not take it, or was loaded by hand"
                ));
            } else if lasts {
                let reason =
                    format!("{told}; it takes its options when it is loaded, after an unload or a reboot");
                plan.awaiting.push(Awaiting { activation: Disruption::Reboot, reason });
            } else {
                plan.warnings.push(format!(
                    "{told}: it keeps what it was loaded with, and `persistent: present` would give it `params` at the next boot"
                ));
            }
        }
    }

    fn declares_options(&self, state: &State) -> bool {
        match self.persistent {
            ModulePersistence::Disabled => false,
            ModulePersistence::Present => !self.options_line().is_empty(),
            ModulePersistence::Absent => !state.options.is_empty() || !state.former.is_empty(),
        }
    }

    fn changes_options(&self, state: &State) -> bool {
        let name = canonical(&self.name);
        let now: Vec<String> =
            state.options.iter().flat_map(|(_, text)| modprobe_d::options(text, &name)).collect();
        match self.persistent {
            ModulePersistence::Absent => !state.options.is_empty(),
            _ => now != [self.options_line()],
        }
    }

    fn options_change(&self, from: impl Into<Typed>, to: impl Into<Typed>) -> Change {
        let module = Subject::module(&self.name);
        Change::new(module, Property::OPTIONS, from, to, Disruption::Live).at(Layer::Boot)
    }

    fn plan_options(&self, state: &State, name: &str, plan: &mut Plan<Step>) {
        let wanted = self.options_line();
        let own = self.own_file(state);
        for Foreign { path, option, .. } in state.foreign.iter().filter(|foreign| foreign.wins) {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            plan.warnings.push(format!(
                "{} sets {option} for {} too, and counts, because its name is the later one: an empty {OPTIONS}/{file} would \
                 hide it",
                path.display(),
                self.name
            ));
        }
        let now: Vec<String> =
            state.options.iter().flat_map(|(_, text)| modprobe_d::options(text, name)).collect();
        // Without `params`, options from other sources stay.
        if wanted.is_empty() || now == [wanted.clone()] {
            return;
        }
        let mut written = false;
        let from = (!now.is_empty()).then(|| now.join(" "));
        let overruled = state.foreign.iter().filter(|foreign| !foreign.wins);
        let overruled: Vec<String> = overruled
            .map(|Foreign { path, option, .. }| format!("over {option} of {}", path.display()))
            .collect();
        let change = self.options_change(from, &wanted);
        let note = (!overruled.is_empty()).then(|| format!("counts {}", overruled.join(" and ")));
        let mut change = Some(Change { note, ..change });
        for (path, text) in &state.options {
            let mut text = modprobe_d::without_options(text, name);
            if *path == own {
                text.push_str(&format!("options {} {wanted}\n", self.name));
                written = true;
            }
            plan.steps.push(Step::File(path.clone(), text));
            plan.changes.extend(change.take());
        }
        if !written {
            if let Some(hidden) = &state.hides {
                plan.warnings.push(format!(
                    "{} takes the place of {}, which has the same name: its other lines do not count any more",
                    own.display(),
                    hidden.display()
                ));
            }
            plan.steps.push(Step::File(own, format!("options {} {wanted}\n", self.name)));
            plan.changes.extend(change.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode, tasks::Kind as _};

    use super::*;
    use crate::tasks::testing::{Bench, Told, told};

    const FAKE: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
echo "$@" >> $d/log
if [ "$1" = -r ]; then grep -v "^$3 " $d/proc/modules > $d/proc/new; cat $d/proc/new > $d/proc/modules; rm $d/proc/new; exit 0; fi
if [ "$2" = nosuch ]; then echo "modprobe: FATAL: Module nosuch not found in directory /lib/modules/6.1" >&2; exit 1; fi
echo "$2 16384 0 - Live 0x0" | tr - _ >> $d/proc/modules
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/sbin/modprobe", FAKE);
        bench.write("proc/modules", "nvidia 16384 0 - Live 0x0\n");
        bench.write("proc/sys/kernel/osrelease", "6.1\n");
        bench.write(
            "lib/modules/6.1/modules.builtin",
            "kernel/fs/ext4/ext4.ko\nkernel/drivers/tun-tap.ko.xz\n",
        );
        bench.write("log", "");
        bench
    }

    fn module(value: Value) -> Modprobe {
        serde_json::from_value(value).unwrap()
    }

    fn shown(outcome: &OpOutcome) -> Vec<(&str, &str, &str)> {
        let each = |(what, from, to): Told| (what, from.unwrap_or_default(), to);
        outcome.changes.iter().map(told).map(each).collect()
    }

    #[test]
    fn a_module_is_loaded_now_and_at_boot_once() {
        let bench = bench();
        let task = module(json!({"name": "nvidia-peermem", "params": "a=1  b=2", "persistent": "present"}));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.snapshot(), before);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(
            shown(&done),
            [
                ("module nvidia-peermem", "not loaded", "loaded"),
                ("module nvidia-peermem at boot", "left to others", "loaded"),
                ("module nvidia-peermem options at boot", "none", "a=1 b=2"),
            ]
        );
        assert_eq!(bench.read("log"), "-- nvidia-peermem a=1 b=2\n");
        assert_eq!(bench.read("etc/modules-load.d/nvidia-peermem.conf"), "nvidia-peermem\n");
        assert_eq!(bench.read("etc/modprobe.d/nvidia-peermem.conf"), "options nvidia-peermem a=1 b=2\n");
        let settled = bench.snapshot();
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
    }

    #[test]
    fn a_module_goes_and_stays_away() {
        let bench = bench();
        bench.write("etc/modules-load.d/all.conf", "nvidia\nipmi_si\n");
        bench.write("etc/modprobe.d/x.conf", "options nvidia NVreg_A=1\nblacklist nouveau\n");
        let task = module(json!({"name": "nvidia", "state": "absent", "persistent": "absent"}));
        let done = bench.run(&task, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!(bench.read("etc/modules-load.d/all.conf"), "#nvidia\nipmi_si\n");
        assert_eq!(bench.read("etc/modprobe.d/x.conf"), "#options nvidia NVreg_A=1\nblacklist nouveau\n");
        assert_eq!(bench.read("proc/modules"), "");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn other_options_are_replaced() {
        let bench = bench();
        bench.write("etc/modprobe.d/other.conf", "options nvidia NVreg_A=1\n");
        let task = module(json!({"name": "nvidia", "params": "NVreg_A=2", "persistent": "present"}));
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("etc/modprobe.d/other.conf"), "#options nvidia NVreg_A=1\n");
        assert_eq!(bench.read("etc/modprobe.d/nvidia.conf"), "options nvidia NVreg_A=2\n");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn files_of_other_folders_that_set_the_same_option_are_named() {
        let bench = bench();
        bench.write("usr/lib/modprobe.d/nvidia-dist.conf", "options nvidia \\\n NVreg_A=0\n");
        bench.write("usr/lib/modprobe.d/zz-dist.conf", "options nvidia NVreg_A=3\n");
        bench.write("usr/lib/modprobe.d/nvidia.conf", "softdep nvidia post: nvidia-uvm\n");
        bench.write("etc/modprobe.d/site.conf", "options nvidia NVreg_B=1 \\\n NVreg_C=1\n");
        let task = module(json!({"name": "nvidia", "params": "NVreg_A=1", "persistent": "present"}));
        let done = bench.run(&task, Mode::Apply);
        assert_eq!(bench.read("etc/modprobe.d/site.conf"), "#options nvidia NVreg_B=1 \\\n# NVreg_C=1\n");
        let options = done.changes.last().unwrap();
        assert_eq!(options.from_text().as_deref(), Some("NVreg_B=1 NVreg_C=1"));
        let lower = bench.path("usr/lib/modprobe.d/nvidia-dist.conf");
        let counts = format!("counts over NVreg_A=0 of {}", lower.display());
        assert_eq!(options.note.as_deref(), Some(counts.as_str()));
        let wins = format!(
            "{} sets NVreg_A=3 for nvidia too, and counts, because its name is the later one: an empty \
             /etc/modprobe.d/zz-dist.conf would hide it",
            bench.path("usr/lib/modprobe.d/zz-dist.conf").display()
        );
        assert_eq!(done.warnings.len(), 2);
        assert_eq!(done.warnings[0], wins);
        assert!(done.warnings[1].contains("takes the place of "), "{done:?}");
        let again = bench.run(&task, Mode::Apply);
        assert_eq!((again.status, again.warnings), (OpStatus::Ok, vec![wins]));
        bench.write("etc/modprobe.d/zz-dist.conf", "");
        assert_eq!(bench.run(&task, Mode::Apply).warnings, Vec::<String>::new());
    }

    /// Returns a node with an initramfs, listed like lsinitramfs of initramfs-tools.
    fn with_initramfs(listing: &str) -> Bench {
        let bench = bench();
        bench.write("boot/initrd.img-6.1", "old\n");
        bench.write("boot/initrd.img-6.0", "old\n");
        bench.write("lib/modules/6.0/modules.builtin", "");
        bench.script("usr/bin/lsinitramfs", &format!("#!/bin/sh\n{listing}\n"));
        bench.script(
            "usr/sbin/update-initramfs",
            "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho update-initramfs $@ >> $d/log\nfor i in $d/boot/*; do echo new > $i; done\n",
        );
        bench
    }

    #[test]
    fn options_of_a_module_in_the_initramfs_rebuild_it_once() {
        let held = "echo usr/lib/modules/6.1/kernel/drivers/net/mlx5-core.ko.xz";
        let bench = with_initramfs(held);
        let task = module(json!({"name": "mlx5_core", "params": "a=1", "persistent": "present"}));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.snapshot(), before);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        let last = shown(&done).pop();
        assert_eq!(
            last,
            Some(("module mlx5_core in the initramfs", "with older options", "as in modprobe.d"))
        );
        assert!(bench.read("log").ends_with("update-initramfs -u -k all\n"), "{}", bench.read("log"));
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        // An image that was built before the options, as after a run that died in between.
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        fs::File::options()
            .write(true)
            .open(bench.path("boot/initrd.img-6.0"))
            .unwrap()
            .set_modified(old)
            .unwrap();
        assert_eq!(bench.run(&task, Mode::Apply).changes.len(), 1);
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    fn age(bench: &Bench, below: &str, hours: u64) {
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600 * hours);
        fs::File::options().write(true).open(bench.path(below)).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn an_image_whose_kernel_is_gone_is_nobodys_matter() {
        let bench = with_initramfs("echo usr/lib/modules/6.1/kernel/mlx5_core.ko");
        bench.write("boot/initrd.img-5.10.0-x", "old\n");
        bench.write("etc/modprobe.d/mlx5_core.conf", "options mlx5_core a=1\n");
        age(&bench, "etc/modprobe.d/mlx5_core.conf", 2);
        age(&bench, "boot/initrd.img-5.10.0-x", 9);
        bench.write("etc/modules-load.d/mlx5_core.conf", "mlx5_core\n");
        bench.write("proc/modules", "mlx5_core 16384 0 - Live 0x0\n");
        let task = module(json!({"name": "mlx5_core", "params": "a=1", "persistent": "present"}));
        assert_eq!(bench.run(&task, Mode::Apply).changes, []);
        bench.write("boot/initramfs-linux.img", "old\n");
        age(&bench, "boot/initramfs-linux.img", 9);
        assert_eq!(bench.run(&task, Mode::Apply).changes.len(), 1, "this one is named after no release");
    }

    #[test]
    fn images_are_built_by_the_next_run_where_the_last_one_failed_to() {
        let bench = with_initramfs("echo usr/lib/modules/6.1/kernel/mlx5_core.ko");
        for image in ["boot/initrd.img-6.1", "boot/initrd.img-6.0"] {
            age(&bench, image, 2);
        }
        bench.write("etc/modprobe.d/site.conf", "options mlx5_core a=1\n");
        let build = bench.read("usr/sbin/update-initramfs");
        bench.script("usr/sbin/update-initramfs", "#!/bin/sh\necho no space >&2\nexit 1\n");
        let task = module(json!({"name": "mlx5_core", "persistent": "absent", "state": "absent"}));
        let failed = bench.run(&task, Mode::Apply);
        assert!(matches!(failed.status, OpStatus::Failed { .. }), "{failed:?}");
        assert_eq!(bench.read("etc/modprobe.d/site.conf"), "#options mlx5_core a=1\n");
        bench.script("usr/sbin/update-initramfs", &build);
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(done.changes[0].what(), "module mlx5_core in the initramfs");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn an_initramfs_without_the_module_stays_and_one_that_nobody_can_read_is_built() {
        let task = module(json!({"name": "nvidia-peermem", "params": "a=1", "persistent": "present"}));
        let without = with_initramfs(
            "echo usr/lib/modules/6.1/kernel/nvidia.ko; echo etc/modprobe.d/nvidia-peermem.conf",
        );
        assert_eq!(without.run(&task, Mode::Apply).changes.len(), 3);
        assert!(!without.read("log").contains("update-initramfs"));
        let unreadable = with_initramfs("echo broken >&2; exit 1");
        let done = unreadable.run(&task, Mode::Apply);
        assert_eq!(shown(&done).pop().unwrap().1, "perhaps with older options");
        assert_eq!(unreadable.run(&task, Mode::Apply).status, OpStatus::Ok);
        let nobody = with_initramfs("echo broken >&2; exit 1");
        fs::remove_file(nobody.path("usr/sbin/update-initramfs")).unwrap();
        let warned = nobody.run(&task, Mode::Apply);
        assert_eq!(
            warned.warnings,
            [
                "the initramfs may hold nvidia-peermem with older options (lsinitramfs: exit status 1: broken), and neither \
              update-initramfs nor dracut nor mkinitcpio is there to build it again"
            ]
        );
    }

    #[test]
    fn a_loaded_module_with_other_options_awaits_a_reload_or_a_reboot() {
        let bench = bench();
        bench.write("proc/driver/nvidia/params", "EnableGpuFirmware: 18\nModifyDeviceFiles: 1\n");
        let task = |persistent: &str| {
            module(json!({"name": "nvidia", "params": "NVreg_EnableGpuFirmware=0", "persistent": persistent}))
        };
        let now_only = bench.run(&task("disabled"), Mode::Apply);
        assert_eq!((&now_only.status, now_only.awaiting.len()), (&OpStatus::Ok, 0));
        assert!(
            now_only.warnings[0].starts_with("the module nvidia runs with NVreg_EnableGpuFirmware=18, not 0")
        );
        let predicted = bench.run(&task("present"), Mode::Predict);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&task("present"), Mode::Predict).awaiting, []);
        let done = bench.run(&task("present"), Mode::Apply);
        assert_eq!((&done.changes, &done.awaiting), (&predicted.changes, &predicted.awaiting));
        assert_eq!(
            done.awaiting[0].reason,
            "the module nvidia runs with NVreg_EnableGpuFirmware=18, not 0; it takes its options when it is loaded, after an \
             unload or a reboot"
        );
        let again = bench.run(&task("present"), Mode::Apply);
        assert_eq!((again.status, again.awaiting.len()), (OpStatus::Ok, 1));
        // Booted with them, and still other: another boot would find the same.
        bench.write("proc/stat", "btime 4000000000\n");
        bench.write("proc/1/stat", "1 (systemd) S 0 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 10\n");
        let still = bench.run(&task("present"), Mode::Apply);
        assert_eq!((still.status, still.awaiting.len()), (OpStatus::Ok, 0));
        assert!(still.warnings[0].contains("were there when the node booted"), "{:?}", still.warnings);
        bench.write("proc/driver/nvidia/params", "EnableGpuFirmware: 0\n");
        assert_eq!(bench.run(&task("present"), Mode::Apply).awaiting, []);
    }

    #[test]
    fn options_of_a_built_in_module_are_words_of_the_kernel_command_line() {
        let bench = bench();
        let task = module(json!({"name": "tun_tap", "params": "debug=1", "persistent": "present"}));
        let done = bench.run(&task, Mode::Apply);
        assert!(
            done.warnings[0].ends_with("`kernel_cmdline: {add: [tun_tap.debug=1]}` sets them"),
            "{done:?}"
        );
    }

    #[test]
    fn built_in_modules_are_there_and_stay() {
        let bench = bench();
        assert_eq!(bench.run(&module(json!({"name": "tun_tap"})), Mode::Apply).status, OpStatus::Ok);
        let refused = bench.run(&module(json!({"name": "ext4", "state": "absent"})), Mode::Predict);
        let OpStatus::Failed { message, .. } = refused.status else { panic!("{refused:?}") };
        assert_eq!(message, "ext4 is part of the kernel itself: it cannot be unloaded");
    }

    #[test]
    fn what_modprobe_says_is_told_and_an_unreadable_list_is_unknown() {
        let bench = bench();
        let failed = bench.run(&module(json!({"name": "nosuch"})), Mode::Apply);
        let OpStatus::Failed { message, .. } = failed.status else { panic!("{failed:?}") };
        assert_eq!(
            message,
            "modprobe nosuch: exit status 1: modprobe: FATAL: Module nosuch not found in directory /lib/modules/6.1"
        );
        fs::remove_file(bench.path("proc/modules")).unwrap();
        bench.write("proc/sys/kernel/modprobe", "/sbin/modprobe\n");
        let unknown = bench.run(&module(json!({"name": "nvidia"})), Mode::Predict);
        assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
    }

    /// Such as those of virtual machines that are built in one piece.
    #[test]
    fn a_kernel_that_loads_no_modules_has_none() {
        let bench = bench();
        fs::remove_file(bench.path("proc/modules")).unwrap();
        let of = |value: Value| bench.run(&module(value), Mode::Predict).status;
        let OpStatus::NotApplicable { reason } = of(json!({"name": "nvidia"})) else { panic!() };
        assert_eq!(
            reason,
            "the running kernel loads no modules (there is no /proc/modules), and nvidia is no part of it"
        );
        assert_eq!(of(json!({"name": "ext4"})), OpStatus::Ok);
        assert_eq!(of(json!({"name": "nvidia", "state": "absent"})), OpStatus::Ok);
    }

    #[test]
    fn options_with_quotes_reach_the_kernel_as_one() {
        for params in ["dyndbg=\"file a.c +p; func  b -p\" x=1", "'dyndbg=file a.c +p; func  b -p' x=1"] {
            let bench = bench();
            bench.script(
                "usr/sbin/modprobe",
                "#!/bin/sh\nd=$(dirname \"$0\")/../..\nfor w; do echo \"<$w>\" >> $d/log; done\necho \"$2 1 0 - Live 0x0\" >> $d/proc/modules\n",
            );
            let task = module(json!({"name": "x", "params": params, "persistent": "present"}));
            let done = bench.run(&task, Mode::Apply);
            assert_eq!(done.status, OpStatus::Changed, "{done:?}");
            assert_eq!(bench.read("log"), "<-->\n<x>\n<dyndbg=file a.c +p; func  b -p>\n<x=1>\n");
            assert_eq!(
                bench.read("etc/modprobe.d/x.conf"),
                "options x dyndbg=\"file a.c +p; func  b -p\" x=1\n"
            );
            assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        }
        let refused = |params: &str| {
            let read = Modprobe::INFO.parse(json!({"name": "x", "params": params}));
            read.map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(refused("a=\"b"), "a quote is opened and not closed");
        assert_eq!(refused("a='\"'"), "`a=\"`: the kernel knows quotes around a value, and none within it");
    }
}

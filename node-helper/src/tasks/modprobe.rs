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
    disturbing::{class_of, kinds},
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
                plan.needs = class_of(kinds::of_unloading(&name));
                plan.push(Step::Unload, change("loaded", "not loaded").needing(plan.needs));
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
#[path = "modprobe_tests.rs"]
mod tests;

//! `modprobe`: a module of the running kernel, and of every boot.
//!
//! /proc/modules and the list of built-in modules tell what is there; files of modules-load.d and modprobe.d tell what
//! boots do. Ansible's file names are used, so that either tool finds what the other one wrote.

use std::{fs, path::PathBuf};

use gpufleet_protocol::{
    Change, Disruption,
    tasks::{Modprobe, ModulePersistence, ModuleState},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Declaration, Node, Plan, Trouble},
    os::files::{self, At, FileError, Ownership},
    tasks::tool,
    world::{Content, Effect, Entry, Owned},
};

const LOAD: &str = "/etc/modules-load.d";
const OPTIONS: &str = "/etc/modprobe.d";

#[derive(Debug)]
pub struct State {
    loaded: bool,
    /// Part of the kernel itself: it cannot be unloaded.
    built_in: bool,
    /// What /proc/modules says, for predictions.
    modules: (PathBuf, String),
    /// Files of modules-load.d that name the module, and of modprobe.d that give it options.
    load: Vec<(PathBuf, String)>,
    options: Vec<(PathBuf, String)>,
    load_folder: PathBuf,
    options_folder: PathBuf,
}

#[derive(Debug)]
pub enum Step {
    Load,
    Unload,
    File(PathBuf, String),
}

/// Names of modules are equal when they are so but for `-` and `_`.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Whether a line of modules-load.d names the module.
fn loads(line: &str, name: &str) -> bool {
    canonical(line.trim()) == name
}

/// The options that a line of modprobe.d gives the module.
fn options_of(line: &str, name: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let ours = words.next() == Some("options") && words.next().map(canonical).as_deref() == Some(name);
    ours.then(|| words.collect::<Vec<_>>().join(" "))
}

fn commented(text: &str, ours: impl Fn(&str) -> bool) -> String {
    text.lines().map(|line| if ours(line) { format!("#{line}\n") } else { format!("{line}\n") }).collect()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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
        if text.lines().any(&ours) {
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

impl Declaration for Modprobe {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let name = canonical(&self.name);
        let path = node.roots.proc("modules");
        let text = match node.world.read(&path)? {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            None => {
                let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
                return Err(FileError::new("read", path, missing).into());
            }
        };
        let loaded = text.lines().any(|line| line.split(' ').next().map(canonical).as_deref() == Some(&name));
        Ok(State {
            loaded,
            built_in: !loaded && built_in(node, &name),
            modules: (path, text),
            load: files_with(node, LOAD, |line| loads(line, &name))?,
            options: files_with(node, OPTIONS, |line| options_of(line, &name).is_some())?,
            load_folder: node.roots.path(LOAD),
            options_folder: node.roots.path(OPTIONS),
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let name = canonical(&self.name);
        let shown = |there: bool, yes: &str, no: &str| if there { yes.to_owned() } else { no.to_owned() };
        let there = state.loaded || state.built_in;
        let change =
            |what: String, from: String, to: &str| Change::new(what, Some(from), to, Disruption::Live);
        let module = format!("module {}", self.name);
        match self.state {
            ModuleState::Present if !there => {
                plan.push(Step::Load, change(module.clone(), shown(there, "loaded", "not loaded"), "loaded"));
            }
            ModuleState::Absent if state.built_in => {
                return Err(Trouble::invalid(format!(
                    "{} is part of the kernel itself: it cannot be unloaded",
                    self.name
                )));
            }
            ModuleState::Absent if state.loaded => {
                plan.push(Step::Unload, change(module.clone(), "loaded".to_owned(), "not loaded"));
            }
            _ => {}
        }
        let at_boot = format!("{module} at boot");
        let options = format!("{module} options at boot");
        match self.persistent {
            ModulePersistence::Disabled => {}
            ModulePersistence::Present => {
                if state.load.is_empty() {
                    let path = state.load_folder.join(format!("{}.conf", self.name));
                    let change = change(at_boot, "left to others".to_owned(), "loaded");
                    plan.push(Step::File(path, format!("{}\n", self.name)), change);
                }
                self.plan_options(state, &name, options, &mut plan);
            }
            ModulePersistence::Absent => {
                for (path, text) in &state.load {
                    let text = commented(text, |line| loads(line, &name));
                    let change = change(at_boot.clone(), "loaded".to_owned(), "left to others");
                    plan.push(Step::File(path.clone(), text), change);
                }
                for (path, text) in &state.options {
                    let from = text.lines().find_map(|line| options_of(line, &name)).unwrap_or_default();
                    let text = commented(text, |line| options_of(line, &name).is_some());
                    plan.push(Step::File(path.clone(), text), change(options.clone(), from, "none"));
                }
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let name = canonical(&self.name);
        let (modules, text) = &state.modules;
        let file = |path: &PathBuf, text: String| Effect::Path {
            path: path.clone(),
            entry: Entry::File {
                owned: Owned { uid: 0, gid: 0, mode: 0o644 },
                content: Content::Known(text.into_bytes().into()),
            },
        };
        let effect = |step: &Step| match step {
            Step::Load => file(modules, format!("{text}{name} 16384 0 - Live 0x0000000000000000\n")),
            Step::Unload => {
                let kept = text
                    .lines()
                    .filter(|line| line.split(' ').next().map(canonical).as_deref() != Some(&name));
                file(modules, kept.map(|line| format!("{line}\n")).collect())
            }
            Step::File(path, text) => file(path, text.clone()),
        };
        plan.steps.iter().map(effect).collect()
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::Load | Step::Unload => {
                    let path = tool::find(node, "modprobe", "the package `kmod` brings it")?;
                    let run = tool::run(node, path);
                    let (run, what) = match step {
                        Step::Load => (
                            run.args(["--", &self.name]).args(self.params.split_whitespace()),
                            format!("modprobe {}", self.name),
                        ),
                        _ => (run.args(["-r", "--", &self.name]), format!("modprobe -r {}", self.name)),
                    };
                    tool::act(node, &run, &what)?;
                }
                Step::File(path, text) => {
                    if let Some(folder) = path.parent() {
                        fs::create_dir_all(folder).at("make", folder)?;
                    }
                    files::replace(path, text.as_bytes(), Ownership::default())?;
                }
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

/// Options of a module at boot.
trait BootOptions {
    fn plan_options(&self, state: &State, name: &str, what: String, plan: &mut Plan<Step>);
}

impl BootOptions for Modprobe {
    fn plan_options(&self, state: &State, name: &str, what: String, plan: &mut Plan<Step>) {
        let wanted = words(&self.params);
        let own = state.options_folder.join(format!("{}.conf", self.name));
        let now: Vec<String> = state
            .options
            .iter()
            .flat_map(|(_, text)| text.lines().filter_map(|line| options_of(line, name)))
            .collect();
        // Why: without `params` the options that others gave the module stay.
        if wanted.is_empty() || now == [wanted.clone()] {
            return;
        }
        let mut written = false;
        let from = if now.is_empty() { "none".to_owned() } else { now.join(" ") };
        let mut change = Some(Change::new(what, Some(from), &wanted, Disruption::Live));
        for (path, text) in &state.options {
            let mut text = commented(text, |line| options_of(line, name).is_some());
            if *path == own {
                text.push_str(&format!("options {} {wanted}\n", self.name));
                written = true;
            }
            plan.steps.push(Step::File(path.clone(), text));
            plan.changes.extend(change.take());
        }
        if !written {
            plan.steps.push(Step::File(own, format!("options {} {wanted}\n", self.name)));
            plan.changes.extend(change.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::Bench;

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
        let text = |change: &'_ Change| change.from.clone().unwrap_or_default();
        outcome.changes.iter().map(|c| (c.what.as_str(), &*text(c).leak(), c.to.as_str())).collect()
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
        let unknown = bench.run(&module(json!({"name": "nvidia"})), Mode::Predict);
        assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
    }
}

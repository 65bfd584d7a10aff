//! `sysctl`: a kernel parameter, in the running kernel and in the file that sets it at boot.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind,
    tasks::{Sysctl, SysctlState},
};
use serde_json::{Map, Value};

use crate::{
    declare::{Declaration, Node, Plan, Trouble},
    os::{
        files::{self, FileError, Ownership},
        glob,
    },
    tasks::nearest::nearest,
    world::{Content, Effect, Entry, Owned},
};

/// Folders with settings for boot, the first wins for files of one name (sysctl.d(5)).
const FOLDERS: &[&str] =
    &["/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d"];

/// A parameter as a path below `/proc/sys`, without a slash in front.
///
/// The first separator decides, as in sysctl(8): in `net.ipv4.conf.eth0/1.forwarding` slashes stand for dots.
fn key_path(name: &str) -> String {
    match name.find(['.', '/']).and_then(|at| name.get(at..=at)) {
        Some(".") => name
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

/// Values are equal when their words are.
fn words(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Path and value that a line sets.
fn setting(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', ';']) {
        return None;
    }
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    Some((key_path(name.strip_prefix('-').unwrap_or(name)), words(value)))
}

/// The value that a file sets: its last one.
fn value_in(text: &str, key: &str) -> Option<String> {
    text.lines().rev().filter_map(setting).find(|(name, _)| name == key).map(|(_, value)| value)
}

/// The file with the key set once, or not at all; other lines stay as they are.
fn edited(text: &str, name: &str, value: Option<&str>) -> String {
    let key = key_path(name);
    let ours: Vec<usize> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| setting(line).is_some_and(|(found, _)| found == key))
        .map(|(at, _)| at)
        .collect();
    let mut out = String::with_capacity(text.len() + 40);
    for (at, line) in text.lines().enumerate() {
        match value {
            Some(value) if ours.last() == Some(&at) => out.push_str(&format!("{name} = {value}\n")),
            _ if ours.contains(&at) => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    if let (Some(value), true) = (value, ours.is_empty()) {
        out.push_str(&format!("{name} = {value}\n"));
    }
    out
}

#[derive(Debug)]
pub struct State {
    /// Path below `/proc/sys`, shown name and value of each parameter meant.
    live: Vec<(String, String, String)>,
    file: PathBuf,
    text: Option<String>,
    owned: Option<Owned>,
    /// What the other files set at boot after ours: the file and the value.
    overridden: Option<(PathBuf, String)>,
}

#[derive(Debug)]
pub enum Step {
    File(String),
    Live { path: String, name: String, value: String },
}

/// Files that set parameters at boot, in the order they are read.
fn boot_files(node: &Node<'_>) -> Result<Vec<PathBuf>, FileError> {
    let mut by_name: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in FOLDERS {
        let folder = node.roots.path(folder);
        for name in node.world.names(&folder)? {
            if name.ends_with(".conf") {
                by_name.entry(name.clone()).or_insert_with(|| folder.join(name));
            }
        }
    }
    let mut files: Vec<PathBuf> = by_name.into_values().collect();
    // procps reads it last; systemd does where the distribution links it as 99-sysctl.conf.
    files.push(node.roots.etc("sysctl.conf"));
    Ok(files)
}

fn text_of(node: &Node<'_>, path: &Path) -> Result<Option<String>, Trouble> {
    match node.world.read(path)? {
        None => Ok(None),
        Some(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| Trouble::invalid(format!("{} is not UTF-8 text", path.display()))),
    }
}

/// The value at boot and the file that has the last word.
fn boot_value(node: &Node<'_>, key: &str) -> Result<Option<(PathBuf, String)>, Trouble> {
    let mut last = None;
    for path in boot_files(node)? {
        let Some(bytes) = node.world.read(&path)? else { continue };
        if let Some(value) = value_in(&String::from_utf8_lossy(&bytes), key) {
            last = Some((path, value));
        }
    }
    Ok(last)
}

fn missing(node: &Node<'_>, name: &str, key: &str) -> Trouble {
    let sys = node.roots.proc("sys");
    let folder = sys.join(key);
    let folder = folder.parent().unwrap_or(&sys);
    let Ok(entries) = fs::read_dir(folder) else {
        return Trouble::invalid(format!(
            "the running kernel has no parameter `{name}`; the module that brings it may not be loaded"
        ));
    };
    let prefix = name.rfind(['.', '/']).and_then(|at| name.get(..=at)).unwrap_or_default();
    let last = name.get(prefix.len()..).unwrap_or_default();
    let names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    let hint = nearest(last, names.iter().map(String::as_str))
        .map_or(String::new(), |near| format!("; did you mean `{prefix}{near}`?"));
    Trouble::invalid(format!("the running kernel has no parameter `{name}`{hint}"))
}

impl Declaration for Sysctl {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let key = key_path(&self.name);
        let file = node.roots.path(&self.sysctl_file);
        let text = text_of(node, &file)?;
        let owned = node.world.follow(&file)?.1.owned();
        let mut live = Vec::new();
        if self.state == SysctlState::Present && self.reload {
            let sys = node.roots.proc("sys");
            let paths: Vec<PathBuf> =
                if glob::is_glob(&key) { glob::expand(&sys.join(&key)) } else { vec![sys.join(&key)] };
            if paths.is_empty() {
                return Err(missing(node, &self.name, &key));
            }
            for path in paths {
                let below = path.strip_prefix(&sys).unwrap_or(&path).to_string_lossy().into_owned();
                let name = if below == key { self.name.clone() } else { below.replace('/', ".") };
                let read = match fs::read_to_string(&path) {
                    Ok(text) => words(&text),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        return Err(missing(node, &self.name, &key));
                    }
                    Err(error) => return Err(FileError::new("read", path, error).into()),
                };
                let assumed = match node.world.parameter(&below) {
                    Some(value) => Some(value),
                    None if node.world.rebooted() => boot_value(node, &below)?.map(|(_, value)| value),
                    None => None,
                };
                live.push((below, name, assumed.unwrap_or(read)));
            }
        }
        let overridden = boot_value(node, &key)?.filter(|(path, _)| {
            let files = boot_files(node).unwrap_or_default();
            let place = |wanted: &Path| files.iter().position(|path| path == wanted);
            place(path) > place(&file)
        });
        Ok(State { live, file, text, owned, overridden })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let key = key_path(&self.name);
        let text = state.text.as_deref().unwrap_or_default();
        let at_boot = value_in(text, &key);
        let what = format!("{} at boot", self.name);
        let wanted = match self.state {
            SysctlState::Absent => None,
            SysctlState::Present => self.value.as_deref().map(words),
        };
        for (path, name, value) in &state.live {
            if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != value) {
                let step = Step::Live { path: path.clone(), name: name.clone(), value: wanted.clone() };
                plan.push(step, Change::new(name, Some(value.clone()), wanted, Disruption::Live));
            }
        }
        if at_boot != wanted {
            let step = Step::File(edited(text, &self.name, wanted.as_deref()));
            let to = wanted.clone().unwrap_or_else(|| "not set".to_owned());
            plan.push(step, Change::new(what, at_boot, to, Disruption::Live));
        }
        if let (Some(wanted), Some((path, value))) = (&wanted, &state.overridden)
            && wanted != value
        {
            plan.warnings.push(format!(
                "{} sets {} to {value} at boot, after {}",
                path.display(),
                self.name,
                self.sysctl_file
            ));
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let owned = state.owned.unwrap_or(Owned { uid: 0, gid: 0, mode: 0o644 });
        let effect = |step: &Step| match step {
            Step::Live { path, value, .. } => Effect::Parameter { name: path.clone(), value: value.clone() },
            Step::File(text) => Effect::Path {
                path: state.file.clone(),
                entry: Entry::File { owned, content: Content::Known(text.as_bytes().into()) },
            },
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
                Step::Live { path, name, value } => {
                    let path = node.roots.proc("sys").join(path);
                    let written = OpenOptions::new()
                        .write(true)
                        .open(&path)
                        .and_then(|mut file| file.write_all(format!("{value}\n").as_bytes()));
                    match written {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                            return Err(Trouble::failed(
                                FailureKind::Invalid,
                                format!("the kernel does not take `{value}` as {name}"),
                            ));
                        }
                        Err(error) => return Err(FileError::new("set", path, error).into()),
                    }
                }
                Step::File(text) => {
                    if let Some(folder) = state.file.parent().filter(|folder| !folder.exists()) {
                        fs::create_dir_all(folder).map_err(|error| FileError::new("make", folder, error))?;
                    }
                    files::replace(&state.file, text.as_bytes(), Ownership::default())?;
                }
            }
        }
        Ok(Map::new())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};
    use proptest::prelude::*;

    use super::*;
    use crate::tasks::testing::Bench;

    fn declared(name: &str, value: &str) -> Sysctl {
        serde_json::from_value(serde_json::json!({"name": name, "value": value})).unwrap()
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("proc/sys/vm/swappiness", "60\n");
        bench.write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n");
        bench
    }

    #[test]
    fn check_changes_nothing_and_apply_converges() {
        let bench = bench();
        let before = bench.snapshot();
        let predicted = bench.run(&declared("vm.swappiness", "10"), Mode::Predict);
        assert_eq!(bench.snapshot(), before);
        bench.forget();
        let applied = bench.run(&declared("vm.swappiness", "10"), Mode::Apply);
        assert_eq!(applied.status, OpStatus::Changed);
        assert_eq!(applied.changes, predicted.changes);
        let shown: Vec<_> =
            applied.changes.iter().map(|c| (c.what.as_str(), c.from.as_deref(), c.to.as_str())).collect();
        assert_eq!(shown, [("vm.swappiness", Some("60"), "10"), ("vm.swappiness at boot", None, "10")]);
        assert_eq!(bench.read("etc/sysctl.d/90-gpufleet.conf"), "vm.swappiness = 10\n");
        let settled = bench.snapshot();
        assert_eq!(bench.run(&declared("vm.swappiness", "10"), Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
    }

    #[test]
    fn whitespace_is_no_difference() {
        let bench = bench();
        let outcome = bench.run(&declared("net.ipv4.tcp_rmem", "4096 131072 6291456"), Mode::Predict);
        assert_eq!(outcome.changes.len(), 1, "only the file differs: {:?}", outcome.changes);
    }

    #[test]
    fn a_prediction_sees_the_one_before_it() {
        let bench = bench();
        assert_eq!(bench.run(&declared("vm.swappiness", "10"), Mode::Predict).status, OpStatus::Changed);
        assert_eq!(bench.run(&declared("vm.swappiness", "10"), Mode::Predict).status, OpStatus::Ok);
        bench.overlay.activate(Disruption::Reboot);
        assert_eq!(bench.run(&declared("vm.swappiness", "10"), Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        assert_eq!(bench.run(&declared("vm.swappiness", "10"), Mode::Predict).status, OpStatus::Changed);
    }

    #[test]
    fn a_missing_parameter_gets_a_suggestion() {
        let outcome = bench().run(&declared("vm.swapiness", "10"), Mode::Apply);
        let OpStatus::Failed { kind: FailureKind::Invalid, message } = outcome.status else {
            panic!("{outcome:?}")
        };
        assert_eq!(
            message,
            "the running kernel has no parameter `vm.swapiness`; did you mean `vm.swappiness`?"
        );
    }

    #[test]
    fn absent_leaves_the_kernel_alone() {
        let bench = bench();
        bench.write("etc/sysctl.d/90-gpufleet.conf", "# ours\nvm.swappiness=10\nkernel.panic = 5\n");
        let absent: Sysctl =
            serde_json::from_value(serde_json::json!({"name": "vm.swappiness", "state": "absent"})).unwrap();
        let outcome = bench.run(&absent, Mode::Apply);
        assert_eq!(
            (outcome.changes[0].from.as_deref(), outcome.changes[0].to.as_str()),
            (Some("10"), "not set")
        );
        assert_eq!(bench.read("etc/sysctl.d/90-gpufleet.conf"), "# ours\nkernel.panic = 5\n");
        assert_eq!(bench.read("proc/sys/vm/swappiness"), "60\n");
    }

    #[test]
    fn a_later_file_is_warned_about() {
        let bench = bench();
        bench.write("etc/sysctl.d/99-local.conf", "vm.swappiness = 30\n");
        let outcome = bench.run(&declared("vm.swappiness", "10"), Mode::Predict);
        assert!(
            outcome.warnings[0].contains("99-local.conf sets vm.swappiness to 30 at boot"),
            "{outcome:?}"
        );
    }

    #[test]
    fn a_value_that_does_not_stick_is_unconverged() {
        let bench = bench();
        // Writing to /dev/null succeeds and changes nothing, as some parameters do.
        std::fs::remove_file(bench.path("proc/sys/vm/swappiness")).unwrap();
        std::os::unix::fs::symlink("/dev/null", bench.path("proc/sys/vm/swappiness")).unwrap();
        let outcome = bench.run(&declared("vm.swappiness", "10"), Mode::Apply);
        assert!(
            matches!(outcome.status, OpStatus::Failed { kind: FailureKind::Unconverged, .. }),
            "{outcome:?}"
        );
    }

    #[test]
    fn what_cannot_be_read_is_unknown_and_never_ok() {
        let bench = bench();
        std::fs::create_dir_all(bench.path("etc/sysctl.d/90-gpufleet.conf")).unwrap();
        let predicted = bench.run(&declared("vm.swappiness", "60"), Mode::Predict);
        assert!(matches!(predicted.status, OpStatus::Unknown { .. }), "{predicted:?}");
        let applied = bench.run(&declared("vm.swappiness", "60"), Mode::Apply);
        assert!(matches!(applied.status, OpStatus::Failed { kind: FailureKind::Io, .. }), "{applied:?}");
    }

    #[test]
    fn names_with_slashes_and_dots() {
        assert_eq!(key_path("net.ipv4.conf.eth0/1.forwarding"), "net/ipv4/conf/eth0.1/forwarding");
        assert_eq!(key_path("net/ipv4/conf/eth0.1/forwarding"), "net/ipv4/conf/eth0.1/forwarding");
    }

    proptest! {
        #[test]
        fn editing_sets_exactly_one_value(
            lines in proptest::collection::vec("(# c|a\\.b ?= ?[0-9]|a/b=7|-a.b = 3|c\\.d = 1|)", 0..8), value in "[0-9]{1,2}"
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let once = edited(&text, "a.b", Some(&value));
            prop_assert_eq!(value_in(&once, "a/b"), Some(value.clone()));
            prop_assert_eq!(once.lines().filter_map(setting).filter(|(key, _)| key == "a/b").count(), 1);
            prop_assert_eq!(edited(&once, "a.b", Some(&value)), once.clone());
            let others = |text: &str| text.lines().filter(|line| setting(line).is_none_or(|(key, _)| key != "a/b")).map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(others(&once), others(&text));
            let gone = edited(&once, "a.b", None);
            prop_assert_eq!(value_in(&gone, "a/b"), None);
            prop_assert_eq!(others(&gone), others(&text));
        }
    }
}

//! `sysctl`: a kernel parameter, in the running kernel and in the file that sets it at boot.

mod boot;
mod cloud;
mod networks;
pub mod owners;
mod value;

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Layer, Property, Subject,
    change::Value as Typed,
    glob::Glob,
    tasks::{Sysctl, SysctlState},
};
use serde_json::{Map, Value};

use self::{
    boot::{Boot, setting, value_in},
    owners::Owner,
    value::{equal, words},
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, At, FileError, Ownership},
        glob,
        lines::{self, Edit},
        tree,
    },
    tasks::{knobs, modprobe, nearest::nearest, thp},
    world::{Content, Effect, Entry, Owned},
};

/// Returns a parameter's path below `/proc/sys`, without a leading slash.
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

/// Returns the file with the key set once, or not at all; other lines stay as they are.
fn edited(text: &str, name: &str, value: Option<&str>) -> String {
    let key = key_path(name);
    let is_ours = |line: &str| setting(line).is_some_and(|(found, _)| found == key);
    let last = text.lines().enumerate().filter(|(_, line)| is_ours(line)).map(|(at, _)| at).last();
    let mut out = lines::edited(text, |at, line| match value {
        Some(value) if last == Some(at) => Edit::Set(format!("{name} = {value}")),
        _ => Edit::remove_if(is_ours(line)),
    });
    if let (Some(value), None) = (value, last) {
        lines::append(&mut out, &format!("{name} = {value}"));
    }
    out
}

#[derive(Debug)]
pub struct State {
    /// Path below `/proc/sys`, shown name and value of each parameter that is meant.
    live: Vec<(String, String, String)>,
    /// Those of them whose value after the boot is the kernel's own, which cannot be read before.
    open: Vec<String>,
    file: PathBuf,
    text: Option<String>,
    owned: Option<Owned>,
    boot: Boot,
    /// The present value, even if it is not to be changed now; `None` if the running kernel has no such parameter.
    now: Option<String>,
    /// Why the running kernel takes no other value here.
    fixed: Option<String>,
    /// Who else sets it.
    owners: Vec<Owner>,
    /// What may happen to the value at boot, whatever the files say.
    doubts: Vec<String>,
    /// The present value of the partner; setting the partner makes this parameter 0.
    partner: Option<String>,
}

#[derive(Debug)]
pub enum Step {
    File(String),
    Live { path: String, name: String, value: String },
}

fn text_of(node: &Node<'_>, path: &Path) -> Result<Option<String>, Trouble> {
    match node.world.read(path)? {
        None => Ok(None),
        Some(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| Trouble::invalid(format!("{} is not UTF-8 text", path.display()))),
    }
}

/// Returns what it means that the running kernel has no such parameter.
fn missing(node: &Node<'_>, name: &str, key: &str) -> Trouble {
    let none = format!("the running kernel has no parameter `{name}`");
    if let Some(module) = owners::module(key) {
        if modprobe::is_loaded_by_plan(&node.world, module) {
            return Trouble::Possible;
        }
        return Trouble::missing(format!(
            "{none}: the module {module} brings it; `modprobe: {{name: {module}, persistent: present}}` loads it first"
        ));
    }
    let sys = node.roots.proc("sys");
    let folder = sys.join(key);
    let entries = fs::read_dir(folder.parent().unwrap_or(&sys));
    let prefix = name.rfind(['.', '/']).and_then(|at| name.get(..=at)).unwrap_or_default();
    let last = name.get(prefix.len()..).unwrap_or_default();
    let names: Vec<String> =
        entries.into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    if let Some(near) = nearest(last, names.iter().map(String::as_str)) {
        return Trouble::invalid(format!("{none}; did you mean `{prefix}{near}`?"));
    }
    let why = match key {
        _ if owners::in_container(node) => "; this is a container, and the host may have it",
        _ if key.starts_with("kernel/sched_") => {
            "; Linux 5.13 moved most of the scheduler's to /sys/kernel/debug/sched"
        }
        _ if names.is_empty() => {
            "; the part of the kernel that has it is not there, or its module is not loaded"
        }
        _ => "",
    };
    Trouble::NotApplicable(format!("{none}{why}"))
}

/// Returns why a parameter takes no other value; `None` if it does. Source: kernel, fs/proc/proc_sysctl.c: the mode
/// counts for root too.
fn fixed(node: &Node<'_>, path: &Path, name: &str) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    let here = if owners::in_container(node) {
        "in this container, and the host's value counts"
    } else {
        "on this kernel, or in this network namespace"
    };
    (mode & 0o222 == 0 || files::is_read_only(path)).then(|| format!("{name} cannot be changed {here}"))
}

/// Returns the amount of free memory that the kernel keeps, if a file of sysctl.d declares just that. A change of
/// transparent huge pages raises it (kernel, mm/khugepaged.c: `set_recommended_min_free_kbytes`).
///
/// # Errors
/// If such a file cannot be read.
pub fn kept_free_memory(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    let path = node.roots.proc("sys").join(FREE_MEMORY);
    let Ok(now) = fs::read_to_string(path) else { return Ok(None) };
    let declared = Boot::read(node, &node.roots.etc("sysctl.d/90-gpufleet.conf"))?.value(FREE_MEMORY);
    Ok(declared.filter(|declared| equal(declared, &words(&now))))
}

/// Puts the amount of free memory back.
///
/// # Errors
/// If the kernel does not take it.
pub fn keep_free_memory(node: &Node<'_>, value: &str) -> Result<(), Trouble> {
    let path = node.roots.proc("sys").join(FREE_MEMORY);
    let now = fs::read_to_string(&path).map(|text| words(&text)).unwrap_or_default();
    if equal(&now, value) {
        return Ok(());
    }
    set(&path, value).at("set", &path).map_err(Trouble::from)
}

/// Writes a parameter, in one piece.
fn set(path: &Path, value: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(format!("{value}\n").as_bytes())
}

/// Returns the largest number of open files that the kernel gives a process, as earlier tasks of a prediction assume it.
///
/// # Errors
/// If it, or the files that set it at boot, cannot be read.
pub fn nr_open(node: &Node<'_>) -> Result<Option<u64>, Trouble> {
    let key = "fs/nr_open";
    let assumed = match node.world.parameter(key) {
        None if node.world.rebooted() => Boot::read(node, &node.roots.path("/etc/sysctl.conf"))?.value(key),
        assumed => assumed,
    };
    let text = match assumed {
        Some(text) => Some(text),
        None => knobs::value(node, "/proc/sys/fs/nr_open")?,
    };
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

/// The memory that the kernel keeps free.
const FREE_MEMORY: &str = "vm/min_free_kbytes";

impl NodeKind for Sysctl {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let key = key_path(&self.name);
        let file = node.roots.path(&self.sysctl_file);
        let text = text_of(node, &file)?;
        let owned = node.world.follow(&file)?.1.owned();
        let boot = Boot::read(node, &file)?;
        let (mut live, mut open) = (Vec::new(), Vec::new());
        let sys = node.roots.proc("sys");
        let paths: Vec<PathBuf> = if Glob::is_glob(&key) {
            glob::expand(&sys.join(&key), Glob::of_shell)
        } else {
            vec![sys.join(&key)]
        };
        for path in &paths {
            let mode = fs::metadata(path).map_or(0o444, |meta| meta.permissions().mode());
            if mode & 0o444 == 0 {
                return Err(Trouble::invalid(format!(
                    "`{}` starts something and holds no value; `command: sysctl -w` starts it",
                    self.name
                )));
            }
        }
        let first = paths.first().and_then(|path| fs::read_to_string(path).ok());
        let mut now = first.map(|text| words(&text));
        let absent = paths.iter().all(|path| matches!(path.try_exists(), Ok(false)));
        let mut doubts = Vec::new();
        if self.state == SysctlState::Present && self.is_live() && absent && self.ignoreerrors {
            doubts.push(format!(
                "{}; only {} is written, as `ignoreerrors` asks",
                missing(node, &self.name, &key).text(),
                self.sysctl_file
            ));
        } else if self.state == SysctlState::Present && self.is_live() {
            if absent {
                return Err(missing(node, &self.name, &key));
            }
            for path in paths {
                let below = path.strip_prefix(&sys).unwrap_or(&path).to_string_lossy().into_owned();
                let name = if below == key { self.name.clone() } else { below.replace('/', ".") };
                let read = fs::read_to_string(&path).at("read", &path)?;
                let read = words(&read);
                let assumed = match node.world.parameter(&below) {
                    Some(value) => Some(value),
                    None if node.world.rebooted() => boot.value(&below),
                    None => None,
                };
                if assumed.is_none() && node.world.rebooted() {
                    open.push(below.clone());
                }
                live.push((below, name, assumed.unwrap_or(read)));
            }
            now = live.first().map(|(_, _, value)| value.clone());
        }
        let partner = value::partner(&key).and_then(|partner| {
            let read = || fs::read_to_string(node.roots.proc("sys").join(partner)).ok();
            node.world.parameter(partner).or_else(read).map(|text| words(&text))
        });
        let fixed = live.iter().find_map(|(below, name, _)| fixed(node, &sys.join(below), name));
        if let Some(module) = owners::module(&key)
            && !modprobe::comes_at_boot(node, module)?
        {
            doubts.push(format!(
                "{} comes with the module {module}, which no file of modules-load.d loads: at boot there may be nothing to \
                 set; `modprobe: {{name: {module}, persistent: present}}` loads it in time",
                self.name
            ));
        }
        if key == FREE_MEMORY
            && let Some(path) = thp::set_at_boot_by(node)?
        {
            doubts.push(format!(
                "{} sets transparent huge pages at boot, in no order to the files of sysctl.d, and the kernel then raises {}; \
                 `transparent_hugepage=` on the kernel command line comes before both",
                path.display(),
                self.name
            ));
        }
        let (owners, doubt) = owners::read(node, &key, &self.sysctl_file)?;
        doubts.extend(doubt);
        Ok(State { live, open, file, text, owned, boot, now, partner, fixed, owners, doubts })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let key = key_path(&self.name);
        let text = state.text.as_deref().unwrap_or_default();
        let at_boot = value_in(text, &key);
        let setting = |name: &str| Subject::kernel_setting(name);
        let wanted = match self.state {
            SysctlState::Absent => None,
            SysctlState::Present => self.value.as_deref().map(words),
        };
        if let Some(wanted) = &wanted {
            value::check(&self.name, &key, wanted, state.now.as_deref())?;
            plan.warnings.extend(value::doubt(&self.name, wanted, state.now.as_deref()));
        }
        for (path, name, value) in &state.live {
            let Some(wanted) = wanted.as_ref() else { continue };
            if state.open.contains(path) {
                let (from, to) = (Typed::Unknown, Typed::parsed(wanted));
                let open = Change::new(setting(name), Property::VALUE, from, to, Disruption::Live)
                    .with_note("no file sets it, so its value after the boot is known only in the run");
                plan.changes.push(open.possible());
            } else if !equal(wanted, value) {
                if let Some(why) = &state.fixed {
                    return Err(Trouble::NotApplicable(format!("{why}: it is {value}")));
                }
                let step = Step::Live { path: path.clone(), name: name.clone(), value: wanted.clone() };
                let (from, to) = (Typed::parsed(value), Typed::parsed(wanted));
                let mut change = Change::new(setting(name), Property::VALUE, from, to, Disruption::Live);
                if let (Some(partner), Some(reads)) = (value::partner(path), &state.partner)
                    && !value::is_zero(reads)
                {
                    change =
                        change.with_note(format!("{} becomes 0, now {reads}", partner.replace('/', ".")));
                }
                plan.push(step, change);
            }
        }
        let same = match (&at_boot, &wanted) {
            (Some(one), Some(other)) => equal(one, other),
            (None, None) => true,
            _ => false,
        };
        if !same {
            let step = Step::File(edited(text, &self.name, wanted.as_deref()));
            let (from, to) = (at_boot.as_deref().map(Typed::parsed), wanted.as_deref().map(Typed::parsed));
            let change = Change::new(setting(&self.name), Property::VALUE, from, to, Disruption::Live);
            plan.push(step, change.at(Layer::Boot));
        }
        if let Some(wanted) = &wanted {
            self.judge_boot(state, &key, wanted, &mut plan)?;
            self.judge_owners(state, wanted, &mut plan);
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let partner = plan.steps.iter().find_map(|step| match step {
            Step::Live { path, value, .. } if !value::is_zero(value) => value::partner(path),
            _ => None,
        });
        let partner = partner.map(|name| Effect::Parameter { name: name.to_owned(), value: "0".to_owned() });
        let owned = state.owned.unwrap_or(Owned { uid: 0, gid: 0, mode: 0o644 });
        let effect = |step: &Step| match step {
            Step::Live { path, value, .. } => Effect::Parameter { name: path.clone(), value: value.clone() },
            Step::File(text) => Effect::Path {
                path: state.file.clone(),
                entry: Entry::File { owned, content: Content::Known(text.as_bytes().into()) },
            },
        };
        let wanted = self.value.as_deref().map(words).unwrap_or_default();
        let opened =
            state.open.iter().map(|path| Effect::Parameter { name: path.clone(), value: wanted.clone() });
        plan.steps.iter().map(effect).chain(opened).chain(partner).collect()
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
                    match set(&path, value) {
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
                        tree::make_dirs(folder)?;
                    }
                    files::replace(&state.file, text.as_bytes(), Ownership::default())?;
                }
            }
        }
        Ok(Map::new())
    }
}

/// Checks a declared value against those who set it too.
trait AtBoot {
    /// Programs that set it after the files.
    fn judge_owners(&self, state: &State, wanted: &str, plan: &mut Plan<Step>);
    /// Files that are read at boot.
    fn judge_boot(
        &self,
        state: &State,
        key: &str,
        wanted: &str,
        plan: &mut Plan<Step>,
    ) -> Result<(), Trouble>;
}

impl AtBoot for Sysctl {
    fn judge_owners(&self, state: &State, wanted: &str, plan: &mut Plan<Step>) {
        plan.warnings.extend(state.doubts.iter().cloned());
        for Owner { who, value, wins, then } in &state.owners {
            if value.as_ref().is_some_and(|value| equal(value, wanted)) {
                continue;
            }
            let to = value.as_ref().map_or(String::new(), |value| format!(" to {value}"));
            let told = format!("{who} sets {}{to} too: {then}", self.name);
            if *wins {
                plan.warnings
                    .push(format!("{told}, so that the value of {} does not last", self.sysctl_file));
                continue;
            }
            for change in plan.changes.iter_mut().filter(|change| change.note.is_none()) {
                change.note = Some(told.clone());
            }
        }
    }

    fn judge_boot(
        &self,
        state: &State,
        key: &str,
        wanted: &str,
        plan: &mut Plan<Step>,
    ) -> Result<(), Trouble> {
        if let Some(why) = state.boot.unread() {
            plan.warnings.push(format!("{} is not read at boot: {why}", self.sysctl_file));
            return Ok(());
        }
        if let Some(later) = state.boot.overriding(key)
            && !equal(&later.value, wanted)
        {
            let name = if later.key == key { self.name.clone() } else { later.key.replace('/', ".") };
            let order =
                if later.key == key { format!(", after {}", self.sysctl_file) } else { String::new() };
            plan.warnings.push(format!(
                "{} sets {name} to {} at boot{order}",
                later.path.display(),
                later.value
            ));
        }
        if let Some(partner) = value::partner(key)
            && let Some((later, same_file)) = state.boot.beside(partner)
            && !value::is_zero(&later.value)
        {
            let (name, path) = (partner.replace('/', "."), later.path.display());
            if same_file {
                return Err(Trouble::invalid(format!(
                    "{path} sets {name} too, and each of the two makes the other one 0; declare one of them, and the \
                     other one with `state: absent`"
                )));
            }
            plan.warnings.push(format!(
                "{path} sets {name} to {} at boot, after {}, which makes {} 0",
                later.value, self.sysctl_file, self.name
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "owners_tests.rs"]
mod owners_tests;

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};
    use proptest::prelude::*;

    use super::*;
    use crate::tasks::testing::{Bench, told};

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
        let shown: Vec<_> = applied.changes.iter().map(told).collect();
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
        bench.activate(Disruption::Reboot);
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

    /// Public roles write `sysctl_set` beside `reload`, and many of them `ignoreerrors`.
    #[test]
    fn the_words_of_ansibles_module_go_together() {
        let of = |more: serde_json::Value| -> Sysctl {
            let mut task = serde_json::json!({"name": "vm.swappiness", "value": 10});
            task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(task).unwrap()
        };
        for (more, live) in [
            (serde_json::json!({"sysctl_set": true, "reload": true}), "10\n"),
            (serde_json::json!({"sysctl_set": "yes", "reload": false}), "10\n"),
            (serde_json::json!({"sysctl_set": false}), "10\n"),
            (serde_json::json!({"sysctl_set": false, "reload": false}), "60\n"),
        ] {
            let bench = bench();
            assert_eq!(bench.run(&of(more.clone()), Mode::Apply).status, OpStatus::Changed);
            assert_eq!(bench.read("proc/sys/vm/swappiness"), live, "{more}");
        }
        let bench = bench();
        let lacking = of(serde_json::json!({"name": "vm.swapiness", "ignoreerrors": true}));
        let done = bench.run(&lacking, Mode::Apply);
        assert_eq!((&done.status, done.changes.len()), (&OpStatus::Changed, 1));
        assert_eq!(
            done.warnings,
            ["the running kernel has no parameter `vm.swapiness`; did you mean `vm.swappiness`?; only \
                 /etc/sysctl.d/90-gpufleet.conf is written, as `ignoreerrors` asks"]
        );
        assert_eq!(bench.run(&lacking, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn other_lines_keep_their_ends() {
        let bench = bench();
        bench.write("etc/sysctl.d/90-gpufleet.conf", "# ours\r\nvm.swappiness=60\r\nkernel.panic = 5\r\n");
        assert_eq!(bench.run(&declared("vm.swappiness", "10"), Mode::Apply).status, OpStatus::Changed);
        assert_eq!(
            bench.read("etc/sysctl.d/90-gpufleet.conf"),
            "# ours\r\nvm.swappiness = 10\r\nkernel.panic = 5\r\n"
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
            (outcome.changes[0].from_text().as_deref(), outcome.changes[0].to_text().as_str()),
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

    /// systemd-sysctl's order, as measured on Debian 12 with systemd 252: 70 at boot and 74 by procps.
    #[test]
    fn the_file_that_systemd_reads_last_counts() {
        let bench = bench();
        let warned = |bench: &Bench, task: &Sysctl| {
            bench.forget();
            bench
                .run(task, Mode::Predict)
                .warnings
                .iter()
                .map(|text| text.replace(bench.path("").to_str().unwrap(), "/"))
                .collect::<Vec<_>>()
        };
        let task = declared("vm.swappiness", "10");
        bench.write("etc/sysctl.conf", "vm.swappiness = 74\n");
        assert_eq!(warned(&bench, &task), [""; 0], "nothing leads there");
        std::fs::create_dir_all(bench.path("etc/sysctl.d")).unwrap();
        std::os::unix::fs::symlink("../sysctl.conf", bench.path("etc/sysctl.d/99-sysctl.conf")).unwrap();
        assert_eq!(
            warned(&bench, &task),
            [
                "/etc/sysctl.d/99-sysctl.conf sets vm.swappiness to 74 at boot, after /etc/sysctl.d/90-gpufleet.conf"
            ]
        );
        bench.write("etc/sysctl.d/local.conf", "vm.swappiness = 0xa\n");
        assert_eq!(warned(&bench, &task), [""; 0], "letters sort after digits, and 0xa is 10");
        let theirs = |file: &str| -> Sysctl {
            serde_json::from_value(
                serde_json::json!({"name": "vm.swappiness", "value": "10", "sysctl_file": file}),
            )
            .unwrap()
        };
        std::fs::remove_file(bench.path("etc/sysctl.d/local.conf")).unwrap();
        assert_eq!(warned(&bench, &theirs("/etc/sysctl.conf")), [""; 0], "it is its own last word");
        assert!(
            warned(&bench, &theirs("/etc/sysctl.local"))[0]
                .starts_with("/etc/sysctl.local is not read at boot")
        );
        bench.write("etc/sysctl.d/50-x.conf", "");
        assert_eq!(
            warned(&bench, &theirs("/usr/lib/sysctl.d/50-x.conf"))[0],
            "/usr/lib/sysctl.d/50-x.conf is not read at boot: /etc/sysctl.d/50-x.conf has the same name and takes its place"
        );
        // A masked file sets nothing, and does not make the rest unreadable.
        bench.write("usr/lib/sysctl.d/99-zz.conf", "vm.swappiness = 1\n");
        std::os::unix::fs::symlink("/dev/null", bench.path("etc/sysctl.d/99-zz.conf")).unwrap();
        bench.write("etc/sysctl.conf", "");
        assert_eq!(warned(&bench, &task), [""; 0]);
    }

    #[test]
    fn lines_for_many_parameters_count_for_each_that_has_no_line_of_its_own() {
        let bench = Bench::new();
        for name in ["all", "eth0"] {
            bench.write(&format!("proc/sys/net/ipv4/conf/{name}/rp_filter"), "0\n");
        }
        bench.write(
            "etc/sysctl.d/10-a.conf",
            "net.ipv4.conf.*.rp_filter = 2\nnet.ipv4.conf.eth0.rp_filter = 1\n",
        );
        let value = |key: &str| bench.node(|node| Boot::read(node, Path::new("/x")).unwrap().value(key));
        assert_eq!(value("net/ipv4/conf/all/rp_filter").as_deref(), Some("2"));
        assert_eq!(value("net/ipv4/conf/eth0/rp_filter").as_deref(), Some("1"));
        let all = bench.run(&declared("net.ipv4.conf.*.rp_filter", "0"), Mode::Predict);
        assert!(
            all.warnings[0].contains("10-a.conf sets net.ipv4.conf.eth0.rp_filter to 1 at boot"),
            "{all:?}"
        );
        bench.write("etc/sysctl.d/20-b.conf", "-net.ipv4.conf.all.rp_filter\n");
        assert_eq!(value("net/ipv4/conf/all/rp_filter"), None);
    }

    #[test]
    fn hexadecimal_values_are_no_change_for_ever() {
        let bench = bench();
        let task = declared("vm.swappiness", "0x3c");
        assert_eq!(bench.run(&task, Mode::Apply).changes.len(), 1, "only the file");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.run(&declared("vm.swappiness", "60"), Mode::Apply).status, OpStatus::Ok);
        let outcome = bench.run(&declared("vm.swappiness", "010"), Mode::Predict);
        assert!(matches!(outcome.status, OpStatus::Failed { kind: FailureKind::Invalid, .. }), "{outcome:?}");
    }

    #[test]
    fn a_leading_zero_in_a_file_is_no_decimal_number() {
        let bench = bench();
        bench.write("proc/sys/vm/swappiness", "10\n");
        bench.write("etc/sysctl.d/90-gpufleet.conf", "vm.swappiness = 010\n");
        let done = bench.run(&declared("vm.swappiness", "10"), Mode::Apply);
        assert_eq!((done.status, done.changes.len()), (OpStatus::Changed, 1));
        assert_eq!(bench.read("etc/sysctl.d/90-gpufleet.conf"), "vm.swappiness = 10\n");
        bench.write("etc/sysctl.d/95-x.conf", "vm.swappiness = 010\n");
        let warned = bench.run(&declared("vm.swappiness", "10"), Mode::Predict).warnings;
        assert!(warned[0].contains("95-x.conf sets vm.swappiness to 010 at boot"), "{warned:?}");
        let later = |name: &str| -> Sysctl {
            serde_json::from_value(serde_json::json!({"name": name, "value": "010", "reload": false}))
                .unwrap()
        };
        let refused = bench.run(&later("vm.swappiness"), Mode::Apply);
        let OpStatus::Failed { kind: FailureKind::Invalid, message } = refused.status else {
            panic!("{refused:?}")
        };
        assert!(message.contains("reads `010` as octal"), "{message}");
        let unknown = bench.run(&later("net.ipv4.not_here"), Mode::Predict);
        assert_eq!(unknown.status, OpStatus::Changed);
        assert!(unknown.warnings[0].contains("reads `010` as octal"), "{unknown:?}");
    }

    #[test]
    fn parameters_that_make_each_other_zero_are_declared_one_at_a_time() {
        let bench = Bench::new();
        bench.write("proc/sys/vm/dirty_ratio", "20\n");
        bench.write("proc/sys/vm/dirty_bytes", "0\n");
        let bytes = declared("vm.dirty_bytes", "1000000");
        let outcome = bench.run(&bytes, Mode::Predict);
        assert_eq!(outcome.changes[0].note.as_deref(), Some("vm.dirty_ratio becomes 0, now 20"));
        bench.write("etc/sysctl.d/95-x.conf", "vm.dirty_ratio = 30\n");
        let both = bench.run(&declared("vm.dirty_ratio", "20"), Mode::Predict);
        assert!(matches!(both.status, OpStatus::Failed { kind: FailureKind::Invalid, .. }), "{both:?}");
        bench.forget();
        let outcome = bench.run(&bytes, Mode::Predict);
        assert!(outcome.warnings[0].ends_with("which makes vm.dirty_bytes 0"), "{outcome:?}");
        bench.write("etc/sysctl.d/90-gpufleet.conf", "vm.dirty_ratio = 30\n");
        bench.forget();
        let OpStatus::Failed { message, .. } = bench.run(&bytes, Mode::Predict).status else {
            panic!("taken")
        };
        assert!(message.contains("declare one of them"), "{message}");
    }

    #[test]
    fn a_value_that_does_not_stick_is_unconverged() {
        let bench = bench();
        // Writing to /dev/null succeeds without effect, as with some parameters.
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

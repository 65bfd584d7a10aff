//! `unit_settings`: a drop-in of a systemd unit, and that the unit's process runs with it.
//!
//! systemd reads its files again after each write, because it misses the first drop-in of a new folder. The process is
//! judged by what the kernel says of it. One that is older than its settings is restarted where that is allowed; one that is
//! newer and yet differs is told and left alone, because another restart would give the same.

mod process;
pub mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    change::Value as Typed,
    tasks::{DaemonRestart, Presence, UnitSetting, UnitSettings, unit_limit},
};
use serde_json::{Map, Value, json};

use self::{
    process::{Process, Verdict},
    text::{Outcome, UnitFile},
};
use super::{
    edits::{self, Present},
    started, sysctl,
    systemd::{ask, foreseen, not_found, parse, systemctl},
    tool,
    unit_files::{self, DropIns},
};
use crate::{
    deadline::Deadline,
    declare::{Node, NodeKind, Plan, Trouble},
    os::{files::Ownership, reload, units},
    world::Effect,
};

const PROPERTIES: &str = "Id,Names,LoadState,LoadError,ActiveState,NeedDaemonReload,FragmentPath,DropInPaths,MainPID,ControlGroup,\
     ActiveEnterTimestampMonotonic";
/// Units whose restart programs on the GPUs or their jobs may notice.
const CLIENTS: [&str; 15] = [
    "containerd.service",
    "crio.service",
    "docker.service",
    "k3s-agent.service",
    "k3s.service",
    "kubelet.service",
    "nvidia-dcgm.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-mps.service",
    "nvidia-persistenced.service",
    "podman.service",
    "rke2-agent.service",
    "rke2-server.service",
    "slurmd.service",
];
/// Folders of drop-ins that `systemctl set-property` writes.
const SET_PROPERTY: [&str; 2] = ["/etc/systemd/system.control", "/run/systemd/system.control"];
/// Time for a service to end over its new settings after its start.
const STEADY: Duration = Duration::from_millis(300);
/// Time to start the unit with its old settings.
const WAY_BACK: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct State {
    unit: String,
    systemctl: PathBuf,
    file: Present,
    wanted: String,
    /// What all files give, for each declared setting.
    outcomes: Vec<(UnitSetting, Outcome)>,
    /// A drop-in of this name that comes before ours.
    masked_by: Option<PathBuf>,
    /// Drop-ins of `systemctl set-property` with declared settings.
    set_property: Vec<PathBuf>,
    /// Whether systemd has loaded other files than those on disk.
    unread: bool,
    /// Most open files that the kernel gives a process.
    nr_open: Option<u64>,
    running: Running,
}

/// What runs of the unit.
#[derive(Debug)]
enum Running {
    /// Nothing, or not before the next start.
    Nothing,
    /// It was started with the files of now.
    Fresh,
    /// It is up, without a process that systemd calls its main one.
    Untold {
        /// Whether it was started before the drop-in was written, or nobody knows.
        old: bool,
    },
    Process {
        /// Whether it is older than the drop-in.
        old: bool,
        class: Disruption,
        /// By setting, `Service.Nice`.
        verdicts: BTreeMap<String, Verdict>,
    },
}

#[derive(Clone, Debug)]
pub enum Step {
    File(edits::Step),
    Reload,
    Restart,
}

/// The name under which a prediction notes that the unit was started with its settings.
fn note(unit: &str) -> String {
    format!("unit_settings {unit}")
}

fn full(entry: &UnitSetting) -> String {
    format!("{}.{}", entry.section, entry.key)
}

/// The settings of a drop-in's text, by their full name.
fn by_name(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in text::assignments(text) {
        all.entry(format!("{}.{}", one.section, one.key)).or_default().push(one.value);
    }
    all
}

fn has_settings(file: &Present) -> bool {
    !by_name(&String::from_utf8_lossy(file.bytes.as_deref().unwrap_or_default())).is_empty()
}

fn shown(values: Option<&Vec<String>>) -> Typed {
    let Some(values) = values else { return Typed::Absent };
    let word = |value: &String| if value.is_empty() { "(emptied)".to_owned() } else { value.clone() };
    match values.as_slice() {
        [one] => Typed::text(word(one)),
        many => Typed::list(many.iter().map(word)),
    }
}

impl NodeKind for UnitSettings {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let systemctl = systemctl(node)?;
        let unit = self.unit();
        let wanted_properties = format!("--property={PROPERTIES}");
        let done = ask(node, &systemctl, &["show", &wanted_properties, "--", &unit])?;
        if !done.exit.success() {
            return Err(Trouble::io(done.complaint("systemctl show")));
        }
        let properties = parse(&done.stdout());
        let get = |name: &str| properties.get(name).map_or("", String::as_str);
        let file = Present::read(node, &self.path())?;
        match get("LoadState") {
            "not-found" if foreseen(node, &unit) => {}
            // A drop-in of ours may outlive its unit.
            "not-found" if self.state == Presence::Absent => {}
            "not-found" => return Err(not_found(node, &systemctl, &unit)),
            "masked" if self.state == Presence::Present => {
                return Err(Trouble::invalid(format!(
                    "{unit} is masked, so that systemd reads no drop-in of it; `service: {{name: {unit}, masked: false}}` unmasks it"
                )));
            }
            "bad-setting" | "error" => {
                let why = if get("LoadError").is_empty() { get("LoadState") } else { get("LoadError") };
                return Err(Trouble::invalid(format!("systemd cannot load {unit}: {why}")));
            }
            "" => return Err(Trouble::io(format!("systemctl tells nothing of {unit}"))),
            _ => {}
        }
        let mut names = unit_files::names_of(&properties);
        names.insert(unit.clone());
        let wanted = text::drop_in(&self.entries());
        let mut state = State {
            unread: file.bytes.is_some()
                && DropIns::read(node, Some(&names)).are_newer(node, &names, &properties),
            unit,
            systemctl,
            file,
            wanted,
            outcomes: Vec::new(),
            masked_by: None,
            set_property: Vec::new(),
            nr_open: sysctl::nr_open(node)?,
            running: Running::Nothing,
        };
        if self.state == Presence::Present {
            compare_files(self, node, &mut state, &names, get("FragmentPath"))?;
        }
        let has_it = match self.state {
            Presence::Present => state.file.bytes.as_deref() == Some(state.wanted.as_bytes()),
            Presence::Absent => !has_settings(&state.file),
        };
        state.running = running(node, &state, has_it, &names, &properties)?;
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        match self.state {
            Presence::Absent => plan_absent(self, state),
            Presence::Present => plan_present(self, state),
        }
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let effect = |step: &Step| match step {
            Step::File(step) => step.effect(),
            Step::Reload => Effect::UnitFilesRead("daemon-reload"),
            Step::Restart => Effect::Noted { name: note(&state.unit), value: "read".to_owned() },
        };
        plan.steps.iter().map(effect).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut written = Vec::new();
        if plan.steps.iter().any(|step| matches!(step, Step::Reload)) {
            // Before a file is touched.
            reload::before("daemon-reload", node.roots)?;
        }
        for step in &plan.steps {
            match step {
                Step::File(step) => {
                    step.apply()?;
                    written.push(step);
                }
                Step::Reload => state.systemctl(node, node.deadline, &["daemon-reload"])?,
                Step::Restart => {
                    if let Err(trouble) = state.restart(node) {
                        return Err(state.go_back(node, &written, trouble));
                    }
                }
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("unit".to_owned(), json!(state.unit));
        data.insert("path".to_owned(), json!(state.file.shown));
        if let Running::Untold { .. } = &state.running {
            let names: BTreeSet<String> = state.outcomes.iter().map(|(entry, _)| full(entry)).collect();
            data.insert("in_force".to_owned(), json!([]));
            data.insert("unknown".to_owned(), json!(names));
        }
        if let Running::Process { verdicts, .. } = &state.running {
            let of = |wanted: fn(&Verdict) -> bool| {
                let names = verdicts.iter().filter(|(_, verdict)| wanted(verdict)).map(|(name, _)| name);
                json!(names.collect::<Vec<_>>())
            };
            data.insert("in_force".to_owned(), of(|verdict| *verdict == Verdict::Same));
            data.insert("unknown".to_owned(), of(|verdict| *verdict == Verdict::Unknown));
        }
        data
    }
}

/// Reads what all files of the unit make of the settings once the drop-in is written.
fn compare_files(
    task: &UnitSettings,
    node: &Node<'_>,
    state: &mut State,
    names: &BTreeSet<String>,
    fragment: &str,
) -> Result<(), Trouble> {
    let ours = &state.file.place;
    let mut paths = unit_files::in_order(node, names)?;
    let name = ours.file_name();
    state.masked_by = paths.iter().find(|path| path.file_name() == name && *path != ours).cloned();
    if !paths.contains(ours) {
        paths.push(ours.clone());
        paths.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    }
    if !fragment.is_empty() {
        paths.insert(0, node.roots.path(fragment));
    }
    let mut files = Vec::new();
    for path in paths {
        let text = if path == *ours {
            state.wanted.clone()
        } else {
            let bytes = node.world.read(&path)?.unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        files.push(UnitFile { path, assignments: text::assignments(&text) });
    }
    let at = files.iter().position(|file| file.path == *ours).unwrap_or_default();
    state.outcomes = task
        .entries()
        .into_iter()
        .map(|entry| {
            let outcome = text::outcome(&files, at, &entry);
            (entry, outcome)
        })
        .collect();
    let folders = SET_PROPERTY.map(|folder| node.roots.path(folder));
    let sets = |file: &UnitFile| {
        let declared = |entry: &UnitSetting| {
            text::values(&file.assignments, &entry.section, &entry.key).next().is_some()
        };
        folders.iter().any(|folder| file.path.starts_with(folder))
            && state.outcomes.iter().any(|(entry, _)| declared(entry))
    };
    state.set_property = files.iter().filter(|file| sets(file)).map(|file| file.path.clone()).collect();
    Ok(())
}

/// Reads what runs of the unit; `has_it` tells that its drop-in is as declared, in a prediction after all earlier tasks.
fn running(
    node: &Node<'_>,
    state: &State,
    has_it: bool,
    names: &BTreeSet<String>,
    properties: &std::collections::HashMap<String, String>,
) -> Result<Running, Trouble> {
    let get = |name: &str| properties.get(name).map_or("", String::as_str);
    let is_up = matches!(get("ActiveState"), "active" | "reloading" | "refreshing" | "activating");
    let active = match node.world.unit(&state.unit) {
        Some(view) => view.active.unwrap_or(is_up),
        None => is_up,
    };
    if !active {
        return Ok(Running::Nothing);
    }
    let is_fresh = !is_up || node.world.rebooted() || !node.world.noted(&note(&state.unit)).is_empty();
    if is_fresh && has_it {
        return Ok(Running::Fresh);
    }
    let ours = std::slice::from_ref(&state.file.place);
    // Written by an earlier task of a prediction, which is after any start that is known.
    let is_written = node.world.assumes_below(&state.file.place);
    if !is_up {
        // An earlier task starts it, so that only the run can tell what its process has and whom a restart hits.
        let verdicts = state.outcomes.iter().map(|(entry, _)| (full(entry), Verdict::Unknown)).collect();
        return Ok(Running::Process { old: false, class: Disruption::Clients, verdicts });
    }
    let pid: u32 = get("MainPID").parse().unwrap_or_default();
    if pid == 0 {
        let entered: u64 = get("ActiveEnterTimestampMonotonic").parse().unwrap_or_default();
        let has_file = state.file.bytes.is_some();
        let old = has_file && (is_written || entered == 0 || started::unit_before(node, entered, ours)?);
        return Ok(Running::Untold { old });
    }
    let group = get("ControlGroup");
    let process = Process::read(node, pid, group);
    let mut service: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (entry, outcome) in state.outcomes.iter().filter(|(entry, _)| entry.section == "Service") {
        service.insert(entry.key.clone(), outcome.values.clone());
    }
    let verdicts = state
        .outcomes
        .iter()
        .map(|(entry, outcome)| {
            let known = entry.section == "Service";
            let verdict =
                if known { process.judge(&entry.key, &outcome.values, &service) } else { Verdict::Unknown };
            (full(entry), verdict)
        })
        .collect();
    let old = is_written || started::before(node, pid, ours)?;
    let disturbs =
        names.iter().any(|name| CLIENTS.contains(&name.as_str())) || process::may_use_gpus(node, pid, group)?;
    let class = if disturbs { Disruption::Clients } else { Disruption::Live };
    Ok(Running::Process { old, class, verdicts })
}

fn plan_absent(task: &UnitSettings, state: &State) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan::default();
    if state.file.bytes.is_none() {
        return Ok(plan);
    }
    let has_settings = has_settings(&state.file);
    plan.changes.push(state.file.change(None));
    if let Some((class, old)) = state.restartable() {
        if task.restart == DaemonRestart::Never {
            plan.warnings.push(state.waits());
        } else if has_settings || old {
            // Emptied first, so that a crash before the restart leaves something to see.
            if has_settings {
                plan.steps.extend(state.file.written(text::HEADER, Ownership::default()).map(Step::File));
            }
            plan.steps.push(Step::Reload);
            plan.steps.push(Step::Restart);
            let change = state.change(
                "settings".to_owned(),
                "with those of the drop-in".into(),
                "without them".into(),
                class,
            );
            plan.changes.push(change);
        }
    }
    plan.steps.push(Step::File(state.file.removed()));
    plan.steps.push(Step::Reload);
    plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
    Ok(plan)
}

fn plan_present(task: &UnitSettings, state: &State) -> Result<Plan<Step>, Trouble> {
    state.refuse_beaten()?;
    state.refuse_too_many_files()?;
    let mut plan = Plan::default();
    let found = state.file.text()?;
    let (old, new) = (by_name(found), by_name(&state.wanted));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed: Vec<&String> = names.into_iter().filter(|name| old.get(*name) != new.get(*name)).collect();
    let subject = || Subject::file(&state.file.shown);
    for name in &changed {
        let (from, to) = (shown(old.get(*name)), shown(new.get(*name)));
        plan.changes.push(Change::new(
            subject(),
            Property::from((*name).clone()),
            from,
            to,
            Disruption::Live,
        ));
    }
    if found != state.wanted {
        if changed.is_empty() {
            plan.changes.push(state.file.change(Some(state.wanted.as_bytes())));
        }
        plan.steps.extend(state.file.written(state.wanted.as_str(), Ownership::default()).map(Step::File));
        plan.steps.push(Step::Reload);
    } else if state.unread {
        let change = Change::new(
            Subject::ServiceManager,
            Property::STATE,
            "with older unit files",
            "unit files read again",
            Disruption::Live,
        );
        plan.push(Step::Reload, change);
    }
    plan_restart(task, state, &changed, &mut plan)?;
    for path in &state.set_property {
        plan.warnings.push(format!(
            "{} has one of these settings too: `systemctl set-property` wrote it",
            path.display()
        ));
    }
    plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
    Ok(plan)
}

/// Adds the restart, or why there is none.
fn plan_restart(
    task: &UnitSettings,
    state: &State,
    changed: &[&String],
    plan: &mut Plan<Step>,
) -> Result<(), Trouble> {
    let is_new = !plan.steps.is_empty();
    let (old, class, verdicts) = match &state.running {
        Running::Process { old, class, verdicts } => (*old, *class, verdicts),
        // systemd gives a slice its settings when it reads them (systemd, src/core/unit-serialize.c).
        Running::Untold { .. } if state.unit.ends_with(".slice") => return Ok(()),
        Running::Untold { old } if *old || !changed.is_empty() => {
            plan.warnings.push(format!(
                "{} is up without a main process, so nobody can tell whether it has these settings; {}",
                state.unit,
                state.waits()
            ));
            return Ok(());
        }
        Running::Nothing | Running::Fresh | Running::Untold { .. } => return Ok(()),
    };
    let other = |verdict: &Verdict| matches!(verdict, Verdict::Other(_));
    let is_known = |name: &String| matches!(verdicts.get(name), Some(Verdict::Same | Verdict::Bounded(_)));
    let differs = verdicts.values().any(other);
    let is_old = is_new || old;
    let untold = changed.iter().any(|name| !is_known(name))
        || (is_old && verdicts.values().any(|verdict| *verdict == Verdict::Unknown));
    for (name, verdict) in verdicts {
        if let Verdict::Bounded(found) = verdict {
            plan.warnings.push(format!(
                "{name} is bounded: {} runs on the CPUs {found}, which are those that are online and that the cpuset of its control \
                 group allows",
                state.unit
            ));
        }
    }
    if !differs && !untold {
        return Ok(());
    }
    if task.restart == DaemonRestart::Never {
        plan.warnings.push(state.waits());
        return Ok(());
    }
    if !is_old {
        let told: Vec<String> = verdicts
            .iter()
            .filter_map(|(name, verdict)| match verdict {
                Verdict::Other(found) => Some(format!("{name} is {found}")),
                _ => None,
            })
            .collect();
        return Err(Trouble::failed(
            FailureKind::Unconverged,
            format!(
                "{} was started after its settings were written, and yet {}: a container or the kernel does not allow it, the \
                 program changes it itself, or it was started before systemd had read the file; `service: {{name: {}, state: \
                 restarted}}` settles the last one",
                state.unit,
                told.join(", "),
                state.unit
            ),
        ));
    }
    for (entry, outcome) in &state.outcomes {
        if let Some(Verdict::Other(found)) = verdicts.get(&full(entry)) {
            let to = shown(Some(&outcome.values));
            plan.changes.push(state.change(full(entry), Typed::text(found), to, class));
        }
    }
    if !differs {
        let (from, to) = ("older than its files", "as in its files");
        plan.changes.push(state.change("settings".to_owned(), from.into(), to.into(), class));
    }
    plan.steps.push(Step::Restart);
    Ok(())
}

impl State {
    /// Returns how much a restart disturbs, and whether the process is older than the drop-in; none without a process.
    fn restartable(&self) -> Option<(Disruption, bool)> {
        match &self.running {
            Running::Process { old, class, .. } => Some((*class, *old)),
            Running::Nothing | Running::Fresh | Running::Untold { .. } => None,
        }
    }

    /// A change of the unit itself, by a restart.
    fn change(&self, property: String, from: Typed, to: Typed, class: Disruption) -> Change {
        let change = Change::new(Subject::unit(&self.unit), Property::from(property), from, to, class);
        change.with_note(match class {
            Disruption::Live => format!("{} restarts", self.unit),
            _ => format!("{} restarts, which programs on the GPUs may notice", self.unit),
        })
    }

    fn waits(&self) -> String {
        format!("{} takes it at its next start", self.unit)
    }

    /// Refuses settings that another file takes away: they would never be in force.
    fn refuse_beaten(&self) -> Result<(), Trouble> {
        if let Some(path) = &self.masked_by {
            return Err(Trouble::invalid(format!(
                "{} has the same name and comes before {}, which systemd then does not read; give another `name`",
                path.display(),
                self.file.shown
            )));
        }
        let Some((entry, (path, value))) =
            self.outcomes.iter().find_map(|(entry, outcome)| Some((entry, outcome.beaten.as_ref()?)))
        else {
            return Ok(());
        };
        let does = if value.is_empty() { "empties it".to_owned() } else { format!("sets it to {value}") };
        Err(Trouble::invalid(format!(
            "{} would not be in force: {} comes after {}, and {does}; take it out there, or give a later `name`, such as \
             `zz-gpufleet`",
            full(entry),
            path.display(),
            self.file.shown
        )))
    }

    /// Refuses more open files than the kernel gives any process: systemd then silently gives fewer.
    fn refuse_too_many_files(&self) -> Result<(), Trouble> {
        let above = |(entry, outcome): &(UnitSetting, Outcome)| {
            let value = outcome.values.last().filter(|_| entry.key == "LimitNOFILE")?;
            let (_, hard) = unit_limit(&entry.key, value)?;
            let most = self.nr_open.filter(|most| hard > *most)?;
            Some((full(entry), value.clone(), most))
        };
        let Some((name, value, most)) = self.outcomes.iter().find_map(above) else { return Ok(()) };
        Err(Trouble::invalid(format!(
            "{name} {value} is above fs.nr_open, {most}, and the kernel gives no process more: declare {most} or less, or raise it \
             before with `sysctl: {{name: fs.nr_open}}`"
        )))
    }

    fn systemctl(&self, node: &Node<'_>, deadline: &Deadline, arguments: &[&str]) -> Result<(), Trouble> {
        reload::before(arguments.first().copied().unwrap_or_default(), node.roots)?;
        let run = tool::run(node, &self.systemctl).arg("--no-ask-password").args(arguments);
        let what = format!("systemctl {}", arguments.join(" "));
        (node.progress)(what.clone());
        let done = run.finish(deadline)?;
        if done.exit.success() {
            Ok(())
        } else {
            Err(Trouble::failed(FailureKind::Exit, done.complaint(&what)))
        }
    }

    /// Restarts the unit, and looks whether it stays up.
    fn restart(&self, node: &Node<'_>) -> Result<(), Trouble> {
        self.systemctl(node, node.deadline, &["restart", "--", &self.unit])?;
        // A simple service counts as started before its program runs, which its settings may prevent.
        std::thread::sleep(STEADY);
        let shown = units::show(&self.systemctl, &[&self.unit], node.deadline)?;
        if shown.get(&self.unit).is_some_and(|unit| unit.active && unit.main_pid > 0) {
            return Ok(());
        }
        Err(Trouble::failed(FailureKind::Exit, format!("{} ended right after its start", self.unit)))
    }

    /// Brings the old drop-in back for a unit that does not start with the new one.
    fn go_back(&self, node: &Node<'_>, written: &[&edits::Step], trouble: Trouble) -> Trouble {
        let Trouble::Failed { kind, message } = trouble else { return trouble };
        let hint = format!("`journalctl -u {}` on the node tells why", self.unit);
        if written.is_empty() {
            return Trouble::failed(kind, format!("{message}; {hint}"));
        }
        // With time of its own, because the task's may be over.
        let deadline = Deadline::after(WAY_BACK);
        let undone = written.iter().rev().try_for_each(|step| step.undo());
        let again = undone
            .and_then(|()| self.systemctl(node, &deadline, &["daemon-reload"]))
            .and_then(|()| self.systemctl(node, &deadline, &["restart", "--", &self.unit]));
        let now = match again {
            Ok(()) => format!("{} is as before, and the unit runs with it", display(&self.file.place)),
            Err(_) => format!("the unit does not start with {} as before either", display(&self.file.place)),
        };
        Trouble::failed(kind, format!("{message}; {now}; {hint}"))
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;

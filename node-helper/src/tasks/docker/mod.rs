//! `docker_daemon`: settings of Docker's daemon, in its file and in force.
//!
//! The new content is checked by the daemon's own program before it takes the place of the old one, in a plan too.
//! What the daemon says of itself (`docker info`) is compared as well: a file that nobody made it read is a difference.

pub mod daemon;
mod edit;
pub mod file;

use std::{
    fs::File,
    io::Write as _,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    tasks::{DaemonRestart, DockerDaemon},
};
use serde_json::{Map, Value, json};

use self::{
    daemon::{Daemon, UNIT},
    file::Difference,
};
use crate::{
    deadline::Deadline,
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, At, Ownership},
        tree,
    },
    process::Run,
    signals,
    tasks::tool,
    world::{Content, Effect, Entry, Owned},
};

#[derive(Debug)]
pub struct State {
    path: PathBuf,
    /// The file's text; `None` if there is no file.
    text: Option<Vec<u8>>,
    owned: Option<Owned>,
    found: Map<String, Value>,
    wanted: Map<String, Value>,
    /// What the daemon's program says against the new content.
    refused: Option<String>,
    /// Why it was not asked.
    unchecked: Option<&'static str>,
    daemon: Daemon,
    /// Keys that are flags of the daemon's next start, each with the flag.
    next_flags: Vec<(String, String)>,
    /// The driver of control groups of a kubelet over it; an error if nobody knows.
    over: Result<Option<String>, String>,
}

#[derive(Debug)]
pub enum Step {
    File(Vec<u8>),
    Reload(PathBuf),
    Restart(PathBuf),
}

/// The name under which a prediction notes that the daemon has read its file.
fn note(path: &std::path::Path) -> String {
    format!("dockerd {}", path.display())
}

/// Returns the file's text with other settings, in the form that it has.
fn printed(text: Option<&[u8]>, found: &Map<String, Value>, wanted: &Map<String, Value>) -> Vec<u8> {
    match std::str::from_utf8(text.unwrap_or_default()) {
        Ok(text) if !text.trim().is_empty() => edit::edited(text, found, wanted),
        _ => file::print(wanted),
    }
}

/// Has the daemon's own program check content; returns what it says against it.
///
/// From memory, so that a plan can ask too: it writes nothing to the node. With the flags of the daemon that runs,
/// because flags and file are valid or not together.
fn validate(
    node: &Node<'_>,
    text: &[u8],
    daemon: &Daemon,
) -> Result<Result<Option<String>, &'static str>, Trouble> {
    let Some(program) = node.roots.tool("dockerd") else {
        return Ok(Err("there is no dockerd on this node, which would check the new content"));
    };
    let memory = rustix::fs::memfd_create("daemon.json", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| Trouble::io(format!("no memory for the new content: {error}")))?;
    let mut memory = File::from(memory);
    memory.write_all(text).map_err(|error| Trouble::io(format!("no memory for the new content: {error}")))?;
    let flags = match daemon {
        Daemon::Running(running) => running.arguments.as_slice(),
        Daemon::None | Daemon::Stopped => &[],
    };
    let run = tool::run(node, program)
        .args(["--validate", "--config-file", Run::INPUT])
        .args(flags)
        .stdin_file(Arc::new(memory));
    let done = tool::ask(node, &run)?;
    if done.exit.success() {
        return Ok(Ok(None));
    }
    if done.stderr().contains("unknown flag: --validate") {
        return Ok(Err("this dockerd cannot check the new content: that came with version 23.0"));
    }
    let why = done.complaint("dockerd --validate");
    Ok(Ok(Some(why.replace(Run::INPUT, "the new content"))))
}

impl NodeKind for DockerDaemon {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let (path, entry) = node.world.follow(&node.roots.path(&self.path))?;
        let text = match &entry {
            Entry::Directory { .. } => {
                return Err(Trouble::invalid(format!("{} is a directory, not a file", self.path)));
            }
            _ => node.world.read(&path)?,
        };
        let found = file::parse(text.as_deref().unwrap_or_default())
            .map_err(|why| Trouble::invalid(format!("{}: {why}; it was left as it is", self.path)))?;
        let wanted = file::declared(self, &found);
        let noted = note(&path);
        let read_since = node.world.noted(&noted).iter().any(|(rest, _)| rest.is_empty());
        let daemon = daemon::observe(node, &path, read_since)?;
        let next_flags = daemon::next_flags(node)?;
        let (mut refused, mut unchecked) = (None, None);
        if wanted != found {
            match validate(node, &printed(text.as_deref(), &found, &wanted), &daemon)? {
                Ok(said) => refused = said,
                Err(why) => unchecked = Some(why),
            }
        }
        let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
        let over = match file::cgroup_driver(&self.settings) {
            Some(_) => signals::cgroups::over_dockerd(&reader),
            None => Ok(None),
        };
        Ok(State {
            path,
            text,
            owned: entry.owned(),
            found,
            wanted,
            refused,
            unchecked,
            daemon,
            next_flags,
            over,
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        if let Daemon::Running(running) = &state.daemon {
            let is_flag = |flag: &str| format!("dockerd runs with the flag `{flag}`, and does not start");
            if let Some((why, _)) = self.conflicts(&self.settings, &running.flags, is_flag).into_iter().next()
            {
                return Err(Trouble::invalid(why));
            }
        }
        // Also of keys that somebody else put there: the next start fails all the same.
        let is_flag =
            |flag: &str| format!("{UNIT} starts dockerd with the flag `{flag}`, which does not start");
        let conflicts = self.conflicts(&state.wanted, &state.next_flags, is_flag);
        if let Some((why, _)) = conflicts.iter().find(|(_, key)| self.settings.contains_key(key)) {
            return Err(Trouble::invalid(why.clone()));
        }
        if let Some(why) = &state.refused {
            return Err(Trouble::invalid(format!("{} was left as it is: {why}", self.path)));
        }
        let mut plan =
            Plan { warnings: conflicts.iter().map(|(why, _)| why.clone()).collect(), ..Plan::default() };
        if let Some(driver) = file::cgroup_driver(&self.settings) {
            match &state.over {
                // A warning: where both change, one has to be the first. The kind `kubelet` refuses a mismatch of its own making.
                Ok(Some(kubelet)) if kubelet != driver => plan.warnings.push(format!(
                    "the kubelet on this node runs over dockerd with the driver of control groups {kubelet}, and {driver} is \
                     declared for dockerd: pods do not start until `cgroupDriver: {driver}` is set with the kind `kubelet`"
                )),
                Ok(_) => {}
                Err(why) => plan.warnings.push(format!(
                    "whether a kubelet over dockerd has this driver of control groups is not known: {why}"
                )),
            }
        }
        let differences = file::differences(&state.found, &state.wanted);
        if !differences.is_empty() {
            plan.warnings.extend(state.unchecked.map(str::to_owned));
            plan.steps.push(Step::File(printed(state.text.as_deref(), &state.found, &state.wanted)));
        }
        let Daemon::Running(running) = &state.daemon else {
            for difference in &differences {
                plan.changes.push(self.change(difference, Disruption::Live));
            }
            return Ok(plan);
        };
        // The daemon that starts decides by the new file. Source: moby, `restore` of daemon.go, which stops containers
        // without live-restore.
        let stays = state.wanted.get("live-restore") == Some(&Value::Bool(true))
            || running.flags.iter().any(|(key, _)| key == "live-restore");
        let keeps = stays && running.keeps_containers(&state.found);
        let restart = |is_underneath: bool| match keeps && !is_underneath {
            true => Disruption::Live,
            false => Disruption::Clients,
        };
        let restarts = self.restart == DaemonRestart::IfNeeded;
        let (mut reloading, mut restarting, mut waiting) = (false, false, Vec::new());
        for difference in &differences {
            let change = if daemon::is_reloaded(difference) {
                reloading = true;
                self.change(difference, Disruption::Live).with_note("dockerd reloads it")
            } else if restarts {
                restarting = true;
                let class = restart(daemon::moves(difference));
                let note = match class {
                    Disruption::Live => "dockerd restarts, and leaves the containers running (live-restore)",
                    _ => "dockerd restarts, which stops the containers",
                };
                self.change(difference, class).with_note(note)
            } else {
                waiting.push(difference.name());
                self.change(difference, Disruption::Live).with_note("it awaits a restart of dockerd")
            };
            plan.changes.push(change);
        }
        for (key, wanted) in &self.settings {
            let (Some(wanted), false) =
                (state.wanted.get(key).or(Some(wanted)), differences.iter().any(|one| one.top() == key))
            else {
                continue;
            };
            let Some(found) = running.otherwise(key, wanted) else { continue };
            if key == "features" && daemon::has_no_cdi_folder(&state.wanted) {
                plan.warnings.push(format!(
                    "{} has `cdi-spec-dirs: [\"\"]`, which turns CDI off whatever `features.cdi` says; take it out for CDI",
                    self.path
                ));
                continue;
            }
            let is_reloaded = daemon::is_reloaded_whole(key);
            if !is_reloaded && !restarts {
                waiting.push(key.clone());
                continue;
            }
            reloading |= is_reloaded;
            restarting |= !is_reloaded;
            let class = if is_reloaded { Disruption::Live } else { restart(daemon::is_underneath(key)) };
            let subject = Subject::unit(UNIT);
            let (from, to) = (file::shown(key, Some(&found)), file::shown(key, Some(wanted)));
            let change = Change::new(subject, Property::from(key.clone()), from, to, class);
            plan.changes.push(change.with_note("the file has it, and dockerd runs without it"));
        }
        if let Some((why, _)) = conflicts.first().filter(|_| restarting) {
            return Err(Trouble::invalid(format!(
                "{why}; the restart that the other settings need would end it"
            )));
        }
        if restarting {
            plan.steps.push(Step::Restart(running.systemctl.clone()));
        } else if reloading {
            plan.steps.push(Step::Reload(running.systemctl.clone()));
        }
        let untold: Vec<&str> = self
            .settings
            .iter()
            .filter(|(key, wanted)| running.may_lack(key, wanted))
            .map(|(key, _)| key.as_str())
            .collect();
        if !untold.is_empty() && !restarting && waiting.is_empty() {
            plan.warnings.push(format!(
                "whether dockerd runs with {} is not known: {} is newer than its start, and `docker info` does not tell; a \
                 restart of {UNIT} settles it",
                untold.join(", "),
                self.path
            ));
        }
        if !waiting.is_empty() {
            plan.warnings.push(format!(
                "{}: dockerd runs without it until {UNIT} restarts, which `restart: never` leaves to you",
                waiting.join(", ")
            ));
        }
        plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let step = |step: &Step| match step {
            Step::File(text) => Effect::Path {
                path: state.path.clone(),
                entry: Entry::File {
                    owned: state.owned.unwrap_or(Owned { uid: 0, gid: 0, mode: 0o644 }),
                    content: Content::Known(text.as_slice().into()),
                },
            },
            Step::Reload(_) | Step::Restart(_) => {
                Effect::Noted { name: note(&state.path), value: "read".to_owned() }
            }
        };
        plan.steps.iter().map(step).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::File(text) => {
                    if let Some(folder) = state.path.parent().filter(|folder| !folder.exists()) {
                        tree::make_dirs(folder)?;
                    }
                    files::replace(&state.path, text, Ownership::default())?;
                }
                Step::Reload(systemctl) => {
                    let run = tool::run(node, systemctl).args(["--no-ask-password", "reload", UNIT]);
                    tool::act(node, &run, "systemctl reload docker.service")?;
                    self.await_reload(node, state)?;
                }
                Step::Restart(systemctl) => self.restart(node, state, systemctl)?,
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let running = match &state.daemon {
            Daemon::Running(_) => "running",
            Daemon::Stopped => "stopped",
            Daemon::None => "absent",
        };
        let mut data = Map::new();
        data.insert("path".to_owned(), json!(self.path));
        data.insert("daemon".to_owned(), json!(running));
        data
    }
}

/// Time for the daemon to read its file again.
const RELOAD: Duration = Duration::from_secs(3);
/// Time to start the daemon with its old settings.
const WAY_BACK: Duration = Duration::from_secs(120);

/// What a task asks of a daemon.
trait Asks {
    /// Keys of settings that are flags too: with both, the daemon does not start. Each with what is said of it.
    fn conflicts(
        &self,
        settings: &Map<String, Value>,
        flags: &[(String, String)],
        is_flag: impl Fn(&str) -> String,
    ) -> Vec<(String, String)>;
    fn change(&self, difference: &Difference, class: Disruption) -> Change;
    fn await_reload(&self, node: &Node<'_>, state: &State) -> Result<(), Trouble>;
    fn restart(&self, node: &Node<'_>, state: &State, systemctl: &std::path::Path) -> Result<(), Trouble>;
}

impl Asks for DockerDaemon {
    fn conflicts(
        &self,
        settings: &Map<String, Value>,
        flags: &[(String, String)],
        is_flag: impl Fn(&str) -> String,
    ) -> Vec<(String, String)> {
        // Source: moby, `configValuesSet`: of these mappings the keys count, of any other one the keys inside of it.
        let flat = ["log-opts", "runtimes", "default-ulimits", "features", "builder", "default-network-opts"];
        let names = settings.iter().flat_map(|(key, value)| match value.as_object() {
            Some(inner) if !flat.contains(&key.as_str()) => inner.keys().map(|name| (name, key)).collect(),
            _ => vec![(key, key)],
        });
        let told = |(name, top): (&String, &String)| {
            let (_, flag) = flags.iter().find(|(key, _)| key == name)?;
            let why = format!(
                "{} if {} sets `{name}` too; take the flag out of {UNIT} first, with a drop-in that sets ExecStart",
                is_flag(flag),
                self.path
            );
            Some((why, top.clone()))
        };
        names.filter_map(told).collect()
    }

    fn change(&self, difference: &Difference, class: Disruption) -> Change {
        let name = difference.name();
        let (from, to) =
            (file::shown(&name, difference.from.as_ref()), file::shown(&name, difference.to.as_ref()));
        Change::new(Subject::file(&self.path), Property::from(name), from, to, class)
    }

    /// Waits until the settings are in force: systemd sends a signal, and does not wait for what the daemon makes of it.
    fn await_reload(&self, node: &Node<'_>, state: &State) -> Result<(), Trouble> {
        let until = Instant::now() + RELOAD.min(node.deadline.remaining());
        let wanted = |key: &String, value: &'_ Value| state.wanted.get(key).unwrap_or(value).clone();
        while Instant::now() < until {
            let Daemon::Running(running) = daemon::observe(node, &state.path, false)? else { return Ok(()) };
            if self.settings.iter().all(|(key, value)| running.otherwise(key, &wanted(key, value)).is_none())
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Restarts the daemon; one that does not start gets its old file back.
    fn restart(&self, node: &Node<'_>, state: &State, systemctl: &std::path::Path) -> Result<(), Trouble> {
        let run = tool::run(node, systemctl).args(["--no-ask-password", "restart", UNIT]);
        let what = format!("systemctl restart {UNIT}");
        let Err(trouble) = tool::act(node, &run, &what) else { return Ok(()) };
        let Trouble::Failed { message, .. } = trouble else { return Err(trouble) };
        let hint = format!("`journalctl -u {UNIT}` on the node tells why");
        if state.found == state.wanted {
            return Err(Trouble::failed(FailureKind::Exit, format!("{message}; {hint}")));
        }
        match &state.text {
            Some(old) => files::replace(&state.path, old, Ownership::default())?,
            None => tree::spot(&state.path)?.remove().at("remove", &state.path)?,
        }
        // With time of its own, because the task's may be over.
        (node.progress)(what);
        let again = run.finish(&Deadline::after(WAY_BACK)).is_ok_and(|done| done.exit.success());
        let now = if again { "dockerd runs with its old settings" } else { "dockerd does not run" };
        Err(Trouble::failed(
            FailureKind::Exit,
            format!("{message}; {} has its old content again, and {now}; {hint}", self.path),
        ))
    }
}

#[cfg(test)]
mod tests;

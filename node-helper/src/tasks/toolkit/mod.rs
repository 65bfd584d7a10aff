//! `container_toolkit`: NVIDIA's container toolkit with its settings, its runtimes and the CDI specification.

mod cdi;
pub mod config;
mod cri;
pub mod yaml;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    change::Value as Typed,
    tasks::{ContainerRuntime, ContainerToolkit, DockerDaemon, Package},
};
use serde_json::{Map, Value, json};

use self::{
    cdi::Renew,
    cri::{Cri, Todo},
};
use super::{
    docker::{self, file::shown},
    driver, packages, tool,
};
use crate::{
    deadline::Deadline,
    declare::{Node, NodeKind, Plan, Trouble},
    gpu::Exposed,
    os::{
        files::{self, Ownership},
        tree,
    },
    signals,
    world::{Content, Effect, Entry, Owned},
};

const CTK: &str = "nvidia-ctk";
const RUNTIME: &str = "nvidia-container-runtime";
/// First podman that gives containers devices by CDI. Source: NVIDIA container toolkit, "Support for Container Device
/// Interface".
const PODMAN: &str = "4.1.0";
/// First Docker that knows CDI, with `features.cdi`, and the first that has it on by default. Source: Docker Engine release
/// notes, 25.0.0 and 28.2.0.
const DOCKER_CDI: &str = "25.0.0";
const DOCKER_CDI_DEFAULT: &str = "28.2.0";
/// Time limit of the question for a version.
const ANSWER: Duration = Duration::from_secs(30);
/// As [`ANSWER`], for one whose version only decides about an optional setting.
const OPTIONAL_ANSWER: Duration = Duration::from_secs(5);

/// Reads the GPUs, for the CDI specification.
pub type Gpus<'a> = &'a (dyn Fn(&Deadline) -> Result<Exposed, Trouble> + Sync);

/// A task with what it needs of the session.
pub struct Toolkit<'a> {
    pub task: &'a ContainerToolkit,
    pub gpus: Gpus<'a>,
}

#[derive(Debug)]
pub struct State {
    /// The version that is installed; `None` if there is none.
    version: Option<String>,
    /// Whether an earlier task brings a version that only the run knows.
    foreseen: bool,
    package: Option<(Package, packages::State)>,
    config: Option<Config>,
    docker: Option<(DockerDaemon, docker::State)>,
    /// What Docker lacks of CDI that no setting gives it.
    docker_lacks: Option<String>,
    cri: Vec<cri::State>,
    /// What is wrong with the drivers of control groups; an error if nobody knows.
    cgroups: Result<Option<String>, String>,
    cdi: Option<cdi::State>,
    /// A CDI specification is declared, and there is no GPU.
    no_gpu: bool,
}

#[derive(Debug)]
struct Config {
    path: PathBuf,
    owned: Option<Owned>,
    text: String,
    differences: Vec<config::Difference>,
}

pub enum Step {
    Install(Vec<String>),
    Config(String),
    Docker,
    Configure(Cri, Vec<&'static str>),
    Restart(Cri),
    Cdi(&'static str, Renew),
}

impl Toolkit<'_> {
    fn runtimes(&self, node: &Node<'_>) -> Vec<ContainerRuntime> {
        if let Some(runtimes) = &self.task.runtimes {
            return runtimes.clone();
        }
        let has = |name: &str| node.roots.tool(name).is_some();
        let mut all = Vec::new();
        if has("dockerd") {
            all.push(ContainerRuntime::Docker);
        }
        // Docker brings a containerd of its own, which nobody else uses without a kubelet.
        if has("containerd") && (!has("dockerd") || has("kubelet")) {
            all.push(ContainerRuntime::Containerd);
        }
        if has("crio") {
            all.push(ContainerRuntime::Crio);
        }
        all
    }

    fn config(&self, node: &Node<'_>) -> Result<Option<Config>, Trouble> {
        let settings = self.task.settings();
        if settings.is_empty() {
            return Ok(None);
        }
        let (path, entry) = node.world.follow(&node.roots.path(ContainerToolkit::CONFIG))?;
        let wrong = |why: String| {
            Trouble::invalid(format!("{}: {why}; it was left as it is", ContainerToolkit::CONFIG))
        };
        let bytes = node.world.read(&path)?.unwrap_or_default();
        let text = String::from_utf8(bytes).map_err(|_| wrong("it is no UTF-8 text".to_owned()))?;
        let (text, differences) = config::edited(&text, &settings).map_err(wrong)?;
        Ok(Some(Config { path, owned: entry.owned(), text, differences }))
    }

    /// Returns the settings of Docker's daemon that the toolkit needs.
    /// Also returns what it lacks of CDI that none of them gives it.
    fn docker(&self, node: &Node<'_>) -> Result<(DockerDaemon, Option<String>), Trouble> {
        let path = node.roots.path(DockerDaemon::FILE);
        let text = node.world.read(&path)?.unwrap_or_default();
        // A file that cannot be parsed is reported by the kind of the daemon.
        let found = docker::file::parse(&text).unwrap_or_default();
        let runtime = found.get("runtimes").and_then(|all| all.get("nvidia"));
        let there = runtime.and_then(|runtime| runtime.get("path")).and_then(Value::as_str);
        let mut nvidia = Map::new();
        let program = there.filter(|path| Path::new(path).file_name() == Some(RUNTIME.as_ref()));
        if program.is_none() {
            nvidia.insert("args".to_owned(), json!([]));
        }
        nvidia.insert("path".to_owned(), program.unwrap_or(RUNTIME).into());
        let mut settings = Map::new();
        match self.task.default_runtime {
            Some(true) => {
                settings.insert("default-runtime".to_owned(), "nvidia".into());
            }
            // Set, and not removed: dockerd keeps at SIGHUP what the file no longer names.
            Some(false) if found.get("default-runtime") == Some(&"nvidia".into()) => {
                settings.insert("default-runtime".to_owned(), "runc".into());
            }
            _ => {}
        }
        settings.insert("runtimes".to_owned(), json!({"nvidia": nvidia}));
        let mut lacks = None;
        if self.task.cdi {
            let is_off = found.get("features").and_then(|all| all.get("cdi")) == Some(&Value::Bool(false));
            let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
            let words = signals::cgroups::docker_line(&reader).map_err(Trouble::io)?.unwrap_or_default();
            let flags_cdi = signals::cgroups::flags_in(&words, "feature").contains(&"cdi=true");
            match docker_version(node)? {
                Ok(version) if !is_at_least(&version, DOCKER_CDI) => {
                    lacks = Some(format!(
                        "Docker is {version}, and knows CDI from {DOCKER_CDI} on: its containers get GPUs by the runtime \
                         `nvidia` alone"
                    ));
                }
                // With the feature in its file too dockerd does not start.
                Ok(_) if flags_cdi => {}
                Ok(version) if is_off || !is_at_least(&version, DOCKER_CDI_DEFAULT) => {
                    settings.insert("features".to_owned(), json!({"cdi": true}));
                }
                Ok(_) => {}
                Err(why) => {
                    lacks = Some(format!(
                        "the version of dockerd is not known, because {why}; before {DOCKER_CDI_DEFAULT} it needs `docker_daemon: {{settings: \
                         {{features: {{cdi: true}}}}}}` for CDI"
                    ));
                }
            }
        }
        Ok((DockerDaemon::of(settings), lacks))
    }
}

/// Returns the version of Docker's daemon, or why it is not known.
///
/// # Errors
/// If the task's own time is up.
fn docker_version(node: &Node<'_>) -> Result<Result<String, String>, Trouble> {
    let Some(program) = node.roots.tool("dockerd") else { return Ok(Err("there is none".to_owned())) };
    let run = tool::run(node, program).arg("--version").limit(4096);
    let done = match run.finish(&node.deadline.within(OPTIONAL_ANSWER)) {
        Ok(done) => done,
        Err(error) if node.deadline.stop().is_some() => return Err(error.into()),
        Err(error) => return Ok(Err(error.to_string())),
    };
    // `Docker version 27.3.1, build 41ca978`.
    let text = done.stdout();
    let word = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let version = word.map(|word| word.trim_end_matches(',').to_owned());
    let version = version.filter(|version| done.exit.success() && version.len() <= 40);
    Ok(version.ok_or_else(|| done.complaint("dockerd --version")))
}

/// Returns the version of the toolkit; `None` if it is not installed.
fn version(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    let Some(program) = node.roots.tool(CTK) else { return Ok(None) };
    let done = tool::run(node, program).arg("--version").limit(4096).finish(&node.deadline.within(ANSWER))?;
    let text = done.stdout();
    let found = text
        .split_whitespace()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    match found.filter(|word| done.exit.success() && word.len() <= 40) {
        Some(version) => Ok(Some(version.to_owned())),
        None => Err(Trouble::io(done.complaint("nvidia-ctk --version"))),
    }
}

/// Checks that there is a podman that reads CDI specifications, which it does by itself.
fn podman(node: &Node<'_>) -> Result<(), Trouble> {
    let program = tool::find(node, "podman", "`runtimes` names it; the package podman brings it")?;
    let done = tool::run(node, program).arg("--version").limit(4096).finish(&node.deadline.within(ANSWER))?;
    let text = done.stdout();
    let found = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    match found.filter(|_| done.exit.success()) {
        Some(found) if !is_at_least(found, PODMAN) => {
            Err(Trouble::missing(format!("podman is {found}, and knows CDI from {PODMAN} on: update it")))
        }
        Some(_) => Ok(()),
        None => Err(Trouble::io(done.complaint("podman --version"))),
    }
}

/// Whether a version is the other one or newer; a candidate such as `1.18.0-rc.1` is older than its release.
fn is_at_least(found: &str, wanted: &str) -> bool {
    let (numbers, is_candidate) = match found.split_once(['-', '~']) {
        Some((numbers, rest)) => (numbers, rest.starts_with("rc")),
        None => (found, false),
    };
    let parts = |text: &str| {
        let mut all: Vec<u32> = text.split('.').map(|part| part.parse().unwrap_or(0)).collect();
        all.resize(4, 0);
        all
    };
    let (found, wanted) = (parts(numbers), parts(wanted));
    if is_candidate { found > wanted } else { found >= wanted }
}

impl NodeKind for Toolkit<'_> {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let task = self.task;
        let assumed = node.world.packages().get(&task.package).cloned().flatten();
        let version = version(node)?;
        let fits = version.as_deref().is_some_and(|found| is_at_least(found, &task.version));
        let foreseen = !fits
            && assumed.as_deref().is_some_and(|found| found.is_empty() || is_at_least(found, &task.version));
        let package = if task.install && !fits && !foreseen {
            let name = format!("{}>={}", task.package, task.version);
            let package = Package::of(vec![name]);
            let state = package.observe(node)?;
            Some((package, state))
        } else {
            None
        };
        let (mut docker, mut docker_lacks, mut cri) = (None, None, Vec::new());
        for runtime in self.runtimes(node) {
            match runtime {
                ContainerRuntime::Docker => {
                    let (task, lacks) = self.docker(node)?;
                    docker_lacks = lacks;
                    let state = task.observe(node)?;
                    docker = Some((task, state));
                }
                ContainerRuntime::Containerd => cri.push(cri::observe(node, Cri::Containerd)?),
                ContainerRuntime::Crio => cri.push(cri::observe(node, Cri::Crio)?),
                ContainerRuntime::Podman => podman(node)?,
            }
        }
        let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
        let cgroups = if cri.is_empty() { Ok(None) } else { signals::cgroups::mismatch_now(&reader) };
        let (mut cdi, mut no_gpu) = (None, false);
        if task.cdi {
            let exposed = (self.gpus)(node.deadline)?;
            let loaded = files::read_bounded(&node.roots.path("/sys/module/nvidia/version"), 4096)?
                .map(|text| String::from_utf8_lossy(&text).trim().to_owned());
            let driver = driver::foreseen(node).or(loaded);
            cdi = cdi::observe(node, exposed, driver.as_deref())?;
            no_gpu = cdi.is_none();
        }
        Ok(State {
            version,
            foreseen,
            package,
            config: self.config(node)?,
            docker,
            docker_lacks,
            cri,
            cgroups,
            cdi,
            no_gpu,
        })
    }

    fn is_stale(&self, state: &State) -> bool {
        state.package.as_ref().is_some_and(|(package, state)| package.is_stale(state))
    }

    fn refresh(&self, node: &Node<'_>, state: &State) -> Result<Map<String, Value>, Trouble> {
        match &state.package {
            Some((package, state)) => package.refresh(node, state),
            None => Ok(Map::new()),
        }
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let task = self.task;
        let mut plan = Plan::default();
        let fits = state.version.as_deref().is_some_and(|found| is_at_least(found, &task.version));
        match &state.package {
            Some((package, state)) => {
                let of_package = package.plan(state)?;
                if of_package.steps.is_empty() && of_package.changes.is_empty() {
                    return Err(Trouble::missing(format!(
                        "the package {} is installed, and there is no {CTK} {} on this node; what else calls itself so?",
                        task.package, task.version
                    )));
                }
                plan.steps.extend(of_package.steps.into_iter().map(Step::Install));
                plan.changes.extend(of_package.changes);
                plan.warnings.extend(of_package.warnings);
            }
            None if fits || state.foreseen => {}
            None => return Err(lacks(task, state.version.as_deref())),
        }
        if let Some(config) = state.config.as_ref().filter(|config| !config.differences.is_empty()) {
            for one in &config.differences {
                let subject = Subject::file(ContainerToolkit::CONFIG);
                let (from, to) = (shown(&one.name, one.from.as_ref()), shown(&one.name, Some(&one.to)));
                let property = Property::from(one.name.clone());
                plan.changes.push(Change::new(subject, property, from, to, Disruption::Live));
            }
            plan.steps.push(Step::Config(config.text.clone()));
        }
        plan.warnings.extend(state.docker_lacks.clone());
        if let Some((task, state)) = &state.docker {
            let of_docker = task.plan(state)?;
            plan.steps.extend((!of_docker.steps.is_empty()).then_some(Step::Docker));
            plan.changes.extend(of_docker.changes);
            plan.warnings.extend(of_docker.warnings);
        }
        match &state.cgroups {
            Ok(None) => {}
            Ok(Some(why)) => plan.warnings.push(why.clone()),
            Err(why) => plan.warnings.push(format!(
                "whether the kubelet has the driver of control groups of its container runtime is not known: {why}"
            )),
        }
        let specs: Vec<&str> = state.cdi.iter().flat_map(cdi::State::folders).collect();
        // Of one that is about to be replaced, nothing is known.
        let version = state.version.as_deref().filter(|_| state.package.is_none() && !state.foreseen);
        for one in &state.cri {
            let Todo { changes, warnings, configure, restart } =
                one.todo(task.default_runtime, &specs, version)?;
            plan.changes.extend(changes);
            plan.warnings.extend(warnings);
            plan.steps.extend(configure.map(|words| Step::Configure(one.cri, words)));
            plan.steps.extend(restart.then_some(Step::Restart(one.cri)));
        }
        if let Some(cdi) = &state.cdi {
            self.plan_cdi(cdi, &mut plan);
        }
        if state.no_gpu {
            plan.warnings.push("there is no GPU on this node, and so no CDI specification".to_owned());
        }
        plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some((package, state)) = &state.package {
            effects.extend(package.plan(state).map(|plan| package.after(state, &plan)).unwrap_or_default());
        }
        if let Some((task, state)) = &state.docker {
            effects.extend(task.plan(state).map(|plan| task.after(state, &plan)).unwrap_or_default());
        }
        for step in &plan.steps {
            let noted = match step {
                Step::Config(text) => {
                    let Some(config) = &state.config else { continue };
                    let owned = config.owned.unwrap_or(Owned { uid: 0, gid: 0, mode: 0o644 });
                    let content = Content::Known(text.as_bytes().into());
                    effects.push(Effect::Path {
                        path: config.path.clone(),
                        entry: Entry::File { owned, content },
                    });
                    continue;
                }
                Step::Configure(cri, _) | Step::Restart(cri) => {
                    let one = state.cri.iter().find(|one| one.cri == *cri);
                    one.map(|one| one.note(self.task.default_runtime, state.cdi.is_some()))
                }
                Step::Cdi(place, _) => state.cdi.as_ref().map(|cdi| cdi.note(place)),
                Step::Install(_) | Step::Docker => None,
            };
            effects.extend(noted.map(|(name, value)| Effect::Noted { name, value }));
        }
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let install: Vec<_> = plan
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Install(words) => Some(words.clone()),
                _ => None,
            })
            .collect();
        let (Some((package, of_package)), false) = (&state.package, install.is_empty()) else {
            return self.act(node, state, &plan.steps);
        };
        package.apply(node, of_package, &Plan { steps: install, ..Plan::default() })?;
        // The package brings files of its own, so that what is left to do is read again.
        let now = self.observe(node)?;
        let left = self.plan(&now)?;
        if left.needs > plan.needs {
            return Err(Trouble::failed(
                FailureKind::Refused,
                format!(
                    "the package is installed; what is left needs a permit for {}: run it again",
                    left.needs
                ),
            ));
        }
        self.act(node, &now, &left.steps)
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        [("version".to_owned(), json!(state.version))].into_iter().collect()
    }
}

/// Creates the error for a node without the toolkit that is declared.
fn lacks(task: &ContainerToolkit, found: Option<&str>) -> Trouble {
    let next = format!("`install: true` installs {}, or a task with `package` before this one", task.package);
    match found {
        None => Trouble::missing(format!("there is no {CTK} on this node; {next}")),
        Some(found) => {
            let why = match is_at_least(found, ContainerToolkit::SECURE) {
                true => String::new(),
                false => format!(
                    ": before {} a container can become root (CVE-2025-23266)",
                    ContainerToolkit::SECURE
                ),
            };
            Trouble::missing(format!(
                "the container toolkit is {found}, and {} or newer is declared{why}; {next}",
                task.version
            ))
        }
    }
}

impl Toolkit<'_> {
    fn plan_cdi(&self, cdi: &cdi::State, plan: &mut Plan<Step>) {
        for (place, wrong) in &cdi.files {
            let subject = Subject::file(*place);
            let (property, to) = (Property::new("CDI specification"), "as the GPUs and the driver are now");
            let change =
                |from: Typed| Change::new(subject.clone(), property.clone(), from, to, Disruption::Live);
            if cdi.open {
                let note = "an earlier task changes the MIG devices, or reboots";
                plan.changes.push(change(Typed::Unknown).with_note(note).possible());
            } else if !wrong.is_empty() {
                plan.push(Step::Cdi(place, cdi.renewal(place)), change(Typed::text(wrong.join("; "))));
            }
        }
    }

    fn act(&self, node: &Node<'_>, state: &State, steps: &[Step]) -> Result<Map<String, Value>, Trouble> {
        let ctk = || tool::find(node, CTK, "the package nvidia-container-toolkit brings it");
        let systemctl = || tool::find(node, "systemctl", "does systemd run this node?");
        for step in steps {
            node.check_time()?;
            match step {
                Step::Install(_) => {}
                Step::Config(text) => {
                    let Some(config) = &state.config else { continue };
                    if let Some(folder) = config.path.parent().filter(|folder| !folder.exists()) {
                        tree::make_dirs(folder)?;
                    }
                    files::replace(&config.path, text.as_bytes(), Ownership::default())?;
                }
                Step::Docker => {
                    let Some((task, of_docker)) = &state.docker else { continue };
                    task.apply(node, of_docker, &task.plan(of_docker)?)?;
                }
                Step::Configure(_, words) => {
                    let run = tool::run(node, ctk()?).args(words.iter());
                    tool::act(node, &run, &format!("{CTK} {}", words.join(" ")))?;
                }
                Step::Restart(cri) => {
                    tool::restart(node, cri.unit())?;
                }
                Step::Cdi(_, Renew::Unit) => cdi::refresh(node, &systemctl()?)?,
                Step::Cdi(_, Renew::File(place)) => cdi::generate(node, &ctk()?, place)?,
            }
        }
        Ok(Map::new())
    }
}

#[cfg(test)]
mod tests;

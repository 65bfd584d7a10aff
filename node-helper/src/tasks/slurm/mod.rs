//! `slurm_node`: what slurmd of a node offers.
//!
//! Lines of gres.conf are made from the node's topology, with the same cores as the controller draws. slurm.conf is the
//! cluster's: it is compared, and only a line that is the node's alone is written. Nothing is written that slurmctld
//! would answer with an invalid registration, and a node that is drained is never resumed.

mod conf;
mod daemon;
mod gres;
mod judge;
mod line;
mod trial;

use std::{cell::Cell, path::PathBuf, time::Duration};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    change::Value as Typed,
    facts::{GpuSystem, GpuSystemState},
    slurm as offered,
    tasks::{DaemonRestart, SlurmDetect, SlurmNode},
    topology::{Topology, What},
};
use serde_json::{Map, Value, json};

use self::{
    conf::Line,
    daemon::{Daemon, Told, Unheard},
    gres::{Difference, Given, Wanted},
};
use super::{
    driver,
    edits::{self, Present},
};
use crate::{
    deadline::Deadline,
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::Ownership,
    signals,
    world::Effect,
};

/// Where plugins of Slurm are, besides `PluginDir`: Debian, Red Hat, and what is built by hand.
const PLUGINS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu/slurm-wlm",
    "/usr/lib/aarch64-linux-gnu/slurm-wlm",
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/local/lib/slurm",
    "/opt/slurm/lib/slurm",
];
/// Where slurmd puts files that it gets from slurmctld.
const CONFIGLESS: &str = "/run/slurm/conf";
/// Time to restart slurmd with its old files, after that of the task.
const WAY_BACK: Duration = Duration::from_secs(120);
/// Under which a prediction notes that slurmd reads its files.
const NOTE: &str = "slurmd ";
const LAYOUT: &str = "changes the layout of the GPUs";

/// Reads the GPUs.
pub type Read<'a> = &'a (dyn Fn(&Deadline) -> Result<GpuSystem, Trouble> + Sync);
/// Whether predictions so far give the GPUs another layout; where that cannot be told, they may.
pub type Changes<'a> = &'a (dyn Fn(&Deadline) -> bool + Sync);

/// A task with what it needs of the session.
pub struct Offering<'a> {
    pub task: &'a SlurmNode,
    pub read: Read<'a>,
    pub changes: Changes<'a>,
}

const START_SECOND: Duration = Duration::from_millis(1100);

#[derive(Debug)]
pub struct State {
    name: String,
    daemon: Daemon,
    gres: Present,
    given: Given,
    wanted: Wanted,
    /// What slurmd finds with its files; known where it finds GPUs itself, as declared.
    offered: Option<daemon::Offers>,
    /// What an earlier task of a prediction does, so that slurmd cannot be asked now what it will find in the run.
    open: Option<&'static str>,
    cgroup: Present,
    /// The file with the node's line, and the line.
    file: Present,
    line: Line,
    /// Values of the node with those of `NodeName=DEFAULT`.
    values: Values,
    task_plugin: String,
    /// `GresTypes` of slurm.conf.
    gres_types: String,
    overrides: bool,
    /// How long a slurmd may take to read its files anew.
    patience: Duration,
    /// Why slurmctld does not tell otherwise.
    told: Result<Told, String>,
    place: PathBuf,
}

/// What slurm.conf says of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Values {
    gres: String,
    memory_mib: Option<u64>,
    features: String,
}

#[derive(Clone, Debug)]
pub enum Step {
    File(edits::Step),
    Restart,
    /// As [`Step::Restart`], with less: SIGHUP.
    Reconfigure,
}

/// The node's line of slurm.conf.
struct Found {
    file: Present,
    line: Line,
    values: Values,
}

impl Offering<'_> {
    /// Reads slurm.conf and what it includes, in order.
    fn files(&self, node: &Node<'_>) -> Result<Vec<Present>, Trouble> {
        let main = Present::read(node, &self.task.conf)?;
        if main.bytes.is_none() {
            return Err(Trouble::missing(format!(
                "{} is not there; where nodes get their files from slurmctld (configless), set this in gres.conf, cgroup.conf \
                 and slurm.conf beside slurmctld's, and type `scontrol reconfigure`; where slurm.conf is elsewhere, set `conf`",
                self.task.conf
            )));
        }
        let mut more = Vec::new();
        for line in conf::lines(main.text()?) {
            if let Some(path) = line.get("Include") {
                let path = if path.starts_with('/') { path.to_owned() } else { self.task.beside(path) };
                more.push(Present::read(node, &path)?);
            }
        }
        Ok(std::iter::once(main).chain(more).collect())
    }

    fn find(&self, files: &[Present], names: &[String]) -> Result<Option<Found>, Trouble> {
        let mut defaults: Vec<Line> = Vec::new();
        for file in files {
            for line in conf::lines(file.text()?) {
                let Some(list) = line.get("NodeName") else { continue };
                if list == "DEFAULT" {
                    defaults.push(line);
                    continue;
                }
                let is_it = names.iter().any(|name| {
                    conf::covers(list, name) || line.get("NodeHostname").is_some_and(|host| host == name)
                });
                if !is_it {
                    continue;
                }
                let get = |keys: &[&str]| {
                    let of = |line: &Line| keys.iter().find_map(|key| line.get(key).map(str::to_owned));
                    of(&line).or_else(|| defaults.iter().rev().find_map(of)).unwrap_or_default()
                };
                let values = Values {
                    gres: get(&["Gres"]),
                    memory_mib: get(&["RealMemory"]).parse().ok(),
                    features: get(&["Features", "Feature"]),
                };
                return Ok(Some(Found { file: file.clone(), line, values }));
            }
        }
        Ok(None)
    }

    fn topology(&self, node: &Node<'_>) -> Result<(Topology, GpuSystem), Trouble> {
        let system = (self.read)(node.deadline)?;
        let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
        Ok((signals::topology::read(&reader, || system.clone()), system))
    }

    /// Refuses a reading with gaps: a device that cannot be read may be a GPU that jobs have now.
    fn is_whole(topology: &Topology) -> Result<(), Trouble> {
        topology.errors.first().map_or(Ok(()), |why| {
            Err(Trouble::io(format!(
                "which GPUs the node has, and where, is not known in full: {why}; nothing was changed"
            )))
        })
    }

    /// Says what an earlier task of a prediction changes of that which slurmd reads.
    fn open(&self, node: &Node<'_>, files: &[Present]) -> Option<&'static str> {
        let world = &node.world;
        let changes_files = || {
            let folder = node.roots.path(self.task.beside(""));
            world.assumes_below(&folder) || files.iter().any(|file| world.assumes_below(&file.place))
        };
        match world.predicts() {
            false => None,
            true if (self.changes)(node.deadline) => Some(LAYOUT),
            true if world.rebooted() => Some("reboots the node"),
            true if driver::foreseen(node).is_some() => Some("loads another driver"),
            true => changes_files().then_some("changes files of Slurm"),
        }
    }

    /// Returns what gres.conf is to say; `moves`: earlier tasks of a prediction change the layout of the GPUs.
    fn wanted(
        &self,
        node: &Node<'_>,
        plugins: Option<&str>,
        daemon: &Daemon,
        moves: bool,
    ) -> Result<Wanted, Trouble> {
        let (topology, system) = self.topology(node)?;
        let has_gpu = topology.devices.iter().any(|device| matches!(device.what, What::Gpu(_)));
        if has_gpu && system.state != GpuSystemState::Ok {
            let why = system.state.detail().unwrap_or("the driver does not answer");
            return Err(Trouble::io(format!("the GPUs cannot be read: {why}")));
        }
        if !has_gpu {
            // What slurmd would look for is not there; that is known only if all devices could be read.
            Self::is_whole(&topology)?;
            return Ok(Wanted::Lines(Vec::new()));
        }
        // Whether a GPU will have MIG on decides what is to be there, and what is refused.
        if moves && self.task.autodetect != Some(SlurmDetect::Nvml) {
            return Ok(Wanted::Open);
        }
        let with_mig = system.gpus.iter().find(|gpu| gpu.mig_current == Some(true));
        let detect = self.task.autodetect.unwrap_or(match with_mig {
            Some(_) => SlurmDetect::Nvml,
            None => SlurmDetect::Off,
        });
        match (detect, with_mig) {
            (SlurmDetect::Off | SlurmDetect::Nvidia, Some(gpu)) => Err(Trouble::invalid(format!(
                "GPU {} has MIG on, and `autodetect: {detect}` knows no MIG devices; only `nvml` does: with lines by hand \
                 (MultipleFiles) jobs get a wrong CUDA_VISIBLE_DEVICES",
                gpu.index
            ))),
            (SlurmDetect::Nvidia, None) if !daemon.is_at_least((24, 11)) => Err(Trouble::invalid(format!(
                "slurmd is {}, and `AutoDetect=nvidia` came with 24.11",
                daemon.version.as_deref().unwrap_or("of an unknown version")
            ))),
            (SlurmDetect::Nvidia, None) => Ok(Wanted::Found("nvidia")),
            (SlurmDetect::Nvml, _) => {
                let places = plugins.into_iter().flat_map(|list| list.split(':')).chain(PLUGINS);
                let mut places = places.map(|folder| node.roots.path(folder).join("gpu_nvml.so"));
                if places.any(|path| path.exists()) {
                    return Ok(Wanted::Found("nvml"));
                }
                Err(Trouble::invalid(
                    "slurmd has no gpu_nvml.so, so that with AutoDetect=nvml it would offer no GPU and slurmctld would take the \
                     node out; install a Slurm that was built with NVML (Debian's is not)",
                ))
            }
            (SlurmDetect::Off, None) => {
                Self::is_whole(&topology)?;
                let mut offers = offered::offers(&topology).ok_or_else(|| {
                    Trouble::io("the device file of a GPU is not known: the driver gives no minor number")
                })?;
                for offer in &mut offers {
                    if let Some(kind) = &self.task.kind {
                        offer.kind = Some(kind.clone());
                    }
                    if !self.task.cores {
                        offer.cores = gpufleet_protocol::cpus::CpuList::default();
                    }
                }
                Ok(Wanted::Lines(offers))
            }
        }
    }
}

impl NodeKind for Offering<'_> {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let place = node.roots.path(&self.task.conf);
        let watched: Vec<PathBuf> =
            [self.task.conf.as_str(), &self.task.beside("gres.conf"), &self.task.beside("cgroup.conf")]
                .iter()
                .map(|path| node.roots.path(path))
                .collect();
        let noted = format!("{NOTE}{}", place.display());
        let read_since = node.world.noted(&noted).iter().any(|(rest, _)| rest.is_empty());
        // slurm.conf changes often and for others; slurmctld tells a slurmd to read it.
        let daemon = daemon::observe(node, watched.get(1..).unwrap_or_default(), read_since)?;
        let configless = daemon.option("--conf-server").is_some()
            || (node.roots.path(CONFIGLESS).join("slurm.conf").exists()
                && !self.task.conf.starts_with(CONFIGLESS)
                && !place.exists());
        if configless || self.task.conf.starts_with(CONFIGLESS) {
            return Err(Trouble::invalid(
                "slurmd gets its files from slurmctld (configless), and would write over them: set this in gres.conf, cgroup.conf \
                 and slurm.conf beside slurmctld's, and type `scontrol reconfigure`",
            ));
        }
        let files = self.files(node)?;
        let host = match node.world.parameter("kernel/hostname") {
            Some(name) => name,
            None => node.roots.host_name().unwrap_or_default(),
        };
        let mut names: Vec<String> = self.task.node.iter().cloned().collect();
        if names.is_empty() {
            names.extend(daemon.option("-N").map(str::to_owned));
        }
        if names.is_empty() {
            names.extend([host.split('.').next().unwrap_or_default().to_owned(), host.clone()]);
        }
        let Some(found) = self.find(&files, &names)? else {
            return Err(Trouble::invalid(format!(
                "{} has no line for node {}; set `node` to its name in Slurm",
                self.task.conf,
                names.first().map_or("", String::as_str)
            )));
        };
        let list = found.line.get("NodeName").unwrap_or_default();
        // By its host name, a line may be that of a node with another name.
        let name =
            names.iter().find(|name| conf::covers(list, name)).cloned().unwrap_or_else(|| list.to_owned());
        let mut settings = Map::new();
        for file in &files {
            for word in conf::lines(file.text()?).into_iter().flat_map(|line| line.words) {
                settings.insert(word.key.to_lowercase(), word.value.into());
            }
        }
        let setting = |key: &str| settings.get(key).and_then(Value::as_str);
        let gres = Present::read(node, &self.task.beside("gres.conf"))?;
        let given = gres::read(gres.text()?, &name)
            .map_err(|why| Trouble::invalid(format!("{}: {why}; it was left as it is", gres.shown)))?;
        let open = self.open(node, &files);
        let mut wanted = self.wanted(node, setting("plugindir"), &daemon, open == Some(LAYOUT))?;
        if self.task.cores {
            wanted.keep_cores(&given);
        }
        let finds = matches!(wanted, Wanted::Found(how) if given.detect == how);
        Ok(State {
            offered: match finds && open.is_none() {
                true => Some(daemon.offers(node, &place, &name)?),
                false => None,
            },
            open: open.filter(|_| finds || wanted == Wanted::Open),
            told: daemon::told(node, &place, &name),
            cgroup: Present::read(node, &self.task.beside("cgroup.conf"))?,
            task_plugin: setting("taskplugin").unwrap_or_default().to_owned(),
            gres_types: setting("grestypes").unwrap_or_default().to_owned(),
            overrides: setting("slurmdparameters").is_some_and(|list| list.contains("config_overrides")),
            patience: daemon::patience(setting("messagetimeout"), setting("prologepilogtimeout")),
            file: found.file,
            line: found.line,
            values: found.values,
            name,
            daemon,
            gres,
            given,
            wanted,
            place,
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        plan.warnings.extend(state.refuse()?);
        plan.warnings.extend(state.untyped(&self.task.conf));
        self.plan_gres(state, &mut plan)?;
        self.plan_cgroup(state, &mut plan)?;
        self.plan_line(state, &mut plan)?;
        let runs = state.daemon.arguments.is_some();
        let missed = state.daemon.unread.then_some(Disruption::Clients).max(state.daemon.pending);
        let restarts = runs && (missed.is_some() || !plan.steps.is_empty());
        // Beside changes of its own too: the restart brings what was missed along, and that may end jobs.
        if let Some(class) = missed.filter(|_| restarts) {
            let change = Change::new(
                Subject::unit(SlurmNode::UNIT),
                Property::new("settings"),
                "older than its files",
                "as in its files",
                class,
            );
            let why = match state.daemon.unread {
                true => "slurmd was started before gres.conf or cgroup.conf was changed",
                false => "a run ended between what it wrote and the restart of slurmd",
            };
            plan.changes.push(change.with_note(why));
        }
        if restarts && self.task.restart == DaemonRestart::Never {
            plan.changes.retain(|change| change.subject != Subject::unit(SlurmNode::UNIT));
            plan.changes.iter_mut().for_each(|change| change.disruption = Disruption::Live);
            plan.warnings.push(format!(
                "slurmd runs without it until {} restarts, which `restart: never` leaves to you",
                SlurmNode::UNIT
            ));
        } else if restarts {
            // Which GPUs there are is told at a start; what else was missed nobody knows.
            let is_small =
                missed.is_none() && plan.changes.iter().all(|one| one.disruption == Disruption::Live);
            plan.steps.push(match is_small && state.daemon.reconfigures() {
                true => Step::Reconfigure,
                false => Step::Restart,
            });
        }
        plan.warnings.extend(state.complaint(restarts));
        plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let effect = |step: &Step| match step {
            Step::File(step) => step.effect(),
            Step::Restart | Step::Reconfigure => {
                Effect::Noted { name: format!("{NOTE}{}", state.place.display()), value: "read".to_owned() }
            }
        };
        plan.steps.iter().map(effect).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let files: Vec<&edits::Step> = plan
            .steps
            .iter()
            .filter_map(|step| if let Step::File(step) = step { Some(step) } else { None })
            .collect();
        let how = plan.steps.iter().find(|step| !matches!(step, Step::File(_)));
        let restarts = how.is_some();
        let before = state.daemon.offers(node, &state.place, &state.name)?;
        let offers = self.judge(node, state, &files)?;
        let mut done = Vec::new();
        let silent = Cell::new(false);
        let mut work = || -> Result<Map<String, Value>, Trouble> {
            if restarts && !files.is_empty() {
                state.daemon.note(node, plan.needs.max(state.daemon.pending.unwrap_or_default()))?;
            }
            for step in &files {
                step.apply()?;
                done.push(step);
            }
            (node.progress)(
                if matches!(how, Some(Step::Reconfigure)) {
                    "reconfiguring slurmd"
                } else {
                    "restarting slurmd"
                }
                .to_owned(),
            );
            self.settle(node, state, (&before, &offers), how, &silent)
        };
        let trouble = match work() {
            Ok(data) => {
                if restarts {
                    Daemon::settled(node)?;
                }
                return Ok(data);
            }
            Err(trouble) => trouble,
        };
        if files.is_empty() {
            return Err(trouble);
        }
        let Trouble::Failed { kind, message } = trouble else { return Err(trouble) };
        let undone = done.iter().rev().try_for_each(|step| step.undo());
        // With time of its own, because the task's may be over.
        let grace = Deadline::after(WAY_BACK);
        let now = match undone {
            Ok(()) if silent.get() => "the files have their old content again",
            Ok(()) if restarts => match state.daemon.restart(&node.until(&grace)) {
                Ok(()) if Daemon::settled(node).is_ok() => {
                    "the files have their old content again, and slurmd runs with it"
                }
                Ok(()) => {
                    "the files have their old content again, slurmd runs with it, and a note of it stays"
                }
                Err(_) => "the files have their old content again, and slurmd does not run",
            },
            Ok(()) => "the files have their old content again",
            Err(_) => "the files could not be brought back",
        };
        Err(Trouble::Failed { kind, message: format!("{message}; {now}") })
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let told = state.told.as_ref().ok();
        let data = json!({
            "node": state.name,
            "version": state.daemon.version,
            "gpus": (state.wanted != Wanted::Open)
                .then(|| gres::told(&state.wanted.gpus(), state.wanted.detect(), 0)),
            "state": told.map(|told| &told.state),
            "reason": told.and_then(|told| told.reason.as_ref()),
        });
        data.as_object().cloned().unwrap_or_default()
    }
}

impl Offering<'_> {
    fn plan_gres(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        if state.wanted == Wanted::Open {
            let from = state.given.told().map_or(Typed::Absent, Typed::text);
            let (subject, property) = (Subject::file(&state.gres.shown), Property::new("GPUs"));
            let change =
                Change::new(subject, property, from, "as the GPUs are in the run", Disruption::Clients);
            plan.changes.push(change.with_note(format!("an earlier task {LAYOUT}")).possible());
            return Ok(());
        }
        let difference = state.given.difference(&state.wanted);
        let offers_none = matches!(&state.wanted, Wanted::Lines(offers) if offers.is_empty());
        // With AutoDetect slurmd finds none either.
        let gives_none = state.given.gpus.is_empty() && state.given.without_file == 0;
        if difference == Difference::None || (offers_none && gives_none) {
            return Ok(());
        }
        if let Some(number) = state.given.shared.first() {
            return Err(Trouble::invalid(format!(
                "line {number} of {} is that of several nodes and gives {} {}, where it has {}; other copies of the file need the \
                 same, so it is not split here: write in the place of that line, wherever the file is\n{}",
                state.gres.shown,
                state.name,
                state.given.told().unwrap_or_else(|| "no GPU".to_owned()),
                gres::told(&state.wanted.gpus(), state.wanted.detect(), 0),
                gres::split(state.gres.text()?, &state.given.shared, &state.name, &state.wanted)
                    .unwrap_or_else(|| state.wanted.lines(&state.name, ""))
                    .join("\n"),
            )));
        }
        let old = state.gres.text()?;
        let new = state.given.edited(old, &state.name, &state.wanted);
        let class = if difference == Difference::Cores { Disruption::Live } else { Disruption::Clients };
        let note = match difference {
            Difference::Cores => "slurmd reads its files anew; jobs go on",
            _ => "slurmd restarts with other GPUs, which ends jobs that use them",
        };
        let mut change = Change::new(
            Subject::file(&state.gres.shown),
            Property::new("GPUs"),
            state.given.told().map_or(Typed::Absent, Typed::text),
            gres::told(&state.wanted.gpus(), state.wanted.detect(), 0),
            class,
        )
        .with_note(note);
        change.diff = state.gres.diff(&new, false);
        plan.changes.push(change);
        plan.steps.extend(state.gres.written(new, Ownership::default()).map(Step::File));
        Ok(())
    }

    fn plan_cgroup(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let text = state.cgroup.text()?;
        let lines = conf::lines(text);
        let (mut edits, mut appended) = (Vec::new(), Vec::new());
        for (key, wanted) in self.task.constraints() {
            let word = if wanted { "yes" } else { "no" };
            // Slurm takes the last one.
            let found = lines.iter().rev().find_map(|line| Some((line, line.get(key)?)));
            let is_on = |text: &str| ["yes", "true", "up", "1"].contains(&text.to_lowercase().as_str());
            if found.map_or(!wanted, |(_, value)| is_on(value) == wanted) {
                continue;
            }
            match found {
                Some((line, _)) if line.lines.len() > 1 => {
                    let message =
                        format!("line {} of {} goes on in the next one", line.number(), state.cgroup.shown);
                    return Err(Trouble::invalid(format!("{message}; write it as one line first")));
                }
                Some((line, _)) => {
                    edits.push((
                        line.lines.clone(),
                        vec![conf::with_values(text, line, &[(key, word.to_owned())])],
                    ));
                }
                None => appended.push(format!("{key}={word}")),
            }
            let from = found.map_or(Typed::Absent, |(_, value)| Typed::text(value));
            let subject = Subject::file(&state.cgroup.shown);
            let change = Change::new(subject, Property::new(key), from, word, Disruption::Live);
            plan.changes.push(change.with_note("for jobs that start once slurmd has read it"));
        }
        if !edits.is_empty() || !appended.is_empty() {
            let new = conf::replaced(text, &edits, &appended);
            plan.steps.extend(state.cgroup.written(new, Ownership::default()).map(Step::File));
        }
        let any = self.task.constraints().iter().any(|(_, wanted)| *wanted);
        if any && !state.task_plugin.contains("cgroup") {
            plan.warnings.push(format!(
                "TaskPlugin={} in {} lacks task/cgroup, so that cgroup.conf holds no job to anything",
                state.task_plugin, self.task.conf
            ));
        }
        Ok(())
    }

    /// Has slurmd judge the files of a plan before they are written.
    fn judge(
        &self,
        node: &Node<'_>,
        state: &State,
        files: &[&edits::Step],
    ) -> Result<daemon::Offers, Trouble> {
        let offers = trial::offers(node, &state.daemon, &state.place, &state.name, files)?;
        if let Some(why) = &offers.error {
            return Err(Trouble::failed(FailureKind::Exit, format!("slurmd -G: {why}; nothing was written")));
        }
        let Wanted::Lines(lines) = &state.wanted else {
            state.compare(&offers.gpus)?;
            return Ok(offers);
        };
        let configured: u64 = judge::counts(&state.values.gres).iter().map(|(_, count)| count).sum();
        let wanted = (lines.len() as u64).min(configured);
        if offers.count() < wanted {
            let message =
                format!("slurmd -G offers {} of {wanted} GPUs; nothing was written", offers.count());
            return Err(Trouble::failed(FailureKind::Exit, message));
        }
        Ok(offers)
    }

    /// Restarts slurmd, and waits for slurmctld; `silent` becomes true if a restart must not follow.
    fn settle(
        &self,
        node: &Node<'_>,
        state: &State,
        (before, offers): (&daemon::Offers, &daemon::Offers),
        how: Option<&Step>,
        silent: &Cell<bool>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        data.insert("offered_before".to_owned(), json!(before.count()));
        data.insert("offered".to_owned(), json!(offers.count()));
        let Some(how) = how else { return Ok(data) };
        // slurmctld tells starts in whole seconds: one in the second of the former would pass for it.
        std::thread::sleep(START_SECOND);
        match how {
            Step::Reconfigure => match state.daemon.reconfigure(node, state.patience) {
                Ok(()) => {}
                Err(Unheard::Silent(why)) => {
                    silent.set(true);
                    return Err(why);
                }
                Err(Unheard::Failed(why)) => return Err(why),
            },
            _ => state.daemon.restart(node)?,
        }
        // A slurmctld that does not answer is told by the next reading; it is not the node's fault.
        let before = state.told.as_ref().ok();
        if let Ok(told) = daemon::settle(node, &state.place, &state.name, before) {
            let reason = told.reason.clone().unwrap_or_else(|| "it gives no reason".to_owned());
            let was_down = before.is_some_and(Told::is_down);
            let why = if !told.is_newer(before) || !told.responds {
                Some(format!(
                    "slurmctld has not heard of slurmd since its restart: it calls node {} {}",
                    state.name, told.state
                ))
            } else if told.is_invalid() {
                Some(format!("slurmctld calls the registration of node {} invalid: {reason}", state.name))
            } else if told.is_down() && !was_down {
                Some(format!(
                    "slurmctld calls node {} down since the restart of slurmd: {reason}",
                    state.name
                ))
            } else {
                None
            };
            if let Some(why) = why {
                return Err(Trouble::failed(FailureKind::Unconverged, why));
            }
            if told.is_down() {
                data.insert("down".to_owned(), json!(told.reason));
            }
            if told.is_drained() {
                data.insert("drained".to_owned(), json!(told.reason));
            }
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests;

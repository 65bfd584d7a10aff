//! `gpu_driver`: the NVIDIA driver of a node, from its packages to the module that runs.
//!
//! The package manager simulates the installation, and its answer is the plan. Before packages are replaced, everything
//! that is needed to go back is fetched and noted; a driver that does not come up is replaced by the former one.
//! `recipe` knows names of packages, `packages` asks and calls apt, `seen` reads modules and libraries, `modules`
//! unloads and loads them, `attempt` is the note. What holds the driver is stopped by [`Gpus::suspended`].

mod attempt;
mod modules;
mod packages;
mod recipe;
mod replacement;
mod seen;

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use gpufleet_protocol::{
    Awaiting, Blocker, Change, Disruption, FailureKind, OpOutcome, OpStatus, Property, Subject,
    change::Value as Typed,
    message::{IdleReport, Mode},
    tasks::{DriverFlavour, DriverGoBack, DriverReboot, GpuDriver},
};
use serde_json::{Map, Value, json};

pub use self::recipe::{UNNUMBERED, upstream};
use self::{
    attempt::{Attempt, Former},
    packages::Pins,
    recipe::{Wish, is_driver},
    replacement::answers,
    seen::{Module, Seen},
};
use super::packages::Order;
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    gpu::Gpus,
    os::tree,
    state::Record,
    world::Effect,
};

const MODULE: &str = "nvidia";
/// Where predictions keep the version on disk, which outlives a boot, and the loaded one, which does not.
const ON_DISK: &str = "driver/disk";
const LOADED: &str = "driver/loaded";
/// The folder of former packages, in the state directory.
const FOLDER: &str = "driver";

/// How a driver on disk begins to run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// It runs.
    Nothing,
    /// No module of a driver is loaded.
    Load,
    /// The modules of another one are unloaded before.
    Reload,
    Reboot(String),
}

#[derive(Debug)]
pub struct State {
    seen: Seen,
    /// What a driver's packages are now.
    installed: Vec<(String, String)>,
    /// What has to be installed, and what that does.
    order: Option<Wanted>,
    /// Packages that nightly updates would change.
    unheld: Vec<String>,
    /// Packages that `hold: false` releases.
    held: Vec<String>,
    attempt: Option<Attempt>,
    /// Why the node could not go back.
    one_way: Option<String>,
    /// Why the driver that is loaded does not work, looked at while a change of it is not over.
    silent: Option<String>,
    /// Whether dpkg was interrupted in a change of the driver.
    interrupted: bool,
    /// Packages that are held now.
    held_before: Vec<String>,
    /// Whether a reboot is assumed to have happened.
    rebooted: bool,
}

#[derive(Debug)]
struct Wanted {
    names: Vec<String>,
    order: Order,
    /// The version of the driver afterwards; `None` if only the run can tell.
    version: Option<String>,
}

impl State {
    /// The version that will be on disk; `None` if there is none, or only the run can tell.
    fn target(&self) -> Option<&str> {
        match &self.order {
            Some(wanted) => wanted.version.as_deref(),
            None => self.seen.disk.as_ref().map(|disk| disk.version.as_str()),
        }
    }
}

impl Wanted {
    fn former(&self) -> Vec<Former> {
        let replaced =
            self.order.actions.iter().filter_map(|action| Some((&action.name, action.from.as_ref()?)));
        replaced
            .map(|(name, version)| Former { name: name.clone(), version: version.clone(), file: None })
            .collect()
    }

    fn added(&self) -> Vec<String> {
        let new = self.order.actions.iter().filter(|action| action.from.is_none() && action.to.is_some());
        new.map(|action| action.name.clone()).collect()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Install,
    Load,
    Reload,
    /// A driver that was to come up with a reboot did not: the former one comes back.
    GoBack(String),
    /// dpkg was interrupted.
    Finish,
    Hold(Vec<String>),
    Release(Vec<String>),
}

/// What happened meanwhile that a plan does not tell.
#[derive(Debug, Default)]
struct Notes {
    /// The package lists are as new as they can be.
    refreshed: bool,
    /// The modules were unloaded, with which the GPUs lost their state.
    unloaded: bool,
    /// Who kept the driver from being unloaded.
    idle: Option<IdleReport>,
    warnings: Vec<String>,
}

/// A declaration, with what it needs of the session.
pub struct Driver<'a> {
    pub task: &'a GpuDriver,
    gpus: Mutex<&'a mut Gpus>,
    record: &'a Record,
    /// The folder of former packages.
    folder: PathBuf,
    notes: Mutex<Notes>,
    fence: &'a (dyn Fn() -> Result<(), String> + Sync),
}

impl<'a> Driver<'a> {
    pub fn new(
        task: &'a GpuDriver,
        gpus: &'a mut Gpus,
        record: &'a Record,
        state_dir: &Path,
        fence: &'a (dyn Fn() -> Result<(), String> + Sync),
    ) -> Self {
        Self {
            task,
            gpus: Mutex::new(gpus),
            record,
            folder: state_dir.join(FOLDER),
            notes: Mutex::default(),
            fence,
        }
    }

    fn gpus(&self) -> MutexGuard<'_, &'a mut Gpus> {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to an outcome what the session has to know of it: that the GPUs lost their state, and who is in the way.
    pub fn settled(&self, mut outcome: OpOutcome, mode: Mode, node: &Node<'_>) -> OpOutcome {
        let by_reload = |change: &Change| {
            change.subject == Subject::module(MODULE) && change.disruption == Disruption::GpuReset
        };
        let first = outcome
            .changes
            .iter()
            .any(|change| change.subject == Subject::module(MODULE) && change.from == Typed::Absent);
        let reloads = outcome.status == OpStatus::Changed && outcome.changes.iter().any(by_reload);
        let notes = std::mem::take(&mut *self.notes());
        let lost = match mode {
            Mode::Predict => reloads,
            // Also after a failure: what was lost is lost.
            Mode::Apply => notes.unloaded,
        };
        outcome.activated = lost.then_some(Disruption::GpuReset);
        outcome.idle = notes.idle;
        outcome.warnings.extend(notes.warnings);
        let mut gpus = self.gpus();
        if mode == Mode::Predict {
            if reloads {
                let report = gpus.idle(&Default::default(), node.deadline);
                let next = "wait for it, or let gpufleet drain the node (`rollout: {drain: …}`)";
                outcome.blockers.extend(report.reasons.into_iter().map(|why| Blocker::new(why, next)));
            }
            if reloads || first {
                gpus.assume_driver(first);
            }
        }
        let runs = matches!(outcome.status, OpStatus::Ok | OpStatus::Changed) && outcome.awaiting.is_empty();
        if mode == Mode::Apply && runs {
            outcome.warnings.extend(self.forget());
        }
        outcome
    }

    /// Removes the note and the former packages, once the declared driver runs; returns what stays.
    fn forget(&self) -> Option<String> {
        if !matches!(Attempt::read(self.record), Ok(Some(_))) {
            return None;
        }
        let removed = tree::remove_all(&self.folder, &|| true);
        let stays = removed.err().filter(|error| error.source.kind() != ErrorKind::NotFound);
        let problem = stays.map(|error| error.to_string());
        let note = Attempt::forget(self.record).err().map(|trouble| said(&trouble));
        problem.or(note)
    }

    /// The flavour that is declared, or that of the driver on disk.
    fn flavour(&self, seen: &Seen) -> DriverFlavour {
        let installed = seen.disk.as_ref().or(seen.loaded.as_ref()).and_then(|module| module.open);
        self.task.flavour.unwrap_or(match installed {
            Some(false) => DriverFlavour::Proprietary,
            Some(true) | None => DriverFlavour::Open,
        })
    }

    fn is_wanted(&self, module: &Module) -> bool {
        self.task.accepts(&module.version) && module.is(self.task.flavour)
    }

    /// What has to be installed, if the driver on disk is not the declared one.
    fn wanted(
        &self,
        node: &Node<'_>,
        seen: &Seen,
        installed: &[(String, String)],
    ) -> Result<Option<Wanted>, Trouble> {
        if seen.disk.as_ref().is_some_and(|disk| self.is_wanted(disk)) && seen.is_whole() {
            return Ok(None);
        }
        let pins = Pins::new(node, self.task)?;
        let recipe = match self.task.packages.is_empty() {
            false => Ok(recipe::Recipe { packages: self.task.packages.clone(), builds: false }),
            true => {
                let names: Vec<String> = installed.iter().map(|(name, _)| name.clone()).collect();
                let all = recipe::recipes(&Wish {
                    source: self.task.source,
                    branch: self.task.wanted_branch().unwrap_or_default(),
                    flavour: self.flavour(seen),
                    kernel: &seen.kernel,
                    installed: &names,
                });
                packages::choose(node, self.task, &pins, all)
            }
        };
        let recipe = match recipe {
            Ok(recipe) => recipe,
            // Only the run can tell what the new lists have.
            Err(Trouble::Missing(_)) if self.may_be_listed() || sources_change(node) => {
                return Ok(Some(Wanted { names: Vec::new(), order: Order::default(), version: None }));
            }
            Err(Trouble::Missing(why))
                if seen.loaded.as_ref().is_some_and(|loaded| self.is_wanted(loaded)) =>
            {
                return Err(Trouble::missing(format!(
                    "the driver runs, and nothing on this node's disk would load it at the next boot: {why}"
                )));
            }
            Err(trouble) => return Err(trouble),
        };
        if let (true, Some(why)) = (recipe.builds, &seen.unsigned) {
            return Err(Trouble::invalid(format!(
                "{why}; enrol the key at the console (`mokutil --import`), or install modules that the distribution signed"
            )));
        }
        let order = packages::simulate(node, &pins, &recipe.packages)?;
        if !recipe.builds && self.task.packages.is_empty() && !brings_module(&order, installed, &seen.kernel)
        {
            return Err(Trouble::invalid(format!(
                "{} bring no module for the running kernel {}; boot the newest kernel first, or name other `packages`",
                recipe.packages.join(", "),
                seen.kernel
            )));
        }
        let version = order
            .actions
            .iter()
            .filter(|action| is_driver(&action.name))
            .filter_map(|action| Some(upstream(action.to.as_ref()?)))
            .find(|version| self.task.accepts(version))
            .map(str::to_owned);
        if order.actions.is_empty() {
            let library = seen.library.as_deref().unwrap_or("none");
            return Err(Trouble::invalid(match &seen.disk {
                None => format!(
                    "the packages {} are installed, and there is no module nvidia for the kernel {}; `dkms status` tells \
                     whether it was built",
                    recipe.packages.join(", "),
                    seen.kernel
                ),
                Some(disk) => format!(
                    "the packages {} are installed, and the module on disk is {}, the library {library}; another installation \
                     left files there",
                    recipe.packages.join(", "),
                    disk.version
                ),
            }));
        }
        if version.is_none() {
            return Err(Trouble::invalid(format!(
                "{} would bring no package of the driver {}",
                recipe.packages.join(", "),
                self.task.wanted()
            )));
        }
        Ok(Some(Wanted { names: recipe.packages, order, version }))
    }

    /// Whether newer lists may have packages that these do not.
    fn may_be_listed(&self) -> bool {
        self.task.update_cache && !self.notes().refreshed
    }

    /// How the driver that will be on disk begins to run.
    fn way(&self, state: &State) -> Result<Way, Trouble> {
        let seen = &state.seen;
        let open = self.task.flavour.map(DriverFlavour::is_open);
        let runs = seen.loaded.as_ref().is_some_and(|loaded| {
            Some(loaded.version.as_str()) == state.target()
                && (open.is_none() || loaded.open == open || loaded.open.is_none())
        });
        let reboot = |why: &str| match self.task.reboot {
            DriverReboot::Never => Err(Trouble::invalid(format!(
                "the driver would need a reboot, and `reboot: never` is declared: {why}"
            ))),
            DriverReboot::IfNeeded | DriverReboot::Always => Ok(Way::Reboot(why.to_owned())),
        };
        match (&seen.loaded, &seen.fixed) {
            _ if runs && state.order.is_none() => Ok(Way::Nothing),
            _ if seen.nouveau => reboot("the kernel's own driver (nouveau) has the GPUs"),
            _ if self.task.reboot == DriverReboot::Always => reboot("`reboot: always` is declared"),
            (None, _) => Ok(Way::Load),
            (Some(_), Some(why)) => reboot(why),
            (Some(_), None) => Ok(Way::Reload),
        }
    }
}

/// Whether a package with modules of this kernel is there afterwards.
fn brings_module(order: &Order, installed: &[(String, String)], kernel: &str) -> bool {
    let new = order.actions.iter().filter(|action| action.to.is_some()).map(|action| action.name.as_str());
    let gone = |name: &str| order.actions.iter().any(|action| action.name == name && action.to.is_none());
    let old = installed.iter().map(|(name, _)| name.as_str()).filter(|name| !gone(name));
    new.chain(old).any(|name| name.ends_with(kernel))
}

/// Returns the version of the driver that will run, if an earlier task of a prediction changes it.
pub fn foreseen(node: &Node<'_>) -> Option<String> {
    let on_disk = || node.world.noted(ON_DISK).into_iter().next().map(|(_, version)| version);
    node.world.parameter(LOADED).or_else(|| node.world.rebooted().then(on_disk).flatten())
}

/// Whether an earlier task of a prediction changes where packages come from.
fn sources_change(node: &Node<'_>) -> bool {
    super::repositories::APT.iter().any(|path| node.world.assumes_below(&node.roots.path(path)))
}

impl NodeKind for Driver<'_> {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let mut seen = Seen::read(node)?;
        if seen.gpus == 0 {
            return Err(Trouble::invalid("there is no NVIDIA GPU on this node's PCI bus"));
        }
        if let Some(why) = seen.foreign {
            return Err(Trouble::invalid(why));
        }
        if node.roots.tool("apt-get").is_none() {
            return Err(Trouble::invalid(
                "gpu_driver installs drivers with apt, which this node does not have; declare the packages with `dnf`, and a \
                 reboot behind it",
            ));
        }
        let rebooted = node.world.rebooted();
        let open = self.flavour(&seen).is_open();
        let assumed = |version: String| Module { version, open: Some(open) };
        if let Some((_, version)) = node.world.noted(ON_DISK).into_iter().next() {
            seen.library = Some(version.clone());
            seen.disk = Some(assumed(version));
        }
        match node.world.parameter(LOADED) {
            Some(version) => seen.loaded = Some(assumed(version)),
            None if rebooted => {
                seen.nouveau &= seen.disk.is_none();
                seen.loaded.clone_from(&seen.disk);
            }
            None => {}
        }
        let installed = packages::installed(node)?;
        let order = self.wanted(node, &seen, &installed)?;
        let mut names: Vec<String> = installed.iter().map(|(name, _)| name.clone()).collect();
        let all_held = packages::held(node)?;
        let held_before = names.iter().filter(|name| all_held.contains(*name)).cloned().collect();
        if let Some(wanted) = &order {
            let actions = wanted.order.actions.iter();
            names.retain(|name| !actions.clone().any(|action| action.name == *name && action.to.is_none()));
            let new = actions.filter(|action| action.to.is_some() && is_driver(&action.name));
            names.extend(new.map(|action| action.name.clone()).filter(|name| !name.contains(':')));
            names.sort();
            names.dedup();
        }
        let (held, mut unheld): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| all_held.contains(name));
        if let Some(wanted) = &order {
            // dpkg forgets the hold of a package that it installs.
            let new = |name: &&String| wanted.order.actions.iter().any(|action| action.name == **name);
            unheld.extend(held.iter().filter(new).cloned());
        }
        if node.world.noted(HELD).iter().any(|(_, value)| value == "held") {
            unheld.clear();
        }
        let one_way = match &order {
            Some(wanted) if self.task.go_back != DriverGoBack::Never => match wanted.former() {
                former if former.is_empty() && seen.loaded.is_some() => {
                    Some("it did not come from packages".to_owned())
                }
                former => packages::unobtainable(node, &former)?,
            },
            _ => None,
        };
        let attempt = Attempt::read(self.record)?;
        // Of a driver that an earlier task of a prediction changes nothing can be read.
        let noted = attempt.is_some() && node.world.noted(ON_DISK).is_empty() && !rebooted;
        let loaded = noted && seen.loaded.is_some() && order.is_none();
        let silent = match loaded {
            true => answers(node, seen.gpus, &mut self.gpus()).err(),
            false => None,
        };
        let interrupted = noted && packages::is_interrupted(node)?;
        Ok(State {
            seen,
            installed,
            order,
            unheld,
            held,
            attempt,
            one_way,
            silent,
            interrupted,
            held_before,
            rebooted,
        })
    }

    fn is_stale(&self, state: &State) -> bool {
        self.task.update_cache && state.order.is_some()
    }

    fn refresh(&self, node: &Node<'_>, _: &State) -> Result<Map<String, Value>, Trouble> {
        packages::update(node)?;
        self.notes().refreshed = true;
        Ok(Map::new())
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let seen = &state.seen;
        let way = self.way(state)?;
        // The packages of a driver that runs are replaced only where nobody works on its GPUs: programs that start
        // between its old module and its new library fail.
        let class = if seen.loaded.is_some() { Disruption::GpuReset } else { Disruption::Live };
        let from = || seen.loaded.as_ref().map_or(Typed::Absent, |loaded| loaded.version.as_str().into());
        if let Some(wanted) = &state.order {
            self.plan_packages(state, wanted, class, &mut plan)?;
            if wanted.version.is_none() {
                return Ok(plan);
            }
            plan.steps.push(Step::Install);
            plan.needs = class;
        }
        let to = state.target().unwrap_or_default();
        let module = |class| Change::new(Subject::module(MODULE), Property::VERSION, from(), to, class);
        // An attempt of an earlier boot that does not run was to come up with that boot.
        let undone = state.attempt.as_ref().filter(|attempt| self.may_go_back(attempt));
        let late = undone.filter(|attempt| attempt.boot_id != seen.boot_id && !state.rebooted);
        if state.interrupted {
            let what = Property::new("driver packages");
            let change =
                Change::new(Subject::PackageManager, what, "half installed", "installed", Disruption::Live);
            plan.push(Step::Finish, change);
        }
        match way {
            Way::Nothing => match &state.silent {
                None => {}
                Some(why) if undone.is_some() => {
                    plan.push(Step::GoBack(why.clone()), module(class));
                    plan.needs = class;
                }
                Some(why) => {
                    return Err(Trouble::failed(
                        FailureKind::Unconverged,
                        format!(
                            "the driver {to} is loaded and does not work, and there is no way back: {why}"
                        ),
                    ));
                }
            },
            Way::Load => plan.push(Step::Load, module(Disruption::Live)),
            Way::Reload | Way::Reboot(_) if state.order.is_none() && late.is_some() => {
                let runs = seen.loaded.as_ref().map_or_else(|| "no driver".to_owned(), |l| l.version.clone());
                plan.push(Step::GoBack(format!("after the reboot, {runs} is loaded")), module(class));
                plan.needs = class;
            }
            Way::Reload => {
                plan.push(Step::Reload, module(Disruption::GpuReset));
                plan.needs = Disruption::GpuReset;
            }
            Way::Reboot(why) => {
                if state.order.is_some() {
                    plan.changes.push(module(Disruption::Reboot).with_note(why.clone()));
                }
                let runs = seen.loaded.as_ref().map(|loaded| loaded.version.as_str());
                let reason = GpuDriver::reason(to, runs, &why);
                plan.awaiting.push(Awaiting { activation: Disruption::Reboot, reason });
            }
        }
        self.plan_hold(state, &mut plan);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(wanted) = &state.order {
            let actions = wanted.order.actions.iter();
            effects.extend(
                actions
                    .map(|action| Effect::Package { name: action.name.clone(), version: action.to.clone() }),
            );
            let disk = wanted.version.clone().unwrap_or_default();
            effects.push(Effect::Noted { name: ON_DISK.to_owned(), value: disk });
        }
        let loads = plan.steps.iter().any(|step| matches!(step, Step::Load | Step::Reload));
        if let Some(version) = state.target().filter(|_| loads) {
            effects.push(Effect::Parameter { name: LOADED.to_owned(), value: version.to_owned() });
        }
        if plan.steps.iter().any(|step| matches!(step, Step::Hold(_))) {
            effects.push(Effect::Noted { name: HELD.to_owned(), value: "held".to_owned() });
        }
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let version = state.target().unwrap_or_default();
        let installs = plan.steps.contains(&Step::Install);
        let mut attempt = state.attempt.clone();
        if state.interrupted {
            packages::finish_interrupted(node)?;
        }
        if let (true, Some(wanted)) = (installs, &state.order) {
            let pins = Pins::new(node, self.task)?;
            packages::download(node, &pins, &wanted.names)?;
            // Lists may have become newer since the plan.
            if attempt.is_none()
                && packages::simulate(node, &pins, &wanted.names)?.actions != wanted.order.actions
            {
                return Err(Trouble::failed(
                    FailureKind::Refused,
                    "nothing was changed: the package lists changed since the plan; run again",
                ));
            }
            attempt = Some(self.prepare(node, state, wanted, version)?);
        }
        let install = || -> Result<(), Trouble> {
            let Some(wanted) = state.order.as_ref().filter(|_| installs) else { return Ok(()) };
            packages::perform(node, &Pins::new(node, self.task)?, &wanted.names)?;
            modules::check_disk(node, version)
        };
        let mut problems = Vec::new();
        for step in &plan.steps {
            match step {
                // Done before everything else.
                Step::Finish => {}
                Step::Install if plan.steps.contains(&Step::Reload) => {}
                Step::Install => {
                    install()
                        .map_err(|trouble| self.give_up(node, state, attempt.as_ref(), false, trouble))?;
                }
                Step::Load => {
                    let loaded = modules::load(node, &state.seen.modules, version)
                        .and_then(|()| self.comes_up(node, version));
                    loaded.map_err(|trouble| self.give_up(node, state, attempt.as_ref(), true, trouble))?;
                    // What a killed helper had stopped could not start without a driver.
                    problems.extend(self.gpus().put_back(node.deadline));
                }
                Step::Reload => {
                    let mut gpus = self.gpus();
                    let work =
                        |gpus: &mut Gpus| self.reload(node, state, attempt.as_ref(), version, gpus, &install);
                    let done = gpus.suspended(node.deadline, node.progress, self.fence, work);
                    let (done, left) = match done {
                        Ok(done) => done,
                        Err(held) => {
                            self.replaced_nothing(state);
                            return Err(self.held(held));
                        }
                    };
                    let left = self.took(left);
                    done.map_err(|trouble| with(trouble, &left))?;
                    problems.extend(left);
                }
                Step::GoBack(why) => {
                    let trouble = Trouble::failed(FailureKind::Unconverged, why.clone());
                    return Err(self.give_up(node, state, attempt.as_ref(), true, trouble));
                }
                Step::Hold(names) => packages::hold(node, names, true)?,
                Step::Release(names) => packages::hold(node, names, false)?,
            }
        }
        if !problems.is_empty() {
            return Err(Trouble::io(format!("the driver {version} runs; {}", problems.join("; "))));
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let version = |module: &Option<Module>| json!(module.as_ref().map(|module| module.version.clone()));
        let data = [
            ("loaded", version(&state.seen.loaded)),
            ("on_disk", version(&state.seen.disk)),
            ("library", json!(state.seen.library)),
            ("open", json!(state.seen.loaded.as_ref().and_then(|module| module.open))),
            (
                "packages",
                json!(state.installed.iter().map(|(name, v)| format!("{name}={v}")).collect::<Vec<_>>()),
            ),
        ];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Where a prediction notes that the packages are held.
const HELD: &str = "driver/held";

/// Adds sentences to a message.
fn with(trouble: Trouble, more: &[String]) -> Trouble {
    match trouble {
        Trouble::Failed { kind, message } if !more.is_empty() => {
            Trouble::failed(kind, format!("{message}; {}", more.join("; ")))
        }
        other => other,
    }
}

/// Returns what a trouble says.
fn said(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Failed { message, .. } | Trouble::Missing(message) | Trouble::NotApplicable(message) => {
            message.clone()
        }
        Trouble::Possible => "only the run can tell".to_owned(),
    }
}

impl Driver<'_> {
    fn plan_packages(
        &self,
        state: &State,
        wanted: &Wanted,
        class: Disruption,
        plan: &mut Plan<Step>,
    ) -> Result<(), Trouble> {
        if wanted.version.is_none() {
            let module = Subject::module(MODULE);
            let change =
                Change::new(module, Property::VERSION, Typed::Unknown, self.task.wanted().as_str(), class);
            let note = "which packages bring it is known once their lists are updated";
            plan.changes.push(change.with_note(note).possible());
            return Ok(());
        }
        for action in &wanted.order.actions {
            let (from, to) = (action.from.clone(), action.to.clone());
            let change = Change::new(Subject::package(&action.name), Property::VERSION, from, to, class);
            plan.changes.push(if wanted.order.open { change.possible() } else { change });
        }
        match (&state.one_way, self.task.go_back) {
            (Some(why), DriverGoBack::Required) => {
                return Err(Trouble::invalid(format!(
                    "the node could not go back to its present driver, and `go_back: required` is declared: {why}"
                )));
            }
            (Some(why), DriverGoBack::IfPossible) => plan.warnings.push(format!(
                "if the new driver does not come up, the node cannot go back to its present one: {why}"
            )),
            _ => {}
        }
        Ok(())
    }

    fn plan_hold(&self, state: &State, plan: &mut Plan<Step>) {
        let (names, from, to) = match self.task.hold {
            true => (&state.unheld, "open to updates", "held"),
            false => (&state.held, "held", "open to updates"),
        };
        if names.is_empty() {
            return;
        }
        let what = Property::new("driver packages");
        let change = Change::new(Subject::PackageManager, what, from, to, Disruption::Live);
        let step = if self.task.hold { Step::Hold(names.clone()) } else { Step::Release(names.clone()) };
        plan.push(step, change.with_note(names.join(", ")));
    }

    /// Fetches what going back needs, and notes it.
    fn prepare(
        &self,
        node: &Node<'_>,
        state: &State,
        wanted: &Wanted,
        version: &str,
    ) -> Result<Attempt, Trouble> {
        let mut former = wanted.former();
        if state.attempt.is_none() {
            // What a killed helper left there may be half a file.
            let _ = tree::remove_all(&self.folder, &|| true);
        }
        if self.task.go_back != DriverGoBack::Never {
            packages::keep(node, &self.folder, &mut former)?;
        }
        let mut attempt = Attempt {
            wanted: version.to_owned(),
            before: state.seen.loaded.as_ref().map(|loaded| loaded.version.clone()),
            boot_id: state.seen.boot_id.clone(),
            former,
            added: wanted.added(),
            held: state.held_before.clone(),
            modules: state.seen.modules.clone(),
        };
        // What a killed helper left half done is nothing to go back to.
        if let Some(before) = &state.attempt {
            attempt.continues(before);
        }
        if self.task.go_back == DriverGoBack::Required && !attempt.can_go_back() {
            let lost = attempt.former.iter().filter(|one| one.file.is_none()).map(|one| one.name.as_str());
            return Err(Trouble::failed(
                FailureKind::Refused,
                format!(
                    "nothing was changed: the packages {} of the present driver cannot be had",
                    lost.collect::<Vec<_>>().join(", ")
                ),
            ));
        }
        attempt.write(self.record)?;
        Ok(attempt)
    }
}

#[cfg(test)]
mod tests;

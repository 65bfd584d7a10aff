//! `gpu_driver`: the NVIDIA driver of a node, from its packages to the module that runs.
//!
//! The package manager simulates the installation, and its answer is the plan. Before packages are replaced, everything
//! that is needed to go back is fetched and noted; a driver that does not come up is replaced by the former one.
//! `recipe` knows names of packages, `packages` asks and calls apt or dnf, `seen` reads modules and libraries, `modules`
//! unloads and loads them, `wanted` is what has to be installed, `attempt` is the note. What holds the driver is stopped by [`Gpus::suspended`].

mod attempt;
mod change;
mod firmware;
mod kernels;
mod kernels_own;
mod modules;
mod packages;
mod recipe;
mod replacement;
mod seen;
mod wanted;

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use gpufleet_protocol::{
    Awaiting, Blocker, Change, Disruption, FailureKind, Layer, OpOutcome, OpStatus, Property, Subject,
    change::Value as Typed,
    message::{IdleReport, Mode},
    tasks::{DriverFlavour, DriverGoBack, DriverReboot, GpuDriver},
};
use serde_json::{Map, Value, json};

pub use self::recipe::{UNNUMBERED, upstream};
use self::{
    attempt::{Attempt, mended},
    kernels_own::{InImages, Next},
    packages::Interrupted,
    recipe::is_driver,
    seen::{Module, Seen},
    wanted::Wanted,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    gpu::{Gpus, Taker, bus},
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
    /// Packages that stay held, because a person's pattern holds them; with it.
    by_pattern: BTreeMap<String, String>,
    attempt: Option<Attempt>,
    /// Why the node could not go back.
    one_way: Option<String>,
    /// Why there is no driver on disk, although all its packages are installed.
    unbuilt: Option<String>,
    /// Why the driver that is loaded does not work.
    silent: Option<String>,
    /// GPUs that the driver does not find, while none of its changes is under way.
    fewer: Option<String>,
    /// Why the next boot is without a driver.
    next_boot: Option<String>,
    /// Whether the kernel's own driver, which is loaded, is loaded again at the next boot.
    next_own: Next,
    /// The images that may hold that driver, where it has the GPUs and modprobe.d keeps it away.
    in_images: Option<InImages>,
    /// Why the module on disk would not start the GPUs.
    bare: Option<String>,
    /// Whether the package manager was interrupted in a change of the driver.
    interrupted: bool,
    /// Packages of others that are finished along with those of the driver.
    others: Vec<String>,
    /// Why only a person can tell what is left over of a change of packages.
    unclear: Option<String>,
    /// The stream of dnf's module that is enabled.
    stream: Option<String>,
    /// Packages that are held now.
    held_before: Vec<String>,
    /// Whether a reboot is assumed to have happened.
    rebooted: bool,
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

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Install,
    /// The images that hold the kernel's own driver are built again.
    Images,
    Load,
    Reload,
    /// A driver that was to come up with a reboot did not: the former one comes back.
    GoBack(String),
    /// The package manager was interrupted.
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
                // Others are named already, with a next step of their own.
                let more = report.reasons.into_iter().map(|why| Blocker::new(why, next));
                let more: Vec<Blocker> =
                    more.filter(|one| !outcome.blockers.iter().any(|named| named.what == one.what)).collect();
                outcome.blockers.extend(more);
                if !first {
                    outcome.warnings.extend(gpus.lost_by(Taker::Reload, &node.world, node.deadline));
                }
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
        let left = mended::forget(self.record).err().map(|trouble| trouble.text());
        if !matches!(Attempt::read(self.record), Ok(Some(_))) {
            return left;
        }
        let removed = tree::remove_all(&self.folder, &|| true);
        let stays = removed.err().filter(|error| error.source.kind() != ErrorKind::NotFound);
        let problem = stays.map(|error| error.to_string());
        let note = Attempt::forget(self.record).err().map(|trouble| trouble.text());
        problem.or(note)
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
        let own = (!seen.kernels_own.is_empty()).then(|| seen.kernels_own.join(" and "));
        match (&seen.loaded, &seen.fixed, &own, &state.next_own) {
            _ if runs && state.order.is_none() => Ok(Way::Nothing),
            // The packages of most drivers keep it away, so that this is looked at once they are there.
            (_, _, Some(_), Next::Returns(name)) if state.order.is_none() => Err(Trouble::failed(
                FailureKind::Unconverged,
                format!(
                    "the kernel's own driver ({name}) has the GPUs, and would have them again after a reboot: neither \
                         modprobe.d nor the kernel command line keeps it from being loaded; put `kernel_blacklist: {{name: \
                         {name}}}` before this task, which builds the initramfs again too if it holds {name}"
                ),
            )),
            (_, _, Some(name), _) => reboot(&format!("the kernel's own driver ({name}) has the GPUs")),
            _ if self.task.reboot == DriverReboot::Always => reboot("`reboot: always` is declared"),
            (None, ..) => Ok(Way::Load),
            (Some(_), Some(why), ..) => reboot(why),
            (Some(_), None, ..) => Ok(Way::Reload),
        }
    }
}

/// Returns the version of the driver that will run, if an earlier task of a prediction changes it.
pub fn foreseen(node: &Node<'_>) -> Option<String> {
    let on_disk = || node.world.noted(ON_DISK).into_iter().next().map(|(_, version)| version);
    node.world.parameter(LOADED).or_else(|| node.world.rebooted().then(on_disk).flatten())
}

/// Returns the version of the module that runs, or will run if an earlier task of a prediction changes it.
///
/// # Errors
/// If one runs and nothing tells its version.
pub fn running(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    match foreseen(node) {
        Some(version) => Ok(Some(version)),
        None => Ok(seen::loaded(node)?.map(|module| module.version)),
    }
}

impl NodeKind for Driver<'_> {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let mut seen = Seen::read(node)?;
        if seen.gpus == 0 {
            return Err(Trouble::invalid(bus::NO_GPU));
        }
        if let Some(why) = seen.foreign {
            return Err(Trouble::invalid(why));
        }
        let manager = packages::of(node)?;
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
                if seen.disk.is_some() {
                    seen.kernels_own.clear();
                }
                seen.loaded.clone_from(&seen.disk);
            }
            None => {}
        }
        let installed = manager.installed(node)?;
        let assumes =
            rebooted || !node.world.noted(ON_DISK).is_empty() || node.world.parameter(LOADED).is_some();
        // One that came up with a boot is over, where another version is wanted now: what ran before it is nothing to go
        // back to.
        let is_over = |attempt: &Attempt| !self.task.accepts(&attempt.wanted) && seen.came_up_with(attempt);
        let attempt = Attempt::read(self.record)?.filter(|attempt| !is_over(attempt));
        let wanted = self.wanted(node, manager, &seen, &installed);
        // Whether packages fit each other takes the package manager a while: nodes as declared are not asked.
        let acts = attempt.is_some() || !matches!(wanted, Ok(None));
        let half = match assumes {
            true => Interrupted::default(),
            false => manager.interrupted(node, attempt.as_ref())?,
        };
        if let (Some(why), true) = (&half.unclear, acts) {
            return Err(Trouble::invalid(why.clone()));
        }
        let interrupted = !assumes && (!half.packages.is_empty() || (acts && manager.is_unmatched(node)?));
        let (order, unbuilt) = match wanted {
            // A package manager that was killed in its work often cannot even simulate. Finished, it can.
            Err(_) if interrupted => (Some(Wanted::after_finishing()), None),
            Ok(Some(Wanted { unbuilt: Some(why), .. })) => match &attempt {
                Some(attempt) if !assumes && self.may_go_back(attempt) => (None, Some(why)),
                _ => return Err(Trouble::invalid(why)),
            },
            other => (other?, None),
        };
        let mut names: Vec<String> = installed.iter().map(|(name, _)| name.clone()).collect();
        let holds = self.locked(node, manager, &installed)?;
        let all_held = |name: &String| holds.has(name);
        let is_own = |name: &String| holds.own.contains(name);
        let held_before = names.iter().filter(|name| is_own(name)).cloned().collect();
        if let Some(wanted) = &order {
            let actions = wanted.order.actions.iter();
            names.retain(|name| !actions.clone().any(|action| action.name == *name && action.to.is_none()));
            let new = actions.filter(|action| action.to.is_some() && is_driver(&action.name));
            names.extend(new.map(|action| action.name.clone()).filter(|name| !name.contains(':')));
            names.sort();
            names.dedup();
        }
        let (mut held, mut unheld): (Vec<String>, Vec<String>) = names.into_iter().partition(all_held);
        if let Some(wanted) = &order {
            // dpkg forgets the hold of a package that it installs.
            let new = |name: &&String| wanted.order.actions.iter().any(|action| action.name == **name);
            unheld.extend(held.iter().filter(new).cloned());
        }
        held.retain(is_own);
        if node.world.noted(HELD).iter().any(|(_, value)| value == "held") {
            unheld.clear();
        }
        let one_way = match &order {
            Some(wanted) if self.task.go_back != DriverGoBack::Never => match wanted.former() {
                former if former.is_empty() && seen.loaded.is_some() => {
                    Some("it did not come from packages".to_owned())
                }
                former => manager.unobtainable(node, &former)?,
            },
            _ => None,
        };
        // Of a driver that an earlier task of a prediction changes nothing can be read.
        let asks = !assumes && seen.loaded.is_some() && order.is_none();
        let (silent, fewer) = match asks {
            true => self.silence(node, seen.gpus, attempt.is_some()),
            false => (None, None),
        };
        let stream = manager.stream(node)?;
        let next_boot = match (&seen.disk, assumes || order.is_some()) {
            (Some(disk), false) => kernels::broken(node, &seen.kernel, &disk.version)?,
            _ => None,
        };
        let settled = !assumes && order.is_none();
        let bare = match &seen.disk {
            Some(disk) if settled => firmware::missing(node, &seen.kernel, disk)?,
            _ => None,
        };
        let own = seen.kernels_own.as_slice();
        let next_own = match settled {
            true => kernels_own::next(node, own)?,
            false => Next::StaysAway,
        };
        let in_images = match !own.is_empty() && settled && next_own == Next::StaysAway {
            true => Some(InImages::read(node, own)?),
            false => None,
        };
        Ok(State {
            next_own,
            in_images,
            bare,
            seen,
            installed,
            order,
            unheld,
            held,
            by_pattern: holds.by_pattern,
            attempt,
            one_way,
            unbuilt,
            silent,
            fewer,
            next_boot,
            interrupted,
            others: half.others,
            unclear: half.unclear,
            stream,
            held_before,
            rebooted,
        })
    }

    fn is_stale(&self, state: &State) -> bool {
        self.task.update_cache && state.order.is_some() && !state.interrupted
    }

    fn refresh(&self, node: &Node<'_>, _: &State) -> Result<Map<String, Value>, Trouble> {
        packages::of(node)?.update(node)?;
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
        match (&state.bare, &way) {
            (Some(why), Way::Load | Way::Reload | Way::Reboot(_)) if state.attempt.is_none() => {
                return Err(Trouble::missing(why.clone()));
            }
            // What runs has it; a reboot or a reset has not.
            (bare, _) => plan.warnings.extend(bare.clone()),
        }
        plan.warnings.extend(state.fewer.iter().chain(&state.next_boot).chain(&state.unclear).cloned());
        if state.interrupted {
            let what = Property::new("driver packages");
            let change = Change::new(Subject::PackageManager, what, "half installed", "installed", class);
            let along = format!("packages of others are finished along: {}", state.others.join(", "));
            plan.push(Step::Finish, if state.others.is_empty() { change } else { change.with_note(along) });
            // Also before what follows, which is known once the packages are whole again.
            plan.needs = class;
        }
        if let Some(wanted) = &state.order {
            self.plan_packages(state, wanted, class, &mut plan)?;
            if wanted.version.is_none() {
                return Ok(plan);
            }
            plan.steps.push(Step::Install);
            plan.needs = class;
        }
        if let (Some(why), Some(attempt)) = (&state.unbuilt, &state.attempt) {
            let before = attempt.before.clone();
            let change = Change::new(Subject::module(MODULE), Property::VERSION, from(), before, class);
            plan.push(Step::GoBack(why.clone()), change);
            plan.needs = class;
            return Ok(plan);
        }
        let to = state.target().unwrap_or_default();
        let module = |class| Change::new(Subject::module(MODULE), Property::VERSION, from(), to, class);
        // An attempt of an earlier boot that does not run was to come up with that boot.
        let undone = state.attempt.as_ref().filter(|attempt| {
            self.may_go_back(attempt) && state.target().is_none_or(|target| target == attempt.wanted)
        });
        let late = undone.filter(|attempt| attempt.boot_id != seen.boot_id && !state.rebooted);
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
                        match state.attempt {
                            Some(_) => format!(
                                "the driver {to} is loaded and does not work, and there is no way back: {why}"
                            ),
                            None => format!(
                                "the driver {to} is installed and loaded, and does not work: {why}; `nvidia-smi` and `dmesg` \
                                 tell more, and a reboot loads it anew"
                            ),
                        },
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
            // Such as a kernel for which DKMS could not build: the node would come back without a driver.
            Way::Reboot(_) if state.order.is_none() && state.next_boot.is_some() => {
                let broken = state.next_boot.clone().unwrap_or_default();
                return Err(Trouble::failed(
                    FailureKind::Unconverged,
                    format!("a reboot is needed, and would leave the node without a driver: {broken}"),
                ));
            }
            Way::Reboot(why) => {
                if state.order.is_some() {
                    plan.changes.push(module(Disruption::Reboot).with_note(why.clone()));
                }
                if let Next::Unclear(name, why) = &state.next_own {
                    plan.warnings.push(format!(
                        "the kernel's own driver ({name}) has the GPUs, no file of modprobe.d keeps it from being loaded, and whether \
                         the kernel command line will is not known ({why}): unless it does, put `kernel_blacklist: {{name: {name}}}` \
                         before this task"
                    ));
                }
                if let Some(images) = &state.in_images {
                    images.plan(|| Step::Images, &mut plan);
                }
                for name in seen.kernels_own.iter().filter(|_| state.order.is_some()) {
                    let module = Subject::module(*name);
                    let to = "as in modprobe.d";
                    let change = Change::new(module, Property::STATE, Typed::Unknown, to, Disruption::Live)
                        .at(Layer::Initramfs)
                        .with_note(format!(
                            "built again where it holds {name}, and the packages did not build it"
                        ));
                    plan.changes.push(change.possible());
                    plan.steps.push(Step::Images);
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
        if let Some(found) = state.in_images.as_ref().filter(|_| plan.steps.contains(&Step::Images)) {
            effects.extend(found.built());
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
        let manager = packages::of(node)?;
        if state.interrupted {
            mended::add(self.record, state.installed.iter().map(|(name, _)| name.clone()))?;
            let finished = manager.finish_interrupted(node, self.task, attempt.as_ref());
            if state.order.as_ref().is_some_and(|wanted| wanted.version.is_none()) {
                return self.go_on(node, finished);
            }
            // An installation completes what could not be finished alone.
            finished.or_else(|trouble| if installs { Ok(()) } else { Err(trouble) })?;
        }
        if let (true, Some(wanted)) = (installs, &state.order) {
            manager.download(node, self.task, &wanted.recipe)?;
            // Lists may have become newer since the plan.
            if attempt.is_none()
                && !state.interrupted
                && packages::simulate(manager, node, self.task, &wanted.recipe)?.actions
                    != wanted.order.actions
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
            manager.perform(node, self.task, &wanted.recipe)?;
            modules::check_disk(node, version, wanted.builds)
        };
        let mut problems = Vec::new();
        for step in &plan.steps {
            match step {
                // Done before everything else.
                Step::Finish => {}
                Step::Images => kernels_own::build(node, &bus::kernels_own(node.roots))?,
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
                    // While those who keep the driver's state are there, which the last of them takes along.
                    let counted = gpus.counted_before(Taker::Reload, node.deadline);
                    self.notes().warnings.extend(counted);
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
                Step::Hold(names) => manager.hold(node, names, true)?,
                Step::Release(names) => manager.hold(node, names, false)?,
            }
        }
        if installs && let Some(why) = kernels::broken(node, &state.seen.kernel, version)? {
            self.notes().warnings.push(why);
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

#[cfg(test)]
mod tests;

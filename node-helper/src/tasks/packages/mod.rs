//! `package`, `apt` and `dnf`: installed packages.
//!
//! The package manager simulates a call, its answer is the plan, and then it performs the call. Installed packages are
//! read from the package database alone, so that an unchanged node costs one short process.

pub mod apt;
pub(in crate::tasks) mod dnf;
pub(in crate::tasks) mod versionlock;

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    disturbing::{class_of, kinds},
    tasks::{Apt, AptState, Dnf, Package, PackageManager, PackageState},
};

use serde_json::{Map, Value};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::reload,
    tasks::driver,
    world::Effect,
};

/// The change of one package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tasks) struct Action {
    pub name: String,
    pub from: Option<String>,
    /// The version afterwards; `None` if it is removed.
    pub to: Option<String>,
}

impl Action {
    fn change(&self, subject: Subject) -> Change {
        Change::new(subject, Property::VERSION, self.from.clone(), self.to.clone(), Disruption::Live)
    }
}

/// One call of the package manager, and its simulated result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::tasks) struct Order {
    /// The arguments after the program's name.
    pub arguments: Vec<String>,
    pub actions: Vec<Action>,
    /// Changes of dnf's modules and their profiles.
    pub modules: Vec<Action>,
    /// Names that the package manager does not know before its lists are updated.
    pub unknown: Vec<String>,
    /// Whether an earlier task changes where packages come from, so that only the run can tell what this does.
    pub open: bool,
}

impl Order {
    fn does_something(&self) -> bool {
        !self.actions.is_empty() || !self.modules.is_empty() || !self.unknown.is_empty() || self.open
    }
}

/// Packages of kernels, by the beginnings of their names.
const KERNELS: [&str; 3] = ["linux-image", "linux-modules-nvidia", "kernel-core"];
/// So many packages are named that wait for a reboot.
const NAMED: usize = 4;

/// What runs now that packages touch.
#[derive(Debug, Default)]
struct Running {
    /// What the scripts of the packages take from containers.
    at_stake: Option<String>,
    driver: Loaded,
}

impl Running {
    /// Whether something that runs may need a package that goes.
    fn needs(&self, action: &Action) -> bool {
        let is_driver = kinds::is_driver_package(&action.name);
        action.to.is_none()
            && action.from.is_some()
            && (!is_driver || self.driver.may_be_of(action.from.as_deref()))
    }
}

/// The driver's module that runs.
#[derive(Debug, Default)]
enum Loaded {
    #[default]
    None,
    Version(String),
    /// There is one, and nothing tells which.
    Unknown,
}

impl Loaded {
    /// Whether it may be of a package in this version.
    fn may_be_of(&self, version: Option<&str>) -> bool {
        match (self, version) {
            (Self::None, _) => false,
            (Self::Version(own), Some(version)) => driver::upstream(version) == own,
            (Self::Version(_), None) | (Self::Unknown, _) => true,
        }
    }
}

fn is_kernel(name: &str) -> bool {
    let bare = kinds::bare_package(name);
    bare == "kernel" || KERNELS.iter().any(|beginning| bare.starts_with(beginning))
}

/// What a call leaves for the next boot.
fn for_next_boot(order: &Order, driver: &Loaded) -> Option<String> {
    let waits = |action: &&Action| match (&action.from, &action.to) {
        (_, Some(_)) => kinds::is_driver_package(&action.name) || is_kernel(&action.name),
        // Not what nothing runs, such as an old kernel, or the rest of a driver that was updated.
        (from, None) => kinds::is_driver_package(&action.name) && driver.may_be_of(from.as_deref()),
    };
    let known = order.actions.iter().filter(waits);
    let known = known.map(|action| match &action.to {
        Some(version) => format!("{} {version}", action.name),
        None => format!("{} (removed)", action.name),
    });
    let unknown =
        order.unknown.iter().filter(|name| kinds::is_driver_package(name) || is_kernel(name)).cloned();
    let mut names: Vec<String> = known.chain(unknown).collect();
    if names.is_empty() {
        return None;
    }
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    Some(format!("{}: the kernel and the driver that run now stay until the node reboots", names.join(", ")))
}

/// Reads what runs that these calls touch; nothing, if they do nothing.
fn running(node: &Node<'_>, orders: &[Order]) -> Running {
    if !orders.iter().any(Order::does_something) {
        return Running::default();
    }
    // A reboot of this prediction has ended them.
    let at_stake = (!node.world.rebooted()).then(|| reload::at_stake(node.roots)).flatten();
    let driver = match driver::running(node) {
        Ok(Some(version)) => Loaded::Version(version),
        Ok(None) => Loaded::None,
        Err(_) => Loaded::Unknown,
    };
    Running { at_stake, driver }
}

/// Prepares the node for scripts of packages, which ask nobody before systemd reads its units: makes the names of the
/// driver's devices. What is lost all the same stops nothing, because the kinds declare that they are live: the controller
/// asks no scheduler and brings no proof for them. The plan warns of it.
pub(in crate::tasks) fn before_scripts(node: &Node<'_>) {
    if let Err(error) = reload::make_names(node.roots) {
        (node.progress)(format!("a name in /dev/char was not made: {error}"));
    }
}

/// Adds calls to a plan; a call without effect is left out. `removes`: whether the task asks for packages to go, and not a
/// script of another package.
fn plan_orders(orders: &[Order], running: &Running, removes: bool, plan: &mut Plan<Vec<String>>) {
    for order in orders.iter().filter(|order| order.does_something()) {
        let note = if order.open {
            "an earlier task changes where packages come from"
        } else {
            plan.steps.push(order.arguments.clone());
            "the package lists do not have it and are updated first"
        };
        let known = |change: Change| if order.open { change.with_note(note).possible() } else { change };
        if order.open && order.actions.is_empty() && order.unknown.is_empty() {
            let packages = Property::new("packages");
            let to = "the newest";
            plan.changes.push(known(Change::new(
                Subject::PackageManager,
                packages,
                Typed::Unknown,
                to,
                Disruption::Live,
            )));
        }
        for module in &order.modules {
            let subject = Subject::PackageModule { name: module.name.clone() };
            plan.changes.push(known(module.change(subject)));
        }
        for action in &order.actions {
            let mut change = known(action.change(Subject::package(&action.name)));
            if removes && running.needs(action) {
                change = change.needing(class_of(kinds::of_package_removal(&action.name)));
                plan.needs = plan.needs.max(change.disruption);
            }
            plan.changes.push(change);
        }
        for name in &order.unknown {
            let (package, to) = (Subject::package(name), "installed");
            let change =
                Change::new(package, Property::STATE, Typed::Absent, to, Disruption::Live).with_note(note);
            plan.changes.push(change.possible());
        }
        let waits = for_next_boot(order, &running.driver);
        plan.warnings.extend(waits.clone());
        plan.for_next_boot.extend(waits);
    }
    plan.warnings.extend(running.at_stake.clone());
}

/// Returns the effects of calls.
fn effects(orders: &[Order]) -> Vec<Effect> {
    let known = orders.iter().flat_map(|order| order.actions.iter().map(move |action| (order, action))).map(
        |(order, action)| {
            let version = action.to.clone().map(|to| if order.open { String::new() } else { to });
            Effect::Package { name: action.name.clone(), version }
        },
    );
    let unknown = orders.iter().flat_map(|order| &order.unknown).map(|name| Effect::Package {
        name: name.split(['=', '>', '<', ' ']).next().unwrap_or(name).to_owned(),
        version: Some(String::new()),
    });
    known.chain(unknown).collect()
}

/// The node's package manager, with the task for it.
#[derive(Debug)]
enum Manager {
    Apt(Box<Apt>),
    Dnf(Box<Dnf>),
}

#[derive(Debug)]
pub enum State {
    Apt(Delegate<Apt>),
    Dnf(Delegate<Dnf>),
}

/// A package manager's task with its state.
#[derive(Debug)]
pub struct Delegate<D: NodeKind>
where
    D::State: std::fmt::Debug,
{
    task: Box<D>,
    state: D::State,
}

fn manager(task: &Package, node: &Node<'_>) -> Result<Manager, Trouble> {
    let has = |name: &str| node.roots.tool(name).is_some();
    let names = task.name.clone();
    let apt = match task.manager {
        PackageManager::Apt => true,
        PackageManager::Dnf => false,
        PackageManager::Auto if has("apt-get") => true,
        PackageManager::Auto if has("dnf") || has("yum") => false,
        PackageManager::Auto => {
            return Err(Trouble::invalid(
                "this node has neither apt nor dnf, and no other package manager is known",
            ));
        }
    };
    Ok(if apt {
        let state = match task.state {
            PackageState::Present => AptState::Present,
            PackageState::Latest => AptState::Latest,
            PackageState::Absent => AptState::Absent,
        };
        let mut apt = Apt::of(names, state);
        for (name, repositories) in [("enablerepo", &task.enablerepo), ("disablerepo", &task.disablerepo)] {
            if !repositories.is_empty() {
                return Err(Trouble::invalid(format!(
                    "`{name}` is a parameter of `dnf`, and this node has apt"
                )));
            }
        }
        apt.update_cache = task.update_cache.then_some(true);
        apt.cache_valid_time = task.cache_valid_time.unwrap_or_default();
        apt.allow_downgrade = task.allow_downgrade;
        Manager::Apt(Box::new(apt))
    } else {
        let mut dnf = Dnf::of(names, task.state);
        if task.cache_valid_time.is_some() {
            return Err(Trouble::invalid(
                "`cache_valid_time` is a parameter of `apt`, and this node has dnf",
            ));
        }
        dnf.update_cache = task.update_cache;
        dnf.allow_downgrade = task.allow_downgrade;
        dnf.enablerepo.clone_from(&task.enablerepo);
        dnf.disablerepo.clone_from(&task.disablerepo);
        Manager::Dnf(Box::new(dnf))
    })
}

macro_rules! with {
    ($state:expr, $one:ident => $body:expr) => {
        match $state {
            State::Apt($one) => $body,
            State::Dnf($one) => $body,
        }
    };
}

impl NodeKind for Package {
    type State = State;
    type Step = Vec<String>;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        Ok(match manager(self, node)? {
            Manager::Apt(task) => State::Apt(Delegate { state: task.observe(node)?, task }),
            Manager::Dnf(task) => State::Dnf(Delegate { state: task.observe(node)?, task }),
        })
    }

    fn is_stale(&self, state: &State) -> bool {
        with!(state, one => one.task.is_stale(&one.state))
    }

    fn refresh(&self, node: &Node<'_>, state: &State) -> Result<Map<String, Value>, Trouble> {
        with!(state, one => one.task.refresh(node, &one.state))
    }

    fn plan(&self, state: &State) -> Result<Plan<Vec<String>>, Trouble> {
        with!(state, one => one.task.plan(&one.state))
    }

    fn left(&self, state: &State, done: &Plan<Vec<String>>) -> Result<Plan<Vec<String>>, Trouble> {
        with!(state, one => one.task.left(&one.state, done))
    }

    fn after(&self, state: &State, plan: &Plan<Vec<String>>) -> Vec<Effect> {
        with!(state, one => one.task.after(&one.state, plan))
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Vec<String>>,
    ) -> Result<Map<String, Value>, Trouble> {
        with!(state, one => one.task.apply(node, &one.state, plan))
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        with!(state, one => one.task.data(&one.state))
    }
}

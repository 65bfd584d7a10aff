//! The packages of a driver, whichever package manager has them: what is there, what would be installed, the way back.
//!
//! The package manager simulates, and its answer is the plan. `apt` and `dnf` are the only two places that know their
//! commands; everything around them is the same for both.

mod apt;
mod dnf;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use gpufleet_protocol::{FailureKind, tasks::GpuDriver};

use super::{
    attempt::{Attempt, Former},
    recipe::{Recipe, Wish, is_driver},
};
use crate::{
    declare::{Node, Trouble},
    process::Run,
    tasks::packages::Order,
};

/// Output limit in bytes of a question about some packages.
const ANSWER: usize = 4 << 20;

/// Packages that nightly updates leave alone.
#[derive(Debug, Default)]
pub struct Holds {
    /// Those that are held by their names.
    pub own: BTreeSet<String>,
    /// Those that a person's pattern holds, which is not gpufleet's to change; with it.
    pub by_pattern: BTreeMap<String, String>,
}

impl Holds {
    pub fn has(&self, name: &str) -> bool {
        self.own.contains(name) || self.by_pattern.contains_key(name)
    }
}

/// A change of packages that did not come to its end.
#[derive(Debug, Default)]
pub struct Interrupted {
    /// What is to be finished of a driver.
    pub packages: Vec<String>,
    /// Other packages that are finished along with it.
    pub others: Vec<String>,
    /// Why only a person can tell what has to be done.
    pub unclear: Option<String>,
}

/// One package manager.
pub trait Packages: Sync {
    fn name(&self) -> &'static str;

    /// Files and folders that say where packages come from.
    fn sources(&self) -> &'static [&'static str];

    /// Returns the installed packages of a driver with their versions, without those of other architectures.
    ///
    /// # Errors
    /// If the package database cannot be read.
    fn installed(&self, node: &Node<'_>) -> Result<Vec<(String, String)>, Trouble>;

    /// Returns the ways to install a driver, the preferred one first.
    ///
    /// # Errors
    /// If the package manager cannot be asked, or has no packages of that source.
    fn recipes(&self, node: &Node<'_>, wish: &Wish<'_>) -> Result<Vec<Recipe>, Trouble>;

    /// Returns the first recipe whose packages are all known and of the declared version, as it is to be installed.
    ///
    /// # Errors
    /// If there is none: what each of them lacks.
    fn choose(&self, node: &Node<'_>, task: &GpuDriver, recipes: Vec<Recipe>) -> Result<Recipe, Trouble>;

    /// Simulates an installation.
    ///
    /// # Errors
    /// If it is not possible.
    fn simulated(&self, node: &Node<'_>, task: &GpuDriver, recipe: &Recipe) -> Result<Order, Trouble>;

    /// Updates the package lists.
    ///
    /// # Errors
    /// What the package manager says, as in the functions below.
    fn update(&self, node: &Node<'_>) -> Result<(), Trouble>;

    /// Downloads what an installation needs, before anything is touched.
    ///
    /// # Errors
    /// As above.
    fn download(&self, node: &Node<'_>, task: &GpuDriver, recipe: &Recipe) -> Result<(), Trouble>;

    /// Installs.
    ///
    /// # Errors
    /// As above.
    fn perform(&self, node: &Node<'_>, task: &GpuDriver, recipe: &Recipe) -> Result<(), Trouble>;

    /// Returns why former packages cannot be had, if so. Downloads nothing.
    ///
    /// # Errors
    /// If the package manager cannot be asked.
    fn unobtainable(&self, node: &Node<'_>, former: &[Former]) -> Result<Option<String>, Trouble>;

    /// Puts the former packages' files into a folder; those that cannot be had keep no file.
    ///
    /// # Errors
    /// If the folder cannot be written.
    fn keep(&self, node: &Node<'_>, folder: &Path, former: &mut [Former]) -> Result<(), Trouble>;

    /// Simulates the installation of the kept files, and reads them to their end; returns what is wrong with them.
    ///
    /// # Errors
    /// If the package manager cannot be asked.
    fn rehearse(&self, node: &Node<'_>, files: &[&str]) -> Result<Option<String>, Trouble>;

    /// Installs the former packages from their files, and removes those that were not there.
    ///
    /// # Errors
    /// If the package manager fails.
    fn restore(&self, node: &Node<'_>, files: &[String], gone: &[String]) -> Result<(), Trouble>;

    /// Returns which of these packages nightly updates leave alone; `None` where nothing can make them.
    ///
    /// # Errors
    /// If the package manager cannot be asked.
    fn held(&self, node: &Node<'_>, packages: &[(String, String)]) -> Result<Option<Holds>, Trouble>;

    /// Says what lets nightly updates leave packages alone, where nothing does.
    fn holder(&self) -> &'static str;

    /// Lets nightly updates leave packages as they are, or change them again.
    ///
    /// # Errors
    /// What the package manager says.
    fn hold(&self, node: &Node<'_>, names: &[String], on: bool) -> Result<(), Trouble>;

    /// Holds of the packages of an attempt those that were held before it, as they are now, and no others.
    ///
    /// # Errors
    /// As above.
    fn hold_as_before(&self, node: &Node<'_>, attempt: &Attempt) -> Result<(), Trouble>;

    /// Returns the stream of the driver's module that is enabled.
    ///
    /// # Errors
    /// If it cannot be read.
    fn stream(&self, _: &Node<'_>) -> Result<Option<String>, Trouble> {
        Ok(None)
    }

    /// Enables a stream of the driver's module, or none, if it is not so already.
    ///
    /// # Errors
    /// What the package manager says.
    fn set_stream(&self, _: &Node<'_>, _: Option<&str>) -> Result<(), Trouble> {
        Ok(())
    }

    /// Returns what an interrupted change of packages left half done; the note of an attempt tells what is whose.
    ///
    /// # Errors
    /// If the package database cannot be asked.
    fn interrupted(&self, node: &Node<'_>, attempt: Option<&Attempt>) -> Result<Interrupted, Trouble>;

    /// Whether installed packages of a driver do not fit each other, as between two steps of an interrupted change.
    ///
    /// # Errors
    /// If the package manager cannot be asked.
    fn is_unmatched(&self, _: &Node<'_>) -> Result<bool, Trouble> {
        Ok(false)
    }

    /// Finishes what a killed installation left half done.
    ///
    /// # Errors
    /// What the package manager says.
    fn finish_interrupted(
        &self,
        node: &Node<'_>,
        task: &GpuDriver,
        attempt: Option<&Attempt>,
    ) -> Result<(), Trouble>;
}

/// Returns the node's package manager.
///
/// # Errors
/// If it has none that is known.
pub fn of(node: &Node<'_>) -> Result<&'static dyn Packages, Trouble> {
    if node.roots.tool("apt-get").is_some() {
        return Ok(&apt::Apt);
    }
    let Some(program) = node.roots.tool("dnf") else {
        return Err(Trouble::invalid(
            "gpu_driver installs drivers with apt or dnf, and this node has neither; install the packages another way, and \
             reboot",
        ));
    };
    let target = std::fs::read_link(program).unwrap_or_default();
    if target.file_name().is_some_and(|name| name == "dnf5") {
        return Err(Trouble::invalid(
            "the dnf of this node is dnf5, whose answers gpu_driver does not read; install the packages with `command`, and \
             declare a reboot behind it",
        ));
    }
    Ok(&dnf::Dnf)
}

/// Simulates an installation, and refuses what nobody declared.
///
/// # Errors
/// If it is not possible, or would change what is no part of a driver and held, or remove it.
pub fn simulate(
    packages: &dyn Packages,
    node: &Node<'_>,
    task: &GpuDriver,
    recipe: &Recipe,
) -> Result<Order, Trouble> {
    let order = packages.simulated(node, task, recipe)?;
    let manager = packages.name();
    let others = order.actions.iter().filter(|action| !is_driver(&action.name));
    let changed: Vec<(String, String)> =
        others.clone().filter_map(|action| Some((action.name.clone(), action.from.clone()?))).collect();
    let holds = match changed.is_empty() {
        true => Holds::default(),
        false => packages.held(node, &changed)?.unwrap_or_default(),
    };
    if let Some((held, _)) = changed.iter().find(|(name, _)| holds.has(name)) {
        return Err(Trouble::invalid(format!(
            "{manager} would change {held}, which is held, for {}; release it first if that is meant",
            recipe.packages.join(", ")
        )));
    }
    let gone: Vec<&str> =
        others.filter(|action| action.to.is_none()).map(|action| action.name.as_str()).collect();
    if !gone.is_empty() {
        return Err(Trouble::invalid(format!(
            "{manager} would remove {} for {}; remove it yourself if that is meant, or name other `packages`",
            gone.join(", "),
            recipe.packages.join(", ")
        )));
    }
    Ok(order)
}

/// Installs the former packages from their files, and removes those that were not there.
///
/// # Errors
/// If a file is missing, or the package manager fails.
pub fn restore(
    packages: &dyn Packages,
    node: &Node<'_>,
    former: &[Former],
    added: &[String],
) -> Result<(), Trouble> {
    let mut files = Vec::new();
    for one in former {
        let file = one.file.clone().filter(|file| Path::new(file).is_file());
        files.push(file.ok_or_else(|| {
            Trouble::missing(format!("there is no package file of {} {}", one.name, one.version))
        })?);
    }
    // Only those that a half installation brought; a package manager refuses to remove what it does not know.
    let there: BTreeSet<String> = packages.installed(node)?.into_iter().map(|(name, _)| name).collect();
    let gone: Vec<String> = added.iter().filter(|name| there.contains(*name)).cloned().collect();
    match files.is_empty() && gone.is_empty() {
        true => Ok(()),
        false => packages.restore(node, &files, &gone),
    }
}

/// Says that no recipe fits.
fn none_fits(task: &GpuDriver, mut lacks: Vec<String>, kinds: &str) -> Trouble {
    lacks.dedup();
    Trouble::missing(format!(
        "no repository of this node has the driver {}: {}; declare one with {kinds}, or update the lists with `update_cache: \
         true`",
        task.wanted(),
        lacks.join("; ")
    ))
}

/// Runs a call that changes packages, with the errors that the package manager is known to write.
fn call(node: &Node<'_>, run: &Run, what: String, errors: fn(&str) -> String) -> Result<(), Trouble> {
    (node.progress)(what.clone());
    let done = run.finish(node.deadline)?;
    if done.exit.success() {
        return Ok(());
    }
    let errors = errors(&done.stderr());
    let message =
        if errors.is_empty() { done.complaint(&what) } else { format!("{what}: {}: {errors}", done.exit) };
    Err(Trouble::failed(FailureKind::Exit, message))
}

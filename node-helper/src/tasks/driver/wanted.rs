//! What has to be installed for a declared driver, as the package manager simulates it.

use gpufleet_protocol::tasks::{DriverFlavour, GpuDriver};

use super::{
    Driver,
    attempt::{Former, mended},
    packages::{self, Packages},
    recipe::{self, Recipe, Wish, is_driver, upstream},
    seen::{Module, Seen},
};
use crate::{
    declare::{Node, Trouble},
    tasks::packages::{Action, Order},
};

/// An installation, and what it does.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    pub recipe: Recipe,
    pub order: Order,
    /// The version of the driver afterwards; `None` if only the run can tell.
    pub version: Option<String>,
    /// Whether modules are built on the node.
    pub builds: bool,
    /// Why the node has no such driver, although nothing is left to install.
    pub unbuilt: Option<String>,
    /// What the plan cannot know of the packages.
    pub doubt: Option<String>,
    /// What makes that known of which it is not known which version it brings.
    pub first: Option<&'static str>,
}

impl Wanted {
    /// What is known of it before an interrupted installation is finished.
    pub fn after_finishing() -> Self {
        Self { first: Some(FINISHES), ..Self::default() }
    }

    pub fn former(&self) -> Vec<Former> {
        let replaced =
            self.order.actions.iter().filter_map(|action| Some((&action.name, action.from.as_ref()?)));
        replaced
            .map(|(name, version)| Former { name: name.clone(), version: version.clone(), file: None })
            .collect()
    }

    pub fn added(&self) -> Vec<String> {
        let new = self.order.actions.iter().filter(|action| action.from.is_none() && action.to.is_some());
        new.map(|action| action.name.clone()).collect()
    }
}

/// What a run does before it knows which packages there are.
pub(super) const SOURCES: &str = "an earlier task changes where packages come from";
const LISTS: &str = "the run updates the package lists first (`update_cache`)";
const FINISHES: &str = "the run finishes an interrupted installation first";

impl Driver<'_> {
    /// The flavour that is declared, or that of the driver on disk.
    pub(super) fn flavour(&self, seen: &Seen) -> DriverFlavour {
        let installed = seen.disk.as_ref().or(seen.loaded.as_ref()).and_then(|module| module.open);
        self.task.flavour.unwrap_or(match installed {
            Some(false) => DriverFlavour::Proprietary,
            Some(true) | None => DriverFlavour::Open,
        })
    }

    pub(super) fn is_wanted(&self, module: &Module) -> bool {
        self.task.accepts(&module.version) && module.is(self.task.flavour)
    }

    /// What has to be installed, if the driver on disk is not the declared one.
    pub(super) fn wanted(
        &self,
        node: &Node<'_>,
        manager: &dyn Packages,
        seen: &Seen,
        installed: &[(String, String)],
    ) -> Result<Option<Wanted>, Trouble> {
        if seen.disk.as_ref().is_some_and(|disk| self.is_wanted(disk)) && seen.is_whole() {
            return Ok(None);
        }
        let own = !self.task.packages.is_empty();
        let recipe = match own {
            true => Ok(Recipe { packages: self.task.packages.clone(), ..Recipe::default() }),
            false => {
                let mut names = mended::read(self.record)?;
                names.extend(installed.iter().map(|(name, _)| name.clone()));
                let wish = Wish {
                    source: self.task.source,
                    branch: self.task.wanted_branch().unwrap_or_default(),
                    flavour: self.flavour(seen),
                    kernel: &seen.kernel,
                    installed: &names,
                };
                manager.recipes(node, &wish).and_then(|all| manager.choose(node, self.task, all))
            }
        };
        let recipe = match recipe {
            Ok(recipe) => recipe,
            Err(Trouble::Missing(_)) if sources_change(node, manager) => {
                return Ok(Some(Wanted { first: Some(SOURCES), ..Wanted::default() }));
            }
            Err(Trouble::Missing(_)) if self.may_be_listed() => {
                return Ok(Some(Wanted { first: Some(LISTS), ..Wanted::default() }));
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
        let order = packages::simulate(manager, node, self.task, &recipe)?;
        let comes = |action: &Action| action.to.is_some() && recipe::builds(&action.name);
        let builds = recipe.builds || order.actions.iter().any(comes);
        if let (true, Some(why)) = (builds, &seen.unsigned) {
            return Err(Trouble::invalid(format!(
                "{why}; enrol the key at the console (`mokutil --import`), or install modules that the distribution signed"
            )));
        }
        if recipe.of_kernel && !brings_module(&order, installed, &seen.kernel) {
            return Err(Trouble::invalid(format!(
                "{} bring no module for the running kernel {}; boot the newest kernel first, or name other `packages`",
                recipe.packages.join(", "),
                seen.kernel
            )));
        }
        check(self.task, &recipe, &order)?;
        if order.actions.is_empty() {
            return Ok(Some(Wanted { unbuilt: Some(not_of_packages(&recipe, seen)), ..Wanted::default() }));
        }
        let versions = order.actions.iter().filter(|action| is_driver(&action.name));
        let version = versions
            .filter_map(|action| Some(upstream(action.to.as_ref()?)))
            .find(|version| self.task.accepts(version))
            .map(str::to_owned);
        if version.is_none() {
            return Err(Trouble::invalid(format!(
                "{} would bring no package of the driver {}",
                recipe.packages.join(", "),
                self.task.wanted()
            )));
        }
        let doubt = (own && seen.secure && !brings_signed(&order)).then(|| {
            "this kernel loads only signed modules, and whether it takes the key of those of these `packages` is known only once \
             they are installed: it is looked at before the running driver is unloaded, and the former packages come back if not"
                .to_owned()
        });
        Ok(Some(Wanted { recipe, order, version, builds, doubt, ..Wanted::default() }))
    }

    /// Whether newer lists may have packages that these do not.
    fn may_be_listed(&self) -> bool {
        self.task.update_cache && !self.notes().refreshed
    }
}

/// Refuses an installation that would bring the kernel's part of another version than the declared one.
fn check(task: &GpuDriver, recipe: &Recipe, order: &Order) -> Result<(), Trouble> {
    let parts = ["nvidia-kmod", "kmod-nvidia", "nvidia-kernel", "nvidia-dkms", "nvidia-driver-libs"];
    let wrong = order.actions.iter().find(|action| {
        parts.iter().any(|part| action.name.starts_with(part))
            && action.to.as_deref().map(upstream).is_some_and(|version| {
                version.starts_with(|c: char| c.is_ascii_digit())
                    && version.contains('.')
                    && !task.accepts(version)
            })
    });
    match wrong {
        None => Ok(()),
        Some(action) => Err(Trouble::invalid(format!(
            "{} would bring {} {}, and {} is declared; name other `packages`",
            recipe.packages.join(", "),
            action.name,
            action.to.as_deref().unwrap_or_default(),
            task.wanted()
        ))),
    }
}

/// Says that the packages are there, and the driver is not.
fn not_of_packages(recipe: &Recipe, seen: &Seen) -> String {
    let library = seen.library.as_deref().unwrap_or("none");
    let names = recipe.packages.join(", ");
    match &seen.disk {
        None => format!(
            "the packages {names} are installed, and there is no module nvidia for the kernel {}; `dkms status` tells \
             whether it was built",
            seen.kernel
        ),
        Some(disk) => format!(
            "the packages {names} are installed, and the module on disk is {}, the library {library}; another installation \
             left files there",
            disk.version
        ),
    }
}

/// Whether a package with modules of this kernel is there afterwards.
fn brings_module(order: &Order, installed: &[(String, String)], kernel: &str) -> bool {
    let new = order.actions.iter().filter(|action| action.to.is_some()).map(|action| action.name.as_str());
    let gone = |name: &str| order.actions.iter().any(|action| action.name == name && action.to.is_none());
    let old = installed.iter().map(|(name, _)| name.as_str()).filter(|name| !gone(name));
    new.chain(old).any(|name| name.ends_with(kernel))
}

/// Whether a package brings modules that its distribution signed.
fn brings_signed(order: &Order) -> bool {
    let new = order.actions.iter().filter(|action| action.to.is_some());
    new.map(|action| action.name.as_str()).any(|name| name.starts_with("linux-modules-nvidia-"))
}

/// Whether an earlier task of a prediction changes where packages come from.
fn sources_change(node: &Node<'_>, manager: &dyn Packages) -> bool {
    manager.sources().iter().any(|path| node.world.assumes_below(&node.roots.path(path)))
}

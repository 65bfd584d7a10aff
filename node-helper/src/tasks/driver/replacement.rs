//! Replaces the modules that run, and brings the former driver back where the new one does not come up.

use std::time::Duration;

use gpufleet_protocol::{FailureKind, tasks::DriverGoBack};

use super::{
    Driver, State,
    attempt::Attempt,
    modules,
    packages::{self, Packages},
    seen::{self, Seen},
    with,
};
use crate::{
    deadline::Deadline,
    declare::{Node, Trouble},
    gpu::{Gpus, Held, Left},
};

/// Time to bring the former driver back, whose modules may be built again.
const GOING_BACK: Duration = Duration::from_secs(900);

/// How the former driver is back.
enum Back {
    Runs,
    /// Its packages are there, and the new module cannot be unloaded: why.
    AtNextBoot(String),
}

impl Driver<'_> {
    /// Unloads the former modules, installs, and loads the new ones; the units that hold the driver are stopped.
    pub(super) fn reload(
        &self,
        node: &Node<'_>,
        state: &State,
        attempt: Option<&Attempt>,
        version: &str,
        gpus: &mut Gpus,
        install: &dyn Fn() -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        (self.fence)().map_err(|why| Trouble::failed(FailureKind::Refused, why))?;
        // First, so that a driver that cannot be unloaded is left as it is.
        modules::unload(node, &state.seen.modules).inspect_err(|_| self.replaced_nothing(state))?;
        self.notes().unloaded = true;
        install()
            .and_then(|()| modules::load(node, &state.seen.modules, version))
            .and_then(|()| came_up(node, version, gpus))
            .map_err(|trouble| self.back(node, attempt, trouble, gpus))
    }

    /// Takes the note back of an attempt that ended before its first act; an earlier one may have replaced something.
    pub(super) fn replaced_nothing(&self, state: &State) {
        // A note that stays is harmless: all its packages are there.
        let _ = match &state.attempt {
            Some(earlier) => earlier.write(self.record),
            None => Attempt::forget(self.record),
        };
    }

    pub(super) fn comes_up(&self, node: &Node<'_>, version: &str) -> Result<(), Trouble> {
        came_up(node, version, &mut self.gpus())
    }

    /// Goes back after a failure, if something was replaced; returns what to say.
    pub(super) fn give_up(
        &self,
        node: &Node<'_>,
        state: &State,
        attempt: Option<&Attempt>,
        unloads: bool,
        trouble: Trouble,
    ) -> Trouble {
        if !unloads || state.seen.loaded.is_none() {
            return self.back(node, attempt, trouble, &mut self.gpus());
        }
        let mut gpus = self.gpus();
        let modules = &state.seen.modules;
        let work = |gpus: &mut Gpus| match modules::unload(node, modules) {
            Ok(()) => {
                self.notes().unloaded = true;
                self.back(node, attempt, trouble, gpus)
            }
            // Such as by a console, for which the node had to reboot: another boot starts the former driver.
            Err(_) => self.back(node, attempt, trouble, gpus),
        };
        match gpus.suspended(node.deadline, node.progress, self.fence, work) {
            Ok((trouble, left)) => with(trouble, &self.took(left)),
            Err(held) => self.held(held),
        }
    }

    pub(super) fn held(&self, held: Held) -> Trouble {
        self.notes().idle = held.idle;
        Trouble::failed(held.kind, held.message)
    }

    /// Keeps what is to be warned of; returns which units did not start.
    pub(super) fn took(&self, left: Left) -> Vec<String> {
        self.notes().warnings.extend(left.warnings);
        left.problems
    }

    /// Brings the former packages and modules back.
    fn back(&self, node: &Node<'_>, attempt: Option<&Attempt>, trouble: Trouble, gpus: &mut Gpus) -> Trouble {
        let why = trouble.text();
        let Some(attempt) = attempt else { return trouble };
        let wanted = &attempt.wanted;
        (node.progress)(format!("going back from the driver {wanted}"));
        // With time of its own, because the task's may be over, and a node without a driver is of no use to anybody.
        let grace = Deadline::after(GOING_BACK);
        let node = &node.until(&grace);
        let former = attempt.before.as_deref();
        let packages = "the packages are as they were before";
        let message = match self.bring_back(node, attempt, former, gpus) {
            Ok(Back::Runs) => {
                let left = self.forget().map(|why| format!("; {why}")).unwrap_or_default();
                let runs = former.map_or_else(
                    || packages.to_owned(),
                    |version| format!("the node is back at {version}, which runs"),
                );
                format!("the driver {wanted} does not come up: {why}; {runs}{left}")
            }
            Ok(Back::AtNextBoot(stays)) => format!(
                "the driver {wanted} does not come up: {why}; it cannot be unloaded: {stays}; {packages}, and {} after the \
                 next boot: reboot the node",
                former.map_or_else(|| "no driver runs".to_owned(), |version| format!("{version} runs"))
            ),
            Err(other) => format!(
                "the driver {wanted} does not come up: {why}; going back to {} failed too: {}; the node has no working \
                 driver",
                former.unwrap_or("none"),
                other.text()
            ),
        };
        Trouble::failed(FailureKind::Unconverged, message)
    }

    fn bring_back(
        &self,
        node: &Node<'_>,
        attempt: &Attempt,
        former: Option<&str>,
        gpus: &mut Gpus,
    ) -> Result<Back, Trouble> {
        let now = Seen::read(node)?;
        // The new module may be loaded without working.
        let runs = now.loaded.as_ref().map(|loaded| loaded.version.as_str());
        let stays = match runs == former {
            true => None,
            false => modules::unload(node, &now.modules).err(),
        };
        let manager = packages::of(node)?;
        // Its verdict is that of the installation below.
        let _ = manager.finish_interrupted(node, self.task, Some(attempt));
        let restored = match self.task.go_back {
            DriverGoBack::Never => Err(Trouble::invalid("`go_back: never` is declared")),
            _ => {
                let restored = packages::restore(manager, node, &attempt.former, &attempt.added);
                self.as_before(node, manager, attempt);
                restored
            }
        };
        let there = match former {
            Some(version) => {
                let disk = Seen::read(node)?;
                disk.is_whole() && disk.disk.is_some_and(|disk| disk.version == version)
            }
            None => false,
        };
        // An installation that failed early has replaced nothing.
        if !there {
            restored?;
        }
        if let Some(stays) = stays {
            return Ok(Back::AtNextBoot(stays.text()));
        }
        if let Some(version) = former {
            modules::load(node, &attempt.modules, version)?;
            came_up(node, version, gpus)?;
        }
        Ok(Back::Runs)
    }

    /// Makes what decides on later updates as it was before an attempt. The driver does not depend on it, so that trouble
    /// is a warning.
    fn as_before(&self, node: &Node<'_>, manager: &dyn Packages, attempt: &Attempt) {
        let stream = attempt.stream.as_deref();
        let warn = |what: String, done: Result<(), Trouble>| {
            if let Err(trouble) = done {
                let why = trouble.text();
                self.notes()
                    .warnings
                    .push(format!("{what}, and until then an update may change the driver: {why}"));
            }
        };
        let again = match stream {
            Some(stream) => {
                let enable = format!(
                    "`dnf module reset nvidia-driver` and `dnf module enable nvidia-driver:{stream}`"
                );
                format!(
                    "the former stream {stream} of the driver could not be enabled again; do it with {enable}"
                )
            }
            None => {
                "the stream of the driver could not be reset; do it with `dnf module reset nvidia-driver`"
                    .to_owned()
            }
        };
        warn(again, manager.set_stream(node, stream));
        let held = match attempt.held.is_empty() {
            true => "none of them was held".to_owned(),
            false => format!("held were {}", attempt.held.join(", ")),
        };
        let holds = format!(
            "the packages of the driver could not be held as they were before with {}; {held}; do it yourself",
            manager.holder()
        );
        warn(holds, manager.hold_as_before(node, attempt));
    }

    /// Whether an attempt may be undone, and its former packages are there.
    pub(super) fn may_go_back(&self, attempt: &Attempt) -> bool {
        self.task.go_back != DriverGoBack::Never && attempt.can_go_back()
    }
}

/// Checks that the loaded driver is this one, and that it answers for every GPU of the bus.
fn came_up(node: &Node<'_>, version: &str, gpus: &mut Gpus) -> Result<(), Trouble> {
    let failed = |message: String| Trouble::failed(FailureKind::Unconverged, message);
    match seen::loaded(node)? {
        Some(module) if module.version == version => {}
        Some(module) => return Err(failed(format!("the module that was loaded is {}", module.version))),
        None => return Err(failed("no module is loaded".to_owned())),
    }
    answers(node, seen::gpus(node)?, gpus).map_err(failed)
}

/// Checks that the driver answers for as many GPUs as are on the bus.
fn answers(node: &Node<'_>, there: u32, gpus: &mut Gpus) -> Result<(), String> {
    let found = gpus.comes_up(node.deadline)?.present();
    match found < u64::from(there) {
        true => Err(format!("the driver finds {found} of {there} GPUs")),
        false => Ok(()),
    }
}

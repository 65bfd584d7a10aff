//! Replaces the modules that run, and brings the former driver back where the new one does not come up.

use std::time::Duration;

use gpufleet_protocol::{FailureKind, tasks::DriverGoBack};

use super::{
    Driver, State,
    attempt::Attempt,
    modules, packages, said,
    seen::{self, Seen},
    with,
};
use crate::{
    deadline::Deadline,
    declare::{Node, Trouble},
    gpu::{Gpus, Held, Left},
    tasks::download::Downloads,
};

/// Time to bring the former driver back, whose modules may be built again.
const GOING_BACK: Duration = Duration::from_secs(900);

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
            Err(other) => Trouble::io(format!("{}; {}", said(&trouble), said(&other))),
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
        let why = said(&trouble);
        let Some(attempt) = attempt else { return trouble };
        let wanted = &attempt.wanted;
        (node.progress)(format!("going back from the driver {wanted}"));
        // With time of its own, because the task's may be over, and a node without a driver is of no use to anybody.
        let grace = Deadline::after(GOING_BACK);
        let node = &Node {
            roots: node.roots,
            users: node.users,
            world: node.world.clone(),
            user: node.user.clone(),
            environment: node.environment,
            deadline: &grace,
            fetch: node.fetch,
            progress: node.progress,
            downloads: Downloads::default(),
        };
        let former = attempt.before.as_deref();
        let message = match self.bring_back(node, attempt, former, gpus) {
            Ok(()) => {
                let left = self.forget().map(|why| format!("; {why}")).unwrap_or_default();
                let runs = former.map_or_else(
                    || "the packages are as they were before".to_owned(),
                    |version| format!("the node is back at {version}, which runs"),
                );
                format!("the driver {wanted} does not come up: {why}; {runs}{left}")
            }
            Err(other) => format!(
                "the driver {wanted} does not come up: {why}; going back to {} failed too: {}; the node has no working \
                 driver",
                former.unwrap_or("none"),
                said(&other)
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
    ) -> Result<(), Trouble> {
        let now = Seen::read(node)?;
        // The new module may be loaded without working. Where it cannot be unloaded, the next boot loads the former one.
        if now.loaded.as_ref().map(|loaded| loaded.version.as_str()) != former {
            let _ = modules::unload(node, &now.modules);
        }
        // Its verdict is that of the installation below.
        let _ = packages::finish_interrupted(node);
        let restored = match self.task.go_back {
            DriverGoBack::Never => Err(Trouble::invalid("`go_back: never` is declared")),
            _ => packages::restore(node, &attempt.former, &attempt.added)
                .and_then(|()| packages::hold(node, &attempt.held, true)),
        };
        let Some(version) = former else { return restored };
        let disk = Seen::read(node)?;
        let there = disk.is_whole() && disk.disk.is_some_and(|disk| disk.version == version);
        // An installation that failed early has replaced nothing.
        if restored.is_err() && !there {
            return restored;
        }
        modules::load(node, &attempt.modules, version)?;
        came_up(node, version, gpus)
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
pub(super) fn answers(node: &Node<'_>, there: u32, gpus: &mut Gpus) -> Result<(), String> {
    let found = gpus.comes_up(node.deadline)?.gpus.len();
    match (found as u64) < u64::from(there) {
        true => Err(format!("the driver finds {found} of {there} GPUs")),
        false => Ok(()),
    }
}

//! Parts of a change of the driver: how it is told, what it needs before its first act, and what it looks at.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject, change::Value as Typed, tasks::DriverGoBack,
};
use serde_json::{Map, Value};

use super::{
    Driver, MODULE, State, Step,
    attempt::Attempt,
    packages::{self, Holds, Packages},
    wanted::{SOURCES, Wanted},
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::tree,
};

impl Driver<'_> {
    pub(super) fn plan_packages(
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
            let (first, wanted) = (wanted.first.unwrap_or_default(), self.task.wanted());
            let what = if self.task.version.is_some() { "whether" } else { "which driver" };
            let note = format!(
                "{first}, so that {what} {wanted} is offered is known only then; the run plans again with it, asks for a permit \
                 where it needs a reset or a reboot, and replaces nothing where none is offered"
            );
            plan.changes.push(change.with_note(note).possible());
            return Ok(());
        }
        for stream in &wanted.order.modules {
            let subject = Subject::PackageModule { name: stream.name.clone() };
            let (from, to) = (stream.from.clone(), stream.to.clone());
            plan.changes.push(Change::new(subject, Property::VERSION, from, to, class));
        }
        for action in &wanted.order.actions {
            let (from, to) = (action.from.clone(), action.to.clone());
            let change = Change::new(Subject::package(&action.name), Property::VERSION, from, to, class);
            // Others may be offered then, which the run takes.
            plan.changes.push(match wanted.order.open {
                true => change
                    .with_note(format!("{SOURCES}: the run takes the version that they offer then"))
                    .possible(),
                false => change,
            });
        }
        plan.warnings.extend(wanted.doubt.clone());
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

    pub(super) fn plan_hold(&self, state: &State, plan: &mut Plan<Step>) {
        let (names, from, to) = match self.task.hold {
            true => (&state.unheld, "open to updates", "held"),
            false => (&state.held, "held", "open to updates"),
        };
        if !self.task.hold && !state.by_pattern.is_empty() {
            plan.warnings.push(by_pattern(&state.by_pattern));
        }
        if names.is_empty() {
            return;
        }
        let what = Property::new("driver packages");
        let change = Change::new(Subject::PackageManager, what, from, to, Disruption::Live);
        let step = if self.task.hold { Step::Hold(names.clone()) } else { Step::Release(names.clone()) };
        plan.push(step, change.with_note(names.join(", ")));
    }

    /// Fetches what going back needs, and notes it.
    pub(super) fn prepare(
        &self,
        node: &Node<'_>,
        state: &State,
        wanted: &Wanted,
        version: &str,
    ) -> Result<Attempt, Trouble> {
        let manager = packages::of(node)?;
        let mut former = wanted.former();
        if state.attempt.is_none() {
            // What a killed helper left there may be half a file.
            let _ = tree::remove_all(&self.folder, &|| true);
        }
        if self.task.go_back != DriverGoBack::Never {
            manager.keep(node, &self.folder, &mut former)?;
        }
        let mut attempt = Attempt {
            wanted: version.to_owned(),
            before: state.seen.loaded.as_ref().map(|loaded| loaded.version.clone()),
            boot_id: state.seen.boot_id.clone(),
            former,
            added: wanted.added(),
            held: state.held_before.clone(),
            modules: state.seen.modules.clone(),
            stream: state.stream.clone(),
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
        self.rehearse(node, manager, state, &attempt)?;
        attempt.write(self.record)?;
        Ok(attempt)
    }

    /// Tries the way back before anything is touched, as far as that is possible without going it.
    fn rehearse(
        &self,
        node: &Node<'_>,
        manager: &dyn Packages,
        state: &State,
        attempt: &Attempt,
    ) -> Result<(), Trouble> {
        // A driver that is half replaced already is no state to try it in.
        let whole = state.attempt.is_none() && !state.interrupted && attempt.can_go_back();
        if !whole || self.task.go_back == DriverGoBack::Never {
            return Ok(());
        }
        let files: Vec<&str> = attempt.former.iter().filter_map(|one| one.file.as_deref()).collect();
        let wrong = match files.is_empty() {
            true => None,
            false => manager.rehearse(node, &files)?,
        };
        match (wrong, self.task.go_back) {
            (None, _) => Ok(()),
            (Some(why), DriverGoBack::Required) => Err(Trouble::failed(
                FailureKind::Refused,
                format!(
                    "nothing was changed: the packages of the present driver could not be installed again: {why}"
                ),
            )),
            (Some(why), _) => {
                self.notes().warnings.push(format!(
                    "the packages of the former driver could not have been installed again: {why}"
                ));
                Ok(())
            }
        }
    }

    /// Does what is declared after an interrupted change of packages was finished, or could not be.
    pub(super) fn go_on(
        &self,
        node: &Node<'_>,
        finished: Result<(), Trouble>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut now = self.observe(node)?;
        if self.is_stale(&now) {
            self.refresh(node, &now)?;
            now = self.observe(node)?;
        }
        let unknown = now.order.as_ref().is_some_and(|wanted| wanted.version.is_none());
        if now.interrupted && unknown {
            finished?;
            return Err(Trouble::io("the interrupted change of packages could not be finished"));
        }
        let plan = self.plan(&now)?;
        match plan.steps.is_empty() {
            true => Ok(Map::new()),
            false => self.apply(node, &now, &plan),
        }
    }

    /// Returns the packages of a driver that nightly updates leave alone.
    pub(super) fn locked(
        &self,
        node: &Node<'_>,
        manager: &dyn Packages,
        installed: &[(String, String)],
    ) -> Result<Holds, Trouble> {
        // An earlier task of a prediction may bring what holds them.
        let comes = node.world.packages().keys().any(|name| name.contains("versionlock"));
        match manager.held(node, installed)? {
            Some(held) => Ok(held),
            None if !self.task.hold || comes => Ok(Holds::default()),
            None => Err(Trouble::missing(format!(
                "nothing on this node can keep updates from the driver: it lacks {}; install it before, or declare `hold: \
                 false`",
                manager.holder()
            ))),
        }
    }

    /// Asks the driver that is loaded; returns why it does not work, and otherwise which GPUs it does not find.
    pub(super) fn silence(
        &self,
        node: &Node<'_>,
        there: u32,
        changing: bool,
    ) -> (Option<String>, Option<String>) {
        match self.gpus().comes_up(node.deadline) {
            Err(why) => (Some(why), None),
            Ok(found) if found.present() < u64::from(there) => {
                let why = format!("the driver finds {} of {there} GPUs", found.present());
                if changing { (Some(why), None) } else { (None, Some(why)) }
            }
            Ok(_) => (None, None),
        }
    }
}

/// Says that packages stay held whose lock is a person's.
fn by_pattern(held: &BTreeMap<String, String>) -> String {
    let names: Vec<&str> = held.keys().map(String::as_str).collect();
    let mut patterns: Vec<String> = held.values().map(|line| format!("`{line}`")).collect();
    patterns.sort();
    patterns.dedup();
    format!(
        "`hold: false` is declared, and {} stay held by a lock that somebody wrote as a pattern: {}; remove it with `dnf \
         versionlock delete PATTERN` if that is meant",
        names.join(", "),
        patterns.join(", ")
    )
}

//! A unit that a package brings: the package first, then the unit.
//!
//! Before the package is there, systemd knows nothing of the unit. It is then planned as one that is neither enabled
//! nor running, and read again once the package is installed.

use gpufleet_protocol::{
    Change, Disruption, Layer, Property, Subject,
    change::Value as Typed,
    tasks::{Package, Service, ServiceState},
};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    tasks::{packages, service},
    world::{BootView, Effect, UnitView},
};

/// A unit, and the package that has to be installed for it, if any.
#[derive(Debug)]
pub struct Provided {
    service: Service,
    unit: Option<service::State>,
    package: Option<(Package, packages::State)>,
}

#[derive(Debug)]
pub enum Step {
    Package(Vec<String>),
    Unit(service::Step),
    /// Whatever the unit needs once the package has brought it.
    NewUnit,
}

impl Provided {
    /// Reads the unit, and what the package manager would do for the package.
    ///
    /// # Errors
    /// If one of them cannot be read, or the node has no such unit and no package is declared.
    pub fn observe(node: &Node<'_>, service: Service, package: Option<Package>) -> Result<Self, Trouble> {
        let package = match package {
            Some(package) => {
                let state = package.observe(node)?;
                Some((package, state))
            }
            None => None,
        };
        let unit = match service.observe(node) {
            Ok(state) => Some(state),
            Err(Trouble::Missing(_)) if package.is_some() => None,
            Err(trouble) => return Err(trouble),
        };
        Ok(Self { service, unit, package })
    }

    /// Whether data of the package manager must be refreshed first.
    pub fn is_stale(&self) -> bool {
        self.package.as_ref().is_some_and(|(package, state)| package.is_stale(state))
    }

    /// Whether the package manager does something.
    pub fn installs(&self) -> Result<bool, Trouble> {
        match &self.package {
            Some((package, state)) => Ok(!package.plan(state)?.changes.is_empty()),
            None => Ok(false),
        }
    }

    /// Returns what differs.
    ///
    /// # Errors
    /// As [`NodeKind::plan`].
    pub fn plan(&self) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        if let Some((package, state)) = &self.package {
            let of_package = package.plan(state)?;
            plan.steps.extend(of_package.steps.into_iter().map(Step::Package));
            plan.changes.extend(of_package.changes);
            plan.warnings.extend(of_package.warnings);
        }
        match &self.unit {
            Some(state) => {
                let of_unit = self.service.plan(state)?;
                plan.steps.extend(of_unit.steps.into_iter().map(Step::Unit));
                plan.changes.extend(of_unit.changes);
                plan.warnings.extend(of_unit.warnings);
            }
            None => {
                let change = |to: &str| {
                    Change::new(
                        Subject::unit(&self.service.name),
                        Property::STATE,
                        Typed::Absent,
                        to,
                        Disruption::Live,
                    )
                };
                let known = plan.changes.len();
                if self.service.enabled == Some(true) {
                    plan.changes.push(change("enabled").at(Layer::Boot));
                }
                if self.service.state == Some(ServiceState::Started) {
                    plan.changes.push(change("started"));
                }
                if plan.changes.len() > known {
                    plan.steps.push(Step::NewUnit);
                }
            }
        }
        Ok(plan)
    }

    /// Returns the effects of the plan.
    pub fn after(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some((package, state)) = &self.package {
            effects.extend(package.plan(state).map(|plan| package.after(state, &plan)).unwrap_or_default());
        }
        match &self.unit {
            Some(state) => {
                effects.extend(
                    self.service.plan(state).map(|plan| self.service.after(state, &plan)).unwrap_or_default(),
                );
            }
            None => effects.push(Effect::Unit {
                name: self.service.name.clone(),
                view: UnitView {
                    active: Some(self.service.state == Some(ServiceState::Started)),
                    file_state: if self.service.enabled == Some(true) { "enabled" } else { "disabled" }
                        .to_owned(),
                    boot: BootView::default(),
                },
            }),
        }
        effects
    }

    /// Does one step.
    ///
    /// # Errors
    /// If it fails.
    pub fn act(&self, node: &Node<'_>, step: &Step) -> Result<(), Trouble> {
        match (step, &self.package, &self.unit) {
            (Step::Package(words), Some((package, state)), _) => {
                package.apply(node, state, &Plan { steps: vec![words.clone()], ..Plan::default() })?;
            }
            (Step::Unit(step), _, Some(state)) => {
                self.service.apply(node, state, &Plan { steps: vec![*step], ..Plan::default() })?;
            }
            (Step::NewUnit, ..) => {
                let state = self.service.observe(node)?;
                let plan = self.service.plan(&state)?;
                self.service.apply(node, &state, &plan)?;
            }
            (Step::Package(_), None, _) | (Step::Unit(_), _, None) => {}
        }
        Ok(())
    }
}

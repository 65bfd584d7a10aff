//! `nvidia_imex`: the members of an NVLink domain, and the daemon that reads them when it starts.

use std::path::PathBuf;

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    tasks::{NvidiaImex, RunState},
};
use serde_json::{Map, Value};

use super::{
    provided::{Provided, Step as Unit},
    versions,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, Ownership},
        tree, units,
    },
    tasks::{started, tool},
    world::{Content, Effect, Entry, Owned},
};

/// Name under which a prediction notes that the daemon was restarted.
const NOTE: &str = "imex restarted";

#[derive(Debug)]
pub struct State {
    path: PathBuf,
    /// The addresses of the file; `None` if there is no file.
    nodes: Option<Vec<String>>,
    owned: Option<Owned>,
    active: bool,
    /// Whether the file is newer than the daemon that runs.
    unread: bool,
    /// What is wrong with the version of the daemon, or why it is not known.
    version: Option<String>,
    provided: Provided,
}

#[derive(Debug)]
pub enum Step {
    File(String),
    Unit(Unit),
    Restart,
}

/// Returns the addresses of a file, one a line; `#` begins a comment. Source: NVIDIA IMEX service guide.
fn addresses(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Says that the daemon is of another version than the driver, or that nobody knows.
fn judged(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    let Some(driver) = versions::of_driver(node)? else { return Ok(None) };
    Ok(match versions::of_program(node, "nvidia-imex") {
        Ok(Some(own)) if own != driver => Some(format!(
            "nvidia-imex is {own} and the driver that runs is {driver}: the daemon does not work with another version of the driver; \
             install the package nvidia-imex of {driver}"
        )),
        Ok(_) => None,
        // Only this is made of it, and whatever stops the task stops it elsewhere too.
        Err(trouble) => Some(format!(
            "the version of nvidia-imex is not known ({}), and the daemon works only with a driver of the same one, {driver}",
            trouble.text()
        )),
    })
}

impl NodeKind for NvidiaImex {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let (path, entry) = node.world.follow(&node.roots.path(Self::FILE))?;
        let text = node.world.read(&path)?;
        let nodes = text.map(|text| addresses(&String::from_utf8_lossy(&text)));
        let (mut active, mut unread) = (false, false);
        if let Some(systemctl) = node.roots.tool("systemctl") {
            let shown = units::show(systemctl, &[Self::UNIT], node.deadline)?;
            if let Some(unit) = shown.get(Self::UNIT).filter(|unit| unit.runs()) {
                active = true;
                // A run may have ended between the file and the restart.
                let restarted = !node.world.noted(NOTE).is_empty() || node.world.rebooted();
                unread = !restarted && started::before(node, unit.main_pid, std::slice::from_ref(&path))?;
            }
        }
        if let Some(view) = node.world.unit(Self::UNIT) {
            active = view.active.ok_or(Trouble::Possible)?;
        }
        let service = self.state.of_unit(Self::UNIT, self.enabled);
        let provided = Provided::observe(node, service, None)?;
        // What an earlier task installs is read in the run.
        let comes = node.world.packages().keys().any(|name| name.starts_with("nvidia-imex"));
        let version = if comes || self.state != RunState::Started { None } else { judged(node)? };
        Ok(State { path, nodes, owned: entry.owned(), active, unread, version, provided })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        plan.warnings.extend(state.version.clone());
        let differs = !self.nodes.is_empty() && state.nodes.as_ref() != Some(&self.nodes);
        let restarts = differs && state.active && self.state == RunState::Started;
        if differs {
            let class = if restarts { Disruption::Clients } else { Disruption::Live };
            let from = state.nodes.as_ref().map_or(Typed::Absent, |nodes| Typed::list(nodes.iter().cloned()));
            let to = Typed::list(self.nodes.iter().cloned());
            let change = Change::new(Subject::file(Self::FILE), Property::new("members"), from, to, class);
            let change = if restarts {
                change.with_note("the daemon restarts, which ends jobs over NVLink")
            } else {
                change
            };
            plan.push(Step::File(self.nodes.iter().map(|node| format!("{node}\n")).collect()), change);
        }
        let stale = state.active && state.unread && !differs && self.state == RunState::Started;
        if stale {
            let (unit, from) = (Subject::unit(Self::UNIT), "with older members");
            let change = Change::new(unit, Property::STATE, from, "restarted", Disruption::Clients);
            plan.changes
                .push(change.with_note("its file is newer than its start; a restart ends jobs over NVLink"));
        }
        let of_unit = state.provided.plan()?;
        plan.steps.extend(of_unit.steps.into_iter().map(Step::Unit));
        plan.warnings.extend(of_unit.warnings);
        for mut change in of_unit.changes {
            if state.active && change.layer.is_live() && self.state == RunState::Stopped {
                change.disruption = Disruption::Clients;
            }
            plan.changes.push(change);
        }
        plan.steps.extend((restarts || stale).then_some(Step::Restart));
        plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let file = plan.steps.iter().find_map(|step| match step {
            Step::File(text) => Some(Effect::Path {
                path: state.path.clone(),
                entry: Entry::File {
                    owned: state.owned.unwrap_or(Owned { uid: 0, gid: 0, mode: 0o644 }),
                    content: Content::Known(text.as_bytes().into()),
                },
            }),
            Step::Unit(_) | Step::Restart => None,
        });
        let restarts = plan.steps.iter().any(|step| matches!(step, Step::Restart));
        let noted = restarts.then(|| Effect::Noted { name: NOTE.to_owned(), value: String::new() });
        file.into_iter().chain(state.provided.after()).chain(noted).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::File(text) => {
                    if let Some(folder) = state.path.parent().filter(|folder| !folder.exists()) {
                        tree::make_dirs(folder)?;
                    }
                    files::replace(&state.path, text.as_bytes(), Ownership::default())?;
                }
                Step::Unit(step) => state.provided.act(node, step)?,
                Step::Restart => tool::restart(node, Self::UNIT)?,
            }
        }
        Ok(Map::new())
    }
}

//! `group`: a group of users.

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    tasks::{AccountState, Group},
};
use serde_json::{Map, Value, json};

use super::database::{Database, Team};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    tasks::tool,
    world::Effect,
};

#[derive(Debug)]
pub struct State {
    found: Option<Team>,
    /// Another group with the declared number.
    taken: Option<String>,
    database: Database,
    etc: std::path::PathBuf,
}

#[derive(Debug)]
pub enum Step {
    Add,
    Number(u32),
    Delete,
}

impl NodeKind for Group {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let database = Database::read(node, false)?;
        let found = database.team(node, &self.name);
        let other = |team: &Team| Some(team.gid) == self.gid && team.name != self.name;
        let taken = database.teams().find(other).map(|team| team.name);
        Ok(State { found, taken, database, etc: node.roots.etc("") })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let change = |property, from: Typed, to: Typed| {
            Change::new(Subject::group(&self.name), property, from, to, Disruption::Live)
        };
        let taken = match (&state.taken, self.non_unique, self.state) {
            (Some(other), false, AccountState::Present) => Some(other),
            _ => None,
        };
        match (&state.found, self.state) {
            (None, AccountState::Absent) => {}
            (Some(team), AccountState::Absent) => {
                let from = format!("gid {}", team.gid);
                plan.push(Step::Delete, change(Property::STATE, from.into(), Typed::Absent));
            }
            (found, AccountState::Present) => {
                if let (Some(other), Some(gid)) = (taken, self.gid)
                    && found.as_ref().is_none_or(|team| team.gid != gid)
                {
                    return Err(Trouble::invalid(format!("the group number {gid} belongs to `{other}`")));
                }
                match (found, self.gid) {
                    (None, gid) => {
                        let to = gid.map_or_else(|| "present".to_owned(), |gid| format!("gid {gid}"));
                        plan.push(Step::Add, change(Property::STATE, Typed::Absent, to.into()));
                    }
                    (Some(team), Some(gid)) if team.gid != gid => {
                        let (from, to) = (Typed::number(team.gid), Typed::number(gid));
                        let change = change(Property::new("gid"), from, to);
                        plan.push(
                            Step::Number(gid),
                            change.with_note("files keep the old number as their group"),
                        );
                    }
                    _ => {}
                }
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        if plan.steps.is_empty() {
            return Vec::new();
        }
        let mut database = state.database.clone();
        for step in &plan.steps {
            match step {
                Step::Delete => database.set_team(&self.name, None),
                Step::Add => {
                    let gid = self.gid.unwrap_or_else(|| database.free_number(self.system));
                    let team = Team { name: self.name.clone(), gid, ..Team::default() };
                    database.set_team(&self.name, Some(&team));
                }
                Step::Number(gid) => {
                    let team = Team { gid: *gid, ..state.found.clone().unwrap_or_default() };
                    database.set_team(&self.name, Some(&team));
                }
            }
        }
        database.effects(|name| state.etc.join(name))
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            let (program, mut words) = match step {
                Step::Add => ("groupadd", Vec::new()),
                Step::Number(_) => ("groupmod", Vec::new()),
                Step::Delete if self.force => ("groupdel", vec!["-f".to_owned()]),
                Step::Delete => ("groupdel", Vec::new()),
            };
            let gid = match step {
                Step::Add => self.gid,
                Step::Number(gid) => Some(*gid),
                Step::Delete => None,
            };
            if let Some(gid) = gid {
                words.extend(["-g".to_owned(), gid.to_string()]);
                words.extend(self.non_unique.then(|| "-o".to_owned()));
            }
            if matches!(step, Step::Add) && self.system {
                words.push("-r".to_owned());
            }
            words.push(self.name.clone());
            let path = tool::find(node, program, "the package `passwd` or `shadow-utils` brings it")?;
            tool::act(node, &tool::run(node, path).args(words), &format!("{program} {}", self.name))?;
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("name".to_owned(), json!(self.name));
        data.insert("state".to_owned(), json!(self.state));
        if let Some(team) = &state.found {
            data.insert("gid".to_owned(), json!(team.gid));
            data.insert("system".to_owned(), json!(self.system));
        }
        data
    }
}

//! `dpkg_selections`: what dpkg has noted to do with a package, through `dpkg`.

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    tasks::{DpkgSelections, Selection},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    tasks::tool,
    world::Effect,
};

const BRINGS: &str = "is it a node of Debian or Ubuntu?";
/// Ansible's word for a package that dpkg has noted nothing about.
const NOTHING: &str = "not present";
/// Where a prediction keeps its assumptions.
pub const NOTED: &str = "selection of ";

#[derive(Debug)]
pub struct State {
    current: String,
}

impl NodeKind for DpkgSelections {
    type State = State;
    type Step = Selection;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let noted = node.world.noted(NOTED);
        if let Some((_, current)) = noted.into_iter().find(|(name, _)| *name == self.name) {
            return Ok(State { current });
        }
        let program = tool::find(node, "dpkg", BRINGS)?;
        let done = tool::ask(node, &tool::run(node, program).args(["--get-selections", &self.name]))?;
        let (text, said) = (done.stdout(), done.stderr());
        if said.contains("no packages found matching") {
            let Self { name, selection } = self;
            return Err(Trouble::missing(format!(
                "Failed to find package '{name}' to perform selection '{selection}'."
            )));
        }
        if !done.exit.success() {
            return Err(Trouble::io(done.complaint("dpkg --get-selections")));
        }
        let word = text.lines().next().and_then(|line| line.split_whitespace().nth(1));
        Ok(State { current: word.unwrap_or(NOTHING).to_owned() })
    }

    fn plan(&self, state: &State) -> Result<Plan<Selection>, Trouble> {
        let mut plan = Plan::default();
        let wanted = self.selection.as_str();
        if state.current != wanted {
            let (package, selection) = (Subject::package(&self.name), Property::new("selection"));
            let change = Change::new(package, selection, state.current.as_str(), wanted, Disruption::Live);
            plan.push(self.selection, change);
        }
        plan.data.insert("before".to_owned(), json!(state.current));
        plan.data.insert("after".to_owned(), json!(wanted));
        Ok(plan)
    }

    fn after(&self, _: &State, plan: &Plan<Selection>) -> Vec<Effect> {
        let assume = |selection: &Selection| Effect::Noted {
            name: format!("{NOTED}{}", self.name),
            value: selection.as_str().to_owned(),
        };
        plan.steps.iter().map(assume).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        _: &State,
        plan: &Plan<Selection>,
    ) -> Result<Map<String, Value>, Trouble> {
        let program = tool::find(node, "dpkg", BRINGS)?;
        for selection in &plan.steps {
            let line = format!("{} {selection}\n", self.name);
            let run = tool::run(node, &program).arg("--set-selections").stdin(line);
            tool::act(node, &run, "dpkg --set-selections")?;
        }
        Ok(Map::new())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::Bench;

    const DPKG: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
if [ "$1" = --get-selections ]; then
  grep "^$2 " $d/selections || echo "dpkg: no packages found matching $2" >&2
  exit 0
fi
read name word
echo "$name $word" >> $d/log
sed -i "s/^$name .*/$name $word/" $d/selections
"#;

    fn task(name: &str, selection: &str) -> DpkgSelections {
        serde_json::from_value(json!({"name": name, "selection": selection})).unwrap()
    }

    #[test]
    fn a_selection_is_set_once() {
        let bench = Bench::new();
        bench.script("usr/bin/dpkg", DPKG);
        bench.write("selections", "cuda install\n");
        let hold = task("cuda", "hold");
        assert_eq!(bench.run(&hold, Mode::Predict).status, OpStatus::Changed);
        assert_eq!(bench.run(&hold, Mode::Predict).status, OpStatus::Ok);
        assert!(!bench.path("log").exists());
        let done = bench.run(&hold, Mode::Apply);
        assert_eq!((&done.data["before"], &done.data["after"]), (&json!("install"), &json!("hold")));
        assert_eq!(bench.run(&hold, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.read("log"), "cuda hold\n");
        let failed = bench.run(&task("other", "hold"), Mode::Apply);
        let OpStatus::Failed { message, .. } = failed.status else { panic!("{failed:?}") };
        assert_eq!(message, "Failed to find package 'other' to perform selection 'hold'.");
    }
}

//! `dcgm`: the host engine of NVIDIA's DCGM, and its diagnostic as an act that is done every time.

use std::path::PathBuf;

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    change::Value as Typed,
    tasks::{Dcgm, Package, RunState},
};
use serde_json::{Map, Value, json};

use super::provided::{Provided, Step as Unit};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::units,
    signals::DCGM_UNITS,
    tasks::tool,
    world::Effect,
};

const BRINGS: &str = "the package datacenter-gpu-manager-4-cuda13 (or -cuda12) brings it";
/// Largest answer of the diagnostic, in bytes.
const LARGEST: usize = 8 * 1024 * 1024;
/// Largest number of failed tests that are named.
const MOST_NAMED: usize = 8;
/// Deepest nesting of the answer.
const DEEPEST: usize = 16;

#[derive(Debug)]
pub struct State {
    provided: Provided,
}

#[derive(Debug)]
pub enum Step {
    Unit(Unit),
    Diagnose(u32),
}

impl NodeKind for Dcgm {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let mut name = DCGM_UNITS[0];
        let mut is_there = false;
        if let Some(systemctl) = node.roots.tool("systemctl") {
            let shown = units::show(systemctl, &DCGM_UNITS, node.deadline)?;
            if let Some(found) =
                DCGM_UNITS.iter().find(|name| shown.get(**name).is_some_and(|unit| unit.exists))
            {
                (name, is_there) = (found, true);
            }
        }
        let package =
            self.package.as_ref().filter(|_| self.install).map(|name| Package::of(vec![name.clone()]));
        if package.is_none() && !is_there && !node.world.brings_packages() {
            return Err(Trouble::missing(format!(
                "there is no DCGM on this node: systemd knows no {name}; {BRINGS}, and `install: true` with `package` installs it"
            )));
        }
        let service = self.state.of_unit(name, self.enabled);
        Ok(State { provided: Provided::observe(node, service, package)? })
    }

    fn is_stale(&self, state: &State) -> bool {
        state.provided.is_stale()
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = self.left(state, &Plan::default())?;
        if let Some(level) = self.diag {
            let class = if level == 1 { Disruption::Live } else { Disruption::Clients };
            let change = Change::new(
                Subject::Node,
                Property::new("DCGM diagnostic"),
                Typed::Absent,
                format!("run at level {level}"),
                class,
            );
            plan.push(Step::Diagnose(level), change.with_note("it is run every time"));
            plan.needs = plan.needs.max(class);
        }
        Ok(plan)
    }

    fn left(&self, state: &State, _: &Plan<Step>) -> Result<Plan<Step>, Trouble> {
        let of_unit = state.provided.plan()?;
        Ok(Plan {
            steps: of_unit.steps.into_iter().map(Step::Unit).collect(),
            changes: of_unit.changes,
            warnings: of_unit.warnings,
            ..Plan::default()
        })
    }

    fn after(&self, state: &State, _: &Plan<Step>) -> Vec<Effect> {
        state.provided.after()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::Unit(step) => state.provided.act(node, step)?,
                Step::Diagnose(level) => {
                    data.insert("diag".to_owned(), diagnose(node, *level)?);
                }
            }
        }
        Ok(data)
    }

    fn data(&self, _: &State) -> Map<String, Value> {
        let state = if self.state == RunState::Started { "started" } else { "stopped" };
        [("state".to_owned(), json!(state))].into_iter().collect()
    }
}

/// Runs the diagnostic; returns its tests with their results.
fn diagnose(node: &Node<'_>, level: u32) -> Result<Value, Trouble> {
    let program: PathBuf = tool::find(node, "dcgmi", BRINGS)?;
    let what = format!("dcgmi diag -r {level}");
    (node.progress)(what.clone());
    let run = tool::run(node, program).args(["diag", "-r", &level.to_string(), "-j"]).limit(LARGEST);
    let done = run.finish(node.deadline)?;
    let read = || -> Option<Value> {
        // Some versions write a line before it.
        let text = done.stdout();
        serde_json::from_str(text.get(text.find('{')?..)?).ok()
    };
    let mut tests = Vec::new();
    collect(&read().unwrap_or_default(), DEEPEST, &mut tests);
    let failed: Vec<String> = tests.iter().filter(|test| test.is("fail")).map(Test::sentence).collect();
    if !failed.is_empty() {
        let more = failed.len().saturating_sub(MOST_NAMED);
        let mut named = failed.into_iter().take(MOST_NAMED).collect::<Vec<_>>().join("; ");
        if more > 0 {
            named.push_str(&format!("; and {more} more"));
        }
        return Err(Trouble::failed(FailureKind::Exit, format!("{what}: failed: {named}")));
    }
    if !done.exit.success() {
        return Err(Trouble::failed(FailureKind::Exit, done.complaint(&what)));
    }
    if !tests.iter().any(|test| test.is("pass")) {
        let message = format!("{what}: it names no test that passed, so that nothing is known of the GPUs");
        return Err(Trouble::failed(FailureKind::Exit, message));
    }
    let told = tests.iter().map(|test| json!({"name": test.name, "gpu": test.gpu, "status": test.status}));
    Ok(json!({"level": level, "tests": told.collect::<Vec<_>>()}))
}

/// The result of one test on one GPU.
#[derive(Debug, PartialEq)]
struct Test {
    name: String,
    gpu: Option<String>,
    status: String,
    warning: Option<String>,
}

impl Test {
    fn is(&self, status: &str) -> bool {
        self.status.eq_ignore_ascii_case(status)
    }

    fn sentence(&self) -> String {
        let gpu = self.gpu.as_ref().map(|gpu| format!(" on GPU {gpu}")).unwrap_or_default();
        let why = self.warning.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{}{gpu}{why}", self.name)
    }
}

/// Collects the results of all `tests`, as DCGM 3 and 4 write them: by `gpu_id` or `gpu_ids`, or by `entity_id`.
fn collect(value: &Value, depth: usize, tests: &mut Vec<Test>) {
    if depth == 0 {
        return;
    }
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.chars().take(200).collect::<String>()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let all = match value {
        Value::Array(all) => all.iter().collect::<Vec<_>>(),
        Value::Object(map) => map.values().collect(),
        _ => return,
    };
    if let (Some(name), Some(results)) =
        (value.get("name").and_then(text), value.get("results").and_then(Value::as_array))
    {
        for result in results {
            let gpu = ["gpu_id", "gpu_ids", "entity_id"].iter().find_map(|key| text(result.get(key)?));
            let status = result.get("status").and_then(text).unwrap_or_else(|| "unknown".to_owned());
            let warning = result.get("warnings").and_then(|warnings| match warnings {
                Value::Array(all) => text(all.first()?.get("warning")?),
                other => text(other),
            });
            tests.push(Test { name: name.clone(), gpu, status, warning });
        }
        return;
    }
    for inner in all {
        collect(inner, depth - 1, tests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_both_generations_are_read() {
        let three = json!({"DCGM GPU Diagnostic": {"test_categories": [
            {"category": "Deployment", "tests": [{"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "Pass"}]}]},
            {"category": "Hardware", "tests": [{"name": "GPU Memory", "results": [
                {"gpu_id": "0", "status": "Pass"},
                {"gpu_id": "1", "status": "Fail", "warnings": "row remap failed"}]}]}]}});
        let four = json!({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [
            {"name": "memory", "results": [{"entity_group": "GPU", "entity_id": 1, "status": "Fail",
                "warnings": [{"error_id": 5, "warning": "row remap failed"}]}], "test_summary": {"status": "Fail"}}]}]}});
        for (answer, count, sentence) in [
            (three, 3, "GPU Memory on GPU 1 (row remap failed)"),
            (four, 1, "memory on GPU 1 (row remap failed)"),
        ] {
            let mut tests = Vec::new();
            collect(&answer, DEEPEST, &mut tests);
            assert_eq!(tests.len(), count);
            let failed: Vec<_> = tests.iter().filter(|test| test.is("fail")).map(Test::sentence).collect();
            assert_eq!(failed, [sentence]);
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = (0..10_000).fold(json!(1), |inner, _| Value::Array(vec![inner]));
        collect(&deep, DEEPEST, &mut Vec::new());
        std::mem::forget(deep);
    }
}

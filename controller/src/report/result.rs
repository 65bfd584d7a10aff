//! What a node came to, in one word for programs: whether it is as declared, and if not, why nobody may say so.

use gpufleet_protocol::tasks::{self, Class};
use schemars::JsonSchema;
use serde::Serialize;

use super::{NodeModel, RunModel, Verdict};
use crate::event::{NodeState, TaskReport, TaskStatus, Verb};

/// A node's standing at the end of a run. Only the first word says that it is as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NodeResult {
    AsDeclared,
    /// Commands ran, and nothing judges what a command does.
    DoneNotJudged,
    /// Declared state could not be reached, and the playbook ignores that.
    FailuresIgnored,
    NotAsDeclared,
    /// It was not read, or not all of it.
    Unknown,
    NotApplicable,
}

impl NodeResult {
    pub const ALL: [Self; 6] = [
        Self::AsDeclared,
        Self::DoneNotJudged,
        Self::FailuresIgnored,
        Self::NotAsDeclared,
        Self::Unknown,
        Self::NotApplicable,
    ];

    /// As programs read it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::AsDeclared => "as_declared",
            Self::DoneNotJudged => "done_not_judged",
            Self::FailuresIgnored => "failures_ignored",
            Self::NotAsDeclared => "not_as_declared",
            Self::Unknown => "unknown",
            Self::NotApplicable => "not_applicable",
        }
    }

    /// As people read it, where a verdict alone would call the node well.
    pub const fn caveat(self) -> Option<&'static str> {
        match self {
            Self::DoneNotJudged => Some("done, not judged"),
            Self::FailuresIgnored => Some("with failures that are ignored"),
            _ => None,
        }
    }
}

impl NodeModel {
    pub fn result(&self, verb: Verb) -> NodeResult {
        match self.verdict(verb) {
            Verdict::Na => NodeResult::NotApplicable,
            Verdict::Fail | Verdict::Drift => NodeResult::NotAsDeclared,
            _ if self.ignored_failures().next().is_some() => NodeResult::FailuresIgnored,
            Verdict::Unknown => NodeResult::Unknown,
            _ if self.is_done_unjudged(verb) => NodeResult::DoneNotJudged,
            _ if self.is_compliant(verb) => NodeResult::AsDeclared,
            _ => NodeResult::NotAsDeclared,
        }
    }

    /// Returns failures of declared state that the playbook ignores.
    pub fn ignored_failures(&self) -> impl Iterator<Item = &TaskReport> {
        let declares =
            |task: &TaskReport| tasks::find(&task.kind).is_some_and(|kind| kind.class == Class::Node);
        self.tasks
            .iter()
            .filter(move |task| task.status == TaskStatus::Failed && task.ignored && declares(task))
    }
}

impl RunModel {
    /// Returns failures of declared state that the playbook ignores, on nodes that a run or its plan calls well otherwise.
    pub fn ignored_failures(&self) -> Vec<(&NodeModel, &TaskReport)> {
        let calm = |node: &&NodeModel| matches!(node.state, NodeState::Done | NodeState::Compliant);
        let nodes = self.nodes().iter().filter(calm).filter(|_| !self.verb().info().judges);
        nodes.flat_map(|node| node.ignored_failures().map(move |task| (node, task))).collect()
    }

    /// Returns how many nodes have each result, in the order of [`NodeResult::ALL`].
    pub fn results(&self) -> impl Iterator<Item = (NodeResult, usize)> {
        let verb = self.verb();
        NodeResult::ALL.into_iter().map(move |result| {
            let with = self.nodes().iter().filter(|node| node.result(verb) == result);
            (result, with.count())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        display::{Style, plan_screen},
        event::Event,
        report::{
            RENDERERS,
            sample::{self, Stream},
        },
    };

    fn ignored() -> TaskReport {
        TaskReport {
            message: Some("`memlock` cannot be raised".to_owned()),
            ignored: true,
            ..sample::report("limits", 5, TaskStatus::Failed)
        }
    }

    fn events(verb: Verb) -> Vec<Event> {
        let hosts = sample::names(4);
        let mut s = Stream::new();
        s.started(verb, &hosts).play(&hosts, &[("4", 4)]);
        s.task("gpu001", sample::report("gpu_power", 9, TaskStatus::Ok));
        s.task("gpu002", sample::report("command", 7, TaskStatus::Changed));
        s.task("gpu003", ignored());
        s.task("gpu004", sample::failed("sysctl", 4, "no such parameter"));
        for host in ["gpu001", "gpu002", "gpu003"] {
            let state = if verb.writes() { NodeState::Done } else { NodeState::Compliant };
            s.end(host, state, None);
        }
        s.end("gpu004", NodeState::Failed, Some("no such parameter"));
        s.finished(2, "");
        s.events
    }

    fn word(model: &RunModel, host: &str) -> &'static str {
        model.node(host).unwrap().result(model.verb()).word()
    }

    #[test]
    fn only_what_was_judged_and_met_is_as_declared_in_every_format() {
        let events = events(Verb::Run);
        let model = RunModel::of(&events);
        let words = ["gpu001", "gpu002", "gpu003", "gpu004"].map(|host| word(&model, host));
        assert_eq!(words, ["as_declared", "done_not_judged", "failures_ignored", "not_as_declared"]);
        let document = crate::report::document(&model);
        assert_eq!(document["compliant"], 1);
        assert_eq!(document["results"]["done_not_judged"], 1);
        assert_eq!(document["nodes"]["gpu002"]["result"], "done_not_judged");
        assert_eq!(document["nodes"]["gpu003"]["ignored"][0]["message"], "`memlock` cannot be raised");
        for renderer in RENDERERS {
            let text = renderer.render(&model, &events).unwrap();
            let wanted: &[&str] = match renderer.name {
                "junit" => &["done, not judged", "failures that are ignored: limits"],
                "openmetrics" | "prometheus" => {
                    &[r#"node="gpu002",gpufleet_node_result="done_not_judged"} 1"#]
                }
                "html" => &["done, not judged", "with failures that are ignored"],
                _ => continue,
            };
            for part in wanted {
                assert!(text.contains(part), "{} lacks {part}", renderer.name);
            }
        }
    }

    #[test]
    fn a_plan_lists_a_refusal_that_is_ignored() {
        let model = RunModel::of(&events(Verb::Plan));
        assert_eq!(word(&model, "gpu003"), "failures_ignored");
        let screen = plan_screen(&model, Default::default(), &Style::default());
        assert!(screen.contains("limits: `memlock` cannot be raised (playbooks/bringup.yaml:5)"), "{screen}");
        let compliant = screen.lines().find(|line| line.trim_start().starts_with("compliant")).unwrap();
        assert!(!compliant.contains("gpu003"), "{screen}");
    }
}

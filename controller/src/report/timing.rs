//! How long each task took on each node, from the events of a run.
//!
//! A task's time is from the moment when its operation goes to the node until its report: it includes a drain or a
//! reboot that the task needs, but not the wait for other nodes. Tasks that run on the controller only take no time.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::Map;

use crate::event::{Event, NodeState, Phase, Position, TaskReport, TaskStatus, What};
use crate::index::PlayIndex;

/// One task on one node.
#[derive(Clone, Debug)]
pub struct Case {
    pub play: PlayIndex,
    pub host: String,
    /// The report, without registered data.
    pub report: TaskReport,
    pub ms: u64,
}

/// Everything that has ended so far, in order.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Names by index.
    pub plays: Vec<(PlayIndex, String)>,
    pub cases: Vec<Case>,
    /// Nodes that ended without a task that explains it: name, state, message.
    pub losses: Vec<(PlayIndex, String, NodeState, String)>,
    current: PlayIndex,
    begun: HashMap<String, Timestamp>,
    /// Time of the items of unfinished loops.
    items: HashMap<String, u64>,
}

/// The times of one task over all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskTime {
    pub task: String,
    pub position: Position,
    /// Total of all nodes.
    pub total_ms: u64,
    pub nodes: usize,
    /// The slowest node, and its time.
    pub slowest: (String, u64),
}

impl Timing {
    /// Folds the events of a run, in their order.
    pub fn of(events: &[Event]) -> Self {
        let mut timing = Self::default();
        events.iter().for_each(|event| timing.apply(event));
        timing
    }

    /// Folds one event.
    pub fn apply(&mut self, event: &Event) {
        match &event.what {
            What::PlayStarted(play) => {
                self.current = play.play;
                self.plays.retain(|(known, _)| *known != play.play);
                self.plays.push((play.play, play.name.clone()));
            }
            What::TaskStarted { host, .. } => {
                self.begun.insert(host.clone(), event.at);
            }
            What::TaskFinished { host, report } => self.finished(host, report, event.at),
            What::NodeFinished { host, outcome } => {
                let bad = matches!(
                    outcome.state,
                    NodeState::Failed | NodeState::Unreachable | NodeState::Held | NodeState::Unknown
                );
                let told = self.cases.iter().any(|case| case.host == *host && is_bad(&case.report));
                if bad && !told {
                    let message = outcome.message.clone().unwrap_or_default();
                    self.losses.push((self.current, host.clone(), outcome.state, message));
                }
            }
            _ => {}
        }
    }

    fn finished(&mut self, host: &str, report: &TaskReport, at: Timestamp) {
        // Removed, because the members of a GPU group report one after the other, and the first has the time of all.
        let begun = self.begun.remove(host);
        let ms = begun.map_or(0, |begun| {
            u64::try_from(at.as_millisecond() - begun.as_millisecond()).unwrap_or_default()
        });
        if report.item.is_some() {
            *self.items.entry(host.to_owned()).or_default() += ms;
            return;
        }
        let ms = ms + self.items.remove(host).unwrap_or_default();
        let quiet = report.phase != Phase::Declared && !is_bad(report);
        if quiet {
            return;
        }
        let report = TaskReport { data: Map::new(), ..report.clone() };
        self.cases.push(Case { play: self.current, host: host.to_owned(), report, ms });
    }

    /// Returns the tasks by their time, the slowest first.
    pub fn tasks(&self) -> Vec<TaskTime> {
        let mut index: HashMap<(PlayIndex, &Position), usize> = HashMap::new();
        let mut tasks: Vec<TaskTime> = Vec::new();
        for case in &self.cases {
            let at = *index.entry((case.play, &case.report.position)).or_insert_with(|| {
                tasks.push(TaskTime {
                    task: case.report.task.clone(),
                    position: case.report.position.clone(),
                    total_ms: 0,
                    nodes: 0,
                    slowest: (case.host.clone(), 0),
                });
                tasks.len() - 1
            });
            let Some(task) = tasks.get_mut(at) else { continue };
            task.total_ms += case.ms;
            task.nodes += 1;
            if case.ms > task.slowest.1 {
                task.slowest = (case.host.clone(), case.ms);
            }
        }
        tasks.sort_by_key(|task| std::cmp::Reverse(task.total_ms));
        tasks
    }
}

/// Whether the report needs a person's attention.
pub(super) const fn is_bad(report: &TaskReport) -> bool {
    matches!(
        report.status,
        TaskStatus::Failed | TaskStatus::Unreachable | TaskStatus::Held | TaskStatus::Unknown
    ) && !report.ignored
        && !report.rescued
}

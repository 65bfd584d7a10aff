//! The model of a run: every event folded into one value.
//!
//! Invariants: the cost of applying an event does not depend on the number of nodes (except at the start of a wave, and at
//! the end of an audit's last node);
//! the counts by state always add up to the number of nodes; an event about an unknown host adds that host.

use std::collections::{HashMap, HashSet, hash_map::Entry};

use gpufleet_compliance::{Memory, outlier::Peers};
use gpufleet_protocol::keep::KeptReport;
use gpufleet_protocol::{
    Awaiting, Blocker, Change, Disruption,
    facts::{Facts, GpuSystemState},
    message::IdleReport,
    tasks::{self, Class},
    topology::Topology,
};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::event::{
    ChangeRecord, DrainStep, Event, HEALTH, Judged, Level, NodeOutcome, NodeState, Phase, PlayStarted,
    RecapCounts, RunFinished, RunStarted, TaskReport, TaskStatus, Verb, What, tells_of_a_stop,
};
use crate::index::PlayIndex;

use super::{
    EarlierShare, Totals, hardware_class,
    health::{self, NodeHealth},
    topology,
};

/// The state of a run after its events so far.
#[derive(Clone, Debug, Default)]
pub struct RunModel {
    pub run: Option<RunStarted>,
    pub started: Option<Timestamp>,
    /// Time of the latest event.
    pub latest: Option<Timestamp>,
    pub plays: Vec<PlayStarted>,
    /// The play and wave that began last and have not ended, both from 0.
    pub current_wave: Option<(PlayIndex, usize)>,
    /// When the window opens for which the next wave waits.
    pub window_opens: Option<Timestamp>,
    pub notices: Vec<Notice>,
    pub finish: Option<RunFinished>,
    /// Whether a process works on the run now, which no event tells.
    pub at_work: bool,
    /// What an earlier audit said of the same nodes, from the history.
    pub earlier: Option<EarlierShare>,
    pub finished: Option<Timestamp>,
    nodes: Vec<NodeModel>,
    index: HashMap<String, usize>,
    by_state: HashMap<NodeState, usize>,
    /// Nodes that checks judge and that have not ended: with the last of them, nodes are compared with each other.
    awaited: HashSet<String>,
}

/// Whether a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Finished,
    /// A process carries the run out; the report is as of the latest event.
    Running,
    /// No process carries the run out, and it did not reach its end.
    CutOff,
}

impl Standing {
    /// Returns the text for a run that is not over.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Running => "still running",
            Self::CutOff => "cut off before its end",
        }
    }
}

/// A message about the whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub at: Timestamp,
    pub level: Level,
    pub text: String,
}

/// One node's part in the run.
#[derive(Clone, Debug)]
pub struct NodeModel {
    pub name: String,
    pub state: NodeState,
    /// Details of the state, such as what blocks the node.
    pub detail: Option<String>,
    /// When the node entered its state or began its task.
    pub since: Option<Timestamp>,
    /// When the current or last process first had an event about it.
    pub first: Option<Timestamp>,
    pub connection: Option<Connection>,
    /// What it asserts at each boot, as the latest session told.
    pub kept: Option<Box<KeptReport>>,
    /// What a person should look at of it.
    kept_concerns: Vec<String>,
    /// The task that runs now, if the events tell.
    pub running: Option<RunningTask>,
    /// The latest progress message of the running task.
    pub progress: Option<String>,
    pub tasks: Vec<TaskReport>,
    pub facts: Option<Box<Facts>>,
    /// When the facts were read.
    pub facts_at: Option<Timestamp>,
    /// Whether the run has changed or rebooted the node since then.
    changed_since_facts: bool,
    pub idle: Option<IdleReport>,
    /// Events between the node and its scheduler.
    pub drains: Vec<(Timestamp, DrainStep)>,
    /// A permit that was requested and not granted yet.
    pub wanted: Option<Wanted>,
    pub reboots: Vec<Reboot>,
    /// Whether checks are to judge it.
    pub awaits_health: bool,
    /// What they say; `None` until its signals were read.
    pub health: Option<NodeHealth>,
    /// Where its devices are, by the last `topology_info`.
    pub topology: Option<Box<Topology>>,
    /// What earlier audits remember, until its signals are read.
    earlier: Option<Box<Memory>>,
    pub outcome: Option<NodeOutcome>,
    /// Whether a permit was granted, and the node was not given back since.
    permitted: bool,
    live_counts: RecapCounts,
    /// Time that earlier processes of the run spent on it, in seconds.
    earlier_s: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Whether the helper had to be sent first.
    pub pushed: bool,
    pub ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningTask {
    pub task: String,
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub class: Disruption,
    pub why: String,
}

/// A reboot that the run requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reboot {
    pub why: Vec<String>,
    /// The boot id before it.
    pub before: String,
    /// The boot id after it and its duration in seconds; `None` while the node is away.
    pub after: Option<(String, u64)>,
}

impl NodeModel {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: NodeState::Pending,
            detail: None,
            since: None,
            first: None,
            connection: None,
            kept: None,
            kept_concerns: Vec::new(),
            running: None,
            progress: None,
            tasks: Vec::new(),
            facts: None,
            facts_at: None,
            changed_since_facts: false,
            idle: None,
            drains: Vec::new(),
            wanted: None,
            reboots: Vec::new(),
            awaits_health: false,
            health: None,
            topology: None,
            earlier: None,
            outcome: None,
            permitted: false,
            live_counts: RecapCounts::default(),
            earlier_s: 0,
        }
    }

    /// Drops tasks that were held or unreachable: the resuming process does them again.
    fn take_up(&mut self) {
        let undone = |task: &TaskReport| {
            matches!(task.status, TaskStatus::Held | TaskStatus::Unreachable)
                && !task.ignored
                && !task.rescued
        };
        while self.tasks.last().is_some_and(undone) {
            self.tasks.pop();
        }
        self.detail = None;
        self.live_counts = RecapCounts::default();
        for task in &self.tasks {
            self.live_counts.count(task);
        }
    }

    /// Returns the recap's counts: those of the outcome, or those so far.
    pub fn counts(&self) -> RecapCounts {
        self.outcome.as_ref().map_or(self.live_counts, |outcome| outcome.counts)
    }

    /// Returns changes made (`run`) or found (`plan`, `audit`), with their task, without those of held tasks.
    pub fn changes(&self) -> impl Iterator<Item = (&TaskReport, &Change)> {
        self.reports_with_changes(false)
    }

    /// Returns changes that are needed but were not made, because a person has to decide first.
    pub fn changes_not_made(&self) -> impl Iterator<Item = (&TaskReport, &Change)> {
        self.reports_with_changes(true)
    }

    fn reports_with_changes(&self, held: bool) -> impl Iterator<Item = (&TaskReport, &Change)> {
        self.tasks
            .iter()
            // The final verification repeats what the task has reported already.
            .filter(move |task| task.phase != Phase::Verify && (task.status == TaskStatus::Held) == held)
            .flat_map(|task| task.changes.iter().map(move |change| (task, change)))
    }

    /// Returns the changes as records for programs.
    pub fn change_records(&self) -> Vec<ChangeRecord> {
        self.changes().map(|(task, change)| ChangeRecord::new(task, change)).collect()
    }

    /// Returns what blocks its changes now, without duplicates.
    pub fn blockers(&self) -> Vec<&Blocker> {
        each_once(self.tasks.iter().flat_map(|task| &task.blockers))
    }

    /// Returns the warnings of its tasks, and of what it keeps, without duplicates.
    pub fn warnings(&self) -> Vec<&str> {
        let tasks = self.tasks.iter().flat_map(|task| &task.warnings);
        each_once(self.kept_concerns.iter().chain(tasks).map(String::as_str))
    }

    /// Returns what is written and waits for an activation, from the latest report of each task.
    pub fn awaiting(&self) -> Vec<&Awaiting> {
        let mut latest: Vec<&TaskReport> = Vec::new();
        let mut places: HashMap<_, usize> = HashMap::new();
        for task in &self.tasks {
            match places.entry((&task.task, &task.position, &task.item)) {
                Entry::Occupied(place) => latest[*place.get()] = task,
                Entry::Vacant(place) => {
                    place.insert(latest.len());
                    latest.push(task);
                }
            }
        }
        each_once(latest.into_iter().flat_map(|task| &task.awaiting))
    }

    /// Returns tasks that ended in this status, without ignored and rescued failures.
    pub fn tasks_in(&self, status: TaskStatus) -> impl Iterator<Item = &TaskReport> {
        self.tasks.iter().filter(move |task| task.status == status && !task.ignored && !task.rescued)
    }

    /// Returns how much of the declaration was judged, if the run only reads; empty if it writes.
    pub fn judged(&self, verb: Verb) -> Judged {
        if verb.writes() { Judged::default() } else { Judged::of(&self.tasks) }
    }

    /// Whether a run did something on it that nothing judges: a command, which may have done anything.
    pub fn has_unjudged_work(&self, verb: Verb) -> bool {
        let command = |task: &TaskReport| {
            task.status == TaskStatus::Changed && class_of(task).is_some_and(|class| class == Class::Command)
        };
        verb.writes() && self.tasks.iter().any(command)
    }

    /// Whether a run did nothing else on it: it is done, and nobody can say that it is as declared.
    pub fn is_done_unjudged(&self, verb: Verb) -> bool {
        let judged = |task: &TaskReport| {
            matches!(task.status, TaskStatus::Ok | TaskStatus::Changed)
                && class_of(task).is_some_and(|class| class != Class::Command)
                && tasks::find(&task.kind).is_some_and(|kind| kind.judged)
        };
        self.is_well() && self.has_unjudged_work(verb) && !self.tasks.iter().any(judged)
    }

    fn is_well(&self) -> bool {
        matches!(self.state, NodeState::Done | NodeState::Compliant)
    }

    /// Whether something went wrong that needs a person's attention.
    pub const fn is_bad(&self) -> bool {
        matches!(
            self.state,
            NodeState::Failed | NodeState::Held | NodeState::Unreachable | NodeState::Unknown
        )
    }

    /// Returns its GPUs, such as `8x H100 80GB HBM3`, by its facts or the signals of an audit.
    pub fn hardware(&self) -> Option<String> {
        let of_facts = self.facts.as_deref().and_then(hardware_class);
        of_facts.or_else(|| self.health.as_ref()?.hardware.clone())
    }

    /// Returns the version of its driver, from the same.
    pub(super) fn driver_version(&self) -> Option<&str> {
        let of_facts = self.facts.as_ref().and_then(|facts| facts.gpu.driver_version.as_deref());
        of_facts.or_else(|| self.health.as_ref()?.driver_version.as_deref())
    }

    /// Says that the driver shows fewer GPUs than the PCI bus; `None` if that is not so, or not known.
    pub(super) fn missing_gpus(&self) -> Option<String> {
        let gpu = &self.facts.as_ref()?.gpu;
        let (seen, there) = (gpu.gpus.len(), gpu.pci_count as usize);
        (gpu.state == GpuSystemState::Ok && seen < there)
            .then(|| format!("the driver shows {seen} of {there} GPUs on the PCI bus"))
    }

    /// Whether the facts are outdated: the run changed or rebooted the node after they were read.
    pub fn facts_are_old(&self) -> bool {
        let away = self.reboots.last().is_some_and(|reboot| reboot.after.is_none());
        self.facts.is_some() && (self.changed_since_facts || away)
    }

    /// Whether the run did not bring the node to an end.
    pub const fn is_left(&self) -> bool {
        !matches!(self.state, NodeState::Done | NodeState::Compliant)
    }

    /// Returns why the node is in its state, in one sentence if possible.
    pub fn message(&self) -> Option<&str> {
        let said = self.outcome.as_ref().and_then(|outcome| outcome.message.as_deref());
        let task = || {
            let bad = [TaskStatus::Failed, TaskStatus::Unreachable, TaskStatus::Held, TaskStatus::Unknown];
            bad.into_iter().find_map(|status| self.tasks_in(status).find_map(|task| task.message.as_deref()))
        };
        said.or_else(|| if self.is_bad() { self.detail.as_deref().or_else(task) } else { None })
    }

    /// Whether the run took it out of service, or was about to, and no event says that it was given back.
    fn may_be_out(&self) -> bool {
        self.permitted || self.drains.last().is_some_and(|(_, step)| step.holds())
    }

    /// Whether it was disturbed, did not end well, and takes work all the same: no scheduler was asked to keep any away, so
    /// that nothing is to be given back. One that is away after a reboot takes none.
    pub fn is_left_in_service(&self) -> bool {
        let is_away = self.state == NodeState::Unreachable
            || self.reboots.last().is_some_and(|reboot| reboot.after.is_none());
        self.outcome.as_ref().is_some_and(|outcome| outcome.out_of_service)
            && self.drains.last().is_none_or(|(_, step)| *step == DrainStep::GivenBack)
            && !is_away
    }

    /// Whether the run left it out of service.
    pub fn is_left_out(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.out_of_service) && !self.is_left_in_service()
    }

    /// Returns the time that the node took, or has taken until `now`, in whole seconds.
    pub fn seconds(&self, now: Option<Timestamp>) -> u64 {
        let of_process = match &self.outcome {
            Some(outcome) => outcome.seconds,
            None => seconds_between(self.first, now),
        };
        self.earlier_s.saturating_add(of_process)
    }

    /// Returns the highest disruption among its changes and what still waits.
    pub fn disruption(&self) -> Option<Disruption> {
        let changes = self.changes().chain(self.changes_not_made()).map(|(_, change)| change.disruption);
        changes.chain(self.awaiting().into_iter().map(|one| one.activation)).max()
    }
}

fn class_of(task: &TaskReport) -> Option<Class> {
    tasks::find(&task.kind).map(|kind| kind.class)
}

/// Removes duplicates, and keeps the order of first appearance.
fn each_once<T: Copy + Eq + std::hash::Hash>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = HashSet::new();
    all.filter(|one| seen.insert(*one)).collect()
}

/// Returns whole seconds between two times; 0 if either is unknown or the clock went backwards.
pub(crate) fn seconds_between(from: Option<Timestamp>, to: Option<Timestamp>) -> u64 {
    match (from, to) {
        (Some(from), Some(to)) => u64::try_from(to.as_second() - from.as_second()).unwrap_or(0),
        _ => 0,
    }
}

impl RunModel {
    /// Whether `gpufleet resume` can continue the run.
    pub fn is_resumable(&self) -> bool {
        self.finish.as_ref().is_none_or(|finish| finish.resumable)
    }

    /// Returns whether the run is over, and if not, whether a process works on it.
    pub const fn standing(&self) -> Standing {
        match (&self.finish, self.at_work) {
            (Some(_), _) => Standing::Finished,
            (None, true) => Standing::Running,
            (None, false) => Standing::CutOff,
        }
    }

    /// Returns nodes that look as declared but were not fully judged.
    pub fn not_judged(&self) -> Vec<&str> {
        let verb = self.verb();
        let calm = |node: &&NodeModel| matches!(node.state, NodeState::Done | NodeState::Compliant);
        let partly = |node: &&NodeModel| !node.judged(verb).is_whole();
        self.nodes.iter().filter(calm).filter(partly).map(|node| node.name.as_str()).collect()
    }

    /// Whether checks judge the nodes.
    pub fn is_audit_of_checks(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.audit.is_some())
    }

    /// Returns the number of nodes with each verdict, in words: `2 ok, 1 fail`.
    fn verdicts_text(&self) -> String {
        let totals = Totals::of(self);
        let counts = totals.verdicts().rev().filter(|(_, count)| *count > 0);
        counts.map(|(verdict, count)| format!("{count} {verdict}")).collect::<Vec<_>>().join(", ")
    }

    /// Returns the number of nodes in each state, in words: `2 done, 1 failed`.
    pub fn counts_text(&self) -> String {
        if self.is_audit_of_checks() {
            return self.verdicts_text();
        }
        let open = self.not_judged().len();
        let mut parts: Vec<String> = Vec::new();
        for state in NodeState::ALL {
            // A reading leaves no node done, so that all of these are counted as compliant.
            let less = if state == NodeState::Compliant { open } else { 0 };
            match self.count(state) - less.min(self.count(state)) {
                0 => {}
                count => parts.push(format!("{count} {state}")),
            }
        }
        if open > 0 {
            parts.push(format!("{open} not judged"));
        }
        if parts.is_empty() { "no node".to_owned() } else { parts.join(", ") }
    }

    pub fn new() -> Self {
        Self::default()
    }

    /// Folds a whole stream.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut model = Self::new();
        for event in events {
            model.apply(event);
        }
        model
    }

    /// Returns the nodes in inventory order.
    pub fn nodes(&self) -> &[NodeModel] {
        &self.nodes
    }

    pub fn node(&self, host: &str) -> Option<&NodeModel> {
        self.nodes.get(*self.index.get(host)?)
    }

    /// Returns the number of nodes in this state.
    pub fn count(&self, state: NodeState) -> usize {
        self.by_state.get(&state).copied().unwrap_or(0)
    }

    /// Returns the names of nodes in this state, in inventory order.
    pub fn in_state(&self, state: NodeState) -> Vec<&str> {
        self.nodes.iter().filter(|node| node.state == state).map(|node| node.name.as_str()).collect()
    }

    pub fn run_id(&self) -> &str {
        self.run.as_ref().map_or("", |run| &run.run_id)
    }

    pub fn verb(&self) -> Verb {
        self.run.as_ref().map_or(Verb::Run, |run| run.verb)
    }

    /// Returns nodes that this run took out of service and did not give back, by its last event or by those of the
    /// nodes. They count against `max_unavailable`, also where no scheduler keeps work away from them.
    pub fn out_of_service(&self) -> Vec<String> {
        if let Some(finish) = &self.finish {
            return finish.out_of_service.clone();
        }
        let out = |node: &&NodeModel| {
            node.outcome.as_ref().map_or_else(|| node.may_be_out(), |outcome| outcome.out_of_service)
        };
        self.nodes.iter().filter(out).map(|node| node.name.clone()).collect()
    }

    /// Returns those of [`out_of_service`](Self::out_of_service) that take no work.
    pub fn left_out(&self) -> Vec<String> {
        let mut out = self.out_of_service();
        out.retain(|name| !self.node(name).is_some_and(NodeModel::is_left_in_service));
        out
    }

    /// Returns nodes that this run disturbed, that did not end well, and that take work all the same.
    pub fn left_in_service(&self) -> Vec<&str> {
        self.nodes.iter().filter(|node| node.is_left_in_service()).map(|node| node.name.as_str()).collect()
    }

    /// Returns why the run ended early, if it did.
    pub fn stopped(&self) -> Option<&str> {
        self.finish.as_ref().and_then(|finish| finish.stopped.as_deref())
    }

    fn node_mut(&mut self, host: &str) -> &mut NodeModel {
        let at = match self.index.get(host) {
            Some(at) => *at,
            None => {
                let at = self.nodes.len();
                self.nodes.push(NodeModel::new(host));
                self.index.insert(host.to_owned(), at);
                *self.by_state.entry(NodeState::Pending).or_default() += 1;
                at
            }
        };
        &mut self.nodes[at]
    }

    fn enter(&mut self, host: &str, state: NodeState, at: Timestamp) {
        let node = self.node_mut(host);
        let before = std::mem::replace(&mut node.state, state);
        if before != state {
            node.since = Some(at);
            node.progress = None;
            *self.by_state.entry(before).or_default() -= 1;
            *self.by_state.entry(state).or_default() += 1;
        }
    }

    /// Ends the preflight of nodes whose wave has not begun: all nodes are read before the first wave.
    fn end_preflight(&mut self, wave: &[String], at: Timestamp) {
        if self.count(NodeState::Preflight) == 0 {
            return;
        }
        let wave: HashSet<&str> = wave.iter().map(String::as_str).collect();
        let idle =
            |node: &&NodeModel| node.state == NodeState::Preflight && !wave.contains(node.name.as_str());
        let names: Vec<String> = self.nodes.iter().filter(idle).map(|node| node.name.clone()).collect();
        for name in names {
            self.enter(&name, NodeState::Pending, at);
        }
    }

    /// Finds nodes that differ from others like them, and judges these anew.
    fn compare_nodes(&mut self, at: Timestamp) {
        let Some(scope) = self.run.as_ref().and_then(|run| run.audit.as_deref()) else { return };
        let mut judged: Vec<&mut NodeModel> =
            self.nodes.iter_mut().filter(|node| node.health.is_some()).collect();
        let peers: Vec<(&str, &Peers)> = judged
            .iter()
            .filter_map(|node| Some((node.name.as_str(), &node.health.as_ref()?.peers)))
            .collect();
        let compared = scope.compare(&peers);
        for (place, found) in compared.findings {
            let Some(node) = judged.get_mut(place) else { continue };
            let Some(health) = &mut node.health else { continue };
            health.verdict = scope.beside_others(&node.name, &mut health.findings, found);
        }
        for node in judged {
            if let Some(health) = &mut node.health {
                health.peers = Peers::default();
            }
        }
        let mixed = compared.mixed.into_iter().map(|mixed| format!("{} ({})", mixed.text, mixed.check));
        self.notices.extend(mixed.map(|text| Notice { at, level: Level::Info, text }));
    }

    /// Folds one event in.
    pub fn apply(&mut self, event: &Event) {
        let before = self.latest.replace(event.at);
        let writes = self.verb().writes();
        // Why not what is remembered: it tells nothing of when the run came to the node.
        if let Some(host) = event.what.host().filter(|_| !matches!(event.what, What::Remembered { .. })) {
            let node = self.node_mut(host);
            node.first.get_or_insert(event.at);
            node.since.get_or_insert(event.at);
        }
        match &event.what {
            What::RunStarted(run) => {
                for host in &run.hosts {
                    self.node_mut(host);
                }
                if let Some(scope) = &run.audit {
                    for node in &mut self.nodes {
                        node.awaits_health = !scope.without.contains(&node.name);
                    }
                    let awaited = self.nodes.iter().filter(|node| node.awaits_health);
                    self.awaited = awaited.map(|node| node.name.clone()).collect();
                }
                self.started = Some(event.at);
                self.run = Some(run.clone());
            }
            What::PlayStarted(play) => {
                // A run that was cut off before a play's first wave plans the play again.
                self.plays.retain(|known| known.play != play.play);
                self.plays.push(play.clone());
            }
            What::AwaitsWindow { opens, .. } => {
                self.window_opens = Some(*opens);
                self.end_preflight(&[], event.at);
            }
            What::WaveStarted { play, wave, hosts } => {
                self.current_wave = Some((*play, *wave));
                self.window_opens = None;
                self.end_preflight(hosts, event.at);
            }
            What::WaveFinished { play, wave } => {
                if self.current_wave == Some((*play, *wave)) {
                    self.current_wave = None;
                }
            }
            What::Remembered { host, memory } => {
                self.node_mut(host).earlier = Memory::read(memory).map(Box::new);
            }
            What::Connected { host, pushed, ms, .. } => {
                self.node_mut(host).connection = Some(Connection { pushed: *pushed, ms: *ms });
            }
            What::Kept { host, report } => {
                let node = self.node_mut(host);
                node.kept_concerns =
                    report.concerns().iter().map(|concern| format!("kept GPU state: {concern}")).collect();
                node.kept = Some(report.clone());
            }
            What::FactsRead { host, facts } => {
                let node = self.node_mut(host);
                node.facts = Some(facts.clone());
                node.facts_at = Some(event.at);
                node.changed_since_facts = false;
            }
            What::NodeState { host, state, detail } => {
                self.enter(host, *state, event.at);
                self.node_mut(host).detail.clone_from(detail);
            }
            What::TaskStarted { host, task, kind, .. } => {
                let node = self.node_mut(host);
                node.running = Some(RunningTask { task: task.clone(), kind: kind.clone() });
                node.progress = None;
                node.since = Some(event.at);
            }
            What::Progress { host, text } => self.node_mut(host).progress = Some(text.clone()),
            What::TaskFinished { host, report } => {
                let scope = self.run.as_ref().and_then(|run| run.audit.as_deref());
                let known = self.node(host);
                let earlier = known.and_then(|node| node.earlier.as_deref());
                // Of a task that was skipped, or could not judge, the checks are what is left.
                let judged_by = |kind: &str| {
                    let tasks = known.iter().flat_map(|node| &node.tasks);
                    let judges =
                        |task: &&TaskReport| matches!(task.status, TaskStatus::Ok | TaskStatus::Changed);
                    tasks.filter(judges).any(|task| task.kind == kind)
                };
                let judged = scope
                    // Not those of a playbook's own task, which may be of another host, or not as deep.
                    .filter(|_| report.kind == health::KIND && *report.position.file == *HEALTH)
                    .and_then(|scope| {
                        NodeHealth::of(scope, host, &report.data, earlier, event.at, &judged_by)
                    });
                if let Some(text) = judged.as_ref().and_then(|judged| judged.stranger.clone()) {
                    self.notices.push(Notice { at: event.at, level: Level::Warning, text });
                }
                let node = self.node_mut(host);
                node.health = judged.or(node.health.take());
                let topology = topology::of(report).map(Box::new);
                node.topology = topology.or(node.topology.take());
                node.running = None;
                node.progress = None;
                node.since = Some(event.at);
                node.live_counts.count(report);
                // Failed tasks too, because they may have changed much before.
                let changed = report.status == TaskStatus::Changed
                    || (report.status != TaskStatus::Held && !report.changes.is_empty());
                node.changed_since_facts |= writes && changed && report.delegated_to.is_none();
                // Registered data can be large and may be secret; no report shows it.
                node.tasks.push(report.without_data());
            }
            What::PermitWanted { host, class, why } => {
                self.node_mut(host).wanted = Some(Wanted { class: *class, why: why.clone() });
            }
            What::PermitGranted { host, .. } => {
                let node = self.node_mut(host);
                node.wanted = None;
                node.permitted = true;
            }
            What::Released { host } => self.node_mut(host).permitted = false,
            What::IdleChecked { host, report } => self.node_mut(host).idle = Some(report.clone()),
            What::Drain { host, step } => self.node_mut(host).drains.push((event.at, step.clone())),
            What::Overridden { host, what } => {
                let whom = host.as_ref().map(|host| format!("{host}: ")).unwrap_or_default();
                let text = format!("{whom}went on against this: {what}");
                self.notices.push(Notice { at: event.at, level: Level::Warning, text });
            }
            What::RebootIssued { host, boot_id, why, .. } => {
                let reboot = Reboot { why: why.clone(), before: boot_id.clone(), after: None };
                self.node_mut(host).reboots.push(reboot);
            }
            What::RebootRefused { host, .. } => {
                self.node_mut(host).reboots.pop_if(|reboot| reboot.after.is_none());
            }
            What::Rebooted { host, boot_id, seconds } => {
                let node = self.node_mut(host);
                node.changed_since_facts = true;
                // What waited for the reboot is current now; anything else is reported again.
                for task in &mut node.tasks {
                    task.awaiting.clear();
                }
                match node.reboots.last_mut().filter(|reboot| reboot.after.is_none()) {
                    Some(reboot) => reboot.after = Some((boot_id.clone(), *seconds)),
                    None => node.reboots.push(Reboot {
                        why: Vec::new(),
                        before: String::new(),
                        after: Some((boot_id.clone(), *seconds)),
                    }),
                }
            }
            What::NodeFinished { host, outcome } => {
                if self.awaited.remove(host) && self.awaited.is_empty() {
                    self.compare_nodes(event.at);
                }
                self.enter(host, outcome.state, event.at);
                let node = self.node_mut(host);
                node.running = None;
                node.wanted = None;
                node.outcome = Some(outcome.clone());
            }
            What::Notice { level, text } => {
                self.notices.push(Notice { at: event.at, level: *level, text: text.clone() });
            }
            What::RunFinished(finish) => {
                self.finish = Some(finish.clone());
                self.finished = Some(event.at);
            }
            What::RunResumed { .. } => {
                self.finish = None;
                self.finished = None;
                // The resuming process stops for reasons of its own.
                self.notices.retain(|notice| !tells_of_a_stop(&notice.text));
                let mut again = Vec::new();
                for node in &mut self.nodes {
                    node.earlier_s = node.seconds(before);
                    node.first = None;
                    node.outcome = None;
                    node.running = None;
                    node.wanted = None;
                    if matches!(node.state, NodeState::Held | NodeState::Unreachable | NodeState::Skipped) {
                        node.take_up();
                        again.push(node.name.clone());
                    }
                }
                for host in again {
                    self.enter(&host, NodeState::Pending, event.at);
                }
            }
            What::PowerCycled { host, .. } => self.node_mut(host).changed_since_facts = true,
        }
    }
}

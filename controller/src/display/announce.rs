//! Decides which events become a line of their own, and which are only counted.
//!
//! Invariants: a failure is reported once, when it happens; nodes that fail for the same reason within a short time
//! share a line; in any case, the number of lines stays small compared with the number of nodes.

use std::collections::{HashMap, HashSet};

use gpufleet_protocol::tasks::{self, Kind as _};
use jiff::Timestamp;

use super::{Role, Style, Verbosity, clean, clock, count};
use crate::{
    event::{DrainStep, Event, Level, NodeState, Position, TaskReport, TaskStatus, What},
    report::{
        ChangeGroup, RunModel, fold_changes, fold_gpus, fold_names, with_names_in_commands, without_name,
    },
};

/// Seconds during which further nodes with the same cause are collected.
const COLLECT_S: i64 = 2;
/// Number of distinct causes that get a line at once; later ones are counted.
const MOST_CAUSES: usize = 40;

/// Converts events to lines.
#[derive(Debug)]
pub struct Announcer {
    style: Style,
    /// Whether waves and reboots get lines, as there is no live display for them.
    steps: bool,
    causes: HashMap<Key, Collected>,
    /// Keys in the order in which they were first seen.
    order: Vec<Key>,
    told: HashSet<String>,
    uncounted: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    state: &'static str,
    task: Option<(String, Position)>,
    text: String,
}

#[derive(Debug)]
struct Collected {
    waiting: Vec<String>,
    since: Timestamp,
}

impl Announcer {
    /// Creates an announcer. `steps` gives each wave and reboot a line, for output without a live display.
    pub fn new(style: Style, steps: bool) -> Self {
        Self { style, steps, causes: HashMap::new(), order: Vec::new(), told: HashSet::new(), uncounted: 0 }
    }

    /// Returns the lines to print now. The model must have the event already.
    pub fn event(&mut self, model: &RunModel, event: &Event) -> Vec<String> {
        match &event.what {
            What::TaskFinished { host, report } => self.task(host, report, event.at),
            What::NodeFinished { host, outcome } if !self.told.contains(host) => {
                let bad = matches!(
                    outcome.state,
                    NodeState::Failed | NodeState::Held | NodeState::Unreachable | NodeState::Unknown
                );
                let message = outcome.message.as_deref().unwrap_or("no reason was given");
                if bad { self.bad(host, outcome.state.as_str(), None, message, event.at) } else { Vec::new() }
            }
            What::RebootIssued { host, why, .. } if self.steps && self.style.verbosity > Verbosity::Quiet => {
                let why = fold_gpus(why.iter().map(String::as_str)).join(", ");
                let why = if why.is_empty() { String::new() } else { format!(": {}", clean(&why)) };
                vec![self.cut(format!("{host}  reboots{why}"))]
            }
            What::PowerCycled { host, .. } if self.steps && self.style.verbosity > Verbosity::Quiet => {
                vec![self.cut(format!("{host}  did not come back: power cycled"))]
            }
            What::Rebooted { host, seconds, .. } if self.style.verbosity >= Verbosity::Changed => {
                vec![format!("{host}  is back after {}, with a new boot id", clock(*seconds))]
            }
            What::WaveStarted { play, wave, hosts }
                if self.steps && self.style.verbosity > Verbosity::Quiet =>
            {
                let plan = model.plays.iter().find(|known| known.play == *play);
                let shape = plan.and_then(|plan| plan.waves.get(*wave));
                let total = plan.map_or(0, |plan| plan.waves.len());
                let label = shape.map_or_else(String::new, |shape| format!(" {}", clean(&shape.label)));
                let of = if total > 1 { format!("/{total}") } else { String::new() };
                let nodes = count(hosts.len(), "node");
                vec![self.cut(format!("wave {}{of}{label}: {nodes}, {}", wave + 1, fold_names(hosts)))]
            }
            What::Notice { level, text } => self.notice(*level, text),
            What::Overridden { host, what } => {
                let whom = host.as_ref().map(|host| format!("{host}: ")).unwrap_or_default();
                self.notice(Level::Warning, &format!("{whom}goes on against this: {what}"))
            }
            What::Drain { host, step } => self.drain(host, step),
            _ => Vec::new(),
        }
    }

    /// Returns the lines that are due.
    pub fn tick(&mut self, now: Timestamp) -> Vec<String> {
        self.flush(|collected| now.as_second() - collected.since.as_second() >= COLLECT_S)
    }

    /// Returns all pending lines, at the end.
    pub fn finish(&mut self) -> Vec<String> {
        let mut lines = self.flush(|_| true);
        if self.uncounted > 0 {
            let nodes = count(std::mem::take(&mut self.uncounted), "more node");
            lines.push(
                self.style.paint(Role::Bad, format!("✗ {nodes} in trouble for other reasons; see below")),
            );
        }
        lines
    }

    fn drain(&self, host: &str, step: &DrainStep) -> Vec<String> {
        let (wanted, bad) = match step {
            DrainStep::LeftTo { .. } | DrainStep::Stuck { .. } => (Verbosity::Quiet, true),
            DrainStep::Told { .. } => (Verbosity::Normal, false),
            _ => (Verbosity::Changed, false),
        };
        if self.style.verbosity < wanted {
            return Vec::new();
        }
        let text = format!("{host}  {}", clean(&step.to_string()));
        vec![if bad {
            format!("{} {text}", self.style.paint(Role::Warning, "warning:"))
        } else {
            self.cut(text)
        }]
    }

    fn cut(&self, text: String) -> String {
        self.style.cut(&text, self.style.width)
    }

    fn notice(&self, level: Level, text: &str) -> Vec<String> {
        if level == Level::Info && self.style.verbosity == Verbosity::Quiet {
            return Vec::new();
        }
        let text = clean(text);
        vec![match level {
            Level::Info => text,
            Level::Warning => format!("{} {text}", self.style.paint(Role::Warning, "warning:")),
            Level::Error => format!("{} {text}", self.style.paint(Role::Bad, "error:")),
        }]
    }

    fn task(&mut self, host: &str, report: &TaskReport, at: Timestamp) -> Vec<String> {
        let message = report.message.as_deref().unwrap_or("no reason was given");
        let place = Some((report.task.clone(), report.position.clone()));
        let bad = match report.status {
            TaskStatus::Failed => Some("failed"),
            TaskStatus::Unreachable => Some("unreachable"),
            TaskStatus::Unknown => Some("unknown"),
            TaskStatus::Held => Some("held"),
            _ => None,
        };
        if let Some(state) = bad.filter(|_| !report.ignored && !report.rescued) {
            self.told.insert(host.to_owned());
            return self.bad(host, state, place, message, at);
        }
        let wanted = match report.status {
            TaskStatus::Changed => Verbosity::Changed,
            // A `debug` message was written to be read.
            TaskStatus::Ok if report.kind == tasks::Debug::INFO.name => Verbosity::Normal,
            _ if bad.is_some() => Verbosity::Changed,
            _ => Verbosity::All,
        };
        if self.style.verbosity < wanted {
            return Vec::new();
        }
        vec![self.done(host, report)]
    }

    /// Returns the line of one task with `-v` and `-vv`.
    fn done(&self, host: &str, report: &TaskReport) -> String {
        let (role, word) = match report.status {
            TaskStatus::Changed => (Role::Changed, "changed"),
            TaskStatus::Skipped => (Role::Busy, "skipped"),
            TaskStatus::Possible => (Role::Busy, "possible"),
            TaskStatus::Ok => (Role::Good, "ok"),
            _ if report.rescued => (Role::Changed, "rescued"),
            _ => (Role::Changed, "ignored"),
        };
        let item = report.item.as_ref().map_or_else(String::new, |item| format!(" [{}]", clean(item)));
        let changes = fold_changes(report.changes.iter().map(|change| (report, change)));
        let change = |change: &ChangeGroup| clean(&format!("{} {}", change.gpu_label(), change.sentence()));
        let mut what: Vec<String> = changes.iter().take(3).map(change).collect();
        if changes.len() > 3 {
            what.push(count(changes.len() - 3, "more change"));
        }
        if what.is_empty() {
            what.extend(report.message.as_deref().map(clean));
        }
        let what = if what.is_empty() { String::new() } else { format!("  {}", what.join(", ")) };
        let text = self.style.cut(
            &format!("{host}  {}{item}{what}", clean(&report.task)),
            self.style.width.saturating_sub(word.len() + 2),
        );
        format!("{}  {text}", self.style.paint(role, word))
    }

    fn bad(
        &mut self,
        host: &str,
        state: &'static str,
        task: Option<(String, Position)>,
        message: &str,
        at: Timestamp,
    ) -> Vec<String> {
        let key = Key { state, task, text: without_name(&clean(message), host) };
        if let Some(collected) = self.causes.get_mut(&key) {
            if collected.waiting.is_empty() {
                collected.since = at;
            }
            collected.waiting.push(host.to_owned());
            return Vec::new();
        }
        if self.causes.len() >= MOST_CAUSES && self.style.verbosity < Verbosity::Changed {
            self.uncounted += 1;
            return Vec::new();
        }
        let line = self.line(host, &[host.to_owned()], &key);
        self.order.push(key.clone());
        self.causes.insert(key, Collected { waiting: Vec::new(), since: at });
        vec![line]
    }

    fn line(&self, who: &str, hosts: &[String], key: &Key) -> String {
        let role =
            if key.state == "failed" || key.state == "unreachable" { Role::Bad } else { Role::Warning };
        let state = if key.state == "failed" { String::new() } else { format!("{}: ", key.state) };
        let (task, place) = match &key.task {
            Some((task, place)) => (format!("{}: ", clean(task)), format!("   {place}")),
            None => (String::new(), String::new()),
        };
        let text = with_names_in_commands(&key.text, hosts);
        let mark = self.style.paint(role, "✗");
        format!("{mark} {who}  {}{task}{}{}", self.style.paint(role, state), text, place)
    }

    fn flush(&mut self, due: impl Fn(&Collected) -> bool) -> Vec<String> {
        let mut lines = Vec::new();
        for key in &self.order {
            let Some(collected) = self.causes.get_mut(key) else { continue };
            if collected.waiting.is_empty() || !due(collected) {
                continue;
            }
            let hosts = std::mem::take(&mut collected.waiting);
            let who = match hosts.as_slice() {
                [only] => only.clone(),
                _ => format!(
                    "{}: {}",
                    count(hosts.len(), "more node"),
                    self.style.cut(&fold_names(&hosts), 60)
                ),
            };
            lines.push(self.line(&who, &hosts, key));
        }
        lines
    }
}

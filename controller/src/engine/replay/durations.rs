//! What earlier journals show of how long nodes are out for the work of one play.
//!
//! Pure: reads events, owns no file and no clock. It knows nothing of playbooks but what identifies the work of a play.
//!
//! A figure takes the place of a default, never of what is written, and shortens what a window has to have left. So
//! it is only given where it is safe to rely on:
//! * of the same work: the same tasks with the same parameters, drainer and gate. Not the same file or digest: another
//!   window, waves or a comment change nothing that is measured, and another task in the same file does;
//! * of the same class, measured on enough different nodes that were done at the end, under one controller from the
//!   first act to the last;
//! * on every GPU model that the play has now;
//! * the longest time of all, with a margin, and never below what asking and giving back may take by themselves.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gpufleet_protocol::{Disruption, facts::Facts};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::{
    event::{DrainStep, DurationOrigin, Event, NodeState, OutagePart, What},
    playbook::{Gate, Play, RebootVia},
};

/// Different nodes that must have been measured.
pub const LEAST_NODES: usize = 5;
/// The least that is expected of a drain: a scheduler may not answer for a while.
const DRAIN_FLOOR_S: u64 = 60;
/// The least that is expected of a reboot, whatever a quick machine showed.
const REBOOT_FLOOR_S: u64 = 120;
/// The least that is expected of the rest: proving that a node is idle and giving it back may take so long by themselves.
const WORK_FLOOR_S: u64 = 240;
/// What took longer was stopped, or the clock was set.
const LONGEST_S: u64 = 12 * 3600;

/// GPU models, by name.
pub type Models = BTreeSet<String>;

/// The models of these machines.
pub(crate) fn models<'a>(facts: impl Iterator<Item = &'a Facts>) -> Models {
    facts.flat_map(|facts| facts.gpu.gpus.iter().map(|gpu| gpu.name.clone())).collect()
}

/// What identifies the work that a play does on a node: SHA-256, in hexadecimal digits.
///
/// Variables are left out: they differ between runs of the same work.
pub fn work_of(play: &Play) -> String {
    let mut hash = Sha256::new();
    // Why the length before: where one text ends and the next begins must not be in doubt.
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    add(&play.name);
    for task in play.tasks() {
        add(task.section.as_str());
        add(&task.path);
        add(task.kind.name);
        for entry in &task.params.entries {
            add(&entry.name);
            add(&entry.value.to_text());
        }
        add("when");
        for condition in &task.when {
            add(&condition.text);
        }
        add("loop");
        add(&task.looped.as_ref().map(|looped| looped.items.to_text()).unwrap_or_default());
    }
    let policy = &play.policy;
    add(policy.drain.as_str());
    for text in policy.drain.fingerprint() {
        add(&text);
    }
    add(match policy.reboot.via {
        RebootVia::Ssh => "Ssh",
        RebootVia::Scheduler => policy.drain.info().scheduler.unwrap_or_default(),
    });
    for gate in &policy.health_gate {
        add(gate.as_str());
        if let Gate::Command(line) = gate {
            add(&line.to_text());
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How long nodes were out for one work, over all runs that were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationHistory {
    work: String,
    classes: BTreeMap<Disruption, ClassDurations>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ClassDurations {
    nodes: BTreeSet<String>,
    runs: BTreeSet<String>,
    models: Models,
    longest: Times,
}

/// Seconds of one stay out of service, or the longest of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    drain: Option<u64>,
    reboot: Option<u64>,
    work: Option<u64>,
}

/// What may be relied on for one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    longest: Times,
    nodes: usize,
    runs: usize,
}

impl DurationHistory {
    /// Nothing yet of this work.
    pub fn of(work: String) -> Self {
        Self { work, classes: BTreeMap::new() }
    }

    /// Adds what the journal of one run shows, whether the run ended or not. Its events must be in order; others than
    /// those of [`DurationHistory::KINDS`] are not looked at.
    pub fn add(&mut self, events: &[Event]) {
        let mut reading = Reading::default();
        for event in events {
            reading.event(event, &self.work);
        }
        for sample in reading.samples {
            let seen = self.classes.entry(sample.class).or_default();
            seen.models.extend(reading.models.get(&sample.host).into_iter().flatten().cloned());
            seen.nodes.insert(sample.host);
            seen.runs.insert(reading.run.clone());
            let longest = &mut seen.longest;
            longest.drain = longest.drain.max(sample.times.drain);
            longest.reboot = longest.reboot.max(sample.times.reboot);
            longest.work = longest.work.max(sample.times.work);
        }
    }

    /// The events that count, as a journal names them.
    pub const KINDS: [&str; 11] = [
        "run_started",
        "run_resumed",
        "play_started",
        "facts_read",
        "permit_granted",
        "drain",
        "released",
        "reboot_issued",
        "rebooted",
        "power_cycled",
        "node_state",
    ];

    /// What may be relied on for nodes of these models.
    pub(crate) fn figures(&self, class: Disruption, models: &Models) -> Option<Figures> {
        let seen = self.classes.get(&class)?;
        let is_enough = seen.nodes.len() >= LEAST_NODES && models.is_subset(&seen.models);
        is_enough.then_some(Figures { longest: seen.longest, nodes: seen.nodes.len(), runs: seen.runs.len() })
    }
}

impl Figures {
    /// What to expect of a part instead of the default; none where it was not measured.
    ///
    /// Drain and reboot are ended by their timeouts, which are the defaults here: the margin does not go beyond.
    pub(crate) fn of(&self, part: OutagePart, default_s: u64) -> Option<(u64, DurationOrigin)> {
        let (longest, floor, most) = match part {
            OutagePart::Drain => (self.longest.drain?, DRAIN_FLOOR_S, default_s),
            OutagePart::Reboot => (self.longest.reboot?, REBOOT_FLOOR_S, default_s),
            // Why not: what it was needed for once is no measure of the next time.
            OutagePart::PowerCycle => return None,
            OutagePart::Work => (self.longest.work?, WORK_FLOOR_S, LONGEST_S),
        };
        let margin = longest.div_ceil(2);
        let seconds = longest.saturating_add(margin).max(floor).min(most.max(longest));
        Some((seconds, DurationOrigin::Learned { nodes: self.nodes, runs: self.runs }))
    }
}

/// A node that is out, or is being taken out.
#[derive(Clone, Debug, Default)]
struct Stay {
    class: Option<Disruption>,
    begun: Option<Timestamp>,
    /// From when on it was out for work: drained, or granted where nobody drains.
    free: Option<Timestamp>,
    is_drained: bool,
    /// When the reboot that is under way was asked for.
    issued: Option<Timestamp>,
    reboots: u32,
    rebooting_ms: i64,
    /// It cannot be measured: another process began it, or it was power cycled.
    is_void: bool,
}

struct Sample {
    host: String,
    class: Disruption,
    times: Times,
}

/// One journal.
#[derive(Default)]
struct Reading {
    run: String,
    /// The play that is under way does the work in question.
    counts: bool,
    stays: HashMap<String, Stay>,
    /// Samples of nodes whose end in the play is to come.
    pending: HashMap<String, Vec<Sample>>,
    samples: Vec<Sample>,
    models: HashMap<String, Models>,
}

impl Reading {
    fn event(&mut self, event: &Event, work: &str) {
        let at = event.at;
        match &event.what {
            What::RunStarted(started) => self.run.clone_from(&started.run_id),
            What::FactsRead { host, facts } => {
                self.models.insert(host.clone(), models(std::iter::once(&**facts)));
            }
            What::PlayStarted(play) => {
                self.counts = !work.is_empty() && play.work.as_deref() == Some(work);
                self.stays.clear();
                self.pending.clear();
            }
            _ if !self.counts => {}
            // Why: nobody knows how long nobody was there.
            What::RunResumed { .. } => self.stays.values_mut().for_each(|stay| stay.is_void = true),
            What::Drain { host, step } => self.drain(host, step, at),
            What::PermitGranted { host, class } => {
                let stay = self.stays.entry(host.clone()).or_default();
                stay.class = stay.class.max(Some(*class));
                stay.free.get_or_insert(at);
            }
            What::RebootIssued { host, .. } => {
                if let Some(stay) = self.stays.get_mut(host) {
                    stay.issued.get_or_insert(at);
                }
            }
            What::RebootRefused { host, .. } => {
                if let Some(stay) = self.stays.get_mut(host) {
                    stay.issued = None;
                }
            }
            What::Rebooted { host, .. } => {
                if let Some(stay) = self.stays.get_mut(host) {
                    match stay.issued.take() {
                        Some(issued) => stay.rebooting_ms += between(issued, at),
                        None => stay.is_void = true,
                    }
                    stay.reboots += 1;
                }
            }
            What::PowerCycled { host, .. } => {
                if let Some(stay) = self.stays.get_mut(host) {
                    stay.is_void = true;
                }
            }
            What::Released { host } => {
                let sample = self.stays.remove(host).and_then(|stay| stay.ends(host, at));
                self.pending.entry(host.clone()).or_default().extend(sample);
            }
            What::NodeState { host, state, .. } if state.is_final() => {
                let measured = self.pending.remove(host).unwrap_or_default();
                // Why only those: what failed may have been given up early.
                if *state == NodeState::Done {
                    self.samples.extend(measured);
                }
            }
            _ => {}
        }
    }

    fn drain(&mut self, host: &str, step: &DrainStep, at: Timestamp) {
        match step {
            DrainStep::Begun { run, .. } => {
                // Why not another run's: that drain began earlier.
                let stay = Stay { begun: Some(at), is_void: *run != self.run, ..Stay::default() };
                self.stays.insert(host.to_owned(), stay);
            }
            DrainStep::Drained => {
                if let Some(stay) = self.stays.get_mut(host) {
                    stay.free.get_or_insert(at);
                    stay.is_drained = true;
                }
            }
            DrainStep::Refused { .. } => _ = self.stays.remove(host),
            DrainStep::Stuck { .. } => {
                if let Some(stay) = self.stays.get_mut(host) {
                    stay.is_void = true;
                }
            }
            DrainStep::Told { .. }
            | DrainStep::Cordoned { .. }
            | DrainStep::GivenBack
            | DrainStep::LeftTo { .. } => {}
        }
    }
}

impl Stay {
    /// What was measured when it is back in service.
    fn ends(self, host: &str, at: Timestamp) -> Option<Sample> {
        let class = self.class.filter(|_| !self.is_void && self.issued.is_none())?;
        // Why: a reboot that did not happen was not measured, and one under a lower permit is not of its class.
        if (class == Disruption::Reboot) != (self.reboots > 0) || self.begun.is_some() != self.is_drained {
            return None;
        }
        let free = self.free?;
        let drain = match self.begun {
            Some(begun) => Some(seconds(between(begun, free))?),
            None => None,
        };
        let reboot = match self.reboots {
            0 => None,
            _ => Some(seconds(self.rebooting_ms)?),
        };
        let work = seconds(between(free, at) - self.rebooting_ms)?;
        let is_sane = work <= LONGEST_S && reboot.is_none_or(|reboot| reboot <= LONGEST_S);
        let times = Times { drain, reboot, work: Some(work) };
        is_sane.then(|| Sample { host: host.to_owned(), class, times })
    }
}

fn between(from: Timestamp, to: Timestamp) -> i64 {
    to.as_millisecond().saturating_sub(from.as_millisecond())
}

/// Whole seconds, rounded up; none where a clock was set back.
fn seconds(ms: i64) -> Option<u64> {
    Some(u64::try_from(ms).ok()?.div_ceil(1000))
}

//! What a journal says of a run that was cut off or stopped: enough to lead both cores to where they were.
//!
//! Pure: reads records, owns no file and no connection. A cursor is deterministic, and so is the rollout: told the same
//! things in the same order they stand in the same place.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use gpufleet_protocol::facts::Facts;
use jiff::Timestamp;

use crate::{
    engine::ports::scheduler::Marker,
    engine::{
        host::{HostState, PendingReboot, Prediction, Resumed},
        verdict::{self, UnderPermit},
    },
    event::{DrainStep, NodeState, PlayStarted, TaskReport, Verb, What},
    index::PlayIndex,
    interpreter::{Copied, Cursor, End, Fed, Position, Step},
    journal::{Entry, Record, Replayed},
    rollout::{Input, SoFar},
};

/// A run so far.
#[derive(Debug, Default)]
pub struct RunHistory {
    plays: BTreeMap<PlayIndex, PlayHistory>,
    hosts: HashMap<String, HostHistory>,
    drained: bool,
    run: String,
    /// When nodes were power cycled.
    power_cycles: Vec<Timestamp>,
}

/// A play that got as far as its waves.
#[derive(Debug)]
pub(crate) struct PlayHistory {
    pub(crate) shape: PlayStarted,
    /// What earlier plays had left behind when it began; the first journals do not tell.
    pub(crate) so_far: Option<SoFar>,
    /// What the rollout was told, each with its place in the journal.
    pub(crate) inputs: Vec<(usize, Timestamp, Input)>,
    nodes: HashMap<String, NodeHistory>,
}

/// One node in one play.
#[derive(Clone, Debug, Default)]
struct NodeHistory {
    began: bool,
    one_reboot: bool,
    prediction: Option<Prediction>,
    moments: Vec<Moment>,
    /// A later process took up what it could not do, and told its cursor nothing since.
    taken_up: bool,
    /// Reports that people have seen.
    reported: usize,
    end: Option<(NodeState, Option<String>)>,
}

#[derive(Clone, Debug)]
enum Moment {
    Fed(Told),
    Granted,
    Released,
}

/// What a cursor was told.
#[derive(Clone, Debug)]
struct Told {
    /// Nothing where what was sealed is lost.
    fed: Option<Fed>,
    /// What it was told to: at a barrier the task behind it.
    to: String,
    /// The number of reports that people had seen by then.
    reported: usize,
    /// Its place in the journal.
    place: usize,
}

impl Told {
    /// What a barrier gave to a cursor that is before this task, where it gave more than the way on.
    fn at_barrier(&self, task: &str) -> Option<Fed> {
        let fed = self.fed.as_ref().filter(|fed| matches!(fed, Fed::Ended | Fed::Halted))?;
        (self.to.is_empty() || self.to == task).then(|| fed.clone())
    }
}

/// What is known of a node whatever the play.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostHistory {
    facts: Option<Arc<Facts>>,
    /// What was read since a reboot that is not seen through: it is still to be compared with what was there before.
    facts_since: Option<Arc<Facts>>,
    boot_id: Option<String>,
    reboot: Option<PendingReboot>,
    rebooted: bool,
    rebooted_drained: bool,
    rebooted_for: BTreeSet<String>,
    /// The drain that was begun and not seen to end.
    drain: Option<Marker>,
    rebooted_at: Option<Timestamp>,
    /// That of the reboot before the one that was issued last.
    rebooted_before: Option<Timestamp>,
    power_cycled: bool,
    /// Where in the journal it was found not to answer, and was not heard since.
    silent_at: Option<usize>,
    /// Where in the journal its last reboot was issued.
    issued_at: usize,
    /// The play that took it out of service and did not give it back.
    out: Option<PlayIndex>,
}

/// Hosts that are being read before a play.
#[derive(Default)]
struct Reading {
    now: BTreeSet<String>,
    lost: HashMap<String, (NodeState, Option<String>)>,
}

impl Reading {
    /// Whether it is the end of a host that was being read: it belongs to the play that follows.
    fn takes(&mut self, what: &What) -> bool {
        let What::NodeState { host, state, detail } = what else { return false };
        if *state == NodeState::Preflight {
            self.now.insert(host.clone());
        }
        let ends = state.is_final() && self.now.remove(host);
        if ends {
            self.lost.insert(host.clone(), (*state, detail.clone()));
        }
        ends
    }
}

impl RunHistory {
    /// Reads the records of a run, in order.
    pub fn of(records: &[Record]) -> Self {
        let mut past = Self::default();
        let mut current = PlayIndex::default();
        // Why apart: predictions come before the play's first event.
        let mut predicted: HashMap<String, Prediction> = HashMap::new();
        // The same for hosts that are lost while they are being read.
        let mut read = Reading::default();
        for (place, Record { at, what, .. }) in records.iter().enumerate() {
            let what = match what {
                Entry::Event(what) => what,
                Entry::Replay(Replayed::NodePredicted { host, play, class, one_reboot }) => {
                    let prediction = Prediction { class: *class, reset_and_reboot: *one_reboot, work: None };
                    match past.plays.get_mut(play) {
                        Some(begun) => begun.node(host).prediction = Some(prediction),
                        None => _ = predicted.insert(host.clone(), prediction),
                    }
                    continue;
                }
                Entry::Replay(replayed) => {
                    // Why: a process that goes on takes up earlier plays again before the last one.
                    if let Replayed::Rollout { play, .. } = replayed {
                        current = *play;
                    }
                    past.replayed(current, place, replayed);
                    continue;
                }
            };
            match what {
                What::RunStarted(started) => past.run.clone_from(&started.run_id),
                What::PlayStarted(shape) => {
                    current = shape.play;
                    let nodes = std::mem::take(&mut predicted)
                        .into_iter()
                        .map(|(host, prediction)| {
                            (host, NodeHistory { prediction: Some(prediction), ..NodeHistory::default() })
                        })
                        .collect();
                    let mut play =
                        PlayHistory { shape: shape.clone(), so_far: None, inputs: Vec::new(), nodes };
                    let Reading { lost, .. } = std::mem::take(&mut read);
                    for (host, end) in lost {
                        play.nodes.entry(host).or_default().end = Some(end);
                    }
                    past.plays.insert(current, play);
                }
                What::RunResumed { .. } => past.take_up(),
                what if read.takes(what) => {}
                what => past.note(current, place, *at, what),
            }
        }
        past
    }

    /// What a process that goes on takes back, it takes back for all later ones.
    fn take_up(&mut self) {
        let nodes = self.plays.values_mut().flat_map(|play| play.nodes.values_mut());
        for node in nodes.filter(|node| node.began && node.is_retried()) {
            node.take_up();
        }
    }

    fn replayed(&mut self, current: PlayIndex, place: usize, replayed: &Replayed) {
        match replayed {
            Replayed::PlayBeganWith { play, so_far } => {
                if let Some(play) = self.plays.get_mut(play) {
                    play.so_far = Some(*so_far);
                }
            }
            Replayed::Rollout { play, now, input } => {
                if let Some(play) = self.plays.get_mut(play) {
                    play.inputs.push((place, *now, input.clone()));
                }
            }
            Replayed::NodeBegan { host, one_reboot, .. } => {
                let Some(play) = self.plays.get_mut(&current) else { return };
                let node = play.node(host);
                node.began = true;
                node.one_reboot = *one_reboot;
                node.end = None;
            }
            Replayed::Fed { host, op_id, fed, .. } => self.fed(current, place, host, op_id, fed.as_deref()),
            // Read with the play that it belongs to, which may not have begun.
            Replayed::NodePredicted { .. } => {}
        }
    }

    /// A node's cursor was told something.
    fn fed(&mut self, current: PlayIndex, place: usize, host: &str, op_id: &str, fed: Option<&Fed>) {
        let history = self.hosts.entry(host.to_owned()).or_default();
        if fed == Some(&Fed::Rebooted) && history.reboot.is_some() {
            history.reboot = None;
            history.facts = history.facts_since.take();
        }
        let Some(play) = self.plays.get_mut(&current) else { return };
        let node = play.node(host);
        node.taken_up = false;
        let reported = node.reported;
        node.moments.push(Moment::Fed(Told { fed: fed.cloned(), to: op_id.to_owned(), reported, place }));
    }

    fn note(&mut self, current: PlayIndex, place: usize, at: Timestamp, what: &What) {
        let Some(name) = what.host() else { return };
        let host = self.hosts.entry(name.to_owned()).or_default();
        match what {
            What::Connected { boot_id, .. } => {
                host.silent_at = None;
                host.boot_id = boot_id.clone().or(host.boot_id.take());
            }
            What::NodeState { state: NodeState::Unreachable, .. } => host.silent_at = Some(place),
            What::FactsRead { facts, .. } => {
                let read = Some(Arc::from(facts.clone()));
                *(if host.reboot.is_some() { &mut host.facts_since } else { &mut host.facts }) = read;
            }
            What::RebootIssued { boot_id, deadline, why, .. } => {
                host.facts_since = None;
                host.issued_at = place;
                host.reboot =
                    Some(PendingReboot { boot_id: boot_id.clone(), deadline: *deadline, proven: false });
                host.rebooted_for.extend(why.iter().cloned());
                host.rebooted_before = host.rebooted_at.replace(at);
            }
            What::RebootRefused { why, .. } => {
                host.reboot = None;
                host.rebooted_for.retain(|reason| !why.contains(reason));
                host.rebooted_at = host.rebooted_before;
            }
            What::PowerCycled { deadline, .. } => {
                host.power_cycled = true;
                self.power_cycles.push(at);
                if let Some(reboot) = &mut host.reboot {
                    reboot.deadline = *deadline;
                }
            }
            What::Rebooted { boot_id, .. } => {
                if let Some(reboot) = &mut host.reboot {
                    reboot.proven = true;
                }
                (host.rebooted, host.rebooted_drained) = (true, true);
                host.boot_id = Some(boot_id.clone());
            }
            What::PermitGranted { .. } => host.out = Some(current),
            What::Drain { step: DrainStep::Begun { run, nonce, .. }, .. } => {
                self.drained = true;
                host.rebooted_drained = false;
                host.drain = Some(Marker { run: run.clone(), nonce: nonce.clone() });
            }
            What::Drain { step, .. } if !step.holds() => host.drain = None,
            What::Released { .. } => {
                host.rebooted_at = None;
                host.out = None;
            }
            _ => {}
        }
        let Some(play) = self.plays.get_mut(&current) else { return };
        let node = play.node(name);
        match what {
            What::PermitGranted { .. } => node.moments.push(Moment::Granted),
            What::Released { .. } => node.moments.push(Moment::Released),
            What::TaskFinished { .. } => node.reported += 1,
            What::NodeState { state, detail, .. } if state.is_final() => {
                node.end = Some((*state, detail.clone()));
            }
            _ => {}
        }
    }

    /// Whether this run ever asked a scheduler for a node: it may hold the scheduler's lock.
    pub(crate) const fn has_drained(&self) -> bool {
        self.drained
    }

    /// When nodes were power cycled, in order.
    pub(crate) fn power_cycles(&self) -> Vec<Timestamp> {
        self.power_cycles.clone()
    }

    /// Hosts that answered, and were not told to go away since. Not those that were silent already when the first of the
    /// reboots was issued that are not seen through: such silence says nothing of these.
    pub(crate) fn heard(&self) -> impl Iterator<Item = &str> {
        let awaited = |host: &&HostHistory| host.reboot.as_ref().is_some_and(|reboot| !reboot.proven);
        let first =
            self.hosts.values().filter(awaited).map(|host| host.issued_at).min().unwrap_or(usize::MAX);
        let heard = self.hosts.iter().filter(move |(_, host)| {
            host.boot_id.is_some() && !awaited(host) && host.silent_at.is_none_or(|at| at > first)
        });
        heard.map(|(name, _)| name.as_str())
    }

    /// What is known of a play, if it got as far as its waves.
    pub(crate) fn play(&mut self, index: PlayIndex) -> Option<PlayHistory> {
        self.plays.remove(&index)
    }

    /// Puts into a slot what is known of its node whatever the play.
    pub(crate) fn restore(&self, slot: &mut HostState) {
        let Some(host) = self.hosts.get(&slot.name) else { return };
        slot.facts.clone_from(&host.facts);
        slot.custody.rebooted = host.rebooted;
        slot.custody.rebooted_drained = host.rebooted_drained;
        slot.custody.drain.clone_from(&host.drain);
        slot.custody.adopted = host.drain.as_ref().is_some_and(|marker| marker.run != self.run);
        slot.custody.out_of_service |= slot.custody.adopted;
        slot.custody.rebooted_at = host.rebooted_at;
        slot.custody.rebooted_for.clone_from(&host.rebooted_for);
        slot.custody.power_cycled = host.power_cycled;
    }

    /// Whether a later play than this one has the node out of service.
    pub(crate) fn is_out_after(&self, play: PlayIndex, host: &str) -> bool {
        self.hosts.get(host).and_then(|host| host.out).is_some_and(|by| by > play)
    }

    pub(crate) fn host(&self, name: &str) -> HostHistory {
        self.hosts.get(name).cloned().unwrap_or_default()
    }
}

impl NodeHistory {
    /// Whether it ended without anything having been decided: a process that goes on takes it up again.
    const fn is_retried(&self) -> bool {
        matches!(self.end, Some((NodeState::Held | NodeState::Unreachable | NodeState::Skipped, _)))
    }

    /// Stands before what it could not do.
    fn take_up(&mut self) {
        if std::mem::replace(&mut self.taken_up, true) {
            return;
        }
        if let Some(last) = self.moments.iter().rposition(|moment| matches!(moment, Moment::Fed(..)))
            && let Some(Moment::Fed(Told {
                fed: Some(Fed::Held { .. } | Fed::Unreachable { .. }),
                reported,
                ..
            })) = self.moments.get(last)
        {
            self.reported = *reported;
            self.moments.remove(last);
        }
    }
}

impl PlayHistory {
    fn node(&mut self, host: &str) -> &mut NodeHistory {
        self.nodes.entry(host.to_owned()).or_default()
    }

    /// Whether its first wave was due.
    pub(crate) fn has_begun(&self) -> bool {
        self.inputs.iter().any(|(_, _, input)| *input == Input::Begin)
    }

    /// Those of the hosts that began, batch by batch; those in none of them last.
    pub(crate) fn batches<'a>(&self, slots: &'a [HostState]) -> Vec<Vec<&'a HostState>> {
        let mut place: HashMap<&str, usize> = HashMap::new();
        for (wave, number) in self.shape.waves.iter().zip(0..) {
            place.extend(wave.hosts.iter().map(|host| (host.as_str(), number)));
        }
        let mut batches: BTreeMap<usize, Vec<&'a HostState>> = BTreeMap::new();
        for slot in slots.iter().filter(|slot| self.began(&slot.name)) {
            batches
                .entry(place.get(slot.name.as_str()).copied().unwrap_or(usize::MAX))
                .or_default()
                .push(slot);
        }
        batches.into_values().collect()
    }

    /// Whether the node ended without anything having been decided.
    pub(crate) fn is_retried(&self, host: &str) -> bool {
        self.nodes.get(host).is_some_and(NodeHistory::is_retried)
    }

    /// How the node's part ended, if it did.
    pub(crate) fn end(&self, host: &str) -> Option<NodeState> {
        self.nodes.get(host)?.end.as_ref().map(|(state, _)| *state)
    }

    pub(crate) fn began(&self, host: &str) -> bool {
        self.nodes.get(host).is_some_and(|node| node.began)
    }

    pub(crate) fn one_reboot(&self, host: &str) -> bool {
        self.nodes.get(host).is_some_and(|node| node.one_reboot)
    }

    pub(crate) fn prediction(&self, host: &str) -> Option<Prediction> {
        self.nodes.get(host)?.prediction
    }

    /// Leads a fresh cursor to where it was. With `again`, a node that ended because nobody could decide, or because it
    /// did not answer, stands before what it could not do.
    pub(crate) fn replay(
        &self,
        mut cursor: Cursor,
        slot: &mut HostState,
        past: &HostHistory,
        again: bool,
    ) -> (Resumed, Option<End>) {
        let mut unproven = None;
        let mut latches: Vec<(Arc<str>, Option<Copied>)> = Vec::new();
        let mut reports: Vec<TaskReport> = Vec::new();
        let mut end = None;
        let node = self.nodes.get(&slot.name);
        let mut known = node.cloned().unwrap_or_default();
        if again {
            known.take_up();
        }
        let seen = known.reported;
        let mut moments = known.moments.into_iter().peekable();
        let (mut raised, mut raised_at, mut halted) = (None, None, None);
        let (mut place, mut astray) = (0, None);
        loop {
            if let Some(until) = cursor.raised() {
                (raised, raised_at) = (Some(until), Some(place));
            }
            while let Some(moment) = moments.next_if(|moment| !matches!(moment, Moment::Fed(..))) {
                slot.custody.out_of_service = matches!(moment, Moment::Granted);
                if !slot.custody.out_of_service {
                    unproven = None;
                }
            }
            // Why: what follows the last answer is the run's own business, not the replay's.
            if moments.peek().is_none()
                && end.is_none()
                && node.is_none_or(|node| node.end.is_none() || again)
            {
                break;
            }
            let reported = match cursor.next() {
                Step::Report(reports) => reports,
                Step::Barrier { task, .. } => {
                    // Why: what it raised by then the others heard when the barrier opened.
                    raised = None;
                    let word = match moments.peek() {
                        Some(Moment::Fed(told)) => told.at_barrier(&task).map(|word| (word, told.place)),
                        _ => None,
                    };
                    if word.is_some() {
                        moments.next();
                    }
                    if let Some((Fed::Halted, place)) = word {
                        halted = Some(place);
                    }
                    word.map(|(word, _)| word).map(|word| cursor.feed(word)).unwrap_or_default()
                }
                Step::SectionEnd { .. } => Vec::new(),
                Step::End(reached) => {
                    end = Some(reached);
                    break;
                }
                step @ (Step::Run(_) | Step::Latch { .. } | Step::Ask { .. }) => {
                    let Some(Moment::Fed(Told { fed: Some(fed), to, place: at, .. })) = moments.next() else {
                        break;
                    };
                    if let Step::Run(action) = &step
                        && action.id.to_string() != to
                    {
                        astray = Some(action.task.clone());
                        break;
                    }
                    place = at;
                    if let Step::Latch { key } = &step {
                        latches.push((Arc::clone(key), None));
                    }
                    if let Fed::Outcome(outcome) = &fed
                        && slot.custody.out_of_service
                        && let UnderPermit::Damaged(why) = verdict::under_permit(outcome)
                    {
                        unproven = Some(why);
                    }
                    cursor.feed(fed)
                }
            };
            if let Some(result) = cursor.latch_result()
                && let Some((_, value)) = latches.last_mut()
            {
                *value = Some(result);
            }
            reports.extend(reported);
        }
        for report in &reports {
            slot.tally.counts.count(report);
            let (state, message) = verdict::of_report(Verb::Run, report);
            slot.worsen(state, message);
        }
        let already = seen.saturating_sub(reports.len());
        let unreported = reports.split_off(seen.min(reports.len()));
        let resumed = Resumed {
            cursor,
            unreported,
            already,
            reboot: past.reboot.clone(),
            boot_id: past.boot_id.clone(),
            unproven,
            latches,
            raised,
            astray,
            raised_at,
            halted,
        };
        (resumed, end)
    }

    /// Leads the cursors of one batch through what is known of their nodes, for what they tell each other on the way.
    ///
    /// Why from barrier to barrier: what one of them told hangs on what the others had told by then.
    pub(crate) fn rehearse(&self, batch: Vec<(Cursor, &str)>) {
        let known = |(cursor, host): (Cursor, &str)| {
            let moments = self.nodes.get(host).map(|node| node.moments.clone()).unwrap_or_default();
            let told = moments.into_iter().filter_map(|moment| match moment {
                Moment::Fed(told) => Some(told),
                Moment::Granted | Moment::Released => None,
            });
            Rehearsal { cursor, told: told.collect(), at: Position::default() }
        };
        let mut batch: Vec<Rehearsal> = batch.into_iter().map(known).collect();
        while let Some(first) = batch.iter().map(|one| one.at.clone()).min() {
            batch.retain_mut(|one| one.at > first || one.reaches_a_barrier());
        }
    }

    /// What the journal says of the node's end, over what its tasks said.
    pub(crate) fn settle(&self, slot: &mut HostState) {
        if let Some((state, detail)) = self.nodes.get(&slot.name).and_then(|node| node.end.as_ref()) {
            slot.verdict = *state;
            slot.message.clone_from(detail);
        }
    }
}

/// A cursor and what it is still to be told.
struct Rehearsal {
    cursor: Cursor,
    /// The barrier that it waits at.
    at: Position,
    told: VecDeque<Told>,
}

impl Rehearsal {
    /// Goes on to the next barrier; not where it ends, or what comes before that is not known.
    ///
    /// Why also where nothing more is known: another host may have got further, and looked at what this one did by itself.
    fn reaches_a_barrier(&mut self) -> bool {
        loop {
            match self.cursor.next() {
                Step::End(_) => return false,
                Step::Run(_) | Step::Latch { .. } | Step::Ask { .. } => {
                    let Some(Told { fed: Some(fed), .. }) = self.told.pop_front() else { return false };
                    self.cursor.feed(fed);
                }
                Step::Barrier { task, at } => {
                    match self.told.front().and_then(|told| told.at_barrier(&task)) {
                        Some(word) => {
                            self.told.pop_front();
                            self.cursor.feed(word);
                        }
                        None => {
                            self.at = at;
                            return true;
                        }
                    }
                }
                Step::Report(_) | Step::SectionEnd { .. } => {}
            }
        }
    }
}

//! What hosts of a linear play tell each other: their variables as they were at the last barrier, and who still takes part.
//!
//! Owns what each host had set whenever it came to a task, what tasks of others set for it, and who was lost. Must not know
//! connections. Invariant: all hosts that pass a barrier see the same, and a run that is resumed sees what it saw before, once
//! every host's past was told. That is why what is given has a [`Moment`]: barriers count the same on all hosts, clocks do not.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cursor::{HostVars, Position};
use crate::template::{Dict, Value};

/// Variables of the hosts of one play.
#[derive(Default)]
pub struct HostSnapshots {
    /// What was known of every host as the play began; none where nobody asks for it.
    base: Option<Arc<Dict>>,
    /// The hosts of the play.
    hosts: Vec<Arc<str>>,
    batches: Vec<Vec<Arc<str>>>,
    /// From the command line; they win over all that hosts have.
    extra: Arc<Dict>,
    state: Mutex<State>,
    has_gifts: AtomicBool,
}

/// Where a host came, and what it told there: not where nobody could ask for it.
type Recorded = BTreeMap<Position, Option<Snapshot>>;

/// What a host had when it came to a task.
struct Snapshot {
    vars: HostVars,
    /// What of others' gifts is among it.
    taken: Taken,
}

/// What tasks of other hosts set for a host (`delegate_facts`).
#[derive(Clone, Debug, Default)]
pub struct DelegatedFacts {
    pub facts: Dict,
    pub set: Dict,
}

impl DelegatedFacts {
    fn extend(&mut self, later: &Self) {
        self.facts.extend(&later.facts);
        self.set.extend(&later.set);
    }
}

/// When something was given: in which batch, behind which barrier, and by which of the play's hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment {
    batch: usize,
    at: Position,
    host: usize,
}

/// What a host took over of what others gave it; from then on it is its own, and a task of its own may set it again.
pub(super) type Taken = BTreeSet<Moment>;

/// What was worked out last: it holds the variables of all hosts, so only one is kept.
struct LastAnswer {
    at: (usize, Position),
    dict: Dict,
}

#[derive(Default)]
struct State {
    told: HashMap<Arc<str>, Recorded>,
    lost: HashSet<Arc<str>>,
    given: HashMap<Arc<str>, BTreeMap<Moment, DelegatedFacts>>,
    taken: HashMap<Arc<str>, Taken>,
    seen: Option<LastAnswer>,
}

impl HostSnapshots {
    /// `base` is `hostvars` as the play begins; the hosts are in the order in which people see them.
    pub fn new(
        base: Option<Arc<Dict>>,
        hosts: Vec<Arc<str>>,
        batches: Vec<Vec<Arc<str>>>,
        extra: Arc<Dict>,
    ) -> Self {
        Self { base, hosts, batches, extra, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batch_of(&self, host: &str) -> usize {
        let of = |batch: &Vec<Arc<str>>| batch.iter().any(|other| **other == *host);
        self.batches.iter().position(of).unwrap_or(usize::MAX)
    }

    /// A host failed, or cannot be reached: it does not take part any more.
    pub fn lose(&self, host: &str) {
        let mut state = self.state();
        state.seen = None;
        state.lost.insert(Arc::from(host));
    }

    /// What hosts were given by the tasks of others and have not taken over themselves.
    pub fn gifts(&self) -> HashMap<Arc<str>, DelegatedFacts> {
        let state = self.state();
        let left = state.given.iter().filter_map(|(host, given)| {
            let taken = state.taken.get(host);
            let open = given.iter().filter(|(moment, _)| taken.is_none_or(|taken| !taken.contains(moment)));
            Some((Arc::clone(host), merged(open)?))
        });
        left.collect()
    }

    /// A task of a host that has this barrier behind it sets variables of another one.
    pub(super) fn give(&self, giver: &str, at: &Position, host: &str, given: &DelegatedFacts) {
        let place = self.hosts.iter().position(|name| **name == *giver).unwrap_or(usize::MAX);
        let moment = Moment { batch: self.batch_of(giver), at: at.clone(), host: place };
        let mut state = self.state();
        state.seen = None;
        state.given.entry(Arc::from(host)).or_default().entry(moment).or_default().extend(given);
        self.has_gifts.store(true, Ordering::Release);
    }

    /// What a host that has just passed this barrier takes over: all that was given to it before that one.
    pub(super) fn take(&self, host: &Arc<str>, at: &Position, taken: &mut Taken) -> Option<DelegatedFacts> {
        if !self.has_gifts.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state();
        let given = state.given.get(host)?;
        let now = (self.batch_of(host), at.clone());
        let all = merged(open(given, taken, &now))?;
        let new: Vec<Moment> = open(given, taken, &now).map(|(moment, _)| moment.clone()).collect();
        taken.extend(new.iter().cloned());
        state.taken.entry(Arc::clone(host)).or_default().extend(new);
        Some(all)
    }

    /// A host has come to a task; with what it has, where others may ask for it from here on.
    pub(super) fn tell(&self, host: &Arc<str>, at: &Position, had: Option<(&HostVars, &Taken)>) {
        let mut state = self.state();
        let state = &mut *state;
        let told = state.told.entry(Arc::clone(host)).or_default();
        // Why: in a resumed run another host may have looked at the others before this one came to it, or had passed it by.
        let is_known = |seen: &Position| told.range(seen..at).next().is_some();
        state.seen.take_if(|seen| seen.at.1 <= *at && !is_known(&seen.at.1));
        told.insert(
            at.clone(),
            had.map(|(vars, taken)| Snapshot { vars: vars.clone(), taken: taken.clone() }),
        );
    }

    /// A host has come to the end of the play, with what it has: later batches may ask for it.
    pub(super) fn ended(&self, host: &Arc<str>, vars: &HostVars, taken: &Taken) {
        if self.base.is_some() && self.batches.len() > 1 {
            self.tell(host, &Position::end(), Some((vars, taken)));
        }
    }

    /// `hostvars` and the lists of hosts for a task that nobody of a batch is before any more.
    pub(super) fn at(&self, place: &Position, host: &str) -> Dict {
        let batch = self.batch_of(host);
        let at = (batch, place.clone());
        let mut state = self.state();
        if let Some(seen) = state.seen.as_ref().filter(|seen| seen.at == at) {
            return seen.dict.clone();
        }
        let mut dict = Dict::default();
        let mates: &[Arc<str>] = self.batches.get(batch).map_or(&self.hosts, Vec::as_slice);
        // Why the task: a host that was lost behind it was there when the others came to it.
        let came = |host: &Arc<str>| state.told.get(host).is_some_and(|told| told.contains_key(place));
        let there = |host: &&Arc<str>| !state.lost.contains(*host) || mates.contains(host) && came(host);
        let list = |hosts: &[Arc<str>]| Value::list(hosts.iter().filter(there).map(Value::str).collect());
        dict.insert("ansible_play_hosts", list(&self.hosts));
        dict.insert("ansible_play_batch", list(mates));
        dict.insert("play_hosts", list(mates));
        if let Some(base) = &self.base {
            dict.insert("hostvars", Value::Map(Arc::new(self.everybody(base, &at, &state))));
        }
        state.seen = Some(LastAnswer { at, dict: dict.clone() });
        dict
    }

    fn everybody(&self, base: &Dict, at: &(usize, Position), state: &State) -> Dict {
        let mut all = base.clone();
        let nothing = Taken::default();
        let earlier: HashSet<&Arc<str>> = self.batches.iter().take(at.0).flatten().collect();
        for host in state.told.keys().chain(state.given.keys()) {
            let Some(Value::Map(known)) = base.get(host) else { continue };
            let mut own = (**known).clone();
            // Why: a batch that went before has all of the play behind it.
            let end = Position::end();
            let until = if earlier.contains(host) { &end } else { &at.1 };
            let had = state.told.get(host).and_then(|told| had_at(told, until));
            if let Some(Snapshot { vars, .. }) = had {
                own.extend(&vars.facts);
                own.extend(&vars.included);
                own.extend(&vars.set);
            }
            let taken = had.map_or(&nothing, |had| &had.taken);
            if let Some(given) = state.given.get(host).and_then(|given| merged(open(given, taken, at))) {
                own.extend(&given.facts);
                own.extend(&given.set);
            }
            own.extend(&self.extra);
            all.insert(Arc::clone(host), Value::Map(Arc::new(own)));
        }
        all
    }
}

/// What a host had when others came to this place: where it is itself then, or what it told last before that.
fn had_at<'a>(told: &'a Recorded, place: &Position) -> Option<&'a Snapshot> {
    let stands = told.range(place..).next().map(|(stands, _)| stands);
    let until = stands.map_or(Bound::Unbounded, Bound::Included);
    told.range((Bound::Unbounded, until)).rev().find_map(|(_, had)| had.as_ref())
}

/// What is not taken of what was given before a moment: batch, and the barrier that was passed.
fn open<'a>(
    given: &'a BTreeMap<Moment, DelegatedFacts>,
    taken: &'a Taken,
    (batch, at): &(usize, Position),
) -> impl Iterator<Item = (&'a Moment, &'a DelegatedFacts)> {
    let before = given.range(..Moment { batch: *batch, at: at.clone(), host: 0 });
    before.filter(|(moment, _)| !taken.contains(moment))
}

/// All of it, later gifts over earlier ones; none where there is none.
fn merged<'a>(given: impl Iterator<Item = (&'a Moment, &'a DelegatedFacts)>) -> Option<DelegatedFacts> {
    let mut all: Option<DelegatedFacts> = None;
    for (_, one) in given {
        all.get_or_insert_default().extend(one);
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn place(path: &[u32]) -> Position {
        Position::from(path)
    }

    fn seen(snapshots: &HostSnapshots, at: u32, host: &str) -> Json {
        Json::Object(snapshots.at(&place(&[at]), host).to_json())
    }

    fn dict(json: Json) -> Dict {
        Dict::trusted(json.as_object().unwrap())
    }

    #[test]
    fn who_was_lost_is_left_out_from_the_next_task_on() {
        let hosts: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).to_vec();
        let batches = vec![vec![Arc::clone(&hosts[0]), Arc::clone(&hosts[1])], vec![Arc::clone(&hosts[2])]];
        let snapshots = HostSnapshots::new(None, hosts.clone(), batches, Arc::default());
        let (vars, taken) = (HostVars::default(), Taken::default());
        for host in &hosts[..2] {
            snapshots.tell(host, &place(&[0]), Some((&vars, &taken)));
        }
        snapshots.lose("b");
        assert_eq!(
            seen(&snapshots, 0, "a"),
            json!({"ansible_play_hosts": ["a", "b", "c"], "ansible_play_batch": ["a", "b"], "play_hosts": ["a", "b"]}),
            "it had come to this one"
        );
        assert_eq!(
            seen(&snapshots, 1, "a"),
            json!({"ansible_play_hosts": ["a", "c"], "ansible_play_batch": ["a"], "play_hosts": ["a"]})
        );
        assert_eq!(seen(&snapshots, 0, "c")["ansible_play_hosts"], json!(["a", "c"]), "of another batch");
    }

    #[test]
    fn what_is_given_is_seen_behind_the_next_barrier_and_extra_variables_win() {
        let base = dict(json!({"a": {"x": 1}, "b": {"x": 2, "y": 0}}));
        let hosts: Vec<Arc<str>> = ["a", "b"].map(Arc::from).to_vec();
        let extra = Arc::new(dict(json!({"y": "given"})));
        let snapshots = HostSnapshots::new(Some(Arc::new(base)), hosts.clone(), Vec::new(), extra);
        let mut taken = Taken::default();
        let b = &hosts[1];
        assert!(snapshots.take(b, &place(&[9]), &mut taken).is_none());
        snapshots.give(
            "a",
            &place(&[1]),
            "b",
            &DelegatedFacts { set: dict(json!({"x": 3, "y": 4})), facts: dict(json!({"f": 5})) },
        );
        assert_eq!(seen(&snapshots, 0, "a")["hostvars"]["b"], json!({"x": 2, "y": "given"}), "not yet");
        assert!(snapshots.take(b, &place(&[1]), &mut taken).is_none());
        let hostvars = |at| Json::Object(snapshots.at(&place(&[at]), "a").to_json())["hostvars"]["b"].clone();
        assert_eq!(hostvars(2), json!({"x": 3, "y": "given", "f": 5}));
        assert_eq!(snapshots.gifts().len(), 1);
        assert_eq!(snapshots.take(b, &place(&[2]), &mut taken).unwrap().set.get("x"), Some(&Value::Int(3)));
        assert!(snapshots.take(b, &place(&[3]), &mut taken).is_none(), "once");
        assert!(snapshots.gifts().is_empty(), "it has it");
        let own = HostVars { set: Arc::new(dict(json!({"x": "own"}))), ..HostVars::default() };
        snapshots.tell(b, &place(&[3]), Some((&own, &taken)));
        assert_eq!(hostvars(3), json!({"x": "own", "y": "given"}), "what it set itself later stands");
    }

    #[test]
    fn what_was_worked_out_for_one_moment_is_no_answer_for_another() {
        let base = dict(json!({"a": {}, "b": {}}));
        let hosts: Vec<Arc<str>> = ["a", "b"].map(Arc::from).to_vec();
        let snapshots = HostSnapshots::new(Some(Arc::new(base)), hosts.clone(), Vec::new(), Arc::default());
        let of_b = |at| Json::Object(snapshots.at(&place(&[at]), "a").to_json())["hostvars"]["b"].clone();
        snapshots.give(
            "a",
            &place(&[1]),
            "b",
            &DelegatedFacts { set: dict(json!({"x": 1})), ..DelegatedFacts::default() },
        );
        assert_eq!((of_b(1), of_b(2), of_b(1)), (json!({}), json!({"x": 1}), json!({})));
        let own = HostVars { set: Arc::new(dict(json!({"y": 2}))), ..HostVars::default() };
        snapshots.tell(&hosts[1], &place(&[1]), Some((&own, &Taken::default())));
        assert_eq!((of_b(1), of_b(2)), (json!({"y": 2}), json!({"x": 1, "y": 2})), "a host that came later");
        snapshots.lose("b");
        assert_eq!(seen(&snapshots, 2, "a")["play_hosts"], json!(["a"]));
    }
}

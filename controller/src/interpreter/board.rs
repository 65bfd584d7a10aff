//! What hosts of a linear play tell each other: their variables as they were at the last barrier, and who still takes part.
//!
//! Owns what each host had set whenever it came to a task, and who was lost. Must not know connections. Invariant: all hosts
//! that pass a barrier see the same, and a run that is resumed sees what it saw before, once every host's past was told.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cursor::HostVars;
use crate::template::{Dict, Value};

/// Variables of the hosts of one play.
#[derive(Default)]
pub struct Board {
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

/// What one host told: by task, and the task that it came to last.
#[derive(Default)]
struct Told {
    last: Arc<str>,
    at: BTreeMap<Arc<str>, HostVars>,
}

/// What tasks of other hosts set for a host (`delegate_facts`).
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub facts: Dict,
    pub set: Dict,
}

/// What was worked out last: it holds the variables of all hosts, so only one is kept.
struct Seen {
    task: Arc<str>,
    batch: usize,
    dict: Dict,
}

#[derive(Default)]
struct State {
    told: HashMap<Arc<str>, Told>,
    lost: HashSet<Arc<str>>,
    given: HashMap<Arc<str>, Given>,
    seen: Option<Seen>,
    settled: bool,
}

impl Board {
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

    /// From here on all that earlier processes of the run told is known.
    pub fn settle(&self) {
        self.state().settled = true;
    }

    /// A host failed, or cannot be reached: it does not take part any more.
    pub fn lose(&self, host: &str) {
        let mut state = self.state();
        state.seen = None;
        state.lost.insert(Arc::from(host));
    }

    /// What hosts were given by the tasks of others.
    pub fn gifts(&self) -> HashMap<Arc<str>, Given> {
        self.state().given.clone()
    }

    /// A task of another host sets variables of this one.
    pub(super) fn give(&self, host: &str, given: &Given) {
        let mut state = self.state();
        state.seen = None;
        let all = state.given.entry(Arc::from(host)).or_default();
        all.facts.extend(&given.facts);
        all.set.extend(&given.set);
        self.has_gifts.store(true, Ordering::Release);
    }

    /// What others set for this host so far.
    pub(super) fn given(&self, host: &str) -> Option<Given> {
        self.has_gifts.load(Ordering::Acquire).then(|| self.state().given.get(host).cloned()).flatten()
    }

    /// A host has come to a task.
    pub(super) fn tell(&self, host: &Arc<str>, task: &Arc<str>, vars: &HostVars) {
        let mut state = self.state();
        let told = state.told.entry(Arc::clone(host)).or_default();
        told.last = Arc::clone(task);
        told.at.insert(Arc::clone(task), vars.clone());
    }

    /// `hostvars` and the lists of hosts for a task that all of a batch have come to.
    pub(super) fn at(&self, task: &Arc<str>, host: &str) -> Dict {
        let of = |batch: &Vec<Arc<str>>| batch.iter().any(|other| **other == *host);
        let batch = self.batches.iter().position(of).unwrap_or(usize::MAX);
        let mut state = self.state();
        if let Some(seen) = state.seen.as_ref().filter(|seen| seen.task == *task && seen.batch == batch) {
            return seen.dict.clone();
        }
        let mut dict = Dict::default();
        let mates: &[Arc<str>] = self.batches.get(batch).map_or(&self.hosts, Vec::as_slice);
        // Why the task: a host that was lost behind it was there when the others came to it.
        let came = |host: &Arc<str>| state.told.get(host).is_some_and(|told| told.at.contains_key(task));
        let there = |host: &&Arc<str>| !state.lost.contains(*host) || mates.contains(host) && came(host);
        let list = |hosts: &[Arc<str>]| Value::list(hosts.iter().filter(there).map(Value::str).collect());
        dict.insert("ansible_play_hosts", list(&self.hosts));
        dict.insert("ansible_play_batch", list(mates));
        dict.insert("play_hosts", list(mates));
        if let Some(base) = &self.base {
            dict.insert("hostvars", Value::Map(Arc::new(self.everybody(base, task, &state))));
        }
        if state.settled {
            state.seen = Some(Seen { task: Arc::clone(task), batch, dict: dict.clone() });
        }
        dict
    }

    fn everybody(&self, base: &Dict, task: &Arc<str>, state: &State) -> Dict {
        let mut all = base.clone();
        for host in state.told.keys().chain(state.given.keys()) {
            let Some(Value::Map(known)) = base.get(host) else { continue };
            let mut own = (**known).clone();
            if let Some(told) = state.told.get(host)
                // Why the last: a host that does not come to this task has what it had when it was last heard of.
                && let Some(vars) = told.at.get(task).or_else(|| told.at.get(&told.last))
            {
                own.extend(&vars.facts);
                own.extend(&vars.included);
                own.extend(&vars.set);
            }
            if let Some(given) = state.given.get(host) {
                own.extend(&given.facts);
                own.extend(&given.set);
            }
            own.extend(&self.extra);
            all.insert(Arc::clone(host), Value::Map(Arc::new(own)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn seen(board: &Board, task: &str, host: &str) -> Json {
        Json::Object(board.at(&Arc::from(task), host).to_json())
    }

    fn dict(json: Json) -> Dict {
        Dict::trusted(json.as_object().unwrap())
    }

    #[test]
    fn who_was_lost_is_left_out_from_the_next_task_on() {
        let hosts: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).to_vec();
        let batches = vec![vec![Arc::clone(&hosts[0]), Arc::clone(&hosts[1])], vec![Arc::clone(&hosts[2])]];
        let board = Board::new(None, hosts.clone(), batches, Arc::default());
        let first = Arc::from("tasks.0");
        for host in &hosts[..2] {
            board.tell(host, &first, &HostVars::default());
        }
        board.lose("b");
        board.settle();
        assert_eq!(
            seen(&board, "tasks.0", "a"),
            json!({"ansible_play_hosts": ["a", "b", "c"], "ansible_play_batch": ["a", "b"], "play_hosts": ["a", "b"]}),
            "it had come to this one"
        );
        assert_eq!(
            seen(&board, "tasks.1", "a"),
            json!({"ansible_play_hosts": ["a", "c"], "ansible_play_batch": ["a"], "play_hosts": ["a"]})
        );
        assert_eq!(seen(&board, "tasks.0", "c")["ansible_play_hosts"], json!(["a", "c"]), "of another batch");
    }

    #[test]
    fn what_is_given_is_seen_and_extra_variables_win() {
        let base = dict(json!({"a": {"x": 1}, "b": {"x": 2, "y": 0}}));
        let hosts: Vec<Arc<str>> = ["a"].map(Arc::from).to_vec();
        let extra = Arc::new(dict(json!({"y": "given"})));
        let board = Board::new(Some(Arc::new(base)), hosts, Vec::new(), extra);
        assert!(board.given("b").is_none());
        board.give("b", &Given { set: dict(json!({"x": 3, "y": 4})), facts: dict(json!({"f": 5})) });
        assert_eq!(seen(&board, "tasks.0", "a")["hostvars"]["b"], json!({"x": 3, "y": "given", "f": 5}));
        assert_eq!(board.given("b").unwrap().set.get("x"), Some(&Value::Int(3)));
        assert_eq!(board.gifts().len(), 1);
    }
}

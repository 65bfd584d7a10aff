//! What hosts of a linear play tell each other: their variables as they were at the last barrier.
//!
//! Owns what each host had set whenever it came to a task. Must not know connections. Invariant: all hosts that pass a barrier
//! see the same, and a run that is resumed sees what it saw before, once every host's past was told.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::cursor::HostVars;
use crate::template::{Dict, Value};

/// Variables of the hosts of one play.
pub struct Board {
    /// What was known of every host as the play began.
    base: Arc<Dict>,
    state: Mutex<State>,
}

/// What one host told: by task, and the task that it came to last.
#[derive(Default)]
struct Told {
    last: Arc<str>,
    at: BTreeMap<Arc<str>, HostVars>,
}

#[derive(Default)]
struct State {
    told: HashMap<Arc<str>, Told>,
    /// What hosts see at the task that was asked for last: it holds the variables of all hosts, so only one is kept.
    seen: Option<(Arc<str>, Value)>,
    settled: bool,
}

impl Board {
    /// `base` is `hostvars` as the play begins.
    pub fn new(base: Arc<Dict>) -> Self {
        Self { base, state: Mutex::default() }
    }

    /// From here on all that earlier processes of the run told is known.
    pub fn settle(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).settled = true;
    }

    /// A host has come to a task.
    pub(super) fn tell(&self, host: &Arc<str>, task: &Arc<str>, vars: &HostVars) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let told = state.told.entry(Arc::clone(host)).or_default();
        told.last = Arc::clone(task);
        told.at.insert(Arc::clone(task), vars.clone());
    }

    /// `hostvars` for a task that all have come to.
    pub(super) fn at(&self, task: &Arc<str>) -> Value {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, seen)) = state.seen.as_ref().filter(|(of, _)| of == task) {
            return seen.clone();
        }
        let mut all = (*self.base).clone();
        for (host, told) in &state.told {
            // Why the last: a host that does not come to this task has what it had when it was last heard of.
            let Some(vars) = told.at.get(task).or_else(|| told.at.get(&told.last)) else { continue };
            let Some(Value::Map(known)) = all.get(host) else { continue };
            let mut own = (**known).clone();
            own.extend(&vars.facts);
            own.extend(&vars.included);
            own.extend(&vars.set);
            all.insert(Arc::clone(host), Value::Map(Arc::new(own)));
        }
        let seen = Value::Map(Arc::new(all));
        if state.settled {
            state.seen = Some((Arc::clone(task), seen.clone()));
        }
        seen
    }
}

//! What templates know of the other hosts of a play: `hostvars`, and who takes part.
//!
//! Pure. Everything is as it was when the play began, so that a resumed run sees the same.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::host::HostState,
    interpreter::fact_vars,
    template::{Dict, Value},
};

/// The variables for each batch; those of hosts in none of them are the first.
pub(crate) struct Peers {
    all: Arc<Dict>,
    of_batches: Vec<Arc<Dict>>,
    batch: HashMap<String, usize>,
}

impl Peers {
    pub(crate) fn get(&self, host: &str) -> Arc<Dict> {
        let batch = self.batch.get(host).and_then(|batch| self.of_batches.get(*batch));
        Arc::clone(batch.unwrap_or(&self.all))
    }
}

/// Who takes part in a play, and what is known of everybody.
///
/// `lost` are hosts that earlier plays lost.
pub(crate) fn of(
    names: &[Arc<str>],
    waves: &[Vec<Arc<str>>],
    lost: &[String],
    hostvars: Option<Value>,
) -> Peers {
    let all = Value::list(names.iter().map(Value::str).collect());
    let there = |name: &&Arc<str>| !lost.iter().any(|gone| **gone == ***name);
    let list = |names: &[Arc<str>]| Value::list(names.iter().filter(there).map(Value::str).collect());
    let everybody = list(names);
    let with = |batch: Value| {
        let mut dict = Dict::default();
        dict.insert("ansible_play_hosts", everybody.clone());
        dict.insert("ansible_play_hosts_all", all.clone());
        dict.insert("play_hosts", batch.clone());
        dict.insert("ansible_play_batch", batch);
        if let Some(hostvars) = &hostvars {
            dict.insert("hostvars", hostvars.clone());
        }
        Arc::new(dict)
    };
    Peers {
        all: with(everybody.clone()),
        of_batches: waves.iter().map(|wave| with(list(wave))).collect(),
        batch: waves
            .iter()
            .zip(0..)
            .flat_map(|(wave, batch)| wave.iter().map(move |host| (host.to_string(), batch)))
            .collect(),
    }
}

/// `hostvars`: what the inventory says, what was read of the hosts, and what their tasks set in earlier plays.
///
/// `same` is what the play tells all of them.
pub(crate) fn hostvars<'a>(
    known: &Value,
    same: &Dict,
    host_states: impl Iterator<Item = &'a HostState>,
    facts: bool,
) -> Value {
    let Value::Map(known) = known else { return known.clone() };
    let mut all = (**known).clone();
    for (host, vars) in known.iter().chain(known.unlisted()) {
        let mut vars = vars.as_map().map(|vars| (**vars).clone()).unwrap_or_default();
        vars.extend(same);
        all.insert(Arc::clone(host), Value::Map(Arc::new(vars)));
    }
    for host_state in host_states {
        let Some(Value::Map(vars)) = all.get(&host_state.name) else { continue };
        let mut vars = (**vars).clone();
        if let Some(facts) = host_state.facts.as_ref().filter(|_| facts) {
            vars.extend(&fact_vars(facts));
        }
        vars.extend(&host_state.vars.facts);
        vars.extend(&host_state.vars.included);
        vars.extend(&host_state.vars.set);
        all.insert(host_state.name.as_str(), Value::Map(Arc::new(vars)));
    }
    Value::Map(Arc::new(all))
}

//! From one play to the next: variables that tasks set for other hosts, and whether there is a next play.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::{host::HostState, run::engine::Engine},
    event::NodeState,
    index::PlayIndex,
    interpreter::DelegatedFacts,
    template::Value,
};

impl Engine {
    /// Why the run ends before this play, if it does. `over`: the play before it lost all of its hosts.
    ///
    /// Source: `PlaybookExecutor.run` of ansible-core 2.19.
    pub(crate) fn ends_before(
        &self,
        play: PlayIndex,
        over: bool,
        host_states: &HashMap<String, HostState>,
    ) -> Option<String> {
        // Why not in an audit: it changes nothing, and should report everything.
        let play = play.place();
        let before = play.checked_sub(1).filter(|_| self.options.verb.info().ends_early)?;
        let (before, now) = (self.program.plays.get(before)?, self.program.plays.get(play)?);
        if over {
            return Some(format!(
                "no host is left of the play `{}`: nothing that follows is done",
                before.name
            ));
        }
        let failed =
            |host_state: &HostState| matches!(host_state.verdict, NodeState::Failed | NodeState::Unreachable);
        (now.playbook != before.playbook && host_states.values().any(failed))
            .then(|| "hosts failed: the playbooks that follow are left out".to_owned())
    }

    /// Gives hosts what the tasks of others set for them.
    pub(crate) fn hand_out(
        &self,
        given: &HashMap<Arc<str>, DelegatedFacts>,
        host_states: &mut HashMap<String, HostState>,
    ) {
        for (host, given) in given {
            if let Some(host_state) = host_states.get_mut(&**host) {
                Arc::make_mut(&mut host_state.vars.facts).extend(&given.facts);
                Arc::make_mut(&mut host_state.vars.set).extend(&given.set);
            }
        }
    }

    /// Puts hosts in the order of the inventory.
    pub(crate) fn as_in_inventory(&self, names: &mut [String]) {
        let groups = self
            .plays
            .contexts_of(PlayIndex::default())
            .values()
            .find_map(|context| context.magic.get("groups"));
        let all =
            groups.and_then(Value::as_map).and_then(|groups| groups.get("all")).and_then(Value::as_list);
        let places: HashMap<&str, usize> =
            all.unwrap_or_default().iter().filter_map(Value::as_str).zip(0..).collect();
        names.sort_by_key(|name| places.get(name.as_str()).copied().unwrap_or(usize::MAX));
    }
}

//! From one play to the next: what hosts were given, and whether there is a next one.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::{host::Slot, run::engine::Engine},
    event::NodeState,
    interpreter::Given,
    template::Value,
};

impl Engine {
    /// Why nothing is done from this play on, if so. `over` tells that the play before it lost all of its hosts.
    ///
    /// Source: `PlaybookExecutor.run` of ansible-core 2.19.
    pub(crate) fn ends_before(
        &self,
        play: usize,
        over: bool,
        slots: &HashMap<String, Slot>,
    ) -> Option<String> {
        let before = play.checked_sub(1).filter(|_| self.options.verb.info().ends_early)?;
        let (before, now) = (self.program.plays.get(before)?, self.program.plays.get(play)?);
        if over {
            return Some(format!(
                "no host is left of the play `{}`: nothing that follows is done",
                before.name
            ));
        }
        let failed = |slot: &Slot| matches!(slot.verdict, NodeState::Failed | NodeState::Unreachable);
        (now.playbook != before.playbook && slots.values().any(failed))
            .then(|| "hosts failed: the playbooks that follow are left out".to_owned())
    }

    /// Gives hosts what the tasks of others set for them.
    pub(crate) fn hand_out(&self, given: &HashMap<Arc<str>, Given>, slots: &mut HashMap<String, Slot>) {
        for (host, given) in given {
            if let Some(slot) = slots.get_mut(&**host) {
                Arc::make_mut(&mut slot.vars.facts).extend(&given.facts);
                Arc::make_mut(&mut slot.vars.set).extend(&given.set);
            }
        }
    }

    /// Puts hosts in the order of the inventory.
    pub(crate) fn as_in_inventory(&self, names: &mut [String]) {
        let groups = self.contexts_of(0).values().find_map(|context| context.magic.get("groups"));
        let all =
            groups.and_then(Value::as_map).and_then(|groups| groups.get("all")).and_then(Value::as_list);
        let places: HashMap<&str, usize> =
            all.unwrap_or_default().iter().filter_map(Value::as_str).zip(0..).collect();
        names.sort_by_key(|name| places.get(name.as_str()).copied().unwrap_or(usize::MAX));
    }
}

//! The variables that say how a host is reached.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{ReachError, Way};
use crate::{
    diagnostic::Diagnostic,
    inventory::Inventory,
    playbook::Play,
    template::{self, Dict, Outside, Scope},
    transport::TargetError,
    vault,
};

/// The variables of a host that say how it is reached, rendered, and the play's `remote_user`.
///
/// As in Ansible the play's variables win over the inventory's, and any variable over `remote_user` and `port`.
pub(super) fn connection_vars(
    way: &Way<'_>,
    host: &str,
    extra: &Map<String, Value>,
    outside: &Arc<dyn Outside>,
) -> Result<(Map<String, Value>, Option<String>), ReachError> {
    let inventory = way.inventory;
    let Some(vars) = inventory.host_vars(host) else {
        // Why: as in Ansible, this machine needs no entry.
        let here = Inventory::is_this_machine(host);
        let local = ("ansible_connection".to_owned(), Value::from("local"));
        return Ok((here.then_some(local).into_iter().collect(), None));
    };
    let mut wanted: Map<String, Value> = vars
        .iter()
        .filter(|(name, _)| name.starts_with("ansible_"))
        .map(|(n, v)| (n.to_owned(), v.clone()))
        .collect();
    wanted.extend(
        extra.iter().filter(|(name, _)| name.starts_with("ansible_")).map(|(n, v)| (n.clone(), v.clone())),
    );
    for value in wanted.values_mut() {
        inventory.reveal(value)?;
        *value = vault::unsealed(value.take());
    }
    let is_template = |value: &Value| value.as_str().is_some_and(template::is_template);
    let said = way.play.filter(|play| play.says_how_to_connect());
    if said.is_none() && !wanted.values().any(is_template) {
        return Ok((wanted, None));
    }
    let mut all = inventory.opened_vars(host);
    all.extend(inventory.magic_vars(host));
    let mut layers = vec![Arc::new(Dict::trusted(extra))];
    layers.extend(way.play.iter().flat_map(|play| [Arc::clone(&play.file_vars), Arc::clone(&play.vars)]));
    layers.push(Arc::new(Dict::trusted(&all)));
    let folder = way.play.map(|play| ("playbook_dir", template::Value::str(&*play.directory)));
    layers.push(Arc::new(folder.into_iter().collect()));
    let scope = Scope::looking(layers, Arc::clone(outside), Vec::new());
    let fails = |name: &str, why: String| ReachError::Rendering {
        host: host.to_owned(),
        name: name.to_owned(),
        why,
        by_play: true,
    };
    let mut user = None;
    for (name, value) in said.into_iter().flat_map(Play::connection_words) {
        if extra.contains_key(name) {
            continue;
        }
        let rendered = match template::resolve(value, &scope) {
            Ok(rendered) => rendered,
            // Why: tasks ask it themselves, with all that they see.
            Err(_) if name == "ansible_become" => continue,
            Err(error) => return Err(fails(name, error.message().to_owned())),
        };
        match (name, rendered) {
            (_, template::Value::Omit | template::Value::Null) => {}
            ("remote_user", rendered) => user = Some(rendered.to_text()),
            // Why only there: as in Ansible, any variable wins over it.
            ("port", rendered) => {
                if !wanted.contains_key("ansible_ssh_port") {
                    wanted.entry("ansible_port").or_insert(rendered.to_json());
                }
            }
            (name, rendered) => {
                wanted.insert(name.to_owned(), rendered.to_json());
            }
        }
    }
    for (name, value) in wanted.iter_mut().filter(|(_, value)| is_template(value)) {
        let text = value.as_str().unwrap_or_default();
        let rendered = template::render(text, &scope).map_err(|error| ReachError::Rendering {
            host: host.to_owned(),
            name: name.clone(),
            why: error.message().to_owned(),
            by_play: false,
        })?;
        *value = rendered.to_json();
    }
    Ok((wanted, user))
}

/// The error for a host that cannot be reached as it is written, with the place in the inventory where that is to blame.
pub(super) fn misdirected(
    way: &Way<'_>,
    host: &str,
    extra: &Map<String, Value>,
    error: TargetError,
) -> ReachError {
    let of_inventory = |name: &&str| {
        !extra.contains_key(*name)
            && !way.play.is_some_and(|play| play.connection_words().any(|(other, _)| other == *name))
    };
    let place = error.variable().filter(of_inventory).and_then(|name| way.inventory.place_of(host, name));
    match place {
        Some(place) => ReachError::Input(Diagnostic::error(error.to_string()).at(&place).into()),
        None => ReachError::Target(error),
    }
}

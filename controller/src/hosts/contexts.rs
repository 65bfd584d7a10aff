//! What templates know of each host before its first task.

use std::{collections::HashMap, sync::Arc};

use crate::{
    interpreter::HostContext,
    inventory::Inventory,
    playbook::Program,
    template::{Dict, Value},
};

/// What is known of hosts, by name.
pub type Contexts = HashMap<String, Arc<HostContext>>;

/// What holds for every host of a run.
pub struct KnownToAll<'a> {
    pub inventory: &'a Inventory,
    pub program: &'a Program,
    pub extra: &'a serde_json::Map<String, serde_json::Value>,
    pub become_default: bool,
    /// Whom `become` means where nobody says.
    pub become_user: Option<&'a str>,
    pub verbosity: u32,
    /// How many hosts are worked on at once (`--forks`).
    pub forks: usize,
    /// Whether hosts are this machine unless their variables or a play say otherwise.
    pub local: bool,
    /// Whom gpufleet logs in as where neither variables nor a play say.
    pub user: Option<&'a str>,
    /// `--limit`, as it was given.
    pub limit: Option<&'a str>,
    /// Where the inventory comes from.
    pub sources: &'a [String],
}

/// The version of Ansible whose language is spoken, for playbooks that ask for it.
const ANSIBLE_VERSION: (i64, i64, i64) = (2, 19, 0);

/// What is the same for all hosts.
fn common(shared: &KnownToAll<'_>) -> Dict {
    let (major, minor, revision) = ANSIBLE_VERSION;
    let full = format!("{major}.{minor}.{revision}");
    let version = Value::map([
        ("string", Value::str(&full)),
        ("full", Value::str(&full)),
        ("major", Value::Int(major)),
        ("minor", Value::Int(minor)),
        ("revision", Value::Int(revision)),
    ]);
    let mut common = Dict::default();
    common.insert("ansible_version", version);
    common.insert("ansible_forks", Value::Int(i64::try_from(shared.forks).unwrap_or(i64::MAX)));
    common.insert("ansible_inventory_sources", Value::list(shared.sources.iter().map(Value::str).collect()));
    common.insert("ansible_playbook_python", Value::str("/usr/bin/python3"));
    if let Some(limit) = shared.limit {
        common.insert("ansible_limit", Value::str(limit));
    }
    common
}

/// How a host is reached where neither its variables nor a play say.
fn reached(shared: &KnownToAll<'_>, host: &str) -> Dict {
    let kind = if shared.local { "local" } else { "ssh" };
    let mut reached = Dict::default();
    reached.insert("ansible_connection", Value::str(kind));
    if let Some(user) = shared.user {
        reached.insert("ansible_user", Value::str(user));
    }
    if Inventory::is_this_machine(host) && !shared.inventory.hosts().iter().any(|name| **name == *host) {
        reached.insert("ansible_host", Value::str("127.0.0.1"));
    }
    reached
}

/// The contexts of these hosts. Group variables and `groups` are held once, however many hosts there are.
pub fn contexts(shared: &KnownToAll<'_>, hosts: &[String]) -> Contexts {
    let extra = Arc::new(Dict::trusted(shared.extra));
    let groups = Value::literal(shared.inventory.groups_json());
    let mentions = |word: &str| shared.program.sources.iter().any(|source| source.text().contains(word));
    // Why not always: it holds every variable of every host. Templates are read later, so they may mention it, whether
    // a task or a lookup does so.
    let everybody = (mentions("template") || mentions("hostvars"))
        .then(|| host_variables(shared, &common(shared), &groups));
    let common = common(shared);
    let mut of_groups = HashMap::new();
    let context = |host: &String| {
        let mut magic = common.clone();
        magic.extend(&Dict::literal(&shared.inventory.magic_vars(host)));
        magic.insert("groups", groups.clone());
        if let Some(everybody) = &everybody {
            magic.insert("hostvars", everybody.clone());
        }
        let vars = shared.inventory.host_vars(host).map(|vars| {
            let common = of_groups
                .entry(Arc::as_ptr(vars.shared()))
                .or_insert_with(|| Arc::new(Dict::trusted(vars.shared())));
            if vars.own().is_empty() {
                return Arc::clone(common);
            }
            let mut all = (**common).clone();
            for (name, value) in vars.own() {
                all.insert(name.as_str(), Value::trusted(value));
            }
            Arc::new(all)
        });
        let context = HostContext {
            host: host.as_str().into(),
            vars: vars.unwrap_or_default(),
            magic: Arc::new(magic),
            reached: Arc::new(reached(shared, host)),
            extra: Arc::clone(&extra),
            verbosity: shared.verbosity,
            become_default: shared.become_default,
            become_user: shared.become_user.map(str::to_owned),
        };
        (host.clone(), Arc::new(context))
    };
    hosts.iter().map(context).collect()
}

fn host_variables(shared: &KnownToAll<'_>, common: &Dict, groups: &Value) -> Value {
    let KnownToAll { inventory, extra, .. } = shared;
    let of_host = |host: &str| {
        let mut vars = serde_json::Map::new();
        vars.insert("ansible_facts".to_owned(), serde_json::Map::new().into());
        vars.extend(inventory.opened_vars(host));
        vars.extend(inventory.magic_vars(host));
        vars.extend((*extra).clone());
        let mut vars = Dict::trusted(&vars);
        vars.extend(common);
        vars.insert("groups", groups.clone());
        vars.insert("ansible_verbosity", Value::Int(shared.verbosity.into()));
        Value::Map(Arc::new(vars))
    };
    let hosts = inventory.hosts();
    let mut all: Dict = hosts.iter().map(|host| (Arc::<str>::from(&**host), of_host(host))).collect();
    if !hosts.iter().any(|host| Inventory::is_this_machine(host)) {
        for name in Inventory::NAMES_OF_THIS_MACHINE {
            all.insert_unlisted(name, of_host(name));
        }
    }
    Value::Map(Arc::new(all))
}

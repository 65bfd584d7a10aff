//! The variables of one host in one play: where they come from, and in which order a task sees them.

use std::collections::HashSet;
use std::sync::Arc;

use gpufleet_protocol::op::GpuGroup;

use super::setup::Setup;
use super::state::Failure;
use super::{Copied, HostVars};
use crate::interpreter::files::FileKind;
use crate::interpreter::guard;
use crate::interpreter::prepare;
use crate::interpreter::snapshots::DelegatedFacts;
use crate::playbook::{Role, Task};
use crate::template::{Dict, Outside, Scope, Teller, Value};

pub(super) struct Variables {
    /// What the host carries from play to play.
    host: HostVars,
    /// What holds where nothing else says anything.
    floor: Arc<Dict>,
    /// Set by the run: check mode, names of the play, the failure that a rescue follows.
    run: Arc<Dict>,
    /// Of the other hosts of the play: `hostvars` and the lists of hosts.
    peers: Arc<Dict>,
    /// From entries of `vars_files` whose names depend on the host's variables.
    late: Arc<Dict>,
    late_error: Option<String>,
    /// Roles whose variables all tasks see: those of the play, then those included with `public`.
    roles: Vec<Arc<Role>>,
    /// Tasks that a secret went into on this host. What they return or set is secret too.
    sealed: HashSet<Arc<str>>,
}

impl Variables {
    pub(super) fn new(setup: &Setup, host: HostVars) -> Self {
        let mut variables = Self {
            host,
            floor: Arc::new(setup.floor()),
            run: Arc::new(setup.run_vars()),
            peers: Arc::default(),
            late: Arc::default(),
            late_error: None,
            roles: setup.play.roles.clone(),
            sealed: HashSet::new(),
        };
        variables.read_late_files(setup);
        variables
    }

    /// What the host carries to the next play.
    pub(super) const fn host(&self) -> &HostVars {
        &self.host
    }

    /// Lets later plays of the run know what was declared of the GPUs.
    pub(super) fn set_declared_gpus(&mut self, gpus: GpuGroup) {
        self.host.gpus = Arc::new(gpus);
    }

    pub(super) fn set_peers(&mut self, peers: Arc<Dict>) {
        self.peers = peers;
    }

    /// Takes over what is known of the other hosts at the barrier that was passed last.
    pub(super) fn update_peers(&mut self, others: &Dict) {
        Arc::make_mut(&mut self.peers).extend(others);
    }

    pub(super) fn set_diff_mode(&mut self, diff: bool) {
        Arc::make_mut(&mut self.run).insert("ansible_diff_mode", Value::Bool(diff));
    }

    /// Sets a variable as `register` does.
    pub(super) fn set(&mut self, name: Arc<str>, value: Value) {
        Arc::make_mut(&mut self.host.set).insert(name, value);
    }

    /// Sets a variable that a file gave (`include_vars`).
    pub(super) fn set_included(&mut self, name: Arc<str>, value: Value) {
        Arc::make_mut(&mut self.host.included).insert(name, value);
    }

    /// Takes over what a task of another host set for this one.
    pub(super) fn take_delegated(&mut self, given: &DelegatedFacts) {
        Arc::make_mut(&mut self.host.facts).extend(&given.facts);
        Arc::make_mut(&mut self.host.set).extend(&given.set);
    }

    /// Takes over what a `run_once` task set on the host that ran it.
    pub(super) fn take_copied(&mut self, copied: &Copied) {
        let set = Arc::make_mut(&mut self.host.set);
        for (name, value) in &copied.variables {
            set.insert(name.as_str(), Value::literal(value));
        }
        for name in &copied.unknown {
            set.insert(name.as_str(), Value::Unknown);
        }
    }

    /// `ansible_failed_task` and `ansible_failed_result`, for a rescue.
    pub(super) fn set_failure(&mut self, failure: &Failure, task: Value) {
        let result = failure.result.clone().unwrap_or_else(|| {
            Value::map([
                ("failed", Value::Bool(true)),
                ("changed", Value::Bool(false)),
                ("msg", Value::str(&failure.message)),
            ])
        });
        let vars = Arc::make_mut(&mut self.run);
        vars.insert("ansible_failed_task", task);
        vars.insert("ansible_failed_result", result);
    }

    pub(super) fn add_role(&mut self, role: Option<Arc<Role>>) {
        self.roles.extend(role);
    }

    /// From here on what this task returns or sets is secret.
    pub(super) fn seal(&mut self, task: &Task) {
        self.sealed.insert(Arc::clone(&task.path));
    }

    pub(super) fn is_sealed(&self, task: &Task) -> bool {
        self.sealed.contains(&task.path)
    }

    /// Takes facts over. As in Ansible, what tasks made facts of stays in `ansible_facts`.
    pub(super) fn read_facts(&mut self, fresh: Dict) {
        let listed = std::mem::replace(&mut self.host.facts, Arc::new(fresh));
        let before = &listed;
        let Some(Value::Map(before)) = before.get("ansible_facts") else { return };
        let now = match self.host.facts.get("ansible_facts") {
            Some(Value::Map(now)) => Arc::clone(now),
            _ => Arc::default(),
        };
        let left = before.iter().filter(|(name, _)| !now.contains(name));
        let left: Vec<(Arc<str>, Value)> =
            left.map(|(name, value)| (Arc::clone(name), value.clone())).collect();
        for (name, value) in left.iter().filter(|(name, _)| listed.contains(name)) {
            Arc::make_mut(&mut self.host.facts).insert(Arc::clone(name), value.clone());
        }
        self.add_facts(left);
    }

    /// Adds a fact that is also a variable of its own, such as `packages`.
    pub(super) fn add_listed(&mut self, name: &Arc<str>, value: Value) {
        Arc::make_mut(&mut self.host.facts).insert(Arc::clone(name), value.clone());
        self.add_facts(vec![(Arc::clone(name), value)]);
    }

    /// Puts these into `ansible_facts`.
    pub(super) fn add_facts(&mut self, fresh: Vec<(Arc<str>, Value)>) {
        if fresh.is_empty() {
            return;
        }
        let facts = Arc::make_mut(&mut self.host.facts);
        let mut all = match facts.get("ansible_facts") {
            Some(Value::Map(all)) => (**all).clone(),
            _ => Dict::default(),
        };
        for (name, value) in fresh {
            all.insert(name, value);
        }
        facts.insert("ansible_facts", Value::Map(Arc::new(all)));
    }

    pub(super) fn clear_facts(&mut self) {
        self.host.facts = Arc::default();
    }

    /// What is wrong with an entry of `vars_files`, told once.
    pub(super) const fn take_late_error(&mut self) -> Option<String> {
        self.late_error.take()
    }

    /// Reads the entries of `vars_files` with templates: of each the first file that exists.
    fn read_late_files(&mut self, setup: &Setup) {
        let mut merged = Dict::default();
        for late in &setup.play.late_files {
            let scope = self.base_scope(setup);
            let (mut found, mut tried) = (None, Vec::new());
            for name in &late.names {
                let name = match guard::path(name, &scope) {
                    Ok(name) => name.to_text(),
                    Err(error) => {
                        tried.push(error.to_string());
                        continue;
                    }
                };
                let search = [setup.play.directory.clone()];
                match guard::read(&*setup.files, FileKind::Vars, &search, &name) {
                    Ok(file) => {
                        found = Some(file);
                        break;
                    }
                    Err(why) => tried.push(why),
                }
            }
            let read = found.ok_or_else(|| tried.join("; ")).and_then(|file| prepare::variables(&file));
            match read {
                Ok(variables) => {
                    for (name, value) in variables {
                        merged.insert(name, value);
                    }
                    self.late = Arc::new(merged.clone());
                }
                Err(why) => {
                    let span = &late.span;
                    self.late_error.get_or_insert(format!(
                        "{}:{}: `vars_files`: {why}",
                        span.file(),
                        span.line
                    ));
                }
            }
        }
    }

    /// The variables that a task sees. `top` holds the loop's; `included` are those of the loops of the includes that the
    /// task came with, innermost first.
    ///
    /// Source of the order: "Understanding variable precedence" of Ansible's documentation, and `get_vars` of
    /// ansible-core 2.19's variable manager.
    pub(super) fn scope(
        &self,
        setup: &Setup,
        task: &Task,
        top: Option<Arc<Dict>>,
        included: impl Iterator<Item = Arc<Dict>>,
    ) -> Arc<Scope> {
        let mut layers: Vec<Arc<Dict>> = Vec::with_capacity(20 + task.vars.len() + task.given.len());
        let mut said: Vec<Arc<Dict>> = Vec::new();
        // Why not items that the playbook itself lists: they hold nothing that a node said.
        if !task.looped.as_ref().is_some_and(|looped| looped.items.is_settled()) {
            said.extend(top.clone());
        }
        layers.extend(top);
        for layer in included {
            said.push(Arc::clone(&layer));
            layers.push(layer);
        }
        layers.push(Arc::clone(&self.run));
        layers.push(Arc::clone(&setup.host.extra));
        layers.extend(task.given.iter().rev().cloned());
        layers.extend(task.role.iter().map(|role| Arc::clone(&role.params)));
        layers.push(Arc::clone(&self.host.set));
        layers.push(Arc::clone(&self.host.included));
        layers.extend(task.vars.iter().rev().cloned());
        layers.extend(task.role.iter().map(|role| Arc::clone(&role.vars)));
        let folders = task.search.iter().map(|folder| Value::str(setup.files.playbook_dir(folder)));
        let own = [
            ("ansible_search_path", Value::list(folders.collect())),
            ("environment", Value::list(task.environment.clone())),
        ];
        layers.push(Arc::new(own.into_iter().collect()));
        self.below(setup, task.role.as_deref(), layers, said)
    }

    /// What is seen before any task.
    pub(super) fn base_scope(&self, setup: &Setup) -> Arc<Scope> {
        let layers = vec![Arc::clone(&self.run), Arc::clone(&setup.host.extra), Arc::clone(&self.host.set)];
        self.below(setup, None, layers, Vec::new())
    }

    /// `said`: those of the layers that hold what nodes said.
    fn below(
        &self,
        setup: &Setup,
        role: Option<&Role>,
        mut layers: Vec<Arc<Dict>>,
        mut said: Vec<Arc<Dict>>,
    ) -> Arc<Scope> {
        said.push(Arc::clone(&self.host.set));
        let mut said: Vec<_> = said.into_iter().map(|layer| (layer, Teller::Results)).collect();
        said.push((Arc::clone(&self.host.facts), Teller::Facts));
        // The lists of hosts beside them are the inventory's words.
        said.extend(self.peers.contains("hostvars").then(|| (Arc::clone(&self.peers), Teller::Others)));
        layers.extend(self.roles.iter().rev().map(|role| Arc::clone(&role.exported_vars)));
        layers.push(Arc::clone(&self.late));
        layers.push(Arc::clone(&setup.play.file_vars));
        layers.push(Arc::clone(&setup.play.vars));
        layers.push(Arc::clone(&self.host.facts));
        layers.push(Arc::clone(&setup.host.vars));
        layers.extend(role.map(|role| Arc::clone(&role.defaults)));
        layers.extend(self.roles.iter().rev().map(|role| Arc::clone(&role.exported_defaults)));
        layers.extend(role.map(|role| {
            let mut magic = (*role.magic).clone();
            magic.insert("role_path", Value::str(setup.files.playbook_dir(&role.path)));
            Arc::new(magic)
        }));
        layers.push(Arc::clone(&self.peers));
        layers.push(Arc::clone(&setup.host.magic));
        layers.push(Arc::clone(&self.floor));
        layers.retain(|layer| !layer.is_empty());
        Scope::looking(layers, Arc::clone(&setup.files) as Arc<dyn Outside>, said)
    }
}

/// The variables of a task with its own result among them.
pub(super) fn with_result(task: &Task, scope: &Arc<Scope>, result: &Value) -> Arc<Scope> {
    match &task.register {
        Some(name) => {
            let layer: Dict = [(Arc::clone(name), result.clone())].into_iter().collect();
            scope.with(Arc::new(layer))
        }
        None => Arc::clone(scope),
    }
}

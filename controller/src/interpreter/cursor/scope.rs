//! The variables that a task sees, in Ansible's order, and which of them hold what nodes said.

use std::sync::Arc;

use super::{Cursor, state::Frame};
use crate::{
    playbook::{Role, Task},
    template::{Dict, Outside, Scope, Value},
};

impl Cursor {
    /// The variables that a task sees; `top` holds the loop's.
    ///
    /// Source of the order: "Understanding variable precedence" of Ansible's documentation, and `get_vars` of
    /// ansible-core 2.19's variable manager.
    pub(super) fn scope(&self, task: &Task, top: Option<Arc<Dict>>) -> Arc<Scope> {
        let mut layers: Vec<Arc<Dict>> = Vec::with_capacity(20 + task.vars.len() + task.given.len());
        let mut said: Vec<Arc<Dict>> = Vec::new();
        // Why not items that stand in the playbook as they are: no node has a word in them.
        if !task.looped.as_ref().is_some_and(|looped| looped.items.is_settled()) {
            said.extend(top.clone());
        }
        layers.extend(top);
        let included = self.frames.iter().rev().filter_map(|frame| match frame {
            Frame::Include { layer, .. } => layer.clone(),
            _ => None,
        });
        for layer in included {
            said.push(Arc::clone(&layer));
            layers.push(layer);
        }
        layers.push(Arc::clone(&self.run_vars));
        layers.push(Arc::clone(&self.host.extra));
        layers.extend(task.given.iter().rev().cloned());
        layers.extend(task.role.iter().map(|role| Arc::clone(&role.params)));
        layers.push(Arc::clone(&self.vars.set));
        layers.push(Arc::clone(&self.vars.included));
        layers.extend(task.vars.iter().rev().cloned());
        layers.extend(task.role.iter().map(|role| Arc::clone(&role.vars)));
        let folders = task.search.iter().map(|folder| Value::str(self.files.playbook_dir(folder)));
        let own = [
            ("ansible_search_path", Value::list(folders.collect())),
            ("environment", Value::list(task.environment.clone())),
        ];
        layers.push(Arc::new(own.into_iter().collect()));
        self.below(task.role.as_deref(), layers, said)
    }

    /// What is seen before any task.
    pub(super) fn base_scope(&self) -> Arc<Scope> {
        let layers =
            vec![Arc::clone(&self.run_vars), Arc::clone(&self.host.extra), Arc::clone(&self.vars.set)];
        self.below(None, layers, Vec::new())
    }

    /// `said`: those of the layers that hold what nodes said.
    fn below(&self, role: Option<&Role>, mut layers: Vec<Arc<Dict>>, mut said: Vec<Arc<Dict>>) -> Arc<Scope> {
        said.extend([&self.vars.set, &self.vars.facts, &self.peers].map(Arc::clone));
        layers.extend(self.roles.iter().rev().map(|role| Arc::clone(&role.exported_vars)));
        layers.push(Arc::clone(&self.late_vars));
        layers.push(Arc::clone(&self.play.file_vars));
        layers.push(Arc::clone(&self.play.vars));
        layers.push(Arc::clone(&self.vars.facts));
        layers.push(Arc::clone(&self.host.vars));
        layers.extend(role.map(|role| Arc::clone(&role.defaults)));
        layers.extend(self.roles.iter().rev().map(|role| Arc::clone(&role.exported_defaults)));
        layers.extend(role.map(|role| {
            let mut magic = (*role.magic).clone();
            magic.insert("role_path", Value::str(self.files.playbook_dir(&role.path)));
            Arc::new(magic)
        }));
        layers.push(Arc::clone(&self.peers));
        layers.push(Arc::clone(&self.host.magic));
        layers.push(Arc::clone(&self.floor));
        layers.retain(|layer| !layer.is_empty());
        Scope::looking(layers, Arc::clone(&self.files) as Arc<dyn Outside>, said)
    }
}

//! Roles: what their files say, apart from their tasks.

use std::sync::Arc;

use crate::template::{Dict, Value};

/// A role as one place uses it.
#[derive(Clone, Debug, Default)]
pub struct Role {
    /// As it was named.
    pub name: String,
    /// Its folder.
    pub path: String,
    /// What its tasks see below everything else: defaults of its dependencies, of the roles that it depends on, its own.
    pub defaults: Arc<Dict>,
    /// What its tasks see above the play's variables.
    pub vars: Arc<Dict>,
    /// What was given where it is named, above everything that tasks set.
    pub params: Arc<Dict>,
    /// What all tasks of the play see of it.
    pub exported_defaults: Arc<Dict>,
    pub exported_vars: Arc<Dict>,
    /// `role_name`, `role_path` and their like.
    pub magic: Arc<Dict>,
    /// The parts of its own that roles below it see.
    pub(super) own: Own,
    /// The roles that depend on it, outermost first.
    pub(super) parents: Vec<Arc<Role>>,
}

/// What one role says by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub defaults: Arc<Dict>,
    pub vars: Arc<Dict>,
    pub params: Arc<Dict>,
    /// `vars` where it is named.
    pub given: Arc<Dict>,
}

impl Role {
    /// Whether it is there because another role needs it.
    pub fn is_dependency(&self) -> bool {
        !self.parents.is_empty()
    }

    /// Puts together what a role and those around it say.
    ///
    /// Source: `Role.get_vars` and `Role.get_default_vars` of ansible-core 2.19.
    pub(super) fn new(
        name: &str,
        path: &str,
        own: Own,
        parents: &[Arc<Self>],
        dependencies: &[Arc<Self>],
    ) -> Self {
        let (mut defaults, mut vars, mut params) = (Dict::default(), Dict::default(), Dict::default());
        let (mut exported_defaults, mut exported_vars) = (Dict::default(), Dict::default());
        for dependency in dependencies {
            exported_defaults.extend(&dependency.exported_defaults);
            exported_vars.extend(&dependency.exported_vars);
        }
        defaults.extend(&exported_defaults);
        for parent in parents {
            defaults.extend(&parent.own.defaults);
            for layer in [&parent.own.given, &parent.own.vars, &parent.own.params] {
                vars.extend(layer);
            }
            params.extend(&parent.own.params);
        }
        vars.extend(&exported_vars);
        for (all, part) in [(&mut defaults, &own.defaults), (&mut exported_defaults, &own.defaults)] {
            all.extend(part);
        }
        for (all, part) in [(&mut vars, &own.vars), (&mut exported_vars, &own.vars)] {
            all.extend(part);
        }
        vars.extend(&own.given);
        params.extend(&own.params);
        let mut magic: Dict = [
            ("role_name", Value::str(name)),
            ("ansible_role_name", Value::str(name)),
            ("role_path", Value::str(path)),
        ]
        .into_iter()
        .collect();
        if !parents.is_empty() {
            let list = |of: fn(&Self) -> &str| {
                Value::list(parents.iter().rev().map(|parent| Value::str(of(parent))).collect())
            };
            magic.insert("ansible_parent_role_names", list(|parent| &parent.name));
            magic.insert("ansible_parent_role_paths", list(|parent| &parent.path));
        }
        Self {
            name: name.to_owned(),
            path: path.to_owned(),
            defaults: Arc::new(defaults),
            vars: Arc::new(vars),
            params: Arc::new(params),
            exported_defaults: Arc::new(exported_defaults),
            exported_vars: Arc::new(exported_vars),
            magic: Arc::new(magic),
            own,
            parents: parents.to_vec(),
        }
    }
}

//! Roles without their tasks: variables and names.

use std::sync::Arc;

use crate::template::{Dict, Value};

/// A role at one place that uses it.
#[derive(Clone, Debug, Default)]
pub struct Role {
    /// The name as written.
    pub name: String,
    /// Its folder.
    pub path: String,
    /// Variables of the lowest precedence: defaults of its dependencies, of the roles that depend on it, and its own.
    pub defaults: Arc<Dict>,
    /// Variables that override the play's.
    pub vars: Arc<Dict>,
    /// Parameters given where it is used; they override everything that tasks set.
    pub params: Arc<Dict>,
    /// Defaults and variables that all tasks of the play see.
    pub exported_defaults: Arc<Dict>,
    pub exported_vars: Arc<Dict>,
    /// `role_name`, `role_path` and similar.
    pub magic: Arc<Dict>,
    /// Its own parts that the roles below it see.
    pub(super) own: Own,
    /// The roles that depend on it, outermost first.
    pub(super) parents: Vec<Arc<Role>>,
}

/// What a single role defines.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub defaults: Arc<Dict>,
    pub vars: Arc<Dict>,
    pub params: Arc<Dict>,
    /// `vars` at the place that uses it.
    pub given: Arc<Dict>,
}

impl Role {
    /// Whether it is used only because another role depends on it.
    pub fn is_dependency(&self) -> bool {
        !self.parents.is_empty()
    }

    /// Merges what a role and those around it define.
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

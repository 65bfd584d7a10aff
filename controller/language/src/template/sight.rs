//! Views of all variables for templates: `vars`, and `hostvars` with those of other hosts.
//!
//! Owns which variables a value of another host is rendered with: that host's own, and those that are the same for
//! all. Must not know where they come from.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object};

use super::value::{Dict, Value};
use super::{Scope, TemplateError, engine, frame};

type Engine = minijinja::Value;

/// Variables that are the same for all hosts.
const COMMON: &[&str] = &[
    "groups",
    "hostvars",
    "playbook_dir",
    "inventory_dir",
    "inventory_file",
    "ansible_check_mode",
    "ansible_diff_mode",
    "ansible_version",
    "ansible_forks",
    "ansible_limit",
    "ansible_run_tags",
    "ansible_skip_tags",
    "ansible_verbosity",
];

/// Returns `hostvars`: each host's variables, rendered with that host's variables.
pub(super) fn others(all: &Arc<Dict>, scope: &Arc<Scope>) -> Engine {
    if all.is_settled() {
        return Engine::from_dyn_object(Arc::clone(all));
    }
    Engine::from_object(Others { all: Arc::clone(all), scope: Arc::clone(scope) })
}

/// Returns `vars`: every visible variable.
pub(super) fn all(scope: &Arc<Scope>) -> Engine {
    Engine::from_object(All { scope: Arc::clone(scope) })
}

/// Returns the value of one of these views; `None` for anything else.
pub(super) fn collected(value: &Engine) -> Option<Result<Value, TemplateError>> {
    if let Some(others) = value.downcast_object_ref::<Others>() {
        let hosts = others.all.keys().map(|host| {
            let of_host = others.of(host).map_or(Ok(Value::Null), |of_host| frame::collect(&of_host));
            of_host.map(|of_host| (Arc::<str>::from(host), of_host))
        });
        return Some(hosts.collect::<Result<Vec<_>, _>>().map(Value::map));
    }
    if let Some(other) = value.downcast_object_ref::<Other>() {
        let vars = other.vars.iter().map(|(name, value)| (Arc::clone(name), shown(value, &other.scope)));
        return Some(Ok(Value::map(vars)));
    }
    let all = value.downcast_object_ref::<All>()?;
    let vars = all.names().into_iter().map(|name| {
        let value = all.scope.get(&name).map_or(Value::Null, |value| shown(value, &all.scope));
        (name, value)
    });
    Some(Ok(Value::map(vars.filter(|(name, _)| &**name != "hostvars"))))
}

/// Returns a rendered value, or the text as written if rendering fails: one such variable must not hide all others.
fn shown(value: &Value, scope: &Arc<Scope>) -> Value {
    engine::resolve(value, scope).unwrap_or_else(|_| Value::Str(value.to_text().into()))
}

#[derive(Debug)]
struct Others {
    all: Arc<Dict>,
    scope: Arc<Scope>,
}

impl Others {
    fn of(&self, host: &str) -> Option<Engine> {
        let value = self.all.get(host)?;
        let Value::Map(vars) = value else { return Some(frame::expose(value, host)) };
        if vars.is_settled() {
            return Some(Engine::from_dyn_object(Arc::clone(vars)));
        }
        let common: Dict =
            COMMON.iter().filter_map(|name| Some((*name, self.scope.get(name)?.clone()))).collect();
        let layers = vec![Arc::clone(vars), Arc::new(common)];
        Some(Engine::from_object(Other { vars: Arc::clone(vars), scope: self.scope.beside(layers) }))
    }
}

impl Object for Others {
    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        self.of(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, host: &str) -> Option<Engine> {
        Some(self.of(host).unwrap_or_else(|| frame::missing(host.to_owned())))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.all.iter().map(|(host, _)| Engine::from(Arc::clone(host))).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.all.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        frame::render(&Engine::from_dyn_object(Arc::clone(self)), f)
    }
}

/// The variables of one host, some of which need rendering.
#[derive(Debug)]
struct Other {
    vars: Arc<Dict>,
    scope: Arc<Scope>,
}

impl Other {
    fn get(&self, name: &str) -> Option<Engine> {
        let value = self.vars.get(name)?;
        if let Value::Secret(_) = value {
            frame::met_secret();
        }
        Some(match engine::resolve(value, &self.scope) {
            Ok(value) => frame::expose(&value, name),
            Err(error) => frame::lost(error, name),
        })
    }
}

impl Object for Other {
    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        self.get(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, name: &str) -> Option<Engine> {
        Some(self.get(name).unwrap_or_else(|| frame::missing(name.to_owned())))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.vars.iter().map(|(name, _)| Engine::from(Arc::clone(name))).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.vars.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        frame::render(&Engine::from_dyn_object(Arc::clone(self)), f)
    }
}

#[derive(Debug)]
struct All {
    scope: Arc<Scope>,
}

impl All {
    fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = self.scope.names().map(Arc::from).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Object for All {
    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        let name = key.as_str()?;
        self.scope.get(name)?;
        self.scope.get_value_by_str(name)
    }

    fn get_value_by_str(self: &Arc<Self>, name: &str) -> Option<Engine> {
        self.scope.get_value_by_str(name)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.names().into_iter().map(Engine::from).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.names().len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        frame::render(&Engine::from_dyn_object(Arc::clone(self)), f)
    }
}

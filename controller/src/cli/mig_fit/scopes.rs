//! Over which nodes each number of a demand is counted.

use std::collections::HashMap;

use gpufleet::{
    diagnostic::{Diagnostic, Diagnostics, suggest},
    inventory::Inventory,
    template::{Dict, Scope as Variables, resolve},
};
use gpufleet_mig::{
    demand::{Scope, Want},
    fleet_fit::Demand,
};

use crate::cli::error::CommandError;

/// The demand, with the scopes as numbers.
#[derive(Clone, Debug, Default)]
pub struct Scopes {
    pub demands: Vec<Demand>,
    /// By scope: `all`, `group inference` or `rack r1`.
    pub names: Vec<String>,
    of_hosts: HashMap<String, Vec<usize>>,
    /// Variables that some hosts lack, with those hosts.
    pub without: Vec<(String, Vec<String>)>,
}

/// What is known of hosts before any is contacted.
pub struct Hosts<'a> {
    pub names: &'a [String],
    /// The groups of each.
    pub groups: &'a [Vec<String>],
    /// `None` without an inventory, which has the variables.
    pub inventory: Option<&'a Inventory>,
}

impl Scopes {
    /// # Errors
    /// Groups and variables that no host has.
    pub fn of(wants: &[Want], hosts: &Hosts<'_>) -> Result<Self, CommandError> {
        let mut scopes = Self::default();
        let mut errors = Diagnostics::new();
        // Mistakes without a place, on the command line.
        let mut wrong = Vec::new();
        let mut known: HashMap<&Scope, Vec<usize>> = HashMap::new();
        for want in wants {
            let numbers = match known.get(&want.scope) {
                Some(numbers) => numbers.clone(),
                None => match scopes.numbers(&want.scope, hosts) {
                    Ok(numbers) => {
                        known.insert(&want.scope, numbers.clone());
                        numbers
                    }
                    Err((text, help)) => {
                        match &want.scope_at {
                            Some(at) => errors.push(Diagnostic::error(text).at(at).help(help)),
                            None => wrong.push((text, help)),
                        }
                        known.insert(&want.scope, Vec::new());
                        Vec::new()
                    }
                },
            };
            let demand = |scope| Demand { scope, wish: want.wish.clone(), count: want.count };
            scopes.demands.extend(numbers.into_iter().map(demand));
        }
        if let Some((text, help)) = wrong.into_iter().next() {
            return Err(CommandError::user(text).hint(help));
        }
        Ok(errors.into_result(scopes)?)
    }

    pub fn of_host(&self, host: &str) -> Vec<usize> {
        self.of_hosts.get(host).cloned().unwrap_or_default()
    }

    pub fn name(&self, scope: usize) -> &str {
        self.names.get(scope).map_or("", String::as_str)
    }

    fn add(&mut self, name: String, hosts: impl IntoIterator<Item = String>) -> usize {
        self.names.push(name);
        let scope = self.names.len() - 1;
        for host in hosts {
            self.of_hosts.entry(host).or_default().push(scope);
        }
        scope
    }

    /// The scopes that a scope of the demand stands for.
    ///
    /// # Errors
    /// What is wrong, and what may help.
    fn numbers(&mut self, scope: &Scope, hosts: &Hosts<'_>) -> Result<Vec<usize>, (String, String)> {
        match scope {
            Scope::All => Ok(vec![self.add("all".to_owned(), hosts.names.iter().cloned())]),
            Scope::Group(group) => {
                let all: Vec<&str> = hosts.groups.iter().flatten().map(String::as_str).collect();
                let is_known = all.contains(&group.as_str())
                    || hosts.inventory.is_some_and(|inventory| inventory.group(group).is_some());
                if !is_known {
                    let help = match suggest(group, all.iter().copied()) {
                        Some(close) => format!("did you mean `{close}`?"),
                        None => "`gpufleet inventory --graph` shows the groups".to_owned(),
                    };
                    return Err((format!("there is no group `{group}`"), help));
                }
                let members = hosts.names.iter().zip(hosts.groups);
                let members =
                    members.filter(|(_, groups)| groups.contains(group)).map(|(host, _)| host.clone());
                let members: Vec<String> = members.collect();
                Ok(vec![self.add(format!("group {group}"), members)])
            }
            Scope::Each(variable) => {
                let Some(inventory) = hosts.inventory else {
                    let text = format!("the value of `{variable}` is not known without an inventory");
                    return Err((text, "name it with -i; no node is contacted".to_owned()));
                };
                let mut values: Vec<(String, Vec<String>)> = Vec::new();
                let mut without = Vec::new();
                for host in hosts.names {
                    match value(inventory, host, variable) {
                        None => without.push(host.clone()),
                        Some(value) => match values.iter_mut().find(|(known, _)| *known == value) {
                            Some((_, hosts)) => hosts.push(host.clone()),
                            None => values.push((value, vec![host.clone()])),
                        },
                    }
                }
                if values.is_empty() {
                    let text = format!("no host has a variable `{variable}`");
                    return Err((
                        text,
                        "`gpufleet inventory --host HOST` shows the variables of one".to_owned(),
                    ));
                }
                if !without.is_empty() {
                    self.without.push((variable.clone(), without));
                }
                values.sort();
                Ok(values
                    .into_iter()
                    .map(|(value, hosts)| self.add(format!("{variable} {value}"), hosts))
                    .collect())
            }
        }
    }
}

/// The value of a host's variable as text; none where it is empty or not set.
fn value(inventory: &Inventory, host: &str, variable: &str) -> Option<String> {
    let mut all = inventory.opened_vars(host);
    all.extend(inventory.magic_vars(host));
    let scope = Variables::new(vec![std::sync::Arc::new(Dict::trusted(&all))]);
    let text = resolve(scope.get(variable)?, &scope).ok()?.to_text();
    (!text.is_empty()).then_some(text)
}

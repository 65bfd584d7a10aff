//! Rendering the templates of one play's drainer for its hosts.
//!
//! Must not know how a node is drained. Invariant: one template that fails for a host is reported once, with all its hosts.

use std::{collections::HashMap, sync::Arc};

use super::Surroundings;
use crate::{
    diagnostic::{Diagnostic, Diagnostics, Span},
    hosts::Contexts,
    playbook::{HookSpans, Login, Play},
    report::fold_names,
    template::{self, Scope, Value},
};

/// What a scheduler takes for a node's name.
pub(super) struct Naming {
    /// As people call it.
    pub scheduler: &'static str,
    pub is_name: fn(&str) -> bool,
    pub help: &'static str,
}

/// One play whose drainer is being made.
pub(super) struct Rendering<'a> {
    pub play: &'a Play,
    pub hosts: &'a [String],
    /// Hosts that are not drained, only asked about.
    pub beside: &'a [String],
    pub contexts: &'a Contexts,
    pub surroundings: &'a Surroundings<'a>,
    pub failures: Vec<Failure>,
}

/// What went wrong, where, and for which hosts; none for a hook that concerns no host.
pub(super) struct Failure {
    problem: String,
    place: Span,
    help: &'static str,
    hosts: Vec<String>,
}

const KNOWN: &str = "drainers know the variables of the inventory, of the play and of `-e`; facts and results of tasks come later";

impl Rendering<'_> {
    /// Who drains the others must not be drained itself.
    pub(super) fn login(&self, said: &mut Diagnostics) {
        let Some(Login { host: login, span }) = self.play.policy.drain.login() else { return };
        if self.hosts.contains(login) {
            said.push(
                Diagnostic::error(format!("the login node {login} is a host of the play"))
                    .at(span)
                    .label("who drains the others may not be disturbed with them")
                    .help(
                        "leave it out with --limit, and do it in a run of its own through another login node",
                    ),
            );
        }
    }

    /// Names at the scheduler that differ from the hosts'.
    pub(super) fn names(
        &mut self,
        node: &Value,
        spans: &HookSpans,
        naming: &Naming,
        said: &mut Diagnostics,
    ) -> HashMap<String, String> {
        let Naming { scheduler, is_name, help } = *naming;
        let place = spans.of("node").unwrap_or(&self.play.span).clone();
        let mut names = HashMap::new();
        let mut hosts_of: HashMap<String, &String> = HashMap::new();
        for host in self.hosts {
            let scope = self.scope(Some(host));
            let Some(name) = self.render("node", node, &place, Some(host), &scope) else { continue };
            let name = name.trim().to_owned();
            if !is_name(&name) {
                self.fail(format!("`{name}` is no name of one {scheduler} node"), help, &place, Some(host));
                continue;
            }
            if let Some(other) = hosts_of.insert(name.clone(), host) {
                said.push(
                    Diagnostic::error(format!("{other} and {host} are both `{name}` at {scheduler}"))
                        .at(&place)
                        .label("each host needs a node of its own")
                        .help("correct the variables that `node` uses, or leave the alias out with --limit"),
                );
                continue;
            }
            if name != *host {
                names.insert(host.clone(), name);
            }
        }
        let mut nameless = Vec::new();
        for host in self.beside {
            match template::resolve(node, &self.scope(Some(host))).map(|name| name.to_text()) {
                Ok(name) if is_name(name.trim()) => _ = names.insert(host.clone(), name.trim().to_owned()),
                _ => nameless.push(host.clone()),
            }
        }
        if !nameless.is_empty() {
            said.push(
                Diagnostic::warning(format!("outages of {} do not count", fold_names(&nameless)))
                    .at(&place)
                    .label(format!("`node` gives them no name of one {scheduler} node"))
                    .help(
                        "--limit leaves them out; correct the variables that `node` uses to count them too",
                    ),
            );
        }
        names
    }

    /// The variables that are known before the first task; without a host, those that are the same for all.
    pub(super) fn scope(&self, host: Option<&String>) -> Arc<Scope> {
        let context = match host {
            Some(host) => self.contexts.get(host),
            None => self.hosts.first().and_then(|host| self.contexts.get(host)),
        };
        let mut layers = Vec::with_capacity(5);
        layers.extend(context.map(|context| Arc::clone(&context.extra)));
        layers.push(Arc::clone(&self.play.file_vars));
        layers.push(Arc::clone(&self.play.vars));
        if let (Some(context), Some(_)) = (context, host) {
            layers.push(Arc::clone(&context.vars));
            layers.push(Arc::clone(&context.magic));
        }
        Scope::new(layers)
    }

    pub(super) fn render(
        &mut self,
        hook: &str,
        value: &Value,
        place: &Span,
        host: Option<&String>,
        scope: &Arc<Scope>,
    ) -> Option<String> {
        let (resolved, has_secret) = template::watch(|| {
            template::resolve(value, scope).map(|value| (value == Value::Unknown, value.to_text()))
        });
        let problem = match resolved {
            // Why refused: a command line stands in the list of processes, and a name at the scheduler.
            _ if has_secret => format!("`{hook}` has a vault value in it, which others could read"),
            Ok((true, _)) => format!("`{hook}` depends on something that only the run will tell"),
            Ok((false, text)) => {
                if !text.trim().is_empty() {
                    return Some(text);
                }
                format!("`{hook}` is empty")
            }
            Err(error) => format!("`{hook}` cannot be rendered: {}", error.message()),
        };
        self.fail(problem, KNOWN, place, host);
        None
    }

    fn fail(&mut self, problem: String, help: &'static str, place: &Span, host: Option<&String>) {
        let same = self.failures.iter_mut().find(|known| known.problem == problem && known.place == *place);
        match same {
            Some(known) => known.hosts.extend(host.cloned()),
            None => self.failures.push(Failure {
                problem,
                place: place.clone(),
                help,
                hosts: host.into_iter().cloned().collect(),
            }),
        }
    }

    pub(super) fn report(self, said: &mut Diagnostics) {
        for Failure { problem, place, help, hosts } in self.failures {
            let error = if hosts.is_empty() {
                Diagnostic::error(problem).label("it is run once for all hosts, without the variables of one")
            } else {
                Diagnostic::error(format!("{}: {problem}", fold_names(&hosts)))
            };
            said.push(error.at(&place).help(help));
        }
    }
}

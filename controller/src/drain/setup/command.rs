//! Hooks from their declaration.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{Declared, Prepared, templates::Rendering};
use crate::{
    diagnostic::{Diagnostic, Diagnostics, Span},
    drain::{CommandDrainer, CommandOptions, HostHooks, LocalRunner, NoticePlan, Scheduler},
    playbook::CommandDrain,
    template::Value,
};

/// How long a hook may take that has nothing to wait for.
const HOOK_TIMEOUT: Duration = Duration::from_secs(60);

impl Declared for CommandDrain {
    fn prepare<'a>(&'a self, rendering: &mut Rendering<'a>, said: &mut Diagnostics) -> Option<Prepared<'a>> {
        let place = |hook: &str| self.spans.of(hook).unwrap_or(&rendering.play.span).clone();
        let places = ["drain", "is_idle", "resume", "still_ours", "notice"].map(|hook| (hook, place(hook)));
        let [drain, is_idle, resume, still_ours, notice] = places;
        if self.still_ours.is_none() && !rendering.hosts.is_empty() {
            said.push(
                Diagnostic::warning(format!(
                    "play `{}`: without `still_ours` nobody can tell that a person took over a node after it was drained",
                    rendering.play.name
                ))
                .at(&drain.1)
                .label("every node that this drained counts as this run's")
                .help("add `still_ours`, a command that exits with 0 while the node is drained by $GPUFLEET_MARKER"),
            );
        }
        let mut hooks = HashMap::new();
        for host in rendering.hosts {
            let scope = rendering.scope(Some(host));
            let mut line = |(hook, place): &(&str, Span), value: &Value| {
                rendering.render(hook, value, place, Some(host), &scope)
            };
            let needed =
                (line(&drain, &self.drain), line(&is_idle, &self.is_idle), line(&resume, &self.resume));
            let still_ours = self.still_ours.as_ref().and_then(|value| line(&still_ours, value));
            let notice = self.notice.as_ref().and_then(|value| line(&notice, value));
            // Why the others may go: whatever is missing here was reported, and nothing is run.
            if let (Some(drain), Some(is_idle), Some(resume)) = needed {
                hooks.insert(host.clone(), HostHooks { drain, is_idle, resume, still_ours, notice });
            }
        }
        let out = self.out.as_ref().and_then(|value| {
            let place = self.spans.of("out").unwrap_or(&rendering.play.span).clone();
            let scope = rendering.scope(None);
            rendering.render("out", value, &place, None, &scope)
        });
        Some(Box::new(move |_| Ok(made(self, hooks, out))))
    }
}

fn made(command: &CommandDrain, hooks: HashMap<String, HostHooks>, out: Option<String>) -> Scheduler {
    let timeout = Duration::from_secs(command.timeout_s);
    let surveys = out.is_some();
    let options =
        CommandOptions { hooks, out, drain_timeout: HOOK_TIMEOUT.max(timeout), timeout: HOOK_TIMEOUT };
    let drainer = CommandDrainer::new(Arc::new(LocalRunner), options);
    let mut scheduler = Scheduler::new(Arc::new(drainer), timeout);
    scheduler.notice = command.notice.as_ref().map(|_| NoticePlan {
        deadline: Duration::from_secs(command.notice_deadline_s),
        before_cordon: true,
    });
    scheduler.surveys = surveys;
    scheduler
}

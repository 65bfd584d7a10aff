//! A drainer for Slurm from its declaration.

use std::{sync::Arc, time::Duration};

use super::{
    Declared, Prepared, surveyed,
    templates::{Naming, Rendering},
};
use crate::{
    diagnostic::Diagnostics,
    drain::{Notice, NoticePlan, SlurmDrainer, SlurmOptions, is_node_name},
    playbook::{NoticeHow, RebootVia, SlurmDrain},
};

impl Declared for SlurmDrain {
    fn prepare<'a>(&'a self, rendering: &mut Rendering<'a>, said: &mut Diagnostics) -> Option<Prepared<'a>> {
        let naming = Naming {
            scheduler: "Slurm",
            is_name: is_node_name,
            help: "lists, ranges and `all` are no names; `sinfo -N` shows them",
        };
        let nodes = rendering.names(&self.node, &self.spans, &naming, said);
        let reboots = rendering.play.policy.reboot.via == RebootVia::Scheduler;
        Some(Box::new(move |logins| {
            let notice = match self.notice.as_ref().map(|notice| &notice.how) {
                None => Notice::Nothing,
                Some(NoticeHow::Signal(name)) => Notice::Signal(name.clone()),
                Some(NoticeHow::Requeue) => Notice::Requeue,
            };
            let runner = logins.runner_for(self.login.as_ref())?;
            let drainer = SlurmDrainer::new(runner, SlurmOptions { notice, ..SlurmOptions::default() });
            let mut scheduler = surveyed(Arc::new(drainer), self.timeout_s, nodes);
            scheduler.notice = self.notice.as_ref().map(|notice| NoticePlan {
                deadline: Duration::from_secs(notice.deadline_s),
                before_cordon: false,
            });
            scheduler.reboots = reboots;
            Ok(scheduler)
        }))
    }
}

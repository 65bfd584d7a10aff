//! Which nodes of a play went away in which command, and what that means for hosts that have not begun it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

use crate::report::fold_names;

/// What commands did to the nodes of a play.
pub(crate) struct CommandLosses {
    /// As many nodes may be out at once.
    most: usize,
    tasks: Mutex<HashMap<Arc<str>, Losses>>,
    changed: watch::Sender<()>,
}

/// What one task's command did.
#[derive(Default)]
pub(crate) struct Losses {
    /// Nodes that are being looked for.
    pub(crate) sought: usize,
    pub(crate) lost: Vec<String>,
    /// One of them came back in another boot.
    pub(crate) rebooted: bool,
}

impl CommandLosses {
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), tasks: Mutex::default(), changed: watch::channel(()).0 }
    }

    pub(crate) fn change<T>(&self, task: &Arc<str>, change: impl FnOnce(&mut Losses) -> T) -> T {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = change(tasks.entry(Arc::clone(task)).or_default());
        drop(tasks);
        self.changed.send_replace(());
        answer
    }

    pub(crate) fn is_sought(&self, task: &Arc<str>) -> bool {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.get(task).is_some_and(|losses| losses.sought > 0)
    }

    /// Why the task's command is not begun on another node.
    pub(crate) fn refusal(&self, task: &Arc<str>) -> Option<String> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let losses = tasks.get(task)?;
        // One more than may be out: a single node that breaks down by itself must not stop a fleet.
        if losses.lost.len() <= self.most {
            return None;
        }
        let names: Vec<&str> = losses.lost.iter().map(String::as_str).collect();
        let (what, next) = match losses.rebooted {
            true => ("rebooted", "write `reboot:` in place of what reboots there"),
            false => ("went away and did not come back", "look at these nodes first"),
        };
        Some(format!(
            "not run here: {} {what} in this command, and `max_unavailable` allows {}; {next}",
            fold_names(&names),
            self.most
        ))
    }

    /// Waits until no node is looked for that went away in the task's command.
    pub(crate) async fn known(&self, task: &Arc<str>) {
        let mut changed = self.changed.subscribe();
        while self.is_sought(task) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_not_begun_once_more_are_lost_than_may_be_out() {
        let losses = CommandLosses::new(1);
        let (task, other): (Arc<str>, Arc<str>) = (Arc::from("tasks.0"), Arc::from("tasks.1"));
        let lose = |name: &str| losses.change(&task, |one| one.lost.push(name.to_owned()));
        lose("gpu001");
        assert_eq!(losses.refusal(&task), None);
        lose("gpu002");
        losses.change(&task, |one| one.rebooted = true);
        insta::assert_snapshot!(losses.refusal(&task).unwrap(), @"not run here: gpu[001,002] rebooted in this command, and `max_unavailable` allows 1; write `reboot:` in place of what reboots there");
        assert_eq!(losses.refusal(&other), None, "what another command did says nothing of this one");
    }
}

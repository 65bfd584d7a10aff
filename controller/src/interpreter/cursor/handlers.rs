//! Handlers: which are known, which were notified, and which is next.

use std::sync::Arc;

use super::state::Flush;
use crate::playbook::Task;
use crate::template::{self, Scope, Value};

pub(super) struct Handlers {
    /// Those of the play, then those of roles that were included.
    known: Vec<Arc<Task>>,
    /// Names that were notified since handlers last ran, each with whether only the run will tell.
    waiting: Vec<(String, bool)>,
    /// Handlers of the flush that is on.
    notified: Vec<Notification>,
    flushes: u32,
}

/// A notified handler.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Notification {
    handler: usize,
    /// Only the run will tell whether it is notified.
    possible: bool,
}

/// A handler that is to run.
pub(super) struct DueHandler {
    pub task: Arc<Task>,
    /// Which flush it runs in, from 0.
    pub round: u32,
    /// Only the run will tell whether it is notified.
    pub possible: bool,
}

impl Handlers {
    pub(super) fn new(of_play: Vec<Arc<Task>>) -> Self {
        Self { known: of_play, waiting: Vec::new(), notified: Vec::new(), flushes: 0 }
    }

    /// Adds those that an include brought, each once.
    pub(super) fn add(&mut self, included: &[Arc<Task>]) {
        for handler in included {
            if !self.known.iter().any(|known| Arc::ptr_eq(known, handler)) {
                self.known.push(Arc::clone(handler));
            }
        }
    }

    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn forget_notified(&mut self) {
        self.waiting.clear();
        self.notified.clear();
    }

    /// Notes the handlers that `names` mean. `flushing` tells that handlers are running.
    ///
    /// # Errors
    /// The first name that is no handler's.
    pub(super) fn notify(
        &mut self,
        names: &[String],
        possible: bool,
        scope: &Arc<Scope>,
        flushing: bool,
    ) -> Result<(), String> {
        for name in names {
            let meant = self.meant(name, scope);
            if meant.is_empty() {
                return Err(format!("no handler is called `{name}`"));
            }
            if flushing {
                meant.into_iter().for_each(|handler| self.note(Notification { handler, possible }));
            } else if !self.waiting.contains(&(name.clone(), possible)) {
                self.waiting.push((name.clone(), possible));
            }
        }
        Ok(())
    }

    /// Begins to run what was notified.
    pub(super) fn begin_flush(&mut self, scope: &Arc<Scope>) {
        // Why only now: as in Ansible, a handler that an include brought meanwhile replaces one of the same name.
        for (name, possible) in std::mem::take(&mut self.waiting) {
            for handler in self.meant(&name, scope) {
                self.note(Notification { handler, possible });
            }
        }
        self.flushes += 1;
    }

    /// The next notified handler in the order of definition; none at the end of the flush.
    pub(super) fn next(&mut self, flush: &mut Flush) -> Option<DueHandler> {
        // Why: as in Ansible, one that is notified by a later handler waits for the next pass.
        let open =
            self.notified.iter().map(|notified| notified.handler).filter(|at| !flush.done.contains(at));
        let next = open.min_by_key(|handler| (*handler < flush.last, *handler));
        let Some(handler) = next else {
            // Why: a handler that was notified again by a later one has run in this flush already.
            self.notified.clear();
            return None;
        };
        flush.done.insert(handler);
        flush.pass += u32::from(handler < flush.last);
        flush.last = handler;
        let of_handler = |notified: &&Notification| notified.handler == handler;
        let possible = self.notified.iter().filter(of_handler).all(|notified| notified.possible);
        self.notified.retain(|notified| notified.handler != handler);
        // Why without a look at tags: as in Ansible, tags choose tasks, and a chosen task's handlers run.
        let task = Arc::clone(self.known.get(handler)?);
        Some(DueHandler { task, round: self.flushes.saturating_sub(1), possible })
    }

    fn note(&mut self, notification: Notification) {
        if !self.notified.contains(&notification) {
            self.notified.push(notification);
        }
    }

    /// The handlers that a notification means: one by its name, and those that listen.
    ///
    /// Source: `search_handlers_by_notification` of ansible-core 2.19: the last file or block that has the name decides,
    /// and within it the first handler.
    fn meant(&self, name: &str, scope: &Arc<Scope>) -> Vec<usize> {
        let place = |task: &Arc<Task>| task.path.rsplit_once('.').map(|(block, _)| block.to_owned());
        let mut blocks: Vec<Vec<usize>> = Vec::new();
        for (at, task) in self.known.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|before| self.known.get(before));
            match blocks.last_mut().filter(|_| before.is_some_and(|before| place(before) == place(task))) {
                Some(block) => block.push(at),
                None => blocks.push(vec![at]),
            }
        }
        let order = || blocks.iter().rev().flatten().copied();
        let named = |at: &usize| {
            let Some(task) = self.known.get(*at) else { return false };
            let is = |own: &str| {
                own == name
                    || task.role.as_ref().is_some_and(|role| {
                        name.strip_prefix(&*role.name).and_then(|rest| rest.strip_prefix(" : ")) == Some(own)
                    })
            };
            task.name.as_ref().is_some_and(|own| {
                own.as_str().is_some_and(is)
                    || !own.is_settled()
                        && template::resolve(own, scope).is_ok_and(|own| own.as_str().is_some_and(is))
            })
        };
        let mut meant: Vec<usize> = order().find(named).into_iter().collect();
        let mut heard: Vec<&Value> = Vec::new();
        for at in order() {
            let Some(task) = self.known.get(at).filter(|task| task.listen.iter().any(|topic| topic == name))
            else {
                continue;
            };
            if let Some(own) = &task.name {
                if heard.contains(&own) {
                    continue;
                }
                heard.push(own);
            }
            meant.push(at);
        }
        meant
    }
}

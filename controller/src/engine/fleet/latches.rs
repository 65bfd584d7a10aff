//! Latches: tasks that one host of a wave runs for all (`run_once`).
//!
//! Owns which host runs each of them, which hosts wait for its result, and the result. Invariant: the task of a host
//! that is held is not begun on another one, because it may still be running.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::engine::node::message::{LatchValue, ToNode};

/// Latches that a host took, each with what its task gave if that is known.
pub(crate) type TakenLatches = Vec<(Arc<str>, Option<LatchValue>)>;

#[derive(Default)]
pub(crate) struct Latches {
    /// By the path of the task.
    latches: HashMap<Arc<str>, Latch>,
}

enum Latch {
    /// The host that is to run it, the first of all, has not come to it yet.
    Expected {
        owner: usize,
        waiting: Vec<usize>,
    },
    Running {
        owner: usize,
        waiting: Vec<usize>,
    },
    /// Its host is held, for this reason. A person has to find out whether the task was done.
    Held(String),
    Value(Box<LatchValue>),
}

impl Latches {
    /// Asks for a task that one host runs for all; nothing while another one runs it. Where hosts wait for each other,
    /// `first` is the one that is to run it.
    pub(crate) fn ask(&mut self, host: usize, key: Arc<str>, first: Option<usize>) -> Option<ToNode> {
        match self.latches.get_mut(&key) {
            None if first.is_some_and(|first| first < host) => {
                let owner = first.unwrap_or(host);
                self.latches.insert(key, Latch::Expected { owner, waiting: vec![host] });
                None
            }
            Some(Latch::Expected { owner, waiting }) => {
                if *owner != host {
                    waiting.push(host);
                    return None;
                }
                let waiting = std::mem::take(waiting);
                self.latches.insert(key, Latch::Running { owner: host, waiting });
                Some(ToNode::LatchYours)
            }
            None => {
                self.latches.insert(key, Latch::Running { owner: host, waiting: Vec::new() });
                Some(ToNode::LatchYours)
            }
            Some(Latch::Running { waiting, .. }) => {
                waiting.push(host);
                None
            }
            Some(Latch::Held(why)) => Some(ToNode::Deny(why.clone())),
            Some(Latch::Value(value)) => Some(ToNode::LatchValue(value.clone())),
        }
    }

    /// The task gave a result: the hosts that wait for it.
    pub(crate) fn result(&mut self, key: Arc<str>, result: Box<LatchValue>) -> Vec<usize> {
        match self.latches.insert(key, Latch::Value(result)) {
            Some(Latch::Running { waiting, .. }) => waiting,
            _ => Vec::new(),
        }
    }

    /// Latches whose host cannot come to them, because it waits elsewhere or in line for the budget. Each goes to the first of
    /// the hosts that wait for it.
    pub(crate) fn overdue(
        &mut self,
        at_barrier: impl Iterator<Item = usize>,
        in_line: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        // Why first: this is asked at every barrier of every host, and few plays have a latch.
        if !self.latches.values().any(|latch| matches!(latch, Latch::Expected { .. })) {
            return Vec::new();
        }
        let waits: HashSet<usize> = self
            .latches
            .values()
            .flat_map(|latch| match latch {
                Latch::Expected { waiting, .. } | Latch::Running { waiting, .. } => waiting.clone(),
                Latch::Held(_) | Latch::Value(_) => Vec::new(),
            })
            .chain(at_barrier)
            .collect();
        let mut heirs = Vec::new();
        for latch in self.latches.values_mut() {
            if let Latch::Expected { owner, waiting } = latch
                && (waits.contains(owner) || in_line(*owner))
                && let Some(heir) = first_of(waiting)
            {
                *latch = Latch::Running { owner: heir, waiting: std::mem::take(waiting) };
                heirs.push(heir);
            }
        }
        heirs
    }

    /// A host is gone. Its latch goes to the first of the hosts that wait for it, or to the next host that comes. If the host
    /// is `held` (the reason), no host gets the latch, because what it began may still be running.
    pub(crate) fn pass_on(&mut self, gone: usize, held: Option<&str>) -> Vec<(usize, ToNode)> {
        let mut answers = Vec::new();
        for latch in self.latches.values_mut() {
            if let Latch::Running { owner, waiting } = latch
                && *owner == gone
                && let Some(why) = held
            {
                answers.extend(waiting.drain(..).map(|host| (host, ToNode::Deny(why.to_owned()))));
                *latch = Latch::Held(why.to_owned());
            }
        }
        self.latches.retain(|_, latch| match latch {
            Latch::Expected { owner, waiting } | Latch::Running { owner, waiting } if *owner == gone => {
                let heir = first_of(waiting);
                if let Some(heir) = heir {
                    *latch = Latch::Running { owner: heir, waiting: std::mem::take(waiting) };
                    answers.push((heir, ToNode::LatchYours));
                }
                heir.is_some()
            }
            _ => true,
        });
        answers
    }

    /// Takes over what an earlier process of the run knew.
    pub(crate) fn restore(&mut self, owner: usize, taken: TakenLatches) {
        for (key, value) in taken {
            match value {
                Some(value) => _ = self.latches.insert(key, Latch::Value(Box::new(value))),
                None => {
                    let running = Latch::Running { owner, waiting: Vec::new() };
                    self.latches.entry(key).or_insert(running);
                }
            }
        }
    }
}

/// Takes the first of the play's hosts from those who wait.
fn first_of(waiting: &mut Vec<usize>) -> Option<usize> {
    let at = waiting.iter().enumerate().min_by_key(|(_, host)| **host)?.0;
    Some(waiting.swap_remove(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(answers: &[(usize, ToNode)]) -> Vec<(usize, &str)> {
        let word = |answer: &ToNode| match answer {
            ToNode::LatchYours => "yours",
            ToNode::Deny(_) => "held",
            _ => "something else",
        };
        let mut told: Vec<_> = answers.iter().map(|(host, answer)| (*host, word(answer))).collect();
        told.sort_unstable();
        told
    }

    #[test]
    fn a_task_for_all_goes_to_another_host_but_where_its_own_is_held() {
        let key = || Arc::from("tasks.1");
        let mut latches = Latches::default();
        assert!(matches!(latches.ask(0, key(), Some(0)), Some(ToNode::LatchYours)));
        assert!(latches.ask(1, key(), Some(0)).is_none());
        assert!(latches.ask(2, key(), Some(0)).is_none());
        assert_eq!(told(&latches.pass_on(0, None)), [(1, "yours")], "it is gone and has done nothing");
        assert_eq!(told(&latches.pass_on(1, Some("it is held"))), [(2, "held")], "what it began may go on");
        assert!(matches!(latches.ask(3, key(), Some(3)), Some(ToNode::Deny(_))), "who comes later, too");
    }
}

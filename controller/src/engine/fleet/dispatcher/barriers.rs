//! The barriers of a play, as the dispatcher sees them: who is told what once [`Barriers`] and [`Latches`] know.
//!
//! [`Barriers`]: crate::engine::fleet::barriers
//! [`Latches`]: crate::engine::fleet::latches

use std::sync::Arc;

use crate::{
    engine::{
        error::EngineError,
        fleet::{
            barriers::{BarrierAnswer, Waiter},
            dispatcher::Dispatcher,
        },
        node::message::{LatchValue, ToNode},
    },
    event::{Level, What},
    interpreter::Fed,
    journal::Replayed,
    report::fold_names,
};

impl Dispatcher<'_, '_> {
    /// A host waits for the others.
    pub(crate) fn at_barrier(&mut self, waiter: Waiter) -> Result<(), EngineError> {
        self.barriers.wait(waiter, self.latecomers.barrier_patience());
        self.open_barrier()
    }

    /// Says by name for whom the others wait.
    pub(crate) fn tell_stragglers(&mut self) -> Result<(), EngineError> {
        self.barriers.told_of_stragglers();
        let waiting: Vec<usize> = self.barriers.waiting().collect();
        let in_line = |host| self.rollout.as_ref().is_some_and(|rollout| rollout.waits_for_a_place(host));
        let missing = self.nodes.running().map(|(host, _)| host);
        let missing: Vec<usize> = missing.filter(|host| !waiting.contains(host) && !in_line(*host)).collect();
        if waiting.is_empty() || missing.is_empty() {
            return Ok(());
        }
        let folded =
            |hosts: &[usize]| fold_names(hosts.iter().map(|host| self.name(*host)).collect::<Vec<_>>());
        let text = format!(
            "{} {} for {} before the next task; Ctrl-C stops the run once it answers or its task's time is over",
            folded(&waiting),
            if waiting.len() == 1 { "waits" } else { "wait" },
            folded(&missing)
        );
        self.emit(What::Notice { level: Level::Warning, text })
    }

    /// A host asks for a task that one host runs for all (`run_once`).
    pub(crate) fn at_latch(&mut self, host: usize, key: Arc<str>) -> Result<(), EngineError> {
        // Why also hosts that are still being connected to: which host runs it must not depend on who is quick.
        let there = || self.nodes.running().map(|(host, _)| host);
        let first = match self.context.settings.linear {
            true => there().filter(|host| !self.latecomers.is_late(*host)).min(),
            false => None,
        };
        if let Some(answer) = self.latches.ask(host, key, first) {
            self.answer(host, answer)?;
        }
        self.open_barrier()
    }

    /// Gives what that task gave to those who wait for it.
    pub(crate) fn hand_on(&mut self, key: Arc<str>, result: &LatchValue) -> Result<(), EngineError> {
        for host in self.latches.result(key, Box::new(result.clone())) {
            self.answer(host, ToNode::LatchValue(Box::new(result.clone())))?;
        }
        Ok(())
    }

    /// Lets hosts go on that have waited for all hosts at work.
    pub(crate) fn open_barrier(&mut self) -> Result<(), EngineError> {
        let names = &self.context.names;
        let connector = &self.context.settings.run.connector;
        let at_work = self.nodes.running().map(|(host, connected)| {
            let answered = connected || names.get(host).is_some_and(|name| connector.has_answered(name));
            (host, answered)
        });
        let in_line = |host| self.rollout.as_ref().is_some_and(|rollout| rollout.waits_for_a_place(host));
        let opened = self.barriers.open(at_work.filter(|(host, _)| !self.latecomers.is_late(*host)), in_line);
        for (waiter, _) in opened.iter().filter(|(_, word)| *word == BarrierAnswer::Halt) {
            // Why before any host goes on: what a host does next must not be on disk without what stopped the others.
            self.emit(Replayed::Fed {
                host: self.name(waiter.host),
                play: self.context.settings.play,
                op_id: waiter.task.to_string(),
                fed: Some(Box::new(Fed::Halted)),
                secret: false,
            })?;
        }
        for (waiter, word) in opened {
            let word = match word {
                BarrierAnswer::Go => ToNode::Go,
                BarrierAnswer::End => ToNode::End,
                BarrierAnswer::Halt => ToNode::Halt,
            };
            self.answer(waiter.host, word)?;
        }
        let in_line = |host| self.rollout.as_ref().is_some_and(|rollout| rollout.waits_for_a_place(host));
        for heir in self.latches.overdue(self.barriers.waiting(), in_line) {
            self.answer(heir, ToNode::LatchYours)?;
        }
        Ok(())
    }
}

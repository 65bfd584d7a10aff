//! Where hosts of a play meet: what the dispatcher tells them, once the [`Barriers`](crate::engine::fleet::barriers) knows.

use std::{sync::Arc, time::Duration};

use crate::{
    engine::{
        error::EngineError,
        fleet::{
            barriers::{BarrierAnswer, Waiter},
            dispatcher::{Dispatcher, LATE},
        },
        node::message::{LatchValue, ToNode},
    },
    interpreter::Fed,
    journal::Replayed,
};

impl Dispatcher<'_, '_> {
    /// A host waits for the others.
    pub(crate) fn at_barrier(&mut self, waiter: Waiter) -> Result<(), EngineError> {
        // Why without a bound of ours: as long as nobody connected, nothing is known of how long it takes.
        let silence = match self.slowest.0 {
            Duration::ZERO => Duration::MAX,
            slowest => slowest * 3 + LATE.0,
        };
        self.barriers.wait(waiter, silence);
        self.open_barrier()
    }

    /// A host asks for a task that one of them runs for all.
    pub(crate) fn at_latch(&mut self, host: usize, key: Arc<str>) -> Result<(), EngineError> {
        // Why one that is still being connected to, too: which host it is must not hang on who is quick.
        let there = self.running.keys().copied().filter(|host| !self.late.contains(host));
        let first = if self.context.settings.linear { there.min() } else { None };
        if let Some(answer) = self.barriers.latch(host, key, first) {
            self.answer(host, answer)?;
        }
        self.open_barrier()
    }

    /// Gives what that task gave to those who wait for it.
    pub(crate) fn hand_on(&mut self, key: Arc<str>, result: &LatchValue) -> Result<(), EngineError> {
        for host in self.barriers.result(key, Box::new(result.clone())) {
            self.answer(host, ToNode::LatchValue(Box::new(result.clone())))?;
        }
        Ok(())
    }

    /// Lets those go on who have waited for everybody at work.
    pub(crate) fn open_barrier(&mut self) -> Result<(), EngineError> {
        let at_work = self.running.iter().map(|(host, running)| {
            let answered = running.connected
                || self
                    .context
                    .names
                    .get(*host)
                    .is_some_and(|name| self.context.settings.run.connector.has_answered(name));
            (*host, answered)
        });
        let in_line = |host| self.rollout.as_ref().is_some_and(|rollout| rollout.waits_for_a_place(host));
        let opened = self.barriers.open(at_work.filter(|(host, _)| !self.late.contains(host)), in_line);
        for (waiter, _) in opened.iter().filter(|(_, word)| *word == BarrierAnswer::Halt) {
            // Why here, and before anybody goes on: what one host does next must not be on disk without what it did to another.
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
        for heir in self.barriers.overdue(in_line) {
            self.answer(heir, ToNode::LatchYours)?;
        }
        Ok(())
    }
}

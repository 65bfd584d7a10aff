//! Asking a scheduler until it answers, and taking its lock.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};

use crate::{
    engine::node::{custody::Custody, message::ToNode},
    engine::ports::scheduler::{DrainError, Scheduler},
    event::{DrainStep, NodeState, What},
};

/// How many of the jobs that still run are shown.
const SHOWN: usize = 4;

/// Why a node is not drained.
pub(crate) enum Not {
    Theirs(String),
    /// Another run holds the scheduler's lock.
    Locked(String),
    Given(String),
    /// The run stops.
    Stopped,
}

impl Custody {
    /// Asks until there is an answer, the time is over, or the run stops.
    pub(crate) async fn insist<'a, T>(
        &mut self,
        scheduler: &Scheduler,
        until: Instant,
        ask: impl Fn() -> BoxFuture<'a, Result<T, DrainError>> + Send + 'a,
    ) -> Result<T, Not> {
        loop {
            let why = match self.asked(scheduler, ask()).await? {
                Ok(answer) => return Ok(answer),
                Err(unknown) => unknown.to_string(),
            };
            if Instant::now() + scheduler.poll >= until {
                return Err(Not::Given(why));
            }
            self.node.dispatcher.state(NodeState::Draining, Some(format!("asks again: {why}"))).await;
            if !self.pause(scheduler.poll).await {
                return Err(Not::Stopped);
            }
        }
    }

    /// Waits for one answer. If a dropped request has no effect, it is waited for only while the run goes on.
    pub(crate) async fn asked<T>(
        &mut self,
        scheduler: &Scheduler,
        mut answer: BoxFuture<'_, Result<T, DrainError>>,
    ) -> Result<Result<T, DrainError>, Not> {
        loop {
            tokio::select! {
                answer = &mut answer => return Ok(answer),
                told = self.node.dispatcher.answers.recv(), if scheduler.drainer.may_be_cut() => {
                    if matches!(told, Some(ToNode::StopDraining) | None) {
                        return Err(Not::Stopped);
                    }
                }
            }
        }
    }

    /// Whether it may go on after this time.
    pub(crate) async fn pause(&mut self, span: Duration) -> bool {
        tokio::select! {
            told = self.node.dispatcher.answers.recv() => !matches!(told, Some(ToNode::StopDraining) | None),
            () = sleep(span) => true,
        }
    }

    /// Takes the scheduler's lock, unless this process holds it. From another run it is taken only with `--steal`, once, after
    /// that is on disk.
    pub(crate) async fn lock(&mut self, scheduler: &Scheduler, until: Instant) -> Result<(), Not> {
        let run = self.node.settings.run.holder.run.clone();
        let mut turn = None;
        loop {
            let Some(other) = self.insist(scheduler, until, || scheduler.lock(&run)).await? else {
                return Ok(());
            };
            let steals = self.node.settings.run.overrules.steal && !scheduler.has_lost_lock();
            if !steals || turn.is_some() || Instant::now() >= until {
                return Err(Not::Locked(locked(scheduler, &other)));
            }
            // Why one node at a time: a lock that many nodes find at once is taken once, and reported once.
            turn = scheduler.stealing.try_lock().ok();
            if turn.is_none() {
                if !self.pause(scheduler.poll).await {
                    return Err(Not::Stopped);
                }
                continue;
            }
            let what = format!("the lock of run {other} at {}", scheduler.drainer.name());
            if self.node.dispatcher.durable(What::Overridden { host: None, what }).await.is_err() {
                return Err(Not::Stopped);
            }
            let drainer = Arc::clone(&scheduler.drainer);
            self.insist(scheduler, until, || drainer.unlock(&other)).await?;
        }
    }

    pub(crate) async fn step(&self, step: DrainStep) {
        self.node.dispatcher.emit(What::Drain { host: self.node.host.name.clone(), step }).await;
    }
}

pub(crate) fn locked(scheduler: &Scheduler, other: &str) -> String {
    if other.is_empty() {
        return format!(
            "the lock at {} was taken from this run, and nobody holds it now; nothing more is changed: `gpufleet resume` takes it \
             again and goes on",
            scheduler.drainer.name()
        );
    }
    format!(
        "run {other} holds the lock at {}; wait for it, or take it over with --steal when you know that its gpufleet is gone",
        scheduler.drainer.name()
    )
}

pub(crate) fn shown(work: &[String]) -> String {
    let more = work.len().saturating_sub(SHOWN);
    let first = work.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

//! What a node's task is started for, and what it leaves to read behind.

use std::sync::Arc;

use gpufleet_protocol::message::Mode;

use crate::{
    engine::{
        host::HostState,
        node::{driver::NodeDriver, early_end::EarlyEnd, message::Pace},
    },
    event::{NodeState, READ},
    interpreter::Cursor,
};

/// Makes the cursor of one host for one play.
pub(crate) type MakeCursor = Arc<dyn Fn(&HostState, Mode, bool) -> Option<Cursor> + Send + Sync>;

/// What a node's task is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Connect, read facts if asked, predict if asked.
    Preflight {
        facts: bool,
        predict: bool,
    },
    Apply,
    /// Look whether the node is still well.
    Gate,
}

impl NodeDriver {
    /// Takes one turn, and gives back what is carried of the host, with its index in the play and how the turn ended.
    pub(crate) async fn take(
        mut self,
        turn: Turn,
        make: MakeCursor,
    ) -> (usize, HostState, Result<(), EarlyEnd>) {
        let dispatcher = &mut self.custody.node.dispatcher;
        dispatcher.place = Arc::clone(&dispatcher.forks).acquire_owned().await.ok();
        let mut result = match turn {
            Turn::Preflight { facts, predict } => self.preflight(&make, facts, predict).await,
            Turn::Gate => self.custody.after_soak().await,
            // Why not those that are out: they have to get to a safe point.
            Turn::Apply if self.is_late() && !self.custody.node.is_out() => Err(EarlyEnd::Stopped),
            Turn::Apply => match self.custody.node.host.resumed.take() {
                Some(resumed) => self.take_up(*resumed).await,
                None => self.begin(&make).await,
            },
        };
        drop(self.custody.node.dispatcher.place.take());
        if let Some(why) = self.why_out(&result)
            && let Some(left) = self.custody.explain(&why).await
        {
            result = self.with_left(result, &left);
        }
        (self.custody.node.dispatcher.host, self.custody.node.host, result)
    }

    /// Whether the run does not go on to its first task here: who has begun in an earlier process begins nothing new.
    fn is_late(&self) -> bool {
        let last = if self.custody.node.host.resumed.is_some() { Pace::NoneNew } else { Pace::Going };
        *self.custody.node.dispatcher.pace.borrow() > last
    }

    async fn begin(&mut self, make: &MakeCursor) -> Result<(), EarlyEnd> {
        let host = &self.custody.node.host;
        let defer = host.forecast.is_some_and(|forecast| forecast.reset_and_reboot);
        match make(host, Mode::Apply, defer) {
            Some(cursor) => self.apply(cursor).await,
            None => Err(EarlyEnd::Failed("the play is not there".to_owned())),
        }
    }

    async fn preflight(&mut self, make: &MakeCursor, facts: bool, predict: bool) -> Result<(), EarlyEnd> {
        self.custody.node.dispatcher.state(NodeState::Preflight, None).await;
        self.custody.node.link().await?;
        if facts {
            self.custody.node.facts().await?;
        }
        if predict {
            let host = &self.custody.node.host;
            let now = make(host, Mode::Predict, false);
            let Some((now, deferred)) = now.zip(make(host, Mode::Predict, true)) else {
                return Err(EarlyEnd::Failed("the play is not there".to_owned()));
            };
            self.predict(now, deferred).await?;
        }
        // Why told: who waits for others looks idle, and people ask for whom.
        self.custody.node.dispatcher.state(NodeState::Preflight, Some(READ.to_owned())).await;
        Ok(())
    }

    /// What people at the scheduler read of a node that stays out.
    fn why_out(&self, result: &Result<(), EarlyEnd>) -> Option<String> {
        let host = &self.custody.node.host;
        let why = match result {
            Err(EarlyEnd::Unreachable(why) | EarlyEnd::Held(why) | EarlyEnd::Failed(why)) => Some(why),
            Err(EarlyEnd::Stopped) => None,
            Ok(()) => host.message.as_ref(),
        };
        let why = why.filter(|_| host.custody.drain.is_some() && !host.custody.serves)?;
        let run = &self.custody.node.settings.run.holder.run;
        Some(format!("stays out: {why}; `gpufleet report {run}` tells more"))
    }

    /// The same end with what was left undone at the scheduler.
    fn with_left(&mut self, result: Result<(), EarlyEnd>, left: &str) -> Result<(), EarlyEnd> {
        let with = |why: String| format!("{why}; {left}");
        match result {
            Err(EarlyEnd::Unreachable(why)) => Err(EarlyEnd::Unreachable(with(why))),
            Err(EarlyEnd::Held(why)) => Err(EarlyEnd::Held(with(why))),
            Err(EarlyEnd::Failed(why)) => Err(EarlyEnd::Failed(with(why))),
            Err(EarlyEnd::Stopped) => Err(EarlyEnd::Stopped),
            Ok(()) => {
                let host = &mut self.custody.node.host;
                host.message = host.message.take().map(with);
                Ok(())
            }
        }
    }
}

//! What a node's task is started for, and what it leaves to read behind.

use std::sync::Arc;

use gpufleet_protocol::message::Mode;

use crate::{
    engine::{
        host::Slot,
        node::{cut::Cut, driver::NodeTask},
    },
    event::{NodeState, READ},
    interpreter::Cursor,
};

/// Makes the cursor of one host for one play.
pub(crate) type MakeCursor = Arc<dyn Fn(&Slot, Mode, bool) -> Option<Cursor> + Send + Sync>;

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

/// What people at the scheduler read of a node that stays out.
pub(crate) fn why_out(result: &Result<(), Cut>, task: &NodeTask) -> Option<String> {
    let why = match result {
        Err(Cut::Unreachable(why) | Cut::Held(why) | Cut::Failed(why)) => Some(why),
        Err(Cut::Stopped) => None,
        Ok(()) => task.slot.message.as_ref(),
    };
    let why = why.filter(|_| task.slot.drain.is_some() && !task.slot.serves)?;
    Some(format!("stays out: {why}; `gpufleet report {}` tells more", task.holder.run))
}

/// The same end with what was left undone at the scheduler.
pub(crate) fn with_left(result: Result<(), Cut>, task: &mut NodeTask, left: &str) -> Result<(), Cut> {
    let with = |why: String| format!("{why}; {left}");
    match result {
        Err(Cut::Unreachable(why)) => Err(Cut::Unreachable(with(why))),
        Err(Cut::Held(why)) => Err(Cut::Held(with(why))),
        Err(Cut::Failed(why)) => Err(Cut::Failed(with(why))),
        Err(Cut::Stopped) => Err(Cut::Stopped),
        Ok(()) => {
            task.slot.message = task.slot.message.take().map(with);
            Ok(())
        }
    }
}

pub(crate) async fn preflight(
    task: &mut NodeTask,
    make: &MakeCursor,
    facts: bool,
    predict: bool,
) -> Result<(), Cut> {
    task.state(NodeState::Preflight, None).await;
    task.link().await?;
    if facts {
        task.facts().await?;
    }
    if predict {
        let now = make(&task.slot, Mode::Predict, false);
        let Some((now, deferred)) = now.zip(make(&task.slot, Mode::Predict, true)) else {
            return Err(Cut::Failed("the play is not there".to_owned()));
        };
        task.predict(now, deferred).await?;
    }
    // Why told: who waits for others looks idle, and people ask for whom.
    task.state(NodeState::Preflight, Some(READ.to_owned())).await;
    Ok(())
}

//! What became of a node whose helper was lost in the middle of something: the connection alone never tells.
//!
//! Owns the look at the node afterwards. Invariant: no lock is taken for it, so that it does not disturb other runs.

use std::time::Duration;

use gpufleet_protocol::{FailureKind, OpOutcome};
use tokio::time::{Instant, sleep};

use crate::{
    engine::{
        node::{conversation::Conversation, early_end::EarlyEnd},
        ports::link::{ConnectFailure, LinkError, Purpose},
    },
    event::NodeState,
    interpreter::Fed,
};

/// How long a node that was lost is looked for.
const LOOKED_FOR: Duration = Duration::from_secs(20);
/// How long between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// What a look at a lost node finds.
enum Found {
    /// It runs as before.
    SameBoot,
    Rebooted {
        before: String,
        now: String,
    },
    /// It answers, and that is all there is to say.
    Unfit(String),
    Silent,
    /// The way to it is silent.
    OutOfReach(String),
}

/// Whether a node whose helper was lost is where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    SameBoot,
    Rebooted,
    /// It is silent, and the way to it works.
    Silent,
    /// The way to it is silent, so that nothing is known of it.
    OutOfReach,
}

/// A reboot that this run did not ask for.
pub(crate) fn unexpected_reboot(before: &str, now: &str) -> EarlyEnd {
    EarlyEnd::Failed(format!(
        "rebooted unexpectedly: this run knew it in boot {before}, and it is in {now} now; look at its console and \
         kernel log, then run the playbook on it again"
    ))
}

impl Conversation {
    /// An operation whose answer got lost: how the node stands now decides what its cursor is told.
    pub(crate) async fn broken_off(&mut self, error: LinkError) -> Result<Fed, EarlyEnd> {
        self.whereabouts(error).await.1
    }

    /// The same, with where the node is.
    pub(crate) async fn whereabouts(&mut self, error: LinkError) -> (Whereabouts, Result<Fed, EarlyEnd>) {
        self.host.link = None;
        if self.host.custody.out_of_service {
            self.permit.acted = true;
            self.permit.unproven = Some(error.to_string());
        }
        let found = self.look_for(&error).await;
        let whereabouts = match &found {
            Found::SameBoot | Found::Unfit(_) => Whereabouts::SameBoot,
            Found::Rebooted { .. } => Whereabouts::Rebooted,
            Found::Silent => Whereabouts::Silent,
            Found::OutOfReach(_) => Whereabouts::OutOfReach,
        };
        let fed = match found {
            Found::Rebooted { before, now } => return (whereabouts, Err(unexpected_reboot(&before, &now))),
            Found::SameBoot if error.is_of_helper() => {
                let why = format!("{error}; the node itself goes on, in the same boot");
                Fed::Outcome(Box::new(OpOutcome::failed(FailureKind::Io, why)))
            }
            Found::Unfit(why) => {
                let why = format!("{error}; the node answers, but {why}");
                Fed::Outcome(Box::new(OpOutcome::failed(FailureKind::Io, why)))
            }
            Found::SameBoot => {
                let why = format!("{error}; the node answers again, from the same boot");
                Fed::Unreachable { reason: why }
            }
            Found::Silent => Fed::Unreachable { reason: error.to_string() },
            Found::OutOfReach(why) => Fed::Unreachable { reason: format!("{error}; {why}") },
        };
        (whereabouts, Ok(fed))
    }

    /// The same for what is no task of its own.
    pub(crate) async fn lost(&mut self, error: LinkError) -> EarlyEnd {
        self.host.link = None;
        match self.look_for(&error).await {
            Found::Rebooted { before, now } => unexpected_reboot(&before, &now),
            Found::SameBoot if error.is_of_helper() => {
                EarlyEnd::Failed(format!("{error}; the node itself goes on, in the same boot"))
            }
            Found::Unfit(why) => EarlyEnd::Failed(format!("{error}; the node answers, but {why}")),
            Found::OutOfReach(why) => EarlyEnd::Unreachable(format!("{error}; {why}")),
            Found::SameBoot | Found::Silent => EarlyEnd::Unreachable(error.to_string()),
        }
    }

    async fn look_for(&mut self, error: &LinkError) -> Found {
        let Some(before) = self.boot_id.clone() else { return Found::Silent };
        let state = if self.host.custody.out_of_service { NodeState::Acting } else { NodeState::Applying };
        self.dispatcher.state(state, Some(format!("lost, looking whether it answers: {error}"))).await;
        let purpose = Purpose { writes: false, ..self.settings.purpose };
        let mut deadline = Instant::now() + LOOKED_FOR;
        let mut until = None;
        let mut is_last = false;
        loop {
            let attempt = self.settings.run.connector.connect(&self.host.name, purpose);
            match tokio::time::timeout_at(deadline, attempt).await {
                Ok(Ok(link)) => {
                    let now = link.boot_id();
                    link.close().await;
                    return match now {
                        Some(now) if now != before => Found::Rebooted { before, now },
                        _ => Found::SameBoot,
                    };
                }
                Ok(Err(ConnectFailure::Unfit { cause })) => return Found::Unfit(cause),
                Ok(Err(
                    ConnectFailure::Silent { .. }
                    | ConnectFailure::Refused { .. }
                    | ConnectFailure::Unreachable { .. }
                    | ConnectFailure::Locked { .. }
                    | ConnectFailure::Unknown,
                ))
                | Err(_) => {}
            }
            if Instant::now() + PAUSE < deadline {
                sleep(PAUSE).await;
                continue;
            }
            match self.way_is_silent(&mut until).await {
                Ok(true) => deadline = Instant::now() + LOOKED_FOR,
                // Why once more: all those questions took their time.
                Ok(false) if !std::mem::replace(&mut is_last, true) => deadline = Instant::now() + LOOKED_FOR,
                Ok(false) => return Found::Silent,
                Err(why) => return Found::OutOfReach(why),
            }
        }
    }
}

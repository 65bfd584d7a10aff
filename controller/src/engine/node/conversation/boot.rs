//! In which boot a node is, and how far it has come up.
//!
//! A node is back when it answers from a boot with another identity than before and its system says that it is up. That
//! its connection was lost proves nothing.

use std::time::Duration;

use gpufleet_protocol::{NodeOp, OpRequest, health::SystemState, message::Mode};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    engine::{
        node::{conversation::Conversation, early_end::EarlyEnd},
        ports::link::{ConnectFailure, Link, LinkError},
    },
    event::NodeState,
};

/// How long a node may take to say how far its system is.
const SAYING: Duration = Duration::from_secs(20);
/// First and longest pause between looks at a node that is not back.
pub(crate) const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A boot that is to follow another one.
pub(crate) struct Awaited {
    /// The boot that must be over.
    pub(crate) before: String,
    pub(crate) since: Instant,
    pub(crate) limit: Duration,
    /// The node was seen to go.
    pub(crate) gone: bool,
    /// Until then a node that does not look like going down may be about to.
    pub(crate) settles: Instant,
}

/// How a node stands that is not back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It does not answer, with the last try's reason.
    Silent {
        why: String,
        /// Its address refuses connections, so the way there works.
        refuses: bool,
    },
    /// It cannot be asked, and not for being silent; whether it lives is another matter.
    Shut {
        why: String,
        /// The node answers, and cannot be worked on.
        unfit: bool,
    },
    /// It answers from its old boot.
    Old(Option<SystemState>),
    /// It answers from another boot, and is not up.
    Rising { boot_id: String, why: String },
}

impl Standing {
    pub(crate) fn silent(why: impl Into<String>) -> Self {
        Self::Silent { why: why.into(), refuses: false }
    }

    /// Whether its address refuses connections; `None` where the node itself is heard.
    pub(crate) const fn refuses(&self) -> Option<bool> {
        match self {
            Self::Silent { refuses, .. } => Some(*refuses),
            Self::Shut { unfit: false, .. } => Some(false),
            Self::Shut { .. } | Self::Old(_) | Self::Rising { .. } => None,
        }
    }

    pub(crate) fn end(self, awaited: &Awaited, what: &str, seconds: u64) -> EarlyEnd {
        let before = &awaited.before;
        let going = |system: &SystemState| system.shutdown_scheduled;
        match self {
            Self::Shut { why, unfit: true } => EarlyEnd::Failed(format!(
                "answers after its {what}, and cannot be worked on within {seconds} s: {why}"
            )),
            Self::Silent { why: last, .. } | Self::Shut { why: last, .. } => EarlyEnd::Unreachable(format!(
                "did not come back within {seconds} s after its {what} (last try: {last}); look at its console or \
                 power-cycle it"
            )),
            // Why held: the reboot had no effect, and a person may decide to ask for it once more.
            Self::Old(Some(system)) if going(&system) => EarlyEnd::Held(format!(
                "does not go down: its shutdown is under way since {seconds} s and more, and it is still in boot \
                 {before} ({}); look at its console",
                system.words()
            )),
            Self::Old(_) if awaited.gone => EarlyEnd::Held(format!(
                "did not reboot: it went away and answered again within {seconds} s, with the boot id that it had before, \
                 {before}; look at its console"
            )),
            Self::Old(_) => EarlyEnd::Held(format!(
                "does not go down: still the boot {before} after {seconds} s; look at its console"
            )),
            Self::Rising { boot_id, why } => EarlyEnd::Failed(format!(
                "rebooted, and is not up {seconds} s after it was told to: {why}; it is in boot {boot_id}; look at \
                 `systemctl list-jobs` and its console"
            )),
        }
    }
}

/// A boot id as the kernel writes it. Source: random(4), `/proc/sys/kernel/random/boot_id`.
pub(crate) fn is_boot_id(text: &str) -> bool {
    text.len() == 36 && uuid::Uuid::try_parse(text).is_ok_and(|id| !id.is_nil())
}

impl Conversation {
    /// How far the node's system is; nothing where its helper does not tell.
    pub(crate) async fn system(&self, link: &dyn Link) -> Result<Option<SystemState>, LinkError> {
        let request = OpRequest {
            op: NodeOp::System(gpufleet_protocol::op::System),
            mode: Mode::Apply,
            permit: None,
            run_as: None,
            timeout_s: SAYING.as_secs(),
            op_id: String::new(),
            secret: false,
            environment: Vec::new(),
        };
        match timeout(SAYING * 2, link.call(request, Vec::new(), Box::new(|_| {}))).await {
            Ok(outcome) => Ok(outcome?.system),
            Err(_) => Err(LinkError::NoAnswer),
        }
    }

    /// Looks at the node again and again until it is up in another boot, and answers which. The error is how it stood
    /// last: at the deadline, or as soon as it shows that a node that was not seen going down does not go down.
    pub(crate) async fn until_up(
        &mut self,
        awaited: &Awaited,
        deadline: Instant,
    ) -> Result<String, Standing> {
        let mut pause = PAUSES.0;
        let mut last = Standing::silent("no answer");
        loop {
            let seen = timeout_at(deadline, self.look(&awaited.before)).await;
            let seen = match seen {
                Ok(Ok(boot_id)) => return Ok(boot_id),
                Ok(Err(standing)) => standing,
                Err(_) => return Err(last),
            };
            if let Standing::Old(Some(system)) = &seen
                && !awaited.gone
                && !system.shutdown_scheduled
                && Instant::now() >= awaited.settles
            {
                return Err(seen);
            }
            if seen != last {
                let detail = match &seen {
                    Standing::Silent { .. } => "down".to_owned(),
                    Standing::Shut { why, .. } => format!("cannot be asked: {why}"),
                    Standing::Old(_) => "answers from its old boot".to_owned(),
                    Standing::Rising { why, .. } => format!("in a new boot, and not up: {why}"),
                };
                self.dispatcher.state(NodeState::Rebooting, Some(detail)).await;
            }
            last = seen;
            if Instant::now() + pause >= deadline {
                return Err(last);
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(PAUSES.1);
        }
    }

    /// One look: the new boot of a node that is up in it, or how it stands. Keeps the connection.
    pub(crate) async fn look(&mut self, before: &str) -> Result<String, Standing> {
        let link = match &self.host.link {
            Some((link, _)) => std::sync::Arc::clone(link),
            None => {
                // Why no end where it is locked: this very run's lock may need a moment to fall.
                let link =
                    match self.settings.run.connector.connect(&self.host.name, self.settings.purpose).await {
                        Ok(link) => link,
                        Err(ConnectFailure::Silent { cause }) => return Err(Standing::silent(cause)),
                        Err(ConnectFailure::Refused { cause }) => {
                            return Err(Standing::Silent { why: cause, refuses: true });
                        }
                        Err(ConnectFailure::Unfit { cause }) => {
                            return Err(Standing::Shut { why: cause, unfit: true });
                        }
                        Err(
                            failure @ (ConnectFailure::Unreachable { .. }
                            | ConnectFailure::Locked { .. }
                            | ConnectFailure::Unknown),
                        ) => {
                            return Err(Standing::Shut { why: failure.to_string(), unfit: false });
                        }
                    };
                self.settings.run.ways.connected(&self.host.name, &link);
                self.connected(&*link, 0).await;
                self.host.link = Some((std::sync::Arc::clone(&link), self.settings.purpose));
                link
            }
        };
        let now = link.boot_id().unwrap_or_default();
        let system = match self.system(&*link).await {
            Ok(system) => system,
            Err(error) if now == before => {
                self.host.link = None;
                drop(error);
                return Err(Standing::Old(None));
            }
            Err(error) => {
                self.host.link = None;
                return Err(Standing::Rising { boot_id: now, why: error.to_string() });
            }
        };
        if now == before {
            return Err(Standing::Old(system));
        }
        let why = match system {
            _ if !is_boot_id(&now) => "what it tells is no boot id".to_owned(),
            Some(system) if system.is_up() => return Ok(now),
            Some(system) => system.words(),
            None => "it does not tell how far it is".to_owned(),
        };
        Err(Standing::Rising { boot_id: now, why })
    }

    /// Waits until the node answers.
    pub(crate) async fn wait_for_connection(
        &mut self,
        delay: Duration,
        limit: Duration,
    ) -> Result<(), EarlyEnd> {
        // Why: whatever took it away, a task waits for it, and says how long.
        self.settings.run.ways.expects(&self.host.name);
        sleep(delay).await;
        let deadline = Instant::now() + limit;
        let mut pause = PAUSES.0;
        loop {
            match self.link().await {
                Ok(_) => return Ok(()),
                Err(EarlyEnd::Unreachable(why)) if Instant::now() + pause >= deadline => {
                    return Err(EarlyEnd::Unreachable(format!(
                        "no connection within {} s: {why}",
                        limit.as_secs()
                    )));
                }
                Err(EarlyEnd::Unreachable(_)) => sleep(pause).await,
                Err(other) => return Err(other),
            }
            pause = (pause * 3 / 2).min(PAUSES.1);
        }
    }
}

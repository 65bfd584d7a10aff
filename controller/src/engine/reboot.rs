//! Rebooting a node, and the proof that it did.
//!
//! A node is back when it answers from a boot with another identity than before and its system says that it is up. That
//! its connection was lost proves nothing.

use std::{collections::BTreeSet, time::Duration};

use gpufleet_protocol::{
    Disruption, NodeOp, OpRequest, OpStatus, facts::Facts, health::SystemState, message::Mode, op::Reboot,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    link::{ConnectFailure, Link, LinkError},
    node::{Cut, NodeTask},
};
use crate::{
    drain::RebootOrder,
    event::{NodeState, What},
};

/// How long an orderly shutdown may take before the node is told to go down at once.
const ORDERLY: Duration = Duration::from_secs(300);
/// How long the request to reboot may take to be answered.
const ASKING: Duration = Duration::from_secs(60);
/// How long a node may take to say how far its system is.
const SAYING: Duration = Duration::from_secs(20);
/// How long an order to reboot that somebody else gave may take until the node's system shows that it goes down.
///
/// Why: the helper waits half a second, so that its answer gets out, and a loaded machine takes its time.
pub(super) const SETTLE: Duration = Duration::from_secs(10);
/// First and longest pause between looks at a node that is not back.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// A boot that is to follow another one.
pub(super) struct Awaited {
    /// The boot that must be over.
    pub(super) before: String,
    pub(super) since: Instant,
    pub(super) limit: Duration,
    /// The node was seen to go.
    pub(super) gone: bool,
    /// Until then a node that does not look like going down may be about to.
    pub(super) settles: Instant,
}

/// How a node stands that is not back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
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
    fn silent(why: impl Into<String>) -> Self {
        Self::Silent { why: why.into(), refuses: false }
    }

    /// Whether its address refuses connections; `None` where the node itself is heard.
    pub(super) const fn refuses(&self) -> Option<bool> {
        match self {
            Self::Silent { refuses, .. } => Some(*refuses),
            Self::Shut { unfit: false, .. } => Some(false),
            Self::Shut { .. } | Self::Old(_) | Self::Rising { .. } => None,
        }
    }

    fn end(self, awaited: &Awaited, what: &str, seconds: u64) -> Cut {
        let before = &awaited.before;
        let going = |system: &SystemState| system.shutdown_scheduled;
        match self {
            Self::Shut { why, unfit: true } => Cut::Failed(format!(
                "answers after its {what}, and cannot be worked on within {seconds} s: {why}"
            )),
            Self::Silent { why: last, .. } | Self::Shut { why: last, .. } => Cut::Unreachable(format!(
                "did not come back within {seconds} s after its {what} (last try: {last}); look at its console or \
                 power-cycle it"
            )),
            // Why held: nothing came of the reboot, and whoever looks at the node may have it asked for once more.
            Self::Old(Some(system)) if going(&system) => Cut::Held(format!(
                "does not go down: its shutdown is under way since {seconds} s and more, and it is still in boot \
                 {before} ({}); look at its console",
                system.words()
            )),
            Self::Old(_) if awaited.gone => Cut::Held(format!(
                "did not reboot: it went away and answered again within {seconds} s, with the boot id that it had before, \
                 {before}; look at its console"
            )),
            Self::Old(_) => Cut::Held(format!(
                "does not go down: still the boot {before} after {seconds} s; look at its console"
            )),
            Self::Rising { boot_id, why } => Cut::Failed(format!(
                "rebooted, and is not up {seconds} s after it was told to: {why}; it is in boot {boot_id}; look at \
                 `systemctl list-jobs` and its console"
            )),
        }
    }
}

/// A boot id as the kernel writes it. Source: random(4), `/proc/sys/kernel/random/boot_id`.
fn is_boot_id(text: &str) -> bool {
    text.len() == 36 && uuid::Uuid::try_parse(text).is_ok_and(|id| !id.is_nil())
}

impl NodeTask {
    /// Reboots the node and returns, in seconds, how long it was gone. Counts only with an observed disconnect and a
    /// new boot id.
    pub(super) async fn reboot(&mut self, limit: Duration, why: Vec<String>) -> Result<u64, Cut> {
        let name = self.slot.name.clone();
        let link = self.link().await?;
        let Some(before) = link.boot_id().filter(|id| is_boot_id(id)) else {
            let why =
                "the node does not tell its boot id, so a reboot could not be proven; it was not rebooted";
            return Err(Cut::Failed(why.to_owned()));
        };
        let begin = Instant::now();
        let deadline = begin + limit;
        let issued = What::RebootIssued {
            host: name.clone(),
            boot_id: before.clone(),
            why: why.clone(),
            deadline: wall_clock_after(limit),
        };
        self.durable(issued).await?;
        let earlier = self.slot.rebooted_at.replace(jiff::Timestamp::now());
        if let Err(refused) = self.order_reboot().await {
            self.slot.rebooted_at = earlier;
            self.slot.rebooted_for.retain(|reason| !why.contains(reason));
            self.durable(What::RebootRefused { host: name, why }).await?;
            return Err(refused);
        }
        self.acted = true;
        self.ways.expects(&self.slot.name);
        self.look_back().await;
        self.state(NodeState::Rebooting, Some("shutting down".to_owned())).await;
        let mut awaited = Awaited { before, since: begin, limit, gone: false, settles: begin };
        if timeout(ORDERLY.min(limit / 2), link.closed()).await.is_err() {
            self.hurry(&*link).await?;
            if timeout_at(deadline, link.closed()).await.is_err() {
                let standing = match self.system(&*link).await {
                    Ok(system) => Standing::Old(system),
                    Err(error) => Standing::silent(error.why),
                };
                return self.arrive(awaited, Err(standing)).await;
            }
        }
        awaited.gone = true;
        self.slot.link = None;
        self.state(NodeState::Rebooting, Some("down".to_owned())).await;
        sleep(PAUSES.0).await;
        let waited = self.until_up(&awaited, deadline).await;
        self.arrive(awaited, waited).await
    }

    /// Has the scheduler reboot the node where the play says so, else the node itself.
    async fn order_reboot(&mut self) -> Result<(), Cut> {
        if let (Some(scheduler), Some(marker)) = (self.scheduler.clone(), self.slot.drain.clone())
            && scheduler.reboots
        {
            let target = scheduler.target(&self.slot.name);
            match scheduler.drainer.reboot_via(&target, &marker).await {
                Ok(RebootOrder::Taken) => return Ok(()),
                Ok(RebootOrder::Cannot) => {}
                Ok(RebootOrder::Refused(why)) => {
                    return Err(Cut::Held(format!("is not rebooted: {why}")));
                }
                // Why it goes on: the order may have been taken, and a node that stays up is told to go down itself.
                Err(error) => {
                    self.state(NodeState::Rebooting, Some(error.to_string())).await;
                    return Ok(());
                }
            }
        }
        self.ask_to_reboot(Reboot::Orderly).await
    }

    /// Tells a node that does not go down to do so at once, unless its shutdown is under way: that may only be slow, and
    /// asking again would break it off.
    async fn hurry(&mut self, link: &dyn Link) -> Result<(), Cut> {
        match self.system(link).await {
            Ok(Some(system)) if system.shutdown_scheduled => {
                let detail = format!("its shutdown is under way ({}); waiting for it", system.words());
                self.state(NodeState::Rebooting, Some(detail)).await;
                Ok(())
            }
            // Why nothing: it went meanwhile, or nobody would hear the word.
            Err(_) => Ok(()),
            Ok(_) => {
                // Why anew: the last proof is minutes old, and a scheduler may have refused to reboot it.
                if let Err(no) = self.prove_idle(Disruption::Reboot).await?
                    && !self.overruled(&no).await
                {
                    return Err(Cut::Held(format!("does not go down, and is not forced to: {}", no.why)));
                }
                self.not_queued().await?;
                self.state(NodeState::Rebooting, Some("does not go down; forcing it".to_owned())).await;
                self.ask_to_reboot(Reboot::Forced).await
            }
        }
    }

    /// A node that its scheduler may still reboot is not rebooted beside it: that would be twice.
    async fn not_queued(&self) -> Result<(), Cut> {
        let Some(scheduler) = self.scheduler.as_ref().filter(|scheduler| scheduler.reboots) else {
            return Ok(());
        };
        let (name, target) = (scheduler.drainer.name(), scheduler.target(&self.slot.name));
        match scheduler.drainer.reboot_is_queued(&target).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(Cut::Held(format!(
                "does not go down, and is not forced to: its reboot still waits at {name}; look why, or cancel it there"
            ))),
            Err(unknown) => Err(Cut::Held(format!(
                "does not go down, and is not forced to: whether its reboot still waits at {name} is not known: {unknown}"
            ))),
        }
    }

    /// What follows the wait for a new boot: the power hook where the node did not return, and the end where it did not
    /// help. Answers, in seconds, how long the node was gone.
    pub(super) async fn arrive(
        &mut self,
        awaited: Awaited,
        waited: Result<String, Standing>,
    ) -> Result<u64, Cut> {
        let limit = awaited.limit.as_secs();
        let waited = match waited {
            Ok(boot_id) => Ok(boot_id),
            Err(standing) => self.outlast(&awaited, standing).await?,
        };
        let boot_id = match waited {
            Ok(boot_id) => boot_id,
            Err(standing) => match self.power_cycled(&awaited, &standing).await? {
                None => {
                    let what = if self.slot.power_cycled { "reboot and its power cycle" } else { "reboot" };
                    return Err(standing.end(&awaited, what, limit));
                }
                Some((Ok(boot_id), _)) => boot_id,
                Some((Err(standing), seconds)) => {
                    return Err(standing.end(&awaited, "power cycle", seconds));
                }
            },
        };
        self.left.reboot = None;
        let seconds = awaited.since.elapsed().as_secs();
        self.is_back(boot_id, seconds).await?;
        Ok(seconds)
    }

    /// What follows a proven reboot.
    async fn is_back(&mut self, boot_id: String, seconds: u64) -> Result<(), Cut> {
        let had = self.slot.facts.take();
        (self.slot.rebooted, self.slot.rebooted_drained) = (true, true);
        // Why: whoever took it over while it was down must not be disturbed by what follows.
        self.proven = None;
        self.left.boot_id = Some(boot_id.clone());
        self.emit(What::Rebooted { host: self.slot.name.clone(), boot_id, seconds }).await;
        if let Some(had) = had {
            self.all_back(&had).await?;
        }
        self.state(NodeState::Acting, Some("back; asserting what the reboot lost".to_owned())).await;
        Ok(())
    }

    /// A node that comes back with fewer GPUs than it had stays out of service.
    pub(super) async fn all_back(&mut self, had: &Facts) -> Result<(), Cut> {
        if had.gpu.gpus.is_empty() {
            return Ok(());
        }
        self.facts().await?;
        let now: BTreeSet<String> = match &self.slot.facts {
            Some(facts) => facts.gpu.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            None => BTreeSet::new(),
        };
        let gone = had.gpu.gpus.iter().filter(|gpu| !now.contains(&gpu.uuid));
        let gone: Vec<String> = gone.map(|gpu| format!("GPU {} at {}", gpu.index, gpu.pci)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        Err(Cut::Failed(format!(
            "came back from its reboot without {}; it stays out of service: look at its PCI bus and kernel log, or \
             power-cycle it",
            gone.join(", ")
        )))
    }

    async fn ask_to_reboot(&mut self, how: Reboot) -> Result<(), Cut> {
        let link = self.link().await?;
        let request = OpRequest {
            op: NodeOp::Reboot(how),
            mode: Mode::Apply,
            permit: self.permit.clone(),
            run_as: None,
            timeout_s: ASKING.as_secs(),
            op_id: String::new(),
            secret: false,
            environment: Vec::new(),
        };
        // Why a lost connection is no error: a node that goes down fast takes its answer with it.
        match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) => match outcome.status {
                OpStatus::Failed { message, .. } => Err(Cut::Failed(format!("refuses to reboot: {message}"))),
                _ => Ok(()),
            },
            Err(_) => Ok(()),
        }
    }

    /// How far the node's system is; nothing where its helper does not tell.
    async fn system(&self, link: &dyn Link) -> Result<Option<SystemState>, LinkError> {
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
            Err(_) => Err(LinkError { why: "no answer".to_owned(), helper_ended: false }),
        }
    }

    /// Looks at the node again and again until it is up in another boot, and answers which. The error is how it stood
    /// last: at the deadline, or as soon as a node that nobody saw go turns out not to be going.
    pub(super) async fn until_up(
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
                self.state(NodeState::Rebooting, Some(detail)).await;
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
    pub(super) async fn look(&mut self, before: &str) -> Result<String, Standing> {
        let link = match &self.slot.link {
            Some((link, _)) => std::sync::Arc::clone(link),
            None => {
                // Why no end where it is locked: this very run's lock may need a moment to fall.
                let link = match self.connector.connect(&self.slot.name, self.purpose).await {
                    Ok(link) => link,
                    Err(ConnectFailure::Silent(why)) => return Err(Standing::silent(why)),
                    Err(ConnectFailure::Refused(why)) => {
                        return Err(Standing::Silent { why, refuses: true });
                    }
                    Err(ConnectFailure::Unfit(why)) => return Err(Standing::Shut { why, unfit: true }),
                    Err(ConnectFailure::Unreachable(why) | ConnectFailure::Locked(why)) => {
                        return Err(Standing::Shut { why, unfit: false });
                    }
                };
                self.ways.connected(&self.slot.name, &link);
                self.connected(&*link, 0).await;
                self.slot.link = Some((std::sync::Arc::clone(&link), self.purpose));
                link
            }
        };
        let now = link.boot_id().unwrap_or_default();
        let system = match self.system(&*link).await {
            Ok(system) => system,
            Err(error) if now == before => {
                self.slot.link = None;
                drop(error);
                return Err(Standing::Old(None));
            }
            Err(error) => {
                self.slot.link = None;
                return Err(Standing::Rising { boot_id: now, why: error.why });
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
    pub(super) async fn wait_for_connection(&mut self, delay: Duration, limit: Duration) -> Result<(), Cut> {
        // Why: whatever took it away, a task waits for it, and says how long.
        self.ways.expects(&self.slot.name);
        sleep(delay).await;
        let deadline = Instant::now() + limit;
        let mut pause = PAUSES.0;
        loop {
            match self.link().await {
                Ok(_) => return Ok(()),
                Err(Cut::Unreachable(why)) if Instant::now() + pause >= deadline => {
                    return Err(Cut::Unreachable(format!(
                        "no connection within {} s: {why}",
                        limit.as_secs()
                    )));
                }
                Err(Cut::Unreachable(_)) => sleep(pause).await,
                Err(other) => return Err(other),
            }
            pause = (pause * 3 / 2).min(PAUSES.1);
        }
    }
}

/// The wall clock's time after a span, for the journal.
pub(super) fn wall_clock_after(span: Duration) -> Option<jiff::Timestamp> {
    jiff::Timestamp::now().checked_add(jiff::SignedDuration::try_from(span).ok()?).ok()
}

//! Rebooting a node, and the proof that it rebooted.

use std::{collections::BTreeSet, time::Duration};

use gpufleet_protocol::{
    Awaiting, Disruption, NodeOp, OpRequest, OpStatus, facts::Facts, message::Mode, op::Reboot,
    tasks::GpuDriver,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{
    engine::ports::scheduler::{RebootOrder, VainReboot},
    engine::{
        host::PendingReboot,
        node::{
            conversation::boot::{Awaited, PAUSES, Standing, is_boot_id},
            custody::Custody,
            early_end::EarlyEnd,
        },
        ports::link::Link,
    },
    event::{Level, NodeState, REBOOT_IN_VAIN, What},
    interpreter::Fed,
};

/// How long an orderly shutdown may take before the node is told to go down at once.
const ORDERLY: Duration = Duration::from_secs(300);
/// How long the request to reboot may take to be answered.
const ASKING: Duration = Duration::from_secs(60);
/// How long an order to reboot that someone else gave may take until the node's system shows that it goes down.
///
/// Why: the helper waits half a second, so that its answer is sent, and a loaded machine may take longer.
pub(crate) const SETTLE: Duration = Duration::from_secs(10);

impl Custody {
    /// Takes up a reboot that was asked for: proven by another boot id, waited for while the node is away, and asked
    /// for once more when the node is still in its old boot.
    pub(crate) async fn see_reboot_through(&mut self, limit: Duration) -> Result<Fed, EarlyEnd> {
        let Some(PendingReboot { boot_id: before, deadline, proven }) = self.node.reboot.clone() else {
            return Ok(Fed::Rebooted);
        };
        if proven {
            self.node.reboot = None;
            if let Some(had) = self.node.host.facts.take() {
                self.all_back(&had).await?;
            }
            return Ok(Fed::Rebooted);
        }
        self.node.settings.run.ways.expects(&self.node.host.name);
        self.node.dispatcher.state(NodeState::Rebooting, Some("taken up".to_owned())).await;
        let left = deadline.map_or(limit, |deadline| {
            Duration::try_from(deadline.duration_since(jiff::Timestamp::now())).unwrap_or(Duration::ZERO)
        });
        // Why at least a minute: the deadline may have passed while no process ran, and the node may be back.
        let left = left.max(Duration::from_secs(60));
        let since = Instant::now();
        let awaited = Awaited { before, since, limit: left, gone: false, settles: since + SETTLE };
        match self.node.until_up(&awaited, Instant::now() + left).await {
            Err(Standing::Old(Some(system))) if !system.shutdown_scheduled => {
                self.node.reboot = None;
                self.node.boot_id = Some(awaited.before);
                let why = "the node had not gone down";
                if let Err(held) = self.permitted(Disruption::Reboot, why).await? {
                    return Ok(held);
                }
                self.reboot(limit, vec![why.to_owned()]).await?;
            }
            waited => {
                self.arrive(awaited, waited).await?;
            }
        }
        Ok(Fed::Rebooted)
    }

    /// What this run rebooted a node for must not wait for another reboot: such a node is not given back.
    pub(crate) fn made_current(&self, awaiting: &[Awaiting]) -> Result<(), EarlyEnd> {
        if !self.node.host.custody.out_of_service {
            return Ok(());
        }
        let mut still: Vec<&str> = Vec::new();
        for awaiting in awaiting.iter().filter(|awaiting| awaiting.activation == Disruption::Reboot) {
            let reason = awaiting.reason.as_str();
            if self.node.host.custody.rebooted_for.contains(reason) && !still.contains(&reason) {
                still.push(reason);
            }
        }
        match still.is_empty() {
            true => Ok(()),
            false => Err(EarlyEnd::Failed(format!(
                "{REBOOT_IN_VAIN}, so it {}: {}; look at its \
                 kernel log, or power-cycle it",
                self.stays(),
                still.join(", ")
            ))),
        }
    }

    /// The reboot of an earlier run for the same reasons that led to the boot in which the node still is: another one would
    /// do as little.
    pub(crate) fn earlier_in_vain(&self, reasons: &[String]) -> Option<&VainReboot> {
        let vain = self.node.settings.earlier.vain.get(&self.node.host.name)?;
        let is_same_boot = self.boot_id().is_some_and(|boot_id| boot_id == vain.boot_id);
        (is_same_boot && reasons.iter().all(|reason| vain.why.contains(reason))).then_some(vain)
    }

    /// Reboots the node and returns, in seconds, how long it was gone. Counts only with an observed disconnect and a
    /// new boot id.
    pub(crate) async fn reboot(&mut self, limit: Duration, why: Vec<String>) -> Result<u64, EarlyEnd> {
        let name = self.node.host.name.clone();
        let link = self.node.link().await?;
        let Some(before) = link.boot_id().filter(|id| is_boot_id(id)) else {
            let why =
                "the node does not tell its boot id, so a reboot could not be proven; it was not rebooted";
            return Err(EarlyEnd::Failed(why.to_owned()));
        };
        let begin = Instant::now();
        let deadline = begin + limit;
        let issued = What::RebootIssued {
            host: name.clone(),
            boot_id: before.clone(),
            why: why.clone(),
            deadline: wall_clock_after(limit),
        };
        self.node.dispatcher.durable(issued).await?;
        let earlier = self.node.host.custody.rebooted_at.replace(jiff::Timestamp::now());
        if let Err(refused) = self.order_reboot().await {
            self.node.host.custody.rebooted_at = earlier;
            self.node.host.custody.rebooted_for.retain(|reason| !why.contains(reason));
            self.node.dispatcher.durable(What::RebootRefused { host: name, why }).await?;
            return Err(refused);
        }
        self.node.permit.acted = true;
        self.node.settings.run.ways.expects(&self.node.host.name);
        self.look_back().await;
        self.node.dispatcher.state(NodeState::Rebooting, Some("shutting down".to_owned())).await;
        let mut awaited = Awaited { before, since: begin, limit, gone: false, settles: begin };
        if timeout(ORDERLY.min(limit / 2), link.closed()).await.is_err() {
            self.hurry(&*link).await?;
            if timeout_at(deadline, link.closed()).await.is_err() {
                let standing = match self.node.system(&*link).await {
                    Ok(system) => Standing::Old(system),
                    Err(error) => Standing::silent(error.to_string()),
                };
                return self.arrive(awaited, Err(standing)).await;
            }
        }
        awaited.gone = true;
        self.node.host.link = None;
        self.node.dispatcher.state(NodeState::Rebooting, Some("down".to_owned())).await;
        sleep(PAUSES.0).await;
        let waited = self.node.until_up(&awaited, deadline).await;
        self.arrive(awaited, waited).await
    }

    /// Has the scheduler reboot the node where the play says so, else the node itself.
    async fn order_reboot(&mut self) -> Result<(), EarlyEnd> {
        if let (Some(scheduler), Some(marker)) =
            (self.node.settings.scheduler.clone(), self.node.host.custody.drain.clone())
            && scheduler.reboots
        {
            let target = scheduler.target(&self.node.host.name);
            match scheduler.drainer.reboot_via(&target, &marker).await {
                Ok(RebootOrder::Taken) => return Ok(()),
                Ok(RebootOrder::Cannot) => {}
                Ok(RebootOrder::Refused(why)) => {
                    return Err(EarlyEnd::Held(format!("is not rebooted: {why}")));
                }
                // Why no error: the scheduler may have taken the order, and a node that stays up is told to reboot itself.
                Err(error) => {
                    self.node.dispatcher.state(NodeState::Rebooting, Some(error.to_string())).await;
                    return Ok(());
                }
            }
        }
        self.ask_to_reboot(Reboot::Orderly).await
    }

    /// Tells a node that does not go down to do so at once. Not if its shutdown is under way: it may only be slow, and a
    /// second order would break it off.
    async fn hurry(&mut self, link: &dyn Link) -> Result<(), EarlyEnd> {
        match self.node.system(link).await {
            Ok(Some(system)) if system.shutdown_scheduled => {
                let detail = format!("its shutdown is under way ({}); waiting for it", system.words());
                self.node.dispatcher.state(NodeState::Rebooting, Some(detail)).await;
                Ok(())
            }
            // Why nothing: the node went down meanwhile, or does not hear it.
            Err(_) => Ok(()),
            Ok(_) => {
                // Why again: the last proof is minutes old, and the scheduler may have refused the reboot.
                if let Err(no) = self.prove_idle(Disruption::Reboot).await?
                    && !self.overruled(&no).await
                {
                    return Err(EarlyEnd::Held(format!(
                        "does not go down, and is not forced to: {}",
                        no.why
                    )));
                }
                self.not_queued().await?;
                self.node
                    .dispatcher
                    .state(NodeState::Rebooting, Some("does not go down; forcing it".to_owned()))
                    .await;
                self.ask_to_reboot(Reboot::Forced).await
            }
        }
    }

    /// A node that its scheduler may still reboot is not rebooted by this run: it would reboot twice.
    async fn not_queued(&self) -> Result<(), EarlyEnd> {
        let Some(scheduler) = self.node.settings.scheduler.as_ref().filter(|scheduler| scheduler.reboots)
        else {
            return Ok(());
        };
        let (name, target) = (scheduler.drainer.name(), scheduler.target(&self.node.host.name));
        match scheduler.drainer.reboot_is_queued(&target).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(EarlyEnd::Held(format!(
                "does not go down, and is not forced to: its reboot still waits at {name}; look why, or cancel it there"
            ))),
            Err(unknown) => Err(EarlyEnd::Held(format!(
                "does not go down, and is not forced to: whether its reboot still waits at {name} is not known: {unknown}"
            ))),
        }
    }

    /// What follows the wait for a new boot: the power hook where the node did not return, and the end where it did not
    /// help. Answers, in seconds, how long the node was gone.
    pub(crate) async fn arrive(
        &mut self,
        awaited: Awaited,
        waited: Result<String, Standing>,
    ) -> Result<u64, EarlyEnd> {
        let limit = awaited.limit.as_secs();
        let waited = match waited {
            Ok(boot_id) => Ok(boot_id),
            Err(standing) => self.outlast(&awaited, standing).await?,
        };
        let boot_id = match waited {
            Ok(boot_id) => boot_id,
            Err(standing) => match self.power_cycled(&awaited, &standing).await? {
                None => {
                    let what = if self.node.host.custody.power_cycled {
                        "reboot and its power cycle"
                    } else {
                        "reboot"
                    };
                    return Err(standing.end(&awaited, what, limit));
                }
                Some((Ok(boot_id), _)) => boot_id,
                Some((Err(standing), seconds)) => {
                    return Err(standing.end(&awaited, "power cycle", seconds));
                }
            },
        };
        self.node.reboot = None;
        let seconds = awaited.since.elapsed().as_secs();
        self.is_back(boot_id, seconds).await?;
        Ok(seconds)
    }

    /// What follows a proven reboot.
    async fn is_back(&mut self, boot_id: String, seconds: u64) -> Result<(), EarlyEnd> {
        let had = self.node.host.facts.take();
        (self.node.host.custody.rebooted, self.node.host.custody.rebooted_drained) = (true, true);
        // Why: the node may have been taken over while it was down, and what follows must not disturb that.
        self.proven = None;
        self.node.boot_id = Some(boot_id.clone());
        self.node
            .dispatcher
            .emit(What::Rebooted { host: self.node.host.name.clone(), boot_id, seconds })
            .await;
        if let Some(had) = had {
            self.all_back(&had).await?;
        }
        self.node
            .dispatcher
            .state(NodeState::Acting, Some("back; asserting what the reboot lost".to_owned()))
            .await;
        Ok(())
    }

    /// Whether the GPUs are there, and only the driver that the node rebooted for is not. What declared it is asserted next,
    /// and brings the former one back.
    fn driver_failed(&self, had: &Facts) -> bool {
        let host = &self.node.host;
        let for_driver = host.custody.rebooted_for.iter().any(|reason| GpuDriver::is_awaited(reason));
        for_driver
            && host.facts.as_ref().is_some_and(|facts| {
                facts.gpu.gpus.is_empty() && facts.gpu.pci_count >= had.gpu.pci_count.max(1)
            })
    }

    /// A node that comes back with fewer GPUs than it had stays out of service.
    pub(crate) async fn all_back(&mut self, had: &Facts) -> Result<(), EarlyEnd> {
        if had.gpu.gpus.is_empty() && had.gpu.pci_count == 0 {
            return Ok(());
        }
        self.node.facts().await?;
        // Of a node whose driver listed none, such as one that was replaced on disk, only the bus told how many there are.
        let on_bus = self.node.host.facts.as_ref().map_or(0, |facts| facts.gpu.pci_count);
        if had.gpu.gpus.is_empty() && on_bus < had.gpu.pci_count {
            return Err(EarlyEnd::Failed(format!(
                "came back from its reboot with {on_bus} of {} GPUs on its PCI bus; it {}: look at its kernel \
                 log, or power-cycle it",
                had.gpu.pci_count,
                self.stays()
            )));
        }
        if self.driver_failed(had) {
            return Ok(());
        }
        let now: BTreeSet<String> = match &self.node.host.facts {
            Some(facts) => facts.gpu.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            None => BTreeSet::new(),
        };
        let gone = had.gpu.gpus.iter().filter(|gpu| !now.contains(&gpu.uuid));
        let gone: Vec<String> = gone.map(|gpu| format!("GPU {} at {}", gpu.index, gpu.pci)).collect();
        if gone.is_empty() {
            return Ok(());
        }
        Err(EarlyEnd::Failed(format!(
            "came back from its reboot without {}; it {}: look at its PCI bus and kernel log, or \
             power-cycle it",
            gone.join(", "),
            self.stays()
        )))
    }

    async fn ask_to_reboot(&mut self, how: Reboot) -> Result<(), EarlyEnd> {
        let link = self.node.link().await?;
        let request = OpRequest {
            op: NodeOp::Reboot(how),
            mode: Mode::Apply,
            permit: self.node.permit.permit.clone(),
            run_as: None,
            timeout_s: ASKING.as_secs(),
            op_id: String::new(),
            secret: false,
            environment: Vec::new(),
        };
        // Why a lost connection is no error: a node that goes down fast cannot answer.
        match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) => match outcome.status {
                OpStatus::Failed { message, .. } => {
                    Err(EarlyEnd::Failed(format!("refuses to reboot: {message}")))
                }
                _ => {
                    // Why a notice: the reboot may serve several tasks, and none of them asked the node.
                    if !outcome.warnings.is_empty() {
                        let text = format!("{}: {}", self.node.host.name, outcome.warnings.join("; "));
                        self.node.dispatcher.emit(What::Notice { level: Level::Warning, text }).await;
                    }
                    Ok(())
                }
            },
            Err(_) => Ok(()),
        }
    }
}

/// The wall clock's time after a span, for the journal.
pub(crate) fn wall_clock_after(span: Duration) -> Option<jiff::Timestamp> {
    jiff::Timestamp::now().checked_add(jiff::SignedDuration::try_from(span).ok()?).ok()
}

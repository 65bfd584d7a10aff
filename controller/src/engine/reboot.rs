//! Rebooting a node, and the proof that it did.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use gpufleet_protocol::{NodeOp, OpRequest, OpStatus, facts::Facts, message::Mode, op::Reboot};
use tokio::time::{Instant, sleep, timeout};

use super::{
    link::{ConnectFailure, Link},
    node::{Cut, NodeTask},
};
use crate::event::{NodeState, What};

/// How long an orderly shutdown may take before the node is told to go down at once.
const ORDERLY: Duration = Duration::from_secs(300);
/// How long the request to reboot may take to be answered.
const ASKING: Duration = Duration::from_secs(60);
/// First and longest pause between tries to reach a node that is down.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

impl NodeTask {
    /// Reboots the node and returns, in seconds, how long it was gone. Counts only with an observed disconnect and a
    /// new boot id.
    pub(super) async fn reboot(&mut self, limit: Duration, why: Vec<String>) -> Result<u64, Cut> {
        let name = self.slot.name.clone();
        let link = self.link().await?;
        let Some(before) = link.boot_id() else {
            let why =
                "the node does not tell its boot id, so a reboot could not be proven; it was not rebooted";
            return Err(Cut::Failed(why.to_owned()));
        };
        let begin = Instant::now();
        let deadline = begin + limit;
        let issued = What::RebootIssued {
            host: name.clone(),
            boot_id: before.clone(),
            why,
            deadline: wall_clock_after(limit),
        };
        self.durable(issued).await?;
        self.slot.rebooted_at = Some(jiff::Timestamp::now());
        self.ask_to_reboot(Reboot::Orderly).await?;
        self.acted = true;
        self.state(NodeState::Rebooting, Some("shutting down".to_owned())).await;
        if timeout(ORDERLY.min(limit / 2), link.closed()).await.is_err() {
            self.state(NodeState::Rebooting, Some("does not go down; forcing it".to_owned())).await;
            self.ask_to_reboot(Reboot::Forced).await?;
            if tokio::time::timeout_at(deadline, link.closed()).await.is_err() {
                return Err(Cut::Failed(format!(
                    "does not go down: still the boot {before} after {} s; look at its console",
                    limit.as_secs()
                )));
            }
        }
        self.slot.link = None;
        self.state(NodeState::Rebooting, Some("down".to_owned())).await;
        let boot_id = self.until_back(&before, deadline, limit).await?;
        let seconds = begin.elapsed().as_secs();
        self.is_back(boot_id, seconds).await?;
        Ok(seconds)
    }

    /// What follows a proven reboot.
    pub(super) async fn is_back(&mut self, boot_id: String, seconds: u64) -> Result<(), Cut> {
        let had = self.slot.facts.take();
        self.slot.rebooted = true;
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

    pub(super) async fn ask_to_reboot(&mut self, how: Reboot) -> Result<(), Cut> {
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

    pub(super) async fn until_back(
        &mut self,
        before: &str,
        deadline: Instant,
        limit: Duration,
    ) -> Result<String, Cut> {
        let mut pause = PAUSES.0;
        let mut last = String::from("no answer");
        while Instant::now() + pause < deadline {
            sleep(pause).await;
            pause = (pause * 3 / 2).min(PAUSES.1);
            let attempt =
                tokio::time::timeout_at(deadline, self.connector.connect(&self.slot.name, self.purpose));
            match attempt.await {
                Ok(Ok(link)) => match link.boot_id() {
                    Some(now) if now != before => {
                        self.connected(&*link, 0).await;
                        self.slot.link = Some((link, self.purpose));
                        return Ok(now);
                    }
                    _ => {
                        last = "answers, and has not gone down yet".to_owned();
                        link.close().await;
                    }
                },
                // Why no end: the lock that this very run held before the reboot may need a moment to fall.
                Ok(Err(ConnectFailure::Locked(why) | ConnectFailure::Unreachable(why))) => last = why,
                Err(_) => break,
            }
        }
        Err(Cut::Unreachable(format!(
            "did not come back within {} s after its reboot (last try: {last}); look at its console or power-cycle it",
            limit.as_secs()
        )))
    }

    /// Connects, however often that takes until the deadline.
    pub(super) async fn answering(&mut self, deadline: Instant) -> Result<Arc<dyn Link>, Cut> {
        let mut pause = PAUSES.0;
        loop {
            let attempt = self.connector.connect(&self.slot.name, self.purpose);
            let why = match tokio::time::timeout_at(deadline, attempt).await {
                Ok(Ok(link)) => {
                    self.connected(&*link, 0).await;
                    return Ok(link);
                }
                Ok(Err(ConnectFailure::Locked(why) | ConnectFailure::Unreachable(why))) => why,
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() + pause >= deadline {
                return Err(Cut::Unreachable(format!(
                    "did not come back from the reboot that this run asked for (last try: {why}); look at its console \
                     or power-cycle it"
                )));
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(PAUSES.1);
        }
    }

    /// Waits until the node answers.
    pub(super) async fn wait_for_connection(&mut self, delay: Duration, limit: Duration) -> Result<(), Cut> {
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
fn wall_clock_after(span: Duration) -> Option<jiff::Timestamp> {
    jiff::Timestamp::now().checked_add(jiff::SignedDuration::try_from(span).ok()?).ok()
}

//! What is said to a node and heard from it: connections, requests, jobs, files, facts, and the boot it is in.

mod arriving;
pub(super) mod boot;
mod command_loss;
pub(in crate::engine) mod delegates;
mod fetch;
mod job;
mod keep;
pub(super) mod loss;
mod request;
pub(super) mod silence;
pub(in crate::engine) mod ways;

use std::{sync::Arc, time::Duration};

use gpufleet_protocol::{
    NodeOp, OpOutcome, OpRequest, Permit, Reply, Request, message::Mode, op::FactsRequest,
};
use tokio::time::Instant;

use crate::{
    engine::{
        host::{HostState, PendingReboot},
        node::{dispatcher::DispatcherHandle, early_end::EarlyEnd, settings::PlaySettings},
        ports::link::{ConnectFailure, Link},
        verdict::{self, UnderPermit},
    },
    event::What,
};

/// How long reading facts, or the proof that a node is idle, may take.
pub(crate) const READING: Duration = Duration::from_secs(60);

/// One node that is talked to.
pub(crate) struct Conversation {
    pub(crate) dispatcher: DispatcherHandle,
    pub(crate) settings: Arc<PlaySettings>,
    pub(crate) host: HostState,
    pub(crate) permit: PermitUse,
    /// When its connection broke while nothing was asked over it.
    pub(crate) broke: Option<Instant>,
    /// The boot that the node was last seen in.
    pub(crate) boot_id: Option<String>,
    /// A reboot that an earlier process of this run asked for.
    pub(crate) reboot: Option<PendingReboot>,
}

/// The permit that goes with each request, and what came of it.
#[derive(Default)]
pub(crate) struct PermitUse {
    pub(crate) permit: Option<Permit>,
    /// Whether anything was done under the permit.
    pub(crate) acted: bool,
    /// What went wrong under the permit, until the node is proven to be well.
    pub(crate) unproven: Option<String>,
}

impl Conversation {
    /// Ends the node's connection, if there is one.
    pub(crate) async fn hang_up(&mut self) {
        if let Some((link, _)) = self.host.link.take() {
            self.settings.run.ways.closes(&self.host.name);
            link.close().await;
        }
    }

    /// The node's link, connected now when it is not yet, or not for this purpose.
    pub(crate) async fn link(&mut self) -> Result<Arc<dyn Link>, EarlyEnd> {
        if let Some((link, purpose)) = &self.host.link {
            // Why: an earlier task of the node made this connection, and what follows must be the same boot.
            if self.reboot.is_none() && self.boot_id.is_none() {
                self.boot_id = link.boot_id();
            }
            let serves = (purpose.writes || !self.settings.purpose.writes)
                && purpose.own_commands == self.settings.purpose.own_commands
                && purpose.r#become == self.settings.purpose.r#become
                && purpose.local == self.settings.purpose.local
                && self.settings.run.connector.is_same_way(
                    &self.host.name,
                    purpose.login,
                    self.settings.purpose.login,
                );
            if serves {
                return Ok(Arc::clone(link));
            }
            self.hang_up().await;
        }
        let begin = tokio::time::Instant::now();
        self.host.tally.since.get_or_insert_with(|| begin.into_std());
        match self.reach().await {
            Ok(link) => {
                let ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.connected(&*link, ms).await;
                self.same_boot(&*link)?;
                self.host.link = Some((Arc::clone(&link), self.settings.purpose));
                Ok(link)
            }
            Err(failure) => Err(match failure {
                ConnectFailure::Silent { .. }
                | ConnectFailure::Refused { .. }
                | ConnectFailure::Unreachable { .. }
                | ConnectFailure::Unknown => EarlyEnd::Unreachable(failure.to_string()),
                ConnectFailure::Locked { cause } => EarlyEnd::Held(cause),
                ConnectFailure::Unfit { cause } => EarlyEnd::Failed(cause),
            }),
        }
    }

    pub(crate) async fn connected(&self, link: &dyn Link, ms: u64) {
        let host = self.host.name.clone();
        self.dispatcher
            .emit(What::Connected { host, pushed: link.pushed(), ms, boot_id: link.boot_id() })
            .await;
        if let Some(kept) = link.kept() {
            let (host, report) = (self.host.name.clone(), Box::new(kept.clone()));
            self.dispatcher.emit(What::Kept { host, report }).await;
        }
    }

    /// A reboot that this run did not ask for loses what it has done, and possibly more.
    pub(crate) fn same_boot(&mut self, link: &dyn Link) -> Result<(), EarlyEnd> {
        let now = link.boot_id();
        match (&self.boot_id, &now) {
            (Some(before), Some(after)) if before != after && self.reboot.is_none() => {
                Err(loss::unexpected_reboot(before, after))
            }
            _ => {
                if self.reboot.is_none() {
                    self.boot_id = now;
                }
                Ok(())
            }
        }
    }

    /// Reads the node's facts, once a boot.
    pub(crate) async fn facts(&mut self) -> Result<(), EarlyEnd> {
        if self.host.facts.is_some() {
            return Ok(());
        }
        let outcome = self
            .simple(NodeOp::Facts(FactsRequest { gpus: true, ..FactsRequest::default() }), READING)
            .await?;
        if let Some(facts) = outcome.facts {
            self.dispatcher
                .emit(What::FactsRead { host: self.host.name.clone(), facts: facts.clone() })
                .await;
            self.host.facts = Some(Arc::from(facts));
        }
        Ok(())
    }

    pub(crate) async fn simple(&mut self, op: NodeOp, timeout: Duration) -> Result<OpOutcome, EarlyEnd> {
        let link = self.link().await?;
        let request = OpRequest {
            op,
            mode: Mode::Apply,
            permit: self.permit.permit.clone(),
            run_as: None,
            timeout_s: timeout.as_secs(),
            op_id: String::new(),
            secret: false,
            environment: Vec::new(),
        };
        match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => Err(self.lost(error).await),
        }
    }

    pub(crate) async fn request(&mut self, request: Request) -> Result<(), EarlyEnd> {
        let link = self.link().await?;
        match link.request(request).await {
            Ok(Reply::Error { message }) => Err(EarlyEnd::Failed(message)),
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(error).await),
        }
    }

    /// Whether it is out of service through us, or may be.
    pub(crate) const fn is_out(&self) -> bool {
        self.host.is_out()
    }

    /// What an outcome says of the node while it is out of service.
    pub(crate) fn judge(&mut self, outcome: &OpOutcome) {
        if !self.host.custody.out_of_service {
            return;
        }
        match verdict::under_permit(outcome) {
            UnderPermit::Untouched => {}
            UnderPermit::Acted => self.permit.acted = true,
            UnderPermit::Damaged(why) => {
                self.permit.acted = true;
                self.permit.unproven = Some(why);
            }
        }
    }
}

//! Giving a node back to its scheduler, or leaving it to someone who took it over.
//!
//! Invariant: a drain ends given back, left to someone else, or named as stuck.

use std::{sync::Arc, time::Duration};

use gpufleet_protocol::{Disruption, NodeOp, op::FactsRequest};
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use crate::{
    engine::node::{
        conversation::READING,
        custody::{
            Custody,
            asking::{Not, locked},
        },
        early_end::EarlyEnd,
    },
    engine::ports::scheduler::{DrainError, GpuOffer, Marker, Ownership, Scheduler, Target},
    event::{DrainStep, Level, NodeState, What},
    rollout::Input,
};

/// How long a scheduler that does not answer is asked to take a node back.
const PATIENCE: Duration = Duration::from_secs(180);
/// What is wrong where the marks of a drain stay on a node that is somebody else's.
pub(crate) const NOT_PUT_BACK: &str = "what the drain changed besides could not be put back";
/// How often it is looked at what a scheduler waits for.
const SHOWING: Duration = Duration::from_secs(1);

impl Custody {
    /// Gives the node back. After a disruptive act that failed only a person does, even if a rescue took care of the failure.
    pub(crate) async fn release(&mut self) -> Result<(), EarlyEnd> {
        if !self.node.is_out() {
            return Ok(());
        }
        if let Some(why) = self.node.permit.unproven.take() {
            return Err(EarlyEnd::Held(match self.node.host.custody.drain.is_some() {
                true => format!("failed while it was out of service, and nobody proved it well since: {why}"),
                false => format!("failed while it was disturbed, and nobody proved it well since: {why}"),
            }));
        }
        if self.node.permit.acted {
            self.pass_gate().await?;
        }
        self.node.permit.permit = None;
        self.node.permit.acted = false;
        self.node.dispatcher.state(NodeState::Resuming, None).await;
        self.give_back().await.map_err(EarlyEnd::Held)?;
        self.proven = None;
        self.node.host.custody.adopted = false;
        self.node.host.custody.out_of_service = false;
        self.node.host.custody.rebooted_at = None;
        self.node.dispatcher.emit(What::Released { host: self.node.host.name.clone() }).await;
        self.node.dispatcher.tell(Input::Released { host: self.node.dispatcher.host }).await;
        self.node.dispatcher.state(NodeState::Applying, None).await;
        Ok(())
    }

    /// What becomes of a node that is not well: without a scheduler nothing keeps work away from it.
    pub(crate) const fn stays(&self) -> &'static str {
        match self.node.host.custody.drain.is_some() {
            true => "stays out of service",
            false => "is not given back as well, though nothing keeps work away from it",
        }
    }

    /// A node that someone else gave back while this run worked on it is not out of service any more, and keeps none of this
    /// run's marks.
    pub(crate) async fn leave_to_its_work(&mut self, why: &str) {
        if self.node.host.custody.drain.is_none() || self.node.host.custody.serves {
            return;
        }
        let mut text = format!("{}: {why} while this run worked on it: it takes work", self.node.host.name);
        let gone = self.let_go().await;
        if let Err(left) = &gone {
            text.push_str(&format!("; {NOT_PUT_BACK}: {left}"));
        }
        self.node.host.custody.out_of_service = false;
        self.node.host.custody.serves = true;
        // Why: idle GPUs may be reset beside other work, but the machine may not be rebooted.
        if let Some(permit) = &mut self.node.permit.permit {
            permit.class = permit.class.min(Disruption::GpuReset);
        }
        self.marks_are_off(gone).await;
        self.node.dispatcher.emit(What::Notice { level: Level::Warning, text }).await;
        self.node.dispatcher.emit(What::Released { host: self.node.host.name.clone() }).await;
        self.node.dispatcher.tell(Input::Released { host: self.node.dispatcher.host }).await;
    }

    /// Takes this run's marks off a node that serves, where that failed before.
    pub(crate) async fn take_marks_off(&mut self) -> Result<(), EarlyEnd> {
        let gone = self.let_go().await;
        match self.marks_are_off(gone).await {
            None => Ok(()),
            Some(left) => Err(EarlyEnd::Held(format!(
                "it takes work, and what its drain changed besides could not be put back: {left}; `gpufleet resume` tries \
                 again"
            ))),
        }
    }

    /// Ends the drain of a node that serves. If something is left at the scheduler, the drain is not over, and this says what.
    async fn marks_are_off(&mut self, gone: Result<(), DrainError>) -> Option<String> {
        match gone {
            Ok(()) => {
                self.node.host.custody.drain = None;
                self.step(DrainStep::GivenBack).await;
                None
            }
            Err(left) => {
                let why = left.to_string();
                self.step(DrainStep::Stuck { why: why.clone() }).await;
                Some(why)
            }
        }
    }

    /// Gives the node back to its scheduler where it is still ours; the error says why it may still be out.
    pub(crate) async fn give_back(&mut self) -> Result<(), String> {
        let (Some(scheduler), Some(marker)) =
            (self.node.settings.scheduler.clone(), self.node.host.custody.drain.clone())
        else {
            return Ok(());
        };
        self.node.dispatcher.state(NodeState::Resuming, None).await;
        let target = scheduler.target(&self.node.host.name);
        let (drainer, rebooted) = (Arc::clone(&scheduler.drainer), self.node.host.custody.rebooted_at);
        // Why not of a node that was left alone: a boot that this run did not cause does not prevent giving it back.
        drainer.tell_boot(&target, self.boot_id().filter(|_| self.node.host.custody.out_of_service));
        let until = Instant::now() + drainer.patience().unwrap_or(PATIENCE);
        let mut told = String::new();
        let answer = match self.lock_again(&scheduler, until).await {
            Err(why) => Err(why),
            Ok(()) => loop {
                if scheduler.drainer.wants_offer() {
                    drainer.expect(&target, self.offer().await);
                }
                match self.resumed(&scheduler, &target, &marker, rebooted).await {
                    Err(unknown)
                        if drainer.patience().is_none() && Instant::now() + scheduler.poll < until =>
                    {
                        self.waits_to_give_back(&unknown, &mut told).await;
                        sleep(scheduler.poll).await;
                    }
                    answer => break answer.map_err(|unknown| unknown.to_string()),
                }
            },
        };
        let why = match answer {
            Ok(Ownership::NotDrained) => {
                self.node.host.custody.drain = None;
                self.step(DrainStep::GivenBack).await;
                return Ok(());
            }
            Ok(Ownership::Theirs { by }) => match self.let_go().await {
                Ok(()) => {
                    self.node.host.custody.drain = None;
                    self.step(DrainStep::LeftTo { by }).await;
                    self.node
                        .dispatcher
                        .tell(Input::OthersOut { host: self.node.dispatcher.host, out: true })
                        .await;
                    return Ok(());
                }
                Err(left) => format!("{by} has it, and {NOT_PUT_BACK}: {left}"),
            },
            Ok(Ownership::Ours) => format!("{} still shows it as drained by this run", drainer.name()),
            Err(why) => why,
        };
        self.node.host.custody.out_of_service = true;
        self.is_stuck = true;
        self.step(DrainStep::Stuck { why: why.clone() }).await;
        Err(format!(
            "it could not be given back to {} ({why}); `gpufleet resume`, or `gpufleet abort` where the run is to end, tries \
             again",
            drainer.name()
        ))
    }

    /// Has the scheduler take the node back, and shows what that waits for.
    async fn resumed(
        &self,
        scheduler: &Scheduler,
        target: &Target,
        marker: &Marker,
        rebooted: Option<Timestamp>,
    ) -> Result<Ownership, DrainError> {
        let mut answer = scheduler.drainer.resume(target, marker, rebooted);
        let mut told = None;
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                () = sleep(SHOWING) => {
                    let waits = scheduler.drainer.waits_for(target);
                    if let Some(why) = waits.as_ref().filter(|_| waits != told) {
                        self.node.dispatcher.state(NodeState::Resuming, Some(format!("waits: {why}"))).await;
                    }
                    told = waits;
                }
            }
        }
    }

    /// The GPUs of a node that was disturbed; `None` if it was not, or if they cannot be read.
    async fn offer(&mut self) -> Option<GpuOffer> {
        if !self.node.host.custody.out_of_service {
            return None;
        }
        let request = NodeOp::Facts(FactsRequest { gpus: true, ..FactsRequest::default() });
        let outcome = self.node.simple(request, READING).await.ok()?;
        GpuOffer::of(&outcome.facts?.gpu)
    }

    /// Takes the lock that an earlier process of this run may have given back; the error says who has it.
    ///
    /// Why not as before a drain: a run that stops gives its nodes back all the same.
    async fn lock_again(&mut self, scheduler: &Scheduler, until: Instant) -> Result<(), String> {
        let (run, mut told) = (self.node.settings.run.holder.run.clone(), String::new());
        loop {
            match scheduler.lock(&run).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) if self.node.settings.run.overrules.steal && !scheduler.has_lost_lock() => {
                    return match self.lock(scheduler, until).await {
                        Err(Not::Locked(why) | Not::Given(why) | Not::Theirs(why)) => Err(why),
                        Err(Not::Stopped) => Err("the run stops".to_owned()),
                        Ok(()) => Ok(()),
                    };
                }
                Ok(Some(other)) => return Err(locked(scheduler, &other)),
                Err(unknown) if Instant::now() + scheduler.poll >= until => return Err(unknown.to_string()),
                Err(unknown) => {
                    self.waits_to_give_back(&unknown, &mut told).await;
                    sleep(scheduler.poll).await;
                }
            }
        }
    }

    /// Shows why a node is not given back yet, each cause once.
    async fn waits_to_give_back(&self, why: &DrainError, told: &mut String) {
        let why = why.to_string();
        if *told != why {
            told.clone_from(&why);
            self.node.dispatcher.state(NodeState::Resuming, Some(format!("waits: {why}"))).await;
        }
    }

    /// Puts back what this drain changed besides on a node that someone else has now.
    pub(crate) async fn let_go(&self) -> Result<(), DrainError> {
        let (Some(scheduler), Some(marker)) = (&self.node.settings.scheduler, &self.node.host.custody.drain)
        else {
            return Ok(());
        };
        let target = scheduler.target(&self.node.host.name);
        let until = Instant::now() + PATIENCE;
        loop {
            match scheduler.drainer.let_go(&target, marker).await {
                Err(_) if Instant::now() + scheduler.poll < until => sleep(scheduler.poll).await,
                answer => return answer,
            }
        }
    }

    /// The boot that the host is in; `None` if it never told.
    pub(crate) fn boot_id(&self) -> Option<String> {
        match &self.node.host.link {
            Some((link, _)) => link.boot_id(),
            None => self.node.boot_id.clone(),
        }
    }

    /// Tells the scheduler why the node stays out. Says what is left undone there, for people.
    pub(crate) async fn explain(&self, why: &str) -> Option<String> {
        let (Some(scheduler), Some(marker)) = (&self.node.settings.scheduler, &self.node.host.custody.drain)
        else {
            return None;
        };
        let target = scheduler.target(&self.node.host.name);
        let until = Instant::now() + PATIENCE;
        loop {
            match scheduler.drainer.explain(&target, marker, why).await {
                Ok(()) => return None,
                Err(_) if Instant::now() + scheduler.poll < until => sleep(scheduler.poll).await,
                Err(error) => {
                    let left =
                        format!("{} could not be told why it stays out: {error}", scheduler.drainer.name());
                    self.step(DrainStep::Stuck { why: left.clone() }).await;
                    return Some(left);
                }
            }
        }
    }
}

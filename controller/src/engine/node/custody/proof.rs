//! The proof, right before each act, that a node is ours and idle.
//!
//! Invariant: an answer that does not come is never a "yes".

use std::time::Duration;

use gpufleet_protocol::{Disruption, NodeOp, message::IdleVerdict, op::Staying};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    engine::node::{
        conversation::READING,
        custody::{
            Custody,
            asking::{Not, shown},
            refusal::No,
        },
        early_end::EarlyEnd,
    },
    engine::ports::scheduler::{Activity, Cordon, DrainError, Ownership, Scheduler},
    event::{Level, NodeState, What},
    interpreter::Fed,
};

/// How long a scheduler that does not answer is asked right before an act.
///
/// Why not a minute: that is what a scheduler takes to start again.
pub(crate) const PROOF: Duration = Duration::from_secs(150);
/// Age below which a proof needs no repeating.
const FRESH: Duration = Duration::from_secs(5);
/// How long a look right after an act may take.
const LOOKING_BACK: Duration = Duration::from_secs(10);

impl Custody {
    /// Whether the scheduler still holds the node for us, with nothing on it, and under our lock. If that cannot be
    /// found out within a while, the answer is no. With `clears` the work that is there is asked to go, and has that while.
    pub(crate) async fn still_ours(&mut self, clears: bool) -> Result<(), No> {
        let Some(scheduler) = self.node.settings.scheduler.clone() else { return Ok(()) };
        let until = Instant::now() + PROOF;
        // Why: the process that drained it gave the lock back when it ended.
        match self.lock(&scheduler, until).await {
            Ok(()) => {}
            Err(Not::Locked(why)) => return Err(No::firm(why)),
            Err(Not::Given(why)) => return Err(No::soft(why)),
            Err(Not::Theirs(_) | Not::Stopped) => return Err(No::soft("the run stops".to_owned())),
        }
        loop {
            let no = match self.standing(&scheduler, clears).await {
                Ok(Err(no)) if no.passing => no,
                Ok(standing) => return standing,
                Err(unknown) => No::soft(unknown.to_string()),
            };
            if Instant::now() + scheduler.poll >= until {
                return Err(no);
            }
            let detail = format!("asks again before it is disturbed: {}", no.why);
            self.node.dispatcher.state(NodeState::Waiting, Some(detail)).await;
            sleep(scheduler.poll).await;
        }
    }

    /// Pods that the scheduler leaves on the node: the node must not count them as work. It is asked for a while.
    pub(crate) async fn staying(&self) -> Result<Vec<String>, No> {
        let Some(scheduler) = &self.node.settings.scheduler else { return Ok(Vec::new()) };
        let target = scheduler.target(&self.node.host.name);
        let until = Instant::now() + PROOF;
        loop {
            match scheduler.drainer.staying(&target).await {
                Ok(staying) => return Ok(staying),
                Err(unknown) if Instant::now() + scheduler.poll >= until => {
                    return Err(No::soft(unknown.to_string()));
                }
                Err(_) => sleep(scheduler.poll).await,
            }
        }
    }

    /// The inner error is a "no".
    pub(crate) async fn standing(
        &self,
        scheduler: &Scheduler,
        clears: bool,
    ) -> Result<Result<(), No>, DrainError> {
        let name = scheduler.drainer.name();
        let target = scheduler.target(&self.node.host.name);
        let firm = |why: String| Ok(Err(No::firm(why)));
        let Some(marker) = &self.node.host.custody.drain else {
            return firm(format!("it is not drained at {name}"));
        };
        match scheduler.drainer.ownership(&target, marker).await? {
            Ownership::Ours => {}
            Ownership::NotDrained => {
                let why = format!("somebody gave it back to {name}");
                return Ok(Err(No { serves: true, ..No::firm(why) }));
            }
            Ownership::Theirs { by } => return firm(format!("somebody took it over: {by}")),
        }
        scheduler.drainer.tell_boot(&target, self.boot_id());
        // Why: a scheduler that rebooted the node itself may have dropped the drain.
        if scheduler.reboots && self.node.host.custody.rebooted_drained {
            let why = self.reason_on(&target);
            match scheduler.drainer.cordon(&target, marker, &why).await? {
                Cordon::Ours { .. } => {}
                Cordon::HeldByOthers { by } => return firm(format!("somebody took it over: {by}")),
                Cordon::Refused { why } => return firm(why),
            }
        }
        let left = match clears {
            true => scheduler.drainer.clear(&target, marker).await?,
            false => scheduler.drainer.activity(&target).await?,
        };
        match left {
            Activity::Idle => {}
            Activity::Busy { work } if clears => return Ok(Err(No::passing(shown(&work)))),
            Activity::Busy { work } | Activity::Stuck { why: work } => {
                return Ok(Err(No::soft(shown(&work))));
            }
        }
        Ok(match scheduler.drainer.locked(&self.node.settings.run.holder.run).await? {
            true => Ok(()),
            false => Err(No::firm(format!("the lock at {name} is not this run's any more"))),
        })
    }

    /// Proves anew, before an act under an older permit, that the node may be disturbed; the inner error is the refusal.
    pub(crate) async fn still_allowed(&mut self, most: Disruption) -> Result<(), Fed> {
        let fresh = self.proven.is_some_and(|proven| proven.elapsed() < FRESH);
        if self.node.permit.permit.is_none() || most == Disruption::Live || fresh {
            return Ok(());
        }
        if self.node.host.custody.serves {
            return self.beside_work("somebody gave it back").await;
        }
        let standing = match self.calm().await {
            Ok(()) => self.still_ours(false).await,
            storm => storm,
        };
        if let Err(no) = standing
            && !self.overruled(&no).await
        {
            if no.serves && self.node.host.custody.rebooted_drained {
                return self.beside_work(&no.why).await;
            }
            return Err(Fed::held(format!("not disturbed any further: {}", no.why)));
        }
        self.proven = Some(Instant::now());
        Ok(())
    }

    /// Whether what a reboot took may be asserted on a node that was given back meanwhile by someone else; the error is the refusal.
    ///
    /// Why at all: without it the node serves with less than was declared.
    async fn beside_work(&mut self, why: &str) -> Result<(), Fed> {
        self.leave_to_its_work(why).await;
        let held = |what: &str| {
            Fed::held(format!(
                "{why}, and it takes work: what its reboot took is not asserted while that may disturb somebody ({what}); \
                 `gpufleet resume` drains it anew and ends it"
            ))
        };
        let pods = self.staying().await.map_err(|no| held(&no.why))?;
        let idle = NodeOp::Idle(Staying { pods, may_hold_gpus: false });
        let report = match self.node.simple(idle, READING).await {
            Ok(outcome) => outcome.idle,
            Err(_) => None,
        };
        let Some(report) = report else { return Err(held("it does not tell what works there")) };
        self.node
            .dispatcher
            .emit(What::IdleChecked { host: self.node.host.name.clone(), report: report.clone() })
            .await;
        match report.verdict {
            IdleVerdict::Idle => {
                self.proven = Some(Instant::now());
                Ok(())
            }
            IdleVerdict::Busy | IdleVerdict::Unknown => Err(held(&report.reasons.join("; "))),
        }
    }

    /// Looks right after an act whether the node was given back or taken over since the last proof. No API excludes that, so
    /// it is reported.
    pub(crate) async fn look_back(&self) {
        let (Some(scheduler), Some(marker)) = (&self.node.settings.scheduler, &self.node.host.custody.drain)
        else {
            return;
        };
        let target = scheduler.target(&self.node.host.name);
        let name = scheduler.drainer.name();
        let what = match timeout(LOOKING_BACK, scheduler.drainer.ownership(&target, marker)).await {
            Ok(Ok(Ownership::NotDrained)) => format!("somebody gave it back to {name}"),
            Ok(Ok(Ownership::Theirs { by })) => format!("somebody took it over ({by})"),
            Ok(Ok(Ownership::Ours) | Err(_)) | Err(_) => return,
        };
        let text = format!(
            "{}: {what} at the very moment in which it was disturbed: look what started there meanwhile",
            self.node.host.name
        );
        self.node.dispatcher.emit(What::Notice { level: Level::Warning, text }).await;
    }

    /// Whether `--force` overrules this, which is then recorded.
    pub(crate) async fn overruled(&self, no: &No) -> bool {
        if !self.node.settings.run.overrules.force || no.firm {
            return false;
        }
        let host = Some(self.node.host.name.clone());
        self.node.dispatcher.durable(What::Overridden { host, what: no.why.clone() }).await.is_ok()
    }

    /// Whether the node is idle now. Unknown means busy.
    pub(crate) async fn prove_idle(&mut self, class: Disruption) -> Result<Result<(), No>, EarlyEnd> {
        self.node
            .dispatcher
            .state(NodeState::Draining, Some(format!("checking that nothing works here ({class})")))
            .await;
        if let Err(no) = self.calm().await {
            return Ok(Err(no));
        }
        // Why: services that had been stopped for the act run again on a node that stayed out.
        if let Err(no) = self.still_ours(self.node.host.custody.out_of_service).await {
            return Ok(Err(no));
        }
        let pods = match self.staying().await {
            Ok(pods) => pods,
            Err(no) => return Ok(Err(no)),
        };
        let outcome = self
            .node
            .simple(NodeOp::Idle(Staying { pods, may_hold_gpus: class == Disruption::Reboot }), READING)
            .await?;
        let Some(report) = outcome.idle else {
            let why = "the node cannot tell whether anything works on it";
            return Ok(Err(No::soft(why.to_owned())));
        };
        self.node
            .dispatcher
            .emit(What::IdleChecked { host: self.node.host.name.clone(), report: report.clone() })
            .await;
        Ok(match report.verdict {
            IdleVerdict::Idle => Ok(()),
            IdleVerdict::Busy => Err(No::soft(report.reasons.join("; "))),
            IdleVerdict::Unknown => {
                let why = format!("cannot tell whether it is idle: {}", report.reasons.join("; "));
                Err(No::soft(why))
            }
        })
    }
}

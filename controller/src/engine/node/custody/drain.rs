//! A node and its scheduler: taken from it before anything is disturbed, proven ours before each act, given back.
//!
//! Invariants: what was begun is on disk before the scheduler is asked; an answer that does not come is never a "no" and
//! never a "yes"; whatever happens to the node's work, its drain ends given back, left to somebody else, or named.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use gpufleet_protocol::{
    Disruption, NodeOp, OpRequest, OpStatus,
    message::IdleVerdict,
    op::{FactsRequest, Staying},
};
use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    drain::{Activity, Cordon, DrainError, GpuOffer, Marker, Ownership, Scheduler, Target},
    engine::node::{
        cut::Cut,
        driver::{NodeTask, READING},
        message::ToNode,
    },
    event::{DrainStep, Level, NodeState, What},
    interpreter::{Action, Fed},
    rollout::Input,
};

/// How long a scheduler that does not answer is asked to take a node back.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long a scheduler that does not answer is asked right before an act.
///
/// Why not a minute: that is what a scheduler takes to start again.
const PROOF: Duration = Duration::from_secs(150);
/// Age below which a proof needs no repeating.
const FRESH: Duration = Duration::from_secs(5);
/// How often what a scheduler waits for is looked at.
const SHOWING: Duration = Duration::from_secs(1);
/// How long a look right after an act may take.
const LOOKING_BACK: Duration = Duration::from_secs(10);
/// Entries of what still runs that are shown.
const SHOWN: usize = 4;

/// Why a node is not drained.
enum Not {
    Theirs(String),
    /// Another run holds the scheduler's lock.
    Locked(String),
    Given(String),
    /// The run stops.
    Stopped,
}

/// Why a node may not be disturbed.
pub(crate) struct No {
    pub(crate) why: String,
    /// No `--force` goes over it: the node is somebody else's, or nobody's.
    firm: bool,
    /// What was asked to go, and may be gone in a moment.
    passing: bool,
    /// Somebody gave it back: it takes work.
    pub(crate) serves: bool,
}

impl No {
    pub(crate) const fn firm(why: String) -> Self {
        Self { why, firm: true, passing: false, serves: false }
    }

    /// Busy, or unknown.
    pub(crate) const fn soft(why: String) -> Self {
        Self { why, firm: false, passing: false, serves: false }
    }

    const fn passing(why: String) -> Self {
        Self { why, firm: false, passing: true, serves: false }
    }
}

/// What is asked for one node.
struct Asked {
    scheduler: Arc<Scheduler>,
    target: Target,
    marker: Marker,
    until: Instant,
}

impl NodeTask {
    /// Takes the node from its scheduler, waits until nothing runs there, and tells the dispatcher how that went.
    pub(crate) async fn drain(&mut self, deadline: Timestamp) -> Result<(), Cut> {
        let host = self.host;
        let answer = match self.take(deadline).await? {
            Ok(()) => Input::Drained { host },
            Err(Not::Theirs(mut by)) => {
                if let Err(left) = self.let_go().await {
                    by.push_str(&format!("; what the drain changed besides could not be put back: {left}"));
                }
                self.slot.drain = None;
                self.step(DrainStep::Refused { by: by.clone() }).await;
                Input::DrainRefused { host, by }
            }
            Err(not) => {
                let why = match not {
                    Not::Given(why) | Not::Locked(why) => why,
                    _ => "the run stops".to_owned(),
                };
                match self.give_back().await {
                    Ok(()) => Input::DrainFailed { host, why, still_out: false },
                    Err(stuck) => {
                        Input::DrainFailed { host, why: format!("{why}; {stuck}"), still_out: true }
                    }
                }
            }
        };
        self.tell(answer).await;
        Ok(())
    }

    async fn take(&mut self, deadline: Timestamp) -> Result<Result<(), Not>, Cut> {
        let Some(scheduler) = self.scheduler.clone() else { return Ok(Ok(())) };
        let given = deadline.duration_since(Timestamp::now());
        let own = scheduler.timeout + scheduler.notice.map_or(Duration::ZERO, |notice| notice.deadline);
        let until = Instant::now() + own.min(Duration::try_from(given).unwrap_or_default());
        if let Err(not) = self.lock(&scheduler, until).await {
            return Ok(Err(not));
        }
        let marker = match self.slot.drain.clone() {
            Some(marker) => marker,
            None => self.begin(&scheduler).await?,
        };
        let target = scheduler.target(&self.slot.name);
        let asked = Asked { scheduler, target, marker, until };
        Ok(self.taken(&asked).await)
    }

    async fn begin(&mut self, scheduler: &Scheduler) -> Result<Marker, Cut> {
        let mut nonce = uuid::Uuid::new_v4().simple().to_string();
        nonce.truncate(12);
        let marker = Marker { run: self.holder.run.clone(), nonce };
        let begun = DrainStep::Begun {
            scheduler: scheduler.drainer.name().to_owned(),
            node: scheduler.target(&self.slot.name).node,
            run: marker.run.clone(),
            nonce: marker.nonce.clone(),
        };
        self.durable(What::Drain { host: self.slot.name.clone(), step: begun }).await?;
        self.slot.drain = Some(marker.clone());
        (self.slot.rebooted_drained, self.slot.serves) = (false, false);
        Ok(marker)
    }

    async fn taken(&mut self, asked: &Asked) -> Result<(), Not> {
        let Asked { scheduler, target, marker, until } = asked;
        let notice = scheduler.notice;
        if let Some(notice) = notice.filter(|notice| notice.before_cordon) {
            self.notify(asked).await?;
            // Why its end is no failure: what follows ends the work, or waits for it.
            let told = Asked {
                scheduler: Arc::clone(scheduler),
                target: target.clone(),
                marker: marker.clone(),
                until: (*until).min(Instant::now() + notice.deadline),
            };
            if let Err(Not::Stopped) = self.idle(&told, false).await {
                return Err(Not::Stopped);
            }
        }
        let why = self.reason_on(target);
        let drainer = Arc::clone(&scheduler.drainer);
        drainer.tell_boot(target, self.boot_id());
        let cordoned = self.insist(scheduler, *until, || drainer.cordon(target, marker, &why)).await?;
        match cordoned {
            Cordon::Ours { evidence } => self.step(DrainStep::Cordoned { evidence }).await,
            Cordon::HeldByOthers { by } => return Err(Not::Theirs(by)),
            Cordon::Refused { why } => return Err(Not::Given(why)),
        }
        if notice.is_some_and(|notice| !notice.before_cordon) {
            self.notify(asked).await?;
        }
        self.idle(asked, true).await?;
        self.step(DrainStep::Drained).await;
        Ok(())
    }

    async fn notify(&mut self, asked: &Asked) -> Result<(), Not> {
        let Asked { scheduler, target, marker, until } = asked;
        let drainer = Arc::clone(&scheduler.drainer);
        let who = self.insist(scheduler, *until, || drainer.notify(target, marker)).await?;
        if !who.is_empty() {
            self.step(DrainStep::Told { who }).await;
        }
        Ok(())
    }

    /// Waits until the scheduler knows of nothing that runs there; with `held`, as long as the node is ours.
    async fn idle(&mut self, asked: &Asked, held: bool) -> Result<(), Not> {
        let Asked { scheduler, target, marker, until } = asked;
        let name = scheduler.drainer.name();
        let mut told = String::new();
        loop {
            let over = Instant::now() >= *until;
            let mut in_the_way = None;
            if held {
                match scheduler.drainer.ownership(target, marker).await {
                    Ok(Ownership::Ours) => {}
                    Ok(Ownership::Theirs { by }) => return Err(Not::Theirs(by)),
                    Ok(Ownership::NotDrained) => {
                        return Err(Not::Given(format!(
                            "somebody gave it back to {name} while it was being drained"
                        )));
                    }
                    Err(unknown) => in_the_way = Some(unknown.to_string()),
                }
            }
            // Why nobody is asked at the end: it would not be waited for.
            let left = match held && !over {
                true => scheduler.drainer.clear(target, marker).await,
                false => scheduler.drainer.activity(target).await,
            };
            let busy = match left {
                Ok(Activity::Idle) => None,
                Ok(Activity::Busy { work }) => Some(shown(&work)),
                Ok(Activity::Stuck { why }) => {
                    // Why all of them: what is lost by a person's word is on record.
                    let all = No::soft(format!("it cannot be drained: {}", why.join(", ")));
                    let overruled = held && self.overruled(&all).await;
                    return if overruled { Ok(()) } else { Err(Not::Given(shown(&why))) };
                }
                Err(unknown) => Some(unknown.to_string()),
            };
            let Some(what) = in_the_way.or(busy) else { return Ok(()) };
            if over {
                let what = if told.is_empty() { what } else { told };
                let why = format!("its time to drain is over, and it still waits for {what}");
                // Why only then: work that would end by itself in that time shall do so.
                let no = No::soft(why);
                return if held && self.overruled(&no).await { Ok(()) } else { Err(Not::Given(no.why)) };
            }
            // Why not each time: a drain waits for hours, and each word of it is kept.
            if told != what {
                self.state(NodeState::Draining, Some(format!("waits for {what}"))).await;
                told = what;
            }
            let left = until.saturating_duration_since(Instant::now());
            if !self.pause(scheduler.poll.min(left)).await {
                return Err(Not::Stopped);
            }
        }
    }

    /// Asks until there is an answer, the time is over, or the run stops.
    async fn insist<'a, T>(
        &mut self,
        scheduler: &Scheduler,
        until: Instant,
        ask: impl Fn() -> BoxFuture<'a, Result<T, DrainError>> + Send + 'a,
    ) -> Result<T, Not> {
        loop {
            let why = match self.asked(scheduler, ask()).await? {
                Ok(answer) => return Ok(answer),
                Err(unknown) => unknown.to_string(),
            };
            if Instant::now() + scheduler.poll >= until {
                return Err(Not::Given(why));
            }
            self.state(NodeState::Draining, Some(format!("asks again: {why}"))).await;
            if !self.pause(scheduler.poll).await {
                return Err(Not::Stopped);
            }
        }
    }

    /// Waits for one answer; where a request that is dropped has no effect from then on, not longer than the run goes on.
    async fn asked<T>(
        &mut self,
        scheduler: &Scheduler,
        mut answer: BoxFuture<'_, Result<T, DrainError>>,
    ) -> Result<Result<T, DrainError>, Not> {
        loop {
            tokio::select! {
                answer = &mut answer => return Ok(answer),
                told = self.answers.recv(), if scheduler.drainer.may_be_cut() => {
                    if matches!(told, Some(ToNode::StopDraining) | None) {
                        return Err(Not::Stopped);
                    }
                }
            }
        }
    }

    /// Whether it may go on after this time.
    async fn pause(&mut self, span: Duration) -> bool {
        tokio::select! {
            told = self.answers.recv() => !matches!(told, Some(ToNode::StopDraining) | None),
            () = sleep(span) => true,
        }
    }

    /// Takes the scheduler's lock unless this process holds it; from another run only with a person's `--steal`, once, and
    /// with that on disk before.
    async fn lock(&mut self, scheduler: &Scheduler, until: Instant) -> Result<(), Not> {
        let run = self.holder.run.clone();
        let mut turn = None;
        loop {
            let Some(other) = self.insist(scheduler, until, || scheduler.lock(&run)).await? else {
                return Ok(());
            };
            let steals = self.overrules.steal && !scheduler.has_lost_lock();
            if !steals || turn.is_some() || Instant::now() >= until {
                return Err(Not::Locked(locked(scheduler, &other)));
            }
            // Why one at a time: what many nodes find at once is taken once, and told once.
            turn = scheduler.stealing.try_lock().ok();
            if turn.is_none() {
                if !self.pause(scheduler.poll).await {
                    return Err(Not::Stopped);
                }
                continue;
            }
            let what = format!("the lock of run {other} at {}", scheduler.drainer.name());
            if self.durable(What::Overridden { host: None, what }).await.is_err() {
                return Err(Not::Stopped);
            }
            let drainer = Arc::clone(&scheduler.drainer);
            self.insist(scheduler, until, || drainer.unlock(&other)).await?;
        }
    }

    /// Whether the scheduler still holds the node for us, with nothing on it, and lets nobody else of us at it. Not
    /// knowing is a "no", after it was asked for a while. With `clears` what is there is asked to go, and has that while.
    pub(crate) async fn still_ours(&mut self, clears: bool) -> Result<(), No> {
        let Some(scheduler) = self.scheduler.clone() else { return Ok(()) };
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
            self.state(NodeState::Waiting, Some(detail)).await;
            sleep(scheduler.poll).await;
        }
    }

    /// Pods that the scheduler leaves on the node, so that the node itself does not take them for work; asked for a while.
    pub(crate) async fn staying(&self) -> Result<Vec<String>, No> {
        let Some(scheduler) = &self.scheduler else { return Ok(Vec::new()) };
        let target = scheduler.target(&self.slot.name);
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
    async fn standing(&self, scheduler: &Scheduler, clears: bool) -> Result<Result<(), No>, DrainError> {
        let name = scheduler.drainer.name();
        let target = scheduler.target(&self.slot.name);
        let firm = |why: String| Ok(Err(No::firm(why)));
        let Some(marker) = &self.slot.drain else { return firm(format!("it is not drained at {name}")) };
        match scheduler.drainer.ownership(&target, marker).await? {
            Ownership::Ours => {}
            Ownership::NotDrained => {
                let why = format!("somebody gave it back to {name}");
                return Ok(Err(No { serves: true, ..No::firm(why) }));
            }
            Ownership::Theirs { by } => return firm(format!("somebody took it over: {by}")),
        }
        scheduler.drainer.tell_boot(&target, self.boot_id());
        // Why: a scheduler that rebooted the node itself may have dropped the drain on the way.
        if scheduler.reboots && self.slot.rebooted_drained {
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
        Ok(match scheduler.drainer.locked(&self.holder.run).await? {
            true => Ok(()),
            false => Err(No::firm(format!("the lock at {name} is not this run's any more"))),
        })
    }

    /// Proves anew, before an act under an older permit, that the node may be disturbed; the inner error is the refusal.
    pub(crate) async fn still_allowed(&mut self, most: Disruption) -> Result<(), Fed> {
        let fresh = self.proven.is_some_and(|proven| proven.elapsed() < FRESH);
        if self.permit.is_none() || most == Disruption::Live || fresh {
            return Ok(());
        }
        if self.slot.serves {
            return self.beside_work("somebody gave it back").await;
        }
        let standing = match self.calm().await {
            Ok(()) => self.still_ours(false).await,
            storm => storm,
        };
        if let Err(no) = standing
            && !self.overruled(&no).await
        {
            if no.serves && self.slot.rebooted_drained {
                return self.beside_work(&no.why).await;
            }
            return Err(Fed::Held { reason: format!("not disturbed any further: {}", no.why) });
        }
        self.proven = Some(Instant::now());
        Ok(())
    }

    /// Whether what a reboot took may be asserted on a node that somebody gave back meanwhile; the error is the refusal.
    ///
    /// Why at all: without it the node serves with less than was declared.
    async fn beside_work(&mut self, why: &str) -> Result<(), Fed> {
        self.leave_to_its_work(why).await;
        let held = |what: &str| Fed::Held {
            reason: format!(
                "{why}, and it takes work: what its reboot took is not asserted while that may disturb somebody ({what}); \
                 `gpufleet resume` drains it anew and ends it"
            ),
        };
        let pods = self.staying().await.map_err(|no| held(&no.why))?;
        let idle = NodeOp::Idle(Staying { pods, may_hold_gpus: false });
        let report = match self.simple(idle, READING).await {
            Ok(outcome) => outcome.idle,
            Err(_) => None,
        };
        let Some(report) = report else { return Err(held("it does not tell what works there")) };
        self.emit(What::IdleChecked { host: self.slot.name.clone(), report: report.clone() }).await;
        match report.verdict {
            IdleVerdict::Idle => {
                self.proven = Some(Instant::now());
                Ok(())
            }
            IdleVerdict::Busy | IdleVerdict::Unknown => Err(held(&report.reasons.join("; "))),
        }
    }

    /// A node that somebody gave back while this run worked on it is not out of service any more, and keeps none of this
    /// run's marks.
    async fn leave_to_its_work(&mut self, why: &str) {
        if self.slot.drain.is_none() || self.slot.serves {
            return;
        }
        let mut text = format!("{}: {why} while this run worked on it: it takes work", self.slot.name);
        let gone = self.let_go().await;
        if let Err(left) = &gone {
            text.push_str(&format!("; what the drain changed besides could not be put back: {left}"));
        }
        self.slot.out_of_service = false;
        self.slot.serves = true;
        // Why: GPUs that nobody uses may be reset beside other work, the machine may not be rebooted.
        if let Some(permit) = &mut self.permit {
            permit.class = permit.class.min(Disruption::GpuReset);
        }
        self.marks_are_off(gone).await;
        self.emit(What::Notice { level: Level::Warning, text }).await;
        self.emit(What::Released { host: self.slot.name.clone() }).await;
        self.tell(Input::Released { host: self.host }).await;
    }

    /// Takes this run's marks off a node that serves, where that failed before.
    pub(crate) async fn take_marks_off(&mut self) -> Result<(), Cut> {
        let gone = self.let_go().await;
        match self.marks_are_off(gone).await {
            None => Ok(()),
            Some(left) => Err(Cut::Held(format!(
                "it takes work, and what its drain changed besides could not be put back: {left}; `gpufleet resume` tries \
                 again"
            ))),
        }
    }

    /// Ends a drain whose node serves; one that left something there is not over, and the answer is what.
    async fn marks_are_off(&mut self, gone: Result<(), DrainError>) -> Option<String> {
        match gone {
            Ok(()) => {
                self.slot.drain = None;
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

    /// Looks right after an act whether somebody had given the node back, or taken it over, since the last proof: no API
    /// closes the moment between the two, so what slipped through is said.
    pub(crate) async fn look_back(&self) {
        let (Some(scheduler), Some(marker)) = (&self.scheduler, &self.slot.drain) else { return };
        let target = scheduler.target(&self.slot.name);
        let name = scheduler.drainer.name();
        let what = match timeout(LOOKING_BACK, scheduler.drainer.ownership(&target, marker)).await {
            Ok(Ok(Ownership::NotDrained)) => format!("somebody gave it back to {name}"),
            Ok(Ok(Ownership::Theirs { by })) => format!("somebody took it over ({by})"),
            Ok(Ok(Ownership::Ours) | Err(_)) | Err(_) => return,
        };
        let text = format!(
            "{}: {what} at the very moment in which it was disturbed: look what started there meanwhile",
            self.slot.name
        );
        self.emit(What::Notice { level: Level::Warning, text }).await;
    }

    /// What people at the scheduler read: why it is taken from them.
    fn reason_on(&self, target: &Target) -> String {
        match self.reason.trim() {
            "" => format!("to be worked on as {}", target.host),
            reason => format!("{reason} on {}", target.host),
        }
    }

    /// Whether a person's `--force` goes over this; recorded where it does.
    pub(crate) async fn overruled(&self, no: &No) -> bool {
        if !self.overrules.force || no.firm {
            return false;
        }
        let host = Some(self.slot.name.clone());
        self.durable(What::Overridden { host, what: no.why.clone() }).await.is_ok()
    }

    /// Gives the node back to its scheduler where it is still ours; the error says why it may still be out.
    pub(crate) async fn give_back(&mut self) -> Result<(), String> {
        let (Some(scheduler), Some(marker)) = (self.scheduler.clone(), self.slot.drain.clone()) else {
            return Ok(());
        };
        self.state(NodeState::Resuming, None).await;
        let target = scheduler.target(&self.slot.name);
        let (drainer, rebooted) = (Arc::clone(&scheduler.drainer), self.slot.rebooted_at);
        // Why not of one that was left alone: what it booted into by itself meanwhile keeps nobody from giving it back.
        drainer.tell_boot(&target, self.boot_id().filter(|_| self.slot.out_of_service));
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
                self.slot.drain = None;
                self.step(DrainStep::GivenBack).await;
                return Ok(());
            }
            Ok(Ownership::Theirs { by }) => {
                self.slot.drain = None;
                self.step(DrainStep::LeftTo { by }).await;
                self.tell(Input::OthersOut { host: self.host, out: true }).await;
                return Ok(());
            }
            Ok(Ownership::Ours) => format!("{} still shows it as drained by this run", drainer.name()),
            Err(why) => why,
        };
        self.slot.out_of_service = true;
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
                        self.state(NodeState::Resuming, Some(format!("waits: {why}"))).await;
                    }
                    told = waits;
                }
            }
        }
    }

    /// Who else lays out the node's MIG, so that a task must leave it as it is; the inner error is the refusal.
    pub(crate) async fn layout_of_others(&self) -> Result<Option<String>, Fed> {
        let Some(scheduler) = &self.scheduler else { return Ok(None) };
        let target = scheduler.target(&self.slot.name);
        let until = Instant::now() + PROOF;
        loop {
            match scheduler.drainer.lays_out(&target).await {
                Ok(by) => return Ok(by),
                Err(unknown) if Instant::now() + scheduler.poll >= until => {
                    return Err(Fed::Held { reason: unknown.to_string() });
                }
                Err(_) => sleep(scheduler.poll).await,
            }
        }
    }

    /// Sees that what somebody else laid out is as declared, and changes nothing where it is not.
    pub(crate) async fn only_looked_at(
        &mut self,
        action: &Action,
        op: &NodeOp,
        timeout_s: u64,
        by: &str,
    ) -> Result<Fed, Cut> {
        let link = self.link().await?;
        let request = OpRequest { permit: None, ..self.request_for(action, op, timeout_s) };
        let outcome = match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) => outcome,
            Err(error) => return self.broken_off(error).await,
        };
        if !matches!(outcome.status, OpStatus::NeedsPermit { .. }) {
            return Ok(Fed::Outcome(Box::new(outcome)));
        }
        let differs: Vec<&str> = outcome.changes.iter().map(|change| change.what.as_str()).take(4).collect();
        let reason = format!(
            "{by} laid it out, and the play declares another layout ({}): declare the same in both",
            differs.join(", ")
        );
        Ok(Fed::Held { reason })
    }

    /// What the GPUs of a node are that was disturbed; `None` where it was not, or does not tell.
    async fn offer(&mut self) -> Option<GpuOffer> {
        if !self.slot.out_of_service {
            return None;
        }
        let request = NodeOp::Facts(FactsRequest { gpus: true, ..FactsRequest::default() });
        let outcome = self.simple(request, READING).await.ok()?;
        GpuOffer::of(&outcome.facts?.gpu)
    }

    /// Takes the lock that an earlier process of this run may have given back; the error says who has it.
    ///
    /// Why not as before a drain: a run that stops gives its nodes back all the same.
    async fn lock_again(&mut self, scheduler: &Scheduler, until: Instant) -> Result<(), String> {
        let (run, mut told) = (self.holder.run.clone(), String::new());
        loop {
            match scheduler.lock(&run).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) if self.overrules.steal && !scheduler.has_lost_lock() => {
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
        if *told != why.0 {
            told.clone_from(&why.0);
            self.state(NodeState::Resuming, Some(format!("waits: {why}"))).await;
        }
    }

    /// Puts back what this drain changed besides on a node that somebody else has now.
    async fn let_go(&self) -> Result<(), DrainError> {
        let (Some(scheduler), Some(marker)) = (&self.scheduler, &self.slot.drain) else { return Ok(()) };
        let target = scheduler.target(&self.slot.name);
        let until = Instant::now() + PATIENCE;
        loop {
            match scheduler.drainer.let_go(&target, marker).await {
                Err(_) if Instant::now() + scheduler.poll < until => sleep(scheduler.poll).await,
                answer => return answer,
            }
        }
    }

    /// The boot that the host told it is in; `None` where it never did.
    fn boot_id(&self) -> Option<String> {
        match &self.slot.link {
            Some((link, _)) => link.boot_id(),
            None => self.left.boot_id.clone(),
        }
    }

    /// Leaves word at the scheduler why the node stays out; what that leaves undone there, ready to show.
    pub(crate) async fn explain(&self, why: &str) -> Option<String> {
        let (Some(scheduler), Some(marker)) = (&self.scheduler, &self.slot.drain) else { return None };
        let target = scheduler.target(&self.slot.name);
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

    async fn step(&self, step: DrainStep) {
        self.emit(What::Drain { host: self.slot.name.clone(), step }).await;
    }
}

fn locked(scheduler: &Scheduler, other: &str) -> String {
    if other.is_empty() {
        return format!(
            "the lock at {} was taken from this run, and nobody holds it now; nothing more is changed: `gpufleet resume` takes it \
             again and goes on",
            scheduler.drainer.name()
        );
    }
    format!(
        "run {other} holds the lock at {}; wait for it, or take it over with --steal when you know that its gpufleet is gone",
        scheduler.drainer.name()
    )
}

fn shown(work: &[String]) -> String {
    let more = work.len().saturating_sub(SHOWN);
    let first = work.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

//! A node and its scheduler: taken from it before anything is disturbed, proven ours before each act, given back.
//!
//! Invariants: what was begun is on disk before the scheduler is asked; an answer that does not come is never a "no" and
//! never a "yes"; whatever happens to the node's work, its drain ends given back, left to someone else, or named as stuck.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    engine::node::{
        custody::{
            Custody,
            asking::{Not, shown},
            give_back::NOT_PUT_BACK,
            refusal::No,
        },
        early_end::EarlyEnd,
    },
    engine::ports::scheduler::{Activity, Cordon, Marker, Ownership, Scheduler, Target},
    event::{DrainStep, NodeState, What},
    rollout::Input,
};

/// What is asked for one node.
struct Asked {
    scheduler: Arc<Scheduler>,
    target: Target,
    marker: Marker,
    until: Instant,
}

impl Custody {
    /// Takes the node from its scheduler, waits until nothing runs there, and tells the dispatcher how that went.
    pub(crate) async fn drain(&mut self, deadline: Timestamp) -> Result<(), EarlyEnd> {
        let host = self.node.dispatcher.host;
        let answer = match self.take(deadline).await? {
            Ok(()) => Input::Drained { host },
            Err(Not::Theirs(mut by)) => {
                match self.let_go().await {
                    Ok(()) => {
                        self.node.host.custody.drain = None;
                        self.step(DrainStep::Refused { by: by.clone() }).await;
                    }
                    // Why the drain stays open: a resume has to try again.
                    Err(left) => {
                        by.push_str(&format!("; {NOT_PUT_BACK}: {left}"));
                        self.is_stuck = true;
                        self.step(DrainStep::Stuck { why: by.clone() }).await;
                    }
                }
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
                        // Why not twice: the lock that kept it from being drained keeps it from being given back.
                        let why = if stuck.contains(&why) { stuck } else { format!("{why}; {stuck}") };
                        Input::DrainFailed { host, why, still_out: true }
                    }
                }
            }
        };
        self.node.dispatcher.tell(answer).await;
        Ok(())
    }

    async fn take(&mut self, deadline: Timestamp) -> Result<Result<(), Not>, EarlyEnd> {
        let Some(scheduler) = self.node.settings.scheduler.clone() else { return Ok(Ok(())) };
        let given = deadline.duration_since(Timestamp::now());
        let own = scheduler.timeout + scheduler.notice.map_or(Duration::ZERO, |notice| notice.deadline);
        let until = Instant::now() + own.min(Duration::try_from(given).unwrap_or_default());
        if let Err(not) = self.lock(&scheduler, until).await {
            return Ok(Err(not));
        }
        let marker = match self.node.host.custody.drain.clone() {
            Some(marker) => marker,
            None => self.begin(&scheduler).await?,
        };
        let target = scheduler.target(&self.node.host.name);
        let asked = Asked { scheduler, target, marker, until };
        Ok(self.taken(&asked).await)
    }

    async fn begin(&mut self, scheduler: &Scheduler) -> Result<Marker, EarlyEnd> {
        let mut nonce = uuid::Uuid::new_v4().simple().to_string();
        nonce.truncate(12);
        let marker = Marker { run: self.node.settings.run.holder.run.clone(), nonce };
        let begun = DrainStep::Begun {
            scheduler: scheduler.drainer.name().to_owned(),
            node: scheduler.target(&self.node.host.name).node,
            run: marker.run.clone(),
            nonce: marker.nonce.clone(),
        };
        self.node.dispatcher.durable(What::Drain { host: self.node.host.name.clone(), step: begun }).await?;
        self.node.host.custody.drain = Some(marker.clone());
        (self.node.host.custody.rebooted_drained, self.node.host.custody.serves) = (false, false);
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
            // Why not asked at the end: there is no time left to wait for it.
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
                self.node.dispatcher.state(NodeState::Draining, Some(format!("waits for {what}"))).await;
                told = what;
            }
            let left = until.saturating_duration_since(Instant::now());
            if !self.pause(scheduler.poll.min(left)).await {
                return Err(Not::Stopped);
            }
        }
    }

    /// What people at the scheduler read: why it is taken from them.
    pub(crate) fn reason_on(&self, target: &Target) -> String {
        match self.reason.trim() {
            "" => format!("to be worked on as {}", target.host),
            reason => format!("{reason} on {}", target.host),
        }
    }
}

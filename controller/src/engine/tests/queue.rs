//! A scheduler in memory: people who drain, jobs that end, and a log of what it was asked to change.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::time::Instant;

use super::world::{World, boot_id, lock};
use crate::drain::{
    Activity, Cordon, DrainError, Drainer, Marker, NoticePlan, Outage, Ownership, RebootOrder, Scheduler,
    Target,
};

/// How long a node that was rebooted has to come back to the queue.
const REGISTERS: Duration = Duration::from_secs(300);

/// Who has a node out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    Run(Marker),
    Person(&'static str),
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) held: Mutex<BTreeMap<String, Holder>>,
    /// Until when something runs on a node.
    pub(super) busy: Mutex<BTreeMap<String, Instant>>,
    pub(super) lock: Mutex<Option<String>>,
    /// `cordon gpu001`, `resume gpu001`, `told gpu001`: each change that was made.
    pub(super) log: Mutex<Vec<String>>,
    /// Most nodes that were out at once, whoever took them out.
    pub(super) most_out: Mutex<usize>,
    /// Calls that get no answer, counted down.
    pub(super) silent: Mutex<u32>,
    /// How long taking the lock takes.
    pub(super) lock_takes: Mutex<Duration>,
    /// Whether a cordon is waited for without an end, and may be given up.
    pub(super) hangs: Mutex<bool>,
    /// What it answers to an order to reboot; it reboots nothing where there is none.
    pub(super) reboots: Mutex<Option<RebootOrder>>,
    /// Nodes on which something is that no waiting ends.
    pub(super) stuck: Mutex<BTreeSet<String>>,
    /// Nodes on which something holds the GPUs until a drain stops it.
    pub(super) clients: Mutex<BTreeSet<String>>,
    /// Nodes that no run may take.
    pub(super) refused: Mutex<BTreeSet<String>>,
    /// Boots that it was told of, by node: with those that count no more.
    pub(super) boots: Mutex<BTreeMap<String, Vec<Option<String>>>>,
    /// Nodes that a person gave back while they were being worked on.
    pub(super) given_back: Mutex<BTreeSet<String>>,
    /// Whether what a drain changed besides cannot be put back.
    pub(super) keeps_marks: Mutex<bool>,
    /// Nodes that a person gives back in the moment in which they are told to reboot.
    pub(super) slips: Mutex<BTreeSet<String>>,
    /// What a node waits for that is being given back, and how long.
    pub(super) waits: Mutex<Option<(Duration, String)>>,
    /// Why nodes were taken, by node.
    pub(super) reasons: Mutex<BTreeMap<String, String>>,
    /// Whether nobody can leave word there.
    pub(super) takes_no_word: Mutex<bool>,
}

/// An error whose text is this one alone.
fn unanswered(why: impl Into<String>) -> DrainError {
    DrainError::Lock { why: why.into() }
}

impl Queue {
    pub(super) fn note(&self, what: &str, node: &str) {
        lock(&self.log).push(format!("{what} {node}"));
    }

    pub(super) fn holder(&self, node: &str) -> Option<Holder> {
        lock(&self.held).get(node).cloned()
    }

    /// What a disruptive act must find.
    pub(super) fn check(&self, node: &str) {
        let holder = self.holder(node);
        // Why not: only whether anything works there counts then.
        if lock(&self.given_back).contains(node) {
            return;
        }
        assert!(matches!(holder, Some(Holder::Run(_))), "{node} is disturbed, held by {holder:?}");
        let busy = lock(&self.busy).get(node).copied();
        assert!(busy.is_none_or(|until| until <= Instant::now()), "{node} is disturbed while it works");
    }
}

pub(super) struct FakeScheduler(pub(super) Arc<World>);

impl FakeScheduler {
    pub(super) fn of(world: &Arc<World>, notice: Option<NoticePlan>) -> Arc<Scheduler> {
        let mut scheduler = Scheduler::new(Arc::new(Self(Arc::clone(world))), Duration::from_secs(3600));
        scheduler.surveys = true;
        // Why so short: the wall clock goes on while the test's own runs ahead.
        scheduler.patience = Duration::from_secs(2);
        scheduler.notice = notice;
        scheduler.reboots = lock(&world.queue.reboots).is_some();
        Arc::new(scheduler)
    }

    fn answers(&self) -> Result<(), DrainError> {
        let mut silent = lock(&self.0.queue.silent);
        if *silent > 0 {
            *silent -= 1;
            return Err(unanswered("no answer"));
        }
        Ok(())
    }

    /// The boot that it was told of last is that in which the machine is.
    fn check_boot(&self, target: &Target) {
        let told =
            lock(&self.0.queue.boots).get(&target.node).and_then(|told| told.last().cloned().flatten());
        let now = self.0.with(&target.host, |machine| boot_id(&target.host, machine.boot));
        assert!(
            told.as_ref().is_none_or(|told| *told == now),
            "{told:?} of {}, which is in {now}",
            target.host
        );
    }

    fn owner(&self, target: &Target, marker: &Marker) -> Ownership {
        match self.0.queue.holder(&target.node) {
            None => Ownership::NotDrained,
            Some(Holder::Run(found)) if found == *marker => Ownership::Ours,
            Some(Holder::Run(other)) => Ownership::Theirs { by: other.to_string() },
            Some(other) => Ownership::Theirs { by: format!("{other:?}") },
        }
    }
}

impl Drainer for FakeScheduler {
    fn name(&self) -> &str {
        "queue"
    }

    fn cordon<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Cordon, DrainError>> {
        lock(&self.0.queue.reasons).insert(target.node.clone(), why.to_owned());
        Box::pin(async move {
            self.answers()?;
            self.0.step().await;
            if *lock(&self.0.queue.hangs) {
                self.0.queue.note("hangs", &target.node);
                std::future::pending::<()>().await;
            }
            self.check_boot(target);
            if let Ownership::Theirs { by } = self.owner(target, marker) {
                return Ok(Cordon::HeldByOthers { by });
            }
            if lock(&self.0.queue.refused).contains(&target.node) {
                return Ok(Cordon::Refused { why: "it is not for us".to_owned() });
            }
            let queue = &self.0.queue;
            if lock(&queue.held).insert(target.node.clone(), Holder::Run(marker.clone())).is_none() {
                queue.note("cordon", &target.node);
            }
            {
                let out = lock(&queue.held).len();
                let mut most = lock(&queue.most_out);
                *most = out.max(*most);
            }
            self.0.step().await;
            Ok(Cordon::Ours { evidence: "drained".to_owned() })
        })
    }

    fn notify<'a>(
        &'a self,
        target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Vec<String>, DrainError>> {
        Box::pin(async move {
            self.answers()?;
            self.0.queue.note("told", &target.node);
            Ok(vec!["job 1".to_owned()])
        })
    }

    fn tell_boot(&self, target: &Target, boot_id: Option<String>) {
        let mut boots = lock(&self.0.queue.boots);
        let told = boots.entry(target.node.clone()).or_default();
        if told.last() != Some(&boot_id) {
            told.push(boot_id);
        }
    }

    fn explain<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
        _why: &'a str,
    ) -> BoxFuture<'a, Result<(), DrainError>> {
        let deaf = *lock(&self.0.queue.takes_no_word);
        let answer = if deaf { Err(unanswered("no answer; `kubectl x` mends it")) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    }

    fn activity<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Activity, DrainError>> {
        Box::pin(async move {
            self.answers()?;
            let until = lock(&self.0.queue.busy).get(&target.node).copied();
            Ok(match until.is_some_and(|until| until > Instant::now()) {
                true => Activity::Busy { work: vec!["job 1".to_owned()] },
                false => Activity::Idle,
            })
        })
    }

    fn clear<'a>(
        &'a self,
        target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Activity, DrainError>> {
        if lock(&self.0.queue.stuck).contains(&target.node) {
            let why = vec!["pod a/b is nobody's".to_owned()];
            return Box::pin(std::future::ready(Ok(Activity::Stuck { why })));
        }
        if lock(&self.0.queue.clients).remove(&target.node) {
            let work = vec!["the device plugin".to_owned()];
            return Box::pin(std::future::ready(Ok(Activity::Busy { work })));
        }
        self.activity(target)
    }

    fn preflight<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Option<Vec<String>>, DrainError>> {
        Box::pin(async move {
            self.0.queue.note("try", &target.node);
            self.0.step().await;
            if *lock(&self.0.queue.hangs) {
                std::future::pending::<()>().await;
            }
            self.answers().map_err(|error| unanswered(format!("`{}`: {error}", target.node)))?;
            Ok(Some(Vec::new()))
        })
    }

    fn ownership<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        Box::pin(async move {
            self.answers()?;
            Ok(self.owner(target, marker))
        })
    }

    fn resume<'a>(
        &'a self,
        target: &'a Target,
        marker: &'a Marker,
        rebooted_after: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        Box::pin(async move {
            self.answers()?;
            self.0.step().await;
            self.check_boot(target);
            let owner = self.owner(target, marker);
            if owner != Ownership::Ours {
                return Ok(owner);
            }
            let waits = lock(&self.0.queue.waits).clone();
            if let Some((span, _)) = waits {
                tokio::time::sleep(span).await;
            }
            if rebooted_after.is_some() && self.0.with(&target.host, |machine| machine.boot) == 1 {
                tokio::time::sleep(REGISTERS).await;
                return Err(unanswered(format!("{} has not registered since its reboot", target.node)));
            }
            lock(&self.0.queue.held).remove(&target.node);
            self.0.queue.note("resume", &target.node);
            self.0.step().await;
            Ok(Ownership::NotDrained)
        })
    }

    fn waits_for(&self, _target: &Target) -> Option<String> {
        lock(&self.0.queue.waits).clone().map(|(_, why)| why)
    }

    fn let_go<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<(), DrainError>> {
        let keeps = *lock(&self.0.queue.keeps_marks);
        let answer = if keeps { Err(unanswered("no answer to the patch")) } else { Ok(()) };
        Box::pin(std::future::ready(answer))
    }

    fn survey<'a>(&'a self, targets: &'a [Target]) -> BoxFuture<'a, Result<Vec<Outage>, DrainError>> {
        Box::pin(async move {
            self.answers()?;
            let asked: BTreeSet<&String> = targets.iter().map(|target| &target.node).collect();
            let held = lock(&self.0.queue.held);
            Ok(held
                .iter()
                .filter(|(node, _)| asked.contains(node))
                .map(|(node, holder)| Outage {
                    node: node.clone(),
                    why: format!("{holder:?}"),
                    known: true,
                    marker: match holder {
                        Holder::Run(marker) => Some(marker.clone()),
                        Holder::Person(_) => None,
                    },
                })
                .collect())
        })
    }

    fn lock<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Option<String>, DrainError>> {
        Box::pin(async move {
            let takes = *lock(&self.0.queue.lock_takes);
            tokio::time::sleep(takes).await;
            self.answers()?;
            let mut held = lock(&self.0.queue.lock);
            let other = held.clone().filter(|holder| holder != run);
            if other.is_none() {
                *held = Some(run.to_owned());
            }
            Ok(other)
        })
    }

    fn locked<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<bool, DrainError>> {
        Box::pin(async move {
            self.answers()?;
            Ok(lock(&self.0.queue.lock).as_deref() == Some(run))
        })
    }

    fn unlock<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<(), DrainError>> {
        Box::pin(async move {
            self.answers()?;
            let mut held = lock(&self.0.queue.lock);
            if held.as_deref() == Some(run) {
                *held = None;
            }
            Ok(())
        })
    }

    fn holders(&self) -> BoxFuture<'_, Result<Vec<String>, DrainError>> {
        Box::pin(async move {
            self.answers()?;
            Ok(lock(&self.0.queue.lock).iter().cloned().collect())
        })
    }

    fn reboot_via<'a>(
        &'a self,
        _target: &'a Target,
        _marker: &'a Marker,
    ) -> BoxFuture<'a, Result<RebootOrder, DrainError>> {
        Box::pin(async { Ok(lock(&self.0.queue.reboots).clone().unwrap_or(RebootOrder::Cannot)) })
    }

    fn may_be_cut(&self) -> bool {
        *lock(&self.0.queue.hangs)
    }
}

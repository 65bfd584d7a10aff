//! One play's scheduler: who drains, under which names, and how long it may take.
//!
//! Owns what is the same for all nodes of a play. Must not know the engine. Invariant: the scheduler-wide lock is asked
//! for once, for all who drain at that moment.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _, Shared};
use tokio::time::{Instant, sleep};

use super::{DrainError, Drainer, Outage, Target};

/// How long a scheduler that does not answer is asked who is out.
const SURVEY: Duration = Duration::from_secs(120);

/// When work is told, and how long it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticePlan {
    /// How long work has before the drain's own time begins.
    pub deadline: Duration,
    /// Whether it is told, and has that time, before the node is taken from the scheduler: where taking it ends the work
    /// at once. Elsewhere new work is kept away first.
    pub before_cordon: bool,
}

/// What nodes say under a label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labelled {
    /// By host.
    pub hosts: HashMap<String, String>,
    /// That of nodes which are none of these hosts, by their names at the scheduler.
    pub others: BTreeMap<String, String>,
}

/// What a play needs to drain its nodes.
pub struct Scheduler {
    pub drainer: Arc<dyn Drainer>,
    /// Names at the scheduler, by host; a host that is not in here has the same name there.
    pub nodes: HashMap<String, String>,
    /// From the cordon until nothing runs there.
    pub timeout: Duration,
    pub notice: Option<NoticePlan>,
    /// Between two looks at what still runs.
    pub poll: Duration,
    /// How long others' outages that leave no room are waited for before a node is held.
    pub patience: Duration,
    /// Whether it can tell who else is out.
    pub surveys: bool,
    /// Whether it reboots the nodes itself.
    pub reboots: bool,
    /// Held by the one node of many that takes the lock away from another run.
    pub stealing: tokio::sync::Mutex<()>,
    lock: Mutex<Lock>,
}

/// What this process knows of the scheduler-wide lock.
#[derive(Default)]
struct Lock {
    held: bool,
    /// It was held, and somebody took it away: it is not asked for again.
    lost: bool,
    /// The request that is under way, for all who want it.
    asked: Option<Shared<BoxFuture<'static, Holder>>>,
}

/// The other run that holds the lock, if one does.
type Holder = Result<Option<String>, DrainError>;

impl Scheduler {
    /// One without notice, surveys and reboots.
    pub fn new(drainer: Arc<dyn Drainer>, timeout: Duration) -> Self {
        Self {
            drainer,
            nodes: HashMap::new(),
            timeout,
            notice: None,
            poll: Duration::from_secs(5),
            patience: Duration::from_secs(120),
            surveys: false,
            reboots: false,
            stealing: tokio::sync::Mutex::default(),
            lock: Mutex::default(),
        }
    }

    /// The node under both of its names.
    pub fn target(&self, host: &str) -> Target {
        let node = self.nodes.get(host).map_or(host, String::as_str);
        Target { host: host.to_owned(), node: node.to_owned() }
    }

    /// Which of these hosts others than this run have out, by their places; of the `neighbours` behind them only those that
    /// the scheduler knows. One that does not answer is asked again for a while.
    ///
    /// # Errors
    /// Why nobody knows.
    pub async fn others_out(
        &self,
        hosts: &[String],
        neighbours: &[String],
        run: &str,
    ) -> Result<Vec<usize>, DrainError> {
        let targets: Vec<Target> = hosts.iter().chain(neighbours).map(|host| self.target(host)).collect();
        let place: HashMap<&str, usize> =
            targets.iter().map(|target| target.node.as_str()).zip(0..).collect();
        let until = Instant::now() + SURVEY;
        loop {
            match self.drainer.survey(&targets).await {
                Ok(outages) => {
                    let ours =
                        |outage: &Outage| outage.marker.as_ref().is_some_and(|marker| marker.run == run);
                    let out = outages.iter().filter(|outage| !ours(outage)).filter_map(|outage| {
                        let place = *place.get(outage.node.as_str())?;
                        (outage.known || place < hosts.len()).then_some(place)
                    });
                    return Ok(out.collect());
                }
                Err(why) if Instant::now() + self.poll >= until => return Err(why),
                Err(_) => sleep(self.poll).await,
            }
        }
    }

    /// What nodes say under a label. A scheduler that does not answer is asked again for a while.
    ///
    /// # Errors
    /// Why nobody knows.
    pub async fn labels(&self, hosts: &[String], label: &str) -> Result<Labelled, DrainError> {
        let until = Instant::now() + SURVEY;
        let mut known = loop {
            match self.drainer.labels(label).await {
                Ok(known) => break known,
                Err(why) if Instant::now() + self.poll >= until => return Err(why),
                Err(_) => sleep(self.poll).await,
            }
        };
        let of = |host: &String| Some((host.clone(), known.remove(&self.target(host).node)?));
        let hosts = hosts.iter().filter_map(of).collect();
        // Why not all: a name that is another node's here would say the wrong one.
        let own = |node: &String| !self.nodes.contains_key(node);
        Ok(Labelled { hosts, others: known.into_iter().filter(|(node, _)| own(node)).collect() })
    }

    /// Takes the scheduler's lock unless this process holds it still; `Some` is the other run that does, empty where nobody holds what
    /// was taken away from this process. Who asks at the same
    /// time gets the same answer, so that many nodes do not wait for each other at a scheduler that is silent.
    ///
    /// # Errors
    /// The scheduler did not answer: nobody knows who holds it.
    pub fn lock<'a>(&'a self, run: &'a str) -> BoxFuture<'a, Result<Option<String>, DrainError>> {
        async move {
            let asked = {
                let mut lock = self.own_lock();
                let ask = || {
                    let (drainer, run) = (Arc::clone(&self.drainer), run.to_owned());
                    async move { drainer.lock(&run).await }.boxed().shared()
                };
                (!lock.held).then(|| lock.asked.get_or_insert_with(ask).clone())
            };
            let Some(asked) = asked else { return self.still_held(run).await };
            let answer = asked.clone().await;
            let mut lock = self.own_lock();
            if lock.asked.as_ref().is_some_and(|current| current.ptr_eq(&asked)) {
                lock.asked = None;
            }
            lock.held |= answer == Ok(None);
            answer
        }
        .boxed()
    }

    /// Looks whether the lock that this process took is still there: whoever took it away acts on the nodes now.
    async fn still_held(&self, run: &str) -> Holder {
        if !self.has_lost_lock() && self.drainer.locked(run).await? {
            return Ok(None);
        }
        self.own_lock().lost = true;
        let other = self.drainer.holders().await?.into_iter().find(|other| other != run);
        // Why not asked for again where nobody has it: whoever had it in between may have changed nodes.
        Ok(Some(other.unwrap_or_default()))
    }

    /// Whether somebody took the lock away from this process.
    pub fn has_lost_lock(&self) -> bool {
        self.own_lock().lost
    }

    /// Gives the lock back if this process took it; with `earlier` also where an earlier process of the run did.
    ///
    /// # Errors
    /// The scheduler did not answer: it may still be there.
    pub async fn unlock(&self, run: &str, earlier: bool) -> Result<(), DrainError> {
        let held = std::mem::take(&mut *self.own_lock()).held;
        if held || earlier {
            self.drainer.unlock(run).await?;
        }
        Ok(())
    }

    fn own_lock(&self) -> MutexGuard<'_, Lock> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("drainer", &self.drainer.name()).finish_non_exhaustive()
    }
}

//! One play's scheduler: who drains, under which names, and how long it may take.
//!
//! Owns what is the same for all nodes of a play. Must not know the engine. Invariant: the scheduler-wide lock is asked
//! for once, by whoever drains first.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{DrainError, Drainer, Target};

/// When work is told, and how long it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticePlan {
    /// How long work has before the drain's own time begins.
    pub deadline: Duration,
    /// Whether it is told, and has that time, before the node is taken from the scheduler: where taking it ends the work
    /// at once. Elsewhere new work is kept away first.
    pub before_cordon: bool,
}

/// Who holds the scheduler's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locked {
    Ours,
    /// Ours now, because a person said so.
    Stolen {
        from: String,
    },
    By {
        run: String,
    },
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
    lock: Mutex<bool>,
}

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
            lock: Mutex::new(false),
        }
    }

    /// The node under both of its names.
    pub fn target(&self, host: &str) -> Target {
        let node = self.nodes.get(host).map_or(host, String::as_str);
        Target { host: host.to_owned(), node: node.to_owned() }
    }

    /// Takes the scheduler's lock unless this process holds it; with `steal` also from another run.
    ///
    /// # Errors
    /// The scheduler did not answer: nobody knows who holds it.
    pub async fn lock(&self, run: &str, steal: bool) -> Result<Locked, DrainError> {
        let mut held = self.lock.lock().await;
        if *held {
            return Ok(Locked::Ours);
        }
        let mut stolen = None;
        loop {
            let Some(other) = self.drainer.lock(run).await? else { break };
            if !steal || stolen.is_some() {
                return Ok(Locked::By { run: other });
            }
            self.drainer.unlock(&other).await?;
            stolen = Some(other);
        }
        *held = true;
        Ok(stolen.map_or(Locked::Ours, |from| Locked::Stolen { from }))
    }

    /// Gives the lock back if this process took it; with `earlier` also where an earlier process of the run did.
    ///
    /// # Errors
    /// The scheduler did not answer: it may still be there.
    pub async fn unlock(&self, run: &str, earlier: bool) -> Result<(), DrainError> {
        let mut held = self.lock.lock().await;
        if std::mem::take(&mut *held) || earlier {
            self.drainer.unlock(run).await?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheduler").field("drainer", &self.drainer.name()).finish_non_exhaustive()
    }
}

//! Runs that are under way, followed once for all who watch them.
//!
//! Invariants: a run is followed only while somebody watches it; each watcher gets every node once, and from then on what
//! changed.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::response::sse::Event;
use futures::Stream;
use gpufleet_language::visible::json_line;
use serde::Serialize;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::spawn_blocking,
};

use crate::runs::{LiveNode, LiveRun, RunStanding, Runs, RunsError};

/// How often a journal is looked at.
const PACE: Duration = Duration::from_secs(1);
/// Runs that are followed at once.
const RUNS: usize = 16;
/// Watchers at once.
const WATCHERS: usize = 128;

/// A run at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub run: LiveRun,
    /// Counts the moments.
    version: u64,
    /// The moment at which each node changed last.
    changed: Vec<u64>,
}

impl Snapshot {
    fn next(run: LiveRun, before: Option<&Self>) -> Self {
        let version = before.map_or(1, |before| before.version + 1);
        let old =
            |at: usize| before.and_then(|before| Some((before.run.nodes.get(at)?, *before.changed.get(at)?)));
        let changed = run.nodes.iter().enumerate().map(|(at, node)| match old(at) {
            Some((known, moment)) if known == node => moment,
            _ => version,
        });
        Self { changed: changed.collect(), version, run }
    }

    /// Whether the run has come to its end.
    pub(crate) fn is_over(&self) -> bool {
        self.run.run.standing != RunStanding::Running
    }

    /// Returns what a watcher does not know who has seen the moment `seen`.
    fn news(&self, seen: u64) -> News<'_> {
        let nodes = self.run.nodes.iter().zip(&self.changed).enumerate();
        News {
            over: self.is_over(),
            status: &self.run.status,
            notices: &self.run.notices,
            nodes: nodes
                .filter(|(_, (_, changed))| **changed > seen)
                .map(|(at, (node, _))| NodeNews { at, node })
                .collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct News<'a> {
    over: bool,
    status: &'a str,
    notices: &'a [String],
    nodes: Vec<NodeNews<'a>>,
}

#[derive(Debug, Serialize)]
struct NodeNews<'a> {
    /// Its place in the list.
    at: usize,
    node: &'a LiveNode,
}

type Watched = watch::Sender<Option<Arc<Snapshot>>>;

/// All runs that somebody watches.
pub(crate) struct Hub {
    runs: Arc<dyn Runs>,
    watched: Arc<Mutex<HashMap<String, Watched>>>,
    watchers: Arc<Semaphore>,
}

/// Why a run cannot be watched.
#[derive(Debug)]
pub(crate) enum Unwatched {
    /// Too many watch already.
    Full,
    Runs(RunsError),
}

/// One who watches a run.
pub(crate) struct Watcher {
    moments: watch::Receiver<Option<Arc<Snapshot>>>,
    _place: OwnedSemaphorePermit,
}

impl Hub {
    pub(crate) fn new(runs: Arc<dyn Runs>) -> Self {
        Self { runs, watched: Arc::default(), watchers: Arc::new(Semaphore::new(WATCHERS)) }
    }

    /// Begins to watch a run.
    pub(crate) async fn watch(&self, id: &str) -> Result<Watcher, Unwatched> {
        let place = Arc::clone(&self.watchers).try_acquire_owned().map_err(|_| Unwatched::Full)?;
        if let Some(moments) = self.known(id)? {
            return Ok(Watcher { moments, _place: place });
        }
        let (runs, name) = (Arc::clone(&self.runs), id.to_owned());
        let begun = spawn_blocking(move || {
            let mut follow = runs.follow(&name)?;
            let first = follow.poll()?;
            Ok((follow, first))
        });
        let (mut follow, first) = match begun.await {
            Ok(begun) => begun.map_err(Unwatched::Runs)?,
            Err(error) => return Err(Unwatched::Runs(RunsError::Unreadable(Box::new(error)))),
        };
        // Another may have begun meanwhile; theirs is as good.
        if let Some(moments) = self.known(id)? {
            return Ok(Watcher { moments, _place: place });
        }
        let first = first.map(|run| Arc::new(Snapshot::next(run, None)));
        let (sender, moments) = watch::channel(first);
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), sender.clone());
        let (watched, id) = (Arc::clone(&self.watched), id.to_owned());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PACE).await;
                if forget_if_alone(&watched, &id, &sender) {
                    return;
                }
                let polled = spawn_blocking(move || {
                    let polled = follow.poll();
                    (follow, polled)
                });
                let Ok((back, polled)) = polled.await else { break };
                follow = back;
                match polled {
                    Ok(Some(run)) => {
                        let before = sender.borrow().clone();
                        let next = Snapshot::next(run, before.as_deref());
                        let over = next.is_over();
                        sender.send_replace(Some(Arc::new(next)));
                        if over {
                            break;
                        }
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(run = %id, %error, "cannot follow a run any more");
                        break;
                    }
                }
            }
            watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        });
        Ok(Watcher { moments, _place: place })
    }

    fn known(&self, id: &str) -> Result<Option<watch::Receiver<Option<Arc<Snapshot>>>>, Unwatched> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        match watched.get(id) {
            Some(sender) => Ok(Some(sender.subscribe())),
            None if watched.len() >= RUNS => Err(Unwatched::Full),
            None => Ok(None),
        }
    }
}

/// Stops following a run that nobody watches.
fn forget_if_alone(watched: &Mutex<HashMap<String, Watched>>, id: &str, sender: &Watched) -> bool {
    // Under the lock, because a new watcher subscribes under it.
    let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
    let alone = sender.receiver_count() == 0;
    if alone {
        watched.remove(id);
    }
    alone
}

impl Watcher {
    /// Returns the latest moment.
    pub(crate) fn now(&self) -> Option<Arc<Snapshot>> {
        self.moments.borrow().clone()
    }

    /// Returns all moments from now on as events: until the run is over, nobody follows it any more, or `stop`.
    pub(crate) fn events(self, stop: watch::Receiver<bool>) -> impl Stream<Item = Result<Event, Infallible>> {
        let state = (self, stop, 0, true, false);
        futures::stream::unfold(state, |(mut watcher, mut stop, seen, first, over)| async move {
            if over {
                return None;
            }
            if !first {
                let goes_on = tokio::select! {
                    changed = watcher.moments.changed() => changed.is_ok(),
                    _ = stop.wait_for(|stop| *stop) => false,
                };
                if !goes_on {
                    return None;
                }
            }
            let now = watcher.moments.borrow_and_update().clone();
            let Some(now) = now else {
                return Some((
                    Ok(Event::default().comment("nothing yet")),
                    (watcher, stop, seen, false, false),
                ));
            };
            let event = match json_line(&now.news(seen)) {
                Ok(news) => Event::default().event("news").data(news.trim_end()),
                Err(error) => {
                    tracing::error!(%error, "cannot write JSON");
                    return None;
                }
            };
            Some((Ok(event), (watcher, stop, now.version, false, now.is_over())))
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::runs::{Mood, RunLine};

    fn run(states: &[&str]) -> LiveRun {
        let node = |(at, state): (usize, &&str)| LiveNode {
            name: format!("gpu{at}"),
            state: (*state).to_owned(),
            mood: Mood::Working,
            doing: String::new(),
            since: None,
            verdict: None,
        };
        LiveRun {
            run: RunLine {
                id: "01A".to_owned(),
                verb: "run".to_owned(),
                playbooks: Vec::new(),
                baselines: Vec::new(),
                started: Timestamp::UNIX_EPOCH,
                standing: RunStanding::Running,
                exit_code: None,
                nodes: states.len(),
                summary: String::new(),
            },
            status: String::new(),
            notices: Vec::new(),
            nodes: states.iter().enumerate().map(node).collect(),
        }
    }

    #[test]
    fn a_watcher_gets_what_changed_since_it_last_saw() {
        let first = Snapshot::next(run(&["a", "a", "a"]), None);
        let second = Snapshot::next(run(&["a", "b", "a"]), Some(&first));
        let third = Snapshot::next(run(&["a", "b", "c", "d"]), Some(&second));
        let places = |news: &News<'_>| news.nodes.iter().map(|node| node.at).collect::<Vec<_>>();
        assert_eq!(places(&third.news(0)), [0, 1, 2, 3]);
        assert_eq!(places(&third.news(first.version)), [1, 2, 3]);
        assert_eq!(places(&third.news(second.version)), [2, 3]);
        assert_eq!(places(&third.news(third.version)), [] as [usize; 0]);
    }
}

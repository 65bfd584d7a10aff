//! What a node's task does when its node is silent: it finds out whose silence that is, and waits out that of a way.
//!
//! Invariant: nothing that cannot be taken back is done to a node while its silence may be that of the way to it.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::time::{Instant, sleep, timeout};

use super::{
    drain::No,
    link::{ConnectFailure, Link},
    node::{Cut, NodeTask},
    reboot::{Awaited, Standing},
    ways::Reading,
};
use crate::{
    event::{Level, NodeState, What},
    report::fold_names,
    rollout::Silence,
};

/// How long a way that does not answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// How long between two questions.
const PAUSE: Duration = Duration::from_secs(20);
/// How long a node that was rebooting behind such a way has to be up once the way works again.
pub(super) const RETURN: Duration = Duration::from_secs(5 * 60);
/// How long one look at a node may take.
pub(super) const LOOK: Duration = Duration::from_secs(120);
/// How long a helper whose connection broke may keep the node's lock.
///
/// Source: it ends itself when no heartbeat came for 60 s.
const LOCKED: Duration = Duration::from_secs(75);

impl NodeTask {
    /// Does what only waits without the node's place among those that are worked on at once: others may need it.
    async fn aside<T>(&mut self, wait: impl Future<Output = T>) -> T {
        // Why remembered: who waits for a permit has no place, and must not wait for one.
        let had = self.place.take().is_some();
        let answer = wait.await;
        if had {
            self.take_place().await;
        }
        answer
    }

    /// Whose silence it is that the node does not answer.
    pub(super) async fn read_silence(&mut self, refuses: bool, hung: bool) -> Reading {
        let (ways, name, purpose) = (Arc::clone(&self.ways), self.slot.name.clone(), self.purpose);
        self.aside(async move { ways.read(&name, purpose, refuses, hung).await }).await
    }

    /// Waits a moment for a way that does not answer; the error is that this took too long, or that the run stops.
    async fn wait_for_way(&mut self, until: Instant, reading: &Reading) -> Result<(), String> {
        let why = &reading.why;
        if self.ways.is_news(&reading.shared) {
            let text = format!("{why}; that is waited for, and no node is power cycled for it");
            self.emit(What::Notice { level: Level::Warning, text }).await;
        }
        if Instant::now() >= until {
            return Err(format!("{why}; that was waited for {} min", PATIENCE.as_secs() / 60));
        }
        match self.pause_aside().await {
            true => Ok(()),
            false => Err(format!("{why}; the run stops")),
        }
    }

    /// Waits until it is time to ask again; whether the run goes on.
    async fn pause_aside(&mut self) -> bool {
        let stops = self.stops();
        let pause = async move {
            tokio::select! {
                () = sleep(PAUSE) => true,
                () = stops => false,
            }
        };
        self.aside(pause).await
    }

    async fn way_is_back(&self, shared: &str) {
        if self.ways.is_over(shared) {
            let text = format!("{shared} works again");
            self.emit(What::Notice { level: Level::Info, text }).await;
        }
    }

    /// What follows a wait for a reboot that ended in silence: where it is the way's, that is waited for, and the node
    /// has time again once it works.
    pub(super) async fn outlast(
        &mut self,
        awaited: &Awaited,
        standing: Standing,
    ) -> Result<Result<String, Standing>, Cut> {
        let (mut standing, mut until) = (standing, None);
        let mut told: Option<String> = None;
        let hung = standing.refuses().is_some() && self.is_hung().await;
        loop {
            let Some(refuses) = standing.refuses() else {
                return Ok(Err(standing));
            };
            let reading = self.read_silence(refuses, hung).await;
            if reading.whose != Silence::Way {
                // Why not at once: it may have come up long ago, or begin to only now.
                let Some(shared) = told.take() else { return Ok(Err(standing)) };
                self.way_is_back(&shared).await;
                match self.until_up(awaited, Instant::now() + awaited.limit.min(RETURN)).await {
                    Ok(boot_id) => return Ok(Ok(boot_id)),
                    Err(seen) => standing = seen,
                }
                continue;
            }
            let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
            self.state(NodeState::Rebooting, Some(format!("waits: {}", reading.why))).await;
            let shared = told.get_or_insert_with(|| reading.shared.clone()).clone();
            if let Err(why) = self.wait_for_way(until, &reading).await {
                return Err(Cut::Held(format!(
                    "was told to reboot, and nobody can tell how it stands: {why}; it was left alone: mend the way there, \
                     then `gpufleet resume`"
                )));
            }
            match timeout(LOOK, self.look(&awaited.before)).await {
                Ok(Err(seen)) if seen.refuses().is_some() => standing = seen,
                Ok(seen) => {
                    self.way_is_back(&shared).await;
                    told = None;
                    match seen {
                        Ok(boot_id) => return Ok(Ok(boot_id)),
                        Err(_) => {
                            let deadline = Instant::now() + awaited.limit.min(RETURN);
                            match self.until_up(awaited, deadline).await {
                                Ok(boot_id) => return Ok(Ok(boot_id)),
                                Err(seen) => standing = seen,
                            }
                        }
                    }
                }
                Err(_) => {}
            }
        }
    }

    /// Connects; a way that fell silent since the node was heard last is waited for.
    pub(super) async fn reach(&mut self) -> Result<Arc<dyn Link>, ConnectFailure> {
        let mut until = None;
        let mut told: Option<String> = None;
        loop {
            let failure = match self.connector.connect(&self.slot.name, self.purpose).await {
                Ok(link) => {
                    if let Some(shared) = told {
                        self.way_is_back(&shared).await;
                    }
                    self.ways.connected(&self.slot.name, &link);
                    self.broke = None;
                    return Ok(link);
                }
                Err(failure) => failure,
            };
            match failure {
                ConnectFailure::Locked(_) if self.broke.is_some_and(|at| at.elapsed() < LOCKED) => {
                    sleep(PAUSE / 4).await;
                    continue;
                }
                ConnectFailure::Silent(_) | ConnectFailure::Unreachable(_)
                    if self.ways.is_missed(&self.slot.name) => {}
                failure => return Err(failure),
            }
            let reading = self.read_silence(false, false).await;
            if reading.whose != Silence::Way {
                return Err(failure);
            }
            let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
            told.get_or_insert_with(|| reading.shared.clone());
            self.state(NodeState::Waiting, Some(reading.why.clone())).await;
            self.wait_for_way(until, &reading).await.map_err(ConnectFailure::Unreachable)?;
        }
    }

    /// Whether it is worth to look for a lost node for longer, since its way is silent; the error says why no more.
    pub(super) async fn way_is_silent(&mut self, until: &mut Option<Instant>) -> Result<bool, String> {
        let reading = self.read_silence(false, false).await;
        if reading.whose != Silence::Way {
            return Ok(false);
        }
        let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
        self.wait_for_way(until, &reading).await.map(|()| true)
    }

    /// Forgets a connection that broke while nothing was asked over it: the node may be as well as before.
    pub(super) fn forget_broken(&mut self) {
        let broken = self.slot.link.as_ref().is_some_and(|(link, _)| link.closed().now_or_never().is_some());
        if broken {
            self.slot.link = None;
            self.broke = Some(Instant::now());
        }
    }

    /// Waits while most of the fleet is silent since one moment; the error says that this goes on.
    pub(super) async fn calm(&mut self) -> Result<(), No> {
        let until = Instant::now() + PATIENCE;
        loop {
            let (ways, purpose) = (Arc::clone(&self.ways), self.purpose);
            let lost = self.aside(async move { ways.storm(purpose).await }).await;
            let what = "the fleet";
            if lost.is_empty() {
                if self.ways.is_over(what) {
                    let text = "nodes answer again; the run goes on".to_owned();
                    self.emit(What::Notice { level: Level::Info, text }).await;
                }
                return Ok(());
            }
            let names: Vec<&str> = lost.iter().map(String::as_str).collect();
            let why = format!(
                "most of the connected nodes fell silent at once ({}): this looks like the network of the machine that gpufleet runs on",
                fold_names(&names)
            );
            if self.ways.is_news(what) {
                let text = format!("{why}; no node is disturbed before one of them answers");
                self.emit(What::Notice { level: Level::Warning, text }).await;
            }
            self.state(NodeState::Waiting, Some(why.clone())).await;
            if Instant::now() >= until {
                return Err(No::firm(format!("{why}; that was waited for {} min", PATIENCE.as_secs() / 60)));
            }
            if !self.pause_aside().await {
                return Err(No::firm(format!("{why}; the run stops")));
            }
        }
    }
}

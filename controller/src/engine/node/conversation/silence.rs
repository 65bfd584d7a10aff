//! What a node's task does when the node is silent: it finds out whether the node or the way to it is silent, and waits for
//! a silent way.
//!
//! Invariant: nothing irrevocable is done to a node while the way to it may be what is silent.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::time::{Instant, sleep};

use crate::{
    engine::{
        node::conversation::{Conversation, ways::Reading},
        ports::link::{ConnectFailure, Link},
    },
    event::{Level, NodeState, What},
    rollout::Silence,
};

/// How long a way that does not answer is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// How long between two questions.
const PAUSE: Duration = Duration::from_secs(20);
/// How long a helper whose connection broke may keep the node's lock.
///
/// Source: it ends itself when no heartbeat came for 60 s.
const LOCKED: Duration = Duration::from_secs(75);

impl Conversation {
    /// Whether the node or its way is silent.
    pub(crate) async fn read_silence(&mut self, refuses: bool, hung: bool) -> Reading {
        let (ways, name, purpose) =
            (Arc::clone(&self.settings.run.ways), self.host.name.clone(), self.settings.purpose);
        self.dispatcher.aside(async move { ways.read(&name, purpose, refuses, hung).await }).await
    }

    /// Waits a moment for a silent way. The error is that this took too long, or that the run stops.
    pub(crate) async fn wait_for_way(&mut self, until: Instant, reading: &Reading) -> Result<(), String> {
        let why = &reading.why;
        if self.settings.run.ways.is_news(&reading.shared) {
            let text = format!("{why}; that is waited for, and no node is power cycled for it");
            self.dispatcher.emit(What::Notice { level: Level::Warning, text }).await;
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
    pub(crate) async fn pause_aside(&mut self) -> bool {
        let stops = self.dispatcher.stops();
        let pause = async move {
            tokio::select! {
                () = sleep(PAUSE) => true,
                () = stops => false,
            }
        };
        self.dispatcher.aside(pause).await
    }

    pub(crate) async fn way_is_back(&self, shared: &str) {
        if self.settings.run.ways.is_over(shared) {
            let text = format!("{shared} works again");
            self.dispatcher.emit(What::Notice { level: Level::Info, text }).await;
        }
    }

    /// Connects. If the way fell silent since the node was last heard, it is waited for.
    pub(crate) async fn reach(&mut self) -> Result<Arc<dyn Link>, ConnectFailure> {
        let mut until = None;
        let mut told: Option<String> = None;
        let mut is_last = false;
        loop {
            let failure =
                match self.settings.run.connector.connect(&self.host.name, self.settings.purpose).await {
                    Ok(link) => {
                        if let Some(shared) = told {
                            self.way_is_back(&shared).await;
                        }
                        self.settings.run.ways.connected(&self.host.name, &link);
                        self.broke = None;
                        return Ok(link);
                    }
                    Err(failure) => failure,
                };
            match failure {
                ConnectFailure::Locked { .. } if self.broke.is_some_and(|at| at.elapsed() < LOCKED) => {
                    sleep(PAUSE / 4).await;
                    continue;
                }
                ConnectFailure::Silent { .. } | ConnectFailure::Unreachable { .. }
                    if self.settings.run.ways.is_missed(&self.host.name) => {}
                failure => return Err(failure),
            }
            if std::mem::take(&mut is_last) {
                return Err(failure);
            }
            let reading = self.read_silence(false, false).await;
            if reading.whose != Silence::Way {
                // Why once more: all those questions took their time.
                is_last = true;
                continue;
            }
            let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
            told.get_or_insert_with(|| reading.shared.clone());
            self.dispatcher.state(NodeState::Waiting, Some(reading.why.clone())).await;
            self.wait_for_way(until, &reading)
                .await
                .map_err(|cause| ConnectFailure::Unreachable { cause })?;
        }
    }

    /// Whether a lost node is looked for longer, because its way is silent. The error says why not.
    pub(crate) async fn way_is_silent(&mut self, until: &mut Option<Instant>) -> Result<bool, String> {
        let reading = self.read_silence(false, false).await;
        if reading.whose != Silence::Way {
            return Ok(false);
        }
        let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
        self.wait_for_way(until, &reading).await.map(|()| true)
    }

    /// Forgets a connection that broke while nothing was asked over it: the node may be well.
    pub(crate) fn forget_broken(&mut self) {
        let broken = self.host.link.as_ref().is_some_and(|(link, _)| link.closed().now_or_never().is_some());
        if broken {
            self.host.link = None;
            self.broke = Some(Instant::now());
        }
    }
}

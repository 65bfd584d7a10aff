//! Waiting for the end of a silence while a node is out of service: of the way to a node that reboots, or of most of the
//! fleet.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use crate::{
    engine::node::{
        conversation::{
            boot::{Awaited, Standing},
            silence::PATIENCE,
        },
        custody::{Custody, refusal::No},
        early_end::EarlyEnd,
    },
    event::{Level, NodeState, What},
    report::fold_names,
    rollout::Silence,
};

/// How long a node that was rebooting behind such a way has to be up once the way works again.
pub(crate) const RETURN: Duration = Duration::from_secs(5 * 60);
/// How long one look at a node may take.
pub(crate) const LOOK: Duration = Duration::from_secs(120);

impl Custody {
    /// What follows a wait for a reboot that ended in silence: where it is the way's, that is waited for, and the node
    /// has time again once it works.
    pub(crate) async fn outlast(
        &mut self,
        awaited: &Awaited,
        standing: Standing,
    ) -> Result<Result<String, Standing>, EarlyEnd> {
        let (mut standing, mut until) = (standing, None);
        let mut told: Option<String> = None;
        let hung = standing.refuses().is_some() && self.is_hung().await;
        loop {
            let Some(refuses) = standing.refuses() else {
                return Ok(Err(standing));
            };
            let reading = self.node.read_silence(refuses, hung).await;
            if reading.whose != Silence::Way {
                // Why not at once: the node may have come up long ago, or begin to come up only now.
                let Some(shared) = told.take() else {
                    // Why once more: all those questions took their time.
                    return match timeout(LOOK, self.node.look(&awaited.before)).await {
                        Ok(Ok(boot_id)) => Ok(Ok(boot_id)),
                        Ok(Err(seen)) if seen.refuses().is_none() => {
                            Ok(self.node.until_up(awaited, Instant::now() + awaited.limit.min(RETURN)).await)
                        }
                        _ => Ok(Err(standing)),
                    };
                };
                self.node.way_is_back(&shared).await;
                match self.node.until_up(awaited, Instant::now() + awaited.limit.min(RETURN)).await {
                    Ok(boot_id) => return Ok(Ok(boot_id)),
                    Err(seen) => standing = seen,
                }
                continue;
            }
            let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
            self.node.dispatcher.state(NodeState::Rebooting, Some(format!("waits: {}", reading.why))).await;
            let shared = told.get_or_insert_with(|| reading.shared.clone()).clone();
            if let Err(why) = self.node.wait_for_way(until, &reading).await {
                return Err(EarlyEnd::Held(format!(
                    "was told to reboot, and nobody can tell how it stands: {why}; it was left alone: mend the way there, \
                     then `gpufleet resume`"
                )));
            }
            match timeout(LOOK, self.node.look(&awaited.before)).await {
                Ok(Err(seen)) if seen.refuses().is_some() => standing = seen,
                Ok(seen) => {
                    self.node.way_is_back(&shared).await;
                    told = None;
                    match seen {
                        Ok(boot_id) => return Ok(Ok(boot_id)),
                        Err(_) => {
                            let deadline = Instant::now() + awaited.limit.min(RETURN);
                            match self.node.until_up(awaited, deadline).await {
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

    /// Waits while most of the fleet is silent since the same moment. The error says that this lasts.
    pub(crate) async fn calm(&mut self) -> Result<(), No> {
        let until = Instant::now() + PATIENCE;
        loop {
            let (ways, purpose) = (Arc::clone(&self.node.settings.run.ways), self.node.settings.purpose);
            let lost = self.node.dispatcher.aside(async move { ways.storm(purpose).await }).await;
            let what = "the fleet";
            if lost.is_empty() {
                if self.node.settings.run.ways.is_over(what) {
                    let text = "nodes answer again; the run goes on".to_owned();
                    self.node.dispatcher.emit(What::Notice { level: Level::Info, text }).await;
                }
                return Ok(());
            }
            let names: Vec<&str> = lost.iter().map(String::as_str).collect();
            let why = format!(
                "most of the connected nodes fell silent at once ({}): this looks like the network of the machine that gpufleet runs on",
                fold_names(&names)
            );
            if self.node.settings.run.ways.is_news(what) {
                let text = format!("{why}; no node is disturbed before one of them answers");
                self.node.dispatcher.emit(What::Notice { level: Level::Warning, text }).await;
            }
            self.node.dispatcher.state(NodeState::Waiting, Some(why.clone())).await;
            if Instant::now() >= until {
                return Err(No::firm(format!("{why}; that was waited for {} min", PATIENCE.as_secs() / 60)));
            }
            if !self.node.pause_aside().await {
                return Err(No::firm(format!("{why}; the run stops")));
            }
        }
    }
}

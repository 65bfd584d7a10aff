//! Which of the nodes that earlier runs left drained this run takes over.

use std::{collections::HashMap, sync::Arc};

use futures::future::join_all;

use crate::{
    engine::{
        error::EngineError,
        fleet::recorder::Recorder,
        ports::scheduler::{DrainError, EarlierRuns, LeftBehind, Marker, Ownership, Scheduler},
    },
    event::{Level, What},
};

/// The marker by which each host that this run takes over is drained. What a journal says counts only if the scheduler
/// says the same now.
pub(crate) async fn taken_over(
    earlier: &EarlierRuns,
    schedulers: &[Option<Arc<Scheduler>>],
    recorder: &mut Recorder,
) -> Result<HashMap<String, Marker>, EngineError> {
    let mut taken = earlier.adopted.clone();
    let asked = earlier.left.iter().filter(|left| left.is_taken_over).filter_map(|left| {
        let is_it = |scheduler: &&Arc<Scheduler>| {
            let target = scheduler.target(&left.host);
            scheduler.drainer.name() == left.scheduler
                && target.node == left.node
                && scheduler.drainer.knows_owner(&target)
        };
        let scheduler = schedulers.iter().flatten().find(is_it)?;
        Some(async move {
            let target = scheduler.target(&left.host);
            (left, scheduler.drainer.ownership(&target, &left.marker).await)
        })
    });
    for (left, owner) in join_all(asked).await {
        let LeftBehind { host, run, .. } = left;
        if taken.contains_key(host) {
            continue;
        }
        let (level, text) = match owner {
            Ok(Ownership::Ours) => {
                taken.insert(host.clone(), left.marker.clone());
                let says = "left drained, is taken over: it is given back once it is as declared";
                (Level::Info, format!("{host}, which run {run} {says}"))
            }
            // It was given back since, or somebody took it over, which the drain itself finds out.
            Ok(Ownership::NotDrained | Ownership::Theirs { .. }) => continue,
            Err(unknown) => (Level::Warning, unanswered(host, run, &unknown)),
        };
        recorder.emit(What::Notice { level, text })?;
    }
    Ok(taken)
}

fn unanswered(host: &str, run: &str, unknown: &DrainError) -> String {
    format!("{host} may still be drained by run {run}, and is not taken over: {unknown}")
}

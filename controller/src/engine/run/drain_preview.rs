//! What a plan says of drains: whether the nodes that a run would disturb could be drained now, and what is in the way.

use std::{collections::HashSet, time::Duration};

use futures::{StreamExt as _, stream};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    engine::ports::scheduler::{DrainError, Scheduler, Target},
    engine::{error::EngineError, fleet::recorder::Recorder},
    event::{Level, What},
    report::fold_names,
};

/// Nodes whose drains are tried out at once.
const AT_ONCE: usize = 8;
/// After so many nodes in a row without an answer, no further node is asked about.
const FAILURES: usize = 3;
/// How long it may take over all.
const OVERALL: Duration = Duration::from_secs(300);

/// How long a scheduler may take to answer the questions that every run asks.
const ASKING: Duration = Duration::from_secs(90);

/// Asks the scheduler what a run asks of it before it drains, and changes nothing: who is out, and what works on a node.
/// Returns the nodes that a run would hold because of the answers, with the reason.
pub(crate) async fn held_for_the_scheduler(scheduler: &Scheduler, names: &[String]) -> Vec<(String, String)> {
    let at = scheduler.drainer.name();
    let targets: Vec<Target> = names.iter().map(|name| scheduler.target(name)).collect();
    let Some(first) = targets.first() else { return Vec::new() };
    let questions = async {
        let outages = scheduler.drainer.survey(&targets).await?;
        let missing: HashSet<String> =
            outages.into_iter().filter(|outage| !outage.known).map(|outage| outage.node).collect();
        // Why one: a run asks about each, with the same programs and the same rights.
        if let Some(target) = targets.iter().find(|target| !missing.contains(&target.node)) {
            scheduler.drainer.activity(target).await?;
        }
        Ok::<_, DrainError>(missing)
    };
    let why = match timeout(ASKING, questions).await {
        Ok(Ok(missing)) => {
            let has_none = |target: &&Target| missing.contains(&target.node);
            let held = targets.iter().filter(has_none).map(|target| {
                let why = format!(
                    "a run would hold it: {at} has no node {}; give its name there, or leave the host out",
                    target.node
                );
                (target.host.clone(), why)
            });
            return held.collect();
        }
        Ok(Err(unknown)) => unknown.to_string().replace(&format!("`{}`", first.host), "a node"),
        Err(_) => format!("no answer within {} s", ASKING.as_secs()),
    };
    let why = format!(
        "a run would hold it: {at} cannot be asked: {why}; make that work from this machine, because no node is disturbed \
         before the scheduler let go of it"
    );
    names.iter().map(|name| (name.clone(), why.clone())).collect()
}

/// Names what would keep the nodes that a run would disturb from being drained now.
pub(crate) async fn tell_what_blocks(
    scheduler: &Scheduler,
    names: Vec<String>,
    recorder: &mut Recorder,
) -> Result<(), EngineError> {
    let at = scheduler.drainer.name();
    let until = Instant::now() + OVERALL;
    let asked = names.iter().map(|name| async move {
        let target = scheduler.target(name);
        let answer = scheduler.drainer.preflight(&target).await;
        // Why: the same failure at each node is told once.
        let alike = answer.map_err(|unknown| (unknown.to_string().replace(&target.node, "NODE"), unknown));
        (name.as_str(), alike)
    });
    let asked: Vec<_> = asked.collect();
    let mut answers = stream::iter(asked).buffered(AT_ONCE);
    let (mut free, mut seen, mut failures) = (Vec::new(), 0, 0);
    let mut unknown: Vec<(String, String, Vec<&str>)> = Vec::new();
    let cut = loop {
        let Ok(answer) = timeout_at(until, answers.next()).await else {
            break Some(format!("{} s are over", OVERALL.as_secs()));
        };
        let Some((name, answer)) = answer else { break None };
        seen += 1;
        failures = if answer.is_err() { failures + 1 } else { 0 };
        match answer {
            Ok(None) => {}
            Ok(Some(blocks)) if blocks.is_empty() => free.push(name),
            Ok(Some(blocks)) => {
                let text = format!("{name} could not be drained now at {at}: {}", blocks.join("; "));
                recorder.emit(What::Notice { level: Level::Warning, text })?;
            }
            Err((alike, text)) => match unknown.iter_mut().find(|known| known.0 == alike) {
                Some((.., names)) => names.push(name),
                None => unknown.push((alike, text.to_string(), vec![name])),
            },
        }
        if failures == FAILURES {
            break Some(format!("{FAILURES} in a row could not be asked"));
        }
    };
    for (_, text, names) in unknown {
        let times = if names.len() > 1 { format!(" ({} times)", names.len()) } else { String::new() };
        let text = format!("whether {} could be drained now is unknown{times}: {text}", fold_names(&names));
        recorder.emit(What::Notice { level: Level::Warning, text })?;
    }
    let rest: Vec<&str> = names.iter().skip(seen).map(String::as_str).collect();
    if let Some(why) = cut.filter(|_| !rest.is_empty()) {
        let text = format!("whether {} could be drained now was not tried out: {why}", fold_names(&rest));
        recorder.emit(What::Notice { level: Level::Warning, text })?;
    }
    if !free.is_empty() {
        let text = format!("{} could be drained now at {at}", fold_names(&free));
        recorder.emit(What::Notice { level: Level::Info, text })?;
    }
    Ok(())
}

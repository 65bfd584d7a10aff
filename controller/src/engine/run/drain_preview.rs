//! What a plan says of drains: whether the nodes that a run would disturb could be drained now, and what is in the way.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};

use crate::{
    engine::ports::scheduler::Scheduler,
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

//! What a plan says of drains: whether the nodes that a run would disturb could be drained now, and what is in the way.

use futures::{StreamExt as _, stream};

use super::{recorder::Recorder, run::EngineError};
use crate::{
    drain::Scheduler,
    event::{Level, What},
    report::fold_names,
};

/// Nodes whose drains are tried out at once.
const AT_ONCE: usize = 8;

/// Names what would keep the nodes that a run would disturb from being drained now.
pub(super) async fn tell_what_blocks(
    scheduler: &Scheduler,
    names: Vec<String>,
    recorder: &mut Recorder,
) -> Result<(), EngineError> {
    let asked = names.into_iter().map(|name| async move {
        let target = scheduler.target(&name);
        let answer = scheduler.drainer.preflight(&target).await;
        (name, answer)
    });
    let asked: Vec<_> = asked.collect();
    let answers: Vec<_> = stream::iter(asked).buffered(AT_ONCE).collect().await;
    let mut free = Vec::new();
    for (name, answer) in &answers {
        let text = match answer {
            Ok(None) => continue,
            Ok(Some(blocks)) if blocks.is_empty() => {
                free.push(name.as_str());
                continue;
            }
            Ok(Some(blocks)) => format!(
                "{name} could not be drained now at {}: {}",
                scheduler.drainer.name(),
                blocks.join("; ")
            ),
            Err(unknown) => format!("whether {name} could be drained now is unknown: {unknown}"),
        };
        recorder.emit(What::Notice { level: Level::Warning, text })?;
    }
    if !free.is_empty() {
        let text = format!("{} could be drained now at {}", fold_names(&free), scheduler.drainer.name());
        recorder.emit(What::Notice { level: Level::Info, text })?;
    }
    Ok(())
}

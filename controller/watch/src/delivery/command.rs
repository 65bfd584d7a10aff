//! Hands a notification to a program.

use std::{io::Read as _, path::Path, time::Duration};

use crate::{child, outbox::Delivery};

/// Bytes of standard output that a program may write; they are dropped.
const MOST_OUTPUT: u64 = 1 << 20;

pub(super) async fn run(
    words: &[String],
    body: Vec<u8>,
    time: Duration,
    folder: &Path,
    stop: tokio::sync::watch::Receiver<bool>,
) -> Delivery {
    let Some((program, arguments)) = words.split_first() else {
        return Delivery::Refused { why: "there is no program".to_owned() };
    };
    let mut command = std::process::Command::new(program);
    command.args(arguments).current_dir(folder);
    let ended = child::run(command, body, time, MOST_OUTPUT, stop, |output| {
        // Read, so that the program does not wait for a reader.
        let _ = std::io::copy(&mut output.take(MOST_OUTPUT), &mut std::io::sink());
    });
    match ended.await {
        Ok(ended) if ended.status.success() => Delivery::Done,
        Ok(ended) => Delivery::Failed { why: ended.story(), after: None },
        Err(error) => Delivery::Failed { why: error.to_string(), after: None },
    }
}

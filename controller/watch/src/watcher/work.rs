//! What the main loop has done for it: each piece ends with a message.

use std::{io::Read, path::PathBuf, process::Command, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc::UnboundedSender, watch};

use super::Surroundings;
use crate::{
    child,
    config::Audit,
    delivery::Courier,
    metrics::{Exposition, MOST_BYTES},
    notification::Notification,
    outbox::Delivery,
    reading::Reading,
};

/// Audits at once; further ones wait.
const AUDITS: usize = 2;
/// Bytes of a report.
const MOST_REPORT: u64 = 2 << 30;
/// How long it may take to make metrics of a recorded audit.
const METRICS_TIME: Duration = Duration::from_secs(300);
/// Exit codes of an audit that came to its end.
const ENDED: [i32; 4] = [0, 2, 3, 4];

/// What was done.
#[derive(Debug)]
pub(super) enum Done {
    Audit { schedule: String, begun: Timestamp, result: Result<Audited, String> },
    Metrics { schedule: String, result: Result<Exposition, String> },
    Delivery { channel: String, id: String, result: Delivery },
}

/// An audit that reported.
#[derive(Debug)]
pub(super) struct Audited {
    pub reading: Reading,
    pub exit_code: i32,
}

/// Starts pieces of work.
pub(super) struct Work {
    sender: UnboundedSender<Done>,
    stop: watch::Receiver<bool>,
    places: Arc<Semaphore>,
    program: PathBuf,
    words: Vec<String>,
    folder: PathBuf,
}

impl Work {
    pub(super) fn new(
        sender: UnboundedSender<Done>,
        stop: watch::Receiver<bool>,
        around: &Surroundings,
    ) -> Self {
        Self {
            sender,
            stop,
            places: Arc::new(Semaphore::new(AUDITS)),
            program: around.program.clone(),
            words: around.words.clone(),
            folder: around.folder.clone(),
        }
    }

    fn gpufleet(&self, words: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.words).args(words).current_dir(&self.folder);
        command
    }

    fn spawn(&self, work: impl Future<Output = Done> + Send + 'static) {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            // The main loop is gone: nobody wants to know.
            let _ = sender.send(work.await);
        });
    }

    /// Audits in a process of its own, so that nothing in it can end the watcher.
    pub(super) fn audit(&self, audit: &Audit, begun: Timestamp) {
        let command = self.gpufleet(&audit.target.arguments());
        let (schedule, time) = (audit.name.clone(), audit.timeout);
        let (places, stop) = (Arc::clone(&self.places), self.stop.clone());
        self.spawn(async move {
            let mut stopped = stop.clone();
            let place = tokio::select! {
                place = places.acquire_owned() => place.ok(),
                _ = stopped.wait_for(|stop| *stop) => None,
            };
            let read = |output: &mut dyn Read| Reading::read(output);
            let result = match place {
                Some(_place) => child::run(command, Vec::new(), time, MOST_REPORT, stop, read).await,
                None => Err(child::ChildError::Stopped),
            };
            let result = match result {
                Err(error) => Err(error.to_string()),
                Ok(ended) => match (&ended.output, ended.status.code()) {
                    (Ok(_), Some(exit_code)) => ended.output.map(|reading| Audited { reading, exit_code }),
                    (Err(why), Some(code)) if ENDED.contains(&code) => Err(why.clone()),
                    _ => Err(ended.story()),
                },
            };
            Done::Audit { schedule, begun, result }
        });
    }

    /// Makes metrics of a recorded audit.
    pub(super) fn metrics(&self, schedule: &str, run_id: &str) {
        let words = ["report", run_id, "--format", "openmetrics"].map(str::to_owned);
        let command = self.gpufleet(&words);
        let (name, stop) = (schedule.to_owned(), self.stop.clone());
        self.spawn(async move {
            let schedule = name.clone();
            let read = move |output: &mut dyn Read| {
                let mut text = String::new();
                output.read_to_string(&mut text).map_err(|error| error.to_string())?;
                Exposition::parse(&text, Some(&schedule)).map_err(|error| error.to_string())
            };
            let result = match child::run(command, Vec::new(), METRICS_TIME, MOST_BYTES, stop, read).await {
                Err(error) => Err(error.to_string()),
                Ok(ended) if ended.status.success() => ended.output,
                Ok(ended) => Err(ended.story()),
            };
            Done::Metrics { schedule: name, result }
        });
    }

    pub(super) fn deliver(&self, courier: &Arc<Courier>, notification: Notification) {
        let (channel, id) = (courier.channel.name.clone(), notification.id.clone());
        let delivery = Arc::clone(courier).deliver(notification, self.folder.clone(), self.stop.clone());
        self.spawn(async move { Done::Delivery { channel, id, result: delivery.await } });
    }
}

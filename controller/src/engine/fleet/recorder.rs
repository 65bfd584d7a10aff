//! The one place where events get their number and go to journal and sinks.

use tokio::sync::oneshot;

use crate::{
    engine::ports::sink::Sink,
    event::{Event, What},
    journal::{Journal, WriteError},
};

/// Numbers events and hands them on.
pub struct Recorder {
    seq: u64,
    journal: Journal,
    sinks: Vec<Box<dyn Sink>>,
    now: fn() -> jiff::Timestamp,
}

impl Recorder {
    pub fn new(journal: Journal, sinks: Vec<Box<dyn Sink>>, now: fn() -> jiff::Timestamp) -> Self {
        Self { seq: 0, journal, sinks, now }
    }

    /// Goes on behind the events of an earlier process; the sinks hear of those first.
    pub fn after(
        past: &[Event],
        journal: Journal,
        mut sinks: Vec<Box<dyn Sink>>,
        now: fn() -> jiff::Timestamp,
    ) -> Self {
        for event in past.iter().filter(|event| !event.what.is_internal()) {
            for sink in &mut sinks {
                sink.past(event);
            }
        }
        let seq = past.last().map_or(0, |event| event.seq + 1);
        Self { seq, journal, sinks, now }
    }

    fn event(&mut self, what: What) -> Event {
        let event = Event { seq: self.seq, at: (self.now)(), what };
        // Why: progress is not kept, and the journal's numbers have no gaps.
        self.seq += u64::from(!matches!(event.what, What::Progress { .. }));
        if !event.what.is_internal() {
            for sink in &mut self.sinks {
                sink.event(&event);
            }
        }
        event
    }

    /// # Errors
    /// [`WriteError`] when the journal cannot be written: the run must stop.
    pub fn emit(&mut self, what: What) -> Result<(), WriteError> {
        let event = self.event(what);
        self.journal.append(&event)
    }

    /// The same; `done` hears once the event is on disk.
    ///
    /// # Errors
    /// As [`Recorder::emit`].
    pub fn durable(
        &mut self,
        what: What,
        done: oneshot::Sender<Result<(), WriteError>>,
    ) -> Result<(), WriteError> {
        let event = self.event(what);
        self.journal.durable(&event, done)
    }

    /// Writes what is left and ends the sinks.
    ///
    /// # Errors
    /// As [`Recorder::emit`].
    pub fn finish(mut self) -> Result<(), WriteError> {
        let result = self.journal.close();
        for sink in &mut self.sinks {
            sink.finish();
        }
        result
    }
}

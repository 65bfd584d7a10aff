//! The one place where records get their number and go to the journal, and events to the sinks too.

use tokio::sync::oneshot;

use crate::{
    engine::ports::sink::Sink,
    event::{Event, What},
    journal::{Entry, Journal, Record, WriteError},
};

/// Numbers records and hands them on.
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

    /// Goes on behind the records of an earlier process; the sinks hear of its events first.
    pub fn after(
        past: Vec<Record>,
        journal: Journal,
        mut sinks: Vec<Box<dyn Sink>>,
        now: fn() -> jiff::Timestamp,
    ) -> Self {
        let seq = past.last().map_or(0, |record| record.seq + 1);
        for event in past.into_iter().filter_map(Record::into_event) {
            for sink in &mut sinks {
                sink.past(&event);
            }
        }
        Self { seq, journal, sinks, now }
    }

    /// Gives it its number, and an event to the sinks.
    fn record(&mut self, entry: Entry) -> Record {
        let (seq, at) = (self.seq, (self.now)());
        // Why: progress is not kept, and the journal's numbers have no gaps.
        self.seq += u64::from(!matches!(entry, Entry::Event(What::Progress { .. })));
        match entry {
            Entry::Event(what) => {
                let event = Event { seq, at, what };
                for sink in &mut self.sinks {
                    sink.event(&event);
                }
                event.into()
            }
            Entry::Replay(_) => Record { seq, at, what: entry },
        }
    }

    /// # Errors
    /// [`WriteError`] when the journal cannot be written: the run must stop.
    pub fn emit(&mut self, entry: impl Into<Entry>) -> Result<(), WriteError> {
        let record = self.record(entry.into());
        self.journal.append(&record)
    }

    /// The same; `done` hears once the record is on disk.
    ///
    /// # Errors
    /// As [`Recorder::emit`].
    pub fn durable(
        &mut self,
        entry: impl Into<Entry>,
        done: oneshot::Sender<Result<(), WriteError>>,
    ) -> Result<(), WriteError> {
        let record = self.record(entry.into());
        self.journal.durable(&record, done)
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

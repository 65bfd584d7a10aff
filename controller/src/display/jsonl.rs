//! Events as JSON Lines, for programs that follow a run.

use std::io::{self, Write};

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    event::{Event, What},
    visible::visible_json,
};

/// An [`Event`] with a number.
#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    at: &'a Timestamp,
    what: &'a What,
}

/// Writes each event as one line and flushes it.
#[derive(Debug)]
pub struct JsonLines<W> {
    out: W,
    /// Number of lines so far.
    seq: u64,
}

impl<W: Write> JsonLines<W> {
    pub const fn new(out: W) -> Self {
        Self { out, seq: 0 }
    }

    /// Everything that was written.
    pub fn into_text(self) -> String
    where
        W: Into<Vec<u8>>,
    {
        String::from_utf8(self.out.into()).unwrap_or_default()
    }

    /// Writes an event with the number of its line. The journal numbers its own records, which are not the same as
    /// the lines.
    ///
    /// # Errors
    /// If the writer fails. The run goes on without this sink.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let Event { seq: _, at, what } = event;
        let line = Line { seq: self.seq, at, what };
        self.seq += 1;
        // Escaped, because these lines hold text from nodes and may end up on a terminal.
        self.out.write_all(visible_json(&serde_json::to_string(&line)?).as_bytes())?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}

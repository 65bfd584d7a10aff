//! Events as lines of JSON, for programs that follow a run.

use std::io::{self, Write};

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    event::{Event, What},
    visible::visible_json,
};

/// An [`Event`] with a number of its own.
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
    /// Lines so far.
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

    /// Its number is that of the line: the journal's own counts what is kept there, which is less and more than this.
    ///
    /// # Errors
    /// Those of the writer. The run goes on without this sink.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let Event { seq: _, at, what } = event;
        let line = Line { seq: self.seq, at, what };
        self.seq += 1;
        // Why escapes: these lines may end on a terminal, and what a node says is in them.
        self.out.write_all(visible_json(&serde_json::to_string(&line)?).as_bytes())?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}

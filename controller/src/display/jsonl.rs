//! Events as lines of JSON, for programs that follow a run.

use std::io::{self, Write};

use crate::event::Event;

/// Writes each event as one line and flushes it.
#[derive(Debug)]
pub struct JsonLines<W> {
    out: W,
}

impl<W: Write> JsonLines<W> {
    pub const fn new(out: W) -> Self {
        Self { out }
    }

    /// # Errors
    /// Those of the writer. The run goes on without this sink.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, event)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}

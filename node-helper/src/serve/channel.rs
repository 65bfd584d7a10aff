//! The output channel: writes whole frames to standard output.

use std::{
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

use gpufleet_protocol::{
    Envelope, Reply,
    frame::{Frame, FrameError, PREAMBLE},
};

/// Writes replies from any thread.
///
/// Writing blocks while the controller does not read, which bounds the memory used; the watchdog ends a helper whose
/// controller stays silent.
pub struct Channel {
    out: Mutex<Box<dyn Write + Send>>,
}

impl Channel {
    pub fn new(out: impl Write + Send + 'static) -> Self {
        Self { out: Mutex::new(Box::new(out)) }
    }

    /// # Errors
    /// If the controller has closed the connection.
    pub fn preamble(&self) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(PREAMBLE)?;
        out.flush()
    }

    /// Sends a reply; a reply too large for a frame becomes an error that says so.
    ///
    /// # Errors
    /// If the controller has closed the connection.
    pub fn send(&self, id: u64, reply: Reply) -> io::Result<()> {
        let encode =
            |reply: Reply| Frame::message(&Envelope { id, body: reply }).and_then(|frame| frame.encode());
        let bytes = encode(reply).or_else(|error: FrameError| {
            encode(Reply::Error { message: format!("the answer cannot be sent: {error}") })
        });
        let bytes = bytes.map_err(io::Error::other)?;
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(&bytes)?;
        out.flush()
    }
}

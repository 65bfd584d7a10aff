//! Content on its way from the controller to the operation that asked for it.
//!
//! The reader of the channel passes pieces to a short queue, from which the operation writes them to disk. A slow disk
//! blocks the reader, and so the controller; content is never held in memory as a whole.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    time::{Duration, Instant},
};

use gpufleet_protocol::{Reply, op::Blob};
use sha2::{Digest, Sha256};

use super::channel::Channel;
use crate::{
    deadline::Deadline,
    declare::{Fetch, Trouble},
    os::files,
};

/// Number of pieces between reader and operation.
const QUEUE: usize = 4;
/// How long the reader waits for an operation that takes no pieces before it gives up the stream.
const STALLED: Duration = Duration::from_secs(20);

enum Piece {
    Data(Vec<u8>),
    Refused(String),
}

/// The open streams.
#[derive(Default)]
pub struct Streams {
    next: AtomicU32,
    open: Mutex<HashMap<u32, SyncSender<Piece>>>,
}

impl Streams {
    fn begin(&self) -> (u32, Receiver<Piece>) {
        let stream = self.next.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let (sender, receiver) = sync_channel(QUEUE);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(stream, sender);
        (stream, receiver)
    }

    fn end(&self, stream: u32) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
    }

    fn hand(&self, stream: u32, piece: Piece) {
        let sender = self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&stream).cloned();
        // Dropped: the controller does not know yet that the stream was given up.
        let Some(sender) = sender else { return };
        let since = Instant::now();
        let mut piece = piece;
        loop {
            match sender.try_send(piece) {
                Ok(()) => return,
                Err(TrySendError::Full(back)) if since.elapsed() < STALLED => {
                    piece = back;
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(_) => return self.end(stream),
            }
        }
    }

    /// Passes on the bytes of a data frame.
    pub fn data(&self, stream: u32, bytes: Vec<u8>) {
        self.hand(stream, Piece::Data(bytes));
    }

    /// Passes on that the controller does not have the content.
    pub fn refused(&self, stream: u32, reason: String) {
        self.hand(stream, Piece::Refused(reason));
    }
}

/// Asks the controller for content on behalf of one operation.
pub struct Asker<'a> {
    pub id: u64,
    pub streams: &'a Streams,
    pub channel: &'a Channel,
}

impl Fetch for Asker<'_> {
    fn fetch(
        &self,
        blob: &Blob,
        deadline: &Deadline,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let (stream, receiver) = self.streams.begin();
        let asked = Reply::NeedBlob { stream, blob: blob.clone() };
        let result = match self.channel.send(self.id, asked) {
            Ok(()) => receive(&receiver, blob, deadline, sink),
            Err(_) => Err(Trouble::io("the controller has gone")),
        };
        self.streams.end(stream);
        result
    }
}

fn receive(
    receiver: &Receiver<Piece>,
    blob: &Blob,
    deadline: &Deadline,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let mut digest = Sha256::new();
    let mut size = 0u64;
    loop {
        if let Some(stop) = deadline.stop() {
            return Err(Trouble::stopped(stop));
        }
        match receiver.recv_timeout(Duration::from_millis(50)) {
            Ok(Piece::Data(bytes)) if bytes.is_empty() => break,
            Ok(Piece::Data(bytes)) => {
                size += bytes.len() as u64;
                if size > blob.size {
                    return Err(Trouble::io("the controller sent more content than it had announced"));
                }
                digest.update(&bytes);
                sink(&bytes)?;
            }
            Ok(Piece::Refused(reason)) => {
                return Err(Trouble::io(format!("the controller does not have the content: {reason}")));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Trouble::io("the disk took no content for too long"));
            }
        }
    }
    let got = files::hex(digest.finalize());
    if got == blob.sha256 && size == blob.size {
        return Ok(());
    }
    Err(Trouble::io(format!(
        "the content that came has {size} bytes and SHA-256 {got} instead of {} bytes and {}",
        blob.size, blob.sha256
    )))
}

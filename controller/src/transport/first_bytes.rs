//! Records the first bytes of a peer, to report what answered if it was not SSH.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const KEPT: usize = 200;

/// A bidirectional byte stream.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

#[derive(Clone, Debug, Default)]
pub(crate) struct FirstBytes(Arc<Mutex<Vec<u8>>>);

impl FirstBytes {
    pub(crate) fn get(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A stream that records its first bytes.
pub(crate) struct Remembering {
    stream: Box<dyn Duplex>,
    first: Option<FirstBytes>,
}

impl Remembering {
    pub(crate) fn new(stream: Box<dyn Duplex>) -> (Self, FirstBytes) {
        let first = FirstBytes::default();
        (Self { stream, first: Some(first.clone()) }, first)
    }
}

impl AsyncRead for Remembering {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(first) = &self.first {
            let mut kept = first.0.lock().unwrap_or_else(PoisonError::into_inner);
            let new = buf.filled().get(before..).unwrap_or_default();
            let room = KEPT.saturating_sub(kept.len());
            kept.extend_from_slice(new.get(..room.min(new.len())).unwrap_or_default());
            let full = kept.len() >= KEPT;
            drop(kept);
            if full {
                self.first = None;
            }
        }
        result
    }
}

impl AsyncWrite for Remembering {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

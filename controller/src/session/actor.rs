//! The two tasks of a session: one reads and hands replies out, one writes and keeps the heartbeat.
//!
//! The reader never waits for a caller, so a slow one cannot hold up the others or the keepalives below.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use gpufleet_protocol::{
    Envelope, Reply, Request,
    frame::{Decoder, Frame},
    op::Blob,
};
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, timeout},
};
use tokio_util::{bytes::Bytes, sync::CancellationToken};

use crate::transport::{ChannelEvent, ChannelReader, ChannelWriter, ExitStatus, printable};

/// Frames that wait for the writer; a data frame is at most [`super::handle::PIECE`].
const QUEUE: usize = 2;
/// Progress texts of one call that wait for their reader; more are dropped.
const PROGRESS: usize = 8;
/// Contents that one call may have asked for and not got.
const NEEDS: usize = 256;
const KEPT: usize = 2048;

/// What a call hears.
#[derive(Debug)]
pub(super) enum Heard {
    Progress(String),
    Need { stream: u32, blob: Blob },
    Reply(Reply),
}

struct Waiting {
    sender: mpsc::UnboundedSender<Heard>,
    queued: Arc<AtomicUsize>,
}

/// Why a session is over.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) reason: Arc<str>,
    /// The helper's process ended, and the connection lived to tell.
    pub(super) helper: bool,
}

impl Ended {
    fn because(reason: &str) -> Self {
        Self { reason: Arc::from(reason), helper: false }
    }
}

/// What calls and tasks share.
pub(super) struct Shared {
    next_id: AtomicU64,
    calls: Mutex<HashMap<u64, Waiting>>,
    pub(super) outgoing: mpsc::Sender<Bytes>,
    ended: watch::Sender<Option<Ended>>,
    pub(super) stop: CancellationToken,
}

/// A call's end of the line; forgotten when dropped.
pub(super) struct Line {
    pub(super) id: u64,
    shared: Arc<Shared>,
    receiver: mpsc::UnboundedReceiver<Heard>,
    queued: Arc<AtomicUsize>,
}

impl Line {
    /// The next thing heard; `None` when the session ended.
    pub(super) async fn next(&mut self) -> Option<Heard> {
        let heard = self.receiver.recv().await;
        self.queued.fetch_sub(usize::from(heard.is_some()), Ordering::Relaxed);
        heard
    }

    /// Sends without waiting, for those who cannot wait.
    pub(super) fn send_later(&self, bytes: Bytes) {
        if let (Err(mpsc::error::TrySendError::Full(bytes)), Ok(runtime)) =
            (self.shared.outgoing.try_send(bytes), tokio::runtime::Handle::try_current())
        {
            let (outgoing, stop) = (self.shared.outgoing.clone(), self.shared.stop.clone());
            runtime.spawn(async move {
                tokio::select! {
                    sent = outgoing.send(bytes) => drop(sent),
                    () = stop.cancelled() => {}
                }
            });
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.calls().remove(&self.id);
    }
}

impl Shared {
    fn calls(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Waiting>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn line(self: &Arc<Self>) -> Line {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        if self.ended.borrow().is_none() {
            self.calls().insert(id, Waiting { sender, queued: Arc::clone(&queued) });
        }
        Line { id, shared: Arc::clone(self), receiver, queued }
    }

    /// Why the session ended, waiting for it.
    pub(super) async fn ended(&self) -> Ended {
        let mut watching = self.ended.subscribe();
        match watching.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or_else(|| Ended::because("it ended")),
            Err(_) => Ended::because("it ended"),
        }
    }

    pub(super) fn end(&self, reason: &str) {
        self.over(Ended::because(reason));
    }

    fn over(&self, why: Ended) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            ended.get_or_insert(why);
            first
        });
        self.calls().clear();
        self.stop.cancel();
    }

    /// Hands a reply to its call.
    fn deliver(&self, id: u64, reply: Reply) -> Result<(), String> {
        let calls = self.calls();
        // Why silence: the call gave up, and its reply crossed with that.
        let Some(waiting) = calls.get(&id) else { return Ok(()) };
        let queued = waiting.queued.load(Ordering::Relaxed);
        let heard = match reply {
            Reply::Progress { .. } if queued >= PROGRESS => return Ok(()),
            Reply::Progress { text } => Heard::Progress(text),
            Reply::NeedBlob { .. } if queued >= NEEDS => {
                return Err("it asks for too much content at once".to_owned());
            }
            Reply::NeedBlob { stream, blob } => Heard::Need { stream, blob },
            reply => Heard::Reply(reply),
        };
        waiting.queued.fetch_add(1, Ordering::Relaxed);
        drop(waiting.sender.send(heard));
        Ok(())
    }
}

pub(super) struct Timing {
    pub(super) heartbeat: Duration,
    pub(super) stall: Duration,
}

/// Starts both tasks. They end with the session, or when `stop` is cancelled.
pub(super) fn start(
    reader: ChannelReader,
    writer: ChannelWriter,
    decoder: Decoder,
    timing: Timing,
) -> Arc<Shared> {
    let (outgoing, queue) = mpsc::channel(QUEUE);
    let shared = Arc::new(Shared {
        next_id: AtomicU64::new(1),
        calls: Mutex::new(HashMap::new()),
        outgoing,
        ended: watch::Sender::new(None),
        stop: CancellationToken::new(),
    });
    tokio::spawn(read(reader, decoder, Arc::clone(&shared)));
    tokio::spawn(write(writer, queue, timing, Arc::clone(&shared)));
    shared
}

/// Encodes a request.
pub(super) fn frame(id: u64, request: Request) -> Result<Bytes, String> {
    let encoded = Frame::message(&Envelope { id, body: request }).and_then(|frame| frame.encode());
    encoded.map(Bytes::from).map_err(|error| error.to_string())
}

async fn read(mut reader: ChannelReader, mut decoder: Decoder, shared: Arc<Shared>) {
    let mut stderr: Vec<u8> = Vec::new();
    let mut exit = None;
    loop {
        if let Err(reason) = dispatch(&mut decoder, &shared) {
            shared.end(&format!("the helper broke the protocol: {reason}"));
            return;
        }
        let event = tokio::select! {
            event = reader.next() => event,
            () = shared.stop.cancelled() => {
                shared.end("gpufleet closed it");
                return;
            }
        };
        match event {
            Some(ChannelEvent::Stdout(bytes)) => decoder.feed(&bytes),
            Some(ChannelEvent::Stderr(bytes)) => {
                stderr.extend_from_slice(&bytes);
                let excess = stderr.len().saturating_sub(KEPT);
                stderr.drain(..excess);
            }
            Some(ChannelEvent::Exit(status)) => exit = Some(status),
            None => break,
        }
    }
    let mut reason = match (&exit, reader.ended_because()) {
        (Some(exit), _) => format!("the helper ended with {exit}"),
        (None, Some(because)) => because,
        (None, None) => "the channel closed".to_owned(),
    };
    let words = printable(&stderr, 300);
    if !words.is_empty() {
        reason = format!("{reason}; its last words: {words}");
    }
    // Why not 255: so ends OpenSSH's client when the connection is lost.
    let helper = exit.is_some_and(|exit| exit != ExitStatus::Code(255));
    shared.over(Ended { reason: Arc::from(reason), helper });
}

fn dispatch(decoder: &mut Decoder, shared: &Shared) -> Result<(), String> {
    while let Some(frame) = decoder.next_frame().map_err(|error| error.to_string())? {
        match frame.decode::<Envelope<Reply>>() {
            Ok(Some(Envelope { id, body })) => shared.deliver(id, body)?,
            Ok(None) => return Err("it sends data that nobody asked for".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

async fn write(
    mut writer: ChannelWriter,
    mut queue: mpsc::Receiver<Bytes>,
    timing: Timing,
    shared: Arc<Shared>,
) {
    let mut heartbeat = tokio::time::interval(timing.heartbeat);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    let ping = frame(0, Request::Ping).unwrap_or_default();
    loop {
        let bytes = tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            _ = heartbeat.tick() => ping.clone(),
            queued = queue.recv() => match queued {
                Some(bytes) => bytes,
                None => break,
            },
        };
        let written = tokio::select! {
            () = shared.stop.cancelled() => break,
            written = timeout(timing.stall, writer.write(bytes)) => written,
        };
        match written {
            Ok(Ok(())) => {}
            // Why not the error itself: the reader learns the real reason a moment later.
            Ok(Err(_)) => {
                let patience = timeout(Duration::from_secs(2), shared.stop.cancelled());
                if patience.await.is_err() {
                    shared.end("the channel takes nothing more");
                }
                break;
            }
            Err(_) => {
                shared.end(&format!("the node took nothing for {} s", timing.stall.as_secs()));
                break;
            }
        }
    }
    drop(timeout(Duration::from_secs(1), writer.close()).await);
}

//! The two tasks of a session: one reads frames and delivers replies, the other writes frames and keeps the
//! heartbeat.
//!
//! The reader never waits for a caller, so that a slow caller delays neither other calls nor the keepalives of SSH.

use std::{
    any::Any,
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use gpufleet_protocol::{
    Envelope, FailureKind, OpOutcome, Reply, Request,
    frame::{Decoder, Frame},
    message::{Spooled, Weight},
    op::Blob,
};
use serde::Deserialize;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, timeout},
};
use tokio_util::{bytes::Bytes, sync::CancellationToken};

use super::{
    budget::{Chatter, LARGEST_ANSWER, LARGEST_RESULT, ResultBudget, Room, SMALL, time_for},
    lists,
    weight::weight,
};
use crate::transport::{ChannelEvent, ChannelReader, ChannelWriter, ExitStatus, printable};

/// Number of frames that wait for the writer; a data frame is at most [`super::handle::PIECE`].
const QUEUE: usize = 2;
/// Number of progress texts of one call that wait for their reader; more are dropped.
const PROGRESS: usize = 8;
/// Number of content requests of one call that may be unanswered.
const NEEDS: usize = 256;
const KEPT: usize = 2048;
/// Number of characters of a progress text and of an error that are kept.
const PROGRESS_TEXT: usize = 400;
const ERROR_TEXT: usize = 4000;
/// Longest text of a digest, in bytes.
const DIGEST: usize = 128;
/// Frames with more bytes are decoded on a blocking thread.
const SLOW: usize = 256 * 1024;

/// What a call receives.
#[derive(Debug)]
pub(super) enum Heard {
    Progress(String),
    Need { stream: u32, blob: Blob },
    Reply(Reply),
}

struct Waiting {
    sender: mpsc::UnboundedSender<Heard>,
    queued: Arc<AtomicUsize>,
    /// Whether an outcome or an error ends it, so that `Done` is an interim reply.
    operation: bool,
    /// Whether its answer has arrived.
    answered: bool,
}

#[derive(Default)]
struct Calls {
    waiting: HashMap<u64, Waiting>,
    /// Calls that were given up before their answer, which may still arrive once.
    given_up: HashSet<u64>,
}

/// Why a session has ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) reason: Arc<str>,
    /// Whether the helper's process ended while the connection was still up.
    pub(super) helper: bool,
}

impl Ended {
    fn because(reason: &str) -> Self {
        Self { reason: Arc::from(reason), helper: false }
    }
}

/// State that calls and both tasks share.
pub(super) struct Shared {
    next_id: AtomicU64,
    calls: Mutex<Calls>,
    pub(super) outgoing: mpsc::Sender<Bytes>,
    ended: watch::Sender<Option<Ended>>,
    pub(super) stop: CancellationToken,
}

/// The receiving end of a call; dropping it removes the call.
pub(super) struct Line {
    pub(super) id: u64,
    shared: Arc<Shared>,
    receiver: mpsc::UnboundedReceiver<Heard>,
    queued: Arc<AtomicUsize>,
}

impl Line {
    /// Returns the next reply; `None` if the session has ended.
    pub(super) async fn next(&mut self) -> Option<Heard> {
        let heard = self.receiver.recv().await;
        self.queued.fetch_sub(usize::from(heard.is_some()), Ordering::Relaxed);
        heard
    }

    /// Queues a frame without waiting, for callers that cannot wait.
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
        let mut calls = self.shared.calls();
        if calls.waiting.remove(&self.id).is_some_and(|waiting| !waiting.answered) {
            calls.given_up.insert(self.id);
        }
    }
}

impl Shared {
    fn calls(&self) -> std::sync::MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a line for one request; `operation` says that its answer is an outcome.
    pub(super) fn line(self: &Arc<Self>, operation: bool) -> Line {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        if self.ended.borrow().is_none() {
            let waiting = Waiting { sender, queued: Arc::clone(&queued), operation, answered: false };
            self.calls().waiting.insert(id, waiting);
        }
        Line { id, shared: Arc::clone(self), receiver, queued }
    }

    /// Waits for the end of the session and returns why it ended.
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
        self.calls().waiting.clear();
        self.stop.cancel();
    }

    /// Delivers a reply to its call.
    fn deliver(&self, id: u64, reply: Reply) -> Result<Delivered, String> {
        if let (0, Reply::Error { message }) = (id, &reply) {
            let reason = format!("the helper cannot go on: {}", printable(message.as_bytes(), ERROR_TEXT));
            self.end(&reason);
            return Err(reason);
        }
        let mut calls = self.calls();
        let Calls { waiting, given_up } = &mut *calls;
        let Some(waiting) = waiting.get_mut(&id) else {
            return match reply {
                Reply::Progress { .. } | Reply::NeedBlob { .. } | Reply::Done => Ok(Delivered::Chatter),
                // The call was given up while its reply was on the way.
                _ if given_up.remove(&id) => Ok(Delivered::Chatter),
                _ => Err("it answers what nobody asked, or twice".to_owned()),
            };
        };
        let queued = waiting.queued.load(Ordering::Relaxed);
        let mut delivered = Delivered::Answer;
        let heard = match reply {
            Reply::Progress { .. } if queued >= PROGRESS => return Ok(Delivered::Chatter),
            Reply::Progress { text } => {
                delivered = Delivered::Chatter;
                Heard::Progress(shortened(text, PROGRESS_TEXT))
            }
            Reply::NeedBlob { .. } if queued >= NEEDS => {
                return Err("it asks for content and takes none".to_owned());
            }
            Reply::NeedBlob { blob, .. } if blob.sha256.len() > DIGEST => {
                return Err("it asks for content by what is no digest".to_owned());
            }
            Reply::NeedBlob { stream, blob } => Heard::Need { stream, blob },
            // A helper may acknowledge content under the operation's id.
            Reply::Done if waiting.operation => return Ok(Delivered::Chatter),
            _ if waiting.answered => return Err("it answers twice".to_owned()),
            Reply::Error { message } => {
                waiting.answered = true;
                Heard::Reply(Reply::Error { message: shortened(message, ERROR_TEXT) })
            }
            reply => {
                waiting.answered = true;
                Heard::Reply(reply)
            }
        };
        waiting.queued.fetch_add(1, Ordering::Relaxed);
        drop(waiting.sender.send(heard));
        Ok(delivered)
    }
}

/// What happened to a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivered {
    Answer,
    /// It was no progress; too much of it ends the session.
    Chatter,
}

fn shortened(text: String, most: usize) -> String {
    let end = text.char_indices().nth(most);
    match end {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text,
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
    budget: ResultBudget,
) -> Arc<Shared> {
    let (outgoing, queue) = mpsc::channel(QUEUE);
    let shared = Arc::new(Shared {
        next_id: AtomicU64::new(1),
        calls: Mutex::default(),
        outgoing,
        ended: watch::Sender::new(None),
        stop: CancellationToken::new(),
    });
    tokio::spawn(read(reader, decoder, Arc::clone(&shared), budget));
    tokio::spawn(write(writer, queue, timing, Arc::clone(&shared)));
    shared
}

/// Encodes a request.
pub(super) fn frame(id: u64, request: Request) -> Result<Bytes, String> {
    let encoded = Frame::message(&Envelope { id, body: request }).and_then(|frame| frame.encode());
    encoded.map(Bytes::from).map_err(|error| error.to_string())
}

/// A frame that is being received.
struct Arriving {
    /// Its length in bytes.
    bytes: usize,
    /// The time by which it must be complete.
    until: Instant,
    /// The memory reserved for it if it is large. `None` until enough of it has arrived: a helper must not keep others waiting with
    /// a few bytes.
    room: Option<Room>,
}

impl Arriving {
    fn of(bytes: usize) -> Self {
        Self { bytes, until: Instant::now() + time_for(bytes as u64), room: None }
    }

    async fn late(arriving: &Option<Self>) -> String {
        let Some(Self { bytes, until, .. }) = arriving else { return std::future::pending().await };
        tokio::time::sleep_until(*until).await;
        format!(
            "an answer of {} KiB was not whole after {} s: the line to the node is too slow for it, or the helper means \
             harm; have the task say less",
            bytes.div_ceil(1 << 10),
            time_for(*bytes as u64).as_secs()
        )
    }
}

async fn read(mut reader: ChannelReader, mut decoder: Decoder, shared: Arc<Shared>, budget: ResultBudget) {
    let mut stderr: Vec<u8> = Vec::new();
    let mut exit = None;
    let mut chatter = Chatter::new();
    let mut arriving: Option<Arriving> = None;
    let broken = |reason: &str| shared.end(&format!("the helper broke the protocol: {reason}"));
    loop {
        let prepared = async {
            dispatch(&mut decoder, &shared, &budget, &mut chatter, &mut arriving).await?;
            if let Some(pending) = decoder.pending() {
                let large = arriving.get_or_insert_with(|| Arriving::of(pending.length));
                if large.room.is_none() && pending.came as u64 > SMALL {
                    let waited = Instant::now();
                    large.room = Some(budget.arrive(pending.length as u64).await?);
                    large.until += waited.elapsed();
                }
            }
            Ok::<_, String>(())
        };
        let prepared = tokio::select! {
            prepared = prepared => prepared,
            () = shared.stop.cancelled() => Ok(()),
        };
        if let Err(reason) = prepared {
            broken(&reason);
            return;
        }
        let event = tokio::select! {
            event = reader.next() => event,
            reason = Arriving::late(&arriving) => {
                shared.end(&reason);
                return;
            }
            () = shared.stop.cancelled() => {
                shared.end("gpufleet closed it");
                return;
            }
        };
        match event {
            Some(ChannelEvent::Stdout(bytes)) => decoder.feed(&bytes),
            Some(ChannelEvent::Stderr(bytes)) => {
                if let Err(reason) = chatter.hear(bytes.len()) {
                    broken(&reason);
                    return;
                }
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
    // OpenSSH's client exits with 255 if the connection is lost.
    let helper = exit.is_some_and(|exit| exit != ExitStatus::Code(255));
    shared.over(Ended { reason: Arc::from(reason), helper });
}

async fn dispatch(
    decoder: &mut Decoder,
    shared: &Shared,
    budget: &ResultBudget,
    chatter: &mut Chatter,
    arriving: &mut Option<Arriving>,
) -> Result<(), String> {
    while let Some(frame) = decoder.next_frame().map_err(|error| error.to_string())? {
        let Frame::Json(json) = frame else { return Err("it sends data that nobody asked for".to_owned()) };
        let length = json.len();
        let (id, reply) = take_in(json, budget).await?;
        *arriving = None;
        if shared.deliver(id, reply)? == Delivered::Chatter {
            chatter.hear(length)?;
        }
    }
    Ok(())
}

/// Id and kind of a reply, parsed without building its content.
#[derive(Deserialize)]
struct Head<'a> {
    id: u64,
    #[serde(borrow)]
    body: Kind<'a>,
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(borrow)]
    reply: Cow<'a, str>,
}

/// Parses a reply, unless it needs more memory than allowed.
async fn take_in(json: Vec<u8>, budget: &ResultBudget) -> Result<(u64, Reply), String> {
    let weight = weight(&json);
    if weight > SMALL {
        let Head { id, body } = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
        let too_large = || Box::new(too_large(weight, LARGEST_RESULT));
        match &*body.reply {
            "outcome" if weight > LARGEST_RESULT => return Ok((id, Reply::Outcome(too_large()))),
            "spooled" if weight > LARGEST_RESULT => {
                return Ok((id, Reply::Spooled(Spooled::Finished(too_large()))));
            }
            "outcome" | "spooled" => {}
            _ => return Err(format!("it says what takes {} KiB and is no result", weight >> 10)),
        }
    }
    let room = budget.take_in(weight).await?;
    let decode = move || serde_json::from_slice::<Envelope<Reply>>(&json).map_err(|error| error.to_string());
    let Envelope { id, mut body } = match weight > SLOW as u64 {
        // On another thread, so that other nodes need not wait.
        true => tokio::task::spawn_blocking(decode).await.map_err(|error| error.to_string())??,
        false => decode()?,
    };
    if let Reply::Outcome(outcome) | Reply::Spooled(Spooled::Finished(outcome)) = &mut body {
        if outcome.facts.is_some() && weight > LARGEST_ANSWER {
            **outcome = too_large(weight, LARGEST_ANSWER);
        }
        lists::shorten(outcome);
        outcome.weight =
            Weight { bytes: weight, room: room.map(|room| -> Arc<dyn Any + Send + Sync> { Arc::new(room) }) };
    }
    Ok((id, body))
}

/// Returns the outcome of a task whose result is too large.
fn too_large(weight: u64, most: u64) -> OpOutcome {
    OpOutcome::failed(
        FailureKind::Io,
        format!(
            "its result takes {} MiB of memory here, and {} MiB are the most for one; what it did on the node is done. Let \
             it say less: write it to a file there and `fetch` that, give it files with `copy`",
            weight.div_ceil(1 << 20),
            most >> 20
        ),
    )
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
            // The reader learns the real reason a moment later.
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

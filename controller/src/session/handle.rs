//! The handle with which the rest of the program talks to one node.

use std::{collections::HashMap, sync::Arc, time::Duration};

use gpufleet_protocol::{
    FailureKind, OpOutcome, OpRequest, Reply, Request,
    frame::Frame,
    message::{HEARTBEAT_S, Hello, Locked, Open, Opened},
    op::Blob,
};
use tokio::{
    io::AsyncReadExt,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::{bytes::Bytes, sync::DropGuard};

use super::{
    actor::{self, Heard, Line, Shared, Timing},
    blob::{BlobContent, BlobSource},
    budget::ResultBudget,
    error::SessionError,
    node_file::NodeFiles,
    opening::{self, Opening, Stage},
};
use crate::transport::{ByteChannel, Connector, Phase, Target};

/// Size in bytes of the pieces in which content is sent. It is small, because a busy session buffers one piece.
pub(super) const PIECE: usize = 64 * 1024;

/// How often an operation may request a content for each file with it, and a content that it does not have.
const SAME_CONTENT: u32 = 4;
const UNKNOWN_CONTENT: u32 = 16;

/// Time limits for the parts of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionDeadlines {
    /// From the channel to the helper's hello, without the time to send the file.
    pub start: Duration,
    /// How long the node may accept no byte.
    pub stall: Duration,
    /// For requests other than operations.
    pub reply: Duration,
    /// Added to an operation's own timeout, and once more for its cancellation.
    pub grace: Duration,
    pub heartbeat: Duration,
}

impl Default for SessionDeadlines {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            reply: Duration::from_secs(60),
            grace: Duration::from_secs(15),
            heartbeat: Duration::from_secs(HEARTBEAT_S),
        }
    }
}

#[derive(Clone, Debug)]
pub struct SessionOptions {
    pub node_files: Arc<NodeFiles>,
    /// Memory for answers of nodes, shared by all sessions of a run.
    pub budget: ResultBudget,
    pub deadlines: SessionDeadlines,
}

impl SessionOptions {
    pub fn new(node_files: Arc<NodeFiles>) -> Self {
        Self { node_files, budget: ResultBudget::default(), deadlines: SessionDeadlines::default() }
    }
}

/// Whether this session got the node's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    Opened(Opened),
    Locked(Locked),
}

/// A running helper on a node. Cheap to clone; dropping the last clone ends the helper.
#[derive(Clone)]
pub struct NodeSession {
    inner: Arc<Inner>,
}

struct Inner {
    node: String,
    hello: Hello,
    login_uid: u32,
    pushed: bool,
    deadlines: SessionDeadlines,
    shared: Arc<Shared>,
    _stop: DropGuard,
}

impl std::fmt::Debug for NodeSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeSession").field("node", &self.inner.node).finish_non_exhaustive()
    }
}

impl NodeSession {
    /// Connects to a node and starts its helper, and sends the file if the node lacks it.
    ///
    /// # Errors
    /// If the node cannot be reached, or the helper does not start.
    pub async fn open(
        connector: &Connector,
        target: &Target,
        options: &SessionOptions,
    ) -> Result<Self, SessionError> {
        Self::open_with(connector, target, options, &|_| {}).await
    }

    /// Opens a session like [`Self::open`], and reports its stages.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(
        connector: &Connector,
        target: &Target,
        options: &SessionOptions,
        stage: &(dyn Fn(Stage) + Send + Sync),
    ) -> Result<Self, SessionError> {
        let opening = opening::open(connector, target, options, stage).await?;
        Ok(Self::start(&target.name, opening, options))
    }

    /// Opens a session over an existing channel with a helper, for simulated nodes.
    ///
    /// # Errors
    /// If the helper does not say hello.
    pub async fn over(
        node: &str,
        channel: ByteChannel,
        options: &SessionOptions,
    ) -> Result<Self, SessionError> {
        let opening = opening::over(&Target::local(node), channel, options).await?;
        Ok(Self::start(node, opening, options))
    }

    fn start(node: &str, opening: Opening, options: &SessionOptions) -> Self {
        let deadlines = options.deadlines;
        let timing = Timing { heartbeat: deadlines.heartbeat, stall: deadlines.stall };
        let budget = options.budget.clone();
        let shared =
            actor::start(opening.channel.reader, opening.channel.writer, opening.decoder, timing, budget);
        let stop = shared.stop.clone().drop_guard();
        let inner = Inner {
            node: node.to_owned(),
            hello: opening.hello,
            login_uid: opening.login_uid,
            pushed: opening.pushed,
            deadlines,
            shared,
            _stop: stop,
        };
        Self { inner: Arc::new(inner) }
    }

    pub fn node(&self) -> &str {
        &self.inner.node
    }

    /// Returns the helper's hello.
    pub fn hello(&self) -> &Hello {
        &self.inner.hello
    }

    /// Returns the id of the login user, before `become`.
    pub fn login_uid(&self) -> u32 {
        self.inner.login_uid
    }

    /// Whether the helper's file had to be sent.
    pub fn was_pushed(&self) -> bool {
        self.inner.pushed
    }

    /// Takes the node's lock; this is the first request of a session.
    ///
    /// # Errors
    /// If the session is lost, or the helper cannot do it. A lock that is held by others is no error.
    pub async fn open_lock(&self, open: Open) -> Result<LockOutcome, SessionError> {
        match self.request(Request::Open(open), Phase::Lock).await? {
            Reply::Opened(opened) => Ok(LockOutcome::Opened(opened)),
            Reply::Locked(locked) => Ok(LockOutcome::Locked(locked)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sends a request that is answered at once.
    ///
    /// # Errors
    /// If the session is lost, or the helper answers with an error.
    pub async fn simple(&self, request: Request) -> Result<Reply, SessionError> {
        self.request(request, Phase::Operation).await
    }

    /// Carries out an operation. Several may run at once. Dropping the future cancels the operation.
    ///
    /// # Errors
    /// If the session is lost, or the operation could not be stopped in time. A failed operation is an outcome.
    pub async fn call(
        &self,
        request: OpRequest,
        blobs: &dyn BlobSource,
        mut progress: impl FnMut(&str) + Send,
    ) -> Result<OpOutcome, SessionError> {
        let limit = Duration::from_secs(request.timeout_s) + self.inner.deadlines.grace;
        let mut call = Call { line: self.inner.shared.line(true), finished: false };
        let until = Instant::now() + limit;
        let id = call.line.id;
        let mut asks: HashMap<String, u32> = HashMap::new();
        for blob in request.op.operation().needs().content() {
            *asks.entry(blob.sha256.clone()).or_default() += SAME_CONTENT;
        }
        let work = async {
            self.send(id, Request::Op(Box::new(request)), Phase::Operation).await?;
            self.listen(&mut call, asks, blobs, &mut progress).await
        };
        match timeout_at(until, work).await {
            Ok(result) => result,
            Err(_) => self.cancel(call, limit).await,
        }
    }

    async fn listen(
        &self,
        call: &mut Call,
        mut asks: HashMap<String, u32>,
        blobs: &dyn BlobSource,
        progress: &mut (dyn FnMut(&str) + Send),
    ) -> Result<OpOutcome, SessionError> {
        let mut unknown = UNKNOWN_CONTENT;
        loop {
            match call.line.next().await {
                None => return Err(self.lost(Phase::Operation).await),
                Some(Heard::Progress(text)) => progress(&text),
                Some(Heard::Need { stream, blob }) => {
                    let left = asks.get_mut(&blob.sha256).unwrap_or(&mut unknown);
                    let Some(less) = left.checked_sub(1) else {
                        let reason = "it asks for the same content again and again";
                        self.inner.shared.end(&format!("the helper broke the protocol: {reason}"));
                        return Err(self.lost(Phase::Operation).await);
                    };
                    *left = less;
                    self.send_blob(call.line.id, stream, &blob, blobs).await?
                }
                Some(Heard::Reply(Reply::Outcome(outcome))) => {
                    call.finished = true;
                    return Ok(*outcome);
                }
                // A helper may acknowledge content under the operation's id.
                Some(Heard::Reply(Reply::Done)) => {}
                Some(Heard::Reply(Reply::Error { message })) => {
                    call.finished = true;
                    return Err(SessionError::Refused { node: self.inner.node.clone(), message });
                }
                Some(Heard::Reply(other)) => return Err(self.unexpected(&other)),
            }
        }
    }

    async fn cancel(&self, mut call: Call, limit: Duration) -> Result<OpOutcome, SessionError> {
        let grace = self.inner.deadlines.grace;
        let id = call.line.id;
        call.finished = true;
        let stopping = async {
            self.send(id, Request::Cancel { id }, Phase::Operation).await?;
            loop {
                match call.line.next().await {
                    None => return Err(self.lost(Phase::Operation).await),
                    Some(Heard::Reply(Reply::Outcome(outcome))) => return Ok(*outcome),
                    Some(Heard::Need { stream, .. }) => {
                        let reason = "the operation was cancelled".to_owned();
                        self.send(id, Request::NoBlob { stream, reason }, Phase::Operation).await?;
                    }
                    Some(_) => {}
                }
            }
        };
        match timeout(grace, stopping).await {
            Ok(Ok(mut outcome)) => {
                if let gpufleet_protocol::OpStatus::Failed { kind: kind @ FailureKind::Cancelled, message } =
                    &mut outcome.status
                {
                    *kind = FailureKind::TimedOut;
                    *message = format!("stopped after {} s", limit.as_secs());
                }
                Ok(outcome)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let node = self.inner.node.clone();
                Err(SessionError::Timeout { node, phase: Phase::Operation, after: limit + grace })
            }
        }
    }

    /// Sends content, or that there is none.
    async fn send_blob(
        &self,
        id: u64,
        stream: u32,
        blob: &Blob,
        blobs: &dyn BlobSource,
    ) -> Result<(), SessionError> {
        let reason = match blobs.open(&blob.sha256) {
            None => "gpufleet does not have this content".to_owned(),
            Some(content) => match content.reader().await {
                Ok(reader) => return self.stream(id, stream, blob, reader).await,
                Err(error) => error,
            },
        };
        self.send(id, Request::NoBlob { stream, reason }, Phase::Operation).await
    }

    async fn stream(
        &self,
        id: u64,
        stream: u32,
        blob: &Blob,
        mut reader: Reader,
    ) -> Result<(), SessionError> {
        self.send(id, Request::Blob { stream, sha256: blob.sha256.clone() }, Phase::Operation).await?;
        loop {
            // A read error ends the stream early; the helper then reports that size and digest are wrong.
            let piece = reader.piece().await.unwrap_or_default();
            let last = piece.is_empty();
            let encoded = Frame::Data { stream, bytes: piece }.encode();
            let bytes = encoded.map(Bytes::from).map_err(|error| self.broken(error.to_string()))?;
            self.queue(bytes, Phase::Operation).await?;
            if last {
                return Ok(());
            }
        }
    }

    async fn request(&self, request: Request, phase: Phase) -> Result<Reply, SessionError> {
        let limit = self.inner.deadlines.reply;
        let mut line = self.inner.shared.line(false);
        let id = line.id;
        let work = async {
            self.send(id, request, phase).await?;
            loop {
                match line.next().await {
                    None => return Err(self.lost(phase).await),
                    Some(Heard::Reply(Reply::Error { message })) => {
                        return Err(SessionError::Refused { node: self.inner.node.clone(), message });
                    }
                    Some(Heard::Reply(reply)) => return Ok(reply),
                    Some(_) => {}
                }
            }
        };
        match timeout(limit, work).await {
            Ok(result) => result,
            Err(_) => Err(SessionError::Timeout { node: self.inner.node.clone(), phase, after: limit }),
        }
    }

    async fn send(&self, id: u64, request: Request, phase: Phase) -> Result<(), SessionError> {
        let bytes = actor::frame(id, request).map_err(|reason| self.broken(reason))?;
        self.queue(bytes, phase).await
    }

    async fn queue(&self, bytes: Bytes, phase: Phase) -> Result<(), SessionError> {
        tokio::select! {
            sent = self.inner.shared.outgoing.send(bytes) => match sent {
                Ok(()) => Ok(()),
                Err(_) => Err(self.lost(phase).await),
            },
            () = self.inner.shared.stop.cancelled() => Err(self.lost(phase).await),
        }
    }

    /// Waits until the connection ends and returns why.
    pub async fn closed(&self) -> Arc<str> {
        self.inner.shared.ended().await.reason
    }

    /// Releases the lock and ends the helper, and waits for it a moment.
    pub async fn close(&self) {
        let limit = Duration::from_secs(5).min(self.inner.deadlines.reply);
        let good_bye = async {
            if self.request(Request::Close, Phase::Operation).await.is_ok() {
                drop(timeout(Duration::from_secs(1), self.closed()).await);
            }
        };
        drop(timeout(limit, good_bye).await);
        self.inner.shared.end("gpufleet closed it");
    }

    async fn lost(&self, phase: Phase) -> SessionError {
        let ended = timeout(Duration::from_secs(5), self.inner.shared.ended()).await;
        let node = self.inner.node.clone();
        match ended {
            Ok(ended) if ended.helper => {
                SessionError::HelperEnded { node, phase, cause: ended.reason.to_string() }
            }
            Ok(ended) => SessionError::Lost { node, phase, cause: ended.reason.to_string() },
            Err(_) => SessionError::Lost { node, phase, cause: "the channel closed".to_owned() },
        }
    }

    fn broken(&self, reason: String) -> SessionError {
        SessionError::Protocol { node: self.inner.node.clone(), reason }
    }

    fn unexpected(&self, reply: &Reply) -> SessionError {
        let name = format!("{reply:?}");
        let name = name.split(['(', ' ', '{']).next().unwrap_or_default();
        self.broken(format!("it answers with {name}"))
    }
}

/// A running operation; dropping it unfinished cancels it.
struct Call {
    line: Line,
    finished: bool,
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        if let Ok(bytes) = actor::frame(self.line.id, Request::Cancel { id: self.line.id }) {
            self.line.send_later(bytes);
        }
    }
}

enum Reader {
    Bytes(Bytes),
    Stream(Box<dyn tokio::io::AsyncRead + Send + Unpin>),
}

impl BlobContent {
    async fn reader(self) -> Result<Reader, String> {
        match self {
            Self::Bytes(bytes) => Ok(Reader::Bytes(bytes)),
            Self::Stream(stream) => Ok(Reader::Stream(stream)),
            Self::File(path) => match tokio::fs::File::open(&path).await {
                Ok(file) => Ok(Reader::Stream(Box::new(file))),
                Err(error) => Err(format!("{}: {error}", path.display())),
            },
        }
    }
}

impl Reader {
    /// Returns the next piece, which is empty at the end.
    async fn piece(&mut self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.split_to(PIECE.min(bytes.len())).to_vec()),
            Self::Stream(stream) => {
                let mut piece = Vec::with_capacity(PIECE);
                let mut limited = stream.take(PIECE as u64);
                limited.read_to_end(&mut piece).await?;
                Ok(piece)
            }
        }
    }
}

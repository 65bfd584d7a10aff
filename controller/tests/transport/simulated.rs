//! Sessions with a helper played by the test, in memory and in paused time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gpufleet::{
    session::{
        BlobContent, BlobSource, LockOutcome, NoBlobs, NodeFile, NodeFiles, NodeSession, SessionError,
        SessionOptions,
    },
    transport::ByteChannel,
};
use gpufleet_protocol::{
    Envelope, FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus, PROTOCOL_VERSION, Reply, Request,
    RunEpoch,
    frame::{Decoder, Frame, PREAMBLE},
    message::{Hello, Locked, Mode, Open, Opened},
    op::Blob,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio_util::bytes::Bytes;

fn options() -> SessionOptions {
    let file = NodeFile::new(std::env::consts::ARCH, b"helper");
    SessionOptions::new(Arc::new(NodeFiles::new(vec![file])))
}

fn digest() -> String {
    NodeFile::new("", b"helper").sha256
}

fn hello() -> Reply {
    Reply::Hello(Hello {
        protocol: PROTOCOL_VERSION,
        digest: digest(),
        uid: 0,
        arch: "x86_64".to_owned(),
        pid: 1,
        boot_id: None,
    })
}

/// The node's end of the connection.
struct Peer {
    read: ReadHalf<DuplexStream>,
    write: WriteHalf<DuplexStream>,
    decoder: Decoder,
}

impl Peer {
    async fn say(&mut self, id: u64, reply: Reply) {
        let frame = Frame::message(&Envelope { id, body: reply }).unwrap().encode().unwrap();
        self.write.write_all(&frame).await.unwrap();
    }

    /// Returns the next frame; `None` once gpufleet has closed the channel.
    async fn hear(&mut self) -> Option<Frame> {
        let mut buffer = [0u8; 4096];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(frame);
            }
            let count = self.read.read(&mut buffer).await.unwrap();
            if count == 0 {
                return None;
            }
            self.decoder.feed(&buffer[..count]);
        }
    }

    /// Returns the next request that is no heartbeat.
    async fn request(&mut self) -> Option<(u64, Request)> {
        loop {
            let Envelope { id, body } = self.hear().await?.decode::<Envelope<Request>>().unwrap()?;
            if body != Request::Ping {
                return Some((id, body));
            }
        }
    }
}

async fn start(options: &SessionOptions) -> (NodeSession, Peer) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (read, write) = tokio::io::split(theirs);
    let mut peer = Peer { read, write, decoder: Decoder::default() };
    peer.write.write_all(b"noise\nmore noise ").await.unwrap();
    peer.write.write_all(PREAMBLE).await.unwrap();
    peer.say(0, hello()).await;
    let (read, write) = tokio::io::split(ours);
    let session = NodeSession::over("gpu001", ByteChannel::from_streams(read, write), options).await.unwrap();
    (session, peer)
}

fn operation(timeout_s: u64) -> OpRequest {
    OpRequest {
        op: NodeOp::Idle(Default::default()),
        mode: Mode::Apply,
        permit: None,
        run_as: None,
        timeout_s,
        op_id: "op".to_owned(),
        secret: false,
        environment: Vec::new(),
    }
}

fn outcome(text: &str) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    outcome.warnings.push(text.to_owned());
    outcome
}

#[tokio::test(start_paused = true)]
async fn several_calls_are_answered_out_of_order() {
    let (session, mut peer) = start(&options()).await;
    let node = tokio::spawn(async move {
        let (first, _) = peer.request().await.unwrap();
        let (second, _) = peer.request().await.unwrap();
        assert_ne!(first, second);
        peer.say(second, Reply::Progress { text: "working".to_owned() }).await;
        peer.say(second, Reply::Outcome(Box::new(outcome("second")))).await;
        peer.say(first, Reply::Outcome(Box::new(outcome("first")))).await;
        peer
    });
    let heard = Mutex::new(Vec::new());
    let (one, two) = tokio::join!(
        session.call(operation(60), &NoBlobs, |_| {}),
        session.call(operation(60), &NoBlobs, |text| heard.lock().unwrap().push(text.to_owned())),
    );
    assert_eq!((one.unwrap(), two.unwrap()), (outcome("first"), outcome("second")));
    assert_eq!(*heard.lock().unwrap(), ["working"]);
    node.await.unwrap();
}

async fn serve_blob(peer: &mut Peer) -> (Vec<u8>, Option<String>) {
    let (id, _) = peer.request().await.unwrap();
    let blob = Blob { sha256: "abc".to_owned(), size: 200_000 };
    peer.say(id, Reply::NeedBlob { stream: 7, blob }).await;
    let mut got = Vec::new();
    let refused = match peer.request().await.unwrap() {
        (_, Request::Blob { stream: 7, sha256 }) => {
            assert_eq!(sha256, "abc");
            loop {
                match peer.hear().await.unwrap() {
                    Frame::Data { stream, bytes } => {
                        assert_eq!(stream, 7);
                        assert!(bytes.len() <= 64 * 1024);
                        if bytes.is_empty() {
                            break None;
                        }
                        got.extend(bytes);
                    }
                    Frame::Json(_) => {}
                }
            }
        }
        (_, Request::NoBlob { stream: 7, reason }) => Some(reason),
        other => panic!("{other:?}"),
    };
    peer.say(id, Reply::Done).await;
    peer.say(id, Reply::Outcome(Box::new(outcome("done")))).await;
    (got, refused)
}

struct OneFile(std::path::PathBuf);

impl BlobSource for OneFile {
    fn open(&self, _: &str) -> Option<BlobContent> {
        Some(BlobContent::File(self.0.clone()))
    }
}

#[tokio::test]
async fn content_is_sent_when_the_helper_asks() {
    let content: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("content");
    std::fs::write(&path, &content).unwrap();
    let memory: HashMap<String, Bytes> = [("abc".to_owned(), Bytes::from(content.clone()))].into();
    let sources: [(&dyn BlobSource, Option<&str>); 4] = [
        (&memory, None),
        (&OneFile(path), None),
        (&NoBlobs, Some("gpufleet does not have this content")),
        (&OneFile("/nonexistent/file".into()), Some("/nonexistent/file: No such file")),
    ];
    for (source, reason) in sources {
        let (session, mut peer) = start(&options()).await;
        let (result, (got, refused)) =
            tokio::join!(session.call(operation(60), source, |_| {}), serve_blob(&mut peer));
        assert_eq!(result.unwrap(), outcome("done"));
        match reason {
            None => assert!(got == content && refused.is_none()),
            Some(reason) => assert!(refused.unwrap().starts_with(reason)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_takes_too_long_is_cancelled() {
    let (session, mut peer) = start(&options()).await;
    let node = tokio::spawn(async move {
        let (id, _) = peer.request().await.unwrap();
        assert_eq!(peer.request().await.unwrap().1, Request::Cancel { id });
        let failed = OpOutcome::failed(FailureKind::Cancelled, "cancelled");
        peer.say(id, Reply::Outcome(Box::new(failed))).await;
        peer
    });
    let begin = tokio::time::Instant::now();
    let got = session.call(operation(30), &NoBlobs, |_| {}).await.unwrap();
    assert_eq!(
        got.status,
        OpStatus::Failed { kind: FailureKind::TimedOut, message: "stopped after 45 s".to_owned() }
    );
    assert_eq!(begin.elapsed().as_secs(), 45);
    node.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_helper_that_does_not_even_stop_is_given_up() {
    let (session, _peer) = start(&options()).await;
    let error = session.call(operation(30), &NoBlobs, |_| {}).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "gpu001: an operation took longer than 60 s, and stopping it had no effect"
    );
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_cancels_it() {
    let (session, mut peer) = start(&options()).await;
    let call = session.call(operation(600), &NoBlobs, |_| {});
    assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
    let (id, _) = peer.request().await.unwrap();
    assert_eq!(peer.request().await.unwrap().1, Request::Cancel { id });
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_beats() {
    let (_session, mut peer) = start(&options()).await;
    let begin = tokio::time::Instant::now();
    for _ in 0..4 {
        let request = peer.hear().await.unwrap().decode::<Envelope<Request>>().unwrap().unwrap();
        assert_eq!(request.body, Request::Ping);
    }
    assert_eq!(begin.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_cut_connection_fails_what_is_under_way_and_what_comes() {
    let (session, mut peer) = start(&options()).await;
    let node = tokio::spawn(async move { peer.request().await.is_some() });
    let error = session.call(operation(60), &NoBlobs, |_| {}).await.unwrap_err();
    assert_eq!(error.to_string(), "gpu001: the connection was lost during an operation: the channel closed");
    let error = session.call(operation(60), &NoBlobs, |_| {}).await.unwrap_err();
    assert!(matches!(error, SessionError::Lost { .. }), "{error}");
    assert_eq!(session.closed().await.as_ref(), "the channel closed");
    assert!(node.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_cut_is_no_result() {
    let (session, mut peer) = start(&options()).await;
    let node = tokio::spawn(async move {
        let (id, _) = peer.request().await.unwrap();
        let body = Reply::Outcome(Box::new(outcome("whole")));
        let frame = Frame::message(&Envelope { id, body }).unwrap().encode().unwrap();
        peer.write.write_all(&frame[..frame.len() - 1]).await.unwrap();
    });
    let error = session.call(operation(60), &NoBlobs, |_| {}).await.unwrap_err();
    assert!(matches!(error, SessionError::Lost { .. }), "{error}");
    node.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_takes_nothing_is_lost() {
    let (session, peer) = start(&options()).await;
    let content = Bytes::from(vec![0u8; 1024 * 1024]);
    let memory: HashMap<String, Bytes> = [("abc".to_owned(), content)].into();
    let Peer { read, mut write, .. } = peer;
    let blob = Blob { sha256: "abc".to_owned(), size: 1024 * 1024 };
    let ask = Frame::message(&Envelope { id: 1, body: Reply::NeedBlob { stream: 1, blob } })
        .unwrap()
        .encode()
        .unwrap();
    let call = session.call(operation(600), &memory, |_| {});
    tokio::pin!(call);
    assert!(futures::poll!(&mut call).is_pending());
    write.write_all(&ask).await.unwrap();
    let error = call.await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "gpu001: the connection was lost during an operation: the node took nothing for 60 s"
    );
    drop((read, write));
}

#[tokio::test(start_paused = true)]
async fn garbage_on_the_wire_ends_the_session() {
    for garbage in [&b"\xff\xff\xff\xffJ"[..], b"\0\0\0\x03J{]", b"\0\0\0\x06D\0\0\0\x01x"] {
        let (session, mut peer) = start(&options()).await;
        peer.write.write_all(garbage).await.unwrap();
        let error = session.simple(Request::ForgetPredictions).await.unwrap_err().to_string();
        assert!(error.contains("the helper broke the protocol: "), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_bounded() {
    let (session, mut peer) = start(&options()).await;
    let node = tokio::spawn(async move {
        let (id, _) = peer.request().await.unwrap();
        for n in 0..10_000 {
            peer.say(id, Reply::Progress { text: n.to_string() }).await;
        }
        peer.say(id, Reply::Outcome(Box::new(outcome("done")))).await;
        for _ in 0..300 {
            peer.say(id, Reply::Progress { text: String::new() }).await;
        }
        peer
    });
    assert_eq!(session.call(operation(60), &NoBlobs, |_| {}).await.unwrap(), outcome("done"));
    node.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_lock_is_taken_or_its_holder_named() {
    let holder = RunEpoch { run: "r1".to_owned(), epoch: 2 };
    let open = Open {
        holder: holder.clone(),
        who: "ops@admin 1".to_owned(),
        writes: true,
        guest: false,
        commands: false,
        own_commands: false,
        login_uid: None,
    };
    let opened = Opened { state_dir: "/var/lib/gpufleet".to_owned(), kept: None };
    let locked = Locked { holder, who: "sam@admin2 9".to_owned(), fenced: false };
    for (reply, wanted) in [
        (Reply::Opened(opened.clone()), LockOutcome::Opened(opened)),
        (Reply::Locked(locked.clone()), LockOutcome::Locked(locked.clone())),
    ] {
        let (session, mut peer) = start(&options()).await;
        let answer = async {
            let (id, request) = peer.request().await.unwrap();
            assert_eq!(request, Request::Open(open.clone()));
            peer.say(id, reply).await;
        };
        assert_eq!(tokio::join!(session.open_lock(open.clone()), answer).0.unwrap(), wanted);
    }
    let error = SessionError::Locked { node: "gpu001".to_owned(), lock: locked };
    assert_eq!(
        error.to_string(),
        "gpu001: sam@admin2 9 works on this node (run r1, epoch 2); wait for it, or stop it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_not_answered_has_a_deadline() {
    let (session, _peer) = start(&options()).await;
    let error = session.simple(Request::ForgetPredictions).await.unwrap_err();
    assert!(matches!(error, SessionError::Timeout { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_says_why() {
    let (session, mut peer) = start(&options()).await;
    let answer = async {
        let (id, _) = peer.request().await.unwrap();
        peer.say(id, Reply::Error { message: "open first".to_owned() }).await;
    };
    let error = tokio::join!(session.call(operation(1), &NoBlobs, |_| {}), answer).0.unwrap_err();
    assert_eq!(error.to_string(), "gpu001: the helper refuses: open first");
}

#[tokio::test(start_paused = true)]
async fn closing_says_good_bye() {
    let (session, mut peer) = start(&options()).await;
    let answer = async {
        let (id, request) = peer.request().await.unwrap();
        assert_eq!(request, Request::Close);
        peer.say(id, Reply::Done).await;
        peer.hear().await.is_none()
    };
    let begin = tokio::time::Instant::now();
    let ((), ended) = tokio::join!(session.close(), answer);
    assert!(ended && begin.elapsed() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_first_frame_or_version_is_refused() {
    let other_version = Reply::Hello(Hello {
        protocol: PROTOCOL_VERSION + 1,
        digest: digest(),
        uid: 0,
        arch: String::new(),
        pid: 1,
        boot_id: None,
    });
    for (first, word) in [
        (Reply::Done, "its first frame is no hello"),
        (other_version, "the helper speaks protocol 2, gpufleet speaks 1"),
    ] {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        theirs.write_all(PREAMBLE).await.unwrap();
        let frame = Frame::message(&Envelope { id: 0, body: first }).unwrap().encode().unwrap();
        theirs.write_all(&frame).await.unwrap();
        let (read, write) = tokio::io::split(ours);
        let error = NodeSession::over("gpu001", ByteChannel::from_streams(read, write), &options())
            .await
            .unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn endless_noise_is_refused() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move { while theirs.write_all(&[b'x'; 4096]).await.is_ok() {} });
    let (read, write) = tokio::io::split(ours);
    let error =
        NodeSession::over("gpu001", ByteChannel::from_streams(read, write), &options()).await.unwrap_err();
    assert!(error.to_string().contains("the login shell prints too much"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn calls_can_run_in_tasks_of_their_own() {
    let (session, mut peer) = start(&options()).await;
    let clone = session.clone();
    let task = tokio::spawn(async move { clone.call(operation(60), &NoBlobs, |_| {}).await });
    let (id, _) = peer.request().await.unwrap();
    peer.say(id, Reply::Outcome(Box::new(outcome("done")))).await;
    assert_eq!(task.await.unwrap().unwrap(), outcome("done"));
    let closed = tokio::spawn(async move { session.closed().await });
    drop(peer);
    assert_eq!(closed.await.unwrap().as_ref(), "the channel closed");
}

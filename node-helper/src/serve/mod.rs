//! The serving loop: hello, requests in, replies out, and the end.
//!
//! The helper and its children end when the channel closes, when the controller is silent for too long, when a newer
//! epoch takes the node over, or on request. A watchdog thread ensures this even while the reader is blocked.

pub mod channel;
mod clean;
mod declared;
pub mod job;
pub mod session;
mod streams;
mod turn;

use std::{
    io::{self, Read},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    Envelope, PROTOCOL_VERSION, Reply, Request,
    frame::{Decoder, Frame},
    message::{HEARTBEAT_TIMEOUT_S, Hello},
};

use self::{channel::Channel, session::Session};
use crate::{
    os::{files, roots::Roots},
    state::dir,
    tasks::reboot,
};

/// Time for operations to stop when the helper ends.
const FAREWELL: Duration = Duration::from_secs(4);

/// The arguments of `serve`.
#[derive(Clone, Debug)]
pub struct Options {
    pub roots: Roots,
    /// Time without a frame after which the helper ends.
    pub heartbeat_timeout: Duration,
    /// Replaces the usual state directory.
    pub state_dir: Option<PathBuf>,
    /// The host name that the controller's own machine is used under; it may have several.
    pub local: Option<String>,
    /// SHA-256 of the running file, if the process that started it has verified it; otherwise the helper computes it.
    pub verified: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            roots: Roots::real(),
            heartbeat_timeout: Duration::from_secs(HEARTBEAT_TIMEOUT_S),
            state_dir: None,
            local: None,
            verified: None,
        }
    }
}

/// Returns the SHA-256 of the running file.
fn own_digest() -> io::Result<String> {
    files::sha256_of(std::fs::File::open("/proc/self/exe")?).map(|(digest, _)| digest)
}

fn hello(options: &Options) -> io::Result<Hello> {
    Ok(Hello {
        protocol: PROTOCOL_VERSION,
        digest: options.verified.clone().map_or_else(own_digest, Ok)?,
        uid: rustix::process::geteuid().as_raw(),
        arch: std::env::consts::ARCH.to_owned(),
        pid: std::process::id(),
        boot_id: reboot::boot_id(&options.roots),
    })
}

/// Why the loop ended.
enum End {
    /// The channel closed, or the controller asked for it.
    Orderly,
    /// The input was no valid frame.
    Garbage,
}

/// Serves one controller on standard input and output.
pub fn serve(options: Options) -> ExitCode {
    let place = dir::Place { given: options.state_dir.clone(), local: options.local.clone() };
    let session = Arc::new(Session::new(Channel::new(io::stdout()), options.roots.clone(), place));
    let greeting = hello(&options);
    let greeted = session.channel.preamble().and_then(|()| match greeting {
        Ok(hello) => session.channel.send(0, Reply::Hello(hello)),
        Err(error) => {
            let message = format!("the helper cannot read its own file: {error}");
            session.channel.send(0, Reply::Error { message }).and(Err(error))
        }
    });
    if greeted.is_err() {
        return ExitCode::FAILURE;
    }
    let heard = Arc::new(Mutex::new(Instant::now()));
    let ending = Arc::new(AtomicBool::new(false));
    let watchdog = {
        let (session, heard, ending) = (Arc::clone(&session), Arc::clone(&heard), Arc::clone(&ending));
        let timeout = options.heartbeat_timeout;
        std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || watch(&session, &heard, &ending, timeout))
    };
    if let Err(error) = watchdog {
        let message = format!("no thread can be started: {error}");
        let _ = session.channel.send(0, Reply::Error { message });
        return ExitCode::FAILURE;
    }
    let end = read_requests(&session, &heard);
    ending.store(true, Ordering::Relaxed);
    session.stop_all(FAREWELL);
    session.release();
    match end {
        End::Orderly => ExitCode::SUCCESS,
        End::Garbage => ExitCode::FAILURE,
    }
}

fn read_requests(session: &Arc<Session>, heard: &Mutex<Instant>) -> End {
    let mut input = io::stdin().lock();
    let mut decoder = Decoder::default();
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let count = match input.read(&mut buffer) {
            Ok(0) => return End::Orderly,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return End::Orderly,
        };
        *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        decoder.feed(buffer.get(..count).unwrap_or_default());
        loop {
            match decoder.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    if !take(session, frame) {
                        return End::Orderly;
                    }
                }
                Err(error) => {
                    let message = format!("what came is not the protocol: {error}");
                    let _ = session.channel.send(0, Reply::Error { message });
                    return End::Garbage;
                }
            }
        }
    }
}

/// Handles one frame; returns `false` when the helper has to end.
fn take(session: &Arc<Session>, frame: Frame) -> bool {
    let bytes = match frame {
        Frame::Data { stream, bytes } => {
            session.streams.data(stream, bytes);
            return true;
        }
        Frame::Json(bytes) => bytes,
    };
    let envelope: Envelope<Request> = match serde_json::from_slice(&bytes) {
        Ok(envelope) => envelope,
        Err(error) => {
            #[derive(serde::Deserialize)]
            struct Id {
                id: u64,
            }
            let id = serde_json::from_slice::<Id>(&bytes).map_or(0, |envelope| envelope.id);
            let message = format!("the request cannot be understood: {error}");
            let _ = session.channel.send(id, Reply::Error { message });
            return true;
        }
    };
    let id = envelope.id;
    match envelope.body {
        Request::Open(open) => {
            let reply = session.open(open);
            let _ = session.channel.send(id, reply);
        }
        Request::Op(request) => session.start(id, *request),
        Request::Spooled { op_id } => {
            let reply = session.recall(&op_id);
            let _ = session.channel.send(id, reply);
        }
        Request::Cancel { id } => session.cancel(id),
        Request::Ping | Request::Blob { .. } => {}
        Request::NoBlob { stream, reason } => session.streams.refused(stream, reason),
        Request::ForgetPredictions => {
            let reply = session.forget_predictions();
            let _ = session.channel.send(id, reply);
        }
        Request::AssumeActivation { class } => {
            let reply = session.assume_activation(class);
            let _ = session.channel.send(id, reply);
        }
        Request::Clean => {
            session.stop_all(FAREWELL);
            let reply = match session.cleanable().and_then(|dir| clean::clean(&session.roots, &dir)) {
                Ok(()) => Reply::Done,
                Err(message) => Reply::Error { message },
            };
            let _ = session.channel.send(id, reply);
            return false;
        }
        Request::Close => {
            session.stop_all(FAREWELL);
            session.close_jobs();
            session.release();
            let _ = session.channel.send(id, Reply::Done);
            return false;
        }
    }
    true
}

/// How often it looks whether another controller has taken over, while a controller may be silent: twice a second.
const LOOKS: u32 = 120;

/// Ends the helper when its controller is silent or was replaced, and answers for operations that never end.
#[expect(
    clippy::exit,
    reason = "the reader may be blocked for ever, so only this thread can end the process"
)]
fn watch(session: &Session, heard: &Mutex<Instant>, ending: &AtomicBool, timeout: Duration) {
    let mut looked = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        if ending.load(Ordering::Relaxed) {
            // The reader is stopping its operations; a blocked write must not keep the process alive.
            session.stop_all(FAREWELL);
            std::thread::sleep(Duration::from_secs(2));
            std::process::exit(1);
        }
        session.answer_overdue();
        let silent = heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed() >= timeout;
        let fenced = looked.elapsed() >= timeout / LOOKS && {
            looked = Instant::now();
            session.is_fenced()
        };
        if silent || fenced {
            session.stop_all(FAREWELL);
            std::process::exit(i32::from(silent));
        }
    }
}

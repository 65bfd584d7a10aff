//! From a channel to a helper that has said hello.
//!
//! Runs the bootstrap: skips noise, answers sudo's prompt, and sends the node file when asked.

use gpufleet_protocol::{
    Envelope, PROTOCOL_VERSION, Reply,
    frame::{Decoder, Preamble},
    message::Hello,
};
use secrecy::ExposeSecret;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::bytes::Bytes;

use super::{
    bootstrap::{Word, Words, command, fresh_tag, is_plain_user, local_words, password_prompt},
    error::{SessionError, StartError},
    handle::SessionOptions,
};
use crate::transport::{
    Become, ByteChannel, ChannelEvent, Connection, Connector, ExitStatus, Phase, Target, Transport,
};

/// Longest hello, in bytes.
const HELLO: usize = 16 * 1024;
const KEPT: usize = 4096;
const CHUNK: usize = 64 * 1024;

/// The stage of a session that is being opened, for the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Connecting,
    Starting,
    /// The node file is being sent; its size in bytes.
    Sending {
        bytes: usize,
    },
}

/// A helper that has said hello.
pub(super) struct Opening {
    pub(super) channel: ByteChannel,
    pub(super) decoder: Decoder,
    pub(super) hello: Hello,
    pub(super) login_uid: u32,
    pub(super) pushed: bool,
}

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opening").field("hello", &self.hello).finish_non_exhaustive()
    }
}

/// Why one attempt failed, and whether sending the file again may help.
enum Failure {
    Final(SessionError),
    Stale(SessionError),
}

/// Connects and starts the helper.
pub(super) async fn open(
    connector: &Connector,
    target: &Target,
    options: &SessionOptions,
    stage: &(dyn Fn(Stage) + Send + Sync),
) -> Result<Opening, SessionError> {
    if let Some(privilege) = &target.privilege
        && !is_plain_user(&privilege.user)
    {
        let kind = StartError::BadUser { user: privilege.user.clone() };
        return Err(SessionError::Start { node: target.name.clone(), kind });
    }
    match attempt(connector, target, options, stage, false).await {
        Ok(opening) => Ok(opening),
        Err(Failure::Final(error)) => Err(error),
        // Once more: an existing file was damaged, or its folder became noexec.
        Err(Failure::Stale(_)) => match attempt(connector, target, options, stage, true).await {
            Ok(opening) => Ok(opening),
            Err(Failure::Final(error) | Failure::Stale(error)) => Err(error),
        },
    }
}

async fn attempt(
    connector: &Connector,
    target: &Target,
    options: &SessionOptions,
    stage: &(dyn Fn(Stage) + Send + Sync),
    anew: bool,
) -> Result<Opening, Failure> {
    stage(Stage::Connecting);
    let tag = fresh_tag();
    let words = match target.connection {
        Connection::Local => local_words(&target.name),
        Connection::Ssh(_) => String::new(),
    };
    let line = command(&tag, &options.node_files, anew, target.privilege.as_ref(), &words);
    let channel = connector.exec(target, &line).await.map_err(|error| Failure::Final(error.into()))?;
    stage(Stage::Starting);
    Driver::new(target, options, stage, channel, &tag).drive().await
}

/// Waits for the hello of a helper that was started elsewhere.
pub(super) async fn over(
    target: &Target,
    channel: ByteChannel,
    options: &SessionOptions,
) -> Result<Opening, SessionError> {
    match Driver::new(target, options, &|_| {}, channel, &fresh_tag()).drive().await {
        Ok(opening) => Ok(opening),
        Err(Failure::Final(error) | Failure::Stale(error)) => Err(error),
    }
}

struct Driver<'a> {
    target: &'a Target,
    options: &'a SessionOptions,
    stage: &'a (dyn Fn(Stage) + Send + Sync),
    channel: ByteChannel,
    preamble: Preamble,
    words: Words,
    prompt: String,
    stderr: Vec<u8>,
    prompts: usize,
    login_uid: Option<u32>,
    ran_existing: bool,
    pushed: bool,
    exit: Option<ExitStatus>,
    failed: Option<StartError>,
}

/// What a channel event leads to.
enum Step {
    Nothing,
    Send {
        architecture: String,
        packed: bool,
    },
    /// The helper has taken over; these are its first bytes.
    Speaking(Vec<u8>),
}

impl<'a> Driver<'a> {
    fn new(
        target: &'a Target,
        options: &'a SessionOptions,
        stage: &'a (dyn Fn(Stage) + Send + Sync),
        channel: ByteChannel,
        tag: &str,
    ) -> Self {
        Self {
            target,
            options,
            stage,
            channel,
            preamble: Preamble::default(),
            words: Words::new(tag),
            prompt: password_prompt(tag),
            stderr: Vec::new(),
            prompts: 0,
            login_uid: None,
            ran_existing: false,
            pushed: false,
            exit: None,
            failed: None,
        }
    }

    async fn drive(mut self) -> Result<Opening, Failure> {
        let limit = self.options.deadlines.start;
        let mut until = Instant::now() + limit;
        loop {
            let event = match timeout_at(until, self.channel.reader.next()).await {
                Err(_) => {
                    let kind = StartError::Silent { after: limit, said: self.said() };
                    return Err(self.finally(kind));
                }
                Ok(None) => return Err(self.ended()),
                Ok(Some(event)) => event,
            };
            match self.take(event).await? {
                Step::Nothing => {}
                Step::Send { architecture, packed } => {
                    self.push(&architecture, packed).await?;
                    until = Instant::now() + limit;
                }
                Step::Speaking(rest) => return self.greet(rest, until).await,
            }
        }
    }

    fn finally(&self, kind: StartError) -> Failure {
        Failure::Final(SessionError::Start { node: self.target.name.clone(), kind })
    }

    fn lost(&self, phase: Phase, cause: String) -> Failure {
        Failure::Final(SessionError::Lost { node: self.target.name.clone(), phase, cause })
    }

    async fn take(&mut self, event: ChannelEvent) -> Result<Step, Failure> {
        match event {
            ChannelEvent::Stdout(bytes) => {
                let fed = self.preamble.feed(&bytes);
                let words = self.words.scan(self.preamble.noise());
                let mut step = Step::Nothing;
                for word in words {
                    match word {
                        Word::Login(uid) => self.login_uid = Some(uid),
                        Word::Run => self.ran_existing = true,
                        Word::Need { architecture, packed } => step = Step::Send { architecture, packed },
                        Word::Fail { kind, detail } => self.failed = Some(self.refusal(&kind, detail)),
                    }
                }
                match fed {
                    Ok(Some(rest)) => Ok(Step::Speaking(rest)),
                    Ok(None) => Ok(step),
                    Err(_) => Err(self.finally(StartError::TooMuchNoise { said: self.said() })),
                }
            }
            ChannelEvent::Stderr(bytes) => {
                self.stderr.extend_from_slice(&bytes);
                self.answer_prompt().await?;
                let excess = self.stderr.len().saturating_sub(KEPT);
                self.stderr.drain(..excess);
                Ok(Step::Nothing)
            }
            ChannelEvent::Exit(status) => {
                self.exit = Some(status);
                Ok(Step::Nothing)
            }
        }
    }

    /// Sends the password at sudo's prompt, and nowhere else.
    async fn answer_prompt(&mut self) -> Result<(), Failure> {
        let prompt = self.prompt.as_bytes();
        let Some(at) = self.stderr.windows(prompt.len()).position(|window| window == prompt) else {
            return Ok(());
        };
        self.stderr.drain(at..at + prompt.len());
        self.prompts += 1;
        let password = self.target.privilege.as_ref().and_then(|privilege| privilege.password.as_ref());
        let (Some(password), 1) = (password, self.prompts) else {
            return Err(self.finally(StartError::SudoPasswordWrong { login: self.login() }));
        };
        let line = Bytes::from(format!("{}\n", password.expose_secret()));
        let limit = self.options.deadlines.stall;
        match timeout(limit, self.channel.writer.write(line)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.lost(Phase::Sudo, error.to_string())),
            Err(_) => Err(self.finally(StartError::Silent { after: limit, said: self.said() })),
        }
    }

    /// Sends the node file in pieces, each with a deadline.
    async fn push(&mut self, architecture: &str, packed: bool) -> Result<(), Failure> {
        let Some(file) = self.options.node_files.get(architecture) else {
            return Err(self.finally(StartError::Architecture {
                found: architecture.to_owned(),
                known: self.options.node_files.architectures(),
            }));
        };
        let mut rest = if packed { file.packed.clone() } else { file.plain() };
        (self.stage)(Stage::Sending { bytes: rest.len() });
        self.pushed = true;
        let stall = self.options.deadlines.stall;
        while !rest.is_empty() {
            let piece = rest.split_to(CHUNK.min(rest.len()));
            match timeout(stall, self.channel.writer.write(piece)).await {
                Ok(Ok(())) => {}
                // No error yet: the bootstrap printed a reason before it ended, which is still to be read.
                Ok(Err(_)) => return Ok(()),
                Err(_) => return Err(self.finally(StartError::PushStalled { after: stall })),
            }
        }
        Ok(())
    }

    async fn greet(mut self, rest: Vec<u8>, until: Instant) -> Result<Opening, Failure> {
        let node = self.target.name.clone();
        let broken = |reason: String| Failure::Final(SessionError::Protocol { node: node.clone(), reason });
        // A small limit: the peer is not verified yet, and a hello is short.
        let mut decoder = Decoder::limited(HELLO);
        decoder.feed(&rest);
        let frame = loop {
            if let Some(frame) = decoder.next_frame().map_err(|error| broken(error.to_string()))? {
                break frame;
            }
            match timeout_at(until, self.channel.reader.next()).await {
                Err(_) => {
                    let kind = StartError::Silent { after: self.options.deadlines.start, said: self.said() };
                    return Err(self.finally(kind));
                }
                Ok(None) => return Err(self.ended()),
                Ok(Some(ChannelEvent::Stdout(bytes))) => decoder.feed(&bytes),
                Ok(Some(event)) => drop(self.take(event).await?),
            }
        };
        let hello = match frame.decode::<Envelope<Reply>>() {
            Ok(Some(Envelope { body: Reply::Hello(hello), .. })) => hello,
            Ok(_) => return Err(broken("its first frame is no hello".to_owned())),
            Err(error) => return Err(broken(format!("its first frame: {error}"))),
        };
        if !self.options.node_files.has_digest(&hello.digest) {
            let kind = StartError::Digest { found: hello.digest };
            let error = SessionError::Start { node, kind };
            return Err(if self.ran_existing { Failure::Stale(error) } else { Failure::Final(error) });
        }
        if hello.protocol != PROTOCOL_VERSION {
            return Err(self.finally(StartError::Version { found: hello.protocol, wanted: PROTOCOL_VERSION }));
        }
        let login_uid = self.login_uid.unwrap_or(hello.uid);
        let decoder = decoder.widened();
        Ok(Opening { channel: self.channel, decoder, hello, login_uid, pushed: self.pushed })
    }

    fn login(&self) -> String {
        match &self.target.connection {
            Connection::Ssh(ssh) => {
                ssh.overrides.user.as_ref().map_or_else(|| "the login user".to_owned(), ToString::to_string)
            }
            Connection::Local => "this user".to_owned(),
        }
    }

    /// Returns what the login shell and sudo printed, for messages.
    fn said(&self) -> String {
        let mut text = crate::transport::printable(&self.stderr, 300);
        let noise = self.preamble.noise();
        let tail = noise.get(noise.len().saturating_sub(400)..).unwrap_or_default();
        let shown = crate::transport::printable(tail, 200);
        if !shown.is_empty() {
            text = if text.is_empty() { shown } else { format!("{text}; {shown}") };
        }
        if text.is_empty() { "it printed nothing".to_owned() } else { format!("it printed: {text}") }
    }

    fn refusal(&self, kind: &str, detail: String) -> StartError {
        match kind {
            "arch" => {
                StartError::Architecture { found: detail, known: self.options.node_files.architectures() }
            }
            "place" => StartError::NoPlace { tried: detail },
            "short" => StartError::DiskFull { folder: detail },
            "digest" => StartError::Damaged { folder: detail },
            "nosudo" => StartError::NoSudo { user: self.user() },
            _ => StartError::Ended { ended: kind.to_owned(), said: detail },
        }
    }

    fn user(&self) -> String {
        self.target.privilege.as_ref().map_or_else(|| "root".to_owned(), |privilege| privilege.user.clone())
    }

    /// Returns the failure for a channel that ended before the helper took over.
    fn ended(mut self) -> Failure {
        if let Some(kind) = self.failed.take() {
            return self.finally(kind);
        }
        let stderr = crate::transport::printable(&self.stderr, 300);
        if let (Some(privilege), false) = (&self.target.privilege, self.ran_existing || self.pushed)
            && let Some(kind) = sudo_failure(&stderr, &self.login(), privilege)
        {
            return self.finally(kind);
        }
        let openssh =
            matches!(&self.target.connection, Connection::Ssh(ssh) if ssh.transport == Transport::OpenSsh);
        if openssh && self.exit == Some(ExitStatus::Code(255)) && self.login_uid.is_none() {
            return self.finally(StartError::OpenSsh { said: stderr });
        }
        let Some(exit) = &self.exit else {
            let cause =
                self.channel.reader.ended_because().unwrap_or_else(|| "the channel closed".to_owned());
            return self.lost(Phase::Bootstrap, cause);
        };
        let kind = StartError::Ended { ended: exit.to_string(), said: self.said() };
        let error = SessionError::Start { node: self.target.name.clone(), kind };
        if self.ran_existing { Failure::Stale(error) } else { Failure::Final(error) }
    }
}

/// Recognises sudo's messages; it runs with `LC_ALL=C`.
fn sudo_failure(stderr: &str, login: &str, privilege: &Become) -> Option<StartError> {
    let login = login.to_owned();
    let lower = stderr.to_lowercase();
    let has = |text: &str| lower.contains(text);
    if has("you must have a tty") || has("no tty present") || has("a terminal is required") && has("askpass")
    {
        if has("a terminal is required") && privilege.password.is_none() {
            return Some(StartError::SudoPasswordNeeded { login });
        }
        return Some(StartError::SudoNeedsTerminal { login });
    }
    if has("a password is required") || has("interactive authentication is required") {
        return Some(match privilege.password {
            None => StartError::SudoPasswordNeeded { login },
            Some(_) => StartError::SudoPasswordWrong { login },
        });
    }
    if has("incorrect password") || has("sorry, try again") {
        return Some(StartError::SudoPasswordWrong { login });
    }
    if has("not in the sudoers") || has("may not run sudo") || has("is not allowed to") || has("unknown user")
    {
        return Some(StartError::SudoForbidden {
            login,
            user: privilege.user.clone(),
            said: stderr.to_owned(),
        });
    }
    has("sudo:").then(|| StartError::Sudo { said: stderr.to_owned() })
}

//! A byte channel to one command that runs on a node, over any transport.
//!
//! Owns the bytes in flight and nothing else. Reading is cancel-safe. Writing waits for the peer, so each writer must
//! set its own deadline.

use std::{io, process::Stdio, sync::Arc};

use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client::Msg};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
};
use tokio_util::bytes::{Bytes, BytesMut};

use super::handshake::SshConnection;

const READ_BYTES: usize = 32 * 1024;

/// An event from the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    Stdout(Bytes),
    Stderr(Bytes),
    Exit(ExitStatus),
}

/// How the command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Code(u32),
    Signal(String),
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(name) => write!(f, "signal {name}"),
        }
    }
}

/// Both directions of a running command.
pub struct ByteChannel {
    pub reader: ChannelReader,
    pub writer: ChannelWriter,
}

impl std::fmt::Debug for ByteChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByteChannel").finish_non_exhaustive()
    }
}

impl ByteChannel {
    pub(crate) fn ssh(
        read: ChannelReadHalf,
        write: ChannelWriteHalf<Msg>,
        connection: Arc<SshConnection>,
    ) -> Self {
        Self {
            reader: ChannelReader(Reading::Ssh { half: read, connection }),
            writer: ChannelWriter(Writing::Ssh(write)),
        }
    }

    /// Starts a process and uses its standard streams as the channel.
    pub(crate) fn spawn(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let missing = || io::Error::other("a standard stream is missing");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        let process = Process { child, stdout: Some(stdout), stderr: Some(stderr), ended: None };
        Ok(Self {
            reader: ChannelReader(Reading::Process(Box::new(process))),
            writer: ChannelWriter(Writing::Process(Some(stdin))),
        })
    }

    /// Creates a channel over any two streams, for simulated nodes.
    pub fn from_streams(
        stdout: impl AsyncRead + Send + Unpin + 'static,
        stdin: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self {
            reader: ChannelReader(Reading::Stream(Some(Box::new(stdout)))),
            writer: ChannelWriter(Writing::Stream(Some(Box::new(stdin)))),
        }
    }
}

pub struct ChannelReader(Reading);

enum Reading {
    Ssh { half: ChannelReadHalf, connection: Arc<SshConnection> },
    Process(Box<Process>),
    Stream(Option<Box<dyn AsyncRead + Send + Unpin>>),
}

struct Process {
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    ended: Option<String>,
}

impl ChannelReader {
    /// Returns the next event; `None` once the channel is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<ChannelEvent> {
        match &mut self.0 {
            Reading::Ssh { half, .. } => loop {
                match half.wait().await? {
                    ChannelMsg::Data { data } => return Some(ChannelEvent::Stdout(data)),
                    ChannelMsg::ExtendedData { data, .. } => return Some(ChannelEvent::Stderr(data)),
                    ChannelMsg::ExitStatus { exit_status } => {
                        return Some(ChannelEvent::Exit(ExitStatus::Code(exit_status)));
                    }
                    ChannelMsg::ExitSignal { signal_name, .. } => {
                        return Some(ChannelEvent::Exit(ExitStatus::Signal(format!("{signal_name:?}"))));
                    }
                    ChannelMsg::Close => return None,
                    _ => {}
                }
            },
            Reading::Process(process) => process.next().await,
            Reading::Stream(stream) => {
                let bytes = read_some(stream.as_mut()?).await;
                if bytes.is_none() {
                    *stream = None;
                }
                bytes.map(ChannelEvent::Stdout)
            }
        }
    }

    /// Returns why the underlying connection ended, if known.
    pub fn ended_because(&self) -> Option<String> {
        match &self.0 {
            Reading::Ssh { connection, .. } => connection.ended(),
            Reading::Process(process) => process.ended.clone(),
            Reading::Stream(_) => None,
        }
    }
}

impl Process {
    async fn next(&mut self) -> Option<ChannelEvent> {
        loop {
            let (stdout, stderr) = (&mut self.stdout, &mut self.stderr);
            match (stdout.as_mut(), stderr.as_mut()) {
                (None, None) => break,
                (Some(out), None) => match read_some(out).await {
                    Some(bytes) => return Some(ChannelEvent::Stdout(bytes)),
                    None => *stdout = None,
                },
                (None, Some(err)) => match read_some(err).await {
                    Some(bytes) => return Some(ChannelEvent::Stderr(bytes)),
                    None => *stderr = None,
                },
                (Some(out), Some(err)) => tokio::select! {
                    bytes = read_some(out) => match bytes {
                        Some(bytes) => return Some(ChannelEvent::Stdout(bytes)),
                        None => *stdout = None,
                    },
                    bytes = read_some(err) => match bytes {
                        Some(bytes) => return Some(ChannelEvent::Stderr(bytes)),
                        None => *stderr = None,
                    },
                },
            }
        }
        if self.ended.is_some() {
            return None;
        }
        let status = match self.child.wait().await {
            Ok(status) => {
                use std::os::unix::process::ExitStatusExt;
                match (status.code(), status.signal()) {
                    (Some(code), _) => ExitStatus::Code(u32::try_from(code).unwrap_or(u32::MAX)),
                    (None, signal) => ExitStatus::Signal(signal.unwrap_or_default().to_string()),
                }
            }
            Err(error) => ExitStatus::Signal(error.to_string()),
        };
        self.ended = Some(format!("the process ended with {status}"));
        Some(ChannelEvent::Exit(status))
    }
}

/// Reads available bytes; `None` at the end and on errors.
async fn read_some(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> Option<Bytes> {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    match stream.read_buf(&mut buffer).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(Bytes::copy_from_slice(&buffer)),
    }
}

pub struct ChannelWriter(Writing);

enum Writing {
    Ssh(ChannelWriteHalf<Msg>),
    Process(Option<ChildStdin>),
    Stream(Option<Box<dyn AsyncWrite + Send + Unpin>>),
}

impl ChannelWriter {
    /// Sends bytes and waits for room. Without a deadline this may wait forever.
    ///
    /// # Errors
    /// If the channel is closed.
    pub async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        match &mut self.0 {
            Writing::Ssh(half) => half.data_bytes(bytes).await.map_err(|_| closed()),
            Writing::Process(stdin) => {
                let stdin = stdin.as_mut().ok_or_else(closed)?;
                stdin.write_all(&bytes).await?;
                stdin.flush().await
            }
            Writing::Stream(stream) => {
                let stream = stream.as_mut().ok_or_else(closed)?;
                stream.write_all(&bytes).await?;
                stream.flush().await
            }
        }
    }

    /// Closes the command's input.
    pub async fn finish(&mut self) {
        match &mut self.0 {
            Writing::Ssh(half) => drop(half.eof().await),
            Writing::Process(stdin) => *stdin = None,
            Writing::Stream(stream) => {
                if let Some(mut stream) = stream.take() {
                    drop(stream.shutdown().await);
                }
            }
        }
    }

    /// Closes the channel.
    pub async fn close(&mut self) {
        self.finish().await;
        if let Writing::Ssh(half) = &self.0 {
            drop(half.close().await);
        }
    }
}

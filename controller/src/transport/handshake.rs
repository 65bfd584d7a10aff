//! One SSH connection: key exchange, host key check, and why the connection ended.

use std::{
    borrow::Cow,
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use russh::{
    Channel, ChannelMsg, ChannelOpenFailure, ChannelStream, Disconnect, SshId, cipher,
    client::{self, DisconnectReason, Handle, Msg},
    compression,
    keys::PublicKeyOrCertificate,
};
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use super::{
    channel::ByteChannel,
    error::{ConnectError, Phase, printable},
    first_bytes::{Duplex, FirstBytes, Remembering},
    host_key::{HostKeyCheck, HostKeyError},
    settings::SshSettings,
};

/// Receive window of a channel, in bytes.
const WINDOW: u32 = 512 * 1024;
/// Number of packets of a channel that wait for their reader; at 32 KiB each they limit the memory for a slow reader.
const CHANNEL_PACKETS: usize = 8;
/// The same on a bastion, whose channels must not wait for each other.
const BASTION_PACKETS: usize = 64;
/// How long a handshake keeps its place in the queue: a peer that hangs longer delays no other node.
const PATIENCE: Duration = Duration::from_secs(2);
const BANNER_BYTES: usize = 2048;

#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    banner: Mutex<String>,
    ended: Mutex<Option<String>>,
}

impl ConnectionState {
    pub(crate) fn ended(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn banner(&self) -> String {
        self.banner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// An SSH connection, authenticated unless it was just made.
pub(crate) struct SshConnection {
    pub(crate) handle: Handle<Handler>,
    pub(crate) state: Arc<ConnectionState>,
    pub(crate) address: String,
}

#[derive(Debug)]
pub(crate) enum HandlerError {
    Ssh(russh::Error),
    HostKey(Box<HostKeyError>),
}

impl From<russh::Error> for HandlerError {
    fn from(error: russh::Error) -> Self {
        Self::Ssh(error)
    }
}

pub(crate) struct Handler {
    check: HostKeyCheck,
    state: Arc<ConnectionState>,
}

impl client::Handler for Handler {
    type Error = HandlerError;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        match self.check.run(key).await {
            Ok(()) => Ok(true),
            Err(error) => Err(HandlerError::HostKey(Box::new(error))),
        }
    }

    async fn auth_banner(&mut self, banner: &str, _: &mut client::Session) -> Result<(), Self::Error> {
        let mut kept = self.state.banner.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() + banner.len() <= BANNER_BYTES {
            kept.push_str(banner);
        }
        Ok(())
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Self::Error>) -> Result<(), Self::Error> {
        let (text, result) = match reason {
            DisconnectReason::ReceivedDisconnect(info) => {
                (format!("the node said: {}", info.message.trim()), Ok(()))
            }
            DisconnectReason::Error(error) => (ending(&error), Err(error)),
        };
        self.state.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        result
    }
}

fn ending(error: &HandlerError) -> String {
    match error {
        HandlerError::Ssh(russh::Error::KeepaliveTimeout) => {
            "the node stopped answering keepalives".to_owned()
        }
        HandlerError::Ssh(russh::Error::Disconnect | russh::Error::HUP) => {
            "the node closed the connection".to_owned()
        }
        HandlerError::Ssh(russh::Error::IO(error)) => error.to_string(),
        HandlerError::Ssh(error) => error.to_string(),
        HandlerError::HostKey(error) => error.to_string(),
    }
}

/// Both ends of a connection, for messages.
pub(crate) struct Peer<'a> {
    pub(crate) node: &'a str,
    pub(crate) address: &'a str,
}

impl Peer<'_> {
    fn timeout(&self, phase: Phase, after: Duration) -> ConnectError {
        ConnectError::Timeout { node: self.node.to_owned(), address: self.address.to_owned(), phase, after }
    }
}

/// Exchanges keys over a stream and checks the host key.
pub(crate) async fn handshake(
    peer: &Peer<'_>,
    settings: &SshSettings,
    stream: Box<dyn Duplex>,
    check: HostKeyCheck,
    is_bastion: bool,
    deadline: Duration,
    permits: Vec<OwnedSemaphorePermit>,
) -> Result<SshConnection, ConnectError> {
    let config = Arc::new(configuration(settings, &check, is_bastion));
    let state = Arc::new(ConnectionState::default());
    let handler = Handler { check, state: Arc::clone(&state) };
    let (stream, first) = Remembering::new(stream);
    let connecting = client::connect_stream(config, stream, handler);
    tokio::pin!(connecting);
    let both = async {
        let patient = timeout(PATIENCE.min(deadline), &mut connecting).await;
        drop(permits);
        match patient {
            Ok(result) => result,
            Err(_) => connecting.await,
        }
    };
    match timeout(deadline, both).await {
        Err(_) => Err(peer.timeout(Phase::Handshake, deadline)),
        Ok(Err(error)) => Err(failure(peer, error, &first)),
        Ok(Ok(handle)) => Ok(SshConnection { handle, state, address: peer.address.to_owned() }),
    }
}

fn configuration(settings: &SshSettings, check: &HostKeyCheck, is_bastion: bool) -> client::Config {
    let mut preferred = russh::Preferred::DEFAULT;
    preferred.key = Cow::Owned(check.known.key_algorithms());
    preferred.host_key_certificates = Cow::Owned(check.known.certificate_algorithms());
    // AES-GCM first: with AES instructions it is a third faster than ChaCha20.
    preferred.cipher = Cow::Borrowed(&[
        cipher::AES_256_GCM,
        cipher::CHACHA20_POLY1305,
        cipher::AES_256_CTR,
        cipher::AES_192_CTR,
        cipher::AES_128_CTR,
    ]);
    preferred.compression = Cow::Borrowed(&[compression::NONE]);
    client::Config {
        client_id: SshId::Standard(Cow::Borrowed(concat!("SSH-2.0-gpufleet_", env!("CARGO_PKG_VERSION")))),
        preferred,
        nodelay: true,
        window_size: WINDOW,
        channel_buffer_size: if is_bastion { BASTION_PACKETS } else { CHANNEL_PACKETS },
        keepalive_interval: Some(settings.keepalive_interval),
        keepalive_max: usize::try_from(settings.keepalive_count.max(1)).unwrap_or(3),
        inactivity_timeout: None,
        ..client::Config::default()
    }
}

fn failure(peer: &Peer<'_>, error: HandlerError, first: &FirstBytes) -> ConnectError {
    let (node, address) = (peer.node.to_owned(), peer.address.to_owned());
    let error = match error {
        HandlerError::HostKey(source) => return ConnectError::HostKey { node, source },
        HandlerError::Ssh(error) => error,
    };
    let first = first.get();
    let spoke_ssh = first.starts_with(b"SSH-") || first.windows(5).any(|window| window == b"\nSSH-");
    let said = printable(&first, 80);
    match error {
        russh::Error::Version => ConnectError::NotSsh { node, address, received: format!("`{said}`") },
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_) => {
            let is_limit =
                first.starts_with(b"Exceeded MaxStartups") || first.starts_with(b"Not allowed at this time");
            if !spoke_ssh && !first.is_empty() && !is_limit {
                return ConnectError::NotSsh { node, address, received: format!("`{said}`") };
            }
            let detail = match error {
                _ if is_limit => said,
                russh::Error::IO(error) if error.kind() != io::ErrorKind::UnexpectedEof => error.to_string(),
                _ => String::new(),
            };
            ConnectError::Closed { node, address, phase: Phase::Handshake, detail }
        }
        russh::Error::NoCommonAlgo { kind, theirs, .. } => ConnectError::Negotiation {
            node,
            address,
            what: format!("{kind:?} algorithm").to_lowercase(),
            theirs: theirs.join(", "),
        },
        other => ConnectError::Protocol { node, phase: Phase::Handshake, reason: other.to_string() },
    }
}

impl SshConnection {
    pub(crate) fn ended(&self) -> Option<String> {
        self.state.ended()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Runs one command on a session channel.
    pub(crate) async fn exec(
        self: &Arc<Self>,
        node: &str,
        command: &str,
        deadline: Duration,
    ) -> Result<ByteChannel, ConnectError> {
        let both = async { self.begin(node, self.open(node).await?, command).await };
        self.within(node, deadline, both).await
    }

    /// Opens a session channel without a command.
    pub(crate) async fn session(&self, node: &str, deadline: Duration) -> Result<Channel<Msg>, ConnectError> {
        self.within(node, deadline, self.open(node)).await
    }

    /// Requests a command on a channel of this connection. After an error, the command may be running all the same.
    pub(crate) async fn start(
        self: &Arc<Self>,
        node: &str,
        channel: Channel<Msg>,
        command: &str,
        deadline: Duration,
    ) -> Result<ByteChannel, ConnectError> {
        self.within(node, deadline, self.begin(node, channel, command)).await
    }

    async fn within<T>(
        &self,
        node: &str,
        deadline: Duration,
        work: impl Future<Output = Result<T, ConnectError>>,
    ) -> Result<T, ConnectError> {
        let peer = Peer { node, address: &self.address };
        timeout(deadline, work).await.unwrap_or_else(|_| Err(peer.timeout(Phase::Channel, deadline)))
    }

    fn closed(&self, node: &str) -> ConnectError {
        ConnectError::Closed {
            node: node.to_owned(),
            address: self.address.clone(),
            phase: Phase::Channel,
            detail: self.ended().unwrap_or_default(),
        }
    }

    async fn open(&self, node: &str) -> Result<Channel<Msg>, ConnectError> {
        self.handle.channel_open_session().await.map_err(|error| match error {
            russh::Error::ChannelOpenFailure(reason) => ConnectError::ChannelRefused {
                node: node.to_owned(),
                reason: format!("{}; is the account locked, or `MaxSessions 0` set?", open_failure(&reason)),
            },
            _ => self.closed(node),
        })
    }

    async fn begin(
        self: &Arc<Self>,
        node: &str,
        channel: Channel<Msg>,
        command: &str,
    ) -> Result<ByteChannel, ConnectError> {
        let (mut read, write) = channel.split();
        write.exec(true, command).await.map_err(|_| self.closed(node))?;
        loop {
            match read.wait().await {
                Some(ChannelMsg::Success) => return Ok(ByteChannel::ssh(read, write, Arc::clone(self))),
                Some(ChannelMsg::Failure) => {
                    return Err(ConnectError::ChannelRefused {
                        node: node.to_owned(),
                        reason: "it runs no commands; is `ForceCommand` or a restricted shell set?"
                            .to_owned(),
                    });
                }
                Some(_) => {}
                None => return Err(self.closed(node)),
            }
        }
    }

    /// Opens a stream to `host:port` as seen from this host.
    pub(crate) async fn forward(&self, host: &str, port: u16) -> Result<ChannelStream<Msg>, russh::Error> {
        let channel = self.handle.channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0).await?;
        Ok(channel.into_stream())
    }

    /// Whether the peer answers within this time.
    pub(crate) async fn is_there(&self, limit: Duration) -> bool {
        matches!(timeout(limit, self.handle.send_ping()).await, Ok(Ok(()))) && !self.is_closed()
    }

    /// Disconnects, best effort.
    pub(crate) async fn disconnect(&self) {
        let bye = self.handle.disconnect(Disconnect::ByApplication, "", "");
        drop(timeout(Duration::from_secs(1), bye).await);
    }
}

pub(crate) fn open_failure(reason: &ChannelOpenFailure) -> String {
    match reason {
        ChannelOpenFailure::AdministrativelyProhibited => "administratively prohibited".to_owned(),
        ChannelOpenFailure::ConnectFailed => "connect failed".to_owned(),
        ChannelOpenFailure::UnknownChannelType => "unknown channel type".to_owned(),
        ChannelOpenFailure::ResourceShortage => "resource shortage".to_owned(),
        ChannelOpenFailure::Other { reason, .. } => reason.clone(),
    }
}

//! From a [`Target`] to a running command: resolves settings, crosses jump hosts, shakes hands, authenticates.
//!
//! One connector serves a whole run. It owns what nodes share: the handshake limit, jump host connections, parsed
//! `known_hosts` files, keys and `ssh -G` answers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use secrecy::SecretString;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    arguments::{AddressFamily, SshOverrides},
    authentication::Credentials,
    bastion::BastionPool,
    channel::ByteChannel,
    environment::Environment,
    error::{ConnectError, Phase},
    first_bytes::Duplex,
    handshake::{Peer, SshConnection, handshake},
    host_key::{HostKeyCheck, KnownHost},
    identities::IdentityStore,
    known_hosts::KnownHostsCache,
    proxy_command::{self, LastWords},
    settings::{Hop, Proxy, SshSettings},
    ssh_config::SshConfig,
    subprocess,
    target::{Connection, SshTarget, Target, Transport},
};

/// How often a connection is retried that sshd dropped while it was being made.
const RETRIES: u32 = 5;
/// Largest number of jump hosts in a chain.
const MAX_HOPS: usize = 8;

/// Time limits for the parts of connecting.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// Name resolution and TCP; a `ConnectTimeout` overrides it.
    pub connect: Duration,
    pub handshake: Duration,
    /// Without the time that a person needs for a passphrase.
    pub authentication: Duration,
    pub channel: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            handshake: Duration::from_secs(20),
            authentication: Duration::from_secs(40),
            channel: Duration::from_secs(20),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ConnectorOptions {
    /// Number of simultaneous handshakes, over all nodes.
    pub handshakes: usize,
    pub deadlines: Deadlines,
}

impl Default for ConnectorOptions {
    fn default() -> Self {
        Self { handshakes: 64, deadlines: Deadlines::default() }
    }
}

/// Connects to nodes.
pub struct Connector {
    environment: Environment,
    deadlines: Deadlines,
    handshakes: Arc<Semaphore>,
    bastions: BastionPool,
    known_hosts: Arc<KnownHostsCache>,
    identities: IdentityStore,
    config: SshConfig,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("environment", &self.environment).finish_non_exhaustive()
    }
}

/// A stream to a node before SSH runs over it.
struct Way {
    stream: Box<dyn Duplex>,
    /// Held until the handshake is done.
    permits: Vec<OwnedSemaphorePermit>,
    proxy: Option<(String, LastWords)>,
}

/// The last jump host of a chain, and those before it.
struct LastHop {
    name: String,
    chain: String,
    settings: SshSettings,
    trail: Vec<String>,
}

/// What nodes share on the path to them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// The node is the controller itself.
    Here,
    /// A direct connection from the controller.
    Direct,
    /// A chain of jump hosts, as written.
    JumpHost(String),
    /// A command, with tokens for what differs between its nodes.
    ProxyCommand(String),
}

impl Connector {
    pub fn new(environment: Environment, options: ConnectorOptions) -> Arc<Self> {
        Arc::new(Self {
            environment,
            deadlines: options.deadlines,
            handshakes: Arc::new(Semaphore::new(options.handshakes.max(1))),
            bastions: BastionPool::default(),
            known_hosts: Arc::new(KnownHostsCache::default()),
            identities: IdentityStore::default(),
            config: SshConfig::default(),
        })
    }

    /// Runs one command on the target and returns its channel.
    ///
    /// # Errors
    /// If there is no channel. With the OpenSSH client, failures to connect appear only when the channel ends.
    pub async fn exec(&self, target: &Target, command: &str) -> Result<ByteChannel, ConnectError> {
        let node = target.name.as_str();
        match &target.connection {
            Connection::Local => subprocess::local(node, command),
            Connection::Ssh(ssh) if ssh.transport == Transport::OpenSsh => {
                subprocess::openssh(node, ssh, command, &self.environment, &self.deadlines)
            }
            Connection::Ssh(ssh) => {
                let connection = Arc::new(self.connect(node, ssh).await?);
                connection.exec(node, command, self.deadlines.channel).await
            }
        }
    }

    /// Returns what a target shares with others on the path to it.
    pub async fn route(&self, target: &Target) -> Route {
        let Connection::Ssh(ssh) = &target.connection else { return Route::Here };
        let found = self.config.settings(&target.name, &ssh.host, &ssh.overrides, &self.environment).await;
        match found.map(|settings| (settings.proxy.clone(), settings)) {
            Ok((Proxy::Jump(hops), _)) => Route::JumpHost(chain_of(&hops)),
            Ok((Proxy::Command(command), settings)) => {
                // The parts that name this node are replaced by tokens, so that the routes of other nodes compare
                // equal.
                let shared = command
                    .replace(settings.host.as_str(), "%h")
                    .replace(settings.alias.as_str(), "%n")
                    .replace(&settings.port.to_string(), "%p");
                Route::ProxyCommand(shared)
            }
            // If the proxy is unknown, the connection has failed too.
            Ok((Proxy::None, _)) | Err(_) => Route::Direct,
        }
    }

    /// Checks that the last jump host before a target still lets this user in and opens channels, over a new
    /// connection. `None` if there is no jump host, or only OpenSSH can log in there.
    pub async fn ask_jump_host(&self, target: &Target) -> Option<Result<(), ConnectError>> {
        let Connection::Ssh(ssh) = &target.connection else { return None };
        if ssh.transport == Transport::OpenSsh {
            return None;
        }
        let node = target.name.as_str();
        let settings = self.config.settings(node, &ssh.host, &ssh.overrides, &self.environment).await.ok()?;
        let Proxy::Jump(hops) = &settings.proxy else { return None };
        Some(self.jump_host_answers(node, &settings, hops).await)
    }

    async fn jump_host_answers(
        &self,
        node: &str,
        settings: &SshSettings,
        hops: &[Hop],
    ) -> Result<(), ConnectError> {
        let last = self.last_hop(node, settings, hops, &[]).await?;
        let connection = self.connect_with(&last.name, &last.settings, None, last.trail).await?;
        let limit = self.deadlines.channel;
        // A channel to itself: any answer shows that it opens channels now.
        let answer = timeout(limit, connection.forward("localhost", last.settings.port)).await;
        connection.disconnect().await;
        match answer {
            Ok(Ok(_) | Err(russh::Error::ChannelOpenFailure(_))) => Ok(()),
            Ok(Err(error)) => Err(ConnectError::Protocol {
                node: last.name,
                phase: Phase::Channel,
                reason: error.to_string(),
            }),
            Err(_) => Err(ConnectError::Timeout {
                node: last.name,
                address: last.settings.address(),
                phase: Phase::Channel,
                after: limit,
            }),
        }
    }

    /// Closes what nodes share, which ends channels through jump hosts.
    pub async fn close(&self) {
        self.bastions.close().await;
    }

    pub(super) const fn channel_deadline(&self) -> Duration {
        self.deadlines.channel
    }

    pub(super) async fn connect(
        &self,
        node: &str,
        target: &SshTarget,
    ) -> Result<SshConnection, ConnectError> {
        let settings = self.config.settings(node, &target.host, &target.overrides, &self.environment).await?;
        self.connect_with(node, &settings, target.password.as_ref(), Vec::new()).await
    }

    /// Boxed, because jump hosts make the call recursive.
    fn connect_with<'a>(
        &'a self,
        node: &'a str,
        settings: &'a SshSettings,
        password: Option<&'a SecretString>,
        trail: Vec<String>,
    ) -> BoxFuture<'a, Result<SshConnection, ConnectError>> {
        Box::pin(async move {
            let mut attempt = 0;
            loop {
                match self.connect_once(node, settings, password, &trail).await {
                    Err(error) if error.is_start_limit() && attempt < RETRIES => {
                        attempt += 1;
                        tokio::time::sleep(jittered(Duration::from_millis(150) * 2u32.pow(attempt))).await;
                    }
                    result => return result,
                }
            }
        })
    }

    async fn connect_once(
        &self,
        node: &str,
        settings: &SshSettings,
        password: Option<&SecretString>,
        trail: &[String],
    ) -> Result<SshConnection, ConnectError> {
        let address = settings.address();
        let peer = Peer { node, address: &address };
        let check = self.host_key_check(node, settings).await?;
        let mut way = self.way(node, settings, trail).await?;
        let turn = Arc::clone(&self.handshakes).acquire_owned().await;
        way.permits.extend(turn.ok());
        let made = handshake(
            &peer,
            settings,
            way.stream,
            check,
            !trail.is_empty(),
            self.deadlines.handshake,
            way.permits,
        )
        .await;
        let mut connection = match (made, way.proxy) {
            (
                Err(error @ (ConnectError::Closed { .. } | ConnectError::NotSsh { .. })),
                Some((command, words)),
            ) => {
                let reason = match (words.get().await, error) {
                    (said, ConnectError::Closed { detail, .. }) if said.is_empty() => match detail.is_empty()
                    {
                        true => "it ended without a word".to_owned(),
                        false => detail,
                    },
                    (said, error) if said.is_empty() => return Err(error),
                    (said, _) => said,
                };
                return Err(ConnectError::ProxyCommand { node: node.to_owned(), command, reason });
            }
            (made, _) => made?,
        };
        let credentials = Credentials {
            node,
            settings,
            password,
            store: &self.identities,
            environment: &self.environment,
            deadline: self.deadlines.authentication,
        };
        credentials.authenticate(&mut connection).await?;
        Ok(connection)
    }

    async fn host_key_check(&self, node: &str, settings: &SshSettings) -> Result<HostKeyCheck, ConnectError> {
        let cache = Arc::clone(&self.known_hosts);
        let (user, global) = (settings.user_known_hosts.clone(), settings.global_known_hosts.clone());
        let (host, port) = match &settings.host_key_alias {
            Some(alias) => (alias.clone(), None),
            None => (settings.host.to_string(), Some(settings.port)),
        };
        let reading =
            tokio::task::spawn_blocking(move || KnownHost::load(&cache, user, &global, &host, port));
        let known = match timeout(self.deadlines.connect, reading).await {
            Ok(Ok(Ok(known))) => known,
            Ok(Ok(Err(error))) => {
                return Err(ConnectError::HostKey { node: node.to_owned(), source: Box::new(error) });
            }
            Ok(Err(error)) => {
                return Err(ConnectError::Configuration { node: node.to_owned(), reason: error.to_string() });
            }
            Err(_) => {
                return Err(ConnectError::Configuration {
                    node: node.to_owned(),
                    reason: "reading the known_hosts files hangs".to_owned(),
                });
            }
        };
        Ok(HostKeyCheck {
            known: Arc::new(known),
            policy: settings.host_key_policy,
            hash_new: settings.hash_known_hosts,
            cache: Arc::clone(&self.known_hosts),
        })
    }

    async fn way(&self, node: &str, settings: &SshSettings, trail: &[String]) -> Result<Way, ConnectError> {
        match &settings.proxy {
            Proxy::None => {
                let stream = self.tcp(node, settings).await?;
                Ok(Way { stream: Box::new(stream), permits: Vec::new(), proxy: None })
            }
            Proxy::Command(command) => {
                let (process, words) = proxy_command::start(command).map_err(|source| {
                    ConnectError::Spawn { node: node.to_owned(), program: "/bin/sh".to_owned(), source }
                })?;
                let proxy = Some((command.clone(), words));
                Ok(Way { stream: Box::new(process), permits: Vec::new(), proxy })
            }
            Proxy::Jump(hops) => self.jump(node, settings, hops, trail).await,
        }
    }

    async fn jump(
        &self,
        node: &str,
        settings: &SshSettings,
        hops: &[Hop],
        trail: &[String],
    ) -> Result<Way, ConnectError> {
        let LastHop { name, chain, settings: jump_settings, trail: longer } =
            self.last_hop(node, settings, hops, trail).await?;
        let bastion = self.bastions.get(&chain, settings.config_file.as_deref());
        let deadline = settings.connect_timeout.unwrap_or(self.deadlines.connect) + self.deadlines.channel;
        let connect = || self.connect_with(&name, &jump_settings, None, longer.clone());
        let passage = bastion.open(node, &settings.host, settings.port, deadline, &connect).await?;
        Ok(Way { stream: Box::new(passage.stream), permits: vec![passage.permit], proxy: None })
    }

    /// Resolves how to reach the last jump host of a chain.
    async fn last_hop(
        &self,
        node: &str,
        settings: &SshSettings,
        hops: &[Hop],
        trail: &[String],
    ) -> Result<LastHop, ConnectError> {
        let Some((last, before)) = hops.split_last() else {
            return Err(ConnectError::Configuration {
                node: node.to_owned(),
                reason: "an empty ProxyJump".to_owned(),
            });
        };
        let chain = chain_of(hops);
        // A connection that waited for itself would wait forever.
        if trail.contains(&chain) || trail.len() >= MAX_HOPS {
            let reason = format!("the jump hosts {} and {chain} jump through each other", trail.join(", "));
            return Err(ConnectError::Configuration { node: node.to_owned(), reason });
        }
        let mut longer = trail.to_vec();
        longer.push(chain.clone());
        // As with OpenSSH, options of the node do not apply to its jump hosts; they belong in ssh_config.
        let overrides = SshOverrides {
            user: last.user.clone(),
            port: last.port,
            config_file: settings.config_file.clone(),
            proxy_jump: (!before.is_empty()).then(|| chain_of(before)),
            ..SshOverrides::default()
        };
        let name = last.to_string();
        let jump_settings = self.config.settings(&name, &last.host, &overrides, &self.environment).await;
        let jump_settings = jump_settings.map_err(|source| ConnectError::Jump {
            node: node.to_owned(),
            via: name.clone(),
            source: Arc::new(source),
        })?;
        Ok(LastHop { name, chain, settings: jump_settings, trail: longer })
    }

    async fn tcp(&self, node: &str, settings: &SshSettings) -> Result<TcpStream, ConnectError> {
        let address = settings.address();
        let deadline = settings.connect_timeout.unwrap_or(self.deadlines.connect);
        let resolve = tokio::net::lookup_host((settings.host.as_str(), settings.port));
        let resolve_error =
            |source| ConnectError::Resolve { node: node.to_owned(), host: settings.host.to_string(), source };
        let timed_out = |phase| ConnectError::Timeout {
            node: node.to_owned(),
            address: address.clone(),
            phase,
            after: deadline,
        };
        let found = timeout(deadline, resolve)
            .await
            .map_err(|_| timed_out(Phase::Resolve))?
            .map_err(resolve_error)?;
        let fits = |address: &SocketAddr| match settings.family {
            AddressFamily::Any => true,
            AddressFamily::V4 => address.is_ipv4(),
            AddressFamily::V6 => address.is_ipv6(),
        };
        let addresses: Vec<SocketAddr> = found.filter(fits).collect();
        let mut last = resolve_error(std::io::Error::other("it has no address of the wanted family"));
        for candidate in &addresses {
            match timeout(deadline, TcpStream::connect(candidate)).await {
                Err(_) => last = timed_out(Phase::Tcp),
                Ok(Ok(stream)) => {
                    // With Nagle's algorithm, every request waits 40 ms for a delayed acknowledgement.
                    drop(stream.set_nodelay(true));
                    return Ok(stream);
                }
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    last = ConnectError::Refused { node: node.to_owned(), address: address.clone() };
                }
                Ok(Err(source)) => {
                    last =
                        ConnectError::Unreachable { node: node.to_owned(), address: address.clone(), source };
                }
            }
        }
        Err(last)
    }
}

fn chain_of(hops: &[Hop]) -> String {
    hops.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns a time between half of `full` and all of it, so that nodes that were dropped together do not return
/// together.
fn jittered(full: Duration) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() % 1000;
    full / 2 + full / 2 * u32::try_from(random).unwrap_or(0) / 1000
}

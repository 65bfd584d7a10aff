//! Jump hosts: shared connections for all nodes behind one.
//!
//! A connection is added only if the jump host opens no more streams on the existing ones. A failure is shared by
//! all that waited for the same attempt, so that a dead jump host costs its deadline once and not once per node.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use russh::{ChannelOpenFailure, ChannelStream, client::Msg};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    error::{ConnectError, Phase},
    handshake::{SshConnection, open_failure},
};

/// Number of simultaneous handshakes through one jump host.
const HANDSHAKES: usize = 8;
/// Largest number of connections to one jump host.
const CONNECTIONS: usize = 4;
/// How long a failure to connect is remembered.
const MEMORY: Duration = Duration::from_secs(5);
/// How long a jump host may take to answer a ping.
const PING: Duration = Duration::from_secs(10);

/// A chain of jump hosts, and the configuration file to resolve it with.
type Key = (String, Option<String>);

#[derive(Default)]
pub(crate) struct BastionPool {
    bastions: Mutex<HashMap<Key, Arc<Bastion>>>,
}

impl BastionPool {
    /// Returns the last jump host of a chain, as resolved with a configuration file.
    pub(crate) fn get(&self, chain: &str, config_file: Option<&str>) -> Arc<Bastion> {
        let mut bastions = self.bastions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (chain.to_owned(), config_file.map(str::to_owned));
        Arc::clone(bastions.entry(key).or_insert_with(|| Arc::new(Bastion::new(chain))))
    }

    /// Closes all connections, which ends the streams through them.
    pub(crate) async fn close(&self) {
        let bastions: Vec<_> = {
            let mut bastions = self.bastions.lock().unwrap_or_else(PoisonError::into_inner);
            bastions.drain().map(|(_, bastion)| bastion).collect()
        };
        for bastion in bastions {
            for pooled in bastion.state.lock().await.connections.drain(..) {
                pooled.connection.disconnect().await;
            }
        }
    }
}

pub(crate) struct Bastion {
    name: String,
    handshakes: Arc<Semaphore>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    connections: Vec<Arc<Pooled>>,
    failed: Option<(Instant, Arc<ConnectError>)>,
}

struct Pooled {
    connection: Arc<SshConnection>,
    opened: AtomicUsize,
}

/// Connects to the jump host.
pub(crate) type Connect<'a> =
    dyn Fn() -> BoxFuture<'a, Result<SshConnection, ConnectError>> + Send + Sync + 'a;

/// A node's stream through a jump host.
pub(crate) struct Passage {
    pub(crate) stream: ChannelStream<Msg>,
    /// Held until the node's own handshake is over.
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Bastion {
    fn new(key: &str) -> Self {
        Self {
            name: key.to_owned(),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES)),
            state: tokio::sync::Mutex::new(State::default()),
        }
    }

    /// Opens a stream to `host:port`, and connects first if needed.
    pub(crate) async fn open(
        &self,
        node: &str,
        host: &str,
        port: u16,
        deadline: Duration,
        connect: &Connect<'_>,
    ) -> Result<Passage, ConnectError> {
        let jump = |source| ConnectError::Jump { node: node.to_owned(), via: self.name.clone(), source };
        let refusal = |reason: String, tried: bool| ConnectError::JumpRefused {
            node: node.to_owned(),
            via: self.name.clone(),
            address: format!("{host}:{port}"),
            reason,
            tried,
        };
        let refused = |reason: String| refusal(reason, false);
        let permit = Arc::clone(&self.handshakes)
            .acquire_owned()
            .await
            .map_err(|_| refused("gpufleet is closing its connections".to_owned()))?;
        let mut full = 0;
        loop {
            let pooled = self.connection(full, connect).await.map_err(jump)?;
            let opening = tokio::time::timeout(deadline, pooled.connection.forward(host, port)).await;
            match opening {
                // A jump host that hangs opens no stream either; only if it answers is the node at fault.
                Err(_) if pooled.connection.is_there(PING).await => {
                    return Err(ConnectError::Timeout {
                        node: node.to_owned(),
                        address: format!("{host}:{port} behind {}", self.name),
                        phase: Phase::Tcp,
                        after: deadline,
                    });
                }
                Err(_) => return Err(jump(self.give_up(&pooled).await)),
                Ok(Ok(stream)) => {
                    pooled.opened.fetch_add(1, Ordering::Relaxed);
                    return Ok(Passage { stream, permit });
                }
                Ok(Err(russh::Error::ChannelOpenFailure(
                    ChannelOpenFailure::AdministrativelyProhibited | ChannelOpenFailure::ResourceShortage,
                ))) if pooled.opened.load(Ordering::Relaxed) > 0 && full + 1 < CONNECTIONS => full += 1,
                Ok(Err(russh::Error::ChannelOpenFailure(ChannelOpenFailure::AdministrativelyProhibited))) => {
                    return Err(refused("it forbids forwarding (AllowTcpForwarding, PermitOpen)".to_owned()));
                }
                Ok(Err(russh::Error::ChannelOpenFailure(reason))) => {
                    let tried = matches!(reason, ChannelOpenFailure::ConnectFailed);
                    return Err(refusal(open_failure(&reason), tried));
                }
                Ok(Err(_)) if full + 1 < CONNECTIONS => full += 1,
                Ok(Err(error)) => return Err(refused(error.to_string())),
            }
        }
    }

    /// Drops a connection whose peer does not answer, so that no later node waits for it.
    async fn give_up(&self, mute: &Arc<Pooled>) -> Arc<ConnectError> {
        let error = Arc::new(ConnectError::Timeout {
            node: self.name.clone(),
            address: mute.connection.address.clone(),
            phase: Phase::Channel,
            after: PING,
        });
        let mut state = self.state.lock().await;
        state.connections.retain(|pooled| !Arc::ptr_eq(pooled, mute));
        error
    }

    /// Returns a live connection after the first `full` ones, or makes one.
    async fn connection(&self, full: usize, connect: &Connect<'_>) -> Result<Arc<Pooled>, Arc<ConnectError>> {
        let mut state = self.state.lock().await;
        state.connections.retain(|pooled| !pooled.connection.is_closed());
        if let Some(pooled) = state.connections.get(full) {
            return Ok(Arc::clone(pooled));
        }
        if let Some((when, error)) = &state.failed
            && when.elapsed() < MEMORY
        {
            return Err(Arc::clone(error));
        }
        match connect().await {
            Ok(connection) => {
                let pooled =
                    Arc::new(Pooled { connection: Arc::new(connection), opened: AtomicUsize::new(0) });
                state.failed = None;
                state.connections.push(Arc::clone(&pooled));
                Ok(pooled)
            }
            Err(error) => {
                let error = Arc::new(error);
                state.failed = Some((Instant::now(), Arc::clone(&error)));
                Err(error)
            }
        }
    }
}

//! One connection to a target, shared by many commands with a channel each.
//!
//! Owns the connection and replaces it when it breaks. Invariant: a command that may have reached the target is never
//! sent a second time.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use super::{
    channel::ByteChannel,
    connector::Connector,
    error::ConnectError,
    handshake::SshConnection,
    target::{Connection, SshTarget, Target, Transport},
};

/// How often a session that sshd refuses is requested again, and the first pause before that.
const REFUSALS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// Why a command has no channel.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// It was not run.
    #[error("{0}")]
    NotSent(ConnectError),
    /// It may have been run.
    #[error("{0}")]
    Unknown(ConnectError),
}

/// A connection to one target that is kept open.
pub struct Line {
    connector: Arc<Connector>,
    target: Target,
    connection: Mutex<Option<Arc<SshConnection>>>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Line {
    /// Creates a line. Nothing is contacted until the first command.
    pub fn new(connector: Arc<Connector>, target: Target) -> Self {
        Self { connector, target, connection: Mutex::new(None) }
    }

    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// Runs one command. The OpenSSH client connects anew for each, and so does a local target.
    ///
    /// # Errors
    /// If there is no channel to it, with whether it may run all the same.
    pub async fn exec(&self, command: &str) -> Result<ByteChannel, LineError> {
        let node = self.target.name.as_str();
        let Connection::Ssh(ssh) = &self.target.connection else {
            return self.connector.exec(&self.target, command).await.map_err(LineError::NotSent);
        };
        if ssh.transport == Transport::OpenSsh {
            return self.connector.exec(&self.target, command).await.map_err(LineError::NotSent);
        }
        let deadline = self.connector.channel_deadline();
        let (mut connection, mut fresh) = self.connected(ssh).await.map_err(LineError::NotSent)?;
        let mut refusals = 0;
        loop {
            match connection.session(node, deadline).await {
                Ok(channel) => {
                    return connection.start(node, channel, command, deadline).await.map_err(|error| {
                        match error {
                            ConnectError::ChannelRefused { .. } => LineError::NotSent(error),
                            error => LineError::Unknown(error),
                        }
                    });
                }
                // Retried, because sshd counts a session for a moment after its end.
                Err(ConnectError::ChannelRefused { .. }) if refusals < REFUSALS => {
                    tokio::time::sleep(PAUSE * 2u32.pow(refusals)).await;
                    refusals += 1;
                }
                Err(error) if fresh => {
                    self.forget(&connection).await;
                    return Err(LineError::NotSent(error));
                }
                // After refusals too: sshd keeps the session of a command that was given up until it ends.
                Err(_) => {
                    self.forget(&connection).await;
                    (connection, fresh) = self.connected(ssh).await.map_err(LineError::NotSent)?;
                }
            }
        }
    }

    /// Returns the connection and whether it is new. While it is being made, other callers wait for it.
    async fn connected(&self, ssh: &SshTarget) -> Result<(Arc<SshConnection>, bool), ConnectError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = kept.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok((Arc::clone(connection), false));
        }
        let connection = Arc::new(self.connector.connect(&self.target.name, ssh).await?);
        *kept = Some(Arc::clone(&connection));
        Ok((connection, true))
    }

    async fn forget(&self, broken: &Arc<SshConnection>) {
        let mut kept = self.connection.lock().await;
        if kept.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, broken)) {
            *kept = None;
        }
    }
}

//! The engine's way to nodes: sessions over the transport.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use gpufleet_protocol::{
    OpOutcome, OpRequest, Reply, Request, RunEpoch,
    keep::KeptReport,
    message::{LOGIN_USER, Open},
};
use tokio_util::bytes::Bytes;

use super::{
    BlobContent, BlobSource, LockOutcome, NodeFiles, NodeSession, SessionError, SessionOptions, Stage,
};
use crate::{
    engine::{ConnectFailure, Connector, Link, LinkError, Progress, Purpose, Way},
    hosts::Targets,
    interpreter::BlobNeed,
    transport::{self, Connection, Route, Target},
};

/// Connects to the hosts of a run.
pub struct Fleet {
    connector: Arc<transport::Connector>,
    options: SessionOptions,
    targets: Targets,
    /// Hosts that answered and are not connected yet.
    answered: Mutex<HashSet<String>>,
    holder: RunEpoch,
    who: String,
}

impl Fleet {
    /// For the run `holder` of `who`; nothing is contacted yet.
    pub fn new(
        connector: Arc<transport::Connector>,
        targets: Targets,
        holder: RunEpoch,
        who: String,
    ) -> Self {
        let options = SessionOptions::new(Arc::new(NodeFiles::embedded()));
        Self { connector, options, targets, answered: Mutex::default(), holder, who }
    }

    pub const fn connector(&self) -> &Arc<transport::Connector> {
        &self.connector
    }

    pub const fn targets(&self) -> &Targets {
        &self.targets
    }

    fn answered(&self) -> MutexGuard<'_, HashSet<String>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn target(&self, host: &str, purpose: Purpose) -> Option<&Target> {
        self.targets.of(host, purpose.login, purpose.r#become)
    }

    async fn open(&self, host: &str, purpose: Purpose) -> Result<SessionLink, ConnectFailure> {
        let failed = |error: SessionError| {
            let cause = without_name(host, &error.to_string());
            match error {
                refused if refused.is_refusal() => ConnectFailure::Refused { cause },
                silent if silent.is_silence() => ConnectFailure::Silent { cause },
                SessionError::Refused { .. } => ConnectFailure::Unfit { cause },
                // Who only reads judges the node, and has read nothing of it.
                SessionError::Start { kind, .. } if kind.is_of_privilege() && !purpose.writes => {
                    ConnectFailure::Unreachable { cause }
                }
                SessionError::Start { kind, .. } if kind.is_unfit() => ConnectFailure::Unfit { cause },
                _ => ConnectFailure::Unreachable { cause },
            }
        };
        let target = self.target(host, purpose).ok_or(ConnectFailure::Unknown)?;
        let here = purpose.local.then(|| Target { connection: Connection::Local, ..target.clone() });
        let target = here.as_ref().unwrap_or(target);
        let stage = |stage| {
            if stage == Stage::Starting {
                self.answered().insert(host.to_owned());
            }
        };
        let session =
            NodeSession::open_with(&self.connector, target, &self.options, &stage).await.map_err(failed)?;
        let open = Open {
            holder: self.holder.clone(),
            who: self.who.clone(),
            writes: purpose.writes,
            guest: purpose.guest,
            commands: purpose.commands,
            own_commands: purpose.own_commands,
            login_uid: Some(session.login_uid()),
        };
        match session.open_lock(open).await.map_err(failed)? {
            LockOutcome::Opened(opened) => Ok(SessionLink { session, kept: opened.kept }),
            LockOutcome::Locked(lock) => {
                let lock = SessionError::Locked { node: host.to_owned(), lock };
                session.close().await;
                Err(ConnectFailure::Locked { cause: without_name(host, &lock.to_string()) })
            }
        }
    }
}

/// Screens name the node already.
fn without_name(host: &str, message: &str) -> String {
    message.strip_prefix(host).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message).to_owned()
}

impl Connector for Fleet {
    fn connect<'a>(
        &'a self,
        host: &'a str,
        purpose: Purpose,
    ) -> BoxFuture<'a, Result<Arc<dyn Link>, ConnectFailure>> {
        Box::pin(async move {
            let link = self.open(host, purpose).await;
            self.answered().remove(host);
            Ok(Arc::new(link?) as Arc<dyn Link>)
        })
    }

    fn has_answered(&self, host: &str) -> bool {
        self.answered().contains(host)
    }

    fn way<'a>(&'a self, host: &'a str, purpose: Purpose) -> BoxFuture<'a, Way> {
        Box::pin(async move {
            let Some(target) = self.target(host, purpose).filter(|_| !purpose.local) else {
                return Way::Here;
            };
            match self.connector.route(target).await {
                Route::Here => Way::Here,
                Route::Direct => Way::Direct,
                Route::JumpHost(chain) => Way::Through(format!("the jump host {chain}")),
                Route::ProxyCommand(command) => Way::Through(format!("the proxy command `{command}`")),
            }
        })
    }

    fn ask_way<'a>(&'a self, host: &'a str, purpose: Purpose) -> BoxFuture<'a, Option<Result<(), String>>> {
        Box::pin(async move {
            let answer = self.connector.ask_jump_host(self.target(host, purpose)?).await?;
            Some(answer.map_err(|error| error.to_string()))
        })
    }

    fn is_same_way(&self, host: &str, one: u16, other: u16) -> bool {
        let is_same = |with_become| {
            let target = |way| self.targets.of(host, way, with_become);
            matches!((target(one), target(other)), (Some(one), Some(other)) if one.is_same(other))
        };
        one == other || is_same(false) && is_same(true)
    }
}

struct SessionLink {
    session: NodeSession,
    kept: Option<Box<KeptReport>>,
}

impl SessionLink {
    fn error(&self, error: &SessionError) -> LinkError {
        let cause = without_name(self.session.node(), &error.to_string());
        match error {
            SessionError::HelperEnded { .. } => LinkError::HelperEnded { cause },
            _ => LinkError::Lost { cause },
        }
    }
}

struct Blobs(HashMap<String, Arc<[u8]>>);

impl BlobSource for Blobs {
    fn open(&self, sha256: &str) -> Option<BlobContent> {
        let bytes = Arc::clone(self.0.get(sha256)?);
        Some(BlobContent::Bytes(Bytes::from_owner(bytes)))
    }
}

impl Link for SessionLink {
    fn call(
        &self,
        mut request: OpRequest,
        blobs: Vec<BlobNeed>,
        progress: Progress,
    ) -> BoxFuture<'_, Result<OpOutcome, LinkError>> {
        if request.run_as.as_deref() == Some(LOGIN_USER) {
            let (login, helper) = (self.session.login_uid(), self.session.hello().uid);
            request.run_as = (login != helper).then(|| login.to_string());
        }
        let blobs = Blobs(blobs.into_iter().map(|need| (need.blob.sha256, need.bytes)).collect());
        Box::pin(async move {
            let result = self.session.call(request, &blobs, |text: &str| progress(text)).await;
            result.map_err(|error| self.error(&error))
        })
    }

    fn request(&self, request: Request) -> BoxFuture<'_, Result<Reply, LinkError>> {
        Box::pin(async move { self.session.simple(request).await.map_err(|error| self.error(&error)) })
    }

    fn boot_id(&self) -> Option<String> {
        self.session.hello().boot_id.clone()
    }

    fn kept(&self) -> Option<&KeptReport> {
        self.kept.as_deref()
    }

    fn pushed(&self) -> bool {
        self.session.was_pushed()
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.session.closed().await;
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.session.close())
    }
}

//! The seam between the engine and the nodes: what a connected node can do, and how one gets there.
//!
//! The session module implements it over SSH; tests implement it with scripted nodes.

use std::sync::Arc;

use futures::future::BoxFuture;
use gpufleet_protocol::{OpOutcome, OpRequest, Reply, Request, keep::KeptReport};

use crate::interpreter::BlobNeed;

/// Why a node stopped answering. The text names neither the node nor what to do next: whoever shows it knows both.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The helper's process ended, and the connection lived to tell.
    #[error("{cause}")]
    HelperEnded { cause: String },
    /// The connection ended or does not work any more: the node may be gone as well.
    #[error("{cause}")]
    Lost { cause: String },
    /// Nothing came in time.
    #[error("no answer")]
    NoAnswer,
}

impl LinkError {
    /// Whether the helper's process ended, and the connection lived to tell.
    pub const fn is_of_helper(&self) -> bool {
        matches!(self, Self::HelperEnded { .. })
    }
}

/// Why a node could not be reached or may not be worked on. The text does not name the node: whoever shows it does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectFailure {
    /// Neither the node nor anything on the way there tells that it lives.
    #[error("{cause}")]
    Silent { cause: String },
    /// The same, and packets get there and back: its address refuses the connection.
    #[error("{cause}")]
    Refused { cause: String },
    /// Anything else, such as a login that is refused or a jump host that is down: says nothing about the node's life.
    #[error("{cause}")]
    Unreachable { cause: String },
    /// Another run works on the node, or a newer one took over.
    #[error("{cause}")]
    Locked { cause: String },
    /// The node answers, and cannot be worked on, such as one whose disk is full.
    #[error("{cause}")]
    Unfit { cause: String },
    /// Nothing says how it is reached.
    #[error("not in the inventory")]
    Unknown,
}

/// What nodes share on the way to them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The node is this machine.
    Here,
    /// Nothing but the network of this machine.
    Direct,
    /// Something that others go through too, in words such as "the jump host bastion1".
    Through(String),
}

/// What a session is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Purpose {
    /// Takes the node's lock.
    pub writes: bool,
    /// The helper runs as root.
    pub r#become: bool,
    /// On this machine, whatever the inventory says (`connection: local`).
    pub local: bool,
    /// Does single tasks for other nodes, without a lock.
    pub guest: bool,
    /// Commands may run although nothing is changed otherwise.
    pub commands: bool,
    /// The commands of own checks may run.
    pub own_commands: bool,
    /// By which of the connector's ways it logs in: plays may say who does.
    pub login: u16,
}

/// Told what an operation is doing right now.
pub type Progress = Box<dyn Fn(&str) + Send + Sync>;

/// One node with a running helper.
pub trait Link: Send + Sync {
    /// Carries out one operation, within its own deadline.
    fn call(
        &self,
        request: OpRequest,
        blobs: Vec<BlobNeed>,
        progress: Progress,
    ) -> BoxFuture<'_, Result<OpOutcome, LinkError>>;
    /// Any other request.
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Reply, LinkError>>;
    /// Identity of the boot that the helper runs in.
    fn boot_id(&self) -> Option<String>;
    /// What the node asserts at each boot, as it said when the session was opened.
    fn kept(&self) -> Option<&KeptReport>;
    /// Whether the helper had to be sent.
    fn pushed(&self) -> bool;
    /// Ends when the connection does.
    fn closed(&self) -> BoxFuture<'_, ()>;
    /// Gives the lock back and ends the helper.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Gets to nodes.
pub trait Connector: Send + Sync {
    /// Connects to a host of the inventory and starts the helper there.
    fn connect<'a>(
        &'a self,
        host: &'a str,
        purpose: Purpose,
    ) -> BoxFuture<'a, Result<Arc<dyn Link>, ConnectFailure>>;

    /// Whether a host that is being connected to has answered already; the helper may still have to be sent and started.
    fn has_answered(&self, host: &str) -> bool;

    /// What a host shares with others on the way to it.
    fn way<'a>(&'a self, _host: &'a str, _purpose: Purpose) -> BoxFuture<'a, Way> {
        Box::pin(async { Way::Direct })
    }

    /// Whether the last station before a host answers now; `None` where there is none that could be asked.
    fn ask_way<'a>(&'a self, _host: &'a str, _purpose: Purpose) -> BoxFuture<'a, Option<Result<(), String>>> {
        Box::pin(async { None })
    }

    /// Whether two of its ways to log in lead to a host in the same way.
    fn is_same_way(&self, _host: &str, one: u16, other: u16) -> bool {
        one == other
    }
}

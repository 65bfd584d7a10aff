//! What a session is asked to do.

use std::fmt;
use std::sync::Arc;

pub use gpufleet_protocol::message::Mode;
use gpufleet_protocol::op::Blob;
use gpufleet_protocol::tasks::{KubernetesNode, Pause, RebootWhen};
use gpufleet_protocol::{Disruption, NodeOp};
use serde::{Deserialize, Serialize};

use crate::diagnostic::Span;
use crate::event;
pub use crate::event::{OpId, Phase};
use crate::playbook::OnInterrupt;

/// One thing for the session to do; answered by exactly one feed.
#[derive(Clone, Debug)]
pub struct Action {
    pub id: OpId,
    /// Rendered name of the task.
    pub task: String,
    pub kind: &'static str,
    /// Where the task is written.
    pub position: event::Position,
    pub mode: Mode,
    pub work: Work,
    /// In seconds, if the task says; else the run's default holds.
    pub timeout_s: Option<u64>,
    pub run_as: RunAs,
    pub environment: Vec<(String, String)>,
    /// Nothing of it may be shown.
    pub no_log: bool,
    /// The most that this kind of task may ask for.
    pub disruption: Disruption,
    pub terms: Terms,
}

impl Action {
    pub const fn phase(&self) -> Phase {
        self.id.phase
    }
}

/// When and where an action is done, and what its end means.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Before it is done: how long to wait, in seconds, and how many tries are left, this one included.
    pub wait: Option<(u64, u32)>,
    /// The host that does it in place of the one it is done for.
    pub delegate: Option<String>,
    /// On how many hosts it may be done at once.
    pub throttle: Option<u32>,
    /// It goes on by itself on the node (`async`).
    pub job: Option<Job>,
    /// What a resume does if the run was cut off in it.
    pub on_interrupt: OnInterrupt,
    /// The play goes on if the host cannot be reached for it.
    pub forgives_loss: bool,
    /// Its result stays in the host's variables: it is registered, an item of a loop, or facts.
    pub keeps: bool,
}

/// Where something is written, as events say it.
pub(super) fn position(span: &Span) -> event::Position {
    event::Position { file: Arc::from(span.file()), line: span.line, column: span.column }
}

/// How an operation goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// After so many seconds it is stopped and has failed.
    pub limit_s: u64,
    /// Seconds between two looks; 0 does not wait for it.
    pub poll_s: u64,
}

/// Whose rights an operation has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunAs {
    /// The user that logged in.
    #[default]
    Login,
    Root,
    User(String),
}

#[derive(Clone, Debug)]
pub enum Work {
    Node {
        op: Box<NodeOp>,
        /// Content that the helper may ask for.
        blobs: Vec<BlobNeed>,
    },
    /// Answered by [`super::Fed::Rebooted`]; in predictions the helper assumes the activation.
    Reboot {
        when: RebootWhen,
        /// How long the node may take to come back, in seconds.
        timeout_s: u64,
        /// What waits for it.
        reasons: Vec<String>,
    },
    WaitForConnection {
        timeout_s: u64,
        delay_s: u64,
    },
    ResetConnection,
    /// Brings a file of the node to the controller; answered by an outcome.
    Fetch(FetchFile),
    /// Waits on the controller; answered by an outcome.
    Pause(Pause),
    /// Compares the scheduler's own object of the node, and makes it as declared; answered by an outcome.
    NodeObject(Box<KubernetesNode>),
}

/// A file of the node and its place on the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchFile {
    /// Absolute path on the node.
    pub src: String,
    /// Path on the controller.
    pub dest: String,
    /// Whether a file that is not there is a failure.
    pub fail_on_missing: bool,
    /// The largest file that is brought, in bytes.
    pub max_size: u64,
}

/// Content of the controller that an operation refers to by its digest.
#[derive(Clone)]
pub struct BlobNeed {
    pub blob: Blob,
    pub bytes: Arc<[u8]>,
}

impl fmt::Debug for BlobNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobNeed({}, {} bytes)", self.blob.sha256, self.blob.size)
    }
}

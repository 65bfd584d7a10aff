//! Requests of the controller and replies of the helper.
//!
//! Order on the channel: preamble, [`Reply::Hello`], then the controller opens with [`Request::Open`] and sends
//! requests, several at a time if it likes. Every request but `Ping`, `Cancel`, `Blob` and `NoBlob` is answered by
//! exactly one closing reply that carries its id; `Progress` and `NeedBlob` may come before it under the same id. A helper that hears nothing for [`HEARTBEAT_TIMEOUT_S`] ends itself and its children.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Awaiting, Blocker, Change, Disruption, NodeOp, Permit, RunEpoch,
    facts::Facts,
    health::{HealthReport, SystemState},
    op::Blob,
};

/// How often the controller sends `Ping`, in seconds.
pub const HEARTBEAT_S: u64 = 15;
/// After how many silent seconds the helper gives up.
pub const HEARTBEAT_TIMEOUT_S: u64 = 60;

/// Stands in [`OpRequest::run_as`] for the user who logged in (see [`Open::login_uid`]).
pub const LOGIN_USER: &str = "";

/// A request with the id that its reply will carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub id: u64,
    pub body: T,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request", content = "with")]
pub enum Request {
    /// First request. A writer takes the node's lock; readers take none, and work beside a writer.
    Open(Open),
    Op(Box<OpRequest>),
    /// What became of an operation of this run, whose answer the controller lost; answers [`Reply::Spooled`].
    Spooled {
        op_id: String,
    },
    /// Stops the operation of that id; it answers `Failed { kind: Cancelled }`.
    Cancel {
        id: u64,
    },
    /// Keeps the helper alive; not answered.
    Ping,
    /// A blob follows as data frames of `stream`, the last one empty; answers [`Reply::NeedBlob`].
    Blob {
        stream: u32,
        sha256: String,
    },
    /// The asked-for blob cannot be had.
    NoBlob {
        stream: u32,
        reason: String,
    },
    /// Throws away what predictions assumed, so that the next prediction starts from the node as it is.
    ForgetPredictions,
    /// In predictions from here on, the node was reset or rebooted: pending became current, volatile is lost.
    AssumeActivation {
        class: Disruption,
    },
    /// Removes lock, spool, record and the pushed file; the helper ends after the answer.
    Clean,
    /// Gives the lock back and ends.
    Close,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    pub holder: RunEpoch,
    /// Who asks, for the message to the next controller that finds the node locked: `user@host pid`.
    pub who: String,
    /// Whether the session may change the node.
    pub writes: bool,
    /// Whether it does single tasks for other nodes: it takes no lock, so that it keeps nobody away, and may disturb nobody.
    #[serde(default)]
    pub guest: bool,
    /// Whether commands may run although nothing else may: `check_mode: false` under `--check`.
    #[serde(default)]
    pub commands: bool,
    /// Login user's uid, to which tasks without `become` drop.
    pub login_uid: Option<u32>,
}

/// Whether an operation only tells what it would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Observe and plan, over what earlier predictions of this session assumed.
    Predict,
    /// Observe, plan, and apply what is allowed.
    Apply,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpRequest {
    pub op: NodeOp,
    pub mode: Mode,
    /// Highest class that may be applied: `Live`, or the permit's.
    pub permit: Option<Permit>,
    /// User that processes and file accesses run as; `None` is the helper's own, [`LOGIN_USER`] the one who logged in.
    pub run_as: Option<String>,
    /// After so many seconds the operation is stopped and fails.
    pub timeout_s: u64,
    /// Identity of the operation in the run's journal. In `Apply` it leaves a mark in the spool before it acts, and
    /// its result after; empty for none. An id names one attempt: asked again, it acts again.
    pub op_id: String,
    /// Whether its output must not be kept (`no_log`): the spool then has status and `rc` alone.
    #[serde(default)]
    pub secret: bool,
    /// Environment that the play or task declares.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply", content = "with")]
pub enum Reply {
    /// Sent unasked, with id 0, as the first frame.
    Hello(Hello),
    Opened(Opened),
    /// The lock is held by another run, or this run was fenced by a newer epoch.
    Locked(Locked),
    Outcome(Box<OpOutcome>),
    Spooled(Spooled),
    /// The operation `id` needs this content; answer with `Blob` and data frames, the last one empty.
    NeedBlob {
        stream: u32,
        blob: Blob,
    },
    /// What the operation `id` is doing right now, for the screen.
    Progress {
        text: String,
    },
    Done,
    /// The request could not be understood or carried out at all.
    Error {
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    /// SHA-256 of the node file that runs, as lower-case hexadecimal.
    pub digest: String,
    pub uid: u32,
    pub arch: String,
    pub pid: u32,
    /// `None` where the kernel does not tell.
    pub boot_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The state directory that holds lock, spool and record.
    pub state_dir: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    pub holder: RunEpoch,
    pub who: String,
    /// Whether a newer run took over for good, so that waiting is of no use.
    pub fenced: bool,
}

/// What the node knows of an operation that was asked for under some `op_id`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "spooled", content = "with")]
pub enum Spooled {
    /// It never began on this node, or so long ago that the spool forgot it.
    Nothing,
    /// It began and left no result: it still runs, was cut off, or nothing is known of what it did.
    Started,
    /// The answer that it gave. For a secret operation without output, and `data.withheld` is true.
    Finished(Box<OpOutcome>),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpOutcome {
    pub status: OpStatus,
    /// Differences found: in `Predict` those that would be made, in `Apply` those made.
    pub changes: Vec<Change>,
    /// What is written and waits for an activation.
    #[serde(default)]
    pub awaiting: Vec<Awaiting>,
    /// What stands in the way of the changes now, so that a run would be refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    /// What happened to the GPUs or the node meanwhile (in `Predict`: would happen), so that the controller asserts
    /// again what that lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated: Option<Disruption>,
    /// What `register` gets beside `changed` and `failed`, such as `rc` and `stdout`.
    #[serde(default)]
    pub data: Map<String, Value>,
    /// For a [`NodeOp::GpuGroup`]: one outcome a member, in the order written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<OpOutcome>,
    /// For [`NodeOp::Facts`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Box<Facts>>,
    /// For [`NodeOp::Idle`], and for a refusal because of clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleReport>,
    /// For [`NodeOp::Health`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthReport>,
    /// For [`NodeOp::System`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<SystemState>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What it takes where it was received; not sent.
    #[serde(skip)]
    pub weight: Weight,
}

/// How much memory something that was received takes, and what is held for it as long as it lives.
#[derive(Clone, Default)]
pub struct Weight {
    /// In bytes; 0 for what was made here.
    pub bytes: u64,
    /// Room in a budget of the receiver's, which is given back with the last copy.
    pub room: Option<std::sync::Arc<dyn std::any::Any + Send + Sync>>,
}

/// Why: two messages that say the same are the same, whatever they take.
impl PartialEq for Weight {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl std::fmt::Debug for Weight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weight({})", self.bytes)
    }
}

/// What a program printed, under Ansible's names: whole, and line by line.
///
/// Made where the output is read, so that whoever receives it can weigh all of it.
pub fn streams<'a>(stdout: &'a str, stderr: &'a str) -> impl Iterator<Item = (String, Value)> + use<'a> {
    [("stdout", stdout), ("stderr", stderr)].into_iter().flat_map(|(name, text)| {
        let lines = text.lines().map(Value::from).collect();
        [(name.to_owned(), Value::from(text)), (format!("{name}_lines"), Value::Array(lines))]
    })
}

impl OpOutcome {
    pub fn new(status: OpStatus) -> Self {
        Self {
            status,
            changes: Vec::new(),
            awaiting: Vec::new(),
            blockers: Vec::new(),
            activated: None,
            data: Map::new(),
            members: Vec::new(),
            facts: None,
            idle: None,
            health: None,
            system: None,
            warnings: Vec::new(),
            weight: Weight::default(),
        }
    }

    pub fn failed(kind: FailureKind, message: impl Into<String>) -> Self {
        Self::new(OpStatus::Failed { kind, message: message.into() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum OpStatus {
    /// As declared already.
    Ok,
    /// Would change (`Predict`) or was changed and verified (`Apply`).
    Changed,
    /// Not run, for example because `creates` matched.
    Skipped {
        reason: String,
    },
    /// A prediction of something only a run can tell, such as a command.
    Possible,
    /// The state could not be read: never counts as declared.
    Unknown {
        reason: String,
    },
    /// The knob does not exist on this node: neither declared nor drifted.
    NotApplicable {
        reason: String,
    },
    /// Nothing was touched: the plan needs a permit of this class.
    NeedsPermit {
        class: Disruption,
    },
    Failed {
        kind: FailureKind,
        message: String,
    },
}

/// Why an operation failed, so that the controller can tell people what next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The declared value cannot be had on this node, such as a power limit out of range.
    Invalid,
    /// What it builds upon, such as a file to edit, is not on this node.
    Missing,
    /// It was set, and reading it again shows something else.
    Unconverged,
    /// A process or kernel module holds the GPUs.
    Busy,
    /// A permit was missing, too low or of another run.
    Refused,
    /// Reading or writing on the node failed.
    Io,
    /// A process ended with another code than 0 or by a signal.
    Exit,
    TimedOut,
    Cancelled,
    /// NVML hung or crashed.
    Nvml,
}

/// Who works on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleReport {
    pub verdict: IdleVerdict,
    pub clients: Vec<GpuClient>,
    /// Why the verdict is not idle, one sentence each, ready to be shown.
    pub reasons: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleVerdict {
    Idle,
    Busy,
    #[default]
    Unknown,
}

/// A process that holds a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuClient {
    pub pid: u32,
    /// Command line, shortened.
    pub command: String,
    pub user: String,
    /// Indexes of the GPUs that it holds, empty for the control device alone.
    pub gpus: Vec<u32>,
    /// systemd unit or job that it belongs to, where its cgroup tells.
    pub unit: Option<String>,
}

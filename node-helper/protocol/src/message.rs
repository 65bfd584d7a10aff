//! Requests of the controller and replies of the helper.
//!
//! Order on the channel: preamble, [`Reply::Hello`], [`Request::Open`], then further requests, of which several may
//! be pending. Every request but `Ping`, `Cancel`, `Blob` and `NoBlob` is answered by exactly one closing reply with
//! its id; `Progress` and `NeedBlob` may come before it under the same id. A helper that receives nothing for
//! [`HEARTBEAT_TIMEOUT_S`] ends itself and its children.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    Awaiting, Blocker, Change, Disruption, NodeOp, Permit, RunEpoch,
    facts::Facts,
    health::{HealthReport, SystemState},
    keep::KeptReport,
    op::Blob,
};

/// Interval at which the controller sends `Ping`, in seconds.
pub const HEARTBEAT_S: u64 = 15;
/// Seconds without a frame after which the helper ends itself.
pub const HEARTBEAT_TIMEOUT_S: u64 = 60;

/// The value of [`OpRequest::run_as`] for the login user (see [`Open::login_uid`]).
pub const LOGIN_USER: &str = "";

/// A request with the id that its reply has too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope<T> {
    pub id: u64,
    pub body: T,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "request", content = "with")]
pub enum Request {
    /// The first request. A writer takes the node's lock; readers take none, and run beside a writer.
    Open(Open),
    Op(Box<OpRequest>),
    /// Asks for the result of an operation of this run whose answer was lost; answered by [`Reply::Spooled`].
    Spooled {
        op_id: String,
    },
    /// Stops the operation with that id, which then answers `Failed { kind: Cancelled }`.
    Cancel {
        id: u64,
    },
    /// Keeps the helper alive; not answered.
    Ping,
    /// A blob follows as data frames of `stream`, the last one empty; this answers [`Reply::NeedBlob`].
    Blob {
        stream: u32,
        sha256: String,
    },
    /// The requested blob does not exist.
    NoBlob {
        stream: u32,
        reason: String,
    },
    /// Drops what earlier predictions assumed, so that the next one starts from the node's real state.
    ForgetPredictions,
    /// Further predictions assume that the node was reset or rebooted: pending values became current, volatile ones
    /// are lost.
    AssumeActivation {
        class: Disruption,
    },
    /// Removes lock, spool, record and the pushed file. The helper ends after its answer.
    Clean,
    /// Releases the lock and ends the helper.
    Close,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    pub holder: RunEpoch,
    /// The caller, for the message to the next controller that finds the node locked: `user@host pid`.
    pub who: String,
    /// Whether the session may change the node.
    pub writes: bool,
    /// Whether it only runs single tasks for other nodes: it then takes no lock, and may not disturb the node.
    #[serde(default)]
    pub guest: bool,
    /// Whether commands may run although nothing else may, for `check_mode: false` under `--check`.
    #[serde(default)]
    pub commands: bool,
    /// Whether `health_info` runs commands: those of own checks, which a person asked for by the baseline of an audit.
    #[serde(default)]
    pub own_commands: bool,
    /// Uid of the login user, as which tasks without `become` run.
    pub login_uid: Option<u32>,
}

/// Whether an operation only predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Observes and plans, on top of what earlier predictions of this session assumed.
    Predict,
    /// Observes, plans, and applies what is allowed.
    Apply,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpRequest {
    pub op: NodeOp,
    pub mode: Mode,
    /// The permit, which limits the class of disruption; without one it is `Live`.
    pub permit: Option<Permit>,
    /// User of processes and file accesses. `None` is the helper's own, [`LOGIN_USER`] the login user.
    pub run_as: Option<String>,
    /// Seconds after which the operation is stopped and fails.
    pub timeout_s: u64,
    /// Identity of the operation in the run's journal; empty for none. In `Apply` it is recorded in the spool before
    /// it acts, and its result after. An id stands for one attempt: sent again, it acts again.
    pub op_id: String,
    /// Whether its output must not be stored (`no_log`): the spool then has only status and `rc`.
    #[serde(default)]
    pub secret: bool,
    /// Environment that the play or task sets.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "reply", content = "with")]
pub enum Reply {
    /// Sent without a request, with id 0, as the first frame.
    Hello(Hello),
    Opened(Opened),
    /// The lock is held by another run, or this run was fenced by a newer epoch.
    Locked(Locked),
    Outcome(Box<OpOutcome>),
    Spooled(Spooled),
    /// The operation `id` needs this content; to be answered with `Blob` and data frames, the last one empty.
    NeedBlob {
        stream: u32,
        blob: Blob,
    },
    /// What the operation `id` is doing now, for the screen.
    Progress {
        text: String,
    },
    Done,
    /// The request could not be understood, or could not be started.
    Error {
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    /// SHA-256 of the running node file, as lower-case hexadecimal.
    pub digest: String,
    pub uid: u32,
    pub arch: String,
    pub pid: u32,
    /// `None` if the kernel does not provide it.
    pub boot_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The state directory with lock, spool and record.
    pub state_dir: String,
    /// What the node asserts at each boot, and what came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Box<KeptReport>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    pub holder: RunEpoch,
    pub who: String,
    /// Whether a newer run has taken over for good, so that waiting is useless.
    pub fenced: bool,
}

/// What the node knows of an operation with some `op_id`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "spooled", content = "with")]
pub enum Spooled {
    /// It never began on this node, or so long ago that it is no longer in the spool.
    Nothing,
    /// It began and has no result: it still runs, or was cut off with unknown effects.
    Started,
    /// Its answer. For a secret operation without output, with `data.withheld` set to true.
    Finished(Box<OpOutcome>),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpOutcome {
    pub status: OpStatus,
    /// Differences: in `Predict` those that would be made, in `Apply` those made.
    pub changes: Vec<Change>,
    /// Values that are written and wait for an activation.
    #[serde(default)]
    pub awaiting: Vec<Awaiting>,
    /// What came and runs from the next boot on, such as a kernel: reasons for a reboot that a play asks for. The node does
    /// without, so that nothing is left open if none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub for_next_boot: Vec<String>,
    /// Whether it was an act that leaves no state to hold: planned again at once it would change more, as an edit does whose
    /// pattern matches its own result.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub act: bool,
    /// Obstacles to the changes now, because of which a run would be refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    /// What happened to the GPUs or the node meanwhile (in `Predict`: would happen), so that the controller asserts
    /// lost values again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activated: Option<Disruption>,
    /// What `register` gets in addition to `changed` and `failed`, such as `rc` and `stdout`.
    #[serde(default)]
    pub data: Map<String, Value>,
    /// For a [`NodeOp::GpuGroup`]: one outcome for each member, in the order written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<OpOutcome>,
    /// For [`NodeOp::Facts`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Box<Facts>>,
    /// For [`NodeOp::Idle`], and for a refusal because of clients of the GPUs.
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
    /// With [`OpStatus::Possible`]: what only the run can tell, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsure: Option<String>,
    /// Its size in memory at the receiver; not sent.
    #[serde(skip)]
    pub weight: Weight,
}

/// The memory that a received message takes, and the reservation for it.
#[derive(Clone, Default)]
pub struct Weight {
    /// In bytes; 0 for a message that was not received.
    pub bytes: u64,
    /// A reservation in the receiver's budget, released with the last copy.
    pub room: Option<std::sync::Arc<dyn std::any::Any + Send + Sync>>,
}

/// Always equal, because the size of a message is not part of its content.
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

/// Returns a program's output under Ansible's names: whole, and by lines.
///
/// Built where the output is read, so that the receiver can limit all of it.
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
            for_next_boot: Vec::new(),
            act: false,
            blockers: Vec::new(),
            activated: None,
            data: Map::new(),
            members: Vec::new(),
            facts: None,
            idle: None,
            health: None,
            system: None,
            warnings: Vec::new(),
            unsure: None,
            weight: Weight::default(),
        }
    }

    /// Returns one that only the run can tell: what, and why.
    pub fn possible(why: impl Into<String>) -> Self {
        Self { unsure: Some(why.into()), ..Self::new(OpStatus::Possible) }
    }

    pub fn failed(kind: FailureKind, message: impl Into<String>) -> Self {
        Self::new(OpStatus::Failed { kind, message: message.into() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum OpStatus {
    /// Already as declared.
    Ok,
    /// Would change (`Predict`) or was changed and verified (`Apply`).
    Changed,
    /// Not run, for example because `creates` matched.
    Skipped {
        reason: String,
    },
    /// A prediction of what only a run can decide, such as a command.
    Possible,
    /// The state could not be read, which never counts as declared.
    Unknown {
        reason: String,
    },
    /// The setting does not exist on this node: neither declared nor drifted.
    NotApplicable {
        reason: String,
    },
    /// Nothing was changed: the plan needs a permit of this class.
    NeedsPermit {
        class: Disruption,
    },
    Failed {
        kind: FailureKind,
        message: String,
    },
}

/// Why an operation failed, so that the controller can suggest what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The declared value is not possible on this node, such as a power limit out of range.
    Invalid,
    /// What it requires, such as a file to edit, is not on this node.
    Missing,
    /// It was set, but has another value when read again.
    Unconverged,
    /// A process or kernel module holds the GPUs.
    Busy,
    /// A permit was missing, too low, or of another run.
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

/// What uses a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleReport {
    pub verdict: IdleVerdict,
    pub clients: Vec<GpuClient>,
    /// Why the verdict is not idle: one sentence each, for people.
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

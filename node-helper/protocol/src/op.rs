//! Operations of the helper, after templates were rendered and files of the controller were resolved.

use serde::{Deserialize, Serialize};

pub use crate::tasks::{GpuTask, NodeOp};
use crate::{
    disturbing::{self, Disturbance},
    health::HealthRequest,
    keep::Sealed,
    operation::{Claim, Effect, Needs, Newer, Operation, Part, Reach, is_below, paths, undeclared},
    tasks::{FileState, GpuKeep, GpuSelector, GpuSelectorItem, ResetWhen, Unarchive},
};

/// Pods that a scheduler leaves on a node that it drained; they do not count as work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Staying {
    /// UIDs of pods, with dashes as in Kubernetes. Valid for this session until the next request.
    pub pods: Vec<String>,
    /// Whether they may hold GPUs: for a reboot, which ends them; nothing else can be done while they do.
    pub may_hold_gpus: bool,
}

impl Operation for Staying {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

/// The declared state of the GPUs of one node, merged from consecutive tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuGroup {
    pub members: Vec<GpuMember>,
    /// Leaves activation to a reboot that this play needs anyway, so that the node is disturbed once.
    #[serde(default)]
    pub defer_to_reboot: bool,
}

impl GpuGroup {
    /// Returns for each member whether a newer group leaves it as it is.
    pub fn kept(&self, newer: &Self) -> Vec<bool> {
        let gone = |old: &GpuMember| newer.members.iter().any(|new| old.task.gives_way(&new.task));
        self.members.iter().map(|member| !gone(member)).collect()
    }
}

impl Operation for GpuGroup {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Gpus
    }

    fn lasting(&mut self) -> bool {
        self.members.retain(|member| !member.task.is_once());
        !self.members.is_empty()
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::GpuGroup(new) = newer.op else { return true };
        let kept = self.kept(new);
        let mut keep = kept.iter();
        self.members.retain(|_| keep.next().copied().unwrap_or(true));
        !self.members.is_empty()
    }
}

impl GpuTask {
    /// Returns the GPUs that it is for; all if empty.
    pub fn gpus(&self) -> &[GpuSelectorItem] {
        match self {
            Self::GpuPersistence(task) => &task.gpus,
            Self::GpuEcc(task) => &task.gpus,
            Self::GpuMig(task) => &task.gpus,
            Self::GpuPower(task) => &task.gpus,
            Self::GpuClocks(task) => &task.gpus,
            Self::GpuComputeMode(task) => &task.gpus,
            Self::GpuMps(task) => &task.gpus,
            Self::GpuAccounting(task) => &task.gpus,
            Self::GpuReset(task) => &task.gpus,
            Self::GpuConfidentialCompute(_) => &[],
        }
    }

    /// As [`gpus`](Self::gpus), for changes; `None` for a kind that is always for all of them.
    pub fn gpus_mut(&mut self) -> Option<&mut GpuSelector> {
        match self {
            Self::GpuPersistence(task) => Some(&mut task.gpus),
            Self::GpuEcc(task) => Some(&mut task.gpus),
            Self::GpuMig(task) => Some(&mut task.gpus),
            Self::GpuPower(task) => Some(&mut task.gpus),
            Self::GpuClocks(task) => Some(&mut task.gpus),
            Self::GpuComputeMode(task) => Some(&mut task.gpus),
            Self::GpuMps(task) => Some(&mut task.gpus),
            Self::GpuAccounting(task) => Some(&mut task.gpus),
            Self::GpuReset(task) => Some(&mut task.gpus),
            Self::GpuConfidentialCompute(_) => None,
        }
    }

    /// Whether it asks for an act of its own and not for a state: a play does it once, and never asserts it again.
    pub fn is_once(&self) -> bool {
        matches!(self, Self::GpuReset(reset) if reset.when == ResetWhen::Always)
    }
}

/// One task of a group; its outcome comes back under the same index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuMember {
    pub task: GpuTask,
}

/// Content that the controller holds, and that the helper requests only if the node lacks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Lower-case hexadecimal SHA-256.
    pub sha256: String,
    /// In bytes.
    pub size: u64,
}

/// A file with this content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutFile {
    /// Absolute path on the node; a directory (ending in `/` or existing) gets a file called `name`.
    pub dest: String,
    /// Base name of the source.
    pub name: String,
    /// The content; `None` if `remote_src` names a file of the node.
    pub blob: Option<Blob>,
    pub remote_src: Option<String>,
    /// The content as text if it is small, for a diff in a plan.
    pub preview: Option<String>,
    pub owner: Option<String>,
    pub group: Option<String>,
    pub mode: Option<crate::tasks::FileMode>,
    pub backup: bool,
    /// Whether an existing file with other content is replaced.
    pub force: bool,
    /// Command that must accept the new file before it is put in place; `%s` stands for its path.
    pub validate: Option<String>,
    /// Whether content is kept out of diffs.
    pub secret: bool,
    /// Whether a link at the destination is kept, and its target written.
    #[serde(default)]
    pub follow: bool,
    /// SHA-1 that the content must have.
    #[serde(default)]
    pub checksum: Option<String>,
    /// Mode of directories, if `remote_src` is one.
    #[serde(default)]
    pub directory_mode: Option<crate::tasks::FileMode>,
    /// Path of the source on the controller, for `src` in `register`.
    #[serde(default)]
    pub source: Option<String>,
    /// Whether `register` gets the text before and after.
    #[serde(default)]
    pub tells_diff: bool,
}

impl PutFile {
    /// Returns the path of the file, if `dest` alone tells whether it is a folder.
    fn file(&self) -> String {
        if self.dest.ends_with('/') { format!("{}{}", self.dest, self.name) } else { self.dest.clone() }
    }
}

impl Operation for PutFile {
    paths!(dest, remote_src);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Content(self.blob.iter().collect())
    }

    fn reach(&self) -> Reach<'_> {
        Reach::File(Claim { path: self.file(), part: Part::Content })
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        match newer.op {
            NodeOp::PutFile(new) => {
                self.dest != new.dest || self.name != new.name && self.dest.ends_with('/')
            }
            NodeOp::File(new) if self.dest == new.path => {
                self.owner = self.owner.take().filter(|_| new.owner.is_none());
                self.group = self.group.take().filter(|_| new.group.is_none());
                self.mode = self.mode.take().filter(|_| new.mode.is_none());
                matches!(new.state, None | Some(FileState::File))
            }
            _ => true,
        }
    }
}

/// A directory with given content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutTree {
    /// Absolute path on the node of the directory for the content; created with its parents if missing.
    pub dest: String,
    /// `src` and `dest` as written in the task, for `register`.
    #[serde(default)]
    pub told: Option<(String, String)>,
    /// Paths below `dest`, each after its directory.
    pub entries: Vec<TreeEntry>,
    /// A directory of the node with the content, instead of `entries`.
    pub remote_src: Option<String>,
    pub owner: Option<String>,
    pub group: Option<String>,
    /// Mode of files in `entries` without a mode of their own.
    pub mode: Option<crate::tasks::FileMode>,
    pub directory_mode: Option<crate::tasks::FileMode>,
    pub backup: bool,
    pub force: bool,
    pub follow: bool,
    pub secret: bool,
}

impl Operation for PutTree {
    paths!(dest, remote_src);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Content(self.entries.iter().filter_map(|entry| entry.blob.as_ref()).collect())
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([&self.dest])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let Reach::File(Claim { path, part }) = newer.op.operation().reach() else { return true };
        let absence = part == Part::Absence;
        let folder = self.dest.trim_end_matches('/').to_owned();
        let gone = |place: &str| is_below(place, &path) || place == path;
        if gone(&folder) && absence || self.remote_src.is_some() && is_below(&path, &folder) {
            return false;
        }
        // Nothing else: the rest of the folder is still as the earlier task made it.
        self.entries.retain(|entry| {
            let place = format!("{folder}/{}", entry.path);
            !(place == path || absence && gone(&place))
        });
        true
    }
}

/// One path of a tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeEntry {
    /// Relative path without `..`.
    pub path: String,
    /// Content of a file; `None` for a directory.
    pub blob: Option<Blob>,
    /// Target of a link.
    #[serde(default)]
    pub link: Option<String>,
    /// Permission bits of the source, for `mode: preserve`.
    #[serde(default)]
    pub mode: Option<crate::tasks::FileMode>,
    /// The content as text if it is small, for a diff in a plan.
    #[serde(default)]
    pub preview: Option<String>,
}

/// `gpu_keep`: what the run declared of GPUs, and how it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeepState {
    pub policy: GpuKeep,
    pub members: Vec<GpuMember>,
    /// The document for this node; added when the operation is sent, as only then the node is known. `None` for
    /// `state: absent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<Sealed>,
    /// What of the node's former state is not kept any more, one sentence each; added with the document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
}

impl Operation for KeepState {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Nothing
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::KeepState(_))
    }
}

/// Asks for [`crate::keep::KeptReport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptStatus {
    /// Also asks how the GPUs, as they are or as this session predicts them, differ from what is kept; answered in
    /// `OpOutcome::changes`.
    #[serde(default)]
    pub compare: bool,
    /// Asks for what this session predicts to be kept.
    #[serde(default)]
    pub foreseen: bool,
}

impl Operation for KeptStatus {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

/// `unarchive`, its archive resolved by the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnpackArchive {
    pub task: Unarchive,
    /// The archive; `None` if it is on the node.
    pub blob: Option<Blob>,
}

impl Operation for UnpackArchive {
    fn paths(&self) -> Vec<&String> {
        let remote = self.task.remote_src && !self.task.src.contains("://");
        std::iter::once(&self.task.dest).chain(remote.then_some(&self.task.src)).collect()
    }

    fn paths_mut(&mut self) -> Vec<&mut String> {
        let remote = self.task.remote_src && !self.task.src.contains("://");
        std::iter::once(&mut self.task.dest).chain(remote.then_some(&mut self.task.src)).collect()
    }

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        self.blob.as_ref().map_or(Needs::Nothing, |blob| Needs::Content(vec![blob]))
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([&self.task.dest])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, _: &Newer<'_>) -> bool {
        true
    }
}

/// Requests a piece of a file. The answer's `data` has `content` (base64), `size` and, at offset 0, `sha256`; if the
/// file is too large, only `size`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPiece {
    /// Absolute path on the node.
    pub path: String,
    /// In bytes.
    pub offset: u64,
    /// In bytes, at most [`READ_PIECE`]; 0 requests size and digest only.
    pub length: u64,
    /// In bytes; a larger file is not read.
    pub max_size: u64,
}

impl Operation for ReadPiece {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

/// Largest piece that is read at once, in bytes: as base64 it is well below the size of a frame.
pub const READ_PIECE: u64 = 2 * 1024 * 1024;

/// A process on the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exec {
    pub run: Program,
    pub chdir: Option<String>,
    /// Skipped if this glob matches a path.
    pub creates: Option<String>,
    /// Skipped unless this glob matches a path.
    pub removes: Option<String>,
    pub stdin: Option<String>,
    pub environment: Vec<(String, String)>,
    /// Content of the script.
    pub script: Option<Blob>,
    /// What the script does, as the controller read in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_does: Option<Disturbance>,
    /// `cmd` for `register`; by default, what runs.
    #[serde(default)]
    pub shown: Option<serde_json::Value>,
    /// Whether output is returned unchanged and without times, as for `raw` and `script`.
    #[serde(default)]
    pub verbatim: bool,
    /// Whether line breaks at the end of output are kept.
    #[serde(default)]
    pub keep_ends: bool,
    /// Whether `$NAME` in the arguments is replaced by the environment variable.
    #[serde(default)]
    pub expand: bool,
}

impl Exec {
    /// Returns the worst that it does, as far as its text tells.
    pub fn disturbance(&self) -> Option<Disturbance> {
        self.script_does.clone().or_else(|| disturbing::of_program(&self.run, self.stdin.as_deref()))
    }
}

impl Operation for Exec {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Once
    }

    fn needs(&self) -> Needs<'_> {
        self.script.as_ref().map_or(Needs::Nothing, |script| Needs::Content(vec![script]))
    }

    undeclared!(Anything);
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Executed directly, without a shell.
    Argv(Vec<String>),
    /// Passed to `executable -c`.
    Shell { line: String, executable: String },
    /// The pushed script with these arguments, run by its own `#!` line or by the named interpreter.
    Script { arguments: Vec<String>, executable: Option<String> },
}

impl Default for Program {
    fn default() -> Self {
        Self::Argv(Vec::new())
    }
}

/// An operation that outlives the helper that started it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStart {
    /// Must need no content of the controller and no permit.
    pub op: Box<NodeOp>,
    /// Time limit in seconds, after which it is stopped and has failed.
    pub limit_s: u64,
}

impl Operation for JobStart {
    fn paths(&self) -> Vec<&String> {
        self.op.operation().paths()
    }

    fn paths_mut(&mut self) -> Vec<&mut String> {
        self.op.operation_mut().paths_mut()
    }

    fn effect(&self) -> Effect {
        Effect::Once
    }

    fn needs(&self) -> Needs<'_> {
        match self.op.operation().needs() {
            Needs::Nothing => Needs::Session,
            needs => needs,
        }
    }

    undeclared!(Anything);
}

/// Message of a job that was stopped at its time limit, as in Ansible.
pub const JOB_TIMED_OUT: &str = "Timeout exceeded";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    pub jid: String,
    /// Removes the job's output instead of returning it.
    #[serde(default)]
    pub forget: bool,
    /// How long the answer may wait for the job's end, in seconds.
    #[serde(default)]
    pub wait_s: u64,
}

impl Operation for JobStatus {
    paths!();

    fn effect(&self) -> Effect {
        if self.forget { Effect::Acts } else { Effect::Reads }
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactsRequest {
    /// Whether the GPUs are read through NVML too.
    pub gpus: bool,
    /// Names or globs of the facts for `register`; the controller applies them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<String>,
}

impl FactsRequest {
    /// The field of `OpOutcome::data` with the names of facts, without `ansible_`, that an earlier task of a prediction
    /// changes, so that only the run can tell them.
    pub const FORESEEN: &str = "foreseen_facts";
}

/// Requests a [`crate::status::GpuStatus`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatusRequest {
    /// The time over which use is averaged, in seconds; as much of it as the driver has samples of.
    pub window_s: u32,
    /// Whether the MIG profiles of each GPU are read too, MIG on or off; 7 ms of CPU for each GPU.
    #[serde(default)]
    pub profiles: bool,
}

impl Operation for GpuStatusRequest {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

/// Requests the state of the operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct System;

impl Operation for FactsRequest {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

impl Operation for HealthRequest {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

impl Operation for System {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

/// How strictly a node is rebooted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reboot {
    /// `systemctl reboot`, or `shutdown -r now` without systemd.
    #[default]
    Orderly,
    /// `systemctl reboot --force`: does not wait for services.
    Forced,
}

impl Operation for Reboot {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Once
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    undeclared!(Nothing);
}

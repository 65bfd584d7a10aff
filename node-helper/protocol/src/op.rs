//! What the helper can be asked to do, after templates were rendered and files of the controller were resolved.

use serde::{Deserialize, Serialize};

pub use crate::tasks::{GpuTask, NodeOp};
use crate::{
    health::HealthRequest,
    operation::{Claim, Effect, Needs, Newer, Operation, Part, Reach, is_below, paths, undeclared},
    tasks::{FileState, Unarchive},
};

/// What a scheduler leaves on a node that it drained: no work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Staying {
    /// Uids of pods, with dashes as Kubernetes shows them. Counts for this session until it is asked anew.
    pub pods: Vec<String>,
    /// Whether they may hold GPUs as well: for a reboot, which ends them; nothing else can be done under them.
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
    /// Leaves activation to a reboot that this play does anyway, so that the node is disturbed once.
    #[serde(default)]
    pub defer_to_reboot: bool,
}

impl GpuGroup {
    /// Which members a newer group leaves as they are, in order.
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
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::GpuGroup(new) = newer.op else { return true };
        let kept = self.kept(new);
        let mut keep = kept.iter();
        self.members.retain(|_| keep.next().copied().unwrap_or(true));
        !self.members.is_empty()
    }
}

/// One task of a group; its outcome comes back under the same index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuMember {
    pub task: GpuTask,
}

/// Content that the controller holds and the helper asks for only when the node lacks it.
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
    /// The content, or nothing when `remote_src` names a file of the node.
    pub blob: Option<Blob>,
    pub remote_src: Option<String>,
    /// Text of the content when it is small, for a diff in a plan.
    pub preview: Option<String>,
    pub owner: Option<String>,
    pub group: Option<String>,
    pub mode: Option<crate::tasks::FileMode>,
    pub backup: bool,
    /// Whether an existing file of other content is replaced.
    pub force: bool,
    /// Command that must accept the new file before it is put in place; `%s` stands for its path.
    pub validate: Option<String>,
    /// Whether content is kept out of diffs.
    pub secret: bool,
    /// Whether a link at the destination is kept and its target written.
    #[serde(default)]
    pub follow: bool,
    /// SHA-1 that the content must have.
    #[serde(default)]
    pub checksum: Option<String>,
    /// Mode of directories, where `remote_src` is one.
    #[serde(default)]
    pub directory_mode: Option<crate::tasks::FileMode>,
    /// Path of the source on the controller, which `register` gets as `src`.
    #[serde(default)]
    pub source: Option<String>,
    /// Whether `register` gets the text before and after.
    #[serde(default)]
    pub tells_diff: bool,
}

impl PutFile {
    /// The path of the file, where `dest` says whether it is a folder.
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

/// A directory whose content is this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PutTree {
    /// Absolute path on the node of the directory that gets the content; made with its parents when it is missing.
    pub dest: String,
    /// `src` and `dest` as the task has them, which `register` gets.
    #[serde(default)]
    pub told: Option<(String, String)>,
    /// Paths below `dest`, each after the directory that it is in.
    pub entries: Vec<TreeEntry>,
    /// Directory of the node that has the content, instead of `entries`.
    pub remote_src: Option<String>,
    pub owner: Option<String>,
    pub group: Option<String>,
    /// Mode of the files, for those of `entries` that have none of their own.
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
        // Why only that: the rest of the folder is still what the earlier task made it.
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
    /// Content of a file; a directory has none.
    pub blob: Option<Blob>,
    /// Target of a link.
    #[serde(default)]
    pub link: Option<String>,
    /// Permission bits of the source, for `mode: preserve`.
    #[serde(default)]
    pub mode: Option<crate::tasks::FileMode>,
    /// Text of the content when it is small, for a diff in a plan.
    #[serde(default)]
    pub preview: Option<String>,
}

/// `unarchive`, its archive resolved by the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnpackArchive {
    pub task: Unarchive,
    /// The archive, unless the node has it.
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

/// Asks for a piece of a file; the answer's `data` has `content` (base64), `size` and, asked at offset 0, `sha256`; of
/// a file that is too large `size` alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPiece {
    /// Absolute path on the node.
    pub path: String,
    /// In bytes.
    pub offset: u64,
    /// In bytes, at most [`READ_PIECE`]; 0 asks for size and digest alone.
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

/// The largest piece that is read at once, in bytes: as base64 it is well below a frame.
pub const READ_PIECE: u64 = 2 * 1024 * 1024;

/// A process on the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exec {
    pub run: Program,
    pub chdir: Option<String>,
    /// Skipped when this glob matches a path.
    pub creates: Option<String>,
    /// Skipped unless this glob matches a path.
    pub removes: Option<String>,
    pub stdin: Option<String>,
    pub environment: Vec<(String, String)>,
    /// Path under which the helper sees the script, pushed by content.
    pub script: Option<Blob>,
    /// What `register` gets as `cmd`; left out, what runs.
    #[serde(default)]
    pub shown: Option<serde_json::Value>,
    /// Output as it came, as `raw` and `script` give it, and without the times.
    #[serde(default)]
    pub verbatim: bool,
    /// Line breaks at the end of the output stay.
    #[serde(default)]
    pub keep_ends: bool,
    /// `$NAME` in the arguments stands for variables of the environment.
    #[serde(default)]
    pub expand: bool,
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
    /// Executed as is, no shell.
    Argv(Vec<String>),
    /// Given to `executable -c`.
    Shell { line: String, executable: String },
    /// The pushed script with these arguments, through its own `#!` line or the interpreter named.
    Script { arguments: Vec<String>, executable: Option<String> },
}

impl Default for Program {
    fn default() -> Self {
        Self::Argv(Vec::new())
    }
}

/// An operation that outlives the helper that was asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobStart {
    /// Needs no content of the controller and no permit.
    pub op: Box<NodeOp>,
    /// After so many seconds it is stopped and has failed.
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

/// What the outcome of a job says that was stopped because its time was up; as with Ansible.
pub const JOB_TIMED_OUT: &str = "Timeout exceeded";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    pub jid: String,
    /// Forgets what it has said, instead of telling it.
    #[serde(default)]
    pub forget: bool,
    /// The answer may wait so many seconds for its end.
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
    /// Reads the GPUs through NVML too.
    pub gpus: bool,
    /// Names or globs of the facts that `register` gets; the controller chooses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<String>,
}

/// Asks how far the operating system is.
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

/// How hard the node is asked to go down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reboot {
    /// `systemctl reboot`, or `shutdown -r now` without systemd.
    #[default]
    Orderly,
    /// `systemctl reboot --force`: services are not waited for.
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

//! What the helper can be asked to do, after templates were rendered and files of the controller were resolved.

use serde::{Deserialize, Serialize};

use crate::health::HealthRequest;
use crate::tasks::{
    Apt, BlockInFile, Cron, Dnf, File, Find, GetUrl, GpuClocks, GpuComputeMode, GpuEcc, GpuMig, GpuMps,
    GpuPersistence, GpuPower, Group, Hostname, KernelCmdline, LineInFile, Modprobe, Mount, Package, Ping,
    Replace, Service, Slurp, Stat, Sysctl, TempFile, Unarchive, User, WaitFor,
};

/// One operation on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op", content = "with")]
pub enum NodeOp {
    /// The GPU tasks of one group: one desired state, one activation.
    GpuGroup(GpuGroup),
    Sysctl(Sysctl),
    KernelCmdline(KernelCmdline),
    File(File),
    LineInFile(LineInFile),
    Service(Service),
    Package(Package),
    Apt(Apt),
    Dnf(Dnf),
    User(Box<User>),
    Group(Group),
    Cron(Box<Cron>),
    Hostname(Hostname),
    Modprobe(Modprobe),
    Mount(Mount),
    Stat(Stat),
    BlockInFile(BlockInFile),
    Replace(Replace),
    GetUrl(GetUrl),
    Unarchive(UnpackArchive),
    TempFile(TempFile),
    Find(Find),
    Slurp(Slurp),
    /// One piece of a file, for `fetch`.
    ReadPiece(ReadPiece),
    WaitFor(WaitFor),
    Ping(Ping),
    /// A tree of files and directories: `copy` of a directory.
    PutTree(PutTree),
    /// `copy` and `template`, their content resolved by the controller.
    PutFile(PutFile),
    /// `command`, `shell`, `script` and `raw`.
    Exec(Exec),
    /// Begins another operation that goes on by itself, or finds the one of this id that has begun. Answered at once
    /// with its `ansible_job_id`; asked again under the same id, it never begins twice.
    JobStart(JobStart),
    /// How such an operation is: `data.finished` tells whether the outcome is its own.
    JobStatus(JobStatus),
    /// Reads hardware and software facts.
    Facts(FactsRequest),
    /// Tells whether anything works on the node, its GPUs first. Unknown counts as busy.
    Idle(Staying),
    /// The health gate, answered in `OpOutcome::health`.
    Health(HealthRequest),
    /// How far the operating system is, answered in `OpOutcome::system`.
    System,
    /// Asks the node to reboot; the answer comes before the connection dies.
    Reboot(Reboot),
}

/// What a scheduler leaves on a node that it drained: no work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Staying {
    /// Uids of pods, with dashes as Kubernetes shows them. Counts for this session until it is asked anew.
    pub pods: Vec<String>,
    /// Whether they may hold GPUs as well: for a reboot, which ends them; nothing else can be done under them.
    pub may_hold_gpus: bool,
}

/// One list for reading and for changing.
macro_rules! paths {
    ($op:expr, $paths:ident, $iter:ident $(, $mut:tt)?) => {
        match $op {
            Self::File(task) => vec![&$($mut)? task.path],
            Self::LineInFile(task) => vec![&$($mut)? task.path],
            Self::BlockInFile(task) => vec![&$($mut)? task.path],
            Self::Replace(task) => vec![&$($mut)? task.path],
            Self::Stat(task) => vec![&$($mut)? task.path],
            Self::Slurp(task) => vec![&$($mut)? task.src],
            Self::GetUrl(task) => vec![&$($mut)? task.dest],
            Self::Find(task) => task.paths.$iter().collect(),
            Self::WaitFor(task) => task.path.$iter().collect(),
            Self::TempFile(task) => task.path.$iter().collect(),
            Self::PutFile(task) => std::iter::once(&$($mut)? task.dest).chain(task.remote_src.$iter()).collect(),
            Self::PutTree(task) => std::iter::once(&$($mut)? task.dest).chain(task.remote_src.$iter()).collect(),
            Self::Unarchive(archive) => {
                let task = &$($mut)? archive.task;
                let remote = task.remote_src && !task.src.contains("://");
                std::iter::once(&$($mut)? task.dest).chain(remote.then_some(&$($mut)? task.src)).collect()
            }
            Self::JobStart(job) => job.op.$paths(),
            _ => Vec::new(),
        }
    };
}

impl NodeOp {
    /// The paths of the node that a task gives, as it gives them.
    pub fn paths(&self) -> Vec<&String> {
        paths!(self, paths, iter)
    }

    /// The same, to be changed.
    pub fn paths_mut(&mut self) -> Vec<&mut String> {
        paths!(self, paths_mut, iter_mut, mut)
    }

    /// The content that the helper may ask for, each as often as it stands in the task.
    pub fn contents(&self) -> Vec<&Blob> {
        match self {
            Self::PutFile(task) => task.blob.iter().collect(),
            Self::PutTree(task) => task.entries.iter().filter_map(|entry| entry.blob.as_ref()).collect(),
            Self::Unarchive(archive) => archive.blob.iter().collect(),
            Self::Exec(exec) => exec.script.iter().collect(),
            Self::JobStart(job) => job.op.contents(),
            _ => Vec::new(),
        }
    }

    /// Whether it only reads, so that any session may ask for it at any time.
    pub const fn reads_only(&self) -> bool {
        matches!(
            self,
            Self::Stat(_)
                | Self::Find(_)
                | Self::Slurp(_)
                | Self::ReadPiece(_)
                | Self::WaitFor(_)
                | Self::Ping(_)
                | Self::JobStatus(JobStatus { forget: false, .. })
                | Self::Facts(_)
                | Self::Idle(_)
                | Self::Health(_)
                | Self::System
        )
    }

    /// Whether observe, plan and apply exist for it, so that a plan tells exactly what a run will do.
    pub const fn is_declarative(&self) -> bool {
        matches!(
            self,
            Self::GpuGroup(_)
                | Self::Sysctl(_)
                | Self::KernelCmdline(_)
                | Self::File(_)
                | Self::LineInFile(_)
                | Self::Service(_)
                | Self::Package(_)
                | Self::Apt(_)
                | Self::Dnf(_)
                | Self::User(_)
                | Self::Group(_)
                | Self::Cron(_)
                | Self::Hostname(_)
                | Self::Modprobe(_)
                | Self::Mount(_)
                | Self::Stat(_)
                | Self::BlockInFile(_)
                | Self::Replace(_)
                | Self::GetUrl(_)
                | Self::Unarchive(_)
                | Self::PutFile(_)
                | Self::PutTree(_)
        )
    }
}

/// The declared state of the GPUs of one node, merged from consecutive tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuGroup {
    pub members: Vec<GpuMember>,
    /// Leaves activation to a reboot that this play does anyway, so that the node is disturbed once.
    #[serde(default)]
    pub defer_to_reboot: bool,
}

/// One task of a group; its outcome comes back under the same index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuMember {
    pub task: GpuTask,
}

/// Parameters of one GPU task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "with")]
pub enum GpuTask {
    GpuPersistence(GpuPersistence),
    GpuEcc(GpuEcc),
    GpuMig(GpuMig),
    GpuPower(GpuPower),
    GpuClocks(GpuClocks),
    GpuComputeMode(GpuComputeMode),
    GpuMps(GpuMps),
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactsRequest {
    /// Reads the GPUs through NVML too.
    pub gpus: bool,
    /// Names or globs of the facts that `register` gets; the controller chooses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<String>,
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

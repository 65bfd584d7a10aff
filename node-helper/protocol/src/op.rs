//! What the helper can be asked to do, after templates were rendered and files of the controller were resolved.

use serde::{Deserialize, Serialize};

use crate::health::HealthRequest;
use crate::tasks::{
    Apt, Cron, Dnf, File, GpuClocks, GpuComputeMode, GpuEcc, GpuMig, GpuMps, GpuPersistence, GpuPower, Group,
    Hostname, KernelCmdline, LineInFile, Modprobe, Mount, Package, Service, Stat, Sysctl, User,
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
    /// `copy` and `template`, their content resolved by the controller.
    PutFile(PutFile),
    /// `command`, `shell` and `script`.
    Exec(Exec),
    /// Reads hardware and software facts.
    Facts(FactsRequest),
    /// Tells whether anything works on the node, its GPUs first. Unknown counts as busy.
    Idle,
    /// The health gate, answered in `OpOutcome::health`.
    Health(HealthRequest),
    /// How far the operating system is, answered in `OpOutcome::system`.
    System,
    /// Asks the node to reboot; the answer comes before the connection dies.
    Reboot(Reboot),
}

impl NodeOp {
    /// Whether it only reads, so that any session may ask for it at any time.
    pub const fn reads_only(&self) -> bool {
        matches!(self, Self::Stat(_) | Self::Facts(_) | Self::Idle | Self::Health(_) | Self::System)
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
                | Self::PutFile(_)
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
}

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

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactsRequest {
    /// Reads the GPUs through NVML too.
    pub gpus: bool,
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

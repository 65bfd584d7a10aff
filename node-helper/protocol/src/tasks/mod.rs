//! The registry of task kinds: their names, classes, parameters and documentation.
//!
//! A kind is a parameter type in a file of its own here, a line in [`registry!`] below, and a file on the side that
//! executes it. Parser, checks, reference, JSON schema and completion are derived from the registry.

mod accounts;
mod blacklist;
mod checksum;
mod container_limits;
mod container_toolkit;
mod content;
mod control;
mod cpu_frequency;
mod cpu_idle;
mod cpu_isolation;
mod cuda_compat;
mod disk_queue;
mod docker_daemon;
pub mod dotted;
mod driver;
mod facts;
mod files;
mod gpu;
mod gpu_keep;
mod gpudirect;
mod ground;
mod health_info;
mod hugepages;
mod initramfs;
mod irq_affinity;
mod job;
mod kdump;
mod keys;
mod kind;
mod kubelet;
pub mod kubelet_fields;
mod kubernetes_node;
mod limits;
mod machine;
mod network_interface;
mod number;
mod nvidia_services;
mod package_hold;
mod packages;
mod pci_settings;
mod process;
mod rdma_link;
mod reading;
mod repositories;
mod restart;
mod selections;
mod session;
mod slurm_node;
mod smt;
mod swap;
mod system;
mod text;
mod thp;
mod time_sync;
mod topology_info;
mod transfer;
mod tuned;
mod unit_settings;
mod wait;
mod words;

pub use accounts::{AccountState, Group, Hidden, UpdatePassword, User};
pub use blacklist::KernelBlacklist;
pub use checksum::ChecksumAlgorithm;
pub use container_limits::ContainerLimits;
pub use container_toolkit::{ContainerRuntime, ContainerToolkit};
pub use content::{Copy, NewlineSequence, Template};
pub use control::{
    Assert, Debug, Fail, HashBehaviour, IncludeRole, IncludeTasks, IncludeVars, Meta, MetaAction, SetFact,
    ValidateArgumentSpec,
};
pub use cpu_frequency::{CpuDriverMode, CpuEnergyPreference, CpuFrequency, CpuGovernor};
pub use cpu_idle::{CpuIdle, IdleBound};
pub use cpu_isolation::{CpuIsolation, IsolationFlag, IsolationWord, PartitionSort};
pub use cuda_compat::{CudaCompat, CudaContainers};
pub use disk_queue::{DiskQueue, DiskScheduler, DiskType};
pub use docker_daemon::DockerDaemon;
pub use driver::{DriverFlavour, DriverGoBack, DriverReboot, DriverSource, GpuDriver};
pub use facts::{AGES, AgeStamp, Find, FindType, Ping, SIZES, Setup, bound};
pub use files::{File, FileMode, FileState, Stat};
pub use gpu::{
    AccountingMode, Belief, Beside, BesideKind, ClockRange, ComputeModeName, ConfidentialMode,
    DrainStateName, EccMode, GpuAccounting, GpuClocks, GpuComputeMode, GpuConfidentialCompute, GpuDrainState,
    GpuEcc, GpuKind, GpuMig, GpuMps, GpuPersistence, GpuPower, GpuReset, GpuSelector, GpuSelectorItem,
    Hardware, Lasts, MigConfigFile, MigFilter, MigLayout, MigMode, MigPlacement, MigSpec, MigStrategy,
    MpsScope, MpsState, PciId, PersistenceMode, PowerScope, ResetWhen,
};
pub use gpu_keep::{GpuKeep, KeepPresence, OnKeepFailure};
pub use gpudirect::{GpuDirect, GpuDirectWay, PeermemState};
pub use ground::{Ground, GroundKind};
pub use health_info::{Form, HealthInfo, OwnReading};
pub use hugepages::{HugePageSize, HugePages, HugePagesWhen};
pub use initramfs::Initramfs;
pub use irq_affinity::{IrqAffinity, IrqBalance};
pub use job::{AsyncStatus, JobMode};
pub use kdump::Kdump;
pub use keys::{AptKey, KeyPlace, RpmKey};
pub use kind::{Accepted, Alone, Class, Given, Kind, KindInfo, Mistake, ParamError, Reading};
pub use kubelet::Kubelet;
pub use kubernetes_node::{KubernetesNode, NodeTaint, TaintEffect};
pub use limits::{LimitLine, LimitType, Limits};
pub use machine::{
    Cron, CronState, CronTime, Hostname, HostnameStrategy, Modprobe, ModulePersistence, ModuleState, Mount,
    MountState,
};
pub use network_interface::{FecMode, NetworkInterface, PauseFrames};
pub use number::Number;
pub use nvidia_services::{Dcgm, FabricManager, NvidiaImex, RunState};
pub use package_hold::{HoldState, PackageHold};
pub use packages::{Apt, AptState, AptUpgrade, Dnf, ModuleStream, Package, PackageManager, PackageState};
pub use pci_settings::{AcsState, PciSettings};
pub use process::{Command, Raw, Script, Shell};
pub use rdma_link::{RdmaLayer, RdmaLink, RdmaTrust};
pub use repositories::{
    AptRepository, Deb822Repository, RepositoryState, SignedBy, SourceType, YumRepository,
};
pub use restart::DaemonRestart;
pub use selections::{DpkgSelections, PackageFacts, PackageStrategy, Selection, ServiceFacts};
pub use session::{Reboot, RebootWhen, WaitForConnection};
pub use slurm_node::{SlurmDetect, SlurmMemory, SlurmNode};
pub use smt::{Smt, SmtState};
pub use swap::{Swap, SwapState};
pub use system::{KernelCmdline, Service, ServiceScope, ServiceState, Sysctl, SysctlState};
pub use text::{BlockInFile, LineInFile, LineState, Replace};
pub use thp::{Khugepaged, Thp, ThpDefrag, ThpEnabled, ThpShmem};
pub use time_sync::{TimeDaemon, TimeSync};
pub use topology_info::TopologyInfo;
pub use transfer::{Fetch, GetUrl, Slurp, TempFile, TempState, Unarchive, Wanted};
pub use tuned::{Tuned, TunedState};
pub use unit_settings::{Presence, UnitSetting, UnitSettings, systemd_list, unit_limit};
pub use wait::{Pause, WaitFor, WaitState};

use crate::{
    health::HealthRequest,
    op::{
        Exec, FactsRequest, GpuGroup, GpuStatusRequest, JobStart, JobStatus, KeepState, KeptStatus, PutFile,
        PutTree, ReadPiece, Staying, System, UnpackArchive,
    },
    registry::registry,
};

registry! {
    kinds {
        gpu GpuPersistence;
        gpu GpuEcc;
        gpu GpuMig;
        gpu GpuPower;
        gpu GpuClocks;
        gpu GpuComputeMode;
        gpu GpuMps;
        gpu GpuAccounting;
        gpu GpuReset;
        gpu GpuConfidentialCompute;
        here GpuKeep;
        node GpuDriver(Box<GpuDriver>);
        node GpuDrainState(GpuDrainState);
        node Sysctl(Sysctl);
        node KernelCmdline(KernelCmdline);
        node Service(Service);
        node Package(Package);
        node Apt(Apt);
        node Dnf(Dnf);
        node AptRepository(AptRepository);
        node Deb822Repository(Box<Deb822Repository>);
        node AptKey(AptKey);
        node YumRepository(Box<YumRepository>);
        node RpmKey(RpmKey);
        node DpkgSelections(DpkgSelections);
        node PackageHold(PackageHold);
        node User(Box<User>);
        node Group(Group);
        node Cron(Box<Cron>);
        node Hostname(Hostname);
        node Modprobe(Modprobe);
        node KernelBlacklist(KernelBlacklist);
        node Initramfs(Initramfs);
        node Mount(Mount);
        node Thp(Thp);
        node HugePages(HugePages);
        node CpuFrequency(CpuFrequency);
        node CpuIdle(CpuIdle);
        node Smt(Smt);
        node IrqAffinity(IrqAffinity);
        node CpuIsolation(CpuIsolation);
        node UnitSettings(UnitSettings);
        node NetworkInterface(Box<NetworkInterface>);
        node RdmaLink(RdmaLink);
        node PciSettings(PciSettings);
        node Limits(Limits);
        node Swap(Swap);
        node Tuned(Tuned);
        node GpuDirect(GpuDirect);
        node DiskQueue(DiskQueue);
        node TimeSync(TimeSync);
        node Kdump(Kdump);
        node DockerDaemon(DockerDaemon);
        node ContainerToolkit(ContainerToolkit);
        node ContainerLimits(ContainerLimits);
        node FabricManager(FabricManager);
        node NvidiaImex(NvidiaImex);
        node Dcgm(Dcgm);
        node CudaCompat(CudaCompat);
        node SlurmNode(Box<SlurmNode>);
        node Kubelet(Kubelet);
        here KubernetesNode;
        node File(File);
        here Copy;
        here Template;
        node LineInFile(LineInFile);
        node BlockInFile(BlockInFile);
        node Replace(Replace);
        node GetUrl(GetUrl);
        here Unarchive;
        node TempFile(TempFile);
        node Stat(Stat);
        node Find(Find);
        node Slurp(Slurp);
        here Fetch;
        node WaitFor(WaitFor);
        here Setup;
        node PackageFacts(PackageFacts);
        node ServiceFacts(ServiceFacts);
        node Ping(Ping);
        node HealthInfo(HealthInfo);
        node TopologyInfo(TopologyInfo);
        here Command;
        here Shell;
        here Script;
        here Raw;
        here AsyncStatus;
        here Reboot;
        here WaitForConnection;
        here Pause;
        here Debug;
        here Assert;
        here Fail;
        here SetFact;
        here Meta;
        here IncludeTasks;
        here IncludeRole;
        here IncludeVars;
        here ValidateArgumentSpec;
    }
    hardware { GpuDriver, GpuDrainState }
        ground { Sysctl, KernelCmdline, PackageHold, Modprobe, Initramfs, HugePages, CpuFrequency, CpuIdle, Smt, NetworkInterface, RdmaLink, PciSettings, GpuDirect, DiskQueue, TimeSync, Kdump, IrqAffinity, UnitSettings, CpuIsolation, Limits, Swap, Tuned, SlurmNode, Kubelet, Thp, Mount, KernelBlacklist, DockerDaemon, ContainerToolkit, ContainerLimits, FabricManager, NvidiaImex, Dcgm, CudaCompat, GpuKeep, KubernetesNode }
    beside { GpuKeep, FabricManager, NvidiaImex, Dcgm, CudaCompat, ContainerToolkit, DockerDaemon, GpuDirect, PciSettings }
    operations {
        /// The GPU tasks of one group, with one desired state and one activation.
        GpuGroup(GpuGroup);
        /// `gpu_keep`, with what is kept.
        KeepState(KeepState);
        /// Reads what the node keeps, answered as `kept` in `OpOutcome::data`.
        KeptStatus(KeptStatus);
        /// Reads one piece of a file, for `fetch`.
        ReadPiece(ReadPiece);
        /// A tree of files and directories: `copy` of a directory.
        PutTree(PutTree);
        /// `copy` and `template`, their content resolved by the controller.
        PutFile(PutFile);
        Unarchive(UnpackArchive);
        /// `command`, `shell`, `script` and `raw`.
        Exec(Exec);
        /// Starts another operation as a job, or finds the job with this id. Answered at once with `ansible_job_id`; a
        /// repeated request with the same id never starts it twice.
        JobStart(JobStart);
        /// The state of a job; `data.finished` tells whether the outcome is that of its operation.
        JobStatus(JobStatus);
        /// Reads hardware and software facts.
        Facts(FactsRequest);
        /// Reads how busy the GPUs are and who holds them, answered as `gpu_status` in `OpOutcome::data`.
        GpuStatus(GpuStatusRequest);
        /// Checks whether anything works on the node, above all on its GPUs. An unknown state counts as busy.
        Idle(Staying);
        /// The health gate, answered in `OpOutcome::health`.
        Health(HealthRequest);
        /// The state of the operating system, answered in `OpOutcome::system`.
        System(System);
        /// Reboots the node; the answer comes before the connection ends.
        Reboot(crate::op::Reboot);
    }
}

/// Returns the kind with this name or alias.
pub fn find(name: &str) -> Option<&'static KindInfo> {
    let name = name.strip_prefix("ansible.legacy.").unwrap_or(name);
    KINDS.iter().find(|kind| kind.name == name || kind.aliases.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> =
            KINDS.iter().flat_map(|kind| kind.aliases.iter().chain([&kind.name])).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn unknown_parameters_are_refused() {
        for kind in KINDS.iter().filter(|kind| !kind.open_keys) {
            let refused = kind.parse(serde_json::json!({ "no_such_parameter": 1 }));
            assert!(refused.is_err(), "{} takes anything", kind.name);
        }
    }
}

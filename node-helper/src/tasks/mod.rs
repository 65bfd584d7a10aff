//! The kinds that do not use the GPUs, one file each, and their registry: one line for each kind in [`dispatch!`].

mod accounts;
mod blacklist;
mod blockinfile;
mod container_limits;
mod cpu_frequency;
mod cpu_idle;
mod cpu_isolation;
mod cron;
pub mod cuda_compat;
mod dcb;
mod disk_queue;
#[cfg(test)]
mod disturbing_tests;
pub mod docker;
pub mod download;
pub mod drain_state;
pub mod driver;
mod edits;
pub mod exec;
mod file;
pub mod geturl;
mod gpudirect;
mod host;
mod hostname;
mod hugepages;
mod images;
mod ini;
mod initramfs;
mod inventory;
mod irq_affinity;
mod kdump;
mod kernel_cmdline;
pub mod keys;
mod knobs;
pub mod kubelet;
mod layered;
mod limits;
mod lineinfile;
pub mod modprobe;
mod modprobe_d;
mod module_values;
pub mod mount;
mod nearest;
mod network_interface;
mod numa_memory;
mod nvidia;
mod own_unit;
mod ownership;
mod package_hold;
mod packages;
mod pci_settings;
mod putfile;
pub mod puttree;
mod rdma_link;
pub mod reading;
#[cfg(test)]
mod real;
pub mod reboot;
mod replace;
pub mod repositories;
mod selections;
mod service;
pub mod slurm;
mod smt;
mod started;
mod stat;
mod swap;
pub mod sysctl;
mod systemd;
pub mod tempfile;
#[cfg(test)]
pub mod testing;
mod textfile;
pub mod thp;
mod time_sync;
mod tmpfiles;
mod tool;
pub mod toolkit;
mod tuned;
pub mod unarchive;
mod unit_files;
mod unit_settings;
pub mod waiting;

/// Dispatches an operation: a declarative kind to its [`crate::declare::NodeKind`], any other to the arm given at the
/// call.
macro_rules! dispatch {
    ($op:expr, $declared:ident, { $($others:tt)* }) => {
        match $op {
            NodeOp::Apt(task) => $declared.run(task),
            NodeOp::AptKey(task) => $declared.run(task),
            NodeOp::AptRepository(task) => $declared.run(task),
            NodeOp::BlockInFile(task) => $declared.run(task),
            NodeOp::ContainerLimits(task) => $declared.run(task),
            NodeOp::CpuFrequency(task) => $declared.run(task),
            NodeOp::CpuIdle(task) => $declared.run(task),
            NodeOp::CpuIsolation(task) => $declared.run(task),
            NodeOp::Cron(task) => $declared.run(&**task),
            NodeOp::Dcgm(task) => $declared.run(task),
            NodeOp::Deb822Repository(task) => $declared.run(&**task),
            NodeOp::Dnf(task) => $declared.run(task),
            NodeOp::DiskQueue(task) => $declared.run(task),
            NodeOp::DockerDaemon(task) => $declared.run(task),
            NodeOp::DpkgSelections(task) => $declared.run(task),
            NodeOp::FabricManager(task) => $declared.run(task),
            NodeOp::File(task) => $declared.run(task),
            NodeOp::GpuDirect(task) => $declared.run(task),
            NodeOp::Group(task) => $declared.run(task),
            NodeOp::Hostname(task) => $declared.run(task),
            NodeOp::HugePages(task) => $declared.run(task),
            NodeOp::Initramfs(task) => $declared.run(task),
            NodeOp::Kdump(task) => $declared.run(task),
            NodeOp::IrqAffinity(task) => $declared.run(task),
            NodeOp::KernelBlacklist(task) => $declared.run(task),
            NodeOp::KernelCmdline(task) => $declared.run(task),
            NodeOp::Kubelet(task) => $declared.run(task),
            NodeOp::Limits(task) => $declared.run(task),
            NodeOp::LineInFile(task) => $declared.run(task),
            NodeOp::Modprobe(task) => $declared.run(task),
            NodeOp::Mount(task) => $declared.run(task),
            NodeOp::NetworkInterface(task) => $declared.run(&**task),
            NodeOp::NvidiaImex(task) => $declared.run(task),
            NodeOp::Package(task) => $declared.run(task),
            NodeOp::PackageHold(task) => $declared.run(task),
            NodeOp::PackageFacts(task) => $declared.run(task),
            NodeOp::PciSettings(task) => $declared.run(task),
            NodeOp::RdmaLink(task) => $declared.run(task),
            NodeOp::Replace(task) => $declared.run(task),
            NodeOp::RpmKey(task) => $declared.run(task),
            NodeOp::Service(task) => $declared.run(task),
            NodeOp::ServiceFacts(task) => $declared.run(task),
            NodeOp::Smt(task) => $declared.run(task),
            NodeOp::Stat(task) => $declared.run(task),
            NodeOp::Swap(task) => $declared.run(task),
            NodeOp::Sysctl(task) => $declared.run(task),
            NodeOp::Thp(task) => $declared.run(task),
            NodeOp::Tuned(task) => $declared.run(task),
            NodeOp::UnitSettings(task) => $declared.run(task),
            NodeOp::TimeSync(task) => $declared.run(task),
            NodeOp::User(task) => $declared.run(&**task),
            NodeOp::YumRepository(task) => $declared.run(&**task),
            $($others)*
        }
    };
}
pub(crate) use dispatch;

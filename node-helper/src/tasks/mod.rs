//! The kinds that do not use the GPUs, one file each, and their registry: one line for each kind in [`dispatch!`].

mod accounts;
mod blacklist;
mod blockinfile;
mod cron;
pub mod cuda_compat;
mod docker;
pub mod download;
pub mod driver;
mod edits;
pub mod exec;
mod file;
pub mod geturl;
mod hostname;
mod initramfs;
mod inventory;
mod kernel_cmdline;
pub mod keys;
mod lineinfile;
pub mod modprobe;
pub mod mount;
mod nearest;
mod nvidia;
mod ownership;
mod packages;
mod putfile;
pub mod puttree;
pub mod reading;
#[cfg(test)]
mod real;
pub mod reboot;
mod replace;
pub mod repositories;
mod selections;
mod service;
mod started;
mod stat;
mod sysctl;
pub mod tempfile;
#[cfg(test)]
pub mod testing;
mod textfile;
pub mod thp;
mod tool;
pub mod toolkit;
pub mod unarchive;
mod unit_files;
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
            NodeOp::Cron(task) => $declared.run(&**task),
            NodeOp::Dcgm(task) => $declared.run(task),
            NodeOp::Deb822Repository(task) => $declared.run(&**task),
            NodeOp::Dnf(task) => $declared.run(task),
            NodeOp::DockerDaemon(task) => $declared.run(task),
            NodeOp::DpkgSelections(task) => $declared.run(task),
            NodeOp::FabricManager(task) => $declared.run(task),
            NodeOp::File(task) => $declared.run(task),
            NodeOp::Group(task) => $declared.run(task),
            NodeOp::Hostname(task) => $declared.run(task),
            NodeOp::KernelBlacklist(task) => $declared.run(task),
            NodeOp::KernelCmdline(task) => $declared.run(task),
            NodeOp::LineInFile(task) => $declared.run(task),
            NodeOp::Modprobe(task) => $declared.run(task),
            NodeOp::Mount(task) => $declared.run(task),
            NodeOp::NvidiaImex(task) => $declared.run(task),
            NodeOp::Package(task) => $declared.run(task),
            NodeOp::PackageFacts(task) => $declared.run(task),
            NodeOp::Replace(task) => $declared.run(task),
            NodeOp::RpmKey(task) => $declared.run(task),
            NodeOp::Service(task) => $declared.run(task),
            NodeOp::ServiceFacts(task) => $declared.run(task),
            NodeOp::Stat(task) => $declared.run(task),
            NodeOp::Sysctl(task) => $declared.run(task),
            NodeOp::Thp(task) => $declared.run(task),
            NodeOp::User(task) => $declared.run(&**task),
            NodeOp::YumRepository(task) => $declared.run(&**task),
            $($others)*
        }
    };
}
pub(crate) use dispatch;

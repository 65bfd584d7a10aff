//! One file a kind that the helper runs without the GPUs.

pub mod exec;
mod file;
mod kernel_cmdline;
mod lineinfile;
mod nearest;
mod ownership;
mod putfile;
pub mod reboot;
mod service;
mod stat;
mod sysctl;
#[cfg(test)]
pub mod testing;

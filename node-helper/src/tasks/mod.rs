//! One file a kind that the helper runs without the GPUs.

pub mod exec;
mod kernel_cmdline;
mod nearest;
mod ownership;
mod putfile;
pub mod reboot;
mod sysctl;
#[cfg(test)]
pub mod testing;

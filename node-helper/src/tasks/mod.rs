//! One file a kind that the helper runs without the GPUs.

mod accounts;
mod cron;
pub mod exec;
mod file;
mod hostname;
mod kernel_cmdline;
mod lineinfile;
mod modprobe;
mod mount;
mod nearest;
mod ownership;
mod packages;
mod putfile;
#[cfg(test)]
mod real;
pub mod reboot;
mod service;
mod stat;
mod sysctl;
#[cfg(test)]
pub mod testing;
mod tool;

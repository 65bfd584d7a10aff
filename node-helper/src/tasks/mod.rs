//! One file a kind that the helper runs without the GPUs.

mod accounts;
mod cron;
pub mod exec;
mod file;
mod hostname;
mod blockinfile;
mod download;
pub mod geturl;
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
pub mod puttree;
pub mod reading;
pub mod reboot;
mod replace;
mod service;
mod stat;
mod sysctl;
pub mod tempfile;
#[cfg(test)]
pub mod testing;
mod tool;
mod textfile;
pub mod unarchive;
pub mod waiting;

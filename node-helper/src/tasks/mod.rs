//! One file a kind that the helper runs without the GPUs.

mod blockinfile;
mod download;
pub mod exec;
mod file;
pub mod geturl;
mod kernel_cmdline;
mod lineinfile;
mod nearest;
mod ownership;
mod putfile;
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
mod textfile;
pub mod unarchive;
pub mod waiting;

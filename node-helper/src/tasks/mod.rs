//! One file a kind that the helper runs without the GPUs.

mod accounts;
mod blockinfile;
mod cron;
mod download;
pub mod exec;
mod file;
pub mod geturl;
mod hostname;
mod initramfs;
mod kernel_cmdline;
mod lineinfile;
pub mod modprobe;
mod mount;
mod nearest;
mod ownership;
mod packages;
mod putfile;
pub mod puttree;
pub mod reading;
#[cfg(test)]
mod real;
pub mod reboot;
mod replace;
mod service;
mod stat;
mod sysctl;
pub mod tempfile;
#[cfg(test)]
pub mod testing;
mod textfile;
mod tool;
pub mod unarchive;
mod unit_files;
pub mod waiting;

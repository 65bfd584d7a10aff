//! The inside of a node: its files, its mounts, its first process, its SSH server, its units.

pub mod files;
pub mod first;
pub mod kmsg;
pub mod mounts;
pub mod processors;
pub mod ssh;
pub mod units;

//! Real systems for tests: what is started here runs on loopback, in a folder of its own, and ends with its value.

mod cluster;
mod login;
mod slurm_fleet;

pub use cluster::{Cluster, ClusterOptions, Drains};
pub use login::LoginNode;
pub use slurm_fleet::SlurmFleet;

//! Real systems for tests: everything started here runs on loopback or in namespaces, in its own folder, and ends
//! when its value is dropped.

mod browser;
mod cluster;
mod gpus;
mod login;
mod machines;
mod mirror;
mod network;
mod postgres;
mod power;
mod service;
mod slurm_fleet;

pub use browser::{Browser, sheets};
pub use cluster::{Cluster, ClusterOptions, Drains};
pub use gpus::{install_driver, install_gpus, unit};
pub use login::LoginNode;
pub use machines::{Machines, Release};
pub use mirror::Mirror;
pub use postgres::{PASSWORD, Postgres};
pub use service::Boot;
pub use slurm_fleet::SlurmFleet;

//! Real systems for tests: what is started here runs on loopback, in a folder of its own, and ends with its value.

mod cluster;

pub use cluster::{Cluster, ClusterOptions};

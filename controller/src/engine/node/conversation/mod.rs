//! What is said to a node and heard from it: connections, requests, jobs, files, facts, and the boot it is in.

mod arriving;
pub(super) mod boot;
pub(in crate::engine) mod delegates;
mod fetch;
mod job;
pub(super) mod loss;
mod request;
pub(super) mod silence;
pub(in crate::engine) mod ways;

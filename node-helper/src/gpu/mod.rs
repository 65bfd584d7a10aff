//! The GPUs of a node: facts, plans, changes, and whether anybody uses them.
//!
//! A pure core (`state`, `desired`, `mig`, `plan`, `after`) decides; `apply` carries out what was planned through the
//! `machine` trait, whose real side is `host` and the NVML process behind `worker`. Nothing here knows SSH, runs or
//! permits beyond the class that was allowed.

mod after;
mod apply;
mod blockers;
mod clients;
mod desired;
mod facts;
mod group;
mod host;
mod idle;
mod machine;
mod mig;
mod mps;
mod observe;
mod plan;
mod state;
mod wording;
pub(crate) mod worker;

pub use group::{Gpus, Settings};

#[cfg(test)]
pub mod sim;
#[cfg(test)]
mod tests;

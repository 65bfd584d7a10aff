//! The protocol between the controller and the node helper.
//!
//! Owns the frames, the messages, the registry of task kinds with their parameters and docs, and the types of changes
//! and outcomes. It is the only crate that both sides share; it does no I/O and must not know SSH or NVML.

pub mod change;
pub mod cmdline;
pub mod cpus;
pub mod disturbing;
pub mod facts;
pub mod frame;
pub mod glob;
pub mod health;
mod hex;
pub mod keep;
pub mod kubernetes;
pub mod lenient;
pub mod message;
pub mod mig;
pub mod nvml;
pub mod op;
pub mod operation;
pub mod pattern;
pub mod permit;
mod registry;
pub mod repository;
mod secret;
pub mod signal;
pub mod slurm;
pub mod status;
pub mod tasks;
pub mod topology;
mod unit;
pub mod xid;

pub use change::{Awaiting, Blocker, Certainty, Change, Disruption, Layer, Property, Subject};
pub use hex::{hex, unhex};
pub use message::{Envelope, FailureKind, OpOutcome, OpRequest, OpStatus, Reply, Request};
pub use op::NodeOp;
pub use permit::{Permit, RunEpoch};
pub use secret::looks_secret;
pub use unit::Unit;

/// Version of the messages; a controller and a helper work together only if theirs are equal.
pub const PROTOCOL_VERSION: u32 = 1;

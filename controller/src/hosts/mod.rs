//! The hosts of a run: what templates know of each before its first task, and how each is reached.
//!
//! Owns how connection variables of inventory, plays and `-e` come together. Must not know connections or what a task does;
//! nothing is contacted.

mod contexts;
mod error;
mod targets;
mod variables;

pub use contexts::{Contexts, KnownToAll, contexts};
pub use error::ReachError;
pub use targets::{Targets, Way, ways};

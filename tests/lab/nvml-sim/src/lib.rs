//! A stateful `libnvidia-ml.so.1` for GPUs that are not there.
//!
//! Two things share this crate. The pure part ([`state`], [`transitions`], [`placement`], [`fault`]) is the machine: what its
//! GPUs are, and what a setter, a reset, a driver reload or a reboot does to them. The C part (`ffi`) is that machine behind
//! NVML's own symbols, so that any program that loads the library through the dynamic loader works on it.
//!
//! Invariants: every process of one simulated machine shares one state file, changed only under its lock and replaced
//! atomically; every setter call is logged whatever it answers; a getter never changes anything.

pub mod fault;
pub mod holders;
pub mod model;
pub mod placement;
pub mod state;
pub mod store;
pub mod transitions;

mod ffi;

pub use ffi::suffer;

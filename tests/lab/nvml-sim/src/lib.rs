//! A stateful `libnvidia-ml.so.1` for simulated GPUs.
//!
//! This crate has two parts. The pure part ([`state`], [`transitions`], [`placement`], [`defect`], [`fault`]) is the machine: its
//! GPUs, and the effect of setters, resets, driver reloads and reboots on them. The C part (`ffi`) exports that
//! machine as NVML's symbols, so that any program that loads the library through the dynamic loader works on it.
//!
//! Invariants: all processes of one simulated machine share one state file, which is changed only under its lock and
//! replaced atomically; every setter call is logged, whatever it returns; a getter never changes anything.

pub mod defect;
pub mod fault;
pub mod holders;
pub mod model;
pub mod placement;
pub mod state;
pub mod store;
pub mod transitions;

mod ffi;

pub use ffi::suffer;

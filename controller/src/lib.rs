//! gpufleet brings every GPU node of a fleet to its declared state, in safe waves over SSH, and proves it.
//!
//! This library never prints and never reads `$HOME` or the environment: the binary hands such things in.
//! docs/architecture.md shows how the modules fit together.

pub mod display;
pub mod drain;
pub mod engine;
pub mod event;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod hosts;
pub mod index;
pub mod interpreter;
pub mod journal;
pub mod reference;
pub mod report;
pub mod rollout;
pub mod session;
pub mod settings;
pub mod signature;
pub mod transport;

pub use gpufleet_language::{
    diagnostic, inventory, lint, migration, names, playbook, sarif, template, vault, visible,
};

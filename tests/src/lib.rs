//! What the end-to-end tests share: the real `gpufleet` binary in a private home, fleets of the lab, and readers of what both
//! leave behind.
//!
//! Owns processes and folders of tests, and no expectation about gpufleet. Everything is started by path from the folder
//! that cargo builds into, runs on loopback, and ends with the value that stands for it.

mod binaries;
mod campaign;
mod document;
mod faults;
mod fleet;
mod gpufleet;
mod hostile;
mod jump_host;
mod lines;
mod schemas;

pub use binaries::binary;
pub use campaign::{Campaign, CampaignOptions, Kill, Outcome, Variant};
pub use document::{Document, Row};
pub use faults::{FAULTS, FaultCase, FaultResult};
pub use fleet::{Fleet, FleetOptions};
pub use gpufleet::{Command, Finished, Home, Running};
pub use hostile::HostileFleet;
pub use jump_host::JumpHost;
pub use lines::{Events, Outage};

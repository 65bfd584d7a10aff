//! Shared code of the end-to-end tests: the real `gpufleet` binary in a private home, fleets of the lab, and readers
//! of their records.
//!
//! Owns the processes and folders of tests, and makes no assumption about gpufleet. Programs are started from cargo's
//! build folder, run on loopback, and end when their value is dropped.

mod binaries;
mod campaign;
mod cluster;
mod document;
mod drivers;
mod faults;
mod fleet;
mod gpufleet;
mod hostile;
mod jump_host;
mod kubelet;
mod lines;
mod rpms;
mod schemas;

pub use binaries::binary;
pub use campaign::{Campaign, CampaignOptions, Kill, Outcome, Variant};
pub use cluster::Cluster;
pub use document::{Document, Row};
pub use drivers::{Driver, Drivers};
pub use faults::{FAULTS, FaultCase, FaultResult};
pub use fleet::{Fleet, FleetOptions};
pub use gpufleet::{Command, Finished, Home, Running};
pub use hostile::HostileFleet;
pub use jump_host::JumpHost;
pub use kubelet::{KUBELET_HEADER, install_kubelet};
pub use lines::{Events, Outage};
pub use rpms::Rpms;

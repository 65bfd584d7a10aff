//! MIG without a node at hand: which profiles GPUs have, which layouts fit, what files of mig-parted mean, and which GPUs
//! of a fleet should get which layout.
//!
//! Pure. A node's own driver decides what a run does: names and places differ between drivers, so that the table of
//! families is for what is drawn and checked offline, and never sent to a node. [`fleet_fit`] plans with the profiles that
//! each node's driver listed.

pub mod demand;
pub mod draw;
mod families;
pub mod fleet_fit;
mod layout;
pub mod parted;

pub use families::{Family, Quality, device_id, families, find, known};
pub use layout::{Counts, LayoutError, fit, items};

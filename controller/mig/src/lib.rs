//! MIG without a node at hand: which profiles GPUs have, which layouts fit, what files of mig-parted mean.
//!
//! Pure. A node's own driver decides what a run does: names and places differ between drivers, so that nothing here is sent
//! to a node. What is here draws, checks and plans offline.

pub mod draw;
mod families;
mod layout;
pub mod parted;

pub use families::{Family, Quality, device_id, families, find, known};
pub use layout::{Counts, LayoutError, fit, items};

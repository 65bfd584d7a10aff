//! Which CPUs and network cards belong to which GPU of a node: judged, drawn for a terminal and as SVG, and as the lines
//! that schedulers want.
//!
//! Pure: no I/O and no clock; a [`Topology`](gpufleet_protocol::topology::Topology) is all that it knows. Text of nodes
//! is made visible where it is drawn. Invariant: a place that nobody told is unknown, and no advice follows from it.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod advice;
mod document;
mod near;
mod svg;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod way;

pub use advice::{Advice, Weight, advice};
pub use document::{NodeDocument, document};
pub use near::{Card, Near, gres, near};
pub use svg::{Drawing, Rect, Text};
pub use text::{Tone, text};
pub use way::Way;

//! The helper that gpufleet runs on a node.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod deadline;
mod gpu;
mod os;
mod process;
mod state;

fn main() {}

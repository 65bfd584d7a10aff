//! The helper that gpufleet runs on a node.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod deadline;
mod declare;
mod gpu;
mod os;
mod process;
mod state;
mod tasks;
mod world;

fn main() {}

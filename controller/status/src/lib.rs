//! The GPUs of a fleet as a table: rows from readings of nodes, columns to choose from, text for a given width, and the
//! screen of `gpufleet status --watch`.
//!
//! Pure: no I/O and no clock. Text of nodes is made visible when a row is made, so that nothing behind it meets control
//! characters. Invariant: what was not read, or not lately, is `unknown` and never counts as free.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod column;
mod document;
mod gpu_columns;
mod line;
mod node_columns;
mod row;
mod screen;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod totals;

pub use column::{Cell, Chosen, Column, Key, NoColumn, Tone};
pub use document::{document, from_document};
pub use gpu_columns::GPU_COLUMNS;
pub use line::Line;
pub use node_columns::{NODE_COLUMNS, NodeRow};
pub use row::{Heard, NodeReading, Row, line, rows};
pub use screen::{Do, Screen, Wanted};
pub use state::{State, number};
pub use table::{Table, notes};
pub use totals::{FreeGpus, Totals, free_by_group};

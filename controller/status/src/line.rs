//! What a line of the table is: a GPU or a node.

use crate::{
    column::Column,
    gpu_columns::GPU_COLUMNS,
    node_columns::{NODE_COLUMNS, NodeRow},
    row::Row,
};

/// A line of the table, made from the rows of one node.
pub trait Line: Sized + 'static {
    const COLUMNS: &'static [Column<Self>];
    /// What a person calls several of them.
    const NOUN: &'static str;

    fn of(rows: &[Row]) -> Vec<Self>;

    /// Whether something can be placed there.
    fn has_room(&self) -> bool;

    /// Whether something is held there.
    fn is_held(&self) -> bool;
}

impl Line for Row {
    const COLUMNS: &'static [Column<Self>] = GPU_COLUMNS;
    const NOUN: &'static str = "GPUs";

    fn of(rows: &[Row]) -> Vec<Self> {
        rows.to_vec()
    }

    fn has_room(&self) -> bool {
        self.state.has_room()
    }

    fn is_held(&self) -> bool {
        self.state.is_held()
    }
}

impl Line for NodeRow {
    const COLUMNS: &'static [Column<Self>] = NODE_COLUMNS;
    const NOUN: &'static str = "nodes";

    fn of(rows: &[Row]) -> Vec<Self> {
        NodeRow::of(rows).into_iter().collect()
    }

    fn has_room(&self) -> bool {
        self.totals.free.is_any()
    }

    fn is_held(&self) -> bool {
        self.held > 0
    }
}

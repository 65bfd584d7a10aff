//! Indices: a number of one sort is never taken for one of another.
//!
//! They count from 0 and are written as plain numbers. A task has no index of its own: its path in the play identifies it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A play of the run, in the order of its playbooks, from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
#[schemars(inline)]
pub struct PlayIndex(pub u32);

impl PlayIndex {
    /// The index as a place in a list.
    pub const fn place(self) -> usize {
        self.0 as usize
    }
}

impl From<usize> for PlayIndex {
    /// A place in a list; no list of plays has more than `u32::MAX` entries.
    fn from(place: usize) -> Self {
        Self(u32::try_from(place).unwrap_or(u32::MAX))
    }
}

impl std::fmt::Display for PlayIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

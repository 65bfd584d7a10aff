//! What the node sets by itself at its next boot, so that a reboot does not lose it.
//!
//! Pure. [`crate::keep`] reads the document and judges it; here it is compared with what the GPUs have.

use std::collections::BTreeSet;

use gpufleet_protocol::{
    Change, Property,
    op::{GpuGroup, GpuMember},
};

use super::{
    desired::{Desired, merge},
    plan::settled,
    state::{Gpu, State},
};

/// What a boot would make of the state that the node keeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Kept {
    /// The node keeps none.
    #[default]
    Nothing,
    /// It sets this, if the node has exactly these GPUs.
    Sets { gpus: BTreeSet<String>, members: Vec<GpuMember> },
    /// It sets nothing: why.
    Refused(String),
    /// Whether it keeps anything is not known: why.
    Unknown(String),
}

/// What the next boot sets on the GPUs as they are.
#[derive(Debug, Default)]
pub struct NextBoot {
    pub desired: Desired,
    /// What it would change.
    changes: Vec<Change>,
    /// Why what the node keeps does not help.
    pub trouble: Option<String>,
}

impl NextBoot {
    pub fn of(state: &State) -> Self {
        let refused = |why: &str| {
            let trouble = format!("what the node keeps for its boots does not bring that back: {why}");
            Self { trouble: Some(trouble), ..Self::default() }
        };
        let (gpus, members) = match &state.kept {
            Kept::Nothing => return Self::default(),
            Kept::Refused(why) => return refused(why),
            Kept::Unknown(why) => return Self { trouble: Some(why.clone()), ..Self::default() },
            Kept::Sets { gpus, members } => (gpus, members),
        };
        // Drained ones are back after a boot, and unreadable ones may be.
        let hidden = state.drained.iter().map(|hidden| &hidden.gpu.uuid);
        let returning = state.returning.iter().map(|gpu| &gpu.uuid);
        let here: BTreeSet<&String> =
            state.gpus.iter().map(|gpu| &gpu.uuid).chain(hidden).chain(returning).collect();
        let same = here.iter().all(|uuid| gpus.contains(*uuid));
        if !same || here.len() + state.unreadable.len() < gpus.len() {
            return refused("it was signed for other GPUs than the node has");
        }
        let desired = merge(&GpuGroup { members: members.clone(), defer_to_reboot: false }, state);
        // A boot sets all of it or nothing.
        if let Some((_, why)) = desired.failure().or_else(|| desired.unknown()) {
            return refused(&why);
        }
        let changes = settled(state, &desired).changes.into_iter().map(|planned| planned.change).collect();
        Self { desired, changes, trouble: None }
    }

    /// Returns what it sets in place of what a GPU has.
    pub fn other(&self, gpu: &Gpu, property: &Property) -> Option<String> {
        let subject = gpu.subject();
        let is_it = |change: &&Change| change.subject == subject && change.property == *property;
        self.changes.iter().find(is_it).map(Change::to_text)
    }
}

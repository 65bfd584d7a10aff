//! What the node sets by itself at its next boot, so that a reboot does not lose it.
//!
//! Pure. [`crate::keep`] reads the document and judges it; here it is compared with what the GPUs have.

use std::collections::BTreeSet;

use gpufleet_protocol::{
    Change, Disruption, OpOutcome, Property,
    op::{GpuGroup, GpuMember},
};

use super::{
    after::{Event, after},
    desired::{Desired, merge},
    group::{Gpus, blocked, planned_outcome},
    plan::{forecast, settled},
    state::{Gpu, State},
    worker::NvmlError,
};
use crate::{deadline::Deadline, world::World};

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

/// The GPUs as a boot finds them.
#[derive(Debug)]
pub struct AtBoot(State);

impl AtBoot {
    /// Plans a group as an assertion does that may disturb so much.
    pub fn plan(&self, group: &GpuGroup, allowed: Disruption) -> OpOutcome {
        let forecast = forecast(&self.0, group, false);
        let blocked = blocked(group, &forecast.desired);
        let needs = Some(forecast.class).filter(|class| *class > allowed);
        planned_outcome(group, &forecast, blocked.as_ref(), needs)
    }
}

impl Gpus {
    /// Returns the GPUs as a boot would find them after what a prediction has assumed, or else after now.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn at_boot(
        &mut self,
        group: &GpuGroup,
        predicts: bool,
        deadline: &Deadline,
    ) -> Result<AtBoot, NvmlError> {
        let mut state = match predicts {
            true => self.predicted_state(deadline)?,
            false => self.observed(deadline)?.0,
        };
        self.release();
        self.look_up_users(&mut state, group, &World::real());
        Ok(AtBoot(after(state, &Event::Reboot)))
    }
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

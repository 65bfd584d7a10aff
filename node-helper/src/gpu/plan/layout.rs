//! MIG layouts: which instances are destroyed, which are created, and the text for it.
//!
//! Pure. Two layouts are equal if the same profiles are at the same places, each with one compute instance of its full
//! size.

use gpufleet_protocol::{
    Change, Disruption, Property,
    change::MigLayout,
    mig::{self, Slot},
    nvml::{MigProfile, Placement},
    tasks::MigStrategy,
};

use super::{Act, Stage};
use crate::gpu::{
    desired::{GpuWants, LayoutWant},
    state::{Gpu, Instance},
};

fn slot_of(instance: &Instance) -> Slot {
    Slot { placement: instance.placement, profile_id: instance.profile_id }
}

/// Formats the present layout like the declaration, with unusable instances marked.
fn present(gpu: &Gpu, by_place: bool) -> MigLayout {
    let profiles = gpu.profiles.as_deref().unwrap_or_default();
    let slots: Vec<Slot> = gpu.present().iter().map(slot_of).collect();
    let without_compute_instance =
        gpu.present().iter().filter(|instance| instance.computes.is_empty()).count();
    let with_partial_compute_instances = gpu
        .present()
        .iter()
        .filter(|instance| !instance.computes.is_empty() && !gpu.is_whole(instance))
        .count();
    MigLayout {
        without_compute_instance,
        with_partial_compute_instances,
        ..layout(profiles, &slots, by_place)
    }
}

fn layout(profiles: &[MigProfile], slots: &[Slot], by_place: bool) -> MigLayout {
    match by_place {
        true => mig::by_place(profiles, slots),
        false => mig::by_count(profiles, slots.iter().map(|slot| slot.profile_id)),
    }
}

/// Destroys all instances, because MIG is switched off.
pub(super) fn clear(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants) {
    let Some(want) = wants.mig.as_ref().filter(|_| !gpu.present().is_empty()) else { return };
    let (from, to) = (present(gpu, false), MigLayout::default());
    let change = Change::new(gpu.subject(), Property::MIG_LAYOUT, from, to, Disruption::Clients);
    let at = stage.change(want.member, change);
    for instance in gpu.present() {
        let act = Act::DestroyInstance { uuid: gpu.uuid.clone(), placement: instance.placement };
        stage.step(want.member, act, &[at]);
    }
}

/// Instances to destroy, to clear of compute instances, to create, and to give a compute instance.
struct Difference {
    destroy: Vec<Placement>,
    clear: Vec<Placement>,
    create: Vec<Slot>,
    compute: Vec<Placement>,
}

fn difference(gpu: &Gpu, want: &LayoutWant) -> Difference {
    let mut diff =
        Difference { destroy: Vec::new(), clear: Vec::new(), create: Vec::new(), compute: Vec::new() };
    for instance in gpu.present() {
        if !want.slots.contains(&slot_of(instance)) {
            diff.destroy.push(instance.placement);
        } else if instance.computes.is_empty() {
            diff.compute.push(instance.placement);
        } else if !gpu.is_whole(instance) {
            diff.clear.push(instance.placement);
            diff.compute.push(instance.placement);
        }
    }
    let is_there = |slot: &&Slot| gpu.present().iter().any(|instance| slot_of(instance) == **slot);
    diff.create = want.slots.iter().filter(|slot| !is_there(slot)).copied().collect();
    let differs = !(diff.destroy.is_empty() && diff.create.is_empty() && diff.clear.is_empty());
    if want.strategy == MigStrategy::Rebuild && differs {
        diff.destroy = gpu.present().iter().map(|instance| instance.placement).collect();
        diff.create = want.slots.clone();
        (diff.clear, diff.compute) = (Vec::new(), Vec::new());
    }
    diff
}

/// Changes the instances to the declared layout, and keeps those that are part of it.
pub(super) fn arrange(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants) {
    let Some(want) = &wants.layout else { return };
    let diff = difference(gpu, &want.value);
    if diff.destroy.is_empty() && diff.clear.is_empty() && diff.create.is_empty() && diff.compute.is_empty() {
        return;
    }
    let profiles = gpu.profiles.as_deref().unwrap_or_default();
    let to = layout(profiles, &want.value.slots, want.value.by_place);
    let destroys = !(diff.destroy.is_empty() && diff.clear.is_empty());
    let class = if destroys { Disruption::Clients } else { Disruption::Live };
    let from = present(gpu, want.value.by_place);
    let change = Change::new(gpu.subject(), Property::MIG_LAYOUT, from, to, class);
    let at = stage.change(want.member, change);
    let uuid = || gpu.uuid.clone();
    for placement in diff.destroy {
        stage.step(want.member, Act::DestroyInstance { uuid: uuid(), placement }, &[at]);
    }
    for placement in diff.clear {
        stage.step(want.member, Act::ClearInstance { uuid: uuid(), placement }, &[at]);
    }
    for slot in &diff.create {
        let act =
            Act::CreateInstance { uuid: uuid(), profile_id: slot.profile_id, placement: slot.placement };
        stage.step(want.member, act, &[at]);
    }
    for placement in diff.compute.into_iter().chain(diff.create.iter().map(|slot| slot.placement)) {
        stage.step(want.member, Act::CreateCompute { uuid: uuid(), placement }, &[at]);
    }
}

//! MIG layouts: which instances are destroyed, which are created, and the text for it.
//!
//! Pure. Two layouts are equal if the same profiles are at the same places, with compute instances of the same sizes.

use gpufleet_protocol::{
    Change, Disruption, Property,
    change::MigLayout,
    mig::{self, Filled, Inner},
    nvml::Placement,
    tasks::MigStrategy,
};

use super::{Act, Stage};
use crate::gpu::{
    desired::{GpuWants, LayoutWant},
    state::Gpu,
};

/// Formats the present layout like the declaration, with unusable instances marked.
fn present(gpu: &Gpu, by_place: bool) -> MigLayout {
    let without_compute_instance =
        gpu.present().iter().filter(|instance| instance.computes.is_empty()).count();
    MigLayout { without_compute_instance, ..layout(gpu, &gpu.filled(), by_place) }
}

fn layout(gpu: &Gpu, filled: &[Filled], by_place: bool) -> MigLayout {
    let profiles = gpu.profiles.as_deref().unwrap_or_default();
    if by_place {
        return mig::by_place(profiles, filled);
    }
    let devices = filled.iter().flat_map(|one| {
        let id = one.slot.profile_id;
        let empty = one.computes.is_empty().then_some((id, None));
        one.computes.iter().map(move |inner| (id, Some(inner.size))).chain(empty)
    });
    mig::by_count(profiles, devices)
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

/// Instances to destroy and to create.
#[derive(Default)]
struct Difference {
    destroy: Vec<Placement>,
    destroy_compute: Vec<(Placement, Inner)>,
    create: Vec<Filled>,
    create_compute: Vec<(Placement, Inner)>,
}

fn difference(gpu: &Gpu, want: &LayoutWant) -> Difference {
    let mut diff = Difference::default();
    let present = gpu.filled();
    for there in &present {
        let placement = there.slot.placement;
        let Some(wanted) = want.filled.iter().find(|one| one.slot == there.slot) else {
            diff.destroy.push(placement);
            continue;
        };
        let lacks = |of: &Filled, inner: &&Inner| !of.computes.contains(inner);
        let gone = there.computes.iter().filter(|inner| lacks(wanted, inner));
        diff.destroy_compute.extend(gone.map(|inner| (placement, *inner)));
        let new = wanted.computes.iter().filter(|inner| lacks(there, inner));
        diff.create_compute.extend(new.map(|inner| (placement, *inner)));
    }
    let is_there = |one: &&Filled| present.iter().any(|there| there.slot == one.slot);
    diff.create = want.filled.iter().filter(|one| !is_there(one)).cloned().collect();
    let differs = !(diff.destroy.is_empty() && diff.create.is_empty() && diff.destroy_compute.is_empty());
    if want.strategy == MigStrategy::Rebuild && differs {
        return Difference {
            destroy: present.iter().map(|there| there.slot.placement).collect(),
            create: want.filled.clone(),
            ..Difference::default()
        };
    }
    diff
}

/// Changes the instances to the declared layout, and keeps those that are part of it.
pub(super) fn arrange(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants) {
    let Some(want) = &wants.layout else { return };
    let diff = difference(gpu, &want.value);
    let destroys = !(diff.destroy.is_empty() && diff.destroy_compute.is_empty());
    if !destroys && diff.create.is_empty() && diff.create_compute.is_empty() {
        return;
    }
    let to = layout(gpu, &want.value.filled, want.value.by_place);
    let class = if destroys { Disruption::Clients } else { Disruption::Live };
    let from = present(gpu, want.value.by_place);
    let change = Change::new(gpu.subject(), Property::MIG_LAYOUT, from, to, class);
    let at = stage.change(want.member, change);
    let uuid = || gpu.uuid.clone();
    for placement in diff.destroy {
        stage.step(want.member, Act::DestroyInstance { uuid: uuid(), placement }, &[at]);
    }
    for (placement, inner) in diff.destroy_compute {
        stage.step(want.member, Act::DestroyCompute { uuid: uuid(), placement, inner }, &[at]);
    }
    for one in &diff.create {
        let (profile_id, placement) = (one.slot.profile_id, one.slot.placement);
        stage.step(want.member, Act::CreateInstance { uuid: uuid(), profile_id, placement }, &[at]);
    }
    let inside = diff.create.iter().flat_map(|one| {
        let placement = one.slot.placement;
        one.computes.iter().map(move |inner| (placement, *inner))
    });
    for (placement, inner) in diff.create_compute.into_iter().chain(inside) {
        stage.step(want.member, Act::CreateCompute { uuid: uuid(), placement, inner }, &[at]);
    }
}

//! The placement rules of MIG for GPU instances on one GPU. Pure.
//!
//! A layout is valid if every instance is on a placement of its profile, no memory ranges overlap, the compute slices
//! suffice, no profile exceeds its count, and at most one instance has the media engines.

use crate::model::{Model, Profile};
use crate::state::{ComputeInstance, GpuInstance};

/// Whether `profile` may be created at `start` beside existing instances.
pub fn fits(model: &Model, present: &[GpuInstance], profile: &Profile, start: u32) -> bool {
    if !profile.starts.contains(&start) {
        return false;
    }
    let end = start + profile.size;
    if present.iter().any(|other| start < other.start + other.size && other.start < end) {
        return false;
    }
    let mut slices = profile.slices;
    let mut same = 1;
    for other in present.iter().filter_map(|instance| model.profile_by_id(instance.profile_id)) {
        slices += other.slices;
        same += u32::from(other.id == profile.id);
        if other.has_media() && profile.has_media() {
            return false;
        }
    }
    slices <= model.compute_slices && same <= profile.max_count
}

/// Returns where the driver places an instance by default: the highest free place.
///
/// This order reproduces the MIG guide's example in which the profiles 19, 19, 14, 9 fail in that order and fit when 9 is
/// created first.
pub fn default_start(model: &Model, present: &[GpuInstance], profile: &Profile) -> Option<u32> {
    profile.starts.iter().copied().filter(|start| fits(model, present, profile, *start)).max()
}

/// Returns how many more instances of `profile` fit beside existing ones.
pub fn remaining(model: &Model, present: &[GpuInstance], profile: &Profile) -> u32 {
    let mut layout = present.to_vec();
    let mut count = 0;
    while let Some(start) = default_start(model, &layout, profile) {
        layout.push(new_instance(profile, start));
        count += 1;
    }
    count
}

/// Creates an instance of `profile` at `start`. Its id follows from its place, as on real devices.
pub fn new_instance(profile: &Profile, start: u32) -> GpuInstance {
    let id = match profile.size {
        8 => 0,
        4 => 1 + start / 4,
        2 => 3 + start / 2,
        _ => 7 + start,
    };
    GpuInstance { id, profile_id: profile.id, start, size: profile.size, compute_instances: Vec::new() }
}

/// Returns the compute slices of the compute instance profile with this index; `None` if it has none.
pub fn compute_profile_slices(index: u32) -> Option<u32> {
    match index {
        0 => Some(1),
        1 => Some(2),
        2 => Some(3),
        3 => Some(4),
        4 => Some(7),
        _ => None,
    }
}

/// Returns the places where a compute instance of `size` slices may start inside a GPU instance of `slices`: three slices
/// stand where four would, as with GPU instances.
pub fn compute_starts(slices: u32, size: u32) -> Vec<u32> {
    if size == 0 || size > slices {
        return Vec::new();
    }
    (0..=slices - size).step_by(size.next_power_of_two() as usize).collect()
}

/// Whether a compute instance of `size` slices may start at `start` beside existing ones.
pub fn compute_fits(slices: u32, present: &[ComputeInstance], size: u32, start: u32) -> bool {
    compute_starts(slices, size).contains(&start)
        && !present.iter().any(|other| start < other.start + other.size && other.start < start + size)
}

/// Returns the lowest free place of a compute instance of `size` slices.
pub fn default_compute_start(slices: u32, present: &[ComputeInstance], size: u32) -> Option<u32> {
    compute_starts(slices, size).into_iter().find(|start| compute_fits(slices, present, size, *start))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::ModelKey;

    fn create(model: &Model, layout: &mut Vec<GpuInstance>, id: u32) -> bool {
        let profile = model.profile_by_id(id).unwrap();
        match default_start(model, layout, profile) {
            Some(start) => {
                layout.push(new_instance(profile, start));
                true
            }
            None => false,
        }
    }

    #[test]
    fn the_order_of_creation_matters_as_in_the_guide() {
        let model = ModelKey::A100.model();
        let mut layout = Vec::new();
        assert_eq!([19, 19, 14, 9].map(|id| create(model, &mut layout, id)), [true, true, true, false]);
        let mut layout = Vec::new();
        assert_eq!([9, 14, 19, 19].map(|id| create(model, &mut layout, id)), [true; 4]);
    }

    #[test]
    fn capacity_of_an_empty_gpu_is_the_count_of_the_profile() {
        for key in ModelKey::ALL {
            let model = key.model();
            for profile in &model.profiles {
                assert_eq!(remaining(model, &[], profile), profile.max_count, "{key} {}", profile.name);
            }
        }
    }

    #[test]
    fn a_second_media_instance_does_not_fit() {
        let model = ModelKey::H100.model();
        let mut layout = Vec::new();
        assert!(create(model, &mut layout, 20));
        assert!(!create(model, &mut layout, 20));
        assert!(create(model, &mut layout, 19));
    }

    #[test]
    fn compute_instances_fill_a_gpu_instance() {
        assert_eq!(compute_starts(3, 1), [0, 1, 2]);
        assert_eq!(compute_starts(3, 2), [0]);
        assert_eq!(compute_starts(7, 7), [0]);
        assert_eq!(compute_starts(7, 3), [0, 4]);
        assert!(compute_starts(1, 2).is_empty());
    }

    proptest! {
        #[test]
        fn whatever_is_created_stays_valid(ids in proptest::collection::vec(0usize..7, 0..12), drop in proptest::collection::vec(0usize..12, 0..4)) {
            let model = ModelKey::H200.model();
            let mut layout: Vec<GpuInstance> = Vec::new();
            for (step, index) in ids.iter().enumerate() {
                let profile = &model.profiles[*index];
                let before = remaining(model, &layout, profile);
                let created = create(model, &mut layout, profile.id);
                prop_assert_eq!(created, before > 0);
                if created {
                    prop_assert_eq!(remaining(model, &layout, profile) < before, true);
                }
                if drop.contains(&step) && !layout.is_empty() {
                    layout.remove(0);
                }
                let mut taken = [false; 8];
                for instance in &layout {
                    for slot in instance.start..instance.start + instance.size {
                        prop_assert!(!taken[slot as usize], "two instances on slot {}", slot);
                        taken[slot as usize] = true;
                    }
                }
                let slices: u32 = layout.iter().map(|i| model.profile_by_id(i.profile_id).unwrap().slices).sum();
                prop_assert!(slices <= model.compute_slices);
                let mut ids: Vec<u32> = layout.iter().map(|i| i.id).collect();
                ids.sort_unstable();
                ids.dedup();
                prop_assert_eq!(ids.len(), layout.len(), "instance ids are unique");
            }
        }
    }
}

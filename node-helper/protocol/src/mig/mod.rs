//! Places GPU instances and the compute instances in them: an exact search over the placements that the device lists.
//!
//! Pure, and shared: the helper solves for a node's own GPUs, the controller for GPUs that are not there. It has no tables of
//! products; grids have at most a few dozen slices. Rules: an instance has one of its
//! profile's placements, no two overlap, no profile exceeds its count, there is one `+me` for each GPU, and `+me.all`
//! excludes everything but `-me` profiles (nvml.h). Compute instances share a GPU instance until it is full. Of all
//! layouts that fit, the search takes one that keeps most of the present compute instances, of those one that keeps most
//! of the present GPU instances, of those one with the fewest, and of those the one with the lowest places.

mod compute;
mod search;

use crate::{
    change::{MigInstances, MigLayout},
    nvml::{MigProfile, Placement},
};

pub use compute::{Inner, compute_sizes, compute_starts};

/// A declared instance, with or without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    pub profile_id: u32,
    pub start: Option<u32>,
}

/// An instance of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub placement: Placement,
    pub profile_id: u32,
}

/// A declared compute instance: of `slices` slices, in a GPU instance of a profile that starts at `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    pub profile_id: u32,
    pub slices: u32,
    pub start: Option<u32>,
}

/// A GPU instance, and the compute instances in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Filled {
    pub slot: Slot,
    pub computes: Vec<Inner>,
}

/// Why a layout is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigError {
    #[error("there is no MIG profile `{name}`; the GPU has {known}")]
    UnknownProfile { name: String, known: String },
    #[error("`{name}` cannot start at slice {start}; it can at {starts}")]
    NoSuchPlace { name: String, start: u32, starts: String },
    #[error("{wanted} do not fit together; {fitting} would")]
    DoesNotFit { wanted: String, fitting: String },
    #[error("the placements of `{name}` cannot be read: {why}")]
    Unreadable { name: String, why: String },
}

/// Finds a profile by name, with or without `MIG `.
///
/// # Errors
/// [`MigError::UnknownProfile`] with the known names.
pub fn find<'a>(profiles: &'a [MigProfile], name: &str) -> Result<&'a MigProfile, MigError> {
    let wanted = name.trim();
    let wanted = wanted.strip_prefix("MIG ").unwrap_or(wanted);
    profiles.iter().find(|profile| profile.name.eq_ignore_ascii_case(wanted)).ok_or_else(|| {
        let known: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        MigError::UnknownProfile { name: name.to_owned(), known: known.join(", ") }
    })
}

/// Splits `1c.3g.40gb` into the slices of the compute instance and the profile of the GPU instance.
pub fn split(name: &str) -> (Option<u32>, &str) {
    let compute = name.split_once('.').and_then(|(compute, rest)| {
        let slices = compute.strip_suffix('c')?.parse().ok()?;
        Some((slices, rest))
    });
    compute.map_or((None, name), |(slices, rest)| (Some(slices), rest))
}

/// Finds what a name stands for: the profile of the GPU instance, and the slices of the compute instance in it.
///
/// # Errors
/// [`MigError::UnknownProfile`] with the known names.
pub fn device<'a>(profiles: &'a [MigProfile], name: &str) -> Result<(&'a MigProfile, u32), MigError> {
    let wanted = name.trim();
    let (compute, base) = split(wanted.strip_prefix("MIG ").unwrap_or(wanted));
    let Some(compute) = compute else { return find(profiles, name).map(|profile| (profile, profile.slices)) };
    let profile = find(profiles, base)?;
    let sizes = compute_sizes(profile.slices);
    if compute == profile.slices || compute < profile.slices && sizes.contains(&compute) {
        return Ok((profile, compute));
    }
    let known =
        sizes.iter().filter(|size| **size < profile.slices).map(|size| format!("{size}c.{}", profile.name));
    let known: Vec<String> = known.chain([profile.name.clone()]).collect();
    Err(MigError::UnknownProfile { name: name.to_owned(), known: known.join(", ") })
}

/// Instances by profile, largest first: `2x 3g.40gb + 3x 1c.2g.20gb`. Each is the profile of a GPU instance and the
/// slices of a compute instance in it; no slices stand for a GPU instance without one.
pub fn by_count(profiles: &[MigProfile], devices: impl IntoIterator<Item = (u32, Option<u32>)>) -> MigLayout {
    let mut counts: Vec<((u32, Option<u32>), usize)> = Vec::new();
    for device in devices {
        match counts.iter_mut().find(|(known, _)| *known == device) {
            Some((_, count)) => *count += 1,
            None => counts.push((device, 1)),
        }
    }
    counts.sort_by_key(|((id, slices), _)| (rank(profiles, *id), std::cmp::Reverse(*slices)));
    let mut instances: Vec<MigInstances> = Vec::new();
    for ((id, slices), count) in counts {
        let profile = name_of(profiles, id, slices);
        // A GPU instance without a compute instance has the name of a whole one.
        match instances.iter_mut().find(|known| known.profile == profile) {
            Some(known) => known.count += count,
            None => instances.push(MigInstances { profile, count, start: None }),
        }
    }
    MigLayout { instances, ..MigLayout::default() }
}

/// Instances by place: `3g.40gb at 0 + 3x 1c.3g.40gb at 4`.
pub fn by_place(profiles: &[MigProfile], filled: &[Filled]) -> MigLayout {
    let mut filled: Vec<&Filled> = filled.iter().collect();
    filled.sort_unstable();
    let mut instances = Vec::new();
    for one in filled {
        let id = one.slot.profile_id;
        let devices: Vec<(u32, Option<u32>)> = match one.computes.as_slice() {
            [] => vec![(id, None)],
            computes => computes.iter().map(|inner| (id, Some(inner.size))).collect(),
        };
        let start = Some(one.slot.placement.start);
        instances.extend(
            by_count(profiles, devices).instances.into_iter().map(|one| MigInstances { start, ..one }),
        );
    }
    MigLayout { instances, ..MigLayout::default() }
}

fn name_of(profiles: &[MigProfile], id: u32, slices: Option<u32>) -> String {
    let Some(profile) = profiles.iter().find(|profile| profile.id == id) else {
        return format!("profile {id}");
    };
    match slices.filter(|slices| *slices != profile.slices) {
        Some(slices) => format!("{slices}c.{}", profile.name),
        None => profile.name.clone(),
    }
}

/// Sort key: large before small, then by name.
fn rank(profiles: &[MigProfile], id: u32) -> (std::cmp::Reverse<(u32, u32)>, String) {
    let profile = profiles.iter().find(|profile| profile.id == id);
    let size = profile.and_then(|p| p.placements.as_ref().ok()?.first().map(|place| place.size)).unwrap_or(0);
    let slices = profile.map_or(0, |p| p.slices);
    (std::cmp::Reverse((slices, size)), name_of(profiles, id, None))
}

fn mask(placement: Placement) -> u128 {
    let ones = 1u128.checked_shl(placement.size).map_or(u128::MAX, |bit| bit - 1);
    ones.checked_shl(placement.start).unwrap_or(u128::MAX)
}

/// Returns a layout of exactly these GPU instances, each with one compute instance of its full size, by place.
///
/// # Errors
/// If there is no such layout, with what would fit.
pub fn solve(profiles: &[MigProfile], items: &[Item], present: &[Slot]) -> Result<Vec<Slot>, MigError> {
    let slices = |id: u32| profiles.iter().find(|profile| profile.id == id).map_or(1, |p| p.slices);
    let devices: Vec<Device> = items
        .iter()
        .map(|item| Device {
            profile_id: item.profile_id,
            slices: slices(item.profile_id),
            start: item.start,
        })
        .collect();
    let present: Vec<Filled> = present
        .iter()
        .map(|slot| Filled { slot: *slot, computes: vec![Inner { start: 0, size: slices(slot.profile_id) }] })
        .collect();
    let filled = arrange(profiles, &devices, &present)?;
    Ok(filled.into_iter().map(|one| one.slot).collect())
}

/// Returns a layout of exactly these compute instances, by place. What is present and stays has its very place.
///
/// # Errors
/// If there is no such layout, with what would fit.
pub fn arrange(
    profiles: &[MigProfile],
    devices: &[Device],
    present: &[Filled],
) -> Result<Vec<Filled>, MigError> {
    // No GPU has more slices than a mask has bits, so more instances cannot fit.
    if devices.len() <= 64
        && let Some(filled) = search::search(profiles, devices, present)?
    {
        return Ok(filled);
    }
    let wanted = by_count(profiles, devices.iter().map(|one| (one.profile_id, Some(one.slices)))).to_string();
    Err(MigError::DoesNotFit { wanted, fitting: largest_fitting(profiles, devices) })
}

/// Returns the part of the devices that fills most slices.
fn largest_fitting(profiles: &[MigProfile], devices: &[Device]) -> String {
    let mut kinds: Vec<((u32, u32), usize)> = Vec::new();
    for one in devices {
        let kind = (one.profile_id, one.slices);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count = (*count + 1).min(16),
            None => kinds.push((kind, 1)),
        }
    }
    // Thousandths of memory slices.
    let size = |(id, part): (u32, u32)| {
        let profile = profiles.iter().find(|profile| profile.id == id);
        let found = profile.and_then(|p| Some((p.placements.as_ref().ok()?.first()?.size, p.slices)));
        let (memory, slices) = found.unwrap_or((0, 1));
        u64::from(memory) * 1000 * u64::from(part) / u64::from(slices.max(1))
    };
    let mut best: Option<(u64, Vec<Device>)> = None;
    let mut counts = vec![0usize; kinds.len()];
    for _ in 0..20_000 {
        let chosen: Vec<Device> = kinds
            .iter()
            .zip(&counts)
            .flat_map(|(((profile_id, slices), _), count)| {
                std::iter::repeat_n(Device { profile_id: *profile_id, slices: *slices, start: None }, *count)
            })
            .collect();
        let filled: u64 = chosen.iter().map(|one| size((one.profile_id, one.slices))).sum();
        if best.as_ref().is_none_or(|(most, _)| filled > *most)
            && filled <= 128_000
            && matches!(search::search(profiles, &chosen, &[]), Ok(Some(_)))
        {
            best = Some((filled, chosen));
        }
        // Counts up like a number whose digits have the declared counts as their maximum.
        let Some(digit) = counts.iter().zip(&kinds).position(|(count, (_, most))| count < most) else {
            break;
        };
        for (place, count) in counts.iter_mut().enumerate() {
            match place.cmp(&digit) {
                std::cmp::Ordering::Less => *count = 0,
                std::cmp::Ordering::Equal => *count += 1,
                std::cmp::Ordering::Greater => {}
            }
        }
    }
    let fitting = best.map(|(_, chosen)| chosen).unwrap_or_default();
    by_count(profiles, fitting.iter().map(|one| (one.profile_id, Some(one.slices)))).to_string()
}

#[cfg(test)]
mod tests;

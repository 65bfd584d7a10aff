//! Places GPU instances: an exact search over the placements that the device lists.
//!
//! Pure, and shared: the helper solves for a node's own GPUs, the controller for GPUs that are not there. It has no tables of
//! products; grids have at most a few dozen slices. Rules: an instance has one of its
//! profile's placements, no two overlap, no profile exceeds its count, there is one `+me` for each GPU, and `+me.all`
//! excludes everything but `-me` profiles (nvml.h). Of all layouts that fit, the search takes one that keeps most of
//! the present instances, and of those the one with the lowest places.

use crate::{
    change::{MigInstances, MigLayout},
    nvml::{MigProfile, Placement},
};

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

/// Instances by profile, largest first: `2x 3g.40gb + 1x 1g.10gb`.
pub fn by_count(profiles: &[MigProfile], ids: impl IntoIterator<Item = u32>) -> MigLayout {
    let mut counts: Vec<(u32, usize)> = Vec::new();
    for id in ids {
        match counts.iter_mut().find(|(known, _)| *known == id) {
            Some((_, count)) => *count += 1,
            None => counts.push((id, 1)),
        }
    }
    counts.sort_by_key(|(id, _)| rank(profiles, *id));
    let instances = counts.into_iter().map(|(id, count)| MigInstances {
        profile: name_of(profiles, id),
        count,
        start: None,
    });
    MigLayout { instances: instances.collect(), ..MigLayout::default() }
}

/// Instances by place: `3g.40gb at 0 + 3g.40gb at 4`.
pub fn by_place(profiles: &[MigProfile], slots: &[Slot]) -> MigLayout {
    let mut slots = slots.to_vec();
    slots.sort_unstable();
    let instances = slots.iter().map(|slot| MigInstances {
        profile: name_of(profiles, slot.profile_id),
        count: 1,
        start: Some(slot.placement.start),
    });
    MigLayout { instances: instances.collect(), ..MigLayout::default() }
}

fn name_of(profiles: &[MigProfile], id: u32) -> String {
    profiles
        .iter()
        .find(|profile| profile.id == id)
        .map_or_else(|| format!("profile {id}"), |p| p.name.clone())
}

/// Sort key: large before small, then by name.
fn rank(profiles: &[MigProfile], id: u32) -> (std::cmp::Reverse<(u32, u32)>, String) {
    let profile = profiles.iter().find(|profile| profile.id == id);
    let size = profile.and_then(|p| p.placements.as_ref().ok()?.first().map(|place| place.size)).unwrap_or(0);
    let slices = profile.map_or(0, |p| p.slices);
    (std::cmp::Reverse((slices, size)), name_of(profiles, id))
}

/// One item and its possible places, in order of their start.
struct Choice {
    item: Item,
    places: Vec<Placement>,
}

struct Search<'a> {
    choices: Vec<Choice>,
    present: &'a [Slot],
    best: Option<(usize, Vec<Slot>)>,
}

impl Search<'_> {
    fn step(&mut self, at: usize, used: u128, kept: usize, taken: &mut Vec<Slot>) {
        // At best, all remaining items keep a present instance.
        let left = self.choices.len() - at;
        if self.best.as_ref().is_some_and(|(most, _)| kept + left <= *most) {
            return;
        }
        let Some(choice) = self.choices.get(at) else {
            self.best = Some((kept, taken.clone()));
            return;
        };
        let (item, places) = (choice.item, choice.places.clone());
        // Equal items are placed in ascending order, so that no arrangement is tried twice.
        let after = match (at.checked_sub(1).and_then(|before| self.choices.get(before)), taken.last()) {
            (Some(before), Some(slot)) if before.item == item && item.start.is_none() => {
                Some(slot.placement.start)
            }
            _ => None,
        };
        for placement in places {
            let mask = mask(placement);
            if used & mask != 0 || after.is_some_and(|start| placement.start <= start) {
                continue;
            }
            let slot = Slot { placement, profile_id: item.profile_id };
            taken.push(slot);
            self.step(at + 1, used | mask, kept + usize::from(self.present.contains(&slot)), taken);
            taken.pop();
        }
    }
}

fn mask(placement: Placement) -> u128 {
    let ones = 1u128.checked_shl(placement.size).map_or(u128::MAX, |bit| bit - 1);
    ones.checked_shl(placement.start).unwrap_or(u128::MAX)
}

/// Whether counts and media engines allow these profiles together.
fn counts_allow(profiles: &[MigProfile], items: &[Item]) -> bool {
    let names: Vec<&str> = items
        .iter()
        .filter_map(|item| profiles.iter().find(|profile| profile.id == item.profile_id))
        .map(|profile| profile.name.as_str())
        .collect();
    let all_media = names.iter().filter(|name| name.ends_with("+me.all")).count();
    let media = names.iter().filter(|name| name.ends_with("+me")).count();
    let others = names.iter().filter(|name| !name.ends_with("+me.all") && !name.ends_with("-me")).count();
    let within = profiles.iter().all(|profile| {
        items.iter().filter(|item| item.profile_id == profile.id).count() <= profile.max_count as usize
    });
    within && media <= 1 && all_media <= 1 && (all_media == 0 || others == 0)
}

fn search(profiles: &[MigProfile], items: &[Item], present: &[Slot]) -> Result<Option<Vec<Slot>>, MigError> {
    if !counts_allow(profiles, items) {
        return Ok(None);
    }
    let mut choices = Vec::new();
    for item in items {
        let Some(profile) = profiles.iter().find(|profile| profile.id == item.profile_id) else {
            return Ok(None);
        };
        let mut places = profile
            .placements
            .clone()
            .map_err(|code| MigError::Unreadable { name: profile.name.clone(), why: code.to_string() })?;
        places.sort_unstable();
        if let Some(start) = item.start {
            let starts: Vec<String> = places.iter().map(|place| place.start.to_string()).collect();
            places.retain(|place| place.start == start);
            if places.is_empty() {
                let (name, starts) = (profile.name.clone(), starts.join(", "));
                return Err(MigError::NoSuchPlace { name, start, starts });
            }
        }
        choices.push(Choice { item: *item, places });
    }
    // The most constrained item first, which finds contradictions early; equal items must be neighbours.
    choices.sort_by_key(|choice| {
        let size = choice.places.first().map_or(0, |place| place.size);
        (choice.item.start.is_none(), std::cmp::Reverse(size), choice.item)
    });
    let mut search = Search { choices, present, best: None };
    search.step(0, 0, 0, &mut Vec::new());
    Ok(search.best.map(|(_, mut slots)| {
        slots.sort_unstable();
        slots
    }))
}

/// Returns a layout of exactly these items, by place.
///
/// # Errors
/// If there is no such layout, with what would fit.
pub fn solve(profiles: &[MigProfile], items: &[Item], present: &[Slot]) -> Result<Vec<Slot>, MigError> {
    // No GPU has more slices than a mask has bits, so more items cannot fit.
    if items.len() <= 64
        && let Some(slots) = search(profiles, items, present)?
    {
        return Ok(slots);
    }
    let wanted = by_count(profiles, items.iter().map(|item| item.profile_id)).to_string();
    Err(MigError::DoesNotFit { wanted, fitting: largest_fitting(profiles, items) })
}

/// Returns the part of the items that fills most slices.
fn largest_fitting(profiles: &[MigProfile], items: &[Item]) -> String {
    let mut kinds: Vec<(u32, usize)> = Vec::new();
    for item in items {
        match kinds.iter_mut().find(|(id, _)| *id == item.profile_id) {
            Some((_, count)) => *count = (*count + 1).min(16),
            None => kinds.push((item.profile_id, 1)),
        }
    }
    let size = |id: u32| {
        let profile = profiles.iter().find(|profile| profile.id == id);
        profile
            .and_then(|p| p.placements.as_ref().ok()?.first().map(|place| place.size as usize))
            .unwrap_or(0)
    };
    let mut best: Option<(usize, Vec<u32>)> = None;
    let mut counts = vec![0usize; kinds.len()];
    for _ in 0..20_000 {
        let ids: Vec<u32> =
            kinds.iter().zip(&counts).flat_map(|((id, _), count)| std::iter::repeat_n(*id, *count)).collect();
        let filled: usize = ids.iter().map(|id| size(*id)).sum();
        let items: Vec<Item> = ids.iter().map(|id| Item { profile_id: *id, start: None }).collect();
        if best.as_ref().is_none_or(|(most, _)| filled > *most)
            && filled <= 128
            && matches!(search(profiles, &items, &[]), Ok(Some(_)))
        {
            best = Some((filled, ids));
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
    by_count(profiles, best.map(|(_, ids)| ids).unwrap_or_default()).to_string()
}

#[cfg(test)]
#[path = "mig_tests.rs"]
mod tests;

//! The search for places of GPU instances and for what is in each of them.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    Device, Filled, MigError, Slot,
    compute::{contents, fill},
    mask,
};
use crate::nvml::{MigProfile, Placement};

/// The declared instances of one profile.
struct Kind {
    profile_id: u32,
    slices: u32,
    /// Most GPU instances of it.
    most: usize,
    /// In order of their start.
    places: Vec<Placement>,
    /// Sizes of the compute instances without a declared place, descending.
    free: Vec<u32>,
    /// Sizes of the others, by the start of their GPU instance.
    pinned: BTreeMap<u32, Vec<u32>>,
    /// Slices that GPU instances of other profiles must have.
    reserved: u128,
}

/// What makes one layout better than another: compute instances kept, GPU instances kept, and few GPU instances.
type Score = (usize, usize, Reverse<usize>);

/// At most what the kinds from one on can add to a score.
#[derive(Clone, Copy, Default)]
struct Bound {
    computes: usize,
    instances: usize,
    /// GPU instances needed at least.
    needed: usize,
}

struct Search<'a> {
    kinds: Vec<Kind>,
    /// Of the kinds after each one.
    after: Vec<Bound>,
    present: &'a [Filled],
    best: Option<(Score, Vec<Filled>)>,
}

/// Where the search stands.
#[derive(Clone, Copy)]
struct Spot {
    kind: usize,
    place: usize,
    /// GPU instances of this kind so far.
    count: usize,
    used: u128,
    score: Score,
}

impl Kind {
    fn bound(&self, free: &[u32], from: u32, present: &[Filled]) -> Bound {
        let pinned: Vec<&Vec<u32>> =
            self.pinned.iter().filter(|(start, _)| **start >= from).map(|(_, sizes)| sizes).collect();
        let mut wanted: Vec<u32> = free.iter().chain(pinned.iter().copied().flatten()).copied().collect();
        let total: u32 = wanted.iter().sum();
        let needed = (total.div_ceil(self.slices.max(1)) as usize).max(pinned.len());
        let mut bound = Bound { needed, ..Bound::default() };
        let most = wanted.len();
        for there in present.iter().filter(|one| one.slot.profile_id == self.profile_id) {
            bound.instances += 1;
            for inner in &there.computes {
                if let Some(at) = wanted.iter().position(|size| *size == inner.size) {
                    wanted.swap_remove(at);
                    bound.computes += 1;
                }
            }
        }
        bound.instances = bound.instances.min(most);
        bound
    }
}

impl Search<'_> {
    fn could_be_better(&self, score: Score, own: Bound, after: Bound) -> bool {
        let reach = (
            score.0 + own.computes + after.computes,
            score.1 + own.instances + after.instances,
            Reverse(score.2.0 + own.needed + after.needed),
        );
        self.best.as_ref().is_none_or(|(best, _)| reach > *best)
    }

    fn step(&mut self, at: Spot, free: &[u32], taken: &mut Vec<Filled>) {
        let Some(kind) = self.kinds.get(at.kind) else {
            if self.could_be_better(at.score, Bound::default(), Bound::default()) {
                self.best = Some((at.score, taken.clone()));
            }
            return;
        };
        let after = self.after.get(at.kind).copied().unwrap_or_default();
        let Some(place) = kind.places.get(at.place).copied() else {
            if free.is_empty() {
                let next = self.kinds.get(at.kind + 1).map(|kind| kind.free.clone()).unwrap_or_default();
                self.step(Spot { kind: at.kind + 1, place: 0, count: 0, ..at }, &next, taken);
            }
            return;
        };
        if !self.could_be_better(at.score, kind.bound(free, place.start, self.present), after) {
            return;
        }
        let pinned = kind.pinned.get(&place.start).cloned();
        let open = (at.used | kind.reserved) & mask(place) == 0 && at.count < kind.most;
        let (profile_id, slices) = (kind.profile_id, kind.slices);
        if open && (pinned.is_some() || !free.is_empty()) {
            let there = self.present.iter().find(|one| one.slot == Slot { placement: place, profile_id });
            let present = there.map(|one| one.computes.clone()).unwrap_or_default();
            let pinned = pinned.clone().unwrap_or_default();
            let is_there = there.is_some();
            for content in contents(slices, &pinned, free) {
                let Some(computes) = fill(slices, &present, &content) else { continue };
                let kept = computes.iter().filter(|inner| present.contains(inner)).count();
                let mut rest = free.to_vec();
                let mut own = pinned.clone();
                for size in &content {
                    let is_pinned = own.iter().position(|other| other == size);
                    match (is_pinned, rest.iter().position(|other| other == size)) {
                        (Some(at), _) => drop(own.remove(at)),
                        (None, Some(at)) => drop(rest.remove(at)),
                        (None, None) => {}
                    }
                }
                taken.push(Filled { slot: Slot { placement: place, profile_id }, computes });
                let score =
                    (at.score.0 + kept, at.score.1 + usize::from(is_there), Reverse(at.score.2.0 + 1));
                let next = Spot {
                    place: at.place + 1,
                    count: at.count + 1,
                    used: at.used | mask(place),
                    score,
                    ..at
                };
                self.step(next, &rest, taken);
                taken.pop();
            }
        }
        if pinned.is_none() {
            self.step(Spot { place: at.place + 1, ..at }, free, taken);
        }
    }
}

/// Whether media engines allow these profiles together, and how many GPU instances of each.
fn most_of(profiles: &[&MigProfile]) -> Option<Vec<usize>> {
    let all_media = |name: &str| name.ends_with("+me.all");
    let media = |name: &str| name.ends_with("+me");
    let of = |is: &dyn Fn(&str) -> bool| profiles.iter().filter(|profile| is(&profile.name)).count();
    let others = of(&|name| !all_media(name) && !name.ends_with("-me"));
    if of(&media) > 1 || of(&all_media) > 1 || of(&all_media) > 0 && others > 0 {
        return None;
    }
    let most = |profile: &&MigProfile| {
        let single = media(&profile.name) || all_media(&profile.name);
        if single { profile.max_count.min(1) as usize } else { profile.max_count as usize }
    };
    Some(profiles.iter().map(most).collect())
}

/// Returns the best layout of these compute instances; `None` if there is none.
pub(super) fn search(
    profiles: &[MigProfile],
    devices: &[Device],
    present: &[Filled],
) -> Result<Option<Vec<Filled>>, MigError> {
    let mut found: BTreeMap<u32, Vec<Device>> = BTreeMap::new();
    for device in devices {
        found.entry(device.profile_id).or_default().push(*device);
    }
    let mut known = Vec::new();
    for id in found.keys() {
        let Some(profile) = profiles.iter().find(|profile| profile.id == *id) else { return Ok(None) };
        known.push(profile);
    }
    let Some(most) = most_of(&known) else { return Ok(None) };
    let mut kinds = Vec::new();
    for ((profile, devices), most) in known.into_iter().zip(found.into_values()).zip(most) {
        let mut places = profile
            .placements
            .clone()
            .map_err(|code| MigError::Unreadable { name: profile.name.clone(), why: code.to_string() })?;
        places.sort_unstable();
        places.dedup();
        let (mut free, mut pinned) = (Vec::new(), BTreeMap::<u32, Vec<u32>>::new());
        for device in devices {
            match device.start {
                None => free.push(device.slices),
                Some(start) if places.iter().any(|place| place.start == start) => {
                    pinned.entry(start).or_default().push(device.slices);
                }
                Some(start) => {
                    let starts: Vec<String> = places.iter().map(|place| place.start.to_string()).collect();
                    let (name, starts) = (profile.name.clone(), starts.join(", "));
                    return Err(MigError::NoSuchPlace { name, start, starts });
                }
            }
        }
        free.sort_unstable_by(|a, b| b.cmp(a));
        let (profile_id, slices) = (profile.id, profile.slices);
        kinds.push(Kind { profile_id, slices, most, places, free, pinned, reserved: 0 });
    }
    // The largest first, which finds contradictions early.
    kinds.sort_by_key(|kind| (Reverse(kind.places.first().map_or(0, |place| place.size)), kind.profile_id));
    let pinned: Vec<u128> = kinds
        .iter()
        .map(|kind| {
            let own = kind.places.iter().filter(|place| kind.pinned.contains_key(&place.start));
            own.fold(0, |all, place| all | mask(*place))
        })
        .collect();
    for (at, kind) in kinds.iter_mut().enumerate() {
        let others = pinned.iter().enumerate().filter(|(other, _)| *other != at);
        kind.reserved = others.fold(0, |all, (_, mask)| all | mask);
    }
    let bounds: Vec<Bound> = kinds.iter().map(|kind| kind.bound(&kind.free, 0, present)).collect();
    let after = (0..kinds.len())
        .map(|at| {
            bounds.iter().skip(at + 1).fold(Bound::default(), |all, one| Bound {
                computes: all.computes + one.computes,
                instances: all.instances + one.instances,
                needed: all.needed + one.needed,
            })
        })
        .collect();
    let free = kinds.first().map(|kind| kind.free.clone()).unwrap_or_default();
    let mut search = Search { kinds, after, present, best: None };
    let start = Spot { kind: 0, place: 0, count: 0, used: 0, score: (0, 0, Reverse(0)) };
    search.step(start, &free, &mut Vec::new());
    Ok(search.best.map(|(_, mut filled)| {
        filled.sort_unstable();
        filled
    }))
}

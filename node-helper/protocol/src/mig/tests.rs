//! Compares the search with brute force, on the grids of several families.

use crate::nvml::Code;
use proptest::prelude::*;

use super::*;

fn profile(id: u32, name: &str, slices: u32, max_count: u32, size: u32, starts: &[u32]) -> MigProfile {
    let placements = Ok(starts.iter().map(|start| Placement { start: *start, size }).collect());
    MigProfile {
        id,
        name: name.to_owned(),
        slices,
        max_count,
        memory_mib: u64::from(size) * 9984,
        placements,
    }
}

/// The profiles of an H100 80GB, as measured.
fn h100() -> Vec<MigProfile> {
    vec![
        profile(19, "1g.10gb", 1, 7, 1, &[0, 1, 2, 3, 4, 5, 6]),
        profile(20, "1g.10gb+me", 1, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
        profile(15, "1g.20gb", 1, 4, 2, &[0, 2, 4, 6]),
        profile(14, "2g.20gb", 2, 3, 2, &[0, 2, 4]),
        profile(9, "3g.40gb", 3, 2, 4, &[0, 4]),
        profile(5, "4g.40gb", 4, 1, 4, &[0]),
        profile(0, "7g.80gb", 7, 1, 8, &[0]),
    ]
}

fn a30() -> Vec<MigProfile> {
    vec![
        profile(14, "1g.6gb", 1, 4, 1, &[0, 1, 2, 3]),
        profile(21, "1g.6gb+me", 1, 1, 1, &[0, 1, 2, 3]),
        profile(5, "2g.12gb", 2, 2, 2, &[0, 2]),
        profile(6, "2g.12gb+me", 2, 1, 2, &[0, 2]),
        profile(0, "4g.24gb", 4, 1, 4, &[0]),
    ]
}

fn rtx_pro() -> Vec<MigProfile> {
    vec![
        profile(14, "1g.24gb", 1, 4, 3, &[0, 3, 6, 9]),
        profile(21, "1g.24gb+me", 1, 1, 3, &[0, 3, 6, 9]),
        profile(65, "1g.24gb+me.all", 1, 1, 3, &[0, 3, 6, 9]),
        profile(67, "1g.24gb-me", 1, 4, 3, &[0, 3, 6, 9]),
        profile(5, "2g.48gb", 2, 2, 6, &[0, 6]),
        profile(0, "4g.96gb", 4, 1, 12, &[0]),
    ]
}

/// Returns the most compute instances of `present` that any arrangement of these sizes keeps; `None` if none fits.
fn brute_inside(slices: u32, sizes: &[u32], taken: &mut Vec<Inner>, present: &[Inner]) -> Option<usize> {
    let Some((size, rest)) = sizes.split_first() else {
        return Some(taken.iter().filter(|one| present.contains(one)).count());
    };
    let mut best = None;
    for start in compute_starts(slices, *size) {
        let free = taken.iter().all(|one| one.start + one.size <= start || start + size <= one.start);
        if free {
            taken.push(Inner { start, size: *size });
            best = best.max(brute_inside(slices, rest, taken, present));
            taken.pop();
        }
    }
    best
}

type Best = (usize, usize, std::cmp::Reverse<usize>);

/// Returns the best score of any layout: every device at every place of its profile, alone or with others.
fn brute(profiles: &[MigProfile], devices: &[Device], present: &[Filled]) -> Option<Best> {
    fn walk(
        profiles: &[MigProfile],
        devices: &[Device],
        taken: &mut Vec<(Slot, Vec<u32>)>,
        present: &[Filled],
    ) -> Option<Best> {
        let Some((device, rest)) = devices.split_first() else {
            return score(profiles, taken, present);
        };
        let profile = profiles.iter().find(|profile| profile.id == device.profile_id)?;
        let mut best = None;
        for placement in profile.placements.as_ref().unwrap() {
            if device.start.is_some_and(|start| start != placement.start) {
                continue;
            }
            let slot = Slot { placement: *placement, profile_id: profile.id };
            if let Some(at) = taken.iter().position(|(other, _)| *other == slot) {
                taken[at].1.push(device.slices);
                if taken[at].1.iter().sum::<u32>() <= profile.slices {
                    best = best.max(walk(profiles, rest, taken, present));
                }
                taken[at].1.pop();
            } else if taken.iter().all(|(other, _)| mask(other.placement) & mask(*placement) == 0) {
                taken.push((slot, vec![device.slices]));
                best = best.max(walk(profiles, rest, taken, present));
                taken.pop();
            }
        }
        best
    }
    walk(profiles, devices, &mut Vec::new(), present)
}

fn score(profiles: &[MigProfile], taken: &[(Slot, Vec<u32>)], present: &[Filled]) -> Option<Best> {
    let name = |id: u32| &profiles.iter().find(|profile| profile.id == id).unwrap().name;
    let with = |is: &dyn Fn(&str) -> bool| taken.iter().filter(|(slot, _)| is(name(slot.profile_id))).count();
    let (all, one) = (with(&|name| name.ends_with("+me.all")), with(&|name| name.ends_with("+me")));
    let others = taken.len() - all - with(&|name| name.ends_with("-me"));
    let within = profiles.iter().all(|profile| {
        taken.iter().filter(|(slot, _)| slot.profile_id == profile.id).count() <= profile.max_count as usize
    });
    if !within || one > 1 || all > 1 || all == 1 && others > 0 {
        return None;
    }
    let mut best = (0, 0, std::cmp::Reverse(taken.len()));
    for (slot, sizes) in taken {
        let there = present.iter().find(|one| one.slot == *slot);
        let slices = profiles.iter().find(|profile| profile.id == slot.profile_id).unwrap().slices;
        let computes = there.map(|one| one.computes.as_slice()).unwrap_or_default();
        best.0 += brute_inside(slices, sizes, &mut Vec::new(), computes)?;
        best.1 += usize::from(there.is_some());
    }
    Some(best)
}

fn grids() -> impl Strategy<Value = Vec<MigProfile>> {
    prop_oneof![Just(h100()), Just(a30()), Just(rtx_pro())]
}

/// A profile, a place, and sizes and places of compute instances.
type Pick = (usize, usize, Vec<(usize, u32)>);

/// Returns a layout that an earlier run may have left: whatever fits of random lists.
fn leftovers(profiles: &[MigProfile], picks: &[Pick]) -> Vec<Filled> {
    let mut all: Vec<Filled> = Vec::new();
    for (kind, place, inside) in picks {
        let profile = &profiles[kind % profiles.len()];
        let places = profile.placements.as_ref().unwrap();
        let slot = Slot { placement: places[place % places.len()], profile_id: profile.id };
        if all.iter().any(|other| mask(other.slot.placement) & mask(slot.placement) != 0) {
            continue;
        }
        let mut computes: Vec<Inner> = Vec::new();
        for (size, start) in inside {
            let size = sizes(profile.slices)[size % sizes(profile.slices).len()];
            let one = Inner { start: *start, size };
            let free = computes
                .iter()
                .all(|other| other.start + other.size <= one.start || one.start + one.size <= other.start);
            if free && compute_starts(profile.slices, size).any(|possible| possible == *start) {
                computes.push(one);
            }
        }
        computes.sort_unstable();
        all.push(Filled { slot, computes });
    }
    all.sort_unstable();
    all
}

fn sizes(slices: u32) -> Vec<u32> {
    compute_sizes(slices).iter().copied().filter(|size| *size <= slices).collect()
}

proptest! {
    /// `minimal` never destroys an instance that it could keep: no layout of the same devices keeps more.
    #[test]
    fn the_search_agrees_with_brute_force(
        profiles in grids(),
        wish in proptest::collection::vec(
            (0usize..8, proptest::option::weighted(0.2, 0usize..8), proptest::option::of(0usize..4)),
            0..5,
        ),
        before in proptest::collection::vec(
            (0usize..8, 0usize..8, proptest::collection::vec((0usize..4, 0u32..7), 0..4)),
            0..7,
        ),
    ) {
        let devices: Vec<Device> = wish.iter().map(|(kind, place, part)| {
            let profile = &profiles[kind % profiles.len()];
            let places = profile.placements.as_ref().unwrap();
            let parts = sizes(profile.slices);
            Device {
                profile_id: profile.id,
                slices: part.map_or(profile.slices, |part| parts[part % parts.len()]),
                start: place.map(|place| places[place % places.len()].start),
            }
        }).collect();
        let present = leftovers(&profiles, &before);
        match arrange(&profiles, &devices, &present) {
            Ok(filled) => {
                let taken: Vec<(Slot, Vec<u32>)> = filled
                    .iter()
                    .map(|one| (one.slot, one.computes.iter().map(|inner| inner.size).collect()))
                    .collect();
                prop_assert_eq!(score(&profiles, &taken, &present), brute(&profiles, &devices, &present));
                let kept: usize = filled.iter().flat_map(|one| {
                    let there = present.iter().find(|other| other.slot == one.slot);
                    one.computes.iter().filter(move |inner| there.is_some_and(|there| there.computes.contains(inner)))
                }).count();
                prop_assert_eq!(Some(kept), score(&profiles, &taken, &present).map(|best| best.0));
                let mut got: Vec<(u32, u32)> = filled.iter()
                    .flat_map(|one| one.computes.iter().map(|inner| (one.slot.profile_id, inner.size)))
                    .collect();
                let mut wanted: Vec<(u32, u32)> =
                    devices.iter().map(|device| (device.profile_id, device.slices)).collect();
                got.sort_unstable();
                wanted.sort_unstable();
                prop_assert_eq!(got, wanted);
                let mut used = 0u128;
                for one in &filled {
                    prop_assert_eq!(used & mask(one.slot.placement), 0);
                    used |= mask(one.slot.placement);
                    let slices = profiles.iter().find(|p| p.id == one.slot.profile_id).unwrap().slices;
                    let end = one.computes.iter().fold(0, |end, inner| {
                        assert!(inner.start >= end, "{filled:?}");
                        inner.start + inner.size
                    });
                    prop_assert!(end <= slices);
                }
                prop_assert!(used < 1 << 12);
                for device in devices.iter().filter(|device| device.start.is_some()) {
                    let there = filled.iter().any(|one| {
                        one.slot.profile_id == device.profile_id
                            && Some(one.slot.placement.start) == device.start
                            && one.computes.iter().any(|inner| inner.size == device.slices)
                    });
                    prop_assert!(there, "a declared place is kept");
                }
                // A present layout that is declared again is kept whole.
                prop_assert_eq!(arrange(&profiles, &devices, &filled).unwrap(), filled);
            }
            Err(_) => prop_assert_eq!(brute(&profiles, &devices, &present), None),
        }
    }
}

fn devices(profiles: &[MigProfile], names: &[&str]) -> Vec<Device> {
    names
        .iter()
        .map(|name| device(profiles, name).unwrap())
        .map(|(profile, slices)| Device { profile_id: profile.id, slices, start: None })
        .collect()
}

fn drawn(profiles: &[MigProfile], names: &[&str], present: &[Filled]) -> String {
    let filled = arrange(profiles, &devices(profiles, names), present).unwrap();
    by_place(profiles, &filled).to_string()
}

#[test]
fn compute_instances_share_a_gpu_instance_until_it_is_full() {
    let profiles = h100();
    assert_eq!(
        drawn(&profiles, &["1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb", "1c.3g.40gb"], &[]),
        "3x 1c.3g.40gb at 0 + 1c.3g.40gb at 4",
    );
    assert_eq!(
        drawn(&profiles, &["2c.7g.80gb", "3c.7g.80gb", "2c.7g.80gb"], &[]),
        "3c.7g.80gb at 0 + 2x 2c.7g.80gb at 0"
    );
    let error = |names: &[&str]| arrange(&profiles, &devices(&profiles, names), &[]).unwrap_err().to_string();
    assert_eq!(error(&["1c.3g.40gb"; 7]), "7x 1c.3g.40gb do not fit together; 6x 1c.3g.40gb would");
    assert_eq!(
        error(&["1c.4g.40gb", "2c.4g.40gb", "2c.4g.40gb", "3g.40gb"]),
        "2x 2c.4g.40gb + 1x 1c.4g.40gb + 1x 3g.40gb do not fit together; 2x 2c.4g.40gb + 1x 3g.40gb would"
    );
    for (name, known) in [
        ("3c.4g.40gb", "1c.4g.40gb, 2c.4g.40gb, 4g.40gb"),
        ("0c.3g.40gb", "1c.3g.40gb, 2c.3g.40gb, 3g.40gb"),
        ("4c.3g.40gb", "1c.3g.40gb, 2c.3g.40gb, 3g.40gb"),
    ] {
        let expected = format!("there is no MIG profile `{name}`; the GPU has {known}");
        assert_eq!(device(&profiles, name).unwrap_err().to_string(), expected);
    }
}

#[test]
fn what_is_there_in_more_gpu_instances_than_needed_stays() {
    let profiles = h100();
    let slot = |start| Slot { placement: Placement { start, size: 4 }, profile_id: 9 };
    let inner = |start, size| Inner { start, size };
    let present = [
        Filled { slot: slot(0), computes: vec![inner(0, 1)] },
        Filled { slot: slot(4), computes: vec![inner(0, 2)] },
    ];
    assert_eq!(
        arrange(&profiles, &devices(&profiles, &["1c.3g.40gb", "2c.3g.40gb"]), &present).unwrap(),
        present
    );
    // The one in the middle leaves no place for two slices, so that it goes.
    let middle = [Filled { slot: slot(4), computes: vec![inner(1, 1)] }];
    assert_eq!(
        arrange(&profiles, &devices(&profiles, &["1c.3g.40gb", "2c.3g.40gb"]), &middle).unwrap().len(),
        2,
        "rather a second GPU instance than another compute instance"
    );
    let full = arrange(&profiles, &devices(&profiles, &["1c.3g.40gb", "2c.3g.40gb", "4g.40gb"]), &middle);
    assert_eq!(
        full.unwrap().last().unwrap(),
        &Filled { slot: slot(4), computes: vec![inner(0, 2), inner(2, 1)] }
    );
}

fn items(profiles: &[MigProfile], names: &[&str]) -> Vec<Item> {
    names.iter().map(|name| Item { profile_id: find(profiles, name).unwrap().id, start: None }).collect()
}

#[test]
fn the_guides_order_that_fails_by_default_placement_is_solved() {
    let profiles = h100();
    let slots =
        solve(&profiles, &items(&profiles, &["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]), &[]).unwrap();
    assert_eq!(
        drawn(&profiles, &["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"], &[]),
        "2g.20gb at 0 + 1g.10gb at 2 + 1g.10gb at 3 + 3g.40gb at 4"
    );
    assert_eq!(
        by_count(&profiles, slots.iter().map(|slot| (slot.profile_id, None))).to_string(),
        "1x 3g.40gb + 1x 2g.20gb + 2x 1g.10gb"
    );
}

#[test]
fn what_does_not_fit_says_what_would() {
    let profiles = h100();
    let error = solve(&profiles, &items(&profiles, &["4g.40gb", "4g.40gb", "3g.40gb"]), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2x 4g.40gb + 1x 3g.40gb do not fit together; 1x 4g.40gb + 1x 3g.40gb would"
    );
    let many = vec![Item { profile_id: 19, start: None }; 5000];
    assert_eq!(
        solve(&profiles, &many, &[]).unwrap_err().to_string(),
        "5000x 1g.10gb do not fit together; 7x 1g.10gb would"
    );
    assert!(
        find(&profiles, "3g.20gb")
            .unwrap_err()
            .to_string()
            .starts_with("there is no MIG profile `3g.20gb`; the GPU has 1g.10gb, ")
    );
    let at = [Item { profile_id: 9, start: Some(2) }];
    assert_eq!(
        solve(&profiles, &at, &[]).unwrap_err().to_string(),
        "`3g.40gb` cannot start at slice 2; it can at 0, 4"
    );
}

#[test]
fn media_engines_are_not_shared_out_twice() {
    let profiles = rtx_pro();
    assert!(solve(&profiles, &items(&profiles, &["1g.24gb+me.all", "1g.24gb-me"]), &[]).is_ok());
    assert!(solve(&profiles, &items(&profiles, &["1g.24gb+me.all", "1g.24gb"]), &[]).is_err());
    let a30 = a30();
    assert!(solve(&a30, &items(&a30, &["1g.6gb+me", "2g.12gb+me"]), &[]).is_err());
}

#[test]
fn unreadable_placements_are_no_empty_ones() {
    let mut profiles = h100();
    profiles[4].placements = Err(Code::NO_PERMISSION);
    let error = solve(&profiles, &items(&profiles, &["3g.40gb"]), &[]).unwrap_err();
    assert!(matches!(error, MigError::Unreadable { .. }));
}

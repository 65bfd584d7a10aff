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

/// Returns the largest number of `present` that any layout of the items keeps; `None` if no layout fits.
fn brute(profiles: &[MigProfile], items: &[Item], present: &[Slot]) -> Option<usize> {
    fn walk(
        profiles: &[MigProfile],
        items: &[Item],
        taken: &mut Vec<Slot>,
        present: &[Slot],
    ) -> Option<usize> {
        let Some((item, rest)) = items.split_first() else {
            return Some(taken.iter().filter(|slot| present.contains(slot)).count());
        };
        let profile = profiles.iter().find(|profile| profile.id == item.profile_id)?;
        let mut best = None;
        for placement in profile.placements.as_ref().unwrap() {
            let free = taken.iter().all(|slot| {
                slot.placement.start + slot.placement.size <= placement.start
                    || placement.start + placement.size <= slot.placement.start
            });
            if free && item.start.is_none_or(|start| start == placement.start) {
                taken.push(Slot { placement: *placement, profile_id: profile.id });
                best = best.max(walk(profiles, rest, taken, present));
                taken.pop();
            }
        }
        best
    }
    counts_allow(profiles, items).then(|| walk(profiles, items, &mut Vec::new(), present)).flatten()
}

fn grids() -> impl Strategy<Value = Vec<MigProfile>> {
    prop_oneof![Just(h100()), Just(a30()), Just(rtx_pro())]
}

/// Returns a layout that an earlier run may have left: whatever fits of a random list.
fn leftovers(profiles: &[MigProfile], picks: &[(usize, usize)]) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for (kind, place) in picks {
        let profile = &profiles[kind % profiles.len()];
        let places = profile.placements.as_ref().unwrap();
        let slot = Slot { placement: places[place % places.len()], profile_id: profile.id };
        if slots.iter().all(|other| mask(other.placement) & mask(slot.placement) == 0) {
            slots.push(slot);
        }
    }
    slots
}

proptest! {
    #[test]
    fn the_search_agrees_with_brute_force(
        profiles in grids(),
        wish in proptest::collection::vec((0usize..8, proptest::option::weighted(0.2, 0usize..8)), 0..6),
        before in proptest::collection::vec((0usize..8, 0usize..8), 0..7),
    ) {
        let items: Vec<Item> = wish.iter().map(|(kind, place)| {
            let profile = &profiles[kind % profiles.len()];
            let places = profile.placements.as_ref().unwrap();
            Item { profile_id: profile.id, start: place.map(|place| places[place % places.len()].start) }
        }).collect();
        let present = leftovers(&profiles, &before);
        match solve(&profiles, &items, &present) {
            Ok(slots) => {
                let kept = slots.iter().filter(|slot| present.contains(slot)).count();
                prop_assert_eq!(Some(kept), brute(&profiles, &items, &present));
                let mut got: Vec<u32> = slots.iter().map(|slot| slot.profile_id).collect();
                let mut wanted: Vec<u32> = items.iter().map(|item| item.profile_id).collect();
                got.sort_unstable();
                wanted.sort_unstable();
                prop_assert_eq!(got, wanted);
                let used = slots.iter().fold(0u128, |used, slot| { assert_eq!(used & mask(slot.placement), 0); used | mask(slot.placement) });
                prop_assert!(used < 1 << 12);
                for item in items.iter().filter(|item| item.start.is_some()) {
                    prop_assert!(slots.iter().any(|slot| slot.profile_id == item.profile_id && Some(slot.placement.start) == item.start));
                }
                // A present layout that is declared again is kept whole.
                prop_assert_eq!(solve(&profiles, &items, &slots).unwrap(), slots);
            }
            Err(_) => prop_assert_eq!(brute(&profiles, &items, &present), None),
        }
    }
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
        by_place(&profiles, &slots).to_string(),
        "2g.20gb at 0 + 1g.10gb at 2 + 1g.10gb at 3 + 3g.40gb at 4"
    );
    assert_eq!(
        by_count(&profiles, slots.iter().map(|slot| slot.profile_id)).to_string(),
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

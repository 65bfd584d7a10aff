//! Whether a layout fits a family, and where.

use std::collections::BTreeMap;

use gpufleet_protocol::mig::{self, Item, Slot};

use crate::families::Family;

pub use gpufleet_protocol::mig::MigError as LayoutError;

/// How many instances of each profile.
pub type Counts = BTreeMap<String, u32>;

/// More instances than any GPU has; a larger number does not fit, and need not be counted out.
const MOST: u32 = 64;

/// Returns the GPU instances of a layout. Compute instances that are a part of theirs (`1c.3g.40gb`) share as few as they can.
///
/// # Errors
/// [`LayoutError::UnknownProfile`].
pub fn items(family: &Family, counts: &Counts) -> Result<Vec<Item>, LayoutError> {
    let mut items = Vec::new();
    // By the profile of the GPU instance: its slices, and those of each compute instance in it.
    let mut parts: BTreeMap<u32, (u32, Vec<u32>)> = BTreeMap::new();
    for (name, count) in counts {
        let (compute, name) = split(name);
        let profile = family.profile(name)?;
        let count = (*count).min(MOST);
        match compute.filter(|compute| *compute < profile.slices) {
            Some(compute) => {
                if !sizes_of(profile.slices).contains(&compute) {
                    let known =
                        sizes_of(profile.slices).iter().map(|size| format!("{size}c.{}", profile.name));
                    let known = known.collect::<Vec<_>>().join(", ");
                    return Err(LayoutError::UnknownProfile { name: format!("{compute}c.{name}"), known });
                }
                let (_, sizes) = parts.entry(profile.id).or_insert((profile.slices, Vec::new()));
                sizes.extend((0..count).map(|_| compute));
            }
            None => items.extend((0..count).map(|_| Item { profile_id: profile.id, start: None })),
        }
    }
    for (profile_id, (slices, sizes)) in parts {
        items.extend((0..holders(slices, sizes)).map(|_| Item { profile_id, start: None }));
    }
    Ok(items)
}

/// Returns the slices that a compute instance of a GPU instance may have.
///
/// Source: NVIDIA MIG User Guide, "Creating Compute Instances", `nvidia-smi mig -lcip`.
const fn sizes_of(slices: u32) -> &'static [u32] {
    match slices {
        1 => &[1],
        2 => &[1, 2],
        3 => &[1, 2, 3],
        4 => &[1, 2, 4],
        _ => &[1, 2, 3, 4, 7],
    }
}

/// Splits `1c.3g.40gb` into the slices of the compute instance and the profile of the GPU instance.
fn split(name: &str) -> (Option<u32>, &str) {
    let compute = name.split_once('.').and_then(|(compute, rest)| {
        let slices = compute.strip_suffix('c')?.parse().ok()?;
        Some((slices, rest))
    });
    compute.map_or((None, name), |(slices, rest)| (Some(slices), rest))
}

/// Returns in how many GPU instances of so many slices these compute instances fit, the largest first.
fn holders(slices: u32, mut sizes: Vec<u32>) -> usize {
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    let mut free: Vec<u32> = Vec::new();
    for size in sizes {
        match free.iter_mut().find(|free| **free >= size) {
            Some(free) => *free -= size,
            None => free.push(slices.saturating_sub(size)),
        }
    }
    free.len()
}

/// Returns the places of a layout on a GPU that has no instances.
///
/// # Errors
/// Why it does not fit.
pub fn fit(family: &Family, counts: &Counts) -> Result<Vec<Slot>, LayoutError> {
    mig::solve(&family.profiles, &items(family, counts)?, &[])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::families;

    fn counts(all: &[(&str, u32)]) -> Counts {
        all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn compute_instances_share_their_gpu_instance() {
        let h100 = crate::find("h100-80gb").unwrap();
        let places = |all: &[(&str, u32)]| fit(h100, &counts(all)).map(|slots| slots.len());
        assert_eq!(places(&[("1c.3g.40gb", 6)]), Ok(2));
        assert_eq!(places(&[("1c.3g.40gb", 1), ("2c.3g.40gb", 1), ("1g.10gb", 3)]), Ok(4));
        assert_eq!(places(&[("3c.3g.40gb", 2)]), Ok(2), "the whole of it");
        assert!(places(&[("1c.3g.40gb", 7)]).is_err());
        assert!(places(&[("3c.4g.40gb", 1)]).is_err() && places(&[("2c.4g.40gb", 2)]).is_ok());
        assert!(matches!(places(&[("1c.3g.20gb", 1)]), Err(LayoutError::UnknownProfile { .. })));
    }

    #[test]
    fn another_drivers_name_is_the_same_profile() {
        let gb200 = crate::find("gb200").unwrap();
        assert_eq!(fit(gb200, &counts(&[("3g.95gb", 2)])), fit(gb200, &counts(&[("3g.93gb", 2)])));
    }

    /// Whether these instances have places of which no two overlap, by trying all.
    fn brute(family: &Family, wanted: &[usize], used: u32) -> bool {
        let Some((first, rest)) = wanted.split_first() else { return true };
        let places = family.profiles[*first].placements.as_ref().unwrap();
        places.iter().any(|place| {
            let mask = ((1_u32 << place.size) - 1) << place.start;
            used & mask == 0 && brute(family, rest, used | mask)
        })
    }

    /// Whether media engines and counts allow these together, as nvml.h says it.
    fn together(family: &Family, wanted: &[usize]) -> bool {
        let with =
            |ending: &str| wanted.iter().filter(|at| family.profiles[**at].name.ends_with(ending)).count();
        let (all, one, none) = (with("+me.all"), with("+me"), with("-me"));
        let within = family.profiles.iter().enumerate().all(|(at, profile)| {
            wanted.iter().filter(|wanted| **wanted == at).count() <= profile.max_count as usize
        });
        within && one <= 1 && all <= 1 && (all == 0 || wanted.len() == all + none)
    }

    /// Calls `look` with every choice of up to `most` of `from` profiles, in any order once.
    fn choices(from: usize, most: usize, look: &mut impl FnMut(&[usize])) {
        fn walk(
            first: usize,
            from: usize,
            most: usize,
            taken: &mut Vec<usize>,
            look: &mut impl FnMut(&[usize]),
        ) {
            look(taken);
            for next in first..from {
                if taken.len() < most {
                    taken.push(next);
                    walk(next, from, most, taken, look);
                    taken.pop();
                }
            }
        }
        walk(0, from, most, &mut Vec::new(), look);
    }

    /// Longest time of one search in a release.
    const MOST: std::time::Duration = std::time::Duration::from_millis(1);

    /// Every layout of up to four instances of every family, and the time of each search.
    #[test]
    fn all_small_layouts_are_what_brute_force_says() {
        let (mut searches, mut slowest) = (0, (std::time::Duration::ZERO, String::new()));
        for family in families() {
            choices(family.profiles.len(), 4, &mut |wanted| {
                let mut all = Counts::new();
                for at in wanted {
                    *all.entry(family.profiles[*at].name.clone()).or_default() += 1;
                }
                let search = || {
                    let begin = std::time::Instant::now();
                    (fit(family, &all).is_ok(), begin.elapsed())
                };
                let (fits, mut took) = search();
                // Again, because a busy machine may have taken the processor away.
                for _ in 0..5 {
                    if took >= MOST {
                        took = took.min(search().1);
                    }
                }
                searches += 1;
                if took > slowest.0 {
                    slowest = (took, format!("{} {all:?}", family.key));
                }
                assert_eq!(
                    fits,
                    together(family, wanted) && brute(family, wanted, 0),
                    "{} {all:?}",
                    family.key
                );
            });
        }
        println!("{searches} searches, the slowest took {slowest:?}");
        assert!(slowest.0 < MOST || cfg!(debug_assertions), "{slowest:?}");
        assert!(searches > 5_000, "{searches}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// On every family, what fits is what brute force finds places for.
        #[test]
        fn what_fits_is_what_brute_force_says(of in 0_usize..13, wish in proptest::collection::vec(0_usize..16, 0..8)) {
            let family = &families()[of];
            let wanted: Vec<usize> = wish.iter().map(|at| at % family.profiles.len()).collect();
            let mut all = Counts::new();
            for at in &wanted {
                *all.entry(family.profiles[*at].name.clone()).or_default() += 1;
            }
            let fits = together(family, &wanted) && brute(family, &wanted, 0);
            prop_assert_eq!(fit(family, &all).is_ok(), fits, "{} {:?}", family.key, all);
        }
    }
}

//! Compute instances inside one GPU instance: their sizes, their places, and which of them can stay.

/// A compute instance in its GPU instance, in compute slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Inner {
    pub start: u32,
    pub size: u32,
}

/// Returns the slices that a compute instance in a GPU instance of so many slices may have.
///
/// Source: NVIDIA MIG User Guide r580, "Creating Compute Instances", `nvidia-smi mig -lcip`.
pub const fn compute_sizes(slices: u32) -> &'static [u32] {
    match slices {
        1 => &[1],
        2 => &[1, 2],
        3 => &[1, 2, 3],
        4 => &[1, 2, 4],
        _ => &[1, 2, 3, 4, 7],
    }
}

/// Returns where a compute instance of `size` slices may start: at multiples of the next power of two, as GPU instances
/// do.
///
/// Source: `nvidia-smi mig -lcipp` lists 0, 1, 2 for one and 0 for two of three slices. The driver lists the places of a GPU
/// instance only once it exists.
pub fn compute_starts(slices: u32, size: u32) -> impl Iterator<Item = u32> {
    let step = size.clamp(1, 128).next_power_of_two() as usize;
    (0..(slices + 1).saturating_sub(size.max(1))).step_by(step)
}

/// Places compute instances of these sizes in a GPU instance, and keeps most of those that are there.
///
/// `None` if they do not fit. `wanted` is descending.
pub(super) fn fill(slices: u32, present: &[Inner], wanted: &[u32]) -> Option<Vec<Inner>> {
    // Several hundred at most: seven slices hold seven compute instances.
    let present = present.get(..present.len().min(8))?;
    let mut best: Option<(u32, Vec<Inner>)> = None;
    for chosen in 0u32..1 << present.len() {
        let kept: Vec<Inner> =
            present.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1).map(|(_, one)| *one).collect();
        if best.as_ref().is_some_and(|(most, _)| *most >= chosen.count_ones()) {
            continue;
        }
        let mut rest = wanted.to_vec();
        let all_wanted = kept.iter().all(|one| {
            let found = rest.iter().position(|size| *size == one.size);
            found.map(|at| rest.remove(at)).is_some()
        });
        let used = kept.iter().fold(0u128, |used, one| used | bits(*one));
        let mut placed = kept;
        if all_wanted && place(slices, &rest, used, None, &mut placed) {
            placed.sort_unstable();
            best = Some((chosen.count_ones(), placed));
        }
    }
    best.map(|(_, placed)| placed)
}

/// Places the rest, each size in ascending order, so that no arrangement is tried twice.
fn place(slices: u32, rest: &[u32], used: u128, before: Option<Inner>, placed: &mut Vec<Inner>) -> bool {
    let Some((size, others)) = rest.split_first() else { return true };
    for start in compute_starts(slices, *size) {
        let one = Inner { start, size: *size };
        let again = before.is_some_and(|before| before.size == *size && start <= before.start);
        if used & bits(one) != 0 || again {
            continue;
        }
        placed.push(one);
        if place(slices, others, used | bits(one), Some(one), placed) {
            return true;
        }
        placed.pop();
    }
    false
}

fn bits(one: Inner) -> u128 {
    let ones = 1u128.checked_shl(one.size).map_or(u128::MAX, |bit| bit - 1);
    ones.checked_shl(one.start).unwrap_or(u128::MAX)
}

/// Returns the parts of `wanted` (descending) that fit one GPU instance, the fullest first; at least `pinned` of them.
pub(super) fn contents(slices: u32, pinned: &[u32], wanted: &[u32]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let mut chosen = pinned.to_vec();
    choose(slices, wanted, &mut chosen, &mut all);
    for content in &mut all {
        content.sort_unstable_by(|a, b| b.cmp(a));
    }
    all.retain(|content| !content.is_empty() && fill(slices, &[], content).is_some());
    all.sort_by_key(|content| (std::cmp::Reverse(content.iter().sum::<u32>()), content.len()));
    all.dedup();
    all
}

fn choose(slices: u32, wanted: &[u32], chosen: &mut Vec<u32>, all: &mut Vec<Vec<u32>>) {
    let Some((size, rest)) = wanted.split_first() else {
        all.push(chosen.clone());
        return;
    };
    if chosen.iter().sum::<u32>() + size <= slices {
        chosen.push(*size);
        choose(slices, rest, chosen, all);
        chosen.pop();
    }
    // Without any of this size, because one of several equal ones is as good as another.
    let others = rest.iter().position(|other| other != size).unwrap_or(rest.len());
    choose(slices, rest.get(others..).unwrap_or_default(), chosen, all);
}

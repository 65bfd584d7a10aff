//! Drawings of MIG layouts: the place of each GPU instance on the eight memory slices of a GPU.

use gpufleet_protocol::{
    change::{MigInstances, Value},
    facts::MigInstance,
    mig,
};
use serde::Serialize;

/// Width of one slice, in columns.
const SLICE: usize = 6;
/// Number of memory slices of a GPU; on GPUs with four, each is drawn as two.
pub(crate) const GRID: u32 = 8;

/// One instance of a drawing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Block {
    pub profile: String,
    pub start: u32,
    pub size: u32,
}

/// Returns the blocks of a GPU's instances.
pub(crate) fn blocks_of(instances: &[MigInstance]) -> Vec<Block> {
    let block = |one: &MigInstance| Block { profile: one.profile.clone(), start: one.start, size: one.size };
    instances.iter().map(block).collect()
}

/// Returns the number of slices of a profile, by its share of the GPU's memory; `None` if it is unknown.
fn slices(profile: &str, memory_mib: u64) -> Option<u32> {
    let label = profile.split(['+', '-']).next()?;
    let gigabytes: u64 = label.rsplit('.').next()?.strip_suffix("gb")?.parse().ok()?;
    // Rounded, because the label is, and because 7g leaves a compute slice unused but no memory.
    let share = (gigabytes * 1024 * u64::from(GRID) + memory_mib / 2).checked_div(memory_mib)?;
    u32::try_from(share).ok().filter(|size| (1..=GRID).contains(size))
}

/// A layout that a change declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub blocks: Vec<Block>,
    /// Whether the change gives the places; otherwise they are one possible arrangement.
    pub exact: bool,
}

/// The layout that a change declares.
///
/// `None` where the value is no layout, or one that does not fit the GPU.
pub(crate) fn layout_of(value: &Value, memory_mib: u64, there: &[Block]) -> Option<Layout> {
    let Value::MigLayout(layout) = value else { return None };
    let mut placed: Vec<Block> = Vec::new();
    let mut wanted: Vec<(String, u32)> = Vec::new();
    // Sizes of compute instances that share GPU instances, by the profile of these.
    let mut parts: Vec<(&str, Vec<u32>)> = Vec::new();
    for MigInstances { profile, count, start } in &layout.instances {
        let (part, profile) = mig::split(profile);
        let size = slices(profile, memory_mib)?;
        match (start, part) {
            (Some(start), _) => {
                let block = Block { profile: profile.to_owned(), start: *start, size };
                // Several parts are in one GPU instance.
                if part.is_none() || !placed.contains(&block) {
                    placed.push(block);
                }
            }
            (None, _) if *count > GRID as usize => return None,
            (None, None) => wanted.extend((0..*count).map(|_| (profile.to_owned(), size))),
            (None, Some(part)) => {
                let all = (0..*count).map(|_| part);
                match parts.iter_mut().find(|(known, _)| *known == profile) {
                    Some((_, sizes)) => sizes.extend(all),
                    None => parts.push((profile, all.collect())),
                }
            }
        }
    }
    for (profile, sizes) in parts {
        let size = slices(profile, memory_mib)?;
        let compute: u32 = profile.split_once('g')?.0.parse().ok()?;
        wanted.extend((0..holders(compute, sizes)?).map(|_| (profile.to_owned(), size)));
    }
    let exact = wanted.is_empty();
    // Instances of the same profile keep their places, as in the run.
    let mut kept: Vec<&Block> = there.iter().collect();
    wanted.retain(|(profile, _)| match kept.iter().position(|block| block.profile == *profile) {
        Some(at) => {
            placed.push(kept.remove(at).clone());
            false
        }
        None => true,
    });
    wanted.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    for (profile, size) in wanted {
        let start = (0..GRID).step_by(size as usize).find(|start| {
            placed.push(Block { profile: profile.clone(), start: *start, size });
            let free = fits(&placed);
            placed.pop();
            free
        })?;
        placed.push(Block { profile, start, size });
    }
    // A GPU that is full of one profile has only one layout.
    let full = placed.iter().map(|block| block.size).sum::<u32>() == GRID
        && placed.windows(2).all(|pair| pair[0].profile == pair[1].profile);
    fits(&placed).then_some(Layout { blocks: placed, exact: exact || full })
}

/// Returns in how many GPU instances of so many slices these compute instances fit, the largest first.
fn holders(slices: u32, mut sizes: Vec<u32>) -> Option<usize> {
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    let mut free: Vec<u32> = Vec::new();
    for size in sizes {
        match free.iter_mut().find(|free| **free >= size) {
            Some(free) => *free -= size,
            None => free.push(slices.checked_sub(size)?),
        }
    }
    Some(free.len())
}

fn fits(blocks: &[Block]) -> bool {
    let mut taken = [false; GRID as usize];
    blocks.iter().all(|block| {
        (block.start..block.start.saturating_add(block.size))
            .all(|slice| taken.get_mut(slice as usize).is_some_and(|taken| !std::mem::replace(taken, true)))
    })
}

/// Draws `|   3g.40gb   |   3g.40gb   |`, free slices as `..`; `None` if the blocks do not fit the grid.
pub(crate) fn drawing(blocks: &[Block]) -> Option<String> {
    if !fits(blocks) {
        return None;
    }
    let mut sorted: Vec<&Block> = blocks.iter().collect();
    sorted.sort_by_key(|block| block.start);
    let mut out = String::from("|");
    let mut at = 0;
    let mut cell = |text: &str, size: u32| {
        let width = size as usize * SLICE - 1;
        let text = if text.chars().count() > width { text.split('.').next().unwrap_or("") } else { text };
        out.push_str(&format!("{text:^width$}|"));
    };
    for block in sorted {
        for _ in at..block.start {
            cell("..", 1);
        }
        cell(&block.profile, block.size);
        at = block.start + block.size;
    }
    for _ in at..GRID {
        cell("..", 1);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::change::MigLayout;

    use super::*;

    fn value(instances: Vec<MigInstances>) -> Value {
        MigLayout { instances, ..MigLayout::default() }.into()
    }

    fn at(places: &[(&str, u32)]) -> Value {
        let one = |(profile, start): &(&str, u32)| MigInstances {
            profile: (*profile).to_owned(),
            count: 1,
            start: Some(*start),
        };
        value(places.iter().map(one).collect())
    }

    fn counted(counts: &[(usize, &str)]) -> Value {
        let one = |(count, profile): &(usize, &str)| MigInstances {
            profile: (*profile).to_owned(),
            count: *count,
            start: None,
        };
        value(counts.iter().map(one).collect())
    }

    #[test]
    fn layouts_are_read_and_drawn() {
        let two = at(&[("3g.40gb", 0), ("3g.40gb", 4)]);
        let two = layout_of(&two, 81_559, &[]).unwrap();
        assert!(two.exact);
        assert_eq!(drawing(&two.blocks).unwrap(), "|        3g.40gb        |        3g.40gb        |");
        let mixed = at(&[("1g.18gb", 0), ("1g.35gb", 2), ("3g.71gb", 4)]);
        let mixed = layout_of(&mixed, 143_771, &[]).unwrap();
        assert_eq!(drawing(&mixed.blocks).unwrap(), "| 1g  | ..  |  1g.35gb  |        3g.71gb        |");
        let media = layout_of(&counted(&[(1, "1g.10gb+me")]), 81_559, &[]).unwrap();
        assert_eq!((media.blocks[0].size, media.exact), (1, false));
        assert_eq!(drawing(&[]).unwrap(), "| ..  | ..  | ..  | ..  | ..  | ..  | ..  | ..  |");
    }

    #[test]
    fn compute_instances_are_drawn_as_the_gpu_instances_that_they_share() {
        let three = layout_of(&counted(&[(2, "1c.3g.40gb"), (1, "2c.3g.40gb")]), 81_559, &[]).unwrap();
        assert_eq!(drawing(&three.blocks).unwrap(), "|        3g.40gb        |        3g.40gb        |");
        let placed = at(&[("3g.40gb", 0), ("1c.3g.40gb", 4), ("2c.3g.40gb", 4)]);
        let placed = layout_of(&placed, 81_559, &[]).unwrap();
        assert_eq!(drawing(&placed.blocks).unwrap(), "|        3g.40gb        |        3g.40gb        |");
        assert_eq!(layout_of(&counted(&[(1, "4c.3g.40gb")]), 81_559, &[]), None);
    }

    #[test]
    fn counts_keep_what_is_there() {
        let there = [Block { profile: "3g.40gb".to_owned(), start: 4, size: 4 }];
        let layout = layout_of(&counted(&[(1, "3g.40gb"), (2, "1g.10gb")]), 81_559, &there).unwrap();
        assert_eq!(drawing(&layout.blocks).unwrap(), "| 1g  | 1g  | ..  | ..  |        3g.40gb        |");
    }

    #[test]
    fn what_makes_no_sense_is_not_drawn() {
        let wrong = [
            Value::text("2x 3g.40gb"),
            counted(&[(1, "fancy")]),
            at(&[("3g.40gb", 0), ("3g.40gb", 2)]),
            counted(&[(3, "3g.40gb")]),
            counted(&[(usize::MAX, "1g.10gb")]),
        ];
        for value in wrong {
            assert_eq!(layout_of(&value, 81_559, &[]), None, "{value}");
        }
        assert_eq!(layout_of(&counted(&[(1, "3g.40gb")]), 0, &[]), None);
    }
}

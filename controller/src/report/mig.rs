//! MIG layouts as pictures: where each GPU instance sits on the eight memory slices of a GPU.

use gpufleet_protocol::facts::MigInstance;
use serde::Serialize;

/// Columns of one slice.
const SLICE: usize = 6;
/// Memory slices of a GPU; parts with four draw each as two.
pub(crate) const GRID: u32 = 8;

/// One instance of a drawing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Block {
    pub profile: String,
    pub start: u32,
    pub size: u32,
}

/// Blocks of what a GPU has.
pub(crate) fn blocks_of(instances: &[MigInstance]) -> Vec<Block> {
    let block = |one: &MigInstance| Block { profile: one.profile.clone(), start: one.start, size: one.size };
    instances.iter().map(block).collect()
}

/// How many slices a profile takes, by its share of the GPU's memory; `None` where that cannot be told.
fn slices(profile: &str, memory_mib: u64) -> Option<u32> {
    let label = profile.split(['+', '-']).next()?;
    let gigabytes: u64 = label.rsplit('.').next()?.strip_suffix("gb")?.parse().ok()?;
    // Why: the label rounds, and 7g leaves a slice's compute but none of its memory unused.
    let share = (gigabytes * 1024 * u64::from(GRID) + memory_mib / 2).checked_div(memory_mib)?;
    u32::try_from(share).ok().filter(|size| (1..=GRID).contains(size))
}

/// Reads a layout as changes write it, `3g.40gb@0, 3g.40gb@4`; `None` where it gives no places.
pub(crate) fn blocks_in(text: &str, memory_mib: u64) -> Option<Vec<Block>> {
    let block = |word: &str| {
        let (profile, start) = word.split_once('@')?;
        let size = slices(profile, memory_mib)?;
        Some(Block { profile: profile.to_owned(), start: start.parse().ok()?, size })
    };
    let words = text.split([',', ' ', '+']).filter(|word| !word.is_empty());
    // Why: `1g.10gb+me@0` has a `+` of its own, and then the words make no sense one by one.
    let split: Option<Vec<Block>> = words.map(block).collect();
    let whole =
        || text.split([',', ' ']).filter(|word| !word.is_empty()).map(block).collect::<Option<Vec<_>>>();
    split.or_else(whole).filter(|blocks| !blocks.is_empty() && fits(blocks))
}

fn fits(blocks: &[Block]) -> bool {
    let mut taken = [false; GRID as usize];
    blocks.iter().all(|block| {
        (block.start..block.start.saturating_add(block.size))
            .all(|slice| taken.get_mut(slice as usize).is_some_and(|taken| !std::mem::replace(taken, true)))
    })
}

/// `|   3g.40gb   |   3g.40gb   |`, free slices as `..`; `None` where the blocks do not fit the grid.
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
    use super::*;

    #[test]
    fn layouts_are_read_and_drawn() {
        let two = blocks_in("3g.40gb@0, 3g.40gb@4", 81_559).unwrap();
        assert_eq!(drawing(&two).unwrap(), "|        3g.40gb        |        3g.40gb        |");
        let mixed = blocks_in("1g.18gb@0 1g.35gb@2 3g.71gb@4", 143_771).unwrap();
        assert_eq!(
            drawing(&mixed).unwrap(),
            "| 1g  | .. |  1g.35gb  |        3g.71gb        |".replace(" .. ", " ..  ")
        );
        let media = blocks_in("1g.10gb+me@0", 81_559).unwrap();
        assert_eq!(media[0].size, 1);
    }

    #[test]
    fn what_has_no_places_is_not_drawn() {
        assert_eq!(blocks_in("2x 3g.40gb", 81_559), None);
        assert_eq!(blocks_in("3g.40gb@0, 3g.40gb@2", 81_559), None, "they overlap");
        assert_eq!(blocks_in("none", 0), None);
    }
}

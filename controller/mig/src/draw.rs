//! Draws the memory slices of a GPU: `|  3g.40gb  |1g.10gb|·|…`.

use gpufleet_protocol::{
    mig::Slot,
    nvml::{MigProfile, Placement},
};

use crate::families::Family;

/// What a slice without an instance shows.
const FREE: char = '·';

/// Returns the slices of a GPU with its instances, each slice `width` columns wide.
pub fn slots(profiles: &[MigProfile], grid: u32, instances: &[Slot], width: usize) -> String {
    let mut instances = instances.to_vec();
    instances.sort_unstable();
    let mut out = String::from("|");
    let mut at = 0;
    for Slot { placement: Placement { start, size }, profile_id } in instances {
        free(&mut out, start.saturating_sub(at), width);
        let name =
            profiles.iter().find(|profile| profile.id == profile_id).map_or("?", |profile| &profile.name);
        out.push_str(&centred(name, columns(size, width)));
        out.push('|');
        at = start + size;
    }
    free(&mut out, grid.saturating_sub(at), width);
    out
}

fn free(out: &mut String, slices: u32, width: usize) {
    for _ in 0..slices {
        out.push_str(&centred(&FREE.to_string(), width));
        out.push('|');
    }
}

/// Columns of an instance, the bars between its slices included.
fn columns(slices: u32, width: usize) -> usize {
    let slices = slices as usize;
    slices * width + slices.saturating_sub(1)
}

fn centred(text: &str, width: usize) -> String {
    let text: String = text.chars().take(width).collect();
    format!("{text:^width$}")
}

/// Returns the columns of a slice in which every name of the family fits.
pub fn slice_width(family: &Family) -> usize {
    width_of(&family.profiles)
}

/// Returns the columns of a slice in which the names of these profiles fit.
pub fn width_of<'a>(profiles: impl IntoIterator<Item = &'a MigProfile>) -> usize {
    let needed = |profile: &MigProfile| {
        let size = profile.placements.as_ref().ok()?.first()?.size as usize;
        let name = profile.name.chars().count();
        // `size` slices have `size - 1` bars between them.
        Some((name + 1).saturating_sub(size).div_ceil(size))
    };
    profiles.into_iter().filter_map(needed).max().unwrap_or(1)
}

/// Returns the profiles of a family, a line each: how many, their slices and memory, and each of their places.
pub fn family(family: &Family) -> String {
    let width = slice_width(family);
    let names = family.profiles.iter().map(|profile| profile.name.chars().count()).max().unwrap_or(0);
    let mut out = format!(
        "{} ({}, {})\n{} memory slices, {} compute slices; {}\n\n",
        family.key,
        family.products.join(", "),
        family.architecture,
        family.grid,
        family.slices,
        family.quality
    );
    for profile in &family.profiles {
        let places = profile.placements.as_ref().map(Vec::as_slice).unwrap_or_default();
        let memory = match profile.memory_mib {
            0 => "?".to_owned(),
            mib => format!("{:.1}", f64::from(u32::try_from(mib).unwrap_or(u32::MAX)) / 1024.0),
        };
        let starts: Vec<String> = places.iter().map(|place| place.start.to_string()).collect();
        out.push_str(&format!(
            "{:names$}  id {:>2}  at most {}  {memory:>5} GiB  {} compute  at {}\n",
            profile.name,
            profile.id,
            profile.max_count,
            profile.slices,
            starts.join(", ")
        ));
        for row in rows(places) {
            let instances: Vec<Slot> =
                row.into_iter().map(|placement| Slot { placement, profile_id: profile.id }).collect();
            out.push_str(&format!(
                "{:names$}  {}\n",
                "",
                slots(&family.profiles, family.grid, &instances, width)
            ));
        }
    }
    if !family.other_names.is_empty() {
        out.push_str(&format!("\nOther drivers call them {}.\n", family.other_names.join(", ")));
    }
    out
}

/// Places in rows, of which no two overlap in a row.
fn rows(places: &[Placement]) -> Vec<Vec<Placement>> {
    let mut rows: Vec<Vec<Placement>> = Vec::new();
    for place in places {
        let fits =
            |row: &&mut Vec<Placement>| row.last().is_none_or(|last| last.start + last.size <= place.start);
        match rows.iter_mut().find(fits) {
            Some(row) => row.push(*place),
            None => rows.push(vec![*place]),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{find, fit, layout::Counts};

    #[test]
    fn a_layout_is_drawn_by_its_slices() {
        let h100 = find("h100-80gb").unwrap();
        let counts: Counts = [("3g.40gb".to_owned(), 1), ("1g.10gb".to_owned(), 2)].into();
        let found = fit(h100, &counts).unwrap();
        assert_eq!(
            slots(&h100.profiles, h100.grid, &found, 10),
            "|                  3g.40gb                  | 1g.10gb  | 1g.10gb  |    ·     |    ·     |"
        );
        assert_eq!(slots(&h100.profiles, h100.grid, &[], 1), "|·|·|·|·|·|·|·|·|");
    }

    #[test]
    fn a_family_is_drawn_with_all_places() {
        insta::assert_snapshot!(family(find("a30").unwrap()), @r#"
        a30-24gb (A30, ampere)
        4 memory slices, 4 compute slices; from published output of nvidia-smi

        1g.6gb      id 14  at most 4    5.8 GiB  1 compute  at 0, 1, 2, 3
                    | 1g.6gb  | 1g.6gb  | 1g.6gb  | 1g.6gb  |
        1g.6gb+me   id 21  at most 1    5.8 GiB  1 compute  at 0, 1, 2, 3
                    |1g.6gb+me|1g.6gb+me|1g.6gb+me|1g.6gb+me|
        2g.12gb     id  5  at most 2   11.7 GiB  2 compute  at 0, 2
                    |      2g.12gb      |      2g.12gb      |
        2g.12gb+me  id  6  at most 1   11.7 GiB  2 compute  at 0, 2
                    |    2g.12gb+me     |    2g.12gb+me     |
        4g.24gb     id  0  at most 1   23.4 GiB  4 compute  at 0
                    |                4g.24gb                |
        "#);
    }
}

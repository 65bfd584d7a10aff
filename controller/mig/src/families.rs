//! The GPU families with MIG: their grids, profiles and places.
//!
//! `families.json` has facts that were read from devices (`measured`), published by others (`reported`), or follow from a
//! sibling (`inferred`). Sources: NVIDIA MIG User Guide r580, "Supported MIG Profiles"; readings of an H100 80GB and an
//! H200 with driver 580.159; published output of `nvidia-smi mig -lgip` and `-lgipp`.

use std::{fmt, sync::LazyLock};

use gpufleet_language::diagnostic::suggest;
use gpufleet_protocol::{
    mig::{self, MigError},
    nvml::{MigProfile, Placement},
};
use serde::Deserialize;

const TABLE: &str = include_str!("families.json");

/// How sure the facts of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Read from a device.
    Measured,
    /// From the output of `nvidia-smi` that others published.
    Reported,
    /// From a sibling: the places are likely, and not proven.
    Inferred,
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Measured => "read from a device",
            Self::Reported => "from published output of nvidia-smi",
            Self::Inferred => "inferred from a sibling",
        })
    }
}

/// GPUs with the same profiles.
#[derive(Clone, Debug)]
pub struct Family {
    /// Such as `h100-80gb`.
    pub key: String,
    pub products: Vec<String>,
    pub architecture: String,
    /// PCI device ids of NVIDIA.
    pub device_ids: Vec<u16>,
    /// Number of memory slices.
    pub grid: u32,
    /// Number of compute slices.
    pub slices: u32,
    pub quality: Quality,
    /// Names that other drivers give the profiles, in the same order; empty where none differ.
    pub other_names: Vec<String>,
    pub profiles: Vec<MigProfile>,
}

impl Family {
    /// Finds a profile by the name that some driver gives it.
    ///
    /// # Errors
    /// [`MigError::UnknownProfile`].
    pub fn profile(&self, name: &str) -> Result<&MigProfile, MigError> {
        mig::find(&self.profiles, name).or_else(|error| {
            let other = self.other_names.iter().position(|other| other.eq_ignore_ascii_case(name));
            other.and_then(|at| self.profiles.get(at)).ok_or(error)
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    key: String,
    products: Vec<String>,
    architecture: String,
    device_ids: Vec<String>,
    grid: u32,
    slices: u32,
    quality: Quality,
    other_names: Vec<String>,
    profiles: Vec<ProfileRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileRow {
    name: String,
    id: u32,
    slices: u32,
    max_count: u32,
    memory_mib: Option<u64>,
    size: u32,
    starts: Vec<u32>,
}

impl From<Row> for Family {
    fn from(row: Row) -> Self {
        let Row { key, products, architecture, device_ids, grid, slices, quality, other_names, profiles } =
            row;
        let number = |id: &String| u16::from_str_radix(id.trim_start_matches("0x"), 16).ok();
        let profiles = profiles.into_iter().map(|row| MigProfile {
            id: row.id,
            name: row.name,
            slices: row.slices,
            max_count: row.max_count,
            memory_mib: row.memory_mib.unwrap_or_default(),
            placements: Ok(row.starts.into_iter().map(|start| Placement { start, size: row.size }).collect()),
        });
        Self {
            key,
            products,
            architecture,
            device_ids: device_ids.iter().filter_map(number).collect(),
            grid,
            slices,
            quality,
            other_names,
            profiles: profiles.collect(),
        }
    }
}

/// Returns all families, the oldest first.
#[expect(clippy::expect_used, reason = "a test reads the table, which is part of the program")]
pub fn families() -> &'static [Family] {
    static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(|| {
        let rows: Vec<Row> = serde_json::from_str(TABLE).expect("the table of families is JSON");
        rows.into_iter().map(Family::from).collect()
    });
    &FAMILIES
}

/// Returns the keys of all families.
pub fn known() -> Vec<&'static str> {
    families().iter().map(|family| family.key.as_str()).collect()
}

/// Splits a name into its words: `H100 80GB HBM3`, `h100-80gb`.
fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.filter(|word| *word != "nvidia").map(str::to_owned).collect()
}

/// Whether a name has these words, in their order.
fn has(name: &str, wanted: &[String]) -> bool {
    let of_name = words(name);
    let mut left = of_name.iter();
    wanted.iter().all(|word| left.any(|other| other == word))
}

/// Finds a family by its key, by words of a product that only it has, or by a PCI device id (`0x2330`).
///
/// # Errors
/// The keys that were meant, in words.
pub fn find(word: &str) -> Result<&'static Family, String> {
    if let Some(id) = device_id(word) {
        let found = families().iter().find(|family| family.device_ids.contains(&id));
        return found.ok_or_else(|| {
            format!(
                "the PCI device id 0x{id:04x} is not in the table of this gpufleet, so it may be that of a newer board: name the family \
                 whose profiles it has ({})",
                known().join(", ")
            )
        });
    }
    let wanted = words(word);
    let names = |family: &'static Family| std::iter::once(&family.key).chain(&family.products);
    let is_called = |family: &&'static Family| names(family).any(|name| words(name) == wanted);
    if let Some(family) = families().iter().find(is_called) {
        return Ok(family);
    }
    let may_be = |family: &&'static Family| names(family).any(|name| has(name, &wanted));
    let found: Vec<&Family> = families().iter().filter(|_| !wanted.is_empty()).filter(may_be).collect();
    match found.as_slice() {
        [family] => Ok(family),
        [] => Err(match suggest(word, known()) {
            Some(close) => format!("no GPU with MIG is called `{word}`; did you mean `{close}`?"),
            None => format!("no GPU with MIG is called `{word}`; known are {}", known().join(", ")),
        }),
        several => {
            let keys: Vec<&str> = several.iter().map(|family| family.key.as_str()).collect();
            Err(format!("`{word}` may be {}", keys.join(", ")))
        }
    }
}

/// Returns the PCI device id that a word is, such as `0x2330`.
pub fn device_id(word: &str) -> Option<u16> {
    let word = word.to_lowercase();
    let hex = word.strip_prefix("0x").filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u16::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_on_the_grid() {
        assert_eq!(families().len(), 13);
        for family in families() {
            assert!([4, 8, 12].contains(&family.grid), "{}", family.key);
            assert!(!family.device_ids.is_empty() && !family.products.is_empty(), "{}", family.key);
            for profile in &family.profiles {
                let places = profile.placements.as_ref().unwrap();
                assert!(!places.is_empty(), "{} {}", family.key, profile.name);
                assert!(
                    places.iter().all(|place| place.start + place.size <= family.grid),
                    "{}",
                    profile.name
                );
                assert!(profile.slices <= family.slices && profile.max_count >= 1);
            }
            let mut ids: Vec<u32> = family.profiles.iter().map(|profile| profile.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert!([0, family.profiles.len()].contains(&family.other_names.len()), "{}", family.key);
            assert_eq!(ids.len(), family.profiles.len(), "{}", family.key);
        }
    }

    #[test]
    fn a_family_is_found_by_what_people_call_it() {
        for (word, key) in [
            ("h100-80gb", "h100-80gb"),
            ("NVIDIA H100 80GB HBM3", "h100-80gb"),
            ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
            ("NVIDIA H200", "h200-141gb"),
            ("NVIDIA H20", "h100-96gb-gh200"),
            ("GH200 480GB", "h100-96gb-gh200"),
            ("0x2335", "h200-141gb"),
            ("a30", "a30-24gb"),
            ("GB200", "gb200-186gb"),
            ("rtx pro 6000", "rtx-pro-6000-blackwell"),
        ] {
            assert_eq!(find(word).map(|family| family.key.as_str()), Ok(key), "{word}");
        }
        assert_eq!(find("a100").unwrap_err(), "`a100` may be a100-40gb, a100-80gb");
        assert_eq!(find("gh200").unwrap_err(), "`gh200` may be h100-96gb-gh200, gh200-144gb");
        assert!(find("h100-8gb").unwrap_err().ends_with("did you mean `h100-80gb`?"));
        assert!(find("A10").unwrap_err().starts_with("no GPU with MIG is called `A10`"));
        let unknown = find("0x2bb4").unwrap_err();
        let says = "the PCI device id 0x2bb4 is not in the table of this gpufleet, so it may be that of a newer board: name the";
        assert!(unknown.starts_with(says) && unknown.contains("rtx-pro-6000-blackwell"), "{unknown}");
        assert!(find("").is_err());
    }
}

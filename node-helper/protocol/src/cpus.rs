//! Sets of CPUs, in the form in which the kernel lists them: `0-3,8`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Largest CPU number that is taken; kernels are built for 8192 CPUs at most.
const LARGEST: u32 = 65_535;

/// A set of CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuList {
    /// First and last of each run; in order, with a gap between each two.
    runs: Vec<(u32, u32)>,
}

impl CpuList {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn len(&self) -> usize {
        self.runs.iter().map(|(first, last)| (last - first + 1) as usize).sum()
    }

    pub fn first(&self) -> Option<u32> {
        self.runs.first().map(|(first, _)| *first)
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.runs.iter().any(|(first, last)| (*first..=*last).contains(&cpu))
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.runs.iter().flat_map(|(first, last)| *first..=*last)
    }

    pub fn is_subset(&self, of: &Self) -> bool {
        self.iter().all(|cpu| of.contains(cpu))
    }

    /// Returns what both have.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        self.iter().filter(|cpu| other.contains(*cpu)).collect()
    }

    /// Returns what the other one lacks.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.iter().filter(|cpu| !other.contains(*cpu)).collect()
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self::of_runs(numbers.into_iter().map(|cpu| (cpu, cpu)).collect())
    }
}

impl CpuList {
    fn of_runs(mut runs: Vec<(u32, u32)>) -> Self {
        runs.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (first, last) in runs {
            match joined.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        Self { runs: joined }
    }
}

/// A text that is no list of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no list of CPUs such as `0-3,8`")]
pub struct NoCpuList;

impl FromStr for CpuList {
    type Err = NoCpuList;

    /// Reads what the kernel writes. A text that is empty or blank is the empty set.
    fn from_str(text: &str) -> Result<Self, NoCpuList> {
        let number = |text: &str| match text.parse::<u32>() {
            Ok(cpu) if cpu <= LARGEST && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(cpu),
            _ => Err(NoCpuList),
        };
        let run = |part: &str| -> Result<(u32, u32), NoCpuList> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first <= last { Ok((first, last)) } else { Err(NoCpuList) }
        };
        match text.trim() {
            "" => Ok(Self::default()),
            text => text.split(',').map(run).collect::<Result<_, _>>().map(Self::of_runs),
        }
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.runs.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for CpuList {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        // In the words of a value that is wanted, because messages put what it is for before them.
        text.parse().map_err(|_| {
            de::Error::invalid_value(de::Unexpected::Str(&text), &"a list of CPUs such as `0-3,8`")
        })
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for CpuList {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CpuList".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "CPU numbers such as `0-3,8`",
            "pattern": "^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$"
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_kernel_does_not_write_is_no_list() {
        for text in ["a", "1-", "-1", "3-1", "1,,2", "1;2", "+1", "0-99999999", "1 2"] {
            assert_eq!(text.parse::<CpuList>(), Err(NoCpuList), "{text}");
        }
        assert!("\n".parse::<CpuList>().unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_its_numbers(
            one in proptest::collection::btree_set(0_u32..200, 0..40),
            other in proptest::collection::btree_set(0_u32..200, 0..40),
        ) {
            let list = |set: &BTreeSet<u32>| set.iter().copied().collect::<CpuList>();
            let set = |list: &CpuList| list.iter().collect::<BTreeSet<u32>>();
            let (a, b) = (list(&one), list(&other));
            prop_assert_eq!(set(&a), one.clone());
            prop_assert_eq!(a.to_string().parse::<CpuList>(), Ok(a.clone()));
            prop_assert_eq!(a.len(), one.len());
            prop_assert_eq!(set(&a.common(&b)), &one & &other);
            prop_assert_eq!(set(&a.without(&b)), &one - &other);
            prop_assert_eq!(a.is_subset(&b), one.is_subset(&other));
        }
    }
}

//! What a transaction of rpm that was killed leaves behind. Pure.

use std::collections::BTreeMap;

use super::Interrupted;
use crate::tasks::driver::{
    attempt::Attempt,
    recipe::{is_driver, upstream},
};

/// A package that is installed in several versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Twice {
    pub name: String,
    architecture: String,
    versions: Vec<String>,
}

/// Returns the packages of a driver that are installed in several versions. Pure.
pub fn twice(all: Vec<(String, String, String, u64)>) -> Vec<Twice> {
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (name, version, architecture, _) in all.into_iter().filter(|one| is_driver(&one.0)) {
        found.entry((name, architecture)).or_default().push(version);
    }
    let several = found.into_iter().filter(|(_, versions)| versions.len() > 1);
    several.map(|((name, architecture), versions)| Twice { name, architecture, versions }).collect()
}

/// Returns what rpm had replaced, and was killed before it removed it: rpm installs all new packages of a transaction
/// before it removes the first old one. Pure.
///
/// Only the note of an attempt tells which version is the old one. Times of installation do not: clocks are set, and
/// other people's transactions are interrupted too.
pub fn leftovers(twice: &[Twice], attempt: Option<&Attempt>) -> Interrupted {
    let mut half = Interrupted::default();
    let mut unclear = Vec::new();
    for one in twice {
        let spec = |version: &String| format!("{}-{version}.{}", one.name, one.architecture);
        let is_old = |version: &&String| {
            attempt.is_some_and(|attempt| {
                attempt.was(&one.name, version) && upstream(version) != attempt.wanted.as_str()
            })
        };
        let (old, new): (Vec<&String>, Vec<&String>) = one.versions.iter().partition(is_old);
        match (old.is_empty(), new.len()) {
            (false, 1) => half.packages.extend(old.into_iter().map(spec)),
            _ => unclear.extend(one.versions.iter().map(spec)),
        }
    }
    half.unclear = (!unclear.is_empty()).then(|| {
        format!(
            "packages of the driver are installed in several versions, and gpufleet has no note of which is left over: {}; \
             remove the wrong ones (`dnf remove --duplicates`, or `rpm -e --nodeps` with one of these), and run again",
            unclear.join(", ")
        )
    });
    half
}

#[cfg(test)]
mod tests {
    use super::{super::words, *};
    use crate::tasks::driver::attempt::Former;

    #[test]
    fn only_a_note_tells_which_version_is_left_over() {
        let package = |name: &str, version: &str, at: u64| {
            (name.to_owned(), format!("3:{version}-1"), "x86_64".to_owned(), at)
        };
        // The old one has the later time, as after a clock was set.
        let all = || {
            vec![
                package("nvidia-open", "575.1", 9),
                package("nvidia-open", "580.1", 1),
                package("bash", "1", 1),
            ]
        };
        let none = leftovers(&twice(all()), None);
        assert!(none.packages.is_empty());
        let why = none.unclear.unwrap();
        assert!(
            why.contains("nvidia-open-3:575.1-1.x86_64") && why.contains("dnf remove --duplicates"),
            "{why}"
        );
        let former = |version: &str| Former {
            name: "nvidia-open".to_owned(),
            version: format!("3:{version}-1"),
            file: None,
        };
        let mut attempt = Attempt {
            wanted: "580.1".to_owned(),
            before: None,
            boot_id: String::new(),
            former: vec![former("575.1")],
            added: Vec::new(),
            held: Vec::new(),
            modules: Vec::new(),
            stream: None,
        };
        let noted = leftovers(&twice(all()), Some(&attempt));
        assert_eq!((noted.packages, noted.unclear), (words(&["nvidia-open-3:575.1-1.x86_64"]), None));
        // Another transaction than the noted one, and one that wants the former version again.
        for (wanted, before) in [("580.1", "570.1"), ("575.1", "575.1")] {
            (attempt.wanted, attempt.former) = (wanted.to_owned(), vec![former(before)]);
            let other = leftovers(&twice(all()), Some(&attempt));
            assert!(other.packages.is_empty() && other.unclear.is_some(), "{other:?}");
        }
    }
}

//! Words of the kernel command line, and which of them exclude each other. Pure.
//!
//! A key may appear more than once on a line; its meaning then depends on the key, see [`Rule`].

mod rules;

pub use rules::{Rule, is_list, rule};

use rules::are_contrary;

/// Returns the part before `=`. The kernel treats `-` and `_` in it as equal.
pub fn key(word: &str) -> String {
    word.split('=').next().unwrap_or(word).replace('-', "_")
}

/// Returns the part behind `=`.
pub fn value(word: &str) -> Option<&str> {
    word.split_once('=').map(|(_, value)| value)
}

fn same(a: &str, b: &str) -> bool {
    key(a) == key(b) && value(a) == value(b)
}

/// Words that belong together: a size of huge pages and its number, an item of a list, or a single word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub words: Vec<String>,
}

impl Unit {
    fn one(word: impl Into<String>) -> Self {
        Self { words: vec![word.into()] }
    }

    pub fn first(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub fn key(&self) -> String {
        key(self.first())
    }

    pub fn text(&self) -> String {
        self.words.join(" ")
    }

    pub fn is(&self, other: &Self) -> bool {
        self.words.len() == other.words.len() && self.words.iter().zip(&other.words).all(|(a, b)| same(a, b))
    }

    /// Whether a declared unit replaces another one.
    pub fn excludes(&self, have: &Self) -> bool {
        // A size that stands alone before the pair makes the kernel ignore the pair, number and all: "specified twice, ignoring"
        // (kernel, mm/hugetlb.c: `hugepagesz_setup`, since 5.8).
        if self.words.len() > 1 && have.words.len() == 1 && rule(&have.key()) == Rule::Size {
            return same(self.first(), have.first());
        }
        if self.key() != have.key() || self.words.len() != have.words.len() || self.is(have) {
            return false;
        }
        if self.words.len() > 1 {
            return same(self.first(), have.first());
        }
        match rule(&self.key()) {
            // A size without a number belongs to no pair.
            Rule::Size => false,
            // `crashkernel=X,high` and `,low` are two halves; a value without either is the whole.
            Rule::Halves => {
                let part = |unit: &Self| {
                    let value = value(unit.first()).unwrap_or_default();
                    [",high", ",low"].into_iter().find(|part| value.ends_with(part))
                };
                let (ours, theirs) = (part(self), part(have));
                ours.is_none() || theirs.is_none() || ours == theirs
            }
            Rule::One => true,
            Rule::Each | Rule::Options => {
                let values = value(self.first()).zip(value(have.first()));
                values.is_some_and(|(ours, theirs)| are_contrary(&self.key(), ours, theirs))
            }
            Rule::List | Rule::LastList => false,
        }
    }

    /// Whether one of these names the unit, as a whole word or by its key.
    pub fn is_among(&self, gone: &[String]) -> bool {
        self.words.iter().any(|word| is_removed(word, gone))
    }
}

/// Whether one of these names a word, as a whole or by its key.
pub fn is_removed(word: &str, gone: &[String]) -> bool {
    gone.iter().any(|gone| match gone.contains('=') {
        true => same(gone, word),
        false => key(gone) == key(word),
    })
}

/// Keeps the words of units that pass, and of lists the items that do.
pub fn retain(words: &mut Vec<String>, passes: impl Fn(&Unit) -> bool) {
    let leaving: Vec<(Unit, Vec<usize>)> =
        placed(words).into_iter().filter(|(unit, _)| !passes(unit)).collect();
    let mut places = 0..;
    words.retain_mut(|word| {
        let at = places.next().unwrap_or_default();
        let here: Vec<&Unit> =
            leaving.iter().filter(|(_, places)| places.contains(&at)).map(|(unit, _)| unit).collect();
        if here.is_empty() {
            return true;
        }
        let Some(list) = value(word).filter(|_| is_list(&key(word))) else { return false };
        let stays = |item: &&str| !here.iter().any(|unit| value(unit.first()) == Some(*item));
        let kept: Vec<&str> = list.split(',').filter(|item| !item.is_empty()).filter(stays).collect();
        let name = word.split('=').next().unwrap_or_default();
        let left = format!("{name}={}", kept.join(","));
        let is_left = !kept.is_empty();
        *word = left;
        is_left
    });
}

/// Splits a word into one word for each item of its list.
pub fn items(word: &str) -> Vec<String> {
    match value(word) {
        Some(value) if is_list(&key(word)) => {
            let name = word.split('=').next().unwrap_or_default();
            value.split(',').filter(|item| !item.is_empty()).map(|item| format!("{name}={item}")).collect()
        }
        _ => vec![word.to_owned()],
    }
}

/// Returns the units of a line, lists split.
pub fn units(words: &[String]) -> Vec<Unit> {
    placed(words).into_iter().map(|(unit, _)| unit).collect()
}

/// Returns the units of a line with the positions of their words.
pub fn placed(words: &[String]) -> Vec<(Unit, Vec<usize>)> {
    let mut units: Vec<(Unit, Vec<usize>)> = Vec::new();
    // Position of the size that the next number of huge pages belongs to.
    let mut size: Option<usize> = None;
    for (at, word) in words.iter().enumerate() {
        match (key(word).as_str(), value(word)) {
            ("hugepages", Some(_)) if size.is_some() => {
                if let Some((unit, places)) = size.take().and_then(|size| units.get_mut(size)) {
                    unit.words.push(word.clone());
                    places.push(at);
                }
            }
            (name, Some(_)) if is_list(name) => {
                units.extend(items(word).into_iter().map(|item| (Unit::one(item), vec![at])));
            }
            (name, _) => {
                if rule(name) == Rule::Size {
                    size = Some(units.len());
                }
                units.push((Unit::one(word), vec![at]));
            }
        }
    }
    units
}

/// Returns two units that cannot both count on one line, in the order given: they exclude each other, or the order of their
/// key cannot be had because one of them stands on both sides of another.
pub fn contrary(units: &[Unit]) -> Option<(&Unit, &Unit)> {
    let behind = |at: usize| units.iter().skip(at + 1);
    units.iter().enumerate().find_map(|(at, one)| {
        let other = behind(at).find(|other| other.excludes(one)).or_else(|| {
            let again = behind(at).any(|later| later.is(one));
            let between =
                || behind(at).take_while(|later| !later.is(one)).find(|unit| unit.key() == one.key());
            if again && rule(&one.key()) == Rule::Each { between() } else { None }
        });
        other.map(|other| (one, other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{KernelCmdline, Kind};

    #[test]
    fn what_cannot_both_count_is_found() {
        let found = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            contrary(&units(&words)).map(|(one, other)| format!("{}|{}", one.text(), other.text()))
        };
        for (line, wrong) in [
            ("iommu=pt quiet iommu=off", "iommu=pt|iommu=off"),
            ("iommu=pt,off", "iommu=pt|iommu=off"),
            ("mitigations=off mitigations=auto", "mitigations=off|mitigations=auto"),
            ("nohz-full=1 nohz_full=2", "nohz-full=1|nohz_full=2"),
            ("crashkernel=1G,high crashkernel=2G,high", "crashkernel=1G,high|crashkernel=2G,high"),
            ("hugepagesz=1G quiet hugepagesz=1G hugepages=8", "hugepagesz=1G|hugepagesz=1G hugepages=8"),
            (
                "hugepagesz=1G hugepages=4 hugepagesz=1G hugepages=8",
                "hugepagesz=1G hugepages=4|hugepagesz=1G hugepages=8",
            ),
            ("console=tty0 console=ttyS0 console=tty0", "console=tty0|console=ttyS0"),
        ] {
            assert_eq!(found(line).as_deref(), Some(wrong), "{line}");
        }
        for line in [
            "iommu=pt iommu=noagp",
            "console=tty0 console=ttyS0",
            "console=tty0 console=tty0",
            "modprobe.blacklist=a modprobe.blacklist=b",
            "crashkernel=1G,high crashkernel=256M,low",
            "hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=8 hugepages=9",
            "quiet quiet",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
    }

    #[test]
    fn a_task_that_contradicts_itself_is_refused() {
        let why = |add: &[&str]| {
            let read = KernelCmdline::INFO.parse(serde_json::json!({ "add": add }));
            read.map(|_| ()).map_err(|error| error.to_string())
        };
        let wrong = why(&["iommu=pt", "iommu=off"]).unwrap_err();
        assert_eq!(wrong, "`iommu=pt` and `iommu=off` cannot both count on one line; keep one of them");
        let wrong = why(&["console=tty0", "console=ttyS0", "console=tty0"]).unwrap_err();
        assert_eq!(wrong, "`console=tty0` is both before and behind `console=ttyS0`; name it once");
        assert_eq!(why(&["iommu=pt", "iommu=noagp", "console=tty0", "console=ttyS0"]), Ok(()));
    }
}

//! Parses the output of dpkg and apt. Nothing here runs a program.

use std::collections::{HashMap, HashSet};

use gpufleet_protocol::glob::Glob;

use crate::tasks::packages::Action;

/// The format for `dpkg-query -W`.
pub const FORMAT: &str =
    "-f=${Package}\\t${Architecture}\\t${db:Status-Status}\\t${Version}\\t${Provides}\\n";

/// A package as a task names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec<'a> {
    pub name: &'a str,
    /// Empty, `=` or `>=`.
    pub op: &'a str,
    pub version: &'a str,
}

impl<'a> Spec<'a> {
    pub fn parse(text: &'a str) -> Self {
        for op in [">=", "="] {
            if let Some((name, version)) = text.split_once(op) {
                return Self {
                    name: name.trim(),
                    op: if op == "=" { "=" } else { ">=" },
                    version: version.trim(),
                };
            }
        }
        Self { name: text, op: "", version: "" }
    }
}

/// The installed packages. A predicted version is empty.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    versions: HashMap<String, String>,
    /// Removed packages with remaining configuration files.
    remains: HashSet<String>,
    provided: HashSet<String>,
}

impl Installed {
    pub fn parse(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, arch, status, version, provides] = fields.as_slice() else { continue };
            match *status {
                "installed" | "triggers-pending" | "triggers-awaited" => {
                    all.versions.insert(format!("{name}:{arch}"), (*version).to_owned());
                    all.versions.insert((*name).to_owned(), (*version).to_owned());
                    let names = provides.split(',').filter_map(|one| one.split_whitespace().next());
                    all.provided.extend(names.map(str::to_owned));
                }
                "config-files" => {
                    all.remains.insert((*name).to_owned());
                }
                _ => {}
            }
        }
        all
    }

    pub fn assume(&mut self, name: &str, version: Option<String>) {
        match version {
            Some(version) => {
                self.versions.insert(name.to_owned(), version);
            }
            None => {
                self.versions.retain(|known, _| known.split(':').next() != Some(name));
                self.remains.remove(name);
            }
        }
    }

    pub fn version(&self, name: &str) -> Option<&str> {
        self.versions.get(name).map(String::as_str)
    }

    /// Whether an installed package provides this name.
    pub fn provides(&self, name: &str) -> bool {
        self.provided.contains(name)
    }

    /// Returns the names of all installed packages, those of other architectures with theirs.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.versions.keys()
    }

    /// Returns installed packages that match a name or pattern; with `purge`, also removed ones with remains.
    pub fn matching(&self, pattern: &str, purge: bool) -> Vec<String> {
        let remains = self.remains.iter().filter(|_| purge);
        let names = self.versions.keys().chain(remains);
        match Glob::is_glob(pattern) {
            true => {
                let glob = Glob::new(pattern);
                names.filter(|name| !name.contains(':') && glob.matches(name)).cloned().collect()
            }
            false => names.filter(|name| *name == pattern).cloned().collect(),
        }
    }
}

/// Parses the actions of `apt-get -s`.
pub fn actions(text: &str) -> Vec<Action> {
    let bracket = |word: Option<&&str>| -> Option<String> {
        Some(word?.strip_prefix('[')?.trim_end_matches(']').to_owned())
    };
    let read = |line: &str| -> Option<Action> {
        let words: Vec<&str> = line.split(' ').collect();
        let (verb, name) = (*words.first()?, (*words.get(1)?).to_owned());
        let from = bracket(words.get(2));
        match verb {
            "Inst" => {
                let new = words.iter().find_map(|word| word.strip_prefix('('))?;
                Some(Action { name, from, to: Some(new.trim_end_matches(')').to_owned()) })
            }
            "Remv" | "Purg" => Some(Action { name, from, to: None }),
            _ => None,
        }
    };
    let mut actions: Vec<Action> = Vec::new();
    for action in text.lines().filter_map(read) {
        // A purge lists a package twice.
        if !actions.iter().any(|known| known.name == action.name && known.to == action.to) {
            actions.push(action);
        }
    }
    actions
}

/// Joins the error lines.
pub fn errors(stderr: &str) -> String {
    let lines = stderr.lines().filter_map(|line| line.strip_prefix("E: "));
    lines.map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Returns the dependencies that apt could not satisfy, which it does not write among its errors.
pub fn unmet(stdout: &str) -> Option<String> {
    let (_, list) = stdout.split_once("have unmet dependencies:\n")?;
    let lines = list.lines().take_while(|line| line.starts_with(' '));
    let lines: Vec<String> =
        lines.take(8).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    (!lines.is_empty()).then(|| format!("({})", lines.join("; ")))
}

/// Returns the packages that a list of unmet dependencies names: those that need others, and those that they need.
pub fn unmatched(stdout: &str) -> impl Iterator<Item = &str> {
    let list = stdout.split_once("have unmet dependencies:\n").map_or("", |(_, list)| list);
    let lines = list.lines().take_while(|line| line.starts_with(' '));
    // ` nvidia-open-575 : Depends: libnvidia-ml1 (= 575.57.08-1) but 580.173.02-1 is installed`, and further relations
    // below, without the name.
    lines.flat_map(|line| {
        let (who, relation) = line.split_once(" : ").unwrap_or(("", line));
        let needs = relation.split_once(": ").map_or(relation, |(_, needs)| needs);
        [who.trim(), needs.split_whitespace().next().unwrap_or_default()]
            .into_iter()
            .filter(|name| !name.is_empty())
    })
}

/// Whether an error means that the package lists lack something.
pub fn lists_lack(errors: &str) -> bool {
    ["Unable to locate package", "has no installation candidate", "was not found", "find any package"]
        .iter()
        .any(|words| errors.contains(words))
}

/// Formats a call for people, without its options.
pub fn shown(arguments: &[String]) -> String {
    let mut words = Vec::new();
    let mut all = arguments.iter();
    while let Some(word) = all.next() {
        match word.as_str() {
            "-o" | "-t" => {
                all.next();
            }
            option if option.starts_with('-') => {}
            word => words.push(word),
        }
    }
    words.join(" ")
}

//! Packages that are one set, such as driver, kernel and fabric manager: none may move without the others.
//!
//! A hold stops what comes. What has come already it only keeps, so that a set whose parts have moved apart is a fault that
//! no hold mends: the fabric manager has to be of the driver's very version, or it does not start.

use std::collections::{BTreeMap, BTreeSet};

use super::{LARGEST, Manager, is_dnf5, plain};
use crate::{
    declare::{Node, Trouble},
    process::Exit,
    tasks::tool,
};

/// What names of packages begin with that only work with the driver of their own version.
///
/// The others have versions of their own: distributions build nvidia-settings, nvidia-persistenced and nvidia-modprobe from
/// older sources, firmware of the branch before stays installed, and a precompiled module is of its kernel.
const BOUND: [&str; 12] = [
    "libnvidia-",
    "nvidia-driver",
    "nvidia-kernel-",
    "nvidia-dkms",
    "nvidia-open",
    "nvidia-utils",
    "nvidia-compute-utils",
    "nvidia-headless",
    "nvidia-smi",
    "nvidia-fabricmanager",
    "nvidia-fabric-manager",
    "nvidia-imex",
];
/// Names among them that are not: drivers beside the driver, and what only pins or brings one.
const FREE: [&str; 3] = ["libnvidia-legacy-", "nvidia-driver-pinning", "nvidia-driver-local-repo"];
/// Packages that a message names.
const MOST_TOLD: usize = 4;

/// What is known of the packages of a set.
#[derive(Debug, Default)]
pub struct Set {
    /// Version of each, where the package manager tells.
    versions: BTreeMap<String, String>,
    /// The version that an update brings, as far as the lists of packages on the node tell.
    pending: BTreeMap<String, String>,
    /// Patterns that no installed package is of.
    lacking: Vec<String>,
    /// Why updates are not known.
    unknown: Option<String>,
}

/// Reads `apt-cache policy`: of each package its installed version, and the one that an update would install.
fn policies(text: &str) -> BTreeMap<String, (String, String)> {
    let (mut found, mut name, mut installed) = (BTreeMap::new(), String::new(), String::new());
    for line in text.lines() {
        if !line.starts_with(' ') {
            line.trim_end_matches(':').clone_into(&mut name);
        } else if let Some(version) = line.strip_prefix("  Installed: ") {
            version.clone_into(&mut installed);
        } else if let Some(version) = line.strip_prefix("  Candidate: ") {
            found.insert(name.clone(), (installed.clone(), version.to_owned()));
        }
    }
    found
}

/// Reads `dnf check-update`: `NAME.ARCH  VERSION  REPOSITORY` a line.
fn updates(text: &str) -> BTreeMap<String, String> {
    let update = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, version) = (words.next()?, words.next()?);
        words.next()?;
        let (name, _) = name.rsplit_once('.')?;
        version.starts_with(|c: char| c.is_ascii_digit()).then(|| (name.to_owned(), version.to_owned()))
    };
    // What becomes obsolete is listed below a heading of its own.
    text.lines().take_while(|line| !line.starts_with("Obsoleting")).filter_map(update).collect()
}

/// Returns the version of the driver in that of a package of it, such as 580.65.06 in `580.65.06-0ubuntu1`.
fn driver_version(name: &str, version: &str) -> Option<String> {
    let begins = |all: &[&str]| all.iter().any(|prefix| name.starts_with(prefix));
    let is_dkms = name.starts_with("kmod-nvidia") && name.ends_with("-dkms");
    if !begins(&BOUND) && !is_dkms || begins(&FREE) {
        return None;
    }
    let version = version.split_once(':').map_or(version, |(_, version)| version);
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let version = version.get(..end)?.trim_end_matches('.');
    let (branch, rest) = version.split_once('.')?;
    // The container toolkit and others count from 1.
    (branch.len() == 3 && !rest.is_empty()).then(|| version.to_owned())
}

fn listed<'n>(names: impl IntoIterator<Item = &'n String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    let shown = names.iter().take(MOST_TOLD).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST_TOLD) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl Set {
    /// Asks the package manager, which reads only what is on the node.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn read(
        node: &Node<'_>,
        manager: Manager,
        packages: &BTreeMap<String, bool>,
        lacking: Vec<String>,
    ) -> Result<Self, Trouble> {
        let mut set = Self { lacking, ..Self::default() };
        let names = || packages.keys().map(String::as_str);
        match manager {
            Manager::Apt => {
                let program = tool::find(node, "apt-cache", "the package `apt` brings it")?;
                let run = tool::run(node, program).arg("policy").args(names()).limit(LARGEST);
                let done = tool::ask(node, &run)?;
                if !done.exit.success() {
                    return Err(Trouble::io(done.complaint("apt-cache policy")));
                }
                let known = policies(&done.stdout());
                for name in packages.keys() {
                    // It leaves the node's own architecture out.
                    let Some((installed, candidate)) = known.get(name).or_else(|| known.get(plain(name)))
                    else {
                        continue;
                    };
                    set.versions.insert(name.clone(), installed.clone());
                    if candidate != installed && candidate != "(none)" {
                        set.pending.insert(name.clone(), candidate.clone());
                    }
                }
            }
            Manager::Dnf => {
                let format = "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\n";
                let text = super::listed(node, "rpm", &["-qa", "--qf", format])?;
                let all = text.lines().filter_map(|line| line.split_once('\t'));
                let ours = all.filter(|(name, _)| packages.contains_key(*name));
                set.versions = ours.map(|(name, version)| (name.to_owned(), version.to_owned())).collect();
                let program = tool::find(node, "dnf", "the package `dnf` brings it")?;
                // Of dnf 5, the lock is no plugin that could be left out.
                let locks: &[&str] = if is_dnf5(node) { &[] } else { &["--disableplugin=versionlock"] };
                let run =
                    tool::run(node, program).args(["-q", "-C"]).args(locks).arg("check-update").args(names());
                let done = tool::ask(node, &run.limit(LARGEST))?;
                // 100: there are updates (dnf(8)).
                match done.exit {
                    Exit::Code(0 | 100) => set.pending = updates(&done.stdout()),
                    _ => set.unknown = Some(done.complaint("dnf check-update")),
                }
                set.pending.retain(|name, _| packages.contains_key(name));
            }
            Manager::Zypper => set.unknown = Some("of zypper, gpufleet does not ask them".to_owned()),
        }
        Ok(set)
    }

    /// Says where the parts have moved apart.
    ///
    /// # Errors
    /// If packages of the driver have several versions: to hold them would keep a driver that does not work.
    pub fn judge(&self) -> Result<(), Trouble> {
        let mut versions: BTreeMap<String, Vec<&String>> = BTreeMap::new();
        for (name, version) in &self.versions {
            if let Some(version) = driver_version(plain(name), version) {
                versions.entry(version).or_default().push(name);
            }
        }
        if versions.len() < 2 {
            return Ok(());
        }
        let told: Vec<String> =
            versions.into_iter().map(|(version, names)| format!("{version} ({})", listed(names))).collect();
        Err(Trouble::invalid(format!(
            "the packages of the set have moved apart: {}; a hold would keep them so: install one version of all, and run again",
            told.join(", ")
        )))
    }

    /// Returns what a plan says of the set.
    pub fn warnings(&self, packages: &BTreeMap<String, bool>) -> Vec<String> {
        let of = |wanted: bool| -> BTreeSet<&String> {
            packages.iter().filter(|(_, held)| **held == wanted).map(|(name, _)| name).collect()
        };
        let (held, free) = (of(true), of(false));
        let mut all = Vec::new();
        if !held.is_empty() && !free.is_empty() {
            all.push(format!(
                "only part of the set is held: {}; not {}, which an update would move without them",
                listed(held),
                listed(free.iter().copied())
            ));
        }
        let moving: Vec<String> = self
            .pending
            .iter()
            .filter(|(name, _)| free.contains(name))
            .map(|(name, version)| format!("{name} ({version})"))
            .collect();
        if !moving.is_empty() {
            let rest = packages.keys().filter(|name| !self.pending.contains_key(*name));
            let rest = listed(rest);
            let without = if rest.is_empty() { String::new() } else { format!(", without {rest}") };
            all.push(format!(
                "an update is there for {}, and moves it at the next upgrade{without}",
                listed(&moving)
            ));
        }
        if !self.lacking.is_empty() {
            all.push(format!("of the set, no installed package is {}", listed(&self.lacking)));
        }
        all.extend(
            self.unknown.iter().map(|why| format!("which updates are there for the set is not known: {why}")),
        );
        all
    }

    pub fn pending(&self) -> Vec<String> {
        self.pending.iter().map(|(name, version)| format!("{name} {version}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_package_managers_are_read() {
        let text = "nvidia-driver-580:\n  Installed: 580.65.06-0ubuntu1\n  Candidate: 580.95.05-0ubuntu1\n  Version table:\n\
                    \x20 *** 580.65.06-0ubuntu1 100\nlinux-image-amd64:\n  Installed: 6.1.1\n  Candidate: 6.1.1\n";
        let found = policies(text);
        assert_eq!(found["nvidia-driver-580"], ("580.65.06-0ubuntu1".into(), "580.95.05-0ubuntu1".into()));
        assert_eq!(found.len(), 2);
        let text = "\nkernel-core.x86_64   5.14.0-611.el9   baseos\nObsoleting Packages\na.x86_64  1.0  b\n";
        assert_eq!(updates(text), BTreeMap::from([("kernel-core".to_owned(), "5.14.0-611.el9".to_owned())]));
    }

    #[test]
    fn packages_of_the_driver_have_its_version() {
        for (name, version, driver) in [
            ("nvidia-driver-580", "580.65.06-0ubuntu1", Some("580.65.06")),
            ("nvidia-fabricmanager", "3:580.65.06-1.el9", Some("580.65.06")),
            ("nvidia-container-toolkit", "1.17.8-1", None),
            ("linux-image-6.1", "580.1", None),
            ("nvidia-settings", "510.47.03-0ubuntu1", None),
            ("nvidia-persistenced", "535.171.04-1~deb12u1", None),
            ("nvidia-firmware-570-570.86.15", "570.86.15-0ubuntu1", None),
            ("libnvidia-compute-580", "580.65.06-0ubuntu1", Some("580.65.06")),
            ("libnvidia-container1", "1.17.8-1", None),
            ("libnvidia-nscq", "580.65.06-1", Some("580.65.06")),
            ("kmod-nvidia-open-dkms", "3:580.65.06-1.el9", Some("580.65.06")),
            ("kmod-nvidia-570.86.15-5.14.0-503.11.1", "3:570.86.15-1.el9", None),
            ("nvidia-utils-580", "580-1", None),
        ] {
            assert_eq!(driver_version(name, version).as_deref(), driver, "{name}");
        }
    }
}

//! dnf's plugin versionlock: which packages it keeps at their version, and by which lines.
//!
//! A line is a package in one version (`nvidia-open-3:580.95.05-1.el9.*`), a pattern that a person wrote, or behind `!`
//! what is never to be installed. Source: dnf-plugins-core, `versionlock.py`.

use std::collections::BTreeSet;

use gpufleet_protocol::glob::Glob;

use super::dnf;
use crate::{
    declare::{Node, Trouble},
    os::files::{self, Ownership},
    process::Run,
    tasks::tool,
};

/// The plugin's settings, which say where its list is.
const SETTINGS: &str = "/etc/dnf/plugins/versionlock.conf";
/// How comments begin that the plugin writes above a line.
const ADDED: &str = "# Added ";

/// What brings the plugin.
pub const HOLDER: &str = "dnf's plugin versionlock, which the package python3-dnf-plugin-versionlock brings";
/// Output limit in bytes.
const ANSWER: usize = 4 << 20;
const PATTERNS: [char; 3] = ['*', '?', '['];

/// What keeps a package at its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// Whether a line of this package alone does.
    pub own: bool,
    /// A pattern that does, which is a person's.
    pub pattern: Option<String>,
}

impl Lock {
    pub const OWN: Self = Self { own: true, pattern: None };
}

/// The lines of the locks.
#[derive(Debug, Default)]
pub struct Locks {
    lines: Vec<String>,
}

impl Locks {
    pub fn of(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { lines: lines.map(str::to_owned).collect() }
    }

    /// Asks dnf, which knows where they are; `None` without the plugin.
    ///
    /// # Errors
    /// If dnf cannot tell.
    pub fn read(node: &Node<'_>) -> Result<Option<Self>, Trouble> {
        let done = tool::ask(node, &call(node)?.arg("list").limit(ANSWER))?;
        if done.exit.success() {
            return Ok(Some(Self::of(&done.stdout())));
        }
        match done.stderr().contains("No such command") {
            true => Ok(None),
            false => Err(Trouble::io(done.complaint("dnf versionlock list"))),
        }
    }

    /// Returns what keeps a package at this version, such as `3:580.95.05-1.el9`.
    pub fn lock(&self, name: &str, version: &str) -> Option<Lock> {
        let fits = |line: &&String| !line.starts_with('!') && fits(line, name, version);
        let (patterns, own): (Vec<&String>, Vec<&String>) =
            self.lines.iter().filter(fits).partition(|line| is_pattern(line));
        let lock = Lock { own: !own.is_empty(), pattern: patterns.first().map(|line| (*line).clone()) };
        (lock != Lock::default()).then_some(lock)
    }

    /// Returns the line that keeps a version from being installed.
    pub fn exclusion(&self, name: &str, version: &str) -> Option<&str> {
        self.exclusions().find(|line| fits(line, name, version))
    }

    /// Returns what is never to be installed, as dnf's `--exclude` takes it.
    pub fn exclusions(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| line.strip_prefix('!'))
    }
}

/// Why: without repositories, because it only reads and writes its list, and the network may be away.
fn call(node: &Node<'_>) -> Result<Run, Trouble> {
    Ok(dnf::dnf(node)?.args(["-q", "--disablerepo=*", "versionlock"]))
}

/// Locks installed packages at their versions and at no other ones, or removes their locks.
///
/// Lines of people, patterns and those behind `!`, stay. The list is written in one step: `dnf versionlock delete` takes
/// what is behind `!` along with the lock of the same version, and a helper that is killed could not put it back.
///
/// # Errors
/// If the node lacks the plugin, or it does not read afterwards what was written.
pub fn set(node: &Node<'_>, names: &[String], on: bool) -> Result<(), Trouble> {
    if names.is_empty() {
        return Ok(());
    }
    if Locks::read(node)?.is_none() {
        return Err(Trouble::missing(format!("this node lacks {HOLDER}")));
    }
    let wanted = if on { specs(node, names)? } else { BTreeSet::new() };
    let path = node.roots.path(&list(node)?);
    let bytes = files::read_bounded(&path, ANSWER as u64)?.unwrap_or_default();
    let text = String::from_utf8(bytes)
        .map_err(|_| Trouble::invalid(format!("{} is not UTF-8 text", path.display())))?;
    let edited = edited(&text, names, &wanted);
    if edited == text {
        return Ok(());
    }
    files::replace(&path, edited.as_bytes(), Ownership::default())?;
    let now = Locks::read(node)?.unwrap_or_default().lines;
    match Locks::of(&edited).lines == now {
        true => Ok(()),
        false => Err(Trouble::io(format!(
            "{} was written, and `dnf versionlock list` shows another list: {}",
            path.display(),
            now.join(", ")
        ))),
    }
}

/// Returns where the plugin's list is.
fn list(node: &Node<'_>) -> Result<String, Trouble> {
    let text = files::read_bounded(&node.roots.path(SETTINGS), 64 * 1024)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let value = |line: &str| {
        let (key, value) = line.split_once(['=', ':'])?;
        (key.trim() == "locklist").then(|| value.trim().to_owned())
    };
    text.lines().find_map(value).filter(|path| path.starts_with('/')).ok_or_else(|| {
        Trouble::invalid(format!("{SETTINGS} does not say where the locks are (`locklist = PATH`)"))
    })
}

/// Returns a list in which these packages have the wanted locks of their own and no others. Pure.
fn edited(text: &str, names: &[String], wanted: &BTreeSet<String>) -> String {
    let mut missing: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let mut kept: Vec<&str> = Vec::new();
    for line in text.lines() {
        let lock = line.trim();
        let is_ours = names.iter().any(|name| is_lock_of(lock, name));
        if !is_ours || missing.remove(lock) {
            kept.push(line);
            continue;
        }
        // With what the plugin wrote above it.
        if kept.last().is_some_and(|above| above.starts_with(ADDED)) {
            kept.pop();
            if kept.last().is_some_and(|above| above.is_empty()) {
                kept.pop();
            }
        }
    }
    if !missing.is_empty() {
        kept.extend(["", "# Added locks by gpufleet"]);
        kept.extend(missing);
    }
    kept.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the lines that lock installed packages, as the plugin writes them.
fn specs(node: &Node<'_>, names: &[String]) -> Result<BTreeSet<String>, Trouble> {
    let program = tool::find(node, "rpm", dnf::BRINGS)?;
    let format = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}-%{RELEASE}\\n";
    let run = tool::run(node, program).args(["-q", "--qf", format]).args(names).limit(ANSWER);
    // Without its verdict: it fails where one of several is not installed.
    let text = tool::ask(node, &run)?.stdout();
    let spec = |line: &str| {
        let mut fields = line.split('\t');
        let (name, epoch, version) = (fields.next()?, fields.next()?, fields.next()?);
        Some(format!("{name}-{epoch}:{version}.*"))
    };
    Ok(text.lines().filter_map(spec).collect())
}

/// Whether a line is more than one version of one package: `nvidia-open-3:580.*` is a whole branch, while behind
/// `NAME-[EPOCH:]VERSION-RELEASE` the plugin itself writes `.*` for the architecture.
fn is_pattern(line: &str) -> bool {
    let Some(exact) = line.strip_suffix(".*") else { return line.contains(PATTERNS) };
    let mut parts = exact.rsplitn(3, '-');
    let (release, version, name) = (parts.next(), parts.next(), parts.next());
    let is_version = version.is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()));
    let is_release = release.is_some_and(|text| !text.contains(':'));
    exact.contains(PATTERNS) || name.is_none() || !is_version || !is_release
}

/// Whether a line fits a package, whatever it says of it.
fn fits(line: &str, name: &str, version: &str) -> bool {
    let glob = Glob::new(line);
    let (epoch, bare) = version.split_once(':').unwrap_or(("0", version));
    let native = std::env::consts::ARCH;
    // Older plugins write the epoch first.
    let all = [format!("{name}-{bare}"), format!("{name}-{epoch}:{bare}"), format!("{epoch}:{name}-{bare}")];
    all.iter().any(|text| {
        glob.matches(text)
            || glob.matches(&format!("{text}.{native}"))
            || glob.matches(&format!("{text}.noarch"))
    }) || glob.matches(name)
}

/// Whether a line locks this package alone.
fn is_lock_of(line: &str, name: &str) -> bool {
    let numbers = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let line = line.split_once(':').filter(|(epoch, _)| numbers(epoch)).map_or(line, |(_, rest)| rest);
    let rest = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('-'));
    let is_own = line == name || rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    is_own && !is_pattern(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    const VERSION: &str = "3:580.95.05-1.el9";

    #[test]
    fn a_lock_is_a_packages_own_or_a_pattern() {
        let line = "nvidia-open-3:580.95.05-1.el9.*";
        let of = |text: &str, name: &str, version: &str| Locks::of(text).lock(name, version);
        let pattern = |text: &str| Some(Lock { own: false, pattern: Some(text.to_owned()) });
        assert_eq!(of(line, "nvidia-open", VERSION), Some(Lock::OWN));
        assert_eq!(of(line, "nvidia-open", "3:580.173.02-1.el9"), None, "it is of another version");
        assert_eq!(of("3:nvidia-open-580.95.05-1.el9.*", "nvidia-open", VERSION), Some(Lock::OWN));
        assert_eq!(of("kernel-0:5.14.0-570.el9.*", "kernel", "5.14.0-570.el9"), Some(Lock::OWN));
        for branch in ["nvidia-open-3:580.*", "nvidia-open-580.*", "nvidia-open-580*"] {
            assert_eq!(of(branch, "nvidia-open", VERSION), pattern(branch));
            assert!(!is_lock_of(branch, "nvidia-open"), "{branch}");
        }
        assert_eq!(
            of("kernel-core-0:5.14.*", "kernel-core", "5.14.0-570.el9"),
            pattern("kernel-core-0:5.14.*")
        );
        assert_eq!(of("*nvidia*580*", "nvidia-open", VERSION), pattern("*nvidia*580*"));
        let both = Lock { own: true, pattern: Some("*nvidia*".to_owned()) };
        assert_eq!(of(&format!("*nvidia*\n{line}"), "nvidia-open", VERSION), Some(both));
        assert_eq!(of(&format!("# {line}\n!{line}"), "nvidia-open", VERSION), None);
        assert_eq!(Locks::of(&format!("!{line}")).exclusion("nvidia-open", VERSION), Some(line));
        assert!(is_lock_of(line, "nvidia-open") && !is_lock_of(line, "nvidia"));
        assert!(
            !is_lock_of(&format!("!{line}"), "nvidia-open") && !is_lock_of("nvidia-open-5*", "nvidia-open")
        );
    }

    #[test]
    fn what_people_wrote_stays_and_other_versions_go() {
        let bench = Bench::new();
        bench.script("usr/bin/dnf", "#!/bin/sh\ngrep -v '^#' $(dirname \"$0\")/../../etc/locks | grep .\n");
        bench.script(
            "usr/bin/rpm",
            "#!/bin/sh\nprintf 'nvidia-open\\t3\\t590.1-1\\npackage x is not installed\\n'\n",
        );
        bench.write(SETTINGS.trim_start_matches('/'), "[main]\nenabled = 1\nlocklist = /etc/locks\n");
        let people = "# ours\n*nvidia*\n!nvidia-open-3:580.1-1.*\nkernel-0:5-1.*\n!nvidia-open-3:570.1-1.*\n";
        bench.write("etc/locks", &format!("{people}\n# Added lock on Monday\nnvidia-open-3:580.1-1.*\n"));
        let names = ["nvidia-open".to_owned(), "x".to_owned()];
        bench.node(|node| set(node, &names, true)).unwrap();
        let locked = format!("{people}\n# Added locks by gpufleet\nnvidia-open-3:590.1-1.*\n");
        assert_eq!(bench.read("etc/locks"), locked);
        bench.node(|node| set(node, &names, true)).unwrap();
        assert_eq!(bench.read("etc/locks"), locked, "a second time changes nothing");
        bench.node(|node| set(node, &names, false)).unwrap();
        assert_eq!(bench.read("etc/locks"), people);
    }

    #[test]
    fn a_list_that_the_plugin_does_not_read_is_told() {
        let bench = Bench::new();
        bench.script("usr/bin/dnf", "#!/bin/sh\n:\n");
        bench.script("usr/bin/rpm", "#!/bin/sh\nprintf 'nvidia-open\\t3\\t590.1-1\\n'\n");
        let names = ["nvidia-open".to_owned()];
        let fails = || match bench.node(|node| set(node, &names, true)) {
            Err(Trouble::Failed { message, .. }) => message,
            other => panic!("{other:?}"),
        };
        assert!(fails().contains("does not say where the locks are"), "{}", fails());
        bench.write(SETTINGS.trim_start_matches('/'), "locklist=/etc/locks\n");
        assert!(fails().contains("shows another list"), "{}", fails());
    }
}

//! The packages of a driver, through apt: what is there, what would be installed, and the way back.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use gpufleet_protocol::{FailureKind, tasks::GpuDriver};
use rustix::fs::MemfdFlags;

use super::{
    attempt::Former,
    recipe::{self, Recipe, is_driver},
};
use crate::{
    declare::{Node, Trouble},
    os::{
        files::{self, At, Fresh},
        tree,
    },
    tasks::{
        packages::{
            Order,
            apt::{self, Update, output},
        },
        tool,
    },
};

const ARCHIVES: &str = "/var/cache/apt/archives";
const PREFERENCES: &str = "/etc/apt/preferences";
const BRINGS: &str = "is it a node of Debian or Ubuntu?";
/// Longest wait for another user of apt, in seconds.
const LOCK_S: u32 = 120;
/// Output limit in bytes of a question about some packages.
const ANSWER: usize = 4 << 20;

/// Rules that let apt choose only declared versions, in memory, so that a plan writes nothing.
#[derive(Debug)]
pub struct Pins {
    file: File,
}

impl Pins {
    /// # Errors
    /// If the kernel gives no memory, or the node's own rules cannot be read.
    pub fn new(node: &Node<'_>, task: &GpuDriver) -> Result<Self, Trouble> {
        let own = files::read_bounded(&node.roots.path(PREFERENCES), 1 << 20)?.unwrap_or_default();
        let rules = recipe::preferences(task.version.as_deref(), task.wanted_branch().unwrap_or_default());
        let fail =
            |error: std::io::Error| Trouble::io(format!("rules for apt cannot be kept in memory: {error}"));
        let memory =
            rustix::fs::memfd_create("gpufleet-apt", MemfdFlags::CLOEXEC).map_err(|e| fail(e.into()))?;
        let mut file = File::from(memory);
        // First, because apt takes the first rule that fits.
        file.write_all(rules.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(fail)?;
        file.write_all(&own).map_err(fail)?;
        Ok(Self { file })
    }

    fn options(&self) -> [String; 2] {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        ["-o".to_owned(), format!("Dir::Etc::Preferences={path}")]
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns the arguments for an installation that may also make packages older, and removes none but those of a driver.
fn install(pins: Option<&Pins>, names: &[String]) -> Vec<String> {
    let mut all = words(&["install", "-y", "-q", "--allow-downgrades", "--allow-change-held-packages"]);
    // The driver's packages hold each other: apt would change none of them for the sake of another one.
    all.extend(words(&["-o", "APT::Ignore-Hold=true"]));
    all.extend(words(&[
        "-o",
        "Dpkg::Options::=--force-confdef",
        "-o",
        "Dpkg::Options::=--force-confold",
        "-o",
    ]));
    all.push(format!("DPkg::Lock::Timeout={LOCK_S}"));
    all.extend(pins.iter().flat_map(|pins| pins.options()));
    all.extend_from_slice(names);
    all
}

/// Returns the installed packages of a driver, without those of other architectures.
///
/// # Errors
/// If the package database cannot be read.
pub fn installed(node: &Node<'_>) -> Result<Vec<(String, String)>, Trouble> {
    let all = apt::installed(node)?;
    let mut found: Vec<(String, String)> = all
        .names()
        .filter(|name| !name.contains(':') && is_driver(name))
        .filter_map(|name| Some((name.clone(), all.version(name)?.to_owned())))
        .collect();
    found.sort();
    Ok(found)
}

/// Returns the first recipe whose packages are all known and of the declared version.
///
/// # Errors
/// If there is none: what each of them lacks.
pub fn choose(
    node: &Node<'_>,
    task: &GpuDriver,
    pins: &Pins,
    recipes: Vec<Recipe>,
) -> Result<Recipe, Trouble> {
    let mut lacks = Vec::new();
    for recipe in recipes {
        match missing(node, task, pins, &recipe.packages)? {
            None => return Ok(recipe),
            Some(lack) => lacks.push(lack),
        }
    }
    lacks.dedup();
    Err(Trouble::missing(format!(
        "no repository of this node has the driver {}: {}; declare one with `deb822_repository` or `apt_repository`, or \
         update the lists with `update_cache: true`",
        task.wanted(),
        lacks.join("; ")
    )))
}

/// Returns what keeps packages from being installed, if anything does.
fn missing(
    node: &Node<'_>,
    task: &GpuDriver,
    pins: &Pins,
    names: &[String],
) -> Result<Option<String>, Trouble> {
    let program = tool::find(node, "apt-cache", BRINGS)?;
    let run = tool::run(node, program).args(pins.options()).arg("policy").args(names).limit(ANSWER);
    let done = tool::ask(node, &run)?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("apt-cache policy")));
    }
    let found = candidates(&done.stdout());
    for name in names {
        match found.iter().find(|(known, _)| known == name) {
            None => return Ok(Some(format!("there is no package {name}"))),
            // The number of a kernel module's package is the kernel's.
            Some((_, version)) if name.starts_with("linux-") || name.contains("pinning") => {
                if version.is_none() {
                    return Ok(Some(format!("{name} has no version to install")));
                }
            }
            Some((_, Some(version))) if task.accepts(recipe::upstream(version)) => {}
            Some((_, Some(version))) => return Ok(Some(format!("{name} is there as {version}"))),
            Some((_, None)) => return Ok(Some(format!("{name} has no version to install"))),
        }
    }
    Ok(None)
}

/// Reads the answer of `apt-cache policy`: packages, each with the version that would be installed.
fn candidates(text: &str) -> Vec<(String, Option<String>)> {
    let mut all: Vec<(String, Option<String>)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with(' ')) {
            all.push((name.to_owned(), None));
        } else if let Some(version) = line.trim().strip_prefix("Candidate: ")
            && let Some((_, candidate)) = all.last_mut()
        {
            *candidate = Some(version.to_owned()).filter(|version| version != "(none)");
        }
    }
    all
}

/// Simulates the installation.
///
/// # Errors
/// If apt cannot do it, or would remove something that is no part of a driver.
pub fn simulate(node: &Node<'_>, pins: &Pins, names: &[String]) -> Result<Order, Trouble> {
    let order = apt::simulated(node, &install(Some(pins), names), false, names)?;
    let gone: Vec<&str> = order
        .actions
        .iter()
        .filter(|action| action.to.is_none() && !is_driver(&action.name))
        .map(|action| action.name.as_str())
        .collect();
    let held = held(node)?;
    let mut others = order.actions.iter().map(|action| &action.name).filter(|name| !is_driver(name));
    if let Some(held) = others.find(|name| held.contains(*name)) {
        return Err(Trouble::invalid(format!(
            "apt would change {held}, which is held, for {}; release it first if that is meant (`apt-mark unhold {held}`)",
            names.join(", ")
        )));
    }
    if !gone.is_empty() {
        return Err(Trouble::invalid(format!(
            "apt would remove {} for {}; remove it yourself if that is meant, or name other `packages`",
            gone.join(", "),
            names.join(", ")
        )));
    }
    Ok(order)
}

/// Returns the name of a package's file, as apt writes it.
fn file_name(former: &Former, architecture: &str) -> String {
    let version = former.version.replace(':', "%3a");
    let name = former.name.split(':').next().unwrap_or_default();
    format!("{name}_{version}_{architecture}.deb")
}

/// Returns a package file in a folder, whichever architecture it is of.
fn file_in(folder: &Path, former: &Former) -> Option<PathBuf> {
    let native = std::env::consts::ARCH.replace("x86_64", "amd64").replace("aarch64", "arm64");
    let wanted = former.name.split_once(':').map_or(native.as_str(), |(_, architecture)| architecture);
    [wanted, "all"].iter().map(|arch| folder.join(file_name(former, arch))).find(|path| path.is_file())
}

/// Returns why former packages cannot be had, if so. Downloads nothing.
///
/// # Errors
/// If apt cannot be asked.
pub fn unobtainable(node: &Node<'_>, former: &[Former]) -> Result<Option<String>, Trouble> {
    let archives = node.roots.path(ARCHIVES);
    let wanted: Vec<String> = former
        .iter()
        .filter(|one| file_in(&archives, one).is_none())
        .map(|one| format!("{}={}", one.name, one.version))
        .collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut arguments = words(&["--print-uris", "-q", "download"]);
    arguments.extend(wanted);
    let done = tool::ask(node, &apt::apt_get(node, &arguments)?.limit(ANSWER))?;
    if done.exit.success() {
        return Ok(None);
    }
    let errors = output::errors(&done.stderr());
    Ok(Some(if errors.is_empty() { done.complaint("apt-get download") } else { errors }))
}

/// Puts the former packages' files into a folder; those that cannot be had keep no file.
///
/// # Errors
/// If the folder cannot be written.
pub fn keep(node: &Node<'_>, folder: &Path, former: &mut [Former]) -> Result<(), Trouble> {
    tree::make_dirs(folder)?;
    let archives = node.roots.path(ARCHIVES);
    let mut wanted = Vec::new();
    for one in former.iter().filter(|one| file_in(folder, one).is_none()) {
        match file_in(&archives, one) {
            Some(file) => {
                let name = file.file_name().unwrap_or_default();
                let copy = Fresh::beside(&folder.join(name))?;
                let mut from = tree::open(&file)?;
                io::copy(&mut from, &mut copy.file()).at("copy", &file)?;
                copy.place()?;
            }
            None => wanted.push(format!("{}={}", one.name, one.version)),
        }
    }
    if !wanted.is_empty() {
        (node.progress)(format!("apt-get download {}", wanted.join(" ")));
        let mut arguments = words(&["-q", "download", "-o", "APT::Sandbox::User=root"]);
        arguments.extend(wanted);
        // Without its verdict: what did not come has no file.
        apt::apt_get(node, &arguments)?.directory(folder).finish(node.deadline)?;
    }
    for one in former.iter_mut() {
        one.file = file_in(folder, one).map(|path| path.display().to_string());
    }
    Ok(())
}

fn call(node: &Node<'_>, arguments: &[String]) -> Result<(), Trouble> {
    let what = format!("apt-get {}", output::shown(arguments));
    (node.progress)(what.clone());
    let done = apt::apt_get(node, arguments)?.finish(node.deadline)?;
    if done.exit.success() {
        return Ok(());
    }
    let errors = output::errors(&done.stderr());
    let message =
        if errors.is_empty() { done.complaint(&what) } else { format!("{what}: {}: {errors}", done.exit) };
    Err(Trouble::failed(FailureKind::Exit, message))
}

/// Lets dpkg finish what a killed installation left half done.
///
/// # Errors
/// What dpkg says.
pub fn finish_interrupted(node: &Node<'_>) -> Result<(), Trouble> {
    let program = tool::find(node, "dpkg", BRINGS)?;
    let run = tool::run(node, program).args(["--configure", "-a", "--force-confdef", "--force-confold"]);
    tool::act(node, &run.env("DEBIAN_FRONTEND", "noninteractive"), "dpkg --configure -a").map(drop)
}

/// Whether an installation was interrupted.
///
/// # Errors
/// If dpkg cannot be asked.
pub fn is_interrupted(node: &Node<'_>) -> Result<bool, Trouble> {
    let program = tool::find(node, "dpkg-query", BRINGS)?;
    let run = tool::run(node, program).args(["-W", "-f=${db:Status-Status}\\n"]).limit(ANSWER);
    let done = tool::ask(node, &run)?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("dpkg-query")));
    }
    let half = ["unpacked", "half-installed", "half-configured"];
    Ok(done.stdout().lines().any(|status| half.contains(&status)))
}

/// Updates the package lists.
///
/// # Errors
/// What apt says.
pub fn update(node: &Node<'_>) -> Result<(), Trouble> {
    apt::update(node, &Update { retries: 3, max_delay_s: 12, lock_timeout_s: LOCK_S })
}

/// Downloads what an installation needs, before anything is touched.
///
/// # Errors
/// What apt says.
pub fn download(node: &Node<'_>, pins: &Pins, names: &[String]) -> Result<(), Trouble> {
    let mut arguments = install(Some(pins), names);
    arguments.insert(1, "--download-only".to_owned());
    call(node, &arguments)
}

/// Installs packages.
///
/// # Errors
/// What apt says.
pub fn perform(node: &Node<'_>, pins: &Pins, names: &[String]) -> Result<(), Trouble> {
    call(node, &install(Some(pins), names))
}

/// Installs the former packages from their files, and removes those that were not there.
///
/// # Errors
/// If a file is missing, or apt fails.
pub fn restore(node: &Node<'_>, former: &[Former], added: &[String]) -> Result<(), Trouble> {
    let mut names = Vec::new();
    for one in former {
        let file = one.file.clone().filter(|file| Path::new(file).is_file());
        names.push(file.ok_or_else(|| {
            Trouble::missing(format!("there is no package file of {} {}", one.name, one.version))
        })?);
    }
    // Only those that a half installation brought; apt refuses to remove what it does not know.
    let there: BTreeSet<String> = installed(node)?.into_iter().map(|(name, _)| name).collect();
    names.extend(added.iter().filter(|name| there.contains(*name)).map(|name| format!("{name}-")));
    if names.is_empty() {
        return Ok(());
    }
    call(node, &install(None, &names))
}

/// Returns the packages that nightly updates leave alone.
///
/// # Errors
/// If apt-mark cannot be asked.
pub fn held(node: &Node<'_>) -> Result<BTreeSet<String>, Trouble> {
    let program = tool::find(node, "apt-mark", BRINGS)?;
    let done = tool::ask(node, &tool::run(node, program).arg("showhold").limit(ANSWER))?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("apt-mark showhold")));
    }
    Ok(done.stdout().lines().map(|line| line.trim().to_owned()).collect())
}

/// Lets nightly updates leave packages as they are, or change them again.
///
/// # Errors
/// What apt-mark says.
pub fn hold(node: &Node<'_>, names: &[String], on: bool) -> Result<(), Trouble> {
    if names.is_empty() {
        return Ok(());
    }
    let program = tool::find(node, "apt-mark", BRINGS)?;
    let verb = if on { "hold" } else { "unhold" };
    tool::act(node, &tool::run(node, program).arg(verb).args(names), &format!("apt-mark {verb}")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_apt_is_read() {
        let text = "nvidia-open-580:\n  Installed: (none)\n  Candidate: 580.159.04-1\n  Version table:\n     \
                    580.159.04-1 1001\n        500 file:/repo ./ Packages\nnvidia-utils-580:\n  Installed: (none)\n  \
                    Candidate: (none)\n";
        assert_eq!(
            candidates(text),
            [
                ("nvidia-open-580".to_owned(), Some("580.159.04-1".to_owned())),
                ("nvidia-utils-580".to_owned(), None)
            ]
        );
    }

    #[test]
    fn files_are_named_as_apt_does() {
        let former = |name: &str, version: &str| Former {
            name: name.to_owned(),
            version: version.to_owned(),
            file: None,
        };
        assert_eq!(
            file_name(&former("nvidia-open", "1:580.1-1"), "amd64"),
            "nvidia-open_1%3a580.1-1_amd64.deb"
        );
        assert_eq!(file_name(&former("libnvidia-gl:i386", "580.1"), "i386"), "libnvidia-gl_580.1_i386.deb");
    }
}

//! The packages of a driver through apt.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use gpufleet_protocol::tasks::GpuDriver;
use rustix::fs::MemfdFlags;

use super::{ANSWER, Holds, Interrupted, Packages, call, none_fits};
use crate::{
    declare::{Node, Trouble},
    os::{
        files::{self, At, Fresh},
        tree,
    },
    tasks::{
        driver::{
            attempt::{Attempt, Former},
            recipe::{self, Recipe, Wish, is_driver},
        },
        packages::{
            Order,
            apt::{self, Update, output},
            before_scripts,
        },
        repositories, tool,
    },
};

const ARCHIVES: &str = "/var/cache/apt/archives";
const PREFERENCES: &str = "/etc/apt/preferences";
const BRINGS: &str = "is it a node of Debian or Ubuntu?";
/// Longest wait for another user of apt, in seconds.
const LOCK_S: u32 = 120;
/// Output limit in bytes where only the end of a program counts.
const UNREAD: usize = 4096;

/// Rules that let apt choose only declared versions, in memory, so that a plan writes nothing.
#[derive(Debug)]
struct Pins {
    file: File,
}

impl Pins {
    /// # Errors
    /// If the kernel gives no memory, or the node's own rules cannot be read.
    fn new(node: &Node<'_>, task: &GpuDriver) -> Result<Self, Trouble> {
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
            Some((_, version)) if !has_drivers_version(name) => {
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

/// Whether the version of a package is that of the driver in it. The number of a kernel module's package is the kernel's.
fn has_drivers_version(name: &str) -> bool {
    !name.starts_with("linux-") && !name.contains("pinning")
}

/// Says what mending packages that do not fit each other would do that nobody declared. Pure.
fn undeclared(order: &Order, task: &GpuDriver, attempt: Option<&Attempt>) -> Option<String> {
    let known = |name: &str, version: &str| {
        attempt.is_some_and(|attempt| attempt.was(name, version))
            || !has_drivers_version(name)
            || task.accepts(recipe::upstream(version))
    };
    order.actions.iter().find_map(|action| match &action.to {
        _ if !is_driver(&action.name) => Some(format!("change {}", action.name)),
        Some(version) if !known(&action.name, version) => {
            Some(format!("install {} {version}, which is neither declared nor the former one", action.name))
        }
        _ => None,
    })
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

fn apt_get(node: &Node<'_>, arguments: &[String]) -> Result<(), Trouble> {
    let what = format!("apt-get {}", output::shown(arguments));
    call(node, &apt::apt_get(node, arguments)?, what, output::errors)
}

/// The package manager of Debian and Ubuntu.
pub struct Apt;

impl Packages for Apt {
    fn name(&self) -> &'static str {
        "apt"
    }

    fn sources(&self) -> &'static [&'static str] {
        &repositories::APT
    }

    fn installed(&self, node: &Node<'_>) -> Result<Vec<(String, String)>, Trouble> {
        let all = apt::installed(node)?;
        let mut found: Vec<(String, String)> = all
            .names()
            .filter(|name| !name.contains(':') && is_driver(name))
            .filter_map(|name| Some((name.clone(), all.version(name)?.to_owned())))
            .collect();
        found.sort();
        Ok(found)
    }

    fn recipes(&self, _: &Node<'_>, wish: &Wish<'_>) -> Result<Vec<Recipe>, Trouble> {
        Ok(recipe::recipes(wish))
    }

    fn choose(&self, node: &Node<'_>, task: &GpuDriver, recipes: Vec<Recipe>) -> Result<Recipe, Trouble> {
        let pins = Pins::new(node, task)?;
        let mut lacks = Vec::new();
        for recipe in recipes {
            match missing(node, task, &pins, &recipe.packages)? {
                None => return Ok(recipe),
                Some(lack) => lacks.push(lack),
            }
        }
        Err(none_fits(task, lacks, "`deb822_repository` or `apt_repository`"))
    }

    fn simulated(&self, node: &Node<'_>, task: &GpuDriver, recipe: &Recipe) -> Result<Order, Trouble> {
        let pins = Pins::new(node, task)?;
        apt::simulated(node, &install(Some(&pins), &recipe.packages), false, &recipe.packages)
    }

    fn update(&self, node: &Node<'_>) -> Result<(), Trouble> {
        apt::update(node, &Update { retries: 3, max_delay_s: 12, lock_timeout_s: LOCK_S })
    }

    fn download(&self, node: &Node<'_>, task: &GpuDriver, recipe: &Recipe) -> Result<(), Trouble> {
        let pins = Pins::new(node, task)?;
        let mut arguments = install(Some(&pins), &recipe.packages);
        arguments.insert(1, "--download-only".to_owned());
        apt_get(node, &arguments)
    }

    fn perform(&self, node: &Node<'_>, task: &GpuDriver, recipe: &Recipe) -> Result<(), Trouble> {
        let pins = Pins::new(node, task)?;
        before_scripts(node);
        apt_get(node, &install(Some(&pins), &recipe.packages))
    }

    fn unobtainable(&self, node: &Node<'_>, former: &[Former]) -> Result<Option<String>, Trouble> {
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

    fn keep(&self, node: &Node<'_>, folder: &Path, former: &mut [Former]) -> Result<(), Trouble> {
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

    fn rehearse(&self, node: &Node<'_>, files: &[&str]) -> Result<Option<String>, Trouble> {
        let program = tool::find(node, "dpkg-deb", BRINGS)?;
        for file in files {
            // All of it: a simulation reads only the begin of a file.
            let run = tool::run(node, &program).args(["--fsys-tarfile", file]).limit(UNREAD);
            let done = tool::ask(node, &run)?;
            if !done.exit.success() {
                return Ok(Some(done.complaint(&format!("dpkg-deb --fsys-tarfile {file}"))));
            }
        }
        let mut arguments = words(&["-s"]);
        let names: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        arguments.extend(install(None, &names));
        arguments.push("--reinstall".to_owned());
        let done = tool::ask(node, &apt::apt_get(node, &arguments)?.limit(ANSWER))?;
        if done.exit.success() {
            return Ok(None);
        }
        let errors = output::errors(&done.stderr());
        let errors = if errors.is_empty() { done.complaint("apt-get -s install") } else { errors };
        Ok(Some(match output::unmet(&done.stdout()) {
            Some(unmet) => format!("{errors} {unmet}"),
            None => errors,
        }))
    }

    fn restore(&self, node: &Node<'_>, files: &[String], gone: &[String]) -> Result<(), Trouble> {
        let gone = gone.iter().map(|name| format!("{name}-"));
        let names: Vec<String> = files.iter().cloned().chain(gone).collect();
        apt_get(node, &install(None, &names))
    }

    fn held(&self, node: &Node<'_>, packages: &[(String, String)]) -> Result<Option<Holds>, Trouble> {
        let program = tool::find(node, "apt-mark", BRINGS)?;
        let done = tool::ask(node, &tool::run(node, program).arg("showhold").limit(ANSWER))?;
        if !done.exit.success() {
            return Err(Trouble::io(done.complaint("apt-mark showhold")));
        }
        let text = done.stdout();
        let all: BTreeSet<&str> = text.lines().map(str::trim).collect();
        let names = packages.iter().map(|(name, _)| name).filter(|name| all.contains(name.as_str()));
        Ok(Some(Holds { own: names.cloned().collect(), ..Holds::default() }))
    }

    fn holder(&self) -> &'static str {
        "apt-mark"
    }

    fn hold(&self, node: &Node<'_>, names: &[String], on: bool) -> Result<(), Trouble> {
        if names.is_empty() {
            return Ok(());
        }
        let program = tool::find(node, "apt-mark", BRINGS)?;
        let verb = if on { "hold" } else { "unhold" };
        tool::act(node, &tool::run(node, program).arg(verb).args(names), &format!("apt-mark {verb}"))
            .map(drop)
    }

    fn hold_as_before(&self, node: &Node<'_>, attempt: &Attempt) -> Result<(), Trouble> {
        let names = attempt.names();
        let there: Vec<(String, String)> =
            self.installed(node)?.into_iter().filter(|(name, _)| names.contains(name)).collect();
        let held = self.held(node, &there)?.unwrap_or_default().own;
        let more: Vec<String> = held.into_iter().filter(|name| !attempt.held.contains(name)).collect();
        self.hold(node, &more, false)?;
        self.hold(node, &attempt.held, true)
    }

    fn interrupted(&self, node: &Node<'_>, _: Option<&Attempt>) -> Result<Interrupted, Trouble> {
        let program = tool::find(node, "dpkg-query", BRINGS)?;
        let format = "-f=${Package} ${db:Status-Status}\\n";
        let done = tool::ask(node, &tool::run(node, program).args(["-W", format]).limit(ANSWER))?;
        if !done.exit.success() {
            return Err(Trouble::io(done.complaint("dpkg-query")));
        }
        let half = ["unpacked", "half-installed", "half-configured"];
        let text = done.stdout();
        let all = text.lines().filter_map(|line| line.split_once(' '));
        let (packages, others) = all
            .filter(|(_, status)| half.contains(status))
            .map(|(name, _)| name.to_owned())
            .partition(|name| is_driver(name));
        Ok(Interrupted { packages, others, unclear: None })
    }

    fn is_unmatched(&self, node: &Node<'_>) -> Result<bool, Trouble> {
        // Simulated, because a question waits for no lock.
        let done = tool::ask(node, &apt::apt_get(node, &words(&["-s", "-q", "check"]))?.limit(ANSWER))?;
        Ok(!done.exit.success() && output::unmatched(&done.stdout()).any(is_driver))
    }

    fn finish_interrupted(
        &self,
        node: &Node<'_>,
        task: &GpuDriver,
        attempt: Option<&Attempt>,
    ) -> Result<(), Trouble> {
        let program = tool::find(node, "dpkg", BRINGS)?;
        let run = tool::run(node, program).args(["--configure", "-a", "--force-confdef", "--force-confold"]);
        let configured =
            tool::act(node, &run.env("DEBIAN_FRONTEND", "noninteractive"), "dpkg --configure -a").map(drop);
        let check = apt::apt_get(node, &words(&["-s", "-q", "check"]))?.limit(ANSWER);
        if tool::ask(node, &check)?.exit.success() {
            return configured;
        }
        // Packages of two versions are left that do not fit, with which apt installs nothing else.
        // With the pins, or apt mends them with the newest driver that it knows.
        let pins = Pins::new(node, task)?;
        let mut arguments = install(Some(&pins), &[]);
        arguments.push("--fix-broken".to_owned());
        let order = apt::simulated(node, &arguments, false, &[])?;
        if let Some(what) = undeclared(&order, task, attempt) {
            return Err(Trouble::invalid(format!(
                "packages do not fit each other, and mending them would {what}; `apt-get -s --fix-broken install` shows what \
                 apt would do"
            )));
        }
        apt_get(node, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::packages::Action;

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
    fn packages_are_mended_only_with_declared_or_former_versions() {
        let task: GpuDriver = serde_json::from_value(serde_json::json!({"branch": 580})).unwrap();
        let order = |name: &str, to: Option<&str>| Order {
            actions: vec![Action { name: name.to_owned(), from: None, to: to.map(str::to_owned) }],
            ..Order::default()
        };
        let attempt = Attempt {
            wanted: "580.1.2".to_owned(),
            before: None,
            boot_id: String::new(),
            former: vec![Former { name: "libcuda1".to_owned(), version: "575.1-1".to_owned(), file: None }],
            added: Vec::new(),
            held: Vec::new(),
            modules: Vec::new(),
            stream: None,
        };
        let of = |name, to| undeclared(&order(name, to), &task, Some(&attempt));
        assert_eq!(of("libcuda1", Some("580.1.2-1")), None);
        assert_eq!(of("libcuda1", Some("575.1-1")), None);
        assert_eq!(of("libcuda1", None), None);
        assert_eq!(of("linux-modules-nvidia-580-open-generic", Some("6.8.0-45.1")), None);
        assert!(of("libcuda1", Some("590.1-1")).unwrap().contains("libcuda1 590.1-1, which is neither"));
        assert!(of("nvidia-smi", Some("575.1-1")).unwrap().contains("nvidia-smi 575.1-1"));
        assert_eq!(of("slurmd", None).as_deref(), Some("change slurmd"));
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

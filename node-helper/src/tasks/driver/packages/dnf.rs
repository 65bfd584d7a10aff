//! The packages of a driver through dnf, with its module streams where the repository has them.
//!
//! Source: NVIDIA Driver Installation Guide. Red Hat 8 and 9 and Amazon Linux 2023 have a stream for each branch
//! (`nvidia-driver:580-open`); Red Hat 10 and Fedora have all versions side by side. In both, the package names have no
//! branch, so that versions are named to dnf.

mod leftover;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use gpufleet_protocol::tasks::{DriverFlavour, DriverSource, GpuDriver};

use self::leftover::{leftovers, twice};
use super::{ANSWER, Holds, Interrupted, Packages, call, none_fits};
use crate::{
    declare::{Node, Trouble},
    os::{
        files::{At, Fresh},
        tree,
    },
    process::Run,
    tasks::{
        driver::{
            attempt::{Attempt, Former},
            recipe::{Recipe, Wish, is_companion, is_driver, other_names, upstream},
        },
        packages::{
            Action, Order, before_scripts, dnf,
            versionlock::{self, Locks},
        },
        repositories, tool,
    },
};

const BRINGS: &str = "is it a node of the Red Hat family?";
const CACHE: &str = "/var/cache/dnf";
/// The module of NVIDIA's repositories.
const MODULE: &str = "nvidia-driver";
/// What is installed without a desktop.
const HEADLESS: &str = "nvidia-driver-cuda";
/// Why: packages of another stream than the enabled one are hidden otherwise, and a plan enables none.
const ALL_STREAMS: &str = "--setopt=*.module_hotfixes=1";
/// Why: packages of a driver that are locked are changed all the same, and it locks them again.
const UNLOCKED: &str = "--disableplugin=versionlock";
/// Largest number of folders in the cache.
const CACHES: usize = 1000;

/// A package that a repository has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    name: String,
    /// Such as `3:580.95.05-1.el9`.
    version: String,
    repository: String,
}

/// The streams of the driver's module.
#[derive(Debug, Default, PartialEq, Eq)]
struct Streams {
    known: Vec<String>,
    enabled: Option<String>,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn native() -> &'static str {
    std::env::consts::ARCH
}

fn is_ours(architecture: &str) -> bool {
    architecture == native() || architecture == "noarch"
}

/// Returns a version as dnf shows it: without an epoch of 0.
fn evr(epoch: &str, version: &str) -> String {
    match epoch {
        "0" | "(none)" => version.to_owned(),
        epoch => format!("{epoch}:{version}"),
    }
}

fn of_line(line: &str) -> Option<(Found, &str)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, epoch, version, architecture, repository] = fields.as_slice() else { return None };
    let found = Found {
        name: (*name).to_owned(),
        version: evr(epoch, version),
        repository: (*repository).to_owned(),
    };
    Some((found, architecture))
}

/// Returns all versions that repositories have of packages, of every stream.
fn available(node: &Node<'_>, names: &BTreeSet<String>) -> Result<Vec<Found>, Trouble> {
    let format = "%{name}\t%{epoch}\t%{version}-%{release}\t%{arch}\t%{repoid}";
    let run = dnf::dnf(node)?
        .args(["-q", UNLOCKED, ALL_STREAMS, "repoquery", "--available", "--qf", format])
        .args(names)
        .limit(ANSWER);
    let done = tool::ask(node, &run)?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("dnf repoquery")));
    }
    let text = done.stdout();
    let all = text.lines().filter_map(of_line).filter(|(_, architecture)| is_ours(architecture));
    Ok(all.map(|(found, _)| found).collect())
}

/// Returns the installed packages of these names, or all: name, version, architecture and when they were installed.
fn database(node: &Node<'_>, names: &[String]) -> Result<Vec<(String, String, String, u64)>, Trouble> {
    let program = tool::find(node, "rpm", BRINGS)?;
    let format = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}-%{RELEASE}\\t%{ARCH}\\t%{INSTALLTIME}\\n";
    let run = tool::run(node, program).arg(if names.is_empty() { "-qa" } else { "-q" });
    let done = tool::ask(node, &run.args(["--qf", format]).args(names).limit(ANSWER))?;
    // `rpm -q` fails where one of several is not installed.
    if names.is_empty() && !done.exit.success() {
        return Err(Trouble::io(done.complaint("rpm -qa")));
    }
    let text = done.stdout();
    let all = text.lines().filter_map(of_line).map(|(found, architecture)| {
        (found.name, found.version, architecture.to_owned(), found.repository.parse().unwrap_or_default())
    });
    Ok(all.collect())
}

/// Reads the answer of `dnf module list`.
fn streams(text: &str) -> Vec<String> {
    let rows = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == MODULE).then(|| words.next().map(str::to_owned))?
    });
    let all: BTreeSet<String> = rows.collect();
    all.into_iter().collect()
}

/// Returns the ways to install a driver. Pure.
fn recipes(wish: &Wish<'_>, streams: &Streams) -> Vec<Recipe> {
    let open = wish.flavour.is_open();
    let (all, kernel) = match open {
        true => ("nvidia-open", "kmod-nvidia-open-dkms"),
        false => ("cuda-drivers", "kmod-nvidia-latest-dkms"),
    };
    let has = |name: &str| wish.installed.iter().any(|installed| installed == name);
    let headless = has(HEADLESS) && !has("nvidia-open") && !has("cuda-drivers");
    let branch = wish.branch;
    let enabled = streams.enabled.as_deref().unwrap_or_default();
    let precompiled = !open && !enabled.is_empty() && enabled.bytes().all(|byte| byte.is_ascii_digit());
    let (own, moving) = match open {
        true => (format!("{branch}-open"), "open-dkms"),
        false => (format!("{branch}-dkms"), "latest-dkms"),
    };
    let mut wanted = Vec::new();
    wanted.extend(precompiled.then(|| branch.to_string()));
    wanted.extend([own, moving.to_owned()]);
    let mut wanted: Vec<Option<String>> =
        wanted.into_iter().filter(|stream| streams.known.contains(stream)).map(Some).collect();
    if streams.known.is_empty() {
        wanted.push(None);
    }
    let of_stream = |stream: Option<String>| {
        let builds = stream.as_deref().is_none_or(|stream| stream != branch.to_string());
        let recipe = |packages: &[&str]| Recipe {
            packages: words(packages),
            builds,
            stream: stream.clone(),
            ..Recipe::default()
        };
        match headless {
            true => vec![recipe(&[HEADLESS, kernel]), recipe(&[all])],
            false => vec![recipe(&[all]), recipe(&[HEADLESS, kernel])],
        }
    };
    wanted.into_iter().flat_map(of_stream).collect()
}

/// The numbers of a driver's version, to compare it.
fn numbers(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or_default()).collect()
}

/// Whether an installed package is of the other flavour, and so goes.
fn is_other(name: &str, recipe: &Recipe) -> bool {
    let of = |prefix: &str| recipe.packages.iter().any(|name| name.starts_with(prefix));
    let open = of("nvidia-open") || of("kmod-nvidia-open");
    match open {
        true => {
            name.starts_with("cuda-drivers") || name.starts_with("kmod-nvidia-") && !name.contains("open")
        }
        false => name.starts_with("nvidia-open") || name.starts_with("kmod-nvidia-open"),
    }
}

/// Returns what to name to dnf for a recipe: each package in one version; or what it lacks. Pure.
fn resolve(
    task: &GpuDriver,
    mut recipe: Recipe,
    installed: &[String],
    found: &[Found],
) -> Result<Recipe, String> {
    let versions = |name: &str| -> BTreeSet<Reverse<Vec<u32>>> {
        let all = found.iter().filter(|one| one.name == name).map(|one| upstream(&one.version));
        all.filter(|version| task.accepts(version)).map(|version| Reverse(numbers(version))).collect()
    };
    let is = |one: &Found, version: &Vec<u32>| numbers(upstream(&one.version)) == *version;
    let has = |name: &str, version: &Vec<u32>| found.iter().any(|one| one.name == name && is(one, version));
    let first = recipe.packages.first().cloned().unwrap_or_default();
    let candidates = versions(&first);
    let Some(Reverse(version)) =
        candidates.iter().find(|Reverse(version)| recipe.packages.iter().all(|name| has(name, version)))
    else {
        let others: BTreeSet<&str> =
            found.iter().filter(|one| one.name == first).map(|one| upstream(&one.version)).collect();
        let others: Vec<&str> = others.into_iter().collect();
        return Err(match (candidates.is_empty(), others.is_empty()) {
            (_, true) => format!("there is no package {first}"),
            (true, false) => format!("{first} is there as {}", others.join(", ")),
            (false, false) => format!("{first} is there without {}", recipe.packages.join(", ")),
        });
    };
    let along = installed.iter().filter(|name| !recipe.packages.contains(*name) && !is_other(name, &recipe));
    let names: Vec<&String> = recipe.packages.iter().chain(along).collect();
    let mut specs = Vec::new();
    let mut repositories = BTreeSet::new();
    for name in names {
        let of = |name: &str| found.iter().find(|one| one.name == name && is(one, version));
        let renamed = || other_names(name, task.wanted_branch()).into_iter().find_map(|name| of(&name));
        let one = match of(name) {
            Some(one) => one,
            None if !is_companion(name) => continue,
            None => renamed().ok_or_else(|| {
                let driver = of(&first).map_or("", |one| upstream(&one.version));
                format!("{name} is installed, must be of the driver's version, and is not there as {driver}")
            })?,
        };
        let of = one.version.rsplit_once('-').map_or(one.version.as_str(), |(version, _)| version);
        specs.push(format!("{}-{of}", one.name));
        repositories.insert(one.repository.clone());
    }
    recipe.packages = specs;
    recipe.repositories = repositories.into_iter().collect();
    Ok(recipe)
}

/// Returns an installed package whose declared versions are all excluded. Pure.
fn only_excluded<'a>(
    task: &GpuDriver,
    installed: &[String],
    excluded: &'a [Found],
    found: &[Found],
) -> Option<&'a Found> {
    let fits = |one: &Found| task.accepts(upstream(&one.version));
    excluded.iter().find(|one| {
        fits(one)
            && installed.contains(&one.name)
            && !found.iter().any(|other| other.name == one.name && fits(other))
    })
}

fn refused(task: &GpuDriver, one: &Found, locks: &Locks) -> Trouble {
    let (name, version) = (&one.name, &one.version);
    Trouble::invalid(format!(
        "somebody excluded {name} {version} with dnf's versionlock, and without it the driver {} cannot be installed; `dnf \
         versionlock delete '{}'` allows it again",
        task.wanted(),
        locks.exclusion(name, version).unwrap_or_default()
    ))
}

/// Returns the arguments for an installation that may make packages older, and remove those of the other flavour.
fn install(recipe: &Recipe, locks: &Locks) -> Vec<String> {
    let mut all = words(&["-y", UNLOCKED, "--allowerasing", "--setopt=clean_requirements_on_remove=0"]);
    let repositories = recipe.repositories.iter();
    all.extend(repositories.map(|repository| format!("--setopt={repository}.module_hotfixes=1")));
    // What a person excluded stays so, without the plugin too.
    all.extend(locks.exclusions().map(|line| format!("--exclude={line}")));
    all.push("install".to_owned());
    all.extend(recipe.packages.iter().cloned());
    all
}

fn errors(stderr: &str) -> String {
    let lines = stderr
        .lines()
        .filter_map(|line| line.strip_prefix("Error: ").or_else(|| line.strip_prefix("error: ")));
    lines.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

fn perform(node: &Node<'_>, arguments: &[String]) -> Result<(), Trouble> {
    let shown: Vec<&str> =
        arguments.iter().filter(|word| !word.starts_with('-')).map(String::as_str).collect();
    call(node, &dnf::dnf(node)?.args(arguments), format!("dnf {}", shown.join(" ")), errors)
}

/// Enables a stream, or none.
fn enable(node: &Node<'_>, options: &[&str], stream: Option<&str>) -> Result<(), Trouble> {
    let module = |verb: &str, what: &str| {
        let mut arguments = words(options);
        arguments.extend(words(&["-y", "module", verb, what]));
        perform(node, &arguments)
    };
    module("reset", MODULE)?;
    stream.map_or(Ok(()), |stream| module("enable", &format!("{MODULE}:{stream}")))
}

fn locks(node: &Node<'_>) -> Result<Locks, Trouble> {
    Ok(Locks::read(node)?.unwrap_or_default())
}

/// The names of a package's file.
fn file_names(former: &Former) -> [String; 2] {
    let version = former.version.split_once(':').map_or(former.version.as_str(), |(_, rest)| rest);
    [native(), "noarch"].map(|architecture| format!("{}-{version}.{architecture}.rpm", former.name))
}

fn file_in(folder: &Path, former: &Former) -> Option<PathBuf> {
    file_names(former).into_iter().map(|name| folder.join(name)).find(|path| path.is_file())
}

/// Returns a package's file in the cache of dnf.
fn cached(node: &Node<'_>, former: &Former) -> Option<PathBuf> {
    let folders = fs::read_dir(node.roots.path(CACHE)).ok()?.take(CACHES).flatten();
    let mut files = folders.filter_map(|folder| file_in(&folder.path().join("packages"), former));
    files.next()
}

fn spec(former: &Former) -> String {
    format!("{}-{}", former.name, former.version)
}

/// The package manager of the Red Hat family.
pub struct Dnf;

impl Packages for Dnf {
    fn name(&self) -> &'static str {
        "dnf"
    }

    fn sources(&self) -> &'static [&'static str] {
        &[repositories::DNF]
    }

    fn installed(&self, node: &Node<'_>) -> Result<Vec<(String, String)>, Trouble> {
        let all = database(node, &[])?;
        let ours =
            all.into_iter().filter(|(name, _, architecture, _)| is_driver(name) && is_ours(architecture));
        let mut found: BTreeMap<String, String> = ours.map(|(name, version, ..)| (name, version)).collect();
        for (name, version) in node.world.packages().into_iter().filter(|(name, _)| is_driver(name)) {
            match version {
                Some(version) => found.insert(name, version),
                None => found.remove(&name),
            };
        }
        Ok(found.into_iter().collect())
    }

    fn recipes(&self, node: &Node<'_>, wish: &Wish<'_>) -> Result<Vec<Recipe>, Trouble> {
        let debian = matches!(wish.source, DriverSource::Ubuntu | DriverSource::Debian)
            || matches!(wish.flavour, DriverFlavour::Server | DriverFlavour::ServerOpen);
        if debian {
            return Err(Trouble::invalid(
                "the declared packages are Ubuntu's or Debian's, and this node has dnf; declare `source: nvidia` and the \
                 flavour `open` or `proprietary`, or leave both out",
            ));
        }
        let run = dnf::dnf(node)?.args(["-q", "module", "list", MODULE]).limit(ANSWER);
        let done = tool::ask(node, &run)?;
        // It fails where no repository has the module. Other trouble of repositories shows with the packages.
        let known = if done.exit.success() { streams(&done.stdout()) } else { Vec::new() };
        Ok(recipes(wish, &Streams { known, enabled: self.stream(node)? }))
    }

    fn choose(&self, node: &Node<'_>, task: &GpuDriver, recipes: Vec<Recipe>) -> Result<Recipe, Trouble> {
        let installed: Vec<String> = self.installed(node)?.into_iter().map(|(name, _)| name).collect();
        let kernels = ["kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"].map(str::to_owned);
        let of_recipes = recipes.iter().flat_map(|recipe| recipe.packages.iter());
        let renamed = installed.iter().filter(|name| is_companion(name));
        let renamed: Vec<String> = renamed.flat_map(|name| other_names(name, task.wanted_branch())).collect();
        let names = of_recipes.chain(&installed).chain(&kernels).chain(&renamed).cloned().collect();
        let locks = locks(node)?;
        let excluded = |one: &Found| locks.exclusion(&one.name, &one.version).is_some();
        let (excluded, found): (Vec<Found>, Vec<Found>) =
            available(node, &names)?.into_iter().partition(excluded);
        let mut lacks = Vec::new();
        if recipes.is_empty() {
            lacks.push(format!("the module {MODULE} has no stream of that branch"));
        }
        // Another recipe would do without it, and dnf would remove it.
        let other = |name: &str| recipes.first().is_some_and(|recipe| is_other(name, recipe));
        let needed: Vec<String> = installed.iter().filter(|name| !other(name)).cloned().collect();
        if let Some(one) = only_excluded(task, &needed, &excluded, &found) {
            return Err(refused(task, one, &locks));
        }
        for recipe in recipes {
            match resolve(task, recipe, &installed, &found) {
                Ok(recipe) => return Ok(recipe),
                Err(lack) => lacks.push(lack),
            }
        }
        match excluded.iter().find(|one| task.accepts(upstream(&one.version))) {
            None => Err(none_fits(task, lacks, "`yum_repository`")),
            Some(one) => Err(refused(task, one, &locks)),
        }
    }

    fn simulated(&self, node: &Node<'_>, task: &GpuDriver, recipe: &Recipe) -> Result<Order, Trouble> {
        let foreign = database(node, &[])?
            .into_iter()
            .find(|(name, _, architecture, _)| is_driver(name) && !is_ours(architecture));
        if let Some((name, _, architecture, _)) = foreign {
            return Err(Trouble::invalid(format!(
                "{name}.{architecture} is installed beside the driver of {}, and the node could not go back with it; remove \
                 it first",
                native()
            )));
        }
        let mut order = dnf::simulated(node, install(recipe, &locks(node)?), true)?;
        if let Some((name, version)) = left_behind(task, &self.installed(node)?, &order) {
            return Err(Trouble::invalid(format!(
                "dnf would leave {name} {version} beside the driver {}, whose version it must have; name its new package in \
                 `packages`, or remove it",
                task.wanted()
            )));
        }
        let replaced: Vec<String> = order
            .actions
            .iter()
            .filter(|action| action.from.is_some())
            .map(|action| action.name.clone())
            .collect();
        // With their epochs, which the names of files do not have.
        let known: BTreeMap<String, String> = match replaced.is_empty() {
            true => BTreeMap::new(),
            false => {
                database(node, &replaced)?.into_iter().map(|(name, version, ..)| (name, version)).collect()
            }
        };
        for action in order.actions.iter_mut().filter(|action| action.from.is_some()) {
            action.from = known.get(&action.name).cloned().or(action.from.take());
        }
        let assumed = node.world.packages();
        order.actions.retain(|action| assumed.get(&action.name) != Some(&action.to));
        let enabled = self.stream(node)?;
        if recipe.stream.is_some() && recipe.stream != enabled {
            order.modules.push(Action { name: MODULE.to_owned(), from: enabled, to: recipe.stream.clone() });
        }
        Ok(order)
    }

    fn update(&self, node: &Node<'_>) -> Result<(), Trouble> {
        perform(node, &words(&["-y", "--refresh", "makecache"]))
    }

    fn download(&self, node: &Node<'_>, _: &GpuDriver, recipe: &Recipe) -> Result<(), Trouble> {
        let mut arguments = install(recipe, &locks(node)?);
        arguments.insert(0, "--downloadonly".to_owned());
        perform(node, &arguments)
    }

    fn perform(&self, node: &Node<'_>, _: &GpuDriver, recipe: &Recipe) -> Result<(), Trouble> {
        if recipe.stream.is_some() && recipe.stream != self.stream(node)? {
            enable(node, &[], recipe.stream.as_deref())?;
        }
        before_scripts(node);
        perform(node, &install(recipe, &locks(node)?))
    }

    fn unobtainable(&self, node: &Node<'_>, former: &[Former]) -> Result<Option<String>, Trouble> {
        let wanted: Vec<&Former> = former.iter().filter(|one| cached(node, one).is_none()).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let found = available(node, &wanted.iter().map(|one| one.name.clone()).collect())?;
        let is_there =
            |one: &Former| found.iter().any(|found| found.name == one.name && found.version == one.version);
        let lost: Vec<String> = wanted.into_iter().filter(|one| !is_there(one)).map(spec).collect();
        Ok((!lost.is_empty()).then(|| format!("no repository has {}", lost.join(", "))))
    }

    fn keep(&self, node: &Node<'_>, folder: &Path, former: &mut [Former]) -> Result<(), Trouble> {
        tree::make_dirs(folder)?;
        let mut wanted = Vec::new();
        for one in former.iter().filter(|one| file_in(folder, one).is_none()) {
            match cached(node, one) {
                Some(file) => {
                    let copy = Fresh::beside(&folder.join(file.file_name().unwrap_or_default()))?;
                    let mut from = tree::open(&file)?;
                    io::copy(&mut from, &mut copy.file()).at("copy", &file)?;
                    copy.place()?;
                }
                None => wanted.push(spec(one)),
            }
        }
        if !wanted.is_empty() {
            (node.progress)(format!("dnf reinstall --downloadonly {}", wanted.join(" ")));
            let place = format!("--downloaddir={}", folder.display());
            let run = dnf::dnf(node)?
                .args(["-y", UNLOCKED, ALL_STREAMS, "--downloadonly", &place, "reinstall"])
                .args(wanted);
            // Without its verdict: what did not come has no file.
            run.finish(node.deadline)?;
        }
        for one in former.iter_mut() {
            one.file = file_in(folder, one).map(|path| path.display().to_string());
        }
        Ok(())
    }

    fn rehearse(&self, node: &Node<'_>, files: &[&str]) -> Result<Option<String>, Trouble> {
        let program = tool::find(node, "rpm", BRINGS)?;
        for (words, what) in [
            (&["-K", "--nosignature"][..], "rpm -K"),
            (&["-U", "--test", "--oldpackage", "--replacepkgs", "--nosignature"], "rpm -U --test"),
        ] {
            let done = tool::ask(node, &tool::run(node, &program).args(words).args(files).limit(ANSWER))?;
            if !done.exit.success() {
                return Ok(Some(done.complaint(what)));
            }
        }
        Ok(None)
    }

    fn restore(&self, node: &Node<'_>, files: &[String], gone: &[String]) -> Result<(), Trouble> {
        let options =
            ["-y", UNLOCKED, "--disablerepo=*", "--setopt=clean_requirements_on_remove=0", "--allowerasing"];
        if !files.is_empty() {
            let mut arguments = words(&options);
            arguments.push("install".to_owned());
            arguments.extend(files.iter().cloned());
            perform(node, &arguments)?;
        }
        // Those in the way went with the installation.
        let there: BTreeSet<String> = self.installed(node)?.into_iter().map(|(name, _)| name).collect();
        let gone: Vec<String> = gone.iter().filter(|name| there.contains(*name)).cloned().collect();
        if gone.is_empty() {
            return Ok(());
        }
        let mut arguments = words(&options);
        arguments.push("remove".to_owned());
        arguments.extend(gone);
        perform(node, &arguments)
    }

    fn held(&self, node: &Node<'_>, packages: &[(String, String)]) -> Result<Option<Holds>, Trouble> {
        let Some(locks) = Locks::read(node)? else { return Ok(None) };
        let mut holds = Holds::default();
        for (name, version) in packages {
            let Some(lock) = locks.lock(name, version) else { continue };
            if lock.own {
                holds.own.insert(name.clone());
            }
            if let Some(line) = lock.pattern {
                holds.by_pattern.insert(name.clone(), line);
            }
        }
        Ok(Some(holds))
    }

    fn holder(&self) -> &'static str {
        versionlock::HOLDER
    }

    fn hold(&self, node: &Node<'_>, names: &[String], on: bool) -> Result<(), Trouble> {
        versionlock::set(node, names, on)
    }

    fn hold_as_before(&self, node: &Node<'_>, attempt: &Attempt) -> Result<(), Trouble> {
        if attempt.held.is_empty() && Locks::read(node)?.is_none() {
            return Ok(());
        }
        // The attempt may have locked its own versions.
        versionlock::set(node, &attempt.names(), false)?;
        versionlock::set(node, &attempt.held, true)
    }

    fn stream(&self, node: &Node<'_>) -> Result<Option<String>, Trouble> {
        dnf::modules::stream(node, MODULE)
    }

    fn set_stream(&self, node: &Node<'_>, stream: Option<&str>) -> Result<(), Trouble> {
        if self.stream(node)?.as_deref() == stream {
            return Ok(());
        }
        // What is in the cache is enough for it, and the network may be away.
        enable(node, &["-C"], stream).or_else(|_| enable(node, &[], stream))
    }

    fn interrupted(&self, node: &Node<'_>, attempt: Option<&Attempt>) -> Result<Interrupted, Trouble> {
        let twice = twice(database(node, &[])?);
        if twice.is_empty() {
            return Ok(Interrupted::default());
        }
        let program = tool::find(node, "rpm", BRINGS)?;
        let mut counted = Vec::new();
        for one in twice {
            // Such as modules of several kernels, which are there side by side.
            let run = tool::run(node, &program).args(["-q", "--provides", &one.name]).limit(ANSWER);
            if !tool::ask(node, &run)?.stdout().contains("installonlypkg(") {
                counted.push(one);
            }
        }
        Ok(leftovers(&counted, attempt))
    }

    fn finish_interrupted(
        &self,
        node: &Node<'_>,
        _: &GpuDriver,
        attempt: Option<&Attempt>,
    ) -> Result<(), Trouble> {
        let half = self.interrupted(node, attempt)?;
        if half.packages.is_empty() {
            return Ok(());
        }
        let program = tool::find(node, "rpm", BRINGS)?;
        // Without dependencies: what is half done has none that hold.
        let run: Run = tool::run(node, program).args(["-e", "--nodeps"]).args(&half.packages);
        tool::act(node, &run, &format!("rpm -e {}", half.packages.join(" "))).map(drop)
    }
}

/// Returns a package that must have the driver's version, and that an installation leaves in another one. Pure.
fn left_behind<'a>(
    task: &GpuDriver,
    installed: &'a [(String, String)],
    order: &Order,
) -> Option<&'a (String, String)> {
    installed.iter().find(|(name, version)| {
        is_companion(name)
            && !task.accepts(upstream(version))
            && !order.actions.iter().any(|action| action.name == *name)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wish<'a>(branch: u32, flavour: DriverFlavour, installed: &'a [String]) -> Wish<'a> {
        Wish { source: DriverSource::Auto, branch, flavour, kernel: "5.14.0-570.el9.x86_64", installed }
    }

    fn found(name: &str, version: &str) -> Found {
        Found { name: name.to_owned(), version: format!("3:{version}-1.el9"), repository: "cuda".to_owned() }
    }

    #[test]
    fn a_branch_has_a_stream_or_the_moving_one_or_none() {
        let known = words(&["575-open", "580-dkms", "580-open", "latest-dkms", "open-dkms", "580"]);
        let of = |branch, flavour, enabled: Option<&str>| -> Vec<Option<String>> {
            let streams = Streams { known: known.clone(), enabled: enabled.map(str::to_owned) };
            let mut all: Vec<Option<String>> = recipes(&wish(branch, flavour, &[]), &streams)
                .into_iter()
                .map(|recipe| recipe.stream)
                .collect();
            all.dedup();
            all
        };
        let some = |names: &[&str]| names.iter().map(|name| Some((*name).to_owned())).collect::<Vec<_>>();
        assert_eq!(of(580, DriverFlavour::Open, None), some(&["580-open", "open-dkms"]));
        assert_eq!(of(595, DriverFlavour::Open, None), some(&["open-dkms"]));
        assert_eq!(of(580, DriverFlavour::Proprietary, None), some(&["580-dkms", "latest-dkms"]));
        assert_eq!(
            of(580, DriverFlavour::Proprietary, Some("575")),
            some(&["580", "580-dkms", "latest-dkms"])
        );
        let none = recipes(&wish(580, DriverFlavour::Open, &[]), &Streams::default());
        assert!(none.iter().all(|recipe| recipe.stream.is_none()) && none[0].packages == ["nvidia-open"]);
    }

    #[test]
    fn what_is_installed_goes_along_in_the_same_version() {
        let task: GpuDriver = serde_json::from_value(json!({"branch": 580})).unwrap();
        let installed =
            words(&["nvidia-open", "nvidia-driver-libs", "nvidia-xconfig", "kmod-nvidia-latest-dkms"]);
        let all = [
            found("nvidia-open", "580.95.05"),
            found("nvidia-open", "580.173.02"),
            found("nvidia-open", "590.44.01"),
            found("nvidia-driver-libs", "580.173.02"),
            found("kmod-nvidia-latest-dkms", "580.173.02"),
        ];
        let recipe = || Recipe { packages: words(&["nvidia-open"]), ..Recipe::default() };
        let chosen = resolve(&task, recipe(), &installed, &all).unwrap();
        assert_eq!(chosen.packages, ["nvidia-open-3:580.173.02", "nvidia-driver-libs-3:580.173.02"]);
        assert_eq!(chosen.repositories, ["cuda"]);
        let lack = resolve(&task, recipe(), &installed, &all[2..3]).unwrap_err();
        assert_eq!(lack, "nvidia-open is there as 590.44.01");
        assert_eq!(resolve(&task, recipe(), &[], &[]).unwrap_err(), "there is no package nvidia-open");
    }

    fn task() -> GpuDriver {
        serde_json::from_value(json!({"branch": 580})).unwrap()
    }

    #[test]
    fn a_companion_is_taken_by_its_new_name_and_never_left_behind() {
        let recipe = || Recipe { packages: words(&["nvidia-open"]), ..Recipe::default() };
        let installed = words(&["nvidia-open", "nvidia-fabric-manager", "libnvidia-nscq-575"]);
        let mut all = vec![
            found("nvidia-open", "580.173.02"),
            found("nvidia-fabric-manager", "575.57.08"),
            found("nvidia-fabricmanager", "580.173.02"),
        ];
        let lack = resolve(&task(), recipe(), &installed, &all).unwrap_err();
        assert!(lack.contains("libnvidia-nscq-575") && lack.contains("not there as 580.173.02"), "{lack}");
        all.push(found("libnvidia-nscq", "580.173.02"));
        let chosen = resolve(&task(), recipe(), &installed, &all).unwrap();
        let of = |name: &str| format!("{name}-3:580.173.02");
        assert_eq!(chosen.packages, ["nvidia-open", "nvidia-fabricmanager", "libnvidia-nscq"].map(of));

        let installed = [("nvidia-fabric-manager".to_owned(), "3:575.57.08-1".to_owned())];
        let mut order = Order::default();
        assert_eq!(left_behind(&task(), &installed, &order), Some(&installed[0]));
        order.actions.push(Action { name: installed[0].0.clone(), from: None, to: None });
        assert_eq!(left_behind(&task(), &installed, &order), None, "the new package replaces it");
    }

    #[test]
    fn an_installed_package_is_not_given_up_for_an_exclusion() {
        let installed = words(&["nvidia-open"]);
        let excluded = [found("nvidia-open", "580.173.02"), found("nvidia-settings", "580.173.02")];
        let of = |found: &[Found]| {
            only_excluded(&task(), &installed, &excluded, found).map(|one| one.name.clone())
        };
        assert_eq!(of(&[found("nvidia-open", "590.1")]).as_deref(), Some("nvidia-open"));
        assert_eq!(of(&[found("nvidia-open", "580.95.05")]), None, "another version of the branch is free");
        let locks = Locks::of("!nvidia-open-3:580.173.02-1.el9.*");
        let install = install(&Recipe::default(), &locks);
        assert!(install.contains(&"--exclude=nvidia-open-3:580.173.02-1.el9.*".to_owned()), "{install:?}");
    }

    #[test]
    fn the_answer_of_dnf_is_read() {
        let text = "cuda\nName          Stream       Profiles Summary\nnvidia-driver open-dkms    default  t\nnvidia-driver \
                    580-open [e] default  t\n\nHint: [d]efault, [e]nabled\n";
        assert_eq!(streams(text), ["580-open", "open-dkms"]);
    }
}

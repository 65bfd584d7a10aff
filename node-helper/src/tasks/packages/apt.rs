//! `apt`: packages of Debian and Ubuntu, through `dpkg-query` and `apt-get`.

pub(in crate::tasks) mod output;

use std::{
    collections::HashMap,
    fs,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    glob::Glob,
    message::streams,
    tasks::{Apt, AptState, AptUpgrade},
};
use serde_json::{Map, Value, json};

use self::output::{Installed, Spec};
use super::{Order, Running, before_scripts, effects, plan_orders, running};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    process::Run,
    tasks::{
        download::{Request, shown},
        repositories, tool,
    },
    world::{Content, Effect, Entry},
};

/// Output limit in bytes, enough for a node with every package.
const DATABASE_LIMIT: usize = 32 * 1024 * 1024;
/// Largest package that is downloaded by address, in bytes; NVIDIA's local repositories are the largest in use.
const DEB_LIMIT: u64 = 8 << 30;
const LISTS: &str = "/var/lib/apt/lists";
const STAMP: &str = "/var/lib/apt/periodic/update-success-stamp";
const ARCHIVES: &str = "/var/cache/apt/archives";
const BRINGS: &str = "is it a node of Debian or Ubuntu?";

#[derive(Debug)]
pub struct State {
    orders: Vec<Order>,
    running: Running,
    /// Last update of the package lists, in seconds since 1970.
    updated: u64,
    /// Whether the lists are older than the task allows.
    stale: bool,
    /// Number of package files that each cleaning call of `apt-get` would remove.
    cleanings: Vec<(&'static str, usize)>,
}

pub(in crate::tasks) fn apt_get(node: &Node<'_>, arguments: &[String]) -> Result<Run, Trouble> {
    let program = tool::find(node, "apt-get", BRINGS)?;
    let run = tool::run(node, program)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("DEBIAN_PRIORITY", "critical")
        .env("APT_LISTCHANGES_FRONTEND", "none")
        .env("NEEDRESTART_MODE", "l")
        .env("UCF_FORCE_CONFFOLD", "1");
    Ok(run.args(arguments))
}

pub(in crate::tasks) fn installed(node: &Node<'_>) -> Result<Installed, Trouble> {
    let program = tool::find(node, "dpkg-query", BRINGS)?;
    let run = tool::run(node, program).args(["-W", output::FORMAT]).limit(DATABASE_LIMIT);
    let done = tool::ask(node, &run)?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("dpkg-query")));
    }
    let mut installed = Installed::parse(&done.stdout());
    for (name, version) in node.world.packages() {
        installed.assume(&name, version);
    }
    Ok(installed)
}

/// Whether `left OP right` holds for two versions, by dpkg's comparison.
fn compare(node: &Node<'_>, left: &str, op: &str, right: &str) -> Result<bool, Trouble> {
    let program = tool::find(node, "dpkg", BRINGS)?;
    let run = tool::run(node, program).args(["--compare-versions", left, op, right]);
    Ok(tool::ask(node, &run)?.exit.success())
}

fn modified(node: &Node<'_>, path: &str) -> Option<SystemTime> {
    fs::metadata(node.roots.path(path)).and_then(|meta| meta.modified()).ok()
}

/// Simulates a call of `apt-get`.
pub(in crate::tasks) fn simulated(
    node: &Node<'_>,
    order: &[String],
    stale: bool,
    names: &[String],
) -> Result<Order, Trouble> {
    let open = order.first().is_some_and(|verb| verb != "remove" && verb != "autoremove")
        && repositories::APT.iter().any(|path| node.world.assumes_below(&node.roots.path(path)));
    let mut arguments = vec!["-s".to_owned()];
    arguments.extend_from_slice(order);
    let done = tool::ask(node, &apt_get(node, &arguments)?.limit(DATABASE_LIMIT))?;
    let arguments = order.to_vec();
    if done.exit.success() {
        let mut actions = output::actions(&done.stdout());
        let assumed = node.world.packages();
        actions.retain(|action| assumed.get(&action.name) != Some(&action.to));
        return Ok(Order { arguments, actions, open, ..Order::default() });
    }
    let mut errors = output::errors(&done.stderr());
    if (stale || open) && output::lists_lack(&errors) {
        return Ok(Order { arguments, unknown: names.to_vec(), open, ..Order::default() });
    }
    if errors.is_empty() {
        return Err(Trouble::io(done.complaint("apt-get -s")));
    }
    if let Some(unmet) = output::unmet(&done.stdout()) {
        errors = format!("{errors} {unmet}");
    }
    let hint = if output::lists_lack(&errors) && !names.is_empty() {
        "; `update_cache: true` would update the package lists first"
    } else if errors.contains("--allow-downgrades") {
        "; `allow_downgrade: true` would let it"
    } else if errors.contains("--allow-change-held-packages") {
        "; `allow_change_held_packages: true` would let it"
    } else {
        ""
    };
    Err(Trouble::missing(format!("{errors}{hint}")))
}

impl NodeKind for Apt {
    type State = State;
    type Step = Vec<String>;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        tool::find(node, "apt-get", BRINGS)?;
        let updated = [STAMP, LISTS].iter().filter_map(|path| modified(node, path)).max();
        let age = updated.map(|time| SystemTime::now().duration_since(time).unwrap_or_default());
        let asks = self.update_cache == Some(true) || self.cache_valid_time > 0;
        let valid = Duration::from_secs(u64::from(self.cache_valid_time));
        let stale = asks && age.is_none_or(|age| age > valid || self.cache_valid_time == 0);
        let orders = orders(self, node, stale)?;
        let mut cleanings = Vec::new();
        if self.autoclean {
            let done = tool::ask(node, &apt_get(node, &["-s".to_owned(), "autoclean".to_owned()])?)?;
            let gone = done.stdout().lines().filter(|line| line.starts_with("Del ")).count();
            cleanings.push(("autoclean", gone));
        }
        if self.clean {
            let names = node.world.names(&node.roots.path(ARCHIVES))?;
            cleanings.push(("clean", names.iter().filter(|name| name.ends_with(".deb")).count()));
        }
        let updated = updated.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let running = running(node, &orders);
        Ok(State { orders, running, updated: updated.unwrap_or_default().as_secs(), stale, cleanings })
    }

    fn is_stale(&self, state: &State) -> bool {
        state.stale && !self.only_updates()
    }

    fn refresh(&self, node: &Node<'_>, state: &State) -> Result<Map<String, Value>, Trouble> {
        update(node, &self.updating())?;
        let now = modified(node, LISTS).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let now = now.map_or(state.updated, |time| time.as_secs());
        let data = [("cache_updated", json!(true)), ("cache_update_time", json!(now))];
        Ok(data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn plan(&self, state: &State) -> Result<Plan<Vec<String>>, Trouble> {
        let mut plan = Plan::default();
        if self.only_updates() && state.stale {
            let from = match state.updated {
                0 => "never updated".to_owned(),
                seconds => {
                    let time = UNIX_EPOCH + Duration::from_secs(seconds);
                    let text = crate::os::civil::timestamp(time);
                    format!("of {}", text.get(..16).unwrap_or(&text))
                }
            };
            let lists = Property::new("package lists");
            let change = Change::new(Subject::PackageManager, lists, from, "updated", Disruption::Live);
            plan.push(vec!["update".to_owned()], change);
        }
        plan_orders(&state.orders, &state.running, self.state == AptState::Absent, &mut plan);
        for (verb, count) in state.cleanings.iter().filter(|(_, count)| *count > 0) {
            let (files, from) = (Property::new("downloaded packages"), format!("{count} package files"));
            let change = Change::new(Subject::PackageManager, files, from, "cleaned", Disruption::Live);
            plan.push(vec![(*verb).to_owned()], change);
        }
        Ok(plan)
    }

    fn left(&self, state: &State, _: &Plan<Vec<String>>) -> Result<Plan<Vec<String>>, Trouble> {
        let mut plan = Plan::default();
        plan_orders(&state.orders, &state.running, self.state == AptState::Absent, &mut plan);
        Ok(plan)
    }

    fn after(&self, state: &State, _: &Plan<Vec<String>>) -> Vec<Effect> {
        effects(&state.orders)
    }

    fn apply(
        &self,
        node: &Node<'_>,
        _: &State,
        plan: &Plan<Vec<String>>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        for arguments in &plan.steps {
            node.check_time()?;
            if arguments.first().is_some_and(|verb| verb == "update") {
                update(node, &self.updating())?;
                data.insert("cache_updated".to_owned(), json!(true));
                continue;
            }
            before_scripts(node);
            let what = format!("apt-get {}", output::shown(arguments));
            (node.progress)(what.clone());
            let done = apt_get(node, arguments)?.finish(node.deadline)?;
            if !done.exit.success() {
                let errors = output::errors(&done.stderr());
                let message = match errors.is_empty() {
                    true => done.complaint(&what),
                    false => format!("{what}: {}: {errors}", done.exit),
                };
                return Err(Trouble::failed(FailureKind::Exit, message));
            }
            data.extend(streams(&done.stdout(), &done.stderr()));
        }
        Ok(data)
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let data = [("cache_updated", json!(false)), ("cache_update_time", json!(state.updated))];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Helper methods of an `apt` task.
trait Asks {
    fn only_updates(&self) -> bool;
    fn updating(&self) -> Update;
    fn options(&self) -> Vec<String>;
    fn install_options(&self) -> Vec<String>;
}

impl Asks for Apt {
    fn updating(&self) -> Update {
        Update {
            retries: self.update_cache_retries,
            max_delay_s: self.update_cache_retry_max_delay,
            lock_timeout_s: self.lock_timeout,
        }
    }

    /// Whether only an update of the package lists is declared.
    fn only_updates(&self) -> bool {
        self.name.is_empty()
            && self.deb.is_none()
            && self.upgrade == AptUpgrade::No
            && self.state != AptState::Fixed
            && !self.autoremove
            && !self.autoclean
            && !self.clean
    }

    fn options(&self) -> Vec<String> {
        let mut options: Vec<String> = vec!["-y".to_owned(), "-q".to_owned()];
        let mut set = |text: String| options.extend(["-o".to_owned(), text]);
        for word in self.dpkg_options.split(',').filter(|word| !word.is_empty()) {
            set(format!("Dpkg::Options::=--{word}"));
        }
        set(format!("DPkg::Lock::Timeout={}", self.lock_timeout));
        let flags = [
            (self.fail_on_autoremove, "--no-remove"),
            (self.allow_unauthenticated, "--allow-unauthenticated"),
            (self.allow_downgrade, "--allow-downgrades"),
            (self.allow_change_held_packages, "--allow-change-held-packages"),
        ];
        options.extend(flags.iter().filter(|(given, _)| *given).map(|(_, flag)| (*flag).to_owned()));
        if let Some(release) = &self.default_release {
            options.extend(["-t".to_owned(), release.clone()]);
        }
        options
    }

    fn install_options(&self) -> Vec<String> {
        let mut options = self.options();
        if let Some(recommends) = self.install_recommends {
            let word = if recommends { "yes" } else { "no" };
            options.extend(["-o".to_owned(), format!("APT::Install-Recommends={word}")]);
        }
        let flags = [(self.only_upgrade, "--only-upgrade"), (self.autoremove, "--auto-remove")];
        options.extend(flags.iter().filter(|(given, _)| *given).map(|(_, flag)| (*flag).to_owned()));
        options
    }
}

/// How the package lists are updated.
pub struct Update {
    pub retries: u32,
    /// The longest wait between two tries, in seconds.
    pub max_delay_s: u32,
    /// How long another user of apt is waited for, in seconds.
    pub lock_timeout_s: u32,
}

/// Updates the package lists, and retries if mirrors do not answer.
///
/// # Errors
/// What apt says about the last try.
pub fn update(node: &Node<'_>, how: &Update) -> Result<(), Trouble> {
    let arguments = [
        "update".to_owned(),
        "-o".to_owned(),
        format!("DPkg::Lock::Timeout={}", how.lock_timeout_s),
        "-o".to_owned(),
        "APT::Update::Error-Mode=any".to_owned(),
    ];
    (node.progress)("apt-get update".to_owned());
    let tries = how.retries.max(1);
    for attempt in 0..tries {
        let done = apt_get(node, &arguments)?.finish(node.deadline)?;
        if done.exit.success() {
            // apt leaves the folder's time unchanged if nothing was new, but the age of the lists is read from it.
            if let Ok(folder) = fs::File::open(node.roots.path(LISTS)) {
                let _ = folder.set_modified(SystemTime::now());
            }
            return Ok(());
        }
        if attempt + 1 == tries {
            let errors = output::errors(&done.stderr());
            let message = match errors.is_empty() {
                true => done.complaint("apt-get update"),
                false => format!("apt-get update: {errors}"),
            };
            return Err(Trouble::failed(FailureKind::Exit, message));
        }
        let delay = 1u64.checked_shl(attempt).unwrap_or(u64::MAX);
        let pause = Duration::from_secs(delay.min(u64::from(how.max_delay_s)));
        let until = std::time::Instant::now() + pause;
        while std::time::Instant::now() < until {
            node.check_time()?;
            std::thread::sleep(Duration::from_millis(100).min(pause));
        }
    }
    Ok(())
}

fn words(options: Vec<String>, verb: &str, names: &[String]) -> Vec<String> {
    let mut all = vec![verb.to_owned()];
    all.extend(options);
    all.extend_from_slice(names);
    all
}

/// Returns the calls that are needed, as `apt-get` simulates them.
fn orders(task: &Apt, node: &Node<'_>, stale: bool) -> Result<Vec<Order>, Trouble> {
    let mut orders = Vec::new();
    let mut add = |arguments: Vec<String>, names: &[String]| -> Result<(), Trouble> {
        orders.push(simulated(node, &arguments, stale, names)?);
        Ok(())
    };
    let all = task.name.iter().any(|name| name == "*") && task.state == AptState::Latest;
    let upgrade = if all && task.upgrade == AptUpgrade::No { AptUpgrade::Yes } else { task.upgrade };
    match upgrade {
        AptUpgrade::No => {}
        AptUpgrade::Yes | AptUpgrade::Safe => {
            let mut options = task.install_options();
            options.push("--with-new-pkgs".to_owned());
            add(words(options, "upgrade", &[]), &[])?;
        }
        AptUpgrade::Full | AptUpgrade::Dist => add(words(task.install_options(), "dist-upgrade", &[]), &[])?,
    }
    if let Some(deb) = &task.deb {
        let path = match deb.contains("://") {
            true => {
                let held = node.downloads.get(&Request::plain(deb, true, DEB_LIMIT), node)?;
                held.path().display().to_string()
            }
            false => deb.clone(),
        };
        if deb_is_wanted(task, node, deb, &path)? {
            add(words(task.install_options(), "install", &[path]), &[])?;
        }
    }
    let names: Vec<&String> = task.name.iter().filter(|name| *name != "*").collect();
    if names.is_empty() {
        if task.state == AptState::Fixed {
            let mut options = task.install_options();
            options.push("--fix-broken".to_owned());
            add(words(options, "install", &[]), &[])?;
        } else if task.autoremove && upgrade == AptUpgrade::No && task.deb.is_none() {
            let mut options = task.options();
            options.extend(task.purge.then(|| "--purge".to_owned()));
            add(words(options, "autoremove", &[]), &[])?;
        }
        return Ok(orders);
    }
    let installed = installed(node)?;
    match task.state {
        AptState::Absent => {
            let mut gone: Vec<String> = Vec::new();
            for name in &names {
                let spec = Spec::parse(name);
                gone.extend(installed.matching(spec.name, task.purge));
            }
            gone.sort();
            gone.dedup();
            if !gone.is_empty() {
                let mut options = task.options();
                options.extend(task.purge.then(|| "--purge".to_owned()));
                options.extend(task.autoremove.then(|| "--auto-remove".to_owned()));
                add(words(options, "remove", &gone), &[])?;
            }
        }
        AptState::BuildDep => {
            let names: Vec<String> = names.into_iter().cloned().collect();
            add(words(task.options(), "build-dep", &names), &names)?;
        }
        AptState::Present | AptState::Latest | AptState::Fixed => {
            let wanted = wanted(task, node, &names, &installed)?;
            if !wanted.is_empty() {
                let mut options = task.install_options();
                options.extend((task.state == AptState::Fixed).then(|| "--fix-broken".to_owned()));
                add(words(options, "install", &wanted), &wanted)?;
            }
        }
    }
    Ok(orders)
}

/// Returns the packages for `apt-get install`.
fn wanted(
    task: &Apt,
    node: &Node<'_>,
    names: &[&String],
    installed: &Installed,
) -> Result<Vec<String>, Trouble> {
    let latest = task.state == AptState::Latest;
    let mut wanted: Vec<String> = Vec::new();
    for name in names {
        let spec = Spec::parse(name);
        let expanded = match Glob::is_glob(spec.name) {
            true => expand(node, spec.name)?,
            false => vec![spec.name.to_owned()],
        };
        for name in expanded {
            let version = installed.version(&name);
            if version.is_none() && task.only_upgrade {
                continue;
            }
            let fits = match (version, spec.op, spec.version) {
                (None, "", _) => installed.provides(&name),
                (None, ..) => false,
                (Some(_), "", _) => true,
                (Some(now), "=", wanted) => now.is_empty() || Glob::new(wanted).matches(now),
                (Some(now), _, wanted) => now.is_empty() || compare(node, now, "ge", wanted)?,
            };
            let assumed = version.is_some_and(str::is_empty);
            if fits && !(latest && version.is_some() && spec.op.is_empty()) || assumed {
                continue;
            }
            wanted.push(match spec.op {
                "=" => format!("{name}={}", spec.version),
                _ => name,
            });
        }
    }
    wanted.dedup();
    Ok(wanted)
}

/// Returns all packages of the lists that match a pattern.
fn expand(node: &Node<'_>, pattern: &str) -> Result<Vec<String>, Trouble> {
    let program = tool::find(node, "apt-cache", BRINGS)?;
    let prefix = pattern.split(['*', '?', '[']).next().unwrap_or_default();
    let run = tool::run(node, program).args(["pkgnames", prefix]).limit(DATABASE_LIMIT);
    let done = tool::ask(node, &run)?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint("apt-cache pkgnames")));
    }
    let glob = Glob::new(pattern);
    let mut names: Vec<String> =
        done.stdout().lines().filter(|name| glob.matches(name)).map(str::to_owned).collect();
    names.sort();
    if names.is_empty() {
        return Err(Trouble::missing(format!("no package is called like `{pattern}`")));
    }
    Ok(names)
}

/// Whether a package file has another version than the installed one.
///
/// `deb` is what the task calls it, `path` where it is.
fn deb_is_wanted(task: &Apt, node: &Node<'_>, deb: &str, path: &str) -> Result<bool, Trouble> {
    let deb = shown(deb);
    let downloaded = deb.contains("://");
    let path = if downloaded { PathBuf::from(path) } else { node.roots.path(path) };
    match node.world.follow(&path)? {
        _ if downloaded => {}
        (_, Entry::Absent) => return Err(Trouble::missing(format!("there is no file {deb} on this node"))),
        (place, Entry::File { content: Content::On(real), .. }) if real == place => {}
        (_, Entry::File { .. }) => return Err(Trouble::Possible),
        _ => return Err(Trouble::invalid(format!("{deb} is not a package file"))),
    }
    let program = tool::find(node, "dpkg-deb", BRINGS)?;
    let done = tool::ask(node, &tool::run(node, program).arg("-f").arg(&path).args(["Package", "Version"]))?;
    if !done.exit.success() {
        return Err(Trouble::invalid(done.complaint(&format!("dpkg-deb -f {deb}"))));
    }
    let text = done.stdout();
    let fields: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once(": ")).collect();
    let get = |name: &str| fields.get(name).copied().unwrap_or_default();
    let installed = installed(node)?;
    match installed.version(get("Package")) {
        None => Ok(true),
        Some(now) if now == get("Version") || now.is_empty() => Ok(false),
        // As in Ansible, a later version stays.
        Some(now) => Ok(task.allow_downgrade || compare(node, now, "lt", get("Version"))?),
    }
}

#[cfg(test)]
mod tests;

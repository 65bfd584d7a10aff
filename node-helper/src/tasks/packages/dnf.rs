//! `dnf`: packages of the Red Hat family, through `rpm` and `dnf`.

use gpufleet_protocol::{
    FailureKind,
    message::streams,
    tasks::{Dnf, ModuleStream, PackageState},
};
use serde_json::{Map, Value, json};

pub(in crate::tasks) mod modules;

use super::{Action, Order, Running, before_scripts, effects, plan_orders, running};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    process::{Finished, Run},
    tasks::{repositories, tool},
    world::Effect,
};

const LIMIT: usize = 16 * 1024 * 1024;
pub(in crate::tasks) const BRINGS: &str = "is it a node of the Red Hat family?";

#[derive(Debug)]
pub struct State {
    orders: Vec<Order>,
    running: Running,
}

pub(in crate::tasks) fn dnf(node: &Node<'_>) -> Result<Run, Trouble> {
    let program = match node.roots.tool("dnf") {
        Some(program) => program,
        None => tool::find(node, "yum", BRINGS)?,
    };
    Ok(tool::run(node, program).env("COLUMNS", "300"))
}

/// Returns the version of an installed package; `None` if neither it nor a package that provides it is installed.
fn installed(node: &Node<'_>, spec: &str) -> Result<Option<String>, Trouble> {
    let plain = spec.split(['=', '<', '>', ' ']).next().unwrap_or(spec).trim();
    if let Some(assumed) = node.world.packages().get(plain) {
        return Ok(assumed.clone());
    }
    let program = tool::find(node, "rpm", BRINGS)?;
    let ask = |words: &[&str]| -> Result<Finished, Trouble> {
        let format = ["--qf", "%{VERSION}-%{RELEASE}\\n"];
        tool::ask(node, &tool::run(node, &program).arg("-q").args(format).args(words))
    };
    let version = |done: &Finished| done.stdout().lines().next().map(|line| line.trim().to_owned());
    let is_file = spec.contains("://") || spec.starts_with('/') && spec.ends_with(".rpm");
    if is_file {
        let run =
            tool::run(node, &program).args(["-qp", "--qf", "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}", spec]);
        let done = tool::ask(node, &run)?;
        if !done.exit.success() {
            return Err(Trouble::missing(done.complaint(&format!("rpm -qp {spec}"))));
        }
        let done = ask(&[done.stdout().trim()])?;
        return Ok(done.exit.success().then(|| version(&done)).flatten());
    }
    for words in [&[spec][..], &["--whatprovides", spec]] {
        let done = ask(words)?;
        if done.exit.success() {
            return Ok(version(&done));
        }
        let told = format!("{}{}", done.stdout(), done.stderr());
        if !told.contains("is not installed") && !told.contains("no package provides") {
            return Err(Trouble::io(done.complaint("rpm -q")));
        }
    }
    Ok(None)
}

/// Parses a transaction table of dnf; also returns whether any package would be downgraded.
fn transaction(text: &str) -> (Vec<Action>, bool) {
    #[derive(Clone, Copy, PartialEq)]
    enum Section {
        None,
        Come,
        Older,
        Go,
    }
    let mut section = Section::None;
    let mut rows: Vec<(Section, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("Transaction Summary") {
            break;
        }
        if let Some(title) = line.strip_suffix(':') {
            section = match title.split_whitespace().next() {
                // Their rows describe modules and groups, and have other columns.
                _ if modules::is_title(title) => Section::None,
                Some("Installing" | "Upgrading" | "Updating" | "Reinstalling") => Section::Come,
                Some("Downgrading") => Section::Older,
                Some("Removing") => Section::Go,
                _ => Section::None,
            };
            continue;
        }
        if section == Section::None
            || line.is_empty()
            || line.starts_with(['=', '-'])
            || line.starts_with("replacing")
        {
            continue;
        }
        // Six columns: name, architecture, version, repository, size and its unit; long names break the line.
        match rows.last_mut() {
            Some((_, row)) if row.len() < 6 => row.extend(line.split_whitespace()),
            _ => rows.push((section, line.split_whitespace().collect())),
        }
    }
    let older = rows.iter().any(|(section, _)| *section == Section::Older);
    let actions = rows.iter().filter_map(|(section, row)| {
        let (name, version) = ((*row.first()?).to_owned(), (*row.get(2)?).to_owned());
        Some(match section {
            Section::Go => Action { name, from: Some(version), to: None },
            _ => Action { name, from: None, to: Some(version) },
        })
    });
    (actions.collect(), older)
}

/// Simulates a call of `dnf`.
pub(in crate::tasks) fn simulated(
    node: &Node<'_>,
    arguments: Vec<String>,
    allow_downgrade: bool,
) -> Result<Order, Trouble> {
    let mut asked = vec!["--assumeno".to_owned()];
    asked.extend(arguments.iter().filter(|word| *word != "-y").cloned());
    let done = tool::ask(node, &dnf(node)?.args(&asked).limit(LIMIT))?;
    let (text, said) = (done.stdout(), done.stderr());
    let (mut actions, older) = transaction(&text);
    let modules = modules::changed(node, &text)?;
    let aborted = text.contains("Operation aborted") || said.contains("Operation aborted");
    let tells = aborted && !(actions.is_empty() && modules.is_empty());
    let open = arguments.iter().any(|word| matches!(word.as_str(), "install" | "upgrade"))
        && node.world.assumes_below(&node.roots.path(repositories::DNF));
    if !done.exit.success() && !tells {
        let lacks = ["No match for argument", "Unable to find a match", "No packages marked for"];
        if open && lacks.iter().any(|words| said.contains(words) || text.contains(words)) {
            let names = arguments.iter().rev().take_while(|word| *word != "install" && *word != "upgrade");
            let unknown = names.cloned().collect();
            return Ok(Order { arguments, unknown, open, ..Order::default() });
        }
        let errors: Vec<&str> = said
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with("Operation aborted"))
            .collect();
        if errors.is_empty() {
            return Err(Trouble::io(done.complaint("dnf --assumeno")));
        }
        return Err(Trouble::missing(format!("dnf: {}", errors.join("; "))));
    }
    if older && !allow_downgrade {
        return Err(Trouble::invalid(
            "a newer version is installed; `allow_downgrade: true` would put the older one in its place",
        ));
    }
    for action in actions.iter_mut().filter(|action| action.from.is_none()) {
        action.from = installed(node, &action.name)?.filter(|version| !version.is_empty());
    }
    Ok(Order { arguments, actions, modules, unknown: Vec::new(), open })
}

impl NodeKind for Dnf {
    type State = State;
    type Step = Vec<String>;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let mut orders = Vec::new();
        let mut add = |verb: &str, names: &[String]| -> Result<(), Trouble> {
            let mut arguments = self.options();
            arguments.push(verb.to_owned());
            arguments.extend_from_slice(names);
            orders.push(simulated(node, arguments, self.allow_downgrade)?);
            Ok(())
        };
        if self.name.iter().any(|name| name == "*") {
            add("upgrade", &[])?;
            return Ok(State { running: running(node, &orders), orders });
        }
        if self.name.is_empty() {
            if self.autoremove {
                add("autoremove", &[])?;
            }
            return Ok(State { running: running(node, &orders), orders });
        }
        let (mut there, mut missing) = (Vec::new(), Vec::new());
        for name in &self.name {
            let is_there = match ModuleStream::of(name) {
                Some(module) if self.state == PackageState::Absent => {
                    modules::is_enabled(node, name, &module)?
                }
                Some(module) => modules::is_installed(node, name, &module)?,
                None => installed(node, name)?.is_some(),
            };
            let list = if is_there { &mut there } else { &mut missing };
            list.push(name.clone());
        }
        match self.state {
            PackageState::Absent => {
                let known: Vec<ModuleStream<'_>> =
                    there.iter().filter_map(|name| ModuleStream::of(name)).collect();
                let mut gone = Vec::new();
                for name in &there {
                    // dnf refuses to remove a module without an installed profile.
                    let bare = ModuleStream::of(name).map(|module| modules::has_profiles(node, &module));
                    if bare.transpose()? != Some(false) {
                        gone.push(name.clone());
                    }
                }
                if !gone.is_empty() {
                    add("remove", &gone)?;
                }
                for module in known {
                    add("module", &["reset".to_owned(), module.name.to_owned()])?;
                }
            }
            PackageState::Present | PackageState::Latest => {
                if !missing.is_empty() && !self.update_only {
                    add("install", &missing)?;
                }
                if self.state == PackageState::Latest && !there.is_empty() {
                    let assumed = node.world.packages();
                    there.retain(|name| !assumed.contains_key(name));
                    if !there.is_empty() {
                        add("upgrade", &there)?;
                    }
                }
            }
        }
        Ok(State { running: running(node, &orders), orders })
    }

    fn is_stale(&self, _: &State) -> bool {
        self.update_cache
    }

    fn refresh(&self, node: &Node<'_>, _: &State) -> Result<Map<String, Value>, Trouble> {
        let mut arguments = self.options();
        arguments.push("makecache".to_owned());
        tool::act(node, &dnf(node)?.args(&arguments), "dnf makecache")?;
        Ok(Map::new())
    }

    fn plan(&self, state: &State) -> Result<Plan<Vec<String>>, Trouble> {
        let mut plan = Plan::default();
        plan_orders(&state.orders, &state.running, self.state == PackageState::Absent, &mut plan);
        Ok(plan)
    }

    fn after(&self, state: &State, _: &Plan<Vec<String>>) -> Vec<Effect> {
        let mut all = effects(&state.orders);
        if state.orders.iter().any(|order| !order.modules.is_empty()) {
            let absent = self.state == PackageState::Absent;
            all.extend(self.name.iter().flat_map(|name| modules::effects(name, absent)));
        }
        all
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Vec<String>>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        for arguments in &plan.steps {
            node.check_time()?;
            before_scripts(node);
            let words: Vec<&str> =
                arguments.iter().filter(|word| !word.starts_with('-')).map(String::as_str).collect();
            let what = format!("dnf {}", words.join(" "));
            (node.progress)(what.clone());
            let done = dnf(node)?.args(arguments).finish(node.deadline)?;
            if !done.exit.success() {
                return Err(Trouble::failed(FailureKind::Exit, done.complaint(&what)));
            }
            data.extend(streams(&done.stdout(), &done.stderr()));
        }
        let result = |action: &Action| match &action.to {
            Some(version) => format!("Installed: {}-{version}", action.name),
            None => format!("Removed: {}", action.name),
        };
        // The words of Ansible's `dnf`.
        let of_module = |module: &Action| match &module.to {
            Some(_) => format!("Module {} installed.", module.name),
            None => format!("Module {} removed.", module.name),
        };
        let orders = &state.orders;
        let results: Vec<String> = (orders.iter().flat_map(|order| order.modules.iter().map(of_module)))
            .chain(orders.iter().flat_map(|order| order.actions.iter().map(result)))
            .collect();
        data.insert("results".to_owned(), json!(results));
        Ok(data)
    }

    fn data(&self, _: &State) -> Map<String, Value> {
        [("results".to_owned(), json!([])), ("rc".to_owned(), json!(0))].into_iter().collect()
    }
}

/// Options of every call.
trait Options {
    fn options(&self) -> Vec<String>;
}

impl Options for Dnf {
    fn options(&self) -> Vec<String> {
        let mut options = vec!["-y".to_owned()];
        let lists = [
            ("--enablerepo", &self.enablerepo),
            ("--disablerepo", &self.disablerepo),
            ("--exclude", &self.exclude),
        ];
        for (option, values) in lists {
            options.extend(values.iter().map(|value| format!("{option}={value}")));
        }
        let values = [
            ("--disableexcludes", &self.disable_excludes),
            ("--releasever", &self.releasever),
            ("--config", &self.conf_file),
        ];
        for (option, value) in values {
            options.extend(value.iter().map(|value| format!("{option}={value}")));
        }
        let flags = [
            (self.disable_gpg_check, "--nogpgcheck"),
            (self.skip_broken, "--skip-broken"),
            (self.allowerasing, "--allowerasing"),
            (self.cacheonly, "--cacheonly"),
            (self.security, "--security"),
            (self.bugfix, "--bugfix"),
            (!self.sslverify, "--setopt=sslverify=0"),
            (!self.install_weak_deps, "--setopt=install_weak_deps=0"),
            (self.nobest == Some(true), "--setopt=best=0"),
            (self.nobest == Some(false), "--setopt=best=1"),
            (
                !self.autoremove && self.state == PackageState::Absent,
                "--setopt=clean_requirements_on_remove=0",
            ),
        ];
        options.extend(flags.iter().filter(|(given, _)| *given).map(|(_, flag)| (*flag).to_owned()));
        options
    }
}

#[cfg(test)]
mod tests;

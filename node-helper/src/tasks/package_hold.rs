//! `package_hold`: packages that keep their version, through apt-mark, dnf's versionlock or zypper's locks.

mod set;

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    glob::Glob,
    tasks::{HoldState, PackageHold},
};
use serde_json::{Map, Value, json};

use self::set::Set;
use super::{
    packages::versionlock::{self, Lock, Locks},
    selections::NOTED,
    tool,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    world::Effect,
};

/// Largest list of packages, in bytes.
const LARGEST: usize = 16 * 1024 * 1024;
/// The list of dnf5.
const VERSIONLOCK_5: &str = "/etc/dnf/versionlock.toml";
const ZYPP_LOCKS: &str = "/etc/zypp/locks";

/// The program that holds packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manager {
    Apt,
    Dnf,
    Zypper,
}

#[derive(Debug)]
pub struct State {
    manager: Manager,
    /// Whether each installed package that is meant is held.
    packages: BTreeMap<String, bool>,
    /// Packages that a person's pattern holds; with it.
    by_pattern: BTreeMap<String, String>,
    /// What updates packages by itself.
    updaters: Vec<String>,
    /// If the packages are one set.
    set: Option<Set>,
}

/// The name without an architecture.
fn plain(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
}

fn manager(node: &Node<'_>) -> Result<Manager, Trouble> {
    let there = |name: &str| node.roots.tool(name).is_some();
    // rpm is on many nodes of Debian, and dpkg on few others.
    [("apt-mark", Manager::Apt), ("zypper", Manager::Zypper), ("dnf", Manager::Dnf)]
        .into_iter()
        .find_map(|(name, manager)| there(name).then_some(manager))
        .ok_or_else(|| match there("yum") {
            // Its list is another one (/etc/yum/pluginconf.d/versionlock.list).
            true => Trouble::invalid(
                "package_hold reads locks of dnf, and this node has only yum; lock packages there with `command: yum \
                 versionlock add …`",
            ),
            false => Trouble::missing("none of apt-mark, zypper and dnf is on this node"),
        })
}

fn listed(node: &Node<'_>, program: &str, arguments: &[&str]) -> Result<String, Trouble> {
    let path = tool::find(node, program, "it comes with the package manager")?;
    let done = tool::ask(node, &tool::run(node, path).args(arguments).limit(LARGEST))?;
    if !done.exit.success() {
        return Err(Trouble::io(done.complaint(program)));
    }
    Ok(done.stdout())
}

fn text(node: &Node<'_>, path: &str) -> Result<String, Trouble> {
    let bytes = node.world.read(&node.roots.path(path))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the patterns of zypper's locks on packages.
fn zypp_locks(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza
                .lines()
                .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
        };
        // A lock on some versions only does not keep the others away.
        let whole = field("version").is_none() && !stanza.contains("==") && !stanza.contains(">=");
        if field("type").is_none_or(|kind| kind == "package") && whole {
            found.extend(field("solvable_name"));
        }
    }
    found
}

/// What holds a package of this name and version.
type Held = Box<dyn Fn(&str, &str) -> Option<Lock>>;

/// Returns all installed packages and what holds them.
fn installed(node: &Node<'_>, manager: Manager) -> Result<BTreeMap<String, Option<Lock>>, Trouble> {
    if manager == Manager::Apt {
        let text = listed(node, "dpkg-query", &["-W", "-f", "${db:Status-Abbrev} ${binary:Package}\n"])?;
        // `hi ` is held and installed (dpkg-query(1)).
        let package = |line: &str| {
            let (state, name) = line.split_once(' ')?;
            let lock = state.starts_with('h').then_some(Lock::OWN);
            (state.chars().nth(1) == Some('i')).then(|| (name.trim().to_owned(), lock))
        };
        return Ok(text.lines().filter_map(package).collect());
    }
    let all = listed(node, "rpm", &["-qa", "--qf", "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\n"])?;
    let all = all.lines().filter_map(|line| line.split_once('\t'));
    let held: Held = if manager == Manager::Dnf && is_dnf5(node) {
        let name = |line: &str| Some(line.trim().strip_prefix("name")?.split('"').nth(1)?.to_owned());
        let locks: BTreeSet<String> = text(node, VERSIONLOCK_5)?.lines().filter_map(name).collect();
        Box::new(move |name, _| locks.contains(name).then_some(Lock::OWN))
    } else if manager == Manager::Dnf {
        // Where the plugin is off, its list holds nothing.
        let locks = Locks::read(node)?.unwrap_or_default();
        Box::new(move |name, version| locks.lock(name, version))
    } else {
        let locks: Vec<Glob> =
            zypp_locks(&text(node, ZYPP_LOCKS)?).iter().map(|name| Glob::of_shell(name)).collect();
        Box::new(move |name, _| locks.iter().any(|lock| lock.matches(name)).then_some(Lock::OWN))
    };
    let mut found: BTreeMap<String, Option<Lock>> = BTreeMap::new();
    for (name, version) in all {
        let lock = held(name, version);
        // Of several versions, as of a kernel, a lock on any keeps newer ones away.
        let known = found.entry(name.to_owned()).or_default();
        *known = match (known.take(), lock) {
            (Some(one), Some(other)) => {
                Some(Lock { own: one.own || other.own, pattern: one.pattern.or(other.pattern) })
            }
            (one, other) => one.or(other),
        };
    }
    Ok(found)
}

/// Returns what updates packages by itself, in words.
fn updaters(node: &Node<'_>) -> Result<Vec<String>, Trouble> {
    let mut found = Vec::new();
    let folder = node.roots.etc("apt/apt.conf.d");
    for name in node.world.names(&folder)? {
        let text = text(node, &format!("/etc/apt/apt.conf.d/{name}"))?;
        let on = |line: &str| {
            let line: String = line.split_whitespace().collect();
            line.starts_with("APT::Periodic::Unattended-Upgrade\"") && !line.contains("\"0\"")
        };
        if text.lines().any(on) {
            found.push("unattended-upgrades, which leaves held packages as they are".to_owned());
        }
    }
    let automatic = text(node, "/etc/dnf/automatic.conf")?;
    let applies = |line: &str| line.replace(' ', "").eq_ignore_ascii_case("apply_updates=yes");
    if automatic.lines().any(applies) {
        found.push("dnf-automatic, which leaves locked packages as they are".to_owned());
    }
    if node.roots.tool("needrestart").is_some() {
        found.push(
            "needrestart, which restarts services whose libraries were replaced, whatever is held; \
             /etc/needrestart/conf.d can except some"
                .to_owned(),
        );
    }
    found.dedup();
    Ok(found)
}

impl NodeKind for PackageHold {
    type State = State;
    type Step = Vec<String>;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let manager = manager(node)?;
        let mut packages = installed(node, manager)?;
        for (name, version) in node.world.packages() {
            match version {
                Some(_) => {
                    packages.entry(name).or_insert(None);
                }
                None => packages.retain(|known, _| plain(known) != name),
            }
        }
        for (name, selection) in node.world.noted(NOTED) {
            packages.insert(name, (selection == "hold").then_some(Lock::OWN));
        }
        let patterns: Vec<Glob> = self.name.iter().map(|name| Glob::of_shell(name)).collect();
        packages.retain(|name, _| {
            patterns.iter().any(|pattern| pattern.matches(name) || pattern.matches(plain(name)))
        });
        let pattern =
            |(name, lock): (&String, &Option<Lock>)| Some((name.clone(), lock.as_ref()?.pattern.clone()?));
        let by_pattern = packages.iter().filter_map(pattern).collect();
        let packages: BTreeMap<String, bool> =
            packages.into_iter().map(|(name, lock)| (name, lock.is_some())).collect();
        let set = match self.together && !packages.is_empty() {
            // What a task before this one installs has its versions in the run only.
            true if !node.world.packages().is_empty() => None,
            true => {
                let is_there = |pattern: &Glob| {
                    packages.keys().any(|name| pattern.matches(name) || pattern.matches(plain(name)))
                };
                let all = self.name.iter().zip(&patterns);
                let lacking =
                    all.filter(|(_, pattern)| !is_there(pattern)).map(|(name, _)| name.clone()).collect();
                Some(Set::read(node, manager, &packages, lacking)?)
            }
            false => None,
        };
        Ok(State { manager, packages, by_pattern, updaters: updaters(node)?, set })
    }

    fn plan(&self, state: &State) -> Result<Plan<Vec<String>>, Trouble> {
        let mut plan = Plan::default();
        if state.packages.is_empty() {
            return Err(Trouble::NotApplicable(format!(
                "no installed package is one of {}",
                self.name.join(", ")
            )));
        }
        let wanted = self.state == HoldState::Present;
        if let (Some((name, line)), false) = (state.by_pattern.first_key_value(), wanted) {
            return Err(Trouble::invalid(format!(
                "{name} is held by a lock that somebody wrote as a pattern, `{line}`, which may hold others too; remove it with \
                 `dnf versionlock delete '{line}'`, and run again"
            )));
        }
        if let Some(set) = &state.set {
            set.judge()?;
            plan.warnings.extend(set.warnings(&state.packages));
        }
        let word = |held: bool| if held { "held" } else { "not held" };
        let differing: Vec<&String> =
            state.packages.iter().filter(|(_, held)| **held != wanted).map(|(name, _)| name).collect();
        for name in &differing {
            let package = Subject::package(*name);
            let change =
                Change::new(package, Property::new("hold"), word(!wanted), word(wanted), Disruption::Live);
            plan.changes.push(change);
        }
        if !differing.is_empty() {
            plan.steps.push(differing.into_iter().cloned().collect());
        }
        Ok(plan)
    }

    fn after(&self, _: &State, plan: &Plan<Vec<String>>) -> Vec<Effect> {
        let selection = if self.state == HoldState::Present { "hold" } else { "install" };
        let noted =
            |name: &String| Effect::Noted { name: format!("{NOTED}{name}"), value: selection.to_owned() };
        plan.steps.iter().flatten().map(noted).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Vec<String>>,
    ) -> Result<Map<String, Value>, Trouble> {
        let hold = self.state == HoldState::Present;
        for names in &plan.steps {
            // dnf 5 has a list of another form, which takes names.
            if state.manager == Manager::Dnf && !is_dnf5(node) {
                versionlock::set(node, names, hold)?;
                continue;
            }
            let (program, before): (&str, &[&str]) = match (state.manager, hold) {
                (Manager::Apt, true) => ("apt-mark", &["hold"]),
                (Manager::Apt, false) => ("apt-mark", &["unhold"]),
                (Manager::Dnf, true) => ("dnf", &["-q", "-y", "versionlock", "add"]),
                (Manager::Dnf, false) => ("dnf", &["-q", "-y", "versionlock", "delete"]),
                (Manager::Zypper, true) => ("zypper", &["--non-interactive", "addlock"]),
                (Manager::Zypper, false) => ("zypper", &["--non-interactive", "removelock"]),
            };
            let path = tool::find(node, program, "it comes with the package manager")?;
            let what = format!("{program} {}", before.last().unwrap_or(&""));
            tool::act(node, &tool::run(node, path).args(before).args(names), &what)?;
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let held: Vec<&String> =
            state.packages.iter().filter(|(_, held)| **held).map(|(name, _)| name).collect();
        let mut data = vec![("held", json!(held)), ("updaters", json!(state.updaters))];
        data.extend(state.set.as_ref().map(|set| ("pending", json!(set.pending()))));
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

fn is_dnf5(node: &Node<'_>) -> bool {
    let target = node.roots.tool("dnf").and_then(|program| std::fs::read_link(program).ok());
    target.is_some_and(|target| target.file_name().is_some_and(|name| name == "dnf5"))
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, changed, failure, shown};

    fn task(value: Value) -> PackageHold {
        serde_json::from_value(value).unwrap()
    }

    /// A node of Debian, with the two programs as they answer.
    fn debian() -> Bench {
        let bench = Bench::new();
        bench.write(
            "packages",
            "ii  nvidia-driver-580\nhi  libnvidia-gl-580:amd64\nii  linux-image-amd64\nrc  nvidia-old\n",
        );
        bench.script("usr/bin/dpkg-query", "#!/bin/sh\ncat $(dirname \"$0\")/../../packages\n");
        bench.script(
            "usr/bin/apt-mark",
            "#!/bin/sh\nd=$(dirname \"$0\")/../..\necho $@ >>$d/log\nw=i; [ $1 = hold ] && w=h; shift\n\
             for p in $@; do sed -i \"s/^.i  $p\\$/${w}i  $p/\" $d/packages; done\n",
        );
        bench
    }

    #[test]
    fn packages_are_held_together_once() {
        let bench = debian();
        let hold = task(json!({"name": ["nvidia-*", "libnvidia-*", "linux-image-*"]}));
        let before = bench.snapshot();
        let predicted = bench.run(&hold, Mode::Predict);
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<std::path::PathBuf>::new());
        assert_eq!(bench.run(&hold, Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&hold, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(
            shown(&done),
            [
                "package linux-image-amd64 hold: not held -> held (live)",
                "package nvidia-driver-580 hold: not held -> held (live)"
            ]
        );
        assert_eq!(bench.read("log"), "hold linux-image-amd64 nvidia-driver-580\n");
        assert_eq!(bench.run(&hold, Mode::Apply).status, OpStatus::Ok);
        let release = task(json!({"name": "libnvidia-gl-580", "state": "absent"}));
        assert_eq!(bench.run(&release, Mode::Apply).status, OpStatus::Changed);
        assert!(bench.read("packages").contains("ii  libnvidia-gl-580:amd64\n"));
        assert_eq!(bench.run(&release, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn what_is_not_installed_does_not_apply_and_what_cannot_be_read_is_unknown() {
        let bench = debian();
        let none = bench.run(&task(json!({"name": ["cuda-*", "nvidia-old"]})), Mode::Apply);
        assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
        bench.write("etc/apt/apt.conf.d/20auto-upgrades", "APT::Periodic::Unattended-Upgrade \"1\";\n");
        let done = bench.run(&task(json!({"name": "nvidia-*"})), Mode::Predict);
        assert!(done.data["updaters"][0].as_str().unwrap().starts_with("unattended-upgrades"), "{done:?}");
        bench.script("usr/bin/dpkg-query", "#!/bin/sh\necho locked >&2\nexit 2\n");
        let unknown = bench.run(&task(json!({"name": "nvidia-*"})), Mode::Predict);
        assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
    }

    #[test]
    fn a_set_of_which_only_part_is_held_is_told_and_one_that_moved_apart_is_a_fault() {
        let bench = debian();
        let policy = |driver: &str, newer: &str| {
            format!(
                "nvidia-driver-580:\n  Installed: {driver}-0ubuntu1\n  Candidate: {newer}-0ubuntu1\nlibnvidia-gl-580:\n  Installed: \
                 580.65.06-0ubuntu1\n  Candidate: 580.95.05-0ubuntu1\nlinux-image-amd64:\n  Installed: 6.1.1\n  Candidate: 6.1.1\n"
            )
        };
        bench.script(
            "usr/bin/apt-cache",
            "#!/bin/sh\n[ $1 = policy ] && cat $(dirname \"$0\")/../../policy\n",
        );
        bench.write("policy", &policy("580.65.06", "580.95.05"));
        let set = task(json!({
            "name": ["nvidia-driver-*", "libnvidia-*", "linux-image-*", "nvidia-fabricmanager-*"], "together": true
        }));
        let predicted = bench.run(&set, Mode::Predict);
        assert_eq!(
            predicted.warnings,
            [
                "only part of the set is held: libnvidia-gl-580:amd64; not linux-image-amd64, nvidia-driver-580, which an update would \
                 move without them",
                "an update is there for nvidia-driver-580 (580.95.05-0ubuntu1), and moves it at the next upgrade, without \
                 linux-image-amd64",
                "of the set, no installed package is nvidia-fabricmanager-*",
            ]
        );
        assert_eq!(
            predicted.data["pending"],
            json!(["libnvidia-gl-580:amd64 580.95.05-0ubuntu1", "nvidia-driver-580 580.95.05-0ubuntu1"])
        );
        bench.forget();
        assert_eq!(bench.run(&set, Mode::Apply).status, OpStatus::Changed);
        let held = bench.run(&set, Mode::Apply);
        assert_eq!((&held.status, held.warnings.len()), (&OpStatus::Ok, 1), "{held:?}");
        // The driver moved before it was held.
        bench.write("policy", &policy("580.95.05", "580.95.05"));
        for mode in [Mode::Predict, Mode::Apply] {
            let apart = bench.run(&set, mode);
            assert!(
                failure(&apart).starts_with(
                    "the packages of the set have moved apart: 580.65.06 (libnvidia-gl-580:amd64), 580.95.05 (nvidia-driver-580);"
                ),
                "{apart:?}"
            );
        }
    }

    /// A node with dnf, whose plugin reads and writes its list as the real one does.
    fn red_hat(locks: &str) -> Bench {
        let bench = Bench::new();
        bench.script(
            "usr/bin/rpm",
            "#!/bin/sh\ncase $1 in\n\
             -qa) printf 'nvidia-driver\\t3:580.65.06-1.el9\\nkernel-core\\t0:5.14.0-427.el9\\nkernel-core\\t0:5.14.0-570.el9\\n';;\n\
             *) printf 'nvidia-driver\\t3\\t580.65.06-1.el9\\n';;\nesac\n",
        );
        bench.script(
            "usr/bin/dnf",
            "#!/bin/sh\ngrep -v '^#' $(dirname \"$0\")/../../etc/dnf/plugins/versionlock.list | grep .\n:\n",
        );
        bench.write(
            "etc/dnf/plugins/versionlock.conf",
            "[main]\nlocklist = /etc/dnf/plugins/versionlock.list\n",
        );
        bench.write("etc/dnf/plugins/versionlock.list", locks);
        bench
    }

    #[test]
    fn dnf_locks_versions() {
        let bench = red_hat("# Added lock on x\nkernel-core-0:5.14.0-427.el9.*\n");
        bench.write("etc/dnf/automatic.conf", "[commands]\napply_updates = yes\n");
        let hold = task(json!({"name": ["nvidia-driver", "kernel-core"]}));
        let done = bench.run(&hold, Mode::Apply);
        assert_eq!(shown(&done), ["package nvidia-driver hold: not held -> held (live)"]);
        assert_eq!(done.data["held"], json!(["kernel-core", "nvidia-driver"]));
        assert_eq!(bench.run(&hold, Mode::Apply).status, OpStatus::Ok);
        let release = task(json!({"name": "nvidia-driver", "state": "absent"}));
        assert_eq!(bench.run(&release, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&release, Mode::Apply).status, OpStatus::Ok);
        bench.script("usr/bin/dnf", "#!/bin/sh\necho 'No such command: versionlock.' >&2\nexit 1\n");
        let without = bench.run(&hold, Mode::Apply);
        assert!(failure(&without).contains("python3-dnf-plugin-versionlock"), "{without:?}");
        assert_eq!(without.data.get("held"), None, "the list of a plugin that is off holds nothing");
    }

    #[test]
    fn a_lock_on_another_version_is_replaced_and_a_pattern_is_told() {
        let list = "etc/dnf/plugins/versionlock.list";
        let bench = red_hat("nvidia-driver-3:575.1-1.el9.*\n!nvidia-driver-3:590.1-1.el9.*\n");
        let hold = task(json!({"name": "nvidia-driver"}));
        assert_eq!(bench.run(&hold, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(
            bench.read(list),
            "!nvidia-driver-3:590.1-1.el9.*\n\n# Added locks by gpufleet\nnvidia-driver-3:580.65.06-1.el9.*\n"
        );

        let pattern = "nvidia-*-3:580.65.06-*\n";
        bench.write(list, pattern);
        assert_eq!(bench.run(&hold, Mode::Apply).status, OpStatus::Ok);
        let release = task(json!({"name": "nvidia-driver", "state": "absent"}));
        for mode in [Mode::Predict, Mode::Apply] {
            let told = bench.run(&release, mode);
            assert!(failure(&told).contains("`dnf versionlock delete 'nvidia-*-3:580.65.06-*'`"), "{told:?}");
        }
        assert_eq!(bench.read(list), pattern);
        // A lock of its own beside the pattern changes nothing of that.
        bench.write(list, &format!("nvidia-driver-3:580.65.06-1.el9.*\n{pattern}"));
        assert!(failure(&bench.run(&release, Mode::Apply)).contains("as a pattern"));
    }

    #[test]
    fn yum_alone_is_refused() {
        let bench = Bench::new();
        bench.script("usr/bin/yum", "#!/bin/sh\nexit 1\n");
        let told = bench.run(&task(json!({"name": "nvidia-driver"})), Mode::Predict);
        assert!(failure(&told).contains("this node has only yum"), "{told:?}");
    }

    #[test]
    fn zypper_locks_names() {
        let bench = Bench::new();
        bench.script(
            "usr/bin/rpm",
            "#!/bin/sh\nprintf 'nvidia-open-driver\\t0:1-1\\nkernel-default\\t0:2-1\\n'\n",
        );
        bench.script(
            "usr/bin/zypper",
            "#!/bin/sh\nf=$(dirname \"$0\")/../../etc/zypp/locks\n\
             printf '\\ntype: package\\nmatch_type: glob\\ncase_sensitive: on\\nsolvable_name: %s\\n' $3 >>$f\n",
        );
        bench.write("etc/zypp/locks", "type: package\nmatch_type: glob\nsolvable_name: kernel-*\n");
        let hold = task(json!({"name": ["nvidia-open-driver", "kernel-default"]}));
        let done = bench.run(&hold, Mode::Apply);
        assert_eq!(shown(&done), ["package nvidia-open-driver hold: not held -> held (live)"]);
        assert_eq!(bench.run(&hold, Mode::Apply).status, OpStatus::Ok);
    }
}

//! `kubelet`: settings of the kubelet, in its files and in force.
//!
//! A drop-in is written where the kubelet reads a folder of them, because kubeadm writes the configuration file anew. What
//! would keep it from starting is refused before anything is touched; the state of a policy that changes is removed while
//! it is stopped; and one that does not stay up gets everything back.

pub mod config;
mod running;
mod state;

use std::{collections::BTreeMap, time::Duration};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    cpus::CpuList,
    tasks::{DaemonRestart, Kubelet, dotted, kubelet_fields},
    topology::Topology,
};
use serde_json::{Map, Value, json};

use self::{
    config::Hardware,
    running::{Daemon, KUBEADM_FLAGS},
};
use super::{
    docker::file::{differences, shown},
    edits::{self, Present},
    knobs,
    numa_memory::{self, NumaMemory},
};
use crate::{
    deadline::Deadline,
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::Ownership,
    signals,
    world::Effect,
};

/// Under which a prediction notes that the kubelet reads its files.
const NOTE: &str = "kubelet";
/// Time to bring a kubelet back that does not start, after that of the task.
const WAY_BACK: Duration = Duration::from_secs(180);

#[derive(Debug)]
pub struct State {
    daemon: Daemon,
    /// The file that is written.
    target: Present,
    found: Map<String, Value>,
    wanted: Map<String, Value>,
    /// What all files give together, now and then.
    now: Map<String, Value>,
    then: Map<String, Value>,
    /// Drop-ins after ours, which win over it.
    later: Vec<(String, Map<String, Value>)>,
    is_drop_in: bool,
    hardware: Hardware,
    policies: Vec<Policy>,
    /// What is wrong with the drivers of control groups; an error if nobody knows.
    cgroups: Result<Option<String>, String>,
    /// Whether they are wrong already.
    differed: bool,
}

/// The state of a policy.
#[derive(Debug)]
struct Policy {
    file: Present,
    /// The setting.
    key: &'static str,
    /// As the state has it; `None` if there is no state.
    found: Option<String>,
    /// Why the kubelet would not start with it, even if the policy is the declared one.
    fault: Option<String>,
}

#[derive(Clone, Debug)]
pub enum Step {
    File(edits::Step),
    /// Also stops it before the files change if `stops`.
    Restart {
        stops: bool,
    },
}

const CPUS: &str = "/sys/devices/system/cpu";

/// Returns the CPUs that are online, after what earlier tasks of a prediction are assumed to have done; empty if that is known
/// only in the run.
fn online(node: &Node<'_>, topology: &Topology) -> Result<CpuList, Trouble> {
    let control = format!("{CPUS}/smt/control");
    let assumed = node.world.parameter(&control);
    match (assumed.as_deref(), knobs::value(node, &control)?.as_deref()) {
        (Some("off"), Some("on")) => {
            let cores = topology.sockets.iter().flat_map(|socket| &socket.cores);
            Ok(cores.filter_map(CpuList::first).collect())
        }
        (Some(assumed), Some(now)) if assumed != now => Ok(CpuList::default()),
        _ => Ok(topology.online.clone()),
    }
}

fn hardware(node: &Node<'_>) -> Result<Hardware, Trouble> {
    let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
    let topology = signals::topology::read(&reader, Default::default);
    let memory = numa_memory::of_all(node, "MemTotal")?.unwrap_or_default();
    Ok(Hardware {
        online: online(node, &topology)?,
        numa: topology.numa.iter().map(|node| node.id).collect(),
        memory: memory.saturating_mul(1024),
    })
}

/// Says what is wrong with the drivers of control groups, with these settings of the kubelet.
fn cgroups(node: &Node<'_>, then: &Map<String, Value>) -> Result<Option<String>, String> {
    // What an earlier task of a prediction writes is read in the run.
    let files = ["/etc/containerd", "/etc/crio", gpufleet_protocol::tasks::DockerDaemon::FILE];
    if files.iter().any(|path| node.world.assumes_below(&node.roots.path(path))) {
        return Ok(None);
    }
    let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
    signals::cgroups::mismatch(&reader, then)
}

/// Returns the flag of a setting: `cpuManagerPolicy` is `--cpu-manager-policy`.
fn flag_of(key: &str) -> String {
    match key {
        "reservedSystemCPUs" => return "reserved-cpus".to_owned(),
        "clusterDNS" => return "cluster-dns".to_owned(),
        _ => {}
    }
    let mut flag = String::new();
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            flag.push('-');
        }
        flag.push(c.to_ascii_lowercase());
    }
    flag
}

fn policy(
    node: &Node<'_>,
    root: &str,
    name: &str,
    key: &'static str,
    judge: impl Fn(&Value) -> Option<String>,
) -> Result<Policy, Trouble> {
    let file = Present::read(node, &format!("{root}/{name}"))?;
    let state: Option<Value> =
        file.bytes.as_deref().map(|bytes| serde_json::from_slice(bytes).unwrap_or_default());
    // What cannot be read keeps the kubelet from starting, as a policy that differs does.
    let named = |state: &Value| Some(state.get("policyName")?.as_str()?.to_owned());
    let found = state.as_ref().map(|state| named(state).unwrap_or_else(|| "unreadable".to_owned()));
    Ok(Policy { file, key, found, fault: state.as_ref().and_then(judge) })
}

impl Policy {
    fn declared<'a>(&self, config: &'a Map<String, Value>) -> &'a str {
        if self.key == "cpuManagerPolicy" {
            config::cpu_policy(config)
        } else {
            config::memory_policy(config)
        }
    }

    /// Says why the state has to go, if it has to.
    fn stale(&self, now: &Map<String, Value>, then: &Map<String, Value>) -> Option<String> {
        let found = self.found.as_deref()?;
        let wanted = self.declared(then);
        if found != wanted {
            return Some(format!(
                "its policy is {found}, and the kubelet ends over a state of another policy"
            ));
        }
        if !wanted.eq_ignore_ascii_case("static") {
            return None;
        }
        // What the state of memory was made with stands in it.
        let made = || config::of_cpus(now, then).filter(|_| self.key == "cpuManagerPolicy");
        self.fault.clone().or_else(|| made().map(|key| format!("it was made with another `{key}`")))
    }
}

impl NodeKind for Kubelet {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let (mut daemon, pid) = running::observe(node)?;
        let value = |name: &str, default: &str| {
            daemon.flag(name).map_or(default.to_owned(), |flag| flag.value.clone())
        };
        let flagged = |name: &str| daemon.flag(name).map(|flag| flag.value.clone());
        let folder = flagged("config-dir");
        // Of one that does not run, or that a shell runs, the flags may be where they are not read here.
        let config = flagged("config").or_else(|| (!daemon.has_own_flags).then(|| Self::CONFIG.to_owned()));
        if config.is_none() && folder.is_none() {
            return Err(Trouble::invalid(format!(
                "the kubelet runs with neither --config nor --config-dir, so that it reads no file, and what is written to {} would \
                 count for nothing; give its unit `--config={0}` with such a file (kubeadm does), and what its flags say, and restart it",
                Self::CONFIG
            )));
        }
        let root = value("root-dir", "/var/lib/kubelet");
        let is_relative = |path: &String| !path.starts_with('/');
        if config.as_ref().is_some_and(is_relative)
            || is_relative(&root)
            || folder.as_ref().is_some_and(is_relative)
        {
            return Err(Trouble::invalid(
                "the kubelet has a relative path among its flags, which is not read here",
            ));
        }
        let read = |file: &Present| -> Result<Map<String, Value>, Trouble> {
            config::parse(file.text()?)
                .map_err(|why| Trouble::invalid(format!("{}: {why}; it was left as it is", file.shown)))
        };
        let (mut files, mut watched) = (Vec::new(), Vec::new());
        let ours =
            folder.as_ref().map(|folder| format!("{}/{}", folder.trim_end_matches('/'), Self::DROP_IN));
        let first = config.as_ref().or(ours.as_ref()).map_or(Self::CONFIG, String::as_str);
        let mut target = Present::read(node, first)?;
        if let Some(config) = &config {
            if target.bytes.is_none() {
                return Err(Trouble::missing(format!(
                    "{config} is not there: this node has not joined a cluster yet"
                )));
            }
            files.push((config.clone(), read(&target)?));
            watched.push(target.place.clone());
        }
        if let (Some(folder), Some(ours)) = (&folder, &ours) {
            for file in Present::all(node, folder.trim_end_matches('/'), &[".conf"])? {
                let map = read(&file)?;
                if let Some(why) = config::headless(&map) {
                    return Err(Trouble::invalid(format!("{}: {why}", file.shown)));
                }
                watched.push(file.place.clone());
                files.push((file.shown.clone(), map));
            }
            target = Present::read(node, ours)?;
        }
        let found = files
            .iter()
            .find(|(path, _)| *path == target.shown)
            .map(|(_, map)| map.clone())
            .unwrap_or_default();
        let mut wanted = found.clone();
        for key in &self.remove {
            if let Some(keys) = dotted::find(&wanted, key) {
                dotted::remove(&mut wanted, &keys);
            }
        }
        dotted::merge(&mut wanted, &self.settings);
        let is_drop_in = ours.is_some();
        if is_drop_in && (target.bytes.is_some() || !self.settings.is_empty()) {
            wanted = config::with_header(&wanted);
        }
        let mut now = config::merged(files.iter().map(|(_, map)| map));
        let is_main = |path: &String| Some(path) == config.as_ref();
        let before = files.iter().filter(|(path, _)| !is_drop_in || is_main(path) || *path < target.shown);
        let later: Vec<_> = files
            .iter()
            .filter(|(path, _)| is_drop_in && !is_main(path) && *path > target.shown)
            .cloned()
            .collect();
        let before = before.map(|(path, map)| if *path == target.shown { &wanted } else { map });
        let mut then = config::merged(
            before.chain(is_drop_in.then_some(&wanted)).chain(later.iter().map(|(_, map)| map)),
        );
        let flag = |name: &str| daemon.flag(name).map(|flag| flag.value.as_str());
        for config in [&mut now, &mut then] {
            config::with_flags(config, flag);
        }
        let hardware = hardware(node)?;
        let cgroups = cgroups(node, &then);
        // One that was there before is no reason to leave everything else undone.
        let differed = matches!(&cgroups, Ok(Some(_))) && !matches!(self::cgroups(node, &now), Ok(None));
        // How many pages a boot gives is known only after it.
        let ids = hardware.numa.iter().filter(|_| !node.world.rebooted());
        let memory: BTreeMap<u32, NumaMemory> =
            ids.map(|id| Ok((*id, numa_memory::read(node, *id)?))).collect::<Result<_, Trouble>>()?;
        let policies = vec![
            policy(node, &root, "cpu_manager_state", "cpuManagerPolicy", |state| {
                state::cpu_fault(state, &then, &hardware.online)
            })?,
            policy(node, &root, "memory_manager_state", "memoryManagerPolicy", |state| {
                state::memory_fault(state, &then, &memory)
            })?,
        ];
        if node.world.rebooted() || !node.world.noted(NOTE).is_empty() {
            (daemon.crashes, daemon.left_stopped) = (false, false);
        } else {
            daemon.compare(node, pid, &watched)?;
        }
        Ok(State {
            daemon,
            target,
            found,
            wanted,
            now,
            then,
            later,
            is_drop_in,
            hardware,
            policies,
            cgroups,
            differed,
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        refuse(self, state)?;
        config::check(&state.then, &state.hardware)
            .map_err(|why| Trouble::invalid(format!("{why}; nothing was changed")))?;
        let mut plan = Plan::default();
        match &state.cgroups {
            Ok(None) => {}
            Ok(Some(why)) if state.differed => plan.warnings.push(why.clone()),
            Ok(Some(why)) => return Err(Trouble::invalid(format!("{why}; nothing was changed"))),
            Err(why) => plan.warnings.push(format!(
                "whether the kubelet has the driver of control groups of its container runtime is not known: {why}"
            )),
        }
        let stale: Vec<(&Policy, String)> = state
            .policies
            .iter()
            .filter_map(|policy| Some((policy, policy.stale(&state.now, &state.then)?)))
            .collect();
        // One that a killed run left stopped runs again, whatever `restart` says.
        let starts = state.daemon.left_stopped;
        let disturbs = !stale.is_empty() && (state.daemon.active || starts);
        let restarts = starts || (state.daemon.active && self.restart == DaemonRestart::IfNeeded);
        // The states first: without one, a run that is killed here goes on where it was.
        for (policy, why) in &stale {
            if self.restart == DaemonRestart::Never && state.daemon.active {
                return Err(Trouble::invalid(format!(
                    "{} has to go, because {why}, and that needs a stop of the kubelet: `restart: never` forbids it",
                    policy.file.shown
                )));
            }
            plan.steps.push(Step::File(policy.file.removed()));
        }
        for difference in differences(&state.found, &state.wanted) {
            if config::HEADER.iter().any(|(name, _)| *name == difference.top()) {
                continue;
            }
            let name = difference.name();
            let (from, to) = (shown(&name, difference.from.as_ref()), shown(&name, difference.to.as_ref()));
            let can_end_pods = disturbs || (restarts && config::DISTURBING.contains(&difference.top()));
            let class = if can_end_pods { Disruption::Clients } else { Disruption::Live };
            let change =
                Change::new(Subject::file(&state.target.shown), Property::from(name), from, to, class);
            plan.changes.push(change.with_note(match (disturbs, can_end_pods, restarts) {
                (true, ..) => "with other CPUs or memory for pods that run, so the node is drained",
                (_, true, _) => {
                    "the kubelet may reject or evict pods when it restarts, so the node is drained"
                }
                (_, _, true) => "the kubelet restarts; pods go on",
                _ => "for the next start of the kubelet",
            }));
        }
        if state.found != state.wanted {
            let text = state.target.text()?;
            let new = config::edited(text, &state.found, &state.wanted);
            plan.steps.extend(state.target.written(new, Ownership::default()).map(Step::File));
        }
        for (policy, why) in &stale {
            let class = if disturbs { Disruption::Clients } else { Disruption::Live };
            let from = policy.found.clone().unwrap_or_default();
            let subject = Subject::file(&policy.file.shown);
            let change = Change::new(subject, Property::new("policy"), from, Typed::Absent, class);
            plan.changes.push(change.with_note(why.clone()));
        }
        let of_unit = |property: Property, from: &str, to: &str, class: Disruption| {
            Change::new(Subject::unit(Self::UNIT), property, from, to, class)
        };
        if starts {
            let change = of_unit(Property::STATE, "stopped", "started", Disruption::Live);
            plan.changes
                .push(change.with_note("an earlier run stopped it, and ended before it started it again"));
            plan.steps.push(Step::Restart { stops: true });
        } else if plan.steps.is_empty() && restarts && (state.daemon.unread || state.daemon.crashes) {
            let settings = Property::new("settings");
            let change = match state.daemon.crashes {
                true => of_unit(settings, "it does not stay up", "as in its files", Disruption::Live),
                false => of_unit(settings, "older than its files", "as in its files", Disruption::Clients)
                    .with_note("nobody knows which settings it missed, so the node is drained"),
            };
            plan.changes.push(change);
            plan.steps.push(Step::Restart { stops: false });
        } else if !plan.steps.is_empty() && restarts {
            plan.steps.push(Step::Restart { stops: disturbs });
        } else if !plan.steps.is_empty() && state.daemon.active {
            plan.warnings.push(format!(
                "the kubelet runs without it until {} restarts, which `restart: never` leaves to you",
                Self::UNIT
            ));
        }
        if !state.is_drop_in && state.found != state.wanted && state.daemon.has_kubeadm {
            plan.warnings.push(format!(
                "`kubeadm upgrade node` writes {} anew: run the kubelet with --config-dir (Kubernetes 1.28 as alpha, 1.30 by \
                 default), or give kubeadm a patch",
                state.target.shown
            ));
        }
        plan.warnings.extend(self.strange_fields().map(kubelet_fields::told));
        plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
        Ok(plan)
    }

    fn after(&self, _: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let effect = |step: &Step| match step {
            Step::File(step) => step.effect(),
            Step::Restart { .. } => Effect::Noted { name: NOTE.to_owned(), value: "read".to_owned() },
        };
        plan.steps.iter().map(effect).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let files: Vec<&edits::Step> = plan
            .steps
            .iter()
            .filter_map(|step| if let Step::File(step) = step { Some(step) } else { None })
            .collect();
        let restart = plan
            .steps
            .iter()
            .find_map(|step| if let Step::Restart { stops } = step { Some(*stops) } else { None });
        let mut done = Vec::new();
        let mut work = || -> Result<(), Trouble> {
            if restart == Some(true) {
                state.daemon.stop(node)?;
            }
            for step in &files {
                step.apply()?;
                done.push(*step);
            }
            match restart {
                Some(true) => state.daemon.start(node)?,
                Some(false) => state.daemon.restart(node)?,
                None => return Ok(()),
            }
            state.daemon.steady(node)
        };
        let Err(trouble) = work() else { return Ok(Map::new()) };
        let Trouble::Failed { kind, message } = trouble else { return Err(trouble) };
        if files.is_empty() || restart.is_none() {
            return Err(Trouble::Failed { kind, message });
        }
        // With time of its own: a node without a kubelet loses its pods.
        let grace = Deadline::after(WAY_BACK);
        let left = bring_back(&node.until(&grace), state, &done);
        Err(Trouble::Failed { kind, message: format!("{message}; {left}") })
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let data = json!({
            "path": state.target.shown,
            "drop_in": state.is_drop_in,
            "cpu_manager_policy": config::cpu_policy(&state.then),
            "memory_manager_policy": config::memory_policy(&state.then),
            "running": state.daemon.active,
        });
        data.as_object().cloned().unwrap_or_default()
    }
}

/// Gives a kubelet that does not start its files and its state back; says how that went.
fn bring_back(node: &Node<'_>, state: &State, files: &[&edits::Step]) -> &'static str {
    // Stopped first, because it writes its state anew with each try.
    let _ = state.daemon.stop(node);
    let mut undone = true;
    for step in files.iter().rev() {
        // A state that the kubelet has not made anew is written all the same.
        undone &= step.undo().is_ok();
    }
    match (undone, state.daemon.start(node).and_then(|()| state.daemon.steady(node))) {
        (true, Ok(())) => "its files have their old content again, and it runs with it",
        (true, Err(_)) => "its files have their old content again, and it does not stay up with that either",
        (false, _) => "its files could not all be brought back",
    }
}

/// Refuses what somebody else decides: flags, and drop-ins after ours.
fn refuse(task: &Kubelet, state: &State) -> Result<(), Trouble> {
    for (key, value) in &task.settings {
        let name = flag_of(key);
        if let Some(flag) = state.daemon.flag(&name) {
            let same = value.as_str().map_or_else(|| value.to_string(), str::to_owned) == flag.value;
            if !same {
                let hint = if flag.source == KUBEADM_FLAGS { " (kubeadm wrote it at its join)" } else { "" };
                return Err(Trouble::invalid(format!(
                    "the kubelet runs with --{name}={}, which wins over its files; take the flag out of {}{hint} first",
                    flag.value, flag.source
                )));
            }
        }
        for (path, map) in &state.later {
            let Some(other) = map.get(key) else { continue };
            let mut both = Map::new();
            both.insert(key.clone(), value.clone());
            let mut overridden = both.clone();
            dotted::merge(&mut overridden, &[(key.clone(), other.clone())].into_iter().collect());
            if overridden != both && !is_below(value, other) {
                return Err(Trouble::invalid(format!(
                    "{path} comes after {} and sets `{key}` to {other}, which wins; take it out there",
                    state.target.shown
                )));
            }
        }
    }
    Ok(())
}

/// Whether both are mappings that have nothing else in common.
fn is_below(ours: &Value, other: &Value) -> bool {
    match (ours.as_object(), other.as_object()) {
        (Some(ours), Some(other)) => {
            ours.iter().all(|(key, value)| other.get(key).is_none_or(|found| found == value))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;

//! `cpu_isolation`: CPUs that nothing runs on but what is put there.
//!
//! The words are planned and written by `kernel_cmdline`. What counts is what the kernel says after the boot: it passes over
//! a word that it does not understand. Services are kept away by CPUAffinity= of systemd itself, and everything by a
//! partition of cpusets.

mod partition;

use std::{collections::BTreeMap, path::PathBuf};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    change::Value as Typed,
    cpus::CpuList,
    tasks::{CpuIsolation, IsolationFlag, IsolationWord, KernelCmdline, Presence},
};
use serde_json::{Map, Value, json};

use super::{
    edits::{self, Present},
    kernel_cmdline, knobs, started,
    systemd::systemctl,
    tool,
    unit_settings::text::assignments,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, Ownership},
        reload,
    },
    signals,
    world::{Effect, Entry},
};

const CPU: &str = "/sys/devices/system/cpu";
/// Folders of drop-ins of systemd itself; of files with the same name, the first folder's counts.
const FOLDERS: [&str; 4] = [
    "/etc/systemd/system.conf.d",
    "/run/systemd/system.conf.d",
    "/usr/local/lib/systemd/system.conf.d",
    "/usr/lib/systemd/system.conf.d",
];
/// Daemons whose jobs and containers inherit their CPUs.
const STARTERS: [&str; 5] = ["slurmd", "containerd", "dockerd", "crio", "kubelet"];
/// Children of process 1 that are looked at: no node has more services.
const MOST: usize = 1024;
/// Name of a prediction's assumption.
const ASSUMED: &str = "CPUs of process 1";

#[derive(Debug)]
pub struct State {
    cmdline: Option<(KernelCmdline, kernel_cmdline::State)>,
    /// What the kernel says of each word that it tells of; none for a word that it does not know.
    kernel: Vec<(&'static str, Option<CpuList>)>,
    services: Option<Services>,
    partition: Option<partition::State>,
    /// Threads of cores of which only some are to be kept free.
    halves: CpuList,
    /// Daemons that inherit the affinity.
    starters: Vec<&'static str>,
    rebooted: bool,
}

#[derive(Debug)]
struct Services {
    systemctl: PathBuf,
    file: Present,
    text: String,
    /// Whether the file is to be there; else its text is what process 1 gets back before it goes.
    stays: bool,
    /// A later file with CPUAffinity=.
    beaten: Option<PathBuf>,
    /// CPUs for services, and those that process 1 has.
    keep: CpuList,
    now: Option<CpuList>,
    online: CpuList,
    /// Children of process 1 from before the file that may still run where they are not to.
    older: Vec<String>,
}

#[derive(Debug)]
pub enum Step {
    Cmdline(Plan<kernel_cmdline::Step>),
    File(edits::Step),
    Reload,
    Partition(partition::Step),
}

fn list(node: &Node<'_>, name: &str) -> Result<Option<CpuList>, Trouble> {
    let path = format!("{CPU}/{name}");
    let Some(text) = knobs::value(node, &path)? else { return Ok(None) };
    // What the kernel writes where the word was not given.
    let text = if text == "(null)" { "" } else { &text };
    text.parse().map(Some).map_err(|error| Trouble::io(format!("{path}: {error}")))
}

fn task_of(task: &CpuIsolation) -> Option<KernelCmdline> {
    let all = [IsolationWord::IsolCpus, IsolationWord::NohzFull, IsolationWord::RcuNocbs];
    match (&task.cpus, task.state) {
        (Some(cpus), Presence::Present) if !task.words.is_empty() => {
            let flags =
                |word| if word == IsolationWord::IsolCpus { task.flags_text() } else { String::new() };
            let add = task.words.iter().map(|word| format!("{word}={}{cpus}", flags(*word))).collect();
            Some(KernelCmdline { add, remove: Vec::new() })
        }
        (_, Presence::Present) => None,
        (_, Presence::Absent) => {
            let words = if task.words.is_empty() { all.as_slice() } else { &task.words };
            Some(KernelCmdline { add: Vec::new(), remove: words.iter().map(ToString::to_string).collect() })
        }
    }
}

/// Whether the running kernel was booted with one of these keys.
fn runs_with(node: &Node<'_>, keys: &[String]) -> Result<bool, Trouble> {
    let words = kernel_cmdline::running(node)?;
    Ok(words.iter().any(|word| keys.iter().any(|key| word.split('=').next() == Some(key))))
}

/// Returns the CPUs of process 1.
fn of_systemd(node: &Node<'_>) -> Result<Option<CpuList>, Trouble> {
    match node.world.parameter(ASSUMED) {
        Some(assumed) => Ok(assumed.parse().ok()),
        None => of_process(node, 1),
    }
}

fn of_process(node: &Node<'_>, pid: u32) -> Result<Option<CpuList>, Trouble> {
    let bytes = files::read_bounded(&node.roots.proc(&format!("{pid}/status")), 1 << 20)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.and_then(|line| line.trim().parse().ok()))
}

/// Returns the names of children of process 1 that are older than the file, and may run on one of these CPUs.
///
/// A process that ends meanwhile is none. Without CONFIG_PROC_CHILDREN nobody tells cheaply which they are.
fn older(node: &Node<'_>, file: &Present, cpus: &CpuList) -> Result<Vec<String>, Trouble> {
    let read = |name: String| files::read_bounded(&node.roots.proc(&name), 1 << 20);
    let children = read("1/task/1/children".to_owned())?.unwrap_or_default();
    let children = String::from_utf8_lossy(&children).into_owned();
    let pids: Vec<u32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).take(MOST).collect();
    let mut names = Vec::new();
    for pid in started::older(node, &pids, &file.place).unwrap_or_default() {
        let Ok(Some(own)) = of_process(node, pid) else { continue };
        if own.common(cpus).is_empty() {
            continue;
        }
        let comm = read(format!("{pid}/comm")).ok().flatten().unwrap_or_default();
        let comm = String::from_utf8_lossy(&comm).into_owned();
        // Each program chooses its name.
        let name: String = comm.chars().filter(char::is_ascii_graphic).take(15).collect();
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns the last drop-in of systemd itself after ours that sets the affinity too.
fn beaten(node: &Node<'_>, ours: &Present) -> Result<Option<PathBuf>, Trouble> {
    let mut by_name: BTreeMap<String, PathBuf> = BTreeMap::new();
    for folder in FOLDERS.map(|folder| node.roots.path(folder)) {
        for name in node.world.names(&folder)?.into_iter().filter(|name| name.ends_with(".conf")) {
            by_name.entry(name.clone()).or_insert_with(|| folder.join(name));
        }
    }
    let name = ours.place.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut found = None;
    for (_, path) in by_name.into_iter().filter(|(other, _)| *other > name) {
        if !matches!(node.world.follow_anywhere(&path)?.1, Entry::File { .. }) {
            continue;
        }
        let bytes = node.world.read(&path)?.unwrap_or_default();
        let sets = assignments(&String::from_utf8_lossy(&bytes))
            .iter()
            .any(|one| one.section == "Manager" && one.key == "CPUAffinity");
        if sets {
            found = Some(path);
        }
    }
    Ok(found)
}

fn services(node: &Node<'_>, task: &CpuIsolation, present: &CpuList) -> Result<Option<Services>, Trouble> {
    let file = Present::read(node, CpuIsolation::FILE)?;
    let is_wanted = task.state == Presence::Present && task.services;
    let is_gone = task.state == Presence::Absent && task.words.is_empty() && file.bytes.is_some();
    if !is_wanted && !is_gone {
        return Ok(None);
    }
    let keep = match &task.cpus {
        Some(cpus) => present.without(cpus),
        // What process 1 gets back, which is not what the kernel itself keeps free.
        None => present.without(&list(node, "isolated")?.unwrap_or_default()),
    };
    let text =
        format!("# Written by gpufleet: `cpu_isolation`.\n[Manager]\nCPUAffinity=\nCPUAffinity={keep}\n");
    let online = list(node, "online")?.unwrap_or_else(|| present.clone());
    let older = match is_wanted && file.bytes.is_some() && !node.world.rebooted() {
        true => older(node, &file, &online.without(&keep))?,
        false => Vec::new(),
    };
    Ok(Some(Services {
        systemctl: systemctl(node)?,
        beaten: if is_wanted { beaten(node, &file)? } else { None },
        now: if node.world.rebooted() { None } else { of_systemd(node)? },
        online,
        older,
        stays: is_wanted,
        text,
        file,
        keep,
    }))
}

impl NodeKind for CpuIsolation {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let missing = || Trouble::NotApplicable(format!("the running kernel tells no CPUs in {CPU}"));
        let present = list(node, "present")?.ok_or_else(missing)?;
        let cpus = self.cpus.clone().unwrap_or_default();
        let strange = cpus.without(&present);
        if !strange.is_empty() {
            return Err(Trouble::invalid(format!(
                "there are no CPUs {strange} here; the node has {present}"
            )));
        }
        // Offline CPUs count as present, and run nothing.
        let online = list(node, "online")?.unwrap_or_else(|| present.clone());
        if !online.is_empty() && online.without(&cpus).is_empty() {
            return Err(Trouble::invalid(format!(
                "it leaves no CPU for anything else: the online CPUs are {online}, and {cpus} takes them all"
            )));
        }
        if self.stops_ticks() && self.state == Presence::Present && list(node, "nohz_full")?.is_none() {
            return Err(Trouble::NotApplicable(
                "the running kernel was built without nohz_full (CONFIG_NO_HZ_FULL)".to_owned(),
            ));
        }
        let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
        let topology = signals::topology::read(&reader, Default::default);
        let cores = topology.sockets.iter().flat_map(|socket| &socket.cores);
        let halves = cores.flat_map(|core| {
            let own = core.common(&cpus);
            let is_half = !own.is_empty() && own != *core;
            own.iter().filter(|_| is_half).collect::<Vec<_>>()
        });
        let halves = halves.collect();
        let cmdline = match task_of(self) {
            Some(task) => match task.observe(node) {
                Ok(state) => Some((task, state)),
                // Without a boot loader that is known there is nothing to take away, unless the kernel has it.
                Err(Trouble::Failed { kind: FailureKind::Invalid, .. })
                    if self.state == Presence::Absent
                        && self.words.is_empty()
                        && !runs_with(node, &task.remove)? =>
                {
                    None
                }
                Err(trouble) => return Err(trouble),
            },
            None => None,
        };
        let mut kernel = Vec::new();
        if self.isolates_domains() {
            kernel.push((IsolationWord::IsolCpus.as_str(), list(node, "isolated")?));
        }
        if self.stops_ticks() {
            kernel.push((IsolationWord::NohzFull.as_str(), list(node, "nohz_full")?));
        }
        let starters = STARTERS.into_iter().filter(|name| self.services && node.roots.tool(name).is_some());
        let services = services(node, self, &present)?;
        let partition = partition::observe(node, self, &online)?;
        let (starters, rebooted) = (starters.collect(), node.world.rebooted());
        Ok(State { cmdline, kernel, services, partition, halves, starters, rebooted })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        if let Some((task, known)) = &state.cmdline {
            let mut words = task.plan(known)?;
            let is_booted = words.awaiting.is_empty() && words.steps.is_empty() && !state.rebooted;
            if is_booted && self.state == Presence::Present {
                self.judge_kernel(state)?;
            }
            plan.take(&mut words);
            if !words.steps.is_empty() {
                plan.steps.push(Step::Cmdline(words));
            }
        }
        if !state.halves.is_empty() && !plan.steps.is_empty() {
            plan.warnings.push(format!(
                "of the cores of CPUs {} the other threads are not kept free, and share them",
                state.halves
            ));
        }
        if let Some(services) = &state.services {
            services.plan(state, &mut plan)?;
        }
        if let Some(partition) = &state.partition {
            partition.plan(&mut plan, Step::Partition)?;
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for step in &plan.steps {
            match (step, &state.cmdline) {
                (Step::Cmdline(plan), Some((task, known))) => effects.extend(task.after(known, plan)),
                (Step::Cmdline(_), None) => {}
                (Step::Partition(step), _) => {
                    effects.extend(state.partition.iter().flat_map(|partition| partition.after([step])));
                }
                (Step::File(step), _) => effects.push(step.effect()),
                (Step::Reload, _) => {
                    effects.push(Effect::UnitFilesRead("daemon-reload"));
                    let keep = state.services.as_ref().map(|services| services.keep.to_string());
                    effects.extend(keep.map(|value| Effect::Parameter { name: ASSUMED.to_owned(), value }));
                }
            }
        }
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let reloads = |step: &Step| match step {
            Step::Reload => true,
            Step::Partition(step) => step.reloads(),
            Step::Cmdline(_) | Step::File(_) => false,
        };
        if plan.steps.iter().any(reloads) {
            // Before a file is touched.
            reload::before("daemon-reload", node.roots)?;
        }
        for step in &plan.steps {
            match (step, &state.cmdline, &state.services) {
                (Step::Cmdline(plan), Some((task, known)), _) => {
                    task.apply(node, known, plan)?;
                }
                (Step::File(step), ..) => step.apply()?,
                (Step::Partition(step), ..) => {
                    state.partition.as_ref().map_or(Ok(()), |partition| partition.apply(node, step))?;
                }
                (Step::Reload, _, Some(services)) => {
                    let run =
                        tool::run(node, &services.systemctl).args(["--no-ask-password", "daemon-reload"]);
                    tool::act(node, &run, "systemctl daemon-reload")?;
                }
                _ => {}
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let told = |(word, cpus): &(&str, Option<CpuList>)| {
            ((*word).to_owned(), json!(cpus.as_ref().map(CpuList::to_string)))
        };
        let mut data: Map<String, Value> = state.kernel.iter().map(told).collect();
        let unknown = self.untold();
        if !unknown.is_empty() {
            data.insert("unknown".to_owned(), json!(unknown));
        }
        if let Some(partition) = &state.partition {
            partition.tell(&mut data);
        }
        if let Some(now) = state.services.as_ref().and_then(|services| services.now.as_ref()) {
            data.insert("services".to_owned(), json!(now.to_string()));
        }
        data
    }
}

trait Judges {
    /// Returns what no file of the kernel tells.
    fn untold(&self) -> Vec<&'static str>;
    fn judge_kernel(&self, state: &State) -> Result<(), Trouble>;
}

impl Judges for CpuIsolation {
    fn untold(&self) -> Vec<&'static str> {
        [
            ("rcu_nocbs", self.words.contains(&IsolationWord::RcuNocbs)),
            ("isolcpus=managed_irq", self.flags.contains(&IsolationFlag::ManagedIrq)),
        ]
        .into_iter()
        .filter_map(|(name, is_declared)| is_declared.then_some(name))
        .collect()
    }

    /// What the kernel has made of the words that it was booted with.
    fn judge_kernel(&self, state: &State) -> Result<(), Trouble> {
        let wanted = self.cpus.clone().unwrap_or_default();
        for (word, cpus) in &state.kernel {
            let Some(cpus) = cpus else {
                return Err(Trouble::io(format!(
                    "the kernel was booted with {word}=, and does not tell what it made of it"
                )));
            };
            if !wanted.is_subset(cpus) {
                return Err(Trouble::failed(
                    FailureKind::Unconverged,
                    format!(
                        "the kernel was booted with {word}={wanted}, and keeps CPUs {} free; its log says why: journalctl -k",
                        if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() }
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl Services {
    fn plan(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        if let Some(path) = &self.beaten {
            return Err(Trouble::invalid(format!(
                "{} comes after {} and sets CPUAffinity= too; take it out there",
                path.display(),
                self.file.shown
            )));
        }
        if !self.stays {
            // Without the file systemd would leave process 1 where it is. Removed last, so that a crash before is seen.
            if self.file.text()? != self.text {
                let written = self.file.written(self.text.as_str(), Ownership::default());
                plan.steps.extend(written.map(Step::File));
            }
            plan.steps.push(Step::Reload);
            plan.push(Step::File(self.file.removed()), self.file.change(None));
            plan.steps.push(Step::Reload);
            plan.warnings.push("services that run keep their CPUs until they are restarted".to_owned());
            return Ok(());
        }
        let is_new = self.file.text()? != self.text;
        if is_new {
            let value = |text: &str| {
                assignments(text)
                    .into_iter()
                    .rfind(|one| one.key == "CPUAffinity")
                    .map(|one| Typed::text(one.value))
            };
            let from = value(self.file.text()?).unwrap_or(Typed::Absent);
            let property = Property::new("Manager.CPUAffinity");
            let to = Typed::text(self.keep.to_string());
            plan.changes.push(Change::new(
                Subject::file(&self.file.shown),
                property,
                from,
                to,
                Disruption::Live,
            ));
            plan.steps.extend(self.file.written(self.text.as_str(), Ownership::default()).map(Step::File));
        }
        // Offline CPUs are not among those of a process.
        let wanted = self.keep.common(&self.online);
        let is_kept = self.now.as_ref().is_none_or(|now| now.common(&self.online) == wanted);
        if !is_kept {
            let from = self.now.as_ref().map_or(Typed::Unknown, |now| Typed::text(now.to_string()));
            let property = Property::new("CPUs of new services");
            let to = Typed::text(self.keep.to_string());
            plan.changes.push(Change::new(Subject::ServiceManager, property, from, to, Disruption::Live));
        }
        if is_new || !is_kept {
            plan.steps.push(Step::Reload);
            plan.warnings.push("services that run keep their CPUs until they are restarted".to_owned());
            if !state.starters.is_empty() {
                plan.warnings.push(format!(
                    "{} inherits it at its next start, and so do jobs and containers: `unit_settings` with `CPUAffinity` gives it \
                     CPUs of its own",
                    state.starters.join(" or ")
                ));
            }
        } else if !self.older.is_empty() {
            let shown = self.older.iter().take(8).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = self.older.len().saturating_sub(8);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            plan.warnings.push(format!(
                "{shown}{more} were started before {}, and may run on CPUs {} until they are restarted",
                self.file.shown,
                self.online.without(&self.keep)
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    /// Moves process 1 at a reload if a file says where to, as systemd does.
    const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
echo "$*" >> $d/log
cpus=$(sed -n 's/^CPUAffinity=//p' $d/etc/systemd/system.conf.d/*.conf 2>/dev/null | tail -1)
[ -z "$cpus" ] || printf 'Name:\tsystemd\nCpus_allowed_list:\t%s\n' "$cpus" > $d/proc/1/status
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/systemctl", SYSTEMCTL);
        for (name, text) in [("present", "0-7"), ("online", "0-7"), ("isolated", ""), ("nohz_full", "(null)")]
        {
            bench.write(&format!("sys/devices/system/cpu/{name}"), &format!("{text}\n"));
        }
        for cpu in 0..8 {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            bench.write(&format!("{folder}/thread_siblings_list"), &format!("{},{}\n", cpu % 4, cpu % 4 + 4));
            bench.write(&format!("{folder}/physical_package_id"), "0\n");
        }
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n");
        bench.write("proc/cmdline", "quiet\n");
        bench.write("proc/1/status", "Name:\tsystemd\nCpus_allowed_list:\t0-7\n");
        bench.write("log", "");
        bench
    }

    fn task(value: Value) -> CpuIsolation {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_kernel_is_believed_and_not_its_command_line() {
        let bench = bench();
        let words = task(json!({"cpus": "1-3,5-7", "words": ["isolcpus", "nohz_full", "rcu_nocbs"]}));
        let predicted = bench.run(&words, Mode::Predict);
        assert_eq!(predicted.changes.len(), 3, "{predicted:?}");
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&words, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        let done = bench.run(&words, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert_eq!(done.awaiting.len(), 3, "{done:?}");
        assert!(
            bench.read("etc/default/grub").contains("isolcpus=1-3,5-7 nohz_full=1-3,5-7 rcu_nocbs=1-3,5-7")
        );
        let waiting = bench.run(&words, Mode::Apply);
        assert_eq!((waiting.status, waiting.awaiting.len()), (OpStatus::Ok, 3));
        bench.write("proc/cmdline", "quiet isolcpus=1-3,5-7 nohz_full=1-3,5-7 rcu_nocbs=1-3,5-7\n");
        let ignored = bench.run(&words, Mode::Apply);
        assert!(
            failure(&ignored)
                .starts_with("the kernel was booted with isolcpus=1-3,5-7, and keeps CPUs none free")
        );
        bench.write("sys/devices/system/cpu/isolated", "1-3,5-7\n");
        bench.write("sys/devices/system/cpu/nohz_full", "1-3,5-7\n");
        let right = bench.run(&words, Mode::Apply);
        assert_eq!((&right.status, &right.data["unknown"]), (&OpStatus::Ok, &json!(["rcu_nocbs"])));
        let gone = bench.run(&task(json!({"state": "absent"})), Mode::Apply);
        assert_eq!((&gone.status, gone.awaiting.len()), (&OpStatus::Changed, 3), "{gone:?}");
        assert!(!bench.read("etc/default/grub").contains("nohz_full"));
    }

    #[test]
    fn services_are_kept_away_at_once() {
        let bench = bench();
        bench.script("usr/sbin/slurmd", "#!/bin/sh\n");
        let services = task(json!({"cpus": "2-7", "services": true}));
        let predicted = bench.run(&services, Mode::Predict);
        assert_eq!(bench.run(&services, Mode::Predict).status, OpStatus::Ok);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&services, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        assert_eq!(
            shown(&predicted),
            [
                "/etc/systemd/system.conf.d/90-gpufleet-cpu-affinity.conf Manager.CPUAffinity: nothing -> 0-1 (live)",
                "systemd CPUs of new services: 0-7 -> 0-1 (live)",
            ]
        );
        let done = bench.run(&services, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert!(done.warnings[1].starts_with("slurmd inherits it"), "{done:?}");
        assert_eq!(bench.run(&services, Mode::Apply).status, OpStatus::Ok);
        // Services from before the file, until they are started anew.
        let started = "1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500";
        bench.write("proc/stat", "btime 1000000000\n");
        bench.write("proc/1/task/1/children", "40 41 42 ");
        for (pid, name, cpus) in [(40, "cron", "0-7"), (41, "sshd", "0-1"), (42, "a\u{1b}[2Jb", "2")] {
            bench.write(&format!("proc/{pid}/stat"), &format!("{pid} ({name}) S {started}\n"));
            bench.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
            bench.write(
                &format!("proc/{pid}/status"),
                &format!("Name:\t{name}\nCpus_allowed_list:\t{cpus}\n"),
            );
        }
        let again = bench.run(&services, Mode::Apply);
        assert_eq!(again.status, OpStatus::Ok);
        assert_eq!(
            again.warnings,
            [
                "a[2Jb, cron were started before /etc/systemd/system.conf.d/90-gpufleet-cpu-affinity.conf, and may run on CPUs \
              2-7 until they are restarted"
            ]
        );
        bench.write("proc/stat", "btime 4000000000\n");
        assert_eq!(bench.run(&services, Mode::Apply).warnings, Vec::<String>::new());
        // A crash before the reload.
        bench.write("proc/1/status", "Name:\tsystemd\nCpus_allowed_list:\t0-7\n");
        bench.write("log", "");
        assert_eq!(bench.run(&services, Mode::Apply).changes.len(), 1);
        assert_eq!(bench.read("log"), "--no-ask-password daemon-reload\n");
        // So too where process 1 has fewer CPUs than it is to have.
        bench.write("proc/1/status", "Name:\tsystemd\nCpus_allowed_list:\t0\n");
        assert_eq!(bench.run(&services, Mode::Apply).changes.len(), 1);
        let word = task(json!({"state": "absent", "words": "nohz_full"}));
        assert_eq!(bench.run(&word, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.run(&services, Mode::Apply).status, OpStatus::Ok);
        bench.write("usr/lib/systemd/system.conf.d/99-site.conf", "[Manager]\nCPUAffinity=0-7\n");
        assert!(failure(&bench.run(&services, Mode::Predict)).contains("99-site.conf comes after"));
        std::fs::remove_file(bench.path("usr/lib/systemd/system.conf.d/99-site.conf")).unwrap();
        let gone = task(json!({"state": "absent"}));
        assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Ok);
        assert!(!bench.path("etc/systemd/system.conf.d/90-gpufleet-cpu-affinity.conf").exists());
        assert!(bench.read("proc/1/status").ends_with("\t0-7\n"), "it has all CPUs back");
        // Without a boot loader that is known, only words of the running kernel are a reason to fail.
        std::fs::remove_file(bench.path("etc/default/grub")).unwrap();
        assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Ok);
        bench.write("proc/cmdline", "quiet nohz_full=2-7\n");
        assert!(failure(&bench.run(&gone, Mode::Apply)).contains("no boot loader"));
    }

    #[test]
    fn flags_of_isolcpus_go_before_the_cpus() {
        let bench = bench();
        let flags = task(json!({"cpus": "1-3,5-7", "words": "isolcpus", "flags": ["managed_irq", "nohz"]}));
        assert_eq!(bench.run(&flags, Mode::Apply).status, OpStatus::Changed);
        assert!(bench.read("etc/default/grub").contains("isolcpus=nohz,managed_irq,1-3,5-7"));
        bench.write("proc/cmdline", "quiet isolcpus=nohz,managed_irq,1-3,5-7\n");
        let ignored = bench.run(&flags, Mode::Apply);
        assert!(failure(&ignored).starts_with("the kernel was booted with nohz_full="), "{ignored:?}");
        bench.write("sys/devices/system/cpu/nohz_full", "1-3,5-7\n");
        let right = bench.run(&flags, Mode::Apply);
        // Without `domain` the scheduler isolates nothing, and `isolated` is not asked.
        assert_eq!(
            (&right.status, &right.data["unknown"]),
            (&OpStatus::Ok, &json!(["isolcpus=managed_irq"]))
        );
        let without = task(json!({"cpus": "1", "words": "isolcpus", "flags": "nohz"}));
        std::fs::remove_file(bench.path("sys/devices/system/cpu/nohz_full")).unwrap();
        let none = bench.run(&without, Mode::Predict);
        assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let bench = bench();
        let why = |value| failure(&bench.run(&task(value), Mode::Predict)).to_owned();
        assert!(why(json!({"cpus": "4-9", "services": true})).starts_with("there are no CPUs 8-9 here"));
        assert!(why(json!({"cpus": "0-7", "services": true})).contains("leaves no CPU"));
        // As with `nosmt`: the other threads are there, and offline.
        bench.write("sys/devices/system/cpu/online", "0-3\n");
        for value in [json!({"cpus": "0-3", "words": "isolcpus"}), json!({"cpus": "0-3", "services": true})] {
            assert!(why(value).contains("the online CPUs are 0-3"));
        }
        bench.write("sys/devices/system/cpu/online", "0-7\n");
        let half = bench.run(&task(json!({"cpus": "1-3", "words": "isolcpus"})), Mode::Predict);
        assert!(half.warnings.iter().any(|line| line.contains("of the cores of CPUs 1-3")), "{half:?}");
        std::fs::remove_file(bench.path("sys/devices/system/cpu/nohz_full")).unwrap();
        let none = bench.run(&task(json!({"cpus": "1", "words": "nohz_full"})), Mode::Predict);
        assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
    }
}

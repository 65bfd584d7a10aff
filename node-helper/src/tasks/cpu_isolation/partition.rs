//! A partition of cpusets: the CPUs of a slice of systemd, which no other program gets.
//!
//! systemd owns the tree and gives the slice its CPUs (AllowedCPUs=); it knows no partitions, so a service of ours writes
//! the word at every boot. What counts is what the kernel answers, now and later: a partition that was valid becomes
//! `isolated invalid (reason)` once another cpuset names one of its CPUs.

use gpufleet_protocol::{
    Change, Disruption, Layer, Property, Subject,
    change::Value as Typed,
    cpus::CpuList,
    tasks::{CpuIsolation, PartitionSort, Presence},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, Plan, Trouble},
    os::{files::Ownership, reload},
    tasks::{
        edits::{self, Present},
        kernel_cmdline, knobs,
        own_unit::{self, OwnUnit},
        systemd::systemctl,
        tool,
    },
    world::Effect,
};

const TREE: &str = "/sys/fs/cgroup";
/// Under which a prediction assumes what the kernel answers.
const ASSUMED: &str = "isolated.slice cpuset.cpus.partition";

#[derive(Debug)]
pub struct State {
    /// The sort and the CPUs; none if there is to be no partition.
    wanted: Option<(PartitionSort, CpuList)>,
    file: Present,
    text: String,
    unit: own_unit::State,
    /// What the kernel answers, with the CPUs of a valid partition; none if there is no slice.
    now: Option<String>,
    online: CpuList,
}

#[derive(Debug)]
pub enum Step {
    /// Gives the CPUs back to everybody.
    Member,
    File(edits::Step),
    Unit(own_unit::Step),
    Reload,
}

impl Step {
    /// Whether systemd reads its units for it.
    pub const fn reloads(&self) -> bool {
        match self {
            Self::Member => false,
            Self::File(_) | Self::Unit(_) | Self::Reload => true,
        }
    }
}

fn file(name: &str) -> String {
    format!("{TREE}/{}/{name}", CpuIsolation::SLICE)
}

fn script(sort: PartitionSort) -> String {
    format!(
        "# Written by gpufleet: `cpu_isolation`.\n\
         # What the kernel makes of it, it tells in the same file.\n\
         exec echo {sort} > {}\n",
        file("cpuset.cpus.partition")
    )
}

/// Returns the answer of the kernel in a line, with the CPUs of a partition that is valid.
fn answer(word: &str, cpus: &str) -> String {
    // `isolated invalid (reason)` is whole.
    if word == "member" || word.contains(' ') { word.to_owned() } else { format!("{word}, CPUs {cpus}") }
}

/// Reads what there is of a partition; none if nothing is declared of it, and nothing there.
///
/// # Errors
/// If the kernel has no cpusets in the unified tree, or something cannot be read.
pub fn observe(node: &Node<'_>, task: &CpuIsolation, online: &CpuList) -> Result<Option<State>, Trouble> {
    let is_gone = task.state == Presence::Absent && task.words.is_empty();
    let wanted = task.partition.zip(task.cpus.clone());
    let file = Present::read(node, CpuIsolation::SLICE_FILE)?;
    let unit_file = node.roots.path(format!("/etc/systemd/system/{}.service", CpuIsolation::UNIT));
    let is_there = file.bytes.is_some() || node.world.read(&unit_file)?.is_some();
    if wanted.is_none() && !(is_gone && is_there) {
        return Ok(None);
    }
    let controllers = knobs::value(node, &format!("{TREE}/cgroup.controllers"))?;
    let has_cpusets = controllers.is_some_and(|text| text.split_whitespace().any(|name| name == "cpuset"));
    if wanted.is_some() && !has_cpusets {
        return Err(Trouble::NotApplicable(format!(
            "{TREE}/cgroup.controllers names no cpuset: partitions need cgroup v2 with cpusets, and this node has cgroup v1 or none"
        )));
    }
    if let Some((PartitionSort::Root, cpus)) = &wanted {
        isolated_at_boot(node, cpus)?;
    }
    let unit = OwnUnit {
        name: CpuIsolation::UNIT,
        about: wanted
            .as_ref()
            .map_or(String::new(), |(sort, cpus)| format!("{sort} partition of CPUs {cpus}")),
        script: wanted.as_ref().map(|(sort, _)| script(*sort)),
        stays: false,
        after: "local-fs.target",
        requires: Some(CpuIsolation::SLICE),
    }
    .observe(node)?;
    let text = wanted.as_ref().map_or(String::new(), |(_, cpus)| {
        format!("# Written by gpufleet: `cpu_isolation`.\n[Slice]\nAllowedCPUs=\nAllowedCPUs={cpus}\n")
    });
    let now =
        now(node, wanted.as_ref(), online, || unit.runs() && file.bytes.as_deref() == Some(text.as_bytes()))?;
    Ok(Some(State { wanted, file, text, unit, now, online: online.clone() }))
}

/// Returns the CPUs that a word of the command line takes out of the scheduler's domains; all where only the kernel can
/// read them.
///
/// Source: kernel, kernel/sched/isolation.c, `housekeeping_isolcpus_setup`: without flags it is `domain`.
fn taken(word: &str, online: &CpuList) -> CpuList {
    let Some(value) = word.strip_prefix("isolcpus=") else { return CpuList::default() };
    let (mut rest, mut flags) = (value, Vec::new());
    while let Some((flag, more)) = rest.split_once(',').filter(|_| rest.starts_with(char::is_alphabetic)) {
        flags.push(flag);
        rest = more;
    }
    match flags.is_empty() || flags.contains(&"domain") {
        true => rest.parse().unwrap_or_else(|_| online.clone()),
        false => CpuList::default(),
    }
}

/// Refuses CPUs for a partition `root` that `isolcpus` keeps out of it.
///
/// Source: kernel from 6.7 on, kernel/cgroup/cpuset.c, `prstate_housekeeping_conflict`; older ones give the partition no
/// scheduling domain.
fn isolated_at_boot(node: &Node<'_>, cpus: &CpuList) -> Result<(), Trouble> {
    // Without a boot loader that is known, nobody tells what the next boot brings.
    let next = kernel_cmdline::next(node);
    let running = if node.world.rebooted() { Vec::new() } else { kernel_cmdline::running(node)? };
    let of = |words: Vec<String>, when: &'static str| words.into_iter().map(move |word| (word, when));
    let all = of(running, "the running kernel was booted").chain(of(next, "the next boot is"));
    for (word, when) in all {
        if !taken(&word, cpus).common(cpus).is_empty() {
            return Err(Trouble::invalid(format!(
                "{when} with `{word}`, and the kernel takes CPUs of isolcpus into a partition `isolated` only: take the word away \
                 and reboot first, or declare `partition: isolated`"
            )));
        }
    }
    Ok(())
}

/// Returns what the kernel answers, or is going to.
fn now(
    node: &Node<'_>,
    wanted: Option<&(PartitionSort, CpuList)>,
    online: &CpuList,
    boots: impl Fn() -> bool,
) -> Result<Option<String>, Trouble> {
    if let Some(assumed) = node.world.parameter(ASSUMED) {
        return Ok(Some(assumed).filter(|text| !text.is_empty()));
    }
    if node.world.rebooted() {
        return Ok(wanted.filter(|_| boots()).map(|wanted| target(wanted, online)));
    }
    let Some(word) = knobs::value(node, &file("cpuset.cpus.partition"))? else { return Ok(None) };
    let effective = knobs::value(node, &file("cpuset.cpus.effective"))?.unwrap_or_default();
    let found = answer(&word, &own(node, online)?);
    // Since Linux 6.8 the root tells what isolated partitions keep free in sum.
    let isolated = knobs::value(node, &format!("{TREE}/cpuset.cpus.isolated"))?;
    let lacks = isolated.filter(|text| {
        let named = text.parse::<CpuList>().unwrap_or_default();
        word == "isolated" && effective.parse::<CpuList>().is_ok_and(|cpus| !cpus.is_subset(&named))
    });
    Ok(Some(match lacks {
        Some(text) => format!(
            "{found}, though cpuset.cpus.isolated names {}",
            if text.is_empty() { "none" } else { &text }
        ),
        None => found,
    }))
}

/// Returns the CPUs of the partition, without those that are offline.
///
/// cpuset.cpus.effective lacks those that a partition below it has. Since Linux 6.7 a file tells both; before, a partition
/// that is valid has those of cpuset.cpus.
fn own(node: &Node<'_>, online: &CpuList) -> Result<String, Trouble> {
    let text = match knobs::value(node, &file("cpuset.cpus.exclusive.effective"))? {
        Some(text) => text,
        None => knobs::value(node, &file("cpuset.cpus"))?.unwrap_or_default(),
    };
    Ok(text.parse::<CpuList>().map_or(text, |cpus| cpus.common(online).to_string()))
}

fn target((sort, cpus): &(PartitionSort, CpuList), online: &CpuList) -> String {
    answer(sort.as_str(), &cpus.common(online).to_string())
}

impl State {
    pub fn plan<S>(&self, plan: &mut Plan<S>, step: impl Fn(Step) -> S) -> Result<(), Trouble> {
        let subject = || Subject::kernel_setting(ASSUMED);
        let from = self.now.as_deref().map_or(Typed::Absent, Typed::text);
        let Some(wanted) = &self.wanted else {
            if self.now.as_deref().is_some_and(|now| now != "member") {
                let change = Change::new(subject(), Property::VALUE, from, "member", Disruption::Live);
                plan.push(step(Step::Member), change);
            }
            if self.file.bytes.is_some() {
                plan.push(step(Step::File(self.file.removed())), self.file.change(None).at(Layer::Boot));
                // The slice lets go of its CPUs.
                plan.steps.push(step(Step::Reload));
            }
            self.unit.plan(plan, |unit| step(Step::Unit(unit)));
            return Ok(());
        };
        let is_new = self.file.text()? != self.text;
        if is_new {
            let written = self.file.written(self.text.as_str(), Ownership::default());
            plan.steps.extend(written.map(|file| step(Step::File(file))));
            plan.changes.push(self.file.change(Some(self.text.as_bytes())).at(Layer::Boot));
        }
        let before = plan.steps.len();
        self.unit.plan(plan, |unit| step(Step::Unit(unit)));
        let target = target(wanted, &self.online);
        let differs = self.now.as_deref() != Some(target.as_str());
        if differs {
            // Programs that run there move, and kernels from 6.0 on move their workers.
            let change =
                Change::new(subject(), Property::VALUE, from, Typed::text(target), Disruption::Clients);
            plan.changes.push(change.with_note("programs that run on these CPUs move off them"));
            plan.needs = plan.needs.max(Disruption::Clients);
        }
        if (is_new || differs) && plan.steps.len() == before {
            plan.steps.push(step(Step::Unit(own_unit::Step::Start)));
        }
        Ok(())
    }

    pub fn after<'s>(&self, steps: impl IntoIterator<Item = &'s Step>) -> Vec<Effect> {
        let assume = |value: String| Effect::Parameter { name: ASSUMED.to_owned(), value };
        let effects = |step: &Step| match step {
            Step::Member => vec![assume(String::new())],
            Step::File(step) => vec![step.effect()],
            Step::Reload => vec![Effect::UnitFilesRead("daemon-reload")],
            Step::Unit(step) => {
                let mut effects = self.unit.after([step]);
                let starts = matches!(step, own_unit::Step::Start);
                let made = self.wanted.as_ref().filter(|_| starts).map(|wanted| target(wanted, &self.online));
                effects.extend(made.map(assume));
                effects
            }
        };
        steps.into_iter().flat_map(effects).collect()
    }

    /// # Errors
    /// If systemd or the kernel refuses a step.
    pub fn apply(&self, node: &Node<'_>, step: &Step) -> Result<(), Trouble> {
        match step {
            Step::Member => knobs::write(node, &file("cpuset.cpus.partition"), "member"),
            Step::File(step) => {
                reload::before("daemon-reload", node.roots)?;
                step.apply()
            }
            Step::Unit(step) => self.unit.apply(node, step),
            Step::Reload => {
                reload::before("daemon-reload", node.roots)?;
                let run = tool::run(node, systemctl(node)?).args(["--no-ask-password", "daemon-reload"]);
                tool::act(node, &run, "systemctl daemon-reload").map(drop)
            }
        }
    }

    pub fn tell(&self, data: &mut Map<String, Value>) {
        data.insert("partition".to_owned(), json!(self.now));
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::{
        declare::drive,
        tasks::testing::{Bench, failure, shown},
    };

    /// Makes the slice and runs the service, as systemd does; the kernel's answer comes from a file.
    const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
s=$d/sys/fs/cgroup/isolated.slice
case $* in
*show*) for unit in "$@"; do case $unit in *.service)
    [ -e $d/active ] && a=active || a=inactive
    [ -e $d/enabled ] && e=enabled || e=disabled
    printf 'Id=%s\nActiveState=%s\nUnitFileState=%s\n\n' $unit $a $e;; esac; done;;
*daemon-reload) f=$d/etc/systemd/system/isolated.slice.d/90-gpufleet-cpus.conf
    [ -e $f ] && sed -n 's/^AllowedCPUs=//p' $f | tail -1 >$d/cpus || rm -rf $s;;
*enable*) touch $d/enabled;;
*disable*) rm -f $d/enabled;;
*restart*) mkdir -p $s; touch $d/active
    for f in cpuset.cpus cpuset.cpus.effective; do cat $d/cpus >$s/$f; done
    [ -e $d/invalid ] && cat $d/invalid >$s/cpuset.cpus.partition && exit 0
    sed -n 's/^exec echo \([a-z]*\) .*/\1/p' $d/etc/gpufleet/gpufleet-cpu-partition.sh >$s/cpuset.cpus.partition;;
*stop*) rm -f $d/active;;
esac
echo "$*" >>$d/log
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/systemctl", SYSTEMCTL);
        for name in ["present", "online"] {
            bench.write(&format!("sys/devices/system/cpu/{name}"), "0-7\n");
        }
        bench.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n");
        bench.write("proc/cmdline", "quiet\n");
        bench.write("proc/1/status", "Name:\tsystemd\nCpus_allowed_list:\t0-7\n");
        bench
    }

    fn task(value: Value) -> CpuIsolation {
        serde_json::from_value(value).unwrap()
    }

    fn apply(bench: &Bench, task: &CpuIsolation) -> OpOutcome {
        bench.node(|node| drive(task, node, Mode::Apply, &bench.overlay, Disruption::Clients, &|_| Ok(())))
    }

    const ANSWER: &str = "sys/fs/cgroup/isolated.slice/cpuset.cpus.partition";

    #[test]
    fn a_partition_is_made_now_and_at_boots_and_goes_again() {
        let bench = bench();
        let isolated = task(json!({"cpus": "4-7", "partition": "isolated"}));
        let before = bench.snapshot();
        let predicted = bench.run(&isolated, Mode::Predict);
        assert_eq!(
            crate::tasks::testing::changed(&before, &bench.snapshot()),
            Vec::<std::path::PathBuf>::new()
        );
        assert_eq!(bench.run(&isolated, Mode::Predict).status, OpStatus::Ok);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&isolated, Mode::Predict).status, OpStatus::Ok, "after the boot");
        bench.forget();
        let refused = bench.run(&isolated, Mode::Apply);
        assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::Clients });
        let done = apply(&bench, &isolated);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert!(
            shown(&done).contains(
                &"isolated.slice cpuset.cpus.partition: nothing -> isolated, CPUs 4-7 (clients)".to_owned()
            ),
            "{done:?}"
        );
        assert_eq!(done.data["partition"], "isolated, CPUs 4-7");
        assert_eq!(
            bench.read("etc/systemd/system/isolated.slice.d/90-gpufleet-cpus.conf"),
            "# Written by gpufleet: `cpu_isolation`.\n[Slice]\nAllowedCPUs=\nAllowedCPUs=4-7\n"
        );
        let unit = bench.read("etc/systemd/system/gpufleet-cpu-partition.service");
        assert!(unit.contains("Requires=isolated.slice\nAfter=isolated.slice\n"), "{unit}");
        assert_eq!(apply(&bench, &isolated).status, OpStatus::Ok);
        // Other CPUs, and then another sort.
        for (value, now) in [
            (json!({"cpus": "2-7", "partition": "isolated"}), "isolated, CPUs 2-7"),
            (json!({"cpus": "2-7", "partition": "root"}), "root, CPUs 2-7"),
        ] {
            let other = task(value);
            let done = apply(&bench, &other);
            assert_eq!(
                (&done.status, &done.data["partition"]),
                (&OpStatus::Changed, &json!(now)),
                "{done:?}"
            );
            assert_eq!(apply(&bench, &other).status, OpStatus::Ok);
        }
        let gone = task(json!({"state": "absent"}));
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n");
        assert_eq!(apply(&bench, &gone).status, OpStatus::Changed);
        assert_eq!(apply(&bench, &gone).status, OpStatus::Ok);
        assert!(!bench.path("etc/systemd/system/isolated.slice.d/90-gpufleet-cpus.conf").exists());
        assert!(!bench.path("etc/systemd/system/gpufleet-cpu-partition.service").exists());
    }

    #[test]
    fn the_kernel_is_believed_when_it_calls_a_partition_invalid() {
        let bench = bench();
        let isolated = task(json!({"cpus": "4-7", "partition": "isolated"}));
        bench.write("invalid", "isolated invalid (Cpu list in cpuset.cpus not exclusive)\n");
        let failed = apply(&bench, &isolated);
        assert!(
            failure(&failed)
                .ends_with("but reads isolated invalid (Cpu list in cpuset.cpus not exclusive) afterwards"),
            "{failed:?}"
        );
        std::fs::remove_file(bench.path("invalid")).unwrap();
        let done = apply(&bench, &isolated);
        assert!(shown(&done)[0].contains("isolated invalid (Cpu list"), "{done:?}");
        // Later, after another cpuset took one of the CPUs.
        bench.write(ANSWER, "isolated invalid (Cpu list in cpuset.cpus not exclusive)\n");
        assert_eq!(apply(&bench, &isolated).changes.len(), 1);
        // The root tells otherwise.
        bench.write("sys/fs/cgroup/cpuset.cpus.isolated", "6-7\n");
        let told = bench.run(&isolated, Mode::Predict);
        assert!(shown(&told)[0].contains("though cpuset.cpus.isolated names 6-7"), "{told:?}");
        bench.write("sys/fs/cgroup/cpuset.cpus.isolated", "4-7\n");
        assert_eq!(apply(&bench, &isolated).status, OpStatus::Ok);
    }

    #[test]
    fn cpus_of_a_partition_below_are_still_its_own() {
        let bench = bench();
        let root = task(json!({"cpus": "4-7", "partition": "root"}));
        assert_eq!(apply(&bench, &root).status, OpStatus::Changed);
        bench.write("sys/fs/cgroup/isolated.slice/cpuset.cpus.effective", "4-5\n");
        assert_eq!(apply(&bench, &root).status, OpStatus::Ok, "before Linux 6.7");
        bench.write("sys/fs/cgroup/isolated.slice/cpuset.cpus.exclusive.effective", "4-7\n");
        assert_eq!(apply(&bench, &root).status, OpStatus::Ok);
        bench.write("sys/fs/cgroup/isolated.slice/cpuset.cpus.exclusive.effective", "5-7\n");
        assert_eq!(shown(&bench.run(&root, Mode::Predict)).len(), 1);
    }

    #[test]
    fn a_partition_root_takes_no_cpus_of_isolcpus() {
        let bench = bench();
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n");
        let root = task(json!({"cpus": "4-7", "partition": "root"}));
        for word in ["isolcpus=7", "isolcpus=managed_irq,domain,2-5", "isolcpus=1-N"] {
            bench.write("proc/cmdline", &format!("quiet {word}\n"));
            let refused = bench.run(&root, Mode::Predict);
            assert!(
                failure(&refused).starts_with("the running kernel was booted with `isolcpus="),
                "{refused:?}"
            );
        }
        for word in ["isolcpus=1-3", "isolcpus=nohz,managed_irq,4-7"] {
            bench.write("proc/cmdline", &format!("quiet {word}\n"));
            assert_eq!(bench.run(&root, Mode::Predict).changes.len(), 4, "{word}");
            bench.forget();
        }
        bench.write("proc/cmdline", "quiet\n");
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet isolcpus=4-7\"\n");
        let refused = bench.run(&root, Mode::Predict);
        assert!(failure(&refused).starts_with("the next boot is with `isolcpus=4-7`"), "{refused:?}");
        let isolated = task(json!({"cpus": "4-7", "partition": "isolated"}));
        assert_eq!(bench.run(&isolated, Mode::Predict).changes.len(), 4);
    }

    #[test]
    fn nothing_is_written_before_a_reload_that_is_refused() {
        let bench = bench();
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n");
        // A container that the runtime gave its GPU past systemd.
        bench.write("proc/devices", "Character devices:\n195 nvidia\n");
        bench.write("run/systemd/transient/docker-ab.scope", "[Scope]\nDeviceAllow=/dev/char/1:3 rwm\n");
        bench.write("proc/77/cgroup", "0::/system.slice/docker-ab.scope\n");
        bench.write("proc/77/mountinfo", "2 1 0:5 /nvidia0 /dev/nvidia0 ro - devtmpfs udev rw\n");
        let both = task(json!({"cpus": "4-7", "words": "isolcpus", "partition": "isolated"}));
        let before = bench.snapshot();
        let refused = apply(&bench, &both);
        assert!(failure(&refused).starts_with("`systemctl daemon-reload` was not run"), "{refused:?}");
        assert_eq!(
            crate::tasks::testing::changed(&before, &bench.snapshot()),
            Vec::<std::path::PathBuf>::new()
        );
    }

    #[test]
    fn a_tree_without_cpusets_has_no_partitions() {
        let bench = bench();
        let isolated = task(json!({"cpus": "4-7", "partition": "isolated"}));
        bench.write("sys/fs/cgroup/cgroup.controllers", "hugetlb\n");
        let none = bench.run(&isolated, Mode::Predict);
        assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
        std::fs::remove_file(bench.path("sys/fs/cgroup/cgroup.controllers")).unwrap();
        let none = bench.run(&isolated, Mode::Predict);
        assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
    }
}

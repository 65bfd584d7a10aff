//! `hugepages`: pages of a fixed size on each NUMA node, now and at boot.
//!
//! Each node's own file is written, because a write to the file of all nodes follows the memory policy of the writer
//! (kernel, admin-guide/mm/hugetlbpage). Words of the command line and the mount are planned and done by their kinds.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    Disruption, FailureKind,
    cpus::CpuList,
    tasks::{HugePageSize, HugePages, HugePagesWhen, KernelCmdline, Mount, MountState},
};
use serde_json::{Map, Value, json};

use super::{
    kernel_cmdline,
    knobs::{self, Knob, Knobs},
    mount,
    numa_memory::{self, NODES, NumaMemory},
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    world::Effect,
};

/// Share of memory that stays for the system, and its bounds in KiB.
const MARGIN: (u64, u64, u64) = (32, 256 * 1024, 4 * 1024 * 1024);

/// Pages of a NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pages {
    all: u64,
    free: u64,
}

#[derive(Debug)]
pub struct State {
    knobs: Knobs,
    /// What is declared, by NUMA node.
    wanted: BTreeMap<u32, u32>,
    /// NUMA nodes that are declared and not there.
    absent: Vec<u32>,
    pages: BTreeMap<u32, Pages>,
    memory: BTreeMap<u32, NumaMemory>,
    /// Memory of all nodes and what of it is available, in KiB, as far as the kernel tells.
    all: (Option<u64>, Option<u64>),
    cmdline: Option<(KernelCmdline, kernel_cmdline::State)>,
    mount: Option<(Mount, mount::State)>,
    rebooted: bool,
}

pub enum Step {
    Knob(knobs::Step),
    Cmdline(Plan<kernel_cmdline::Step>),
    Mount(Plan<mount::Step>),
}

fn pages_folder(node: u32, size: HugePageSize) -> String {
    format!("{NODES}/node{node}/hugepages/hugepages-{}kB", size.kib())
}

fn number(node: &Node<'_>, path: &str) -> Result<Option<u64>, Trouble> {
    let Some(text) = knobs::assumed(node, path)? else { return Ok(None) };
    let parsed = text.parse().map_err(|_| Trouble::io(format!("{path} holds `{text}`, and no number")));
    parsed.map(Some)
}

/// Returns the NUMA nodes that have CPUs and memory: a GPU's memory is a node without CPUs on some machines.
fn usable_nodes(node: &Node<'_>) -> Result<Vec<u32>, Trouble> {
    let list = |name: &str| -> Result<Option<CpuList>, Trouble> {
        let path = format!("{NODES}/{name}");
        let text = knobs::value(node, &path)?;
        let parsed = text.map(|text| text.parse().map_err(|error| Trouble::io(format!("{path}: {error}"))));
        parsed.transpose()
    };
    let (Some(cpus), Some(memory)) = (list("has_cpu")?, list("has_memory")?) else {
        return Err(Trouble::NotApplicable(format!("the running kernel tells no NUMA nodes in {NODES}")));
    };
    Ok(cpus.common(&memory).iter().collect())
}

fn wanted(task: &HugePages, usable: &[u32]) -> Result<BTreeMap<u32, u32>, Trouble> {
    if usable.is_empty() {
        return Err(Trouble::io(format!("{NODES}/has_cpu and has_memory have no NUMA node in common")));
    }
    if let Some(each) = task.per_node {
        return Ok(usable.iter().map(|node| (*node, each)).collect());
    }
    if let Some(count) = task.count {
        let nodes = u32::try_from(usable.len()).unwrap_or(u32::MAX);
        let more = count % nodes;
        let share = |(at, node): (u32, &u32)| (*node, count / nodes + u32::from(at < more));
        return Ok((0..).zip(usable).map(share).collect());
    }
    let mut found = BTreeMap::new();
    for (name, count) in &task.nodes {
        let node: u32 = name.parse().map_err(|_| Trouble::invalid(format!("`{name}` is no NUMA node")))?;
        found.insert(node, *count);
    }
    Ok(found)
}

/// Returns why the kernel has no pages of this size.
fn missing(node: &Node<'_>, size: HugePageSize, of: u32) -> Trouble {
    if !node.roots.path(format!("{NODES}/node{of}")).is_dir() {
        return Trouble::NotApplicable(format!("there is no NUMA node {of} here"));
    }
    if !node.roots.path(format!("{NODES}/node{of}/hugepages")).is_dir() {
        return Trouble::NotApplicable("the running kernel has no hugetlb pages".to_owned());
    }
    Trouble::NotApplicable(format!(
        "the processors or the kernel of this node have no pages of {size}; x86 processors with them have the flag pdpe1gb \
         in /proc/cpuinfo, which a hypervisor may hide"
    ))
}

impl NodeKind for HugePages {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let mut wanted = wanted(self, &usable_nodes(node)?)?;
        let mut absent: Vec<u32> = wanted.keys().copied().collect();
        absent.retain(|of| !node.roots.path(format!("{NODES}/node{of}")).is_dir());
        if absent.len() < wanted.len() {
            wanted.retain(|of, _| !absent.contains(of));
        }
        let (mut pages, mut memory, mut knobs) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for (&of, &count) in &wanted {
            let folder = pages_folder(of, self.size);
            let path = format!("{folder}/nr_hugepages");
            let all = number(node, &path)?.ok_or_else(|| missing(node, self.size, of))?;
            let free = number(node, &format!("{folder}/free_hugepages"))?.unwrap_or_default();
            pages.insert(of, Pages { all, free });
            memory.insert(of, numa_memory::read(node, of)?);
            let at_boot = self.when == HugePagesWhen::Runtime;
            knobs.push(Knob {
                name: format!("node{of}/hugepages-{}", self.size),
                paths: vec![path.clone()],
                lines: if at_boot { vec![path.clone()] } else { Vec::new() },
                gone: if at_boot { Vec::new() } else { vec![path] },
                wanted: count.to_string(),
                class: Disruption::Live,
                always: false,
                appears: false,
            });
        }
        let knobs = Knobs::observe(node, Self::FILE, NODES, knobs)?;
        let cmdline = match self.when {
            HugePagesWhen::Runtime => None,
            HugePagesWhen::Boot => {
                let counts: Vec<String> = wanted.iter().map(|(of, count)| format!("{of}:{count}")).collect();
                let add =
                    vec![format!("hugepagesz={}", self.size), format!("hugepages={}", counts.join(","))];
                let task = KernelCmdline { add, remove: Vec::new() };
                let state = task.observe(node)?;
                Some((task, state))
            }
        };
        let mount = match &self.mount {
            None => None,
            Some(path) => {
                let task = mount_task(path, self.size);
                let state = task.observe(node)?;
                Some((task, state))
            }
        };
        let all = (numa_memory::of_all(node, "MemTotal")?, numa_memory::of_all(node, "MemAvailable")?);
        Ok(State {
            knobs,
            wanted,
            absent,
            pages,
            memory,
            all,
            cmdline,
            mount,
            rebooted: node.world.rebooted(),
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        for of in &state.absent {
            plan.warnings
                .push(format!("node {of} of `nodes` is not applicable: there is no NUMA node {of} here"));
        }
        for (of, count) in &state.wanted {
            self.judge_node(state, *of, u64::from(*count))?;
        }
        self.judge_all(state)?;
        match &state.cmdline {
            None => state.knobs.plan(&mut plan, Step::Knob),
            Some((task, known)) => {
                let mut words = task.plan(known)?;
                let waits = !words.awaiting.is_empty();
                if !waits && !state.rebooted {
                    self.judge_boot(state)?;
                    state.knobs.plan(&mut plan, Step::Knob);
                } else {
                    state.knobs.plan_file(&mut plan, Step::Knob);
                }
                plan.take(&mut words);
                if !words.steps.is_empty() {
                    plan.steps.push(Step::Cmdline(words));
                }
            }
        }
        if let Some((task, known)) = &state.mount {
            let mut mounting = task.plan(known)?;
            plan.take(&mut mounting);
            if !mounting.steps.is_empty() {
                plan.steps.push(Step::Mount(mounting));
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let own: Vec<&knobs::Step> = plan
            .steps
            .iter()
            .filter_map(|step| if let Step::Knob(step) = step { Some(step) } else { None })
            .collect();
        let is_live = |step: &&knobs::Step| matches!(step, knobs::Step::Live { .. });
        let mut effects = match own.iter().any(is_live) {
            true => state.knobs.after(own),
            // A boot gives the pages.
            false => state.knobs.after_file(own),
        };
        for step in &plan.steps {
            match (step, &state.cmdline, &state.mount) {
                (Step::Cmdline(plan), Some((task, known)), _) => effects.extend(task.after(known, plan)),
                (Step::Mount(plan), _, Some((task, known))) => effects.extend(task.after(known, plan)),
                _ => {}
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
        // The file first: what memory in pieces does not give now, the next boot may.
        for step in &plan.steps {
            if let Step::Knob(step @ knobs::Step::File { .. }) = step {
                step.apply(node)?;
            }
        }
        for step in &plan.steps {
            match (step, &state.cmdline, &state.mount) {
                (Step::Knob(knobs::Step::Live { path, value, .. }), ..) => {
                    knobs::write(node, path, value)?;
                    self.check_given(node, path, value)?;
                }
                (Step::Cmdline(plan), Some((task, known)), _) => {
                    task.apply(node, known, plan)?;
                }
                (Step::Mount(plan), _, Some((task, known))) => {
                    task.apply(node, known, plan)?;
                }
                _ => {}
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let pages =
            |(of, pages): (&u32, &Pages)| (of.to_string(), json!({"pages": pages.all, "free": pages.free}));
        let nodes: Map<String, Value> = state.pages.iter().map(pages).collect();
        [("nodes".to_owned(), Value::Object(nodes))].into_iter().collect()
    }
}

fn mount_task(path: &str, size: HugePageSize) -> Mount {
    Mount {
        path: path.to_owned(),
        state: MountState::Mounted,
        src: Some("hugetlbfs".to_owned()),
        fstype: Some("hugetlbfs".to_owned()),
        opts: vec![format!("pagesize={size}")],
        dump: "0".to_owned(),
        passno: "0".to_owned(),
        fstab: "/etc/fstab".to_owned(),
        boot: true,
        backup: false,
    }
}

/// Returns what stays for the system of so much memory, in KiB.
fn margin(total_kib: u64) -> u64 {
    let (share, least, most) = MARGIN;
    (total_kib / share).clamp(least, most)
}

/// What a NUMA node can give.
trait Given {
    fn judge_node(&self, state: &State, of: u32, wanted: u64) -> Result<(), Trouble>;
    fn judge_all(&self, state: &State) -> Result<(), Trouble>;
    fn judge_boot(&self, state: &State) -> Result<(), Trouble>;
    fn check_given(&self, node: &Node<'_>, path: &str, wanted: &str) -> Result<(), Trouble>;
}

impl Given for HugePages {
    fn judge_node(&self, state: &State, of: u32, wanted: u64) -> Result<(), Trouble> {
        let size = u64::from(self.size.kib());
        let all = state.pages.get(&of).map_or(0, |pages| pages.all);
        let memory = state.memory.get(&of).cloned().unwrap_or_default();
        let margin = memory.total_kib.map_or(0, margin);
        // What is there already is judged by nobody; after an assumed boot it is not known.
        if let Some(total) = memory.total_kib.filter(|_| wanted > all || state.rebooted) {
            let others = memory.pages.iter().filter(|(kib, _)| **kib != size && !state.rebooted);
            let others: u64 = others.map(|(kib, count)| kib.saturating_mul(*count)).sum();
            let limit = total.saturating_sub(others).saturating_sub(margin);
            if wanted.saturating_mul(size) > limit {
                let others = match others {
                    0 => String::new(),
                    others => format!(" {} MiB are pages of other sizes,", others / 1024),
                };
                return Err(Trouble::invalid(format!(
                    "{wanted} pages of {} are {} MiB, and NUMA node {of} can give {} MiB: {} MiB in all,{others} and {} MiB \
                     stay for the system",
                    self.size,
                    wanted.saturating_mul(size) / 1024,
                    limit / 1024,
                    total / 1024,
                    margin / 1024
                )));
            }
        }
        let more = wanted.saturating_sub(all);
        let takes_now = self.when == HugePagesWhen::Runtime && !state.rebooted && more > 0;
        if let Some(available) = memory.available_kib.filter(|_| takes_now) {
            let limit = available.saturating_sub(margin);
            if more.saturating_mul(size) > limit {
                return Err(Trouble::failed(
                    FailureKind::Busy,
                    format!(
                        "{more} more pages of {} are {} MiB, and NUMA node {of} can give {} MiB: {} MiB are free or cache, and \
                         {} MiB stay for the system; stop programs there, ask for fewer, or take `when: boot`",
                        self.size,
                        more.saturating_mul(size) / 1024,
                        limit / 1024,
                        available / 1024,
                        margin / 1024
                    ),
                ));
            }
        }
        let pages = state.pages.get(&of).copied().unwrap_or_default();
        let used = pages.all.saturating_sub(pages.free);
        if self.when == HugePagesWhen::Runtime && !state.rebooted && wanted < used {
            return Err(Trouble::failed(
                FailureKind::Busy,
                format!(
                    "programs use {used} of the {} pages of {} on NUMA node {of}, so that they cannot become {wanted}; stop the \
                     programs first",
                    pages.all, self.size
                ),
            ));
        }
        Ok(())
    }

    /// What all NUMA nodes together can give now.
    fn judge_all(&self, state: &State) -> Result<(), Trouble> {
        let (Some(total), Some(available)) = state.all else { return Ok(()) };
        let more = |(of, count): (&u32, &u32)| {
            u64::from(*count).saturating_sub(state.pages.get(of).map_or(0, |pages| pages.all))
        };
        let pages: u64 = state.wanted.iter().map(more).sum();
        let more = pages.saturating_mul(u64::from(self.size.kib()));
        let limit = available.saturating_sub(margin(total));
        if self.when == HugePagesWhen::Boot || state.rebooted || more <= limit {
            return Ok(());
        }
        Err(Trouble::failed(
            FailureKind::Busy,
            format!(
                "{} MiB more in all, and the node can give {} MiB: {} MiB are available, and {} MiB stay for the system; stop \
                 programs, ask for fewer, or take `when: boot`",
                more / 1024,
                limit / 1024,
                available / 1024,
                margin(total) / 1024
            ),
        ))
    }

    /// What the boot has given by the command line.
    fn judge_boot(&self, state: &State) -> Result<(), Trouble> {
        for (of, count) in &state.wanted {
            let all = state.pages.get(of).map_or(0, |pages| pages.all);
            if all < u64::from(*count) {
                return Err(Trouble::failed(
                    FailureKind::Unconverged,
                    format!(
                        "the boot gave {all} of {count} pages of {} on NUMA node {of}: the node had no more memory in one piece, \
                         hugetlb_cma= is set, a program has returned them, or the kernel is older than Linux 5.16 and does not \
                         read hugepages=NODE:COUNT",
                        self.size
                    ),
                ));
            }
        }
        Ok(())
    }

    fn check_given(&self, node: &Node<'_>, path: &str, wanted: &str) -> Result<(), Trouble> {
        let now = knobs::value(node, path)?.unwrap_or_default();
        if now == wanted {
            return Ok(());
        }
        let next = match self.when {
            HugePagesWhen::Runtime => {
                "a reboot gives them before memory is in pieces, and `when: boot` most surely"
            }
            HugePagesWhen::Boot => "a reboot gives them again",
        };
        Err(Trouble::failed(
            FailureKind::Unconverged,
            format!(
                "the kernel gave {now} of {wanted} pages of {} ({path}): free memory is too little or in pieces; stopping \
                 programs frees some, {next}",
                self.size
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    fn pages(value: Value) -> HugePages {
        serde_json::from_value(value).unwrap()
    }

    /// Two sockets, and a GPU's memory as a node without CPUs.
    fn bench() -> Bench {
        let bench = Bench::new();
        let write = |name: &str, text: &str| bench.write(&format!("sys/devices/system/node/{name}"), text);
        write("has_cpu", "0-1\n");
        write("has_memory", "0-2\n");
        for node in 0..2 {
            write(&format!("node{node}/meminfo"), &format!("Node {node} MemTotal:       16777216 kB\n"));
            for size in [2048, 1_048_576] {
                for name in ["nr_hugepages", "free_hugepages", "surplus_hugepages"] {
                    write(&format!("node{node}/hugepages/hugepages-{size}kB/{name}"), "0\n");
                }
            }
        }
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n");
        bench.write("proc/cmdline", "quiet\n");
        bench
    }

    const NODE0: &str = "sys/devices/system/node/node0/hugepages/hugepages-1048576kB";

    #[test]
    fn pages_are_spread_over_nodes_with_cpus_and_set_at_boot() {
        let bench = bench();
        let task = pages(json!({"size": "2M", "count": 5}));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.snapshot(), before);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert_eq!(
            shown(&done),
            [
                "node0/hugepages-2M: 0 -> 3 (live)",
                "node1/hugepages-2M: 0 -> 2 (live)",
                "node0/hugepages-2M at boot: nothing -> 3 (live)",
                "node1/hugepages-2M at boot: nothing -> 2 (live)",
            ]
        );
        let settled = bench.snapshot();
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
        assert!(bench.read("etc/tmpfiles.d/gpufleet-hugepages.conf").contains(
            "w /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages - - - - 2\n"
        ));
    }

    #[test]
    fn fewer_pages_than_asked_for_are_a_failure_with_the_number() {
        let bench = bench();
        let task = pages(json!({"size": "1G", "nodes": {"0": 8}}));
        bench.write(&format!("{NODE0}/nr_hugepages"), "3\n");
        let given = bench.node(|node| task.check_given(node, &format!("/{NODE0}/nr_hugepages"), "8"));
        let Err(Trouble::Failed { kind: FailureKind::Unconverged, message }) = given else {
            panic!("{given:?}")
        };
        assert!(message.starts_with("the kernel gave 3 of 8 pages of 1G"), "{message}");
    }

    #[test]
    fn what_a_node_cannot_give_is_refused_before_anything_is_written() {
        let bench = bench();
        let more = bench.run(&pages(json!({"size": "1G", "per_node": 17})), Mode::Predict);
        assert_eq!(
            failure(&more),
            "17 pages of 1G are 17408 MiB, and NUMA node 0 can give 15872 MiB: 16384 MiB in all, and 512 MiB stay for the system"
        );
        bench.write(&format!("{NODE0}/nr_hugepages"), "8\n");
        bench.write(&format!("{NODE0}/free_hugepages"), "2\n");
        let used = bench.run(&pages(json!({"size": "1G", "per_node": 4})), Mode::Predict);
        assert!(failure(&used).starts_with("programs use 6 of the 8 pages of 1G on NUMA node 0"), "{used:?}");
        let none = bench.run(&pages(json!({"size": "1G", "nodes": {"7": 4}})), Mode::Predict);
        assert!(
            matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains("no NUMA node 7"))
        );
    }

    #[test]
    fn a_node_that_is_not_there_hides_no_other() {
        let bench = bench();
        let task = pages(json!({"size": "1G", "nodes": {"0": 2, "7": 4}}));
        let done = bench.run(&task, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!(done.warnings, ["node 7 of `nodes` is not applicable: there is no NUMA node 7 here"]);
        assert_eq!(bench.read(&format!("{NODE0}/nr_hugepages")), "2\n");
    }

    #[test]
    fn a_kernel_without_such_pages_is_not_applicable() {
        let bench = bench();
        std::fs::remove_dir_all(bench.path(NODE0)).unwrap();
        let none = bench.run(&pages(json!({"size": "1G", "per_node": 0})), Mode::Predict);
        assert!(
            matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains("pdpe1gb")),
            "{none:?}"
        );
    }

    #[test]
    fn at_boot_the_kernel_is_asked_by_ordered_words() {
        let bench = bench();
        let task = pages(json!({"size": "1G", "per_node": 8, "when": "boot"}));
        let done = bench.run(&task, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!(done.awaiting.len(), 1, "{done:?}");
        let grub = bench.read("etc/default/grub");
        assert!(grub.contains("hugepagesz=1G hugepages=0:8,1:8"), "{grub}");
        assert_eq!(bench.read(&format!("{NODE0}/nr_hugepages")), "0\n", "only the boot gives them");
        let again = bench.run(&task, Mode::Apply);
        assert_eq!((again.status, again.awaiting.len()), (OpStatus::Ok, 1));
        bench.write("proc/cmdline", "quiet hugepagesz=1G hugepages=0:8,1:8\n");
        let fewer = bench.run(&task, Mode::Predict);
        assert!(failure(&fewer).starts_with("the boot gave 0 of 8 pages of 1G on NUMA node 0"), "{fewer:?}");
        for node in 0..2 {
            bench.write(
                &format!("sys/devices/system/node/node{node}/hugepages/hugepages-1048576kB/nr_hugepages"),
                "8\n",
            );
        }
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_line_of_another_form_goes() {
        let bench = bench();
        let file = "etc/tmpfiles.d/gpufleet-hugepages.conf";
        for size in ["2M", "1G"] {
            assert_eq!(
                bench.run(&pages(json!({"size": size, "per_node": 2})), Mode::Apply).status,
                OpStatus::Changed
            );
        }
        let boot = pages(json!({"size": "1G", "per_node": 8, "when": "boot"}));
        let predicted = bench.run(&boot, Mode::Predict);
        assert_eq!(bench.run(&boot, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        let lines = shown(&predicted);
        let gone = [
            "node0/hugepages-1G at boot: 2 -> not set (live)",
            "node1/hugepages-1G at boot: 2 -> not set (live)",
        ];
        assert_eq!(lines[..2], gone, "{lines:?}");
        let done = bench.run(&boot, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert!(!bench.read(file).contains("1048576kB") && bench.read(file).contains("2048kB"));
        assert_eq!(bench.read(&format!("{NODE0}/nr_hugepages")), "2\n", "only the boot gives them");
        assert_eq!(bench.run(&boot, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn what_a_node_does_not_have_is_refused_with_the_numbers() {
        let bench = bench();
        let node = |of: u32, free: u64, cache: u64| {
            let folder = format!("sys/devices/system/node/node{of}");
            bench.write(&format!("{folder}/meminfo"), &format!(
                "Node {of} MemTotal:       16777216 kB\nNode {of} MemFree:        {} kB\nNode {of} Active(file):   {} kB\n\
                 Node {of} Inactive(file): 0 kB\nNode {of} SReclaimable:   0 kB\n", free << 20, cache << 20));
        };
        node(0, 6, 2);
        node(1, 12, 0);
        bench.write("proc/meminfo", "MemTotal:       33554432 kB\nMemAvailable:   19922944 kB\n");
        let before = bench.snapshot();
        let told = |value: Value| {
            let done = bench.run(&pages(value), Mode::Apply);
            assert_eq!(bench.snapshot(), before);
            failure(&done).to_owned()
        };
        let run_time = told(json!({"size": "1G", "per_node": 8}));
        assert_eq!(
            run_time,
            "8 more pages of 1G are 8192 MiB, and NUMA node 0 can give 7680 MiB: 8192 MiB are free or cache, and 512 MiB stay \
             for the system; stop programs there, ask for fewer, or take `when: boot`"
        );
        let both = told(json!({"size": "2M", "nodes": {"0": 3800, "1": 5800}}));
        assert!(
            both.starts_with(
                "19200 MiB more in all, and the node can give 18432 MiB: 19456 MiB are available"
            ),
            "{both}"
        );
        let all = told(json!({"size": "1G", "nodes": {"1": 16}, "when": "boot"}));
        assert_eq!(
            all,
            "16 pages of 1G are 16384 MiB, and NUMA node 1 can give 15872 MiB: 16384 MiB in all, and 512 MiB stay for the system"
        );
        // Pages of another size are taken too.
        bench.write("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "1024\n");
        let others =
            bench.run(&pages(json!({"size": "1G", "nodes": {"1": 14}, "when": "boot"})), Mode::Predict);
        assert!(
            failure(&others).contains(
                "can give 13824 MiB: 16384 MiB in all, 2048 MiB are pages of other sizes, and 512 MiB stay"
            ),
            "{others:?}"
        );
        // What is there already is nobody's fault.
        bench.write(&format!("{NODE0}/nr_hugepages"), "16\n");
        bench.write(&format!("{NODE0}/free_hugepages"), "16\n");
        node(0, 0, 0);
        let there = bench.run(&pages(json!({"size": "1G", "nodes": {"0": 16}})), Mode::Apply);
        assert_eq!(there.status, OpStatus::Changed, "{there:?}");
    }

    #[test]
    fn a_file_system_for_them_is_mounted_by_the_kind_that_mounts() {
        let bench = bench();
        bench.write("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n");
        bench.write("etc/fstab", "/dev/sda1 / ext4 defaults 0 1\n");
        bench.script("usr/bin/mount", "#!/bin/sh\nexit 0\n");
        let task = pages(json!({"size": "1G", "per_node": 0, "mount": "/dev/hugepages1G"}));
        let planned = bench.run(&task, Mode::Predict);
        assert!(shown(&planned).iter().any(|line| line.contains("/dev/hugepages1G")), "{planned:?}");
    }
}

//! Sample event streams, for the tests of reports and screens.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    Awaiting, Change, Disruption, Property, Subject, Unit,
    change::{MigInstances, MigLayout, Value},
    facts::{Facts, GpuFacts, GpuSystem, GpuSystemState, MigInstance, OsFacts},
    message::{GpuClient, IdleReport, IdleVerdict},
};
use jiff::Timestamp;

use crate::event::{
    DomainShape, DurationOrigin, Event, Level, NodeOutcome, NodeState, OpId, OutagePart, Phase, PlayStarted,
    PolicyShape, Position, RecapCounts, RunFinished, RunStarted, TaskReport, TaskStatus, Verb, WaveShape,
    What, WorstCase, WorstPart,
};
use crate::index::PlayIndex;

/// Builds a stream with one second between events.
pub(crate) struct Stream {
    pub(crate) events: Vec<Event>,
    now: Timestamp,
    /// The counts of each host's reports, and whether it rebooted.
    counts: BTreeMap<String, (RecapCounts, bool)>,
}

impl Stream {
    pub(crate) fn new() -> Self {
        Self { events: Vec::new(), now: "2026-11-21T09:00:00Z".parse().unwrap(), counts: BTreeMap::new() }
    }

    pub(crate) fn push(&mut self, what: What) -> &mut Self {
        match &what {
            What::TaskFinished { host, report } => {
                self.counts.entry(host.clone()).or_default().0.count(report);
            }
            What::RebootIssued { host, .. } => self.counts.entry(host.clone()).or_default().1 = true,
            _ => {}
        }
        self.events.push(Event { seq: self.events.len() as u64, at: self.now, what });
        self
    }

    pub(crate) fn wait_ms(&mut self, ms: i64) -> &mut Self {
        self.now += jiff::SignedDuration::from_millis(ms);
        self
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn started(&mut self, verb: Verb, hosts: &[String]) -> &mut Self {
        let word = verb.as_str();
        self.push(What::RunStarted(RunStarted {
            gpufleet: "0.1.0".to_owned(),
            playbooks: vec!["playbooks/bringup.yaml".to_owned()],
            inventories: vec!["inventory/".to_owned()],
            hosts: hosts.to_vec(),
            command_line: ["gpufleet", word, "playbooks/bringup.yaml", "-i", "inventory/"]
                .map(str::to_owned)
                .to_vec(),
            digest: "6f1c".to_owned(),
            ..RunStarted::of("01JD8Q4T9X", verb)
        }))
    }

    pub(crate) fn play(&mut self, hosts: &[String], waves: &[(&str, usize)]) -> &mut Self {
        let mut rest = hosts;
        let mut shapes = Vec::new();
        for (label, size) in waves {
            let (now, later) = rest.split_at((*size).min(rest.len()));
            shapes.push(WaveShape { label: (*label).to_owned(), hosts: now.to_vec(), aside: false });
            rest = later;
        }
        self.push(What::PlayStarted(PlayStarted {
            play: PlayIndex(0),
            name: "Bring up training nodes".to_owned(),
            hosts: hosts.to_vec(),
            waves: shapes,
            max_unavailable: 1,
            policy: None,
            work: None,
        }))
    }

    pub(crate) fn facts(&mut self, host: &str, facts: Facts) -> &mut Self {
        self.push(What::Connected { host: host.to_owned(), pushed: false, ms: 41, boot_id: None });
        self.push(What::FactsRead { host: host.to_owned(), facts: Box::new(facts) })
    }

    pub(crate) fn state(&mut self, host: &str, state: NodeState, detail: Option<&str>) -> &mut Self {
        self.push(What::NodeState { host: host.to_owned(), state, detail: detail.map(str::to_owned) })
    }

    pub(crate) fn task(&mut self, host: &str, report: TaskReport) -> &mut Self {
        self.push(What::TaskFinished { host: host.to_owned(), report })
    }

    /// Ends a node with the counts of its reports.
    pub(crate) fn end(&mut self, host: &str, state: NodeState, message: Option<&str>) -> &mut Self {
        let (mut counts, rebooted) = self.counts.get(host).copied().unwrap_or_default();
        if state == NodeState::Unreachable {
            counts.unreachable = 1;
        }
        self.push(What::NodeFinished {
            host: host.to_owned(),
            outcome: NodeOutcome {
                state,
                message: message.map(str::to_owned),
                counts,
                seconds: 4,
                rebooted,
                out_of_service: false,
            },
        })
    }

    pub(crate) fn finished(&mut self, exit_code: u8, summary: &str) -> &mut Self {
        self.push(What::RunFinished(RunFinished {
            exit_code,
            summary: summary.to_owned(),
            out_of_service: Vec::new(),
            stopped: None,
            resumable: false,
        }))
    }
}

pub(crate) fn names(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("gpu{n:03}")).collect()
}

/// Returns a report of a task at a line of the playbook.
pub(crate) fn report(kind: &str, line: u32, status: TaskStatus) -> TaskReport {
    let op_id = OpId::new(PlayIndex(0), format!("tasks.{line}"), "gpu001");
    let position = Position { file: "playbooks/bringup.yaml".into(), line, column: 7 };
    TaskReport::new(op_id, kind, kind, position, status)
}

pub(crate) fn failed(kind: &str, line: u32, message: &str) -> TaskReport {
    TaskReport { message: Some(message.to_owned()), ..report(kind, line, TaskStatus::Failed) }
}

/// The value that a text stands for.
fn value(text: &str) -> Value {
    let layout = || {
        let (count, profile) = text.split_once("x ")?;
        let instances = MigInstances { profile: profile.to_owned(), count: count.parse().ok()?, start: None };
        Some(Value::from(MigLayout { instances: vec![instances], ..MigLayout::default() }))
    };
    let watts = || Some(Value::quantity(text.strip_suffix(" W")?.parse::<u32>().ok()?, Unit::Watts));
    match text {
        "enabled" | "disabled" => (text == "enabled").into(),
        text => watts().or_else(layout).unwrap_or_else(|| Value::parsed(text)),
    }
}

/// Returns a changed task with the same change on eight GPUs.
pub(crate) fn on_gpus(
    kind: &str,
    line: u32,
    what: &str,
    from: &str,
    to: &str,
    class: Disruption,
) -> TaskReport {
    let change = |index| {
        let gpu = Subject::Gpu { index, uuid: format!("GPU-{index}") };
        Change::new(gpu, Property::from(what.to_owned()), value(from), value(to), class)
    };
    TaskReport { changes: (0..8).map(change).collect(), ..report(kind, line, TaskStatus::Changed) }
}

pub(crate) fn swappiness(line: u32) -> TaskReport {
    let setting = Subject::kernel_setting("vm.swappiness");
    let change = Change::new(setting, Property::VALUE, value("60"), value("10"), Disruption::Live);
    TaskReport { changes: vec![change], ..report("sysctl", line, TaskStatus::Changed) }
}

pub(crate) fn facts(model: &str, mig: bool) -> Facts {
    let gpu = |index: u32| {
        let (memory, profile) = match model {
            "H200" => (143_771, "1g.18gb"),
            _ => (81_559, "1g.10gb"),
        };
        let layout = |start| MigInstance {
            profile: profile.to_owned(),
            start,
            size: 1,
            id: 7 + start,
            compute_instances: 1,
        };
        GpuFacts {
            index,
            uuid: format!("GPU-{index}"),
            pci: format!("0000:{:02x}:00.0", 0x19 + index),
            name: if model == "H200" { "NVIDIA H200".to_owned() } else { "NVIDIA H100 80GB HBM3".to_owned() },
            architecture: "Hopper".to_owned(),
            memory_mib: Some(memory),
            ecc_current: Some(true),
            ecc_pending: Some(true),
            mig_current: Some(mig),
            mig_pending: Some(mig),
            mig_layout: if mig { (0..7).map(layout).collect() } else { Vec::new() },
            persistence: Some(true),
            power_limit_mw: Some(700_000),
            power_default_mw: Some(700_000),
            compute_mode: Some("default".to_owned()),
            ..GpuFacts::default()
        }
    };
    Facts {
        hostname: "node".to_owned(),
        kernel: "6.8.0-79-generic".to_owned(),
        arch: "x86_64".to_owned(),
        os: OsFacts {
            id: "ubuntu".to_owned(),
            version: "24.04".to_owned(),
            pretty: "Ubuntu 24.04.3 LTS".to_owned(),
            like: vec!["debian".to_owned()],
            ..OsFacts::default()
        },
        cpus: 192,
        numa_nodes: 2,
        memory_mib: 2_063_000,
        init: "systemd".to_owned(),
        gpu: GpuSystem {
            state: GpuSystemState::Ok,
            driver_version: Some("580.159.04".to_owned()),
            module_version: Some("580.159.04".to_owned()),
            cuda_version: Some("13.0".to_owned()),
            pci_count: 8,
            gpus: (0..8).map(gpu).collect(),
        },
        ..Facts::default()
    }
}

/// Returns a policy with every setting, for the hosts of [`plan`].
pub(crate) fn policy() -> PolicyShape {
    let domain = |name: &str, hosts: std::ops::Range<u32>| DomainShape {
        name: name.to_owned(),
        hosts: hosts.map(|n| format!("gpu{n:03}")).collect(),
    };
    let part = |what, seconds, from| WorstPart { what, seconds, from };
    let drain = part(OutagePart::Drain, 7200, DurationOrigin::Declared);
    let case = |class, work| {
        let reboot =
            (class == Disruption::Reboot).then(|| part(OutagePart::Reboot, 1200, DurationOrigin::Default));
        WorstCase::new(class, [drain].into_iter().chain(reboot).chain([work]).collect())
    };
    let usual = part(OutagePart::Work, 600, DurationOrigin::Default);
    PolicyShape {
        failure_domain: Some("rack".to_owned()),
        max_per_domain: Some(1),
        domains: vec![domain("r1", 33..41), domain("r2", 41..48)],
        soak_s: 600,
        window: Some("Sat 02:00-06:00 Europe/Berlin".to_owned()),
        window_longest_s: Some(4 * 3600),
        drain: "slurm".to_owned(),
        drain_s: 7200,
        health_gate: ["gpu_count", "mig_layout", "ecc", "xid"].map(str::to_owned).to_vec(),
        worst_case: vec![
            case(Disruption::Clients, usual),
            case(Disruption::GpuReset, usual),
            case(Disruption::Reboot, usual),
        ],
    }
}

/// A `plan` of 16 nodes: reboots, live changes, a hung NVML and a command with unpredictable effect.
pub(crate) fn plan() -> Vec<Event> {
    let hosts: Vec<String> = (33..49).map(|n| format!("gpu{n:03}")).collect();
    let mut s = Stream::new();
    s.started(Verb::Plan, &hosts);
    s.play(&hosts, &[("canary", 2), ("10%", 1), ("25%", 4), ("25%", 4), ("25%", 4), ("25%", 1)]);
    s.wait_ms(1400);
    for (at, host) in hosts.iter().enumerate() {
        if at == 11 {
            let hung = GpuSystem {
                state: GpuSystemState::Hung { detail: "no answer in 10 s".to_owned() },
                pci_count: 8,
                ..GpuSystem::default()
            };
            s.facts(host, Facts { gpu: hung, ..facts("H100", false) });
            let why = "NVML did not answer in 10 s; the worker was killed".to_owned();
            s.task(host, TaskReport { message: Some(why), ..report("gpu_ecc", 12, TaskStatus::Unknown) });
            s.end(host, NodeState::Unknown, None);
            continue;
        }
        s.facts(host, facts(if at % 2 == 0 { "H100" } else { "H200" }, at == 8));
        if [0, 4, 8].contains(&at) {
            s.task(host, on_gpus("gpu_ecc", 12, "ECC", "disabled", "enabled", Disruption::Reboot));
            let mut cmdline = report("kernel_cmdline", 30, TaskStatus::Changed);
            let parameter = Subject::KernelCommandLine { parameter: "iommu".to_owned() };
            let (from, to) = (Value::Unknown, "iommu=pt");
            let change = Change::new(parameter, Property::VALUE, from, to, Disruption::Reboot);
            cmdline.changes = vec![change.with_note("current after the next boot")];
            s.task(host, cmdline);
        } else {
            s.task(host, report("gpu_ecc", 12, TaskStatus::Ok));
        }
        if at == 8 {
            let layout =
                on_gpus("gpu_mig", 14, "MIG layout", "7x 1g.10gb", "2x 3g.40gb", Disruption::Clients);
            s.task(host, layout);
        }
        if at < 10 {
            s.task(host, on_gpus("gpu_power", 18, "power limit", "700 W", "600 W", Disruption::Live));
            s.task(host, swappiness(24));
        }
        let message = Some("depends on the output of a command: may add live changes".to_owned());
        let tune = TaskReport {
            task: "tune fabric".to_owned(),
            message,
            ..report("shell", 41, TaskStatus::Possible)
        };
        s.task(host, tune);
        s.end(host, if at < 10 { NodeState::Drift } else { NodeState::Compliant }, None);
    }
    s.finished(2, "16 nodes read");
    s.events
}

/// A `run` on 8 nodes: one reboots, one fails, one is held, one is unreachable.
pub(crate) fn run() -> Vec<Event> {
    let hosts = names(8);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts);
    s.play(&hosts, &[("canary", 1), ("25%", 2), ("25%", 2), ("25%", 2), ("25%", 1)]);
    s.push(What::WaveStarted { play: PlayIndex(0), wave: 0, hosts: hosts[..1].to_vec() });
    for (at, host) in hosts.iter().enumerate() {
        s.wait_ms(500);
        if at == 6 {
            s.end(host, NodeState::Unreachable, Some("gpu007: no answer to SSH on 10.0.0.7:22 in 10 s"));
            continue;
        }
        s.facts(host, facts("H100", false));
        s.state(host, NodeState::Applying, None);
        match at {
            0 => {
                let mut ecc = on_gpus("gpu_ecc", 12, "ECC", "disabled", "enabled", Disruption::Reboot);
                let reason = |gpu| Awaiting {
                    activation: Disruption::Reboot,
                    reason: format!("GPU {gpu} ECC enabled is pending"),
                };
                ecc.awaiting = (0..8).map(reason).collect();
                s.task(host, ecc);
                s.state(host, NodeState::Rebooting, Some("waiting for SSH"));
                let why = vec!["ECC enabled is pending".to_owned()];
                s.push(What::RebootIssued {
                    host: host.clone(),
                    boot_id: "5c1f".to_owned(),
                    why,
                    deadline: None,
                });
                s.wait_ms(362_000);
                s.push(What::Rebooted { host: host.clone(), boot_id: "a07e".to_owned(), seconds: 362 });
                let again = TaskReport { phase: Phase::Verify, ..report("gpu_ecc", 12, TaskStatus::Ok) };
                s.task(host, again);
                let power = on_gpus("gpu_power", 18, "power limit", "700 W", "600 W", Disruption::Live);
                s.task(host, TaskReport { phase: Phase::Reassert, ..power });
                s.end(host, NodeState::Done, None);
            }
            3 => {
                s.task(host, report("gpu_ecc", 12, TaskStatus::Ok));
                s.task(host, failed("gpu_power", 18, "limit 900 W is above this GPU's maximum 700 W"));
                s.end(host, NodeState::Failed, None);
            }
            5 => {
                let client = GpuClient {
                    pid: 41_277,
                    command: "python3 train.py --epochs 40".to_owned(),
                    user: "alice".to_owned(),
                    gpus: vec![2],
                    unit: Some("slurmstepd.scope".to_owned()),
                };
                let reasons = vec!["process 41277 holds GPU 2".to_owned()];
                let idle = IdleReport { verdict: IdleVerdict::Busy, clients: vec![client], reasons };
                s.push(What::IdleChecked { host: host.clone(), report: idle });
                let mig = on_gpus("gpu_mig", 14, "MIG mode", "disabled", "enabled", Disruption::GpuReset);
                let message = Some("a process holds the GPUs".to_owned());
                s.task(host, TaskReport { status: TaskStatus::Held, message, ..mig });
                s.end(host, NodeState::Held, Some("a process holds the GPUs"));
            }
            1 | 2 => {
                s.task(host, on_gpus("gpu_power", 18, "power limit", "700 W", "600 W", Disruption::Live));
                s.end(host, NodeState::Done, None);
            }
            _ => {
                s.task(host, report("gpu_ecc", 12, TaskStatus::Ok));
                s.end(host, NodeState::Compliant, None);
            }
        }
    }
    s.push(What::Notice { level: Level::Warning, text: "1 node is held for a decision".to_owned() });
    s.finished(2, "5 of 8 nodes as declared, 1 failed, 1 held, 1 unreachable");
    s.events
}

/// An `audit` of a fleet in which a few in a hundred nodes are not as declared.
pub(crate) fn audit(count: usize) -> Vec<Event> {
    let hosts = names(count);
    let mut s = Stream::new();
    s.started(Verb::Audit, &hosts);
    s.play(&hosts, &[("100%", count)]);
    for (at, host) in hosts.iter().enumerate() {
        let mig = at % 10 == 7;
        let mut node_facts = facts(if at % 3 == 0 { "H200" } else { "H100" }, mig);
        let mut state = NodeState::Compliant;
        s.wait_ms(4);
        if at % 250 == 120 {
            s.end(host, NodeState::Unreachable, Some("no route to host"));
            continue;
        }
        if at % 180 == 44 {
            node_facts.gpu = GpuSystem {
                state: GpuSystemState::Hung { detail: "no answer in 10 s".to_owned() },
                pci_count: 8,
                ..GpuSystem::default()
            };
        }
        if at % 333 == 5 {
            node_facts.gpu.gpus.truncate(7);
        }
        s.facts(host, node_facts);
        s.task(host, report("gpu_ecc", 12, TaskStatus::Ok));
        if at % 180 == 44 {
            let message = Some("NVML did not answer in 10 s; the worker was killed".to_owned());
            s.task(host, TaskReport { message, ..report("gpu_power", 18, TaskStatus::Unknown) });
            s.end(host, NodeState::Unknown, None);
            continue;
        }
        if (100..111).contains(&at) || at == 2 {
            s.task(host, on_gpus("gpu_power", 18, "power limit", "700 W", "600 W", Disruption::Live));
            state = NodeState::Drift;
        }
        if at % 97 == 7 {
            let layout =
                on_gpus("gpu_mig", 14, "MIG layout", "7x 1g.10gb", "2x 3g.40gb", Disruption::Clients);
            s.task(host, layout);
            state = NodeState::Drift;
        }
        if at % 120 == 3 {
            s.task(host, on_gpus("gpu_ecc", 12, "ECC", "disabled", "enabled", Disruption::Reboot));
            s.task(host, swappiness(24));
            state = NodeState::Drift;
        }
        s.end(host, state, None);
    }
    s.finished(3, "not every node is as declared");
    s.events
}

//! What the page shows of one node.

use gpufleet_compliance::{Finding, advice::DRAIN_FIRST};
use gpufleet_protocol::{Certainty, Disruption, Property};
use serde::Serialize;

use super::{
    super::{
        Cause, ChangeGroup, NextAction, NodeFinding, NodeHealth, NodeModel, Reboot, Verdict, causes,
        digests::short,
        findings::findings_of,
        fold_changes, fold_gpus,
        gpus::{GpuGroup, gpu_groups},
        grouping::culprit,
        mig::{Block, blocks_of, layout_of},
        reasons,
        topology::Places,
    },
    seconds_text, time,
};
use crate::event::{NodeState, RecapCounts, TaskReport, TaskStatus, Verb};

#[derive(Debug, Serialize)]
pub(super) struct Node {
    name: String,
    state: NodeState,
    verdict: Verdict,
    action: NextAction,
    hardware: String,
    /// When its facts were read, in words, and whether that was before this run changed it.
    read: String,
    /// `3 of 4 tasks judged`; `None` in a run.
    judged: Option<String>,
    /// `58 of 61 checks judged, score 70`; `None` where no check was asked for.
    checked: Option<String>,
    /// What the checks found.
    checks: Vec<CheckRow>,
    /// The full digests that the page shows shortened.
    digests: Vec<String>,
    /// Why it is in its state, in one line.
    brief: String,
    message: Option<String>,
    changes: Vec<Change>,
    not_made: Vec<Change>,
    awaiting: Vec<(String, &'static str)>,
    failed: Vec<Told>,
    unknown: Vec<Told>,
    possible: Vec<Told>,
    warnings: Vec<String>,
    clients: Vec<String>,
    reboots: Vec<String>,
    /// Events between the node and its scheduler, with the time of day.
    drains: Vec<(String, String)>,
    counts: RecapCounts,
    seconds: u64,
    out_of_service: bool,
    system: Vec<(&'static str, String)>,
    gpus: Vec<GpuGroup>,
    topology: Option<Places>,
    errors: Vec<String>,
}

/// What a check found on one subject.
#[derive(Debug, Serialize)]
struct CheckRow {
    verdict: Verdict,
    subject: String,
    text: String,
    /// The waiver that covers it, or the check that explains it.
    aside: Option<String>,
    /// To be pasted on the node; it only reads.
    command: Option<String>,
    /// For the controller: it ends what runs on the node.
    destructive: Option<String>,
    about: AboutCheck,
}

/// What every finding of a check has in common.
#[derive(Debug, Serialize)]
struct AboutCheck {
    id: String,
    title: String,
    severity: &'static str,
    why: String,
    remedy: String,
    /// What comes before a destructive command, where a finding may ask for one.
    first: Option<&'static str>,
}

impl CheckRow {
    fn of((finding, found): (&Finding, NodeFinding), node: &str) -> Self {
        let text = found.sentence();
        let waived = found.waived.map(|waiver| format!("waived: {waiver}"));
        Self {
            verdict: found.verdict,
            subject: found.subject,
            text,
            aside: waived.or_else(|| found.explained_by.map(|cause| format!("explained by {cause}"))),
            command: finding.reads(),
            destructive: finding.destructive(node),
            about: AboutCheck {
                id: found.control.id,
                title: found.control.title,
                severity: found.control.severity.word(),
                why: finding.check.why.clone(),
                remedy: finding.check.remediation.text.clone(),
                first: finding.check.destructive().next().map(|_| DRAIN_FIRST),
            },
        }
    }
}

#[derive(Debug, Serialize)]
struct Change {
    task: String,
    place: String,
    gpu: String,
    what: String,
    from: Option<String>,
    to: String,
    disruption: &'static str,
    possible: bool,
    note: Option<String>,
    diff: Option<String>,
    /// Whether the layouts before and after are known.
    drawn: bool,
    /// Whether the places after the change are declared.
    exact: bool,
    before: Vec<Block>,
    after: Vec<Block>,
}

#[derive(Debug, Serialize)]
struct Told {
    task: String,
    place: String,
    text: String,
}

/// The beginning of a held node's line.
const HELD: &str = "held: ";

/// Returns the messages of tasks without duplicates: a loop's item and its whole task say the same, and so do the GPUs
/// of a node. What the node's own line says is left out.
fn told<'a>(tasks: impl Iterator<Item = &'a TaskReport>, brief: &str) -> Vec<Told> {
    let mut all: Vec<(&str, String, Vec<&str>)> = Vec::new();
    for task in tasks {
        let (text, place) =
            (task.message.as_deref().unwrap_or("no reason was given"), task.position.to_string());
        match all.iter_mut().find(|(name, known, _)| *name == task.task && *known == place) {
            Some((_, _, texts)) => texts.push(text),
            None => all.push((&task.task, place, vec![text])),
        }
    }
    let each = |(task, place, texts): (&str, String, Vec<&str>)| {
        let texts = fold_gpus(texts).into_iter().map(|text| Told {
            task: task.to_owned(),
            place: place.clone(),
            text: if says(brief, Some(task), &text) { String::new() } else { text },
        });
        texts.collect::<Vec<_>>()
    };
    all.into_iter().flat_map(each).collect()
}

/// Whether a node's own line says exactly this about this task.
fn says(brief: &str, task: Option<&str>, text: &str) -> bool {
    let said = brief.strip_prefix(HELD).unwrap_or(brief);
    let of_task = || said.strip_prefix(task?)?.strip_prefix(": ");
    said == text || of_task() == Some(text)
}

/// Returns why a node is in its state, in one line.
pub(super) fn brief(node: &NodeModel, verb: Verb) -> String {
    if let Some(Cause { task, text, .. }) = causes([node]).into_iter().next() {
        let text = match task {
            Some((task, _)) => format!("{task}: {text}"),
            None => text,
        };
        return if node.state == NodeState::Held { format!("{HELD}{text}") } else { text };
    }
    let gpu = node.facts.as_ref().map(|facts| &facts.gpu);
    if let Some(gpu) = gpu.filter(|gpu| !gpu.gpus.is_empty() && gpu.gpus.len() < gpu.pci_count as usize) {
        return format!("the driver shows {} of {} GPUs on the PCI bus", gpu.gpus.len(), gpu.pci_count);
    }
    if let Some(class) = node.disruption() {
        return reasons([node], class).join(", ").replace(" -> ", " → ");
    }
    if let Some(gap) = node.judged(verb).gap() {
        return gap;
    }
    if node.health.is_some()
        && let Some(worst) = findings_of([node], verb).iter().find(|found| found.finding.is_cause())
    {
        return worst.sentence();
    }
    let warning = node.tasks.iter().find_map(|task| task.warnings.first());
    match (warning, node.verdict(verb)) {
        (Some(warning), _) => warning.clone(),
        (None, Verdict::Ok | Verdict::Na) => String::new(),
        (None, _) => node.state.to_string(),
    }
}

impl Change {
    /// Converts all changes, those of GPUs first.
    fn all(groups: Vec<ChangeGroup>, node: &NodeModel, digests: &mut Vec<String>) -> Vec<Self> {
        let mut groups = groups;
        groups.sort_by_key(|group| (group.gpus.is_empty(), !group.kind.starts_with("gpu_")));
        groups.into_iter().map(|group| Self::of(group, node, digests)).collect()
    }

    fn of(group: ChangeGroup, node: &NodeModel, digests: &mut Vec<String>) -> Self {
        let gpu = node
            .facts
            .as_ref()
            .filter(|_| group.change.property == Property::MIG_LAYOUT)
            .and_then(|facts| facts.gpu.gpus.iter().find(|gpu| group.gpus.contains(&gpu.index)));
        let before = gpu.map_or_else(Vec::new, |gpu| blocks_of(&gpu.mig_layout));
        let layout = gpu.and_then(|gpu| layout_of(&group.change.to, gpu.memory_mib?, &before));
        Self {
            gpu: group.gpu_label(),
            drawn: layout.is_some(),
            exact: layout.as_ref().is_some_and(|layout| layout.exact),
            before,
            after: layout.map(|layout| layout.blocks).unwrap_or_default(),
            what: group.what(),
            task: group.task,
            place: group.position.to_string(),
            from: group.change.from_text().map(|text| short(&text, digests)),
            to: short(&group.change.to_text(), digests),
            disruption: group.change.disruption.as_str(),
            possible: group.change.certainty == Certainty::Possible,
            note: group.change.note,
            diff: group.change.diff,
        }
    }
}

impl Node {
    pub(super) fn of(node: &NodeModel, verb: Verb) -> Self {
        let verdict = node.verdict(verb);
        let mut digests = Vec::new();
        let brief = brief(node, verb);
        let in_status = |status: TaskStatus| told(node.tasks_in(status), &brief);
        // Left out if the line or a task says it already.
        let message = node.message().filter(|text| {
            let same = |task: &TaskReport| task.message.as_deref() == Some(*text);
            let task = culprit(node).map(|task| task.task.as_str());
            !says(&brief, task, text) && !node.tasks.iter().any(same)
        });
        let warnings = node.tasks.iter().flat_map(|task| task.warnings.iter().map(String::as_str));
        let awaiting = node.awaiting();
        let waits = |class| {
            let reasons =
                awaiting.iter().filter(|one| one.activation == class).map(|one| one.reason.as_str());
            fold_gpus(reasons).into_iter().map(|text| (text, class.as_str())).collect::<Vec<_>>()
        };
        let judged = node.judged(verb);
        let facts = node.facts.as_deref();
        let mut system = Vec::new();
        let mut errors = Vec::new();
        if let Some(facts) = facts {
            let driver = facts.gpu.driver_version.clone().or_else(|| facts.gpu.module_version.clone());
            let rows = [
                ("driver", driver.unwrap_or_else(|| "none".to_owned())),
                ("CUDA", facts.gpu.cuda_version.clone().unwrap_or_default()),
                ("OS", facts.os.pretty.clone()),
                ("kernel", facts.kernel.clone()),
                ("CPUs", if facts.cpus == 0 { String::new() } else { facts.cpus.to_string() }),
                (
                    "memory",
                    match facts.memory_mib {
                        0 => String::new(),
                        mib => format!("{} GiB", (mib + 512) / 1024),
                    },
                ),
            ];
            system.extend(rows.into_iter().filter(|(_, text)| !text.trim().is_empty()));
            errors.clone_from(&facts.errors);
        }
        let clients = node.idle.iter().flat_map(|idle| &idle.clients);
        let client = |client: &gpufleet_protocol::message::GpuClient| {
            let unit = client.unit.as_ref().map_or_else(String::new, |unit| format!(", {unit}"));
            format!("pid {} {} (user {}{unit})", client.pid, client.command, client.user)
        };
        let reboot = |reboot: &Reboot| {
            let why = fold_gpus(reboot.why.iter().map(String::as_str)).join(", ");
            let why = if why.is_empty() { "asked for".to_owned() } else { why };
            match &reboot.after {
                Some((boot, seconds)) => {
                    let boot = boot.split_once('-').map_or(boot.as_str(), |(first, _)| first);
                    format!("{why}; back after {} as boot {boot}", seconds_text(*seconds))
                }
                None => format!("{why}; has not come back"),
            }
        };
        Self {
            name: node.name.clone(),
            state: node.state,
            verdict,
            action: node.next_action(verb),
            hardware: node.hardware().unwrap_or_default(),
            read: match node.facts_are_old() {
                true => format!("{}, before this run changed the node", time(node.facts_at)),
                false => time(node.facts_at),
            },
            judged: (judged.tasks() > 0).then(|| judged.counts()),
            checked: node.health.as_ref().map(|health| {
                let coverage = &health.verdict.coverage;
                format!(
                    "{} of {} checks judged, score {}",
                    coverage.judged,
                    coverage.asked(),
                    health.verdict.score
                )
            }),
            checks: {
                let told = node.health.iter().flat_map(NodeHealth::told);
                let mut rows: Vec<CheckRow> = told.map(|it| CheckRow::of(it, &node.name)).collect();
                rows.sort_by_key(|row| (row.aside.is_some(), std::cmp::Reverse(row.verdict)));
                rows
            },
            message: message.map(str::to_owned),
            changes: Change::all(fold_changes(node.changes()), node, &mut digests),
            not_made: Change::all(fold_changes(node.changes_not_made()), node, &mut digests),
            awaiting: [Disruption::Reboot, Disruption::GpuReset, Disruption::Clients, Disruption::Live]
                .into_iter()
                .flat_map(waits)
                .collect(),
            failed: in_status(TaskStatus::Failed),
            unknown: in_status(TaskStatus::Unknown),
            possible: in_status(TaskStatus::Possible),
            warnings: fold_gpus(warnings),
            clients: clients.map(client).collect(),
            reboots: node.reboots.iter().map(reboot).collect(),
            drains: node
                .drains
                .iter()
                .map(|(at, step)| (at.strftime("%H:%M:%S").to_string(), step.to_string()))
                .collect(),
            counts: node.counts(),
            seconds: node.seconds(None),
            out_of_service: node.is_left_out(),
            system,
            gpus: facts.map(|facts| gpu_groups(&facts.gpu)).unwrap_or_default(),
            topology: node.topology.as_deref().map(Places::of),
            errors,
            brief: short(&brief, &mut digests),
            digests,
        }
    }
}

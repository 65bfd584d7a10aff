//! What the HTML page shows, made ready for its template: nothing is computed there.

use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;

use super::{
    Cause, ChangeGroup, NextAction, NodeModel, RunModel, Verdict, causes, exit_code, fold_changes,
    fold_names,
    gpus::{GpuGroup, gpu_groups},
    hardware_class,
    mig::{Block, blocks_of, layout_in},
    reasons,
};
use crate::event::{Level, NodeState, RecapCounts, TaskReport, TaskStatus, Verb};

#[derive(Debug, Serialize)]
pub(super) struct Page {
    title: String,
    verb: &'static str,
    writes: bool,
    run_id: String,
    gpufleet: String,
    command: String,
    started: String,
    finished: String,
    took: String,
    exit_code: u8,
    headline: String,
    all_good: bool,
    percent: String,
    summary: Option<String>,
    stopped: Option<String>,
    out_of_service: String,
    tiles: Vec<Tile>,
    rebooted: usize,
    changed: usize,
    notices: Vec<(Level, String)>,
    next: Vec<Next>,
    nodes: Vec<Node>,
}

#[derive(Debug, Serialize)]
struct Tile {
    verdict: Verdict,
    label: &'static str,
    count: usize,
    /// Share of the fleet in percent, for the bar.
    share: f64,
}

/// One thing to do, for the nodes that need it.
#[derive(Debug, Serialize)]
struct Next {
    action: NextAction,
    verdict: Verdict,
    count: usize,
    names: String,
    why: String,
    advice: &'static str,
}

#[derive(Debug, Serialize)]
struct Node {
    name: String,
    state: NodeState,
    verdict: Verdict,
    action: NextAction,
    hardware: String,
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
    /// What happened between it and its scheduler, with the time of day.
    drains: Vec<(String, String)>,
    counts: RecapCounts,
    seconds: u64,
    out_of_service: bool,
    system: Vec<(&'static str, String)>,
    gpus: Vec<GpuGroup>,
    errors: Vec<String>,
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
    /// Whether the places after are declared.
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

fn told(task: &TaskReport) -> Told {
    let text = task.message.clone().unwrap_or_else(|| "no reason was given".to_owned());
    Told { task: task.task.clone(), place: task.position.to_string(), text }
}

fn time(at: Option<Timestamp>) -> String {
    at.map_or_else(
        || "not known".to_owned(),
        |at| at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

const fn label(verdict: Verdict, verb: Verb) -> &'static str {
    match verdict {
        Verdict::Ok => "as declared",
        Verdict::Warn => "with a warning",
        Verdict::Drift if verb.writes() => "not yet as declared",
        Verdict::Drift => "drift",
        Verdict::Unknown => "unknown",
        Verdict::Fail => "failed",
        Verdict::Na => "not applicable",
    }
}

const fn advice(action: NextAction) -> &'static str {
    match action {
        NextAction::None => "",
        NextAction::Apply => "A run changes this while the nodes work.",
        NextAction::Reset => "A run changes this once the GPUs are idle.",
        NextAction::Reboot => {
            "A run reboots these nodes in waves, one at a time unless the playbook says more."
        }
        NextAction::Investigate => "",
    }
}

impl Page {
    pub(super) fn of(model: &RunModel) -> Self {
        let verb = model.verb();
        let run = model.run.as_ref();
        let total = model.nodes().len();
        let mut counts = [0_usize; Verdict::WORST_FIRST.len()];
        let mut nodes: Vec<Node> = Vec::with_capacity(total);
        for node in model.nodes() {
            let verdict = node.verdict(verb);
            if let Some(at) = Verdict::WORST_FIRST.iter().position(|known| *known == verdict) {
                counts[at] += 1;
            }
            nodes.push(Node::of(node, verb));
        }
        // Why: a stable sort keeps the inventory's order within a verdict.
        nodes.sort_by_key(|node| std::cmp::Reverse(node.verdict));
        let tiles: Vec<Tile> = Verdict::WORST_FIRST
            .into_iter()
            .zip(counts)
            .map(|(verdict, count)| Tile {
                verdict,
                label: label(verdict, verb),
                count,
                share: if total == 0 { 0.0 } else { count as f64 * 100.0 / total as f64 },
            })
            .collect();
        let is_good = |verdict| matches!(verdict, Verdict::Ok | Verdict::Warn | Verdict::Na);
        let good: usize = tiles.iter().filter(|tile| is_good(tile.verdict)).map(|tile| tile.count).sum();
        // Why: rounded down, so that 100 % means all of them.
        let tenths = (good * 1000).checked_div(total).unwrap_or(0);
        let plays: Vec<&str> = model.plays.iter().map(|play| play.name.as_str()).collect();
        Self {
            title: if plays.is_empty() { "gpufleet".to_owned() } else { plays.join(", ") },
            verb: match verb {
                Verb::Run => "run",
                Verb::Plan => "plan",
                Verb::Audit => "audit",
            },
            writes: verb.writes(),
            run_id: model.run_id().to_owned(),
            gpufleet: run.map_or_else(String::new, |run| run.gpufleet.clone()),
            command: run.map_or_else(String::new, |run| shell_words::join(&run.command_line)),
            started: time(model.started),
            finished: model.finished.map_or_else(|| "not finished".to_owned(), |at| time(Some(at))),
            took: seconds_text(super::seconds_between(model.started, model.finished.or(model.latest))),
            exit_code: exit_code(model),
            headline: match (good == total, total) {
                (_, 0) => "No node was selected".to_owned(),
                (true, 1) => "The node is as declared".to_owned(),
                (true, _) => format!("All {total} nodes are as declared"),
                (false, _) => format!("{good} of {total} nodes are as declared"),
            },
            all_good: good == total,
            percent: format!("{}.{}", tenths / 10, tenths % 10),
            summary: model.finish.as_ref().map(|finish| finish.summary.clone()),
            stopped: model.stopped().map(str::to_owned),
            out_of_service: fold_names(model.out_of_service()),
            tiles,
            rebooted: model.nodes().iter().filter(|node| !node.reboots.is_empty()).count(),
            changed: model.nodes().iter().filter(|node| node.changes().next().is_some()).count(),
            notices: model.notices.iter().map(|notice| (notice.level, notice.text.clone())).collect(),
            next: next(model, verb),
            nodes,
        }
    }
}

fn seconds_text(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

/// Why a node is as it is, in one line.
fn brief(node: &NodeModel, verb: Verb) -> String {
    if let Some(Cause { task, text, .. }) = causes([node]).into_iter().next() {
        let text = match task {
            Some((task, _)) => format!("{task}: {text}"),
            None => text,
        };
        return if node.state == NodeState::Held { format!("held: {text}") } else { text };
    }
    let gpu = node.facts.as_ref().map(|facts| &facts.gpu);
    if let Some(gpu) = gpu.filter(|gpu| !gpu.gpus.is_empty() && gpu.gpus.len() < gpu.pci_count as usize) {
        return format!("the driver shows {} of {} GPUs on the PCI bus", gpu.gpus.len(), gpu.pci_count);
    }
    if let Some(class) = node.disruption() {
        return reasons([node], class).join(", ").replace(" -> ", " → ");
    }
    let warning = node.tasks.iter().find_map(|task| task.warnings.first());
    match (warning, node.verdict(verb)) {
        (Some(warning), _) => warning.clone(),
        (None, Verdict::Ok | Verdict::Na) => String::new(),
        (None, _) => node.state.to_string(),
    }
}

/// Nodes that are not as declared, by what to do and why.
fn next(model: &RunModel, verb: Verb) -> Vec<Next> {
    let mut groups: Vec<(Verdict, NextAction, String, Vec<&str>)> = Vec::new();
    for node in model.nodes() {
        let (verdict, action) = (node.verdict(verb), node.next_action(verb));
        if action == NextAction::None {
            continue;
        }
        let why = brief(node, verb);
        match groups.iter_mut().find(|(v, a, w, _)| (*v, *a) == (verdict, action) && *w == why) {
            Some((_, _, _, hosts)) => hosts.push(&node.name),
            None => groups.push((verdict, action, why, vec![&node.name])),
        }
    }
    groups.sort_by_key(|(verdict, _, _, hosts)| std::cmp::Reverse((*verdict, hosts.len())));
    groups
        .into_iter()
        .map(|(verdict, action, why, hosts)| Next {
            action,
            verdict,
            count: hosts.len(),
            names: fold_names(&hosts),
            why,
            advice: advice(action),
        })
        .collect()
}

impl Change {
    fn of(group: ChangeGroup, node: &NodeModel) -> Self {
        let gpu = node
            .facts
            .as_ref()
            .filter(|_| group.what.to_ascii_lowercase().contains("layout"))
            .and_then(|facts| facts.gpu.gpus.iter().find(|gpu| group.gpus.contains(&gpu.index)));
        let before = gpu.map_or_else(Vec::new, |gpu| blocks_of(&gpu.mig_layout));
        let layout = gpu.and_then(|gpu| layout_in(&group.to, gpu.memory_mib?, &before));
        Self {
            gpu: group.gpu_label(),
            drawn: layout.is_some(),
            exact: layout.as_ref().is_some_and(|layout| layout.exact),
            before,
            after: layout.map(|layout| layout.blocks).unwrap_or_default(),
            what: group.what(),
            task: group.task,
            place: group.position.to_string(),
            from: group.from,
            to: group.to,
            disruption: group.disruption.as_str(),
            possible: group.certainty == gpufleet_protocol::Certainty::Possible,
            note: group.note,
            diff: group.diff,
        }
    }
}

impl Node {
    fn of(node: &NodeModel, verb: Verb) -> Self {
        let in_status = |status: TaskStatus| node.tasks_in(status).map(told).collect::<Vec<_>>();
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
        let reboot = |reboot: &super::Reboot| {
            let why = if reboot.why.is_empty() { "asked for".to_owned() } else { reboot.why.join(", ") };
            match &reboot.after {
                Some((boot, seconds)) => {
                    format!("{why}; back after {} as boot {boot}", seconds_text(*seconds))
                }
                None => format!("{why}; has not come back"),
            }
        };
        Self {
            name: node.name.clone(),
            state: node.state,
            verdict: node.verdict(verb),
            action: node.next_action(verb),
            hardware: facts.and_then(hardware_class).unwrap_or_default(),
            brief: brief(node, verb),
            message: node.message().map(str::to_owned),
            changes: fold_changes(node.changes()).into_iter().map(|group| Change::of(group, node)).collect(),
            not_made: fold_changes(node.changes_not_made())
                .into_iter()
                .map(|group| Change::of(group, node))
                .collect(),
            awaiting: node
                .awaiting()
                .iter()
                .map(|one| (one.reason.clone(), one.activation.as_str()))
                .collect(),
            failed: in_status(TaskStatus::Failed),
            unknown: in_status(TaskStatus::Unknown),
            possible: in_status(TaskStatus::Possible),
            warnings: node.tasks.iter().flat_map(|task| task.warnings.iter().cloned()).collect(),
            clients: clients.map(client).collect(),
            reboots: node.reboots.iter().map(reboot).collect(),
            drains: node
                .drains
                .iter()
                .map(|(at, step)| (at.strftime("%H:%M:%S").to_string(), step.to_string()))
                .collect(),
            counts: node.counts(),
            seconds: node.seconds(None),
            out_of_service: node.outcome.as_ref().is_some_and(|outcome| outcome.out_of_service),
            system,
            gpus: facts.map(|facts| gpu_groups(&facts.gpu)).unwrap_or_default(),
            errors,
        }
    }
}

//! The data of the HTML page, ready for its template, which computes nothing.

use gpufleet_compliance::Finding;
use gpufleet_protocol::{Certainty, Disruption, Property};
use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;

use super::{
    Cause, ChangeGroup, NextAction, NodeFinding, NodeModel, RunModel, Standing, Verdict, causes,
    digests::short,
    exit_code,
    findings::findings_of,
    fleet_findings, fold_changes, fold_gpus, fold_names,
    gpus::{GpuGroup, gpu_groups},
    grouping::culprit,
    mig::{Block, blocks_of, layout_of},
    reasons,
};
use crate::event::{Level, NOTHING_NEW, NodeState, RecapCounts, TaskReport, TaskStatus, Verb};

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
    /// A note for a run that is not over; `as_of` is the time of the page's data.
    not_over: Option<&'static str>,
    as_of: String,
    /// Hardware classes and their number of nodes, the most frequent first.
    hardware: Vec<(String, usize)>,
    /// Nodes that are unknown because something could not be read; `unjudged`: because not everything was judged.
    unread: usize,
    unjudged: usize,
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
    /// Start and length of its part of the bar, in percent.
    from: f64,
    share: f64,
}

/// An action, and the nodes that need it.
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
    /// Rank of the verdict, the worst first.
    rank: usize,
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
    errors: Vec<String>,
}

/// What a check found on one subject.
#[derive(Debug, Serialize)]
struct CheckRow {
    verdict: Verdict,
    id: String,
    title: String,
    severity: &'static str,
    subject: String,
    text: String,
    /// The waiver that covers it, or the check that explains it.
    aside: Option<String>,
    why: String,
    remedy: String,
    /// To be pasted on the node.
    command: Option<String>,
}

impl CheckRow {
    fn of(finding: &Finding) -> Option<Self> {
        let found = NodeFinding::of_check(finding)?;
        let text = found.sentence();
        let waived = found.waived.map(|waiver| format!("waived: {waiver}"));
        Some(Self {
            verdict: found.verdict,
            id: found.control.id,
            title: found.control.title,
            severity: found.control.severity.word(),
            subject: found.subject,
            text,
            aside: waived.or_else(|| found.explained_by.map(|cause| format!("explained by {cause}"))),
            why: finding.check.why.clone(),
            remedy: finding.check.remediation.text.clone(),
            command: finding.command(),
        })
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
        NextAction::Drain => "The nodes should get no new work; then a person looks.",
        NextAction::Replace => "The nodes should get no new work; the vendor's field diagnostics come next.",
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
        // A stable sort keeps the inventory's order within a verdict.
        nodes.sort_by_key(|node| std::cmp::Reverse(node.verdict));
        let mut before = 0;
        let share = |count: usize| if total == 0 { 0.0 } else { count as f64 * 100.0 / total as f64 };
        let tiles: Vec<Tile> = Verdict::WORST_FIRST
            .into_iter()
            .zip(counts)
            .map(|(verdict, count)| {
                let from = share(before);
                before += count;
                Tile { verdict, label: label(verdict, verb), count, from, share: share(count) }
            })
            .collect();
        let standing = model.standing();
        let so_far = if standing == Standing::Finished { "" } else { " so far" };
        let unknown = || model.nodes().iter().filter(|node| node.verdict(verb) == Verdict::Unknown);
        let unjudged = unknown().filter(|node| is_unjudged(node, verb)).count();
        let unread = unknown().count() - unjudged;
        let good = model.nodes().iter().filter(|node| node.is_compliant(verb)).count();
        let good_word = if model.is_audit_of_checks() { "compliant" } else { "as declared" };
        // Rounded down, so that 100 % means all of them.
        let tenths = (good * 1000).checked_div(total).unwrap_or(0);
        let plays: Vec<&str> = model.plays.iter().map(|play| play.name.as_str()).collect();
        Self {
            title: if plays.is_empty() { "gpufleet".to_owned() } else { plays.join(", ") },
            verb: verb.as_str(),
            writes: verb.writes(),
            run_id: model.run_id().to_owned(),
            gpufleet: run.map_or_else(String::new, |run| run.gpufleet.clone()),
            command: run.map_or_else(String::new, |run| crate::visible::command_line(&run.command_line)),
            started: time(model.started),
            finished: model.finished.map_or_else(|| standing.text().to_owned(), |at| time(Some(at))),
            took: seconds_text(super::seconds_between(model.started, model.finished.or(model.latest))),
            exit_code: exit_code(model),
            headline: match (good == total, total) {
                (_, 0) => "No node was selected".to_owned(),
                (true, 1) => format!("The node is {good_word}{so_far}"),
                (true, _) => format!("All {total} nodes are {good_word}{so_far}"),
                (false, _) => format!("{good} of {total} nodes are {good_word}{so_far}"),
            },
            not_over: (standing != Standing::Finished).then(|| standing.text()),
            as_of: time(model.latest),
            hardware: hardware(model),
            unread,
            unjudged,
            percent: format!("{}.{}", tenths / 10, tenths % 10),
            summary: model.finish.as_ref().map(|finish| finish.summary.clone()),
            stopped: model.stopped().map(str::to_owned),
            out_of_service: fold_names(model.out_of_service()),
            tiles,
            rebooted: model.nodes().iter().filter(|node| !node.reboots.is_empty()).count(),
            changed: model.nodes().iter().filter(|node| node.changes().next().is_some()).count(),
            notices: notices(model),
            next: next(model, verb),
            nodes,
        }
    }
}

/// Whether the node is unknown only because not everything was judged.
fn is_unjudged(node: &NodeModel, verb: Verb) -> bool {
    let unread = node.tasks_in(TaskStatus::Unknown).next().is_some();
    !unread
        && matches!(node.state, NodeState::Compliant | NodeState::Unknown)
        && !node.judged(verb).is_whole()
}

fn hardware(model: &RunModel) -> Vec<(String, usize)> {
    let mut all: Vec<(String, usize)> = Vec::new();
    for node in model.nodes() {
        let Some(class) = node.hardware() else { continue };
        let what = match node.driver_version() {
            Some(driver) => format!("{class}, driver {driver}"),
            None => class,
        };
        match all.iter_mut().find(|(known, _)| *known == what) {
            Some((_, nodes)) => *nodes += 1,
            None => all.push((what, 1)),
        }
    }
    all.sort_by_key(|(_, nodes)| std::cmp::Reverse(*nodes));
    all.truncate(12);
    all
}

/// Returns the messages about the whole run without duplicates, and without those that repeat why it stopped.
fn notices(model: &RunModel) -> Vec<(Level, String)> {
    let mut all: Vec<(Level, String)> = Vec::new();
    for notice in &model.notices {
        let again =
            model.stopped().is_some_and(|stopped| notice.text.strip_suffix(NOTHING_NEW) == Some(stopped));
        if !again && !all.iter().any(|(_, text)| *text == notice.text) {
            all.push((notice.level, notice.text.clone()));
        }
    }
    all
}

fn seconds_text(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

/// Returns why a node is in its state, in one line.
fn brief(node: &NodeModel, verb: Verb) -> String {
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

/// Returns what an audit found, equal findings of several nodes as one.
fn causes_of_audit(model: &RunModel) -> Vec<Next> {
    let findings = fleet_findings(model).into_iter().filter(|found| found.finding.is_cause());
    findings
        .map(|found| {
            let hosts: Vec<&str> = found.nodes.iter().map(String::as_str).collect();
            let place = found.place().map(|place| format!(" ({place})")).unwrap_or_default();
            let text = found.sentence() + &place;
            Next {
                action: found.finding.action,
                verdict: found.finding.verdict,
                count: hosts.len(),
                names: fold_names(&hosts),
                why: short(text.trim(), &mut Vec::new()).replace(" -> ", " → "),
                advice: advice(found.finding.action),
            }
        })
        .collect()
}

/// Groups nodes that are not as declared by action and reason.
fn next(model: &RunModel, verb: Verb) -> Vec<Next> {
    if verb.info().judges {
        return causes_of_audit(model);
    }
    let mut groups: Vec<(Verdict, NextAction, String, Vec<&str>)> = Vec::new();
    for node in model.nodes() {
        let (verdict, action) = (node.verdict(verb), node.next_action(verb));
        if action == NextAction::None {
            continue;
        }
        let why = short(&brief(node, verb), &mut Vec::new());
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
    fn of(node: &NodeModel, verb: Verb) -> Self {
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
        let reboot = |reboot: &super::Reboot| {
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
            rank: Verdict::WORST_FIRST.iter().position(|known| *known == verdict).unwrap_or_default(),
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
                let findings = node.health.iter().flat_map(|health| &health.findings);
                let mut rows: Vec<CheckRow> = findings.filter_map(CheckRow::of).collect();
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
            out_of_service: node.outcome.as_ref().is_some_and(|outcome| outcome.out_of_service),
            system,
            gpus: facts.map(|facts| gpu_groups(&facts.gpu)).unwrap_or_default(),
            errors,
            brief: short(&brief, &mut digests),
            digests,
        }
    }
}

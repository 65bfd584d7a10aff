//! The JSON document of `--format json` and of the report beside the journal.
//!
//! Its shape is the same for `run`, `plan`, `audit` and `resume`; docs/schema/report.schema.json is generated from it.

use std::{borrow::Cow, collections::BTreeMap};

use gpufleet_compliance::{NodeVerdict, Scope, Severity, advice::DRAIN_FIRST};
use gpufleet_protocol::{Awaiting, Blocker, message::GpuClient};
use jiff::Timestamp;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{
    Control, NextAction, NodeFinding, NodeHealth, NodeModel, NodeResult, Provenance, RunModel, Standing,
    Totals, Verdict, exit_code,
};
use crate::event::{
    ChangeRecord, DrainStep, Event, Level, NodeState, PlayStarted, RecapCounts, TaskReport, TaskStatus, Verb,
};

/// Version of the document; it changes when a reader of the old version would misread the document.
///
/// Since 2 a change has its subject, property and typed values, where 1 had the texts `what`, `from` and `to`.
pub const DOCUMENT_FORMAT: u32 = 2;

/// The document of `--format json`, the same from run, plan, audit and resume, and report.json beside the journal.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "gpufleet report", deny_unknown_fields)]
struct Document<'a> {
    /// Version of this shape. A new number means that readers of the old one would misread it; new keys alone do not
    /// change it.
    format: u32,
    /// Version of gpufleet.
    gpufleet: Option<&'a str>,
    run_id: &'a str,
    verb: Verb,
    /// What the report rests on, by its digests.
    provenance: Option<Provenance<'a>>,
    playbooks: &'a [String],
    inventories: &'a [String],
    /// RFC 3339.
    #[schemars(with = "Option<String>")]
    started: Option<Timestamp>,
    /// RFC 3339; null where the run is not over.
    #[schemars(with = "Option<String>")]
    finished: Option<Timestamp>,
    /// Whether the run is over: what is said of one that is not is no result.
    standing: Standing,
    /// The moment of which all of it tells, RFC 3339; null before the first event.
    #[schemars(with = "Option<String>")]
    as_of: Option<Timestamp>,
    summary: Option<&'a str>,
    /// Why the run ended before its end.
    stopped: Option<&'a str>,
    /// Nodes that the run took out of service and did not bring back.
    out_of_service: Vec<String>,
    /// How many nodes are in each state.
    #[schemars(with = "BTreeMap<String, usize>")]
    states: Map<String, Value>,
    verdicts: Verdicts,
    /// How many nodes have each result; only `as_declared` says that nothing counts against them.
    #[schemars(with = "BTreeMap<String, usize>")]
    results: Map<String, Value>,
    /// How many nodes have nothing that counts against them.
    compliant: usize,
    /// The checks that the baseline asks of any node; empty where no checks were asked for. The controls of a playbook are its
    /// tasks.
    controls: Vec<ControlDocument<'a>>,
    plays: &'a [PlayStarted],
    notices: Vec<NoticeDocument<'a>>,
    /// Ansible's recap, by host.
    #[schemars(with = "BTreeMap<String, RecapCounts>")]
    stats: EachNode<'a, fn(&'a NodeModel, Verb) -> RecapCounts>,
    /// By host, in the order of the inventory.
    #[schemars(with = "BTreeMap<String, NodeDocument>")]
    nodes: EachNode<'a, fn(&'a NodeModel, Verb) -> NodeDocument<'a>>,
    /// What the run ended with; 6 where it is not over.
    exit_code: u8,
}

/// A map with an entry for each node, made when it is written: that of a large fleet would fill the memory.
#[derive(Debug)]
struct EachNode<'a, F> {
    model: &'a RunModel,
    entry: F,
}

impl<'a, T: Serialize, F: Fn(&'a NodeModel, Verb) -> T> Serialize for EachNode<'a, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let verb = self.model.verb();
        serializer.collect_map(self.model.nodes().iter().map(|node| (&node.name, (self.entry)(node, verb))))
    }
}

/// A check: what it asks, why, what to do, and what it reads.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "control", deny_unknown_fields)]
struct ControlDocument<'a> {
    id: &'a str,
    /// What holds where it is ok.
    title: &'a str,
    /// What is wrong where it is not.
    fault: &'a str,
    severity: Severity,
    /// What it judges: each node, each GPU, each file system, each port.
    scope: Scope,
    why: &'a str,
    remediation: &'a str,
    /// For the node, and only reads; `{gpu}` stands for the UUID of the GPU.
    command: Option<&'a str>,
    /// Commands for the controller that its findings may ask for, and that end what runs on the node.
    destructive: Vec<DestructiveDocument>,
    references: &'a [String],
    /// Where each signal that it reads comes from, by name.
    reads: BTreeMap<&'a str, Cow<'a, str>>,
}

/// A command that ends what runs on a node.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "destructive", deny_unknown_fields)]
struct DestructiveDocument {
    /// The `next_action` of the findings that ask for it; no other finding does.
    action: NextAction,
    /// What comes before it.
    first: &'static str,
    /// `NODE` stands for the name of the node, `UUID` for the UUID of the GPU.
    command: String,
}

/// How many nodes have each verdict.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Verdicts {
    fail: usize,
    unknown: usize,
    drift: usize,
    warn: usize,
    ok: usize,
    na: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "notice", deny_unknown_fields)]
struct NoticeDocument<'a> {
    #[schemars(with = "String")]
    at: Timestamp,
    level: Level,
    text: &'a str,
}

impl<'a> NoticeDocument<'a> {
    fn of(notice: &'a super::Notice) -> Self {
        Self { at: notice.at, level: notice.level, text: &notice.text }
    }
}

/// A task that failed, was held or is unknown.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "told", deny_unknown_fields)]
struct Told<'a> {
    task: &'a str,
    kind: &'a str,
    item: Option<&'a str>,
    /// The host that did it, where `delegate_to` names another one.
    delegated_to: Option<&'a str>,
    file: &'a str,
    line: u32,
    message: Option<&'a str>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "warning", deny_unknown_fields)]
struct Warning<'a> {
    task: &'a str,
    text: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "reboot", deny_unknown_fields)]
struct RebootDocument<'a> {
    why: &'a [String],
    boot_id_before: &'a str,
    boot_id_after: Option<&'a str>,
    seconds: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "drain", deny_unknown_fields)]
struct DrainDocument<'a> {
    #[schemars(with = "String")]
    at: Timestamp,
    /// Ready to show.
    text: String,
    drain: &'a DrainStep,
}

/// How much of what is declared a reading could judge.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "judged", deny_unknown_fields)]
struct JudgedDocument {
    /// Tasks that declare something and apply to the node.
    tasks: usize,
    /// Those of them that were judged.
    judged: usize,
}

/// One thing that keeps a node from being compliant.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "finding", deny_unknown_fields)]
struct FindingDocument {
    /// The id of a check, the place of a task (`site.yaml:24`), or `node`.
    control: String,
    /// What is wrong, whatever was read; the name of the task where it is one.
    title: String,
    severity: Severity,
    verdict: Verdict,
    next_action: NextAction,
    /// `GPU 3`, `/var`; empty for the node as a whole.
    subject: String,
    /// What was found, in one sentence.
    text: String,
    /// What was declared, or the limits, as far as it is compared with them: `power_w 600`.
    expected: Option<String>,
    /// What was read, by the name of the signal: `margin_c 4`.
    evidence: Vec<String>,
    /// The waiver that covers it: it does not count.
    waived: Option<String>,
    /// The check whose finding is its cause.
    explained_by: Option<String>,
}

impl From<NodeFinding> for FindingDocument {
    fn from(finding: NodeFinding) -> Self {
        let NodeFinding { control, verdict, action, subject, text, expected, evidence, waived, explained_by } =
            finding;
        let Control { id, title, severity } = control;
        let next_action = action;
        Self {
            control: id,
            title,
            severity,
            verdict,
            next_action,
            subject,
            text,
            expected,
            evidence,
            waived,
            explained_by,
        }
    }
}

/// What the checks of an audit come to on a node.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "checks", deny_unknown_fields)]
struct ChecksDocument {
    /// When the node was read, RFC 3339.
    #[schemars(with = "String")]
    read: Timestamp,
    verdict: Verdict,
    /// From 0 to 100: the points of the worst finding, at most the share of what was judged.
    score: u8,
    /// Judgements that were made, of those that apply to the node.
    judged: usize,
    applicable: usize,
    /// Judgements beside these whose readings this audit did not take (`--deep` takes them), or that compare with an
    /// earlier audit.
    not_yet: usize,
    /// Those of them that only need another audit to compare with.
    no_earlier: usize,
    not_judged: Vec<NotJudgedDocument>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "not_judged", deny_unknown_fields)]
struct NotJudgedDocument {
    check: String,
    subject: String,
    why: String,
}

impl From<&NodeHealth> for ChecksDocument {
    fn from(health: &NodeHealth) -> Self {
        let NodeVerdict { verdict, score, coverage, .. } = &health.verdict;
        let not_judged = coverage.not_judged.iter().map(|it| NotJudgedDocument {
            check: it.check.to_string(),
            subject: it.subject.label().to_owned(),
            why: it.why.to_string(),
        });
        Self {
            read: health.read,
            verdict: *verdict,
            score: *score,
            judged: coverage.judged,
            applicable: coverage.asked(),
            not_yet: coverage.not_yet,
            no_earlier: coverage.no_earlier,
            not_judged: not_judged.collect(),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "node", deny_unknown_fields)]
struct NodeDocument<'a> {
    state: NodeState,
    /// unknown never counts as compliant.
    verdict: Verdict,
    /// Whether it is as declared; a verdict `ok` alone does not say so of a node on which only commands ran.
    result: NodeResult,
    next_action: NextAction,
    /// Why, where that is not plain.
    message: Option<&'a str>,
    /// How much of what is declared was judged; null in a run, which leaves nothing to guess.
    judged: Option<JudgedDocument>,
    /// What the checks come to; null where none were asked for, or nothing was read.
    checks: Option<ChecksDocument>,
    /// What keeps it from being compliant, the worst first.
    findings: Vec<FindingDocument>,
    /// Such as `8x H100 80GB HBM3`; null where the GPUs were not read.
    hardware: Option<String>,
    /// When the facts were read, `hardware` among them; RFC 3339.
    #[schemars(with = "Option<String>")]
    facts_read: Option<Timestamp>,
    /// Whether this run changed or rebooted the node after they were read: they are no result of it.
    facts_before_changes: bool,
    /// Changes made (run) or found (plan, audit).
    changes: Vec<ChangeRecord>,
    /// Changes that are needed and were not made, because a person has to decide first.
    not_made: Vec<ChangeRecord>,
    /// What is written and waits for a reset or reboot.
    awaiting: Vec<&'a Awaiting>,
    /// What stands in the way of the changes as the node is now: a run would be refused.
    blockers: Vec<&'a Blocker>,
    failed: Vec<Told<'a>>,
    /// Tasks whose state could not be read.
    unknown: Vec<Told<'a>>,
    held: Vec<Told<'a>>,
    /// Tasks that could not reach what they declare, and whose failure the playbook ignores.
    ignored: Vec<Told<'a>>,
    /// Tasks whose effect only a run can tell.
    possible: Vec<Told<'a>>,
    warnings: Vec<Warning<'a>>,
    /// Processes that hold the GPUs.
    clients: &'a [GpuClient],
    rebooted: bool,
    reboots: Vec<RebootDocument<'a>>,
    /// What happened between the node and its scheduler, in order.
    drains: Vec<DrainDocument<'a>>,
    out_of_service: bool,
    seconds: u64,
}

/// Returns the schema of the document, generated from the types that are written.
pub fn document_schema() -> Value {
    schema_of::<Document<'static>>("report")
}

/// The schema of a line of `--format jsonl`.
pub fn event_schema() -> Value {
    schema_of::<Event>("event")
}

pub(super) fn schema_of<T: JsonSchema>(name: &str) -> Value {
    let schema = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("$id".to_owned(), json!(format!("https://gpufleet.invalid/schema/{name}.schema.json")));
    }
    schema
}

/// Returns the document as indented text.
///
/// # Errors
/// Those of the writer.
pub fn json(model: &RunModel) -> Result<String, serde_json::Error> {
    // Here, so that every document of a test is checked.
    #[cfg(test)]
    document(model);
    crate::visible::json_document(&Document::of(model))
}

/// Returns the document of a run, finished or not.
pub fn document(model: &RunModel) -> Value {
    let document = json!(Document::of(model));
    #[cfg(test)]
    super::tests::fits_its_schema(&document);
    document
}

impl<'a> Document<'a> {
    fn of(model: &'a RunModel) -> Self {
        let verb = model.verb();
        let run = model.run.as_ref();
        let totals = Totals::of(model);
        Self {
            format: DOCUMENT_FORMAT,
            gpufleet: run.map(|run| run.gpufleet.as_str()),
            run_id: model.run_id(),
            verb,
            provenance: run.map(Provenance::of),
            playbooks: run.map_or(&[][..], |run| &run.playbooks),
            inventories: run.map_or(&[][..], |run| &run.inventories),
            started: model.started,
            finished: model.finished,
            standing: model.standing(),
            as_of: model.latest,
            summary: model.finish.as_ref().map(|finish| finish.summary.as_str()),
            stopped: model.stopped(),
            out_of_service: model.out_of_service(),
            states: states(model),
            verdicts: totals.into(),
            results: model
                .results()
                .map(|(result, count)| (result.word().to_owned(), json!(count)))
                .collect(),
            compliant: totals.compliant,
            controls: controls(model),
            plays: &model.plays,
            notices: model.notices.iter().map(NoticeDocument::of).collect(),
            stats: EachNode { model, entry: |node, _| node.counts() },
            nodes: EachNode { model, entry: node_document },
            exit_code: exit_code(model),
        }
    }
}

fn controls(model: &RunModel) -> Vec<ControlDocument<'_>> {
    let Some(policy) = model.run.as_ref().and_then(|run| run.audit.as_ref()).map(|scope| &scope.policy)
    else {
        return Vec::new();
    };
    policy
        .asked()
        .map(|check| ControlDocument {
            id: &check.id,
            title: &check.title,
            fault: &check.fault,
            severity: check.severity,
            scope: check.scope,
            why: &check.why,
            remediation: &check.remediation.text,
            command: check.remediation.reads.as_deref(),
            destructive: check
                .destructive()
                .map(|(action, command)| DestructiveDocument { action, first: DRAIN_FIRST, command })
                .collect(),
            references: &check.references,
            reads: check.signals().map(|(_, name)| (&**name, policy.source_of(name))).collect(),
        })
        .collect()
}

fn states(model: &RunModel) -> Map<String, Value> {
    let count = |state: NodeState| (state.as_str().to_owned(), json!(model.count(state)));
    NodeState::ALL.into_iter().filter(|state| model.count(*state) > 0).map(count).collect()
}

impl From<Totals> for Verdicts {
    fn from(totals: Totals) -> Self {
        Self {
            fail: totals.with(Verdict::Fail),
            unknown: totals.with(Verdict::Unknown),
            drift: totals.with(Verdict::Drift),
            warn: totals.with(Verdict::Warn),
            ok: totals.with(Verdict::Ok),
            na: totals.with(Verdict::Na),
        }
    }
}

fn told(task: &TaskReport) -> Told<'_> {
    Told {
        task: &task.task,
        kind: &task.kind,
        item: task.item.as_deref(),
        delegated_to: task.delegated_to.as_deref(),
        file: &task.position.file,
        line: task.position.line,
        message: task.message.as_deref(),
    }
}

fn node_document(node: &NodeModel, verb: Verb) -> NodeDocument<'_> {
    let in_status = |status: TaskStatus| node.tasks_in(status).map(told).collect::<Vec<_>>();
    let warnings = node.tasks.iter().flat_map(|task| {
        task.warnings.iter().map(|text| Warning { task: &task.task, text }).collect::<Vec<_>>()
    });
    let not_made = node.changes_not_made().map(|(task, change)| ChangeRecord::new(task, change));
    let reboots = node.reboots.iter().map(|reboot| RebootDocument {
        why: &reboot.why,
        boot_id_before: &reboot.before,
        boot_id_after: reboot.after.as_ref().map(|(boot, _)| boot.as_str()),
        seconds: reboot.after.as_ref().map(|(_, seconds)| *seconds),
    });
    let drains =
        node.drains.iter().map(|(at, step)| DrainDocument { at: *at, text: step.to_string(), drain: step });
    let judged = node.judged(verb);
    NodeDocument {
        state: node.state,
        verdict: node.verdict(verb),
        result: node.result(verb),
        next_action: node.next_action(verb),
        message: node.message(),
        judged: (!verb.writes()).then(|| JudgedDocument { tasks: judged.tasks(), judged: judged.judged() }),
        checks: node.health.as_ref().map(ChecksDocument::from),
        findings: node.findings(verb).into_iter().map(FindingDocument::from).collect(),
        hardware: node.hardware(),
        facts_read: node.facts_at,
        facts_before_changes: node.facts_are_old(),
        changes: node.change_records(),
        not_made: not_made.collect(),
        awaiting: node.awaiting(),
        blockers: node.blockers(),
        failed: in_status(TaskStatus::Failed),
        unknown: in_status(TaskStatus::Unknown),
        held: in_status(TaskStatus::Held),
        ignored: node.ignored_failures().map(told).collect(),
        possible: in_status(TaskStatus::Possible),
        warnings: warnings.collect(),
        clients: node.idle.as_ref().map_or(&[][..], |idle| &idle.clients),
        rebooted: node.outcome.as_ref().map_or(!node.reboots.is_empty(), |outcome| outcome.rebooted),
        reboots: reboots.collect(),
        drains: drains.collect(),
        out_of_service: node.outcome.as_ref().is_some_and(|outcome| outcome.out_of_service),
        seconds: node.seconds(None),
    }
}

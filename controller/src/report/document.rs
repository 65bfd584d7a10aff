//! The one JSON document of `--format json` and of the report beside the journal.
//!
//! Its shape is the same for `run`, `plan`, `audit` and `resume`, and is fixed by docs/schema/report.schema.json.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{NodeModel, RunModel, Verdict, exit_code, hardware_class};
use crate::event::{ChangeRecord, NodeState, TaskReport, TaskStatus, Verb};

/// Version of the document; a new one when a reader of the old one would misread it.
pub const DOCUMENT_FORMAT: u32 = 1;

/// The document of a run, finished or not.
pub fn document(model: &RunModel) -> Value {
    let verb = model.verb();
    let run = model.run.as_ref();
    let mut stats = Map::new();
    let mut nodes = Map::new();
    for node in model.nodes() {
        stats.insert(node.name.clone(), json!(node.counts()));
        nodes.insert(node.name.clone(), node_document(node, verb));
    }
    json!({
        "format": DOCUMENT_FORMAT,
        "gpufleet": run.map(|run| &run.gpufleet),
        "run_id": model.run_id(),
        "verb": verb,
        "playbooks": run.map_or(&[][..], |run| &run.playbooks),
        "inventories": run.map_or(&[][..], |run| &run.inventories),
        "started": model.started,
        "finished": model.finished,
        "summary": model.finish.as_ref().map(|finish| &finish.summary),
        "stopped": model.stopped(),
        "out_of_service": model.out_of_service(),
        "states": states(model),
        "verdicts": verdicts(model, verb),
        "plays": model.plays,
        "notices": notices(model),
        "stats": stats,
        "nodes": nodes,
        "exit_code": exit_code(model),
    })
}

fn states(model: &RunModel) -> Map<String, Value> {
    let count = |state: NodeState| (state.as_str().to_owned(), json!(model.count(state)));
    NodeState::ALL.into_iter().filter(|state| model.count(*state) > 0).map(count).collect()
}

fn verdicts(model: &RunModel, verb: Verb) -> Map<String, Value> {
    let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
    for node in model.nodes() {
        *counts.entry(node.verdict(verb)).or_default() += 1;
    }
    let count =
        |verdict: Verdict| (verdict.as_str().to_owned(), json!(counts.get(&verdict).copied().unwrap_or(0)));
    Verdict::WORST_FIRST.into_iter().map(count).collect()
}

fn notices(model: &RunModel) -> Vec<Value> {
    let notice =
        |notice: &super::Notice| json!({"at": notice.at, "level": notice.level, "text": notice.text});
    model.notices.iter().map(notice).collect()
}

fn brief(task: &TaskReport) -> Value {
    json!({
        "task": task.task,
        "kind": task.kind,
        "item": task.item,
        "delegated_to": task.delegated_to,
        "file": task.position.file,
        "line": task.position.line,
        "message": task.message,
    })
}

fn node_document(node: &NodeModel, verb: Verb) -> Value {
    let in_status = |status: TaskStatus| node.tasks_in(status).map(brief).collect::<Vec<_>>();
    let warning = |task: &TaskReport| {
        task.warnings.iter().map(|text| json!({"task": task.task, "text": text})).collect::<Vec<_>>()
    };
    let not_made = node.changes_not_made().map(|(task, change)| ChangeRecord::new(task, change));
    let reboots = node.reboots.iter().map(|reboot| {
        let (after, seconds) = reboot.after.clone().unzip();
        json!({"why": reboot.why, "boot_id_before": reboot.before, "boot_id_after": after, "seconds": seconds})
    });
    let drains =
        node.drains.iter().map(|(at, step)| json!({"at": at, "text": step.to_string(), "drain": step}));
    json!({
        "state": node.state,
        "verdict": node.verdict(verb),
        "next_action": node.next_action(verb),
        "message": node.message(),
        "hardware": node.facts.as_deref().and_then(hardware_class),
        "changes": node.change_records(),
        "not_made": not_made.collect::<Vec<_>>(),
        "awaiting": node.awaiting(),
        "failed": in_status(TaskStatus::Failed),
        "unknown": in_status(TaskStatus::Unknown),
        "held": in_status(TaskStatus::Held),
        "possible": in_status(TaskStatus::Possible),
        "warnings": node.tasks.iter().flat_map(warning).collect::<Vec<_>>(),
        "clients": node.idle.as_ref().map_or(&[][..], |idle| &idle.clients),
        "rebooted": node.outcome.as_ref().map_or(!node.reboots.is_empty(), |outcome| outcome.rebooted),
        "reboots": reboots.collect::<Vec<_>>(),
        "drains": drains.collect::<Vec<_>>(),
        "out_of_service": node.outcome.as_ref().is_some_and(|outcome| outcome.out_of_service),
        "seconds": node.seconds(None),
    })
}

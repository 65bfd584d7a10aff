//! Recording audits: what they found goes in as it is, and what follows from it is kept up to date.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use gpufleet_compliance::{Catalogue, Verdict};
use sqlx::AnyConnection;

use super::{
    Store, derive, intern, prune,
    sql::{Value, insert, number, select_in, storable, text},
    words::{NONE, digest, json, micros, verdict},
};
use crate::{
    Audit, Found, NodeReading, StoreError,
    error::Fault,
    fold::{ControlIds, FoundByKey, Key, Reading, State, Summary, VerdictStreak},
};

/// The control of a node itself: that it cannot be judged, as one that does not answer.
const NODE: &str = "node";

/// What became of an audit that was to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    New,
    /// It was recorded before; nothing was changed.
    Known,
    /// It is older than what is kept, as [`Store::prune`] was told; nothing was changed.
    TooOld,
}

impl Store {
    /// Records an audit, with its nodes each once. An audit that is older than others is put in its place in time.
    ///
    /// # Errors
    /// Those of the database; nothing is recorded then.
    pub async fn record(&self, audit: &Audit) -> Result<Recorded, StoreError> {
        self.recorded(audit).await.map_err(|fault| self.named(fault))
    }

    async fn recorded(&self, audit: &Audit) -> Result<Recorded, Fault> {
        let mut transaction = self.write().await?;
        let connection = &mut *transaction;
        if audit_id(connection, &audit.run).await?.is_some() {
            return Ok(Recorded::Known);
        }
        if micros(audit.started) < prune::kept_since(connection).await? {
            return Ok(Recorded::TooOld);
        }
        let put = put(connection, audit).await?;
        derive::follow(connection, put).await?;
        transaction.commit().await?;
        Ok(Recorded::New)
    }

    /// Records audits again, in place of what was recorded of these runs, and returns how many. Audits of other runs stay. All
    /// or none of it happens.
    ///
    /// # Errors
    /// Those of the database; nothing is changed then.
    pub async fn replace(&self, audits: impl IntoIterator<Item = Audit>) -> Result<u64, StoreError> {
        self.replaced(audits).await.map_err(|fault| self.named(fault))
    }

    async fn replaced(&self, audits: impl IntoIterator<Item = Audit>) -> Result<u64, Fault> {
        let mut transaction = self.write().await?;
        let connection = &mut *transaction;
        let kept_since = prune::kept_since(connection).await?;
        let mut nodes: BTreeSet<i64> = BTreeSet::new();
        let mut count = 0;
        for audit in audits {
            if micros(audit.started) < kept_since {
                continue;
            }
            if let Some(id) = audit_id(connection, &audit.run).await? {
                nodes.extend(prune::remove_audit(connection, id).await?);
            }
            nodes.extend(put(connection, &audit).await?.into_iter().map(|(node, _)| node.id));
            count += 1;
        }
        derive::again(connection, &nodes.into_iter().collect::<Vec<_>>()).await?;
        transaction.commit().await?;
        Ok(count)
    }
}

pub(super) async fn audit_id(connection: &mut AnyConnection, run: &str) -> Result<Option<i64>, Fault> {
    let row =
        sqlx::query("SELECT id FROM audits WHERE run = $1").bind(run.to_owned()).fetch_optional(connection);
    row.await?.map(|row| number(&row, "id")).transpose()
}

/// A node, and what was known of it before an audit.
pub(super) struct KnownNode {
    pub id: i64,
    /// Where its latest reading stands in time, and the verdict since then; `None` for a node that is new.
    pub latest: Option<Latest>,
}

pub(super) struct Latest {
    at: i64,
    run: String,
    verdict: VerdictStreak,
}

impl KnownNode {
    pub fn is_older_than(&self, reading: &Reading) -> bool {
        self.latest.as_ref().is_none_or(|latest| (latest.at, latest.run.as_str()) <= reading.place())
    }

    pub fn state(&self) -> State {
        State { verdict: self.latest.as_ref().map(|latest| latest.verdict), ..State::default() }
    }
}

/// Records what an audit found, without what follows from it.
async fn put(connection: &mut AnyConnection, audit: &Audit) -> Result<Vec<(KnownNode, Reading)>, Fault> {
    // Why: a node that stood there twice would be one observation twice.
    let nodes: BTreeMap<&str, &NodeReading> =
        audit.nodes.iter().rev().map(|node| (node.node.as_str(), node)).collect();
    let id = 1 + number(
        &sqlx::query("SELECT coalesce(max(id), 0) AS id FROM audits").fetch_one(&mut *connection).await?,
        "id",
    )?;
    let series = series(&audit.playbooks, &audit.baselines)?;
    insert(connection, AUDITS, "", vec![audit_row(id, audit, &series, &nodes)?]).await?;

    let interned = interned(connection, &nodes).await?;
    let known = known_nodes(connection, nodes.keys().copied()).await?;
    let (series, run): (Arc<str>, Arc<str>) = (series.into(), audit.run.as_str().into());
    let (mut observations, mut rows, mut memories, mut all) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for ((name, node), known) in nodes.iter().zip(known) {
        let Some((finding_set, found)) = interned.findings.get(name) else { continue };
        let Some((control_set, controls)) = interned.controls.get(name) else { continue };
        let reading = Reading {
            at: micros(node.at),
            run: Arc::clone(&run),
            series: Arc::clone(&series),
            summary: summary(node),
            found: Arc::clone(found),
            controls: Arc::clone(controls),
        };
        let values = summary_values(&reading.summary);
        let key = vec![known.id.into(), id.into(), reading.at.into()];
        observations.push([key, values.clone(), vec![(*finding_set).into(), (*control_set).into()]].concat());
        if known.is_older_than(&reading) {
            let verdict = VerdictStreak::after(known.state().verdict, &reading);
            rows.push([node_values(known.id, node, &reading, verdict)?, values].concat());
        }
        if let Some(memory) = &node.memory {
            memories.push(vec![
                known.id.into(),
                reading.at.into(),
                audit.run.as_str().into(),
                json(memory)?.into(),
            ]);
        }
        all.push((known, reading));
    }
    insert(connection, OBSERVATIONS, "", observations).await?;
    insert(connection, NODES, NODES_AGAIN, rows).await?;
    insert(connection, MEMORIES, MEMORIES_AGAIN, memories).await?;
    insert(connection, "audit_controls (control, audit, nodes)", "", control_rows(id, &nodes, &interned))
        .await?;
    Ok(all)
}

const AUDITS: &str = "audits (id, run, controller, started, finished, series, playbooks, baselines, exit_code, nodes, \
                      compliant, verdicts)";
const OBSERVATIONS: &str = "observations (node, audit, at, verdict, action, compliant, score, judged, applicable, \
                            finding_set, control_set)";
const NODES: &str = "nodes (id, name, run, at, inventory_groups, hardware, driver, verdict_since, verdict_audits, verdict, \
                     action, compliant, score, judged, applicable)";
const NODES_AGAIN: &str = "ON CONFLICT (id) DO UPDATE SET run = excluded.run, at = excluded.at, inventory_groups = \
                           excluded.inventory_groups, hardware = excluded.hardware, driver = excluded.driver, verdict_since = \
                           excluded.verdict_since, verdict_audits = excluded.verdict_audits, verdict = excluded.verdict, \
                           action = excluded.action, compliant = excluded.compliant, score = \
                           excluded.score, judged = excluded.judged, applicable = excluded.applicable";
const MEMORIES: &str = "memories (node, at, run, body)";
const MEMORIES_AGAIN: &str = "ON CONFLICT (node) DO UPDATE SET at = excluded.at, run = excluded.run, body = excluded.body \
                              WHERE memories.at < excluded.at OR (memories.at = excluded.at AND memories.run <= excluded.run)";

/// What is the same for audits of the same playbooks and baselines, in any order.
pub(super) fn series(playbooks: &[String], baselines: &[String]) -> Result<String, Fault> {
    let sets: [BTreeSet<&String>; 2] = [playbooks.iter().collect(), baselines.iter().collect()];
    Ok(digest(&json(&sets)?))
}

fn audit_row(
    id: i64,
    audit: &Audit,
    series: &str,
    nodes: &BTreeMap<&str, &NodeReading>,
) -> Result<Vec<Value>, Fault> {
    let mut verdicts: BTreeMap<Verdict, u32> = BTreeMap::new();
    for node in nodes.values() {
        *verdicts.entry(node.verdict).or_default() += 1;
    }
    let count = |count: usize| Value::from(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(vec![
        id.into(),
        audit.run.as_str().into(),
        audit.controller.as_str().into(),
        micros(audit.started).into(),
        micros(audit.finished).into(),
        series.into(),
        json(&audit.playbooks)?.into(),
        json(&audit.baselines)?.into(),
        i64::from(audit.exit_code).into(),
        count(nodes.len()),
        count(nodes.values().filter(|node| node.compliant).count()),
        json(&verdicts)?.into(),
    ])
}

fn summary(node: &NodeReading) -> Summary {
    Summary {
        verdict: node.verdict,
        action: node.action,
        compliant: node.compliant,
        score: node.score,
        judged: node.judged,
        applicable: node.applicable,
    }
}

/// The columns `verdict` to `applicable`.
pub(super) fn summary_values(summary: &Summary) -> Vec<Value> {
    vec![
        summary.verdict.word().into(),
        summary.action.word().into(),
        summary.compliant.into(),
        summary.score.map_or(NONE, i64::from).into(),
        summary.judged.into(),
        summary.applicable.into(),
    ]
}

fn node_values(
    id: i64,
    node: &NodeReading,
    reading: &Reading,
    verdict: VerdictStreak,
) -> Result<Vec<Value>, Fault> {
    Ok(vec![
        id.into(),
        node.node.as_str().into(),
        (&*reading.run).into(),
        reading.at.into(),
        json(&node.groups)?.into(),
        node.hardware.as_deref().unwrap_or_default().into(),
        node.driver.as_deref().unwrap_or_default().into(),
        verdict.since.into(),
        verdict.audits.into(),
    ])
}

/// The ids of what the nodes of an audit have.
struct Interned<'a> {
    control: HashMap<String, i64>,
    findings: HashMap<&'a str, (i64, FoundByKey)>,
    controls: HashMap<&'a str, (i64, Arc<ControlIds>)>,
}

async fn interned<'a>(
    connection: &mut AnyConnection,
    nodes: &BTreeMap<&'a str, &'a NodeReading>,
) -> Result<Interned<'a>, Fault> {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for node in nodes.values() {
        names.extend(node.findings.iter().map(|found| found.control.as_str()));
        names.extend(node.controls.judged.iter().chain(&node.controls.not_judged).map(String::as_str));
    }
    let control = intern::controls(connection, names).await?;
    let distinct: HashSet<_> = nodes.values().flat_map(|node| &node.findings).collect();
    let ids = intern::found(connection, distinct, &control).await?;
    let set_of = |node: &NodeReading| -> BTreeSet<i64> {
        node.findings.iter().filter_map(|found| ids.get(found).copied()).collect()
    };
    let sets = nodes.values().map(|node| set_of(node)).collect();
    let set_ids = intern::finding_sets(connection, sets).await?;
    let mut shared: HashMap<&BTreeSet<i64>, FoundByKey> = HashMap::new();
    let mut keys: HashMap<i64, Key> = HashMap::new();
    for (found, id) in &ids {
        let control = control.get(&found.control).copied().unwrap_or_default();
        let unknown = found.verdict == Verdict::Unknown;
        keys.insert(*id, Key { control, subject: storable(&found.subject), unknown });
    }
    for set in set_ids.keys() {
        shared.insert(set, Arc::new(by_key(set.iter().copied(), &keys)));
    }
    let numbers = |names: &[String]| names.iter().filter_map(|name| control.get(name).copied()).collect();
    let ids_of = |node: &NodeReading| ControlIds {
        judged: numbers(&node.controls.judged),
        not_judged: numbers(&node.controls.not_judged),
        complete: node.controls.complete,
    };
    let control_sets =
        intern::control_sets(connection, nodes.values().map(|node| ids_of(node)).collect()).await?;
    let shared_controls: HashMap<&ControlIds, Arc<ControlIds>> =
        control_sets.keys().map(|ids| (ids, Arc::new(ids.clone()))).collect();
    let mut interned =
        Interned { control: HashMap::new(), findings: HashMap::new(), controls: HashMap::new() };
    for (name, node) in nodes {
        let (set, ids) = (set_of(node), ids_of(node));
        if let (Some(id), Some(found)) = (set_ids.get(&set), shared.get(&set)) {
            interned.findings.insert(name, (*id, Arc::clone(found)));
        }
        if let (Some(id), Some(controls)) = (control_sets.get(&ids), shared_controls.get(&ids)) {
            interned.controls.insert(name, (*id, Arc::clone(controls)));
        }
    }
    drop((shared, shared_controls));
    interned.control = control;
    Ok(interned)
}

/// The findings of a set, by what stays the same of them.
pub(super) fn by_key(
    set: impl IntoIterator<Item = i64>,
    keys: &HashMap<i64, Key>,
) -> BTreeMap<Key, Vec<i64>> {
    let mut found: BTreeMap<Key, Vec<i64>> = BTreeMap::new();
    for id in set {
        if let Some(key) = keys.get(&id) {
            found.entry(key.clone()).or_default().push(id);
        }
    }
    found
}

/// Whether a finding is what its control looks for, and not that the control could not be judged.
fn is_fault(found: &Found) -> bool {
    let by_nature = || match Catalogue::get().check(&found.control) {
        Some(check) => check.finds_unknown(),
        None => found.control == NODE,
    };
    found.verdict != Verdict::Unknown || by_nature()
}

/// How many nodes have a finding of each control, of those that the audit asked for.
fn control_rows(
    audit: i64,
    nodes: &BTreeMap<&str, &NodeReading>,
    interned: &Interned<'_>,
) -> Vec<Vec<Value>> {
    let mut counts: BTreeMap<i64, i64> = BTreeMap::new();
    let sets: HashSet<&Arc<ControlIds>> = interned.controls.values().map(|(_, ids)| ids).collect();
    for ids in sets {
        for id in ids.judged.iter().chain(&ids.not_judged) {
            counts.entry(*id).or_default();
        }
    }
    for node in nodes.values() {
        let counting = node.findings.iter().filter(|found| found.waived.is_none() && is_fault(found));
        let own: BTreeSet<i64> =
            counting.filter_map(|found| interned.control.get(&found.control).copied()).collect();
        own.into_iter().for_each(|id| *counts.entry(id).or_default() += 1);
    }
    counts.into_iter().map(|(control, nodes)| vec![control.into(), audit.into(), nodes.into()]).collect()
}

/// What is known of nodes, in the order of their names; those that are not known get ids.
async fn known_nodes<'a>(
    connection: &mut AnyConnection,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<Vec<KnownNode>, Fault> {
    const STATEMENT: &str =
        "SELECT id, name, run, at, verdict, verdict_since, verdict_audits FROM nodes WHERE name IN {}";
    let mut known: HashMap<String, KnownNode> = HashMap::new();
    for row in select_in(connection, STATEMENT, names.clone().map(Value::from)).await? {
        let at = number(&row, "at")?;
        let streak = VerdictStreak {
            verdict: verdict(&text(&row, "verdict")?)?,
            since: number(&row, "verdict_since")?,
            last: at,
            audits: super::sql::count(&row, "verdict_audits")?,
        };
        let latest = Latest { at, run: text(&row, "run")?, verdict: streak };
        known.insert(text(&row, "name")?, KnownNode { id: number(&row, "id")?, latest: Some(latest) });
    }
    let row = sqlx::query("SELECT coalesce(max(id), 0) AS id FROM nodes").fetch_one(&mut *connection).await?;
    let mut next = number(&row, "id")?;
    Ok(names
        .map(|name| {
            known.remove(name).unwrap_or_else(|| {
                next += 1;
                KnownNode { id: next, latest: None }
            })
        })
        .collect())
}

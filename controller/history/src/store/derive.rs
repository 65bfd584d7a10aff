//! What follows from observations: since when each node has its verdict and its findings.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use sqlx::AnyConnection;

use super::{
    intern,
    record::{KnownNode, by_key, summary_values},
    sql::{Value, count, insert, number, select_in, text},
    words::{action, json, of_json, score, verdict},
};
use crate::{
    error::Fault,
    fold::{ControlIds, FoundByKey, Key, Reading, State, Streak, Summary},
};

/// Nodes whose readings are held in memory at once: a year of them is 365 each.
const NODES: usize = 128;

/// Brings open findings up to date after an audit: by one step where it is the latest of a node, from the beginning where it
/// came late.
pub(super) async fn follow(
    connection: &mut AnyConnection,
    put: Vec<(KnownNode, Reading)>,
) -> Result<(), Fault> {
    let (next, late): (Vec<_>, Vec<_>) =
        put.into_iter().partition(|(node, reading)| node.is_older_than(reading));
    let mut open = open_of(connection, next.iter().map(|(node, _)| node.id)).await?;
    let mut before = BTreeSet::new();
    let mut states: Vec<(i64, State)> = Vec::new();
    for (node, reading) in next {
        let mut state = node.state();
        if let Some(streaks) = open.remove(&node.id) {
            before.insert(node.id);
            state.open = streaks;
        }
        let _ = state.step(&reading);
        states.push((node.id, state));
    }
    remove_open(connection, before).await?;
    write_open(connection, &states).await?;
    again(connection, &late.iter().map(|(node, _)| node.id).collect::<Vec<_>>()).await
}

/// Works out anew what follows from all readings of some nodes. Nodes without any readings are removed.
pub(super) async fn again(connection: &mut AnyConnection, nodes: &[i64]) -> Result<(), Fault> {
    for chunk in nodes.chunks(NODES) {
        let mut readings = readings(connection, chunk).await?;
        let mut states = carried(connection, chunk).await?;
        remove_open(connection, chunk.iter().copied().collect()).await?;
        let mut after = Vec::new();
        for node in chunk {
            let mut state = states.remove(node).unwrap_or_default();
            let Some(readings) = readings.remove(node).filter(|readings| !readings.is_empty()) else {
                remove_node(connection, *node).await?;
                continue;
            };
            for reading in &readings {
                let _ = state.step(reading);
            }
            if let Some(latest) = readings.last() {
                set_latest(connection, *node, latest, &state).await?;
            }
            after.push((*node, state));
        }
        write_open(connection, &after).await?;
    }
    Ok(())
}

/// The readings of nodes in the order of time.
pub(super) async fn readings(
    connection: &mut AnyConnection,
    nodes: &[i64],
) -> Result<HashMap<i64, Vec<Reading>>, Fault> {
    const STATEMENT: &str = "SELECT o.node, o.at, a.run, a.series, o.verdict, o.action, o.compliant, o.score, o.judged, \
                             o.applicable, o.finding_set, o.control_set FROM observations o JOIN audits a ON a.id = o.audit \
                             WHERE o.node IN {}";
    let rows = select_in(connection, STATEMENT, nodes.iter().copied().map(Value::from)).await?;
    let ids = |column: &str| rows.iter().map(|row| number(row, column)).collect::<Result<BTreeSet<_>, _>>();
    let sets = finding_sets(connection, ids("finding_set")?).await?;
    let controls = control_sets(connection, ids("control_set")?).await?;
    let mut texts: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut shared = |text: String| match texts.get(text.as_str()) {
        Some(known) => Arc::clone(known),
        None => {
            let text: Arc<str> = text.into();
            texts.insert(Arc::clone(&text));
            text
        }
    };
    let mut readings: HashMap<i64, Vec<Reading>> = HashMap::new();
    for row in &rows {
        let found = sets.get(&number(row, "finding_set")?);
        let controls = controls.get(&number(row, "control_set")?);
        let (Some(found), Some(controls)) = (found, controls) else {
            return Err(Fault::damaged("a set of findings is missing"));
        };
        let reading = Reading {
            at: number(row, "at")?,
            run: shared(text(row, "run")?),
            series: shared(text(row, "series")?),
            summary: Summary {
                verdict: verdict(&text(row, "verdict")?)?,
                action: action(&text(row, "action")?)?,
                compliant: number(row, "compliant")? != 0,
                score: score(number(row, "score")?),
                judged: count(row, "judged")?,
                applicable: count(row, "applicable")?,
            },
            found: Arc::clone(found),
            controls: Arc::clone(controls),
        };
        readings.entry(number(row, "node")?).or_default().push(reading);
    }
    for readings in readings.values_mut() {
        readings.sort_by(|one, other| one.place().cmp(&other.place()));
    }
    Ok(readings)
}

async fn finding_sets(
    connection: &mut AnyConnection,
    ids: BTreeSet<i64>,
) -> Result<HashMap<i64, FoundByKey>, Fault> {
    const STATEMENT: &str = "SELECT id, body FROM finding_sets WHERE id IN {}";
    let mut members: HashMap<i64, BTreeSet<i64>> = HashMap::new();
    for row in select_in(connection, STATEMENT, ids.into_iter().map(Value::from)).await? {
        members.insert(number(&row, "id")?, of_json(&text(&row, "body")?)?);
    }
    let all: BTreeSet<i64> = members.values().flatten().copied().collect();
    let keys = intern::keys(connection, all).await?;
    Ok(members.into_iter().map(|(id, members)| (id, Arc::new(by_key(members, &keys)))).collect())
}

async fn control_sets(
    connection: &mut AnyConnection,
    ids: BTreeSet<i64>,
) -> Result<HashMap<i64, Arc<ControlIds>>, Fault> {
    const STATEMENT: &str = "SELECT id, body FROM control_sets WHERE id IN {}";
    let mut sets = HashMap::new();
    for row in select_in(connection, STATEMENT, ids.into_iter().map(Value::from)).await? {
        sets.insert(number(&row, "id")?, Arc::new(of_json(&text(&row, "body")?)?));
    }
    Ok(sets)
}

/// The open findings of nodes.
pub(super) async fn open_of(
    connection: &mut AnyConnection,
    nodes: impl IntoIterator<Item = i64>,
) -> Result<HashMap<i64, BTreeMap<Key, Streak>>, Fault> {
    const STATEMENT: &str = "SELECT node, control, subject, is_unknown, since, last, audits, series, found FROM open_findings \
                             WHERE node IN {}";
    let mut open: HashMap<i64, BTreeMap<Key, Streak>> = HashMap::new();
    for row in &select_in(connection, STATEMENT, nodes.into_iter().map(Value::from)).await? {
        let (node, key, streak) = open_row(row)?;
        open.entry(node).or_default().insert(key, streak);
    }
    Ok(open)
}

/// A row of `open_findings`.
pub(super) fn open_row(row: &sqlx::any::AnyRow) -> Result<(i64, Key, Streak), Fault> {
    let key = Key {
        control: number(row, "control")?,
        subject: text(row, "subject")?,
        unknown: number(row, "is_unknown")? != 0,
    };
    let streak = Streak {
        since: number(row, "since")?,
        last: number(row, "last")?,
        audits: count(row, "audits")?,
        series: text(row, "series")?,
        found: of_json(&text(row, "found")?)?,
    };
    Ok((number(row, "node")?, key, streak))
}

async fn remove_open(connection: &mut AnyConnection, nodes: BTreeSet<i64>) -> Result<(), Fault> {
    let nodes = nodes.into_iter().map(Value::from);
    select_in(connection, "DELETE FROM open_findings WHERE node IN {}", nodes).await.map(drop)
}

async fn write_open(connection: &mut AnyConnection, states: &[(i64, State)]) -> Result<(), Fault> {
    let streaks = || states.iter().flat_map(|(_, state)| state.open.values());
    let waived =
        waived(connection, streaks().flat_map(|streak| streak.found.iter().copied()).collect()).await?;
    let mut rows = Vec::new();
    for (node, state) in states {
        for (key, streak) in &state.open {
            rows.push(vec![
                (*node).into(),
                key.control.into(),
                key.subject.as_str().into(),
                key.unknown.into(),
                streak.since.into(),
                streak.last.into(),
                streak.audits.into(),
                streak.series.as_str().into(),
                json(&streak.found)?.into(),
                i64::try_from(streak.found.iter().filter(|id| !waived.contains(id)).count())
                    .unwrap_or(i64::MAX)
                    .into(),
            ]);
        }
    }
    const INTO: &str = "open_findings (node, control, subject, is_unknown, since, last, audits, series, found, \
                        counting)";
    insert(connection, INTO, "", rows).await
}

async fn waived(connection: &mut AnyConnection, ids: BTreeSet<i64>) -> Result<BTreeSet<i64>, Fault> {
    const STATEMENT: &str = "SELECT id FROM found WHERE is_waived = 1 AND id IN {}";
    let rows = select_in(connection, STATEMENT, ids.into_iter().map(Value::from)).await?;
    rows.iter().map(|row| number(row, "id")).collect()
}

async fn set_latest(
    connection: &mut AnyConnection,
    node: i64,
    latest: &Reading,
    state: &State,
) -> Result<(), Fault> {
    const STATEMENT: &str = "UPDATE nodes SET run = $2, at = $3, verdict_since = $4, verdict_audits = $5, verdict = $6, action \
                             = $7, compliant = $8, score = $9, judged = $10, applicable = $11 WHERE id = $1";
    let (since, audits) = state.verdict.map_or((latest.at, 1), |verdict| (verdict.since, verdict.audits));
    let query = sqlx::query(STATEMENT)
        .bind(node)
        .bind(latest.run.to_string())
        .bind(latest.at)
        .bind(since)
        .bind(i64::from(audits));
    let query = summary_values(&latest.summary).into_iter().fold(query, super::sql::bind);
    query.execute(connection).await?;
    Ok(())
}

async fn remove_node(connection: &mut AnyConnection, node: i64) -> Result<(), Fault> {
    for statement in [
        "DELETE FROM nodes WHERE id = $1",
        "DELETE FROM memories WHERE node = $1",
        "DELETE FROM carried WHERE node = $1",
    ] {
        sqlx::query(statement).bind(node).execute(&mut *connection).await?;
    }
    Ok(())
}

/// What nodes were after readings that are not kept any more.
pub(super) async fn carried(
    connection: &mut AnyConnection,
    nodes: &[i64],
) -> Result<HashMap<i64, State>, Fault> {
    const STATEMENT: &str = "SELECT node, body FROM carried WHERE node IN {}";
    let mut states = HashMap::new();
    for row in select_in(connection, STATEMENT, nodes.iter().copied().map(Value::from)).await? {
        let (verdict, open): (_, Vec<(Key, Streak)>) = of_json(&text(&row, "body")?)?;
        states.insert(number(&row, "node")?, State { verdict, open: open.into_iter().collect() });
    }
    Ok(states)
}

/// Keeps what nodes are after readings that are about to be removed.
pub(super) async fn carry(connection: &mut AnyConnection, states: &[(i64, State)]) -> Result<(), Fault> {
    let mut rows = Vec::new();
    for (node, state) in states {
        let open: Vec<_> = state.open.iter().collect();
        rows.push(vec![(*node).into(), json(&(state.verdict, open))?.into()]);
    }
    const AGAIN: &str = "ON CONFLICT (node) DO UPDATE SET body = excluded.body";
    insert(connection, "carried (node, body)", AGAIN, rows).await
}

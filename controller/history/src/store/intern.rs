//! Texts that many observations share, kept once: findings, sets of findings, sets of controls, names.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::AnyConnection;

use super::{
    sql::{Value, insert, number, select_in, text},
    words::{digest, json, of_json},
};
use crate::{
    Found,
    error::Fault,
    fold::{ControlIds, Key},
};

/// A table of ids and texts; a writer holds the lock, so that ids can be counted on.
struct Table {
    highest: &'static str,
    known: &'static str,
    into: &'static str,
}

const CONTROLS: Table = Table {
    highest: "SELECT coalesce(max(id), 0) AS id FROM controls",
    known: "SELECT id, name AS key FROM controls WHERE name IN {}",
    into: "controls (id, name)",
};
const FOUND: Table = Table {
    highest: "SELECT coalesce(max(id), 0) AS id FROM found",
    known: "SELECT id, hash AS key FROM found WHERE hash IN {}",
    into: "found (id, hash, control, subject, is_unknown, is_waived, body)",
};
const FINDING_SETS: Table = Table {
    highest: "SELECT coalesce(max(id), 0) AS id FROM finding_sets",
    known: "SELECT id, hash AS key FROM finding_sets WHERE hash IN {}",
    into: "finding_sets (id, hash, body)",
};
const CONTROL_SETS: Table = Table {
    highest: "SELECT coalesce(max(id), 0) AS id FROM control_sets",
    known: "SELECT id, hash AS key FROM control_sets WHERE hash IN {}",
    into: "control_sets (id, hash, body)",
};

impl Table {
    /// Returns the id of each row, by its key; rows that are not known are added. A row is what stands behind its id.
    async fn ids(
        &self,
        connection: &mut AnyConnection,
        rows: BTreeMap<String, Vec<Value>>,
    ) -> Result<HashMap<String, i64>, Fault> {
        let keys = rows.keys().map(|key| Value::from(key.as_str()));
        let mut ids = HashMap::new();
        for row in select_in(connection, self.known, keys).await? {
            ids.insert(text(&row, "key")?, number(&row, "id")?);
        }
        let mut next = number(&sqlx::query(self.highest).fetch_one(&mut *connection).await?, "id")?;
        let mut new = Vec::new();
        for (key, row) in rows {
            if ids.contains_key(&key) {
                continue;
            }
            next += 1;
            ids.insert(key, next);
            new.push([vec![next.into()], row].concat());
        }
        insert(connection, self.into, "", new).await?;
        Ok(ids)
    }
}

/// Returns the ids of controls, by name.
pub(super) async fn controls<'a>(
    connection: &mut AnyConnection,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<HashMap<String, i64>, Fault> {
    let rows = names.into_iter().map(|name| (name.to_owned(), vec![name.into()])).collect();
    CONTROLS.ids(connection, rows).await
}

/// Returns the ids of findings.
pub(super) async fn found<'a>(
    connection: &mut AnyConnection,
    all: impl IntoIterator<Item = &'a Found>,
    controls: &HashMap<String, i64>,
) -> Result<HashMap<&'a Found, i64>, Fault> {
    let mut rows = BTreeMap::new();
    let mut keys = Vec::new();
    for found in all {
        let body = json(found)?;
        let key = digest(&body);
        let unknown = found.verdict == gpufleet_compliance::Verdict::Unknown;
        let control = controls.get(&found.control).copied().unwrap_or_default();
        rows.entry(key.clone()).or_insert_with(|| {
            vec![
                key.as_str().into(),
                control.into(),
                found.subject.as_str().into(),
                unknown.into(),
                found.waived.is_some().into(),
                body.into(),
            ]
        });
        keys.push((found, key));
    }
    let ids = FOUND.ids(connection, rows).await?;
    Ok(keys.into_iter().filter_map(|(found, key)| Some((found, *ids.get(&key)?))).collect())
}

/// Returns the ids of sets of findings.
pub(super) async fn finding_sets(
    connection: &mut AnyConnection,
    sets: BTreeSet<BTreeSet<i64>>,
) -> Result<HashMap<BTreeSet<i64>, i64>, Fault> {
    bodies(connection, &FINDING_SETS, sets).await
}

/// Returns the ids of sets of controls.
pub(super) async fn control_sets(
    connection: &mut AnyConnection,
    sets: BTreeSet<ControlIds>,
) -> Result<HashMap<ControlIds, i64>, Fault> {
    bodies(connection, &CONTROL_SETS, sets).await
}

async fn bodies<T: serde::Serialize + Eq + std::hash::Hash>(
    connection: &mut AnyConnection,
    table: &Table,
    sets: BTreeSet<T>,
) -> Result<HashMap<T, i64>, Fault> {
    let mut rows = BTreeMap::new();
    let mut keys = Vec::new();
    for set in sets {
        let body = json(&set)?;
        let key = digest(&body);
        rows.insert(key.clone(), vec![key.as_str().into(), body.into()]);
        keys.push((set, key));
    }
    let ids = table.ids(connection, rows).await?;
    Ok(keys.into_iter().filter_map(|(set, key)| Some((set, *ids.get(&key)?))).collect())
}

/// What stays the same of findings, and whether each is waived, by id.
pub(super) async fn keys(
    connection: &mut AnyConnection,
    ids: impl IntoIterator<Item = i64>,
) -> Result<HashMap<i64, Key>, Fault> {
    const STATEMENT: &str = "SELECT id, control, subject, is_unknown FROM found WHERE id IN {}";
    let mut keys = HashMap::new();
    for row in select_in(connection, STATEMENT, ids.into_iter().map(Value::from)).await? {
        let key = Key {
            control: number(&row, "control")?,
            subject: text(&row, "subject")?,
            unknown: number(&row, "is_unknown")? != 0,
        };
        keys.insert(number(&row, "id")?, key);
    }
    Ok(keys)
}

/// Findings by id.
pub(super) async fn findings(
    connection: &mut AnyConnection,
    ids: impl IntoIterator<Item = i64>,
) -> Result<HashMap<i64, Found>, Fault> {
    const STATEMENT: &str = "SELECT id, body FROM found WHERE id IN {}";
    let mut found = HashMap::new();
    for row in select_in(connection, STATEMENT, ids.into_iter().map(Value::from)).await? {
        found.insert(number(&row, "id")?, of_json(&text(&row, "body")?)?);
    }
    Ok(found)
}

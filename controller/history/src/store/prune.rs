//! Forgetting: audits that are older than what is kept.

use std::collections::BTreeSet;

use jiff::Timestamp;
use sqlx::AnyConnection;

use super::{
    Store, derive, record,
    sql::{Value, number, select_in, text},
    words::{micros, of_json},
};
use crate::{StoreError, error::Fault, place::Kind};

/// Nodes that are worked on at once.
const NODES: usize = 128;

impl Store {
    /// Removes audits that began before a time, and returns how many. Since when a finding is open stays known; nodes that no
    /// later audit has are removed.
    ///
    /// # Errors
    /// Those of the database; nothing is removed then.
    pub async fn prune(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.pruned(micros(before)).await.map_err(|fault| self.named(fault))
    }

    /// Removes one audit and what follows from it, and returns whether there was one. What a node is, and what its next audit
    /// compares with, stays as it was read last.
    ///
    /// # Errors
    /// Those of the database; nothing is removed then.
    pub async fn forget(&self, run: &str) -> Result<bool, StoreError> {
        self.forgotten(run).await.map_err(|fault| self.named(fault))
    }

    /// Removes a node with all that audits found of it, and returns whether there was one. Audits keep their numbers; one that
    /// has the node again makes it a new one.
    ///
    /// # Errors
    /// Those of the database; nothing is removed then.
    pub async fn retire(&self, node: &str) -> Result<bool, StoreError> {
        self.retired(node).await.map_err(|fault| self.named(fault))
    }

    async fn retired(&self, node: &str) -> Result<bool, Fault> {
        let mut transaction = self.write().await?;
        let connection = &mut *transaction;
        let row = sqlx::query("SELECT id FROM nodes WHERE name = $1").bind(node.to_owned());
        let Some(row) = row.fetch_optional(&mut *connection).await? else { return Ok(false) };
        let id = number(&row, "id")?;
        for statement in ["DELETE FROM observations WHERE node = $1", "DELETE FROM carried WHERE node = $1"] {
            sqlx::query(statement).bind(id).execute(&mut *connection).await?;
        }
        // A node without any readings is none.
        derive::again(connection, &[id]).await?;
        remove_unused(connection).await?;
        transaction.commit().await?;
        Ok(true)
    }

    async fn forgotten(&self, run: &str) -> Result<bool, Fault> {
        let mut transaction = self.write().await?;
        let connection = &mut *transaction;
        let Some(audit) = record::audit_id(connection, run).await? else { return Ok(false) };
        let nodes = remove_audit(connection, audit).await?;
        derive::again(connection, &nodes).await?;
        remove_unused(connection).await?;
        transaction.commit().await?;
        Ok(true)
    }

    async fn pruned(&self, before: i64) -> Result<u64, Fault> {
        let mut transaction = self.write().await?;
        let connection = &mut *transaction;
        let rows = sqlx::query("SELECT id, run FROM audits WHERE started < $1").bind(before);
        let rows = rows.fetch_all(&mut *connection).await?;
        let mut runs = BTreeSet::new();
        for row in &rows {
            runs.insert(text(row, "run")?);
        }
        let statement =
            "SELECT DISTINCT node FROM observations o JOIN audits a ON a.id = o.audit WHERE a.started < $1";
        let nodes = sqlx::query(statement).bind(before).fetch_all(&mut *connection).await?;
        let nodes = nodes.iter().map(|row| number(row, "node")).collect::<Result<Vec<_>, _>>()?;
        for chunk in nodes.chunks(NODES) {
            let mut states = derive::carried(connection, chunk).await?;
            let readings = derive::readings(connection, chunk).await?;
            let mut after = Vec::new();
            for (node, readings) in readings {
                let mut state = states.remove(&node).unwrap_or_default();
                for reading in readings.iter().filter(|reading| runs.contains(&*reading.run)) {
                    let _ = state.step(reading);
                }
                after.push((node, state));
            }
            derive::carry(connection, &after).await?;
        }
        for statement in [
            "DELETE FROM observations WHERE audit IN (SELECT id FROM audits WHERE started < $1)",
            "DELETE FROM audit_controls WHERE audit IN (SELECT id FROM audits WHERE started < $1)",
            "DELETE FROM audits WHERE started < $1",
            "INSERT INTO kept (id, since) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET since = excluded.since WHERE \
             kept.since < excluded.since",
        ] {
            sqlx::query(statement).bind(before).execute(&mut *connection).await?;
        }
        derive::again(connection, &nodes).await?;
        remove_unused(connection).await?;
        transaction.commit().await?;
        if !rows.is_empty() && matches!(self.place().kind(), Kind::Sqlite(_)) {
            // Why whatever it says: only the file is smaller after it, and somebody may read just now.
            let _ = sqlx::query("VACUUM").execute(&self.pool).await;
        }
        Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
    }
}

/// Since when audits are kept, in microseconds since 1970; the least number where nothing was pruned.
pub(super) async fn kept_since(connection: &mut AnyConnection) -> Result<i64, Fault> {
    let row = sqlx::query("SELECT since FROM kept WHERE id = 1").fetch_optional(connection).await?;
    row.map_or(Ok(i64::MIN), |row| number(&row, "since"))
}

/// Removes one audit, and returns the nodes that it has observations of.
pub(super) async fn remove_audit(connection: &mut AnyConnection, audit: i64) -> Result<Vec<i64>, Fault> {
    let rows = sqlx::query("SELECT node FROM observations WHERE audit = $1").bind(audit);
    let rows = rows.fetch_all(&mut *connection).await?;
    for statement in [
        "DELETE FROM observations WHERE audit = $1",
        "DELETE FROM audit_controls WHERE audit = $1",
        "DELETE FROM audits WHERE id = $1",
    ] {
        sqlx::query(statement).bind(audit).execute(&mut *connection).await?;
    }
    rows.iter().map(|row| number(row, "node")).collect()
}

/// Removes sets and findings that nothing refers to any more.
async fn remove_unused(connection: &mut AnyConnection) -> Result<(), Fault> {
    for statement in [
        "DELETE FROM finding_sets WHERE id NOT IN (SELECT finding_set FROM observations)",
        "DELETE FROM control_sets WHERE id NOT IN (SELECT control_set FROM observations)",
    ] {
        sqlx::query(statement).execute(&mut *connection).await?;
    }
    let mut used: BTreeSet<i64> = BTreeSet::new();
    for statement in ["SELECT body FROM finding_sets", "SELECT found AS body FROM open_findings"] {
        for row in sqlx::query(statement).fetch_all(&mut *connection).await? {
            used.extend(of_json::<Vec<i64>>(&text(&row, "body")?)?);
        }
    }
    for row in sqlx::query("SELECT id FROM nodes").fetch_all(&mut *connection).await?.chunks(NODES) {
        let ids = row.iter().map(|row| number(row, "id")).collect::<Result<Vec<_>, _>>()?;
        let carried = derive::carried(connection, &ids).await?;
        used.extend(carried.values().flat_map(|state| state.open.values()).flat_map(|streak| &streak.found));
    }
    let rows = sqlx::query("SELECT id FROM found").fetch_all(&mut *connection).await?;
    let all = rows.iter().map(|row| number(row, "id")).collect::<Result<BTreeSet<_>, _>>()?;
    let unused = all.difference(&used).map(|id| Value::from(*id));
    select_in(connection, "DELETE FROM found WHERE id IN {}", unused).await.map(drop)
}

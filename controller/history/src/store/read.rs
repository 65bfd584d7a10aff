//! What is asked of the store.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use jiff::Timestamp;
use serde_json::Value as Json;
use sqlx::{AnyConnection, any::AnyRow};

use super::{
    Store, derive, intern,
    record::series,
    sql::{Value, count, number, select_in, select_of_in, text},
    words::{action, micros, of_json, score, timestamp, verdict},
};
use crate::{
    AuditRow, ControlHistory, NodeHistory, NodeRow, OpenFinding, PastFinding, Span, StoreError,
    error::Fault,
    fold::{Key, Streak, VerdictStreak},
};

/// Audits that are looked at for one to compare with.
const LOOKED_AT: i64 = 20;

const AUDITS: &str = "SELECT run, controller, started, finished, playbooks, baselines, exit_code, nodes, compliant, verdicts \
                      FROM audits WHERE started >= $1 ORDER BY started, run";
const NODES: &str = "SELECT n.id, n.name, n.run, n.at, n.inventory_groups, n.hardware, n.driver, n.verdict, n.verdict_since, \
                     n.action, n.compliant, n.score, n.judged, n.applicable, coalesce(o.findings, 0) AS findings FROM nodes n \
                     LEFT JOIN (SELECT node, CAST(sum(counting) AS BIGINT) AS findings FROM open_findings GROUP BY node) o ON \
                     o.node = n.id";
const NODE: &str = "SELECT n.id, n.name, n.run, n.at, n.inventory_groups, n.hardware, n.driver, n.verdict, n.verdict_since, \
                    n.action, n.compliant, n.score, n.judged, n.applicable, coalesce((SELECT CAST(sum(o.counting) AS BIGINT) \
                    FROM open_findings o WHERE o.node = n.id), 0) AS findings FROM nodes n WHERE n.name = $1";
const OPEN: &str = "SELECT o.node, n.name, o.control, o.subject, o.is_unknown, o.since, o.last, o.audits, o.series, o.found \
                    FROM open_findings o JOIN nodes n ON n.id = o.node";
const OPEN_OF_CONTROL: &str = "SELECT o.node, n.name, o.control, o.subject, o.is_unknown, o.since, o.last, o.audits, o.series, \
                               o.found FROM open_findings o JOIN nodes n ON n.id = o.node WHERE o.control = $1";
const OPEN_OF_NODE: &str = "SELECT o.node, n.name, o.control, o.subject, o.is_unknown, o.since, o.last, o.audits, o.series, \
                            o.found FROM open_findings o JOIN nodes n ON n.id = o.node WHERE o.node = $1";

/// An earlier audit of the same playbooks and baselines, and what it said of the same nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    pub run: String,
    pub started: Timestamp,
    /// How many of the nodes it has.
    pub nodes: u32,
    /// How many of these were compliant.
    pub compliant: u32,
}

impl Store {
    /// Returns the audits that began at a time or later, the oldest first; all of them without one.
    ///
    /// # Errors
    /// Those of the database, as in all that is asked.
    pub async fn audits(&self, since: Option<Timestamp>) -> Result<Vec<AuditRow>, StoreError> {
        self.ask(async |connection| {
            let rows = sqlx::query(AUDITS).bind(since.map_or(i64::MIN, micros)).fetch_all(connection).await?;
            rows.iter().map(audit_row).collect()
        })
        .await
    }

    /// Returns the latest audits of the same playbooks and baselines, at most `most`, the oldest first.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn trend(
        &self,
        playbooks: &[String],
        baselines: &[String],
        most: u32,
    ) -> Result<Vec<Earlier>, StoreError> {
        const STATEMENT: &str = "SELECT run, started, nodes, compliant FROM audits WHERE series = $1 \
                                 ORDER BY started DESC, run DESC LIMIT $2";
        self.ask(async |connection| {
            let asked = sqlx::query(STATEMENT).bind(series(playbooks, baselines)?).bind(i64::from(most));
            let rows = asked.fetch_all(connection).await?;
            let audit = |row| {
                Ok(Earlier {
                    run: text(row, "run")?,
                    started: timestamp(number(row, "started")?)?,
                    nodes: count(row, "nodes")?,
                    compliant: count(row, "compliant")?,
                })
            };
            rows.iter().rev().map(audit).collect()
        })
        .await
    }

    /// Returns the latest audit before a time that is of the same playbooks and baselines, and has nine of ten of these nodes.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn earlier(
        &self,
        playbooks: &[String],
        baselines: &[String],
        nodes: &[String],
        before: Timestamp,
    ) -> Result<Option<Earlier>, StoreError> {
        self.ask(async |connection| earlier(connection, &series(playbooks, baselines)?, nodes, before).await)
            .await
    }

    /// Returns all nodes, in the order of their names.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        self.ask(async |connection| {
            let rows = sqlx::query(NODES).fetch_all(connection).await?;
            let mut nodes = rows.iter().map(node_row).collect::<Result<Vec<_>, _>>()?;
            // Why here: databases order texts as their locale says.
            nodes.sort_by(|one, other| one.node.cmp(&other.node));
            Ok(nodes)
        })
        .await
    }

    /// Returns what is known of one node; `None` if no audit has it.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn node(&self, name: &str) -> Result<Option<NodeHistory>, StoreError> {
        self.ask(async |connection| {
            let row = sqlx::query(NODE).bind(name.to_owned()).fetch_optional(&mut *connection).await?;
            let Some(row) = row else { return Ok(None) };
            let id = number(&row, "id")?;
            let (spans, past) = timeline(connection, id).await?;
            let rows = sqlx::query(OPEN_OF_NODE).bind(id).fetch_all(&mut *connection).await?;
            let open = open_findings(connection, &rows).await?;
            Ok(Some(NodeHistory { node: node_row(&row)?, spans, open, past }))
        })
        .await
    }

    /// Returns what is known of a check, or of a task by its place; `None` if no audit asked for it.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn control(&self, id: &str) -> Result<Option<ControlHistory>, StoreError> {
        self.ask(async |connection| {
            let row = sqlx::query("SELECT id FROM controls WHERE name = $1").bind(id.to_owned());
            let Some(row) = row.fetch_optional(&mut *connection).await? else { return Ok(None) };
            control(connection, id, number(&row, "id")?).await.map(Some)
        })
        .await
    }

    /// Returns all open findings, the worst first.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn open_findings(&self) -> Result<Vec<OpenFinding>, StoreError> {
        self.ask(async |connection| {
            let rows = sqlx::query(OPEN).fetch_all(&mut *connection).await?;
            open_findings(connection, &rows).await
        })
        .await
    }

    /// Returns all nodes and what is open as if some audits had not been: nodes as the latest other audit found them, and
    /// without findings that only one of these has. A node that no other audit has is as it is.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn without(&self, runs: &[String]) -> Result<(Vec<NodeRow>, Vec<OpenFinding>), StoreError> {
        const LATEST: &str = "SELECT n.name, o.at, a.run, o.verdict, o.action, o.compliant, o.score, o.judged, o.applicable FROM \
                              observations o JOIN audits a ON a.id = o.audit JOIN nodes n ON n.id = o.node JOIN (SELECT p.node AS \
                              node, max(p.at) AS at FROM observations p JOIN audits b ON b.id = p.audit WHERE b.run NOT IN {} \
                              GROUP BY p.node) m ON m.node = o.node AND m.at = o.at ORDER BY a.run";
        self.ask(async |connection| {
            let values: Vec<Value> = runs.iter().map(|run| Value::from(run.as_str())).collect();
            let series =
                select_in(connection, "SELECT series FROM audits WHERE run IN {}", values.clone()).await?;
            let series: BTreeSet<String> =
                series.iter().map(|row| text(row, "series")).collect::<Result<_, _>>()?;
            let mut counted = Vec::new();
            for row in sqlx::query(OPEN).fetch_all(&mut *connection).await? {
                // A finding of more than one audit is not of a series that has one.
                if count(&row, "audits")? > 1 || !series.contains(&text(&row, "series")?) {
                    counted.push(row);
                }
            }
            let open = open_findings(connection, &counted).await?;
            let rows = sqlx::query(NODES).fetch_all(&mut *connection).await?;
            let mut nodes: BTreeMap<String, NodeRow> = BTreeMap::new();
            for row in &rows {
                let node = node_row(row)?;
                nodes.insert(node.node.clone(), node);
            }
            let stale = nodes.values().filter(|node| runs.contains(&node.run));
            let stale: BTreeSet<String> = stale.map(|node| node.node.clone()).collect();
            if !stale.is_empty() {
                for row in &select_in(connection, LATEST, values).await? {
                    let run = text(row, "run")?;
                    let name = text(row, "name")?;
                    let Some(node) = nodes.get_mut(&name).filter(|_| stale.contains(&name)) else { continue };
                    if runs.contains(&run) {
                        continue;
                    }
                    let before = node.verdict;
                    node.at = timestamp(number(row, "at")?)?;
                    node.verdict = verdict(&text(row, "verdict")?)?;
                    if node.verdict != before {
                        node.since = node.at;
                    }
                    node.action = action(&text(row, "action")?)?;
                    node.compliant = number(row, "compliant")? != 0;
                    node.score = score(number(row, "score")?);
                    node.judged = count(row, "judged")?;
                    node.applicable = count(row, "applicable")?;
                    node.run = run;
                }
            }
            let mut findings: BTreeMap<&str, u32> = BTreeMap::new();
            for one in open.iter().filter(|one| one.found.waived.is_none()) {
                *findings.entry(&one.node).or_default() += 1;
            }
            for node in nodes.values_mut() {
                node.findings = findings.get(node.node.as_str()).copied().unwrap_or(0);
            }
            Ok((nodes.into_values().collect(), open))
        })
        .await
    }

    /// Returns the memory of the latest audit of each of these nodes that left one.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn memories(&self, nodes: &[String]) -> Result<BTreeMap<String, Json>, StoreError> {
        const STATEMENT: &str =
            "SELECT n.name, m.body FROM memories m JOIN nodes n ON n.id = m.node WHERE n.name IN {}";
        self.ask(async |connection| {
            let names = nodes.iter().map(|name| Value::from(name.as_str()));
            let rows = select_in(connection, STATEMENT, names).await?;
            rows.iter().map(|row| Ok((text(row, "name")?, of_json(&text(row, "body")?)?))).collect()
        })
        .await
    }

    /// Returns which of these runs are recorded.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn runs_known(&self, runs: &[String]) -> Result<BTreeSet<String>, StoreError> {
        self.ask(async |connection| {
            let runs = runs.iter().map(|run| Value::from(run.as_str()));
            let rows = select_in(connection, "SELECT run FROM audits WHERE run IN {}", runs).await?;
            rows.iter().map(|row| text(row, "run")).collect()
        })
        .await
    }

    /// Asks something, all of it as of one moment.
    async fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&mut AnyConnection) -> Result<T, Fault>,
    ) -> Result<T, StoreError> {
        let answer = async {
            let mut transaction = self.reading().await?;
            let answer = question(&mut transaction).await?;
            transaction.rollback().await?;
            Ok(answer)
        };
        answer.await.map_err(|fault| self.named(fault))
    }
}

fn audit_row(row: &AnyRow) -> Result<AuditRow, Fault> {
    let exit_code = number(row, "exit_code")?;
    Ok(AuditRow {
        run: text(row, "run")?,
        controller: text(row, "controller")?,
        started: timestamp(number(row, "started")?)?,
        finished: timestamp(number(row, "finished")?)?,
        playbooks: of_json(&text(row, "playbooks")?)?,
        baselines: of_json(&text(row, "baselines")?)?,
        exit_code: u8::try_from(exit_code)
            .map_err(|_| Fault::damaged(format!("{exit_code} is no exit code")))?,
        nodes: count(row, "nodes")?,
        compliant: count(row, "compliant")?,
        verdicts: of_json(&text(row, "verdicts")?)?,
    })
}

fn node_row(row: &AnyRow) -> Result<NodeRow, Fault> {
    let known = |text: String| Some(text).filter(|text| !text.is_empty());
    Ok(NodeRow {
        node: text(row, "name")?,
        groups: of_json(&text(row, "inventory_groups")?)?,
        hardware: known(text(row, "hardware")?),
        driver: known(text(row, "driver")?),
        run: text(row, "run")?,
        at: timestamp(number(row, "at")?)?,
        verdict: verdict(&text(row, "verdict")?)?,
        since: timestamp(number(row, "verdict_since")?)?,
        action: action(&text(row, "action")?)?,
        compliant: number(row, "compliant")? != 0,
        score: score(number(row, "score")?),
        judged: count(row, "judged")?,
        applicable: count(row, "applicable")?,
        findings: count(row, "findings")?,
    })
}

async fn earlier(
    connection: &mut AnyConnection,
    series: &str,
    nodes: &[String],
    before: Timestamp,
) -> Result<Option<Earlier>, Fault> {
    const IDS: &str = "SELECT id FROM nodes WHERE name IN {}";
    let names = nodes.iter().map(|name| Value::from(name.as_str()));
    let rows = select_in(connection, IDS, names).await?;
    let ids = rows.iter().map(|row| number(row, "id")).collect::<Result<Vec<_>, _>>()?;
    let audits = sqlx::query(
        "SELECT id, run, started FROM audits WHERE series = $1 AND started < $2 AND nodes >= $3 ORDER BY started DESC, run \
         DESC LIMIT $4",
    );
    let most = i64::try_from(nodes.len()).unwrap_or(i64::MAX);
    // Rounded up, so that a single node has to be there.
    let least = most.saturating_mul(9).saturating_add(9) / 10;
    let audits = audits.bind(series.to_owned()).bind(micros(before)).bind(least).bind(LOOKED_AT);
    for audit in audits.fetch_all(&mut *connection).await? {
        const STATEMENT: &str = "SELECT compliant FROM observations WHERE audit = $1 AND node IN {}";
        let (mut found, mut compliant) = (0_u32, 0_u32);
        let list = ids.iter().copied().map(Value::from);
        for row in select_of_in(connection, STATEMENT, &[number(&audit, "id")?.into()], list).await? {
            found += 1;
            compliant += u32::from(number(&row, "compliant")? != 0);
        }
        if i64::from(found) >= least && found > 0 {
            let started = timestamp(number(&audit, "started")?)?;
            return Ok(Some(Earlier { run: text(&audit, "run")?, started, nodes: found, compliant }));
        }
    }
    Ok(None)
}

/// The verdicts of a node, and the findings that it does not have any more, each the newest first.
async fn timeline(connection: &mut AnyConnection, node: i64) -> Result<(Vec<Span>, Vec<PastFinding>), Fault> {
    let readings = derive::readings(connection, &[node]).await?.remove(&node).unwrap_or_default();
    let mut state = derive::carried(connection, &[node]).await?.remove(&node).unwrap_or_default();
    let (mut spans, mut ended): (Vec<VerdictStreak>, Vec<(Key, Streak)>) = (Vec::new(), Vec::new());
    for reading in &readings {
        let more = state.step(reading);
        spans.extend(more.verdict);
        ended.extend(more.findings);
    }
    spans.extend(state.verdict);
    let ids: BTreeSet<i64> = ended.iter().flat_map(|(_, streak)| streak.found.iter().copied()).collect();
    let found = intern::findings(connection, ids).await?;
    let mut past = Vec::new();
    for (_, streak) in ended {
        for id in &streak.found {
            let Some(found) = found.get(id).cloned() else { continue };
            past.push(PastFinding { found, from: timestamp(streak.since)?, until: timestamp(streak.last)? });
        }
    }
    past.sort_by(|one, other| {
        fn place(past: &PastFinding) -> impl Ord {
            let found = &past.found;
            (Reverse((past.until, past.from)), (&found.control, &found.subject), (found.verdict, &found.text))
        }
        place(one).cmp(&place(other))
    });
    let span = |streak: VerdictStreak| {
        let (from, until) = (timestamp(streak.since)?, timestamp(streak.last)?);
        Ok(Span { verdict: streak.verdict, from, until, audits: streak.audits })
    };
    let spans = spans.into_iter().rev().map(span).collect::<Result<_, Fault>>()?;
    Ok((spans, past))
}

async fn control(connection: &mut AnyConnection, name: &str, id: i64) -> Result<ControlHistory, Fault> {
    let rows = sqlx::query(OPEN_OF_CONTROL).bind(id).fetch_all(&mut *connection).await?;
    let mut open = open_findings(connection, &rows).await?;
    open.sort_by(|one, other| {
        (one.since, &one.node, &one.found.subject).cmp(&(other.since, &other.node, &other.found.subject))
    });
    // The latest title: a check may get a better one.
    let row = sqlx::query("SELECT id FROM found WHERE control = $1 ORDER BY id DESC LIMIT 1").bind(id);
    let latest = match row.fetch_optional(&mut *connection).await? {
        Some(row) => intern::findings(connection, [number(&row, "id")?]).await?.into_values().next(),
        None => None,
    };
    let rows = sqlx::query(
        "SELECT a.started, c.nodes FROM audit_controls c JOIN audits a ON a.id = c.audit WHERE c.control = $1 ORDER BY \
         a.started, a.run",
    );
    let rows = rows.bind(id).fetch_all(&mut *connection).await?;
    let trend = rows.iter().map(|row| Ok((timestamp(number(row, "started")?)?, count(row, "nodes")?)));
    Ok(ControlHistory {
        control: name.to_owned(),
        title: latest.map_or_else(|| name.to_owned(), |found| found.title),
        open,
        trend: trend.collect::<Result<_, Fault>>()?,
    })
}

/// Open findings of rows, the worst first.
async fn open_findings(connection: &mut AnyConnection, rows: &[AnyRow]) -> Result<Vec<OpenFinding>, Fault> {
    let mut streaks: Vec<(String, Streak)> = Vec::new();
    for row in rows {
        let (_, _, streak) = derive::open_row(row)?;
        streaks.push((text(row, "name")?, streak));
    }
    let ids: BTreeSet<i64> = streaks.iter().flat_map(|(_, streak)| streak.found.iter().copied()).collect();
    let found = intern::findings(connection, ids).await?;
    let mut open = Vec::new();
    for (node, streak) in streaks {
        for id in &streak.found {
            let found = found.get(id).cloned();
            let found = found.ok_or_else(|| Fault::damaged("the text of a finding is missing"))?;
            open.push(OpenFinding {
                node: node.clone(),
                found,
                since: timestamp(streak.since)?,
                audits: streak.audits,
                last: timestamp(streak.last)?,
            });
        }
    }
    open.sort_by(|one, other| place(one).cmp(&place(other)));
    Ok(open)
}

/// Where an open finding stands among others: causes first, then the worst, then the oldest.
fn place(open: &OpenFinding) -> impl Ord + '_ {
    let found = &open.found;
    (
        (found.waived.is_some(), found.explained_by.is_some()),
        (Reverse(found.verdict), Reverse(found.severity), open.since),
        (&found.control, &open.node, &found.subject, &found.text),
    )
}

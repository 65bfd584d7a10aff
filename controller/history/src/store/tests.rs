use std::{collections::BTreeMap, os::unix::fs::PermissionsExt as _};

use gpufleet_compliance::Verdict;
use jiff::Timestamp;
use proptest::prelude::*;
use tempfile::TempDir;

mod year;

use super::*;
use crate::{Audit, NodeReading, OpenFinding, Recorded, Span, sample};

async fn store(folder: &TempDir, name: &str) -> Store {
    Store::at(&Place::file(folder.path().join(name))).await.unwrap()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Fails at the first line that differs.
fn same(one: &str, other: &str) -> Result<(), TestCaseError> {
    if let Some((at, _)) = one.lines().zip(other.lines()).enumerate().find(|(_, (one, other))| one != other) {
        let around =
            |text: &str| text.lines().skip(at.saturating_sub(25)).take(40).collect::<Vec<_>>().join("\n");
        return Err(TestCaseError::fail(format!("{}\nand\n{}", around(one), around(other))));
    }
    prop_assert_eq!(one.len(), other.len());
    Ok(())
}

/// Node, control, subject, and whether nothing could be judged.
type OpenKey = (String, String, String, bool);
/// Since when, in how many audits, when last.
type Since = (Timestamp, u32, Timestamp);

/// What the store is about, as simple as it can be said: each key is followed through all audits of its node.
mod naive {
    use super::*;

    fn in_order<'a>(audits: &'a [Audit], name: &str) -> Vec<(&'a Audit, &'a NodeReading)> {
        let mut readings: Vec<(&Audit, &NodeReading)> = audits
            .iter()
            .filter_map(|audit| Some((audit, audit.nodes.iter().find(|node| node.node == name)?)))
            .collect();
        readings.sort_by_key(|(audit, node)| (node.at, audit.run.clone()));
        readings
    }

    pub fn names(audits: &[Audit]) -> Vec<String> {
        let mut names: Vec<_> =
            audits.iter().flat_map(|it| &it.nodes).map(|node| node.node.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// What is open: since when, in how many audits, when last.
    pub fn open(audits: &[Audit]) -> BTreeMap<OpenKey, Since> {
        let mut open = BTreeMap::new();
        for name in names(audits) {
            let readings = in_order(audits, &name);
            let mut keys: Vec<(&str, &str, bool)> = readings
                .iter()
                .flat_map(|(_, node)| &node.findings)
                .map(|found| (&*found.control, &*found.subject, found.verdict == Verdict::Unknown))
                .collect();
            keys.sort();
            keys.dedup();
            for (control, subject, unknown) in keys {
                let mut streak: Option<Since> = None;
                let mut finder: Option<&Audit> = None;
                for (audit, node) in &readings {
                    let has = |unknown: bool| {
                        node.findings.iter().any(|found| {
                            found.control == control
                                && found.subject == subject
                                && (found.verdict == Verdict::Unknown) == unknown
                        })
                    };
                    let lists = |names: &[String]| names.iter().any(|name| name == control);
                    if has(unknown) {
                        let (since, audits, _) = streak.unwrap_or((node.at, 0, node.at));
                        streak = Some((since, audits + 1, node.at));
                        finder = Some(audit);
                        continue;
                    }
                    let same = finder.is_some_and(|finder| {
                        finder.playbooks == audit.playbooks && finder.baselines == audit.baselines
                    });
                    let gone = if has(!unknown) {
                        unknown
                    } else {
                        lists(&node.controls.judged)
                            || (node.controls.complete && same && !lists(&node.controls.not_judged))
                    };
                    if gone {
                        streak = None;
                    }
                }
                if let Some(streak) = streak {
                    open.insert((name.clone(), control.to_owned(), subject.to_owned(), unknown), streak);
                }
            }
        }
        open
    }

    /// The verdicts of a node, the newest first.
    pub fn spans(audits: &[Audit], name: &str) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for (_, node) in in_order(audits, name) {
            match spans.first_mut() {
                Some(span) if span.verdict == node.verdict => {
                    span.until = node.at;
                    span.audits += 1;
                }
                _ => {
                    spans.insert(0, Span { verdict: node.verdict, from: node.at, until: node.at, audits: 1 })
                }
            }
        }
        spans
    }
}

fn open_of(found: &[OpenFinding]) -> BTreeMap<OpenKey, Since> {
    let key = |open: &OpenFinding| {
        let unknown = open.found.verdict == Verdict::Unknown;
        (open.node.clone(), open.found.control.clone(), open.found.subject.clone(), unknown)
    };
    found.iter().map(|open| (key(open), (open.since, open.audits, open.last))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn audits_in_any_order_give_the_answers_of_a_simple_model(seed: u64, count in 1_u64..14) {
        block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let audits = sample::random(seed, count);
            let (one, other) = (store(&folder, "one.db").await, store(&folder, "other.db").await);
            for audit in &audits {
                prop_assert_eq!(one.record(audit).await.unwrap(), Recorded::New);
            }
            for audit in sample::shuffled(&audits, seed) {
                prop_assert_eq!(other.record(&audit).await.unwrap(), Recorded::New);
                prop_assert_eq!(other.record(&audit).await.unwrap(), Recorded::Known);
            }
            let said = sample::answers(&one, &audits).await.unwrap();
            same(&said, &sample::answers(&other, &audits).await.unwrap())?;
            prop_assert_eq!(open_of(&one.open_findings().await.unwrap()), naive::open(&audits));
            for name in naive::names(&audits) {
                let node = one.node(&name).await.unwrap().unwrap();
                prop_assert_eq!(&node.spans, &naive::spans(&audits, &name));
                prop_assert_eq!((node.node.verdict, node.node.since), (node.spans[0].verdict, node.spans[0].from));
                let counting = node.open.iter().filter(|open| open.found.waived.is_none()).count();
                prop_assert_eq!(node.node.findings as usize, counting);
            }
            let first: Vec<Audit> = audits.iter().take(audits.len() / 2).cloned().collect();
            prop_assert_eq!(other.replace(first.clone()).await.unwrap(), first.len() as u64);
            // Recorded again, nothing changes.
            same(&said, &sample::answers(&other, &audits).await.unwrap())?;
            Ok(())
        })?;
    }

    #[test]
    fn a_forgotten_audit_was_never_there(seed: u64, count in 2_u64..10, at in 0_usize..10) {
        let audits = sample::random(seed, count);
        let at = at % audits.len();
        let mut others = audits.clone();
        let gone = others.remove(at);
        block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let (all, without) = (store(&folder, "all").await, store(&folder, "without").await);
            for audit in &audits {
                all.record(audit).await.unwrap();
            }
            for audit in &others {
                without.record(audit).await.unwrap();
            }
            prop_assert!(all.forget(&gone.run).await.unwrap());
            prop_assert!(!all.forget(&gone.run).await.unwrap());
            prop_assert_eq!(all.audits(None).await.unwrap(), without.audits(None).await.unwrap());
            prop_assert_eq!(all.open_findings().await.unwrap(), without.open_findings().await.unwrap());
            for name in naive::names(&audits) {
                // Its hardware is what its latest audit read, forgotten or not.
                let told = |node: Option<crate::NodeHistory>| node.map(|it| (it.node.verdict, it.node.since, it.spans, it.open, it.past));
                let (found, wanted) = (all.node(&name).await.unwrap(), without.node(&name).await.unwrap());
                prop_assert_eq!(told(found), told(wanted), "{}", name);
            }
            Ok(())
        })?;
    }

    #[test]
    fn pruning_keeps_since_when(seed: u64, count in 2_u64..14, kept in 1_u64..8) {
        block_on(async {
            let folder = tempfile::tempdir().unwrap();
            // Only audits that do not overlap: of others, a later one may be the earlier one of a node.
            let mut audits = sample::random(seed, count);
            for audit in &mut audits {
                let at = audit.started;
                audit.nodes.iter_mut().for_each(|node| node.at = at);
            }
            let store = store(&folder, "history.db").await;
            for audit in &audits {
                store.record(audit).await.unwrap();
            }
            let before = store.open_findings().await.unwrap();
            let cut = audits.len().saturating_sub(kept as usize);
            let (old, rest) = audits.split_at(cut);
            prop_assert_eq!(store.prune(rest[0].started).await.unwrap(), old.len() as u64);
            let names = naive::names(rest);
            let kept: Vec<OpenFinding> = before.into_iter().filter(|open| names.contains(&open.node)).collect();
            prop_assert_eq!(store.open_findings().await.unwrap(), kept.clone());
            prop_assert_eq!(store.audits(None).await.unwrap().len(), rest.len());
            prop_assert_eq!(store.nodes().await.unwrap().len(), names.len());
            for audit in old {
                prop_assert_eq!(store.record(audit).await.unwrap(), Recorded::TooOld);
            }
            store.replace(audits.clone()).await.unwrap();
            prop_assert_eq!(store.open_findings().await.unwrap(), kept);
            for name in names {
                let node = store.node(&name).await.unwrap().unwrap();
                let all = naive::spans(&audits, &name);
                prop_assert!(all.starts_with(&node.spans) && !node.spans.is_empty(), "{:?} {:?}", node.spans, all);
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_check_that_was_not_judged_neither_ends_nor_continues_a_finding() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder, "history.db").await;
        let hot = |text: &str| sample::found("thermal.gpu", "GPU 3", Verdict::Fail, text);
        let node = |hours, findings, judged: &[&str]| {
            sample::reading("gpu001", sample::read_at(hours), findings, judged)
        };
        let record = async |hours: i64, node| {
            store.record(&sample::audit(&format!("R{hours}"), hours, vec![node])).await.unwrap();
            let open = store.open_findings().await.unwrap();
            open.into_iter().map(|open| (open.found.text, open.since, open.audits)).collect::<Vec<_>>()
        };
        let at = sample::read_at;
        let one = |text: &str, since, audits| vec![(text.to_owned(), since, audits)];
        assert_eq!(record(0, node(0, vec![hot("90 C")], &["thermal.gpu"])).await, one("90 C", at(0), 1));
        assert_eq!(record(1, node(1, vec![hot("91 C")], &["thermal.gpu"])).await, one("91 C", at(0), 2));
        let mut unread = node(2, Vec::new(), &[]);
        unread.controls.complete = false;
        assert_eq!(record(2, unread).await, one("91 C", at(0), 2), "the node was not reached");
        let mut shallow = node(3, Vec::new(), &["os.swap"]);
        shallow.controls.not_judged.push("thermal.gpu".to_owned());
        assert_eq!(record(3, shallow).await, one("91 C", at(0), 2), "it was asked for, and not judged");
        assert_eq!(record(4, node(4, vec![hot("92 C")], &["thermal.gpu"])).await, one("92 C", at(0), 3));
        let unknown = sample::found("thermal.gpu", "GPU 3", Verdict::Unknown, "not read");
        let both = record(5, node(5, vec![unknown], &[])).await;
        assert_eq!(both, [("92 C".to_owned(), at(0), 3), ("not read".to_owned(), at(5), 1)]);
        assert_eq!(record(6, node(6, vec![hot("93 C")], &["thermal.gpu"])).await, one("93 C", at(0), 4));
        assert_eq!(record(7, node(7, Vec::new(), &["thermal.gpu"])).await, []);
        assert_eq!(record(8, node(8, vec![hot("94 C")], &["thermal.gpu"])).await, one("94 C", at(8), 1));
        assert_eq!(
            record(9, node(9, Vec::new(), &["os.swap"])).await,
            [],
            "the baseline does not have it any more"
        );
        let past = store.node("gpu001").await.unwrap().unwrap().past;
        let past: Vec<_> = past.into_iter().map(|past| (past.found.text, past.from, past.until)).collect();
        let ended = |text: &str, from, until| (text.to_owned(), at(from), at(until));
        assert_eq!(past, [ended("94 C", 8, 8), ended("93 C", 0, 6), ended("not read", 5, 5)]);
    });
}

#[test]
fn the_file_is_for_its_owner_alone_and_errors_say_where() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b?c%.db");
        let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
        store.record(&sample::night(0, 3)).await.unwrap();
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{:?}", entry.path());
        }
        sqlx::query("INSERT INTO gpufleet_schema (version) VALUES (99)").execute(&store.pool).await.unwrap();
        store.close().await;
        let error = Store::at(&Place::file(&path)).await.unwrap_err().to_string();
        assert!(error.contains("newer gpufleet") && error.contains("a b?c%.db"), "{error}");

        let missing = Store::open("sqlite:/no/such/folder/history.db").await.unwrap_err().to_string();
        assert!(missing.contains("/no/such/folder/history.db: No such file"), "{missing}");
        let text = folder.path().join("text");
        std::fs::write(&text, "this is no database, and long enough for one to be sure\n".repeat(50))
            .unwrap();
        let error = Store::at(&Place::file(&text)).await.unwrap_err().to_string();
        assert!(error.contains("not a database"), "{error}");
        assert!(
            Store::open("postgres://ops:s3cret@[")
                .await
                .is_err_and(|error| !error.to_string().contains("s3cret"))
        );
    });
}

#[test]
fn several_open_and_write_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.db");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                block_on(async move {
                    let store = Store::at(&Place::file(path)).await.unwrap();
                    for night in 0..8 {
                        let mut audit = sample::night(night * 4 + writer, 5);
                        audit.controller = format!("controller{writer}");
                        assert_eq!(store.record(&audit).await.unwrap(), Recorded::New);
                    }
                });
            });
        }
    });
    block_on(async {
        let store = Store::at(&Place::file(&path)).await.unwrap();
        let all: Vec<Audit> = (0..32).map(|night| sample::night(night, 5)).collect();
        assert_eq!(store.audits(None).await.unwrap().len(), 32);
        assert_eq!(open_of(&store.open_findings().await.unwrap()), naive::open(&all));
        let runs: Vec<String> = ["01NIGHT00003", "01NIGHT99999"].map(str::to_owned).into();
        assert_eq!(store.runs_known(&runs).await.unwrap().into_iter().collect::<Vec<_>>(), runs[..1]);
    });
}

#[test]
fn an_earlier_audit_is_one_of_the_same_baselines_and_nodes() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder, "history.db").await;
        let bad = || vec![sample::found("os.swap", "", Verdict::Drift, "60, wants 10")];
        let at = sample::read_at;
        let nodes = |hours, bad_ones: usize, count: usize| -> Vec<NodeReading> {
            let node = |number: usize| {
                let findings = if number < bad_ones { bad() } else { Vec::new() };
                sample::reading(&format!("gpu{number:03}"), at(hours), findings, &["os.swap"])
            };
            (0..count).map(node).collect()
        };
        store.record(&sample::audit("A", 0, nodes(0, 3, 10))).await.unwrap();
        let mut other = sample::audit("B", 1, nodes(1, 9, 10));
        other.baselines.push("training".to_owned());
        store.record(&other).await.unwrap();
        store.record(&sample::audit("C", 2, nodes(2, 1, 2))).await.unwrap();
        let names: Vec<String> = (0..10).map(|number| format!("gpu{number:03}")).collect();
        let core = ["core".to_owned()];
        let of = async |names: &[String], hours| {
            let earlier = store.earlier(&[], &core, names, at(hours)).await.unwrap();
            earlier.map(|earlier| (earlier.run, earlier.compliant, earlier.nodes))
        };
        assert_eq!(of(&names, 3).await, Some(("A".to_owned(), 7, 10)), "C has few of them");
        assert_eq!(of(&names[..2], 3).await, Some(("C".to_owned(), 1, 2)));
        assert_eq!(of(&names[5..], 3).await, Some(("A".to_owned(), 5, 5)));
        assert_eq!(of(&names, -1).await, None);
    });
}

#[test]
fn a_retired_node_is_gone_and_can_come_again() {
    let folder = TempDir::new().unwrap();
    block_on(async {
        let audits = sample::random(3, 4);
        let store = store(&folder, "store.db").await;
        for audit in &audits {
            store.record(audit).await.unwrap();
        }
        let name = audits[3].nodes[0].node.clone();
        let before = store.audits(None).await.unwrap();
        assert!(store.retire(&name).await.unwrap());
        assert!(!store.retire(&name).await.unwrap(), "once");
        assert_eq!(store.node(&name).await.unwrap(), None);
        assert!(store.open_findings().await.unwrap().iter().all(|open| open.node != name));
        assert!(store.memories(std::slice::from_ref(&name)).await.unwrap().is_empty());
        assert_eq!(store.audits(None).await.unwrap(), before, "audits keep their numbers");
        let mut again = audits[3].clone();
        again.run = "01JZZZZZZZZZZZZZZZZZZZZZZZ".to_owned();
        store.record(&again).await.unwrap();
        assert!(store.node(&name).await.unwrap().is_some_and(|node| node.spans.len() == 1));
    });
}

#[test]
fn nodes_are_as_they_were_without_an_audit() {
    let folder = TempDir::new().unwrap();
    block_on(async {
        let mut audits = sample::random(5, 6);
        let store = store(&folder, "store.db").await;
        audits.sort_by_key(|audit| audit.started);
        let mut trial = audits[5].clone();
        trial.run = "01JZZZZZZZZZZZZZZZZZZZZZZZ".to_owned();
        trial.baselines = vec!["tried once".to_owned()];
        for node in &mut trial.nodes {
            node.at += jiff::SignedDuration::from_hours(1000);
            node.compliant = !node.compliant;
            node.verdict = Verdict::Fail;
        }
        for audit in &audits {
            store.record(audit).await.unwrap();
        }
        let wanted: Vec<_> = store
            .nodes()
            .await
            .unwrap()
            .into_iter()
            .map(|node| (node.node, node.run, node.verdict, node.compliant))
            .collect();
        store.record(&trial).await.unwrap();
        assert!(store.nodes().await.unwrap().iter().any(|node| node.run == trial.run));
        let (nodes, _) = store.without(std::slice::from_ref(&trial.run)).await.unwrap();
        let found: Vec<_> =
            nodes.into_iter().map(|node| (node.node, node.run, node.verdict, node.compliant)).collect();
        assert_eq!(found, wanted);
    });
}

/// The trend of a check tells how many nodes have its fault, and not of how many nobody knows.
#[test]
fn what_is_not_known_is_no_part_of_a_trend() {
    let found = |control: &str, verdict: Verdict| sample::found(control, "", verdict, "x");
    let findings = vec![
        found("mem.remap_failed", Verdict::Unknown),
        found("mem.remap_pending", Verdict::Drift),
        found("err.nvml_responsive", Verdict::Unknown),
        found("node", Verdict::Unknown),
        found("site.yaml:24", Verdict::Unknown),
    ];
    let controls: Vec<String> = findings.iter().map(|found| found.control.clone()).collect();
    let node = sample::reading("gpu001", sample::read_at(0), findings, &[]);
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let store = store(&folder, "history.db").await;
        store.record(&sample::audit("A1", 0, vec![node])).await.unwrap();
        let mut counts = Vec::new();
        for control in &controls {
            let trend = store.control(control).await.unwrap().unwrap().trend;
            counts.push(trend.iter().map(|(_, nodes)| *nodes).sum::<u32>());
        }
        assert_eq!(counts, [0, 1, 1, 1, 0]);
    });
}

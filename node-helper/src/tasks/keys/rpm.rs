//! `rpm_key`: keys of rpm's database, through `rpm`.

use std::{
    io::{Seek, Write},
    sync::Arc,
};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    repository::openpgp::{self, Certificate, Key},
    tasks::{KeyPlace, RepositoryState, RpmKey},
};
use serde_json::{Map, Value};

use super::{LIMIT, fingerprint, material, names, no_key, only};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{checksum::base64, files::At},
    process::Run,
    tasks::{
        download::{self, Request},
        edits::Present,
        tool, unarchive,
    },
    world::Effect,
};

const BRINGS: &str = "is it a node of the Red Hat family?";
/// Output limit in bytes, enough for hundreds of keys.
const DATABASE_LIMIT: usize = 8 << 20;
/// Begins each key in the answer of rpm.
const MARK: &str = "gpufleet-key ";

/// A key of the database.
#[derive(Clone, Debug)]
struct Imported {
    /// `gpg-pubkey-…`, as rpm removes it.
    package: String,
    keys: Vec<Key>,
}

/// Where a prediction keeps its assumptions.
const NOTED: &str = "rpm key ";
const THERE: &str = "there";

#[derive(Debug)]
pub struct State {
    imported: Vec<Imported>,
    /// Fingerprints that a prediction assumes to be there or not.
    noted: Vec<(String, bool)>,
    /// What the task's source gives, if it was needed.
    material: Option<(Vec<u8>, Vec<Certificate>)>,
}

#[derive(Debug)]
pub enum Step {
    Import(Vec<u8>),
    Erase(Vec<String>),
}

/// Parses the answer of rpm: a line for each key, and its armored block.
fn parse(text: &str) -> Vec<Imported> {
    let read = |part: &str| {
        let (package, block) = part.split_once('\n').unwrap_or((part, ""));
        let bytes = material(block.as_bytes()).unwrap_or_default();
        let all = openpgp::certificates(&bytes).unwrap_or_default();
        let keys = all.into_iter().flat_map(|one| one.keys).collect();
        Imported { package: package.trim().to_owned(), keys }
    };
    text.split(MARK).skip(1).map(read).collect()
}

fn imported(node: &Node<'_>) -> Result<Vec<Imported>, Trouble> {
    let program = tool::find(node, "rpm", BRINGS)?;
    let format = format!("{MARK}%{{NAME}}-%{{VERSION}}-%{{RELEASE}}\\n%{{DESCRIPTION}}\\n");
    let run = tool::run(node, program).args(["-q", "gpg-pubkey", "--qf", &format]).limit(DATABASE_LIMIT);
    let done = tool::ask(node, &run)?;
    let text = done.stdout();
    if !done.exit.success() && !text.contains("is not installed") {
        return Err(Trouble::io(done.complaint("rpm -q gpg-pubkey")));
    }
    Ok(parse(&text))
}

impl Imported {
    fn is(&self, id: &str) -> bool {
        // A key that cannot be read is known by its version alone, the last 8 digits of its id.
        let version = self.package.split('-').nth(2).unwrap_or_default().to_ascii_uppercase();
        match self.keys.is_empty() {
            true => !version.is_empty() && (id.ends_with(&version) || version.ends_with(id)),
            false => self.keys.iter().any(|key| names(id, key)),
        }
    }
}

impl State {
    fn has(&self, id: &str) -> bool {
        if let Some((_, there)) = self.noted.iter().find(|(known, _)| known.ends_with(id)) {
            return *there;
        }
        self.imported.iter().any(|one| one.is(id))
    }
}

/// Fingerprints as they are compared.
fn declared(task: &RpmKey) -> Vec<String> {
    task.fingerprint.iter().filter_map(|text| openpgp::key_id(text)).collect()
}

impl NodeKind for RpmKey {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let noted = node.world.noted(NOTED).into_iter().map(|(id, value)| (id, value == THERE)).collect();
        let mut state = State { imported: imported(node)?, noted, material: None };
        let fingerprints = declared(self);
        let known = !fingerprints.is_empty() && fingerprints.iter().all(|id| state.has(id));
        let (place, bytes) = match self.place() {
            KeyPlace::Id(_) => return Ok(state),
            KeyPlace::Address(_) if known && self.state == RepositoryState::Present => return Ok(state),
            KeyPlace::Address(url) => {
                let request = Request::plain(url, self.validate_certs, LIMIT);
                (download::shown(url), node.downloads.get(&request, node)?.bytes()?)
            }
            KeyPlace::File(path) => {
                let file = Present::read(node, path)?;
                let bytes = file.bytes.ok_or_else(|| Trouble::missing(format!("Not a valid key {path}")))?;
                (path.to_owned(), bytes)
            }
        };
        let bytes = material(&bytes).map_err(|why| no_key(&place, why))?;
        let all = openpgp::certificates(&bytes).map_err(|why| no_key(&place, why))?;
        if fingerprints.is_empty() {
            state.material = Some((bytes, all));
            return Ok(state);
        }
        let bytes = only(&bytes, &fingerprints).map_err(|id| {
            let found: Vec<String> = all.iter().filter_map(|one| one.keys.first()).map(fingerprint).collect();
            let why = format!(
                "the specified fingerprint, {id}, does not match any primary key in it: {}",
                found.join(", ")
            );
            no_key(&place, &why)
        })?;
        let all = openpgp::certificates(&bytes).map_err(|why| no_key(&place, why))?;
        state.material = Some((bytes, all));
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let change = |id: &str, from: Typed, to: Typed| {
            let subject = Subject::SigningKey { id: id.to_owned() };
            Change::new(subject, Property::STATE, from, to, Disruption::Live)
        };
        let here = || -> Typed { "in rpm's database".into() };
        let ids: Vec<String> = match (&state.material, self.place()) {
            (Some((_, all)), _) => all.iter().filter_map(|one| one.keys.first()).map(fingerprint).collect(),
            (None, KeyPlace::Id(id)) => vec![id],
            (None, _) => return Ok(plan),
        };
        match self.state {
            RepositoryState::Present => {
                let missing: Vec<&String> = ids.iter().filter(|id| !state.has(id)).collect();
                if missing.is_empty() {
                    return Ok(plan);
                }
                let Some((bytes, _)) = &state.material else {
                    return Err(Trouble::invalid("When importing a key, a valid file must be given"));
                };
                plan.steps.push(Step::Import(bytes.clone()));
                plan.changes.extend(missing.iter().map(|id| change(id, Typed::Absent, here())));
            }
            RepositoryState::Absent => {
                for id in ids.iter().filter(|id| state.has(id)) {
                    let found: Vec<&Imported> = state.imported.iter().filter(|one| one.is(id)).collect();
                    let whole = found.iter().find_map(|one| one.keys.first()).map(fingerprint);
                    plan.steps.push(Step::Erase(found.iter().map(|one| one.package.clone()).collect()));
                    plan.changes.push(change(whole.as_ref().unwrap_or(id), here(), Typed::Absent));
                }
            }
        }
        Ok(plan)
    }

    fn after(&self, _: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let value = if self.state == RepositoryState::Present { THERE } else { "" };
        let ids = plan.changes.iter().filter_map(|change| match &change.subject {
            Subject::SigningKey { id } => Some(id),
            _ => None,
        });
        ids.map(|id| Effect::Noted { name: format!("{NOTED}{id}"), value: value.to_owned() }).collect()
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        let program = tool::find(node, "rpm", BRINGS)?;
        for step in &plan.steps {
            let run = tool::run(node, &program);
            match step {
                Step::Import(bytes) => {
                    // rpm takes armored keys only.
                    let text = openpgp::armored(bytes, base64);
                    let mut file = unarchive::unnamed()?;
                    file.write_all(text.as_bytes()).and_then(|()| file.rewind()).at("write", "/var/tmp")?;
                    let run = run.args(["--import", Run::INPUT]).stdin_file(Arc::new(file));
                    tool::act(node, &run, "rpm --import")?;
                }
                Step::Erase(packages) => {
                    tool::act(node, &run.args(["--erase", "--allmatches"]).args(packages), "rpm --erase")?;
                }
            }
        }
        Ok(Map::new())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};
    use serde_json::json;

    use super::{
        super::tests::{ARMORED, EXPIRED_FINGERPRINT, FINGERPRINT, curl},
        *,
    };
    use crate::tasks::testing::Bench;

    const RPM: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
case "$1" in
-q) [ -e $d/key ] || { echo 'package gpg-pubkey is not installed'; exit 1; }
    echo 'gpufleet-key gpg-pubkey-974ada98-6b07b338'; cat $d/key;;
--import) cat "$2" > $d/key; echo import >> $d/log;;
--erase) echo "$@" >> $d/log; rm $d/key;;
esac
"#;

    fn task(value: Value) -> RpmKey {
        serde_json::from_value(value).unwrap()
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/rpm", RPM);
        curl(&bench, ARMORED);
        bench
    }

    #[test]
    fn a_key_is_imported_once_and_erased() {
        let bench = bench();
        let declared = task(json!({"key": "https://a.example/key"}));
        let predicted = bench.run(&declared, Mode::Predict);
        assert!(!bench.path("key").exists());
        let applied = bench.run(&declared, Mode::Apply);
        assert_eq!((&applied.status, &applied.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(bench.run(&declared, Mode::Apply).status, OpStatus::Ok);
        // With the fingerprint, nothing is downloaded.
        std::fs::remove_file(bench.path("log")).unwrap();
        let known = task(json!({"key": "https://a.example/key", "fingerprint": FINGERPRINT}));
        assert_eq!(bench.run(&known, Mode::Apply).status, OpStatus::Ok);
        assert!(!bench.path("log").exists());
        let gone = bench.run(&task(json!({"key": "974ADA98", "state": "absent"})), Mode::Apply);
        assert_eq!(gone.status, OpStatus::Changed, "{gone:?}");
        assert_eq!(bench.read("log"), "--erase --allmatches gpg-pubkey-974ada98-6b07b338\n");
        assert_eq!(
            bench.run(&task(json!({"key": "974ADA98", "state": "absent"})), Mode::Apply).status,
            OpStatus::Ok
        );
    }

    #[test]
    fn another_key_than_the_declared_one_is_refused() {
        let bench = bench();
        let wrong = task(json!({"key": "https://a.example/key", "fingerprint": EXPIRED_FINGERPRINT}));
        let failed = bench.run(&wrong, Mode::Apply);
        assert!(matches!(failed.status, OpStatus::Failed { .. }), "{failed:?}");
        let by_id = bench.run(&task(json!({"key": "DEADB33F"})), Mode::Apply);
        assert!(matches!(by_id.status, OpStatus::Failed { .. }), "{by_id:?}");
        assert!(!bench.path("key").exists());
    }

    #[test]
    fn keys_of_the_database_are_read() {
        let all =
            parse(&format!("{MARK}gpg-pubkey-974ada98-1\n{ARMORED}\n{MARK}gpg-pubkey-deadb33f-2\nnone\n"));
        assert!(all[0].is(FINGERPRINT) && all[0].is("974ADA98") && !all[0].is("DEADB33F"));
        assert!(all[1].is("DEADB33F") && !all[1].is("974ADA98"));
    }
}

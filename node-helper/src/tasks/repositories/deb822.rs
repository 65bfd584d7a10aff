//! `deb822_repository`: a source of apt in a file of its own, with its key.

use gpufleet_protocol::tasks::{Deb822Repository, RepositoryState, SignedBy};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::Ownership,
    tasks::{
        download::{self, Request},
        edits::{Present, Step, by_steps},
        keys,
        ownership::Wanted,
    },
};

#[derive(Debug)]
pub struct State {
    file: Present,
    /// The files that its key may be in, by their endings.
    keys: [(&'static str, Present); 2],
    /// The downloaded key.
    material: Option<Vec<u8>>,
    mode: Wanted,
}

impl State {
    /// Returns the file for the key, which is armored or not.
    fn key_file(&self) -> Option<(&Present, &[u8])> {
        let material = self.material.as_deref()?;
        let ending = if keys::is_armored(material) { "asc" } else { "gpg" };
        let (_, file) = self.keys.iter().find(|(known, _)| *known == ending)?;
        Some((file, material))
    }
}

impl NodeKind for Deb822Repository {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if !node.roots.path("/etc/apt").is_dir() {
            return Err(Trouble::missing(
                "there is no /etc/apt on this node; is it a node of Debian or Ubuntu?",
            ));
        }
        let wanted = self.state == RepositoryState::Present;
        let material = match self.key() {
            Some(SignedBy::Address(url)) if wanted => {
                let bytes = node.downloads.get(&Request::plain(url, true, keys::LIMIT), node)?.bytes()?;
                keys::material(&bytes)
                    .map_err(|why| Trouble::invalid(format!("signed_by: {}: {why}", download::shown(url))))?;
                Some(bytes)
            }
            _ => None,
        };
        let read = |ending: &'static str| -> Result<_, Trouble> {
            Ok((ending, Present::read(node, &self.key_file(ending))?))
        };
        let keys = [read("asc")?, read("gpg")?];
        let file = Present::read(node, &self.file())?;
        let mode = Wanted::resolve(node.users, None, None, self.mode.as_ref())?;
        Ok(State { file, keys, material, mode })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        if self.state == RepositoryState::Absent {
            for file in [&state.file, &state.keys[0].1, &state.keys[1].1] {
                if file.bytes.is_some() {
                    plan.push(file.removed(), file.change(None));
                }
            }
            plan.data.insert("key_filename".to_owned(), json!(state.keys[1].1.shown));
            return Ok(plan);
        }
        let readable = Wanted { mode: Some("0644".to_owned()), ..Wanted::default() };
        let key = state.key_file();
        if let Some((file, material)) = key {
            if file.bytes.as_deref() != Some(material) {
                let own = Ownership { mode: Some(0o644), ..Ownership::default() };
                plan.steps.extend(file.written(material, own));
                plan.changes.push(file.change(Some(material)));
            } else {
                file.plan_ownership(&readable, &mut plan)?;
            }
        }
        let text = self.text(key.map(|(file, _)| file.shown.as_str()));
        if state.file.bytes.as_deref() != Some(text.as_bytes()) {
            let mut change = state.file.change(Some(text.as_bytes()));
            let secret = self.uris.iter().flatten().any(|uri| download::shown(uri) != *uri);
            change.diff = state.file.diff(&text, secret);
            let mode = state.mode.bits(state.file.owned.map_or(0o644, |owned| owned.mode), false)?;
            let own = Ownership { mode, ..Ownership::default() };
            plan.steps.extend(state.file.written(text.as_bytes(), own));
            plan.changes.push(change);
        } else {
            state.file.plan_ownership(&state.mode, &mut plan)?;
        }
        plan.data.insert("repo".to_owned(), json!(text));
        let given = match self.key() {
            Some(SignedBy::Given(path)) if path.starts_with('/') && !path.contains('\n') => Some(path),
            _ => None,
        };
        let key = key.map(|(file, _)| file.shown.as_str()).or(given);
        plan.data.insert("key_filename".to_owned(), json!(key));
        Ok(plan)
    }

    by_steps!();

    fn data(&self, _: &State) -> Map<String, Value> {
        let data = [("repo", Value::Null), ("dest", json!(self.file()))];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::{
        keys::tests::{ARMORED, curl},
        testing::Bench,
    };

    fn task(value: Value) -> Deb822Repository {
        serde_json::from_value(value).unwrap()
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("etc/apt/apt.conf", "");
        curl(&bench, ARMORED);
        bench
    }

    #[test]
    fn a_source_comes_with_its_key_and_goes_with_it() {
        let bench = bench();
        let declared = task(json!({
            "name": "CUDA x", "uris": "https://a.example", "suites": "/", "signed_by": "https://a.example/key", "mode": "0640",
        }));
        let before = bench.snapshot();
        let predicted = bench.run(&declared, Mode::Predict);
        assert_eq!(predicted.status, OpStatus::Changed, "{predicted:?}");
        assert_eq!(bench.run(&declared, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        assert_eq!(crate::tasks::testing::changed(&before, &bench.snapshot()), [bench.path("log")]);
        std::fs::remove_file(bench.path("log")).unwrap();
        let applied = bench.run(&declared, Mode::Apply);
        assert_eq!(applied.changes, predicted.changes);
        assert_eq!(bench.read("log"), "https://a.example/key\n", "one download for all");
        assert_eq!(
            bench.read("etc/apt/sources.list.d/cuda-x.sources"),
            "X-Repolib-Name: CUDA x\nSigned-By: /etc/apt/keyrings/cuda-x.asc\nSuites: /\nTypes: deb\nURIs: https://a.example\n"
        );
        assert_eq!(bench.read("etc/apt/keyrings/cuda-x.asc"), ARMORED);
        assert_eq!(applied.data["key_filename"], "/etc/apt/keyrings/cuda-x.asc");
        assert_eq!(applied.data["dest"], "/etc/apt/sources.list.d/cuda-x.sources");
        assert_eq!(bench.run(&declared, Mode::Apply).status, OpStatus::Ok);
        let gone = bench.run(&task(json!({"name": "cuda x", "state": "absent"})), Mode::Apply);
        assert_eq!((gone.changes.len(), &gone.data["repo"]), (2, &Value::Null));
        assert!(!bench.path("etc/apt/keyrings/cuda-x.asc").exists());
    }

    #[test]
    fn what_is_no_key_is_not_trusted() {
        let bench = bench();
        curl(&bench, "<html>moved</html>\n");
        let declared =
            json!({"name": "x", "uris": "https://a", "suites": "/", "signed_by": "https://me:pw@a/key"});
        let failed = bench.run(&task(declared), Mode::Apply);
        let OpStatus::Failed { message, .. } = failed.status else { panic!("{failed:?}") };
        assert_eq!(message, "signed_by: https://a/key: it is no OpenPGP key");
        assert!(!bench.path("etc/apt/keyrings").exists());
    }
}

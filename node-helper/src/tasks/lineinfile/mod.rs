//! `lineinfile`: one line of a text file.

mod edit;

use std::{fs, path::PathBuf, time::SystemTime};

use gpufleet_protocol::{
    Change, Disruption,
    tasks::{LineInFile, LineState},
};
use serde_json::{Map, Value, json};

use self::edit::{Edited, Rule};
use crate::{
    declare::{Declaration, Node, Plan, Trouble},
    os::{
        civil, diff,
        files::{self, At, Ownership},
    },
    tasks::ownership::{self, Wanted},
    world::{Content, Effect, Entry, Owned},
};

/// The largest text that gets a diff, in bytes.
const DIFF_LIMIT: usize = 64 * 1024;

#[derive(Debug)]
pub struct State {
    /// Where links at the end of the path lead.
    path: PathBuf,
    /// `None` where there is no file.
    text: Option<Vec<u8>>,
    owned: Option<Owned>,
    wanted: Wanted,
}

#[derive(Debug)]
pub enum Step {
    Text(Vec<u8>),
    Own(Ownership),
}

impl Declaration for LineInFile {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let (path, entry) = node.world.follow(&node.roots.path(&self.path))?;
        let text = match &entry {
            Entry::Directory { .. } => {
                return Err(Trouble::invalid(format!("{} is a directory, not a file", self.path)));
            }
            _ => node.world.read(&path)?,
        };
        let wanted =
            Wanted::resolve(node.users, self.owner.as_deref(), self.group.as_deref(), self.mode.as_ref())?;
        Ok(State { path, text, owned: entry.owned(), wanted })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let rule = Rule::new(self).map_err(Trouble::invalid)?;
        let mut plan = Plan::default();
        let edited = match &state.text {
            Some(text) => rule.apply(text),
            None if self.state == LineState::Absent => Edited::default(),
            None if self.create => rule.apply(b""),
            None => {
                return Err(Trouble::missing(format!(
                    "there is no file {}; `create: true` would make it",
                    self.path
                )));
            }
        };
        if !edited.edits.is_empty() {
            let old = state.text.as_deref().unwrap_or_default();
            let mut diff = (old.len().max(edited.text.len()) <= DIFF_LIMIT)
                .then(|| Some((std::str::from_utf8(old).ok()?, std::str::from_utf8(&edited.text).ok()?)))
                .flatten()
                .map(|(old, new)| diff::unified(&self.path, old, new));
            for edit in edited.edits {
                let to = edit.to.unwrap_or_else(|| "absent".to_owned());
                let mut change = Change::new(&self.path, edit.from, to, Disruption::Live);
                change.diff = diff.take();
                plan.changes.push(change);
            }
            plan.steps.push(Step::Text(edited.text));
        }
        if let Some(owned) = state.owned {
            let (set, changes) = ownership::differences(&self.path, owned, &state.wanted, false)?;
            if !changes.is_empty() {
                plan.steps.push(Step::Own(set));
                plan.changes.extend(changes);
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        if plan.steps.is_empty() {
            return Vec::new();
        }
        let mut owned = state.owned.unwrap_or_else(|| new_file(&state.wanted));
        let mut content = state.text.as_deref().unwrap_or_default().into();
        for step in &plan.steps {
            match step {
                Step::Text(text) => content = text.as_slice().into(),
                Step::Own(set) => {
                    owned.uid = set.uid.unwrap_or(owned.uid);
                    owned.gid = set.gid.unwrap_or(owned.gid);
                    owned.mode = set.mode.unwrap_or(owned.mode);
                }
            }
        }
        vec![Effect::Path {
            path: state.path.clone(),
            entry: Entry::File { owned, content: Content::Known(content) },
        }]
    }

    fn apply(&self, _: &Node<'_>, state: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        for step in &plan.steps {
            match step {
                Step::Text(text) => {
                    let mut ownership = Ownership::default();
                    if state.text.is_none() {
                        if let Some(folder) = state.path.parent() {
                            fs::create_dir_all(folder).at("make", folder)?;
                        }
                        let new = new_file(&state.wanted);
                        ownership =
                            Ownership { uid: state.wanted.uid, gid: state.wanted.gid, mode: Some(new.mode) };
                    } else if self.backup {
                        let copy = files::back_up(&state.path, &civil::stamp(SystemTime::now()))?;
                        data.insert("backup".to_owned(), json!(copy));
                    }
                    files::replace(&state.path, text, ownership)?;
                }
                Step::Own(set) => files::set_ownership(&state.path, *set)?,
            }
        }
        Ok(data)
    }
}

fn new_file(wanted: &Wanted) -> Owned {
    Owned {
        uid: wanted.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
        gid: wanted.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
        mode: wanted.bits(0o644, false).ok().flatten().unwrap_or(0o644),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use gpufleet_protocol::{FailureKind, OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, changed};

    fn line(value: Value) -> LineInFile {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_line_is_set_once_and_shown_with_its_diff() {
        let bench = Bench::new();
        bench.write("etc/conf", "a=1\nb=2\n");
        let task = line(json!({"path": "/etc/conf", "regexp": "^a=", "line": "a=3"}));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        let change = &done.changes[0];
        assert_eq!((change.from.as_deref(), change.to.as_str()), (Some("a=1"), "a=3"));
        assert!(change.diff.as_deref().unwrap().contains("-a=1\n+a=3\n b=2\n"));
        let settled = bench.snapshot();
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_missing_file_is_made_only_when_asked() {
        let bench = Bench::new();
        let task = line(json!({"path": "/srv/new/conf", "line": "x", "mode": "0600"}));
        let refused = bench.run(&task, Mode::Predict);
        let OpStatus::Failed { kind: FailureKind::Invalid, message } = refused.status else { panic!() };
        assert_eq!(message, "there is no file /srv/new/conf; `create: true` would make it");
        let task = LineInFile { create: true, ..task };
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("srv/new/conf"), "x\n");
        assert_eq!(fs::metadata(bench.path("srv/new/conf")).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        let gone = line(json!({"path": "/srv/none", "line": "x", "state": "absent"}));
        assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn an_expression_that_never_settles_is_unconverged() {
        let bench = Bench::new();
        bench.write("etc/conf", "ab\n");
        let task = line(json!({"path": "/etc/conf", "regexp": "^(a+)b", "line": "\\1ab", "backrefs": true}));
        let done = bench.run(&task, Mode::Apply);
        assert!(matches!(done.status, OpStatus::Failed { kind: FailureKind::Unconverged, .. }), "{done:?}");
    }

    #[test]
    fn content_that_only_the_run_has_makes_it_possible() {
        let bench = Bench::new();
        let owned = Owned { uid: 0, gid: 0, mode: 0o644 };
        let content = Content::Digest { sha256: "0".into(), size: 1 };
        let entry = Entry::File { owned, content };
        bench.overlay.assume([Effect::Path { path: bench.path("etc/conf"), entry }]);
        let done = bench.run(&line(json!({"path": "/etc/conf", "line": "x"})), Mode::Predict);
        assert_eq!(done.status, OpStatus::Possible);
    }

    #[test]
    fn a_backup_keeps_the_old_text() {
        let bench = Bench::new();
        bench.write("etc/conf", "old\n");
        let done = bench.run(&line(json!({"path": "/etc/conf", "line": "new", "backup": true})), Mode::Apply);
        assert_eq!(fs::read_to_string(done.data["backup"].as_str().unwrap()).unwrap(), "old\n");
    }
}

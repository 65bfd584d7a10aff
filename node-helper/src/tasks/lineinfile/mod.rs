//! `lineinfile`: one line of a text file.

mod edit;

use gpufleet_protocol::tasks::{LineInFile, LineState};
use serde_json::json;

use self::edit::Rule;
use crate::{
    declare::Trouble,
    tasks::textfile::{self, Edited, text_file},
};

text_file!(LineInFile, edit);

fn edit(task: &LineInFile, text: Option<&[u8]>) -> Result<Edited, Trouble> {
    let rule = Rule::new(task).map_err(Trouble::invalid)?;
    let apply =
        |text| rule.apply(text).map_err(|why| Trouble::invalid(format!("{why}, a line of {}", task.path)));
    let mut edited = match text {
        Some(text) => apply(text)?,
        None if task.state == LineState::Absent => {
            Edited { message: "file not present".to_owned(), ..Edited::default() }
        }
        None if task.create => apply(b"")?,
        None => return Err(textfile::missing(&task.path, true)),
    };
    edited.data.insert("backup".to_owned(), json!(""));
    Ok(edited)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt, path::PathBuf};

    use gpufleet_protocol::{FailureKind, OpStatus, message::Mode};
    use serde_json::Value;

    use super::*;
    use crate::{
        declare::NodeKind,
        tasks::testing::{Bench, changed},
        world::{Content, Effect, Entry, Owned},
    };

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
        assert_eq!((change.from_text().as_deref(), change.to_text().as_str()), (Some("a=1"), "a=3"));
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
        let OpStatus::Failed { kind: FailureKind::Missing, message } = refused.status else { panic!() };
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
    fn an_edit_that_matches_its_own_result_is_done_once() {
        let bench = Bench::new();
        bench.write("etc/grub", "GRUB_CMDLINE_LINUX=\"quiet\"\n");
        let task = line(json!({
            "path": "/etc/grub", "regexp": "^GRUB_CMDLINE_LINUX=\"(.*)\"", "line": "GRUB_CMDLINE_LINUX=\"\\1 a=1\"", "backrefs": true,
        }));
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, done.act), (&OpStatus::Changed, true), "{done:?}");
        assert_eq!(bench.read("etc/grub"), "GRUB_CMDLINE_LINUX=\"quiet a=1\"\n");
        let other = line(json!({"path": "/etc/grub", "regexp": "quiet", "line": "GRUB_X=1"}));
        let done = bench.run(&other, Mode::Apply);
        assert_eq!((&done.status, done.act), (&OpStatus::Changed, false), "{done:?}");
    }

    #[test]
    fn a_file_that_somebody_else_undoes_at_once_is_unconverged() {
        let bench = Bench::new();
        bench.write("etc/conf", "a=1\n");
        let task = line(json!({"path": "/etc/conf", "regexp": "^a=", "line": "a=2"}));
        bench.node(|node| {
            let state = task.observe(node).unwrap();
            let plan = task.plan(&state).unwrap();
            let left = task.left(&state, &plan).unwrap();
            assert_eq!(left.changes.len(), 1, "the text is not the one that was written");
        });
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

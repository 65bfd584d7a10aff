//! `blockinfile`: a block of lines between two marks, by the rules of Ansible's `blockinfile`.

use gpufleet_protocol::{
    pattern::{LineBreaks, Pattern},
    tasks::{BlockInFile, LineState},
};

use crate::{
    declare::Trouble,
    tasks::textfile::{self, Edit, Edited, text_file},
};

text_file!(BlockInFile, edit);

enum Place {
    Beginning,
    End,
    After(Pattern),
    Before(Pattern),
}

fn place(task: &BlockInFile) -> Result<Place, Trouble> {
    let compile = |name, pattern| Pattern::new(name, pattern, LineBreaks::Plain).map_err(Trouble::invalid);
    Ok(match (task.insertafter.as_deref(), task.insertbefore.as_deref()) {
        (None | Some("EOF"), None) => Place::End,
        (Some(pattern), _) => Place::After(compile("insertafter", pattern)?),
        (None, Some("BOF")) => Place::Beginning,
        (None, Some(pattern)) => Place::Before(compile("insertbefore", pattern)?),
    })
}

fn edit(task: &BlockInFile, text: Option<&[u8]>) -> Result<Edited, Trouble> {
    if text.is_none() && !task.create {
        return Err(textfile::missing(&task.path, true));
    }
    let present = task.state == LineState::Present;
    if text.is_none() && !present {
        return Ok(Edited { message: format!("File {} not present", task.path), ..Edited::default() });
    }
    let old = text.unwrap_or_default();
    let new = edited(task, old, &place(task)?).map_err(Trouble::invalid)?;
    if new == old && text.is_some() {
        return Ok(Edited { text: new, ..Edited::default() });
    }
    let removes = !present || task.block.is_empty();
    let message = match text {
        None => "File created",
        Some(_) if removes => "Block removed",
        Some(_) => "Block inserted",
    };
    let begins = mark(task, &task.marker_begin);
    let had = old.split_inclusive(|byte| *byte == b'\n').any(|line| line == begins.as_bytes());
    let name = format!("block {}", begins.trim_end());
    let edit = Edit {
        from: had.then(|| if removes { name.clone() } else { format!("{name} with other lines") }),
        to: (!removes).then_some(name),
    };
    let block = Some(begins.trim_end().to_owned());
    Ok(Edited { text: new, edits: vec![edit], block, message: message.to_owned(), ..Edited::default() })
}

fn mark(task: &BlockInFile, word: &str) -> String {
    format!("{}\n", task.marker.replace("{mark}", word))
}

/// Returns the text with the declared block.
///
/// # Errors
/// If an expression takes too many steps.
fn edited(task: &BlockInFile, text: &[u8], place: &Place) -> Result<Vec<u8>, String> {
    let present = task.state == LineState::Present;
    let (begin, end) = (mark(task, &task.marker_begin), mark(task, &task.marker_end));
    let mut lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let mut block: Vec<Vec<u8>> = Vec::new();
    if present && !task.block.is_empty() {
        let mut body = task.block.clone();
        if !body.ends_with('\n') {
            body.push('\n');
        }
        block.push(begin.clone().into_bytes());
        block.extend(body.split_inclusive('\n').map(|line| line.as_bytes().to_vec()));
        block.push(end.clone().into_bytes());
    }
    let last = |lines: &[Vec<u8>], mark: &str| lines.iter().rposition(|line| line == mark.as_bytes());
    let found = |lines: &[Vec<u8>], regexp: &Pattern| -> Result<Option<usize>, String> {
        for (at, line) in lines.iter().enumerate().rev() {
            if regexp.is_match(line)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    };
    let mut at = match (last(&lines, &begin), last(&lines, &end)) {
        (Some(from), Some(to)) => {
            let (from, to) = (from.min(to), from.max(to));
            lines.drain(from..=to);
            from
        }
        _ => match place {
            Place::Beginning => 0,
            Place::End => lines.len(),
            Place::After(regexp) => found(&lines, regexp)?.map_or(lines.len(), |at| at + 1),
            Place::Before(regexp) => found(&lines, regexp)?.unwrap_or(lines.len()),
        },
    };
    if let Some(before) = at.checked_sub(1).and_then(|before| lines.get_mut(before))
        && !before.ends_with(b"\n")
    {
        before.push(b'\n');
    }
    let blank = |line: Option<&Vec<u8>>| line.is_some_and(|line| line == b"\n");
    if task.prepend_newline && present && at > 0 && !blank(lines.get(at - 1)) {
        lines.insert(at, b"\n".to_vec());
        at += 1;
    }
    let after = at + block.len();
    lines.splice(at..at, block);
    if task.append_newline && present && after < lines.len() && !blank(lines.get(after)) {
        lines.insert(after, b"\n".to_vec());
    }
    Ok(lines.concat())
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::tasks::testing::{Bench, changed};

    fn task(value: Value) -> BlockInFile {
        let mut value = value;
        value["path"] = json!("/etc/conf");
        serde_json::from_value(value).unwrap()
    }

    fn become_of(text: &str, value: Value) -> String {
        String::from_utf8(edit(&task(value), Some(text.as_bytes())).unwrap().text).unwrap()
    }

    const B: &str = "# BEGIN ANSIBLE MANAGED BLOCK\n";
    const E: &str = "# END ANSIBLE MANAGED BLOCK\n";

    #[test]
    fn ansibles_cases() {
        let cases = [
            ("a\nb", json!({"block": "x\ny"}), format!("a\nb\n{B}x\ny\n{E}")),
            ("", json!({"block": "x"}), format!("{B}x\n{E}")),
            ("a\nb\n", json!({"block": "x", "insertbefore": "BOF"}), format!("{B}x\n{E}a\nb\n")),
            ("a\nb\n", json!({"block": "x", "insertafter": "^a"}), format!("a\n{B}x\n{E}b\n")),
            ("a\nb\n", json!({"block": "x", "insertbefore": "^b"}), format!("a\n{B}x\n{E}b\n")),
            ("a\nb\n", json!({"block": "x", "insertafter": "^z"}), format!("a\nb\n{B}x\n{E}")),
            (&format!("a\n{B}old\n{E}b\n"), json!({"block": "x"}), format!("a\n{B}x\n{E}b\n")),
            (&format!("a\n{B}old\n{E}b\n"), json!({"state": "absent"}), "a\nb\n".to_owned()),
            (&format!("a\n{B}old\n{E}b\n"), json!({"block": ""}), "a\nb\n".to_owned()),
            (
                "a\nb\n",
                json!({"block": "x", "insertafter": "^a", "prepend_newline": true, "append_newline": true}),
                format!("a\n\n{B}x\n{E}\nb\n"),
            ),
            (
                "a\n",
                json!({"block": "x", "marker": "<!-- {mark} -->", "marker_begin": "ON", "marker_end": "OFF"}),
                "a\n<!-- ON -->\nx\n<!-- OFF -->\n".to_owned(),
            ),
        ];
        for (text, value, want) in cases {
            assert_eq!(become_of(text, value.clone()), want, "{text:?} {value}");
        }
    }

    #[test]
    fn a_block_is_set_once() {
        let bench = Bench::new();
        bench.write("etc/conf", "a\n");
        let task = task(json!({"block": "x\ny", "backup": true}));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(predicted.status, OpStatus::Changed);
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<std::path::PathBuf>::new());
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(
            (&done.data["msg"], done.data.contains_key("backup_file")),
            (&json!("Block inserted"), true)
        );
        let settled = bench.snapshot();
        let again = bench.run(&task, Mode::Apply);
        assert_eq!((&again.status, &again.data["msg"]), (&OpStatus::Ok, &json!("")));
        assert_eq!(changed(&settled, &bench.snapshot()), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    fn a_refused_text_leaves_the_file() {
        let bench = Bench::new();
        bench.write("etc/conf", "a\n");
        let task = task(json!({"block": "x", "validate": "grep -q never %s"}));
        assert!(matches!(bench.run(&task, Mode::Apply).status, OpStatus::Failed { .. }));
        assert_eq!(bench.read("etc/conf"), "a\n");
    }

    proptest! {
        #[test]
        fn twice_is_once(
            lines in proptest::collection::vec("[ab]{0,2}", 0..6),
            block in proptest::collection::vec("[ab]{0,2}", 0..3),
            absent in any::<bool>(),
            newlines in any::<(bool, bool)>(),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let state = if absent { "absent" } else { "present" };
            let value = json!({"block": block.join("\n"), "state": state, "prepend_newline": newlines.0, "append_newline": newlines.1});
            let once = become_of(&text, value.clone());
            prop_assert_eq!(become_of(&once, value), once.clone());
            prop_assert_eq!(once.contains(B), !absent && !block.join("\n").is_empty());
        }
    }
}

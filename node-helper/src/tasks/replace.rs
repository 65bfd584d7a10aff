//! `replace`: every match of an expression is replaced.

use gpufleet_protocol::{
    pattern::{LineBreaks, Pattern},
    tasks::Replace,
};
use serde_json::json;

use crate::{
    declare::Trouble,
    tasks::textfile::{self, Edit, Edited, expand, text_file},
};

text_file!(Replace, edit);

fn edit(task: &Replace, text: Option<&[u8]>) -> Result<Edited, Trouble> {
    let Some(text) = text else { return Err(textfile::missing(&task.path, false)) };
    let regexp = Pattern::new("regexp", &task.regexp, LineBreaks::Anchors).map_err(Trouble::invalid)?;
    let (mut from, mut to) = (0, text.len());
    let mut edited = Edited::default();
    edited.data.insert("rc".to_owned(), json!(0));
    let bound = |name, pattern: &str, from: usize| -> Result<_, String> {
        let pattern = Pattern::new(name, pattern, LineBreaks::Dots)?;
        Ok(pattern.captures_at(text, from)?.map(|found| found.range()))
    };
    if let Some(pattern) = &task.after {
        match bound("after", pattern, 0).map_err(Trouble::invalid)? {
            Some(found) => from = found.end,
            None => {
                edited.message = "Pattern for before/after params did not match the given file".to_owned();
                return Ok(edited);
            }
        }
    }
    if let Some(pattern) = &task.before {
        match bound("before", pattern, from).map_err(Trouble::invalid)? {
            Some(found) => to = found.start,
            None => {
                edited.message = "Pattern for before/after params did not match the given file".to_owned();
                return Ok(edited);
            }
        }
    }
    let section = text.get(from..to).unwrap_or_default();
    let (replaced, count) = regexp
        .replaced(section, |captures| expand(&task.replace, captures))
        .map_err(|why| Trouble::invalid(format!("{why}, {}", task.path)))?;
    if replaced == section {
        return Ok(edited);
    }
    edited.text =
        [text.get(..from).unwrap_or_default(), &replaced, text.get(to..).unwrap_or_default()].concat();
    edited.message = format!("{count} replacements made");
    let matches = if count == 1 { "1 match".to_owned() } else { format!("{count} matches") };
    edited.edits = vec![Edit {
        from: Some(format!("{matches} of {}", task.regexp)),
        to: Some(if task.replace.is_empty() { "removed".to_owned() } else { task.replace.clone() }),
    }];
    Ok(edited)
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};
    use serde_json::Value;

    use super::*;
    use crate::tasks::testing::Bench;

    fn task(value: Value) -> Replace {
        let mut value = value;
        value["path"] = json!("/etc/conf");
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn ansibles_cases() {
        let cases = [
            ("hi hi\n", json!({"regexp": "h(i)", "replace": "H\\1"}), "Hi Hi\n", "2 replacements made"),
            ("a\nb\n", json!({"regexp": "^b$", "replace": "c"}), "a\nc\n", "1 replacements made"),
            ("a\nb\n", json!({"regexp": "^b\\n"}), "a\n", "1 replacements made"),
            (
                "x1\ny\nx2\n",
                json!({"regexp": "x", "replace": "z", "after": "y"}),
                "x1\ny\nz2\n",
                "1 replacements made",
            ),
            (
                "x1\ny\nx2\n",
                json!({"regexp": "x", "replace": "z", "before": "y"}),
                "z1\ny\nx2\n",
                "1 replacements made",
            ),
            ("x\n", json!({"regexp": "q", "replace": "z"}), "x\n", ""),
        ];
        for (text, value, want, message) in cases {
            let bench = Bench::new();
            bench.write("etc/conf", text);
            let task = task(value.clone());
            let done = bench.run(&task, Mode::Apply);
            assert_eq!(
                (bench.read("etc/conf").as_str(), &done.data["msg"]),
                (want, &json!(message)),
                "{value}"
            );
            assert_eq!(done.status == OpStatus::Changed, text != want);
            assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok, "{value}");
        }
    }

    #[test]
    fn an_edit_that_matches_its_own_result_is_done_once() {
        let bench = Bench::new();
        bench.write("etc/conf", "x\n");
        let task = task(json!({"regexp": "^(x.*)$", "replace": "\\1 y"}));
        for want in ["x y\n", "x y y\n"] {
            let predicted = bench.run(&task, Mode::Predict);
            assert_eq!((predicted.status, predicted.act), (OpStatus::Changed, true));
            bench.forget();
            let done = bench.run(&task, Mode::Apply);
            assert_eq!((&done.status, done.act), (&OpStatus::Changed, true), "{done:?}");
            assert_eq!(bench.read("etc/conf"), want);
        }
        let settles =
            serde_json::from_value(json!({"path": "/etc/conf", "regexp": "(?<=x) y", "replace": ""}));
        let settles: Replace = settles.unwrap();
        let done = bench.run(&settles, Mode::Apply);
        assert_eq!(
            (done.status, done.act, bench.read("etc/conf").as_str()),
            (OpStatus::Changed, true, "x y\n")
        );
    }

    #[test]
    fn a_missing_file_fails() {
        let done = Bench::new().run(&task(json!({"regexp": "a"})), Mode::Predict);
        assert!(matches!(done.status, OpStatus::Failed { .. }), "{done:?}");
    }
}

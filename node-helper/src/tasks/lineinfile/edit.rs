//! Applies one declared line to a text, by the rules of Ansible's `lineinfile`. Pure.

use gpufleet_protocol::{
    pattern::{LineBreaks, Pattern},
    tasks::{LineInFile, LineState},
};
use serde_json::json;

use crate::tasks::textfile::{Edit, Edited, expand};

/// A declaration with its expressions compiled.
#[derive(Debug)]
pub struct Rule<'a> {
    line: &'a str,
    state: LineState,
    regexp: Option<Pattern>,
    search: Option<&'a [u8]>,
    place: Place,
    /// Whether the first match counts, and not the last.
    first: bool,
    backrefs: bool,
}

#[derive(Debug)]
enum Place {
    Beginning,
    End,
    After(Pattern),
    Before(Pattern),
}

/// Splits text into lines that keep their line breaks.
fn lines(text: &[u8]) -> Vec<Vec<u8>> {
    text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

fn bare(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
    line.get(..end).unwrap_or_default()
}

fn holds(line: &[u8], search: &[u8]) -> bool {
    search.is_empty() || line.windows(search.len()).any(|part| part == search)
}

fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(bare(line)).into_owned()
}

impl<'a> Rule<'a> {
    /// # Errors
    /// If an expression cannot be compiled.
    pub fn new(task: &'a LineInFile) -> Result<Self, String> {
        let compile = |name, pattern| Pattern::new(name, pattern, LineBreaks::Plain);
        let place = match (task.insertafter.as_deref(), task.insertbefore.as_deref()) {
            (Some("BOF"), _) | (_, Some("BOF")) => Place::Beginning,
            (None | Some("EOF"), None) => Place::End,
            (Some(pattern), _) => Place::After(compile("insertafter", pattern)?),
            (None, Some(pattern)) => Place::Before(compile("insertbefore", pattern)?),
        };
        Ok(Self {
            line: task.line.as_deref().unwrap_or_default(),
            state: task.state,
            regexp: task.regexp.as_deref().map(|pattern| compile("regexp", pattern)).transpose()?,
            search: task.search_string.as_deref().map(str::as_bytes),
            place,
            first: task.firstmatch,
            backrefs: task.backrefs,
        })
    }

    /// # Errors
    /// If an expression takes too many steps.
    pub fn apply(&self, text: &[u8]) -> Result<Edited, String> {
        match self.state {
            LineState::Present => self.present(text),
            LineState::Absent => self.absent(text),
        }
    }

    fn absent(&self, text: &[u8]) -> Result<Edited, String> {
        let goes = |line: &[u8]| match (&self.regexp, self.search) {
            (Some(regexp), _) => regexp.is_match(bare(line)),
            (None, Some(search)) => Ok(holds(line, search)),
            (None, None) => Ok(bare(line) == self.line.as_bytes()),
        };
        let mut edited = Edited::default();
        for line in lines(text) {
            if goes(&line)? {
                edited.edits.push(Edit { from: Some(shown(&line)), to: None });
            } else {
                edited.text.extend_from_slice(&line);
            }
        }
        let found = edited.edits.len();
        if found > 0 {
            edited.message = format!("{found} line(s) removed");
        }
        edited.data.insert("found".to_owned(), json!(found));
        Ok(edited)
    }

    /// Returns the lines in the order in which a match counts: Ansible takes the last, or with `firstmatch` the first.
    fn order(&self, lines: &[Vec<u8>]) -> Vec<usize> {
        if self.first { (0..lines.len()).collect() } else { (0..lines.len()).rev().collect() }
    }

    /// Returns the line to replace and what stands in its place, without its line break.
    fn matched(&self, at: usize, line: &[u8]) -> Result<Option<(usize, Vec<u8>)>, String> {
        let whole = || (at, self.line.as_bytes().to_vec());
        Ok(match (&self.regexp, self.search) {
            (Some(regexp), _) => regexp.captures(bare(line))?.map(|captures| match self.backrefs {
                true => (at, expand(self.line, &captures)),
                false => whole(),
            }),
            (None, Some(search)) => holds(line, search).then(whole),
            (None, None) => None,
        })
    }

    fn present(&self, text: &[u8]) -> Result<Edited, String> {
        let mut lines = lines(text);
        let order = self.order(&lines);
        let tried = order.iter().filter_map(|at| self.matched(*at, lines.get(*at)?).transpose());
        let matched = tried.into_iter().next().transpose()?;
        let replaced = matched.or_else(|| {
            let exact = lines.iter().rposition(|line| bare(line) == self.line.as_bytes());
            exact.map(|at| (at, self.line.as_bytes().to_vec()))
        });
        let mut edits = Vec::new();
        let mut message = "";
        if let Some((at, mut new)) = replaced {
            if !new.ends_with(b"\n") {
                new.push(b'\n');
            }
            if let Some(line) = lines.get_mut(at).filter(|line| **line != new) {
                edits.push(Edit { from: Some(shown(line)), to: Some(shown(&new)) });
                *line = new;
                message = "line replaced";
            }
        } else if !self.backrefs {
            self.insert(&mut lines, &mut edits)?;
            message = "line added";
        }
        Ok(Edited { text: lines.concat(), edits, message: message.to_owned(), ..Edited::default() })
    }

    fn insert(&self, lines: &mut Vec<Vec<u8>>, edits: &mut Vec<Edit>) -> Result<(), String> {
        let mut new = self.line.as_bytes().to_vec();
        new.push(b'\n');
        let order = self.order(lines);
        let last = |regexp: &Pattern| -> Result<Option<usize>, String> {
            for at in &order {
                if lines.get(*at).map(|line| regexp.is_match(bare(line))).transpose()? == Some(true) {
                    return Ok(Some(*at));
                }
            }
            Ok(None)
        };
        let at = match &self.place {
            Place::Beginning => 0,
            Place::End => lines.len(),
            Place::After(regexp) => last(regexp)?.map_or(lines.len(), |at| at + 1),
            Place::Before(regexp) => last(regexp)?.unwrap_or(lines.len()),
        };
        if at == lines.len()
            && let Some(line) = lines.last_mut().filter(|line| !line.ends_with(b"\n"))
        {
            line.push(b'\n');
        }
        edits.push(Edit { from: None, to: Some(self.line.to_owned()) });
        lines.insert(at.min(lines.len()), new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn task(value: serde_json::Value) -> LineInFile {
        let mut value = value;
        value["path"] = json!("/f");
        serde_json::from_value(value).unwrap()
    }

    fn edit(text: &str, value: serde_json::Value) -> (String, usize) {
        let task = task(value);
        let edited = Rule::new(&task).unwrap().apply(text.as_bytes()).unwrap();
        (String::from_utf8(edited.text).unwrap(), edited.edits.len())
    }

    #[test]
    fn ansibles_cases() {
        let cases = [
            ("a\nb\n", json!({"line": "c"}), "a\nb\nc\n"),
            ("a\nb", json!({"line": "c"}), "a\nb\nc\n"),
            ("a\nb", json!({"line": "b"}), "a\nb\n"),
            ("", json!({"line": "c"}), "c\n"),
            ("a\nb\n", json!({"line": "a"}), "a\nb\n"),
            ("x=1\nx=2\n", json!({"regexp": "^x=", "line": "x=3"}), "x=1\nx=3\n"),
            ("a\n", json!({"regexp": "^x=", "line": "x=3"}), "a\nx=3\n"),
            ("x=3\na\n", json!({"regexp": "^y=", "line": "x=3"}), "x=3\na\n"),
            ("a\nb\n", json!({"line": "c", "insertafter": "^a"}), "a\nc\nb\n"),
            ("a\nb\na\n", json!({"line": "c", "insertafter": "^a"}), "a\nb\na\nc\n"),
            ("a\nb", json!({"line": "c", "insertafter": "^b"}), "a\nb\nc\n"),
            ("a\nb\n", json!({"line": "c", "insertbefore": "^b"}), "a\nc\nb\n"),
            ("a\nb\n", json!({"line": "c", "insertbefore": "BOF"}), "c\na\nb\n"),
            ("a\nb\n", json!({"line": "c", "insertbefore": "^z"}), "a\nb\nc\n"),
            ("a\nb\n", json!({"line": "c", "insertafter": "EOF"}), "a\nb\nc\n"),
            ("k: 1\n", json!({"regexp": "^(k): (\\d)", "line": "\\1=\\g<2>", "backrefs": true}), "k=1\n"),
            ("a\n", json!({"regexp": "^(k)", "line": "\\1", "backrefs": true}), "a\n"),
            ("k=1\r\n", json!({"regexp": "^k=1$", "line": "k=2"}), "k=2\n"),
            ("a\nb\na\n", json!({"line": "a", "state": "absent"}), "b\n"),
            ("ab\nb\nac\n", json!({"regexp": "^a", "state": "absent"}), "b\n"),
            ("b\n", json!({"regexp": "^a", "state": "absent"}), "b\n"),
            ("Key\n", json!({"regexp": "(?i)^KEY", "line": "key"}), "key\n"),
            ("#k=1\nk=1\n", json!({"regexp": "^(?!#)k=", "line": "k=2"}), "#k=1\nk=2\n"),
            ("a b\nb\n", json!({"line": "c", "insertafter": "(?<!a )b"}), "a b\nb\nc\n"),
            ("noexec\nexec\n", json!({"regexp": "(?<!no)exec", "state": "absent"}), "noexec\n"),
            ("a [x]\nb\n", json!({"search_string": "[x]", "line": "c"}), "c\nb\n"),
            ("a [x]\nb\n", json!({"search_string": "[x]", "state": "absent"}), "b\n"),
            ("x=1\nx=2\n", json!({"regexp": "^x=", "line": "x=3", "firstmatch": true}), "x=3\nx=2\n"),
            ("a\na\n", json!({"line": "c", "insertafter": "^a", "firstmatch": true}), "a\nc\na\n"),
        ];
        for (text, value, want) in cases {
            assert_eq!(edit(text, value.clone()).0, want, "{text:?} {value}");
        }
    }

    #[test]
    fn broken_expressions_say_why() {
        let task = task(json!({"line": "x", "regexp": "(a"}));
        let error = Rule::new(&task).unwrap_err();
        assert_eq!(error, "`regexp: (a` is not a regular expression that gpufleet reads: unclosed group");
    }

    /// A simple model of the rules, for plain text without expressions.
    fn model(text: &str, line: &str, regexp: Option<&str>) -> String {
        let mut lines: Vec<&str> = text.lines().collect();
        let starts = regexp.and_then(|prefix| lines.iter().rposition(|have| have.starts_with(prefix)));
        match starts.or_else(|| lines.iter().rposition(|have| *have == line)) {
            Some(at) => lines[at] = line,
            None => lines.push(line),
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    proptest! {
        #[test]
        fn presence_agrees_with_the_model(lines in proptest::collection::vec("[ab]{0,2}", 0..6), line in "[ab]{1,2}", prefix in proptest::option::of("[ab]")) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut value = json!({"line": line});
            if let Some(prefix) = &prefix {
                value["regexp"] = json!(format!("^{prefix}"));
            }
            let (once, edits) = edit(&text, value.clone());
            prop_assert_eq!(&once, &model(&text, &line, prefix.as_deref()));
            prop_assert_eq!(edits == 0, once == text);
            // Idempotent if the expression also matches the line that it inserts, as Ansible requires.
            if prefix.as_ref().is_none_or(|prefix| line.starts_with(prefix.as_str())) {
                prop_assert_eq!(edit(&once, value), (once.clone(), 0));
            }
        }

        #[test]
        fn absence_is_a_filter(lines in proptest::collection::vec("[ab]{0,2}", 0..6), line in "[ab]{1,2}") {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let want: String = lines.iter().filter(|have| **have != line).map(|line| format!("{line}\n")).collect();
            prop_assert_eq!(edit(&text, json!({"line": line, "state": "absent"})).0, want);
        }

        #[test]
        fn any_bytes_are_kept(text in proptest::collection::vec(any::<u8>(), 0..60), template in "\\PC{0,8}") {
            let task = task(json!({"line": "unlikely line"}));
            let edited = Rule::new(&task).unwrap().apply(&text).unwrap();
            prop_assert!(edited.text.starts_with(&text));
            let regexp = Pattern::new("regexp", "^(a)", LineBreaks::Plain).unwrap();
            let _ = expand(&template, &regexp.captures(b"a").unwrap().unwrap());
        }
    }
}

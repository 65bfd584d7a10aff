//! Edits of JSON text that keep its form: only the settings that differ are written anew. Pure.

use std::ops::Range;

use serde_json::{Map, Value};

use super::file::{self, Difference};

/// Returns the text with other settings; everything else of it stays byte for byte.
///
/// A text that cannot be edited so, such as one with a key twice, is printed anew.
pub fn edited(text: &str, found: &Map<String, Value>, wanted: &Map<String, Value>) -> Vec<u8> {
    let mut new = text.to_owned();
    for Difference { keys, to, .. } in file::differences(found, wanted) {
        let Some(next) = with(&new, &keys, to.as_ref()) else { return file::print(wanted) };
        new = next;
    }
    match file::parse(new.as_bytes()) {
        Ok(read) if read == *wanted => new.into_bytes(),
        _ => file::print(wanted),
    }
}

/// A key of an object and its value, as places in the text.
struct Member {
    key: Range<usize>,
    name: String,
    value: Range<usize>,
}

/// An object: its inside, without the braces.
struct Object {
    inside: Range<usize>,
    members: Vec<Member>,
}

fn blanks(text: &str, from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + (rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len())
}

/// Returns the end of the value that begins at a place, of text that is JSON.
fn end_of(text: &str, from: usize) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate().skip(from) {
        match (quoted, byte) {
            (true, b'"') if !escaped => quoted = false,
            (true, _) => {}
            (false, b'"') => quoted = true,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n') if depth == 0 => return Some(at),
            (false, b'}' | b']') => depth -= 1,
            _ => {}
        }
        escaped = quoted && byte == b'\\' && !escaped;
        let closed = matches!(byte, b'}' | b']' | b'"') && !quoted && depth == 0;
        if closed && at > from {
            return Some(at + 1);
        }
    }
    Some(text.len())
}

/// Reads the object that begins at a place.
fn object(text: &str, from: usize) -> Option<Object> {
    let mut at = from + 1;
    text.get(from..at).filter(|brace| *brace == "{")?;
    let mut members = Vec::new();
    loop {
        let begin = blanks(text, at);
        match text.as_bytes().get(begin)? {
            b'}' => return Some(Object { inside: from + 1..begin, members }),
            b',' => {
                at = begin + 1;
                continue;
            }
            _ => {}
        }
        let key = begin..end_of(text, begin)?;
        let colon = blanks(text, key.end);
        let value = blanks(text, colon + 1);
        let value = value..end_of(text, value)?;
        let name = serde_json::from_str(text.get(key.clone())?).ok()?;
        at = value.end;
        members.push(Member { key, name, value });
    }
}

/// How the lines of a text are broken and indented; `None` for a text on one line.
struct Form<'t> {
    line_break: &'t str,
    indent: &'t str,
}

impl<'t> Form<'t> {
    fn of(text: &'t str, root: &Object) -> Option<Self> {
        let first = root.members.first()?;
        let before = text.get(root.inside.start..first.key.start)?;
        let at = before.rfind('\n')?;
        Some(Self {
            line_break: if before.get(..at)?.ends_with('\r') { "\r\n" } else { "\n" },
            indent: before.get(at + 1..).filter(|indent| !indent.is_empty()).unwrap_or("    "),
        })
    }
}

/// Returns a value as text at a depth; lists of plain values stay on one line.
fn printed(value: &Value, form: Option<&Form<'_>>, depth: usize) -> String {
    let separated = |all: Vec<String>, open: char, close: char, is_long: bool| match form {
        Some(form) if is_long => {
            let line = |depth: usize| format!("{}{}", form.line_break, form.indent.repeat(depth));
            let inside = all.join(&format!(",{}", line(depth + 1)));
            format!("{open}{}{inside}{}{close}", line(depth + 1), line(depth))
        }
        _ => format!("{open}{}{close}", all.join(", ")),
    };
    match value {
        Value::Object(map) => {
            let one = |(key, value): (&String, &Value)| {
                format!("{}: {}", Value::from(key.as_str()), printed(value, form, depth + 1))
            };
            separated(map.iter().map(one).collect(), '{', '}', !map.is_empty())
        }
        Value::Array(all) => {
            let is_long = all.iter().any(|one| one.is_object() || one.is_array());
            separated(all.iter().map(|one| printed(one, form, depth + 1)).collect(), '[', ']', is_long)
        }
        plain => plain.to_string(),
    }
}

fn replaced(text: &str, place: Range<usize>, with: &str) -> Option<String> {
    Some(format!("{}{with}{}", text.get(..place.start)?, text.get(place.end..)?))
}

/// Returns the text with another value of a setting, or without it.
fn with(text: &str, keys: &[String], to: Option<&Value>) -> Option<String> {
    let mut found = object(text, blanks(text, 0))?;
    let form = Form::of(text, &found);
    for (depth, key) in keys.iter().enumerate() {
        let at = found.members.iter().position(|member| member.name == *key);
        let rest = keys.get(depth + 1..).unwrap_or_default();
        let member = at.and_then(|at| found.members.get(at));
        match (member, to) {
            (Some(member), _) if !rest.is_empty() => {
                let inner = object(text, member.value.start);
                match (inner, to) {
                    (Some(inner), _) => found = inner,
                    (None, Some(to)) => {
                        return replaced(
                            text,
                            member.value.clone(),
                            &printed(&nested(rest, to), form.as_ref(), depth + 1),
                        );
                    }
                    (None, None) => return None,
                }
            }
            (Some(member), Some(to)) => {
                return replaced(text, member.value.clone(), &printed(to, form.as_ref(), depth + 1));
            }
            (Some(member), None) => {
                let before = at.and_then(|at| found.members.get(at.checked_sub(1)?));
                let behind = at.and_then(|at| found.members.get(at + 1));
                let place = match (before, behind) {
                    (Some(before), _) => before.value.end..member.value.end,
                    (None, Some(behind)) => member.key.start..behind.key.start,
                    (None, None) => found.inside.clone(),
                };
                return replaced(text, place, "");
            }
            (None, None) => return None,
            (None, Some(to)) => {
                let member = |form: Option<&Form<'_>>| {
                    format!("{}: {}", Value::from(key.as_str()), printed(&nested(rest, to), form, depth + 1))
                };
                let Some(last) = found.members.last() else {
                    let line = |depth: usize, form: &Form<'_>| {
                        format!("{}{}", form.line_break, form.indent.repeat(depth))
                    };
                    let new = match &form {
                        Some(form) => {
                            format!("{}{}{}", line(depth + 1, form), member(Some(form)), line(depth, form))
                        }
                        None => member(None),
                    };
                    return replaced(text, found.inside, &new);
                };
                // As the member before it stands: on a line of its own, or behind another.
                let gap = text.get(blanks_before(text, last.key.start)..last.key.start)?;
                let form = form.as_ref().filter(|_| gap.contains('\n'));
                let gap = if gap.is_empty() { " " } else { gap };
                return replaced(text, last.value.end..last.value.end, &format!(",{gap}{}", member(form)));
            }
        }
    }
    None
}

/// Returns where the blanks before a place begin.
fn blanks_before(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or_default().trim_end_matches([' ', '\t', '\r', '\n']).len()
}

/// Returns a value below keys.
fn nested(keys: &[String], value: &Value) -> Value {
    keys.iter().rev().fold(value.clone(), |value, key| {
        let mut map = Map::new();
        map.insert(key.clone(), value);
        Value::Object(map)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn edit(text: &str, wanted: Value) -> String {
        let found = file::parse(text.as_bytes()).unwrap();
        String::from_utf8(edited(text, &found, wanted.as_object().unwrap())).unwrap()
    }

    #[test]
    fn the_form_of_the_rest_stays() {
        let text = "{\n\t\"hosts\": [\"unix:///x\", \"tcp://y\"],\n\t\"insecure-registries\" : [\"10.0.0.5:5000\"],\n\t\"log-driver\": \"json-file\"\n}\n";
        let wanted = json!({
            "hosts": ["unix:///x", "tcp://y"], "insecure-registries": ["10.0.0.5:5000"], "log-driver": "journald",
            "log-opts": {"max-size": "100m"}, "labels": ["a=1", "b=2"]
        });
        let new = "{\n\t\"hosts\": [\"unix:///x\", \"tcp://y\"],\n\t\"insecure-registries\" : [\"10.0.0.5:5000\"],\n\t\"log-driver\": \"journald\",\n\t\
                   \"log-opts\": {\n\t\t\"max-size\": \"100m\"\n\t},\n\t\"labels\": [\"a=1\", \"b=2\"]\n}\n";
        assert_eq!(edit(text, wanted.clone()), new);
        let without =
            json!({"insecure-registries": ["10.0.0.5:5000"], "log-opts": {}, "labels": ["a=1", "b=2"]});
        assert_eq!(
            edit(new, without),
            "{\n\t\"insecure-registries\" : [\"10.0.0.5:5000\"],\n\t\"log-opts\": {},\n\t\"labels\": [\"a=1\", \"b=2\"]\n}\n"
        );
        for (text, wanted, new) in [
            (
                r#"{"a":1,"b":{"c":"}"}}"#,
                json!({"a": 2, "b": {"c": "}", "d": [1]}}),
                r#"{"a":2,"b":{"c":"}", "d": [1]}}"#,
            ),
            ("{\"a\": 1, \"b\": 2}\n", json!({"b": 2, "c": {"d": 1}}), "{\"b\": 2, \"c\": {\"d\": 1}}\n"),
            (
                "{\r\n  \"a\": \"x\\\"\"\r\n}",
                json!({"a": "x\"", "b": true}),
                "{\r\n  \"a\": \"x\\\"\",\r\n  \"b\": true\r\n}",
            ),
            ("{\n  \"a\": {}\n}\n", json!({"a": {"b": 1}}), "{\n  \"a\": {\n    \"b\": 1\n  }\n}\n"),
            ("", json!({"a": 1}), "{\n    \"a\": 1\n}\n"),
            ("{}", json!({"a": 1}), "{\"a\": 1}"),
            (r#"{"a": 1, "a": 2}"#, json!({"a": 3}), "{\n    \"a\": 3\n}\n"),
        ] {
            assert_eq!(edit(text, wanted), new, "{text}");
        }
    }

    fn value(depth: u32) -> BoxedStrategy<Value> {
        let plain = prop_oneof![
            Just(json!(null)),
            any::<i32>().prop_map(Value::from),
            "[a\"\\\\{},: ]{0,4}".prop_map(Value::from)
        ];
        plain
            .prop_recursive(depth, 12, 3, |inner| {
                prop_oneof![
                    proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                    proptest::collection::btree_map("[a-c]", inner, 0..3)
                        .prop_map(|map| Value::Object(map.into_iter().collect())),
                ]
            })
            .boxed()
    }

    proptest! {
        #[test]
        fn any_text_becomes_what_is_wanted(
            from in proptest::collection::btree_map("[a-d]", value(2), 0..4),
            to in proptest::collection::btree_map("[a-d]", value(2), 0..4),
            pretty in any::<bool>(),
        ) {
            let (from, to): (Map<String, Value>, Map<String, Value>) = (from.into_iter().collect(), to.into_iter().collect());
            let text = if pretty { serde_json::to_string_pretty(&from) } else { serde_json::to_string(&from) }.unwrap();
            let new = edited(&text, &from, &to);
            prop_assert_eq!(file::parse(&new).unwrap(), to);
            prop_assert_eq!(edited(&text, &from, &from), text.into_bytes());
        }
    }
}

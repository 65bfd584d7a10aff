//! Reads the YAML that Go programs write: block mappings and lists of scalars, and empty flow collections.
//!
//! Everything else is refused, so that what this reader does not know is unknown, and never taken for something else.
//! Invariant: work and depth are bounded by the text, and the text by its caller.

use serde_json::{Map, Value};

/// Deepest nesting; a CDI specification has 5 levels.
const DEEPEST: usize = 24;

/// A line with something on it.
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

/// Reads a document.
///
/// # Errors
/// What it does not know, with its line.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let body = line.trim_start_matches(' ');
        if body.trim_end().is_empty() || body.starts_with('#') || line == "---" {
            continue;
        }
        if body.starts_with('\t') {
            return Err(format!("line {} is no YAML of the sort that is read here", index + 1));
        }
        lines.push(Line { number: index + 1, indent: line.len() - body.len(), text: body.trim_end() });
    }
    let mut reader = Reader { lines, next: 0 };
    let value = reader.block(0, DEEPEST)?;
    match reader.peek() {
        None => Ok(value),
        Some(line) => Err(strange(line)),
    }
}

fn strange(line: &Line<'_>) -> String {
    format!("line {} is no YAML of the sort that is read here", line.number)
}

struct Reader<'a> {
    lines: Vec<Line<'a>>,
    next: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&Line<'a>> {
        self.lines.get(self.next)
    }

    /// Reads what begins at the next line, which is indented by `least` or more.
    fn block(&mut self, least: usize, depth: usize) -> Result<Value, String> {
        let Some(line) = self.peek() else { return Ok(Value::Null) };
        if line.indent < least {
            return Ok(Value::Null);
        }
        if depth == 0 {
            return Err(format!("line {} is nested too deeply", line.number));
        }
        let indent = line.indent;
        match line.text.starts_with("- ") || line.text == "-" {
            true => self.list(indent, depth),
            false if split_key(line.text).is_some() => self.mapping(indent, depth),
            false => {
                let value = scalar(line.text).ok_or_else(|| strange(line));
                self.next += 1;
                value
            }
        }
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let mut all = Vec::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent) {
            let Some(rest) =
                line.text.strip_prefix('-').filter(|rest| rest.is_empty() || rest.starts_with(' '))
            else {
                break;
            };
            let body = rest.trim_start();
            if body.is_empty() {
                self.next += 1;
                all.push(self.block(indent + 1, depth - 1)?);
                continue;
            }
            // What stands behind the dash is a block that is indented as far as it stands there.
            let inner = indent + (line.text.len() - body.len());
            if let Some(line) = self.lines.get_mut(self.next) {
                line.indent = inner;
                line.text = body;
            }
            all.push(self.block(inner, depth - 1)?);
        }
        Ok(Value::Array(all))
    }

    fn mapping(&mut self, indent: usize, depth: usize) -> Result<Value, String> {
        let mut map = Map::new();
        while let Some(line) = self.peek().filter(|line| line.indent == indent) {
            let Some((key, rest)) = split_key(line.text) else { break };
            let error = strange(line);
            let key = match scalar(key) {
                Some(Value::String(key)) => key,
                Some(Value::Number(key)) => key.to_string(),
                Some(Value::Bool(key)) => key.to_string(),
                _ => return Err(error),
            };
            self.next += 1;
            let value = if rest.is_empty() {
                // A list may stand as far left as its key.
                let is_list =
                    self.peek().is_some_and(|line| line.indent == indent && line.text.starts_with('-'));
                self.block(if is_list { indent } else { indent + 1 }, depth - 1)?
            } else {
                scalar(rest).ok_or_else(|| error.clone())?
            };
            if map.insert(key, value).is_some() {
                return Err(error);
            }
        }
        Ok(Value::Object(map))
    }
}

/// Splits `key: value` or `key:`; a colon inside of quotes, or without a space behind it, does not count.
fn split_key(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            // What it escapes ends no text.
            (Some('"'), '\\') => {
                chars.next();
            }
            (None, '"' | '\'') if at == 0 => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, ':') => {
                let rest = text.get(at + 1..)?;
                if rest.is_empty() || rest.starts_with(' ') {
                    return Some((text.get(..at)?, rest.trim_start()));
                }
            }
            _ => {}
        }
    }
    None
}

/// Reads a scalar; `None` for a form that is not known here.
fn scalar(text: &str) -> Option<Value> {
    match text {
        "[]" => return Some(Value::Array(Vec::new())),
        "{}" => return Some(Value::Object(Map::new())),
        "null" | "~" => return Some(Value::Null),
        "true" => return Some(true.into()),
        "false" => return Some(false.into()),
        _ => {}
    }
    if text.starts_with('"') {
        // Of YAML's escapes, those of JSON; others are refused.
        return serde_json::from_str(text).ok().filter(Value::is_string);
    }
    if let Some(inner) = text.strip_prefix('\'') {
        let inner = inner.strip_suffix('\'')?;
        let is_one = inner.replace("''", "").find('\'').is_none();
        return is_one.then(|| inner.replace("''", "'").into());
    }
    if text.starts_with(['[', '{', '&', '*', '!', '|', '>', '%', '@', '`', '?'])
        || text.contains(" #")
        || text.contains(": ")
    {
        return None;
    }
    let number = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
    Some(number.map_or_else(|| text.into(), Into::into))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// As `nvidia-ctk cdi generate` of 1.17.8 writes it, shortened.
    const SPEC: &str = r#"---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    - --link
    - libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
    options:
    - ro
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits: {}
  name: GPU-1
kind: nvidia.com/gpu
"#;

    #[test]
    fn a_specification_is_read() {
        let read = parse(SPEC).unwrap();
        assert_eq!(read["kind"], "nvidia.com/gpu");
        assert_eq!(
            read["devices"][0],
            json!({"containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}, "name": "0"})
        );
        assert_eq!(read["devices"][1]["name"], "GPU-1");
        assert_eq!(
            read["containerEdits"]["hooks"][0]["args"][3],
            "libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so"
        );
        assert_eq!(read["containerEdits"]["mounts"][0]["options"], json!(["ro"]));
    }

    #[test]
    fn an_escaped_quote_ends_no_text() {
        assert_eq!(parse(r#"- "\": ""#).unwrap(), json!(["\": "]));
        assert_eq!(parse(r#""\": a": "\\""#).unwrap(), json!({"\": a": "\\"}));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for text in [
            "a: &x 1",
            "a: [1, 2]",
            "a: |\n  b",
            "a: 1\na: 2",
            "- a\nb: 1",
            "a: 'it's'",
            "\ta: 1: 2",
            "a: !x y",
        ] {
            assert!(parse(text).is_err(), "{text}: {:?}", parse(text));
        }
        let deep = (0..100).map(|level| format!("{}a:\n", " ".repeat(level))).collect::<String>();
        assert!(parse(&deep).unwrap_err().contains("too deeply"));
        assert_eq!(parse("").unwrap(), Value::Null);
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "[-a:\\[\\]{}\"' \\n#0|]{0,60}") {
            let _ = parse(&text);
        }
    }
}

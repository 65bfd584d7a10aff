//! Filters that read and write JSON and YAML.

use super::{Call, Filter};
use crate::template::{inert, value::Value};
use crate::yaml::{Flow, Layout, float_text, text_with};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("to_json", |call| json(call, None, false)),
    ("to_nice_json", |call| json(call, Some(4), true)),
    ("tojson", |call| {
        let text = json(call, None, true)?.to_text();
        let text = text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
        Ok(text.replace('\'', "\\u0027").into())
    }),
    ("from_json", |call| match call.value() {
        Value::Str(text) => serde_json::from_str(text).map(|json| Value::literal(&json)).map_err(|error| {
            // The library's own message quotes the text.
            format!("not JSON at line {}, column {}", error.line(), error.column())
        }),
        other => Err(format!("text is needed, this is {}", other.kind())),
    }),
    ("to_yaml", |call| yaml(call, 2, Flow::Leaves)),
    ("to_nice_yaml", |call| yaml(call, 4, Flow::Never)),
    ("from_yaml", |call| match call.value() {
        Value::Str(text) => document(text),
        other => Ok(other.clone()),
    }),
    ("from_yaml_all", |call| match call.value() {
        Value::Str(text) => {
            let documents = documents(text);
            Ok(Value::list(documents.iter().map(|text| document(text)).collect::<Result<_, _>>()?))
        }
        Value::Null => Ok(Value::list(Vec::new())),
        other => Ok(other.clone()),
    }),
];

fn document(text: &str) -> Result<Value, String> {
    let node = crate::yaml::parse("text", text).map_err(|_| "it is not YAML".to_owned())?;
    Ok(Value::literal(&node.to_json()))
}

/// Splits a YAML stream into documents.
fn documents(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        let marked = line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if let Some(rest) = marked {
            found.push(rest.to_owned());
            open = true;
        } else if line.trim_end() == "..." {
            open = false;
        } else if open || !(line.trim().is_empty() || line.starts_with(['#', '%'])) {
            if !open {
                found.push(String::new());
                open = true;
            }
            if let Some(last) = found.last_mut() {
                last.push('\n');
                last.push_str(line);
            }
        }
    }
    found
}

/// Refuses `omit`, which cannot be written into a text.
fn without_omit(call: &Call) -> Result<(), String> {
    match call.value().has_omitted() {
        true => Err("`omit` is in it, which no text can hold".to_owned()),
        false => Ok(()),
    }
}

fn yaml(call: &Call, indent: usize, flow: Flow) -> Result<Value, String> {
    without_omit(call)?;
    let flow = match call.named("default_flow_style") {
        None => flow,
        Some(Value::Null) => Flow::Leaves,
        Some(all) => {
            if all.truthy() {
                Flow::Always
            } else {
                Flow::Never
            }
        }
    };
    let indent = call.size(if indent == 4 { 0 } else { usize::MAX - 1 }, "indent")?.unwrap_or(indent);
    let width = match call.named("width") {
        Some(Value::Int(width)) if *width < 0 => usize::MAX,
        _ => call.size(usize::MAX - 1, "width")?.unwrap_or(80),
    };
    // libyaml replaces other indents by 2, and widths that are too narrow by 80.
    let indent = if (2..=9).contains(&indent) { indent } else { 2 };
    let width = if width <= indent * 2 { 80 } else { width };
    let sort = call.named("sort_keys").is_none_or(Value::truthy);
    let text = text_with(&call.value().to_json(), &Layout { indent, width, sort, flow });
    if !call.named("explicit_start").is_some_and(Value::truthy) {
        return Ok(text.into());
    }
    // As in PyYAML, only lists and mappings over several lines begin on the line below the mark.
    let is_block = matches!(call.value(), Value::List(_) | Value::Map(_)) && !text.starts_with(['[', '{']);
    Ok(format!("---{}{text}", if is_block { '\n' } else { ' ' }).into())
}

/// The layout of Python's `json.dumps`.
struct Json {
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
    ascii: bool,
}

fn json(call: &Call, indent: Option<usize>, sort: bool) -> Result<Value, String> {
    without_omit(call)?;
    let positional = if indent.is_some() { 0 } else { usize::MAX - 1 };
    let indent = match call.get(positional, "indent") {
        Some(Value::Str(text)) => Some(text.to_string()),
        Some(Value::Null) => None,
        _ => call.size(positional, "indent")?.or(indent).map(|width| " ".repeat(width.min(64))),
    };
    let between = if indent.is_some() { "," } else { ", " };
    let (item, key) = match call.named("separators").and_then(Value::as_list) {
        Some([item, key]) => (item.to_text(), key.to_text()),
        _ => (between.to_owned(), ": ".to_owned()),
    };
    let layout = Json {
        indent,
        item,
        key,
        sort: call.named("sort_keys").map_or(sort, Value::truthy),
        ascii: call.named("ensure_ascii").is_none_or(Value::truthy),
    };
    let mut out = String::new();
    layout.write(call.value(), 0, &mut out);
    Ok(out.into())
}

impl Json {
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::List(list) if !list.items().is_empty() => {
                out.push('[');
                for (index, item) in list.items().iter().enumerate() {
                    if index > 0 {
                        out.push_str(&self.item);
                    }
                    self.line(depth + 1, out);
                    self.write(item, depth + 1, out);
                }
                self.line(depth, out);
                out.push(']');
            }
            Value::Map(dict) if !dict.is_empty() => {
                out.push('{');
                let mut entries: Vec<_> = dict.iter().collect();
                if self.sort {
                    entries.sort_by(|a, b| a.0.cmp(b.0));
                }
                for (index, (key, item)) in entries.into_iter().enumerate() {
                    if index > 0 {
                        out.push_str(&self.item);
                    }
                    self.line(depth + 1, out);
                    self.text(key, out);
                    out.push_str(&self.key);
                    self.write(item, depth + 1, out);
                }
                self.line(depth, out);
                out.push('}');
            }
            Value::Str(text) | Value::Template(text) => self.text(text, out),
            Value::Float(number) if number.is_nan() => out.push_str("NaN"),
            Value::Float(number) if number.is_infinite() => {
                out.push_str(if *number > 0.0 { "Infinity" } else { "-Infinity" });
            }
            Value::Float(number) => out.push_str(&float_text(*number)),
            other => out.push_str(&other.to_json().to_string()),
        }
    }

    fn text(&self, text: &str, out: &mut String) {
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ascii {
            out.push_str(&quoted);
            return;
        }
        for c in quoted.chars() {
            if c.is_ascii() || inert::is_mark(c) {
                out.push(c);
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}

//! Types, encodings and digests.

use std::fmt::Write as _;

use sha2::Digest as _;

use super::{Call, Filter};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("bool", |call| Ok(Value::Bool(boolean(call.value())))),
    ("to_json", |call| Ok(python_json(call.value()).into())),
    ("to_nice_json", to_nice_json),
    ("from_json", |call| match call.value() {
        Value::Str(text) => serde_json::from_str(text).map(|json| Value::literal(&json)).map_err(|error| {
            // Why: the library's own message quotes the text.
            format!("not JSON at line {}, column {}", error.line(), error.column())
        }),
        other => Ok(other.clone()),
    }),
    ("to_yaml", |call| Ok(yaml(call.value()).into())),
    ("to_nice_yaml", |call| Ok(yaml(call.value()).into())),
    ("from_yaml", |call| {
        let text = call.text()?;
        let node = crate::yaml::parse("text", &text).map_err(|_| "not YAML".to_owned())?;
        Ok(Value::literal(&node.to_json()))
    }),
    ("b64encode", |call| Ok(base64_encode(call.text()?.as_bytes()).into())),
    ("b64decode", |call| {
        let bytes = base64_decode(call.text()?.trim()).ok_or("not base64")?;
        String::from_utf8(bytes).map(Value::from).map_err(|_| "the decoded bytes are not text".to_owned())
    }),
    ("hash", hash),
    ("checksum", |call| Ok(hex(&sha1::Sha1::digest(call.text()?.as_bytes())).into())),
    ("quote", |call| Ok(quote(&call.text()?).into())),
    ("comment", |call| {
        let mark = match call.get(0, "style").and_then(Value::as_str) {
            Some("c") => "// ",
            Some("erlang") => "% ",
            _ => "# ",
        };
        let lines: Vec<_> =
            call.text()?.lines().map(|line| format!("{mark}{line}").trim_end().to_owned()).collect();
        Ok(format!("{0}\n{1}\n{0}", mark.trim_end(), lines.join("\n")).into())
    }),
];

/// As Ansible: the words of YAML 1.1 and 1; everything else is false.
fn boolean(value: &Value) -> bool {
    match value {
        Value::Bool(value) => *value,
        Value::Int(value) => *value == 1,
        Value::Float(value) => (*value - 1.0).abs() < f64::EPSILON,
        Value::Str(text) => {
            matches!(text.to_ascii_lowercase().as_str(), "yes" | "on" | "1" | "true" | "y" | "t")
        }
        _ => false,
    }
}

/// JSON with the spaces that Python puts after `,` and `:`.
fn python_json(value: &Value) -> String {
    match value {
        Value::List(list) => {
            let items: Vec<_> = list.items().iter().map(python_json).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(dict) => {
            let items: Vec<_> = dict
                .iter()
                .map(|(key, value)| format!("{}: {}", serde_json::Value::from(&**key), python_json(value)))
                .collect();
            format!("{{{}}}", items.join(", "))
        }
        other => other.to_json().to_string(),
    }
}

fn to_nice_json(call: &Call) -> Result<Value, String> {
    let indent = match call.get(0, "indent") {
        Some(Value::Int(indent)) => usize::try_from(*indent).unwrap_or(4).min(16),
        _ => 4,
    };
    let spaces = " ".repeat(indent);
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    let sorted = sort_keys(call.value().to_json());
    serde::Serialize::serialize(&sorted, &mut serializer).map_err(|error| error.to_string())?;
    String::from_utf8(out).map(Value::from).map_err(|error| error.to_string())
}

fn sort_keys(json: serde_json::Value) -> serde_json::Value {
    match json {
        serde_json::Value::Object(map) => {
            let mut entries: Vec<_> = map.into_iter().map(|(key, value)| (key, sort_keys(value))).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            serde_json::Value::Object(entries.into_iter().collect())
        }
        serde_json::Value::Array(items) => {
            serde_json::Value::Array(items.into_iter().map(sort_keys).collect())
        }
        other => other,
    }
}

/// Block style; strings that another reader could take for something else are quoted.
fn yaml(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out
}

fn block(value: &Value, indent: usize, out: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Map(dict) if !dict.is_empty() => {
            for (key, value) in dict.iter() {
                let _ = write!(out, "{pad}{}:", scalar(&Value::Str(key.clone())));
                nested(value, indent, out);
            }
        }
        Value::List(list) if !list.items().is_empty() => {
            for item in list.items() {
                match item {
                    Value::Map(dict) if !dict.is_empty() => {
                        let mut inner = String::new();
                        block(item, indent + 2, &mut inner);
                        let _ = write!(out, "{pad}- {}", inner.trim_start());
                    }
                    _ => {
                        let _ = write!(out, "{pad}-");
                        nested(item, indent, out);
                    }
                }
            }
        }
        other => {
            let _ = writeln!(out, "{pad}{}", scalar(other));
        }
    }
}

fn nested(value: &Value, indent: usize, out: &mut String) {
    let collection = match value {
        Value::Map(dict) => !dict.is_empty(),
        Value::List(list) => !list.items().is_empty(),
        _ => false,
    };
    if collection {
        out.push('\n');
        block(value, indent + 2, out);
    } else {
        let _ = writeln!(out, " {}", scalar(value));
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Str(text) => {
            let plain = text.starts_with(|c: char| c.is_alphabetic() || c == '/')
                && !text.ends_with([' ', ':'])
                && !text.contains(": ")
                && !text.contains(" #")
                && !text.chars().any(char::is_control)
                && !matches!(
                    text.to_ascii_lowercase().as_str(),
                    "y" | "n" | "yes" | "no" | "true" | "false" | "on" | "off" | "null"
                );
            if plain { text.to_string() } else { serde_json::Value::from(&**text).to_string() }
        }
        other => other.to_json().to_string(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn hash(call: &Call) -> Result<Value, String> {
    let text = call.text()?;
    let name = call.get(0, "hashtype").map_or_else(|| "sha1".to_owned(), Value::to_text);
    Ok(match name.as_str() {
        "sha1" => hex(&sha1::Sha1::digest(text.as_bytes())),
        "sha224" => hex(&sha2::Sha224::digest(text.as_bytes())),
        "sha256" => hex(&sha2::Sha256::digest(text.as_bytes())),
        "sha384" => hex(&sha2::Sha384::digest(text.as_bytes())),
        "sha512" => hex(&sha2::Sha512::digest(text.as_bytes())),
        other => {
            return Err(format!(
                "the digest `{other}` is not here; there are sha1, sha224, sha256, sha384, sha512"
            ));
        }
    }
    .into())
}

/// Quotes for a POSIX shell, as Python's shlex does.
fn quote(text: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    if !text.is_empty() && text.chars().all(safe) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\"'\"'"))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64_encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for index in 0..4 {
            if index <= chunk.len() {
                out.push(char::from(ALPHABET[(word >> (18 - 6 * index) & 63) as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

fn base64_decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut word, mut bits) = (0_u32, 0_u32);
    for byte in text.trim_end_matches('=').bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        let digit = ALPHABET.iter().position(|letter| *letter == byte)?;
        word = word << 6 | u32::try_from(digit).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((word >> bits & 0xff) as u8);
        }
    }
    (bits < 6).then_some(out)
}

//! Filters for URLs.

use super::sequences::python_text;
use super::{Call, Filter, Test, list_of};
use crate::template::value::{Dict, Value};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("urlencode", |call| {
        let pair = |key: &str, value: &Value| {
            format!("{}={}", encoded(key, "", true), encoded(&python_text(value), "", true))
        };
        match call.value() {
            Value::Map(dict) => {
                let pairs: Vec<_> = dict.iter().map(|(key, value)| pair(key, value)).collect();
                Ok(pairs.join("&").into())
            }
            Value::List(list) => {
                let mut pairs = Vec::new();
                for item in list.items() {
                    match list_of(item)?.as_slice() {
                        [key, value] => pairs.push(pair(&key.to_text(), value)),
                        _ => return Err("every item is a pair of a name and a value".to_owned()),
                    }
                }
                Ok(pairs.join("&").into())
            }
            other => Ok(encoded(&python_text(other), "/", false).into()),
        }
    }),
    ("urldecode", |call| Ok(decoded(&call.text()?).into())),
    ("urlsplit", urlsplit),
];

pub(super) const TESTS: &[(&str, Test)] = &[
    ("uri", |call| scheme_fits(call, None)),
    ("url", |call| {
        let text = call.text()?;
        let url = Url::read(&text);
        Ok(scheme_fits(call, None)? && (!url.host_part.is_empty() || url.scheme == "file"))
    }),
    ("urn", |call| scheme_fits(call, Some("urn"))),
];

fn scheme_fits(call: &Call, only: Option<&str>) -> Result<bool, String> {
    let text = call.text()?;
    let scheme = Url::read(&text).scheme;
    Ok(match (only, call.get(0, "schemes")) {
        (Some(only), _) => scheme == only,
        (None, Some(Value::List(list))) => list.items().iter().any(|one| one.to_text() == scheme),
        (None, None | Some(Value::Null)) => true,
        (None, Some(one)) => one.to_text() == scheme,
    })
}

fn encoded(text: &str, keep: &str, plus: bool) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match char::from(byte) {
            c if c.is_ascii_alphanumeric() || "_.-~".contains(c) || keep.contains(c) => out.push(c),
            ' ' if plus => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = bytes
            .get(at + 1..at + 3)
            .filter(|pair| byte == b'%' && pair.iter().all(u8::is_ascii_hexdigit))
            .and_then(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        out.push(code.unwrap_or(byte));
        at += if code.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

struct Url<'a> {
    scheme: String,
    host_part: &'a str,
    path: &'a str,
    query: &'a str,
    fragment: &'a str,
}

impl<'a> Url<'a> {
    /// Splits a URL as Python's `urlsplit` does; missing parts are empty.
    fn read(text: &'a str) -> Self {
        let (scheme, rest) = match text.split_once(':') {
            Some((scheme, rest))
                if scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                    && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) =>
            {
                (scheme.to_ascii_lowercase(), rest)
            }
            _ => (String::new(), text),
        };
        let (host_part, rest) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            None => ("", rest),
        };
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        Self { scheme, host_part, path, query, fragment }
    }
}

fn urlsplit(call: &Call) -> Result<Value, String> {
    let text = call.text()?;
    let url = Url::read(&text);
    let (user, host) = match url.host_part.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, url.host_part),
    };
    let (name, password) = match user.map(|user| user.split_once(':').ok_or(user)) {
        Some(Ok((name, password))) => (Some(name), Some(password)),
        Some(Err(name)) => (Some(name), None),
        None => (None, None),
    };
    let (host, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))),
    };
    let port = match port.filter(|port| !port.is_empty()) {
        Some(port) => {
            Value::Int(i64::from(port.parse::<u16>().map_err(|_| "the port is not one of 0 to 65535")?))
        }
        None => Value::Null,
    };
    let maybe = |text: Option<&str>| text.map_or(Value::Null, Value::str);
    let host = host.to_lowercase();
    let parts: Dict = [
        ("fragment", url.fragment.into()),
        ("hostname", maybe(Some(host.as_str()).filter(|host| !host.is_empty()))),
        ("netloc", url.host_part.into()),
        ("password", maybe(password)),
        ("path", url.path.into()),
        ("port", port),
        ("query", url.query.into()),
        ("scheme", url.scheme.as_str().into()),
        ("username", maybe(name)),
    ]
    .into_iter()
    .collect();
    match call.get(0, "query").filter(|part| part.truthy()) {
        Some(part) => {
            let part = part.to_text();
            parts.get(&part).cloned().ok_or_else(|| {
                let names: Vec<_> = parts.keys().collect();
                format!("an address has no part `{part}`; there are {}", names.join(", "))
            })
        }
        None => Ok(Value::Map(std::sync::Arc::new(parts))),
    }
}

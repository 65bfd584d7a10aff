//! Lookups of variables, the environment, programs and the inventory.

use std::collections::BTreeSet;

use super::{Failure, Found, Lookup, Request, rendered, text};
use crate::template::{frame, inert, value::Value};

pub(super) const LOOKUPS: &[Lookup] = &[
    Lookup {
        name: "env",
        about: "a variable of the environment that gpufleet was started in; empty text without one",
        options: &["default"],
        run: environment,
    },
    Lookup {
        name: "vars",
        about: "a variable of which an expression gives the name",
        options: &["default"],
        run: variables,
    },
    Lookup {
        name: "varnames",
        about: "the names of variables that a regular expression matches, in alphabetical order",
        options: &[],
        run: names,
    },
    Lookup {
        name: "pipe",
        about: "what a line of shell prints on the controller, in the playbook's folder",
        options: &[],
        run: |request| {
            let folder = request.playbook_folder()?;
            let line = |text: &String| Ok(printed(request, text, &folder)?.to_text().trim_end().into());
            request.texts()?.iter().map(line).collect()
        },
    },
    Lookup {
        name: "lines",
        about: "as `pipe`, line by line",
        options: &[],
        run: |request| {
            let folder = request.playbook_folder()?;
            let mut out = Vec::new();
            for text in request.texts()? {
                out.extend(printed(request, &text, &folder)?.to_text().lines().map(Value::str));
            }
            Ok(out)
        },
    },
    Lookup {
        name: "inventory_hostnames",
        about: "the hosts that a pattern names",
        options: &[],
        run: |request| {
            let hosts = request.outside()?.hosts(&request.texts()?)?;
            Ok(hosts.into_iter().map(Value::from).collect())
        },
    },
];

/// Returns the output of a shell line, if the shell interprets nothing of a node's text in it.
fn printed(request: &Request, line: &str, folder: &str) -> Result<Value, Failure> {
    match frame::may_ask_a_shell(line)? {
        true => Ok(Value::Str(request.outside()?.output(line, folder)?)),
        false => Ok(inert::mark()),
    }
}

fn environment(request: &Request) -> Found {
    let mut out = Vec::new();
    for term in request.texts()? {
        let name = term.split_whitespace().next().ok_or("the name of a variable is needed")?;
        out.push(match request.outside()?.variable(name)? {
            Some(value) => Value::from(value),
            None => request.option("default").cloned().unwrap_or_else(|| Value::str("")),
        });
    }
    Ok(out)
}

fn variables(request: &Request) -> Found {
    let default = request.option("default").filter(|value| **value != Value::Null);
    let mut out = Vec::new();
    for term in &request.terms {
        let Value::Str(name) = term else {
            return Err(format!("the name of a variable is text, this is {}", term.kind()).into());
        };
        out.push(match (request.scope.get(name), default) {
            (Some(value), _) => rendered(value, &request.scope)?,
            (None, Some(default)) => default.clone(),
            (None, None) => return Err(Failure::Undefined(name.to_string())),
        });
    }
    Ok(out)
}

fn names(request: &Request) -> Found {
    let mut out = Vec::new();
    let known: BTreeSet<&str> = request.scope.names().collect();
    for term in &request.terms {
        let Value::Str(pattern) = term else {
            return Err(format!("a pattern is text, this is {}", term.kind()).into());
        };
        let pattern = regex::Regex::new(pattern).map_err(|_| "it is not a regular expression")?;
        out.extend(known.iter().filter(|name| pattern.is_match(name)).map(Value::str));
    }
    Ok(out)
}

/// Splits `some words key=value "key=two words"` into the words and the pairs.
///
/// This is Ansible's old way to give options inside of a term.
pub(super) fn words_and_options(term: &str) -> (String, Vec<(String, String)>) {
    let (mut words, mut options) = (Vec::new(), Vec::new());
    let mut rest = term.trim_start();
    while !rest.is_empty() {
        let mut quote = None;
        let end = rest
            .char_indices()
            .find(|(_, c)| {
                match quote {
                    Some(open) if open == *c => quote = None,
                    None if matches!(c, '\'' | '"') => quote = Some(*c),
                    None if c.is_whitespace() => return true,
                    _ => {}
                }
                false
            })
            .map_or(rest.len(), |(at, _)| at);
        let (word, after) = rest.split_at(end);
        match word.split_once('=').filter(|(key, _)| !key.is_empty()) {
            Some((key, value)) => {
                options.push((key.trim_matches(['"', '\'']).to_owned(), unquoted(value).to_owned()))
            }
            None => words.push(word),
        }
        rest = after.trim_start();
    }
    (words.join(" "), options)
}

fn unquoted(value: &str) -> &str {
    let quote = value.chars().next().filter(|c| matches!(c, '\'' | '"'));
    let inner = quote.and_then(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    inner.unwrap_or(value)
}

/// Returns the words of a term, joined, and its options merged over those of the call.
pub(super) fn key_and_options(
    term: &Value,
    names: &[&str],
) -> Result<(String, Vec<(String, String)>), Failure> {
    let (key, options) = words_and_options(&text(term, "a term")?);
    match options.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        Some((name, _)) => Err(format!("it has no option `{name}`; there are {}", names.join(", ")).into()),
        None => Ok((key, options)),
    }
}

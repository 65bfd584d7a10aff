//! Regular expressions.

use regex::{Regex, RegexBuilder};

use super::{Call, Filter, Test, text_of};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("regex_replace", |call| {
        let pattern = compile(call, 0, "pattern")?;
        let replacement = call.get(1, "replacement").map_or(Ok(String::new()), text_of)?;
        let replacement = python_replacement(&replacement);
        let limit = match call.get(2, "count") {
            Some(Value::Int(count)) => usize::try_from(*count).unwrap_or(0),
            _ => 0,
        };
        Ok(pattern.replacen(&call.text()?, limit, replacement.as_str()).into_owned().into())
    }),
    ("regex_search", |call| {
        let pattern = compile(call, 0, "pattern")?;
        let text = call.text()?;
        let Some(found) = pattern.captures(&text) else { return Ok(Value::Null) };
        let wanted: Vec<String> = call.args.iter().skip(2).map(Value::to_text).collect();
        if wanted.is_empty() {
            return Ok(found.get(0).map_or("", |whole| whole.as_str()).into());
        }
        let group = |name: &String| -> Result<Value, String> {
            let name = name.trim_start_matches("\\g<").trim_start_matches('\\').trim_end_matches('>');
            let group = match name.parse::<usize>() {
                Ok(index) => found.get(index),
                Err(_) => found.name(name),
            };
            Ok(group.map_or(Value::Null, |group| group.as_str().into()))
        };
        Ok(Value::list(wanted.iter().map(group).collect::<Result<_, _>>()?))
    }),
    ("regex_findall", |call| {
        let pattern = compile(call, 0, "pattern")?;
        let text = call.text()?;
        let one = |found: regex::Captures<'_>| {
            let group = |index: usize| Value::from(found.get(index).map_or("", |group| group.as_str()));
            match found.len() {
                1 => group(0),
                2 => group(1),
                count => Value::list((1..count).map(group).collect()),
            }
        };
        Ok(Value::list(pattern.captures_iter(&text).map(one).collect()))
    }),
    ("regex_escape", |call| Ok(regex::escape(&call.text()?).into())),
];

pub(super) const TESTS: &[(&str, Test)] = &[
    ("match", |call| {
        let text = call.text()?;
        Ok(compile(call, 0, "pattern")?.find(&text).is_some_and(|found| found.start() == 0))
    }),
    ("search", |call| Ok(compile(call, 0, "pattern")?.is_match(&call.text()?))),
    ("regex", |call| Ok(compile(call, 0, "pattern")?.is_match(&call.text()?))),
];

fn compile(call: &Call, index: usize, name: &str) -> Result<Regex, String> {
    let pattern = call.text_arg(index, name)?;
    let flag = |name: &str| call.named.iter().any(|(key, value)| key == name && value.truthy());
    RegexBuilder::new(&pattern)
        .case_insensitive(flag("ignorecase"))
        .multi_line(flag("multiline"))
        .size_limit(1 << 20)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "the regular expression is too large".to_owned(),
            _ => "not a regular expression, or one with look-around or back references, which are not supported"
                .to_owned(),
        })
}

/// `\1` and `\g<name>` as the regex crate writes them.
fn python_replacement(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('$', _) => out.push_str("$$"),
            ('\\', Some(digit)) if digit.is_ascii_digit() => {
                out.push_str("${");
                while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                    out.push(digit);
                }
                out.push('}');
            }
            ('\\', Some('g')) => {
                chars.next();
                let name: String =
                    chars.by_ref().skip_while(|c| *c == '<').take_while(|c| *c != '>').collect();
                out.push_str("${");
                out.push_str(&name);
                out.push('}');
            }
            ('\\', Some('n')) => {
                chars.next();
                out.push('\n');
            }
            ('\\', Some('\\')) => {
                chars.next();
                out.push('\\');
            }
            (c, _) => out.push(c),
        }
    }
    out
}

//! The lookup `sequence`: numbers as text.

use std::sync::LazyLock;

use regex::Regex;

use super::surroundings::words_and_options;
use super::{Failure, Found, MAX_ITEMS, Request};
use crate::template::filters::printf;
use crate::template::value::Value;

/// Ansible's short form: `[start-]end[/stride][:format]`.
static SHORT: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)^((0?x?[0-9a-f]+)-)?(0?x?[0-9a-f]+)(/(0?x?[0-9a-f]+))?(:(.+))?$").ok());

#[derive(Default)]
struct Plan {
    start: Option<i64>,
    end: Option<i64>,
    count: Option<i64>,
    stride: Option<i64>,
    format: Option<String>,
}

impl Plan {
    fn set(&mut self, name: &str, value: &Value) -> Result<(), Failure> {
        let place = match name {
            "start" => &mut self.start,
            "end" => &mut self.end,
            "count" => &mut self.count,
            "stride" => &mut self.stride,
            "format" => {
                self.format = Some(value.to_text());
                return Ok(());
            }
            _ => {
                return Err(format!("there is no `{name}`, only start, end, count, stride and format").into());
            }
        };
        *place = match value {
            Value::Int(number) => Some(*number),
            Value::Str(text) => Some(whole(name, text)?),
            other => return Err(format!("`{name}` is a whole number, this is {}", other.kind()).into()),
        };
        Ok(())
    }

    fn numbers(&self) -> Result<Vec<i64>, Failure> {
        let (start, stride) = (self.start.unwrap_or(1), self.stride.unwrap_or(1));
        let end = match (self.end, self.count) {
            (Some(_), Some(_)) => return Err("`end` and `count` exclude each other".into()),
            (None, None) => return Err("`end` or `count` is needed".into()),
            (Some(end), None) => end,
            (None, Some(0)) => return Ok(Vec::new()),
            (None, Some(count)) => {
                let length = count.checked_mul(stride).and_then(|length| length.checked_add(start));
                length.and_then(|end| end.checked_sub(1)).ok_or("the numbers are too large")?
            }
        };
        if stride > 0 && end < start {
            return Err("it counts backwards: make `stride` negative".into());
        }
        if stride < 0 && end > start {
            return Err("it counts forwards: make `stride` positive".into());
        }
        let mut numbers = Vec::new();
        let mut number = start;
        while stride > 0 && number <= end || stride < 0 && number >= end {
            if numbers.len() >= MAX_ITEMS {
                return Err("the list is too long".into());
            }
            numbers.push(number);
            let Some(next) = number.checked_add(stride) else { break };
            number = next;
        }
        Ok(numbers)
    }
}

fn whole(name: &str, text: &str) -> Result<i64, Failure> {
    text.trim().parse().map_err(|_| format!("`{name}` is a whole number").into())
}

pub(super) fn sequence(request: &Request) -> Found {
    let given: Vec<(&str, Value)> = ["start", "end", "count", "stride", "format"]
        .into_iter()
        .filter_map(|name| {
            request.option(name).filter(|value| **value != Value::Null).map(|value| (name, value.clone()))
        })
        .collect();
    let mut terms = request.terms.clone();
    if terms.is_empty() && !given.is_empty() {
        terms.push(Value::str(""));
    }
    let mut out = Vec::new();
    for term in &terms {
        let Value::Str(text) = term else {
            return Err(format!("a term is text, this is {}", term.kind()).into());
        };
        let mut plan = Plan::default();
        for (name, value) in &given {
            plan.set(name, value)?;
        }
        match SHORT.as_ref().and_then(|short| short.captures(text)) {
            Some(parts) => {
                for (name, group) in [("start", 2), ("end", 3), ("stride", 5), ("format", 7)] {
                    if let Some(part) = parts.get(group) {
                        plan.set(name, &Value::str(part.as_str()))?;
                    }
                }
            }
            None => {
                let (rest, options) = words_and_options(text);
                if !rest.is_empty() {
                    return Err(
                        format!("`{rest}` means nothing here; write it as `1-8` or `start=1 end=8`").into()
                    );
                }
                for (name, value) in options {
                    plan.set(&name, &Value::from(value))?;
                }
            }
        }
        let numbers = plan.numbers()?;
        let format = plan.format.as_deref().unwrap_or("%d");
        if !numbers.is_empty() && format.matches('%').count() != 1 {
            return Err("`format` has one `%`, as `gpu%02d`".into());
        }
        for number in numbers {
            out.push(printf::format(format, &[Value::Int(number)], &[])?.into());
        }
    }
    Ok(out)
}

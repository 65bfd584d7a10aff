//! The order of values: `<`, `<=`, `>`, `>=`, the tests of these names, and what sorting compares.
//!
//! As in Python, which Ansible runs on: values of unlike types have no order, and asking for it is an error. The
//! engine orders all values, so that `5 >= '5.1'` would be false without a word, and a task would be skipped.

use std::cmp::Ordering;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind};

use super::super::frame::{collect, is_missing};
use super::super::rewrite::ORDER;
use super::{TemplateError, dates, forgive, names, sequences};
use crate::template::value::Value;

type Engine = minijinja::Value;

/// The tests, with the operator that each stands for.
pub(super) const TESTS: &[(&str, &str)] = &[
    ("lt", "<"),
    ("lessthan", "<"),
    ("<", "<"),
    ("le", "<="),
    ("<=", "<="),
    ("gt", ">"),
    ("greaterthan", ">"),
    (">", ">"),
    ("ge", ">="),
    (">=", ">="),
];

const ADVICE: &str =
    "convert one of them (`| int`, `| float`, `| string`), or compare versions with `is version`";

/// Returns the number that a value is in comparisons.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(value) => Some(f64::from(u8::from(*value))),
        #[expect(clippy::cast_precision_loss, reason = "Python's floats lose the same digits")]
        Value::Int(value) => Some(*value as f64),
        Value::Float(value) => Some(*value),
        _ => None,
    }
}

/// Compares two values.
///
/// # Errors
/// If values of these types have no order.
pub(super) fn compare(a: &Value, b: &Value) -> Result<Ordering, String> {
    match (a, b) {
        (Value::Secret(a), b) => compare(a, b),
        (a, Value::Secret(b)) => compare(a, b),
        // The whole expression is unknown then.
        (Value::Unknown, _) | (_, Value::Unknown) => Ok(Ordering::Equal),
        (Value::Int(a), Value::Int(b)) => Ok(a.cmp(b)),
        (Value::Str(a) | Value::Template(a), Value::Str(b) | Value::Template(b)) => Ok(a.cmp(b)),
        (Value::List(a), Value::List(b)) => {
            for (a, b) in a.items().iter().zip(b.items()) {
                // What is equal needs no order.
                let order = if a == b { Ordering::Equal } else { compare(a, b)? };
                if order.is_ne() {
                    return Ok(order);
                }
            }
            Ok(a.items().len().cmp(&b.items().len()))
        }
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => Ok(a.partial_cmp(&b).unwrap_or(Ordering::Equal)),
            _ => Err(unordered(a.kind(), b.kind())),
        },
    }
}

fn unordered(a: &str, b: &str) -> String {
    let named = |kind: &str| if kind == "nothing" { "none".to_owned() } else { kind.to_owned() };
    match a == b {
        true => format!("two values that are {} have no order", named(a)),
        false => format!("{} and {} have no order", named(a), named(b)),
    }
}

/// Whether `a operator b` holds.
fn holds(a: &Engine, operator: &str, b: &Engine) -> Result<bool, Error> {
    let failed = |message: String| {
        Error::new(ErrorKind::InvalidOperation, format!("`{operator}`: {message}; {ADVICE}"))
    };
    // Dates and spans are values of the engine, of which variables keep a text only.
    let order = match (dates::kind(a), dates::kind(b)) {
        (None, None) => {
            let plain = |value: &Engine| collect(value).map_err(TemplateError::into_engine);
            compare(&plain(a)?, &plain(b)?).map_err(failed)?
        }
        (a_kind, b_kind) if a_kind == b_kind => a.cmp(b),
        _ if is_missing(a) || is_missing(b) => Ordering::Equal,
        (a_kind, b_kind) => {
            return Err(failed(unordered(a_kind.unwrap_or("a value"), b_kind.unwrap_or("a value"))));
        }
    };
    Ok(match operator {
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    })
}

/// Evaluates `a < b`, and chains such as `a < b <= c`, which hold if each pair does.
fn chain(first: &Engine, rest: Rest<Engine>) -> Result<bool, Error> {
    let mut left = first;
    for pair in rest.chunks(2) {
        let [operator, right] = pair else { break };
        let is_held = match operator.as_str().unwrap_or_default() {
            "==" => left == right,
            "!=" => left != right,
            "in" => {
                let message = "`in` stands beside `<` in one comparison; write `a < b and b in c`";
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
            operator => holds(left, operator, right)?,
        };
        if !is_held {
            return Ok(false);
        }
        left = right;
    }
    Ok(true)
}

/// Groups items. The engine's own filter sorts all values, also those without an order.
fn groupby(value: Engine, attribute: Option<&str>, kwargs: Kwargs) -> Result<Engine, Error> {
    let path = match attribute {
        Some(path) => path,
        None => kwargs.get::<&str>("attribute")?,
    };
    let default = kwargs.get::<Option<Engine>>("default")?;
    let sensitive = kwargs.get::<Option<bool>>("case_sensitive")?.unwrap_or(false);
    let mut keys = Vec::new();
    for item in value.try_iter()? {
        let mut found = item;
        for part in path.split('.') {
            found = match part.parse::<usize>() {
                Ok(at) => found.get_item(&Engine::from(at))?,
                Err(_) => found.get_attr(part)?,
            };
        }
        if let Some(default) = default.as_ref().filter(|_| forgive(&found)) {
            found = default.clone();
        }
        let key = collect(&found).map_err(TemplateError::into_engine)?;
        keys.push((sequences::folded(key, sensitive), ()));
    }
    sequences::sorted(keys, false)
        .map_err(|message| Error::new(ErrorKind::InvalidOperation, format!("`groupby`: {message}")))?;
    minijinja::filters::groupby(value, attribute, kwargs)
}

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_filter(ORDER, chain);
    environment.add_filter("groupby", groupby);
    for &(name, operator) in TESTS {
        for known in names(name) {
            environment.add_test(known, move |a: &Engine, b: &Engine| holds(a, operator, b));
        }
    }
}

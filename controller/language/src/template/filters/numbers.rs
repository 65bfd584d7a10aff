//! Filters for numbers, and for sizes as people write them.

use super::order::number;
use super::{Call, Filter, Test};
use crate::template::value::Value;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("int", int),
    ("float", |call| {
        let found = match call.value() {
            Value::Str(text) => text.trim().replace('_', "").parse::<f64>().ok(),
            other => number(other),
        };
        match (found, call.get(0, "default")) {
            (Some(found), _) => Ok(Value::Float(found)),
            (None, Some(other)) => Ok(other.clone()),
            (None, None) => Ok(Value::Float(0.0)),
        }
    }),
    ("abs", |call| match call.value() {
        Value::Int(value) => value.checked_abs().map(Value::Int).ok_or_else(|| "it is too large".to_owned()),
        _ => Ok(Value::Float(needed(call)?.abs())),
    }),
    ("round", round),
    ("log", |call| {
        let value = needed(call)?;
        if value <= 0.0 {
            return Err("only numbers above 0 have a logarithm".to_owned());
        }
        Ok(Value::Float(match argument(call, 0, "base")? {
            Some(10.0) => value.log10(),
            Some(base) => value.ln() / base.ln(),
            None => value.ln(),
        }))
    }),
    ("pow", |call| {
        let power = argument(call, 0, "y")?.ok_or("the power is missing")?;
        Ok(Value::Float(needed(call)?.powf(power)))
    }),
    ("root", |call| {
        let value = needed(call)?;
        let root = match argument(call, 0, "base")? {
            None | Some(2.0) => value.sqrt(),
            Some(base) => value.powf(1.0 / base),
        };
        if root.is_nan() {
            Err("a number below 0 has no such root".to_owned())
        } else {
            Ok(Value::Float(root))
        }
    }),
    ("human_readable", human_readable),
    ("human_to_bytes", human_to_bytes),
    ("filesizeformat", file_size),
];

pub(super) const TESTS: &[(&str, Test)] = &[("nan", nan), ("isnan", nan), ("divisibleby", divisible)];

/// Whether a number is divisible. The engine's own test panics if the divisor is 0.
fn divisible(call: &Call) -> Result<bool, String> {
    match (call.value(), call.need(0, "num")?) {
        (_, Value::Int(0)) => Err("nothing can be divided by 0".to_owned()),
        (Value::Int(value), Value::Int(by)) => Ok(value.checked_rem(*by).unwrap_or_default() == 0),
        (value, by) => {
            let (value, by) = (number(value), number(by));
            let (Some(value), Some(by)) = (value, by) else {
                return Err("two numbers are needed".to_owned());
            };
            if by == 0.0 { Err("nothing can be divided by 0".to_owned()) } else { Ok(value % by == 0.0) }
        }
    }
}

fn nan(call: &Call) -> Result<bool, String> {
    Ok(number(call.value()).is_some_and(f64::is_nan))
}

fn needed(call: &Call) -> Result<f64, String> {
    number(call.value()).ok_or_else(|| format!("a number is needed, this is {}", call.value().kind()))
}

fn argument(call: &Call, index: usize, name: &str) -> Result<Option<f64>, String> {
    match call.get(index, name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match number(value) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("`{name}` is a number, this is {}", value.kind())),
        },
    }
}

/// Converts as Jinja does: what is not a number gives the default, which is 0 unless set.
fn int(call: &Call) -> Result<Value, String> {
    #[expect(clippy::cast_possible_truncation, reason = "what does not fit is left out")]
    let whole = |value: f64| (value.abs() < 9.2e18).then_some(value as i64);
    let base = call.size(1, "base")?.unwrap_or(10);
    let found = match call.value() {
        Value::Int(value) => Some(*value),
        Value::Str(text) => {
            let text = text.trim().replace('_', "");
            based(&text, base).or_else(|| text.parse().ok().and_then(whole))
        }
        other => number(other).and_then(whole),
    };
    Ok(found.map_or_else(|| call.get(0, "default").cloned().unwrap_or(Value::Int(0)), Value::Int))
}

fn based(text: &str, base: usize) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = |prefix: &str| lower.strip_prefix(prefix);
    let (digits, base) = match base {
        16 => (prefixed("0x").unwrap_or(&lower), 16),
        8 => (prefixed("0o").unwrap_or(&lower), 8),
        2 => (prefixed("0b").unwrap_or(&lower), 2),
        0 => match (prefixed("0x"), prefixed("0o"), prefixed("0b")) {
            (Some(digits), ..) => (digits, 16),
            (_, Some(digits), _) => (digits, 8),
            (.., Some(digits)) => (digits, 2),
            _ => (lower.as_str(), 10),
        },
        base => (lower.as_str(), u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?),
    };
    if digits.starts_with(['-', '+']) {
        return None;
    }
    i64::from_str_radix(digits, base).ok().map(|value| sign * value)
}

fn round(call: &Call) -> Result<Value, String> {
    let precision = match call.get(0, "precision") {
        Some(Value::Int(precision)) => i32::try_from(*precision).unwrap_or(0).clamp(-300, 300),
        _ => 0,
    };
    let scale = 10_f64.powi(precision);
    let value = needed(call)?;
    match call.get(1, "method").map_or_else(|| "common".to_owned(), Value::to_text).as_str() {
        "common" => match call.value() {
            Value::Int(value) if precision >= 0 => Ok(Value::Int(*value)),
            Value::Int(value) => {
                let unit = 10_i64.checked_pow(precision.unsigned_abs()).ok_or("that is too coarse")?;
                let (down, rest) = (value.div_euclid(unit), value.rem_euclid(unit));
                let up = match (rest * 2).cmp(&unit) {
                    std::cmp::Ordering::Less => 0,
                    std::cmp::Ordering::Greater => 1,
                    std::cmp::Ordering::Equal => down.rem_euclid(2),
                };
                (down + up).checked_mul(unit).map(Value::Int).ok_or_else(|| "it is too large".to_owned())
            }
            // Like Python, Rust rounds the exact decimal value and halves to even.
            _ if precision >= 0 => {
                let text = format!("{value:.*}", usize::try_from(precision).unwrap_or(0));
                Ok(Value::Float(text.parse().unwrap_or(value)))
            }
            _ => Ok(Value::Float((value * scale).round_ties_even() / scale)),
        },
        "ceil" => Ok(Value::Float((value * scale).ceil() / scale)),
        "floor" => Ok(Value::Float((value * scale).floor() / scale)),
        other => Err(format!("the method is `common`, `ceil` or `floor`, not `{other}`")),
    }
}

const UNITS: [(char, i32, &str); 9] = [
    ('Y', 80, "yotta"),
    ('Z', 70, "zeta"),
    ('E', 60, "exa"),
    ('P', 50, "peta"),
    ('T', 40, "tera"),
    ('G', 30, "giga"),
    ('M', 20, "mega"),
    ('K', 10, "kilo"),
    ('B', 0, ""),
];

fn human_readable(call: &Call) -> Result<Value, String> {
    let size = needed(call)?;
    let bits = call.flag(0, "isbits");
    let unit = call.get(1, "unit").filter(|unit| !matches!(unit, Value::Null)).map(Value::to_text);
    let fits = |letter: char, limit: f64| match &unit {
        Some(unit) => unit.eq_ignore_ascii_case(&letter.to_string()),
        None => size >= limit,
    };
    let (letter, power, _) = UNITS
        .into_iter()
        .find(|(letter, power, _)| fits(*letter, 2_f64.powi(*power)))
        .unwrap_or(('B', 0, ""));
    let suffix = match (power, bits) {
        (0, false) => "Bytes".to_owned(),
        (0, true) => "bits".to_owned(),
        (_, false) => format!("{letter}B"),
        (_, true) => format!("{letter}b"),
    };
    Ok(format!("{:.2} {suffix}", size / 2_f64.powi(power)).into())
}

fn human_to_bytes(call: &Call) -> Result<Value, String> {
    let text = call.text()?;
    let trimmed = text.trim_end();
    let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let own = trimmed.get(digits.len()..).unwrap_or_default();
    let plain = !digits.starts_with(|c: char| c != '.' && !c.is_ascii_digit());
    let value: f64 = digits
        .trim_end()
        .parse()
        .ok()
        .filter(|_| plain)
        .ok_or("a size is a number and a unit, as `10 GB`; this is not one")?;
    let unit = match (own, call.get(0, "default_unit")) {
        ("", Some(Value::Null) | None) => return whole(value),
        ("", Some(unit)) => unit.to_text(),
        (own, _) => own.to_owned(),
    };
    let bits = call.flag(1, "isbits");
    let first = unit.chars().next().unwrap_or('B').to_ascii_uppercase();
    let Some((letter, power, name)) = UNITS.into_iter().find(|(letter, ..)| *letter == first) else {
        return Err(format!("`{unit}` is not a unit; there are Y, Z, E, P, T, G, M, K, B"));
    };
    let (short, long) = if bits { ('b', "bit") } else { ('B', "byte") };
    let short = if power == 0 { short.to_string() } else { format!("{letter}{short}") };
    if unit.chars().count() > 1 && unit != short && unit.to_ascii_lowercase() != format!("{name}{long}") {
        return Err(format!("`{unit}` is not a unit of {long}s; write `{short}`"));
    }
    whole(value * 2_f64.powi(power))
}

fn whole(value: f64) -> Result<Value, String> {
    let value = value.round_ties_even();
    #[expect(clippy::cast_possible_truncation, reason = "what does not fit is refused")]
    if value.abs() < 9.2e18 { Ok(Value::Int(value as i64)) } else { Err("it is too large".to_owned()) }
}

fn file_size(call: &Call) -> Result<Value, String> {
    let value = match call.value() {
        Value::Str(text) => text.trim().parse().map_err(|_| "a number is needed, this is text")?,
        _ => needed(call)?,
    };
    let binary = call.flag(0, "binary");
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if (value - 1.0).abs() < f64::EPSILON {
        return Ok("1 Byte".into());
    }
    if value < base {
        return Ok(format!("{} Bytes", value.trunc()).into());
    }
    let (mut unit, mut name) = (base * base, 'k');
    for next in ['M', 'G', 'T', 'P', 'E', 'Z', 'Y'] {
        if value < unit {
            break;
        }
        unit *= base;
        name = next;
    }
    let name = if binary { format!("{}iB", name.to_ascii_uppercase()) } else { format!("{name}B") };
    Ok(format!("{:.1} {name}", base * value / unit).into())
}

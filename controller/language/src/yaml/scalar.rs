//! Types of plain scalars, by the rules of PyYAML's resolver for YAML 1.1, which Ansible uses.
//!
//! Timestamps stay strings, as every user of a date in a variable takes it for a text. One with a time of day is
//! written in Python's form (`2026-01-02T03:04:05`).

use std::ops::RangeInclusive;

use super::node::{Str, Value};

/// Returns the value of an unquoted scalar without a tag.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Value::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        _ => {}
    }
    // Nearly every scalar is a word; only these bytes can begin a number.
    let number = text.bytes().next().is_some_and(|byte| byte.is_ascii_digit() || b"+-.".contains(&byte));
    if number && let Some(value) = int(text) {
        return Value::Int(value);
    }
    if number && let Some(value) = float(text) {
        return Value::Float(value);
    }
    let text = if number { timestamp(text).unwrap_or_else(|| text.to_owned()) } else { text.to_owned() };
    Value::Str(Str { text, plain: true })
}

/// Converts a YAML 1.1 date with a time of day to Python's form; `None` for anything else, plain dates included.
fn timestamp(text: &str) -> Option<String> {
    let (date, rest) = text.split_at(text.find(['T', 't', ' ', '\t']).filter(|_| text.is_ascii())?);
    let rest = rest.strip_prefix(['T', 't']).unwrap_or_else(|| rest.trim_start());
    let zone_at = rest.find(['Z', '+', '-']);
    let (time, zone) = zone_at.map_or((rest, ""), |at| rest.split_at(at));
    let (time, fraction) = time.trim_end().split_once('.').unwrap_or((time.trim_end(), ""));
    let number = |text: &str, digits: RangeInclusive<usize>| {
        (digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()))
            .then(|| text.parse::<u32>().ok())?
    };
    let mut days = date.split('-');
    let year = number(days.next()?, 4..=4)?;
    let (month, day) = (number(days.next()?, 1..=2)?, number(days.next()?, 1..=2)?);
    let mut parts = time.split(':');
    let (hour, minute) = (number(parts.next()?, 1..=2)?, number(parts.next()?, 2..=2)?);
    let second = number(parts.next()?, 2..=2)?;
    let in_range =
        (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 60;
    if days.next().is_some()
        || parts.next().is_some()
        || !in_range
        || !fraction.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let mut out = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    let micros: String = fraction.chars().chain("000000".chars()).take(6).collect();
    if micros != "000000" {
        out.push('.');
        out.push_str(&micros);
    }
    match zone {
        "" => {}
        "Z" => out.push_str("+00:00"),
        zone => {
            let (sign, offset) = zone.split_at(1);
            let (hours, minutes) = offset.split_once(':').unwrap_or((offset, "00"));
            out.push_str(&format!("{sign}{:02}:{:02}", number(hours, 1..=2)?, number(minutes, 2..=2)?));
        }
    }
    Some(out)
}

/// Parses a YAML 1.1 integer: decimal, `0b`, `0x`, octal with a leading zero, base 60, `_` between digits.
pub(super) fn int(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let first = digits.bytes().next()?;
    if !first.is_ascii_digit() {
        return None;
    }
    let value = if let Some(bits) = digits.strip_prefix("0b") {
        i128::from_str_radix(&checked(bits, |b| matches!(b, b'0' | b'1'))?, 2).ok()?
    } else if let Some(hex) = digits.strip_prefix("0x") {
        i128::from_str_radix(&checked(hex, |b| b.is_ascii_hexdigit())?, 16).ok()?
    } else if digits == "0" {
        0
    } else if first == b'0' {
        i128::from_str_radix(&checked(&digits[1..], |b| matches!(b, b'0'..=b'7'))?, 8).ok()?
    } else if digits.contains(':') {
        int_base_60(digits)?
    } else {
        checked(digits, |b| b.is_ascii_digit())?.parse().ok()?
    };
    Some(if negative { -value } else { value })
}

/// Returns `digits` without `_`, if there is at least one digit and nothing else.
fn checked(digits: &str, is_digit: impl Fn(u8) -> bool) -> Option<String> {
    let plain = digits.replace('_', "");
    (!plain.is_empty() && plain.bytes().all(is_digit)).then_some(plain)
}

/// Parses a YAML 1.1 float, which needs a dot, and a sign in its exponent.
pub(super) fn float(text: &str) -> Option<f64> {
    let (sign, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (if text.starts_with('-') { -1.0 } else { 1.0 }, rest),
        None => (1.0, text),
    };
    match digits {
        ".inf" | ".Inf" | ".INF" => return Some(sign * f64::INFINITY),
        ".nan" | ".NaN" | ".NAN" if digits == text => return Some(f64::NAN),
        _ => {}
    }
    if digits.contains(':') {
        return sexagesimal(digits).map(|value| sign * value);
    }
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], Some(&digits[at + 1..])),
        None => (digits, None),
    };
    let (whole, fraction) = mantissa.split_once('.')?;
    let digits_only = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if !digits_only(whole) || !digits_only(fraction) || whole.starts_with('_') {
        return None;
    }
    if whole.is_empty() && (digits != text || !fraction.starts_with(|c: char| c.is_ascii_digit())) {
        return None;
    }
    if let Some(exponent) = exponent {
        let exponent = exponent.strip_prefix(['-', '+'])?;
        if exponent.is_empty() || !exponent.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
    }
    digits.replace('_', "").parse::<f64>().ok().map(|value| sign * value)
}

fn sexagesimal(digits: &str) -> Option<f64> {
    let (whole, fraction) = digits.split_once('.')?;
    if !fraction.bytes().all(|b| b.is_ascii_digit() || b == b'_') {
        return None;
    }
    let whole = int_base_60(whole)?;
    let fraction = format!("0.{}", fraction.replace('_', ""));
    #[expect(clippy::cast_precision_loss, reason = "a float is what the text says it is")]
    Some(whole as f64 + fraction.parse::<f64>().unwrap_or(0.0))
}

fn int_base_60(digits: &str) -> Option<i128> {
    let mut value: i128 = 0;
    for (index, part) in digits.split(':').enumerate() {
        let part = if index == 0 { part.replace('_', "") } else { part.to_owned() };
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) || (index > 0 && part.len() > 2) {
            return None;
        }
        let part: i128 = part.parse().ok()?;
        if index > 0 && part > 59 {
            return None;
        }
        value = value.checked_mul(60)?.checked_add(part)?;
    }
    Some(value)
}

/// Whether a text has the form `2026-01-02`.
fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

/// Returns the value of a scalar with a YAML tag (`!!str`, `!!int` …); `None` if the text does not fit the tag.
pub(super) fn resolve_core(tag: &str, text: &str) -> Option<Value> {
    let string = || Value::Str(Str { text: text.to_owned(), plain: false });
    match tag {
        "str" => Some(string()),
        "null" => Some(Value::Null),
        "bool" => match resolve(text) {
            Value::Bool(value) => Some(Value::Bool(value)),
            _ => None,
        },
        "int" => int(text).map(Value::Int),
        "float" => float(text).or_else(|| text.replace('_', "").parse().ok()).map(Value::Float),
        "timestamp" if is_date(text) => Some(string()),
        "timestamp" => timestamp(text).map(|text| Value::Str(Str { text, plain: false })),
        _ => None,
    }
}

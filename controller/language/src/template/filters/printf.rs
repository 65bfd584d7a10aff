//! Python's `%` formatting.

use super::order::number;
use super::sequences::python_text;
use crate::template::bounds::{self, MAX_WIDTH};
use crate::template::{inert, value::Value};

#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    blank: bool,
    zero: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// Fills in the `%s`, `%(name)s` and so on of a text.
///
/// # Errors
/// Too few or too many values, values of the wrong type, unknown conversions.
pub(in crate::template) fn format(
    text: &str,
    args: &[Value],
    named: &[(String, Value)],
) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    let mut rest = args.iter();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut name = None;
        if chars.next_if_eq(&'(').is_some() {
            name = Some(chars.by_ref().take_while(|c| *c != ')').collect::<String>());
        }
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => spec.left = true,
                '+' => spec.plus = true,
                ' ' => spec.blank = true,
                '0' => spec.zero = true,
                _ => spec.alternate = true,
            }
        }
        spec.width = digits(&mut chars)?;
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(digits(&mut chars)?);
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let letter = chars.next().ok_or("the format ends in the middle of a `%`")?;
        if letter == '%' {
            out.push('%');
            continue;
        }
        let value = match name {
            Some(name) => {
                let found = named.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
                let dict = args.first().and_then(Value::as_map).and_then(|dict| dict.get(&name));
                rest = [].iter();
                found.or(dict).ok_or_else(|| format!("there is no value `{name}`"))?
            }
            None => rest.next().ok_or("the format asks for more values than there are")?,
        };
        out.push_str(&spec.write(letter, value)?);
        bounds::room(out.len())?;
    }
    match rest.next() {
        Some(_) => Err("there are more values than the format asks for".to_owned()),
        None => Ok(out),
    }
}

fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<usize, String> {
    let mut value = 0;
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        value = value * 10 + digit.to_digit(10).unwrap_or(0) as usize;
        if value > MAX_WIDTH {
            return Err(format!("a width is at most {MAX_WIDTH}"));
        }
    }
    Ok(value)
}

impl Spec {
    fn write(&self, letter: char, value: &Value) -> Result<String, String> {
        let text = match letter {
            's' | 'r' | 'a' => {
                let text = if letter == 's' { python_text(value) } else { value.python_repr() };
                return Ok(
                    self.pad(self.precision.map_or(text.clone(), |most| text.chars().take(most).collect()))
                );
            }
            'c' => match value {
                Value::Int(code) => inert::decoded("", || {
                    let letter = u32::try_from(*code).ok().and_then(char::from_u32).map(String::from);
                    letter.ok_or_else(|| "there is no letter of this number".to_owned())
                })?,
                Value::Str(text) if text.chars().count() == 1 => text.to_string(),
                other => return Err(format!("`%c` takes one letter, this is {}", other.kind())),
            },
            _ => return self.number(letter, value),
        };
        Ok(self.pad(text))
    }

    fn number(&self, letter: char, value: &Value) -> Result<String, String> {
        let float =
            number(value).ok_or_else(|| format!("`%{letter}` takes a number, this is {}", value.kind()))?;
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let whole = match value {
            Value::Int(value) => *value,
            _ => float.trunc() as i64,
        };
        let size = whole.unsigned_abs();
        let precision = self.precision.unwrap_or(6);
        let negative = if "eEfFgG".contains(letter) { float.is_sign_negative() } else { whole < 0 };
        let (prefix, body) = match letter {
            'd' | 'i' | 'u' => ("", size.to_string()),
            'x' => ("0x", format!("{size:x}")),
            'X' => ("0X", format!("{size:X}")),
            'o' => ("0o", format!("{size:o}")),
            'f' | 'F' => ("", format!("{:.precision$}", float.abs())),
            'e' => ("", exponent(float.abs(), precision)),
            'E' => ("", exponent(float.abs(), precision).to_uppercase()),
            'g' => ("", general(float.abs(), precision)),
            'G' => ("", general(float.abs(), precision).to_uppercase()),
            other => return Err(format!("`%{other}` means nothing; there are s, d, f, x, o, e, g, r, c")),
        };
        let sign = match (negative, self.plus, self.blank) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (.., true) => " ",
            _ => "",
        };
        let prefix = if self.alternate { prefix } else { "" };
        let wanted = if "dixXou".contains(letter) { self.precision.unwrap_or(0) } else { 0 };
        let room = self.width.saturating_sub(sign.len() + prefix.len());
        let wanted = if self.zero && !self.left { wanted.max(room) } else { wanted };
        let zeros = "0".repeat(wanted.saturating_sub(body.len()));
        Ok(self.pad(format!("{sign}{prefix}{zeros}{body}")))
    }

    fn pad(&self, text: String) -> String {
        let blanks = " ".repeat(self.width.saturating_sub(text.chars().count()));
        if self.left { text + &blanks } else { blanks + &text }
    }
}

fn exponent(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    match text.split_once('e') {
        Some((digits, power)) => {
            let power: i32 = power.parse().unwrap_or(0);
            format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs())
        }
        None => text,
    }
}

fn general(value: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let text = exponent(value, precision - 1);
    let power: i64 = text.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let most = i64::try_from(precision).unwrap_or(i64::MAX);
    if power < -4 || power >= most {
        let (digits, power) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{power}", trim(digits));
    }
    let places = usize::try_from(most - 1 - power).unwrap_or(0);
    trim(&format!("{value:.places$}"))
}

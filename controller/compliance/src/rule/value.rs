//! Values that a rule computes with.

use serde_json::Value;

use super::ast::Operator;
use super::truth::Truth;

/// A value of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum Val<'a> {
    Null,
    Unknown,
    Number(f64),
    /// A count of which a part could not be read: this many, or more.
    AtLeast(f64),
    Text(&'a str),
    List(&'a [Value]),
    Truth(Truth),
}

impl<'a> Val<'a> {
    /// A reading or a declared value. An object is no value of this language: unknown.
    pub(super) fn of(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Truth(Truth::of(*value)),
            Value::Number(number) => number.as_f64().map_or(Self::Unknown, Self::Number),
            Value::String(text) => Self::Text(text),
            Value::Array(items) => Self::List(items),
            Value::Object(_) => Self::Unknown,
        }
    }

    /// As a condition. The flags of NVML are 0 and 1; any other number is no condition.
    pub(super) fn truth(self) -> Truth {
        match self {
            Self::Truth(truth) => truth,
            Self::Null => Truth::NEITHER,
            Self::Number(1.0) => Truth::TRUE,
            Self::Number(0.0) => Truth::FALSE,
            Self::Unknown | Self::Number(_) | Self::AtLeast(_) | Self::Text(_) | Self::List(_) => {
                Truth::UNKNOWN
            }
        }
    }

    pub(super) fn is_null(self) -> Truth {
        match self {
            Self::Null => Truth::TRUE,
            Self::Unknown => Truth::EITHER,
            Self::Truth(truth) if truth.is_neither() => Truth::TRUE,
            Self::Truth(truth) if truth.may_hold() => Truth::EITHER,
            _ => Truth::FALSE,
        }
    }

    /// Reduces a condition to the value that an operand of a comparison has.
    fn settled(self) -> Self {
        match self {
            Self::Truth(truth) if truth.is_neither() => Self::Null,
            Self::Truth(truth) if truth == Truth::TRUE => Self::Number(1.0),
            Self::Truth(truth) if truth == Truth::FALSE => Self::Number(0.0),
            Self::Truth(_) => Self::Unknown,
            other => other,
        }
    }
}

/// Compares. Values of different types are not compared: whichever of them is not what it should be, nothing is known
/// then.
#[expect(clippy::float_cmp, reason = "readings are compared as they were read")]
pub(super) fn compare(operator: Operator, left: Val<'_>, right: Val<'_>) -> Truth {
    let (left, right) = (left.settled(), right.settled());
    match (left, right) {
        (Val::Null, _) | (_, Val::Null) => Truth::NEITHER,
        (Val::Number(a), Val::Number(b)) => Truth::of(match operator {
            Operator::Equal => a == b,
            Operator::Differ => a != b,
            Operator::Less => a < b,
            Operator::AtMost => a <= b,
            Operator::More => a > b,
            Operator::AtLeast => a >= b,
            _ => return Truth::UNKNOWN,
        }),
        (Val::AtLeast(least), Val::Number(b)) => at_least(operator, least, b),
        (Val::Number(a), Val::AtLeast(least)) => at_least(mirrored(operator), least, a),
        (Val::Text(a), Val::Text(b)) => equality(operator, a == b),
        (Val::List(a), Val::List(b)) => {
            equality(operator, a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)))
        }
        _ => Truth::UNKNOWN,
    }
}

fn equality(operator: Operator, equal: bool) -> Truth {
    match operator {
        Operator::Equal => Truth::of(equal),
        Operator::Differ => Truth::of(!equal),
        _ => Truth::UNKNOWN,
    }
}

/// Compares a count of at least `least` with a number.
fn at_least(operator: Operator, least: f64, number: f64) -> Truth {
    let certain = match operator {
        Operator::More | Operator::AtMost | Operator::Equal | Operator::Differ => least > number,
        _ => least >= number,
    };
    match operator {
        Operator::More | Operator::AtLeast | Operator::Differ if certain => Truth::TRUE,
        Operator::AtMost | Operator::Less | Operator::Equal if certain => Truth::FALSE,
        _ => Truth::EITHER,
    }
}

const fn mirrored(operator: Operator) -> Operator {
    match operator {
        Operator::Less => Operator::More,
        Operator::More => Operator::Less,
        Operator::AtMost => Operator::AtLeast,
        Operator::AtLeast => Operator::AtMost,
        other => other,
    }
}

/// Whether two elements of lists are the same: 1 and 1.0 are, and so are 1 and true.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Null, Value::Null) => true,
        (a, b) => a == b || compare(Operator::Equal, Val::of(a), Val::of(b)).holds(),
    }
}

/// Whether `needle` is an element of `list`. A single value is a list of one.
pub(super) fn member(needle: Val<'_>, list: Val<'_>) -> Truth {
    match (needle.settled(), list.settled()) {
        (Val::Null, _) | (_, Val::Null) => Truth::NEITHER,
        (Val::Unknown | Val::AtLeast(_) | Val::List(_), _) | (_, Val::Unknown | Val::AtLeast(_)) => {
            Truth::UNKNOWN
        }
        (needle, Val::List(items)) => {
            Truth::of(items.iter().any(|item| compare(Operator::Equal, needle, Val::of(item)).holds()))
        }
        (needle, one) => compare(Operator::Equal, needle, one),
    }
}

/// Counts the elements of `wanted` that `list` lacks. A text is a list of its words.
pub(super) fn missing<'a>(wanted: Val<'_>, list: Val<'_>) -> Val<'a> {
    match (wanted.settled(), list.settled()) {
        (Val::Null, _) | (_, Val::Null) => Val::Null,
        (Val::List(wanted), Val::List(items)) => {
            count(wanted, |one| items.iter().any(|item| same(item, one)))
        }
        (Val::List(wanted), Val::Text(text)) => {
            let words = words(text);
            count(wanted, |one| one.as_str().is_some_and(|one| words.contains(&without_quotes(one))))
        }
        _ => Val::Unknown,
    }
}

fn count<'a>(wanted: &[Value], has: impl Fn(&Value) -> bool) -> Val<'a> {
    #[expect(clippy::cast_precision_loss, reason = "elements of a list of a file")]
    let missing = wanted.iter().filter(|one| !has(one)).count() as f64;
    Val::Number(missing)
}

/// Returns the words of a text as the kernel reads its command line: white space within double quotes belongs to a word.
fn words(text: &str) -> Vec<String> {
    let mut quoted = false;
    let ends = |c: char| {
        quoted ^= c == '"';
        c.is_ascii_whitespace() && !quoted
    };
    text.split(ends).filter(|word| !word.is_empty()).map(without_quotes).collect()
}

fn without_quotes(word: &str) -> String {
    word.replace('"', "")
}

/// Computes. A result that is no number, as of a division by 0, is unknown.
pub(super) fn arithmetic<'a>(operator: Operator, left: Val<'a>, right: Val<'a>) -> Val<'a> {
    match (left.settled(), right.settled()) {
        (Val::Null, _) | (_, Val::Null) => Val::Null,
        (Val::Number(a), Val::Number(b)) => finite(match operator {
            Operator::Add => a + b,
            Operator::Subtract => a - b,
            Operator::Multiply => a * b,
            Operator::Divide => a / b,
            _ => return Val::Unknown,
        }),
        (Val::AtLeast(a), Val::Number(b) | Val::AtLeast(b)) | (Val::Number(a), Val::AtLeast(b))
            if operator == Operator::Add =>
        {
            match finite(a + b) {
                Val::Number(sum) => Val::AtLeast(sum),
                _ => Val::Unknown,
            }
        }
        _ => Val::Unknown,
    }
}

fn finite<'a>(number: f64) -> Val<'a> {
    if number.is_finite() { Val::Number(number) } else { Val::Unknown }
}

/// Returns the bits of a whole number that is not negative.
pub(super) fn bits(value: Val<'_>) -> Result<u64, Val<'static>> {
    match value.settled() {
        Val::Null => Err(Val::Null),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be whole and in range"
        )]
        Val::Number(number) if number >= 0.0 && number.fract() == 0.0 && number < 9_007_199_254_740_992.0 => {
            Ok(number as u64)
        }
        _ => Err(Val::Unknown),
    }
}

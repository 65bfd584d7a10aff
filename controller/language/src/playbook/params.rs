//! Parameters against their kind, with messages for people.

use gpufleet_protocol::tasks::{KindInfo, ParamError, Params};
use serde_json::{Map, Value as Json};

use crate::diagnostic::{looks_secret, suggest};

/// What is wrong with one parameter, or with all together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParamProblem {
    /// The parameter meant, where one alone is at fault.
    pub parameter: Option<String>,
    pub message: String,
    pub help: Option<String>,
    /// Whether the name rather than the value is wrong.
    pub name_is_wrong: bool,
    /// Whether what is missing may still be given.
    pub(super) incomplete: bool,
}

/// Reads rendered parameters; of several problems the first is told.
///
/// # Errors
/// A parameter that the kind does not have, of the wrong type, missing, or against the kind's rules.
pub fn read_params(kind: &KindInfo, values: Map<String, Json>) -> Result<Params, ParamProblem> {
    match parse(kind, &values) {
        Ok(params) => Ok(params),
        // Why: only the slow way, one by one, tells which of them is wrong.
        Err(error) => {
            let one = values.iter().find_map(|(name, value)| check_one(kind, name, value));
            Err(one.unwrap_or_else(|| whole(kind, error)))
        }
    }
}

/// Reads parameters; numbers and booleans count as text where a text is wanted.
///
/// Why: `msg: no` and `argv: [sleep, 5]` are what people write, and Ansible takes them.
///
/// # Errors
/// What the kind says of the parameters as they are.
pub(super) fn parse(kind: &KindInfo, values: &Map<String, Json>) -> Result<Params, ParamError> {
    kind.parse(Json::Object(values.clone())).or_else(|error| {
        let mut texts = values.clone();
        for (name, value) in &mut texts {
            if let Some(text) = as_text(kind, name, value) {
                *value = text;
            }
        }
        if texts == *values { Err(error) } else { kind.parse(Json::Object(texts)).map_err(|_| error) }
    })
}

/// The value as text, where the parameter wants text and this makes it right.
fn as_text(kind: &KindInfo, name: &str, value: &Json) -> Option<Json> {
    let wrong = |value: &Json| {
        let alone = Json::Object([(name.to_owned(), value.clone())].into_iter().collect());
        kind.parse(alone).is_err_and(|error| error.message.contains("expected a string"))
    };
    let text = match value {
        Json::Bool(_) | Json::Number(_) => scalar_text(value),
        Json::Array(items) => Json::Array(items.iter().map(scalar_text).collect()),
        _ => return None,
    };
    (wrong(value) && !wrong(&text)).then_some(text)
}

fn scalar_text(value: &Json) -> Json {
    match value {
        Json::Bool(flag) => Json::from(if *flag { "True" } else { "False" }),
        Json::Number(number) => Json::from(number.to_string()),
        other => other.clone(),
    }
}

/// What is wrong with one parameter by itself.
pub(super) fn check_one(kind: &KindInfo, name: &str, value: &Json) -> Option<ParamProblem> {
    if kind.open_keys {
        return None;
    }
    let alone = Json::Object([(name.to_owned(), value.clone())].into_iter().collect());
    let error = kind.parse(alone).err()?;
    if let Some(instead) = error.instead {
        return Some(ParamProblem {
            parameter: Some(name.to_owned()),
            message: error.message,
            help: Some(instead.to_owned()),
            name_is_wrong: true,
            incomplete: false,
        });
    }
    if error.parameter.is_some() || error.message.starts_with("missing field") {
        return None;
    }
    if let Some(known) = unknown_field(&error.message) {
        let mut help: Vec<String> = Vec::new();
        match suggest(name, known.iter().copied()) {
            Some(near) => help.push(format!("did you mean `{near}`?")),
            None => help.push(format!("it has {}", list_names(&known))),
        }
        return Some(ParamProblem {
            parameter: Some(name.to_owned()),
            message: format!("`{}` has no parameter `{name}`", kind.name),
            help: help.pop(),
            name_is_wrong: true,
            incomplete: false,
        });
    }
    if as_text(kind, name, value).is_some() {
        return None;
    }
    Some(wrong_value(name, value, &error.message))
}

fn wrong_value(name: &str, value: &Json, message: &str) -> ParamProblem {
    let wanted = message.rsplit_once("expected ").map_or(message, |(_, wanted)| wanted);
    let wanted = match (wanted, name) {
        ("a number", name) if name.ends_with("_watts") => "a number of watts".to_owned(),
        ("a number", name) if name.ends_with("_percent") || name.ends_with("_percentage") => {
            "a number in percent".to_owned()
        }
        (wanted, _) => wanted.to_owned(),
    };
    let help = wanted.strip_prefix("one of ").and_then(|words| {
        let near = suggest(value.as_str()?, words.split(", "))?;
        Some(format!("did you mean `{near}`?"))
    });
    let message = if looks_secret(name) {
        format!("`{name}` wants {wanted}")
    } else {
        format!("`{name}` wants {wanted}, got {}", brief(value))
    };
    ParamProblem { parameter: Some(name.to_owned()), message, help, name_is_wrong: false, incomplete: false }
}

/// A value in a message: short, and collections by their type alone.
fn brief(value: &Json) -> String {
    match value {
        Json::Null => "nothing".to_owned(),
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "a mapping".to_owned(),
        Json::String(text) if text.chars().count() > 60 => {
            format!("\"{}…\"", text.chars().take(60).collect::<String>())
        }
        other => other.to_string(),
    }
}

fn unknown_field(message: &str) -> Option<Vec<&str>> {
    let rest = message.strip_prefix("unknown field `")?;
    let (_, rest) = rest.split_once('`')?;
    Some(rest.split('`').skip(1).step_by(2).collect())
}

fn list_names(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// What is wrong with all parameters together.
pub(super) fn whole(kind: &KindInfo, error: ParamError) -> ParamProblem {
    if let Some(missing) =
        error.message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next())
    {
        return ParamProblem {
            parameter: None,
            message: format!("`{}` needs `{missing}`", kind.name),
            help: Some(format!("for example `{}`", kind.example)),
            name_is_wrong: false,
            incomplete: true,
        };
    }
    let message = match &error.parameter {
        Some(_) if error.instead.is_some() => error.message.clone(),
        Some(parameter) => format!("`{parameter}`: {}", error.message),
        None => format!("`{}`: {}", kind.name, error.message),
    };
    ParamProblem {
        parameter: error.parameter,
        message,
        help: Some(error.instead.map_or_else(|| format!("for example `{}`", kind.example), str::to_owned)),
        name_is_wrong: error.instead.is_some(),
        incomplete: false,
    }
}

//! Checks parameters against their kind.

use gpufleet_protocol::tasks::{KindInfo, Mistake, ParamError, Params};
use serde_json::{Map, Value as Json};

use crate::diagnostic::{looks_secret, suggest};

/// What is wrong with one parameter, or with all of them together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.told(false))]
pub struct ParamProblem {
    /// The wrong parameter, if it is a single one.
    pub parameter: Option<String>,
    /// What is wrong, without the value.
    pub message: String,
    /// The value to show; `None` if it may be a secret.
    pub value: Option<String>,
    pub help: Option<String>,
    /// Whether the name and not the value is wrong.
    pub name_is_wrong: bool,
    /// Whether a parameter is missing that may still be given.
    pub(super) incomplete: bool,
}

impl ParamProblem {
    /// Returns the message with the value, or without it if the task is hidden.
    pub fn told(&self, hidden: bool) -> String {
        match &self.value {
            Some(value) if !hidden => format!("{}, got {value}", self.message),
            _ => self.message.clone(),
        }
    }
}

/// Parses rendered parameters.
///
/// # Errors
/// The first of: an unknown parameter, a wrong type, a missing parameter, a violated rule of the kind.
pub fn read_params(kind: &KindInfo, values: Map<String, Json>) -> Result<Params, ParamProblem> {
    match kind.parse(Json::Object(values.clone())) {
        Ok(params) => Ok(params),
        // Only parsing them one by one tells which is wrong.
        Err(error) => {
            let one = values.iter().find_map(|(name, value)| check_one(kind, name, value));
            Err(one.unwrap_or_else(|| whole(kind, error)))
        }
    }
}

/// Returns what is wrong with one parameter by itself.
pub(super) fn check_one(kind: &KindInfo, name: &str, value: &Json) -> Option<ParamProblem> {
    if kind.open_keys {
        return None;
    }
    let alone = Json::Object([(name.to_owned(), value.clone())].into_iter().collect());
    let error = kind.parse(alone).err()?;
    let wrong_name = |message, help| ParamProblem {
        parameter: Some(name.to_owned()),
        message,
        value: None,
        help: Some(help),
        name_is_wrong: true,
        incomplete: false,
    };
    match error.mistake {
        _ if error.instead.is_some() => Some(wrong_name(error.message, error.instead?.to_owned())),
        Mistake::Rule | Mistake::Missing { .. } => None,
        Mistake::Unknown { known } => {
            let help = match suggest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it has {}", list_names(known)),
            };
            Some(wrong_name(format!("`{}` has no parameter `{name}`", kind.name), help))
        }
        Mistake::Value { wanted } => Some(wrong_value(kind, name, value, wanted)),
    }
}

fn wrong_value(kind: &KindInfo, name: &str, value: &Json, wanted: String) -> ParamProblem {
    let number = kind.numbers.iter().find(|number| number.path == name);
    let wanted = match number {
        Some(number) if wanted == "a number" || wanted == "a whole number from 0" => number.to_string(),
        _ => wanted,
    };
    let help = wanted.strip_prefix("one of ").and_then(|words| {
        let near = suggest(value.as_str()?, words.split(", "))?;
        Some(format!("did you mean `{near}`?"))
    });
    let secret = kind.secret.contains(&name) || looks_secret(name);
    ParamProblem {
        parameter: Some(name.to_owned()),
        message: format!("`{name}` wants {wanted}"),
        value: (!secret).then(|| brief(value)),
        help,
        name_is_wrong: false,
        incomplete: false,
    }
}

/// Shortens a value for a message; a collection is shown by its type.
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

fn list_names(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns what is wrong with all parameters together.
pub(super) fn whole(kind: &KindInfo, error: ParamError) -> ParamProblem {
    if let Mistake::Missing { name } = error.mistake {
        return ParamProblem {
            parameter: None,
            message: format!("`{}` needs `{name}`", kind.name),
            value: None,
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
        value: error.value,
        help: Some(error.instead.map_or_else(|| format!("for example `{}`", kind.example), str::to_owned)),
        name_is_wrong: error.instead.is_some(),
        incomplete: false,
    }
}

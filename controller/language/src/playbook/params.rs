//! Checks parameters against their kind.

use gpufleet_protocol::tasks::{Accepted, KindInfo, Mistake, ParamError, Params};
use serde_json::{Map, Value as Json};

use crate::diagnostic::{looks_secret, suggest};
use crate::template::{Value, is_template};

/// What is wrong with one parameter, or with all of them together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.told(false))]
pub struct ParamProblem {
    /// The wrong parameter, if it is a single one.
    pub parameter: Option<String>,
    /// What is wrong, without the value.
    pub message: String,
    /// The value to show; `None` if it may be a secret.
    pub value: Option<Box<str>>,
    pub help: Option<String>,
    /// Whether the name and not the value is wrong.
    pub name_is_wrong: bool,
    /// The parameter that is missing, also one inside of a parameter, and may still be given.
    pub(super) missing: Option<&'static str>,
    /// What is wrong inside of the parameter, if it is not the whole.
    pub(super) inside: Option<Box<Inside>>,
}

/// A place inside of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inside {
    pub keys: Vec<String>,
    /// Whether the last one of these keys is wrong, and not its value.
    pub key_is_wrong: bool,
}

impl Inside {
    fn of(keys: &[String], key_is_wrong: bool) -> Option<Box<Self>> {
        (!keys.is_empty()).then(|| Box::new(Self { keys: keys.to_vec(), key_is_wrong }))
    }
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
    let wrong = |message, help, name_is_wrong| ParamProblem {
        parameter: Some(name.to_owned()),
        message,
        value: None,
        help,
        name_is_wrong,
        missing: None,
        inside: None,
    };
    // By the name that was given, because a kind may have another for the same parameter.
    let inside = error.place.get(1..).unwrap_or_default();
    match error.mistake {
        _ if error.instead.is_some() => Some(wrong(error.message, error.instead.map(str::to_owned), true)),
        Mistake::Missing { name: missing } if let [around @ .., _] = inside => {
            let problem = wrong(format!("`{}` needs `{missing}`", path(name, around)), None, false);
            Some(ParamProblem { missing: Some(missing), inside: Inside::of(around, false), ..problem })
        }
        Mistake::Rule | Mistake::Missing { .. } => None,
        Mistake::Unknown { known } => {
            let (of, unknown) = match inside {
                [around @ .., unknown] => (path(name, around), unknown.as_str()),
                [] => (kind.name.to_owned(), name),
            };
            let help = match suggest(unknown, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it has {}", list_names(known)),
            };
            let message = format!("`{of}` has no parameter `{unknown}`");
            let problem = wrong(message, Some(help), inside.is_empty());
            Some(ParamProblem { inside: Inside::of(inside, true), ..problem })
        }
        Mistake::Value { wanted } => Some(wrong_value(kind, name, inside, value, error.value, &wanted)),
    }
}

/// As [`check_one`], for what is known of a value with templates inside: only single keys and values can be judged.
pub(super) fn check_part(kind: &KindInfo, name: &str, value: &Value) -> Option<ParamProblem> {
    let problem = check_one(kind, name, &settled(value)?)?;
    (problem.missing.is_none() && problem.inside.is_some()).then_some(problem)
}

/// Returns a value without entries that are known only in the run; lists are known as a whole or not.
fn settled(value: &Value) -> Option<Json> {
    match value {
        Value::Map(dict) if !value.is_settled() => {
            let known = dict.iter().filter(|(key, _)| !is_template(key));
            let known = known.filter_map(|(key, value)| Some((key.to_string(), settled(value)?)));
            Some(known.collect::<Map<_, _>>()).filter(|known| !known.is_empty()).map(Json::Object)
        }
        value => value.is_settled().then(|| value.to_json()),
    }
}

/// Returns the item of a list of words that is none of them.
fn wrong_item<'a>(kind: &KindInfo, name: &str, list: &'a Json, wanted: &Accepted) -> Option<&'a Json> {
    if !wanted.to_string().starts_with("one of ") {
        return None;
    }
    list.as_array()?.iter().find(|item| {
        let alone =
            Json::Object([(name.to_owned(), Json::Array(vec![(*item).clone()]))].into_iter().collect());
        kind.parse(alone).is_err_and(|error| matches!(error.mistake, Mistake::Value { .. }))
    })
}

/// Formats a place inside of a parameter: `khugepaged.pages_to_scan`.
fn path(parameter: &str, inside: &[String]) -> String {
    std::iter::once(parameter).chain(inside.iter().map(String::as_str)).collect::<Vec<_>>().join(".")
}

/// `read` is the value as the kind understood it, if it did.
fn wrong_value(
    kind: &KindInfo,
    name: &str,
    inside: &[String],
    value: &Json,
    read: Option<String>,
    wanted: &Accepted,
) -> ParamProblem {
    let written = inside.iter().try_fold(value, |value, key| value.get(key));
    let item = written.filter(|_| inside.is_empty()).and_then(|list| wrong_item(kind, name, list, wanted));
    let written = item.or(written);
    let help = wanted.to_string().strip_prefix("one of ").and_then(|words| {
        let near = suggest(written?.as_str()?, words.split(", "))?;
        Some(format!("did you mean `{near}`?"))
    });
    // As it is written, unless that is more than the one wrong value.
    let shown = match written {
        Some(written) if read.is_none() || !(written.is_array() || written.is_object()) => {
            Some(brief(written))
        }
        _ => read,
    };
    let mut names = std::iter::once(name).chain(inside.iter().map(String::as_str));
    let secret = names.any(|name| kind.secret.contains(&name) || looks_secret(name));
    ParamProblem {
        parameter: Some(name.to_owned()),
        message: format!("`{}` wants {wanted}", path(name, inside)),
        value: shown.filter(|_| !secret).map(Into::into),
        help,
        name_is_wrong: false,
        missing: None,
        inside: Inside::of(inside, false),
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
            missing: Some(name),
            inside: None,
        };
    }
    let parameter = error.place.first().cloned();
    let message = match &parameter {
        Some(_) if error.instead.is_some() => error.message.clone(),
        Some(parameter) => format!("`{parameter}`: {}", error.message),
        None => format!("`{}`: {}", kind.name, error.message),
    };
    ParamProblem {
        parameter,
        message,
        value: error.value.map(Into::into),
        help: Some(error.instead.map_or_else(|| format!("for example `{}`", kind.example), str::to_owned)),
        name_is_wrong: error.instead.is_some(),
        missing: None,
        inside: None,
    }
}

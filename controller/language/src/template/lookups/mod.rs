//! Lookups: `lookup('name', …)`, `query('name', …)` and the loops `with_name`.
//!
//! Owns which lookups exist, their arguments and how their results reach a template, as in Ansible. Must not read
//! anything itself: whatever is not a variable is asked of [`Outside`]. Invariants: a lookup of something unknown is
//! unknown; text that a lookup reads is never rendered, except by `template`; content of an encrypted file counts as
//! a secret.

mod calls;
mod disk;
mod files;
mod lists;
mod sequence;
mod surroundings;
mod tables;

use std::sync::Arc;

use minijinja::value::{Kwargs, Rest, ValueOrKwargs, from_args};
use minijinja::{Environment, Error};

use super::frame::{collect, expose, is_missing, missing, top_scope, unknown};
use super::inert::{self, Guard};
use super::outside::Outside;
use super::value::{Dict, Value};
use super::{Scope, TemplateError, frame};
use crate::diagnostic::suggest;

pub(super) use calls::calls;
pub(super) use disk::{FILTERS as DISK_FILTERS, TESTS as DISK_TESTS};

type Engine = minijinja::Value;

/// The functions that call lookups.
pub(super) const FUNCTIONS: [&str; 3] = ["lookup", "query", "q"];

/// Lookups that run their terms in a shell.
const SHELLS: [&str; 2] = ["pipe", "lines"];

/// Lookups whose terms are paths of the controller.
const PATHS: [&str; 8] =
    ["file", "unvault", "template", "fileglob", "first_found", "password", "csvfile", "ini"];

/// Prefixes of Ansible's long names for its own lookups, and for former ones.
const PREFIXES: [&str; 3] = ["ansible.builtin.", "ansible.legacy.", "community.general."];

/// Largest number of items of a list; more are a mistake.
const MAX_ITEMS: usize = 1_000_000;

/// Why a lookup has no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A missing variable; `default` may replace it.
    Undefined(String),
    /// The result depends on a value that is known only during the run.
    Unknown,
    Because(String),
    /// Lookups are not available where the template is.
    Nowhere,
}

/// The message where lookups are not available: their results may differ between users and over time.
const NOWHERE: &str =
    "only tasks can look outside of the variables; give the value with `-e` or set it in a task";

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Because(message)
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        Self::Because(message.to_owned())
    }
}

type Found = Result<Vec<Value>, Failure>;

/// One lookup.
pub(super) struct Lookup {
    pub name: &'static str,
    /// What it returns, for the reference.
    #[cfg_attr(not(test), expect(dead_code, reason = "the reference is written by a test"))]
    pub about: &'static str,
    /// Its options in addition to `wantlist` and `errors`.
    pub options: &'static [&'static str],
    run: fn(&Request) -> Found,
}

static LOOKUPS: &[&[Lookup]] = &[files::LOOKUPS, lists::LOOKUPS, surroundings::LOOKUPS, tables::LOOKUPS];

/// Ansible's lookups that are not supported, and why.
pub(super) const REFUSED: &[(&str, &str)] = &[
    ("config", "settings of Ansible mean nothing here; use a variable"),
    (
        "url",
        "a node that waits for a web server holds up its wave; fetch it before the run, or with `get_url` on the node",
    ),
];

pub(super) fn all() -> impl Iterator<Item = &'static Lookup> {
    LOOKUPS.iter().flat_map(|group| group.iter())
}

/// Returns the name without its collection.
fn short(name: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// Returns the lookup of this name.
///
/// # Errors
/// If there is none; the message says why, with a suggestion.
pub(super) fn find(name: &str) -> Result<&'static Lookup, TemplateError> {
    let plain = short(name);
    if let Some(found) = all().find(|lookup| lookup.name == plain) {
        return Ok(found);
    }
    if let Some((name, why)) = REFUSED.iter().find(|(refused, _)| *refused == plain) {
        return Err(TemplateError::new(format!("the lookup `{name}` is not here: {why}")));
    }
    let near = suggest(plain, all().map(|lookup| lookup.name)).map(ToOwned::to_owned);
    let message = if near.is_none() && name.contains('.') {
        format!(
            "unknown lookup `{name}`; there are no plug-ins here, `pipe` runs a program of the controller"
        )
    } else {
        format!("unknown lookup `{name}`")
    };
    Err(TemplateError::new(message).with_suggestion(near))
}

/// The arguments of a lookup.
pub(super) struct Request {
    pub terms: Vec<Value>,
    options: Vec<(String, Value)>,
    pub scope: Arc<Scope>,
    /// In a loop `with_…`, the folder for the task's own files, such as `files` or `templates`.
    folder: Option<&'static str>,
}

impl Request {
    fn option(&self, name: &str) -> Option<&Value> {
        self.options.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns a text option, if it is given.
    fn text_option(&self, name: &str) -> Option<String> {
        self.option(name).filter(|value| !matches!(value, Value::Null | Value::Omit)).map(Value::to_text)
    }

    fn flag(&self, name: &str, or: bool) -> Result<bool, Failure> {
        self.option(name).map_or(Ok(or), |value| truth(name, value))
    }

    fn outside(&self) -> Result<&Arc<dyn Outside>, Failure> {
        self.scope.outside().ok_or(Failure::Nowhere)
    }

    /// Returns the folder of the playbook; empty for the current folder of the command.
    fn playbook_folder(&self) -> Result<String, Failure> {
        let folder = match self.scope.get("playbook_dir") {
            Some(value) => rendered(value, &self.scope)?.to_text(),
            None => String::new(),
        };
        Ok(if folder == "." { String::new() } else { folder })
    }

    /// Returns every term as text.
    fn texts(&self) -> Result<Vec<String>, Failure> {
        self.terms.iter().map(|term| text(term, "a term")).collect()
    }
}

/// Returns text, or a number or boolean as text.
fn text(value: &Value, what: &str) -> Result<String, Failure> {
    match value {
        Value::List(_) | Value::Map(_) | Value::Null => {
            Err(format!("{what} is text, this is {}", value.kind()).into())
        }
        other => Ok(other.to_text()),
    }
}

/// Reads a boolean option as Ansible does.
fn truth(name: &str, value: &Value) -> Result<bool, Failure> {
    match value {
        Value::Bool(value) => Ok(*value),
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        Value::Str(text) => match text.trim().to_ascii_lowercase().as_str() {
            "yes" | "on" | "1" | "true" | "t" | "y" => Ok(true),
            "no" | "off" | "0" | "false" | "f" | "n" => Ok(false),
            _ => Err(format!("`{name}` is true or false").into()),
        },
        other => Err(format!("`{name}` is true or false, this is {}", other.kind()).into()),
    }
}

/// Returns the value with its templates rendered.
fn rendered(value: &Value, scope: &Arc<Scope>) -> Result<Value, Failure> {
    let value = super::resolve(value, scope).map_err(|error| match error.undefined_name() {
        Some(name) => Failure::Undefined(name.to_owned()),
        None => Failure::Because(error.to_string()),
    })?;
    if value.has_unknown() { Err(Failure::Unknown) } else { Ok(value) }
}

fn run(name: &str, request: &Request) -> Result<Vec<Value>, (&'static str, Failure)> {
    let lookup = find(name).map_err(|error| ("", Failure::Because(with_hint(&error))))?;
    let failed = |failure| (lookup.name, failure);
    for (option, _) in &request.options {
        if lookup.options.contains(&option.as_str()) {
            continue;
        }
        let mut message = format!("it has no option `{option}`");
        match suggest(option, lookup.options.iter().copied()) {
            Some(near) => message.push_str(&format!("; did you mean `{near}`?")),
            None if lookup.options.is_empty() => {}
            None => message.push_str(&format!("; there are {}", lookup.options.join(", "))),
        }
        return Err(failed(message.into()));
    }
    if request.terms.iter().chain(request.options.iter().map(|(_, value)| value)).any(Value::has_unknown) {
        return Err(failed(Failure::Unknown));
    }
    let found = (lookup.run)(request).map_err(failed)?;
    if found.len() > MAX_ITEMS {
        return Err(failed("the list is too long".into()));
    }
    if found.iter().any(Value::has_unknown) {
        return Err(failed(Failure::Unknown));
    }
    Ok(found)
}

fn with_hint(error: &TemplateError) -> String {
    match error.suggestion() {
        Some(near) => format!("{}; did you mean `{near}`?", error.message()),
        None => error.message().to_owned(),
    }
}

fn sentence(name: &str, message: &str) -> String {
    if name.is_empty() { message.to_owned() } else { format!("the lookup `{name}`: {message}") }
}

/// Returns the items of the loop `with_name` over rendered terms; `None` if they are not known yet.
///
/// `kind` is that of the task: the files of a `template` are looked for beside other templates.
///
/// # Errors
/// If the lookup fails.
pub fn loop_over(
    name: &str,
    terms: Vec<Value>,
    kind: &str,
    scope: &Arc<Scope>,
) -> Result<Option<Vec<Value>>, TemplateError> {
    let folder =
        ["template", "var", "file"].into_iter().find(|part| kind.contains(part)).map_or("files", |part| {
            if part == "template" {
                "templates"
            } else if part == "var" {
                "vars"
            } else {
                "files"
            }
        });
    let request = Request {
        terms: terms.into_iter().filter(|term| !matches!(term, Value::Omit)).collect(),
        options: Vec::new(),
        scope: Arc::clone(scope),
        folder: Some(folder),
    };
    match run(name, &request) {
        Ok(found) => Ok(Some(found)),
        Err((_, Failure::Unknown)) => Ok(None),
        Err((_, Failure::Undefined(path))) => Err(TemplateError::undefined(path)),
        Err((name, Failure::Because(message))) => Err(TemplateError::new(sentence(name, &message))),
        Err((name, Failure::Nowhere)) => Err(TemplateError::refusal(sentence(name, NOWHERE))),
    }
}

/// What guards the terms of a lookup.
pub fn guard_of(name: &str) -> Option<Guard> {
    match short(name) {
        name if SHELLS.contains(&name) => Some(Guard::Shell),
        name if PATHS.contains(&name) => Some(Guard::Path),
        _ => None,
    }
}

/// Refuses terms of a lookup with which the text of a node would act on the controller. `shown` are the terms with variables
/// that are masked for this guard.
///
/// # Errors
/// If there is such a term.
pub fn check_terms(guard: Guard, terms: &[Value], shown: &[Value]) -> Result<(), TemplateError> {
    let (holds, why): (fn(&str, &str) -> bool, _) = match guard {
        Guard::Shell => (inert::is_inert, inert::REFUSED),
        Guard::Path | Guard::All => (inert::stays_below, inert::REFUSED_PATH),
    };
    if holds_of_all(holds, terms, shown) { Ok(()) } else { Err(TemplateError::new(why)) }
}

/// Whether it holds of all texts in two lists of terms, which have the same form.
fn holds_of_all(holds: fn(&str, &str) -> bool, terms: &[Value], shown: &[Value]) -> bool {
    let alike = |(term, shown): (&Value, &Value)| match (term, shown) {
        (Value::List(terms), Value::List(shown)) => holds_of_all(holds, terms.items(), shown.items()),
        (Value::Map(terms), Value::Map(shown)) => {
            let values = |dict: &Dict| dict.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>();
            holds_of_all(holds, &values(terms), &values(shown))
        }
        (term, shown) => holds(&term.to_text(), &shown.to_text()),
    };
    terms.len() == shown.len() && terms.iter().zip(shown).all(alike)
}

/// Whether a template may run something in a shell.
pub(super) fn may_run_a_shell(source: &str) -> bool {
    may_look_up(source, &SHELLS)
}

/// Whether a template may look at files of the controller.
pub(super) fn may_look_at_files(source: &str) -> bool {
    may_look_up(source, &PATHS)
}

fn may_look_up(source: &str, names: &[&str]) -> bool {
    let has = |word: &&str| source.contains(*word);
    let looks_up = FUNCTIONS.iter().any(has);
    // The lookups of included templates are not known here.
    (looks_up && (names.iter().any(has) || calls(source).iter().any(|call| call.name.is_none())))
        || (source.contains("{%") && ["import", "include", "extends"].iter().any(has))
}

/// Refuses an unknown lookup, given as the name behind `with_`.
///
/// # Errors
/// If there is no such lookup.
pub fn check_name(name: &str) -> Result<(), TemplateError> {
    find(name).map(|_| ())
}

pub(super) fn register(environment: &mut Environment<'static>) {
    for name in FUNCTIONS {
        let always_list = name != "lookup";
        environment.add_function(name, move |rest: Rest<ValueOrKwargs>| call(rest, always_list));
    }
    disk::register(environment);
}

/// Runs one call in a template.
fn call(rest: Rest<ValueOrKwargs>, always_list: bool) -> Result<Engine, Error> {
    let values = rest.into_values();
    let (args, kwargs): (&[Engine], Kwargs) = from_args(&values)?;
    let mut options = Vec::new();
    for name in kwargs.args() {
        options.push((name.to_owned(), kwargs.get::<Engine>(name)?));
    }
    let given = args.iter().chain(options.iter().map(|(_, value)| value));
    // What depends on a missing variable is missing too, so that `default` can replace it.
    if let Some(gone) = given.into_iter().find(|value| is_missing(value)) {
        return Ok(gone.clone());
    }
    let plain = |value: &Engine| collect(value).map_err(TemplateError::into_engine);
    let mut terms = args.iter().map(plain).collect::<Result<Vec<_>, _>>()?;
    if terms.is_empty() {
        return Err(TemplateError::new("a lookup wants a name, as `lookup('file', …)`").into_engine());
    }
    let name = match terms.remove(0) {
        Value::Str(name) => name,
        Value::Unknown => return Ok(unknown()),
        other => {
            let message = format!("the name of a lookup is text, this is {}", other.kind());
            return Err(TemplateError::new(message).into_engine());
        }
    };
    let mut options = options
        .iter()
        .map(|(name, value)| Ok((name.clone(), plain(value)?)))
        .collect::<Result<Vec<_>, Error>>()?;
    let mut take = |name: &str| {
        let at = options.iter().position(|(known, _)| known == name)?;
        Some(options.remove(at).1)
    };
    let list = always_list || take("wantlist").is_some_and(|value| value.truthy());
    let errors = take("errors");
    let errors = errors.as_ref().and_then(Value::as_str);
    let (lenient, warns) = (matches!(errors, Some("warn" | "ignore")), errors == Some("warn"));
    let Some(scope) = top_scope() else { return Ok(unknown()) };
    terms.retain(|term| !matches!(term, Value::Omit));
    options.retain(|(_, value)| !matches!(value, Value::Omit));
    let request = Request { terms, options, scope, folder: None };
    let value = match run(&name, &request) {
        Ok(found) if list => Value::list(found),
        Ok(mut found) if found.len() == 1 => found.pop().unwrap_or(Value::Null),
        Ok(found) => match found.iter().map(Value::as_str).collect::<Option<Vec<_>>>() {
            Some(texts) if !texts.is_empty() => Value::from(texts.join(",")),
            _ => Value::list(found),
        },
        Err((_, Failure::Unknown)) => return Ok(frame::still_unknown()),
        Err((_, Failure::Undefined(path))) => return Ok(missing(path)),
        Err((known, Failure::Because(message))) if lenient && !known.is_empty() => {
            if warns {
                // The message may hold what was looked up, so it is not shown with a secret.
                frame::warn(match frame::has_met_secret() {
                    true => format!("the lookup `{known}` failed; a secret went into it"),
                    false => sentence(known, &message),
                });
            }
            if list { Value::list(Vec::new()) } else { Value::Null }
        }
        Err((known, Failure::Because(message))) => {
            return Err(TemplateError::new(sentence(known, &message)).into_engine());
        }
        Err((known, Failure::Nowhere)) => {
            return Err(TemplateError::refusal(sentence(known, NOWHERE)).into_engine());
        }
    };
    Ok(expose(&value, ""))
}

#[cfg(test)]
mod tests;

//! Ansible's filters and tests that the engine lacks, with Ansible's semantics.

mod addresses;
pub(super) mod chance;
mod collections;
mod data;
pub(super) mod dates;
mod numbers;
mod order;
mod paths;
mod patterns;
pub(super) mod printf;
mod results;
mod sequences;
mod serial;
mod text;
mod time;
mod version;
mod web;

pub use paths::normal_path;
pub use patterns::is_found;

use minijinja::value::{Kwargs, Rest, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::frame::{collect, expose, forgive, missing};
use super::value::Value;
use super::{TemplateError, bounds, lookups, rewrite, scan};
use crate::diagnostic::suggest;

type Engine = minijinja::Value;

/// The arguments of a filter or test; the filtered value comes first.
pub(super) struct Call {
    args: Vec<Value>,
    named: Vec<(String, Value)>,
}

impl Call {
    fn read(args: &[Engine], kwargs: &Kwargs) -> Result<Self, Error> {
        let plain = |value: &Engine| collect(value).map_err(TemplateError::into_engine);
        let mut named = Vec::new();
        for name in kwargs.args() {
            named.push((name.to_owned(), plain(&kwargs.get::<Engine>(name)?)?));
        }
        Ok(Self { args: args.iter().map(plain).collect::<Result<_, _>>()?, named })
    }

    fn of(rest: Rest<ValueOrKwargs>) -> Result<Self, Error> {
        let values = rest.into_values();
        let (args, kwargs): (&[Engine], Kwargs) = from_args(&values)?;
        Self::read(args, &kwargs)
    }

    fn value(&self) -> &Value {
        self.args.first().unwrap_or(&Value::Null)
    }

    /// Returns argument `index` (0 is the first in the brackets), or the one called `name`.
    fn get(&self, index: usize, name: &str) -> Option<&Value> {
        self.named(name).or_else(|| self.args.get(index + 1))
    }

    fn named(&self, name: &str) -> Option<&Value> {
        self.named.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    fn need(&self, index: usize, name: &str) -> Result<&Value, String> {
        self.get(index, name).ok_or_else(|| format!("the argument `{name}` is missing"))
    }

    fn flag(&self, index: usize, name: &str) -> bool {
        self.get(index, name).is_some_and(Value::truthy)
    }

    fn text(&self) -> Result<String, String> {
        text_of(self.value())
    }

    fn text_arg(&self, index: usize, name: &str) -> Result<String, String> {
        text_of(self.need(index, name)?)
    }

    /// Returns the value as text like [`Call::text`], but collections and null as Python writes them.
    fn python_text(&self) -> String {
        sequences::python_text(self.value())
    }

    /// Returns a count, if it is given.
    fn size(&self, index: usize, name: &str) -> Result<Option<usize>, String> {
        match self.get(index, name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Int(size)) => {
                usize::try_from(*size).map(Some).map_err(|_| format!("`{name}` is {size}, which is below 0"))
            }
            Some(other) => Err(format!("`{name}` is a whole number, this is {}", other.kind())),
        }
    }

    /// Returns the items of a list, the keys of a mapping, or the characters of a text.
    fn items(&self) -> Result<Vec<Value>, String> {
        list_of(self.value())
    }

    fn list(&self) -> Result<Vec<Value>, String> {
        match self.value() {
            Value::Str(_) => Err("a list is needed, this is text".to_owned()),
            other => list_of(other),
        }
    }
}

fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::List(_) | Value::Map(_) => Err(format!("text is needed, this is {}", value.kind())),
        other => Ok(other.to_text()),
    }
}

pub(super) fn list_of(value: &Value) -> Result<Vec<Value>, String> {
    match value {
        Value::List(list) => Ok(list.items().to_vec()),
        Value::Map(dict) => Ok(dict.keys().map(Value::str).collect()),
        Value::Str(text) => {
            bounds::room(text.len().saturating_mul(4 * bounds::ITEM))?;
            Ok(text.chars().map(|c| Value::Str(c.encode_utf8(&mut [0; 4]).to_owned().into())).collect())
        }
        other => Err(format!("a list is needed, this is {}", other.kind())),
    }
}

type Filter = fn(&Call) -> Result<Value, String>;
type Test = fn(&Call) -> Result<bool, String>;

/// `None` if `default` may apply.
type Finder = fn(&Call) -> Result<Option<Value>, String>;

static FILTERS: &[&[(&str, Filter)]] = &[
    addresses::FILTERS,
    chance::FILTERS,
    collections::FILTERS,
    data::FILTERS,
    numbers::FILTERS,
    paths::FILTERS,
    patterns::FILTERS,
    sequences::FILTERS,
    serial::FILTERS,
    text::FILTERS,
    time::FILTERS,
    web::FILTERS,
];
static FINDERS: &[&[(&str, Finder)]] = &[collections::FINDERS, sequences::FINDERS];
static TESTS: &[&[(&str, Test)]] = &[
    collections::TESTS,
    data::TESTS,
    numbers::TESTS,
    paths::TESTS,
    patterns::TESTS,
    results::TESTS,
    version::TESTS,
    web::TESTS,
];

/// Prefixes of Ansible's long names for its own filters and tests.
pub(super) const PREFIXES: [&str; 3] = ["ansible.builtin.", "ansible.legacy.", "ansible.utils."];

pub(super) fn names(name: &'static str) -> impl Iterator<Item = String> {
    std::iter::once("").chain(PREFIXES).map(move |prefix| format!("{prefix}{name}"))
}

pub(super) fn register(environment: &mut Environment<'static>) {
    for &(name, filter) in FILTERS.iter().flat_map(|group| group.iter()) {
        for known in names(name) {
            environment.add_filter(known, move |rest: Rest<ValueOrKwargs>| -> Result<Engine, Error> {
                let value = bounded(&Call::of(rest)?, filter).map_err(|message| refusal(name, message))?;
                Ok(expose(&value, ""))
            });
        }
    }
    for &(name, finder) in FINDERS.iter().flat_map(|group| group.iter()) {
        for known in names(name) {
            environment.add_filter(known, move |rest: Rest<ValueOrKwargs>| -> Result<Engine, Error> {
                let found = finder(&Call::of(rest)?).map_err(|message| refusal(name, message))?;
                Ok(found.map_or_else(|| missing(format!("the result of {name}")), |value| expose(&value, "")))
            });
        }
    }
    for &(name, test) in TESTS.iter().flat_map(|group| group.iter()) {
        for known in names(name) {
            environment.add_test(known, move |rest: Rest<ValueOrKwargs>| -> Result<bool, Error> {
                test(&Call::of(rest)?).map_err(|message| refusal(name, message))
            });
        }
    }
    dates::register(environment);
    order::register(environment);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("mandatory", mandatory);
    environment.add_filter("ternary", ternary);
    environment.add_filter("map", map);
    environment.add_function("dict", dict);
    environment.add_test("defined", |value: &Engine| !forgive(value));
    environment.add_test("undefined", |value: &Engine| forgive(value));
}

/// Applies a filter, with limits on the size of its arguments and its result.
fn bounded(call: &Call, filter: Filter) -> Result<Value, String> {
    for given in call.args.iter().chain(call.named.iter().map(|(_, value)| value)) {
        bounds::room(given.weight())
            .map_err(|message| format!("what it is given is too large: {message}"))?;
    }
    let made = filter(call)?;
    bounds::spend(made.weight())?;
    Ok(made)
}

/// Builds a mapping, also from a list of pairs such as `zip` gives, which the engine's `dict` does not accept.
fn dict(rest: Rest<ValueOrKwargs>) -> Result<Engine, Error> {
    let call = Call::of(rest)?;
    let mut made = super::Dict::default();
    match call.args.as_slice() {
        [] => {}
        [Value::Map(map)] => made = (**map).clone(),
        [Value::List(pairs)] => {
            for pair in pairs.items() {
                match pair.as_list() {
                    Some([key, value]) => {
                        let key = text_of(key).map_err(|message| refusal("dict", message))?;
                        made.insert(key, value.clone());
                    }
                    _ => return Err(refusal("dict", "every item is a pair of a key and a value")),
                }
            }
        }
        _ => return Err(refusal("dict", "it takes a mapping, or a list of pairs")),
    }
    for (name, value) in call.named {
        made.insert(name, value);
    }
    Ok(expose(&Value::map(made.iter().map(|(key, value)| (key.clone(), value.clone()))), ""))
}

fn refusal(name: &str, message: impl std::fmt::Display) -> Error {
    let message = format!("`{name}`: {message}");
    match name {
        // Refused whatever its arguments are.
        "password_hash" => TemplateError::refusal(message).into_engine(),
        _ => Error::new(ErrorKind::InvalidOperation, message),
    }
}

fn default(
    value: &Engine,
    other: Option<&Engine>,
    boolean: Option<bool>,
    kwargs: Kwargs,
) -> Result<Engine, Error> {
    let boolean = match boolean {
        Some(boolean) => boolean,
        None => kwargs.get::<Option<bool>>("boolean")?.unwrap_or(false),
    };
    let named = kwargs.get::<Option<Engine>>("default_value")?;
    let other = other.or(named.as_ref());
    if forgive(value) || (boolean && !value.is_true()) {
        return Ok(other.cloned().unwrap_or_else(|| Engine::from("")));
    }
    // A default that is not used may itself be missing.
    if let Some(other) = other {
        forgive(other);
    }
    Ok(value.clone())
}

fn mandatory(value: &Engine, message: Option<String>, kwargs: Kwargs) -> Result<Engine, Error> {
    let message = match message {
        Some(message) => Some(message),
        None => kwargs.get::<Option<String>>("msg")?,
    };
    match message {
        Some(message) if forgive(value) => Err(Error::new(ErrorKind::InvalidOperation, message)),
        _ => Ok(value.clone()),
    }
}

fn ternary(value: &Engine, yes: &Engine, no: &Engine, null: Option<&Engine>) -> Engine {
    let chosen = match null {
        Some(null) if value.is_none() => null,
        _ if value.is_true() => yes,
        _ => no,
    };
    for other in [Some(yes), Some(no), null].into_iter().flatten() {
        if !std::ptr::eq(other, chosen) {
            forgive(other);
        }
    }
    chosen.clone()
}

/// Maps items. The engine's `map` cannot tell an attribute that is missing from one that is not.
fn map(state: &mut State, value: Engine, rest: Rest<ValueOrKwargs>) -> Result<Engine, Error> {
    let values: Vec<Engine> = rest.iter().cloned().map(Engine::from).collect();
    let (_, kwargs): (&[Engine], Kwargs) = from_args(&values)?;
    if kwargs.has("default")
        && let Some(attribute) = kwargs.get::<Option<String>>("attribute")?
    {
        let other = kwargs.get::<Engine>("default")?;
        let mut mapped = Vec::new();
        for item in value.try_iter()? {
            let mut found = item;
            for part in attribute.split('.') {
                found = found.get_attr(part)?;
            }
            mapped.push(if forgive(&found) { other.clone() } else { found });
        }
        return Ok(Engine::from(mapped));
    }
    // The engine's `map` always takes `attribute` for itself and never passes it to the filter.
    if let Some(filter) = values.first().and_then(Engine::as_str)
        && kwargs.has("attribute")
    {
        let mut mapped = Vec::new();
        for item in value.try_iter()? {
            let args: Vec<Engine> = std::iter::once(item).chain(values.iter().skip(1).cloned()).collect();
            mapped.push(state.apply_filter(filter, &args)?);
        }
        return Ok(Engine::from(mapped));
    }
    Ok(Engine::from(minijinja::filters::map(state, value, rest)?))
}

/// Returns the names that a template may use.
pub(super) fn known(test: bool) -> Vec<&'static str> {
    const OWN_FILTERS: &[&str] = &[
        "default",
        "d",
        "mandatory",
        "ternary",
        "to_datetime",
        "map",
        "safe",
        "length",
        "count",
        "items",
        "lines",
        "attr",
        "first",
        "last",
        "list",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
        "groupby",
        "chain",
        "pprint",
    ];
    const OWN_TESTS: &[&str] = &[
        "undefined",
        "defined",
        "none",
        "safe",
        "escaped",
        "boolean",
        "odd",
        "even",
        "integer",
        "int",
        "float",
        "mapping",
        "startingwith",
        "endingwith",
        "lower",
        "upper",
        "sameas",
        "eq",
        "equalto",
        "ne",
        "in",
        "true",
        "false",
        "filter",
        "test",
    ];
    if test {
        let own = TESTS.iter().flat_map(|group| group.iter().map(|(name, _)| *name));
        let own = own.chain(order::TESTS.iter().map(|(name, _)| *name));
        own.chain(OWN_TESTS.iter().copied()).chain(lookups::DISK_TESTS.iter().copied()).collect()
    } else {
        let own = FILTERS.iter().flat_map(|group| group.iter().map(|(name, _)| *name));
        let own = own.chain(FINDERS.iter().flat_map(|group| group.iter().map(|(name, _)| *name)));
        own.chain(OWN_FILTERS.iter().copied()).chain(lookups::DISK_FILTERS.iter().copied()).collect()
    }
}

pub(super) fn nearest(name: &str, test: bool) -> Option<String> {
    suggest(name, known(test)).map(ToOwned::to_owned)
}

/// Refuses unknown filters and tests, which the engine itself reports only when they run.
pub(super) fn check_names(expression: &str) -> Result<(), TemplateError> {
    let expression = &*rewrite::unqualified(expression);
    for found in scan::calls(expression) {
        if known(found.test).contains(&found.name) {
            continue;
        }
        let what = if found.test { "test" } else { "filter" };
        let start = found.start;
        let after = expression.get(start + found.name.len()..).unwrap_or_default();
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let below = after.find(|c| !is_part(c)).unwrap_or(after.len());
        if after.starts_with('.') && below > 1 {
            let end = start + found.name.len() + below;
            let name = expression.get(start..end).unwrap_or_default();
            return Err(TemplateError::new(format!(
                "unknown {what} `{name}`: those of collections are plug-ins in Python, which gpufleet does not load"
            ))
            .with_range(start..end));
        }
        return Err(TemplateError::new(format!("unknown {what} `{}`", found.name))
            .with_range(start..start + found.name.len())
            .with_suggestion(nearest(found.name, found.test)));
    }
    Ok(())
}

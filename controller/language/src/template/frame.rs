//! The state of one evaluation: its variables, and which missing or unknown values it has met.
//!
//! Thread-local, because the engine passes nothing but the key of a look-up to objects. An evaluation never leaves
//! its thread, so the frame on top of the stack belongs to the caller.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr};

use super::filters::dates;
use super::inert::{self, Guard};
use super::value::{Dict, List, OMITTED, Value};
use super::{Scope, Teller, TemplateError, bounds, engine, mutable, rewrite, scan, sight};

type Engine = minijinja::Value;

/// Deepest nesting of variables that refer to one another.
const MAX_DEPTH: usize = 20;

struct Frame {
    scope: Arc<Scope>,
    misses: Vec<Miss>,
    unknown: bool,
    error: Option<TemplateError>,
    /// Lists and mappings that this evaluation changes for itself, by the address of the original, which is kept
    /// alive beside the copy; `None` if it may change none.
    mutable: Option<HashMap<*const (), (Value, Engine)>>,
    /// Number of values written into the text, and the last of them.
    written: usize,
    last: Option<Value>,
    /// Shell lines or paths that were asked for while a masked text was rendered.
    asked: Vec<String>,
    /// The shell lines that it will ask for, rendered with masked variables, in order; `None` if they were not
    /// rendered.
    lines: Option<VecDeque<String>>,
    /// The same of the paths that it will look at, in any order.
    paths: Option<Vec<String>>,
    /// Names of macros, which the engine looks up before they are defined.
    macros: Vec<String>,
}

struct Miss {
    path: String,
    forgiven: bool,
}

thread_local! {
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
    static SECRET: Cell<bool> = const { Cell::new(false) };
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs `act` and returns whether it used a secret.
pub fn watch<T>(act: impl FnOnce() -> T) -> (T, bool) {
    let before = SECRET.replace(false);
    let result = act();
    let met = SECRET.get();
    SECRET.set(before || met);
    (result, met)
}

/// Records a warning; the evaluation goes on.
pub(super) fn warn(text: String) {
    if inert::is_masked() {
        return;
    }
    WARNINGS.with_borrow_mut(|warnings| {
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    });
}

/// Returns the warnings of this thread since the last call.
pub fn take_warnings() -> Vec<String> {
    WARNINGS.take()
}

/// Whether a secret was used since the innermost [`watch`] began.
pub(super) fn has_met_secret() -> bool {
    SECRET.get()
}

/// Records for [`watch`] that a secret was used.
pub fn met_secret() {
    SECRET.set(true);
}

/// Takes the shell lines or paths that this evaluation asked for so far, rendered with masked variables.
pub(super) fn take_asked() -> Vec<String> {
    with_top(|frame| std::mem::take(&mut frame.asked)).unwrap_or_default()
}

/// Sets the shell lines and paths that this evaluation will ask for, rendered with masked variables.
pub(super) fn expect(lines: Option<Vec<String>>, paths: Option<Vec<String>>) {
    with_top(|frame| (frame.lines, frame.paths) = (lines.map(Into::into), paths));
}

/// Whether a shell may run this line; `false` while a masked line is rendered.
///
/// # Errors
/// If a shell would interpret characters that come from a node.
pub(super) fn may_ask_a_shell(line: &str) -> Result<bool, &'static str> {
    let asked = with_top(|frame| {
        if let Some(guard) = inert::guard() {
            frame.asked.extend((guard == Guard::Shell).then(|| line.to_owned()));
            return Ok(!inert::is_marked(line));
        }
        let inert = match &mut frame.lines {
            Some(lines) => lines.pop_front().is_some_and(|masked| inert::is_inert(line, &masked)),
            None => !frame.scope.hears_nodes(),
        };
        if inert { Ok(true) } else { Err(inert::REFUSED) }
    });
    // Without a frame, the terms of a loop have been rendered and checked before.
    asked.unwrap_or(Ok(true))
}

/// Checks a path of the controller that a lookup is about to look at.
///
/// # Errors
/// If the text of a node leads to another folder.
pub(super) fn may_look_at(path: &str) -> Result<(), &'static str> {
    let asked = with_top(|frame| {
        if let Some(guard) = inert::guard() {
            frame.asked.extend((guard == Guard::Path).then(|| path.to_owned()));
            return true;
        }
        !inert::leads_out(path)
            || match &frame.paths {
                Some(paths) => paths.iter().any(|masked| inert::stays_below(path, masked)),
                None => !frame.scope.hears(&Teller::OF_NODES),
            }
    });
    // Without a frame, they are the terms of a loop, which have been checked before.
    if asked.unwrap_or(true) { Ok(()) } else { Err(inert::REFUSED_PATH) }
}

fn with_top<T>(act: impl FnOnce(&mut Frame) -> T) -> Option<T> {
    FRAMES.with_borrow_mut(|frames| frames.last_mut().map(act))
}

struct Pop;

impl Drop for Pop {
    fn drop(&mut self) {
        FRAMES.with_borrow_mut(|frames| frames.pop());
    }
}

/// Runs one evaluation. If it depends on an unknown value, the result is [`Value::Unknown`], despite any other error.
pub(super) fn evaluate(
    scope: &Arc<Scope>,
    run: impl FnOnce(Engine) -> Result<Value, TemplateError>,
) -> Result<Value, TemplateError> {
    let depth = FRAMES.with_borrow_mut(|frames| {
        frames.push(Frame {
            scope: Arc::clone(scope),
            misses: Vec::new(),
            unknown: false,
            error: None,
            mutable: None,
            written: 0,
            last: None,
            asked: Vec::new(),
            lines: None,
            paths: None,
            macros: Vec::new(),
        });
        frames.len()
    });
    let pop = Pop;
    let mark = bounds::begin(depth);
    if depth > MAX_DEPTH {
        return Err(TemplateError::new("variables refer to one another without end"));
    }
    let result = run(Engine::from_dyn_object(Arc::clone(scope)));
    let frame = with_top(|frame| {
        (
            frame.unknown,
            frame.error.take(),
            frame.misses.iter().find(|miss| !miss.forgiven).map(|m| m.path.clone()),
        )
    });
    drop(pop);
    bounds::end(&mark);
    match frame {
        // First, because other errors follow from an exceeded limit.
        _ if bounds::passed() => match result {
            Err(error) if error.undefined_name().is_none() => Err(error),
            _ => Err(frame
                .and_then(|(_, error, _)| error)
                .unwrap_or_else(|| TemplateError::new("it makes more than a template may"))),
        },
        Some((true, ..)) => Ok(Value::Unknown),
        Some((_, Some(error), _)) => Err(error),
        Some((_, _, Some(path))) => Err(TemplateError::undefined(path)),
        _ => {
            result.and_then(|value| bounds::room(value.weight()).map_err(TemplateError::new).map(|()| value))
        }
    }
}

/// Converts a value for the engine; templates in it are rendered now.
pub(super) fn expose(value: &Value, name: &str) -> Engine {
    match value {
        Value::Null => Engine::from(()),
        Value::Bool(value) => Engine::from(*value),
        Value::Int(value) => Engine::from(*value),
        Value::Float(value) => Engine::from(*value),
        Value::Str(text) => Engine::from(Arc::clone(text)),
        Value::List(list) => {
            let place = Arc::as_ptr(list).cast();
            changeable(place, value, || mutable::list(list))
                .unwrap_or_else(|| Engine::from_dyn_object(Arc::clone(list)))
        }
        Value::Map(dict) => {
            let place = Arc::as_ptr(dict).cast();
            changeable(place, value, || mutable::dict(dict))
                .unwrap_or_else(|| Engine::from_dyn_object(Arc::clone(dict)))
        }
        Value::Omit => Engine::from_object(Omit),
        Value::Unknown => unknown(),
        Value::Secret(value) => {
            met_secret();
            expose(value, name)
        }
        Value::Template(source) => {
            let Some(scope) = with_top(|frame| Arc::clone(&frame.scope)) else { return unknown() };
            match engine::render(source, &scope) {
                Ok(value) => expose(&value, name),
                Err(error) => lost(error, name),
            }
        }
    }
}

/// Allows the current evaluation to change lists and mappings, for itself alone.
pub(super) fn allow_changes() {
    with_top(|frame| frame.mutable.get_or_insert_default().len());
}

/// Records the macros of the current evaluation, whose names are not variables.
pub(super) fn note_macros(source: &str) {
    let names = scan::macros(source);
    with_top(|frame| frame.macros.extend(names));
}

fn is_macro(name: &str) -> bool {
    with_top(|frame| frame.macros.iter().any(|known| known == name)) == Some(true)
}

/// Returns the changeable copy of a list or mapping in the current evaluation, if that may change it.
fn changeable(place: *const (), value: &Value, make: impl FnOnce() -> Engine) -> Option<Engine> {
    with_top(|frame| {
        let mutable = frame.mutable.as_mut()?;
        Some(mutable.entry(place).or_insert_with(|| (value.clone(), make())).1.clone())
    })
    .flatten()
}

/// Returns the value of a variable that could not be rendered.
pub(super) fn lost(error: TemplateError, name: &str) -> Engine {
    match error.undefined_name() {
        Some(inner) => {
            missing(if name.is_empty() { inner.to_owned() } else { format!("{inner}` in `{name}") })
        }
        None => {
            let error = if name.is_empty() { error } else { error.within(name) };
            with_top(|frame| frame.error.get_or_insert(error).message().len());
            missing(name.to_owned())
        }
    }
}

/// Records that the current evaluation writes a value into its text.
pub(super) fn written(value: &Value) {
    if !matches!(value, Value::Null) {
        with_top(|frame| {
            frame.written += 1;
            frame.last = Some(value.clone());
        });
    }
}

/// Returns the only value written into the text so far, `Some(None)` if there is none, and `None` if there are
/// several.
pub(super) fn only_written() -> Option<Option<Value>> {
    with_top(|frame| match frame.written {
        0 => Some(None),
        1 => frame.last.clone().map(Some),
        _ => None,
    })
    .flatten()
}

/// Returns the scope of the current evaluation.
pub(super) fn top_scope() -> Option<Arc<Scope>> {
    with_top(|frame| Arc::clone(&frame.scope))
}

pub(super) fn is_missing(value: &Engine) -> bool {
    value.downcast_object_ref::<Missing>().is_some()
}

/// Returns the result of an operation on a missing or unknown value: an unforgiven missing one stays an error.
pub(super) fn still_unknown() -> Engine {
    let lost = with_top(|frame| frame.misses.iter().any(|miss| !miss.forgiven));
    if lost == Some(true) { Engine::from_object(Unknown) } else { unknown() }
}

pub(super) fn unknown() -> Engine {
    with_top(|frame| frame.unknown = true);
    Engine::from_object(Unknown)
}

pub(super) fn missing(path: String) -> Engine {
    let id = with_top(|frame| {
        frame.misses.push(Miss { path: path.clone(), forgiven: false });
        frame.misses.len() - 1
    });
    Engine::from_object(Missing { id: id.unwrap_or_default(), path })
}

/// Whether a value is missing; if so, that is no error any more.
pub(super) fn forgive(value: &Engine) -> bool {
    if value.is_undefined() {
        return true;
    }
    let Some(gone) = value.downcast_object_ref::<Missing>() else { return false };
    with_top(|frame| {
        if let Some(miss) = frame.misses.get_mut(gone.id) {
            miss.forgiven = true;
        }
    });
    true
}

/// Converts a result of the engine back, with all templates in it rendered.
pub(super) fn collect(value: &Engine) -> Result<Value, TemplateError> {
    use minijinja::value::ValueKind;
    if let Some(dict) = value.downcast_object::<Dict>() {
        if dict.is_settled() {
            return Ok(Value::Map(dict));
        }
        let mut fresh = Dict::default();
        for (key, value) in dict.iter() {
            fresh.insert(Arc::clone(key), collect(&expose(value, key))?);
        }
        return Ok(Value::Map(Arc::new(fresh)));
    }
    if let Some(list) = value.downcast_object::<List>() {
        if list.is_settled() {
            return Ok(Value::List(list));
        }
        let items: Result<_, _> = list.items().iter().map(|item| collect(&expose(item, ""))).collect();
        return Ok(Value::list(items?));
    }
    if let Some(text) = dates::kept_text(value) {
        return Ok(Value::from(text));
    }
    if dates::is_span(value) {
        return Err(TemplateError::new(
            "a span of time is no value to keep; take its `total_seconds()`, `days` or `seconds`",
        ));
    }
    if let Some(found) = sight::collected(value) {
        return found;
    }
    if value.downcast_object_ref::<Omit>().is_some() {
        return Ok(Value::Omit);
    }
    if value.downcast_object_ref::<Unknown>().is_some() || value.downcast_object_ref::<Missing>().is_some() {
        return Ok(Value::Unknown);
    }
    Ok(match value.kind() {
        ValueKind::Undefined => return Err(TemplateError::undefined(String::new())),
        ValueKind::None => Value::Null,
        ValueKind::Bool => Value::Bool(value.is_true()),
        ValueKind::Number => match value.as_i64().filter(|_| value.is_integer()) {
            Some(int) => Value::Int(int),
            None => Value::Float(f64::try_from(value.clone()).unwrap_or(f64::NAN)),
        },
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            bounds::spend(text.len()).map_err(TemplateError::new)?;
            Value::str(text)
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter().map_err(|error| TemplateError::from_engine(&error, ""))? {
                bounds::spend(bounds::CELL).map_err(TemplateError::new)?;
                items.push(collect(&item)?);
            }
            Value::list(items)
        }
        ValueKind::Map => {
            let mut dict = Dict::default();
            for key in value.try_iter().map_err(|error| TemplateError::from_engine(&error, ""))? {
                bounds::spend(bounds::CELL).map_err(TemplateError::new)?;
                let item = value.get_item(&key).map_err(|error| TemplateError::from_engine(&error, ""))?;
                dict.insert(collect(&key)?.to_text(), collect(&item)?);
            }
            Value::Map(Arc::new(dict))
        }
        ValueKind::Invalid => {
            return Err(TemplateError::new("the expression gives no usable value"));
        }
        _ => match value.as_str() {
            Some(text) => Value::str(text),
            None => {
                return Err(TemplateError::new(format!(
                    "the expression gives a {}, not a value",
                    value.kind()
                )));
            }
        },
    })
}

impl Object for Scope {
    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, name: &str) -> Option<Engine> {
        if let Some(value) = self.get(name) {
            return Some(match (name, value) {
                ("hostvars", Value::Map(all)) => sight::others(all, self),
                _ => expose(value, name),
            });
        }
        match name {
            "omit" => Some(Engine::from_object(Omit)),
            "vars" => Some(sight::all(self)),
            rewrite::SCOPE => Some(Engine::from_dyn_object(Arc::clone(self))),
            _ if engine::is_function(name) || is_macro(name) => None,
            _ => Some(missing(name.to_owned())),
        }
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        let found = match key.as_str() {
            Some(key) => self.get(key),
            // Keys that are numbers in YAML are text here; `d[1]` must find them.
            None if key.is_integer() => self.get(&key.to_string()),
            None => None,
        };
        found.map(|value| expose(value, key.as_str().unwrap_or_default()))
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Engine> {
        match self.get(key) {
            Some(value) => Some(expose(value, key)),
            None => Some(missing(key.to_owned())),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.iter().map(|(key, _)| Engine::from(Arc::clone(key))).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(&Engine::from_dyn_object(Arc::clone(self)), f)
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        let index = key.as_i64()?;
        let index =
            if index < 0 { index.checked_add(i64::try_from(self.items().len()).ok()?)? } else { index };
        self.items().get(usize::try_from(index).ok()?).map(|item| expose(item, ""))
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Engine> {
        // Jinja reads `list.0` as an index too.
        match key.parse::<usize>().ok().and_then(|index| self.items().get(index)) {
            Some(item) => Some(expose(item, "")),
            None => Some(missing(key.to_owned())),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(&Engine::from_dyn_object(Arc::clone(self)), f)
    }
}

pub(super) fn render(value: &Engine, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match collect(value) {
        Ok(value) => f.write_str(&value.to_text()),
        Err(_) => Ok(()),
    }
}

/// A missing variable or attribute, and everything below it.
#[derive(Debug)]
struct Missing {
    id: usize,
    path: String,
}

impl Missing {
    fn below(&self, key: &str) -> Engine {
        let path = format!("{}.{key}", self.path);
        with_top(|frame| {
            if let Some(miss) = frame.misses.get_mut(self.id) {
                miss.path.clone_from(&path);
            }
        });
        Engine::from_object(Self { id: self.id, path })
    }
}

impl Object for Missing {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        Some(self.below(&key.to_string()))
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Engine> {
        Some(self.below(key))
    }

    fn is_true(self: &Arc<Self>) -> bool {
        false
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// A value that is known only during the run.
#[derive(Debug)]
struct Unknown;

impl Object for Unknown {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, _: &Engine) -> Option<Engine> {
        Some(Engine::from_object(Self))
    }

    fn custom_cmp(self: &Arc<Self>, _: &DynObject) -> Option<std::cmp::Ordering> {
        Some(std::cmp::Ordering::Less)
    }
}

/// A parameter that is left out.
struct Omit;

impl fmt::Debug for Omit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OMITTED)
    }
}

impl Object for Omit {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

//! Lists and mappings that a template changes during rendering: `x.append(1)`, `d.update({'a': 1})`.
//!
//! Owns these values and their methods, which are Python's. Must not know where a template is used. Invariants: a
//! change is visible wherever the same list is used in the same evaluation, and ends with it, so that variables stay
//! unchanged; no value contains itself; a template that changes nothing has none of these.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::frame::{expose, missing, render};
use super::rewrite::{DICT, LIST};
use super::value::{Dict, List, Value};
use super::{bounds, methods};

type Engine = minijinja::Value;

/// Deepest nesting of lists.
const MAX_DEPTH: usize = 64;

pub(super) fn register(environment: &mut Environment<'static>) {
    environment.add_function(LIST, |items: Engine| -> Result<Engine, Error> {
        let items = items.try_iter()?.map(Slot::Ready).collect();
        Ok(Engine::from_object(MutableList { items: Mutex::new(items) }))
    });
    environment.add_function(DICT, |map: Engine| -> Result<Engine, Error> {
        Ok(Engine::from_object(MutableDict { entries: Mutex::new(pairs(&map)?) }))
    });
    environment.set_unknown_method_callback(|state, value, method, args| {
        if let Some(text) = value.as_str() {
            methods::bounded(text, method, args)?;
        }
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
            && let Some(found) = plain_method(value, method, args)
        {
            return found;
        }
        minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
    });
}

/// Converts a variable's list for a template that may change it.
pub(super) fn list(list: &List) -> Engine {
    let items = list.items().iter().cloned().map(Slot::Raw).collect();
    Engine::from_object(MutableList { items: Mutex::new(items) })
}

/// Converts a variable's mapping for a template that may change it.
pub(super) fn dict(dict: &Dict) -> Engine {
    let entries = dict
        .iter()
        .map(|(key, value)| (Arc::clone(key), (Engine::from(Arc::clone(key)), Slot::Raw(value.clone()))));
    Engine::from_object(MutableDict { entries: Mutex::new(entries.collect()) })
}

/// Creates a mapping from converted values.
pub(super) fn mapping(entries: Vec<(String, Engine)>) -> Engine {
    let entries = entries
        .into_iter()
        .map(|(key, value)| (Arc::from(key.as_str()), (Engine::from(key), Slot::Ready(value))));
    Engine::from_object(MutableDict { entries: Mutex::new(entries.collect()) })
}

/// One value, converted for the engine when it is first read.
#[derive(Clone)]
enum Slot {
    Raw(Value),
    Ready(Engine),
}

impl Slot {
    fn ready(&self, name: &str) -> Engine {
        match self {
            Self::Raw(value) => expose(value, name),
            Self::Ready(value) => value.clone(),
        }
    }
}

fn open<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct MutableList {
    items: Mutex<Vec<Slot>>,
}

type Entries = IndexMap<Arc<str>, (Engine, Slot)>;

struct MutableDict {
    entries: Mutex<Entries>,
}

impl fmt::Debug for MutableList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MutableList")
    }
}

impl fmt::Debug for MutableDict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MutableDict")
    }
}

impl MutableList {
    /// Returns the value at an index. It is rendered without the lock, as a template in it may read this list again.
    fn at(&self, place: usize) -> Option<Engine> {
        let slot = open(&self.items).get(place)?.clone();
        if let Slot::Ready(value) = slot {
            return Some(value);
        }
        let ready = slot.ready("");
        if let Some(slot @ Slot::Raw(_)) = open(&self.items).get_mut(place) {
            *slot = Slot::Ready(ready.clone());
        }
        Some(ready)
    }

    fn all(&self) -> Vec<Engine> {
        let length = open(&self.items).len();
        (0..length).filter_map(|place| self.at(place)).collect()
    }

    fn set(&self, items: Vec<Engine>) {
        *open(&self.items) = items.into_iter().map(Slot::Ready).collect();
    }
}

impl MutableDict {
    fn at(&self, key: &str) -> Option<Engine> {
        let slot = open(&self.entries).get(key)?.1.clone();
        if let Slot::Ready(value) = slot {
            return Some(value);
        }
        let ready = slot.ready(key);
        if let Some((_, slot @ Slot::Raw(_))) = open(&self.entries).get_mut(key) {
            *slot = Slot::Ready(ready.clone());
        }
        Some(ready)
    }
}

pub(super) fn refusal(method: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("`{method}`: {why}"))
}

/// Converts an index, which counts from the end if negative.
fn place(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { index.checked_add(length)? } else { index }).ok()
}

/// Converts a key to text, as mappings here have it.
fn key_of(key: &Engine) -> Arc<str> {
    Arc::from(key.as_str().map_or_else(|| key.to_string(), ToOwned::to_owned))
}

/// Returns the pairs of an argument of `update` or of a literal, which may be a mapping or a list of pairs.
fn pairs(given: &Engine) -> Result<Entries, Error> {
    let mut entries = Entries::new();
    for item in given.try_iter()? {
        let (key, value) = match given.kind() {
            ValueKind::Map => (item.clone(), given.get_item(&item)?),
            _ => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
        };
        entries.insert(key_of(&key), (key, Slot::Ready(value)));
    }
    Ok(entries)
}

/// Refuses a value that contains its new owner.
///
/// Otherwise, walking through the value would never end.
fn outside_of(owner: *const (), value: &Engine, depth: usize, method: &str) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(refusal(method, "lists are nested too deep"));
    }
    if value.downcast_object_ref::<List>().is_some() || value.downcast_object_ref::<Dict>().is_some() {
        return Ok(());
    }
    let slots = if let Some(list) = value.downcast_object::<MutableList>() {
        if Arc::as_ptr(&list).cast() == owner {
            return Err(refusal(method, "a list cannot hold itself"));
        }
        open(&list.items).clone()
    } else if let Some(dict) = value.downcast_object::<MutableDict>() {
        if Arc::as_ptr(&dict).cast() == owner {
            return Err(refusal(method, "a mapping cannot hold itself"));
        }
        open(&dict.entries).values().map(|(_, slot)| slot.clone()).collect()
    } else {
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.map(Slot::Ready).collect(),
            ValueKind::Map => {
                let keys: Vec<Engine> = value.try_iter()?.collect();
                keys.iter().map(|key| value.get_item(key).map(Slot::Ready)).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        }
    };
    for slot in slots {
        if let Slot::Ready(value) = slot {
            outside_of(owner, &value, depth + 1, method)?;
        }
    }
    Ok(())
}

/// Returns a value that can be stored: a lazy sequence is evaluated now.
fn kept(owner: *const (), value: &Engine, method: &str) -> Result<Engine, Error> {
    let value = match value.kind() {
        ValueKind::Iterable => Engine::from(value.try_iter()?.collect::<Vec<_>>()),
        _ => value.clone(),
    };
    outside_of(owner, &value, 0, method)?;
    Ok(value)
}

fn nothing() -> Engine {
    Engine::from(())
}

impl Object for MutableList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        let length = open(&self.items).len();
        self.at(place(key.as_i64()?, length)?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Engine> {
        match key.parse::<usize>().ok().and_then(|index| self.at(index)) {
            Some(item) => Some(item),
            None => Some(missing(key.to_owned())),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.all())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(open(&self.items).len())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Engine],
    ) -> Result<Engine, Error> {
        let owner = Arc::as_ptr(self).cast::<()>();
        // `append` is handled first, because the other methods read the whole list.
        if method == "append" {
            let (item,): (&Engine,) = from_args(args)?;
            let item = kept(owner, item, method)?;
            open(&self.items).push(Slot::Ready(item));
            return Ok(nothing());
        }
        let mut items = self.all();
        match method {
            "extend" => {
                let (more,): (&Engine,) = from_args(args)?;
                let length = items.len().saturating_add(more.len().unwrap_or_default());
                if length > bounds::MAX_ITEMS {
                    return Err(refusal(method, &format!("a list has at most {} items", bounds::MAX_ITEMS)));
                }
                for item in more.try_iter()?.collect::<Vec<_>>() {
                    items.push(kept(owner, &item, method)?);
                }
            }
            "insert" => {
                let (index, item): (i64, &Engine) = from_args(args)?;
                let at = if index < 0 {
                    place(index, items.len()).unwrap_or(0)
                } else {
                    place(index, 0).unwrap_or(0)
                };
                items.insert(at.min(items.len()), kept(owner, item, method)?);
            }
            "pop" => {
                let (index,): (Option<i64>,) = from_args(args)?;
                let at = place(index.unwrap_or(-1), items.len()).filter(|at| *at < items.len());
                let Some(at) = at else {
                    return Err(refusal(
                        method,
                        if items.is_empty() { "the list is empty" } else { "there is no such place" },
                    ));
                };
                let item = items.remove(at);
                self.set(items);
                return Ok(item);
            }
            "remove" => {
                let (item,): (&Engine,) = from_args(args)?;
                let at = items.iter().position(|known| known == item);
                items.remove(at.ok_or_else(|| refusal(method, "the list does not have this value"))?);
            }
            "clear" => {
                let () = from_args(args)?;
                items.clear();
            }
            "reverse" => {
                let () = from_args(args)?;
                items.reverse();
            }
            "sort" => {
                let (kwargs,): (Kwargs,) = from_args(args)?;
                let reverse = kwargs.get::<Option<bool>>("reverse")?.unwrap_or_default();
                kwargs.assert_all_used()?;
                items.sort();
                if reverse {
                    items.reverse();
                }
            }
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        }
        self.set(items);
        Ok(nothing())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(&Engine::from_dyn_object(Arc::clone(self)), f)
    }
}

impl Object for MutableDict {
    fn get_value(self: &Arc<Self>, key: &Engine) -> Option<Engine> {
        match key.as_str() {
            Some(key) => self.at(key),
            None if key.is_integer() => self.at(&key.to_string()),
            None => None,
        }
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Engine> {
        Some(self.at(key).unwrap_or_else(|| missing(key.to_owned())))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(open(&self.entries).values().map(|(key, _)| key.clone()).collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(open(&self.entries).len())
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Engine],
    ) -> Result<Engine, Error> {
        let owner = Arc::as_ptr(self).cast::<()>();
        let add = |entries: Entries| -> Result<(), Error> {
            for (key, (name, slot)) in entries {
                let value = kept(owner, &slot.ready(&key), method)?;
                open(&self.entries).insert(key, (name, Slot::Ready(value)));
            }
            Ok(())
        };
        match method {
            "update" => {
                let (given, kwargs): (Option<&Engine>, Kwargs) = from_args(args)?;
                if let Some(given) = given {
                    add(pairs(given)?)?;
                }
                let mut named = Entries::new();
                for name in kwargs.args() {
                    let value = kwargs.get::<Engine>(name)?;
                    named.insert(Arc::from(name), (Engine::from(name), Slot::Ready(value)));
                }
                add(named)?;
                Ok(nothing())
            }
            "setdefault" => {
                let (key, default): (&Engine, Option<&Engine>) = from_args(args)?;
                let name = key_of(key);
                if let Some(there) = self.at(&name) {
                    return Ok(there);
                }
                let value = default.cloned().unwrap_or_else(nothing);
                add([(name, (key.clone(), Slot::Ready(value.clone())))].into_iter().collect())?;
                Ok(value)
            }
            "pop" => {
                let (key, default): (&Engine, Option<Engine>) = from_args(args)?;
                let name = key_of(key);
                let there = self.at(&name);
                open(&self.entries).shift_remove(&name);
                there.or(default).ok_or_else(|| refusal(method, "the mapping does not have this key"))
            }
            "popitem" => {
                let () = from_args(args)?;
                let last = open(&self.entries).pop();
                let (name, (key, slot)) = last.ok_or_else(|| refusal(method, "the mapping is empty"))?;
                Ok(Engine::from(vec![key, slot.ready(&name)]))
            }
            "clear" => {
                let () = from_args(args)?;
                open(&self.entries).clear();
                Ok(nothing())
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(&Engine::from_dyn_object(Arc::clone(self)), f)
    }
}

/// Calls one of Python's list and mapping methods that change nothing and that the engine lacks.
fn plain_method(value: &Engine, method: &str, args: &[Engine]) -> Option<Result<Engine, Error>> {
    Some(match (value.kind(), method) {
        (ValueKind::Seq, "index") => from_args(args).and_then(|(item, start): (&Engine, Option<usize>)| {
            let start = start.unwrap_or_default();
            let at = value.try_iter()?.skip(start).position(|known| known == *item).map(|at| at + start);
            at.map(Engine::from).ok_or_else(|| refusal(method, "the list does not have this value"))
        }),
        (ValueKind::Seq, "copy") => from_args(args).and_then(|()| {
            let items = value.try_iter()?.map(Slot::Ready).collect();
            Ok(Engine::from_object(MutableList { items: Mutex::new(items) }))
        }),
        (ValueKind::Map, "copy") => from_args(args)
            .and_then(|()| Ok(Engine::from_object(MutableDict { entries: Mutex::new(pairs(value)?) }))),
        (ValueKind::String, _) => return methods::of_text(value.as_str()?, method, args),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::engine::render_document;
    use super::super::{Scope, evaluate, render};
    use super::*;
    use serde_json::json;

    fn scope() -> Arc<Scope> {
        let vars = json!({"l": [1], "d": {"a": 1}, "deep": {"of": [[]]}});
        Scope::new(vec![Arc::new(Dict::trusted(vars.as_object().unwrap()))])
    }

    fn shown(source: &str) -> String {
        render(source, &scope())
            .map_or_else(|error| format!("error: {}", error.message()), |value| value.to_json().to_string())
    }

    #[test]
    fn lists_and_mappings_of_a_template_grow() {
        for (source, expected) in [
            ("{% set x = [] %}{% for i in [1, 2] %}{% set _ = x.append(i) %}{% endfor %}{{ x }}", "[1,2]"),
            ("{% set x = [] %}{{ x.append(1) }}{{ x }}", "[1]"),
            (
                "{% set d = {} %}{% set _ = d.update({'a': 1}) %}{% set _ = d.update(b=2) %}{{ d }}",
                r#"{"a":1,"b":2}"#,
            ),
            (
                "{% set ns = namespace(x=[]) %}{% for i in range(3) %}{{ ns.x.append(i) }}{% endfor %}{{ ns.x }}",
                "[0,1,2]",
            ),
            ("{% set x = [] %}{% set y = x %}{% set _ = x.append(1) %}{{ y }}", "[1]"),
            (
                "{% set x = [[], {}] %}{% set _ = x[0].append(1) %}{% set _ = x[1].update(a=2) %}{{ x }}",
                r#"[[1],{"a":2}]"#,
            ),
            (
                "{% set x = [3, 1, 2] %}{% set _ = x.sort() %}{% set _ = x.insert(0, 9) %}{% set _ = x.extend([7]) %}{% set _ = x.remove(1) %}{% set _ = x.reverse() %}{{ x }}",
                "[7,3,2,9]",
            ),
            (
                "{% set x = [3, 1] %}{% set _ = x.sort(reverse=true) %}{{ [x.pop(), x.pop(0), x] }}",
                "[1,3,[]]",
            ),
            (
                "{% set d = {'a': 1} %}{% set _ = d.pop('a') %}{% set _ = d.setdefault('q', 5) %}{{ [d, d.pop('z', 0), d.keys() | list] }}",
                r#"[{"q":5},0,["q"]]"#,
            ),
            ("{% set d = {1: 'x'} %}{% set _ = d.update({2: 'y'}) %}{{ d[2] ~ d | length }}", "\"y2\""),
            (
                "{% set x = [] %}{% for i in [1, 2] %}{% if x.append(i) %}{% endif %}{% endfor %}{{ x | join(',') }} {{ x | length }} {{ 2 in x }}",
                "\"1,2 2 True\"",
            ),
            (
                "{{ [1, 2].index(2) }} {{ [1, 1].count(1) }} {{ {'a': 1}.copy() }} {{ [1].copy() }}",
                r#""1 2 {'a': 1} [1]""#,
            ),
        ] {
            assert_eq!(shown(source), expected, "{source}");
        }
    }

    #[test]
    fn variables_change_within_one_template_only() {
        assert_eq!(shown("{% set _ = l.append(2) %}{{ l }}"), "[1,2]");
        assert_eq!(shown("{% set x = l %}{% set _ = x.append(2) %}{{ x }} {{ l }}"), "\"[1, 2] [1, 2]\"");
        assert_eq!(
            shown("{% set _ = deep.of[0].append(d) %}{% set _ = d.update(b=2) %}{{ deep }}"),
            r#"{"of":[[{"a":1,"b":2}]]}"#
        );
        assert_eq!(shown("{{ l }}{{ d }}"), r#""[1]{'a': 1}""#);
        assert_eq!(evaluate("l.append(2)", &scope()).unwrap(), Value::Null);
    }

    #[test]
    fn a_file_grows_too_and_its_mistakes_have_their_place() {
        let text = "{% set x = [] %}\n{% for i in ['a', 'b'] %}\n{%   set _ = x.append(i ~ ':80') %}\n{% endfor %}\nservers {{ x | join(' ') }}\n";
        assert_eq!(render_document(text, &scope()).unwrap().unwrap(), "servers a:80 b:80\n");
        let wrong = "{% set x = [[], [], []] %}\n{% set _ = x.append(1) %}\n{{ gone }}\n";
        let error = render_document(wrong, &scope()).unwrap_err();
        assert_eq!(error.range().map(|range| &wrong[range]), Some("gone"));
        let wrong = "{% set x = [[], [], []] %}\n{% set _ = x.append(1) %}\n{{ x.remove(7) }}\n";
        let error = render_document(wrong, &scope()).unwrap_err();
        let place = error.range().unwrap();
        assert!(wrong[place.clone()].contains("remove"), "{}", &wrong[place]);
    }

    #[test]
    fn what_cannot_be_is_told() {
        for (source, expected) in [
            (
                "{% set x = [] %}{% set _ = x.append(x) %}{{ x }}",
                "error: `append`: a list cannot hold itself",
            ),
            (
                "{% set x = [] %}{% set _ = x.append([x + [1], {'a': x}]) %}{{ x }}",
                "error: `append`: a list cannot hold itself",
            ),
            (
                "{% set d = {} %}{% set _ = d.update(a=[d]) %}{{ d }}",
                "error: `update`: a mapping cannot hold itself",
            ),
            ("{% set x = [] %}{{ x.pop() }}", "error: `pop`: the list is empty"),
            ("{% set x = [1] %}{{ x.remove(2) }}", "error: `remove`: the list does not have this value"),
            ("{% set d = {} %}{{ d.pop('a') }}", "error: `pop`: the mapping does not have this key"),
        ] {
            assert_eq!(shown(source), expected, "{source}");
        }
    }
}

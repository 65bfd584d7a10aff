//! Filters for lists and mappings.

use std::sync::Arc;

use super::sequences::attribute;
use super::{Call, Filter, Finder, Test, list_of, text_of};
use crate::template::value::{Dict, Value};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("combine", combine),
    ("flatten", flatten),
    ("union", |call| Ok(Value::list(distinct(call.list()?.into_iter().chain(other(call)?))))),
    ("intersect", |call| {
        let second = other(call)?;
        Ok(Value::list(distinct(call.list()?.into_iter().filter(|item| second.contains(item)))))
    }),
    ("difference", |call| {
        let second = other(call)?;
        Ok(Value::list(distinct(call.list()?.into_iter().filter(|item| !second.contains(item)))))
    }),
    ("symmetric_difference", |call| {
        let (first, second) = (call.list()?, other(call)?);
        let left = first.iter().filter(|item| !second.contains(item));
        let right = second.iter().filter(|item| !first.contains(item));
        Ok(Value::list(distinct(left.chain(right).cloned())))
    }),
    ("dict2items", dict2items),
    ("items2dict", items2dict),
    ("subelements", subelements),
    ("rekey_on_member", rekey_on_member),
];

/// Filters that may find nothing, so that `default` applies.
pub(super) const FINDERS: &[(&str, Finder)] = &[("extract", extract)];

pub(super) const TESTS: &[(&str, Test)] = &[
    ("subset", subset),
    ("issubset", subset),
    ("superset", superset),
    ("issuperset", superset),
    ("contains", |call| {
        let wanted = call.need(0, "value")?;
        Ok(match call.value() {
            Value::Str(text) => text.contains(&*text_of(wanted)?),
            Value::Map(dict) => dict.contains(&text_of(wanted)?),
            _ => call.list()?.contains(wanted),
        })
    }),
    ("any", |call| Ok(call.list()?.iter().any(Value::truthy))),
    ("all", |call| Ok(call.list()?.iter().all(Value::truthy))),
    ("truthy", |call| Ok(truthy(call))),
    ("falsy", |call| Ok(!truthy(call))),
];

fn subset(call: &Call) -> Result<bool, String> {
    let second = other(call)?;
    Ok(call.list()?.iter().all(|item| second.contains(item)))
}

fn superset(call: &Call) -> Result<bool, String> {
    let first = call.list()?;
    Ok(other(call)?.iter().all(|item| first.contains(item)))
}

fn truthy(call: &Call) -> bool {
    match call.value() {
        Value::Str(text) if call.flag(0, "convert_bool") => match text.trim().to_lowercase().as_str() {
            "n" | "no" | "off" | "0" | "false" | "f" => false,
            _ => !text.is_empty(),
        },
        other => other.truthy(),
    }
}

fn other(call: &Call) -> Result<Vec<Value>, String> {
    list_of(call.need(0, "the other list")?)
}

fn distinct(items: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

const MERGES: [&str; 6] = ["replace", "keep", "append", "prepend", "append_rp", "prepend_rp"];

fn combine(call: &Call) -> Result<Value, String> {
    if let Some((name, _)) = call.named.iter().find(|(name, _)| name != "recursive" && name != "list_merge") {
        return Err(format!("there is no argument `{name}`; there are `recursive` and `list_merge`"));
    }
    let recursive = call.named("recursive").is_some_and(Value::truthy);
    let merge = call.named("list_merge").map_or_else(|| "replace".to_owned(), Value::to_text);
    if !MERGES.contains(&merge.as_str()) {
        return Err(format!("`list_merge` is one of {}, not `{merge}`", MERGES.join(", ")));
    }
    let mut result = Dict::default();
    for part in &call.args {
        let parts = match part {
            Value::List(list) => list.items().to_vec(),
            other => vec![other.clone()],
        };
        for part in parts {
            let Value::Map(part) = part else {
                return Err(format!("a mapping is needed, this is {}", part.kind()));
            };
            overlay(&mut result, &part, recursive, &merge);
        }
    }
    Ok(Value::Map(Arc::new(result)))
}

fn overlay(base: &mut Dict, over: &Dict, recursive: bool, merge: &str) {
    for (key, value) in over.iter() {
        let merged = match (base.get(key), value) {
            (Some(Value::Map(old)), Value::Map(new)) if recursive => {
                let mut inner = (**old).clone();
                overlay(&mut inner, new, recursive, merge);
                Value::Map(Arc::new(inner))
            }
            (Some(Value::List(old)), Value::List(new)) => {
                let (old, new) = (old.items().iter().cloned(), new.items().iter().cloned());
                match merge {
                    "append" => Value::list(old.chain(new).collect()),
                    "prepend" => Value::list(new.chain(old).collect()),
                    "append_rp" => {
                        let fresh: Vec<_> = new.collect();
                        Value::list(old.filter(|item| !fresh.contains(item)).chain(fresh.clone()).collect())
                    }
                    "prepend_rp" => {
                        let fresh: Vec<_> = new.collect();
                        Value::list(
                            fresh.iter().cloned().chain(old.filter(|item| !fresh.contains(item))).collect(),
                        )
                    }
                    "keep" => Value::list(old.collect()),
                    _ => value.clone(),
                }
            }
            _ => value.clone(),
        };
        base.insert(Arc::clone(key), merged);
    }
}

fn flatten(call: &Call) -> Result<Value, String> {
    let levels = match call.get(0, "levels") {
        Some(Value::Int(levels)) => usize::try_from(*levels).unwrap_or(0),
        _ => usize::MAX,
    };
    let keep_nulls = call.get(1, "skip_nulls").is_some_and(|skip| !skip.truthy());
    fn level(items: &[Value], left: usize, keep_nulls: bool, out: &mut Vec<Value>) {
        for item in items {
            match item {
                Value::List(list) if left > 0 => level(list.items(), left - 1, keep_nulls, out),
                Value::Null if !keep_nulls => {}
                Value::Str(text) if !keep_nulls && matches!(&**text, "None" | "null") => {}
                other => out.push(other.clone()),
            }
        }
    }
    let mut out = Vec::new();
    level(&call.list()?, levels, keep_nulls, &mut out);
    Ok(Value::list(out))
}

fn names(call: &Call) -> (String, String) {
    let name = |index, key: &str| call.get(index, key).map_or(String::new(), Value::to_text);
    let (key, value) = (name(0, "key_name"), name(1, "value_name"));
    (if key.is_empty() { "key".into() } else { key }, if value.is_empty() { "value".into() } else { value })
}

fn dict2items(call: &Call) -> Result<Value, String> {
    let Value::Map(dict) = call.value() else {
        return Err(format!("a mapping is needed, this is {}", call.value().kind()));
    };
    let (key_name, value_name) = names(call);
    Ok(Value::list(
        dict.iter()
            .map(|(key, value)| {
                Value::map([
                    (key_name.as_str(), Value::Str(Arc::clone(key))),
                    (value_name.as_str(), value.clone()),
                ])
            })
            .collect(),
    ))
}

fn items2dict(call: &Call) -> Result<Value, String> {
    let (key_name, value_name) = names(call);
    let mut dict = Dict::default();
    for item in call.list()? {
        let part = |name: &str| {
            attribute(&item, name).map_err(|_| format!("every item needs `{key_name}` and `{value_name}`"))
        };
        let (key, value) = (part(&key_name)?, part(&value_name)?);
        dict.insert(text_of(&key)?, value);
    }
    Ok(Value::Map(Arc::new(dict)))
}

fn subelements(call: &Call) -> Result<Value, String> {
    let path: Vec<String> = match call.need(0, "subelements")? {
        Value::List(parts) => parts.items().iter().map(text_of).collect::<Result<_, _>>()?,
        Value::Str(path) => path.split('.').map(ToOwned::to_owned).collect(),
        other => return Err(format!("the path is text or a list, this is {}", other.kind())),
    };
    let skip = call.flag(1, "skip_missing");
    let outer = match call.value() {
        Value::Map(dict) => dict.iter().map(|(_, value)| value.clone()).collect(),
        _ => call.list()?,
    };
    let mut out = Vec::new();
    for item in outer {
        let mut inner = Some(item.clone());
        for part in &path {
            inner = match inner {
                Some(Value::Map(dict)) => dict.get(part).cloned(),
                Some(other) => return Err(format!("`{part}` is looked for in {}", other.kind())),
                None => None,
            };
        }
        match inner {
            Some(Value::List(list)) => {
                out.extend(list.items().iter().map(|sub| Value::list(vec![item.clone(), sub.clone()])));
            }
            None if skip => {}
            None => return Err(format!("an item has no `{}`", path.join("."))),
            Some(other) => return Err(format!("`{}` is {}, not a list", path.join("."), other.kind())),
        }
    }
    Ok(Value::list(out))
}

fn rekey_on_member(call: &Call) -> Result<Value, String> {
    let key = call.text_arg(0, "key")?;
    let overwrite =
        match call.get(1, "duplicates").map_or_else(|| "error".to_owned(), Value::to_text).as_str() {
            "error" => false,
            "overwrite" => true,
            other => return Err(format!("`duplicates` is `error` or `overwrite`, not `{other}`")),
        };
    let items: Vec<Value> = match call.value() {
        Value::Map(dict) => dict.iter().map(|(_, value)| value.clone()).collect(),
        _ => call.list()?,
    };
    let mut out = Dict::default();
    for item in items {
        let Value::Map(dict) = &item else {
            return Err(format!("every item is a mapping, this one is {}", item.kind()));
        };
        let name = text_of(dict.get(&key).ok_or_else(|| format!("an item has no `{key}`"))?)?;
        if out.contains(&name) && !overwrite {
            return Err(format!(
                "two items have the same `{key}`; `duplicates='overwrite'` takes the last one"
            ));
        }
        out.insert(name, item.clone());
    }
    Ok(Value::Map(Arc::new(out)))
}

fn extract(call: &Call) -> Result<Option<Value>, String> {
    let keys = match call.get(1, "morekeys") {
        Some(Value::List(keys)) => keys.items().to_vec(),
        Some(Value::Null) | None => Vec::new(),
        Some(key) => vec![key.clone()],
    };
    let mut found = call.need(0, "container")?.clone();
    for key in std::iter::once(call.value()).chain(&keys) {
        let next = match (&found, key) {
            (Value::Map(dict), key) => dict.get(&text_of(key)?).cloned(),
            (Value::List(list), Value::Int(index)) => {
                let length = i64::try_from(list.items().len()).unwrap_or(i64::MAX);
                let index = if *index < 0 { index + length } else { *index };
                usize::try_from(index).ok().and_then(|index| list.items().get(index).cloned())
            }
            _ => None,
        };
        let Some(next) = next else { return Ok(None) };
        found = next;
    }
    Ok(Some(found))
}

//! Lists and mappings.

use std::sync::Arc;

use super::{Call, Filter, Test, list_of, text_of};
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
    ("product", product),
    ("zip_longest", zip_longest),
    ("extract", extract),
];

pub(super) const TESTS: &[(&str, Test)] = &[
    ("subset", |call| {
        let second = other(call)?;
        Ok(call.list()?.iter().all(|item| second.contains(item)))
    }),
    ("superset", |call| {
        let first = call.list()?;
        Ok(other(call)?.iter().all(|item| first.contains(item)))
    }),
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
    ("truthy", |call| Ok(call.value().truthy())),
    ("falsy", |call| Ok(!call.value().truthy())),
];

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

fn combine(call: &Call) -> Result<Value, String> {
    let named = |name: &str| call.named.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let recursive = named("recursive").is_some_and(Value::truthy);
    let merge = named("list_merge").map_or("replace", |value| value.as_str().unwrap_or("replace")).to_owned();
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
    let keep_nulls = call.named.iter().any(|(name, value)| name == "skip_nulls" && !value.truthy());
    fn level(items: &[Value], left: usize, keep_nulls: bool, out: &mut Vec<Value>) {
        for item in items {
            match item {
                Value::List(list) if left > 0 => level(list.items(), left - 1, keep_nulls, out),
                Value::Null if !keep_nulls => {}
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
        let pair = item
            .as_map()
            .and_then(|item| Some((item.get(&key_name)?.clone(), item.get(&value_name)?.clone())));
        let (key, value) = pair.ok_or_else(|| format!("every item needs `{key_name}` and `{value_name}`"))?;
        dict.insert(text_of(&key)?, value);
    }
    Ok(Value::Map(Arc::new(dict)))
}

fn subelements(call: &Call) -> Result<Value, String> {
    let path = call.text_arg(0, "subelements")?;
    let skip = call.flag(1, "skip_missing");
    let outer = match call.value() {
        Value::Map(dict) => dict.iter().map(|(_, value)| value.clone()).collect(),
        _ => call.list()?,
    };
    let mut out = Vec::new();
    for item in outer {
        let mut inner = Some(item.clone());
        for part in path.split('.') {
            inner = inner.as_ref().and_then(Value::as_map).and_then(|dict| dict.get(part).cloned());
        }
        match inner {
            Some(Value::List(list)) => {
                out.extend(list.items().iter().map(|sub| Value::list(vec![item.clone(), sub.clone()])));
            }
            None if skip => {}
            _ => return Err(format!("an item has no list `{path}`")),
        }
    }
    Ok(Value::list(out))
}

fn product(call: &Call) -> Result<Value, String> {
    let mut rows: Vec<Vec<Value>> = vec![Vec::new()];
    for part in &call.args {
        let part = list_of(part)?;
        if rows.len().saturating_mul(part.len()) > 1_000_000 {
            return Err("the result has more than a million items".to_owned());
        }
        rows = rows
            .into_iter()
            .flat_map(|row| part.iter().map(move |item| row.iter().cloned().chain([item.clone()]).collect()))
            .collect();
    }
    Ok(Value::list(rows.into_iter().map(Value::list).collect()))
}

fn zip_longest(call: &Call) -> Result<Value, String> {
    let fill = call
        .named
        .iter()
        .find(|(name, _)| name == "fillvalue")
        .map_or(Value::Null, |(_, value)| value.clone());
    let lists: Vec<Vec<Value>> = call.args.iter().map(list_of).collect::<Result<_, _>>()?;
    let length = lists.iter().map(Vec::len).max().unwrap_or(0);
    let row = |index: usize| {
        Value::list(
            lists.iter().map(|list| list.get(index).cloned().unwrap_or_else(|| fill.clone())).collect(),
        )
    };
    Ok(Value::list((0..length).map(row).collect()))
}

fn extract(call: &Call) -> Result<Value, String> {
    fn step(container: &Value, key: &Value) -> Result<Value, String> {
        let found = match (container, key) {
            (Value::Map(dict), key) => dict.get(&text_of(key)?).cloned(),
            (Value::List(list), Value::Int(index)) => {
                usize::try_from(*index).ok().and_then(|index| list.items().get(index).cloned())
            }
            _ => None,
        };
        found.ok_or_else(|| "there is no such key or index".to_owned())
    }
    let mut found = step(call.need(0, "container")?, call.value())?;
    match call.get(1, "morekeys") {
        Some(Value::List(keys)) => {
            for key in keys.items() {
                found = step(&found, key)?;
            }
        }
        Some(key) => found = step(&found, key)?,
        None => {}
    }
    Ok(found)
}

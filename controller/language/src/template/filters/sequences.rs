//! Filters for sequences: sorting, extremes, sums, slices, combinations.
//!
//! Owns how an `attribute` is looked up.

use std::cmp::Ordering;

use super::order::{compare, number};
use super::{Call, Filter, Finder, list_of};
use crate::template::bounds;
use crate::template::value::{OMITTED, Value};

/// Largest number of items of a result.
const MAX_ITEMS: usize = 1_000_000;
/// Largest number of items that are combined at a time.
const MAX_PICKED: usize = 100;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("sort", sort),
    ("unique", unique),
    ("dictsort", dictsort),
    ("sum", sum),
    ("reverse", |call| match call.value() {
        Value::Str(text) => Ok(text.chars().rev().collect::<String>().into()),
        _ => Ok(Value::list(call.items()?.into_iter().rev().collect())),
    }),
    ("join", join),
    ("batch", batch),
    ("slice", slice),
    ("zip", |call| zip(call, None)),
    ("zip_longest", |call| zip(call, Some(call.named("fillvalue").cloned().unwrap_or(Value::Null)))),
    ("product", product),
    ("permutations", |call| {
        let items = call.items()?;
        let size = call.size(0, "r")?.unwrap_or(items.len());
        let mut out = Vec::new();
        arrange(&items, size, true, &mut Vec::new(), &mut out)?;
        Ok(Value::list(out))
    }),
    ("combinations", |call| {
        let items = call.items()?;
        let size = call.size(0, "r")?.ok_or("the argument `r`, how many items to take, is missing")?;
        let mut out = Vec::new();
        arrange(&items, size, false, &mut Vec::new(), &mut out)?;
        Ok(Value::list(out))
    }),
];

/// Filters that may find nothing, so that `default` applies.
pub(super) const FINDERS: &[(&str, Finder)] =
    &[("min", |call| extreme(call, Ordering::Less)), ("max", |call| extreme(call, Ordering::Greater))];

/// Returns the attribute of an item at a path such as `a.b.0`.
///
/// # Errors
/// If there is none.
pub(super) fn attribute(item: &Value, path: &str) -> Result<Value, String> {
    let mut found = item.clone();
    for part in path.split('.') {
        let next = match &found {
            Value::Map(dict) => dict.get(part).cloned(),
            Value::List(list) => part.parse::<usize>().ok().and_then(|at| list.items().get(at).cloned()),
            _ => None,
        };
        found = next.ok_or_else(|| format!("an item has no `{path}`"))?;
    }
    Ok(found)
}

pub(super) fn folded(value: Value, sensitive: bool) -> Value {
    match value {
        Value::Str(text) if !sensitive => text.to_lowercase().into(),
        other => other,
    }
}

/// Returns the value by which an item is compared; `attribute` may hold several names, separated by commas.
fn key(item: &Value, path: Option<&Value>, sensitive: bool) -> Result<Value, String> {
    let one = |path: &str| attribute(item, path).map(|found| folded(found, sensitive));
    match path {
        None | Some(Value::Null) => Ok(folded(item.clone(), sensitive)),
        Some(path) => {
            let path = path.to_text();
            if !path.contains(',') {
                return one(&path);
            }
            Ok(Value::list(path.split(',').map(|path| one(path.trim())).collect::<Result<_, _>>()?))
        }
    }
}

/// Sorts stably, and returns the first error of a comparison.
pub(super) fn sorted<T>(mut items: Vec<(Value, T)>, reverse: bool) -> Result<Vec<(Value, T)>, String> {
    let mut failed = None;
    items.sort_by(|a, b| {
        // As in Python, where the keys are lists: what is equal needs no order.
        let compared = if a.0 == b.0 { Ok(Ordering::Equal) } else { compare(&a.0, &b.0) };
        let order = compared.unwrap_or_else(|error| {
            failed.get_or_insert(error);
            Ordering::Equal
        });
        if reverse { order.reverse() } else { order }
    });
    failed.map_or(Ok(items), Err)
}

fn sort(call: &Call) -> Result<Value, String> {
    let sensitive = call.flag(1, "case_sensitive");
    let path = call.get(2, "attribute");
    let keyed: Vec<_> = call
        .items()?
        .into_iter()
        .map(|item| Ok((key(&item, path, sensitive)?, item)))
        .collect::<Result<_, String>>()?;
    Ok(Value::list(sorted(keyed, call.flag(0, "reverse"))?.into_iter().map(|(_, item)| item).collect()))
}

fn unique(call: &Call) -> Result<Value, String> {
    let sensitive = call.flag(0, "case_sensitive");
    let path = call.get(1, "attribute");
    let mut seen: Vec<Value> = Vec::new();
    let mut out = Vec::new();
    for item in call.items()? {
        let key = key(&item, path, sensitive)?;
        if !seen.contains(&key) {
            seen.push(key);
            out.push(item);
        }
    }
    Ok(Value::list(out))
}

fn extreme(call: &Call, wanted: Ordering) -> Result<Option<Value>, String> {
    let sensitive = call.flag(0, "case_sensitive");
    let path = call.get(1, "attribute");
    let mut best: Option<(Value, Value)> = None;
    for item in call.items()? {
        let key = key(&item, path, sensitive)?;
        if match &best {
            Some((old, _)) => compare(&key, old)? == wanted,
            None => true,
        } {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item))
}

fn dictsort(call: &Call) -> Result<Value, String> {
    let Value::Map(dict) = call.value() else {
        return Err(format!("a mapping is needed, this is {}", call.value().kind()));
    };
    let sensitive = call.flag(0, "case_sensitive");
    let by_value = match call.get(1, "by").map(Value::to_text).as_deref() {
        None | Some("key") => false,
        Some("value") => true,
        Some(other) => return Err(format!("it sorts by `key` or by `value`, not by `{other}`")),
    };
    let keyed = dict
        .iter()
        .map(|(name, value)| {
            let by = if by_value { value.clone() } else { Value::Str(name.clone()) };
            (folded(by, sensitive), Value::list(vec![Value::Str(name.clone()), value.clone()]))
        })
        .collect();
    Ok(Value::list(sorted(keyed, call.flag(2, "reverse"))?.into_iter().map(|(_, pair)| pair).collect()))
}

fn sum(call: &Call) -> Result<Value, String> {
    let mut total = call.get(1, "start").cloned().unwrap_or(Value::Int(0));
    for item in call.items()? {
        let item = match call.get(0, "attribute") {
            None | Some(Value::Null) => item,
            Some(path) => attribute(&item, &path.to_text())?,
        };
        total = match (&total, &item) {
            (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_add(*b).ok_or("the sum is too large")?),
            (Value::List(a), Value::List(b)) => {
                Value::list(a.items().iter().chain(b.items()).cloned().collect())
            }
            (a, b) => match (number(a), number(b)) {
                (Some(a), Some(b)) => Value::Float(a + b),
                _ => return Err(format!("{} cannot be added to {}", b.kind(), a.kind())),
            },
        };
    }
    Ok(total)
}

fn join(call: &Call) -> Result<Value, String> {
    let between = call.get(0, "d").map_or_else(String::new, Value::to_text);
    bounds::product(call.items()?.len(), between.len(), call.value().weight())?;
    let texts: Vec<String> = call
        .items()?
        .iter()
        .map(|item| match call.get(1, "attribute") {
            None | Some(Value::Null) => Ok(python_text(item)),
            Some(path) => attribute(item, &path.to_text()).map(|found| python_text(&found)),
        })
        .collect::<Result<_, _>>()?;
    Ok(texts.join(&between).into())
}

/// Converts as Python's `str` does: null is `None`.
pub(super) fn python_text(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Omit => OMITTED.to_owned(),
        other => other.to_text(),
    }
}

fn batch(call: &Call) -> Result<Value, String> {
    let size = call.size(0, "linecount")?.filter(|size| *size > 0).ok_or("the size of a batch is missing")?;
    let fill = call.get(1, "fill_with").filter(|fill| !matches!(fill, Value::Null));
    let rows = call.items()?;
    let rows = rows.chunks(size).map(|row| {
        let mut row = row.to_vec();
        if let Some(fill) = fill {
            row.resize(size.min(MAX_ITEMS), fill.clone());
        }
        Value::list(row)
    });
    Ok(Value::list(rows.collect()))
}

fn slice(call: &Call) -> Result<Value, String> {
    let count =
        call.size(0, "slices")?.filter(|count| *count > 0).ok_or("the number of slices is missing")?;
    if count > MAX_ITEMS {
        return Err("that is more than a million slices".to_owned());
    }
    let fill = call.get(1, "fill_with").filter(|fill| !matches!(fill, Value::Null));
    let items = call.items()?;
    let (each, more) = (items.len() / count, items.len() % count);
    let mut rest = items.as_slice();
    let mut out = Vec::new();
    for index in 0..count {
        let (row, left) = rest.split_at(each + usize::from(index < more));
        rest = left;
        let mut row = row.to_vec();
        if let Some(fill) = fill.filter(|_| index >= more) {
            row.push(fill.clone());
        }
        out.push(Value::list(row));
    }
    Ok(Value::list(out))
}

fn zip(call: &Call, fill: Option<Value>) -> Result<Value, String> {
    let lists: Vec<Vec<Value>> = call.args.iter().map(list_of).collect::<Result<_, _>>()?;
    let lengths = lists.iter().map(Vec::len);
    let length = if fill.is_some() { lengths.max() } else { lengths.min() };
    let fill = fill.unwrap_or(Value::Null);
    let row = |index: usize| {
        let cell = |list: &Vec<Value>| list.get(index).cloned().unwrap_or_else(|| fill.clone());
        Value::list(lists.iter().map(cell).collect())
    };
    Ok(Value::list((0..length.unwrap_or(0)).map(row).collect()))
}

fn product(call: &Call) -> Result<Value, String> {
    let parts: Vec<Vec<Value>> = call.args.iter().map(list_of).collect::<Result<_, _>>()?;
    let repeat = match call.named("repeat") {
        Some(Value::Int(repeat)) => usize::try_from(*repeat).unwrap_or(0).min(64),
        _ => 1,
    };
    let mut rows: Vec<Vec<Value>> = vec![Vec::new()];
    for part in (0..repeat).flat_map(|_| &parts) {
        if rows.len().saturating_mul(part.len()) > MAX_ITEMS {
            return Err("the result has more than a million items".to_owned());
        }
        rows = rows
            .into_iter()
            .flat_map(|row| part.iter().map(move |item| row.iter().cloned().chain([item.clone()]).collect()))
            .collect();
    }
    Ok(Value::list(rows.into_iter().map(Value::list).collect()))
}

fn arrange(
    items: &[Value],
    size: usize,
    all_orders: bool,
    picked: &mut Vec<usize>,
    out: &mut Vec<Value>,
) -> Result<(), String> {
    if picked.len() == size {
        if out.len() >= MAX_ITEMS {
            return Err("the result has more than a million items".to_owned());
        }
        out.push(Value::list(picked.iter().filter_map(|at| items.get(*at).cloned()).collect()));
        return Ok(());
    }
    if size > items.len() {
        return Ok(());
    }
    if size > MAX_PICKED {
        return Err(format!("it takes at most {MAX_PICKED} items at a time"));
    }
    let first = if all_orders { 0 } else { picked.last().map_or(0, |last| last + 1) };
    for at in first..items.len() {
        if !picked.contains(&at) {
            picked.push(at);
            arrange(items, size, all_orders, picked, out)?;
            picked.pop();
        }
    }
    Ok(())
}

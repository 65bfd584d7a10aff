//! Lookups that rearrange their arguments.

use std::sync::Arc;

use super::sequence::sequence;
use super::{Failure, Found, Lookup, MAX_ITEMS, Request, rendered, truth};
use crate::template::filters::{chance, list_of};
use crate::template::value::{Dict, Value};

pub(super) const LOOKUPS: &[Lookup] = &[
    Lookup {
        name: "items",
        about: "the terms; those that are lists give their items",
        options: &[],
        run: |request| Ok(flat(&request.terms)),
    },
    Lookup {
        name: "list",
        about: "the terms as they are",
        options: &[],
        run: |request| Ok(request.terms.clone()),
    },
    Lookup { name: "dict", about: "a mapping's `{key, value}` pairs", options: &[], run: dict },
    Lookup { name: "nested", about: "every combination of an item of each list", options: &[], run: nested },
    Lookup { name: "cartesian", about: "as `nested`", options: &[], run: cartesian },
    Lookup {
        name: "together",
        about: "the first items of all lists, then the second ones; nothing where a list is shorter",
        options: &[],
        run: together,
    },
    Lookup {
        name: "sequence",
        about: "numbers as text: `start`, `end` or `count`, `stride`, `format`, or short as `0-10/2:gpu%02d`",
        options: &["start", "end", "count", "stride", "format"],
        run: sequence,
    },
    Lookup {
        name: "subelements",
        about: "each item of a list with each item of a list in it; `{'skip_missing': true}` as the third term",
        options: &[],
        run: subelements,
    },
    Lookup {
        name: "indexed_items",
        about: "as `items`, each with its number from 0",
        options: &[],
        run: |request| {
            let items = flat(&request.terms).into_iter().zip(0_i64..);
            Ok(items.map(|(item, index)| Value::list(vec![Value::Int(index), item])).collect())
        },
    },
    Lookup {
        name: "flattened",
        about: "the items of lists in lists, however deep, without those that are nothing",
        options: &[],
        run: |request| {
            let mut out = Vec::new();
            flat_deep(&request.terms, &mut out);
            Ok(out)
        },
    },
    Lookup {
        name: "random_choice",
        about: "one of the terms, chosen by the host, the play and the terms: the same in every run",
        options: &[],
        run: random_choice,
    },
];

/// Flattens one level of lists.
fn flat(terms: &[Value]) -> Vec<Value> {
    let mut out = Vec::new();
    for term in terms {
        match term.as_list() {
            Some(items) => out.extend_from_slice(items),
            None => out.push(term.clone()),
        }
    }
    out
}

fn flat_deep(terms: &[Value], out: &mut Vec<Value>) {
    for term in terms {
        match term {
            Value::List(list) => flat_deep(list.items(), out),
            Value::Null => {}
            other => out.push(other.clone()),
        }
    }
}

fn dict(request: &Request) -> Found {
    let mut pairs = Vec::new();
    for term in &request.terms {
        let Some(dict) = term.as_map() else {
            return Err(format!("a mapping is needed, this is {}", term.kind()).into());
        };
        pairs.extend(dict.iter().map(|(key, value)| {
            Value::map([("key", Value::Str(Arc::clone(key))), ("value", value.clone())])
        }));
    }
    Ok(pairs)
}

fn nested(request: &Request) -> Found {
    let mut terms = request.terms.iter();
    let first = terms.next().ok_or("at least one list is needed")?;
    let mut rows = list_of(first)?;
    if request.terms.len() == 1 {
        return rows.iter().map(|row| Ok(Value::list(flat(&list_of(row)?)))).collect();
    }
    for term in terms {
        rows = combined(&rows, &list_of(term)?)?;
    }
    // Ansible flattens every combination once more at the end.
    Ok(rows.iter().map(|row| Value::list(flat(row.as_list().unwrap_or_default()))).collect())
}

fn combined(rows: &[Value], items: &[Value]) -> Found {
    if rows.len().saturating_mul(items.len()) > MAX_ITEMS {
        return Err("there are too many combinations".into());
    }
    let mut out = Vec::with_capacity(rows.len() * items.len());
    for row in rows {
        for item in items {
            out.push(Value::list(flat(&[row.clone(), item.clone()])));
        }
    }
    Ok(out)
}

fn cartesian(request: &Request) -> Found {
    let mut terms = request.terms.iter();
    let first = list_of(terms.next().ok_or("at least one list is needed")?)?;
    let mut rows: Vec<Value> = first.into_iter().map(|item| Value::list(flat(&[item]))).collect();
    for term in terms {
        rows = combined(&rows, &list_of(term)?)?;
    }
    Ok(rows)
}

fn together(request: &Request) -> Found {
    let lists = request.terms.iter().map(list_of).collect::<Result<Vec<_>, _>>()?;
    let length = lists.iter().map(Vec::len).max().ok_or("at least one list is needed")?;
    let row = |index: usize| {
        let row: Vec<Value> =
            lists.iter().map(|list| list.get(index).cloned().unwrap_or(Value::Null)).collect();
        Value::list(flat(&row))
    };
    Ok((0..length).map(row).collect())
}

fn skipped(dict: &Dict) -> bool {
    !matches!(dict.get("skipped"), None | Some(Value::Bool(false)))
}

fn subelements(request: &Request) -> Found {
    let (whole, path, flags) = match request.terms.as_slice() {
        [whole, path] => (whole, path, None),
        [whole, path, flags] => (whole, path, Some(flags)),
        _ => return Err("two or three terms are needed: a list, a key, and `{'skip_missing': true}`".into()),
    };
    let elements: Vec<Value> = match whole {
        Value::List(list) => list.items().to_vec(),
        Value::Map(dict) if skipped(dict) => return Ok(Vec::new()),
        Value::Map(dict) => dict.iter().map(|(_, value)| value.clone()).collect(),
        other => {
            return Err(format!("the first term is a list or a mapping, this is {}", other.kind()).into());
        }
    };
    let Value::Str(path) = path else {
        return Err(format!("the second term is a key as text, this is {}", path.kind()).into());
    };
    let skip_missing = match flags {
        None => false,
        Some(Value::Map(flags)) => match flags.keys().find(|flag| *flag != "skip_missing") {
            Some(other) => return Err(format!("there is no flag `{other}`, only `skip_missing`").into()),
            None => flags.get("skip_missing").map_or(Ok(false), |flag| truth("skip_missing", flag))?,
        },
        Some(other) => {
            return Err(format!("the third term is a mapping of flags, this is {}", other.kind()).into());
        }
    };
    let keys: Vec<&str> = path.split('.').collect();
    let mut out = Vec::new();
    for element in &elements {
        let Some(dict) = element.as_map() else {
            return Err(format!("every item is a mapping, one is {}", element.kind()).into());
        };
        if skipped(dict) {
            continue;
        }
        let Some((rest, items)) = taken(dict, &keys, skip_missing)? else { continue };
        let rest = Value::Map(Arc::new(rest));
        out.extend(items.into_iter().map(|item| Value::list(vec![rest.clone(), item])));
    }
    Ok(out)
}

/// Returns the mapping without the list at the keys, and that list.
fn taken(dict: &Dict, keys: &[&str], skip: bool) -> Result<Option<(Dict, Vec<Value>)>, Failure> {
    let Some((key, deeper)) = keys.split_first() else { return Ok(None) };
    let Some(value) = dict.get(key) else {
        return if skip {
            Ok(None)
        } else {
            Err(format!("an item has no `{key}`; write `skip_missing`").into())
        };
    };
    let mut rest = dict.clone();
    if deeper.is_empty() {
        let Value::List(list) = value else {
            return Err(format!("`{key}` of every item is a list, one is {}", value.kind()).into());
        };
        let items = list.items().to_vec();
        rest.remove(key);
        return Ok(Some((rest, items)));
    }
    match value {
        Value::Map(inner) => {
            let Some((inner, items)) = taken(inner, deeper, skip)? else { return Ok(None) };
            rest.insert(*key, Value::Map(Arc::new(inner)));
            Ok(Some((rest, items)))
        }
        _ if skip => Ok(None),
        other => Err(format!("`{key}` of every item is a mapping, one is {}", other.kind()).into()),
    }
}

/// Chooses by a seed, because a run that is resumed after a crash must choose the same.
fn random_choice(request: &Request) -> Found {
    let mut seed = String::new();
    for name in ["inventory_hostname", "ansible_play_name"] {
        if let Some(value) = request.scope.get(name) {
            seed.push_str(&rendered(value, &request.scope)?.to_text());
        }
        seed.push('\0');
    }
    seed.push_str(&Value::list(request.terms.clone()).python_repr());
    let chosen = chance::place(&seed, request.terms.len()).and_then(|place| request.terms.get(place));
    Ok(chosen.cloned().into_iter().collect())
}

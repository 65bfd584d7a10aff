//! Keys of nested mappings, written with dots: `log-opts.max-size`.

use serde_json::{Map, Value};

/// Returns the keys on the way to an entry; `None` if there is none. A key may hold dots itself: the longest one that is
/// there counts.
pub fn find(map: &Map<String, Value>, dotted: &str) -> Option<Vec<String>> {
    if map.contains_key(dotted) {
        return Some(vec![dotted.to_owned()]);
    }
    dotted.rmatch_indices('.').find_map(|(at, _)| {
        let (key, rest) = (dotted.get(..at)?, dotted.get(at + 1..)?);
        let mut keys = vec![key.to_owned()];
        keys.extend(find(map.get(key)?.as_object()?, rest)?);
        Some(keys)
    })
}

/// Returns the entry at the end of these keys.
pub fn get<'a>(map: &'a Map<String, Value>, keys: &[String]) -> Option<&'a Value> {
    let (last, way) = keys.split_last()?;
    let mut map = map;
    for key in way {
        map = map.get(key)?.as_object()?;
    }
    map.get(last)
}

/// Removes the entry at the end of these keys; the others keep their order.
pub fn remove(map: &mut Map<String, Value>, keys: &[String]) -> Option<Value> {
    let (last, way) = keys.split_last()?;
    let mut map = map;
    for key in way {
        map = map.get_mut(key)?.as_object_mut()?;
    }
    map.shift_remove(last)
}

/// Merges mappings into each other; any other value takes the place of the old one.
pub fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (Some(old), new) => new.clone_into(old),
            (None, new) => {
                into.insert(key.clone(), new.clone());
            }
        }
    }
}

/// Takes out of `old` what `new` declares too; mappings that are empty then go with it.
pub fn give_way(old: &mut Map<String, Value>, new: &Map<String, Value>) {
    for (key, value) in new {
        let is_taken = match (old.get_mut(key), value) {
            (Some(Value::Object(mine)), Value::Object(theirs)) => {
                give_way(mine, theirs);
                mine.is_empty()
            }
            (found, _) => found.is_some(),
        };
        if is_taken {
            old.shift_remove(key);
        }
    }
}

/// Returns the way to the first entry that is null, or to the first mapping without entries.
pub fn hollow(map: &Map<String, Value>) -> Option<String> {
    map.iter().find_map(|(key, value)| match value {
        Value::Null => Some(key.clone()),
        Value::Object(inner) if inner.is_empty() => Some(key.clone()),
        Value::Object(inner) => hollow(inner).map(|rest| format!("{key}.{rest}")),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn keys_with_dots_of_their_own_are_found() {
        let all = map(json!({"a": {"b.c": {"d": 1}}, "x.y": 2, "x": {"y": 3}}));
        assert_eq!(find(&all, "a.b.c.d").unwrap(), ["a", "b.c", "d"]);
        assert_eq!(find(&all, "x.y").unwrap(), ["x.y"]);
        assert_eq!(find(&all, "a.b"), None);
        assert_eq!(find(&all, "x.y.z"), None);
        assert_eq!(get(&all, &find(&all, "a.b.c.d").unwrap()), Some(&json!(1)));
    }

    #[test]
    fn merging_keeps_order_and_what_it_does_not_name() {
        let mut all = map(json!({"z": 1, "a": {"q": [1], "b": 2}, "m": 3}));
        merge(&mut all, &map(json!({"a": {"q": [2]}, "new": true})));
        assert_eq!(Value::Object(all.clone()).to_string(), r#"{"z":1,"a":{"q":[2],"b":2},"m":3,"new":true}"#);
        remove(&mut all, &["z".to_owned()]);
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a", "m", "new"]);
    }

    #[test]
    fn a_newer_declaration_takes_what_it_names() {
        let mut old = map(json!({"a": {"b": 1, "c": 2}, "d": {"e": 1}, "f": [1]}));
        give_way(&mut old, &map(json!({"a": {"b": 3}, "d": {"e": 2}, "f": [2], "g": 1})));
        assert_eq!(Value::Object(old), json!({"a": {"c": 2}}));
        assert_eq!(hollow(&map(json!({"a": {"b": null}}))), Some("a.b".to_owned()));
        assert_eq!(hollow(&map(json!({"a": {"b": {}}}))), Some("a.b".to_owned()));
    }
}

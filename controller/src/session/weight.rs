//! Estimates the memory that a JSON text takes once parsed.
//!
//! Pure. One pass over the bytes builds nothing: a text of many tiny values takes sixty times its length once parsed,
//! and its sender is not trusted.

use serde_json::Value;

/// Memory for any value.
const VALUE: u64 = size_of::<Value>() as u64;
/// Memory for a text beside its bytes: the allocator's overhead.
const TEXT: u64 = 16;
/// Unused capacity of a list or mapping, which begins with room for four.
const SPARE: u64 = 3 * VALUE;
/// Memory for an entry of a mapping beside key and value: the key's string, its hash and its index slot.
const ENTRY: u64 = 48;

/// Returns the memory that the values of a text take, in bytes. Invalid JSON has a weight too.
pub(crate) fn weight(json: &[u8]) -> u64 {
    let mut sum = 0u64;
    let mut rest = json.iter();
    let mut in_word = false;
    while let Some(byte) = rest.next() {
        let begins_word =
            !matches!(byte, b'"' | b'[' | b']' | b'{' | b'}' | b',' | b':') && !byte.is_ascii_whitespace();
        if begins_word && !in_word {
            sum += VALUE;
        }
        in_word = begins_word;
        match byte {
            b'"' => {
                sum += VALUE + TEXT;
                while let Some(byte) = rest.next() {
                    match byte {
                        b'"' => break,
                        // A quote behind a backslash does not end the string.
                        b'\\' => sum += u64::from(rest.next().is_some()),
                        _ => sum += 1,
                    }
                }
            }
            b'[' | b'{' => sum += VALUE + TEXT + SPARE,
            b':' => sum += ENTRY,
            _ => {}
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Returns the least memory that a tree takes: its values, and the bytes of its texts.
    fn taken(value: &Value) -> u64 {
        let own = size_of::<Value>() as u64;
        own + match value {
            Value::String(text) => text.len() as u64,
            // No more than three: the allocator maps unused memory only when it is written.
            Value::Array(items) => {
                let spare = items.capacity().saturating_sub(items.len()).min(3) as u64;
                items.iter().map(taken).sum::<u64>() + spare * own
            }
            Value::Object(entries) => entries
                .iter()
                .map(|(key, value)| (size_of::<String>() + key.len()) as u64 + taken(value))
                .sum(),
            _ => 0,
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f32>().prop_map(|number| json!(number)),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..8)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn tiny_values_weigh_what_they_take() {
        let count = 1000u64;
        let zeros = format!("[0{}]", ",0".repeat(count as usize - 1));
        assert_eq!(weight(zeros.as_bytes()), count * VALUE + VALUE + TEXT + SPARE);
        let lists = format!("[[]{}]", ",[]".repeat(count as usize - 1));
        assert_eq!(weight(lists.as_bytes()), (count + 1) * (VALUE + TEXT + SPARE));
        let long = format!("\"{}\"", "x".repeat(5000));
        assert_eq!(weight(long.as_bytes()), 5000 + VALUE + TEXT);
        assert_eq!(weight(br#""a\"b""#), 3 + VALUE + TEXT);
        assert_eq!(weight(b""), 0);
    }

    proptest! {
        #[test]
        fn no_tree_takes_more_than_its_weight(value in json(), pretty: bool) {
            let text = if pretty { serde_json::to_vec_pretty(&value) } else { serde_json::to_vec(&value) }.unwrap();
            prop_assert!(weight(&text) >= taken(&value), "{} < {}: {value}", weight(&text), taken(&value));
        }

        #[test]
        fn any_bytes_have_a_weight(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(weight(&bytes) <= bytes.len() as u64 * (VALUE + TEXT + SPARE));
        }
    }
}

//! How much memory a JSON text takes once it is a tree.
//!
//! Pure. One pass over the bytes, nothing is built: a text of many tiny values takes sixty times its length, and whoever
//! sends it need not be trusted to be small.

use serde_json::Value;

/// What any value takes where it stands.
const VALUE: u64 = size_of::<Value>() as u64;
/// What a text takes beside its bytes: the allocator's share.
const TEXT: u64 = 16;
/// What a list or mapping may have room for and does not use: it begins with four.
const SPARE: u64 = 3 * VALUE;
/// What an entry of a mapping takes beside key and value: its key's string, its hash and its place in the index.
const ENTRY: u64 = 48;

/// The memory that the text's values take, in bytes; a text that is no JSON weighs something as well.
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
                        // Why the next one is skipped: a quote behind a backslash ends nothing.
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

    /// What a tree takes at least: its values where they stand, and the bytes of its texts.
    fn taken(value: &Value) -> u64 {
        let own = size_of::<Value>() as u64;
        own + match value {
            Value::String(text) => text.len() as u64,
            // Why not of more: the allocator gives memory that nobody writes only when it is written.
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

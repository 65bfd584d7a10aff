//! Scalars as people and templates write them: a number may be text, a flag may be `yes`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// What is wanted where any number will do.
pub(crate) const NUMBER: &str = "a number";
/// What is wanted where a number must be whole, and not negative.
pub(crate) const WHOLE_NUMBER: &str = "a whole number from 0";

struct NumberVisitor;

impl de::Visitor<'_> for NumberVisitor {
    type Value = f64;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(NUMBER)
    }
    fn visit_u64<E: de::Error>(self, v: u64) -> Result<f64, E> {
        Ok(v as f64)
    }
    fn visit_i64<E: de::Error>(self, v: i64) -> Result<f64, E> {
        Ok(v as f64)
    }
    fn visit_f64<E: de::Error>(self, v: f64) -> Result<f64, E> {
        Ok(v)
    }
    fn visit_str<E: de::Error>(self, v: &str) -> Result<f64, E> {
        v.trim().parse().map_err(|_| E::invalid_value(de::Unexpected::Str(v), &self))
    }
}

/// Reads an unsigned integer, which may be text.
///
/// # Errors
/// Anything but an integer from 0 to 4,294,967,295.
pub fn u32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = deserializer.deserialize_any(NumberVisitor)?;
    if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) {
        return Ok(number as u32);
    }
    Err(de::Error::invalid_value(de::Unexpected::Float(number), &WHOLE_NUMBER))
}

/// Reads an unsigned integer that may be left out or null.
///
/// # Errors
/// As [`u32`].
pub fn optional_u32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    struct Wrapped(#[serde(deserialize_with = "u32")] u32);
    Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
}

struct FlagVisitor;

impl de::Visitor<'_> for FlagVisitor {
    type Value = bool;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("yes or no")
    }
    fn visit_bool<E: de::Error>(self, v: bool) -> Result<bool, E> {
        Ok(v)
    }
    fn visit_u64<E: de::Error>(self, v: u64) -> Result<bool, E> {
        match v {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(E::invalid_value(de::Unexpected::Unsigned(v), &self)),
        }
    }
    fn visit_str<E: de::Error>(self, v: &str) -> Result<bool, E> {
        match v.trim().to_ascii_lowercase().as_str() {
            "yes" | "true" | "on" | "1" | "y" | "t" => Ok(true),
            "no" | "false" | "off" | "0" | "n" | "f" => Ok(false),
            _ => Err(E::invalid_value(de::Unexpected::Str(v), &self)),
        }
    }
}

/// Reads a flag as Ansible does: `true`, `yes`, `on`, `1` and their opposites.
///
/// # Errors
/// Anything else.
pub fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    deserializer.deserialize_any(FlagVisitor)
}

/// Reads a flag that may be left out or null.
///
/// # Errors
/// As [`flag`].
pub fn optional_flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    #[derive(Deserialize)]
    struct Wrapped(#[serde(deserialize_with = "flag")] bool);
    Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
}

struct TextVisitor;

impl de::Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("text or a number")
    }
    fn visit_str<E: de::Error>(self, v: &str) -> Result<String, E> {
        Ok(v.to_owned())
    }
    fn visit_bool<E: de::Error>(self, v: bool) -> Result<String, E> {
        Ok(if v { "1" } else { "0" }.to_owned())
    }
    fn visit_u64<E: de::Error>(self, v: u64) -> Result<String, E> {
        Ok(v.to_string())
    }
    fn visit_i64<E: de::Error>(self, v: i64) -> Result<String, E> {
        Ok(v.to_string())
    }
    fn visit_f64<E: de::Error>(self, v: f64) -> Result<String, E> {
        Ok(v.to_string())
    }
}

/// Reads text that may be written as a bare number, such as the value of a sysctl.
///
/// # Errors
/// Lists and mappings.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(TextVisitor)
}

/// Reads text that may be left out or null.
///
/// # Errors
/// As [`text`].
pub fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct Wrapped(#[serde(deserialize_with = "text")] String);
    Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
}

/// Reads texts by name, each of which may be written as a bare number.
///
/// # Errors
/// As [`text`].
pub fn texts_by_name<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(Deserialize)]
    struct Wrapped(#[serde(deserialize_with = "text")] String);
    let texts = BTreeMap::<String, Wrapped>::deserialize(deserializer)?;
    Ok(texts.into_iter().map(|(name, wrapped)| (name, wrapped.0)).collect())
}

/// Reads text that may be null, which is the same as empty.
///
/// # Errors
/// As [`text`].
pub fn text_or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(optional_text(deserializer)?.unwrap_or_default())
}

/// Reads names in a list, or in one text separated by commas, as Ansible does.
///
/// # Errors
/// Mappings.
pub fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Wrapped {
        #[serde(deserialize_with = "text")]
        name: String,
    }
    let many: Vec<Wrapped> = one_or_many(deserializer)?;
    let split = many.iter().flat_map(|one| one.name.split(','));
    Ok(split.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect())
}

/// Returns a boolean as Ansible's Python writes it.
pub(crate) const fn python_bool(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}

/// Returns a list of one scalar.
fn of_one<'de, T, S, E>(scalar: S) -> Result<Vec<T>, E>
where
    T: Deserialize<'de>,
    S: de::IntoDeserializer<'de, E>,
    E: de::Error,
{
    T::deserialize(scalar.into_deserializer()).map(|one| vec![one])
}

struct OneOrMany<T>(std::marker::PhantomData<T>);

impl<'de, T: Deserialize<'de>> de::Visitor<'de> for OneOrMany<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("one value or a list")
    }
    fn visit_str<E: de::Error>(self, v: &str) -> Result<Vec<T>, E> {
        T::deserialize(de::value::StrDeserializer::new(v)).map(|one| vec![one])
    }
    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Vec<T>, E> {
        of_one(v).or_else(|_: E| self.visit_str(&v.to_string()))
    }
    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Vec<T>, E> {
        of_one(v).or_else(|_: E| self.visit_str(&v.to_string()))
    }
    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Vec<T>, E> {
        of_one(v).or_else(|_: E| self.visit_str(python_bool(v)))
    }
    fn visit_unit<E: de::Error>(self) -> Result<Vec<T>, E> {
        Ok(Vec::new())
    }
    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = seq.next_element()? {
            all.push(one);
        }
        Ok(all)
    }
}

/// Reads one value or a list of values.
///
/// # Errors
/// As the value's type.
pub fn one_or_many<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    d.deserialize_any(OneOrMany(std::marker::PhantomData))
}

/// Reads words in a list, each unchanged, or in one text separated by commas, as Ansible does.
///
/// # Errors
/// As a word's type.
pub fn split_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let wrong = |found, wanted: &str| Err(de::Error::invalid_type(found, &wanted));
    let text = |value| match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(flag) => Ok(python_bool(flag).to_owned()),
        Value::Null => wrong(de::Unexpected::Unit, "a string"),
        Value::Array(_) => wrong(de::Unexpected::Seq, "a string"),
        Value::Object(_) => wrong(de::Unexpected::Map, "a string"),
    };
    match Value::deserialize(deserializer)? {
        Value::String(text) => Ok(text.split(',').map(str::to_owned).collect()),
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => items.into_iter().map(text).collect(),
        Value::Object(_) => wrong(de::Unexpected::Map, "one value or a list").map(|text| vec![text]),
        one => text(one).map(|text| vec![text]),
    }
}

/// Reads a list of words, or one text separated by commas, as Ansible does.
///
/// # Errors
/// Mappings, and lists of anything but words and numbers.
pub fn comma_list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Word(#[serde(deserialize_with = "text")] String);
    let words: Vec<Word> = one_or_many(deserializer)?;
    let parts = words.iter().flat_map(|word| word.0.split(',')).map(str::trim);
    Ok(parts.filter(|part| !part.is_empty()).map(str::to_owned).collect())
}

/// Reads a list of words that may be left out or null.
///
/// # Errors
/// As [`comma_list`].
pub fn optional_comma_list<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    struct Wrapped(#[serde(deserialize_with = "comma_list")] Vec<String>);
    Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
}

/// Reads an integer, which may be text, left out or null; a fraction is dropped.
///
/// # Errors
/// Anything that is not a number.
pub fn optional_i64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    struct Whole(i64);
    impl<'de> Deserialize<'de> for Whole {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let number = deserializer.deserialize_any(NumberVisitor)?;
            if number.is_finite() && number.abs() < 9.0e15 {
                return Ok(Self(number.floor() as i64));
            }
            Err(de::Error::invalid_value(de::Unexpected::Float(number), &NUMBER))
        }
    }
    Ok(Option::<Whole>::deserialize(deserializer)?.map(|whole| whole.0))
}

/// Reads seconds, which may be given as `90`, `90s`, `20m`, `2h` or `1d`.
///
/// # Errors
/// Other units and negative numbers.
pub fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = deserializer.deserialize_any(TextVisitor)?;
    parse_seconds(&text).ok_or_else(|| {
        de::Error::invalid_value(de::Unexpected::Str(&text), &"a duration such as 90s, 20m or 2h")
    })
}

/// Reads seconds that may be left out or null.
///
/// # Errors
/// As [`seconds`].
pub fn optional_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Wrapped(#[serde(deserialize_with = "seconds")] u64);
    Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
}

/// Reads bytes, which may be given as `500MiB`, `10 GiB` or `2G`; units are powers of 1024.
///
/// # Errors
/// Other units, negative numbers, and numbers that do not fit.
pub fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = deserializer.deserialize_any(TextVisitor)?;
    parse_bytes(&text).ok_or_else(|| {
        de::Error::invalid_value(de::Unexpected::Str(&text), &"a size such as 4096, 500MiB or 10GiB")
    })
}

/// Parses `4096`, `500MiB`, `10 GiB` or `2G` as bytes.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Upper limit of durations in seconds, a hundred years: longer ones become this, which can be added to any time.
pub const LONGEST_S: u64 = 100 * 365 * 86_400;

/// Parses `90`, `90s`, `20m`, `2h` or `1d` as seconds, at most [`LONGEST_S`].
pub fn parse_seconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let factor = match unit.trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    Some(number.parse::<u64>().ok()?.saturating_mul(factor).min(LONGEST_S))
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_bytes() {
        use super::parse_bytes;
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1KiB", 1024),
            (" 500 MiB ", 500 << 20),
            ("2G", 2 << 30),
            ("2gb", 2 << 30),
            ("1TiB", 1 << 40),
            ("7B", 7),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "-1", "1.5G", "G", "1 PiB", "1ib2", "99999999999999999999", "99999999999TiB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    use super::*;

    #[test]
    fn no_duration_is_too_long_to_be_added_to_a_moment() {
        for (text, seconds) in [
            ("90", 90),
            (" 2h ", 7200),
            ("1d", 86_400),
            ("18446744073709551615", LONGEST_S),
            ("213503982334602d", LONGEST_S),
        ] {
            assert_eq!(parse_seconds(text), Some(seconds), "{text}");
        }
        assert_eq!((parse_seconds("1w"), parse_seconds("-1")), (None, None));
        let longest = std::time::Duration::from_secs(LONGEST_S);
        assert!(std::time::Instant::now().checked_add(longest * 3).is_some());
    }
}

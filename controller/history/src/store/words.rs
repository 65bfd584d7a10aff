//! How values are written in columns.

use gpufleet_compliance::{Action, Verdict};
use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use crate::error::Fault;

/// Hexadecimal digits of a digest that are kept.
const DIGITS: usize = 32;

/// Where a number is not known.
pub(super) const NONE: i64 = -1;

pub(super) fn verdict(word: &str) -> Result<Verdict, Fault> {
    Verdict::of_word(word).ok_or_else(|| Fault::damaged(format!("`{word}` is no verdict")))
}

pub(super) fn action(word: &str) -> Result<Action, Fault> {
    Action::of_word(word).ok_or_else(|| Fault::damaged(format!("`{word}` is no action")))
}

/// Microseconds since 1970.
pub(super) fn micros(at: Timestamp) -> i64 {
    at.as_microsecond()
}

pub(super) fn timestamp(micros: i64) -> Result<Timestamp, Fault> {
    Timestamp::from_microsecond(micros).map_err(|_| Fault::damaged(format!("{micros} is no time")))
}

pub(super) fn score(number: i64) -> Option<u8> {
    u8::try_from(number).ok()
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|error| Fault::damaged(error.to_string()))
}

pub(super) fn of_json<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::damaged(error.to_string()))
}

/// A digest that tells texts apart.
pub(super) fn digest(text: &str) -> String {
    let mut digits: String =
        Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(DIGITS);
    digits
}

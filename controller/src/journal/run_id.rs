//! Identities of runs: sortable by time, short enough to read out.

use serde::{Deserialize, Serialize};

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// 26 characters of Crockford's base 32 over a version 7 UUID: the form that people know as ULID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(String);

impl RunId {
    pub fn generate() -> Self {
        Self::from_bits(uuid::Uuid::now_v7().as_u128())
    }

    fn from_bits(bits: u128) -> Self {
        let digit = |place: u32| char::from(ALPHABET[(bits >> (5 * place)) as usize & 31]);
        Self((0..26).rev().map(digit).collect())
    }

    /// Reads a full run id; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.to_ascii_uppercase();
        (text.len() == 26 && text.bytes().all(|b| ALPHABET.contains(&b))).then_some(Self(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_read_back() {
        assert_eq!(RunId::from_bits(0).as_str(), "0".repeat(26));
        assert_eq!(RunId::from_bits(u128::MAX).as_str(), "7ZZZZZZZZZZZZZZZZZZZZZZZZZ");
        let (first, second) = (RunId::generate(), RunId::generate());
        assert!(first < second);
        assert_eq!(RunId::parse(&first.as_str().to_lowercase()), Some(first));
        assert_eq!(RunId::parse("../../etc/passwd"), None);
    }
}

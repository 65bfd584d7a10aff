//! Reads and writes files of the tool `age` (https://c2sp.org/age, version 1).
//!
//! Owns the format: keys as text, stanzas for X25519 recipients and for a passphrase, the payload, the armour. Must
//! not know where files and keys come from. Invariants: any bytes give a value or an error, never a panic; no content
//! is returned that its authentication does not cover; no error and no `Debug` shows a key.

mod armor;
mod envelope;
mod keys;
mod payload;

pub use armor::armored;
pub use envelope::{AgeEnvelope, seal_to};
pub use keys::{Identity, KeyError, Recipient};

/// First line of every file.
const VERSION: &[u8] = b"age-encryption.org/v1\n";
/// First line of every armoured file.
const BEGIN: &str = "-----BEGIN AGE ENCRYPTED FILE-----";
const END: &str = "-----END AGE ENCRYPTED FILE-----";

/// Whether a text is an armoured age file.
pub fn is_armored(text: &str) -> bool {
    text.starts_with(BEGIN)
}

/// Whether bytes are an age file without armour.
pub fn is_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(VERSION)
}

#[cfg(test)]
mod tests;

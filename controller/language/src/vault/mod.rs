//! Secrets in the formats of ansible-vault and age: reading, writing, passwords, keys.
//!
//! Owns the formats (ansible-vault's AES-256-CTR with HMAC-SHA256 and keys by PBKDF2 in `envelope`, that of age in
//! `age`), which password or identity opens what, and the marks of decrypted values. Must not know where texts and
//! passwords come from. Invariants: any text gives a value or an error, never a panic; no content is returned that is
//! not authenticated; no error, `Debug` or mark shows a password, a key or a value.

pub mod age;
mod envelope;
mod keyring;
mod mark;
mod reading;

pub use envelope::{Envelope, VaultError, seal};
pub use keyring::{DEFAULT_ID, Key, Keyring};
pub use mark::{LOCKED, SECRET, holds_locked, is_secret, masked, sealed, unsealed};
pub use reading::{decode, encrypted_text, is_encrypted};

#[cfg(test)]
mod tests;

//! Secrets as ansible-vault and age keep them: reading, writing, passwords, keys.
//!
//! Owns the formats (ansible-vault's AES-256-CTR with HMAC-SHA256 and keys by PBKDF2 in `envelope`, that of age in `age`),
//! which password or identity opens what, and the marks of values that come from it. Must not know where texts and passwords come from. Invariants: text of any kind gives a value or
//! an error, never a panic; what is not proven whole is never handed out; no error, `Debug` or mark shows a
//! password, a key or a value.

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

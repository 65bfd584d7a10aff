//! Secrets as ansible-vault keeps them: reading, writing, passwords.
//!
//! Owns the format (AES-256-CTR with HMAC-SHA256, keys by PBKDF2), which password opens what, and the marks of values
//! that come from it. Must not know where texts and passwords come from. Invariants: text of any kind gives a value or
//! an error, never a panic; what is not proven whole by its HMAC is never decrypted; no error, `Debug` or mark shows a
//! password or a value.

mod envelope;
mod keyring;
mod mark;

pub use envelope::{Envelope, VaultError, is_encrypted, seal};
pub use keyring::{DEFAULT_ID, Key, Keyring};
pub use mark::{LOCKED, SECRET, holds_locked, is_secret, masked, sealed, unsealed};

#[cfg(test)]
mod tests;

//! What is encrypted, told by how it begins.

use std::borrow::Cow;
use std::sync::Arc;

use super::age;
use crate::diagnostic::{Diagnostics, SourceFile};
use crate::yaml;

/// Whether a text is encrypted as a whole.
pub fn is_encrypted(text: &str) -> bool {
    text.starts_with("$ANSIBLE_VAULT;") || age::is_armored(text)
}

/// The text of an encrypted file, a file of age in its armour; none where the file is not encrypted.
pub fn encrypted_text(bytes: &[u8]) -> Option<Cow<'_, str>> {
    if age::is_binary(bytes) {
        return Some(Cow::Owned(age::armored(bytes)));
    }
    std::str::from_utf8(bytes).ok().filter(|text| is_encrypted(text)).map(Cow::Borrowed)
}

/// Turns the bytes of a file that may be encrypted into a named text.
///
/// # Errors
/// What is neither encrypted nor UTF-8.
pub fn decode(file: &str, bytes: &[u8]) -> Result<Arc<SourceFile>, Diagnostics> {
    match encrypted_text(bytes) {
        Some(text) => Ok(SourceFile::new(file, text)),
        None => yaml::decode(file, bytes),
    }
}

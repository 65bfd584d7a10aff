//! Recognises encrypted files by how they begin.

use std::borrow::Cow;
use std::sync::Arc;

use super::age;
use crate::diagnostic::{Diagnostics, SourceFile};
use crate::yaml;

/// Whether a text is encrypted as a whole.
pub fn is_encrypted(text: &str) -> bool {
    text.starts_with("$ANSIBLE_VAULT;") || age::is_armored(text)
}

/// Returns the text of an encrypted file, an age file in its armour; `None` if the file is not encrypted.
pub fn encrypted_text(bytes: &[u8]) -> Option<Cow<'_, str>> {
    if age::is_binary(bytes) {
        return Some(Cow::Owned(age::armored(bytes)));
    }
    std::str::from_utf8(bytes).ok().filter(|text| is_encrypted(text)).map(Cow::Borrowed)
}

/// Converts the bytes of a file that may be encrypted to a named text.
///
/// # Errors
/// If the bytes are neither encrypted nor UTF-8.
pub fn decode(file: &str, bytes: &[u8]) -> Result<Arc<SourceFile>, Diagnostics> {
    match encrypted_text(bytes) {
        Some(text) => Ok(SourceFile::new(file, text)),
        None => yaml::decode(file, bytes),
    }
}

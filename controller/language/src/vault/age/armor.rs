//! The armour of age: an encrypted file as text.

use base64ct::{Base64, Encoding as _};

use super::super::VaultError;
use super::{BEGIN, END};

const LINE: usize = 64;

/// Returns an age file as armoured text.
pub fn armored(bytes: &[u8]) -> String {
    let digits = Base64::encode_string(bytes);
    let mut text = format!("{BEGIN}\n");
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % LINE == 0 {
            text.push('\n');
        }
        text.push(digit);
    }
    text.push_str(&format!("\n{END}\n"));
    text
}

/// Decodes an armoured file; blanks around its lines are ignored.
pub(super) fn bare(text: &str) -> Result<Vec<u8>, VaultError> {
    let mut lines = text.trim().lines().map(str::trim);
    if lines.next() != Some(BEGIN) {
        return Err(VaultError::NotEncrypted);
    }
    let mut lines: Vec<&str> = lines.collect();
    if lines.pop() != Some(END) {
        return Err(VaultError::Damaged("its last line is missing"));
    }
    let whole = |line: &&str| line.len() == LINE;
    let last = lines.last().is_none_or(|line| (1..=LINE).contains(&line.len()));
    if !last || !lines.iter().rev().skip(1).all(whole) {
        return Err(VaultError::Damaged("its lines have a wrong length"));
    }
    Base64::decode_vec(&lines.concat()).map_err(|_| VaultError::Damaged("it is not base64"))
}

//! The payload behind the header: chunks that are encrypted one by one, in the construction STREAM.

use chacha20poly1305::aead::{Aead as _, KeyInit as _};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::super::VaultError;

const CHUNK: usize = 64 * 1024;
const TAG: usize = 16;
pub(super) const NONCE: usize = 16;

/// Derives a key of 32 bytes from another key.
pub(super) fn derived(from: &[u8], salt: &[u8], label: &str) -> Zeroizing<[u8; 32]> {
    let mut key = Zeroizing::new([0; 32]);
    // Cannot fail: HKDF-SHA256 gives up to 8,160 bytes.
    let _ = Hkdf::<Sha256>::new(Some(salt), from).expand(label.as_bytes(), &mut *key);
    key
}

pub(super) fn cipher(key: &[u8; 32]) -> ChaCha20Poly1305 {
    ChaCha20Poly1305::new(key.into())
}

/// Returns the nonce of a chunk: an 11-byte counter, and a byte that is 1 for the last chunk.
fn nonce(count: u64, last: bool) -> Nonce {
    let mut bytes = [0; 12];
    let digits = count.to_be_bytes();
    bytes.iter_mut().skip(3).zip(digits).for_each(|(to, digit)| *to = digit);
    if let Some(flag) = bytes.last_mut() {
        *flag = u8::from(last);
    }
    bytes.into()
}

pub(super) fn seal(plain: &[u8], file_key: &[u8], salt: &[u8; NONCE]) -> Result<Vec<u8>, VaultError> {
    let cipher = cipher(&derived(file_key, salt, "payload"));
    let mut out = salt.to_vec();
    let chunks: Vec<&[u8]> = if plain.is_empty() { vec![plain] } else { plain.chunks(CHUNK).collect() };
    for (count, chunk) in (0_u64..).zip(&chunks) {
        let last = count + 1 == chunks.len() as u64;
        let sealed = cipher.encrypt(&nonce(count, last), *chunk);
        out.extend(sealed.map_err(|_| VaultError::Damaged("it is too long"))?);
    }
    Ok(out)
}

pub(super) fn open(payload: &[u8], file_key: &[u8]) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let (salt, body) = payload.split_at_checked(NONCE).ok_or(VaultError::Damaged("its end is missing"))?;
    let cipher = cipher(&derived(file_key, salt, "payload"));
    let mut plain = Zeroizing::new(Vec::with_capacity(body.len()));
    let chunks: Vec<&[u8]> = body.chunks(CHUNK + TAG).collect();
    if chunks.is_empty() {
        return Err(VaultError::Damaged("its end is missing"));
    }
    for (count, chunk) in (0_u64..).zip(&chunks) {
        let last = count + 1 == chunks.len() as u64;
        let opened = cipher.decrypt(&nonce(count, last), *chunk).map(Zeroizing::new);
        let opened =
            opened.map_err(|_| VaultError::Damaged("its content was changed, or its end is missing"))?;
        if opened.is_empty() && count > 0 {
            return Err(VaultError::Damaged("its last part is empty"));
        }
        plain.extend_from_slice(&opened);
    }
    Ok(plain)
}

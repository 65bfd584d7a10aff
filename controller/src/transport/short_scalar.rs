//! P-256 keys whose secret number begins with a zero byte.
//!
//! OpenSSH writes the number without leading zeros, so one key in 256 has 31 bytes or fewer. `ssh-key` 0.7.0-rc.11
//! refuses such a key ("length invalid": `MIN_SIZE` in its `private/ecdsa.rs`); this reads it.

use base64ct::{Base64, Encoding};
use ssh_key::{
    Cipher, Kdf, PrivateKey,
    encoding::{Decode, Reader},
    private::{EcdsaKeypair, EcdsaPrivateKey, KeypairData},
    public::{EcdsaPublicKey, KeyData},
};
use zeroize::Zeroizing;

/// Reads a key file in OpenSSH's format; `None` if it holds anything but a P-256 key that the passphrase opens.
///
/// Format: OpenSSH `PROTOCOL.key`.
pub(super) fn decode(text: &str, passphrase: Option<&str>) -> Option<PrivateKey> {
    let body: Zeroizing<String> =
        Zeroizing::new(text.lines().map(str::trim).filter(|line| !line.starts_with("-----")).collect());
    let bytes = Zeroizing::new(Base64::decode_vec(&body).ok()?);
    let reader = &mut bytes.strip_prefix(b"openssh-key-v1\0")?;
    let cipher = Cipher::decode(reader).ok()?;
    let kdf = Kdf::decode(reader).ok()?;
    if u32::decode(reader).ok()? != 1 {
        return None;
    }
    let KeyData::Ecdsa(EcdsaPublicKey::NistP256(public)) = reader.read_prefixed(KeyData::decode).ok()? else {
        return None;
    };
    let mut secret = Zeroizing::new(Vec::<u8>::decode(reader).ok()?);
    if cipher.is_some() {
        let (key, iv) = kdf.derive_key_and_iv(cipher, passphrase?).ok()?;
        let tag = if cipher.has_tag() { Some((*reader).try_into().ok()?) } else { None };
        cipher.decrypt(&key, &iv, &mut secret, tag).ok()?;
    }
    let (private, comment) = private(&secret)?;
    PrivateKey::new(KeypairData::Ecdsa(EcdsaKeypair::NistP256 { public, private }), comment).ok()
}

/// Returns the secret number, filled up to its size, and the key's comment.
fn private(mut secret: &[u8]) -> Option<(EcdsaPrivateKey<32>, String)> {
    let reader = &mut secret;
    // Written twice: the two differ if the passphrase is wrong.
    if u32::decode(reader).ok()? != u32::decode(reader).ok()? {
        return None;
    }
    for _algorithm_curve_and_public_half in 0..3 {
        reader.drain_prefixed().ok()?;
    }
    let short = Zeroizing::new(Vec::<u8>::decode(reader).ok()?);
    let mut number = Zeroizing::new([0; 32]);
    let start = number.len().checked_sub(short.len())?;
    number[start..].copy_from_slice(&short);
    Some((EcdsaPrivateKey::from(*number), String::decode(reader).ok()?))
}

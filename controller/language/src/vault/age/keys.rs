//! Keys as text: `age1…` encrypts, `AGE-SECRET-KEY-1…` decrypts.

use std::fmt;
use std::str::FromStr;

use bech32::{Bech32, Hrp, primitives::decode::CheckedHrpstring};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::super::VaultError;

const PUBLIC: &str = "age";
const SECRET: &str = "age-secret-key-";

/// Why a text is not a key. Never holds the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("it is no age key")]
    NotAKey,
    #[error("its checksum is wrong: a character was changed or lost")]
    Damaged,
    #[error("it is a secret key, which nobody encrypts with")]
    IsSecret,
    #[error("it is a public key, which opens nothing")]
    IsPublic,
    #[error("SSH keys are not supported")]
    Ssh,
    #[error("keys of plugins and post-quantum keys are not supported, only X25519")]
    OtherKind,
}

/// A public key to encrypt for.
#[derive(Clone, PartialEq, Eq)]
pub struct Recipient(pub(super) [u8; 32]);

/// A secret key that opens files for its recipient.
#[derive(Clone)]
pub struct Identity(pub(super) StaticSecret);

/// Prints nothing of the secret key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity of {}", self.recipient())
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bech32::encode_lower_to_fmt::<Bech32, _>(f, Hrp::parse_unchecked(PUBLIC), &self.0)
            .map_err(|_| fmt::Error)
    }
}

impl FromStr for Recipient {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.to_ascii_lowercase().starts_with(SECRET) {
            return Err(KeyError::IsSecret);
        }
        other_kinds(text, "age1")?;
        Ok(Self(*decoded(text, PUBLIC)?))
    }
}

impl FromStr for Identity {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.starts_with("age1") {
            return Err(KeyError::IsPublic);
        }
        other_kinds(text, "AGE-SECRET-KEY-1")?;
        Ok(Self(StaticSecret::from(*decoded(text, SECRET)?)))
    }
}

fn other_kinds(text: &str, begin: &str) -> Result<(), KeyError> {
    if text.starts_with("ssh-") || text.starts_with("-----BEGIN OPENSSH") {
        return Err(KeyError::Ssh);
    }
    if text.starts_with("AGE-PLUGIN-") || text.starts_with("AGE-SECRET-KEY-PQ-") {
        return Err(KeyError::OtherKind);
    }
    // The last `1` ends the prefix that names the kind, so another one means a plugin's key, such as `age1yubikey1…`.
    let rest = text.strip_prefix(begin).ok_or(KeyError::NotAKey)?;
    if rest.contains('1') { Err(KeyError::OtherKind) } else { Ok(()) }
}

fn decoded(text: &str, kind: &str) -> Result<Zeroizing<[u8; 32]>, KeyError> {
    let parsed = CheckedHrpstring::new::<Bech32>(text).map_err(|_| KeyError::Damaged)?;
    if parsed.hrp().to_string().to_ascii_lowercase() != kind {
        return Err(KeyError::NotAKey);
    }
    let mut bytes = Zeroizing::new([0; 32]);
    let mut read = parsed.byte_iter();
    for byte in bytes.iter_mut() {
        *byte = read.next().ok_or(KeyError::Damaged)?;
    }
    if read.next().is_some() { Err(KeyError::Damaged) } else { Ok(bytes) }
}

impl Identity {
    /// Generates a new key.
    ///
    /// # Errors
    /// If the machine has no random numbers.
    pub fn generate() -> Result<Self, VaultError> {
        let mut bytes = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *bytes).map_err(|_| VaultError::NoRandomness)?;
        Ok(Self(StaticSecret::from(*bytes)))
    }

    /// Returns the recipient whose files this identity opens.
    pub fn recipient(&self) -> Recipient {
        Recipient(PublicKey::from(&self.0).to_bytes())
    }

    /// Returns the secret key as text.
    pub fn secret_text(&self) -> Zeroizing<String> {
        let hrp = Hrp::parse_unchecked(SECRET);
        Zeroizing::new(bech32::encode_upper::<Bech32>(hrp, self.0.as_bytes()).unwrap_or_default())
    }
}

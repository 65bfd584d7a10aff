//! Signatures of reports, as `ssh-keygen -Y sign` and `-Y verify` know them (SSHSIG).
//!
//! Source: PROTOCOL.sshsig and ssh-keygen(1), "ALLOWED SIGNERS", of OpenSSH. Must not know what is signed, nor where it
//! comes from: bytes in, an answer out. Invariant: a signature of another namespace, such as one of git or of a file,
//! is none of a report.

mod allowed;
#[cfg(test)]
mod tests;

use std::fmt;

use ssh_key::{Algorithm, HashAlg, LineEnding, PublicKey, Signature, SshSig, public::KeyData};

pub use allowed::{AllowedError, AllowedSigners, Refusal};

/// What signatures of reports are for: `ssh-keygen -Y verify -n gpufleet-report`.
pub const NAMESPACE: &str = "gpufleet-report";

/// Returns what a key has to sign for these bytes.
///
/// # Errors
/// None for [`NAMESPACE`]; those of the crate.
pub fn to_be_signed(bytes: &[u8]) -> Result<Vec<u8>, ssh_key::Error> {
    SshSig::signed_data(NAMESPACE, HashAlg::Sha512, bytes)
}

/// Returns the text of the file beside the report, from the key's signature of [`to_be_signed`].
///
/// # Errors
/// Those of the writer.
pub fn armored(public: &PublicKey, signature: Signature) -> Result<String, ssh_key::Error> {
    let signed = SshSig::new(public.key_data().clone(), NAMESPACE, HashAlg::Sha512, signature)?;
    signed.to_pem(LineEnding::LF)
}

/// Why bytes and a signature do not go together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("it is no signature of SSH: {0}")]
    Unreadable(String),
    #[error("it is a signature for `{0}`, not for `{NAMESPACE}`")]
    Namespace(String),
    #[error("it is by an algorithm that is broken or not supported: {0}")]
    Algorithm(String),
    #[error("it does not fit: the file was changed after it was signed, or it was signed as another file")]
    Wrong,
}

/// A signature that fits the bytes it was checked with. Whether its key is to be trusted is another question.
#[derive(Clone, Debug)]
pub struct Signed {
    key: KeyData,
}

/// Checks that a signature is by its key, of these bytes.
///
/// # Errors
/// [`SignatureError`].
pub fn check(bytes: &[u8], signature: &str) -> Result<Signed, SignatureError> {
    let signed = SshSig::from_pem(signature.trim_start())
        .map_err(|error| SignatureError::Unreadable(error.to_string()))?;
    if signed.namespace() != NAMESPACE {
        return Err(SignatureError::Namespace(signed.namespace().chars().take(64).collect()));
    }
    if matches!(signed.algorithm(), Algorithm::Dsa | Algorithm::Rsa { hash: None }) {
        return Err(SignatureError::Algorithm(signed.algorithm().to_string()));
    }
    let key = signed.public_key().clone();
    let public = PublicKey::new(key.clone(), "");
    public.verify(NAMESPACE, bytes, &signed).map_err(|_| SignatureError::Wrong)?;
    Ok(Signed { key })
}

impl Signed {
    pub const fn key(&self) -> &KeyData {
        &self.key
    }

    /// Whether this is the key, whatever its comment.
    pub fn is_by(&self, key: &PublicKey) -> bool {
        self.key == *key.key_data()
    }
}

/// The key as `ssh-keygen -l` names it: `ED25519 SHA256:…`.
impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sort = match self.key.algorithm() {
            Algorithm::Ed25519 => "ED25519".to_owned(),
            Algorithm::Rsa { .. } => "RSA".to_owned(),
            Algorithm::Ecdsa { .. } => "ECDSA".to_owned(),
            other => other.to_string(),
        };
        write!(f, "{sort} {}", self.key.fingerprint(HashAlg::Sha256))
    }
}

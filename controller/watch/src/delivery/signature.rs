//! Signatures of notifications, as the Standard Webhooks specification 1.0.0 says: HMAC-SHA256 over id, time and body.

use base64ct::{Base64, Encoding as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// What that specification may write before a secret, which is base64 with it or without.
const PREFIX: &str = "whsec_";
/// A secret must not be guessed.
const LEAST_BYTES: usize = 16;

/// The key of signatures.
pub(super) struct Key(Hmac<Sha256>);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// Takes a secret in base64, with `whsec_` before it or without, as the libraries that verify do.
    ///
    /// # Errors
    /// One that is too short, or no base64.
    pub(super) fn new(secret: &str) -> Result<Self, &'static str> {
        let bytes = Base64::decode_vec(secret.strip_prefix(PREFIX).unwrap_or(secret))
            .map_err(|_| "it is no base64, as verifiers want it: `openssl rand -base64 32` makes one")?;
        if bytes.len() < LEAST_BYTES {
            return Err("it has less than 16 bytes: `openssl rand -base64 32` makes one");
        }
        Hmac::new_from_slice(&bytes).map(Self).map_err(|_| "it cannot be a key")
    }

    /// Returns the value of the header `webhook-signature`.
    pub(super) fn sign(&self, id: &str, seconds: i64, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", Base64::encode_string(&mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's own libraries.
    #[test]
    fn it_signs_as_the_specification_says() {
        let key = Key::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}");
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    /// What `openssl rand -base64 32` prints is the same secret with the prefix of the specification and without.
    #[test]
    fn a_secret_is_base64_with_and_without_its_prefix() {
        let bare = Key::new("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = bare.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}");
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn short_and_broken_secrets_are_refused() {
        assert!(Key::new("Zm91cnRlZW4gYnl0ZXM=").is_err());
        for broken in ["whsec_%%%", "a passphrase that is no base64"] {
            let why = Key::new(broken).map(drop).unwrap_err();
            assert!(why.contains("no base64") && why.contains("openssl rand"), "{why}");
        }
        assert!(Key::new("c2l4dGVlbiBieXRlcy4uLg==").is_ok());
    }
}

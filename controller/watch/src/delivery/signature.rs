//! Signatures of notifications, as the Standard Webhooks specification 1.0.0 says: HMAC-SHA256 over id, time and body.

use base64ct::{Base64, Encoding as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// What that specification writes before a secret in base64.
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
    /// Takes a secret: `whsec_` and base64, or any other text as its bytes.
    ///
    /// # Errors
    /// One that is too short, or no base64 behind the prefix.
    pub(super) fn new(secret: &str) -> Result<Self, &'static str> {
        let bytes = match secret.strip_prefix(PREFIX) {
            Some(text) => Base64::decode_vec(text).map_err(|_| "behind `whsec_` is no base64")?,
            None => secret.as_bytes().to_vec(),
        };
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

    #[test]
    fn short_and_broken_secrets_are_refused() {
        assert!(Key::new("fifteen bytes..").is_err());
        assert!(Key::new("whsec_%%%").is_err());
        assert!(Key::new("sixteen bytes...").is_ok());
    }
}

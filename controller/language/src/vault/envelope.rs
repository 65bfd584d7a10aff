//! One text encrypted by ansible-vault.
//!
//! The format is that of ansible-core 2.19 (`ansible/parsing/vault/__init__.py`): a header, then the hex of three
//! lines (salt, HMAC, ciphertext), each in hex itself.

use ctr::Ctr128BE;
use ctr::cipher::{KeyIvInit as _, StreamCipher as _};
use gpufleet_protocol::hex;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

const HEADER: &str = "$ANSIBLE_VAULT";
const CIPHER: &str = "AES256";
const ROUNDS: u32 = 10_000;
const BLOCK: usize = 16;
const KEY: usize = 32;
const SALT: usize = 32;
const LINE: usize = 80;

/// Why an encrypted text cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    #[error("it begins neither with `$ANSIBLE_VAULT;` nor as an armoured file of age")]
    NotEncrypted,
    #[error("version `{0}` of the format is not known, only 1.1 and 1.2 are")]
    UnknownVersion(String),
    #[error("version `{0}` of the format of age is not known, only v1 is")]
    UnknownAge(String),
    #[error("the cipher `{0}` is not known, only AES256 is")]
    UnknownCipher(String),
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("the password is wrong, or the text was changed")]
    WrongPassword,
    #[error("what it holds is not UTF-8 text")]
    NotText,
    #[error("this machine gives no random numbers")]
    NoRandomness,
}

/// A parsed encrypted text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The id of the password, if the header names one.
    pub id: Option<String>,
    salt: Vec<u8>,
    mac: Vec<u8>,
    ciphertext: Vec<u8>,
}

struct Keys(Zeroizing<[u8; KEY + KEY + BLOCK]>);

impl Keys {
    fn of(password: &[u8], salt: &[u8]) -> Self {
        let mut bytes = Zeroizing::new([0; KEY + KEY + BLOCK]);
        pbkdf2::pbkdf2_hmac::<Sha256>(password, salt, ROUNDS, &mut *bytes);
        Self(bytes)
    }

    fn mac(&self) -> Result<Hmac<Sha256>, VaultError> {
        let key = self.0.get(KEY..KEY + KEY).unwrap_or_default();
        Hmac::new_from_slice(key).map_err(|_| VaultError::Damaged("the key has a wrong length"))
    }

    fn apply(&self, bytes: &mut [u8]) -> Result<(), VaultError> {
        let (key, rest) = self.0.split_at(KEY);
        let iv = rest.get(KEY..).unwrap_or_default();
        let mut cipher = Ctr128BE::<aes::Aes256>::new_from_slices(key, iv)
            .map_err(|_| VaultError::Damaged("the key has a wrong length"))?;
        cipher.try_apply_keystream(bytes).map_err(|_| VaultError::Damaged("it is too long"))
    }
}

impl Envelope {
    /// Parses an encrypted text; blanks around its lines are ignored.
    ///
    /// # Errors
    /// If the version or the cipher is unknown, or the text is not in the format.
    pub fn parse(text: &str) -> Result<Self, VaultError> {
        let mut lines = text.trim_start().lines();
        let mut header = lines.next().unwrap_or_default().trim().split(';').map(str::trim);
        if header.next() != Some(HEADER) {
            return Err(VaultError::NotEncrypted);
        }
        let version = header.next().unwrap_or_default();
        let cipher = header.next().unwrap_or_default();
        let id = header.next().filter(|id| !id.is_empty()).map(ToOwned::to_owned);
        if !matches!(version, "1.1" | "1.2") {
            return Err(VaultError::UnknownVersion(shortened(version)));
        }
        if cipher != CIPHER {
            return Err(VaultError::UnknownCipher(shortened(cipher)));
        }
        let digits: String = lines.flat_map(str::split_whitespace).collect();
        let body =
            unhex(digits.as_bytes(), false).ok_or(VaultError::Damaged("its body is not hexadecimal"))?;
        let mut parts = body.splitn(3, |byte| *byte == b'\n');
        let mut part = |what| {
            let digits = parts.next().ok_or(VaultError::Damaged("a part of it is missing"))?;
            unhex(digits, true).ok_or(VaultError::Damaged(what))
        };
        Ok(Self {
            id,
            salt: part("its salt is not hexadecimal")?,
            mac: part("its checksum is not hexadecimal")?,
            ciphertext: part("its content is not hexadecimal")?,
        })
    }

    /// Decrypts the content.
    ///
    /// # Errors
    /// If the password is wrong, which cannot be told from a changed text.
    pub fn open(&self, password: &[u8]) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let keys = Keys::of(password, &self.salt);
        let mut mac = keys.mac()?;
        mac.update(&self.ciphertext);
        mac.verify_slice(&self.mac).map_err(|_| VaultError::WrongPassword)?;
        let mut bytes = Zeroizing::new(self.ciphertext.clone());
        keys.apply(&mut bytes)?;
        let padding = bytes.last().map_or(0, |byte| usize::from(*byte));
        let length = bytes.len().checked_sub(padding).filter(|_| (1..=BLOCK).contains(&padding));
        let length = length.ok_or(VaultError::Damaged("its padding is wrong"))?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// Encrypts a text. The header names `id`, unless it is `None` or `default`.
///
/// # Errors
/// If the machine has no random numbers.
pub fn seal(plain: &[u8], password: &[u8], id: Option<&str>) -> Result<String, VaultError> {
    let mut salt = [0; SALT];
    getrandom::fill(&mut salt).map_err(|_| VaultError::NoRandomness)?;
    seal_with(plain, password, id, &salt)
}

fn seal_with(plain: &[u8], password: &[u8], id: Option<&str>, salt: &[u8]) -> Result<String, VaultError> {
    let keys = Keys::of(password, salt);
    let padding = BLOCK - plain.len() % BLOCK;
    let mut bytes = Zeroizing::new(Vec::with_capacity(plain.len() + padding));
    bytes.extend_from_slice(plain);
    bytes.extend(std::iter::repeat_n(u8::try_from(padding).unwrap_or_default(), padding));
    keys.apply(&mut bytes)?;
    let mut mac = keys.mac()?;
    mac.update(&bytes);
    let inner = format!("{}\n{}\n{}", hex(salt), hex(mac.finalize().into_bytes()), hex(&bytes));
    let mut text = match id {
        Some(id) if id != super::DEFAULT_ID => format!("{HEADER};1.2;{CIPHER};{id}\n"),
        _ => format!("{HEADER};1.1;{CIPHER}\n"),
    };
    for (index, digit) in hex(inner.as_bytes()).chars().enumerate() {
        if index > 0 && index % LINE == 0 {
            text.push('\n');
        }
        text.push(digit);
    }
    text.push('\n');
    Ok(text)
}

fn shortened(text: &str) -> String {
    text.chars().take(20).collect()
}

/// Decodes hex. `strict` refuses capital letters: the inner parts are written in small letters, and another spelling
/// would be a different text with the same meaning.
fn unhex(digits: &[u8], strict: bool) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| match char::from(byte).to_digit(16) {
        Some(_) if strict && byte.is_ascii_uppercase() => None,
        value => u8::try_from(value?).ok(),
    };
    digits
        .chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

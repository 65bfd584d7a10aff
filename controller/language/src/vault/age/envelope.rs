//! One age file: its recipients and its content.

use base64ct::{Base64Unpadded, Encoding as _};
use chacha20poly1305::Nonce;
use chacha20poly1305::aead::Aead as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::super::VaultError;
use super::keys::{Identity, Recipient};
use super::payload::{self, NONCE, cipher, derived};
use super::{VERSION, armor};

const FILE_KEY: usize = 16;
const WRAPPED: usize = 32;
const SALT: usize = 16;
const COLUMNS: usize = 64;
const X25519: &str = "age-encryption.org/v1/X25519";
const SCRYPT: &str = "age-encryption.org/v1/scrypt";
/// Largest work factor of a passphrase, as a power of 2: 1 GiB of memory.
const MOST_WORK: u8 = 20;
/// Largest number of recipients of a file.
const MOST_STANZAS: usize = 1000;

/// A parsed age file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgeEnvelope {
    stanzas: Vec<Stanza>,
    /// The bytes that the checksum covers.
    header: Vec<u8>,
    mac: Vec<u8>,
    payload: Vec<u8>,
}

/// The file key, wrapped for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stanza {
    X25519 {
        share: [u8; 32],
        wrapped: Vec<u8>,
    },
    Scrypt {
        salt: [u8; SALT],
        work: u8,
        wrapped: Vec<u8>,
    },
    /// A kind that is not supported.
    Other,
    /// An unknown kind that tools insert so that readers learn to skip unknown ones.
    Grease,
}

/// Reads lines from the front of bytes.
struct Lines<'a>(&'a [u8]);

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<&'a str, VaultError> {
        let end = self.0.iter().position(|byte| *byte == b'\n');
        let (line, rest) = end
            .and_then(|end| Some((self.0.get(..end)?, self.0.get(end + 1..)?)))
            .ok_or(VaultError::Damaged("its header does not end"))?;
        self.0 = rest;
        std::str::from_utf8(line).map_err(|_| VaultError::Damaged("its header is not text"))
    }
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    Base64Unpadded::decode_vec(text).ok()?.try_into().ok()
}

impl AgeEnvelope {
    /// Parses an armoured file.
    ///
    /// # Errors
    /// If the version is unknown, or the text is not in the format.
    pub fn parse(text: &str) -> Result<Self, VaultError> {
        Self::of(&armor::bare(text)?)
    }

    /// Parses a file without armour.
    ///
    /// # Errors
    /// As [`AgeEnvelope::parse`].
    pub fn of(file: &[u8]) -> Result<Self, VaultError> {
        let Some(rest) = file.strip_prefix(VERSION) else {
            let version = file.strip_prefix(b"age-encryption.org/").unwrap_or_default();
            let version: Vec<u8> =
                version.iter().copied().take_while(u8::is_ascii_alphanumeric).take(10).collect();
            return Err(match version.is_empty() {
                true => VaultError::Damaged("it does not begin with `age-encryption.org/v1`"),
                false => VaultError::UnknownAge(String::from_utf8_lossy(&version).into_owned()),
            });
        };
        let mut lines = Lines(rest);
        let mut stanzas = Vec::new();
        let mut line = lines.next()?;
        while let Some(arguments) = line.strip_prefix("-> ") {
            let mut body = String::new();
            loop {
                line = lines.next()?;
                if line.len() > COLUMNS {
                    return Err(VaultError::Damaged("a line of its header is too long"));
                }
                body.push_str(line);
                if line.len() < COLUMNS {
                    break;
                }
            }
            let body = Base64Unpadded::decode_vec(&body);
            let body = body.map_err(|_| VaultError::Damaged("its header is not base64"))?;
            stanzas.push(Stanza::read(arguments, body)?);
            if stanzas.len() > MOST_STANZAS {
                return Err(VaultError::Damaged("it is for too many recipients"));
            }
            line = lines.next()?;
        }
        let mac = line.strip_prefix("--- ").ok_or(VaultError::Damaged("its header does not end"))?;
        let mac_text = mac;
        let mac = bytes::<32>(mac).ok_or(VaultError::Damaged("its checksum is not base64"))?;
        let payload = lines.0.to_vec();
        // The checksum covers the header up to `---`: not the blank, the checksum itself and its line break.
        let covered = file.len() - payload.len() - mac_text.len() - 2;
        let header = file.get(..covered).unwrap_or_default().to_vec();
        let passphrase = stanzas.iter().any(|stanza| matches!(stanza, Stanza::Scrypt { .. }));
        if stanzas.is_empty() || (passphrase && stanzas.len() > 1) {
            return Err(VaultError::Damaged("its recipients are wrong"));
        }
        Ok(Self { stanzas, header, mac: mac.to_vec(), payload })
    }

    /// Returns the number of recipients; a passphrase counts as one.
    pub fn recipients(&self) -> usize {
        self.stanzas.iter().filter(|stanza| !matches!(stanza, Stanza::Grease)).count()
    }

    /// Whether a passphrase, and no identity, opens it.
    pub fn wants_passphrase(&self) -> bool {
        self.stanzas.iter().any(|stanza| matches!(stanza, Stanza::Scrypt { .. }))
    }

    /// Decrypts the content with an identity.
    ///
    /// # Errors
    /// [`VaultError::WrongPassword`] if the file is for other recipients; an error if it is damaged.
    pub fn open(&self, identity: &Identity) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let keys = self.stanzas.iter().filter_map(|stanza| match stanza {
            Stanza::X25519 { share, wrapped } => {
                let key = x25519_key(&identity.0, share, share, &identity.recipient().0)?;
                unwrapped(&key, wrapped)
            }
            _ => None,
        });
        self.open_with(keys)
    }

    /// Decrypts the content with a passphrase.
    ///
    /// # Errors
    /// [`VaultError::WrongPassword`] if the passphrase is wrong; an error if the file is damaged or needs more work
    /// than allowed.
    pub fn open_with_passphrase(&self, passphrase: &[u8]) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        let Some(Stanza::Scrypt { salt, work, wrapped }) = self.stanzas.first() else {
            return Err(VaultError::WrongPassword);
        };
        if *work > MOST_WORK {
            return Err(VaultError::Damaged("its passphrase costs more work than is allowed"));
        }
        let params =
            scrypt::Params::new(*work, 8, 1).map_err(|_| VaultError::Damaged("its work factor is wrong"))?;
        let salt = [SCRYPT.as_bytes(), salt].concat();
        let mut key = Zeroizing::new([0; 32]);
        scrypt::scrypt(passphrase, &salt, &params, &mut *key)
            .map_err(|_| VaultError::Damaged("its work factor is wrong"))?;
        self.open_with(unwrapped(&key, wrapped).into_iter())
    }

    fn open_with(
        &self,
        mut keys: impl Iterator<Item = Zeroizing<Vec<u8>>>,
    ) -> Result<Zeroizing<Vec<u8>>, VaultError> {
        // The first is enough: a key that unwraps here was wrapped by the writer of the file.
        let file_key = keys.next().ok_or(VaultError::WrongPassword)?;
        header_mac(&file_key, &self.header)?
            .verify_slice(&self.mac)
            .map_err(|_| VaultError::Damaged("its header was changed"))?;
        payload::open(&self.payload, &file_key)
    }
}

impl Stanza {
    fn read(arguments: &str, body: Vec<u8>) -> Result<Self, VaultError> {
        let words: Vec<&str> = arguments.split(' ').collect();
        let right = body.len() == WRAPPED;
        let damaged = VaultError::Damaged("a recipient of its header is wrong");
        match words.as_slice() {
            ["X25519", share] if right => match bytes(share) {
                Some(share) => Ok(Self::X25519 { share, wrapped: body }),
                None => Err(damaged),
            },
            ["scrypt", salt, work] if right => {
                let digits = !work.starts_with('0') && work.bytes().all(|byte| byte.is_ascii_digit());
                let work = work.parse().ok().filter(|work: &u8| digits && *work < 64);
                match (bytes(salt), work) {
                    (Some(salt), Some(work)) => Ok(Self::Scrypt { salt, work, wrapped: body }),
                    _ => Err(damaged),
                }
            }
            ["X25519" | "scrypt", ..] => Err(damaged),
            [kind, ..] if kind.ends_with("-grease") => Ok(Self::Grease),
            [kind, ..] if !kind.is_empty() => Ok(Self::Other),
            _ => Err(damaged),
        }
    }
}

fn header_mac(file_key: &[u8], header: &[u8]) -> Result<Hmac<Sha256>, VaultError> {
    let key = derived(file_key, &[], "header");
    let mut mac = Hmac::new_from_slice(key.as_slice())
        .map_err(|_| VaultError::Damaged("the key has a wrong length"))?;
    mac.update(header);
    Ok(mac)
}

/// Returns the key that wraps the file key; `None` if a share is of low order.
fn x25519_key(
    secret: &StaticSecret,
    public: &[u8; 32],
    share: &[u8; 32],
    recipient: &[u8; 32],
) -> Option<Zeroizing<[u8; 32]>> {
    let shared = secret.diffie_hellman(&PublicKey::from(*public));
    let salt = [share.as_slice(), recipient].concat();
    shared.was_contributory().then(|| derived(shared.as_bytes(), &salt, X25519))
}

fn unwrapped(key: &[u8; 32], wrapped: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let opened = cipher(key).decrypt(&Nonce::from([0; 12]), wrapped).ok().map(Zeroizing::new)?;
    (opened.len() == FILE_KEY).then_some(opened)
}

/// Encrypts for at least one recipient; the result has no armour.
///
/// # Errors
/// If the machine has no random numbers, or a recipient's point cannot be used.
pub fn seal_to(plain: &[u8], recipients: &[Recipient]) -> Result<Vec<u8>, VaultError> {
    let mut file_key = Zeroizing::new([0; FILE_KEY]);
    let mut salt = [0; NONCE];
    let mut secret = Zeroizing::new([0; 32]);
    let random = |to: &mut [u8]| getrandom::fill(to).map_err(|_| VaultError::NoRandomness);
    random(&mut *file_key)?;
    random(&mut salt)?;
    let mut file = VERSION.to_vec();
    for recipient in recipients {
        random(&mut *secret)?;
        let ephemeral = StaticSecret::from(*secret);
        let share = PublicKey::from(&ephemeral).to_bytes();
        let key = x25519_key(&ephemeral, &recipient.0, &share, &recipient.0)
            .ok_or(VaultError::Damaged("a recipient is no key to encrypt for"))?;
        let wrapped = cipher(&key).encrypt(&Nonce::from([0; 12]), file_key.as_slice());
        let wrapped = wrapped.map_err(|_| VaultError::Damaged("it is too long"))?;
        let (share, wrapped) =
            (Base64Unpadded::encode_string(&share), Base64Unpadded::encode_string(&wrapped));
        file.extend(format!("-> X25519 {share}\n{wrapped}\n").into_bytes());
    }
    file.extend(b"---");
    let mac = header_mac(&*file_key, &file)?.finalize().into_bytes();
    file.extend(format!(" {}\n", Base64Unpadded::encode_string(&mac)).into_bytes());
    file.extend(payload::seal(plain, &*file_key, &salt)?);
    Ok(file)
}

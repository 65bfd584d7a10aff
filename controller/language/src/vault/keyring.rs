//! The passwords and identities of a command, and decryption with them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use secrecy::{ExposeSecret as _, SecretSlice, SecretString};
use serde_json::Value as Json;

use super::age::{AgeEnvelope, Identity, is_armored};
use super::envelope::{Envelope, VaultError, seal};
use super::mark;
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};
use crate::yaml::{Node, Value};

/// The id of a password that has no name.
pub const DEFAULT_ID: &str = "default";

/// A password and the id that headers name it by.
pub struct Key {
    pub id: String,
    password: SecretSlice<u8>,
}

impl Key {
    pub fn new(id: impl Into<String>, password: Vec<u8>) -> Self {
        Self { id: id.into(), password: SecretSlice::from(password) }
    }

    /// Encrypts with this password.
    ///
    /// # Errors
    /// If the machine has no random numbers.
    pub fn seal(&self, plain: &[u8]) -> Result<String, VaultError> {
        self.seal_as(plain, Some(&self.id))
    }

    /// Encrypts with this password, under another id.
    ///
    /// # Errors
    /// If the machine has no random numbers.
    pub fn seal_as(&self, plain: &[u8], id: Option<&str>) -> Result<String, VaultError> {
        seal(plain, self.password.expose_secret(), id)
    }
}

/// Opens encrypted texts, and decrypts each text once.
#[derive(Default)]
pub struct Keyring {
    keys: Vec<Key>,
    identities: Vec<Identity>,
    /// The places of the encrypted strings that were read so far.
    places: Mutex<HashMap<String, Span>>,
    opened: Mutex<HashMap<String, Arc<SecretString>>>,
}

/// Prints how many passwords and identities there are, and nothing of them.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({} passwords, {} identities)", self.keys.len(), self.identities.len())
    }
}

impl Keyring {
    pub fn new(keys: Vec<Key>) -> Self {
        Self { keys, ..Self::default() }
    }

    /// Returns the keyring with identities that open age files.
    #[must_use]
    pub fn with_identities(mut self, identities: Vec<Identity>) -> Self {
        self.identities = identities;
        self
    }

    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Returns the identity that opens an armoured age file, if there is one.
    pub fn fitting_identity(&self, text: &str) -> Option<&Identity> {
        let envelope = AgeEnvelope::parse(text).ok()?;
        self.identities.iter().find(|identity| envelope.open(identity).is_ok())
    }

    /// Returns the password that opens an encrypted text, if there is one.
    pub fn fitting(&self, text: &str) -> Option<&Key> {
        let envelope = Envelope::parse(text).ok()?;
        let named = |key: &&Key| envelope.id.as_deref() == Some(&key.id);
        let others = self.keys.iter().filter(|key| !named(key));
        let mut keys = self.keys.iter().filter(named).chain(others);
        keys.find(|key| envelope.open(key.password.expose_secret()).is_ok())
    }

    /// Decrypts a text with the password of its id or any other, or an age file with an identity.
    ///
    /// # Errors
    /// If nothing opens it. The error has no place.
    pub fn open_bytes(&self, text: &str) -> Result<zeroize::Zeroizing<Vec<u8>>, Box<Diagnostic>> {
        if is_armored(text.trim_start()) {
            return self.open_age(text).map_err(|error| Box::new(error.without_excerpt()));
        }
        let parsed = Envelope::parse(text);
        if self.keys.is_empty() {
            return Err(Box::new(no_password(parsed.ok().and_then(|envelope| envelope.id).as_deref())));
        }
        let envelope = parsed.map_err(|error| {
            Box::new(Diagnostic::error(format!("this vault text cannot be read: {error}")).without_excerpt())
        })?;
        let named = |key: &&Key| envelope.id.as_deref().is_some_and(|id| id == key.id);
        let others = self.keys.iter().filter(|key| !named(key));
        for key in self.keys.iter().filter(named).chain(others) {
            match envelope.open(key.password.expose_secret()) {
                Ok(plain) => return Ok(plain),
                Err(VaultError::WrongPassword) => {}
                Err(error) => {
                    let error = Diagnostic::error(format!("this vault text cannot be read: {error}"));
                    return Err(Box::new(error.without_excerpt()));
                }
            }
        }
        Err(Box::new(self.none_fits(envelope.id.as_deref())))
    }

    fn open_age(&self, text: &str) -> Result<zeroize::Zeroizing<Vec<u8>>, Diagnostic> {
        let unreadable =
            |error: VaultError| Diagnostic::error(format!("this file of age cannot be read: {error}"));
        let envelope = AgeEnvelope::parse(text).map_err(unreadable)?;
        let passphrase = envelope.wants_passphrase();
        let keys = self.keys.iter().filter(|_| passphrase);
        let by_passphrase = keys.map(|key| envelope.open_with_passphrase(key.password.expose_secret()));
        let identities = self.identities.iter().filter(|_| !passphrase);
        let by_identity = identities.map(|identity| envelope.open(identity));
        for opened in by_passphrase.chain(by_identity) {
            match opened {
                Ok(plain) => return Ok(plain),
                Err(VaultError::WrongPassword) => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        Err(match (passphrase, self.keys.len(), self.identities.len()) {
            (true, 0, _) => Diagnostic::error("this is encrypted with a passphrase of age, and none is given").help(
                "give it as a vault password: `--vault-password-file FILE`, or `--ask-vault-pass` to be asked",
            ),
            (true, ..) => Diagnostic::error("no vault password opens this: each is wrong"),
            (false, _, 0) => Diagnostic::error("this is encrypted with age, and no identity is given")
                .help("name the file of your secret key with `--vault-identity FILE`"),
            (false, ..) => {
                let tried: Vec<String> =
                    self.identities.iter().map(|identity| identity.recipient().to_string()).collect();
                Diagnostic::error("no identity opens this: it is encrypted for others")
                    .note(format!("identities tried are those of {}", tried.join(", ")))
            }
        })
    }

    fn none_fits(&self, id: Option<&str>) -> Diagnostic {
        let tried: Vec<&str> = self.keys.iter().map(|key| key.id.as_str()).collect();
        let mut error =
            Diagnostic::error("no vault password opens this: each is wrong, or the text was changed")
                .note(format!("passwords tried: {}", tried.join(", ")))
                .without_excerpt();
        if let Some(id) = id {
            error = error.note(format!("it names the id `{id}`"));
            if !tried.contains(&id) {
                error = error.help(format!("give that password with `--vault-id {id}@SOURCE`"));
            }
        }
        error
    }

    /// Decrypts a text that must be UTF-8. Errors point at `place`.
    fn open(&self, text: &str, place: Option<&Span>) -> Result<Arc<SecretString>, Diagnostics> {
        let key = text.trim().to_owned();
        let known = |map: &Mutex<HashMap<String, Arc<SecretString>>>| {
            map.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
        };
        if let Some(found) = known(&self.opened) {
            return Ok(found);
        }
        let at = |error: Diagnostic| match place {
            Some(span) => Diagnostics::from(error.at(span)),
            None => Diagnostics::from(error),
        };
        let bytes = self.open_bytes(text).map_err(|error| at(*error))?;
        let plain = std::str::from_utf8(&bytes).map_err(|_| {
            let error = Diagnostic::error(format!("this vault text cannot be used: {}", VaultError::NotText));
            at(error.without_excerpt())
        })?;
        let plain = Arc::new(SecretString::from(plain));
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&plain));
        Ok(plain)
    }

    /// Decrypts a file that is encrypted as a whole. The result is never shown.
    ///
    /// # Errors
    /// If no password fits, or the file is damaged. The error names the file.
    pub fn open_file(&self, source: &Arc<SourceFile>) -> Result<Arc<SourceFile>, Diagnostics> {
        let plain = self.open(source.text(), Some(&Span::new(source, 1, 1, 0)))?;
        Ok(SourceFile::secret(source.name(), plain.expose_secret()))
    }

    /// Decrypts a `!vault` string.
    ///
    /// # Errors
    /// If no password fits, or the text is damaged. The error has the place.
    pub fn open_node(&self, node: &Node) -> Result<Arc<SecretString>, Diagnostics> {
        let Some(text) = node.as_str() else {
            return Err(node.wrong_type("`!vault`", "an encrypted string").without_excerpt().into());
        };
        self.open(text, Some(&node.span))
    }

    /// Records where the encrypted strings of a tree are, for errors when they are opened.
    pub fn note(&self, node: &Node) {
        match &node.value {
            Value::Tagged { tag, node } if tag.starts_with("!vault") => {
                if let Some(text) = node.as_str() {
                    let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
                    places.entry(text.trim().to_owned()).or_insert_with(|| node.span.clone());
                }
            }
            Value::Tagged { node, .. } => self.note(node),
            Value::Seq(items) => items.iter().for_each(|item| self.note(item)),
            Value::Map(entries) => entries.iter().for_each(|(_, value)| self.note(value)),
            _ => {}
        }
    }

    /// Decrypts every encrypted string in a value and marks it as secret.
    ///
    /// # Errors
    /// If no password opens a string. Each error has its place, if known.
    pub fn reveal(&self, value: &mut Json) -> Result<(), Diagnostics> {
        if let Some(text) = mark::locked(value) {
            let text = text.to_owned();
            let place = {
                let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
                places.get(text.trim()).cloned()
            };
            let plain = self.open(&text, place.as_ref())?;
            *value = mark::sealed(Json::from(plain.expose_secret()));
            return Ok(());
        }
        let mut errors = Diagnostics::new();
        match value {
            Json::Object(map) => {
                for value in map.values_mut() {
                    errors.absorb(self.reveal(value));
                }
            }
            Json::Array(items) => {
                for item in items {
                    errors.absorb(self.reveal(item));
                }
            }
            _ => {}
        }
        errors.into_result(())
    }
}

fn no_password(id: Option<&str>) -> Diagnostic {
    let error = Diagnostic::error("this is encrypted with ansible-vault, and no vault password is given")
        .without_excerpt();
    match id {
        Some(id) => error.help(format!(
            "give it with `--vault-id {id}@FILE`, or let gpufleet ask for it with `--vault-id {id}@prompt`"
        )),
        None => error
            .help("give it with `--vault-password-file FILE`, or let gpufleet ask with `--ask-vault-pass`"),
    }
}

//! Private keys and certificates from files, read once for all nodes.
//!
//! The public half is enough to offer a key. The passphrase is asked for once, when a node first requires a
//! signature.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use russh::keys::{HashAlg, decode_secret_key, signature, ssh_encoding::Encode};
use secrecy::{ExposeSecret, SecretString};
use ssh_key::{Certificate, PrivateKey, PublicKey, private::KeypairData};
use tokio::sync::OnceCell;

use super::{
    environment::{Environment, PromptError, PromptRequest},
    short_scalar,
};
use crate::visible::command_line;

const PASSPHRASE_TRIES: usize = 3;

/// A key from a file.
pub(crate) struct FileIdentity {
    pub(crate) path: PathBuf,
    pub(crate) public: PublicKey,
    /// Its certificate, from `-cert.pub` beside it.
    pub(crate) certificate: Option<Certificate>,
    /// The private half; `None` if only the agent can have it.
    private: Option<SecretString>,
    unlocked: OnceCell<Result<Arc<PrivateKey>, String>>,
}

type Slot = Arc<OnceCell<Result<Option<Arc<FileIdentity>>, String>>>;

#[derive(Default)]
pub(crate) struct IdentityStore {
    files: Mutex<HashMap<PathBuf, Slot>>,
    /// Serialises questions on the terminal.
    asking: tokio::sync::Mutex<()>,
}

impl IdentityStore {
    /// Returns the key at a path; `None` if there is no such file.
    pub(crate) async fn load(
        &self,
        path: &Path,
        environment: &Environment,
    ) -> Result<Option<Arc<FileIdentity>>, String> {
        let slot = {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(files.entry(path.to_owned()).or_default())
        };
        slot.get_or_init(|| async {
            let (path, uid) = (path.to_owned(), environment.uid);
            let read = tokio::task::spawn_blocking(move || read_key(&path, uid)).await;
            read.unwrap_or_else(|error| Err(error.to_string())).map(|key| key.map(Arc::new))
        })
        .await
        .clone()
    }

    /// Asks the user on a blocking thread, one question at a time.
    pub(crate) async fn ask(
        &self,
        request: PromptRequest,
        environment: &Environment,
    ) -> Result<SecretString, PromptError> {
        let _turn = self.asking.lock().await;
        let prompt = Arc::clone(&environment.prompt);
        let answer = tokio::task::spawn_blocking(move || prompt.ask(&request)).await;
        answer.unwrap_or(Err(PromptError::Cancelled))
    }

    async fn private(
        &self,
        identity: &FileIdentity,
        environment: &Environment,
    ) -> Result<Arc<PrivateKey>, String> {
        identity.unlocked.get_or_init(|| self.unlock(identity, environment)).await.clone()
    }

    async fn unlock(
        &self,
        identity: &FileIdentity,
        environment: &Environment,
    ) -> Result<Arc<PrivateKey>, String> {
        let text = identity
            .private
            .clone()
            .ok_or("only its public half is there, and the agent does not hold it")?;
        if let Ok(key) = decode(text.clone(), None).await {
            return Ok(Arc::new(key));
        }
        for _ in 0..PASSPHRASE_TRIES {
            let request = PromptRequest::Passphrase { path: identity.path.clone() };
            let passphrase = self.ask(request, environment).await.map_err(|error| {
                format!("it is encrypted and {error}; add it to the agent with `ssh-add`")
            })?;
            if let Ok(key) = decode(text.clone(), Some(passphrase)).await {
                return Ok(Arc::new(key));
            }
        }
        Err("the passphrase is wrong".to_owned())
    }

    /// Signs for authentication; the result is `data` followed by the signature, as russh requires.
    pub(crate) async fn sign(
        &self,
        identity: &FileIdentity,
        hash: Option<HashAlg>,
        data: Vec<u8>,
        environment: &Environment,
    ) -> Result<Vec<u8>, String> {
        let key = self.private(identity, environment).await?;
        let signed = tokio::task::spawn_blocking(move || sign(&key, hash, data)).await;
        signed.unwrap_or_else(|error| Err(error.to_string()))
    }
}

async fn decode(text: SecretString, passphrase: Option<SecretString>) -> Result<PrivateKey, String> {
    // On a blocking thread: the key derivation of encrypted keys takes up to a second.
    let decoding = tokio::task::spawn_blocking(move || {
        let passphrase = passphrase.as_ref().map(ExposeSecret::expose_secret);
        let key = decode_text(text.expose_secret(), passphrase)?;
        if key.is_encrypted() { Err("still encrypted".to_owned()) } else { Ok(key) }
    });
    decoding.await.unwrap_or_else(|error| Err(error.to_string()))
}

fn decode_text(text: &str, passphrase: Option<&str>) -> Result<PrivateKey, String> {
    decode_secret_key(text, passphrase)
        .or_else(|error| short_scalar::decode(text, passphrase).ok_or_else(|| error.to_string()))
}

fn sign(key: &PrivateKey, hash: Option<HashAlg>, mut data: Vec<u8>) -> Result<Vec<u8>, String> {
    let fail = |error: &dyn std::fmt::Display| error.to_string();
    let signature: ssh_key::Signature = match key.key_data() {
        KeypairData::Rsa(pair) => signature::Signer::try_sign(&(pair, hash), &data)
            .map_err(|error: signature::Error| fail(&error))?,
        pair => signature::Signer::try_sign(pair, &data).map_err(|error: signature::Error| fail(&error))?,
    };
    signature.encode_prefixed(&mut data).map_err(|error| fail(&error))?;
    Ok(data)
}

fn read_key(path: &Path, uid: u32) -> Result<Option<FileIdentity>, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return read_public_only(path),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err("it is no key file".to_owned());
        }
        Err(error) => return Err(format!("it cannot be read: {error}")),
    };
    if let Ok(public) = PublicKey::from_openssh(&text) {
        return Ok(Some(identity(path, public, None)));
    }
    refuse_open_permissions(path, uid)?;
    let public = match PrivateKey::from_openssh(&text) {
        Ok(key) => key.public_key().clone(),
        Err(_) => match decode_text(&text, None) {
            Ok(key) => key.public_key().clone(),
            Err(_) if text.contains("ENCRYPTED") => match read_public(&suffixed(path, ".pub"))? {
                Some(public) => public,
                None => {
                    return Err(format!(
                        "it is encrypted in an old format and {} is missing; convert it with \
                        `{}`",
                        suffixed(path, ".pub").display(),
                        command_line(["ssh-keygen", "-p", "-f", &path.to_string_lossy()])
                    ));
                }
            },
            Err(_) => return Err("it is no private key that can be read".to_owned()),
        },
    };
    if public.algorithm().as_str().starts_with("sk-") {
        return Err("security keys work through the agent or `--transport ssh`".to_owned());
    }
    Ok(Some(identity(path, public, Some(SecretString::from(text)))))
}

fn refuse_open_permissions(path: &Path, uid: u32) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if metadata.uid() == uid && metadata.mode() & 0o077 != 0 {
        return Err(format!(
            "others can read it (mode {:04o}); `{}`",
            metadata.mode() & 0o7777,
            command_line(["chmod", "600", &path.to_string_lossy()])
        ));
    }
    Ok(())
}

fn read_public_only(path: &Path) -> Result<Option<FileIdentity>, String> {
    Ok(read_public(&suffixed(path, ".pub"))?.map(|public| identity(path, public, None)))
}

fn read_public(path: &Path) -> Result<Option<PublicKey>, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            PublicKey::from_openssh(&text).map(Some).map_err(|error| format!("{}: {error}", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn identity(path: &Path, public: PublicKey, private: Option<SecretString>) -> FileIdentity {
    let certificate = read_certificate(&suffixed(path, "-cert.pub"))
        .ok()
        .filter(|certificate| certificate.public_key() == public.key_data());
    FileIdentity { path: path.to_owned(), public, certificate, private, unlocked: OnceCell::new() }
}

/// Reads a certificate file.
pub(crate) fn read_certificate(path: &Path) -> Result<Certificate, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    Certificate::from_openssh(text.trim()).map_err(|error| error.to_string())
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

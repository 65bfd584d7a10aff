//! The key that signs what nodes keep.
//!
//! Without `--keep-key`, gpufleet makes one of its own in the state directory when the first node keeps something.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use futures::future::BoxFuture;
use gpufleet::{
    engine::KeepSigner,
    transport::{Environment, SigningKey},
};
use gpufleet_protocol::{hex, keep::Seal};
use ssh_key::{LineEnding, PrivateKey, PublicKey, private::Ed25519Keypair};
use zeroize::Zeroizing;

/// The file in the state directory.
const OWN: &str = "keep_ed25519";

/// A key in a file, or held by the SSH agent for a file with its public half.
pub struct KeepKey {
    path: PathBuf,
    /// Whether it may be made.
    own: bool,
    environment: Environment,
    /// Held while it is made, as nodes keep something at the same time.
    making: Mutex<()>,
    /// The public half, once it is known.
    public: Mutex<Option<String>>,
}

impl KeepKey {
    pub fn new(given: Option<&Path>, state_dir: &Path, environment: Environment) -> Self {
        let path = given.map_or_else(|| state_dir.join(OWN), Path::to_path_buf);
        Self { path, own: given.is_none(), environment, making: Mutex::default(), public: Mutex::default() }
    }

    fn make(&self) -> io::Result<()> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.own || self.path.exists() {
            return Ok(());
        }
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(seed.as_mut()).map_err(io::Error::other)?;
        let key = PrivateKey::new(Ed25519Keypair::from_seed(&seed).into(), "gpufleet keep")
            .map_err(io::Error::other)?;
        let text = key.to_openssh(LineEnding::LF).map_err(io::Error::other)?;
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Why not straight to its place: another gpufleet may make one at the same time, and the first one counts.
        let new = self.path.with_extension(format!("new-{}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        let placed = written.and_then(|()| match fs::hard_link(&new, &self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        });
        let _ = fs::remove_file(&new);
        placed
    }

    fn remember(&self, public: &PublicKey) -> Option<String> {
        let key = hex(public.key_data().ed25519()?.as_ref());
        *self.public.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.clone());
        Some(key)
    }
}

impl KeepSigner for KeepKey {
    fn known(&self) -> Seal {
        let public = self.public.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let read = || {
            let text = fs::read_to_string(&self.path).ok()?;
            let public = match PrivateKey::from_openssh(&text) {
                Ok(key) => key.public_key().clone(),
                Err(_) => PublicKey::from_openssh(&text).ok()?,
            };
            self.remember(&public)
        };
        Seal { key: public.or_else(read).unwrap_or_default(), signature: String::new() }
    }

    fn sign(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Seal, String>> {
        Box::pin(async move {
            let place = self.path.display();
            self.make().map_err(|error| format!("a key cannot be made in {place}: {error}"))?;
            let key = SigningKey::new(&self.path, &self.environment);
            let (public, signature) = key.sign(bytes).await.map_err(|why| format!("{place}: {why}"))?;
            let key = self.remember(&public).ok_or_else(|| {
                format!("{place}: nodes check Ed25519 signatures only, and this is a key of another sort")
            })?;
            Ok(Seal { key, signature: hex(signature.as_bytes()) })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use std::sync::Arc;

    use gpufleet::transport::NoPrompt;

    use super::*;

    fn nobody() -> Environment {
        Environment {
            home: None,
            user: "root".to_owned(),
            uid: 0,
            hostname: String::new(),
            ssh_auth_sock: None,
            ssh_config: None,
            ssh_program: "ssh".into(),
            prompt: Arc::new(NoPrompt),
        }
    }

    #[tokio::test]
    async fn the_first_signature_makes_a_key_that_stays() {
        let state = tempfile::tempdir().unwrap();
        let key = KeepKey::new(None, state.path(), nobody());
        assert_eq!(key.known(), Seal::default());
        let seal = key.sign(b"SSHSIG".to_vec()).await.unwrap();
        assert_eq!((seal.key.len(), seal.signature.len()), (64, 128));
        let again = KeepKey::new(None, state.path(), nobody());
        assert_eq!(again.known().key, seal.key);
        assert_eq!(again.sign(b"SSHSIG".to_vec()).await.unwrap(), seal, "signatures are deterministic");
        let mode = fs::metadata(state.path().join(OWN)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_key_that_was_named_is_never_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = KeepKey::new(Some(&path), folder.path(), nobody());
        assert!(key.sign(Vec::new()).await.unwrap_err().contains("there is no such file"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

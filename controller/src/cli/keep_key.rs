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
    engine::{KeepSigner, KeptMachine},
    transport::{Environment, SigningKey},
};
use gpufleet_protocol::{
    hex,
    keep::{NAMESPACE, Seal, Sealed},
    unhex,
};
use ssh_key::{
    Algorithm, HashAlg, LineEnding, PrivateKey, PublicKey, Signature, SshSig,
    private::Ed25519Keypair,
    public::{Ed25519PublicKey, KeyData},
};
use zeroize::Zeroizing;

use super::kept_machines::KeptMachines;

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
    machines: KeptMachines,
}

impl KeepKey {
    pub fn new(given: Option<&Path>, state_dir: &Path, environment: Environment) -> Self {
        let path = given.map_or_else(|| state_dir.join(OWN), Path::to_path_buf);
        Self {
            path,
            own: given.is_none(),
            environment,
            making: Mutex::default(),
            public: Mutex::default(),
            machines: KeptMachines::new(state_dir),
        }
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

    fn has_signed(&self, sealed: &Sealed) -> bool {
        let signed = || {
            let key = KeyData::Ed25519(Ed25519PublicKey(unhex(&sealed.seal.key)?));
            let bytes = unhex::<64>(&sealed.seal.signature)?;
            let signature = Signature::new(Algorithm::Ed25519, bytes.to_vec()).ok()?;
            let signature = SshSig::new(key.clone(), NAMESPACE, HashAlg::Sha512, signature).ok()?;
            PublicKey::new(key, "").verify(NAMESPACE, sealed.document.as_bytes(), &signature).ok()
        };
        sealed.seal.key == self.known().key && signed().is_some()
    }

    fn identify(&self, machine: KeptMachine<'_>, remembers: bool) -> Result<u64, String> {
        self.machines.identify(machine, remembers)
    }

    fn took(&self, host: &str, serial: u64) -> Result<(), String> {
        self.machines.took(host, serial)
    }

    fn forget(&self, host: &str) -> Result<(), String> {
        self.machines.forget(host)
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

    #[tokio::test]
    async fn only_what_it_signed_is_its_own() {
        let state = tempfile::tempdir().unwrap();
        let key = KeepKey::new(None, state.path(), nobody());
        let document = r#"{"format":1}"#.to_owned();
        let bytes = gpufleet_protocol::keep::to_be_signed(&sha2::Digest::finalize(
            <sha2::Sha512 as sha2::Digest>::new_with_prefix(&document),
        ));
        let seal = key.sign(bytes).await.unwrap();
        let sealed = Sealed { document, seal };
        assert!(key.has_signed(&sealed));
        let changed = Sealed { document: r#"{"format":2}"#.to_owned(), ..sealed.clone() };
        let unsigned = Sealed { seal: key.known(), ..sealed.clone() };
        assert!(!key.has_signed(&changed) && !key.has_signed(&unsigned));
        let other = tempfile::tempdir().unwrap();
        assert!(!KeepKey::new(None, other.path(), nobody()).has_signed(&sealed), "another key");
    }
}

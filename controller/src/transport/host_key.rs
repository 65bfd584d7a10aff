//! Decides whether a node's host key is trusted.
//!
//! [`KnownHost::verify`] is pure: from the lines about a host and the presented key it returns a verdict. Strict by
//! default; a changed, revoked or unverifiable key is refused under every policy.

use std::{
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use russh::keys::PublicKeyOrCertificate;
use ssh_key::{
    Algorithm, Certificate, EcdsaCurve, HashAlg, PublicKey, certificate::CertType, known_hosts::Marker,
    public::KeyData,
};

use super::known_hosts::{Entry, KnownHostsCache, KnownHostsFile, line_for};
use crate::visible::{command_line, command_word};

/// What happens to a host key that is in no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HostKeyPolicy {
    /// Refused.
    #[default]
    Strict,
    /// Written to the first user file, and trusted from then on.
    AcceptNew,
}

impl HostKeyPolicy {
    /// Returns the policy for a `StrictHostKeyChecking` value. `no` means `accept-new`: unlike OpenSSH, gpufleet
    /// never accepts a changed key.
    pub(crate) fn from_option(value: &str) -> Option<Self> {
        match value.to_ascii_lowercase().as_str() {
            "yes" | "true" | "ask" => Some(Self::Strict),
            "accept-new" | "no" | "false" | "off" => Some(Self::AcceptNew),
            _ => None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HostKeyError {
    #[error(
        "the host key of {host} is unknown ({kind} {fingerprint}); compare it with the node's console, then \
         `{}`, or run with `--accept-new`",
        keyscan(host, files)
    )]
    Unknown { host: String, kind: String, fingerprint: String, files: Vec<PathBuf> },
    #[error(
        "the host key of {host} has changed: it presents {kind} {fingerprint}, but {known}; somebody may be in \
         between. If the node was reinstalled: `{}`",
        command_line(["ssh-keygen", "-R", host, "-f", &file.to_string_lossy()])
    )]
    Changed { host: String, kind: String, fingerprint: String, known: String, file: PathBuf },
    #[error("the host key of {host} ({kind} {fingerprint}) is revoked by {}:{line}", file.display())]
    Revoked { host: String, kind: String, fingerprint: String, file: PathBuf, line: usize },
    #[error("the host certificate of {host} (id `{id}`) is not acceptable: {reason}")]
    Certificate { host: String, id: String, reason: String },
    #[error("{} cannot be read ({source}), so the host key cannot be checked", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the new host key of {host} cannot be written to {}: {source}", path.display())]
    NotRecorded { host: String, path: PathBuf, source: io::Error },
}

fn keyscan(host: &str, files: &[PathBuf]) -> String {
    let file = files
        .first()
        .map_or_else(|| "~/.ssh/known_hosts".to_owned(), |path| command_word(&path.to_string_lossy()));
    let scan = match host.strip_prefix('[').and_then(|rest| rest.split_once("]:")) {
        Some((name, port)) => command_line(["ssh-keyscan", "-p", port, name]),
        None => command_line(["ssh-keyscan", host]),
    };
    format!("{scan} >> {file}")
}

/// What the files say about a host.
#[derive(Debug)]
pub(crate) struct KnownHost {
    /// The host's name in the files: in lower case, `[name]:port` if the port is not 22.
    pub(crate) name: String,
    /// The name without a port, for certificates.
    bare: String,
    entries: Vec<Entry>,
    /// Lines under the bare name, used if there are none for name and port.
    fallback: Vec<Entry>,
    /// The first is where a new key is written; also for messages.
    user_files: Vec<PathBuf>,
}

/// Why a key is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Known,
    /// No file has the host, and the policy accepts new keys.
    Learn,
}

/// Returns a host's name as `known_hosts` files write it.
pub(crate) fn file_name(host: &str, port: u16) -> String {
    let host = host.to_ascii_lowercase();
    if port == 22 { host } else { format!("[{host}]:{port}") }
}

impl KnownHost {
    /// Looks the host up in all files. Blocks on file reads.
    pub(crate) fn load(
        cache: &KnownHostsCache,
        user_files: Vec<PathBuf>,
        global_files: &[PathBuf],
        host: &str,
        port: Option<u16>,
    ) -> Result<Self, HostKeyError> {
        let bare = host.to_ascii_lowercase();
        let name = file_name(&bare, port.unwrap_or(22));
        let (mut entries, mut fallback) = (Vec::new(), Vec::new());
        for path in user_files.iter().chain(global_files) {
            let file =
                cache.load(path).map_err(|source| HostKeyError::Unreadable { path: path.clone(), source })?;
            let Some(file) = file else { continue };
            entries.extend(file.lookup(&name));
            if name != bare {
                fallback.extend(file.lookup(&bare));
            }
        }
        Ok(Self { name, bare, entries, fallback, user_files })
    }

    fn relevant(&self) -> &[Entry] {
        if self.entries.iter().any(|entry| entry.marker != Some(Marker::Revoked)) {
            &self.entries
        } else {
            &self.fallback
        }
    }

    /// Returns host key algorithms, those of known keys first: otherwise a known host could look unknown.
    pub(crate) fn key_algorithms(&self) -> Vec<Algorithm> {
        let known = |algorithm: &Algorithm| {
            self.relevant()
                .iter()
                .any(|entry| entry.marker.is_none() && same_kind(&entry.key.algorithm(), algorithm))
        };
        let (mut first, rest): (Vec<_>, Vec<_>) = algorithms().into_iter().partition(known);
        first.extend(rest);
        first
    }

    /// Returns algorithms of host certificates, if an authority is trusted for this host.
    pub(crate) fn certificate_algorithms(&self) -> Vec<Algorithm> {
        let trusted = self.relevant().iter().any(|entry| entry.marker == Some(Marker::CertAuthority));
        if trusted { algorithms() } else { Vec::new() }
    }

    /// Checks what the node presented.
    pub(crate) fn verify(
        &self,
        presented: &PublicKeyOrCertificate,
        policy: HostKeyPolicy,
        now: SystemTime,
    ) -> Result<Verdict, HostKeyError> {
        let key = presented.public_key();
        self.refuse_revoked(key.key_data(), &key)?;
        if let Some(certificate) = presented.certificate() {
            self.refuse_revoked(certificate.signature_key(), &key)?;
            match self.verify_certificate(certificate, now) {
                Ok(()) => return Ok(Verdict::Known),
                // OpenSSH then falls back to the bare key inside.
                Err(reason) if !self.knows(&key) => {
                    return Err(HostKeyError::Certificate {
                        host: self.name.clone(),
                        id: certificate.key_id().to_owned(),
                        reason,
                    });
                }
                Err(_) => return Ok(Verdict::Known),
            }
        }
        if self.knows(&key) {
            return Ok(Verdict::Known);
        }
        let (kind, fingerprint) = (kind(&key.algorithm()), key.fingerprint(HashAlg::Sha256).to_string());
        let plain: Vec<_> = self.relevant().iter().filter(|entry| entry.marker.is_none()).collect();
        if let Some(first) =
            plain.iter().find(|e| same_kind(&e.key.algorithm(), &key.algorithm())).or(plain.first())
        {
            let known = plain
                .iter()
                .map(|entry| {
                    let fingerprint = entry.key.fingerprint(HashAlg::Sha256);
                    format!(
                        "{}:{} has {} {fingerprint}",
                        entry.path.display(),
                        entry.line,
                        self::kind(&entry.key.algorithm())
                    )
                })
                .collect::<Vec<_>>()
                .join(", ");
            return Err(HostKeyError::Changed {
                host: self.name.clone(),
                kind,
                fingerprint,
                known,
                file: first.path.as_ref().clone(),
            });
        }
        match policy {
            HostKeyPolicy::AcceptNew => Ok(Verdict::Learn),
            HostKeyPolicy::Strict => Err(HostKeyError::Unknown {
                host: self.name.clone(),
                kind,
                fingerprint,
                files: self.user_files.clone(),
            }),
        }
    }

    fn knows(&self, key: &PublicKey) -> bool {
        self.relevant().iter().any(|entry| entry.marker.is_none() && entry.key.key_data() == key.key_data())
    }

    fn refuse_revoked(&self, suspect: &KeyData, presented: &PublicKey) -> Result<(), HostKeyError> {
        let revoked = self
            .entries
            .iter()
            .chain(&self.fallback)
            .find(|entry| entry.marker == Some(Marker::Revoked) && entry.key.key_data() == suspect);
        match revoked {
            None => Ok(()),
            Some(entry) => Err(HostKeyError::Revoked {
                host: self.name.clone(),
                kind: kind(&presented.algorithm()),
                fingerprint: presented.fingerprint(HashAlg::Sha256).to_string(),
                file: entry.path.as_ref().clone(),
                line: entry.line,
            }),
        }
    }

    fn verify_certificate(&self, certificate: &Certificate, now: SystemTime) -> Result<(), String> {
        if certificate.cert_type() != CertType::Host {
            return Err("it is a user certificate".to_owned());
        }
        let authority = certificate.signature_key().fingerprint(HashAlg::Sha256);
        let trusted: Vec<_> = self
            .relevant()
            .iter()
            .filter(|entry| entry.marker == Some(Marker::CertAuthority))
            .map(|entry| entry.key.fingerprint(HashAlg::Sha256))
            .collect();
        if !trusted.contains(&authority) {
            return Err(format!("no known_hosts file trusts its authority {authority} for this host"));
        }
        if matches!(certificate.signature().algorithm(), Algorithm::Rsa { hash: None } | Algorithm::Dsa) {
            return Err("its signature uses SHA-1".to_owned());
        }
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if seconds < certificate.valid_after() {
            return Err("it is not valid yet; check the clocks".to_owned());
        }
        if seconds >= certificate.valid_before() {
            return Err("it has expired".to_owned());
        }
        certificate.validate_at(seconds, &trusted).map_err(|_| "its signature is wrong".to_owned())?;
        if certificate.critical_options().iter().next().is_some() {
            return Err("it has critical options that are not understood".to_owned());
        }
        let principals = certificate.valid_principals();
        if !principals.is_empty() && !principals.iter().any(|name| name.eq_ignore_ascii_case(&self.bare)) {
            return Err(format!("it is for {}, not for {}", principals.join(", "), self.bare));
        }
        Ok(())
    }

    /// Writes a new key to the first user file. Blocks.
    pub(crate) fn record(
        &self,
        cache: &KnownHostsCache,
        key: &PublicKey,
        hashed: bool,
    ) -> Result<(), HostKeyError> {
        let Some(path) = self.user_files.first() else { return Ok(()) };
        let fail = |source| HostKeyError::NotRecorded { host: self.name.clone(), path: path.clone(), source };
        let salt = *uuid::Uuid::new_v4().as_bytes();
        let mut salt20 = [0u8; 20];
        for (slot, byte) in salt20.iter_mut().zip(salt.iter().chain(uuid::Uuid::new_v4().as_bytes())) {
            *slot = *byte;
        }
        let line = line_for(&self.name, key, hashed.then_some(&salt20[..]))
            .map_err(|error| fail(io::Error::other(error)))?;
        // Checked again: another connection or another gpufleet may have written the line meanwhile.
        let is_there = |text: &str| {
            let known = KnownHostsFile::parse(path, text).lookup(&self.name);
            known.iter().any(|entry| entry.marker.is_none() && entry.key.key_data() == key.key_data())
        };
        append(path, &line, is_there).map_err(fail)?;
        cache.forget(path);
        Ok(())
    }
}

/// Appends a whole line under the file's lock, unless the file has such a line by then.
fn append(path: &Path, line: &str, is_there: impl FnOnce(&str) -> bool) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    if path == Path::new("/dev/null") {
        return Ok(());
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = std::fs::OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    file.lock()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if is_there(&String::from_utf8_lossy(&bytes)) {
        return Ok(());
    }
    let mut text = String::new();
    if bytes.last().is_some_and(|last| *last != b'\n') {
        text.push('\n');
    }
    text.push_str(line);
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

fn algorithms() -> Vec<Algorithm> {
    vec![
        Algorithm::Ed25519,
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 },
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP384 },
        Algorithm::Ecdsa { curve: EcdsaCurve::NistP521 },
        Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
        Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
    ]
}

fn same_kind(a: &Algorithm, b: &Algorithm) -> bool {
    match (a, b) {
        (Algorithm::Rsa { .. }, Algorithm::Rsa { .. }) => true,
        (a, b) => a == b,
    }
}

fn kind(algorithm: &Algorithm) -> String {
    match algorithm {
        Algorithm::Rsa { .. } => "RSA".to_owned(),
        Algorithm::Ed25519 => "ED25519".to_owned(),
        Algorithm::Ecdsa { .. } => "ECDSA".to_owned(),
        other => other.to_string(),
    }
}

/// The check that the SSH handler runs.
pub(crate) struct HostKeyCheck {
    pub(crate) known: Arc<KnownHost>,
    pub(crate) policy: HostKeyPolicy,
    pub(crate) hash_new: bool,
    pub(crate) cache: Arc<KnownHostsCache>,
}

impl HostKeyCheck {
    /// Checks a key, and records a new one if the policy says so.
    pub(crate) async fn run(&self, presented: &PublicKeyOrCertificate) -> Result<(), HostKeyError> {
        if self.known.verify(presented, self.policy, SystemTime::now())? == Verdict::Known {
            return Ok(());
        }
        let (known, cache, hashed) = (Arc::clone(&self.known), Arc::clone(&self.cache), self.hash_new);
        let key = presented.public_key();
        let written = tokio::task::spawn_blocking(move || known.record(&cache, &key, hashed)).await;
        written.unwrap_or_else(|error| {
            Err(HostKeyError::NotRecorded {
                host: self.known.name.clone(),
                path: self.known.user_files.first().cloned().unwrap_or_default(),
                source: io::Error::other(error),
            })
        })
    }
}

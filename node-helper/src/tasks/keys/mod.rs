//! `apt_key` and `rpm_key`: which keys packages may be signed with.
//!
//! Key files are read here, without gpg, which many nodes do not have. Signatures are verified by apt and rpm.

mod apt;
mod rpm;

use gpufleet_protocol::{
    repository::openpgp::{self, Certificate, Key},
    tasks::ChecksumAlgorithm,
};

use crate::{declare::Trouble, os::checksum, tasks::edits::Present};

/// Largest key file that is downloaded, in bytes.
pub const LIMIT: u64 = 1 << 20;
/// The folder of keyrings that apt trusts for every repository.
pub const TRUSTED_FOLDER: &str = "/etc/apt/trusted.gpg.d";

/// Returns the fingerprint of a key, in upper-case hexadecimal.
pub fn fingerprint(key: &Key) -> String {
    let algorithm = if key.version == 4 { ChecksumAlgorithm::Sha1 } else { ChecksumAlgorithm::Sha256 };
    checksum::of(algorithm, key.hashed.as_slice()).unwrap_or_default().to_ascii_uppercase()
}

/// Returns the key id of 16 digits.
pub fn long_id(key: &Key) -> String {
    let whole = fingerprint(key);
    let id = if key.version == 4 { whole.get(whole.len().saturating_sub(16)..) } else { whole.get(..16) };
    id.unwrap_or_default().to_owned()
}

/// Whether an id of any length, in upper case, names a key.
pub fn names(id: &str, key: &Key) -> bool {
    let whole = fingerprint(key);
    match (key.version, id.len()) {
        (_, 32..) => whole == id,
        (4, _) => whole.ends_with(id),
        _ => long_id(key).ends_with(id),
    }
}

/// Whether the text of a key file is armored.
pub fn is_armored(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.contains("-----BEGIN PGP PUBLIC KEY BLOCK-----")
}

/// Returns the binary form of key material.
///
/// # Errors
/// If it holds no public key, for people.
pub fn material(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    let binary = match is_armored(bytes) {
        true => openpgp::dearmored(&String::from_utf8_lossy(bytes))?.unwrap_or_default(),
        false => bytes.to_vec(),
    };
    match openpgp::certificates(&binary)?.is_empty() {
        true => Err("it holds no public key"),
        false => Ok(binary),
    }
}

/// Returns the certificates whose primary keys have one of these ids, and nothing else of the material.
///
/// Not by subkeys: signatures that bind them are not verified here, and anybody can append somebody else's key to his own.
///
/// # Errors
/// The id that no primary key has.
pub fn only<'a>(material: &[u8], ids: &'a [String]) -> Result<Vec<u8>, &'a str> {
    let all = openpgp::certificates(material).unwrap_or_default();
    let is = |one: &Certificate, id: &str| one.keys.first().is_some_and(|key| names(id, key));
    if let Some(id) = ids.iter().find(|id| !all.iter().any(|one| is(one, id))) {
        return Err(id);
    }
    let named = all.iter().filter(|one| ids.iter().any(|id| is(one, id)));
    Ok(named.flat_map(|one| material.get(one.range.clone()).unwrap_or_default()).copied().collect())
}

/// A file of keys.
#[derive(Clone, Debug)]
pub struct Keyring {
    pub file: Present,
    /// Its keys in binary form.
    pub bytes: Vec<u8>,
    pub certificates: Vec<Certificate>,
    armored: bool,
}

impl Keyring {
    /// Reads the keys of a file, which may be empty.
    ///
    /// # Errors
    /// If it holds something else, for people.
    pub fn of(file: &Present) -> Result<Self, &'static str> {
        let bytes = file.bytes.as_deref().unwrap_or_default();
        let armored = is_armored(bytes);
        let bytes = match bytes {
            [] => Vec::new(),
            bytes => material(bytes)?,
        };
        let certificates = openpgp::certificates(&bytes)?;
        Ok(Self { file: file.clone(), bytes, certificates, armored })
    }

    /// Whether a key of it has this id.
    pub fn has(&self, id: &str) -> bool {
        self.certificates.iter().any(|one| one.keys.iter().any(|key| names(id, key)))
    }

    /// Returns the file's content without the certificates that a test names.
    pub fn without(&self, goes: impl Fn(&Certificate) -> bool) -> Vec<u8> {
        let kept = self.certificates.iter().filter(|one| !goes(one));
        let bytes: Vec<u8> =
            kept.flat_map(|one| self.bytes.get(one.range.clone()).unwrap_or_default()).copied().collect();
        match self.armored && !bytes.is_empty() {
            true => openpgp::armored(&bytes, checksum::base64).into_bytes(),
            false => bytes,
        }
    }
}

/// Creates the error for material that is no key; `place` is where it comes from.
fn no_key(place: &str, why: &str) -> Trouble {
    Trouble::invalid(format!("{place}: {why}"))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    /// Made with gpg for these tests, ed25519, without an end.
    pub const ARMORED: &str = include_str!("testdata/tests.asc");
    pub const FINGERPRINT: &str = "051C21B5B4DC64454A5505D1F7D241EB974ADA98";
    /// Made with gpg in 2020, RSA, with an end a day later.
    pub const EXPIRED: &str = include_str!("testdata/expired.asc");
    pub const EXPIRED_FINGERPRINT: &str = "40073BDFFA92D21FDEFA699B3AC028566419683C";

    /// Installs a curl that notes the address and gives this text.
    pub fn curl(bench: &Bench, gives: &str) {
        bench.write("gives", gives);
        let d = bench.path("");
        bench.script(
            "usr/bin/curl",
            &format!(
                "#!/bin/sh\nsed -n 's/^url = \"\\(.*\\)\"/\\1/p' >> {d}/log\ncat {d}/gives\n\
                 printf '\\ngpufleet-http-status 200'\n",
                d = d.display()
            ),
        );
    }

    #[test]
    fn fingerprints_are_those_of_gpg() {
        for (text, wanted) in [(ARMORED, FINGERPRINT), (EXPIRED, EXPIRED_FINGERPRINT)] {
            let binary = material(text.as_bytes()).unwrap();
            let all = openpgp::certificates(&binary).unwrap();
            let key = &all[0].keys[0];
            assert_eq!((all.len(), fingerprint(key).as_str()), (1, wanted));
            for digits in [8, 16, 40] {
                assert!(names(&wanted[40 - digits..], key));
            }
            assert!(!names("0123456789ABCDEF", key));
            assert_eq!(all[0].expires.is_some(), text == EXPIRED);
            assert_eq!(material(&binary).unwrap(), binary);
        }
        assert_eq!(material(b"<html>"), Err("it is no OpenPGP key"));
        assert_eq!(material(b""), Err("it holds no public key"));
    }

    #[test]
    fn a_foreign_subkey_does_not_name_a_key() {
        let (own, other) = (material(ARMORED.as_bytes()).unwrap(), material(EXPIRED.as_bytes()).unwrap());
        let ids = |id: &str| [id.to_owned()];
        // Of a file with several, only the declared one is taken.
        let both = [own.clone(), other.clone()].concat();
        assert_eq!(only(&both, &ids(EXPIRED_FINGERPRINT)), Ok(other.clone()));
        assert_eq!(only(&both, &ids(FINGERPRINT)), Ok(own.clone()));
        // Somebody's key, with the public half of another one behind it as a subkey.
        let hashed = &openpgp::certificates(&other).unwrap()[0].keys[0].hashed;
        let body = &hashed[3..];
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let forged = [&own[..], &[0xC0 | 14, 255], &length, body].concat();
        assert!(
            openpgp::certificates(&forged).unwrap()[0].keys.iter().any(|key| names(EXPIRED_FINGERPRINT, key))
        );
        assert_eq!(only(&forged, &ids(EXPIRED_FINGERPRINT)), Err(EXPIRED_FINGERPRINT));
    }
}

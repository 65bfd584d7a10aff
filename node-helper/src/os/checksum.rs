//! Checksums of files, computed while reading, and base64.

use std::io::{self, Read};

use gpufleet_protocol::tasks::ChecksumAlgorithm;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

use super::files::hex;

/// Passes each piece of a reader to `sink`, and returns the size in bytes.
fn pieces(mut reader: impl Read, mut sink: impl FnMut(&[u8])) -> io::Result<u64> {
    let mut buffer = vec![0u8; 128 * 1024];
    let mut size = 0u64;
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(size),
            Ok(count) => {
                sink(buffer.get(..count).unwrap_or_default());
                size += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn digest_of<D: Digest>(reader: impl Read) -> io::Result<String> {
    let mut digest = D::new();
    pieces(reader, |piece| digest.update(piece))?;
    Ok(hex(digest.finalize()))
}

/// Returns the checksum of a reader's content, in lower-case hexadecimal.
///
/// # Errors
/// Those of the reader.
pub fn of(algorithm: ChecksumAlgorithm, reader: impl Read) -> io::Result<String> {
    match algorithm {
        ChecksumAlgorithm::Md5 => {
            let mut context = md5::Context::new();
            pieces(reader, |piece| context.consume(piece))?;
            Ok(hex(context.finalize().0))
        }
        ChecksumAlgorithm::Sha1 => digest_of::<sha1::Sha1>(reader),
        ChecksumAlgorithm::Sha224 => digest_of::<Sha224>(reader),
        ChecksumAlgorithm::Sha256 => digest_of::<Sha256>(reader),
        ChecksumAlgorithm::Sha384 => digest_of::<Sha384>(reader),
        ChecksumAlgorithm::Sha512 => digest_of::<Sha512>(reader),
    }
}

/// Digests of content: SHA-256 for comparisons, SHA-1 and MD5 because Ansible's results have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    pub sha256: String,
    /// `None` if only the SHA-256 is known before the run.
    pub sha1: Option<String>,
    /// `None` in the same case as `sha1`.
    pub md5: Option<String>,
    /// In bytes.
    pub size: u64,
}

/// Computes all digests in one pass.
///
/// # Errors
/// Those of the reader.
pub fn digests(reader: impl Read) -> io::Result<Digests> {
    let (mut sha256, mut sha1, mut md5) = (Sha256::new(), sha1::Sha1::new(), md5::Context::new());
    let size = pieces(reader, |piece| {
        sha256.update(piece);
        sha1::Digest::update(&mut sha1, piece);
        md5.consume(piece);
    })?;
    let (sha256, sha1) = (hex(sha256.finalize()), hex(sha1.finalize()));
    Ok(Digests { sha256, sha1: Some(sha1), md5: Some(hex(md5.finalize().0)), size })
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as base64 with padding, as Ansible's `slurp` does.
pub fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let part = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let word = part(0) << 16 | part(1) << 8 | part(2);
        for at in 0..4 {
            let letter = LETTERS.get((word >> (18 - 6 * at)) as usize & 63).copied().unwrap_or(b'=');
            out.push(if at <= chunk.len() { letter as char } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        let of = |algorithm| of(algorithm, b"abc".as_slice()).unwrap();
        assert_eq!(of(ChecksumAlgorithm::Md5), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(of(ChecksumAlgorithm::Sha1), "a9993e364706816aba3e25717850c26c9cd0d89d");
        for algorithm in [
            ChecksumAlgorithm::Sha1,
            ChecksumAlgorithm::Md5,
            ChecksumAlgorithm::Sha224,
            ChecksumAlgorithm::Sha256,
            ChecksumAlgorithm::Sha384,
            ChecksumAlgorithm::Sha512,
        ] {
            assert_eq!(of(algorithm).len(), algorithm.digits(), "{algorithm}");
        }
        let both = digests(b"abc".as_slice()).unwrap();
        assert_eq!(both.md5.as_deref(), Some("900150983cd24fb0d6963f7d28e17f72"));
        assert_eq!(both.sha1.as_deref(), Some("a9993e364706816aba3e25717850c26c9cd0d89d"));
        assert_eq!((both.sha256, both.size), (super::super::files::sha256(b"abc"), 3));
    }

    #[test]
    fn base64_is_padded() {
        for (text, wanted) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("hi2\n", "aGkyCg==")]
        {
            assert_eq!(base64(text.as_bytes()), wanted);
        }
    }
}

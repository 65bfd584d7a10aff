//! The helper's file, identified by its content.

use std::io::{Read as _, Write as _};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use gpufleet_payload::Carried;
use sha2::{Digest, Sha256};
use tokio_util::bytes::Bytes;

/// The helper for one architecture.
#[derive(Clone, Debug)]
pub struct NodeFile {
    /// As `uname -m` prints it.
    pub architecture: String,
    /// What is sent: the file, packed with gzip.
    pub packed: Bytes,
    /// Size of the unpacked file in bytes.
    pub size: usize,
    /// SHA-256 of the unpacked file, in lower-case hexadecimal.
    pub sha256: String,
}

impl NodeFile {
    /// Packs a file.
    pub fn new(architecture: impl Into<String>, bytes: &[u8]) -> Self {
        let sha256 = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut packer = GzEncoder::new(Vec::new(), Compression::default());
        // Writing to memory cannot fail.
        let _ = packer.write_all(bytes);
        let packed = Bytes::from(packer.finish().unwrap_or_default());
        Self { architecture: architecture.into(), packed, size: bytes.len(), sha256 }
    }

    fn carried(architecture: &str, file: &'static Carried) -> Option<Self> {
        (file.size > 0).then(|| Self {
            architecture: architecture.to_owned(),
            packed: Bytes::from_static(file.packed),
            size: file.size,
            sha256: file.sha256.to_owned(),
        })
    }

    /// Returns the unpacked file, for a node that cannot unpack it.
    pub(super) fn plain(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.size);
        // Packed by this build, and the node compares the digest.
        let _ = GzDecoder::new(&*self.packed).read_to_end(&mut bytes);
        Bytes::from(bytes)
    }
}

/// The helper for every architecture that this build supports.
#[derive(Clone, Debug)]
pub struct NodeFiles(Vec<NodeFile>);

impl NodeFiles {
    pub fn new(files: Vec<NodeFile>) -> Self {
        Self(files)
    }

    /// Returns the files that this build contains.
    pub fn embedded() -> Self {
        let carried = [("x86_64", &gpufleet_payload::NODE), ("aarch64", &gpufleet_payload::NODE_AARCH64)];
        Self(carried.into_iter().filter_map(|(name, file)| NodeFile::carried(name, file)).collect())
    }

    pub(super) fn list(&self) -> String {
        let entry = |file: &NodeFile| {
            format!("{}={}={}={}", file.architecture, file.sha256, file.size, file.packed.len())
        };
        self.0.iter().map(entry).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn get(&self, architecture: &str) -> Option<&NodeFile> {
        self.0.iter().find(|file| file.architecture == architecture)
    }

    pub(super) fn has_digest(&self, digest: &str) -> bool {
        self.0.iter().any(|file| file.sha256 == digest)
    }

    pub(super) fn architectures(&self) -> String {
        self.0.iter().map(|file| file.architecture.as_str()).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limit on what a node is sent at first contact, in bytes.
    ///
    /// A hundred nodes behind one line wait for a hundred times as much. 130,000 of them are the engine of patterns that look
    /// around, without which `lineinfile` and `replace` refused on the node what Ansible does.
    const WIRE: usize = 4_000_000;

    #[test]
    fn the_helper_stays_light() {
        for file in NodeFiles::embedded().0 {
            assert!(file.packed.len() <= WIRE, "{} bytes for {}", file.packed.len(), file.architecture);
        }
    }

    #[test]
    fn what_is_packed_is_the_file() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 7) as u8).collect();
        let file = NodeFile::new("x86_64", &bytes);
        assert!(file.packed.len() < bytes.len() / 10);
        assert_eq!((file.size, file.plain()), (bytes.len(), Bytes::from(bytes)));
        for file in NodeFiles::embedded().0 {
            let again = NodeFile::new(file.architecture.clone(), &file.plain());
            assert_eq!((again.size, again.sha256), (file.size, file.sha256));
        }
    }
}

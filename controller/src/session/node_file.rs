//! The helper's file, named by its content.

use sha2::{Digest, Sha256};
use tokio_util::bytes::Bytes;

/// The helper for one architecture.
#[derive(Clone, Debug)]
pub struct NodeFile {
    /// As `uname -m` says it.
    pub architecture: String,
    pub bytes: Bytes,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

impl NodeFile {
    pub fn new(architecture: impl Into<String>, bytes: Bytes) -> Self {
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { architecture: architecture.into(), bytes, sha256 }
    }
}

/// The helper for every architecture that this build knows.
#[derive(Clone, Debug)]
pub struct NodeFiles(Vec<NodeFile>);

impl NodeFiles {
    pub fn new(files: Vec<NodeFile>) -> Self {
        Self(files)
    }

    /// What this build carries. Hashes the files, so it is called once a run.
    pub fn embedded() -> Self {
        let carried = [("x86_64", gpufleet_payload::NODE), ("aarch64", gpufleet_payload::NODE_AARCH64)];
        let here = carried.into_iter().filter(|(_, bytes)| !bytes.is_empty());
        Self(
            here.map(|(architecture, bytes)| NodeFile::new(architecture, Bytes::from_static(bytes)))
                .collect(),
        )
    }

    pub(super) fn list(&self) -> String {
        let entry = |file: &NodeFile| format!("{}={}={}", file.architecture, file.sha256, file.bytes.len());
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

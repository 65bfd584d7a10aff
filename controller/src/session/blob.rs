//! Content that helpers request during an operation.

use std::{collections::HashMap, path::PathBuf};

use tokio::io::AsyncRead;
use tokio_util::bytes::Bytes;

/// A source of content.
pub enum BlobContent {
    Bytes(Bytes),
    File(PathBuf),
    Stream(Box<dyn AsyncRead + Send + Unpin>),
}

impl std::fmt::Debug for BlobContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// Finds content by its digest.
pub trait BlobSource: Send + Sync {
    /// Returns the content with this digest; `None` if there is none.
    fn open(&self, sha256: &str) -> Option<BlobContent>;
}

/// A source for operations that need no content.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBlobs;

impl BlobSource for NoBlobs {
    fn open(&self, _: &str) -> Option<BlobContent> {
        None
    }
}

/// Content in memory, by lower-case hexadecimal SHA-256.
impl BlobSource for HashMap<String, Bytes> {
    fn open(&self, sha256: &str) -> Option<BlobContent> {
        self.get(sha256).cloned().map(BlobContent::Bytes)
    }
}

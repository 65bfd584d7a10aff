//! The node files that this build contains: supervisor, worker, length and magic, as in docs/architecture.md.

/// One node file; empty if this build does not contain it.
#[derive(Debug)]
pub struct Carried {
    /// The file, packed by gzip.
    pub packed: &'static [u8],
    /// Size of the unpacked file, in bytes.
    pub size: usize,
    /// SHA-256 of the unpacked file, in lower-case hexadecimal.
    pub sha256: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/files.rs"));

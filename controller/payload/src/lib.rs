//! The node files that this build carries: supervisor, worker, length and magic, as docs/architecture.md describes.

/// One node file. One that this build does not carry is empty.
#[derive(Debug)]
pub struct Carried {
    /// As gzip packs it.
    pub packed: &'static [u8],
    /// Of the file itself, in bytes.
    pub size: usize,
    /// Of the file itself, lower-case hexadecimal.
    pub sha256: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/files.rs"));

//! The node file that this build embeds.
/// Supervisor, worker, length and magic, as docs/architecture.md describes.
pub static NODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/node.bin"));

/// The same for aarch64; empty in builds that carry none, which are all but releases.
pub static NODE_AARCH64: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/node-aarch64.bin"));

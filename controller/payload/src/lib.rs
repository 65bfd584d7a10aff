//! The node file that this build embeds.
/// Supervisor, worker, length and magic, as docs/architecture.md describes.
pub static NODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/node.bin"));

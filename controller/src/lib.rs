//! See docs/architecture.md.

pub mod session;
pub mod transport;

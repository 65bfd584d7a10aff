//! See docs/architecture.md.

pub mod diagnostic;
pub mod inventory;
pub mod template;
pub mod yaml;

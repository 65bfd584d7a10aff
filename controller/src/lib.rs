//! See docs/architecture.md.

pub mod diagnostic;
pub mod interpreter;
pub mod inventory;
pub mod playbook;
pub mod template;
pub mod yaml;

//! The reference of task kinds, from the registry: `gpufleet doc` and docs/reference/kinds.md.

mod kinds;

pub use kinds::{kind_text, kinds_list, kinds_markdown};

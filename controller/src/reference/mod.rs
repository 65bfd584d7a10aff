//! The reference of task kinds, drainers and checks and the schemas of input files, generated from the registries: `gpufleet doc`,
//! `gpufleet schema`, docs/reference and docs/schema.

mod checks;
mod drainers;
mod gpu;
mod ground;
mod kinds;
mod schema;

pub use checks::{check_text, checks_markdown, checks_text, xid_text};
pub use drainers::{drainers_markdown, drainers_text};
pub use gpu::gpu_markdown;
pub use kinds::{kind_text, kinds_markdown};
pub use schema::{check_schema, config_schema, inventory_schema, playbook_schema, tasks_schema};

pub use crate::report::{difference_schema, document_schema as report_schema, event_schema};

//! The reference of task kinds and the schemas of input files, generated from the registry: `gpufleet doc`, `gpufleet
//! schema`, docs/reference/kinds.md and docs/schema.

mod kinds;
mod schema;

pub use kinds::{kind_text, kinds_list, kinds_markdown};
pub use schema::{check_schema, config_schema, inventory_schema, playbook_schema, tasks_schema};

pub use crate::report::{document_schema as report_schema, event_schema};

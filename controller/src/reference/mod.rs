//! The reference of task kinds and the schemas of what people write, from the registry: `gpufleet doc`, `gpufleet
//! schema`, docs/reference/kinds.md and docs/schema.

mod kinds;
mod schema;

pub use kinds::{kind_text, kinds_list, kinds_markdown};
pub use schema::{config_schema, inventory_schema, playbook_schema, tasks_schema};

/// The schema of `report.json`, as it is handed out.
pub const REPORT_SCHEMA: &str = include_str!("../../../docs/schema/report.schema.json");

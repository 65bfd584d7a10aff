//! Templates and conditions.
//!
//! Owns the template engine (minijinja, used nowhere else), its filters, tests and lookups, and the values of
//! variables. Must not know playbooks, hosts or tasks. Invariants: a missing variable is an error that names it,
//! except under `default` and `is defined`; a value that depends on something unknown is unknown, never a guess; text
//! from a node is never rendered; messages hold names and types, never values.

mod bounds;
mod engine;
mod error;
mod filters;
mod frame;
mod includes;
pub mod inert;
mod lookups;
mod methods;
mod mutable;
mod outside;
mod parts;
mod rewrite;
mod scan;
mod scope;
mod sight;
mod syntax;
mod value;

pub use engine::{
    References, condition, evaluate, inspect_expression, inspect_template, position_of, render,
    render_document_as, resolve,
};
pub use error::TemplateError;
pub use filters::{is_found, normal_path};
pub use frame::{met_secret, take_warnings, watch};
pub use includes::{Shelves, Wanted, wanted as wanted_templates};
pub use lookups::{check_name as check_lookup, check_terms, guard_of, loop_over};
pub use outside::{Content, Outside, PathKind};
pub use scan::is_template;
pub use scope::{Scope, Teller};
pub use syntax::Syntax;
pub use value::{Dict, List, OMITTED, Value};

/// The result of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    True,
    False,
    /// It depends on a value that is known only during the run.
    Unknown,
}

#[cfg(test)]
mod tests;

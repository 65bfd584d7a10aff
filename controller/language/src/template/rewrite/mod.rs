//! Rewrites template text, so that the engine treats it as Jinja does in Ansible.
//!
//! Owns what changes in a text before it is compiled, and the mapping of places back to the original, so that a
//! mistake is shown where it was written. Must not know values. Invariants: a text that needs no change stays as it
//! is, and so does one that the engine could no longer parse. The steps and their reasons:
//! docs/design/0013-rewriting-templates.md.

mod literals;
mod minus;
mod spelling;
mod text;
mod variadic;
mod walk;

pub(super) use literals::{
    DICT, LIST, changes_values, expression as with_literals, template as with_literals_in,
};
pub(super) use minus::{MINUS, rewritten as with_minus};
pub(super) use spelling::{dotted, dotted_template, doubled_backslashes, unqualified};
pub(super) use text::Rewritten;
pub(super) use walk::{Document, ORDER, SCOPE, document, expression, register};

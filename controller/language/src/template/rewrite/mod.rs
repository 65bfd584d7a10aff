//! Template text, rewritten so that the engine does with it what Jinja does with Ansible.
//!
//! Owns what changes in a text before it is compiled, and where a place of the new text lay in the old one, so that a
//! mistake is shown where it was written. Must not know what the values are. Invariants: a text that needs nothing stays
//! as it is; so does one that the engine could not parse any more. The steps and why each is needed:
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
pub(super) use walk::{Document, SCOPE, document, expression, register};

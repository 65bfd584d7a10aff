//! The language of rules: what a check asks of the signals of a node.
//!
//! A rule is one expression over signals (`temp_c`), what is declared (`declared.power_w`) and the parameters of its
//! check (`p.warn`). [`parse`] reads it, [`compile`] checks names and types, [`Code::holds`] evaluates it. Invariants:
//! no text and no reading makes any of them panic; an operand that is not known never makes a rule hold.

mod ast;
mod compile;
mod error;
mod eval;
mod history;
mod lexer;
mod parser;
mod records;
#[cfg(test)]
mod tests;
mod truth;
mod value;
mod version;

pub use ast::{Expr, ExprKind, Name, Operator};
pub use compile::{Code, Context, compile};
pub use error::RuleError;
pub(crate) use eval::NoOthers;
pub use eval::{Others, Scene};
pub use parser::parse;
pub(crate) use records::Pci;
pub use truth::Truth;
pub use version::version_matches;

/// Characters of a rule.
pub const MAX_LENGTH: usize = 2_000;
/// Nesting of a rule, and height of its tree.
pub const MAX_DEPTH: usize = 40;

//! What is wrong or doubtful in playbooks, all of it at once and without a node.
//!
//! Owns the rules beyond the strict parser's, their names, severities and documentation, and how findings are written
//! for machines. Must not contact hosts. Invariants: what the parser refuses is an error here too; a rule can be
//! silenced where it is wrong, an error cannot.

mod noqa;
mod rules;
mod run;
mod sarif;
mod tasks;
mod unused;

pub use rules::{RULES, Rule, Severity, rule, rules_markdown};
pub use run::{Finding, Report, check};
pub use sarif::sarif;

#[cfg(test)]
mod tests;

//! Finds what is wrong or doubtful in playbooks, all at once and without contacting a node.
//!
//! Owns the rules that go beyond the strict parser: their names, severities and documentation, and how findings are
//! written for programs. Must not contact hosts. Invariants: what the parser refuses is an error here too; a rule can
//! be silenced for a place, an error cannot.

mod contradictions;
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
mod contradictions_tests;
#[cfg(test)]
mod guide_tests;
#[cfg(test)]
mod tests;

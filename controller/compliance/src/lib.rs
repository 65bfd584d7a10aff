//! Judges what nodes read of themselves: pure, without files, clocks or sockets.
//!
//! | what a caller wants | where it is |
//! |---|---|
//! | the checks, with why, remediation and references | [`Catalogue::get`] |
//! | what to type about a finding, and what that ends | [`advice`] |
//! | what a helper has to read for them | [`Catalogue::signals`] |
//! | a baseline, from the built-in ones and users' files | [`baseline::load`], [`Policy`] |
//! | a baseline from good nodes | [`learn::learn`] |
//! | what holds for one node | [`Policy::for_node`] |
//! | the findings about a node | [`judge()`] |
//! | what later audits have to know of this one | [`Memory`] |
//! | which nodes differ from their peers | [`outlier`] |
//! | which of them somebody accepted, until when | [`Waivers`] |
//! | the verdict of the node, its action, coverage and score | [`fold()`] |
//! | the language of rules | [`rule`] |
//!
//! Invariant: what could not be read never makes a check ok.

pub mod advice;
pub mod baseline;
pub mod catalogue;
pub mod declared;
mod finding;
pub mod fold;
mod judge;
pub mod learn;
mod memory;
pub mod outlier;
mod places;
mod policy;
pub mod rule;
#[cfg(test)]
mod samples;
mod texts;
mod verdict;
mod vocabulary;
pub mod waiver;
pub mod xid;

pub use catalogue::{Catalogue, Check};
pub use finding::{Finding, NaReason, Subject};
pub use fold::{Coverage, NodeVerdict, NotJudged, fold};
pub use judge::{judge, judge_after, leave_to_tasks};
pub use memory::{Hysteresis, Memory, Standing};
pub use policy::{AskedReading, GroupPolicy, NodePolicy, OwnCheck, Policy, PolicyCheck, PolicyData};
pub use verdict::{Action, Scope, Severity, Verdict};
pub use vocabulary::Kind;
pub use waiver::Waivers;

//! What audits found over time: a store in SQLite, or in PostgreSQL for several controllers.
//!
//! | what a caller wants | where it is |
//! |---|---|
//! | to open a store, by what a person wrote | [`Store::open`], [`Place`] |
//! | to record what an audit found | [`Store::record`], [`Audit`] |
//! | the fleet's trend | [`Store::audits`], [`AuditRow`] |
//! | each node as it is now, and over time | [`Store::nodes`], [`Store::node`] |
//! | what is open, and since when | [`Store::open_findings`], [`Store::control`] |
//! | what an audit needs of earlier ones | [`Store::memories`] |
//! | to forget what is old, to record again | [`Store::prune`], [`Store::replace`] |
//!
//! Observations are the truth. What is open, and since when, follows from them; it is kept beside them, so that asking is
//! quick. The order in which audits are recorded makes no difference: they are ordered by the times at which nodes were read.

mod audit;
mod error;
mod fold;
mod place;
mod rows;
#[cfg(any(test, feature = "sample"))]
pub mod sample;
mod store;

pub use audit::{Audit, Controls, Found, NodeReading};
pub use error::StoreError;
pub use place::{Place, redacted};
pub use rows::{AuditRow, ControlHistory, NodeHistory, NodeRow, OpenFinding, PastFinding, Span};
pub use store::{Earlier, Recorded, Store};

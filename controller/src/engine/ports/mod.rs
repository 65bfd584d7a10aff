//! What the engine asks of others: ways to nodes, a person, and those who are told of events.

pub(super) mod confirm;
pub(super) mod link;
pub(super) mod sink;

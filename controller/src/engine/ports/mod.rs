//! What the engine asks of others: ways to nodes, schedulers, programs of this machine, a person, and those who are told of
//! events.

pub(super) mod confirm;
pub(super) mod keep_signer;
pub(super) mod link;
pub(super) mod runner;
pub(super) mod scheduler;
pub(super) mod sink;

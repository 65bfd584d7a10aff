//! A node out of service: permit, drain, proof that it is idle, reboot, power cycle, health gate, and giving it back.

mod asking;
mod drain;
mod gate;
mod give_back;
mod layout;
mod outlast;
mod permits;
mod power;
mod proof;
mod reboot;
mod refusal;

use tokio::time::Instant;

use crate::engine::node::conversation::Conversation;

/// One node that this run may take out of service, and gives back.
pub(crate) struct Custody {
    pub(crate) node: Conversation,
    /// When the node was last proven to be ours and idle.
    pub(crate) proven: Option<Instant>,
    /// What the wanted permit is for.
    pub(crate) reason: String,
    /// Whether its scheduler was asked in vain to take it back, for as long as it is asked at all.
    pub(crate) is_stuck: bool,
}

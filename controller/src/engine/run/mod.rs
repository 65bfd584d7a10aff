//! A whole run: its plays one after the other, begun or taken up.

mod between;
pub(super) mod drain_preview;
pub(super) mod engine;
pub(super) mod options;
mod peers;
mod policy;
mod take_over;
mod take_up;

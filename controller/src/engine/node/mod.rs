//! One node: the driver of its cursor, what is said to it, and its custody while it is out of service.

pub(super) mod command_losses;
pub(super) mod conversation;
pub(super) mod custody;
pub(super) mod dispatcher;
mod drive_result;
pub(super) mod driver;
pub(super) mod early_end;
pub(super) mod hooks;
pub(super) mod message;
mod node_object;
mod pause;
pub(super) mod results_budget;
mod resume;
pub(super) mod settings;
pub(super) mod throttle;
pub(super) mod turn;

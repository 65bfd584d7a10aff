//! A node out of service: permit, drain, proof that it is idle, reboot, power cycle, health gate, and giving it back.

pub(super) mod drain;
mod gate;
pub(super) mod outlast;
mod permits;
mod power;
pub(super) mod reboot;

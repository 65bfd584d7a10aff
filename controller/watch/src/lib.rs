//! Audits on a schedule: when, what is told to whom, and metrics.

pub mod changes;
pub mod child;
pub mod config;
pub mod delivery;
pub mod metrics;
pub mod notification;
pub mod outbox;
pub mod reading;
pub mod schedule;
pub mod server;
pub mod state;
pub mod systemd;
pub mod watcher;

//! Waiting for a moment that may never come.

use std::time::Duration;

use tokio::time::Instant;

/// Ends when so much time has passed, or never.
pub(crate) async fn alarm(left: Option<Duration>) {
    match left {
        Some(left) => tokio::time::sleep(left).await,
        None => std::future::pending().await,
    }
}

/// Ends at a moment, or never.
pub(crate) async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

//! Waiting for a moment that may never come.

use std::time::Duration;

use tokio::time::Instant;

/// Ends when the wall clock shows this time, or never.
pub(crate) async fn alarm(at: Option<jiff::Timestamp>) {
    match at {
        Some(at) => {
            let left = Duration::try_from(at.duration_since(jiff::Timestamp::now())).unwrap_or_default();
            tokio::time::sleep(left).await;
        }
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

//! The server's own time, which stands still until a test moves it, or runs at any speed.
//!
//! All delays of Kubernetes (graces, controllers, token lifetimes, ends of watches) are measured on this clock, in
//! milliseconds since the epoch. It starts at the real time, so that times in objects look as usual.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

#[derive(Debug, Clone, Copy)]
enum Pace {
    Standing { now_ms: i64 },
    Running { from_ms: i64, since: Instant, factor: f64 },
}

/// A clock that can be stopped, moved and sped up.
#[derive(Debug)]
pub struct Clock {
    pace: Mutex<Pace>,
    moved: watch::Sender<u64>,
}

/// Returns milliseconds since the epoch on the machine's clock.
pub fn real_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

impl Clock {
    /// Creates a clock that runs `factor` times as fast as the real one; with 0 it stands still.
    pub fn new(factor: f64) -> Self {
        let clock =
            Self { pace: Mutex::new(Pace::Standing { now_ms: real_ms() }), moved: watch::channel(0).0 };
        clock.set_factor(factor);
        clock
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now_ms(&self) -> i64 {
        at(*self.pace())
    }

    /// Returns the speed of the clock; 0 if it stands still.
    pub fn factor(&self) -> f64 {
        match *self.pace() {
            Pace::Standing { .. } => 0.0,
            Pace::Running { factor, .. } => factor,
        }
    }

    pub fn set_factor(&self, factor: f64) {
        let mut pace = self.pace();
        let now_ms = at(*pace);
        *pace = if factor > 0.0 {
            Pace::Running { from_ms: now_ms, since: Instant::now(), factor }
        } else {
            Pace::Standing { now_ms }
        };
        drop(pace);
        self.moved.send_modify(|n| *n += 1);
    }

    /// Moves the clock forward at once, whether it runs or stands.
    pub fn advance(&self, by: Duration) {
        let by_ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX / 4);
        match &mut *self.pace() {
            Pace::Standing { now_ms } => *now_ms += by_ms,
            Pace::Running { from_ms, .. } => *from_ms += by_ms,
        }
        self.moved.send_modify(|n| *n += 1);
    }

    /// Waits until the clock shows `until_ms`.
    pub async fn sleep_until(&self, until_ms: i64) {
        let mut moved = self.moved.subscribe();
        loop {
            moved.mark_unchanged();
            let left_ms = until_ms - self.now_ms();
            if left_ms <= 0 {
                return;
            }
            match self.factor() {
                0.0 => {
                    if moved.changed().await.is_err() {
                        return;
                    }
                }
                factor => {
                    let wait = Duration::from_secs_f64(left_ms as f64 / 1000.0 / factor)
                        .min(Duration::from_secs(3600));
                    tokio::select! {
                        () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => {}
                        _ = moved.changed() => {}
                    }
                }
            }
        }
    }
}

fn at(pace: Pace) -> i64 {
    match pace {
        Pace::Standing { now_ms } => now_ms,
        Pace::Running { from_ms, since, factor } => {
            from_ms + (since.elapsed().as_secs_f64() * factor * 1000.0) as i64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_clock_moves_only_by_hand() {
        let clock = Clock::new(0.0);
        let start = clock.now_ms();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(clock.now_ms(), start);
        clock.advance(Duration::from_secs(90));
        assert_eq!(clock.now_ms(), start + 90_000);
        clock.set_factor(1000.0);
        std::thread::sleep(Duration::from_millis(10));
        assert!(clock.now_ms() >= start + 100_000);
    }
}

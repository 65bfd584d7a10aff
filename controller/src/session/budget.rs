//! Limits on the memory that answers of nodes take at once.
//!
//! Owns the limits for one answer, and for all answers in flight in this run. Invariants: a waiter never holds memory
//! that another one needs in order to release its own; nobody waits longer than [`PATIENCE`].

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Largest size of a task's result once parsed, in bytes.
pub const LARGEST_RESULT: u64 = 16 << 20;
/// Largest size of any other answer once parsed, such as facts, in bytes.
pub const LARGEST_ANSWER: u64 = 2 << 20;
/// Memory for all answers of a run that are being received, in bytes. Small ones do not count.
const ARRIVING: u64 = 64 << 20;
/// Memory for all answers of a run that are being parsed, in bytes.
const TAKEN_IN: u64 = 32 << 20;
/// Answers up to this size in bytes need no reservation.
pub(super) const SMALL: u64 = 256 << 10;
/// How long an answer waits for memory: as long as fifty nodes may take for their answers one after the other.
const PATIENCE: Duration = Duration::from_secs(1200);
/// Slowest rate of a large answer in bytes a second, and the time it has in addition.
const SLOWEST: u64 = 512 << 10;
const HEAD_START: Duration = Duration::from_secs(10);
/// How long a small answer may take once it has begun: as long as SSH takes to find a connection dead. Without it, a node
/// that sends a byte now and then would hold up all that wait for it, for as long as its task may take.
const SMALL_TIME: Duration = Duration::from_secs(60);
const KIB: u64 = 1024;

/// The memory of one run for answers of nodes; shared by all its sessions.
#[derive(Clone, Debug)]
pub struct ResultBudget {
    arriving: Arc<Semaphore>,
    taken_in: Arc<Semaphore>,
}

/// A reservation, which lasts as long as this value.
pub(super) type Room = Option<OwnedSemaphorePermit>;

impl Default for ResultBudget {
    fn default() -> Self {
        let pool = |bytes: u64| Arc::new(Semaphore::new(usize::try_from(bytes / KIB).unwrap_or(usize::MAX)));
        Self { arriving: pool(ARRIVING), taken_in: pool(TAKEN_IN) }
    }
}

impl ResultBudget {
    /// Reserves memory for a frame of `bytes` bytes that is being received.
    ///
    /// # Errors
    /// If none became free in time.
    pub(super) async fn arrive(&self, bytes: u64) -> Result<Room, String> {
        // Twice: while it is read, there is a copy of the bytes.
        room(&self.arriving, bytes * 2).await
    }

    /// Reserves memory for an answer of this weight.
    ///
    /// # Errors
    /// If none became free in time.
    pub(super) async fn take_in(&self, weight: u64) -> Result<Room, String> {
        room(&self.taken_in, weight).await
    }
}

async fn room(pool: &Arc<Semaphore>, bytes: u64) -> Result<Room, String> {
    if bytes <= SMALL {
        return Ok(None);
    }
    let count = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
    match timeout(PATIENCE, Arc::clone(pool).acquire_many_owned(count)).await {
        Ok(Ok(permit)) => Ok(Some(permit)),
        _ => Err(format!(
            "its answer of {} MiB found no room for {} s beside those of other nodes; have fewer nodes worked on at once \
             (`--forks`), or their tasks say less",
            bytes >> 20,
            PATIENCE.as_secs()
        )),
    }
}

/// Returns how long a frame of `bytes` bytes may take to arrive.
pub(super) fn time_for(bytes: u64) -> Duration {
    if bytes <= SMALL { SMALL_TIME } else { HEAD_START + Duration::from_secs(bytes / SLOWEST) }
}

/// Counts frames between answers, so that a helper that never stops sending is cut off. Nothing of them is kept, so
/// this limits time and not memory.
#[derive(Debug)]
pub(super) struct Chatter {
    messages: f64,
    bytes: f64,
    since: tokio::time::Instant,
}

impl Chatter {
    /// Largest burst: messages and bytes.
    const MOST: (f64, f64) = (20_000.0, (16 << 20) as f64);
    /// What is credited each second: messages and bytes.
    const FORGIVEN: (f64, f64) = (200.0, (256 << 10) as f64);

    pub(super) fn new() -> Self {
        Self { messages: 0.0, bytes: 0.0, since: tokio::time::Instant::now() }
    }

    /// Counts one frame.
    ///
    /// # Errors
    /// If it was too much.
    pub(super) fn hear(&mut self, bytes: usize) -> Result<(), String> {
        let now = tokio::time::Instant::now();
        let seconds = (now - self.since).as_secs_f64();
        self.since = now;
        self.messages = (self.messages - seconds * Self::FORGIVEN.0).max(0.0) + 1.0;
        self.bytes = (self.bytes - seconds * Self::FORGIVEN.1).max(0.0) + bytes as f64;
        if self.messages > Self::MOST.0 || self.bytes > Self::MOST.1 {
            return Err("it talks without end beside its answers".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn large_answers_wait_for_each_other_and_not_for_ever() {
        let budget = ResultBudget::default();
        let first = budget.take_in(LARGEST_RESULT).await.unwrap();
        let second = budget.take_in(LARGEST_RESULT).await.unwrap();
        assert!(first.is_some() && second.is_some());
        assert!(budget.take_in(SMALL).await.unwrap().is_none(), "small ones wait for nobody");
        let error = budget.take_in(LARGEST_RESULT).await.unwrap_err();
        assert!(
            error.contains("its answer of 16 MiB found no room for 1200 s") && error.contains("--forks"),
            "{error}"
        );
        drop(first);
        assert!(budget.take_in(LARGEST_RESULT).await.unwrap().is_some());
        assert!(budget.arrive(16 << 20).await.unwrap().is_some(), "what arrives has room of its own");
    }

    #[tokio::test(start_paused = true)]
    async fn who_talks_without_end_is_cut_off_and_who_tells_now_and_then_is_not() {
        let mut chatter = Chatter::new();
        for _ in 0..100_000 {
            chatter.hear(100).unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let said = (0..100_000).take_while(|_| chatter.hear(100).is_ok()).count();
        assert!((19_000..21_000).contains(&said), "{said}");
        let mut chatter = Chatter::new();
        let said = (0..100_000).take_while(|_| chatter.hear(1 << 20).is_ok()).count();
        assert_eq!(said, 16);
    }
}

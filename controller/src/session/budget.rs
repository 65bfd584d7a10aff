//! How much memory what nodes say may take at once.
//!
//! Owns the bounds of one answer and of all that are on their way in this run. Invariants: nobody who waits for room holds
//! room that another one needs to give his own back, and nobody waits longer than [`PATIENCE`].

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// The most that one answer may take once it is a tree, in bytes.
pub const LARGEST_RESULT: u64 = 16 << 20;
/// The same for an answer that is no result of a task, such as facts.
pub const LARGEST_ANSWER: u64 = 2 << 20;
/// What all answers of a run together may take that wait to be read, in bytes. Small ones do not count.
const ARRIVING: u64 = 64 << 20;
/// The same for what was read and is being taken in.
const TAKEN_IN: u64 = 32 << 20;
/// What is no larger than this needs no room, in bytes.
pub(super) const SMALL: u64 = 256 << 10;
/// How long an answer waits for room: as long as fifty nodes need that take all the time for theirs.
const PATIENCE: Duration = Duration::from_secs(1200);
/// The slowest that a large answer may come, in bytes a second, and what it has beside that. What is small has all the time
/// of its task.
const SLOWEST: u64 = 512 << 10;
const HEAD_START: Duration = Duration::from_secs(10);
const KIB: u64 = 1024;

/// The memory of one run for what its nodes say; shared by all its sessions.
#[derive(Clone, Debug)]
pub struct ResultBudget {
    arriving: Arc<Semaphore>,
    taken_in: Arc<Semaphore>,
}

/// Room that is held, as long as this lives.
pub(super) type Room = Option<OwnedSemaphorePermit>;

impl Default for ResultBudget {
    fn default() -> Self {
        let pool = |bytes: u64| Arc::new(Semaphore::new(usize::try_from(bytes / KIB).unwrap_or(usize::MAX)));
        Self { arriving: pool(ARRIVING), taken_in: pool(TAKEN_IN) }
    }
}

impl ResultBudget {
    /// Room for a frame of so many bytes that is on its way.
    ///
    /// # Errors
    /// There was none for long.
    pub(super) async fn arrive(&self, bytes: u64) -> Result<Room, String> {
        // Why twice: while it is read, it is there as bytes and as a copy of them.
        room(&self.arriving, bytes * 2).await
    }

    /// Room for an answer of this weight.
    ///
    /// # Errors
    /// There was none for long.
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

/// How long a frame of so many bytes may take to come.
pub(super) fn time_for(bytes: u64) -> Duration {
    HEAD_START + Duration::from_secs(bytes / SLOWEST)
}

/// Words between answers: a helper that never stops talking is cut off. Nothing of it is kept, so this is about time alone.
#[derive(Debug)]
pub(super) struct Chatter {
    messages: f64,
    bytes: f64,
    since: tokio::time::Instant,
}

impl Chatter {
    /// What may be said at once: messages, and bytes.
    const MOST: (f64, f64) = (20_000.0, (16 << 20) as f64);
    /// What is forgiven each second.
    const FORGIVEN: (f64, f64) = (200.0, (256 << 10) as f64);

    pub(super) fn new() -> Self {
        Self { messages: 0.0, bytes: 0.0, since: tokio::time::Instant::now() }
    }

    /// # Errors
    /// It was too much.
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

//! How many hosts may be at a task at once.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Which hosts may do a task that says `throttle`.
#[derive(Default)]
pub(crate) struct Throttles {
    tasks: std::sync::Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

impl Throttles {
    /// Waits until fewer than `most` hosts are at the task.
    pub(crate) async fn enter(&self, task: &Arc<str>, most: u32) -> Option<OwnedSemaphorePermit> {
        let semaphore = {
            let mut tasks = self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let fresh = || Arc::new(Semaphore::new(most as usize));
            Arc::clone(tasks.entry(Arc::clone(task)).or_insert_with(fresh))
        };
        semaphore.acquire_owned().await.ok()
    }
}

//! Tasks that are done on another host than the one they are for, and how many may be done at once.
//!
//! Owns one connection to each host that others delegate to, however many do. Such a connection takes no lock and has no
//! permit: what may disturb a node is never delegated.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::{Mutex, OnceCell, OwnedSemaphorePermit, Semaphore};

use super::link::{ConnectFailure, Connector, Link, Purpose};

type Place = Arc<OnceCell<Arc<dyn Link>>>;

/// Connections to hosts that do tasks for others.
#[derive(Default)]
pub struct Delegates {
    links: Mutex<HashMap<(String, bool, u16), Place>>,
}

impl Delegates {
    /// The connection to a host, made when it is first needed, for a node whose own is for this purpose: a run that only
    /// reads writes nothing there either.
    pub(super) async fn link(
        &self,
        connector: &dyn Connector,
        host: &str,
        r#become: bool,
        Purpose { writes, login, commands, .. }: Purpose,
    ) -> Result<Arc<dyn Link>, ConnectFailure> {
        let place = {
            let mut links = self.links.lock().await;
            Arc::clone(links.entry((host.to_owned(), r#become, login)).or_default())
        };
        let purpose = Purpose { writes, r#become, guest: true, commands, local: false, login };
        place.get_or_try_init(|| connector.connect(host, purpose)).await.cloned()
    }

    /// Forgets a connection that broke, so that the next task makes another.
    pub(super) async fn forget(&self, host: &str, r#become: bool, login: u16) {
        self.links.lock().await.remove(&(host.to_owned(), r#become, login));
    }

    pub(super) async fn close(&self) {
        let links = std::mem::take(&mut *self.links.lock().await);
        let open: Vec<Arc<dyn Link>> = links.values().filter_map(|place| place.get().cloned()).collect();
        futures::future::join_all(open.iter().map(|link| link.close())).await;
    }
}

/// Who may be at a task that says `throttle`.
#[derive(Default)]
pub(super) struct Throttles {
    tasks: std::sync::Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

impl Throttles {
    /// Waits until fewer than `most` hosts are at the task.
    pub(super) async fn enter(&self, task: &Arc<str>, most: u32) -> Option<OwnedSemaphorePermit> {
        let semaphore = {
            let mut tasks = self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let fresh = || Arc::new(Semaphore::new(most as usize));
            Arc::clone(tasks.entry(Arc::clone(task)).or_insert_with(fresh))
        };
        semaphore.acquire_owned().await.ok()
    }
}

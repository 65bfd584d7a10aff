//! Tasks that are done on another host than the one they are for.
//!
//! Owns one connection to each host that others delegate to, however many do. Such a connection takes no lock and has no
//! permit: what may disturb a node is never delegated.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::{Mutex, OnceCell};

use crate::engine::ports::link::{ConnectFailure, Connector, Link, Purpose};

type Place = Arc<OnceCell<Arc<dyn Link>>>;

/// Connections to hosts that do tasks for others.
#[derive(Default)]
pub struct Delegates {
    links: Mutex<HashMap<(String, bool, u16), Place>>,
}

impl Delegates {
    /// The connection to a host, made when it is first needed, for a node whose own is for this purpose: a run that only
    /// reads writes nothing there either.
    pub(crate) async fn link(
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
        let purpose =
            Purpose { writes, r#become, guest: true, commands, own_commands: false, local: false, login };
        place.get_or_try_init(|| connector.connect(host, purpose)).await.cloned()
    }

    /// Forgets a connection that broke, so that the next task makes another.
    pub(crate) async fn forget(&self, host: &str, r#become: bool, login: u16) {
        self.links.lock().await.remove(&(host.to_owned(), r#become, login));
    }

    pub(crate) async fn close(&self) {
        let links = std::mem::take(&mut *self.links.lock().await);
        let open: Vec<Arc<dyn Link>> = links.values().filter_map(|place| place.get().cloned()).collect();
        futures::future::join_all(open.iter().map(|link| link.close())).await;
    }
}

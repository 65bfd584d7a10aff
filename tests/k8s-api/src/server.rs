//! A running server in its own thread, and the handle with which a test controls it.
//!
//! In a thread, so that the server answers whatever runtime the test has, even one with paused time.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use crate::access::Token;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::faults::{Fault, Reach};
use crate::http;
use crate::kubeconfig::{self, ExecPlugin, Login};
use crate::log::Entry;
use crate::object;
use crate::resources::Resource;
use crate::scenario::{Scenario, ScenarioError};
use crate::settings::Settings;
use crate::tls::{Authority, TlsError};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on loopback port {port}")]
    Listen { port: u16, source: std::io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("cannot start the server's thread")]
    Thread(#[source] std::io::Error),
}

/// State that the server's tasks and its handle share.
#[derive(Debug)]
pub(crate) struct Shared {
    cluster: Mutex<Cluster>,
    pub(crate) clock: Clock,
    /// Changes whenever tasks should check the state again.
    pub(crate) changed: watch::Sender<u64>,
    stop: AtomicBool,
    renewals: Mutex<Vec<Renewal>>,
}

/// A token that a plugin hands out and the server renews.
#[derive(Debug)]
struct Renewal {
    plugin: ExecPlugin,
    user: String,
    life: Duration,
    tells: bool,
    end_ms: i64,
}

impl Shared {
    /// Runs `work` on the cluster after everything that is due has happened.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        let before = (cluster.store.version(), cluster.faults.reach);
        cluster.settle(self.clock.now_ms());
        let result = work(&mut cluster);
        cluster.faults.reach(self.clock.now_ms());
        let after = (cluster.store.version(), cluster.faults.reach);
        drop(cluster);
        if before != after {
            self.wake();
        }
        result
    }

    pub(crate) fn wake(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    pub(crate) fn reach(&self) -> Reach {
        let now_ms = self.clock.now_ms();
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner).faults.reach(now_ms)
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Lets time pass in the cluster while there are no requests.
    async fn live(self: Arc<Self>) {
        let mut turns = 0_u32;
        while !self.stopped() {
            let followed =
                self.with(|cluster| if turns.is_multiple_of(10) { cluster.followed() } else { Vec::new() });
            for (node, state) in followed {
                if let Some(seen) = crate::lab::read(&state) {
                    self.with(|cluster| cluster.follow(&node, seen));
                }
            }
            self.renew();
            turns = turns.wrapping_add(1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn renew(&self) {
        let now_ms = self.clock.now_ms();
        for renewal in self
            .renewals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter_mut()
            .filter(|r| now_ms >= r.end_ms)
        {
            let life_ms = i64::try_from(renewal.life.as_millis()).unwrap_or(i64::MAX / 4);
            renewal.end_ms = now_ms + life_ms;
            let token = format!("token-{}", uuid::Uuid::new_v4().simple());
            let entry = Token { user: renewal.user.clone(), expires_ms: Some(renewal.end_ms) };
            self.with(|cluster| cluster.access.tokens.insert(token.clone(), entry));
            // The real clock, because the client compares it with its own.
            let factor = self.clock.factor();
            let real_ms = if factor > 0.0 { (life_ms as f64 / factor) as i64 } else { life_ms };
            let expires = object::time(crate::clock::real_ms() + real_ms);
            // The directory of a finished test is gone.
            let _ = renewal.plugin.renew(&token, renewal.tells.then_some(expires.as_str()));
        }
    }
}

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// 0 for any free port.
    pub port: u16,
    pub scenario: Scenario,
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    authority: Authority,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server with the cluster of a scenario.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let authority = Authority::new()?;
        let tls = authority.server()?;
        let clock = Clock::new(options.scenario.pace);
        let cluster = options.scenario.build(clock.now_ms())?;
        let port = options.port;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .map_err(|source| StartError::Listen { port, source })?;
        let address = listener.local_addr().map_err(|source| StartError::Listen { port, source })?;
        let shared = Arc::new(Shared {
            cluster: Mutex::new(cluster),
            clock,
            changed: watch::channel(0).0,
            stop: AtomicBool::new(false),
            renewals: Mutex::default(),
        });
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Thread)?;
        let inside = shared.clone();
        let thread = std::thread::Builder::new()
            .name("k8s-api".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::spawn(inside.clone().live());
                    // A lost port ends the server, which its clients notice.
                    let _ = http::accept(inside, listener, tls).await;
                });
            })
            .map_err(StartError::Thread)?;
        Ok(Self { shared, authority, address, thread: Some(thread) })
    }

    /// Starts a server with a stopped clock and an empty cluster.
    pub fn standing(settings: Settings) -> Result<Self, StartError> {
        Self::start(Options {
            scenario: Scenario { pace: 0.0, settings, ..Scenario::default() },
            ..Options::default()
        })
    }

    /// Returns `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Runs `work` on the cluster itself, under its lock.
    pub fn with<T>(&self, work: impl FnOnce(&mut Cluster) -> T) -> T {
        let result = self.shared.with(work);
        self.shared.wake();
        result
    }

    /// Moves the server's clock, with everything that happens on the way.
    pub fn advance(&self, by: Duration) {
        self.shared.clock.advance(by);
        self.with(|_| ());
        self.shared.renew();
    }

    /// Sets the speed of the clock; 0 stops it.
    pub fn set_pace(&self, factor: f64) {
        self.with(|_| ());
        self.shared.clock.set_factor(factor);
    }

    pub fn now_ms(&self) -> i64 {
        self.shared.clock.now_ms()
    }

    pub fn fault(&self, fault: Fault) {
        self.with(|cluster| cluster.faults.rules.push(fault));
    }

    pub fn clear_faults(&self) {
        self.with(|cluster| cluster.faults.rules.clear());
    }

    /// Makes the server unreachable, for a time on its clock or until another call.
    pub fn set_reach(&self, reach: Reach, during: Option<Duration>) {
        let now_ms = self.now_ms();
        self.with(|cluster| {
            cluster.faults.reach = reach;
            cluster.faults.until_ms =
                during.map(|d| now_ms + i64::try_from(d.as_millis()).unwrap_or(i64::MAX / 4));
        });
    }

    /// Returns the server's own record after a number.
    pub fn log(&self, since: u64) -> Vec<Entry> {
        self.with(|cluster| cluster.log.since(since).to_vec())
    }

    pub fn object(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Value> {
        self.with(|cluster| cluster.store.get(resource, namespace, name).cloned())
    }

    /// Waits in real time until `what` holds. Returns false after a minute.
    pub fn wait(&self, what: impl Fn(&Cluster) -> bool) -> bool {
        for _ in 0..6000 {
            if self.with(|cluster| what(cluster)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    /// Waits in real time until every fault has met as many requests as it applies to. Returns false after a minute.
    pub fn wait_for_faults(&self) -> bool {
        self.wait(|cluster| cluster.faults.rules.iter().all(|fault| fault.times == Some(0)))
    }

    /// Creates a bearer token, which expires after `life` on the server's clock.
    pub fn token(&self, user: &str, life: Option<Duration>) -> String {
        let token = format!("token-{}", uuid::Uuid::new_v4().simple());
        let expires_ms =
            life.map(|life| self.now_ms() + i64::try_from(life.as_millis()).unwrap_or(i64::MAX / 4));
        self.with(|cluster| {
            cluster.access.tokens.insert(token.clone(), Token { user: user.to_owned(), expires_ms })
        });
        token
    }

    /// Returns a kubeconfig for a login.
    pub fn kubeconfig(&self, login: &Login) -> String {
        kubeconfig::render(&self.url(), &self.authority.certificate, login)
    }

    /// Creates a login with a client certificate for a user.
    pub fn certificate(&self, user: &str) -> Result<Login, TlsError> {
        let identity = self.authority.client(user)?;
        self.with(|cluster| cluster.access.certificates.insert(identity.der, user.to_owned()));
        Ok(Login::Certificate { certificate: identity.certificate, key: identity.key })
    }

    /// Creates an exec plugin (and a token file) in a directory, whose tokens expire after `life` and are then
    /// replaced; `tells` is whether the credential has its expiry time.
    pub fn exec_plugin(
        &self,
        dir: &Path,
        user: &str,
        life: Duration,
        tells: bool,
    ) -> std::io::Result<ExecPlugin> {
        let plugin = ExecPlugin::install(dir)?;
        let renewal = Renewal { plugin: plugin.clone(), user: user.to_owned(), life, tells, end_ms: 0 };
        self.shared.renewals.lock().unwrap_or_else(PoisonError::into_inner).push(renewal);
        self.shared.renew();
        Ok(plugin)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

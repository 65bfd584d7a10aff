//! `/metrics`, `/healthz` and `/readyz` over HTTP.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep, sleep_until},
};

use crate::{
    config::is_loopback,
    metrics::{self, Exposition, Form, Own},
};

/// Connections at once; further ones wait.
const MOST_CONNECTIONS: usize = 64;
/// How long one connection may last, so that idle ones cannot occupy all places.
const LONGEST_CONNECTION: Duration = Duration::from_secs(300);
/// The main loop does something at least this often; later it counts as stuck.
const STUCK: Duration = Duration::from_secs(120);

/// What the main loop and the server share.
#[derive(Debug)]
pub struct Shared {
    pub own: Own,
    /// By schedule.
    fleet: RwLock<BTreeMap<String, Arc<Exposition>>>,
    /// By form; one is rendered at a time, and once for each change.
    rendered: Mutex<BTreeMap<Form, Rendered>>,
    /// When the main loop was last seen, by a clock that nobody sets.
    alive: RwLock<std::time::Instant>,
    ready: AtomicBool,
}

impl Shared {
    pub fn new(own: Own) -> Self {
        Self {
            own,
            fleet: RwLock::default(),
            rendered: Mutex::default(),
            alive: RwLock::new(std::time::Instant::now()),
            ready: AtomicBool::new(false),
        }
    }

    /// Sets what the last audit of a schedule says; `None` for a schedule that is no more.
    pub fn set_fleet(&self, schedule: &str, exposition: Option<Exposition>) {
        let mut fleet = self.fleet.write().unwrap_or_else(PoisonError::into_inner);
        match exposition {
            Some(exposition) => fleet.insert(schedule.to_owned(), Arc::new(exposition)),
            None => fleet.remove(schedule),
        };
    }

    /// The main loop is alive.
    pub fn beat(&self, now: std::time::Instant) {
        *self.alive.write().unwrap_or_else(PoisonError::into_inner) = now;
    }

    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    fn is_alive(&self) -> bool {
        self.alive.read().unwrap_or_else(PoisonError::into_inner).elapsed() <= STUCK
    }

    fn render(&self, form: Form) -> Bytes {
        let mut all = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        let own = self.own.encode();
        // A copy of the list, so that nothing waits for a rendering but readers of metrics.
        let fleet: Vec<Arc<Exposition>> =
            self.fleet.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let fleet_is =
            |other: &[Arc<Exposition>]| other.iter().map(Arc::as_ptr).eq(fleet.iter().map(Arc::as_ptr));
        // What is old need not be there beside the new.
        all.retain(|_, it| it.own == own && fleet_is(&it.fleet));
        if let Some(rendered) = all.get(&form) {
            return rendered.text.clone();
        }
        let families: Vec<&Exposition> = fleet.iter().map(Arc::as_ref).collect();
        let text = Bytes::from(metrics::render(&own, &families, form));
        all.insert(form, Rendered { own, fleet, text: text.clone() });
        text
    }
}

/// A rendering, and what it was made of.
#[derive(Debug)]
struct Rendered {
    own: String,
    fleet: Vec<Arc<Exposition>>,
    text: Bytes,
}

/// Who may read metrics at one address. Connections outlive the listener that took them, and keep its door.
#[derive(Debug, Default)]
pub struct Door {
    token: RwLock<Option<String>>,
}

impl Door {
    pub fn new(token: Option<String>) -> Self {
        Self { token: RwLock::new(token) }
    }

    /// Sets the token that readers of metrics must send.
    pub fn set_token(&self, token: Option<String>) {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Answers who may not read metrics.
    fn refuse(&self, headers: &HeaderMap) -> Option<Response> {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner);
        let Some(token) = token.as_deref() else {
            let why = "without a token, metrics are read at localhost, 127.0.0.1 or [::1] only\n";
            return (!names_this_machine(headers)).then(|| (StatusCode::FORBIDDEN, why).into_response());
        };
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
        // Digests take the same time to compare, whatever was sent.
        if Sha256::digest(sent.trim()) == Sha256::digest(token) {
            return None;
        }
        let wanted = [(header::WWW_AUTHENTICATE, "Bearer")];
        Some((StatusCode::UNAUTHORIZED, wanted, "a token is needed\n").into_response())
    }
}

/// Whether a request names this machine. A site whose name points to 127.0.0.1 would let its pages read metrics.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    host.to_str().is_ok_and(is_loopback)
}

/// Listens.
///
/// # Errors
/// An address that cannot be listened on.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers until the task is ended.
///
/// # Errors
/// Those of the listener.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>, door: Arc<Door>) -> io::Result<()> {
    let listener = Bounded { listener, places: Arc::new(Semaphore::new(MOST_CONNECTIONS)) };
    axum::serve(listener, router(shared, door)).await
}

fn router(shared: Arc<Shared>, door: Arc<Door>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics).layer(Extension(door)))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(shared)
}

async fn index() -> Response {
    let text = "gpufleet watch\n/metrics  for Prometheus\n/healthz  whether it is alive\n/readyz   whether it began\n";
    text.into_response()
}

async fn metrics(
    State(shared): State<Arc<Shared>>,
    Extension(door): Extension<Arc<Door>>,
    headers: HeaderMap,
) -> Response {
    if let Some(refused) = door.refuse(&headers) {
        return refused;
    }
    let accepted: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|it| it.to_str().ok()).collect();
    let form = Form::accepted(&accepted.join(","));
    match tokio::task::spawn_blocking(move || shared.render(form)).await {
        Ok(text) => ([(header::CONTENT_TYPE, form.content_type())], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    match shared.is_alive() {
        true => "ok\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the main loop is stuck\n").into_response(),
    }
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    match shared.ready.load(Ordering::Relaxed) && shared.is_alive() {
        true => "ok\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response(),
    }
}

/// Listens for so many connections at once.
struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl axum::serve::Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let place = Arc::clone(&self.places).acquire_owned().await;
            match (place, self.listener.accept().await) {
                (Ok(place), Ok((stream, address))) => {
                    let end = Box::pin(sleep_until(Instant::now() + LONGEST_CONNECTION));
                    return (Connection { stream, end, _place: place }, address);
                }
                // Out of file descriptors, for example: that passes.
                _ => sleep(Duration::from_secs(1)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends after its time, and then gives its place to another one.
struct Connection {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        self.end.as_mut().poll(context).is_ready()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_over(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_over(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use jiff::Timestamp;

    use super::*;

    async fn ask(address: SocketAddr, path: &str, headers: &str) -> String {
        ask_as("localhost", address, path, headers).await
    }

    async fn ask_as(host: &str, address: SocketAddr, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    fn start() -> (Arc<Shared>, tokio::runtime::Runtime) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        (Arc::new(Shared::new(Own::new("1", Timestamp::now()))), runtime)
    }

    #[test]
    fn metrics_want_the_token_and_health_does_not() {
        let (shared, runtime) = start();
        runtime.block_on(async {
            let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
            let address = listener.local_addr().unwrap();
            let door = Arc::new(Door::default());
            tokio::spawn(serve(listener, Arc::clone(&shared), Arc::clone(&door)));
            let open = ask(address, "/metrics", "").await;
            assert!(open.starts_with("HTTP/1.1 200") && open.contains("text/plain; version=0.0.4"), "{open}");
            let wanted = ask(address, "/metrics", "accept: application/openmetrics-text\r\n").await;
            assert!(
                wanted.contains("openmetrics-text; version=1.0.0") && wanted.ends_with("# EOF\n"),
                "{wanted}"
            );
            door.set_token(Some("t0ken".into()));
            for wrong in ["", "authorization: Bearer t0kem\r\n", "authorization: t0ken\r\n"] {
                let refused = ask(address, "/metrics", wrong).await;
                assert!(
                    refused.starts_with("HTTP/1.1 401") && !refused.contains("gpufleet_watch"),
                    "{refused}"
                );
            }
            let right = ask(address, "/metrics", "authorization: Bearer t0ken\r\n").await;
            assert!(right.starts_with("HTTP/1.1 200"), "{right}");
            assert!(ask(address, "/healthz", "").await.starts_with("HTTP/1.1 200"));
            assert!(ask(address, "/readyz", "").await.starts_with("HTTP/1.1 503"));
            shared.set_ready(true);
            assert!(ask(address, "/readyz", "").await.starts_with("HTTP/1.1 200"));
            shared.beat(std::time::Instant::now() - Duration::from_secs(121));
            assert!(ask(address, "/healthz", "").await.starts_with("HTTP/1.1 503"));
            assert!(ask(address, "/../etc/passwd", "").await.starts_with("HTTP/1.1 404"));
        });
    }

    #[test]
    fn metrics_are_rendered_once_for_each_change() {
        let (shared, _runtime) = start();
        let render = || shared.render(Form::Text);
        let first = render();
        assert_eq!(render().as_ptr(), first.as_ptr());
        shared.own.schedule("nightly", 60);
        let second = render();
        assert!(second.len() > first.len());
        let fleet = |value| format!("# TYPE gpufleet_x gauge\ngpufleet_x {value}\n# EOF\n");
        for value in ["1", "2"] {
            let exposition = Exposition::parse(&fleet(value), Some("nightly")).unwrap();
            shared.set_fleet("nightly", Some(exposition));
            let text = String::from_utf8(render().to_vec()).unwrap();
            assert!(text.contains(&format!("gpufleet_x{{schedule=\"nightly\"}} {value}\n")), "{text}");
        }
        shared.set_fleet("nightly", None);
        assert_eq!(render(), second);
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_answered() {
        let (shared, runtime) = start();
        runtime.block_on(async {
            let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
            let address = listener.local_addr().unwrap();
            let door = Arc::new(Door::default());
            tokio::spawn(serve(listener, shared, Arc::clone(&door)));
            for host in ["localhost", "LOCALHOST:9464", "127.0.0.1:9464", "[::1]:9464"] {
                let answer = ask_as(host, address, "/metrics", "").await;
                assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
            }
            for host in [
                "",
                "evil.example:9464",
                "127.0.0.1.evil.example",
                "localhost:x",
                "::1",
                "[::1]x",
                "10.0.0.1",
            ] {
                let answer = ask_as(host, address, "/metrics", "").await;
                assert!(
                    answer.starts_with("HTTP/1.1 403") && !answer.contains("gpufleet_"),
                    "{host}: {answer}"
                );
            }
            let two = ask(address, "/metrics", "host: localhost\r\n").await;
            assert!(!two.starts_with("HTTP/1.1 200"), "{two}");
            door.set_token(Some("t0ken".into()));
            let named = ask_as("head:9464", address, "/metrics", "authorization: Bearer t0ken\r\n").await;
            assert!(named.starts_with("HTTP/1.1 200"), "{named}");
        });
    }
}

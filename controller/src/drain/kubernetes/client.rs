//! The way to an API server: kubeconfig, credentials, TLS.
//!
//! Owns the client of the crate `kube`, made when it is first needed, and anew when the server refuses its credentials. Must
//! not know what is asked. Invariants: no request is repeated, but once with new credentials after a 401; every wait ends.

use std::{
    error::Error,
    path::PathBuf,
    sync::{OnceLock, PoisonError, RwLock},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
use kube::{
    Client, Config,
    client::{AuthError, Body},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::time::timeout;

use super::api::{Api, Method, Reply, Request, Unanswered};

/// How long a kubeconfig, its exec plugin included, may take to give credentials.
const CREDENTIALS: Duration = Duration::from_secs(60);
const CONNECTING: Duration = Duration::from_secs(10);

/// Where the server's address and our credentials are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Kubeconfig files, merged as kubectl does; without a context the current one counts.
    Files { paths: Vec<PathBuf>, context: Option<String> },
    /// The service account of the pod that gpufleet runs in.
    InCluster,
}

/// A client that is made when it is first used.
pub struct ApiClient {
    credentials: Credentials,
    /// With how many were made before it.
    client: RwLock<Option<(u64, Client)>>,
    making: tokio::sync::Mutex<()>,
    place: OnceLock<String>,
}

impl ApiClient {
    /// Reads nothing yet, so that a mistake shows when the cluster is first asked.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            client: RwLock::default(),
            making: tokio::sync::Mutex::default(),
            place: OnceLock::new(),
        }
    }

    fn known(&self) -> Option<(u64, Client)> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A client made after those with a number below `from`.
    async fn client(&self, from: u64) -> Result<(u64, Client), Unanswered> {
        let fresh = |known: &(u64, Client)| known.0 >= from;
        if let Some(known) = self.known().filter(fresh) {
            return Ok(known);
        }
        // Why one at a time: hundreds of nodes that hear a 401 at once need one login, not hundreds.
        let _making = self.making.lock().await;
        if let Some(known) = self.known().filter(fresh) {
            return Ok(known);
        }
        let config = self.config().await?;
        let _ = self.place.set(format!(" at {}", config.cluster_url.to_string().trim_end_matches('/')));
        // Why on another thread: an exec plugin is run while the client is made.
        let made = tokio::task::spawn_blocking(move || Client::try_from(config));
        let client = match timeout(CREDENTIALS, made).await {
            Ok(Ok(Ok(client))) => client,
            Ok(Ok(Err(error))) => return Err(Unanswered(told(&error))),
            Ok(Err(error)) => return Err(Unanswered(format!("no client could be made: {error}"))),
            Err(_) => {
                let seconds = CREDENTIALS.as_secs();
                return Err(Unanswered(format!(
                    "the kubeconfig gave no credentials within {seconds} s; its exec plugin may wait for a person"
                )));
            }
        };
        let made = (from, client);
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
        Ok(made)
    }

    async fn config(&self) -> Result<Config, Unanswered> {
        let mut config = match &self.credentials {
            Credentials::InCluster => Config::incluster().map_err(|error| Unanswered(told(&error)))?,
            Credentials::Files { paths, context } => {
                let mut merged = Kubeconfig::default();
                for path in paths {
                    let read =
                        Kubeconfig::read_from(path).and_then(|next| std::mem::take(&mut merged).merge(next));
                    merged =
                        read.map_err(|error| Unanswered(format!("{}: {}", path.display(), told(&error))))?;
                }
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(merged, &options).await.map_err(|error| {
                    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                    Unanswered(format!("{}: {}", paths.join(":"), told(&error)))
                })?
            }
        };
        config.connect_timeout = Some(CONNECTING);
        // Why off: kube would ask again up to 15 times in silence, for minutes, and 429 is an answer here.
        config.default_retry = false;
        Ok(config)
    }
}

/// What an error says, without what it may hold of credentials: kube shows exec plugins with their arguments, environment
/// and output, and texts that cannot be read with lines of them.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<AuthError>() {
            Some(AuthError::AuthExecRun { out, .. }) => {
                return format!(
                    "the kubeconfig's exec plugin failed ({}); run it by hand to see why",
                    out.status
                );
            }
            Some(AuthError::AuthExecParse(_)) => {
                return "the kubeconfig's exec plugin printed no credentials that can be read".to_owned();
            }
            _ => {}
        }
        if let Some(KubeconfigError::Parse(_)) = error.downcast_ref::<KubeconfigError>() {
            return "it is no kubeconfig that can be read".to_owned();
        }
        next = error.source();
    }
    chain(error)
}

async fn once(client: &Client, request: &Request) -> Result<Reply, Unanswered> {
    let body = match &request.body {
        Some(body) => serde_json::to_vec(body).map_err(|error| Unanswered(error.to_string()))?,
        None => Vec::new(),
    };
    let sent = http::Request::builder()
        .method(match request.method {
            Method::Get => http::Method::GET,
            Method::Post => http::Method::POST,
            Method::Put => http::Method::PUT,
            Method::Patch => http::Method::PATCH,
        })
        .uri(&request.path)
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::USER_AGENT, concat!("gpufleet/", env!("CARGO_PKG_VERSION")))
        .header(
            http::header::CONTENT_TYPE,
            if request.method == Method::Patch { "application/json-patch+json" } else { "application/json" },
        )
        .body(Body::from(body))
        .map_err(|error| Unanswered(error.to_string()))?;
    let answered = async {
        let reply = client.send(sent).await?;
        let status = reply.status().as_u16();
        let header = reply.headers().get(http::header::RETRY_AFTER);
        let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let body = reply.into_body().collect_bytes().await?.to_vec();
        Ok::<_, kube::Error>(Reply { status, retry_after: seconds.map(Duration::from_secs), body })
    };
    match timeout(request.timeout, answered).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(Unanswered(told(&error))),
        Err(_) => Err(Unanswered(format!("no answer within {} s", request.timeout.as_secs()))),
    }
}

impl Api for ApiClient {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Unanswered>> {
        async move {
            let (number, client) = self.client(0).await?;
            let reply = once(&client, &request).await?;
            if reply.status != 401 {
                return Ok(reply);
            }
            // Why: tokens expire in mid-run, and their files and plugins then give new ones.
            let (_, client) = self.client(number + 1).await?;
            once(&client, &request).await
        }
        .boxed()
    }

    fn place(&self) -> String {
        self.place.get().cloned().unwrap_or_default()
    }
}

/// An error with its causes, on one line, without what it repeats.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(&format!(": {said}"));
        }
        source = cause.source();
    }
    text
}

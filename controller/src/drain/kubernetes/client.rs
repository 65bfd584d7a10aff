//! The way to an API server: kubeconfig, credentials, TLS.
//!
//! Owns the client of the crate `kube`, made when it is first needed, and anew when the server refuses its credentials. Must
//! not know what is asked. Invariants: no request is repeated, but once with new credentials after a 401; every wait ends.

use std::{
    error::Error,
    path::PathBuf,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use base64ct::{Base64, Encoding as _};
use futures::future::{BoxFuture, FutureExt as _};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use jiff::Timestamp;
use kube::{
    Client, Config,
    client::{AuthError, Body},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::time::{Instant, timeout};

use super::{
    api::{Api, Method, Reply, Request, Unanswered},
    plugin,
};

/// How long a kubeconfig, its exec plugin included, may take to give the first credentials.
const CREDENTIALS: Duration = Duration::from_secs(60);
/// The same for new ones in mid-run: a request waits for them.
const RENEWAL: Duration = Duration::from_secs(15);
/// How long a failure to get credentials counts for all who want some.
///
/// Why: else hundreds of nodes would find out one after the other.
const FAILURE: Duration = Duration::from_secs(10);
/// How long before their end credentials are not used any more.
const SPARE: Duration = Duration::from_secs(10);
const CONNECTING: Duration = Duration::from_secs(10);
/// Largest reply that is read, in bytes: a page of 500 nodes, each with 50 images, has about 15 MiB.
const MOST_REPLY: usize = 64 * 1024 * 1024;

/// Where the server's address and our credentials are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// Kubeconfig files, merged as kubectl does; without a context the current one counts.
    Files { paths: Vec<PathBuf>, context: Option<String> },
    /// The service account of the pod that gpufleet runs in.
    InCluster,
}

impl Credentials {
    /// Why a login by them cannot work, whatever the cluster says, ready to show; runs nothing. What cannot be read is told when
    /// the cluster is first asked.
    pub fn refused(&self) -> Option<String> {
        let Self::Files { paths, context } = self else { return None };
        let kubeconfig = merged(paths).ok()?;
        let context = context.as_ref().or(kubeconfig.current_context.as_ref())?;
        let named = kubeconfig.contexts.iter().find(|named| named.name == *context)?;
        let user = named.context.as_ref()?.user.as_ref()?;
        outdated(kubeconfig.auth_infos.iter().find(|named| named.name == *user)?.auth_info.as_ref()?)
    }
}

/// Files of one kubeconfig, as kubectl merges them.
fn merged(paths: &[PathBuf]) -> Result<Kubeconfig, Unanswered> {
    let mut merged = Kubeconfig::default();
    for path in paths {
        let read = Kubeconfig::read_from(path).and_then(|next| std::mem::take(&mut merged).merge(next));
        merged = read.map_err(|error| Unanswered(format!("{}: {}", path.display(), told(&error))))?;
    }
    Ok(merged)
}

/// Why a user of a kubeconfig cannot be served.
///
/// Why not run it as kube does: it is waited for without a bound, on a thread that nothing stops.
fn outdated(user: &AuthInfo) -> Option<String> {
    let provider = user.auth_provider.as_ref()?;
    Some(format!(
        "its user logs in by `auth-provider: {}`, which Kubernetes 1.26 took away; use the exec plugin of the provider, such as \
         gke-gcloud-auth-plugin or kubelogin",
        provider.name
    ))
}

/// A client that is made when it is first used.
pub struct ApiClient {
    credentials: Credentials,
    client: RwLock<Option<Made>>,
    making: tokio::sync::Mutex<()>,
    failure: Mutex<Option<(Instant, Unanswered)>>,
    place: OnceLock<String>,
}

#[derive(Clone)]
struct Made {
    /// How many were made before it.
    number: u64,
    client: Client,
    /// When its credentials end, where they say.
    until: Option<Timestamp>,
}

impl ApiClient {
    /// Reads nothing yet, so that a mistake shows when the cluster is first asked.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            client: RwLock::default(),
            making: tokio::sync::Mutex::default(),
            failure: Mutex::default(),
            place: OnceLock::new(),
        }
    }

    fn last(&self) -> Option<Made> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One with a number from `from` on whose credentials have not ended.
    fn known(&self, from: u64) -> Option<Made> {
        let lasts = |made: &Made| made.until.is_none_or(|until| until > Timestamp::now() + SPARE);
        self.last().filter(|made| made.number >= from && lasts(made))
    }

    fn failure(&self) -> MutexGuard<'_, Option<(Instant, Unanswered)>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client with a number from `from` on.
    async fn client(&self, from: u64) -> Result<Made, Unanswered> {
        if let Some(made) = self.known(from) {
            return Ok(made);
        }
        let limit = if self.last().is_some() { RENEWAL } else { CREDENTIALS };
        let wanted = async {
            // Why one at a time: hundreds of nodes that hear a 401 at once need one login, not hundreds.
            let _making = self.making.lock().await;
            if let Some(made) = self.known(from) {
                return Ok(made);
            }
            if let Some((when, why)) = self.failure().clone().filter(|(when, _)| when.elapsed() < FAILURE) {
                let ago = when.elapsed().as_secs();
                return Err(Unanswered(format!("{why} (tried {ago} s ago)")));
            }
            let number = self.last().map_or(from, |last| from.max(last.number + 1));
            let made = timeout(limit, self.make(number, limit)).await;
            let made = made.unwrap_or_else(|_| Err(Unanswered(plugin::silent(limit))));
            match &made {
                Ok(made) => {
                    *self.client.write().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
                }
                Err(why) => *self.failure() = Some((Instant::now(), why.clone())),
            }
            made
        };
        timeout(limit, wanted).await.unwrap_or_else(|_| Err(Unanswered(plugin::silent(limit))))
    }

    async fn make(&self, number: u64, limit: Duration) -> Result<Made, Unanswered> {
        let mut config = self.config().await?;
        let _ = self.place.set(format!(" at {}", config.cluster_url.to_string().trim_end_matches('/')));
        let mut until = None;
        if let Some(exec) = config.auth_info.exec.take() {
            let given = plugin::ask(&exec, limit).await?;
            until = given.expiration_timestamp;
            let auth = &mut config.auth_info;
            auth.token = given.token.map(Into::into);
            auth.client_certificate_data = given.client_certificate_data.map(|pem| encoded(&pem));
            auth.client_key_data = given.client_key_data.map(|pem| encoded(&pem).into());
        }
        if let Some(why) = outdated(&config.auth_info) {
            return Err(Unanswered(format!("the kubeconfig cannot be used: {why}")));
        }
        // Why on another thread: certificates and tokens may be files on a server that does not answer.
        let client = tokio::task::spawn_blocking(move || Client::try_from(config)).await;
        match client {
            Ok(Ok(client)) => Ok(Made { number, client, until }),
            Ok(Err(error)) => Err(Unanswered(told(&error))),
            Err(error) => Err(Unanswered(format!("no client could be made: {error}"))),
        }
    }

    async fn config(&self) -> Result<Config, Unanswered> {
        let mut config = match &self.credentials {
            Credentials::InCluster => Config::incluster().map_err(|error| Unanswered(told(&error)))?,
            Credentials::Files { paths, context } => {
                let merged = merged(paths)?;
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

/// As kubeconfigs hold certificates.
fn encoded(pem: &str) -> String {
    Base64::encode_string(pem.as_bytes())
}

/// What an error says, without what it may hold of credentials: kube shows programs with their arguments, environment and
/// output, and texts that cannot be read with lines of them.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(AuthError::AuthExecRun { out, .. }) = error.downcast_ref::<AuthError>() {
            return format!(
                "the kubeconfig's program for credentials failed ({}); run it by hand to see why",
                out.status
            );
        }
        if let Some(KubeconfigError::Parse(_)) = error.downcast_ref::<KubeconfigError>() {
            return "it is no kubeconfig that can be read".to_owned();
        }
        next = error.source();
    }
    chain(error)
}

/// Reads a body of at most so many bytes.
///
/// # Errors
/// If it has more, or breaks off; for people.
async fn bounded(body: Body, most: usize) -> Result<Vec<u8>, String> {
    match Limited::new(body, most).collect().await {
        Ok(whole) => Ok(whole.to_bytes().to_vec()),
        Err(error) if error.is::<LengthLimitError>() => Err(format!(
            "its answer is larger than {} KiB, which nothing that gpufleet asks for is; what answers there?",
            most / 1024
        )),
        Err(error) => Err(told(&*error)),
    }
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
        let reply = client.send(sent).await.map_err(|error| told(&error))?;
        let status = reply.status().as_u16();
        let header = reply.headers().get(http::header::RETRY_AFTER);
        let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let body = bounded(reply.into_body(), MOST_REPLY).await?;
        Ok::<_, String>(Reply { status, retry_after: seconds.map(Duration::from_secs), body })
    };
    match timeout(request.timeout, answered).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(why)) => Err(Unanswered(why)),
        Err(_) => Err(Unanswered(format!("no answer within {} s", request.timeout.as_secs()))),
    }
}

impl Api for ApiClient {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Unanswered>> {
        async move {
            let made = self.client(0).await?;
            let reply = once(&made.client, &request).await?;
            if reply.status != 401 {
                return Ok(reply);
            }
            // Why: tokens expire in mid-run, and their files and plugins then give new ones.
            let made = self.client(made.number + 1).await?;
            once(&made.client, &request).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reply_is_read_up_to_its_bound() {
        assert_eq!(bounded(Body::from(vec![7; 1024]), 1024).await, Ok(vec![7; 1024]));
        let why = bounded(Body::from(vec![7; 1025]), 1024).await.unwrap_err();
        assert!(why.starts_with("its answer is larger than 1 KiB"), "{why}");
    }
}

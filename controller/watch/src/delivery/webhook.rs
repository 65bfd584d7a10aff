//! Posts a notification to a URL.

use std::{io::Read as _, path::Path, time::Duration};

use gpufleet_language::visible::visible;
use jiff::{SignedDuration, Timestamp};
use ureq::{
    Agent, Proxy,
    tls::{PemItem, RootCerts, TlsConfig, parse_pem},
};

use super::{certificates, secret, signature::Key};
use crate::{
    config::{Location, Webhook, check_url, is_loopback},
    outbox::Delivery,
};

/// Bytes of an answer that are looked at.
const MOST_ANSWER: u64 = 4096;
/// Characters of an answer that are told.
const MOST_TOLD: usize = 200;

/// A webhook that can be posted to.
pub(super) struct Post {
    agent: Agent,
    url: String,
    key: Option<Key>,
    token: Option<String>,
}

impl std::fmt::Debug for Post {
    /// The host only: the URL may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Post({})", self.host())
    }
}

impl Post {
    pub(super) fn prepare(webhook: &Webhook, timeout: Duration, folder: &Path) -> Result<Self, String> {
        let url = match &webhook.url {
            Location::Url(url) => url.clone(),
            Location::File(path) => secret(folder, path, "the URL")?,
        };
        check_url(&url).map_err(|why| format!("the URL of the webhook: {why}"))?;
        let key = match &webhook.secret_file {
            Some(path) => {
                let secret = secret(folder, path, "the secret of signatures")?;
                let failed = |why| format!("the secret of signatures in {}: {why}", path.display());
                Some(Key::new(&secret).map_err(failed)?)
            }
            None => None,
        };
        let token = match &webhook.token_file {
            Some(path) => Some(secret(folder, path, "the token")?),
            None => None,
        };
        if token.as_ref().is_some_and(|token| token.bytes().any(|byte| !(0x21..0x7f).contains(&byte))) {
            return Err("the token of the webhook has characters that no header can have".to_owned());
        }
        let in_file = matches!(webhook.url, Location::File(_));
        let host = host_of(&url);
        let clear = host.strip_prefix("http://").is_some_and(|host| !is_loopback(host));
        if clear && (token.is_some() || in_file) {
            let what = if token.is_some() { "its token" } else { "its secret URL" };
            return Err(format!("{host} would be sent {what} in clear text: give a URL with https://"));
        }
        let proxy = webhook.proxy.as_deref().map(Proxy::new).transpose();
        let proxy = proxy.map_err(|_| "the proxy of the webhook is no URL".to_owned())?;
        let mut tls = TlsConfig::builder();
        if let Some(path) = &webhook.ca_file {
            let pem = certificates(folder, path)?;
            let read: Result<Vec<_>, _> = parse_pem(&pem).collect();
            let read = read.map_err(|_| format!("{} is no PEM", path.display()))?;
            let roots: Vec<_> = read
                .into_iter()
                .filter_map(|item| match item {
                    PemItem::Certificate(certificate) => Some(certificate),
                    _ => None,
                })
                .collect();
            if roots.is_empty() {
                return Err(format!("{} has no certificate", path.display()));
            }
            tls = tls.root_certs(RootCerts::from(roots));
        }
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            // Whatever the environment says.
            .proxy(proxy)
            .max_response_header_size(32 << 10)
            .max_idle_connections(0)
            .user_agent(concat!("gpufleet/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build())
            .build();
        Ok(Self { agent: config.new_agent(), url, key, token })
    }

    pub(super) fn host(&self) -> &str {
        host_of(&self.url)
    }

    /// Tries once.
    pub(super) fn send(&self, id: &str, body: &[u8]) -> Delivery {
        let seconds = Timestamp::now().as_second();
        let mut request = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json")
            .header("idempotency-key", id)
            .header("webhook-id", id)
            .header("webhook-timestamp", seconds.to_string());
        if let Some(key) = &self.key {
            request = request.header("webhook-signature", key.sign(id, seconds, body));
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = match request.send(body) {
            Ok(response) => response,
            Err(error) => {
                return Delivery::Failed { why: self.without_secrets(&error.to_string()), after: None };
            }
        };
        let status = response.status().as_u16();
        let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let mut answer = Vec::new();
        // What it says is of use only where it is there.
        let _ = response.body_mut().as_reader().take(MOST_ANSWER).read_to_end(&mut answer);
        let said = self.without_secrets(&String::from_utf8_lossy(&answer));
        // Where the answer was cut, its end may be the beginning of a secret.
        let cut = answer.len() as u64 == MOST_ANSWER;
        let longest = self.secrets().map(str::len).filter(|_| cut).max().unwrap_or_default();
        let most = said.chars().count().saturating_sub(longest).min(MOST_TOLD);
        let said: String = said.chars().take(most).collect();
        let said = said.trim();
        let said = if said.is_empty() { String::new() } else { format!(": {}", visible(said)) };
        let why = format!("{} answers {status}{said}", self.host());
        match status {
            200..=299 => Delivery::Done,
            300..=399 => {
                let why = format!("{} answers {status}, a redirect, which is not followed", self.host());
                Delivery::Failed { why, after: None }
            }
            // The receiver says that this notification is wrong, and will say so again.
            400 | 413 | 422 => Delivery::Refused { why },
            _ => Delivery::Failed { why, after: after.map(SignedDuration::from_secs) },
        }
    }

    fn secrets(&self) -> impl Iterator<Item = &str> {
        let path = self.url.strip_prefix(self.host()).filter(|path| path.len() > 1);
        [Some(self.url.as_str()), path, self.token.as_deref()].into_iter().flatten()
    }

    /// Takes the URL and the token out of a text.
    fn without_secrets(&self, text: &str) -> String {
        self.secrets().fold(text.to_owned(), |text, secret| text.replace(secret, "…"))
    }
}

/// The scheme and the host of a URL.
fn host_of(url: &str) -> &str {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let rest = url.get(begin..).unwrap_or_default();
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    url.get(..begin + end).unwrap_or_default()
}

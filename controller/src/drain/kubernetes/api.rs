//! One request to an API server and its reply, however they travel.
//!
//! Owns the seam between what is decided and how it travels. Must not know drains. Invariants: a request has a timeout of
//! its own; a reply is whatever the server answered, also a refusal; nothing is asked twice in silence.

use std::{fmt, time::Duration};

use futures::future::BoxFuture;
use serde_json::Value;

/// For what only reads.
const READING: Duration = Duration::from_secs(20);
/// For what writes. Why longer: admission webhooks of the cluster have up to 30 s.
const WRITING: Duration = Duration::from_secs(35);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    /// A JSON patch (RFC 6902).
    Patch,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub method: Method,
    /// With its query, such as `/api/v1/nodes?limit=500`.
    pub path: String,
    pub body: Option<Value>,
    pub timeout: Duration,
}

impl Request {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { method: Method::Get, path: path.into(), body: None, timeout: READING }
    }

    pub(super) fn post(path: impl Into<String>, body: Value) -> Self {
        Self { method: Method::Post, path: path.into(), body: Some(body), timeout: WRITING }
    }

    pub(super) fn put(path: impl Into<String>, body: Value) -> Self {
        Self { method: Method::Put, path: path.into(), body: Some(body), timeout: WRITING }
    }

    pub(super) fn patch(path: impl Into<String>, operations: Vec<Value>) -> Self {
        let body = Some(Value::Array(operations));
        Self { method: Method::Patch, path: path.into(), body, timeout: WRITING }
    }
}

/// What the server answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Of HTTP, such as 201.
    pub status: u16,
    /// Of the header `Retry-After`.
    pub retry_after: Option<Duration>,
    pub body: Vec<u8>,
}

/// No answer: whether the request had an effect is unknown. Ready to show, a lower-case fragment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(pub String);

/// Carries requests to one API server.
pub trait Api: Send + Sync {
    /// Sends one request once; only credentials that the server refused may be got anew and the request sent again.
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Reply, Unanswered>>;

    /// Where it is sent, for messages: ` at https://10.0.0.1:6443`.
    fn place(&self) -> String;
}

/// A word of a path or a query, with everything but letters, digits, `-`, `.`, `_` and `~` escaped.
pub(super) fn escaped(word: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    word.bytes().fold(String::with_capacity(word.len()), |mut text, byte| {
        if plain(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
        text
    })
}

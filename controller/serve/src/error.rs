//! Why the server does not start.

use std::{io, net::SocketAddr, path::PathBuf};

use crate::access::TokenError;

/// What is wrong, before anything is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {cause}")]
    Listen { address: SocketAddr, cause: io::Error },
    #[error(
        "{address} can be reached from other machines, and neither a token nor client certificates say who may read"
    )]
    Open { address: SocketAddr },
    #[error("{address} can be reached from other machines, and without TLS the token travels readable")]
    Readable { address: SocketAddr },
    #[error("cannot read {what} in {path}: {cause}", path = path.display())]
    Pem { what: &'static str, path: PathBuf, cause: String },
    #[error("the certificate and its key cannot be used: {0}")]
    Tls(String),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("the templates of the pages cannot be read: {0}")]
    Template(#[from] minijinja::Error),
    #[error("the operating system gives no random numbers: {0}")]
    Random(String),
}

impl ServeError {
    /// Returns what may help.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open { .. } => Some(
                "give --token-file with --tls-cert and --tls-key, or --client-ca with both; \
                 `openssl rand -hex 32` makes a token",
            ),
            Self::Readable { .. } => Some(
                "give --tls-cert and --tls-key, or --insecure where the network between is trusted, such as a proxy's",
            ),
            Self::Listen { .. } => Some("--listen names another address, such as 127.0.0.1:7081"),
            Self::Token(_) => Some("`openssl rand -hex 32` makes a token"),
            _ => None,
        }
    }
}

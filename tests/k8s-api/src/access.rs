//! Who may do what: tokens with an end, client certificates, and permissions that tests take away.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A bearer token.
#[derive(Clone, Debug)]
pub struct Token {
    pub user: String,
    /// On the server's clock; none for ever.
    pub expires_ms: Option<i64>,
}

/// Something that a user may not do; an empty field stands for anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Denied {
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: String,
    /// `pods`, `pods/eviction`, `nodes`, …
    pub resource: String,
    pub namespace: String,
}

#[derive(Debug, Default)]
pub struct Access {
    pub tokens: BTreeMap<String, Token>,
    /// Certificates that the server handed out, by their bytes.
    pub certificates: BTreeMap<Vec<u8>, String>,
    pub denied: Vec<Denied>,
}

impl Access {
    /// The user of a request; none when nothing valid was shown.
    pub fn user(&self, bearer: Option<&str>, certificate: Option<&[u8]>, now_ms: i64) -> Option<String> {
        if let Some(bearer) = bearer {
            // Why the token alone: a real server that is shown a bad token answers 401, whatever certificate comes with it.
            let token = self.tokens.get(bearer)?;
            return token.expires_ms.is_none_or(|end| now_ms < end).then(|| token.user.clone());
        }
        self.certificates.get(certificate?).cloned()
    }

    pub fn denies(&self, user: &str, verb: &str, resource: &str, namespace: &str) -> bool {
        let fits = |rule: &str, value: &str| rule.is_empty() || rule == value;
        self.denied.iter().any(|d| {
            fits(&d.user, user)
                && fits(&d.verb, verb)
                && fits(&d.resource, resource)
                && fits(&d.namespace, namespace)
        })
    }
}

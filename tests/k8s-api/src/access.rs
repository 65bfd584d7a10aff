//! Authentication and authorisation: expiring tokens, client certificates, and permissions that tests remove.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A bearer token.
#[derive(Clone, Debug)]
pub struct Token {
    pub user: String,
    /// On the server's clock; `None` never expires.
    pub expires_ms: Option<i64>,
}

/// Something that a user may not do; an empty field matches anything.
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
    /// Certificates that the server issued, by their bytes.
    pub certificates: BTreeMap<Vec<u8>, String>,
    pub denied: Vec<Denied>,
}

impl Access {
    /// Returns the user of a request; `None` without valid credentials.
    pub fn user(&self, bearer: Option<&str>, certificate: Option<&[u8]>, now_ms: i64) -> Option<String> {
        if let Some(bearer) = bearer {
            // The token alone: a real server answers 401 to a bad token, whatever certificate comes with it.
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

//! Asking for a pod's end: what is sent, and what each answer means.
//!
//! Owns the Eviction API (policy/v1) and nothing else; nothing here sends. Invariants: every eviction names the pod's uid,
//! so that another pod of the same name is never hit; 201 means "asked", never "gone".
//!
//! Source of the answers: recorded from Kubernetes 1.36.2, in `replies/`.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    api::{Reply, Request, escaped},
    objects::{Pod, Status},
};

/// How much of a server's word is kept, in characters.
const SAID: usize = 600;

/// What an answer to an eviction means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Evicted {
    /// It will end; it is there until it is gone.
    Asked,
    Gone,
    /// Another pod bears the name, or something changed in that moment: look again.
    Changed,
    /// A disruption budget has no room, or was not looked at by its controller yet.
    Budget {
        says: String,
        again: Option<Duration>,
    },
    /// The server has too much to do.
    Overload {
        again: Option<Duration>,
    },
    /// The namespace is being deleted, and its pods with it.
    NamespaceEnds,
    /// Something in the cluster says no for now.
    NotNow(String),
    /// The server could not answer: it is not known whether the pod may go.
    Unanswered(String),
    /// Asking again cannot help.
    Never(String),
}

impl Evicted {
    /// Whether the server said what it thinks of the eviction.
    pub(super) const fn is_answer(&self) -> bool {
        !matches!(self, Self::Overload { .. } | Self::Unanswered(_))
    }
}

/// The request for one pod. `grace` overrides the pod's own; with `dry` nothing happens.
///
/// Why `fieldValidation`: a field that the server does not know would be ignored in silence, the uid too.
pub(super) fn eviction(pod: &Pod, grace: Option<Duration>, dry: bool) -> Request {
    let meta = &pod.metadata;
    let mut options = json!({"preconditions": {"uid": meta.uid}});
    if let (Some(grace), Some(options)) = (grace, options.as_object_mut()) {
        options.insert("gracePeriodSeconds".to_owned(), Value::from(grace.as_secs()));
    }
    if let (true, Some(options)) = (dry, options.as_object_mut()) {
        options.insert("dryRun".to_owned(), json!(["All"]));
    }
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/eviction?fieldValidation=Strict{}",
        escaped(&meta.namespace),
        escaped(&meta.name),
        if dry { "&dryRun=All" } else { "" }
    );
    Request::post(
        path,
        json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": options,
        }),
    )
}

/// What this answer means for the pod.
pub(super) fn read(reply: &Reply) -> Evicted {
    let status: Status = serde_json::from_slice(&reply.body).unwrap_or_default();
    let has = |reason: &str| status.details.causes.iter().find(|cause| cause.reason == reason);
    let seconds = Some(status.details.retry_after_seconds).filter(|seconds| *seconds > 0);
    let again = reply.retry_after.or(seconds.map(Duration::from_secs));
    let said = || said(reply.status, &status, &reply.body);
    match reply.status {
        200..=299 => Evicted::Asked,
        404 => Evicted::Gone,
        409 => Evicted::Changed,
        429 => match has("DisruptionBudget") {
            Some(cause) => Evicted::Budget { says: budget(&cause.message), again },
            None => Evicted::Overload { again },
        },
        403 if has("NamespaceTerminating").is_some() => Evicted::NamespaceEnds,
        // Why not for good: such webhooks move the pod away themselves and then let it go.
        _ if status.message.contains("admission webhook") => Evicted::NotNow(said()),
        500 if status.message.contains("more than one PodDisruptionBudget") => Evicted::Never(
            "more than one PodDisruptionBudget selects it, which evictions do not support".to_owned(),
        ),
        401 | 408 | 500..=599 => Evicted::Unanswered(said()),
        _ => Evicted::Never(said()),
    }
}

/// `PodDisruptionBudget p1 needs 2 healthy pods and has 2 currently`.
fn budget(message: &str) -> String {
    let rest = message.strip_prefix("The disruption budget ").unwrap_or(message);
    format!("PodDisruptionBudget {}", rest.trim_end_matches('.'))
}

/// What a server said, on one line of bounded length.
pub(super) fn said(code: u16, status: &Status, body: &[u8]) -> String {
    let text = if status.message.is_empty() {
        String::from_utf8_lossy(body.get(..body.len().min(SAID)).unwrap_or_default()).into_owned()
    } else {
        status.message.clone()
    };
    let line = shortened(&text, SAID);
    if line.is_empty() { format!("status {code}") } else { format!("{line} (status {code})") }
}

/// One line of so many characters at most; what is longer ends behind a whole word.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    let mut line = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let more = word.chars().count() + usize::from(!line.is_empty());
        if length + more > limit {
            // Why also a part of it: a single word may be all there is.
            if line.is_empty() {
                line.extend(word.chars().take(limit));
            }
            line.push_str(" …");
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        length += more;
    }
    line
}

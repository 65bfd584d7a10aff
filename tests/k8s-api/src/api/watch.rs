//! WATCH: changes since a version, bookmarks, the end by time, 410.
//!
//! A [`Cursor`] is the position of a watch. The server reads it again after each change and when the clock moves.

use serde_json::{Value, json};

use super::read::Filter;
use super::{Body, Delivery, Reply, Request, Target};
use crate::cluster::Cluster;
use crate::faults::Action;
use crate::object::set;
use crate::resources::Resource;
use crate::status::{self, Outcome};
use crate::store::ChangeKind;

/// One watch of one client.
#[derive(Clone, Debug)]
pub struct Cursor {
    resource: &'static Resource,
    filter: Filter,
    version: u64,
    /// Events before any change: the objects that existed already.
    initial: Vec<Value>,
    bookmarks: bool,
    bookmark_ms: i64,
    end_ms: i64,
    began_ms: i64,
    /// The fault of the watch.
    pub trouble: Option<Action>,
    /// Events delayed by a slow watch, with the time of their delivery.
    held: Vec<(i64, Value)>,
}

/// What a watch has to send now.
#[derive(Debug, Default)]
pub struct News {
    pub events: Vec<Value>,
    /// Whether the watch ends after these.
    pub end: bool,
    /// Whether the connection breaks instead of ending.
    pub broken: bool,
    /// When to read again at the latest, on the server's clock.
    pub next_ms: i64,
}

impl Cluster {
    pub(crate) fn watch(&mut self, request: &Request, target: &Target<'_>) -> Outcome<Reply> {
        let filter = Filter::of(request, target)?;
        let asked = request.parameter("resourceVersion").unwrap_or_default();
        let from = match asked {
            "" | "0" => None,
            text => Some(
                text.parse::<u64>()
                    .map_err(|_| status::bad_request(format!("invalid resource version: \"{text}\"")))?,
            ),
        };
        let initial_wanted = request.parameter("sendInitialEvents") == Some("true");
        // The real server ends a watch at a random time between 30 and 60 minutes.
        let seconds = request
            .parameter("timeoutSeconds")
            .and_then(|t| t.parse::<i64>().ok())
            .unwrap_or(1800 + i64::from(std::process::id()) % 1800);
        let bookmarks = request.wants("allowWatchBookmarks");
        let mut cursor = Cursor {
            resource: target.resource,
            filter,
            version: from.unwrap_or_else(|| self.store.version()),
            initial: Vec::new(),
            bookmarks,
            bookmark_ms: self.now_ms + self.settings.bookmark.0,
            end_ms: self.now_ms + seconds * 1000,
            began_ms: self.now_ms,
            trouble: None,
            held: Vec::new(),
        };
        if initial_wanted || (from.is_none() && request.parameter("sendInitialEvents") != Some("false")) {
            cursor.version = self.store.version();
            let all = self.store.all(target.resource, target.namespace).filter(|o| cursor.filter.matches(o));
            cursor.initial = all.map(|o| json!({"type": "ADDED", "object": o})).collect();
            if initial_wanted && bookmarks {
                let mut mark = self.bookmark(&cursor);
                set(
                    &mut mark,
                    &["object", "metadata", "annotations", "k8s.io/initial-events-end"],
                    json!("true"),
                );
                cursor.initial.push(mark);
            }
        } else if let Some(version) = from.filter(|v| *v < self.store.compacted()) {
            // An event and not a status code, because the real server has sent its 200 by then.
            let message = format!("too old resource version: {version} ({})", self.store.compacted());
            cursor.initial = vec![json!({"type": "ERROR", "object": status::expired(message).body()})];
            cursor.end_ms = self.now_ms;
        }
        Ok(Reply {
            code: 200,
            headers: Vec::new(),
            body: Body::Watch(Box::new(cursor)),
            after_ms: 0,
            delivery: Delivery::Whole,
        })
    }

    fn bookmark(&self, cursor: &Cursor) -> Value {
        json!({"type": "BOOKMARK", "object": {
            "kind": cursor.resource.kind,
            "apiVersion": cursor.resource.api_version(),
            "metadata": {"resourceVersion": self.store.version().to_string(), "creationTimestamp": null},
        }})
    }

    /// Returns what a watch has to send now, and advances the cursor.
    pub fn news(&self, cursor: &mut Cursor) -> News {
        let mut fresh = std::mem::take(&mut cursor.initial);
        if cursor.version < self.store.compacted() && fresh.is_empty() && cursor.end_ms > self.now_ms {
            let message =
                format!("too old resource version: {} ({})", cursor.version, self.store.compacted());
            fresh.push(json!({"type": "ERROR", "object": status::expired(message).body()}));
            cursor.end_ms = self.now_ms;
        }
        for change in self.store.since(cursor.resource, cursor.version) {
            let is = change.kind != ChangeKind::Deleted && cursor.filter.matches(&change.object);
            let was = change.before.as_ref().is_some_and(|b| cursor.filter.matches(b));
            let kind = match (was, is) {
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                // For a changed object too: one that no longer matches the selector is gone for this watch.
                (true, false) => "DELETED",
                (false, false) => continue,
            };
            fresh.push(json!({"type": kind, "object": change.object}));
        }
        cursor.version = self.store.version().max(cursor.version);
        if cursor.bookmarks && self.now_ms >= cursor.bookmark_ms {
            fresh.push(self.bookmark(cursor));
            cursor.bookmark_ms = self.now_ms + self.settings.bookmark.0;
        }
        let mut news = News { next_ms: cursor.end_ms.min(cursor.bookmark_ms), ..News::default() };
        match &cursor.trouble {
            Some(Action::SilentWatch) => fresh.clear(),
            Some(Action::SlowWatch { by }) => {
                cursor.held.extend(fresh.drain(..).map(|event| (self.now_ms + by.0, event)));
                while cursor.held.first().is_some_and(|(at, _)| *at <= self.now_ms) {
                    fresh.push(cursor.held.remove(0).1);
                }
                if let Some((at, _)) = cursor.held.first() {
                    news.next_ms = news.next_ms.min(*at);
                }
            }
            Some(Action::BrokenWatch { after }) => {
                news.broken = self.now_ms >= cursor.began_ms + after.0;
                news.next_ms = news.next_ms.min(cursor.began_ms + after.0);
            }
            _ => {}
        }
        news.events = fresh;
        news.end = self.now_ms >= cursor.end_ms;
        news
    }
}

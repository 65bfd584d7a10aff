//! The server's own record: the author, time and result of each action.
//!
//! End-to-end tests use it, because they must not trust the client's own account. Beside requests it holds events: a
//! node cordoned or ready, a pod gone, a disruption budget violated; each with the number of nodes out of service
//! after it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub seq: u64,
    /// Milliseconds since the epoch, on the server's clock.
    pub at_ms: i64,
    pub at: String,
    /// The user of a request, or the controller.
    pub user: String,
    /// The first part of the user agent.
    pub agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `evict`, `bind` for requests; `cordoned`,
    /// `uncordoned`, `ready`, `not-ready`, `gone`, `budget-violated`, `fault` for events.
    pub verb: String,
    pub resource: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
    /// HTTP code of a request; 0 otherwise.
    pub code: u16,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default)]
    pub dry_run: bool,
    /// The body of a write, or details of an event.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub detail: Value,
    /// Number of all nodes that were cordoned or not ready after this.
    pub out: u32,
}

/// All entries since the start, oldest first.
#[derive(Debug, Default)]
pub struct Log {
    entries: Vec<Entry>,
}

impl Log {
    pub fn push(&mut self, mut entry: Entry) {
        entry.seq = self.entries.len() as u64 + 1;
        self.entries.push(entry);
    }

    /// The entries after a number; 0 for all.
    pub fn since(&self, seq: u64) -> &[Entry] {
        let from = usize::try_from(seq).unwrap_or(usize::MAX).min(self.entries.len());
        &self.entries[from..]
    }
}

/// A node that was uncordoned by another user than the one that had cordoned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignUncordon {
    pub node: String,
    pub cordoned_by: String,
    pub uncordoned_by: String,
}

/// Returns every cordon that another user removed.
pub fn foreign_uncordons(entries: &[Entry]) -> Vec<ForeignUncordon> {
    let mut found = Vec::new();
    let mut owners: std::collections::BTreeMap<&str, &str> = std::collections::BTreeMap::new();
    for entry in entries {
        match entry.verb.as_str() {
            "cordoned" => {
                owners.insert(&entry.name, &entry.user);
            }
            "uncordoned" => {
                if let Some(owner) = owners.remove(entry.name.as_str())
                    && owner != entry.user
                {
                    found.push(ForeignUncordon {
                        node: entry.name.clone(),
                        cordoned_by: owner.to_owned(),
                        uncordoned_by: entry.user.clone(),
                    });
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns the largest number of nodes that were out of service at one instant.
pub fn most_out(entries: &[Entry]) -> u32 {
    entries.iter().map(|e| e.out).max().unwrap_or_default()
}

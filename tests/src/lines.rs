//! Reads events: lines of `--format jsonl`, or of a journal.

use std::collections::BTreeSet;

use serde_json::Value;

/// Events in their order.
#[derive(Clone, Debug)]
pub struct Events(Vec<Value>);

/// The nodes that were out of service, and how many at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    pub most: usize,
    /// Every node that was out at some time.
    pub nodes: BTreeSet<String>,
}

impl Events {
    /// Parses the complete lines of a text; an incomplete last line is ignored.
    pub fn of(text: &str) -> Self {
        Self(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Returns the contents of all events with this name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |event| what(event).0 == name).map(|event| what(event).1)
    }

    /// Returns the contents of all events with this name for one host.
    pub fn of_host<'a>(&'a self, name: &'a str, host: &'a str) -> impl Iterator<Item = &'a Value> {
        self.named(name).filter(move |with| with["host"] == host)
    }

    pub fn has(&self, name: &str) -> bool {
        self.named(name).next().is_some()
    }

    /// Returns hosts in the order in which they got an event with this name.
    pub fn hosts(&self, name: &str) -> Vec<String> {
        self.named(name).filter_map(|with| with["host"].as_str()).map(str::to_owned).collect()
    }

    /// Returns nodes in the order in which they ended the play.
    pub fn ends(&self) -> Vec<String> {
        let over = ["done", "compliant", "failed", "held", "unknown", "unreachable"];
        let ended = |with: &&Value| with["state"].as_str().is_some_and(|state| over.contains(&state));
        self.named("node_state")
            .filter(ended)
            .filter_map(|with| with["host"].as_str())
            .map(str::to_owned)
            .collect()
    }

    /// Returns the nodes between the permit to disturb them and their return to service.
    pub fn outage(&self) -> Outage {
        let mut out = BTreeSet::new();
        let mut seen = Outage::default();
        for event in &self.0 {
            let (name, with) = what(event);
            let host = with["host"].as_str().unwrap_or_default().to_owned();
            match name {
                "permit_granted" => {
                    out.insert(host.clone());
                    seen.nodes.insert(host);
                }
                "node_state" if with["state"] == "resuming" => {
                    out.remove(&host);
                }
                _ => {}
            }
            seen.most = seen.most.max(out.len());
        }
        seen
    }
}

fn what(event: &Value) -> (&str, &Value) {
    let what = &event["what"];
    (what["event"].as_str().unwrap_or_default(), &what["with"])
}

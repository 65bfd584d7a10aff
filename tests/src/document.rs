//! Reads the document of `--format json`.

use std::collections::BTreeMap;

use serde_json::Value;

/// One change as the document lists it; subject and values as JSON.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub task: String,
    pub text: String,
    pub subject: String,
    pub from: String,
    pub to: String,
    pub disruption: String,
}

/// The document of a run, a plan or an audit.
#[derive(Clone, Debug)]
pub struct Document(Value);

impl Document {
    pub const fn new(value: Value) -> Self {
        Self(value)
    }

    pub const fn value(&self) -> &Value {
        &self.0
    }

    pub fn run_id(&self) -> &str {
        self.text("/run_id")
    }

    /// Returns the text at a JSON pointer; empty if there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn number(&self, pointer: &str) -> i64 {
        self.0.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
    }

    /// Returns the names of all nodes.
    pub fn nodes(&self) -> Vec<String> {
        self.0["nodes"].as_object().map(|nodes| nodes.keys().cloned().collect()).unwrap_or_default()
    }

    #[track_caller]
    pub fn node(&self, name: &str) -> &Value {
        let node = &self.0["nodes"][name];
        assert!(node.is_object(), "no node {name} in {:#}", self.0);
        node
    }

    #[track_caller]
    pub fn state(&self, name: &str) -> &str {
        self.node(name)["state"].as_str().unwrap_or_default()
    }

    /// Returns the states of all nodes.
    pub fn states(&self) -> BTreeMap<String, String> {
        self.nodes().into_iter().map(|name| (name.clone(), self.state(&name).to_owned())).collect()
    }

    #[track_caller]
    pub fn message(&self, name: &str) -> &str {
        self.node(name)["message"].as_str().unwrap_or_default()
    }

    /// Returns a number of Ansible's recap.
    pub fn stat(&self, name: &str, field: &str) -> i64 {
        self.0["stats"][name][field].as_i64().unwrap_or(-1)
    }

    /// Returns the sum of one number of the recap over all nodes.
    pub fn total(&self, field: &str) -> i64 {
        self.nodes().iter().map(|name| self.stat(name, field)).sum()
    }

    /// Returns the changes of one node, sorted so that equal multisets are equal vectors.
    #[track_caller]
    pub fn changes(&self, name: &str) -> Vec<Row> {
        let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
        let mut rows: Vec<Row> = self.node(name)["changes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|row| Row {
                task: text(row, "task"),
                text: text(row, "text"),
                subject: row["subject"].to_string(),
                from: row["from"].to_string(),
                to: row["to"].to_string(),
                disruption: text(row, "disruption"),
            })
            .collect();
        rows.sort();
        rows
    }

    /// Returns whether the node was rebooted, and how many reboots are recorded.
    #[track_caller]
    pub fn reboots(&self, name: &str) -> usize {
        self.node(name)["reboots"].as_array().map_or(0, Vec::len)
    }
}

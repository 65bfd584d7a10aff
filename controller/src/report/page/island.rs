//! The nodes as a document in the page, from which its script makes rows and details.
//!
//! Invariants: no text of it can end the element that holds it, and none has a character that nobody sees. What several
//! nodes have in common is in it once.

use std::collections::{HashMap, hash_map::Entry};

use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    super::{NextAction, RunModel, Verdict},
    causes::Cause,
    columns::Groups,
    node::Node,
};
use crate::visible::{is_hidden, visible_lines};

#[derive(Debug, Serialize)]
struct Island<'a> {
    run: &'a str,
    verb: &'static str,
    /// Verdicts and actions, to which nodes refer by their places.
    verdicts: [Verdict; 6],
    actions: &'static [NextAction],
    groups: Vec<&'a str>,
    causes: Vec<CauseOfNode<'a>>,
    /// Texts and parts of nodes, each once. A part's `about` is a place in the table too.
    table: Vec<Value>,
    nodes: Vec<Map<String, Value>>,
}

#[derive(Debug, Serialize)]
struct CauseOfNode<'a> {
    key: &'a str,
    control: &'a str,
    verdict: Verdict,
    text: &'a str,
    /// Whether it is waived, and does not count.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    waived: bool,
}

/// Returns the document, to stand in a `script` element.
pub(super) fn island(model: &RunModel, verdicts: &[Verdict], groups: &Groups, causes: &[Cause]) -> String {
    let verb = model.verb();
    let mut table = Table::default();
    let mut by_node: Vec<Vec<usize>> = vec![Vec::new(); model.nodes().len()];
    for (at, cause) in causes.iter().enumerate() {
        for node in &cause.nodes {
            if let Some(causes) = by_node.get_mut(*node) {
                causes.push(at);
            }
        }
    }
    let groups_of = groups.by_node(model.nodes().len());
    let place = |verdict: Verdict| Verdict::WORST_FIRST.iter().position(|known| *known == verdict);
    let mut nodes = Vec::with_capacity(model.nodes().len());
    // A stable sort keeps the inventory's order within a verdict.
    let mut order: Vec<usize> = (0..model.nodes().len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(verdicts.get(*at)));
    for at in order {
        let Some(node) = model.nodes().get(at) else { continue };
        let mut row = table.node(&Node::of(node, verb));
        let mut add = |name: &str, value: Value| {
            row.insert(name.to_owned(), value);
        };
        add("name", Value::from(visible_lines(&node.name)));
        add("verdict", Value::from(place(node.verdict(verb))));
        let action = node.next_action(verb);
        add("action", Value::from(NextAction::ALL.iter().position(|known| *known == action)));
        add("groups", groups_of.get(at).cloned().into());
        add("causes", by_node.get(at).cloned().into());
        nodes.push(row);
    }
    let island = Island {
        run: model.run_id(),
        verb: verb.as_str(),
        verdicts: Verdict::WORST_FIRST,
        actions: NextAction::ALL,
        groups: groups.all.iter().map(|group| group.name.as_str()).collect(),
        causes: causes
            .iter()
            .map(|cause| CauseOfNode {
                key: &cause.key,
                control: &cause.control,
                verdict: cause.verdict,
                text: &cause.text,
                waived: cause.waived,
            })
            .collect(),
        table: table.values,
        nodes,
    };
    let mut island = serde_json::to_value(&island).unwrap_or_default();
    show_hidden(&mut island);
    in_script(&island.to_string())
}

/// Values that several nodes have, each once.
#[derive(Default)]
struct Table {
    values: Vec<Value>,
    places: HashMap<String, usize>,
}

impl Table {
    fn place(&mut self, mut value: Value) -> Value {
        if let Some(about) = value.get_mut("about") {
            *about = self.place(about.take());
        }
        let at = match self.places.entry(value.to_string()) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                self.values.push(value);
                *place.insert(self.values.len() - 1)
            }
        };
        Value::from(at)
    }

    /// Returns a node with the place in the table for each value, and for each item of a list. What is empty is left
    /// out.
    fn node(&mut self, node: &Node) -> Map<String, Value> {
        let Ok(Value::Object(fields)) = serde_json::to_value(node) else { return Map::new() };
        let mut row = Map::new();
        for (name, value) in fields {
            let value = match value {
                Value::Null | Value::Bool(false) => continue,
                Value::String(text) if text.is_empty() => continue,
                Value::Array(items) if items.is_empty() => continue,
                Value::Array(items) => items.into_iter().map(|item| self.place(item)).collect(),
                Value::Number(_) | Value::Bool(true) => value,
                value => self.place(value),
            };
            row.insert(name, value);
        }
        row
    }
}

/// Replaces characters that nobody sees by what they are.
fn show_hidden(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(is_hidden) => *text = visible_lines(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(show_hidden),
        Value::Object(fields) => fields.values_mut().for_each(show_hidden),
        _ => {}
    }
}

/// Returns JSON that is the same as JavaScript and cannot end a `script` element. These characters stand in texts only.
fn in_script(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + json.len() / 16);
    for c in json.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_text_is_the_same_after_the_script_element(text in ".*", key in ".*") {
            let value = serde_json::json!({ key: [text, "</script><!--"] });
            let json = in_script(&value.to_string());
            let bad = json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']);
            prop_assert!(!bad);
            prop_assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
        }
    }
}

//! Selectors: labels in a query, labels in an object, fields, and tolerations.
//!
//! Pure. Which fields can be selected follows the real server, as far as a drain needs it.

use serde_json::Value;

use crate::object::{list, text};
use crate::resources::Resource;
use crate::status::{Outcome, bad_request};

#[derive(Clone, Debug, PartialEq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
}

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Labels(Vec<(String, Test)>);

impl Labels {
    /// Parses `a=b,c!=d,e in (f, g),h notin (i),j,!k`.
    pub fn parse(query: &str) -> Outcome<Self> {
        let refuse = |part: &str| {
            bad_request(format!(
                "unable to parse requirement: <nil>: Invalid value: \"{part}\": invalid selector"
            ))
        };
        let mut tests = Vec::new();
        for part in split(query) {
            let part = part.trim();
            if part.is_empty() {
                continue;
            }
            let set = |rest: &str| -> Outcome<Vec<String>> {
                let inside = rest
                    .trim()
                    .strip_prefix('(')
                    .and_then(|r| r.strip_suffix(')'))
                    .ok_or_else(|| refuse(part))?;
                Ok(inside.split(',').map(|v| v.trim().to_owned()).collect())
            };
            let test = if let Some((key, rest)) = part
                .split_once(" notin ")
                .or_else(|| part.split_once(" notin(").map(|(k, _)| (k, &part[k.len() + 6..])))
            {
                (key, Test::NotIn(set(rest)?))
            } else if let Some((key, rest)) = part
                .split_once(" in ")
                .or_else(|| part.split_once(" in(").map(|(k, _)| (k, &part[k.len() + 3..])))
            {
                (key, Test::In(set(rest)?))
            } else if let Some((key, value)) = part.split_once("!=") {
                (key, Test::NotIn(vec![value.trim().to_owned()]))
            } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (key, Test::In(vec![value.trim().to_owned()]))
            } else if let Some(key) = part.strip_prefix('!') {
                (key, Test::Missing)
            } else {
                (part, Test::Exists)
            };
            let key = test.0.trim();
            if key.is_empty() || key.contains(char::is_whitespace) {
                return Err(refuse(part));
            }
            tests.push((key.to_owned(), test.1));
        }
        Ok(Self(tests))
    }

    /// Parses `matchLabels` and `matchExpressions`.
    pub fn of(selector: &Value) -> Self {
        let mut tests = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            tests.push((key.clone(), Test::In(vec![value.as_str().unwrap_or_default().to_owned()])));
        }
        for expression in list(selector, "/matchExpressions") {
            let values =
                || list(expression, "/values").iter().filter_map(Value::as_str).map(str::to_owned).collect();
            let test = match text(expression, "/operator") {
                "In" => Test::In(values()),
                "NotIn" => Test::NotIn(values()),
                "Exists" => Test::Exists,
                _ => Test::Missing,
            };
            tests.push((text(expression, "/key").to_owned(), test));
        }
        Self(tests)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(key, test)| {
            let found = crate::object::label(object, key);
            match test {
                Test::In(values) => found.is_some_and(|v| values.iter().any(|w| w == v)),
                Test::NotIn(values) => !found.is_some_and(|v| values.iter().any(|w| w == v)),
                Test::Exists => found.is_some(),
                Test::Missing => found.is_none(),
            }
        })
    }
}

/// Splits at commas outside of parentheses.
fn split(query: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_i32, 0);
    for (at, c) in query.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&query[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&query[from..]);
    parts
}

/// A field selector: pointer, wanted value, whether equal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(Vec<(String, String, bool)>);

impl Fields {
    pub fn parse(query: &str, resource: &Resource) -> Outcome<Self> {
        let mut tests = Vec::new();
        for part in query.split(',').filter(|p| !p.is_empty()) {
            let (key, value, equal) = if let Some((key, value)) = part.split_once("!=") {
                (key, value, false)
            } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (key, value, true)
            } else {
                return Err(bad_request(format!("invalid selector: '{part}'; can't understand '{part}'")));
            };
            if !selectable(resource).contains(&key) {
                return Err(bad_request(format!("field label not supported: {key}")));
            }
            tests.push((format!("/{}", key.replace('.', "/")), value.to_owned(), equal));
        }
        Ok(Self(tests))
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(pointer, value, equal)| {
            let found = match object.pointer(pointer) {
                Some(Value::String(text)) => text.clone(),
                Some(Value::Bool(flag)) => flag.to_string(),
                // A node that is not cordoned has no such field; the selector compares with "false".
                None if pointer == "/spec/unschedulable" => "false".to_owned(),
                _ => String::new(),
            };
            (found == *value) == *equal
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn selectable(resource: &Resource) -> &'static [&'static str] {
    match resource.plural {
        "pods" => &[
            "metadata.name",
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        "nodes" => &["metadata.name", "spec.unschedulable"],
        "namespaces" => &["metadata.name", "status.phase"],
        "events" => &[
            "metadata.name",
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "reason",
            "type",
        ],
        "jobs" => &["metadata.name", "metadata.namespace", "status.successful"],
        _ => &["metadata.name", "metadata.namespace"],
    }
}

/// Returns whether a pod tolerates a taint, and for how many seconds if not forever.
pub fn tolerates(pod: &Value, taint: &Value) -> Option<Option<i64>> {
    list(pod, "/spec/tolerations").iter().find_map(|toleration| {
        let (key, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
        let exists = text(toleration, "/operator") == "Exists";
        let same_key = key == text(taint, "/key") || (key.is_empty() && exists);
        let same_effect = effect.is_empty() || effect == text(taint, "/effect");
        let same_value = exists || text(toleration, "/value") == text(taint, "/value");
        (same_key && same_effect && same_value)
            .then(|| toleration.get("tolerationSeconds").and_then(Value::as_i64))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"metadata": {"labels": {"app": "w", "tier": "gpu"}}, "spec": {"nodeName": "n1"}})
    }

    #[test]
    fn every_form_of_a_label_selector() {
        for (query, matches) in [
            ("", true),
            ("app=w", true),
            ("app==w,tier=gpu", true),
            ("app!=w", false),
            ("zone!=a", true),
            ("app in (v, w),tier", true),
            ("app in(v,w)", true),
            ("app notin (v,w)", false),
            ("zone notin (a)", true),
            ("!zone", true),
            ("!app", false),
        ] {
            assert_eq!(Labels::parse(query).expect(query).matches(&pod()), matches, "{query}");
        }
        assert!(Labels::parse("a b c").is_err() && Labels::parse("a in b").is_err());
    }

    #[test]
    fn a_field_that_cannot_be_selected_is_named() {
        let refused = Fields::parse("spec.color=red", &crate::resources::PODS).expect_err("no such field");
        assert_eq!((refused.code, refused.message.as_str()), (400, "field label not supported: spec.color"));
        assert!(
            Fields::parse("spec.nodeName=n1,metadata.name!=x", &crate::resources::PODS)
                .expect("fine")
                .matches(&pod())
        );
    }

    proptest! {
        #[test]
        fn no_query_brings_a_parser_down(query in ".{0,40}") {
            let _ = Labels::parse(&query);
            let _ = Fields::parse(&query, &crate::resources::PODS);
        }
    }
}

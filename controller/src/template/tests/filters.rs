//! Filters and tests against what ansible-core gives (tests/compat/filters.py writes the file).

use serde_json::{Value as Json, json};

use super::scope;
use crate::template::{inspect_template, render};

/// Where we differ, and why.
const DIFFERENCES: &[(&str, &str)] = &[
    ("'%s' % 'a'", "the engine has no `%` for text; `format` does it"),
    ("'%s-%d' % ('a', 3)", "the engine has no `%` for text; `format` does it"),
];

#[test]
fn filters_and_tests_give_what_ansible_gives() {
    let file: Json = serde_json::from_str(include_str!("ansible_filters.json")).expect("the file is JSON");
    let scope = scope(file["variables"].clone());
    let mut wrong = Vec::new();
    for case in file["cases"].as_array().expect("cases") {
        let expression = case[0].as_str().expect("an expression");
        let different = DIFFERENCES.iter().any(|(known, _)| *known == expression);
        let found = match render(&format!("{{{{ {expression} }}}}"), &scope) {
            Ok(value) => json!({"value": value.to_json()}),
            Err(error) => json!({"error": error.to_string()}),
        };
        let same = match case[1].get("value") {
            Some(value) => found.get("value") == Some(value),
            None => found.get("error").is_some(),
        };
        if same == different {
            wrong.push(format!("{expression}\n  ansible: {}\n  gpufleet: {found}", case[1]));
        }
        if case[1].get("value").is_some()
            && let Err(error) = inspect_template(&format!("{{{{ {expression} }}}}"))
        {
            wrong.push(format!("{expression}\n  the check refuses it: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

//! The part of SARIF 2.1.0 that all documents of gpufleet share: findings about playbooks, and about nodes.
//!
//! Source: OASIS, Static Analysis Results Interchange Format 2.1.0. Only the parts that readers use are written.

use serde_json::{Map, Value, json};

/// What one SARIF run says.
#[derive(Debug)]
pub struct Run {
    /// Reporting descriptors: what results are of.
    pub rules: Vec<Value>,
    pub results: Vec<Value>,
    /// Whether what produced the results came to its end.
    pub successful: bool,
    /// Further keys of the run.
    pub more: Map<String, Value>,
}

/// Returns the document with one run.
pub fn document(run: Run) -> Value {
    let Run { rules, results, successful, more } = run;
    let mut document = json!({
        "tool": {"driver": {
            "name": "gpufleet",
            "semanticVersion": env!("CARGO_PKG_VERSION"),
            "rules": rules,
        }},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": successful}],
    });
    if let Some(run) = document.as_object_mut() {
        run.extend(more);
        // Last, because it is long.
        run.insert("results".to_owned(), results.into());
    }
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [document],
    })
}

//! What a report rests on: digests of what the run was given, of what judged its nodes, and of the programs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::event::{AuditScope, RunStarted};

/// Digests as lower-case hexadecimal SHA-256.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "provenance", deny_unknown_fields)]
pub struct Provenance<'a> {
    /// Of playbooks, inventory and variables as one.
    pub digest: &'a str,
    /// Of each part of these, by its name; empty in reports of runs of earlier versions.
    pub inputs: &'a BTreeMap<String, String>,
    /// Of gpufleet itself, and of the node file that it sent, by their names; empty in reports of runs of earlier
    /// versions.
    pub programs: &'a BTreeMap<String, String>,
    /// What judged the nodes, where checks did.
    pub baseline: Option<Baseline<'a>>,
    /// Of the file of waivers; null without one.
    pub waivers: Option<String>,
}

/// A resolved baseline.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "baseline", deny_unknown_fields)]
pub struct Baseline<'a> {
    /// The baselines that it was made of, joined by `+`.
    pub name: &'a str,
    /// Of all that it resolved to, as JSON.
    pub digest: String,
}

impl<'a> Provenance<'a> {
    pub fn of(run: &'a RunStarted) -> Self {
        let audit = run.audit.as_deref();
        let waivers = audit.map(|audit| audit.waivers.as_str()).filter(|text| !text.is_empty());
        Self {
            digest: &run.digest,
            inputs: &run.inputs,
            programs: &run.programs,
            baseline: audit.map(Baseline::of),
            waivers: waivers.map(|text| digest(text.as_bytes())),
        }
    }
}

impl<'a> Baseline<'a> {
    fn of(audit: &'a AuditScope) -> Self {
        let data = audit.policy.data();
        // Why no error: a baseline came from JSON or YAML, and goes back into it.
        let text = serde_json::to_string(data).unwrap_or_default();
        Self { name: &data.name, digest: digest(text.as_bytes()) }
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

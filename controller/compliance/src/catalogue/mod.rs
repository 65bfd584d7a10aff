//! The checks that gpufleet knows, as data: one file a group.
//!
//! Owns what is judged, how bad it is, why it matters and what to do next. Rules and thresholds follow the vendor's
//! documents named in `references`; texts are gpufleet's own. Invariant: every rule of the catalogue compiles, which
//! a test proves, so that reading it cannot fail in a release.

mod check;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use gpufleet_language::yaml;
use gpufleet_protocol::glob::Glob;

pub use check::{Check, Remediation, Rule, RuleVerdict};
pub(crate) use check::{CheckData, RuleData};

use crate::verdict::Scope;

/// A group of checks: its word, a title, and its file.
const GROUPS: &[(&str, &str, &str)] = &[
    ("inv", "Inventory", include_str!("data/inv.yaml")),
    ("err", "Errors of the driver", include_str!("data/err.yaml")),
    ("mem", "GPU memory", include_str!("data/mem.yaml")),
    ("pcie", "PCIe", include_str!("data/pcie.yaml")),
    ("nvl", "NVLink and fabric", include_str!("data/nvl.yaml")),
    ("thermal", "Temperature", include_str!("data/thermal.yaml")),
    ("power", "Power", include_str!("data/power.yaml")),
    ("clock", "Clocks", include_str!("data/clock.yaml")),
    ("cfg", "GPU configuration", include_str!("data/cfg.yaml")),
    ("sw", "Driver and software", include_str!("data/sw.yaml")),
    ("proc", "Processes", include_str!("data/proc.yaml")),
    ("net", "Network and RDMA", include_str!("data/net.yaml")),
    ("os", "Operating system", include_str!("data/os.yaml")),
    ("disk", "Disks", include_str!("data/disk.yaml")),
    ("ctr", "Containers", include_str!("data/ctr.yaml")),
    ("audit", "The audit itself", include_str!("data/audit.yaml")),
];

/// All checks.
#[derive(Debug)]
pub struct Catalogue {
    checks: Vec<Arc<Check>>,
    by_id: BTreeMap<Arc<str>, usize>,
    ids: BTreeSet<String>,
}

impl Catalogue {
    /// Returns the catalogue of this release.
    pub fn get() -> &'static Self {
        static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| match Catalogue::read() {
            Ok(catalogue) => catalogue,
            // Unreachable in a release: a test reads the same files.
            Err(error) => unreachable!("the catalogue of checks: {error}"),
        });
        &CATALOGUE
    }

    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn read() -> Result<Self, String> {
        let mut data: Vec<CheckData> = Vec::new();
        for (group, _, text) in GROUPS {
            let node = yaml::parse(&format!("{group}.yaml"), text).map_err(|errors| errors.to_string())?;
            let checks: Vec<CheckData> =
                serde_json::from_value(node.to_json()).map_err(|error| format!("{group}.yaml: {error}"))?;
            data.extend(checks);
        }
        let ids: BTreeSet<String> = data.iter().map(|check| check.id.clone()).collect();
        let mut checks = Vec::with_capacity(data.len());
        for check in data {
            let id = check.id.clone();
            let check = Check::compile(check, &ids, None)
                .map_err(|(text, error)| format!("{id}: `{text}`: {error}"))?;
            checks.push(Arc::new(check));
        }
        let by_id = checks.iter().enumerate().map(|(at, check)| (Arc::clone(&check.id), at)).collect();
        Ok(Self { checks, by_id, ids })
    }

    /// Returns all checks, in the order of their groups.
    pub fn checks(&self) -> &[Arc<Check>] {
        &self.checks
    }

    /// Returns the check with this id.
    pub fn check(&self, id: &str) -> Option<&Arc<Check>> {
        self.checks.get(*self.by_id.get(id)?)
    }

    /// Returns where a check stands among all of them.
    pub(crate) fn position(&self, id: &str) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// Returns all ids.
    pub fn ids(&self) -> &BTreeSet<String> {
        &self.ids
    }

    /// Returns the ids that a glob matches.
    pub fn matching<'a>(&'a self, glob: &str) -> impl Iterator<Item = &'a str> {
        let glob = Glob::new(glob);
        self.checks.iter().map(|check| &*check.id).filter(move |id| glob.matches(id))
    }

    /// Returns the words and titles of the groups, in their order.
    pub fn groups() -> impl Iterator<Item = (&'static str, &'static str)> {
        GROUPS.iter().map(|(word, title, _)| (*word, *title))
    }

    /// Returns every signal that a check reads or shows, with its scope: what a helper has to read.
    pub fn signals(&self) -> BTreeSet<(Scope, &str)> {
        self.checks.iter().flat_map(|check| check.signals()).map(|(scope, name)| (*scope, &**name)).collect()
    }
}

//! What the checks of an audit say of one node.

use gpufleet_compliance::{Finding, Memory, NodeVerdict, Verdict, outlier::Peers};
use gpufleet_protocol::signal::{Signal, Signals};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{grouping::class_of, openmetrics::NodeReadings};
use crate::event::{AuditScope, Judgement};

/// The name of the kind whose data are signals, and of that data.
pub(super) const KIND: &str = "health_info";
const SIGNALS: &str = "signals";
/// Characters of a product's name or a version: more than any has.
const MOST_NAME: usize = 80;
/// GPUs and file systems of a node: more than any has.
const MOST_SUBJECTS: usize = 256;

/// The findings about a node, and what they come to.
#[derive(Clone, Debug)]
pub struct NodeHealth {
    /// Of every check and subject, what is ok included.
    pub findings: Vec<Finding>,
    pub verdict: NodeVerdict,
    /// When the node was read.
    pub read: Timestamp,
    /// What later audits need of this one.
    pub memory: Memory,
    /// What is compared with other nodes, until it is.
    pub(super) peers: Peers,
    /// Such as `8x H100 80GB HBM3`.
    pub(super) hardware: Option<String>,
    pub(super) driver_version: Option<String>,
    pub(super) readings: NodeReadings,
    /// Why nothing was compared with earlier audits although there are some.
    pub(super) stranger: Option<String>,
}

impl NodeHealth {
    /// Whether a finding has this verdict.
    pub(super) fn has(&self, verdict: Verdict) -> bool {
        self.findings.iter().any(|finding| finding.verdict == verdict)
    }

    /// Judges the data of a `health_info` task. `None` if it holds no signals: nothing was judged then.
    /// `earlier` is what earlier audits remember, `at` the time of the reading.
    /// `declares` tells whether a task of a kind judged the host before.
    pub(super) fn of(
        scope: &AuditScope,
        host: &str,
        data: &Map<String, Value>,
        earlier: Option<&Memory>,
        at: Timestamp,
        declares: &dyn Fn(&str) -> bool,
    ) -> Option<Self> {
        let signals: Signals = serde_json::from_value(data.get(SIGNALS)?.clone()).ok()?;
        // A helper keeps these bounds; what does not is no helper of ours, and judging it could take long.
        let subjects = signals.gpus.len() + signals.disks.len() + signals.ports.len();
        if signals.records.len() > Signals::MOST_RECORDS || subjects > MOST_SUBJECTS {
            return None;
        }
        let Judgement { findings, verdict, memory, peers } =
            scope.judge(host, &signals, earlier, at, declares);
        let stranger = earlier.filter(|earlier| !earlier.may_be_of(&signals)).map(|earlier| {
            let when = Timestamp::from_second(earlier.at()).map(|at| at.strftime("%Y-%m-%d %H:%M UTC").to_string());
            format!(
                "{host}: none of its GPUs was there at the audit of {}: all were replaced, or it is another machine of \
                 that name. Nothing is compared with that audit. Clusters with equal names need a store each (--store).",
                when.unwrap_or_else(|_| "an unknown time".to_owned())
            )
        });
        let text = |signal: Option<&Signal>| {
            Some(signal?.known()?.as_str()?.chars().take(MOST_NAME).collect::<String>())
        };
        let names: Vec<String> =
            signals.gpus.iter().filter_map(|gpu| text(gpu.readings.get("name"))).collect();
        Some(Self {
            findings,
            verdict,
            read: at,
            memory,
            peers,
            hardware: class_of(names.iter().map(String::as_str)),
            driver_version: text(signals.node.get("driver_version")),
            readings: NodeReadings::of(&signals, at),
            stranger,
        })
    }
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;

//! The speed of the cluster's parts and which of them run: the part of a scenario that tests tune.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration on the server's clock, written `500ms`, `5s`, `2m`, `1h` or as seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub i64);

impl Span {
    pub const fn seconds(s: i64) -> Self {
        Self(s * 1000)
    }

    /// Parses the written form; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let number: f64 = digits.parse().ok().filter(|n: &f64| *n >= 0.0 && *n < 1e9)?;
        let factor = match &text[digits.len()..] {
            "ms" => 1.0,
            "" | "s" => 1000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            _ => return None,
        };
        Some(Self((number * factor) as i64))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{}ms", self.0))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            Seconds(f64),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Text(text) => text,
            Written::Seconds(seconds) => seconds.to_string(),
        };
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("`{text}` is no length of time (500ms, 5s, 2m, 1h)"))
        })
    }
}

/// Which controllers run, by default all. Without one, the cluster has a fault, or no controller manager.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Controllers {
    /// Updates the status of disruption budgets; without it, every eviction under a new budget is refused.
    pub disruption: bool,
    /// Creates the pods of replica sets, stateful sets, daemon sets and jobs.
    pub workloads: bool,
    pub scheduler: bool,
    /// Marks dead nodes, sets their taints, deletes pods that do not tolerate them.
    pub nodes: bool,
    /// Empties and removes deleted namespaces.
    pub namespaces: bool,
    /// Deletes pods whose controller is gone.
    pub garbage: bool,
}

impl Default for Controllers {
    fn default() -> Self {
        Self {
            disruption: true,
            workloads: true,
            scheduler: true,
            nodes: true,
            namespaces: true,
            garbage: true,
        }
    }
}

impl Controllers {
    /// Returns the settings of a bare API server with only the disruption controller, like the one of the
    /// transcripts.
    pub fn recorded() -> Self {
        Self {
            disruption: true,
            workloads: false,
            scheduler: false,
            nodes: false,
            namespaces: false,
            garbage: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    pub controllers: Controllers,
    /// From a change to a controller's reaction.
    pub controller_lag: Span,
    /// From a change to the new status of a disruption budget.
    pub disruption_lag: Span,
    /// From the binding of a pod to its readiness.
    pub pod_start: Span,
    /// From the deletion of a pod to the end of its containers, at most its grace.
    pub pod_stop: Span,
    /// From the last sign of a kubelet to `Ready=Unknown`.
    pub node_monitor_grace: Span,
    /// From the start of a kubelet to `Ready=True`.
    pub kubelet_ready: Span,
    /// From the start of a device plugin to the devices in `allocatable`.
    pub plugin_register: Span,
    /// How long the mig-manager takes for a node.
    pub mig_apply: Span,
    /// Time between two heartbeats of a node.
    pub heartbeat: Span,
    /// Time between two bookmarks of a watch.
    pub bookmark: Span,
    /// How long the disruption controller waits for an evicted pod.
    pub disrupted_pod_timeout: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            controllers: Controllers::default(),
            controller_lag: Span(100),
            disruption_lag: Span(100),
            pod_start: Span::seconds(3),
            pod_stop: Span::seconds(1),
            node_monitor_grace: Span::seconds(50),
            kubelet_ready: Span::seconds(2),
            plugin_register: Span::seconds(1),
            mig_apply: Span::seconds(20),
            heartbeat: Span::seconds(300),
            bookmark: Span::seconds(60),
            disrupted_pod_timeout: Span::seconds(120),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read() {
        for (text, ms) in [("500ms", 500), ("5s", 5000), ("2m", 120_000), ("1h", 3_600_000), ("1.5", 1500)] {
            assert_eq!(Span::parse(text), Some(Span(ms)), "{text}");
        }
        for text in ["", "s", "-5s", "5 s", "5d", "1e99s"] {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }
}

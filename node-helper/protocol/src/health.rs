//! What the controller checks before it gives a node back: health checks, and the state of the operating system.
//!
//! Owns the messages only; the helper performs the checks. Invariants: what cannot be read is [`Verdict::Unknown`] and
//! never [`Verdict::Ok`]; [`Verdict::NotApplicable`] means that the node lacks what is checked.

use serde::{Deserialize, Serialize};

/// A request for health checks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthRequest {
    pub checks: Vec<HealthCheck>,
    /// Number of GPUs of the node before the run; `None` to compare with the PCI bus.
    #[serde(default)]
    pub gpus: Option<u32>,
    /// The boot id that the controller refers to. In another boot every verdict is [`Verdict::Unknown`].
    #[serde(default)]
    pub since_boot: Option<String>,
}

/// The registry of checks: a new one is a line here and a file in the helper's `health`.
macro_rules! checks {
    ($($(#[$doc:meta])+ $check:ident: $word:literal,)+) => {
        /// One check, by the word that a play writes in `health_gate`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum HealthCheck { $($(#[$doc])+ #[serde(rename = $word)] $check),+ }

        impl HealthCheck {
            /// Every check, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$check),+];

            /// The word in a play and in a report.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$check => $word),+ }
            }
        }
    };
}

checks! {
    /// NVML lists as many GPUs as expected, and can read each.
    GpuCount: "gpu_count",
    /// No GPU waits for an activation of its MIG mode.
    MigLayout: "mig_layout",
    /// No pending ECC mode, no uncorrected error that still matters, no row remapping failed or pending.
    Ecc: "ecc",
    /// The driver asks for no recovery, and the kernel logged no Xid since this boot that says something about the node
    /// and that nothing has settled since.
    Xid: "xid",
    /// Persistence is on for every GPU.
    Persistence: "persistence",
    /// The fabric manager runs where the node has NVSwitches.
    FabricManager: "fabric_manager",
    /// systemd is up, degraded included.
    System: "system",
}

impl HealthCheck {
    /// The checks of a play that names none.
    pub const USUAL: &[Self] = &[Self::GpuCount, Self::MigLayout, Self::Ecc];

    /// Returns the check with this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|check| check.word() == word)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    Fail,
    /// It could not be read; counts as a failure.
    Unknown,
    /// The node lacks what is checked.
    NotApplicable,
}

impl Verdict {
    /// Whether a node with this verdict may be given back.
    pub const fn passes(self) -> bool {
        matches!(self, Self::Ok | Self::NotApplicable)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    pub check: HealthCheck,
    pub verdict: Verdict,
    /// One sentence: what was found and, after a failure, what to do next.
    pub why: String,
}

/// One result for each requested check, in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthReport {
    pub results: Vec<CheckResult>,
}

impl HealthReport {
    /// Whether every check passes; `false` without results, which prove nothing.
    pub fn passes(&self) -> bool {
        !self.results.is_empty() && self.results.iter().all(|result| result.verdict.passes())
    }
}

/// The state of the operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemState {
    /// `None` if the kernel does not tell.
    pub boot_id: Option<String>,
    /// The output of `systemctl is-system-running`; `None` if systemd is not process 1 or does not answer.
    pub state: Option<String>,
    /// Whether systemd is process 1; then a missing `state` means that it does not answer.
    pub systemd: bool,
    /// Whether a shutdown is scheduled or under way; then no further reboot must be requested.
    pub shutdown_scheduled: bool,
    /// Units that systemd has not finished starting or stopping, running jobs first; empty once it is up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
}

impl SystemState {
    /// Whether the system is up and not going down. Source: systemctl(1), `is-system-running`.
    pub fn is_up(&self) -> bool {
        !self.shutdown_scheduled
            && match self.state.as_deref() {
                Some(state) => matches!(state, "running" | "degraded"),
                None => !self.systemd,
            }
    }

    /// Returns the state in words: systemd's own, and what it waits for.
    pub fn words(&self) -> String {
        let state = match (&self.state, self.systemd) {
            (Some(state), _) => format!("systemd says {state}"),
            (None, true) => "systemd does not answer".to_owned(),
            (None, false) => "systemd does not run it".to_owned(),
        };
        let going = match self.shutdown_scheduled && self.state.as_deref() != Some("stopping") {
            true => ", and a shutdown is scheduled",
            false => "",
        };
        let jobs = match self.jobs.is_empty() {
            true => String::new(),
            false => format!("; not done: {}", self.jobs.join(", ")),
        };
        format!("{state}{going}{jobs}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_their_checks_on_the_wire_too() {
        for check in HealthCheck::ALL {
            assert_eq!(HealthCheck::from_word(check.word()), Some(*check));
            assert_eq!(serde_json::to_string(check).unwrap(), format!("\"{}\"", check.word()));
        }
        assert_eq!(HealthCheck::from_word("gpus"), None);
    }

    #[test]
    fn only_ok_and_absent_pass_and_nothing_proves_nothing() {
        let report = |verdicts: &[Verdict]| HealthReport {
            results: verdicts
                .iter()
                .map(|verdict| CheckResult { check: HealthCheck::Ecc, verdict: *verdict, why: String::new() })
                .collect(),
        };
        assert!(report(&[Verdict::Ok, Verdict::NotApplicable]).passes());
        assert!(!report(&[Verdict::Ok, Verdict::Unknown]).passes());
        assert!(!report(&[Verdict::Fail]).passes());
        assert!(!report(&[]).passes());
    }

    #[test]
    fn a_system_is_up_only_when_it_says_so() {
        let of = |state: Option<&str>, systemd, shutdown_scheduled| SystemState {
            boot_id: None,
            state: state.map(str::to_owned),
            systemd,
            shutdown_scheduled,
            jobs: Vec::new(),
        };
        assert!(of(Some("running"), true, false).is_up());
        assert!(of(Some("degraded"), true, false).is_up());
        assert!(of(None, false, false).is_up());
        for state in ["starting", "stopping", "initializing", "maintenance", "offline", "unknown"] {
            assert!(!of(Some(state), true, false).is_up(), "{state}");
        }
        assert!(!of(None, true, false).is_up(), "systemd does not answer");
        assert!(!of(Some("running"), true, true).is_up(), "about to go down");
        let starting = SystemState {
            jobs: vec!["a.service".to_owned(), "b.mount".to_owned()],
            ..of(Some("starting"), true, false)
        };
        assert_eq!(starting.words(), "systemd says starting; not done: a.service, b.mount");
        assert_eq!(
            of(Some("running"), true, true).words(),
            "systemd says running, and a shutdown is scheduled"
        );
        assert_eq!(of(Some("stopping"), true, true).words(), "systemd says stopping");
        assert_eq!(of(None, true, false).words(), "systemd does not answer");
    }
}

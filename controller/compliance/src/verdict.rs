//! The words of a judgement: verdicts, next actions, severities, scopes.

use std::fmt;

use gpufleet_protocol::signal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! words {
    ($name:ident { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $name {
            /// Every one of them, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word that files and reports have for it.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Returns the one with this word.
            pub fn of_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|it| it.word() == word)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }
    };
}

/// What a check says of a subject, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It does not apply here.
    Na,
    Ok,
    /// Something to know; the node works.
    Warn,
    /// It is not as declared.
    Drift,
    /// It could not be judged.
    Unknown,
    Fail,
}

words!(Verdict {
    Na => "na",
    Ok => "ok",
    Warn => "warn",
    Drift => "drift",
    Unknown => "unknown",
    Fail => "fail",
});

impl Verdict {
    /// Every one of them, from worst to best.
    pub const WORST_FIRST: [Self; 6] =
        [Self::Fail, Self::Unknown, Self::Drift, Self::Warn, Self::Ok, Self::Na];

    /// Whether the check came to a judgement: ok, warn, drift or fail.
    pub const fn is_judged(self) -> bool {
        matches!(self, Self::Ok | Self::Warn | Self::Drift | Self::Fail)
    }

    /// Whether it is a finding to show: anything but ok and na.
    pub const fn is_not_ok(self) -> bool {
        !matches!(self, Self::Ok | Self::Na)
    }
}

/// What to do next, from weak to strong.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    #[default]
    None,
    /// A run, which nobody notices.
    Apply,
    /// A run, when the GPU is idle.
    Reset,
    /// A run, in waves.
    Reboot,
    /// A person looks; the node may work on.
    Investigate,
    /// No new work now; then a person.
    Drain,
    /// No new work, field diagnostics, the vendor.
    Replace,
}

words!(Action {
    None => "none",
    Apply => "apply",
    Reset => "reset",
    Reboot => "reboot",
    Investigate => "investigate",
    Drain => "drain",
    Replace => "replace",
});

/// How much a check matters, from little to much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Info,
    Low,
    Medium,
    High,
    Critical,
}

words!(Severity {
    Info => "info",
    Low => "low",
    Medium => "medium",
    High => "high",
    Critical => "critical",
});

/// What a check judges, and what a signal is read of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Node,
    Gpu,
    Disk,
    /// A port of an RDMA device.
    Port,
}

words!(Scope {
    Node => "node",
    Gpu => "gpu",
    Disk => "disk",
    Port => "port",
});

impl From<signal::Scope> for Scope {
    fn from(scope: signal::Scope) -> Self {
        match scope {
            signal::Scope::Node => Self::Node,
            signal::Scope::Gpu => Self::Gpu,
            signal::Scope::Disk => Self::Disk,
            signal::Scope::Port => Self::Port,
        }
    }
}

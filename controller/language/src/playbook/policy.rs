//! How a play's rollout treats the fleet: who may be out, how nodes are drained, rebooted and given back.
//!
//! Owns the meaning and the defaults of the `rollout` block; waves, `max_unavailable`, `max_failures` and
//! `max_fail_percentage` are keys of the play, wherever they were written. Must not know hosts, schedulers or time.
//! Templates are kept as written: whoever carries a hook out renders it with the node's variables.

use std::fmt;
use std::sync::Arc;

use gpufleet_protocol::health::HealthCheck;

use super::drain::Drain;
use super::program::Amount;
use crate::diagnostic::Span;
use crate::template::Value;
use crate::window::Window;

/// How long a reboot may take unless the play says otherwise.
pub const REBOOT_TIMEOUT_S: u64 = 20 * 60;
/// How long a power hook and what follows it may take unless the play says otherwise.
pub const POWER_CYCLE_TIMEOUT_S: u64 = 20 * 60;
/// Why so few: nodes that hang one by one are rare, and a mistake about the way to them hits many.
pub const POWER_CYCLES_PER_HOUR: u32 = 2;
/// The policy of one play.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The host variable, or the label of the node at Kubernetes, whose value names the host's failure domain.
    pub failure_domain: Option<Arc<str>>,
    pub failure_domain_is_label: bool,
    pub(super) failure_domain_span: Option<Span>,
    /// Some where `failure_domain` is; a count.
    pub max_unavailable_per_domain: Option<Amount>,
    /// Bounds hosts that cannot be reached, over the whole run.
    pub max_unreachable: Option<u32>,
    /// How long a wave is watched after its last node is back.
    pub soak_s: u64,
    /// When nodes may be disturbed.
    pub window: Option<Window>,
    pub drain: Drain,
    pub reboot: RebootPolicy,
    /// What must hold before a node is given back, and at the end of the soak.
    pub health_gate: Vec<Gate>,
    /// Whether nothing was written, so that the gate is gpufleet's own.
    pub gate_is_default: bool,
    pub power_cycle: Option<PowerCycle>,
    /// Which of its durations somebody wrote.
    pub written: Written,
}

/// Durations that stand in the playbook; the others are defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The drain's `timeout`.
    pub drain: bool,
    pub reboot: bool,
    pub power_cycle: bool,
}

impl Policy {
    /// The checks of the health gate that the node's helper does.
    pub fn checks(&self) -> Vec<HealthCheck> {
        let check = |gate: &Gate| match gate {
            Gate::Check(check) => Some(*check),
            Gate::Command(_) => None,
        };
        self.health_gate.iter().filter_map(check).collect()
    }

    /// The commands of the health gate, as they are written.
    pub fn gate_commands(&self) -> Vec<Value> {
        let command = |gate: &Gate| match gate {
            Gate::Check(_) => None,
            Gate::Command(command) => Some(command.clone()),
        };
        self.health_gate.iter().filter_map(command).collect()
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            failure_domain: None,
            failure_domain_is_label: false,
            failure_domain_span: None,
            max_unavailable_per_domain: None,
            max_unreachable: None,
            soak_s: 0,
            window: None,
            drain: Drain::default(),
            reboot: RebootPolicy::default(),
            health_gate: Gate::usual(),
            gate_is_default: true,
            power_cycle: None,
            written: Written::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebootPolicy {
    /// From the order until the node answers with a new boot id; a task's own `timeout` wins.
    pub timeout_s: u64,
    pub via: RebootVia,
}

impl Default for RebootPolicy {
    fn default() -> Self {
        Self { timeout_s: REBOOT_TIMEOUT_S, via: RebootVia::Ssh }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebootVia {
    #[default]
    Ssh,
    /// The scheduler that drained the node; only with a drainer that reboots.
    Scheduler,
}

impl RebootVia {
    /// The word of [`RebootVia::Ssh`]; the other one is the drainer's word.
    pub(super) const SSH: &str = "ssh";
}

/// One condition for giving a node back.
#[derive(Clone, Debug, PartialEq)]
pub enum Gate {
    /// A check of the node's helper.
    Check(HealthCheck),
    /// A template for a line for `sh -c` on the node; exit code 0 holds.
    Command(Value),
}

impl Gate {
    /// The word of a gate that is a command.
    pub const COMMAND: &str = "command";

    /// What is asked for where a play says nothing.
    pub fn usual() -> Vec<Self> {
        HealthCheck::USUAL.iter().copied().map(Self::Check).collect()
    }

    /// As it is written in a playbook.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Check(check) => check.word(),
            Self::Command(_) => Self::COMMAND,
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The last resort for a node that does not come back; hooks run on the machine of gpufleet.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerCycle {
    /// A template for a line for `sh -c`.
    pub command: Value,
    /// Asks for the power state first; where it fails, nothing is done.
    pub status: Option<Value>,
    /// Asks the BMC whether the node is hung; where it succeeds, it is.
    pub hung: Option<Value>,
    /// Power cycles of the whole run in any hour.
    pub max_per_hour: u32,
    /// From the command until the node answers with a new boot id.
    pub timeout_s: u64,
}

/// What the command line says over every play.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    pub window: Option<Window>,
    pub soak_s: Option<u64>,
    pub max_failures: Option<u32>,
}

impl Policy {
    /// This policy with what the command line says over it; `max_failures` is the play's, and not in here.
    #[must_use]
    pub fn overridden(&self, overrides: &Overrides) -> Self {
        let mut policy = self.clone();
        if let Some(window) = &overrides.window {
            policy.window = Some(window.clone());
        }
        if let Some(soak_s) = overrides.soak_s {
            policy.soak_s = soak_s;
        }
        policy
    }
}

/// What an interrupted command means for the run that is resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnInterrupt {
    /// Its node is held and named; a person decides.
    #[default]
    Hold,
    Rerun,
    Fail,
}

impl OnInterrupt {
    pub const ALL: [Self; 3] = [Self::Hold, Self::Rerun, Self::Fail];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Rerun => "rerun",
            Self::Fail => "fail",
        }
    }
}

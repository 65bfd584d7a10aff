//! How a play's rollout treats the fleet: who may be out, how nodes are drained, rebooted and given back.
//!
//! Owns the meaning and the defaults of the `rollout` block; waves, `max_unavailable`, `max_failures` and
//! `max_fail_percentage` are keys of the play, wherever they were written. Must not know hosts, schedulers or time.
//! Templates are kept as written: whoever carries a hook out renders it with the node's variables.

use std::fmt;
use std::sync::Arc;

use gpufleet_protocol::health::HealthCheck;

use super::program::Amount;
use crate::diagnostic::Span;
use crate::template::Value;
use crate::window::Window;

/// How long a drain by Slurm may take unless the play says otherwise.
pub const SLURM_DRAIN_TIMEOUT_S: u64 = 2 * 60 * 60;
/// How long a drain by Kubernetes may take unless the play says otherwise.
pub const KUBERNETES_DRAIN_TIMEOUT_S: u64 = 30 * 60;
/// How long a node may take until it is ready and offers its GPUs again, unless the play says otherwise.
pub const KUBERNETES_READY_TIMEOUT_S: u64 = 10 * 60;
/// How long a drain by commands may take unless the play says otherwise.
pub const COMMAND_DRAIN_TIMEOUT_S: u64 = 30 * 60;
/// How long a reboot may take unless the play says otherwise.
pub const REBOOT_TIMEOUT_S: u64 = 20 * 60;
/// How long jobs have after a notice unless the play says otherwise.
pub const NOTICE_DEADLINE_S: u64 = 5 * 60;
/// How long a power hook and what follows it may take unless the play says otherwise.
pub const POWER_CYCLE_TIMEOUT_S: u64 = 20 * 60;
/// Why so few: nodes that hang one by one are rare, and a mistake about the way to them hits many.
pub const POWER_CYCLES_PER_HOUR: u32 = 2;
/// The node's name at the scheduler unless the play says otherwise.
pub const SLURM_NODE: &str = "{{ inventory_hostname }}";

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
            drain: Drain::None,
            reboot: RebootPolicy::default(),
            health_gate: Gate::usual(),
            gate_is_default: true,
            power_cycle: None,
            written: Written::default(),
        }
    }
}

/// Who keeps work off a node while it is disturbed.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Drain {
    /// Nobody: GPU processes and open device files decide alone whether a node is idle.
    #[default]
    None,
    Slurm(SlurmDrain),
    Kubernetes(KubernetesDrain),
    Command(CommandDrain),
}

impl Drain {
    /// The host of the inventory that runs the scheduler's programs, and where that is written.
    pub fn login(&self) -> Option<(&str, Option<&Span>)> {
        let (login, span) = match self {
            Self::Slurm(slurm) => (&slurm.login, &slurm.login_span),
            Self::Kubernetes(KubernetesDrain { kubectl: Some(kubectl), .. }) => {
                (&kubectl.login, &kubectl.login_span)
            }
            Self::None | Self::Kubernetes(_) | Self::Command(_) => return None,
        };
        Some((login.as_deref()?, span.as_ref()))
    }

    /// As it is written in a playbook.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Slurm(_) => "slurm",
            Self::Kubernetes(kubernetes) if kubernetes.kubectl.is_some() => "kubectl",
            Self::Kubernetes(_) => "kubernetes",
            Self::Command(_) => "command",
        }
    }

    /// How long a node may take from the cordon to idle, a notice's deadline included.
    pub fn worst_case_s(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Slurm(slurm) => {
                let notice = slurm.notice.as_ref().map_or(0, |notice| notice.deadline_s);
                slurm.timeout_s.saturating_add(notice)
            }
            Self::Kubernetes(kubernetes) => {
                kubernetes.timeout_s.saturating_add(kubernetes.notice_s.unwrap_or_default())
            }
            Self::Command(command) => {
                let notice = command.notice.as_ref().map_or(0, |_| command.notice_deadline_s);
                command.timeout_s.saturating_add(notice)
            }
        }
    }
}

impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// `drain: slurm`.
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmDrain {
    /// From the cordon until no job is left.
    pub timeout_s: u64,
    /// A template for the node's name at Slurm.
    pub node: Value,
    /// The inventory host where `scontrol` runs; none is the machine of gpufleet.
    pub login: Option<String>,
    pub(super) login_span: Option<Span>,
    pub notice: Option<Notice>,
    pub spans: HookSpans,
}

impl Default for SlurmDrain {
    fn default() -> Self {
        Self {
            timeout_s: SLURM_DRAIN_TIMEOUT_S,
            node: Value::text(SLURM_NODE),
            login: None,
            login_span: None,
            notice: None,
            spans: HookSpans::default(),
        }
    }
}

/// `drain: kubernetes`, and `drain: kubectl`.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesDrain {
    /// Through `kubectl` instead of over the network.
    pub kubectl: Option<Kubectl>,
    /// The kubeconfig as it is written; none is what kubectl would take, or the service account of gpufleet's own pod.
    pub kubeconfig: Option<String>,
    /// Of the kubeconfig; none is its current one.
    pub context: Option<String>,
    /// A template for the node's name at Kubernetes.
    pub node: Value,
    /// From the cordon until no pod is left that has to go.
    pub timeout_s: u64,
    /// Until a node that is given back is ready and offers its GPUs.
    pub ready_timeout_s: u64,
    pub delete_emptydir_data: bool,
    /// Pods that nothing brings back go for good.
    pub force: bool,
    /// Instead of each pod's own.
    pub grace_period_s: Option<u64>,
    /// How long pods are told before they are evicted.
    pub notice_s: Option<u64>,
    pub skip_namespaces: Vec<String>,
    /// Namespace and name of the Lease that one run at a time holds.
    pub lock: Option<(String, String)>,
    /// Whether what the GPU operator runs is stopped once the pods are gone.
    pub pause_operands: bool,
    pub mig_manager: OnMigManager,
    pub spans: HookSpans,
}

impl Default for KubernetesDrain {
    fn default() -> Self {
        Self {
            kubectl: None,
            kubeconfig: None,
            context: None,
            node: Value::text(SLURM_NODE),
            timeout_s: KUBERNETES_DRAIN_TIMEOUT_S,
            ready_timeout_s: KUBERNETES_READY_TIMEOUT_S,
            delete_emptydir_data: false,
            force: false,
            grace_period_s: None,
            notice_s: None,
            skip_namespaces: Vec::new(),
            lock: None,
            pause_operands: true,
            mig_manager: OnMigManager::default(),
            spans: HookSpans::default(),
        }
    }
}

/// Where `kubectl` runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kubectl {
    /// A host of the inventory; none is this machine.
    pub login: Option<String>,
    pub login_span: Option<Span>,
}

/// What is done where the GPU operator's mig-manager holds a node to its own layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnMigManager {
    /// Such a node is not drained for the play's `gpu_mig`.
    #[default]
    Refuse,
    /// mig-manager is taken off such a node for good.
    Takeover,
    /// mig-manager lays out this configuration of its own; `gpu_mig` then proves it.
    Label(String),
}

/// What jobs are told before their node is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub how: NoticeHow,
    /// How long jobs have after it.
    pub deadline_s: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeHow {
    /// The name of a signal without `SIG`, such as `USR1`.
    Signal(String),
    Requeue,
}

/// `drain: command`: hooks that run on the machine of gpufleet, each a template for a line for `sh -c`.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandDrain {
    pub drain: Value,
    pub is_idle: Value,
    pub resume: Value,
    pub still_ours: Option<Value>,
    /// Prints the nodes that are out, whoever took them out.
    pub out: Option<Value>,
    pub notice: Option<Value>,
    pub timeout_s: u64,
    pub notice_deadline_s: u64,
    pub spans: HookSpans,
}

/// Where the templates of a drainer are written, for whoever renders them.
#[derive(Clone, Debug, Default)]
pub struct HookSpans(pub(super) Vec<(&'static str, Span)>);

impl HookSpans {
    /// The place of a hook or setting; none where it is not written.
    pub fn of(&self, name: &str) -> Option<&Span> {
        self.0.iter().find_map(|(key, span)| (*key == name).then_some(span))
    }
}

/// Why: two drainers are the same wherever they are written.
impl PartialEq for HookSpans {
    fn eq(&self, _: &Self) -> bool {
        true
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
    /// `scontrol reboot nextstate=DOWN`; only with `drain: slurm`.
    Slurm,
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

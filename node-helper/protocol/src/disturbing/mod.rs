//! What a command does to running work and to the node, as far as its text tells.
//!
//! Commands have effects that nobody can plan. Some are known all the same: whoever writes `nvidia-smi --gpu-reset` resets a
//! GPU. Such a command needs the same permit as a kind that does the same, and one that no permit could make safe is
//! refused with the way to write it. The helper asks before it runs a command, the controller when it reads and plans a
//! play; both ask here. Pure; errs towards silence: what is not recognised is run, and watched.

pub mod kinds;
mod programs;
mod shell;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::{Change, Disruption, Property, Subject, op::Program};

/// What a command does, in increasing order of how much it hurts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Ends processes that hold GPUs.
    EndsClients,
    /// Removes what new work needs, such as the device files of GPUs or the driver's libraries.
    TakesFromWork,
    /// Stops a service without which work ends.
    StopsService,
    /// Creates or removes MIG instances.
    ChangesInstances,
    /// Switches the MIG mode, which resets the GPU.
    SwitchesMig,
    /// Takes a GPU or another PCI device from its driver, or resets it on the bus.
    ResetsDevice,
    UnloadsDriver,
    ResetsGpus,
    /// Tells a scheduler to give nodes no work, or to end what runs there.
    Withdraws,
    /// Ends the system, and does not start it again.
    GoesDown,
    Reboots,
}

impl Act {
    /// Returns the class of the permit that it needs.
    pub const fn class(self) -> Disruption {
        match self {
            Self::EndsClients
            | Self::TakesFromWork
            | Self::StopsService
            | Self::ChangesInstances
            | Self::Withdraws => Disruption::Clients,
            Self::SwitchesMig | Self::ResetsDevice | Self::UnloadsDriver | Self::ResetsGpus => {
                Disruption::GpuReset
            }
            Self::GoesDown | Self::Reboots => Disruption::Reboot,
        }
    }

    /// What it does, as a predicate: `resets GPUs`.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::EndsClients => "ends the processes that hold GPUs",
            Self::TakesFromWork => "removes what work on GPUs needs",
            Self::StopsService => "stops a service that work needs",
            Self::ChangesInstances => "creates or removes MIG instances",
            Self::SwitchesMig => "switches the MIG mode",
            Self::ResetsDevice => "takes a PCI device from its driver or resets it",
            Self::UnloadsDriver => "unloads the GPU driver",
            Self::ResetsGpus => "resets GPUs",
            Self::Withdraws => "takes nodes out of their scheduler",
            Self::GoesDown => "takes the node down for good",
            Self::Reboots => "reboots the node",
        }
    }

    /// What to write in place of a command that is never run; `None` where a permit makes it safe.
    ///
    /// A reboot by a command has no new boot to wait for and nothing that proves it, a scheduler's command may name any
    /// node, and a node that is off comes back only by somebody's hand.
    pub const fn instead(self) -> Option<&'static str> {
        match self {
            Self::Reboots => Some(
                "write `reboot:` (`reboot: {when: always}` reboots in any case): it takes the node out within the budget, \
                 waits for the new boot and checks the node before it is given back",
            ),
            Self::GoesDown => Some(
                "gpufleet does not switch nodes off, because nothing would bring them back: drain the node, then do it by \
                 hand or through its BMC; a reboot is `reboot:`",
            ),
            Self::Withdraws => Some(
                "write `drain:` in the play: it takes each node out within the budget, waits for its work and gives it back; \
                 what is to stay out is taken out by hand",
            ),
            _ => None,
        }
    }

    /// The state that it leaves, for a change: `node running -> GPUs reset`.
    const fn leaves(self) -> &'static str {
        match self {
            Self::EndsClients => "processes on GPUs ended",
            Self::TakesFromWork => "without what work needs",
            Self::StopsService => "service stopped",
            Self::ChangesInstances => "MIG instances changed",
            Self::SwitchesMig => "MIG mode switched",
            Self::ResetsDevice => "PCI device reset",
            Self::UnloadsDriver => "GPU driver unloaded",
            Self::ResetsGpus => "GPUs reset",
            Self::Withdraws => "out of its scheduler",
            Self::GoesDown => "down",
            Self::Reboots => "rebooted",
        }
    }
}

/// A command that disturbs, and what it does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disturbance {
    pub act: Act,
    /// The words of the command that were recognised, shortened: `nvidia-smi --gpu-reset -i 0`.
    pub command: String,
}

/// Longest command that is told, in characters.
const TOLD: usize = 60;

impl Disturbance {
    fn of(act: Act, words: &[String]) -> Self {
        let mut command = String::new();
        for word in words {
            if !command.is_empty() {
                command.push(' ');
            }
            command.extend(word.chars().map(|c| match c {
                shell::ANY => '…',
                c if c.is_control() => ' ',
                c => c,
            }));
            if command.chars().count() > TOLD {
                command = command.chars().take(TOLD - 1).chain(['…']).collect();
                break;
            }
        }
        Self { act, command }
    }

    pub const fn class(&self) -> Disruption {
        self.act.class()
    }

    /// Returns what a play that ran it has to assert again: what a reset of GPUs loses of the state that is declared of them.
    pub const fn activates(&self) -> Option<Disruption> {
        match self.act {
            Act::ResetsGpus => Some(Disruption::GpuReset),
            _ => None,
        }
    }

    /// Returns what it does as a change that only the run makes.
    pub fn change(&self) -> Change {
        Change::new(Subject::Node, Property::STATE, "running", self.act.leaves(), self.class())
            .possible()
            .with_note(format!("`{}`", self.command))
    }

    /// Returns why it is not run, and what to write instead; `None` where a permit makes it safe.
    pub fn refusal(&self) -> Option<String> {
        self.act.instead().map(|instead| format!("{self}, and is not run as a command: {instead}"))
    }

    /// Returns why a play refuses it whose text shows nothing that disturbs.
    pub fn hidden(&self, next: &str) -> String {
        format!(
            "{self}, which the play's text did not show before its variables were known, so that nobody could plan and agree \
             to it; {next}"
        )
    }

    fn worse(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(if other.act > one.act { other } else { one }),
            (one, other) => one.or(other),
        }
    }
}

impl std::fmt::Display for Disturbance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` {}", self.command, self.act.verb())
    }
}

/// Returns the class of the permit that is needed; [`Disruption::Live`] where nothing disturbs.
pub fn class_of(found: Option<Disturbance>) -> Disruption {
    found.map_or(Disruption::Live, |found| found.class())
}

/// Returns the worst that a process does.
pub fn of_program(program: &Program, stdin: Option<&str>) -> Option<Disturbance> {
    match program {
        Program::Argv(argv) => shell::of_words(argv, stdin),
        Program::Shell { line, executable } if shell::is_shell(executable) => of_shell(line),
        Program::Shell { line, executable } => of_script(line, Some(executable)),
        Program::Script { .. } => None,
    }
}

/// Returns the worst that a text for a shell does.
pub fn of_shell(text: &str) -> Option<Disturbance> {
    shell::of_text(text, 0)
}

/// Returns the worst that a script does: a shell's, or that of another language as far as it starts processes.
///
/// `interpreter` counts before the script's own `#!` line.
pub fn of_script(text: &str, interpreter: Option<&str>) -> Option<Disturbance> {
    let own = text.strip_prefix("#!").and_then(|rest| rest.lines().next());
    let line = interpreter.or(own).unwrap_or("sh");
    match line.split_whitespace().any(shell::is_shell) {
        true => of_shell(text),
        false => shell::of_other_language(text),
    }
}

/// Returns a text of a playbook whose variables are not known yet, with what stands for any word in place of templates.
pub fn without_templates(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).chain(rest.find("{#")).min() {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        let (closing, stands) = match from.as_bytes().get(1) {
            Some(b'{') => ("}}", shell::ANY),
            Some(b'%') => ("%}", '\n'),
            _ => ("#}", ' '),
        };
        plain.push(stands);
        rest = from.find(closing).map_or("", |end| from.get(end + closing.len()..).unwrap_or_default());
    }
    plain.push_str(rest);
    plain
}

/// Returns the worst that a command of a playbook may do whose variables are not known yet.
pub fn of_template(text: &str, is_shell: bool) -> Option<Disturbance> {
    let plain = without_templates(text);
    match is_shell {
        true => of_shell(&plain),
        false => shell::of_words(&shell::split(&plain), None),
    }
}

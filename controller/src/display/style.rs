//! The style of text: colour, width, verbosity.

use std::fmt::Display;

use gpufleet_protocol::Disruption;

use super::clip;
use crate::{
    event::NodeState,
    report::{Verdict, short},
};

/// Properties of the terminal, and the user's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub color: bool,
    /// Width in columns; [`Style::UNCUT`] if the output is no terminal.
    pub width: usize,
    pub verbosity: Verbosity,
}

impl Default for Style {
    fn default() -> Self {
        Self { color: false, width: 100, verbosity: Verbosity::Normal }
    }
}

/// How much is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// `-q`: failures and the result.
    Quiet,
    #[default]
    Normal,
    /// `-v`: also every changed task.
    Changed,
    /// `-vv`: every task.
    All,
}

/// The meaning of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Good,
    Changed,
    Bad,
    Warning,
    Busy,
    Strong,
    Muted,
}

impl Style {
    /// The width of a file or a pipe: nothing is cut or wrapped for it.
    pub const UNCUT: usize = 1_000_000;

    /// Cuts a text to `columns`; unchanged without a terminal.
    pub(super) fn cut(&self, text: &str, columns: usize) -> String {
        if self.width >= Self::UNCUT { text.to_owned() } else { clip(text, columns) }
    }

    /// Shortens the digests in a text; unchanged without a terminal.
    pub(super) fn without_digests(&self, text: &str) -> String {
        if self.width >= Self::UNCUT { text.to_owned() } else { short(text, &mut Vec::new()) }
    }

    /// Colours a text by its meaning, if colour is on.
    pub fn paint(&self, role: Role, text: impl Display) -> String {
        if !self.color {
            return text.to_string();
        }
        let style = owo_colors::Style::new();
        let style = match role {
            Role::Good => style.green(),
            Role::Changed => style.yellow(),
            Role::Bad => style.red().bold(),
            Role::Warning => style.magenta(),
            Role::Busy => style.cyan(),
            Role::Strong => style.bold(),
            Role::Muted => style.dimmed(),
        };
        style.style(text.to_string()).to_string()
    }

    pub(super) fn state(&self, state: NodeState, text: impl Display) -> String {
        let role = match state {
            NodeState::Done | NodeState::Compliant => Role::Good,
            NodeState::Drift => Role::Changed,
            NodeState::Failed | NodeState::Unreachable => Role::Bad,
            NodeState::Unknown | NodeState::Held => Role::Warning,
            NodeState::Pending | NodeState::Skipped => Role::Muted,
            _ => Role::Busy,
        };
        self.paint(role, text)
    }

    pub(super) fn verdict(&self, verdict: Verdict, text: impl Display) -> String {
        let role = match verdict {
            Verdict::Ok => Role::Good,
            Verdict::Na => Role::Muted,
            Verdict::Warn | Verdict::Drift => Role::Changed,
            Verdict::Unknown => Role::Warning,
            Verdict::Fail => Role::Bad,
        };
        self.paint(role, text)
    }

    pub(super) fn disruption(&self, disruption: Disruption, text: impl Display) -> String {
        let role = match disruption {
            Disruption::Live => Role::Changed,
            Disruption::Clients | Disruption::GpuReset => Role::Warning,
            Disruption::Reboot => Role::Bad,
        };
        self.paint(role, text)
    }
}

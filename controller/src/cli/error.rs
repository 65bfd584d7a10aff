//! Errors that end a command: what is said, and the exit code.

use std::fmt::Display;

use gpufleet::{diagnostic::Diagnostics, drain::SetupError, hosts::ReachError};

/// Why a command ended before it could do its work.
#[derive(Debug)]
pub enum CommandError {
    /// Wrong input with places: playbooks, inventories.
    Input(Diagnostics),
    /// Wrong input without one, and what may help.
    User { message: String, hints: Vec<String> },
    /// A safety gate says no, and what may help.
    Stopped { message: String, hints: Vec<String> },
    /// Whoever reads our output left: no fault.
    BrokenPipe,
    /// A fault of gpufleet or of this machine.
    Internal(String),
}

impl CommandError {
    pub fn user(message: impl Display) -> Self {
        Self::User { message: message.to_string(), hints: Vec::new() }
    }

    pub fn stopped(message: impl Display) -> Self {
        Self::Stopped { message: message.to_string(), hints: Vec::new() }
    }

    pub fn internal(message: impl Display) -> Self {
        Self::Internal(message.to_string())
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::User { hints, .. } | Self::Stopped { hints, .. } = &mut self {
            hints.push(hint.into());
        }
        self
    }

    fn hints(self, hint: Option<&str>) -> Self {
        match hint {
            Some(hint) => self.hint(hint),
            None => self,
        }
    }

    /// Nothing was touched in any of these cases.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::BrokenPipe => 0,
            Self::Stopped { .. } => 5,
            Self::Input(_) | Self::User { .. } | Self::Internal(_) => 1,
        }
    }
}

impl From<Diagnostics> for CommandError {
    fn from(diagnostics: Diagnostics) -> Self {
        Self::Input(diagnostics)
    }
}

impl From<ReachError> for CommandError {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Input(diagnostics) => Self::Input(diagnostics),
            error => Self::user(&error).hints(error.hint()),
        }
    }
}

impl From<SetupError> for CommandError {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Input(diagnostics) => Self::Input(diagnostics),
            SetupError::Login(error) => Self::user(&error).hints(error.hint()),
        }
    }
}

impl From<std::io::Error> for CommandError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::Internal(error.to_string()),
        }
    }
}

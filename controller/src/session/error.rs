//! Why a session did not start, ended, or could not carry out an operation.

use std::time::Duration;

use gpufleet_protocol::message::Locked;

use crate::transport::{ConnectError, Phase};

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{node}: {kind}")]
    Start { node: String, kind: StartError },
    /// The connection ended.
    #[error("{node}: the connection was lost during {phase}: {cause}")]
    Lost { node: String, phase: Phase, cause: String },
    /// The helper's process ended, and the connection was still up to report how.
    #[error("{node}: during {phase} {cause}")]
    HelperEnded { node: String, phase: Phase, cause: String },
    #[error("{node}: {phase} took longer than {} s, and stopping it had no effect", after.as_secs())]
    Timeout { node: String, phase: Phase, after: Duration },
    /// The helper could not understand a request, or could not begin it.
    #[error("{node}: the helper refuses: {message}")]
    Refused { node: String, message: String },
    #[error("{node}: the helper broke the protocol: {reason}; this is a bug in gpufleet")]
    Protocol { node: String, reason: String },
    #[error(
        "{node}: {} works on this node (run {}, epoch {}){}", lock.who, lock.holder.run, lock.holder.epoch,
        if lock.fenced { "; a newer run took over from this one" } else { "; wait for it, or stop it" }
    )]
    Locked { node: String, lock: Locked },
}

impl SessionError {
    /// Whether the node shows no sign of life. A refused login, a jump host that is down and a fault of the
    /// controller are no such error.
    pub const fn is_silence(&self) -> bool {
        match self {
            Self::Connect(error) => matches!(
                error,
                ConnectError::Refused { .. }
                    | ConnectError::Unreachable { .. }
                    | ConnectError::Timeout { .. }
                    | ConnectError::JumpRefused { tried: true, .. }
            ),
            Self::Start { kind, .. } => matches!(kind, StartError::Silent { .. }),
            Self::Timeout { .. } => true,
            _ => false,
        }
    }

    /// Whether the node's address refuses the connection: the way there works, but no server listens.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Connect(ConnectError::Refused { .. }))
    }
}

impl StartError {
    /// Whether the node answered but lacks what is needed, so that a retry changes nothing.
    pub const fn is_unfit(&self) -> bool {
        self.is_of_privilege() || matches!(self, Self::DiskFull { .. } | Self::Architecture { .. })
    }

    /// Whether the login may not become who it should: as with a login that is refused, that says nothing about the node.
    pub const fn is_of_privilege(&self) -> bool {
        matches!(
            self,
            Self::NoSudo { .. }
                | Self::SudoPasswordNeeded { .. }
                | Self::SudoPasswordWrong { .. }
                | Self::SudoForbidden { .. }
                | Self::SudoNeedsTerminal { .. }
        )
    }
}

/// Why the helper did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("no helper for its architecture {found}, only for {known}")]
    Architecture { found: String, known: String },
    #[error(
        "no folder takes the helper: {tried}; it needs one that only its user can write, with room and without noexec"
    )]
    NoPlace { tried: String },
    #[error("the helper could not be written to {folder}: the disk or the quota is full")]
    DiskFull { folder: String },
    #[error("the helper arrived damaged in {folder}")]
    Damaged { folder: String },
    #[error("sudo is not installed there, so `become` cannot work; log in as {user} or install sudo")]
    NoSudo { user: String },
    #[error("sudo wants a password for {login}: set `ansible_become_password` or use --ask-become-pass")]
    SudoPasswordNeeded { login: String },
    #[error("sudo refuses the password of {login}")]
    SudoPasswordWrong { login: String },
    #[error("sudo does not let {login} become {user}: {said}")]
    SudoForbidden { login: String, user: String, said: String },
    #[error("sudo wants a terminal (`requiretty` in sudoers); add `Defaults:{login} !requiretty`")]
    SudoNeedsTerminal { login: String },
    #[error("sudo failed: {said}")]
    Sudo { said: String },
    #[error("`{user}` cannot be a user for `become`")]
    BadUser { user: String },
    #[error("the helper did not start within {} s; {said}", after.as_secs())]
    Silent { after: Duration, said: String },
    #[error("the helper did not start: {ended}; {said}")]
    Ended { ended: String, said: String },
    #[error("the OpenSSH client failed: {said}")]
    OpenSsh { said: String },
    #[error("the login shell prints too much before the helper can speak: {said}")]
    TooMuchNoise { said: String },
    #[error("the helper that runs there is not the one that was sent (digest {found})")]
    Digest { found: String },
    #[error("the helper speaks protocol {found}, gpufleet speaks {wanted}")]
    Version { found: u32, wanted: u32 },
    #[error("sending the helper stalled for {} s", after.as_secs())]
    PushStalled { after: Duration },
}

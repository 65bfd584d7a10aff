//! What the transport needs from the process environment or a terminal, passed in by the caller.

use std::{path::PathBuf, sync::Arc};

use secrecy::SecretString;

/// The environment of the user who runs gpufleet.
#[derive(Clone)]
pub struct Environment {
    /// Home directory, for `~/.ssh`. `None`: nothing is looked up there.
    pub home: Option<PathBuf>,
    /// Name of the local user, which is the default login name.
    pub user: String,
    /// Numeric id of the local user, for `%i`.
    pub uid: u32,
    /// Name of the controller, for `%l` and `%L`.
    pub hostname: String,
    /// Socket of the SSH agent.
    pub ssh_auth_sock: Option<PathBuf>,
    /// A configuration file to use instead of the user's and the system's, as `ssh -F`; `none` for no file at all.
    pub ssh_config: Option<PathBuf>,
    /// The OpenSSH client, for `ssh -G` and `--transport ssh`.
    pub ssh_program: PathBuf,
    /// Asks the user for passphrases and challenges.
    pub prompt: Arc<dyn Prompt>,
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment")
            .field("home", &self.home)
            .field("user", &self.user)
            .field("ssh_auth_sock", &self.ssh_auth_sock)
            .field("ssh_config", &self.ssh_config)
            .finish_non_exhaustive()
    }
}

/// A question for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptRequest {
    /// The passphrase of a private key, asked once for all nodes.
    Passphrase { path: PathBuf },
    /// A challenge of a node, such as a one-time code.
    Challenge { node: String, text: String, echo: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    #[error("there is no terminal to ask on")]
    NoTerminal,
    #[error("the question was not answered")]
    Cancelled,
}

/// Asks the user. Called on a thread that may block; one question at a time.
pub trait Prompt: Send + Sync {
    /// Asks one question.
    ///
    /// # Errors
    /// If there is no terminal, or the user cancels.
    fn ask(&self, request: &PromptRequest) -> Result<SecretString, PromptError>;
}

/// For runs without a terminal: every question is an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPrompt;

impl Prompt for NoPrompt {
    fn ask(&self, _: &PromptRequest) -> Result<SecretString, PromptError> {
        Err(PromptError::NoTerminal)
    }
}

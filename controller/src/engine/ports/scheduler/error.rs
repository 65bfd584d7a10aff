//! Why a scheduler could not be asked, or did not do what it was asked for.

use std::fmt;

/// Whether what was asked for may have happened all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It was a question.
    None,
    /// Nobody knows.
    Unknown,
}

/// Why a scheduler could not be asked, or did not do what it was asked for: always *unknown*, never a "no".
///
/// What was asked, where, what came of it and what to do next are apart until they are shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrainError {
    /// A program of the scheduler gave no answer, or one that means nothing.
    #[error("`{command}`{place} {did}; {effect}{next}")]
    Program { command: String, place: String, did: String, effect: Effect, next: String },
    /// A program or hook answered, and refused.
    #[error("{asked} says: {said}; {next}")]
    Refused { asked: String, said: String, next: String },
    /// A hook ended with neither yes nor no.
    #[error(
        "the hook `{hook}`{for_node}{place} {did}; its answer is unknown: run it by hand, it must exit with 0 for yes and 1 for no"
    )]
    Hook { hook: String, for_node: String, place: String, did: String },
    /// A request to an API server was not answered, or was refused.
    #[error("`{request}`{place}: {why}{}", next.as_ref().map(|next| format!("; {effect}{next}")).unwrap_or_default())]
    Request { request: String, place: String, why: String, effect: Effect, next: Option<String> },
    /// The node, or what the scheduler knows of it, is not as it has to be.
    #[error("{what}; {next}")]
    Standing { what: String, next: String },
    /// A node that is ours could not be given back.
    #[error("{node} stays {out}: {why}; {next}")]
    StaysOut { node: String, out: &'static str, why: String, next: String },
    /// The scheduler-wide lock is not this run's, or cannot be had.
    #[error("{why}")]
    Lock { why: String },
    /// What had to be said cannot be said to this scheduler, so nothing was.
    #[error("{why}; nothing was {left}")]
    NotSent { why: String, left: &'static str },
    /// Pods were left alone, for a reason that may pass.
    #[error("nobody was {what}: {why}")]
    LeftAlone { what: &'static str, why: String },
    /// Another one, and what is stopped on the node meanwhile.
    #[error("{error}; {next}")]
    Paused { error: Box<Self>, next: String },
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::Unknown => "its effect is unknown: ",
        })
    }
}

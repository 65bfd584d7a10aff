//! Running programs of schedulers and of hooks, here or elsewhere.

use std::time::Duration;

use futures::future::BoxFuture;

/// One call of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The program, looked up on `PATH`, and its arguments; never read by a shell.
    pub argv: Vec<String>,
    pub stdin: Vec<u8>,
    /// Set in addition to what is there.
    pub env: Vec<(String, String)>,
    pub timeout: Duration,
}

impl Call {
    /// A call without input.
    pub fn new<A: Into<String>>(argv: impl IntoIterator<Item = A>, timeout: Duration) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), stdin: Vec::new(), env: Vec::new(), timeout }
    }
}

/// What a program did that ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The exit status; `None` when a signal ended it.
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Why nothing is known about a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// It may or may not have had an effect.
    #[error("gave no answer within {} s", .after.as_secs_f64())]
    TimedOut { after: Duration },
    /// It had no effect.
    #[error("cannot be started: {0}")]
    NotStarted(String),
    /// The way there broke; it may or may not have had an effect.
    #[error("was lost: {0}")]
    Lost(String),
}

/// Runs programs at one place.
pub trait Runner: Send + Sync {
    /// Where, ready to show behind a command: empty here, else like ` on login1`.
    fn place(&self) -> String;
    /// Runs one program to its end, or stops it at its timeout.
    fn run(&self, call: Call) -> BoxFuture<'_, Result<Output, RunError>>;
    /// Whether a call that is dropped ends its program at once.
    fn ends_what_is_dropped(&self) -> bool {
        false
    }
}

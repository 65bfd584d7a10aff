//! Running a scheduler's programs on a login node, over the transport that reaches the nodes.
//!
//! Owns how a call becomes one line for the login shell and how its channel's end is judged; the connection is the
//! transport's. Must not know what the programs mean. Invariants: nothing is left on the login node, words reach the
//! program as they are, and a call that may have run is never made again. At a call's timeout its
//! channel is closed; sshd leaves the program alone, so programs that may hang bring a `timeout` of their own.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::bytes::Bytes;

use super::{Call, Output, RunError, Runner};
use crate::transport::{
    ByteChannel, ChannelEvent, Connection, Connector, ExitStatus, Line, LineError, Target, Transport,
};

/// Programs at the same time: sshd's own limit of sessions on a connection is 10.
const AT_ONCE: usize = 8;
/// What one program may print on both streams, in bytes.
const MAX_OUTPUT: usize = 256 * 1024 * 1024;
/// How long the streams of a program that ended are read on.
const LINGER: Duration = Duration::from_secs(1);
/// How long closing a channel may take.
const CLOSE: Duration = Duration::from_secs(1);
const CHUNK: usize = 32 * 1024;
/// What the OpenSSH client exits with when it, not the program, failed.
const SSH_FAILED: i32 = 255;

/// Runs programs on one login node; they share a connection, which is made anew when it broke.
pub struct LoginRunner {
    line: Line,
    turns: Semaphore,
}

impl LoginRunner {
    /// Nothing is contacted until the first call.
    pub fn new(connector: Arc<Connector>, target: Target) -> Self {
        Self { line: Line::new(connector, target), turns: Semaphore::new(AT_ONCE) }
    }

    fn by_openssh(&self) -> bool {
        match &self.line.target().connection {
            Connection::Ssh(ssh) => ssh.transport == Transport::OpenSsh,
            Connection::Local => false,
        }
    }

    async fn run_there(&self, call: Call) -> Result<Output, RunError> {
        if call.argv.is_empty() {
            return Err(RunError::NotStarted("the command is empty".to_owned()));
        }
        let privilege = self.line.target().privilege.as_ref().map(|privilege| privilege.user.as_str());
        let command = command_line(&call, privilege);
        let not_started = |error: String| RunError::NotStarted(error);
        let _turn = self.turns.acquire().await.map_err(|error| not_started(error.to_string()))?;
        let channel = self.line.exec(&command).await.map_err(|error| match error {
            LineError::NotSent(error) => not_started(error.to_string()),
            LineError::Unknown(error) => RunError::Lost(error.to_string()),
        })?;
        let ByteChannel { mut reader, mut writer } = channel;
        let mut output = Output { status: None, stdout: Vec::new(), stderr: Vec::new() };
        let talk = async {
            let feed = async {
                for chunk in call.stdin.chunks(CHUNK) {
                    // Why: a program that reads no input closes its end early, which is its right.
                    if writer.write(Bytes::copy_from_slice(chunk)).await.is_err() {
                        break;
                    }
                }
                writer.finish().await;
            };
            tokio::pin!(feed);
            let (mut fed, mut ended) = (false, None);
            loop {
                let event = tokio::select! {
                    () = &mut feed, if !fed => {
                        fed = true;
                        continue;
                    }
                    event = reader.next() => event,
                    // Why: what the program left in the background may hold its streams open for ever.
                    () = tokio::time::sleep(LINGER), if ended.is_some() => None,
                };
                match event {
                    Some(ChannelEvent::Stdout(bytes)) => output.stdout.extend_from_slice(&bytes),
                    Some(ChannelEvent::Stderr(bytes)) => output.stderr.extend_from_slice(&bytes),
                    Some(ChannelEvent::Exit(status)) => ended = Some(status),
                    None => {
                        return ended.ok_or_else(|| {
                            RunError::Lost(
                                reader
                                    .ended_because()
                                    .unwrap_or_else(|| "the channel ended without an exit status".to_owned()),
                            )
                        });
                    }
                }
                if output.stdout.len() + output.stderr.len() > MAX_OUTPUT {
                    return Err(RunError::Lost(format!("it printed more than {MAX_OUTPUT} bytes")));
                }
            }
        };
        let done = timeout(call.timeout, talk).await;
        let _ = timeout(CLOSE, writer.close()).await;
        match done {
            Err(_) => Err(RunError::TimedOut { after: call.timeout }),
            Ok(Err(error)) => Err(error),
            Ok(Ok(ExitStatus::Signal(_))) => Ok(output),
            Ok(Ok(ExitStatus::Code(code))) => {
                let code = i32::try_from(code).unwrap_or(i32::MAX);
                if code == SSH_FAILED && self.by_openssh() {
                    let said = String::from_utf8_lossy(&output.stderr);
                    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("ssh failed");
                    return Err(RunError::Lost(last.trim().to_owned()));
                }
                output.status = Some(code);
                Ok(output)
            }
        }
    }
}

impl Runner for LoginRunner {
    fn place(&self) -> String {
        format!(" on {}", self.line.target().name)
    }

    fn run(&self, call: Call) -> BoxFuture<'_, Result<Output, RunError>> {
        self.run_there(call).boxed()
    }
}

/// The call as one line that a login shell reads as exactly these words.
fn command_line(call: &Call, privilege: Option<&str>) -> String {
    let mut words: Vec<String> = Vec::new();
    if let Some(user) = privilege {
        words.extend(["sudo", "-n", "-u", user, "--"].map(quoted));
    }
    if !call.env.is_empty() {
        words.push("env".to_owned());
        words.extend(call.env.iter().map(|(name, value)| quoted(&format!("{name}={value}"))));
    }
    words.extend(call.argv.iter().map(|word| quoted(word)));
    words.join(" ")
}

/// One word in single quotes, for every common shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(argv: &[&str]) -> Call {
        Call::new(argv.iter().copied(), Duration::from_secs(1))
    }

    #[test]
    fn a_call_is_one_line() {
        let mut call = call(&["scontrol", "update", "reason=it's $HOME"]);
        assert_eq!(command_line(&call, None), r"'scontrol' 'update' 'reason=it'\''s $HOME'");
        call.env.push(("A".to_owned(), "b c".to_owned()));
        assert_eq!(
            command_line(&call, Some("slurm")),
            r"'sudo' '-n' '-u' 'slurm' '--' env 'A=b c' 'scontrol' 'update' 'reason=it'\''s $HOME'"
        );
    }

    proptest! {
        #[test]
        fn a_shell_reads_the_same_words(argv in proptest::collection::vec("\\PC*", 1..6)) {
            let words: Vec<&str> = argv.iter().map(String::as_str).collect();
            prop_assert_eq!(shell_words::split(&command_line(&call(&words), None)), Ok(argv.clone()));
        }
    }
}

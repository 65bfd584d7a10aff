//! Running a scheduler's programs on this machine.
//!
//! Owns the one that runs them on this machine. Must not know what the programs mean. Invariants: nothing
//! is waited for beyond its timeout, no process of ours is left behind, and output is bounded.

use std::{process::Stdio, time::Duration};

use futures::future::{BoxFuture, FutureExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use super::{Call, Output, RunError, Runner};

/// What one program may print on either stream, in bytes.
const MAX_OUTPUT: u64 = 256 * 1024 * 1024;
/// How long the streams of a program that ended are read on.
const LINGER: Duration = Duration::from_secs(1);

/// Runs programs on this machine, each in a process group of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalRunner;

impl Runner for LocalRunner {
    fn place(&self) -> String {
        String::new()
    }

    fn run(&self, call: Call) -> BoxFuture<'_, Result<Output, RunError>> {
        run_here(call).boxed()
    }

    fn ends_what_is_dropped(&self) -> bool {
        true
    }
}

/// Ends a process group when it goes out of scope, on every path.
struct Group(Option<rustix::process::Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

async fn run_here(call: Call) -> Result<Output, RunError> {
    let Some((program, arguments)) = call.argv.split_first() else {
        return Err(RunError::NotStarted("the command is empty".to_owned()));
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(call.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| RunError::NotStarted(error.to_string()))?;
    let group =
        Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(rustix::process::Pid::from_raw));
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let work = async {
        let feed = async {
            if let Some(mut stdin) = stdin {
                // Why: a program that reads no input closes the pipe early, which is its right.
                let _ = stdin.write_all(&call.stdin).await;
            }
        };
        let streams = async { tokio::join!(feed, collect(out, &mut stdout), collect(err, &mut stderr)) };
        tokio::pin!(streams);
        tokio::select! {
            status = child.wait() => {
                // Why: what the program left in the background may hold its streams open for ever.
                let _ = tokio::time::timeout(LINGER, streams).await;
                status
            }
            _ = &mut streams => child.wait().await,
        }
    };
    let done = tokio::time::timeout(call.timeout, work).await;
    drop(group);
    match done {
        Ok(Ok(status)) => Ok(Output { status: status.code(), stdout, stderr }),
        Ok(Err(error)) => Err(RunError::Lost(error.to_string())),
        Err(_) => Err(RunError::TimedOut { after: call.timeout }),
    }
}

async fn collect(stream: Option<impl AsyncRead + Unpin>, bytes: &mut Vec<u8>) {
    if let Some(stream) = stream {
        let _ = stream.take(MAX_OUTPUT).read_to_end(bytes).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(line: &str, timeout: Duration) -> Call {
        Call::new(["/bin/sh", "-c", line], timeout)
    }

    #[tokio::test]
    async fn gives_status_streams_and_environment() {
        let mut call = shell("cat; printf %s \"$MARK\" >&2; exit 3", Duration::from_secs(10));
        call.stdin = b"in".to_vec();
        call.env.push(("MARK".to_owned(), "here".to_owned()));
        let output = LocalRunner.run(call).await.unwrap();
        assert_eq!(output, Output { status: Some(3), stdout: b"in".to_vec(), stderr: b"here".to_vec() });
    }

    #[tokio::test]
    async fn what_is_left_in_the_background_delays_nobody() {
        let output =
            LocalRunner.run(shell("sleep 600 & echo done; exit 1", Duration::from_secs(60))).await.unwrap();
        assert_eq!((output.status, output.stdout), (Some(1), b"done\n".to_vec()));
    }

    #[tokio::test]
    async fn a_signal_is_no_status() {
        let output = LocalRunner.run(shell("kill -9 $$", Duration::from_secs(10))).await.unwrap();
        assert_eq!(output.status, None);
    }

    #[tokio::test]
    async fn what_hangs_is_stopped_with_its_children() {
        let started = Instant::now();
        let folder = tempfile::tempdir().unwrap();
        let pid_file = folder.path().join("pid");
        let line = format!("sleep 600 & echo $! > {}; wait", pid_file.display());
        // Long enough for a busy machine to start it.
        let after = Duration::from_secs(5);
        let error = LocalRunner.run(shell(&line, after)).await.unwrap_err();
        assert_eq!(error, RunError::TimedOut { after });
        assert!(started.elapsed() < Duration::from_secs(60));
        let child = std::fs::read_to_string(&pid_file).unwrap();
        let gone = || {
            std::fs::read_to_string(format!("/proc/{}/stat", child.trim()))
                .map_or(true, |stat| stat.contains(") Z "))
        };
        for _ in 0..1500 {
            if gone() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the child {child} is still there");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_was_never_started() {
        let error =
            LocalRunner.run(Call::new(["/no/such/program"], Duration::from_secs(1))).await.unwrap_err();
        assert!(matches!(error, RunError::NotStarted(_)), "{error}");
        let error =
            LocalRunner.run(Call::new(Vec::<String>::new(), Duration::from_secs(1))).await.unwrap_err();
        assert!(matches!(error, RunError::NotStarted(_)), "{error}");
    }
}

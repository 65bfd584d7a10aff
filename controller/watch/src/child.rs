//! Programs that are run with bounds on time and output. What they start ends with them.

use std::{
    io::{self, Read},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use gpufleet_language::visible::visible;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    time::timeout,
};

/// How long a program has to end once it was asked to.
const GRACE: Duration = Duration::from_secs(15);
/// Bytes of standard error that are kept: the last ones.
const MOST_ERRORS: usize = 4096;

/// Why a program gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("{program} cannot be started: {error}")]
    Start { program: String, error: io::Error },
    #[error("it took longer than {} s and was ended", .0.as_secs())]
    Time(Duration),
    #[error("it was ended because the watcher ends")]
    Stopped,
    #[error("{0}")]
    Other(String),
}

/// A program that ended.
#[derive(Debug)]
pub struct Ended<T> {
    /// What was made of its standard output.
    pub output: T,
    pub status: ExitStatus,
    /// The last lines of standard error, fit to be shown.
    pub errors: String,
}

impl<T> Ended<T> {
    /// How it ended, and what it said last: for people.
    pub fn story(&self) -> String {
        let how = match self.status.code() {
            Some(code) => format!("exit code {code}"),
            None => self.status.to_string(),
        };
        let lines: Vec<&str> = self.errors.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.iter().rev().take(3).rev().map(|line| line.trim()).collect::<Vec<_>>().join("; ");
        if last.is_empty() { how } else { format!("{how}: {}", visible(&last)) }
    }
}

/// Ends a process group when it is dropped, so that nothing outlives its watcher.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.0 {
            // An error means that there is no such group any more.
            let _ = kill_process_group(pid, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Runs a program. `input` goes to its standard input, and `read` makes something of at most `most` bytes of its standard
/// output.
///
/// # Errors
/// If it cannot be started, takes too long, or is stopped.
pub async fn run<T: Send + 'static>(
    mut command: std::process::Command,
    input: Vec<u8>,
    time: Duration,
    most: u64,
    mut stop: tokio::sync::watch::Receiver<bool>,
    read: impl FnOnce(&mut dyn Read) -> T + Send + 'static,
) -> Result<Ended<T>, ChildError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |error| ChildError::Start { program: program.clone(), error };
    let (reader, writer) = io::pipe().map_err(failed)?;
    command.stdin(Stdio::piped()).stdout(writer).stderr(Stdio::piped());
    // The watchdog of systemd is about the watcher alone.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
        command.env_remove(name);
    }
    let mut command = Command::from(command);
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    // It holds the writing end of the pipe.
    drop(command);
    let group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let output = tokio::task::spawn_blocking(move || read(&mut reader.take(most)));
    if let Some(mut stdin) = child.stdin.take() {
        tokio::spawn(async move {
            // A program need not read what it is given.
            let _ = stdin.write_all(&input).await;
        });
    }
    let errors = child.stderr.take().map(|stream| tokio::spawn(tail(stream)));
    let ended = tokio::select! {
        ended = timeout(time, child.wait()) => match ended {
            Ok(status) => Ok(status.map_err(failed)?),
            Err(_) => Err(ChildError::Time(time)),
        },
        _ = stop.wait_for(|stop| *stop) => Err(ChildError::Stopped),
    };
    let status = match ended {
        Ok(status) => status,
        Err(error) => {
            end(&mut child, &group).await;
            return Err(error);
        }
    };
    // What it started and left behind would hold the pipes open.
    group.signal(Signal::KILL);
    let output = timeout(GRACE, output).await;
    let errors = match errors {
        Some(task) => timeout(GRACE, task).await.ok().and_then(Result::ok).unwrap_or_default(),
        None => String::new(),
    };
    match output {
        Ok(Ok(output)) => Ok(Ended { output, status, errors }),
        _ => Err(ChildError::Other("its output did not come to an end".to_owned())),
    }
}

async fn end(child: &mut Child, group: &Group) {
    group.signal(Signal::TERM);
    if timeout(GRACE, child.wait()).await.is_err() {
        group.signal(Signal::KILL);
        // It is gone as soon as the kernel lets it.
        let _ = timeout(GRACE, child.wait()).await;
    }
}

async fn tail(mut stream: impl tokio::io::AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count) = stream.read(&mut buffer).await {
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        kept.extend_from_slice(bytes);
        let excess = kept.len().saturating_sub(MOST_ERRORS);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

//! Runs one child process to its end, its deadline or its cancellation, and keeps a bounded part of its output.
//!
//! Owns process groups, pipes, credentials of children and the ways to kill a child. Must not know task kinds.
//! Invariants: a child gets its own process group; when [`Run::finish`] returns an error, the child, its group and its
//! descendants have been killed; at most the stated number of output bytes is held; a child dies with the thread that
//! started it.

use std::{
    ffi::{CString, OsStr, OsString},
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::{ffi::OsStrExt, process::CommandExt, process::ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::OFlags,
    io::Errno,
    process::{PidfdFlags, Resource, Signal},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::{
    deadline::{Deadline, Stop},
    os::{dumps, users::Identity},
};

/// Default limit for each output stream, in bytes.
pub const OUTPUT_LIMIT: usize = 1024 * 1024;

/// Interval at which the cancel flag is checked.
const TICK: Duration = Duration::from_millis(40);
/// Time for a group to end after SIGTERM.
const TERM_GRACE: Duration = Duration::from_millis(700);
/// Time to wait for output after the child's end, while a process that it left behind holds the pipe open.
const PIPE_GRACE: Duration = Duration::from_millis(150);

/// Why a child has no exit status.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("there is no program `{0}` on this node")]
    NoProgram(String),
    #[error("`{program}` may not be executed")]
    NotAllowed { program: String },
    #[error("the working directory `{path}` cannot be used: {source}")]
    WorkingDirectory { path: String, source: io::Error },
    #[error("`{program}` cannot be started: {source}")]
    Spawn { program: String, source: io::Error },
    #[error("`{program}` cannot be watched: {source}")]
    Watch { program: String, source: io::Error },
    /// The child was killed with its group; its output until then is included.
    #[error("`{program}` was stopped after {after:.1} s: {}", match .stop { Stop::TimedOut => "its time was up", Stop::Cancelled => "it was cancelled" })]
    Stopped { program: String, stop: Stop, after: f64, output: Box<Output> },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    pub const fn success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// Returns the number that shells show: the code, or 128 + signal.
    pub const fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "killed by signal {signal}"),
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Code(-1),
        }
    }
}

/// The beginning of an output stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    pub bytes: Vec<u8>,
    /// Number of bytes after the limit, which were dropped.
    pub lost: u64,
}

impl Captured {
    /// Returns the text; invalid UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn take(&mut self, piece: &[u8], limit: usize) {
        let room = limit.saturating_sub(self.bytes.len()).min(piece.len());
        let (kept, lost) = piece.split_at_checked(room).unwrap_or((piece, &[]));
        self.bytes.extend_from_slice(kept);
        self.lost += lost.len() as u64;
    }
}

/// The output of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    pub stdout: Captured,
    pub stderr: Captured,
}

/// A process that ended by itself.
#[derive(Clone, Debug)]
pub struct Finished {
    pub exit: Exit,
    pub output: Output,
    /// By the node's clock.
    pub started: SystemTime,
    pub took: Duration,
}

impl Finished {
    pub fn stdout(&self) -> String {
        self.output.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.output.stderr.text()
    }

    /// Returns `PROGRAM: exit status 1: last line of stderr`, for messages.
    pub fn complaint(&self, program: &str) -> String {
        let said = |captured: &Captured| {
            let text = captured.text();
            text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
        };
        match said(&self.output.stderr).or_else(|| said(&self.output.stdout)) {
            Some(line) => format!("{program}: {}: {line}", self.exit),
            None => format!("{program}: {}", self.exit),
        }
    }
}

/// A process to run.
#[derive(Clone, Debug)]
pub struct Run {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    stdin: Option<Vec<u8>>,
    input: Option<Arc<fs::File>>,
    output: Option<Arc<fs::File>>,
    /// The open program, in place of what is at its path.
    image: Option<Arc<fs::File>>,
    user: Option<Identity>,
    limit: usize,
}

impl Run {
    /// Creates a run of a program, given by path or by name on the helper's PATH.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: None,
            stdin: None,
            input: None,
            output: None,
            image: None,
            user: None,
            limit: OUTPUT_LIMIT,
        }
    }

    /// Creates a run of an open program, whatever is at its path by now; messages show the path.
    pub fn of_open(program: fs::File, path: impl AsRef<OsStr>) -> Self {
        Self { image: Some(Arc::new(program)), ..Self::new(path) }
    }

    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets a variable on top of the helper's own, sanitised environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    #[must_use]
    pub fn directory(mut self, path: impl AsRef<Path>) -> Self {
        self.directory = Some(path.as_ref().to_owned());
        self
    }

    /// Sets the bytes for standard input, which is `/dev/null` by default.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Sets an open file as standard input. A program that needs a path reads it as [`Run::INPUT`], and no other file
    /// can be put in its place.
    #[must_use]
    pub fn stdin_file(mut self, file: Arc<fs::File>) -> Self {
        self.input = Some(file);
        self
    }

    /// The path of standard input, for the process itself.
    pub const INPUT: &'static str = "/proc/self/fd/0";

    /// Sets an open file for standard output, which is then not captured.
    #[must_use]
    pub fn stdout_file(mut self, file: Arc<fs::File>) -> Self {
        self.output = Some(file);
        self
    }

    /// Runs as another user, with that user's groups, HOME, USER and LOGNAME.
    #[must_use]
    pub fn user(mut self, user: Option<Identity>) -> Self {
        self.user = user;
        self
    }

    /// Sets the number of bytes kept of each output stream; [`OUTPUT_LIMIT`] by default.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Runs the process until it ends.
    ///
    /// # Errors
    /// If it cannot be started or watched, or at the deadline: then its whole process group and every descendant are
    /// gone when this returns, and the error carries their output.
    pub fn finish(&self, deadline: &Deadline) -> Result<Finished, ProcessError> {
        let (started, clock) = (SystemTime::now(), Instant::now());
        if let Some(stop) = deadline.stop() {
            return Err(ProcessError::Stopped {
                program: self.name(),
                stop,
                after: 0.0,
                output: Box::default(),
            });
        }
        let mut running = Running { child: self.start()?, done: false };
        let mut output = Output::default();
        let watched = self.watch(&mut running.child, deadline, &mut output);
        match watched {
            Ok(Some(status)) => {
                running.done = true;
                Ok(Finished { exit: status.into(), output, started, took: clock.elapsed() })
            }
            Ok(None) => {
                running.kill();
                Err(ProcessError::Stopped {
                    program: self.name(),
                    stop: deadline.stop().unwrap_or(Stop::TimedOut),
                    after: clock.elapsed().as_secs_f64(),
                    output: Box::new(output),
                })
            }
            Err(source) => {
                running.kill();
                Err(ProcessError::Watch { program: self.name(), source })
            }
        }
    }

    /// Starts the process in its own session, without input or output, and does not wait for it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn detach(&self) -> Result<(), ProcessError> {
        self.detach_holding(None)
    }

    /// As [`Run::detach`], with an open file as standard input, which stays open while the process lives.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn detach_holding(&self, held: Option<fs::File>) -> Result<(), ProcessError> {
        let mut command = self.command(true)?;
        command.stdin(held.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|source| self.spawn_error(source))?;
        // The status must be collected, or a zombie stays as long as the helper lives.
        let _ = std::thread::Builder::new().name("reaper".to_owned()).spawn(move || child.wait());
        Ok(())
    }

    #[expect(unsafe_code, reason = "credentials and parent-death signal are set between fork and exec")]
    fn command(&self, detached: bool) -> Result<Command, ProcessError> {
        let image = self.image.clone();
        let mut command = match &image {
            Some(file) => Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => Command::new(&self.program),
        };
        command.arg0(&self.program).args(&self.arguments);
        if let Some(user) = &self.user {
            command.env("HOME", &user.home).env("USER", &user.name).env("LOGNAME", &user.name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let directory = match &self.directory {
            Some(path) => Some(c_string(path.as_os_str()).map_err(|source| {
                ProcessError::WorkingDirectory { path: path.display().to_string(), source }
            })?),
            None => None,
        };
        let credentials = self.user.as_ref().map(Identity::kernel_ids);
        let core = dumps::given();
        if !detached {
            command.process_group(0);
        }
        // SAFETY: the closure runs in the forked child and only makes system calls: it neither allocates nor takes
        // locks; everything it uses was created before the fork.
        unsafe {
            command.pre_exec(move || {
                if let Some(core) = core {
                    rustix::process::setrlimit(Resource::Core, core)?;
                }
                if detached {
                    rustix::process::setsid()?;
                }
                if let Some((uid, gid, groups)) = &credentials {
                    // A thread with the user's rights already has the groups, and may not set them.
                    if rustix::process::geteuid().is_root() {
                        set_thread_groups(groups)?;
                    }
                    set_thread_res_gid(*gid, *gid, *gid)?;
                    set_thread_res_uid(*uid, *uid, *uid)?;
                }
                if let Some(path) = &directory {
                    rustix::process::chdir(path.as_c_str())?;
                }
                if let Some(file) = &image {
                    // A script's interpreter opens it once more, by this number.
                    rustix::io::fcntl_setfd(file, rustix::io::FdFlags::empty())?;
                }
                if !detached {
                    // After the credentials, because changing them clears the signal.
                    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                }
                Ok(())
            });
        }
        Ok(command)
    }

    fn start(&self) -> Result<Child, ProcessError> {
        if let Some(path) = &self.directory
            && let Err(source) = check_directory(path)
        {
            return Err(ProcessError::WorkingDirectory { path: path.display().to_string(), source });
        }
        let mut command = self.command(false)?;
        let held = |file: &Arc<fs::File>| file.try_clone().map(Stdio::from).map_err(|e| self.spawn_error(e));
        let input = self.input.as_ref().map(held).transpose()?;
        let output = self.output.as_ref().map(held).transpose()?;
        let otherwise = || if self.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
        command
            .stdin(input.unwrap_or_else(otherwise))
            .stdout(output.unwrap_or_else(Stdio::piped))
            .stderr(Stdio::piped());
        let mut tries = 0;
        loop {
            match command.spawn() {
                // A just written file stays "busy" while a sibling thread's fork still holds it open.
                Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) && tries < 20 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(source) => return Err(self.spawn_error(source)),
                Ok(child) => return Ok(child),
            }
        }
    }

    fn spawn_error(&self, source: io::Error) -> ProcessError {
        let program = self.name();
        match source.kind() {
            io::ErrorKind::NotFound if !program.contains('/') || !Path::new(&program).exists() => {
                ProcessError::NoProgram(program)
            }
            io::ErrorKind::PermissionDenied if self.user.is_none() => ProcessError::NotAllowed { program },
            _ => ProcessError::Spawn { program, source },
        }
    }

    /// Waits for the end; returns `Ok(None)` at the deadline.
    fn watch(
        &self,
        child: &mut Child,
        deadline: &Deadline,
        output: &mut Output,
    ) -> io::Result<Option<ExitStatus>> {
        let pid = rustix::process::Pid::from_child(child);
        // Kernels before 5.3 have no pidfd; there the status is polled at every tick.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        let mut stdin = child.stdin.take();
        let mut stdout = child.stdout.take();
        let mut stderr = child.stderr.take();
        if let Some(pipe) = &stdin {
            unblock(pipe)?;
        }
        if let Some(pipe) = &stdout {
            unblock(pipe)?;
        }
        if let Some(pipe) = &stderr {
            unblock(pipe)?;
        }
        let input = self.stdin.as_deref().unwrap_or_default();
        let mut written = 0;
        let mut ended: Option<(ExitStatus, Instant)> = None;
        let mut buffer = vec![0u8; 64 * 1024];
        loop {
            if deadline.stop().is_some() && ended.is_none() {
                return Ok(None);
            }
            if ended.is_none()
                && let Some(status) = child.try_wait()?
            {
                ended = Some((status, Instant::now()));
            }
            let mut progress = false;
            progress |= drain(&mut stdout, &mut output.stdout, self.limit, &mut buffer)?;
            progress |= drain(&mut stderr, &mut output.stderr, self.limit, &mut buffer)?;
            if let Some(pipe) = &mut stdin {
                let rest = input.get(written..).unwrap_or_default();
                match pipe.write(rest) {
                    _ if rest.is_empty() => stdin = None,
                    Ok(count) => {
                        written += count;
                        progress = true;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // A child that does not read its input is no failure.
                    Err(_) => stdin = None,
                }
            }
            if let Some((status, since)) = ended {
                let closed = stdout.is_none() && stderr.is_none();
                if closed || deadline.stop().is_some() || (!progress && since.elapsed() >= PIPE_GRACE) {
                    return Ok(Some(status));
                }
            }
            if !progress {
                let tick = match (&pidfd, &ended) {
                    (Some(_), None) => TICK,
                    _ => Duration::from_millis(10),
                };
                let mut fds = Vec::with_capacity(4);
                if let (Some(fd), None) = (&pidfd, &ended) {
                    fds.push(PollFd::new(fd, PollFlags::IN));
                }
                if let Some(pipe) = &stdout {
                    fds.push(PollFd::new(pipe, PollFlags::IN));
                }
                if let Some(pipe) = &stderr {
                    fds.push(PollFd::new(pipe, PollFlags::IN));
                }
                if let Some(pipe) = &stdin {
                    fds.push(PollFd::new(pipe, PollFlags::OUT));
                }
                let wait = tick.min(deadline.remaining().max(Duration::from_millis(1)));
                wait_for(&mut fds, wait)?;
            }
        }
    }
}

/// Waits until one of the descriptors is ready or the time is over.
///
/// # Errors
/// If `poll` fails for another reason than a signal.
pub fn wait_for(fds: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    let timeout = Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn unblock(fd: impl AsFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    Ok(rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}

/// Reads the available bytes and closes the pipe at its end; returns whether anything happened.
fn drain<R: Read>(
    pipe: &mut Option<R>,
    into: &mut Captured,
    limit: usize,
    buffer: &mut [u8],
) -> io::Result<bool> {
    let Some(open) = pipe else { return Ok(false) };
    match open.read(buffer) {
        Ok(0) => {
            *pipe = None;
            Ok(true)
        }
        Ok(count) => {
            into.take(buffer.get(..count).unwrap_or_default(), limit);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn check_directory(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotADirectory)) }
}

/// Kills the child's group if dropped before its end.
struct Running {
    child: Child,
    done: bool,
}

impl Running {
    fn kill(&mut self) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        // Before the signal: once a parent is dead, its children have another parent and cannot be found.
        let family = descendants(self.child.id());
        let signal = |signal: Signal| {
            let _ = rustix::process::kill_process_group(pid, signal);
            for (id, started) in &family {
                if started_at(*id) == Some(*started)
                    && let Some(id) = i32::try_from(*id).ok().and_then(rustix::process::Pid::from_raw)
                {
                    let _ = rustix::process::kill_process(id, signal);
                }
            }
        };
        signal(Signal::TERM);
        let until = Instant::now() + TERM_GRACE;
        let mut collected = false;
        while Instant::now() < until {
            collected = collected || matches!(self.child.try_wait(), Ok(Some(_)));
            if collected && rustix::process::test_kill_process_group(pid).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        signal(Signal::KILL);
        // Bounded, because a process in uninterruptible sleep outlives SIGKILL, and the helper must not wait for it.
        let until = Instant::now() + TERM_GRACE;
        while !collected && Instant::now() < until {
            collected = matches!(self.child.try_wait(), Ok(Some(_)));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads parent and start time (clock ticks since boot) from `/proc/PID/stat`.
fn parent_and_start(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // From the last parenthesis, because a process name may contain any text, including parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    // Field 22 of the file; state is field 3 and fields 3 and 4 are consumed.
    let start = fields.nth(17)?.parse().ok()?;
    Some((parent, start))
}

fn started_at(pid: u32) -> Option<u64> {
    parent_and_start(pid).map(|(_, start)| start)
}

/// Returns every process below `root` with its start time, so that a reused pid is noticed.
fn descendants(root: u32) -> Vec<(u32, u64)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let all: Vec<(u32, u32, u64)> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| parent_and_start(pid).map(|(parent, start)| (pid, parent, start)))
        .collect();
    let mut family: Vec<(u32, u64)> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (pid, _, start) in all.iter().filter(|(pid, of, _)| *of == parent && *pid != root) {
            if !family.iter().any(|(known, _)| known == pid) {
                family.push((*pid, *start));
                parents.push(*pid);
            }
        }
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    fn shell(line: &str) -> Run {
        Run::new("/bin/sh").args(["-c", line])
    }

    #[test]
    fn output_and_exit_code_come_back() {
        let done = shell("echo out; echo err >&2; exit 3").finish(&soon()).unwrap();
        assert_eq!(
            (done.exit, done.stdout().as_str(), done.stderr().as_str()),
            (Exit::Code(3), "out\n", "err\n")
        );
        assert_eq!(done.complaint("sh"), "sh: exit status 3: err");
    }

    #[test]
    fn signals_are_told_from_codes() {
        assert_eq!(shell("kill -9 $$").finish(&soon()).unwrap().exit, Exit::Signal(9));
    }

    #[test]
    fn large_input_and_output_do_not_deadlock() {
        let text = vec![b'x'; 3_000_000];
        let done = Run::new("/bin/cat").stdin(text).limit(1000).finish(&soon()).unwrap();
        assert_eq!(done.output.stdout.bytes.len(), 1000);
        assert_eq!(done.output.stdout.lost, 2_999_000);
    }

    #[test]
    fn input_nobody_reads_is_no_failure() {
        let done = shell("exec true").stdin(vec![b'x'; 1_000_000]).finish(&soon()).unwrap();
        assert!(done.exit.success());
    }

    #[test]
    fn a_stop_kills_the_group_and_those_who_left_it() {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        let marker = format!("gpufleet-process-test-{}", std::process::id());
        let line = format!(
            "(exec -a {marker}-a sleep 600) & setsid bash -c 'exec -a {marker}-b sleep 600' & echo here; : >{}; wait",
            said.display()
        );
        let left = || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let ours = processes.filter(|entry| {
                fs::read(entry.path().join("cmdline"))
                    .is_ok_and(|line| String::from_utf8_lossy(&line).starts_with(&format!("{marker}-")))
            });
            ours.count()
        };
        let deadline = Deadline::after(Duration::from_secs(60));
        let flag = deadline.canceller();
        let error = std::thread::scope(|scope| {
            // Why no time that is over: a busy machine may need any time to start them.
            scope.spawn(|| {
                while (left() < 2 || !said.exists()) && deadline.stop().is_none() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                flag.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            Run::new("bash").args(["-c", &line]).finish(&deadline)
        });
        let Err(ProcessError::Stopped { stop: Stop::Cancelled, output, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(output.stdout.text(), "here\n");
        // On a busy machine, a killed process takes a moment to disappear.
        let until = Instant::now() + Duration::from_secs(30);
        while left() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(left(), 0);
    }

    #[test]
    fn a_group_that_ignores_sigterm_is_killed() {
        let begin = Instant::now();
        let error = shell("trap '' TERM; while :; do sleep 1; done")
            .finish(&Deadline::after(Duration::from_millis(200)));
        assert!(matches!(error, Err(ProcessError::Stopped { stop: Stop::TimedOut, .. })));
        assert!(begin.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn cancelling_ends_a_run_early() {
        let deadline = soon();
        let flag = deadline.canceller();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            flag.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let error = shell("sleep 30").finish(&deadline);
        assert!(matches!(error, Err(ProcessError::Stopped { stop: Stop::Cancelled, .. })));
    }

    #[test]
    fn a_background_process_does_not_hold_the_answer() {
        let done = shell("sleep 600 & echo $!").finish(&Deadline::after(Duration::from_secs(60))).unwrap();
        let pid = done.stdout().trim().parse().unwrap();
        assert!(done.exit.success() && started_at(pid).is_some(), "nothing waited for it, and it goes on");
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    #[test]
    fn what_cannot_start_says_why() {
        let missing = Run::new("no-such-program-anywhere").finish(&soon()).unwrap_err();
        assert_eq!(missing.to_string(), "there is no program `no-such-program-anywhere` on this node");
        let directory = shell("true").directory("/no/such/place").finish(&soon()).unwrap_err();
        assert!(directory.to_string().starts_with("the working directory `/no/such/place` cannot be used"));
        let denied = Run::new("/etc/passwd").finish(&soon()).unwrap_err();
        assert_eq!(denied.to_string(), "`/etc/passwd` may not be executed");
    }
}

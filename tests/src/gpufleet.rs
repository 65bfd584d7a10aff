//! Runs gpufleet in a private home, with a time limit, and keeps its output.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Document, Events, binary, schemas::hold_to_schemas};

/// Default time limit of a command: a guard, which no busy machine reaches.
const LIMIT: Duration = Duration::from_secs(200);

/// A user's machine: home, state and a working folder, all private to one test.
pub struct Home {
    dir: tempfile::TempDir,
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

/// The search path of all programs: a shell's line names `gpufleet` as people do, wherever it was built.
fn search_path() -> std::ffi::OsString {
    let others = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let built = binary("gpufleet").parent().map(Path::to_path_buf);
    std::env::join_paths(built.into_iter().chain(std::env::split_paths(&others)))
        .expect("a folder without a colon")
}

impl Home {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("gpufleet-home-").tempdir().expect("a temporary folder");
        for part in ["home", "state", "tmp", "work"] {
            std::fs::create_dir(dir.path().join(part)).expect("a folder");
        }
        Self { dir }
    }

    /// Returns the folder in which commands run.
    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    /// Returns the folder with the records of runs.
    pub fn runs(&self) -> PathBuf {
        self.dir.path().join("state/gpufleet/runs")
    }

    /// Returns the folder that contains everything.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns how many complete records the journals of all runs have.
    pub fn records(&self) -> usize {
        let runs = std::fs::read_dir(self.runs()).into_iter().flatten().flatten();
        let texts = runs.filter_map(|run| std::fs::read(run.path().join("journal.jsonl")).ok());
        texts.map(|text| text.iter().filter(|byte| **byte == b'\n').count()).sum()
    }

    /// Returns the latest run's journal; empty if there is none.
    pub fn journal(&self) -> Events {
        journal(&self.runs())
    }

    /// Writes a file in the working folder and returns its path for a command.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.work().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
        name.to_owned()
    }

    /// Prepares `gpufleet` with these arguments.
    pub fn gpufleet<I, S>(&self, arguments: I) -> Command<'_>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.program(&binary("gpufleet"), arguments)
    }

    /// Prepares any program with the same environment.
    pub fn program<I, S>(&self, program: &Path, arguments: I) -> Command<'_>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = std::process::Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", search_path())
            .env("HOME", self.dir.path().join("home"))
            .env("XDG_STATE_HOME", self.dir.path().join("state"))
            // One for all tests: gpufleet hashes its file once, and not in every home.
            .env("XDG_CACHE_HOME", std::env::temp_dir().join("gpufleet-tests-cache"))
            .env("TMPDIR", self.dir.path().join("tmp"))
            .env("USER", "tester")
            .env("LC_ALL", "C.UTF-8")
            .current_dir(self.work())
            .stdin(Stdio::null());
        Command { home: self, command, limit: LIMIT }
    }

    /// Replaces paths and numbers that differ from run to run.
    pub fn redact(&self, text: &str) -> String {
        let text = text.replace(&*self.dir.path().to_string_lossy(), "[HOME]");
        let number = regex::Regex::new(r"127\.0\.0\.1:\d+").expect("an expression");
        number.replace_all(&text, "127.0.0.1:[PORT]").into_owned()
    }
}

/// A command that is about to run.
pub struct Command<'a> {
    home: &'a Home,
    command: std::process::Command,
    limit: Duration,
}

impl Command<'_> {
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, arguments: I) -> Self {
        self.command.args(arguments);
        self
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it cannot be started or takes too long, in which case it is killed.
    pub fn run(self) -> Finished {
        self.start().wait()
    }

    /// Starts it.
    pub fn start(mut self) -> Running {
        let text = format!("{:?}", self.command);
        let program = self.command.get_program().to_string_lossy().into_owned();
        let arguments = self.command.get_args().map(|word| word.to_string_lossy().into_owned());
        let is_ours = Path::new(&program).file_name() == Some(OsStr::new("gpufleet"));
        // Only gpufleet's own output is checked: `sh` and `script` print anything.
        let words = if is_ours { std::iter::once(program).chain(arguments).collect() } else { Vec::new() };
        let begin = Instant::now();
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {text}: {error}"));
        let stdout = drain(child.stdout.take().expect("a pipe"));
        let stderr = drain(child.stderr.take().expect("a pipe"));
        Running {
            text,
            words,
            begin,
            limit: self.limit,
            child,
            streams: Some((stdout, stderr)),
            work: self.home.work(),
            runs: self.home.runs(),
        }
    }
}

fn drain(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // On an error, the output is what was read until then.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn journal(runs: &Path) -> Events {
    let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let latest = entries.map(|entry| entry.path()).max();
    let text = latest.and_then(|dir| std::fs::read_to_string(dir.join("journal.jsonl")).ok());
    Events::of(&text.unwrap_or_default())
}

/// A running command. Dropping it kills it.
pub struct Running {
    text: String,
    words: Vec<String>,
    begin: Instant,
    limit: Duration,
    child: Child,
    streams: Option<(JoinHandle<String>, JoinHandle<String>)>,
    /// The folder that it runs in.
    work: PathBuf,
    runs: PathBuf,
}

impl Running {
    /// Sends a signal to this process alone.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process is there");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the journal of this home's only run; empty before it began.
    pub fn journal(&self) -> Events {
        journal(&self.runs)
    }

    /// Waits until the journal satisfies a condition.
    ///
    /// # Panics
    /// If the command ends first, or its time limit passes.
    pub fn until(&mut self, what: &str, condition: impl Fn(&Events) -> bool) {
        while !condition(&self.journal()) {
            let ended = self.child.try_wait().expect("the child can be asked").is_some();
            if (ended && !condition(&self.journal())) || self.begin.elapsed() > self.limit {
                let _ = self.child.kill();
                let (stdout, stderr) = self.output();
                panic!("{}: not seen: {what}\n--- stdout\n{stdout}\n--- stderr\n{stderr}", self.text);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn output(&mut self) -> (String, String) {
        let (stdout, stderr) = self.streams.take().expect("output is read once");
        (stdout.join().expect("a reader"), stderr.join().expect("a reader"))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it takes too long.
    pub fn wait(self) -> Finished {
        self.ended().unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Returns the largest resident memory so far, in KiB.
    fn peak_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it takes too long; it is then killed.
    pub fn ended(mut self) -> Result<Finished, String> {
        let mut peak_kib = 0;
        let status = loop {
            peak_kib = self.peak_kib().unwrap_or_default().max(peak_kib);
            match self.child.try_wait().expect("the child can be asked") {
                Some(status) => break Some(status),
                None if self.begin.elapsed() > self.limit => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let took = self.begin.elapsed();
        if status.is_none() {
            let _ = self.child.kill();
        }
        let (stdout, stderr) = self.output();
        let Some(status) = status else {
            return Err(format!(
                "{} did not end in {took:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}",
                self.text
            ));
        };
        hold_to_schemas(&self.words, &stdout, &self.work, &self.runs);
        Ok(Finished {
            text: std::mem::take(&mut self.text),
            code: status.code(),
            stdout,
            stderr,
            took,
            peak_kib,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A command that has ended, with its output.
#[derive(Debug)]
pub struct Finished {
    text: String,
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
    /// Largest resident memory in KiB, as last seen before its end.
    pub peak_kib: u64,
}

impl Finished {
    /// Checks the exit code.
    ///
    /// # Panics
    /// If the code differs, with all output.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// Checks that the two streams together contain each of these texts.
    #[track_caller]
    pub fn says(self, texts: &[&str]) -> Self {
        let all = format!("{}{}", self.stdout, self.stderr);
        for text in texts {
            assert!(all.contains(text), "`{text}` is not said by {self}");
        }
        self
    }

    /// Returns the document of `--format json`.
    #[track_caller]
    pub fn document(&self) -> Document {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => Document::new(value),
            Err(error) => panic!("standard output is no JSON ({error}): {self}"),
        }
    }

    /// Returns the events of `--format jsonl`.
    pub fn events(&self) -> Events {
        Events::of(&self.stdout)
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { text, code, stdout, stderr, took, peak_kib: _ } = self;
        write!(f, "{text}\nended with {code:?} in {took:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

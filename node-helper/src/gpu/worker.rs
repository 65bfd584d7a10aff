//! The supervisor of the NVML worker process.
//!
//! Owns the source of the worker's file, the ways to start it where memfd or exec is forbidden, and the deadline of
//! every request. Must not know knobs. Invariants: a worker that does not answer is killed and never waited for (a call
//! into a wedged driver survives SIGKILL in state D); after two hangs in a session no further worker is started; at
//! most one worker runs at a time.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    facts::GpuSystemState,
    frame::{Decoder, Frame},
    nvml::{Answer, Answered, Ask, Asked, Code, GpuDevices, Health, Reading, Setting, Snapshot},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
};
use sha2::{Digest, Sha256};

use crate::{
    deadline::{Deadline, Stop},
    os::{
        files::{At, FileError, Fresh, Ownership},
        tree,
    },
};

/// The end of a node file that carries a worker; before it come the worker and its length as little-endian u64.
pub const MAGIC: &[u8; 8] = b"GPUFNVML";
/// Time limit of one answer, after which the worker counts as hung.
const ANSWER: Duration = Duration::from_secs(10);
/// Time limit while the process uses CPU: without persistence the first call initialises every GPU.
const ANSWER_WHILE_WORKING: Duration = Duration::from_secs(60);
/// Time limit of a new process's hello.
const HELLO: Duration = Duration::from_secs(5);
/// Time limit of an ordered end.
const LEAVE: Duration = Duration::from_secs(3);
/// Number of hangs after which a session starts no further worker.
const HANGS: u32 = 2;

/// Why NVML could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    #[error("no NVIDIA driver: {detail}")]
    NoDriver { detail: String },
    /// The kernel's own drivers have the GPUs, so that NVIDIA's cannot.
    #[error("the kernel's own driver ({}) has the GPUs, and NVML does not work with it", .names.join(" and "))]
    KernelsOwn { names: Vec<&'static str> },
    #[error("driver library and kernel module differ: {detail}")]
    VersionMismatch { detail: String },
    #[error("{detail}")]
    Hung { detail: String },
    #[error("{detail}")]
    Crashed { detail: String },
    #[error("the NVML worker cannot run on this node: {detail}")]
    NoWorker { detail: String },
    #[error("{detail}")]
    Failed { detail: String },
    #[error("stopped before NVML answered")]
    Stopped(Stop),
}

impl NvmlError {
    /// Returns the kernel's own drivers that have the GPUs.
    pub fn kernels_own(&self) -> &[&'static str] {
        match self {
            Self::KernelsOwn { names } => names,
            _ => &[],
        }
    }

    /// Whether NVIDIA's driver does not run, so that no process can use a GPU by it.
    pub const fn is_no_driver(&self) -> bool {
        matches!(self, Self::NoDriver { .. } | Self::KernelsOwn { .. })
    }

    /// Returns the state for facts.
    pub fn state(&self) -> GpuSystemState {
        match self.clone() {
            Self::NoDriver { detail } => GpuSystemState::NoDriver { detail },
            own @ Self::KernelsOwn { .. } => GpuSystemState::NoDriver { detail: own.to_string() },
            Self::VersionMismatch { detail } => GpuSystemState::VersionMismatch { detail },
            Self::Hung { detail } => GpuSystemState::Hung { detail },
            Self::Crashed { detail } => GpuSystemState::Crashed { detail },
            Self::NoWorker { detail } => GpuSystemState::NoWorker { detail },
            Self::Failed { detail } => GpuSystemState::Failed { detail },
            Self::Stopped(stop) => {
                let why = match stop {
                    Stop::TimedOut => "the operation's time was up",
                    Stop::Cancelled => "the operation was cancelled",
                };
                GpuSystemState::Failed { detail: format!("{why} before NVML answered") }
            }
        }
    }
}

/// Why there is no reading for an audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoHealth {
    pub error: NvmlError,
    /// Result of `nvmlInit`, if it was called; [`Code::LIBRARY_NOT_FOUND`] without the library.
    pub init: Option<Code>,
    /// Driver version of the library that is installed, if it tells.
    pub library: Option<String>,
}

impl From<NvmlError> for NoHealth {
    fn from(error: NvmlError) -> Self {
        Self { error, init: None, library: None }
    }
}

/// Why a setting failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    #[error("{call}: {code}")]
    Refused { call: String, code: Code },
    #[error(transparent)]
    Nvml(#[from] NvmlError),
}

/// The answer to a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAnswer {
    Done,
    MigMode { activation: Code },
    Created { id: u32 },
}

/// The source of the worker's program.
#[derive(Clone, Debug)]
pub enum WorkerFile {
    /// Appended to the running node file.
    Embedded,
    /// A file of its own.
    #[cfg(test)]
    Path(PathBuf),
}

/// How the program is run; determined at the first start.
#[derive(Debug)]
enum Launch {
    Memory(OwnedFd),
    File(PathBuf),
}

/// Starts, asks and ends workers.
#[derive(Debug)]
pub struct Worker {
    file: WorkerFile,
    state_dir: PathBuf,
    launch: Option<Launch>,
    running: Option<Running>,
    abandoned: Vec<Child>,
    hangs: u32,
    answer_time: Duration,
    next_id: u64,
}

#[derive(Debug)]
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    decoder: Decoder,
}

/// Why there is no answer.
enum NoAnswer {
    Silent { after: Duration },
    Stopped(Stop),
    Ended(String),
}

impl Worker {
    pub fn new(file: WorkerFile, state_dir: PathBuf) -> Self {
        Self {
            file,
            state_dir,
            launch: None,
            running: None,
            abandoned: Vec::new(),
            hangs: 0,
            answer_time: ANSWER,
            next_id: 0,
        }
    }

    /// Sets the time limit of an answer, which is ten seconds by default.
    #[cfg(test)]
    #[must_use]
    pub fn answer_within(mut self, time: Duration) -> Self {
        self.answer_time = time;
        self
    }

    /// Returns the process id of the running worker.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// Returns the process ids of gpufleet's workers, which may hold GPUs: the running one, and those that hang.
    pub fn pids(&mut self) -> Vec<u32> {
        self.abandoned.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        self.pid().into_iter().chain(self.abandoned.iter().map(Child::id)).collect()
    }

    /// Reads all GPUs.
    ///
    /// # Errors
    /// If NVML cannot be read.
    pub fn snapshot(&mut self, deadline: &Deadline) -> Result<Snapshot, NvmlError> {
        match self.ask(Ask::Snapshot, deadline)? {
            Answer::Snapshot(snapshot) => Ok(*snapshot),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads each GPU and MIG device as containers are given it.
    ///
    /// # Errors
    /// If NVML cannot be read.
    pub fn devices(&mut self, deadline: &Deadline) -> Result<Vec<GpuDevices>, NvmlError> {
        match self.ask(Ask::Devices, deadline)? {
            Answer::Devices(devices) => Ok(devices),
            Answer::Failed { call, code } => Err(NvmlError::Failed { detail: format!("{call}: {code}") }),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads all GPUs by [`Ask::Health`] or [`Ask::Lately`].
    ///
    /// # Errors
    /// If NVML cannot be read.
    pub fn health(&mut self, asked: Ask, deadline: &Deadline) -> Result<Health, NoHealth> {
        let answer = self.answer(asked, deadline)?;
        let (init, library) = match &answer {
            Answer::NoLibrary { .. } => (Some(Code::LIBRARY_NOT_FOUND), None),
            Answer::InitFailed { code, library } => (Some(*code), library.clone()),
            _ => (None, None),
        };
        match decided(answer).map_err(|error| NoHealth { error, init, library })? {
            Answer::Health(health) => Ok(*health),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Makes one setting.
    ///
    /// # Errors
    /// If NVML refuses it, or cannot be asked.
    pub fn set(&mut self, uuid: &str, setting: Setting, deadline: &Deadline) -> Result<SetAnswer, SetError> {
        match self.ask(Ask::Set { uuid: uuid.to_owned(), setting }, deadline)? {
            Answer::Done => Ok(SetAnswer::Done),
            Answer::MigMode { activation } => Ok(SetAnswer::MigMode { activation }),
            Answer::Created { id } => Ok(SetAnswer::Created { id }),
            Answer::Failed { call, code } => Err(SetError::Refused { call, code }),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Reads whether GPUs are drained, by PCI address and in the same order.
    ///
    /// # Errors
    /// If NVML cannot be asked.
    pub fn drain_states(
        &mut self,
        pcis: Vec<String>,
        deadline: &Deadline,
    ) -> Result<Vec<Reading<bool>>, NvmlError> {
        let asked = pcis.len();
        match self.ask(Ask::DrainStates { pcis }, deadline)? {
            Answer::DrainStates(states) if states.len() == asked => Ok(states),
            other => Err(unexpected(&other)),
        }
    }

    /// Drains the GPU at a PCI address, or ends that.
    ///
    /// # Errors
    /// If NVML refuses it, or cannot be asked.
    pub fn drain(&mut self, pci: &str, on: bool, deadline: &Deadline) -> Result<(), SetError> {
        match self.ask(Ask::Drain { pci: pci.to_owned(), on }, deadline)? {
            Answer::Done => Ok(()),
            Answer::Failed { call, code } => Err(SetError::Refused { call, code }),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Ends the worker, so that it holds no GPU.
    pub fn close(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.stdin = None;
        let until = Instant::now() + LEAVE;
        while Instant::now() < until {
            if let Ok(Some(_)) = running.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.abandon(running);
    }

    fn ask(&mut self, request: Ask, deadline: &Deadline) -> Result<Answer, NvmlError> {
        self.answer(request, deadline).and_then(decided)
    }

    fn answer(&mut self, request: Ask, deadline: &Deadline) -> Result<Answer, NvmlError> {
        if self.running.is_none() {
            self.start(deadline)?;
        }
        let Some(mut running) = self.running.take() else {
            return Err(NvmlError::Failed { detail: "the NVML worker is gone".to_owned() });
        };
        self.next_id += 1;
        match running.ask(self.next_id, request, deadline, self.answer_time) {
            Ok(answer) => {
                self.running = Some(running);
                Ok(answer)
            }
            Err(NoAnswer::Silent { after }) => {
                self.hangs += 1;
                self.abandon(running);
                let seconds = after.as_secs();
                Err(NvmlError::Hung { detail: format!("NVML did not answer in {seconds} s (worker killed)") })
            }
            Err(NoAnswer::Stopped(stop)) => {
                self.abandon(running);
                Err(NvmlError::Stopped(stop))
            }
            Err(NoAnswer::Ended(how)) => {
                let detail = match running.status() {
                    Some(status) => format!("the NVML worker crashed: {}", ended(status)),
                    None => format!("the NVML worker crashed: {how}"),
                };
                self.abandon(running);
                Err(NvmlError::Crashed { detail })
            }
        }
    }

    /// Kills without waiting: a process in state D ends when its call returns, or never.
    fn abandon(&mut self, mut running: Running) {
        let _ = running.child.kill();
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            if let Ok(Some(_)) = running.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.abandoned.push(running.child);
    }

    fn start(&mut self, deadline: &Deadline) -> Result<(), NvmlError> {
        if self.hangs >= HANGS {
            let detail = format!(
                "NVML did not answer {HANGS} times; it is not asked again before the next run: look at the kernel log, the driver hangs"
            );
            return Err(NvmlError::Hung { detail });
        }
        if let Some(stop) = deadline.stop() {
            return Err(NvmlError::Stopped(stop));
        }
        if let Some(launch) = &self.launch {
            let running =
                launch.start(deadline).map_err(|why| NvmlError::NoWorker { detail: why.to_string() })?;
            self.running = Some(running);
            return Ok(());
        }
        let bytes = match &self.file {
            #[cfg(test)]
            WorkerFile::Path(path) => return self.start_first(&[Way::At(path.clone())], &[], deadline),
            WorkerFile::Embedded => embedded(Path::new("/proc/self/exe"))
                .map_err(|error| NvmlError::NoWorker { detail: error.to_string() })?,
        };
        let ways =
            [Way::Memory, Way::Folder(self.state_dir.clone()), Way::Folder(PathBuf::from("/run/gpufleet"))];
        self.start_first(&ways, &bytes, deadline)
    }

    /// Starts the worker in the first way that works; each is prepared only when it is tried.
    fn start_first(&mut self, ways: &[Way], bytes: &[u8], deadline: &Deadline) -> Result<(), NvmlError> {
        let mut reasons = Vec::new();
        for way in ways {
            let launch = match way {
                Way::Memory => in_memory(bytes),
                Way::Folder(folder) => in_folder(bytes, folder),
                #[cfg(test)]
                Way::At(path) => Ok(Launch::File(path.clone())),
            };
            match launch.and_then(|launch| launch.start(deadline).map(|running| (launch, running))) {
                Ok((launch, running)) => {
                    self.launch = Some(launch);
                    self.running = Some(running);
                    return Ok(());
                }
                // No other way is tried: without the loader, no other place of the file helps.
                Err(StartError::NoLoader) => {
                    return Err(NvmlError::NoWorker { detail: StartError::NoLoader.to_string() });
                }
                Err(why) => reasons.push(why.to_string()),
            }
        }
        reasons.dedup();
        Err(NvmlError::NoWorker { detail: reasons.join("; ") })
    }
}

/// A way to run the program, best first.
#[derive(Debug)]
enum Way {
    Memory,
    Folder(PathBuf),
    #[cfg(test)]
    At(PathBuf),
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
    }
}

/// Converts answers that mean that NVML is missing to errors.
fn decided(answer: Answer) -> Result<Answer, NvmlError> {
    match answer {
        Answer::NoLibrary { detail } => Err(NvmlError::NoDriver { detail }),
        Answer::InitFailed { code: code @ (Code::DRIVER_NOT_LOADED | Code::LIBRARY_NOT_FOUND), .. } => {
            Err(NvmlError::NoDriver { detail: code.to_string() })
        }
        Answer::InitFailed { code: code @ Code::VERSION_MISMATCH, .. } => {
            Err(NvmlError::VersionMismatch { detail: code.to_string() })
        }
        Answer::InitFailed { code, .. } => {
            Err(NvmlError::Failed { detail: format!("NVML cannot start: {code}") })
        }
        other => Ok(other),
    }
}

fn unexpected(answer: &Answer) -> NvmlError {
    let text = format!("{answer:?}");
    let text: String = text.chars().take(60).collect();
    NvmlError::Failed { detail: format!("the NVML worker answered something else: {text}") }
}

fn ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => "it ended".to_owned(),
    }
}

/// Why a program could not be started as a worker.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("this node file carries no worker")]
    NotEmbedded,
    #[error("the node has no glibc, which libnvidia-ml.so.1 needs")]
    NoLoader,
    #[error("{place} cannot be used: {source}")]
    Place { place: String, source: io::Error },
    #[error("{place} may not be executed: {source}")]
    Exec { place: String, source: io::Error },
    #[error("the worker from {place} did not start: {how}")]
    Silent { place: String, how: String },
}

/// Reads the worker appended to a node file.
fn embedded(path: &Path) -> Result<Vec<u8>, StartError> {
    let place = |source| StartError::Place { place: path.display().to_string(), source };
    let mut file = File::open(path).map_err(place)?;
    let size = file.metadata().map_err(place)?.len();
    let trailer = MAGIC.len() as u64 + 8;
    let Some(end) = size.checked_sub(trailer) else { return Err(StartError::NotEmbedded) };
    file.seek(SeekFrom::Start(end)).map_err(place)?;
    let mut words = [0u8; 16];
    file.read_exact(&mut words).map_err(place)?;
    let Some((length, magic)) = words.split_first_chunk::<8>() else { return Err(StartError::NotEmbedded) };
    let length = u64::from_le_bytes(*length);
    if magic != MAGIC || length == 0 || length > end {
        return Err(StartError::NotEmbedded);
    }
    file.seek(SeekFrom::Start(end - length)).map_err(place)?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes).map_err(place)?;
    Ok(bytes)
}

fn in_memory(bytes: &[u8]) -> Result<Launch, StartError> {
    let place = |source: io::Error| StartError::Place { place: "a file in memory".to_owned(), source };
    let name = "gpufleet-nvml";
    // Twice, because kernels from 6.3 want the flag for an executable file, and older ones refuse it.
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::EXEC)
        .or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC))
        .map_err(|error| place(error.into()))?;
    let mut file = File::from(memory);
    file.write_all(bytes).map_err(place)?;
    Ok(Launch::Memory(OwnedFd::from(file)))
}

/// Writes a file that only its user can read, write and run, named by its content.
fn in_folder(bytes: &[u8], folder: &Path) -> Result<Launch, StartError> {
    let place = |source| StartError::Place { place: folder.display().to_string(), source };
    let refused = |error: FileError| place(io::Error::other(error));
    let parent = tree::make_dirs(folder.parent().unwrap_or(Path::new("/"))).map_err(refused)?;
    let own = parent.spot(folder.file_name().unwrap_or_default());
    own.make_dir(0o700).map_err(place)?;
    let dir = own.enter().map_err(refused)?;
    if !dir.is_ours() {
        return Err(place(io::Error::other("other users may write it")));
    }
    let digest: String = Sha256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(format!("nvml-worker-{digest}"));
    let spot = dir.spot(format!("nvml-worker-{digest}"));
    let mut present = Vec::new();
    if spot.open().and_then(|mut file| file.read_to_end(&mut present).at("read", &path)).is_ok()
        && present == bytes
    {
        return Ok(Launch::File(path));
    }
    let mut fresh = Fresh::at(spot).map_err(refused)?;
    fresh.write_all(bytes).map_err(refused)?;
    fresh.own(Ownership { mode: Some(0o700), ..Ownership::default() }).map_err(refused)?;
    fresh.place().map_err(refused)?;
    Ok(Launch::File(path))
}

impl Launch {
    fn place(&self) -> String {
        match self {
            Self::Memory(_) => "a file in memory".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    fn start(&self, deadline: &Deadline) -> Result<Running, StartError> {
        let program: OsString = match self {
            Self::Memory(fd) => format!("/proc/self/fd/{}", fd.as_raw_fd()).into(),
            Self::File(path) => path.into(),
        };
        let mut tries = 0;
        let mut child = loop {
            let spawned = Command::new(&program)
                .arg0(super::clients::WORKER)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn();
            match spawned {
                Ok(child) => break child,
                // A just written file stays "busy" while a sibling thread's fork still holds it open.
                Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) && tries < 20 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(10));
                }
                // The file exists, so what is missing is the loader that its ELF header names.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && (matches!(self, Self::Memory(_)) || Path::new(&program).exists()) =>
                {
                    return Err(StartError::NoLoader);
                }
                Err(source) => return Err(StartError::Exec { place: self.place(), source }),
            }
        };
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let Some(stdout) = stdout else {
            let how = "its output cannot be read".to_owned();
            return Err(StartError::Silent { place: self.place(), how });
        };
        let mut running = Running { child, stdin, stdout, decoder: Decoder::default() };
        match running.ask(0, Ask::Hello, deadline, HELLO) {
            Ok(Answer::Hello { .. }) => Ok(running),
            Ok(_) => Err(self.silent(running, "it answered something else".to_owned())),
            Err(NoAnswer::Silent { .. }) => Err(self.silent(running, "it did not answer".to_owned())),
            Err(NoAnswer::Stopped(_)) => Err(self.silent(running, "the operation was stopped".to_owned())),
            Err(NoAnswer::Ended(how)) => {
                // The dynamic loader exits with 127 if a library is missing or too old, for example glibc.
                let how = match running.status() {
                    Some(status) if status.code() == Some(127) => {
                        "its libraries are missing or too old (exit status 127)".to_owned()
                    }
                    Some(status) => ended(status),
                    None => how,
                };
                Err(self.silent(running, how))
            }
        }
    }

    fn silent(&self, mut running: Running, how: String) -> StartError {
        let _ = running.child.kill();
        let _ = running.child.try_wait();
        StartError::Silent { place: self.place(), how }
    }
}

impl Running {
    /// Returns the exit status if the process ends within a moment.
    fn status(&mut self) -> Option<ExitStatus> {
        for _ in 0..100 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    fn ask(
        &mut self,
        id: u64,
        request: Ask,
        deadline: &Deadline,
        patience: Duration,
    ) -> Result<Answer, NoAnswer> {
        let bytes = Frame::message(&Asked { id, request })
            .and_then(|frame| frame.encode())
            .map_err(|error| NoAnswer::Ended(error.to_string()))?;
        let Some(stdin) = &mut self.stdin else {
            return Err(NoAnswer::Ended("its input is closed".to_owned()));
        };
        stdin.write_all(&bytes).map_err(|error| NoAnswer::Ended(error.to_string()))?;
        let asked = Instant::now();
        let mut used = self.cpu_ticks();
        let mut looked = asked;
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => match frame.decode::<Answered>() {
                    Ok(Some(answered)) if answered.id == id => return Ok(answered.answer),
                    Ok(_) => continue,
                    Err(error) => return Err(NoAnswer::Ended(error.to_string())),
                },
                Ok(None) => {}
                Err(error) => return Err(NoAnswer::Ended(error.to_string())),
            }
            if let Some(stop) = deadline.stop() {
                return Err(NoAnswer::Stopped(stop));
            }
            let waited = asked.elapsed();
            if waited >= patience && looked.elapsed() >= Duration::from_secs(1).min(patience) {
                let now = self.cpu_ticks();
                if now <= used || waited >= ANSWER_WHILE_WORKING.max(patience) {
                    return Err(NoAnswer::Silent { after: waited });
                }
            }
            if looked.elapsed() >= Duration::from_secs(1) {
                (used, looked) = (self.cpu_ticks(), Instant::now());
            }
            self.wait_for_output()?;
        }
    }

    /// Returns the CPU time of the process in clock ticks; a process that uses none for a second is not initialising
    /// GPUs.
    fn cpu_ticks(&self) -> u64 {
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.child.id())) else { return 0 };
        let Some((_, rest)) = stat.rsplit_once(')') else { return 0 };
        // Fields 14 and 15 of proc(5), counted from the state, which is field 3.
        rest.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
    }

    /// Reads output for up to a twentieth of a second.
    fn wait_for_output(&mut self) -> Result<(), NoAnswer> {
        let ended = |error: io::Error| NoAnswer::Ended(error.to_string());
        let mut polled = [PollFd::from_borrowed_fd(self.stdout.as_fd(), PollFlags::IN)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        match poll(&mut polled, Some(&moment)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(ended(error.into())),
        }
        let mut buffer = vec![0u8; 64 * 1024];
        match self.stdout.read(&mut buffer) {
            Ok(0) => Err(NoAnswer::Ended("it closed its output".to_owned())),
            Ok(count) => {
                self.decoder.feed(buffer.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(ended(error)),
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;

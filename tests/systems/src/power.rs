//! The power supply of one machine: its mains switch, its reset line and its console.
//!
//! Owns the process of the machine's boots. Invariants: the machine runs only while its power is on; a reboot that it
//! requests is a new boot; no process of it outlives this value, nor the test that holds it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::network::plugged;

/// systemd-nspawn's exit code if the machine wants to boot again.
const REBOOT: i32 = 133;
/// Time limit for the processes of a machine to die.
const DEATH: Duration = Duration::from_secs(20);

/// The parts of one machine.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    /// The read-only file tree that it shares with others.
    pub(crate) tree: PathBuf,
    /// Its own folder, with disk and console.
    pub(crate) folder: PathBuf,
    /// The name of its namespace, its cgroup and its systemd-nspawn machine.
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) number: usize,
    pub(crate) hub: String,
}

#[derive(Debug, Default)]
struct State {
    on: bool,
    /// Whether the next reboot ends with the machine off.
    stays_off: bool,
    process: Option<u32>,
    cuts: Vec<u64>,
    over: bool,
}

#[derive(Debug)]
struct Shared {
    parts: Parts,
    state: Mutex<State>,
    changed: Condvar,
}

/// A machine's power. Dropping it ends the machine.
#[derive(Debug)]
pub(crate) struct Power {
    shared: Arc<Shared>,
    supply: Option<JoinHandle<()>>,
}

impl Power {
    /// Creates a machine that is switched off.
    pub(crate) fn new(parts: Parts) -> Self {
        let shared = Arc::new(Shared { parts, state: Mutex::default(), changed: Condvar::new() });
        let for_thread = Arc::clone(&shared);
        let supply = std::thread::spawn(move || for_thread.supply());
        Self { shared, supply: Some(supply) }
    }

    pub(crate) fn switch_on(&self) {
        let mut state = self.shared.off();
        state.on = true;
        state.stays_off = false;
        self.shared.changed.notify_all();
    }

    /// Sets whether the machine's next reboot ends with the machine off.
    pub(crate) fn stay_off_after_reboot(&self, stays_off: bool) {
        self.shared.lock().stays_off = stays_off;
    }

    /// Cuts its power: it falls silent, and nothing on it ends in order.
    pub(crate) fn cut(&self) {
        let mut state = self.shared.lock();
        state.on = false;
        plugged(&self.shared.parts.hub, self.shared.parts.number, false);
        state.cuts.push(now_ms());
        let process = state.process;
        drop(state);
        if let Some(process) = process {
            // The first process if there is one: all others of a PID namespace die with it.
            let first = child_of(process).and_then(child_of).unwrap_or(process);
            kill(first);
        }
        drop(self.shared.off());
    }

    /// Waits until the machine is off.
    ///
    /// # Panics
    /// If it is on for longer than `patience`.
    pub(crate) fn await_off(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.shared.lock().process.is_some() {
            assert!(Instant::now() < deadline, "{} is still on", self.shared.parts.name);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns when its power was cut, in milliseconds since the epoch.
    pub(crate) fn cuts(&self) -> Vec<u64> {
        self.shared.lock().cuts.clone()
    }
}

impl Drop for Power {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        state.on = false;
        if let Some(process) = state.process {
            // The child is the first process of the PID namespace; systemd-nspawn itself still records its end.
            kill(child_of(process).unwrap_or(process));
        }
        self.shared.changed.notify_all();
        drop(state);
        if let Some(supply) = self.supply.take() {
            let _ = supply.join();
        }
        remove_group(&self.shared.parts.name);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that failed while it held the lock must not keep the machine alive.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state once no process of the machine is left.
    fn off(&self) -> MutexGuard<'_, State> {
        let state = self.lock();
        let wait = self.changed.wait_timeout_while(state, DEATH, |state| state.process.is_some());
        let (state, late) = wait.unwrap_or_else(PoisonError::into_inner);
        assert!(!late.timed_out(), "{} does not go off", self.parts.name);
        state
    }

    fn supply(&self) {
        loop {
            let state = self.lock();
            let wait = self.changed.wait_while(state, |state| !state.on && !state.over);
            let mut state = wait.unwrap_or_else(PoisonError::into_inner);
            if state.over {
                return;
            }
            plugged(&self.parts.hub, self.parts.number, true);
            let mut process = boot(&self.parts);
            state.process = Some(process.id());
            drop(state);
            let ended = process.wait();
            let mut state = self.lock();
            state.process = None;
            if !state.over {
                plugged(&self.parts.hub, self.parts.number, false);
            }
            let code = ended.as_ref().ok().and_then(ExitStatus::code);
            note(
                &self.parts.folder,
                &format!("the boot ended with {code:?}; the power is {}", switch(state.on)),
            );
            // After a failure too: a machine with power on boots until it is switched off.
            let off = code == Some(0) || (code == Some(REBOOT) && state.stays_off);
            state.on &= !off;
            if state.on && code != Some(REBOOT) {
                self.changed.notify_all();
                drop(state);
                std::thread::sleep(Duration::from_millis(500));
                continue;
            }
            self.changed.notify_all();
        }
    }
}

/// Starts a machine. Its processes die with this process and with the calling thread.
fn boot(parts: &Parts) -> std::process::Child {
    let console = std::fs::File::options()
        .create(true)
        .append(true)
        .open(parts.folder.join("console"))
        .expect("the machine's console");
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private", "--pid", "--fork"])
        .args(["--kill-child=KILL", "--mount-proc", "sh", "-c", include_str!("../nspawn/boot.sh"), "boot.sh"])
        .args([&parts.tree, &parts.folder])
        .args([&parts.name, &parts.uuid, &parts.name])
        .stdin(Stdio::null())
        .stdout(console.try_clone().expect("the machine's console"))
        .stderr(console)
        .spawn()
        .unwrap_or_else(|error| panic!("setpriv cannot be started ({error}): type `make test-systems`"))
}

/// Adds a line to the machine's console.
fn note(folder: &Path, text: &str) {
    let console = std::fs::File::options().append(true).open(folder.join("console"));
    // Errors do not matter: the line only helps to understand a failed test.
    let _ = console.and_then(|mut console| writeln!(console, "power supply: {text}"));
}

const fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn child_of(process: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn kill(process: u32) {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    // It may have ended by itself a moment ago.
    let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
}

/// Removes the cgroups that a machine leaves behind.
fn remove_group(name: &str) {
    // Several tries, because the kernel does not remove dead processes at once.
    const REMOVE: &str = "umount -R -l /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup && \
                          for try in $(seq 50); do \
                              find \"/sys/fs/cgroup/$1\" -depth -type d -exec rmdir {} +; \
                              test -d \"/sys/fs/cgroup/$1\" || exit 0; sleep 0.1; \
                          done";
    let _ = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", REMOVE, "remove", name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Returns the wall clock, which machines share with their host.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the end of a machine's console output.
pub(crate) fn console(folder: &Path) -> String {
    let text = std::fs::read(folder.join("console")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

//! The files of one simulated machine: its state, its faults, its log of setters.
//!
//! Several processes share them. The state changes only under an exclusive lock and is replaced by rename, so a
//! reader without a lock always sees a complete state.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fault::{Effect, Rule, Subject};
use crate::holders;
use crate::state::Machine;
use crate::transitions::Users;

/// Default path of a node's state file.
pub const DEFAULT_STATE: &str = "/run/gpusim/node.json";

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{path} holds no valid state: {source}")]
    Parse { path: PathBuf, source: serde_json::Error },
}

/// The files of one machine.
#[derive(Debug)]
pub struct Store {
    state: PathBuf,
    machine: Cached<Machine>,
    rules: Cached<Vec<Rule>>,
}

#[derive(Debug)]
struct Cached<T>(Mutex<Option<(Stamp, Arc<T>)>>);

type Stamp = (u64, i64, i64, u64);

impl<T: DeserializeOwned> Cached<T> {
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn get(&self, path: &Path) -> Result<Arc<T>, StoreError> {
        let io = |action| move |source| StoreError::Io { action, path: path.to_owned(), source };
        let meta = std::fs::metadata(path).map_err(io("read"))?;
        let stamp = (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size());
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, value)) = slot.as_ref()
            && *known == stamp
        {
            return Ok(Arc::clone(value));
        }
        let text = std::fs::read(path).map_err(io("read"))?;
        let value: T = serde_json::from_slice(&text)
            .map_err(|source| StoreError::Parse { path: path.to_owned(), source })?;
        let value = Arc::new(value);
        *slot = Some((stamp, Arc::clone(&value)));
        Ok(value)
    }
}

impl Store {
    /// Opens the store with this state file; the other files are beside it.
    pub fn new(state: impl Into<PathBuf>) -> Self {
        Self { state: state.into(), machine: Cached::new(), rules: Cached::new() }
    }

    /// Opens the store that `$GPUSIM_STATE` names, or the node's own.
    pub fn of_this_process() -> Self {
        Self::new(
            std::env::var_os("GPUSIM_STATE").map_or_else(|| PathBuf::from(DEFAULT_STATE), PathBuf::from),
        )
    }

    pub fn state_path(&self) -> &Path {
        &self.state
    }

    /// Returns the path of a file beside the state.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.state.with_file_name(name)
    }

    /// Returns the current machine.
    pub fn read(&self) -> Result<Arc<Machine>, StoreError> {
        self.machine.get(&self.state)
    }

    /// Writes the first state of a machine.
    pub fn create(&self, machine: &Machine) -> Result<(), StoreError> {
        self.write(machine)
    }

    /// Changes the machine under the lock. When `change` fails, nothing is written.
    pub fn update<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> Result<T, StoreError> {
        let _lock = self.lock("node.lock")?;
        let text = std::fs::read(&self.state).map_err(|source| self.io("read", &self.state, source))?;
        let mut machine: Machine = serde_json::from_slice(&text)
            .map_err(|source| StoreError::Parse { path: self.state.clone(), source })?;
        let before = machine.clone();
        let result = change(&mut machine);
        if machine != before {
            self.write(&machine)?;
        }
        Ok(result)
    }

    /// Returns the users of the GPU with this index, except for this process.
    pub fn users(&self, machine: &Machine, index: usize) -> Users {
        let Some(gpu) = machine.gpus.get(index) else { return Users::default() };
        Users {
            open: holders::holders(&holders::device_file(&machine.device_dir, gpu.minor)),
            computing: gpu.clients.iter().map(|c| c.pid).filter(|pid| holders::alive(*pid)).collect(),
        }
    }

    /// Returns the fault for this call, if any, and counts the call if a rule needs it.
    pub fn fault(&self, subject: Subject<'_>) -> Option<Effect> {
        let rules = self.rules.get(&self.beside("faults.json")).ok()?;
        for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.concerns(subject)) {
            if !rule.counts() {
                return Some(rule.effect.clone());
            }
            if let Ok(call) = self.count(index)
                && rule.fires(call)
            {
                return Some(rule.effect.clone());
            }
        }
        None
    }

    /// Returns every fault of the node itself.
    pub fn node_faults(&self) -> Vec<Effect> {
        self.rules.get(&self.beside("faults.json")).map_or_else(
            |_| Vec::new(),
            |rules| rules.iter().filter(|r| r.concerns(Subject::Node)).map(|r| r.effect.clone()).collect(),
        )
    }

    /// Replaces the fault rules.
    pub fn set_faults(&self, rules: &[Rule]) -> Result<(), StoreError> {
        self.replace(&self.beside("faults.json"), &rules)
    }

    /// Logs a setter call with its arguments and its result.
    pub fn log_setter(&self, function: &str, gpu: Option<u32>, args: Value, code: u32) {
        self.append(
            "setters.jsonl",
            json!({"time": now(), "pid": std::process::id(), "process": process_name(),
                   "function": function, "gpu": gpu, "args": args, "rc": code}),
        );
    }

    /// Logs another event: a boot, a reset, an action of a program.
    pub fn log_event(&self, what: &str, detail: Value) {
        self.append(
            "events.jsonl",
            json!({"time": now(), "pid": std::process::id(), "what": what, "detail": detail}),
        );
    }

    /// Requests the end of the node from its first process: `vanish` or `freeze`.
    pub fn end_node(&self, how: &str) {
        self.order(how, "");
    }

    /// Sends an order to the node's first process: `vanish`, `freeze`, `cut` (with seconds) or `power-cut`.
    pub fn order(&self, what: &str, detail: &str) {
        self.log_event(what, if detail.is_empty() { Value::Null } else { json!(detail) });
        let _ = std::fs::write(self.beside(what), detail);
        if std::env::var_os("GPUSIM_STATE").is_none() {
            let _ = rustix::process::kill_process(rustix::process::Pid::INIT, rustix::process::Signal::USR1);
        }
    }

    fn append(&self, file: &str, line: Value) {
        let mut text = line.to_string();
        text.push('\n');
        // Ignored, because a log that cannot be written (a full disk is one of the faults) must not change the call's
        // result.
        let _ = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.beside(file))
            .and_then(|mut log| log.write_all(text.as_bytes()));
    }

    fn count(&self, rule: usize) -> Result<u64, StoreError> {
        let _lock = self.lock("faults.lock")?;
        let path = self.beside("fault-counts.json");
        let mut counts: Vec<u64> =
            std::fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        if counts.len() <= rule {
            counts.resize(rule + 1, 0);
        }
        let Some(count) = counts.get_mut(rule) else { return Ok(0) };
        *count += 1;
        let call = *count;
        self.replace(&path, &counts)?;
        Ok(call)
    }

    fn lock(&self, name: &str) -> Result<File, StoreError> {
        let path = self.beside(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|source| self.io("open", &path, source))?;
        file.lock().map_err(|source| self.io("lock", &path, source))?;
        Ok(file)
    }

    fn write(&self, machine: &Machine) -> Result<(), StoreError> {
        self.replace(&self.state, machine)
    }

    fn replace(&self, path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        let text = serde_json::to_vec_pretty(value)
            .map_err(|source| StoreError::Parse { path: path.to_owned(), source })?;
        std::fs::write(&temporary, text).map_err(|source| self.io("write", &temporary, source))?;
        std::fs::rename(&temporary, path).map_err(|source| self.io("replace", path, source))
    }

    fn io(&self, action: &'static str, path: &Path, source: std::io::Error) -> StoreError {
        StoreError::Io { action, path: path.to_owned(), source }
    }
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| (since.as_secs_f64() * 1000.0).round() / 1000.0)
}

fn process_name() -> String {
    std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelKey;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("node.json"));
        store.create(&Machine::new("gpu001", &[ModelKey::H100], "boot".to_owned())).unwrap();
        (dir, store)
    }

    #[test]
    fn no_change_is_lost_between_processes() {
        let (_dir, store) = store();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let own = Store::new(store.state_path());
                    for _ in 0..25 {
                        own.update(|machine| machine.gpus[0].resets += 1).unwrap();
                        own.read().unwrap();
                    }
                });
            }
        });
        assert_eq!(store.read().unwrap().gpus[0].resets, 100);
    }

    #[test]
    fn faults_count_over_processes() {
        let (_dir, store) = store();
        let rule: Rule =
            serde_json::from_value(json!({"function": "nvmlInit*", "nth": 2, "effect": "hang"})).unwrap();
        store.set_faults(&[rule]).unwrap();
        let ask =
            || Store::new(store.state_path()).fault(Subject::Function { name: "nvmlInit_v2", gpu: None });
        assert_eq!([ask(), ask(), ask()], [None, Some(Effect::Hang), None]);
        assert_eq!(store.fault(Subject::Node), None);
    }

    #[test]
    fn a_broken_state_is_an_error_that_names_the_file() {
        let (dir, store) = store();
        std::fs::write(dir.path().join("node.json"), "{").unwrap();
        assert!(store.read().unwrap_err().to_string().contains("node.json"));
    }
}

//! Reads a [`State`] from the machine: one snapshot, the units, and the record of what cannot be read back.
//!
//! Owns the record's keys. A recorded clock lock counts only while nothing broke its chain: the boot, the load of the
//! driver, the persistence daemon, persistence itself, and the GPU's count of energy, which every initialisation starts
//! anew.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::nvml::{GpuReading, Reading, Snapshot};
use serde::{Deserialize, Serialize};

use super::{
    machine::{BootMark, Machine},
    state::{Gpu, Lock, Locks, State},
    worker::NvmlError,
};
use crate::{deadline::Deadline, state::Record};

const STOPPED: &str = "gpu/stopped-units";
const RELEASED: &str = "gpu/released-persistence";

/// GPUs without persistence in one boot; a reboot starts what is enabled, so that an older entry does not count.
#[derive(Debug, Serialize, Deserialize)]
struct Released {
    boot_id: String,
    uuids: Vec<String>,
}

const RESETS: &str = "gpu/resets";

/// The resets of one boot, which settle earlier messages of the kernel.
#[derive(Debug, Serialize, Deserialize)]
struct RecordedResets {
    boot_id: String,
    /// In microseconds of the boot, by PCI address.
    ends: BTreeMap<String, u64>,
}

/// The recorded locks of one GPU.
#[derive(Debug, Serialize, Deserialize)]
struct RecordedLocks {
    mark: BootMark,
    locks: Locks,
    /// The GPU's count of energy when it was locked, in millijoules.
    #[serde(default)]
    energy_mj: Option<u64>,
}

fn locks_key(uuid: &str) -> String {
    format!("gpu/locked-clocks/{uuid}")
}

/// Returns the clock locks of a GPU; unknown unless nothing can have taken them since they were made.
pub fn locks(record: &Record, gpu: &GpuReading, mark: &BootMark) -> Locks {
    match recorded(record, &gpu.uuid) {
        Some(recorded)
            if recorded.mark == *mark
                && !mark.boot_id.is_empty()
                && gpu.persistence == Ok(true)
                && goes_on(recorded.energy_mj, gpu.energy_mj) =>
        {
            recorded.locks
        }
        _ => Locks::UNKNOWN,
    }
}

fn recorded(record: &Record, uuid: &str) -> Option<RecordedLocks> {
    serde_json::from_value(record.get(&locks_key(uuid)).ok().flatten()?).ok()
}

/// Whether a count of energy went on. One that cannot be read tells nothing either way.
fn goes_on(then: Option<u64>, now: Reading<u64>) -> bool {
    then.zip(now.ok()).is_none_or(|(then, now)| then <= now)
}

/// Forgets the locks of a GPU, before an act that takes them.
///
/// # Errors
/// If the record cannot be written.
pub fn forget_locks(record: &Record, uuid: &str) -> Result<(), String> {
    record.remove(&locks_key(uuid)).map_err(|error| error.to_string())
}

/// Changes what is recorded of the locks of a GPU, which was just read so. Without persistence nothing is recorded: the
/// driver forgets a lock with its last client.
///
/// # Errors
/// If the record cannot be written; the lock itself was made, and the next run makes it again.
pub fn put_locks(
    record: &Record,
    gpu: &Gpu,
    mark: BootMark,
    edit: impl FnOnce(&mut Locks),
) -> Result<(), String> {
    let mut locks = Locks { graphics: gpu.graphics, memory: gpu.memory };
    edit(&mut locks);
    if gpu.persistence != Ok(true) || locks.graphics == Lock::Unknown && locks.memory == Lock::Unknown {
        return forget_locks(record, &gpu.uuid);
    }
    let now = RecordedLocks { mark, locks, energy_mj: gpu.energy_mj.ok() };
    let value = serde_json::to_value(now).map_err(|error| error.to_string())?;
    record.put(&locks_key(&gpu.uuid), value).map_err(|error| error.to_string())
}

/// Returns the position of the kernel's log at the last reset of each GPU in this boot, by PCI address. An unreadable
/// record has no resets.
pub fn resets(record: &Record, boot_id: &str) -> BTreeMap<String, u64> {
    let value = record.get(RESETS).ok().flatten();
    let found: Option<RecordedResets> = value.and_then(|value| serde_json::from_value(value).ok());
    found
        .filter(|found| found.boot_id == boot_id && !boot_id.is_empty())
        .map(|found| found.ends)
        .unwrap_or_default()
}

/// Records the position of the kernel's log at a reset of GPUs.
///
/// # Errors
/// If the record cannot be written; then messages before the reset still count.
pub fn put_resets(record: &Record, boot_id: &str, pcis: &[String], end: u64) -> Result<(), String> {
    let mut ends = resets(record, boot_id);
    ends.extend(pcis.iter().map(|pci| (pci.clone(), end)));
    let found = RecordedResets { boot_id: boot_id.to_owned(), ends };
    let value = serde_json::to_value(found).map_err(|error| error.to_string())?;
    record.put(RESETS, value).map_err(|error| error.to_string())
}

const COUNTED: &str = "gpu/counted-before";
/// Number of entries that are kept of it.
const MOST_COUNTED: usize = 128;

/// The memory errors of a GPU, right before an act that clears their counters.
#[derive(Debug, Serialize, Deserialize)]
struct Counted {
    /// In seconds since 1970.
    at: u64,
    boot_id: String,
    before: String,
    gpu: u32,
    uuid: String,
    uncorrected: u64,
    corrected: u64,
}

/// Records which memory errors GPUs counted before an act that clears the counters, and says them. The node keeps them,
/// because a controller that dies in the act may never hear of them. Without a state directory they are only said.
pub fn keep_counted<'a>(
    record: &Record,
    boot_id: &str,
    gpus: impl Iterator<Item = &'a Gpu>,
    before: &str,
) -> Vec<String> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut told, mut new) = (Vec::new(), Vec::new());
    for gpu in gpus {
        told.extend(gpu.counted(before));
        if let Ok((uncorrected, corrected)) = gpu.errors()
            && (uncorrected, corrected) != (0, 0)
        {
            let (boot_id, before, uuid) = (boot_id.to_owned(), before.to_owned(), gpu.uuid.clone());
            new.push(Counted { at, boot_id, before, gpu: gpu.index, uuid, uncorrected, corrected });
        }
    }
    if !new.is_empty() {
        let value = record.get(COUNTED).ok().flatten();
        let mut all: Vec<Counted> =
            value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default();
        all.extend(new);
        all.drain(..all.len().saturating_sub(MOST_COUNTED));
        let _ = serde_json::to_value(all).map(|value| record.put(COUNTED, value));
    }
    told
}

/// Returns units that a run stopped and has not started again.
pub fn stopped_units(record: &Record) -> Vec<String> {
    let value = record.get(STOPPED).ok().flatten();
    value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}

/// Records which units are stopped; call it before they are.
///
/// # Errors
/// If the record cannot be written.
pub fn put_stopped_units(record: &Record, units: &[String]) -> Result<(), String> {
    let done = if units.is_empty() { record.remove(STOPPED) } else { record.put(STOPPED, units.into()) };
    done.map_err(|error| error.to_string())
}

/// Returns GPUs whose persistence a run of this boot switched off for a reset and not on again.
pub fn released(record: &Record, mark: &BootMark) -> Vec<String> {
    let value = record.get(RELEASED).ok().flatten();
    match value.and_then(|value| serde_json::from_value::<Released>(value).ok()) {
        Some(released) if released.boot_id == mark.boot_id => released.uuids,
        _ => Vec::new(),
    }
}

/// Records which GPUs are without persistence; call it before they are.
///
/// # Errors
/// If the record cannot be written.
pub fn put_released(record: &Record, mark: &BootMark, uuids: &[String]) -> Result<(), String> {
    let done = if uuids.is_empty() {
        record.remove(RELEASED)
    } else {
        let released = Released { boot_id: mark.boot_id.clone(), uuids: uuids.to_vec() };
        record.put(RELEASED, serde_json::to_value(released).map_err(|error| error.to_string())?)
    };
    done.map_err(|error| error.to_string())
}

/// Whether an earlier run left something to restore.
pub fn has_leftovers(record: &Record, mark: &BootMark) -> bool {
    !stopped_units(record).is_empty() || !released(record, mark).is_empty()
}

/// Reads everything. The NVML worker keeps running.
///
/// # Errors
/// If NVML cannot be read.
pub fn observe(
    machine: &mut dyn Machine,
    record: &Record,
    deadline: &Deadline,
) -> Result<(State, Snapshot), NvmlError> {
    let snapshot = machine.snapshot(deadline)?;
    let host = machine.host(deadline);
    let mark = machine.boot_mark();
    let state = State::read(&snapshot, host, |gpu| locks(record, gpu, &mark), |pci| machine.device(pci));
    Ok((state, snapshot))
}

/// Maps the number of `/dev/nvidiaN` to the GPU's index.
pub fn minors(snapshot: &Snapshot) -> BTreeMap<u32, u32> {
    let drained = snapshot.drained.iter().filter_map(|gpu| Some((gpu.minor?, gpu.index)));
    snapshot.gpus.iter().filter_map(|gpu| Some((gpu.minor.ok()?, gpu.index))).chain(drained).collect()
}

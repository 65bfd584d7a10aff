//! The GPUs as they are at this moment: signals of NVML, joined with the processes that hold each of them.
//!
//! Reads only, and only what costs little, because it is asked for again and again.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::{
    OpOutcome, OpStatus,
    nvml::{GpuInstance, GpuReading, HealthReading, MigProfile},
    op::GpuStatusRequest,
    status::{GpuNow, GpuStatus, Holder, MigOffer, MigPart, Recent, SHOWN},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::{
    driver,
    gpu::{self, Place},
    process::parse_stat,
};
use crate::{
    deadline::Deadline,
    gpu::{Gpus, InUse},
    os::roots::Roots,
};

const MIB: u64 = 1024 * 1024;

/// Reads the GPUs.
pub fn read(gpus: &mut Gpus, roots: &Roots, asked: GpuStatusRequest, deadline: &Deadline) -> GpuStatus {
    let mut status = status(&gpus.in_use(asked, deadline), asked, roots);
    status.node.insert("pci_count".to_owned(), driver::gpus_on_bus(roots));
    status
}

/// Returns the outcome of `gpu_status`.
pub fn outcome(status: &GpuStatus) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    outcome.data.insert("gpu_status".to_owned(), json!(status));
    outcome
}

fn status(found: &InUse, asked: GpuStatusRequest, roots: &Roots) -> GpuStatus {
    let signals = gpu::signals(&found.audited, &BTreeMap::new(), &Place::of(roots));
    let clock = Clock::now();
    let read: BTreeMap<&str, (&GpuReading, &HealthReading)> = match &found.audited.health {
        Ok(health) => health.pairs().map(|pair| (pair.0.uuid.as_str(), pair)).collect(),
        Err(_) => BTreeMap::new(),
    };
    let gpus = signals.gpus.into_iter().map(|mut signals| {
        signals.readings.retain(|name, _| SHOWN.contains(&name.as_str()));
        let index = signals.label.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(u32::MAX);
        let mut now = GpuNow { index, signals, ..GpuNow::default() };
        if let Some((gpu, reading)) = read.get(now.signals.id.as_str()) {
            describe(&mut now, gpu, reading, found, |pid| clock.age_ms(roots, pid));
            let samples = reading.lately.as_ref().and_then(|lately| lately.samples.as_ref().ok());
            now.recent = samples.filter(|_| now.is_held()).and_then(|samples| {
                recent(
                    samples,
                    clock.unix_us,
                    (u64::from(asked.window_s) * 1000).min(now.held_ms.unwrap_or(u64::MAX)),
                )
            });
            now.profiles = gpu
                .profiles
                .as_ref()
                .ok()
                .filter(|_| asked.profiles)
                .map(|all| all.iter().map(offer).collect());
        }
        now
    });
    GpuStatus {
        gpus: gpus.collect(),
        node: signals.node,
        mps: found.mps,
        unseen: (!found.scan.unknown.is_empty()).then(|| found.scan.unknown.join("; ")),
    }
}

/// Whether its only compute instance has all of its slices.
fn is_whole(instance: &GpuInstance, profiles: &[MigProfile]) -> bool {
    let profile = profiles.iter().find(|profile| profile.id == instance.profile_id);
    match instance.compute_instances.as_slice() {
        [only] => profile.is_none_or(|profile| profile.slices == only.slices),
        _ => false,
    }
}

fn offer(profile: &MigProfile) -> MigOffer {
    let places = profile.placements.as_deref().unwrap_or_default();
    let size = places.first().map_or(0, |place| place.size);
    MigOffer {
        id: profile.id,
        profile: profile.name.clone(),
        slices: profile.slices,
        max_count: profile.max_count,
        size,
        starts: places.iter().filter(|place| place.size == size).map(|place| place.start).collect(),
    }
}

/// The time, on both clocks that readings are on.
struct Clock {
    /// Microseconds since 1970, as the samples of the driver have it (nvml.h, `nvmlSample_t`).
    unix_us: u64,
    /// Milliseconds since the boot.
    boot_ms: u64,
}

impl Clock {
    fn now() -> Self {
        let boot = clock_gettime(ClockId::Boottime);
        Self {
            unix_us: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
            boot_ms: (boot.tv_sec * 1000 + boot.tv_nsec / 1_000_000).try_into().unwrap_or_default(),
        }
    }

    /// Returns how long a process has run, in milliseconds; `None` if nobody knows.
    fn age_ms(&self, roots: &Roots, pid: u32) -> Option<u64> {
        /// Source: proc(5); the kernel's `USER_HZ` is 100 on all machines with GPUs.
        const TICK_MS: u64 = 10;
        let stat = std::fs::read(roots.proc(&format!("{pid}/stat"))).ok()?;
        let started = parse_stat(&String::from_utf8_lossy(&stat))?.started;
        self.boot_ms.checked_sub(started.checked_mul(TICK_MS)?).filter(|_| started > 0)
    }
}

/// Longest time between two samples without a gap, in microseconds. Source: nvml.h, a sampling period is 1/6 s to 1 s.
const GAP_US: u64 = 2_000_000;

/// Returns how busy a GPU was within the last `longest_ms`, from samples of the driver: times in microseconds since 1970,
/// each with the percent of the time since the one before it.
///
/// `None` if they are not of now: the driver keeps those of before a pause, and a mean over them is of another job.
fn recent(samples: &[(u64, u64)], now_us: u64, longest_ms: u64) -> Option<Recent> {
    let oldest = now_us.saturating_sub(longest_ms.saturating_mul(1000));
    let mut samples = samples.to_vec();
    samples.sort_unstable();
    samples.dedup_by_key(|(at, _)| *at);
    let newest = samples.last()?.0;
    if now_us.abs_diff(newest) > GAP_US {
        return None;
    }
    let pairs = samples.iter().zip(samples.iter().skip(1)).rev();
    let pieces: Vec<(u64, u64, u64)> = pairs
        // A driver's wrong number is no reason for a wrong mean.
        .map(|((before, _), (at, percent))| (*before, at - before, (*percent).min(100)))
        .take_while(|(before, length, _)| *before >= oldest && *length <= GAP_US)
        .collect();
    let begin = pieces.last()?.0;
    let middle = begin + (newest - begin) / 2;
    let mean = |wanted: &dyn Fn(u64) -> bool| {
        let within = || pieces.iter().filter(|(before, ..)| wanted(*before));
        let length: u64 = within().map(|(_, length, _)| length).sum();
        let busy: u64 = within().map(|(_, length, percent)| length * percent).sum();
        (busy * 10).checked_div(length)
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let all = mean(&|_| true)?;
    let half = |wanted: &dyn Fn(u64) -> bool| small(mean(wanted).unwrap_or(all));
    Some(Recent {
        permille: small(all),
        halves: [half(&|before| before < middle), half(&|before| before >= middle)],
        peak: small(pieces.iter().map(|(.., percent)| *percent).max()?),
        span_ms: small((newest - begin) / 1000),
    })
}

/// `age_ms`: how long a process has run.
fn describe(
    now: &mut GpuNow,
    gpu: &GpuReading,
    reading: &HealthReading,
    found: &InUse,
    age_ms: impl Fn(u32) -> Option<u64>,
) {
    let profiles = gpu.profiles.as_deref().unwrap_or_default();
    let profile =
        |id: u32| profiles.iter().find(|profile| profile.id == id).map(|profile| profile.name.clone());
    let instances = gpu.instances.as_deref().unwrap_or_default();
    now.instances = instances
        .iter()
        .map(|instance| MigPart {
            id: instance.id,
            profile: profile(instance.profile_id)
                .unwrap_or_else(|| format!("profile {}", instance.profile_id)),
            ready: !instance.compute_instances.is_empty(),
            whole: is_whole(instance, profiles),
            placement: Some(instance.placement),
        })
        .collect();
    let listed = gpu.processes.as_deref().unwrap_or_default();
    let through_mps = reading.work.mps_pids.as_deref().unwrap_or_default();
    let clients = found
        .scan
        .workloads()
        .filter(|client| client.gpus.contains(&gpu.index) || through_mps.contains(&client.pid));
    let mut holders: Vec<Holder> = clients
        .map(|client| {
            let process = listed.iter().find(|process| process.pid == client.pid);
            Holder {
                pid: client.pid,
                command: client.command.clone(),
                user: client.user.clone(),
                unit: client.unit.clone(),
                memory_mib: process.and_then(|process| process.memory_bytes).map(|bytes| bytes / MIB),
                instance: process.and_then(|process| process.gpu_instance),
                mps: through_mps.contains(&client.pid),
            }
        })
        .collect();
    // Children of a job inherit its open files; those that the driver lists work on the GPU.
    let works = |pid: u32| listed.iter().any(|process| process.pid == pid) || through_mps.contains(&pid);
    let any_works = holders.iter().any(|holder| works(holder.pid));
    let ages =
        holders.iter().filter(|holder| !any_works || works(holder.pid)).map(|holder| age_ms(holder.pid));
    now.held_ms = ages.collect::<Option<Vec<u64>>>().and_then(|ages| ages.into_iter().min());
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.memory_mib), holder.pid));
    now.more_holders = u32::try_from(holders.len().saturating_sub(GpuNow::MOST_HOLDERS)).unwrap_or(u32::MAX);
    holders.truncate(GpuNow::MOST_HOLDERS);
    now.holders = holders;
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;
    /// A sample every 0.2 s for 14 s, up to second 1000.
    fn samples(percent: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
        (0..71).map(|n| (986 * S + n * S / 5, percent(n))).collect()
    }

    #[test]
    fn use_is_averaged_over_the_newest_samples() {
        let rising = samples(|n| if n <= 50 { 0 } else { 90 + n % 2 * 10 });
        let found = |longest_ms| recent(&rising, 1000 * S, longest_ms).unwrap();
        assert_eq!(found(4000), Recent { permille: 950, halves: [950, 950], peak: 100, span_ms: 4000 });
        assert_eq!((found(60_000).span_ms, found(60_000).peak), (14_000, 100));
        assert_eq!(found(8000).halves, [0, 950], "it began in the middle");
        assert_eq!(recent(&[], 1000 * S, 4000), None);
        assert_eq!(recent(&[(1000 * S, 7000)], 1000 * S, 0), None, "one sample has no beginning");
        let wrong = recent(&[(999 * S, 0), (1000 * S, 7000)], 1000 * S, 9000).unwrap();
        assert_eq!((wrong.permille, wrong.span_ms), (1000, 1000));
    }

    #[test]
    fn samples_of_another_time_are_none_of_now() {
        let busy = samples(|_| 90);
        assert_eq!(recent(&busy, 1003 * S, 10_000), None, "the driver stopped to take them");
        assert_eq!(recent(&busy, 900 * S, 10_000), None, "they are on another clock");
        // A pause: what is before it says nothing of what is after it.
        let mut paused: Vec<_> = busy.iter().map(|(at, _)| (at - 20 * S, 10)).collect();
        paused.extend(&busy);
        let found = recent(&paused, 1000 * S, 60_000).unwrap();
        assert_eq!((found.permille, found.span_ms), (900, 14_000));
    }

    #[test]
    fn the_start_of_a_process_bounds_the_window() {
        // A job that began 5.1 s ago, on a GPU that was idle before.
        let began = samples(|n| if n < 45 { 0 } else { 98 });
        let found = recent(&began, 1000 * S, 5100).unwrap();
        assert_eq!((found.permille, found.span_ms), (980, 5000));
        // And one that ended before it: the GPU was busy, the job was not.
        let ended = samples(|n| if n < 40 { 71 } else { 0 });
        assert_eq!(recent(&ended, 1000 * S, 5000).unwrap().permille, 0);
    }

    #[test]
    fn the_age_of_a_process_is_on_the_clock_of_its_start() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/41")).unwrap();
        let stat = format!("41 (a) R) S 1 {}1200 0\n", "0 ".repeat(17));
        std::fs::write(folder.path().join("proc/41/stat"), stat).unwrap();
        let roots = Roots::below(folder.path());
        let clock = Clock { unix_us: 0, boot_ms: 20_000 };
        assert_eq!(clock.age_ms(&roots, 41), Some(8000));
        assert_eq!(clock.age_ms(&roots, 42), None);
        assert_eq!(Clock { boot_ms: 11_000, ..clock }.age_ms(&roots, 41), None, "of another clock");
        let own = Clock::now().age_ms(&Roots::default(), std::process::id()).unwrap();
        assert!(own < 24 * 3600 * 1000, "{own}");
    }
}

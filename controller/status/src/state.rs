//! What a GPU is to somebody who looks for one: free, held, or out of use.
//!
//! Invariant: a GPU is free only if its processes and its memory are known.

use gpufleet_protocol::{
    nvml::{Code, recovery},
    signal::Signal,
    status::{GpuNow, Recent},
};
use serde_json::Value;

/// A GPU that is held and not busier than this is idle, in tenths of a percent.
const IDLE_PERMILLE: u32 = 50;
/// Below this mean, in tenths of a percent, work with peaks above [`PEAK`] waits for something else.
const STARVED_PERMILLE: u32 = 500;
const PEAK: u32 = 80;
/// Shortest time, in milliseconds, of which use is judged.
const JUDGED_MS: u32 = 4500;
/// A GPU that draws more than this share of its limit works. Source: 17 % of it are drawn by an idle H200 with a context,
/// 99 % under load; boards of 70 W draw 40 % with an idle context.
const WORKING_SHARE: f64 = 0.6;
/// `nvmlClocksEventReasonSwPowerCap`: what it does now would draw more than its limit.
const POWER_CAP: u64 = 0x4;
/// `NVML_COMPUTEMODE_PROHIBITED`.
const PROHIBITED: f64 = 2.0;

/// Worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It could not be read, or not lately.
    Unknown,
    /// The driver has it, and it does not answer.
    Lost,
    /// It works, and asks for a reset, a reboot or a replacement.
    Degraded,
    /// It refuses new work.
    Drain,
    /// Held, and idle over the window, which lies within the life of what holds it.
    IdleHeld,
    /// Held, and busy in bursts only, in both halves of the window.
    Starved,
    /// MIG is on, without an instance that work could use.
    NoSlices,
    /// Held.
    Busy,
    /// Some of its MIG instances are free.
    PartFree,
    Free,
    /// The node has none.
    NoGpu,
}

impl State {
    pub const ALL: [Self; 11] = [
        Self::Unknown,
        Self::Lost,
        Self::Degraded,
        Self::Drain,
        Self::IdleHeld,
        Self::Starved,
        Self::NoSlices,
        Self::Busy,
        Self::PartFree,
        Self::Free,
        Self::NoGpu,
    ];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Lost => "lost",
            Self::Degraded => "degraded",
            Self::Drain => "drain",
            Self::IdleHeld => "idle-held",
            Self::Starved => "starved",
            Self::NoSlices => "no-slices",
            Self::Busy => "busy",
            Self::PartFree => "part-free",
            Self::Free => "free",
            Self::NoGpu => "no-gpu",
        }
    }

    /// Whether something can be placed there.
    pub const fn has_room(self) -> bool {
        matches!(self, Self::Free | Self::PartFree)
    }

    /// Whether something holds it.
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Busy | Self::IdleHeld | Self::Starved | Self::PartFree)
    }
}

/// Returns the number of a signal that is known.
pub fn number(signal: Option<&Signal>) -> Option<f64> {
    signal?.known().and_then(Value::as_f64)
}

/// Returns how busy a GPU was: over the window, or in the driver's last sampling period if nothing holds it, or if what it
/// draws says that the window is of another time.
pub fn busy(now: &GpuNow) -> Option<Recent> {
    let recent = now.recent.filter(|recent| now.is_held() && recent.span_ms >= 1000);
    recent.filter(|recent| recent.permille >= STARVED_PERMILLE || !draws_power(now)).or_else(|| {
        let percent = number(now.signals.readings.get("util_gpu"))?.clamp(0.0, 100.0) as u32;
        Some(Recent { permille: percent * 10, halves: [percent * 10; 2], peak: percent, span_ms: 0 })
    })
}

/// Whether its power says that it works at this moment, whatever its use says of the last seconds.
fn draws_power(now: &GpuNow) -> bool {
    let known = |name: &str| number(now.signals.readings.get(name));
    let capped = known("reasons").is_some_and(|bits| bits as u64 & POWER_CAP != 0);
    let drawn = known("power_draw_w").zip(known("power_limit_w"));
    capped || drawn.is_some_and(|(draw, limit)| draw >= WORKING_SHARE * limit)
}

/// Judges the use of a GPU that something holds. Without a window of [`JUDGED_MS`] it is busy.
fn in_use(now: &GpuNow) -> (State, String) {
    let busy = busy(now).unwrap_or_default();
    let seconds = busy.span_ms / 1000;
    let mean = f64::from(busy.permille) / 10.0;
    let at_once = number(now.signals.readings.get("util_gpu")).unwrap_or(0.0);
    let [older, newer] = busy.halves;
    if busy.span_ms < JUDGED_MS {
        return match now.held_ms.filter(|held| *held < JUDGED_MS.into()) {
            Some(_) => (State::Busy, "its use is not judged: what holds it has just begun".to_owned()),
            None => (State::Busy, String::new()),
        };
    }
    // What holds it may have begun within the window: only what shows no work at all is told of it.
    let idle = if now.held_ms.is_some() { busy.permille } else { busy.peak * 10 } <= IDLE_PERMILLE;
    if idle && older.max(newer) <= 2 * IDLE_PERMILLE && at_once * 10.0 < STARVED_PERMILLE.into() {
        return (State::IdleHeld, format!("held, and {mean:.0} % busy in {seconds} s"));
    }
    let in_both = older.min(newer) > IDLE_PERMILLE && older.max(newer) < STARVED_PERMILLE;
    if now.held_ms.is_some() && in_both && busy.peak >= PEAK {
        return (State::Starved, format!("{mean:.0} % busy in {seconds} s, with peaks of {} %", busy.peak));
    }
    (State::Busy, String::new())
}

/// Judges one GPU. The text says why, where the state alone does not.
pub fn judge(now: &GpuNow) -> (State, String) {
    let signal = |name: &str| now.signals.readings.get(name);
    let known = |name: &str| number(signal(name));
    let told = |state, why: &str| (state, why.to_owned());
    match (signal("lost_code"), known("lost_code")) {
        (_, Some(0.0)) => {}
        (_, Some(code)) => return told(State::Lost, Code(code as u32).meaning()),
        (Some(Signal::Unknown(why)), _) => return told(State::Unknown, why),
        _ => return told(State::Unknown, "the node does not say whether it answers"),
    }
    if known("remap_failed") == Some(1.0) {
        return told(State::Degraded, "a memory row could not be replaced");
    }
    if let Some(asked) = known("recovery_action").and_then(|action| recovery(action as u32)) {
        return told(State::Degraded, &format!("the driver asks for {asked}"));
    }
    if known("remap_pending") == Some(1.0) {
        return told(State::Degraded, "a memory row waits for a reset to be replaced");
    }
    if known("drain_state") == Some(1.0) {
        return told(State::Drain, "it refuses new work");
    }
    if known("compute_mode") == Some(PROHIBITED) {
        return told(State::Drain, "its compute mode allows no process");
    }
    match (signal("mig_current"), known("mig_current")) {
        (_, Some(mode)) if mode > 0.0 => return slices(now),
        (Some(Signal::Unknown(why)), _) => return told(State::Unknown, &format!("MIG mode: {why}")),
        _ => {}
    }
    if !now.is_held() {
        return match (signal("process_count"), known("mem_used_mib")) {
            (Some(Signal::Known(_)), Some(_)) => told(State::Free, ""),
            (Some(Signal::Unknown(why)), _) => told(State::Unknown, &format!("processes: {why}")),
            _ => told(State::Unknown, "its processes or its memory could not be read"),
        };
    }
    in_use(now)
}

fn slices(now: &GpuNow) -> (State, String) {
    if let Some(Signal::Unknown(why)) = now.signals.readings.get("mig_layout") {
        return (State::Unknown, format!("MIG instances: {why}"));
    }
    if let Some(Signal::Unknown(why)) = now.signals.readings.get("process_count") {
        return (State::Unknown, format!("processes: {why}"));
    }
    let usable = now.instances.iter().filter(|part| part.ready).count();
    let free = free_slices(now).count();
    let state = match (usable, free) {
        (0, _) => State::NoSlices,
        (_, 0) => State::Busy,
        (usable, free) if usable == free => State::Free,
        _ => State::PartFree,
    };
    let why = if usable == 0 { "MIG is on, and no instance can be used" } else { "" };
    (state, why.to_owned())
}

/// Returns the profiles of MIG instances that nothing works on.
///
/// None of them where it is not known on which instance a process works.
pub fn free_slices(now: &GpuNow) -> impl Iterator<Item = &str> {
    let told = now.holders.iter().all(|holder| holder.instance.is_some()) && now.more_holders == 0;
    let counted =
        number(now.signals.readings.get("process_count")).unwrap_or(0.0) <= now.holders.len() as f64;
    let held = |id: u32| now.holders.iter().any(|holder| holder.instance == Some(id));
    now.instances
        .iter()
        .filter(move |part| told && counted && part.ready && !held(part.id))
        .map(|part| part.profile.as_str())
}

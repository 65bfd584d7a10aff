//! Which MPS daemons stop, start or are told other limits.
//!
//! A daemon that is not declared is stopped where a declaration is for its GPU; one whose MIG instance goes is stopped
//! with it, whoever changes the instances.

use std::collections::BTreeSet;

use gpufleet_protocol::{Change, Disruption, Property, Subject, Unit as Measure, change::Value};

use super::{Act, Stage, layout, mig_mode, run_through};
use crate::gpu::{
    desired::{Desired, Target},
    mps::{self, MpsWant, Seat, Serving},
    state::{Compute, Daemon, Gpu, Instance, State},
};

/// Returns the state in which daemons start: with the instances that this stage makes.
pub(super) fn arranged(state: &State, desired: &Desired) -> State {
    let mut stage = Stage::default();
    for gpu in &state.gpus {
        if let Some(wants) = desired.gpus.get(&gpu.uuid) {
            mig_mode(&mut stage, gpu, wants);
            layout::arrange(&mut stage, gpu, wants);
        }
    }
    run_through(state.clone(), &stage)
}

/// Returns the state before an activation: without the instances of GPUs whose MIG mode is to be switched off.
pub(super) fn cleared(state: &State, desired: &Desired) -> State {
    let mut stage = Stage::default();
    for gpu in &state.gpus {
        let Some(wants) = desired.gpus.get(&gpu.uuid) else { continue };
        if !gpu.architecture.has_volatile_mig() && wants.mig.as_ref().is_some_and(|want| !want.value) {
            layout::clear(&mut stage, gpu, wants);
        }
    }
    run_through(state.clone(), &stage)
}

fn instance_name(gpu: &Gpu, instance: &Instance, compute: &Compute) -> String {
    let profile = gpu.profile(instance.profile_id).map_or("instance", |profile| profile.name.as_str());
    let whole = gpu.slices(instance.profile_id).is_none_or(|slices| slices == compute.inner.size);
    let part = if whole { String::new() } else { format!(" part {}", compute.inner.start) };
    format!("{profile}@{}{part}", instance.placement.start)
}

/// What a change of a daemon is about, and the words after the name of its property.
fn about(state: &State, seat: &Seat) -> (Subject, String) {
    let Seat::Device(uuid) = seat else { return (Subject::Mps, String::new()) };
    match state.device(uuid) {
        Some((gpu, None)) => (gpu.subject(), String::new()),
        Some((gpu, Some((instance, compute)))) => {
            (gpu.subject(), format!(" of {}", instance_name(gpu, instance, compute)))
        }
        None => (Subject::unit(seat.unit().trim_end_matches(".service")), String::new()),
    }
}

/// Returns a daemon as messages name it.
pub(super) fn label(state: &State, seat: &Seat) -> String {
    match about(state, seat) {
        (Subject::Gpu { index, .. }, of) => {
            format!("MPS daemon of GPU {index}{}", of.replacen(" of", ",", 1))
        }
        (Subject::Unit { name }, _) => format!("MPS daemon {name}"),
        _ => "MPS control daemon".to_owned(),
    }
}

fn property(seat: &Seat, name: &str, of: &str) -> Property {
    match seat {
        Seat::Node => Property::from(name.to_owned()),
        Seat::Device(_) => Property::from(format!("MPS {name}{of}")),
    }
}

fn words(daemon: &Daemon, seat: &Seat) -> &'static str {
    match (daemon.answers, daemon.unit.active, daemon.unit.enabled) {
        (true, true, enabled) if enabled || seat.is_mig() => "started",
        (true, true, _) => "started, not enabled",
        (true, false, _) => "started outside of systemd",
        (false, _, _) if daemon.stale => "broken (stale socket)",
        (false, true, _) => "broken (it does not answer)",
        (false, false, true) => "stopped, enabled",
        (false, false, false) => "stopped",
    }
}

/// Returns the seat of a target, if its device exists.
fn seat(state: &State, target: &Target) -> Option<Seat> {
    match target {
        Target::Node => Some(Seat::Node),
        Target::Gpu(uuid) => state.gpu(uuid).map(|gpu| Seat::Device(gpu.uuid.clone())),
        Target::Mig { gpu, placement, inner } => {
            let mut instances = state.gpu(gpu)?.present().iter();
            let instance = instances.find(|instance| instance.placement == *placement)?;
            let compute = instance.computes.iter().find(|compute| compute.inner == *inner)?;
            compute.uuid.clone().map(Seat::Device)
        }
    }
}

/// Stops daemons. `later` is the state in which others start.
pub(super) fn stop(stage: &mut Stage, state: &State, later: &State, desired: &Desired) {
    let wanted: BTreeSet<Seat> = (desired.mps.daemons.iter())
        .filter(|(_, want)| want.value != MpsWant::Stopped)
        .filter_map(|(target, _)| seat(later, target))
        .collect();
    for (seat, daemon) in &state.host.mps.daemons {
        if wanted.contains(seat) {
            continue;
        }
        let Some(member) = stopper(state, later, desired, seat) else { continue };
        if *seat == Seat::Node
            && !(daemon.answers || daemon.unit.active || daemon.unit.enabled || daemon.stale)
        {
            continue;
        }
        let class = if daemon.answers || daemon.unit.active { Disruption::Clients } else { Disruption::Live };
        let (subject, of) = about(state, seat);
        let name = if *seat == Seat::Node { "control daemon" } else { "daemon" };
        let (property, to) = match &subject {
            Subject::Unit { .. } => (Property::STATE, "removed, because its device is gone"),
            _ => (property(seat, name, &of), "stopped"),
        };
        // A unit that does not run and is not wanted is removed.
        let to = if *seat != Seat::Node && words(daemon, seat) == to { "removed" } else { to };
        let at = stage.change(member, Change::new(subject, property, words(daemon, seat), to, class));
        served(stage, state, seat);
        stage.step(member, Act::StopMps { seat: seat.clone() }, &[at]);
    }
}

/// Returns the member whose declaration ends a daemon, if any does.
fn stopper(state: &State, later: &State, desired: &Desired, seat: &Seat) -> Option<usize> {
    let wants = &desired.mps;
    let first = || {
        wants
            .daemons
            .values()
            .map(|want| want.member)
            .chain(wants.covered.values().map(|want| want.member))
            .min()
    };
    let Seat::Device(uuid) = seat else {
        let stopped = wants.daemons.get(&Target::Node).map(|want| want.member);
        // A node has one daemon, or one for each device.
        let devices = wants.daemons.iter().filter(|(target, _)| **target != Target::Node);
        return stopped.or_else(|| devices.map(|(_, want)| want.member).min());
    };
    match (state.device(uuid), later.device(uuid)) {
        (Some((gpu, _)), None) => {
            let layout = desired.gpus.get(&gpu.uuid);
            let layout = layout.and_then(|wants| {
                wants.layout.as_ref().map(|want| want.member).or(wants.mig.as_ref().map(|want| want.member))
            });
            wants.covered.get(&gpu.uuid).map(|want| want.member).or(layout)
        }
        (Some((gpu, _)), Some(_)) => wants.covered.get(&gpu.uuid).map(|want| want.member),
        (None, _) => first(),
    }
}

/// Notes the GPU of a device, so that only its clients are in the way.
fn served(stage: &mut Stage, state: &State, seat: &Seat) {
    if let Seat::Device(uuid) = seat
        && let Some((gpu, _)) = state.device(uuid)
    {
        stage.served.insert(uuid.clone(), gpu.uuid.clone());
    }
}

/// Starts daemons, or tells those that run their limits.
pub(super) fn start(stage: &mut Stage, state: &State, desired: &Desired) {
    let program = state.host.mps.program.as_deref().unwrap_or(mps::PROGRAM);
    for (target, want) in &desired.mps.daemons {
        let (MpsWant::Started(serving), Some(seat)) = (&want.value, seat(state, target)) else { continue };
        let text = serving.unit_text(&seat, program);
        let daemon = state.host.mps.daemon(&seat);
        let (subject, of) = about(state, &seat);
        let runs = daemon.answers && daemon.unit.active && (daemon.unit.enabled || seat.is_mig());
        let told = runs && daemon.unit_text.as_deref().is_some_and(|old| mps::tells_limits(old, &text));
        // A daemon that must be restarted ends its clients.
        let class = if daemon.answers && !told { Disruption::Clients } else { Disruption::Live };
        let mut made = Vec::new();
        let mut change = |name: &str, from: Value, to: Value| {
            made.push(Change::new(subject.clone(), property(&seat, name, &of), from, to, class));
        };
        let percent = |share: u32| Value::quantity(share, Measure::Percent);
        if !runs {
            let name = if seat == Seat::Node { "control daemon" } else { "daemon" };
            change(name, words(&daemon, &seat).into(), "started".into());
        }
        if let Some(share) = serving.percentage
            && daemon.percentage != Some(share)
        {
            change("default active thread percentage", daemon.percentage.map(percent).into(), percent(share));
        }
        let limit = daemon.unit_text.as_deref().and_then(mps::pinned_of);
        if let Some(wanted) = &serving.pinned
            && limit.as_ref() != Some(wanted)
        {
            change("default pinned memory limit", limit.into(), wanted.into());
        }
        let user = daemon.unit_text.as_deref().and_then(mps::user_of).map(str::to_owned);
        if user != serving.user && runs {
            let words = |user: Option<String>| Value::text(user.unwrap_or_else(|| "every user".to_owned()));
            change("user", words(user), words(serving.user.clone()));
        }
        if made.is_empty() {
            if daemon.unit_text.as_ref() == Some(&text) {
                continue;
            }
            let from = daemon.unit_text.as_ref().map(|_| "outdated");
            let property = property(&seat, "unit file", &of);
            made.push(Change::new(subject, property, from, "as declared", class));
        }
        served(stage, state, &seat);
        let changes: Vec<usize> = made.into_iter().map(|change| stage.change(want.member, change)).collect();
        let serving = serving.clone();
        let act = match told {
            true => Act::LimitMps { seat, text, serving },
            false => Act::StartMps { seat, text, serving },
        };
        stage.step(want.member, act, &changes);
    }
}

/// Returns what people should know of the daemons that a run starts or limits, by member.
pub(super) fn warnings(state: &State, stages: &[&Stage]) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    for step in stages.iter().flat_map(|stage| &stage.steps) {
        let text = match &step.act {
            Act::StartMps { serving: Serving { user: None, .. }, seat, .. } => {
                let daemon = state.host.mps.daemon(seat);
                if daemon.answers && daemon.unit.active {
                    continue;
                }
                "every user of the node may be a client of MPS: one user after the other, and a fault of a client ends all \
                 clients on its GPU; where not all users trust each other, give `scope: gpu` and `user`, or separate them \
                 with MIG"
                    .to_owned()
            }
            Act::LimitMps { seat, .. } if state.host.mps.daemon(seat).servers > 0 => {
                let unit = seat.unit();
                format!(
                    "the server that the {} has keeps its limits; the new ones reach the servers that start after its clients \
                     have ended, or now with `systemctl restart {unit}`, which ends them",
                    label(state, seat)
                )
            }
            _ => continue,
        };
        if !all.contains(&(step.member, text.clone())) {
            all.push((step.member, text));
        }
    }
    all
}

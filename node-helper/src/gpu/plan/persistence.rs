//! The persistence daemon and the flag of each GPU: what starts, stops or is repaired.

use gpufleet_protocol::{
    Change, Disruption, Layer, Property, Subject, change::Value, tasks::PersistenceMode,
};

use super::{Act, Stage};
use crate::gpu::{
    clients::PERSISTENCED,
    desired::{Desired, GpuWants},
    persistenced::{Repair, START_DROP_IN, WANTS},
    state::{Gpu, State, Unit},
};

fn unit_words(unit: Unit) -> Value {
    let active = if unit.active { "active" } else { "inactive" };
    Value::list([active.to_owned(), Value::from(unit.enabled).to_string()])
}

/// The unit of the persistence daemon, which is to become so.
fn persistenced(unit: Unit, on: bool) -> Change {
    let to = unit_words(Unit { active: on, enabled: on, ..unit });
    let subject = Subject::unit("nvidia-persistenced");
    Change::new(subject, Property::STATE, unit_words(unit), to, Disruption::Live)
}

/// What a repair changes beside the unit's state.
fn repaired(repair: &Repair) -> Option<Change> {
    let file = |path: &str| Subject::File { path: path.to_owned() };
    let drop_in = || {
        let (path, _) = repair.drop_in()?;
        let to = Value::list(repair.settings());
        Some(Change::new(file(path), Property::CONTENT, Value::Absent, to, Disruption::Live))
    };
    match repair {
        Repair::Failures => None,
        Repair::Folder { user } => {
            Some(drop_in()?.with_note(format!("{user} cannot write /run/nvidia-persistenced")))
        }
        Repair::Start { command: Some(_), .. } => Some(
            drop_in()?
                .at(Layer::Boot)
                .with_note("otherwise each start of the daemon switches persistence off"),
        ),
        Repair::Start { command: None, .. } => Some(
            drop_in()?.at(Layer::Boot).with_note("otherwise systemd stops it where no other unit needs it"),
        ),
        Repair::NoStart => {
            let change =
                Change::new(file(START_DROP_IN), Property::TYPE, "file", Value::Absent, Disruption::Live);
            let note = "otherwise whatever starts the daemon switches persistence on";
            Some(change.at(Layer::Boot).with_note(note))
        }
        Repair::Leftover { path } => {
            let change = Change::new(file(path), Property::TYPE, "file", Value::Absent, Disruption::Live);
            Some(change.with_note("left by a daemon that does not run any more"))
        }
    }
}

pub(super) fn persistence_unit(stage: &mut Stage, state: &State, desired: &Desired) {
    let wants: Vec<_> = desired.gpus.values().filter_map(|wants| wants.persistence.as_ref()).collect();
    let first = |mode: PersistenceMode| wants.iter().filter(|w| w.value == mode).map(|w| w.member).min();
    let unit = state.host.persistenced;
    if let Some(member) = first(PersistenceMode::Daemon) {
        let comes = !(unit.active && unit.enabled);
        let mut change = persistenced(unit, true);
        if state.host.persistenced_start.is_static && !unit.enabled {
            change = change.with_note(format!("by {WANTS}, because its file has no [Install]"));
        }
        for repair in
            state.host.persistenced_repairs.iter().filter(|one| comes || one.is_done_while_it_runs())
        {
            let own = repaired(repair).map(|change| stage.change(member, change));
            if own.is_none() {
                change = change.with_note("it failed before, which systemd is told to forget");
            }
            let changes: Vec<usize> = own.into_iter().collect();
            stage.step(member, Act::RepairPersistenced(repair.clone()), &changes);
        }
        if comes {
            let at = stage.change(member, change);
            stage.step(member, Act::Persistenced { on: true }, &[at]);
        }
        return;
    }
    let all_off =
        wants.len() == state.gpus.len() && wants.iter().all(|want| want.value == PersistenceMode::Off);
    let off = first(PersistenceMode::Off).filter(|_| all_off);
    if let Some(member) = off
        && state.host.persistenced_start.has_drop_in
    {
        let repair = Repair::NoStart;
        let changes: Vec<usize> =
            repaired(&repair).map(|change| stage.change(member, change)).into_iter().collect();
        stage.step(member, Act::RepairPersistenced(repair), &changes);
    }
    if let Some(member) = first(PersistenceMode::Legacy).or(off)
        && (unit.active || unit.enabled || state.host.restarting.contains(&PERSISTENCED))
    {
        let mut change = persistenced(unit, false);
        if state.host.persistenced_start.is_static {
            let note = "its file has no [Install], so that what starts it at boot (a rule of udev?) does so again; \
                        `service: {masked: true}` keeps it down";
            change = change.with_note(note);
        }
        let at = stage.change(member, change);
        stage.step(member, Act::Persistenced { on: false }, &[at]);
        // The daemon switches off persistence of every GPU when it stops.
        for gpu in state.gpus.iter().filter(|gpu| gpu.persistence == Ok(true)) {
            let off = desired.gpus.get(&gpu.uuid).and_then(|wants| wants.persistence.as_ref());
            if off.is_none_or(|want| want.value != PersistenceMode::Off) {
                stage.step(member, Act::Persistence { uuid: gpu.uuid.clone(), on: true }, &[at]);
            }
        }
    }
}

pub(super) fn persistence_flag(stage: &mut Stage, gpu: &Gpu, wants: &GpuWants) {
    let (Some(want), Ok(now)) = (&wants.persistence, gpu.persistence) else { return };
    let on = want.value != PersistenceMode::Off;
    if now != on {
        let change = Change::new(gpu.subject(), Property::PERSISTENCE, now, on, Disruption::Live);
        let at = stage.change(want.member, change);
        stage.step(want.member, Act::Persistence { uuid: gpu.uuid.clone(), on }, &[at]);
    }
}

/// Returns a warning for each unit of somebody else that sets persistence at boot otherwise than a task declares, or beside
/// the daemon, where the flag alone does not tell whether the daemon runs.
pub(super) fn warnings(state: &State, desired: &Desired) -> Vec<(usize, String)> {
    let wants: Vec<_> = desired.gpus.values().filter_map(|wants| wants.persistence.as_ref()).collect();
    let first = |mode: PersistenceMode| wants.iter().filter(|w| w.value == mode).map(|w| w.member).min();
    let mut told = Vec::new();
    for setter in &state.host.persistence_setters {
        let (unit, place, command) = (&setter.unit, &setter.place, if setter.on { "-pm 1" } else { "-pm 0" });
        let on = first(PersistenceMode::Daemon).or_else(|| first(PersistenceMode::Legacy));
        let (member, effect) = match (
            setter.on,
            on,
            first(PersistenceMode::Daemon),
            first(PersistenceMode::Off),
        ) {
            (false, Some(member), ..) => (member, "which switches persistence off, against what is declared"),
            (true, _, _, Some(member)) => (member, "which switches persistence on, against what is declared"),
            (true, _, Some(member), None) => (
                member,
                "which switches persistence on without the daemon too, so that nobody notices where it does not run",
            ),
            _ => continue,
        };
        told.push((
            member,
            format!(
                "the unit {unit} runs `nvidia-smi {command}` at each boot ({place}), {effect}; if nothing else needs the unit: \
                 `systemctl disable {unit}`, otherwise take that command out of it"
            ),
        ));
    }
    told
}

//! What the next boot would set, for plans of reboots.

use gpufleet_protocol::{
    FailureKind,
    keep::{KeptState, Sealed},
    message::Mode,
    op::{GpuGroup, KeepState},
};

use super::{
    PROGRAM, Pin, Store, boot,
    kind::{judged, read},
    parsed, seal, units,
};
use crate::{
    deadline::Deadline,
    declare::Trouble,
    gpu::{Gpus, Kept},
    os::roots::Roots,
    world::{Entry, World},
};

/// Returns what the next boot would set of what the node keeps, or of what an earlier task of a prediction lets it keep.
pub fn at_boot(roots: &Roots, world: &World) -> Kept {
    let store = Store::of(roots);
    let there = world.entry(&store.state());
    match there {
        Ok(Entry::Absent) => return Kept::Nothing,
        Ok(_) => {}
        // The folder is only for root, and everybody sees the program.
        Err(_) if matches!(world.entry(&roots.path(PROGRAM)), Ok(Entry::Absent)) => return Kept::Nothing,
        Err(why) => {
            return Kept::Unknown(format!("whether this node keeps that for its boots is not known: {why}"));
        }
    }
    match (document(roots, world), hindrances(roots, world).into_iter().next()) {
        (Ok(None), _) => Kept::Nothing,
        (Err(why), _) | (Ok(Some(_)), Some(why)) => Kept::Refused(why),
        (Ok(Some((kept, _))), None) => {
            Kept::Sets { gpus: kept.gpus.into_iter().collect(), members: kept.members }
        }
    }
}

/// Returns what the node keeps, or what an earlier task of a prediction lets it keep, which has no signature.
///
/// # Errors
/// Why no boot would act on it.
pub(super) fn document(roots: &Roots, world: &World) -> Result<Option<(KeptState, Sealed)>, String> {
    let store = Store::of(roots);
    let text = |path: &std::path::Path| read(world, path).map_err(|trouble| trouble.text());
    let bytes = text(&store.state())?;
    let Some(sealed) = parsed::<Sealed>(&store.state(), bytes.as_deref())? else { return Ok(None) };
    let pin = parsed::<Pin>(&store.pin(), text(&store.pin())?.as_deref())?;
    Ok(Some((judged(world, roots, &sealed, pin.as_ref())?, sealed)))
}

/// Proves that the next boot can assert what a task lets the node keep.
///
/// # Errors
/// What it could not, or that the GPUs cannot be read.
pub fn prove(task: &KeepState, gpus: &mut Gpus, mode: Mode, deadline: &Deadline) -> Result<(), Trouble> {
    let Some(sealed) = &task.sealed else { return Ok(()) };
    let kept = seal::document(sealed).map_err(Trouble::invalid)?;
    let group = GpuGroup { members: kept.members, defer_to_reboot: false };
    let at_boot = gpus.at_boot(&group, mode == Mode::Predict, deadline);
    let at_boot = at_boot.map_err(|why| {
        Trouble::io(format!(
            "whether a boot can assert what is to be kept is unknown: the GPUs cannot be read: {why}"
        ))
    })?;
    let reasons = boot::left_by_a_boot(&group.members, &at_boot);
    if reasons.is_empty() {
        return Ok(());
    }
    Err(Trouble::failed(
        FailureKind::Refused,
        format!(
            "no boot could assert what the node would keep, so what it keeps stays as it was: {}; next step: declare it otherwise, \
             or if another playbook lets the node keep it, end that with `gpufleet keep remove` and run again",
            reasons.join("; ")
        ),
    ))
}

/// Returns what keeps a boot from asserting anything, whatever the document says.
pub(super) fn hindrances(roots: &Roots, world: &World) -> Vec<String> {
    let is_there = |path: &str| !matches!(world.entry(&roots.path(path)), Ok(Entry::Absent));
    let mut found = Vec::new();
    if !is_there(PROGRAM) {
        found.push(format!("{PROGRAM} is gone, so the next boot asserts nothing"));
    }
    if !is_there(units::WANTS) {
        found.push(format!("{} is not enabled, so the next boot asserts nothing", units::UNIT));
    }
    found
}

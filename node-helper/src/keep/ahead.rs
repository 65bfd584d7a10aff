//! What the next boot would set, for plans of reboots.

use gpufleet_protocol::keep::Sealed;

use super::{
    PROGRAM, Pin, Store,
    kind::{judged, read},
    parsed, units,
};
use crate::{
    gpu::Kept,
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
    let text = |path: &std::path::Path| read(world, path).map_err(|trouble| trouble.text());
    let document = || {
        let bytes = text(&store.state())?;
        let Some(sealed) = parsed::<Sealed>(&store.state(), bytes.as_deref())? else { return Ok(None) };
        let pin = parsed::<Pin>(&store.pin(), text(&store.pin())?.as_deref())?;
        judged(world, roots, &sealed, pin.as_ref()).map(Some)
    };
    match (document(), hindrances(roots, world).into_iter().next()) {
        (Ok(None), _) => Kept::Nothing,
        (Err(why), _) | (Ok(Some(_)), Some(why)) => Kept::Refused(why),
        (Ok(Some(kept)), None) => Kept::Sets { gpus: kept.gpus.into_iter().collect(), members: kept.members },
    }
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

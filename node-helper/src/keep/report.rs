//! What a node keeps, and what came of it.

use std::{fs::File, time::Duration};

use gpufleet_protocol::{
    keep::{KeptBoot, KeptReport, KeptVerdict, Sealed},
    op::GpuMember,
};
use rustix::fs::{FlockOperation, flock};

use super::{Store, ahead::hindrances, authentic, gate, kept, may, read, seal, units};
use crate::{deadline::Deadline, os::roots::Roots, process::Run, tasks::reboot, world::World};

/// Returns `None` if the node keeps nothing, or only root can tell.
pub fn report(roots: &Roots) -> Option<KeptReport> {
    if !may(roots) {
        return None;
    }
    let store = Store::of(roots);
    let sealed = read::<Sealed>(&store.state()).transpose()?;
    let mut report = KeptReport {
        run: String::new(),
        serial: 0,
        tasks: 0,
        holds: false,
        open: false,
        proven: false,
        problems: Vec::new(),
        boots: store.boots(),
    };
    let judged = sealed.and_then(|sealed| {
        report.proven = gate::is_open(roots, &sealed);
        report.open = report.proven;
        if let Ok(document) = seal::document(&sealed) {
            report.holds = document.holds();
            report.open |= !document.holds();
            report.tasks = document.members.len();
            (report.run, report.serial) = (document.run, document.serial);
        }
        authentic(roots, &sealed)
    });
    report.problems.extend(judged.err());
    report.problems.extend(hindrances(roots, &World::real()));
    let now = reboot::boot_id(roots);
    let of_now = |boot: &KeptBoot| now.as_ref() == Some(&boot.boot_id);
    let runs = is_alive(&store);
    for boot in report.boots.iter_mut().filter(|boot| boot.verdict == KeptVerdict::Begun) {
        if !(runs && of_now(boot)) {
            boot.reasons.push("it was cut off before its end".to_owned());
        }
    }
    // Proven also by the run that wrote the document, in the boot in which it did.
    if !report.proven && !report.boots.last().is_some_and(of_now) {
        let why = format!("nothing tells that this boot asserted it: `journalctl -b -u {}` may", units::UNIT);
        report.problems.push(why);
    }
    Some(report)
}

/// Returns the document if the node would act on it.
///
/// # Errors
/// If only root can tell.
pub fn document(roots: &Roots) -> Result<Option<String>, String> {
    if !may(roots) {
        return Err("only root can read what the node keeps".to_owned());
    }
    Ok(kept(roots).ok().flatten().map(|(_, sealed)| sealed.document))
}

/// Returns what the next boot would declare; `None` if the node would act on nothing, or only root can tell.
pub fn members(roots: &Roots) -> Option<Vec<GpuMember>> {
    let (state, _) = may(roots).then(|| kept(roots).ok().flatten()).flatten()?;
    Some(state.members)
}

/// Starts the unit again if it gave way to the run that ends now, or still waits for it.
pub fn resume(roots: &Roots) {
    if !may(roots) {
        return;
    }
    let store = Store::of(roots);
    let boots = store.boots();
    let last = boots.last().filter(|boot| reboot::boot_id(roots).as_ref() == Some(&boot.boot_id));
    let waits = last.is_some_and(|boot| match boot.verdict {
        KeptVerdict::Yielded => true,
        KeptVerdict::Begun => is_alive(&store),
        _ => false,
    });
    if waits {
        // Ignored, because the report of the next session tells that it yielded.
        let deadline = Deadline::after(Duration::from_secs(20));
        let _ = Run::new("systemctl").args(["restart", "--no-block", units::UNIT]).finish(&deadline);
    }
}

/// Whether a process asserts it now.
fn is_alive(store: &Store) -> bool {
    let Ok(file) = File::open(store.alive()) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

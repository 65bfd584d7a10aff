//! What a node keeps, and what came of it.

use std::{fs::File, time::Duration};

use gpufleet_protocol::{
    Change, OpOutcome, OpStatus,
    keep::{KeptBoot, KeptReport, KeptVerdict, Sealed},
    op::{GpuGroup, KeptStatus},
};
use rustix::fs::{FlockOperation, flock};

use super::{
    Store,
    ahead::{at_boot, document, hindrances},
    authentic, gate, may, read, seal, units,
};
use crate::{
    deadline::Deadline, declare::Trouble, gpu::Kept, os::roots::Roots, process::Run, tasks::reboot,
    world::World,
};

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

/// Answers a controller: the report, the document with its signature if a boot would act on it, and on demand how the GPUs
/// differ from what a boot sets, which `differences` finds.
///
/// # Errors
/// If only root can tell, or `differences` fails.
pub fn status(
    roots: &Roots,
    world: &World,
    asked: KeptStatus,
    differences: impl FnOnce(&GpuGroup) -> Result<Vec<Change>, Trouble>,
) -> Result<OpOutcome, Trouble> {
    if !may(roots) {
        return Err(Trouble::invalid("only root can read what the node keeps"));
    }
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    if let (true, Kept::Sets { members, .. }) = (asked.compare, at_boot(roots, world)) {
        outcome.changes = differences(&GpuGroup { members, defer_to_reboot: false })?;
    }
    let sealed = document(roots, world).ok().flatten().map(|(_, sealed)| serde_json::to_value(sealed));
    outcome.data.extend(sealed.transpose().ok().flatten().map(|sealed| ("sealed".to_owned(), sealed)));
    let kept = report(roots).map(serde_json::to_value).transpose();
    outcome.data.extend(kept.ok().flatten().map(|kept| ("kept".to_owned(), kept)));
    Ok(outcome)
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
    if let Some(systemctl) = roots.tool("systemctl").filter(|_| waits) {
        // Ignored, because the report of the next session tells that it yielded.
        let deadline = Deadline::after(Duration::from_secs(20));
        let _ = Run::new(systemctl).args(["restart", "--no-block", units::UNIT]).finish(&deadline);
    }
}

/// Whether a process asserts it now.
fn is_alive(store: &Store) -> bool {
    let Ok(file) = File::open(store.alive()) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

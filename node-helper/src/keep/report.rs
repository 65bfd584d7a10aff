//! What a node keeps, and what came of it.

use std::fs::File;

use gpufleet_protocol::keep::{KeptBoot, KeptReport, KeptVerdict, Sealed};
use rustix::fs::{FlockOperation, flock};

use super::{PROGRAM, Store, gate, kept, read, seal, units};
use crate::{os::roots::Roots, tasks::reboot};

/// Returns `None` if the node keeps nothing.
pub fn report(roots: &Roots) -> Option<KeptReport> {
    let store = Store::of(roots);
    let sealed = read::<Sealed>(&store.state()).transpose()?;
    let mut report = KeptReport {
        run: String::new(),
        serial: 0,
        tasks: 0,
        holds: false,
        open: false,
        problems: Vec::new(),
        boots: store.boots(),
    };
    if let Ok(sealed) = &sealed {
        report.open = gate::is_open(roots, sealed);
        if let Ok(document) = seal::document(sealed) {
            report.holds = document.holds();
            report.open |= !document.holds();
            report.tasks = document.members.len();
            (report.run, report.serial) = (document.run, document.serial);
        }
    }
    report.problems.extend(kept(roots).err());
    if !roots.path(PROGRAM).exists() {
        report.problems.push(format!("{PROGRAM} is gone, so the next boot asserts nothing"));
    }
    if roots.path(units::WANTS).symlink_metadata().is_err() {
        report.problems.push(format!("{} is not enabled, so the next boot asserts nothing", units::UNIT));
    }
    let now = reboot::boot_id(roots);
    let of_now = |boot: &KeptBoot| now.as_ref() == Some(&boot.boot_id);
    let runs = is_alive(&store);
    for boot in report.boots.iter_mut().filter(|boot| boot.verdict == KeptVerdict::Begun) {
        if !(runs && of_now(boot)) {
            boot.reasons.push("it was cut off before its end".to_owned());
        }
    }
    // Opened also by the run that wrote the document, in the boot in which it did.
    let opened = sealed.as_ref().is_ok_and(|sealed| gate::is_open(roots, sealed));
    if !opened && !report.boots.last().is_some_and(of_now) {
        let why = format!("nothing tells that this boot asserted it: `journalctl -b -u {}` may", units::UNIT);
        report.problems.push(why);
    }
    Some(report)
}

/// Whether a process asserts it now.
fn is_alive(store: &Store) -> bool {
    let Ok(file) = File::open(store.alive()) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

//! The driver's errors (Xid) since the kernel booted.
//!
//! Of the kernel's log ([`kernel_log`]) only what has not been settled since counts: a line stays in the log, but its
//! GPU need not stay broken.

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::{
    health::Verdict,
    nvml::{Code, recovery},
    signal::RecordSort,
    xid::{Asks, Said, asks, name, said},
};

use super::{
    Found, Seen,
    gpus::{NO_GPU, lacks, none},
};
use crate::{
    deadline::Deadline,
    os::roots::Roots,
    signals::kernel_log::{self, Log, is_at},
};

/// Largest number of codes that are named.
const NAMED: usize = 6;

/// Judges the log. The reading tells whether there is a GPU at all, and what the driver asks for now.
pub fn check(seen: &Seen, roots: &Roots, deadline: &Deadline) -> Found {
    if none(seen) {
        return (Verdict::NotApplicable, NO_GPU.to_owned());
    }
    let log = kernel_log::read(roots, deadline);
    let told = judge(&log, seen);
    match &log.gap {
        Some(gap) if told.0 != Verdict::Fail => (Verdict::Unknown, gap.why.clone()),
        _ => told,
    }
}

/// Returns the recovery action that the driver asks for now; `None` if it cannot be read.
fn recovery_of(seen: &Seen, device: &str) -> Option<u32> {
    let gpus = &seen.snapshot.as_ref().ok()?.gpus;
    let gpu = gpus.iter().find(|gpu| gpu.pci.as_ref().is_ok_and(|pci| is_at(pci, device)))?;
    gpu.recovery_action.ok()
}

fn judge(log: &Log, seen: &Seen) -> Found {
    let mut counted: BTreeMap<(u32, &str), (usize, Option<u64>)> = BTreeMap::new();
    let (mut harmless, mut settled) = (0, 0);
    for xid in log.lines.iter().filter(|line| line.sort == RecordSort::Xid) {
        let (Some(code), Some(device)) = (xid.code, xid.device.as_deref()) else { continue };
        let contained = match said(code, xid.text()) {
            Said::Follows | Said::Nonfatal => true,
            Said::Fatal => false,
            Said::Nothing => asks(code) == Asks::Driver && recovery_of(seen, device) == Some(0),
        };
        if asks(code) == Asks::Nothing || contained {
            harmless += 1;
        } else if log.is_settled(xid, &seen.resets) {
            settled += 1;
        } else {
            let (count, last) = counted.entry((code, device)).or_default();
            *count += 1;
            *last = xid.at.max(*last);
        }
    }
    // Source: NVIDIA, GPU memory error management: the driver's own recovery action takes precedence over any table of
    // codes.
    let (mut told, mut unread) = (Vec::new(), Vec::new());
    for gpu in seen.snapshot.iter().flat_map(|snapshot| &snapshot.gpus) {
        match gpu.recovery_action {
            Ok(action) => told.extend(recovery(action).map(|asks| {
                format!("GPU {}: the driver asks for {asks} (recovery action {action})", gpu.index)
            })),
            // Drivers before 550 do not know the field.
            Err(code) if lacks(code) || code == Code::INVALID_ARGUMENT => {}
            Err(code) => {
                unread.push(format!("GPU {}: the recovery action cannot be read: {code}", gpu.index))
            }
        }
    }
    told.extend(counted.iter().take(NAMED).map(|((code, device), (count, last))| {
        let name = match name(*code) {
            "" => String::new(),
            name => format!(" ({name})"),
        };
        let times = if *count > 1 { format!(", {count} times") } else { String::new() };
        // As `dmesg` writes it, so that the line can be found there.
        let at =
            last.map_or_else(String::new, |at| format!(" at [{}.{:06}]", at / 1_000_000, at % 1_000_000));
        format!("Xid {code}{name} of {device}{at}{times}: {}", asks(*code).next_step())
    }));
    if counted.len() > NAMED {
        told.push(format!("{} more", counted.len() - NAMED));
    }
    let off = log.lines.iter().filter(|line| line.is_off_the_bus()).map(|line| line.device.as_deref());
    let with_xid = |gpu: &str| counted.keys().any(|(code, device)| *code == 79 && is_at(gpu, device));
    let off: BTreeSet<_> = off.filter(|gpu| !gpu.is_some_and(with_xid)).collect();
    told.extend(off.into_iter().take(NAMED).map(|gpu| {
        let gpu = gpu.unwrap_or("a GPU");
        format!("the driver says that {gpu} has fallen off the bus: {}", Asks::Reboot.next_step())
    }));
    if !told.is_empty() {
        told.extend(unread);
        return (Verdict::Fail, told.join("; "));
    }
    if !unread.is_empty() {
        return (Verdict::Unknown, unread.join("; "));
    }
    let mut why = match harmless {
        0 => "no Xid since the node booted".to_owned(),
        count => format!("{count} Xids since the node booted, all of programs or for information"),
    };
    if settled > 0 {
        let of = if harmless == 0 { "no Xid since the node booted that still counts" } else { &why };
        why = format!("{of}, {settled} settled by a reset or a new start of the driver");
    }
    (Verdict::Ok, why)
}

#[cfg(test)]
#[path = "xid_tests.rs"]
mod tests;

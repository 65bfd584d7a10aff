//! Judgement over one reading of the GPUs. Pure.

use gpufleet_protocol::{
    health::Verdict,
    nvml::{Code, GpuReading},
};

use super::{FabricManager, Found, Seen};

pub const NO_GPU: &str = "there is no NVIDIA GPU on this node";

/// What one GPU says to a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    Fine,
    Wrong(String),
    Unreadable(String),
    /// This GPU does not have it.
    Absent,
}

/// Whether there is no GPU, as far as bus and driver tell.
pub fn none(seen: &Seen) -> bool {
    seen.on_bus == 0
        && match &seen.snapshot {
            Ok(snapshot) => snapshot.gpus.is_empty() && snapshot.unreadable.is_empty(),
            Err(unread) => unread.no_driver,
        }
}

pub fn count(seen: &Seen, expected: Option<u32>) -> Found {
    if none(seen) {
        return match expected {
            None | Some(0) => (Verdict::NotApplicable, NO_GPU.to_owned()),
            Some(expected) => (
                Verdict::Fail,
                format!("{NO_GPU}, and it had {expected}; next step: look at the PCI bus (lspci)"),
            ),
        };
    }
    let snapshot = match &seen.snapshot {
        Ok(snapshot) => snapshot,
        Err(unread) => return (Verdict::Unknown, unread.why.clone()),
    };
    if let Some((index, code)) = snapshot.unreadable.first() {
        return (Verdict::Fail, format!("GPU {index} is lost: {code}; next step: power-cycle the node"));
    }
    let have = u32::try_from(snapshot.gpus.len()).unwrap_or(u32::MAX);
    let (expected, source) = match expected {
        Some(expected) => (expected, "were here before"),
        None => (seen.on_bus, "are on the PCI bus"),
    };
    if have == expected {
        return (Verdict::Ok, format!("{have} GPUs"));
    }
    let next =
        if have < expected { "; next step: look for Xid errors, then power-cycle the node" } else { "" };
    (Verdict::Fail, format!("the driver lists {have} GPUs, and {expected} {source}{next}"))
}

pub fn fabric_manager(seen: &Seen) -> Found {
    if seen.switches == 0 {
        return (Verdict::NotApplicable, "there is no NVSwitch on this node".to_owned());
    }
    match seen.fabric_manager {
        FabricManager::Runs => (Verdict::Ok, "the fabric manager runs".to_owned()),
        FabricManager::Absent => (
            Verdict::Fail,
            "the fabric manager does not run; next step: `systemctl status nvidia-fabricmanager`, whose version must \
             be the driver's"
                .to_owned(),
        ),
        FabricManager::Unknown => {
            (Verdict::Unknown, "whether the fabric manager runs cannot be read".to_owned())
        }
    }
}

/// Asks every GPU; the worst answer counts.
pub fn each(seen: &Seen, ask: fn(&GpuReading) -> Says) -> Found {
    if none(seen) {
        return (Verdict::NotApplicable, NO_GPU.to_owned());
    }
    let snapshot = match &seen.snapshot {
        Ok(snapshot) => snapshot,
        Err(unread) => return (Verdict::Unknown, unread.why.clone()),
    };
    let (mut wrong, mut unread, mut fine) = (Vec::new(), Vec::new(), 0);
    for gpu in &snapshot.gpus {
        match ask(gpu) {
            Says::Fine => fine += 1,
            Says::Absent => {}
            Says::Wrong(why) => wrong.push(format!("GPU {}: {why}", gpu.index)),
            Says::Unreadable(why) => unread.push(format!("GPU {}: {why}", gpu.index)),
        }
    }
    for (index, code) in &snapshot.unreadable {
        unread.push(format!("GPU {index} cannot be read: {code}"));
    }
    if !wrong.is_empty() {
        wrong.extend(unread);
        return (Verdict::Fail, wrong.join("; "));
    }
    if !unread.is_empty() {
        return (Verdict::Unknown, unread.join("; "));
    }
    match (fine, snapshot.gpus.len()) {
        (_, 0) => (Verdict::Unknown, "the driver lists no GPU".to_owned()),
        (0, count) => (Verdict::NotApplicable, format!("none of the {count} GPUs has it")),
        (fine, count) if fine == count => (Verdict::Ok, format!("{count} GPUs")),
        (fine, count) => (Verdict::Ok, format!("{fine} of {count} GPUs, the others do not have it")),
    }
}

/// Whether NVML says that a GPU or driver lacks the thing, and not that reading it went wrong.
const fn lacks(code: Code) -> bool {
    matches!(code, Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND)
}

fn on(value: bool) -> &'static str {
    if value { "enabled" } else { "disabled" }
}

pub fn mig(gpu: &GpuReading) -> Says {
    match gpu.mig {
        Ok(mode) if mode.current == mode.pending => Says::Fine,
        Ok(mode) => Says::Wrong(format!(
            "MIG mode is {} and will be {} after the next reset; next step: reset the GPU or reboot",
            on(mode.current),
            on(mode.pending)
        )),
        Err(code) if lacks(code) => Says::Absent,
        Err(code) => Says::Unreadable(format!("MIG mode: {code}")),
    }
}

pub fn persistence(gpu: &GpuReading) -> Says {
    match gpu.persistence {
        Ok(true) => Says::Fine,
        Ok(false) => {
            Says::Wrong("persistence is off; next step: `systemctl start nvidia-persistenced`".to_owned())
        }
        Err(code) if lacks(code) => Says::Absent,
        Err(code) => Says::Unreadable(format!("persistence: {code}")),
    }
}

/// Source of what each finding asks for: NVIDIA's GPU memory error management (row remapping: pending needs a reset, a
/// failure qualifies for replacement) and DCGM, which drains and resets for any uncorrected volatile error.
pub fn ecc(gpu: &GpuReading) -> Says {
    let mode = match gpu.ecc {
        Ok(mode) => mode,
        Err(code) if lacks(code) => return Says::Absent,
        Err(code) => return Says::Unreadable(format!("ECC mode: {code}")),
    };
    let mut wrong = Vec::new();
    let mut unread = Vec::new();
    if mode.current != mode.pending {
        wrong.push(format!(
            "ECC is {} and will be {} after the next reset; next step: reset the GPU or reboot",
            on(mode.current),
            on(mode.pending)
        ));
    }
    match gpu.ecc_uncorrected {
        Ok(0) => {}
        Ok(count) => wrong.push(format!(
            "{count} uncorrected memory errors since the driver was loaded; next step: reset the GPU, and replace it \
             when they come back"
        )),
        // Why fine: without ECC nothing is counted.
        Err(code) if lacks(code) && !mode.current => {}
        Err(code) => unread.push(format!("uncorrected memory errors: {code}")),
    }
    match gpu.remapped_rows {
        Ok(rows) if rows.failed => {
            wrong.push("a row of memory could not be remapped; next step: replace the board".to_owned());
        }
        Ok(rows) if rows.pending => {
            wrong.push("a row of memory waits to be remapped; next step: reset the GPU".to_owned());
        }
        Ok(_) => {}
        // Why no word: GPUs before Ampere do not remap, and with MIG instances none tells.
        Err(code) if lacks(code) => {}
        Err(code) => unread.push(format!("remapped rows: {code}")),
    }
    match (wrong.is_empty(), unread.is_empty()) {
        (false, _) => Says::Wrong(wrong.join("; ")),
        (true, false) => Says::Unreadable(unread.join("; ")),
        (true, true) => Says::Fine,
    }
}

#[cfg(test)]
#[path = "gpus_tests.rs"]
mod tests;

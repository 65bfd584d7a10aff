//! Judgement over one reading of the GPUs. Pure.

use gpufleet_protocol::{
    health::Verdict,
    nvml::{Code, GpuReading, Staged, recovery},
};

use super::{FabricManager, Found, Seen};

pub const NO_GPU: &str = "there is no NVIDIA GPU on this node";

/// What one GPU says to a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    Fine,
    /// Fine, and worth a sentence.
    Noted(String),
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
        // Source: nvml.h and the driver's InfoROM messages.
        let next = match *code {
            Code::RESET_REQUIRED => "reset the GPU",
            Code(14) => "replace the board",
            _ => "power-cycle the node",
        };
        return (Verdict::Fail, format!("GPU {index} is lost: {code}; next step: {next}"));
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
    let mut noted = String::new();
    for gpu in &snapshot.gpus {
        match ask(gpu) {
            Says::Fine => fine += 1,
            Says::Noted(what) => {
                fine += 1;
                noted.push_str(&format!("; GPU {}: {what}", gpu.index));
            }
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
        (fine, count) if fine == count => (Verdict::Ok, format!("{count} GPUs{noted}")),
        (fine, count) => (Verdict::Ok, format!("{fine} of {count} GPUs, the others do not have it{noted}")),
    }
}

/// Whether NVML says that a GPU or driver lacks the thing, and not that reading it went wrong.
pub const fn lacks(code: Code) -> bool {
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

/// What uncorrected errors since the driver was loaded mean.
///
/// Source: NVIDIA, GPU memory error management: from Ampere on an error in DRAM is contained to the program that met it,
/// and its page is taken out of use; the driver says itself when more is needed. Totals over the life of a board are
/// history and do not count.
fn uncorrected(gpu: &GpuReading, mode: Staged) -> Says {
    /// `NVML_DEVICE_ARCH_TURING`, the last without containment.
    const TURING: u32 = 6;
    let count = match gpu.ecc_uncorrected {
        Ok(0) => return Says::Fine,
        Ok(count) => count,
        // Why fine: without ECC nothing is counted, and beside MIG instances the whole GPU's counters are refused.
        Err(code) if lacks(code) && (!mode.current || gpu.mig.is_ok_and(|mig| mig.current)) => {
            return Says::Fine;
        }
        Err(code) => return Says::Unreadable(format!("uncorrected memory errors: {code}")),
    };
    let told = format!("{count} uncorrected memory errors since the driver was loaded");
    let reset = |why: &str| {
        Says::Wrong(format!("{told}, {why}; next step: reset the GPU, and replace it when they come back"))
    };
    if gpu.architecture.is_ok_and(|architecture| architecture <= TURING) {
        return reset("which this generation does not contain");
    }
    match gpu.ecc_uncorrected_sram {
        Ok(0) => {}
        Ok(sram) => return reset(&format!("{sram} of them in SRAM, which are not contained")),
        Err(code) if lacks(code) => {}
        Err(code) => return Says::Unreadable(format!("{told}; those in SRAM: {code}")),
    }
    match gpu.recovery_action.map(recovery) {
        Ok(None) => Says::Noted(format!("{told}, contained; a reset of the GPU when it is idle clears them")),
        Ok(Some(asks)) => reset(&format!("and the driver asks for {asks}")),
        Err(_) => reset("and this driver does not tell whether they still matter"),
    }
}

/// Source of what each finding asks for: NVIDIA's GPU memory error management. Row remapping: pending needs a reset, a
/// failure qualifies for replacement.
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
    let mut noted = None;
    match uncorrected(gpu, mode) {
        Says::Wrong(why) => wrong.push(why),
        Says::Unreadable(why) => unread.push(why),
        Says::Noted(what) => noted = Some(what),
        Says::Fine | Says::Absent => {}
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
        (true, true) => noted.map_or(Says::Fine, Says::Noted),
    }
}

#[cfg(test)]
#[path = "gpus_tests.rs"]
mod tests;

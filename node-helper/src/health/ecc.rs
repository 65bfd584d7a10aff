//! `ecc`: no pending mode, no uncorrected error that still matters, no memory row that failed to be remapped.

use gpufleet_protocol::nvml::{GpuReading, Staged, recovery};

use super::{
    Found, Seen,
    gpus::{Says, each, lacks, on},
};

pub fn check(seen: &Seen) -> Found {
    each(seen, of)
}

/// Judges uncorrected errors since the driver was loaded.
///
/// Source: NVIDIA, GPU memory error management: from Ampere on, an error in DRAM is contained to the program that hit
/// it, and its page is retired; the driver itself reports when more is needed. Totals over the life of a board do not
/// count.
fn uncorrected(gpu: &GpuReading, mode: Staged) -> Says {
    /// `NVML_DEVICE_ARCH_TURING`, the last architecture without containment.
    const TURING: u32 = 6;
    let count = match gpu.ecc_uncorrected {
        Ok(0) => return Says::Fine,
        Ok(count) => count,
        // Fine: without ECC nothing is counted, and with MIG instances the counters of the whole GPU are refused.
        Err(code) if lacks(code) && (!mode.current || gpu.mig.is_ok_and(|mig| mig.current)) => {
            return Says::Fine;
        }
        Err(code) => return Says::Unreadable(format!("uncorrected memory errors: {code}")),
    };
    let told = format!("{count} uncorrected memory errors since the driver was loaded");
    let reset = |why: &str| {
        Says::Wrong(format!(
            "{told}, {why}; next step: with the node drained, reset the GPU, and run the field diagnostics if they \
             come back"
        ))
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

/// Judges one GPU.
///
/// Source of each next step: NVIDIA, GPU memory error management. Row remapping: a pending one needs a reset, a failed
/// one qualifies the board for replacement.
fn of(gpu: &GpuReading) -> Says {
    let mode = match gpu.ecc {
        Ok(mode) => mode,
        Err(code) if lacks(code) => return Says::Absent,
        Err(code) => return Says::Unreadable(format!("ECC mode: {code}")),
    };
    let mut wrong = Vec::new();
    let mut unread = Vec::new();
    if mode.current != mode.pending {
        wrong.push(format!(
            "ECC is {} and will be {} after the next reset; next step: declare with `gpu_ecc` which of them is meant, before \
             anything resets the GPU",
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
            wrong.push("a row of memory could not be remapped; next step: keep the node drained, run the field diagnostics, and have the \
                 board replaced".to_owned());
        }
        Ok(rows) if rows.pending => {
            wrong.push(
                "a row of memory waits to be remapped; next step: with the node drained, reset the GPU"
                    .to_owned(),
            );
        }
        Ok(_) => {}
        // Ignored: GPUs before Ampere do not remap rows, and with MIG instances the value cannot be read.
        Err(code) if lacks(code) => {}
        Err(code) => unread.push(format!("remapped rows: {code}")),
    }
    match (wrong.is_empty(), unread.is_empty()) {
        (false, _) => Says::Wrong(wrong.join("; ")),
        (true, false) => Says::Unreadable(unread.join("; ")),
        (true, true) => noted.map_or(Says::Fine, Says::Noted),
    }
}

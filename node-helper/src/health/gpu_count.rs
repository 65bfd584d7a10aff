//! `gpu_count`: there are as many GPUs as before, and each answers.

use gpufleet_protocol::{health::Verdict, nvml::Code};

use super::{
    Found, Seen,
    gpus::{NO_GPU, none},
};

/// Compares with the number before, or with the PCI bus if that is unknown or no driver told it.
pub fn check(seen: &Seen, expected: Option<u32>) -> Found {
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
            Code::RESET_REQUIRED => "with the node drained, reset the GPU",
            Code(14) => "keep the node drained, and have the board replaced",
            _ => "with the node drained, reboot it, and power it off and on if the GPU does not come back",
        };
        return (Verdict::Fail, format!("GPU {index} is lost: {code}; next step: {next}"));
    }
    let visible = snapshot.gpus.len();
    let drained: Vec<&str> = snapshot.drained.iter().map(|gpu| gpu.pci.as_str()).collect();
    let have = u32::try_from(visible + drained.len()).unwrap_or(u32::MAX);
    let (expected, source) = match expected {
        Some(expected @ 1..) => (expected, "were here before"),
        // Where no driver ran, or one that did not answer, nothing told how many there are.
        None | Some(0) => (seen.on_bus, "are on the PCI bus"),
    };
    if have == expected && !drained.is_empty() {
        return (Verdict::Ok, format!("{}, and drained: {}", super::gpus_text(visible), drained.join(", ")));
    }
    if have == expected {
        return (Verdict::Ok, super::gpus_text(have as usize));
    }
    let next = match have < expected {
        true => {
            "; next step: look for Xid errors; with the node drained, reboot it, and power it off and on if they do \
             not come back"
        }
        false => "",
    };
    (
        Verdict::Fail,
        format!("the driver lists {}, and {expected} {source}{next}", super::gpus_text(have as usize)),
    )
}

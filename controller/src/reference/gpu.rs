//! Texts about the hardware that the GPU kinds declare: what is read and written, and how long it lasts.

use std::fmt::Write as _;

use gpufleet_protocol::tasks::{HARDWARE, Hardware, KINDS, KindInfo};

/// Returns the hardware facts of a kind; `None` for a kind that declares nothing of GPUs.
fn hardware(kind: &KindInfo) -> Option<&'static Hardware> {
    HARDWARE.iter().find(|(name, _)| *name == kind.name).map(|(_, hardware)| hardware)
}

/// The facts as the manual of a kind ends with them; empty for other kinds.
pub(super) fn hardware_text(kind: &KindInfo) -> String {
    let Some(hardware) = hardware(kind) else { return String::new() };
    let mut out = String::from("\nhardware\n");
    for (name, text) in rows(hardware) {
        let _ = writeln!(out, "  {name:22}{text}");
    }
    if !hardware.beliefs.is_empty() {
        out.push_str("\nwidely believed, and not so\n");
    }
    for belief in hardware.beliefs {
        let _ = writeln!(out, "  {}\n      {}", belief.believed, belief.fact);
    }
    out
}

fn rows(hardware: &Hardware) -> [(&'static str, String); 9] {
    [
        ("reads", hardware.reads.join(", ")),
        ("writes", hardware.writes.join(", ")),
        ("takes effect", hardware.takes_effect.to_owned()),
        ("survives a reset", hardware.survives_reset.to_string()),
        ("survives last client", hardware.survives_last_client.to_string()),
        ("survives a reload", hardware.survives_reload.to_string()),
        ("survives a reboot", hardware.survives_reboot.to_string()),
        ("architectures", hardware.architectures.to_owned()),
        ("source", hardware.source.to_owned()),
    ]
}

/// Returns the content of docs/reference/gpu.md.
pub fn gpu_markdown() -> String {
    let mut out = String::from(
        "# GPU kinds and the hardware\n\n\
         Made from the registry; a test keeps this file true (`make reference` rewrites it). What a kind declares, with its \
         parameters, is in [kinds.md](kinds.md).\n\nThe last client is that of a GPU without persistence: the driver \
         forgets then. What is lost at a reset or reboot of a play, the play sets again before its next task, and proves at \
         its end.\n\n\
         | kind | takes effect | disturbs at most | reset | last client | driver reload | reboot |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let all = || KINDS.iter().filter_map(|kind| Some((kind, hardware(kind)?)));
    for (kind, hardware) in all() {
        let lasts = [
            hardware.survives_reset,
            hardware.survives_last_client,
            hardware.survives_reload,
            hardware.survives_reboot,
        ];
        let lasts: Vec<String> = lasts.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            out,
            "| [`{0}`](#{0}) | {1} | {2} | {3} |",
            kind.name,
            hardware.takes_effect,
            kind.disruption,
            lasts.join(" | ")
        );
    }
    for (kind, hardware) in all() {
        let _ = write!(out, "\n## {}\n\n{}\n\n", kind.name, kind.summary);
        for (title, entries) in [("Reads", hardware.reads), ("Writes", hardware.writes)] {
            let entries: Vec<String> = entries.iter().map(|entry| format!("`{entry}`")).collect();
            let _ = writeln!(out, "* {title}: {}.", entries.join(", "));
        }
        let _ = writeln!(out, "* Architectures: {}.", hardware.architectures);
        let _ = writeln!(out, "* Source: {}.", hardware.source);
        if !hardware.beliefs.is_empty() {
            out.push_str("\n| widely believed | what is so |\n|---|---|\n");
        }
        for belief in hardware.beliefs {
            let _ = writeln!(out, "| {} | {} |", belief.believed, belief.fact);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::tasks::{GpuDrainState, GpuDriver, Lasts};

    use super::*;

    #[test]
    fn the_reference_file_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/gpu.md");
        let wanted = gpu_markdown();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == wanted, "docs/reference/gpu.md is out of date: run `make reference`");
    }

    #[test]
    fn every_gpu_kind_answers_and_no_other_does() {
        for kind in KINDS {
            let Some(hardware) = hardware(kind) else {
                assert!(!kind.gpus && hardware_text(kind).is_empty(), "{}", kind.name);
                continue;
            };
            assert!(kind.gpus || kind.is::<GpuDriver>() || kind.is::<GpuDrainState>(), "{}", kind.name);
            let lasts = [
                hardware.survives_reset,
                hardware.survives_last_client,
                hardware.survives_reload,
                hardware.survives_reboot,
            ];
            let told = lasts.iter().filter_map(|lasts| match lasts {
                Lasts::Partly(text) => Some(*text),
                _ => None,
            });
            let beliefs = hardware.beliefs.iter().flat_map(|belief| [belief.believed, belief.fact]);
            let all = told.chain(beliefs).chain(hardware.reads.iter().copied()).chain([
                hardware.takes_effect,
                hardware.architectures,
                hardware.source,
            ]);
            for text in all {
                assert!(!text.is_empty() && !text.contains(['|', '\n']), "{}: {text}", kind.name);
            }
            assert!(!hardware.reads.is_empty(), "{}", kind.name);
            let text = hardware_text(kind);
            assert!(hardware.beliefs.iter().all(|belief| text.contains(belief.fact)), "{text}");
        }
        assert!(
            hardware_text(gpufleet_protocol::tasks::find("gpu_mig").unwrap())
                .contains("enable MIG, then reboot")
        );
    }
}

//! Texts about the hardware that the GPU kinds declare, and about the kinds beside it: what is read and written, and how
//! long it lasts.

use std::fmt::Write as _;

use gpufleet_protocol::tasks::{
    BESIDE, Belief, Beside, GROUND, Ground, HARDWARE, Hardware, KINDS, KindInfo, Lasts,
};

/// Returns the hardware facts of a kind; `None` for a kind that declares nothing of GPUs.
fn hardware(kind: &KindInfo) -> Option<&'static Hardware> {
    HARDWARE.iter().find(|(name, _)| *name == kind.name).map(|(_, hardware)| hardware)
}

/// Returns the facts of a kind for what stands beside the GPUs.
fn beside(kind: &KindInfo) -> Option<(&'static Beside, &'static Ground)> {
    let (_, beside) = BESIDE.iter().find(|(name, _)| *name == kind.name)?;
    let (_, ground) = GROUND.iter().find(|(name, _)| *name == kind.name)?;
    Some((beside, ground))
}

/// A row of the table, whichever sort of kind it is.
struct Facts {
    reads: &'static [&'static str],
    writes: &'static [&'static str],
    takes_effect: &'static str,
    lasts: [Lasts; 4],
    architectures: &'static str,
    source: &'static str,
    beliefs: &'static [Belief],
}

impl Facts {
    /// `None` for a kind that has nothing to do with GPUs.
    fn of(kind: &KindInfo) -> Option<Self> {
        if let Some(of) = hardware(kind) {
            return Some(Self {
                reads: of.reads,
                writes: of.writes,
                takes_effect: of.takes_effect,
                lasts: [of.survives_reset, of.survives_last_client, of.survives_reload, of.survives_reboot],
                architectures: of.architectures,
                source: of.source,
                beliefs: of.beliefs,
            });
        }
        let (of, ground) = beside(kind)?;
        Some(Self {
            reads: ground.reads,
            writes: ground.writes,
            takes_effect: ground.takes_effect,
            lasts: [of.survives_reset, of.survives_last_client, of.survives_reload, of.survives_reboot],
            architectures: of.architectures,
            source: ground.source,
            beliefs: of.beliefs,
        })
    }
}

/// The facts as the manual of a kind ends with them; empty for other kinds. Of a kind beside the GPUs, what it reads and
/// writes follows with the facts of the system.
pub(super) fn hardware_text(kind: &KindInfo) -> String {
    let Some(facts) = Facts::of(kind) else { return String::new() };
    let mut out = String::from("\nhardware\n");
    let [reset, last_client, reload, reboot] = facts.lasts;
    let mut rows = Vec::new();
    if hardware(kind).is_some() {
        rows.extend([
            ("reads", facts.reads.join(", ")),
            ("writes", facts.writes.join(", ")),
            ("takes effect", facts.takes_effect.to_owned()),
        ]);
    }
    rows.extend([
        ("survives a reset", reset.to_string()),
        ("survives last client", last_client.to_string()),
        ("survives a reload", reload.to_string()),
        ("survives a reboot", reboot.to_string()),
        ("architectures", facts.architectures.to_owned()),
    ]);
    if hardware(kind).is_some() {
        rows.push(("source", facts.source.to_owned()));
    }
    for (name, text) in rows {
        let _ = writeln!(out, "  {name:22}{text}");
    }
    if !facts.beliefs.is_empty() {
        out.push_str("\nwidely believed, and not so\n");
    }
    for belief in facts.beliefs {
        let _ = writeln!(out, "  {}\n      {}", belief.believed, belief.fact);
    }
    out
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
    let all = || KINDS.iter().filter_map(|kind| Some((kind, Facts::of(kind)?)));
    for (kind, facts) in all() {
        let lasts: Vec<String> = facts.lasts.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            out,
            "| [`{0}`](#{0}) | {1} | {2} | {3} |",
            kind.name,
            facts.takes_effect,
            kind.disruption,
            lasts.join(" | ")
        );
    }
    for (kind, facts) in all() {
        let _ = write!(out, "\n## {}\n\n{}\n\n", kind.name, kind.summary);
        for (title, entries) in [("Reads", facts.reads), ("Writes", facts.writes)] {
            // What has code in it already stays as it is.
            let code =
                |entry: &&str| if entry.contains('`') { (*entry).to_owned() } else { format!("`{entry}`") };
            let entries: Vec<String> = entries.iter().map(code).collect();
            let _ = writeln!(out, "* {title}: {}.", entries.join(", "));
        }
        let _ = writeln!(out, "* Architectures: {}.", facts.architectures);
        let _ = writeln!(out, "* Source: {}.", facts.source);
        if !facts.beliefs.is_empty() {
            out.push_str("\n| widely believed | what is so |\n|---|---|\n");
        }
        for belief in facts.beliefs {
            let _ = writeln!(out, "| {} | {} |", belief.believed, belief.fact);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::tasks::{GpuDrainState, GpuDriver};

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
            let Some(facts) = Facts::of(kind) else {
                assert!(!kind.gpus && hardware_text(kind).is_empty(), "{}", kind.name);
                continue;
            };
            let of_gpus = kind.gpus || kind.is::<GpuDriver>() || kind.is::<GpuDrainState>();
            assert!(of_gpus != beside(kind).is_some(), "{}", kind.name);
            let told = facts.lasts.iter().filter_map(|lasts| match lasts {
                Lasts::Partly(text) => Some(*text),
                _ => None,
            });
            let beliefs = facts.beliefs.iter().flat_map(|belief| [belief.believed, belief.fact]);
            let all = told.chain(beliefs).chain(facts.reads.iter().copied()).chain([
                facts.takes_effect,
                facts.architectures,
                facts.source,
            ]);
            for text in all {
                assert!(!text.is_empty() && !text.contains(['|', '\n']), "{}: {text}", kind.name);
            }
            assert!(!facts.reads.is_empty() && !facts.writes.is_empty(), "{}", kind.name);
            let text = hardware_text(kind);
            assert!(facts.beliefs.iter().all(|belief| text.contains(belief.fact)), "{text}");
        }
        // What the users of the driver need stands in the same table.
        let table = gpu_markdown();
        for name in [
            "gpu_keep",
            "fabric_manager",
            "nvidia_imex",
            "dcgm",
            "cuda_compat",
            "container_toolkit",
            "docker_daemon",
            "gpudirect",
            "pci_settings",
        ] {
            assert!(table.contains(&format!("| [`{name}`](#{name}) |")), "{name}");
        }
        let clocks = hardware_text(gpufleet_protocol::tasks::find("gpu_clocks").unwrap());
        assert!(clocks.contains("NVML has no call that sets it or reads it ("), "{clocks}");
        assert!(
            hardware_text(gpufleet_protocol::tasks::find("gpu_mig").unwrap())
                .contains("enable MIG, then reboot")
        );
    }
}

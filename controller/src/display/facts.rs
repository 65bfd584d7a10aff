//! Hardware and driver facts as a table.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets};
use gpufleet_protocol::facts::{Facts, GpuFacts, GpuSystemState};

use super::{Style, clean, count};
use crate::report::{fold_names, hardware_class};

/// The column that may wrap.
const GPUS_COLUMN: usize = 1;

/// One node's facts, or why there are none.
#[derive(Clone, Copy, Debug)]
pub struct FactsRow<'a> {
    pub host: &'a str,
    pub facts: Result<&'a Facts, &'a str>,
}

/// One node a line; with `fold`, nodes that look the same share a line.
pub fn facts_table(rows: &[FactsRow<'_>], fold: bool, style: &Style) -> String {
    let mut lines: Vec<(Vec<&str>, [String; 7])> = Vec::new();
    let mut notes: Vec<(String, Vec<&str>)> = Vec::new();
    let mut note = |text: String, host| match notes.iter_mut().find(|(known, _)| *known == text) {
        Some((_, hosts)) => hosts.push(host),
        None => notes.push((text, vec![host])),
    };
    for row in rows {
        let cells = match row.facts {
            Ok(facts) => {
                if let Some(trouble) = trouble(facts) {
                    note(trouble, row.host);
                }
                for error in &facts.errors {
                    note(clean(error), row.host);
                }
                cells(facts)
            }
            Err(why) => {
                note(clean(why), row.host);
                ["not known", "", "", "", "", "", ""].map(str::to_owned)
            }
        };
        match lines.iter_mut().find(|(_, known)| fold && *known == cells) {
            Some((hosts, _)) => hosts.push(row.host),
            None => lines.push((vec![row.host], cells)),
        }
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(style.width).unwrap_or(u16::MAX));
    table.set_header(["HOST", "GPUS", "DRIVER", "ECC", "MIG", "POWER", "OS", "KERNEL"]);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
        // Why: a version that is cut in two is hard to read and to copy; a product name is not.
        if column.index != GPUS_COLUMN {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    for (hosts, cells) in &lines {
        let host = if hosts.len() == 1 {
            hosts.concat()
        } else {
            format!("{} ({})", fold_names(hosts), hosts.len())
        };
        table.add_row(std::iter::once(&host).chain(cells));
    }
    let mut out = String::new();
    for line in table.to_string().lines() {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    for (text, hosts) in notes {
        let who = match hosts.as_slice() {
            [only] => (*only).to_owned(),
            _ => format!("{} ({})", fold_names(&hosts), count(hosts.len(), "node")),
        };
        out.push_str(&format!("note: {who}: {text}\n"));
    }
    out
}

/// The value that all GPUs share, or that they differ.
fn shared(gpus: &[GpuFacts], read: impl Fn(&GpuFacts) -> Option<String>) -> String {
    let mut values: Vec<String> =
        gpus.iter().map(|gpu| read(gpu).unwrap_or_else(|| "n/a".to_owned())).collect();
    values.dedup();
    match values.as_slice() {
        [] => String::new(),
        [same] => same.clone(),
        _ => "mixed".to_owned(),
    }
}

fn pending(current: Option<bool>, next: Option<bool>) -> Option<String> {
    let word = |on: bool| if on { "on" } else { "off" };
    match (current?, next) {
        (now, Some(next)) if now != next => Some(format!("{}, {} pending", word(now), word(next))),
        (now, _) => Some(word(now).to_owned()),
    }
}

/// What stands where no GPU could be listed: none only where there is none.
fn gpus_in_words(state: &GpuSystemState) -> &'static str {
    match state {
        GpuSystemState::NoGpu | GpuSystemState::Ok => "none",
        GpuSystemState::NotRead => "",
        _ => "not known",
    }
}

fn cells(facts: &Facts) -> [String; 7] {
    let gpus = &facts.gpu.gpus;
    let mig = |gpu: &GpuFacts| {
        let mode = pending(gpu.mig_current, gpu.mig_pending)?;
        Some(if gpu.mig_layout.is_empty() { mode } else { layout(gpu) })
    };
    [
        hardware_class(facts).unwrap_or_else(|| gpus_in_words(&facts.gpu.state).to_owned()),
        facts.gpu.driver_version.clone().or_else(|| facts.gpu.module_version.clone()).unwrap_or_default(),
        shared(gpus, |gpu| pending(gpu.ecc_current, gpu.ecc_pending)),
        shared(gpus, mig),
        shared(gpus, |gpu| gpu.power_limit_mw.map(|limit| format!("{} W", limit / 1000))),
        format!("{} {}", facts.os.id, facts.os.version).trim().to_owned(),
        facts.kernel.clone(),
    ]
}

/// `2x 3g.40gb + 1g.10gb`.
fn layout(gpu: &GpuFacts) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for instance in &gpu.mig_layout {
        match counts.iter_mut().find(|(profile, _)| *profile == instance.profile) {
            Some((_, count)) => *count += 1,
            None => counts.push((&instance.profile, 1)),
        }
    }
    let words: Vec<String> = counts
        .into_iter()
        .map(|(profile, count)| if count == 1 { profile.to_owned() } else { format!("{count}x {profile}") })
        .collect();
    words.join(" + ")
}

/// Why the GPUs could not be read, or not all of them.
fn trouble(facts: &Facts) -> Option<String> {
    let said = |what: &str, detail: &str| Some(format!("{what}: {}", clean(detail)));
    match &facts.gpu.state {
        GpuSystemState::NotRead | GpuSystemState::NoGpu => None,
        GpuSystemState::Ok => {
            let (seen, there) = (facts.gpu.gpus.len(), facts.gpu.pci_count as usize);
            (seen < there).then(|| format!("the driver shows {seen} of {there} GPUs on the PCI bus"))
        }
        GpuSystemState::NoDriver { detail } => said("no NVIDIA driver", detail),
        GpuSystemState::VersionMismatch { detail } => said("driver and library differ", detail),
        GpuSystemState::Hung { detail } => said("NVML did not answer", detail),
        GpuSystemState::Crashed { detail } => said("the NVML worker crashed", detail),
        GpuSystemState::NoWorker { detail } => said("NVML cannot be used here", detail),
        GpuSystemState::Failed { detail } => said("the GPUs could not be read", detail),
    }
}

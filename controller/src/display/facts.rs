//! A table of hardware and driver facts.

use gpufleet_protocol::facts::{Facts, GpuFacts, GpuSystemState};

use super::{Style, clean, count, figures::wrap, shared::Shared};
use crate::report::{fold_gpus, fold_names, hardware_class};

/// The facts of one node, or why there are none.
#[derive(Clone, Copy, Debug)]
pub struct FactsRow<'a> {
    pub host: &'a str,
    pub facts: Result<&'a Facts, &'a str>,
}

/// Returns one line for each node; with `fold`, nodes with equal facts share a line.
pub fn facts_table(rows: &[FactsRow<'_>], fold: bool, style: &Style) -> String {
    let mut lines: Vec<(Vec<&str>, [String; 7])> = Vec::new();
    let mut notes: Shared<'_, String> = Shared::default();
    for row in rows {
        let cells = match row.facts {
            Ok(facts) => {
                if let Some(trouble) = trouble(facts) {
                    notes.add(trouble, row.host);
                }
                for error in fold_gpus(facts.errors.iter().map(String::as_str)) {
                    notes.add(clean(&error), row.host);
                }
                cells(facts)
            }
            Err(why) => {
                notes.add(clean(why), row.host);
                ["not known", "", "", "", "", "", ""].map(str::to_owned)
            }
        };
        match lines.iter_mut().find(|(_, known)| fold && *known == cells) {
            Some((hosts, _)) => hosts.push(row.host),
            None => lines.push((vec![row.host], cells)),
        }
    }
    let lines: Vec<(String, [String; 7])> = lines
        .into_iter()
        .map(|(hosts, cells)| match hosts.as_slice() {
            [only] => ((*only).to_owned(), cells),
            _ => (format!("{} ({})", fold_names(&hosts), hosts.len()), cells),
        })
        .collect();
    let mut out = String::new();
    table(&lines, style, &mut out);
    for (text, hosts) in notes.in_order() {
        let who = match hosts.as_slice() {
            [only] => (*only).to_owned(),
            _ => format!("{} ({})", fold_names(&hosts), count(hosts.len(), "node")),
        };
        out.push_str(&format!("note: {who}: {text}\n"));
    }
    out
}

/// Columns between two cells.
const GAP: usize = 2;
/// Longest label in a row; longer ones get a line above it.
const LABEL: usize = 32;
/// Least width of the product name.
const PRODUCT: usize = 10;

/// Index of the operating system in the cells of a row.
const OS: usize = 5;

/// The heading of a column, and the cells that it shows one below the other.
type Column = (&'static str, &'static [usize]);

/// From wide to narrow. The first that fits is used, and the last in any case.
const LAYOUTS: [&[Column]; 3] = [
    &[
        ("GPUS", &[0]),
        ("DRIVER", &[1]),
        ("ECC", &[2]),
        ("MIG", &[3]),
        ("POWER", &[4]),
        ("OS", &[OS]),
        ("KERNEL", &[6]),
    ],
    &[("GPUS, DRIVER", &[0, 1]), ("ECC", &[2]), ("MIG", &[3]), ("POWER", &[4]), ("OS, KERNEL", &[OS, 6])],
    &[("GPUS, DRIVER", &[0, 1]), ("ECC", &[2]), ("MIG", &[3]), ("POWER", &[4])],
];

/// Writes rows in columns that fit the screen. No word is broken: a version in two parts is hard to read and to copy.
fn table(lines: &[(String, [String; 7])], style: &Style, out: &mut String) {
    let above = |label: &str| style.width < Style::UNCUT && length(label) > LABEL;
    let beside = lines.iter().map(|(label, _)| label.as_str()).filter(|label| !above(label));
    let labels = beside.chain(["HOST"]).map(length).max().unwrap_or(0);
    let room = style.width.saturating_sub(labels);
    let mut fitting = LAYOUTS.iter().map(|columns| (*columns, widths(columns, lines, room)));
    let found = fitting.by_ref().find(|(_, (_, fits))| *fits);
    let Some((columns, (widths, _))) = found.or_else(|| {
        let last = LAYOUTS.last()?;
        Some((*last, self::widths(last, lines, room)))
    }) else {
        return;
    };
    let mut line = |label: &str, cells: &[&str]| {
        let mut text = format!("{label:labels$}");
        for (cell, width) in cells.iter().zip(&widths) {
            text.push_str(&format!("{:GAP$}{cell:width$}", ""));
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line("HOST", &columns.iter().map(|(head, _)| *head).collect::<Vec<_>>());
    for (label, row) in lines {
        let texts: Vec<Vec<String>> = columns
            .iter()
            .zip(&widths)
            .map(|((_, places), width)| {
                places
                    .iter()
                    .flat_map(|place| match place {
                        0 => wrap(&row[0], *width),
                        place => vec![row[*place].clone()],
                    })
                    .filter(|text| !text.is_empty())
                    .collect()
            })
            .collect();
        let mut label = label.as_str();
        if above(label) {
            let (names, hosts) = label.rsplit_once(" (").unwrap_or((label, ""));
            let names = style.cut(names, style.width.saturating_sub(2 + length(hosts)));
            line(&[names.as_str(), hosts].join(" ("), &[]);
            label = "";
        }
        for at in 0..texts.iter().map(Vec::len).max().unwrap_or(0).max(1) {
            let cells: Vec<&str> =
                texts.iter().map(|texts| texts.get(at).map_or("", String::as_str)).collect();
            line(if at == 0 { label } else { "" }, &cells);
        }
    }
    if !columns.iter().any(|(_, places)| places.contains(&OS)) {
        out.push_str("OS and kernel do not fit here; --format json has them\n");
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Returns the widths of the columns, the first narrowed to the remaining room, and whether they fit.
fn widths(columns: &[Column], lines: &[(String, [String; 7])], room: usize) -> (Vec<usize>, bool) {
    let cells = |place: usize| lines.iter().map(move |(_, cells)| cells[place].as_str());
    let mut widths: Vec<usize> = columns
        .iter()
        .map(|(head, places)| {
            places.iter().flat_map(|place| cells(*place)).chain([*head]).map(length).max().unwrap_or(0)
        })
        .collect();
    let over = widths.iter().map(|width| GAP + width).sum::<usize>().saturating_sub(room);
    let (Some(first), Some((head, places))) = (widths.first_mut(), columns.first()) else {
        return (widths, true);
    };
    // The name of a product consists of several words, so it can wrap.
    let words = cells(0).flat_map(str::split_whitespace).map(length);
    let others = places.iter().skip(1).flat_map(|place| cells(*place)).chain([*head]).map(length);
    let least = words.chain(others).max().unwrap_or(0).max(PRODUCT.min(*first));
    let less = over.min(first.saturating_sub(least));
    *first -= less;
    (widths, less == over)
}

/// Returns the value that all GPUs share, or that they differ; what does not answer differs from nothing.
fn shared(gpus: &[GpuFacts], read: impl Fn(&GpuFacts) -> Option<String>) -> String {
    let mut values: Vec<String> = gpus.iter().filter_map(read).collect();
    let unread = gpus.len() - values.len();
    values.dedup();
    match values.as_slice() {
        [] if gpus.is_empty() => String::new(),
        [] => "n/a".to_owned(),
        [same] if unread > 0 => format!("{same}, {unread} n/a"),
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

/// Returns the text for a node without a list of GPUs; "none" only if it has none.
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
    .map(|cell| clean(&cell))
}

/// Returns `2x 3g.40gb + 1g.10gb`.
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

/// Returns why the GPUs, or some of them, could not be read.
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

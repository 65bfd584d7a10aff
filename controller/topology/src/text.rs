//! A node drawn for a terminal.

use gpufleet_language::visible::visible;
use gpufleet_protocol::topology::Topology;
use unicode_width::UnicodeWidthStr as _;

use crate::{
    advice::{Weight, advice},
    near::{Near, gres, near},
    tree::{Sort, drawn, heading, memory_only, sections, summary},
};

/// What a part of a line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Heading,
    Muted,
    Gpu,
    Wrong,
    Unknown,
}

/// Draws the nodes with one topology: the tree of their devices, what belongs to which GPU, what is wrong. `host` is the
/// name in lines for schedulers; `title` names all of them.
pub fn text(title: &str, host: &str, topology: &Topology, paint: impl Fn(Tone, &str) -> String) -> String {
    let gpus = near(topology);
    let mut lines = vec![format!("{}  {}", paint(Tone::Heading, title), summary(topology)), String::new()];
    tree(topology, &paint, &mut lines);
    if !gpus.is_empty() {
        lines.push(String::new());
        lines.extend(table(&gpus, &paint));
        let gres = gres(host, &gpus);
        if !gres.is_empty() {
            let head = "gres.conf, for a Slurm without AutoDetect; File and Cores are this boot's:";
            lines.extend([String::new(), paint(Tone::Muted, head)]);
        }
        lines.extend(gres.into_iter().map(|line| format!("  {}", visible(&line))));
    }
    let said = advice(topology, &gpus);
    if !said.is_empty() {
        lines.push(String::new());
    }
    for one in said {
        let tone = match one.weight {
            Weight::Wrong => Tone::Wrong,
            Weight::Unknown => Tone::Unknown,
            Weight::Note => Tone::Muted,
        };
        lines.push(format!("{} {}", paint(tone, &format!("{:<8}", one.weight.word())), visible(&one.what)));
        lines.extend(
            one.next.map(|next| format!("         {} {}", paint(Tone::Muted, "next:"), visible(&next))),
        );
    }
    lines.join("\n") + "\n"
}

fn tree(topology: &Topology, paint: &impl Fn(Tone, &str) -> String, lines: &mut Vec<String>) {
    let sections = sections(topology);
    let all = sections.iter().flat_map(|section| &section.groups).flat_map(|group| &group.devices);
    let width = all.map(|device| drawn(device).name.width()).max().unwrap_or_default();
    for section in &sections {
        let (name, detail) = heading(topology, section.node);
        lines.push(format!("{}  {}", paint(Tone::Heading, &name), paint(Tone::Muted, &detail)));
        for (at, group) in section.groups.iter().enumerate() {
            let is_last = at + 1 == section.groups.len();
            lines.push(format!("{} {}", if is_last { "└─" } else { "├─" }, paint(Tone::Muted, &group.label)));
            for (at, device) in group.devices.iter().enumerate() {
                let stem = if is_last { " " } else { "│" };
                let branch = if at + 1 == group.devices.len() { "└─" } else { "├─" };
                let one = drawn(device);
                let pad = " ".repeat(width.saturating_sub(one.name.width()));
                let tone = if one.sort == Sort::Gpu { Tone::Gpu } else { Tone::Plain };
                let line = format!(
                    "{stem}  {branch} {}{pad}  {}  {}",
                    paint(tone, &one.name),
                    one.address,
                    one.detail
                );
                lines.push(line.trim_end().to_owned());
            }
        }
    }
    lines.extend(memory_only(topology));
}

/// Columns of the table of GPUs.
const HEAD: [&str; 6] = ["GPU", "NUMA", "CPUs", "nearest cards", "way", "keeps a process near"];

fn table(gpus: &[Near<'_>], paint: &impl Fn(Tone, &str) -> String) -> Vec<String> {
    let rows: Vec<[String; 6]> = gpus.iter().map(row).collect();
    let mut widths = HEAD.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.width().max(*width);
        }
    }
    let line = |cells: &[String]| {
        let cells = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width()))));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head = paint(Tone::Muted, &line(&HEAD.map(str::to_owned)));
    std::iter::once(head).chain(rows.iter().map(|row| line(row))).collect()
}

fn row(near: &Near<'_>) -> [String; 6] {
    let unknown = || "unknown".to_owned();
    let index = near.gpu.index.map_or_else(|| near.device.address.clone(), |index| index.to_string());
    let names: Vec<&str> = near.cards.iter().map(|card| card.name.as_str()).collect();
    [
        visible(&index).into_owned(),
        near.node.map_or_else(unknown, |node| node.id.to_string()),
        if near.node.is_some() { near.cpus.to_string() } else { unknown() },
        if names.is_empty() { "-".to_owned() } else { visible(&names.join(", ")).into_owned() },
        near.cards.first().map_or("-", |card| card.way.words()).to_owned(),
        near.numactl().unwrap_or_else(|| "-".to_owned()),
    ]
}

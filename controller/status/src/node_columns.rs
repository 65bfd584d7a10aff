//! The columns of `gpufleet status node`: a line for each node.

use std::sync::Arc;

use crate::{
    column::{Cell, Column, Key, Shown, Tone},
    gpu_columns::{by_state, tone},
    row::Row,
    state::State,
    totals::Totals,
};

/// A node with the sums of its GPUs.
#[derive(Clone, Debug)]
pub struct NodeRow {
    pub node: Arc<str>,
    pub groups: Arc<[String]>,
    /// The worst of its GPUs.
    pub worst: State,
    pub why: String,
    pub driver: Option<String>,
    pub model: String,
    pub mps: bool,
    /// GPUs that something holds.
    pub held: usize,
    pub used_mib: f64,
    pub memory_mib: f64,
    pub totals: Totals,
}

impl NodeRow {
    /// Sums up the rows of one node; `None` without any.
    pub fn of(rows: &[Row]) -> Option<Self> {
        let first = rows.first()?;
        let worst = rows.iter().min_by_key(|row| row.state)?;
        let sum = |name: &str| rows.iter().filter_map(|row| row.number(name)).sum();
        let mut models: Vec<&str> = rows.iter().filter_map(|row| row.text("name")).collect();
        models.dedup();
        let model = match models.as_slice() {
            [] => String::new(),
            [one] => one.strip_prefix("NVIDIA ").unwrap_or(one).to_owned(),
            _ => "mixed".to_owned(),
        };
        Some(Self {
            node: Arc::clone(&first.node),
            groups: Arc::clone(&first.groups),
            worst: worst.state,
            why: match &worst.now {
                Some(now) if !worst.why.is_empty() => format!("GPU {}: {}", now.index, worst.why),
                _ => worst.why.clone(),
            },
            driver: first.driver.clone(),
            model,
            mps: first.mps,
            held: rows.iter().filter(|row| row.state.is_held()).count(),
            used_mib: sum("mem_used_mib"),
            memory_mib: sum("memory_total_mib"),
            totals: Totals::of(rows, 1),
        })
    }
}

fn unknown(row: &NodeRow) -> bool {
    row.totals.gpus == 0 && row.worst == State::Unknown
}

fn count(row: &NodeRow, number: usize) -> Cell {
    if unknown(row) { Cell::unknown() } else { Cell::plain(number.to_string()) }
}

fn key(row: &NodeRow, number: f64) -> Key {
    if unknown(row) { Key::Nothing } else { Key::Number(number) }
}

/// Columns in their usual order.
pub const NODE_COLUMNS: &[Column<NodeRow>] = &[
    Column {
        name: "node",
        title: "NODE",
        help: "Name in the inventory.",
        right: false,
        shown: Shown::Always,
        drop: 0,
        least: 8,
        most: 40,
        cell: |row| Cell::plain(&*row.node),
        key: |row| Key::Text(row.node.to_string()),
    },
    Column {
        name: "groups",
        title: "GROUPS",
        help: "Groups of the inventory that the node is in.",
        right: false,
        shown: Shown::Wide,
        drop: 90,
        least: 8,
        most: 30,
        cell: |row| if row.groups.is_empty() { Cell::none() } else { Cell::plain(row.groups.join(",")) },
        key: |row| Key::Text(row.groups.join(",")),
    },
    Column {
        name: "gpus",
        title: "GPUS",
        help: "Number of GPUs that could be read.",
        right: true,
        shown: Shown::Always,
        drop: 0,
        least: 4,
        most: 5,
        cell: |row| count(row, row.totals.gpus),
        key: |row| key(row, row.totals.gpus as f64),
    },
    Column {
        name: "model",
        title: "MODEL",
        help: "Product name of its GPUs.",
        right: false,
        shown: Shown::Always,
        drop: 70,
        least: 8,
        most: 28,
        cell: |row| if row.model.is_empty() { Cell::none() } else { Cell::plain(&row.model) },
        key: |row| Key::Text(row.model.clone()),
    },
    Column {
        name: "held",
        title: "HELD",
        help: "Number of GPUs that something holds.",
        right: true,
        shown: Shown::Always,
        drop: 20,
        least: 4,
        most: 5,
        cell: |row| count(row, row.held),
        key: |row| key(row, row.held as f64),
    },
    Column {
        name: "free",
        title: "FREE",
        help: "What is free: whole GPUs, MIG instances, GPUs shared by MPS.",
        right: false,
        shown: Shown::Always,
        drop: 0,
        least: 9,
        most: 40,
        cell: |row| match row.totals.free.text() {
            _ if unknown(row) => Cell::unknown(),
            text if text == "none" => Cell::none(),
            text => Cell::toned(text, Tone::Good),
        },
        key: |row| {
            let free = &row.totals.free;
            key(row, (free.whole + free.mps) as f64 + free.mig.values().sum::<usize>() as f64 / 100.0)
        },
    },
    Column {
        name: "use",
        title: "USE%",
        help: "How busy its GPUs were over the window, their mean in percent.",
        right: true,
        shown: Shown::Always,
        drop: 30,
        least: 4,
        most: 5,
        cell: |row| match row.totals.mean_percent() {
            Some(percent) => Cell::plain(format!("{percent:.0}")),
            None if unknown(row) => Cell::unknown(),
            None => Cell::none(),
        },
        key: |row| row.totals.mean_percent().map_or(Key::Nothing, Key::Number),
    },
    Column {
        name: "mem",
        title: "MEM GiB",
        help: "Memory used and in all, of all of its GPUs, in GiB.",
        right: true,
        shown: Shown::Always,
        drop: 40,
        least: 7,
        most: 14,
        cell: |row| match row.memory_mib > 0.0 {
            true => Cell::plain(format!("{:.0}/{:.0}", row.used_mib / 1024.0, row.memory_mib / 1024.0)),
            false if unknown(row) => Cell::unknown(),
            false => Cell::none(),
        },
        key: |row| key(row, row.used_mib),
    },
    Column {
        name: "power",
        title: "POWER W",
        help: "Power of its GPUs together, in watts.",
        right: true,
        shown: Shown::Always,
        drop: 50,
        least: 7,
        most: 8,
        cell: |row| match row.totals.watts() {
            Some(watts) => Cell::plain(format!("{watts:.0}")),
            None if unknown(row) => Cell::unknown(),
            None => Cell::none(),
        },
        key: |row| row.totals.watts().map_or(Key::Nothing, Key::Number),
    },
    Column {
        name: "mps",
        title: "MPS",
        help: "Whether an MPS daemon shares its GPUs.",
        right: false,
        shown: Shown::If(|rows| rows.iter().any(|row| row.mps)),
        drop: 80,
        least: 3,
        most: 3,
        cell: |row| if row.mps { Cell::plain("yes") } else { Cell::none() },
        key: |row| Key::Number(u8::from(row.mps).into()),
    },
    Column {
        name: "driver",
        title: "DRIVER",
        help: "Version of the driver.",
        right: false,
        shown: Shown::Always,
        drop: 60,
        least: 6,
        most: 16,
        cell: |row| match &row.driver {
            Some(driver) => Cell::plain(driver),
            None if unknown(row) => Cell::unknown(),
            None => Cell::none(),
        },
        key: |row| row.driver.clone().map_or(Key::Nothing, Key::Text),
    },
    Column {
        name: "why",
        title: "WHY",
        help: "Why it is in its state, where that needs words.",
        right: false,
        shown: Shown::Wide,
        drop: 85,
        least: 12,
        most: 60,
        cell: |row| if row.why.is_empty() { Cell::none() } else { Cell::plain(&row.why) },
        key: |row| if row.why.is_empty() { Key::Nothing } else { Key::Text(row.why.clone()) },
    },
    Column {
        name: "state",
        title: "WORST",
        help: "State of its worst GPU.",
        right: false,
        shown: Shown::Always,
        drop: 0,
        least: 9,
        most: 9,
        cell: |row| Cell::toned(row.worst.word(), tone(row.worst)),
        key: |row| by_state(row.worst),
    },
];

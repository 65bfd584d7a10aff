//! Rows: one for each GPU, and one for a node without any that could be read.

use std::sync::Arc;

use gpufleet_language::visible::visible;
use gpufleet_protocol::{
    signal::{Readings, Signal},
    status::{GpuNow, GpuStatus},
};
use serde_json::Value;

use crate::state::{self, State};

/// What was heard of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// Nothing yet.
    Nothing,
    Status(Box<GpuStatus>),
    /// Why there is no reading.
    Failed(String),
}

/// A node, and what was heard of it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeReading {
    pub node: Arc<str>,
    /// Groups of the inventory that it is in.
    pub groups: Arc<[String]>,
    pub heard: Heard,
}

/// One line of the table. All text is visible and of one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub node: Arc<str>,
    pub groups: Arc<[String]>,
    pub state: State,
    /// Why it is in this state, if that is not clear.
    pub why: String,
    pub driver: Option<String>,
    /// Whether an MPS daemon shares the GPU.
    pub mps: bool,
    /// `None` for a node without GPUs that could be read.
    pub now: Option<GpuNow>,
}

impl Row {
    /// Returns a signal of the GPU.
    pub fn signal(&self, name: &str) -> Option<&Signal> {
        self.now.as_ref()?.signals.readings.get(name)
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        state::number(self.signal(name))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.signal(name)?.known()?.as_str()
    }
}

/// Returns the rows of a node, in the order of its GPUs; at least one.
pub fn rows(reading: &NodeReading) -> Vec<Row> {
    let groups: Arc<[String]> = reading.groups.iter().map(|group| line(group)).collect();
    let row = |state, why: &str, now| Row {
        node: line(&reading.node).into(),
        groups: Arc::clone(&groups),
        state,
        why: line(why),
        driver: None,
        mps: false,
        now,
    };
    let status = match &reading.heard {
        Heard::Nothing => return vec![row(State::Unknown, "not heard of yet", None)],
        Heard::Failed(why) => return vec![row(State::Unknown, why, None)],
        Heard::Status(status) => status,
    };
    let driver = status.node.get("driver_version").and_then(Signal::known).and_then(Value::as_str).map(line);
    if status.gpus.is_empty() {
        let (state, why) = without_gpus(&status.node);
        return vec![Row { driver, ..row(state, &why, None) }];
    }
    let mut rows: Vec<Row> = status
        .gpus
        .iter()
        .map(|now| {
            let (state, why) = state::judge(now);
            Row { driver: driver.clone(), mps: status.mps, ..row(state, &why, Some(clean(now))) }
        })
        .collect();
    let counted = |name| state::number(status.node.get(name)).unwrap_or(0.0);
    // Those that are excluded on purpose are no more than hidden.
    let (by_driver, on_bus) = (counted("nvml_count"), counted("pci_count") - counted("excluded_count"));
    if by_driver > rows.len() as f64 {
        let why = format!(
            "the driver counts {by_driver} GPU{}, and {} could be read",
            if by_driver == 1.0 { "" } else { "s" },
            rows.len()
        );
        rows.push(Row { driver, ..row(State::Unknown, &why, None) });
    } else if on_bus > rows.len() as f64 {
        let why = format!("{} on the PCI bus, and the driver shows {}", they_are(on_bus), rows.len());
        rows.push(Row { driver, ..row(State::Unknown, &why, None) });
    }
    rows
}

fn they_are(count: f64) -> String {
    if count == 1.0 { "1 GPU is".to_owned() } else { format!("{count} GPUs are") }
}

/// Judges a node that lists no GPU.
fn without_gpus(node: &Readings) -> (State, String) {
    let counted = |name| state::number(node.get(name)).unwrap_or(0.0);
    let on_bus = counted("pci_count") - counted("excluded_count");
    if on_bus > 0.0 && !matches!(node.get("nvml_count"), Some(Signal::Unknown(_))) {
        return (State::Unknown, format!("{} on the PCI bus, and the driver shows none", they_are(on_bus)));
    }
    match node.get("nvml_count") {
        Some(Signal::Known(count)) if count.as_f64() == Some(0.0) => {
            (State::NoGpu, "the driver has no GPU".to_owned())
        }
        Some(Signal::Absent) => (State::NoGpu, "no driver and no GPU".to_owned()),
        Some(Signal::Unknown(why)) => (State::Unknown, why.clone()),
        _ => (State::Unknown, "the node does not say how many GPUs it has".to_owned()),
    }
}

/// Longest text of a node that is kept, in characters.
const LONGEST: usize = 300;

/// Returns a text as one visible line of bounded length.
pub fn line(text: &str) -> String {
    let mut out = String::new();
    for part in text.split_whitespace() {
        if out.len() > LONGEST {
            break;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        let part: String = part.chars().take(LONGEST).collect();
        out.push_str(&visible(&part));
    }
    out
}

fn clean(now: &GpuNow) -> GpuNow {
    let mut now = now.clone();
    for signal in now.signals.readings.values_mut() {
        match signal {
            Signal::Known(Value::String(text)) => *text = line(text),
            Signal::Unknown(why) => *why = line(why),
            _ => {}
        }
    }
    now.signals.id = line(&now.signals.id);
    for part in &mut now.instances {
        part.profile = line(&part.profile);
    }
    for holder in &mut now.holders {
        holder.command = line(&holder.command);
        holder.user = line(&holder.user);
        holder.unit = holder.unit.as_deref().map(line);
    }
    now
}

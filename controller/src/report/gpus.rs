//! Groups equal GPUs of a node for display.

use gpufleet_protocol::facts::{GpuFacts, GpuSystem};
use serde::Serialize;

use super::{
    fold_numbers,
    mig::{Block, blocks_of},
};

/// GPUs that are equal in everything that is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct GpuGroup {
    pub indexes: String,
    pub look: Look,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Look {
    pub name: String,
    pub memory: String,
    pub ecc: String,
    pub mig: String,
    pub power: String,
    pub compute_mode: String,
    pub persistence: String,
    pub blocks: Vec<Block>,
    pub errors: Vec<String>,
}

/// Groups the GPUs of a node, in index order.
pub(super) fn gpu_groups(system: &GpuSystem) -> Vec<GpuGroup> {
    let mut groups: Vec<(Vec<u32>, Look)> = Vec::new();
    for gpu in &system.gpus {
        let look = look(gpu);
        match groups.iter_mut().find(|(_, known)| *known == look) {
            Some((indexes, _)) => indexes.push(gpu.index),
            None => groups.push((vec![gpu.index], look)),
        }
    }
    groups.into_iter().map(|(indexes, look)| GpuGroup { indexes: fold_numbers(indexes), look }).collect()
}

/// Formats a mode as `on`, or `off, on after the next reset or reboot`.
fn mode(current: Option<bool>, pending: Option<bool>) -> String {
    let word = |on: bool| if on { "on" } else { "off" };
    match (current, pending) {
        (None, _) => "n/a".to_owned(),
        (Some(now), Some(next)) if now != next => format!("{}, {} is pending", word(now), word(next)),
        (Some(now), _) => word(now).to_owned(),
    }
}

fn without_index(text: &str, index: u32) -> String {
    let rest = text.strip_prefix(&format!("GPU {index} "));
    rest.map_or_else(|| text.to_owned(), |rest| format!("it {rest}"))
}

fn look(gpu: &GpuFacts) -> Look {
    let or_na = |text: Option<String>| text.unwrap_or_else(|| "n/a".to_owned());
    let power = gpu.power_limit_mw.map(|limit| match gpu.power_default_mw {
        Some(default) if default != limit => format!("{} W (default {} W)", limit / 1000, default / 1000),
        _ => format!("{} W", limit / 1000),
    });
    Look {
        name: gpu.name.strip_prefix("NVIDIA ").unwrap_or(&gpu.name).to_owned(),
        memory: or_na(gpu.memory_mib.map(|mib| format!("{} GiB", (mib + 512) / 1024))),
        ecc: mode(gpu.ecc_current, gpu.ecc_pending),
        mig: mode(gpu.mig_current, gpu.mig_pending),
        power: or_na(power),
        compute_mode: or_na(gpu.compute_mode.clone()),
        persistence: or_na(gpu.persistence.map(|on| if on { "on" } else { "off" }.to_owned())),
        blocks: blocks_of(&gpu.mig_layout),
        // Without the index, which is in the first column, because equal GPUs share a row.
        errors: gpu.errors.iter().map(|text| without_index(text, gpu.index)).collect(),
    }
}

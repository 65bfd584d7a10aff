//! What metrics tell of the GPUs of a node, kept from its signals.
//!
//! A model of 10,000 nodes keeps them for all of them: numbers only, 8 bytes each, in the order of [`READINGS`].

use std::collections::BTreeMap;

use gpufleet_compliance::xid::Kind as XidKind;
use gpufleet_protocol::signal::{RecordSort, Signal, Signals, SubjectReadings};
use jiff::Timestamp;
use serde_json::Value;

use super::exposition::{Exposition, Family, Kind, label};

/// Characters of a name or a version: more than any has.
const MOST_TEXT: usize = 80;

/// A number of a GPU that a family has.
struct Reading {
    family: &'static Family,
    /// Labels beside `node` and `gpu`.
    labels: &'static [(&'static str, &'static str)],
    signal: &'static str,
    /// What the signal is multiplied with to have the unit of its family.
    factor: f64,
}

const fn reading(
    family: &'static Family,
    labels: &'static [(&'static str, &'static str)],
    signal: &'static str,
    factor: f64,
) -> Reading {
    Reading { family, labels, signal, factor }
}

macro_rules! families {
    ($($id:ident = $name:literal, $kind:ident, $unit:literal, $help:literal;)+) => {
        $(pub(super) static $id: Family = Family { name: $name, kind: Kind::$kind, unit: $unit, help: $help };)+
    };
}

families! {
    GPU = "gpufleet_gpu", Info, "", "A GPU, by its index, with what it is.";
    MARGIN = "gpufleet_gpu_temperature_margin_celsius", Gauge, "celsius",
        "Distance to the temperature that slows clocks.";
    POWER = "gpufleet_gpu_power_watts", Gauge, "watts", "Power draw.";
    LIMIT = "gpufleet_gpu_power_limit_watts", Gauge, "watts", "Power limits of the board.";
    MEMORY = "gpufleet_gpu_memory_used_bytes", Gauge, "bytes", "Memory that processes use.";
    ECC = "gpufleet_gpu_ecc_errors", Counter, "",
        "Memory errors; location total has those of sram in it, life volatile begins with the load of the driver.";
    BANKS = "gpufleet_gpu_remap_banks", Gauge, "", "Memory banks by how many of their spare rows are left.";
    CLOCKS = "gpufleet_gpu_clock_event_seconds", Counter, "seconds", "Time below full clocks, by its reason.";
    REPLAYS = "gpufleet_gpu_pcie_replays", Counter, "", "PCIe packets sent again.";
    NVLINK = "gpufleet_gpu_nvlink_errors", Counter, "", "Replays and recoveries of all NVLinks.";
    XIDS = "gpufleet_gpu_xids", Counter, "", "Error codes of the driver in the log of the kernel since its boot.";
}

/// In the order of the families.
static READINGS: &[Reading] = &[
    reading(&MARGIN, &[], "margin_c", 1.0),
    reading(&POWER, &[], "power_draw_w", 1.0),
    reading(&LIMIT, &[("kind", "default")], "power_default_w", 1.0),
    reading(&LIMIT, &[("kind", "enforced")], "power_enforced_w", 1.0),
    reading(&LIMIT, &[("kind", "requested")], "power_limit_w", 1.0),
    reading(&MEMORY, &[], "mem_used_mib", 1_048_576.0),
    reading(
        &ECC,
        &[("location", "total"), ("severity", "corrected"), ("life", "volatile")],
        "ecc_cor_vol",
        1.0,
    ),
    reading(
        &ECC,
        &[("location", "total"), ("severity", "uncorrected"), ("life", "volatile")],
        "ecc_unc_vol",
        1.0,
    ),
    reading(
        &ECC,
        &[("location", "total"), ("severity", "corrected"), ("life", "aggregate")],
        "ecc_cor_agg",
        1.0,
    ),
    reading(
        &ECC,
        &[("location", "total"), ("severity", "uncorrected"), ("life", "aggregate")],
        "ecc_unc_agg",
        1.0,
    ),
    reading(
        &ECC,
        &[("location", "sram"), ("severity", "corrected"), ("life", "volatile")],
        "ecc_cor_sram_vol",
        1.0,
    ),
    reading(
        &ECC,
        &[("location", "sram"), ("severity", "uncorrected"), ("life", "volatile")],
        "ecc_unc_sram_vol",
        1.0,
    ),
    reading(
        &ECC,
        &[("location", "sram"), ("severity", "corrected"), ("life", "aggregate")],
        "sram_cor_agg",
        1.0,
    ),
    reading(
        &ECC,
        &[("location", "sram"), ("severity", "uncorrected"), ("life", "aggregate")],
        "sram_unc_agg",
        1.0,
    ),
    reading(&BANKS, &[("availability", "max")], "hist_max", 1.0),
    reading(&BANKS, &[("availability", "high")], "hist_high", 1.0),
    reading(&BANKS, &[("availability", "partial")], "hist_partial", 1.0),
    reading(&BANKS, &[("availability", "low")], "hist_low", 1.0),
    reading(&BANKS, &[("availability", "none")], "hist_none", 1.0),
    reading(&CLOCKS, &[("reason", "sw_power_cap")], "ns_sw_power", 1e-9),
    reading(&CLOCKS, &[("reason", "sw_thermal")], "ns_sw_thermal", 1e-9),
    reading(&CLOCKS, &[("reason", "hw_thermal")], "ns_hw_thermal", 1e-9),
    reading(&CLOCKS, &[("reason", "hw_power_brake")], "ns_power_brake", 1e-9),
    reading(&REPLAYS, &[], "pcie_replays", 1.0),
    reading(&NVLINK, &[("kind", "replay")], "nvl_replay", 1.0),
    reading(&NVLINK, &[("kind", "recovery")], "nvl_recovery", 1.0),
];

/// What was read of a node for its metrics.
#[derive(Clone, Debug)]
pub(in crate::report) struct NodeReadings {
    pub(super) at: Timestamp,
    /// CPU time of the reading on the node, in milliseconds.
    pub(super) cpu_ms: u64,
    /// How dear the readings were that were taken: 1 to 3, as in the catalogue of checks.
    pub(super) tier: u8,
    gpus: Box<[GpuReadings]>,
}

#[derive(Clone, Debug)]
struct GpuReadings {
    /// The index; unique on its node.
    gpu: Box<str>,
    uuid: Box<str>,
    pci: Box<str>,
    product: Box<str>,
    vbios: Box<str>,
    /// In the order of [`READINGS`]; not a number where it was not read.
    numbers: Box<[f64]>,
    /// How often the log has each error code.
    xids: Box<[(u32, u32)]>,
}

impl NodeReadings {
    pub(in crate::report) fn of(signals: &Signals, at: Timestamp) -> Self {
        // What only a dear reading takes, whatever came of it.
        let tells = |name: &str| signals.gpus.iter().any(|gpu| gpu.readings.contains_key(name));
        let tier = match (tells("nvl_speed_min"), tells("c2c_count")) {
            (true, _) => 3,
            (false, true) => 2,
            (false, false) => 1,
        };
        let mut seen: Vec<String> = Vec::new();
        let mut gpus = Vec::with_capacity(signals.gpus.len());
        for (at, gpu) in signals.gpus.iter().enumerate() {
            let mut name =
                gpu.label.strip_prefix("GPU ").unwrap_or(&gpu.label).chars().take(MOST_TEXT).collect();
            // A node that names two GPUs the same: no index has this form, but a node may say anything.
            let mut next = at;
            while seen.contains(&name) {
                name = format!("#{next}");
                next += 1;
            }
            gpus.push(GpuReadings::of(gpu, &name, signals));
            seen.push(name);
        }
        Self { at, cpu_ms: signals.cpu_ms, tier, gpus: gpus.into() }
    }
}

impl GpuReadings {
    fn of(gpu: &SubjectReadings, name: &str, signals: &Signals) -> Self {
        let known = |name: &str| gpu.readings.get(name).and_then(Signal::known);
        let text = |name: &str| -> Box<str> {
            let text = known(name).and_then(Value::as_str).unwrap_or_default();
            text.chars().take(MOST_TEXT).collect::<String>().into()
        };
        let number = |reading: &Reading| known(reading.signal).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let pci = text("pci");
        let mut xids: BTreeMap<u32, u32> = BTreeMap::new();
        let own = |pci_of: &Option<String>| !pci.is_empty() && pci_of.as_deref() == Some(&*pci);
        for record in signals.records.iter().filter(|it| it.sort == RecordSort::Xid && own(&it.pci)) {
            if let Some(code) = record.code {
                *xids.entry(code).or_default() += 1;
            }
        }
        Self {
            gpu: name.into(),
            uuid: gpu.id.chars().take(MOST_TEXT).collect::<String>().into(),
            product: text("name"),
            vbios: text("vbios"),
            numbers: READINGS.iter().map(|reading| number(reading) * reading.factor).collect(),
            xids: xids.into_iter().collect(),
            pci,
        }
    }
}

/// A node of which something was read: its name as a label, the version of its driver, and the readings.
pub(super) type Read<'a> = (&'a str, &'a str, &'a NodeReadings);

/// Writes the families of GPUs.
pub(super) fn gpus(out: &mut Exposition, nodes: &[Read<'_>]) {
    let each = |act: &mut dyn FnMut(&str, &str, &GpuReadings)| {
        for (node, driver, read) in nodes {
            read.gpus.iter().for_each(|gpu| act(node, driver, gpu));
        }
    };
    each(&mut |node, driver, gpu| {
        let [name, uuid, pci, product, vbios] =
            [&gpu.gpu, &gpu.uuid, &gpu.pci, &gpu.product, &gpu.vbios].map(|text| label(text));
        let driver = label(driver);
        let labels = [
            ("node", node),
            ("gpu", name.as_str()),
            ("uuid", &uuid),
            ("pci", &pci),
            ("product", &product),
            ("driver", &driver),
            ("vbios", &vbios),
        ];
        out.sample(&GPU, &labels, 1.0);
    });
    for (at, reading) in READINGS.iter().enumerate() {
        each(&mut |node, _, gpu| {
            let name = label(&gpu.gpu);
            let mut labels = vec![("node", node), ("gpu", name.as_str())];
            labels.extend(reading.labels);
            out.sample(reading.family, &labels, gpu.numbers.get(at).copied().unwrap_or(f64::NAN));
        });
    }
    each(&mut |node, _, gpu| {
        let name = label(&gpu.gpu);
        for (code, count) in &gpu.xids {
            let xid = code.to_string();
            let labels =
                [("node", node), ("gpu", name.as_str()), ("xid", &xid), ("class", XidKind::of(*code).word())];
            out.sample(&XIDS, &labels, f64::from(*count));
        }
    });
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::signal::SIGNALS;

    use super::*;

    #[test]
    fn each_reading_is_a_signal_and_families_stay_together() {
        for reading in READINGS {
            assert!(
                SIGNALS.iter().copied().flatten().any(|signal| signal.name == reading.signal),
                "{}",
                reading.signal
            );
            let Family { name, unit, .. } = reading.family;
            assert!(unit.is_empty() || name.ends_with(unit), "{name}");
        }
        let mut names: Vec<&str> = READINGS.iter().map(|reading| reading.family.name).collect();
        names.dedup();
        let mut once = names.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(names.len(), once.len(), "samples of a family come one after the other");
    }
}

//! What can be wrong with a simulated GPU that no setter makes: a word of `gpusimctl set` for each, and the getter that
//! then answers differently from the recording.

use serde_json::{Value, json};

use crate::model::Reading;
use crate::state::Gpu;

/// What ends a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    /// A reset of the GPU, and so a load of the driver.
    Reset,
    /// A load of the driver, and so a reboot.
    Load,
    /// Another board.
    Ever,
}

/// A word, the recorded answer that it replaces (`getter(argument)`, or `getter.part` of a structure), and its end.
pub type Defect = (&'static str, &'static str, Until);

pub static DEFECTS: &[Defect] = &[
    ("sram_uncorrected", "nvmlDeviceGetSramEccErrorStatus.volatileUncSecDed", Until::Reset),
    ("sram_uncorrected_total", "nvmlDeviceGetSramEccErrorStatus.aggregateUncSecDed", Until::Ever),
    ("sram_threshold", "nvmlDeviceGetSramEccErrorStatus.bThresholdExceeded", Until::Ever),
    ("banks_low", "nvmlDeviceGetRowRemapperHistogram.low", Until::Ever),
    ("banks_none", "nvmlDeviceGetRowRemapperHistogram.none", Until::Ever),
    ("retired_single", "nvmlDeviceGetRetiredPages(0)", Until::Ever),
    ("retired_double", "nvmlDeviceGetRetiredPages(1)", Until::Ever),
    ("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus", Until::Load),
    ("repair_channel", "nvmlDeviceGetRepairStatus.0", Until::Reset),
    ("repair_tpc", "nvmlDeviceGetRepairStatus.1", Until::Reset),
    ("unrepairable", "nvmlDeviceGetUnrepairableMemoryFlag_v1", Until::Ever),
    ("name", "nvmlDeviceGetName", Until::Ever),
    ("vbios", "nvmlDeviceGetVbiosVersion", Until::Ever),
    ("memory_total_mib", "nvmlDeviceGetMemoryInfo.total_mib", Until::Ever),
    ("inforom_version", "nvmlDeviceGetInforomImageVersion", Until::Ever),
    ("inforom_code", "nvmlDeviceValidateInforom", Until::Ever),
    ("temperature_c", "nvmlDeviceGetTemperature(0)", Until::Ever),
    ("margin_c", "nvmlDeviceGetMarginTemperature", Until::Ever),
    ("memory_temperature_c", "nvmlDeviceGetFieldValues(82)", Until::Ever),
    ("event_reasons", "nvmlDeviceGetCurrentClocksEventReasons", Until::Load),
    ("slowed_power_ns", "nvmlDeviceGetFieldValues(74)", Until::Load),
    ("slowed_software_thermal_ns", "nvmlDeviceGetFieldValues(269)", Until::Load),
    ("slowed_hardware_thermal_ns", "nvmlDeviceGetFieldValues(270)", Until::Load),
    ("slowed_power_brake_ns", "nvmlDeviceGetFieldValues(271)", Until::Load),
    ("fans", "nvmlDeviceGetNumFans", Until::Ever),
    ("fan_percent", "nvmlDeviceGetFanSpeed_v2", Until::Ever),
    ("fan_target", "nvmlDeviceGetTargetFanSpeed", Until::Ever),
    ("power_draw_mw", "nvmlDeviceGetPowerUsage", Until::Load),
    ("power_enforced_mw", "nvmlDeviceGetEnforcedPowerLimit", Until::Load),
    ("module_draw_mw", "nvmlDeviceGetFieldValues(185)", Until::Load),
    ("module_limit_mw", "nvmlDeviceGetFieldValues(190)", Until::Load),
    ("graphics_mhz", "nvmlDeviceGetClockInfo(1)", Until::Load),
    ("memory_mhz", "nvmlDeviceGetClockInfo(2)", Until::Load),
    ("performance_state", "nvmlDeviceGetPerformanceState", Until::Load),
    ("busy_fifths", "nvmlDeviceGetSamples.busy_fifths", Until::Load),
    ("utilization", "nvmlDeviceGetUtilizationRates.gpu", Until::Load),
    ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", Until::Ever),
    ("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", Until::Ever),
    ("pcie_replays", "nvmlDeviceGetPcieReplayCounter", Until::Load),
    ("pcie_recoveries", "nvmlDeviceGetFieldValues(169)", Until::Load),
    ("nvlink_mbps", "nvmlDeviceGetFieldValues(164)", Until::Load),
    ("nvlink_replays", "nvmlDeviceGetFieldValues(161)", Until::Load),
    ("c2c_enabled", "nvmlDeviceGetC2cModeInfoV.isC2cEnabled", Until::Ever),
    ("c2c_links", "nvmlDeviceGetFieldValues(170)", Until::Ever),
    ("c2c_link_status", "nvmlDeviceGetFieldValues(171)", Until::Load),
    ("fabric_state", "nvmlDeviceGetGpuFabricInfoV.state", Until::Load),
    ("fabric_status", "nvmlDeviceGetGpuFabricInfoV.status", Until::Load),
    ("fabric_clique", "nvmlDeviceGetGpuFabricInfoV.cliqueId", Until::Load),
    ("fabric_mask", "nvmlDeviceGetGpuFabricInfoV.healthMask", Until::Load),
    ("fabric_summary", "nvmlDeviceGetGpuFabricInfoV.healthSummary", Until::Load),
    ("gsp_mode", "nvmlDeviceGetGspFirmwareMode.0", Until::Load),
    ("gsp_version", "nvmlDeviceGetGspFirmwareVersion", Until::Load),
];

/// As many NVLinks as the value says are down, the first ones.
pub const LINKS_DOWN: &str = "nvlinks_down";
const LINK_STATE: &str = "nvmlDeviceGetNvLinkState";
/// The value that ends a defect by hand.
pub const AS_RECORDED: &str = "as_recorded";

/// Sets a defect; `None` if there is none with this word.
pub fn set(gpu: &mut Gpu, word: &str, value: &str) -> Option<Result<(), String>> {
    if word == LINKS_DOWN {
        return Some(links_down(gpu, value));
    }
    let (_, getter, _) = DEFECTS.iter().find(|(known, _, _)| *known == word)?;
    if value == AS_RECORDED {
        gpu.health.broken.remove(*getter);
        return Some(Ok(()));
    }
    gpu.health.broken.insert((*getter).to_owned(), Reading::Ok(parsed(value)));
    Some(Ok(()))
}

fn parsed(value: &str) -> Value {
    match value {
        "on" | "true" => json!(1),
        "off" | "false" => json!(0),
        text => text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number)),
    }
}

fn links_down(gpu: &mut Gpu, value: &str) -> Result<(), String> {
    let count = match value {
        AS_RECORDED => 0,
        text => text.parse::<u32>().map_err(|_| format!("`{text}` is no number of links"))?,
    };
    gpu.health.broken.retain(|getter, _| !getter.starts_with(LINK_STATE));
    for link in 0..count {
        let getter = format!("{LINK_STATE}({link})");
        if !matches!(gpu.spec().reading(&getter), Some(Reading::Ok(_))) {
            return Err(format!("{} has only {link} NVLinks", gpu.model));
        }
        gpu.health.broken.insert(getter, Reading::Ok(json!(0)));
    }
    Ok(())
}

impl Gpu {
    /// Ends the defects that this event ends.
    pub(crate) fn heal(&mut self, event: Until) {
        for (_, getter, until) in DEFECTS {
            if *until <= event {
                self.health.broken.remove(*getter);
            }
        }
    }

    /// Returns the answer of a getter: that of a defect, else the recorded one.
    pub fn answer(&self, getter: &str) -> Option<&Reading> {
        self.health.broken.get(getter).or_else(|| self.spec().reading(getter))
    }

    /// Returns the number that a defect makes a getter answer.
    pub fn broken(&self, getter: &str) -> Option<u64> {
        match self.health.broken.get(getter)? {
            Reading::Ok(value) => value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)),
            Reading::Err(_) => None,
        }
    }

    /// Returns a part of a structure or list: that of a defect, else the recorded one, else 0.
    pub fn part(&self, getter: &str, part: &str) -> u64 {
        self.broken(&format!("{getter}.{part}")).unwrap_or_else(|| match self.spec().reading(getter) {
            Some(Reading::Ok(value)) => {
                let found = part.parse::<usize>().map_or_else(|_| value.get(part), |index| value.get(index));
                found.and_then(Value::as_u64).unwrap_or(0)
            }
            _ => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelKey;
    use crate::state::Machine;

    fn gpu(model: ModelKey) -> Gpu {
        Machine::new("defects", &[model], String::new()).gpus.remove(0)
    }

    #[test]
    fn every_word_changes_one_answer_and_can_be_taken_back() {
        for (word, getter, _) in DEFECTS {
            let mut gpu = gpu(ModelKey::H200);
            assert_eq!(set(&mut gpu, word, "3"), Some(Ok(())));
            assert_eq!(gpu.broken(getter), Some(3), "{word}");
            assert_eq!(set(&mut gpu, word, AS_RECORDED), Some(Ok(())));
            assert!(gpu.health.broken.is_empty(), "{word}");
        }
        assert_eq!(set(&mut gpu(ModelKey::H100), "colour", "3"), None);
    }

    #[test]
    fn a_defect_ends_with_its_event() {
        let mut gpu = gpu(ModelKey::H200);
        for word in ["sram_uncorrected", "pcie_replays", "pcie_width"] {
            assert_eq!(set(&mut gpu, word, "3"), Some(Ok(())));
        }
        gpu.heal(Until::Reset);
        assert_eq!(gpu.part("nvmlDeviceGetSramEccErrorStatus", "volatileUncSecDed"), 0);
        assert_eq!(gpu.broken("nvmlDeviceGetPcieReplayCounter"), Some(3));
        gpu.heal(Until::Load);
        assert_eq!(gpu.broken("nvmlDeviceGetPcieReplayCounter"), None);
        assert_eq!(gpu.broken("nvmlDeviceGetCurrPcieLinkWidth"), Some(3));
    }

    #[test]
    fn only_links_that_are_there_go_down() {
        let mut four = gpu(ModelKey::H200);
        assert_eq!(set(&mut four, LINKS_DOWN, "4"), Some(Ok(())));
        assert_eq!(four.broken("nvmlDeviceGetNvLinkState(3)"), Some(0));
        assert!(set(&mut gpu(ModelKey::H100), LINKS_DOWN, "1").unwrap().is_err());
        assert_eq!(set(&mut four, LINKS_DOWN, AS_RECORDED), Some(Ok(())));
        assert!(four.health.broken.is_empty());
    }
}

//! The GPU models that can be simulated: fixed facts, recorded readings and MIG geometry.
//!
//! Owns everything that no setter can change. Readings come from real machines (each file in `recordings/` names its
//! machine). Must not know the state of any GPU.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A GPU model that the simulator supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ModelKey {
    #[serde(rename = "a100-80gb")]
    A100,
    #[serde(rename = "h100-80gb")]
    H100,
    #[serde(rename = "h200-141gb")]
    H200,
}

/// The architecture, for behaviour that depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    Ampere,
    Hopper,
}

/// A recorded answer of a getter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading {
    Ok(Value),
    Err(u32),
}

/// One GPU instance profile of a model.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What `nvmlDeviceGetGpuInstanceProfileInfo` takes.
    pub nvml_enum: u32,
    /// What `nvmlDeviceCreateGpuInstance` and `nvidia-smi mig -cgi` take.
    pub id: u32,
    pub name: String,
    pub starts: Vec<u32>,
    pub size: u32,
    pub slices: u32,
    pub max_count: u32,
    pub multiprocessors: u32,
    pub copy_engines: u32,
    pub decoders: u32,
    pub encoders: u32,
    pub jpegs: u32,
    pub ofas: u32,
    pub memory_mib: u64,
}

impl Profile {
    /// Whether the profile includes the media engines, of which a GPU has one set.
    pub fn has_media(&self) -> bool {
        self.name.ends_with("+me")
    }
}

/// Fixed properties of a model.
pub struct Model {
    pub key: ModelKey,
    pub arch: Arch,
    pub memory_slices: u32,
    pub compute_slices: u32,
    pub profiles: Vec<Profile>,
    /// Lowest and highest settable power limit and the default, in milliwatts.
    pub power_mw: (u32, u32, u32),
    pub memory_clocks_mhz: Vec<u32>,
    /// Lowest and highest graphics clock, in steps of 15 MHz.
    pub graphics_mhz: (u32, u32),
    readings: HashMap<String, Reading>,
}

#[derive(Deserialize)]
struct Recording {
    system: HashMap<String, Reading>,
    device: HashMap<String, Reading>,
}

#[derive(Deserialize)]
struct Geometry {
    memory_slices: u32,
    compute_slices: u32,
    profiles: Vec<GeometryProfile>,
}

#[derive(Deserialize)]
struct GeometryProfile {
    nvml_enum: u32,
    id: u32,
    name: String,
    starts: Vec<u32>,
    size: u32,
}

impl ModelKey {
    pub const ALL: [Self; 3] = [Self::A100, Self::H100, Self::H200];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::A100 => "a100-80gb",
            Self::H100 => "h100-80gb",
            Self::H200 => "h200-141gb",
        }
    }

    pub fn model(self) -> &'static Model {
        static A100: OnceLock<Model> = OnceLock::new();
        static H100: OnceLock<Model> = OnceLock::new();
        static H200: OnceLock<Model> = OnceLock::new();
        let (cell, arch) = match self {
            Self::A100 => (&A100, Arch::Ampere),
            Self::H100 => (&H100, Arch::Hopper),
            Self::H200 => (&H200, Arch::Hopper),
        };
        cell.get_or_init(|| Model::load(self, arch))
    }

    /// Returns the model's recording as JSON.
    pub fn recording(self) -> &'static str {
        match self {
            Self::A100 => include_str!("../recordings/a100-80gb.json"),
            Self::H100 => include_str!("../recordings/h100-80gb.json"),
            Self::H200 => include_str!("../recordings/h200-141gb.json"),
        }
    }
}

impl std::fmt::Display for ModelKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The name of a GPU model that is not simulated.
#[derive(Debug, thiserror::Error)]
#[error("unknown GPU model `{0}` (known: a100-80gb, h100-80gb, h200-141gb)")]
pub struct UnknownModel(pub String);

impl std::str::FromStr for ModelKey {
    type Err = UnknownModel;

    fn from_str(text: &str) -> Result<Self, UnknownModel> {
        Self::ALL.into_iter().find(|key| key.as_str() == text).ok_or_else(|| UnknownModel(text.to_owned()))
    }
}

impl Model {
    #[expect(
        clippy::expect_used,
        reason = "the recordings are compiled in and every one is loaded by a test"
    )]
    fn load(key: ModelKey, arch: Arch) -> Self {
        let recording: Recording = serde_json::from_str(key.recording()).expect("recording");
        let mut geometry: HashMap<String, Geometry> =
            serde_json::from_str(include_str!("../recordings/placements.json")).expect("placements");
        let geometry = geometry.remove(key.as_str()).expect("placements of the model");
        let mut readings = recording.device;
        readings.extend(recording.system);
        let number = |name: &str, field: &str| -> u64 {
            match readings.get(name) {
                Some(Reading::Ok(value)) => value.get(field).unwrap_or(value).as_u64().unwrap_or(0),
                _ => 0,
            }
        };
        let list = |name: &str| -> Vec<u32> {
            match readings.get(name) {
                Some(Reading::Ok(Value::Array(items))) => items.iter().filter_map(as_u32).collect(),
                _ => Vec::new(),
            }
        };
        let profiles = geometry
            .profiles
            .into_iter()
            .map(|p| {
                let reading = format!("nvmlDeviceGetGpuInstanceProfileInfo({})", p.nvml_enum);
                let field = |field: &str| number(&reading, field) as u32;
                Profile {
                    nvml_enum: p.nvml_enum,
                    id: p.id,
                    name: p.name,
                    starts: p.starts,
                    size: p.size,
                    slices: field("sliceCount"),
                    max_count: field("instanceCount"),
                    multiprocessors: field("multiprocessorCount"),
                    copy_engines: field("copyEngineCount"),
                    decoders: field("decoderCount"),
                    encoders: field("encoderCount"),
                    jpegs: field("jpegCount"),
                    ofas: field("ofaCount"),
                    memory_mib: number(&reading, "memorySizeMB"),
                }
            })
            .collect();
        let limits = list("nvmlDeviceGetPowerManagementLimitConstraints");
        let low_mhz = if arch == Arch::Ampere { 210 } else { 345 };
        Self {
            key,
            arch,
            memory_slices: geometry.memory_slices,
            compute_slices: geometry.compute_slices,
            profiles,
            power_mw: (
                limits.first().copied().unwrap_or(0),
                limits.get(1).copied().unwrap_or(0),
                number("nvmlDeviceGetPowerManagementDefaultLimit", "ok") as u32,
            ),
            memory_clocks_mhz: list("nvmlDeviceGetSupportedMemoryClocks"),
            graphics_mhz: (low_mhz, number("nvmlDeviceGetMaxClockInfo(0)", "ok") as u32),
            readings,
        }
    }

    /// Returns what the recorded device returned, if the getter was recorded.
    pub fn reading(&self, name: &str) -> Option<&Reading> {
        self.readings.get(name)
    }

    /// Returns a recorded number, or 0.
    pub fn number(&self, name: &str) -> u64 {
        match self.readings.get(name) {
            Some(Reading::Ok(value)) => value.as_u64().unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns a number inside a recorded structure, or 0.
    pub fn field(&self, name: &str, field: &str) -> u64 {
        match self.readings.get(name) {
            Some(Reading::Ok(value)) => value.get(field).and_then(Value::as_u64).unwrap_or(0),
            _ => 0,
        }
    }

    /// Returns a recorded text, or an empty one.
    pub fn text(&self, name: &str) -> &str {
        match self.readings.get(name) {
            Some(Reading::Ok(Value::String(text))) => text,
            _ => "",
        }
    }

    pub fn name(&self) -> &str {
        self.text("nvmlDeviceGetName")
    }

    pub fn profile_by_id(&self, id: u32) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.id == id)
    }

    pub fn profile_by_enum(&self, nvml_enum: u32) -> Option<&Profile> {
        self.profiles.iter().find(|p| p.nvml_enum == nvml_enum)
    }

    /// Returns all settable graphics clocks, highest first, as NVML lists them.
    pub fn graphics_clocks(&self) -> Vec<u32> {
        let (low, high) = self.graphics_mhz;
        (0..=(high.saturating_sub(low)) / 15).map(|step| high - step * 15).collect()
    }
}

fn as_u32(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_loads_with_a_full_geometry() {
        for key in ModelKey::ALL {
            let model = key.model();
            assert_eq!(model.profiles.len(), 7, "{key}");
            assert_eq!((model.memory_slices, model.compute_slices), (8, 7));
            assert!(model.power_mw.0 < model.power_mw.1 && model.power_mw.2 <= model.power_mw.1);
            for profile in &model.profiles {
                assert!(profile.slices > 0 && profile.memory_mib > 0, "{key} {}", profile.name);
                assert!(profile.starts.iter().all(|start| start + profile.size <= model.memory_slices));
            }
            assert_eq!(key.as_str().parse::<ModelKey>().unwrap(), key);
        }
        assert!("h300".parse::<ModelKey>().is_err());
    }

    #[test]
    fn the_highest_clock_comes_first() {
        let clocks = ModelKey::H100.model().graphics_clocks();
        assert_eq!(clocks.first(), Some(&1980));
        assert_eq!(clocks.last(), Some(&345));
    }
}

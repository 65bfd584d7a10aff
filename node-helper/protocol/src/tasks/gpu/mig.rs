//! `gpu_mig`: mode, layouts, configurations of mig-parted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Belief, GpuKind, GpuSelector, Hardware, Lasts, covers};
use crate::{
    Disruption, lenient,
    tasks::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words},
};

words! { MigMode { Enabled: "enabled" | "on" | "1", Disabled: "disabled" | "off" | "0" } }

words! { MigStrategy {
    /// Instances that are in the new layout stay.
    Minimal: "minimal",
    /// All instances are created anew when any differs.
    Rebuild: "rebuild",
} }

/// One instance at a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MigPlacement {
    /// Profile name as the driver gives it, such as `3g.40gb`; `1c.3g.40gb` is a compute instance that is a part of it.
    pub profile: String,
    /// First memory slice of the GPU instance; chosen by gpufleet when left out.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
}

/// The instances of one GPU.
///
/// `3g.40gb` is a GPU instance with one compute instance of its full size. `1c.3g.40gb` is a compute instance of one
/// slice; such instances share a GPU instance until it is full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a mapping of profile to count, or a list of {profile, start}")]
pub enum MigLayout {
    /// How many of each profile, such as `{3g.40gb: 2}`.
    Counts(BTreeMap<String, u32>),
    /// Profiles at places, such as `[{profile: 3g.40gb, start: 0}]`.
    Placements(Vec<MigPlacement>),
}

/// A PCI id: device and vendor, as mig-parted and NVML pack them in `0xDDDDVVVV`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PciId {
    pub device: u16,
    pub vendor: u16,
}

impl std::fmt::Display for PciId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0x{:04X}{:04X}", self.device, self.vendor)
    }
}

/// A board that a spec of mig-parted is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigFilter {
    pub device: PciId,
    pub subsystem: Option<PciId>,
}

/// A spec of a configuration of mig-parted: what some GPUs of a node get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MigSpec {
    /// Indexes of GPUs on their node; `None` for all.
    pub devices: Option<Vec<u32>>,
    /// One of them has to match; all boards do if there is none.
    pub filters: Vec<MigFilter>,
    pub enabled: bool,
    pub instances: BTreeMap<String, u32>,
}

/// A file of mig-parted: its path as written, and for the node what its configuration says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "the path of a file of mig-parted")]
pub enum MigConfigFile {
    Path(String),
    /// Made by the controller, which reads the file; the last spec that matches a GPU counts.
    Read {
        path: String,
        specs: Vec<MigSpec>,
    },
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for MigConfigFile {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MigConfigFile".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string"})
    }
}

/// Declares MIG mode and layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuMig {
    /// `enabled` or `disabled`; needed unless there is a `config_file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<MigMode>,
    /// Instances wanted, such as `{3g.40gb: 1, 1c.3g.40gb: 3}`; left out, the instances there are stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<MigLayout>,
    /// A file of NVIDIA's mig-parted on the controller, also inside a ConfigMap, found as a `src` of `copy`; it says mode
    /// and layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_file: Option<MigConfigFile>,
    /// The configuration of the file; may be left out where the file has only one.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// `minimal` (default) keeps instances that are in the new layout; `rebuild` creates all anew.
    #[serde(default = "minimal")]
    pub strategy: MigStrategy,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

fn minimal() -> MigStrategy {
    MigStrategy::Minimal
}

/// Whether a word is `[Cc.]Gg.Mgb[+attribute…]`, the form of every profile name of a driver.
///
/// Source: mig-parted's profile grammar; the device itself tells which profiles exist.
fn looks_like_profile(name: &str) -> bool {
    let base = name.split(['+', '-']).next().unwrap_or(name);
    let parts: Vec<&str> = base.split('.').collect();
    let number = |part: &str, unit: &str| {
        part.strip_suffix(unit).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    match parts.as_slice() {
        [gpu, memory] => number(gpu, "g") && number(memory, "gb"),
        [compute, gpu, memory] => number(compute, "c") && number(gpu, "g") && number(memory, "gb"),
        _ => false,
    }
}

/// The slices of the largest instance that NVML knows.
///
/// Source: nvml.h 13, `NVML_GPU_INSTANCE_PROFILE_8_SLICE`.
const MOST_SLICES: u64 = 8;

/// Returns how many slices a layout needs at least. Compute instances (`1c.3g.40gb`) share a GPU instance as far as they fit.
fn slices(layout: &MigLayout) -> u64 {
    let counted: Vec<(&str, u64)> = match layout {
        MigLayout::Counts(counts) => {
            counts.iter().map(|(name, count)| (name.as_str(), u64::from(*count))).collect()
        }
        MigLayout::Placements(places) => places.iter().map(|place| (place.profile.as_str(), 1)).collect(),
    };
    let number = |part: &str, unit: char| part.strip_suffix(unit)?.parse::<u64>().ok();
    let mut whole = 0_u64;
    // By GPU profile, the compute slices asked for.
    let mut shared: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in counted {
        let (first, rest) = name.split_once('.').unwrap_or((name, ""));
        match (number(first, 'g'), number(first, 'c')) {
            (Some(size), _) => whole = whole.saturating_add(size.saturating_mul(count)),
            (None, Some(size)) => {
                let asked = shared.entry(rest).or_default();
                *asked = asked.saturating_add(size.saturating_mul(count));
            }
            (None, None) => {}
        }
    }
    let around = |(name, asked): (&str, u64)| {
        let size = name.split_once('.').and_then(|(first, _)| number(first, 'g')).filter(|size| *size > 0)?;
        Some(asked.div_ceil(size).saturating_mul(size))
    };
    shared.into_iter().filter_map(around).fold(whole, u64::saturating_add)
}

impl Kind for GpuMig {
    const INFO: KindInfo = KindInfo {
        name: "gpu_mig",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Reboot,
        gpus: true,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[
            Number::from("gpus", None, 0),
            Number::from("layout.*", None, 0),
            Number::from("layout.start", None, 0),
        ],
        since: &[],
        summary: "Declares MIG mode and the layout of GPU and compute instances.",
        example: "gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        match &self.config_file {
            Some(MigConfigFile::Read { .. }) => {
                return Err(ParamError::new("config_file", "it wants the path of a file of mig-parted"));
            }
            Some(MigConfigFile::Path(path)) if path.trim().is_empty() => {
                return Err(ParamError::new("config_file", "it wants the path of a file of mig-parted"));
            }
            Some(MigConfigFile::Path(_)) => {
                let said = [("mode", self.mode.is_some()), ("layout", self.layout.is_some())];
                return match said.iter().find(|(_, given)| *given) {
                    Some((name, _)) => Err(ParamError::new(
                        *name,
                        format!("`config_file` says mode and layout, so `{name}` beside it is one too many"),
                    )),
                    None => Ok(()),
                };
            }
            None if self.config.is_some() => {
                return Err(ParamError::new(
                    "config",
                    "`config` is one of a `config_file`, and there is none",
                ));
            }
            None => {}
        }
        let Some(mode) = self.mode else {
            return Err(ParamError::new("mode", "`mode` is needed, or a `config_file` that says it"));
        };
        let Some(layout) = &self.layout else { return Ok(()) };
        let profiles: Vec<&String> = match layout {
            MigLayout::Counts(counts) => counts.keys().collect(),
            MigLayout::Placements(places) => places.iter().map(|place| &place.profile).collect(),
        };
        if mode == MigMode::Disabled && !profiles.is_empty() {
            return Err(ParamError::new("layout", "a layout needs `mode: enabled`"));
        }
        if let Some(name) = profiles.into_iter().find(|name| !looks_like_profile(name)) {
            return Err(ParamError::new(
                "layout",
                format!(
                    "`{name}` is not a MIG profile; profiles look like `3g.40gb`, `1c.3g.40gb` or `1g.10gb+me`"
                ),
            ));
        }
        match slices(layout) {
            needed if needed > MOST_SLICES => Err(ParamError::new(
                "layout",
                format!("it needs {needed} slices, and no GPU has more than {MOST_SLICES}"),
            )),
            _ => Ok(()),
        }
    }
}

impl GpuKind for GpuMig {
    const HARDWARE: Hardware = Hardware {
        reads: &[
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetGpuInstanceProfileInfoV",
            "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
            "nvmlDeviceGetGpuInstances",
            "nvmlGpuInstanceGetComputeInstances",
            "/sys/bus/pci/devices/*/{vendor,device,subsystem_vendor,subsystem_device}",
        ],
        writes: &[
            "nvmlDeviceSetMigMode",
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            "nvmlGpuInstanceCreateComputeInstance, also WithPlacement",
            "nvmlComputeInstanceDestroy",
            "nvmlGpuInstanceDestroy",
            "systemctl start nvidia-cdi-refresh.service",
        ],
        takes_effect: "mode: Ampere at a reset, Hopper and later at once; instances: at once",
        survives_reset: Lasts::Partly("mode: yes; instances: no"),
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Partly("mode: Ampere yes, Hopper and later no; instances: no"),
        survives_reboot: Lasts::Partly("mode: Ampere yes, Hopper and later no; instances: no"),
        architectures: "Ampere (A100, A30), Hopper, Blackwell; profiles and places are those that the driver lists",
        source: "nvml.h 13; NVIDIA MIG User Guide r580; NVIDIA/mig-parted 0.15",
        beliefs: &[
            Belief {
                believed: "enable MIG, then reboot",
                fact: "Ampere needs a reset only; on Hopper and later the mode is there at once, and a reboot takes it away",
            },
            Belief {
                believed: "instances stay until they are destroyed",
                fact: "every reset, reload and reboot destroys them, so that they have to be created again",
            },
            Belief {
                believed: "the ids of profiles are the same everywhere",
                fact: "14 is 2g on an A100 and 1g on an A30; only the GPU itself tells",
            },
            Belief {
                believed: "a layout that fits is created in any order",
                fact: "the driver's own places may leave none for a large one; gpufleet chooses the places before",
            },
            Belief {
                believed: "`nvidia-smi mig -lgi` fails where MIG is off",
                fact: "it exits with 0 and a sentence, so that no script may judge by it",
            },
        ],
    };
}

impl GpuMig {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        // A mode without a layout leaves the instances there are.
        let leaves =
            newer.mode == Some(MigMode::Enabled) && newer.layout.is_none() && newer.config_file.is_none();
        let has_layout = self.layout.is_some() || self.config_file.is_some();
        let stays = leaves && has_layout && self.mode != Some(MigMode::Disabled);
        covers(&newer.gpus, &self.gpus) && !stays
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_mode_alone_does_not_replace_a_layout() {
        let mig = |value: Value| -> GpuMig { serde_json::from_value(value).unwrap() };
        let (on, off) = (mig(json!({"mode": "enabled"})), mig(json!({"mode": "disabled"})));
        let two = mig(json!({"mode": "enabled", "layout": {"3g.40gb": 2}}));
        assert!(!two.gives_way(&on) && two.gives_way(&off) && two.gives_way(&two));
        assert!(on.gives_way(&two) && off.gives_way(&on) && on.gives_way(&on));
    }

    #[test]
    fn a_layout_that_no_gpu_has_room_for_is_refused() {
        let read = |layout: Value| GpuMig::INFO.parse(json!({"mode": "enabled", "layout": layout}));
        for right in [
            json!({"3g.40gb": 2}),
            json!({"1g.10gb": 7}),
            json!({"1g.10gb": 4, "1g.10gb+me": 1, "1c.3g.40gb": 2}),
            json!({"1c.3g.40gb": 6, "1g.10gb": 1}),
            json!({"2c.3g.40gb": 1, "1c.3g.40gb": 1}),
            json!([{"profile": "3g.40gb", "start": 0}, {"profile": "3g.40gb", "start": 4}]),
            json!({"0c.0g.1gb": 9}),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for (wrong, needed) in [
            (json!({"3g.40gb": 3}), 9),
            (json!({"7g.80gb": 1, "2g.20gb": 1}), 9),
            (json!({"1c.3g.40gb": 7}), 9),
            (json!({"1c.4g.40gb": 5, "1g.10gb": 1}), 9),
        ] {
            let why = read(wrong).unwrap_err().to_string();
            assert_eq!(why, format!("it needs {needed} slices, and no GPU has more than 8"));
        }
    }
}

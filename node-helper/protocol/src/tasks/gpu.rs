//! Parameters of the GPU kinds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words};
use crate::{Disruption, Unit, lenient};

/// The GPUs that a task applies to: all if empty, otherwise the union of the entries.
pub type GpuSelector = Vec<GpuSelectorItem>;

/// Whether a newer task applies to the same GPUs, or to all.
fn covers(newer: &GpuSelector, older: &GpuSelector) -> bool {
    newer.is_empty() || newer == older
}

/// One entry of `gpus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(from = "Scalar", into = "Scalar")]
pub enum GpuSelectorItem {
    /// Index in PCI order.
    Index(u32),
    /// UUID (`GPU-…`), PCI address (`0000:5d:00.0`) or a part of the product name (`H100`).
    Text(String),
}

/// A number or text, the way both are written in YAML.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "an index, a UUID, a PCI address or a part of a product name")]
enum Scalar {
    Number(u32),
    Text(String),
}

impl From<Scalar> for GpuSelectorItem {
    fn from(scalar: Scalar) -> Self {
        match scalar {
            Scalar::Number(index) => Self::Index(index),
            Scalar::Text(text) => text.trim().parse().map_or(Self::Text(text), Self::Index),
        }
    }
}

impl From<GpuSelectorItem> for Scalar {
    fn from(item: GpuSelectorItem) -> Self {
        match item {
            GpuSelectorItem::Index(index) => Self::Number(index),
            GpuSelectorItem::Text(text) => Self::Text(text),
        }
    }
}

words! { PersistenceMode {
    /// nvidia-persistenced runs and is enabled at boot.
    Daemon: "daemon",
    /// The kernel flag, lost at reboot.
    Legacy: "legacy",
    Off: "off" | "none" | "disabled",
} }

/// Keeps the driver loaded while no client runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuPersistence {
    /// `daemon`: nvidia-persistenced runs and is enabled; `legacy`: the kernel flag, lost at reboot; `off`.
    pub mode: PersistenceMode,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}
impl Kind for GpuPersistence {
    const INFO: KindInfo = KindInfo {
        name: "gpu_persistence",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: true,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("gpus", None, 0)],
        since: &[],
        summary: "Keeps the driver loaded while no client runs, through the daemon or the legacy flag.",
        example: "gpu_persistence: {mode: daemon}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuPersistence {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}

words! { EccMode { Enabled: "enabled" | "on" | "1", Disabled: "disabled" | "off" | "0" } }

/// Sets the ECC mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuEcc {
    /// `enabled` or `disabled`; current after the next reset or reboot.
    pub mode: EccMode,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}
impl Kind for GpuEcc {
    const INFO: KindInfo = KindInfo {
        name: "gpu_ecc",
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
        numbers: &[Number::from("gpus", None, 0)],
        since: &[],
        summary: "Sets the ECC mode, which becomes current with the next reset or reboot.",
        example: "gpu_ecc: {mode: enabled}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuEcc {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}

words! { MigMode { Enabled: "enabled" | "on" | "1", Disabled: "disabled" | "off" | "0" } }

words! { MigStrategy {
    /// Instances that are in the new layout stay.
    Minimal: "minimal",
    /// All instances are created anew when any differs.
    Rebuild: "rebuild",
} }

/// One GPU instance at a place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MigPlacement {
    /// Profile name as the driver gives it, such as `3g.40gb`.
    pub profile: String,
    /// First memory slice; chosen by gpufleet when left out.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
}

/// The GPU instances of one GPU; each gets one compute instance of its full size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a mapping of profile to count, or a list of {profile, start}")]
pub enum MigLayout {
    /// How many of each profile, such as `{3g.40gb: 2}`.
    Counts(BTreeMap<String, u32>),
    /// Profiles at places, such as `[{profile: 3g.40gb, start: 0}]`.
    Placements(Vec<MigPlacement>),
}

/// Declares MIG mode and layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuMig {
    /// `enabled` or `disabled`.
    pub mode: MigMode,
    /// GPU instances wanted; left out, the instances there are stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<MigLayout>,
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
        let Some(layout) = &self.layout else { return Ok(()) };
        let profiles: Vec<&String> = match layout {
            MigLayout::Counts(counts) => counts.keys().collect(),
            MigLayout::Placements(places) => places.iter().map(|place| &place.profile).collect(),
        };
        if self.mode == MigMode::Disabled && !profiles.is_empty() {
            return Err(ParamError::new("layout", "a layout needs `mode: enabled`"));
        }
        match profiles.into_iter().find(|name| !looks_like_profile(name)) {
            Some(name) => Err(ParamError::new(
                "layout",
                format!("`{name}` is not a MIG profile; profiles look like `3g.40gb` or `1g.10gb+me`"),
            )),
            None => Ok(()),
        }
    }
}

impl GpuMig {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}

/// Sets the power limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuPower {
    /// Limit in watts.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub limit_watts: Option<u32>,
    /// Limit in percent of the default limit of the GPU.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub limit_percent: Option<u32>,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

impl Kind for GpuPower {
    const INFO: KindInfo = KindInfo {
        name: "gpu_power",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
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
            Number::from("limit_watts", Some(Unit::Watts), 1),
            Number::within("limit_percent", Some(Unit::Percent), 1, 200),
        ],
        since: &[],
        summary: "Sets the power limit of GPUs.",
        example: "gpu_power: {limit_watts: 600}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        match (self.limit_watts, self.limit_percent) {
            (None, None) => {
                Err(ParamError::new("limit_watts", "one of `limit_watts` and `limit_percent` is needed"))
            }
            (Some(_), Some(_)) => {
                Err(ParamError::new("limit_percent", "`limit_watts` and `limit_percent` exclude each other"))
            }
            _ => Ok(()),
        }
    }
}

impl GpuPower {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}

/// A clock, or the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged, expecting = "a clock in MHz or a list of two")]
pub enum ClockRange {
    Fixed(u32),
    Range([u32; 2]),
}

impl ClockRange {
    /// Returns the lowest and highest clock, in MHz.
    pub const fn bounds(self) -> (u32, u32) {
        match self {
            Self::Fixed(clock) => (clock, clock),
            Self::Range([low, high]) => (low, high),
        }
    }
}

/// Locks clocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuClocks {
    /// Graphics clock in MHz, or lowest and highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphics_mhz: Option<ClockRange>,
    /// Memory clock in MHz, or lowest and highest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<ClockRange>,
    /// Gives the clocks back to the driver.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub reset: bool,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

impl Kind for GpuClocks {
    const INFO: KindInfo = KindInfo {
        name: "gpu_clocks",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
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
            Number::from("graphics_mhz", Some(Unit::Megahertz), 1),
            Number::from("memory_mhz", Some(Unit::Megahertz), 1),
        ],
        since: &[],
        summary: "Locks graphics or memory clocks, or gives them back to the driver.",
        example: "gpu_clocks: {graphics_mhz: [1200, 1980]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let given = self.graphics_mhz.is_some() || self.memory_mhz.is_some();
        if self.reset == given {
            let message = "give `graphics_mhz`, `memory_mhz` or both, or else `reset: true`";
            // One of them by name, because `gpus` alone is not what is wrong.
            return Err(ParamError::new("graphics_mhz", message));
        }
        for (name, range) in [("graphics_mhz", self.graphics_mhz), ("memory_mhz", self.memory_mhz)] {
            let Some((low, high)) = range.map(ClockRange::bounds) else { continue };
            if low > high {
                return Err(ParamError::new(name, format!("{low} to {high} MHz is not a range of clocks")));
            }
        }
        Ok(())
    }
}

impl GpuClocks {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        // The two clocks are independent.
        let both = (self.graphics_mhz.is_none() || newer.graphics_mhz.is_some())
            && (self.memory_mhz.is_none() || newer.memory_mhz.is_some());
        covers(&newer.gpus, &self.gpus) && (newer.reset || both)
    }
}

words! { ComputeModeName {
    Default: "default",
    ExclusiveProcess: "exclusive_process" | "exclusive-process",
    Prohibited: "prohibited",
} }

/// Sets the compute mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuComputeMode {
    /// `default`, `exclusive_process` or `prohibited`.
    pub mode: ComputeModeName,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}
impl Kind for GpuComputeMode {
    const INFO: KindInfo = KindInfo {
        name: "gpu_compute_mode",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: true,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::from("gpus", None, 0)],
        since: &[],
        summary: "Sets who may use a GPU: all processes, one, or none.",
        example: "gpu_compute_mode: {mode: default}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuComputeMode {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}

words! { MpsState { Started: "started", Stopped: "stopped" } }

/// Runs the CUDA MPS control daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuMps {
    /// `started` or `stopped`.
    pub state: MpsState,
    /// Share of the threads that a client gets unless it asks for less, in percent.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub default_active_thread_percentage: Option<u32>,
    /// Device memory that a client may pin unless told otherwise, such as `8G`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub default_pinned_memory_limit: Option<String>,
    /// GPUs meant: indexes, UUIDs, PCI addresses or parts of product names; all when left out.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub gpus: GpuSelector,
}

impl Kind for GpuMps {
    const INFO: KindInfo = KindInfo {
        name: "gpu_mps",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Clients,
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
            Number::within("default_active_thread_percentage", Some(Unit::Percent), 1, 100),
        ],
        since: &[],
        summary: "Runs the CUDA MPS control daemon as a systemd unit, with its limits, or stops it cleanly.",
        example: "gpu_mps: {state: started, default_active_thread_percentage: 50}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl GpuMps {
    /// Whether a newer task declares everything that this one does.
    pub fn gives_way(&self, newer: &Self) -> bool {
        covers(&newer.gpus, &self.gpus)
    }
}

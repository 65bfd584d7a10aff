//! Signals: what a node says about itself, for the checks of an audit to judge.
//!
//! The helper reads, the controller judges. Every signal has one of three values: what was read, that the node lacks
//! it, or that it could not be read. Invariant: a failed reading is [`Signal::Unknown`] and never [`Signal::Absent`].

mod registry;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Value, json};

pub use registry::{SIGNALS, Scope, SignalInfo};

/// One reading.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// A number, a text, a boolean or a list of these.
    Known(Value),
    /// The node, the GPU or the driver lacks what is read: NVML says NOT_SUPPORTED or FUNCTION_NOT_FOUND, the file does
    /// not exist, the subsystem is not there.
    Absent,
    /// It could not be read, and why.
    Unknown(String),
}

const UNKNOWN: &str = "unknown";

impl Signal {
    /// A reading of NVML: an error code that says "not there" is absent, any other is unknown.
    pub fn of<T: Into<Value>>(reading: crate::nvml::Reading<T>) -> Self {
        use crate::nvml::Code;
        match reading {
            Ok(value) => Self::Known(value.into()),
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) => Self::Absent,
            Err(code) => Self::Unknown(code.to_string()),
        }
    }

    pub const fn known(&self) -> Option<&Value> {
        match self {
            Self::Known(value) => Some(value),
            Self::Absent | Self::Unknown(_) => None,
        }
    }
}

impl<T: Into<Value>> From<T> for Signal {
    fn from(value: T) -> Self {
        match value.into() {
            Value::Null => Self::Absent,
            value => Self::Known(value),
        }
    }
}

/// On the wire, in the journal and for `register` a value is itself, absent is `null`, and unknown is
/// `{"unknown": "why"}`.
impl Serialize for Signal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Known(value) => value.serialize(serializer),
            Self::Absent => serializer.serialize_unit(),
            Self::Unknown(why) => json!({ UNKNOWN: why }).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Signal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Self::Absent),
            Value::Object(map) => match map.get(UNKNOWN) {
                Some(Value::String(why)) if map.len() == 1 => Ok(Self::Unknown(why.clone())),
                _ => Err(de::Error::custom("a signal is a value, null, or {\"unknown\": why}")),
            },
            value => Ok(Self::Known(value)),
        }
    }
}

/// Readings by the names of [`SIGNALS`].
pub type Readings = BTreeMap<String, Signal>;

/// What a node was found to have and to be, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Signals {
    /// Boot that the node was in; `None` if the kernel does not tell. Counters compare within one boot.
    #[serde(default)]
    pub boot_id: Option<String>,
    /// Seconds since that boot.
    #[serde(default)]
    pub uptime_s: u64,
    /// Readings of the node as a whole.
    pub node: Readings,
    /// GPUs, in the order of their indexes, unreadable ones included.
    #[serde(default)]
    pub gpus: Vec<SubjectReadings>,
    /// File systems that hold data, by mount point.
    #[serde(default)]
    pub disks: Vec<SubjectReadings>,
    /// Ports of RDMA devices, such as `mlx5_0/1`; none of virtual functions and of devices made of software.
    #[serde(default)]
    pub ports: Vec<SubjectReadings>,
    /// What the kernel logged about GPUs and the machine since it booted, oldest first; at most
    /// [`Self::MOST_RECORDS`].
    #[serde(default)]
    pub records: Vec<KernelRecord>,
    /// CPU time that the readings took, in milliseconds, of the helper and the processes that it started.
    #[serde(default)]
    pub cpu_ms: u64,
}

impl Signals {
    pub const MOST_RECORDS: usize = 200;
}

/// Readings of one part of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SubjectReadings {
    /// What stays the same over boots: the UUID of a GPU, a mount point, a port.
    pub id: String,
    /// What a person calls it: `GPU 0`, `/var`, `mlx5_0/1`.
    pub label: String,
    pub readings: Readings,
}

/// A line of the kernel's log that a check may judge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRecord {
    /// Microseconds since the boot; `None` if the line has no time.
    #[serde(default)]
    pub at_us: Option<u64>,
    pub sort: RecordSort,
    /// The code of an Xid or SXid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// PCI address of the GPU as sysfs writes it (`0000:5d:00.0`), where the line names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Whether something since settled it: a new start of the driver, a reset of that GPU by gpufleet, or the driver
    /// itself, which withdrew its request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
    /// The line, without its time, at most 300 bytes.
    pub text: String,
}

/// What a line of the kernel's log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordSort {
    /// `NVRM: Xid`.
    Xid,
    /// `nvidia-nvswitch: SXid`.
    Sxid,
    /// Any other line of the NVIDIA driver that tells of a failure.
    Nvrm,
    /// The kernel killed a process for want of memory.
    Oom,
    /// A machine check or another report of broken hardware.
    Hardware,
    /// An oops, a lockup, a stall, a task that hangs.
    Kernel,
    /// A disk or file system that fails.
    Disk,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::Code;

    #[test]
    fn three_values_survive_the_wire_and_read_plainly() {
        let readings: Readings = [
            ("a", Signal::from(3)),
            ("b", Signal::Absent),
            ("c", Signal::Unknown("no permission".to_owned())),
            ("d", Signal::from(vec!["x", "y"])),
        ]
        .map(|(name, signal)| (name.to_owned(), signal))
        .into();
        let text = serde_json::to_string(&readings).unwrap();
        assert_eq!(text, r#"{"a":3,"b":null,"c":{"unknown":"no permission"},"d":["x","y"]}"#);
        assert_eq!(serde_json::from_str::<Readings>(&text).unwrap(), readings);
        assert!(serde_json::from_str::<Signal>(r#"{"known":3}"#).is_err());
    }

    #[test]
    fn only_codes_that_say_so_make_a_reading_absent() {
        assert_eq!(Signal::of(Ok(1_u32)), Signal::from(1));
        assert_eq!(Signal::of::<u32>(Err(Code::NOT_SUPPORTED)), Signal::Absent);
        assert_eq!(Signal::of::<u32>(Err(Code::FUNCTION_NOT_FOUND)), Signal::Absent);
        for code in [Code::NO_PERMISSION, Code::GPU_IS_LOST, Code::UNKNOWN, Code::NOT_FOUND] {
            assert!(matches!(Signal::of::<u32>(Err(code)), Signal::Unknown(_)), "{code}");
        }
    }
}

//! Replays the recordings of real devices against the library, symbol by symbol, through the dynamic loader.
//!
//! Values of a single device (serial numbers, ids) are compared by shape only; anything else must be as recorded.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nvml_sim::model::ModelKey;
use nvml_sim::state::{Bus, Machine};
use nvml_sim::store::Store;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlFieldValue_st};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Recording {
    system: BTreeMap<String, Value>,
    device: BTreeMap<String, Value>,
}

type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;

/// Scratch memory that calls write into.
struct Buffers(Vec<Vec<u64>>);

impl Buffers {
    fn new() -> Self {
        Self(vec![vec![0; 1024]; 5])
    }

    fn pointer(&mut self, index: usize) -> usize {
        self.0[index].as_mut_ptr() as usize
    }

    fn number(&self, index: usize) -> u64 {
        self.0[index][0]
    }

    fn words(&self) -> Vec<u32> {
        self.0[0].iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect()
    }

    fn text(&self, offset: usize) -> String {
        let bytes: Vec<u8> = self.0[0].iter().flat_map(|word| word.to_le_bytes()).skip(offset).collect();
        String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap()).into_owned()
    }
}

/// The memory layout of a getter's result.
enum Shape {
    Number,
    Numbers(usize),
    Text,
    List,
    /// A fixed array without a count; unused entries have this value.
    Array(u64),
    /// 32-bit words, from the second one on if the first is a version.
    Words {
        fields: &'static [&'static str],
        version: Option<u32>,
    },
    Longs(&'static [&'static str]),
    /// A version word, then a text or a number at this byte offset.
    VersionedText {
        version: u32,
    },
    VersionedNumber {
        version: u32,
        offset: usize,
    },
    Pci,
    Profile,
}

/// Words of the structure's version 3 after the version; those with `_` are the cluster's UUID.
const FABRIC: &[&str] = &["_", "_", "_", "_", "status", "cliqueId", "state", "healthMask", "healthSummary"];

const PROFILE: &[&str] = &[
    "id",
    "isP2pSupported",
    "sliceCount",
    "instanceCount",
    "multiprocessorCount",
    "copyEngineCount",
    "decoderCount",
    "encoderCount",
    "jpegCount",
    "ofaCount",
];

fn shape(name: &str, value: &Value) -> Shape {
    match name {
        "nvmlDeviceGetBAR1MemoryInfo" => Shape::Longs(&["bar1Total", "bar1Free", "bar1Used"]),
        "nvmlDeviceGetMemoryInfo" | "nvmlDeviceGetConfComputeProtectedMemoryUsage" => {
            Shape::Longs(&["total", "free", "used"])
        }
        "nvmlDeviceGetConfComputeMemSizeInfo" => {
            Shape::Longs(&["protectedMemSizeKib", "unprotectedMemSizeKib"])
        }
        "nvmlDeviceGetFBCStats" => {
            Shape::Words { fields: &["sessionsCount", "averageFPS", "averageLatency"], version: None }
        }
        "nvmlDeviceGetC2cModeInfoV" => Shape::Words { fields: &["isC2cEnabled"], version: None },
        "nvmlDeviceGetUtilizationRates" => Shape::Words { fields: &["gpu", "memory"], version: None },
        "nvmlDeviceGetRowRemapperHistogram" => {
            Shape::Words { fields: &["max", "high", "partial", "low", "none"], version: None }
        }
        "nvmlDeviceGetGpuFabricInfoV" => Shape::Words { fields: FABRIC, version: Some(40 | 3 << 24) },
        "nvmlSystemGetConfComputeCapabilities" => {
            Shape::Words { fields: &["cpuCaps", "gpusCaps"], version: None }
        }
        "nvmlSystemGetConfComputeState" => {
            Shape::Words { fields: &["environment", "ccFeature", "devToolsMode"], version: None }
        }
        "nvmlDeviceGetPciInfo" | "nvmlDeviceGetPciInfo_v3" => Shape::Pci,
        "nvmlDeviceGetCurrentClockFreqs" | "nvmlDeviceGetPerformanceModes" => {
            Shape::VersionedText { version: 2052 | 1 << 24 }
        }
        "nvmlSystemGetDriverBranch" => Shape::VersionedText { version: 84 | 1 << 24 },
        "nvmlDeviceGetAddressingMode"
        | "nvmlDeviceGetMarginTemperature"
        | "nvmlDeviceGetUnrepairableMemoryFlag_v1" => {
            Shape::VersionedNumber { version: 8 | 1 << 24, offset: 1 }
        }
        "nvmlDeviceGetPdi" => Shape::VersionedNumber { version: 16 | 1 << 24, offset: 2 },
        "nvmlDeviceGetRepairStatus" => Shape::Words { fields: &["0", "1"], version: Some(12 | 1 << 24) },
        "nvmlSystemGetConfComputeKeyRotationThresholdInfo" => {
            Shape::VersionedNumber { version: 16 | 1 << 24, offset: 2 }
        }
        "nvmlDeviceGetSupportedMemoryClocks" => Shape::List,
        "nvmlDeviceGetSupportedPerformanceStates" => Shape::Array(32),
        "nvmlDeviceGetDynamicPstatesInfo" => Shape::Words { fields: &["flags"], version: None },
        "nvmlDeviceGetGpuInstanceProfileInfo" => Shape::Profile,
        "nvmlDeviceGetDefaultEccMode" => Shape::Number,
        _ => match value {
            Value::String(_) => Shape::Text,
            Value::Array(items) if items.is_empty() => Shape::List,
            Value::Array(items) => Shape::Numbers(items.len()),
            _ => Shape::Number,
        },
    }
}

/// Calls a getter by its shape and returns what it wrote, in the recording's form.
fn call(function: Function, device: Option<usize>, indexes: &[usize], shape: &Shape) -> (u32, Value) {
    let mut buffers = Buffers::new();
    let mut arguments: Vec<usize> = device.into_iter().chain(indexes.iter().copied()).collect();
    let base = buffers.pointer(0);
    let first = |buffers: &mut Buffers, word: u32| buffers.0[0][0] = word.into();
    match shape {
        Shape::Text => arguments.extend([base, 4096]),
        Shape::Numbers(count) => (0..*count).for_each(|index| arguments.push(buffers.pointer(index))),
        Shape::List => {
            first(&mut buffers, 64);
            arguments.extend([base, buffers.pointer(1)]);
        }
        Shape::Array(_) => arguments.extend([base, 64]),
        Shape::VersionedText { version } | Shape::VersionedNumber { version, .. } => {
            first(&mut buffers, *version);
            arguments.extend([base, 84]);
        }
        Shape::Words { version, .. } => {
            first(&mut buffers, version.unwrap_or(0));
            arguments.push(base);
        }
        Shape::Profile => {
            // Version 2 of the structure: it carries the name.
            first(&mut buffers, 152 | 2 << 24);
            arguments.push(base);
        }
        Shape::Number => arguments.extend([base, buffers.pointer(1), buffers.pointer(2)]),
        Shape::Longs(_) | Shape::Pci => arguments.push(base),
    }
    arguments.resize(6, 0);
    // SAFETY: every pointer argument is one of the buffers, all larger than what the getter writes.
    let code = unsafe {
        function(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5])
    };
    let words = buffers.words();
    let value = match shape {
        Shape::Number => json!(buffers.number(0)),
        Shape::Numbers(count) => (0..*count).map(|index| json!(buffers.number(index))).collect(),
        Shape::Text => json!(buffers.text(0)),
        Shape::List => {
            let count = buffers.number(0) as usize;
            let items: Vec<u32> = buffers.0[1]
                .iter()
                .flat_map(|w| [*w as u32, (*w >> 32) as u32])
                .take(count.min(64))
                .collect();
            json!(items)
        }
        Shape::Array(end) => {
            words.iter().take(16).filter(|w| u64::from(**w) != *end).map(|w| json!(w)).collect()
        }
        Shape::Words { fields, version } => {
            let skip = usize::from(version.is_some());
            let pairs = fields.iter().zip(words.iter().skip(skip));
            if fields.first() == Some(&"0") {
                pairs.map(|(_, word)| json!(word)).collect()
            } else {
                let named = pairs.filter(|(field, _)| **field != "_");
                // A byte, with three bytes of padding.
                let byte = |field: &str| matches!(field, "state" | "healthSummary");
                let value = |field: &str, word: u32| json!(if byte(field) { word & 0xff } else { word });
                Value::Object(named.map(|(field, word)| ((*field).to_owned(), value(field, *word))).collect())
            }
        }
        Shape::Longs(fields) => Value::Object(
            fields.iter().zip(&buffers.0[0]).map(|(f, w)| ((*f).to_owned(), json!(w))).collect(),
        ),
        Shape::VersionedText { .. } => json!(buffers.text(4)),
        Shape::VersionedNumber { offset, .. } => {
            if *offset == 2 {
                json!(buffers.0[0][1])
            } else {
                json!(words[1])
            }
        }
        Shape::Pci => json!({
            "busIdLegacy": buffers.text(0), "domain": words[4], "bus": words[5], "device": words[6],
            "pciDeviceId": words[7], "pciSubSystemId": words[8], "busId": buffers.text(36),
        }),
        Shape::Profile => {
            let mut object: serde_json::Map<String, Value> =
                PROFILE.iter().zip(&words[1..]).map(|(f, w)| ((*f).to_owned(), json!(w))).collect();
            object.insert("memorySizeMB".to_owned(), json!(buffers.0[0][6]));
            object.insert("name".to_owned(), json!(buffers.text(56)));
            Value::Object(object)
        }
    };
    (code, value)
}

/// Splits a recorded key into the getter's name and arguments: `name(1,2)`, `name(type=0,counter=1)`.
fn parts(key: &str) -> (&str, Vec<usize>) {
    let Some((name, rest)) = key.split_once('(') else { return (key, Vec::new()) };
    let numbers =
        rest.trim_end_matches(')').split(',').filter_map(|item| item.rsplit('=').next()?.parse().ok());
    (name, numbers.collect())
}

/// Returns a recorded structure without parts that cannot be compared (the version word, parts that the shape lacks).
fn comparable(name: &str, recorded: &Value, shape: &Shape) -> Value {
    match (recorded, shape) {
        (Value::Object(fields), Shape::VersionedText { .. }) => {
            fields.get("branch").cloned().unwrap_or_default()
        }
        (Value::Object(fields), Shape::VersionedNumber { .. }) => {
            fields.get("attackerAdvantage").cloned().unwrap_or_default()
        }
        (Value::Object(fields), Shape::Words { fields: wanted, .. }) => Value::Object(
            fields
                .iter()
                .filter(|(k, _)| wanted.contains(&k.as_str()))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        ),
        (Value::Object(fields), _) => Value::Object(
            fields.iter().filter(|(k, _)| *k != "version").map(|(k, v)| (k.clone(), v.clone())).collect(),
        ),
        (Value::Array(items), Shape::Number) if name == "nvmlDeviceGetDefaultEccMode" => items[0].clone(),
        _ => recorded.clone(),
    }
}

/// Asks for one field, and returns its own code and its value by the type that the driver gave it.
fn field(library: &NvmlLib, device: usize, id: u32) -> (u32, Value) {
    // SAFETY: a C structure of numbers.
    let mut value: nvmlFieldValue_st = unsafe { std::mem::zeroed() };
    (value.fieldId, value.nvmlReturn, value.valueType) = (id, 999, u32::MAX);
    // SAFETY: NVML's documented call with a pointer to a local; the type tells which member was written.
    unsafe {
        assert_eq!(library.nvmlDeviceGetFieldValues(device as *mut _, 1, &raw mut value), 0);
        let number = match value.valueType {
            1 => json!(value.value.uiVal),
            3 => json!(value.value.ullVal),
            5 => json!(value.value.siVal),
            other => json!(format!("type {other}")),
        };
        (value.nvmlReturn, number)
    }
}

fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.parent().unwrap();
    [deps.join("libnvml_sim.so"), deps.parent().unwrap().join("libnvml_sim.so")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo builds the library with this test")
}

const OWN: [&str; 3] = ["nvmlDeviceGetUUID", "nvmlDeviceGetSerial", "nvmlDeviceGetPdi"];

#[test]
fn getters_answer_as_the_recorded_devices_did() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("node.json");
    std::fs::write(dir.path().join("nvidiactl"), "").unwrap();
    // SAFETY: the only test of this process; nothing else reads the environment meanwhile.
    unsafe { std::env::set_var("GPUSIM_STATE", &state) };
    // SAFETY: our own library, whose initialisers do nothing.
    let library = unsafe { NvmlLib::new(library()) }.unwrap();
    for model in ModelKey::ALL {
        let mut machine = Machine::new("recorded", &[model], "boot".to_owned());
        machine.device_dir = dir.path().to_str().unwrap().to_owned();
        machine.passthrough = true;
        machine.gpus[0].persistence = true;
        machine.gpus[0].bus = Bus { domain: 0, bus: 0, device: 6 };
        Store::new(&state).create(&machine).unwrap();
        let recording: Recording = serde_json::from_str(model.recording()).unwrap();
        let mut device = std::ptr::null_mut();
        // SAFETY: NVML's documented calls with a pointer to a local.
        unsafe {
            assert_eq!(library.nvmlInit_v2(), 0);
            assert_eq!(library.nvmlDeviceGetHandleByIndex_v2(0, &raw mut device), 0);
        }
        let (mut compared, mut wrong) = (0, Vec::new());
        let systems = recording.system.iter().map(|(key, value)| (key, value, None));
        let devices = recording.device.iter().map(|(key, value)| (key, value, Some(device as usize)));
        for (key, recorded, device) in systems.chain(devices) {
            let (name, indexes) = parts(key);
            let symbol = if name == "nvmlDeviceGetGpuInstanceProfileInfo" {
                "nvmlDeviceGetGpuInstanceProfileInfoV"
            } else {
                name
            };
            // SAFETY: the symbol is a C function; `call` gives it the arguments it takes, and more.
            let Ok(function) = (unsafe { library.__library.get::<Function>(symbol.as_bytes()) }) else {
                // Some recorded names are wrappers of the recorder, and some functions did not exist in the driver.
                continue;
            };
            let want = recorded.get("ok").cloned().unwrap_or_default();
            let shape = shape(name, &want);
            let (code, got) = match (name, device, indexes.first()) {
                ("nvmlDeviceGetFieldValues", Some(device), Some(id)) => field(&library, device, *id as u32),
                _ => call(*function, device, &indexes, &shape),
            };
            compared += 1;
            match recorded.get("err").and_then(Value::as_u64) {
                Some(err) if u64::from(code) != err => {
                    wrong.push(format!("{key}: code {code}, recorded {err}"))
                }
                Some(_) => {}
                None if code != 0 => wrong.push(format!("{key}: code {code}, recorded {want}")),
                None if OWN.contains(&name) => {}
                None => {
                    let want = comparable(name, &want, &shape);
                    if got != want {
                        wrong.push(format!("{key}: {got}, recorded {want}"));
                    }
                }
            }
        }
        // SAFETY: as above.
        unsafe { library.nvmlShutdown() };
        assert!(wrong.is_empty(), "{model}:\n{}", wrong.join("\n"));
        assert!(compared > 250, "{model}: only {compared} getters were compared");
    }
}

#[test]
fn the_library_has_every_symbol_that_driver_580_has() {
    // SAFETY: our own library, whose initialisers do nothing.
    let library = unsafe { NvmlLib::new(library()) }.unwrap();
    let all = include_str!("../recordings/symbols-580.txt");
    let missing: Vec<&str> = all
        .lines()
        // SAFETY: the symbol is only looked up.
        .filter(|name| unsafe { library.__library.get::<Function>(name.as_bytes()) }.is_err())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(all.lines().count() > 400);
}

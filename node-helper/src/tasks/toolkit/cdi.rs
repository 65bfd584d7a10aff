//! The CDI specification: whether it names the GPUs and MIG devices of now, and the files of the driver that runs.

use std::{collections::BTreeSet, path::Path};

use gpufleet_protocol::{FailureKind, nvml::GpuDevices};
use serde_json::Value;

use super::yaml;
use crate::{
    declare::{Node, Trouble},
    gpu::Exposed,
    os::{
        files::{self, Ownership},
        tree, units,
    },
    tasks::tool,
};

/// Where specifications are; what the second one names wins. Source: CDI specification, "CDI JSON specification". There
/// it is `/var/run/cdi`, which is the same folder, and lost at a boot.
pub const PLACES: [&str; 2] = ["/etc/cdi/nvidia.yaml", "/run/cdi/nvidia.yaml"];
/// The unit of the toolkit that writes the second one, since 1.18.
pub const REFRESH: &str = "nvidia-cdi-refresh.service";
const REFRESH_PATH: &str = "nvidia-cdi-refresh.path";
/// Largest specification, in bytes: one of 8 GPUs with 56 MIG devices has about 100 kB.
const LARGEST: usize = 4 * 1024 * 1024;
const KIND: &str = "nvidia.com/gpu";
/// Name under which a prediction notes that a specification is made anew.
const NOTE: &str = "cdi ";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Each specification that is there or has to be, with what is wrong with it.
    pub files: Vec<(&'static str, Vec<String>)>,
    /// Whether the unit that writes the second one is there.
    pub has_unit: bool,
    /// Whether earlier tasks change the MIG devices, so that only the run knows.
    pub open: bool,
    /// The devices, as a note of a prediction has them.
    pub mark: String,
}

/// Whether a specification has to be made anew, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renew {
    /// By the toolkit's own unit.
    Unit,
    /// By `nvidia-ctk`, into this file.
    File(&'static str),
}

/// Reads the specifications; `None` on a node without a GPU.
///
/// # Errors
/// If one of them, the GPUs or systemd cannot be read.
pub fn observe(node: &Node<'_>, exposed: Exposed, driver: Option<&str>) -> Result<Option<State>, Trouble> {
    if exposed.gpus.is_empty() {
        return Ok(None);
    }
    let devices = Devices::of(&exposed.gpus)?;
    let mark = devices.mark(driver);
    let noted = node.world.noted(NOTE);
    let mut files = Vec::new();
    for place in PLACES {
        if noted.iter().any(|(file, value)| file == place && *value == mark) {
            files.push((place, Vec::new()));
            continue;
        }
        let path = node.roots.path(place);
        let Some(bytes) = node.world.read(&path)? else { continue };
        if bytes.len() > LARGEST {
            return Err(Trouble::io(format!(
                "{place} has {} bytes, and at most {LARGEST} are read",
                bytes.len()
            )));
        }
        let text = String::from_utf8_lossy(&bytes);
        files.push((place, wrong(&text, &devices, driver, |device| node.roots.path(device).exists())));
    }
    let has_unit = match node.roots.tool("systemctl") {
        Some(systemctl) => {
            let shown = units::show(systemctl, &[REFRESH], node.deadline)?;
            shown.get(REFRESH).is_some_and(|unit| unit.exists)
        }
        None => false,
    };
    if files.is_empty() {
        let [admin, dynamic] = PLACES;
        files.push((if has_unit { dynamic } else { admin }, vec!["there is none".to_owned()]));
    }
    // A boot loses the MIG devices of most GPUs, and the unit makes its file anew.
    let open = exposed.changes || node.world.rebooted();
    Ok(Some(State { files, has_unit, open, mark }))
}

impl State {
    /// Returns what has to be done for a file.
    pub fn renewal(&self, place: &'static str) -> Renew {
        if self.has_unit && place == PLACES[1] { Renew::Unit } else { Renew::File(place) }
    }

    /// Returns the folders of the specifications.
    pub fn folders(&self) -> impl Iterator<Item = &'static str> {
        self.files.iter().filter_map(|(place, _)| Some(place.rsplit_once('/')?.0))
    }

    /// Returns the note of a prediction that this file is made anew.
    pub fn note(&self, place: &str) -> (String, String) {
        (format!("{NOTE}{place}"), self.mark.clone())
    }
}

/// The names that a specification may and must have.
#[derive(Debug, Default)]
struct Devices {
    uuids: BTreeSet<String>,
    indexes: BTreeSet<String>,
    /// GPUs whose MIG is on: containers are given their MIG devices, and the whole may be named or not.
    optional: BTreeSet<String>,
}

impl Devices {
    fn of(gpus: &[GpuDevices]) -> Result<Self, Trouble> {
        let mut all = Self::default();
        for gpu in gpus {
            let unread = |code| Trouble::io(format!("GPU {} cannot be read: {code}", gpu.index));
            let uuid = gpu.uuid.clone().map_err(unread)?;
            let mig = gpu.devices.as_ref().map_err(|code| unread(*code))?;
            if gpu.mig {
                all.optional.extend([uuid, gpu.index.to_string()]);
            } else {
                all.uuids.insert(uuid);
                all.indexes.insert(gpu.index.to_string());
            }
            for (number, device) in mig.iter().enumerate() {
                all.uuids.insert(device.uuid.clone());
                all.indexes.insert(format!("{}:{number}", gpu.index));
            }
        }
        Ok(all)
    }

    fn mark(&self, driver: Option<&str>) -> String {
        let names: Vec<&str> = self.uuids.iter().map(String::as_str).chain(driver).collect();
        files::sha256(names.join("\n").as_bytes())
    }
}

/// Returns what is wrong with a specification, one sentence each.
fn wrong(text: &str, devices: &Devices, driver: Option<&str>, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let spec = match yaml::parse(text) {
        Ok(spec) => spec,
        Err(why) => return vec![format!("it cannot be read: {why}")],
    };
    if spec.get("kind").and_then(Value::as_str) != Some(KIND) {
        return vec![format!("it is not of the kind {KIND}")];
    }
    let list =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let named = list(&spec, "devices");
    // `all` is every one of them.
    let names: BTreeSet<String> =
        named.iter().filter_map(|device| text(device, "name")).filter(|name| name != "all").collect();
    let by_uuid: BTreeSet<String> =
        names.iter().filter(|name| name.starts_with("GPU-") || name.starts_with("MIG-")).cloned().collect();
    let (found, wanted) = match by_uuid.is_empty() {
        false => (by_uuid, &devices.uuids),
        true => (names, &devices.indexes),
    };
    let mut wrong = Vec::new();
    wrong.extend(listed("it lacks", wanted.difference(&found)));
    wrong.extend(listed(
        "it names what is not there:",
        found.difference(wanted).filter(|name| !devices.optional.contains(*name)),
    ));
    let edits: Vec<Value> =
        std::iter::once(&spec).chain(&named).filter_map(|part| part.get("containerEdits").cloned()).collect();
    let mounts = edits.iter().flat_map(|edit| list(edit, "mounts"));
    let versions: BTreeSet<String> = mounts
        .filter_map(|mount| text(&mount, "hostPath"))
        .filter_map(|path| {
            Some(Path::new(&path).file_name()?.to_str()?.strip_prefix("libcuda.so.")?.to_owned())
        })
        .filter(|version| version.contains('.'))
        .collect();
    if let Some(driver) = driver {
        if versions.is_empty() {
            wrong.push("it mounts no libcuda.so of a driver".to_owned());
        }
        wrong.extend(listed(
            &format!("the driver is {driver}, and it mounts the files of"),
            versions.iter().filter(|version| *version != driver),
        ));
    }
    let nodes: BTreeSet<String> = edits
        .iter()
        .flat_map(|edit| list(edit, "deviceNodes"))
        .filter_map(|node| text(&node, "hostPath").or_else(|| text(&node, "path")))
        .filter(|path| path.starts_with("/dev/") && !path.contains(".."))
        .collect();
    wrong.extend(listed("there is no", nodes.iter().filter(|path| !exists(path))));
    wrong
}

/// Returns a sentence with the first few names; `None` without any.
fn listed<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Option<String> {
    const MOST: usize = 3;
    let all: Vec<String> = names.map(|name| name.chars().take(60).collect()).collect();
    let more = all.len().saturating_sub(MOST);
    let shown = all.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match (all.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(format!("{what} {shown}")),
        (false, more) => Some(format!("{what} {shown} and {more} more")),
    }
}

/// Has the toolkit's unit write its specification.
///
/// # Errors
/// If systemd says so.
pub fn refresh(node: &Node<'_>, systemctl: &Path) -> Result<(), Trouble> {
    // Both, because a unit that failed too often takes its path unit down with it, and neither starts again by itself.
    let reset = tool::run(node, systemctl).args(["--no-ask-password", "reset-failed", REFRESH, REFRESH_PATH]);
    // Ignored, because it fails where none of them has failed.
    let _ = tool::ask(node, &reset)?;
    let run = tool::run(node, systemctl).args(["--no-ask-password", "restart", REFRESH]);
    tool::act(node, &run, &format!("systemctl restart {REFRESH}"))?;
    Ok(())
}

/// Writes a specification with what `nvidia-ctk` makes.
///
/// # Errors
/// If it makes none.
pub fn generate(node: &Node<'_>, ctk: &Path, place: &str) -> Result<(), Trouble> {
    // To standard output, because it would give a file another name, and the file is to be replaced at once.
    let run = tool::run(node, ctk).args(["cdi", "generate", "--format=yaml"]).limit(LARGEST + 1);
    let done = tool::act(node, &run, "nvidia-ctk cdi generate")?;
    let bytes = &done.output.stdout.bytes;
    let text = String::from_utf8_lossy(bytes);
    let is_spec = yaml::parse(&text).is_ok_and(|spec| spec.get("kind").and_then(Value::as_str) == Some(KIND));
    if bytes.len() > LARGEST || !is_spec {
        let message = "nvidia-ctk cdi generate: what it writes is no specification of NVIDIA's GPUs";
        return Err(Trouble::failed(FailureKind::Exit, message));
    }
    let path = node.roots.path(place);
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        tree::make_dirs(folder)?;
    }
    files::replace(&path, bytes, Ownership::default())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::nvml::MigDevice;

    use super::*;

    fn gpus() -> Devices {
        let mig = |n: u32| MigDevice { uuid: format!("MIG-{n}"), gpu_instance: n, compute_instance: 0 };
        Devices::of(&[
            GpuDevices { index: 0, uuid: Ok("GPU-a".to_owned()), mig: false, devices: Ok(Vec::new()) },
            GpuDevices {
                index: 1,
                uuid: Ok("GPU-b".to_owned()),
                mig: true,
                devices: Ok(vec![mig(1), mig(2)]),
            },
        ])
        .unwrap()
    }

    fn spec(names: &[&str], version: &str) -> String {
        let devices: String = names
            .iter()
            .map(|name| {
                format!("- containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n  name: \"{name}\"\n")
            })
            .collect();
        format!(
            "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  mounts:\n  - containerPath: /x\n    hostPath: /usr/lib/libcuda.so.{version}\n  - hostPath: /usr/lib/libcuda.so.1\ndevices:\n{devices}kind: nvidia.com/gpu\n"
        )
    }

    fn judged(text: &str) -> Vec<String> {
        wrong(text, &gpus(), Some("580.159.04"), |path| path == "/dev/nvidia0")
    }

    #[test]
    fn names_of_either_sort_are_compared() {
        let nothing: Vec<String> = Vec::new();
        assert_eq!(judged(&spec(&["GPU-a", "MIG-1", "MIG-2", "all"], "580.159.04")), nothing);
        assert_eq!(judged(&spec(&["0", "1:0", "1:1", "all"], "580.159.04")), nothing);
        // Both sorts, and the whole GPU beside its MIG devices.
        assert_eq!(judged(&spec(&["0", "GPU-a", "GPU-b", "MIG-1", "MIG-2"], "580.159.04")), nothing);
        assert_eq!(
            judged(&spec(&["GPU-a", "MIG-1", "MIG-7"], "580.159.04")),
            ["it lacks MIG-2", "it names what is not there: MIG-7"]
        );
        assert_eq!(judged(&spec(&["0", "1:0"], "580.159.04")), ["it lacks 1:1"]);
    }

    #[test]
    fn the_driver_and_the_device_files_count() {
        let names = ["GPU-a", "MIG-1", "MIG-2"];
        assert_eq!(
            judged(&spec(&names, "570.86.15")),
            ["the driver is 580.159.04, and it mounts the files of 570.86.15"]
        );
        let moved = spec(&names, "580.159.04").replace("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3");
        assert_eq!(judged(&moved), ["there is no /dev/nvidia-caps/nvidia-cap3"]);
        let bare = "kind: nvidia.com/gpu\ndevices:\n- name: GPU-a\n- name: MIG-1\n- name: MIG-2\n";
        assert_eq!(judged(bare), ["it mounts no libcuda.so of a driver"]);
    }

    #[test]
    fn what_cannot_be_read_is_wrong_and_not_fine() {
        assert_eq!(
            judged("kind: [x]"),
            ["it cannot be read: line 1 is no YAML of the sort that is read here"]
        );
        assert_eq!(judged("kind: amd.com/gpu"), ["it is not of the kind nvidia.com/gpu"]);
        assert_eq!(judged(""), ["it is not of the kind nvidia.com/gpu"]);
        let lost = GpuDevices {
            index: 3,
            uuid: Err(gpufleet_protocol::nvml::Code::GPU_IS_LOST),
            mig: false,
            devices: Ok(Vec::new()),
        };
        assert!(Devices::of(&[lost]).is_err());
    }
}

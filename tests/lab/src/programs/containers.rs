//! Docker's daemon with its client, NVIDIA's container toolkit, and the programs of the fabric manager and DCGM.
//!
//! The daemon reads its file as the real one does: all of it when it starts, and at SIGHUP the keys that dockerd
//! reloads. What is in force is in [`IN_FORCE`], from which the client answers. There are no containers.

use std::fs;

use nvml_sim::store::Store;
use serde_json::{Map, Value, json};

use crate::out;

const FILE: &str = "/etc/docker/daemon.json";
const IN_FORCE: &str = "/run/docker/in-force.json";
/// The version that the toolkit says, unless this file names another one.
const TOOLKIT: &str = "1.17.8";
const TOOLKIT_VERSION: &str = "/etc/gpufleet-lab/toolkit-version";
/// As for the toolkit: the version of the fabric manager, which is the driver's unless it is named.
const FABRIC_MANAGER_VERSION: &str = "/etc/gpufleet-lab/fabric-manager-version";
/// Keys that the daemon takes at SIGHUP if the file sets them. Source: moby, `daemon/reload.go`.
const RELOADED: [&str; 8] = [
    "debug",
    "default-runtime",
    "features",
    "insecure-registries",
    "labels",
    "live-restore",
    "registry-mirrors",
    "runtimes",
];
/// Keys that the daemon knows; a real one knows more.
const KNOWN: [&str; 12] = [
    "bip",
    "cdi-spec-dirs",
    "data-root",
    "default-shm-size",
    "default-ulimits",
    "exec-opts",
    "hosts",
    "log-driver",
    "log-opts",
    "mtu",
    "shutdown-timeout",
    "storage-driver",
];

fn settings(path: &str) -> Result<Map<String, Value>, String> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && path == FILE => return Ok(Map::new()),
        Err(error) => return Err(error.to_string()),
    };
    if text.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    let map: Map<String, Value> = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let unknown: Vec<&str> = map
        .keys()
        .map(String::as_str)
        .filter(|key| !KNOWN.contains(key) && !RELOADED.contains(key))
        .collect();
    match unknown.is_empty() {
        true => Ok(map),
        false => Err(format!(
            "the following directives don't match any configuration option: {}",
            unknown.join(", ")
        )),
    }
}

fn put_in_force(settings: &Map<String, Value>) -> bool {
    fs::create_dir_all("/run/docker").is_ok()
        && fs::write(IN_FORCE, Value::Object(settings.clone()).to_string()).is_ok()
}

/// From here on it has CDI without a setting.
const DOCKER: &str = "28.2.0";

/// `dockerd [--version] [--validate] [--config-file FILE] [-H ADDRESS]`.
pub fn dockerd(store: &Store, arguments: &[String]) -> u8 {
    if arguments.iter().any(|word| word == "--version") {
        out::line(format!("Docker version {DOCKER}, build lab"));
        return 0;
    }
    let after = |name: &str| {
        let at = arguments.iter().position(|word| word == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let file = after("--config-file").unwrap_or(FILE);
    let mut found = match settings(file) {
        Ok(found) => found,
        Err(why) => {
            out::error(format!("unable to configure the Docker daemon with file {file}: {why}"));
            return 1;
        }
    };
    if arguments.iter().any(|word| word == "--validate") {
        out::line("configuration OK");
        return 0;
    }
    if found.contains_key("hosts") && arguments.iter().any(|word| word == "-H") {
        out::error(
            "the following directives are specified both as a flag and in the configuration file: hosts",
        );
        return 1;
    }
    crate::sys::block(&[libc::SIGHUP, libc::SIGTERM]);
    store.log_event("dockerd", json!({"read": "all"}));
    if !put_in_force(&found) {
        return 1;
    }
    while crate::sys::wait_signal(&[libc::SIGHUP, libc::SIGTERM]) == libc::SIGHUP {
        // A file that it cannot read is only logged, and the old settings stay.
        let Ok(new) = settings(file) else { continue };
        for (key, value) in new.into_iter().filter(|(key, _)| RELOADED.contains(&key.as_str())) {
            found.insert(key, value);
        }
        store.log_event("dockerd", json!({"read": "reloaded"}));
        put_in_force(&found);
    }
    let _ = fs::remove_file(IN_FORCE);
    0
}

/// `docker [--context NAME] info --format '{{json .}}'`, and nothing else.
pub fn docker(arguments: &[String]) -> u8 {
    if !arguments.iter().any(|word| word == "info") {
        out::error("docker: the lab's client knows `info` alone");
        return 1;
    }
    let Some(force) = fs::read(IN_FORCE).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok())
    else {
        let why = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?";
        out::line(json!({"ServerErrors": [why]}).to_string());
        return 1;
    };
    let get = |key: &str, default: Value| force.get(key).cloned().unwrap_or(default);
    let mut runtimes = json!({"runc": {"path": "runc"}});
    if let (Some(all), Some(own)) = (runtimes.as_object_mut(), get("runtimes", json!({})).as_object()) {
        all.extend(own.clone());
    }
    let cgroup_driver = get("exec-opts", json!([]))
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|option| option.as_str()?.strip_prefix("native.cgroupdriver=").map(str::to_owned));
    out::line(
        json!({
            "ServerVersion": DOCKER,
            "ContainersRunning": 0,
            "LiveRestoreEnabled": get("live-restore", json!(false)),
            "DefaultRuntime": get("default-runtime", json!("runc")),
            "Runtimes": runtimes,
            "LoggingDriver": get("log-driver", json!("json-file")),
            "DockerRootDir": get("data-root", json!("/var/lib/docker")),
            "CgroupDriver": cgroup_driver.unwrap_or_else(|| "systemd".to_owned()),
            "Labels": get("labels", json!([])),
            "Debug": get("debug", json!(false)),
            "Swarm": {"LocalNodeState": "inactive"},
        })
        .to_string(),
    );
    0
}

/// `nvidia-ctk --version`, `nvidia-ctk cdi generate`, and `nvidia-ctk runtime configure` for containerd.
pub fn ctk(store: &Store, arguments: &[String]) -> u8 {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--version", ..] => {
            out::line(format!("NVIDIA Container Toolkit CLI version {}", named(TOOLKIT_VERSION, TOOLKIT)));
            0
        }
        ["cdi", "generate", ..] => {
            store.log_event("nvidia-ctk", json!({"cdi": "generate"}));
            out::line(specification(store).trim_end());
            0
        }
        ["runtime", "configure", "--runtime", "containerd", rest @ ..] => {
            store.log_event("nvidia-ctk", json!({"runtime": "containerd"}));
            configure_containerd(rest.contains(&"--set-as-default"))
        }
        _ => {
            out::error(
                "nvidia-ctk: the lab's toolkit knows `--version`, `cdi generate` and `runtime configure --runtime containerd`",
            );
            1
        }
    }
}

/// Writes what containerd 1 is to read, over whatever is there. Source: nvidia-ctk 1.17, `pkg/config/engine/containerd`.
fn configure_containerd(default: bool) -> u8 {
    let plugin = "plugins.\"io.containerd.grpc.v1.cri\".containerd";
    let name = if default { "nvidia" } else { "runc" };
    let text = format!(
        "version = 2\n[{plugin}]\ndefault_runtime_name = \"{name}\"\n[{plugin}.runtimes.nvidia]\nruntime_type = \
         \"io.containerd.runc.v2\"\n[{plugin}.runtimes.nvidia.options]\nBinaryName = \"/usr/bin/nvidia-container-runtime\"\n"
    );
    let written =
        fs::create_dir_all("/etc/containerd").and_then(|()| fs::write("/etc/containerd/config.toml", text));
    u8::from(written.is_err())
}

fn named(path: &str, default: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| default.to_owned(), |text| text.trim().to_owned())
}

/// Returns the CDI specification of the GPUs and MIG devices that the node has now.
pub fn specification(store: &Store) -> String {
    let version = store.read().map_or_else(|_| String::new(), |machine| machine.library_version.clone());
    let library = format!("/usr/lib/x86_64-linux-gnu/libcuda.so.{version}");
    let mut text = format!(
        "---\ncdiVersion: 0.5.0\ncontainerEdits:\n  deviceNodes:\n  - path: /dev/nvidiactl\n  env:\n  - \
         NVIDIA_VISIBLE_DEVICES=void\n  mounts:\n  - containerPath: {library}\n    hostPath: {library}\n    options:\n    - \
         ro\ndevices:\n"
    );
    if let Ok(machine) = store.read() {
        for gpu in &machine.gpus {
            let uuids = std::iter::once(gpu.uuid.clone())
                .chain(gpu.mig_devices().map(|(gi, ci)| gpu.mig_uuid(gi.id, ci.id)));
            for uuid in uuids {
                text += &format!(
                    "- containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia{}\n  name: {uuid}\n",
                    gpu.minor
                );
            }
        }
    }
    text + "kind: nvidia.com/gpu\n"
}

/// `nv-fabricmanager --version`.
pub fn fabric_manager(arguments: &[String]) -> u8 {
    if !arguments.iter().any(|word| word == "--version" || word == "-v") {
        out::error("nv-fabricmanager: the lab starts it by its unit alone");
        return 1;
    }
    let version = named(FABRIC_MANAGER_VERSION, nvml_sim::state::DRIVER_VERSION);
    out::line(format!("Fabric Manager version is : {version}"));
    0
}

/// `dcgmi diag -r LEVEL -j`: a GPU that is lost, or with errors in its memory, fails.
pub fn dcgmi(store: &Store, arguments: &[String]) -> u8 {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ["diag", "-r", level, "-j"] = words.as_slice() else {
        out::error("dcgmi: the lab knows `diag -r LEVEL -j` alone");
        return 1;
    };
    let runs = fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| {
        fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == "nv-hostengine")
    });
    if !runs {
        out::error("Error: unable to establish a connection to the specified host: localhost");
        return 1;
    }
    store.log_event("dcgmi", json!({"diag": level}));
    let Ok(machine) = store.read() else { return 1 };
    let mut failed = false;
    let results: Vec<Value> = machine
        .gpus
        .iter()
        .map(|gpu| {
            let is_bad = gpu.lost || gpu.health.remap_failed;
            failed |= is_bad;
            match is_bad {
                true => json!({"entity_group": "GPU", "entity_id": gpu.minor, "status": "Fail",
                    "warnings": [{"warning": "A row of memory could not be replaced."}]}),
                false => json!({"entity_group": "GPU", "entity_id": gpu.minor, "status": "Pass"}),
            }
        })
        .collect();
    let answer = json!({"DCGM Diagnostic": {"test_categories": [
        {"category": "Hardware", "tests": [{"name": "memory", "results": results}]}]}});
    out::line(answer.to_string());
    if failed { 226 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_and_broken_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.json");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            settings(path.to_str().unwrap())
        };
        assert!(read("{\"live-restore\": true}").is_ok());
        assert!(read(" \n").unwrap().is_empty());
        assert!(read("{\"liverestore\": true}").unwrap_err().contains("liverestore"));
        assert!(read("{").is_err());
        assert!(settings(dir.path().join("none").to_str().unwrap()).is_err());
    }
}

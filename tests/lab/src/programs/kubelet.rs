//! A kubelet that reads its files and its state as the real one does, and ends over what the real one ends over. It knows
//! no cluster and no pods.
//!
//! Source: Kubernetes, `pkg/kubelet/kubeletconfig/configfiles` (strict decoding), `cmd/kubelet/app/server.go` (drop-ins)
//! and `pkg/kubelet/cm/cpumanager/state/state_checkpoint.go`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvml_sim::store::Store;
use serde_json::{Map, Value, json};

use crate::out;

/// Fields that it knows; a real one knows more.
const KNOWN: [&str; 21] = [
    "apiVersion",
    "authentication",
    "cgroupDriver",
    "clusterDNS",
    "clusterDomain",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "evictionHard",
    "featureGates",
    "kind",
    "kubeReserved",
    "maxPods",
    "memoryManagerPolicy",
    "registerWithTaints",
    "reservedMemory",
    "reservedSystemCPUs",
    "rotateCertificates",
    "systemReserved",
    "topologyManagerPolicy",
    "topologyManagerPolicyOptions",
    "topologyManagerScope",
];
const STATES: [(&str, &str, &str, &str); 2] = [
    ("cpu_manager_state", "cpuManagerPolicy", "none", "CPU manager"),
    ("memory_manager_state", "memoryManagerPolicy", "None", "memory manager"),
];

fn read(path: &Path) -> Result<Map<String, Value>, String> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| format!("failed to load kubelet config file, path: {shown}, error: {error}"))?;
    let map: Map<String, Value> =
        serde_saphyr::from_str(&text).map_err(|error| format!("{shown}: {error}"))?;
    if map.get("kind") != Some(&json!("KubeletConfiguration")) || !map.contains_key("apiVersion") {
        return Err(format!("{shown}: Object 'Kind' or 'apiVersion' is missing"));
    }
    match map.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        Some(key) => Err(format!("{shown}: strict decoding error: unknown field \"{key}\"")),
        None => Ok(map),
    }
}

fn merge(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, new) => drop(into.insert(key, new)),
        }
    }
}

fn configuration(config: &str, folder: Option<&str>) -> Result<Map<String, Value>, String> {
    let mut all = read(Path::new(config))?;
    let entries = folder.map(fs::read_dir).transpose().map_err(|error| error.to_string())?;
    let mut parts: Vec<PathBuf> = entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    parts.retain(|path| path.extension().is_some_and(|ending| ending == "conf"));
    parts.sort();
    for part in parts {
        merge(&mut all, read(&part)?);
    }
    Ok(all)
}

/// Why it ends, of its policies and their states.
fn refusal(config: &Map<String, Value>, root: &Path) -> Option<String> {
    let word = |key: &str, default: &'static str| config.get(key).and_then(Value::as_str).unwrap_or(default);
    if word("cpuManagerPolicy", "none") == "static" && word("reservedSystemCPUs", "").is_empty() {
        return Some(
            "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
                .to_owned(),
        );
    }
    for (name, key, default, manager) in STATES {
        let Ok(text) = fs::read_to_string(root.join(name)) else { continue };
        let state: Value = serde_json::from_str(&text).unwrap_or_default();
        let (wanted, found) = (word(key, default), state["policyName"].as_str().unwrap_or_default());
        if wanted != found {
            return Some(format!(
                "could not restore state from checkpoint: configured policy \"{wanted}\" differs from state checkpoint policy \
                 \"{found}\", please drain this node and delete the {manager} checkpoint file \"{}\" before restarting Kubelet",
                root.join(name).display()
            ));
        }
    }
    None
}

/// `kubelet --config=FILE [--config-dir=FOLDER] [--root-dir=FOLDER]`.
pub fn run(store: &Store, arguments: &[String]) -> u8 {
    let flag = |name: &str| {
        arguments.iter().find_map(|word| word.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='))
    };
    let root = PathBuf::from(flag("root-dir").unwrap_or("/var/lib/kubelet"));
    let fail = |why: &str| {
        store.log_event("kubelet", json!({"failed": why}));
        out::error(format!("E1122 10:00:00.000000       1 run.go:72] \"command failed\" err=\"{why}\""));
        1
    };
    let config =
        match configuration(flag("config").unwrap_or("/var/lib/kubelet/config.yaml"), flag("config-dir")) {
            Ok(config) => config,
            Err(why) => return fail(&why),
        };
    crate::sys::block(&[libc::SIGTERM]);
    if let Some(why) = refusal(&config, &root) {
        // The managers start once the container runtime has answered.
        std::thread::sleep(Duration::from_secs(1));
        return fail(&why);
    }
    store.log_event("kubelet", json!({"runs": config}));
    for (name, key, default, _) in STATES {
        let path = root.join(name);
        if !path.exists() {
            let policy = config.get(key).cloned().unwrap_or_else(|| json!(default));
            let _ = fs::write(
                path,
                json!({"policyName": policy, "defaultCpuSet": "", "checksum": 1}).to_string(),
            );
        }
    }
    crate::sys::wait_signal(&[libc::SIGTERM]);
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_over_what_the_real_one_ends_over() {
        let dir = tempfile::tempdir().unwrap();
        let (config, parts) = (dir.path().join("config.yaml"), dir.path().join("parts"));
        fs::create_dir(&parts).unwrap();
        let header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        fs::write(&config, header).unwrap();
        let all = || configuration(config.to_str().unwrap(), parts.to_str());
        assert!(all().is_ok());
        fs::write(
            parts.join("10.conf"),
            format!("{header}cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n"),
        )
        .unwrap();
        fs::write(parts.join("20.conf.off"), "nonsense").unwrap();
        fs::write(dir.path().join("cpu_manager_state"), "{\"policyName\":\"none\"}").unwrap();
        let why = refusal(&all().unwrap(), dir.path()).unwrap();
        assert!(
            why.contains("configured policy \"static\" differs from state checkpoint policy \"none\""),
            "{why}"
        );
        fs::write(parts.join("30.conf"), "maxPods: 1\n").unwrap();
        assert!(all().unwrap_err().contains("missing"));
        fs::write(parts.join("30.conf"), format!("{header}noSuchField: 1\n")).unwrap();
        assert!(all().unwrap_err().contains("unknown field \"noSuchField\""));
    }
}

//! GPUs that the kubelet offers to pods, by what it notes of its device plugins.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Found, Named, Reader, cgroups::Kubelet, signal};

/// Where the kubelet notes the devices of plugins that are healthy, below its own folder. `status.allocatable` has their
/// number. Source: Kubernetes, `pkg/kubelet/cm/devicemanager/manager.go`, `writeCheckpoint`.
const CHECKPOINT: &str = "device-plugins/kubelet_internal_checkpoint";

/// Names of whole GPUs and of shares of them. Source: NVIDIA's k8s-device-plugin, `resource.SharedResourceSuffix`.
const RESOURCES: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/gpu.shared"];

/// Counts whole GPUs among the devices that are registered; `None` if no plugin registered any, where they have other names,
/// and where MIG devices are among them, whose GPUs they do not name.
fn whole_gpus(text: &str) -> Found<usize> {
    let wrong = || "it has no devices that were registered".to_owned();
    let noted: Value = serde_json::from_str(text).map_err(|_| wrong())?;
    let of = noted.get("Data").and_then(|data| data.get("RegisteredDevices"));
    let Some(resources) = of.and_then(Value::as_object) else {
        return if of.is_some_and(Value::is_null) { Ok(None) } else { Err(wrong()) };
    };
    let mut gpus = BTreeSet::new();
    let mut is_there = false;
    // Others of NVIDIA's are network cards of the Network Operator (`nvidia.com/hostdev`), GPUs of KubeVirt, or renamed GPUs.
    for (name, devices) in resources.iter().filter(|(name, _)| name.starts_with("nvidia.com/")) {
        let is_gpus = RESOURCES.contains(&name.as_str());
        is_there |= is_gpus;
        // Nobody has registered any yet.
        let devices = devices.as_array().map_or(&[][..], Vec::as_slice);
        for device in devices.iter().filter_map(Value::as_str) {
            if device.starts_with("MIG-") || name.starts_with("nvidia.com/mig-") {
                return Ok(None);
            }
            match (is_gpus, device.starts_with("GPU-")) {
                // Shares of one GPU are `GPU-UUID::N`. Source: NVIDIA's k8s-device-plugin, `internal/rm`.
                (true, _) => drop(gpus.insert(device.split("::").next().unwrap_or(device))),
                // Renamed: which of the names have GPUs nobody tells.
                (false, true) => return Ok(None),
                (false, false) => {}
            }
        }
    }
    Ok(is_there.then_some(gpus.len()))
}

pub fn read(reader: &Reader<'_>, kubelet: &Found<Kubelet>) -> Vec<Named> {
    let read = || -> Found<usize> {
        let Some(kubelet) = kubelet.as_ref().map_err(Clone::clone)? else { return Ok(None) };
        let path = format!("{}/{CHECKPOINT}", kubelet.root.trim_end_matches('/'));
        let Some(text) = reader.text(&path)? else { return Ok(None) };
        whole_gpus(&text).map_err(|why| format!("{path}: {why}"))
    };
    vec![("kubelet_gpus", signal(read()))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_gpus_are_counted_once() {
        let noted = |devices: &str| {
            format!(r#"{{"Data":{{"PodDeviceEntries":null,"RegisteredDevices":{devices}}},"Checksum":1}}"#)
        };
        for (devices, count) in [
            (r#"{"nvidia.com/gpu":["GPU-a","GPU-b"],"rdma/hca":["x"]}"#, Some(2)),
            (r#"{"nvidia.com/gpu.shared":["GPU-a::0","GPU-a::1","GPU-b::0"]}"#, Some(2)),
            (r#"{"nvidia.com/gpu":[]}"#, Some(0)),
            (r#"{"nvidia.com/gpu":null}"#, Some(0)),
            (r#"{"nvidia.com/mig-1g.10gb":["MIG-a"],"nvidia.com/gpu":["GPU-a"]}"#, None),
            (r#"{"nvidia.com/gpu":["MIG-a"]}"#, None),
            (r#"{"rdma/hca":["x"]}"#, None),
            (r#"{"nvidia.com/gpu":["GPU-a"],"nvidia.com/hostdev":["0000:19:00.0"]}"#, Some(1)),
            (r#"{"nvidia.com/gpu":["GPU-a"],"nvidia.com/sriov_rdma":["0000:19:00.1"]}"#, Some(1)),
            (r#"{"nvidia.com/gpu":["GPU-a"],"nvidia.com/rdma_vf":["x"]}"#, Some(1)),
            (r#"{"nvidia.com/hostdev":["0000:19:00.0"]}"#, None),
            (r#"{"nvidia.com/GH100_H100_SXM5_80GB":["53"]}"#, None),
            (r#"{"nvidia.com/a100":["GPU-a"],"nvidia.com/gpu":["GPU-b"]}"#, None),
            ("null", None),
        ] {
            assert_eq!(whole_gpus(&noted(devices)), Ok(count), "{devices}");
        }
        assert!(whole_gpus("{").is_err() && whole_gpus("{}").is_err());
    }
}

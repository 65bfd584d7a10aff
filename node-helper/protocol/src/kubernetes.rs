//! Words of Kubernetes: keys, values and quantities, and who writes which key of a Node.
//!
//! Owns what is true of every cluster. Must not know objects of one, nor how a cluster is asked.

/// Bytes of a key's prefix, and of its name; a value has as many as a name.
const PREFIX: usize = 253;
const NAME: usize = 63;

/// Whether it is the key of a label, a taint or a resource: `pool`, `nvidia.com/gpu`.
pub fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    }
}

/// Whether it may be the value of a label or a taint; nothing may.
pub fn is_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    name.len() <= NAME
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && outer(bytes.first())
        && outer(bytes.last())
}

fn is_subdomain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
            && bytes.first().is_some_and(|byte| plain(*byte))
            && bytes.last().is_some_and(|byte| plain(*byte))
    };
    name.len() <= PREFIX && name.split('.').all(is_label)
}

/// Reads a quantity of Kubernetes, in thousandths of its unit: `500m`, `1.5Gi`, `1e9`.
///
/// Source: `resource.Quantity` of Kubernetes' apimachinery. Smaller parts than a thousandth are cut off.
pub fn quantity(text: &str) -> Option<u128> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.is_empty() || number == "." || number.len() > 24 {
        return None;
    }
    let factor: u128 = match unit {
        "m" => 1,
        "" => 1000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "P" => 1_000_000_000_000_000_000,
        "E" => 1_000_000_000_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        "Ei" => 1000 << 60,
        _ => {
            let power: u32 = unit.strip_prefix(['e', 'E'])?.parse().ok().filter(|power| *power <= 15)?;
            1000 * 10_u128.pow(power)
        }
    };
    let fraction = fraction.get(..fraction.len().min(9))?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    Some(digits.checked_mul(factor)? / scale)
}

/// Labels of where a node is, which a cloud writes where there is one, and people where there is none.
///
/// Source: Kubernetes' well-known labels; the node controller of cloud controller managers.
pub const PLACES: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// Who writes a label of this key, so that nobody else may; `None` where it is free, and for [`PLACES`], whose owner only the
/// node's object tells.
///
/// Sources: the well-known labels and the NodeRestriction plugin of Kubernetes; Node Feature Discovery; NVIDIA's GPU
/// feature discovery, mig-parted and gpu-operator (`nvidia.com/gpu.deploy.*`, `nvidia.com/gpu.workload.config`).
pub fn label_owner(key: &str) -> Option<&'static str> {
    let (prefix, name) = key.split_once('/')?;
    if PLACES.contains(&key) {
        return None;
    }
    if let Some(owner) = prefix_owner(prefix) {
        return Some(owner);
    }
    if prefix != "nvidia.com" {
        return None;
    }
    let starts = |word: &str| name.starts_with(word);
    match name {
        // mig-manager only reads it: whether it may be written depends on whether that runs.
        "mig.config" => None,
        "mig.config.state" => Some("NVIDIA's mig-manager"),
        "gpu.workload.config" => Some(OPERATOR),
        "device-plugin.config" => Some(
            "a change of how pods share GPUs: pods under MPS would end, and this kind does not drain. \
             Drain the node, and set it by `kubectl label`; by default the GPU operator's ConfigMap decides",
        ),
        _ if starts("gpu.deploy.") || starts("gpu-driver-upgrade-state") => Some(OPERATOR),
        _ if ["gpu.", "cuda.", "mig", "gfd.", "mps.", "vgpu.", "gpu-"].into_iter().any(starts)
            || name == "gpu" =>
        {
            Some("NVIDIA's GPU feature discovery")
        }
        _ => None,
    }
}

const OPERATOR: &str =
    "NVIDIA's GPU operator, which starts and stops by it what runs on the node, and gpufleet's drain";

/// Who writes a taint of this key, so that nobody else may; `None` where it is free.
///
/// Sources: Kubernetes' well-known taints; cluster-autoscaler (`utils/taints`); Karpenter.
pub fn taint_owner(key: &str) -> Option<&'static str> {
    match key.split_once('/') {
        Some((prefix, _)) if is_in(prefix, "karpenter.sh") => Some("Karpenter"),
        Some((prefix, _)) => prefix_owner(prefix),
        None if key.ends_with("OfClusterAutoscaler") || key == "ToBeDeletedByClusterAutoscaler" => {
            Some("the cluster autoscaler")
        }
        None => None,
    }
}

fn prefix_owner(prefix: &str) -> Option<&'static str> {
    if is_in(prefix, "gpufleet.io") {
        return Some("gpufleet's own drains");
    }
    if is_in(prefix, "feature.node.kubernetes.io") || is_in(prefix, "nfd.node.kubernetes.io") {
        return Some("Node Feature Discovery");
    }
    let free = is_in(prefix, "node-role.kubernetes.io") || is_in(prefix, "node-restriction.kubernetes.io");
    let reserved = is_in(prefix, "kubernetes.io") || is_in(prefix, "k8s.io");
    (reserved && !free).then_some(
        "Kubernetes, its kubelets and its cloud (of kubernetes.io only node-role, node-restriction and topology's zone and region are free)",
    )
}

/// Whether a prefix is this domain, or one inside of it.
fn is_in(prefix: &str, domain: &str) -> bool {
    prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_read() {
        for (text, thousandths) in [
            ("500m", 500),
            ("1", 1000),
            ("0.5", 500),
            ("1Ki", 1_024_000),
            ("1e3", 1_000_000),
            ("1.5k", 1_500_000),
            ("8E", 8_000_000_000_000_000_000_000),
            ("1Pi", 1_125_899_906_842_624_000),
        ] {
            assert_eq!(quantity(text), Some(thousandths), "{text}");
        }
        for text in ["", ".", "Gi", "1Xi", "1e99", "-1", "999999999999999999999999Ei"] {
            assert_eq!(quantity(text), None, "{text}");
        }
        assert_eq!(quantity("2111Mi"), quantity("2161664Ki"), "a quantity is compared as one");
    }

    #[test]
    fn keys_and_values() {
        let long = "a".repeat(64);
        for key in ["pool", "example.com/pool", "a.b_c-D", "node-role.kubernetes.io/gpu"] {
            assert!(is_key(key), "{key}");
        }
        for key in ["", "/a", "a/", "a/b/c", "-a", "a-", "Example.com/a", "a b", "ex..com/a", "ä", &long] {
            assert!(!is_key(key), "{key}");
        }
        assert!(is_value("") && is_value("h100") && !is_value("a b") && !is_value(&long));
    }

    #[test]
    fn keys_of_others_have_an_owner() {
        for key in [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/other",
            "node.k8s.io/x",
            "feature.node.kubernetes.io/pci-10de.present",
            "nvidia.com/gpu.present",
            "nvidia.com/gpu.count",
            "nvidia.com/cuda.driver.major",
            "nvidia.com/mig.strategy",
            "nvidia.com/mig-1g.10gb.count",
            "nvidia.com/mig.config.state",
            "nvidia.com/gpu.deploy.device-plugin",
            "nvidia.com/device-plugin.config",
            "gpufleet.io/owner",
        ] {
            assert!(label_owner(key).is_some(), "{key}");
        }
        for key in [
            "pool",
            "example.com/pool",
            "mykubernetes.io/pool",
            "nvidia.com/mig.config",
            "topology.kubernetes.io/zone",
            "topology.kubernetes.io/region",
            "node-role.kubernetes.io/gpu",
            "node-restriction.kubernetes.io/tenant",
        ] {
            assert_eq!(label_owner(key), None, "{key}");
        }
        for key in [
            "node.kubernetes.io/unschedulable",
            "karpenter.sh/disrupted",
            "ToBeDeletedByClusterAutoscaler",
            "DeletionCandidateOfClusterAutoscaler",
        ] {
            assert!(taint_owner(key).is_some(), "{key}");
        }
        assert_eq!((taint_owner("nvidia.com/gpu"), taint_owner("dedicated")), (None, None));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (quantity(&text), is_key(&text), is_value(&text), label_owner(&text), taint_owner(&text));
        }
    }
}

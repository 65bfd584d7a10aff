//! `KubeletConfiguration`: what files give together, the text of one with other settings, and its rules. Pure.

use std::fmt::Write as _;

use gpufleet_protocol::{cpus::CpuList, kubernetes::quantity, tasks::dotted};
use serde_json::{Map, Value};

use crate::tasks::toolkit::yaml;

/// What a file of the kubelet begins with.
pub const HEADER: [(&str, &str); 2] =
    [("apiVersion", "kubelet.config.k8s.io/v1beta1"), ("kind", "KubeletConfiguration")];
/// Memory that the kubelet keeps free if nobody says otherwise. Source: kubernetes.io, "Node-pressure Eviction".
const EVICTION: &str = "100Mi";
/// NUMA nodes up to which the topology manager works without an option. Source: kubernetes.io, "Control Topology
/// Management Policies on a node".
const MOST_NUMA: usize = 8;

/// What of the node the rules need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    pub online: CpuList,
    pub numa: Vec<u32>,
    /// `MemTotal`, in bytes.
    pub memory: u64,
}

/// Reads a file.
///
/// # Errors
/// If it is no mapping, or YAML that is not read here; with its line.
pub fn parse(text: &str) -> Result<Map<String, Value>, String> {
    match yaml::parse(text)? {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err("it is no mapping of settings".to_owned()),
    }
}

/// Why the kubelet would not start with this drop-in, if so. Source: kubernetes.io, "Set Kubelet Parameters Via A
/// Configuration File".
pub fn headless(map: &Map<String, Value>) -> Option<String> {
    let (name, _) = HEADER.into_iter().find(|(name, _)| !map.get(*name).is_some_and(Value::is_string))?;
    Some(format!("it has no {name}, with which no kubelet starts"))
}

/// Merges files as the kubelet does, in their order: mappings by key, lists as a whole.
pub fn merged<'a>(files: impl IntoIterator<Item = &'a Map<String, Value>>) -> Map<String, Value> {
    let mut all = Map::new();
    for file in files {
        dotted::merge(&mut all, file);
    }
    all
}

/// Returns the text of a file in which these keys have other values, or none; everything else stays as it is written.
pub fn edited(text: &str, found: &Map<String, Value>, wanted: &Map<String, Value>) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for key in found.keys().chain(wanted.keys().filter(|key| !found.contains_key(*key))) {
        let (old, new) = (found.get(key), wanted.get(key));
        if old == new {
            continue;
        }
        let block = new.map(|value| block(key, value)).unwrap_or_default();
        match place(&lines, key) {
            Some(range) => drop(lines.splice(range, block)),
            None => lines.extend(block),
        }
    }
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

/// Returns the lines of a key of the top.
fn place(lines: &[String], key: &str) -> Option<std::ops::Range<usize>> {
    let is_key = |line: &String| {
        let rest = line.strip_prefix(key).or_else(|| line.strip_prefix(&format!("\"{key}\"")));
        rest.is_some_and(|rest| rest.starts_with(':'))
    };
    let start = lines.iter().position(is_key)?;
    let mut end = start + 1;
    for (at, line) in lines.iter().enumerate().skip(end) {
        if line.starts_with(' ') && !line.trim_start().starts_with('#') && !line.trim().is_empty()
            || line.starts_with("- ")
        {
            end = at + 1;
        } else if !line.trim().is_empty() && !line.trim_start().starts_with('#') {
            break;
        }
    }
    Some(start..end)
}

/// Returns a key of the top with its value, as Kubernetes' own tools write it.
fn block(key: &str, value: &Value) -> Vec<String> {
    let mut text = String::new();
    entry(&mut text, 0, key, value);
    text.lines().map(str::to_owned).collect()
}

fn entry(text: &mut String, indent: usize, key: &str, value: &Value) {
    let pad = " ".repeat(indent);
    let key = scalar(key);
    match value {
        Value::Object(map) if !map.is_empty() => {
            let _ = writeln!(text, "{pad}{key}:");
            map.iter().for_each(|(key, value)| entry(text, indent + 2, key, value));
        }
        Value::Array(all) if !all.is_empty() => {
            let _ = writeln!(text, "{pad}{key}:");
            all.iter().for_each(|value| item(text, indent, value));
        }
        other => {
            let _ = writeln!(text, "{pad}{key}: {}", plain(other));
        }
    }
}

fn item(text: &mut String, indent: usize, value: &Value) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(map) if !map.is_empty() => {
            let mut inner = String::new();
            map.iter().for_each(|(key, value)| entry(&mut inner, indent + 2, key, value));
            // The dash takes the place of the first spaces.
            let rest = inner.get(indent + 2..).unwrap_or_default();
            let _ = write!(text, "{pad}- {rest}");
        }
        other => {
            let _ = writeln!(text, "{pad}- {}", plain(other));
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        // Empty collections, and lists in lists, in flow style.
        other => other.to_string(),
    }
}

/// Returns text in quotes where YAML would read something else.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/%<".contains(&b))
        && !["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
            .contains(&text.to_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

/// Returns the settings of a drop-in with its header.
pub fn with_header(settings: &Map<String, Value>) -> Map<String, Value> {
    let mut all: Map<String, Value> =
        HEADER.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value))).collect();
    all.extend(
        settings
            .iter()
            .filter(|(key, _)| !HEADER.iter().any(|(name, _)| name == key))
            .map(|(k, v)| (k.clone(), v.clone())),
    );
    all
}

pub fn word<'a>(config: &'a Map<String, Value>, key: &str, default: &'a str) -> &'a str {
    config.get(key).and_then(Value::as_str).unwrap_or(default)
}

pub fn cpu_policy(config: &Map<String, Value>) -> &str {
    word(config, "cpuManagerPolicy", "none")
}

pub fn memory_policy(config: &Map<String, Value>) -> &str {
    word(config, "memoryManagerPolicy", "None")
}

/// Settings with which a kubelet that starts may reject or evict pods that run: what pods may have in all, and on which
/// CPUs and NUMA nodes; with another driver of control groups their pods have to be made anew (kubernetes.io, "Configuring a
/// cgroup driver").
pub const DISTURBING: [&str; 17] = [
    "cgroupDriver",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "enforceNodeAllocatable",
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "kubeReserved",
    "maxPods",
    "memoryManagerPolicy",
    "podsPerCore",
    "reservedMemory",
    "reservedSystemCPUs",
    "systemReserved",
    "topologyManagerPolicy",
    "topologyManagerPolicyOptions",
    "topologyManagerScope",
];

/// Returns the settings that the state of static CPUs was made with and that differ; the CPUs that nobody names are picked by
/// their number.
pub fn of_cpus(now: &Map<String, Value>, then: &Map<String, Value>) -> Option<&'static str> {
    let differs = |key: &&str| now.get(*key) != then.get(*key);
    let named = ["reservedSystemCPUs", "cpuManagerPolicyOptions"].into_iter().find(differs);
    let unnamed = word(then, "reservedSystemCPUs", "").is_empty();
    let cpu =
        |config: &Map<String, Value>, key: &str| config.get(key).and_then(|map| map.get("cpu")).cloned();
    let counted = ["kubeReserved", "systemReserved"].into_iter().find(|key| cpu(now, key) != cpu(then, key));
    named.or(counted.filter(|_| unnamed))
}

/// Returns the number of CPUs that `kubeReserved` and `systemReserved` keep from pods, rounded up as the kubelet does.
pub fn reserved_cpus(config: &Map<String, Value>) -> usize {
    let of = |key: &str| config.get(key)?.get("cpu")?.as_str().and_then(quantity);
    let sum = of("kubeReserved").unwrap_or_default() + of("systemReserved").unwrap_or_default();
    usize::try_from(sum.div_ceil(1000)).unwrap_or(usize::MAX)
}

/// Returns the bytes of a resource that `reservedMemory` sets aside on a NUMA node; none if it is no quantity.
pub fn reserved_memory(config: &Map<String, Value>, node: u32, resource: &str) -> Option<u64> {
    let list = config.get("reservedMemory").and_then(Value::as_array);
    let is_it = |one: &&Value| one.get("numaNode").and_then(Value::as_u64) == Some(u64::from(node));
    let limit = list.into_iter().flatten().find(is_it).and_then(|one| one.get("limits")?.get(resource));
    match limit {
        None => Some(0),
        Some(limit) => u64::try_from(quantity(limit.as_str()?)? / 1000).ok(),
    }
}

/// Puts what flags set over what files say, as far as the states of CPUs and memory depend on it.
pub fn with_flags<'f>(config: &mut Map<String, Value>, flag: impl Fn(&str) -> Option<&'f str>) {
    let map = |text: &str, sign: &[char]| -> Value {
        let pairs = text.split(',').filter_map(|pair| pair.split_once(sign));
        pairs
            .map(|(key, value)| (key.trim().to_owned(), Value::from(value.trim())))
            .collect::<Map<_, _>>()
            .into()
    };
    for (name, key) in [
        ("cpu-manager-policy", "cpuManagerPolicy"),
        ("reserved-cpus", "reservedSystemCPUs"),
        ("memory-manager-policy", "memoryManagerPolicy"),
        ("topology-manager-policy", "topologyManagerPolicy"),
        ("cgroup-driver", "cgroupDriver"),
        ("container-runtime-endpoint", "containerRuntimeEndpoint"),
    ] {
        if let Some(text) = flag(name) {
            config.insert(key.to_owned(), text.into());
        }
    }
    for (name, key, sign) in [
        ("cpu-manager-policy-options", "cpuManagerPolicyOptions", '='),
        ("topology-manager-policy-options", "topologyManagerPolicyOptions", '='),
        ("kube-reserved", "kubeReserved", '='),
        ("system-reserved", "systemReserved", '='),
        ("eviction-hard", "evictionHard", '<'),
    ] {
        if let Some(text) = flag(name) {
            config.insert(key.to_owned(), map(text, &[sign]));
        }
    }
    if let Some(text) = flag("reserved-memory") {
        let nodes = text.split(';').filter_map(|part| {
            let (id, limits) = part.split_once(':')?;
            let id: u32 = id.trim().parse().ok()?;
            Some(serde_json::json!({"numaNode": id, "limits": map(limits, &['='])}))
        });
        config.insert("reservedMemory".to_owned(), nodes.collect::<Vec<_>>().into());
    }
}

/// Checks what would keep the kubelet from starting.
///
/// # Errors
/// The first rule that is broken, with its numbers.
pub fn check(config: &Map<String, Value>, node: &Hardware) -> Result<(), String> {
    check_cpus(config, node)?;
    check_memory(config, node)?;
    let topology = word(config, "topologyManagerPolicy", "none");
    let options = config.get("topologyManagerPolicyOptions").and_then(Value::as_object);
    let allows = options.is_some_and(|options| options.contains_key("max-allowable-numa-nodes"));
    if topology != "none" && node.numa.len() > MOST_NUMA && !allows {
        return Err(format!(
            "the node has {} NUMA nodes, and `topologyManagerPolicy: {topology}` works with {MOST_NUMA} at most unless \
             `topologyManagerPolicyOptions` has max-allowable-numa-nodes",
            node.numa.len()
        ));
    }
    Ok(())
}

fn check_cpus(config: &Map<String, Value>, node: &Hardware) -> Result<(), String> {
    let reserved = word(config, "reservedSystemCPUs", "");
    let cpus: CpuList = reserved.parse().map_err(|why| format!("`reservedSystemCPUs: {reserved}`: {why}"))?;
    let gone = cpus.without(&node.online);
    if !gone.is_empty() && !node.online.is_empty() {
        return Err(format!("`reservedSystemCPUs: {reserved}` has CPUs that are not online: {gone}"));
    }
    if !cpus.is_empty() && node.online.is_subset(&cpus) && !node.online.is_empty() {
        return Err(format!("`reservedSystemCPUs: {reserved}` are all CPUs of the node"));
    }
    let options = config.get("cpuManagerPolicyOptions").and_then(Value::as_object);
    if cpu_policy(config) != "static" {
        return match options.and_then(|options| options.keys().next()) {
            Some(option) => {
                Err(format!("`cpuManagerPolicyOptions.{option}` needs `cpuManagerPolicy: static`"))
            }
            None => Ok(()),
        };
    }
    if cpus.is_empty() {
        let of = |key: &str| {
            let text = config.get(key).and_then(|map| map.get("cpu")).and_then(Value::as_str).unwrap_or("0");
            quantity(text).ok_or_else(|| format!("`{key}.cpu: {text}` is no quantity"))
        };
        // In thousandths of a byte or CPU.
        if of("kubeReserved")? + of("systemReserved")? == 0 {
            return Err(
                "`cpuManagerPolicy: static` needs CPUs that pods do not get: set `reservedSystemCPUs`, or `kubeReserved.cpu` or \
                 `systemReserved.cpu` above 0"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// Source: kubernetes.io, "Control Memory Management Policies on a Node": the sum of `reservedMemory` over the NUMA nodes
/// is that of the reserved memory and the threshold, or the kubelet does not start.
fn check_memory(config: &Map<String, Value>, node: &Hardware) -> Result<(), String> {
    if memory_policy(config) != "Static" {
        return Ok(());
    }
    let amount = |place: &str, text: &str| {
        let percent = text.strip_suffix('%').map(str::trim);
        let found = match percent {
            Some(percent) => {
                percent.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share)).map(|share| {
                    // As the kubelet does: a share of the capacity, cut to bytes.
                    (node.memory as f64 * share / 100.0) as u128
                })
            }
            None => quantity(text).map(|thousandths| thousandths / 1000),
        };
        found.ok_or_else(|| format!("`{place}: {text}` is no quantity"))
    };
    let of = |key: &str, name: &str, default: &str| {
        let text = config.get(key).and_then(|map| map.get(name)).and_then(Value::as_str).unwrap_or(default);
        amount(&format!("{key}.{name}"), text)
    };
    let eviction = if config.contains_key("evictionHard") { "0" } else { EVICTION };
    let parts = [
        of("kubeReserved", "memory", "0")?,
        of("systemReserved", "memory", "0")?,
        of("evictionHard", "memory.available", eviction)?,
    ];
    let wanted: u128 = parts.iter().sum();
    let list = config.get("reservedMemory").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut sum = 0_u128;
    let mut seen = Vec::new();
    for one in &list {
        let id = one.get("numaNode").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let Some(id) = id else { return Err("an entry of `reservedMemory` has no `numaNode`".to_owned()) };
        if !node.numa.is_empty() && !node.numa.contains(&id) {
            return Err(format!("`reservedMemory` names NUMA node {id}, which the node does not have"));
        }
        if seen.contains(&id) {
            return Err(format!("`reservedMemory` names NUMA node {id} twice"));
        }
        seen.push(id);
        let text =
            one.get("limits").and_then(|limits| limits.get("memory")).and_then(Value::as_str).unwrap_or("0");
        sum += amount(&format!("reservedMemory of NUMA node {id}"), text)?;
    }
    if sum == wanted && wanted > 0 {
        return Ok(());
    }
    let [kube, system, eviction] = parts.map(mebibytes);
    Err(format!(
        "`reservedMemory` of all NUMA nodes is {}, and has to be {}: kubeReserved {kube} + systemReserved {system} + evictionHard \
         {eviction}; the kubelet does not start otherwise",
        mebibytes(sum),
        mebibytes(wanted)
    ))
}

fn mebibytes(bytes: u128) -> String {
    if bytes.is_multiple_of(1 << 20) { format!("{}Mi", bytes >> 20) } else { format!("{bytes} bytes") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn hardware() -> Hardware {
        Hardware { online: "0-7".parse().unwrap(), numa: vec![0, 1], memory: 64 << 30 }
    }

    #[test]
    fn only_the_keys_that_change_are_written_anew() {
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS:\n- 10.96.0.10\n# ours\nevictionHard:\n  memory.available: 200Mi\n\n# the end\nkind: KubeletConfiguration\n";
        let found = parse(text).unwrap();
        let mut wanted = found.clone();
        dotted::merge(
            &mut wanted,
            &map(
                json!({"evictionHard": {"nodefs.available": "10%"}, "cpuManagerPolicy": "static", "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}]}),
            ),
        );
        let new = edited(text, &found, &wanted);
        assert_eq!(
            new,
            "apiVersion: kubelet.config.k8s.io/v1beta1\nclusterDNS:\n- 10.96.0.10\n# ours\nevictionHard:\n  memory.available: \"200Mi\"\n  nodefs.available: \"10%\"\n\n# the end\nkind: KubeletConfiguration\n\
             cpuManagerPolicy: static\nreservedMemory:\n- numaNode: 0\n  limits:\n    memory: \"1Gi\"\n"
        );
        assert_eq!(parse(&new).unwrap(), wanted);
        wanted.remove("clusterDNS");
        assert!(!edited(text, &found, &wanted).contains("10.96"));
    }

    #[test]
    fn the_sum_of_reserved_memory_is_checked_with_its_numbers() {
        let with = |reserved: Value, more: Value| {
            let mut config = map(json!({"memoryManagerPolicy": "Static", "reservedMemory": reserved,
                "kubeReserved": {"memory": "1Gi"}, "systemReserved": {"memory": "512Mi"}}));
            dotted::merge(&mut config, &map(more));
            check(&config, &hardware())
        };
        let nodes = |first: &str, second: &str| json!([{"numaNode": 0, "limits": {"memory": first}}, {"numaNode": 1, "limits": {"memory": second}}]);
        assert_eq!(with(nodes("1Gi", "612Mi"), json!({})), Ok(()));
        assert_eq!(
            with(nodes("1Gi", "1Gi"), json!({})).unwrap_err(),
            "`reservedMemory` of all NUMA nodes is 2048Mi, and has to be 1636Mi: kubeReserved 1024Mi + systemReserved 512Mi + \
             evictionHard 100Mi; the kubelet does not start otherwise"
        );
        assert_eq!(with(nodes("1Gi", "512Mi"), json!({"evictionHard": {"nodefs.available": "10%"}})), Ok(()));
        assert_eq!(
            with(nodes("1Gi", "33280Mi"), json!({"evictionHard": {"memory.available": "50%"}})),
            Ok(())
        );
        assert!(with(json!([{"numaNode": 7, "limits": {}}]), json!({})).unwrap_err().contains("NUMA node 7"));
        assert!(with(nodes("x", "1Gi"), json!({})).unwrap_err().contains("is no quantity"));
    }

    #[test]
    fn what_static_policies_need_is_checked() {
        let why = |config: Value| check(&map(config), &hardware()).unwrap_err();
        assert!(why(json!({"cpuManagerPolicy": "static"})).contains("needs CPUs that pods do not get"));
        assert!(
            why(json!({"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "0"}})).contains("needs CPUs")
        );
        assert!(
            why(json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "6-9"}))
                .contains("not online: 8-9")
        );
        assert!(why(json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0-7"})).contains("all CPUs"));
        assert!(
            why(json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}))
                .contains("needs `cpuManagerPolicy: static`")
        );
        let many = Hardware { numa: (0..16).collect(), ..hardware() };
        assert!(
            check(&map(json!({"topologyManagerPolicy": "restricted"})), &many)
                .unwrap_err()
                .contains("16 NUMA nodes")
        );
        assert_eq!(
            check(&map(json!({"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "500m"}})), &hardware()),
            Ok(())
        );
    }

    #[test]
    fn flags_win_over_files() {
        let mut config = map(json!({"cpuManagerPolicy": "none", "kubeReserved": {"memory": "1Gi"}}));
        let flags = [
            ("cpu-manager-policy", "static"),
            ("kube-reserved", "cpu=500m,memory=2Gi"),
            ("eviction-hard", "memory.available<100Mi,nodefs.available<10%"),
            ("reserved-memory", "0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=2Gi"),
        ];
        with_flags(&mut config, |name| flags.iter().find(|(flag, _)| *flag == name).map(|(_, value)| *value));
        assert_eq!(
            Value::from(config.clone()),
            json!({"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "500m", "memory": "2Gi"},
                   "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"},
                   "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-1Gi": "2Gi"}},
                                      {"numaNode": 1, "limits": {"memory": "2Gi"}}]})
        );
        assert_eq!(reserved_memory(&config, 0, "hugepages-1Gi"), Some(2 << 30));
        assert_eq!((reserved_memory(&config, 2, "memory"), reserved_cpus(&config)), (Some(0), 1));
    }

    proptest! {
        #[test]
        fn text_that_is_written_is_read_again(key in "[a-z][a-zA-Z]{0,8}", value in "[ -~]{0,12}", inner in "[a-z.]{1,8}") {
            let wanted = map(json!({key: {inner: value.clone()}, "list": [value, {"a": 1, "b": [true]}]}));
            let text = edited("", &Map::new(), &wanted);
            prop_assert_eq!(parse(&text).unwrap(), wanted);
        }
    }
}

//! Parameters of `kubelet`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, dotted, kubelet_fields,
    restart::DaemonRestart,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

/// Declares settings of the kubelet, in its files and in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Kubelet {
    /// Settings as in `KubeletConfiguration`, such as `cpuManagerPolicy`; names and types are checked. Mappings are merged with those of the node, key
    /// by key; lists and other values take the place of the node's. They go into a drop-in where the kubelet runs with
    /// `--config-dir`, else into its configuration file.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
    /// Keys that the file that this kind writes is not to have; one inside of a mapping is written with dots.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// `if_needed` (default) restarts the kubelet. Pods go on, but the node is drained first where a setting changes with which
    /// the kubelet may reject or evict them: policies and scope, reserved resources, `maxPods`, evictions.
    /// `never` changes the files and warns; it is refused where the state of such a policy would have to go.
    #[serde(default)]
    pub restart: DaemonRestart,
}

impl Kubelet {
    pub const UNIT: &str = "kubelet.service";
    /// The configuration file, unless `--config` says otherwise.
    pub const CONFIG: &str = "/var/lib/kubelet/config.yaml";
    /// The name of the drop-in.
    pub const DROP_IN: &str = "90-gpufleet.conf";

    /// Returns the names of its settings that are not known, which may be of a newer release.
    pub fn strange_fields(&self) -> impl Iterator<Item = &str> {
        self.settings.keys().map(String::as_str).filter(|name| kubelet_fields::is_strange(name))
    }
}

impl Kind for Kubelet {
    const INFO: KindInfo = KindInfo {
        name: "kubelet",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Clients,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Declares settings of the kubelet, such as its policies of CPUs, memory and topology.",
        example: "kubelet: {settings: {cpuManagerPolicy: static, reservedSystemCPUs: 0-3, topologyManagerPolicy: restricted}}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(given: &mut Given) {
        if let Some(Value::Object(settings)) = given.get_mut("settings") {
            kubelet_fields::rewrite(settings);
        }
    }

    fn check(&self) -> Result<(), ParamError> {
        if self.settings.is_empty() && self.remove.is_empty() {
            return Err(ParamError::new("settings", "one of `settings` and `remove` is needed"));
        }
        if let Some(key) = dotted::hollow(&self.settings) {
            let message = format!("`{key}` has no value; `remove: [{key}]` takes a key out of the file");
            return Err(ParamError::new("settings", message));
        }
        if let Some(key) = ["apiVersion", "kind"].iter().find(|key| self.settings.contains_key(**key)) {
            return Err(ParamError::new(
                "settings",
                format!("`{key}` is that of the file, and is written by itself"),
            ));
        }
        let is_key = |key: &str| {
            key.starts_with(|c: char| c.is_ascii_lowercase())
                && key.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        if let Some(key) = self.settings.keys().find(|key| !is_key(key)) {
            return Err(ParamError::new("settings", format!("`{key}` is no key of KubeletConfiguration")));
        }
        if let Some(key) = self.remove.iter().find(|key| key.is_empty()) {
            return Err(ParamError::new("remove", format!("`{key}` is no key")));
        }
        if let Some(key) = self.remove.iter().find(|key| dotted::find(&self.settings, key).is_some()) {
            return Err(ParamError::new("remove", format!("`settings` sets `{key}`")));
        }
        let slip = |key: &String| kubelet_fields::meant(key.split('.').next().unwrap_or_default());
        if let Some((key, near)) = self.remove.iter().find_map(|key| Some((key, slip(key)?.0))) {
            let message = format!("`{key}` is no field of KubeletConfiguration; did you mean `{near}`?");
            return Err(ParamError::new("remove", message));
        }
        kubelet_fields::check(&self.settings)
    }
}

impl GroundKind for Kubelet {
    const GROUND: Ground = Ground {
        reads: &[
            "flags of the running kubelet, kubeadm-flags.env, /etc/default/kubelet, /etc/sysconfig/kubelet",
            "its configuration file (`--config`) and all drop-ins (`--config-dir`)",
            "cpu_manager_state, memory_manager_state (`--root-dir`)",
            "CPUs, NUMA nodes, memory and huge pages of the node",
            "the driver of control groups of its runtime: `containerd config dump`, files of CRI-O, daemon.json",
        ],
        writes: &[
            "90-gpufleet.conf in the folder of drop-ins, or the configuration file where the kubelet runs without `--config-dir`",
            "removes cpu_manager_state and memory_manager_state where the kubelet would not start with them, while it is stopped",
            "/run/gpufleet/kubelet-stopped for as long as it is stopped",
        ],
        takes_effect: "with the restart of the kubelet that follows; behind a drain where it may reject or evict pods then",
        survives: "reboots; a drop-in also `kubeadm upgrade node`, which writes the configuration file anew",
        owners: &[
            "kubeadm: config.yaml and kubeadm-flags.env (drop-ins win over the former, flags over both)",
            "the GPU operator: containerd's settings and MIG, not the kubelet's files",
            "later drop-ins of others, which win over ours and are named",
        ],
        source: "Kubernetes: KEP-3983 (drop-ins), KEP-2862, pkg/kubelet/cm/cpumanager/state/state_checkpoint.go, policy_static.go of cpumanager and memorymanager, kubernetes.io \"Control Memory Management Policies on a Node\"",
    };
}

impl Operation for Kubelet {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Unit(Self::UNIT)
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::Kubelet(new) = newer.op else { return true };
        dotted::give_way(&mut self.settings, &new.settings);
        for key in &new.remove {
            if let Some(keys) = dotted::find(&self.settings, key) {
                dotted::remove(&mut self.settings, &keys);
            }
        }
        self.remove.retain(|key| !new.remove.contains(key) && dotted::find(&new.settings, key).is_none());
        !self.settings.is_empty() || !self.remove.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_keeps_a_kubelet_from_starting_is_refused_at_once() {
        let why = |value: Value| Kubelet::INFO.parse(value).unwrap_err().to_string();
        assert!(why(json!({})).contains("one of `settings` and `remove`"));
        assert!(why(json!({"settings": {"cpuManagerPolicy": "Static"}})).contains("one of none, static"));
        assert!(why(json!({"settings": {"memoryManagerPolicy": "static"}})).contains("one of None, Static"));
        assert!(
            why(json!({"settings": {"cpuManagerPolicyOptions": {"full-pcpus-only": true}}}))
                .contains("put quotes")
        );
        assert!(why(json!({"settings": {"kind": "x"}})).contains("written by itself"));
        assert!(why(json!({"settings": {"reservedSystemCPUs": 0}})).contains("put quotes"));
        assert!(Kubelet::INFO.parse(json!({"settings": {"maxPods": 64}})).is_ok());
        assert!(why(json!({"settings": {"maxPod": 64}})).contains("did you mean `maxPods`"));
        assert!(why(json!({"remove": "evictionsHard.memory.available"})).contains("`evictionHard`"));
        assert!(Kubelet::INFO.parse(json!({"remove": ["evictionHard.memory.available", "other"]})).is_ok());
    }
}

//! Parameters of `container_toolkit`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, dotted, words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { ContainerRuntime {
    Docker: "docker",
    Containerd: "containerd",
    Crio: "crio" | "cri-o",
    Podman: "podman",
} }

/// Declares NVIDIA's container toolkit: its version, its settings, and the runtimes that give GPUs to containers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ContainerToolkit {
    /// Runtimes that know the toolkit: `docker`, `containerd`, `crio`, `podman`. Where it is left out: those that the
    /// node has, but containerd only where it is not Docker's alone (without Docker, or with a kubelet). Podman takes
    /// GPUs through CDI, and asks for nothing here but `cdi: true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtimes: Option<Vec<ContainerRuntime>>,
    /// The oldest version that is accepted. Before 1.17.8 (default) a container can become root on the node
    /// (CVE-2025-23266).
    #[serde(default = "version", deserialize_with = "lenient::text")]
    pub version: String,
    /// Whether a missing or older toolkit is installed by the node's package manager. Without it, such a node fails.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub install: bool,
    /// The package that `install` installs.
    #[serde(default = "package")]
    pub package: String,
    /// Settings in `/etc/nvidia-container-runtime/config.toml`, with dots or as mappings:
    /// `nvidia-container-cli.no-cgroups: true`. Everything else of the file stays, comments too.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub config: Map<String, Value>,
    /// Whether containers get NVIDIA's runtime unless they ask for another one. Where it is left out, that stays as it is.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub default_runtime: Option<bool>,
    /// Whether the CDI specification names the GPUs and MIG devices that the node has now, and the files of the driver
    /// that runs.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub cdi: bool,
}

fn version() -> String {
    ContainerToolkit::SECURE.to_owned()
}

fn package() -> String {
    "nvidia-container-toolkit".to_owned()
}

impl ContainerToolkit {
    /// The settings of the toolkit.
    pub const CONFIG: &str = "/etc/nvidia-container-runtime/config.toml";
    /// The oldest version without CVE-2025-23266. Source: NVIDIA security bulletin 5659.
    pub const SECURE: &str = "1.17.8";

    /// Returns the declared settings by their names with dots.
    pub fn settings(&self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        flatten("", &self.config, &mut all);
        all
    }
}

fn flatten(prefix: &str, map: &Map<String, Value>, all: &mut Vec<(String, Value)>) {
    for (key, value) in map {
        let name = format!("{prefix}{key}");
        match value {
            Value::Object(inner) => flatten(&format!("{name}."), inner, all),
            value => all.push((name, value.clone())),
        }
    }
}

impl Kind for ContainerToolkit {
    const INFO: KindInfo = KindInfo {
        name: "container_toolkit",
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
        summary: "Declares NVIDIA's container toolkit: version, settings, runtimes and the CDI specification.",
        example: "container_toolkit: {runtimes: [docker], cdi: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(given: &mut Given) {
        if let Some(Value::String(text)) = given.get("runtimes") {
            let words: Vec<Value> = text.split(',').map(|word| word.trim().into()).collect();
            given.insert("runtimes".to_owned(), words.into());
        }
    }

    fn check(&self) -> Result<(), ParamError> {
        let is_version =
            |text: &str| !text.is_empty() && text.split('.').all(|part| part.parse::<u32>().is_ok());
        if !is_version(&self.version) {
            let message = format!("`{}` is no version; one is written as {}", self.version, Self::SECURE);
            return Err(ParamError::new("version", message));
        }
        let name = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        if !self.package.starts_with(|c: char| c.is_ascii_alphanumeric()) || !self.package.chars().all(name) {
            return Err(ParamError::new("package", format!("`{}` is no name of a package", self.package)));
        }
        if let Some(key) = dotted::hollow(&self.config) {
            return Err(ParamError::new("config", format!("`{key}` has no value")));
        }
        for (key, value) in self.settings() {
            let plain = |value: &Value| matches!(value, Value::Bool(_) | Value::String(_) | Value::Number(_));
            let fits = match &value {
                Value::Array(all) => all.iter().all(plain),
                value => plain(value),
            };
            if !fits || key.split('.').any(str::is_empty) {
                return Err(ParamError::new("config", format!("`{key}` is no setting of the toolkit")));
            }
        }
        let podman = self.runtimes.as_ref().is_some_and(|all| all.contains(&ContainerRuntime::Podman));
        if podman && !self.cdi {
            return Err(ParamError::new("runtimes", "podman takes GPUs through CDI: `cdi: true` is needed"));
        }
        Ok(())
    }
}

impl GroundKind for ContainerToolkit {
    const GROUND: Ground = Ground {
        reads: &[
            "`nvidia-ctk --version`",
            "/etc/nvidia-container-runtime/config.toml",
            "daemon.json, `containerd config dump`, files of CRI-O, `podman --version`",
            "/etc/cdi/nvidia.yaml, /var/run/cdi/nvidia.yaml, NVML",
        ],
        writes: &[
            "config.toml of the toolkit",
            "`runtimes.nvidia` of daemon.json, and `features.cdi` for Docker 25.0 to 28.1 with `cdi: true`",
            "files of containerd and CRI-O, by `nvidia-ctk runtime configure`",
            "the CDI specification",
        ],
        takes_effect: "config.toml and a CDI specification with the next container; Docker at a reload, but `features.cdi` with a restart; containerd and CRI-O with a restart",
        survives: "reboots; /var/run/cdi does not, and the toolkit's own unit makes it anew (1.18 on)",
        owners: &[
            "the toolkit of NVIDIA's GPU operator, which writes files of the runtimes and a CDI specification when its pod starts: use one of both",
            "`nvidia-cdi-refresh.service`, which writes /var/run/cdi/nvidia.yaml; what it names wins over /etc/cdi",
            "`docker_daemon`, in the same daemon.json: other keys stay",
            "k3s and RKE2, which generate containerd's file at each start from a template of their own",
        ],
        source: "NVIDIA, container toolkit 1.17 to 1.20; containerd, cri/config.md; CDI specification",
    };
}

impl Operation for ContainerToolkit {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([
            Self::CONFIG,
            super::DockerDaemon::FILE,
            "/etc/containerd",
            "/etc/crio",
            "/etc/cdi",
            "/var/run/cdi",
        ])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::ContainerToolkit(_))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<ContainerToolkit, ParamError> {
        let task: ContainerToolkit = serde_json::from_value(value).unwrap();
        task.check().map(|()| task)
    }

    #[test]
    fn settings_are_written_with_dots_or_as_mappings() {
        let task = read(json!({"config": {"a.b": 1, "c": {"d": {"e": true}}}})).unwrap();
        assert_eq!(task.settings(), [("a.b".to_owned(), json!(1)), ("c.d.e".to_owned(), json!(true))]);
        assert_eq!(task.version, "1.17.8");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let why = |value| read(value).unwrap_err().to_string();
        assert_eq!(why(json!({"version": "new"})), "`new` is no version; one is written as 1.17.8");
        assert_eq!(why(json!({"config": {"a": {"b": null}}})), "`a.b` has no value");
        assert_eq!(why(json!({"config": {"a..b": 1}})), "`a..b` is no setting of the toolkit");
        assert_eq!(why(json!({"config": {"a": [[1]]}})), "`a` is no setting of the toolkit");
        assert!(why(json!({"runtimes": ["podman"]})).contains("`cdi: true` is needed"));
        assert!(why(json!({"package": "-y"})).contains("no name of a package"));
    }
}

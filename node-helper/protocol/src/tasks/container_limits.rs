//! Parameters of `container_limits`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, ContainerRuntime, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading,
    restart::DaemonRestart,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

/// Declares the limits that podman and CRI-O give containers: ulimits such as memlock, and the size of logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ContainerLimits {
    /// `podman` or `crio`. Docker and containerd have kinds of their own for it, which the error names.
    pub runtime: ContainerRuntime,
    /// Limits by their names, such as `memlock: unlimited` or `nofile: "1024:524288"` (soft and hard). Memory is in bytes.
    /// Limits of other files that are not named here stay.
    #[serde(
        default,
        deserialize_with = "lenient::texts_by_name",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub ulimits: BTreeMap<String, String>,
    /// Largest log of a container, such as `100MiB`, or `unlimited`. It counts where the runtime writes the log itself
    /// (podman's driver `k8s-file`). Below Kubernetes, the kubelet rotates logs: `containerLogMaxSize` of the kind `kubelet`.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub log_size_max: Option<String>,
    /// `if_needed` (default) restarts CRI-O, behind a drain. `never` changes the file and warns. Podman has no daemon: its
    /// next container has the limits.
    #[serde(default)]
    pub restart: DaemonRestart,
}

/// Names of ulimits that runtimes know. Source: docker/go-units, `ulimit.go`, which both use.
const NAMES: [&str; 15] = [
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];
/// Smallest log that conmon takes, in bytes. Source: crio.conf(5), `log_size_max`.
const SMALLEST_LOG: i64 = 8192;

impl ContainerLimits {
    /// Returns the text of a limit as the runtimes' files have it, `soft:hard` with -1 for none.
    pub fn limit(text: &str) -> Option<String> {
        let one = |text: &str| match text.trim() {
            "unlimited" | "infinity" | "-1" => Some(-1),
            number => number.parse::<i64>().ok().filter(|number| *number >= 0),
        };
        let (soft, hard) = text.split_once(':').unwrap_or((text, text));
        let (soft, hard) = (one(soft)?, one(hard)?);
        (hard == -1 || (soft != -1 && soft <= hard)).then(|| format!("{soft}:{hard}"))
    }

    /// Returns the largest log in bytes, -1 for any size.
    pub fn log_bytes(&self) -> Option<i64> {
        match self.log_size_max.as_deref()?.trim() {
            "unlimited" | "-1" => Some(-1),
            text => {
                let bytes = i64::try_from(lenient::parse_bytes(text)?).ok()?;
                (bytes >= SMALLEST_LOG).then_some(bytes)
            }
        }
    }

    /// The file that is written; of the same folder, those with later names win over it.
    pub const fn drop_in(&self) -> &'static str {
        match self.runtime {
            ContainerRuntime::Crio => "/etc/crio/crio.conf.d/90-gpufleet.conf",
            _ => "/etc/containers/containers.conf.d/90-gpufleet.conf",
        }
    }
}

impl Kind for ContainerLimits {
    const INFO: KindInfo = KindInfo {
        name: "container_limits",
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
        summary: "Declares the limits that podman and CRI-O give containers: ulimits such as memlock, and the size of logs.",
        example: "container_limits: {runtime: podman, ulimits: {memlock: unlimited}, log_size_max: 100MiB}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let elsewhere = match self.runtime {
            ContainerRuntime::Docker => {
                "Docker's are settings of its daemon: `docker_daemon: {settings: {default-ulimits: {memlock: {Name: memlock, \
                 Soft: -1, Hard: -1}}, log-opts: {max-size: 100m, max-file: \"3\"}}}`"
            }
            ContainerRuntime::Containerd => {
                "containers of containerd inherit its own limits: `unit_settings: {unit: containerd, settings: {Service: \
                 {LimitMEMLOCK: infinity}}}`; the kubelet rotates their logs: `kubelet: {settings: {containerLogMaxSize: 100Mi, \
                 containerLogMaxFiles: 3}}`"
            }
            ContainerRuntime::Crio | ContainerRuntime::Podman => "",
        };
        if !elsewhere.is_empty() {
            return Err(ParamError::new("runtime", elsewhere));
        }
        if self.ulimits.is_empty() && self.log_size_max.is_none() {
            return Err(ParamError::new("ulimits", "one of `ulimits` and `log_size_max` is needed"));
        }
        for (name, value) in &self.ulimits {
            if !NAMES.contains(&name.as_str()) {
                let message = format!("`{name}` is no limit; there are {}", NAMES.join(", "));
                return Err(ParamError::new("ulimits", message));
            }
            if Self::limit(value).is_none() {
                let message = format!(
                    "`{name}` is a number, `unlimited`, or `soft:hard` with a soft limit that is not above the hard one; got `{value}`"
                );
                return Err(ParamError::new("ulimits", message));
            }
        }
        if self.log_size_max.is_some() && self.log_bytes().is_none() {
            return Err(ParamError::new(
                "log_size_max",
                "a size from 8 KiB on is needed, such as 100MiB, or `unlimited`",
            ));
        }
        Ok(())
    }
}

impl GroundKind for ContainerLimits {
    const GROUND: Ground = Ground {
        reads: &[
            "/usr/share/containers/containers.conf, /etc/containers/containers.conf and containers.conf.d",
            "/etc/crio/crio.conf and crio.conf.d",
            "whether crio.service runs, and since when",
        ],
        writes: &[
            "/etc/containers/containers.conf.d/90-gpufleet.conf, or /etc/crio/crio.conf.d/90-gpufleet.conf, the declared keys alone",
        ],
        takes_effect: "podman: with the next container; CRI-O: for new containers, with its restart, behind a drain",
        survives: "reboots and updates of the packages",
        owners: &[
            "files of the same folder with later names, which win and are named",
            "`containers.conf` of a user, which wins for that user's podman, and is not read",
            "the kubelet, which rotates the logs of containers below Kubernetes",
        ],
        source: "containers.conf(5) (`default_ulimits`, `log_size_max`); crio.conf(5) and crio.conf.d(5); docker/go-units, ulimit.go",
    };
}

impl Operation for ContainerLimits {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([self.drop_in()])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::ContainerLimits(new) = newer.op else { return true };
        if new.runtime != self.runtime {
            return true;
        }
        self.ulimits.retain(|name, _| !new.ulimits.contains_key(name));
        if new.log_size_max.is_some() {
            self.log_size_max = None;
        }
        !self.ulimits.is_empty() || self.log_size_max.is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<ContainerLimits, ParamError> {
        let task: ContainerLimits = serde_json::from_value(value).unwrap();
        task.check().map(|()| task)
    }

    #[test]
    fn limits_that_no_runtime_takes_are_refused_at_once() {
        let why = |value| read(value).unwrap_err().to_string();
        assert!(why(json!({"runtime": "docker"})).contains("`docker_daemon:"));
        assert!(why(json!({"runtime": "containerd", "log_size_max": "1m"})).contains("LimitMEMLOCK"));
        assert!(why(json!({"runtime": "crio"})).contains("one of `ulimits`"));
        assert!(why(json!({"runtime": "crio", "ulimits": {"memlok": 1}})).contains("no limit"));
        for bad in ["5:4", "-1:4", "-2", "x", "1:2:3"] {
            assert!(
                why(json!({"runtime": "crio", "ulimits": {"nofile": bad}})).contains("soft:hard"),
                "{bad}"
            );
        }
        assert!(why(json!({"runtime": "podman", "log_size_max": "4k"})).contains("8 KiB"));
        let task = read(
            json!({"runtime": "cri-o", "ulimits": {"memlock": -1, "nofile": "4:5"}, "log_size_max": "1M"}),
        );
        assert_eq!(task.unwrap().log_bytes(), Some(1024 * 1024));
        assert_eq!(ContainerLimits::limit("unlimited").as_deref(), Some("-1:-1"));
        assert_eq!(ContainerLimits::limit("8").as_deref(), Some("8:8"));
    }

    #[test]
    fn a_newer_task_takes_over_its_limits() {
        let newer = |value| NodeOp::ContainerLimits(read(value).unwrap());
        let mut old =
            read(json!({"runtime": "crio", "ulimits": {"memlock": 1, "nofile": 2}, "log_size_max": "1M"}))
                .unwrap();
        assert!(old.yields(&Newer::of(&newer(json!({"runtime": "podman", "ulimits": {"memlock": 1}})))));
        assert_eq!(old.ulimits.len(), 2);
        assert!(old.yields(&Newer::of(&newer(
            json!({"runtime": "crio", "ulimits": {"memlock": 3}, "log_size_max": -1})
        ))));
        assert_eq!((old.ulimits.len(), &old.log_size_max), (1, &None));
        assert!(!old.yields(&Newer::of(&newer(json!({"runtime": "crio", "ulimits": {"nofile": 3}})))));
    }
}

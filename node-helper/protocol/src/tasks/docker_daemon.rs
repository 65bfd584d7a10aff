//! Parameters of `docker_daemon`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, dotted,
    restart::DaemonRestart,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

/// Declares settings of Docker's daemon, in its file and in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DockerDaemon {
    /// Settings as in `daemon.json`. Mappings are merged with those of the file, key by key; lists and other values
    /// take the place of the file's. Keys of the file that are not named here stay.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
    /// Keys not to have; one inside of a mapping is written with dots: `log-opts.max-size`.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// The daemon's file; a missing one is made.
    #[serde(default = "path")]
    pub path: String,
    /// `if_needed` (default) restarts the daemon if a difference asks for that. `never` changes the file and warns that
    /// the difference awaits a restart. What the daemon reloads is reloaded in both cases.
    #[serde(default)]
    pub restart: DaemonRestart,
}

fn path() -> String {
    DockerDaemon::FILE.to_owned()
}

impl DockerDaemon {
    pub const FILE: &str = "/etc/docker/daemon.json";

    /// Declares these settings in the usual file.
    pub fn of(settings: Map<String, Value>) -> Self {
        Self { settings, path: path(), ..Self::default() }
    }
}

impl Kind for DockerDaemon {
    const INFO: KindInfo = KindInfo {
        name: "docker_daemon",
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
        summary: "Declares settings of Docker's daemon, in its file and in force.",
        example: "docker_daemon: {settings: {live-restore: true, log-opts: {max-size: 100m}}}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.settings.is_empty() && self.remove.is_empty() {
            return Err(ParamError::new("settings", "one of `settings` and `remove` is needed"));
        }
        if !self.path.starts_with('/') {
            return Err(ParamError::new("path", "an absolute path is needed"));
        }
        if let Some(key) = dotted::hollow(&self.settings) {
            let message = format!("`{key}` has no value; `remove: [{key}]` takes a key out of the file");
            return Err(ParamError::new("settings", message));
        }
        if let Some(key) = self.remove.iter().find(|key| key.is_empty()) {
            return Err(ParamError::new("remove", format!("`{key}` is no key")));
        }
        if let Some(key) = self.remove.iter().find(|key| dotted::find(&self.settings, key).is_some()) {
            return Err(ParamError::new("remove", format!("`settings` sets `{key}`")));
        }
        // Source: moby, `daemon/config/config.go`: `log-opts` is a mapping of texts, and dockerd refuses anything else.
        let options = self.settings.get("log-opts").and_then(Value::as_object);
        if let Some((key, _)) = options.into_iter().flatten().find(|(_, value)| !value.is_string()) {
            let message =
                format!("dockerd takes only text for `log-opts.{key}`: put quotes around its value");
            return Err(ParamError::new("settings", message));
        }
        Ok(())
    }
}

impl GroundKind for DockerDaemon {
    const GROUND: Ground = Ground {
        reads: &[
            "daemon.json (`path`)",
            "flags of the running dockerd",
            "`docker info`, `dockerd --validate`",
            "with `native.cgroupdriver`: settings of a kubelet over dockerd",
        ],
        writes: &["daemon.json, the declared keys alone"],
        takes_effect: "at a reload (SIGHUP) where dockerd takes it so, else with its restart; `features` other than `buildkit` with a restart",
        survives: "reboots and updates of Docker",
        owners: &[
            "`container_toolkit` and `nvidia-ctk runtime configure`, which write `runtimes.nvidia` and `default-runtime` into the same file",
            "flags in drop-ins of docker.service: dockerd does not start with a key in both; such a key is refused",
            "the toolkit of NVIDIA's GPU operator, which writes its runtimes again when its pod starts",
        ],
        source: "Docker, dockerd reference; moby, daemon/reload.go; measured against 20.10",
    };
}

impl Operation for DockerDaemon {
    paths!(path);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([&self.path])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::DockerDaemon(new) = newer.op else { return true };
        if new.path != self.path {
            return true;
        }
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

    fn read(value: Value) -> Result<DockerDaemon, ParamError> {
        let task: DockerDaemon = serde_json::from_value(value).unwrap();
        task.check().map(|()| task)
    }

    #[test]
    fn what_dockerd_would_refuse_is_refused_at_once() {
        let why = |value| read(value).unwrap_err().to_string();
        assert_eq!(why(json!({})), "one of `settings` and `remove` is needed");
        assert!(why(json!({"settings": {"log-opts": {"max-file": 3}}})).contains("put quotes around"));
        assert!(why(json!({"settings": {"a": {"b": null}}})).contains("`remove: [a.b]`"));
        assert_eq!(why(json!({"settings": {"a": {"b": 1}}, "remove": "a.b"})), "`settings` sets `a.b`");
        assert!(read(json!({"remove": "log-opts.max-file"})).is_ok());
    }

    #[test]
    fn a_newer_task_takes_over_its_keys() {
        let mut old =
            read(json!({"settings": {"a": 1, "b": {"c": 1, "d": 2}}, "remove": ["x", "y.z"]})).unwrap();
        let newer = |value| NodeOp::DockerDaemon(read(value).unwrap());
        let other = newer(json!({"settings": {"a": 2}, "path": "/srv/daemon.json"}));
        assert!(old.yields(&Newer::of(&other)));
        assert_eq!(old.settings.len(), 2);
        let same = newer(json!({"settings": {"b": {"c": 3}, "x": 1}, "remove": "a"}));
        assert!(old.yields(&Newer::of(&same)));
        assert_eq!((json!(old.settings), &old.remove), (json!({"b": {"d": 2}}), &vec!["y.z".to_owned()]));
    }
}

//! Parameters of `gpu_keep`: what a node asserts at each boot.

use serde::{Deserialize, Deserializer, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, words::words,
};
use crate::{Disruption, Unit, lenient};

words! { KeepPresence {
    /// The node asserts the state at each boot.
    Present: "present",
    /// It asserts nothing, and nothing of it is left on the node.
    Absent: "absent",
} }

words! { OnKeepFailure {
    /// The node serves as it is.
    Serve: "serve",
    /// The units of `hold` do not start until the state is as declared.
    Hold: "hold",
} }

/// Lets the node assert the state of its GPUs at each boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuKeep {
    /// `present` (default): what this run declared of GPUs up to here is kept; `absent`: nothing is.
    #[serde(default = "present")]
    pub state: KeepPresence,
    /// What becomes of a boot after which the GPUs are not as declared: `serve` or `hold`. Left out, it stays as the node
    /// has it, at first `serve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnKeepFailure>,
    /// With `on_failure: hold`, the units that wait. Left out, they stay as the node has them, at first slurmd.service and
    /// kubelet.service.
    #[serde(default, deserialize_with = "some_or_many", skip_serializing_if = "Option::is_none")]
    pub hold: Option<Vec<String>>,
    /// How long one boot may take over it, such as `8m`, which it is at first.
    #[serde(
        default,
        deserialize_with = "lenient::optional_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout: Option<u64>,
}

fn present() -> KeepPresence {
    KeepPresence::Present
}
fn some_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    lenient::one_or_many(deserializer).map(Some)
}

impl Default for GpuKeep {
    fn default() -> Self {
        Self { state: present(), on_failure: None, hold: None, timeout: None }
    }
}

/// Units that the assertion itself comes after, and those through which a person reaches the node.
const NEVER: [&str; 9] = [
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-mig-manager.service",
    "systemd-modules-load.service",
    "gpufleet-keep.service",
    "dbus.service",
    "ssh.service",
    "sshd.service",
];
/// Largest number of units that wait.
const MOST_UNITS: usize = 32;

/// Whether this is the name of a service, and no path.
fn is_service(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:@\\".contains(c);
    name.strip_suffix(".service").is_some_and(|stem| !stem.is_empty() && stem.chars().all(allowed))
        && !name.starts_with('.')
        && name.len() < 256
}

impl Kind for GpuKeep {
    const INFO: KindInfo = KindInfo {
        name: "gpu_keep",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::NEEDS_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::within("timeout", Some(Unit::Seconds), 60, 3600)],
        since: &[],
        summary: "Lets the node assert the state of its GPUs at each boot, before schedulers and containers start.",
        example: "gpu_keep: {on_failure: hold, hold: [slurmd.service]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let hold = self.hold.as_deref().unwrap_or_default();
        if let Some(wrong) = hold.iter().find(|name| NEVER.contains(&name.as_str())) {
            let why = "the assertion needs it, or a person who looks at the node does";
            return Err(ParamError::new("hold", format!("`{wrong}` cannot wait: {why}")));
        }
        if let Some(wrong) = hold.iter().find(|name| !is_service(name)) {
            return Err(ParamError::new(
                "hold",
                format!("`{wrong}` is not the name of a service, such as slurmd.service"),
            ));
        }
        if hold.len() > MOST_UNITS {
            return Err(ParamError::new("hold", format!("at most {MOST_UNITS} units can wait")));
        }
        if self.on_failure == Some(OnKeepFailure::Hold) && self.hold.as_ref().is_some_and(Vec::is_empty) {
            return Err(ParamError::new("hold", "`on_failure: hold` needs the units that wait"));
        }
        Ok(())
    }
}

impl GroundKind for GpuKeep {
    const GROUND: Ground = Ground {
        reads: &[
            "/var/lib/gpufleet/keep: the kept state, its signature and the pinned key",
            "/etc/machine-id, the UUIDs of the GPUs",
            "what the gpu_* kinds in it read",
        ],
        writes: &[
            "/var/lib/gpufleet/keep, /usr/local/sbin/gpufleet-keep (a copy of the helper)",
            "gpufleet-keep.service, and with `on_failure: hold` drop-ins of the units of `hold`",
            "at a boot, what the gpu_* kinds in it write, of GPUs that nobody uses",
        ],
        takes_effect: "at the next boot",
        survives: "reboots and updates; a machine with other GPUs, or another machine id, is refused at boot and told",
        owners: &[
            "runs of gpufleet, which take the node over from it: what they declared stays, and they warn of what the next boot sets \
             otherwise",
            "nvidia-mig-manager.service (mig-parted) and the MIG manager of NVIDIA's GPU operator, which set layouts at boot: use one",
        ],
        source: "systemd 252, ordering and ExecStartPre measured; NVIDIA/mig-parted 0.15",
    };
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<GpuKeep, String> {
        let keep: GpuKeep = serde_json::from_value(value).map_err(|error| error.to_string())?;
        keep.check().map(|()| keep).map_err(|error| error.to_string())
    }

    #[test]
    fn only_services_wait() {
        assert_eq!(read(json!({})).unwrap(), GpuKeep::default());
        assert_eq!(read(json!({"hold": "slurmd@a.service"})).unwrap().hold.unwrap(), ["slurmd@a.service"]);
        for wrong in
            ["slurmd", "../x.service", "a b.service", ".service", "/etc/x.service", "x.socket", ".x.service"]
        {
            assert!(read(json!({"hold": [wrong]})).is_err(), "{wrong}");
        }
        assert!(read(json!({"on_failure": "hold", "hold": []})).is_err());
        assert!(read(json!({"hold": []})).is_ok());
    }
}

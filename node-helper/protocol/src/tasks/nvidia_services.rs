//! Parameters of `fabric_manager`, `nvidia_imex` and `dcgm`: services that come with NVIDIA's driver.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, Service,
    ServiceState, words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { #[derive(Default)] RunState { #[default] Started: "started", Stopped: "stopped" } }

impl RunState {
    /// Declares a unit in this state.
    pub fn of_unit(self, unit: &str, enabled: Option<bool>) -> Service {
        let state = match self {
            Self::Started => ServiceState::Started,
            Self::Stopped => ServiceState::Stopped,
        };
        Service { state: Some(state), enabled, ..Service::of(unit) }
    }
}

/// Checks the name of a package: one word that cannot be read as an option, without a version.
fn check_package(name: Option<&String>) -> Result<(), ParamError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
    match name {
        Some(name) if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(legal) => {
            Err(ParamError::new("package", format!("`{name}` is no name of a package")))
        }
        _ => Ok(()),
    }
}

fn yes() -> Option<bool> {
    Some(true)
}

/// Declares NVIDIA's fabric manager, in the version of the driver that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FabricManager {
    /// `started` (default) or `stopped`. It is not applicable on a node without an NVSwitch.
    #[serde(default)]
    pub state: RunState,
    /// Whether it starts at boot (default), which it must: without it, CUDA fails with error 802.
    #[serde(default = "yes", deserialize_with = "lenient::optional_flag")]
    pub enabled: Option<bool>,
    /// Whether the package of the driver's version is installed where another version, or none, is. The fabric manager
    /// runs only with exactly the version of the driver. Without it, such a node fails.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub install: bool,
    /// The package that `install` installs, without its version; by default `nvidia-fabricmanager-BRANCH` or
    /// `nvidia-fabricmanager`, whichever the repositories have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
}

impl FabricManager {
    pub const UNIT: &str = "nvidia-fabricmanager.service";
}

impl Kind for FabricManager {
    const INFO: KindInfo = KindInfo {
        name: "fabric_manager",
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
        summary: "Declares NVIDIA's fabric manager, in the version of the driver that runs.",
        example: "fabric_manager: {state: started, install: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        check_package(self.package.as_ref())
    }
}

impl GroundKind for FabricManager {
    const GROUND: Ground = Ground {
        reads: &[
            "the PCI bus, and vital product data of network cards (`SW_MNG`)",
            "/sys/module/nvidia/version, `nv-fabricmanager --version`",
            "/opt/nvidia/nvlsm, the processes nvlsm and nv-fabricmanager",
            "systemd",
        ],
        writes: &[
            "nothing but the state of the unit, whether it starts at boot, and with `install: true` its package",
        ],
        takes_effect: "at once",
        survives: "reboots; not an update of the driver alone, after which the versions differ",
        owners: &[
            "`gpu_driver`, which takes the package along in the driver's version, and stops the unit for a reload",
            "the driver of NVIDIA's GPU operator, whose container runs a fabric manager of its own",
            "the host of a virtual machine, which may run it for its guests",
        ],
        source: "NVIDIA, Fabric Manager user guide; NVIDIA gpu-driver-container",
    };
}

impl Operation for FabricManager {
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
        !matches!(newer.op, NodeOp::FabricManager(_))
    }
}

/// Declares NVIDIA's IMEX daemon, through which the GPUs of an NVLink domain share memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NvidiaImex {
    /// The IP addresses of all members of the domain, the node's own among them. All members must have the same list in
    /// the same order. Where it is left out, the file stays as it is.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// `started` (default) or `stopped`.
    #[serde(default)]
    pub state: RunState,
    /// Whether it starts at boot (default).
    #[serde(default = "yes", deserialize_with = "lenient::optional_flag")]
    pub enabled: Option<bool>,
}

impl NvidiaImex {
    pub const UNIT: &str = "nvidia-imex.service";
    pub const FILE: &str = "/etc/nvidia-imex/nodes_config.cfg";
}

impl Kind for NvidiaImex {
    const INFO: KindInfo = KindInfo {
        name: "nvidia_imex",
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
        summary: "Declares NVIDIA's IMEX daemon and the members of its domain.",
        example: "nvidia_imex: {nodes: [10.0.0.1, 10.0.0.2]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        for (at, node) in self.nodes.iter().enumerate() {
            if node.parse::<IpAddr>().is_err() {
                return Err(ParamError::new(
                    "nodes",
                    format!("`{node}` is no IP address, which the daemon asks for"),
                ));
            }
            if self.nodes.iter().take(at).any(|other| other == node) {
                return Err(ParamError::new("nodes", format!("`{node}` is there twice")));
            }
        }
        Ok(())
    }
}

impl GroundKind for NvidiaImex {
    const GROUND: Ground = Ground {
        reads: &[
            "/etc/nvidia-imex/nodes_config.cfg",
            "/sys/module/nvidia/version, `nvidia-imex --version`",
            "systemd",
        ],
        writes: &[
            "/etc/nvidia-imex/nodes_config.cfg",
            "the state of the unit, and whether it starts at boot",
        ],
        takes_effect: "with a start of the daemon",
        survives: "reboots; the channels below /dev do not unless the driver makes them (`NVreg_CreateImexChannel0=1`)",
        owners: &[
            "NVIDIA's driver for Kubernetes (ComputeDomains), which runs daemons of its own and wants the host's masked",
            "`gpu_driver`, which takes the package along in the driver's version, and stops the unit for a reload",
            "Slurm's switch/nvidia_imex, which gives jobs channels and leaves the members alone",
        ],
        source: "NVIDIA, IMEX service guide",
    };
}

impl Operation for NvidiaImex {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::FILE])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::NvidiaImex(_))
    }
}

/// Declares NVIDIA's DCGM, and runs its diagnostic when asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Dcgm {
    /// `started` (default) or `stopped`, of the host engine.
    #[serde(default)]
    pub state: RunState,
    /// Whether the host engine starts at boot (default).
    #[serde(default = "yes", deserialize_with = "lenient::optional_flag")]
    pub enabled: Option<bool>,
    /// Whether `package` is installed where it is missing.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub install: bool,
    /// The package, such as `datacenter-gpu-manager-4-cuda13`, by the CUDA version of the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    /// Runs the diagnostic of this level, **every time**, like a command: 1 takes seconds and disturbs nobody, 2 about 2
    /// minutes and 3 about 15 minutes of load on every GPU, for which the node is drained. Tests that fail fail the
    /// task; give it enough `timeout`.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub diag: Option<u32>,
}

impl Kind for Dcgm {
    const INFO: KindInfo = KindInfo {
        name: "dcgm",
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
        numbers: &[Number::within("diag", None, 1, 3)],
        since: &[],
        summary: "Declares NVIDIA's DCGM, and runs its diagnostic when asked.",
        example: "dcgm: {package: datacenter-gpu-manager-4-cuda13, install: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(given: &mut Given) {
        if given.get("diag") == Some(&Value::Bool(false)) {
            given.remove("diag");
        }
    }

    fn check(&self) -> Result<(), ParamError> {
        check_package(self.package.as_ref())?;
        if self.install && self.package.is_none() {
            let message = "the package is needed, such as `datacenter-gpu-manager-4-cuda13`";
            return Err(ParamError::new("package", message));
        }
        if self.diag.is_some() && self.state == RunState::Stopped {
            return Err(ParamError::new("diag", "the diagnostic needs the host engine: `state: started`"));
        }
        Ok(())
    }
}

impl GroundKind for Dcgm {
    const GROUND: Ground = Ground {
        reads: &["systemd", "`dcgmi diag -j` (with `diag`)"],
        writes: &[
            "nothing but the state of the unit, whether it starts at boot, and with `install: true` its package",
        ],
        takes_effect: "at once",
        survives: "reboots and updates of DCGM",
        owners: &[
            "`gpu_*` kinds and `gpu_driver`, which stop the host engine for a reset or a reload and start it again",
            "NVIDIA's GPU operator, whose pods bring a host engine or an exporter with one: two may compete for profiling metrics",
        ],
        source: "NVIDIA, DCGM user guide",
    };
}

impl Operation for Dcgm {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Unit("nvidia-dcgm.service")
    }

    fn lasting(&mut self) -> bool {
        self.diag = None;
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Dcgm(_))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        fn why<K: Kind>(value: Value) -> String {
            K::INFO.parse(value).unwrap_err().to_string()
        }
        assert!(why::<Dcgm>(json!({"install": true})).contains("the package is needed"));
        assert!(why::<Dcgm>(json!({"diag": 2, "state": "stopped"})).contains("needs the host engine"));
        assert!(
            why::<Dcgm>(json!({"diag": 4})).contains("from 1 to 3"),
            "{}",
            why::<Dcgm>(json!({"diag": 4}))
        );
        assert!(why::<FabricManager>(json!({"package": "x=1"})).contains("no name of a package"));
        assert!(why::<NvidiaImex>(json!({"nodes": ["gpu001"]})).contains("no IP address"));
        assert!(why::<NvidiaImex>(json!({"nodes": ["10.0.0.1", "10.0.0.1"]})).contains("there twice"));
        assert!(Dcgm::INFO.parse(json!({"diag": false})).is_ok());
    }

    #[test]
    fn a_diagnostic_is_an_act() {
        let mut task: Dcgm = serde_json::from_value(json!({"diag": 1})).unwrap();
        assert!(task.lasting());
        assert_eq!(task.diag, None);
    }
}

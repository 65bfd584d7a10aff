//! Parameters of `slurm_node`.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading,
    restart::DaemonRestart, words::words,
};
use crate::{
    Disruption, NodeOp, Unit, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { SlurmDetect {
    /// Lines with the device files of the node's GPUs.
    Off: "off",
    Nvml: "nvml",
    Nvidia: "nvidia",
} }

words! { SlurmMemory { Auto: "auto" } }

/// Declares what slurmd of a node offers: its GPUs, what jobs are held to, memory and features.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SlurmNode {
    /// How slurmd finds the GPUs (`AutoDetect` of gres.conf). `off`: lines with device file, type and cores of each GPU,
    /// made from the node's topology. `nvml`: slurmd asks the driver, which MIG needs. `nvidia`: the same without the
    /// driver's library, since Slurm 24.11, and without MIG. By default `nvml` where a GPU has MIG on, else `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autodetect: Option<SlurmDetect>,
    /// The `Type` of the GPUs; by default from their model, such as `h100`. It must be that of `Gres=` in slurm.conf.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Whether the lines name the cores near each GPU (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub cores: bool,
    /// `RealMemory` of the node in slurm.conf, in MiB; not above what `slurmd -C` finds.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub real_memory_mib: Option<u32>,
    /// `auto`: `RealMemory` is what `slurmd -C` finds less 2 %, which the system keeps, in whole GiB. A value that differs by 1
    /// GiB or less stays, because the memory that a kernel leaves differs from version to version. Not with
    /// `real_memory_mib`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub real_memory: Option<SlurmMemory>,
    /// `Features` of the node in slurm.conf, all of them.
    #[serde(
        default,
        deserialize_with = "lenient::optional_comma_list",
        skip_serializing_if = "Option::is_none"
    )]
    pub features: Option<Vec<String>>,
    /// `ConstrainDevices` of cgroup.conf: jobs reach only GPUs that they were given.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub constrain_devices: Option<bool>,
    /// `ConstrainCores` of cgroup.conf.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub constrain_cores: Option<bool>,
    /// `ConstrainRAMSpace` of cgroup.conf.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub constrain_ram: Option<bool>,
    /// slurm.conf as slurmd of this node reads it; gres.conf and cgroup.conf lie beside it.
    #[serde(default = "conf")]
    pub conf: String,
    /// The node's name in Slurm; by default that of the running slurmd (`-N`), or the host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `if_needed` (default) restarts slurmd of this node, which leaves jobs running, or has one from 23.11 on reconfigure
    /// where that is enough. `never` changes the files and warns.
    #[serde(default)]
    pub restart: DaemonRestart,
}

fn yes() -> bool {
    true
}

fn conf() -> String {
    SlurmNode::CONF.to_owned()
}

impl SlurmNode {
    pub const CONF: &str = "/etc/slurm/slurm.conf";
    pub const UNIT: &str = "slurmd.service";

    /// Returns the path of another file beside slurm.conf.
    pub fn beside(&self, name: &str) -> String {
        let folder = self.conf.rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{folder}/{name}")
    }

    /// Returns the declared settings of cgroup.conf.
    pub fn constraints(&self) -> Vec<(&'static str, bool)> {
        [
            ("ConstrainDevices", self.constrain_devices),
            ("ConstrainCores", self.constrain_cores),
            ("ConstrainRAMSpace", self.constrain_ram),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
    }
}

/// Whether it can be a value in Slurm's files: one word that ends nothing and begins nothing.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

impl Kind for SlurmNode {
    const INFO: KindInfo = KindInfo {
        name: "slurm_node",
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
        numbers: &[Number::from("real_memory_mib", Some(Unit::Mebibytes), 1)],
        since: &[],
        summary: "Declares what slurmd of a node offers: its GPUs, memory and features, and what jobs are held to.",
        example: "slurm_node: {type: h100, constrain_devices: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if !self.conf.starts_with('/') {
            return Err(ParamError::new("conf", "an absolute path is needed"));
        }
        for (name, text) in [("type", &self.kind), ("node", &self.node)] {
            if let Some(text) = text.as_ref().filter(|text| !is_word(text)) {
                let message = format!("`{text}` is no word of letters, digits, `.`, `_` and `-`");
                return Err(ParamError::new(name, message));
            }
        }
        if let Some(feature) = self.features.iter().flatten().find(|feature| !is_word(feature)) {
            let message = format!("`{feature}` is no word of letters, digits, `.`, `_` and `-`");
            return Err(ParamError::new("features", message));
        }
        if self.real_memory.is_some() && self.real_memory_mib.is_some() {
            let message =
                "it cannot be beside `real_memory_mib`: one is by hand, the other by what slurmd finds";
            return Err(ParamError::new("real_memory", message));
        }
        if self.kind.is_some() && !matches!(self.autodetect, None | Some(SlurmDetect::Off)) {
            return Err(ParamError::new("type", "with `autodetect` slurmd names the types itself"));
        }
        Ok(())
    }
}

impl GroundKind for SlurmNode {
    const GROUND: Ground = Ground {
        reads: &[
            "slurm.conf, gres.conf, cgroup.conf (`conf` and beside it)",
            "sysfs and NVML (GPUs, sockets, cores, NUMA nodes)",
            "`slurmd -V`, `slurmd -C`, `slurmd -G`",
            "`scontrol show node` (state and its reason)",
        ],
        writes: &["gres.conf", "cgroup.conf", "the node's own NodeName line of slurm.conf"],
        takes_effect: "with the restart or reload of slurmd that follows; slurmctld reads its own slurm.conf at `scontrol reconfigure`",
        survives: "reboots and updates of Slurm; not a rollout of the cluster's files from elsewhere",
        owners: &[
            "slurmctld, where nodes get their files from it (configless); such a node is refused",
            "whoever distributes the cluster's slurm.conf, which must be the same on all nodes",
            "NodeName lines that several nodes share; they are compared and never written",
        ],
        source: "Slurm 22.05: gres.conf(5), slurm.conf(5), cgroup.conf(5), measured against slurmctld and slurmd",
    };
}

impl Operation for SlurmNode {
    paths!(conf);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        let paths = vec![self.conf.clone(), self.beside("gres.conf"), self.beside("cgroup.conf")];
        Reach::Places { paths, driver: false }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::SlurmNode(new) if new.conf == self.conf)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_could_break_out_of_a_line_is_refused() {
        let why = |value: Value| SlurmNode::INFO.parse(value).unwrap_err().to_string();
        assert!(why(json!({"type": "h100 Count=9"})).contains("is no word"));
        assert!(why(json!({"features": ["a b"]})).contains("is no word"));
        assert!(why(json!({"node": "n\nx"})).contains("is no word"));
        assert!(why(json!({"type": "h100", "autodetect": "nvml"})).contains("names the types itself"));
        let both = json!({"real_memory": "auto", "real_memory_mib": 1000});
        assert!(why(both).contains("cannot be beside `real_memory_mib`"));
        assert!(SlurmNode::INFO.parse(json!({"autodetect": false, "type": "h100"})).is_ok());
    }
}

//! Parameters of the kinds that tune the operating system.

use serde::{Deserialize, Serialize};

use super::{Checked, ParamError, words::words};
use crate::lenient;

words! { SysctlState { Present: "present", Absent: "absent" } }

/// Sets a kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sysctl {
    /// Name with dots or slashes, such as `vm.swappiness`.
    #[serde(alias = "key")]
    pub name: String,
    /// Value; needed unless `state: absent`. Numbers are compared as numbers, `0x3c` is 60.
    #[serde(
        default,
        alias = "val",
        deserialize_with = "lenient::optional_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub value: Option<String>,
    /// `present` (default), or `absent`: no longer set at boot.
    #[serde(default = "present")]
    pub state: SysctlState,
    /// File that sets it at boot.
    #[serde(default = "sysctl_file")]
    pub sysctl_file: String,
    /// Whether the running kernel gets the value too (default), or only the file.
    #[serde(default = "yes", alias = "sysctl_set", deserialize_with = "lenient::flag")]
    pub reload: bool,
}

fn present() -> SysctlState {
    SysctlState::Present
}
fn sysctl_file() -> String {
    "/etc/sysctl.d/90-gpufleet.conf".to_owned()
}
fn yes() -> bool {
    true
}

impl Checked for Sysctl {
    fn check(&self) -> Result<(), ParamError> {
        if self.state == SysctlState::Present && self.value.is_none() {
            return Err(ParamError::new("value", "a value is needed"));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-/*".contains(c);
        if self.name.is_empty() || !self.name.chars().all(legal) || self.name.contains("..") {
            return Err(ParamError::new(
                "name",
                format!("`{}` is not the name of a kernel parameter", self.name),
            ));
        }
        let dotted = self.name.replace('/', ".");
        if matches!(dotted.as_str(), "vm.drop_caches" | "vm.compact_memory") {
            return Err(ParamError::new(
                "name",
                format!(
                    "`{}` starts something and holds no value; `command: sysctl -w` starts it",
                    self.name
                ),
            ));
        }
        Ok(())
    }
}

/// Declares words of the kernel command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelCmdline {
    /// Words to have, such as `iommu=pt`; another value of the same key is replaced. Keys that may be repeated, such as
    /// `console`, `ip` and `rd.lvm.lv`, keep their other values and get the order declared; lists such as
    /// `modprobe.blacklist` add up; `hugepagesz=1G` and the `hugepages=8` behind it are one.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Words or keys not to have; `add` wins over it, so that `remove: console` leaves the consoles of `add`.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

impl Checked for KernelCmdline {
    fn check(&self) -> Result<(), ParamError> {
        if self.add.is_empty() && self.remove.is_empty() {
            return Err(ParamError::new("add", "one of `add` and `remove` is needed"));
        }
        for (name, words) in [("add", &self.add), ("remove", &self.remove)] {
            if let Some(word) =
                words.iter().find(|w| w.is_empty() || w.contains(['\n', '\'', '"', ' ', '$', '`']))
            {
                return Err(ParamError::new(
                    name,
                    format!("`{word}` is not one word of a kernel command line"),
                ));
            }
        }
        Ok(())
    }
}

words! { ServiceState {
    Started: "started", Stopped: "stopped", Restarted: "restarted", Reloaded: "reloaded",
} }

/// Declares the state of a systemd unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Unit; `.service` may be left out.
    #[serde(default, alias = "unit", alias = "service")]
    pub name: String,
    /// `started`, `stopped`, `restarted` or `reloaded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ServiceState>,
    /// Whether it starts at boot.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether it cannot be started at all.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub masked: Option<bool>,
    /// Reads the unit files again first.
    #[serde(default, alias = "daemon-reload", deserialize_with = "lenient::flag")]
    pub daemon_reload: bool,
    /// Starts systemd itself anew first, keeping what runs.
    #[serde(default, alias = "daemon-reexec", deserialize_with = "lenient::flag")]
    pub daemon_reexec: bool,
    /// Whether the task goes on without waiting until the unit has started or stopped.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub no_block: bool,
    /// Whether links of units that are in the way are replaced when it is enabled or masked.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub force: bool,
    /// `system` (default); units of users are not managed.
    #[serde(default = "system")]
    pub scope: ServiceScope,
    /// Accepted for Ansible's sake: `systemd` or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#use: Option<String>,
    /// Accepted for Ansible's sake; systemd knows itself which processes a unit has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Accepted for Ansible's sake; systemd waits itself between stop and start.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub sleep: Option<u32>,
}

words! { ServiceScope { System: "system" } }

fn system() -> ServiceScope {
    ServiceScope::System
}

impl Checked for Service {
    fn check(&self) -> Result<(), ParamError> {
        let systemd = self.daemon_reload || self.daemon_reexec;
        let of_unit = self.state.is_some() || self.enabled.is_some() || self.masked.is_some();
        if self.name.is_empty() && (!systemd || of_unit) {
            return Err(ParamError::new("name", "the name of a unit is needed"));
        }
        if self.r#use.as_deref().is_some_and(|name| !matches!(name, "systemd" | "auto" | "service")) {
            return Err(ParamError::new("use", "services are managed through systemd only"));
        }
        let asks = of_unit || systemd;
        if !asks {
            return Err(ParamError::new(
                "state",
                "one of `state`, `enabled`, `masked` and `daemon_reload` is needed",
            ));
        }
        Ok(())
    }
}

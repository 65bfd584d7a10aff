//! Parameters of `gpu_driver`: the NVIDIA driver of a node.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Belief, Class, Given, GpuKind, Hardware, Kind, KindInfo, Lasts, Number, ParamError, Reading,
    words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { DriverFlavour {
    /// The open kernel modules.
    Open: "open",
    /// The proprietary kernel modules.
    Proprietary: "proprietary",
    /// The proprietary kernel modules of Ubuntu's packages for servers.
    Server: "server",
    /// The open kernel modules of Ubuntu's packages for servers.
    ServerOpen: "server-open",
} }

impl DriverFlavour {
    /// Whether it has the open kernel modules.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::ServerOpen)
    }
}

words! { DriverSource {
    /// As the installed driver; without one, the first that has the packages.
    Auto: "auto",
    /// Ubuntu's packages.
    Ubuntu: "ubuntu",
    /// Debian's packages.
    Debian: "debian",
    /// NVIDIA's repository; with dnf the only source.
    Nvidia: "nvidia",
} }

words! { DriverReboot {
    /// The modules are unloaded and loaded; if they cannot be, the driver waits for a reboot.
    IfNeeded: "if_needed",
    /// The driver always waits for a reboot.
    Always: "always",
    /// A driver that would need a reboot is refused.
    Never: "never",
} }

words! { DriverGoBack {
    /// The former packages are kept if they can be had.
    IfPossible: "if_possible",
    /// A driver is refused if the former packages cannot be had.
    Required: "required",
    /// A driver that does not come up stays.
    Never: "never",
} }

/// Declares the NVIDIA driver of a node: packages, kernel modules, and what runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuDriver {
    /// The branch, such as 580. A driver of that branch stays as it is, also if there is a newer one.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub branch: Option<u32>,
    /// One version, such as 580.159.04.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Which kernel modules. Left out, those of the installed driver; without one, `open`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavour: Option<DriverFlavour>,
    /// Whose packages.
    #[serde(default = "auto")]
    pub source: DriverSource,
    /// The packages themselves, in place of those that follow from the source.
    #[serde(default, deserialize_with = "lenient::names", skip_serializing_if = "Vec::is_empty")]
    pub packages: Vec<String>,
    /// Whether nightly updates leave the driver's packages as they are.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub hold: bool,
    /// How the new driver begins to run.
    #[serde(default = "if_needed")]
    pub reboot: DriverReboot,
    /// Whether the former packages come back if the new driver does not come up.
    #[serde(default = "if_possible")]
    pub go_back: DriverGoBack,
    /// Whether the package lists are updated before packages are installed.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub update_cache: bool,
}

const fn auto() -> DriverSource {
    DriverSource::Auto
}
const fn if_needed() -> DriverReboot {
    DriverReboot::IfNeeded
}
const fn if_possible() -> DriverGoBack {
    DriverGoBack::IfPossible
}
const fn yes() -> bool {
    true
}

/// The begin of the reason why a node has to reboot for a driver.
const AWAITED: &str = "the driver ";

/// Whether a version is of digits and dots, as NVIDIA numbers its drivers.
fn is_version(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let digits =
        |part: &&str| !part.is_empty() && part.len() <= 5 && part.bytes().all(|b| b.is_ascii_digit());
    (2..=4).contains(&parts.len()) && parts.iter().all(digits)
}

/// Whether a name is one of a package, perhaps with a version behind `=`.
fn is_package(text: &str) -> bool {
    let (name, version) = text.split_once('=').unwrap_or((text, "0"));
    let legal = |c: char| c.is_ascii_alphanumeric() || "+-._:~@*".contains(c);
    let starts = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '@');
    starts(name) && name.chars().all(legal) && !version.is_empty() && version.chars().all(legal)
}

impl GpuDriver {
    /// Whether a driver's version is a declared one.
    pub fn accepts(&self, version: &str) -> bool {
        let of_branch = |branch: u32| version.split('.').next() == Some(branch.to_string().as_str());
        self.version.as_ref().is_none_or(|wanted| wanted == version) && self.branch.is_none_or(of_branch)
    }

    /// Returns the branch, the first number of the version.
    pub fn wanted_branch(&self) -> Option<u32> {
        self.branch.or_else(|| self.version.as_ref()?.split('.').next()?.parse().ok())
    }

    /// Returns why a node has to reboot for a driver, for people.
    pub fn reason(installed: &str, loaded: Option<&str>, why: &str) -> String {
        format!("{AWAITED}{installed} is installed, and {} is loaded: {why}", loaded.unwrap_or("none"))
    }

    /// Whether a node rebooted for a driver, by the reason.
    pub fn is_awaited(reason: &str) -> bool {
        reason.starts_with(AWAITED)
    }

    /// Returns what is declared, for people: `580.159.04`, or `a driver of branch 580`.
    pub fn wanted(&self) -> String {
        match (&self.version, self.branch) {
            (Some(version), _) => version.clone(),
            (None, Some(branch)) => format!("{branch}.x"),
            (None, None) => String::new(),
        }
    }
}

impl Kind for GpuDriver {
    const INFO: KindInfo = KindInfo {
        name: "gpu_driver",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::GpuReset,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::within("branch", None, 300, 9999)],
        since: &[],
        summary: "Declares the NVIDIA driver of a node: installed, held, and loaded.",
        example: "gpu_driver: {branch: 580, flavour: open}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let version = self.version.as_deref();
        if let Some(wrong) = version.filter(|version| !is_version(version)) {
            let why = format!("`{wrong}` is no version of a driver, such as 580.159.04");
            return Err(ParamError::new("version", why));
        }
        match (version, self.branch) {
            (None, None) => Err(ParamError::new(
                "branch",
                "`branch` (such as 580) or `version` (such as 580.159.04) is needed",
            )),
            (Some(version), Some(branch)) if !self.accepts(version) => {
                Err(ParamError::new("version", format!("{version} is not of branch {branch}")))
            }
            _ => match self.packages.iter().find(|name| !is_package(name)) {
                Some(wrong) => {
                    Err(ParamError::new("packages", format!("`{wrong}` is not the name of a package")))
                }
                None => Ok(()),
            },
        }
    }
}

impl GpuKind for GpuDriver {
    const HARDWARE: Hardware = Hardware {
        reads: &[
            "/sys/module/nvidia*",
            "/proc/driver/nvidia/version",
            "modinfo nvidia",
            "libnvidia-ml.so.1",
            "dpkg, apt-cache, apt-mark; rpm, dnf repoquery, dnf versionlock, /etc/dnf/modules.d",
            "the driver's answer through NVML",
            "the kernel of the next boot: grubby, or GRUB's settings and /boot",
            "/sys/module/module/parameters/sig_enforce, /sys/kernel/security/lockdown, the firmware's Secure Boot",
        ],
        writes: &[
            "apt-get install, apt-mark hold",
            "dnf install, dnf module enable, dnf versionlock",
            "rmmod and modprobe of the driver's modules",
        ],
        takes_effect: "at once, with the modules unloaded and loaded; at a reboot where they cannot be unloaded",
        survives_reset: Lasts::Yes,
        survives_last_client: Lasts::Yes,
        survives_reload: Lasts::Yes,
        survives_reboot: Lasts::Partly("yes, unless an update replaces the packages, which `hold` prevents"),
        architectures: "open modules: Turing and later, and the only ones for Blackwell and Grace; up to Volta proprietary",
        source: "NVIDIA Driver Installation Guide; NVIDIA/gpu-driver-container and k8s-driver-manager; modules read on an H200 with driver 580.159.04",
        beliefs: &[
            Belief {
                believed: "an upgrade of the packages is an upgrade of the driver",
                fact: "the old module runs until it is unloaded or the node reboots; meanwhile programs that start fail with `Driver/library version mismatch`, and running ones do not notice",
            },
            Belief {
                believed: "a new driver needs a reboot",
                fact: "its modules can be unloaded once nothing has a file of the driver open: not DCGM, not the persistence daemon, not the fabric manager",
            },
            Belief {
                believed: "a branch stays the branch that was installed",
                fact: "Ubuntu's packages of an ended branch become those of the next one with a plain upgrade, and from branch 590 on NVIDIA's have no branch in their names",
            },
            Belief {
                believed: "the package manager succeeded, so there is a module",
                fact: "the build by DKMS can fail and apt or dnf succeed, and a built module without an enrolled key is refused under Secure Boot",
            },
        ],
    };
}

impl Operation for GpuDriver {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        let paths = ["/lib/modules", "/lib/firmware/nvidia", "/usr/lib"].map(str::to_owned).to_vec();
        Reach::Places { paths, driver: true }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::GpuDriver(_))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tasks::Params;

    fn parse(value: serde_json::Value) -> Result<GpuDriver, String> {
        match GpuDriver::INFO.parse(value) {
            Ok(Params::Node(NodeOp::GpuDriver(task))) => Ok(*task),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_driver_is_named_by_branch_or_version() {
        let branch = parse(json!({"branch": "580"})).unwrap();
        assert!(branch.accepts("580.159.04") && !branch.accepts("58.0") && !branch.accepts("590.1"));
        let version = parse(json!({"version": "580.159.04", "branch": 580})).unwrap();
        assert!(version.accepts("580.159.04") && !version.accepts("580.159.4"));
        assert_eq!(version.wanted_branch(), Some(580));
    }

    #[test]
    fn what_is_no_driver_is_refused() {
        for (given, said) in [
            (json!({}), "`branch` (such as 580)"),
            (json!({"version": "580"}), "no version of a driver"),
            (json!({"version": "580.1; reboot"}), "no version of a driver"),
            (json!({"version": "570.1.2", "branch": 580}), "570.1.2 is not of branch 580"),
            (json!({"branch": 580, "packages": ["-o"]}), "`-o` is not the name of a package"),
            (json!({"branch": 12}), "300"),
        ] {
            let error = parse(given.clone()).unwrap_err();
            assert!(error.contains(said), "{given}: {error}");
        }
    }
}

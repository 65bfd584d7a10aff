//! Parameters of `package_hold`.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { #[derive(Default)] HoldState { #[default] Present: "present", Absent: "absent" } }

/// Declares packages that keep their version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PackageHold {
    /// Installed packages, or patterns with `*` and `?`, such as `nvidia-*`. They are held together, in one call.
    #[serde(deserialize_with = "lenient::one_or_many")]
    pub name: Vec<String>,
    /// `present` (default): they keep their version; `absent`: updates may change them.
    #[serde(default)]
    pub state: HoldState,
    /// The packages are one set, such as driver, kernel and fabric manager, of which none may move without the others: a plan
    /// says where only part is held or has an update, and packages of the driver with several versions are a failure.
    #[serde(default, deserialize_with = "lenient::flag", skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
}

impl Kind for PackageHold {
    const INFO: KindInfo = KindInfo {
        name: "package_hold",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Keeps installed packages at their version, with apt, dnf or zypper.",
        example: "package_hold: {name: [\"nvidia-*\", \"libnvidia-*\", \"linux-image-*\"]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.name.is_empty() {
            return Err(ParamError::new("name", "a package is needed"));
        }
        if self.together && self.state == HoldState::Absent {
            return Err(ParamError::new("together", "`state: absent` excludes it"));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || "+-._:*?".contains(c);
        let good = |name: &String| !name.is_empty() && !name.starts_with('-') && name.chars().all(legal);
        match self.name.iter().find(|name| !good(name)) {
            Some(name) => Err(ParamError::new("name", format!("`{name}` is not the name of a package"))),
            None => Ok(()),
        }
    }
}

impl GroundKind for PackageHold {
    const GROUND: Ground = Ground {
        reads: &[
            "dpkg-query",
            "rpm -qa",
            "/etc/dnf/plugins/versionlock.list",
            "/etc/zypp/locks",
            "apt.conf.d (unattended-upgrades)",
            "/etc/dnf/automatic.conf",
            "with `together`, apt-cache policy, or rpm -qa and dnf -C check-update: versions, and updates as the lists on the node \
             have them",
        ],
        writes: &["apt-mark hold", "dnf versionlock", "zypper addlock"],
        takes_effect: "at once, for every later update",
        survives: "reboots and updates; a package that is removed and installed again is not held",
        owners: &[
            "gpu_driver holds and releases the packages of the driver itself",
            "dpkg_selections notes the same in dpkg",
            "unattended-upgrades and dnf-automatic honour holds",
            "needrestart does not replace packages, but restarts services whose libraries others replaced, the container runtime too",
            "not honoured by: dpkg -i, rpm -U, do-release-upgrade, apt-get --allow-change-held-packages",
        ],
        source: "apt-mark(8), dpkg-query(1); dnf-plugins-core, versionlock; zypper(8), locks(5); unattended-upgrades, README",
    };
}

impl Operation for PackageHold {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Packages(&self.name)
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        match newer.op {
            NodeOp::PackageHold(new) => self.name.retain(|name| !new.name.contains(name)),
            NodeOp::DpkgSelections(new) => self.name.retain(|name| *name != new.name),
            _ => {}
        }
        !self.name.is_empty()
    }
}

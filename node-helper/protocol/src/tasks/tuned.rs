//! Parameters of `tuned`.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { #[derive(Default)] TunedState {
    #[default] On: "on",
    /// It is stopped, also at boot, and what it set is put back.
    Off: "off",
} }

/// Declares the profile of tuned, or that it does not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// Profile, or several that are merged, the last of which wins.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub profile: Vec<String>,
    /// Whether tuned itself chooses the profile, at each of its starts.
    #[serde(default, deserialize_with = "lenient::flag", skip_serializing_if = "std::ops::Not::not")]
    pub recommended: bool,
    /// `off`: it does not run.
    #[serde(default)]
    pub state: TunedState,
}

impl Tuned {
    /// The file with the profile that the daemon applies at its start.
    pub const ACTIVE: &str = "/etc/tuned/active_profile";

    /// Returns the names of the profiles; one text may have several, as `tuned-adm` shows them.
    pub fn profiles(&self) -> Vec<&str> {
        self.profile.iter().flat_map(|names| names.split_whitespace()).collect()
    }
}

impl Kind for Tuned {
    const INFO: KindInfo = KindInfo {
        name: "tuned",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Reboot,
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
        summary: "Declares the profile of tuned, or that it does not run.",
        example: "tuned: {profile: throughput-performance}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
        let is_name =
            |name: &&str| !name.starts_with(['-', '.']) && name.len() <= 255 && name.chars().all(legal);
        if let Some(name) = self.profiles().iter().find(|name| !is_name(name)) {
            return Err(ParamError::new("profile", format!("`{name}` is no name of a profile")));
        }
        match (self.state, self.profiles().is_empty(), self.recommended) {
            (TunedState::Off, true, false)
            | (TunedState::On, false, false)
            | (TunedState::On, true, true) => Ok(()),
            (TunedState::Off, ..) => {
                Err(ParamError::new("state", "`off` excludes `profile` and `recommended`"))
            }
            (TunedState::On, true, false) => Err(ParamError::new(
                "profile",
                "one of `profile`, `recommended: true` and `state: off` is needed",
            )),
            (TunedState::On, false, true) => Err(ParamError::new("recommended", "it excludes `profile`")),
        }
    }
}

impl GroundKind for Tuned {
    const GROUND: Ground = Ground {
        reads: &[
            "/etc/tuned/active_profile and profile_mode, and the state of tuned.service",
            "the profile's files below /etc/tuned and /usr/lib/tuned; `tuned-adm verify`, and `tuned-adm recommend` if asked",
            "/etc/tuned/bootcmdline, /proc/cmdline and /run/gpufleet/tuned-words",
        ],
        writes: &[
            "what `tuned-adm profile` and `tuned-adm auto_profile` write; whether tuned.service runs and starts at boot",
            "/run/gpufleet/tuned-words: words of a former profile that the running kernel was booted with",
        ],
        takes_effect: "at once; words of a profile for the kernel command line ([bootloader]) come and go at the next boot",
        survives: "reboots",
        owners: &[
            "tuned comes after sysctl.d and tmpfiles.d at boot, and reads /etc/sysctl.d again after its profile (reapply_sysctl)",
            "a switch or a stop puts back what tuned first found, and so undoes what other tasks set since: let `tuned` come first",
            "its unit conflicts with power-profiles-daemon, cpupower, tlp and auto-cpufreq: systemd stops them",
        ],
        source: "tuned-adm(8), tuned.conf(5), tuned 2.20 of Debian 12 (admin.py, daemon.py)",
    };
}

impl Operation for Tuned {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::ACTIVE])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Tuned(_))
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<Tuned, ParamError> {
        let task: Tuned = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn one_of_three_is_declared() {
        for right in [
            json!({"profile": "balanced"}),
            json!({"profile": ["throughput-performance", "site"]}),
            json!({"recommended": true}),
            json!({"state": false}),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for wrong in [
            json!({}),
            json!({"profile": "../x"}),
            json!({"profile": "--help"}),
            json!({"profile": "balanced", "recommended": true}),
            json!({"profile": "balanced", "state": "off"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
        assert_eq!(read(json!({"profile": "a b"})).unwrap().profiles(), ["a", "b"]);
    }
}

//! Parameters of `cpu_frequency`, how fast processors run.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, words::words,
};
use crate::{
    Disruption, NodeOp, Unit, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { CpuGovernor {
    Performance: "performance",
    Powersave: "powersave",
    Schedutil: "schedutil",
    Ondemand: "ondemand",
    Conservative: "conservative",
} }

words! { CpuEnergyPreference {
    Performance: "performance",
    BalancePerformance: "balance_performance",
    BalancePower: "balance_power",
    Power: "power",
} }

words! { CpuDriverMode {
    Active: "active",
    Passive: "passive",
    /// amd_pstate only.
    Guided: "guided",
} }

/// Sets the frequency of processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuFrequency {
    /// Who chooses the frequency. intel_pstate and amd_pstate in mode `active` have `performance` and `powersave` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<CpuGovernor>,
    /// What the processor itself prefers (EPP); with the governor `performance` only `performance` is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_preference: Option<CpuEnergyPreference>,
    /// Whether processors may run faster than their base frequency (turbo).
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub boost: Option<bool>,
    /// The lowest frequency to use.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub min_khz: Option<u32>,
    /// The highest frequency to use.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub max_khz: Option<u32>,
    /// Mode of intel_pstate or amd_pstate. A change resets the other settings, so that they are set again after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<CpuDriverMode>,
}

impl CpuFrequency {
    /// The file that sets it at boot.
    pub const FILE: &str = "/etc/tmpfiles.d/gpufleet-cpufreq.conf";
}

impl Kind for CpuFrequency {
    const INFO: KindInfo = KindInfo {
        name: "cpu_frequency",
        aliases: &["cpu_governor"],
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
        numbers: &[
            Number::from("min_khz", Some(Unit::Kilohertz), 1),
            Number::from("max_khz", Some(Unit::Kilohertz), 1),
        ],
        since: &[],
        summary: "Sets governor, energy preference, turbo, bounds and driver mode of processors, now and for every boot.",
        example: "cpu_frequency: {governor: performance, boost: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if *self == Self::default() {
            let message =
                "one of `governor`, `energy_preference`, `boost`, `min_khz`, `max_khz` and `mode` is needed";
            return Err(ParamError::new("governor", message));
        }
        if self.governor == Some(CpuGovernor::Performance)
            && self.energy_preference.is_some_and(|preference| preference != CpuEnergyPreference::Performance)
        {
            let message =
                "with the governor `performance` the kernel takes no energy preference but `performance`";
            return Err(ParamError::new("energy_preference", message));
        }
        if let (Some(min), Some(max)) = (self.min_khz, self.max_khz)
            && min > max
        {
            return Err(ParamError::new("min_khz", "it is more than `max_khz`"));
        }
        Ok(())
    }
}

impl GroundKind for CpuFrequency {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/devices/system/cpu/cpufreq/policy*, but for those of CPUs that are offline",
            "intel_pstate/status and no_turbo, amd_pstate/status, cpufreq/boost below /sys/devices/system/cpu",
            "tmpfiles.d of /etc, /run, /usr/local/lib and /usr/lib",
            "tuned's active_profile and its profiles; links that start tuned, power-profiles-daemon, cpupower and tlp",
        ],
        writes: &[
            "the same files of sysfs: mode, boost, governor, energy preference, then the bounds so that the lower one is \
             never above the other",
            "lines of /etc/tmpfiles.d/gpufleet-cpufreq.conf",
        ],
        takes_effect: "at once, and at every boot",
        survives: "reboots, unless a service sets it later; not a change of the driver's mode by somebody else. A driver that \
                   is a module (acpi-cpufreq) may come after systemd-tmpfiles: a warning says so",
        owners: &[
            "tuned's section [cpu] wins at boot, and puts back what it found when it stops",
            "power-profiles-daemon, cpupower, cpufrequtils and tlp set it when they start, after systemd-tmpfiles, and win",
            "`cpufreq.default_governor=` on the kernel command line comes before systemd-tmpfiles, and loses",
            "in virtual machines it is the host's: not applicable",
        ],
        source: "kernel, admin-guide/pm/cpufreq, intel_pstate and amd-pstate; drivers/cpufreq/intel_pstate.c",
    };
}

impl Operation for CpuFrequency {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::FILE])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::CpuFrequency(new) = newer.op else { return true };
        macro_rules! given {
            ($($field:ident),*) => {$( if new.$field.is_some() { self.$field = None; } )*};
        }
        given!(governor, energy_preference, boost, min_khz, max_khz, mode);
        *self != Self::default()
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<CpuFrequency, ParamError> {
        let task: CpuFrequency = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_first() {
        assert!(read(json!({"governor": "powersave", "energy_preference": "power"})).is_ok());
        for wrong in [
            json!({}),
            json!({"governor": "performance", "energy_preference": "power"}),
            json!({"min_khz": 2, "max_khz": 1}),
            json!({"governor": "fast"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newer_task_takes_over_what_it_sets() {
        let mut old = read(json!({"governor": "powersave", "boost": "no"})).unwrap();
        let newer = |value| NodeOp::CpuFrequency(read(value).unwrap());
        assert!(old.yields(&Newer::of(&newer(json!({"governor": "performance"})))));
        assert_eq!(old, read(json!({"boost": false})).unwrap());
        assert!(!old.yields(&Newer::of(&newer(json!({"boost": true})))));
    }
}

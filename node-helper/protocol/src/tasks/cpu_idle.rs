//! Parameters of `cpu_idle`, how deep processors sleep.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading};
use crate::{
    Disruption, NodeOp, Unit,
    cpus::CpuList,
    lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

/// Bounds how long processors may take to wake up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuIdle {
    /// Microseconds that a CPU may take to wake up; `unlimited`, or `none` for no idle state at all.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<String>,
    /// The CPUs of `latency_us`; all by default. Not beside a task without `cpus` that says otherwise: that one takes
    /// `except`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// Other values of `latency_us` for some CPUs, such as `{0-7: none}`.
    #[serde(
        default,
        deserialize_with = "lenient::texts_by_name",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub except: BTreeMap<String, String>,
    /// Microseconds that any CPU may take, held by a service for as long as it runs; `unlimited` lifts it.
    /// `0` keeps processors busy-waiting.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub global_latency_us: Option<String>,
    /// Idle states that take longer to leave are disabled on all CPUs, others are enabled.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub deepest_us: Option<u32>,
}

/// A latency as the kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleBound {
    Unlimited,
    None,
    Micros(i32),
}

impl IdleBound {
    fn read(text: &str) -> Option<Self> {
        match text {
            "unlimited" => Some(Self::Unlimited),
            "none" => Some(Self::None),
            _ => {
                let number: i32 = text.parse().ok().filter(|number| *number >= 0)?;
                (number.to_string() == text).then_some(Self::Micros(number))
            }
        }
    }
}

impl CpuIdle {
    /// The file that sets the bound of single CPUs at boot.
    pub const FILE: &str = "/etc/tmpfiles.d/gpufleet-cpuidle.conf";
    /// The service that does the rest at boot.
    pub const UNIT: &str = "gpufleet-cpu-idle";

    pub fn latency(&self) -> Option<IdleBound> {
        self.latency_us.as_deref().and_then(IdleBound::read)
    }

    /// Returns CPUs with another bound than `latency_us`, in the order of the CPUs.
    pub fn exceptions(&self) -> Vec<(CpuList, IdleBound)> {
        let read = |(cpus, bound): (&String, &String)| Some((cpus.parse().ok()?, IdleBound::read(bound)?));
        let mut all: Vec<(CpuList, IdleBound)> = self.except.iter().filter_map(read).collect();
        all.sort_by_key(|(cpus, _)| cpus.first());
        all
    }

    /// Takes the bound of single CPUs out.
    pub fn forget_latency(&mut self) {
        (self.latency_us, self.cpus) = (None, None);
        self.except.clear();
    }

    pub fn global_latency(&self) -> Option<IdleBound> {
        self.global_latency_us.as_deref().and_then(IdleBound::read)
    }
}

impl CpuIdle {
    fn check_except(&self) -> Result<(), ParamError> {
        let wrong = |message: String| Err(ParamError::new("except", message));
        if !self.except.is_empty() && (self.latency_us.is_none() || self.cpus.is_some()) {
            return wrong("it belongs to `latency_us` without `cpus`".to_owned());
        }
        let mut seen = CpuList::default();
        for (cpus, bound) in &self.except {
            let Ok(list) = cpus.parse::<CpuList>() else {
                return wrong(format!("`{cpus}` is no list of CPUs such as 0-3,8"));
            };
            if list.is_empty() {
                return wrong("one of its lists names no CPU".to_owned());
            }
            if IdleBound::read(bound).is_none_or(|bound| bound == IdleBound::Micros(0)) {
                return wrong(format!(
                    "`{bound}` is no number of microseconds from 1, `unlimited` or `none`"
                ));
            }
            let both = seen.common(&list);
            if !both.is_empty() {
                return wrong(format!("CPUs {both} are there twice"));
            }
            seen = seen.iter().chain(list.iter()).collect();
        }
        Ok(())
    }
}

impl Kind for CpuIdle {
    const INFO: KindInfo = KindInfo {
        name: "cpu_idle",
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
        numbers: &[Number::from("deepest_us", Some(Unit::Microseconds), 0)],
        since: &[],
        summary: "Bounds how long processors may take to wake up from idle states, now and for every boot.",
        example: "cpu_idle: {latency_us: 10}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.latency_us.is_none() && self.global_latency_us.is_none() && self.deepest_us.is_none() {
            let message = "one of `latency_us`, `global_latency_us` and `deepest_us` is needed";
            return Err(ParamError::new("latency_us", message));
        }
        if self.latency_us.is_some() && self.latency().is_none_or(|bound| bound == IdleBound::Micros(0)) {
            let message = "it is a number of microseconds from 1, `unlimited` or `none`; the kernel takes 0 as no limit";
            return Err(ParamError::new("latency_us", message));
        }
        if self.global_latency_us.is_some()
            && self.global_latency().is_none_or(|bound| bound == IdleBound::None)
        {
            let message = "it is a number of microseconds from 0, or `unlimited`";
            return Err(ParamError::new("global_latency_us", message));
        }
        if self.cpus.is_some() && self.latency_us.is_none() {
            return Err(ParamError::new("cpus", "it belongs to `latency_us`, which is not given"));
        }
        if self.cpus.as_ref().is_some_and(CpuList::is_empty) {
            return Err(ParamError::new("cpus", "it names no CPU"));
        }
        self.check_except()
    }
}

impl GroundKind for CpuIdle {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/devices/system/cpu/cpuidle/current_driver",
            "power/pm_qos_resume_latency_us and cpuidle/state*/{latency,disable} of each CPU",
            "/dev/cpu_dma_latency: the least of what all holders ask for",
            "tmpfiles.d of /etc, /run, /usr/local/lib and /usr/lib; tuned's active profile",
        ],
        writes: &[
            "power/pm_qos_resume_latency_us, and lines of /etc/tmpfiles.d/gpufleet-cpuidle.conf; a task without `cpus` removes \
             lines there of CPUs that `except` does not name",
            "for the other two, gpufleet-cpu-idle.service and /etc/gpufleet/gpufleet-cpu-idle.sh, which holds \
             /dev/cpu_dma_latency open and disables states by their latency",
        ],
        takes_effect: "at once, and at every boot",
        survives: "reboots; the bound of all CPUs ends when its service stops",
        owners: &[
            "tuned's [cpu] force_latency holds /dev/cpu_dma_latency too: the least of all holders counts",
            "intel_idle.max_cstate= and processor.max_cstate= on the kernel command line decide which states there are",
            "in virtual machines without an idle driver it is the host's: not applicable",
        ],
        source: "kernel, admin-guide/pm/cpuidle and power/pm_qos_interface (0 means no limit for a single CPU); measured with \
                 Linux 6.18 (a text written to /dev/cpu_dma_latency is taken as binary)",
    };
}

impl Operation for CpuIdle {
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
        let NodeOp::CpuIdle(new) = newer.op else { return true };
        if new.global_latency_us.is_some() {
            self.global_latency_us = None;
        }
        if new.deepest_us.is_some() {
            self.deepest_us = None;
        }
        if new.latency_us.is_some() {
            match (&self.cpus, &new.cpus) {
                (Some(own), Some(other)) => {
                    let left = own.without(other);
                    if left.is_empty() {
                        self.forget_latency();
                    } else {
                        self.cpus = Some(left);
                    }
                }
                // All CPUs but those of the newer one cannot be said without knowing them.
                (_, None) | (None, Some(_)) => self.forget_latency(),
            }
        }
        *self != Self::default()
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<CpuIdle, ParamError> {
        let task: CpuIdle = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn zero_is_no_bound_of_a_single_cpu() {
        for right in [
            json!({"latency_us": 10, "cpus": "0-3"}),
            json!({"latency_us": "none"}),
            json!({"global_latency_us": 0}),
            json!({"global_latency_us": "unlimited", "deepest_us": 50}),
            json!({"latency_us": 20, "except": {"0-3": "none", "8": 5}}),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for wrong in [
            json!({}),
            json!({"latency_us": 0}),
            json!({"latency_us": "010"}),
            json!({"latency_us": -1}),
            json!({"global_latency_us": "none"}),
            json!({"cpus": "0-3", "deepest_us": 3}),
            json!({"latency_us": 10, "cpus": ""}),
            json!({"deepest_us": 10, "except": {"0": 5}}),
            json!({"latency_us": 10, "cpus": "0-3", "except": {"0": 5}}),
            json!({"latency_us": 10, "except": {"x": 5}}),
            json!({"latency_us": 10, "except": {"0": 0}}),
            json!({"latency_us": 10, "except": {"0-3": 5, "3": 6}}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newer_task_takes_over_its_cpus() {
        let mut old = read(json!({"latency_us": 10, "cpus": "0-7", "deepest_us": 5})).unwrap();
        let newer = |value| NodeOp::CpuIdle(read(value).unwrap());
        assert!(old.yields(&Newer::of(&newer(json!({"latency_us": 20, "cpus": "4-9"})))));
        assert_eq!(old.cpus, Some("0-3".parse().unwrap()));
        assert!(old.yields(&Newer::of(&newer(json!({"deepest_us": 20})))));
        assert_eq!((old.deepest_us, old.latency_us.is_some()), (None, true));
        assert!(!old.yields(&Newer::of(&newer(json!({"latency_us": "none"})))));
    }
}

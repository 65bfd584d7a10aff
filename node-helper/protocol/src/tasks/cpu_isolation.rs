//! Parameters of `cpu_isolation`, CPUs that nothing runs on but what is put there.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, unit_settings::Presence,
    words::words,
};
use crate::{
    Disruption, NodeOp,
    cpus::CpuList,
    lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { IsolationWord {
    /// The scheduler puts no program there by itself.
    IsolCpus: "isolcpus",
    /// No timer tick while one program runs on a CPU.
    NohzFull: "nohz_full",
    /// RCU callbacks are done elsewhere.
    RcuNocbs: "rcu_nocbs",
} }

/// Keeps CPUs free of what nobody put there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuIsolation {
    /// The CPUs to keep free, such as `8-63`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// Words of the kernel command line: `isolcpus`, `nohz_full`, `rcu_nocbs`. Words that are not named are left alone.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<IsolationWord>,
    /// Whether all services are kept on the other CPUs, by CPUAffinity= of systemd itself. Jobs and containers inherit it
    /// from the daemon that starts them.
    #[serde(default, deserialize_with = "lenient::flag", skip_serializing_if = "std::ops::Not::not")]
    pub services: bool,
    /// `absent` takes the named words away, or without `words` all three and the affinity of services.
    #[serde(default)]
    pub state: Presence,
}

impl CpuIsolation {
    /// The drop-in of systemd itself.
    pub const FILE: &str = "/etc/systemd/system.conf.d/90-gpufleet-cpu-affinity.conf";
}

impl Kind for CpuIsolation {
    const INFO: KindInfo = KindInfo {
        name: "cpu_isolation",
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
        summary: "Keeps CPUs free of what nobody put there: by words of the kernel command line, and by the affinity of services.",
        example: "cpu_isolation: {cpus: 8-63, words: [isolcpus, nohz_full, rcu_nocbs]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.state == Presence::Absent {
            return match (&self.cpus, self.services) {
                (None, false) => Ok(()),
                (Some(_), _) => Err(ParamError::new("cpus", "`state: absent` excludes it")),
                (None, true) => Err(ParamError::new("services", "`state: absent` excludes it")),
            };
        }
        let Some(cpus) = self.cpus.as_ref().filter(|cpus| !cpus.is_empty()) else {
            return Err(ParamError::new("cpus", "it names no CPU"));
        };
        if self.words.is_empty() && !self.services {
            return Err(ParamError::new("words", "one of `words` and `services: true` is needed"));
        }
        // Source: kernel, kernel/time/tick-sched.c: the boot CPU keeps the time for the others.
        if cpus.contains(0) && self.words.contains(&IsolationWord::NohzFull) {
            return Err(ParamError::new(
                "cpus",
                "CPU 0 keeps the time, and cannot be among those of `nohz_full`",
            ));
        }
        Ok(())
    }
}

impl GroundKind for CpuIsolation {
    const GROUND: Ground = Ground {
        reads: &[
            "present, online, isolated and nohz_full of /sys/devices/system/cpu, and the threads of cores",
            "with `words`, what `kernel_cmdline` reads",
            "Cpus_allowed_list of process 1; system.conf and system.conf.d of /etc, /run, /usr/local/lib and /usr/lib",
        ],
        writes: &[
            "the words of the kernel command line, as `kernel_cmdline` does",
            "/etc/systemd/system.conf.d/90-gpufleet-cpu-affinity.conf, followed by systemctl daemon-reload",
        ],
        takes_effect: "words at the next boot; the affinity of services at once for systemd, and for each service at its next start",
        survives: "reboots",
        owners: &[
            "tuned's profiles cpu-partitioning and realtime put the same words on the command line",
            "slurmd, containerd, docker and the kubelet inherit the affinity of services, and so do jobs and containers: give them \
             their own with `unit_settings`",
            "cpuset partitions isolate CPUs at run time, which `isolated` of newer kernels shows too",
            "per-CPU kernel threads stay where they are; whether rcu_nocbs is in force no file tells",
        ],
        source: "kernel, admin-guide/kernel-parameters; systemd-system.conf(5); measured with Linux 6.18 and systemd 252: \
                 daemon-reload moves process 1 at once, services at their restart",
    };
}

impl Operation for CpuIsolation {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([
            Self::FILE,
            "/etc/default/grub",
            "/etc/default/grub.d",
            "/etc/kernel/cmdline",
            "/boot",
        ])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::CpuIsolation(new) = newer.op else { return true };
        let is_all = |one: &Self| one.state == Presence::Absent && one.words.is_empty();
        if is_all(self) || is_all(new) {
            return false;
        }
        // One task may declare the words, and another the services.
        self.words.retain(|word| !new.words.contains(word));
        self.services &= !new.services;
        !self.words.is_empty() || self.services
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<CpuIsolation, ParamError> {
        let task: CpuIsolation = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn something_is_kept_free_by_something() {
        for right in [
            json!({"cpus": "8-63", "words": "isolcpus"}),
            json!({"cpus": "0-3", "services": true}),
            json!({"state": "absent"}),
            json!({"state": "absent", "words": ["nohz_full"]}),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for wrong in [
            json!({"cpus": "8-63"}),
            json!({"words": "isolcpus"}),
            json!({"cpus": "0-3", "words": ["nohz_full"]}),
            json!({"cpus": "1", "words": ["nosmt"]}),
            json!({"cpus": "1", "state": "absent"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_and_services_may_be_two_tasks() {
        let mut old = read(json!({"cpus": "8-63", "words": ["isolcpus", "nohz_full"]})).unwrap();
        let newer = |value| NodeOp::CpuIsolation(read(value).unwrap());
        assert!(old.yields(&Newer::of(&newer(json!({"cpus": "8-63", "services": true})))));
        assert_eq!(old.words.len(), 2);
        assert!(old.yields(&Newer::of(&newer(json!({"cpus": "8-15", "words": "isolcpus"})))));
        assert_eq!(old.words, [IsolationWord::NohzFull]);
        assert!(!old.yields(&Newer::of(&newer(json!({"state": "absent"})))));
        let mut services = read(json!({"cpus": "8-63", "services": true})).unwrap();
        assert!(services.yields(&Newer::of(&newer(json!({"state": "absent", "words": "nohz_full"})))));
        let mut gone = read(json!({"state": "absent", "words": ["nohz_full"]})).unwrap();
        assert!(gone.yields(&Newer::of(&newer(json!({"cpus": "8-63", "services": true})))));
        assert!(!gone.yields(&Newer::of(&newer(json!({"cpus": "8-63", "words": "nohz_full"})))));
    }
}

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

words! { IsolationFlag {
    /// As `nohz_full`.
    Nohz: "nohz",
    /// The scheduler puts no program there by itself, which is what `isolcpus` does without flags.
    Domain: "domain",
    /// Interrupts that only the kernel places go elsewhere where they can.
    ManagedIrq: "managed_irq",
} }

words! { PartitionSort {
    /// The scheduler puts no program there by itself.
    Isolated: "isolated",
    /// Only the programs of the slice run there, and the scheduler spreads them.
    Root: "root",
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
    /// Flags of the word `isolcpus`: `nohz`, `domain`, `managed_irq`. Without any, the kernel takes it for `domain`.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<IsolationFlag>,
    /// Makes a cpuset partition of the CPUs, now and at every boot, without a word and a reboot: `isolated` or `root`. Only
    /// what runs in the slice `isolated.slice` gets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<PartitionSort>,
    /// Whether all services are kept on the other CPUs, by CPUAffinity= of systemd itself. Jobs and containers inherit it
    /// from the daemon that starts them.
    #[serde(default, deserialize_with = "lenient::flag", skip_serializing_if = "std::ops::Not::not")]
    pub services: bool,
    /// `absent` takes the named words away, or without `words` all three, the affinity of services and the partition.
    #[serde(default)]
    pub state: Presence,
}

impl CpuIsolation {
    /// The drop-in of systemd itself.
    pub const FILE: &str = "/etc/systemd/system.conf.d/90-gpufleet-cpu-affinity.conf";
    /// The slice of the partition, at the top of the tree: one below another has the CPUs of that one at most.
    pub const SLICE: &str = "isolated.slice";
    /// The drop-in that gives the slice its CPUs.
    pub const SLICE_FILE: &str = "/etc/systemd/system/isolated.slice.d/90-gpufleet-cpus.conf";
    /// The service that makes the partition, without `.service`.
    pub const UNIT: &str = "gpufleet-cpu-partition";

    /// Returns the declared text of the word `isolcpus` before its CPUs: the flags in the order of the manual.
    pub fn flags_text(&self) -> String {
        let mut flags = self.flags.clone();
        flags.sort_unstable();
        flags.dedup();
        flags.iter().map(|flag| format!("{flag},")).collect()
    }

    /// Whether the word `isolcpus` takes the CPUs out of the scheduler's domains, as it does without flags. Source: kernel,
    /// kernel/sched/isolation.c, `housekeeping_isolcpus_setup`.
    pub fn isolates_domains(&self) -> bool {
        self.words.contains(&IsolationWord::IsolCpus)
            && (self.flags.is_empty() || self.flags.contains(&IsolationFlag::Domain))
    }

    /// Whether CPUs are to run without a timer tick.
    pub fn stops_ticks(&self) -> bool {
        self.words.contains(&IsolationWord::NohzFull)
            || self.words.contains(&IsolationWord::IsolCpus) && self.flags.contains(&IsolationFlag::Nohz)
    }
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
        summary: "Keeps CPUs free of what nobody put there: by words of the kernel command line, by the affinity of services, and by a \
                  cpuset partition.",
        example: "cpu_isolation: {cpus: 8-63, words: [isolcpus, nohz_full, rcu_nocbs]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.state == Presence::Absent {
            let given = [
                ("cpus", self.cpus.is_some()),
                ("services", self.services),
                ("flags", !self.flags.is_empty()),
                ("partition", self.partition.is_some()),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                None => Ok(()),
                Some((name, _)) => Err(ParamError::new(name, "`state: absent` excludes it")),
            };
        }
        let Some(cpus) = self.cpus.as_ref().filter(|cpus| !cpus.is_empty()) else {
            return Err(ParamError::new("cpus", "it names no CPU"));
        };
        if self.words.is_empty() && !self.services && self.partition.is_none() {
            let message = "one of `words`, `services: true` and `partition` is needed";
            return Err(ParamError::new("words", message));
        }
        if !self.flags.is_empty() && !self.words.contains(&IsolationWord::IsolCpus) {
            return Err(ParamError::new(
                "flags",
                "they are of the word `isolcpus`, which `words` does not name",
            ));
        }
        // Source: kernel, kernel/cgroup/cpuset.c, `prstate_housekeeping_conflict`.
        if self.partition == Some(PartitionSort::Root) && self.isolates_domains() {
            return Err(ParamError::new(
                "partition",
                "the kernel takes CPUs of `isolcpus` into a partition `isolated` only, not into `root`",
            ));
        }
        // Source: kernel, kernel/time/tick-sched.c: the boot CPU keeps the time for the others.
        if cpus.contains(0) && self.stops_ticks() {
            return Err(ParamError::new(
                "cpus",
                "CPU 0 keeps the time, and cannot be among those of `nohz_full` and of the flag `nohz`",
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
            "with `partition`, cgroup.controllers and cpuset.cpus.isolated of /sys/fs/cgroup, and of isolated.slice there \
             cpuset.cpus.partition, whose own answer counts (`isolated invalid (reason)`), cpuset.cpus, cpuset.cpus.effective and \
             cpuset.cpus.exclusive.effective; for `root`, isolcpus of the running and the next command line",
            "Cpus_allowed_list of process 1; system.conf and system.conf.d of /etc, /run, /usr/local/lib and /usr/lib",
        ],
        writes: &[
            "with `partition`, /etc/systemd/system/isolated.slice.d/90-gpufleet-cpus.conf (AllowedCPUs=), and \
             gpufleet-cpu-partition.service with /etc/gpufleet/gpufleet-cpu-partition.sh, which writes cpuset.cpus.partition",
            "the words of the kernel command line, as `kernel_cmdline` does",
            "/etc/systemd/system.conf.d/90-gpufleet-cpu-affinity.conf, followed by systemctl daemon-reload",
        ],
        takes_effect: "words at the next boot; a partition at once, and programs that run on its CPUs move off them; the affinity of services at once for systemd, and for each service at its next start",
        survives: "reboots",
        owners: &[
            "tuned's profiles cpu-partitioning and realtime put the same words on the command line",
            "slurmd, containerd, docker and the kubelet inherit the affinity of services, and so do jobs and containers: give them \
             their own with `unit_settings`",
            "cpuset partitions of others isolate CPUs at run time, which `isolated` of /sys/devices/system/cpu does not show",
            "a slice or container whose own cpuset.cpus names the same CPUs makes the partition invalid: the kernel's reason is told",
            "per-CPU kernel threads stay where they are; whether rcu_nocbs and the flag managed_irq are in force no file tells, nor \
             isolcpus without the flag domain",
        ],
        source: "kernel, admin-guide/kernel-parameters and admin-guide/cgroup-v2 (cpuset.cpus.partition), \
                 kernel/sched/isolation.c; systemd.resource-control(5), systemd-system.conf(5); measured with Linux 6.18 and systemd 252: \
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
            Self::SLICE_FILE,
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
        // One task may declare the words, another the services, and a third the partition.
        self.words.retain(|word| !new.words.contains(word));
        if !self.words.contains(&IsolationWord::IsolCpus) {
            self.flags.clear();
        }
        self.services &= !new.services;
        if new.partition.is_some() {
            self.partition = None;
        }
        !self.words.is_empty() || self.services || self.partition.is_some()
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
            json!({"cpus": "8-63", "partition": "isolated"}),
            json!({"cpus": "8-63", "words": "isolcpus", "flags": ["managed_irq", "domain"]}),
            json!({"cpus": "8-63", "words": "isolcpus", "flags": "nohz", "partition": "root"}),
            json!({"cpus": "8-63", "words": "isolcpus", "partition": "isolated"}),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for wrong in [
            json!({"cpus": "8-63"}),
            json!({"words": "isolcpus"}),
            json!({"cpus": "0-3", "words": ["nohz_full"]}),
            json!({"cpus": "1", "words": ["nosmt"]}),
            json!({"cpus": "1", "state": "absent"}),
            json!({"partition": "isolated", "state": "absent"}),
            json!({"partition": "isolated"}),
            json!({"cpus": "1", "partition": "member"}),
            json!({"cpus": "1", "words": "nohz_full", "flags": "domain"}),
            json!({"cpus": "0-1", "words": "isolcpus", "flags": "nohz"}),
            json!({"cpus": "8-63", "words": "isolcpus", "partition": "root"}),
            json!({"cpus": "8-63", "words": "isolcpus", "flags": ["nohz", "domain"], "partition": "root"}),
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
        let mut partition =
            read(json!({"cpus": "8-63", "partition": "root", "words": "isolcpus", "flags": "nohz"})).unwrap();
        assert!(partition.yields(&Newer::of(&newer(json!({"cpus": "8-15", "words": "isolcpus"})))));
        assert_eq!((partition.words.len(), partition.flags.len()), (0, 0));
        assert!(!partition.yields(&Newer::of(&newer(json!({"cpus": "8-15", "partition": "isolated"})))));
        let mut services = read(json!({"cpus": "8-63", "services": true})).unwrap();
        assert!(services.yields(&Newer::of(&newer(json!({"state": "absent", "words": "nohz_full"})))));
        let mut gone = read(json!({"state": "absent", "words": ["nohz_full"]})).unwrap();
        assert!(gone.yields(&Newer::of(&newer(json!({"cpus": "8-63", "services": true})))));
        assert!(!gone.yields(&Newer::of(&newer(json!({"cpus": "8-63", "words": "nohz_full"})))));
    }
}

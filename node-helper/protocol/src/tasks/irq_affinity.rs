//! Parameters of `irq_affinity`, the CPUs that handle the interrupts of devices.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp,
    cpus::CpuList,
    lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { #[derive(Default)] IrqBalance {
    /// irqbalance leaves these interrupts alone, by a policy script, and goes on with all others.
    #[default] Ban: "ban",
    /// irqbalance is stopped, also at boot.
    Stop: "stop",
    /// irqbalance is not touched; refused where it runs and would move the interrupts.
    Leave: "leave",
} }

/// Puts the interrupts of devices on CPUs near them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct IrqAffinity {
    /// `nic`, `nvme` and `gpu` for all of them, PCI addresses such as `0000:5d:00.0`, or network interfaces.
    #[serde(deserialize_with = "lenient::names")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub devices: Vec<String>,
    /// `local` (default) for the CPUs of a device's own NUMA node, or a list such as `0-15`.
    #[serde(default = "local")]
    pub cpus: String,
    /// CPUs that get none of these interrupts. With `local`, isolated CPUs get none either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude: Option<CpuList>,
    /// What becomes of irqbalance, which moves interrupts every 10 seconds.
    #[serde(default)]
    pub irqbalance: IrqBalance,
}

fn local() -> String {
    "local".to_owned()
}

impl IrqAffinity {
    /// The service that does it at boot, and its script.
    pub const UNIT: &str = "gpufleet-irq-affinity";
    /// The script that irqbalance asks for its policy.
    pub const POLICY: &str = "/etc/gpufleet/gpufleet-irq-policy.sh";

    /// Returns the CPUs, if they are listed.
    pub fn listed(&self) -> Option<CpuList> {
        if self.cpus == "local" { None } else { self.cpus.parse().ok() }
    }
}

impl Kind for IrqAffinity {
    const INFO: KindInfo = KindInfo {
        name: "irq_affinity",
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
        summary: "Puts the interrupts of devices on CPUs near them, now and at boot.",
        example: "irq_affinity: {devices: [nic, gpu]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.devices.is_empty() {
            return Err(ParamError::new("devices", "it names no device"));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        let is_name = |name: &str| name.len() <= 63 && !name.starts_with('.') && name.chars().all(plain);
        if let Some(name) = self.devices.iter().find(|name| !is_name(name)) {
            return Err(ParamError::new("devices", format!("`{name}` is no name of a device")));
        }
        if let Some(word) = ["nic", "nvme", "gpu"]
            .into_iter()
            .find(|word| self.devices.iter().any(|name| name.strip_suffix('s') == Some(word)))
        {
            return Err(ParamError::new(
                "devices",
                format!("`{word}s` is no device; write `{word}` for all of them"),
            ));
        }
        if self.cpus != "local" && self.listed().is_none_or(|cpus| cpus.is_empty()) {
            return Err(ParamError::new("cpus", "it is `local`, or a list of CPUs such as `0-15`"));
        }
        if let (Some(cpus), Some(exclude)) = (self.listed(), &self.exclude)
            && cpus.without(exclude).is_empty()
        {
            return Err(ParamError::new("exclude", "it leaves no CPU of `cpus`"));
        }
        Ok(())
    }
}

impl GroundKind for IrqAffinity {
    const GROUND: Ground = Ground {
        reads: &[
            "msi_irqs/ (or irq), numa_node and local_cpulist of each device below /sys/bus/pci/devices",
            "effective_affinity_list and smp_affinity_list of each interrupt below /proc/irq, and their mode",
            "the unit of irqbalance and its environment file; tuned's active profile",
            "/run/gpufleet/irq-managed: interrupts that the kernel refused to move in this boot",
        ],
        writes: &[
            "smp_affinity_list of each interrupt that is handled elsewhere",
            "gpufleet-irq-affinity.service and /etc/gpufleet/gpufleet-irq-affinity.sh, which do it at boot",
            "with `irqbalance: ban`, /etc/gpufleet/gpufleet-irq-policy.sh and --policyscript= in the environment file of \
             irqbalance (/etc/default/irqbalance, /etc/sysconfig/irqbalance)",
        ],
        takes_effect: "at once, or at the next interrupt where the hardware can move it only then",
        survives: "reboots; not a reload or reset of a driver, nor another number of channels, which make new interrupts",
        owners: &[
            "irqbalance moves interrupts every 10 s, unless it is banned from them; it is made to leave them, or stopped, and \
             never fought",
            "managed interrupts (queues of NVMe drives) are the kernel's: it refuses (EIO before Linux 6.12, EPERM since)",
            "scripts of vendors (set_irq_affinity.sh) and cloud agents may set them too",
            "tuned's [irqbalance] and [scheduler] (isolated_cores) set banned CPUs and the affinity of interrupts",
        ],
        source: "kernel, core-api/irq/irq-affinity; irqbalance(1) 1.9.2, --policyscript; measured with Linux 6.18",
    };
}

impl Operation for IrqAffinity {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::POLICY])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::IrqAffinity(new) = newer.op else { return true };
        self.devices.retain(|name| !new.devices.contains(name));
        self.irqbalance = new.irqbalance;
        !self.devices.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<IrqAffinity, ParamError> {
        let task: IrqAffinity = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn devices_and_cpus_are_named() {
        for right in [
            json!({"devices": "nic,gpu"}),
            json!({"devices": ["0000:5d:00.0", "eth0"], "cpus": "0-15", "exclude": "0", "irqbalance": "leave"}),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for wrong in [
            json!({"devices": []}),
            json!({"devices": "../x"}),
            json!({"devices": ["eth0", "nics"]}),
            json!({"devices": "gpus"}),
            json!({"devices": "nic", "cpus": "near"}),
            json!({"devices": "nic", "cpus": "0-1", "exclude": "0-3"}),
            json!({"devices": "nic", "irqbalance": "fight"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newer_task_takes_over_its_devices() {
        let mut old = read(json!({"devices": "nic,gpu"})).unwrap();
        let newer = |value| NodeOp::IrqAffinity(read(value).unwrap());
        assert!(old.yields(&Newer::of(&newer(json!({"devices": "nic", "irqbalance": "stop"})))));
        assert_eq!(
            (old.devices.as_slice(), old.irqbalance),
            (["gpu".to_owned()].as_slice(), IrqBalance::Stop)
        );
        assert!(!old.yields(&Newer::of(&newer(json!({"devices": "gpu"})))));
    }
}

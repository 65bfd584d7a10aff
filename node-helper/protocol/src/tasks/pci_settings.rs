//! Parameters of `pci_settings`, the registers of PCI devices and of the ports above them.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, words::words,
};
use crate::{
    Disruption, NodeOp, Unit, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { AcsState { On: "on", Off: "off" } }

/// Sets the largest read request of PCI devices, and access control (ACS) of the ports above them. Without
/// `max_read_request` and `acs` it only reads them, for `register`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PciSettings {
    /// `gpu`, `nic` (without virtual functions), `nvme`, or PCI addresses such as `0000:3b:00.0`.
    #[serde(deserialize_with = "lenient::one_or_many")]
    pub devices: Vec<String>,
    /// The most that a device asks for in one read: 128, 256, 512, 1024, 2048 or 4096.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub max_read_request: Option<u32>,
    /// `off`: the bridges and switch ports above the devices let them reach each other directly. `on`: they send such
    /// traffic through the root complex, which virtual machines need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acs: Option<AcsState>,
}

impl PciSettings {
    /// Whether nothing is declared, so that the task only tells what is there.
    pub const fn reads_only(&self) -> bool {
        self.max_read_request.is_none() && self.acs.is_none()
    }

    /// The service that sets it at boot, and its script.
    pub const UNIT: &str = "gpufleet-pci";
    pub const SCRIPT: &str = "/etc/gpufleet/gpufleet-pci.sh";
    /// Words for devices.
    pub const WORDS: [&str; 3] = ["gpu", "nic", "nvme"];

    /// Returns an address as sysfs writes it; `None` if it is none.
    pub fn address(text: &str) -> Option<String> {
        let (whole, given) = match text.matches(':').count() {
            1 => (format!("0000:{text}"), text),
            _ => (text.to_owned(), text),
        };
        let (place, function) = whole.rsplit_once('.')?;
        let parts: Vec<&str> = place.split(':').collect();
        let [domain, bus, device] = parts[..] else { return None };
        let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let good = (4..=8).contains(&domain.len())
            && bus.len() == 2
            && device.len() == 2
            && hex(domain)
            && hex(bus)
            && hex(device)
            && matches!(function.as_bytes(), [b'0'..=b'7'])
            && !given.is_empty();
        good.then(|| whole.to_ascii_lowercase())
    }
}

impl Kind for PciSettings {
    const INFO: KindInfo = KindInfo {
        name: "pci_settings",
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
        numbers: &[Number::within("max_read_request", Some(Unit::Bytes), 128, 4096)],
        since: &[],
        summary: "Sets the largest read request of PCI devices, and ACS of the ports above them, now and for every boot.",
        example: "pci_settings: {devices: [gpu, nic], max_read_request: 4096, acs: 'off'}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.devices.is_empty() {
            return Err(ParamError::new("devices", "a device is needed: `gpu`, `nic`, `nvme` or an address"));
        }
        let known = |text: &&String| Self::WORDS.contains(&text.as_str()) || Self::address(text).is_some();
        if let Some(other) = self.devices.iter().find(|text| !known(text)) {
            let message =
                format!("`{other}` is neither `gpu`, `nic` or `nvme` nor an address such as 0000:3b:00.0");
            return Err(ParamError::new("devices", message));
        }
        if self.max_read_request.is_some_and(|bytes| !bytes.is_power_of_two()) {
            let message = "it is one of 128, 256, 512, 1024, 2048 and 4096";
            return Err(ParamError::new("max_read_request", message));
        }
        Ok(())
    }
}

impl GroundKind for PciSettings {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/bus/pci/devices/ADDRESS/config, class, vendor and device: capabilities of PCI Express and ACS",
            "/sys/kernel/iommu_groups/*/type, and which devices drivers of vfio have (vfio-pci, mlx5_vfio_pci and others)",
            "/sys/kernel/security/lockdown, where the kernel refuses",
        ],
        writes: &[
            "two bytes of config each: Device Control bits 14:12 of the devices, ACS Control of the ports above them",
            "gpufleet-pci.service and /etc/gpufleet/gpufleet-pci.sh, which compares vendor and device before it writes",
        ],
        takes_effect: "at once: the read request with the next read, without a disturbance; ACS behind a drain, because \
                       programs choose their way between devices when they start",
        survives: "reboots, by the service; not a reset of a device: the next run repairs it",
        owners: &[
            "drivers set the read request when they start (pcie_set_readrq), before the service at boot; mlxconfig and the \
             firmware give the default",
            "`pci=disable_acs_redir=` and `pci=config_acs=` on the kernel command line, and the kernel itself with an IOMMU",
            "in virtual machines both are the host's: not applicable. There ATS needs other values (NVIDIA)",
            "with vfio, ACS separates virtual machines from each other: `acs: off` is refused, and the service leaves ACS alone",
            "of two tasks of a play, one alone may declare a register: another value is refused in the prediction",
        ],
        source: "PCI Express Base Specification 5.0, 7.5.3.4 and 7.7.7; kernel, drivers/pci/pci.c; NVIDIA, NCCL \
                 troubleshooting (ACS) and GPUDirect Storage",
    };
}

impl Operation for PciSettings {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::SCRIPT])
    }

    fn lasting(&mut self) -> bool {
        !self.reads_only()
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::PciSettings(new) = newer.op else { return true };
        let (reads, acs) = (new.max_read_request.is_some(), new.acs.is_some());
        let same = |device: &String| new.devices.contains(device);
        let (own_reads, own_acs) = (self.max_read_request.is_some(), self.acs.is_some());
        if (reads || !own_reads) && (acs || !own_acs) {
            // All that this one sets is set anew, of some devices at least.
            self.devices.retain(|device| !same(device));
        } else if self.devices.iter().all(same) {
            if reads {
                self.max_read_request = None;
            }
            if acs {
                self.acs = None;
            }
        }
        !self.devices.is_empty() && (self.max_read_request.is_some() || self.acs.is_some())
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<PciSettings, ParamError> {
        let task: PciSettings = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn devices_are_words_or_addresses() {
        assert_eq!(PciSettings::address("3B:00.0").as_deref(), Some("0000:3b:00.0"));
        for wrong in ["", "3b:00", "3b:00.8", "../x", "0000:3b:0.0", "é:00.0", "1:2:3:4.0"] {
            assert_eq!(PciSettings::address(wrong), None, "{wrong}");
        }
        assert!(read(json!({"devices": "gpu", "acs": false})).is_ok());
        let mut reads = read(json!({"devices": "gpu"})).unwrap();
        assert!(reads.reads_only() && !reads.lasting(), "it declares nothing");
        for wrong in [
            json!({"devices": [], "acs": "off"}),
            json!({"devices": "gpus", "acs": "off"}),
            json!({"devices": "gpu", "max_read_request": 600}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newer_task_takes_over_its_devices() {
        let newer = |value| NodeOp::PciSettings(read(value).unwrap());
        let mut old = read(json!({"devices": ["gpu", "nic"], "max_read_request": 512})).unwrap();
        assert!(old.yields(&Newer::of(&newer(json!({"devices": "gpu", "acs": "off"})))));
        assert_eq!(old.devices.len(), 2, "it is about something else");
        assert!(old.yields(&Newer::of(&newer(json!({"devices": "gpu", "max_read_request": 4096})))));
        assert_eq!(old.devices, ["nic"]);
        let mut both = read(json!({"devices": "gpu", "max_read_request": 512, "acs": "off"})).unwrap();
        assert!(both.yields(&Newer::of(&newer(json!({"devices": "gpu", "acs": "on"})))));
        assert_eq!(both.acs, None);
    }
}

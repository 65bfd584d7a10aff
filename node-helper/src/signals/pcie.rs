//! Signals of how the PCI bus lets GPUs and network cards with RDMA reach each other: access control (ACS) and relaxed ordering.
//!
//! Reads the configuration of the devices and of the ports above them, which takes root. In a virtual machine these
//! registers are the host's, so that nothing is told there but that it is one.

use std::collections::BTreeSet;

use gpufleet_protocol::topology::What;

use super::{
    Found, Named, Reader, pci,
    pci_config::{self, Express},
    signal, topology,
};
use crate::facts;

/// The word for a machine of its own.
const NONE: &str = "none";
/// Devices or ports that are told.
const MOST_TOLD: usize = 64;

/// What the bus is set to.
struct Settings {
    /// Ports above GPUs and network cards that send what devices tell each other through the root complex.
    diverting: Vec<String>,
    /// GPUs and network cards that must write in order.
    ordered: Vec<String>,
}

pub fn read(reader: &Reader<'_>) -> Vec<Named> {
    let virtualization = virtualization(reader);
    let found = match virtualization.as_deref() {
        Ok(NONE) => settings(reader),
        Ok(_) => Ok(None),
        Err(why) => Err(why.clone()),
    };
    let told = |names: Vec<String>| names.into_iter().take(MOST_TOLD).collect::<Vec<_>>();
    let (diverting, ordered) = match found {
        Ok(Some(settings)) => (Ok(Some(told(settings.diverting))), Ok(Some(told(settings.ordered)))),
        Ok(None) => (Ok(None), Ok(None)),
        Err(why) => (Err(why.clone()), Err(why)),
    };
    vec![
        ("virtualization", signal(virtualization.map(Some))),
        ("vfio_count", signal(vfio_count(reader))),
        ("acs_redirects", signal(diverting)),
        ("relaxed_ordering_off", signal(ordered)),
    ]
}

/// Returns what the node runs in, or [`NONE`].
fn virtualization(reader: &Reader<'_>) -> Result<String, String> {
    if let Some(name) = facts::virtualization(reader.roots) {
        return Ok(name.chars().take(40).collect());
    }
    // The bit of a hypervisor stands there: without the file nobody knows.
    match reader.text("/proc/cpuinfo")? {
        Some(_) => Ok(NONE.to_owned()),
        None => Err("/proc/cpuinfo: there is no such file".to_owned()),
    }
}

fn vfio_count(reader: &Reader<'_>) -> Found<usize> {
    if !reader.exists("/sys/bus/pci")? {
        return Err("/sys/bus/pci: there is no such folder".to_owned());
    }
    let drivers = pci::vfio(reader.roots)?;
    Ok(Some(drivers.iter().map(|(_, bound)| bound.len()).sum()))
}

/// Reads the devices; `None` without a GPU or network card, or where the kernel shows no configuration.
fn settings(reader: &Reader<'_>) -> Found<Settings> {
    let mut devices = Vec::new();
    for device in topology::places(reader)? {
        // Cards without RDMA reach no GPU, and some of them turn relaxed ordering off themselves (tg3).
        let counts = match &device.what {
            What::Gpu(_) => true,
            What::Network(card) => !card.rdma.is_empty(),
            What::Nvme { .. } | What::NvSwitch => false,
        };
        // The bits of a virtual function are its card's. Source: PCI Express Base Specification 5.0, 9.3.5.4.
        if counts && !reader.exists(&pci::file(&device.address, "physfn"))? {
            devices.push(device);
        }
    }
    let (mut diverting, mut ordered) = (BTreeSet::new(), BTreeSet::new());
    if devices.is_empty() {
        return Ok(None);
    }
    let mut ports = BTreeSet::new();
    for device in devices {
        let Some(bytes) = pci::config(reader.roots, &device.address)? else { return Ok(None) };
        let unread = |why: pci_config::Unread| format!("{}: {why}", device.address);
        // A card on the board may be no device of PCI Express.
        if pci_config::express(&bytes).map_err(unread)?.is_some_and(|express| !express.relaxed_ordering()) {
            ordered.insert(device.address);
        }
        // What a device at a root port sends goes through the root complex in any case.
        if device.ports.len() > 1 {
            ports.extend(device.ports);
        }
    }
    for port in ports {
        let Some(bytes) = pci::config(reader.roots, &port)? else { return Ok(None) };
        let unread = |why: pci_config::Unread| format!("{port}: {why}");
        if pci_config::express(&bytes).map_err(unread)?.is_some_and(Express::is_upstream) {
            continue;
        }
        if pci_config::acs(&bytes).map_err(unread)?.is_some_and(pci_config::Acs::diverts) {
            diverting.insert(port);
        }
    }
    Ok(Some(Settings { diverting: diverting.into_iter().collect(), ordered: ordered.into_iter().collect() }))
}

//! Places of PCI devices: addresses, and the ports between a device and its processor.
//!
//! Owns how sysfs tells them. Follows no link: the text of a device's link names the ports, and each of them has an
//! entry of its own. Invariant: a name that is no address never becomes part of a path.

use std::{fs, io, io::Read as _, path::Path};

use super::{Found, Reader, is_missing};
use crate::os::roots::Roots;

const DEVICES: &str = "/sys/bus/pci/devices";
const DRIVERS: &str = "/sys/bus/pci/drivers";
/// The configuration of a device of PCI Express has no more bytes.
const MOST_CONFIG: u64 = 4096;
/// More ports above a device than any machine has.
const MOST_ABOVE: usize = 16;

/// Whether a name is a PCI address as sysfs writes it: `0000:5d:00.0`.
pub fn is_address(name: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.split(':');
    let (Some(domain), Some(bus), Some(rest), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Some((device, function)) = rest.split_once('.') else { return false };
    (4..=8).contains(&domain.len())
        && bus.len() == 2
        && device.len() == 2
        && [domain, bus, device].into_iter().all(hex)
        && matches!(function.as_bytes(), [b'0'..=b'7'])
}

/// Returns the path of a file of a device.
pub fn file(address: &str, name: &str) -> String {
    format!("{DEVICES}/{address}/{name}")
}

/// Returns the ports above a device, the nearest first; none where the kernel shows the device alone.
///
/// # Errors
/// If the link of the device cannot be read.
pub fn above(reader: &Reader<'_>, address: &str) -> Result<Vec<String>, String> {
    let (_, mut ports) = place(reader, address)?;
    ports.reverse();
    Ok(ports)
}

/// Returns the host bridge of a device, such as `pci0000:16`, and the ports between the two, that of the host bridge
/// first; nothing where the kernel shows the device alone.
///
/// # Errors
/// If the link of the device cannot be read.
pub fn place(reader: &Reader<'_>, address: &str) -> Result<(Option<String>, Vec<String>), String> {
    let path = format!("{DEVICES}/{address}");
    // For example `../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0`.
    let target = match fs::read_link(reader.roots.path(&path)) {
        Ok(target) => target,
        // It is no link.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput || is_missing(&error) => {
            return Ok((None, Vec::new()));
        }
        Err(error) => return Err(format!("{path}: {error}")),
    };
    let text = target.to_str().ok_or_else(|| format!("{path}: its link is not what the kernel writes"))?;
    let above = text.rsplit_once('/').map_or("", |(above, _)| above);
    let root = above.split('/').find(|part| is_host_bridge(part));
    let nearest_first = above.rsplit('/').filter(|part| is_address(part)).take(MOST_ABOVE);
    let mut ports: Vec<String> = nearest_first.map(str::to_owned).collect();
    ports.reverse();
    Ok((root.map(str::to_owned), ports))
}

fn is_host_bridge(name: &str) -> bool {
    name.strip_prefix("pci").is_some_and(|place| is_address(&format!("{place}:00.0")))
}

/// Returns the address of the PCI device that a link such as `/sys/class/infiniband/mlx5_0/device` leads to; `None` where
/// there is no link, or where it leads to something else.
pub fn behind(reader: &Reader<'_>, link: &str) -> Found<String> {
    match fs::read_link(reader.roots.path(link)) {
        Ok(target) => {
            let name = target.file_name().and_then(|name| name.to_str());
            Ok(name.filter(|name| is_address(name)).map(str::to_owned))
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput || is_missing(&error) => Ok(None),
        Err(error) => Err(format!("{link}: {error}")),
    }
}

/// Returns the configuration of a device, as much of it as the kernel gives; `None` without such a file.
///
/// # Errors
/// If it cannot be read.
pub fn config(roots: &Roots, address: &str) -> Found<Vec<u8>> {
    let path = file(address, "config");
    let mut bytes = Vec::new();
    let read =
        fs::File::open(roots.path(&path)).and_then(|file| file.take(MOST_CONFIG).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{path}: {error}")),
    }
}

/// Returns the names in a folder, sorted; none where the kernel does not have it.
///
/// # Errors
/// If it cannot be listed, or is no folder.
pub fn listed(roots: &Roots, folder: impl AsRef<Path>) -> Result<Vec<String>, String> {
    let folder = folder.as_ref();
    let unread = |error: io::Error| format!("{}: {error}", folder.display());
    let entries = match fs::read_dir(roots.path(folder)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unread(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(unread)?.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Returns the devices that virtual machines or programs have by vfio, by driver: besides vfio-pci, drivers of single
/// devices, such as mlx5_vfio_pci.
///
/// # Errors
/// If the drivers cannot be listed.
pub fn vfio(roots: &Roots) -> Result<Vec<(String, Vec<String>)>, String> {
    let mut found = Vec::new();
    for driver in listed(roots, DRIVERS)?.into_iter().filter(|name| name.contains("vfio")) {
        let mut bound = listed(roots, format!("{DRIVERS}/{driver}"))?;
        bound.retain(|name| is_address(name));
        if !bound.is_empty() {
            found.push((driver, bound));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_are_addresses() {
        for name in ["0000:5d:00.0", "10000:e1:1f.7", "0001:00:00.1"] {
            assert!(is_address(name), "{name}");
        }
        for name in [
            "",
            "pci0000:16",
            "0000:5d:00.8",
            "0000:5d:00",
            "0000:5d:00.0/..",
            "00:5d:00.0",
            "..",
            "0000:5d:0.0",
        ] {
            assert!(!is_address(name), "{name}");
        }
    }
}

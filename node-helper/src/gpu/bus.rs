//! GPUs and NVSwitches of NVIDIA on the PCI bus, whether a driver has them or not.

use std::{fs, io, path::Path};

use crate::os::roots::Roots;

/// PCI classes of GPUs: VGA and 3D controllers.
const GPUS: [&str; 2] = ["0x0300", "0x0302"];
/// PCI class of NVSwitches: other bridges.
const SWITCHES: [&str; 1] = ["0x0680"];
/// Driver of devices that a virtual machine has.
const PASSED: &str = "vfio-pci";

/// The kernel's own drivers of NVIDIA GPUs, by their modules. What one of them has neither NVIDIA's driver nor its library can
/// use. Source: Linux 6.17, drivers/gpu/drm/nouveau and drivers/gpu/nova-core.
pub const KERNELS_OWN: [&str; 2] = ["nouveau", "nova_core"];

/// What is on the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bus {
    /// GPUs of this machine, without those that a virtual machine has.
    pub gpus: u32,
    pub switches: u32,
}

/// Returns those of [`KERNELS_OWN`] that are loaded.
pub fn kernels_own(roots: &Roots) -> Vec<&'static str> {
    KERNELS_OWN.into_iter().filter(|name| roots.path(format!("/sys/module/{name}")).exists()).collect()
}

/// Counts the devices of the bus.
///
/// # Errors
/// If they cannot be listed. A machine without a PCI bus has none.
pub fn read(roots: &Roots) -> io::Result<Bus> {
    let mut bus = Bus::default();
    each(roots, |device, _| match device {
        Found::Gpu => bus.gpus += 1,
        Found::Switch => bus.switches += 1,
    })?;
    Ok(bus)
}

/// Why no kind of GPUs can do its work where the bus shows none. An error and never "not applicable": whoever selects a node
/// for them says that it has some, and a node that lost all of them would else be as declared.
pub const NO_GPU: &str = "there is no NVIDIA GPU on this node's PCI bus";

/// Returns the addresses of the GPUs, in their order, as sysfs writes them; none where they cannot be listed.
pub fn addresses(roots: &Roots) -> Vec<String> {
    let mut all = Vec::new();
    let listed = each(roots, |device, address| {
        if device == Found::Gpu {
            all.push(address.to_owned());
        }
    });
    all.sort();
    listed.map(|()| all).unwrap_or_default()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Gpu,
    Switch,
}

fn each(roots: &Roots, mut found: impl FnMut(Found, &str)) -> io::Result<()> {
    let devices = match fs::read_dir(roots.path("/sys/bus/pci/devices")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && roots.path("/sys/bus").is_dir() => {
            return Ok(());
        }
        devices => devices?,
    };
    for device in devices {
        let device = device?;
        let (folder, name) = (device.path(), device.file_name());
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        if read("vendor").trim() != "0x10de" {
            continue;
        }
        let class = read("class");
        let is = |classes: &[&str]| classes.iter().any(|wanted| class.starts_with(wanted));
        if is(&GPUS) && !is_passed(&folder) {
            found(Found::Gpu, &name.to_string_lossy());
        } else if is(&SWITCHES) {
            found(Found::Switch, &name.to_string_lossy());
        }
    }
    Ok(())
}

fn is_passed(folder: &Path) -> bool {
    fs::read_link(folder.join("driver")).is_ok_and(|driver| driver.file_name() == Some(PASSED.as_ref()))
}

/// Returns the number of device files of NVSwitches: those of the fourth generation are not on the node's bus.
///
/// # Errors
/// If `/dev` cannot be listed.
pub fn switch_files(roots: &Roots) -> io::Result<u32> {
    let mut files = 0;
    for entry in fs::read_dir(roots.path("/dev"))? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("nvidia-nvswitch"));
        files += u32::from(
            number.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())),
        );
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_display_controllers_of_this_machine_count_as_gpus() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::below(root.path());
        assert!(read(&roots).is_err(), "without /sys nothing is known");
        fs::create_dir_all(root.path().join("sys/bus")).unwrap();
        assert_eq!(read(&roots).unwrap(), Bus::default());
        for (slot, vendor, class) in [
            ("0000:1b:00.0", "0x10de", "0x030200"),
            ("0000:1b:00.1", "0x10de", "0x040300"),
            ("0000:02:00.0", "0x10de", "0x030000"),
            ("0000:03:00.0", "0x8086", "0x030000"),
            ("0000:04:00.0", "0x10de", "0x030200"),
            ("0000:05:00.0", "0x10de", "0x068000"),
        ] {
            let folder = root.path().join("sys/bus/pci/devices").join(slot);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("vendor"), vendor).unwrap();
            fs::write(folder.join("class"), class).unwrap();
        }
        let passed = root.path().join("sys/bus/pci/devices/0000:04:00.0/driver");
        std::os::unix::fs::symlink("../../../../bus/pci/drivers/vfio-pci", passed).unwrap();
        assert_eq!(read(&roots).unwrap(), Bus { gpus: 2, switches: 1 });
        assert_eq!(addresses(&roots), ["0000:02:00.0", "0000:1b:00.0"]);
    }

    #[test]
    fn switches_are_found_by_their_files() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::below(root.path());
        assert!(switch_files(&roots).is_err());
        fs::create_dir_all(root.path().join("dev")).unwrap();
        for name in ["nvidia-nvswitchctl", "nvidia-nvswitch0", "nvidia-nvswitch1", "nvidia0"] {
            fs::write(root.path().join("dev").join(name), "").unwrap();
        }
        assert_eq!(switch_files(&roots).unwrap(), 2);
    }
}

//! GPUs in machines: the lab's simulated driver, on the disk of a real machine.
//!
//! A unit of the machine does at each boot what a boot does to GPUs, and lets the driver come up, at once or late.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use gpufleet_tests::binary;
use nvml_sim::{
    model::ModelKey,
    state::{Gpu, Machine},
};

/// Where the driver's state is, so that the modes that a real GPU stores outlive a boot.
const STATE: &str = "var/lib/gpusim/node.json";

/// Why a link: the library looks for its state below /run, which a boot empties.
const BOOT: &str = "#!/bin/sh
set -eu
ln -sfn /var/lib/gpusim /run/gpusim
gpusimctl boot
mkdir -p /dev/nvidia-caps
sleep \"$(cat /var/lib/gpusim/late 2>/dev/null || echo 0)\"
for device in /dev/nvidia-uvm /dev/nvidia-caps/nvidia-cap1 /dev/nvidia-caps/nvidia-cap2 DEVICES /dev/nvidiactl; do
    : >>$device
done
";

/// Why no order with the unit that asserts the kept state: a driver may well be up only after it has begun.
const UNIT: &str = "[Unit]
Description=Simulated GPUs
DefaultDependencies=no
After=systemd-tmpfiles-setup-dev.service local-fs.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/gpus-boot
TimeoutStartSec=5min
";

/// Where no kernel has a GPU: its part of /sys and /proc are the machine's own, and modules are loaded as udev does.
/// `after-boot` is what a test wants of the boots to come.
const DRIVER_BOOT: &str = "#!/bin/sh
set -eu
ln -sfn /var/lib/gpusim /run/gpusim
for folder in /sys/module /sys/bus/pci /proc/driver; do
    mount -t tmpfs tmpfs $folder
done
gpusimctl boot bus
if [ -e /var/lib/gpusim/after-boot ]; then
    sh /var/lib/gpusim/after-boot
fi
for module in nvidia nvidia_uvm nvidia_modeset nvidia_drm; do
    modprobe $module || true
done
";

/// Before logins, as a kernel lists its bus before anything runs.
const DRIVER_UNIT: &str = "[Unit]
Description=Simulated GPUs and their driver
DefaultDependencies=no
After=systemd-tmpfiles-setup-dev.service local-fs.target
Before=ssh.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/gpus-boot
TimeoutStartSec=5min
";

/// Puts GPUs into a machine whose driver is what its packages bring, given the folder that is mounted over its file
/// tree. Without such packages it is the one that the simulated library is of.
///
/// # Panics
/// If the lab is not built.
pub fn install_driver(disk: &Path, name: &str, models: &[ModelKey]) {
    install_gpus(disk, name, models);
    put(&disk.join("usr/local/sbin/gpus-boot"), DRIVER_BOOT.as_bytes(), 0o755);
    put(&disk.join("etc/systemd/system/gpus-boot.service"), DRIVER_UNIT.as_bytes(), 0o644);
    // What the links of the packages lead to.
    let library = fs::read(binary("libnvml_sim.so")).expect("the simulated driver");
    put(&disk.join("usr/lib/gpufleet-lab/libnvidia-ml.so.1"), &library, 0o644);
    // Scripts of packages run without /usr/local, and kmod's own programs are there.
    let links = ["bin/gpusimctl", "bin/nvidia-smi", "sbin/modprobe", "sbin/rmmod", "sbin/modinfo"];
    for link in links.map(|link| disk.join("usr").join(link)) {
        fs::create_dir_all(link.parent().expect("a folder")).expect("a folder");
        symlink("../local/bin/gpusimctl", link).expect("a link");
    }
}

/// Puts GPUs into a machine, given the folder that is mounted over its file tree.
///
/// # Panics
/// If the lab is not built.
pub fn install_gpus(disk: &Path, name: &str, models: &[ModelKey]) {
    let library = disk.join(format!("usr/lib/{}-linux-gnu/libnvidia-ml.so.1", std::env::consts::ARCH));
    put(&library, &fs::read(binary("libnvml_sim.so")).expect("the simulated driver"), 0o644);
    let control = disk.join("usr/local/bin/gpusimctl");
    put(&control, &fs::read(binary("gpufleet-lab")).expect("the lab"), 0o755);
    symlink("gpusimctl", disk.join("usr/local/bin/nvidia-smi")).expect("a link");
    let devices: Vec<String> = (0..models.len()).map(|minor| format!("/dev/nvidia{minor}")).collect();
    put(
        &disk.join("usr/local/sbin/gpus-boot"),
        BOOT.replace("DEVICES", &devices.join(" ")).as_bytes(),
        0o755,
    );
    unit(disk, "gpus-boot", UNIT);
    let machine = Machine::new(name, models, String::new());
    put(&disk.join(STATE), &serde_json::to_vec(&machine).expect("a state"), 0o644);
}

/// Adds a unit that each boot starts.
///
/// # Panics
/// If it cannot be written.
pub fn unit(disk: &Path, name: &str, text: &str) {
    let folder = disk.join("etc/systemd/system");
    put(&folder.join(format!("{name}.service")), text.as_bytes(), 0o644);
    let wants = folder.join("multi-user.target.wants");
    fs::create_dir_all(&wants).expect("a folder of units");
    symlink(format!("../{name}.service"), wants.join(format!("{name}.service"))).expect("a wanted unit");
}

fn put(path: &PathBuf, bytes: &[u8], mode: u32) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, bytes).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

impl crate::Machines {
    /// Returns the GPUs of a machine as they are now.
    ///
    /// # Panics
    /// If there are none.
    pub fn gpus(&self, name: &str) -> Vec<Gpu> {
        let text = self.text(name, STATE).expect("GPUs");
        serde_json::from_str::<Machine>(&text).expect("a state").gpus
    }

    /// Changes the GPUs of a machine that is off.
    ///
    /// # Panics
    /// If there are none.
    pub fn change_gpus(&self, name: &str, change: impl FnOnce(&mut Machine)) {
        let mut machine: Machine =
            serde_json::from_str(&self.text(name, STATE).expect("GPUs")).expect("a state");
        change(&mut machine);
        fs::write(self.disk(name).join(STATE), serde_json::to_vec(&machine).expect("a state"))
            .expect("a file");
    }
}

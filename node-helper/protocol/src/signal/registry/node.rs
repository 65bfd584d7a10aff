//! Signals of the node as a whole, and of its file systems.

use super::{Scope, SignalInfo};
use crate::Unit;

pub static SIGNALS: &[SignalInfo] = &[
    node(
        "boot_id_start",
        None,
        "Boot that the node was in before the first reading, by `/proc/sys/kernel/random/boot_id`.",
    ),
    node(
        "boot_id_end",
        None,
        "Boot that the node was in after the last reading; another one than before makes all readings doubtful.",
    ),
    node(
        "driver_load_start",
        None,
        "Mark of the load of the NVIDIA driver before the first reading: the inode of `/sys/module/nvidia`.",
    ),
    node("driver_load_end", None, "Mark of the load of the NVIDIA driver after the last reading."),
    node("uptime_s", Some(Unit::Seconds), "Time since the boot, by `/proc/uptime`."),
    node(
        "kernel",
        None,
        "Release of the running kernel, as `uname -r` prints it, by `/proc/sys/kernel/osrelease`.",
    ),
    node(
        "cmdline",
        None,
        "Command line that the kernel was booted with, by `/proc/cmdline`, without the values of words that look secret.",
    ),
    node(
        "taint",
        None,
        "Why the kernel's makers would not trust it, as a sum of bits, by `/proc/sys/kernel/tainted`.",
    ),
    node(
        "secure_boot",
        None,
        "Whether the firmware checks signatures (0 or 1), by its variable `SecureBoot`; absent without UEFI.",
    ),
    node(
        "clock_unsync",
        None,
        "Whether nothing keeps the clock right, by the flag `STA_UNSYNC` of adjtimex(2).",
    ),
    node(
        "reboot_required",
        None,
        "Whether an installed package asks for a reboot, by `/run/reboot-required`, which only Debian and its \
         relatives have.",
    ),
    node("cpus_online", None, "Number of CPUs that are online, by `/sys/devices/system/cpu/online`."),
    node("memory_gib", None, "Size of the memory in GiB, by `MemTotal` of `/proc/meminfo`."),
    node(
        "edac_ue",
        None,
        "Uncorrected errors of the memory since the driver of its controllers was loaded, by `ue_count` of EDAC; \
         absent without such a driver.",
    ),
    node(
        "edac_ce",
        None,
        "Corrected errors of the memory since the driver of its controllers was loaded, by `ce_count` of EDAC; \
         absent without such a driver.",
    ),
    node("pstore_files", None, "Number of records that an earlier crash left, by `/sys/fs/pstore`."),
    node(
        "log_from",
        None,
        "What of the kernel's log since the boot could be read: `complete`, `partial` or `none`, by the first \
         record of `/dev/kmsg`, else the journal.",
    ),
    node(
        "records_dropped",
        None,
        "Number of records of the kernel's log that count and were left out for want of room.",
    ),
    node(
        "nfs_hung_servers",
        None,
        "Number of NFS servers whose last word in the kernel's log is that they do not respond.",
    ),
    node(
        "system_state",
        None,
        "State of the system as systemd sees it, such as `running` or `degraded`, by `systemctl is-system-running`; \
         absent without systemd.",
    ),
    node(
        "failed_units",
        None,
        "Names of units that have failed, at most 64, by `systemctl list-units --failed`; absent without systemd.",
    ),
    node(
        "shutdown_scheduled",
        None,
        "Whether the system is about to go down, by `/run/systemd/shutdown/scheduled` and `/run/nologin`.",
    ),
    node(
        "docker_state",
        None,
        "Whether Docker runs: `running`, `failed` or `absent`, by its unit and its process.",
    ),
    node(
        "containerd_state",
        None,
        "Whether containerd runs: `running`, `failed` or `absent`, by its unit and its process.",
    ),
    node(
        "crio_state",
        None,
        "Whether CRI-O runs: `running`, `failed` or `absent`, by its unit and its process.",
    ),
    node(
        "runtime_state",
        None,
        "Whether any container runtime runs: `running`, `failed` or `absent`, by the states of Docker, containerd \
         and CRI-O.",
    ),
    node(
        "pci_count",
        None,
        "Number of NVIDIA GPUs of this machine on the PCI bus, by vendor and class in `/sys/bus/pci/devices`; \
         without those that vfio-pci has for a virtual machine.",
    ),
    node(
        "switches_present",
        None,
        "Whether the node has NVSwitches, by the PCI bus, `/dev/nvidia-nvswitch*` and \
         `/proc/driver/nvidia-nvswitch/devices`.",
    ),
    node(
        "module_version",
        None,
        "Version of the loaded NVIDIA kernel module, by `/sys/module/nvidia/version`; absent if it is not loaded.",
    ),
    node(
        "module_kind",
        None,
        "Whether the loaded NVIDIA kernel module is `open` or `proprietary`, by `/proc/driver/nvidia/version`.",
    ),
    node(
        "installed_driver",
        None,
        "Version of the NVIDIA kernel module that the running kernel would load now, by `modinfo`.",
    ),
    node("nouveau_loaded", None, "Whether the module nouveau is loaded, by `/sys/module/nouveau`."),
    node("nova_loaded", None, "Whether the module nova_core is loaded, by `/sys/module/nova_core`."),
    node(
        "peermem_loaded",
        None,
        "Whether the module nvidia_peermem is loaded, by `/sys/module/nvidia_peermem`.",
    ),
    node(
        "dmabuf_capable",
        None,
        "Whether network cards reach memory of GPUs without nvidia_peermem: with the open module and an RDMA core that takes \
         dma-buf, by the kernel's symbols.",
    ),
    node(
        "drm_modeset",
        None,
        "Whether nvidia_drm sets modes of displays, by its parameter `modeset`, which only root may read.",
    ),
    node(
        "missing_device_nodes",
        None,
        "Number of device files of the NVIDIA driver that `/dev` lacks: the control file, one for each GPU, and \
         that of unified memory if its module is loaded.",
    ),
    node(
        "wrong_major",
        None,
        "Number of device files of the NVIDIA driver whose number differs from that in `/proc/devices`.",
    ),
    node(
        "persistenced",
        None,
        "Whether the persistence daemon runs: `running`, `failed` or `absent`, by its unit and its process.",
    ),
    node(
        "persistenced_enabled",
        None,
        "Whether a boot starts the persistence daemon: its unit is enabled, and its program is there; absent \
         without systemd.",
    ),
    node(
        "fm_state",
        None,
        "Whether the fabric manager runs: `running`, `failed` or `absent`, by its unit and its process.",
    ),
    node(
        "fm_version",
        None,
        "Version of the fabric manager, by `nv-fabricmanager --version`; absent on a node without NVSwitches.",
    ),
    node(
        "imex_state",
        None,
        "State of the IMEX daemon, such as `READY`, by `nvidia-imex-ctl -q`; `stopped` or `failed` if its unit does \
         not run, and absent without one.",
    ),
    node(
        "mps_state",
        None,
        "Whether the MPS control daemon runs: `running`, `absent`, or `stale_pipe` if a dead one left its pipe, by \
         its process and `/tmp/nvidia-mps`.",
    ),
    node(
        "dcgm_state",
        None,
        "Whether the host engine of DCGM runs: `running`, `failed` or `absent`, by its unit and its process.",
    ),
    node("zombies", None, "Number of dead processes that nobody waited for (state Z), by `/proc/*/stat`."),
    node(
        "gpu_dstate_count",
        None,
        "Number of processes in a state that no signal ends (D) that are the driver's or have a device file of it \
         open, by `/proc/*/stat` and `/proc/*/fd`.",
    ),
    node(
        "gpu_zombie_count",
        None,
        "Number of dead processes (Z) of which a thread still has a device file of the driver open, by \
         `/proc/*/task/*/fd`.",
    ),
    node(
        "gpu_stuck_processes",
        None,
        "Those of `gpu_dstate_count` and `gpu_zombie_count`, such as `4711 (python) D`, at most 16.",
    ),
    node(
        "gpu_stuck_mark",
        None,
        "Of the oldest process of `gpu_dstate_count`, when it started (in ticks since the boot) and how often it gave a CPU \
         up, added, by `/proc/PID/stat` and `/proc/PID/status`. It stays the same only while one process waits; absent if \
         there is none.",
    ),
    node(
        "memlock_limited",
        None,
        "Number of daemons of slurmd and containerd that may not lock all memory, by `/proc/PID/limits`; absent if \
         none of them runs.",
    ),
    node(
        "memlock_limits",
        None,
        "How much memory each of these daemons may lock, such as `slurmd=8192 KiB` or `slurmd=unlimited`.",
    ),
    node(
        "kubelet_cgroup_driver",
        None,
        "Driver of control groups that the running kubelet uses, by its files and flags, or that of its runtime where it asks \
         that (Kubernetes 1.31); absent without a kubelet.",
    ),
    node(
        "kubelet_gpus",
        None,
        "Number of whole GPUs that the running kubelet offers to pods as `nvidia.com/gpu` or `nvidia.com/gpu.shared`, by the \
         healthy devices in its `device-plugins/kubelet_internal_checkpoint`; absent without a kubelet or a device plugin for \
         GPUs, with MIG devices, and where GPUs have other names.",
    ),
    node(
        "runtime_cgroup_driver",
        None,
        "Driver of control groups of the container runtime that the kubelet uses, by `containerd config dump`, the files of \
         CRI-O, or daemon.json; absent without a kubelet.",
    ),
    node(
        "image_stores",
        None,
        "Where container runtimes keep images, such as `docker: overlay2 in /var/lib/docker on ext4`, by their files and \
         folders; containerd counts if a kubelet uses it or it has snapshots; absent where none has any.",
    ),
    node("image_roots", None, "The folders of `image_stores`, behind links."),
    node(
        "image_stores_slow",
        None,
        "Number of `image_stores` whose driver copies whole layers or was taken away: vfs, native, devicemapper, aufs.",
    ),
    node(
        "image_stores_unfit",
        None,
        "Number of `image_stores` with an overlay on a file system that does not carry one: on another overlay, or on xfs \
         without `ftype=1`.",
    ),
    node("image_stores_on_root", None, "Number of `image_stores` on the file system of `/`."),
    node(
        "image_used_ratio",
        None,
        "Used part of the fullest file system of `image_stores` as the kubelet sees it, with what is kept for root (0 to 1), by \
         statvfs(3).",
    ),
    node(
        "image_inode_used_ratio",
        None,
        "Used part of the inodes of these file systems, the most of all (0 to 1), by statvfs(3).",
    ),
    node(
        "image_kubelet_used_ratio",
        None,
        "As `image_used_ratio`, of the store of the running kubelet's runtime alone; absent without a kubelet, or without such \
         a store.",
    ),
    node(
        "image_gc_ratio",
        None,
        "Used part from which the running kubelet removes images, by `imageGCHighThresholdPercent`; absent without a kubelet, \
         and where it removes none.",
    ),
    node(
        "image_evict_ratio",
        None,
        "Used part from which the running kubelet evicts pods, by `imagefs.available` of `evictionHard` in percent; absent \
         without a kubelet, and without such a threshold.",
    ),
    node(
        "pid_ratio",
        None,
        "Threads of the node by the largest number that it may have (0 to 1), by `/proc/loadavg` and \
         `/proc/sys/kernel/pid_max`.",
    ),
    node(
        "file_ratio",
        None,
        "Open files of the node by the largest number that it may have (0 to 1), by `/proc/sys/fs/file-nr`.",
    ),
    node(
        "governor_bad",
        None,
        "Number of CPUs whose governor is neither `performance` nor `powersave` with that preference, by \
         `/sys/devices/system/cpu/cpufreq`; absent without it.",
    ),
    node("thp", None, "Setting of transparent huge pages, by `/sys/kernel/mm/transparent_hugepage/enabled`."),
    node(
        "hugepages_total",
        None,
        "Reserved huge pages by size, such as `2048kB=512`, by `/sys/kernel/mm/hugepages`.",
    ),
    node("numa_nodes", None, "Number of NUMA nodes that are online, by `/sys/devices/system/node/online`."),
    node(
        "numa_balancing",
        None,
        "Whether the kernel moves memory between NUMA nodes (0, or a sum of bits), by \
         `/proc/sys/kernel/numa_balancing`.",
    ),
    node("swap_kib", None, "Size of all swap in KiB, by `/proc/swaps`."),
    node("swappiness", None, "How readily the kernel swaps (0 to 200), by `/proc/sys/vm/swappiness`."),
    node("virtualization", None, "What the node runs in, such as `kvm` or `docker`; `none` on bare metal."),
    node(
        "vfio_count",
        None,
        "Number of PCI devices that virtual machines or programs have by vfio, by `/sys/bus/pci/drivers/*vfio*`.",
    ),
    node(
        "acs_redirects",
        None,
        "Ports above GPUs and network cards with RDMA whose ACS sends what devices tell each other through the root complex, by \
         `/sys/bus/pci/devices/*/config`, at most 64; without root ports that have no switch below them; absent in virtual \
         machines, where the host has them.",
    ),
    node(
        "relaxed_ordering_off",
        None,
        "GPUs and network cards with RDMA (no virtual functions) whose Device Control forbids relaxed ordering, by \
         `/sys/bus/pci/devices/*/config`, at most 64; absent in virtual machines.",
    ),
    node(
        "psi_memory_full_avg300",
        Some(Unit::Percent),
        "Share of the last five minutes in which no process went on for want of memory, by `/proc/pressure/memory`.",
    ),
    node(
        "ro_unexpected",
        None,
        "Number of file systems on disks that are read-only although their mount or fstab says otherwise, by \
         `/proc/self/mountinfo`.",
    ),
    node(
        "md_degraded",
        None,
        "Number of md arrays that lack a disk, by `/sys/block/md*/md/degraded`; absent without such arrays.",
    ),
    node("nvme_count", None, "Number of NVMe controllers, by `/sys/class/nvme`."),
    node(
        "nvme_critical",
        None,
        "Critical warnings of all local NVMe drives together, as a sum of bits, by their SMART log; absent without such \
         drives, and where their log is empty, as that of virtual drives is.",
    ),
    node(
        "nvme_spare_left",
        Some(Unit::Percent),
        "Spare capacity of an NVMe drive above its threshold, the least of all, by their SMART log.",
    ),
    node(
        "nvme_used_percent",
        Some(Unit::Percent),
        "Used part of the rated life of an NVMe drive, the most of all, by their SMART log; it may exceed 100.",
    ),
    node(
        "nvme_media_errors",
        None,
        "Errors of data that no correction helped, of all local NVMe drives together, by their SMART log.",
    ),
    node(
        "nvme_unread",
        None,
        "Number of local NVMe drives that did not tell their SMART log, beside others that did.",
    ),
    node(
        "nvme_drives",
        None,
        "What the SMART log of each drive says, such as `nvme0 (MODEL, SERIAL): critical 0x00, spare 100 % (least 10 %), \
         used 3 %, media errors 0`.",
    ),
    disk("disk_used_ratio", None, "Used part of a file system as root sees it (0 to 1), by statvfs(3)."),
    disk(
        "inode_used_ratio",
        None,
        "Used part of a file system's inodes (0 to 1), by statvfs(3); absent if their number has no limit.",
    ),
    disk("disk_free_gib", None, "Free room of a file system as root sees it, in GiB, by statvfs(3)."),
    disk("disk_size_gib", None, "Size of a file system in GiB, by statvfs(3)."),
];

const fn node(name: &'static str, unit: Option<Unit>, source: &'static str) -> SignalInfo {
    SignalInfo { name, scope: Scope::Node, unit, source }
}

const fn disk(name: &'static str, unit: Option<Unit>, source: &'static str) -> SignalInfo {
    SignalInfo { name, scope: Scope::Disk, unit, source }
}

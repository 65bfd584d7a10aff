use std::{collections::BTreeSet, fs, os::unix::fs::symlink, time::Duration};

use gpufleet_protocol::signal::{SIGNALS, Scope, SignalInfo};

use super::*;
use crate::tasks::testing::Bench;

/// Files of a healthy node with one GPU.
const HEALTHY: &[(&str, &str)] = &[
    ("dev/kmsg", "4,0,0,-;Linux version 6.8.0-45-generic\n"),
    ("dev/nvidiactl", ""),
    ("dev/nvidia0", ""),
    ("etc/fstab", "/dev/vda1 / ext4 defaults 0 1\n"),
    ("proc/1/stat", "1 (systemd) S 0 1 1 0\n"),
    ("proc/70/stat", "70 (nvidia-persiste) S 1 70 70 0\n"),
    ("proc/71/stat", "71 (python) Z 1 71 71 0\n"),
    ("proc/72/stat", "72 (slurmd) S 1 72 72 0\n"),
    ("proc/72/limits", "Limit  Soft Limit  Hard Limit  Units\nMax locked memory  8388608  8388608  bytes\n"),
    ("proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt\n"),
    ("proc/cpuinfo", "flags : fpu lm\n"),
    ("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n259 blkext\n"),
    ("proc/driver/nvidia/gpus/0000:1b:00.0/information", ""),
    (
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 13\n",
    ),
    ("proc/kallsyms", "ffffffff81000000 T _stext\nffffffffc0a01230 T ib_umem_dmabuf_get\t[ib_uverbs]\n"),
    ("proc/loadavg", "0.20 0.18 0.12 1/320 11206\n"),
    ("proc/meminfo", "MemTotal:       2113929216 kB\nMemFree: 1 kB\n"),
    (
        "proc/pressure/memory",
        "some avg10=9.00 avg60=9.00 avg300=9.00 total=9\nfull avg10=0.00 avg60=0.10 avg300=1.25 total=9\n",
    ),
    ("proc/self/mountinfo", "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"),
    (
        "proc/swaps",
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/swap.img file 2048 0 -2\n/dev/vdb partition 1024 0 -3\n",
    ),
    ("proc/sys/fs/file-nr", "960\t0\t9600\n"),
    ("proc/sys/kernel/numa_balancing", "0\n"),
    ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
    ("proc/sys/kernel/pid_max", "3200\n"),
    ("proc/sys/kernel/random/boot_id", "b-1\n"),
    ("proc/sys/kernel/tainted", "12288\n"),
    ("proc/sys/vm/swappiness", "10\n"),
    ("proc/uptime", "12345.67 1.0\n"),
    ("run/systemd/system/x", ""),
    ("sys/block/md0/md/degraded", "0\n"),
    ("sys/bus/pci/devices/0000:1b:00.0/class", "0x030200\n"),
    ("sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n"),
    ("sys/class/infiniband/mlx5_0/board_id", "MT_0000000838\n"),
    ("sys/class/infiniband/mlx5_0/fw_ver", "28.39.1002\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "1\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/counters/link_error_recovery", "0\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "2\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/phys_state", "5: LinkUp\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    ("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n"),
    ("dev/infiniband/uverbs0", ""),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0/current_link_speed", "32.0 GT/s PCIe\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0/current_link_width", "16\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0/max_link_speed", "32.0 GT/s PCIe\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0/max_link_width", "16\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0/class", "0x020700\n"),
    ("sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0/vendor", "0x15b3\n"),
    ("sys/class/net/eno1/device/vendor", "0x15b3\n"),
    ("sys/class/net/eno1/mtu", "9000\n"),
    ("sys/class/net/eno1/operstate", "up\n"),
    ("sys/class/net/eno1/speed", "25000\n"),
    ("sys/class/nvme/nvme0/transport", "tcp\n"),
    ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/online", "0-63,128-191\n"),
    ("sys/devices/system/edac/mc/mc0/ce_count", "3\n"),
    ("sys/devices/system/edac/mc/mc0/ue_count", "0\n"),
    ("sys/devices/system/edac/mc/mc1/ce_count", "4\n"),
    ("sys/devices/system/edac/mc/mc1/ue_count", "0\n"),
    ("sys/devices/system/node/online", "0-1\n"),
    ("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\u{6}\0\0\0\u{1}"),
    ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "4\n"),
    ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/module/ib_core/refcnt", "1\n"),
    ("sys/module/nvidia/version", "580.159.04\n"),
    ("sys/module/nvidia_drm/parameters/modeset", "Y\n"),
    ("var/lib/dpkg/status", ""),
];

const SYSTEMCTL: &str = "#!/bin/sh
case $1 in
is-system-running) echo degraded; exit 1 ;;
list-units) echo 'x.service loaded failed failed A thing' ;;
show) printf 'Id=nvidia-persistenced.service\\nLoadState=loaded\\nActiveState=inactive\\nUnitFileState=enabled\\n\\n'
    printf 'Id=nvidia-fabricmanager.service\\nLoadState=loaded\\nActiveState=failed\\n\\n'
    printf 'Id=nvidia-imex.service\\nLoadState=loaded\\nActiveState=active\\n\\n'
    printf 'Id=containerd.service\\nLoadState=loaded\\nActiveState=active\\n' ;;
esac
";

pub(super) fn node() -> Bench {
    let bench = Bench::new();
    for (path, text) in HEALTHY {
        bench.write(path, text);
    }
    fs::create_dir_all(bench.path("sys/fs/pstore")).unwrap();
    symlink("../../../0000:3b:00.0", bench.path("sys/class/infiniband/mlx5_0/device")).unwrap();
    symlink(
        "../../../devices/pci0000:00/0000:00:01.0/0000:3b:00.0",
        bench.path("sys/bus/pci/devices/0000:3b:00.0"),
    )
    .unwrap();
    bench.script("usr/bin/systemctl", SYSTEMCTL);
    bench.script("usr/bin/modinfo", "#!/bin/sh\necho 580.159.04\n");
    bench.script("usr/bin/nvidia-persistenced", "#!/bin/sh\n");
    bench.script("usr/bin/nvidia-imex-ctl", "#!/bin/sh\necho READY\n");
    bench
}

fn signals(bench: &Bench) -> Signals {
    let deadline = Deadline::after(Duration::from_secs(60));
    read(
        &Reader { roots: &bench.roots, deadline: &deadline },
        &Resets::new(),
        &Own::default(),
        GpuSignals::default,
    )
}

pub(super) fn get(bench: &Bench, name: &str) -> Signal {
    signals(bench).node.remove(name).unwrap()
}

#[track_caller]
pub(super) fn assert_unknown(bench: &Bench, name: &str) {
    assert!(matches!(get(bench, name), Signal::Unknown(_)), "{name}: {:?}", get(bench, name));
}

#[test]
fn a_healthy_node_tells_everything() {
    let mut read = signals(&node());
    assert_eq!((read.boot_id.as_deref(), read.uptime_s), (Some("b-1"), 12345));
    assert_eq!(read.records, []);
    let mark = read.node.remove("driver_load_start").unwrap();
    assert!(mark.known().is_some());
    assert_eq!(read.node.remove("driver_load_end"), Some(mark));
    // The clock is the machine's own, and so unknown below another root.
    assert!(matches!(read.node.remove("clock_unsync"), Some(Signal::Unknown(_))));
    let expected = r#"{
        "boot_id_start": "b-1", "boot_id_end": "b-1", "uptime_s": 12345,
        "kernel": "6.8.0-45-generic", "cmdline": "BOOT_IMAGE=/vmlinuz iommu=pt", "taint": 12288,
        "secure_boot": 1, "reboot_required": false, "cpus_online": 128, "memory_gib": 2016.0,
        "edac_ue": 0, "edac_ce": 7, "pstore_files": 0, "log_from": "complete", "records_dropped": 0, "nfs_hung_servers": 0,
        "system_state": "degraded", "failed_units": ["x.service"], "shutdown_scheduled": false,
        "docker_state": "absent", "containerd_state": "running", "crio_state": "absent", "runtime_state": "running",
        "pci_count": 1, "switches_present": false, "module_version": "580.159.04", "module_kind": "open",
        "installed_driver": "580.159.04", "nouveau_loaded": false, "nova_loaded": false, "peermem_loaded": false, "dmabuf_capable": true,
        "drm_modeset": true, "missing_device_nodes": 0, "wrong_major": null,
        "persistenced": "running", "persistenced_enabled": true, "fm_state": "failed", "fm_version": null,
        "imex_state": "READY", "mps_state": "absent", "dcgm_state": "absent",
        "zombies": 1, "gpu_dstate_count": 0, "gpu_zombie_count": 0, "gpu_stuck_processes": [],
        "gpu_stuck_mark": null,
        "memlock_limited": 1, "memlock_limits": ["slurmd=8192 KiB"], "pid_ratio": 0.1, "file_ratio": 0.1,
        "governor_bad": 0, "thp": "madvise", "hugepages_total": ["1048576kB=4"], "numa_nodes": 2,
        "numa_balancing": 0, "swap_kib": 3072, "swappiness": 10, "psi_memory_full_avg300": 1.25,
        "virtualization": "none", "vfio_count": 0, "acs_redirects": null, "relaxed_ordering_off": null,
        "ro_unexpected": 0, "md_degraded": 0, "nvme_count": 1,
        "nvme_critical": null, "nvme_spare_left": null, "nvme_used_percent": null, "nvme_media_errors": null,
        "nvme_drives": null, "nvme_unread": null,
        "rdma_devices": 1, "ib_up": 1, "ib_down": [], "missing_uverbs": 0,
        "eth_links": ["eno1:up", "eno1:speed=25000", "eno1:mtu=9000"],
        "kubelet_cgroup_driver": null, "kubelet_gpus": null, "runtime_cgroup_driver": null, "image_stores": null, "image_roots": null,
        "image_stores_slow": null, "image_stores_unfit": null, "image_stores_on_root": null, "image_used_ratio": null,
        "image_inode_used_ratio": null, "image_kubelet_used_ratio": null, "image_gc_ratio": null, "image_evict_ratio": null
    }"#;
    let expected: Readings = serde_json::from_str(expected).unwrap();
    assert_eq!(read.node, expected);
    assert_eq!(read.disks.len(), 1);
    assert_eq!((read.disks[0].id.as_str(), read.disks[0].label.as_str()), ("/", "/"));
    assert!(read.disks[0].readings.values().all(|signal| *signal != Signal::Absent));
    assert!(
        matches!(&read.disks[0].readings["disk_size_gib"], Signal::Known(size) if size.as_f64() > Some(0.0))
    );
}

#[test]
fn every_signal_stands_in_the_registry_and_is_read() {
    let read = signals(&node());
    for (name, scope) in [
        (Scope::Node, &read.node),
        (Scope::Disk, &read.disks[0].readings),
        (Scope::Port, &read.ports[0].readings),
    ]
    .into_iter()
    .flat_map(|(scope, readings)| readings.keys().map(move |name| (name, scope)))
    {
        assert!(SignalInfo::of(scope, name).is_some(), "{name} is not in the registry");
    }
    let of_node: BTreeSet<&str> = read.node.keys().map(String::as_str).collect();
    let of_disk: BTreeSet<&str> = read.disks[0].readings.keys().map(String::as_str).collect();
    let of_port: BTreeSet<&str> = read.ports[0].readings.keys().map(String::as_str).collect();
    // Without the second list, because NVML gives those.
    for info in SIGNALS[0].iter().chain(SIGNALS[2]) {
        let read = match info.scope {
            Scope::Port => of_port.contains(info.name),
            Scope::Node => of_node.contains(info.name),
            Scope::Disk => of_disk.contains(info.name),
            Scope::Gpu => continue,
        };
        assert!(read, "{} is not read", info.name);
    }
}

#[test]
fn a_node_that_tells_nothing_is_unknown_and_never_fine() {
    let bench = Bench::new();
    let read = signals(&bench);
    for (name, signal) in &read.node {
        let may = match name.as_str() {
            // What has no place of its own that could be missing.
            "log_from" => *signal == "none".into(),
            "records_dropped" => *signal == 0.into(),
            "shutdown_scheduled" => *signal == false.into(),
            _ => signal.known().is_none(),
        };
        assert!(may, "{name}: {signal:?}");
    }
    for name in ["pci_count", "nouveau_loaded", "zombies", "gpu_dstate_count", "mps_state", "fm_state"] {
        assert_unknown(&bench, name);
    }
    assert!(matches!(read.disks[0].readings["disk_used_ratio"], Signal::Unknown(_)));
    assert_eq!(read.boot_id, None);
}

#[test]
fn what_cannot_be_read_is_unknown() {
    let whole = signals(&node()).node;
    // A folder in the place of a file cannot be read as one, by root either.
    for (path, names) in [
        ("proc/sys/kernel/tainted", &["taint"][..]),
        ("proc/sys/kernel/osrelease", &["kernel"]),
        ("proc/kallsyms", &["dmabuf_capable"]),
        ("proc/cmdline", &["cmdline"]),
        ("proc/meminfo", &["memory_gib"]),
        ("proc/swaps", &["swap_kib"]),
        ("proc/loadavg", &["pid_ratio"]),
        ("proc/sys/fs/file-nr", &["file_ratio"]),
        ("proc/pressure/memory", &["psi_memory_full_avg300"]),
        (
            "proc/self/mountinfo",
            &[
                "ro_unexpected",
                "image_stores",
                "image_roots",
                "image_stores_slow",
                "image_stores_unfit",
                "image_stores_on_root",
                "image_used_ratio",
                "image_inode_used_ratio",
                "image_kubelet_used_ratio",
            ],
        ),
        ("proc/devices", &["wrong_major"]),
        ("proc/driver/nvidia/version", &["module_kind", "dmabuf_capable"]),
        ("sys/module/nvidia_drm/parameters/modeset", &["drm_modeset"]),
        ("sys/block/md0/md/degraded", &["md_degraded"]),
        ("sys/devices/system/edac/mc/mc1/ue_count", &["edac_ue"]),
        ("sys/devices/system/cpu/online", &["cpus_online"]),
        ("sys/devices/system/cpu/cpufreq/policy0/scaling_governor", &["governor_bad"]),
        ("sys/kernel/mm/transparent_hugepage/enabled", &["thp"]),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", &["hugepages_total"]),
        ("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", &["secure_boot"]),
        ("proc/72/limits", &["memlock_limited", "memlock_limits"]),
        (
            "sys/class/nvme/nvme0/transport",
            &[
                "nvme_critical",
                "nvme_spare_left",
                "nvme_used_percent",
                "nvme_media_errors",
                "nvme_drives",
                "nvme_unread",
            ],
        ),
        ("sys/class/infiniband_verbs/uverbs0/ibdev", &["missing_uverbs"]),
        ("sys/class/net/eno1/mtu", &["eth_links"]),
    ] {
        let bench = node();
        fs::remove_file(bench.path(path)).unwrap();
        fs::create_dir(bench.path(path)).unwrap();
        let read = signals(&bench).node;
        for (name, signal) in &read {
            if names.contains(&name.as_str()) {
                assert!(matches!(signal, Signal::Unknown(_)), "{path}: {name}: {signal:?}");
            } else if !name.starts_with("driver_load") {
                assert_eq!(signal, &whole[name], "{path}: {name}");
            }
        }
    }
}

#[test]
fn a_hostile_file_is_bounded() {
    for bad in ["/dev/zero", "/dev/urandom", "loop", "pipe"] {
        let bench = node();
        for path in
            ["proc/sys/kernel/tainted", "proc/meminfo", "proc/cmdline", "proc/self/mountinfo", "etc/fstab"]
        {
            let path = bench.path(path);
            fs::remove_file(&path).unwrap();
            match bad {
                "pipe" => {
                    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
                    assert!(made.success());
                }
                "loop" => symlink(&path, &path).unwrap(),
                target => symlink(target, &path).unwrap(),
            }
        }
        let read = signals(&bench).node;
        for name in ["taint", "memory_gib", "cmdline"] {
            assert!(matches!(read[name], Signal::Unknown(_)), "{bad}: {name}: {:?}", read[name]);
        }
    }
}

#[test]
fn a_driver_that_is_not_loaded_is_absent() {
    let bench = node();
    fs::remove_dir_all(bench.path("sys/module/nvidia")).unwrap();
    fs::remove_dir_all(bench.path("proc/driver")).unwrap();
    let read = signals(&bench).node;
    for name in ["module_version", "module_kind", "dmabuf_capable", "missing_device_nodes", "driver_load_end"]
    {
        assert_eq!(read[name], Signal::Absent, "{name}");
    }
    assert_eq!(read["pci_count"], 1.into());
    assert_eq!(read["installed_driver"], "580.159.04".into(), "it would be loaded");
    bench.script(
        "usr/bin/modinfo",
        "#!/bin/sh\necho 'modinfo: ERROR: Module nvidia not found.' >&2; exit 1\n",
    );
    assert_eq!(get(&bench, "installed_driver"), Signal::Absent);
    bench.script("usr/bin/modinfo", "#!/bin/sh\necho broken >&2; exit 1\n");
    assert_unknown(&bench, "installed_driver");
    fs::create_dir_all(bench.path("sys/module/nvidia")).unwrap();
    assert_unknown(&bench, "module_version");
}

#[test]
fn device_files_that_lack_or_are_of_another_boot_are_counted() {
    let bench = node();
    fs::remove_file(bench.path("dev/nvidia0")).unwrap();
    bench.write("sys/module/nvidia_uvm/x", "");
    assert_eq!(get(&bench, "missing_device_nodes"), 2.into());
    bench.write("proc/devices", "Character devices:\n195 nvidia-frontend\n511 nvidia-uvm\n");
    assert_eq!(get(&bench, "wrong_major"), 1.into(), "a file is no device");
    fs::remove_file(bench.path("dev/nvidiactl")).unwrap();
    assert_eq!(get(&bench, "wrong_major"), 0.into());
}

#[test]
fn the_modules_sort_is_in_its_version_line_only() {
    let bench = node();
    let text =
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\nGCC version: Open Kernel Module\n";
    bench.write("proc/driver/nvidia/version", text);
    let read = signals(&bench).node;
    assert_eq!((&read["module_kind"], &read["dmabuf_capable"]), (&"proprietary".into(), &false.into()));
    fs::remove_file(bench.path("sys/module/nvidia/version")).unwrap();
    assert_eq!(get(&bench, "module_version"), "550.54.15".into());
}

#[test]
fn whether_dma_buf_is_taken_is_asked_of_the_kernels_symbols() {
    let bench = node();
    bench.write("proc/sys/kernel/osrelease", "4.18.0-553.el8.x86_64\n");
    assert_eq!(get(&bench, "dmabuf_capable"), true.into(), "by a newer RDMA core");
    bench.write("proc/kallsyms", "ffffffff81000000 T _stext\n");
    assert_eq!(get(&bench, "dmabuf_capable"), false.into());
    fs::remove_file(bench.path("proc/kallsyms")).unwrap();
    assert_unknown(&bench, "dmabuf_capable");
    fs::remove_dir_all(bench.path("sys/module/ib_core")).unwrap();
    assert_eq!(get(&bench, "dmabuf_capable"), false.into());
}

#[test]
fn services_are_known_by_unit_or_process() {
    let bench = node();
    bench.write("dev/nvidia-nvswitch0", "");
    bench.write("proc/80/stat", "80 (nv-fabricmanage) S 1 80 80 0\n");
    bench.write("proc/81/stat", "81 (nvidia-cuda-mps) S 1 80 80 0\n");
    bench.script("usr/bin/nv-fabricmanager", "#!/bin/sh\necho 'Fabric Manager version is : 580.159.04'\n");
    let read = signals(&bench).node;
    assert_eq!(read["switches_present"], true.into());
    assert_eq!((&read["fm_state"], &read["fm_version"]), (&"running".into(), &"580.159.04".into()));
    assert_eq!(read["mps_state"], "running".into());
    let looping = SYSTEMCTL.replace("ActiveState=active", "ActiveState=activating\\nSubState=auto-restart");
    bench.script("usr/bin/systemctl", &looping);
    assert_eq!(get(&bench, "containerd_state"), "failed".into(), "it fails again and again");
    bench.script("usr/bin/systemctl", "#!/bin/sh\nexit 1\n");
    let read = signals(&bench).node;
    assert_eq!(read["fm_state"], "running".into(), "by its process");
    for name in [
        "containerd_state",
        "runtime_state",
        "persistenced_enabled",
        "system_state",
        "failed_units",
        "imex_state",
    ] {
        assert!(matches!(read[name], Signal::Unknown(_)), "{name}: {:?}", read[name]);
    }
    fs::remove_dir_all(bench.path("run/systemd")).unwrap();
    let read = signals(&bench).node;
    for name in ["persistenced_enabled", "system_state", "failed_units", "imex_state"] {
        assert_eq!(read[name], Signal::Absent, "{name}");
    }
    assert_eq!(read["containerd_state"], "absent".into());
}

#[test]
fn a_persons_process_is_no_service_whatever_its_name() {
    let bench = node();
    fs::remove_dir_all(bench.path("run/systemd")).unwrap();
    bench.write("proc/80/stat", "80 (nv-fabricmanage) S 1 80 80 0\n");
    assert_eq!(get(&bench, "fm_state"), "running".into());
    std::os::unix::fs::chown(bench.path("proc/80"), Some(4711), None).unwrap();
    assert_eq!(get(&bench, "fm_state"), "absent".into());
}

#[test]
fn a_pipe_without_its_daemon_is_stale() {
    let bench = node();
    bench.write("tmp/nvidia-mps/control", "");
    assert_eq!(get(&bench, "mps_state"), "stale_pipe".into());
}

#[test]
fn a_process_that_no_signal_ends_counts_if_it_holds_the_driver() {
    let bench = node();
    let process = |pid: u32, state: char, device: Option<&str>| {
        bench.write(&format!("proc/{pid}/stat"), &format!("{pid} (py) thon) {state} 1 1 1 0\n"));
        fs::create_dir_all(bench.path(&format!("proc/{pid}/fd"))).unwrap();
        if let Some(device) = device {
            symlink(device, bench.path(&format!("proc/{pid}/fd/3"))).unwrap();
        }
    };
    process(90, 'D', Some("/dev/nvidia0"));
    process(91, 'D', Some("/dev/null"));
    process(92, 'S', Some("/dev/nvidia0"));
    bench.write("proc/93/stat", "93 (nvidia-modeset/) D 2 0 0 0\n");
    process(94, 'Z', None);
    fs::create_dir_all(bench.path("proc/94/task/95/fd")).unwrap();
    symlink("/dev/nvidiactl", bench.path("proc/94/task/95/fd/4")).unwrap();
    let read = signals(&bench).node;
    assert_eq!(read["gpu_dstate_count"], 2.into());
    assert_eq!((&read["gpu_zombie_count"], &read["zombies"]), (&1.into(), &2.into()));
    fs::remove_dir_all(bench.path("proc/1")).unwrap();
    for name in ["gpu_dstate_count", "gpu_zombie_count", "zombies", "mps_state"] {
        assert_unknown(&bench, name);
    }
}

#[test]
fn a_disk_that_the_kernel_made_read_only_is_told_from_one_that_should_be() {
    let count = |lines: &[&str]| {
        let bench = node();
        bench.write("proc/self/mountinfo", &lines.join("\n"));
        get(&bench, "ro_unexpected")
    };
    for (line, expected) in [
        ("22 1 8:1 / / rw,relatime - ext4 /dev/vda1 ro", 1),
        ("22 1 8:1 / / ro,relatime - ext4 /dev/vda1 ro", 1),
        ("22 1 8:2 / /usr ro,relatime - ext4 /dev/vda2 ro", 0),
        ("22 1 8:2 / /usr ro,relatime - ext4 /dev/vda2 rw", 0),
        ("22 1 7:0 / /snap/core/1 rw - squashfs /dev/loop0 ro", 0),
        ("22 1 0:40 / /mnt rw - nfs4 nas:/x ro", 0),
    ] {
        assert_eq!(count(&[line]), expected.into(), "{line}");
    }
    let twice = ["22 1 8:1 / / rw - xfs /dev/vda1 ro", "23 22 8:1 /x /data rw - xfs /dev/vda1 ro"];
    assert_eq!(count(&twice), 1.into(), "one file system");
}

#[test]
fn a_server_that_may_be_gone_is_not_asked() {
    let bench = node();
    bench.write(
        "proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/vda1 rw\n23 22 0:40 / /var rw - nfs4 nas:/var rw\n\
         24 23 8:2 / /var/lib/docker rw - ext4 /dev/vda2 rw\n25 22 0:41 / /tmp rw - fuse.mergerfs /a:/b rw\n",
    );
    let disks = signals(&bench).disks;
    let told: Vec<(&str, bool)> = disks
        .iter()
        .map(|disk| (disk.id.as_str(), disk.readings["disk_used_ratio"].known().is_some()))
        .collect();
    assert_eq!(told, [("/", true), ("/var", false), ("/tmp", false), ("/var/lib/docker", false)]);
    let Signal::Unknown(why) = &disks[3].readings["inode_used_ratio"] else { panic!() };
    assert_eq!(why, "/var is a nfs4 and may not answer");
}

#[test]
fn settings_of_cpus_and_firmware_have_all_their_values() {
    let bench = node();
    let policy = "sys/devices/system/cpu/cpufreq/policy0";
    bench.write(&format!("{policy}/scaling_governor"), "powersave\n");
    bench.write(&format!("{policy}/affected_cpus"), "0 1\n");
    assert_eq!(get(&bench, "governor_bad"), 2.into());
    bench.write(&format!("{policy}/energy_performance_preference"), "performance\n");
    assert_eq!(get(&bench, "governor_bad"), 0.into());
    fs::remove_dir_all(bench.path("sys/devices/system/cpu/cpufreq")).unwrap();
    fs::remove_dir_all(bench.path("sys/firmware/efi/efivars")).unwrap();
    assert_eq!(get(&bench, "governor_bad"), Signal::Absent);
    assert_unknown(&bench, "secure_boot");
    fs::remove_dir_all(bench.path("sys/firmware")).unwrap();
    assert_eq!(get(&bench, "secure_boot"), Signal::Absent);
    bench.write("run/reboot-required", "");
    assert_eq!(get(&bench, "reboot_required"), true.into());
}

#[test]
fn records_of_the_log_come_with_the_signals() {
    let bench = node();
    let line = "4,9,9,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n";
    bench.write("dev/kmsg", &format!("4,0,0,-;Linux version 6.8\n{line}"));
    let read = signals(&bench);
    let told: Vec<_> = read.records.iter().map(|record| (record.code, record.pci.as_deref())).collect();
    assert_eq!(told, [(Some(79), Some("0000:1b:00.0"))]);
    bench.write("dev/kmsg", line);
    assert_eq!(get(&bench, "log_from"), "partial".into());
}

fn port<'a>(read: &'a Signals, id: &str) -> &'a Readings {
    &read.ports.iter().find(|port| port.id == id).unwrap_or_else(|| panic!("{id}: {:?}", read.ports)).readings
}

#[test]
fn a_port_tells_its_link_its_errors_and_its_card() {
    let read = signals(&node());
    let expected = r#"{
        "ib_state": "ACTIVE", "ib_phys_state": "LinkUp", "ib_rate_gbps": 400.0, "ib_layer": "InfiniBand",
        "link_downed": 1, "ib_symbol_error": 2, "ib_link_error_recovery": 0, "nic_width": 16, "nic_width_max": 16,
        "nic_speed": 32.0, "nic_speed_max": 32.0, "nic_fw": "28.39.1002", "nic_board": "MT_0000000838"
    }"#;
    assert_eq!(*port(&read, "mlx5_0/1"), serde_json::from_str::<Readings>(expected).unwrap());
    assert_eq!((read.ports.len(), read.ports[0].label.as_str()), (1, "mlx5_0/1"));
}

/// Adds a card with one port.
fn card(bench: &Bench, name: &str, address: &str, state: &str) {
    let folder = format!("sys/class/infiniband/{name}");
    bench.write(&format!("{folder}/ports/1/state"), state);
    bench.write(&format!("{folder}/ports/1/phys_state"), "3: Polling\n");
    symlink(format!("../../../{address}"), bench.path(&format!("{folder}/device"))).unwrap();
    bench.write(&format!("sys/bus/pci/devices/{address}/vendor"), "0x15b3\n");
}

#[test]
fn ports_without_a_link_are_counted_apart_and_virtual_ones_not_at_all() {
    let bench = node();
    card(&bench, "mlx5_10", "0000:5b:00.0", "1: DOWN\n");
    card(&bench, "mlx5_9", "0000:5a:00.1", "4: ACTIVE\n");
    // A virtual function, and a device of software.
    card(&bench, "mlx5_2", "0000:3b:00.2", "1: DOWN\n");
    bench.write("sys/bus/pci/devices/0000:3b:00.2/physfn/vendor", "");
    bench.write("sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n");
    let read = signals(&bench);
    let ids: Vec<&str> = read.ports.iter().map(|port| port.id.as_str()).collect();
    assert_eq!(ids, ["mlx5_0/1", "mlx5_9/1", "mlx5_10/1"]);
    assert_eq!((&read.node["rdma_devices"], &read.node["ib_up"]), (&3.into(), &1.into()));
    assert_eq!(read.node["ib_down"], vec!["mlx5_9/1: ACTIVE, Polling", "mlx5_10/1: DOWN, Polling"].into());
    assert_eq!(read.node["missing_uverbs"], 2.into(), "two cards have no file for verbs");
    for name in ["link_downed", "nic_width", "nic_fw", "ib_rate_gbps"] {
        assert_eq!(port(&read, "mlx5_10/1")[name], Signal::Absent, "{name}");
    }
}

#[test]
fn a_node_without_such_cards_has_none_and_one_that_hides_them_is_unknown() {
    let bench = node();
    fs::remove_dir_all(bench.path("sys/class/infiniband")).unwrap();
    let read = signals(&bench);
    assert_eq!(read.ports, []);
    assert_eq!((&read.node["rdma_devices"], &read.node["ib_up"]), (&0.into(), &0.into()));
    assert_eq!(read.node["missing_uverbs"], Signal::Absent);
    let bench = node();
    fs::remove_dir_all(bench.path("sys/class/infiniband/mlx5_0/ports")).unwrap();
    symlink("ports", bench.path("sys/class/infiniband/mlx5_0/ports")).unwrap();
    for name in ["rdma_devices", "ib_up", "ib_down", "missing_uverbs"] {
        assert_unknown(&bench, name);
    }
}

#[test]
fn a_port_of_ethernet_counts_by_its_interface() {
    let bench = node();
    let folder = "sys/class/infiniband/mlx5_0/ports/1";
    bench.write(&format!("{folder}/link_layer"), "Ethernet\n");
    let read = signals(&bench);
    assert_eq!(port(&read, "mlx5_0/1")["link_downed"], Signal::Absent, "it has no interface");
    assert_eq!(port(&read, "mlx5_0/1")["ib_symbol_error"], Signal::Absent);
    fs::remove_file(bench.path("sys/class/infiniband/mlx5_0/device")).unwrap();
    symlink("../../../bus/pci/devices/0000:3b:00.0", bench.path("sys/class/infiniband/mlx5_0/device"))
        .unwrap();
    bench.write("sys/devices/pci0000:00/0000:00:01.0/0000:3b:00.0/net/ens1/mtu", "9000\n");
    bench.write("sys/class/net/ens1/carrier_down_count", "7\n");
    assert_eq!(port(&signals(&bench), "mlx5_0/1")["link_downed"], 7.into());
    bench.write(&format!("{folder}/link_layer"), "InfiniBand\n");
    bench.write(&format!("{folder}/counters/link_downed"), "N/A (no PMA)\n");
    bench.write(&format!("{folder}/counters/symbol_error"), "-1\n");
    let read = signals(&bench);
    assert_eq!(port(&read, "mlx5_0/1")["link_downed"], Signal::Absent);
    assert!(matches!(port(&read, "mlx5_0/1")["ib_symbol_error"], Signal::Unknown(_)));
}

#[test]
fn a_card_in_a_smaller_slot_is_measured_by_both() {
    let bench = node();
    bench.write("sys/bus/pci/devices/0000:00:01.0/max_link_width", "8\n");
    bench.write("sys/bus/pci/devices/0000:00:01.0/max_link_speed", "16.0 GT/s PCIe\n");
    let read = signals(&bench);
    let port = port(&read, "mlx5_0/1");
    assert_eq!((&port["nic_width_max"], &port["nic_speed_max"]), (&8.into(), &16.0.into()));
    assert_eq!((&port["nic_width"], &port["nic_speed"]), (&16.into(), &32.0.into()));
}

#[test]
fn only_interfaces_of_cards_and_bonds_are_told() {
    let bench = node();
    bench.write("sys/class/net/lo/mtu", "65536\n");
    bench.write("sys/class/net/veth1/operstate", "up\n");
    bench.write("sys/class/net/eno2/device/vendor", "0x15b3\n");
    bench.write("sys/class/net/eno2/operstate", "down\n");
    bench.write("sys/class/net/eno2/mtu", "1500\n");
    bench.write("sys/class/net/ens3v0/device/physfn/vendor", "");
    bench.write("sys/class/net/bond0/bonding/mode", "802.3ad 4\n");
    bench.write("sys/class/net/bond0/operstate", "up\n");
    bench.write("sys/class/net/bond0/speed", "-1\n");
    bench.write("sys/class/net/bond0/mtu", "9000\n");
    let links =
        vec!["eno1:up", "eno1:speed=25000", "eno1:mtu=9000", "eno2:mtu=1500", "bond0:up", "bond0:mtu=9000"];
    assert_eq!(get(&bench, "eth_links"), links.into());
}

#[test]
fn a_drive_that_cannot_be_asked_is_unknown() {
    let bench = node();
    bench.write("sys/class/nvme/nvme0/transport", "pcie\n");
    assert_unknown(&bench, "nvme_critical");
    bench.write("dev/nvme0", "");
    let Signal::Unknown(why) = get(&bench, "nvme_media_errors") else { panic!() };
    assert_eq!(why, "/dev/nvme0: it is no device");
}

#[test]
fn a_process_that_waits_has_a_mark_and_one_that_hides_it_is_unknown() {
    let bench = node();
    let stat = |started| format!("90 (nvidia-smi) D 1 90 90 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 {started} 0\n");
    bench.write("proc/90/stat", &stat(500));
    bench.write("proc/90/status", "voluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n");
    assert_eq!(get(&bench, "gpu_stuck_mark"), 542.into());
    bench.write("proc/90/status", "State:\tD\n");
    assert_unknown(&bench, "gpu_stuck_mark");
    fs::remove_file(bench.path("proc/90/status")).unwrap();
    assert_eq!(get(&bench, "gpu_stuck_mark"), Signal::Absent, "it has ended");
}

#[test]
fn secrets_of_the_kernels_command_line_are_not_told() {
    let bench = node();
    bench.write(
        "proc/cmdline",
        "iommu=pt rd.iscsi.password=a,b ip=\"x y\" my_token=\"c d e\" url=http://me:f@10.0.0.1/ks quiet \"key=g h\" end\n",
    );
    let shown = "iommu=pt rd.iscsi.password=******** ip=\"x y\" my_token=******** url=http://******** quiet \"key=******** end";
    assert_eq!(get(&bench, "cmdline"), shown.into());
}

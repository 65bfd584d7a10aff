//! A fault for each check of the catalogue, on real helpers: it is found where it was planted, every other GPU and node
//! stays silent, and a node without a fault has no finding of any check.

#[path = "audit_faults/containers.rs"]
mod containers;

use std::{
    cell::Cell,
    collections::BTreeSet,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use gpufleet_compliance::{Catalogue, Scope};
use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};
use serde_json::Value;
use sqlx::{ConnectOptions as _, Connection as _, sqlite::SqliteConnectOptions};

/// Nodes that have a fault each at once. One more is well.
const AT_ONCE: usize = 12;
/// The disk that faults of disks fill.
const DISK: &str = "/var/lib/docker";
/// The RDMA port that each node has.
const PORT: &str = "mlx5_0/1";

/// What a real node has and a lab node does not, and settings that the checks want.
const PREPARE: &str = "set -e
cd /sys
mkdir -p block class/nvme/nvme0 fs/pstore devices/system/edac/mc/mc0
mkdir -p kernel/mm/hugepages/hugepages-2048kB
echo 0 | tee devices/system/edac/mc/mc0/ce_count > devices/system/edac/mc/mc0/ue_count
for policy in devices/system/cpu/cpufreq/policy*; do echo performance > $policy/scaling_governor; done
echo 512 > kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
echo 0-1 | tee devices/system/cpu/online > devices/system/node/online
for gpu in bus/pci/devices/*; do echo 0 > $gpu/numa_node; done
echo 0 > /proc/sys/kernel/tainted
echo 0 > /proc/sys/kernel/numa_balancing
echo 10 > /proc/sys/vm/swappiness
echo '100000.00 1.00' > /run/uptime
mount --bind /run/uptime /proc/uptime
printf '#!/bin/sh\\necho READY\\n' > /usr/bin/nvidia-imex-ctl
chmod 755 /usr/bin/nvidia-imex-ctl
printf '[Service]\\nExecStart=/bin/sleep infinity\\n' > /etc/systemd/system/nvidia-imex.service
systemctl start nvidia-imex nvidia-dcgm
systemctl enable --now nvidia-persistenced
echo tcp > class/nvme/nvme0/transport
nic=bus/pci/devices/0000:e8:00.0 ib=class/infiniband/mlx5_0 port=class/infiniband/mlx5_0/ports/1
mkdir -p module/ib_core $nic $port/counters class/infiniband_verbs/uverbs0 class/net/eno1/device /dev/infiniband
ln -sfn ../../../0000:e8:00.0 $ib/device
echo 16 | tee $nic/current_link_width > $nic/max_link_width
echo '32.0 GT/s PCIe' | tee $nic/current_link_speed > $nic/max_link_speed
echo 28.39.1002 > $ib/fw_ver
echo MT_0000000838 > $ib/board_id
echo '4: ACTIVE' > $port/state
echo '5: LinkUp' > $port/phys_state
echo '400 Gb/sec (4X NDR)' > $port/rate
echo InfiniBand > $port/link_layer
echo 0 | tee $port/counters/link_downed $port/counters/link_error_recovery > $port/counters/symbol_error
echo mlx5_0 > class/infiniband_verbs/uverbs0/ibdev
touch /dev/infiniband/uverbs0
echo up > class/net/eno1/operstate
echo 25000 > class/net/eno1/speed
echo 9000 > class/net/eno1/mtu
echo 'quiet iommu=pt' > /run/cmdline
mount --bind /run/cmdline /proc/cmdline
echo 'ffffffffc0a01230 T ib_umem_dmabuf_get' > /run/kallsyms
mount --bind /run/kallsyms /proc/kallsyms
printf '[Service]\\nExecStart=/bin/sleep infinity\\n' > /etc/systemd/system/containerd.service
systemctl start containerd slurmd
timeout 10 sh -c 'until grep -qx slurmd /proc/[0-9]*/comm; do sleep 0.05; done'
echo 'Max locked memory  unlimited  unlimited  bytes' > /run/limits
for comm in $(grep -lxE 'slurmd|containerd' /proc/[0-9]*/comm); do mount --bind /run/limits ${comm%comm}limits; done
";

/// The site's baseline: every check, and every value that a check can be told.
const BASELINE: &str = "
checks: ['*']
params:
  audit.cost: {cpu_ms: 60000}
  proc.pids: {pids: 0.9, files: 0.9}
declared:
  accounting: 0
  cmdline: [iommu=pt]
  compute_mode: 0
  cuda: 13000
  dcgm: true
  driver_version: 580.159.04
  ecc: 1
  eth: ['eno1:up', 'eno1:speed=25000', 'eno1:mtu=9000']
  gpu_count: 2
  gpudirect: true
  gsp: 1
  hugepages: [2048kB=512]
  ib_layer: InfiniBand
  ib_ports: 1
  ib_rate: 400
  image_roots: [/var/lib/docker]
  imex: true
  memlock: unlimited
  mig: 0
  module_kind: open
  mps: false
  nic_fw: ['28.39.1002']
  numa_balancing: 0
  nvme: 1
  persistence: daemon
  profile: benchmark
  power_w: 700
  runtime: containerd
  swap: false
  swappiness: 10
  thp: [madvise]
";

struct Ward {
    fleet: Fleet,
    home: Home,
    nodes: Vec<String>,
    audits: Cell<u32>,
}

impl Ward {
    fn new(model: &'static str, more: &str) -> Self {
        let nodes = AT_ONCE + 1;
        Self::of(&FleetOptions { nodes, gpus: model, ..FleetOptions::default() }, more)
    }

    fn of(options: &FleetOptions, more: &str) -> Self {
        let fleet = Fleet::start(options);
        let nodes = (1..=options.nodes).map(|at| format!("gpu{at:03}")).collect();
        let ward = Self { fleet, home: Home::new(), nodes, audits: Cell::new(0) };
        ward.home.write("site.yaml", &format!("{BASELINE}{more}"));
        ward.prepare();
        ward
    }

    /// Runs one command on each node, at the same time.
    fn each<'a>(&self, commands: impl Iterator<Item = (&'a String, &'a str)>) {
        let fleet = &self.fleet;
        thread::scope(|scope| {
            for (node, command) in commands {
                scope.spawn(move || fleet.read(node, command));
            }
        });
    }

    /// Runs the commands of a fault on one node.
    fn plant(&self, node: usize, commands: &str) {
        self.fleet.read(&self.nodes[node], &format!("{WORDS}{commands}"));
    }

    fn prepare(&self) {
        self.each(self.nodes.iter().map(|node| (node, PREPARE)));
    }

    /// Reboots a node, which comes back as prepared.
    fn reboot(&self, node: &String) {
        let before = self.fleet.boots(node);
        // Ignored, because the connection may end before the command does.
        let _ = self.fleet.ssh(node, "reboot");
        let limit = Instant::now() + Duration::from_secs(60);
        while self.fleet.boots(node) == before {
            assert!(Instant::now() < limit, "{node} does not reboot");
            thread::sleep(Duration::from_millis(50));
        }
        self.fleet.await_answer(node);
        self.fleet.read(node, PREPARE);
    }

    /// Ends all faults.
    fn restore(&self) {
        self.fleet.restore().unwrap();
        self.prepare();
    }

    /// An audit that no other one came before.
    fn audit(&self) -> Finished {
        self.audits.set(self.audits.get() + 1);
        self.audit_into(&format!("history-{}.db", self.audits.get()))
    }

    fn audit_into(&self, store: &str) -> Finished {
        let (inventory, store) = (self.fleet.inventory(), format!("sqlite:{store}"));
        let words = ["audit", "-i", &inventory, "--baseline", "site.yaml", "--deep", "--format", "json"];
        self.home.gpufleet(words).args(["--store", &store]).run()
    }
}

/// What an audit found on a node: check, subject, verdict and action.
fn found(done: &Finished, node: &str) -> BTreeSet<[String; 4]> {
    let document = done.document();
    let findings = document.node(node)["findings"].as_array().cloned().unwrap_or_default();
    let each = |finding: &Value| {
        ["control", "subject", "verdict", "next_action"]
            .map(|key| finding[key].as_str().unwrap_or_default().to_owned())
    };
    // The clock is that of the machine that all nodes of a lab share.
    findings.iter().map(each).filter(|[check, ..]| check != "os.clock_sync").collect()
}

/// A fault: its check, verdict and action, and the commands that make it on a node. That of a GPU is on GPU 1.
type Fault = (&'static str, &'static str, &'static str, &'static str);

/// The check, what is told of whom.
fn wanted((check, verdict, action, _): &Fault) -> [String; 4] {
    let known = Catalogue::get().checks().iter().find(|known| &*known.id == *check);
    let subject = match known.unwrap_or_else(|| panic!("no check {check}")).scope {
        Scope::Node => "",
        Scope::Gpu => "GPU 1",
        Scope::Disk => DISK,
        Scope::Port => PORT,
    };
    [check, subject, verdict, action].map(|text| (*text).to_owned())
}

const FAULTS: &[Fault] = &[
    ("inv.gpu_lost", "fail", "reboot", "one lost on"),
    ("inv.model_uniform", "warn", "investigate", "one name 'NVIDIA H100 PCIe'"),
    ("inv.excluded_gpu", "warn", "investigate", "gpusimctl machine excluded_gpus 1"),
    ("inv.memory_size", "warn", "investigate", "one memory_total_mib 40960"),
    ("err.recovery_action", "fail", "drain", "one recovery_action 3"),
    ("err.xid_reset", "fail", "reset", "gpusimctl xid 1 119"),
    ("err.xid_reboot", "fail", "reboot", "gpusimctl xid 1 79"),
    ("err.xid_memory", "warn", "none", "gpusimctl xid 1 63"),
    ("err.xid_nvlink5", "fail", "reset", "gpusimctl xid 1 145; one recovery_action 1"),
    ("err.xid_other", "fail", "investigate", "gpusimctl xid 1 54"),
    (
        "err.sxid",
        "fail",
        "reboot",
        "touch /dev/nvidia-nvswitch0
        log 'nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error'",
    ),
    (
        "err.nvml_responsive",
        "unknown",
        "reboot",
        "gpusimctl fault add '{function: nvmlInit_v2, effect: hang}'",
    ),
    ("err.log_complete", "warn", "apply", "log later; sed -i 1d /dev/kmsg"),
    (
        "err.nvrm_assert",
        "fail",
        "reboot",
        "log 'NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x0:1860)'",
    ),
    ("mem.ecc_mode", "drift", "apply", "one ecc_pending off"),
    ("mem.uncorrected_volatile", "warn", "reset", "one volatile_uncorrectable 1"),
    ("mem.corrected_rate", "warn", "investigate", "one volatile_correctable 30000000"),
    ("mem.remap_pending", "drift", "reset", "one remap_pending on"),
    ("mem.remap_failed", "fail", "replace", "one remap_failed on"),
    ("mem.class", "fail", "replace", "one remap_failed on"),
    ("mem.remap_budget", "warn", "investigate", "one banks_none 1"),
    ("mem.remap_budget", "warn", "none", "one banks_low 1"),
    (
        "mem.retired_pages",
        "fail",
        "replace",
        "one retired_single 64; one retired_double 0; one retired_pending 0",
    ),
    ("mem.sram_threshold", "fail", "replace", "one sram_threshold on"),
    ("mem.sram_uncorrected", "fail", "reset", "one sram_uncorrected 1"),
    ("mem.repair_pending", "drift", "reset", "one repair_channel on"),
    ("mem.repair_pending", "drift", "reset", "one repair_tpc on"),
    ("mem.unrepairable", "fail", "replace", "one unrepairable on"),
    ("pcie.width", "fail", "investigate", "one pcie_width 8"),
    ("pcie.generation", "fail", "investigate", "one pcie_generation 3; works"),
    ("thermal.margin", "warn", "none", "one margin_c 1"),
    ("thermal.memory", "fail", "investigate", "one memory_temperature_c 120"),
    ("thermal.hw_slowdown", "warn", "investigate", "one event_reasons 8"),
    ("thermal.sw_slowdown", "warn", "none", "one event_reasons 32; one margin_c 1"),
    (
        "thermal.fan",
        "fail",
        "replace",
        "one fans 1; one fan_percent 0; one fan_target 0; one temperature_c 90",
    ),
    ("power.limit", "drift", "apply", "one power_limit_mw 500000"),
    ("power.enforced", "warn", "investigate", "one power_enforced_mw 300000"),
    ("power.brake", "warn", "investigate", "one event_reasons 128"),
    ("power.draw", "warn", "investigate", "one power_draw_mw 1000000"),
    ("power.module", "warn", "investigate", "one module_draw_mw 1500000; one module_limit_mw 1000000"),
    ("clock.locked", "warn", "investigate", "one event_reasons 2"),
    ("clock.memory", "warn", "investigate", "one memory_mhz 1593; works"),
    ("clock.pstate", "warn", "investigate", "one performance_state 5; works"),
    ("cfg.persistence", "drift", "apply", "one persistence off"),
    ("cfg.mig_mode", "drift", "apply", "one mig_current on; one mig_pending on"),
    ("cfg.mig_mode", "drift", "apply", "one mig_pending on"),
    ("cfg.compute_mode", "drift", "apply", "one compute_mode 3"),
    ("cfg.mps", "drift", "apply", "mkdir -p /tmp/nvidia-mps; touch /tmp/nvidia-mps/control"),
    ("cfg.accounting", "drift", "apply", "one accounting on"),
    ("cfg.conf_compute", "fail", "apply", "gpusimctl machine confidential on"),
    ("cfg.drain_state", "drift", "apply", "one drain on"),
    (
        "sw.driver_loaded",
        "fail",
        "apply",
        "systemctl stop nvidia-dcgm nvidia-persistenced; rmmod nvidia_uvm nvidia_modeset nvidia",
    ),
    ("sw.module_match", "fail", "reboot", "gpusimctl machine library_version 580.200.01"),
    (
        "sw.driver_version",
        "drift",
        "apply",
        "gpusimctl machine library_version 570.86.15
        gpusimctl machine module_version 570.86.15; echo 570.86.15 > /sys/module/nvidia/version",
    ),
    ("sw.gsp", "fail", "reboot", "one gsp_version 1.2.3"),
    ("sw.gsp", "drift", "reboot", "one gsp_mode 0"),
    ("sw.vbios", "warn", "none", "one vbios 96.00.01.00.01"),
    ("sw.nouveau", "fail", "reboot", "mkdir /sys/module/nouveau"),
    (
        "sw.driver_pending",
        "warn",
        "reboot",
        "mkdir -p /lib/modules/$(uname -r)/updates
        echo version=580.200.01 > /lib/modules/$(uname -r)/updates/nvidia.ko",
    ),
    ("sw.inforom_valid", "fail", "replace", "one inforom_code 14"),
    ("sw.inforom", "warn", "none", "one inforom_version G520.0201.00.01"),
    (
        "sw.secure_boot",
        "fail",
        "apply",
        "systemctl stop nvidia-dcgm nvidia-persistenced; rmmod nvidia_uvm nvidia_modeset nvidia
        mkdir -p /sys/firmware/efi/efivars; cd /sys/firmware/efi/efivars
        printf '\\006\\000\\000\\000\\001' > SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c
        log 'nvidia: module verification failed: signature and/or required key missing'",
    ),
    (
        "sw.module_kind",
        "drift",
        "apply",
        "sed -i 's/Open Kernel Module/Kernel Module/' /proc/driver/nvidia/version",
    ),
    ("sw.device_nodes", "fail", "apply", "rm /dev/nvidia-uvm"),
    ("sw.persistenced", "drift", "apply", "systemctl disable nvidia-persistenced"),
    ("sw.dcgm", "drift", "apply", "systemctl stop nvidia-dcgm"),
    ("sw.cuda_compat", "fail", "apply", "gpusimctl machine cuda_version 12040"),
    ("proc.orphan_memory", "warn", "reset", "one held_mib 5000"),
    ("proc.pids", "warn", "investigate", "echo 1 > /proc/sys/kernel/pid_max"),
    ("nvl.imex", "fail", "apply", "systemctl stop nvidia-imex"),
    ("nvl.c2c", "fail", "reboot", "one c2c_enabled on; one c2c_links 10; one c2c_link_status 0"),
    (
        "os.systemd",
        "fail",
        "investigate",
        "mkdir -p /run/systemd/shutdown; touch /run/systemd/shutdown/scheduled",
    ),
    ("os.taint", "fail", "investigate", "echo 16 > /proc/sys/kernel/tainted"),
    ("os.mce", "fail", "replace", "log 'mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7'"),
    ("os.kernel_log", "fail", "reboot", "log 'BUG: unable to handle page fault for address: ffffa0'"),
    (
        "os.oom",
        "warn",
        "investigate",
        "log 'oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=train,pid=9,uid=0'",
    ),
    ("os.reboot_pending", "warn", "reboot", "touch /run/reboot-required"),
    ("os.kernel_version", "warn", "none", "echo 5.4.0-1 > /proc/sys/kernel/osrelease"),
    ("os.cpus", "warn", "investigate", "echo 0 > /sys/devices/system/cpu/online"),
    (
        "os.governor",
        "drift",
        "apply",
        "echo powersave > /sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
    ),
    (
        "os.thp",
        "drift",
        "apply",
        "echo '[always] madvise never' > /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    ("os.numa_balancing", "drift", "apply", "echo 1 > /proc/sys/kernel/numa_balancing"),
    ("os.swap", "drift", "apply", "echo 60 > /proc/sys/vm/swappiness"),
    (
        "os.numa_affinity",
        "warn",
        "investigate",
        "echo -1 > $(ls -d /sys/bus/pci/devices/* | sed -n 2p)/numa_node",
    ),
    (
        "os.pressure",
        "warn",
        "investigate",
        "put /proc/pressure/memory 'full avg10=0.00 avg60=0.00 avg300=60.00 total=7'",
    ),
    ("os.hugepages", "drift", "apply", "echo 0 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
    (
        "disk.space",
        "fail",
        "investigate",
        "mkdir -p /var/lib/docker; mount -t tmpfs -o size=1m lab /var/lib/docker
        head -c 1000000 /dev/zero > /var/lib/docker/full",
    ),
    ("disk.io_errors", "fail", "replace", "log 'nvme nvme3: Disabling device after reset failure: -19'"),
    ("disk.raid", "warn", "investigate", "mkdir -p /sys/block/md0/md; echo 1 > /sys/block/md0/md/degraded"),
    ("disk.count", "fail", "investigate", "rm -r /sys/class/nvme/nvme0"),
    ("disk.nfs", "warn", "investigate", "log 'nfs: server filer1 not responding, still trying'"),
    (
        "pcie.nic_width",
        "fail",
        "investigate",
        "echo 8 > /sys/bus/pci/devices/0000:e8:00.0/current_link_width",
    ),
    (
        "net.ib_ports",
        "fail",
        "investigate",
        "echo '1: DOWN' > $port/state; echo '3: Polling' > $port/phys_state",
    ),
    ("net.ib_ports", "fail", "investigate", "echo '200 Gb/sec (4X HDR)' > $port/rate"),
    ("net.nic_firmware", "drift", "investigate", "echo 20.35.1012 > /sys/class/infiniband/mlx5_0/fw_ver"),
    ("net.ib_devices", "fail", "reboot", "rm /dev/infiniband/uverbs0"),
    ("net.peermem", "drift", "apply", "echo 'ffffffff81000000 T _stext' > /run/kallsyms"),
    ("net.eth", "drift", "investigate", "echo 10000 > /sys/class/net/eno1/speed"),
    ("os.cmdline", "drift", "reboot", "put /proc/cmdline quiet"),
];

/// Those that an H100 without switches cannot have.
const OF_LINKS: &[Fault] = &[
    ("nvl.links", "fail", "reset", "one nvlinks_down 2"),
    ("nvl.speed", "fail", "investigate", "one nvlink_mbps 20000"),
    ("nvl.fabric_state", "fail", "reset", "one fabric_status 1"),
    ("nvl.fabric_health", "fail", "drain", "one fabric_summary 2"),
    ("nvl.fabric_clique", "drift", "investigate", "one fabric_clique 7"),
    (
        "nvl.fabric_manager",
        "fail",
        "apply",
        "touch /dev/nvidia-nvswitch0; systemctl stop nvidia-fabricmanager",
    ),
    (
        "nvl.fm_version",
        "fail",
        "apply",
        "touch /dev/nvidia-nvswitch0
        mkdir -p /etc/gpufleet-lab; echo 570.86.15 > /etc/gpufleet-lab/fabric-manager-version",
    ),
];

/// Commands that faults are made of: the RDMA port, PCIe errors of GPU 1, a setting of it, a GPU at work, a line of the
/// kernel's log, a file of `/proc`.
const WORDS: &str = "port=/sys/class/infiniband/mlx5_0/ports/1
aer() { gpu=$(ls -d /sys/bus/pci/devices/* | sed -n 2p); echo \"DLP $1\" > $gpu/aer_dev_fatal
    echo 'CmpltTO 0' > $gpu/aer_dev_nonfatal; echo 'RxErr 14' > $gpu/aer_dev_correctable; }
one() { gpusimctl set 1 \"$@\"; }
works() { one utilization 95; one event_reasons 0; }
log() { echo \"3,$(wc -l < /dev/kmsg),100000000000,-;$1\" >> /dev/kmsg; }
put() { echo \"$2\" > /run/put; mount --bind /run/put \"$1\"; }
set -e
";

/// Faults that only a second audit sees: check, verdict and action, what is on all nodes before, and what makes the fault.
type Later = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// Between two audits.
const PAUSE_S: i64 = 3600;

// A rate counts in full after the second audit that sees it: until then it is a warning that asks for nothing.
const LATER: &[Later] = &[
    ("mem.uncorrected_aggregate", "warn", "none", "", "one aggregate_uncorrectable 1"),
    ("mem.remap_growth", "warn", "none", "", "one remapped_uncorrectable 1"),
    ("mem.corrected_rate", "warn", "none", "", "one volatile_correctable 40000000"),
    ("pcie.replay_rate", "warn", "none", "", "one pcie_replays 40000000"),
    ("pcie.recovery", "warn", "none", "", "one pcie_recoveries 40000000; works"),
    ("power.brake", "fail", "investigate", "", "one slowed_power_brake_ns 3000000000000"),
    ("power.cap_share", "warn", "apply", "", "one slowed_power_ns 3500000000000; one power_limit_mw 500000"),
    ("thermal.hw_slowdown", "fail", "investigate", "", "one slowed_hardware_thermal_ns 3000000000000"),
    ("thermal.sw_slowdown", "warn", "none", "", "one slowed_software_thermal_ns 3000000000000"),
    ("os.edac_ce", "warn", "investigate", "", "echo 90000 > /sys/devices/system/edac/mc/mc0/ce_count"),
    ("os.mce", "fail", "replace", "", "echo 1 > /sys/devices/system/edac/mc/mc0/ue_count"),
    ("pcie.aer", "fail", "investigate", "aer 3", "aer 4"),
    ("net.ib_flap", "warn", "none", "", "echo 1 > $port/counters/link_downed"),
    ("net.ib_flap", "fail", "investigate", "", "echo 5 > $port/counters/link_downed"),
    ("net.ib_errors", "warn", "none", "", "echo 90000 > $port/counters/symbol_error"),
];

/// Those of [`LATER`] that an H100 without links cannot have.
const LATER_OF_LINKS: &[Later] = &[("nvl.errors", "warn", "none", "", "one nvlink_replays 9")];

/// Plants faults by the dozen, and tells those that were not found, or not alone.
fn missed(ward: &Ward, faults: &[Fault]) -> Vec<String> {
    let mut missed = Vec::new();
    for batch in faults.chunks(AT_ONCE) {
        let plants: Vec<String> = batch.iter().map(|(.., plant)| format!("{WORDS}{plant}")).collect();
        let planted = &ward.nodes[1..];
        ward.each(planted.iter().zip(plants.iter().map(String::as_str)));
        let done = ward.audit();
        assert_eq!(found(&done, &ward.nodes[0]), BTreeSet::new(), "{done}");
        for (node, fault) in planted.iter().zip(batch) {
            let found = found(&done, node);
            // A log without its beginning says nothing about any GPU.
            let blinds = fault.0 == "err.log_complete";
            let elsewhere = found
                .iter()
                .any(|[_, subject, verdict, _]| subject == "GPU 0" && !(blinds && verdict == "unknown"));
            if !found.contains(&wanted(fault)) || elsewhere {
                missed.push(format!("{fault:?} on {node}: {found:?}"));
            }
        }
        ward.restore();
    }
    missed
}

#[test]
fn a_fault_of_each_check_is_found_where_it_is() {
    let ward = Ward::new("h100-80gb", "");
    let done = ward.audit();
    for node in &ward.nodes {
        assert_eq!(found(&done, node), BTreeSet::new(), "{node} is well: {done}");
    }
    let mut missed = missed(&ward, FAULTS);
    missed.extend(self::missed(&ward, containers::FAULTS));
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn a_fault_of_links_and_fabric_is_found_where_it_is() {
    let ward = Ward::new("h200-141gb", "  clique: 0\n  nvlink_mbps: 26562\n");
    let mut missed = missed(&ward, OF_LINKS);
    missed.extend(missed_later(&ward, LATER_OF_LINKS));
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Makes the memory of a store older, as if nobody had audited for a while.
fn age(store: &Path, seconds: i64) {
    fn shift(value: &mut Value, seconds: i64) {
        match value {
            // A time of this century: no counter here is as large.
            Value::Number(number) => {
                if let Some(time) =
                    number.as_i64().filter(|time| (1_700_000_000..4_000_000_000).contains(time))
                {
                    *value = (time - seconds).into();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| shift(item, seconds)),
            Value::Object(fields) => fields.values_mut().for_each(|field| shift(field, seconds)),
            _ => {}
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = SqliteConnectOptions::new().filename(store);
        let mut connection = options.connect().await.unwrap();
        let rows: Vec<(i64, String)> =
            sqlx::query_as("SELECT node, body FROM memories").fetch_all(&mut connection).await.unwrap();
        for (node, body) in rows {
            let mut body: Value = serde_json::from_str(&body).unwrap();
            shift(&mut body, seconds);
            let update = sqlx::query("UPDATE memories SET body = $1 WHERE node = $2");
            update.bind(body.to_string()).bind(node).execute(&mut connection).await.unwrap();
        }
        connection.close().await.unwrap();
    });
}

impl Ward {
    /// Lets time pass between two audits: for the store, and for the nodes.
    fn pause(&self, store: &str, pauses: i64) {
        age(&self.home.work().join(store), PAUSE_S);
        let uptime = format!("echo '{}.00 1.00' > /run/uptime", 100_000 + pauses * PAUSE_S);
        self.each(self.nodes.iter().map(|node| (node, uptime.as_str())));
    }
}

/// Plants faults behind an audit, and tells those that the next one did not find.
fn missed_later(ward: &Ward, faults: &[Later]) -> Vec<String> {
    let mut missed = Vec::new();
    for (at, batch) in faults.chunks(AT_ONCE).enumerate() {
        if at > 0 {
            ward.restore();
        }
        missed.extend(missed_after(ward, batch, &format!("later-{at}.db")));
    }
    missed
}

fn missed_after(ward: &Ward, faults: &[Later], store: &str) -> Vec<String> {
    let planted = &ward.nodes[1..=faults.len()];
    let plant = |plants: Vec<String>| ward.each(planted.iter().zip(plants.iter().map(String::as_str)));
    plant(faults.iter().map(|(.., before, _)| format!("{WORDS}{before}")).collect());
    let done = ward.audit_into(store);
    for (node, fault) in ward.nodes.iter().zip([None].into_iter().chain(faults.iter().map(Some))) {
        assert_eq!(found(&done, node), BTreeSet::new(), "before {fault:?}: {done}");
    }
    ward.pause(store, 1);
    plant(faults.iter().map(|(.., after)| format!("{WORDS}{after}")).collect());
    let done = ward.audit_into(store);
    assert_eq!(found(&done, &ward.nodes[0]), BTreeSet::new(), "{done}");
    let mut missed = Vec::new();
    for (node, (check, verdict, action, ..)) in planted.iter().zip(faults) {
        let found = found(&done, node);
        if !found.contains(&wanted(&(check, verdict, action, ""))) {
            missed.push(format!("{check} {verdict} {action}: {found:?}"));
        }
    }
    missed
}

#[test]
fn a_fault_that_grows_is_found_by_the_second_audit() {
    let ward = Ward::new("h100-80gb", "");
    let missed = missed_later(&ward, LATER);
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn a_gpu_that_is_slow_or_hot_beside_its_peers_is_found() {
    let ward = Ward::new("h100-80gb", "");
    let work = "for gpu in 0 1; do gpusimctl set $gpu utilization 95; gpusimctl set $gpu event_reasons 0
        gpusimctl set $gpu performance_state 0; gpusimctl set $gpu graphics_mhz 1980
        gpusimctl set $gpu power_draw_mw 650000; gpusimctl set $gpu temperature_c 60; done";
    ward.each(ward.nodes.iter().map(|node| (node, work)));
    ward.plant(1, "one graphics_mhz 1200");
    ward.plant(2, "one temperature_c 84");
    let done = ward.audit();
    for (at, node) in ward.nodes.iter().enumerate() {
        let expected: &[Fault] = match at {
            1 => &[("clock.busy", "warn", "investigate", "")],
            2 => &[("thermal.outlier", "warn", "investigate", "")],
            _ => &[],
        };
        assert_eq!(found(&done, node), expected.iter().map(wanted).collect(), "{node}: {done}");
    }
}

#[test]
fn a_gpu_that_is_missing_or_another_one_is_found() {
    let options = FleetOptions {
        nodes: 3,
        faults: "- {nodes: gpu002, effect: {gpu_missing: 1}}\n".into(),
        ..FleetOptions::default()
    };
    let ward = Ward::of(&options, "");
    let gpus = ward.nodes.iter().flat_map(|node| {
        let gpus = ward.fleet.machine(node)["gpus"].as_array().cloned().unwrap_or_default();
        gpus.into_iter().map(|gpu| gpu["uuid"].as_str().unwrap_or_default().to_owned())
    });
    let mut known: Vec<String> = gpus.collect();
    // GPU 1 of the third node is not one of the site's.
    known.pop();
    // The fault shows after a boot.
    ward.reboot(&ward.nodes[1]);
    ward.home.write("site.yaml", &format!("{BASELINE}  gpu_uuids: [{}]\n", known.join(", ")));
    let done = ward.audit();
    assert_eq!(found(&done, "gpu001"), BTreeSet::new(), "{done}");
    let lost = wanted(&("inv.gpu_count", "fail", "reboot", ""));
    assert!(found(&done, "gpu002").contains(&lost), "{done}");
    let other = wanted(&("inv.gpu_identity", "drift", "investigate", ""));
    assert_eq!(found(&done, "gpu003"), BTreeSet::from([other]), "{done}");
}

#[test]
fn another_mig_layout_and_half_an_instance_are_found() {
    let options = FleetOptions {
        nodes: 3,
        gpus_per_node: 1,
        states: "- set: {mig_current: true, mig_pending: true}\n  mig_layout: [3g.40gb, 1g.10gb]\n\
                 - {nodes: gpu002, mig_layout: [1g.10gb]}\n"
            .into(),
        ..FleetOptions::default()
    };
    let ward = Ward::of(&options, "");
    let learned = ward.home.gpufleet(["baseline", "from", "gpu001", "-i", &ward.fleet.inventory()]).run();
    ward.home.write("site.yaml", &learned.expect(0).stdout);
    let half = ward.fleet.dir().join("nodes/gpu003/state/node.json");
    let mut machine = ward.fleet.machine("gpu003");
    machine["gpus"][0]["instances"][0]["compute_instances"] = Value::Array(Vec::new());
    std::fs::write(half, machine.to_string()).unwrap();
    let done = ward.audit();
    let of = |node: &str| -> BTreeSet<String> {
        found(&done, node)
            .into_iter()
            .map(|[check, subject, verdict, _]| format!("{check} {subject} {verdict}"))
            .collect()
    };
    assert_eq!(of("gpu001"), BTreeSet::new(), "{done}");
    assert_eq!(of("gpu002"), BTreeSet::from(["cfg.mig_layout GPU 0 drift".to_owned()]), "{done}");
    assert_eq!(of("gpu003"), BTreeSet::from(["cfg.mig_orphan GPU 0 drift".to_owned()]), "{done}");
}

#[test]
fn a_job_that_holds_memory_and_does_nothing_is_found() {
    let ward = Ward::of(&FleetOptions { nodes: 2, ..FleetOptions::default() }, "");
    ward.fleet.control("gpu002", &["client", "add", "1", "70000"]);
    ward.plant(1, "one utilization 0");
    let stalled = wanted(&("proc.stalled_job", "warn", "investigate", ""));
    for audit in 1..=3 {
        let done = ward.audit_into("later.db");
        assert_eq!(found(&done, "gpu001"), BTreeSet::new(), "{done}");
        // Three audits in a row, so that a pause of a job is no finding.
        assert_eq!(found(&done, "gpu002").contains(&stalled), audit == 3, "audit {audit}: {done}");
        ward.pause("later.db", audit);
    }
}

#[test]
fn a_process_that_is_stuck_in_the_driver_is_found() {
    let ward = Ward::of(&FleetOptions { nodes: 2, ..FleetOptions::default() }, "");
    // The kernel alone can make that state: the process says of itself that it has it.
    ward.plant(
        1,
        "setsid sleep 100000 > /dev/null 2>&1 &
        echo \"$! (nvidia-smi) D 1 $! $! 0 -1\" > /run/stat; mount --bind /run/stat /proc/$!/stat",
    );
    let stuck = wanted(&("proc.dead_holder", "warn", "investigate", ""));
    // The first audit has nothing to compare with; the others find the same process, which does not go on.
    for audit in 1..=4 {
        let done = ward.audit_into("later.db");
        assert_eq!(found(&done, "gpu001"), BTreeSet::new(), "{done}");
        assert_eq!(found(&done, "gpu002").contains(&stuck), audit == 4, "audit {audit}: {done}");
        ward.pause("later.db", audit);
    }
}

#[test]
fn what_comes_back_after_reboots_is_found() {
    let ward = Ward::of(&FleetOptions { nodes: 3, ..FleetOptions::default() }, "");
    let repeated = wanted(&("err.xid_repeat", "fail", "investigate", ""));
    let crash = wanted(&("os.reboot_unexpected", "fail", "investigate", ""));
    // The same Xid in three boots, each with a boot without it behind it.
    for audit in 0..6 {
        ward.plant(1, if audit % 2 == 0 { "gpusimctl xid 1 119" } else { "" });
        // A crash leaves its dump.
        ward.plant(2, if audit == 1 { "touch /sys/fs/pstore/dmesg-efi-1" } else { "" });
        let done = ward.audit_into("later.db");
        assert_eq!(found(&done, "gpu001"), BTreeSet::new(), "{done}");
        assert_eq!(found(&done, "gpu002").contains(&repeated), audit >= 4, "audit {audit}: {done}");
        assert_eq!(found(&done, "gpu003").contains(&crash), audit == 1, "audit {audit}: {done}");
        age(&ward.home.work().join("later.db"), PAUSE_S);
        ward.nodes[1..].iter().for_each(|node| ward.reboot(node));
    }
}

#[test]
fn a_driver_that_is_loaded_anew_in_mid_audit_and_a_costly_audit_are_told() {
    let ward = Ward::of(&FleetOptions { nodes: 3, ..FleetOptions::default() }, "");
    let cheap = BASELINE.replace("cpu_ms: 60000", "cpu_ms: 0");
    ward.plant(
        1,
        "gpusimctl fault add '{function: nvmlDeviceGetSerial, effect: {delay_ms: 400}}'
        mkdir /run/loads; (for load in $(seq 400); do cp -r /sys/module/nvidia /run/loads/$load
        mount --bind /run/loads/$load /sys/module/nvidia; sleep 0.05; done) > /dev/null 2>&1 &",
    );
    let done = ward.audit();
    assert_eq!(found(&done, "gpu001"), BTreeSet::new(), "{done}");
    let moved = wanted(&("audit.same_boot", "unknown", "none", ""));
    assert!(found(&done, "gpu002").contains(&moved), "{done}");
    ward.home.write("site.yaml", &cheap);
    let done = ward.audit();
    assert!(found(&done, "gpu001").contains(&wanted(&("audit.cost", "warn", "none", ""))), "{done}");
}

/// Checks whose fault is in none of the lists above, and where it is.
const ELSEWHERE: &[(&str, &str)] = &[
    ("clock.busy", "a_gpu_that_is_slow_or_hot_beside_its_peers_is_found"),
    ("thermal.outlier", "a_gpu_that_is_slow_or_hot_beside_its_peers_is_found"),
    ("inv.gpu_count", "a_gpu_that_is_missing_or_another_one_is_found"),
    ("inv.gpu_identity", "a_gpu_that_is_missing_or_another_one_is_found"),
    ("mem.ecc_pending", "where the baseline declares none, which this one does: tests of the judge"),
    ("cfg.mig_pending", "as for mem.ecc_pending"),
    ("cfg.mig_layout", "another_mig_layout_and_half_an_instance_are_found"),
    ("cfg.mig_orphan", "another_mig_layout_and_half_an_instance_are_found"),
    ("proc.stalled_job", "a_job_that_holds_memory_and_does_nothing_is_found"),
    ("proc.dead_holder", "a_process_that_is_stuck_in_the_driver_is_found"),
    ("err.xid_repeat", "what_comes_back_after_reboots_is_found"),
    ("os.reboot_unexpected", "what_comes_back_after_reboots_is_found"),
    ("audit.same_boot", "a_driver_that_is_loaded_anew_in_mid_audit_and_a_costly_audit_are_told"),
    ("audit.cost", "a_driver_that_is_loaded_anew_in_mid_audit_and_a_costly_audit_are_told"),
    ("audit.waiver", "of the controller: a_waiver_covers_its_finding_until_it_ends in audit.rs"),
    ("os.clock_sync", "the clock is the kernel's, which all nodes share: the helper's own tests"),
    ("pcie.acs", "no device of a lab node has registers: tests of the helper's signals, and of the judge"),
    ("pcie.relaxed_ordering", "as for pcie.acs"),
    (
        "disk.readonly",
        "no disk of a lab node can be made read-only: the helper's own tests read its list of mounts",
    ),
    (
        "disk.nvme_health",
        "no drive of a lab node answers a command: the helper's own tests read its log page, and those of the judge have \
         drives that fail",
    ),
];

#[test]
fn every_check_of_the_catalogue_has_its_fault() {
    let known: BTreeSet<&str> = Catalogue::get().checks().iter().map(|check| &*check.id).collect();
    let at_once = FAULTS.iter().chain(containers::FAULTS).chain(OF_LINKS).map(|(check, ..)| *check);
    let later = LATER.iter().chain(LATER_OF_LINKS).map(|(check, ..)| *check);
    let planted: BTreeSet<&str> =
        at_once.chain(later).chain(ELSEWHERE.iter().map(|(check, _)| *check)).collect();
    assert_eq!(planted, known);
}

//! Machines as sysfs shows them. What is read of each lies beside the crate that judges it, which tests with the same.

use std::{fs, os::unix::fs::symlink, path::PathBuf, time::Duration};

use gpufleet_protocol::{
    cpus::CpuList,
    facts::{GpuFacts, GpuSystem, GpuSystemState},
    topology::{Topology, What},
};

use super::{Reader, topology::read};
use crate::{deadline::Deadline, tasks::testing::Bench};

const GPU: (u32, u32) = (0x03_0200, 0x10de);
const SWITCH_OF_GPUS: (u32, u32) = (0x06_8000, 0x10de);
const CARD: (u32, u32) = (0x02_0700, 0x15b3);
const ETHERNET: (u32, u32) = (0x02_0000, 0x15b3);
const DRIVE: (u32, u32) = (0x01_0802, 0x144d);
const PORT: (u32, u32) = (0x06_0400, 0x1000);

struct Machine {
    bench: Bench,
    model: &'static str,
}

impl Machine {
    fn new(model: &'static str) -> Self {
        let machine = Self { bench: Bench::new(), model };
        machine.bench.write("proc/cpuinfo", "processor\t: 0\n");
        machine
    }

    fn write(&self, path: &str, text: impl std::fmt::Display) {
        self.bench.write(path, &format!("{text}\n"));
    }

    /// Cores of one socket, with the numbers of their threads.
    fn socket(&self, package: u32, cores: std::ops::Range<u32>, second_threads_at: Option<u32>) {
        for core in cores.clone() {
            let second = second_threads_at.map(|start| start + core);
            for cpu in [Some(core), second].into_iter().flatten() {
                let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
                let siblings: CpuList = [Some(core), second].into_iter().flatten().collect();
                self.write(&format!("{folder}/thread_siblings_list"), siblings);
                self.write(&format!("{folder}/physical_package_id"), package);
            }
        }
    }

    fn cpus(&self, online: &str) {
        self.write("sys/devices/system/cpu/online", online);
        self.write("sys/devices/system/cpu/isolated", "");
        self.write("proc/1/status", format!("Name:\tsystemd\nCpus_allowed_list:\t{online}"));
    }

    fn node(&self, id: u32, cpus: &str, gib: u64, distances: &str) {
        let folder = format!("sys/devices/system/node/node{id}");
        self.write(&format!("{folder}/cpulist"), cpus);
        self.write(&format!("{folder}/meminfo"), format!("Node {id} MemTotal:       {} kB", gib << 20));
        self.write(&format!("{folder}/distance"), distances);
    }

    /// A device by its place below /sys/devices; the ports above it appear with it.
    fn device(&self, place: &str, (class, vendor): (u32, u32), numa: i32, local: &str) -> String {
        let (mut folder, parts) = (PathBuf::from("sys/devices"), place.split('/').collect::<Vec<_>>());
        let last = parts.len() - 1;
        for (at, part) in parts.iter().enumerate() {
            folder.push(part);
            if at == 0 {
                continue;
            }
            let (class, vendor) = if at == last { (class, vendor) } else { PORT };
            self.write(&format!("{}/class", folder.display()), format!("0x{class:06x}"));
            self.write(&format!("{}/vendor", folder.display()), format!("0x{vendor:04x}"));
            self.write(&format!("{}/numa_node", folder.display()), numa);
            self.write(&format!("{}/local_cpulist", folder.display()), local);
            let link = self.bench.path(&format!("sys/bus/pci/devices/{part}"));
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            // The port of an earlier device is there already.
            let _ = symlink(format!("../../../{}", folder.strip_prefix("sys").unwrap().display()), link);
        }
        folder.display().to_string()
    }

    fn card(&self, place: &str, kind: (u32, u32), numa: i32, local: &str, rdma: &str, interface: &str) {
        let folder = self.device(place, kind, numa, local);
        self.write(&format!("{folder}/net/{interface}/mtu"), 4092);
        self.write(&format!("{folder}/infiniband/{rdma}/fw_ver"), "28.39.1002");
        let port = format!("sys/class/infiniband/{rdma}/ports/1");
        self.write(&format!("{port}/state"), "4: ACTIVE");
        let (rate, layer) = match kind {
            CARD => ("400 Gb/sec (4X NDR)", "InfiniBand"),
            _ => ("200 Gb/sec (4X HDR)", "Ethernet"),
        };
        self.write(&format!("{port}/rate"), rate);
        self.write(&format!("{port}/link_layer"), layer);
    }

    fn read(&self) -> Topology {
        let deadline = Deadline::after(Duration::from_secs(60));
        let reader = Reader { roots: &self.bench.roots, deadline: &deadline };
        let on_the_bus = read(&reader, GpuSystem::default);
        let addresses = on_the_bus.devices.into_iter().filter(|device| matches!(device.what, What::Gpu(_)));
        let gpus = (0..).zip(addresses).map(|(index, device)| GpuFacts {
            index,
            minor: Some(index),
            uuid: format!("GPU-{index}"),
            pci: device.address,
            name: self.model.to_owned(),
            ..GpuFacts::default()
        });
        let system = GpuSystem { state: GpuSystemState::Ok, gpus: gpus.collect(), ..GpuSystem::default() };
        read(&reader, || system)
    }
}

/// Two sockets of 56 cores, eight GPUs, each behind a switch with its card and a drive: as a DGX H100 tells it.
fn hgx_h100() -> Machine {
    let machine = Machine::new("NVIDIA H100 80GB HBM3");
    let local = ["0-55,112-167", "56-111,168-223"];
    machine.socket(0, 0..56, Some(112));
    machine.socket(1, 56..112, Some(112));
    machine.cpus("0-223");
    machine.write("sys/devices/system/node/online", "0-1");
    machine.node(0, local[0], 1007, "10 21");
    machine.node(1, local[1], 1008, "21 10");
    // Host bridge, GPU, card and drive of each switch.
    let switches = [
        (0, "15", "1b", "18", "19"),
        (0, "37", "43", "40", ""),
        (0, "48", "52", "4f", ""),
        (0, "59", "61", "5e", ""),
        (1, "97", "9d", "9a", "9b"),
        (1, "b7", "c3", "c0", ""),
        (1, "c7", "d1", "ce", ""),
        (1, "d7", "df", "dc", ""),
    ];
    for (at, (socket, bridge, gpu, card, drive)) in switches.into_iter().enumerate() {
        let up = format!("pci0000:{bridge}/0000:{bridge}:01.0/0000:{bridge}:1e.0");
        let numa = i32::try_from(socket).unwrap();
        machine.device(&format!("{up}/0000:{bridge}:1f.0/0000:{gpu}:00.0"), GPU, numa, local[socket]);
        let place = format!("{up}/0000:{bridge}:1f.1/0000:{card}:00.0");
        machine.card(&place, CARD, numa, local[socket], &format!("mlx5_{at}"), &format!("ib{at}"));
        if !drive.is_empty() {
            let folder = machine.device(
                &format!("{up}/0000:{bridge}:1f.2/0000:{drive}:00.0"),
                DRIVE,
                numa,
                local[socket],
            );
            machine.write(&format!("{folder}/nvme/nvme{socket}/model"), "SAMSUNG MZQL23T8HCLS");
        }
    }
    let place = "pci0000:26/0000:26:01.0/0000:29:00.0";
    machine.card(place, ETHERNET, 0, local[0], "mlx5_8", "ens6f0np0");
    for at in 0..4 {
        machine.device(
            &format!("pci0000:00/0000:00:0{}.0/0000:0{}:00.0", at + 1, at + 5),
            SWITCH_OF_GPUS,
            0,
            local[0],
        );
    }
    machine
}

/// Two Grace processors with two GPUs each: every GPU has a PCI domain of its own, and its memory is NUMA nodes
/// without CPUs.
fn gb200() -> Machine {
    let machine = Machine::new("NVIDIA GB200");
    let local = ["0-71", "72-143"];
    machine.socket(0, 0..72, None);
    machine.socket(1, 72..144, None);
    machine.cpus("0-143");
    machine.write("sys/devices/system/node/online", "0-2,10,18,26");
    machine.node(0, local[0], 477, "10 40 80 80 120 120");
    machine.node(1, local[1], 477, "40 10 120 120 80 80");
    for id in [2, 10, 18, 26] {
        machine.node(id, "", 184, "");
    }
    for (socket, domain) in [(0, "0008"), (0, "0009"), (1, "0018"), (1, "0019")] {
        let place = format!("pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0");
        machine.device(&place, GPU, i32::from(socket == 1), local[socket]);
    }
    for (at, (socket, domain)) in [(0, "0000"), (0, "0002"), (1, "0010"), (1, "0012")].into_iter().enumerate()
    {
        let place = format!("pci{domain}:00/{domain}:00:00.0/{domain}:03:00.0");
        let (rdma, interface) = (format!("mlx5_{at}"), format!("ibp{at}s0"));
        machine.card(&place, CARD, i32::from(socket == 1), local[socket], &rdma, &interface);
    }
    machine
}

/// A virtual machine with eight GPUs and two virtual NUMA nodes, whose devices say -1.
fn virtual_machine() -> Machine {
    let machine = Machine::new("NVIDIA H200");
    machine.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor");
    machine.write("sys/class/dmi/id/sys_vendor", "QEMU");
    machine.write("sys/class/dmi/id/product_name", "Standard PC (Q35 + ICH9, 2009)");
    machine.socket(0, 0..64, None);
    machine.socket(1, 64..128, None);
    machine.cpus("0-127");
    machine.write("sys/devices/system/node/online", "0-1");
    machine.node(0, "0-63", 940, "10 20");
    machine.node(1, "64-127", 940, "20 10");
    for at in 0..8 {
        machine.device(&format!("pci0000:00/0000:00:1{at}.0"), GPU, -1, "0-127");
    }
    machine.card("pci0000:00/0000:00:03.0", ETHERNET, -1, "0-127", "mlx5_0", "eth0");
    let virtio = machine.device("pci0000:00/0000:00:02.0", (0x02_0000, 0x1af4), -1, "0-127");
    machine.write(&format!("{virtio}/virtio1/net/eth1/mtu"), 1500);
    machine
}

#[test]
fn machines_are_read_as_their_recordings_say() {
    let machines = [("hgx-h100", hgx_h100()), ("gb200", gb200()), ("virtual-machine", virtual_machine())];
    for (name, machine) in machines {
        let topology = machine.read();
        assert_eq!(topology.errors, Vec::<String>::new(), "{name}");
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../controller/topology/src/machines/{name}.json"));
        let text = serde_json::to_string_pretty(&topology).unwrap() + "\n";
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let recorded = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            recorded == text,
            "{name} is read otherwise than {} says; UPDATE=1 writes it",
            path.display()
        );
    }
}

#[test]
fn a_place_that_the_firmware_does_not_tell_is_none() {
    let topology = virtual_machine().read();
    assert_eq!(topology.devices.len(), 10);
    assert!(topology.devices.iter().all(|device| device.numa_node.is_none()));
    assert_eq!(topology.virtualization.as_deref(), Some("qemu"));
}

#[test]
fn what_cannot_be_read_is_said() {
    let machine = virtual_machine();
    machine.write("sys/devices/system/cpu/online", "all of them");
    machine.write("sys/bus/pci/devices/0000:00:10.0/numa_node", "none");
    let topology = machine.read();
    assert!(topology.online.is_empty());
    // The one that cannot be read is missing, and no other.
    assert_eq!(topology.devices.len(), 9);
    assert!(topology.devices.iter().all(|device| device.address != "0000:00:10.0"));
    assert_eq!(
        topology.errors,
        [
            "/sys/devices/system/cpu/online: its content is not what the kernel writes",
            "/sys/bus/pci/devices/0000:00:10.0/numa_node: its content is not what the kernel writes",
        ]
    );
}

#[test]
fn a_driver_that_does_not_answer_leaves_the_places() {
    let machine = hgx_h100();
    let deadline = Deadline::after(Duration::from_secs(60));
    let reader = Reader { roots: &machine.bench.roots, deadline: &deadline };
    let hung = GpuSystem {
        state: GpuSystemState::Hung { detail: "NVML did not answer".to_owned() },
        ..GpuSystem::default()
    };
    let topology = read(&reader, || hung);
    let gpus = topology.devices.iter().filter(|device| matches!(device.what, What::Gpu(_)));
    assert_eq!(gpus.filter(|device| device.numa_node.is_some()).count(), 8);
    assert_eq!(topology.errors, ["indexes and UUIDs of GPUs are not known: NVML did not answer"]);
}

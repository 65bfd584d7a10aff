//! Machines as a person who knows them would judge them. The helper's tests write their recordings.

use gpufleet_protocol::{
    cpus::CpuList,
    topology::{Topology, What},
};

use super::*;

fn machine(name: &str) -> Topology {
    let text = match name {
        "hgx-h100" => include_str!("machines/hgx-h100.json"),
        "gb200" => include_str!("machines/gb200.json"),
        _ => include_str!("machines/virtual-machine.json"),
    };
    serde_json::from_str(text).unwrap()
}

fn plain(topology: &Topology) -> String {
    text("node1", "node1", topology, |_, text| text.to_owned())
}

fn said(topology: &Topology) -> Vec<String> {
    let said = advice(topology, &near(topology));
    said.into_iter().map(|one| format!("{}: {}", one.weight.word(), one.what)).collect()
}

#[test]
fn an_hgx_has_a_card_behind_the_switch_of_each_gpu() {
    insta::assert_snapshot!(plain(&machine("hgx-h100")), @r"
    node1  2 sockets · 112 cores · 224 CPUs · 2 NUMA nodes · 8 GPUs · 9 network cards · 2 NVMe drives

    NUMA 0  socket 0 · CPUs 0-55,112-167 · 1007 GiB
    ├─ pci0000:00
    │  ├─ NVSwitch  0000:05:00.0
    │  ├─ NVSwitch  0000:06:00.0
    │  ├─ NVSwitch  0000:07:00.0
    │  └─ NVSwitch  0000:08:00.0
    ├─ pci0000:15, switch 0000:15:1e.0
    │  ├─ GPU 0     0000:1b:00.0  NVIDIA H100 80GB HBM3
    │  ├─ mlx5_0    0000:18:00.0  InfiniBand 400 Gbit/s, ib0
    │  └─ nvme0     0000:19:00.0
    ├─ pci0000:26
    │  └─ mlx5_8    0000:29:00.0  Ethernet 200 Gbit/s, ens6f0np0
    ├─ pci0000:37, switch 0000:37:1e.0
    │  ├─ GPU 1     0000:43:00.0  NVIDIA H100 80GB HBM3
    │  └─ mlx5_1    0000:40:00.0  InfiniBand 400 Gbit/s, ib1
    ├─ pci0000:48, switch 0000:48:1e.0
    │  ├─ GPU 2     0000:52:00.0  NVIDIA H100 80GB HBM3
    │  └─ mlx5_2    0000:4f:00.0  InfiniBand 400 Gbit/s, ib2
    └─ pci0000:59, switch 0000:59:1e.0
       ├─ GPU 3     0000:61:00.0  NVIDIA H100 80GB HBM3
       └─ mlx5_3    0000:5e:00.0  InfiniBand 400 Gbit/s, ib3
    NUMA 1  socket 1 · CPUs 56-111,168-223 · 1008 GiB
    ├─ pci0000:97, switch 0000:97:1e.0
    │  ├─ GPU 4     0000:9d:00.0  NVIDIA H100 80GB HBM3
    │  ├─ mlx5_4    0000:9a:00.0  InfiniBand 400 Gbit/s, ib4
    │  └─ nvme1     0000:9b:00.0
    ├─ pci0000:b7, switch 0000:b7:1e.0
    │  ├─ GPU 5     0000:c3:00.0  NVIDIA H100 80GB HBM3
    │  └─ mlx5_5    0000:c0:00.0  InfiniBand 400 Gbit/s, ib5
    ├─ pci0000:c7, switch 0000:c7:1e.0
    │  ├─ GPU 6     0000:d1:00.0  NVIDIA H100 80GB HBM3
    │  └─ mlx5_6    0000:ce:00.0  InfiniBand 400 Gbit/s, ib6
    └─ pci0000:d7, switch 0000:d7:1e.0
       ├─ GPU 7     0000:df:00.0  NVIDIA H100 80GB HBM3
       └─ mlx5_7    0000:dc:00.0  InfiniBand 400 Gbit/s, ib7

    GPU  NUMA  CPUs            nearest cards  way          keeps a process near
    0    0     0-55,112-167    mlx5_0         same switch  numactl --cpunodebind=0 --membind=0
    1    0     0-55,112-167    mlx5_1         same switch  numactl --cpunodebind=0 --membind=0
    2    0     0-55,112-167    mlx5_2         same switch  numactl --cpunodebind=0 --membind=0
    3    0     0-55,112-167    mlx5_3         same switch  numactl --cpunodebind=0 --membind=0
    4    1     56-111,168-223  mlx5_4         same switch  numactl --cpunodebind=1 --membind=1
    5    1     56-111,168-223  mlx5_5         same switch  numactl --cpunodebind=1 --membind=1
    6    1     56-111,168-223  mlx5_6         same switch  numactl --cpunodebind=1 --membind=1
    7    1     56-111,168-223  mlx5_7         same switch  numactl --cpunodebind=1 --membind=1

    gres.conf, for a Slurm without AutoDetect; File and Cores are this boot's:
      NodeName=node1 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-55
      NodeName=node1 Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=56-111

    note     GPUs reach each other over 4 NVSwitches, whatever their PCIe place
    ");
}

#[test]
fn gpus_of_grace_are_near_their_processor() {
    insta::assert_snapshot!(plain(&machine("gb200")), @r"
    node1  2 sockets · 144 cores · 144 CPUs · 2 NUMA nodes · 4 GPUs · 4 network cards

    NUMA 0  socket 0 · CPUs 0-71 · 477 GiB
    ├─ pci0000:00
    │  └─ mlx5_0  0000:03:00.0  InfiniBand 400 Gbit/s, ibp0s0
    ├─ pci0002:00
    │  └─ mlx5_1  0002:03:00.0  InfiniBand 400 Gbit/s, ibp1s0
    ├─ pci0008:00
    │  └─ GPU 0   0008:01:00.0  NVIDIA GB200
    └─ pci0009:00
       └─ GPU 1   0009:01:00.0  NVIDIA GB200
    NUMA 1  socket 1 · CPUs 72-143 · 477 GiB
    ├─ pci0010:00
    │  └─ mlx5_2  0010:03:00.0  InfiniBand 400 Gbit/s, ibp2s0
    ├─ pci0012:00
    │  └─ mlx5_3  0012:03:00.0  InfiniBand 400 Gbit/s, ibp3s0
    ├─ pci0018:00
    │  └─ GPU 2   0018:01:00.0  NVIDIA GB200
    └─ pci0019:00
       └─ GPU 3   0019:01:00.0  NVIDIA GB200
    NUMA 2,10,18,26: memory without CPUs, 736 GiB together, as GPUs of Grace have it

    GPU  NUMA  CPUs    nearest cards   way             keeps a process near
    0    0     0-71    mlx5_0, mlx5_1  same NUMA node  numactl --cpunodebind=0 --membind=0
    1    0     0-71    mlx5_0, mlx5_1  same NUMA node  numactl --cpunodebind=0 --membind=0
    2    1     72-143  mlx5_2, mlx5_3  same NUMA node  numactl --cpunodebind=1 --membind=1
    3    1     72-143  mlx5_2, mlx5_3  same NUMA node  numactl --cpunodebind=1 --membind=1

    gres.conf, for a Slurm without AutoDetect; File and Cores are this boot's:
      NodeName=node1 Name=gpu Type=gb200 File=/dev/nvidia[0-1] Cores=0-71
      NodeName=node1 Name=gpu Type=gb200 File=/dev/nvidia[2-3] Cores=72-143
    ");
}

#[test]
fn in_a_virtual_machine_nothing_is_guessed() {
    insta::assert_snapshot!(plain(&machine("virtual-machine")), @r"
    node1  2 sockets · 128 cores · 128 CPUs · 2 NUMA nodes · 8 GPUs · 2 network cards · under qemu

    NUMA 0  socket 0 · CPUs 0-63 · 940 GiB
    NUMA 1  socket 1 · CPUs 64-127 · 940 GiB
    place unknown  the firmware does not tell
    └─ pci0000:00
       ├─ GPU 0   0000:00:10.0  NVIDIA H200
       ├─ GPU 1   0000:00:11.0  NVIDIA H200
       ├─ GPU 2   0000:00:12.0  NVIDIA H200
       ├─ GPU 3   0000:00:13.0  NVIDIA H200
       ├─ GPU 4   0000:00:14.0  NVIDIA H200
       ├─ GPU 5   0000:00:15.0  NVIDIA H200
       ├─ GPU 6   0000:00:16.0  NVIDIA H200
       ├─ GPU 7   0000:00:17.0  NVIDIA H200
       ├─ eth1    0000:00:02.0
       └─ mlx5_0  0000:00:03.0  Ethernet 200 Gbit/s, eth0

    GPU  NUMA     CPUs     nearest cards  way  keeps a process near
    0    unknown  unknown  -              -    -
    1    unknown  unknown  -              -    -
    2    unknown  unknown  -              -    -
    3    unknown  unknown  -              -    -
    4    unknown  unknown  -              -    -
    5    unknown  unknown  -              -    -
    6    unknown  unknown  -              -    -
    7    unknown  unknown  -              -    -

    gres.conf, for a Slurm without AutoDetect; File and Cores are this boot's:
      NodeName=node1 Name=gpu Type=h200 File=/dev/nvidia[0-7]

    unknown  the firmware does not tell the NUMA node of GPU 0-7: the kernel says -1
             next: qemu: the host has to give the guest its NUMA nodes and put each device on one (vNUMA); a guess is no better than none
    ");
}

#[test]
fn unknown_is_not_right_even_where_one_gpu_alone_is_unknown() {
    let mut topology = machine("hgx-h100");
    let gpu = topology.devices.iter_mut().find(|device| device.address == "0000:9d:00.0").unwrap();
    gpu.numa_node = None;
    let gpus = near(&topology);
    assert_eq!((gpus[4].node, gpus[4].numactl(), gpus[4].cpus.len()), (None, None, 0));
    assert_eq!(
        said(&topology)[0],
        "unknown: the firmware does not tell the NUMA node of GPU 4: the kernel says -1"
    );
    assert_eq!(gres("n", &gpus)[1], "NodeName=n Name=gpu Type=h100 File=/dev/nvidia4");
}

#[test]
fn with_one_numa_node_there_is_nothing_to_tell() {
    let mut topology = machine("virtual-machine");
    topology.numa.truncate(1);
    topology.numa[0].cpus = "0-127".parse().unwrap();
    assert!(near(&topology).iter().all(|near| near.node.is_some()));
    assert_eq!(said(&topology), Vec::<String>::new());
}

#[test]
fn a_missing_card_and_a_socket_without_one_are_named() {
    let mut topology = machine("hgx-h100");
    topology.devices.retain(|device| device.address != "0000:40:00.0");
    assert_eq!(
        said(&topology)[0],
        "wrong: GPU 1: no RDMA card is behind the same PCIe switch, as it is for the other GPUs"
    );
    let on_the_second = |what: &What| matches!(what, What::Network(_));
    topology.devices.retain(|device| device.numa_node != Some(1) || !on_the_second(&device.what));
    assert!(
        said(&topology)[0].starts_with("wrong: GPU 4-7: no RDMA card is on the same NUMA node"),
        "{:?}",
        said(&topology)
    );
}

#[test]
fn services_that_may_not_use_near_cpus_are_named() {
    let mut topology = machine("hgx-h100");
    topology.usable = Some("0-3".parse().unwrap());
    let gpus = near(&topology);
    assert_eq!(gpus[0].numactl().as_deref(), Some("numactl --physcpubind=0-3 --membind=0"));
    assert!(gpus[0].cores.is_empty(), "a core with only one usable thread is none for Slurm");
    assert!(said(&topology)[0].starts_with("wrong: GPU 4-7: services may use the CPUs 0-3 only"));
}

#[test]
fn slurm_counts_cores_through_the_sockets() {
    let topology = machine("hgx-h100");
    let cores: Vec<CpuList> = near(&topology).into_iter().map(|near| near.cores).collect();
    assert_eq!((cores[0].to_string(), cores[7].to_string()), ("0-55".to_owned(), "56-111".to_owned()));
    // Threads are no cores.
    assert_eq!(near(&topology)[0].cpus.len(), 112);
}

#[test]
fn a_gpu_on_memory_without_cpus_belongs_to_the_nearest_processor() {
    let mut topology = machine("gb200");
    let memory = topology.numa.iter_mut().find(|node| node.id == 18).unwrap();
    memory.distances = vec![120, 80, 120, 120, 10, 120];
    topology.devices.iter_mut().find(|device| device.address == "0018:01:00.0").unwrap().numa_node = Some(18);
    let gpus = near(&topology);
    assert_eq!(gpus[2].node.map(|node| node.id), Some(1));
}

#[test]
fn a_gpu_with_mig_is_no_device_file_for_slurm() {
    let mut topology = machine("hgx-h100");
    for device in &mut topology.devices {
        if let What::Gpu(gpu) = &mut device.what {
            gpu.mig = Some(gpu.index < Some(4));
        }
    }
    assert_eq!(
        gres("n", &near(&topology)),
        ["NodeName=n Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=56-111"]
    );
    assert!(said(&topology).contains(
        &"note: GPU 0-3: MIG is on, and only `AutoDetect=nvml` of Slurm knows the instances".to_owned()
    ));
}

#[test]
fn texts_of_a_node_cannot_break_the_drawing() {
    let mut topology = machine("virtual-machine");
    for device in &mut topology.devices {
        if let What::Gpu(gpu) = &mut device.what {
            gpu.model = Some("\u{1b}[31m</text><script>alert(1)</script>\"'&".to_owned());
        }
        device.root = Some("<a>\n".to_owned());
    }
    let drawn = Drawing::of("<b>", &topology).svg();
    assert!(
        !drawn.contains("<script")
            && !drawn.contains("<a>")
            && !drawn.contains("<b>")
            && !drawn.contains('\u{1b}')
    );
    assert!(!plain(&topology).contains('\u{1b}'));
    let gres = gres("n", &near(&topology));
    assert!(gres.iter().all(|line| !line.contains('<')), "{gres:?}");
}

#[test]
fn every_box_of_the_picture_lies_inside_of_it() {
    for name in ["hgx-h100", "gb200", "virtual-machine"] {
        let drawn = Drawing::of(name, &machine(name));
        for rect in &drawn.rects {
            assert!(rect.x + rect.width <= drawn.width && rect.y + rect.height <= drawn.height, "{rect:?}");
        }
        let gpus = drawn.rects.iter().filter(|rect| rect.class == "gpu");
        assert_eq!(gpus.count(), near(&machine(name)).len());
        assert_eq!(drawn.svg().matches("<rect ").count(), drawn.rects.len() + 1);
    }
}

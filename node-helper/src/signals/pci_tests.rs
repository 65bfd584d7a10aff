//! What the bus says of GPUs and cards, in trees of files.

use std::{fs, os::unix::fs::symlink, time::Duration};

use gpufleet_protocol::signal::{Scope, SignalInfo};

use super::{
    tests::{assert_unknown, get, node},
    *,
};
use crate::tasks::testing::Bench;

/// The readings of a GPU at an address, with those that other files add.
fn with_gpu(bench: &Bench, pci: Signal) -> Readings {
    let gpus = || GpuSignals {
        gpus: vec![gpufleet_protocol::signal::SubjectReadings {
            id: "GPU-1".to_owned(),
            label: "GPU 0".to_owned(),
            readings: [("pci".to_owned(), pci)].into(),
        }],
        node: Readings::new(),
    };
    let deadline = Deadline::after(Duration::from_secs(60));
    let mut read =
        read(&Reader { roots: &bench.roots, deadline: &deadline }, &Resets::new(), &Own::default(), gpus);
    read.gpus.remove(0).readings
}

#[test]
fn errors_of_a_gpus_link_are_added_up_over_the_ports_above_it() {
    let bench = node();
    let here = || with_gpu(&bench, "0000:3b:00.0".into());
    let names = ["aer_fatal", "aer_nonfatal_without_ur", "aer_correctable", "aer_devices"];
    let read = here();
    for name in names {
        assert_eq!(read[name], Signal::Absent, "{name}");
        assert!(SignalInfo::of(Scope::Gpu, name).is_some(), "{name}");
    }
    for (device, fatal, nonfatal) in [("0000:3b:00.0", 0, 1), ("0000:00:01.0", 2, 4)] {
        let file = |name: &str| format!("sys/bus/pci/devices/{device}/aer_dev_{name}");
        bench.write(&file("fatal"), &format!("Undefined 0\nDLP {fatal}\nTOTAL_ERR_FATAL {fatal}\n"));
        bench.write(
            &file("nonfatal"),
            &format!("CmpltTO {nonfatal}\nUnsupReq 30\nTOTAL_ERR_NONFATAL {}\n", nonfatal + 30),
        );
        bench.write(&file("correctable"), "RxErr 14\nBadTLP 18\nTOTAL_ERR_COR 32\n");
    }
    let read = here();
    let found = [&read["aer_fatal"], &read["aer_nonfatal_without_ur"], &read["aer_correctable"]];
    assert_eq!(found, [&2.into(), &5.into(), &64.into()]);
    let devices = vec![
        "0000:3b:00.0 nonfatal CmpltTO=1",
        "0000:00:01.0 fatal DLP=2",
        "0000:00:01.0 nonfatal CmpltTO=4",
    ];
    assert_eq!(read["aer_devices"], devices.into());
    bench.write("sys/bus/pci/devices/0000:00:01.0/aer_dev_nonfatal", "CmpltTO -1\n");
    let lost = Signal::Unknown("15".to_owned());
    for pci in [Signal::from("0000:3b:00.0"), Signal::from("../../../etc"), lost, Signal::Absent] {
        let read = with_gpu(&bench, pci.clone());
        for name in names {
            assert!(matches!(read[name], Signal::Unknown(_)), "{pci:?}: {name}: {:?}", read[name]);
        }
    }
}

/// A GPU and a card below a switch, of which only the port below redirects.
fn with_bus(gpu: Vec<u8>, port: Vec<u8>) -> Bench {
    use super::pci_config as config;
    let bench = node();
    let below = "0000:39:00.0/0000:3a:00.0/0000:3b:01.0";
    let places = [
        ("", "0000:39:00.0", "0x060400", config::port(4, config::sample(0x2810, Some((0x5f, 0))))),
        ("0000:39:00.0/", "0000:3a:00.0", "0x060400", config::port(5, config::sample(0x2810, None))),
        ("0000:39:00.0/0000:3a:00.0/", "0000:3b:01.0", "0x060400", config::port(6, port)),
        (&format!("{below}/"), "0000:3c:00.0", "0x030200", gpu),
    ];
    for (above, address, class, bytes) in places {
        let folder = format!("sys/devices/pci0000:39/{above}{address}");
        bench.write(&format!("{folder}/class"), &format!("{class}\n"));
        bench.write(&format!("{folder}/vendor"), "0x10de\n");
        fs::write(bench.path(&folder).join("config"), bytes).unwrap();
        let link = bench.path(&format!("sys/bus/pci/devices/{address}"));
        symlink(format!("../../../devices/pci0000:39/{above}{address}"), link).unwrap();
    }
    let of_healthy = bench.path("sys/bus/pci/devices/0000:1b:00.0/config");
    fs::write(of_healthy, config::sample(0x2930, None)).unwrap();
    // The card of the healthy node, at a root port without access control.
    for (address, bytes) in [
        ("0000:00:01.0", config::port(4, config::sample(0x2810, None))),
        ("0000:00:01.0/0000:3b:00.0", config::sample(0x2936, None)),
    ] {
        fs::write(bench.path(&format!("sys/devices/pci0000:00/{address}/config")), bytes).unwrap();
    }
    symlink("../../../devices/pci0000:00/0000:00:01.0", bench.path("sys/bus/pci/devices/0000:00:01.0"))
        .unwrap();
    bench
}

#[test]
fn ports_that_divert_and_devices_that_write_in_order_are_named() {
    use super::pci_config as config;
    let port = |control| config::sample(0x2810, Some((0x5f, control)));
    let list = |names: &[&str]| Signal::from(names.to_vec());
    let bench = with_bus(config::sample(0x2920, None), port(0x1d));
    assert_eq!(get(&bench, "acs_redirects"), list(&["0000:3b:01.0"]));
    assert_eq!(get(&bench, "relaxed_ordering_off"), list(&["0000:3c:00.0"]));
    // Source validation alone diverts nothing.
    let bench = with_bus(config::sample(0x2930, None), port(0x01));
    assert_eq!(get(&bench, "acs_redirects"), list(&[]));
    assert_eq!(get(&bench, "relaxed_ordering_off"), list(&[]));
    bench.write("sys/bus/pci/drivers/mlx5_vfio_pci/0000:9a:00.0/x", "");
    assert_eq!(get(&bench, "vfio_count"), 1.into());
    // In a virtual machine the registers are the host's.
    bench.write("proc/cpuinfo", "flags : fpu hypervisor lm\n");
    bench.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
    assert_eq!(get(&bench, "virtualization"), "qemu".into());
    for name in ["acs_redirects", "relaxed_ordering_off"] {
        assert_eq!(get(&bench, name), Signal::Absent, "{name}");
    }
}

#[test]
fn cards_without_rdma_virtual_functions_and_root_ports_alone_are_not_judged() {
    use super::pci_config as config;
    let list = |names: &[&str]| Signal::from(names.to_vec());
    let bench = with_bus(config::sample(0x2930, None), config::sample(0x2810, Some((0x5f, 0x01))));
    // A card on the board that turns the bit off itself (tg3), and a virtual function of the GPU; both at root ports that
    // divert, without a switch.
    let diverts = || config::port(4, config::sample(0x2810, Some((0x5f, 0x1d))));
    for (port, address, class, vendor, kind) in [
        ("0000:e0:01.0", "0000:e1:00.0", "0x020000", "0x14e4", "net/eno1"),
        ("0000:e0:02.0", "0000:e2:00.4", "0x030200", "0x10de", "physfn"),
    ] {
        for (place, address, class, bytes) in [
            (port.to_owned(), port, "0x060400", diverts()),
            (format!("{port}/{address}"), address, class, config::sample(0x2920, None)),
        ] {
            let folder = format!("sys/devices/pci0000:e0/{place}");
            bench.write(&format!("{folder}/class"), &format!("{class}\n"));
            bench.write(&format!("{folder}/vendor"), &format!("{vendor}\n"));
            fs::write(bench.path(&folder).join("config"), bytes).unwrap();
            let link = bench.path(&format!("sys/bus/pci/devices/{address}"));
            symlink(format!("../../../devices/pci0000:e0/{place}"), link).unwrap();
        }
        bench.write(&format!("sys/devices/pci0000:e0/{port}/{address}/{kind}/x"), "");
    }
    let card = "sys/devices/pci0000:00/0000:00:01.0";
    fs::write(bench.path(card).join("config"), diverts()).unwrap();
    assert_eq!(get(&bench, "relaxed_ordering_off"), list(&[]));
    assert_eq!(get(&bench, "acs_redirects"), list(&[]));
    // One with RDMA counts.
    bench.write(&format!("{card}/0000:3b:00.0/infiniband/mlx5_0/node_type"), "1: CA\n");
    fs::write(bench.path(card).join("0000:3b:00.0/config"), config::sample(0x2926, None)).unwrap();
    assert_eq!(get(&bench, "relaxed_ordering_off"), list(&["0000:3b:00.0"]));
    assert_eq!(get(&bench, "acs_redirects"), list(&[]), "its root port has no switch below it");
}

#[test]
fn a_bus_that_cannot_be_read_is_unknown() {
    use super::pci_config as config;
    let names = ["acs_redirects", "relaxed_ordering_off"];
    let gone = with_bus(vec![0xff; 4096], config::sample(0x2810, None));
    // Users get 64 bytes.
    let short = with_bus(config::sample(0x2930, None)[..64].to_vec(), config::sample(0x2810, None));
    let port = with_bus(config::sample(0x2930, None), config::sample(0x2810, None)[..256].to_vec());
    let unsure = with_bus(config::sample(0x2930, None), config::sample(0x2810, None));
    fs::remove_file(unsure.path("proc/cpuinfo")).unwrap();
    for bench in [gone, short, port, unsure] {
        names.iter().for_each(|name| assert_unknown(&bench, name));
    }
    let bench = node();
    bench.write("sys/bus/pci/drivers/vfio-pci", "no folder");
    assert_unknown(&bench, "vfio_count");
}

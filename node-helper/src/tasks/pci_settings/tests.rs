use std::os::unix::fs::symlink;

use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

use super::*;
use crate::{
    declare::drive,
    tasks::testing::{Bench, failure, shown},
};

const GPU: &str = "0000:3b:00.0";
const NIC: &str = "0000:3c:00.0";
const PORT: &str = "0000:3a:01.0";
const ROOT: &str = "0000:39:00.0";

/// A GPU and a card below a port that can do ACS, and a root port that cannot.
fn bench() -> Bench {
    let bench = Bench::new();
    let add = |address: &str, place: &str, class: &str, device: &str, config: Vec<u8>| {
        let folder = format!("sys/devices/pci0000:39/{place}{address}");
        for (name, text) in [("class", class), ("vendor", "0x10de"), ("device", device), ("numa_node", "0")] {
            bench.write(&format!("{folder}/{name}"), &format!("{text}\n"));
        }
        fs::write(bench.path(&folder).join("config"), config).unwrap();
        fs::create_dir_all(bench.path("sys/bus/pci/devices")).unwrap();
        let link = bench.path(&format!("sys/bus/pci/devices/{address}"));
        symlink(format!("../../../devices/pci0000:39/{place}{address}"), link).unwrap();
    };
    let above = format!("{ROOT}/{PORT}/");
    add(ROOT, "", "0x060400", "0x1001", config::port(4, config::sample(0x2810, None)));
    add(PORT, &format!("{ROOT}/"), "0x060400", "0x1002", config::port(6, able()));
    add(GPU, &above, "0x030200", "0x2330", config::sample(0x2930, None));
    add(NIC, &above, "0x020000", "0x1021", config::sample(0x5936, None));
    bench.script(
        "usr/bin/systemctl",
        "#!/bin/sh\nhere=$(dirname \"$0\")/../..\necho \"$*\" >>\"$here/log\"\n\
         case $1 in show) printf 'Id=gpufleet-pci.service\\nLoadState=loaded\\nActiveState=%s\\nUnitFileState=%s\\n' \
         \"$(cat $here/active 2>/dev/null)\" enabled;; esac\n\
         case $2 in restart) echo active >\"$here/active\";; esac\n",
    );
    bench
}

/// A port that can do ACS, which is on.
fn able() -> Vec<u8> {
    config::sample(0x2810, Some((0x5f, 0x1d)))
}

fn set(bench: &Bench, place: &str, bytes: Vec<u8>) {
    fs::write(bench.path(&format!("sys/devices/pci0000:39/{place}/config")), bytes).unwrap();
}

/// Runs the script, as a boot does.
fn boot(bench: &Bench) -> String {
    let mut script = bench.read("etc/gpufleet/gpufleet-pci.sh");
    for folder in ["sys/bus/pci/devices", "sys/bus/pci/drivers"] {
        script = script.replace(&format!("/{folder}"), bench.path(folder).to_str().unwrap());
    }
    let ran = std::process::Command::new("/bin/sh").arg("-c").arg(&script).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

fn run(bench: &Bench, task: Value, mode: Mode, allowed: Disruption) -> OpOutcome {
    let task: PciSettings = serde_json::from_value(task).unwrap();
    bench.node(|node| drive(&task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
}

fn control(bench: &Bench, address: &str) -> u16 {
    bench.node(|node| config::express(&bytes(node, address).unwrap()).unwrap().unwrap().control)
}

fn acs(bench: &Bench, address: &str) -> u16 {
    bench.node(|node| config::acs(&bytes(node, address).unwrap()).unwrap().unwrap().control)
}

#[test]
fn the_read_request_is_set_without_a_disturbance() {
    let bench = bench();
    let task = || json!({"devices": ["gpu", "nic"], "max_read_request": 4096});
    let predicted = run(&bench, task(), Mode::Predict, Disruption::Live);
    assert_eq!(
        shown(&predicted),
        [
            "0000:3b:00.0 max read request: 512 B -> 4096 B (live)",
            "gpufleet-pci.service at boot: without a unit file -> max read request 4096 of 2 PCI devices (live)",
            "gpufleet-pci.service: stopped -> started (live)",
        ]
    );
    assert_eq!(run(&bench, task(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.activate(Disruption::Reboot);
    assert_eq!(run(&bench, task(), Mode::Predict, Disruption::Live).status, OpStatus::Ok, "after the boot");
    bench.forget();
    let done = run(&bench, task(), Mode::Apply, Disruption::Live);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    assert_eq!(control(&bench, GPU), 0x5930, "other bits stay");
    assert_eq!(done.data["devices"][1]["relaxed_ordering"], true);
    assert_eq!(done.data["devices"][1]["max_payload"], 256);
    let again = run(&bench, task(), Mode::Apply, Disruption::Live);
    assert_eq!(again.status, OpStatus::Ok, "{again:?}");
}

#[test]
fn access_control_is_of_the_ports_above_and_behind_a_drain() {
    let bench = bench();
    let off = || json!({"devices": "gpu", "acs": "off"});
    let done = run(&bench, json!({"devices": GPU, "max_read_request": 512}), Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "only the service: {done:?}");
    let refused = run(&bench, off(), Mode::Apply, Disruption::Live);
    assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = run(&bench, off(), Mode::Apply, Disruption::Clients);
    assert_eq!(
        shown(&done)[0],
        "0000:3a:01.0 ACS: on -> off (clients)",
        "a port without ACS is left out: {done:?}"
    );
    assert_eq!(acs(&bench, PORT), 0);
    let script = bench.read("etc/gpufleet/gpufleet-pci.sh");
    assert!(
        script.contains("word 0000:3b:00.0 0x10de:0x2330 0x78 0xff 0x10 0x80 0x7000 0x2000\n"),
        "{script}"
    );
    assert!(
        script.contains("word 0000:3a:01.0 0x10de:0x1002 0x148 0xffff 0xd 0x14e 0xffff 0x0\n"),
        "{script}"
    );
    for task in [off(), json!({"devices": GPU, "max_read_request": 512})] {
        let again = run(&bench, task, Mode::Apply, Disruption::Live);
        assert_eq!(again.status, OpStatus::Ok, "{again:?}");
    }
    let on = run(&bench, json!({"devices": "gpu", "acs": "on"}), Mode::Predict, Disruption::Live);
    assert!(failure(&on).starts_with("0000:39:00.0 cannot do ACS"), "{on:?}");
}

#[test]
fn the_service_writes_only_what_it_knows() {
    let bench = bench();
    let task = json!({"devices": ["gpu", "nic"], "max_read_request": 4096, "acs": "off"});
    let done = run(&bench, task, Mode::Apply, Disruption::Clients);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    // As after a boot, with another card in the slot of the GPU.
    let place = format!("sys/devices/pci0000:39/{ROOT}/{PORT}");
    fs::write(bench.path(&format!("{place}/config")), config::sample(0x2810, Some((0x5f, 0x1d)))).unwrap();
    fs::write(bench.path(&format!("{place}/{NIC}/config")), config::sample(0x2936, None)).unwrap();
    fs::write(bench.path(&format!("{place}/{GPU}/config")), config::sample(0x2930, None)).unwrap();
    bench.write(&format!("{place}/{GPU}/device"), "0x9999\n");
    let real = bench.path("sys/bus/pci/devices");
    let script = bench.read("etc/gpufleet/gpufleet-pci.sh");
    let script = script.replace("/sys/bus/pci/devices", real.to_str().unwrap());
    let ran = std::process::Command::new("/bin/sh").arg("-c").arg(&script).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{ran:?}");
    assert!(told.contains("0000:3b:00.0 is 0x10de:0x9999, not 0x10de:0x2330: it is left alone"), "{told}");
    assert_eq!((control(&bench, NIC), control(&bench, GPU), acs(&bench, PORT)), (0x5936, 0x2930, 0));
    assert_eq!(fs::metadata(bench.path(&format!("{place}/config"))).unwrap().len(), 4096);
    // Another layout of the same device is not written either.
    let mut other = config::sample(0x2936, None);
    other[0x78] = 0x11;
    fs::write(bench.path(&format!("{place}/{NIC}/config")), &other).unwrap();
    let ran = std::process::Command::new("/bin/sh").arg("-c").arg(&script).output().unwrap();
    assert!(!ran.status.success());
    assert_eq!(fs::read(bench.path(&format!("{place}/{NIC}/config"))).unwrap(), other);
}

#[test]
fn what_must_not_be_set_is_refused_with_the_reason() {
    let bench = bench();
    let off = || json!({"devices": "gpu", "acs": "off"});
    bench.write("sys/kernel/iommu_groups/7/type", "DMA-FQ\n");
    let warned = run(&bench, off(), Mode::Predict, Disruption::Live);
    assert!(warned.warnings[0].starts_with("an IOMMU translates here"), "{warned:?}");
    bench.write("sys/bus/pci/drivers/vfio-pci/0000:9a:00.0/x", "");
    let refused = run(&bench, off(), Mode::Predict, Disruption::Live);
    assert!(failure(&refused).starts_with("vfio-pci has 0000:9a:00.0"), "{refused:?}");
    let gone = run(
        &bench,
        json!({"devices": "0000:77:00.0", "max_read_request": 512}),
        Mode::Predict,
        Disruption::Live,
    );
    assert_eq!(failure(&gone), "there is no PCI device 0000:77:00.0 here");
    let none =
        run(&bench, json!({"devices": "nvme", "max_read_request": 512}), Mode::Predict, Disruption::Live);
    assert!(matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains("no nvme")));
    let place = format!("sys/devices/pci0000:39/{ROOT}/{PORT}/{GPU}/config");
    fs::write(bench.path(&place), [0xff; 4096]).unwrap();
    let lost =
        run(&bench, json!({"devices": "gpu", "max_read_request": 512}), Mode::Predict, Disruption::Live);
    assert!(matches!(&lost.status, OpStatus::Unknown { reason } if reason.contains("gone from the bus")));
    bench.write("proc/cpuinfo", "flags : fpu hypervisor lm\n");
    let guest = run(&bench, off(), Mode::Apply, Disruption::Clients);
    assert!(
        matches!(&guest.status, OpStatus::NotApplicable { reason } if reason.contains("the host's")),
        "{guest:?}"
    );
}

#[test]
fn vfio_keeps_acs_whatever_earlier_tasks_left() {
    let bench = bench();
    set(&bench, ROOT, config::port(4, able()));
    let off = || json!({"devices": "gpu", "acs": "off"});
    let reads = || json!({"devices": "nic", "max_read_request": 4096});
    assert_eq!(run(&bench, off(), Mode::Apply, Disruption::Clients).status, OpStatus::Changed);
    assert_eq!((acs(&bench, ROOT), acs(&bench, PORT)), (0, 0));
    // A boot after which a driver of a single sort of devices has one.
    set(&bench, ROOT, config::port(4, able()));
    set(&bench, &format!("{ROOT}/{PORT}"), config::port(6, able()));
    bench.write("sys/bus/pci/drivers/mlx5_vfio_pci/0000:9a:00.0/x", "");
    let told = boot(&bench);
    assert!(told.contains("0000:3a:01.0: vfio has devices: its ACS is left alone"), "{told}");
    assert_eq!((acs(&bench, ROOT), acs(&bench, PORT)), (0x1d, 0x1d));
    let refused = run(&bench, off(), Mode::Predict, Disruption::Live);
    assert!(failure(&refused).starts_with("mlx5_vfio_pci has 0000:9a:00.0: "), "{refused:?}");
    assert!(failure(&refused).ends_with("a task with `acs: on` removes them"), "{refused:?}");
    let done = run(&bench, reads(), Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    assert!(done.warnings[0].contains("leaves the ACS of 0000:39:00.0, 0000:3a:01.0 alone"), "{done:?}");
    assert!(boot(&bench).contains("its ACS is left alone"));
    // Also lines of ports that are not above the devices.
    let on = || json!({"devices": PORT, "acs": "on"});
    let done = run(&bench, on(), Mode::Apply, Disruption::Live);
    assert_eq!(done.status, OpStatus::Changed, "{done:?}");
    let script = bench.read("etc/gpufleet/gpufleet-pci.sh");
    assert!(!script.contains("0xffff 0x0\n") && script.contains("0xffff 0x1d\n"), "{script}");
    for task in [on(), reads()] {
        let again = run(&bench, task, Mode::Apply, Disruption::Live);
        assert_eq!((&again.status, again.warnings.len()), (&OpStatus::Ok, 0), "{again:?}");
    }
    // With nothing bound, it is only a driver.
    fs::remove_dir_all(bench.path("sys/bus/pci/drivers/mlx5_vfio_pci/0000:9a:00.0")).unwrap();
    bench.write("sys/bus/pci/drivers/mlx5_vfio_pci/bind", "");
    let free = run(&bench, off(), Mode::Predict, Disruption::Live);
    assert_eq!(free.status, OpStatus::Changed, "{free:?}");
    bench.forget();
    bench.write("sys/bus/pci/drivers/vfio-pci", "no folder");
    let unknown = run(&bench, off(), Mode::Predict, Disruption::Live);
    assert!(
        matches!(&unknown.status, OpStatus::Unknown { reason } if reason.contains("vfio-pci")),
        "{unknown:?}"
    );
}

#[test]
fn a_start_of_the_service_counts_for_the_lines_of_others() {
    let bench = bench();
    let off = || json!({"devices": "gpu", "acs": "off"});
    let reads = || json!({"devices": "nic", "max_read_request": 4096});
    assert_eq!(run(&bench, off(), Mode::Apply, Disruption::Clients).status, OpStatus::Changed);
    set(&bench, &format!("{ROOT}/{PORT}"), config::port(6, able()));
    let predicted = run(&bench, reads(), Mode::Predict, Disruption::Live);
    let port = "0000:3a:01.0 ACS: on -> off (clients)".to_owned();
    assert_eq!(shown(&predicted).last(), Some(&port), "{predicted:?}");
    assert_eq!(run(&bench, off(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    assert_eq!(run(&bench, reads(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    bench.forget();
    let held = run(&bench, reads(), Mode::Apply, Disruption::Live);
    assert_eq!(held.status, OpStatus::NeedsPermit { class: Disruption::Clients });
    let done = run(&bench, reads(), Mode::Apply, Disruption::Clients);
    assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
    // Where the service need not start, the port is the other task's.
    assert_eq!(run(&bench, reads(), Mode::Apply, Disruption::Live).status, OpStatus::Ok);
}

#[test]
fn after_a_boot_only_the_lines_from_before_it_count() {
    let bench = bench();
    let task = |bytes: u32| json!({"devices": GPU, "max_read_request": bytes, "acs": "off"});
    let first = json!({"devices": GPU, "max_read_request": 512});
    assert_eq!(run(&bench, first, Mode::Apply, Disruption::Live).status, OpStatus::Changed);
    bench.activate(Disruption::Reboot);
    let predicted = run(&bench, task(4096), Mode::Predict, Disruption::Live);
    let changes = shown(&predicted);
    assert_eq!(changes[0], "0000:3b:00.0 max read request: 512 B -> 4096 B (live)");
    assert!(changes[1].starts_with("0000:3a:01.0 ACS: "), "{predicted:?}");
    assert_eq!(predicted.changes[1].certainty, gpufleet_protocol::Certainty::Possible);
    assert_eq!(run(&bench, task(4096), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    // In the run the boot has set what the script had then.
    bench.forget();
    boot(&bench);
    let done = run(&bench, task(4096), Mode::Apply, Disruption::Clients);
    assert_eq!(shown(&done)[0], changes[0], "{done:?}");
}

#[test]
fn the_upper_end_of_a_switch_needs_no_acs() {
    let bench = bench();
    let on = || json!({"devices": "gpu", "acs": "on"});
    let root = run(&bench, on(), Mode::Predict, Disruption::Live);
    assert!(failure(&root).starts_with("0000:39:00.0 cannot do ACS"), "{root:?}");
    for config in [config::sample(0x2810, None), config::sample(0x2810, Some((0x40, 0)))] {
        set(&bench, ROOT, config::port(5, config));
        set(&bench, &format!("{ROOT}/{PORT}"), config::port(6, config::sample(0x2810, Some((0x5f, 0)))));
        let done = run(&bench, on(), Mode::Apply, Disruption::Clients);
        assert_eq!(shown(&done)[0], "0000:3a:01.0 ACS: off -> on (clients)", "{done:?}");
        assert_eq!(acs(&bench, PORT), 0x1d);
        assert_eq!(run(&bench, on(), Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    }
}

#[test]
fn two_tasks_of_a_play_do_not_undo_each_other() {
    let bench = bench();
    let task = |devices: &str, bytes: u32| json!({"devices": devices, "max_read_request": bytes});
    // Unchanged, and declared all the same.
    let first = run(&bench, task("gpu", 512), Mode::Predict, Disruption::Live);
    assert!(shown(&first).iter().all(|change| change.starts_with("gpufleet-pci.service")), "{first:?}");
    assert_eq!(run(&bench, task(GPU, 512), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
    let refused = run(&bench, task(GPU, 4096), Mode::Predict, Disruption::Live);
    assert_eq!(
        failure(&refused),
        "an earlier task declares max read request 512 for 0000:3b:00.0, and this one max read request 4096: the two would \
         undo each other at every run; let only one of them have it"
    );
    bench.activate(Disruption::Reboot);
    assert!(
        failure(&run(&bench, task(GPU, 4096), Mode::Predict, Disruption::Live)).contains("undo each other")
    );
    bench.forget();
    let shared = |devices: &str, acs: &str| json!({"devices": devices, "acs": acs});
    run(&bench, shared("gpu", "off"), Mode::Predict, Disruption::Live);
    let refused = run(&bench, shared("nic", "on"), Mode::Predict, Disruption::Live);
    assert!(
        failure(&refused).starts_with("an earlier task declares ACS off for 0000:3a:01.0"),
        "{refused:?}"
    );
    assert_eq!(run(&bench, shared("nic", "off"), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
}

#[test]
fn a_task_without_settings_only_reads() {
    let bench = bench();
    fs::remove_file(bench.path("usr/bin/systemctl")).unwrap();
    bench.write("sys/bus/pci/drivers/vfio-pci/0000:9a:00.0/x", "");
    let read = run(&bench, json!({"devices": ["gpu", "nic"]}), Mode::Apply, Disruption::Live);
    assert_eq!((&read.status, read.changes.len(), read.warnings.len()), (&OpStatus::Ok, 0, 0), "{read:?}");
    assert_eq!(read.data["devices"][0]["max_read_request"], 512);
    assert_eq!(
        read.data["ports"],
        json!([
            {"address": "0000:3a:01.0", "acs": "on", "diverts": true},
            {"address": "0000:39:00.0", "acs": null},
        ])
    );
    assert_eq!(read.data["vfio"], json!(["vfio-pci has 0000:9a:00.0"]));
    assert!(!bench.path("etc/gpufleet").exists(), "nothing is written");
}

//! `gpu_driver` on lab nodes, with real apt and packages of the tests' own.

use std::path::PathBuf;

use gpufleet_tests::{Document, Driver, Drivers, Fleet, FleetOptions, Home};

const OLD: &str = "575.57.08";
const NEW: &str = "580.173.02";
const NEXT: &str = "590.44.01";

fn playbook() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../playbooks/driver-upgrade.yaml")
}

/// A fleet whose nodes have the packages of the old driver.
fn fleet(nodes: usize, drivers: &[Driver]) -> (Fleet, Drivers) {
    let fleet = Fleet::start(&FleetOptions { nodes, ..FleetOptions::default() });
    let mut all = vec![Driver::new(OLD)];
    all.extend_from_slice(drivers);
    let drivers = Drivers::new(&all);
    for node in fleet.names() {
        drivers.install(&fleet, &node);
        let install = format!(
            "apt-get -y install nvidia-open-575 nvidia-kernel-open-dkms={OLD}-1 libnvidia-ml1={OLD}-1"
        );
        fleet.read(
            &node,
            &format!("{install} && rmmod nvidia_uvm nvidia_modeset nvidia && modprobe nvidia_uvm"),
        );
        assert_eq!(loaded(&fleet, &node), OLD);
    }
    (fleet, drivers)
}

/// The version that programs see.
fn loaded(fleet: &Fleet, node: &str) -> String {
    fleet.read(node, "nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0")
}

fn packages(fleet: &Fleet, node: &str) -> String {
    fleet.read(node, "dpkg-query -W -f '${Package}=${Version}\\n' 'nvidia-open-*' libnvidia-ml1 nvidia-kernel-open-dkms | sort")
}

fn gpufleet(home: &Home, fleet: &Fleet, verb: &str, words: &[&str], code: i32) -> Document {
    let inventory = fleet.inventory();
    let mut all = vec![verb, "--format", "json", "-i", &inventory];
    if verb == "run" {
        all.push("--yes");
    }
    home.gpufleet(all).args(words).arg(playbook()).run().expect(code).document()
}

#[test]
fn a_driver_is_replaced_without_a_reboot_and_what_it_lost_is_set_again() {
    let (fleet, _drivers) = fleet(2, &[Driver::new(NEW), Driver::new(NEXT)]);
    let home = Home::new();
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_persistence: {mode: daemon}\n    - gpu_power: {limit_watts: 500}\n    - gpu_driver: {branch: 580}\n",
    );
    let inventory = fleet.inventory();
    let play = |verb: &str| {
        let mut words = vec![verb, "play.yaml", "--format", "json", "-i", &inventory];
        words.extend((verb == "run").then_some("--yes"));
        home.gpufleet(words).run().expect(0).document()
    };
    let planned = play("plan");
    assert_eq!(loaded(&fleet, "gpu001"), OLD, "a plan changes nothing");
    let done = play("run");
    for node in fleet.names() {
        assert_eq!((loaded(&fleet, &node).as_str(), fleet.boots(&node)), (NEW, 1));
        assert_eq!(done.stat(&node, "changed"), planned.stat(&node, "changed"));
        // The limit was lost with the modules.
        assert_eq!(
            fleet.read(&node, "nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits -i 1"),
            "500.00"
        );
        assert_eq!(
            packages(&fleet, &node),
            format!("libnvidia-ml1={NEW}-1\nnvidia-kernel-open-dkms={NEW}-1\nnvidia-open-580={NEW}-1")
        );
    }
    assert_eq!(play("run").total("changed"), 0);
    let alone = gpufleet(&home, &fleet, "plan", &["-e", "driver_branch=590"], 0).value().to_string();
    let lost = "loses by the reload of the driver what no task up to here declares: the power limit of 500 W";
    assert!(alone.contains(lost) && !planned.value().to_string().contains("up to here declares"), "{alone}");
}

#[test]
fn a_driver_that_does_not_come_up_is_replaced_by_the_former_one() {
    let broken = Driver { fault: Some("Key was rejected by service"), ..Driver::new(NEW) };
    let unbuilt = Driver { unbuilt: true, ..Driver::new(NEXT) };
    let (fleet, _drivers) = fleet(3, &[broken, unbuilt]);
    let home = Home::new();
    let before = packages(&fleet, "gpu001");
    for (word, says) in [
        (
            "driver_branch=580",
            "modprobe nvidia: exit status 1: modprobe: ERROR: could not insert 'nvidia': Key was rejected",
        ),
        ("driver_version=590.44.01", "there is no module nvidia for the kernel"),
    ] {
        let done = gpufleet(&home, &fleet, "run", &["-e", word], 5);
        let first: Vec<String> = fleet
            .names()
            .into_iter()
            .filter(|node| done.message(node).contains("does not come up"))
            .collect();
        let [failed] = first.as_slice() else { panic!("the wave stops there: {first:?}") };
        let message = done.message(failed);
        assert!(message.contains(says), "{message}");
        assert!(message.contains(&format!("the node is back at {OLD}, which runs")), "{message}");
        for node in fleet.names() {
            assert_eq!(
                (loaded(&fleet, &node).as_str(), packages(&fleet, &node)),
                (OLD, before.clone()),
                "{node}"
            );
        }
    }
}

#[test]
fn a_driver_that_waits_for_a_reboot_comes_up_with_it_or_goes_back_after_it() {
    let broken = Driver { fault: Some("Exec format error"), ..Driver::new(NEXT) };
    // Something shows a picture on the GPUs, so that the modules cannot be unloaded.
    let (fleet, _drivers) = fleet(1, &[Driver::new(NEW), broken]);
    let home = Home::new();
    fleet.control("gpu001", &["machine", "nvidia_drm_refs", "1"]);
    fleet.read("gpu001", "modprobe nvidia_drm");
    let never = gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580 driver_reboot=never"], 5);
    assert!(
        never.message("gpu001").contains("something shows a picture on the GPUs"),
        "{}",
        never.message("gpu001")
    );
    let planned = gpufleet(&home, &fleet, "plan", &["-e", "driver_branch=580"], 0);
    let done = gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 0);
    assert_eq!((loaded(&fleet, "gpu001").as_str(), fleet.boots("gpu001")), (NEW, 2));
    assert_eq!(done.stat("gpu001", "changed"), planned.stat("gpu001", "changed"));
    assert_eq!(gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 0).total("changed"), 0);

    let failed = gpufleet(&home, &fleet, "run", &["-e", "driver_branch=590"], 5);
    let message = failed.message("gpu001");
    assert!(
        message.contains("Exec format error") && message.contains(&format!("back at {NEW}, which runs")),
        "{message}"
    );
    assert_eq!((loaded(&fleet, "gpu001").as_str(), fleet.boots("gpu001")), (NEW, 3));
    assert!(packages(&fleet, "gpu001").contains("nvidia-open-580"));
}

#[test]
fn who_holds_the_driver_is_named_before_and_kept_from_harm() {
    let (fleet, _drivers) = fleet(1, &[Driver::new(NEW)]);
    let home = Home::new();
    fleet.read("gpu001", "systemctl enable --now nvidia-persistenced nvidia-dcgm");
    let pid = fleet.control("gpu001", &["client", "add", "0"]);
    let planned = gpufleet(&home, &fleet, "plan", &["-e", "driver_branch=580"], 0);
    let text = planned.value().to_string();
    assert!(text.contains(&format!("process {pid} ")), "{text}");
    let refused = gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 5);
    assert!(refused.message("gpu001").contains("holds GPU 0"), "{}", refused.message("gpu001"));
    assert_eq!(loaded(&fleet, "gpu001"), OLD);
    fleet.control("gpu001", &["client", "remove", &pid]);
    let home = Home::new();
    gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 0);
    assert_eq!(loaded(&fleet, "gpu001"), NEW);
    for unit in ["nvidia-persistenced", "nvidia-dcgm"] {
        assert_eq!(fleet.read("gpu001", &format!("systemctl is-active {unit}")), "active", "{unit}");
    }
    // Nightly updates leave it alone.
    assert!(fleet.read("gpu001", "apt-mark showhold").contains("nvidia-open-580"));
}

#[test]
fn a_node_without_a_driver_gets_one() {
    let (fleet, _drivers) = fleet(1, &[Driver::new(NEW)]);
    let home = Home::new();
    let gone = "rmmod nvidia_uvm nvidia_modeset nvidia && apt-get -y purge nvidia-open-575 libnvidia-ml1 nvidia-kernel-open-dkms \
                && mkdir /usr/src/nvidia-none";
    fleet.read("gpu001", gone);
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_driver: {branch: 580, source: nvidia}\n    - gpu_persistence: {mode: \
         daemon}\n    - gpu_power: {limit_watts: 500}\n",
    );
    let inventory = fleet.inventory();
    // What GPUs are is known only with the driver.
    let planned = home.gpufleet(["plan", "play.yaml", "-i", &inventory, "--diff"]).run().expect(2);
    let words: Vec<&str> = planned.stdout.split_whitespace().collect();
    assert!(words.join(" ").contains("module nvidia -> 580.173.02 live"), "{planned}");
    assert!(planned.stdout.contains("depends on what only the run itself can tell"), "{planned}");
    home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes"]).run().expect(0);
    assert_eq!((loaded(&fleet, "gpu001").as_str(), fleet.boots("gpu001")), (NEW, 1));
    let again =
        home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(0);
    assert_eq!(again.document().total("changed"), 0);
}

/// Kills the helper when the old modules are gone, and the new packages are there.
fn killed_between_the_drivers(home: &Home, fleet: &Fleet) {
    fleet.control(
        "gpu001",
        &["fault", "add", "{program: modprobe, args: nvidia, effect: kill_parent, times: 1}"],
    );
    let killed = home
        .gpufleet(["run", "--format", "json", "-i", &fleet.inventory(), "--yes", "-e", "driver_branch=580"])
        .arg(playbook())
        .run();
    assert_ne!(killed.code, Some(0), "{killed}");
}

#[test]
fn a_helper_killed_between_the_drivers_leaves_a_way_on_and_back() {
    let broken = Driver { fault: Some("Exec format error"), ..Driver::new(NEW) };
    let (fleet, _drivers) = fleet(1, &[broken, Driver::new(NEXT)]);
    let home = Home::new();
    fleet.read("gpu001", "systemctl enable --now nvidia-persistenced");
    killed_between_the_drivers(&home, &fleet);
    assert!(
        packages(&fleet, "gpu001").contains(&format!("libnvidia-ml1={NEW}-1")),
        "{}",
        packages(&fleet, "gpu001")
    );
    let failed = gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 5);
    let message = failed.message("gpu001");
    assert!(message.contains(&format!("the node is back at {OLD}, which runs")), "{message}");
    assert_eq!(loaded(&fleet, "gpu001"), OLD);
    gpufleet(&home, &fleet, "run", &["-e", "driver_branch=590"], 0);
    assert_eq!(loaded(&fleet, "gpu001"), NEXT);
    assert_eq!(fleet.read("gpu001", "systemctl is-active nvidia-persistenced"), "active");
    assert!(!fleet.has("gpu001", "var/lib/gpufleet/driver"));
}

#[test]
fn packages_without_a_module_behind_a_killed_helper_go_back() {
    let (fleet, _drivers) = fleet(1, &[Driver::new(NEW)]);
    let home = Home::new();
    killed_between_the_drivers(&home, &fleet);
    // As a DKMS leaves it that could not build for this kernel.
    fleet.read("gpu001", "rm /usr/lib/modules/*/updates/dkms/nvidia.ko");
    let failed = gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 5);
    let message = failed.message("gpu001");
    assert!(
        message.contains("there is no module nvidia for the kernel")
            && message.contains(&format!("back at {OLD}, which runs")),
        "{message}"
    );
    assert_eq!(loaded(&fleet, "gpu001"), OLD);
}

#[test]
fn a_driver_that_loads_and_does_not_answer_is_replaced_by_the_former_one() {
    let (fleet, _drivers) = fleet(1, &[Driver::new(NEW)]);
    let home = Home::new();
    let before = packages(&fleet, "gpu001");
    let wrong = "{program: modprobe, args: nvidia_uvm, times: 1, effect: {exit: {code: 1, message: 'modprobe: ERROR: no uvm'}}}";
    fleet.control("gpu001", &["fault", "add", wrong]);
    let failed = gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 5);
    let message = failed.message("gpu001");
    // The new nvidia was loaded by then, and had to go before the former one could.
    assert!(
        message.contains("no uvm") && message.contains(&format!("back at {OLD}, which runs")),
        "{message}"
    );
    assert_eq!((loaded(&fleet, "gpu001").as_str(), packages(&fleet, "gpu001")), (OLD, before));
}

/// Checks that packages as a killed dpkg or helper left them are finished before the driver is replaced.
fn finished_first(left: &str) {
    let (fleet, _drivers) = fleet(1, &[Driver::new(NEW)]);
    let home = Home::new();
    fleet.read("gpu001", left);
    let simulated = fleet.ssh("gpu001", "apt-get -s install nvidia-open-575");
    assert!(!simulated.status.success(), "apt cannot even simulate: {simulated:?}");
    let planned = gpufleet(&home, &fleet, "plan", &["-e", "driver_branch=580"], 0);
    assert!(planned.value().to_string().contains("half installed"), "{:#}", planned.value());
    gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 0);
    assert_eq!(
        (loaded(&fleet, "gpu001").as_str(), packages(&fleet, "gpu001")),
        (NEW, format!("libnvidia-ml1={NEW}-1\nnvidia-kernel-open-dkms={NEW}-1\nnvidia-open-580={NEW}-1"))
    );
    fleet.read("gpu001", "apt-get check");
    assert_eq!(gpufleet(&home, &fleet, "run", &["-e", "driver_branch=580"], 0).total("changed"), 0);
}

#[test]
fn packages_that_dpkg_left_half_installed_are_finished_first() {
    // Unpacked, beside packages that need the former version.
    finished_first(&format!("dpkg --unpack /opt/drivers/libnvidia-ml1_{NEW}-1_all.deb"));
}

#[test]
fn packages_that_a_killed_helper_configured_and_did_not_mend_are_finished_first() {
    // No package is half installed any more, and they still do not fit each other.
    finished_first(&format!(
        "dpkg --unpack /opt/drivers/libnvidia-ml1_{NEW}-1_all.deb && dpkg --configure -a"
    ));
}

#[test]
fn a_driver_that_is_right_on_disk_and_does_not_answer_is_not_ok() {
    let (fleet, _drivers) = fleet(1, &[]);
    let home = Home::new();
    gpufleet(&home, &fleet, "run", &["-e", "driver_branch=575"], 0);
    fleet.control("gpu001", &["fault", "add", "{function: 'nvmlInit*', effect: {return: 18}}"]);
    let failed = gpufleet(&home, &fleet, "run", &["-e", "driver_branch=575"], 5);
    let message = failed.message("gpu001");
    assert!(
        message.contains(&format!("the driver {OLD} is installed and loaded, and does not work")),
        "{message}"
    );
}

#[test]
fn a_way_back_that_would_not_work_is_told_before_anything_is_touched() {
    let (fleet, _drivers) = fleet(1, &[Driver::new(NEW)]);
    let home = Home::new();
    let before = packages(&fleet, "gpu001");
    // The former package's file in the cache is cut off, as on a disk that was full.
    let name = format!("libnvidia-ml1_{OLD}-1_all.deb");
    fleet.read(
        "gpu001",
        &format!(
            "head -c -200 /opt/drivers/{name} >/var/cache/apt/archives/{name} && rm /opt/drivers/{name}"
        ),
    );
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_driver: {branch: 580, go_back: required}\n",
    );
    let inventory = fleet.inventory();
    let refused =
        home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(2);
    let refused = refused.document();
    let message = refused.message("gpu001");
    assert!(
        message.contains("nothing was changed") && message.contains("could not be installed again"),
        "{message}"
    );
    assert_eq!((loaded(&fleet, "gpu001").as_str(), packages(&fleet, "gpu001")), (OLD, before));
}

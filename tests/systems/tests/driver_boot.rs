//! Upgrades of the driver that need a boot: real machines with a real systemd, the real helper, real apt, real boots.
//!
//! A picture on the GPUs keeps the modules from being unloaded, in each boot. Which driver runs is read from the
//! driver itself, and when the machine booted from its own record.

use std::path::Path;
use std::time::Duration;

use gpufleet_systems_tests::{Machines, install_driver};
use gpufleet_tests::{Document, Driver, Drivers, Home};
use nvml_sim::model::ModelKey;

const LIMIT: Duration = Duration::from_secs(240);
const OLD: &str = "575.57.08";
const NEW: &str = "580.173.02";

const PLAY: &str = "
- hosts: fleet
  rollout: {health_gate: [gpu_count], max_fail_percentage: 0}
  tasks:
    - gpu_persistence: {mode: legacy}
    - gpu_power: {limit_watts: 500}
    - gpu_driver: {branch: BRANCH, reboot: if_needed, go_back: required}
    - reboot: {when: required, timeout: 120s}
";

struct Node {
    machines: Machines,
    home: Home,
}

impl Node {
    /// Boots a machine, and installs the old driver on it.
    fn start(new: Driver) -> Self {
        let drivers = Drivers::new(&[Driver::new(OLD), new]);
        let machines = Machines::start_with(1, |disk: &Path| {
            // Two machines never have the same GPUs.
            let name = disk.display().to_string();
            install_driver(disk, &name, &[ModelKey::H100, ModelKey::H100]);
            drivers.copy(&disk.join("opt/drivers"));
            std::fs::create_dir_all(disk.join("etc/apt")).expect("a folder");
            std::fs::write(disk.join("etc/apt/sources.list"), "deb [trusted=yes] file:/opt/drivers ./\n")
                .expect("a list");
        });
        let node = Self { machines, home: Home::new() };
        node.read("apt-get -q update");
        node.read(&format!(
            "exec 2>&1; apt-get -y install nvidia-open-575 nvidia-kernel-open-dkms={OLD}-1 libnvidia-ml1={OLD}-1"
        ));
        node.read(
            "for module in nvidia_drm nvidia_modeset nvidia_uvm nvidia; do rmmod $module; done; modprobe nvidia_uvm",
        );
        node.read("gpusimctl machine nvidia_drm_refs 1 && modprobe nvidia_modeset && modprobe nvidia_drm");
        assert_eq!(node.loaded(), OLD);
        node
    }

    fn read(&self, command: &str) -> String {
        self.machines.read("node1", command)
    }

    /// The version that programs see.
    fn loaded(&self) -> String {
        self.read("nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0")
    }

    fn packages(&self) -> String {
        self.read(
            "dpkg-query -W -f '${Package}=${Version} ${db:Status-Want}\\n' 'nvidia-open-*' libnvidia-ml1 \
             nvidia-kernel-open-dkms | sort",
        )
    }

    /// The boots of the machine, which its own record and systemd's journal agree on.
    fn boots(&self) -> usize {
        let boots = self.machines.boots("node1");
        let ids: Vec<String> = boots.iter().map(|boot| boot.id.replace('-', "")).collect();
        assert_eq!(self.machines.journal_boots("node1"), ids);
        boots.len()
    }

    fn play(&self, verb: &str, branch: u32, code: i32) -> Document {
        self.home.write("play.yaml", &PLAY.replace("BRANCH", &branch.to_string()));
        let inventory = self.machines.inventory();
        let mut words = vec![verb, "play.yaml", "-i", &inventory, "--format", "json"];
        words.extend((verb == "run").then_some("--yes"));
        self.machines.gpufleet(&self.home, &words).within(LIMIT).run().expect(code).document()
    }

    fn restart(&self) {
        let before = self.boots();
        self.machines.tried("node1", "systemctl reboot");
        let deadline = std::time::Instant::now() + LIMIT;
        while self.machines.boots("node1").len() <= before || self.machines.tried("node1", "true").is_none() {
            assert!(std::time::Instant::now() < deadline, "no boot:\n{}", self.machines.console("node1"));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Checks that a driver runs with its packages, all of one version and held, and with what the play declares.
    #[track_caller]
    fn is_at(&self, version: &str, held: bool) {
        let branch = version.split('.').next().unwrap_or_default();
        let want = if held { "hold" } else { "install" };
        assert_eq!(self.loaded(), version);
        let names = ["libnvidia-ml1", "nvidia-kernel-open-dkms", &format!("nvidia-open-{branch}")];
        let all: Vec<String> = names.iter().map(|name| format!("{name}={version}-1 {want}")).collect();
        assert_eq!(self.packages(), all.join("\n"));
    }
}

#[test]
fn a_driver_that_cannot_be_unloaded_comes_up_with_a_boot() {
    let node = Node::start(Driver::new(NEW));
    let planned = node.play("plan", 580, 0);
    assert!(
        planned.value().to_string().contains("something shows a picture on the GPUs"),
        "{:#}",
        planned.value()
    );
    assert_eq!((node.loaded().as_str(), node.boots()), (OLD, 1), "a plan changes nothing");
    let done = node.play("run", 580, 0);
    node.is_at(NEW, true);
    assert_eq!(node.boots(), 2);
    assert_eq!(done.stat("node1", "changed"), planned.stat("node1", "changed"));
    // Lost with the boot, and set again.
    for gpu in node.machines.gpus("node1") {
        assert_eq!(gpu.power_limit_mw, 500_000);
    }
    assert!(node.machines.tried("node1", "test ! -e /var/lib/gpufleet/driver").is_some(), "files are left");
    assert_eq!(node.play("run", 580, 0).total("changed"), 0);
    assert_eq!(node.boots(), 2);
}

#[test]
fn a_driver_that_does_not_load_at_the_boot_is_replaced_by_the_former_one() {
    let node = Node::start(Driver { fault: Some("Exec format error"), ..Driver::new(NEW) });
    node.play("run", 575, 0);
    node.is_at(OLD, true);
    assert_eq!(node.boots(), 1);
    let failed = node.play("run", 580, 5);
    let message = failed.message("node1");
    assert!(
        message.contains("Exec format error") && message.contains(&format!("back at {OLD}, which runs")),
        "{message}"
    );
    node.is_at(OLD, true);
    assert_eq!(node.boots(), 2);
    // The next boot loads it too, and nothing is left of the attempt.
    node.restart();
    node.is_at(OLD, true);
    // What a boot loses is set again.
    node.play("run", 575, 0);
    assert_eq!((node.play("run", 575, 0).total("changed"), node.boots()), (0, 3));
}

#[test]
fn a_driver_that_is_mute_and_cannot_be_unloaded_is_replaced_at_the_next_boot() {
    let node = Node::start(Driver::new(NEW));
    node.play("run", 575, 0);
    // As a new driver whose firmware does not start: its module is loaded, and nothing answers.
    let mute = "test \"$(modinfo -F version nvidia)\" != 580.173.02 || gpusimctl fault add '{function: \"nvmlInit*\", effect: \
                {return: 999}}'";
    node.read(&format!("cat >/var/lib/gpusim/after-boot <<'END'\ngpusimctl fault clear\n{mute}\nEND"));
    let failed = node.play("run", 580, 5);
    let message = failed.message("node1");
    assert!(
        message.contains(&format!("the driver {NEW} does not come up"))
            && message.contains("Module nvidia_drm is in use")
            && message.contains(&format!("{OLD} runs after the next boot")),
        "{message}"
    );
    assert_eq!(node.boots(), 2);
    assert!(node.packages().contains(&format!("libnvidia-ml1={OLD}-1 hold")), "{}", node.packages());
    node.restart();
    node.is_at(OLD, true);
    node.play("run", 575, 0);
    assert_eq!((node.play("run", 575, 0).total("changed"), node.boots()), (0, 3));
    assert!(node.machines.tried("node1", "test ! -e /var/lib/gpufleet/driver").is_some(), "files are left");
}

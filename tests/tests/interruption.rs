//! Runs that are stopped or killed, and runs at the same time.

use std::time::Duration;

use gpufleet_tests::{Command, Fleet, FleetOptions, Home};
use rustix::process::Signal;

const REBOOT: &str = "
- hosts: gpu
  become: true
  max_unavailable: 1
  tasks:
    - kernel_cmdline: {add: [iommu=pt]}
    - reboot: {timeout: 60s}
";

fn fleet() -> (Fleet, Home) {
    let options = FleetOptions { gpus_per_node: 1, boot_seconds: 8.0, ..FleetOptions::default() };
    let home = Home::new();
    home.write("play.yaml", REBOOT);
    (Fleet::start(&options), home)
}

fn run<'a>(home: &'a Home, fleet: &Fleet) -> Command<'a> {
    home.gpufleet(["run", "play.yaml", "-i", &fleet.inventory(), "--yes", "--format", "json"])
}

#[test]
fn an_interrupt_finishes_what_is_under_way() {
    let (fleet, home) = fleet();
    let mut running = run(&home, &fleet).start();
    running.until("a reboot", |events| events.has("reboot_issued"));
    running.signal(Signal::INT);
    let done = running.wait().expect(130);
    let document = done.document();
    let first = if document.reboots("gpu001") > 0 { "gpu001" } else { "gpu002" };
    let other = if first == "gpu001" { "gpu002" } else { "gpu001" };
    assert_eq!(document.state(first), "done", "{done}");
    assert_eq!((fleet.boots(first), fleet.boots(other)), (2, 1));
    assert!(fleet.read(first, "cat /proc/cmdline").contains("iommu=pt"));
    assert_eq!(document.text("/stopped"), "interrupted");
    assert!(document.value()["out_of_service"].as_array().is_some_and(Vec::is_empty), "{done}");

    let document = run(&home, &fleet).run().expect(0).document();
    assert_eq!((document.state(first), document.state(other)), ("compliant", "done"));
}

#[test]
fn a_second_interrupt_leaves_and_tells_what_is_out() {
    let (fleet, home) = fleet();
    let mut running = run(&home, &fleet).start();
    running.until("a reboot", |events| events.has("reboot_issued"));
    let host = running.journal().hosts("reboot_issued").remove(0);
    running.signal(Signal::INT);
    running.until("the first interrupt", |events| {
        events.named("notice").any(|with| with["text"].as_str().is_some_and(|text| text.contains("stopping")))
    });
    running.signal(Signal::INT);
    let done = running.wait().expect(130);
    let out = done.document().value()["out_of_service"].clone();
    assert_eq!(out, serde_json::json!([host]), "{done}");
}

#[test]
fn a_killed_controller_leaves_a_fleet_that_the_next_run_takes_up() {
    let (fleet, home) = fleet();
    let mut running = run(&home, &fleet).start();
    running.until("a reboot", |events| events.has("reboot_issued"));
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, None);
    // What was about to happen is on disk.
    let first = home.gpufleet(["runs"]).run().expect(0);
    assert!(first.stdout.contains("was cut off"), "{first}");
    home.gpufleet(["report", "latest"]).run().says(&["gpu001"]);

    // The node that was told to reboot does so.
    std::thread::sleep(Duration::from_secs(5));
    fleet.names().iter().for_each(|name| fleet.await_answer(name));
    let done = run(&home, &fleet).run().expect(0);
    for name in fleet.names() {
        assert!(fleet.read(&name, "cat /proc/cmdline").contains("iommu=pt"), "{done}");
        assert_eq!(fleet.boots(&name), 2, "nobody reboots twice: {done}");
    }
}

#[test]
fn two_controllers_never_work_on_one_node() {
    let fleet = Fleet::start(&FleetOptions { gpus_per_node: 1, ..FleetOptions::default() });
    let (one, other) = (Home::new(), Home::new());
    let waits = "shell: until [ -e /srv/go ]; do sleep 0.1; done";
    one.write("play.yaml", &format!("- hosts: gpu001\n  become: true\n  tasks:\n    - {waits}\n"));
    other.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - sysctl: {name: vm.swappiness, value: 10}\n",
    );
    let mut first = run(&one, &fleet).start();
    // Not for the task's event, which comes before the connection that locks the node.
    first.until("the connection", |events| events.has("connected"));
    let second = run(&other, &fleet).run().expect(5);
    let document = second.document();
    assert_eq!((document.state("gpu001"), document.state("gpu002")), ("held", "done"), "{second}");
    assert!(document.message("gpu001").contains("works on this node"), "{second}");
    // A prediction waits for no other run.
    let inventory = fleet.inventory();
    let plan = other.gpufleet(["plan", "play.yaml", "-i", &inventory, "--format", "json"]).run().expect(0);
    assert_eq!((plan.document().state("gpu001"), plan.document().state("gpu002")), ("drift", "compliant"));
    fleet.read("gpu001", "touch /srv/go");
    first.wait().expect(0);
    run(&other, &fleet).run().expect(0);
    assert_eq!(fleet.read("gpu001", "cat /proc/sys/vm/swappiness"), "10");
}

//! No node is disturbed that must not be, and failures have no effect on other nodes.

use std::path::Path;

use gpufleet_tests::{Fleet, FleetOptions, Home};

/// ECC is off on all nodes, so every node needs a GPU reset.
const ECC_OFF: &str = "- set: {ecc_current: false, ecc_pending: false}\n";

const RESET: &str = "
- hosts: gpu
  become: true
  max_unavailable: 1
  tasks:
    - gpu_ecc: {mode: enabled}
    - sysctl: {name: vm.swappiness, value: 10}
";

const REBOOT: &str = "
- hosts: gpu
  become: true
  max_unavailable: 1
  tasks:
    - kernel_cmdline: {add: [iommu=pt]}
    - reboot: {timeout: 20s}
";

fn fleet(nodes: usize, faults: &str, states: &str) -> (Fleet, Home) {
    let options = FleetOptions {
        nodes,
        gpus_per_node: 1,
        faults: faults.into(),
        states: states.into(),
        ..FleetOptions::default()
    };
    (Fleet::start(&options), Home::new())
}

fn run<'a>(home: &'a Home, fleet: &Fleet, playbook: &str, format: &str) -> gpufleet_tests::Command<'a> {
    home.write("play.yaml", playbook);
    home.gpufleet(["run", "play.yaml", "-i", &fleet.inventory(), "--format", format])
}

#[test]
fn a_client_holds_its_node() {
    let (fleet, home) = fleet(2, "", ECC_OFF);
    let pid = fleet.control("gpu001", &["client", "add", "0", "40000"]);
    let done = run(&home, &fleet, RESET, "json").arg("--yes").run().expect(5);
    let document = done.document();
    assert_eq!((document.state("gpu001"), document.state("gpu002")), ("held", "done"), "{done}");
    let why = format!("{} {}", document.message("gpu001"), document.node("gpu001")["clients"]);
    assert!(
        why.contains(&format!("process {pid} ")) && why.contains("__client"),
        "pid {pid} and its command are named: {why}"
    );
    assert!(fleet.setters("gpu001").is_empty(), "{:#?}", fleet.setters("gpu001"));
    assert_eq!((fleet.boots("gpu001"), fleet.has("gpu001", "/etc/sysctl.d/99-sysctl.conf")), (1, false));
    assert_eq!(fleet.machine("gpu002")["gpus"][0]["ecc"]["current"], true);
    assert!(document.value()["out_of_service"].as_array().is_some_and(Vec::is_empty), "{done}");

    fleet.control("gpu001", &["client", "remove", &pid]);
    let document = run(&home, &fleet, RESET, "json").arg("--yes").run().expect(0).document();
    assert_eq!((document.state("gpu001"), document.state("gpu002")), ("done", "compliant"));
}

#[test]
fn never_more_nodes_are_out_than_the_budget_allows() {
    let (fleet, home) = fleet(4, "", "");
    let reboot = REBOOT.replace("20s", "60s");
    let outage = run(&home, &fleet, &reboot.replace("max_unavailable: 1", "max_unavailable: 2"), "jsonl")
        .arg("--yes")
        .run()
        .expect(0)
        .events()
        .outage();
    assert_eq!((outage.most, outage.nodes.len()), (2, 4));
    let other = reboot.replace("iommu=pt", "nokaslr");
    let outage = run(&home, &fleet, &other, "jsonl").arg("--yes").run().expect(0).events().outage();
    assert_eq!((outage.most, outage.nodes.len()), (1, 4));
}

#[test]
fn nobody_is_disturbed_without_consent() {
    let (fleet, home) = fleet(2, "", ECC_OFF);
    let names = fleet.names();
    let before = fleet.activity(&names);
    run(&home, &fleet, RESET, "human").run().expect(5).says(&["--yes"]);
    assert_eq!(fleet.activity(&names), before);
    assert_ne!(fleet.read("gpu001", "cat /proc/sys/vm/swappiness"), "10");

    // A plan without disruption needs no confirmation.
    let live = "- hosts: gpu\n  become: true\n  tasks:\n    - sysctl: {name: vm.swappiness, value: 10}\n";
    run(&home, &fleet, live, "human").run().expect(0);
    assert_eq!(fleet.read("gpu001", "cat /proc/sys/vm/swappiness"), "10");
}

#[test]
fn a_person_at_a_terminal_is_asked() {
    let (fleet, home) = fleet(2, "", ECC_OFF);
    home.write("play.yaml", RESET);
    let names = fleet.names();
    let before = fleet.activity(&names);
    let ask = |answer: &str| {
        let line = format!("gpufleet run play.yaml -i {}", fleet.inventory());
        // The sleep, because `script` types the end of its input too.
        let shell =
            format!("(echo {answer}; exec sleep 15) 2>/dev/null | script -qec '{line}' /dev/null & wait $!");
        home.program(Path::new("/bin/sh"), ["-c", &shell]).env("TERM", "xterm").run()
    };
    let done = ask("n").expect(5).says(&["Proceed? [y/N]", "gpu001", "gpu002", "nothing was changed"]);
    assert_eq!(fleet.activity(&names), before, "{done}");
    let done = ask("y").expect(0);
    assert_eq!(fleet.machine("gpu001")["gpus"][0]["ecc"]["current"], true, "{done}");
}

#[test]
fn a_failing_canary_stops_the_rest() {
    let faults = "- {nodes: gpu001, function: nvmlDeviceSetPersistenceMode, effect: {return: 999}}\n";
    let (fleet, home) = fleet(4, faults, "");
    let play = "
- hosts: gpu
  become: true
  waves: [canary, 100%]
  max_fail_percentage: 0
  tasks:
    - gpu_persistence: {mode: legacy}
    - sysctl: {name: vm.swappiness, value: 10}
";
    let done = run(&home, &fleet, play, "json").arg("--yes").run().expect(5);
    let document = done.document();
    assert_eq!(document.state("gpu001"), "failed", "{done}");
    assert!(document.text("/stopped").starts_with("canary gpu001 failed ("), "{done}");
    for name in ["gpu002", "gpu003", "gpu004"] {
        assert_eq!(document.state(name), "skipped", "{done}");
        assert!(fleet.setters(name).is_empty());
    }
}

/// A node that was broken before proves nothing about the change: it is no canary, and counts as an allowed failure.
#[test]
fn a_broken_node_is_led_aside_and_stops_nobody() {
    let (fleet, home) = fleet(4, "- {nodes: gpu001, effect: no_driver}\n", "");
    let play = "
- hosts: gpu
  become: true
  waves: [canary, 100%]
  max_failures: 3
  tasks:
    - gpu_persistence: {mode: legacy}
";
    home.write("play.yaml", play);
    let plan = home.gpufleet(["plan", "play.yaml", "-i", &fleet.inventory()]).run();
    assert!(plan.stdout.contains("gpu001  of unknown class: after all others"), "{plan}");
    let done = run(&home, &fleet, play, "json").arg("--yes").run().expect(2);
    let document = done.document();
    assert_eq!(document.state("gpu001"), "failed", "{done}");
    for name in ["gpu002", "gpu003", "gpu004"] {
        assert_eq!(document.state(name), "done", "{done}");
    }
    assert_eq!(document.value()["stopped"], serde_json::Value::Null, "{done}");
    let waves = document.value()["plays"][0]["waves"].clone();
    assert_eq!(
        (&waves[0]["hosts"][0], &waves[2]["hosts"][0]),
        (&"gpu002".into(), &"gpu001".into()),
        "{waves}"
    );
}

#[test]
fn a_node_that_does_not_return_is_named_and_the_others_go_on() {
    let faults = "- {nodes: gpu001, effect: never_boot}\n- {nodes: gpu003, effect: reboot_ignored}\n";
    let (fleet, home) = fleet(4, faults, "");
    let play = REBOOT.replace("max_unavailable: 1", "max_unavailable: 3");
    let done = run(&home, &fleet, &play, "json").arg("--yes").run();
    let document = done.document();
    assert_eq!(document.state("gpu001"), "unreachable", "{done}");
    assert!(document.message("gpu001").contains("reboot"), "{done}");
    assert_eq!(document.state("gpu003"), "held", "{done}");
    assert!(document.message("gpu003").contains("does not go down"), "{done}");
    assert_eq!((document.state("gpu002"), document.state("gpu004")), ("done", "done"), "{done}");
    let out: Vec<&str> = document.value()["out_of_service"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str())
        .collect();
    assert_eq!(out, ["gpu001", "gpu003"], "{done}");
    assert_eq!(done.code, Some(5), "{done}");
}

/// With one node lost for good, a budget of one is used up: no other node is taken out.
#[test]
fn a_lost_node_spends_the_budget() {
    let (fleet, home) = fleet(3, "- {nodes: gpu001, effect: never_boot}\n", "");
    // The node that gets lost goes first.
    let play = "
- hosts: gpu
  become: true
  max_unavailable: 1
  tasks:
    - shell: until [ -e /srv/go ]; do sleep 0.1; done
      when: inventory_hostname != 'gpu001'
    - kernel_cmdline: {add: [iommu=pt]}
    - reboot: {timeout: 10s}
";
    let mut running = run(&home, &fleet, play, "json").arg("--yes").start();
    running.until("its reboot", |events| events.has("reboot_issued"));
    for name in ["gpu002", "gpu003"] {
        fleet.read(name, "touch /srv/go");
    }
    let done = running.wait();
    let document = done.document();
    assert_eq!(document.state("gpu001"), "unreachable", "{done}");
    for name in ["gpu002", "gpu003"] {
        assert_eq!(document.reboots(name), 0, "{done}");
        assert_eq!(fleet.boots(name), 1);
        assert!(document.message(name).contains("gpu001"), "who spends the budget is named: {done}");
    }
    assert_ne!(done.code, Some(0));
}

#[test]
fn a_node_that_vanishes_in_a_task_is_named_and_the_others_go_on() {
    let faults = "- {nodes: gpu001, function: nvmlDeviceSetPersistenceMode, effect: vanish}\n";
    let (fleet, home) = fleet(2, faults, "");
    let play = "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_persistence: {mode: legacy}\n    \
                - sysctl: {name: vm.swappiness, value: 10}\n";
    let done = run(&home, &fleet, play, "json").arg("--yes").run().expect(4);
    let document = done.document();
    assert_eq!((document.state("gpu001"), document.state("gpu002")), ("unreachable", "done"), "{done}");
    assert!(document.message("gpu001").contains("connection"), "{done}");
    assert_eq!(document.stat("gpu001", "unreachable"), 1);
    assert_eq!(fleet.read("gpu002", "cat /proc/sys/vm/swappiness"), "10");
}

#[test]
fn a_setter_that_lies_is_a_failure() {
    let faults = "- {nodes: gpu001, function: nvmlDeviceSetPersistenceMode, effect: lie}\n";
    let (fleet, home) = fleet(2, faults, "");
    let play = "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_persistence: {mode: legacy}\n";
    let done = run(&home, &fleet, play, "json").arg("--yes").run().expect(2);
    let document = done.document();
    assert_eq!((document.state("gpu001"), document.state("gpu002")), ("failed", "done"), "{done}");
    assert!(document.message("gpu001").contains("persistence"), "{done}");
}

/// The earlier layout is restored if the new one cannot be made.
#[test]
fn a_layout_that_fails_is_taken_back() {
    let faults = "- {function: nvmlDeviceCreateGpuInstance*, nth: 2, effect: {return: 999}}\n";
    let states = "- mig_layout: [3g.40gb, 3g.40gb]\n";
    let (fleet, home) = fleet(1, faults, states);
    let before = fleet.read("gpu001", "nvidia-smi -L").matches("MIG 3g.40gb").count();
    assert_eq!(before, 2);
    let play =
        "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}\n";
    let done = run(&home, &fleet, play, "json").arg("--yes").run().expect(2);
    let document = done.document();
    assert_eq!(document.state("gpu001"), "failed", "{done}");
    let listed = fleet.read("gpu001", "nvidia-smi -L");
    assert_eq!(
        (listed.matches("MIG 3g.40gb").count(), listed.matches("MIG ").count()),
        (2, 2),
        "{listed}\n{done}"
    );
}

/// A node that falls silent is given up after a minute without an answer to a keepalive; no other node waits for it.
#[test]
fn a_node_that_falls_silent_in_a_task_is_given_up() {
    let faults = "- {nodes: gpu001, function: nvmlDeviceSetPersistenceMode, effect: freeze}\n";
    let (fleet, home) = fleet(2, faults, "");
    let play = "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_persistence: {mode: legacy}\n";
    let done = run(&home, &fleet, play, "json").arg("--yes").run().expect(4);
    let document = done.document();
    assert_eq!((document.state("gpu001"), document.state("gpu002")), ("unreachable", "done"), "{done}");
    assert!(document.message("gpu001").contains("stopped answering keepalives"), "{done}");
    assert_eq!(home.journal().ends(), ["gpu002", "gpu001"], "{done}");
}

/// A command that reboots is no way around the budget, and one that resets GPUs waits for its turn.
#[test]
fn commands_that_disturb_pass_no_safeguard() {
    let (fleet, home) = fleet(4, "", "");
    let play = |task: &str| {
        format!(
            "- hosts: gpu\n  become: true\n  max_unavailable: 1\n  tasks:\n    - name: it\n      {task}\n"
        )
    };
    let boots = |fleet: &Fleet| fleet.names().iter().map(|name| fleet.boots(name)).sum::<usize>();
    let before = boots(&fleet);
    for verb in ["check", "plan", "run"] {
        home.write("play.yaml", &play("command: reboot"));
        let done = home.gpufleet([verb, "play.yaml", "-i", &fleet.inventory()]).run();
        assert_ne!(done.code, Some(0), "{done}");
        assert!(format!("{}{}", done.stdout, done.stderr).contains("write `reboot:`"), "{done}");
    }
    // What variables hide is refused by the node itself.
    let hidden = play("command: \"{{ word }}\"\n      vars: {word: reboot}");
    run(&home, &fleet, &hidden, "human").run().expect(2).says(&["write `reboot:`"]);
    home.gpufleet(["exec", "gpu", "-i", &fleet.inventory(), "-b", "--", "reboot"]).run().says(&["-m reboot"]);
    assert_eq!(boots(&fleet), before, "nothing was rebooted");

    let pid = fleet.control("gpu002", &["client", "add", "0", "40000"]);
    let reset = play("command: nvidia-smi --gpu-reset");
    run(&home, &fleet, &reset, "human").run().expect(5).says(&["--yes"]);
    let done = run(&home, &fleet, &reset, "jsonl").arg("--yes").run().expect(5);
    let outage = done.events().outage();
    assert_eq!((outage.most, outage.nodes.len()), (1, 3), "gpu002 works and is left alone");
    fleet.control("gpu002", &["client", "remove", &pid]);
    run(&home, &fleet, &play("command: /bin/true"), "human").run().expect(0).says(&["4 done, not judged"]);
}

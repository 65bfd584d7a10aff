//! The `rollout` block of a play: commands of the health gate, and the power hook.

use std::time::Duration;

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home, JumpHost, binary};

const TASKS: &str = "
  tasks:
    - kernel_cmdline: {add: [iommu=pt]}
    - reboot: {timeout: 6s}
";

fn fleet(nodes: usize, faults: &str) -> Fleet {
    Fleet::start(&FleetOptions { nodes, gpus_per_node: 1, faults: faults.into(), ..FleetOptions::default() })
}

fn run(home: &Home, fleet: &Fleet, rollout: &str) -> Finished {
    let play = format!("- hosts: gpu\n  become: true\n  rollout:\n    max_unavailable: 1\n{rollout}{TASKS}");
    home.write("play.yaml", &play);
    let inventory = fleet.inventory();
    home.gpufleet(["run", "play.yaml", "--yes", "--format", "json", "-i", &inventory]).run()
}

/// The lab's power switch as a hook; `status` is the word for its state.
fn power(fleet: &Fleet, status: &str) -> String {
    let (lab, dir) = (binary("gpufleet-lab"), fleet.dir());
    let hook = |what: &str| {
        format!("\"{}\" power --dir {} {{{{ inventory_hostname }}}} {what}", lab.display(), dir.display())
    };
    format!(
        "    power_cycle:\n      command: '{} && echo $GPUFLEET_HOST $GPUFLEET_RUN >> {}/cycled'\n      \
         status: '{}'\n      timeout: 60s\n",
        hook("cycle"),
        fleet.dir().display(),
        hook(status)
    )
}

fn cycled(fleet: &Fleet) -> Vec<String> {
    let text = std::fs::read_to_string(fleet.dir().join("cycled")).unwrap_or_default();
    text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_node_that_never_returns_is_power_cycled_and_done() {
    let fleet = fleet(2, "- {nodes: gpu001, effect: never_boot}\n");
    let home = Home::new();
    let done = run(&home, &fleet, &power(&fleet, "status")).expect(0);
    let document = done.document();
    assert_eq!((document.state("gpu001"), document.state("gpu002")), ("done", "done"), "{done}");
    assert_eq!(cycled(&fleet), ["gpu001"], "the one that returned by itself is left alone");
    assert_eq!(fleet.boots("gpu001"), 2);
    assert!(fleet.read("gpu001", "cat /proc/cmdline").contains("iommu=pt"));
}

#[test]
fn a_power_state_that_is_not_known_is_left_alone() {
    let fleet = fleet(1, "- {nodes: gpu001, effect: never_boot}\n");
    let home = Home::new();
    let done = run(&home, &fleet, &power(&fleet, "nonsense")).expect(5);
    let document = done.document();
    assert_eq!(document.state("gpu001"), "held", "{done}");
    assert!(document.message("gpu001").contains("its power state is not known"), "{done}");
    assert_eq!((cycled(&fleet).len(), fleet.boots("gpu001")), (0, 1));
}

/// Nodes behind a real jump host that is stopped while two of them reboot, until long after their deadline.
#[test]
fn a_jump_host_that_froze_is_named_and_waited_for_and_no_node_behind_it_is_power_cycled() {
    // Time enough to stop it before they are back.
    let boot_seconds = 8.0;
    let fleet =
        Fleet::start(&FleetOptions { nodes: 3, gpus_per_node: 1, boot_seconds, ..FleetOptions::default() });
    let jump_host = JumpHost::before(&fleet);
    let home = Home::new();
    let rollout = format!("    max_unavailable: 2\n{}", power(&fleet, "status"));
    home.write(
        "play.yaml",
        &format!("- hosts: gpu\n  become: true\n  rollout:\n{rollout}{}", TASKS.replace("6s", "12s")),
    );
    let mut run = home
        .gpufleet(["run", "play.yaml", "--yes", "--format", "json", "--timeout", "3"])
        .args(["-i", &jump_host.inventory(), "--ssh-config"])
        .arg(jump_host.ssh_config())
        .within(Duration::from_secs(300))
        .start();
    // The third one waits for its turn: what a node was in the middle of when its way froze is not known.
    run.until("two nodes reboot, and the third waits", |events| {
        let written = |report: &&serde_json::Value| report["report"]["kind"] == "kernel_cmdline";
        events.hosts("reboot_issued").len() == 2 && events.named("task_finished").filter(written).count() == 3
    });
    jump_host.freeze();
    let named = "the jump host bastion1 does not answer; 3 nodes are behind it";
    run.until("the jump host is named", |events| {
        events.named("notice").any(|event| event["text"].as_str().is_some_and(|text| text.contains(named)))
    });
    jump_host.thaw();
    let done = run.wait().expect(0);
    let document = done.document();
    for node in ["gpu001", "gpu002", "gpu003"] {
        assert_eq!((document.state(node), fleet.boots(node)), ("done", 2), "{node}: {done}");
    }
    assert_eq!(cycled(&fleet), Vec::<String>::new());
}

#[test]
fn a_command_of_the_health_gate_decides() {
    let fleet = fleet(1, "");
    let home = Home::new();
    let gate = |line: &str| format!("    health_gate: [gpu_count, {{command: '{line}'}}]\n");
    let line = "id -u > /etc/gate; echo no, {{ inventory_hostname }} >&2; exit 7";
    let done = run(&home, &fleet, &gate(line)).expect(5);
    let document = done.document();
    assert_eq!(document.state("gpu001"), "held", "{done}");
    assert!(document.message("gpu001").contains("exit status 7: no, gpu001"), "{done}");
    assert_eq!(document.value()["out_of_service"][0], "gpu001", "{done}");
    assert_eq!(fleet.text("gpu001", "/etc/gate").as_deref(), Some("0\n"), "it runs as root");
}

#[test]
fn a_command_of_the_health_gate_is_asked_again_at_the_end_of_the_soak() {
    let fleet = fleet(2, "");
    let home = Home::new();
    let line = "echo >> /etc/gate; test $(wc -l < /etc/gate) -lt 2 || { echo too hot; exit 1; }";
    let rollout = format!(
        "    waves: [1]\n    soak: 1s\n    max_failures: 0\n    health_gate: [{{command: '{line}'}}]\n"
    );
    let done = run(&home, &fleet, &rollout);
    let document = done.document();
    assert_eq!(document.state("gpu001"), "failed", "{done}");
    let message = document.message("gpu001");
    assert!(message.contains("at the end of the soak") && message.contains("too hot"), "{done}");
    assert_eq!((document.state("gpu002"), fleet.boots("gpu002")), ("skipped", 1), "{done}");
}

#[test]
fn a_command_of_the_health_gate_that_asks_for_nothing_known_is_found_beforehand() {
    let fleet = fleet(1, "");
    let home = Home::new();
    let done = run(&home, &fleet, "    health_gate: [{command: '/bin/well {{ nowhere }}'}]\n").expect(1);
    assert!(done.to_string().contains("`nowhere` is not defined"), "{done}");
    assert_eq!(fleet.boots("gpu001"), 1);
}

#[test]
fn a_plan_in_a_window_knows_what_an_earlier_run_took() {
    let fleet = fleet(5, "");
    let home = Home::new();
    run(&home, &fleet, "").expect(0);
    let inventory = fleet.inventory();
    let plan = |window: &[&str]| {
        let mut args = vec!["plan", "play.yaml", "--format", "json", "-i", inventory.as_str()];
        args.extend(window);
        let done = home.gpufleet(args).run().expect(0);
        done.document().value()["plays"][0]["policy"]["worst_case"][2]["parts"].clone()
    };
    let source = |parts: &serde_json::Value, at: usize| parts[at]["from"]["source"].clone();
    let parts = plan(&["--window", "daily 01:00-05:00 UTC"]);
    assert_eq!((source(&parts, 0), parts[0]["seconds"].as_u64()), ("declared".into(), Some(6)), "{parts}");
    assert_eq!(source(&parts, 1), "learned", "{parts}");
    assert_eq!((parts[1]["from"]["nodes"].as_u64(), parts[1]["from"]["runs"].as_u64()), (Some(5), Some(1)));
    let parts = plan(&[]);
    assert_eq!((source(&parts, 1), parts[1]["seconds"].as_u64()), ("default".into(), Some(600)), "{parts}");
}

//! A run does what the plan says, on real nodes: obstacles, changes that do not last, changes that the play itself
//! undoes.

use gpufleet_tests::{Fleet, FleetOptions, Home};

fn fleet(gpus: &'static str) -> (Fleet, Home) {
    let options = FleetOptions { nodes: 1, gpus_per_node: 1, gpus, ..FleetOptions::default() };
    (Fleet::start(&options), Home::new())
}

/// geerlingguy.swap: a file is removed, and a command writes it again.
#[test]
fn a_command_may_undo_what_an_earlier_task_declared_and_is_named() {
    let (fleet, home) = fleet("h100-80gb");
    home.write(
        "play.yaml",
        "- hosts: gpu\n  become: true\n  tasks:\n    - name: remove it\n      file: {path: /var/tmp/swap, state: absent}\n    \
         - name: write it\n      shell: echo swap > /var/tmp/swap\n",
    );
    let inventory = fleet.inventory();
    let done =
        home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(0);
    let document = done.document();
    assert_eq!(document.state("gpu001"), "done", "{done}");
    let warnings = document.node("gpu001")["warnings"].to_string();
    for text in ["remove it", "play.yaml:5", "write it", "play.yaml:7", "left as it is"] {
        assert!(warnings.contains(text), "{text}: {warnings}");
    }
    assert_eq!(document.node("gpu001")["verdict"], "warn", "{done}");
    let shown = home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes"]).run().expect(0);
    assert!(format!("{shown}").contains("left as it is"), "{shown}");
}

#[test]
fn a_plan_names_the_process_and_the_module_that_hold_a_gpu() {
    let options = FleetOptions {
        nodes: 1,
        gpus_per_node: 1,
        gpus: "a100-80gb",
        states: "- machine: {nvidia_drm_refs: 2}\n".to_owned(),
        ..FleetOptions::default()
    };
    let (fleet, home) = (Fleet::start(&options), Home::new());
    let pid = fleet.control("gpu001", &["client", "add", "0", "4000"]);
    home.write("play.yaml", "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_ecc: {mode: disabled}\n");
    let inventory = fleet.inventory();
    let plan = home.gpufleet(["plan", "play.yaml", "-i", &inventory, "--format", "json"]).run();
    let blockers = plan.document().node("gpu001")["blockers"].to_string();
    assert!(blockers.contains(&format!("process {pid} ")) && blockers.contains("holds GPU 0"), "{plan}");
    assert!(
        blockers.contains("nvidia_drm (use count 2)") && blockers.contains("modprobe -r nvidia_drm"),
        "{plan}"
    );
    let shown = home.gpufleet(["plan", "play.yaml", "-i", &inventory]).run();
    assert!(shown.stdout.contains("In the way"), "{shown}");
    fleet.control("gpu001", &["client", "remove", &pid]);
    let run =
        home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(2);
    assert!(run.document().message("gpu001").contains("nvidia_drm (use count 2)"), "{run}");
    assert!(fleet.setters("gpu001").is_empty(), "nothing was begun");
}

#[test]
fn a_limit_without_persistence_says_why_it_does_not_last() {
    let (fleet, home) = fleet("h100-80gb");
    home.write("play.yaml", "- hosts: gpu\n  become: true\n  tasks:\n    - gpu_power: {limit_watts: 500}\n");
    let inventory = fleet.inventory();
    let plan = home.gpufleet(["plan", "play.yaml", "-i", &inventory, "--format", "json"]).run();
    let warnings = plan.document().node("gpu001")["warnings"].to_string();
    assert!(warnings.contains("as soon as it is set") && warnings.contains("gpu_persistence"), "{plan}");
    let run =
        home.gpufleet(["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"]).run().expect(2);
    let document = run.document();
    let message = document.message("gpu001");
    assert!(message.contains("unconverged") && message.contains("persistence is off"), "{run}");
    let check = home.gpufleet(["check", "play.yaml"]).run();
    assert!(format!("{check}").contains("limit-without-persistence"), "{check}");
}

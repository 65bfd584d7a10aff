//! The shipped `playbooks/mig-reconfigure.yaml`, and its health gate, which reads the kernel's log.

use std::path::Path;

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};

/// Hopper and Ampere; the Ampere node cannot reset its GPUs, so that only a reboot makes the mode current.
fn fleet(faults: &str) -> Fleet {
    Fleet::start(&FleetOptions {
        nodes: 2,
        gpus: "h100-80gb,a100-80gb",
        faults: format!("- {{nodes: gpu002, effect: no_reset}}\n{faults}"),
        states: "- {nodes: gpu002, machine: {passthrough: true}}\n".to_owned(),
        ..FleetOptions::default()
    })
}

fn run(home: &Home, fleet: &Fleet) -> Finished {
    let play = Path::new(env!("CARGO_MANIFEST_DIR")).join("../playbooks/mig-reconfigure.yaml");
    let inventory = fleet.inventory();
    let layout = r#"{"mig_layout": {"3g.40gb": 2}}"#;
    home.gpufleet(["run", "--yes", "--format", "json", "-i", &inventory, "-e", layout]).arg(play).run()
}

#[test]
fn the_shipped_playbook_reconfigures_and_passes_its_gate() {
    let (fleet, home) = (fleet(""), Home::new());
    // An error of a program requires no action.
    fleet.control("gpu001", &["xid", "0", "43"]);
    let done = run(&home, &fleet).expect(0);
    let document = done.document();
    for (name, boots) in [("gpu001", 1), ("gpu002", 2)] {
        assert_eq!((document.state(name), fleet.boots(name)), ("done", boots), "{done}");
        assert_eq!(fleet.read(name, "nvidia-smi -L").matches("MIG 3g.40gb").count(), 4, "{name}");
        assert!(fleet.read(name, "head -1 /dev/kmsg").contains(",0,0,-;Linux version "), "{name}");
    }
    assert!(document.value()["out_of_service"].as_array().is_some_and(Vec::is_empty), "{done}");
    assert_eq!(run(&home, &fleet).expect(0).document().total("changed"), 0);
}

#[test]
fn an_xid_of_before_or_of_the_change_itself_keeps_the_node_out() {
    for rule in ["", "- {nodes: gpu001, function: nvmlDeviceSetMigMode, gpu: 1, nth: 1, effect: {xid: 79}}\n"]
    {
        let (fleet, home) = (fleet(rule), Home::new());
        if rule.is_empty() {
            fleet.control("gpu001", &["xid", "1", "79"]);
        }
        let done = run(&home, &fleet).expect(5);
        let document = done.document();
        assert_eq!(document.state("gpu001"), "held", "{done}");
        let message = document.message("gpu001");
        assert!(message.contains("health gate") && message.contains("Xid 79"), "{done}");
        let bus = fleet.read("gpu001", "nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader -i 1");
        let device = bus.to_lowercase();
        assert!(message.contains(device.trim_start_matches("0000").trim_end_matches(".0")), "{bus}: {done}");
        assert_eq!(document.value()["out_of_service"], serde_json::json!(["gpu001"]), "{done}");
        assert_eq!(fleet.boots("gpu001"), 1);
    }
}

#[test]
fn a_log_that_a_reboot_began_anew_is_well() {
    let (fleet, home) = (fleet(""), Home::new());
    fleet.control("gpu002", &["xid", "0", "79"]);
    let done = run(&home, &fleet).expect(0);
    assert_eq!((done.document().state("gpu002"), fleet.boots("gpu002")), ("done", 2), "{done}");
}

//! Each shipped playbook on lab nodes: what it plans it does, and a second run finds nothing to do.

use std::path::PathBuf;

use gpufleet_tests::{Document, Fleet, FleetOptions, Home};
use serde_json::Value;

fn playbook(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../playbooks").join(name)
}

fn document(home: &Home, fleet: &Fleet, verb: &str, name: &str, words: &[&str], code: i32) -> Document {
    let inventory = fleet.inventory();
    let mut all = vec![verb, "--format", "json", "-i", &inventory];
    if verb == "run" {
        all.push("--yes");
    }
    home.gpufleet(all).args(words).arg(playbook(name)).run().expect(code).document()
}

/// Plans and runs it, and runs it again.
#[track_caller]
fn converges(home: &Home, fleet: &Fleet, name: &str, words: &[&str]) -> Document {
    let setters = |node: &str| fleet.setters(node).len();
    let before: Vec<usize> = fleet.names().iter().map(|node| setters(node)).collect();
    let planned = document(home, fleet, "plan", name, words, 0);
    assert_eq!(
        fleet.names().iter().map(|node| setters(node)).collect::<Vec<_>>(),
        before,
        "a plan sets nothing"
    );
    let done = document(home, fleet, "run", name, words, 0);
    for node in fleet.names() {
        assert_eq!(done.state(&node), "done", "{name}: {}", done.message(&node));
        assert_eq!(done.stat(&node, "changed"), planned.stat(&node, "changed"), "{name} on {node}");
    }
    let settled: Vec<usize> = fleet.names().iter().map(|node| setters(node)).collect();
    let again = document(home, fleet, "run", name, words, 0);
    assert_eq!((again.total("changed"), again.total("failed")), (0, 0), "{name}");
    assert_eq!(
        fleet.names().iter().map(|node| setters(node)).collect::<Vec<_>>(),
        settled,
        "{name} sets again"
    );
    done
}

fn gpus(fleet: &Fleet, node: &str) -> Vec<Value> {
    fleet.machine(node)["gpus"].as_array().expect("GPUs").clone()
}

fn instances(fleet: &Fleet, node: &str) -> Vec<usize> {
    gpus(fleet, node).iter().map(|gpu| gpu["instances"].as_array().expect("instances").len()).collect()
}

#[test]
fn inference_mig_is_there_again_after_a_boot() {
    let fleet = Fleet::start(&FleetOptions {
        nodes: 3,
        gpus: "h100-80gb,h200-141gb,a100-80gb",
        ..FleetOptions::default()
    });
    let home = Home::new();
    converges(&home, &fleet, "inference-mig.yaml", &["-e", r#"{"mig_141gb": {"3g.71gb": 2}}"#]);
    assert_eq!(instances(&fleet, "gpu001"), [7, 7]);
    assert_eq!(instances(&fleet, "gpu002"), [2, 2]);
    assert_eq!(instances(&fleet, "gpu003"), [7, 7]);
    // Somebody else's reboot.
    for node in fleet.names() {
        fleet.ssh(&node, "reboot");
    }
    for node in fleet.names() {
        fleet.await_answer(&node);
    }
    let inventory = fleet.inventory();
    let mut tries = 0;
    let status = loop {
        let status = home.gpufleet(["keep", "status", "-i", &inventory]).run().stdout;
        tries += 1;
        if status.matches("asserted at the last boot").count() == 3 || tries > 20 {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
    };
    assert_eq!(status.matches("asserted at the last boot").count(), 3, "{status}");
    assert_eq!((instances(&fleet, "gpu001"), instances(&fleet, "gpu002")), (vec![7, 7], vec![2, 2]));
    // Nothing is left of it afterwards.
    home.gpufleet(["clean", "all", "-i", &inventory]).run().expect(0);
    assert!(fleet.text("gpu001", "etc/systemd/system/gpufleet-keep.service").is_none());
}

#[test]
fn inference_mps_shares_whole_gpus() {
    let (fleet, home) = (Fleet::start(&FleetOptions::default()), Home::new());
    converges(&home, &fleet, "inference-mps.yaml", &["-e", "mps_clients=4"]);
    assert_eq!(
        fleet.read("gpu001", "echo get_default_active_thread_percentage | nvidia-cuda-mps-control"),
        "25.0"
    );
    assert!(gpus(&fleet, "gpu001").iter().all(|gpu| gpu["compute_mode"] == 3));
}

#[test]
fn day_and_night_change_places() {
    let (fleet, home) = (Fleet::start(&FleetOptions::default()), Home::new());
    let always = ["--window", "Mon-Sun 00:00-24:00 UTC"];
    for (tag, wanted) in [("day", 7), ("night", 0), ("day", 7)] {
        let words = ["-t", tag, always[0], always[1]];
        converges(&home, &fleet, "day-night-mig.yaml", &words);
        assert_eq!(instances(&fleet, "gpu002"), [wanted, wanted], "{tag}");
    }
}

#[test]
fn the_power_of_a_rack_is_shared() {
    let fleet = Fleet::start(&FleetOptions { nodes: 5, ..FleetOptions::default() });
    let home = Home::new();
    // Four nodes in the first rack, one in the second: 3,200 W for 8 GPUs, and for 2 of them at most 700 W each.
    converges(&home, &fleet, "power-cap.yaml", &["-e", "rack_gpu_watts=3200"]);
    let limits = |node: &str| -> Vec<Value> {
        gpus(&fleet, node).iter().map(|gpu| gpu["power_limit_mw"].clone()).collect()
    };
    for node in ["gpu001", "gpu002", "gpu003", "gpu004"] {
        assert_eq!(limits(node), [400_000, 400_000], "{node}");
    }
    assert_eq!(limits("gpu005"), [700_000, 700_000]);
    // Too little for one rack fails there before anything is changed.
    let setters = fleet.setters("gpu001").len();
    let refused = document(&home, &fleet, "run", "power-cap.yaml", &["-e", "rack_gpu_watts=900"], 2);
    assert!(
        refused.message("gpu001").contains("are 112 W a GPU, and these accept 200 W at least"),
        "{}",
        refused.message("gpu001")
    );
    assert_eq!(fleet.setters("gpu001").len(), setters);
}

#[test]
fn benchmark_clocks_are_locked_and_given_back() {
    let (fleet, home) = (Fleet::start(&FleetOptions::default()), Home::new());
    converges(&home, &fleet, "benchmark-clocks.yaml", &["-e", "clock_mhz=1410"]);
    assert!(
        gpus(&fleet, "gpu001")
            .iter()
            .all(|gpu| gpu["locked_graphics_mhz"] == serde_json::json!([1410, 1410]))
    );
    converges(&home, &fleet, "benchmark-clocks.yaml", &["-e", "release=true"]);
    assert!(gpus(&fleet, "gpu001").iter().all(|gpu| gpu["locked_graphics_mhz"].is_null()));
}

#[test]
fn persistence_is_repaired_with_what_was_lost() {
    let (fleet, home) = (Fleet::start(&FleetOptions::default()), Home::new());
    converges(&home, &fleet, "persistence-repair.yaml", &["-e", "power_limit_percent=80"]);
    assert_eq!(fleet.read("gpu001", "systemctl is-active nvidia-persistenced"), "active");
    assert!(gpus(&fleet, "gpu001").iter().all(|gpu| gpu["power_limit_mw"] == 560_000));
}

#[test]
fn containers_get_the_gpus_that_there_are() {
    let fleet = Fleet::start(&FleetOptions {
        states: "- nodes: gpu002\n  machine: {nvswitches: 4}\n".to_owned(),
        ..FleetOptions::default()
    });
    let home = Home::new();
    // Somebody's own settings stay.
    fleet
        .ssh("gpu001", "mkdir -p /etc/docker && echo '{\"bip\": \"10.9.0.1/24\"}' > /etc/docker/daemon.json");
    let settings = r#"{"docker_settings": {"log-opts": {"max-size": "100m"}}}"#;
    converges(&home, &fleet, "container-stack.yaml", &["-e", settings]);
    let file: Value =
        serde_json::from_str(&fleet.text("gpu001", "etc/docker/daemon.json").expect("a file")).expect("JSON");
    assert_eq!(
        file,
        serde_json::json!({
            "bip": "10.9.0.1/24", "live-restore": true, "log-opts": {"max-size": "100m"},
            "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
        })
    );
    let info = fleet.read("gpu001", "docker info --format '{{json .}}'");
    assert!(
        info.contains("\"LiveRestoreEnabled\":true") && info.contains("nvidia-container-runtime"),
        "{info}"
    );
    let uuid = |node: &str| gpus(&fleet, node)[0]["uuid"].as_str().expect("a UUID").to_owned();
    assert!(fleet.read("gpu001", "cat /var/run/cdi/nvidia.yaml").contains(&uuid("gpu001")));
    assert_eq!(fleet.read("gpu002", "systemctl is-active nvidia-dcgm"), "active");

    // A specification of GPUs that were replaced is made anew; nothing else happens.
    let stale = format!("sed -i 's/{}/GPU-gone/' /run/cdi/nvidia.yaml", uuid("gpu001"));
    fleet.ssh("gpu001", &stale);
    let done = document(&home, &fleet, "run", "container-stack.yaml", &["-e", settings], 0);
    assert_eq!((done.stat("gpu001", "changed"), done.stat("gpu002", "changed")), (1, 0));
    assert!(fleet.read("gpu001", "cat /run/cdi/nvidia.yaml").contains(&uuid("gpu001")));

    // What is wrong is named: of the two nodes, only one has switches.
    for node in ["gpu001", "gpu002"] {
        fleet.ssh(
            node,
            "mkdir -p /etc/gpufleet-lab && echo 570.86.15 > /etc/gpufleet-lab/fabric-manager-version",
        );
    }
    let failed = document(&home, &fleet, "run", "container-stack.yaml", &["-e", settings], 5);
    assert!(
        failed
            .message("gpu002")
            .contains("the fabric manager is 570.86.15 and the driver that runs is 580.159.04"),
        "{}",
        failed.message("gpu002")
    );
    assert_eq!(failed.stat("gpu001", "failed"), 0);
}

#[test]
fn dockerd_is_restarted_only_where_it_must_be() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, ..FleetOptions::default() });
    let home = Home::new();
    let inventory = fleet.inventory();
    let reads = |kind: &str| {
        let of_daemon = |event: &&Value| event["what"] == "dockerd";
        fleet
            .events("gpu001")
            .iter()
            .filter(of_daemon)
            .filter(|event| event.to_string().contains(kind))
            .count()
    };
    fleet.ssh("gpu001", "systemctl start docker");
    assert_eq!(reads("all"), 1);
    let adhoc = |parameters: &str, code| {
        let words = ["-b", "gpu001", "-i", &inventory, "-m", "docker_daemon", "-a", parameters];
        home.gpufleet(["exec"]).args(words).run().expect(code).stdout
    };
    adhoc(r#"{"settings": {"live-restore": true}}"#, 0);
    assert_eq!((reads("all"), reads("reloaded")), (1, 1), "{:?}", fleet.events("gpu001"));
    // Nothing that dockerd would refuse reaches the file.
    let said = adhoc(r#"{"settings": {"liverestore": true}}"#, 2);
    assert!(said.contains("don't match any configuration option: liverestore"), "{said}");
    let said = adhoc(r#"{"settings": {"hosts": ["fd://"]}}"#, 2);
    assert!(said.contains("dockerd runs with the flag `-H`"), "{said}");
    assert_eq!((reads("all"), reads("reloaded")), (1, 1));
}

#[test]
fn gpus_that_wait_for_a_reset_get_it_and_their_counters_are_told() {
    let states = "- {nodes: gpu001, gpu: 0, set: {remap_pending: true, volatile_correctable: 12}}\n\
                  - {nodes: gpu002, gpu: 1, set: {ecc_pending: false}}\n\
                  - {nodes: gpu003, gpu: 0, set: {ecc_current: false, ecc_pending: true}}\n";
    let fleet =
        Fleet::start(&FleetOptions { nodes: 4, states: states.to_owned(), ..FleetOptions::default() });
    let home = Home::new();
    let done = converges(&home, &fleet, "ecc-recovery.yaml", &[]);
    let resets =
        |node: &str| -> Vec<Value> { gpus(&fleet, node).iter().map(|gpu| gpu["resets"].clone()).collect() };
    assert_eq!(resets("gpu001"), [1, 0]);
    assert_eq!(resets("gpu002"), [0, 0], "a pending change is only taken back");
    assert_eq!(resets("gpu003"), [1, 0]);
    assert_eq!(resets("gpu004"), [0, 0]);
    for node in fleet.names() {
        assert!(gpus(&fleet, &node).iter().all(|gpu| gpu["ecc"]["current"] == true), "{node}");
    }
    let told = serde_json::to_string(done.node("gpu001")).expect("JSON");
    assert!(told.contains("12 corrected memory errors"), "{told}");
}

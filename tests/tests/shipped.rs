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
    let without = document(&home, &fleet, "run", "day-night-mig.yaml", &[], 2);
    assert!(without.message("gpu001").contains("give -t day or -t night"), "{}", without.message("gpu001"));
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

#[test]
fn the_operating_system_is_tuned_and_stays_so_after_a_boot() {
    let (fleet, home) = (Fleet::start(&FleetOptions::default()), Home::new());
    converges(&home, &fleet, "os-tuning.yaml", &["-e", "os_gigantic_pages=2"]);
    let settings = |node: &str| {
        let read = |command: &str| fleet.read(node, command);
        [
            read("cat /proc/sys/vm/swappiness"),
            read("cat /sys/devices/system/cpu/cpufreq/policy0/scaling_governor"),
            read("cat /sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages"),
        ]
    };
    assert_eq!(settings("gpu001"), ["10", "performance", "2"]);
    let boots = fleet.boots("gpu001");
    fleet.ssh("gpu001", "reboot");
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while fleet.boots("gpu001") == boots {
        assert!(std::time::Instant::now() < limit, "the node does not boot");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    fleet.await_answer("gpu001");
    let again = document(&home, &fleet, "audit", "os-tuning.yaml", &["-e", "os_gigantic_pages=2"], 0);
    assert_eq!(again.state("gpu001"), "compliant", "{}", again.message("gpu001"));
}

#[test]
fn training_and_inference_nodes_are_made_of_the_same_role() {
    let (fleet, home) = (Fleet::start(&FleetOptions { drift: true, ..FleetOptions::default() }), Home::new());
    converges(&home, &fleet, "training-node.yaml", &[]);
    home.gpufleet(["report", "latest", "-o", "report.html"]).run().expect(0);
    let page = std::fs::read_to_string(home.work().join("report.html")).unwrap();
    assert!(page.contains("numactl --cpunodebind=0 --membind=0"), "the report draws no topology");
    converges(&home, &fleet, "inference-node.yaml", &["-e", r#"{"inference_mig_layout": {"1g.10gb": 7}}"#]);
    assert!(fleet.names().iter().all(|node| instances(&fleet, node) == [7, 7]));
}

/// A network card for RDMA and a drive, which nodes of the lab lack.
const CARD_AND_DRIVE: &str = "set -e; cd /sys
mkdir -p module/ib_core block/nvme0n1/queue bus/pci/devices/0000:e8:00.0 class/infiniband/mlx5_0/ports/1
echo 'ffffffffc0a01230 T ib_umem_dmabuf_get' > /run/kallsyms
mount --bind /run/kallsyms /proc/kallsyms
ln -sfn ../../../../bus/pci/devices/0000:e8:00.0 class/infiniband/mlx5_0/device
cd /sys/class/infiniband/mlx5_0/ports/1
echo '4: ACTIVE' > state
echo '5: LinkUp' > phys_state
echo '400 Gb/sec (4X NDR)' > rate
echo InfiniBand > link_layer
cd /sys/block/nvme0n1/queue
echo 128 > read_ahead_kb
echo '[none] mq-deadline' > scheduler
echo 0 > rotational";

#[test]
fn a_training_node_gets_what_its_jobs_ask_of_drives_processors_and_fabric() {
    let (fleet, home) = (Fleet::start(&FleetOptions { nodes: 2, ..FleetOptions::default() }), Home::new());
    for node in fleet.names() {
        let done = fleet.ssh(&node, CARD_AND_DRIVE);
        assert!(done.status.success(), "{done:?}");
    }
    let words = r#"{"os_cpu_latency_us": "10", "os_nvme_read_ahead_kb": 4096, "fabric_ports": 1, "fabric_rate_gbps": 400,
        "os_limits": [{"domain": "*", "item": "memlock", "value": "unlimited"}], "fabric_gpudirect": "dma_buf"}"#;
    converges(&home, &fleet, "training-node.yaml", &["-e", words]);
    for node in fleet.names() {
        assert_eq!(
            fleet.read(&node, "cat /sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us"),
            "10"
        );
        assert_eq!(fleet.read(&node, "cat /sys/block/nvme0n1/queue/read_ahead_kb"), "4096");
        let limits = fleet.text(&node, "etc/security/limits.d/90-gpufleet.conf").expect("limits");
        assert!(limits.contains("memlock unlimited"), "{limits}");
    }
    // A card that is slower than it should be stops the node, and the other one has nothing of it.
    fleet.ssh("gpu002", "echo '200 Gb/sec (4X HDR)' > /sys/class/infiniband/mlx5_0/ports/1/rate");
    let slow = document(&home, &fleet, "audit", "training-node.yaml", &["-e", words], 3);
    assert_eq!(slow.state("gpu001"), "compliant", "{}", slow.message("gpu001"));
    assert!(slow.message("gpu002").contains("mlx5_0"), "{}", slow.message("gpu002"));
}

#[test]
fn a_training_node_gets_its_fabric_manager_and_limits_of_containers() {
    let options = FleetOptions { nodes: 1, gpus: "h200-141gb", ..FleetOptions::default() };
    let (fleet, home) = (Fleet::start(&options), Home::new());
    let podman =
        "printf '#!/bin/sh\\necho podman version 5.4.0\\n' > /usr/bin/podman; chmod 755 /usr/bin/podman
        touch /dev/nvidia-nvswitch0; systemctl stop nvidia-fabricmanager";
    let done = fleet.ssh("gpu001", podman);
    assert!(done.status.success(), "{done:?}");
    let words = r#"{"stack_fabric_manager": "started", "stack_container_runtime": "podman",
        "stack_container_ulimits": {"memlock": "unlimited"}, "stack_container_log_size_max": "100MiB"}"#;
    converges(&home, &fleet, "training-node.yaml", &["-e", words]);
    let limits = fleet.text("gpu001", "etc/containers/containers.conf.d/90-gpufleet.conf").expect("limits");
    assert!(limits.contains(r#"default_ulimits = ["memlock=-1:-1"]"#), "{limits}");
    assert!(limits.contains("log_size_max = 104857600"), "{limits}");
    assert_eq!(fleet.read("gpu001", "systemctl is-active nvidia-fabricmanager"), "active");
}

#[test]
fn a_kubernetes_node_gets_its_runtime_and_its_kubelet() {
    let (fleet, home) = (Fleet::start(&FleetOptions { nodes: 2, ..FleetOptions::default() }), Home::new());
    for node in fleet.names() {
        gpufleet_tests::install_kubelet(&fleet, &node);
        // containerd's own program answers what it would read; what runs in its place is enough to be restarted.
        let unit = "mkdir -p /etc/containerd && echo 'version = 2' > /etc/containerd/config.toml && \
                    printf '[Service]\\nExecStart=/bin/sleep infinity\\n[Install]\\nWantedBy=multi-user.target\\n' \
                    > /etc/systemd/system/containerd.service && systemctl enable --now containerd";
        let done = fleet.ssh(&node, unit);
        assert!(done.status.success(), "{done:?}");
    }
    // The pages need a boot, which comes before MIG, the CDI specification and the kubelet's state of CPUs and pages.
    let words = r#"{"kube_reserved_cpus": "0", "kube_settings": {"maxPods": 64}, "kube_mig_layout": {"1g.10gb": 7},
        "os_gigantic_pages": 1}"#;
    converges(&home, &fleet, "kubernetes-gpu-node.yaml", &["-e", words]);
    for node in fleet.names() {
        let settings =
            fleet.read(&node, "cat /etc/kubernetes/kubelet.conf.d/90-gpufleet.conf; ls -lR /etc/kubernetes");
        for line in ["maxPods: 64", "cpuManagerPolicy: static", "topologyManagerPolicy: restricted"] {
            assert!(settings.contains(line), "{settings}");
        }
        let runtime = fleet.read(&node, "containerd config dump");
        assert!(runtime.contains("nvidia-container-runtime"), "{runtime}");
        assert_eq!(fleet.read(&node, "systemctl is-active kubelet containerd"), "active\nactive");
        assert_eq!(instances(&fleet, &node), [7, 7]);
    }
}

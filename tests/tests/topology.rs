//! `topology` and `topology_info` on simulated nodes: where devices are, what nobody knows, and what the report draws.

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};
use serde_json::Value;

const HUNG: &str = "- {nodes: gpu003, function: \"nvmlInit*\", effect: hang}\n";

fn document(done: &Finished) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done}"))
}

#[test]
fn places_are_shown_even_where_the_driver_hangs_and_nothing_changes() {
    let options = FleetOptions { nodes: 3, gpus_per_node: 8, faults: HUNG.into(), ..FleetOptions::default() };
    let (fleet, home) = (Fleet::start(&options), Home::new());
    let inventory = fleet.inventory();
    let before = fleet.digests();
    let topology = |words: &[&str]| home.gpufleet(["topology"]).args(words).args(["-i", &inventory]).run();

    let text = topology(&[]).expect(2).stdout;
    for line in [
        // Two that are alike are drawn once.
        "gpu[001,002]  2 sockets · 16 cores · 32 CPUs · 2 NUMA nodes · 8 GPUs",
        "NUMA 1  socket 1 · CPUs 8-15,24-31 · 1024 GiB",
        "gpu003  2 sockets",
        "unknown  not read: indexes and UUIDs of GPUs are not known: ",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let cells: Vec<&str> = text
        .lines()
        .find(|line| line.starts_with("7 "))
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .unwrap_or_default();
    assert_eq!(cells, ["7", "1", "8-15,24-31", "-", "-", "numactl --cpunodebind=1 --membind=1"], "{text}");
    assert!(
        text.contains("NodeName=gpu001,gpu002 Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=8-15"),
        "{text}"
    );

    let json = document(&topology(&["gpu001", "-o", "json"]).expect(0));
    assert_eq!(json["nodes"][0]["gpus"][4]["numa_node"], 1);
    assert_eq!(json["nodes"][0]["gpus"][4]["slurm_cores"], "8-15");
    let picture = topology(&["gpu002", "-o", "svg"]).expect(0).stdout;
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    let refused = topology(&["-o", "svg"]).expect(1);
    assert!(refused.stderr.contains("these hosts have 2"), "{refused}");
    assert_eq!(fleet.digests(), before, "something was changed");
}

#[test]
fn a_play_gets_it_and_its_report_draws_it_once_for_nodes_that_are_alike() {
    let options = FleetOptions { nodes: 2, gpus_per_node: 4, ..FleetOptions::default() };
    let (fleet, home) = (Fleet::start(&options), Home::new());
    home.write(
        "play.yaml",
        "- hosts: gpu\n  gather_facts: false\n  tasks:\n    - topology_info: {}\n      register: places\n    \
         - assert:\n        that: places.topology.devices[0].numa_node == 0\n",
    );
    let inventory = fleet.inventory();
    home.gpufleet(["run", "play.yaml", "-i", &inventory]).run().expect(0);
    home.gpufleet(["report", "latest", "-o", "report.html"]).run().expect(0);
    let page = std::fs::read_to_string(home.work().join("report.html")).unwrap();
    assert_eq!(page.matches("numactl --cpunodebind=0 --membind=0").count(), 4, "one picture for both nodes");
}

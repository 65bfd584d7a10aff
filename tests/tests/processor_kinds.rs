//! Memory and processors of nodes: planned, set, kept over a boot, and unchanged by a second run.

use gpufleet_tests::{Fleet, FleetOptions, Home};

const PLAY: &str = r#"
- hosts: gpu
  become: true
  tasks:
    - hugepages: {size: 2M, count: 65}
    - hugepages: {size: 1G, per_node: 8, when: boot}
    - cpu_frequency: {governor: performance, energy_preference: performance, boost: false, max_khz: 2000000}
    - cpu_idle: {latency_us: 20, cpus: 0-7}
    - cpu_idle: {global_latency_us: 100, deepest_us: 50}
    - smt: {state: off}
    - reboot: {when: required, timeout: 60s}
"#;

/// What a node has, one line each.
const LOOK: &str = "cd /sys/devices/system; \
    cat node/node[01]/hugepages/hugepages-2048kB/nr_hugepages node/node[01]/hugepages/hugepages-1048576kB/nr_hugepages; \
    cat cpu/cpufreq/policy*/scaling_governor cpu/cpufreq/policy*/scaling_max_freq | sort | uniq -c | tr -s ' '; \
    cat cpu/intel_pstate/no_turbo cpu/cpu7/power/pm_qos_resume_latency_us cpu/cpu8/power/pm_qos_resume_latency_us; \
    cat cpu/cpu31/cpuidle/state*/disable cpu/smt/control | tr '\\n' ' '; od -An -td4 /dev/cpu_dma_latency | tr -d ' '; \
    systemctl is-active gpufleet-cpu-idle || true";

const WANTED: &str = "33\n32\n8\n8\n 32 2000000\n 32 performance\n1\n20\n0\n0 0 0 1 off 100\nactive";

#[test]
fn memory_and_processors_are_set_and_stay_so() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    let inventory = fleet.inventory();
    let arguments = |verb| [verb, "play.yaml", "-i", &inventory, "--format", "json"].map(str::to_owned);
    let before = fleet.read("gpu001", LOOK);
    assert_ne!(before, WANTED);
    let planned = home.gpufleet(arguments("plan")).run().expect(0);
    planned.says(&[
        "gpufleet-cpu-idle.service",
        "cpu/smt/control",
        "node0/hugepages-2M",
        "cpufreq/scaling_governor",
        "hugepagesz=1G",
    ]);
    assert_eq!(fleet.read("gpu001", LOOK), before, "a plan writes nothing");
    home.gpufleet(arguments("run")).arg("--yes").run().expect(0);
    assert_eq!(fleet.boots("gpu001"), 2, "the command line needs one reboot");
    assert_eq!(fleet.read("gpu001", LOOK), WANTED, "the boot has set all of it");
    let again = home.gpufleet(arguments("run")).run().expect(0);
    assert_eq!(again.document().total("changed"), 0, "{again}");
    home.gpufleet(arguments("audit")).run().says(&["compliant"]);
}

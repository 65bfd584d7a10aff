//! The GPU kinds on nodes of the lab: configurations of mig-parted, and compute instances.

use std::collections::BTreeMap;

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};

/// Runs `play.yaml` as JSON.
fn go(home: &Home, fleet: &Fleet, verb: &str, more: &[&str]) -> Finished {
    let inventory = fleet.inventory();
    let mut words = vec![verb, "play.yaml", "-i", &inventory, "--format", "json"];
    if verb == "run" {
        words.push("--yes");
    }
    words.extend(more);
    home.gpufleet(words).run()
}

/// Runs `play.yaml`, and returns all events.
fn events(home: &Home, fleet: &Fleet, more: &[&str]) -> Finished {
    let inventory = fleet.inventory();
    let words = ["run", "play.yaml", "-i", &inventory, "--format", "jsonl", "--yes"];
    home.gpufleet(words).args(more).run()
}

/// Plans, runs as planned, and runs again, which sets nothing.
fn converges(home: &Home, fleet: &Fleet, more: &[&str]) -> Finished {
    let names = fleet.names();
    let before = fleet.activity(&names);
    let plan = go(home, fleet, "plan", more).expect(0).document();
    assert_eq!(fleet.activity(&names), before, "a plan changes nothing");
    let done = go(home, fleet, "run", more).expect(0);
    for name in &names {
        assert_eq!(plan.changes(name), done.document().changes(name), "{name}: the run is as planned");
    }
    let before = fleet.activity(&names);
    let again = go(home, fleet, "run", more).expect(0);
    assert_eq!(again.document().total("changed"), 0, "{again}");
    assert_eq!(fleet.activity(&names), before, "the second run sets nothing");
    done
}

/// The instances of a GPU: profile and place of each, and the places and slices of its compute instances.
fn layout(fleet: &Fleet, node: &str, gpu: usize) -> BTreeMap<(i64, i64), Vec<(i64, i64)>> {
    let number = |value: &serde_json::Value| value.as_i64().expect("a number");
    let machine = fleet.machine(node);
    let instances = machine["gpus"][gpu]["instances"].as_array().expect("instances");
    instances
        .iter()
        .map(|one| {
            let computes = one["compute_instances"].as_array().expect("compute instances");
            let mut inside: Vec<(i64, i64)> =
                computes.iter().map(|inner| (number(&inner["start"]), number(&inner["size"]))).collect();
            inside.sort_unstable();
            ((number(&one["start"]), number(&one["size"])), inside)
        })
        .collect()
}

const CONFIG_MAP: &str = r#"apiVersion: v1
kind: Namespace
metadata: {name: gpu-operator}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: mig-parted-config}
data:
  config.yaml: |
    version: v1
    mig-configs:
      all-disabled:
        - devices: all
          mig-enabled: false
      balanced:
        - device-filter: ["0x20B210DE", "0x233010DE"]
          devices: all
          mig-enabled: true
          mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
        - device-filter: "0x233010DE"
          devices: [1]
          mig-enabled: true
          mig-devices: {1c.3g.40gb: 3, 2c.4g.40gb: 2}
      other-boards:
        - device-filter: "0x233510DE"
          devices: all
          mig-enabled: true
          mig-devices: {1g.18gb: 7}
"#;

#[test]
fn a_file_of_mig_parted_is_carried_out_unchanged() {
    let fleet = Fleet::start(&FleetOptions { gpus: "h100-80gb,a100-80gb", ..FleetOptions::default() });
    let home = Home::new();
    home.write("files/mig.yaml", CONFIG_MAP);
    let play = "- hosts: all\n  become: true\n  tasks:\n\
                \u{20}   - gpu_mig: {config_file: mig.yaml, config: '{{ mig }}'}\n";
    home.write("play.yaml", play);

    converges(&home, &fleet, &["-e", "mig=balanced"]);
    let whole = |start, size, slices| ((start, size), vec![(0, slices)]);
    let balanced = BTreeMap::from([whole(0, 2, 2), whole(2, 1, 1), whole(3, 1, 1), whole(4, 4, 3)]);
    for (node, gpu) in [("gpu001", 0), ("gpu002", 0), ("gpu002", 1)] {
        assert_eq!(layout(&fleet, node, gpu), balanced, "{node} GPU {gpu}");
    }
    let parts = BTreeMap::from([((0, 4), vec![(0, 2), (2, 2)]), ((4, 4), vec![(0, 1), (1, 1), (2, 1)])]);
    assert_eq!(layout(&fleet, "gpu001", 1), parts, "the last spec that matches counts");
    assert_eq!(fleet.read("gpu001", "nvidia-smi -L").matches("MIG ").count(), 4 + 5);

    let names = fleet.names();
    let before = fleet.activity(&names);
    let other = go(&home, &fleet, "audit", &["-e", "mig=other-boards"]).expect(0).document();
    assert_eq!((other.node("gpu001")["verdict"].clone(), other.number("/verdicts/na")), ("na".into(), 2));
    events(&home, &fleet, &["-e", "mig=other-boards"]).expect(0).says(&[
        "the configuration `other-boards` has no spec for GPU 0",
        "0x233010DE",
        "0x20B210DE",
    ]);
    assert_eq!(fleet.activity(&names), before, "boards that no spec is for are left alone");
    let audit = go(&home, &fleet, "audit", &["-e", "mig=balanced"]).expect(0);
    assert_eq!(audit.document().number("/verdicts/ok"), 2, "{audit}");

    // What is wrong with the file is told before any node is contacted.
    home.write("files/mig.yaml", &CONFIG_MAP.replace("0x233510DE", "H200"));
    let wrong = go(&home, &fleet, "run", &["-e", "mig=balanced"]).expect(1);
    wrong.says(&["`H200` is no device id", "mig.yaml (data.config.yaml):"]);
    home.write("files/mig.yaml", CONFIG_MAP);
    home.write("play.yaml", &play.replace("'{{ mig }}'", "balance"));
    let wrong = go(&home, &fleet, "run", &[]).expect(1);
    wrong.says(&["has no configuration `balance`", "did you mean `balanced`?", "play.yaml:4:"]);
    assert_eq!(fleet.activity(&names), before);

    home.write("play.yaml", &play.replace("'{{ mig }}'", "all-disabled"));
    converges(&home, &fleet, &[]);
    assert!(
        names.iter().all(|name| layout(&fleet, name, 0).is_empty() && layout(&fleet, name, 1).is_empty())
    );
}

fn play(home: &Home, layout: &str) {
    home.write(
        "play.yaml",
        &format!(
            "- hosts: all\n  become: true\n  tasks:\n    - gpu_mig: {{mode: enabled, layout: {layout}}}\n"
        ),
    );
}

#[test]
fn compute_instances_are_declared_one_by_one_and_kept() {
    let fleet = Fleet::start(&FleetOptions { gpus_per_node: 1, nodes: 1, ..FleetOptions::default() });
    let home = Home::new();
    play(&home, "{1c.3g.40gb: 3, 3g.40gb: 1}");
    converges(&home, &fleet, &[]);
    let parts = ((4, 4), vec![(0, 1), (1, 1), (2, 1)]);
    let (first, second) = (layout(&fleet, "gpu001", 0), ((0, 4), vec![(0, 3)]));
    assert_eq!(first, BTreeMap::from([parts, second.clone()]));

    play(&home, "{1c.3g.40gb: 1, 2c.3g.40gb: 1, 3g.40gb: 1}");
    let before = fleet.setters("gpu001").len();
    converges(&home, &fleet, &[]);
    let shared = ((4, 4), vec![(0, 2), (2, 1)]);
    assert_eq!(layout(&fleet, "gpu001", 0), BTreeMap::from([shared, second]));
    assert_eq!(fleet.setters("gpu001").len() - before, 3, "two compute instances go, and one comes");

    play(&home, "{3c.4g.40gb: 1}");
    let wrong = go(&home, &fleet, "run", &[]).expect(2);
    wrong.says(&["there is no MIG profile `3c.4g.40gb`; the GPU has 1c.4g.40gb, 2c.4g.40gb, 4g.40gb"]);
}

#[test]
fn compute_instances_come_back_when_a_new_one_fails() {
    let rule =
        "- {function: nvmlGpuInstanceCreateComputeInstanceWithPlacement, nth: 4, effect: {return: 23}}\n";
    let fleet = Fleet::start(&FleetOptions {
        gpus_per_node: 1,
        nodes: 1,
        faults: rule.to_owned(),
        ..FleetOptions::default()
    });
    let home = Home::new();
    play(&home, "{1c.3g.40gb: 3, 3g.40gb: 1}");
    converges(&home, &fleet, &[]);
    let before = layout(&fleet, "gpu001", 0);
    play(&home, "{1c.3g.40gb: 1, 2c.3g.40gb: 1, 3g.40gb: 1}");
    let failed = go(&home, &fleet, "run", &[]).expect(2);
    failed.says(&["the previous MIG layout was restored"]);
    assert_eq!(layout(&fleet, "gpu001", 0), before);
}

fn tasks(home: &Home, tasks: &[&str]) {
    let tasks: String = tasks.iter().map(|task| format!("    - {task}\n")).collect();
    home.write("play.yaml", &format!("- hosts: all\n  become: true\n  tasks:\n{tasks}"));
}

#[test]
fn accounting_is_declared_and_refused_under_mig() {
    let fleet = Fleet::start(&FleetOptions { gpus: "h100-80gb,a100-80gb", ..FleetOptions::default() });
    let home = Home::new();
    tasks(&home, &["gpu_accounting: {mode: enabled}", "gpu_persistence: {mode: daemon}"]);
    converges(&home, &fleet, &[]);
    for node in fleet.names() {
        assert!(fleet.machine(&node)["gpus"].as_array().unwrap().iter().all(|gpu| gpu["accounting"] == true));
    }
    // What a reset loses is set again.
    fleet.control("gpu001", &["set", "1", "recovery_action", "1"]);
    tasks(
        &home,
        &[
            "gpu_accounting: {mode: enabled}",
            "gpu_persistence: {mode: daemon}",
            "gpu_reset: {when: required}",
        ],
    );
    let done = converges(&home, &fleet, &[]);
    assert_eq!(done.document().state("gpu002"), "compliant", "{done}");
    let gpus = fleet.machine("gpu001")["gpus"].clone();
    assert_eq!((&gpus[0]["resets"], &gpus[1]["resets"]), (&0.into(), &1.into()));
    assert_eq!(gpus[1]["accounting"], true);
    // A reset of its own is made once in every run.
    tasks(&home, &["gpu_reset: {when: always, gpus: [0]}", "gpu_persistence: {mode: daemon}"]);
    for resets in [1, 2] {
        let done = go(&home, &fleet, "run", &["--limit", "gpu001"]).expect(0);
        assert_eq!(fleet.machine("gpu001")["gpus"][0]["resets"], resets, "{done}");
    }
    tasks(&home, &["gpu_accounting: {mode: enabled}", "gpu_mig: {mode: enabled}"]);
    let before = fleet.activity(&fleet.names());
    let wrong = go(&home, &fleet, "run", &[]).expect(2);
    wrong.says(&["GPU 0-1 is in MIG mode, where the driver forces accounting off"]);
    assert_eq!(fleet.activity(&fleet.names()), before);
}

#[test]
fn a_setter_that_lies_or_fails_is_told() {
    let rules = "- {nodes: gpu001, function: nvmlDeviceSetAccountingMode, effect: lie}\n\
                 - {nodes: gpu002, function: nvmlDeviceSetAccountingMode, effect: {return: 999}}\n";
    let fleet =
        Fleet::start(&FleetOptions { gpus_per_node: 1, faults: rules.into(), ..FleetOptions::default() });
    let home = Home::new();
    tasks(&home, &["gpu_accounting: {mode: enabled}", "gpu_persistence: {mode: daemon}"]);
    let failed = go(&home, &fleet, "run", &[]).expect(2);
    let document = failed.document();
    assert!(
        document.message("gpu001").contains("accounting was set to enabled and reads disabled"),
        "{failed}"
    );
    assert!(document.message("gpu002").contains("nvmlDeviceSetAccountingMode: unknown error"), "{failed}");
}

#[test]
fn confidential_gpus_accept_work_where_the_mode_is_on() {
    let fleet = Fleet::start(&FleetOptions {
        gpus_per_node: 1,
        nodes: 3,
        states: "- {nodes: gpu001, machine: {confidential: true}}\n".to_owned(),
        faults: "- {nodes: gpu003, function: nvmlSystemGetConfComputeState, effect: {return: 999}}\n"
            .to_owned(),
        ..FleetOptions::default()
    });
    let home = Home::new();
    tasks(&home, &["gpu_confidential_compute: {ready: true}"]);
    let done = go(&home, &fleet, "run", &["--limit", "gpu001:gpu002"]).expect(0);
    assert_eq!(done.document().total("changed"), 1, "{done}");
    assert_eq!(fleet.machine("gpu001")["confidential_ready"], true);
    let again = go(&home, &fleet, "run", &["--limit", "gpu001:gpu002"]).expect(0);
    assert_eq!(again.document().total("changed"), 0, "{again}");
    let told = events(&home, &fleet, &["--limit", "gpu002"]).expect(0);
    told.says(&["confidential computing is disabled on this node"]);
    let audit = go(&home, &fleet, "audit", &["--limit", "gpu003"]).expect(3);
    audit.says(&["confidential computing cannot be read"]);
    tasks(&home, &["gpu_confidential_compute: {mode: enabled}"]);
    let wrong = go(&home, &fleet, "run", &["--limit", "gpu002"]).expect(2);
    wrong.says(&["confidential computing is disabled and not enabled, which no running driver can change"]);
}

#[test]
fn a_persistence_daemon_that_cannot_start_is_named_before_anything_is_done() {
    let fleet = Fleet::start(&FleetOptions { gpus_per_node: 1, nodes: 3, ..FleetOptions::default() });
    let home = Home::new();
    fleet.read("gpu001", "rm /usr/bin/nvidia-persistenced");
    let folder = "/etc/systemd/system/nvidia-persistenced.service.d";
    let text = "[Service]\\nExecStart=\\nExecStart=/usr/bin/nvidia-persistenced --user ghost\\n";
    fleet.read("gpu002", &format!("mkdir -p {folder} && printf '{text}' > {folder}/user.conf"));
    tasks(&home, &["gpu_power: {limit_watts: 600}", "gpu_persistence: {mode: daemon}"]);
    let before = fleet.activity(&fleet.names());
    go(&home, &fleet, "plan", &[]);
    assert_eq!(fleet.activity(&fleet.names()), before);
    let failed = go(&home, &fleet, "run", &[]).expect(2);
    let document = failed.document();
    assert!(
        document.message("gpu001").contains("/usr/bin/nvidia-persistenced, which is not there"),
        "{failed}"
    );
    assert!(document.message("gpu002").contains("wants the user ghost"), "{failed}");
    assert_eq!(document.state("gpu003"), "done", "{failed}");
    let after = fleet.activity(&fleet.names());
    assert_eq!(after[..2], before[..2], "nothing was set where the daemon cannot start");
}

fn uuid(fleet: &Fleet, node: &str, gpu: usize) -> String {
    fleet.machine(node)["gpus"][gpu]["uuid"].as_str().expect("a UUID").to_owned()
}

/// The units of MPS daemons that run, of those that there are.
fn daemons(fleet: &Fleet, node: &str) -> Vec<(String, bool)> {
    let listed = fleet.read(
        node,
        "cd /etc/systemd/system && for unit in gpufleet-mps*.service; do test -e $unit && \
         echo $unit $(systemctl is-active $unit); done; true",
    );
    let units = listed.lines().filter_map(|line| line.split_once(' '));
    units.map(|(unit, state)| (unit.to_owned(), state == "active")).collect()
}

fn ask(fleet: &Fleet, node: &str, uuid: &str, line: &str) -> String {
    let program = format!("CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps/{uuid} nvidia-cuda-mps-control");
    fleet.read(node, &format!("echo {line} | {program}"))
}

const SHARE: &str = "get_default_active_thread_percentage";

#[test]
fn each_gpu_has_an_mps_daemon_of_its_own_for_one_user() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, ..FleetOptions::default() });
    let home = Home::new();
    let persistence = "gpu_persistence: {mode: daemon}";
    tasks(&home, &["gpu_mps: {state: started}", persistence]);
    converges(&home, &fleet, &[]);
    tasks(
        &home,
        &[
            "gpu_mps: {state: started, scope: gpu, user: ops, active_thread_percentage: 40}",
            "gpu_compute_mode: {mode: exclusive_process}",
            persistence,
        ],
    );
    converges(&home, &fleet, &[]);
    let (first, second) = (uuid(&fleet, "gpu001", 0), uuid(&fleet, "gpu001", 1));
    let unit = |uuid: &str| format!("gpufleet-mps@{uuid}.service");
    let mut both =
        vec![(unit(&first), true), (unit(&second), true), ("gpufleet-mps.service".to_owned(), false)];
    both.sort();
    let mut found = daemons(&fleet, "gpu001");
    found.sort();
    assert_eq!(found, both);
    for uuid in [&first, &second] {
        assert_eq!(ask(&fleet, "gpu001", uuid, SHARE), "40.0");
        assert_eq!(fleet.read("gpu001", &format!("stat -c %U:%a /run/nvidia-mps/{uuid}")), "ops:700");
    }
    assert_eq!(fleet.read("gpu001", "stat -c %U:%a /run/nvidia-mps"), "root:755");
    assert_eq!(fleet.read("gpu001", "ls /tmp/nvidia-mps 2>/dev/null || echo gone"), "gone");

    // A new limit reaches the daemon at once, and a server that runs not.
    ask(&fleet, "gpu001", &first, "start_server -uid 1000");
    let server = ask(&fleet, "gpu001", &first, "get_server_list");
    tasks(
        &home,
        &["gpu_mps: {state: started, scope: gpu, user: ops, active_thread_percentage: 20}", persistence],
    );
    let done = events(&home, &fleet, &[]).expect(0);
    done.says(&["keeps its limits", "restart"]);
    assert_eq!(ask(&fleet, "gpu001", &first, SHARE), "20.0");
    assert_eq!(ask(&fleet, "gpu001", &first, &format!("get_active_thread_percentage {server}")), "40.0");
    let again = go(&home, &fleet, "run", &[]).expect(0);
    assert_eq!(again.document().total("changed"), 0, "{again}");

    // A killed daemon leaves its folder; the next run cleans it and starts the daemon.
    let pid = format!("/run/nvidia-mps/{second}/nvidia-cuda-mps-control.pid");
    fleet.read("gpu001", &format!("kill -9 $(cat {pid})"));
    let done = go(&home, &fleet, "run", &[]).expect(0);
    done.says(&["broken (stale socket)"]);
    assert_eq!(ask(&fleet, "gpu001", &second, SHARE), "20.0");

    // A reset stops and starts them, and a boot starts them.
    fleet.control("gpu001", &["set", "1", "recovery_action", "1"]);
    ask(&fleet, "gpu001", &first, &format!("shutdown_server {server}"));
    tasks(
        &home,
        &[
            "gpu_mps: {state: started, scope: gpu, user: ops, active_thread_percentage: 20}",
            "gpu_reset: {when: required}",
            persistence,
        ],
    );
    converges(&home, &fleet, &[]);
    assert_eq!(fleet.machine("gpu001")["gpus"][1]["resets"], 1);
    assert_eq!(ask(&fleet, "gpu001", &first, SHARE), "20.0");
    fleet.reboot("gpu001");
    assert_eq!(ask(&fleet, "gpu001", &first, SHARE), "20.0");

    tasks(&home, &["gpu_mps: {state: stopped, scope: gpu}"]);
    converges(&home, &fleet, &[]);
    assert_eq!(daemons(&fleet, "gpu001"), [("gpufleet-mps.service".to_owned(), false)]);
    assert_eq!(fleet.read("gpu001", "ls /run/nvidia-mps"), "");
}

#[test]
fn mps_daemons_of_mig_instances_come_and_go_with_them() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    let wish = |layout: &str| {
        let mig = format!("gpu_mig: {{mode: enabled, layout: {layout}}}");
        tasks(&home, &["gpu_mps: {state: started, scope: mig}", "gpu_persistence: {mode: daemon}", &mig]);
    };
    let devices = || -> Vec<String> {
        let listed = fleet.read("gpu001", "nvidia-smi -L");
        let uuids = listed.split("UUID: ").map(|rest| rest.split(')').next().unwrap_or_default());
        let mut uuids: Vec<String> = uuids
            .filter(|uuid| uuid.starts_with("MIG-"))
            .map(|uuid| format!("gpufleet-mps@{uuid}.service"))
            .collect();
        uuids.sort();
        uuids
    };
    let running = || -> Vec<String> {
        let mut all = daemons(&fleet, "gpu001");
        all.sort();
        assert!(all.iter().all(|(_, runs)| *runs), "{all:?}");
        all.into_iter().map(|(unit, _)| unit).collect()
    };
    wish("{3g.40gb: 1, 1c.3g.40gb: 3}");
    let done = converges(&home, &fleet, &[]);
    done.says(&["GPU 0 MPS daemon of 3g.40gb@"]);
    assert_eq!((running().len(), running()), (4, devices()));
    wish("{3g.40gb: 1, 1g.10gb: 2}");
    converges(&home, &fleet, &["--keep"]);
    assert_eq!((running().len(), running()), (3, devices()));

    // Somebody else's boot: the node makes the instances again, and the daemons for them.
    fleet.reboot("gpu001");
    fleet.await_kept("gpu001");
    assert_eq!((running().len(), running()), (3, devices()));

    tasks(&home, &["gpu_mig: {mode: disabled}"]);
    converges(&home, &fleet, &[]);
    assert_eq!(daemons(&fleet, "gpu001"), []);
}

#[test]
fn a_run_that_leaves_another_state_than_a_node_keeps_says_what_its_next_boot_will_do() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    let limit = |watts: u32| {
        let power = format!("gpu_power: {{limit_watts: {watts}}}");
        tasks(&home, &["gpu_persistence: {mode: daemon}", &power]);
    };
    let warning = "this node keeps another state of its GPUs than it has now";
    limit(500);
    let kept = events(&home, &fleet, &["--keep"]).expect(0);
    assert!(!kept.stdout.contains(warning), "{kept}");
    assert!(!events(&home, &fleet, &[]).expect(0).stdout.contains(warning), "the same is no other");
    limit(400);
    let inventory = fleet.inventory();
    let planned = home.gpufleet(["plan", "play.yaml", "-i", &inventory, "--format", "jsonl"]).run();
    planned.says(&[
        "this node keeps another state of its GPUs than is declared here",
        "GPU 0 power limit 500 W",
    ]);
    let done = events(&home, &fleet, &[]).expect(0);
    done.says(&[warning, "GPU 0 power limit 500 W", "--keep"]);
    assert!(!events(&home, &fleet, &["--keep"]).expect(0).stdout.contains(warning));
}

#[test]
fn a_gpu_is_taken_out_of_use_and_given_back() {
    let gpus = "h100-80gb,a100-80gb";
    let fleet = Fleet::start(&FleetOptions { nodes: 2, gpus, ..FleetOptions::default() });
    let home = Home::new();
    let limits = ["gpu_persistence: {mode: daemon}", "gpu_power: {limit_percent: 90}"];
    tasks(&home, &limits);
    let two: &[&str] = &[];
    converges(&home, &fleet, two);
    let drained = "gpu_drain_state: {state: drained, gpus: ['0000:1b:00.0']}";
    tasks(&home, &[drained]);
    let plan = go(&home, &fleet, "plan", two).expect(0);
    assert_eq!(plan.document().changes("gpu001").len(), 2, "{plan}");
    converges(&home, &fleet, two);
    assert_eq!(fleet.read("gpu001", "nvidia-smi -L | grep -c '^GPU '").trim(), "1");

    // Later tasks name it, and count the others as before.
    tasks(&home, &["gpu_power: {limit_watts: 350}", "gpu_power: {limit_watts: 330, gpus: 1}"]);
    go(&home, &fleet, "plan", two).expect(2);
    tasks(&home, &["gpu_power: {limit_watts: 330}"]);
    let done = converges(&home, &fleet, two);
    done.says(&["GPU 0 is drained, so that gpu_power leaves it out"]);
    assert_eq!(fleet.machine("gpu001")["gpus"][1]["power_limit_mw"], 330_000);
    tasks(&home, &["gpu_power: {limit_watts: 300, gpus: 1}"]);
    converges(&home, &fleet, two);
    assert_eq!(fleet.machine("gpu001")["gpus"][1]["power_limit_mw"], 300_000, "GPU 1 is still GPU 1");
    tasks(&home, &["gpu_power: {limit_watts: 300, gpus: 0}"]);
    assert_eq!(go(&home, &fleet, "audit", two).expect(0).document().number("/verdicts/na"), 2);

    // The same play may give it back and set it up.
    tasks(&home, &["gpu_drain_state: {state: active}", limits[0], limits[1]]);
    go(&home, &fleet, "run", two).expect(0);
    let gpu = fleet.machine("gpu002")["gpus"][0].clone();
    assert_eq!((&gpu["draining"], &gpu["persistence"]), (&false.into(), &true.into()));
    let again = go(&home, &fleet, "run", two).expect(0);
    assert_eq!(again.document().total("changed"), 0, "{again}");
}

#[test]
fn a_driver_that_lies_about_drains_or_does_not_answer_is_told() {
    let rules = "- {nodes: gpu001, function: nvmlDeviceModifyDrainState, effect: lie}\n\
                 - {nodes: gpu002, function: nvmlDeviceQueryDrainState, effect: {return: 999}}\n";
    let fleet = Fleet::start(&FleetOptions { nodes: 2, faults: rules.into(), ..FleetOptions::default() });
    let home = Home::new();
    tasks(&home, &["gpu_drain_state: {state: drained, gpus: ['0000:1b:00.0']}"]);
    let failed = go(&home, &fleet, "run", &[]).expect(2);
    let document = failed.document();
    assert!(
        document.message("gpu001").contains("was set to drained, but reads active afterwards"),
        "{failed}"
    );
    assert!(document.message("gpu002").contains("is drained cannot be read: unknown error"), "{failed}");
    assert_eq!(fleet.machine("gpu002")["gpus"][0]["draining"], false);
}

#[test]
fn a_module_has_a_limit_and_a_clock_is_planned_as_it_will_run() {
    let fleet = Fleet::start(&FleetOptions {
        nodes: 2,
        gpus_per_node: 1,
        states: "- {nodes: gpu001, set: {module: true}}\n".to_owned(),
        ..FleetOptions::default()
    });
    let home = Home::new();
    let mode = "gpu_persistence: {mode: daemon}";
    tasks(&home, &[mode, "gpu_power: {limit_percent: 90, scope: module}"]);
    let done = converges(&home, &fleet, &[]);
    assert_eq!(fleet.machine("gpu001")["gpus"][0]["module_limit_mw"], 900_000);
    assert_eq!(done.document().changes("gpu002").len(), 2, "only persistence: {done}");
    tasks(&home, &["gpu_power: {limit_watts: 300, scope: module}"]);
    go(&home, &fleet, "run", &["--limit", "gpu001"])
        .expect(2)
        .says(&["the module of GPU 0 takes a power limit from 400 W to 1000 W, not 300 W"]);

    tasks(&home, &[mode, "gpu_clocks: {graphics_mhz: 1234}"]);
    converges(&home, &fleet, &[]).says(&["1234 MHz is not supported exactly", "1230 MHz is used"]);
    let locked = fleet.machine("gpu001")["gpus"][0]["locked_graphics_mhz"].clone();
    assert_eq!(locked, serde_json::json!([1230, 1230]));

    // The driver takes another lock, and the GPU runs faster.
    fleet.control("gpu002", &["fault", "add", "{function: nvmlDeviceSetGpuLockedClocks, effect: lie}"]);
    fleet.control("gpu002", &["set", "0", "graphics_mhz", "1980"]);
    tasks(&home, &[mode, "gpu_clocks: {graphics_mhz: 900}"]);
    let failed = go(&home, &fleet, "run", &["--limit", "gpu002"]).expect(2);
    assert!(
        failed.document().message("gpu002").contains("locked at 900 MHz at most and reads 1230 MHz"),
        "{failed}"
    );
}

#[test]
fn a_plan_names_what_a_reboot_that_was_asked_for_takes() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 2, ..FleetOptions::default() });
    let home = Home::new();
    tasks(&home, &["gpu_persistence: {mode: legacy}", "gpu_power: {limit_watts: 500}"]);
    go(&home, &fleet, "run", &[]).expect(0);
    tasks(&home, &["gpu_drain_state: {state: drained, gpus: ['0000:43:00.0']}"]);
    go(&home, &fleet, "run", &[]).expect(0);
    let lost = "what no task up to here declares: the power limit of 500 W; its persistence";
    tasks(&home, &["reboot: {when: always}"]);
    go(&home, &fleet, "plan", &[])
        .expect(0)
        .says(&[lost, "GPU 1 is drained, which the reboot ends and no task up to here declares"]);
    tasks(&home, &["kernel_cmdline: {add: quieter}", "reboot: {when: required}"]);
    go(&home, &fleet, "plan", &[]).expect(0).says(&[lost, "GPU 1 is drained, which the reboot ends"]);
    tasks(
        &home,
        &[
            "gpu_persistence: {mode: legacy}",
            "gpu_power: {limit_watts: 500}",
            "gpu_drain_state: {state: drained, gpus: ['0000:43:00.0']}",
            "reboot: {when: always}",
        ],
    );
    // What GPU 1 comes back with, only the run can tell.
    let plan = go(&home, &fleet, "plan", &[]).expect(2);
    plan.says(&["a drained GPU comes back in this run"]);
    let again = go(&home, &fleet, "plan", &[]);
    assert!(!again.to_string().contains("up to here declares"), "{again}");
}

fn locked(fleet: &Fleet) -> serde_json::Value {
    fleet.machine("gpu001")["gpus"][0]["locked_graphics_mhz"].clone()
}

/// No driver reads a lock back: what is told of it is what the node's own record can still prove.
#[test]
fn clocks_and_limits_hold_whatever_takes_them_or_are_told_as_drift() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    let other = "sysctl: {name: vm.swappiness, value: 10}";
    tasks(
        &home,
        &[
            "gpu_clocks: {graphics_mhz: 1200}",
            "gpu_power: {limit_watts: 350}",
            other,
            "gpu_persistence: {mode: daemon}",
        ],
    );
    go(&home, &fleet, "run", &[]).expect(0);
    assert_eq!(locked(&fleet), serde_json::json!([1200, 1200]), "set again once persistence is on");
    assert_eq!(fleet.machine("gpu001")["gpus"][0]["power_limit_mw"], 350_000);
    go(&home, &fleet, "audit", &[]).expect(0);
    let before = fleet.activity(&fleet.names());
    go(&home, &fleet, "run", &[]).expect(0);
    assert_eq!(fleet.activity(&fleet.names()), before, "the second run sets nothing");

    for (taken, back) in [
        ("systemctl restart nvidia-persistenced", "true"),
        ("nvidia-smi -pm 0", "nvidia-smi -pm 1"),
        ("nvidia-smi -pm 0; nvidia-smi --gpu-reset -i 0", "nvidia-smi -pm 1"),
    ] {
        fleet.read("gpu001", &format!("{{ {taken}; }} >/dev/null"));
        // Whatever opens a GPU that nothing keeps awake initialises it anew.
        home.gpufleet(["facts", "gpu", "-i", &fleet.inventory()]).run().expect(0);
        fleet.read("gpu001", &format!("{back} >/dev/null"));
        assert_eq!(locked(&fleet), serde_json::Value::Null, "{taken}");
        let seen = go(&home, &fleet, "audit", &[]).expect(3);
        assert!(seen.to_string().contains("graphics clock"), "{taken}: {seen}");
        go(&home, &fleet, "run", &[]).expect(0);
        assert_eq!(locked(&fleet), serde_json::json!([1200, 1200]), "{taken}");
    }
}

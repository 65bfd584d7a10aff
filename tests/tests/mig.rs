//! `mig` as a user types it: families, files of mig-parted with their mistakes, what a configuration gives GPUs, and
//! `mig fit` with the run of its playbook on simulated nodes.

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};
use serde_json::Value;

const FILE: &str = "version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  balanced:
    - devices: [0, 1]
      mig-enabled: false
    - devices: [2, 3]
      mig-enabled: true
      mig-devices: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}
";

#[test]
fn the_profiles_of_a_gpu_are_drawn() {
    let home = Home::new();
    let all = home.gpufleet(["mig", "show"]).run().expect(0);
    assert_eq!(all.stdout.lines().count(), 13, "{all}");
    let one = home.gpufleet(["mig", "show", "NVIDIA H200"]).run().expect(0);
    assert!(one.stdout.starts_with("h200-141gb (H200, H200 NVL, hopper)\n"), "{one}");
    assert!(one.stdout.contains("3g.71gb") && one.stdout.contains("at 0, 4"), "{one}");
    let json = home.gpufleet(["mig", "show", "a30", "--format", "json"]).run().expect(0);
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json["memory_slices"], 4);
    let unknown = home.gpufleet(["mig", "show", "h100-8gb"]).run().expect(1);
    assert!(unknown.stderr.contains("did you mean `h100-80gb`?"), "{unknown}");
}

#[test]
fn a_file_of_mig_parted_is_checked_before_any_node() {
    let home = Home::new();
    home.write("mig.yaml", FILE);
    let done = home.gpufleet(["mig", "check", "mig.yaml"]).run().expect(0);
    assert!(done.stdout.contains("1x 3g.40gb  fits a100-80gb, h100-80gb\n"), "{done}");
    let other = home.gpufleet(["mig", "check", "mig.yaml", "--gpu", "h200"]).run().expect(1);
    assert!(
        other.stderr.contains("it does not fit h200-141gb: there is no MIG profile `1g.10gb`"),
        "{other}"
    );
    assert!(other.stderr.contains("mig.yaml:9:7"), "{other}");
    home.write("mig.yaml", &FILE.replace("3g.40gb: 1", "3g.40gb: 2"));
    let full = home.gpufleet(["mig", "check", "mig.yaml"]).run().expect(1);
    assert!(full.stderr.contains("no GPU that gpufleet knows has room for"), "{full}");
    home.write("mig.yaml", &FILE.replace("[0, 1]", "[0, 1]\n      device-filter: H100"));
    let filter = home.gpufleet(["mig", "check", "mig.yaml"]).run().expect(1);
    assert!(filter.stderr.contains("`H100` is no device id"), "{filter}");
}

#[test]
fn a_plan_draws_what_each_gpu_gets() {
    let home = Home::new();
    home.write("mig.yaml", FILE);
    let plan = |more: &[&str]| {
        let words = ["mig", "plan", "mig.yaml", "--gpu", "h100-80gb"];
        home.gpufleet(words.iter().chain(more)).run()
    };
    let done = plan(&["--config", "balanced", "--gpus", "5"]).expect(0);
    assert_eq!(
        done.stdout,
        "balanced on 5x h100-80gb
  GPU 0,1               MIG off
  GPU 2,3               2x 1g.10gb + 1x 2g.20gb + 1x 3g.40gb
                        |       2g.20gb       | 1g.10gb  | 1g.10gb  |                  3g.40gb                  |
  GPU 4                 stays as it is: no spec is for it
Places are those of empty GPUs; a run keeps instances that can stay. Profiles: gpufleet mig show h100-80gb
"
    );
    let json: Value =
        serde_json::from_str(&plan(&["--config", "balanced", "--format", "json"]).expect(0).stdout)
            .expect("JSON");
    assert_eq!(json["gpus"][2]["instances"][3]["profile"], "3g.40gb");
    assert_eq!(json["gpus"][7]["mig"], Value::Null);
    let which = plan(&[]).expect(1);
    assert!(which.stderr.contains("choose one with --config: all-disabled, balanced"), "{which}");
    let typed = plan(&["--config", "balance"]).expect(1);
    assert!(typed.stderr.contains("did you mean `balanced`?"), "{typed}");
}

#[test]
fn boards_of_a_family_that_get_different_layouts_are_told_apart() {
    let home = Home::new();
    home.write(
        "mig.yaml",
        "version: v1
mig-configs:
  a:
    - {devices: all, device-filter: '0x233010DE', mig-enabled: true, mig-devices: {1c.3g.40gb: 3, 1g.10gb: 4}}
    - {devices: all, device-filter: '0x232410DE', mig-enabled: false}
",
    );
    let plan = |gpu: &str| home.gpufleet(["mig", "plan", "mig.yaml", "--gpu", gpu, "--gpus", "1"]).run();
    let differ = plan("h100-80gb").expect(1);
    assert!(differ.stderr.contains("boards of h100-80gb differ in what they get"), "{differ}");
    let one = plan("0x2330").expect(0);
    assert!(one.stdout.contains("GPU 0                 3x 1c.3g.40gb + 4x 1g.10gb\n"), "{one}");
    assert!(one.stdout.contains("|                  3g.40gb                  |\n"), "{one}");
    assert!(plan("0x2324").expect(0).stdout.contains("MIG off"));
    let other = home.gpufleet(["mig", "check", "mig.yaml", "--gpu", "h200"]).run().expect(0);
    assert!(other.stderr.contains("the configuration `a` has no spec for h200-141gb"), "{other}");
    let endless = home.gpufleet(["mig", "check", "/dev/zero"]).run().expect(1);
    assert!(endless.stderr.contains("cannot read /dev/zero"), "{endless}");
}

/// Four nodes of two H100: two with half-used GPUs, the first of which works, and two without MIG.
struct Site {
    fleet: Fleet,
    home: Home,
}

const SETUP: &str = "- hosts: gpu001,gpu002
  become: true
  gather_facts: false
  tasks:
    - gpu_mig: {mode: enabled, layout: {3g.40gb: 2}, gpus: [0]}
    - gpu_mig: {mode: enabled, layout: [{profile: 1g.10gb, start: 0}, {profile: 2g.20gb, start: 2}], gpus: [1]}
";

impl Site {
    fn new() -> Self {
        let fleet = Fleet::start(&FleetOptions { nodes: 4, ..FleetOptions::default() });
        let site = Self { fleet, home: Home::new() };
        site.home.write("setup.yaml", SETUP);
        site.run("setup.yaml").expect(0);
        let id = site.fleet.machine("gpu001")["gpus"][1]["instances"][0]["id"].to_string();
        site.fleet.control("gpu001", &["client", "add", "1", "9000", &id]);
        site
    }

    fn gpufleet(&self, words: &[&str]) -> Finished {
        self.home.gpufleet(words).args(["-i", &self.fleet.inventory()]).run()
    }

    fn run(&self, playbook: &str) -> Finished {
        self.gpufleet(&["run", playbook, "--yes", "--format", "json"])
    }

    fn fit(&self, words: &[&str]) -> Finished {
        self.gpufleet(&[&["mig", "fit", "--format", "json"], words].concat())
    }

    /// How many instances of a profile all nodes have.
    fn count(&self, profile: &str) -> usize {
        let name = format!("MIG {profile} ");
        let of = |node: &str| self.fleet.read(node, "nvidia-smi -L").matches(&name).count();
        ["gpu001", "gpu002", "gpu003", "gpu004"].map(of).iter().sum()
    }

    /// How many calls set something, by node.
    fn setters(&self) -> [usize; 4] {
        ["gpu001", "gpu002", "gpu003", "gpu004"].map(|node| self.fleet.setters(node).len())
    }
}

fn json(done: &Finished) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done}"))
}

#[test]
fn a_demand_is_fitted_run_and_then_met() {
    let site = Site::new();
    site.home.write("demand.yaml", "1g.10gb: 12\n3g.40gb: 5\nwhole: 2\n");
    let before = site.setters();
    let done = site.fit(&["demand.yaml", "-o", "fit.yaml"]).expect(0);
    assert_eq!(site.setters(), before, "a fit changes nothing");
    let found = json(&done);
    // Free slices give at most 8 small ones, and then no large one: a node has to be idle for the rest.
    let cost = &found["cost"];
    assert_eq!(
        (&cost["missing"], &cost["destroyed"], &cost["drained_nodes"]),
        (&0.into(), &0.into(), &1.into()),
        "{done}"
    );
    assert_eq!(found["proven"], true, "{done}");
    assert_eq!(found["demands"][2]["after"], 2, "{done}");
    let plan = site.gpufleet(&["plan", "fit.yaml"]).expect(0);
    assert_eq!(site.setters(), before, "{plan}");
    let kept: Value = site.fleet.machine("gpu001")["gpus"][1]["instances"][0].clone();
    let run = site.run("fit.yaml").expect(0);
    for node in run.document().value()["nodes"].as_array().into_iter().flatten() {
        assert_eq!(node["state"], "done", "{run}");
    }
    assert!(site.count("1g.10gb") >= 12 && site.count("3g.40gb") >= 5, "{run}");
    assert_eq!(site.count("2g.20gb"), 2, "what nobody asked for stays");
    assert_eq!(site.fleet.machine("gpu001")["gpus"][1]["instances"][0], kept, "work was not touched");
    let before = site.setters();
    let again = site.fit(&["demand.yaml", "-o", "again.yaml"]).expect(0);
    assert_eq!(json(&again)["changes"], serde_json::json!([]), "{again}");
    again.says(&["nothing to do, so that again.yaml was not written"]);
    assert_eq!(site.run("fit.yaml").expect(0).document().total("changed"), 0);
    assert_eq!(site.setters(), before);
}

#[test]
fn a_stale_playbook_touches_no_gpu_that_has_changed_or_is_in_use() {
    let site = Site::new();
    // Everything that is not on the node that works.
    let done = site.fit(&["--want", "7g.80gb=6", "-o", "fit.yaml"]).expect(0);
    assert_eq!(json(&done)["cost"]["destroyed"], 4, "{done}");
    site.home.write(
        "other.yaml",
        "- hosts: gpu003\n  become: true\n  gather_facts: false\n  tasks:\n    - gpu_mig: {mode: enabled, layout: {1g.10gb: 1}, gpus: [0]}\n",
    );
    site.run("other.yaml").expect(0);
    let before = site.setters();
    let changed = site.gpufleet(&["run", "fit.yaml", "--yes", "--format", "json", "-l", "gpu003"]).expect(5);
    let document = changed.document();
    assert_eq!(document.state("gpu003"), "failed", "{changed}");
    assert!(
        document.message("gpu003").contains("has `on 1g.10gb@0`, and the plan was made for `off`"),
        "{changed}"
    );
    site.fleet.control("gpu002", &["client", "add", "0", "9000"]);
    let busy = site.gpufleet(&["run", "fit.yaml", "--yes", "--format", "json", "-l", "gpu002"]).expect(5);
    assert_eq!(busy.document().state("gpu002"), "held", "{busy}");
    assert_eq!(site.setters(), before);
    // A new one works around both.
    let anew = site.fit(&["--want", "7g.80gb=4", "-o", "fit.yaml"]).expect(0);
    site.run("fit.yaml").expect(0);
    assert_eq!(site.count("7g.80gb"), 4, "{anew}");
}

#[test]
fn an_impossible_demand_says_how_far_it_is_from_possible() {
    let site = Site::new();
    let done = site.fit(&["--want", "7g.80gb=9", "-o", "fit.yaml"]).expect(3);
    let found = json(&done);
    assert_eq!(found["demands"][0]["missing"], 3, "{done}");
    let why = found["why"].to_string();
    assert!(
        why.contains("3 instances are missing")
            && why.contains("If nothing worked on gpu001, 1 would be missing."),
        "{done}"
    );
    assert!(why.contains("3 GPUs more, empty and like those of gpu001, would do."), "{done}");
    assert!(!site.home.work().join("fit.yaml").exists(), "{done}");
    done.says(&["--partial writes what is possible"]);
    site.fit(&["--want", "7g.80gb=9", "-o", "fit.yaml", "--partial"]).expect(3);
    assert!(site.home.work().join("fit.yaml").exists());
    let other = site.gpufleet(&["mig", "fit", "--want", "3g.71gb=1"]).expect(3);
    other.says(&["No GPU here has `3g.71gb`; they have 1g.10gb", "1 missing"]);
}

#[test]
fn a_fleet_may_be_a_document_and_nodes_that_do_not_answer_are_never_used() {
    let site = Site::new();
    site.fleet.control("gpu004", &["vanish"]);
    let status = site.gpufleet(&["status", "gpu", "-o", "json"]);
    site.home.write("fleet.json", &status.stdout);
    let offline = |words: &[&str]| {
        site.home.gpufleet(["mig", "fit", "--fleet", "fleet.json", "--format", "json"]).args(words).run()
    };
    let done = offline(&["--want", "1g.10gb=9", "-o", "fit.yaml"]).expect(0);
    let found = json(&done);
    assert_eq!(found["left_out"][0]["node"], "gpu004", "{done}");
    assert!(found["changes"].as_array().is_some_and(|all| !all.is_empty()), "{done}");
    assert!(
        !std::fs::read_to_string(site.home.work().join("fit.yaml")).expect("a playbook").contains("gpu004")
    );
    let racks = offline(&["--want", "1g.10gb=1", "--by", "rack"]).expect(1);
    assert!(racks.stderr.contains("not known without an inventory"), "{racks}");
    let inventory = site.fleet.inventory();
    offline(&["--want", "1g.10gb=1", "--by", "rack", "-i", &inventory]).expect(0);
    site.home.write("none.json", "{}");
    let none =
        site.home.gpufleet(["mig", "fit", "--want", "1g.10gb=1", "--fleet", "none.json"]).run().expect(1);
    assert!(none.stderr.contains("none.json is no document of a fleet"), "{none}");
    // What a node says becomes no part of a playbook unless it is what it should be.
    let hostile = status.stdout.replace("\"profile\": \"1g.10gb\"", "\"profile\": \"1g.10gb, x: {{ 1 }}\"");
    site.home.write("fleet.json", &hostile);
    let done = offline(&["--want", "1g.10gb=1", "-o", "hostile.yaml"]).expect(3);
    assert!(!site.home.work().join("hostile.yaml").exists(), "{done}");
}

#[test]
fn a_wrong_demand_is_told_with_its_place_before_any_node_is_contacted() {
    let home = Home::new();
    home.write("hosts.yaml", "all: {children: {gpu: {hosts: {nowhere.invalid: {rack: r1}}}}}\n");
    home.write("demand.yaml", "1g.10g: 4\ngroups:\n  gpus: {1g.10gb: 1}\nby:\n  rak: {1g.10gb: x}\n");
    let fit = |words: &[&str]| home.gpufleet(["mig", "fit", "-i", "hosts.yaml"]).args(words).run();
    let wrong = fit(&["demand.yaml"]).expect(1);
    for part in ["demand.yaml:1:1", "demand.yaml:5:18", "2 errors, no node was contacted"] {
        assert!(wrong.stderr.contains(part), "{part}: {wrong}");
    }
    home.write("demand.yaml", "groups:\n  gpus: {1g.10gb: 1}\nby:\n  rak: {1g.10gb: 1}\n");
    let unknown = fit(&["demand.yaml"]).expect(1);
    for part in ["demand.yaml:2:3", "did you mean `gpu`?", "demand.yaml:4:3", "no host has a variable `rak`"]
    {
        assert!(unknown.stderr.contains(part), "{part}: {unknown}");
    }
    assert!(fit(&["--want", "1g.10gb"]).expect(1).stderr.contains("write it like `--want 1g.10gb=40`"));
    assert!(fit(&[]).expect(1).stderr.contains("DEMAND"), "a demand is needed");
}

/// A GPU of a document of `status gpu`, with an idle 3g.40gb.
fn gpu(index: u32) -> Value {
    serde_json::json!({
        "index": index,
        "id": format!("GPU-0000000{index}-0000"),
        "label": format!("GPU {index}"),
        "readings": {"lost_code": 0, "mig_current": 1, "mig_pending": 1, "process_count": 0, "mem_used_mib": 0},
        "instances": [
            {"id": 1, "profile": "3g.40gb", "ready": true, "whole": true, "placement": {"start": 4, "size": 4}}
        ],
        "profiles": [
            {"id": 9, "profile": "3g.40gb", "slices": 3, "max_count": 2, "size": 4, "starts": [0, 4]},
            {"id": 0, "profile": "7g.80gb", "slices": 7, "max_count": 1, "size": 8, "starts": [0]}
        ],
    })
}

#[test]
fn what_may_change_on_a_node_follows_from_what_is_known_of_it() {
    let home = Home::new();
    let node = |name: &str, unseen: Option<&str>, gpus: Vec<Value>| serde_json::json!({"node": name, "groups": ["gpu"], "unseen": unseen, "gpus": gpus});
    // One GPU, and what is different about it.
    let with = |path: &str, value: Value| {
        let mut gpu = gpu(0);
        *gpu.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
        gpu
    };
    let mut degraded = gpu(0);
    degraded["readings"]["remap_failed"] = 1.into();
    let mut unread = gpu(0);
    unread["profiles"] = Value::Null;
    let mut busy = gpu(0);
    busy["holders"] = serde_json::json!([{"pid": 1, "command": "train", "user": "ada", "instance": 1}]);
    let mut plain = with("/readings/mig_current", Value::Null);
    (plain["readings"]["mig_pending"], plain["instances"]) = (Value::Null, serde_json::json!([]));
    let lost = with("/readings/lost_code", 15.into());
    let document = serde_json::json!({"nodes": [
        node("free", None, vec![gpu(0)]),
        node("busy", None, vec![busy, gpu(1)]),
        node("unseen", Some("not root"), vec![gpu(0)]),
        node("degraded", None, vec![degraded, gpu(1)]),
        node("split", None, vec![with("/instances/0/whole", false.into())]),
        node("pending", None, vec![with("/readings/mig_pending", 0.into())]),
        node("beside", None, vec![lost, gpu(1)]),
        node("unread", None, vec![unread]),
        node("uuid", None, vec![with("/id", "GPU-0: {{ 1 }}".into())]),
        node("places", None, vec![with("/instances/0/placement", Value::Null)]),
        node("plain", None, vec![plain]),
        node("a{{ b }}", None, vec![gpu(0)]),
        serde_json::json!({"node": "silent", "error": "refused"}),
    ]});
    home.write("fleet.json", &document.to_string());
    let fit = |words: &[&str]| {
        home.gpufleet(["mig", "fit", "--fleet", "fleet.json", "--format", "json"]).args(words).run()
    };
    let done = fit(&["--want", "7g.80gb=20", "--want", "whole=1", "--partial", "-o", "fit.yaml"]).expect(3);
    let found = json(&done);
    let nodes = |what: &str| -> Vec<&str> {
        let all = found[what].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter_map(|one| one["node"].as_str()).collect()
    };
    assert_eq!(nodes("changes"), ["free"], "{done}");
    assert_eq!(
        nodes("left_out"),
        ["degraded", "beside", "unread", "uuid", "places", "a{{ b }}", "silent"],
        "{done}"
    );
    assert_eq!(nodes("held"), ["unseen", "split", "pending", "beside"], "{done}");
    assert_eq!(
        (&found["demands"][0]["after"], &found["demands"][1]["after"]),
        (&1.into(), &1.into()),
        "{done}"
    );
    // What may not go may still get company: on all but the frozen ones.
    let done = fit(&["--want", "3g.40gb=12"]).expect(0);
    let found = json(&done);
    assert_eq!(found["cost"]["destroyed"], 0, "{done}");
    assert_eq!(found["demands"][0]["now"], 7, "a split one is none: {done}");
    let live = fit(&["--want", "3g.40gb=13"]).expect(3);
    assert_eq!(json(&live)["demands"][0]["after"], 12, "{live}");
}

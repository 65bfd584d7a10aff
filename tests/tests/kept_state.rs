//! What nodes keep for their boots: what a play declared at its end, and nothing that others made up.

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home, Row};
use serde_json::{Value, json};

const STATE: &str = "/var/lib/gpufleet/keep/state.json";
const PIN: &str = "/var/lib/gpufleet/keep/pin.json";
const LATER: &str = "this node keeps another state of its GPUs than it has now";

fn fleet(nodes: usize, gpus_per_node: usize) -> Fleet {
    Fleet::start(&FleetOptions { nodes, gpus_per_node, ..FleetOptions::default() })
}

/// Runs or plans plays, which have `hosts` and `become` already.
fn go(home: &Home, fleet: &Fleet, verb: &str, plays: &[&str]) -> Finished {
    let head = "- hosts: all\n  become: true\n";
    home.write(
        "play.yaml",
        &plays.iter().map(|play| format!("{head}{}", play.trim_start_matches('\n'))).collect::<String>(),
    );
    let inventory = fleet.inventory();
    let words = [verb, "play.yaml", "-i", &inventory, "--format", "json"];
    home.gpufleet(words).args((verb == "run").then_some("--yes")).run()
}

/// Returns what a plan of plays would change on the first node.
fn changes(home: &Home, fleet: &Fleet, plays: &[&str]) -> Vec<Row> {
    go(home, fleet, "plan", plays).expect(0).document().changes("gpu001")
}

/// Runs plays, and boots the nodes: what they keep is asserted then.
fn booted(home: &Home, fleet: &Fleet, plays: &[&str]) -> Finished {
    let done = go(home, fleet, "run", plays);
    for node in fleet.names() {
        fleet.reboot(&node);
        let boot = fleet.await_kept(&node);
        assert_eq!(boot["verdict"], "asserted", "{boot}");
    }
    done
}

/// The profiles of a GPU's instances.
fn profiles(fleet: &Fleet, gpu: usize) -> Vec<i64> {
    let machine = fleet.machine("gpu001");
    let instances = machine["gpus"][gpu]["instances"].as_array().cloned().unwrap_or_default();
    instances.iter().filter_map(|one| one["profile_id"].as_i64()).collect()
}

#[test]
fn a_later_playbook_changes_one_gpu_of_what_is_kept() {
    let (home, fleet) = (Home::new(), fleet(1, 2));
    let all = "
  keep: true
  tasks:
    - gpu_persistence: {mode: daemon}
    - gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}
    - gpu_power: {limit_watts: 500}
";
    go(&home, &fleet, "run", &[all]).expect(0);
    let one = "
  keep: true
  tasks:
    - gpu_mig: {mode: enabled, layout: {3g.40gb: 2}, gpus: [0]}
";
    go(&home, &fleet, "run", &[one]).expect(0);
    // A mode without a layout leaves that which is kept.
    let mode = "
  keep: true
  tasks:
    - gpu_mig: {mode: enabled}
";
    booted(&home, &fleet, &[mode]).expect(0);
    assert_eq!((profiles(&fleet, 0).len(), profiles(&fleet, 1).len()), (2, 7));
    let machine = fleet.machine("gpu001");
    assert_eq!(machine["gpus"][0]["power_limit_mw"], 500_000, "{machine}");
}

#[test]
fn what_a_rescue_undoes_behind_gpu_keep_is_not_kept() {
    let (home, fleet) = (Home::new(), fleet(1, 1));
    let rescue = "
  tasks:
    - block:
        - gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}
        - gpu_keep: {}
        - command: 'false'
      rescue:
        - gpu_mig: {mode: disabled}
";
    let done = booted(&home, &fleet, &[rescue]);
    assert_eq!(profiles(&fleet, 0), Vec::<i64>::new(), "{done}");
    let same = "
  tasks:
    - gpu_mig: {mode: disabled}
    - gpu_keep: {}
";
    assert_eq!(changes(&home, &fleet, &[same]), []);
}

#[test]
fn a_later_play_that_does_not_keep_is_warned_of() {
    let (home, fleet) = (Home::new(), fleet(1, 1));
    let keeps = "
  keep: true
  tasks:
    - gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}
";
    let later = "
  tasks:
    - gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}
";
    booted(&home, &fleet, &[keeps, later]).expect(0).says(&[LATER, "--keep"]);
    assert_eq!(profiles(&fleet, 0).len(), 7, "the boot does as the warning says");
}

#[test]
fn a_second_gpu_keep_of_a_play_adds_to_the_first_in_plan_and_run() {
    let (home, fleet) = (Home::new(), fleet(1, 1));
    let twice = "
  tasks:
    - gpu_persistence: {mode: daemon}
    - gpu_power: {limit_watts: 500}
    - gpu_keep: {on_failure: hold, hold: [slurmd.service]}
    - gpu_clocks: {graphics_mhz: [1200, 1980]}
    - gpu_keep: {}
";
    let planned = changes(&home, &fleet, &[twice]);
    assert_eq!(
        planned.iter().filter(|change| change.text.contains("kept GPU state")).count(),
        2,
        "{planned:?}"
    );
    let done = go(&home, &fleet, "run", &[twice]).expect(0);
    assert_eq!(done.document().changes("gpu001"), planned);
    assert_eq!(changes(&home, &fleet, &[twice]), [], "what the second says is no difference to the first");
    let kept = document(&fleet, "gpu001");
    assert_eq!((members(&kept).len(), &kept["policy"]["hold"]), (3, &json!(["slurmd.service"])), "{kept}");
}

/// Returns what a node keeps.
fn document(fleet: &Fleet, node: &str) -> Value {
    let sealed: Value = serde_json::from_str(&fleet.read(node, &format!("cat {STATE}"))).expect("JSON");
    serde_json::from_str(sealed["document"].as_str().expect("a document")).expect("JSON")
}

/// Returns the kinds of a document's members.
fn members(document: &Value) -> Vec<String> {
    let all = document["members"].as_array().expect("members");
    all.iter().map(|member| member["task"]["kind"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The state of a node's disk, which whoever is root there can put back.
fn disk(fleet: &Fleet, node: &str) -> [String; 2] {
    [STATE, PIN].map(|path| fleet.read(node, &format!("cat {path}")))
}

fn put(fleet: &Fleet, node: &str, disk: &[String; 2]) {
    for (path, text) in [STATE, PIN].iter().zip(disk) {
        fleet.read(node, &format!("printf %s {} > {path}", quoted(text)));
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Root of a node says that it keeps something else than it was given: the controller signs nothing of it, and no boot of any
/// node asserts it.
#[test]
fn what_a_hostile_node_says_to_keep_is_neither_signed_nor_asserted() {
    let (home, fleet) = (Home::new(), fleet(2, 1));
    let keep = |watts: u32| {
        let play = format!(
            "
  keep: true
  tasks:
    - gpu_persistence: {{mode: daemon}}
    - gpu_power: {{limit_watts: {watts}}}
"
        );
        go(&home, &fleet, "run", &[play.as_str()])
    };
    let clocks = "
  keep: true
  tasks:
    - gpu_persistence: {mode: daemon}
    - gpu_clocks: {graphics_mhz: [1200, 1980]}
";
    go(&home, &fleet, "run", &[clocks]).expect(0);
    let old = disk(&fleet, "gpu001");
    keep(500).expect(0);
    let [sealed, pin] = disk(&fleet, "gpu001");
    let theirs = disk(&fleet, "gpu002");
    let changed = |change: fn(&mut Value)| {
        let mut sealed: Value = serde_json::from_str(&sealed).expect("JSON");
        let mut document: Value =
            serde_json::from_str(sealed["document"].as_str().expect("a text")).expect("JSON");
        change(&mut document);
        sealed["document"] = json!(document.to_string());
        [sealed.to_string(), pin.clone()]
    };
    // Foreign members, another machine, and a signature of nobody: the helper shows none of it, and the controller adds to
    // nothing that it did not sign.
    for invented in [
        changed(|document| {
            document["members"] = json!([{"task": {"kind": "gpu_ecc", "with": {"mode": "disabled"}}}])
        }),
        changed(|document| document["machine_id"] = json!("ffffffffffffffffffffffffffffffff")),
        theirs.clone(),
    ] {
        put(&fleet, "gpu001", &invented);
        let boot = {
            fleet.reboot("gpu001");
            fleet.await_kept("gpu001")
        };
        assert_eq!(boot["verdict"], "refused", "{boot}");
        keep(500).expect(0);
        assert_eq!(members(&document(&fleet, "gpu001")), ["gpu_persistence", "gpu_power"]);
    }
    // An older one of its own, whose pin root can put back too.
    put(&fleet, "gpu001", &old);
    let replayed = keep(500);
    replayed.expect(2).says(&["older than what it took from this controller", "gpufleet keep remove"]);
    assert_eq!(disk(&fleet, "gpu001"), old, "nothing was signed");
    // It says to be the other one.
    put(&fleet, "gpu001", &theirs);
    let id = fleet.read("gpu002", "cat /etc/machine-id");
    fleet.read("gpu001", &format!("echo {id} > /etc/machine-id"));
    keep(400).expect(2).says(&["is known as that of gpu002"]);
    assert_eq!(disk(&fleet, "gpu001"), theirs, "nothing was signed");
}

//! Nodes that follow the lab's simulated machines.

use gpufleet_k8s_api::control::Command;
use gpufleet_k8s_api::object::is_true;
use gpufleet_k8s_api::resources::NODES;
use nvml_sim::model::ModelKey;
use nvml_sim::state::{Machine, Staged};
use nvml_sim::store::Store;
use serde_json::json;

use crate::cluster::start;

#[test]
fn a_nodes_boots_and_gpus_are_those_of_the_labs_machine() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("node.json");
    let store = Store::new(&state);
    let models = [ModelKey::H100, ModelKey::H100];
    store.create(&Machine::new("n1", &models, "first".to_owned())).expect("a state file");
    let (server, _) = start(&format!("{{pace: 100, nodes: [{{name: n1, lab: '{}'}}]}}", state.display()));
    let node = || server.object(&NODES, "", "n1").expect("the node");
    assert_eq!(
        (&node()["status"]["nodeInfo"]["bootID"], &node()["status"]["allocatable"]["nvidia.com/gpu"]),
        (&json!("first"), &json!("2"))
    );
    store.update(|m| m.gpus[0].mig = Staged::settled(true)).expect("a change");
    let made = store.update(|m| {
        m.gpus[0].create_instance(19, None).and_then(|gi| m.gpus[0].create_compute_instance(gi, 0, None))
    });
    assert!(made.expect("a change").is_ok());
    store.update(|m| m.boot_id = "second".to_owned()).expect("a boot");
    assert!(server.wait(|c| {
        let node = c.store.get(&NODES, "", "n1").expect("the node");
        let devices = &node["status"]["allocatable"];
        node["status"]["nodeInfo"]["bootID"] == "second"
            && is_true(node, "Ready")
            && devices["nvidia.com/gpu"] == "1"
            && devices["nvidia.com/mig-1g.10gb"] == "1"
    }));
    store.update(|m| m.gpus[0].mig = Staged::settled(false)).expect("a change");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(node()["status"]["allocatable"]["nvidia.com/gpu"], json!("1"), "no plugin has looked yet");
    server.command(&Command::RestartPlugin { node: "n1".to_owned() }).expect("it can start");
    assert!(server.wait(|c| {
        c.store.get(&NODES, "", "n1").is_some_and(|n| n["status"]["allocatable"]["nvidia.com/gpu"] == "2")
    }));
}

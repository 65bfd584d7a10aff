//! `kubelet` on lab nodes, whose kubelet ends over its files and its state as the real one does.

use gpufleet_tests::{
    Document, Fleet, FleetOptions, Home, KUBELET_HEADER as HEADER, install_kubelet as install,
};

const DROP_IN: &str = "etc/kubernetes/kubelet.conf.d/90-gpufleet.conf";

fn play(home: &Home, fleet: &Fleet, verb: &str, settings: &str, code: i32) -> Document {
    home.write(
        "play.yaml",
        &format!("- hosts: gpu\n  become: true\n  gather_facts: false\n  tasks:\n    - kubelet: {{settings: {settings}}}\n"),
    );
    let inventory = fleet.inventory();
    let mut words = vec![verb, "play.yaml", "--format", "json", "-i", &inventory];
    words.extend((verb == "run").then_some("--yes"));
    home.gpufleet(words).run().expect(code).document()
}

#[test]
fn a_policy_changes_and_a_kubelet_that_does_not_start_gets_its_files_back() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, ..FleetOptions::default() });
    let home = Home::new();
    install(&fleet, "gpu001");
    let policy = || fleet.read("gpu001", "cat /var/lib/kubelet/cpu_manager_state");
    assert!(policy().contains("\"none\""), "{}", policy());

    let settings =
        "{cpuManagerPolicy: static, reservedSystemCPUs: '0,16', topologyManagerPolicy: restricted}";
    let planned = play(&home, &fleet, "plan", settings, 0);
    assert!(!fleet.has("gpu001", DROP_IN), "a plan changes nothing");
    let told = serde_json::to_string(planned.node("gpu001")).expect("JSON");
    assert!(told.contains("clients") && told.contains("cpu_manager_state"), "{told}");
    let done = play(&home, &fleet, "run", settings, 0);
    assert_eq!((planned.stat("gpu001", "changed"), done.stat("gpu001", "changed")), (1, 1));
    assert!(policy().contains("\"static\""), "{}", policy());
    assert_eq!(fleet.read("gpu001", "systemctl is-active kubelet"), "active");
    let drop_in = fleet.text("gpu001", DROP_IN).expect("a drop-in");
    assert!(drop_in.starts_with(HEADER) && drop_in.contains("reservedSystemCPUs: \"0,16\""), "{drop_in}");
    assert!(fleet.text("gpu001", "var/lib/kubelet/config.yaml").expect("a file").ends_with("- 10.96.0.10\n"));
    assert_eq!(play(&home, &fleet, "run", settings, 0).stat("gpu001", "changed"), 0);

    // A field that this kubelet does not know, with another policy: files and state come back.
    let failed = play(&home, &fleet, "run", "{cpuManagerPolicy: none, serializeImagePulls: false}", 2);
    let why = failed.message("gpu001");
    assert!(why.ends_with("its files have their old content again, and it runs with it"), "{why}");
    assert_eq!(fleet.text("gpu001", DROP_IN).as_deref(), Some(drop_in.as_str()));
    assert!(policy().contains("\"static\""), "{}", policy());
    assert_eq!(fleet.read("gpu001", "systemctl is-active kubelet"), "active");

    // Somebody changed the policy and left the state: the kubelet ends, and ours takes the state away. The lab's systemd
    // does not start it again, so that it counts as stopped and stays so.
    let ended = "timeout 60 sh -c 'while systemctl is-active -q kubelet; do sleep 0.1; done'";
    fleet.ssh("gpu001", &format!("sed -i s/static/none/ /{DROP_IN}; systemctl restart kubelet; {ended}"));
    assert_eq!(fleet.read("gpu001", "systemctl is-active kubelet || true"), "inactive");
    let done = play(&home, &fleet, "run", "{cpuManagerPolicy: none}", 0);
    assert_eq!(done.stat("gpu001", "changed"), 1);
    assert!(!fleet.has("gpu001", "var/lib/kubelet/cpu_manager_state"));
    let begun =
        "timeout 60 sh -c 'until grep -qs none /var/lib/kubelet/cpu_manager_state; do sleep 0.1; done'";
    fleet.ssh("gpu001", &format!("systemctl start kubelet; {begun}"));
    assert!(policy().contains("\"none\""), "{}", policy());
    assert_eq!(fleet.read("gpu001", "systemctl is-active kubelet"), "active");

    // Numbers that do not add up never reach the node.
    let memory = "{memoryManagerPolicy: Static, kubeReserved: {memory: 1Gi}, reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]}";
    let failed = play(&home, &fleet, "run", memory, 2);
    assert!(
        failed.message("gpu001").contains("is 1024Mi, and has to be 1124Mi"),
        "{}",
        failed.message("gpu001")
    );
}

//! Logins without root: `become` with and without a password, through real OpenSSH daemons.

use gpufleet_tests::{Finished, Fleet, FleetOptions, Home};

const PLAY: &str = "
- hosts: gpu
  become: true
  tasks:
    - sysctl: {name: vm.swappiness, value: 10}
    - gpu_persistence: {mode: legacy}
    - command: id -u
      register: me
      changed_when: false
    - assert: {that: me.stdout == '0'}
    - command: id -un
      become: false
      register: me
      changed_when: false
    - assert: {that: me.stdout == ansible_user}
";

fn run(fleet: &Fleet, home: &Home, vars: &str) -> Finished {
    home.write("play.yaml", PLAY);
    home.write("login.yaml", &format!("gpu: {{vars: {{{vars}}}}}\n"));
    home.gpufleet([
        "run",
        "play.yaml",
        "-i",
        &fleet.inventory(),
        "-i",
        "login.yaml",
        "--yes",
        "--format",
        "json",
    ])
    .run()
}

#[test]
fn sudo_with_and_without_a_password() {
    let fleet =
        Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, openssh: true, ..FleetOptions::default() });
    let home = Home::new();
    let done = run(&fleet, &home, "ansible_user: admin").expect(4);
    assert!(done.document().message("gpu001").contains("sudo wants a password for admin"), "{done}");
    let done = run(&fleet, &home, "ansible_user: admin, ansible_become_password: wrong").expect(4);
    assert!(done.document().message("gpu001").contains("refuses the password of admin"), "{done}");
    assert_ne!(fleet.read("gpu001", "cat /proc/sys/vm/swappiness"), "10");
    let done = run(&fleet, &home, "ansible_user: admin, ansible_become_password: lab").expect(0);
    assert_eq!(done.document().stat("gpu001", "changed"), 2, "{done}");
    assert_eq!(fleet.read("gpu001", "cat /proc/sys/vm/swappiness"), "10");
    let done = run(&fleet, &home, "ansible_user: ops").expect(0);
    assert_eq!(done.document().stat("gpu001", "changed"), 0, "{done}");
    // No password in what is kept.
    for folder in std::fs::read_dir(home.runs()).expect("runs").flatten() {
        let journal = std::fs::read_to_string(folder.path().join("journal.jsonl")).expect("a journal");
        assert!(!journal.contains("ansible_become_password"), "{journal}");
    }
}

/// Without `become`, nothing is done as root, and what needs root says so.
#[test]
fn without_become_nobody_is_root() {
    let fleet =
        Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, openssh: true, ..FleetOptions::default() });
    let home = Home::new();
    home.write("login.yaml", "gpu: {vars: {ansible_user: ops}}\n");
    home.write(
        "play.yaml",
        "- hosts: gpu\n  tasks:\n    - copy: {content: mine, dest: /home/ops/mine}\n    \
         - copy: {content: theirs, dest: /etc/theirs}\n",
    );
    let inventory = fleet.inventory();
    let done = home
        .gpufleet(["run", "play.yaml", "-i", &inventory, "-i", "login.yaml", "--yes", "--format", "json"])
        .run()
        .expect(2);
    assert!(done.document().message("gpu001").contains("/etc/theirs"), "{done}");
    assert_eq!(fleet.read("gpu001", "stat -c %U /home/ops/mine; ls /etc/theirs 2>/dev/null || true"), "ops");
    let done = home
        .gpufleet(["exec", "all", "-i", &inventory, "-i", "login.yaml", "--", "id", "-un"])
        .run()
        .expect(0);
    assert_eq!(done.stdout, "gpu001 | rc=0 >>\nops\n");
    let done = home
        .gpufleet(["exec", "all", "-i", &inventory, "-i", "login.yaml", "--become", "--", "id", "-un"])
        .run()
        .expect(0);
    assert_eq!(done.stdout, "gpu001 | rc=0 >>\nroot\n");
}

/// OpenSSH's own client as the way to the node.
#[test]
fn openssh_itself_can_be_the_transport() {
    let fleet =
        Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, openssh: true, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    let done = home
        .gpufleet([
            "run",
            "play.yaml",
            "-i",
            &fleet.inventory(),
            "--yes",
            "--format",
            "json",
            "--transport",
            "ssh",
        ])
        .run()
        .expect(0);
    assert_eq!(done.document().stat("gpu001", "changed"), 2, "{done}");
}

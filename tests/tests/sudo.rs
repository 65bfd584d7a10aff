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
    let done = run(&fleet, &home, "ansible_user: admin").expect(2);
    assert!(done.document().message("gpu001").contains("sudo wants a password for admin"), "{done}");
    let done = run(&fleet, &home, "ansible_user: admin, ansible_become_password: not-this-one").expect(2);
    assert!(done.document().message("gpu001").contains("refuses the password of admin"), "{done}");
    assert_ne!(fleet.read("gpu001", "cat /proc/sys/vm/swappiness"), "10");
    let done = run(&fleet, &home, "ansible_user: admin, ansible_become_password: lab").expect(0);
    assert_eq!(done.document().stat("gpu001", "changed"), 2, "{done}");
    assert_eq!(fleet.read("gpu001", "cat /proc/sys/vm/swappiness"), "10");
    let done = run(&fleet, &home, "ansible_user: ops").expect(0);
    assert_eq!(done.document().stat("gpu001", "changed"), 0, "{done}");
    // No journal holds the password.
    for folder in std::fs::read_dir(home.runs()).expect("runs").flatten() {
        let journal = std::fs::read_to_string(folder.path().join("journal.jsonl")).expect("a journal");
        assert!(!journal.contains("not-this-one"), "{journal}");
    }
}

/// That nobody may read a node says nothing about its health.
#[test]
fn a_refused_sudo_leaves_a_node_not_judged() {
    let fleet =
        Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, openssh: true, ..FleetOptions::default() });
    let home = Home::new();
    home.write("login.yaml", "gpu: {vars: {ansible_user: admin}}\n");
    let inventory = fleet.inventory();
    let done =
        home.gpufleet(["audit", "--health", "-i", &inventory, "-i", "login.yaml", "--format", "json"]).run();
    let document = done.document();
    assert_eq!(document.node("gpu001")["verdict"], "unknown", "{done}");
    let findings = document.node("gpu001")["findings"].to_string();
    assert!(findings.contains("sudo wants a password for admin") && !findings.contains("\"fail\""), "{done}");
}

/// No file or output holds a password of the command line, be it from a file, a program, a setting or a question.
#[test]
fn passwords_of_the_command_line_are_in_no_sink() {
    let fleet =
        Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, openssh: true, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    home.write("login.yaml", "gpu: {vars: {ansible_user: admin}}\n");
    home.write("right", "lab\n");
    home.write("wrong", "planted-sudo\n");
    home.write("login", "planted-login\n");
    let inventory = fleet.inventory();
    let base = ["run", "play.yaml", "-i", &inventory, "-i", "login.yaml", "--yes", "-vvvv", "--diff"];
    let wrong = ["--become-password-file", "wrong", "--connection-password-file", "login"];
    let right = ["--become-password-file", "right", "--connection-password-file", "login"];
    let hidden = |text: &str| ["planted-sudo", "planted-login"].iter().all(|secret| !text.contains(secret));
    for format in ["human", "json", "jsonl", "ansible"] {
        let done = home.gpufleet(base).args(wrong).args(["--format", format]).run().expect(2);
        assert!(hidden(&done.to_string()), "{done}");
    }
    let done = home.gpufleet(base).env("GPUFLEET_BECOME_PASSWORD_FILE", "wrong").run().expect(2);
    assert!(
        done.to_string().contains("refuses the password of admin") && hidden(&done.to_string()),
        "{done}"
    );
    home.gpufleet(base).args(right).run().expect(0);
    // A second program, because passwords are asked for on a terminal only.
    let line = format!("gpufleet {} -K", base.join(" "));
    let asks = "mkfifo in; exec 3<>in; script -qefc \"$LINE\" screen <in >/dev/null & \
                until grep -q 'sudo password' screen 2>/dev/null; do sleep 0.1; done; echo planted-sudo >&3; wait $!";
    let shell = std::path::Path::new("/bin/sh");
    home.program(shell, ["-c", asks]).env("LINE", &line).env("TERM", "dumb").run().expect(2);
    let screen = std::fs::read_to_string(home.work().join("screen")).expect("what was on the terminal");
    assert!(screen.contains("refuses the password of admin") && hidden(&screen), "{screen}");
    for format in ["human", "json", "html", "jsonl"] {
        let done = home.gpufleet(["report", "--format", format]).run().expect(0);
        assert!(hidden(&done.to_string()), "{done}");
    }
    let mut folders = vec![home.runs()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => {
                    files += 1;
                    let bytes = std::fs::read(&path).expect("a file");
                    assert!(hidden(&String::from_utf8_lossy(&bytes)), "{}", path.display());
                }
            }
        }
    }
    assert!(files > 7, "each run has its files");
}

/// Without `become`, nothing is done as root, and what needs root fails with that reason.
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

/// OpenSSH's own client as the transport.
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

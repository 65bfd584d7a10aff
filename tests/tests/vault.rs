//! What ansible-vault encrypted reaches the node, and no screen and no file of a run.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use gpufleet_tests::{Fleet, FleetOptions, Home};
use rustix::process::Signal;

/// `db_password: planted-secret` and `port: 5432`, encrypted by ansible-vault of ansible-core 2.19 with `hunter2`.
const ENCRYPTED: &str = include_str!("../../controller/src/vault/fixtures/default.vault");

const PLAY: &str = "
- hosts: gpu
  become: true
  vars:
    url: 'db://{{ db_password }}@host'
  tasks:
    - copy: {content: 'url={{ url }}', dest: /etc/app.conf, mode: '0600'}
    - command: 'echo {{ url }}'
      register: out
    - debug: {var: out.stdout}
    - debug: {msg: '{{ whole_file.stdout | default(db_password) }}'}
    - name: 'with {{ db_password }}'
      command: 'cat /nothing/{{ item }}'
      loop: ['{{ db_password }}']
      ignore_errors: true
    - template: {src: app.j2, dest: /etc/app2.conf}
    - copy: {src: whole.vault, dest: /etc/app3.conf}
    - fail: {msg: 'no {{ db_password }}'}
      ignore_errors: true
";

/// All files below a folder that hold `needle`, but for those only their owner may read by intent.
fn holding(folder: &Path, needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, needle));
        } else if path.file_name().is_some_and(|name| name != "sealed.jsonl")
            && String::from_utf8_lossy(&std::fs::read(&path).expect("a file")).contains(needle)
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_vault_value_is_in_no_sink() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    home.write("app.j2", "password={{ db_password }}\n");
    home.write("group_vars/gpu.yml", ENCRYPTED);
    home.write("files/whole.vault", ENCRYPTED);
    home.write("password", "hunter2\n");
    let inventory = fleet.inventory();
    let base = ["-i", inventory.as_str(), "-vvvv", "--diff"];
    let done = home.gpufleet(["run", "play.yaml", "--yes"]).args(base).run().expect(1);
    assert!(done.to_string().contains("--vault-password-file"), "{done}");

    let password = ["--vault-password-file", "password"];
    for verb in [&["plan", "play.yaml"][..], &["run", "play.yaml", "--yes"], &["plan", "play.yaml"]] {
        let done = home.gpufleet(verb).args(base).args(password).run();
        assert!(!done.to_string().contains("planted-secret"), "{done}");
        assert!(!done.to_string().contains("hunter2"), "{done}");
    }
    assert_eq!(fleet.read("gpu001", "cat /etc/app.conf"), "url=db://planted-secret@host");
    assert_eq!(fleet.read("gpu001", "cat /etc/app2.conf"), "password=planted-secret");
    assert!(fleet.read("gpu001", "cat /etc/app3.conf").starts_with("db_password: planted-secret"));
    for format in ["human", "json", "html", "jsonl"] {
        let done = home.gpufleet(["report", "--format", format]).run().expect(0);
        assert!(!done.to_string().contains("planted-secret"), "{done}");
    }
    assert_eq!(holding(&home.runs(), "planted-secret"), Vec::<String>::new());
}

#[test]
fn a_run_that_was_killed_goes_on_with_its_secrets() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write(
        "play.yaml",
        "
- hosts: gpu
  become: true
  tasks:
    - command: 'echo said {{ db_password }}'
      register: out
    - set_fact: {kept: 'kept {{ db_password }}'}
    - command: 'sh -c \"test -e /root/second || { touch /root/second; sleep 60; }\"'
      on_interrupt: rerun
    - copy: {content: '{{ out.stdout }}, {{ kept }}', dest: /etc/app.conf, mode: '0600'}
",
    );
    home.write("group_vars/gpu.yml", ENCRYPTED);
    home.write("password", "hunter2\n");
    let inventory = fleet.inventory();
    let running = home
        .gpufleet([
            "run",
            "play.yaml",
            "--yes",
            "-i",
            inventory.as_str(),
            "--vault-password-file",
            "password",
        ])
        .start();
    let limit = Instant::now() + Duration::from_secs(60);
    while fleet.read("gpu001", "ls /root") != "second" {
        assert!(Instant::now() < limit, "{:?}", running.journal());
        std::thread::sleep(Duration::from_millis(100));
    }
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, None);
    assert_eq!(holding(&home.runs(), "planted-secret"), Vec::<String>::new(), "what is sealed lies apart");
    let done = home.gpufleet(["resume", "--yes", "-vvvv"]).run().expect(0);
    assert!(!done.to_string().contains("planted-secret"), "{done}");
    assert_eq!(fleet.read("gpu001", "cat /etc/app.conf"), "said planted-secret, kept planted-secret");
    assert_eq!(holding(&home.runs(), "planted-secret"), Vec::<String>::new());
    let run = std::fs::read_dir(home.runs()).expect("runs").flatten().next().expect("a run");
    assert!(!run.path().join("sealed.jsonl").exists(), "secrets are kept no longer than a resume needs them");
}

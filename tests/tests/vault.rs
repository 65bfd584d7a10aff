//! Secrets encrypted by ansible-vault or age reach the node, and no screen and no file of a run.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use gpufleet_tests::{Fleet, FleetOptions, Home};
use rustix::process::Signal;

/// `db_password: planted-secret` and `port: 5432`, encrypted by ansible-vault of ansible-core 2.19 with `hunter2`.
const ENCRYPTED: &str = include_str!("../../controller/language/src/vault/fixtures/default.vault");

/// The same two lines, encrypted by rage for the key below; once without armour.
const AGE: &str = include_str!("../../controller/language/src/vault/fixtures/age/two.age");
const AGE_BINARY: &[u8] = include_bytes!("../../controller/language/src/vault/fixtures/age/binary.age");
const IDENTITY: &str = include_str!("../../controller/language/src/vault/fixtures/age/identity.txt");

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
    - get_url: {url: 'http://127.0.0.1:1/x?token={{ db_password }}', dest: /root/x}
      ignore_errors: true
    - wait_for: {host: '127.0.0.1', port: 1, msg: '{{ db_password }}', timeout: 1}
      ignore_errors: true
";

/// Returns all files below a folder that contain `needle`, except for those that only their owner may read on
/// purpose.
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
    for verb in [
        &["plan", "play.yaml"][..],
        &["run", "play.yaml", "--yes", "--format", "jsonl"],
        &["plan", "play.yaml"],
    ] {
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

/// The same for age: a file without armour, a string in an inventory, a copied file; and a user without a key.
#[test]
fn a_value_of_age_is_in_no_sink() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("app.j2", "password={{ db_password }}\n");
    home.write("files/whole.vault", AGE);
    let folder = home.work().join("group_vars/gpu");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("secrets.yml"), AGE_BINARY).expect("a file");
    home.write("key.txt", IDENTITY);
    let recipient = IDENTITY.lines().find_map(|line| line.strip_prefix("# public key: ")).expect("a key");
    let token = home
        .gpufleet(["vault", "encrypt-string", "-r", recipient, "-n", "token", "planted-token"])
        .run()
        .expect(0);
    home.write("group_vars/gpu/token.yml", &token.stdout);
    home.write("play.yaml", &format!("{PLAY}    - copy: {{content: '{{{{ token }}}}', dest: /etc/token}}\n"));
    let inventory = fleet.inventory();
    let base = ["-i", inventory.as_str(), "-vvvv", "--diff"];
    let done = home.gpufleet(["run", "play.yaml", "--yes"]).args(base).run().expect(1);
    assert!(done.to_string().contains("--vault-identity"), "{done}");
    let key = IDENTITY.lines().last().expect("a key");
    let hidden = ["planted-secret", "planted-token", key];
    for verb in [&["plan", "play.yaml"][..], &["run", "play.yaml", "--yes"], &["plan", "play.yaml"]] {
        let done = home.gpufleet(verb).args(base).args(["--vault-identity", "key.txt"]).run();
        assert!(hidden.iter().all(|text| !done.to_string().contains(text)), "{done}");
    }
    assert_eq!(fleet.read("gpu001", "cat /etc/app.conf"), "url=db://planted-secret@host");
    assert_eq!(fleet.read("gpu001", "cat /etc/app2.conf"), "password=planted-secret");
    assert!(fleet.read("gpu001", "cat /etc/app3.conf").starts_with("db_password: planted-secret"));
    assert_eq!(fleet.read("gpu001", "cat /etc/token"), "planted-token");
    for format in ["human", "json", "html", "jsonl"] {
        let done = home.gpufleet(["report", "--format", format]).run().expect(0);
        assert!(hidden.iter().all(|text| !done.to_string().contains(text)), "{done}");
    }
    for text in hidden {
        assert_eq!(holding(&home.runs(), text), Vec::<String>::new());
    }
}

#[test]
fn files_are_encrypted_for_people_and_opened_by_them() {
    let home = Home::new();
    let made = home.gpufleet(["vault", "keygen", "-o", "anne.key"]).run().expect(0);
    let anne = made.stdout.trim().to_owned();
    assert!(anne.starts_with("age1"), "{made}");
    home.gpufleet(["vault", "keygen", "-o", "anne.key"]).run().expect(1).says(&["is there already"]);
    let bob = home.gpufleet(["vault", "keygen", "-o", "bob.key"]).run().expect(0).stdout.trim().to_owned();
    home.write("people", &format!("# the team\n{anne}\n{bob}\n"));
    home.write("secrets.yml", "token: planted\n");
    home.gpufleet(["vault", "encrypt", "-R", "people", "secrets.yml"]).run().expect(0);
    let text = std::fs::read_to_string(home.work().join("secrets.yml")).expect("a file");
    assert!(text.starts_with("-----BEGIN AGE ENCRYPTED FILE-----\n") && !text.contains("planted"));
    home.gpufleet(["vault", "encrypt", "-r", &anne, "secrets.yml"])
        .run()
        .expect(1)
        .says(&["encrypted already"]);
    for key in ["anne.key", "bob.key"] {
        let done = home.gpufleet(["vault", "view", "--vault-identity", key, "secrets.yml"]).run().expect(0);
        assert_eq!(done.stdout, "token: planted\n");
    }
    home.gpufleet(["vault", "view", "secrets.yml"]).run().expect(1).says(&["no identity is given"]);
    home.gpufleet(["vault", "rekey", "--vault-identity", "bob.key", "-r", &anne, "secrets.yml"])
        .run()
        .expect(0);
    home.gpufleet(["vault", "view", "--vault-identity", "bob.key", "secrets.yml"])
        .run()
        .expect(1)
        .says(&["it is encrypted for others"]);
    // By settings alone, in both directions.
    home.write("gpufleet.toml", "vault_identity = \"anne.key\"\nvault_recipients = \"people\"\n");
    home.gpufleet(["vault", "view", "secrets.yml"]).run().expect(0);
    home.gpufleet(["vault", "rekey", "secrets.yml"]).run().expect(0);
    home.gpufleet(["vault", "decrypt", "secrets.yml"])
        .env("GPUFLEET_VAULT_IDENTITY", "bob.key")
        .run()
        .expect(0);
    let text = std::fs::read_to_string(home.work().join("secrets.yml")).expect("a file");
    assert_eq!(text, "token: planted\n");
    home.gpufleet(["vault", "encrypt", "-r", "age1nobody", "secrets.yml"])
        .run()
        .expect(1)
        .says(&["names nobody"]);
}

/// The format's reference program, which `make test` installs, opens gpufleet's files, and gpufleet opens its files.
#[test]
fn files_are_exchanged_with_age_itself() {
    let home = Home::new();
    let made = home.gpufleet(["vault", "keygen", "-o", "anne.key"]).run().expect(0);
    let anne = made.stdout.trim().to_owned();
    let age = |arguments: &[&str]| {
        let done = std::process::Command::new("age")
            .args(arguments)
            .current_dir(home.work())
            .output()
            .expect("`age`; tests/scripts/setup.sh installs it");
        assert!(done.status.success(), "age {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    };
    // Lengths around the chunk size of 64 KiB.
    for length in [0, 1, 65_535, 65_536, 65_537, 131_072] {
        let plain = "a".repeat(length);
        home.write("ours", &plain);
        home.gpufleet(["vault", "encrypt", "-r", &anne, "ours"]).run().expect(0);
        assert_eq!(age(&["--decrypt", "-i", "anne.key", "ours"]), plain.as_bytes(), "{length} bytes");
        home.write("plain", &plain);
        age(&["--encrypt", "-r", &anne, "-o", "theirs", "plain"]);
        let seen = home.gpufleet(["vault", "view", "--vault-identity", "anne.key", "theirs"]).run().expect(0);
        assert!(seen.stdout == plain, "{length} bytes");
    }
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

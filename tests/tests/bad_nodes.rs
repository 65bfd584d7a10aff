//! Nodes that cannot be reached or read: each is reported with cause and next step, and delays no other node.

use std::time::Duration;

use gpufleet_tests::{Document, Finished, Fleet, FleetOptions, Home};

/// A setting of a GPU, and one that needs no GPU.
const PLAY: &str = "
- hosts: gpu
  become: true
  tasks:
    - gpu_persistence: {mode: legacy}
    - sysctl: {name: vm.swappiness, value: 10}
    - copy: {content: hello, dest: /root/hello}
";

/// Disturbs no node and is not linear, so no node waits for another.
const LIVE: &str = "
- hosts: gpu
  become: true
  strategy: host_pinned
  tasks:
    - sysctl: {name: vm.swappiness, value: 10}
    - copy: {content: hello, dest: /root/hello}
";

struct Ward {
    playbook: &'static str,
    fleet: Fleet,
    done: Finished,
    document: Document,
    /// Nodes in the order in which they ended.
    ends: Vec<String>,
}

impl Ward {
    fn run(nodes: usize, playbook: &'static str, faults: &str) -> Self {
        let options =
            FleetOptions { nodes, gpus_per_node: 1, faults: faults.into(), ..FleetOptions::default() };
        let fleet = Fleet::start(&options);
        let home = Home::new();
        home.write("play.yaml", playbook);
        let done = home
            .gpufleet(["run", "play.yaml", "-i", &fleet.inventory(), "--yes", "--format", "json"])
            .args(["--connect-timeout", "20s"])
            .run();
        let document = done.document();
        Self { playbook, fleet, done, document, ends: home.journal().ends() }
    }

    /// Checks that the node was brought up despite its peculiarity.
    #[track_caller]
    fn well(&self, name: &str) {
        assert_eq!(self.document.state(name), "done", "{name}: {}", self.done);
        let tasks = self.playbook.matches("    - ").count();
        assert_eq!(self.document.stat(name, "changed"), tasks as i64, "{name}: {}", self.done);
        let text = self.fleet.read(name, "cat /root/hello /proc/sys/vm/swappiness");
        assert!(text.ends_with("hello10"), "{name}: {text}");
    }

    /// Checks that the node ended in this state, with a reason that contains these texts.
    #[track_caller]
    fn ill(&self, name: &str, state: &str, because: &[&str]) {
        assert_eq!(self.document.state(name), state, "{name}: {}", self.done);
        let why = self.document.message(name);
        for text in because {
            assert!(why.contains(text), "{name}: `{text}` is not in `{why}`\n{}", self.done);
        }
    }

    /// Checks that only what needs GPUs is missing.
    #[track_caller]
    fn blind(&self, name: &str, because: &[&str]) {
        self.ill(name, "unknown", because);
        assert_eq!(self.document.text(&format!("/nodes/{name}/verdict")), "unknown");
        assert_eq!(self.fleet.read(name, "cat /root/hello /proc/sys/vm/swappiness"), "hello10", "{name}");
    }
}

#[test]
fn nodes_that_do_not_let_us_in() {
    let faults = r#"
- {nodes: gpu002, effect: refuse_ssh}
- {nodes: gpu003, effect: hang_handshake}
- {nodes: gpu004, effect: host_key_changed}
- {nodes: gpu005, effect: auth_refused}
- {nodes: gpu006, effect: {ssh_banner: "Authorised users only.\n"}}
- {nodes: gpu007, effect: {rc_noise: "fortune: 100% chance of noise\n"}}
"#;
    let ward = Ward::run(7, LIVE, faults);
    for name in ["gpu001", "gpu006", "gpu007"] {
        ward.well(name);
    }
    ward.ill("gpu002", "unreachable", &["refuses the connection", "sshd"]);
    ward.ill("gpu003", "unreachable", &["SSH handshake", "took longer than 20 s"]);
    ward.ill("gpu004", "unreachable", &["key", "ssh-keygen -R"]);
    ward.ill("gpu005", "unreachable", &["was not let in", "publickey"]);
    assert_eq!(ward.done.code, Some(4), "{}", ward.done);
    // The node that hangs costs its own deadline once, and delays no other: all of them end before it.
    assert_eq!(ward.ends.last().map(String::as_str), Some("gpu003"), "{:?}: {}", ward.ends, ward.done);
    assert!(ward.done.took < Duration::from_secs(60), "{}", ward.done);
}

#[test]
fn nodes_whose_driver_is_broken() {
    let faults = r#"
- {nodes: gpu002, effect: no_driver}
- {nodes: gpu003, effect: lib_mismatch}
- {nodes: gpu004, effect: no_library}
- {nodes: gpu005, function: "nvmlInit*", effect: hang}
- {nodes: gpu006, function: "nvmlDeviceGetCount*", effect: segv}
"#;
    let ward = Ward::run(6, PLAY, faults);
    ward.well("gpu001");
    ward.ill("gpu002", "failed", &["no NVIDIA driver", "next step: install the driver"]);
    ward.ill("gpu003", "failed", &["different driver versions", "reboot the node"]);
    ward.blind("gpu004", &["libnvidia-ml.so.1", "next step"]);
    ward.blind("gpu005", &["NVML did not answer in 10 s", "worker killed"]);
    ward.blind("gpu006", &["NVML worker crashed", "signal 11"]);
    assert_eq!(ward.done.code, Some(2), "{}", ward.done);
    assert!(ward.done.took < Duration::from_secs(80), "{}", ward.done);
}

#[test]
fn nodes_with_no_place_for_files() {
    let faults = "
- {nodes: gpu001, effect: tmp_noexec}
- {nodes: gpu002, effect: no_memfd_exec}
- {nodes: gpu003, effect: disk_full}
- {nodes: gpu004, effect: tmp_noexec}
- {nodes: gpu004, effect: no_memfd_exec}
";
    let ward = Ward::run(4, PLAY, faults);
    for name in ["gpu001", "gpu002", "gpu004"] {
        ward.well(name);
    }
    ward.ill("gpu003", "failed", &["full"]);
    assert_eq!(ward.done.code, Some(2), "{}", ward.done);
}

#[test]
fn a_host_key_that_nobody_knows() {
    let fleet = Fleet::start(&FleetOptions { gpus_per_node: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    std::fs::write(fleet.known_hosts(), "").expect("an empty file");
    let arguments = ["run", "play.yaml", "-i", &fleet.inventory(), "--yes", "--format", "json"];
    let done = home.gpufleet(arguments).run().expect(4);
    assert_eq!(done.document().state("gpu001"), "unreachable");
    assert!(done.document().message("gpu001").contains("--accept-new"), "{done}");
    assert_eq!(std::fs::read_to_string(fleet.known_hosts()).expect("the file"), "");

    home.gpufleet(arguments).arg("--accept-new").run().expect(0);
    let known = std::fs::read_to_string(fleet.known_hosts()).expect("the file");
    assert_eq!(known.lines().count(), 2, "{known}");
    home.gpufleet(arguments).run().expect(0);
}

/// Keys that are missing, broken or locked, and passwords without a terminal.
#[test]
fn nothing_to_log_in_with() {
    let fleet =
        Fleet::start(&FleetOptions { nodes: 1, gpus_per_node: 1, openssh: true, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    home.write("broken", "-----BEGIN OPENSSH PRIVATE KEY-----\nbroken\n-----END OPENSSH PRIVATE KEY-----\n");
    let locked = home.work().join("locked");
    std::fs::copy(fleet.dir().join("id_ed25519"), &locked).expect("a copy of the key");
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-p", "-P", "", "-N", "secret", "-f"])
        .arg(&locked)
        .status();
    assert!(made.is_ok_and(|status| status.success()), "ssh-keygen locks a key");
    for (key, why) in
        [("missing", "does not exist"), ("broken", "broken"), ("locked", "no terminal to ask on")]
    {
        let path = home.work().join(key);
        let vars = format!("gpu: {{vars: {{ansible_ssh_private_key_file: {}}}}}\n", path.display());
        home.write("hosts.yaml", &vars);
        let inventory = fleet.inventory();
        let arguments =
            ["run", "play.yaml", "-i", &inventory, "-i", "hosts.yaml", "--yes", "--format", "json"];
        let done = home.gpufleet(arguments).run().expect(4);
        let document = done.document();
        assert_eq!(document.state("gpu001"), "unreachable", "{done}");
        let message = document.message("gpu001");
        assert!(message.contains(&*path.to_string_lossy()) && message.contains(why), "{key}: {message}");
        assert!(done.took < Duration::from_secs(60), "{done}");
    }
}

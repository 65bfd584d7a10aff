//! Wrong input: each ends with exit code 1, a message that names the place and the next step, and no node contacted.

use std::net::TcpListener;

use gpufleet_tests::{Finished, Home};

/// A home with an inventory whose only host is a port of this test, where nobody may knock.
struct Desk {
    home: Home,
    door: TcpListener,
}

impl Desk {
    fn new() -> Self {
        let door = TcpListener::bind("127.0.0.1:0").expect("a port");
        door.set_nonblocking(true).expect("a listener that does not wait");
        let home = Home::new();
        let port = door.local_addr().expect("an address").port();
        let host = |n: u32| format!("    gpu{n:03}: {{ansible_host: 127.0.0.1, ansible_port: {port}}}\n");
        let hosts: String = (1..=8).map(host).collect();
        home.write("inventory.yaml", &format!("gpu:\n  hosts:\n{hosts}"));
        Self { home, door }
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        let done = self.home.gpufleet(arguments).run().expect(1);
        assert!(done.stdout.is_empty(), "data for a program in spite of an error: {done}");
        let knocked = self.door.accept();
        assert!(knocked.is_err(), "a node was contacted: {done}");
        assert!(!self.home.runs().exists(), "a run was recorded: {done}");
        done
    }

    /// What `run` says about a playbook.
    fn playbook(&self, text: &str) -> String {
        self.home.write("play.yaml", text);
        let done = self.run(&["run", "play.yaml", "-i", "inventory.yaml", "--yes"]);
        let reading = self.run(&["plan", "play.yaml", "-i", "inventory.yaml"]);
        assert_eq!(done.stderr, reading.stderr, "run and plan judge alike");
        self.home.redact(&done.stderr)
    }

    /// What `hosts` says about an inventory.
    fn inventory(&self, name: &str, text: &str) -> String {
        self.home.write(name, text);
        self.home.redact(&self.run(&["hosts", "all", "-i", name]).stderr)
    }
}

fn task(text: &str) -> String {
    format!("- name: Bring up\n  hosts: gpu\n  tasks:\n    - {text}\n")
}

#[test]
fn an_unknown_task() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_powr: {limit_watts: 600}")), @"");
}

#[test]
fn an_unknown_key_of_a_task() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_power: {limit_wats: 600}")), @"");
}

#[test]
fn a_mistyped_keyword() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_power: {limit_watts: 600}\n      whne: true")), @"");
}

#[test]
fn an_unknown_key_of_a_play() {
    let text = "- name: Bring up\n  hosts: gpu\n  seriall: 10\n  tasks:\n    - gpu_ecc: {mode: enabled}\n";
    insta::assert_snapshot!(Desk::new().playbook(text), @"");
}

#[test]
fn what_cannot_be_a_profile() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_mig: {mode: enabled, layout: {3g40gb: 2}}")), @"");
}

#[test]
fn an_undefined_variable() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_power: {limit_watts: '{{ watts }}'}")), @"");
}

#[test]
fn a_wrong_type() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_power: {limit_watts: 6oo}")), @"");
}

#[test]
fn a_wrong_choice() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_persistence: {mode: demon}")), @"");
}

#[test]
fn a_duplicate_key() {
    let text = task("gpu_power: {limit_watts: 600}\n      when: true\n      when: false");
    insta::assert_snapshot!(Desk::new().playbook(&text), @"");
}

#[test]
fn a_tab() {
    insta::assert_snapshot!(Desk::new().playbook("- name: Bring up\n  hosts: gpu\n\ttasks: []\n"), @"");
}

#[test]
fn several_errors_are_told_at_once() {
    let text = task(
        "gpu_powr: {limit_watts: 600}\n    - gpu_ecc: {mod: enabled}\n    - debug: {msg: '{{ nobody }}'}",
    );
    let said = Desk::new().playbook(&text);
    for place in ["play.yaml:4:7", "play.yaml:5:", "play.yaml:6:", "3 errors, no node was contacted"] {
        assert!(said.contains(place), "{place} is missing:\n{said}");
    }
}

#[test]
fn a_broken_template() {
    insta::assert_snapshot!(Desk::new().playbook(&task("debug: {msg: '{{ 1 + }}'}")), @"");
}

#[test]
fn a_playbook_that_is_not_there() {
    let said = Desk::new().run(&["run", "nowhere.yaml", "-i", "inventory.yaml", "--yes"]).stderr;
    insta::assert_snapshot!(said, @"");
}

#[test]
fn a_pattern_that_matches_nothing() {
    let text = "- name: Bring up\n  hosts: gpux\n  tasks:\n    - gpu_ecc: {mode: enabled}\n";
    insta::assert_snapshot!(Desk::new().playbook(text), @"");
}

#[test]
fn a_limit_that_matches_nothing() {
    let desk = Desk::new();
    desk.home.write("play.yaml", &task("gpu_ecc: {mode: enabled}"));
    let said = desk.run(&["run", "play.yaml", "-i", "inventory.yaml", "--limit", "gpu1*", "--yes"]).stderr;
    insta::assert_snapshot!(said, @"");
}

#[test]
fn a_budget_that_rounds_to_nothing() {
    let text =
        "- name: Bring up\n  hosts: gpu\n  max_unavailable: 10%\n  tasks:\n    - gpu_ecc: {mode: enabled}\n";
    insta::assert_snapshot!(Desk::new().playbook(text), @"");
}

#[test]
fn a_linear_play_with_a_budget_below_its_batch() {
    let text = "- name: Bring up\n  hosts: gpu\n  strategy: linear\n  serial: 4\n  max_unavailable: 2\n  tasks:\n    \
                - gpu_ecc: {mode: enabled}\n    - reboot: {}\n";
    insta::assert_snapshot!(Desk::new().playbook(text), @"");
}

#[test]
fn an_unreadable_private_key() {
    let desk = Desk::new();
    desk.home.write("play.yaml", &task("gpu_ecc: {mode: enabled}"));
    desk.home.write(
        "id_broken",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nbroken\n-----END OPENSSH PRIVATE KEY-----\n",
    );
    for key in ["id_broken", "id_missing"] {
        let done = desk
            .home
            .gpufleet(["run", "play.yaml", "-i", "inventory.yaml", "--yes", "--private-key", key])
            .run();
        assert!(matches!(done.code, Some(1 | 4)), "{done}");
        done.says(&[key]);
    }
}

#[test]
fn a_broken_inventory_in_yaml() {
    let text = "gpu:\n  hosts:\n    gpu001: {ansible_host: 127.0.0.1\n    gpu002:\n";
    insta::assert_snapshot!(Desk::new().inventory("broken.yaml", text), @"");
}

#[test]
fn a_mistyped_key_of_an_inventory_group() {
    insta::assert_snapshot!(Desk::new().inventory("broken.yaml", "gpu:\n  hsts:\n    gpu001:\n"), @"");
}

#[test]
fn a_broken_inventory_in_ini() {
    insta::assert_snapshot!(Desk::new().inventory("hosts", "[gpu]\ngpu[001:x]\n"), @"");
}

#[test]
fn an_inventory_section_without_its_end() {
    insta::assert_snapshot!(Desk::new().inventory("hosts", "gpu001\n[gpu\ngpu002\n"), @"");
}

#[test]
fn an_inventory_that_is_not_there() {
    let said = Desk::new().run(&["hosts", "all", "-i", "nowhere"]).stderr;
    insta::assert_snapshot!(said, @"");
}

#[test]
fn a_wrong_command_line() {
    let desk = Desk::new();
    for arguments in [&["rum", "play.yaml"][..], &["run"], &["run", "play.yaml", "--max-unavailable", "many"]]
    {
        let said = desk.run(arguments).stderr;
        assert!(said.starts_with("error: "), "{said}");
    }
}

#[test]
fn no_terminal_to_ask_for_a_password() {
    let desk = Desk::new();
    desk.home.write("play.yaml", &task("gpu_ecc: {mode: enabled}"));
    for flag in ["--ask-pass", "--ask-become-pass"] {
        let said = desk.run(&["run", "play.yaml", "-i", "inventory.yaml", "--yes", flag]).stderr;
        assert!(said.contains("there is no terminal to ask for the") && said.contains("help: "), "{said}");
    }
}

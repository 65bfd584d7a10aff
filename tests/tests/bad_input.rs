//! Wrong input ends with exit code 1 and a message with the place and the next step, before any node is contacted.

use std::net::TcpListener;

use gpufleet_tests::{Finished, Home};

/// A home with an inventory whose only host is a port of this test, which must not be contacted.
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

    /// Returns the output of `run` for a playbook.
    fn playbook(&self, text: &str) -> String {
        self.home.write("play.yaml", text);
        let done = self.run(&["run", "play.yaml", "-i", "inventory.yaml", "--yes"]);
        let reading = self.run(&["plan", "play.yaml", "-i", "inventory.yaml"]);
        assert_eq!(done.stderr, reading.stderr, "run and plan judge alike");
        self.home.redact(&done.stderr)
    }

    /// Returns the output of `hosts` for an inventory.
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
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_powr: {limit_watts: 600}")), @r"
    error: unknown task `gpu_powr`
      --> play.yaml:4:7
       |
     4 |     - gpu_powr: {limit_watts: 600}
       |       ^^^^^^^^ no task kind of this name
    help: did you mean `gpu_power`? `gpufleet doc` lists all kinds
    1 error, no node was contacted.
    ");
}

#[test]
fn an_unknown_key_of_a_task() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_power: {limit_wats: 600}")), @r"
    error: `gpu_power` has no parameter `limit_wats`
      --> play.yaml:4:19
       |
     4 |     - gpu_power: {limit_wats: 600}
       |                   ^^^^^^^^^^
    help: did you mean `limit_watts`?
    1 error, no node was contacted.
    ");
}

#[test]
fn a_mistyped_keyword() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_power: {limit_watts: 600}\n      whne: true")), @r"
    error: unknown key `whne`
      --> play.yaml:5:7
       |
     5 |       whne: true
       |       ^^^^ not a key of a task
    help: did you mean `when`?
    1 error, no node was contacted.
    ");
}

#[test]
fn an_unknown_key_of_a_play() {
    let text = "- name: Bring up\n  hosts: gpu\n  seriall: 10\n  tasks:\n    - gpu_ecc: {mode: enabled}\n";
    insta::assert_snapshot!(Desk::new().playbook(text), @r"
    error: unknown key `seriall`
      --> play.yaml:3:3
       |
     3 |   seriall: 10
       |   ^^^^^^^ not a key of a play
    help: did you mean `serial`?
    1 error, no node was contacted.
    ");
}

#[test]
fn what_cannot_be_a_profile() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_mig: {mode: enabled, layout: {3g40gb: 2}}")), @r"
    error: `layout`: `3g40gb` is not a MIG profile; profiles look like `3g.40gb`, `1c.3g.40gb` or `1g.10gb+me`
      --> play.yaml:4:40
       |
     4 |     - gpu_mig: {mode: enabled, layout: {3g40gb: 2}}
       |                                        ^
    help: for example `gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}`
    1 error, no node was contacted.
    ");
}

#[test]
fn an_undefined_variable() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_power: {limit_watts: '{{ watts }}'}")), @r"
    error: the variable `watts` is not defined
      --> play.yaml:4:36
       |
     4 |     - gpu_power: {limit_watts: '{{ watts }}'}
       |                                    ^^^^^ no inventory, play or earlier task sets it
    help: set it in the inventory or the play, give it with `-e watts=…`, or use `watts | default(…)`
    1 error, no node was contacted.
    ");
}

#[test]
fn a_wrong_type() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_power: {limit_watts: 6oo}")), @r#"
    error: `limit_watts` wants a number of watts from 1, got "6oo"
      --> play.yaml:4:32
       |
     4 |     - gpu_power: {limit_watts: 6oo}
       |                                ^^^
    1 error, no node was contacted.
    "#);
}

#[test]
fn a_wrong_choice() {
    insta::assert_snapshot!(Desk::new().playbook(&task("gpu_persistence: {mode: demon}")), @r#"
    error: `mode` wants one of daemon, legacy, off, got "demon"
      --> play.yaml:4:31
       |
     4 |     - gpu_persistence: {mode: demon}
       |                               ^^^^^
    help: did you mean `daemon`?
    1 error, no node was contacted.
    "#);
}

#[test]
fn a_duplicate_key() {
    let text = task("gpu_power: {limit_watts: 600}\n      when: true\n      when: false");
    insta::assert_snapshot!(Desk::new().playbook(&text), @r"
    error: the key `when` is written twice
      --> play.yaml:6:7
       |
     6 |       when: false
       |       ^^^^ first on line 5
    help: remove one of the two: only one of them could count
    1 error, no node was contacted.
    ");
}

#[test]
fn a_tab() {
    insta::assert_snapshot!(Desk::new().playbook("- name: Bring up\n  hosts: gpu\n\ttasks: []\n"), @r"
    error: a tab cannot indent YAML
      --> play.yaml:3:1
       |
     3 |     tasks: []
       | ^^^^ tab
    help: indent with spaces
    1 error, no node was contacted.
    ");
}

#[test]
fn several_errors_are_told_at_once() {
    let text = task("gpu_powr: {limit_watts: 600}\n    - gpu_ecc: {mod: enabled}\n    - debug: {mgs: hello}");
    let said = Desk::new().playbook(&text);
    for place in ["play.yaml:4:7", "play.yaml:5:17", "play.yaml:6:15", "3 errors, no node was contacted"] {
        assert!(said.contains(place), "{place} is missing:\n{said}");
    }
}

#[test]
fn every_undefined_variable_is_told() {
    let text = task(
        "debug: {msg: '{{ nobody }}'}\n      when: nowhere is defined\n    - debug: {msg: '{{ nothing }}'}",
    );
    insta::assert_snapshot!(Desk::new().playbook(&text), @r"
    warning: the variable `nobody` is not defined
      --> play.yaml:4:24
       |
     4 |     - debug: {msg: '{{ nobody }}'}
       |                        ^^^^^^ no inventory, play or earlier task sets it
    note: a condition may keep this from being done; where it holds, the task fails
    help: set it in the inventory or the play, give it with `-e nobody=…`, or use `nobody | default(…)`
    error: the variable `nothing` is not defined
      --> play.yaml:6:24
       |
     6 |     - debug: {msg: '{{ nothing }}'}
       |                        ^^^^^^^ no inventory, play or earlier task sets it
    help: set it in the inventory or the play, give it with `-e nothing=…`, or use `nothing | default(…)`
    1 error, no node was contacted.
    ");
}

#[test]
fn a_broken_template() {
    insta::assert_snapshot!(Desk::new().playbook(&task("debug: {msg: '{{ 1 + }}'}")), @r"
    error: syntax error: unexpected end of input, expected expression
      --> play.yaml:4:26
       |
     4 |     - debug: {msg: '{{ 1 + }}'}
       |                          ^
    1 error, no node was contacted.
    ");
}

#[test]
fn a_playbook_that_is_not_there() {
    let said = Desk::new().run(&["run", "nowhere.yaml", "-i", "inventory.yaml", "--yes"]).stderr;
    insta::assert_snapshot!(said, @r"
    error: cannot read nowhere.yaml: No such file or directory (os error 2)
    1 error, no node was contacted.
    ");
}

#[test]
fn a_pattern_that_matches_nothing() {
    let text = "- name: Bring up\n  hosts: gpux\n  tasks:\n    - gpu_ecc: {mode: enabled}\n";
    insta::assert_snapshot!(Desk::new().playbook(text), @r"
    error: `gpux` matches no host and no group
      --> play.yaml:2:10
       |
     2 |   hosts: gpux
       |          ^^^^ selects nothing
    help: did you mean `gpu`?
    1 error, no node was contacted.
    ");
}

#[test]
fn a_limit_that_matches_nothing() {
    let desk = Desk::new();
    desk.home.write("play.yaml", &task("gpu_ecc: {mode: enabled}"));
    let said = desk.run(&["run", "play.yaml", "-i", "inventory.yaml", "--limit", "gpu1*", "--yes"]).stderr;
    insta::assert_snapshot!(said, @r"
    error: `gpu1*` matches no host and no group
      --> --limit:1:1
       |
     1 | gpu1*
       | ^^^^^ selects nothing
    help: did you mean `gpu`?
    1 error, no node was contacted.
    ");
}

#[test]
fn a_budget_that_rounds_to_nothing() {
    let text =
        "- name: Bring up\n  hosts: gpu\n  max_unavailable: 10%\n  tasks:\n    - gpu_ecc: {mode: enabled}\n";
    insta::assert_snapshot!(Desk::new().playbook(text), @r"
    error: `max_unavailable: 10%` of 8 hosts is none: no node could ever be disturbed
      --> play.yaml:3:20
       |
     3 |   max_unavailable: 10%
       |                    ^^^
    help: give a number such as `1`, or a larger percentage
    1 error, no node was contacted.
    ");
}

#[test]
fn a_linear_play_with_a_budget_below_its_batch() {
    let text = "- name: Bring up\n  hosts: gpu\n  strategy: linear\n  serial: 4\n  max_unavailable: 2\n  tasks:\n    \
                - gpu_ecc: {mode: enabled}\n    - reboot: {}\n";
    insta::assert_snapshot!(Desk::new().playbook(text), @r"
    error: a linear play with batches of 4 and `max_unavailable` 2 would wait for itself: the nodes that are out wait for the others at the next task, and the others wait for the budget
      --> play.yaml:3:13
       |
     3 |   strategy: linear
       |             ^^^^^^
    help: leave out `strategy`, so that each node goes through alone (host_pinned)
    help: or make the waves at most 2 large
    1 error, no node was contacted.
    ");
}

#[test]
fn a_broken_inventory_in_yaml() {
    let text = "gpu:\n  hosts:\n    gpu001: {ansible_host: 127.0.0.1\n    gpu002:\n";
    insta::assert_snapshot!(Desk::new().inventory("broken.yaml", text), @r"
    error: `,` or `}` was expected
      --> broken.yaml:4:11
       |
     4 |     gpu002:
       |           ^
    1 error, no node was contacted.
    ");
}

#[test]
fn a_mistyped_key_of_an_inventory_group() {
    insta::assert_snapshot!(Desk::new().inventory("broken.yaml", "gpu:\n  hsts:\n    gpu001:\n"), @r"
    error: unknown key `hsts` in the group `gpu`
      --> broken.yaml:2:3
       |
     2 |   hsts:
       |   ^^^^ a group has `hosts`, `children` and `vars`
    help: did you mean `hosts`?
    1 error, no node was contacted.
    ");
}

#[test]
fn a_broken_inventory_in_ini() {
    insta::assert_snapshot!(Desk::new().inventory("hosts", "[gpu]\ngpu[001:x]\n"), @r"
    error: with leading zeros, begin and end of a range need the same number of digits
      --> hosts:2:4
       |
     2 | gpu[001:x]
       |    ^^^^^^^
    1 error, no node was contacted.
    ");
}

#[test]
fn an_inventory_section_without_its_end() {
    insta::assert_snapshot!(Desk::new().inventory("hosts", "gpu001\n[gpu\ngpu002\n"), @r"
    error: this is no section header
      --> hosts:2:1
       |
     2 | [gpu
       | ^^^^ the closing `]` is missing
    1 error, no node was contacted.
    ");
}

#[test]
fn an_inventory_that_is_not_there() {
    let said = Desk::new().run(&["hosts", "all", "-i", "nowhere"]).stderr;
    insta::assert_snapshot!(said, @r"
    error: there is no inventory `nowhere`
    help: if `nowhere` is a host, write a comma behind it: `nowhere,`
    1 error, no node was contacted.
    ");
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
fn an_option_that_lets_no_node_be_disturbed() {
    let desk = Desk::new();
    desk.home.write("play.yaml", &task("reboot: {when: always}"));
    for verb in ["run", "plan"] {
        let mut arguments = vec![verb, "play.yaml", "-i", "inventory.yaml"];
        arguments.extend(["--max-unavailable", "10%"]);
        let said = desk.run(&arguments).stderr;
        assert!(said.starts_with("error: `--max-unavailable`, play `"), "{said}");
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

#[test]
fn a_kubeconfig_that_nobody_can_log_in_by() {
    let desk = Desk::new();
    desk.home.write(
        "kubeconfig",
        "{apiVersion: v1, kind: Config, current-context: prod,
          clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],
          users: [{name: u, user: {auth-provider: {name: gcp, config: {cmd-path: /bin/sleep, cmd-args: '600'}}}}],
          contexts: [{name: prod, context: {cluster: c, user: u}}]}",
    );
    let said = desk.playbook(
        "- hosts: gpu\n  rollout: {drain: {kubernetes: {kubeconfig: kubeconfig}}}\n  tasks:\n    - gpu_mig: {mode: enabled}\n",
    );
    insta::assert_snapshot!(said, @r"
    error: the kubeconfig cannot be used
      --> play.yaml:2:46
       |
     2 |   rollout: {drain: {kubernetes: {kubeconfig: kubeconfig}}}
       |                                              ^^^^^^^^^^ as kubeconfig
    help: its user logs in by `auth-provider: gcp`, which Kubernetes 1.26 took away; use the exec plugin of the provider, such as gke-gcloud-auth-plugin or kubelogin
    1 error, no node was contacted.
    ");
}

/// No name from a dynamic inventory gets into a shell line, wherever the line comes from.
#[test]
fn names_that_a_shell_would_act_on() {
    use std::os::unix::fs::PermissionsExt as _;
    let desk = Desk::new();
    let work = desk.home.work();
    let ran = work.join("ran");
    let command = format!("$(touch${{IFS}}{})", ran.display());
    desk.home.write("play.yaml", &task("command: 'true'"));
    desk.home.write("ssh_config", "Host *\n ProxyCommand nc -u %r %h %p\n");
    let inventory = |vars: &str, name: &str| {
        // Two hosts, because settings are read once for both.
        let text = format!(
            "#!/bin/sh\ncat <<'END'\n{{\"gpu\": {{\"hosts\": [\"gpu001\", \"{name}\"]}},\n \"_meta\": {{\"hostvars\": {{\n  \
             \"gpu001\": {{\"ansible_host\": \"127.0.0.1\", \"ansible_connection\": \"ssh\"}},\n  \"{name}\": {{{vars}}}}}}}}}\nEND\n"
        );
        desk.home.write("inventory.sh", &text);
        let script = work.join("inventory.sh");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))
            .expect("an executable file");
    };
    let said = |arguments: &[&str]| {
        let mut all = arguments.to_vec();
        all.extend(["-i", "inventory.sh", "--ssh-config", "ssh_config", "--connect-timeout", "3s"]);
        let done = desk.run(&all);
        assert!(!ran.exists(), "the shell ran it: {done}");
        desk.home.redact(&done.stderr)
    };
    for transport in ["russh", "ssh"] {
        let run = ["run", "play.yaml", "--yes", "--transport", transport];
        for (variable, what) in [
            ("ansible_host", "host name or address"),
            ("ansible_ssh_host", "host name or address"),
            ("ansible_user", "user"),
        ] {
            inventory(&format!("\"{variable}\": \"{command}\""), "gpu002");
            let text = said(&run);
            assert!(text.contains(&format!("error: gpu002: `{variable}`: `$(touch${{IFS}}")), "{text}");
            assert!(text.contains(&format!("is no {what}: ")), "{text}");
            assert!(text.contains("output of ") && text.contains("inventory.sh --list:4:"), "{text}");
        }
        for value in ["-J a,$(x)", "-o ProxyJump='`x`@a'", "-o HostName='a;x'", "-l '$(x)'"] {
            inventory(&format!("\"ansible_ssh_common_args\": \"{value}\""), "gpu002");
            let text = said(&run);
            assert!(text.contains("gpu002: `ansible_ssh_common_args`: ") && text.contains(":4:"), "{text}");
        }
        inventory("\"ansible_port\": \"22;x\"", "gpu002");
        assert!(said(&run).contains("`ansible_port` must be a port"));
        inventory("", &command.replace('/', "_"));
        assert!(said(&run).contains("is no name of a host: `$` cannot stand in one"));
    }
    inventory(&format!("\"ansible_host\": \"{command}\""), "gpu002");
    said(&["exec", "all", "--", "true"]);
    said(&["facts", "all"]);
}

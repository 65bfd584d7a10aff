//! Options, settings and output in Ansible's form.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use gpufleet_tests::{Fleet, FleetOptions, Home};

fn fleet() -> (Fleet, Home) {
    (Fleet::start(&FleetOptions::default()), Home::new())
}

const PLAY: &str = "- name: First\n  hosts: all\n  become: true\n  tags: t0\n  tasks:\n    - {name: hello, command: echo hi, tags: [b, a]}\n    \
                    - {name: motd, copy: {content: \"new\\n\", dest: /etc/motd}, notify: told}\n    \
                    - {name: say, debug: {msg: \"on {{ inventory_hostname }}\"}}\n    \
                    - {name: quiet, command: echo planted-secret, no_log: true}\n  \
                    handlers:\n    - {name: told, debug: {msg: handled}}\n";

#[test]
fn playbooks_are_listed_without_any_node() {
    let home = Home::new();
    let play = home.write("p.yml", PLAY);
    let done = home.gpufleet(["run", &play, "--list-tasks", "--list-tags"]).run().expect(0);
    assert_eq!(
        done.stdout,
        "\nplaybook: p.yml\n\n  play #1 (all): First\tTAGS: [t0]\n    tasks:\n      hello\tTAGS: [a, b, t0]\n      motd\tTAGS: [t0]\n      \
         say\tTAGS: [t0]\n      quiet\tTAGS: [t0]\n      TASK TAGS: [a, b, t0]\n"
    );
    let done = home.gpufleet(["run", &play, "-i", "n1,n2,", "--list-hosts"]).run().expect(0);
    assert_eq!(
        done.stdout,
        "\nplaybook: p.yml\n\n  play #1 (all): First\tTAGS: [t0]\n    pattern: ['all']\n    hosts (2):\n      n1\n      n2\n"
    );
    let done = home.gpufleet(["plan", &play, "--syntax-check"]).run().expect(0);
    assert_eq!(done.stdout, "\nplaybook: p.yml\n");
    let done = home.gpufleet(["exec", "n*", "-i", "n1,n2,", "--list-hosts"]).run().expect(0);
    assert_eq!(done.stdout, "  hosts (2):\n    n1\n    n2\n");
    let wrong = home.write("w.yml", "- hosts: all\n  tasks:\n    - comand: x\n");
    home.gpufleet(["run", &wrong, "--syntax-check"]).run().expect(1).says(&["did you mean `command`?"]);
}

#[test]
fn a_run_in_the_words_of_ansible() {
    let (fleet, home) = fleet();
    let play = home.write("p.yml", PLAY);
    let inventory = fleet.inventory();
    let done = home
        .gpufleet([
            "run", &play, "-i", &inventory, "-l", "gpu001", "--format", "ansible", "-D", "-v", "--yes",
        ])
        .run()
        .expect(0);
    let lines: Vec<&str> = done.stdout.lines().map(str::trim_end).collect();
    for line in [
        "PLAY [First] *******************************************************************",
        "TASK [hello] *******************************************************************",
        "+new",
        "ok: [gpu001] => {",
        "    \"msg\": \"on gpu001\"",
        "RUNNING HANDLER [told] *********************************************************",
        "PLAY RECAP *********************************************************************",
        "gpu001                     : ok=5    changed=3    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0",
    ] {
        assert!(lines.contains(&line), "{line}\n{done}");
    }
    assert!(
        lines.iter().any(|line| line.starts_with("changed: [gpu001] => {\"changed\": true")
            && line.contains("\"stdout\": \"hi\"")),
        "{done}"
    );
    assert!(!done.stdout.contains("planted-secret") && !done.stderr.contains("planted-secret"), "{done}");
    let junit = home.work().join("out.xml");
    let done = home
        .gpufleet([
            "run",
            &play,
            "-i",
            &inventory,
            "-l",
            "gpu001",
            "--yes",
            "--profile",
            "--junit",
            "out.xml",
            "--start-at-task",
            "mo*",
        ])
        .run()
        .expect(0)
        .says(&["TASK TIMES", "motd"]);
    assert!(!done.stdout.contains("hello"), "{done}");
    let text = fs::read_to_string(junit).expect("a document");
    for part in ["<testsuite name=\"First\"", "classname=\"gpu001\"", "name=\"motd\""] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("hello") && !text.contains("planted-secret"), "{text}");
    home.gpufleet(["run", &play, "-i", &inventory, "--start-at-task", "modt"])
        .run()
        .expect(1)
        .says(&["no task to start at is called `modt`", "did you mean `motd`?"]);
}

#[test]
fn ad_hoc_tasks_of_any_kind() {
    let (fleet, home) = fleet();
    let inventory = fleet.inventory();
    let done = home.gpufleet(["exec", "gpu001", "-i", &inventory, "-a", "echo a  b"]).run().expect(0);
    assert_eq!(done.stdout, "gpu001 | CHANGED | rc=0 >>\na b\n");
    let done = home
        .gpufleet([
            "exec",
            "gpu001",
            "-i",
            &inventory,
            "-o",
            "-m",
            "shell",
            "-a",
            "echo x; echo y >&2; exit 3",
        ])
        .run()
        .expect(2);
    assert_eq!(done.stdout, "gpu001 | FAILED | rc=3 | (stdout) x (stderr) y\n");
    let done = home
        .gpufleet([
            "exec",
            "gpu001",
            "-i",
            &inventory,
            "-b",
            "-m",
            "copy",
            "-a",
            "content=secret-text dest=/etc/motd mode=0600",
            "-D",
        ])
        .run()
        .expect(0);
    assert!(done.stdout.contains("gpu001 | CHANGED => {\n    \"changed\": true"), "{done}");
    assert_eq!(fleet.text("gpu001", "/etc/motd").as_deref(), Some("secret-text"));
    let record = fs::read_to_string(
        home.runs()
            .join(fs::read_dir(home.runs()).unwrap().last().unwrap().unwrap().file_name())
            .join("journal.jsonl"),
    )
    .unwrap();
    assert!(!record.lines().next().unwrap_or_default().contains("secret-text"), "{record}");
    home.gpufleet(["exec", "gpu001", "-i", &inventory, "-m", "copi", "-a", "x=1"])
        .run()
        .expect(1)
        .says(&["did you mean `copy`?"]);
}

#[test]
fn settings_come_from_ansible_cfg_gpufleet_toml_and_the_environment() {
    let home = Home::new();
    home.write("inv", "[gpu]\nn1\nn2\n");
    home.write(
        "ansible.cfg",
        "[defaults]\ninventory = ./inv\nforks = 5\nremote_user = anne\ngathering = smart\n",
    );
    let done = home.gpufleet(["hosts", "all"]).run().expect(0);
    assert_eq!(
        (done.stdout.as_str(), done.stderr.as_str()),
        ("n1\nn2\n", "goes by Ansible's settings: inventory of ./ansible.cfg\n")
    );
    let done = home.gpufleet(["hosts", "all", "-v", "-i", "n3,"]).run().expect(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("n3\n", ""));
    home.write("gpufleet.toml", "forks = 6\nconnect_timeout = \"30s\"\n");
    let config = || {
        home.gpufleet(["config", "--only-changed"])
            .env("GPUFLEET_TASK_TIMEOUT", "1h")
            .env("ANSIBLE_REMOTE_USER", "bob")
    };
    insta::assert_snapshot!(config().run().expect(0).stdout, @r"
    gpufleet.toml: gpufleet.toml
    ansible.cfg:   ./ansible.cfg

    inventory        inv    ./ansible.cfg:2
    user             bob    ANSIBLE_REMOTE_USER
    forks            6      gpufleet.toml:1
    connect_timeout  30s    gpufleet.toml:2
    task_timeout     3600s  GPUFLEET_TASK_TIMEOUT

    no meaning here: [defaults] gathering
    ");
    home.write("gpufleet.toml", "fork = 6\n");
    insta::assert_snapshot!(config().run().expect(1).stderr, @r"
    error: unknown setting `fork`
      --> gpufleet.toml:1:1
       |
     1 | fork = 6
       | ^^^^ no setting of this name
    help: did you mean `forks`?
    1 error, no node was contacted.
    ");
    home.gpufleet(["doc", "copy"]).run().expect(0);
    home.write("other.toml", "forks = 7\n");
    let done = home.gpufleet(["config", "--only-changed", "--config", "other.toml"]).run().expect(0);
    assert!(done.stdout.contains("other.toml:1"), "{done}");
    fs::remove_file(home.work().join("gpufleet.toml")).unwrap();
    fs::set_permissions(home.work(), fs::Permissions::from_mode(0o777)).unwrap();
    home.gpufleet(["hosts", "all"]).run().expect(1).says(&[
        "ansible.cfg is not read, because others could have written it: ",
        "can be written by everybody (mode 0777)",
        "no inventory was given",
    ]);
}

#[test]
fn a_person_is_asked_before_each_task() {
    let (fleet, home) = fleet();
    let play = home.write("p.yml", PLAY);
    let inventory = fleet.inventory();
    home.gpufleet(["run", &play, "-i", &inventory, "--step"])
        .run()
        .expect(1)
        .says(&["there is no terminal to ask on"]);
    let line = format!(
        "printf 'y\\nn\\nc\\n' | script -qec 'gpufleet run p.yml -i {inventory} --step --yes --format ansible' /dev/null"
    );
    let done = home.program(Path::new("/bin/sh"), ["-c", &line]).run().expect(0);
    for part in [
        "Perform task: hello (N)o/(y)es/(c)ontinue:",
        "Perform task: motd",
        "Perform task: say",
        "TASK [quiet]",
    ] {
        assert!(done.stdout.contains(part), "{part}\n{done}");
    }
    assert!(!done.stdout.contains("TASK [motd]") && !done.stdout.contains("Perform task: quiet"), "{done}");
    assert_eq!(done.stdout.matches("Perform task: hello").count(), 1, "{done}");
}

#[test]
fn plays_that_log_in_as_the_same_user_share_a_connection() {
    let home = Home::new();
    home.write("who", "deploy\n");
    let play = |user: &str| {
        format!("- hosts: all\n  gather_facts: false\n  remote_user: {user}\n  tasks: [{{command: echo}}]\n")
    };
    let connections = |users: &[&str], login: &str| {
        let text: String = users.iter().map(|user| play(user)).collect();
        let playbook = home.write("p.yml", &text);
        let inventory = home.write("hosts", &format!("n1 ansible_connection=local {login}\n"));
        let done = home.gpufleet(["run", &playbook, "-i", &inventory, "--yes", "--format", "jsonl"]);
        done.env("WHO", "deploy").run().expect(0).events().named("connected").count()
    };
    let looked_up = "\"{{ lookup('file', 'who') }}\"";
    assert_eq!(connections(&["deploy", looked_up, "\"{{ lookup('env', 'WHO') }}\""], ""), 1);
    // The controller is the same for any login user; `remote_user` does not apply if the host sets its own.
    assert_eq!(connections(&["a", "b"], ""), 1);
}

/// Returns what bash offers for a line, with the script of `completion`.
fn offered(home: &Home, line: &str) -> Vec<String> {
    let script = home.gpufleet(["completion", "bash"]).run().expect(0).stdout;
    home.write("completion.bash", &script);
    // A shell without a terminal needs the variables that readline would set.
    let ask = r#"source completion.bash
        COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
        read -ra COMP_WORDS <<< "$COMP_LINE"
        [[ "$COMP_LINE" == *' ' ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
        _gpufleet_names "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let said = home.program(Path::new("bash"), ["-c", ask, "bash", line]).run().expect(0);
    said.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_hosts_groups_and_runs() {
    let home = Home::new();
    home.write("fleet/hosts", "[rack1]\ngpu[001:003]\n[rack2]\ngpu004\n");
    home.write("fleet/dynamic", "#!/bin/sh\ntouch ran\necho '{}'\n");
    let program = fs::Permissions::from_mode(0o755);
    fs::set_permissions(home.work().join("fleet/dynamic"), program).expect("a program");
    let all = ["gpu001", "gpu002", "gpu003", "gpu004"];
    assert_eq!(offered(&home, "gpufleet hosts -i fleet gp"), all);
    assert_eq!(offered(&home, "gpufleet run site.yaml -i fleet --limit rack"), ["rack1", "rack2"]);
    assert_eq!(
        offered(&home, "gpufleet exec -i fleet rack1:!gpu00"),
        ["!gpu001", "!gpu002", "!gpu003", "!gpu004"]
    );
    assert_eq!(offered(&home, "gpufleet facts -i fleet gpu001,rack"), ["gpu001,rack1", "gpu001,rack2"]);
    assert!(!home.work().join("ran").exists(), "no script of an inventory runs");
    home.write("gpufleet.toml", "inventory = [\"fleet\"]\n");
    assert_eq!(offered(&home, "gpufleet facts gpu004"), ["gpu004"]);
    // Words of the command line are still completed.
    assert!(offered(&home, "gpufleet aud").contains(&"audit".to_owned()));
    home.write(
        "p.yaml",
        "- hosts: localhost\n  connection: local\n  gather_facts: false\n  tasks:\n    - debug: {msg: x}\n",
    );
    home.gpufleet(["run", "p.yaml"]).run().expect(0);
    let runs = offered(&home, "gpufleet report ");
    assert!(runs.len() == 2 && runs.contains(&"latest".to_owned()), "{runs:?}");
}

#[test]
fn what_is_piped_is_neither_cut_nor_wrapped() {
    let home = Home::new();
    let why = "a reason of many words ".repeat(40);
    let why = why.trim_end();
    let play = "- hosts: localhost\n  connection: local\n  gather_facts: false\n  tasks:\n    - fail: {msg: \"WHY\"}\n";
    home.write("p.yaml", &play.replace("WHY", why));
    let done = home.gpufleet(["run", "p.yaml"]).run().expect(2);
    for stream in [&done.stdout, &done.stderr] {
        assert!(stream.lines().any(|line| line.contains(why)), "{done}");
    }
}

#[test]
fn a_log_that_is_piped_has_no_colours() {
    let home = Home::new();
    let done = home.gpufleet(["-vvvv", "hosts", "-i", "gpu001,"]).run().expect(0);
    assert!(!done.stderr.contains('\u{1b}'), "{done}");
    let always =
        home.gpufleet(["-vvvv", "--color", "always", "exec", "localhost", "-m", "debug", "-a", "msg=x"]);
    let done = always.run().expect(0);
    assert!(done.stderr.contains("\u{1b}["), "{done}");
}

#[test]
fn hosts_are_selected_with_variables_of_the_line() {
    let home = Home::new();
    home.write("fleet/hosts", "gpu001\ngpu002\n");
    home.write(
        "fleet/mine.yml",
        "plugin: constructed\nuse_extra_vars: true\ncompose: {picked: pick}\ngroups: {mine: inventory_hostname == picked}\n",
    );
    let done = home.gpufleet(["hosts", "mine", "-i", "fleet", "-e", "pick=gpu002"]).run().expect(0);
    assert_eq!(done.stdout, "gpu002\n");
}

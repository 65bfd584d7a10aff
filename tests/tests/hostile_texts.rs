//! Text from a node reaches an operator's terminal harmlessly in every output format: real sshd, real helper, real
//! terminal.

use std::path::Path;

use gpufleet_tests::{Fleet, FleetOptions, Home};

/// Everything that a user of the node can control and gpufleet reads: names of links, output, content, facts.
const PLAY: &str = r##"
- hosts: gpu
  become: true
  tasks:
    - name: own facts
      shell: |
        mkdir -p /etc/ansible/facts.d /srv/t
        printf '{"said": "MARKED \\u001b]0;owned\\u0007\\u202e\\u200b\\u009b2K\\nok: [gpu999]"}' > /etc/ansible/facts.d/own.fact
        printf 'MARKED \033[2K\r\033]0;owned\007\nok: [gpu999]\n' | tee /srv/t/kept > /srv/t/content
        ln -sfn /etc "/srv/t/$(printf 'MARKED\033]0;owned\007\342\200\256\342\200\213\302\233 \nok: [gpu999]')"
    - setup: {}
    - debug: {var: ansible_local}
    - name: names
      find: {paths: /srv/t, file_type: link}
      register: found
    - debug: {var: found.files}
    - name: output
      shell: |
        printf 'MARKED \033[31m\033]0;owned\007\r\nok: [gpu999]\n\342\200\256\302\233\n'
      register: said
    - debug: {msg: "{{ said.stdout }}"}
    - name: "title {{ said.stdout }}"
      copy: {content: "other\n", dest: /srv/t/content}
    - name: broken
      shell: |
        printf 'MARKED\nok: [gpu999] MARKED \033]0;owned\007\302\233\n' >&2; exit 3
"##;

/// Returns what a terminal would interpret in `text` and gpufleet itself never prints.
fn obeyed(text: &str) -> Vec<&'static str> {
    let hostile = [
        ("\u{1b}]", "a title or another command of the operating system"),
        ("\u{7}", "a bell"),
        ("\u{9b}", "C1"),
        ("\u{202e}", "a change of direction"),
        ("\u{200b}", "a character without width"),
    ];
    let mut found: Vec<_> =
        hostile.iter().filter(|(bytes, _)| text.contains(bytes)).map(|(_, name)| *name).collect();
    // Lines with blanks before it are fine: text of several lines is indented, and gpufleet's own lines never are.
    if plain(text).split(['\n', '\r']).any(|line| line.starts_with("ok: [gpu999]")) {
        found.push("a line that looks like ours");
    }
    found
}

/// Returns the text without gpufleet's own sequences for colours and the cursor.
fn plain(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        rest = after.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        rest = rest.get(1..).unwrap_or_default();
    }
    plain + rest
}

#[test]
fn a_terminal_obeys_nothing_that_a_node_says() {
    let fleet = Fleet::start(&FleetOptions { nodes: 1, ..FleetOptions::default() });
    let home = Home::new();
    home.write("play.yaml", PLAY);
    let inventory = fleet.inventory();
    // util-linux's `script` gives the program its own terminal.
    let seen = |arguments: &str| {
        let line = format!("gpufleet {arguments}");
        let done = home.program(Path::new("/usr/bin/script"), ["-qec", &line, "/dev/null"]).run();
        let text = done.stdout.clone();
        assert!(
            text.contains("MARKED") && text.contains("gpu001"),
            "{arguments} shows nothing of it: {done}"
        );
        assert_eq!(obeyed(&text), Vec::<&str>::new(), "{arguments}: {done}");
        text
    };
    for format in
        ["", "-v", "--diff", "--format ansible", "--format ansible -vvv", "--format jsonl", "--format json"]
    {
        seen(&format!("run play.yaml -i {inventory} --yes {format}"));
    }
    seen(&format!("exec gpu -i {inventory} -b -- cat /srv/t/kept"));
    seen(&format!("exec gpu -i {inventory} -b -s -- 'ls -N /srv/t'"));
    for format in ["human", "json", "jsonl"] {
        seen(&format!("report --format {format}"));
    }
}

//! Each rule, on what it must find and on what it must leave alone.

use std::collections::HashMap;
use std::sync::Arc;

use super::*;
use crate::playbook::{Known, Reader};
use crate::yaml;

fn report_of(files: &[(&str, &str)]) -> Report {
    let files: HashMap<String, String> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    check(&["play.yml".to_owned()], &files, &Arc::default(), &[], &Arc::default())
}

/// Returns `rule:line` of each finding in a playbook with these tasks, notes left out.
fn found(tasks: &str) -> Vec<String> {
    found_in(&format!("- hosts: all\n  tasks:\n{tasks}"))
}

/// Returns `rule:line` of each finding in a playbook, notes left out.
fn found_in(text: &str) -> Vec<String> {
    let report = report_of(&[("play.yml", text)]);
    let line = |finding: &Finding| finding.diagnostic.span.as_ref().map_or(0, |span| span.line);
    let kept = report.findings.iter().filter(|finding| finding.severity > Severity::Note);
    kept.map(|finding| format!("{}:{}", finding.rule, line(finding))).collect()
}

const NOTHING: &[&str] = &[];

#[test]
fn commands_that_a_kind_declares() {
    assert_eq!(found("    - shell: nvidia-smi -pm 1\n"), ["command-instead-of-kind:3"]);
    assert_eq!(found("    - command: sysctl -w vm.swappiness=10\n"), ["command-instead-of-kind:3"]);
    assert_eq!(found("    - command: nvidia-smi -L\n      changed_when: false\n"), NOTHING);
    assert_eq!(found("    - shell: nvidia-smi -q | grep -c H100\n      changed_when: false\n"), NOTHING);
    assert_eq!(
        found("    - command: sudo /opt/tool\n      changed_when: false\n"),
        ["command-instead-of-kind:3"],
        "sudo in a command"
    );
}

#[test]
fn commands_that_change_something_each_time() {
    assert_eq!(found("    - command: uptime\n"), ["no-changed-when:3"]);
    assert_eq!(found("    - command: uptime\n      changed_when: false\n"), NOTHING);
    assert_eq!(found("    - command: make install creates=/opt/x\n"), NOTHING);
    assert_eq!(found("    - command: {cmd: make, creates: /opt/x}\n"), NOTHING);
    assert_eq!(found("    - command: make\n      args: {creates: /opt/x}\n"), NOTHING);
    let handler = "- hosts: all\n  handlers:\n    - name: a\n      command: /opt/tool\n";
    assert!(report_of(&[("play.yml", handler)]).findings.is_empty());
}

#[test]
fn shells_that_are_not_needed() {
    assert_eq!(
        found("    - shell: /opt/tool --fast\n      changed_when: false\n"),
        ["command-instead-of-shell:3"]
    );
    for line in [
        "echo $HOME",
        "a | b",
        "a && b",
        "ls *.rpm",
        "cd /x",
        "FOO=1 tool",
        "a > b",
        "{{ line }}",
        "type tool",
    ] {
        assert_eq!(
            found(&format!("    - shell: \"{line}\"\n      changed_when: false\n")),
            NOTHING,
            "{line}"
        );
    }
}

#[test]
fn modes_that_are_decimal() {
    assert_eq!(found("    - file: {path: /etc/x, mode: 644}\n"), ["risky-octal:3"]);
    for mode in ["'0644'", "0644", "'644'", "u=rw,g=r"] {
        assert_eq!(
            found(&format!("    - file: {{path: /etc/x, mode: \"{}\"}}\n", mode.trim_matches('\''))),
            NOTHING
        );
        assert_eq!(
            found(&format!("    - file:\n        path: /etc/x\n        mode: {mode}\n")),
            NOTHING,
            "{mode}"
        );
    }
}

#[test]
fn conditions_in_braces() {
    assert_eq!(
        found(
            "    - command: /opt/tool\n      changed_when: \"{{ false }}\"\n      when: [true, '{{ true }}']\n"
        ),
        ["no-jinja-when:4", "no-jinja-when:5"]
    );
    assert_eq!(
        found("    - command: /opt/tool\n      changed_when: false\n      when: inventory_hostname == 'a'\n"),
        NOTHING
    );
}

#[test]
fn becoming_another_user() {
    let tool = "    - command: /opt/tool\n      changed_when: false\n      become_user: slurm\n";
    assert_eq!(found(tool), ["partial-become:5"]);
    assert_eq!(found(&format!("{tool}      become: true\n")), NOTHING);
    let root = "    - service: {name: a, state: started}\n      become: true\n";
    assert_eq!(found(&format!("{root}    - service: {{name: b, state: started}}\n")), ["missing-become:5"]);
    assert_eq!(found("    - service: {name: b, state: started}\n"), NOTHING, "root may have logged in");
    assert_eq!(found(&format!("{root}    - debug: {{msg: hello}}\n")), NOTHING);
    // Whether the tasks of a file are root's is said by the play that uses it.
    let tasks =
        "- service: {name: a, state: started}\n- service: {name: b, state: started}\n  become: true\n";
    let play = "- hosts: all\n  become: true\n  tasks:\n    - include_tasks: part.yml\n";
    let report = report_of(&[("play.yml", play), ("part.yml", tasks)]);
    assert!(report.findings.iter().all(|finding| finding.rule != "missing-become"), "{:?}", report.findings);
}

#[test]
fn gpus_that_nobody_may_change() {
    let task = "    - gpu_persistence: {mode: daemon}\n";
    assert_eq!(
        found(&format!("{task}    - gpu_ecc: {{mode: enabled}}\n")),
        ["gpu-without-root:3"],
        "once a play"
    );
    for says in [
        "  become: true\n",
        "  become: false\n",
        "  remote_user: root\n",
        "  vars: {ansible_user: root}\n",
        "  vars: {ansible_become: true}\n",
        "  vars_files: [secrets.yml]\n",
        "  connection: local\n",
    ] {
        let found = found_in(&format!("- hosts: all\n{says}  tasks:\n{task}"));
        assert!(!found.iter().any(|finding| finding.starts_with("gpu-without-root")), "{says}: {found:?}");
    }
    assert_eq!(found(&format!("{task}      become: true\n")), NOTHING);
    assert_eq!(found("    - debug: {msg: hello}\n"), NOTHING);
    for shipped in [
        include_str!("../../../../playbooks/bringup.yaml"),
        include_str!("../../../../playbooks/mig-reconfigure.yaml"),
    ] {
        let found = found_in(shipped);
        assert!(!found.iter().any(|finding| finding.starts_with("gpu-without-root")), "{found:?}");
    }
}

#[test]
fn limits_that_nothing_keeps() {
    let found = |tasks: &str| found_in(&format!("- hosts: all\n  become: true\n  tasks:\n{tasks}"));
    let limit = "    - gpu_power: {limit_watts: 500}\n";
    assert_eq!(found(limit), ["limit-without-persistence:4"]);
    assert_eq!(found("    - gpu_compute_mode: {mode: default}\n"), NOTHING);
    assert_eq!(found("    - gpu_accounting: {mode: enabled}\n"), ["limit-without-persistence:4"]);
    for keeps in ["gpu_persistence: {mode: daemon}", "service: {name: nvidia-persistenced, state: started}"] {
        assert_eq!(found(&format!("{limit}    - {keeps}\n")), NOTHING, "{keeps}");
    }
    let off = format!("{limit}    - gpu_persistence: {{mode: 'off'}}\n");
    assert_eq!(found(&off), ["limit-without-persistence:4"]);
}

#[test]
fn secrets_in_plain_text() {
    let with = |value: &str| {
        let text = format!(
            "- hosts: all\n  vars:\n    api_token: {value}\n  tasks:\n    - debug: {{msg: '{{{{ api_token }}}}'}}\n"
        );
        report_of(&[("play.yml", &text)]).count(Severity::Warning)
    };
    assert_eq!(with("hunter2"), 1);
    assert_eq!(with("\"{{ lookup_it | default('x') }}\""), 0);
    assert_eq!(with("''"), 0);
    let text = report_of(&[("play.yml", "- hosts: all\n  vars:\n    db_password: hunter2\n")]).text(false);
    assert!(text.contains("plain-secret") && !text.contains("hunter2"), "{text}");
}

#[test]
fn what_nothing_uses() {
    let register = "    - command: uptime\n      changed_when: false\n      register: load\n";
    assert_eq!(found(register), ["unused-variable:5"]);
    assert_eq!(found(&format!("{register}    - debug: {{var: load}}\n")), NOTHING);
    let text =
        "- hosts: all\n  vars: {limit: 600, other: 1}\n  tasks:\n    - template: {src: x.j2, dest: /etc/x}\n";
    let report = report_of(&[("play.yml", text), ("templates/x.j2", "{{ limit }}\n")]);
    let names: Vec<&str> =
        report.findings.iter().map(|finding| finding.diagnostic.message.as_str()).collect();
    assert_eq!(names, ["nothing uses `other`", "this task has no name"]);
    let unseen = report_of(&[("play.yml", text)]);
    assert!(
        unseen.findings.iter().all(|finding| finding.rule != "unused-variable"),
        "the template may use them"
    );
}

#[test]
fn handlers_of_one_name() {
    let text = "- hosts: all\n  handlers:\n    - name: restart\n      service: {name: a, state: restarted}\n    - name: restart\n      service: {name: b, state: restarted}\n";
    let report = report_of(&[("play.yml", text)]);
    assert_eq!(report.findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), ["duplicate-handler"]);
}

#[test]
fn comments_silence_rules() {
    assert_eq!(found("    - command: uptime # noqa: no-changed-when\n"), NOTHING);
    assert_eq!(found("    - command: uptime # noqa\n"), NOTHING);
    assert_eq!(found("    - name: Read # noqa: no-changed-when\n      command: uptime\n"), NOTHING);
    assert_eq!(found("    - command: uptime # noqa: truthy\n"), ["no-changed-when:3"]);
    assert_eq!(
        found("    - command: uptime # noqa: no-chnged-when\n"),
        ["no-changed-when:3", "unknown-noqa:3"]
    );
    assert_eq!(found("    - comand: uptime # noqa\n"), ["invalid:3"], "errors stay");
}

#[test]
fn a_boolean_that_stands_for_a_word_is_told_the_word() {
    let help = |task: &str| {
        let report = report_of(&[("play.yml", &format!("- hosts: all\n  tasks:\n    - {task}\n"))]);
        let truthy = report.findings.iter().filter(|finding| finding.rule == "truthy");
        truthy.flat_map(|finding| finding.diagnostic.help.clone()).collect::<Vec<_>>()
    };
    assert_eq!(help("gpu_mig: {mode: on}"), ["write `enabled`"]);
    assert_eq!(help("smt: {state: off}"), ["write `off` in quotes"]);
    assert_eq!(help("gpu_persistence: {mode: off, gpus: [0]}"), ["write `off` in quotes"]);
    let boolean = "write `true`, or put it into quotes if text is meant";
    assert_eq!(help("service: {name: a, enabled: yes}"), [boolean]);
}

#[test]
fn notes_of_style() {
    let text = "- hosts: all\n  become: yes\n  tasks:\n    - debug: {msg: hi}\n      with_items: [a]\n";
    insta::assert_snapshot!(report_of(&[("play.yml", text)]).text(false), @r"
    note: `yes` is a boolean here and text elsewhere [truthy]
      --> play.yml:2:11
       |
     2 |   become: yes
       |           ^^^
    help: write `true`, or put it into quotes if text is meant
    note: this task has no name [name-missing]
      --> play.yml:4:7
       |
     4 |     - debug: {msg: hi}
       |       ^^^^^
    help: begin it with `name: …`
    note: `with_items` has a newer form [deprecated-key]
      --> play.yml:5:7
       |
     5 |       with_items: [a]
       |       ^^^^^^^^^^
    help: write `loop`
    ");
}

#[test]
fn everything_is_told_at_once() {
    let text = "- hosts: all\n  seriall: 2\n  tasks:\n    - comand: a\n    - shell: nvidia-smi -pl 600\n    - import_tasks: more.yml\n";
    let report = report_of(&[("play.yml", text), ("more.yml", "- command: uptime\n- copy: {dst: /a}\n")]);
    insta::assert_snapshot!(format!("{}{}", report.text(false), report.summary()), @r"
    error: unknown key `seriall` [invalid]
      --> play.yml:2:3
       |
     2 |   seriall: 2
       |   ^^^^^^^ not a key of a play
    help: did you mean `serial`?
    error: unknown task `comand` [invalid]
      --> play.yml:4:7
       |
     4 |     - comand: a
       |       ^^^^^^ no task kind of this name
    help: did you mean `command`? `gpufleet doc` lists all kinds
    note: this task has no name [name-missing]
      --> play.yml:5:7
       |
     5 |     - shell: nvidia-smi -pl 600
       |       ^^^^^
    help: begin it with `name: …`
    warning: a kind declares this: it can be planned, verified and done only where needed [command-instead-of-kind]
      --> play.yml:5:7
       |
     5 |     - shell: nvidia-smi -pl 600
       |       ^^^^^
    help: write `gpu_power: {limit_watts: 600}`
    note: this task has no name [name-missing]
      --> more.yml:1:3
       |
     1 | - command: uptime
       |   ^^^^^^^
    help: begin it with `name: …`
    warning: this `command` counts as a change every time [no-changed-when]
      --> more.yml:1:3
       |
     1 | - command: uptime
       |   ^^^^^^^
    help: add `changed_when: false` if it only reads, or else a condition, `creates` or `removes`
    note: this task has no name [name-missing]
      --> more.yml:2:3
       |
     2 | - copy: {dst: /a}
       |   ^^^^
    help: begin it with `name: …`
    error: `copy` has no parameter `dst` [invalid]
      --> more.yml:2:10
       |
     2 | - copy: {dst: /a}
       |          ^^^
    help: did you mean `dest`?
    2 files: 3 errors, 2 warnings, 3 notes; no node was contacted.
    ");
}

#[test]
fn variables_are_judged_once_the_inventory_is_known() {
    let text = "- hosts: all\n  tasks:\n    - name: a\n      debug: {msg: '{{ rack }}'}\n";
    let mut report = report_of(&[("play.yml", text)]);
    assert!(report.findings.is_empty());
    report.check_variables(&Known { variables: ["rack".to_owned()].into() });
    assert!(report.findings.is_empty());
    report.check_variables(&Known::default());
    assert_eq!(
        report.findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(),
        ["undefined-variable"]
    );
}

#[test]
fn rules_can_be_left_out_but_errors_cannot() {
    let mut report =
        report_of(&[("play.yml", "- hosts: all\n  tasks:\n    - command: uptime\n    - comand: a\n")]);
    report.skip(&["no-changed-when", "name-missing", "invalid"].into());
    assert_eq!(report.findings.iter().map(|finding| finding.rule).collect::<Vec<_>>(), ["invalid"]);
}

#[test]
fn sarif_is_as_its_schema_wants_it() {
    let text = "- hosts: all\n  tasks:\n    - comand: a\n    - command: uptime\n    - debug: {msg: hi}\n      become: yes\n";
    let document = sarif(&report_of(&[("play.yml", text)]));
    // These types are generated from OASIS' schema, so a property outside of the schema would be lost on the way.
    let read: serde_sarif::sarif::Sarif = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), document);
    let results = read.runs[0].results.as_ref().unwrap();
    let rules: Vec<&str> = results.iter().filter_map(|result| result.rule_id.as_deref()).collect();
    assert_eq!(rules, ["invalid", "name-missing", "no-changed-when", "name-missing", "truthy"]);
}

#[test]
fn findings_for_programs_have_places() {
    let report = report_of(&[("play.yml", "- hosts: all\n  tasks:\n    - name: a\n      command: uptime\n")]);
    insta::assert_snapshot!(serde_json::to_string_pretty(&report.findings[0].to_json()).unwrap(), @r#"
    {
      "rule": "no-changed-when",
      "severity": "warning",
      "message": "this `command` counts as a change every time",
      "file": "play.yml",
      "line": 4,
      "column": 7,
      "label": null,
      "notes": [],
      "help": [
        "add `changed_when: false` if it only reads, or else a condition, `creates` or `removes`"
      ]
    }
    "#);
}

#[test]
fn a_setting_of_the_kubelet_that_nobody_knows_is_a_warning() {
    let of =
        |settings: &str| found(&format!("    - name: Limit\n      kubelet:\n        settings: {settings}\n"));
    assert_eq!(of("{maxPods: 64, podMaximum: '{{ pods }}'}"), ["unknown-kubelet-setting:5"]);
    assert_eq!(of("{maxPods: 64}"), NOTHING);
    assert_eq!(of("{maxPod: 64}"), ["invalid:5"], "an error, and no warning beside it");
    assert_eq!(of("'{{ settings }}'"), NOTHING);
}

#[test]
fn every_rule_is_explained_and_its_example_reads() {
    for rule in RULES {
        assert!(rule.summary.ends_with('.') && rule.help.ends_with('.'), "{}", rule.name);
        assert!(
            yaml::parse("example", rule.example).is_ok() || rule.example.contains("# wrong"),
            "{}",
            rule.name
        );
        assert_eq!(super::rule(rule.name).map(|found| found.name), Some(rule.name));
    }
}

#[test]
fn the_reference_of_rules_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/rules.md");
    let wanted = rules_markdown();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == wanted, "docs/reference/rules.md is out of date: run `make reference`");
}

struct Disk;

impl Reader for Disk {
    fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn list(&self, folder: &str) -> std::io::Result<Vec<String>> {
        let name = |entry: std::fs::DirEntry| {
            let end = if entry.path().is_dir() { "/" } else { "" };
            format!("{}{end}", entry.file_name().to_string_lossy())
        };
        std::fs::read_dir(folder)?.map(|entry| entry.map(name)).collect()
    }
}

#[test]
fn the_shipped_playbooks_are_without_findings() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../playbooks");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
            let report = check(&[path.display().to_string()], &Disk, &Arc::default(), &[], &Arc::default());
            assert!(report.findings.is_empty(), "{}", report.text(false));
        }
    }
}

proptest::proptest! {
    /// Any text gives a report.
    #[test]
    fn no_text_panics(text in "(- hosts: all\n  (tasks|vars|handlers):\n)?([ \\-a-z:{}'\"\\[\\]#%0-9|>&*!]{0,30}\n){0,8}") {
        report_of(&[("play.yml", &text)]);
    }
}

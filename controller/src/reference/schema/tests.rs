//! Schemas against playbooks: valid ones pass, invalid ones do not.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use gpufleet_protocol::tasks::KINDS;
use jsonschema::Validator;

use super::words::word;
use super::*;
use crate::playbook::{DRAINERS, Program, Shape, VOCABULARY};

fn validator(schema: &Json) -> Validator {
    jsonschema::validator_for(schema).unwrap()
}

/// Parses a document as YAML 1.2, like an editor.
fn document(text: &str) -> Json {
    serde_saphyr::from_str(text).unwrap()
}

fn complaints(validator: &Validator, document: &Json) -> Vec<String> {
    validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

fn playbooks(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        match path.is_dir() {
            true if !path.ends_with("target") => playbooks(&path, found),
            _ if yaml => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn every_key_of_the_language_is_described() {
    let all = [VOCABULARY.play, VOCABULARY.rollout, VOCABULARY.shared, VOCABULARY.block, VOCABULARY.task];
    for name in all.into_iter().flatten() {
        let schema = word(name).unwrap_or_else(|| panic!("describe `{name}` in reference/schema/words.rs"));
        assert!(schema["description"].as_str().is_some_and(|text| text.ends_with('.')), "{name}");
    }
}

#[test]
fn shipped_playbooks_are_valid() {
    let (plays, tasks) = (validator(&playbook_schema()), validator(&tasks_schema()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    playbooks(&root.join("playbooks"), &mut found);
    // Default values of roles are any variables.
    found.retain(|path| !path.parent().is_some_and(|folder| folder.ends_with("defaults")));
    let is_of_role = |path: &PathBuf| path.parent().is_some_and(|folder| folder.ends_with("tasks"));
    assert!(found.len() >= 2 && found.iter().any(is_of_role));
    for path in found {
        let validator = if is_of_role(&path) { &tasks } else { &plays };
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(complaints(validator, &document(&text)), [""; 0], "{}", path.display());
    }
}

#[test]
fn shipped_inventories_are_valid() {
    let validator = validator(&inventory_schema());
    let right = document(
        "all:\n  children:\n    gpu:\n      hosts:\n        gpu[001:100]:\n          ansible_port: 22\n      vars: {rack: r1}\n",
    );
    assert_eq!(complaints(&validator, &right), [""; 0]);
    assert_eq!(complaints(&validator, &document("plugin: constructed\nkeyed_groups: []\n")), [""; 0]);
    for wrong in ["all:\n  hots:\n    a:\n", "[1]\n", "all:\n  children: [a]\n", "gpu:\n  hosts: [a]\n"] {
        assert!(!validator.is_valid(&document(wrong)), "{wrong}");
    }
}

#[test]
fn examples_of_all_kinds_are_valid() {
    let validator = validator(&tasks_schema());
    for kind in KINDS {
        let text = format!("- {}\n", kind.example);
        assert_eq!(complaints(&validator, &document(&text)), [""; 0], "{text}");
        for alias in kind.aliases {
            let text = format!("- {}\n", kind.example.replacen(kind.name, alias, 1));
            assert_eq!(complaints(&validator, &document(&text)), [""; 0], "{text}");
        }
    }
}

#[test]
fn examples_of_all_drainers_are_valid() {
    let validator = validator(&playbook_schema());
    let play = |drain: &str| document(&format!("- hosts: all\n  rollout:\n    {drain}\n"));
    for info in DRAINERS {
        assert_eq!(complaints(&validator, &play(info.example)), [""; 0], "{}", info.example);
        let bare = play(&format!("drain: {}", info.word));
        assert_eq!(validator.is_valid(&bare), info.stands_alone(), "{}", info.word);
        let unknown = play(&format!("drain: {{{}: {{no_such_setting: 1}}}}", info.word));
        assert!(!validator.is_valid(&unknown), "{}", info.word);
        for setting in info.settings() {
            let nothing = play(&format!("drain: {{{}: {{{}: []}}}}", info.word, setting.name));
            assert!(
                matches!(setting.shape, Shape::Names) || !validator.is_valid(&nothing),
                "{}: {}",
                info.word,
                setting.name
            );
        }
    }
}

#[test]
fn a_signal_is_written_as_the_parser_takes_it() {
    let validator = validator(&playbook_schema());
    for (signal, right) in [
        ("USR1", true),
        ("usr1", true),
        ("SIGUSR1", true),
        ("sigTerm", true),
        ("KILL", false),
        ("SIG", false),
        ("XUSR1", false),
        ("USR12", false),
    ] {
        let text =
            format!("- hosts: all\n  rollout:\n    drain: {{slurm: {{notice: {{signal: {signal}}}}}}}\n");
        assert_eq!(validator.is_valid(&document(&text)), right, "{signal}");
        let files = HashMap::from([("play.yml".to_owned(), text)]);
        assert_eq!(Program::load(&["play.yml"], &files).is_ok(), right, "{signal}");
    }
}

#[test]
fn what_ansible_users_write_is_valid() {
    let validator = validator(&playbook_schema());
    for right in [
        "- hosts: all\n  become: yes\n  gather_facts: no\n  serial: [1, '30%', canary]\n  tasks: []\n",
        "- hosts: [a, b]\n  vars: {a: 1}\n  tasks:\n    - shell: echo hi creates=/x\n      when: [a, b is defined]\n      register: x\n",
        "- hosts: all\n  tasks:\n    - block:\n        - command: uptime\n      rescue:\n        - debug: msg=hi\n      when: true\n",
        "- hosts: all\n  tasks:\n    - copy:\n        content: '{{ a }}'\n        dest: '{{ b }}'\n        mode: '{{ c }}'\n      loop: '{{ d }}'\n",
        "- hosts: all\n  tasks:\n    - gpu_power: {limit_watts: '{{ watts }}', gpus: 0}\n    - gpu_power: {limit_watts: '600'}\n",
        "- hosts: all\n  tasks:\n    - service: {name: x, state: started, enabled: yes}\n      notify: [a]\n      tags: a\n",
        "- hosts: all\n  tasks:\n    - file: {dest: /x, state: directory, mode: 0755}\n    - sysctl: {name: a.b, value: 1}\n",
        "- import_playbook: other.yml\n- hosts: all\n",
    ] {
        assert_eq!(complaints(&validator, &document(right)), [""; 0], "{right}");
    }
}

#[test]
fn wrong_playbooks_are_refused() {
    let validator = validator(&playbook_schema());
    for wrong in [
        "hosts: all\n",
        "- tasks: []\n",
        "- hosts: all\n  seriall: 1\n",
        "- hosts: all\n  tasks: {command: uptime}\n",
        "- hosts: all\n  tasks: [uptime]\n",
        "- hosts: all\n  become: maybe\n",
        "- hosts: all\n  tasks:\n    - comand: uptime\n",
        "- hosts: all\n  tasks:\n    - name: nothing\n",
        "- hosts: all\n  tasks:\n    - command: uptime\n      whne: true\n",
        "- hosts: all\n  tasks:\n    - gpu_power: {limit_wats: 600}\n",
        "- hosts: all\n  tasks:\n    - gpu_power: {limit_watts: lots}\n",
        "- hosts: all\n  tasks:\n    - file: {path: /x, state: directoy}\n",
        "- hosts: all\n  tasks:\n    - rescue:\n        - command: uptime\n",
        "- hosts: all\n  tasks:\n    - block:\n        - comand: uptime\n",
        "- hosts: all\n  tasks:\n    - command: uptime\n      loop: 3\n",
        "- hosts: all\n  handlers:\n    - name: a\n      service: [x]\n",
        "- hosts: all\n  rollout: {wavs: [1]}\n",
        "- hosts: all\n  order: sideways\n",
        "- hosts: all\n  rollout: {drain: slrum}\n",
        "- hosts: all\n  rollout: {drain: {slurm: {timeout: soon}}}\n",
        "- hosts: all\n  rollout: {drain: {slurm: {}, none: }}\n",
        "- hosts: all\n  rollout: {drain: {command: {drain: a}}}\n",
        "- hosts: all\n  rollout: {reboot: {via: kubectl}}\n",
    ] {
        assert!(!validator.is_valid(&document(wrong)), "{wrong}");
    }
}

#[test]
fn settings_are_valid_as_gpufleet_reads_them() {
    let validator = validator(&config_schema());
    let read = |text: &str| {
        let toml = Some(crate::settings::File { path: "gpufleet.toml", text });
        crate::settings::Settings::read(&crate::settings::Sources { toml, ..Default::default() })
    };
    let valid = |text: &str| {
        let document: Json = toml::from_str(text).unwrap();
        validator.is_valid(&document)
    };
    for right in [
        "",
        "inventory = [\"a\", \"b/\"]\nforks = 7\nbecome = true\ncolor = \"never\"\n",
        "inventory = \"a\"\nconnect_timeout = \"20s\"\ntask_timeout = 90\nuser = \"ops\"\n",
        "connect_timeout = \"2 min\"\nvault_identity = \"~/.age\"\nvault_recipients = [\"people\"]\n",
    ] {
        assert!(valid(right), "{right}");
        assert!(read(right).is_ok(), "{right}");
    }
    for wrong in [
        "fork = 7\n",
        "forks = 0\n",
        "forks = \"7\"\n",
        "become = \"yes\"\n",
        "color = \"blue\"\n",
        "inventory = [1]\n",
        "connect_timeout = \"soon\"\n",
        "user = 7\n",
    ] {
        assert!(!valid(wrong), "{wrong}");
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn schema_files_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    let all = [
        ("playbook", playbook_schema()),
        ("tasks", tasks_schema()),
        ("inventory", inventory_schema()),
        ("config", config_schema()),
        ("check", check_schema()),
        ("report", crate::reference::report_schema()),
        ("report-diff", crate::reference::difference_schema()),
        ("event", crate::reference::event_schema()),
    ];
    for (name, schema) in all {
        let path = folder.join(format!("{name}.schema.json"));
        let wanted = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(there == wanted, "docs/schema/{name}.schema.json is out of date: run `make reference`");
    }
}

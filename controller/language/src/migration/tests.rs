//! Tests for what replaces commands and modules, and for the report on playbooks.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_protocol::tasks::find;

use super::*;

/// Returns the tasks that replace a line, or the remarks about it.
fn of(line: &str) -> Vec<String> {
    advise(line).map_or_else(Vec::new, |advice| {
        let tasks: Vec<String> = advice.tasks().map(ToOwned::to_owned).collect();
        if tasks.is_empty() { advice.notes().map(ToOwned::to_owned).collect() } else { tasks }
    })
}

#[test]
fn calls_of_nvidia_smi_become_states() {
    let cases: &[(&str, &[&str])] = &[
        ("nvidia-smi -pm 1", &["gpu_persistence: {mode: daemon}"]),
        ("/usr/bin/nvidia-smi --persistence-mode=0", &["gpu_persistence: {mode: 'off'}"]),
        ("nvidia-smi -pl 600", &["gpu_power: {limit_watts: 600}"]),
        ("nvidia-smi -i 0 -pl 350.00", &["gpu_power: {limit_watts: 350, gpus: 0}"]),
        ("nvidia-smi -i 0,1 --power-limit=300", &["gpu_power: {limit_watts: 300, gpus: [0, 1]}"]),
        ("nvidia-smi -pl {{ watts }}", &["gpu_power: {limit_watts: '{{ watts }}'}"]),
        ("nvidia-smi -lgc 1200,1980", &["gpu_clocks: {graphics_mhz: [1200, 1980]}"]),
        ("nvidia-smi --lock-gpu-clocks=1980", &["gpu_clocks: {graphics_mhz: 1980}"]),
        ("nvidia-smi -lmc 2619", &["gpu_clocks: {memory_mhz: 2619}"]),
        ("nvidia-smi -ac 2619,1980", &["gpu_clocks: {graphics_mhz: 1980, memory_mhz: 2619}"]),
        ("nvidia-smi -rgc", &["gpu_clocks: {reset: true}"]),
        ("nvidia-smi -c EXCLUSIVE_PROCESS", &["gpu_compute_mode: {mode: exclusive_process}"]),
        ("nvidia-smi -c 0", &["gpu_compute_mode: {mode: default}"]),
        ("nvidia-smi -am 1", &["gpu_accounting: {mode: enabled}"]),
        ("nvidia-smi -e 1", &["gpu_ecc: {mode: enabled}"]),
        ("nvidia-smi -mig 1", &["gpu_mig: {mode: enabled}"]),
        ("nvidia-smi mig -cgi 3g.40gb,3g.40gb -C", &["gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}"]),
        ("nvidia-smi mig -i 1 -cgi 1g.10gb -C", &["gpu_mig: {mode: enabled, layout: {1g.10gb: 1}, gpus: 1}"]),
        (
            "nvidia-mig-parted apply -f c.yaml -c all-1g.10gb",
            &["gpu_mig: {mode: enabled, layout: {1g.10gb: 7}}"],
        ),
        ("nvidia-mig-parted apply -c all-disabled", &["gpu_mig: {mode: disabled}"]),
        (
            "nvidia-smi -pm 1 && nvidia-smi -pl 500",
            &["gpu_persistence: {mode: daemon}", "gpu_power: {limit_watts: 500}"],
        ),
        ("echo quit | nvidia-cuda-mps-control", &["gpu_mps: {state: stopped}"]),
        ("nvidia-cuda-mps-control -d", &["gpu_mps: {state: started}"]),
    ];
    for (line, tasks) in cases {
        assert_eq!(of(line), *tasks, "{line}");
    }
    assert!(of("nvidia-smi -r")[0].starts_with("leave it out"));
    assert!(of("nvidia-smi mig -cgi 9,9 -C")[0].contains("by name"));
    for line in [
        "nvidia-smi",
        "nvidia-smi -L",
        "nvidia-smi -q -d ECC",
        "nvidia-smi --query-gpu=name --format=csv",
        "nvidia-smi mig -lgip",
    ] {
        assert_eq!(advise(line), None, "{line} only reads");
    }
}

#[test]
fn commands_of_the_system_become_kinds() {
    let cases: &[(&str, &str)] = &[
        ("sysctl -w vm.swappiness=10", "sysctl: {name: vm.swappiness, value: '10'}"),
        ("echo 1 > /proc/sys/kernel/sysrq", "sysctl: {name: kernel.sysrq, value: '1'}"),
        ("grubby --update-kernel=ALL --args=\"iommu=pt quiet\"", "kernel_cmdline: {add: [iommu=pt, quiet]}"),
        (
            "grubby --update-kernel ALL --remove-args nouveau.modeset",
            "kernel_cmdline: {remove: [nouveau.modeset]}",
        ),
        ("systemctl restart slurmd", "service: {name: slurmd, state: restarted}"),
        ("sudo systemctl enable --now slurmd", "service: {name: slurmd, enabled: true, state: started}"),
        ("systemctl daemon-reload", "service: {daemon_reload: true}"),
        ("service chrony stop", "service: {name: chrony, state: stopped}"),
        ("mkdir -p /opt/x", "file: {path: /opt/x, state: directory}"),
        ("rm -rf /opt/x", "file: {path: /opt/x, state: absent}"),
        ("chown slurm:slurm /opt/x", "file: {path: /opt/x, owner: slurm, group: slurm}"),
        ("ln -s /a /b", "file: {src: /a, path: /b, state: link}"),
        ("/sbin/shutdown -r now", "reboot: {}"),
        ("systemctl reboot", "reboot: {}"),
    ];
    for (line, task) in cases {
        assert_eq!(of(line), [*task], "{line}");
    }
    assert!(advise("sudo systemctl enable --now slurmd").unwrap().sudo);
    for line in [
        "cat /etc/hosts",
        "rm -rf /",
        "rm -rf {{ x }}",
        "systemctl status x",
        "grep x y | wc -l",
        "echo $X",
        "mkdir -p a",
        "",
    ] {
        assert_eq!(advise(line), None, "{line}");
    }
    for (line, kind) in [
        ("modprobe nvidia_uvm", "modprobe"),
        ("apt-get install -y jq", "apt"),
        ("dnf -y install jq", "dnf"),
        ("useradd -r -s /sbin/nologin dcgm", "user"),
        ("groupadd render", "group"),
        ("hostnamectl set-hostname gpu001", "hostname"),
        ("mount -t nfs -o ro nas:/data /data", "mount"),
    ] {
        // The registry decides which of these kinds exist.
        let tasks = of(line);
        assert_eq!(find(kind).is_some(), !tasks.is_empty(), "{line}: {tasks:?}");
        assert!(tasks.iter().all(|task| task.starts_with(&format!("{kind}: "))), "{line}: {tasks:?}");
    }
}

#[test]
fn a_line_that_is_understood_in_part_says_so() {
    let advice = advise("/opt/tool --x; nvidia-smi -pm 1").unwrap();
    assert!(!advice.whole);
    assert_eq!(advice.tasks().collect::<Vec<_>>(), ["gpu_persistence: {mode: daemon}"]);
}

#[test]
fn edits_of_grub_become_words_of_the_command_line() {
    let Some(Suggestion::Task { text, .. }) = commands::grub_line("GRUB_CMDLINE_LINUX=\"quiet iommu=pt\"")
    else {
        panic!("no task");
    };
    assert_eq!(text, "kernel_cmdline: {add: [iommu=pt]}");
    assert_eq!(commands::grub_line("GRUB_CMDLINE_LINUX=\"\\1 iommu=pt\""), None);
}

fn survey_of(files: &[(&str, &str)]) -> Survey {
    let files: HashMap<String, String> =
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    survey(&["site.yml".to_owned()], &files, &Arc::default(), &[])
}

#[test]
fn a_playbook_is_taken_apart() {
    let site = "- hosts: gpu\n  vars_prompt: []\n  tasks:\n    - name: persistence\n      shell: nvidia-smi -pm 1\n    - name: motd\n      copy: {content: hi, dest: /etc/motd}\n    - name: firewall\n      community.general.ufw: {state: enabled}\n    - name: odd\n      foo.bar.baz: {a: 1}\n    - name: more\n      import_tasks: more.yml\n";
    let more = "- name: wrong\n  copy: {dst: /a}\n- name: reads\n  command: nvidia-smi -L\n";
    let survey = survey_of(&[("site.yml", site), ("more.yml", more)]);
    insta::assert_snapshot!(report_text(&survey, true), @r"
    site.yml
         2  change    `vars_prompt` is not available yet
                      -> give the variables with `-e`
         4  better    persistence (shell)
                      - gpu_persistence: {mode: daemon}
                      note: `daemon` runs nvidia-persistenced; `legacy` sets the flag alone, which a reboot loses
         6  as it is  motd (copy)
         8  replace   firewall (community.general.ufw)
                      unknown task `community.general.ufw`
                      -> use `command: ufw …` with `changed_when`
        10  unknown   odd (foo.bar.baz)
                      unknown task `foo.bar.baz`
                      -> `command` and `script` run a program of the node; `gpufleet doc` lists all kinds
        12  as it is  more (import_tasks)

    more.yml
         1  replace   wrong (copy)
                      `copy` has no parameter `dst`
                      -> did you mean `dest`?
         3  as it is  reads (command)

    7 tasks: 4 run as they are, 1 of these with a better kind; 2 to replace, 1 unknown; 1 more to change outside of tasks
    ");
    assert!(!report_text(&survey, false).contains("motd"));
}

#[test]
fn what_disturbs_is_told_and_what_is_sure_is_written() {
    let site = "\
- hosts: gpu
  become: true
  tasks:
    - name: layout
      command: nvidia-mig-parted apply -f /etc/mig/fleet.yaml -c day
    - name: drain
      shell: scontrol update nodename={{ inventory_hostname }} state=drain reason=maint
    - name: unload
      command: rmmod nvidia_uvm nvidia
    - name: install
      command: /tmp/NVIDIA-Linux-x86_64-580.95.05.run --silent
    # Somebody's remark.
    - name: both
      when: big | bool
      shell: nvidia-smi -pm 1 && nvidia-smi -pl 600
    - name: partly
      shell: sysctl -w vm.swappiness=10 && rmmod nvidia
    - name: asks
      command: nvidia-smi -pl 500
      register: said
    - command: nvidia-smi
        -pl 400
    - debug: {msg: hi}
";
    let survey = survey_of(&[("site.yml", site)]);
    let task = |name: &str| survey.tasks.iter().find(|task| task.name.as_deref() == Some(name)).unwrap();
    for (name, told) in [
        ("drain", "`rollout: {drain: slurm}`"),
        ("unload", "`rmmod nvidia_uvm nvidia` unloads the GPU driver"),
        ("install", "`gpu_driver` installs"),
        ("partly", "`rmmod nvidia` unloads the GPU driver"),
    ] {
        assert_eq!(task(name).verdict, Verdict::Better, "{name}");
        assert!(task(name).notes.iter().any(|note| note.contains(told)), "{name}: {:?}", task(name).notes);
    }
    let found = rewritten(site, "site.yml", &survey);
    assert_eq!((found.replaced, found.marked), (2, 6), "{}", found.text);
    assert!(crate::yaml::parse("new.yml", &found.text).is_ok(), "{}", found.text);
    let has = |text: &str| assert!(found.text.contains(text), "{text}:\n{}", found.text);
    has("      gpu_mig: {config_file: fleet.yaml, config: day}\n");
    has(
        "      when: big | bool\n      block:\n        - gpu_persistence: {mode: daemon}\n        - gpu_power: {limit_watts: 600}\n",
    );
    has("    # Somebody's remark.\n");
    has(
        "    # gpufleet: - gpu_power: {limit_watts: 500}\n    - name: asks\n      command: nvidia-smi -pl 500\n",
    );
    has("    - command: nvidia-smi\n        -pl 400\n");
    has("    - debug: {msg: hi}\n");
    assert_eq!(rewritten(site, "other.yml", &survey).text, site);
}

#[test]
fn tasks_of_roles_are_judged_even_where_nothing_loads_them() {
    let site = "- hosts: gpu\n  roles:\n    - common\n";
    let tasks = "- name: packages\n  comand: x\n- include_tasks: deep.yml\n- name: fine\n  command: uptime\n";
    let survey = survey_of(&[
        ("site.yml", site),
        ("roles/common/tasks/main.yml", tasks),
        ("roles/common/tasks/deep.yml", "- name: persistence\n  shell: nvidia-smi -pm 1\n"),
    ]);
    let verdict = |name: &str| {
        survey.tasks.iter().find(|task| task.name.as_deref() == Some(name)).map(|task| task.verdict)
    };
    assert_eq!(verdict("packages"), Some(Verdict::Unknown));
    assert_eq!(verdict("persistence"), Some(Verdict::Better));
    assert_eq!(verdict("fine"), Some(Verdict::AsIs));
}

#[test]
fn a_playbook_that_is_no_yaml_gets_its_error() {
    let survey = survey_of(&[("site.yml", "- hosts: all\n  tasks:\n   - a: b\n  - c\n")]);
    assert_eq!(survey.totals.tasks, 0);
    assert_eq!(survey.problems.len(), 1);
}

#[test]
fn the_shipped_playbooks_run_as_they_are() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../playbooks/bringup.yaml");
    let read = |path: &str| std::fs::read(path);
    let survey = survey(&[path.display().to_string()], &read, &Arc::default(), &[]);
    assert!(survey.totals.tasks > 3);
    assert_eq!(survey.totals.as_is, survey.totals.tasks, "{}", report_text(&survey, false));
}

proptest::proptest! {
    #[test]
    fn no_command_line_panics(line in ".{0,80}") {
        advise(&line);
        needs_shell(&line);
    }

    #[test]
    fn what_is_suggested_parses(
        program in "(nvidia-smi|sysctl|systemctl|grubby|mkdir|chown|nvidia-mig-parted|useradd|mount|apt-get)",
        words in "( (-[a-z]{1,3}|--[a-z-]{3,12}(=[a-z0-9.,]{0,6})?|[a-z0-9./=,:]{1,10})){0,5}",
    ) {
        for task in advise(&format!("{program}{words}")).iter().flat_map(Advice::tasks) {
            let tree = crate::yaml::parse("task", task).unwrap();
            let (key, value) = &tree.as_map().unwrap()[0];
            let kind = find(&key.key_text()).unwrap();
            proptest::prop_assert!(kind.parse(value.to_json()).is_ok(), "{}", task);
        }
    }
}

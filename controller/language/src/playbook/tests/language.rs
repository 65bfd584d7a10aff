//! The meaning of playbooks.

use std::collections::HashMap;
use std::sync::Arc;

use gpufleet_protocol::Disruption;
use gpufleet_protocol::op::GpuTask;
use gpufleet_protocol::tasks::Params;

use super::{errors_of, load, play};
use crate::playbook::{Amount, Item, Known, Play, Program, Strategy, TagFilter, Wave};
use crate::template::{Dict, Value};

const BRINGUP: &str = r#"
- name: Bring up training nodes
  hosts: gpu
  become: true
  waves: [canary, 10%, 25%]
  max_unavailable: 10%
  max_fail_percentage: 5
  tasks:
    - gpu_ecc: {mode: enabled}
    - gpu_mig: {mode: enabled, layout: {3g.40gb: 2}}
    - gpu_persistence: {mode: daemon}
    - gpu_power: {limit_watts: 600}
    - gpu_clocks: {graphics_mhz: [1200, 1980]}
    - gpu_compute_mode: {mode: default}
    - gpu_mps: {state: started, default_active_thread_percentage: 50}
      when: "'inference' in group_names"
    - sysctl: {name: vm.swappiness, value: 10}
    - kernel_cmdline: {add: [iommu=pt]}
    - reboot: {when: required, timeout: 20m}
"#;

#[test]
fn the_playbook_of_the_guide_is_read() {
    let play = play(BRINGUP);
    assert_eq!(play.name, "Bring up training nodes");
    assert_eq!(play.waves, [Wave::Canary, Wave::Percent(10.0), Wave::Percent(25.0)]);
    assert_eq!(play.max_unavailable, Amount::Percent(10.0));
    assert_eq!(play.strategy, Strategy::HostPinned);
    assert_eq!(play.disruption, Disruption::Reboot);
    assert!(play.has_reboot() && play.may_escalate() && play.has_gpu_tasks);
    let items = &play.sections[0].items;
    assert_eq!(items.len(), 4);
    let Item::GpuGroup(group) = &items[0] else { panic!("no group") };
    assert_eq!(group.len(), 7);
    assert!(
        matches!(group[3].params.fixed.as_deref(), Some(Params::Gpu(GpuTask::GpuPower(power))) if power.limit_watts == Some(600))
    );
    assert_eq!(errors_of(BRINGUP), "");
}

#[test]
fn waves_have_sizes() {
    let sizes = |waves: &str, hosts| {
        play(&format!("- hosts: all\n  waves: {waves}\n  tasks: []\n")).wave_sizes(hosts, 2)
    };
    assert_eq!(sizes("[canary, 10%, 25%]", 16), [2, 1, 4, 4, 4, 1]);
    assert_eq!(sizes("[1, 5, 10]", 20), [1, 5, 10, 4]);
    assert_eq!(sizes("30%", 10), [3, 3, 3, 1]);
    assert_eq!(sizes("1%", 10), [1; 10]);
    assert_eq!(play("- hosts: all\n  tasks: []\n").wave_sizes(7, 2), [7]);
}

#[test]
fn budgets_that_cannot_work_are_errors() {
    let budget = |keys: &str, hosts| {
        let text = format!("- hosts: all\n{keys}  tasks:\n    - reboot: {{}}\n");
        play(&text).budget(hosts, false).map_err(|errors| errors.to_string())
    };
    assert_eq!(budget("", 100), Ok(1));
    assert_eq!(budget("  max_unavailable: 10%\n", 100), Ok(10));
    insta::assert_snapshot!(budget("  max_unavailable: 10%\n", 9).unwrap_err(), @"
    error: `max_unavailable: 10%` of 9 hosts is none: no node could ever be disturbed
      --> play.yml:2:20
       |
     2 |   max_unavailable: 10%
       |                    ^^^
    help: give a number such as `1`, or a larger percentage
    ");
    insta::assert_snapshot!(budget("  strategy: linear\n  serial: 4\n  max_unavailable: 2\n", 9).unwrap_err(), @"
    error: a linear play with batches of 4 and `max_unavailable` 2 would wait for itself: the nodes that are out wait for the others at the next task, and the others wait for the budget
      --> play.yml:2:13
       |
     2 |   strategy: linear
       |             ^^^^^^
    help: leave out `strategy`, so that each node goes through alone (host_pinned)
    help: or make the waves at most 2 large
    ");
    assert_eq!(budget("  strategy: linear\n  serial: 2\n  max_unavailable: 2\n", 9), Ok(2));
}

#[test]
fn a_play_that_cannot_disturb_is_linear() {
    let live = play("- hosts: all\n  tasks:\n    - command: uptime\n");
    assert_eq!((live.strategy, live.disruption), (Strategy::Linear, Disruption::Live));
    let free = play("- hosts: all\n  strategy: free\n  tasks:\n    - command: uptime\n");
    assert_eq!(free.strategy, Strategy::HostPinned);
}

#[test]
fn commands_are_written_in_every_way() {
    let text = r#"
- hosts: all
  tasks:
    - command: uname -r
    - ansible.builtin.command: {cmd: uname -r, chdir: /tmp}
    - command: creates=/etc/done touch /etc/done
    - shell: echo "a=b" | cat
      args: {chdir: /tmp}
    - command:
        argv: [echo, "{{ inventory_hostname }}"]
    - debug: msg='hello {{ inventory_hostname }}'
    - meta: flush_handlers
    - ansible.posix.sysctl: name=vm.swappiness value=10
"#;
    assert_eq!(errors_of(text), "");
    let play = play(text);
    let tasks = play.tasks();
    let given = |index: usize| -> Vec<String> {
        let entries = &tasks[index].params.entries;
        entries.iter().map(|entry| format!("{}={}", entry.name, entry.value.to_text())).collect()
    };
    assert_eq!(given(0), ["cmd=uname -r"]);
    assert_eq!(given(1), ["cmd=uname -r", "chdir=/tmp"]);
    assert_eq!(given(2), ["creates=/etc/done", "cmd=touch /etc/done"]);
    assert_eq!(given(3), ["chdir=/tmp", "cmd=echo \"a=b\" | cat"]);
    assert_eq!(given(5), ["msg=hello {{ inventory_hostname }}"]);
    assert_eq!(given(6), ["action=flush_handlers"]);
    assert_eq!(given(7), ["name=vm.swappiness", "value=10"]);
    assert_eq!(tasks[7].kind.name, "sysctl");
}

#[test]
fn blocks_hand_their_keys_down() {
    let text = r#"
- hosts: all
  tags: [base]
  tasks:
    - block:
        - command: one
          when: b
          tags: inner
        - block:
            - command: two
      when: a
      become: true
      vars: {x: 1}
      ignore_errors: true
      rescue:
        - command: three
      always:
        - command: four
      tags: [outer]
"#;
    let play = play(text);
    let tasks = play.tasks();
    assert_eq!(
        tasks.iter().map(|task| &*task.path).collect::<Vec<_>>(),
        ["tasks.0.0", "tasks.0.1.0", "tasks.0.rescue.0", "tasks.0.always.0"]
    );
    let when: Vec<_> = tasks[0].when.iter().map(|condition| &*condition.text).collect();
    assert_eq!(when, ["a", "b"]);
    assert_eq!(tasks[0].tags, ["base", "outer", "inner"]);
    assert_eq!(tasks[1].vars.len(), 1);
    assert!(tasks.iter().all(|task| task.privilege.escalate.is_some()));
}

#[test]
fn groups_split_at_other_kinds_and_at_used_results() {
    let text = r#"
- hosts: all
  tasks:
    - gpu_ecc: {mode: enabled}
      register: ecc
    - gpu_power: {limit_watts: 600}
    - gpu_clocks: {reset: true}
      when: ecc is changed
    - debug: {msg: a}
    - gpu_persistence: {mode: daemon}
      changed_when: false
"#;
    let play = play(text);
    let sizes: Vec<_> = play.sections[0]
        .items
        .iter()
        .map(|item| match item {
            Item::GpuGroup(group) => group.len(),
            _ => 0,
        })
        .collect();
    assert_eq!(sizes, [2, 1, 0, 1]);
}

#[test]
fn files_are_imported_and_vars_merged() {
    let files: HashMap<String, String> = [
        ("books/site.yml", "- import_playbook: sub/other.yml\n- hosts: all\n  vars_files: [vars.yml]\n  tasks:\n    - import_tasks: sub/tasks.yml\n      when: go\n      tags: t\n"),
        ("books/vars.yml", "go: true\nlimit: 600\n"),
        ("books/sub/other.yml", "- hosts: web\n  tasks: []\n"),
        ("books/sub/tasks.yml", "- gpu_power: {limit_watts: '{{ limit }}'}\n- import_tasks: more.yml\n"),
        ("books/sub/more.yml", "- command: uptime\n"),
    ]
    .into_iter()
    .map(|(name, text)| (name.to_owned(), text.to_owned()))
    .collect();
    let program = Program::load(&["books/site.yml"], &files).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(program.plays.len(), 2);
    assert_eq!(program.check_variables(&Known::default()).to_string(), "");
    let tasks = program.plays[1].tasks();
    assert_eq!(tasks.len(), 2);
    assert!(tasks.iter().all(|task| task.tags == ["t"] && task.when.len() == 1));
    assert_eq!(program.sources.len(), 5);
    let endless: HashMap<String, String> =
        [("a.yml".to_owned(), "- import_playbook: a.yml\n".to_owned())].into();
    let errors = Program::load(&["a.yml"], &endless).expect_err("endless");
    assert!(errors.to_string().contains("without end"), "{errors}");
}

#[test]
fn hosts_may_be_templates_over_extra_variables() {
    let play = play("- hosts: ['{{ target }}', '!rack3']\n  tasks: []\n");
    let extra: Dict = [("target", Value::str("h100"))].into_iter().collect();
    assert_eq!(play.host_pattern(&Arc::new(extra)).unwrap(), "h100:!rack3");
    insta::assert_snapshot!(play.host_pattern(&Arc::default()).unwrap_err(), @"
    error: cannot tell the hosts of the play: `target` is undefined
      --> play.yml:1:11
       |
     1 | - hosts: ['{{ target }}', '!rack3']
       |           ^^^^^^^^^^^^^^
    help: give the variable with `-e`
    ");
}

#[test]
fn variables_of_all_origins_are_known() {
    let text = r#"
- hosts: all
  gather_facts: true
  vars: {a: "{{ item }} {{ b }}"}
  tasks:
    - set_fact: {c: 1}
    - command: uptime
      register: r
      vars: {b: "{{ c }}"}
      loop: "{{ from_inventory }}"
      changed_when: r.rc == a
      when: ansible_distribution == 'x' and (maybe is not defined or maybe.x)
    - debug: {msg: "{{ r.stdout }} {{ thing | default(c) }}"}
- hosts: all
  tasks:
    - debug: {msg: "{{ r.stdout }} {{ ansible_kernel }}"}
"#;
    let program = load(text).unwrap_or_else(|errors| panic!("{errors}"));
    let known = Known { variables: ["from_inventory".to_owned()].into() };
    assert_eq!(program.check_variables(&known).to_string(), "");
}

#[test]
fn functions_are_no_variables() {
    let text = r#"
- hosts: all
  tasks:
    - debug: {msg: "{{ range(1, 3) | list }} {{ dict(a=1) }} {% set ns = namespace(x=1) %}{{ ns.x }}"}
    - debug: {msg: "{% for x in [1] %}{{ loop.index }}{% endfor %}{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1) }}"}
    - {debug: {var: inventory_hostname}, when: "range(3) | length == 3"}
"#;
    assert_eq!(errors_of(text), "");
    let text = r#"
- hosts: all
  tasks:
    - debug: {msg: "{{ lookup('env', 'HOME') }} {{ query('fiel', 'a') }}"}
    - debug: {msg: "{{ rnge(3) }} {{ lookup('vars', 'groops') }}"}
    - {debug: {msg: "{{ item }}"}, with_dikt: {a: 1}}
    - {debug: {msg: "{{ item }}"}, with_url: http://a}
    - {debug: {msg: "{{ item }}"}, with_dict: {a: 1}, with_list: [1]}
    - {debug: {msg: "{{ item }}"}, with_dict: {a: 1}, loop: [1]}
    - {debug: {msg: "{{ item }}"}, with_dict: "{{ lookup('file', 'x', 'y' }}"}
"#;
    insta::assert_snapshot!(errors_of(text), @r#"
    error: unknown lookup `fiel`
      --> play.yml:4:59
       |
     4 |     - debug: {msg: "{{ lookup('env', 'HOME') }} {{ query('fiel', 'a') }}"}
       |                                                           ^^^^
    help: did you mean `file`?
    error: unknown function `rnge`
      --> play.yml:5:24
       |
     5 |     - debug: {msg: "{{ rnge(3) }} {{ lookup('vars', 'groops') }}"}
       |                        ^^^^
    help: did you mean `range`?
    error: unknown lookup `dikt`
      --> play.yml:6:36
       |
     6 |     - {debug: {msg: "{{ item }}"}, with_dikt: {a: 1}}
       |                                    ^^^^^^^^^
    help: did you mean `with_dict`?
    error: the lookup `url` is not here: a node that waits for a web server holds up its wave; fetch it before the run, or with `get_url` on the node
      --> play.yml:7:36
       |
     7 |     - {debug: {msg: "{{ item }}"}, with_url: http://a}
       |                                    ^^^^^^^^
    help: use `loop` with a list
    error: `with_dict` and `with_list` are two loops
      --> play.yml:8:55
       |
     8 |     - {debug: {msg: "{{ item }}"}, with_dict: {a: 1}, with_list: [1]}
       |                                                       ^^^^^^^^^
    error: `loop` and `with_dict` are two loops
      --> play.yml:9:36
       |
     9 |     - {debug: {msg: "{{ item }}"}, with_dict: {a: 1}, loop: [1]}
       |                                    ^^^^^^^^^
    error: syntax error: unexpected `}`, expected `,`
      --> play.yml:10:75
        |
     10 |     - {debug: {msg: "{{ item }}"}, with_dict: "{{ lookup('file', 'x', 'y' }}"}
        |                                                                           ^
    "#);
}

#[test]
fn tags_choose_as_ansible_does() {
    let runs = |only: &[&str], skip: &[&str], tags: &[&str]| {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        TagFilter { only: list(only), skip: list(skip) }.runs(&list(tags))
    };
    assert!(runs(&[], &[], &[]));
    assert!(runs(&[], &[], &["a"]));
    assert!(!runs(&[], &[], &["never"]));
    assert!(runs(&["never"], &[], &["never"]));
    assert!(runs(&["a"], &[], &["never", "a"]));
    assert!(runs(&["a"], &[], &["always"]));
    assert!(!runs(&["a"], &[], &["b"]));
    assert!(!runs(&["a"], &[], &[]));
    assert!(!runs(&[], &["a"], &["a", "b"]));
    assert!(!runs(&[], &["always"], &["always"]));
    assert!(runs(&["tagged"], &[], &["b"]));
    assert!(!runs(&["tagged"], &[], &[]));
    assert!(runs(&["untagged"], &[], &[]));
    assert!(!runs(&["all"], &[], &["never"]));
}

#[test]
fn a_large_playbook_is_read_quickly() {
    let mut text = String::from("- hosts: all\n  tasks:\n");
    for index in 0..1_000 {
        text.push_str(&format!(
            "    - name: task {index}\n      sysctl: {{name: vm.swappiness, value: '{{{{ x{index} | default(10) }}}}'}}\n      when: inventory_hostname != 'n{index}'\n"
        ));
    }
    let start = crate::processor_time();
    let program = load(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let inventory = Known { variables: (0..5_000).map(|n| format!("variable_{n}")).collect() };
    assert!(program.check_variables(&inventory).is_empty());
    let took = crate::processor_time() - start;
    assert!(took.as_secs() < 10, "{took:?}");
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(150))]

    #[test]
    fn no_text_makes_the_parser_panic(text in "(- |  |hosts: all\n|tasks:\n|command: |when: |block:\n|loop: |\\{\\{ x \\}\\}|\\[a, b\\]|\\{a: 1\\}|gpu_mig: |[a-z:'\"{}\\[\\]\\n -]){0,40}") {
        let _ = errors_of(&text);
    }

    #[test]
    fn no_tree_makes_the_parser_panic(value in tree()) {
        let text = serde_json::to_string(&value).expect("json");
        let _ = errors_of(&text);
    }
}

fn tree() -> impl proptest::strategy::Strategy<Value = serde_json::Value> {
    use proptest::prelude::*;
    let word = proptest::sample::select(vec![
        "hosts",
        "tasks",
        "block",
        "rescue",
        "always",
        "when",
        "loop",
        "loop_control",
        "register",
        "command",
        "gpu_mig",
        "mode",
        "layout",
        "notify",
        "handlers",
        "vars",
        "name",
        "waves",
        "max_unavailable",
        "assert",
        "that",
        "set_fact",
        "debug",
        "environment",
        "args",
        "copy",
        "{{ x }}",
        "all",
        "10%",
        "import_tasks",
        "meta",
    ]);
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        word.clone().prop_map(serde_json::Value::from),
    ];
    let inner = leaf.prop_recursive(6, 60, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(serde_json::Value::from),
            proptest::collection::hash_map(word.clone().prop_map(ToOwned::to_owned), inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    });
    (inner.clone(), inner).prop_map(|(tasks, keys)| {
        let mut play =
            serde_json::Map::from_iter([("hosts".to_owned(), "all".into()), ("tasks".to_owned(), tasks)]);
        if let serde_json::Value::Object(keys) = keys {
            play.extend(keys);
        }
        serde_json::Value::from(vec![serde_json::Value::Object(play)])
    })
}

/// The kinds of a play's tasks, in order.
fn kinds(play: &Play) -> Vec<&'static str> {
    play.tasks().iter().map(|task| task.kind.name).collect()
}

#[test]
fn keep_is_the_last_task_of_a_play() {
    let text = "- hosts: gpu\n  keep: {on_failure: hold}\n  tasks:\n    - gpu_power: {limit_watts: 500}\n  post_tasks:\n    - ping:\n";
    let play = play(text);
    assert_eq!(kinds(&play), ["gpu_power", "ping", "gpu_keep"]);
    let keep = &play.tasks()[2];
    assert_eq!((keep.span.line, keep.params.get("on_failure").is_some()), (2, true));
    assert_eq!(kinds(&super::play("- hosts: gpu\n  keep: true\n  tasks: []\n")), ["gpu_keep"]);
    assert_eq!(kinds(&super::play("- hosts: gpu\n  keep: false\n  tasks: []\n")), [""; 0]);
    let wrong = errors_of("- hosts: gpu\n  keep: always\n  tasks: []\n");
    assert!(wrong.contains("`keep`") && wrong.contains("play.yml:2:9"), "{wrong}");
    let wrong = errors_of("- hosts: gpu\n  keep: {on_failur: hold}\n  tasks: []\n");
    assert!(wrong.contains("on_failur") && wrong.contains("play.yml:2:10"), "{wrong}");
}

#[test]
fn all_plays_with_gpu_tasks_keep_where_the_command_line_says_so() {
    let text = "
- hosts: gpu
  tasks: [gpu_power: {limit_watts: 500}]
- hosts: gpu
  tasks: [ping: ]
- hosts: gpu
  keep: false
  tasks: [gpu_power: {limit_watts: 500}]
- hosts: gpu
  tasks: [gpu_power: {limit_watts: 500}, gpu_keep: {on_failure: hold}, ping: ]
";
    let files: HashMap<String, String> = [("play.yml".to_owned(), text.to_owned())].into();
    let (extra, keyring) = (Arc::default(), Arc::default());
    let program = Program::load_knowing(&["play.yml"], &files, &keyring, &[], &extra, true).unwrap();
    let all: Vec<Vec<&str>> = program.plays.iter().map(|play| kinds(play)).collect();
    assert_eq!(all[0], ["gpu_power", "gpu_keep"]);
    assert_eq!(all[1], ["ping"]);
    assert_eq!(all[2], ["gpu_power"]);
    assert_eq!(all[3], ["gpu_power", "gpu_keep", "ping"]);
}

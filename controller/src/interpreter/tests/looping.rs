//! Loops over lookups, and that the world is asked once.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::template::{Outside as _, PathKind};

/// Counts how often it is asked.
#[derive(Default)]
struct Counting(AtomicU32);

impl Machine for Counting {
    fn kind(&self, path: &str) -> Option<PathKind> {
        match path {
            path if path.ends_with("motd") => Some(PathKind::File),
            path if path.ends_with("conf.d") => Some(PathKind::Folder),
            _ => None,
        }
    }
    fn files_of(&self, _: &str) -> Result<Vec<String>, String> {
        Ok(vec!["b.conf".to_owned(), "a.conf".to_owned()])
    }
    fn absolute(&self, path: &str) -> String {
        format!("/srv/{path}")
    }
    fn variable(&self, name: &str) -> Result<Option<String>, String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok((name == "HOME").then(|| "/root".to_owned()))
    }
    fn output(&self, line: &str, _: &str) -> Result<String, String> {
        let asked = self.0.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(20));
        if line == "wrong" {
            Err("the command ended with exit code 1".to_owned())
        } else {
            Ok(format!("{line} {asked}\n"))
        }
    }
    fn hosts(&self, _: &[String]) -> Result<Vec<String>, String> {
        Ok(vec!["n1".to_owned()])
    }
}

fn story(tasks: &str, mode: Mode) -> Story {
    let text = format!(
        "- hosts: all\n  vars: {{d: {{a: 1, b: 2}}, users: [{{name: ann, keys: [k1, k2]}}]}}\n  tasks:{tasks}"
    );
    let map: HashMap<String, String> = [("files/motd".to_owned(), "hello\n".to_owned())].into();
    let files = Arc::new(CachedFiles::new(map).on(Arc::new(Counting::default())));
    let tags = Arc::new(TagFilter::default());
    let context = context(serde_json::json!({}));
    let mut cursor =
        Cursor::new(&program(&text), PlayIndex(0), context, HostVars::default(), mode, tags, files)
            .expect("a play");
    run(&mut cursor, |_| Fed::Done)
}

#[test]
fn loops_over_lookups_run_as_in_ansible() {
    let tasks = "
    - {name: dict, debug: {msg: '{{ item.key }}={{ item.value }}'}, with_dict: '{{ d }}'}
    - {name: inline, debug: {msg: '{{ item.key }}'}, with_dict: {x: 1}}
    - {name: nested, debug: {msg: '{{ item[0] }}{{ item[1] }}'}, with_nested: [[a, b], [1, 2]]}
    - {name: together, debug: {msg: '{{ item.0 }}{{ item.1 }}'}, with_together: [[a, b], [1, 2]]}
    - {name: sequence, debug: {msg: '{{ item }}'}, with_sequence: 'start=1 end={{ d.b }} format=gpu%02d'}
    - {name: subelements, debug: {msg: '{{ item.0.name }} {{ item.1 }}'}, with_subelements: ['{{ users }}', keys]}
    - {name: indexed, debug: {msg: '{{ item.0 }} {{ item.1 }}'}, with_indexed_items: [a, [b]]}
    - {name: flattened, debug: {msg: '{{ item }}'}, with_community.general.flattened: [a, [b, [c]]]}
    - {name: list, debug: {msg: '{{ item }}'}, with_list: [[a, b], c]}
    - {name: file, debug: {msg: '{{ item }}'}, with_file: motd}
    - {name: glob, debug: {msg: '{{ item }}'}, with_fileglob: 'conf.d/*.conf'}
    - {name: first, debug: {msg: '{{ thing }}'}, with_first_found: ['{{ nope }}.conf', nope, files/motd], loop_control: {loop_var: thing}}
    - {name: choice, debug: {msg: '{{ item }}'}, with_random_choice: [only]}
    - {name: lines, debug: {msg: '{{ item }}'}, with_lines: 'echo'}
    - {name: hosts, debug: {msg: '{{ item }}'}, with_inventory_hostnames: all}
    - {name: env, debug: {msg: '{{ item }}'}, with_env: [HOME, NOPE]}
    - {name: empty, debug: {msg: '{{ item }}'}, with_dict: {}}
    - {name: guarded, debug: {msg: '{{ item }}'}, with_dict: '{{ nope }}', when: nope is defined}
    - {name: wrong, debug: {msg: '{{ item }}'}, with_dict: [1], ignore_errors: true}
    - {name: fails, debug: {msg: '{{ item }}'}, with_lines: wrong}
";
    insta::assert_snapshot!(story(tasks, Mode::Apply).lines(), @r#"
    dict: ok [{'key': 'a', 'value': 1}] "a=1"
    dict: ok [{'key': 'b', 'value': 2}] "b=2"
    dict: ok
    inline: ok [{'key': 'x', 'value': 1}] "x"
    inline: ok
    nested: ok [['a', 1]] "a1"
    nested: ok [['a', 2]] "a2"
    nested: ok [['b', 1]] "b1"
    nested: ok [['b', 2]] "b2"
    nested: ok
    together: ok [['a', 1]] "a1"
    together: ok [['b', 2]] "b2"
    together: ok
    sequence: ok [gpu01] "gpu01"
    sequence: ok [gpu02] "gpu02"
    sequence: ok
    subelements: ok [[{'name': 'ann'}, 'k1']] "ann k1"
    subelements: ok [[{'name': 'ann'}, 'k2']] "ann k2"
    subelements: ok
    indexed: ok [[0, 'a']] "0 a"
    indexed: ok [[1, 'b']] "1 b"
    indexed: ok
    flattened: ok [a] "a"
    flattened: ok [b] "b"
    flattened: ok [c] "c"
    flattened: ok
    list: ok [['a', 'b']] "["a","b"]"
    list: ok [c] "c"
    list: ok
    file: ok [hello] "hello"
    file: ok
    glob: ok [/srv/files/conf.d/a.conf] "/srv/files/conf.d/a.conf"
    glob: ok [/srv/files/conf.d/b.conf] "/srv/files/conf.d/b.conf"
    glob: ok
    first: ok [/srv/files/motd] "/srv/files/motd"
    first: ok
    choice: ok [only] "only"
    choice: ok
    lines: ok [echo 0] "echo 0"
    lines: ok
    hosts: ok [n1] "n1"
    hosts: ok
    env: ok [/root] "/root"
    env: ok [] ""
    env: ok
    empty: skipped "the loop has no items"
    guarded: skipped "the condition does not hold"
    wrong: failed ignored "`with_dict`: the lookup `dict`: a mapping is needed, this is a whole number"
    fails: failed "`with_lines`: the lookup `lines`: the command ended with exit code 1"
    end: Failed { task: "fails", message: "`with_lines`: the lookup `lines`: the command ended with exit code 1" }
    "#);
}

#[test]
fn loops_over_what_is_not_known_yet_are_possible() {
    let tasks = "
    - {name: ask, command: a, register: r}
    - {name: dict, debug: {msg: '{{ item }}'}, with_dict: '{{ r }}'}
    - {name: lines, debug: {msg: '{{ item }}'}, with_lines: 'echo {{ r.stdout }}'}
    - {name: pipe, debug: {msg: \"{{ lookup('pipe', 'now') }}\"}}
";
    insta::assert_snapshot!(story(tasks, Mode::Predict).lines(), @r#"
    ask: possible "only a run executes it"
    dict: possible "has a loop that hangs on the result of another task"
    lines: possible "has a loop that hangs on the result of another task"
    pipe: ok "now 0"
    end: Done
    "#);
}

#[test]
fn no_shell_loops_over_what_a_node_said() {
    let tasks = "
    - {set_fact: {said: 'a; id'}}
    - {name: quoted, debug: {msg: '{{ item }}'}, with_lines: 'echo {{ said | quote }}'}
    - {name: written, debug: {msg: \"{{ lookup('pipe', item) }}\"}, loop: ['a; b']}
    - {name: bare, debug: {msg: '{{ item }}'}, with_lines: 'echo {{ said }}'}
";
    let lines = story(tasks, Mode::Apply).lines();
    assert!(lines.contains("quoted: ok") && lines.contains("written: ok"), "{lines}");
    assert!(
        lines.contains("bare: failed \"`with_lines`: something that a node said goes into it"),
        "{lines}"
    );
}

#[test]
fn the_machine_is_asked_once() {
    let machine = Arc::new(Counting::default());
    let files =
        CachedFiles::new(HashMap::<String, String>::new()).on(Arc::clone(&machine) as Arc<dyn Machine>);
    std::thread::scope(|scope| {
        let ask = || files.output("date", "");
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        for answer in asked {
            assert_eq!(answer.join().expect("an answer").as_deref(), Ok("date 0\n"));
        }
    });
    for _ in 0..3 {
        assert_eq!(files.variable("HOME"), Ok(Some("/root".to_owned())));
        assert!(files.output("wrong", "").is_err());
    }
    assert_eq!(machine.0.load(Ordering::Relaxed), 3);
}

#[test]
fn only_first_found_leaves_out_what_is_not_there_and_nothing_else() {
    let failed = |tasks: &str| story(tasks, Mode::Apply).reports[0].message.clone().unwrap_or_default();
    let nested = "
    - {name: nested, debug: {msg: '{{ item }}'}, with_nested: ['{{ nope }}', [1]]}
";
    assert_eq!(failed(nested), "`with_nested`: `nope` is undefined");
    let first = "
    - {name: first, debug: {msg: '{{ item }}'}, with_first_found: ['{{ 1 // 0 }}', files/motd]}
";
    assert_eq!(failed(first), "`with_first_found`: unable to calculate 1 // 0");
}

#[test]
fn what_looped_tasks_of_a_gpu_group_gave_names_the_item() {
    let lines = story(
        "
    - {name: limits, gpu_power: {limit_watts: '{{ item.watts }}', gpus: ['{{ item.gpu }}']}, register: r, ignore_errors: true,
       loop: [{gpu: 0, watts: 400}, {gpu: 1, watts: 500}], loop_control: {extended: true}}
    - {name: items, debug: {msg: \"{{ r.results | map(attribute='item.watts') | list }} {{ r.results[1].ansible_loop.length }}\"}}
",
        Mode::Apply,
    )
    .lines();
    assert!(lines.contains("items: ok \"[400, 500] 2\""), "{lines}");
}

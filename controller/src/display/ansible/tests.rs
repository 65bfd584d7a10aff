use gpufleet_protocol::{Change, Disruption};

use super::*;
use crate::{
    event::{OpId, Phase},
    index::PlayIndex,
    report::sample::{self, Stream},
};

fn told(events: &[Event], verbosity: u32, diff: bool) -> String {
    let mut lines = AnsibleLines::new(Style::default(), verbosity, diff);
    let mut model = RunModel::new();
    let mut out = String::new();
    for event in events {
        model.apply(event);
        out.push_str(&lines.event(&model, event));
    }
    // A snapshot keeps no trailing blanks.
    out.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

fn data(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

fn command(line: u32, status: TaskStatus) -> TaskReport {
    let rc = u8::from(status == TaskStatus::Failed);
    let data = data(&format!("{{\"stdout\": \"a\\nb\", \"rc\": {rc}, \"cmd\": [\"x\", \"é\"]}}"));
    TaskReport { data, ..sample::report("command", line, status) }
}

fn run() -> Stream {
    let hosts = ["gpu001", "gpu002", "gpu003"].map(str::to_owned);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts).play(&hosts, &[("2", 2), ("1", 1)]);
    let debug = TaskReport {
        data: data(r#"{"msg": "hi"}"#),
        message: Some("hi".into()),
        ..sample::report("debug", 3, TaskStatus::Ok)
    };
    let file = Change {
        diff: Some("--- before: /etc/x\n+++ after: /etc/x\n@@ -1 +1 @@\n-a\n+b\n".into()),
        ..Change::new("/etc/x", Some("a".into()), "b", Disruption::Live)
    };
    let copy = TaskReport { changes: vec![file], ..sample::report("copy", 5, TaskStatus::Changed) };
    let hidden = TaskReport {
        message: Some("hidden by `no_log`".into()),
        ..sample::report("shell", 6, TaskStatus::Failed)
    };
    for host in ["gpu001", "gpu002"] {
        s.task(host, debug.clone());
    }
    s.task("gpu001", sample::swappiness(4)).task("gpu001", copy);
    for (item, status) in [("1", TaskStatus::Changed), ("2", TaskStatus::Failed), ("3", TaskStatus::Skipped)]
    {
        s.task("gpu001", TaskReport { item: Some(item.to_owned()), ..command(7, status) });
    }
    s.task("gpu001", TaskReport { ignored: true, ..command(7, TaskStatus::Failed) });
    let handler =
        TaskReport { op_id: OpId::new(PlayIndex(0), "handlers.0", "gpu001"), ..command(9, TaskStatus::Ok) };
    s.task("gpu001", handler);
    s.task("gpu002", TaskReport { ignored: true, ..command(8, TaskStatus::Failed) });
    s.task("gpu002", sample::report("stat", 10, TaskStatus::Skipped));
    s.task("gpu002", hidden);
    s.push(What::RebootIssued {
        host: "gpu001".into(),
        boot_id: "b".into(),
        why: vec!["ECC".into()],
        deadline: None,
    });
    s.push(What::Rebooted { host: "gpu001".into(), boot_id: "c".into(), seconds: 62 });
    s.push(What::WaveStarted { play: PlayIndex(0), wave: 1, hosts: vec!["gpu003".into()] });
    s.end("gpu001", NodeState::Done, None).end("gpu002", NodeState::Failed, Some("no"));
    s.end("gpu003", NodeState::Unreachable, Some("connection refused"));
    s.finished(2, "done");
    s
}

#[test]
fn what_is_there_to_be_read_is_told_whole() {
    let mut s = Stream::new();
    let hosts = ["gpu001".to_owned()];
    s.started(Verb::Run, &hosts).play(&hosts, &[("1", 1)]);
    let tell = |kind: &str, line, status, message: Option<&str>, told: &str| TaskReport {
        message: message.map(str::to_owned),
        data: data(told),
        ..sample::report(kind, line, status)
    };
    let passed = r#"{"msg": "All assertions passed"}"#;
    let failed = r#"{"assertion": "1 == 2", "evaluated_to": false, "msg": "nope"}"#;
    for report in [
        tell("debug", 1, TaskStatus::Changed, Some("hi"), r#"{"msg": "hi"}"#),
        tell("assert", 2, TaskStatus::Ok, Some("All assertions passed"), passed),
        tell("assert", 3, TaskStatus::Ok, None, passed),
        tell("assert", 4, TaskStatus::Failed, Some("nope (`1 == 2` does not hold)"), failed),
        tell("include_tasks", 5, TaskStatus::Ok, Some("included: a.yml (item=1)"), r#"{"include": "a.yml"}"#),
        tell("include_role", 6, TaskStatus::Ok, Some("included: r"), r#"{"include": "r"}"#),
        TaskReport {
            delegated_to: Some("login1".into()),
            ..tell("command", 7, TaskStatus::Changed, None, "{}")
        },
    ] {
        s.task("gpu001", report);
    }
    insta::assert_snapshot!(told(&s.events, 0, false), @r#"

    PLAY [Bring up training nodes] *************************************************

    TASK [debug] *******************************************************************
    changed: [gpu001] => {
        "msg": "hi"
    }

    TASK [assert] ******************************************************************
    ok: [gpu001] => {
        "changed": false,
        "msg": "All assertions passed"
    }

    TASK [assert] ******************************************************************
    ok: [gpu001]

    TASK [assert] ******************************************************************
    fatal: [gpu001]: FAILED! => {
        "assertion": "1 == 2",
        "changed": false,
        "evaluated_to": false,
        "msg": "nope"
    }

    TASK [include_tasks] ***********************************************************
    included: a.yml for gpu001 => (item=1)

    TASK [include_role] ************************************************************
    included: r for gpu001

    TASK [command] *****************************************************************
    changed: [gpu001 -> login1]
    "#);
}

#[test]
fn a_run_is_told_in_the_words_of_ansible() {
    insta::assert_snapshot!(told(&run().events, 0, true), @r#"

    PLAY [Bring up training nodes] *************************************************

    TASK [debug] *******************************************************************
    ok: [gpu001] => {
        "msg": "hi"
    }
    ok: [gpu002] => {
        "msg": "hi"
    }

    TASK [sysctl] ******************************************************************
    vm.swappiness: 60 -> 10
    changed: [gpu001]

    TASK [copy] ********************************************************************
    --- before: /etc/x
    +++ after: /etc/x
    @@ -1 +1 @@
    -a
    +b

    changed: [gpu001]

    TASK [command] *****************************************************************
    changed: [gpu001] => (item=1)
    failed: [gpu001] (item=2) => {"changed": false, "cmd": ["x", "é"], "rc": 1, "stdout": "a\nb", "stdout_lines": ["a", "b"]}
    skipping: [gpu001] => (item=3)
    ...ignoring

    RUNNING HANDLER [command] ******************************************************
    ok: [gpu001]

    TASK [command] *****************************************************************
    fatal: [gpu002]: FAILED! => {"changed": false, "cmd": ["x", "é"], "rc": 1, "stdout": "a\nb", "stdout_lines": ["a", "b"]}
    ...ignoring

    TASK [stat] ********************************************************************
    skipping: [gpu002]

    TASK [shell] *******************************************************************
    fatal: [gpu002]: FAILED! => {"censored": "the output has been hidden due to the fact that 'no_log: true' was specified for this result", "changed": false}
    rebooting: [gpu001] => ECC
    rebooted: [gpu001] => 62 s

    PLAY [Bring up training nodes] *************************************************
    fatal: [gpu003]: UNREACHABLE! => {"changed": false, "msg": "connection refused", "unreachable": true}

    PLAY RECAP *********************************************************************
    gpu001                     : ok=5    changed=2    unreachable=0    failed=0    skipped=0    rescued=0    ignored=1
    gpu002                     : ok=2    changed=0    unreachable=0    failed=1    skipped=1    rescued=0    ignored=1
    gpu003                     : ok=0    changed=0    unreachable=1    failed=0    skipped=0    rescued=0    ignored=0
    "#);
}

#[test]
fn a_task_has_one_heading_whatever_its_name_is_on_each_host() {
    let hosts = ["a", "b"].map(str::to_owned);
    let mut s = Stream::new();
    s.started(Verb::Run, &hosts).play(&hosts, &[("2", 2)]);
    for host in &hosts {
        let report = sample::report("debug", 3, TaskStatus::Ok);
        s.task(
            host,
            TaskReport {
                op_id: OpId::new(PlayIndex(0), "1", host.as_str()),
                task: format!("On {host}"),
                ..report
            },
        );
    }
    let text = told(&s.events, 0, false);
    assert_eq!((text.matches("TASK [On a]").count(), text.matches("TASK [On b]").count()), (1, 0), "{text}");
}

#[test]
fn a_loop_that_fails_behind_its_items_is_told_too() {
    let mut s = Stream::new();
    s.started(Verb::Run, &["a".to_owned()]).play(&["a".to_owned()], &[("1", 1)]);
    s.task("a", TaskReport { item: Some("1".to_owned()), ..command(7, TaskStatus::Changed) });
    s.task("a", sample::failed("command", 7, "no handler is called `h1`"));
    let text = told(&s.events, 0, false);
    let line = r#"fatal: [a]: FAILED! => {"changed": false, "msg": "The requested handler 'h1' was not found in either the main handlers list nor in the listening handlers list"}"#;
    assert!(text.ends_with(line), "{text}");
}

#[test]
fn results_and_places_are_shown_on_demand() {
    let text = told(&run().events, 2, false);
    for line in [
        r#"changed: [gpu001] => {"changed": true}"#,
        "task path: playbooks/bringup.yaml:5",
        r#"changed: [gpu001] => (item=1) => {"changed": true, "cmd": ["x", "é"], "rc": 0, "stdout": "a\nb", "stdout_lines": ["a", "b"]}"#,
    ] {
        assert!(text.lines().any(|known| known == line), "{line}\n{text}");
    }
}

#[test]
fn a_reading_is_told_task_by_task() {
    let hosts = ["a", "b"].map(str::to_owned);
    let mut s = Stream::new();
    s.started(Verb::Plan, &hosts).play(&hosts, &[("2", 2)]);
    for host in ["a", "b"] {
        s.task(host, sample::swappiness(4));
        if host == "b" {
            s.task(host, sample::report("stat", 5, TaskStatus::Ok));
        }
        s.task(host, sample::report("command", 6, TaskStatus::Possible));
    }
    s.end("a", NodeState::Drift, None).end("b", NodeState::Drift, None).finished(0, "");
    insta::assert_snapshot!(told(&s.events, 0, true), @r"

    PLAY [Bring up training nodes] *************************************************

    TASK [sysctl] ******************************************************************
    vm.swappiness: 60 -> 10
    changed: [a]
    vm.swappiness: 60 -> 10
    changed: [b]

    TASK [stat] ********************************************************************
    ok: [b]

    TASK [command] *****************************************************************
    possible: [a]
    possible: [b]

    PLAY RECAP *********************************************************************
    a                          : ok=2    changed=1    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0
    b                          : ok=3    changed=1    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0
    ");
}

#[test]
fn ad_hoc_answers_are_those_of_ansible() {
    let style = Style::default();
    let ok = command(1, TaskStatus::Changed);
    let bad = TaskReport { message: Some("non-zero return code".into()), ..command(1, TaskStatus::Failed) };
    let stat = TaskReport {
        data: data(r#"{"stat": {"exists": false, "paths": []}}"#),
        ..sample::report("stat", 1, TaskStatus::Ok)
    };
    let skipped = sample::report("command", 1, TaskStatus::Skipped);
    let mut out = String::new();
    for one_line in [false, true] {
        for report in [&ok, &bad, &stat, &skipped] {
            out.push_str(&ad_hoc("n1", report, one_line, false, &style));
        }
        out.push_str(&ad_hoc_loss("n2", NodeState::Unreachable, "no route", one_line, &style));
    }
    insta::assert_snapshot!(out, @r#"
    n1 | CHANGED | rc=0 >>
    a
    b
    n1 | FAILED | rc=1 >>
    a
    b
    non-zero return code
    n1 | SUCCESS => {
        "changed": false,
        "stat": {
            "exists": false,
            "paths": []
        }
    }
    n1 | SKIPPED
    n2 | UNREACHABLE! => {
        "changed": false,
        "msg": "no route",
        "unreachable": true
    }
    n1 | CHANGED | rc=0 | (stdout) a\nb
    n1 | FAILED | rc=1 | (stdout) a\nb
    n1 | SUCCESS => {"changed": false, "stat": {"exists": false, "paths": []}}
    n1 | SKIPPED
    n2 | UNREACHABLE! => {"changed": false, "msg": "no route", "unreachable": true}
    "#);
}

#[test]
fn the_proof_at_the_end_is_told_where_it_fails() {
    let mut s = Stream::new();
    s.started(Verb::Run, &["a".to_owned()]).play(&["a".to_owned()], &[("1", 1)]);
    s.task("a", TaskReport { phase: Phase::Verify, ..sample::failed("sysctl", 4, "unconverged") });
    assert!(
        told(&s.events, 0, false)
            .ends_with(r#"fatal: [a]: FAILED! => {"changed": false, "msg": "unconverged"}"#)
    );
}

//! Whole plays on a scripted or a fake node.

use std::sync::Arc;

use gpufleet_protocol::op::GpuTask;
use gpufleet_protocol::{Disruption, NodeOp};
use serde_json::json;

use super::OpOutcomeSketch::{Changed, Command, Failed, Ok};
use super::fake::FakeNode;
use super::{
    Action, Copied, EndState, Fed, Mode, Phase, RunAs, Status, Step, Story, Work, cursor, run, story,
};
use crate::index::PlayIndex;

const BRINGUP: &str = r#"
- hosts: all
  tasks:
    - {name: mig, gpu_mig: {mode: enabled}}
    - {name: ecc, gpu_ecc: {mode: enabled}}
    - {name: power, gpu_power: {limit_watts: 600}}
    - {name: swap, sysctl: {name: vm.swappiness, value: 10}}
    - {name: cmdline, kernel_cmdline: {add: [iommu=pt]}}
    - {name: reboot, reboot: {when: required}}
    - {name: after, sysctl: {name: vm.overcommit_memory, value: 1}}
"#;

fn on(node: &mut FakeNode, text: &str, mode: Mode) -> Story {
    run(&mut cursor(text, json!({}), mode), |action| node.answer(action))
}

#[test]
fn a_reboot_is_followed_by_what_it_lost() {
    let mut node = FakeNode::new();
    let story = on(&mut node, BRINGUP, Mode::Apply);
    insta::assert_snapshot!(story.lines(), @"
    mig: changed <MIG disabled -> enabled clients>
    ecc: changed <ECC disabled -> enabled reboot>
    power: changed <power limit 700 W -> 600 W live>
    swap: changed <vm.swappiness - -> 10 live>
    cmdline: changed <kernel command line - -> iommu=pt reboot>
    reboot: changed <node running -> rebooted reboot>
    mig: changed (reassert) <MIG disabled -> enabled clients>
    power: changed (reassert) <power limit 700 W -> 600 W live>
    after: changed <vm.overcommit_memory - -> 1 live>
    end: Done
    ");
    insta::assert_snapshot!(story.asked.join("\n"), @"
    0/tasks.0@n1
    0/tasks.3@n1
    0/tasks.4@n1
    0/tasks.5@n1
    0/tasks.0+reassert@n1
    0/tasks.3+reassert@n1
    0/tasks.4+reassert@n1
    0/tasks.6@n1
    0/tasks.0+verify@n1
    0/tasks.3+verify@n1
    0/tasks.4+verify@n1
    0/tasks.6+verify@n1
    ");
    assert_eq!(story.end.state, EndState::Done);
    assert!(node.real.mig && node.real.ecc && node.real.power_w == 600);
    assert_eq!(node.reboots, 1);

    let setters = node.setters;
    let again = on(&mut node, BRINGUP, Mode::Apply);
    assert_eq!((node.setters, node.reboots), (setters, 1));
    assert_eq!(again.counts().changed, 0);
    assert!(again.reports.iter().all(|report| report.status == Status::Ok), "{}", again.lines());
    assert_eq!(again.asked.len(), 4, "nothing is verified where nothing was applied");
}

#[test]
fn a_prediction_tells_exactly_what_the_run_does() {
    for resets in [false, true] {
        let mut node = FakeNode { resets, ..FakeNode::new() };
        let changes = |story: &Story| {
            let mut all: Vec<String> = story
                .reports
                .iter()
                .flat_map(|report| {
                    report
                        .changes
                        .iter()
                        .map(|change| format!("{} {change} {}", report.task, change.disruption))
                })
                .collect();
            all.sort();
            all
        };
        let before = node.real.clone();
        let predicted = on(&mut node, BRINGUP, Mode::Predict);
        assert_eq!(node.real, before);
        node.setters = 0;
        let applied = on(&mut node, BRINGUP, Mode::Apply);
        assert_eq!(changes(&predicted), changes(&applied));
        assert!(changes(&applied).len() >= 8);
    }
}

#[test]
fn what_waits_for_a_reboot_is_not_done() {
    let text = "- hosts: all\n  tasks:\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n";
    let story = on(&mut FakeNode::new(), text, Mode::Apply);
    let EndState::PendingActivation { class, reasons, next } = &story.end.state else {
        panic!("{:?}", story.end.state)
    };
    assert_eq!((*class, reasons.as_slice()), (Disruption::Reboot, &["ECC is pending".to_owned()][..]));
    insta::assert_snapshot!(next, @r#"pending reboot: add `reboot: {when: required}` behind the tasks of the play "all""#);
}

#[test]
fn a_reset_is_followed_by_earlier_groups() {
    let text = r#"
- hosts: all
  tasks:
    - {name: power, gpu_power: {limit_watts: 600}}
    - {name: say, debug: {msg: between}}
    - {name: ecc, gpu_ecc: {mode: enabled}}
"#;
    let mut node = FakeNode { resets: true, ..FakeNode::new() };
    let story = on(&mut node, text, Mode::Apply);
    insta::assert_snapshot!(story.lines(), @r#"
    power: changed <power limit 700 W -> 600 W live>
    say: ok "between"
    ecc: changed <ECC disabled -> enabled reboot>
    power: changed (reassert) <power limit 700 W -> 600 W live>
    end: Done
    "#);
    assert_eq!(node.real.power_w, 600);
}

#[test]
fn a_group_is_one_operation_with_a_result_each() {
    let text = r#"
- hosts: all
  vars: {limits: [{gpu: 0, w: 500}, {gpu: 1, w: 500}]}
  tasks:
    - {name: power, gpu_power: {limit_watts: "{{ item.w }}", gpus: "{{ item.gpu }}"}, loop: "{{ limits }}", loop_control: {label: "gpu {{ item.gpu }}"}, register: p, notify: tell}
    - {name: ecc, gpu_ecc: {mode: enabled}, when: false}
    - {name: mig, gpu_mig: {mode: enabled}, changed_when: false}
    - {name: result, debug: {msg: "{{ p.results | length }} {{ p is changed }}"}}
  handlers:
    - {name: tell, debug: {msg: told}}
"#;
    let mut seen = Vec::new();
    let mut node = FakeNode::new();
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        if let (Work::Node { op, .. }, Phase::Declared) = (&action.work, action.phase())
            && let NodeOp::GpuGroup(group) = &**op
        {
            seen.push(group.members.len());
        }
        node.answer(action)
    });
    assert_eq!(seen, [3]);
    insta::assert_snapshot!(story.lines(), @r#"
    power: changed [gpu 0] <power limit 700 W -> 500 W live>
    power: ok [gpu 1]
    power: changed
    ecc: skipped "the condition does not hold"
    mig: ok <MIG disabled -> enabled clients>
    result: ok "2 True"
    tell: ok "told"
    end: Done
    "#);
}

#[test]
fn deferring_is_handed_to_the_group() {
    let text = "- hosts: all\n  tasks:\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: reboot, reboot: {}}\n";
    let mut node = FakeNode { resets: true, ..FakeNode::new() };
    let mut cursor = cursor(text, json!({}), Mode::Apply);
    cursor.set_defer_to_reboot(true);
    let story = run(&mut cursor, |action| node.answer(action));
    assert_eq!((node.reboots, story.end.state), (1, EndState::Done));
}

/// The reboot that groups leave their activation to is over for what comes after it.
#[test]
fn what_comes_after_the_reboot_is_deferred_no_more() {
    let text = "
- hosts: all
  tasks:
    - {name: ecc, gpu_ecc: {mode: enabled}}
    - {name: reboot, reboot: {when: required}}
    - {name: off, gpu_ecc: {mode: disabled}}
";
    let mut node = FakeNode { resets: true, ..FakeNode::new() };
    let mut cursor = cursor(text, json!({}), Mode::Apply);
    cursor.set_defer_to_reboot(true);
    let story = run(&mut cursor, |action| node.answer(action));
    assert_eq!((node.reboots, story.end.state.clone()), (1, EndState::Done), "{}", story.lines());
}

#[test]
fn results_have_ansibles_shape() {
    let text = r#"
- hosts: all
  tasks:
    - {name: run, command: uptime, register: r, changed_when: "r.rc == 3", failed_when: "'bad' in r.stdout"}
    - {name: shape, assert: {that: [r is succeeded, not r.changed, r.rc == 0, "r.stdout_lines == ['a', 'b']"]}}
    - {name: skipped, command: uptime, when: false, register: s}
    - {name: skip shape, assert: {that: [s is skipped, s.skipped, not s.changed]}}
    - {name: bad, command: uptime, register: b, ignore_errors: true}
    - {name: bad shape, assert: {that: [b is failed, b.rc == 7, b.msg is search('non-zero')]}}
    - {name: accepted, command: uptime, register: b2, failed_when: b2.rc > 7}
    - {name: accepted shape, assert: {that: [b2 is succeeded, b2 is changed]}}
    - {name: many, command: "echo {{ item }}", loop: [x, y], register: m}
    - {name: loop shape, assert: {that: [m.results | length == 2, "m.results | map(attribute='rc') | list == [0, 0]"]}}
    - {name: nothing, command: a, loop: [], register: n}
    - {name: empty shape, assert: {that: [n is skipped]}}
    - {name: fact, set_fact: {a: "{{ r.rc + 1 }}", b: [1]}}
    - {name: fact shape, assert: {that: [a == 1, "b == [1]"]}}
"#;
    let story = story(
        text,
        &[
            ("run", Command(0, "a\nb")),
            ("bad", Command(7, "")),
            ("accepted", Command(7, "")),
            ("many", Command(0, "")),
        ],
    );
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    let counts = story.counts();
    assert_eq!(
        (counts.ok, counts.changed, counts.skipped, counts.ignored),
        (12, 2, 2, 1),
        "{}",
        story.lines()
    );
}

#[test]
fn handlers_run_once_in_their_own_order() {
    let text = r#"
- hosts: all
  tasks:
    - {name: one, command: a, notify: [second, topic]}
    - {name: two, command: a, notify: first}
    - {name: quiet, command: a, changed_when: false, notify: never}
    - meta: flush_handlers
    - {name: three, command: a, notify: first}
  handlers:
    - {name: first, command: a}
    - {name: never, command: a}
    - {name: listener, command: a, listen: topic, notify: first}
    - {name: second, command: a}
"#;
    let answers: Vec<_> = ["one", "two", "quiet", "three", "first", "listener", "second"]
        .into_iter()
        .map(|name| (name, Changed))
        .collect();
    let story = story(text, &answers);
    let order: Vec<_> = story.reports.iter().map(|report| report.task.as_str()).collect();
    assert_eq!(order, ["one", "two", "quiet", "first", "listener", "second", "three", "first"]);
    let mut ids = story.asked.clone();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), story.asked.len(), "every operation has an id of its own");
}

#[test]
fn predictions_say_what_hangs_on_a_command() {
    let text = r#"
- hosts: all
  tasks:
    - {name: ask, command: uname -r, register: r}
    - {name: maybe, sysctl: {name: a.b, value: 1}, when: r.rc == 0, notify: h}
    - {name: rendered, sysctl: {name: a.b, value: "{{ r.stdout }}"}}
    - {name: settled, sysctl: {name: a.c, value: 1}, when: "r is defined or true"}
    - {name: never, sysctl: {name: a.b, value: 1}, when: [false, r.rc == 0]}
    - {name: fact, set_fact: {x: "{{ r.stdout }}"}}
    - {name: rests, sysctl: {name: a.d, value: "{{ x }}"}}
    - {name: each, debug: {msg: "{{ item }}"}, loop: "{{ r.stdout_lines }}"}
    - {name: reboot, reboot: {when: required}}
  handlers:
    - {name: h, service: {name: x, state: restarted}}
"#;
    let mut node = FakeNode::new();
    let story = on(&mut node, text, Mode::Predict);
    insta::assert_snapshot!(story.lines(), @r#"
    ask: possible "only a run executes it"
    maybe: possible "hangs on the result of a task that a prediction does not run"
    rendered: possible "hangs on the result of a task that a prediction does not run"
    settled: possible "hangs on the result of a task that a prediction does not run"
    never: skipped "the condition does not hold"
    fact: ok
    rests: possible "hangs on the result of a task that a prediction does not run"
    each: possible "has a loop that hangs on the result of another task"
    reboot: ok "nothing waits for a reboot"
    h: possible "may be notified"
    end: Done
    "#);
    assert_eq!(story.end.state, EndState::Done);
    assert_eq!(story.asked, Vec::<String>::new());
}

#[test]
fn files_and_templates_become_content() {
    let text = r#"
- hosts: all
  become: true
  environment: {A: "1", B: "{{ limit }}"}
  vars: {limit: 5}
  tasks:
    - {name: motd, copy: {src: motd, dest: /etc/}, become_user: nobody}
    - {name: limits, template: {src: limits.j2, dest: /etc/limits, mode: "0644"}, environment: {B: "2"}}
    - {name: inline, copy: {content: "x {{ limit }}", dest: /etc/x, owner: "{{ nobody | default(omit) }}"}, become: false}
    - {name: script, script: "check.sh --fast 'a b'"}
"#;
    let mut asked: Vec<Action> = Vec::new();
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        asked.push(action.clone());
        Ok.fed(action)
    });
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    let put = |index: usize| match &asked[index].work {
        Work::Node { op, blobs } => match &**op {
            NodeOp::PutFile(put) => (put.clone(), String::from_utf8_lossy(&blobs[0].bytes).into_owned()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let (motd, content) = put(0);
    assert_eq!((motd.name.as_str(), content.as_str()), ("motd", "hello\n"));
    assert_eq!(
        motd.blob.expect("blob").sha256,
        "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
    );
    assert_eq!(asked[0].run_as, RunAs::User("nobody".to_owned()));
    assert_eq!(put(1).1, "limit=5\n");
    assert_eq!(asked[1].run_as, RunAs::Root);
    assert_eq!(asked[1].environment, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())]);
    assert_eq!((put(2).1, put(2).0.owner), ("x 5".to_owned(), None));
    assert_eq!(asked[2].run_as, RunAs::Login);
    assert!(
        matches!(&asked[3].work, Work::Node { op, .. } if matches!(&**op, NodeOp::Exec(exec) if exec.script.is_some()))
    );
}

#[test]
fn precedence_is_ansibles() {
    let text = r#"
- hosts: all
  vars: {a: play, b: play, c: play, d: play}
  tasks:
    - block:
        - {name: see, debug: {msg: "{{ z }} {{ a }} {{ b }} {{ c }} {{ d }} {{ item }}"}, vars: {b: task}, loop: [i]}
      vars: {a: block, b: block, d: block}
    - {name: set, set_fact: {b: fact, a: fact}}
    - {name: see, debug: {msg: "{{ a }} {{ b }} {{ d }}"}, vars: {b: task}}
"#;
    let mut context =
        super::HostContext::clone(&super::context(json!({"z": "host", "a": "host", "item": "host"})));
    context.extra = Arc::new([("d", crate::template::Value::str("extra"))].into_iter().collect());
    let mut cursor = super::Cursor::new(
        &super::program(text),
        PlayIndex(0),
        Arc::new(context),
        super::HostVars::default(),
        Mode::Apply,
        Arc::default(),
        super::files(),
    )
    .expect("a play");
    let story = run(&mut cursor, |action| Ok.fed(action));
    let said: Vec<_> = story.reports.iter().filter_map(|report| report.message.clone()).collect();
    assert_eq!(said, ["host block task play extra i", "fact fact extra"]);
}

#[test]
fn linear_plays_wait_and_latches_are_shared() {
    let text = "- hosts: all\n  tasks:\n    - {name: one, command: a, run_once: true, register: r}\n    - {name: two, debug: {msg: '{{ r.stdout }}'}}\n";
    let mut first = cursor(text, json!({}), Mode::Apply);
    assert!(matches!(first.next(), Step::Barrier { .. }));
    let Step::Latch { key } = first.next() else { panic!("no latch") };
    assert_eq!(&*key, "tasks.0");
    assert!(matches!(first.next(), Step::Latch { .. }), "asked again, the same answer");
    first.feed(Fed::Latch(None));
    assert_eq!(first.latch_result(), None, "nothing ran yet");
    let Step::Run(action) = first.next() else { panic!("no run") };
    first.feed(Command(0, "out").fed(&action));
    let copied = first.latch_result().expect("a result");
    let mut second = cursor(text, json!({}), Mode::Apply);
    second.next();
    second.next();
    second.feed(Fed::Latch(Some(copied)));
    let story = run(&mut second, |action| panic!("{action:?}"));
    assert_eq!(super::line(&story.reports[0]), "two: ok \"out\"");
    let mut third = cursor(text, json!({}), Mode::Apply);
    third.next();
    third.next();
    third.feed(Fed::Latch(Some(Copied { failed: true, ..Copied::default() })));
    let Step::End(end) = third.next() else { panic!("no end") };
    assert!(end.fatal && matches!(end.state, EndState::Failed { .. }));
}

#[test]
fn a_latch_hands_on_whether_it_failed() {
    let failed = |more: &str| {
        let text = format!("- hosts: all\n  tasks:\n    - {{name: one, command: a, run_once: true{more}}}\n");
        let mut first = cursor(&text, json!({}), Mode::Apply);
        first.next();
        first.next();
        first.feed(Fed::Latch(None));
        for _ in 0..2 {
            if let Step::Run(action) = first.next() {
                first.feed(Failed("no").fed(&action));
            }
        }
        first.latch_result().expect("a result").failed
    };
    assert!(failed("") && !failed(", ignore_errors: true"));
    assert!(failed(", loop: [1, 2]") && !failed(", loop: [1, 2], ignore_errors: true"));
}

#[test]
fn a_latch_hands_on_what_a_prediction_does_not_know() {
    let text = "- hosts: all\n  tasks:\n    - {name: one, command: a, run_once: true, register: r}\n    - {name: two, sysctl: {name: a, value: '{{ r.stdout }}'}}\n";
    let mut first = cursor(text, json!({}), Mode::Predict);
    first.next();
    first.next();
    first.feed(Fed::Latch(None));
    let Step::Report(_) = first.next() else { panic!("no report") };
    let copied = first.latch_result().expect("a result");
    assert_eq!(copied.unknown, ["r"]);
    let mut second = cursor(text, json!({}), Mode::Predict);
    second.next();
    second.next();
    second.feed(Fed::Latch(Some(copied)));
    let story = run(&mut second, |action| panic!("{action:?}"));
    assert_eq!(story.reports[0].status, Status::Possible);
}

#[test]
fn ending_early() {
    let text = |action: &str| {
        format!(
            "- hosts: all\n  tasks:\n    - {{name: one, command: a}}\n    - meta: {action}\n    - {{name: two, command: a}}\n  post_tasks:\n    - {{name: three, command: a}}\n"
        )
    };
    let host = story(&text("end_host"), &[]);
    assert_eq!((host.reports.len(), host.end.end_play, host.end.state), (1, false, EndState::Done));
    assert!(story(&text("end_play"), &[]).end.end_play);
    assert_eq!(story(&text("noop"), &[]).reports.len(), 3);
}

#[test]
fn facts_come_first() {
    use gpufleet_protocol::facts::{Facts, OsFacts};
    use gpufleet_protocol::{OpOutcome, OpStatus};
    let text = "- hosts: all\n  gather_facts: true\n  tasks:\n    - {name: see, debug: {msg: '{{ ansible_distribution }} {{ ansible_facts.os_family }} {{ gpufleet_facts.cpus }}'}}\n    - gpu_power: {limit_watts: 1}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Predict), |action| match &action.work {
        Work::Node { op, .. } if matches!(&**op, NodeOp::Facts(request) if request.gpus) => {
            let os = OsFacts { id: "ubuntu".to_owned(), version: "22.04".to_owned(), ..OsFacts::default() };
            let facts = Facts { os, cpus: 4, ..Facts::default() };
            let mut outcome = OpOutcome::new(OpStatus::Ok);
            outcome.facts = Some(Box::new(facts));
            Fed::Outcome(Box::new(outcome))
        }
        _ => Ok.fed(action),
    });
    assert_eq!(super::line(&story.reports[1]), "see: ok \"Ubuntu Debian 4\"");
    assert_eq!(story.end.vars.facts.get("ansible_processor_vcpus").map(|v| v.to_json()), Some(json!(4)));
}

#[test]
fn what_could_not_be_read_is_remembered() {
    use gpufleet_protocol::{OpOutcome, OpStatus};
    let text = "- hosts: all\n  tasks:\n    - {name: power, gpu_power: {limit_watts: 600}}\n    - {name: swap, sysctl: {name: a, value: 1}}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        let unknown = OpStatus::Unknown { reason: "NVML did not answer".to_owned() };
        let mut outcome = OpOutcome::new(OpStatus::Ok);
        if let Work::Node { op, .. } = &action.work
            && let NodeOp::GpuGroup(group) = &**op
        {
            outcome.members = group.members.iter().map(|_| OpOutcome::new(unknown.clone())).collect();
        }
        Fed::Outcome(Box::new(outcome))
    });
    insta::assert_snapshot!(story.lines(), @r#"
    power: unknown "NVML did not answer"
    swap: ok
    end: Done
    "#);
    assert_eq!(story.end.unknown, ["power: NVML did not answer"]);
}

#[test]
fn later_declarations_replace_earlier_ones() {
    let text = r#"
- hosts: all
  tasks:
    - {name: a, sysctl: {name: x.y, value: 1}}
    - {name: p, gpu_power: {limit_watts: 500}}
    - {name: b, sysctl: {name: x.y, value: 2}}
    - {name: q, gpu_power: {limit_watts: 600}}
    - {name: f, copy: {content: one, dest: /f}}
    - {name: g, copy: {content: two, dest: /f}}
"#;
    let mut node = FakeNode::new();
    let story = on(&mut node, text, Mode::Apply);
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    assert_eq!(story.asked.iter().filter(|id| id.contains("+verify")).count(), 3, "{:?}", story.asked);
}

#[test]
fn a_gpu_handler_is_a_group_of_one() {
    let text = "- hosts: all\n  tasks:\n    - {name: one, sysctl: {name: a, value: 1}, notify: limit}\n  handlers:\n    - {name: limit, gpu_power: {limit_watts: 600}}\n";
    let mut node = FakeNode::new();
    let mut powers = 0;
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        if let Work::Node { op, .. } = &action.work
            && let NodeOp::GpuGroup(group) = &**op
        {
            powers += usize::from(matches!(group.members[0].task, GpuTask::GpuPower(_)));
        }
        node.answer(action)
    });
    assert_eq!((powers, node.real.power_w), (2, 600), "{}", story.lines());
}

#[test]
fn a_playbook_as_people_write_them() {
    let text = r##"
- name: x
  hosts: gpu
  gather_facts: yes
  tasks:
    - name: chrony
      ansible.builtin.service:
        name: chrony
        state: started
        enabled: yes
      when:
        - ansible_facts['os_family'] == "Debian"
        - ansible_facts.os_family is defined and ansible_facts['nope']['x'] | default('y') == 'y'
    - name: lines
      lineinfile: path=/etc/hosts line="127.0.0.1 localhost" state=present mode=0644
    - name: smi
      command: nvidia-smi -L
      register: smi
      changed_when: false
      failed_when: smi.rc not in [0, 6]
    - name: say
      debug:
        msg: "{{ smi.stdout_lines | map('regex_replace', '^GPU ([0-9]+).*', '\\1') | list }}"
      when: smi.rc == 0 and smi.stdout_lines | length > 0
    - name: conf
      copy:
        dest: /etc/foo.conf
        content: |
          # all hosts
          {% for h in groups['all'] | sort %}
          host {{ h }} {{ hostvars[h].ansible_host | default(h) }}
          {% endfor %}
        mode: 0644
    - name: sure
      assert:
        that:
          - smi is succeeded
          - "'GPU' in smi.stdout"
        fail_msg: "bad {{ inventory_hostname }}"
"##;
    use gpufleet_protocol::facts::{Facts, OsFacts};
    use gpufleet_protocol::{OpOutcome, OpStatus};
    let vars =
        json!({"groups": {"all": ["n2", "n1"]}, "hostvars": {"n1": {"ansible_host": "10.0.0.1"}, "n2": {}}});
    let mut content = String::new();
    let story = run(&mut cursor(text, vars, Mode::Apply), |action| match &action.work {
        Work::Node { op, .. } if matches!(&**op, NodeOp::Facts(_)) => {
            let os = OsFacts { id: "debian".to_owned(), ..OsFacts::default() };
            let mut outcome = OpOutcome::new(OpStatus::Ok);
            outcome.facts = Some(Box::new(Facts { os, ..Facts::default() }));
            Fed::Outcome(Box::new(outcome))
        }
        Work::Node { blobs, .. } if action.task == "conf" => {
            content = String::from_utf8_lossy(&blobs[0].bytes).into_owned();
            Ok.fed(action)
        }
        _ if action.task == "smi" => Command(0, "GPU 0: H100\nGPU 1: H100").fed(action),
        _ => Ok.fed(action),
    });
    insta::assert_snapshot!(story.lines(), @r#"
    gathering facts: ok
    chrony: ok
    lines: ok
    smi: ok
    say: ok "["0","1"]"
    conf: ok
    sure: ok "All assertions passed"
    end: Done
    "#);
    insta::assert_snapshot!(content, @"
    # all hosts
    host n1 10.0.0.1
    host n2 n2
    ");
}

#[test]
fn a_person_is_asked_once_for_each_task() {
    let text = "- hosts: all\n  tasks:\n    - {name: one, command: a, loop: [1, 2], notify: told}\n    - {name: two, debug: {msg: x}}\n    \
                - {name: mig, gpu_mig: {mode: enabled}}\n    - {name: ecc, gpu_ecc: {mode: enabled}}\n    - {name: three, command: b}\n  \
                handlers:\n    - {name: told, command: c}\n";
    let play = |no: &[&str]| {
        let mut cursor = cursor(text, json!({}), Mode::Apply);
        cursor.set_stepping(true);
        let (mut asked, mut ran) = (Vec::new(), Vec::new());
        loop {
            let reports = match cursor.next() {
                Step::Ask { task, title } => {
                    assert!(matches!(cursor.next(), Step::Ask { .. }), "asked again, the same question");
                    asked.push(format!("{task} {title}"));
                    cursor.feed(Fed::Asked { run: !no.contains(&title.as_str()) })
                }
                Step::Run(action) => {
                    let fed = if action.kind == "command" {
                        Command(0, "").fed(&action)
                    } else {
                        Failed("no").fed(&action)
                    };
                    cursor.feed(fed)
                }
                Step::Report(reports) => reports,
                Step::Latch { .. } => cursor.feed(Fed::Latch(None)),
                Step::Barrier { .. } | Step::SectionEnd { .. } => Vec::new(),
                Step::End(_) => return (asked.join("; "), ran.join("; ")),
            };
            ran.extend(reports.iter().filter(|report| report.item.is_none()).map(super::line));
        }
    };
    let (asked, ran) = play(&["two", "mig, ecc"]);
    insta::assert_snapshot!(asked, @"tasks.0 one; tasks.1 two; tasks.2 mig, ecc; tasks.4 three; handlers.0 told");
    insta::assert_snapshot!(ran, @"one: changed; three: changed; told: changed");
    let (asked, ran) = play(&["one", "mig, ecc"]);
    insta::assert_snapshot!(asked, @"tasks.0 one; tasks.1 two; tasks.2 mig, ecc; tasks.4 three");
    insta::assert_snapshot!(ran, @r#"two: ok "x"; three: changed"#);
}

//! What `no_log` and the vault keep from every screen.

use gpufleet_protocol::NodeOp;
use serde_json::json;

use super::OpOutcomeSketch::Command;
use super::fake::FakeNode;
use super::{EndState, Fed, Mode, Work, cursor, run, story};

#[test]
fn no_log_hides_everything() {
    let text = "- hosts: all\n  vars: {secret: hunter2}\n  tasks:\n    - {name: t, sysctl: {name: x.y, value: '{{ secret }}'}, no_log: true, loop: ['{{ secret }}']}\n    - {name: u, command: 'echo {{ secret }}', no_log: true}\n    - {name: v, fail: {msg: '{{ secret }}'}, no_log: true}\n";
    let mut node = FakeNode::new();
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| match action.task.as_str() {
        "u" => Command(0, "hunter2").fed(action),
        _ => node.answer(action),
    });
    let shown = serde_json::to_string(&story.reports).expect("json") + &format!("{:?}", story.end);
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(story.reports.len(), 4);
}

/// Its output is asked for later, by the id that it registered.
#[test]
fn a_hidden_job_stays_hidden_when_it_is_asked_for() {
    let text = "- hosts: all\n  tasks:\n    - {name: t, command: 'echo hunter2', no_log: true, async: 9, poll: 0, register: job}\n    - {name: u, async_status: {jid: '{{ job.ansible_job_id }}'}, register: out}\n    - {name: v, debug: {msg: '{{ out.stdout }}'}}\n";
    let story = run(&mut cursor(text, json!({}), Mode::Apply), |action| {
        let mut fed = Command(0, "hunter2").fed(action);
        if let Fed::Outcome(outcome) = &mut fed {
            outcome.data.insert("ansible_job_id".to_owned(), json!("j1.2"));
        }
        fed
    });
    let shown = serde_json::to_string(&story.reports).expect("json") + &format!("{:?}", story.end);
    assert!(!shown.contains("hunter2"), "{shown}");
    assert_eq!(story.reports.len(), 3);
}

#[test]
fn what_comes_from_a_vault_is_hidden_wherever_it_goes() {
    let text = r#"
- hosts: all
  vars: {url: 'db://{{ vaulted }}@host'}
  tasks:
    - {name: "t {{ vaulted }}", sysctl: {name: x.y, value: '{{ vaulted }}'}}
    - {name: each, sysctl: {name: x.y, value: 1}, loop: ['{{ url }}']}
    - {name: u, command: 'echo {{ url }}', register: out}
    - {name: v, command: 'echo {{ out.stdout }}'}
    - {name: w, set_fact: {copy: '{{ nested.deep | b64encode }}'}}
    - {name: s, debug: {msg: '{{ copy | b64decode }}'}}
    - {name: f, copy: {content: 'pw={{ vaulted }}', dest: /f}}
    - {name: p, fail: {msg: '{{ url }}'}, ignore_errors: true}
    - {name: q, assert: {that: vaulted == 'x'}, ignore_errors: true}
    - {name: open, debug: {msg: 'plain'}, when: vaulted is defined}
    - {name: g, gpu_power: {limit_watts: '{{ watts }}'}}
"#;
    let vars = json!({
        "vaulted": {"__gpufleet_secret": "hunter2"},
        "nested": {"deep": {"__gpufleet_secret": "hunter2"}},
        "watts": {"__gpufleet_secret": 601},
    });
    let mut node = FakeNode::new();
    let mut hidden = Vec::new();
    let story = run(&mut cursor(text, vars, Mode::Apply), |action| {
        if action.no_log {
            hidden.push(action.task.clone());
        }
        if let Work::Node { op, .. } = &action.work
            && let NodeOp::PutFile(put) = &**op
        {
            assert!(put.secret && put.preview.is_none());
        }
        match action.task.as_str() {
            "u" | "v" => Command(0, "hunter2").fed(action),
            _ => node.answer(action),
        }
    });
    assert_eq!(story.end.state, EndState::Done, "{}", story.lines());
    let shown = serde_json::to_string(&story.reports).expect("json") + &format!("{:?}", story.end);
    assert!(!shown.contains("hunter2") && !shown.contains("601"), "{shown}");
    assert!(shown.contains("plain"), "{shown}");
    for name in ["t {{ vaulted }}", "each", "u", "v", "f", "g"] {
        assert!(hidden.iter().any(|task| task == name), "{name}: {hidden:?}");
    }
}

#[test]
fn what_no_log_hides_stays_hidden_when_until_gives_up() {
    let text = r#"
- hosts: all
  gather_facts: false
  tasks:
    - block:
        - {name: read, command: /bin/read, no_log: true, register: r, until: "'x' in r.stdout", retries: 1, delay: 0}
      rescue:
        - {name: saved, debug: {msg: "{{ ansible_failed_result }}"}}
    - {name: odd, command: /bin/odd, no_log: true, register: o, until: "o.stdout | from_json", retries: 1, delay: 0, ignore_errors: true}
"#;
    let said = Command(0, "planted");
    let story = story(text, &[("read", said.clone()), ("odd", said)]);
    assert_eq!(story.end.state, EndState::Done);
    assert!(!format!("{:?}", story.reports).contains("planted"), "{}", story.lines());
}

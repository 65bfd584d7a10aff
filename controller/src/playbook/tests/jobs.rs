//! `async` and `poll` as people write them.

use super::*;

#[test]
fn what_cannot_go_on_by_itself_is_told_at_once() {
    let text = r"- hosts: all
  tasks:
    - {debug: {msg: x}, async: 10}
    - {reboot: {}, async: 10}
    - {gpu_ecc: {mode: enabled}, async: 10}
    - {script: a.sh, async: 10}
    - {raw: uptime, async: 10}
    - {copy: {content: x, dest: /x}, async: 10}
    - {async_status: {jid: x}, async: 10}
    - {debug: {msg: none}, async: 0}
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn seconds_are_whole_and_not_below_zero() {
    let text = r"- hosts: all
  tasks:
    - {command: a, async: soon}
    - {command: a, async: -1}
    - {command: a, async: 10, poll: 1.5}
    - {command: a, async: '{{ nobody }}'}
    - block: [{command: a}]
      async: 10
";
    insta::assert_snapshot!(errors_of(text), @"");
}

#[test]
fn templates_and_handlers_take_them() {
    let text = r"- hosts: all
  vars: {limit: 10}
  tasks:
    - {command: a, async: '{{ limit }}', poll: '{{ limit // 5 }}'}
    - {shell: b, async: '10', poll: '0'}
    - {command: c, poll: 5}
  handlers:
    - {name: h, apt: {name: x}, async: 600, poll: 10}
";
    let play = play(text);
    let jobs: Vec<bool> = play.tasks().map(|task| task.job.is_some()).collect();
    assert_eq!(jobs, [true, true, false, true]);
}

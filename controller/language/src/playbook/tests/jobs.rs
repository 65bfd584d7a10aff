//! `async` and `poll` in playbooks.

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
    insta::assert_snapshot!(errors_of(text), @r"
    error: `async` cannot be used with `debug`
      --> play.yml:3:25
       |
     3 |     - {debug: {msg: x}, async: 10}
       |                         ^^^^^ the controller does it
    help: leave it out
    error: `async` cannot be used with `reboot`
      --> play.yml:4:20
       |
     4 |     - {reboot: {}, async: 10}
       |                    ^^^^^ it may disturb the node, which is bounded only while somebody waits for it
    help: leave it out; a task may take longer with `timeout`
    error: `async` cannot be used with `gpu_ecc`
      --> play.yml:5:34
       |
     5 |     - {gpu_ecc: {mode: enabled}, async: 10}
       |                                  ^^^^^ it may disturb the node, which is bounded only while somebody waits for it
    help: leave it out; a task may take longer with `timeout`
    error: `async` cannot be used with `script`
      --> play.yml:6:22
       |
     6 |     - {script: a.sh, async: 10}
       |                      ^^^^^ the controller sends what it needs
    help: put the script on the node with `copy`, then run it with `command`
    error: `async` cannot be used with `raw`
      --> play.yml:7:21
       |
     7 |     - {raw: uptime, async: 10}
       |                     ^^^^^ nor with Ansible's
    help: use `shell`
    error: `async` cannot be used with `copy`
      --> play.yml:8:38
       |
     8 |     - {copy: {content: x, dest: /x}, async: 10}
       |                                      ^^^^^ it needs the controller until its end
    help: leave it out; a task may take longer with `timeout`
    error: `async` cannot be used with `async_status`
      --> play.yml:9:32
       |
     9 |     - {async_status: {jid: x}, async: 10}
       |                                ^^^^^ it is done at once
    help: leave it out
    ");
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
    insta::assert_snapshot!(errors_of(text), @r#"
    error: `async` wants a whole number of seconds from 0, got "soon"
      --> play.yml:3:27
       |
     3 |     - {command: a, async: soon}
       |                           ^^^^
    error: `async` wants a whole number of seconds from 0, got "-1"
      --> play.yml:4:27
       |
     4 |     - {command: a, async: -1}
       |                           ^^
    error: `poll` wants a whole number of seconds from 0, got "1.5"
      --> play.yml:5:37
       |
     5 |     - {command: a, async: 10, poll: 1.5}
       |                                     ^^^
    error: unknown key `async`
      --> play.yml:8:7
       |
     8 |       async: 10
       |       ^^^^^ not a key of a block
    "#);
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
    let jobs: Vec<bool> = play.tasks().iter().map(|task| task.job.is_some()).collect();
    assert_eq!(jobs, [true, true, false, true]);
}

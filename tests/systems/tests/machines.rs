//! Rolling reboots of real machines: a real systemd, a real sshd, the real helper.
//!
//! What happened is read from the machines' own records, never from gpufleet's.

use std::path::Path;
use std::time::{Duration, Instant};

use gpufleet_systems_tests::{Machines, unit};
use gpufleet_tests::{Command, Finished, Home, Running};
use rustix::process::Signal;
use serde_json::json;

/// A file, a reboot and a command that must run once, in the new boot.
const REBOOT: &str = "
- hosts: fleet
  rollout:
    max_unavailable: MAX
    health_gate: []
  tasks:
    - copy: {content: wanted, dest: /etc/wanted.conf}
    - reboot: {when: always, timeout: TIMEOUT}
    - shell: cat /proc/sys/kernel/random/boot_id >>/var/log/after
";

/// Generous, because the machines of several tests share two cores.
const LIMIT: Duration = Duration::from_secs(240);

fn home(max_unavailable: usize, timeout: &str) -> Home {
    let home = Home::new();
    home.write("play.yaml", &play(max_unavailable, timeout));
    home
}

fn play(max_unavailable: usize, timeout: &str) -> String {
    REBOOT.replace("MAX", &max_unavailable.to_string()).replace("TIMEOUT", timeout)
}

fn run<'a>(home: &'a Home, machines: &Machines) -> Command<'a> {
    let inventory = machines.inventory();
    machines
        .gpufleet(home, &["run", "play.yaml", "-i", &inventory, "--yes", "--format", "json"])
        .args(["--connect-timeout", "5s"])
        .within(LIMIT)
}

fn resume<'a>(home: &'a Home, machines: &Machines) -> Command<'a> {
    machines.gpufleet(home, &["resume", "--yes", "--format", "json"]).within(LIMIT)
}

/// Waits until the run has told a node to reboot, and returns its name.
fn first_reboot(running: &mut Running) -> String {
    running.until("a reboot", |events| events.has("reboot_issued"));
    running.journal().hosts("reboot_issued").remove(0)
}

fn wait(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that every machine is done and was rebooted once, one after the other.
#[track_caller]
fn all_rebooted_in_turn(machines: &Machines, done: &Finished) {
    for name in machines.names() {
        assert_eq!(done.document().state(&name), "done", "{done}");
        rebooted(machines, &name, 2, done);
    }
    assert_eq!(machines.most_out_at_once(), 1, "{done}");
}

/// Checks that the machine had this number of boots, each with its own id, and that the command ran once, in the last
/// boot.
#[track_caller]
fn rebooted(machines: &Machines, name: &str, boots: usize, said: &Finished) {
    let record = machines.boots(name);
    assert_eq!(record.len(), boots, "{name}: {record:?}\n{said}");
    let mut ids: Vec<&str> = record.iter().map(|boot| boot.id.as_str()).collect();
    let last = ids.last().map(|id| format!("{id}\n"));
    assert_eq!(machines.text(name, "/var/log/after"), last, "{name}: {record:?}\n{said}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), boots, "{name}: {record:?}");
    assert_eq!(machines.text(name, "/etc/wanted.conf").as_deref(), Some("wanted"), "{name}");
}

/// Adds a unit that makes a shutdown take longer.
fn slow_shutdown(disk: &Path) {
    unit(
        disk,
        "slow-shutdown",
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/sleep 10\n",
    );
}

#[test]
fn all_machines_reboot_one_after_the_other() {
    let machines = Machines::start(4);
    let home = home(1, "120s");
    let before: Vec<Vec<String>> = machines.names().iter().map(|name| machines.journal_boots(name)).collect();
    let done = run(&home, &machines).run().expect(0);
    let document = done.document();
    for (name, before) in machines.names().iter().zip(&before) {
        assert_eq!(document.state(name), "done", "{done}");
        assert_eq!(document.reboots(name), 1, "{done}");
        assert_eq!((document.stat(name, "ok"), document.stat(name, "changed")), (3, 3), "{done}");
        rebooted(&machines, name, 2, &done);
        // systemd's own journal: the earlier boots and one more.
        let after = machines.journal_boots(name);
        assert_eq!((before.len(), after.len()), (1, 2), "{name}: {after:?}");
        let record = machines.boots(name);
        let ids: Vec<String> = record.iter().map(|boot| boot.id.replace('-', "")).collect();
        assert_eq!(after, ids, "{name}");
        assert_eq!(machines.read(name, "cat /proc/sys/kernel/random/boot_id"), record[1].id, "{name}");
        assert!(record[0].down.is_some(), "{name} went down in order: {record:?}");
    }
    assert_eq!(machines.most_out_at_once(), 1, "{done}");
    assert_eq!(document.value()["out_of_service"], json!([]), "{done}");
    assert_eq!(document.total("unreachable") + document.total("failed"), 0, "{done}");
}

#[test]
fn a_power_cut_in_the_middle_of_a_reboot_is_one_reboot() {
    let machines = Machines::start_with(3, slow_shutdown);
    let home = home(1, "120s");
    let mut running = run(&home, &machines).start();
    let first = first_reboot(&mut running);
    wait("its shutdown", || machines.boots(&first)[0].down.is_some());
    machines.cut_power(&first);
    std::thread::sleep(Duration::from_secs(3));
    machines.switch_on(&first);
    let done = running.wait().expect(0);
    all_rebooted_in_turn(&machines, &done);
}

#[test]
fn a_machine_that_never_returns_is_named_and_the_others_are_done() {
    let machines = Machines::start(4);
    machines.stay_off_after_reboot("node2");
    let home = home(2, "40s");
    let done = run(&home, &machines).run().expect(4);
    let document = done.document();
    assert_eq!(document.state("node2"), "unreachable", "{done}");
    assert!(document.message("node2").contains("did not come back within 40 s"), "{done}");
    assert_eq!(document.value()["out_of_service"], json!(["node2"]), "{done}");
    assert!(done.took < Duration::from_secs(100), "{done}");
    home.gpufleet(["report", "latest"]).run().says(&["node2", "did not come back within 40 s"]);
    for name in ["node1", "node3", "node4"] {
        assert_eq!(document.state(name), "done", "{done}");
        rebooted(&machines, name, 2, &done);
    }
    assert!(machines.most_out_at_once() <= 2, "{done}");
    assert!(machines.boots("node2")[0].down.is_some(), "it went down in order");

    machines.await_off("node2");
    machines.switch_on("node2");
    machines.await_answer("node2");
    let done = resume(&home, &machines).run().expect(0);
    assert_eq!(done.document().state("node2"), "done", "{done}");
    for name in ["node1", "node2", "node3", "node4"] {
        rebooted(&machines, name, 2, &done);
    }
    resume(&home, &machines).run().expect(0).says(&["no run is unfinished"]);
}

#[test]
fn a_machine_that_never_returns_keeps_its_place_in_the_budget() {
    let machines = Machines::start(4);
    for name in machines.names() {
        machines.stay_off_after_reboot(&name);
    }
    let home = home(1, "40s");
    let done = run(&home, &machines).run().expect(5);
    let document = done.document();
    let lost: Vec<String> =
        machines.names().into_iter().filter(|name| document.state(name) != "held").collect();
    let [lost] = &lost[..] else { panic!("not one node is lost: {done}") };
    assert_eq!(document.state(lost), "unreachable", "{done}");
    assert_eq!(document.value()["out_of_service"], json!([lost]), "{done}");
    let others: Vec<String> = machines.names().into_iter().filter(|name| name != lost).collect();
    for name in &others {
        for text in ["`max_unavailable` allows 1", lost] {
            assert!(document.message(name).contains(text), "{name}: `{text}` is not in {done}");
        }
        assert_eq!(machines.boots(name).len(), 1, "{name}: {done}");
    }
    assert_eq!(machines.most_out_at_once(), 1, "{done}");

    // Its power is back. The reboot has happened, and must not be requested again.
    machines.await_off(lost);
    machines.switch_on(lost);
    machines.await_answer(lost);
    others.iter().for_each(|name| machines.return_after_reboot(name));
    let done = resume(&home, &machines).run().expect(0);
    all_rebooted_in_turn(&machines, &done);
}

#[test]
fn a_killed_controller_reboots_nobody_twice() {
    let machines = Machines::start_with(4, slow_shutdown);
    let home = home(1, "120s");
    let mut running = run(&home, &machines).start();
    let first = first_reboot(&mut running);
    wait("its shutdown", || machines.boots(&first)[0].down.is_some());
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, None);
    assert_eq!(machines.boots(&first).len(), 1, "killed while the machine was going down");
    let done = resume(&home, &machines).run().expect(0);
    all_rebooted_in_turn(&machines, &done);
}

#[test]
fn a_power_cut_between_two_tasks_is_a_failure_of_its_own() {
    let machines = Machines::start(3);
    let home = Home::new();
    home.write(
        "play.yaml",
        "
- hosts: fleet
  strategy: linear
  tasks:
    - shell: echo first >>/var/log/first
    - shell: until test -e /run/go; do sleep 0.2; done
      when: inventory_hostname == 'node3'
    - shell: echo second >>/var/log/second
",
    );
    let mut running = run(&home, &machines).start();
    let lines = |name: &str, path: &str| machines.text(name, path).unwrap_or_default();
    wait("the first task", || machines.names().iter().all(|name| lines(name, "/var/log/first") == "first\n"));
    running.until("the barrier", |events| events.of_host("task_finished", "node1").count() >= 2);
    machines.cut_power("node1");
    machines.switch_on("node1");
    machines.await_answer("node1");
    machines.read("node3", "touch /run/go");
    let done = running.wait().expect(2);
    let document = done.document();
    assert_eq!(document.state("node1"), "failed", "{done}");
    let record = machines.boots("node1");
    assert_eq!(record.len(), 2, "{record:?}");
    for text in ["rebooted unexpectedly", &record[0].id, &record[1].id] {
        assert!(document.message("node1").contains(text), "`{text}` is not in {done}");
    }
    assert_eq!(lines("node1", "/var/log/second"), "", "nothing is done on it any more: {done}");
    for name in ["node2", "node3"] {
        assert_eq!(document.state(name), "done", "{done}");
        assert_eq!(lines(name, "/var/log/second"), "second\n", "{done}");
        assert_eq!(machines.boots(name).len(), 1, "{done}");
    }
}

// A node is back if `systemctl is-system-running` prints `running` or `degraded`, not if its sshd answers.
#[test]
fn a_machine_that_still_starts_is_not_back() {
    const SETTLES: &str = "[Unit]\nAfter=ssh.service\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
        ExecStart=/bin/sh -c 'sleep 15; date +%%s%%3N >>/var/log/settled'\n";
    let machines = Machines::start_with(2, |disk| {
        unit(disk, "settles", SETTLES);
        unit(disk, "broken", "[Service]\nType=oneshot\nExecStart=/bin/false\n");
    });
    let state = |name: &str| machines.read(name, "systemctl is-system-running || true");
    wait("the end of the start", || machines.names().iter().all(|name| state(name) == "degraded"));
    let home = home(1, "120s");
    let and_note = "    - shell: date +%s%3N >>/var/log/after-at\n";
    home.write("play.yaml", &(play(1, "120s") + and_note));
    let done = run(&home, &machines).run().expect(0);
    let times = |name: &str, path: &str| -> Vec<u64> {
        let text = machines.text(name, path).unwrap_or_default();
        text.lines().map(|line| line.parse().expect("a time")).collect()
    };
    let mut ups = Vec::new();
    for name in machines.names() {
        wait("the end of its second start", || times(&name, "/var/log/settled").len() == 2);
        let (settled, after) = (times(&name, "/var/log/settled"), times(&name, "/var/log/after-at"));
        assert_eq!((settled.len(), after.len()), (2, 1), "{name}: {done}");
        let record = machines.boots(&name);
        assert!(settled[1] - record[1].up > 14_000, "sshd listens long before: {settled:?} {record:?}");
        assert!(settled[1] <= after[0], "{name} went on {} ms too early: {done}", settled[1] - after[0]);
        rebooted(&machines, &name, 2, &done);
        ups.push((record[0].down, settled[1]));
    }
    ups.sort_unstable();
    assert!(ups[1].0 >= Some(ups[0].1), "the second went down while the first still started: {ups:?} {done}");
}

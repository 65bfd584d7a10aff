//! Tasks with `async` on real nodes: they outlive connections, helpers and controllers, and begin only once.

use std::time::{Duration, Instant};

use gpufleet_tests::{Command, Fleet, FleetOptions, Home};
use rustix::process::Signal;

/// Ends when /srv/go exists, and records how often it began.
const WAITED: &str = "
- hosts: gpu001
  become: true
  gather_facts: false
  tasks:
    - name: long
      shell: echo began >> /srv/ran; until [ -e /srv/go ]; do sleep 0.1; done; echo done as $(id -un)
      async: 120
      poll: 1
      register: long
    - name: told
      assert: {that: [\"long.stdout == 'done as root'\", long.finished, long.rc == 0]}
";

fn fleet() -> (Fleet, Home) {
    (Fleet::start(&FleetOptions { gpus_per_node: 1, ..FleetOptions::default() }), Home::new())
}

fn run<'a>(home: &'a Home, fleet: &Fleet) -> Command<'a> {
    home.gpufleet(["run", "play.yaml", "-i", &fleet.inventory(), "--yes", "--format", "json"])
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_job_outlives_a_killed_helper_and_a_cut_connection() {
    let (fleet, home) = fleet();
    home.write("play.yaml", WAITED);
    let known = fleet.known_hosts().display().to_string();
    let patience = format!(
        "ansible_ssh_common_args='-o UserKnownHostsFile={known} -o ServerAliveInterval=1 -o ServerAliveCountMax=2'"
    );
    let running = run(&home, &fleet).args(["-e", patience.as_str()]).start();
    until("the job", || fleet.has("gpu001", "/srv/ran"));
    // The bracket keeps the shell itself from matching.
    fleet.ssh("gpu001", "pkill -9 -f '[ ]serve'");
    std::thread::sleep(Duration::from_secs(3));
    fleet.control("gpu001", &["cut", "6"]);
    std::thread::sleep(Duration::from_secs(8));
    fleet.await_answer("gpu001");
    fleet.read("gpu001", "touch /srv/go");
    let done = running.wait().expect(0);
    assert_eq!(done.document().state("gpu001"), "done", "{done}");
    assert!(done.document().stat("gpu001", "changed") == 1, "{done}");
    assert_eq!(fleet.read("gpu001", "cat /srv/ran"), "began");
}

#[test]
fn a_killed_controller_finds_its_job_again_and_begins_none() {
    let (fleet, home) = fleet();
    home.write("play.yaml", WAITED);
    let running = run(&home, &fleet).start();
    until("the job", || fleet.has("gpu001", "/srv/ran"));
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, None);
    // Once while it runs, once when it has ended.
    let second = home.gpufleet(["resume", "--yes", "--format", "json"]).start();
    std::thread::sleep(Duration::from_secs(4));
    second.signal(Signal::KILL);
    assert_eq!(second.wait().code, None);
    fleet.read("gpu001", "touch /srv/go");
    let done = home.gpufleet(["resume", "--yes", "--format", "json"]).run().expect(0);
    assert_eq!(done.document().state("gpu001"), "done", "{done}");
    assert_eq!(fleet.read("gpu001", "cat /srv/ran"), "began");
}

#[test]
fn jobs_are_begun_asked_for_later_and_forgotten() {
    let (fleet, home) = fleet();
    home.write(
        "play.yaml",
        "
- hosts: gpu
  become: true
  gather_facts: false
  vars: {limit: 60, word: hunter2}
  tasks:
    - name: begin
      shell: sleep 2; echo {{ item }} $(id -un) $COLOUR; pwd
      args: {chdir: /srv}
      async: '{{ limit }}'
      poll: 0
      loop: [one, two]
      become_user: ops
      environment: {COLOUR: green}
      register: jobs
    - assert:
        that:
          - not jobs.results[0].finished
          - jobs.results[0].started
          - jobs.results[1].changed
    - name: wait
      async_status: {jid: '{{ item.ansible_job_id }}'}
      loop: '{{ jobs.results }}'
      register: ended
      until: ended is finished
      retries: 60
      delay: 1
    - assert:
        that:
          - ended.results[0].stdout_lines == ['one ops green', '/srv']
          - ended.results[1].stdout_lines == ['two ops green', '/srv']
    - name: private
      shell: echo {{ word }}
      async: 30
      poll: 1
      no_log: true
      register: private
    - assert: {that: [private.stdout == word]}
    - name: too long
      shell: echo $$ > /srv/pid; sleep 300
      async: 2
      poll: 1
      register: long
      ignore_errors: true
    - assert: {that: [long is failed, \"long.msg == 'async task did not complete within the requested time - 2s'\"]}
    - name: by itself
      file: {path: /srv/made, state: directory}
      async: 30
      poll: 1
    - name: forget
      async_status: {jid: '{{ jobs.results[0].ansible_job_id }}', mode: cleanup}
    - name: forgotten
      async_status: {jid: '{{ jobs.results[0].ansible_job_id }}'}
      register: gone
      failed_when: gone.msg != 'could not find job'
",
    );
    let inventory = fleet.inventory();
    let arguments = ["play.yaml", "-i", &inventory, "--format", "json"];
    let plan = home.gpufleet(["plan"]).args(arguments).run().expect(0);
    assert!(!fleet.has("gpu001", "/srv/pid") && !fleet.has("gpu001", "/srv/made"), "{plan}");
    let begin = Instant::now();
    let done = run(&home, &fleet).run().expect(0);
    assert!(!format!("{done}").contains("hunter2"), "{done}");
    assert!(begin.elapsed() < Duration::from_secs(120), "{done}");
    for name in fleet.names() {
        assert_eq!(done.document().state(&name), "done", "{done}");
        fleet.read(&name, "! kill -0 $(cat /srv/pid)");
        let open = "find /var/lib/gpufleet/jobs -perm /077 | wc -l";
        assert_eq!(fleet.read(&name, open), "0", "only root reads them");
    }
}

#[test]
fn a_reboot_in_between_is_never_a_success() {
    let (fleet, home) = fleet();
    home.write(
        "play.yaml",
        "
- hosts: gpu001
  become: true
  gather_facts: false
  tasks:
    - {name: begin, command: sleep 300, async: 600, poll: 0, register: job}
    - reboot: {when: always, timeout: 60s}
    - {name: its end, async_status: {jid: '{{ job.ansible_job_id }}'}}
",
    );
    let done = run(&home, &fleet).run().expect(2);
    let message = done.document().message("gpu001").to_owned();
    assert!(message.contains("the node was rebooted while the job ran"), "{done}");
}

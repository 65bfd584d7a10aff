//! Whole rollouts of the real gpufleet over nodes of a real Slurm.
//!
//! What happened is read from slurmctld's own log and records, and from the lab's logs, never from gpufleet's.

use std::time::{Duration, Instant};

use gpufleet_systems_tests::{LoginNode, SlurmFleet};
use gpufleet_tests::{Home, Running};
use rustix::process::Signal;

const NODES: usize = 4;
const REASON: &str = "bad DIMM = A1 | B2";

fn host(node: usize) -> String {
    format!("gpu{node:03}")
}

/// Checks that all nodes are done and changed once, and that Slurm has no trace of the run.
#[track_caller]
fn all_done(lab: &SlurmFleet, states: impl Fn(&str) -> String, budget: usize) {
    for node in 1..=NODES {
        assert_eq!(states(&host(node)), "done", "{node}");
        assert!(lab.changes(node) > 0, "{node} was not changed");
        assert_eq!(lab.traces(node), None);
    }
    let drains = lab.cluster.drains();
    assert!((1..=budget).contains(&drains.most), "{drains:?}");
    assert_eq!(drains.times.len(), NODES, "{drains:?}");
    assert!(drains.times.values().all(|times| *times == 1), "drained more than once: {drains:?}");
    assert!(drains.left.is_empty(), "{drains:?}");
    assert_eq!(lab.locks(), 0, "the lock is left");
}

/// A job that ends when its file exists, and then takes a while to be gone.
struct Job {
    id: String,
    file: std::path::PathBuf,
}

impl Job {
    fn start(lab: &SlurmFleet, node: usize) -> Self {
        let file = lab.home.dir().join(format!("end-{node}"));
        let script = format!("while [ ! -e {} ]; do sleep 0.1; done", file.display());
        Self { id: lab.cluster.run_job(node, &script), file }
    }

    fn end(&self) {
        std::fs::write(&self.file, "").unwrap();
    }
}

/// Waits until Slurm shows this run's drain of a busy node, and gpufleet has seen it.
#[track_caller]
fn until_drained_by_us(lab: &SlurmFleet, running: &Running, node: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let line = lab.cluster.show(node);
        let journal = running.journal();
        let ours = line.contains("DRAIN") && line.contains("Reason=gpufleet:");
        // Both: a resume before gpufleet saw its drain would look like a failed drain.
        if ours && journal.of_host("drain", &host(node)).any(|with| with["step"]["step"] == "cordoned") {
            return;
        }
        assert!(Instant::now() < deadline, "never drained: {line}\n{journal:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn idle_nodes_are_drained_changed_and_given_back() {
    let lab = SlurmFleet::start(NODES, 0, false);
    lab.write_play(2, "");
    let done = lab.run().run().expect(0);
    all_done(&lab, |host| done.document().state(host).to_owned(), 2);
    assert!(lab.fleet.names().iter().all(|name| lab.fleet.boots(name) == 1), "a reset was enough");
    // A second run finds nothing to do and drains no node.
    let again = lab.run().run().expect(0).document();
    assert!(again.states().values().all(|state| state == "compliant"), "{:?}", again.states());
    assert_eq!(lab.cluster.drains().times.values().sum::<usize>(), NODES);
}

#[test]
fn a_reboot_is_over_when_slurm_knows_of_the_new_boot() {
    let lab = SlurmFleet::start(NODES, 0, true);
    lab.write_play(2, "");
    let done = lab.run().run().expect(0);
    all_done(&lab, |host| done.document().state(host).to_owned(), 2);
    assert!(lab.fleet.names().iter().all(|name| lab.fleet.boots(name) == 2), "{done}");
}

#[test]
fn a_node_with_a_job_waits_until_nothing_of_it_is_left() {
    let lab = SlurmFleet::start(NODES, 0, false);
    lab.write_play(2, "");
    let file = lab.home.dir().join("ready");
    // The trap makes the job ignore its end until KillWait is over, and the node is COMPLETING meanwhile.
    let script = format!("trap '' TERM; touch {}; while :; do sleep 1; done", file.display());
    let job = lab.cluster.run_job(2, &script);
    lab.cluster.wait("the job's trap", || file.exists());
    let mut running = lab.run().start();
    running.until("the others", |events| {
        let ends = events.ends();
        [1, 3, 4].iter().all(|node| ends.contains(&host(*node)))
    });
    until_drained_by_us(&lab, &running, 2);
    assert_eq!(lab.changes(2), 0);
    lab.cluster.admin(&["scancel", &job]);
    let mut completing = 0;
    while lab.cluster.state(2).contains("COMPLETING")
        || !lab.cluster.admin(&["squeue", "-a", "-h", "-w", "gpu2"]).is_empty()
    {
        completing += usize::from(lab.cluster.state(2).contains("COMPLETING"));
        // Read again, because it may have changed meanwhile.
        let changes = lab.changes(2);
        if lab.cluster.state(2).contains("COMPLETING") {
            assert_eq!(changes, 0, "changed while its job was completing");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(completing > 0, "the job was gone at once: the test shows nothing");
    let done = running.wait().expect(0);
    all_done(&lab, |host| done.document().state(host).to_owned(), 2);
}

#[test]
fn a_node_that_a_person_drained_before_is_left_alone() {
    let lab = SlurmFleet::start(NODES, 0, false);
    lab.write_play(2, "");
    let reason = format!("reason={REASON}");
    lab.cluster.admin(&["scontrol", "update", "nodename=gpu3", "state=drain", &reason]);
    let done = lab.run().run();
    assert_eq!(done.code, Some(5), "{done}");
    let document = done.document();
    assert_eq!(document.state("gpu003"), "held", "{done}");
    assert!(document.message("gpu003").contains(REASON), "{done}");
    for node in [1, 2, 4] {
        assert_eq!(document.state(&host(node)), "done", "{done}");
        assert_eq!(lab.traces(node), None);
    }
    assert_eq!((lab.changes(3), lab.cluster.state(3)), (0, "IDLE+DRAIN".to_owned()));
    assert!(lab.cluster.show(3).contains(&format!("Reason={REASON} [root@")), "{}", lab.cluster.show(3));
    let drains = lab.cluster.drains();
    assert!(drains.most <= 2, "a person's drain counts: {drains:?}");
    assert_eq!((drains.left.len(), lab.locks()), (1, 0), "{drains:?}");
}

/// A person changes a node that the run has drained and waits for; then its job ends.
fn taken_over(action: &[&str], state: &str, shows: &str) {
    let lab = SlurmFleet::start(NODES, 0, false);
    lab.write_play(2, "");
    let job = Job::start(&lab, 2);
    let running = lab.run().start();
    until_drained_by_us(&lab, &running, 2);
    lab.cluster.admin(action);
    job.end();
    let done = running.wait();
    assert_eq!(done.code, Some(5), "{done}");
    let document = done.document();
    assert_eq!(document.state("gpu002"), "held", "{done}");
    for node in [1, 3, 4] {
        assert_eq!(document.state(&host(node)), "done", "{done}");
        assert_eq!(lab.traces(node), None);
    }
    assert_eq!(lab.changes(2), 0, "{done}");
    lab.cluster.wait("the end of the job", || lab.cluster.state(2) == state);
    let line = lab.cluster.show(2);
    assert!(line.contains(shows) && !line.contains("Reason=gpufleet:"), "{line}");
    assert_eq!(lab.locks(), 0);
}

#[test]
fn a_person_who_drains_a_node_that_we_hold_has_the_last_word() {
    let reason = format!("reason={REASON}");
    let action = ["scontrol", "update", "nodename=gpu2", "state=drain", &reason];
    taken_over(&action, "IDLE+DRAIN", &format!("Reason={REASON} [root@"));
}

#[test]
fn a_person_who_resumes_a_node_that_we_hold_has_the_last_word() {
    taken_over(&["scontrol", "update", "nodename=gpu2", "state=resume"], "IDLE", "State=IDLE ");
}

#[test]
fn slurmctld_may_restart_in_the_middle() {
    let lab = SlurmFleet::start(NODES, 0, false);
    lab.write_play(2, "");
    let job = Job::start(&lab, 2);
    let running = lab.run().start();
    until_drained_by_us(&lab, &running, 2);
    lab.cluster.stop_controller();
    std::thread::sleep(Duration::from_secs(8));
    lab.cluster.start_controller();
    lab.cluster.wait("slurmctld", || lab.cluster.state(2).contains("DRAIN"));
    job.end();
    let done = running.wait().expect(0);
    all_done(&lab, |host| done.document().state(host).to_owned(), 2);
}

#[test]
fn a_controller_that_was_killed_while_it_drained_is_resumed() {
    let lab = SlurmFleet::start(NODES, 0, false);
    lab.write_play(2, "");
    let job = Job::start(&lab, 2);
    let running = lab.run().start();
    until_drained_by_us(&lab, &running, 2);
    running.signal(Signal::KILL);
    assert_eq!(running.wait().code, None);
    assert!(lab.traces(2).is_some(), "the drain stays while nobody is there");
    job.end();
    lab.cluster.wait("the end of the job", || {
        lab.cluster.admin(&["squeue", "-h", "-j", &job.id, "-o", "%T", "-t", "R"]).is_empty()
    });
    let done = lab.gpufleet(&["resume", "--yes", "--format", "json"]).run().expect(0);
    all_done(&lab, |host| done.document().state(host).to_owned(), 2);
}

#[test]
fn slurm_is_asked_on_a_login_node() {
    let lab = SlurmFleet::start(NODES, 0, false);
    let login = LoginNode::start(&lab.cluster.conf());
    lab.write_play(2, ", login: login1");
    lab.home.write("logins.yaml", &login.inventory("login1"));
    let inventory = lab.fleet.inventory();
    let arguments = ["run", "play.yaml", "--yes", "--format", "json", "-i", &inventory, "-i", "logins.yaml"];
    // Without SLURM_CONF, so that no Slurm on this machine would answer.
    let done = lab.home.gpufleet(arguments).within(Duration::from_secs(150)).run().expect(0);
    all_done(&lab, |host| done.document().state(host).to_owned(), 2);
    assert_eq!(login.connections(), 1, "one connection for all calls");
}

#[test]
fn jobs_are_told_before_they_must_go() {
    let lab = SlurmFleet::start(NODES, 0, false);
    lab.write_play(2, ", notice: {signal: USR1, deadline: 30s}");
    let (ready, told) = (lab.home.dir().join("ready"), lab.home.dir().join("told"));
    let script = format!(
        "trap 'touch {}; exit 0' USR1; touch {}; while :; do sleep 0.2; done",
        told.display(),
        ready.display()
    );
    lab.cluster.run_job(2, &script);
    lab.cluster.wait("the job's trap", || ready.exists());
    let done = lab.run().run().expect(0);
    assert!(told.exists(), "{done}");
    all_done(&lab, |host| done.document().state(host).to_owned(), 2);
}

#[test]
fn a_second_run_is_kept_away_by_the_lock() {
    let lab = SlurmFleet::start(NODES, 0, false);
    lab.write_play(4, "");
    let jobs = [1, 2, 3].map(|node| Job::start(&lab, node));
    // Limited to a node that the first run does not use.
    let inventory = lab.fleet.inventory();
    let first =
        ["run", "play.yaml", "--yes", "--format", "json", "-l", "gpu001,gpu002,gpu003", "-i", &inventory];
    let running = lab.gpufleet(&first).start();
    until_drained_by_us(&lab, &running, 2);
    assert_eq!(lab.locks(), 1);
    // Another home, because this machine's lock would refuse the run first.
    let home = Home::new();
    home.write("play.yaml", &std::fs::read_to_string(lab.home.work().join("play.yaml")).unwrap());
    let second = home
        .gpufleet(["run", "play.yaml", "--yes", "--format", "json", "-l", "gpu004", "-i", &inventory])
        .env("SLURM_CONF", lab.cluster.conf())
        .within(Duration::from_secs(60))
        .run();
    assert_eq!(second.code, Some(5), "{second}");
    assert_eq!((lab.changes(4), lab.traces(4)), (0, None), "{second}");
    assert!(!lab.cluster.drains().times.contains_key("gpu4"), "{second}");
    for job in jobs {
        job.end();
    }
    running.wait().expect(0);
    assert_eq!(lab.locks(), 0);
}

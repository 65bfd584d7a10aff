//! What happens between a run and a scheduler that has a life of its own.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};

use super::{
    FakeScheduler, Holder, PLAYBOOK, RunDir, RunId, World, engine, events_in, hosts, process, process_of,
    process_with, read_for_resume, started, virtual_time,
    world::{Fault, Machine, boot_id, lock},
};
use crate::{
    drain::{Marker, NoticePlan, RebootOrder},
    engine::{Overrules, Recorder, RunHistory, RunResult, Stop, run::drain_preview},
    event::{DrainStep, NodeState, What},
    journal::Journal,
    rollout::Amount,
};

pub(super) struct Ended {
    pub(super) result: RunResult,
    pub(super) events: Vec<What>,
    pub(super) log: Vec<String>,
}

impl Ended {
    pub(super) fn state(&self, host: &str) -> (NodeState, String) {
        let outcome = self.events.iter().find_map(|what| match what {
            What::NodeFinished { host: name, outcome } if name == host => Some(outcome),
            _ => None,
        });
        let outcome = outcome.expect("every host has an outcome");
        (outcome.state, outcome.message.clone().unwrap_or_default())
    }

    pub(super) fn steps(&self, host: &str) -> Vec<&DrainStep> {
        let of = self.events.iter().filter_map(|what| match what {
            What::Drain { host: name, step } if name == host => Some(step),
            _ => None,
        });
        of.collect()
    }
}

/// A run over three nodes, two of which may be out at once; interrupted once the scheduler was asked for this.
pub(super) async fn run(world: &Arc<World>, overrules: Overrules, interrupt: Option<&'static str>) -> Ended {
    let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
    let dir = RunDir::new(state.path(), &RunId::generate());
    let mut recorder = Recorder::new(Journal::create(&dir).unwrap(), Vec::new(), jiff::Timestamp::now);
    let (press, mut interrupts) = mpsc::channel(1);
    let mut engine = engine(PLAYBOOK, world, &hosts, 1);
    engine.options.rollout.max_unavailable = Some(Amount::Count(2));
    engine.options.overrules = overrules;
    let keep = press.clone();
    if let Some(after) = interrupt {
        let world = Arc::clone(world);
        tokio::spawn(async move {
            asked(&world, after).await;
            let _ = press.send(()).await;
        });
    }
    let result = engine.run(started(&hosts), &mut recorder, &mut interrupts).await.unwrap();
    drop(keep);
    recorder.finish().unwrap();
    let events = events_in(&dir).into_iter().map(|event| event.what).collect();
    let log = lock(&world.queue.log).clone();
    Ended { result, events, log }
}

/// Waits until the scheduler was asked for this, and a while longer.
///
/// Why not for a moment in time: the paused clock runs ahead while the journal's thread writes.
async fn asked(world: &World, entry: &str) {
    while !lock(&world.queue.log).iter().any(|found| found == entry) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
}

pub(super) fn world() -> Arc<World> {
    World::new(&hosts(3), true)
}

fn works(world: &World, host: &str, span: Duration) {
    lock(&world.queue.busy).insert(host.to_owned(), Instant::now() + span);
}

fn hold(world: &World, host: &str) {
    lock(&world.queue.held).insert(host.to_owned(), Holder::Person("alice"));
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn each_node_is_told_drained_and_given_back_once() {
    virtual_time(async {
        let world = world();
        *lock(&world.notice) = Some(NoticePlan { deadline: 5 * MINUTE, before_cordon: false });
        let ended = run(&world, Overrules::default(), None).await;
        assert_eq!((&ended.result.stop, ended.result.held), (&None, false));
        let mut log = ended.log.clone();
        log.sort();
        let each = |what: &str| hosts(3).iter().map(|host| format!("{what} {host}")).collect::<Vec<_>>();
        assert_eq!(log, [each("cordon"), each("resume"), each("told")].concat());
        let at = |entry: &str| ended.log.iter().position(|found| found == entry).unwrap();
        assert!(at("cordon gpu001") < at("told gpu001") && at("told gpu001") < at("resume gpu001"));
        assert_eq!(*lock(&world.queue.lock), None);
    });
}

#[test]
fn the_scheduler_is_told_in_which_boot_a_node_is() {
    virtual_time(async {
        let world = world();
        run(&world, Overrules::default(), None).await;
        for host in hosts(3) {
            let boots = world.with(&host, |machine| machine.boot);
            let told = lock(&world.queue.boots)[&host].clone();
            assert!(boots > 1 && told.len() > 1, "{host}: {told:?}");
            assert_eq!(
                (&told[0], told.last()),
                (&Some(boot_id(&host, 1)), Some(&Some(boot_id(&host, boots))))
            );
        }
    });
}

#[test]
fn what_a_node_that_stays_out_leaves_undone_at_the_scheduler_is_told() {
    virtual_time(async {
        let world = world();
        world.with("gpu001", |machine| machine.fault = Fault::NeverBack);
        *lock(&world.queue.takes_no_word) = true;
        let ended = run(&world, Overrules::default(), None).await;
        let left = "queue could not be told why it stays out: no answer; `kubectl x` mends it";
        let (_, message) = ended.state("gpu001");
        assert!(message.ends_with(left), "{message}");
        let stuck = |step: &&DrainStep| matches!(step, DrainStep::Stuck { why } if why == left);
        assert!(ended.steps("gpu001").iter().any(stuck), "{:?}", ended.steps("gpu001"));
    });
}

#[test]
fn where_draining_ends_the_work_it_is_told_before() {
    virtual_time(async {
        let world = world();
        *lock(&world.notice) = Some(NoticePlan { deadline: 5 * MINUTE, before_cordon: true });
        works(&world, "gpu001", 3 * MINUTE);
        let begin = Instant::now();
        let ended = run(&world, Overrules::default(), None).await;
        let at = |entry: &str| ended.log.iter().position(|found| found == entry).unwrap();
        assert!(at("told gpu001") < at("cordon gpu001"));
        assert_eq!(ended.result.stop, None);
        assert!(begin.elapsed() > 3 * MINUTE);
    });
}

#[test]
fn what_a_person_drained_is_theirs() {
    virtual_time(async {
        let world = world();
        hold(&world, "gpu002");
        let ended = run(&world, Overrules::default(), None).await;
        let (state, message) = ended.state("gpu002");
        assert_eq!(state, NodeState::Held);
        assert!(message.contains("alice"), "{message}");
        assert_eq!(world.queue.holder("gpu002"), Some(Holder::Person("alice")));
        assert!(!ended.log.iter().any(|entry| entry.ends_with("gpu002")), "{:?}", ended.log);
        assert_eq!((ended.state("gpu001").0, ended.state("gpu003").0), (NodeState::Done, NodeState::Done));
        world.with("gpu002", |machine| assert_eq!(machine.node.reboots, 0));
    });
}

#[test]
fn a_node_waits_for_its_work_and_the_others_do_not() {
    virtual_time(async {
        let world = world();
        works(&world, "gpu002", 20 * MINUTE);
        let ended = run(&world, Overrules::default(), None).await;
        assert_eq!(ended.result.stop, None);
        let at = |entry: &str| ended.log.iter().position(|found| found == entry).unwrap();
        assert!(at("cordon gpu002") < at("resume gpu003") && at("resume gpu003") < at("resume gpu002"));
    });
}

#[test]
fn work_that_does_not_end_gets_its_node_back() {
    virtual_time(async {
        let world = world();
        works(&world, "gpu002", 600 * MINUTE);
        let ended = run(&world, Overrules::default(), None).await;
        let (state, message) = ended.state("gpu002");
        assert_eq!(state, NodeState::Held);
        assert!(message.contains("its time to drain is over, and it still waits for job 1"), "{message}");
        assert_eq!(world.queue.holder("gpu002"), None);
        assert_eq!(ended.steps("gpu002").last(), Some(&&DrainStep::GivenBack));
        assert_eq!(ended.result.out_of_service, Vec::<String>::new());
        assert_eq!(ended.state("gpu003").0, NodeState::Done);
    });
}

#[test]
fn what_no_waiting_ends_is_told_at_once_and_the_node_given_back() {
    virtual_time(async {
        let world = world();
        lock(&world.queue.stuck).insert("gpu001".to_owned());
        lock(&world.queue.refused).insert("gpu002".to_owned());
        let begin = Instant::now();
        let ended = run(&world, Overrules::default(), None).await;
        assert!(begin.elapsed() < 30 * MINUTE, "the drain's own time is an hour");
        let (state, message) = ended.state("gpu001");
        assert_eq!(state, NodeState::Held);
        assert!(message.ends_with("its scheduler did not let go of it: pod a/b is nobody's"), "{message}");
        assert_eq!(ended.steps("gpu001").last(), Some(&&DrainStep::GivenBack));
        let (state, message) = ended.state("gpu002");
        assert_eq!(state, NodeState::Held);
        assert!(message.contains("it is not for us"), "{message}");
        assert_eq!((world.queue.holder("gpu001"), world.queue.holder("gpu002")), (None, None));
        assert_eq!(ended.state("gpu003").0, NodeState::Done);
    });
}

/// A person takes a node over while it is being drained; it is theirs then.
async fn taken_over_while_it_drains(overrules: Overrules) {
    let world = world();
    works(&world, "gpu001", 20 * MINUTE);
    let other = Arc::clone(&world);
    tokio::spawn(async move {
        asked(&other, "cordon gpu001").await;
        hold(&other, "gpu001");
    });
    let ended = run(&world, overrules, None).await;
    assert_eq!(ended.state("gpu001").0, NodeState::Held);
    assert_eq!(world.queue.holder("gpu001"), Some(Holder::Person("alice")));
    world.with("gpu001", |machine| assert_eq!(machine.node.reboots, 0));
}

#[test]
fn a_person_may_take_a_node_over_while_it_is_being_drained() {
    virtual_time(taken_over_while_it_drains(Overrules::default()));
}

#[test]
fn a_node_that_a_person_took_over_in_mid_reboot_is_left_to_them() {
    virtual_time(async {
        let world = world();
        let other = Arc::clone(&world);
        tokio::spawn(async move {
            while !other.with("gpu001", |machine| machine.down) {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            hold(&other, "gpu001");
        });
        let ended = run(&world, Overrules::default(), None).await;
        let (state, message) = ended.state("gpu001");
        assert_eq!(state, NodeState::Held);
        assert!(message.contains("not disturbed any further: somebody took it over"), "{message}");
        assert_eq!(world.queue.holder("gpu001"), Some(Holder::Person("alice")));
        assert_eq!(ended.result.out_of_service, ["gpu001"]);
    });
}

/// Gives a node back by hand while it reboots, with or without work that comes at once.
pub(super) fn given_back_in_mid_reboot(world: &Arc<World>, works: bool) {
    let other = Arc::clone(world);
    tokio::spawn(async move {
        while !other.with("gpu001", |machine| machine.down) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        lock(&other.queue.held).remove("gpu001");
        lock(&other.queue.given_back).insert("gpu001".to_owned());
        other.with("gpu001", |machine| machine.works = works);
    });
}

#[test]
fn what_a_reboot_took_is_asserted_on_an_idle_node_that_a_person_gave_back_meanwhile() {
    virtual_time(async {
        let world = world();
        given_back_in_mid_reboot(&world, false);
        let ended = run(&world, Overrules::default(), None).await;
        let (state, message) = ended.state("gpu001");
        assert_eq!(state, NodeState::Done, "{message}");
        assert_eq!(ended.result.out_of_service, Vec::<String>::new());
        assert_eq!(world.queue.holder("gpu001"), None);
        assert_eq!(ended.log.iter().filter(|entry| *entry == "cordon gpu001").count(), 1);
        let told = ended.events.iter().any(|what| {
            matches!(what, What::Notice { text, .. } if text.starts_with(
                "gpu001: somebody gave it back to queue while this run worked on it: it takes work"
            ))
        });
        assert!(told);
        assert_eq!(ended.steps("gpu001").last(), Some(&&DrainStep::GivenBack));
    });
}

#[test]
fn a_node_that_serves_again_is_told_as_it_is_and_a_resume_ends_it() {
    virtual_time(async {
        let (hosts, world, state) = (hosts(2), world(), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        given_back_in_mid_reboot(&world, true);
        let result = process(&world, &hosts, &dir, 1).await.unwrap();
        assert!(result.held && result.out_of_service.is_empty(), "{result:?}");
        let events = events_in(&dir);
        let message = events.iter().find_map(|event| match &event.what {
            What::NodeFinished { host, outcome } if host == "gpu001" => outcome.message.clone(),
            _ => None,
        });
        let message = message.unwrap();
        assert!(
            message.contains(
                "somebody gave it back to queue, and it takes work: what its reboot took is not asserted"
            ),
            "{message}"
        );
        lock(&world.queue.given_back).clear();
        world.with("gpu001", |machine| machine.works = false);
        let result = process(&world, &hosts, &dir, 2).await.unwrap();
        assert_eq!((result.stop, result.held, result.out_of_service), (None, false, Vec::new()));
        let reboots = |host: &str| world.with(host, |machine| machine.node.reboots);
        assert_eq!((reboots("gpu001"), reboots("gpu002")), (1, 1));
        assert!(world.with("gpu001", |machine| machine.node.real.mig), "what the reboot took is there again");
    });
}

#[test]
fn a_drain_has_all_of_its_time() {
    virtual_time(async {
        let world = world();
        works(&world, "gpu002", 600 * MINUTE);
        let seen = Arc::clone(&world);
        let lasted = tokio::spawn(async move {
            let when = async |entry: &str| {
                while !lock(&seen.queue.log).iter().any(|found| found == entry) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Instant::now()
            };
            let begin = when("cordon gpu002").await;
            when("resume gpu002").await - begin
        });
        run(&world, Overrules::default(), None).await;
        let lasted = lasted.await.unwrap().as_secs_f64();
        assert!((3599.0..3604.0).contains(&lasted), "{lasted} s");
    });
}

#[test]
fn a_node_that_a_person_took_over_at_its_end_is_left_to_them() {
    virtual_time(async {
        let world = world();
        let other = Arc::clone(&world);
        tokio::spawn(async move {
            while !other.with("gpu001", |machine| machine.ran.iter().any(|line| line.contains("handler"))) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            hold(&other, "gpu001");
        });
        let ended = run(&world, Overrules::default(), None).await;
        assert_eq!(world.queue.holder("gpu001"), Some(Holder::Person("alice")));
        assert!(!ended.log.contains(&"resume gpu001".to_owned()));
        let left = ended.steps("gpu001");
        assert!(matches!(left.last(), Some(DrainStep::LeftTo { .. })), "{left:?}");
        assert_eq!(ended.state("gpu001").0, NodeState::Done);
        assert_eq!(ended.result.out_of_service, Vec::<String>::new());
    });
}

#[test]
fn an_interrupt_gives_back_who_is_being_drained() {
    virtual_time(async {
        let world = world();
        works(&world, "gpu001", 60 * MINUTE);
        let ended = run(&world, Overrules::default(), Some("cordon gpu001")).await;
        assert_eq!(ended.result.stop, Some(Stop::Interrupted));
        assert_eq!(ended.log, ["cordon gpu001", "resume gpu001"]);
        assert_eq!(ended.result.out_of_service, Vec::<String>::new());
        assert_eq!(*lock(&world.queue.lock), None);
    });
}

#[test]
fn a_scheduler_that_is_silent_for_a_while_is_asked_again() {
    for silent in 0..40 {
        virtual_time(async {
            let world = world();
            *lock(&world.queue.silent) = silent;
            let ended = run(&world, Overrules::default(), None).await;
            let states = hosts(3).iter().map(|host| ended.state(host).0).collect::<Vec<_>>();
            let settled = |state: &NodeState| matches!(state, NodeState::Done | NodeState::Held);
            assert!(states.iter().all(settled), "{silent}: {states:?}");
            assert_eq!(lock(&world.queue.held).len(), 0, "{silent}");
            if silent < 20 {
                assert_eq!(states, [NodeState::Done; 3], "{silent}");
            }
        });
    }
}

#[test]
fn a_lock_is_stolen_only_when_a_person_says_so() {
    virtual_time(async {
        let world = world();
        *lock(&world.queue.lock) = Some("OTHER".to_owned());
        let ended = run(&world, Overrules::default(), None).await;
        let (state, message) = ended.state("gpu001");
        assert_eq!(state, NodeState::Held);
        assert!(message.contains("run OTHER holds the lock at queue"), "{message}");
        assert_eq!(ended.log, Vec::<String>::new());
        assert_eq!(lock(&world.queue.lock).as_deref(), Some("OTHER"));

        let ended = run(&world, Overrules { steal: true, force: false }, None).await;
        assert_eq!(ended.state("gpu001").0, NodeState::Done);
        let of_lock = |what: &&What| matches!(what, What::Overridden { host: None, what } if what == "the lock of run OTHER at queue");
        assert_eq!(
            ended.events.iter().filter(of_lock).count(),
            1,
            "two nodes found it, and it was taken once"
        );
        assert_eq!(*lock(&world.queue.lock), None);
    });
}

#[test]
fn who_wants_the_lock_at_once_waits_once() {
    virtual_time(async {
        let world = world();
        *lock(&world.queue.lock_takes) = MINUTE;
        *lock(&world.queue.silent) = 1;
        let (scheduler, begin) = (FakeScheduler::of(&world, None), Instant::now());
        let all = || futures::future::join_all((0..20).map(|_| scheduler.lock("RUN")));
        assert!(all().await.iter().all(Result::is_err));
        assert!(all().await.iter().all(|answer| *answer == Ok(None)));
        assert_eq!(begin.elapsed().as_secs(), 120);
    });
}

#[test]
fn a_drain_that_hangs_is_given_up_when_the_run_stops() {
    virtual_time(async {
        let world = world();
        *lock(&world.queue.hangs) = true;
        let begin = Instant::now();
        let ended = run(&world, Overrules::default(), Some("hangs gpu001")).await;
        assert_eq!(ended.result.stop, Some(Stop::Interrupted));
        assert_eq!(ended.result.out_of_service, Vec::<String>::new());
        assert!(begin.elapsed() < 5 * MINUTE, "{:?}", begin.elapsed());
    });
}

#[test]
fn a_reboot_that_the_scheduler_refuses_is_not_forced() {
    virtual_time(async {
        let world = world();
        *lock(&world.queue.reboots) = Some(RebootOrder::Refused("no RebootProgram".to_owned()));
        let ended = run(&world, Overrules::default(), None).await;
        let (state, message) = ended.state("gpu001");
        assert_eq!(state, NodeState::Held);
        assert!(message.contains("is not rebooted: no RebootProgram"), "{message}");
        world.with("gpu001", |machine| assert_eq!(machine.node.reboots, 0));
        assert!(matches!(world.queue.holder("gpu001"), Some(Holder::Run(_))), "it stays drained");
    });
}

const ECC: &str = "- hosts: all\n  gather_facts: false\n  max_unavailable: 1\n  tasks:\n    - gpu_ecc: {mode: enabled}\n    \
                   - reboot: {when: required}\n";

/// What the run left behind, and how a host ended in it, with the reboots that its journal tells of.
async fn untouched(world: &Arc<World>, epoch: u64, dir: &RunDir) -> (RunResult, NodeState, String, usize) {
    let hosts = hosts(2);
    let result = process_of(ECC, world, &hosts, dir, epoch).await.unwrap();
    let events = events_in(dir);
    let model = crate::report::RunModel::of(&events);
    let node = model.nodes().iter().find(|node| node.name == "gpu002").unwrap();
    (result, node.state, node.message().unwrap_or_default().to_owned(), node.reboots.len())
}

#[test]
fn a_node_whose_reboot_is_refused_goes_back_as_it_was() {
    virtual_time(async {
        let world = world();
        *lock(&world.queue.reboots) = Some(RebootOrder::Refused("no RebootProgram".to_owned()));
        let state = tempfile::tempdir().unwrap();
        let dir = RunDir::new(state.path(), &RunId::generate());
        let (result, end, message, reboots) = untouched(&world, 1, &dir).await;
        assert_eq!((result.out_of_service, end, reboots), (Vec::new(), NodeState::Held, 0));
        assert_eq!(message, "is not rebooted: no RebootProgram");
        assert_eq!(world.queue.holder("gpu002"), None);
        *lock(&world.queue.reboots) = Some(RebootOrder::Cannot);
        let (_, end, message, reboots) = untouched(&world, 2, &dir).await;
        assert_eq!((end, reboots), (NodeState::Done, 1), "its reason may be served now: {message}");
    });
}

#[test]
fn who_lost_the_lock_takes_and_gives_back_nothing_more() {
    for steal in [false, true] {
        virtual_time(async move {
            let (hosts, world, state) = (hosts(2), world(), tempfile::tempdir().unwrap());
            let dir = RunDir::new(state.path(), &RunId::generate());
            let thief = Arc::clone(&world);
            tokio::spawn(async move {
                while !lock(&thief.queue.log).iter().any(|entry| entry == "resume gpu001") {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                *lock(&thief.queue.lock) = Some("THIEF".to_owned());
                lock(&thief.queue.log).push("stolen".to_owned());
            });
            let mut engine = engine(ECC, &world, &hosts, 1);
            engine.options.overrules.steal = steal;
            let (_press, mut interrupts) = mpsc::channel(1);
            let result = process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
            assert!(result.held);
            let log = lock(&world.queue.log).clone();
            assert_eq!(log, ["cordon gpu001", "resume gpu001", "stolen"], "steals: {steal}");
        });
    }
}

#[test]
fn a_busy_node_is_disturbed_only_by_force() {
    virtual_time(async {
        let world = world();
        world.with("gpu001", |machine| machine.works = true);
        let ended = run(&world, Overrules::default(), None).await;
        assert_eq!(ended.state("gpu001").0, NodeState::Held);
        let of = |entry: &&String| entry.ends_with("gpu001");
        assert_eq!(ended.log.iter().filter(of).collect::<Vec<_>>(), ["cordon gpu001", "resume gpu001"]);

        let world = self::world();
        world.with("gpu001", |machine| machine.works = true);
        let ended = run(&world, Overrules { force: true, steal: false }, None).await;
        assert_eq!(ended.state("gpu001").0, NodeState::Done);
        let over =
            |what: &&What| matches!(what, What::Overridden { host: Some(host), .. } if host == "gpu001");
        assert!(ended.events.iter().any(|what| over(&what)));
    });
}

#[test]
fn force_does_not_go_over_a_person_who_took_the_node() {
    virtual_time(taken_over_while_it_drains(Overrules { force: true, steal: false }));
}

#[test]
fn the_machine_of_gpufleet_itself_is_never_disturbed() {
    virtual_time(async {
        let world = world();
        *lock(&world.own_boot) = Some(boot_id("gpu001", 1));
        let ended = run(&world, Overrules { force: true, steal: false }, None).await;
        let (state, message) = ended.state("gpu001");
        assert_eq!(state, NodeState::Held);
        assert!(message.contains("gpufleet itself runs on this node"), "{message}");
        assert!(!ended.log.iter().any(|entry| entry.ends_with("gpu001")), "{:?}", ended.log);
        assert_eq!((ended.state("gpu002").0, ended.state("gpu003").0), (NodeState::Done, NodeState::Done));
    });
}

#[test]
fn what_a_lost_run_left_drained_is_adopted_and_given_back() {
    virtual_time(async {
        let world = world();
        let marker = Marker { run: "LOST".to_owned(), nonce: "1".to_owned() };
        lock(&world.queue.held).insert("gpu002".to_owned(), Holder::Run(marker.clone()));
        let ended = run(&world, Overrules::default(), None).await;
        assert_eq!(ended.state("gpu002").0, NodeState::Held);
        assert_eq!(world.queue.holder("gpu002"), Some(Holder::Run(marker.clone())));

        for undone in [true, false] {
            if undone {
                world.with("gpu002", |machine| machine.node.real.power_w = 1);
                // Why: who leaves a node out has it run again what it had stopped there.
                lock(&world.queue.clients).insert("gpu002".to_owned());
            }
            lock(&world.queue.held).insert("gpu002".to_owned(), Holder::Run(marker.clone()));
            lock(&world.queue.log).clear();
            let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
            let dir = RunDir::new(state.path(), &RunId::generate());
            let journal = Journal::create(&dir).unwrap();
            let mut recorder = Recorder::new(journal, Vec::new(), jiff::Timestamp::now);
            let (_press, mut interrupts) = mpsc::channel(1);
            let mut engine = engine(PLAYBOOK, &world, &hosts, 1);
            engine.options.earlier.adopted = [("gpu002".to_owned(), marker.clone())].into();
            let result = engine.run(started(&hosts), &mut recorder, &mut interrupts).await.unwrap();
            recorder.finish().unwrap();
            assert_eq!((result.stop, result.held), (None, false));
            assert_eq!(*lock(&world.queue.log), ["resume gpu002"]);
        }
    });
}

/// Ends the process as soon as gpu001 has come so far.
fn crashes_when(world: &Arc<World>, come_so_far: impl Fn(&mut Machine) -> bool + Send + 'static) {
    let crash = Arc::clone(world);
    tokio::spawn(async move {
        while !crash.with("gpu001", &come_so_far) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        crash.crashed.notify_one();
    });
}

#[test]
fn winding_up_leads_to_a_safe_point_and_begins_nothing() {
    virtual_time(async {
        let world = world();
        let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        crashes_when(&world, |machine| machine.down);
        assert!(process(&world, &hosts, &dir, 1).await.is_none());
        let records = read_for_resume(&dir).unwrap();
        let past = RunHistory::of(&records);
        let journal = Journal::reopen(&dir).unwrap();
        let mut recorder = Recorder::after(records, journal, Vec::new(), jiff::Timestamp::now);
        let (_press, mut interrupts) = mpsc::channel(1);
        let mut engine = engine(PLAYBOOK, &world, &hosts, 2);
        engine.options.winds_up = true;
        let who = "test".to_owned();
        let result = engine.resume(started(&hosts), past, who, &mut recorder, &mut interrupts).await.unwrap();
        recorder.finish().unwrap();
        assert_eq!((result.stop, result.out_of_service), (Some(Stop::Interrupted), Vec::new()));
        assert_eq!(*lock(&world.queue.log), ["cordon gpu001", "resume gpu001"]);
        world.with("gpu001", |machine| assert_eq!(machine.node.reboots, 1));
        world.with("gpu002", |machine| assert_eq!(machine.ran, Vec::<String>::new()));
    });
}

#[test]
fn a_node_is_given_back_only_under_the_lock() {
    virtual_time(async {
        let world = world();
        let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        crashes_when(&world, |machine| machine.ran.iter().any(|line| line.contains("handler")));
        assert!(process(&world, &hosts, &dir, 1).await.is_none());
        *lock(&world.queue.lock) = Some("OTHER".to_owned());
        lock(&world.queue.log).clear();
        let result = process(&world, &hosts, &dir, 2).await.unwrap();
        assert_eq!(result.out_of_service, ["gpu001"]);
        assert_eq!(*lock(&world.queue.log), Vec::<String>::new());
        let past = events_in(&dir);
        let said = past.iter().rev().find_map(|event| match &event.what {
            What::Drain { host, step: DrainStep::Stuck { why } } if host == "gpu001" => Some(why.clone()),
            _ => None,
        });
        let said = said.unwrap();
        assert!(
            said.starts_with("run OTHER holds the lock at queue; wait for it, or take it over"),
            "{said}"
        );
        assert_eq!(lock(&world.queue.lock).as_deref(), Some("OTHER"));
    });
}

#[test]
fn a_run_that_was_killed_while_it_drained_takes_its_drain_up() {
    virtual_time(async {
        let world = world();
        works(&world, "gpu001", 20 * MINUTE);
        let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
        let dir = RunDir::new(state.path(), &RunId::generate());
        let crash = Arc::clone(&world);
        tokio::spawn(async move {
            asked(&crash, "cordon gpu001").await;
            crash.crashed.notify_one();
        });
        assert!(process(&world, &hosts, &dir, 1).await.is_none());
        let held = world.queue.holder("gpu001");
        assert!(matches!(held, Some(Holder::Run(_))));
        let result = process(&world, &hosts, &dir, 2).await.unwrap();
        assert_eq!((result.stop, result.held), (None, false));
        let cordons = lock(&world.queue.log).iter().filter(|entry| *entry == "cordon gpu001").count();
        assert_eq!(cordons, 1, "the drain of the first process serves the second");
    });
}

#[test]
fn others_outages_are_waited_for_and_not_for_ever() {
    for returns in [true, false] {
        virtual_time(async {
            let world = world();
            hold(&world, "gpu002");
            hold(&world, "gpu003");
            if returns {
                let world = Arc::clone(&world);
                tokio::spawn(async move {
                    tokio::time::sleep(MINUTE).await;
                    lock(&world.queue.held).clear();
                });
            }
            let ended = run(&world, Overrules::default(), None).await;
            let (state, message) = ended.state("gpu001");
            if returns {
                assert_eq!(state, NodeState::Done, "{message}");
                assert_eq!(ended.log[..2], ["cordon gpu001", "resume gpu001"]);
            } else {
                assert_eq!(state, NodeState::Held);
                assert!(
                    message.contains("these will not come back by themselves: gpu002 gpu003"),
                    "{message}"
                );
                assert_eq!(ended.log, Vec::<String>::new());
            }
        });
    }
}

#[test]
fn outages_that_limit_leaves_out_take_up_the_budget() {
    virtual_time(async {
        let world = world();
        lock(&world.neighbours).extend(["gpu008".to_owned(), "gpu009".to_owned()]);
        hold(&world, "gpu009");
        let ended = run(&world, Overrules::default(), None).await;
        assert_eq!((ended.state("gpu001").0, ended.result.stop), (NodeState::Done, None));
        assert_eq!(*lock(&world.queue.most_out), 2, "one of ours beside theirs, two are allowed");

        let world = self::world();
        lock(&world.neighbours).extend(["gpu008".to_owned(), "gpu009".to_owned()]);
        hold(&world, "gpu008");
        hold(&world, "gpu009");
        let ended = run(&world, Overrules::default(), None).await;
        let (state, message) = ended.state("gpu001");
        assert_eq!(state, NodeState::Held);
        assert!(message.contains("gpu[008,009], which --limit leaves out"), "{message}");
        assert_eq!(ended.log, Vec::<String>::new());
    });
}

/// What is said of the drains of twenty nodes, and how many were tried out.
async fn rehearsed(world: &Arc<World>) -> (Vec<String>, usize) {
    let (hosts, state) = (hosts(20), tempfile::tempdir().unwrap());
    let dir = RunDir::new(state.path(), &RunId::generate());
    let mut recorder = Recorder::new(Journal::create(&dir).unwrap(), Vec::new(), jiff::Timestamp::now);
    let scheduler = FakeScheduler::of(world, None);
    drain_preview::tell_what_blocks(&scheduler, hosts, &mut recorder).await.unwrap();
    recorder.finish().unwrap();
    let said = events_in(&dir).into_iter().filter_map(|event| match event.what {
        What::Notice { text, .. } => Some(text),
        _ => None,
    });
    (said.collect(), lock(&world.queue.log).len())
}

#[test]
fn a_rehearsal_gives_up_on_a_scheduler_that_is_away() {
    virtual_time(async {
        let world = World::new(&hosts(20), true);
        *lock(&world.queue.silent) = 2;
        let (said, tried) = rehearsed(&world).await;
        assert_eq!(tried, 20);
        assert_eq!(
            said,
            [
                "whether gpu[001,002] could be drained now is unknown (2 times): `gpu001`: no answer",
                "gpu[003-020] could be drained now at queue"
            ]
        );
        let world = World::new(&hosts(20), true);
        *lock(&world.queue.silent) = 1000;
        let (said, tried) = rehearsed(&world).await;
        assert!(tried < 20, "{tried}");
        assert_eq!(
            said,
            [
                "whether gpu[001-003] could be drained now is unknown (3 times): `gpu001`: no answer",
                "whether gpu[004-020] could be drained now was not tried out: 3 in a row could not be asked"
            ]
        );
        let world = World::new(&hosts(20), true);
        *lock(&world.queue.hangs) = true;
        let begin = Instant::now();
        let (said, _) = rehearsed(&world).await;
        assert_eq!(begin.elapsed().as_secs(), 300);
        assert_eq!(said, ["whether gpu[001-020] could be drained now was not tried out: 300 s are over"]);
    });
}

#[test]
fn a_node_that_an_earlier_run_left_drained_is_named() {
    virtual_time(async {
        let world = world();
        run(&world, Overrules::default(), None).await;
        let marker = Marker { run: "EARLIER".to_owned(), nonce: "1".to_owned() };
        lock(&world.queue.held).insert("gpu002".to_owned(), Holder::Run(marker));
        let ended = run(&world, Overrules::default(), None).await;
        assert_eq!(ended.state("gpu002").0, NodeState::Done, "its commands ran, which need no drain");
        let named = ended.events.iter().find_map(|what| match what {
            What::Notice { text, .. } => Some(text.as_str()),
            _ => None,
        });
        insta::assert_snapshot!(named.unwrap(), @"gpu002 is still drained at queue by run EARLIER: no journal of this machine tells of it; `gpufleet resume EARLIER` goes on with it where it was started, and `gpufleet adopt PLAYBOOK --run EARLIER` takes over what it left if its journal is lost");
    });
}

//! Runs of several plays that are taken up again: earlier plays may end otherwise than they had when a later one began.

use std::{fs, sync::Arc};

use tempfile::TempDir;
use tokio::sync::mpsc;

use super::{
    Engine, Holder, RunDir, RunId, RunResult, Stop, World, engine, events_in, hosts, process_of,
    process_with, virtual_time,
    world::{Fault, Machine, lock},
};
use crate::{
    drain::Marker,
    event::{DrainStep, NodeOutcome, NodeState, Verb, What},
    playbook::Overrides,
    rollout::Amount,
};

const TWO: &str = r#"
- hosts: all
  gather_facts: false
  max_unavailable: 2
  tasks:
    - gpu_ecc: {mode: enabled}
    - reboot: {when: required, timeout: 20m}
- hosts: all
  gather_facts: false
  max_unavailable: 1
  tasks:
    - command: "{{ 'true' if inventory_hostname != 'gpu004' else '/bin/ill' }}"
    - gpu_ecc: {mode: enabled}
    - reboot: {when: required, timeout: 20m}
    - command: /bin/end
"#;

type ComeSoFar = fn(&Machine) -> bool;

/// A run over five hosts: the first play has gpu001 and gpu005, the second one the others.
struct Story {
    world: Arc<World>,
    hosts: Vec<String>,
    dir: RunDir,
    _state: TempDir,
    epoch: u64,
}

impl Story {
    fn new() -> Self {
        let (hosts, state) = (hosts(5), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        let dir = RunDir::new(state.path(), &RunId::generate());
        Self { world, hosts, dir, _state: state, epoch: 0 }
    }

    /// One process; `None` when it was killed, which happens as soon as gpu002 is down.
    async fn process(&mut self, killed: bool, set: impl Fn(&mut Engine)) -> Option<RunResult> {
        let killed = killed.then_some(("gpu002", (|machine| machine.down) as ComeSoFar));
        let with = |engine: &mut Engine| {
            let (first, second) = (["gpu001", "gpu005"], ["gpu002", "gpu003", "gpu004"]);
            engine.plays.hosts = vec![first.map(str::to_owned).to_vec(), second.map(str::to_owned).to_vec()];
            set(engine);
        };
        self.process_of(TWO, killed, with).await
    }

    /// The same of another playbook, killed as soon as a machine has come so far.
    async fn process_of(
        &mut self,
        playbook: &str,
        killed: Option<(&'static str, ComeSoFar)>,
        set: impl Fn(&mut Engine),
    ) -> Option<RunResult> {
        self.epoch += 1;
        let mut engine = engine(playbook, &self.world, &self.hosts, self.epoch);
        set(&mut engine);
        let killer = killed.map(|(host, come_so_far)| {
            let world = Arc::clone(&self.world);
            tokio::spawn(async move {
                while !world.with(host, |machine| come_so_far(machine)) {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                world.crashed.notify_one();
            })
        });
        let (_keep, mut interrupts) = mpsc::channel(1);
        let result = process_with(engine, &self.world, &self.hosts, &self.dir, &mut interrupts).await;
        killer.inspect(|killer| killer.abort());
        result
    }

    fn end(&self, host: &str) -> NodeOutcome {
        let events = events_in(&self.dir);
        let end = events.into_iter().rev().find_map(|event| match event.what {
            What::NodeFinished { host: name, outcome } if name == host => Some(outcome),
            _ => None,
        });
        end.unwrap()
    }

    fn states(&self) -> Vec<NodeState> {
        self.hosts.iter().map(|host| self.end(host).state).collect()
    }
}

use NodeState::{Done, Failed, Held, Unreachable};

fn as_written(_: &mut Engine) {}

#[test]
fn a_host_that_goes_out_in_an_earlier_play_takes_up_the_budget_of_the_later_one() {
    virtual_time(async {
        let mut story = Story::new();
        story.world.with("gpu001", |machine| machine.works = true);
        // Why busy: whichever of the two asks first, gpu002 is the one that is out at the kill.
        story.world.with("gpu003", |machine| machine.works = true);
        assert!(story.process(true, as_written).await.is_none());
        story.world.with("gpu003", |machine| machine.works = false);
        story.world.with("gpu001", |machine| {
            machine.works = false;
            machine.fault = Fault::NeverBack;
        });
        let result = story.process(false, as_written).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, vec!["gpu001".to_owned()]));
        assert_eq!(story.states(), [Unreachable, Done, Held, Failed, Done]);
        let message = story.end("gpu003").message.unwrap_or_default();
        assert!(message.contains("`max_unavailable` allows 1") && message.contains("gpu001"), "{message}");
        assert_eq!(story.world.with("gpu003", |machine| machine.asked), 0);

        story.world.with("gpu001", |machine| machine.mend());
        let result = story.process(false, as_written).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        assert_eq!(story.states(), [Done, Done, Done, Failed, Done]);
    });
}

#[test]
fn a_host_that_returns_to_an_earlier_play_leaves_the_later_one_its_budget() {
    virtual_time(async {
        let mut story = Story::new();
        story.world.with("gpu001", |machine| machine.fault = Fault::NeverBack);
        let two = |engine: &mut Engine| engine.options.rollout.max_unavailable = Some(Amount::Count(2));
        assert!(story.process(true, two).await.is_none());
        story.world.with("gpu001", |machine| machine.mend());
        let result = story.process(false, two).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        assert_eq!(story.states(), [Done, Done, Done, Failed, Done]);
        let reboots = |host| story.world.with(host, |machine| machine.node.reboots);
        assert_eq!(["gpu001", "gpu002", "gpu003"].map(reboots), [1, 1, 1]);
    });
}

#[test]
fn nodes_that_a_later_play_has_out_take_up_the_budget_of_an_earlier_one() {
    virtual_time(async {
        let mut story = Story::new();
        story.world.with("gpu001", |machine| machine.works = true);
        let one = |engine: &mut Engine| engine.options.rollout.max_unavailable = Some(Amount::Count(1));
        assert!(story.process(true, one).await.is_none());
        story.world.with("gpu001", |machine| machine.works = false);
        let result = story.process(false, one).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        assert_eq!(story.states(), [Held, Done, Done, Failed, Done]);
        let message = story.end("gpu001").message.unwrap_or_default();
        assert!(message.contains("gpu002"), "{message}");
        story.process(false, one).await.unwrap();
        assert_eq!(story.states(), [Done, Done, Done, Failed, Done]);
        assert_eq!(*lock(&story.world.most_down), 1);
    });
}

#[test]
fn one_failure_more_in_an_earlier_play_stops_the_later_one() {
    virtual_time(async {
        let mut story = Story::new();
        let fails = |engine: &mut Engine| {
            engine.options.rollout.overrides = Overrides { max_failures: Some(1), ..Overrides::default() };
            engine.options.rollout.max_unavailable = Some(Amount::Count(3));
        };
        story.world.with("gpu001", |machine| machine.works = true);
        story.world.with("gpu003", |machine| machine.works = true);
        // Why gpu004 fails before: the failure is on record, and one is allowed.
        assert!(story.process(true, fails).await.is_none());
        story.world.with("gpu003", |machine| machine.works = false);
        story.world.with("gpu001", |machine| {
            machine.works = false;
            machine.fault = Fault::NeverBack;
        });
        let result = story.process(false, fails).await.unwrap();
        assert!(matches!(&result.stop, Some(Stop::Threshold(why)) if why.contains('2')), "{result:?}");
        assert_eq!(result.out_of_service, ["gpu001"]);
        assert_eq!(story.end("gpu002").state, Done, "what was under way reaches a safe point");
        let again = story.process(false, fails).await.unwrap();
        assert!(matches!(again.stop, Some(Stop::Threshold(_))), "{again:?}");
    });
}

#[test]
fn a_stop_in_an_earlier_play_leaves_nobody_of_a_later_one_out() {
    virtual_time(async {
        let mut story = Story::new();
        let none = |engine: &mut Engine| {
            engine.options.rollout.overrides = Overrides { max_failures: Some(0), ..Overrides::default() };
            engine.plays.hosts[1].truncate(2);
        };
        story.world.with("gpu001", |machine| machine.works = true);
        story.world.with("gpu003", |machine| machine.works = true);
        assert!(story.process(true, none).await.is_none());
        story.world.with("gpu003", |machine| machine.works = false);
        story.world.with("gpu001", |machine| {
            machine.works = false;
            machine.fault = Fault::NeverBack;
        });
        let result = story.process(false, none).await.unwrap();
        assert!(matches!(result.stop, Some(Stop::Threshold(_))), "{result:?}");
        assert_eq!(result.out_of_service, ["gpu001"]);
        assert_eq!(story.end("gpu002").state, Done);
        assert_eq!(story.world.with("gpu003", |machine| machine.asked), 0);
    });
}

#[test]
fn a_journal_that_does_not_tell_what_a_play_began_with_is_taken_up_as_before() {
    virtual_time(async {
        let mut story = Story::new();
        assert!(story.process(true, as_written).await.is_none());
        let journal = std::fs::read_to_string(story.dir.journal()).unwrap();
        let tells = |line: &&str| !line.contains("\"play_began_with\"");
        let older: String = journal.split_inclusive('\n').filter(tells).collect();
        assert_eq!(journal.matches("so_far").count(), 2);
        assert_eq!(older.matches("so_far").count(), 0);
        std::fs::write(story.dir.journal(), older).unwrap();
        let result = story.process(false, as_written).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        assert_eq!(story.states(), [Done, Done, Done, Failed, Done]);
    });
}

const SAME_HOSTS: &str = r#"
- hosts: all
  gather_facts: false
  max_unavailable: 5
  tasks:
    - gpu_ecc: {mode: enabled}
    - reboot: {when: required, timeout: 20m}
    - command: /bin/first
- hosts: all
  gather_facts: false
  tasks:
    - command: /bin/second
    - command: /bin/third
"#;

#[test]
fn what_an_earlier_play_did_when_it_was_taken_up_again_is_told_of_that_play() {
    virtual_time(async {
        let mut story = Story::new();
        story.world.with("gpu001", |machine| machine.works = true);
        let held = story.process_of(SAME_HOSTS, None, as_written).await.unwrap();
        assert!(held.held, "{held:?}");
        story.world.with("gpu001", |machine| machine.works = false);
        let second = |machine: &Machine| machine.ran.iter().any(|line| line.contains("second"));
        assert!(story.process_of(SAME_HOSTS, Some(("gpu001", second)), as_written).await.is_none());
        let result = story.process_of(SAME_HOSTS, None, as_written).await.unwrap();
        assert_eq!((result.stop, result.out_of_service, story.states()), (None, Vec::new(), vec![Done; 5]));
        let ran = |host: &str| story.world.with(host, |machine| (machine.node.reboots, machine.ran.clone()));
        assert_eq!(ran("gpu001").1.len(), 3);
        for host in &story.hosts {
            assert_eq!(ran(host), ran("gpu001"), "{host}");
        }
    });
}

const DRAINED_TWICE: &str = r#"
- hosts: all
  gather_facts: false
  tasks:
    - gpu_ecc: {mode: enabled}
    - reboot: {when: required, timeout: 20m}
- hosts: all
  gather_facts: false
  rollout: {drain: {slurm: {timeout: 1h}}}
  tasks:
    - command: /bin/end
"#;

#[test]
fn what_a_lost_run_left_drained_is_adopted_once() {
    virtual_time(async {
        let (hosts, state) = (hosts(2), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, true);
        let marker = Marker { run: "LOST".to_owned(), nonce: "1".to_owned() };
        lock(&world.queue.held).insert("gpu001".to_owned(), Holder::Run(marker.clone()));
        let dir = RunDir::new(state.path(), &RunId::generate());
        let mut engine = engine(DRAINED_TWICE, &world, &hosts, 1);
        engine.plays.schedulers = vec![engine.plays.schedulers[0].clone(); 2];
        engine.options.earlier.adopted = [("gpu001".to_owned(), marker)].into();
        let (_keep, mut interrupts) = mpsc::channel(1);
        let result = process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        let adopted = events_in(&dir).into_iter().filter(|event| {
            matches!(&event.what, What::Drain { step: DrainStep::Begun { run, .. }, .. } if run == "LOST")
        });
        assert_eq!(adopted.count(), 1);
        let log = lock(&world.queue.log).clone();
        assert_eq!(log.iter().filter(|entry| *entry == "resume gpu001").count(), 1, "{log:?}");
    });
}

/// The result of a `run_once` task reaches every host, and all of them keep it for a resume.
#[test]
fn what_a_secret_task_gives_to_all_hosts_is_sealed() {
    let playbook = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {command: /bin/token, run_once: true, no_log: true, \
                    register: token}\n";
    virtual_time(async {
        let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        let dir = RunDir::new(state.path(), &RunId::generate());
        process_of(playbook, &world, &hosts, &dir, 1).await.unwrap();
        let secret = r#""stdout":"done""#;
        let text = |path| fs::read_to_string(path).unwrap();
        assert_eq!(text(dir.journal()).matches(secret).count(), 0);
        assert_eq!(
            text(dir.sealed()).matches(secret).count(),
            3,
            "of the host that ran it, and of the two others"
        );
    });
}

/// A reading of a large fleet must not hold a connection to each node that it is done with.
#[test]
fn a_reading_ends_connections_that_no_later_play_needs() {
    const READING: &str = "
- hosts: all
  gather_facts: false
  tasks: [{gpu_ecc: {mode: enabled}}]
- hosts: all
  gather_facts: false
  tasks: [{gpu_ecc: {mode: enabled}}]
";
    virtual_time(async {
        for (verb, most) in [(Verb::Plan, 3), (Verb::Run, 6)] {
            let (hosts, state) = (hosts(6), tempfile::tempdir().unwrap());
            let world = World::new(&hosts, false);
            let dir = RunDir::new(state.path(), &RunId::generate());
            let mut engine = engine(READING, &world, &hosts, 1);
            engine.options.verb = verb;
            engine.options.forks = 1;
            // The later play is for two of them, which keep their connections.
            engine.plays.hosts[1] = vec!["gpu001".to_owned(), "gpu004".to_owned()];
            let (_keep, mut interrupts) = mpsc::channel(1);
            process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
            assert_eq!(lock(&world.network).most_open, most, "{verb:?}");
        }
    });
}

/// Otherwise a person agrees to other canaries than the run then has.
#[test]
fn a_plan_in_which_nodes_fail_divides_them_as_the_run_does() {
    const FAILING: &str = "
- hosts: all
  waves: [canary, 100%]
  tasks: [{fail: {msg: nothing fits}}]
";
    virtual_time(async {
        let [planned, run] = [Verb::Plan, Verb::Run].map(|verb| async move {
            let (hosts, state) = (hosts(4), tempfile::tempdir().unwrap());
            let world = World::new(&hosts, false);
            for host in &hosts {
                world.with(host, |machine| machine.gpus = Some(0));
            }
            let dir = RunDir::new(state.path(), &RunId::generate());
            let mut engine = engine(FAILING, &world, &hosts, 1);
            engine.options.verb = verb;
            let (_keep, mut interrupts) = mpsc::channel(1);
            process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
            events_in(&dir).into_iter().find_map(|event| match event.what {
                What::PlayStarted(play) => Some(play.waves),
                _ => None,
            })
        });
        let (planned, run) = (planned.await.unwrap(), run.await.unwrap());
        assert_eq!(planned.first().map(|wave| wave.label.as_str()), Some("canary"));
        assert_eq!(planned, run);
    });
}

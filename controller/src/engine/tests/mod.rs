//! Whole runs over a fleet in memory, in virtual time: cut off anywhere, taken up again, and compared with a run that
//! nothing disturbed.

mod commands;
mod drains;
mod fatal;
mod gifts;
mod give_back;
mod interrupts;
mod jobs;
mod late;
mod learned;
mod left_behind;
mod node_objects;
mod older;
mod pauses;
mod places;
mod plays;
mod queue;
mod reboots;
mod returns;
mod silence;
mod steps;
mod world;

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    sync::Arc,
};

use futures::future::BoxFuture;
use gpufleet_protocol::RunEpoch;
use proptest::prelude::*;
use tokio::sync::mpsc;

use self::{
    queue::{FakeScheduler, Holder},
    world::{Switches, Wires, World},
};
use super::{
    Confirm, Engine, Forecast, Options, PlayInputs, Recorder, Refusal, ResultsBudget, RolloutOptions,
    RunHistory, RunResult, Stop, TaskOptions,
};
use crate::{
    event::{DrainStep, Event, RunStarted, Verb, What},
    interpreter::{CachedFiles, HostContext},
    journal::{Entry, Journal, Record, RunDir, RunId, read_events, read_for_resume},
    playbook::{Program, TagFilter},
    template::Value,
};

const PLAYBOOK: &str = r#"
- name: rolling
  hosts: all
  gather_facts: false
  waves: [1, 2]
  max_unavailable: 1
  tasks:
    - name: swappiness
      sysctl: {name: vm.swappiness, value: "10"}
      notify: tell
    - name: once
      command: /bin/once
      register: out
    - name: secret
      command: /bin/secret
      no_log: true
    - name: ecc
      gpu_ecc: {mode: enabled}
    - name: mig
      gpu_mig: {mode: enabled}
    - name: power
      gpu_power: {limit_watts: 500}
    - name: reboot
      reboot: {when: required}
    - name: each
      command: "/bin/each {{ item }}"
      loop: [a, b]
      when: out.stdout == 'done'
  handlers:
    - name: tell
      command: /bin/handler
- name: after
  hosts: all
  gather_facts: false
  tasks:
    - command: "/bin/after {{ out.stdout }}"
"#;

struct Yes;

impl Confirm for Yes {
    fn confirm<'a>(&'a self, _: &'a Forecast) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async { Ok(()) })
    }
    fn is_blanket(&self) -> bool {
        true
    }
}

fn hosts(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("gpu{number:03}")).collect()
}

fn started(hosts: &[String]) -> RunStarted {
    RunStarted { gpufleet: "0".to_owned(), hosts: hosts.to_vec(), ..RunStarted::of("RUN", Verb::Run) }
}

fn engine(playbook: &str, world: &Arc<World>, hosts: &[String], epoch: u64) -> Engine {
    let text = match world.drains {
        true => playbook.replacen("  tasks:", "  rollout: {drain: {slurm: {timeout: 1h}}}\n  tasks:", 1),
        false => playbook.to_owned(),
    };
    let files: HashMap<String, String> = [("play.yml".to_owned(), text)].into();
    let program = Arc::new(Program::load(&["play.yml"], &files).unwrap_or_else(|errors| panic!("{errors}")));
    let context = |host: &String| {
        let context = HostContext { host: host.as_str().into(), ..HostContext::default() };
        (host.clone(), Arc::new(context))
    };
    Engine {
        delegates: Arc::default(),
        remembered: Vec::new(),
        results_budget: Arc::new(ResultsBudget::of(hosts.len())),
        plays: PlayInputs {
            hosts: program.plays.iter().map(|_| hosts.to_vec()).collect(),
            neighbours: vec![world::lock(&world.neighbours).clone(); program.plays.len()],
            contexts: vec![Arc::new(hosts.iter().map(context).collect())],
            logins: Vec::new(),
            schedulers: vec![world.drains.then(|| FakeScheduler::of(world, *world.notice.lock().unwrap()))],
            durations: Vec::new(),
        },
        program,
        files: Arc::new(CachedFiles::new(HashMap::<String, String>::new())),
        connector: Arc::new(Wires(Arc::clone(world))),
        confirm: Arc::new(Yes),
        runner: Arc::new(Switches(Arc::clone(world))),
        options: Options {
            verb: Verb::Run,
            forks: 64,
            rollout: RolloutOptions::default(),
            tasks: TaskOptions {
                timeout_s: 600,
                default_become: false,
                tags: Arc::new(TagFilter::default()),
                diff: false,
                runs_commands: false,
                own_commands: false,
                stepper: None,
                keeps: None,
                keep_signer: None,
            },
            holder: RunEpoch { run: "RUN".to_owned(), epoch },
            resumed: epoch > 1,
            winds_up: false,
            overrules: super::Overrules::default(),
            own_boot: world.own_boot.lock().unwrap().clone(),
            earlier: super::EarlierRuns::default(),
        },
    }
}

/// One process: begins the run, or takes it up from its journal. `None` when it was killed.
async fn process(world: &Arc<World>, hosts: &[String], dir: &RunDir, epoch: u64) -> Option<RunResult> {
    process_of(PLAYBOOK, world, hosts, dir, epoch).await
}

async fn process_of(
    playbook: &str,
    world: &Arc<World>,
    hosts: &[String],
    dir: &RunDir,
    epoch: u64,
) -> Option<RunResult> {
    let (_keep, mut interrupts) = mpsc::channel(1);
    process_with(engine(playbook, world, hosts, epoch), world, hosts, dir, &mut interrupts).await
}

async fn process_with(
    engine: Engine,
    world: &Arc<World>,
    hosts: &[String],
    dir: &RunDir,
    interrupts: &mut mpsc::Receiver<()>,
) -> Option<RunResult> {
    // Why: two nodes may have been at the step that kills.
    let _ = futures::FutureExt::now_or_never(world.crashed.notified());
    let taken_up = dir.journal().exists();
    let records = if taken_up { read_for_resume(dir).unwrap() } else { Vec::new() };
    let journal = if taken_up { Journal::reopen(dir).unwrap() } else { Journal::create(dir).unwrap() };
    let begun = records.iter().any(|record| matches!(record.what, Entry::Event(What::RunStarted(_))));
    let past = RunHistory::of(&records);
    let mut recorder = Recorder::after(records, journal, Vec::new(), jiff::Timestamp::now);
    let run = async {
        if begun {
            engine.resume(started(hosts), past, "test".to_owned(), &mut recorder, interrupts).await
        } else {
            engine.run(started(hosts), &mut recorder, interrupts).await
        }
    };
    let result = tokio::select! {
        result = run => Some(result.unwrap()),
        () = world.crashed.notified() => None,
    };
    recorder.finish().unwrap();
    result
}

/// The events of a run's journal.
fn events_in(dir: &RunDir) -> Vec<Event> {
    read_events(&dir.journal()).unwrap()
}

/// Removes so many of the last records, and part of one more, as far as a crash may: what had to be on disk before an act
/// stays.
fn lose_tail(dir: &RunDir, records: usize, torn: usize) {
    let text = fs::read(dir.journal()).unwrap();
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let durable = |line: &[u8]| {
        let record: Record = serde_json::from_slice(line).unwrap();
        let Entry::Event(what) = record.what else { return false };
        match what {
            What::PermitGranted { .. } | What::RebootIssued { .. } | What::RunStarted(_) => true,
            What::TaskStarted { kind, .. } => kind == "command",
            What::Drain { step, .. } => matches!(step, DrainStep::Begun { .. }),
            _ => false,
        }
    };
    let least = lines.iter().rposition(|line| durable(line)).map_or(0, |at| at + 1);
    let keep = lines.len().saturating_sub(records).max(least);
    let mut kept: Vec<u8> = lines[..keep].concat();
    if let Some(next) = lines.get(keep) {
        kept.extend(&next[..torn.min(next.len() - 1)]);
    }
    fs::write(dir.journal(), kept).unwrap();
}

fn virtual_time<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

/// What must be the same whatever happened to the controller.
fn outcome(world: &World, hosts: &[String]) -> Vec<String> {
    hosts
        .iter()
        .map(|host| {
            world.with(host, |machine| {
                format!("{:?} reboots={} ran={:?}", machine.node.real, machine.node.reboots, machine.ran)
            })
        })
        .collect()
}

fn undisturbed(count: usize) -> Vec<String> {
    virtual_time(async {
        let (hosts, state) = (hosts(count), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let result = process(&world, &hosts, &dir, 1).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        outcome(&world, &hosts)
    })
}

/// Kills at each of these steps in turn, losing so much of the journal each time; then lets the run end.
fn killed(count: usize, kills: &[(u32, usize, usize)], drains: bool) -> (Vec<String>, usize, Option<Stop>) {
    virtual_time(async {
        let (hosts, state) = (hosts(count), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, drains);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let mut epoch = 1;
        for (step, records, torn) in kills {
            *world.crash_in.lock().unwrap() = Some(*step);
            if process(&world, &hosts, &dir, epoch).await.is_some() {
                break;
            }
            lose_tail(&dir, *records, *torn);
            epoch += 1;
        }
        *world.crash_in.lock().unwrap() = None;
        let result = process(&world, &hosts, &dir, epoch + 1).await.unwrap();
        assert_eq!(result.out_of_service, Vec::<String>::new());
        assert_eq!(*world.queue.held.lock().unwrap(), BTreeMap::new());
        assert_eq!(*world.queue.lock.lock().unwrap(), None);
        assert!(*world.queue.most_out.lock().unwrap() <= 1, "{:?}", world.queue.log.lock().unwrap());
        (outcome(&world, &hosts), *world.most_down.lock().unwrap(), result.stop)
    })
}

#[test]
fn a_run_that_nothing_disturbs_does_each_thing_once() {
    insta::assert_snapshot!(undisturbed(1).join("\n"), @r#"State { sysctl: {"vm.swappiness": "10"}, cmdline: [], next_cmdline: [], ecc: true, ecc_pending: true, mig: true, power_w: 500, files: {}, stopped: {} } reboots=1 ran=["Argv([\"/bin/once\"])", "Argv([\"/bin/secret\"])", "Argv([\"/bin/each\", \"a\"])", "Argv([\"/bin/each\", \"b\"])", "Argv([\"/bin/handler\"])", "Argv([\"/bin/after\", \"done\"])"]"#);
}

#[test]
fn killed_at_any_step_the_run_ends_as_if_it_had_not_been() {
    let expected = undisturbed(2);
    for step in 0..200 {
        for drains in [false, true] {
            let (outcome, down, stop) = killed(2, &[(step, 0, 0)], drains);
            assert_eq!((&outcome, stop), (&expected, None), "killed at step {step}, drains: {drains}");
            assert!(down <= 1, "{down} nodes down at once, killed at step {step}, drains: {drains}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: schedules(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn killed_again_and_again_with_part_of_the_journal_lost(
        kills in prop::collection::vec((0_u32..120, 0_usize..12, 0_usize..200), 1..5),
        drains in any::<bool>(),
    ) {
        let (outcome, down, stop) = killed(3, &kills, drains);
        prop_assert_eq!((outcome, stop), (undisturbed(3), None));
        prop_assert!(down <= 1);
    }
}

const TWO_PLAYS: &str = r#"
- hosts: all
  gather_facts: false
  max_failures: 1
  tasks: [{command: /bin/first}]
- hosts: all
  gather_facts: false
  max_failures: 1
  tasks: [{command: /bin/second}]
"#;

#[test]
fn a_host_that_one_play_lost_counts_once_and_joins_all_plays_when_it_is_back() {
    virtual_time(async {
        let (hosts, state) = (hosts(3), tempfile::tempdir().unwrap());
        let world = World::new(&hosts, false);
        world.with("gpu002", |machine| machine.down = true);
        let dir = RunDir::new(state.path(), &RunId::generate());
        let result = process_of(TWO_PLAYS, &world, &hosts, &dir, 1).await.unwrap();
        assert_eq!(result.stop, None, "one failure of one allowed");
        world.with("gpu001", |machine| assert_eq!(machine.ran.len(), 2));
        world.with("gpu002", |machine| machine.down = false);
        let result = process_of(TWO_PLAYS, &world, &hosts, &dir, 2).await.unwrap();
        assert_eq!(result.stop, None);
        let ran = |host: &str| world.with(host, |machine| machine.ran.clone());
        assert_eq!(ran("gpu002"), ran("gpu001"));
        assert_eq!(ran("gpu001").len(), 2);
    });
}

/// Random schedules: few in each test run, many in `make chaos`.
fn schedules() -> u32 {
    std::env::var("GPUFLEET_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(64)
}

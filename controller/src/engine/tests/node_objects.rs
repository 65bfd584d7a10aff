//! `kubernetes_node` between the engine and a scheduler: what it is told of the host, and what becomes of its answers.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::{FutureExt as _, ready};
use gpufleet_protocol::{Change, Disruption, OpOutcome, OpStatus, Property, Subject, message::Mode};

use super::{
    world::{boot_id, lock},
    *,
};
use crate::{
    drain::{
        Activity, Cordon, DrainError, Drainer, Effect, Marker, Outage, Ownership, Scheduler, Target,
        WantedObject,
    },
    event::NodeState,
};

const PLAY: &str = "- hosts: all
  gather_facts: false
  rollout: {drain: kubernetes}
  tasks:
    - {name: pool, kubernetes_node: {labels: {pool: training}}}
";

/// A cluster that keeps one label of each node, and drains nothing.
struct Objects {
    world: Arc<World>,
    pools: Mutex<BTreeMap<String, String>>,
    asked: Mutex<Vec<(Mode, Option<String>)>>,
    /// Kills the controller once the label is written, before it hears of that.
    kills: AtomicBool,
    silent: AtomicBool,
}

impl Objects {
    fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            pools: Mutex::default(),
            asked: Mutex::default(),
            kills: AtomicBool::new(false),
            silent: AtomicBool::new(false),
        })
    }

    async fn answer(&self, target: &Target, wanted: &WantedObject) -> Result<OpOutcome, DrainError> {
        lock(&self.asked).push((wanted.mode, wanted.boot_id.clone()));
        if self.silent.load(Ordering::Relaxed) {
            return Err(DrainError::Request {
                request: "GET /api/v1/nodes/gpu001".to_owned(),
                place: String::new(),
                why: "connection refused".to_owned(),
                effect: Effect::None,
                next: None,
            });
        }
        let (key, value) = wanted.declared.labels().next().expect("one label");
        let (key, value) = (key.to_owned(), value.expect("a value"));
        let before = lock(&self.pools).get(&target.node).cloned();
        if before.as_ref() == Some(&value) {
            return Ok(OpOutcome::new(OpStatus::Ok));
        }
        if wanted.mode == Mode::Apply {
            lock(&self.pools).insert(target.node.clone(), value.clone());
            if self.kills.swap(false, Ordering::Relaxed) {
                self.world.crashed.notify_one();
                std::future::pending::<()>().await;
            }
        }
        let mut outcome = OpOutcome::new(OpStatus::Changed);
        let subject = Subject::KubernetesLabel { key };
        outcome.changes = vec![Change::new(subject, Property::VALUE, before, value, Disruption::Live)];
        Ok(outcome)
    }
}

fn nothing<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T, DrainError>> {
    let why = "nothing is drained for a label".to_owned();
    ready(Err(DrainError::NotSent { why, left: "changed" })).boxed()
}

impl Drainer for Objects {
    fn name(&self) -> &str {
        "kubernetes"
    }

    fn cordon<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Marker,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Cordon, DrainError>> {
        nothing()
    }

    fn notify<'a>(&'a self, _: &'a Target, _: &'a Marker) -> BoxFuture<'a, Result<Vec<String>, DrainError>> {
        nothing()
    }

    fn activity<'a>(&'a self, _: &'a Target) -> BoxFuture<'a, Result<Activity, DrainError>> {
        nothing()
    }

    fn ownership<'a>(&'a self, _: &'a Target, _: &'a Marker) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        nothing()
    }

    fn resume<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Marker,
        _: Option<jiff::Timestamp>,
    ) -> BoxFuture<'a, Result<Ownership, DrainError>> {
        nothing()
    }

    fn survey<'a>(&'a self, _: &'a [Target]) -> BoxFuture<'a, Result<Vec<Outage>, DrainError>> {
        ready(Ok(Vec::new())).boxed()
    }

    fn declare<'a>(
        &'a self,
        target: &'a Target,
        wanted: &'a WantedObject,
    ) -> BoxFuture<'a, Result<OpOutcome, DrainError>> {
        self.answer(target, wanted).boxed()
    }
}

fn site() -> (Arc<World>, Arc<Objects>, Vec<String>, RunDir, tempfile::TempDir) {
    let (hosts, state) = (hosts(2), tempfile::tempdir().unwrap());
    let world = World::new(&hosts, false);
    let objects = Objects::new(&world);
    let dir = RunDir::new(state.path(), &RunId::generate());
    (world, objects, hosts, dir, state)
}

fn engine_of(world: &Arc<World>, objects: &Arc<Objects>, hosts: &[String], epoch: u64) -> Engine {
    let mut engine = engine(PLAY, world, hosts, epoch);
    let drainer: Arc<dyn Drainer> = Arc::clone(objects) as Arc<dyn Drainer>;
    engine.plays.schedulers = vec![Some(Arc::new(Scheduler::new(drainer, Duration::from_secs(60))))];
    engine
}

fn states(dir: &RunDir) -> Vec<(NodeState, String)> {
    let events = events_in(dir).into_iter();
    let finished = events.filter_map(|event| match event.what {
        What::NodeFinished { outcome, .. } => Some((outcome.state, outcome.message.unwrap_or_default())),
        _ => None,
    });
    finished.collect()
}

#[test]
fn a_label_is_written_on_the_object_of_the_host_in_its_boot() {
    virtual_time(async {
        let (world, objects, hosts, dir, _state) = site();
        let (_keep, mut interrupts) = mpsc::channel(1);
        let engine = engine_of(&world, &objects, &hosts, 1);
        process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
        assert!(states(&dir).iter().all(|(state, _)| *state == NodeState::Done), "{:?}", states(&dir));
        for host in &hosts {
            assert_eq!(lock(&objects.pools).get(host).map(String::as_str), Some("training"));
            let boot = Some(boot_id(host, 1));
            assert!(lock(&objects.asked).contains(&(Mode::Apply, boot)), "{:?}", lock(&objects.asked));
        }
    });
}

#[test]
fn a_run_that_is_killed_at_a_patch_compares_anew() {
    virtual_time(async {
        let (world, objects, hosts, dir, _state) = site();
        objects.kills.store(true, Ordering::Relaxed);
        let (_keep, mut interrupts) = mpsc::channel(1);
        let engine = engine_of(&world, &objects, &hosts, 1);
        assert!(process_with(engine, &world, &hosts, &dir, &mut interrupts).await.is_none());
        let engine = engine_of(&world, &objects, &hosts, 2);
        process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
        assert_eq!(lock(&objects.pools).len(), 2);
        let well = |state: &NodeState| matches!(state, NodeState::Done | NodeState::Compliant);
        assert!(states(&dir).iter().all(|(state, _)| well(state)), "{:?}", states(&dir));
    });
}

#[test]
fn a_cluster_that_does_not_answer_is_never_taken_for_compliant() {
    virtual_time(async {
        for (verb, state) in [(Verb::Run, NodeState::Failed), (Verb::Plan, NodeState::Unknown)] {
            let (world, objects, hosts, dir, _state) = site();
            objects.silent.store(true, Ordering::Relaxed);
            let (_keep, mut interrupts) = mpsc::channel(1);
            let mut engine = engine_of(&world, &objects, &hosts, 1);
            engine.options.verb = verb;
            process_with(engine, &world, &hosts, &dir, &mut interrupts).await.unwrap();
            let told = |(found, message): &(NodeState, String)| {
                *found == state && message.contains("GET /api/v1/nodes/gpu001")
            };
            assert!(states(&dir).iter().any(told), "{verb:?}: {:?}", states(&dir));
        }
    });
}

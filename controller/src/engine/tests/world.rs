//! A fleet in memory: nodes that keep their state, a spool each, and a log of what really happened to them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use gpufleet_protocol::{
    Disruption, NodeOp, OpOutcome, OpRequest, OpStatus, Reply, Request,
    health::{CheckResult, HealthReport, Verdict},
    message::{IdleReport, IdleVerdict, Mode, Spooled},
};
use serde_json::json;
use tokio::time::sleep;

use super::queue::Queue;
use crate::{
    drain::NoticePlan,
    engine::{ConnectFailure, Connector, Link, LinkError, Progress, Purpose},
    interpreter::{BlobNeed, tests::fake::FakeNode},
};

/// How long a reboot takes, in virtual time.
const BOOT: Duration = Duration::from_secs(90);

pub(super) struct Machine {
    pub(super) node: FakeNode,
    pub(super) boot: u32,
    pub(super) down: bool,
    /// How long it takes to answer a connection.
    pub(super) slow: Duration,
    /// Processes use its GPUs.
    pub(super) works: bool,
    spool: HashMap<String, Spooled>,
    /// Command lines that ran, in order.
    pub(super) ran: Vec<String>,
}

/// The fleet, and the moment at which its controller dies.
pub(super) struct World {
    machines: Mutex<BTreeMap<String, Machine>>,
    /// Calls until the crash; none never.
    pub(super) crash_in: Mutex<Option<u32>>,
    pub(super) crashed: tokio::sync::Notify,
    pub(super) most_down: Mutex<usize>,
    pub(super) queue: Queue,
    pub(super) notice: Mutex<Option<NoticePlan>>,
    /// Whether the queue is asked before anything is disturbed.
    pub(super) drains: bool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(hosts: &[String], drains: bool) -> Arc<Self> {
        let machine = || Machine {
            node: FakeNode::new(),
            boot: 1,
            down: false,
            slow: Duration::from_millis(50),
            works: false,
            spool: HashMap::new(),
            ran: Vec::new(),
        };
        Arc::new(Self {
            machines: Mutex::new(hosts.iter().map(|host| (host.clone(), machine())).collect()),
            crash_in: Mutex::new(None),
            crashed: tokio::sync::Notify::new(),
            most_down: Mutex::new(0),
            queue: Queue::default(),
            notice: Mutex::new(None),
            drains,
        })
    }

    pub(super) fn with<T>(&self, host: &str, act: impl FnOnce(&mut Machine) -> T) -> T {
        act(lock(&self.machines).get_mut(host).expect("a host of the world"))
    }

    /// Counts down to the crash; two steps a call, one on each side of its act.
    pub(super) async fn step(&self) {
        let dies = {
            let mut left = lock(&self.crash_in);
            match left.as_mut() {
                Some(0) => true,
                Some(steps) => {
                    *steps -= 1;
                    false
                }
                None => false,
            }
        };
        if dies {
            self.crashed.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

pub(super) struct Wires(pub(super) Arc<World>);

impl Connector for Wires {
    fn connect<'a>(
        &'a self,
        host: &'a str,
        _purpose: Purpose,
    ) -> BoxFuture<'a, Result<Arc<dyn Link>, ConnectFailure>> {
        Box::pin(async move {
            sleep(self.0.with(host, |machine| machine.slow)).await;
            let (boot, down) = self.0.with(host, |machine| (machine.boot, machine.down));
            if down {
                return Err(ConnectFailure::Unreachable("connection refused".to_owned()));
            }
            Ok(Arc::new(Wire { world: Arc::clone(&self.0), host: host.to_owned(), boot }) as Arc<dyn Link>)
        })
    }
}

struct Wire {
    world: Arc<World>,
    host: String,
    boot: u32,
}

impl Wire {
    fn alive(&self) -> bool {
        self.world.with(&self.host, |machine| machine.boot == self.boot && !machine.down)
    }

    fn act(&self, request: &OpRequest) -> OpOutcome {
        let allowed = request.permit.as_ref().map_or(Disruption::Live, |permit| permit.class);
        self.world.with(&self.host, |machine| {
            if let NodeOp::Exec(exec) = &request.op {
                let mut outcome = OpOutcome::new(OpStatus::Changed);
                machine.ran.push(format!("{:?}", exec.run));
                outcome.data = json!({"rc": 0, "stdout": "done"}).as_object().expect("a map").clone();
                return outcome;
            }
            let mut state = machine.node.real.clone();
            let predicted = request.mode == Mode::Predict;
            if predicted && let Some(assumed) = &machine.node.assumed {
                state = assumed.clone();
            }
            let outcome = machine.node.operate(&request.op, &mut state);
            let needed = outcome
                .changes
                .iter()
                .chain(outcome.members.iter().flat_map(|member| &member.changes))
                .map(|change| change.disruption)
                // Why: writing what waits for a reboot disturbs nobody.
                .filter(|class| *class < Disruption::Reboot)
                .max()
                .unwrap_or_default();
            match predicted {
                true => machine.node.assumed = Some(state),
                false if needed > allowed => {
                    let mut refusal = OpOutcome::new(OpStatus::NeedsPermit { class: needed });
                    refusal.changes = outcome.changes;
                    return refusal;
                }
                false => {
                    if self.world.drains && needed > Disruption::Live {
                        self.world.queue.check(&self.host);
                    }
                    machine.node.real = state;
                }
            }
            outcome
        })
    }
}

impl Link for Wire {
    fn call(
        &self,
        request: OpRequest,
        _blobs: Vec<BlobNeed>,
        _progress: Progress,
    ) -> BoxFuture<'_, Result<OpOutcome, LinkError>> {
        Box::pin(async move {
            sleep(Duration::from_millis(20)).await;
            if !self.alive() {
                return Err(LinkError("connection lost".to_owned()));
            }
            self.world.step().await;
            let outcome = match &request.op {
                NodeOp::Idle => {
                    let mut outcome = OpOutcome::new(OpStatus::Ok);
                    let works = self.world.with(&self.host, |machine| machine.works);
                    outcome.idle = Some(IdleReport {
                        verdict: if works { IdleVerdict::Busy } else { IdleVerdict::Idle },
                        ..IdleReport::default()
                    });
                    outcome
                }
                NodeOp::Health(asked) => {
                    let results = asked.checks.iter().map(|check| CheckResult {
                        check: *check,
                        verdict: Verdict::Ok,
                        why: String::new(),
                    });
                    let mut outcome = OpOutcome::new(OpStatus::Ok);
                    outcome.health = Some(HealthReport { results: results.collect() });
                    outcome
                }
                NodeOp::Facts(_) => OpOutcome::new(OpStatus::Ok),
                NodeOp::Reboot(_) => {
                    self.world.with(&self.host, |machine| {
                        assert!(request.permit.is_some(), "a reboot without a permit");
                        if self.world.drains {
                            self.world.queue.check(&self.host);
                        }
                        machine.down = true;
                        machine.node.reboot();
                    });
                    let down = lock(&self.world.machines).values().filter(|machine| machine.down).count();
                    let mut most = lock(&self.world.most_down);
                    *most = down.max(*most);
                    let (world, host) = (Arc::clone(&self.world), self.host.clone());
                    tokio::spawn(async move {
                        sleep(BOOT).await;
                        world.with(&host, |machine| {
                            machine.down = false;
                            machine.boot += 1;
                        });
                    });
                    OpOutcome::new(OpStatus::Changed)
                }
                _ => {
                    let kept = request.mode == Mode::Apply && !request.op_id.is_empty();
                    let outcome = self.act(&request);
                    if kept && !matches!(outcome.status, OpStatus::NeedsPermit { .. }) {
                        let spooled = Spooled::Finished(Box::new(outcome.clone()));
                        self.world.with(&self.host, |machine| {
                            machine.spool.insert(request.op_id.clone(), spooled);
                        });
                    }
                    outcome
                }
            };
            self.world.step().await;
            Ok(outcome)
        })
    }

    fn request(&self, request: Request) -> BoxFuture<'_, Result<Reply, LinkError>> {
        Box::pin(async move {
            Ok(self.world.with(&self.host, |machine| match request {
                Request::Spooled { op_id } => {
                    Reply::Spooled(machine.spool.get(&op_id).cloned().unwrap_or(Spooled::Nothing))
                }
                Request::ForgetPredictions => {
                    machine.node.assumed = None;
                    Reply::Done
                }
                Request::AssumeActivation { .. } => {
                    let mut assumed = machine.node.clone();
                    if let Some(state) = assumed.assumed.take() {
                        assumed.real = state;
                    }
                    assumed.reboot();
                    machine.node.assumed = Some(assumed.real);
                    Reply::Done
                }
                _ => Reply::Done,
            }))
        })
    }

    fn boot_id(&self) -> Option<String> {
        Some(format!("{}-{}", self.host, self.boot))
    }

    fn pushed(&self) -> bool {
        false
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while self.alive() {
                sleep(Duration::from_millis(100)).await;
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

//! A fleet in memory: nodes that keep their state, a spool each, and a log of what really happened to them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use gpufleet_protocol::{
    Disruption, FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus, Reply, Request,
    disturbing::Disturbance,
    facts::{Facts, GpuFacts, GpuSystemState},
    health::{CheckResult, HealthCheck, HealthReport, SystemState, Verdict},
    message::{IdleReport, IdleVerdict, Mode, Spooled},
    op::{JobStart, Reboot},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::queue::Queue;
use crate::{
    drain::{Call, NoticePlan, Output, RunError, Runner},
    engine::{ConnectFailure, Connector, Link, LinkError, Progress, Purpose, Way},
    interpreter::{BlobNeed, tests::fake::FakeNode},
};

/// How long a reboot takes, in virtual time.
const BOOT: Duration = Duration::from_secs(90);

/// What goes wrong with a machine's reboots, or with an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fault {
    #[default]
    None,
    /// Takes so long to start after it answers.
    Starts(Duration),
    /// Takes so long to go down.
    Stops(Duration),
    /// Looks as ever to the first two who look, and goes down at the third.
    Hesitates,
    /// Does not hear an orderly request.
    Deaf,
    NeverBack,
    /// Lets nobody in after a reboot.
    NoLogin,
    /// Goes away and answers again in its old boot.
    SameBoot,
    /// Loses power in a command.
    PowerCut,
    /// Its helper is killed in a command.
    HelperDies,
    /// Every other look at a job breaks the connection.
    Drops,
    /// Comes back from a reboot with one GPU less.
    LosesGpu,
    /// Never comes back, and from a power cycle with one GPU less.
    LosesGpuWithPower,
    /// Loses a GPU in what is done to it under a permit.
    LosesGpuInReset,
}

pub(super) struct Machine {
    pub(super) node: FakeNode,
    pub(super) boot: u32,
    pub(super) down: bool,
    /// How long it takes to answer a connection.
    pub(super) slow: Duration,
    /// Connections that were tried.
    pub(super) tried: u32,
    /// Whether it answers at once, and only the rest of a connection is slow.
    pub(super) greets: bool,
    /// Processes use its GPUs.
    pub(super) works: bool,
    pub(super) fault: Fault,
    /// Reboots that were asked for.
    pub(super) asked: u32,
    /// Times it was switched off and on.
    pub(super) cycled: u32,
    /// Whether its power state can be told.
    pub(super) power_known: bool,
    /// Whether its BMC says that it is hung.
    pub(super) hung: bool,
    /// Whether its address refuses connections while it is down; else nothing answers there.
    pub(super) refuses: bool,
    /// GPUs that its facts have; none where it tells none.
    pub(super) gpus: Option<u32>,
    /// Whether its driver lists none of them, so that only its bus tells how many there are.
    pub(super) mute: bool,
    shutting_down: bool,
    /// Looks until it begins to go down.
    hesitates: Option<u32>,
    up_at: Option<Instant>,
    spool: HashMap<String, Spooled>,
    /// Jobs by the id of their operation: how many looks until their end, and what comes of them.
    jobs: HashMap<String, (u32, OpOutcome)>,
    /// Command lines that ran, in order.
    pub(super) ran: Vec<String>,
    /// What it warns of when it is told to reboot.
    pub(super) warns: Vec<String>,
}

/// The fleet, and the moment at which its controller dies.
pub(super) struct World {
    machines: Mutex<BTreeMap<String, Machine>>,
    /// Calls until the crash; none never.
    pub(super) crash_in: Mutex<Option<u32>>,
    pub(super) crashed: tokio::sync::Notify,
    /// Calls until somebody presses Ctrl-C, and where that is heard.
    pub(super) press_in: Mutex<Option<(u32, tokio::sync::mpsc::Sender<()>)>>,
    pub(super) most_down: Mutex<usize>,
    pub(super) queue: Queue,
    pub(super) notice: Mutex<Option<NoticePlan>>,
    /// The boot of the controller's machine.
    pub(super) own_boot: Mutex<Option<String>>,
    /// Hosts that `--limit` leaves out.
    pub(super) neighbours: Mutex<Vec<String>>,
    /// Whether the queue is asked before anything is disturbed.
    pub(super) drains: bool,
    pub(super) network: Mutex<Network>,
}

/// What lies between the controller and the machines.
#[derive(Default)]
pub(super) struct Network {
    /// All machines are behind one jump host.
    pub(super) jump_host: bool,
    frozen: bool,
    /// What gets to nowhere is refused on the way.
    pub(super) rejects: bool,
    /// Machines that nothing gets to, nor from.
    cut: std::collections::BTreeSet<String>,
    /// Connections that are older than the last break are broken.
    breaks: u32,
    /// Connections that nobody ended.
    open: usize,
    /// Most of them at once.
    pub(super) most_open: usize,
}

impl Network {
    fn is_mute(&self, host: &str) -> bool {
        self.frozen || self.cut.contains(host)
    }
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
            tried: 0,
            greets: false,
            works: false,
            fault: Fault::None,
            asked: 0,
            cycled: 0,
            power_known: true,
            warns: Vec::new(),
            hung: false,
            refuses: true,
            gpus: None,
            mute: false,
            shutting_down: false,
            hesitates: None,
            up_at: None,
            spool: HashMap::new(),
            jobs: HashMap::new(),
            ran: Vec::new(),
        };
        Arc::new(Self {
            machines: Mutex::new(hosts.iter().map(|host| (host.clone(), machine())).collect()),
            crash_in: Mutex::new(None),
            crashed: tokio::sync::Notify::new(),
            press_in: Mutex::new(None),
            most_down: Mutex::new(0),
            queue: Queue::default(),
            notice: Mutex::new(None),
            own_boot: Mutex::new(None),
            neighbours: Mutex::default(),
            drains,
            network: Mutex::default(),
        })
    }

    pub(super) fn with<T>(&self, host: &str, act: impl FnOnce(&mut Machine) -> T) -> T {
        act(lock(&self.machines).get_mut(host).expect("a host of the world"))
    }

    /// The jump host accepts connections from now on, and says nothing.
    pub(super) fn freeze(&self, frozen: bool) {
        let mut network = lock(&self.network);
        network.frozen = frozen;
        network.breaks += u32::from(frozen);
    }

    /// Nothing gets to these machines from now on; to all others it does.
    pub(super) fn cut(&self, hosts: &[String]) {
        let mut network = lock(&self.network);
        network.cut = hosts.iter().cloned().collect();
        network.breaks += u32::from(!hosts.is_empty());
    }

    /// Counts down to the crash; two steps a call, one on each side of its act.
    pub(super) async fn step(&self) {
        if let Some((left, press)) = lock(&self.press_in).as_mut() {
            if *left == 0 {
                // Why no error: what is pressed after the run is heard by nobody.
                let _ = press.try_send(());
            }
            *left = left.wrapping_sub(1);
        }
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

fn lost(why: &str) -> LinkError {
    LinkError::Lost { cause: why.to_owned() }
}

impl Machine {
    fn system(&self) -> SystemState {
        let starting = self.up_at.is_some_and(|at| Instant::now() < at);
        let state = match (self.shutting_down, starting) {
            (true, _) => "stopping",
            (false, true) => "starting",
            (false, false) => "running",
        };
        SystemState {
            boot_id: None,
            state: Some(state.to_owned()),
            systemd: true,
            shutdown_scheduled: self.shutting_down,
            jobs: if starting { vec!["slow.service".to_owned()] } else { Vec::new() },
        }
    }

    /// Somebody mended it and switched it on.
    pub(super) fn mend(&mut self) {
        self.fault = Fault::None;
        self.comes_up(true);
    }

    fn lose_gpu(&mut self, fault: Fault) {
        if self.fault == fault {
            self.gpus = self.gpus.map(|gpus| gpus - 1);
        }
    }

    fn facts(&self) -> Option<Box<Facts>> {
        let mut facts = Facts::default();
        facts.gpu.state = GpuSystemState::Ok;
        let gpu = |number| GpuFacts { index: number, uuid: format!("GPU-{number}"), ..GpuFacts::default() };
        facts.gpu.pci_count = self.gpus?;
        facts.gpu.gpus = (0..if self.mute { 0 } else { self.gpus? }).map(gpu).collect();
        Some(Box::new(facts))
    }

    fn comes_up(&mut self, new_boot: bool) {
        self.down = false;
        self.shutting_down = false;
        if new_boot {
            self.boot += 1;
            self.lose_gpu(Fault::LosesGpu);
            self.lose_gpu(Fault::LosesGpuWithPower);
        }
        if let Fault::Starts(time) = self.fault {
            self.up_at = Some(Instant::now() + time);
        }
    }
}

/// As a kernel writes it.
pub(super) fn boot_id(host: &str, boot: u32) -> String {
    let number = host.bytes().fold(1_u128, |number, byte| number * 257 + u128::from(byte));
    uuid::Uuid::from_u128((number << 32) + u128::from(boot)).to_string()
}

impl World {
    /// What a request to reboot does.
    fn reboot(self: &Arc<Self>, host: &str, how: Reboot) {
        if lock(&self.queue.slips).remove(host) {
            lock(&self.queue.held).remove(host);
            lock(&self.queue.given_back).insert(host.to_owned());
        }
        let fault = self.with(host, |machine| {
            machine.asked += 1;
            machine.fault
        });
        if fault == Fault::Deaf && how == Reboot::Orderly {
            return;
        }
        let stops = match fault {
            Fault::Stops(time) => time,
            _ => Duration::ZERO,
        };
        if fault == Fault::Hesitates {
            // Why looks and no time: the paused clock runs ahead while a journal is written.
            self.with(host, |machine| machine.hesitates = Some(3));
            return;
        }
        self.with(host, |machine| machine.shutting_down = true);
        if stops.is_zero() {
            self.go_down(host);
        }
        let (world, host) = (Arc::clone(self), host.to_owned());
        tokio::spawn(async move {
            if !stops.is_zero() {
                sleep(stops).await;
                world.go_down(&host);
            }
            sleep(BOOT).await;
            if !matches!(fault, Fault::NeverBack | Fault::LosesGpuWithPower) {
                world.with(&host, |machine| machine.comes_up(fault != Fault::SameBoot));
            }
        });
    }

    /// Somebody looks at a machine that may be about to go down.
    fn looked_at(self: &Arc<Self>, host: &str) {
        let left = self.with(host, |machine| {
            machine.hesitates = machine.hesitates.map(|looks| looks.saturating_sub(1));
            machine.hesitates
        });
        if left != Some(0) {
            return;
        }
        self.with(host, |machine| machine.hesitates = None);
        self.go_down(host);
        let (world, host) = (Arc::clone(self), host.to_owned());
        tokio::spawn(async move {
            sleep(BOOT).await;
            world.with(&host, |machine| machine.comes_up(true));
        });
    }

    fn go_down(&self, host: &str) {
        self.with(host, |machine| {
            machine.down = true;
            machine.node.reboot();
        });
        let down = lock(&self.machines).values().filter(|machine| machine.down).count();
        let mut most = lock(&self.most_down);
        *most = down.max(*most);
    }
}

/// The power switches of the machines, as hooks reach them.
pub(super) struct Switches(pub(super) Arc<World>);

impl Runner for Switches {
    fn place(&self) -> String {
        String::new()
    }

    fn run(&self, call: Call) -> BoxFuture<'_, Result<Output, RunError>> {
        Box::pin(async move {
            let host = call.env.iter().find(|(name, _)| name == "GPUFLEET_HOST").expect("a host").1.clone();
            assert!(call.env.contains(&("GPUFLEET_RUN".to_owned(), "RUN".to_owned())));
            self.0.step().await;
            let known = self.0.with(&host, |machine| machine.power_known);
            let status = match call.argv.last().map(String::as_str) {
                Some("power status") => i32::from(!known),
                Some("power hung") => i32::from(!self.0.with(&host, |machine| machine.hung)),
                Some("power cycle") => {
                    self.0.with(&host, |machine| {
                        assert!(machine.down, "power cycled while it runs");
                        machine.cycled += 1;
                    });
                    let (world, host) = (Arc::clone(&self.0), host.clone());
                    tokio::spawn(async move {
                        sleep(BOOT).await;
                        world.with(&host, |machine| machine.comes_up(true));
                    });
                    0
                }
                other => panic!("no such hook: {other:?}"),
            };
            self.0.step().await;
            let stderr = if status == 0 { Vec::new() } else { b"a BMC\nthat is deaf\n".to_vec() };
            Ok(Output { status: Some(status), stdout: Vec::new(), stderr })
        })
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
            let slow = self.0.with(host, |machine| {
                machine.tried += 1;
                machine.slow
            });
            sleep(slow).await;
            let (mute, rejects) = {
                let network = lock(&self.0.network);
                (network.is_mute(host), network.rejects)
            };
            if mute && rejects {
                return Err(ConnectFailure::Refused { cause: "connection refused".to_owned() });
            }
            if mute {
                sleep(Duration::from_secs(30)).await;
                return Err(ConnectFailure::Silent { cause: "connecting took longer than 30 s".to_owned() });
            }
            let (boot, down, refuses) =
                self.0.with(host, |machine| (machine.boot, machine.down, machine.refuses));
            if down && refuses {
                return Err(ConnectFailure::Refused { cause: "connection refused".to_owned() });
            }
            if down {
                sleep(Duration::from_secs(30)).await;
                return Err(ConnectFailure::Silent { cause: "connecting took longer than 30 s".to_owned() });
            }
            if self.0.with(host, |machine| machine.fault == Fault::NoLogin && machine.boot > 1) {
                return Err(ConnectFailure::Unreachable { cause: "user `root` was not let in".to_owned() });
            }
            let breaks = {
                let mut network = lock(&self.0.network);
                network.open += 1;
                network.most_open = network.most_open.max(network.open);
                network.breaks
            };
            let (world, host) = (Arc::clone(&self.0), host.to_owned());
            Ok(Arc::new(Wire { world, host, boot, breaks }) as Arc<dyn Link>)
        })
    }

    fn way<'a>(&'a self, _host: &'a str, _purpose: Purpose) -> BoxFuture<'a, Way> {
        Box::pin(async move {
            match lock(&self.0.network).jump_host {
                true => Way::Through("the jump host bastion1".to_owned()),
                false => Way::Direct,
            }
        })
    }

    fn ask_way<'a>(&'a self, _host: &'a str, _purpose: Purpose) -> BoxFuture<'a, Option<Result<(), String>>> {
        Box::pin(async move {
            let (jump_host, frozen) = {
                let network = lock(&self.0.network);
                (network.jump_host, network.frozen)
            };
            if !jump_host {
                return None;
            }
            if frozen {
                sleep(Duration::from_secs(20)).await;
                return Some(Err("the SSH handshake took longer than 20 s".to_owned()));
            }
            Some(Ok(()))
        })
    }

    fn has_answered(&self, host: &str) -> bool {
        self.0.with(host, |machine| machine.greets)
    }
}

struct Wire {
    world: Arc<World>,
    host: String,
    boot: u32,
    breaks: u32,
}

impl Wire {
    fn alive(&self) -> bool {
        let is_cut = {
            let network = lock(&self.world.network);
            network.is_mute(&self.host)
                || (network.breaks != self.breaks && (network.jump_host || network.cut.contains(&self.host)))
        };
        !is_cut && self.world.with(&self.host, |machine| machine.boot == self.boot && !machine.down)
    }

    /// What the machine's fault does to a command.
    fn breaks(&self) -> Option<LinkError> {
        self.world.with(&self.host, |machine| match machine.fault {
            Fault::PowerCut => {
                machine.fault = Fault::None;
                machine.node.reboot();
                machine.boot += 1;
                Some(lost("connection lost"))
            }
            Fault::HelperDies => {
                let why = "the helper ended with exit code 137".to_owned();
                Some(LinkError::HelperEnded { cause: why })
            }
            _ => None,
        })
    }

    fn begin_job(&self, request: &OpRequest, job: &JobStart) -> OpOutcome {
        let known = self.world.with(&self.host, |machine| machine.jobs.contains_key(&request.op_id));
        if !known {
            let outcome = self.act(&OpRequest { op: (*job.op).clone(), ..request.clone() });
            self.world.with(&self.host, |machine| machine.jobs.insert(request.op_id.clone(), (3, outcome)));
        }
        let mut outcome = OpOutcome::new(OpStatus::Changed);
        let told = json!({"ansible_job_id": request.op_id, "started": true, "finished": false});
        outcome.data = told.as_object().expect("a map").clone();
        outcome
    }

    fn look_at_job(&self, jid: &str) -> Result<OpOutcome, LinkError> {
        self.world.with(&self.host, |machine| {
            let Some((left, outcome)) = machine.jobs.get_mut(jid) else {
                let mut missing = OpOutcome::failed(FailureKind::Missing, "could not find job");
                missing.data.insert("finished".to_owned(), json!(true));
                return Ok(missing);
            };
            *left = left.saturating_sub(1);
            if machine.fault == Fault::Drops && *left % 2 == 1 {
                return Err(lost("connection lost"));
            }
            let finished = *left == 0;
            let mut told = if finished { outcome.clone() } else { OpOutcome::new(OpStatus::Ok) };
            told.data.insert("finished".to_owned(), json!(finished));
            Ok(told)
        })
    }

    fn act(&self, request: &OpRequest) -> OpOutcome {
        let allowed = request.permit.as_ref().map_or(Disruption::Live, |permit| permit.class);
        self.world.with(&self.host, |machine| {
            if let NodeOp::Exec(exec) = &request.op {
                let disturbance = exec.disturbance();
                let class = disturbance.as_ref().map_or(Disruption::Live, Disturbance::class);
                if request.mode == Mode::Predict || class > allowed {
                    let mut answer = OpOutcome::new(match request.mode {
                        Mode::Predict => OpStatus::Possible,
                        Mode::Apply => OpStatus::NeedsPermit { class },
                    });
                    answer.changes = disturbance.iter().map(Disturbance::change).collect();
                    return answer;
                }
                machine.ran.push(format!("{:?}", exec.run));
                if machine.ran.last().is_some_and(|line| line.contains("/bin/ill")) {
                    let mut outcome = OpOutcome::failed(FailureKind::Exit, "exit status 3");
                    let said = json!({"rc": 3, "stdout": "", "stderr": "first\nGPU 2 is hot\n"});
                    outcome.data = said.as_object().expect("a map").clone();
                    return outcome;
                }
                let mut outcome = OpOutcome::new(OpStatus::Changed);
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
                    if needed > Disruption::Live {
                        machine.lose_gpu(Fault::LosesGpuInReset);
                    }
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
                return Err(lost("connection lost"));
            }
            self.world.step().await;
            if matches!(request.op, NodeOp::Exec(_))
                && let Some(error) = self.breaks()
            {
                return Err(error);
            }
            let outcome = match &request.op {
                NodeOp::Idle(_) => {
                    let mut outcome = OpOutcome::new(OpStatus::Ok);
                    let works = self.world.with(&self.host, |machine| machine.works)
                        || lock(&self.world.queue.clients).contains(&self.host);
                    outcome.idle = Some(IdleReport {
                        verdict: if works { IdleVerdict::Busy } else { IdleVerdict::Idle },
                        ..IdleReport::default()
                    });
                    outcome
                }
                NodeOp::Health(asked) => {
                    let seen = self.world.with(&self.host, |machine| machine.gpus);
                    let misses = asked.gpus.zip(seen).is_some_and(|(had, seen)| seen < had);
                    let results = asked.checks.iter().map(|check| {
                        let fails = misses && *check == HealthCheck::GpuCount;
                        let verdict = if fails { Verdict::Fail } else { Verdict::Ok };
                        CheckResult { check: *check, verdict, why: String::new() }
                    });
                    let mut outcome = OpOutcome::new(OpStatus::Ok);
                    outcome.health = Some(HealthReport { results: results.collect() });
                    outcome
                }
                NodeOp::Facts(_) => {
                    let mut outcome = OpOutcome::new(OpStatus::Ok);
                    outcome.facts = self.world.with(&self.host, |machine| machine.facts());
                    outcome
                }
                NodeOp::System(_) => {
                    let mut outcome = OpOutcome::new(OpStatus::Ok);
                    outcome.system = Some(self.world.with(&self.host, |machine| machine.system()));
                    self.world.looked_at(&self.host);
                    outcome
                }
                NodeOp::JobStart(job) => self.begin_job(&request, job),
                NodeOp::JobStatus(ask) => {
                    sleep(Duration::from_secs(ask.wait_s)).await;
                    self.look_at_job(&ask.jid)?
                }
                NodeOp::Reboot(_) if request.mode == Mode::Predict => OpOutcome::new(OpStatus::Changed),
                NodeOp::Reboot(how) => {
                    assert!(request.permit.is_some(), "a reboot without a permit");
                    if self.world.drains {
                        self.world.queue.check(&self.host);
                    }
                    self.world.reboot(&self.host, *how);
                    let warnings = self.world.with(&self.host, |machine| machine.warns.clone());
                    OpOutcome { warnings, ..OpOutcome::new(OpStatus::Changed) }
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
        Some(boot_id(&self.host, self.boot))
    }

    fn kept(&self) -> Option<&gpufleet_protocol::keep::KeptReport> {
        None
    }

    fn pushed(&self) -> bool {
        false
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while self.alive() {
                self.world.looked_at(&self.host);
                sleep(Duration::from_millis(100)).await;
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let mut network = lock(&self.world.network);
            network.open = network.open.saturating_sub(1);
        })
    }
}

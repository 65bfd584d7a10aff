//! The shared state of a session's operations: who opened it, what runs, what is assumed.
//!
//! Invariants: an operation is answered exactly once; a session that only reads, or that was fenced, changes nothing;
//! disruptive operations run one at a time.

use std::{
    cell::Cell,
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    Disruption, FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus, Permit, Reply,
    health::{HealthReport, HealthRequest},
    message::{Mode, Open, Opened, Spooled},
    op::{Reboot, Staying},
    operation::Effect,
};

use super::{
    channel::Channel,
    declared::Declared,
    job,
    streams::{Asker, Streams},
    turn::{Turn, turn},
};
use crate::{
    deadline::{Deadline, Stop},
    declare::{Node, Trouble},
    facts,
    gpu::{self, Gpus, Settings, Taker},
    health, keep,
    os::{
        paths::Owner,
        roots::Roots,
        users::{self, Users},
    },
    signals,
    state::{
        Record, dir,
        jobs::Jobs,
        lock::{Lock, LockError},
        spool::{Durability, Spool, without_output},
    },
    tasks::{
        cuda_compat, dispatch, download, drain_state::DrainState, driver::Driver, exec, geturl, puttree,
        reading, reboot, slurm, tempfile, toolkit, unarchive::Unpacking, waiting,
    },
    world::{Overlay, World},
};

/// Time after its deadline at which an operation is answered without waiting for its end.
const OVERDUE: Duration = Duration::from_secs(6);
/// Time limit for starting services that an earlier run left stopped.
const PUTTING_BACK: Duration = Duration::from_secs(120);
/// Time for a disruptive operation to reach a safe point when the helper ends.
const SAFE_POINT: Duration = Duration::from_secs(120);
/// Largest number of concurrent operations.
const MOST_OPERATIONS: usize = 128;

/// An opened session.
struct Opening {
    open: Open,
    state_dir: PathBuf,
    /// Whether the state directory exists.
    exists: bool,
    lock: Option<Lock>,
    record: Record,
}

struct Running {
    deadline: Deadline,
    stopped: Option<(Stop, Instant)>,
}

pub struct Session {
    pub channel: Channel,
    pub streams: Streams,
    pub roots: Roots,
    place: dir::Place,
    users: Users,
    overlay: Overlay,
    opening: Mutex<Option<Arc<Opening>>>,
    /// The GPUs, opened at their first use.
    pub gpus: Mutex<Option<Gpus>>,
    /// What stays on the node during a drain, as the controller last said.
    staying: Mutex<Staying>,
    disturbing: Mutex<()>,
    running: Mutex<HashMap<u64, Running>>,
    closing: AtomicBool,
    answered: job::Answered,
    /// What an earlier run left behind and could not be repaired; reported with the next outcome.
    leftovers: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    pub fn new(channel: Channel, roots: Roots, place: dir::Place) -> Self {
        let etc = roots.path("/etc");
        // A replaced root need not have users of its own.
        let users = if etc.join("passwd").exists() { Users::of(&etc) } else { Users::of("/etc".as_ref()) };
        Self {
            channel,
            streams: Streams::default(),
            roots,
            place,
            users,
            overlay: Overlay::default(),
            opening: Mutex::default(),
            gpus: Mutex::default(),
            staying: Mutex::default(),
            disturbing: Mutex::default(),
            running: Mutex::default(),
            closing: AtomicBool::new(false),
            answered: job::Answered::default(),
            leftovers: Mutex::default(),
        }
    }

    fn opening(&self) -> Option<Arc<Opening>> {
        lock(&self.opening).clone()
    }

    /// Opens the session, and returns the reply.
    pub fn open(self: &Arc<Self>, open: Open) -> Reply {
        if self.opening().is_some() {
            return Reply::Error { message: "the session is open already".to_owned() };
        }
        match self.try_open(open) {
            Ok(opening) => {
                let state_dir =
                    if opening.exists { opening.state_dir.display().to_string() } else { String::new() };
                let opening = Arc::new(opening);
                *lock(&self.opening) = Some(Arc::clone(&opening));
                if opening.open.writes && !opening.open.guest {
                    self.put_back(&opening);
                }
                // Without earlier boots: every session of a fleet carries this, and `keep status` asks for all.
                let kept = keep::report(&self.roots).map(|mut report| {
                    report.boots.drain(..report.boots.len().saturating_sub(1));
                    Box::new(report)
                });
                Reply::Opened(Opened { state_dir, kept })
            }
            Err(reply) => *reply,
        }
    }

    fn try_open(&self, open: Open) -> Result<Opening, Box<Reply>> {
        let error = |error: &dyn std::error::Error| Box::new(Reply::Error { message: error.to_string() });
        let state_dir = dir::locate(&self.roots, &self.place).map_err(|e| error(&e))?;
        let exists = if open.writes {
            dir::make(&state_dir).map_err(|e| error(&e))?;
            true
        } else {
            dir::check(&state_dir).map_err(|e| error(&e))?
        };
        let lock = if exists {
            match Lock::take(&state_dir, &open) {
                Ok(lock) => Some(lock),
                Err(LockError::Locked(locked)) => return Err(Box::new(Reply::Locked(locked))),
                Err(LockError::File(e)) => return Err(error(&e)),
            }
        } else {
            None
        };
        if open.writes {
            Spool::of(&state_dir).prune(!open.guest);
            let jobs = Jobs::of(&state_dir);
            jobs.prune();
            if !open.guest {
                // Ignored, because the end of this run tries again.
                let _ = jobs.close(Some(&open.holder.run));
            }
        }
        let record = Record::of(exists.then_some(state_dir.as_path()));
        Ok(Opening { open, state_dir, exists, lock, record })
    }

    /// Starts what a killed helper had stopped; on another thread, because the reader must keep reading heartbeats.
    fn put_back(self: &Arc<Self>, opening: &Arc<Opening>) {
        if !Gpus::new(settings(opening)).has_leftovers() {
            return;
        }
        let (session, opening) = (Arc::clone(self), Arc::clone(opening));
        let (sender, holds) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("put back".to_owned()).spawn(move || {
            let _disturbing = lock(&session.disturbing);
            let mut gpus = lock(&session.gpus);
            let _ = sender.send(());
            let gpus = gpus.get_or_insert_with(|| Gpus::new(settings(&opening)));
            let problems = gpus.put_back(&Deadline::after(PUTTING_BACK));
            lock(&session.leftovers).extend(problems);
        });
        match thread {
            // Waits, so that the next operation finds the GPUs taken.
            Ok(_) => {
                let _ = holds.recv_timeout(Duration::from_secs(1));
            }
            Err(error) => lock(&self.leftovers)
                .push(format!("services that an earlier run stopped are still stopped: {error}")),
        }
    }

    /// Returns the state directory if the session may remove what the helper keeps on the node, or why not.
    pub fn cleanable(&self) -> Result<PathBuf, String> {
        match self.opening() {
            Some(opening) if opening.open.writes && !opening.open.guest => {
                match Jobs::of(&opening.state_dir).running().as_slice() {
                    [] => Ok(opening.state_dir.clone()),
                    jobs => Err(format!("jobs still run on it: {}", jobs.join(", "))),
                }
            }
            Some(_) => Err("the session was opened for reading only".to_owned()),
            None => Err("the session is not open".to_owned()),
        }
    }

    /// Returns the reply with the outcome of an operation of this session's run.
    pub fn recall(&self, op_id: &str) -> Reply {
        let Some(opening) = self.opening() else {
            return Reply::Error { message: "the session is not open".to_owned() };
        };
        if !opening.exists {
            return Reply::Spooled(Spooled::Nothing);
        }
        match Spool::of(&opening.state_dir).recall(&opening.open.holder.run, op_id) {
            Ok(found) => Reply::Spooled(found),
            Err(error) => Reply::Error { message: error.to_string() },
        }
    }

    /// Whether a newer epoch took the node over.
    pub fn is_fenced(&self) -> bool {
        let Some(opening) = self.opening() else { return false };
        opening.lock.as_ref().is_some_and(|lock| matches!(lock.is_current(), Ok(false)))
    }

    /// Drops the assumptions of predictions, and returns the reply.
    pub fn forget_predictions(&self) -> Reply {
        self.with_idle_gpus(|gpus| {
            self.overlay.forget();
            if let Some(gpus) = gpus {
                gpus.forget_predictions();
            }
        })
    }

    /// Assumes an activation in later predictions, and returns the reply.
    pub fn assume_activation(&self, class: Disruption) -> Reply {
        self.with_idle_gpus(|gpus| {
            self.overlay.activate(class, &self.roots);
            if let (None, Some(opening)) = (gpus.as_ref(), self.opening()) {
                *gpus = Some(Gpus::new(settings(&opening)));
            }
            if let Some(gpus) = gpus {
                gpus.assume_activation(class);
            }
        })
    }

    /// Runs `work` without waiting for the GPUs, because the reader calls this and must keep reading heartbeats.
    fn with_idle_gpus(&self, work: impl FnOnce(&mut Option<Gpus>)) -> Reply {
        match self.gpus.try_lock() {
            Ok(mut gpus) => work(&mut gpus),
            Err(TryLockError::Poisoned(poisoned)) => work(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let message = "an operation on the GPUs is under way, whose prediction this would change";
                return Reply::Error { message: message.to_owned() };
            }
        }
        Reply::Done
    }

    /// Starts an operation on a new thread.
    pub fn start(self: &Arc<Self>, id: u64, request: OpRequest) {
        let deadline = Deadline::after(Duration::from_secs(request.timeout_s.clamp(1, 7 * 24 * 3600)));
        let refusal = {
            let mut running = lock(&self.running);
            if self.opening().is_none() {
                Some("the session is not open".to_owned())
            } else if running.contains_key(&id) {
                Some(format!("an operation with id {id} is under way already"))
            } else if running.len() >= MOST_OPERATIONS {
                Some(format!("{MOST_OPERATIONS} operations are under way already"))
            } else if self.closing.load(Ordering::Relaxed) {
                Some("the helper is about to end".to_owned())
            } else {
                running.insert(id, Running { deadline: deadline.clone(), stopped: None });
                None
            }
        };
        if let Some(message) = refusal {
            let _ = self.channel.send(id, Reply::Error { message });
            return;
        }
        let session = Arc::clone(self);
        let thread = std::thread::Builder::new().name(format!("operation {id}")).spawn(move || {
            let work = std::panic::AssertUnwindSafe(|| session.perform(id, &request, &deadline));
            let outcome = std::panic::catch_unwind(work).unwrap_or_else(|_| {
                OpOutcome::failed(FailureKind::Io, "the helper met a fault of its own; please report it")
            });
            session.answer(id, settled(outcome, &deadline));
        });
        if let Err(error) = thread {
            self.answer(id, OpOutcome::failed(FailureKind::Io, format!("no thread can be started: {error}")));
        }
    }

    fn answer(&self, id: u64, mut outcome: OpOutcome) {
        // Whoever removes the entry answers, so that no operation is answered twice.
        let ours = lock(&self.running).remove(&id).is_some();
        if ours {
            outcome.warnings.append(&mut lock(&self.leftovers));
            let _ = self.channel.send(id, Reply::Outcome(Box::new(outcome)));
        }
    }

    pub fn cancel(&self, id: u64) {
        if let Some(running) = lock(&self.running).get(&id) {
            running.deadline.canceller().store(true, Ordering::Relaxed);
        }
    }

    /// Answers for operations that do not end in time, for example on a dead file system.
    pub fn answer_overdue(&self) {
        let mut overdue = Vec::new();
        for (id, running) in lock(&self.running).iter_mut() {
            match (running.deadline.stop(), running.stopped) {
                (Some(stop), None) => running.stopped = Some((stop, Instant::now())),
                (_, Some((stop, since))) if since.elapsed() > OVERDUE => overdue.push((*id, stop)),
                _ => {}
            }
        }
        for (id, stop) in overdue {
            let mut outcome = Trouble::stopped(stop).outcome();
            if let OpStatus::Failed { message, .. } = &mut outcome.status {
                message.push_str("; the kernel does not give it back, so it was abandoned");
            }
            self.answer(id, outcome);
        }
    }

    /// Stops all operations and waits for them; longer for a disruptive one, which must not be left half done.
    pub fn stop_all(&self, wait: Duration) {
        self.closing.store(true, Ordering::Relaxed);
        for running in lock(&self.running).values() {
            running.deadline.canceller().store(true, Ordering::Relaxed);
        }
        let begun = Instant::now();
        let disturbs = || matches!(self.disturbing.try_lock(), Err(TryLockError::WouldBlock));
        while !lock(&self.running).is_empty()
            && (begun.elapsed() < wait || (begun.elapsed() < SAFE_POINT && disturbs()))
        {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Removes the output of secret jobs: the controller needs nothing more.
    pub fn close_jobs(&self) {
        if let Some(opening) = self.opening()
            && opening.open.writes
            && !opening.open.guest
        {
            // Ignored, because the controller does not read any more; the next run tries again.
            let _ = Jobs::of(&opening.state_dir).close(None);
        }
    }

    /// Releases the lock and the GPUs.
    pub fn release(&self) {
        let written =
            lock(&self.opening).take().is_some_and(|opening| opening.open.writes && !opening.open.guest);
        if let Ok(mut gpus) = self.gpus.try_lock() {
            *gpus = None;
        }
        if written {
            keep::resume(&self.roots);
        }
    }

    /// Performs one operation for a session that has ended; the process of a job calls it.
    pub fn alone(
        &self,
        open: Open,
        state_dir: PathBuf,
        request: &OpRequest,
        deadline: &Deadline,
    ) -> OpOutcome {
        let record = Record::of(Some(state_dir.as_path()));
        *lock(&self.opening) = Some(Arc::new(Opening { open, state_dir, exists: true, lock: None, record }));
        let work = std::panic::AssertUnwindSafe(|| self.perform(0, request, deadline));
        let outcome = std::panic::catch_unwind(work).unwrap_or_else(|_| {
            OpOutcome::failed(FailureKind::Io, "the helper met a fault of its own; please report it")
        });
        settled(outcome, deadline)
    }

    fn perform(&self, id: u64, request: &OpRequest, deadline: &Deadline) -> OpOutcome {
        let Some(opening) = self.opening() else { return OpOutcome::failed(FailureKind::Refused, "closed") };
        lock(&self.leftovers).extend(self.answered.heard(request));
        let began = AtomicBool::new(false);
        let outcome = self.checked(id, request, &opening, deadline, &began).unwrap_or_else(Trouble::outcome);
        self.keep(&opening, request, settled(outcome, deadline), began.into_inner())
    }

    fn checked(
        &self,
        id: u64,
        request: &OpRequest,
        opening: &Opening,
        deadline: &Deadline,
        began: &AtomicBool,
    ) -> Result<OpOutcome, Trouble> {
        let effect = request.op.operation().effect();
        let may_act = opening.open.writes
            || effect == Effect::Reads
            || opening.open.commands && matches!(request.op, NodeOp::Exec(_));
        if request.mode == Mode::Apply && !may_act {
            return Err(Trouble::failed(FailureKind::Refused, "the session was opened for reading only"));
        }
        // In any mode: a reading is done in plans too, and a playbook of somebody else must run nothing there.
        if matches!(&request.op, NodeOp::HealthInfo(task) if task.runs_commands())
            && !opening.open.own_commands
        {
            let message =
                "`reads` with `command` is for own checks of an audit's baseline; use the kind `command`";
            return Err(Trouble::failed(FailureKind::Refused, message));
        }
        let received = Instant::now();
        let allowed = allowed(request.permit.as_ref(), &opening.open)?;
        if opening.open.guest && request.permit.is_some() {
            let message = "a session for single tasks has no permit; nothing was changed";
            return Err(Trouble::failed(FailureKind::Refused, message));
        }
        if allowed.needs_permit() {
            reboot::refuse_inside_job(&self.roots)?;
        }
        let users = match request.mode {
            Mode::Predict => self.users.seen_in(&World::overlaid(&self.overlay)),
            Mode::Apply => self.users.clone(),
        };
        let user = request.run_as.as_deref().map(|name| users.identity(name)).transpose()?;
        if let Some(user) = &user {
            user.can_act()?;
        }
        let checked = |needs: Disruption| -> Result<(), Trouble> {
            if let Some(lock) = &opening.lock
                && !lock.is_current()?
            {
                let message = "a newer controller took this node over; nothing was changed";
                return Err(Trouble::failed(FailureKind::Refused, message));
            }
            match &request.permit {
                Some(permit)
                    if needs.needs_permit() && received.elapsed().as_secs() >= permit.valid_for_s =>
                {
                    let message = "the permit had run out before the change began; nothing was changed";
                    return Err(Trouble::failed(FailureKind::Refused, message));
                }
                _ => {}
            }
            self.begin(opening, request, began)
        };
        // With the helper's own rights, because a task's user can read neither the lock nor the spool.
        let gate = |needs: Disruption| users::with_own_rights(|| checked(needs))?;
        let asker = Asker { id, streams: &self.streams, channel: &self.channel };
        let progress = |text: String| {
            let _ = self.channel.send(id, Reply::Progress { text });
        };
        let node = Node {
            roots: &self.roots,
            users: &self.users,
            world: match request.mode {
                Mode::Predict => World::overlaid(&self.overlay),
                Mode::Apply => World::real(),
            },
            user,
            environment: &request.environment,
            deadline,
            fetch: &asker,
            progress: &progress,
            downloads: download::Downloads::default(),
        };
        let _turn = allowed.needs_permit().then(|| turn(&self.disturbing, deadline)).transpose()?;
        let declared =
            Declared { overlay: &self.overlay, node: &node, mode: request.mode, allowed, gate: &gate };
        let owner = Owner {
            user: node.user.as_ref(),
            users: &users,
            environment: &request.environment,
            real: self.roots.is_real(),
        };
        let settled = owner.settled(&request.op)?;
        dispatch!(settled.as_ref().unwrap_or(&request.op), declared, {
            NodeOp::PutFile(task) => match puttree::of_directory(task, &node)? {
                Some(tree) => declared.tree(&tree),
                None => declared.run(task),
            },
            NodeOp::Exec(task) => {
                let state_dir = opening.exists.then_some(opening.state_dir.as_path());
                let disturbs = || task.disturbance().is_some_and(|found| found.class() <= allowed);
                if request.mode == Mode::Apply && disturbs() {
                    self.refuse_busy(opening, "the command was not run", deadline)?;
                }
                exec::run(task, &node, request.mode, state_dir, allowed, &gate)
            }
            NodeOp::JobStart(task) => {
                job::start(task, request, &opening.open, &opening.state_dir, &self.roots, &gate)
            }
            NodeOp::JobStatus(ask) => {
                let state_dir = opening.exists.then_some(opening.state_dir.as_path());
                let status = |dir| job::status(ask, &node, request.mode, dir, &self.answered);
                let found = status(state_dir)?;
                match node.user.as_ref().filter(|_| job::is_missing(&found)) {
                    // An earlier play without `become` began its jobs as its own user.
                    Some(user) => {
                        let theirs = dir::of_home(&user.home);
                        let other = declared.act(|| status(Some(&theirs)))?;
                        Ok(if job::is_missing(&other) { found } else { other })
                    }
                    None => Ok(found),
                }
            }
            NodeOp::GpuGroup(group) => {
                if request.mode == Mode::Apply {
                    gate(allowed)?;
                }
                let mut gpus = self.gpus(opening, deadline)?;
                Ok(match request.mode {
                    Mode::Predict => gpus.predict(group, &self.overlay, deadline, &progress),
                    Mode::Apply => {
                        let noted = Cell::new(false);
                        // Before the first act, so that a helper that is killed in it has said so.
                        let fence = || {
                            fence(opening)?;
                            if !noted.replace(true) {
                                let run = &opening.open.holder.run;
                                keep::note(&self.roots, run).map_err(|error| error.to_string())?;
                            }
                            Ok(())
                        };
                        gpus.run(group, Mode::Apply, allowed, deadline, &progress, &fence)
                    }
                })
            }
            NodeOp::GpuDriver(task) => {
                let mut gpus = self.gpus(opening, deadline)?;
                let fence = || {
                    fence(opening)?;
                    keep::note(&self.roots, &opening.open.holder.run).map_err(|error| error.to_string())
                };
                let driver = Driver::new(task, &mut gpus, &opening.record, &opening.state_dir, &fence);
                let outcome = declared.run(&driver)?;
                Ok(driver.settled(outcome, request.mode, &node))
            }
            NodeOp::GpuDrainState(task) => {
                let mut gpus = turn(&self.gpus, deadline)?;
                let gpus = gpus.get_or_insert_with(|| Gpus::new(settings(opening)));
                let fence = || {
                    fence(opening)?;
                    keep::note(&self.roots, &opening.open.holder.run).map_err(|error| error.to_string())
                };
                declared.run(&DrainState::new(task, gpus, &fence))
            }
            NodeOp::Facts(wanted) => {
                let mut facts = facts::read(&self.roots);
                if wanted.gpus {
                    facts.gpu = self.gpus(opening, deadline)?.facts(deadline);
                }
                let mut outcome = OpOutcome::new(OpStatus::Ok);
                outcome.facts = Some(Box::new(facts));
                if node.world.assumes_below(&self.roots.path(facts::local::FOLDER)) {
                    outcome.data.insert(gpufleet_protocol::op::FactsRequest::FORESEEN.to_owned(), serde_json::json!(["local"]));
                }
                Ok(outcome)
            }
            NodeOp::Idle(staying) => {
                let mut gpus = self.gpus(opening, deadline)?;
                let mut outcome = OpOutcome::new(OpStatus::Ok);
                staying.clone_into(&mut lock(&self.staying));
                outcome.idle = Some(gpus.idle(staying, deadline));
                Ok(outcome)
            }
            NodeOp::Health(wanted) => {
                let mut outcome = OpOutcome::new(OpStatus::Ok);
                outcome.health = Some(self.health(wanted, opening, deadline)?);
                Ok(outcome)
            }
            NodeOp::GpuStatus(asked) => {
                let mut gpus = self.gpus(opening, deadline)?;
                let status = signals::usage::read(&mut gpus, &self.roots, *asked, deadline);
                Ok(signals::usage::outcome(&status))
            }
            NodeOp::System(_) => {
                let system = Some(health::system(&self.roots, deadline));
                Ok(OpOutcome { system, ..OpOutcome::new(OpStatus::Ok) })
            }
            NodeOp::KeepState(task) => {
                // The unit of a boot knows one lock and one record: those of the machine.
                if opening.exists && opening.state_dir != self.roots.path("/var/lib/gpufleet") {
                    let why = "this host has a state directory of its own (`ansible_connection: local` under another name than \
                               localhost), and the boot of its machine knows only /var/lib/gpufleet";
                    return Err(Trouble::invalid(why));
                }
                if task.sealed.is_some() {
                    keep::prove(task, &mut *self.gpus(opening, deadline)?, request.mode, deadline)?;
                }
                declared.run(task)
            }
            NodeOp::KeptStatus(asked) => {
                let world = if asked.foreseen { World::overlaid(&self.overlay) } else { World::real() };
                keep::status(&self.roots, &world, *asked, |group| {
                    Ok(self.gpus(opening, deadline)?.differences(group, deadline))
                })
            }
            NodeOp::ContainerToolkit(task) => {
                let gpus = |deadline: &Deadline| {
                    let read = self.gpus(opening, deadline)?.exposed(deadline);
                    read.map_err(|why| Trouble::io(format!("the GPUs cannot be read: {why}")))
                };
                declared.run(&toolkit::Toolkit { task, gpus: &gpus })
            }
            NodeOp::CudaCompat(task) => {
                let read = |deadline: &Deadline| Ok(self.gpus(opening, deadline)?.facts(deadline));
                declared.run(&cuda_compat::Judged { task, read: &read })
            }
            NodeOp::SlurmNode(task) => {
                let read = |deadline: &Deadline| Ok(self.gpus(opening, deadline)?.facts(deadline));
                let changes = |deadline: &Deadline| {
                    let Ok(mut gpus) = self.gpus(opening, deadline) else { return true };
                    gpus.exposed(deadline).map_or(true, |seen| seen.changes)
                };
                declared.run(&slurm::Offering { task, read: &read, changes: &changes })
            }
            NodeOp::GetUrl(task) => Ok(geturl::settle(task, request.mode, declared.run(task)?)),
            NodeOp::Unarchive(task) => declared.run(&Unpacking::new(task)),
            NodeOp::PutTree(task) => declared.tree(task),
            NodeOp::TempFile(task) => declared.act(|| tempfile::run(task, &node, request.mode, &gate)),
            NodeOp::Slurp(task) => declared.act(|| reading::slurp(task, &node)),
            NodeOp::Find(task) => declared.act(|| reading::find(task, &node)),
            NodeOp::ReadPiece(task) => declared.act(|| reading::piece(task, &node)),
            NodeOp::WaitFor(task) => declared.act(|| waiting::run(task, &node, request.mode)),
            NodeOp::Ping(task) => Ok(reading::ping(task)),
            NodeOp::HealthInfo(task) => {
                let boot_id = reboot::boot_id(&self.roots).unwrap_or_default();
                let resets = gpu::resets(&opening.record, &boot_id);
                let reader = signals::Reader { roots: &self.roots, deadline };
                let mut gpus = self.gpus(opening, deadline)?;
                let gpus = || signals::gpu::read(&mut gpus, &self.roots, task.deep, deadline);
                let own = signals::own::Own { asked: &task.reads, user: node.user.as_ref() };
                Ok(signals::outcome(&signals::read(&reader, &resets, &own, gpus)))
            }
            NodeOp::TopologyInfo(_) => {
                let mut gpus = self.gpus(opening, deadline)?;
                let reader = signals::Reader { roots: &self.roots, deadline };
                Ok(signals::topology::outcome(&signals::topology::read(&reader, || gpus.facts(deadline))))
            }
            NodeOp::Reboot(how) => {
                let mut counted = Vec::new();
                if request.mode == Mode::Apply && *how == Reboot::Orderly && allowed == Disruption::Reboot {
                    gate(Disruption::Reboot)?;
                    counted = self.refuse_busy(opening, "it was not rebooted", deadline)?;
                }
                let mut outcome = reboot::run(*how, &node, request.mode, allowed, &gate)?;
                outcome.warnings.extend(counted);
                if request.mode == Mode::Predict {
                    let mut gpus = turn(&self.gpus, deadline)?;
                    let gpus = gpus.get_or_insert_with(|| Gpus::new(settings(opening)));
                    outcome.warnings.extend(gpus.lost_by(Taker::Reboot, &node.world, deadline));
                }
                Ok(outcome)
            }
        })
    }

    fn gpus(&self, opening: &Opening, deadline: &Deadline) -> Result<Turn<'_>, Trouble> {
        Turn::take(&self.gpus, || settings(opening), deadline)
    }

    /// Refuses to disturb a node on which anything works; `spared` says what was not done. Returns what the GPUs counted.
    fn refuse_busy(&self, opening: &Opening, spared: &str, by: &Deadline) -> Result<Vec<String>, Trouble> {
        let staying = lock(&self.staying).clone();
        self.gpus(opening, by)?.proven_idle(&staying, by).map_err(|reasons| {
            let why = format!("the node is not idle: {}; {spared}", reasons.join("; "));
            Trouble::failed(FailureKind::Busy, why)
        })
    }

    /// Runs the checks; the GPUs are read once for all of them.
    fn health(
        &self,
        wanted: &HealthRequest,
        opening: &Opening,
        deadline: &Deadline,
    ) -> Result<HealthReport, Trouble> {
        let seen = match health::reads_gpus(wanted) {
            true => Some(self.gpus(opening, deadline)?.health(deadline)),
            false => None,
        };
        Ok(health::report(wanted, seen.as_ref(), &self.roots, deadline))
    }

    /// Returns the spool if the outcome of a request is kept for a controller that loses the answer.
    fn spool(opening: &Opening, request: &OpRequest) -> Option<(Spool, Durability)> {
        let effect = request.op.operation().effect();
        let keeps = request.mode == Mode::Apply
            && opening.open.writes
            && !request.op_id.is_empty()
            && effect != Effect::Reads;
        let durability = if effect == Effect::Once { Durability::Disk } else { Durability::Process };
        keeps.then(|| (Spool::of(&opening.state_dir), durability))
    }

    /// Marks an operation as begun, right before its first change.
    fn begin(&self, opening: &Opening, request: &OpRequest, began: &AtomicBool) -> Result<(), Trouble> {
        let Some((spool, durability)) = Self::spool(opening, request) else { return Ok(()) };
        if began.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        match spool.begin(&opening.open.holder.run, &request.op_id, durability) {
            // Other operations go on: they can be repeated, and may be about to repair the disk.
            Err(error) if durability == Durability::Disk => Err(Trouble::io(format!(
                "nothing was done, because a resumed run could not tell that it was: {error}"
            ))),
            _ => Ok(()),
        }
    }

    /// Stores a result in the spool before it is sent.
    fn keep(&self, opening: &Opening, request: &OpRequest, mut outcome: OpOutcome, began: bool) -> OpOutcome {
        let Some((spool, durability)) = Self::spool(opening, request) else { return outcome };
        let run = &opening.open.holder.run;
        match &outcome.status {
            OpStatus::NeedsPermit { .. } => {
                if began {
                    spool.forget(run, &request.op_id);
                }
                return outcome;
            }
            OpStatus::Failed { kind: FailureKind::Refused, .. } if !began => return outcome,
            _ => {}
        }
        let durability = if began { durability } else { Durability::Process };
        let kept = if request.secret { without_output(&outcome) } else { outcome.clone() };
        if let Err(error) = spool.keep(run, &request.op_id, kept, durability) {
            // Only a warning: the operation has happened, so it must not be reported as failed.
            outcome.warnings.push(format!("the result is not kept for a resumed run: {error}"));
        }
        outcome
    }
}

/// Checks that no newer controller took the node over; called before every disruptive step.
fn fence(opening: &Opening) -> Result<(), String> {
    match opening.lock.as_ref().map(Lock::is_current) {
        None | Some(Ok(true)) => Ok(()),
        Some(Ok(false)) => Err("a newer controller took this node over".to_owned()),
        Some(Err(error)) => {
            Err(format!("whether a newer controller took this node over is unknown: {error}"))
        }
    }
}

fn settings(opening: &Opening) -> Settings {
    Settings { state_dir: opening.state_dir.clone(), record: opening.record.clone(), no_block: false }
}

/// Returns the class that may be disrupted: the permit's, if the permit belongs to this session.
fn allowed(permit: Option<&Permit>, open: &Open) -> Result<Disruption, Trouble> {
    match permit {
        None => Ok(Disruption::Live),
        Some(permit) if permit.holder == open.holder => Ok(permit.class),
        Some(_) => Err(Trouble::failed(
            FailureKind::Refused,
            "the permit belongs to another run or epoch; nothing was changed",
        )),
    }
}

/// Reports a failure as cancelled if the operation was told to stop.
fn settled(mut outcome: OpOutcome, deadline: &Deadline) -> OpOutcome {
    if let OpStatus::Failed { kind: kind @ (FailureKind::Io | FailureKind::TimedOut), .. } =
        &mut outcome.status
        && deadline.stop() == Some(Stop::Cancelled)
    {
        *kind = FailureKind::Cancelled;
    }
    outcome
}

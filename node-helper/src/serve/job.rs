//! Jobs: operations in a process of their own, which outlive the helper and the connection.
//!
//! The helper prepares a job, marks the operation as begun, starts a process in its own session and answers at once.
//! That process performs the operation as a session would, and stores the outcome ([`crate::state::jobs`]). Invariant:
//! asked again under the same id, a job is found and never begins twice.

use std::{
    io,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use gpufleet_protocol::{
    Disruption, FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus,
    message::{Mode, Open, Spooled},
    op::{JOB_TIMED_OUT, JobStart, JobStatus},
    operation::Needs,
};
use serde_json::{Value, json};

use super::{channel::Channel, session::Session};
use crate::{
    deadline::Deadline,
    declare::{Gate, Node, Trouble},
    os::roots::Roots,
    process::Run,
    state::{
        dir,
        jobs::{self, Jobs, Look, Order},
        spool::Spool,
    },
    tasks::reboot,
};

/// Time for the process of a job to begin.
const BEGINNING: Duration = Duration::from_secs(10);
/// Interval at which the end of a job is polled.
const TICK: Duration = Duration::from_millis(50);

/// Begins a job, or finds the one that began under the request's id.
///
/// # Errors
/// If the operation cannot run as a job, cannot be started, or began before and its job was removed.
pub fn start(
    job: &JobStart,
    request: &OpRequest,
    open: &Open,
    state_dir: &std::path::Path,
    roots: &Roots,
    gate: Gate<'_>,
) -> Result<OpOutcome, Trouble> {
    if request.op_id.is_empty()
        || request.mode == Mode::Predict
        || job.op.operation().needs() != Needs::Nothing
    {
        return Err(Trouble::invalid("this operation cannot go on by itself"));
    }
    if let NodeOp::Exec(exec) = &*job.op
        && let Some(found) = exec.disturbance()
    {
        let why = found.refusal().unwrap_or_else(|| {
            format!("{found}, and nobody could prove the node idle at that moment: leave out `async`")
        });
        return Err(Trouble::failed(FailureKind::Refused, why));
    }
    let jobs = Jobs::of(state_dir);
    let run = &open.holder.run;
    let jid = jobs::id(run, &request.op_id);
    match jobs.look(&jid)? {
        Look::Missing if has_begun(&Spool::of(state_dir).recall(run, &request.op_id)?) => {
            let message = format!(
                "the job {jid} began before, and nothing of it is left on the node; it is not begun again"
            );
            return Err(Trouble::failed(FailureKind::Io, message));
        }
        Look::Missing | Look::Prepared => {}
        Look::Running | Look::Finished(_) | Look::Lost { .. } => return Ok(begun(&jobs, &jid)),
    }
    let order = Order {
        open: Open { guest: true, ..open.clone() },
        request: OpRequest {
            op: (*job.op).clone(),
            timeout_s: job.limit_s,
            op_id: String::new(),
            ..request.clone()
        },
        boot_id: reboot::boot_id(roots),
    };
    jobs.prepare(&jid, &order)?;
    let begin = || -> Result<(), Trouble> {
        gate(Disruption::Live)?;
        let Some(held) = jobs.hold(&jid)? else { return Ok(()) };
        Run::new("/proc/self/exe")
            .args(["job", "--job", &jid, "--state-dir"])
            .arg(state_dir)
            .detach_holding(Some(held))?;
        Ok(())
    };
    if let Err(trouble) = begin() {
        let _ = jobs.forget(&jid);
        return Err(trouble);
    }
    let until = Instant::now() + BEGINNING;
    while !jobs.has_begun(&jid) {
        if matches!(jobs.look(&jid), Ok(Look::Prepared)) && !jobs.has_begun(&jid) {
            // The order may hold secrets, and will not be carried out any more.
            let _ = jobs.forget(&jid);
            return Err(Trouble::io("the process of the job ended before it began"));
        }
        if Instant::now() > until && jobs.revoke(&jid)? {
            let limit = BEGINNING.as_secs();
            return Err(Trouble::io(format!(
                "the process of the job did not begin within {limit} s: it was called off, and nothing was done"
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(begun(&jobs, &jid))
}

/// Whether only the spool knows that a job began; a job that failed to begin did not.
fn has_begun(kept: &Spooled) -> bool {
    match kept {
        Spooled::Nothing => false,
        Spooled::Started => true,
        Spooled::Finished(outcome) => !matches!(outcome.status, OpStatus::Failed { .. }),
    }
}

fn told(outcome: &mut OpOutcome, jid: &str, values: &[(&str, Value)]) {
    outcome.data.insert("ansible_job_id".to_owned(), json!(jid));
    for (name, value) in values {
        outcome.data.insert((*name).to_owned(), value.clone());
    }
}

fn begun(jobs: &Jobs, jid: &str) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Changed);
    let file = jobs.results_file(jid).display().to_string();
    told(
        &mut outcome,
        jid,
        &[("results_file", json!(file)), ("started", json!(true)), ("finished", json!(false))],
    );
    outcome
}

/// Adds the fields that Ansible's `async_status` returns beside the job's own.
fn with_streams(outcome: &mut OpOutcome) {
    for name in ["stdout", "stderr"] {
        outcome.data.entry(name).or_insert_with(|| json!(""));
        outcome.data.entry(format!("{name}_lines")).or_insert_with(|| json!([]));
    }
}

fn failed(message: String) -> OpOutcome {
    let mut outcome = OpOutcome::failed(FailureKind::Io, message.clone());
    outcome.data.insert("msg".to_owned(), json!(message));
    outcome
}

/// Jobs whose end was sent to the controller, which may not have received it yet.
#[derive(Debug, Default)]
pub struct Answered(Mutex<Vec<(PathBuf, String)>>);

impl Answered {
    fn add(&self, state_dir: &std::path::Path, jid: &str) {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !jobs.iter().any(|(dir, known)| dir == state_dir && known == jid) {
            jobs.push((state_dir.to_owned(), jid.to_owned()));
        }
    }

    /// Removes the output of secret jobs from disk, once the next task shows that the controller has received it;
    /// returns what went wrong.
    ///
    /// Not earlier, because after a lost connection the controller asks for the job again.
    pub fn heard(&self, next: &OpRequest) -> Vec<String> {
        if next.op_id.is_empty() {
            return Vec::new();
        }
        let again = |jid: &str| matches!(&next.op, NodeOp::JobStatus(ask) if ask.jid == jid);
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let heard: Vec<_> = jobs.extract_if(.., |(_, jid)| !again(jid)).collect();
        let withhold = |(dir, jid): (PathBuf, String)| {
            let error = Jobs::of(&dir).withhold(&jid).err()?;
            Some(format!("what the job {jid} said stays on the node's disk: {error}"))
        };
        heard.into_iter().filter_map(withhold).collect()
    }
}

/// Returns the state of a job, or removes the job.
///
/// # Errors
/// If the job's files cannot be read or removed.
pub fn status(
    ask: &JobStatus,
    node: &Node<'_>,
    mode: Mode,
    state_dir: Option<&std::path::Path>,
    answered: &Answered,
) -> Result<OpOutcome, Trouble> {
    let Some(state_dir) = state_dir else { return Ok(missing(&ask.jid, "", ask.forget)) };
    let jobs = Jobs::of(state_dir);
    let file = jobs.results_file(&ask.jid).display().to_string();
    let until = Instant::now() + Duration::from_secs(ask.wait_s);
    let look = loop {
        match jobs.look(&ask.jid)? {
            Look::Running if Instant::now() < until => {
                node.check_time()?;
                std::thread::sleep(TICK);
            }
            look => break look,
        }
    };
    if ask.forget && !matches!(look, Look::Missing) {
        return forget(&jobs, ask, &look, mode, &file);
    }
    let mut outcome = match look {
        Look::Missing => return Ok(missing(&ask.jid, &file, ask.forget)),
        Look::Running | Look::Prepared => {
            let mut outcome = OpOutcome::new(OpStatus::Ok);
            told(&mut outcome, &ask.jid, &[("started", json!(true)), ("finished", json!(false))]);
            outcome
        }
        Look::Finished(outcome) => {
            let mut outcome = *outcome;
            if mode == Mode::Apply {
                answered.add(state_dir, &ask.jid);
            }
            told(&mut outcome, &ask.jid, &[("started", json!(true)), ("finished", json!(true))]);
            outcome
        }
        Look::Lost { boot_id } => {
            let now = reboot::boot_id(node.roots);
            let why = match (&boot_id, &now) {
                (Some(then), Some(now)) if then != now => {
                    "the node was rebooted while the job ran, so how far it got is not known"
                }
                _ => "the job was killed, so how far it got is not known",
            };
            let mut outcome = failed(why.to_owned());
            told(&mut outcome, &ask.jid, &[("started", json!(true)), ("finished", json!(true))]);
            outcome
        }
    };
    outcome.data.insert("results_file".to_owned(), json!(file));
    with_streams(&mut outcome);
    Ok(outcome)
}

/// Whether an answer says that the job is unknown.
pub fn is_missing(outcome: &OpOutcome) -> bool {
    matches!(outcome.status, OpStatus::Failed { kind: FailureKind::Missing, .. })
        && outcome.data.contains_key("ansible_job_id")
}

fn missing(jid: &str, file: &str, forget: bool) -> OpOutcome {
    let mut outcome = OpOutcome::failed(FailureKind::Missing, "could not find job");
    let place = if forget { "erased" } else { "results_file" };
    told(
        &mut outcome,
        jid,
        &[
            ("msg", json!("could not find job")),
            ("started", json!(true)),
            ("finished", json!(true)),
            (place, json!(file)),
        ],
    );
    with_streams(&mut outcome);
    outcome
}

fn forget(jobs: &Jobs, ask: &JobStatus, look: &Look, mode: Mode, file: &str) -> Result<OpOutcome, Trouble> {
    if matches!(look, Look::Running) {
        let mut outcome = failed(format!("the job {} still runs, and is not forgotten", ask.jid));
        told(&mut outcome, &ask.jid, &[("started", json!(true)), ("finished", json!(false))]);
        return Ok(outcome);
    }
    if mode == Mode::Apply {
        jobs.forget(&ask.jid)?;
    }
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    told(
        &mut outcome,
        &ask.jid,
        &[("erased", json!(file)), ("started", json!(false)), ("finished", json!(false))],
    );
    with_streams(&mut outcome);
    Ok(outcome)
}

/// The arguments of a job's process.
#[derive(Clone, Debug)]
pub struct Options {
    pub roots: Roots,
    pub state_dir: PathBuf,
    pub jid: String,
}

/// Carries out a job; runs in the process that the helper started.
pub fn carry_out(options: &Options) -> ExitCode {
    let jobs = Jobs::of(&options.state_dir);
    let Ok(order) = jobs.begin(&options.jid) else { return ExitCode::FAILURE };
    let place = dir::Place { given: Some(options.state_dir.clone()), local: None };
    let session = Arc::new(Session::new(Channel::new(io::sink()), options.roots.clone(), place));
    let deadline = Deadline::after(Duration::from_secs(order.request.timeout_s.max(1)));
    let mut outcome = session.alone(order.open, options.state_dir.clone(), &order.request, &deadline);
    if deadline.stop().is_some()
        && let OpStatus::Failed { kind: FailureKind::TimedOut, message } = &mut outcome.status
    {
        JOB_TIMED_OUT.clone_into(message);
        outcome.data.insert("msg".to_owned(), json!(JOB_TIMED_OUT));
    }
    let kept = jobs.finish(&options.jid, &outcome).or_else(|error| {
        // A shorter outcome, because the disk may have no room for the output.
        let kind = FailureKind::Io;
        let short = OpOutcome::failed(kind, format!("it ended, and what it said cannot be kept: {error}"));
        jobs.finish(&options.jid, &short)
    });
    if kept.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! `async`: a task that goes on by itself on the node, and is looked at until it ends.
//!
//! The job's id is derived from the operation's id, so that the job is found again after a lost connection and in a resumed
//! run. No connection has to last as long as the job: one that breaks is made anew.

use std::time::Duration;

use gpufleet_protocol::{
    FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus,
    op::{JOB_TIMED_OUT, JobStart, JobStatus},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    engine::node::{
        conversation::{Conversation, boot::PAUSES},
        early_end::EarlyEnd,
        message::Pace,
    },
    event::{NodeState, What},
    interpreter::{Action, Fed, Job},
};

/// How long one question may take beyond what it waits for.
const ASKING: Duration = Duration::from_secs(30);
/// How long a node that is lost is tried again at least.
const REACHING: Duration = Duration::from_secs(60);
/// How long a job is waited for beyond its time.
const OVERDUE: Duration = Duration::from_secs(20);
/// The longest that one question waits for the end of a job, in seconds.
const LONGEST: u64 = 30;

impl Conversation {
    /// Begins a job, or finds it; waits for its end unless `poll` is 0.
    pub(crate) async fn job(&mut self, action: &Action, op: &NodeOp, job: Job) -> Result<Fed, EarlyEnd> {
        if action.terms.delegate.is_none() {
            // Why first: a node that cannot be reached at all is not one that got lost.
            self.link().await?;
        }
        let start = NodeOp::JobStart(JobStart { op: Box::new(op.clone()), limit_s: job.limit_s });
        let begun = match self.reach_job(action, &start, Instant::now() + REACHING).await? {
            Ok(begun) => begun,
            Err(fed) => return Ok(fed),
        };
        self.judge(&begun);
        let jid = begun.data.get("ansible_job_id").and_then(Value::as_str).map(ToOwned::to_owned);
        let (Some(jid), OpStatus::Changed, 1..) = (jid, &begun.status, job.poll_s) else {
            return Ok(Fed::Outcome(Box::new(begun)));
        };
        // Why its place goes: another host may use it meanwhile.
        drop(self.dispatcher.place.take());
        let ended = self.until_ended(action, &jid, job).await;
        self.dispatcher.take_place().await;
        let fed = ended?;
        if let Fed::Outcome(outcome) = &fed {
            self.judge(outcome);
        }
        Ok(fed)
    }

    /// Why a stop ends the waiting: the job goes on by itself, and the run that is resumed finds it again.
    async fn until_ended(&mut self, action: &Action, jid: &str, job: Job) -> Result<Fed, EarlyEnd> {
        let begin = Instant::now();
        let last = begin + Duration::from_secs(job.limit_s) + OVERDUE;
        loop {
            let left = last.saturating_duration_since(Instant::now()).as_secs();
            let wait_s = job.poll_s.min(LONGEST).min(left + 1);
            let ask = NodeOp::JobStatus(JobStatus { jid: jid.to_owned(), forget: false, wait_s });
            let until = last.max(Instant::now() + REACHING);
            let mut pace = self.dispatcher.pace.clone();
            let may_stop = !self.host.custody.out_of_service;
            let answered = tokio::select! {
                answered = self.reach_job(action, &ask, until) => answered?,
                Ok(_) = pace.wait_for(|pace| *pace == Pace::Stopping), if may_stop => return Err(EarlyEnd::Stopped),
            };
            let mut outcome = match answered {
                Ok(outcome) => outcome,
                Err(fed) => return Ok(fed),
            };
            let finished = outcome.data.get("finished") == Some(&Value::Bool(true));
            let stopped =
                matches!(&outcome.status, OpStatus::Failed { message, .. } if message == JOB_TIMED_OUT);
            if stopped || !finished && Instant::now() >= last {
                let limit = job.limit_s;
                let message = format!("async task did not complete within the requested time - {limit}s");
                outcome.data.insert("msg".to_owned(), json!(message));
                outcome.status = OpStatus::Failed { kind: FailureKind::TimedOut, message };
            } else if !finished {
                let text = format!("job {jid} goes on since {} s", begin.elapsed().as_secs());
                self.dispatcher.emit(What::Progress { host: self.host.name.clone(), text }).await;
                continue;
            }
            return Ok(Fed::Outcome(Box::new(outcome)));
        }
    }

    /// Asks until there is an answer; a connection that breaks is made anew until the moment has come.
    async fn reach_job(
        &mut self,
        action: &Action,
        op: &NodeOp,
        until: Instant,
    ) -> Result<Result<OpOutcome, Fed>, EarlyEnd> {
        let (mut pause, mut told) = (PAUSES.0, None);
        loop {
            let reason = match self.ask_job(action, op).await? {
                Ok(outcome) => return Ok(Ok(outcome)),
                Err(reason) => reason,
            };
            if Instant::now() >= until {
                return Ok(Err(Fed::Unreachable { reason }));
            }
            // Why not each time: it may be away for hours, and the journal keeps all that is told.
            if told.as_ref() != Some(&reason) {
                let state =
                    if self.host.custody.out_of_service { NodeState::Acting } else { NodeState::Applying };
                self.dispatcher.state(state, Some(format!("lost, while its job goes on: {reason}"))).await;
                told = Some(reason);
            }
            sleep(pause).await;
            pause = (pause * 3 / 2).min(PAUSES.1);
        }
    }

    /// Asks once; the inner error is why there is no answer.
    async fn ask_job(&mut self, action: &Action, op: &NodeOp) -> Result<Result<OpOutcome, String>, EarlyEnd> {
        let wait_s = if let NodeOp::JobStatus(status) = op { status.wait_s } else { 0 };
        let timeout_s = wait_s + ASKING.as_secs();
        if let Some(host) = &action.terms.delegate {
            return Ok(self.on_another(action, host, op, &[], timeout_s).await);
        }
        let link = match self.link().await {
            Ok(link) => link,
            Err(EarlyEnd::Unreachable(why)) => return Ok(Err(why)),
            Err(cut) => return Err(cut),
        };
        let request = OpRequest { permit: None, ..self.request_for(action, op, timeout_s) };
        Ok(match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => {
                self.host.link = None;
                Err(error.to_string())
            }
        })
    }
}

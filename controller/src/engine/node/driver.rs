//! One node's task: drives its cursor, talks to the node, and asks the dispatcher before it disturbs anything.

use std::{collections::HashMap, sync::Arc, time::Duration};

use gpufleet_protocol::{
    Disruption, NodeOp, OpOutcome, OpRequest, OpStatus, Permit, Reply, Request, RunEpoch,
    health::HealthCheck,
    message::Mode,
    op::FactsRequest,
    tasks::{self, Class, RebootWhen},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::{
    drain::Scheduler,
    engine::{
        host::{PendingReboot, Prediction, Slot},
        node::{
            conversation::{delegates::Delegates, ways::Ways},
            cut::Cut,
            driven::Seen,
            hooks::Hooks,
            kept::Kept,
            message::{FromNode, Pace, ToNode},
            settings::Overrules,
            throttle::Throttles,
        },
        ports::{
            confirm::Stepper,
            link::{ConnectFailure, Connector, Link, Purpose},
        },
        task_report,
        verdict::{self, UnderPermit},
    },
    event::{NodeState, Phase, TaskReport, Verb, What},
    interpreter::{Action, BlobNeed, Cursor, End, EndState, Fed, Step, Work},
    rollout::Input,
};

/// How long reading facts, or the proof that a node is idle, may take.
pub(crate) const READING: Duration = Duration::from_secs(60);

/// What a node's task works with.
pub(crate) struct NodeTask {
    pub(crate) host: usize,
    pub(crate) play: usize,
    pub(crate) slot: Slot,
    pub(crate) verb: Verb,
    pub(crate) purpose: Purpose,
    /// What must hold before the node is given back.
    pub(crate) gate: Vec<HealthCheck>,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) connector: Arc<dyn Connector>,
    /// What tells its silence from that of the way to it.
    pub(crate) ways: Arc<Ways>,
    /// When its connection broke while nothing was asked over it.
    pub(crate) broke: Option<tokio::time::Instant>,
    pub(crate) out: mpsc::Sender<FromNode>,
    pub(crate) answers: mpsc::Receiver<ToNode>,
    pub(crate) pace: watch::Receiver<Pace>,
    pub(crate) permit: Option<Permit>,
    pub(crate) task_timeout_s: u64,
    pub(crate) holder: RunEpoch,
    /// Who has to let go of the node before it is disturbed.
    pub(crate) scheduler: Option<Arc<Scheduler>>,
    pub(crate) overrules: Overrules,
    pub(crate) own_boot: Option<String>,
    /// Says whether a task runs (`--step`).
    pub(crate) stepper: Option<Arc<dyn Stepper>>,
    pub(crate) throttles: Arc<Throttles>,
    pub(crate) delegates: Arc<Delegates>,
    pub(crate) kept: Arc<Kept>,
    pub(crate) forks: Arc<Semaphore>,
    /// Its place among the nodes worked on at once; given up while it waits for a permit.
    pub(crate) place: Option<OwnedSemaphorePermit>,
    /// What commands gave that a reading ran: it may go through a play twice, and they run once.
    pub(crate) ran: HashMap<String, OpOutcome>,
    /// When the node was last proven to be ours and idle.
    pub(crate) proven: Option<tokio::time::Instant>,
    /// Whether the last operation was one of a proof.
    pub(crate) verifying: bool,
    /// What the wanted permit is for.
    pub(crate) reason: String,
    /// Whether anything was done under the permit.
    pub(crate) acted: bool,
    /// What went wrong under the permit: nobody has proven since that the node is well.
    pub(crate) unproven: Option<String>,
    /// What is left of an earlier process of this run.
    pub(crate) left: Leftover,
}

/// What a node's task that takes up an earlier one has to look after.
#[derive(Default)]
pub(crate) struct Leftover {
    /// Operations may have been carried out whose answers got lost: the node's spool is asked first.
    pub(crate) ask_spool: bool,
    pub(crate) reboot: Option<PendingReboot>,
    /// The boot that the node was last seen in.
    pub(crate) boot_id: Option<String>,
    /// Reports to come that people have seen already.
    pub(crate) reported: usize,
    /// The task for all that this host was at.
    pub(crate) latch: Option<Arc<str>>,
}

impl NodeTask {
    pub(crate) async fn emit(&self, what: What) {
        // Why no error: a dispatcher that is gone has ended the run, and this task with it.
        let _ = self.out.send(FromNode::Event(what)).await;
    }

    /// Tells the rollout what happened to the node.
    pub(crate) async fn tell(&self, input: Input) {
        let _ = self.out.send(FromNode::Tell(input)).await;
    }

    pub(crate) async fn durable(&self, what: What) -> Result<(), Cut> {
        let (done, written) = oneshot::channel();
        let _ = self.out.send(FromNode::Durable(what, done)).await;
        // Why on a thread in tests: their virtual time leaps while the runtime has nothing to do, and would while it waits.
        #[cfg(test)]
        let written = async { tokio::task::spawn_blocking(|| written.blocking_recv()).await.unwrap() };
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Cut::Stopped),
        }
    }

    pub(crate) async fn state(&self, state: NodeState, detail: Option<String>) {
        self.emit(What::NodeState { host: self.slot.name.clone(), state, detail }).await;
    }

    /// The node's link, connected now when it is not yet, or not for this purpose.
    pub(crate) async fn link(&mut self) -> Result<Arc<dyn Link>, Cut> {
        if let Some((link, purpose)) = &self.slot.link {
            // Why: an earlier task of the node made this connection, and what follows must be the same boot.
            if self.left.reboot.is_none() && self.left.boot_id.is_none() {
                self.left.boot_id = link.boot_id();
            }
            let serves = (purpose.writes || !self.purpose.writes)
                && purpose.r#become == self.purpose.r#become
                && purpose.local == self.purpose.local
                && self.connector.is_same_way(&self.slot.name, purpose.login, self.purpose.login);
            if serves {
                return Ok(Arc::clone(link));
            }
            let old = Arc::clone(link);
            self.ways.closes(&self.slot.name);
            self.slot.link = None;
            old.close().await;
        }
        let begin = tokio::time::Instant::now();
        self.slot.since.get_or_insert_with(|| begin.into_std());
        match self.reach().await {
            Ok(link) => {
                let ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.connected(&*link, ms).await;
                self.same_boot(&*link)?;
                self.slot.link = Some((Arc::clone(&link), self.purpose));
                Ok(link)
            }
            Err(
                ConnectFailure::Silent(why) | ConnectFailure::Refused(why) | ConnectFailure::Unreachable(why),
            ) => Err(Cut::Unreachable(why)),
            Err(ConnectFailure::Locked(why)) => Err(Cut::Held(why)),
            Err(ConnectFailure::Unfit(why)) => Err(Cut::Failed(why)),
        }
    }

    /// Reads the node's facts, once a boot.
    pub(crate) async fn facts(&mut self) -> Result<(), Cut> {
        if self.slot.facts.is_some() {
            return Ok(());
        }
        let outcome = self
            .simple(NodeOp::Facts(FactsRequest { gpus: true, ..FactsRequest::default() }), READING)
            .await?;
        if let Some(facts) = outcome.facts {
            self.emit(What::FactsRead { host: self.slot.name.clone(), facts: facts.clone() }).await;
            self.slot.facts = Some(Arc::from(facts));
        }
        Ok(())
    }

    pub(crate) async fn simple(&mut self, op: NodeOp, timeout: Duration) -> Result<OpOutcome, Cut> {
        let link = self.link().await?;
        let request = OpRequest {
            op,
            mode: Mode::Apply,
            permit: self.permit.clone(),
            run_as: None,
            timeout_s: timeout.as_secs(),
            op_id: String::new(),
            secret: false,
            environment: Vec::new(),
        };
        match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) => Ok(outcome),
            Err(error) => Err(self.lost(error).await),
        }
    }

    pub(crate) async fn request(&mut self, request: Request) -> Result<(), Cut> {
        let link = self.link().await?;
        match link.request(request).await {
            Ok(Reply::Error { message }) => Err(Cut::Failed(message)),
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(error).await),
        }
    }

    /// Predicts one play on this node.
    ///
    /// `deferred` is the same play where GPU groups leave their activation to the reboot.
    pub(crate) async fn predict(&mut self, mut cursor: Cursor, deferred: Cursor) -> Result<(), Cut> {
        self.request(Request::ForgetPredictions).await?;
        // Why silent at first: only the prediction that stands is reported.
        let mut seen = self.drive(&mut cursor, true).await?;
        let mut prediction = seen.prediction;
        if prediction.reset_and_reboot {
            self.request(Request::ForgetPredictions).await?;
            cursor = deferred;
            seen = self.drive(&mut cursor, true).await?;
            prediction = Prediction { reset_and_reboot: true, ..seen.prediction };
        }
        self.emit(What::NodePredicted {
            host: self.slot.name.clone(),
            play: self.play,
            class: prediction.class,
            one_reboot: prediction.reset_and_reboot,
        })
        .await;
        if !self.verb.writes() {
            for reports in seen.reports {
                self.report(reports).await;
            }
            if let Some(end) = seen.end {
                self.take_over(end);
            }
        }
        self.request(Request::ForgetPredictions).await?;
        self.slot.forecast = Some(prediction);
        Ok(())
    }

    /// Carries one play out on this node.
    pub(crate) async fn apply(&mut self, mut cursor: Cursor) -> Result<(), Cut> {
        let one_reboot = self.slot.forecast.is_some_and(|forecast| forecast.reset_and_reboot);
        self.emit(What::NodeBegan { host: self.slot.name.clone(), play: self.play, one_reboot }).await;
        self.forget_broken();
        self.state(NodeState::Applying, None).await;
        self.carry_on(&mut cursor).await
    }

    /// Drives a cursor to its end.
    pub(crate) async fn carry_on(&mut self, cursor: &mut Cursor) -> Result<(), Cut> {
        let mut seen = self.drive(cursor, false).await;
        // Why those too: what a lost run did to them is over once the play holds, whether or not it had to act.
        let adopted = self.slot.adopted
            && matches!(&seen, Ok(Seen { end: Some(end), .. }) if end.state == EndState::Done);
        let marked = self.slot.serves && self.slot.drain.is_some();
        if marked || self.is_out() && (!self.acted || adopted) {
            let released = if marked { self.take_marks_off().await } else { self.release().await };
            match (&mut seen, released) {
                // Why both: what happened first is the reason, and where the node is left has to be known.
                (Err(cut), Err(stays)) => cut.and(stays),
                (Ok(_), released) => released?,
                (Err(_), Ok(())) => {}
            }
        }
        let Some(end) = seen?.end else { return Ok(()) };
        let stopped = end.state == EndState::Stopped;
        self.take_over(end);
        match stopped {
            true if self.is_out() => {
                Err(Cut::Held("stopped before its end, while it was out of service".to_owned()))
            }
            true => Err(Cut::Stopped),
            false => Ok(()),
        }
    }

    /// The last pace at which it goes on to its first task here: who has begun in an earlier process begins nothing new.
    pub(crate) const fn last_pace(&self) -> Pace {
        if self.slot.resumed.is_some() { Pace::NoneNew } else { Pace::Going }
    }

    /// Whether it is out of service through us, or may be.
    pub(crate) const fn is_out(&self) -> bool {
        self.slot.is_out()
    }

    fn take_over(&mut self, end: End) {
        self.slot.vars = end.vars;
        self.slot.fatal |= end.fatal;
        self.slot.end_play |= end.end_play;
        self.slot.end_batch |= end.end_batch;
        self.slot.cleared_errors |= end.cleared_errors;
        self.slot.worsen(NodeState::Compliant, None);
        if !end.unknown.is_empty() {
            self.slot.worsen(NodeState::Unknown, Some(end.unknown.join("; ")));
        }
        match end.state {
            EndState::Done | EndState::Stopped => {}
            EndState::Failed { message, .. } => self.slot.worsen(NodeState::Failed, Some(message)),
            EndState::Unreachable { reason } => self.slot.worsen(NodeState::Unreachable, Some(reason)),
            EndState::Held { reason } => self.slot.worsen(NodeState::Held, Some(reason)),
            EndState::PendingActivation { class, reasons, next } => {
                let message = format!("waits for a {class}: {}; {next}", reasons.join(", "));
                let state = if self.verb.writes() { NodeState::Failed } else { NodeState::Drift };
                self.slot.worsen(state, Some(message));
            }
        }
    }

    pub(crate) async fn report(&mut self, reports: Vec<TaskReport>) {
        self.slot.count(&reports);
        for report in reports {
            let (state, message) = verdict::of_report(self.verb, &report);
            self.slot.worsen(state, message);
            if self.verb == Verb::Audit {
                self.slot.judged.take(&report);
            }
            if self.left.reported > 0 {
                self.left.reported -= 1;
                continue;
            }
            self.emit(What::TaskFinished { host: self.slot.name.clone(), report }).await;
        }
    }

    async fn drive(&mut self, cursor: &mut Cursor, silent: bool) -> Result<Seen, Cut> {
        let mut seen = Seen::default();
        let mut latch = self.left.latch.take_if(|_| !silent);
        loop {
            let reports = match cursor.next() {
                Step::Report(reports) => reports,
                Step::Run(action) => {
                    let stopping = *self.pace.borrow() == Pace::Stopping;
                    if !self.slot.out_of_service && stopping && action.phase == Phase::Declared {
                        return Err(Cut::Stopped);
                    }
                    let fed = match self.perform(&action, silent, &mut seen).await {
                        // Why not one that is out of service: nobody may leave it behind.
                        Err(Cut::Unreachable(reason)) if action.forgives_loss && !self.is_out() => {
                            Fed::Unreachable { reason }
                        }
                        done => done?,
                    };
                    let mut fed = match fed {
                        Fed::Outcome(outcome) if (action.keeps || outcome.facts.is_some()) && !silent => {
                            Fed::Outcome(Box::new(self.kept.within(*outcome, &action.id, &mut self.slot)))
                        }
                        fed => fed,
                    };
                    if !silent {
                        self.remember(action.id.to_string(), &fed, action.no_log).await;
                    }
                    // Why here: from now on it is the host's, and counted there.
                    if let Fed::Outcome(outcome) = &mut fed {
                        outcome.weight.room = None;
                    }
                    cursor.feed(fed)
                }
                Step::Barrier { task, at } => {
                    match if silent { None } else { self.wait_for_others(&task, at).await? } {
                        Some(fed) => {
                            if fed == Fed::Ended {
                                self.remember(task.to_string(), &fed, false).await;
                            }
                            cursor.feed(fed)
                        }
                        None => Vec::new(),
                    }
                }
                Step::Latch { key } => {
                    let copied = if silent { None } else { self.latch(&key).await? };
                    latch = copied.is_none().then_some(key);
                    let fed = Fed::Latch(copied);
                    if !silent {
                        self.remember(String::new(), &fed, false).await;
                    }
                    cursor.feed(fed)
                }
                Step::Ask { task, title } => {
                    let run = match self.stepper.clone() {
                        Some(stepper) => self.wanted_by(&*stepper, &task, &title).await?,
                        None => true,
                    };
                    let fed = Fed::Asked { run };
                    if !silent {
                        self.remember(task.to_string(), &fed, false).await;
                    }
                    cursor.feed(fed)
                }
                Step::SectionEnd { .. } => {
                    self.made_current(&cursor.awaiting())?;
                    self.release().await?;
                    Vec::new()
                }
                Step::End(end) => {
                    seen.end = Some(end);
                    return Ok(seen);
                }
            };
            if cursor.raised().is_some() && !silent {
                self.raise(None).await;
            }
            if !silent
                && let Some(result) = cursor.latch_result()
                && let Some(key) = latch.take()
            {
                let _ = self.out.send(FromNode::LatchResult { key, result: Box::new(result) }).await;
            }
            let reports: Vec<TaskReport> = reports.into_iter().map(task_report::report).collect();
            for report in &reports {
                seen.note(report);
            }
            if silent {
                seen.reports.push(reports);
            } else {
                self.report(reports).await;
            }
        }
    }

    /// A person's word on a task; a run that stops does not wait for it, unless the node is out of service.
    async fn wanted_by(&self, stepper: &dyn Stepper, task: &str, title: &str) -> Result<bool, Cut> {
        let stays = self.slot.out_of_service;
        tokio::select! {
            run = stepper.runs(self.play, task, title) => Ok(run),
            () = self.stops(), if !stays => Err(Cut::Stopped),
        }
    }

    /// Ends when the run is told to stop.
    pub(crate) fn stops(&self) -> impl Future<Output = ()> + use<> {
        let mut pace = self.pace.clone();
        async move {
            // Why for ever after an error: who leads the play is gone, and says nothing more.
            if pace.wait_for(|pace| *pace == Pace::Stopping).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Gives the node back. A rescue saves the recap, never this gate: after a disruptive act that failed, only a
    /// person does.
    async fn release(&mut self) -> Result<(), Cut> {
        if !self.is_out() {
            return Ok(());
        }
        if let Some(why) = self.unproven.take() {
            return Err(Cut::Held(format!(
                "failed while it was out of service, and nobody proved it well since: {why}"
            )));
        }
        if self.acted {
            self.pass_gate().await?;
        }
        self.permit = None;
        self.acted = false;
        self.state(NodeState::Resuming, None).await;
        self.give_back().await.map_err(Cut::Held)?;
        self.proven = None;
        self.slot.adopted = false;
        self.slot.out_of_service = false;
        self.slot.rebooted_at = None;
        self.emit(What::Released { host: self.slot.name.clone() }).await;
        self.tell(Input::Released { host: self.host }).await;
        self.state(NodeState::Applying, None).await;
        Ok(())
    }

    /// What an outcome says of the node while it is out of service.
    pub(crate) fn judge(&mut self, outcome: &OpOutcome) {
        if !self.slot.out_of_service {
            return;
        }
        match verdict::under_permit(outcome) {
            UnderPermit::Untouched => {}
            UnderPermit::Acted => self.acted = true,
            UnderPermit::Damaged(why) => {
                self.acted = true;
                self.unproven = Some(why);
            }
        }
    }

    async fn perform(&mut self, action: &Action, silent: bool, seen: &mut Seen) -> Result<Fed, Cut> {
        if !silent {
            // Why not a job: asked for again, it is found and never begun twice.
            if self.left.ask_spool
                && action.job.is_none()
                && let Some(fed) = self.spooled(action).await?
            {
                return Ok(fed);
            }
            if let Some((seconds, left)) = action.wait {
                self.before_retry(Duration::from_secs(seconds), left).await?;
            }
            self.announce(action).await?;
        }
        // Why not what may disturb: the budget bounds that, and who waits for the budget must keep nobody from ending.
        let throttle = action.throttle.filter(|_| !silent && action.disruption == Disruption::Live);
        let _turn = match throttle {
            Some(most) => {
                drop(self.place.take());
                let turn = self.throttles.enter(&action.id.task, most).await;
                self.take_place().await;
                turn
            }
            None => None,
        };
        match &action.work {
            Work::Node { op, blobs } => {
                let fed = match action.job {
                    Some(job) => self.job(action, op, job).await?,
                    None => self.operate(action, op, blobs).await?,
                };
                if let Fed::Outcome(outcome) = &fed {
                    if let Some(class) = outcome.activated {
                        seen.prediction.class = seen.prediction.class.max(class);
                        seen.reset |= class == Disruption::GpuReset;
                    }
                    // Why not while it is out: what it had before is what it has to come back with.
                    if let Some(facts) = &outcome.facts
                        && (self.slot.facts.is_none() || !self.slot.out_of_service)
                    {
                        self.slot.facts = Some(Arc::new((**facts).clone()));
                    }
                }
                Ok(fed)
            }
            Work::Reboot { when, timeout_s, reasons } => {
                seen.prediction.class = Disruption::Reboot;
                seen.prediction.reset_and_reboot |= seen.reset && *when == RebootWhen::Required;
                if action.mode == Mode::Predict {
                    self.request(Request::AssumeActivation { class: Disruption::Reboot }).await?;
                    return Ok(Fed::Rebooted);
                }
                if self.left.reboot.is_some() {
                    return self.see_reboot_through(Duration::from_secs(*timeout_s)).await;
                }
                if *when == RebootWhen::Required
                    && reasons.iter().all(|why| self.slot.rebooted_for.contains(why))
                {
                    let reason = format!(
                        "a second reboot for the same reason ({}): the first did not make it current; look at the node",
                        reasons.join(", ")
                    );
                    return Ok(Fed::Held { reason });
                }
                if let Err(held) = self.permitted(Disruption::Reboot, &reasons.join(", ")).await? {
                    return Ok(held);
                }
                self.slot.rebooted_for.extend(reasons.iter().cloned());
                self.reboot(Duration::from_secs(*timeout_s), reasons.clone()).await?;
                Ok(Fed::Rebooted)
            }
            Work::WaitForConnection { timeout_s, delay_s } => {
                if action.mode == Mode::Apply {
                    self.wait_for_connection(Duration::from_secs(*delay_s), Duration::from_secs(*timeout_s))
                        .await?;
                }
                Ok(Fed::Done)
            }
            Work::Fetch(fetch) => self.fetch(action, fetch).await,
            Work::Pause(pause) => self.pause_play(pause).await,
            Work::ResetConnection => {
                if action.mode == Mode::Apply {
                    if let Some((link, _)) = self.slot.link.take() {
                        self.ways.closes(&self.slot.name);
                        link.close().await;
                    }
                    self.link().await?;
                }
                Ok(Fed::Done)
            }
        }
    }

    async fn announce(&mut self, action: &Action) -> Result<(), Cut> {
        let started = What::TaskStarted {
            host: self.slot.name.clone(),
            op_id: action.id.to_string(),
            task: action.task.clone(),
            kind: action.kind.to_owned(),
        };
        let is_command = tasks::find(action.kind).is_some_and(|kind| kind.class == Class::Command);
        if action.mode == Mode::Apply && (is_command || action.job.is_some() || self.slot.out_of_service) {
            self.durable(started).await?;
        } else {
            self.emit(started).await;
        }
        if action.phase == Phase::Verify && self.slot.out_of_service {
            self.state(NodeState::Verifying, None).await;
        }
        Ok(())
    }

    /// Waits before a task is tried again.
    async fn before_retry(&mut self, how_long: Duration, left: u32) -> Result<(), Cut> {
        let text = match left {
            0 => format!("waits {} s", how_long.as_secs()),
            _ => format!("failed, tries again in {} s; {left} left", how_long.as_secs()),
        };
        self.emit(What::Progress { host: self.slot.name.clone(), text }).await;
        drop(self.place.take());
        let mut pace = self.pace.clone();
        let stops = pace.wait_for(|pace| *pace == Pace::Stopping);
        tokio::select! {
            () = tokio::time::sleep(how_long) => {}
            // Why not one that is out of service: it has to get to a safe point.
            Ok(_) = stops, if !self.slot.out_of_service => return Err(Cut::Stopped),
        }
        self.take_place().await;
        Ok(())
    }

    pub(crate) async fn operate_now(
        &mut self,
        action: &Action,
        op: &NodeOp,
        blobs: &[BlobNeed],
        timeout_s: u64,
    ) -> Result<Fed, Cut> {
        if let Some(host) = &action.delegate {
            return Ok(match self.on_another(action, host, op, blobs, timeout_s).await {
                Ok(outcome) => Fed::Outcome(Box::new(outcome)),
                Err(reason) => Fed::Unreachable { reason },
            });
        }
        if action.mode == Mode::Apply && action.phase != Phase::Verify {
            let most = tasks::find(action.kind).map_or(Disruption::Live, |kind| kind.disruption);
            if let Err(held) = self.still_allowed(most).await {
                return Ok(held);
            }
        }
        let verifies = action.phase == Phase::Verify;
        if verifies && !self.verifying {
            // Why: an earlier proof of this session reads as what it assumed, and the node may differ by now.
            self.request(Request::ForgetPredictions).await?;
        }
        self.verifying = verifies;
        loop {
            let link = self.link().await?;
            let request = self.request_for(action, op, timeout_s);
            let (out, host) = (self.out.clone(), self.slot.name.clone());
            let progress = Box::new(move |text: &str| {
                // Why try: what a node is doing right now is not worth waiting for.
                let what = What::Progress { host: host.clone(), text: text.to_owned() };
                let _ = out.try_send(FromNode::Event(what));
            });
            let outcome = match link.call(request, blobs.to_vec(), progress).await {
                Ok(outcome) => outcome,
                Err(error) => return self.broken_off(error).await,
            };
            self.judge(&outcome);
            let OpStatus::NeedsPermit { class } = outcome.status else {
                if outcome.activated.is_some_and(|class| class > Disruption::Live) {
                    self.look_back().await;
                }
                return Ok(Fed::Outcome(Box::new(outcome)));
            };
            if self.permit.as_ref().is_some_and(|permit| permit.class >= class) {
                return Err(Cut::Failed(format!("the helper refuses its permit for {class}")));
            }
            let why = outcome.changes.iter().find(|change| change.disruption == class);
            let why = why.map_or_else(|| action.task.clone(), |change| change.what.clone());
            if let Err(held) = self.permitted(class, &why).await? {
                return Ok(held);
            }
            if action.kind == "gpu_mig" {
                match self.layout_of_others().await {
                    Ok(None) => {}
                    Ok(Some(by)) => return self.only_looked_at(action, op, timeout_s, &by).await,
                    Err(held) => return Ok(held),
                }
            }
        }
    }
}

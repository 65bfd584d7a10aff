//! The task of one node: it drives the node's cursor, talks to the node, and asks the dispatcher before it disturbs anything.

use std::{collections::HashMap, sync::Arc, time::Duration};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, NodeOp, OpOutcome, OpStatus, Request,
    disturbing::kinds,
    message::Mode,
    op::Reboot,
    tasks::{self, Class, GpuMig, Kind as _, RebootWhen},
};

use crate::{
    engine::{
        host::{HostState, Prediction},
        node::{
            conversation::{Conversation, PermitUse},
            custody::Custody,
            dispatcher::DispatcherHandle,
            drive_result::DriveResult,
            early_end::EarlyEnd,
            message::{FromNode, Pace},
            settings::PlaySettings,
        },
        ports::confirm::Stepper,
        verdict,
    },
    event::{NodeState, Phase, TaskReport, TaskStatus, What},
    interpreter::{Action, BlobNeed, Cursor, End, EndState, Fed, Step, Work},
    journal::Replayed,
};

/// Time for a node to tell what a reboot takes from its GPUs, in seconds.
const FORESEEING_S: u64 = 60;

/// Drives one node's cursor through one play.
pub(crate) struct NodeDriver {
    pub(crate) custody: Custody,
    /// Results of the commands that a reading ran. A reading may go through a play twice, but runs each command once.
    pub(crate) ran: HashMap<String, OpOutcome>,
    /// Whether the last operation was part of a verification.
    pub(crate) verifying: bool,
    pub(crate) left: Leftover,
}

/// What is left of an earlier process of this run.
#[derive(Default)]
pub(crate) struct Leftover {
    /// Operations may have been carried out whose answers were lost: the node's spool is asked first.
    pub(crate) ask_spool: bool,
    /// Reports to come that people have seen already.
    pub(crate) reported: usize,
    /// The `run_once` task that this host was running.
    pub(crate) latch: Option<Arc<str>>,
}

impl NodeDriver {
    pub(crate) fn new(settings: Arc<PlaySettings>, dispatcher: DispatcherHandle, host: HostState) -> Self {
        // Why for every node: a node may have begun without that having reached the journal.
        let left = Leftover { ask_spool: settings.run.resumed, ..Leftover::default() };
        let permit = PermitUse { acted: host.custody.adopted, ..PermitUse::default() };
        let node =
            Conversation { dispatcher, settings, host, permit, broke: None, boot_id: None, reboot: None };
        let custody = Custody { node, proven: None, reason: String::new(), is_stuck: false };
        Self { custody, ran: HashMap::new(), verifying: false, left }
    }

    /// Predicts one play on this node.
    ///
    /// `deferred` is the same play where GPU groups leave their activation to the reboot.
    pub(crate) async fn predict(&mut self, mut cursor: Cursor, deferred: Cursor) -> Result<(), EarlyEnd> {
        self.custody.node.request(Request::ForgetPredictions).await?;
        // Why silent at first: only the prediction that stands is reported.
        let mut seen = self.drive(&mut cursor, true).await?;
        let mut prediction = seen.prediction;
        if prediction.reset_and_reboot {
            self.custody.node.request(Request::ForgetPredictions).await?;
            cursor = deferred;
            seen = self.drive(&mut cursor, true).await?;
            prediction = Prediction { reset_and_reboot: true, ..seen.prediction };
        }
        if prediction.class > Disruption::Live || seen.may_reboot {
            self.custody.spares_own_machine(prediction.class).await?;
        }
        self.custody
            .node
            .dispatcher
            .emit(Replayed::NodePredicted {
                host: self.custody.node.host.name.clone(),
                play: self.custody.node.settings.play,
                class: prediction.class,
                one_reboot: prediction.reset_and_reboot,
            })
            .await;
        if !self.custody.node.settings.run.verb.writes() {
            for reports in seen.reports {
                self.report(reports).await;
            }
            if let Some(end) = seen.end {
                self.take_over(end);
            }
        }
        let settings = &self.custody.node.settings;
        // Each connection takes 150 KiB here and a process there, and a reading of thousands of nodes is over for each of
        // them long before the last.
        if !settings.run.verb.writes() && !settings.later.contains(&self.custody.node.host.name) {
            self.custody.node.hang_up().await;
        } else {
            self.custody.node.request(Request::ForgetPredictions).await?;
        }
        self.custody.node.host.forecast = Some(prediction);
        Ok(())
    }

    /// Carries one play out on this node.
    pub(crate) async fn apply(&mut self, mut cursor: Cursor) -> Result<(), EarlyEnd> {
        let one_reboot = self.custody.node.host.forecast.is_some_and(|forecast| forecast.reset_and_reboot);
        self.custody
            .node
            .dispatcher
            .emit(Replayed::NodeBegan {
                host: self.custody.node.host.name.clone(),
                play: self.custody.node.settings.play,
                one_reboot,
            })
            .await;
        self.custody.node.forget_broken();
        self.custody.node.dispatcher.state(NodeState::Applying, None).await;
        self.carry_on(&mut cursor).await
    }

    /// Drives a cursor to its end.
    pub(crate) async fn carry_on(&mut self, cursor: &mut Cursor) -> Result<(), EarlyEnd> {
        let mut seen = self.drive(cursor, false).await;
        // Why adopted nodes too: what a lost run did to them is over once the play holds, whether or not it had to act.
        let adopted = self.custody.node.host.custody.adopted
            && matches!(&seen, Ok(DriveResult { end: Some(end), .. }) if end.state == EndState::Done);
        let marked = self.custody.node.host.custody.serves && self.custody.node.host.custody.drain.is_some();
        // Why not where it was tried just now: that would take as long again, and say the same once more.
        let is_left = self.custody.node.is_out() && !self.custody.is_stuck;
        if marked || is_left && (!self.custody.node.permit.acted || adopted) {
            let released =
                if marked { self.custody.take_marks_off().await } else { self.custody.release().await };
            match (&mut seen, released) {
                // Why both: the first is the reason, and people have to know where the node is left.
                (Err(cut), Err(stays)) => cut.and(stays),
                (Ok(_), released) => released?,
                (Err(_), Ok(())) => {}
            }
        }
        let Some(end) = seen?.end else { return Ok(()) };
        let stopped = end.state == EndState::Stopped;
        self.take_over(end);
        match stopped {
            true if self.custody.node.is_out() => {
                Err(EarlyEnd::Held("stopped before its end, while it was out of service".to_owned()))
            }
            true => Err(EarlyEnd::Stopped),
            false => Ok(()),
        }
    }

    fn take_over(&mut self, end: End) {
        self.custody.node.host.vars = end.vars;
        self.custody.node.host.play_wide.fatal |= end.fatal;
        self.custody.node.host.play_wide.end_play |= end.end_play;
        self.custody.node.host.play_wide.end_batch |= end.end_batch;
        self.custody.node.host.play_wide.cleared_errors |= end.cleared_errors;
        self.custody.node.host.worsen(NodeState::Compliant, None);
        if !end.unknown.is_empty() {
            self.custody.node.host.worsen(NodeState::Unknown, Some(end.unknown.join("; ")));
        }
        match end.state {
            EndState::Done | EndState::Stopped => {}
            EndState::Failed { message, .. } => {
                self.custody.node.host.worsen(NodeState::Failed, Some(message))
            }
            EndState::Unreachable { reason } => {
                self.custody.node.host.worsen(NodeState::Unreachable, Some(reason))
            }
            EndState::Held { reason } => self.custody.node.host.worsen(NodeState::Held, Some(reason)),
            EndState::PendingActivation { class, reasons, next } => {
                let message = format!("waits for a {class}: {}; {next}", reasons.join(", "));
                let state = if self.custody.node.settings.run.verb.writes() {
                    NodeState::Failed
                } else {
                    NodeState::Drift
                };
                self.custody.node.host.worsen(state, Some(message));
            }
        }
    }

    pub(crate) async fn report(&mut self, reports: Vec<TaskReport>) {
        self.custody.node.host.count(&reports);
        for mut report in reports {
            if self.custody.node.settings.run.verb.info().judges && report.status == TaskStatus::Possible {
                // Why: what a command would do is no difference from what is declared.
                report.changes.retain(|_| !verdict::is_command(&report.kind));
            }
            let (state, message) = verdict::of_report(self.custody.node.settings.run.verb, &report);
            self.custody.node.host.worsen(state, message);
            if self.custody.node.settings.run.verb.info().judges {
                self.custody.node.host.tally.judged.take(&report);
            }
            if self.left.reported > 0 {
                self.left.reported -= 1;
                continue;
            }
            self.custody
                .node
                .dispatcher
                .emit(What::TaskFinished { host: self.custody.node.host.name.clone(), report })
                .await;
        }
    }

    async fn drive(&mut self, cursor: &mut Cursor, silent: bool) -> Result<DriveResult, EarlyEnd> {
        let mut seen = DriveResult::default();
        let mut latch = self.left.latch.take_if(|_| !silent);
        loop {
            let reports = match cursor.next() {
                Step::Report(reports) => reports,
                Step::Run(action) => {
                    let stopping = *self.custody.node.dispatcher.pace.borrow() == Pace::Stopping;
                    if !self.custody.node.host.custody.out_of_service
                        && stopping
                        && action.phase() == Phase::Declared
                    {
                        return Err(EarlyEnd::Stopped);
                    }
                    let fed = match self.perform(&action, silent, &mut seen).await {
                        // Why not if it is out of service: it has to be given back.
                        Err(EarlyEnd::Unreachable(reason))
                            if action.terms.forgives_loss && !self.custody.node.is_out() =>
                        {
                            Fed::Unreachable { reason }
                        }
                        done => done?,
                    };
                    let mut fed = match fed {
                        Fed::Outcome(outcome)
                            if (action.terms.keeps || outcome.facts.is_some()) && !silent =>
                        {
                            Fed::Outcome(Box::new(self.custody.node.settings.run.results_budget.within(
                                *outcome,
                                &action.id,
                                &mut self.custody.node.host.results,
                            )))
                        }
                        fed => fed,
                    };
                    if !silent {
                        self.remember(action.id.to_string(), &fed, action.no_log).await;
                    }
                    // Why here: from now on the result belongs to the host, and is counted there.
                    if let Fed::Outcome(outcome) = &mut fed {
                        outcome.weight.room = None;
                    }
                    cursor.feed(fed)
                }
                Step::Barrier { task, at } => {
                    match if silent {
                        None
                    } else {
                        self.custody
                            .node
                            .dispatcher
                            .wait_for_others(&task, at, self.custody.node.is_out())
                            .await?
                    } {
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
                    let copied = if silent { None } else { self.custody.node.dispatcher.latch(&key).await? };
                    latch = copied.is_none().then_some(key);
                    let fed = Fed::Latch(copied);
                    if !silent {
                        // Sealed, because it holds all variables that the task set, those of a `no_log` task among them.
                        let is_secret = matches!(fed, Fed::Latch(Some(_)));
                        self.remember(String::new(), &fed, is_secret).await;
                    }
                    cursor.feed(fed)
                }
                Step::Ask { task, title } => {
                    let run = match self.custody.node.settings.run.stepper.clone() {
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
                    self.custody.made_current(&cursor.awaiting())?;
                    self.custody.release().await?;
                    Vec::new()
                }
                Step::End(end) => {
                    seen.end = Some(end);
                    return Ok(seen);
                }
            };
            if cursor.raised().is_some() && !silent {
                self.custody.node.dispatcher.raise(None).await;
            }
            if !silent
                && let Some(result) = cursor.latch_result()
                && let Some(key) = latch.take()
            {
                let _ = self
                    .custody
                    .node
                    .dispatcher
                    .out
                    .send(FromNode::LatchResult { key, result: Box::new(result) })
                    .await;
            }
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

    /// Asks a person whether a task runs. A run that stops does not wait for the answer, unless the node is out of service.
    async fn wanted_by(&self, stepper: &dyn Stepper, task: &str, title: &str) -> Result<bool, EarlyEnd> {
        let stays = self.custody.node.host.custody.out_of_service;
        tokio::select! {
            run = stepper.runs(self.custody.node.settings.play, task, title) => Ok(run),
            () = self.custody.node.dispatcher.stops(), if !stays => Err(EarlyEnd::Stopped),
        }
    }

    async fn perform(
        &mut self,
        action: &Action,
        silent: bool,
        seen: &mut DriveResult,
    ) -> Result<Fed, EarlyEnd> {
        if !silent {
            // Why not for a job: if it is asked for again, it is found, and not begun twice.
            if self.left.ask_spool
                && action.terms.job.is_none()
                && let Some(fed) = self.spooled(action).await?
            {
                return Ok(fed);
            }
            if let Some((seconds, left)) = action.terms.wait {
                self.before_retry(Duration::from_secs(seconds), left).await?;
            }
            self.announce(action).await?;
        }
        // Why not for what may disturb: the budget bounds that, and a host that waits for the budget must not keep others
        // from ending.
        let throttle = action.terms.throttle.filter(|_| !silent && action.disruption == Disruption::Live);
        let _turn = match throttle {
            Some(most) => {
                drop(self.custody.node.dispatcher.place.take());
                let turn = self.custody.node.settings.throttles.enter(&action.id.task, most).await;
                self.custody.node.dispatcher.take_place().await;
                turn
            }
            None => None,
        };
        match &action.work {
            Work::Node { op, blobs } => {
                let op = match &**op {
                    NodeOp::KeepState(asked) => match self.custody.node.with_document(action, asked).await? {
                        Ok(whole) => &Box::new(whole),
                        Err(why) => {
                            let outcome = OpOutcome::failed(FailureKind::Invalid, why);
                            return Ok(Fed::Outcome(Box::new(outcome)));
                        }
                    },
                    _ => op,
                };
                let mut fed = match action.terms.job {
                    Some(job) => self.custody.node.job(action, op, job).await?,
                    None => self.operate(action, op, blobs).await?,
                };
                if let Fed::Outcome(outcome) = &mut fed {
                    self.custody.node.note_taken(op, action.mode, outcome);
                }
                if let Fed::Outcome(outcome) = &mut fed
                    && action.phase() == Phase::Declared
                    && action.terms.delegate.is_none()
                {
                    self.custody.node.warn_of_kept(op, outcome).await?;
                }
                if let Fed::Outcome(outcome) = &fed {
                    if let Some(class) = outcome.activated {
                        seen.prediction.class = seen.prediction.class.max(class);
                        seen.reset |= class == Disruption::GpuReset;
                    }
                    // Why not while it is out of service: it is compared with what it had before.
                    if let Some(facts) = &outcome.facts
                        && (self.custody.node.host.facts.is_none()
                            || !self.custody.node.host.custody.out_of_service)
                    {
                        self.custody.node.host.facts = Some(Arc::new((**facts).clone()));
                    }
                }
                Ok(fed)
            }
            Work::Reboot { when, timeout_s, reasons } => {
                seen.prediction.class = Disruption::Reboot;
                seen.prediction.reset_and_reboot |= seen.reset && *when == RebootWhen::Required;
                if action.mode == Mode::Predict {
                    let mut predicted = Fed::Rebooted;
                    // For what it takes from the GPUs.
                    let op = NodeOp::Reboot(Reboot::Orderly);
                    let answer = self.operate_now(action, &op, &[], FORESEEING_S).await?;
                    if matches!(&answer, Fed::Outcome(outcome) if outcome.status == OpStatus::Changed) {
                        predicted = answer;
                    }
                    self.custody
                        .node
                        .request(Request::AssumeActivation { class: Disruption::Reboot })
                        .await?;
                    return Ok(predicted);
                }
                if self.custody.node.reboot.is_some() {
                    return self.custody.see_reboot_through(Duration::from_secs(*timeout_s)).await;
                }
                if *when == RebootWhen::Required
                    && reasons.iter().all(|why| self.custody.node.host.custody.rebooted_for.contains(why))
                {
                    let reason = format!(
                        "a second reboot for the same reason ({}): the first did not make it current; look at the node",
                        reasons.join(", ")
                    );
                    return Ok(Fed::held(reason));
                }
                if *when == RebootWhen::Required
                    && !self.custody.node.settings.run.overrules.force
                    && let Some(vain) = self.custody.earlier_in_vain(reasons)
                {
                    let reason = format!(
                        "waits for a reboot ({}), and that of {} by run {} did not make it current; look at its kernel log, or \
                         power-cycle it; --force reboots it again",
                        reasons.join(", "),
                        vain.at.strftime("%Y-%m-%d %H:%M UTC"),
                        vain.run
                    );
                    return Ok(Fed::held(reason));
                }
                if let Err(held) = self.custody.permitted(Disruption::Reboot, &reasons.join(", ")).await? {
                    return Ok(held);
                }
                self.custody.node.host.custody.rebooted_for.extend(reasons.iter().cloned());
                self.custody.reboot(Duration::from_secs(*timeout_s), reasons.clone()).await?;
                Ok(Fed::Rebooted)
            }
            Work::WaitForConnection { timeout_s, delay_s } => {
                if action.mode == Mode::Apply {
                    self.custody
                        .node
                        .wait_for_connection(Duration::from_secs(*delay_s), Duration::from_secs(*timeout_s))
                        .await?;
                }
                Ok(Fed::Done)
            }
            Work::Fetch(fetch) => self.custody.node.fetch(action, fetch).await,
            Work::Pause(pause) => self.pause_play(pause).await,
            Work::NodeObject(declared) => self.declare_object(action, declared).await,
            Work::ResetConnection => {
                if action.mode == Mode::Apply {
                    self.custody.node.hang_up().await;
                    self.custody.node.link().await?;
                }
                Ok(Fed::Done)
            }
        }
    }

    async fn announce(&mut self, action: &Action) -> Result<(), EarlyEnd> {
        let started = What::TaskStarted {
            host: self.custody.node.host.name.clone(),
            op_id: action.id.clone(),
            task: action.task.clone(),
            kind: action.kind.to_owned(),
        };
        let is_command = tasks::find(action.kind).is_some_and(|kind| kind.class == Class::Command);
        if action.mode == Mode::Apply
            && (is_command || action.terms.job.is_some() || self.custody.node.host.custody.out_of_service)
        {
            self.custody.node.dispatcher.durable(started).await?;
        } else {
            self.custody.node.dispatcher.emit(started).await;
        }
        if action.phase() == Phase::Verify && self.custody.node.host.custody.out_of_service {
            self.custody.node.dispatcher.state(NodeState::Verifying, None).await;
        }
        Ok(())
    }

    /// Waits before a task is tried again.
    async fn before_retry(&mut self, how_long: Duration, left: u32) -> Result<(), EarlyEnd> {
        let text = match left {
            0 => format!("waits {} s", how_long.as_secs()),
            _ => format!("failed, tries again in {} s; {left} left", how_long.as_secs()),
        };
        self.custody
            .node
            .dispatcher
            .emit(What::Progress { host: self.custody.node.host.name.clone(), text })
            .await;
        drop(self.custody.node.dispatcher.place.take());
        let mut pace = self.custody.node.dispatcher.pace.clone();
        let stops = pace.wait_for(|pace| *pace == Pace::Stopping);
        tokio::select! {
            () = tokio::time::sleep(how_long) => {}
            // Why not if it is out of service: it has to reach a safe point.
            Ok(_) = stops, if !self.custody.node.host.custody.out_of_service => return Err(EarlyEnd::Stopped),
        }
        self.custody.node.dispatcher.take_place().await;
        Ok(())
    }

    pub(crate) async fn operate_now(
        &mut self,
        action: &Action,
        op: &NodeOp,
        blobs: &[BlobNeed],
        timeout_s: u64,
    ) -> Result<Fed, EarlyEnd> {
        if let Some(host) = &action.terms.delegate {
            return Ok(match self.custody.node.on_another(action, host, op, blobs, timeout_s).await {
                Ok(outcome) => Fed::Outcome(Box::new(outcome)),
                Err(reason) => Fed::Unreachable { reason },
            });
        }
        if action.mode == Mode::Apply
            && action.phase() != Phase::Verify
            && let Err(held) = self.custody.still_allowed(action.disruption).await
        {
            return Ok(held);
        }
        let verifies = action.phase() == Phase::Verify;
        if verifies && !self.verifying {
            // Why: the helper remembers what an earlier verification assumed, and the node may differ by now.
            self.custody.node.request(Request::ForgetPredictions).await?;
        }
        self.verifying = verifies;
        loop {
            let link = self.custody.node.link().await?;
            let request = self.custody.node.request_for(action, op, timeout_s);
            let (out, host) = (self.custody.node.dispatcher.out.clone(), self.custody.node.host.name.clone());
            let hidden = action.no_log;
            let progress = Box::new(move |text: &str| {
                if hidden {
                    return;
                }
                // Why without waiting: progress is not worth a delay.
                let what = What::Progress { host: host.clone(), text: text.to_owned() };
                let _ = out.try_send(FromNode::Record(what.into()));
            });
            let runs = matches!(op, NodeOp::Exec(_)) && action.mode == Mode::Apply;
            if runs && let Err(held) = self.custody.node.others_stayed(&action.id.task).await {
                return Ok(held);
            }
            let outcome = match link.call(request, blobs.to_vec(), progress).await {
                Ok(outcome) => outcome,
                Err(error) if runs => {
                    return self.custody.node.lost_in_command(&action.id.task, &action.task, error).await;
                }
                Err(error) => return self.custody.node.broken_off(error).await,
            };
            self.custody.node.judge(&outcome);
            let OpStatus::NeedsPermit { class } = outcome.status else {
                if outcome.activated.is_some_and(|class| class > Disruption::Live) {
                    self.custody.look_back().await;
                }
                return Ok(Fed::Outcome(Box::new(outcome)));
            };
            if self.custody.node.permit.permit.as_ref().is_some_and(|permit| permit.class >= class) {
                return Err(EarlyEnd::Failed(format!("the helper refuses its permit for {class}")));
            }
            if !self.custody.node.settings.run.verb.writes() {
                // Why: `check_mode: false` asks a reading to run a command, and no reading disturbs a node.
                return Ok(Fed::held(format!("needs {class}, and only a run gets a permit for it")));
            }
            // Why here as for commands, and not before: what is so already disturbs nothing.
            if let Some(found) = kinds::of_op(op).filter(|_| !self.custody.node.settings.disturbs) {
                return Ok(Fed::Refused { reason: found.hidden(kinds::WRITE_IT_OUT) });
            }
            let why = outcome.changes.iter().find(|change| change.disruption == class);
            let why = match op {
                // Why: what it changes is not known by name.
                NodeOp::Exec(_) => action.task.clone(),
                _ => why.map_or_else(|| action.task.clone(), Change::what),
            };
            if let Err(held) = self.custody.permitted(class, &why).await? {
                return Ok(held.naming(outcome.blockers));
            }
            if action.kind == GpuMig::INFO.name {
                match self.custody.layout_of_others().await {
                    Ok(None) => {}
                    Ok(Some(by)) => return self.custody.only_looked_at(action, op, timeout_s, &by).await,
                    Err(held) => return Ok(held),
                }
            }
        }
    }

    /// Has the node do it. What a reading runs is run once, however often the reading goes through the play.
    pub(crate) async fn operate(
        &mut self,
        action: &Action,
        op: &NodeOp,
        blobs: &[BlobNeed],
    ) -> Result<Fed, EarlyEnd> {
        let timeout_s = action.timeout_s.unwrap_or(self.custody.node.settings.run.task_timeout_s);
        let runs = action.mode == Mode::Apply
            && !self.custody.node.settings.run.verb.writes()
            && matches!(op, NodeOp::Exec(_));
        if !runs {
            return self.operate_now(action, op, blobs, timeout_s).await;
        }
        let id = action.id.to_string();
        if let Some(outcome) = self.ran.get(&id) {
            return Ok(Fed::Outcome(Box::new(outcome.clone())));
        }
        let fed = self.operate_now(action, op, blobs, timeout_s).await?;
        if let Fed::Outcome(outcome) = &fed {
            let mut outcome = OpOutcome::clone(outcome);
            outcome.weight.room = None;
            self.ran.insert(id, outcome);
        }
        Ok(fed)
    }
}

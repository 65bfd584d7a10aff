//! Answers to steps: what they report, and what they change.

use std::sync::Arc;

use gpufleet_protocol::disturbing::kinds;
use gpufleet_protocol::glob::Glob;
use gpufleet_protocol::tasks::{self, Class, Kind as _, KindInfo, WaitFor};
use gpufleet_protocol::{
    Blocker, Change, Disruption, FailureKind, NodeOp, OpOutcome, OpStatus, Property, Subject,
};
use serde_json::{Map, Value as Json, json};

use super::judge::hide;
use super::looping::item_layer;
use super::state::{Failure, Frame, Pending, Purpose, Reach};
use super::task::{Raw, disturbance_of};
use super::titles::{item_label, title};
use super::{Cursor, EndState, Fed};
use crate::event::{TaskReport, TaskStatus as Status};
use crate::interpreter::action::{Action, Mode, Work, position};
use crate::interpreter::facts::predicted_fact_vars;
use crate::interpreter::intervening::Intervener;
use crate::interpreter::ledger::{Entry, Owner};
use crate::interpreter::snapshots::DelegatedFacts;
use crate::template::{Dict, Value};

impl Cursor {
    /// Takes the answer to the last step; gives the reports that are done with it.
    ///
    /// An answer that nothing asked for changes nothing.
    pub fn feed(&mut self, fed: Fed) -> Vec<TaskReport> {
        crate::template::take_warnings();
        let reports = self.take(fed);
        self.reports.keep_warnings();
        reports
    }

    fn take(&mut self, fed: Fed) -> Vec<TaskReport> {
        if let Fed::Latch(copied) = fed {
            match copied {
                Some(copied) if self.latch.lose() => self.take_copy(copied),
                Some(_) => {}
                None => self.latch.win(),
            }
            return self.reports.take();
        }
        if let Fed::Asked { run } = fed {
            self.frames.answered(run);
            return self.reports.take();
        }
        if fed == Fed::Ended {
            self.end_here();
            return self.reports.take();
        }
        if fed == Fed::Halted {
            let message = "a failure on another host ended it".to_owned();
            let failure = Failure::of(String::new(), message);
            self.fail(Failure { reach: Reach::Elsewhere, ..failure });
            return self.reports.take();
        }
        if let Some(Pending { action, purpose }) = self.pending.take() {
            let delegate = action.terms.delegate.clone();
            match fed {
                Fed::Unreachable { reason } => self.lost(&action, &purpose, reason),
                Fed::Held { reason, blockers } => self.held(&action, reason, blockers),
                Fed::Refused { reason } => {
                    self.answer(action, purpose, OpOutcome::failed(FailureKind::Refused, reason));
                }
                Fed::Skipped { reason } => {
                    self.answer(action, purpose, OpOutcome::new(OpStatus::Skipped { reason }));
                }
                Fed::Outcome(outcome) => match outcome.status {
                    OpStatus::NeedsPermit { class } => {
                        let reason = format!("it needs a permit for {class}, and none was given");
                        self.held(&action, reason, outcome.blockers);
                    }
                    _ => self.answer(action, purpose, *outcome),
                },
                Fed::Rebooted => match purpose {
                    Purpose::Reboot => self.answer(action, purpose, OpOutcome::new(OpStatus::Changed)),
                    _ => self.unexpected(action, purpose),
                },
                Fed::Done => match &action.work {
                    Work::WaitForConnection { .. } | Work::ResetConnection => {
                        self.answer(action, purpose, OpOutcome::new(OpStatus::Ok));
                    }
                    _ => self.unexpected(action, purpose),
                },
                Fed::Latch(_) | Fed::Asked { .. } | Fed::Ended | Fed::Halted => {}
            }
            for report in self.reports.iter_mut() {
                report.delegated_to.clone_from(&delegate);
            }
        }
        self.reports.take()
    }

    fn unexpected(&mut self, action: Action, purpose: Purpose) {
        let outcome = OpOutcome::failed(FailureKind::Io, "the session gave an answer that does not fit");
        self.answer(action, purpose, outcome);
    }

    fn answer(&mut self, action: Action, purpose: Purpose, outcome: OpOutcome) {
        match purpose {
            Purpose::Facts => self.facts(&action, outcome),
            Purpose::Task => self.task_answer(action, outcome),
            Purpose::Group => self.finish_group_with(outcome, action),
            Purpose::Reboot => self.rebooted(&action, outcome),
            Purpose::Reassert(entry) => self.reasserted(&action, entry, outcome),
            Purpose::Verify(entry) => self.verified(&action, entry, outcome),
        }
    }

    /// A node's outcome as the result of a task.
    pub(super) fn raw_of(&mut self, outcome: OpOutcome) -> Raw {
        let mut data = outcome.data;
        if self.setup.mode == Mode::Apply
            && matches!(outcome.status, OpStatus::Failed { .. })
            && !outcome.changes.is_empty()
        {
            // What it did before it failed stays done.
            data.insert("changed".to_owned(), true.into());
        }
        let (status, message) = match outcome.status {
            OpStatus::Ok => (Status::Ok, None),
            OpStatus::Changed => (Status::Changed, None),
            OpStatus::Skipped { reason } | OpStatus::NotApplicable { reason } => {
                (Status::Skipped, Some(reason))
            }
            OpStatus::Possible => (Status::Possible, outcome.unsure),
            OpStatus::Unknown { reason } => (Status::Unknown, Some(reason)),
            OpStatus::NeedsPermit { class } => {
                (Status::Failed, Some(format!("it needs a permit for {class}")))
            }
            // Why: a command that only the run carries out may create what is missing.
            OpStatus::Failed { kind: FailureKind::Missing, message }
                if self.setup.mode == Mode::Predict && self.gaps.has_skipped_commands() =>
            {
                (Status::Possible, Some(message))
            }
            OpStatus::Failed { message, .. } => (Status::Failed, Some(message)),
        };
        if self.setup.mode == Mode::Apply && status == Status::Changed {
            self.passes.touch();
        }
        if outcome.changes.iter().any(|change| change.disruption > Disruption::Live) {
            self.gaps.foresee_disturbance();
        }
        Raw {
            status: Some(status),
            message,
            changes: outcome.changes,
            awaiting: outcome.awaiting,
            blockers: outcome.blockers,
            warnings: outcome.warnings,
            data,
        }
    }

    fn task_answer(&mut self, action: Action, outcome: OpOutcome) {
        if matches!(action.work, Work::ResetConnection) {
            let failed = matches!(outcome.status, OpStatus::Failed { .. });
            if !failed {
                self.frames.pop();
                return;
            }
        }
        let lasting = matches!(outcome.status, OpStatus::Ok | OpStatus::Changed);
        let mut outcome = outcome;
        self.leave_offer_open(&action, &mut outcome);
        // Why: a GPU task in a handler is a group of one.
        if let Some(member) = outcome.members.pop() {
            let activated = outcome.activated.max(member.activated);
            let mut awaiting = outcome.awaiting;
            awaiting.extend(member.awaiting.iter().cloned());
            outcome = OpOutcome { activated, awaiting, ..member };
        }
        let (activated, awaiting, act) = (outcome.activated, outcome.awaiting.clone(), outcome.act);
        if let (Some(facts), Work::Node { op, .. }) = (outcome.facts.clone(), &action.work)
            && let NodeOp::Facts(request) = &**op
        {
            let found = predicted_fact_vars(&facts, &mut outcome);
            let chosen = chosen_facts(&found, &request.filter);
            let for_another = self.frames.task().is_some_and(|active| active.task.delegate_facts);
            let host = action.terms.delegate.as_deref().filter(|_| for_another);
            let given = DelegatedFacts { facts: found, set: Dict::default() };
            if !self.others.give(host, &given) {
                self.variables.read_facts(given.facts);
            }
            outcome.data.insert("ansible_facts".to_owned(), Json::Object(chosen));
        }
        self.take_listed(&action, &outcome);
        self.tell_hidden(&action, &mut outcome);
        if let Some(active) = self.frames.task()
            && let Some(period) = active.task.timeout_s
        {
            ran_into(period, action.kind, &mut outcome);
        }
        let for_next_boot = std::mem::take(&mut outcome.for_next_boot);
        let owner = self.owner();
        let placed = outcome.data.get("dest").and_then(Json::as_str).map(str::to_owned);
        let command = tasks::find(action.kind).is_some_and(|kind| kind.class == Class::Command);
        let told = outcome.status.clone();
        let raw = if command && outcome.status == OpStatus::Possible {
            self.gaps.skip_command();
            self.foreseen_of_command(&action, outcome)
        } else {
            self.raw_of(outcome)
        };
        self.intervene(&action, &told);
        let mut place = None;
        // Why not what another host did, or what was only predicted: nothing of it is on this node.
        // Nor a job that is not waited for: when it is done is not known.
        let waited = action.terms.job.is_none_or(|job| job.poll_s > 0);
        let here = action.terms.delegate.is_none() && action.mode == self.setup.mode && waited;
        if here {
            let hidden = || vec![gpufleet_protocol::change::Value::Hidden.to_string()];
            let reasons = if action.no_log && !for_next_boot.is_empty() { hidden() } else { for_next_boot };
            self.passes.ledger_mut().await_boot(reasons);
        }
        if let (true, Some(owner), Work::Node { mut op, blobs }) = (lasting && here, owner, action.work) {
            // Why: only the node knows whether the file was put at that path, or into a folder of that name.
            if let (NodeOp::PutFile(put), Some(dest)) = (&mut *op, placed) {
                put.dest = dest;
            }
            place = self.passes.declare(Entry {
                owners: vec![owner],
                op: *op,
                blobs,
                run_as: action.run_as,
                environment: action.environment,
                timeout_s: action.timeout_s,
                awaiting,
                noted: Vec::new(),
                after: Vec::new(),
                overruled: false,
                act,
            });
        }
        self.item_done(raw);
        // Not of a node that another task of this play ran it for.
        let goes_on = here && !self.ending.has_failed() && !self.ending.is_over();
        match activated {
            Some(_) if command && goes_on => self.passes.reset_by_command(),
            Some(class) if !command => self.activate(class, place),
            _ => {}
        }
    }

    /// Says what a run refuses because the play's text does not show that it disturbs.
    fn tell_hidden(&self, action: &Action, outcome: &mut OpOutcome) {
        let disturbs = outcome.changes.iter().any(|change| change.disruption > Disruption::Live);
        let Work::Node { op, .. } = &action.work else { return };
        if self.setup.mode == Mode::Predict && self.setup.play.disruption == Disruption::Live && disturbs {
            let found = kinds::of_op(op);
            outcome.blockers.extend(
                found.map(|found| Blocker::new(found.hidden("a run refuses it"), kinds::WRITE_IT_OUT)),
            );
        }
    }

    /// A command that was not run, with what is known of it all the same.
    fn foreseen_of_command(&mut self, action: &Action, outcome: OpOutcome) -> Raw {
        let not_run = self.setup.not_run();
        match self.setup.mode {
            Mode::Predict if !outcome.changes.is_empty() => {
                self.gaps.foresee_disturbance();
                let warnings = self.lost_to_command(action);
                Raw { changes: outcome.changes, blockers: outcome.blockers, warnings, ..not_run }
            }
            _ => not_run,
        }
    }

    /// What a command loses of what tasks before it declared of the GPUs, which the run asserts again after it.
    fn lost_to_command(&self, action: &Action) -> Vec<String> {
        let Work::Node { op, .. } = &action.work else { return Vec::new() };
        let found = disturbance_of(op).filter(|found| found.activates().is_some());
        let kinds = self.passes.kinds_of_gpus();
        match found.filter(|_| !kinds.is_empty() && action.terms.delegate.is_none()) {
            Some(found) => vec![format!(
                "`{}` loses what tasks before it declare of the GPUs ({}); the run sets it again after it",
                found.command,
                kinds.join(", ")
            )],
            None => Vec::new(),
        }
    }

    /// What a node offers to pods before a foreseen disturbance does not tell what it offers after it.
    fn leave_offer_open(&self, action: &Action, outcome: &mut OpOutcome) {
        if !matches!(action.work, Work::NodeObject(_))
            || self.setup.mode == Mode::Apply
            || !self.gaps.has_disturbance()
        {
            return;
        }
        if let OpStatus::Failed { kind: FailureKind::Unconverged, message } = &outcome.status {
            let reason = format!("only the run can tell what it offers then; as it is now, {message}");
            // Why not unknown: the node is not as declared anyway, because of what is foreseen for it.
            outcome.status = match outcome.changes.is_empty() {
                true => OpStatus::Skipped { reason: reason.clone() },
                false => OpStatus::Changed,
            };
            outcome.warnings.push(reason);
        }
    }

    /// Makes a fact of what a task listed, such as `packages`.
    fn take_listed(&mut self, action: &Action, outcome: &OpOutcome) {
        let Some(name) = tasks::find(action.kind).and_then(KindInfo::fact) else { return };
        let listed = outcome.data.get("ansible_facts").and_then(|facts| facts.get(name));
        let value = match (&outcome.status, listed) {
            (OpStatus::Possible | OpStatus::Unknown { .. }, _) => Value::Unknown,
            (_, Some(listed)) => Value::literal(listed),
            (_, None) => return,
        };
        let name: Arc<str> = Arc::from(name);
        let for_another = self.frames.task().is_some_and(|active| active.task.delegate_facts);
        let host = action.terms.delegate.as_deref().filter(|_| for_another);
        let mut set = Dict::default();
        set.insert(Arc::clone(&name), value.clone());
        if !self.others.give(host, &DelegatedFacts { facts: set, set: Dict::default() }) {
            self.variables.add_listed(&name, value);
        }
    }

    /// Notes what an operation may have done to what earlier tasks declared.
    pub(super) fn intervene(&mut self, action: &Action, status: &OpStatus) {
        // Why also a failure: a part of it may have been done.
        let acted = match status {
            OpStatus::Changed => true,
            OpStatus::Failed { kind, .. } => *kind != FailureKind::Refused,
            _ => false,
        };
        if acted && action.mode == Mode::Apply && action.terms.delegate.is_none() {
            self.passes.intervened(action);
        }
    }

    /// The task and item on top.
    fn owner(&self) -> Option<Owner> {
        let active = self.frames.task()?;
        let task = Arc::clone(&active.task);
        let layer = match (&task.looped, active.items.as_ref().and_then(|items| items.get(active.next))) {
            (Some(looped), Some(value)) => {
                Some((item_layer(looped, active.next, value, active.items.as_deref()), value))
            }
            _ => None,
        };
        let scope = self.scope(&task, layer.as_ref().map(|(layer, _)| Arc::clone(layer)));
        let item = layer.map(|(_, value)| {
            (u32::try_from(active.next).unwrap_or(u32::MAX), item_label(&task, value, &scope))
        });
        let title = title(&task, &scope);
        Some(Owner { task, title, item })
    }

    fn finish_group_with(&mut self, outcome: OpOutcome, action: Action) {
        self.finish_group(Some(outcome), Some(action), None);
    }

    fn rebooted(&mut self, action: &Action, outcome: OpOutcome) {
        if !matches!(outcome.status, OpStatus::Ok | OpStatus::Changed) {
            let raw = self.raw_of(outcome);
            self.item_done(raw);
            return;
        }
        if self.setup.mode == Mode::Apply {
            self.passes.touch();
        }
        let (from, to) = ("running", "rebooted");
        let mut change = Change::new(Subject::Node, Property::STATE, from, to, Disruption::Reboot);
        if let Work::Reboot { reasons, .. } = &action.work
            && !reasons.is_empty()
        {
            change = change.with_note(reasons.join("; "));
        }
        let data: Map<String, Json> = [("rebooted".to_owned(), json!(true))].into_iter().collect();
        let warnings = outcome.warnings;
        self.gaps.foresee_disturbance();
        self.item_done(Raw { changes: vec![change], warnings, data, ..Raw::of(Status::Changed) });
        self.activate(Disruption::Reboot, None);
    }

    fn facts(&mut self, action: &Action, mut outcome: OpOutcome) {
        let facts = outcome.facts.clone().map(|facts| predicted_fact_vars(&facts, &mut outcome));
        let warnings = outcome.warnings.clone();
        let raw = self.raw_of(outcome);
        let mut report = blank(action, raw.status.unwrap_or(Status::Failed));
        report.message = raw.message;
        report.warnings = warnings;
        if let Some(facts) = facts {
            self.variables.read_facts(facts);
            report.status = Status::Ok;
        } else if report.status != Status::Failed {
            report.status = Status::Failed;
            report.message = Some("the node gave no facts".to_owned());
        }
        let failed = report.status == Status::Failed;
        let message = report.message.clone().unwrap_or_default();
        self.reports.push(report);
        if failed {
            let reach = if self.setup.play.any_errors_fatal { Reach::Raised } else { Reach::Here };
            self.fail(Failure { reach, ..Failure::of(action.task.clone(), message) });
        }
    }

    /// Reports of a ledger entry, each under its own task.
    fn entry_reports(&mut self, action: &Action, entry: usize, outcome: &OpOutcome) -> Vec<TaskReport> {
        let Some(owners) = self.passes.ledger().entries.get(entry).map(|entry| entry.owners.clone()) else {
            return Vec::new();
        };
        let mut reports = Vec::new();
        for (index, owner) in owners.iter().enumerate() {
            let Some(part) = part_of(outcome, index) else { continue };
            let raw = self.raw_of(part.clone());
            let mut report = blank(action, raw.status.unwrap_or(Status::Failed));
            report.op_id.task = Arc::clone(&owner.task.path);
            report.op_id.item = owner.item.as_ref().map(|(index, _)| *index);
            report.task.clone_from(&owner.title);
            owner.task.kind.name.clone_into(&mut report.kind);
            report.position = position(&owner.task.span);
            report.item = owner.item.as_ref().map(|(_, label)| label.clone());
            report.message = raw.message;
            report.changes = raw.changes;
            report.awaiting = raw.awaiting;
            report.blockers = raw.blockers;
            report.warnings = raw.warnings;
            if owner.task.no_log {
                hide(&mut report);
            }
            reports.push(report);
        }
        reports
    }

    fn reasserted(&mut self, action: &Action, entry: usize, outcome: OpOutcome) {
        let reports = self.entry_reports(action, entry, &outcome);
        let members = outcome.members.iter();
        let activated = members.filter_map(|member| member.activated).chain(outcome.activated).max();
        let awaiting =
            outcome.members.iter().flat_map(|m| m.awaiting.iter()).chain(&outcome.awaiting).cloned();
        if let Some(known) = self.passes.ledger_mut().entries.get_mut(entry) {
            known.awaiting = awaiting.collect();
            if !reports.iter().any(|report| matches!(report.status, Status::Failed | Status::Unknown)) {
                // Why: it was asserted again, so what earlier tasks did does not matter any more.
                known.after.clear();
            }
        }
        let failed = reports.iter().find(|report| report.status == Status::Failed);
        let failure = failed.map(|report| {
            let why = report.message.clone().unwrap_or_default();
            let why = match &action.work {
                Work::Node { op, .. } if matches!(**op, NodeOp::KeepState(_)) => why,
                _ => format!("it does not hold after the reset or reboot: {why}"),
            };
            Failure::of(report.task.clone(), why)
        });
        for mut report in reports {
            if report.status == Status::Unknown {
                self.ending.note_unknown(&report.task, report.message.as_deref().unwrap_or_default());
            }
            if !matches!(report.status, Status::Ok | Status::Skipped) {
                // Why: a failure is counted for the task, not for one of its items.
                report.item = report.item.filter(|_| report.status != Status::Failed);
                report.rescued = report.status == Status::Failed && self.frames.will_rescue();
                self.reports.push(report);
            }
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
        if let Some(class) = activated {
            self.activate(class, Some(entry));
        }
    }

    fn verified(&mut self, action: &Action, entry: usize, outcome: OpOutcome) {
        let touched = self.passes.is_touched();
        let reports = self.entry_reports(action, entry, &outcome);
        // Why: a verification changes nothing, whatever the plan says.
        self.passes.set_touched(touched);
        let others = Intervener::named(&self.passes.ledger().interveners(entry));
        let noted =
            self.passes.ledger().entries.get(entry).map(|entry| entry.noted.clone()).unwrap_or_default();
        let (mut failure, mut overruled, mut unseen) = (None, Vec::new(), false);
        for (owner, mut report) in reports.into_iter().enumerate() {
            let blind = part_of(&outcome, owner).is_some_and(is_blind);
            unseen |= blind;
            let differs: Vec<String> = report
                .changes
                .iter()
                .map(|change| {
                    let (what, to) = (change.what(), change.to_text());
                    let from = change.from_text().unwrap_or_else(|| "nothing".to_owned());
                    let before = noted.iter().find(|made| made.what() == what);
                    let before = before.and_then(|made| made.note.as_ref());
                    let why = change.note.as_ref().map(|note| format!(" ({note})"));
                    let why = why
                        .or_else(|| before.map(|note| format!(" (when it was set: {note})")))
                        .unwrap_or_default();
                    format!("{what} is {from}, declared {to}{why}")
                })
                .collect();
            match report.status {
                Status::Unknown => {
                    self.ending.note_unknown(&report.task, report.message.as_deref().unwrap_or_default());
                    self.reports.push(report);
                    continue;
                }
                Status::Failed | Status::Changed | Status::Ok
                    if !blind
                        && !others.is_empty()
                        && (report.status != Status::Ok || !differs.is_empty()) =>
                {
                    let found = match (differs.is_empty(), &report.message) {
                        (false, _) => differs.join("; "),
                        (true, Some(message)) => message.clone(),
                        (true, None) => "it would change again".to_owned(),
                    };
                    report.warnings.push(format!(
                        "{found}; declared by \"{}\" ({}:{}); {others} came after it and may have done that, so it is \
                         left as it is",
                        report.task, report.position.file, report.position.line
                    ));
                    report.status = Status::Ok;
                    (report.item, report.message) = (None, None);
                    report.changes.clear();
                    overruled.push(owner);
                    self.reports.push(report);
                    continue;
                }
                Status::Failed => {}
                Status::Changed | Status::Ok if !differs.is_empty() => {
                    report.message = Some(format!("unconverged: {}", differs.join("; ")));
                }
                Status::Changed => report.message = Some("unconverged: it would change again".to_owned()),
                _ => continue,
            }
            report.status = Status::Failed;
            report.item = None;
            // Why: nothing was changed; the message names what differs.
            report.changes.clear();
            let message = report.message.clone().unwrap_or_default();
            failure.get_or_insert_with(|| Failure::of(report.task.clone(), message));
            self.reports.push(report);
        }
        if !overruled.is_empty() {
            self.passes.ledger_mut().overrule(entry, &overruled);
        }
        if let Some(entry) = self.passes.ledger_mut().entries.get_mut(entry).filter(|_| !unseen) {
            // Why: the entry has been looked at, so earlier tasks cannot be the cause of a later difference.
            entry.after.clear();
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// The node does not answer.
    fn lost(&mut self, action: &Action, purpose: &Purpose, reason: String) {
        let ignored = match (purpose, self.frames.top()) {
            (Purpose::Task | Purpose::Reboot, Some(Frame::Task(active))) => active.task.ignore_unreachable,
            (Purpose::Facts, _) => self.setup.play.ignore_unreachable,
            (Purpose::Group, Some(Frame::Group(group))) => {
                group.tasks.iter().all(|task| task.ignore_unreachable)
            }
            _ => false,
        };
        if !ignored {
            let mut report = blank(action, Status::Unreachable);
            report.message = Some(reason.clone());
            self.reports.push(report);
            self.ending.set(EndState::Unreachable { reason });
            return;
        }
        match purpose {
            Purpose::Facts => {
                let mut report = blank(action, Status::Unreachable);
                report.ignored = true;
                report.message = Some(reason);
                self.reports.push(report);
            }
            Purpose::Group => self.finish_group(None, None, Some(&reason)),
            _ => self.item_done(Raw::because(Status::Unreachable, reason)),
        }
    }

    fn held(&mut self, action: &Action, reason: String, blockers: Vec<Blocker>) {
        let mut report = blank(action, Status::Held);
        report.blockers = blockers;
        report.message = Some(reason.clone());
        self.reports.push(report);
        self.ending.set(EndState::Held { reason });
    }
}

/// A report of an action without any result yet.
fn blank(action: &Action, status: Status) -> TaskReport {
    TaskReport::new(action.id.clone(), action.task.clone(), action.kind, action.position.clone(), status)
}

/// The facts that a `setup` task asks for, under the names that variables have.
fn chosen_facts(facts: &Dict, filter: &[String]) -> Map<String, Json> {
    let globs: Vec<Glob> = filter.iter().map(|pattern| Glob::new(pattern)).collect();
    let fits = |name: &str| {
        let short = name.strip_prefix("ansible_").unwrap_or(name);
        globs.is_empty() || globs.iter().any(|glob| glob.matches(name) || glob.matches(short))
    };
    let wanted = |name: &str| name.starts_with("ansible_") && name != "ansible_facts" && fits(name);
    facts.to_json().into_iter().filter(|(name, _)| wanted(name)).collect()
}

/// What Ansible says of a task that its `timeout` ended, in seconds.
fn ran_into(period: u64, kind: &str, outcome: &mut OpOutcome) {
    // Why not `wait_for`: it has a `timeout` parameter of its own, with a message of its own.
    if kind == WaitFor::INFO.name {
        return;
    }
    let OpStatus::Failed { kind: FailureKind::TimedOut, message } = &mut outcome.status else { return };
    *message = format!("Task failed: Timed out after {period} second(s).");
    outcome.data.remove("rc");
    outcome.data.insert("msg".to_owned(), Json::from(message.as_str()));
    outcome.data.insert("timedout".to_owned(), json!({ "period": period }));
}

/// What an outcome says of the owner of this index.
fn part_of(outcome: &OpOutcome, owner: usize) -> Option<&OpOutcome> {
    outcome.members.get(owner).or((owner == 0).then_some(outcome))
}

/// Whether a verification failed in a way that says nothing about the state of the node.
fn is_blind(outcome: &OpOutcome) -> bool {
    use FailureKind::{Invalid, Missing, Unconverged};
    matches!(&outcome.status, OpStatus::Failed { kind, .. } if !matches!(kind, Missing | Invalid | Unconverged))
}

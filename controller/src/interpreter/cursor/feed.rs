//! Results coming in.

use std::sync::Arc;

use gpufleet_protocol::glob::Glob;
use gpufleet_protocol::tasks::{self, Class};
use gpufleet_protocol::{Change, Disruption, FailureKind, NodeOp, OpOutcome, OpStatus, Property, Subject};
use serde_json::{Map, Value as Json, json};

use super::judge::hide;
use super::state::{Failure, Frame, Pending, Purpose, Reach};
use super::task::Raw;
use super::{Copied, Cursor, EndState, Fed, Given};
use crate::interpreter::action::{Action, Mode, Work};
use crate::interpreter::facts::fact_vars;
use crate::interpreter::intervening::Intervener;
use crate::interpreter::ledger::{Entry, Owner};
use crate::interpreter::report::{Status, TaskReport};
use crate::template::{Dict, Value};

impl Cursor {
    /// Takes the answer to the last step; gives the reports that are done with it.
    ///
    /// An answer that nothing asked for changes nothing.
    pub fn feed(&mut self, fed: Fed) -> Vec<TaskReport> {
        crate::template::take_warnings();
        let reports = self.take(fed);
        self.keep_warnings();
        reports
    }

    fn take(&mut self, fed: Fed) -> Vec<TaskReport> {
        if let Fed::Latch(copied) = fed {
            if let Some(key) = self.open_latch.take() {
                match copied {
                    Some(copied) => self.take_copy(copied),
                    None => {
                        self.decided_latch = Some(key);
                        self.latched = Some(Copied::default());
                        self.latch_settled = false;
                    }
                }
            }
            return std::mem::take(&mut self.queue);
        }
        if let Fed::Asked { run } = fed {
            self.answered(run);
            return std::mem::take(&mut self.queue);
        }
        if fed == Fed::Ended {
            self.end_here();
            return std::mem::take(&mut self.queue);
        }
        if fed == Fed::Halted {
            let message = "a failure on another host ended it".to_owned();
            let failure = Failure::of(String::new(), message);
            self.fail(Failure { reach: Reach::Elsewhere, ..failure });
            return std::mem::take(&mut self.queue);
        }
        if let Some(Pending { action, purpose }) = self.pending.take() {
            let delegate = action.delegate.clone();
            match fed {
                Fed::Unreachable { reason } => self.lost(&action, &purpose, reason),
                Fed::Held { reason } => self.held(&action, reason),
                Fed::Refused { reason } => {
                    self.answer(action, purpose, OpOutcome::failed(FailureKind::Refused, reason));
                }
                Fed::Skipped { reason } => {
                    self.answer(action, purpose, OpOutcome::new(OpStatus::Skipped { reason }));
                }
                Fed::Outcome(outcome) => match outcome.status {
                    OpStatus::NeedsPermit { class } => {
                        self.held(&action, format!("it needs a permit for {class}, and none was given"));
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
            for report in &mut self.queue {
                report.delegated_to.clone_from(&delegate);
            }
        }
        std::mem::take(&mut self.queue)
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

    /// What the node says, in the words of a report.
    pub(super) fn raw_of(&mut self, outcome: OpOutcome) -> Raw {
        let (status, message) = match outcome.status {
            OpStatus::Ok => (Status::Ok, None),
            OpStatus::Changed => (Status::Changed, None),
            OpStatus::Skipped { reason } | OpStatus::NotApplicable { reason } => {
                (Status::Skipped, Some(reason))
            }
            OpStatus::Possible => (Status::Possible, None),
            OpStatus::Unknown { reason } => (Status::Unknown, Some(reason)),
            OpStatus::NeedsPermit { class } => {
                (Status::Failed, Some(format!("it needs a permit for {class}")))
            }
            // Why: a command that only the run does may bring it.
            OpStatus::Failed { kind: FailureKind::Missing, message }
                if self.mode == Mode::Predict && self.commands_ahead =>
            {
                (Status::Possible, Some(message))
            }
            OpStatus::Failed { message, .. } => (Status::Failed, Some(message)),
        };
        if self.mode == Mode::Apply && status == Status::Changed {
            self.touched = true;
        }
        Raw {
            status: Some(status),
            message,
            changes: outcome.changes,
            awaiting: outcome.awaiting,
            blockers: outcome.blockers,
            warnings: outcome.warnings,
            data: outcome.data,
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
        // Why: a GPU task in a handler is a group of one.
        if let Some(member) = outcome.members.pop() {
            let activated = outcome.activated.max(member.activated);
            let mut awaiting = outcome.awaiting;
            awaiting.extend(member.awaiting.iter().cloned());
            outcome = OpOutcome { activated, awaiting, ..member };
        }
        let (activated, awaiting) = (outcome.activated, outcome.awaiting.clone());
        if let (Some(facts), Work::Node { op, .. }) = (&outcome.facts, &action.work)
            && let NodeOp::Facts(request) = &**op
        {
            let found = fact_vars(facts);
            let chosen = chosen_facts(&found, &request.filter);
            let for_another =
                matches!(self.frames.last(), Some(Frame::Task(active)) if active.task.delegate_facts);
            let host = action.delegate.as_deref().filter(|_| for_another);
            let given = Given { facts: found, set: Dict::default() };
            if !self.give(host, &given) {
                self.read_facts(given.facts);
            }
            outcome.data.insert("ansible_facts".to_owned(), Json::Object(chosen));
        }
        if let Some(Frame::Task(active)) = self.frames.last()
            && let Some(period) = active.task.timeout_s
        {
            ran_into(period, action.kind, &mut outcome);
        }
        let owner = self.owner();
        let placed = outcome.data.get("dest").and_then(Json::as_str).map(str::to_owned);
        let command = tasks::find(action.kind).is_some_and(|kind| kind.class == Class::Command);
        let told = outcome.status.clone();
        let raw = if command && outcome.status == OpStatus::Possible {
            self.commands_ahead = true;
            self.not_run()
        } else {
            self.raw_of(outcome)
        };
        self.intervene(&action, &told);
        let mut place = None;
        // Why not one that another host did for this one, or that was only predicted: nothing of it is on this node.
        // Nor one that nobody waits for: when it is done is not known.
        let waited = action.job.is_none_or(|job| job.poll_s > 0);
        let here = action.delegate.is_none() && action.mode == self.mode && waited;
        if let (true, Some(owner), Work::Node { mut op, blobs }) = (lasting && here, owner, action.work) {
            // Why: only the node knows whether a file was put there, or into a folder of that name.
            if let (NodeOp::PutFile(put), Some(dest)) = (&mut *op, placed) {
                put.dest = dest;
            }
            place = self.ledger.declare(Entry {
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
            });
        }
        self.item_done(raw);
        if let Some(class) = activated {
            self.activate(class, place);
        }
    }

    /// Notes what an operation may have done to what earlier tasks declared.
    pub(super) fn intervene(&mut self, action: &Action, status: &OpStatus) {
        let Work::Node { op, .. } = &action.work else { return };
        // Why a failure too: what failed may have done a part of it.
        let acted = match status {
            OpStatus::Changed => true,
            OpStatus::Failed { kind, .. } => *kind != FailureKind::Refused,
            _ => false,
        };
        if acted && action.mode == Mode::Apply && action.delegate.is_none() {
            let unwatched = action.job.is_some_and(|job| job.poll_s == 0);
            self.ledger.intervened(op, &Intervener::of(action), unwatched);
        }
    }

    /// The task and item on top.
    fn owner(&self) -> Option<Owner> {
        let Some(Frame::Task(active)) = self.frames.last() else { return None };
        let task = Arc::clone(&active.task);
        let layer = match (&task.looped, active.items.as_ref().and_then(|items| items.get(active.next))) {
            (Some(looped), Some(value)) => {
                Some((Self::item_layer(looped, active.next, value, active.items.as_deref()), value))
            }
            _ => None,
        };
        let scope = self.scope(&task, layer.as_ref().map(|(layer, _)| Arc::clone(layer)));
        let item = layer.map(|(_, value)| {
            (u32::try_from(active.next).unwrap_or(u32::MAX), Self::item_label(&task, value, &scope))
        });
        let title = self.title(&task, &scope);
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
        self.touched |= self.mode == Mode::Apply;
        let (from, to) = ("running", "rebooted");
        let mut change = Change::new(Subject::Node, Property::STATE, from, to, Disruption::Reboot);
        if let Work::Reboot { reasons, .. } = &action.work
            && !reasons.is_empty()
        {
            change = change.with_note(reasons.join("; "));
        }
        let data: Map<String, Json> = [("rebooted".to_owned(), json!(true))].into_iter().collect();
        self.item_done(Raw { changes: vec![change], data, ..Raw::of(Status::Changed) });
        self.activate(Disruption::Reboot, None);
    }

    /// Takes facts over; as in Ansible, what tasks made facts of stays in `ansible_facts`.
    fn read_facts(&mut self, fresh: Dict) {
        let before = std::mem::replace(&mut self.vars.facts, Arc::new(fresh));
        let Some(Value::Map(before)) = before.get("ansible_facts") else { return };
        let now = match self.vars.facts.get("ansible_facts") {
            Some(Value::Map(now)) => Arc::clone(now),
            _ => Arc::default(),
        };
        let left = before.iter().filter(|(name, _)| !now.contains(name));
        self.add_facts(left.map(|(name, value)| (Arc::clone(name), value.clone())).collect());
    }

    /// Puts these into `ansible_facts`.
    pub(super) fn add_facts(&mut self, fresh: Vec<(Arc<str>, Value)>) {
        if fresh.is_empty() {
            return;
        }
        let facts = Arc::make_mut(&mut self.vars.facts);
        let mut all = match facts.get("ansible_facts") {
            Some(Value::Map(all)) => (**all).clone(),
            _ => Dict::default(),
        };
        for (name, value) in fresh {
            all.insert(name, value);
        }
        facts.insert("ansible_facts", Value::Map(Arc::new(all)));
    }

    fn facts(&mut self, action: &Action, outcome: OpOutcome) {
        let facts = outcome.facts.clone();
        let warnings = outcome.warnings.clone();
        let raw = self.raw_of(outcome);
        let mut report = blank(action, raw.status.unwrap_or(Status::Failed));
        report.message = raw.message;
        report.warnings = warnings;
        if let Some(facts) = &facts {
            self.read_facts(fact_vars(facts));
            report.status = Status::Ok;
        } else if report.status != Status::Failed {
            report.status = Status::Failed;
            report.message = Some("the node gave no facts".to_owned());
        }
        let failed = report.status == Status::Failed;
        let message = report.message.clone().unwrap_or_default();
        self.queue.push(report);
        if failed {
            let reach = if self.play.any_errors_fatal { Reach::Raised } else { Reach::Here };
            self.fail(Failure { reach, ..Failure::of(action.task.clone(), message) });
        }
    }

    /// Reports of a ledger entry, each under its own task.
    fn entry_reports(&mut self, action: &Action, entry: usize, outcome: &OpOutcome) -> Vec<TaskReport> {
        let Some(owners) = self.ledger.entries.get(entry).map(|entry| entry.owners.clone()) else {
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
            report.file = Arc::from(owner.task.span.file());
            report.line = owner.task.span.line;
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
        if let Some(known) = self.ledger.entries.get_mut(entry) {
            known.awaiting = awaiting.collect();
            if !reports.iter().any(|report| matches!(report.status, Status::Failed | Status::Unknown)) {
                // Why: it holds anew, so what others did before is over.
                known.after.clear();
            }
        }
        let failed = reports.iter().find(|report| report.status == Status::Failed);
        let failure = failed.map(|report| {
            let why = report.message.clone().unwrap_or_default();
            Failure::of(report.task.clone(), format!("it does not hold after the reset or reboot: {why}"))
        });
        for mut report in reports {
            if report.status == Status::Unknown {
                self.unknown.push(format!("{}: {}", report.task, report.message.clone().unwrap_or_default()));
            }
            if !matches!(report.status, Status::Ok | Status::Skipped) {
                // Why: a failure here is counted once, with its task, although the task itself was reported before.
                report.item = report.item.filter(|_| report.status != Status::Failed);
                report.rescued = report.status == Status::Failed && self.will_rescue();
                self.queue.push(report);
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
        let touched = self.touched;
        let reports = self.entry_reports(action, entry, &outcome);
        // Why: a verification changes nothing, whatever the plan says.
        self.touched = touched;
        let others = Intervener::named(&self.ledger.interveners(entry));
        let noted = self.ledger.entries.get(entry).map(|entry| entry.noted.clone()).unwrap_or_default();
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
                    let before = noted.iter().find(|made| made.about() == change.about());
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
                    self.unknown.push(format!(
                        "{}: {}",
                        report.task,
                        report.message.clone().unwrap_or_default()
                    ));
                    self.queue.push(report);
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
                        report.task, report.file, report.line
                    ));
                    report.status = Status::Ok;
                    (report.item, report.message) = (None, None);
                    report.changes.clear();
                    overruled.push(owner);
                    self.queue.push(report);
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
            // Why: nothing of it was made; the message names what differs.
            report.changes.clear();
            let message = report.message.clone().unwrap_or_default();
            failure.get_or_insert_with(|| Failure::of(report.task.clone(), message));
            self.queue.push(report);
        }
        if !overruled.is_empty() {
            self.ledger.overrule(entry, &overruled);
        }
        if let Some(entry) = self.ledger.entries.get_mut(entry).filter(|_| !unseen) {
            // Why: they have been looked at, and what differs later was somebody else's doing.
            entry.after.clear();
        }
        if let Some(failure) = failure {
            self.fail(failure);
        }
    }

    /// The node does not answer.
    fn lost(&mut self, action: &Action, purpose: &Purpose, reason: String) {
        let ignored = match (purpose, self.frames.last()) {
            (Purpose::Task | Purpose::Reboot, Some(Frame::Task(active))) => active.task.ignore_unreachable,
            (Purpose::Facts, _) => self.play.ignore_unreachable,
            (Purpose::Group, Some(Frame::Group(group))) => {
                group.tasks.iter().all(|task| task.ignore_unreachable)
            }
            _ => false,
        };
        if !ignored {
            let mut report = blank(action, Status::Unreachable);
            report.message = Some(reason.clone());
            self.queue.push(report);
            self.end = Some(EndState::Unreachable { reason });
            return;
        }
        match purpose {
            Purpose::Facts => {
                let mut report = blank(action, Status::Unreachable);
                report.ignored = true;
                report.message = Some(reason);
                self.queue.push(report);
            }
            Purpose::Group => self.finish_group(None, None, Some(&reason)),
            _ => self.item_done(Raw::because(Status::Unreachable, reason)),
        }
    }

    fn held(&mut self, action: &Action, reason: String) {
        let mut report = blank(action, Status::Held);
        report.message = Some(reason.clone());
        self.queue.push(report);
        self.end = Some(EndState::Held { reason });
    }
}

/// A report of an action without any result yet.
fn blank(action: &Action, status: Status) -> TaskReport {
    let place = (Arc::clone(&action.file), action.line);
    TaskReport::blank(action.id.clone(), action.task.clone(), action.kind, place, status)
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
    // Why not then: its own `timeout` may have ended it, of which the task is told otherwise.
    if kind == "wait_for" {
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

/// Whether a verification failed in a way that tells nothing of what is on the node.
fn is_blind(outcome: &OpOutcome) -> bool {
    use FailureKind::{Invalid, Missing, Unconverged};
    matches!(&outcome.status, OpStatus::Failed { kind, .. } if !matches!(kind, Missing | Invalid | Unconverged))
}

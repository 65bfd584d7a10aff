//! Judges the readings of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gpufleet_protocol::signal::{Readings, RecordSort, Signal, Signals, SubjectReadings};
use serde_json::Value;

use crate::catalogue::{Check, RuleVerdict};
use crate::finding::{Finding, NaReason, SILENT, Subject};
use crate::memory::{Memory, Now, Past, Standing, Watch};
use crate::policy::{NodePolicy, PolicyCheck};
use crate::rule::{Code, Others, Pci, Scene};
use crate::verdict::{Action, Scope, Verdict};

/// GPUs, file systems, and ports, of one node that are judged: more than any node has, and few enough for one that lies.
const MOST_SUBJECTS: usize = 256;
/// The tier whose readings are made in every audit.
const EVERY_AUDIT: u8 = 1;
/// Characters of a node's own reason that a note takes over.
const MOST_REASON: usize = 200;
/// Characters of a node's own word that a note takes over.
const MOST_WORD: usize = 40;

/// Judges every check of a policy on every subject of its scope. Findings stand in the order of the policy's checks,
/// and of the subjects in the readings.
///
/// A check is na where `na_when` holds or a required signal is absent, and unknown where a required one could not be
/// read. Then its rules are tried in order, and the first that holds decides. Where a rule before that one may hold,
/// because an operand could not be read, and would be worse, the finding is unknown. Where no rule holds the check is
/// ok, unless an operand that could not be read might have made one hold: then it is unknown. Where each rule compares
/// with something that is absent, there was nothing to judge: na.
///
/// Without earlier audits: what compares with them is not judged yet, and every finding counts at once.
pub fn judge(policy: &NodePolicy, signals: &Signals) -> Vec<Finding> {
    judge_after(policy, signals, None, 0)
}

/// Judges as [`judge`] does, and by what earlier audits remember. `at` is the time of the readings on the controller, in
/// seconds since 1970.
pub fn judge_after(
    policy: &NodePolicy,
    signals: &Signals,
    earlier: Option<&Memory>,
    at: i64,
) -> Vec<Finding> {
    let subjects = Subjects::of(signals);
    let past = Past::of(earlier, signals, at);
    let mut judged = Judged { policy, signals, past: &past, findings: Vec::new(), ranges: BTreeMap::new() };
    let (derived, plain): (Vec<_>, Vec<_>) =
        policy.checks.iter().enumerate().partition(|(_, entry)| entry.check.is_derived());
    let mut order = Vec::new();
    for (position, entry) in plain.into_iter().chain(derived) {
        if entry.check.rules.is_empty() {
            continue;
        }
        let begin = judged.findings.len();
        judged.check(entry, &subjects);
        let end = judged.findings.len();
        judged.ranges.insert(Arc::clone(&entry.check.id), (begin, end));
        order.extend(std::iter::repeat_n(position, end - begin));
    }
    let mut placed: Vec<(usize, Finding)> = order.into_iter().zip(judged.findings).collect();
    placed.sort_by_key(|(position, _)| *position);
    let mut findings: Vec<Finding> = placed.into_iter().map(|(_, finding)| finding).collect();
    // Kept for each node of a fleet.
    findings.shrink_to_fit();
    findings
}

/// Takes back what was compared with a default although a task of this audit's playbooks declares it, and so judges it.
/// `declares` tells whether there is a task of a kind.
pub fn leave_to_tasks(policy: &NodePolicy, findings: &mut [Finding], declares: &dyn Fn(&str) -> bool) {
    let by_default = |finding: &Finding| {
        let mut named = finding.check.rules.iter().flat_map(|rule| &rule.when.declared);
        !named.any(|name| policy.declared.contains_key(&**name))
    };
    for finding in findings.iter_mut().filter(|it| it.verdict.is_not_ok() && by_default(it)) {
        let Some(kind) = finding.check.declared_by.as_deref().filter(|kind| declares(kind)) else { continue };
        let note = format!("a task of this audit declares it (`{kind}`)").into();
        let (verdict, action, na) = (Verdict::Na, Action::None, Some(NaReason::NotApplicable));
        *finding = Finding {
            verdict,
            action,
            note,
            na,
            evidence: Vec::new(),
            standing: None,
            watch: None,
            ..finding.clone()
        };
    }
}

/// The parts of a node.
struct Subjects<'a> {
    gpus: Vec<(Subject, &'a SubjectReadings)>,
    disks: Vec<(Subject, &'a SubjectReadings)>,
    ports: Vec<(Subject, &'a SubjectReadings)>,
    /// GPUs of which only the kernel's log still tells.
    gone: Vec<(Subject, SubjectReadings)>,
}

impl<'a> Subjects<'a> {
    fn of(signals: &'a Signals) -> Self {
        Self {
            gpus: signals.gpus.iter().map(|gpu| (Subject::gpu(gpu), gpu)).collect(),
            disks: signals.disks.iter().map(|disk| (Subject::disk(disk), disk)).collect(),
            ports: signals.ports.iter().map(|port| (Subject::port(port), port)).collect(),
            gone: gone(signals),
        }
    }
}

/// Returns the GPUs that the kernel logged an Xid of, and that are not among those that were read.
fn gone(signals: &Signals) -> Vec<(Subject, SubjectReadings)> {
    let address = |gpu: &SubjectReadings| {
        gpu.readings.get("pci").and_then(Signal::known).and_then(Value::as_str).and_then(Pci::of)
    };
    let mut known: BTreeSet<Pci> = signals.gpus.iter().filter_map(address).collect();
    let mut found = Vec::new();
    for record in signals.records.iter().filter(|record| record.sort == RecordSort::Xid) {
        if found.len() >= MOST_SUBJECTS {
            break;
        }
        let Some(text) = &record.pci else { continue };
        if Pci::of(text).is_some_and(|pci| known.insert(pci)) {
            let readings: Readings = [("pci".to_owned(), Signal::from(text.as_str()))].into();
            let label = format!("GPU at {text}");
            let subject = Subject::Gpu { uuid: text.as_str().into(), label: label.as_str().into() };
            found.push((subject, SubjectReadings { id: text.clone(), label, readings }));
        }
    }
    found
}

struct Judged<'a> {
    policy: &'a NodePolicy,
    signals: &'a Signals,
    past: &'a Past<'a>,
    findings: Vec<Finding>,
    /// Where the findings of a check begin and end.
    ranges: BTreeMap<Arc<str>, (usize, usize)>,
}

/// The verdicts so far, seen from one subject.
struct Seen<'a, 'b> {
    judged: &'a Judged<'b>,
    subject: &'a Subject,
}

impl Seen<'_, '_> {
    /// The findings of a check on the same subject, or on its node; `None` if it was not asked.
    fn findings(&self, check: &str) -> Option<impl Iterator<Item = &Finding>> {
        let (begin, end) = *self.judged.ranges.get(check)?;
        let findings = self.judged.findings.get(begin..end)?;
        Some(findings.iter().filter(|finding| finding.subject.concerns(self.subject)))
    }
}

impl Others for Seen<'_, '_> {
    fn verdict_of(&self, check: &str) -> Option<Verdict> {
        self.findings(check)?.map(|finding| finding.verdict).max()
    }

    fn repeats_since(&self, check: &str, from: i64) -> usize {
        let watches = self.findings(check).into_iter().flatten().filter_map(|it| it.watch.as_deref());
        watches.map(|watch| watch.repeats_since(from)).max().unwrap_or_default()
    }
}

impl Judged<'_> {
    fn check(&mut self, entry: &PolicyCheck, subjects: &Subjects<'_>) {
        let listed = match entry.check.scope {
            Scope::Node => {
                let finding = self.one(entry, &Subject::Node, None);
                self.findings.push(finding);
                return;
            }
            Scope::Gpu => &subjects.gpus,
            Scope::Disk => &subjects.disks,
            Scope::Port => &subjects.ports,
        };
        if listed.is_empty() {
            let finding = self.none_listed(entry);
            self.findings.push(finding);
        }
        for (subject, readings) in listed.iter().take(MOST_SUBJECTS) {
            let finding = self.one(entry, subject, Some(readings));
            self.findings.push(finding);
        }
        if listed.len() > MOST_SUBJECTS {
            let why = format!("the node lists {}, and {MOST_SUBJECTS} were judged", listed.len());
            let finding = Outcome::unknown(why.into()).into_finding(entry, Subject::Node, Vec::new());
            self.findings.push(finding);
        }
        if entry.check.scope == Scope::Gpu && entry.check.rules.iter().any(|rule| rule.when.counts_xids) {
            for (subject, readings) in &subjects.gone {
                let finding = self.one(entry, subject, Some(readings));
                if finding.verdict.is_not_ok() {
                    self.findings.push(finding);
                }
            }
        }
    }

    /// A check of GPUs, file systems or ports where none could be listed: there are none, or nobody knows.
    fn none_listed(&self, entry: &PolicyCheck) -> Finding {
        let subject = Subject::Node;
        let seen = Seen { judged: self, subject: &subject };
        let scene = self.scene(entry, None, &seen, None);
        let check = &entry.check;
        let (counted, none, unread) = match check.scope {
            Scope::Disk => (None, "", "no file system could be read"),
            Scope::Port => {
                (Some("rdma_devices"), "the node has no RDMA device", "no RDMA port could be read")
            }
            Scope::Node | Scope::Gpu => (Some("pci_count"), "the node has no GPU", "no GPU could be read"),
        };
        let has_none = counted.is_some_and(|name| {
            matches!(scene.signal(Scope::Node, name), Signal::Known(count) if count.as_f64() == Some(0.0))
        });
        let lost = matches!(check.scope, Scope::Gpu).then(|| self.gpus_that_should_be()).flatten();
        let outcome = match &check.na_when {
            Some(na) if na.holds(&scene).holds() => Outcome::na(na_note(check, na, &scene)),
            _ if has_none && lost.is_some() => {
                let had = lost.unwrap_or_default();
                Outcome::unknown(format!("no GPU is left, and the node should have {had}").into())
            }
            _ if has_none => Outcome::na(none.into()),
            _ if check.scope == Scope::Gpu && silence(self.signals).is_some() => {
                Outcome::unknown(SILENT.into())
            }
            _ => Outcome::unknown(unread.into()),
        };
        outcome.into_finding(entry, subject, Vec::new())
    }

    /// Returns how many GPUs are declared of the node, or were there in earlier audits; `None` where that is none, or
    /// nobody knows.
    fn gpus_that_should_be(&self) -> Option<u64> {
        let declared = self.policy.declared.get("gpu_count").filter(|value| !value.is_null());
        let known = match declared {
            Some(count) => count.as_u64(),
            None => self.past.last_good("nvml_count"),
        };
        known.filter(|count| *count > 0)
    }

    fn scene<'a>(
        &'a self,
        entry: &'a PolicyCheck,
        subject: Option<&'a SubjectReadings>,
        others: &'a dyn Others,
        watch: Option<&'a Watch>,
    ) -> Scene<'a> {
        let declared = &self.policy.declared;
        Scene {
            past: Some(self.past),
            watch,
            ..Scene::of(self.signals, subject, declared, &entry.params, others)
        }
    }

    fn one(&self, entry: &PolicyCheck, subject: &Subject, readings: Option<&SubjectReadings>) -> Finding {
        let seen = Seen { judged: self, subject };
        let check = &entry.check;
        let watch = self.past.watch(&check.id, subject.id());
        let scene = self.scene(entry, readings, &seen, watch);
        let mut outcome = decide(entry, &scene);
        let (next, standing) = self.over_time(entry, &scene, &mut outcome);
        let evidence = match outcome.verdict.is_not_ok() {
            true => evidence(check, &scene),
            false => Vec::new(),
        };
        let watch = (!next.is_blank()).then(|| Box::new(next));
        Finding { standing, watch, ..outcome.into_finding(entry, subject.clone(), evidence) }
    }

    /// Returns what is to be remembered of a check on a subject, and puts what earlier audits make of its outcome into it.
    fn over_time(
        &self,
        entry: &PolicyCheck,
        scene: &Scene<'_>,
        outcome: &mut Outcome,
    ) -> (Watch, Option<Standing>) {
        let check = &entry.check;
        let (mut flag, mut held) = (None, None);
        for rule in check.rules.iter().filter(|rule| rule.when.watches) {
            let (now_flag, now_held) = rule.when.watched(scene);
            (flag, held) = (flag.or(now_flag), held.or(now_held));
        }
        let rule = outcome.rule.and_then(|rule| check.rules.get(rule));
        let now = Now {
            verdict: outcome.verdict,
            action: outcome.action,
            asked: outcome.na != Some(NaReason::NotAsked),
            decided: outcome.certain && rule.is_some(),
            at_once: rule.is_some_and(|rule| rule.at_once),
            flag,
            held,
            ..self.past.now(scene.watch)
        };
        let next = Watch::after(scene.watch, &now, check.hysteresis);
        // Without an earlier audit there is nothing that time could make of it.
        let in_time = now.asked && !self.past.is_first();
        let shown = in_time.then(|| next.shown(&now, check.hysteresis)).flatten();
        let standing = shown.map(|(standing, verdict, action, said)| {
            outcome.verdict = verdict;
            outcome.action = action;
            let note = &outcome.note;
            // Nothing is wrong now, so that nothing else says what was.
            let note = if note.is_empty() {
                format!("{} ({said})", check.fault)
            } else {
                format!("{note} ({said})")
            };
            outcome.note = note.into();
            standing
        });
        (next, standing)
    }
}

/// What a finding rests on: the check's own signals, lines of the kernel's log, and what was compared over time.
fn evidence(check: &Check, scene: &Scene<'_>) -> Vec<(Arc<str>, Signal)> {
    let mut evidence: Vec<(Arc<str>, Signal)> =
        (check.evidence.iter()).map(|(scope, name)| (Arc::clone(name), scene.signal(*scope, name))).collect();
    let mut lines: Vec<&str> = Vec::new();
    for rule in check.rules.iter().filter(|rule| rule.when.reads_log) {
        rule.when.lines(scene, &mut lines);
    }
    if !lines.is_empty() {
        evidence.push(("kernel_log".into(), Signal::from(lines)));
    }
    for rule in &check.rules {
        rule.when.over_time(scene, &mut evidence);
    }
    evidence
}

/// What a check comes to, before it is told of a subject.
struct Outcome {
    verdict: Verdict,
    action: Action,
    note: Arc<str>,
    na: Option<NaReason>,
    /// The rule that decided.
    rule: Option<usize>,
    /// Whether that rule decided alone, and nothing that could not be read might have made it worse.
    certain: bool,
}

impl Outcome {
    fn na(note: Arc<str>) -> Self {
        let na = Some(NaReason::NotApplicable);
        Self { verdict: Verdict::Na, action: Action::None, note, na, rule: None, certain: false }
    }

    fn unknown(note: Arc<str>) -> Self {
        Self {
            verdict: Verdict::Unknown,
            action: Action::Investigate,
            note,
            na: None,
            rule: None,
            certain: false,
        }
    }

    fn into_finding(
        self,
        entry: &PolicyCheck,
        subject: Subject,
        evidence: Vec<(Arc<str>, Signal)>,
    ) -> Finding {
        let expected = match self.rule {
            Some(rule) => entry.expected.get(rule).cloned().flatten(),
            None if self.verdict == Verdict::Na => None,
            None => entry.expected_of_all.clone(),
        };
        Finding {
            check: Arc::clone(&entry.check),
            subject,
            verdict: self.verdict,
            action: self.action,
            note: self.note,
            expected,
            evidence,
            na: self.na,
            waived: None,
            explained_by: None,
            standing: None,
            watch: None,
        }
    }
}

fn na_note(check: &Check, na: &Code, scene: &Scene<'_>) -> Arc<str> {
    let nothing_declared = na.signals.is_empty() && !na.declared.is_empty();
    if nothing_declared {
        return format!("not declared: {}", na.declared.join(", ")).into();
    }
    let undeclared =
        na.declared.iter().filter(|name| scene.declared.get(&***name).is_none_or(Value::is_null));
    let mut reasons: Vec<String> = undeclared.map(|name| format!("{name} is not declared")).collect();
    reasons.extend(na.signals.iter().map(|(scope, name)| match scene.signal(*scope, name) {
        Signal::Absent => format!("there is no {name}"),
        Signal::Known(Value::String(text)) => {
            format!("{name} is {}", text.chars().take(MOST_WORD).collect::<String>())
        }
        Signal::Known(value @ (Value::Number(_) | Value::Bool(_))) => format!("{name} is {value}"),
        Signal::Known(_) | Signal::Unknown(_) => format!("by {name}"),
    }));
    format!("it does not apply to this {}: {}", check.scope, reasons.join(", ")).into()
}

fn decide<'a>(entry: &'a PolicyCheck, scene: &Scene<'a>) -> Outcome {
    let check = &entry.check;
    let na = check.na_when.as_ref().map(|na| (na, na.holds(scene)));
    if let Some((na, truth)) = na
        && truth.holds()
    {
        return Outcome::na(na_note(check, na, scene));
    }
    if let Some((_, name)) = check.requires.iter().find(|(scope, name)| scene.is_absent(*scope, name)) {
        return Outcome::na(format!("there is no `{name}` here").into());
    }
    if check.tier > EVERY_AUDIT {
        // Why not unknown: nothing went wrong, it was not asked for.
        let unasked = check.requires.iter().find(|(scope, name)| !scene.was_read(*scope, name));
        if let Some((_, name)) = unasked {
            let note = format!("this audit did not read `{name}`").into();
            return Outcome { na: Some(NaReason::NotAsked), ..Outcome::na(note) };
        }
    }
    for (scope, name) in &check.requires {
        if let Some(why) = scene.why_unknown(*scope, name) {
            return Outcome::unknown(unread(name, why, scene).into());
        }
    }

    let verdict_of = |rule: &RuleVerdict| match rule {
        RuleVerdict::Fixed(verdict) => *verdict,
        // A parameter that is no verdict is refused when a baseline is read.
        RuleVerdict::Param(name) => {
            let word = entry.params.get(name).and_then(Value::as_str);
            word.and_then(Verdict::of_word).unwrap_or(Verdict::Unknown)
        }
    };
    // The worst verdict of the rules that may hold, and the rule.
    let mut open: Option<(Verdict, &Code)> = None;
    let mut nothing_there = true;
    let mut decided = None;
    for (index, rule) in check.rules.iter().enumerate() {
        let truth = rule.when.holds(scene);
        nothing_there &= truth.is_neither();
        if truth.holds() {
            decided = Some((index, rule));
            break;
        }
        let verdict = verdict_of(&rule.verdict);
        if truth.may_hold() && open.is_none_or(|(worst, _)| verdict > worst) {
            open = Some((verdict, &rule.when));
        }
    }
    let (verdict, action, note) = match decided {
        Some((_, rule)) => (verdict_of(&rule.verdict), rule.action, Arc::clone(&rule.note)),
        None if nothing_there && waits_for_another(entry, scene) => {
            let note = "it compares with an earlier audit, and there is none to compare with".into();
            return Outcome { na: Some(NaReason::NotYet), ..Outcome::na(note) };
        }
        None if nothing_there => {
            let mut read = check.rules.iter().flat_map(|rule| &rule.when.signals);
            let absent = read.find(|(scope, name)| scene.is_absent(*scope, name));
            return Outcome::na(match absent {
                Some((_, name)) => format!("there is no `{name}` here to compare with").into(),
                None => "there is nothing here to compare with".into(),
            });
        }
        None => (Verdict::Ok, Action::None, Arc::default()),
    };
    let open = match (open, na) {
        (Some((worst, code)), _) if worst > verdict => Some(code),
        (_, Some((na, truth))) if truth.may_hold() && verdict == Verdict::Ok => Some(na),
        _ => None,
    };
    let rule = decided.map(|(index, _)| index);
    match open {
        Some(code) if verdict < Verdict::Unknown => {
            let why = why_open(code, scene);
            let note = if note.is_empty() { why } else { format!("{note}; {why}") };
            Outcome { rule, action: action.max(Action::Investigate), ..Outcome::unknown(note.into()) }
        }
        _ => Outcome { verdict, action, note, na: None, rule, certain: true },
    }
}

/// Whether a rule could be judged if there were an earlier audit: what it reads is there.
fn waits_for_another(entry: &PolicyCheck, scene: &Scene<'_>) -> bool {
    let there = |(scope, name): &(Scope, Arc<str>)| !scene.is_absent(*scope, name);
    let declared = |name: &Arc<str>| scene.declared.get(&**name).is_some_and(|value| !value.is_null());
    let waits =
        |code: &Code| code.looks_back && code.signals.iter().all(there) && code.declared.iter().all(declared);
    entry.check.rules.iter().any(|rule| waits(&rule.when))
}

/// Returns why nothing was read of the driver, where it did not answer; whatever it was asked for is unknown for the same reason.
fn silence(signals: &Signals) -> Option<&str> {
    let state = signals.node.get("worker_state")?.known()?.as_str()?;
    match signals.node.get("nvml_init_code")? {
        Signal::Unknown(why) if matches!(state, "hung" | "crashed") => Some(why),
        _ => None,
    }
}

/// Says why a signal could not be read.
fn unread(name: &str, why: &str, scene: &Scene<'_>) -> String {
    if silence(scene.signals) == Some(why) {
        return SILENT.to_owned();
    }
    match why.char_indices().nth(MOST_REASON) {
        Some((end, _)) => format!("`{name}`: {}…", why.get(..end).unwrap_or_default()),
        None => format!("`{name}`: {why}"),
    }
}

/// Says why a rule could not be decided.
fn why_open<'a>(code: &'a Code, scene: &Scene<'a>) -> String {
    if let Some((name, why)) = code.unknown_signal(scene) {
        return unread(name, why, scene);
    }
    let unread_port = scene.signals.ports.iter().find_map(|port| {
        code.of_ports.iter().find_map(|(_, name)| match port.readings.get(&**name) {
            Some(Signal::Unknown(why)) => Some(unread(&format!("{name} of {}", port.label), why, scene)),
            _ => None,
        })
    });
    if let Some(why) = unread_port {
        return why;
    }
    if code.reads_log && !scene.log_is_whole() {
        return "the kernel's log does not reach back to the boot".to_owned();
    }
    if code.reads_log {
        return "which GPU the kernel's log tells of cannot be told".to_owned();
    }
    let unjudged = |check: &&Arc<str>| scene.others.verdict_of(check) == Some(Verdict::Unknown);
    if let Some(check) = code.checks.iter().find(unjudged) {
        return format!("`{check}` could not be judged");
    }
    let names: Vec<&str> = code.signals.iter().map(|(_, name)| &**name).collect();
    match names.is_empty() {
        true => "what it compares could not be read of all GPUs".to_owned(),
        false => format!("unexpected value of {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests;

//! Evaluates a rule against what was read.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufleet_protocol::signal::{Readings, Signal, Signals, SubjectReadings};
use serde_json::Value;

use super::ast::Operator;
use super::compile::{Code, Op};
use super::history::Watched;
use super::records::{Filter, Pci};
use super::truth::Truth;
use super::value::{Val, arithmetic, bits, compare, member, missing};
use super::version::version_matches;
use crate::memory::{Past, Watch};
use crate::verdict::{Scope, Verdict};

/// The verdicts of other checks on the same subject, or on its node.
pub trait Others {
    /// Returns the worst of them; `None` if the check was not asked.
    fn verdict_of(&self, check: &str) -> Option<Verdict>;

    /// Returns how often a check failed again after a remedy since a time, this audit included.
    fn repeats_since(&self, _check: &str, _from: i64) -> usize {
        0
    }
}

/// No other check was asked.
pub(crate) struct NoOthers;

impl Others for NoOthers {
    fn verdict_of(&self, _check: &str) -> Option<Verdict> {
        None
    }
}

/// What a rule is evaluated against.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    pub signals: &'a Signals,
    /// The GPU, file system or port that is judged; `None` for the node.
    pub subject: Option<&'a SubjectReadings>,
    pub declared: &'a BTreeMap<String, Value>,
    pub params: &'a BTreeMap<String, Value>,
    pub others: &'a dyn Others,
    /// Earlier audits; `None` where they are not asked.
    pub(crate) past: Option<&'a Past<'a>>,
    /// What is remembered of the check that is judged, on this subject.
    pub(crate) watch: Option<&'a Watch>,
}

/// Values that `distinct` tells apart.
const MOST_DISTINCT: usize = 16;
/// Ports that `count_ports` looks at.
const MOST_PORTS: usize = 256;
const NOT_READ: &str = "it was not read";

impl<'a> Scene<'a> {
    /// A moment without a past.
    pub fn of(
        signals: &'a Signals,
        subject: Option<&'a SubjectReadings>,
        declared: &'a BTreeMap<String, Value>,
        params: &'a BTreeMap<String, Value>,
        others: &'a dyn Others,
    ) -> Self {
        Self { signals, subject, declared, params, others, past: None, watch: None }
    }

    fn readings(&self, scope: Scope) -> Option<&'a Readings> {
        match scope {
            Scope::Node => Some(&self.signals.node),
            Scope::Gpu | Scope::Disk | Scope::Port => self.subject.map(|subject| &subject.readings),
        }
    }

    /// Returns a reading; one that is not there was not read.
    pub fn signal(&self, scope: Scope, name: &str) -> Signal {
        match self.reading(scope, name) {
            Some(signal) => signal.clone(),
            None => match self.of_the_whole(scope, name) {
                Some(number) => Signal::Known(number.into()),
                None => Signal::Unknown(NOT_READ.to_owned()),
            },
        }
    }

    pub(super) fn reading(&self, scope: Scope, name: &str) -> Option<&'a Signal> {
        self.readings(scope)?.get(name)
    }

    /// Whether there is a reading, be it of something absent or one that failed.
    pub fn was_read(&self, scope: Scope, name: &str) -> bool {
        self.reading(scope, name).is_some() || self.of_the_whole(scope, name).is_some()
    }

    /// Whether the subject lacks what is read.
    pub fn is_absent(&self, scope: Scope, name: &str) -> bool {
        matches!(self.reading(scope, name), Some(Signal::Absent))
    }

    /// Returns why a reading is not known; `None` if it is, or if it is absent.
    pub fn why_unknown(&self, scope: Scope, name: &str) -> Option<&'a str> {
        match self.reading(scope, name) {
            Some(Signal::Unknown(why)) => Some(why),
            Some(Signal::Known(_) | Signal::Absent) => None,
            None if self.of_the_whole(scope, name).is_some() => None,
            None => Some(NOT_READ),
        }
    }

    /// What all readings together have beside the readings. 0 is what they have where it could not be read.
    fn of_the_whole(&self, scope: Scope, name: &str) -> Option<u64> {
        match (scope, name) {
            (Scope::Node, "uptime_s") => Some(self.signals.uptime_s).filter(|seconds| *seconds > 0),
            (Scope::Node, "audit_cpu_ms") => Some(self.signals.cpu_ms).filter(|spent| *spent > 0),
            _ => None,
        }
    }

    fn value(&self, scope: Scope, name: &str) -> Val<'a> {
        match self.reading(scope, name) {
            Some(Signal::Known(value)) => Val::of(value),
            Some(Signal::Absent) => Val::Null,
            Some(Signal::Unknown(_)) => Val::Unknown,
            #[expect(clippy::cast_precision_loss, reason = "seconds and milliseconds of one machine")]
            None => self.of_the_whole(scope, name).map_or(Val::Unknown, |number| Val::Number(number as f64)),
        }
    }

    /// Whether the log that was read reaches back to the boot, and all of it was kept.
    pub fn log_is_whole(&self) -> bool {
        let from = self.signals.node.get("log_from").and_then(Signal::known).and_then(Value::as_str);
        from == Some("complete") && self.signals.records.len() < Signals::MOST_RECORDS
    }

    /// Returns the PCI address of the subject.
    fn address(&self) -> Option<Pci> {
        let address = self.subject?.readings.get("pci").and_then(Signal::known).and_then(Value::as_str);
        address.and_then(Pci::of)
    }

    fn count(&self, filter: &Filter) -> Val<'a> {
        let mut count = 0_u32;
        let own = self.subject.map(|_| self.address());
        for record in self.signals.records.iter().filter(|record| filter.takes(record)) {
            match (own, record.pci.as_deref().map(Pci::of)) {
                // All records belong to the node.
                (None, _) => count += 1,
                (Some(Some(own)), Some(Some(of))) => count += u32::from(own == of),
                // Whose it is cannot be told.
                (Some(_), _) => return Val::Unknown,
            }
        }
        if self.log_is_whole() { Val::Number(count.into()) } else { Val::AtLeast(count.into()) }
    }

    /// Counts the ports of which a condition holds. Where not all could be listed there may be more.
    fn count_ports(&self, condition: &'a Op) -> Val<'a> {
        let listed = self.signals.node.get("rdma_devices").and_then(Signal::known).is_some();
        let (mut count, mut open) = (0_u32, !listed);
        for port in self.signals.ports.iter().take(MOST_PORTS) {
            let truth = eval(condition, &Scene { subject: Some(port), ..*self }).truth();
            count += u32::from(truth.holds());
            open |= truth.may_hold();
        }
        if open { Val::AtLeast(count.into()) } else { Val::Number(count.into()) }
    }

    /// Counts the values that a signal has on the GPUs of the node. A GPU that lacks it does not count.
    fn distinct(&self, name: &str) -> Val<'a> {
        let mut seen: Vec<&Value> = Vec::new();
        let mut whole = true;
        for gpu in &self.signals.gpus {
            match gpu.readings.get(name) {
                // Why the bound: a node may list any number of GPUs, and each is asked.
                Some(Signal::Known(_)) if seen.len() >= MOST_DISTINCT => whole = false,
                Some(Signal::Known(value)) if !seen.contains(&value) => seen.push(value),
                Some(Signal::Known(_) | Signal::Absent) => {}
                Some(Signal::Unknown(_)) | None => whole = false,
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "at most as many as there are GPUs")]
        let count = seen.len() as f64;
        match (whole, seen.is_empty()) {
            (true, true) => Val::Null,
            (true, false) => Val::Number(count),
            (false, _) => Val::AtLeast(count),
        }
    }
}

/// Lines of the log that a finding shows.
const SHOWN_LINES: usize = 3;

impl Code {
    /// Adds the lines of the log that its functions count for this subject, the newest first, up to three in all.
    pub fn lines<'a>(&self, scene: &Scene<'a>, lines: &mut Vec<&'a str>) {
        if !self.reads_log || scene.signals.records.is_empty() {
            return;
        }
        let own = scene.subject.map(|_| scene.address());
        visit(&self.root, &mut |op| {
            let Op::Count(filter) = op else { return };
            for record in scene.signals.records.iter().rev() {
                let of = record.pci.as_deref().and_then(Pci::of);
                let mine = own.is_none_or(|own| own.is_some() && own == of);
                if lines.len() < SHOWN_LINES
                    && mine
                    && !lines.contains(&record.text.as_str())
                    && filter.takes(record)
                {
                    lines.push(&record.text);
                }
            }
        });
    }

    /// Returns whether what it watches holds: for `flagged_windows`, and for `flat_for`. `None` where it does not watch,
    /// or where nobody knows.
    pub(crate) fn watched(&self, scene: &Scene<'_>) -> (Option<bool>, Option<bool>) {
        let (mut flag, mut held) = (None, None);
        if self.watches {
            visit(&self.root, &mut |op| {
                let Op::History(history) = op else { return };
                let Some((what, truth)) = history.watched(scene) else { return };
                let known = (truth == Truth::TRUE || truth == Truth::FALSE).then(|| truth.holds());
                match what {
                    Watched::Flag => flag = known,
                    Watched::Held => held = known,
                }
            });
        }
        (flag, held)
    }

    /// Adds what its counters did over time, each once.
    pub(crate) fn over_time(&self, scene: &Scene<'_>, evidence: &mut Vec<(Arc<str>, Signal)>) {
        if self.looks_back {
            visit(&self.root, &mut |op| {
                let Op::History(history) = op else { return };
                let found = history.evidence(scene);
                evidence.extend(found.filter(|(name, _)| evidence.iter().all(|(known, _)| known != name)));
            });
        }
    }

    /// Evaluates it as a condition.
    pub fn holds(&self, scene: &Scene<'_>) -> Truth {
        eval(&self.root, scene).truth()
    }

    /// Returns the first of its signals that could not be read, with the reason.
    pub fn unknown_signal<'a>(&'a self, scene: &Scene<'a>) -> Option<(&'a str, &'a str)> {
        self.signals
            .iter()
            .find_map(|(scope, name)| scene.why_unknown(*scope, name).map(|why| (&**name, why)))
    }
}

pub(super) fn eval<'a>(op: &'a Op, scene: &Scene<'a>) -> Val<'a> {
    match op {
        Op::Null => Val::Null,
        Op::Bool(value) => Val::Truth(Truth::of(*value)),
        Op::Number(number) => Val::Number(*number),
        Op::Text(text) => Val::Text(text),
        Op::List(items) => Val::List(items),
        Op::Signal(scope, name) => scene.value(*scope, name),
        Op::Declared(name) => scene.declared.get(&**name).map_or(Val::Null, Val::of),
        Op::Param(name) => scene.params.get(&**name).map_or(Val::Null, Val::of),
        Op::Not(inner) => Val::Truth(eval(inner, scene).truth().negated()),
        Op::Negative(inner) => arithmetic(Operator::Subtract, Val::Number(0.0), eval(inner, scene)),
        Op::And(left, right) => Val::Truth(eval(left, scene).truth().and(eval(right, scene).truth())),
        Op::Or(left, right) => Val::Truth(eval(left, scene).truth().or(eval(right, scene).truth())),
        Op::IsNull(inner, wanted) => {
            let is = eval(inner, scene).is_null();
            Val::Truth(if *wanted { is } else { is.negated() })
        }
        Op::Compare(operator, left, right) => {
            Val::Truth(compare(*operator, eval(left, scene), eval(right, scene)))
        }
        Op::Member(needle, list, wanted) => {
            let is = member(eval(needle, scene), eval(list, scene));
            Val::Truth(if *wanted { is } else { is.negated() })
        }
        Op::Arithmetic(operator, left, right) => arithmetic(*operator, eval(left, scene), eval(right, scene)),
        Op::Bit(value, mask) => match (bits(eval(value, scene)), bits(eval(mask, scene))) {
            (Ok(value), Ok(mask)) => Val::Truth(Truth::of(value & mask != 0)),
            (Err(Val::Null), _) | (_, Err(Val::Null)) => Val::Truth(Truth::NEITHER),
            _ => Val::Truth(Truth::UNKNOWN),
        },
        Op::Mask(value, shift, mask) => {
            match (bits(eval(value, scene)), bits(eval(shift, scene)), bits(eval(mask, scene))) {
                #[expect(clippy::cast_precision_loss, reason = "a part of a number of at most 53 bits")]
                (Ok(value), Ok(shift), Ok(mask)) => {
                    let shift = u32::try_from(shift).unwrap_or(u32::MAX);
                    Val::Number((value.checked_shr(shift).unwrap_or_default() & mask) as f64)
                }
                (Err(Val::Null), _, _) | (_, Err(Val::Null), _) | (_, _, Err(Val::Null)) => Val::Null,
                _ => Val::Unknown,
            }
        }
        Op::First(ops) => ops
            .iter()
            .map(|op| eval(op, scene))
            .find(|value| value.is_null() != Truth::TRUE)
            .unwrap_or(Val::Null),
        Op::Abs(inner) => match arithmetic(Operator::Add, Val::Number(0.0), eval(inner, scene)) {
            Val::Number(number) => Val::Number(number.abs()),
            Val::Null => Val::Null,
            _ => Val::Unknown,
        },
        Op::Count(filter) => scene.count(filter),
        Op::Distinct(name) => scene.distinct(name),
        Op::CountPorts(condition) => scene.count_ports(condition),
        Op::Missing(wanted, list) => missing(eval(wanted, scene), eval(list, scene)),
        Op::VersionMatches(version, spec) => match (eval(version, scene), eval(spec, scene)) {
            (Val::Null, _) | (_, Val::Null) => Val::Truth(Truth::NEITHER),
            (Val::Text(version), Val::Text(spec)) => Val::Truth(Truth::of(version_matches(version, spec))),
            _ => Val::Truth(Truth::UNKNOWN),
        },
        Op::Matches(text, pattern) => Val::Truth(match eval(text, scene) {
            Val::Null => Truth::NEITHER,
            Val::Text(text) => Truth::of(pattern.is_match(text)),
            _ => Truth::UNKNOWN,
        }),
        Op::VerdictOf(check) => match scene.others.verdict_of(check) {
            None => Val::Null,
            Some(Verdict::Unknown) => Val::Unknown,
            Some(verdict) => Val::Text(verdict.word()),
        },
        Op::AnyNotOk(checks) => {
            let any = checks.iter().fold(Truth::FALSE, |any, check| {
                any.or(match scene.others.verdict_of(check) {
                    None | Some(Verdict::Na | Verdict::Ok) => Truth::FALSE,
                    Some(Verdict::Unknown) => Truth::EITHER,
                    Some(Verdict::Warn | Verdict::Drift | Verdict::Fail) => Truth::TRUE,
                })
            });
            Val::Truth(any)
        }
        Op::History(history) => history.value(scene),
    }
}

/// Calls `with` for an operation and each of its operands.
fn visit<'a>(op: &'a Op, with: &mut impl FnMut(&'a Op)) {
    with(op);
    match op {
        Op::Not(a)
        | Op::Negative(a)
        | Op::IsNull(a, _)
        | Op::Abs(a)
        | Op::Matches(a, _)
        | Op::CountPorts(a) => visit(a, with),
        Op::And(a, b)
        | Op::Or(a, b)
        | Op::Compare(_, a, b)
        | Op::Member(a, b, _)
        | Op::Arithmetic(_, a, b)
        | Op::Bit(a, b)
        | Op::Missing(a, b)
        | Op::VersionMatches(a, b) => {
            visit(a, with);
            visit(b, with);
        }
        Op::Mask(a, b, c) => [a, b, c].into_iter().for_each(|op| visit(op, with)),
        Op::First(ops) => ops.iter().for_each(|op| visit(op, with)),
        Op::History(history) => history.operands().into_iter().flatten().for_each(|op| visit(op, with)),
        Op::Null
        | Op::Bool(_)
        | Op::Number(_)
        | Op::Text(_)
        | Op::List(_)
        | Op::Signal(..)
        | Op::Declared(_)
        | Op::Param(_)
        | Op::Count(_)
        | Op::Distinct(_)
        | Op::VerdictOf(_)
        | Op::AnyNotOk(_) => {}
    }
}

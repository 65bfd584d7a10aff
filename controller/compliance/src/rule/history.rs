//! Functions that compare with earlier audits.
//!
//! Without an earlier reading of the same life they are null, so that a rule with them does not hold. An operand that
//! could not be read in this audit makes them unknown.

use std::sync::Arc;

use super::RuleError;
use super::ast::{Expr, ExprKind, Name};
use super::compile::{Compiler, Op, wrong};
use super::eval::{Scene, eval};
use super::truth::Truth;
use super::value::Val;
use crate::memory::{Counter, Held, Life, MOST_WINDOWS, Reading, Step, lookup, span, time, whole};
use crate::vocabulary::Kind;
use gpufleet_protocol::signal::Signal;

/// Audits over which a condition must hold for `flat_for`.
const LEAST_AUDITS: u32 = 3;
const DAY_S: i64 = 86_400;
const NANOSECONDS: f64 = 1e9;

/// What is compared with earlier audits.
#[derive(Debug)]
pub(super) enum History {
    /// Since the last audit.
    Delta(&'static Counter),
    /// Over so many days.
    Grown(&'static Counter, i64),
    /// In how many audits of so many days.
    GrewIn(&'static Counter, i64),
    /// A second, over at least so many seconds.
    Rate(&'static Counter, u64),
    /// Of the time, over at least so many seconds.
    Share(&'static Counter, u64),
    Flagged(Op, u32),
    FlatFor(Op, Op),
    Repeats(Vec<Arc<str>>, i64),
    LastGood(&'static str),
    Rebooted,
}

pub(super) const FUNCTIONS: [(&str, &str); 9] = [
    ("delta", "delta(COUNTER), or delta(COUNTER, days=30) for a counter of a board"),
    ("rate", "rate(COUNTER, over=SECONDS)"),
    ("share", "share(COUNTER, over=SECONDS) for a counter of nanoseconds"),
    ("grew_in_audits", "grew_in_audits(COUNTER, days=30) for a counter of a board"),
    ("flagged_windows", "flagged_windows(CONDITION, of=30)"),
    ("flat_for", "flat_for(CONDITION, seconds=1800)"),
    ("repeats", "repeats(\"CHECK\", …, days=14)"),
    ("last_good", "last_good(nvml_count), last_good(pstore_files) or last_good(ib_up)"),
    ("rebooted", "rebooted()"),
];

/// Signals of the node that are remembered as they last should be.
const REMEMBERED: [&str; 3] = ["nvml_count", "pstore_files", "ib_up"];

/// Compiles a call of one of [`FUNCTIONS`].
pub(super) fn call(
    compiler: &mut Compiler<'_>,
    function: &str,
    args: &[Expr],
    named: &[(String, Expr)],
    misuse: &dyn Fn() -> RuleError,
) -> Result<(Op, Kind), RuleError> {
    let number = |name: &str, most: f64| -> Result<Option<f64>, RuleError> {
        match named {
            [] => Ok(None),
            [(given, Expr { kind: ExprKind::Number(value), .. })]
                if given == name && value.fract() == 0.0 && (1.0..=most).contains(value) =>
            {
                Ok(Some(*value))
            }
            _ => Err(misuse()),
        }
    };
    #[expect(clippy::cast_possible_truncation, reason = "whole and within bounds")]
    let days = |given: f64| given as i64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and within bounds")]
    let seconds = |given: Option<f64>| given.map_or(0, |it| it as u64);
    let (history, kind) = match (function, args) {
        ("delta", [arg]) => {
            let days = number("days", 30.0)?.map(days);
            let counter = counter(compiler, arg, days.map(|_| Life::Board), misuse)?;
            (days.map_or(History::Delta(counter), |days| History::Grown(counter, days)), Kind::Number)
        }
        ("grew_in_audits", [arg]) => {
            let days = days(number("days", 30.0)?.ok_or_else(misuse)?);
            (History::GrewIn(counter(compiler, arg, Some(Life::Board), misuse)?, days), Kind::Number)
        }
        ("rate", [arg]) => {
            let over = seconds(number("over", 86_400.0)?);
            (History::Rate(counter(compiler, arg, None, misuse)?, over), Kind::Number)
        }
        ("share", [arg]) => {
            let over = seconds(number("over", 86_400.0)?);
            let counter = counter(compiler, arg, None, misuse)?;
            if !counter.is_time() {
                return Err(wrong(arg, format!("`{}` does not count nanoseconds", counter.name)));
            }
            (History::Share(counter, over), Kind::Number)
        }
        ("flagged_windows", [arg]) => {
            let of = number("of", f64::from(MOST_WINDOWS))?.ok_or_else(misuse)?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 30")]
            let history = History::Flagged(compiler.watched(arg)?, of as u32);
            (history, Kind::Number)
        }
        ("flat_for", [arg]) => {
            let [(name, seconds)] = named else { return Err(misuse()) };
            if name != "seconds" {
                return Err(misuse());
            }
            let condition = compiler.watched(arg)?;
            (History::FlatFor(condition, compiler.number(seconds)?), Kind::Bool)
        }
        ("repeats", [_, ..]) => {
            let days = days(number("days", 30.0)?.ok_or_else(misuse)?);
            (History::Repeats(compiler.checks(args)?, days), Kind::Number)
        }
        ("last_good", [arg]) if named.is_empty() => {
            let ExprKind::Name(Name::Signal(name)) = &arg.kind else { return Err(misuse()) };
            let known = REMEMBERED.iter().find(|known| **known == *name).ok_or_else(misuse)?;
            (History::LastGood(known), Kind::Number)
        }
        ("rebooted", []) if named.is_empty() => (History::Rebooted, Kind::Bool),
        _ => return Err(misuse()),
    };
    Ok((Op::History(Box::new(history)), kind))
}

fn counter(
    compiler: &mut Compiler<'_>,
    expr: &Expr,
    life: Option<Life>,
    misuse: &dyn Fn() -> RuleError,
) -> Result<&'static Counter, RuleError> {
    let ExprKind::Name(Name::Signal(name)) = &expr.kind else { return Err(misuse()) };
    let Some(counter) = lookup(name) else {
        return Err(wrong(expr, format!("`{name}` is no counter that is compared with earlier audits"))
            .suggest(name, crate::memory::names()));
    };
    if life.is_some_and(|life| life != counter.life) {
        return Err(wrong(expr, format!("`{name}` begins anew with each load of the driver")));
    }
    compiler.value(expr)?;
    Ok(counter)
}

impl History {
    pub(super) fn operands(&self) -> [Option<&Op>; 2] {
        match self {
            Self::Flagged(condition, _) => [Some(condition), None],
            Self::FlatFor(condition, seconds) => [Some(condition), Some(seconds)],
            _ => [None, None],
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts and seconds")]
    pub(super) fn value<'a>(&'a self, scene: &Scene<'a>) -> Val<'a> {
        match self {
            Self::Delta(counter) => step_of(scene, counter, 0, |step| step.by as f64),
            Self::Rate(counter, over) => {
                step_of(scene, counter, *over, |step| step.by as f64 / (step.window_s.max(1)) as f64)
            }
            Self::Share(counter, over) => step_of(scene, counter, *over, |step| {
                step.by as f64 / NANOSECONDS / (step.window_s.max(1)) as f64
            }),
            Self::Grown(counter, days) => growth_of(scene, counter, *days, |(_, step)| step.by as f64),
            Self::GrewIn(counter, days) => growth_of(scene, counter, *days, |(audits, _)| audits as f64),
            Self::Flagged(condition, of) => flagged(scene, condition, *of),
            Self::FlatFor(condition, seconds) => Val::Truth(flat_for(scene, condition, seconds)),
            Self::Repeats(checks, days) => {
                let Some(past) = scene.past.filter(|past| past.memory.is_some()) else { return Val::Null };
                let from = past.now.at.saturating_sub(days.saturating_mul(DAY_S));
                let most = checks.iter().map(|check| scene.others.repeats_since(check, from)).max();
                Val::Number(most.unwrap_or_default() as f64)
            }
            Self::LastGood(name) => scene
                .past
                .and_then(|past| past.last_good(name))
                .map_or(Val::Null, |number| Val::Number(number as f64)),
            Self::Rebooted => scene
                .past
                .and_then(|past| past.rebooted())
                .map_or(Val::Null, |rebooted| Val::Truth(Truth::of(rebooted))),
        }
    }

    /// Whether it watches a condition, and whether that holds now.
    pub(super) fn watched(&self, scene: &Scene<'_>) -> Option<(Watched, Truth)> {
        match self {
            Self::Flagged(condition, _) => Some((Watched::Flag, eval(condition, scene).truth())),
            Self::FlatFor(condition, _) => Some((Watched::Held, eval(condition, scene).truth())),
            _ => None,
        }
    }

    /// Returns the growth that it looked at in words, under the name of the counter: `12 in 24 h, since …`.
    pub(super) fn evidence(&self, scene: &Scene<'_>) -> Option<(Arc<str>, Signal)> {
        let (counter, step) = match self {
            Self::Delta(counter) => (counter, step(scene, counter, 0)?),
            Self::Rate(counter, over) | Self::Share(counter, over) => (counter, step(scene, counter, *over)?),
            Self::Grown(counter, days) | Self::GrewIn(counter, days) => {
                (counter, growth(scene, counter, *days)?.1)
            }
            Self::FlatFor(condition, _) => {
                let held = scene.watch?.held.filter(|_| eval(condition, scene).truth().holds())?;
                return Some(("unchanged_since".into(), Signal::from(time(held.since))));
            }
            Self::Flagged(..) | Self::Repeats(..) | Self::LastGood(_) | Self::Rebooted => return None,
        };
        if step.by == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        let amount = match counter.is_time() {
            true => format!("{:.1} s", step.by as f64 / NANOSECONDS),
            false => step.by.to_string(),
        };
        let text = format!("{amount} in {}, since {}", span(step.window_s), time(step.since));
        Some((format!("{}_growth", counter.name).into(), Signal::from(text)))
    }
}

/// What a condition is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watched {
    Flag,
    Held,
}

/// Returns what a counter stands at; an error is the value that the whole has without it.
fn now<'a>(scene: &Scene<'a>, counter: &Counter) -> Result<u64, Val<'a>> {
    match scene.reading(counter.scope, counter.name) {
        Some(signal @ Signal::Known(_)) => whole(signal).ok_or(Val::Unknown),
        Some(Signal::Absent) => Err(Val::Null),
        // Not every audit reads it.
        None if matches!(counter.reading, Reading::Board | Reading::Deep) => Err(Val::Null),
        Some(Signal::Unknown(_)) | None => Err(Val::Unknown),
    }
}

fn subject<'a>(scene: &Scene<'a>) -> Option<&'a str> {
    scene.subject.map(|subject| subject.id.as_str())
}

fn step(scene: &Scene<'_>, counter: &Counter, over: u64) -> Option<Step> {
    let value = now(scene, counter).ok()?;
    scene.past?.step(counter, subject(scene), value, over)
}

fn growth(scene: &Scene<'_>, counter: &Counter, days: i64) -> Option<(u64, Step)> {
    let value = now(scene, counter).ok()?;
    scene.past?.growth(counter, subject(scene), value, days)
}

fn step_of<'a>(scene: &Scene<'a>, counter: &Counter, over: u64, of: impl FnOnce(Step) -> f64) -> Val<'a> {
    match now(scene, counter) {
        Err(value) => value,
        Ok(_) => step(scene, counter, over).map_or(Val::Null, |step| Val::Number(of(step))),
    }
}

fn growth_of<'a>(
    scene: &Scene<'a>,
    counter: &Counter,
    days: i64,
    of: impl FnOnce((u64, Step)) -> f64,
) -> Val<'a> {
    match now(scene, counter) {
        Err(value) => value,
        Ok(_) => growth(scene, counter, days).map_or(Val::Null, |grown| Val::Number(of(grown))),
    }
}

fn flagged<'a>(scene: &Scene<'a>, condition: &'a Op, of: u32) -> Val<'a> {
    let Some(past) = scene.past.filter(|past| past.memory.is_some()) else { return Val::Null };
    let truth = eval(condition, scene).truth();
    if truth.is_neither() {
        return Val::Null;
    }
    // The memory has this audit already where it shortly follows another one.
    let (before, now) = if past.counts { (of.saturating_sub(1), 1) } else { (of, 0) };
    let earlier = f64::from(scene.watch.map_or(0, |watch| watch.flagged(before)));
    match (truth.holds(), truth.may_hold()) {
        (true, _) => Val::Number(earlier + f64::from(now)),
        (_, true) => Val::AtLeast(earlier),
        _ => Val::Number(earlier),
    }
}

fn flat_for<'a>(scene: &Scene<'a>, condition: &'a Op, seconds: &'a Op) -> Truth {
    let Some(past) = scene.past.filter(|past| past.memory.is_some()) else { return Truth::NEITHER };
    let truth = eval(condition, scene).truth();
    let Val::Number(least) = eval(seconds, scene) else { return Truth::NEITHER };
    if truth.is_neither() || truth == Truth::FALSE {
        return truth;
    }
    let held = scene.watch.and_then(|watch| watch.held);
    let long = held.filter(|held| past.same_life && held.since <= past.now.at).is_some_and(|held: Held| {
        let audits = held.audits.saturating_add(u32::from(past.counts));
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let age = past.now.at.saturating_sub(held.since) as f64;
        audits >= LEAST_AUDITS && age >= least
    });
    match (truth.holds(), long) {
        (_, false) => Truth::FALSE,
        (true, true) => Truth::TRUE,
        (false, true) => truth,
    }
}

//! What earlier audits said of one check on one subject, and what that makes of what this one says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::verdict::{Action, Verdict};

const DAY_S: i64 = 86_400;
/// Changes within a day that make a finding one that comes and goes.
const FLAPPING: usize = 4;
const MOST_TIMES: usize = 8;
/// For how long a failure counts as an earlier one.
const REPEAT_S: i64 = 30 * DAY_S;
/// Audits that `flagged_windows` looks back on.
pub(crate) const MOST_WINDOWS: u32 = 30;

/// How many audits in a row must have a finding before it counts in full, and be without it before it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    pub enter: u8,
    pub clear: u8,
}

/// What time makes of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Seen in so few audits in a row that it is a warning at most.
    Provisional,
    /// Not seen in this audit, and not gone yet.
    Lingering,
    /// It comes and goes.
    Flapping,
}

/// Since when a condition holds, and in how many audits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Held {
    pub since: i64,
    pub audits: u32,
}

/// Audits without a word of a subject, after which it is forgotten: a month of nights.
const MOST_SILENT: u8 = 30;

/// What is remembered of a check on a subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Watch {
    /// The verdict that it last had where it had a finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<Verdict>,
    /// Whether the last audit that judged it had a finding.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    bad: bool,
    /// Audits in a row that had it. Kept while it is not gone.
    #[serde(skip_serializing_if = "is_zero")]
    seen: u8,
    /// Audits in a row without it.
    #[serde(skip_serializing_if = "is_zero")]
    gone: u8,
    /// When the oldest audit in the row was.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    /// When it came or went, within a day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<i64>,
    /// One bit an audit, the newest lowest: whether what `flagged_windows` asks for was so.
    #[serde(skip_serializing_if = "is_none_set")]
    pub flags: u32,
    /// What `flat_for` asks for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// When it last failed with a remedy as its action.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<i64>,
    /// When it failed again after such a failure was over, or after a boot or another load of the driver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    repeats: Vec<i64>,
    /// Audits in a row in which its subject did not answer.
    #[serde(skip_serializing_if = "is_zero")]
    silent: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field")]
const fn is_zero(number: &u8) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field")]
const fn is_none_set(flags: &u32) -> bool {
    *flags == 0
}

/// What this audit says of a check on a subject, without what was before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub verdict: Verdict,
    pub action: Action,
    /// Whether this audit makes the readings at all.
    pub asked: bool,
    /// Whether a rule decided, and not that something could not be read.
    pub decided: bool,
    /// Whether the rule that decided says by itself for how long it must have been so.
    pub at_once: bool,
    pub at: i64,
    /// Whether there is an earlier audit at all.
    pub first: bool,
    /// Whether the audit counts: one shortly after another says the same again.
    pub counts: bool,
    /// Whether node and driver are still those that the last audit saw.
    pub same_life: bool,
    /// Whether the driver is of another version than before: what failed with that one says nothing.
    pub other_driver: bool,
    /// Whether what is new cannot be remembered, because of how much is.
    pub full: bool,
    /// Whether what `flagged_windows` and `flat_for` ask for holds; `None` where it is not asked or not known.
    pub flag: Option<bool>,
    pub held: Option<bool>,
}

impl Now {
    const fn is_bad(&self) -> bool {
        match self.verdict {
            Verdict::Warn | Verdict::Drift | Verdict::Fail => true,
            Verdict::Unknown => self.decided,
            Verdict::Ok | Verdict::Na => false,
        }
    }
}

impl Watch {
    pub fn is_sane(&self) -> bool {
        self.changes.len() <= MOST_TIMES && self.repeats.len() <= MOST_TIMES
    }

    /// Returns what is remembered after an audit to which its subject said nothing, such as a GPU that the driver does not
    /// list; `None` after many of them.
    pub fn after_silence(&self) -> Option<Self> {
        let silent = self.silent.saturating_add(1);
        (silent <= MOST_SILENT).then(|| Self { silent, ..self.clone() })
    }

    /// Whether it holds nothing that a new one would not.
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }

    /// Returns what is remembered after this audit.
    pub fn after(earlier: Option<&Self>, now: &Now, rule: Hysteresis) -> Self {
        let mut next = earlier.cloned().unwrap_or_default();
        let enter = rule.enter.max(1);
        next.changes.retain(|at| (now.at.saturating_sub(DAY_S)..=now.at).contains(at));
        if now.other_driver {
            next.repeats.clear();
            next.failed = None;
        }
        next.repeats.retain(|at| *at >= now.at.saturating_sub(REPEAT_S));
        next.failed =
            next.failed.filter(|at| *at >= now.at.saturating_sub(REPEAT_S)).map(|at| at.min(now.at));
        next.silent = 0;
        if !now.asked {
            // Nothing was read: neither has it come again, nor is it gone.
            return next;
        }
        if now.counts {
            next.marks(now);
        }
        if now.is_bad() {
            next.comes(now, enter);
        } else if now.verdict == Verdict::Ok {
            next.goes(now, enter, rule.clear.max(1));
        } else if now.verdict == Verdict::Na {
            (next.bad, next.seen, next.gone, next.since) = (false, 0, 0, None);
        }
        if next.seen == 0 && next.changes.is_empty() {
            next.verdict = None;
        }
        next
    }

    fn marks(&mut self, now: &Now) {
        if let Some(flag) = now.flag {
            self.flags = ((self.flags << 1) | u32::from(flag)) & ((1 << MOST_WINDOWS) - 1);
        }
        self.held = match (now.held, self.held) {
            (Some(true), Some(held)) if now.same_life && held.since <= now.at => {
                Some(Held { since: held.since, audits: held.audits.saturating_add(1) })
            }
            (Some(true), _) => Some(Held { since: now.at, audits: 1 }),
            _ => None,
        };
    }

    fn comes(&mut self, now: &Now, enter: u8) {
        let remedy = now.verdict == Verdict::Fail && matches!(now.action, Action::Reset | Action::Reboot);
        if remedy {
            let again = self.failed.is_some() && (!self.bad || !now.same_life);
            if again && now.counts {
                note_time(&mut self.repeats, now.at);
            }
            self.failed = Some(now.at);
        }
        if !self.bad && !now.first && now.counts {
            note_time(&mut self.changes, now.at);
        }
        self.verdict = match self.verdict {
            Some(before) if !self.changes.is_empty() => Some(before.max(now.verdict)),
            _ => Some(now.verdict),
        };
        // Without an earlier audit nobody can tell whether it is new: it stands as it is.
        let at_once = now.first || now.at_once || now.full;
        self.seen = self.seen.saturating_add(u8::from(now.counts)).max(if at_once { enter } else { 1 });
        self.since = Some(self.since.map_or(now.at, |since| since.min(now.at)));
        (self.bad, self.gone) = (true, 0);
    }

    fn goes(&mut self, now: &Now, enter: u8, clear: u8) {
        if self.bad && now.counts {
            note_time(&mut self.changes, now.at);
        }
        self.bad = false;
        let confirmed = self.seen >= enter;
        if confirmed && now.same_life {
            self.gone = self.gone.saturating_add(u8::from(now.counts));
        }
        if !confirmed || !now.same_life || self.gone >= clear {
            (self.seen, self.gone, self.since) = (0, 0, None);
        }
    }

    /// Returns the standing, the verdict and the action that are shown, and what is to be said of it.
    ///
    /// What is unknown stays unknown, and nothing is milder than a warning for being new.
    pub fn shown(&self, now: &Now, rule: Hysteresis) -> Option<(Standing, Verdict, Action, String)> {
        let enter = rule.enter.max(1);
        let flapping = self.changes.len() >= FLAPPING;
        let worse = self.verdict.unwrap_or(now.verdict).max(now.verdict);
        let comes_and_goes = || format!("it changed {} times within a day", self.changes.len());
        if now.is_bad() {
            if self.seen < enter && !flapping {
                let said = format!("provisional: in {} of {enter} audits in a row", self.seen);
                return Some(match now.verdict {
                    Verdict::Unknown => {
                        (Standing::Provisional, now.verdict, now.action.min(Action::Investigate), said)
                    }
                    verdict => (Standing::Provisional, verdict.min(Verdict::Warn), Action::None, said),
                });
            }
            return flapping.then(|| (Standing::Flapping, worse, now.action, comes_and_goes()));
        }
        if now.verdict != Verdict::Ok {
            return None;
        }
        if flapping {
            return Some((Standing::Flapping, worse, Action::Investigate, comes_and_goes()));
        }
        (self.seen >= enter && self.gone > 0).then(|| {
            let said =
                format!("not seen in this audit; over after {} audits in a row without it", rule.clear);
            (Standing::Lingering, worse, Action::None, said)
        })
    }

    /// Returns how often it failed again since a time.
    pub fn repeats_since(&self, from: i64) -> usize {
        self.repeats.iter().filter(|at| **at >= from).count()
    }

    /// Returns in how many of the last `of` audits the flag was set.
    pub fn flagged(&self, of: u32) -> u32 {
        let of = of.min(MOST_WINDOWS);
        (self.flags & 1_u32.checked_shl(of).map_or(u32::MAX, |bit| bit - 1)).count_ones()
    }
}

fn note_time(times: &mut Vec<i64>, at: i64) {
    if times.len() >= MOST_TIMES {
        times.remove(0);
    }
    times.push(at);
}

//! The counters that are compared with earlier readings, and what they compare within.

use std::collections::BTreeMap;

use gpufleet_protocol::signal::{Signal, Signals, SubjectReadings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MOST_WORD, Moment};
use crate::verdict::Scope;

/// As long as which a counter goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Until the driver is loaded anew.
    Driver,
    /// Until the node boots.
    Boot,
    /// As long as the board is.
    Board,
}

/// Which audits read it. What some audits do not read must not push out what others read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Every,
    /// Only on nodes with few GPUs, and deep ones.
    Board,
    Deep,
    /// Every one, of ports: these have places of their own.
    Port,
}

#[derive(Debug)]
pub(crate) struct Counter {
    pub name: &'static str,
    pub scope: Scope,
    pub life: Life,
    pub reading: Reading,
}

impl Counter {
    /// Whether it counts nanoseconds.
    pub fn is_time(&self) -> bool {
        self.name.starts_with("ns_")
    }
}

const fn gpu(name: &'static str, life: Life, reading: Reading) -> Counter {
    Counter { name, scope: Scope::Gpu, life, reading }
}

const fn node(name: &'static str) -> Counter {
    Counter { name, scope: Scope::Node, life: Life::Boot, reading: Reading::Every }
}

const fn port(name: &'static str) -> Counter {
    Counter { name, scope: Scope::Port, life: Life::Boot, reading: Reading::Port }
}

pub(crate) static COUNTERS: &[Counter] = &[
    node("edac_ce"),
    node("edac_ue"),
    node("nvme_media_errors"),
    node("gpu_stuck_mark"),
    gpu("aer_fatal", Life::Boot, Reading::Every),
    gpu("aer_nonfatal_without_ur", Life::Boot, Reading::Every),
    gpu("aer_correctable", Life::Boot, Reading::Every),
    gpu("ecc_cor_vol", Life::Driver, Reading::Every),
    gpu("ecc_unc_agg", Life::Board, Reading::Every),
    gpu("sram_unc_agg", Life::Board, Reading::Every),
    gpu("remap_cor", Life::Board, Reading::Every),
    gpu("remap_unc", Life::Board, Reading::Every),
    gpu("pcie_replays", Life::Driver, Reading::Board),
    gpu("pcie_l0_recovery", Life::Driver, Reading::Board),
    gpu("ns_sw_power", Life::Driver, Reading::Board),
    gpu("ns_sw_thermal", Life::Driver, Reading::Board),
    gpu("ns_hw_thermal", Life::Driver, Reading::Board),
    gpu("ns_power_brake", Life::Driver, Reading::Board),
    gpu("nvl_replay", Life::Driver, Reading::Deep),
    gpu("nvl_recovery", Life::Driver, Reading::Deep),
    port("link_downed"),
    port("ib_symbol_error"),
    port("ib_link_error_recovery"),
];

/// Returns the counter with this name.
pub(crate) fn lookup(name: &str) -> Option<&'static Counter> {
    COUNTERS.iter().find(|counter| counter.name == name)
}

/// Returns the names of all counters, for suggestions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    COUNTERS.iter().map(|counter| counter.name)
}

/// Returns what a counter stands at. What is no whole number is none.
pub(super) fn value(signals: &Signals, counter: &Counter, id: Option<&str>) -> Option<u64> {
    let of =
        |subjects: &'_ [SubjectReadings]| subjects.iter().position(|subject| Some(subject.id.as_str()) == id);
    let readings = match counter.scope {
        Scope::Gpu => &signals.gpus.get(of(&signals.gpus)?)?.readings,
        Scope::Port => &signals.ports.get(of(&signals.ports)?)?.readings,
        Scope::Node | Scope::Disk => &signals.node,
    };
    readings.get(counter.name).and_then(whole)
}

/// Returns a reading as a count.
pub(crate) fn whole(signal: &Signal) -> Option<u64> {
    let value = signal.known()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    let of_float = |number: f64| {
        (number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&number)).then_some(number as u64)
    };
    value.as_u64().or_else(|| value.as_f64().and_then(of_float))
}

/// How much a counter grew, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub by: u64,
    /// Seconds.
    pub window_s: u64,
    /// When the earlier reading was made, in seconds since 1970.
    pub since: i64,
}

/// What a counter stood at on each board, or port.
type Row = Vec<Option<u64>>;

/// The earlier readings of counters that are read together.
///
/// At most [`Ring::MOST`] of them: the newest one, one that is at least [`Ring::LONG_S`] old where there is one, and one
/// that becomes that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Ring {
    /// When they were made, the oldest first.
    moments: Vec<Moment>,
    /// By counter, then by moment, then by board or port; counters of the node have one value.
    counters: BTreeMap<String, Vec<Row>>,
}

impl Ring {
    const MOST: usize = 3;
    /// The longest window that a rule asks for. Longer ones are what the distance of audits makes them.
    const LONG_S: i64 = 600;

    pub const fn is_blank(&self) -> bool {
        self.moments.is_empty()
    }

    pub fn is_sane(&self, boards: usize) -> bool {
        let moments = self.moments.len();
        moments <= Self::MOST
            && self.moments.iter().all(Moment::is_sane)
            && self.counters.len() <= COUNTERS.len()
            && self.counters.iter().all(|(name, rows)| {
                name.len() <= MOST_WORD
                    && rows.len() == moments
                    && rows.iter().all(|row| row.len() <= boards.max(1))
            })
    }

    /// Adds a reading. `places` has the earlier place of each board; `read` returns what a counter stands at. Where
    /// nothing was read, the earlier readings stay as they are.
    pub fn after(
        &self,
        reading: Reading,
        now: &Moment,
        places: &[Option<usize>],
        read: &dyn Fn(&Counter, Option<usize>) -> Option<u64>,
    ) -> Self {
        let mut next = Self { moments: self.moments.clone(), counters: BTreeMap::new() };
        let mut any = false;
        let mine = COUNTERS.iter().filter(|it| it.reading == reading && it.life != Life::Board);
        for counter in mine {
            let of_boards = counter.scope != Scope::Node;
            let now_row: Row = match of_boards {
                true => (0..places.len()).map(|board| read(counter, Some(board))).collect(),
                false => vec![read(counter, None)],
            };
            let moved = |row: &Row| -> Row {
                match of_boards {
                    true => places.iter().map(|place| row.get((*place)?).copied().flatten()).collect(),
                    false => row.clone(),
                }
            };
            any |= now_row.iter().any(Option::is_some);
            let earlier = self.counters.get(counter.name);
            let mut rows: Vec<Row> = match earlier {
                Some(rows) => rows.iter().map(moved).collect(),
                None => vec![vec![None; now_row.len()]; self.moments.len()],
            };
            for (board, now) in now_row.iter().enumerate() {
                let Some(now) = now else { continue };
                for row in &mut rows {
                    // A counter that fell was set back in between: what it was before says nothing any more.
                    if let Some(slot) = row.get_mut(board).filter(|slot| slot.is_some_and(|it| it > *now)) {
                        *slot = None;
                    }
                }
            }
            rows.push(now_row);
            if rows.iter().flatten().any(Option::is_some) {
                next.counters.insert(counter.name.to_owned(), rows);
            }
        }
        next.moments.push(now.clone());
        if !any {
            next.drop_moment(self.moments.len());
            return next;
        }
        while next.moments.get(1).is_some_and(|moment| now.at.saturating_sub(moment.at) >= Self::LONG_S) {
            next.drop_moment(0);
        }
        while next.moments.len() > Self::MOST {
            next.drop_moment(next.moments.len() - 2);
        }
        next
    }

    fn drop_moment(&mut self, at: usize) {
        self.moments.remove(at);
        for rows in self.counters.values_mut() {
            rows.remove(at);
        }
        self.counters.retain(|_, rows| rows.iter().flatten().any(Option::is_some));
    }

    /// Returns how much a counter grew over the shortest window that is at least `least_s` long; `None` without an
    /// earlier reading of the same life.
    pub fn since(
        &self,
        counter: &Counter,
        board: usize,
        now: &Moment,
        value: u64,
        least_s: u64,
    ) -> Option<Step> {
        let rows = self.counters.get(counter.name)?;
        self.moments.iter().zip(rows).rev().find_map(|(moment, row)| {
            let before = row.get(board).copied().flatten()?;
            let same = moment.same_boot(now) && (counter.life == Life::Boot || moment.same_load(now));
            // Why by the node's uptime: the controller's clock may be set, and several controllers may differ.
            let window_s = now.up.checked_sub(moment.up).filter(|_| moment.up > 0)?;
            let by = value.checked_sub(before)?;
            let long = window_s >= least_s && window_s > 0;
            (same && long).then_some(Step { by, window_s, since: moment.at.min(now.at) })
        })
    }
}

/// One time at which a counter of a board had grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Growth {
    pub board: usize,
    pub at: i64,
    pub by: u64,
}

/// Counters over the life of boards: where they stood, and when they grew. They go on over boots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(super) struct Totals {
    /// When each board was last read.
    at: Vec<i64>,
    counters: BTreeMap<String, Vec<Option<u64>>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    grown: BTreeMap<String, Vec<Growth>>,
}

impl Totals {
    /// Times of growth of one counter.
    const MOST: usize = 64;
    pub const DAYS: i64 = 30;

    pub fn is_sane(&self, boards: usize) -> bool {
        let known = |name: &String| name.len() <= MOST_WORD;
        self.at.len() <= boards
            && self.counters.len() <= COUNTERS.len()
            && self.grown.len() <= COUNTERS.len()
            && self.counters.iter().all(|(name, row)| known(name) && row.len() <= boards)
            && self.grown.iter().all(|(name, list)| {
                known(name) && list.len() <= Self::MOST && list.iter().all(|growth| growth.board < boards)
            })
    }

    pub fn after(
        &self,
        now: &Moment,
        places: &[Option<usize>],
        read: &dyn Fn(&Counter, Option<usize>) -> Option<u64>,
    ) -> Self {
        let mut next = Self::default();
        let mut was_read = vec![false; places.len()];
        for counter in COUNTERS.iter().filter(|it| it.life == Life::Board) {
            let mut grown: Vec<Growth> = self.recent(counter.name, now.at, Self::DAYS).collect();
            for growth in &mut grown {
                let old = growth.board;
                growth.board = places.iter().position(|place| *place == Some(old)).unwrap_or(usize::MAX);
                // Of a clock that was set back since.
                growth.at = growth.at.min(now.at);
            }
            grown.retain(|growth| growth.board < places.len());
            let mut row = Vec::with_capacity(places.len());
            for (board, place) in places.iter().enumerate() {
                let before = place.and_then(|place| self.before(counter.name, place));
                let value = read(counter, Some(board));
                if let (Some(value), Some(before)) = (value, before)
                    && value > before
                {
                    grown.push(Growth { board, at: now.at, by: value - before });
                }
                if let (Some(_), Some(slot)) = (value, was_read.get_mut(board)) {
                    *slot = true;
                }
                // A board that does not answer now may do so again.
                row.push(value.or(before));
            }
            let surplus = grown.len().saturating_sub(Self::MOST);
            grown.drain(..surplus);
            if row.iter().any(Option::is_some) {
                next.counters.insert(counter.name.to_owned(), row);
            }
            if !grown.is_empty() {
                next.grown.insert(counter.name.to_owned(), grown);
            }
        }
        let before = |place: &Option<usize>| place.and_then(|place| self.at.get(place).copied());
        next.at = (places.iter().zip(was_read))
            .map(|(place, read)| if read { now.at } else { before(place).unwrap_or(now.at) })
            .collect();
        next
    }

    fn before(&self, name: &str, board: usize) -> Option<u64> {
        self.counters.get(name)?.get(board).copied().flatten()
    }

    fn recent(&self, name: &str, now: i64, days: i64) -> impl Iterator<Item = Growth> {
        let from = now.saturating_sub(days.saturating_mul(86_400));
        self.grown.get(name).into_iter().flatten().copied().filter(move |growth| growth.at >= from)
    }

    /// Returns how much a counter grew since the last audit. `None` without an earlier reading, and where it fell.
    pub fn since(&self, counter: &Counter, board: usize, now: i64, value: u64) -> Option<Step> {
        let by = value.checked_sub(self.before(counter.name, board)?)?;
        let since = self.at.get(board).copied().unwrap_or(now).min(now);
        Some(Step { by, window_s: u64::try_from(now.saturating_sub(since)).unwrap_or(0), since })
    }

    /// Returns in how many audits of these days it grew, this one included, by how much, and when first.
    pub fn growth(
        &self,
        counter: &Counter,
        board: usize,
        now: i64,
        value: u64,
        days: i64,
    ) -> Option<(u64, Step)> {
        let last = self.since(counter, board, now, value)?;
        let mut audits = u64::from(last.by > 0);
        let (mut by, mut first) = (last.by, last.since);
        for growth in self.recent(counter.name, now, days).filter(|growth| growth.board == board) {
            audits += 1;
            by = by.saturating_add(growth.by);
            first = first.min(growth.at);
        }
        let window_s = u64::try_from(now.saturating_sub(first)).unwrap_or(0);
        Some((audits, Step { by, window_s, since: first }))
    }
}

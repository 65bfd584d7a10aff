//! What an audit remembers of a node for later ones: where counters stood, and what checks said.
//!
//! A value that a caller keeps; nothing here reads a file or a clock. Times are those of the controller, in seconds
//! since 1970. Invariants: the same earlier value, readings and findings give the same value; its size has a bound,
//! whatever a node says; what cannot be compared is not compared.

mod counters;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::signal::{Signal, Signals, SubjectReadings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::finding::Finding;
use crate::verdict::{Scope, Verdict};
pub(crate) use counters::{Counter, Life, Reading, Step, lookup, names, whole};
use counters::{Ring, Totals};
pub(crate) use watch::{Held, MOST_WINDOWS, Now, Watch};
pub use watch::{Hysteresis, Standing};

/// The shape of the value. One of another shape is not read.
const SHAPE: u8 = 1;
/// Boards that are remembered: more than any node has.
const MOST_BOARDS: usize = 32;
/// Ports that are remembered.
const MOST_PORTS: usize = 32;
/// Checks on subjects that are remembered.
const MOST_WATCHES: usize = 128;
/// Characters of an id.
const MOST_WORD: usize = 64;
/// Audits closer together than this count as one.
const GAP_S: i64 = 60;

/// When something was read, and in which life of node and driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Moment {
    pub at: i64,
    /// Seconds since the boot; 0 where it is not known.
    pub up: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    load: Option<String>,
}

impl Moment {
    pub fn of(signals: &Signals, at: i64) -> Self {
        let text = |signal: Option<&Signal>| {
            let text = match signal?.known()? {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return None,
            };
            Some(text).filter(|text| is_word(text))
        };
        // What changed while it was read is of no life.
        let steady = |start: &str, end: &str| {
            let (start, end) = (text(signals.node.get(start)), text(signals.node.get(end)));
            start.filter(|start| end.as_ref().is_none_or(|end| end == start))
        };
        let boot = signals.boot_id.clone().filter(|boot| is_word(boot));
        let moved = |start: &str, end: &str| {
            let (start, end) = (text(signals.node.get(start)), text(signals.node.get(end)));
            start.is_some() && end.is_some() && start != end
        };
        Self {
            at,
            up: signals.uptime_s,
            boot: boot.filter(|_| !moved("boot_id_start", "boot_id_end")),
            load: steady("driver_load_start", "driver_load_end"),
        }
    }

    fn is_sane(&self) -> bool {
        [&self.boot, &self.load].into_iter().flatten().all(|text| is_word(text))
    }

    pub fn same_boot(&self, other: &Self) -> bool {
        self.boot.is_some() && self.boot == other.boot
    }

    pub fn same_load(&self, other: &Self) -> bool {
        self.load.is_some() && self.load == other.load
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.len() <= MOST_WORD && !text.contains(char::is_control)
}

/// Prints a time as reports do.
pub(crate) fn time(at: i64) -> String {
    match jiff::Timestamp::from_second(at) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => "an unknown time".to_owned(),
    }
}

/// Prints seconds as people say them.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// What later audits of a node need of the audits so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    shape: u8,
    last: Moment,
    /// The driver's version: what failed with another one says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    driver: Option<String>,
    /// How many GPUs the driver listed when that was last as it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpus: Option<u64>,
    /// Records of crashes that were there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crashes: Option<u64>,
    /// How many RDMA ports were up when that was last as it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ports_up: Option<u64>,
    /// UUIDs; counters name boards by their place here.
    boards: Vec<String>,
    /// Ids; counters name ports by their place here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<String>,
    every: Ring,
    board: Ring,
    deep: Ring,
    #[serde(default, skip_serializing_if = "Ring::is_blank")]
    port: Ring,
    totals: Totals,
    /// By check, then by subject.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    watches: BTreeMap<String, BTreeMap<String, Watch>>,
    /// Whether there may be earlier audits that could not be read: it stands for them, and is not kept in their place.
    #[serde(skip)]
    #[schemars(skip)]
    unread: bool,
}

impl Memory {
    /// What stands for earlier audits that could not be read: nothing is compared with it, and no finding that needs several
    /// audits in a row counts in full, because nobody knows whether it is new.
    pub fn unread() -> Self {
        Self { unread: true, ..Self::blank(&Moment::default()) }
    }

    /// Whether it is to be kept for later audits.
    pub const fn is_whole(&self) -> bool {
        !self.unread
    }

    /// Reads a value that was kept; null stands for what could not be read. `None` if it is of another shape, or nothing that
    /// this made.
    pub fn read(value: &Value) -> Option<Self> {
        if value.is_null() {
            return Some(Self::unread());
        }
        let memory = Self::deserialize(value).ok()?;
        memory.is_sane().then_some(memory)
    }

    fn is_sane(&self) -> bool {
        let boards = self.boards.len();
        let all =
            || self.watches.iter().flat_map(|(check, subjects)| subjects.iter().map(move |it| (check, it)));
        self.shape == SHAPE
            && self.last.is_sane()
            && boards <= MOST_BOARDS
            && self.boards.iter().all(|board| is_word(board))
            && self.driver.as_ref().is_none_or(|driver| is_word(driver))
            && [&self.every, &self.board, &self.deep].into_iter().all(|ring| ring.is_sane(boards))
            && self.ports.len() <= MOST_PORTS
            && self.ports.iter().all(|port| is_word(port))
            && self.port.is_sane(self.ports.len())
            && self.totals.is_sane(boards)
            && all().count() <= MOST_WATCHES
            && all().all(|(check, (subject, watch))| {
                check.len() <= MOST_WORD && subject.len() <= 2 * MOST_WORD && watch.is_sane()
            })
    }

    /// Whether these readings may be of the machine that this remembers: not where both know GPUs by their UUIDs and none is
    /// the same. Names tell no machine: two clusters may have a gpu001 each, and share a history. Neither does a machine id,
    /// which nodes of one image share, and which those without a disk make anew at each boot.
    pub fn may_be_of(&self, signals: &Signals) -> bool {
        let is_uuid = |id: &str| id.starts_with("GPU-");
        let mut now = signals.gpus.iter().map(|gpu| &gpu.id).filter(|id| is_uuid(id)).peekable();
        now.peek().is_none()
            || !self.boards.iter().any(|board| is_uuid(board))
            || now.any(|id| self.boards.contains(id))
    }

    /// Returns when the last audit was, in seconds since 1970.
    pub const fn at(&self) -> i64 {
        self.last.at
    }

    /// Returns what is to be remembered after an audit. `findings` are those of [`crate::judge_after`] with the same
    /// earlier value, readings and time.
    ///
    /// An audit within a minute of another one adds nothing.
    pub fn after(earlier: Option<&Self>, signals: &Signals, findings: &[Finding], at: i64) -> Self {
        let now = Moment::of(signals, at);
        if let Some(earlier) = earlier
            && !counts(Some(earlier), &now)
        {
            return earlier.clone();
        }
        let blank = Self::blank(&now);
        let before = earlier.unwrap_or(&blank);
        let boards = subjects(&before.boards, &signals.gpus, MOST_BOARDS);
        let ports = subjects(&before.ports, &signals.ports, MOST_PORTS);
        let earlier_places = |now: &[String], earlier: &[String]| -> Vec<Option<usize>> {
            now.iter().map(|id| earlier.iter().position(|it| it == id)).collect()
        };
        let places = earlier_places(&boards, &before.boards);
        let places_of_ports = earlier_places(&ports, &before.ports);
        let read = |counter: &Counter, place: Option<usize>| {
            let known = if counter.scope == Scope::Port { &ports } else { &boards };
            counters::value(signals, counter, place.and_then(|place| known.get(place)).map(String::as_str))
        };
        let number = |name: &str| signals.node.get(name).and_then(whole);
        let as_it_should_be =
            findings.iter().any(|it| &*it.check.id == GPU_COUNT && it.verdict == Verdict::Ok);
        let ports_lack = findings.iter().any(|it| &*it.check.id == IB_PORTS && it.verdict.is_not_ok());
        let driver = signals.node.get("driver_version").and_then(Signal::known).and_then(Value::as_str);
        Self {
            shape: SHAPE,
            driver: driver.map(str::to_owned).filter(|it| is_word(it)).or_else(|| before.driver.clone()),
            gpus: number("nvml_count").filter(|_| as_it_should_be).or(before.gpus),
            crashes: number("pstore_files").or(before.crashes),
            ports_up: number("ib_up").filter(|_| !ports_lack).or(before.ports_up),
            every: before.every.after(Reading::Every, &now, &places, &read),
            board: before.board.after(Reading::Board, &now, &places, &read),
            deep: before.deep.after(Reading::Deep, &now, &places, &read),
            port: before.port.after(Reading::Port, &now, &places_of_ports, &read),
            totals: before.totals.after(&now, &places, &read),
            watches: watches(before, findings),
            last: now,
            boards,
            ports,
            unread: before.unread,
        }
    }

    fn blank(now: &Moment) -> Self {
        Self {
            shape: SHAPE,
            last: now.clone(),
            driver: None,
            gpus: None,
            crashes: None,
            ports_up: None,
            boards: Vec::new(),
            ports: Vec::new(),
            every: Ring::default(),
            board: Ring::default(),
            deep: Ring::default(),
            port: Ring::default(),
            totals: Totals::default(),
            watches: BTreeMap::new(),
            unread: false,
        }
    }

    fn watch(&self, check: &str, subject: &str) -> Option<&Watch> {
        self.watches.get(check)?.get(subject)
    }

    fn is_full(&self) -> bool {
        self.watches.values().map(BTreeMap::len).sum::<usize>() >= MOST_WATCHES
    }
}

/// The check that says whether all GPUs are there.
const GPU_COUNT: &str = "inv.gpu_count";
/// The check that says whether all ports are up.
const IB_PORTS: &str = "net.ib_ports";

/// Whether an audit counts as one of its own.
fn counts(earlier: Option<&Memory>, now: &Moment) -> bool {
    earlier.is_none_or(|earlier| {
        let gap = now.at.saturating_sub(earlier.last.at);
        !(0..GAP_S).contains(&gap) || earlier.last.boot != now.boot || earlier.last.load != now.load
    })
}

/// The boards, or ports, of this audit, then earlier ones that do not answer now, as far as there is room.
fn subjects(before: &[String], now: &[SubjectReadings], most: usize) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    let here = now.iter().map(|subject| &subject.id).filter(|id| is_word(id));
    for id in here.chain(before) {
        if ids.len() < most && !ids.contains(id) {
            ids.push(id.clone());
        }
    }
    ids
}

fn watches(before: &Memory, findings: &[Finding]) -> BTreeMap<String, BTreeMap<String, Watch>> {
    let mut next: BTreeMap<String, BTreeMap<String, Watch>> = BTreeMap::new();
    let mut count = 0;
    // What is known already comes first, so that a node cannot push it out.
    let known = |finding: &&Finding| before.watch(&finding.check.id, finding.subject.id()).is_some();
    let (old, new): (Vec<&Finding>, Vec<&Finding>) = findings.iter().partition(known);
    for finding in old.into_iter().chain(new) {
        let Some(watch) = finding.watch.as_deref().filter(|watch| !watch.is_blank()) else { continue };
        let (check, subject) = (&*finding.check.id, finding.subject.id());
        if count < MOST_WATCHES && check.len() <= MOST_WORD && subject.len() <= 2 * MOST_WORD {
            let of_check = next.entry(check.to_owned()).or_default();
            count += usize::from(of_check.insert(subject.to_owned(), watch.clone()).is_none());
        }
    }
    // A GPU that does not answer, as after a reset that went wrong, comes back with what is known of it.
    let told: BTreeSet<(&str, &str)> =
        findings.iter().map(|finding| (&*finding.check.id, finding.subject.id())).collect();
    for (check, subjects) in &before.watches {
        for (subject, watch) in subjects.iter().filter(|(subject, _)| !told.contains(&(check, subject))) {
            if let Some(watch) = watch.after_silence().filter(|_| count < MOST_WATCHES) {
                count += 1;
                next.entry(check.clone()).or_default().insert(subject.clone(), watch);
            }
        }
    }
    next
}

/// An audit and what was before it, as rules see them.
#[derive(Clone, Debug)]
pub(crate) struct Past<'a> {
    pub memory: Option<&'a Memory>,
    pub now: Moment,
    pub counts: bool,
    pub same_life: bool,
    other_driver: bool,
    full: bool,
    /// Whether there may be earlier audits that could not be read.
    unread: bool,
}

impl<'a> Past<'a> {
    pub fn of(memory: Option<&'a Memory>, signals: &Signals, at: i64) -> Self {
        let now = Moment::of(signals, at);
        let unread = memory.is_some_and(|it| it.unread);
        let memory = memory.filter(|it| !it.unread);
        Self {
            unread,
            counts: counts(memory, &now),
            same_life: memory.is_some_and(|it| it.last.boot == now.boot && it.last.load == now.load),
            other_driver: other_driver(memory, signals),
            full: memory.is_some_and(Memory::is_full),
            memory,
            now,
        }
    }

    /// Whether there is no earlier audit at all.
    pub const fn is_first(&self) -> bool {
        self.memory.is_none() && !self.unread
    }

    /// Returns what is remembered of a check.
    pub fn watch(&self, check: &str, subject: &str) -> Option<&'a Watch> {
        self.memory?.watch(check, subject)
    }

    /// Returns what this audit says, to be put beside what was remembered.
    pub fn now(&self, watch: Option<&Watch>) -> Now {
        Now {
            verdict: Verdict::Na,
            action: crate::verdict::Action::None,
            asked: true,
            decided: false,
            at_once: false,
            at: self.now.at,
            first: self.is_first(),
            counts: self.counts,
            same_life: self.same_life,
            other_driver: self.other_driver,
            full: self.full && watch.is_none(),
            flag: None,
            held: None,
        }
    }

    /// Whether the node booted since the last audit; `None` where that is not known.
    pub fn rebooted(&self) -> Option<bool> {
        let before = self.memory?.last.boot.as_ref()?;
        self.now.boot.as_ref().map(|boot| boot != before)
    }

    /// Returns what a signal of the node was when it was last as it should be.
    pub fn last_good(&self, name: &str) -> Option<u64> {
        let memory = self.memory?;
        match name {
            "nvml_count" => memory.gpus,
            "pstore_files" => memory.crashes,
            "ib_up" => memory.ports_up,
            _ => None,
        }
    }

    fn place(&self, counter: &Counter, subject: Option<&str>) -> Option<(&'a Memory, usize)> {
        let memory = self.memory?;
        let known = match counter.scope {
            Scope::Gpu => &memory.boards,
            Scope::Port => &memory.ports,
            Scope::Node | Scope::Disk => return Some((memory, 0)),
        };
        let id = subject?;
        known.iter().position(|known| known == id).map(|place| (memory, place))
    }

    /// Returns how much a counter that stands at `value` grew, over the shortest window of at least `least_s`.
    pub fn step(&self, counter: &Counter, subject: Option<&str>, value: u64, least_s: u64) -> Option<Step> {
        let (memory, board) = self.place(counter, subject)?;
        let ring = match (counter.life, counter.reading) {
            (Life::Board, _) => {
                let step = memory.totals.since(counter, board, self.now.at, value)?;
                return Some(step).filter(|step| step.window_s >= least_s);
            }
            (_, Reading::Every) => &memory.every,
            (_, Reading::Board) => &memory.board,
            (_, Reading::Deep) => &memory.deep,
            (_, Reading::Port) => &memory.port,
        };
        ring.since(counter, board, &self.now, value, least_s)
    }

    /// Returns in how many audits of these days a counter of a board grew, and by how much.
    pub fn growth(
        &self,
        counter: &Counter,
        subject: Option<&str>,
        value: u64,
        days: i64,
    ) -> Option<(u64, Step)> {
        let (memory, board) = self.place(counter, subject)?;
        memory.totals.growth(counter, board, self.now.at, value, days)
    }
}

/// Whether the driver has another version than at the last audit.
fn other_driver(memory: Option<&Memory>, signals: &Signals) -> bool {
    let now = signals.node.get("driver_version").and_then(Signal::known).and_then(Value::as_str);
    let before = memory.and_then(|memory| memory.driver.as_deref());
    matches!((before, now), (Some(before), Some(now)) if before != now)
}

//! Random schedules of a simulated fleet in virtual time. Every invariant of the module docs is checked at each step
//! against what the test itself knows, never against what the rollout reports.
//!
//! `GPUFLEET_SCHEDULES` is the number of schedules; the index of a schedule is its seed, and a failure prints it.

mod checks;
mod dice;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    panic::{AssertUnwindSafe, catch_unwind},
};

use gpufleet_protocol::Disruption;
use jiff::Timestamp;

use self::{
    checks::check_waves,
    dice::{Dice, policy},
};
use crate::rollout::*;

/// The state of a node's place in the budget, as the test knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    None,
    /// Claimed but not granted: being drained, drained, or being proven idle.
    Claimed {
        drained: bool,
    },
    Out,
    /// The node ended while it had a place.
    Kept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The node's task makes its next step.
    Next(usize),
    Drained(usize),
    StopDraining(usize),
    Proof(usize),
    GiveBack(usize),
    Survey,
    Gate(usize),
    Wake,
    Interrupt,
    Crash,
    Others(usize),
    /// The node stops answering, whatever it waits for.
    Lost(usize),
}

struct Fleet {
    dice: Dice,
    rollout: Rollout,
    fresh: Rollout,
    policy: Policy,
    /// Whether a host was healthy when the play began; the others mostly fail.
    known: Vec<bool>,
    waves: Vec<Wave>,
    elsewhere: usize,
    so_far: Lost,
    /// In milliseconds.
    now: i64,
    due: BinaryHeap<Reverse<(i64, u64, Due, u64)>>,
    sequence: u64,
    /// Events of an earlier generation of a node's task are ignored; the last entry is for events without a node.
    generation: Vec<u64>,
    journal: Vec<(Timestamp, Input, Vec<Action>)>,
    places: Vec<Place>,
    wishes_left: Vec<u8>,
    /// Its class, the number of surveys requested before it, and its time.
    wish: BTreeMap<usize, (Disruption, usize, i64)>,
    proven: BTreeSet<usize>,
    absent: BTreeSet<usize>,
    surveyed: BTreeSet<usize>,
    surveyed_elsewhere: usize,
    surveyed_domains: BTreeMap<usize, usize>,
    truth: BTreeSet<usize>,
    /// The pending survey and the last one: its number, when it was requested, when it was answered.
    asked: usize,
    asked_at: i64,
    answer: Option<(usize, i64, i64)>,
    refused: BTreeSet<usize>,
    wake: Option<i64>,
    started: BTreeSet<usize>,
    ended: BTreeMap<usize, End>,
    /// Its end, and the nodes whose gates were not answered yet once they were checked.
    soak: Option<(i64, Option<BTreeSet<usize>>)>,
    soaked: bool,
    stopped: Option<StopReason>,
    finished: Option<Vec<usize>>,
    steps: usize,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let hosts = 1 + dice.size(20);
        let batches: Vec<Batch> = (0..dice.size(4))
            .map(|_| match dice.size(3) {
                0 => Batch::Canary,
                1 => Batch::Of(Amount::Count(1 + dice.size(5))),
                _ => Batch::Of(Amount::Percent(1.0 + dice.below(100) as f64)),
            })
            .collect();
        let losses = if dice.chance(20) { 15 } else { 0 };
        let broken = if dice.chance(40) { 25 } else { 0 };
        let shapes: Vec<_> = (0..hosts)
            .map(|i| WaveHost {
                class: (!dice.chance(broken)).then(|| (i % 3).to_string()),
                gpus: 8 - usize::from(dice.chance(broken)),
                flaws: 0,
                work: None,
                reachable: !dice.chance(broken / 3),
                late: false,
                gone: dice.chance(losses),
            })
            .collect();
        let waves = plan_waves(&batches, &shapes);
        check_waves(&batches, &shapes, &waves);
        let policy = policy(&mut dice, hosts);
        let elsewhere = if dice.chance(20) { dice.size(3) } else { 0 };
        let so_far = Lost { failed: dice.size(2), unreachable: 0 };
        let rollout =
            Rollout::new(hosts, waves.clone(), policy.clone(), so_far).with_out_elsewhere(elsewhere);
        let now = 1_800_000_000_000 + i64::try_from(dice.below(7 * 86_400)).unwrap() * 1000;
        Self {
            fresh: rollout.clone(),
            rollout,
            policy,
            known: shapes.iter().map(WaveHost::is_known).collect(),
            waves,
            elsewhere,
            so_far,
            now,
            due: BinaryHeap::new(),
            sequence: 0,
            generation: vec![0; hosts + 1],
            journal: Vec::new(),
            places: vec![Place::None; hosts],
            wishes_left: (0..hosts).map(|_| u8::try_from(dice.below(4)).unwrap()).collect(),
            wish: BTreeMap::new(),
            proven: BTreeSet::new(),
            absent: BTreeSet::new(),
            surveyed: BTreeSet::new(),
            surveyed_elsewhere: 0,
            surveyed_domains: BTreeMap::new(),
            truth: BTreeSet::new(),
            asked: 0,
            asked_at: 0,
            answer: None,
            refused: BTreeSet::new(),
            wake: None,
            started: BTreeSet::new(),
            ended: BTreeMap::new(),
            soak: None,
            soaked: false,
            stopped: None,
            finished: None,
            steps: 0,
            dice,
        }
    }

    fn plan(&mut self, due: Due, longest_s: u64) {
        // In milliseconds, so that things happen at once as well as right after one another.
        let delay = if self.dice.chance(20) { 0 } else { self.dice.below(longest_s * 1000) };
        self.plan_at(due, self.now + i64::try_from(delay).unwrap());
    }

    fn plan_at(&mut self, due: Due, at: i64) {
        self.sequence += 1;
        let generation = self.generation[self.owner(due)];
        self.due.push(Reverse((at, self.sequence, due, generation)));
    }

    fn owner(&self, due: Due) -> usize {
        match due {
            Due::Next(host)
            | Due::Drained(host)
            | Due::StopDraining(host)
            | Due::Proof(host)
            | Due::GiveBack(host)
            | Due::Lost(host) => host,
            _ => self.places.len(),
        }
    }

    fn instant(&self) -> Timestamp {
        Timestamp::from_millisecond(self.now).unwrap()
    }

    /// Returns the opening that contains now, from the window and not from the rollout.
    fn opening(&self) -> Option<Opening> {
        self.policy.window.as_ref().map(|window| window.now_or_next(self.instant()))
    }

    fn run(&mut self) {
        for host in 0..self.places.len() {
            if self.dice.chance(5) {
                self.absent.insert(host);
                self.input(Input::OthersOut { host, out: true });
            }
            if self.policy.surveys && self.dice.chance(15) {
                self.truth.insert(host);
            }
            if self.dice.chance(10) {
                self.plan(Due::Others(host), 40_000);
            }
        }
        for (due, percent) in [(Due::Interrupt, 15), (Due::Crash, 25), (Due::Crash, 10)] {
            if self.dice.chance(percent) {
                self.plan(due, if percent == 10 { 90_000 } else { 8000 });
            }
        }
        self.input(Input::Begin);
        while self.finished.is_none() {
            let Some(Reverse((at, _, due, generation))) = self.due.pop() else {
                panic!("nothing is due, and the play is not over: {:#?}", self.rollout)
            };
            self.now = self.now.max(at);
            if generation == self.generation[self.owner(due)] {
                self.happen(due);
            }
            self.steps += 1;
            assert!(self.steps < 20_000, "it never ends");
        }
        assert_eq!(self.started, self.ended.keys().copied().collect::<BTreeSet<_>>(), "started is not ended");
        assert!(self.wish.is_empty(), "wishes without an answer: {:?}", self.wish);
        let never: Vec<usize> = (0..self.places.len()).filter(|host| !self.started.contains(host)).collect();
        assert_eq!(self.finished, Some(never));
        if self.stopped.is_none() {
            let all = self.waves.iter().map(|wave| wave.hosts.len()).sum::<usize>();
            assert_eq!(self.started.len(), all, "somebody was not started, and nothing stopped");
        }
        self.replay(self.journal.len());
    }

    /// Checks that the journal, and any prefix of it, gives the same rollout and the same actions.
    fn replay(&mut self, length: usize) {
        let mut again = self.fresh.clone();
        let prefix = self.dice.size(length + 1);
        let mut at_prefix = None;
        for (index, (now, input, actions)) in self.journal.iter().take(length).enumerate() {
            if index == prefix {
                at_prefix = Some(again.clone());
            }
            assert_eq!(&again.step(*now, input.clone()).unwrap(), actions);
        }
        assert_eq!(again, self.rollout);
        if let Some(mut half) = at_prefix {
            for (now, input, _) in self.journal.iter().take(length).skip(prefix) {
                half.step(*now, input.clone()).unwrap();
            }
            assert_eq!(half, self.rollout);
        }
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Next(host) => self.next(host),
            Due::Drained(host) => match self.dice.size(10) {
                0 => {
                    self.places[host] = Place::None;
                    self.surveyed.insert(host);
                    self.refused.insert(host);
                    self.input(Input::DrainRefused { host, by: "somebody".into() });
                }
                1 => self.drain_failed(host),
                _ => {
                    self.places[host] = Place::Claimed { drained: true };
                    self.input(Input::Drained { host });
                }
            },
            Due::StopDraining(host) => {
                // The drain may have succeeded meanwhile.
                if self.places[host] == (Place::Claimed { drained: false }) {
                    self.generation[host] += 1;
                    self.drain_failed(host);
                }
            }
            Due::Proof(host) => {
                if self.dice.chance(10) {
                    self.input(Input::Busy { host, reason: "a job".into() });
                } else {
                    self.proven.insert(host);
                    self.input(Input::Idle { host });
                }
            }
            Due::GiveBack(host) => {
                if self.dice.chance(80) {
                    self.places[host] = Place::None;
                    self.input(Input::Released { host });
                }
                self.end(host, End::Held);
            }
            Due::Survey if self.dice.chance(3) => self.input(Input::SurveyFailed { why: "silence".into() }),
            Due::Survey => {
                self.answer = Some((self.asked, self.asked_at, self.now));
                let out: Vec<usize> = self.truth.iter().copied().collect();
                self.surveyed = self.truth.union(&std::mem::take(&mut self.refused)).copied().collect();
                self.surveyed_elsewhere = self.dice.size(10) / 9;
                self.surveyed_domains.clear();
                let domains = self.policy.domains.as_ref().map_or(0, |domains| domains.names.len());
                if domains > 0 && self.dice.chance(10) {
                    let domain = self.dice.size(domains);
                    self.surveyed_domains.insert(domain, 1 + self.dice.size(2));
                }
                let (elsewhere, domains) = (self.surveyed_elsewhere, self.surveyed_domains.clone());
                self.input(Input::Surveyed { out, elsewhere, domains });
            }
            Due::Gate(host) => {
                let ok = self.dice.chance(90);
                if let Some((_, Some(left))) = &mut self.soak {
                    left.remove(&host);
                    self.soaked &= ok;
                }
                if !ok {
                    self.ended.insert(host, End::Failed);
                }
                self.input(Input::SoakChecked { host, ok, why: String::new() });
            }
            Due::Wake => {
                if self.wake.is_some_and(|wake| wake <= self.now) {
                    self.wake = None;
                    self.input(Input::Tick);
                }
            }
            Due::Interrupt => self.input(Input::Interrupt),
            Due::Crash => self.crash(),
            Due::Lost(host) => {
                let end = if self.dice.chance(60) { End::Unreachable } else { End::Failed };
                self.end(host, end);
            }
            Due::Others(host) => {
                if self.truth.remove(&host) {
                    return;
                }
                self.truth.insert(host);
                if self.dice.chance(50) {
                    self.plan(Due::Others(host), 20_000);
                }
                if self.dice.chance(20) {
                    let out = self.absent.insert(host) || !self.absent.remove(&host);
                    self.input(Input::OthersOut { host, out });
                }
            }
        }
    }

    fn drain_failed(&mut self, host: usize) {
        let still_out = self.dice.chance(20);
        self.places[host] = if still_out { Place::Claimed { drained: true } } else { Place::None };
        self.input(Input::DrainFailed { host, why: "too long".into(), still_out });
    }

    fn next(&mut self, host: usize) {
        let fails = if self.known[host] { 3 } else { 80 };
        if self.dice.chance(fails) {
            let end = if self.dice.chance(50) { End::Unreachable } else { End::Failed };
            return self.end(host, end);
        }
        if self.wishes_left[host] > 0 {
            self.wishes_left[host] -= 1;
            let class = self.dice.class();
            self.wish.insert(host, (class, self.asked, self.now));
            if self.dice.chance(5) {
                self.plan(Due::Lost(host), 900);
            }
            return self.input(Input::WantsPermit { host, class });
        }
        if self.places[host] != Place::None && self.dice.chance(70) {
            self.places[host] = Place::None;
            self.input(Input::Released { host });
        }
        let end = [End::Done, End::Done, End::Done, End::Done, End::Done, End::Failed, End::Held]
            [self.dice.size(7)];
        self.end(host, end);
    }

    fn end(&mut self, host: usize, end: End) {
        self.generation[host] += 1;
        self.wish.remove(&host);
        self.proven.remove(&host);
        self.ended.insert(host, end);
        if self.places[host] != Place::None {
            // Without drains, a claim alone changes nothing on the node.
            let touched = self.policy.drains || self.places[host] == Place::Out;
            self.places[host] = if end == End::Done || !touched { Place::None } else { Place::Kept };
        }
        if end == End::Unreachable {
            self.absent.insert(host);
        }
        self.input(Input::Ended { host, end });
    }

    fn crash(&mut self) {
        self.replay(self.journal.len());
        for generation in &mut self.generation {
            *generation += 1;
        }
        self.wake = None;
        self.wish.clear();
        self.proven.clear();
        if self.dice.chance(30) {
            self.now += i64::try_from(self.dice.below(100_000_000)).unwrap();
        }
        if self.stopped.as_ref().is_some_and(|reason| !reason.is_lasting()) {
            self.stopped = None;
        }
        for place in &mut self.places {
            if let Place::Claimed { drained } = place {
                // The requested drain may have succeeded.
                *drained = true;
                if !self.policy.drains {
                    *place = Place::None;
                }
            }
        }
        let others: Vec<usize> = self.truth.iter().copied().collect();
        for host in others {
            if self.dice.chance(30) {
                self.plan(Due::Others(host), 9000);
            }
        }
        for host in 0..self.places.len() {
            if self.is_gone(host) && self.dice.chance(40) {
                self.come_back(host);
            }
        }
        if self.dice.chance(40) {
            self.look_beside();
        }
        let unfinished = |host: &&usize| !self.ended.contains_key(host);
        let running: Vec<usize> = self.started.iter().filter(unfinished).copied().collect();
        // Read before the step, which may start further nodes.
        assert_eq!(self.rollout.in_flight(), running);
        self.input(Input::Resume);
        if self.finished.is_none() {
            for host in running {
                self.plan(Due::Next(host), 300);
            }
        }
    }

    /// Resumes other plays before this one, which then leave other nodes behind.
    fn look_beside(&mut self) {
        self.elsewhere = self.dice.size(3);
        for host in 0..self.places.len() {
            let ended = self.ended.get(&host).copied();
            if self.places[host] != Place::None || (self.started.contains(&host) && ended.is_none()) {
                continue;
            }
            if ended == Some(End::Unreachable) || self.dice.chance(10) {
                self.absent.insert(host);
            } else if self.dice.chance(30) {
                self.absent.remove(&host);
            }
        }
        let so_far = SoFar { lost: self.so_far, out_elsewhere: self.elsewhere };
        if let Some(news) = self.rollout.news(so_far, &self.absent) {
            self.input(news);
        }
    }

    fn is_gone(&self, host: usize) -> bool {
        !self.waves.iter().any(|wave| wave.hosts.contains(&host))
    }

    /// Brings back a host that an earlier play had lost; it belongs to the last wave from now on.
    fn come_back(&mut self, host: usize) {
        let current = self.current_wave();
        if self.waves.is_empty() {
            self.waves.push(Wave { label: "all".to_owned(), ..Wave::default() });
        }
        let last = self.waves.len() - 1;
        self.waves[last].hosts.push(host);
        if current == Some(last) {
            self.started.insert(host);
        }
        self.absent.remove(&host);
        self.input(Input::Returned { host });
    }

    fn input(&mut self, input: Input) {
        let now = self.instant();
        let stopped_before = self.stopped.is_some();
        let actions =
            self.rollout.step(now, input.clone()).unwrap_or_else(|error| panic!("{error} at {input:?}"));
        self.journal.push((now, input.clone(), actions.clone()));
        let stops = actions.iter().any(|action| matches!(action, Action::Stop { .. }));
        if stops && self.policy.drains {
            let told: BTreeSet<usize> = actions
                .iter()
                .filter_map(
                    |action| if let Action::StopDraining { host } = action { Some(*host) } else { None },
                )
                .collect();
            let draining: BTreeSet<usize> =
                (0..self.places.len()).filter(|host| self.is_draining(*host)).collect();
            assert_eq!(told, draining, "not everybody who was being drained is given back");
        }
        let mut todo = Vec::new();
        let mut stopped = stopped_before;
        for action in actions {
            assert!(self.finished.is_none(), "{action:?} after the end");
            self.check(&action, stopped);
            match action {
                Action::StartWave { wave } => {
                    assert_eq!(Some(wave), self.current_wave().map_or(Some(0), |wave| Some(wave + 1)));
                    self.soak = None;
                    self.soaked = true;
                }
                Action::Start { host } => {
                    assert!(self.started.insert(host), "host {host} was started twice");
                    if self.dice.chance(3) {
                        todo.push(host);
                    } else {
                        self.plan(Due::Next(host), 300);
                    }
                }
                Action::Survey => {
                    self.asked += 1;
                    self.asked_at = self.now;
                    self.refused.clear();
                    self.plan(Due::Survey, 4);
                }
                Action::Drain { host, .. } => {
                    self.places[host] = Place::Claimed { drained: false };
                    self.plan(Due::Drained(host), 1200);
                }
                Action::StopDraining { host } => self.plan(Due::StopDraining(host), 10),
                Action::ProveIdle { host } => {
                    if self.places[host] == Place::None {
                        self.places[host] = Place::Claimed { drained: false };
                    }
                    self.plan(Due::Proof(host), 20);
                }
                Action::Grant { host, .. } => {
                    self.wish.remove(&host);
                    self.proven.remove(&host);
                    self.places[host] = Place::Out;
                    self.plan(Due::Next(host), 1500);
                }
                Action::Deny { host, .. } => {
                    assert!(self.wish.remove(&host).is_some(), "host {host} was denied what it did not want");
                    self.proven.remove(&host);
                    match self.places[host] {
                        Place::Claimed { drained: false } => self.places[host] = Place::None,
                        Place::Claimed { drained: true } if !self.policy.drains => {
                            self.places[host] = Place::None
                        }
                        _ => {}
                    }
                    match self.places[host] {
                        Place::Claimed { .. } => self.plan(Due::GiveBack(host), 30),
                        _ if self.dice.chance(20) => self.plan(Due::Next(host), 30),
                        _ => todo.push(host),
                    }
                }
                Action::WakeAt { at } => {
                    self.wake = Some(at.as_millisecond());
                    assert!(at > now, "an alarm in the past");
                    let late_ms = if self.dice.chance(20) { 400 } else { 0 };
                    self.plan_at(Due::Wake, at.as_millisecond() + late_ms);
                }
                Action::Soak { until, .. } => self.soak = Some((until.as_millisecond(), None)),
                Action::CheckSoak { hosts, .. } => {
                    for host in &hosts {
                        self.plan(Due::Gate(*host), 30);
                    }
                    if let Some((until, left)) = &mut self.soak {
                        assert!(*until <= self.now, "checked before the soak was over");
                        *left = Some(hosts.into_iter().collect());
                    }
                }
                Action::Stop { reason } => {
                    assert!(!stopped, "stopped twice");
                    stopped = true;
                    self.check_stop(&reason);
                    self.stopped = Some(reason);
                }
                Action::Finish { never_started } => self.finished = Some(never_started),
                Action::FinishWave { .. } | Action::Waits { .. } | Action::WaitsForWindow { .. } => {}
            }
        }
        for host in todo {
            self.end(host, End::Held);
        }
    }

    fn is_draining(&self, host: usize) -> bool {
        self.places[host] == (Place::Claimed { drained: false }) && self.wish.contains_key(&host)
    }

    fn current_wave(&self) -> Option<usize> {
        self.waves.iter().rposition(|wave| wave.hosts.iter().any(|host| self.started.contains(host)))
    }
}

#[test]
fn invariants_hold_on_random_schedules() {
    let begin = std::time::Instant::now();
    let schedules =
        std::env::var("GPUFLEET_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000);
    let only: Option<u64> = std::env::var("GPUFLEET_SCHEDULE").ok().and_then(|text| text.parse().ok());
    let mut seen = BTreeMap::<&str, u64>::new();
    for seed in only.map_or(0..schedules, |seed| seed..seed + 1) {
        let mut fleet = Fleet::new(seed);
        if let Err(cause) = catch_unwind(AssertUnwindSafe(|| fleet.run())) {
            let cause = cause
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                .unwrap_or_default();
            let tail: Vec<String> = fleet
                .journal
                .iter()
                .skip(fleet.journal.len().saturating_sub(25))
                .map(|(now, input, actions)| format!("{now} {input:?} -> {actions:?}"))
                .collect();
            panic!("schedule {seed} (GPUFLEET_SCHEDULE={seed} runs it alone): {cause}\n{}", tail.join("\n"));
        }
        *seen.entry("aside").or_default() += u64::from(fleet.started_aside());
        for (_, input, actions) in &fleet.journal {
            *seen.entry("input").or_default() += 1;
            *seen.entry(name(input)).or_default() += 1;
            for action in actions {
                *seen.entry(action_name(action)).or_default() += 1;
            }
        }
    }
    let inputs: u64 = seen.get("input").copied().unwrap_or_default();
    let played = only.map_or(schedules, |_| 1);
    println!(
        "{played} random schedules, {inputs} inputs: every invariant held; {:.0} s\n{seen:?}",
        begin.elapsed().as_secs_f64()
    );
    // Schedules in which something never happens prove nothing about it.
    if only.is_none() && schedules >= 2000 {
        for what in NAMES {
            assert!(seen.get(what).copied().unwrap_or_default() >= 10, "{what} is rare: {seen:#?}");
        }
    }
}

const NAMES: [&str; 21] = [
    "drain",
    "drain refused",
    "drain failed",
    "survey failed",
    "resume",
    "returned",
    "gate failed",
    "survey",
    "grant",
    "late grant",
    "stop draining",
    "soak",
    "waits for window",
    "too short",
    "domain spent",
    "budget spent",
    "canary held",
    "canary failed",
    "aside",
    "window closed",
    "unreachable bound",
];

fn name(input: &Input) -> &'static str {
    match input {
        Input::DrainRefused { .. } => "drain refused",
        Input::DrainFailed { .. } => "drain failed",
        Input::SurveyFailed { .. } => "survey failed",
        Input::Resume => "resume",
        Input::Returned { .. } => "returned",
        Input::SoakChecked { ok: false, .. } => "gate failed",
        _ => "another input",
    }
}

fn action_name(action: &Action) -> &'static str {
    match action {
        Action::Survey => "survey",
        Action::Drain { .. } => "drain",
        Action::Grant { deadline: None, .. } => "late grant",
        Action::Grant { .. } => "grant",
        Action::StopDraining { .. } => "stop draining",
        Action::Soak { .. } => "soak",
        Action::WaitsForWindow { .. } => "waits for window",
        Action::Deny { why: Denial::WindowTooShort { .. }, .. } => "too short",
        Action::Deny { why: Denial::DomainSpent { .. }, .. } => "domain spent",
        Action::Deny { why: Denial::BudgetSpent { .. }, .. } => "budget spent",
        Action::Stop { reason: StopReason::CanaryHeld { .. } } => "canary held",
        Action::Stop { reason: StopReason::Canary { .. } } => "canary failed",
        Action::Stop { reason: StopReason::WindowClosed { .. } } => "window closed",
        Action::Stop { reason: StopReason::Unreachable { .. } } => "unreachable bound",
        _ => "another action",
    }
}

//! What earlier journals teach: how long which nodes were out, and what of that is believed.

use std::collections::HashMap;

use gpufleet_protocol::{
    Disruption,
    facts::{Facts, GpuFacts, GpuSystem},
};
use jiff::Timestamp;
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::{Journal, PLAYBOOK, RunDir, RunId, World, engine, events_in, hosts, started, virtual_time};
use crate::{
    engine::{
        DurationHistory, Recorder,
        replay::durations::{Figures, LEAST_NODES, Models},
        work_of,
    },
    event::{
        DrainStep, DurationOrigin, EVENT_VERSION, Event, NodeState, OutagePart, PlayStarted, Verb, What,
        WorstPart,
    },
    index::PlayIndex,
    playbook::{Overrides, Program},
    rollout::Window,
};

const WORK: &str = "6f1c";

/// A journal that is being written, at a moment in seconds.
struct Tape {
    events: Vec<Event>,
    now: i64,
    run: String,
}

impl Tape {
    fn of(run: &str, work: &str) -> Self {
        let mut tape = Self { events: Vec::new(), now: 0, run: run.to_owned() };
        tape.push(What::RunStarted(crate::event::RunStarted {
            run_id: run.to_owned(),
            ..started(&hosts(9))
        }));
        tape.push(What::PlayStarted(PlayStarted {
            play: PlayIndex(0),
            name: "rolling".to_owned(),
            hosts: hosts(9),
            waves: Vec::new(),
            max_unavailable: 1,
            policy: None,
            work: Some(work.to_owned()),
        }));
        tape
    }

    fn push(&mut self, what: What) {
        let seq = self.events.len() as u64;
        self.events.push(Event { seq, at: Timestamp::from_second(self.now).unwrap(), what });
    }

    fn after(&mut self, seconds: u64, what: What) {
        self.now += i64::try_from(seconds).unwrap();
        self.push(what);
    }

    fn begins(&mut self, host: &str, run: &str) {
        let step = DrainStep::Begun {
            scheduler: "slurm".to_owned(),
            node: host.to_owned(),
            run: run.to_owned(),
            nonce: "n".to_owned(),
        };
        self.push(What::Drain { host: host.to_owned(), step });
    }

    fn model(&mut self, host: &str, model: &str) {
        let gpus = vec![GpuFacts { name: model.to_owned(), ..GpuFacts::default() }];
        let facts = Facts { gpu: GpuSystem { gpus, ..GpuSystem::default() }, ..Facts::default() };
        self.push(What::FactsRead { host: host.to_owned(), facts: Box::new(facts) });
    }

    /// A stay out of service, from the drain to the end.
    fn stay(&mut self, host: &str, stay: Stay) {
        let name = || host.to_owned();
        if let Some(drain) = stay.drain {
            let run = self.run.clone();
            self.begins(host, &run);
            self.after(drain, What::Drain { host: name(), step: DrainStep::Drained });
        }
        let granted = |class| What::PermitGranted { host: name(), class };
        if stay.class == Disruption::Reboot {
            self.push(granted(Disruption::Clients));
            let (boot_id, deadline) = ("old".to_owned(), None);
            self.push(granted(Disruption::Reboot));
            self.push(What::RebootIssued { host: name(), boot_id, why: Vec::new(), deadline });
            let rebooted = What::Rebooted { host: name(), boot_id: "new".to_owned(), seconds: 0 };
            self.after(stay.reboot, rebooted);
        } else {
            self.push(granted(stay.class));
        }
        self.after(stay.work, What::Drain { host: name(), step: DrainStep::GivenBack });
        self.push(What::Released { host: name() });
        self.push(What::NodeState { host: name(), state: stay.end, detail: None });
    }

    fn stays(mut self, hosts: &[String], stay: Stay) -> Self {
        hosts.iter().for_each(|host| self.stay(host, stay));
        self
    }
}

#[derive(Clone, Copy, Debug)]
struct Stay {
    class: Disruption,
    drain: Option<u64>,
    reboot: u64,
    work: u64,
    end: NodeState,
}

const STAY: Stay =
    Stay { class: Disruption::Reboot, drain: Some(300), reboot: 400, work: 500, end: NodeState::Done };

fn of(tapes: &[&Tape]) -> DurationHistory {
    let mut learned = DurationHistory::of(WORK.to_owned());
    tapes.iter().for_each(|tape| learned.add(&tape.events));
    learned
}

fn figures(learned: &DurationHistory, class: Disruption) -> Option<Figures> {
    learned.figures(class, &Models::new())
}

fn seconds(figures: &Figures, part: OutagePart) -> Option<u64> {
    figures.of(part, 3600).map(|(seconds, _)| seconds)
}

#[test]
fn the_longest_times_count_with_a_margin() {
    let mut first = Tape::of("A", WORK).stays(&hosts(4), STAY);
    first.stay("gpu002", Stay { class: Disruption::Reboot, drain: Some(900), reboot: 100, work: 10, ..STAY });
    let second = Tape::of("B", WORK).stays(&hosts(5)[3..], Stay { work: 599, ..STAY });
    let learned = of(&[&first, &second]);
    let seen = figures(&learned, Disruption::Reboot).expect("five nodes");
    assert_eq!(seen.of(OutagePart::Drain, 7200), Some((1350, DurationOrigin::Learned { nodes: 5, runs: 2 })));
    assert_eq!(seconds(&seen, OutagePart::Reboot), Some(600));
    assert_eq!(seconds(&seen, OutagePart::Work), Some(899), "longer than the default, and used");
    assert_eq!(seconds(&seen, OutagePart::PowerCycle), None);
    assert_eq!(seen.of(OutagePart::Drain, 1000).unwrap().0, 1000, "a timeout ends it");
    assert_eq!(seen.of(OutagePart::Drain, 800).unwrap().0, 900, "what was seen is seen");
    // Nothing is said of other classes.
    assert_eq!(figures(&learned, Disruption::Clients), None);
    assert_eq!(figures(&learned, Disruption::GpuReset), None);
}

#[test]
fn quick_nodes_do_not_make_a_window_tight() {
    let quick = Stay { drain: Some(1), reboot: 2, work: 1, ..STAY };
    let seen = of(&[&Tape::of("A", WORK).stays(&hosts(5), quick)]);
    let seen = figures(&seen, Disruption::Reboot).unwrap();
    assert_eq!(
        [OutagePart::Drain, OutagePart::Reboot, OutagePart::Work].map(|part| seconds(&seen, part).unwrap()),
        [60, 120, 240]
    );
}

#[test]
fn where_nobody_drains_the_permit_begins_it() {
    let stay = Stay { class: Disruption::GpuReset, drain: None, work: 1000, ..STAY };
    let seen = of(&[&Tape::of("A", WORK).stays(&hosts(5), stay)]);
    let seen = figures(&seen, Disruption::GpuReset).unwrap();
    assert_eq!((seconds(&seen, OutagePart::Drain), seconds(&seen, OutagePart::Reboot)), (None, None));
    assert_eq!(seconds(&seen, OutagePart::Work), Some(1500));
}

#[test]
fn few_nodes_teach_nothing_however_often_they_are_seen() {
    let few = hosts(LEAST_NODES - 1);
    let tapes = ["A", "B", "C"].map(|run| Tape::of(run, WORK).stays(&few, STAY));
    let learned = of(&tapes.each_ref());
    assert_eq!(figures(&learned, Disruption::Reboot), None);
}

#[test]
fn other_work_teaches_nothing() {
    assert_eq!(of(&[&Tape::of("A", "other").stays(&hosts(9), STAY)]), DurationHistory::of(WORK.to_owned()));
    let mut old = Tape::of("A", WORK).stays(&hosts(9), STAY);
    for event in &mut old.events {
        if let What::PlayStarted(play) = &mut event.what {
            play.work = None;
        }
    }
    assert_eq!(of(&[&old]), DurationHistory::of(WORK.to_owned()));
    let mut nothing = DurationHistory::default();
    nothing.add(&old.events);
    assert_eq!(nothing, DurationHistory::default());
    // A play after it does something else.
    let mut two = Tape::of("A", WORK);
    let after = Tape::of("A", "other").stays(&hosts(9), STAY);
    two.events.extend(after.events.into_iter().skip(1));
    assert_eq!(of(&[&two]), DurationHistory::of(WORK.to_owned()));
}

#[test]
fn only_nodes_that_were_done_count() {
    for end in [NodeState::Failed, NodeState::Held, NodeState::Unreachable, NodeState::Compliant] {
        let mut tape = Tape::of("A", WORK).stays(&hosts(4), STAY);
        tape.stay("gpu005", Stay { end, ..STAY });
        assert_eq!(figures(&of(&[&tape]), Disruption::Reboot), None, "{end}");
    }
}

/// Four good stays and one to which this happened between its permit and its release.
fn with_one(what: impl Fn(&mut Tape)) -> Option<Figures> {
    let mut tape = Tape::of("A", WORK).stays(&hosts(4), STAY);
    let from = tape.events.len();
    tape.stay("gpu005", STAY);
    let rest: Vec<Event> = tape.events.split_off(from + 5);
    what(&mut tape);
    tape.events.extend(rest);
    figures(&of(&[&tape]), Disruption::Reboot)
}

#[test]
fn what_was_cut_off_or_rescued_is_not_measured() {
    assert!(with_one(|_| {}).is_some());
    let resumed = || What::RunResumed { epoch: 2, who: "test".to_owned(), version: EVENT_VERSION };
    assert_eq!(with_one(|tape| tape.push(resumed())), None);
    let host = || "gpu005".to_owned();
    assert_eq!(with_one(|tape| tape.push(What::PowerCycled { host: host(), deadline: None })), None);
    let stuck = || DrainStep::Stuck { why: "no answer".to_owned() };
    assert_eq!(with_one(|tape| tape.push(What::Drain { host: host(), step: stuck() })), None);
    // A node that is drained anew after that is measured again.
    let again = |tape: &mut Tape| {
        tape.push(resumed());
        tape.stay("gpu005", STAY);
    };
    assert!(with_one(again).is_some());
}

#[test]
fn a_drain_that_was_taken_over_is_not_measured() {
    let mut tape = Tape::of("A", WORK).stays(&hosts(4), STAY);
    let from = tape.events.len();
    tape.stay("gpu005", STAY);
    let What::Drain { step: DrainStep::Begun { run, .. }, .. } = &mut tape.events[from].what else {
        panic!("a stay begins with its drain");
    };
    *run = "LOST".to_owned();
    assert_eq!(figures(&of(&[&tape]), Disruption::Reboot), None);
}

#[test]
fn a_clock_that_was_set_is_no_measure() {
    let mut tape = Tape::of("A", WORK).stays(&hosts(4), STAY);
    let from = tape.events.len();
    tape.stay("gpu005", STAY);
    for (shift, counts) in [(0, true), (-3600, false), (86_400, false)] {
        let mut set = tape.events.clone();
        for event in &mut set[from + 6..] {
            event.at = Timestamp::from_second(event.at.as_second() + shift).unwrap();
        }
        let set = Tape { events: set, now: 0, run: "A".to_owned() };
        assert_eq!(figures(&of(&[&set]), Disruption::Reboot).is_some(), counts, "{shift}");
    }
}

#[test]
fn a_model_that_was_never_measured_keeps_the_defaults() {
    let mut tape = Tape::of("A", WORK);
    hosts(5).iter().for_each(|host| tape.model(host, "H100"));
    tape.model("gpu009", "A100");
    let learned = of(&[&tape.stays(&hosts(5), STAY)]);
    let with = |models: &[&str]| {
        let models: Models = models.iter().map(ToString::to_string).collect();
        learned.figures(Disruption::Reboot, &models).is_some()
    };
    assert!(with(&["H100"]) && with(&[]));
    assert!(!with(&["A100"]) && !with(&["A100", "H100"]));
}

fn stay() -> impl Strategy<Value = Stay> {
    let class = prop::sample::select(vec![Disruption::Clients, Disruption::GpuReset, Disruption::Reboot]);
    (class, any::<bool>(), 0_u64..9000, 0_u64..3000, 0_u64..4000).prop_map(
        |(class, drains, drain, reboot, work)| Stay {
            class,
            drain: drains.then_some(drain),
            reboot,
            work,
            end: NodeState::Done,
        },
    )
}

proptest! {
    #[test]
    fn nothing_that_was_seen_took_longer(
        runs in prop::collection::vec(prop::collection::vec((1_usize..9, stay()), 0..12), 1..4),
        default in 600_u64..8000,
    ) {
        let names = hosts(9);
        let mut tapes = Vec::new();
        for (number, run) in runs.iter().enumerate() {
            let mut tape = Tape::of(&format!("R{number}"), WORK);
            run.iter().for_each(|(host, stay)| tape.stay(&names[*host], *stay));
            tapes.push(tape);
        }
        let mut reversed: Vec<&Tape> = tapes.iter().collect();
        let learned = of(&reversed);
        reversed.reverse();
        prop_assert_eq!(&learned, &of(&reversed), "in any order");
        for class in [Disruption::Clients, Disruption::GpuReset, Disruption::Reboot] {
            let seen: Vec<&(usize, Stay)> =
                runs.iter().flatten().filter(|(_, stay)| stay.class == class).collect();
            let nodes: std::collections::BTreeSet<usize> = seen.iter().map(|(host, _)| *host).collect();
            let Some(figures) = figures(&learned, class) else {
                prop_assert!(nodes.len() < LEAST_NODES);
                continue;
            };
            prop_assert!(nodes.len() >= LEAST_NODES);
            let longest = |of: &dyn Fn(&Stay) -> Option<u64>| seen.iter().filter_map(|(_, stay)| of(stay)).max();
            let reboots = (class == Disruption::Reboot).then_some(());
            for (part, longest) in [
                (OutagePart::Drain, longest(&|stay| stay.drain)),
                (OutagePart::Reboot, longest(&|stay| reboots.map(|()| stay.reboot))),
                (OutagePart::Work, longest(&|stay| Some(stay.work))),
            ] {
                let figure = figures.of(part, default).map(|(seconds, _)| seconds);
                prop_assert_eq!(figure.is_some(), longest.is_some());
                if let (Some(figure), Some(longest)) = (figure, longest) {
                    prop_assert!(figure >= longest && figure >= 60);
                    prop_assert!(figure <= (longest * 2).max(240));
                    prop_assert!(part == OutagePart::Work || figure <= default.max(longest));
                }
            }
        }
    }

    #[test]
    fn a_journal_that_makes_no_sense_is_survived(
        stays in prop::collection::vec((0_usize..9, stay()), 1..8),
        picked in prop::collection::vec(0_usize..60, 0..80),
    ) {
        let (names, mut tape) = (hosts(9), Tape::of("A", WORK));
        stays.iter().for_each(|(host, stay)| tape.stay(&names[*host], *stay));
        let whole = tape.events.clone();
        let events = picked.iter().filter_map(|at| whole.get(*at).cloned()).collect();
        let mixed = Tape { events, now: 0, run: String::new() };
        let learned = of(&[&tape, &mixed]);
        for class in [Disruption::Clients, Disruption::GpuReset, Disruption::Reboot] {
            if let Some(figures) = figures(&learned, class) {
                prop_assert!(figures.of(OutagePart::Work, 600).unwrap().0 >= 240);
            }
        }
    }
}

fn work(rollout: &str, tasks: &str) -> String {
    let text = format!("- hosts: all\n  rollout: {{{rollout}}}\n  tasks:\n{tasks}");
    let files: HashMap<String, String> = [("play.yml".to_owned(), text)].into();
    let program = Program::load(&["play.yml"], &files).unwrap_or_else(|errors| panic!("{errors}"));
    work_of(&program.plays[0])
}

#[test]
fn the_same_work_is_known_again() {
    let tasks = "    - gpu_ecc: {mode: enabled}\n    - reboot:\n";
    let same = work("drain: slurm", tasks);
    assert_eq!(same.len(), 64);
    for (rollout, tasks) in [
        (
            "drain: slurm, waves: [1, 50%], max_unavailable: 2, soak: 5m, window: 'daily 01:00-05:00 UTC'",
            tasks,
        ),
        ("drain: {slurm: {timeout: 5m}}", tasks),
        ("drain: slurm", "    # with a comment\n    - gpu_ecc: {mode: enabled}\n    - reboot:\n"),
    ] {
        assert_eq!(work(rollout, tasks), same, "{rollout}\n{tasks}");
    }
    let mut others = vec![same];
    for (rollout, tasks) in [
        ("drain: none", tasks),
        ("drain: {slurm: {notice: {requeue: true}}}", tasks),
        ("drain: slurm, reboot: {via: slurm}", tasks),
        ("drain: slurm, health_gate: [{command: /bin/a}]", tasks),
        ("drain: slurm, health_gate: [{command: /bin/b}]", tasks),
        ("drain: {command: {drain: a, is_idle: b, resume: c}}", tasks),
        ("drain: {command: {drain: a, is_idle: b, resume: d}}", tasks),
        ("drain: slurm", "    - gpu_ecc: {mode: disabled}\n    - reboot:\n"),
        ("drain: slurm", "    - gpu_ecc: {mode: enabled}\n    - reboot: {when: always}\n"),
        ("drain: slurm", "    - gpu_ecc: {mode: enabled}\n      when: big\n    - reboot:\n"),
        ("drain: slurm", "    - gpu_ecc: {mode: enabled}\n      loop: [1]\n    - reboot:\n"),
        ("drain: slurm", "    - gpu_ecc: {mode: enabled}\n    - reboot:\n    - command: /bin/more\n"),
    ] {
        others.push(work(rollout, tasks));
    }
    let different: std::collections::BTreeSet<&String> = others.iter().collect();
    assert_eq!(different.len(), others.len());
}

/// The events of a run, or of a plan, over a fleet that nothing was done to.
async fn events_of(verb: Verb, learned: Vec<DurationHistory>, window: Option<&str>) -> Vec<Event> {
    let (hosts, state) = (hosts(5), tempfile::tempdir().unwrap());
    let world = World::new(&hosts, true);
    let dir = RunDir::new(state.path(), &RunId::generate());
    let mut recorder = Recorder::new(Journal::create(&dir).unwrap(), Vec::new(), Timestamp::now);
    let (_keep, mut interrupts) = mpsc::channel(1);
    let mut engine = engine(PLAYBOOK, &world, &hosts, 1);
    engine.plays.durations = learned;
    engine.options.verb = verb;
    engine.options.rollout.overrides =
        Overrides { window: window.map(|text| Window::parse(text).unwrap()), ..Overrides::default() };
    let result = engine.run(started(&hosts), &mut recorder, &mut interrupts).await.unwrap();
    assert_eq!(result.stop, None);
    recorder.finish().unwrap();
    events_in(&dir)
}

/// What was said of the first play's reboots.
fn said(events: &[Event]) -> (String, Vec<WorstPart>) {
    let play = events.iter().find_map(|event| match &event.what {
        What::PlayStarted(play) => Some(play),
        _ => None,
    });
    let play = play.unwrap();
    let case = play.policy.as_ref().unwrap().worst_case.last().unwrap();
    assert_eq!(case.class, Disruption::Reboot);
    (play.work.clone().unwrap(), case.parts.clone())
}

#[test]
fn a_plan_knows_what_an_earlier_run_took() {
    virtual_time(async {
        let first = events_of(Verb::Run, Vec::new(), None).await;
        let (work, parts) = said(&first);
        let part = |what, seconds, from| WorstPart { what, seconds, from };
        let drain = part(OutagePart::Drain, 3600, DurationOrigin::Declared);
        let unknown = vec![
            drain,
            part(OutagePart::Reboot, 1200, DurationOrigin::Default),
            part(OutagePart::Work, 600, DurationOrigin::Default),
        ];
        assert_eq!(parts, unknown);

        let mut learned = DurationHistory::of(work);
        learned.add(&first);
        let from = DurationOrigin::Learned { nodes: 5, runs: 1 };
        // Why the least of each: the wall clock, which stands in the journal, hardly went on.
        let known = vec![drain, part(OutagePart::Reboot, 120, from), part(OutagePart::Work, 240, from)];
        let window = Some("daily 01:00-05:00 UTC");
        let second = events_of(Verb::Plan, vec![learned.clone()], window).await;
        assert_eq!(said(&second).1, known);
        let recorded = serde_json::to_value(said(&second).1[2]).unwrap();
        let expected =
            r#"{"what": "work", "seconds": 240, "from": {"source": "learned", "nodes": 5, "runs": 1}}"#;
        assert_eq!(recorded, serde_json::from_str::<serde_json::Value>(expected).unwrap());

        let without = events_of(Verb::Plan, vec![learned], None).await;
        assert_eq!(said(&without).1, unknown, "nothing needs it without a window");
        let beyond = events_of(Verb::Plan, Vec::new(), window).await;
        assert_eq!(said(&beyond).1, unknown);
    });
}

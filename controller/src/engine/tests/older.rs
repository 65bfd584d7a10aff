//! Journals that earlier versions wrote: they are read, and their runs go on.
//!
//! `recorded/version-1.jsonl` is the journal of a whole run of the common playbook over two hosts, as gpufleet wrote it with
//! events of version 1: what a play began with stood in the event of its start, and every position had the column 1.

use std::fs;

use super::{
    PLAYBOOK, RunDir, RunId, World, events_in, hosts, outcome, process, read_for_resume, undisturbed,
    virtual_time,
};
use crate::{
    event::{EVENT_VERSION, Event, What},
    index::PlayIndex,
    journal::{Entry, JournalError, Record, Replayed},
    report::{RunModel, Standing},
    rollout::SoFar,
};

const JOURNAL: &str = include_str!("recorded/version-1.jsonl");
const SEALED: &str = include_str!("recorded/version-1.sealed.jsonl");

/// A state folder with the first records of the journal, up to the one that `is_last` knows.
fn recorded(is_last: impl Fn(&str) -> bool) -> (tempfile::TempDir, RunDir) {
    let state = tempfile::tempdir().unwrap();
    let dir = RunDir::new(state.path(), &RunId::generate());
    fs::create_dir_all(dir.path()).unwrap();
    let last = JOURNAL.lines().position(is_last).expect("such a record");
    let kept: Vec<&str> = JOURNAL.split_inclusive('\n').take(last + 1).collect();
    fs::write(dir.journal(), kept.concat()).unwrap();
    fs::write(dir.sealed(), SEALED).unwrap();
    (state, dir)
}

fn is_finished(line: &str, op_id: &str) -> bool {
    line.contains("\"task_finished\"") && line.contains(op_id)
}

#[test]
fn a_whole_journal_is_read() {
    let (_state, dir) = recorded(|line| line.contains("\"node_finished\"") && line.contains("gpu002"));
    let records = read_for_resume(&dir).unwrap();
    let lines: Vec<&str> = JOURNAL.lines().take(records.last().unwrap().seq as usize + 1).collect();
    let mut events: Vec<Event> = records.iter().cloned().filter_map(Record::into_event).collect();
    let What::RunStarted(started) = &mut events[0].what else { panic!("a run begins with what it is") };
    assert_eq!(std::mem::replace(&mut started.version, EVENT_VERSION), 1);
    assert_eq!(events_in(&dir), events, "they are given in the shapes of this version");
    assert!(events.len() < lines.len(), "what only a resume reads is no event");
    let model = RunModel::of(&events);
    assert_eq!((model.standing(), model.nodes().len()), (Standing::CutOff, 2));
    assert!(model.nodes().iter().all(|node| node.state == crate::event::NodeState::Done));

    let began = records.iter().filter_map(|record| match record.what {
        Entry::Replay(Replayed::PlayBeganWith { play, so_far }) => Some((record.seq, play, so_far)),
        _ => None,
    });
    let starts = events.iter().filter_map(|event| match &event.what {
        What::PlayStarted(play) => Some((event.seq, play.play, SoFar::default())),
        _ => None,
    });
    let starts: Vec<(u64, PlayIndex, SoFar)> = starts.collect();
    assert_eq!(began.collect::<Vec<_>>(), starts);
    assert_eq!(starts.len(), 2);
    let secrets = records.iter().filter(|record| {
        matches!(&record.what, Entry::Replay(Replayed::Fed { fed: Some(_), secret: true, .. }))
    });
    assert_eq!(secrets.count(), 2, "what was sealed is there");

    let changes: Vec<(String, Option<String>, String)> = events
        .iter()
        .filter_map(|event| match &event.what {
            What::TaskFinished { report, .. } => report.changes.first(),
            _ => None,
        })
        .map(|change| (change.what(), change.from_text(), change.to_text()))
        .collect();
    for (what, from, to) in [("vm.swappiness", None, "10"), ("power limit", Some("700 W"), "500 W")] {
        assert!(changes.contains(&(what.to_owned(), from.map(str::to_owned), to.to_owned())), "{changes:?}");
    }

    // What is written again is what was read, but for the column, what moved, and changes, which were texts.
    for (record, line) in records
        .iter()
        .filter(|record| !starts.iter().any(|(seq, ..)| *seq == record.seq))
        .zip(lines.iter().filter(|line| !line.contains("\"play_started\"")))
    {
        if !line.contains("\"secret\":true") && !line.contains(r#""changes":[{"#) {
            assert_eq!(serde_json::to_string(record).unwrap(), *line);
        }
    }
}

#[test]
fn a_run_goes_on_from_it_as_if_nothing_had_been() {
    assert!(PLAYBOOK.contains("/bin/secret"));
    virtual_time(async {
        let hosts = hosts(2);
        let (_state, dir) = recorded(|line| is_finished(line, "\"0/tasks.2@gpu001\""));
        let world = World::new(&hosts, false);
        world.with("gpu001", |machine| {
            machine.node.real.sysctl.insert("vm.swappiness".to_owned(), "10".to_owned());
            machine.ran = ["Argv([\"/bin/once\"])", "Argv([\"/bin/secret\"])"].map(str::to_owned).to_vec();
        });
        let result = process(&world, &hosts, &dir, 2).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        assert_eq!(outcome(&world, &hosts), undisturbed_in_a_thread());
        let text = fs::read_to_string(dir.journal()).unwrap();
        let version = format!("\"version\":{EVENT_VERSION}");
        assert!(text.lines().any(|line| line.contains("\"run_resumed\"") && line.contains(&version)));
        let newer = text.replacen(&version, "\"version\":99", 1);
        fs::write(dir.journal(), newer).unwrap();
        assert!(matches!(read_for_resume(&dir), Err(JournalError::Newer { found: 99, .. })));
    });
}

#[test]
fn a_run_that_only_had_to_end_does_nothing_again() {
    virtual_time(async {
        let hosts = hosts(2);
        let world = World::new(&hosts, false);
        let whole = tempfile::tempdir().unwrap();
        process(&world, &hosts, &RunDir::new(whole.path(), &RunId::generate()), 1).await.unwrap();
        let (_state, dir) = recorded(|line| is_finished(line, "\"1/tasks.0@gpu002\""));
        let before = outcome(&world, &hosts);
        let result = process(&world, &hosts, &dir, 2).await.unwrap();
        assert_eq!((result.stop, result.out_of_service), (None, Vec::new()));
        assert_eq!(outcome(&world, &hosts), before);
        let ends =
            events_in(&dir).into_iter().filter(|event| matches!(event.what, What::NodeFinished { .. }));
        assert_eq!(ends.count(), 2);
    });
}

/// A runtime cannot begin within another one.
fn undisturbed_in_a_thread() -> Vec<String> {
    std::thread::spawn(|| undisturbed(2)).join().unwrap()
}

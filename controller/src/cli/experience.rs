//! What runs that were recorded here teach about the durations of plays.
//!
//! Owns how far back and how much is read. An old journal never fails a run: one that cannot be read is left out.

use std::path::Path;

use gpufleet::{
    engine::{DurationHistory, work_of},
    event::{Event, What},
    journal::{RunDir, RunId, newest_runs, skim},
    playbook::{Overrides, Program},
};

/// Runs whose beginning is looked at.
const LOOKED_AT: usize = 200;
/// Runs of the same work that count.
const RUNS: usize = 20;
/// The largest journal that is read, in bytes.
const LARGEST: u64 = 64 << 20;
/// All that is read, in bytes.
const MOST: u64 = 256 << 20;

/// What earlier runs show of each play; nothing of plays without a window, which need no durations.
pub fn learned(
    program: &Program,
    overrides: &Overrides,
    state_dir: &Path,
    own: &RunId,
) -> Vec<DurationHistory> {
    let mut works: Vec<Option<String>> = Vec::new();
    for play in &program.plays {
        let has_window = play.policy.overridden(overrides).window.is_some();
        works.push(has_window.then(|| work_of(play)));
    }
    let mut learned: Vec<DurationHistory> =
        works.iter().map(|work| work.clone().map(DurationHistory::of).unwrap_or_default()).collect();
    if works.iter().all(Option::is_none) {
        return learned;
    }
    let (mut runs, mut bytes) = (0, 0);
    for run in newest_runs(state_dir).into_iter().filter(|run| run != own).take(LOOKED_AT) {
        let dir = RunDir::new(state_dir, &run);
        bytes += std::fs::metadata(dir.journal()).map_or(0, |journal| journal.len());
        if runs == RUNS || bytes > MOST {
            break;
        }
        let Some(beginning) = skim(&dir, &["run_started", "play_started"], LARGEST) else {
            tracing::debug!(%run, "its journal is not looked at for durations");
            continue;
        };
        if !is_of(&beginning, &works) {
            continue;
        }
        let Some(events) = skim(&dir, &DurationHistory::KINDS, LARGEST) else { continue };
        learned.iter_mut().for_each(|learned| learned.add(&events));
        runs += 1;
    }
    learned
}

/// Whether it changed nodes, with some of this work.
fn is_of(beginning: &[Event], works: &[Option<String>]) -> bool {
    let writes = beginning.iter().any(|event| match &event.what {
        What::RunStarted(started) => started.verb.writes(),
        _ => false,
    });
    writes
        && beginning.iter().any(|event| match &event.what {
            What::PlayStarted(play) => play.work.is_some() && works.contains(&play.work),
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, fs};

    use gpufleet::{
        event::{NodeState, PlayStarted, RunStarted, Verb},
        index::PlayIndex,
        journal::Journal,
        rollout::Window,
    };
    use gpufleet_protocol::Disruption;

    use super::*;

    fn program() -> Program {
        let text = "- hosts: all\n  tasks: [{gpu_ecc: {mode: enabled}}]\n".to_owned();
        let files: HashMap<String, String> = [("play.yml".to_owned(), text)].into();
        Program::load(&["play.yml"], &files).unwrap()
    }

    fn window() -> Overrides {
        Overrides { window: Window::parse("daily 01:00-05:00 UTC").ok(), ..Overrides::default() }
    }

    /// A journal in which these nodes were out.
    fn record(state_dir: &Path, verb: Verb, nodes: std::ops::Range<u8>) -> RunId {
        let run = RunId::generate();
        let journal = Journal::create(&RunDir::new(state_dir, &run)).unwrap();
        let started = RunStarted::of(run.to_string(), verb);
        let play = PlayStarted {
            play: PlayIndex(0),
            name: "all".to_owned(),
            hosts: Vec::new(),
            waves: Vec::new(),
            max_unavailable: 1,
            policy: None,
            work: Some(work_of(&program().plays[0])),
        };
        let mut events = vec![What::RunStarted(started), What::PlayStarted(play)];
        for node in nodes {
            let host = format!("gpu{node:03}");
            events.push(What::PermitGranted { host: host.clone(), class: Disruption::GpuReset });
            events.push(What::Released { host: host.clone() });
            events.push(What::NodeState { host, state: NodeState::Done, detail: None });
        }
        for (seq, what) in (0..).zip(events) {
            journal.append(&Event { seq, at: jiff::Timestamp::UNIX_EPOCH, what }.into()).unwrap();
        }
        journal.close().unwrap();
        run
    }

    #[test]
    fn runs_of_the_same_work_are_found_and_others_harm_nothing() {
        let (state, program) = (tempfile::tempdir().unwrap(), program());
        let path = state.path();
        let nothing = [DurationHistory::of(work_of(&program.plays[0]))];
        let own = RunId::generate();
        assert_eq!(learned(&program, &window(), path, &own), nothing);

        record(path, Verb::Plan, 0..9);
        let broken = record(path, Verb::Run, 0..9);
        fs::write(RunDir::new(path, &broken).journal(), "{}\n").unwrap();
        let empty = record(path, Verb::Run, 0..9);
        fs::write(RunDir::new(path, &empty).journal(), "").unwrap();
        assert_eq!(learned(&program, &window(), path, &own), nothing);

        let first = record(path, Verb::Run, 1..3);
        let one = learned(&program, &window(), path, &own);
        assert_ne!(one, nothing);
        assert_eq!(learned(&program, &window(), path, &first), nothing, "its own journal is none of them");
        record(path, Verb::Run, 3..5);
        assert_ne!(learned(&program, &window(), path, &own), one);
        assert_eq!(learned(&program, &Overrides::default(), path, &own), [DurationHistory::default()]);
    }

    #[test]
    fn only_the_newest_runs_count() {
        let (state, program) = (tempfile::tempdir().unwrap(), program());
        for _ in 0..RUNS {
            record(state.path(), Verb::Run, 1..3);
        }
        let before = learned(&program, &window(), state.path(), &RunId::generate());
        record(state.path(), Verb::Run, 1..3);
        let after = learned(&program, &window(), state.path(), &RunId::generate());
        assert_ne!(before, after, "the newest one is another");
        let runs = |learned: &[DurationHistory]| format!("{learned:?}").matches("\"01").count();
        assert_eq!((runs(&before), runs(&after)), (RUNS, RUNS));
    }
}

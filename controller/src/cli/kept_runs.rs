//! How many records of runs this machine keeps, and for how long.

use std::{fs, io, path::Path};

use gpufleet::{
    display,
    journal::{RunDir, RunSummary, glance, newest_runs},
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};

/// Runs that are kept however old they are: durations and canaries are learned from them.
const LEAST: usize = 50;
/// One day, in seconds.
const DAY_S: u64 = 24 * 60 * 60;

/// What is kept; the more of both bounds removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptRuns {
    /// How many, at least [`LEAST`].
    pub most: usize,
    pub age_s: u64,
}

impl Default for KeptRuns {
    fn default() -> Self {
        Self { most: 2000, age_s: 400 * DAY_S }
    }
}

/// Whether nothing can need the record: the run is over, and left no node out of service.
fn is_settled(run: &RunSummary) -> bool {
    let out = run.finished.as_ref().is_some_and(|finished| !finished.out_of_service.is_empty());
    !run.running && !run.is_unfinished() && !out
}

/// Removes the records beyond the bounds, the oldest first, and says so in one line; `None` where none is.
///
/// What cannot be read, is not over, or has nodes out of service stays, however old it is.
pub fn prune(state_dir: &Path, kept: KeptRuns, now: Timestamp) -> Option<String> {
    let runs = newest_runs(state_dir);
    let age = i64::try_from(kept.age_s).ok().map(SignedDuration::from_secs);
    let since = age.and_then(|age| now.checked_sub(age).ok()).unwrap_or(Timestamp::MIN);
    let (mut removed, mut newest) = (0, None);
    for (place, run) in runs.into_iter().enumerate().skip(LEAST).rev() {
        let dir = RunDir::new(state_dir, &run);
        let Some(run) = glance(state_dir, run) else { continue };
        let is_beyond = place >= kept.most.max(LEAST);
        if !is_beyond && run.started_at >= since {
            // Why the end: all others are newer.
            break;
        }
        if is_settled(&run) {
            match remove(&dir) {
                Ok(()) => (removed, newest) = (removed + 1, Some(run.started_at)),
                Err(error) => tracing::warn!(path = %dir.path().display(), %error, "cannot be removed"),
            }
        }
    }
    let newest = newest?.to_zoned(TimeZone::system()).date();
    Some(format!(
        "removed the records of {} up to {newest}: `keep_runs` is {}, `keep_runs_for` {}d",
        display::count(removed, "run"),
        kept.most,
        kept.age_s / DAY_S
    ))
}

/// Removes a run's folder, its journal last: what is left after an interruption is found again.
fn remove(dir: &RunDir) -> io::Result<()> {
    for entry in fs::read_dir(dir.path())? {
        let entry = entry?;
        if entry.path() == dir.journal() {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_file(dir.journal())?;
    fs::remove_dir(dir.path())
}

#[cfg(test)]
mod tests {
    use gpufleet::{
        event::{Event, RunFinished, RunStarted, Verb, What},
        journal::RunId,
    };

    use super::*;

    const ALL: usize = 60;

    /// The runs of 60 days, one a day, the last one of today; `out` and `open` say which had nodes out and did not end.
    fn state(now: Timestamp, out: usize, open: usize) -> tempfile::TempDir {
        let state = tempfile::tempdir().unwrap();
        for place in 0..ALL {
            let run = RunId::parse(&format!("{:026}", place + 1)).unwrap();
            let at = now - SignedDuration::from_hours(24 * i64::try_from(ALL - 1 - place).unwrap());
            let started =
                RunStarted { hosts: vec!["gpu001".to_owned()], ..RunStarted::of(run.to_string(), Verb::Run) };
            let finished = RunFinished {
                exit_code: 0,
                summary: String::new(),
                out_of_service: (place == out).then(|| "gpu001".to_owned()).into_iter().collect(),
                stopped: None,
                resumable: false,
            };
            let whats = [What::RunStarted(started), What::RunFinished(finished)];
            let lines = (0..)
                .zip(whats)
                .take(if place == open { 1 } else { 2 })
                .map(|(seq, what)| serde_json::to_string(&Event { seq, at, what }).unwrap() + "\n");
            let dir = RunDir::new(state.path(), &run);
            fs::create_dir_all(dir.path().join("included")).unwrap();
            fs::write(dir.report_html(), "page").unwrap();
            fs::write(dir.journal(), lines.collect::<String>()).unwrap();
        }
        state
    }

    fn places(state: &tempfile::TempDir) -> Vec<usize> {
        let runs = newest_runs(state.path());
        runs.iter().rev().map(|run| run.as_str().parse::<usize>().unwrap() - 1).collect()
    }

    #[test]
    fn the_oldest_go_by_number_or_age_and_what_somebody_needs_stays() {
        let now: Timestamp = "2026-11-28T12:00:00Z".parse().unwrap();
        let day = |days: u64| days * DAY_S;
        let (out, open) = (2, 4);
        // (number, days), and the places that are left below those of the newest 50.
        for (most, days, left) in [
            (2000, 400, (0..10).collect::<Vec<usize>>()),
            (55, 400, vec![2, 4, 5, 6, 7, 8, 9]),
            (1, 400, vec![2, 4]),
            (2000, 53, vec![2, 4, 6, 7, 8, 9]),
            (2000, 1, vec![2, 4]),
        ] {
            let state = state(now, out, open);
            let told = prune(state.path(), KeptRuns { most, age_s: day(days) }, now);
            let rest = places(&state);
            assert_eq!(rest[rest.len() - 50..], (10..60).collect::<Vec<_>>(), "the newest 50");
            assert_eq!(rest[..rest.len() - 50], left, "{most} runs, {days} days: {told:?}");
            match 10 - left.len() {
                0 => assert_eq!(told, None),
                removed => assert!(
                    told.unwrap().starts_with(&format!("removed the records of {removed} runs up to 2026-1"))
                ),
            }
            // Again there is nothing to do.
            assert_eq!(prune(state.path(), KeptRuns { most, age_s: day(days) }, now), None);
        }
    }

    #[test]
    fn a_run_at_work_and_one_that_cannot_be_read_stay() {
        let now: Timestamp = "2026-11-28T12:00:00Z".parse().unwrap();
        let state = state(now, ALL, ALL);
        let journal = |place: usize| {
            let run = RunId::parse(&format!("{:026}", place + 1)).unwrap();
            RunDir::new(state.path(), &run).journal()
        };
        let at_work = fs::File::open(journal(0)).unwrap();
        at_work.lock().unwrap();
        fs::write(journal(1), "{broken\n").unwrap();
        prune(state.path(), KeptRuns { most: 1, age_s: DAY_S }, now).unwrap();
        assert_eq!(places(&state)[..3], [0, 1, 10]);
    }
}

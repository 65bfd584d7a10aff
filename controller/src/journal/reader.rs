//! Reading: a torn last line is an interrupted write, anything else that cannot be read is an error.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{Entry, Record, Replayed, RunDir, RunId, skim::ends};
use crate::{
    event::{EVENT_VERSION, Event, PlayStarted, RunFinished, RunStarted, What},
    rollout::SoFar,
};

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot read {path}: {cause}")]
    Io { path: PathBuf, cause: std::io::Error },
    #[error("{path}:{line}: not an event: {cause}")]
    Corrupt { path: PathBuf, line: usize, cause: serde_json::Error },
    #[error(
        "{path} was written by a newer gpufleet (events of version {found}, this one reads up to {EVENT_VERSION})"
    )]
    Newer { path: PathBuf, found: u32 },
    #[error("no run `{given}`; `gpufleet runs` lists them")]
    NoSuchRun { given: String },
    #[error("`{given}` could be {count} runs; give more of its characters")]
    Ambiguous { given: String, count: usize },
}

/// Reads the events of a journal in order.
/// Those of older versions are given in the shapes of this one.
///
/// # Errors
/// A file that cannot be read, a line that is no record and not the last, a newer version.
pub fn read_events(path: &Path) -> Result<Vec<Event>, JournalError> {
    let mut events: Vec<Event> = read_records(path)?.into_iter().filter_map(Record::into_event).collect();
    for event in &mut events {
        if let What::RunStarted(started) = &mut event.what {
            // What is written of them is in the shapes of this version, whatever the file has.
            started.version = EVENT_VERSION;
        }
    }
    Ok(events)
}

/// Reads everything in a journal in order.
fn read_records(path: &Path) -> Result<Vec<Record>, JournalError> {
    let io = |cause| JournalError::Io { path: path.to_owned(), cause };
    let mut reader = BufReader::new(fs::File::open(path).map_err(io)?);
    let (mut records, mut line, mut number) = (Vec::new(), Vec::new(), 0);
    let mut version = EVENT_VERSION;
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(io)? == 0 {
            return Ok(records);
        }
        // Why even where it is a record: a writer that goes on cuts such a line off, and readers must agree with it.
        if line.last() != Some(&b'\n') {
            return Ok(records);
        }
        number += 1;
        let record: Record = serde_json::from_slice(&line).map_err(|cause| JournalError::Corrupt {
            path: path.to_owned(),
            line: number,
            cause,
        })?;
        match &record.what {
            Entry::Event(What::RunStarted(started)) => version = started.version,
            Entry::Event(What::RunResumed { version: newer, .. }) => version = version.max(*newer),
            _ => {}
        }
        if version > EVENT_VERSION {
            return Err(JournalError::Newer { path: path.to_owned(), found: version });
        }
        let older = if version < 2 { began_with(&record, &line) } else { None };
        records.push(record);
        records.extend(older);
    }
}

/// What a play began with, of a journal of version 1: there it is part of the event of the play's start.
fn began_with(record: &Record, line: &[u8]) -> Option<Record> {
    #[derive(Deserialize)]
    struct Line {
        what: Start,
    }
    #[derive(Deserialize)]
    struct Start {
        with: Parts,
    }
    #[derive(Deserialize)]
    struct Parts {
        so_far: SoFar,
    }
    let Entry::Event(What::PlayStarted(PlayStarted { play, .. })) = &record.what else { return None };
    // Why no error: the first journals do not tell it.
    let so_far = serde_json::from_slice::<Line>(line).ok()?.what.with.so_far;
    let what = Entry::Replay(Replayed::PlayBeganWith { play: *play, so_far });
    Some(Record { seq: record.seq, at: record.at, what })
}

/// Everything in the journal of a run, with what was kept apart as secret.
///
/// # Errors
/// As [`read_events`].
pub fn read_for_resume(dir: &RunDir) -> Result<Vec<Record>, JournalError> {
    let mut records = read_records(&dir.journal())?;
    if dir.sealed().exists() {
        let mut sealed: HashMap<u64, Entry> =
            read_records(&dir.sealed())?.into_iter().map(|record| (record.seq, record.what)).collect();
        for record in &mut records {
            if let Entry::Replay(Replayed::Fed { fed: None, .. }) = record.what
                && let Some(what) = sealed.remove(&record.seq)
            {
                record.what = what;
            }
        }
    }
    Ok(records)
}

/// Whether nothing can go on with a run any more: it said so in its journal, or it only read and its process is gone.
/// What cannot be read is not over.
pub fn is_over(dir: &RunDir) -> bool {
    let run = dir.path().file_name().and_then(|name| RunId::parse(name.to_str()?));
    let state_dir = dir.path().parent().and_then(Path::parent);
    let (Some(run), Some(state_dir)) = (run, state_dir) else { return false };
    glance(state_dir, run).is_some_and(|run| !run.running && !run.is_unfinished())
}

/// What a run is and how it ended, by the first and the last record of its journal; none where they cannot be read.
pub fn glance(state_dir: &Path, run: RunId) -> Option<RunSummary> {
    let (first, last) = ends(&RunDir::new(state_dir, &run))?;
    // Why these two: a run begins with what it is, a process of it ends with how it ended, and journals are large.
    let events: Vec<Event> = [first, last].into_iter().filter_map(Record::into_event).collect();
    summary(state_dir, run, &events)
}

/// One line of `gpufleet runs`.
#[derive(Clone, Debug)]
pub struct RunSummary {
    pub run: RunId,
    pub started_at: jiff::Timestamp,
    pub started: RunStarted,
    /// `None` while it runs, or when it was cut off.
    pub finished: Option<RunFinished>,
    /// Whether a process holds the journal now.
    pub running: bool,
}

impl RunSummary {
    /// Whether `gpufleet resume` has something to go on with.
    pub fn is_unfinished(&self) -> bool {
        self.started.verb.writes()
            && !self.running
            && self.finished.as_ref().is_none_or(|finished| finished.resumable)
    }
}

/// The runs below a state directory, each list newest first.
#[derive(Debug, Default)]
pub struct Runs {
    pub readable: Vec<RunSummary>,
    /// Runs of which nobody can tell what they did, and why.
    pub unreadable: Vec<(RunId, JournalError)>,
}

/// The runs below the state directory. Those that did not get to their first event are left out: they did nothing.
pub fn list_runs(state_dir: &Path) -> Runs {
    let mut runs = Runs::default();
    let Ok(entries) = fs::read_dir(state_dir.join("runs")) else { return runs };
    for run in entries.flatten().filter_map(|entry| RunId::parse(entry.file_name().to_str()?)) {
        match read_events(&RunDir::new(state_dir, &run).journal()) {
            Ok(events) => runs.readable.extend(summary(state_dir, run, &events)),
            Err(JournalError::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(error) => runs.unreadable.push((run, error)),
        }
    }
    runs.readable.sort_by(|a, b| b.run.cmp(&a.run));
    runs.unreadable.sort_by(|a, b| b.0.cmp(&a.0));
    runs
}

fn summary(state_dir: &Path, run: RunId, events: &[Event]) -> Option<RunSummary> {
    let path = RunDir::new(state_dir, &run).journal();
    let first = events.first()?;
    let What::RunStarted(started) = &first.what else { return None };
    let last = events.iter().rev().find_map(|event| match &event.what {
        What::RunFinished(finished) => Some(Some(finished.clone())),
        What::RunResumed { .. } => Some(None),
        _ => None,
    });
    let running = fs::File::open(&path).is_ok_and(|file| file.try_lock_shared().is_err());
    Some(RunSummary {
        run,
        started_at: first.at,
        started: started.clone(),
        finished: last.flatten(),
        running,
    })
}

/// The run that somebody means by an id, the end of one, or `latest`; also one whose journal cannot be read.
///
/// # Errors
/// No such run, or several.
pub fn resolve_run(state_dir: &Path, given: &str) -> Result<RunId, JournalError> {
    let Runs { readable, unreadable } = list_runs(state_dir);
    let readable = readable.into_iter().map(|run| run.run);
    let mut runs: Vec<RunId> = readable.chain(unreadable.into_iter().map(|(run, _)| run)).collect();
    runs.sort_by(|a, b| b.cmp(a));
    if given == "latest" {
        return runs.into_iter().next().ok_or_else(|| JournalError::NoSuchRun { given: given.to_owned() });
    }
    let wanted = given.trim_end_matches('…').to_ascii_uppercase();
    let mut found: Vec<RunId> = runs
        .into_iter()
        .filter(|run| {
            !wanted.is_empty() && (run.as_str().starts_with(&wanted) || run.as_str().ends_with(&wanted))
        })
        .collect();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(JournalError::NoSuchRun { given: given.to_owned() }),
        count => Err(JournalError::Ambiguous { given: given.to_owned(), count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::Level, journal::Journal};

    fn notice(seq: u64) -> Event {
        let what = What::Notice { level: Level::Info, text: format!("event {seq}") };
        Event { seq, at: jiff::Timestamp::UNIX_EPOCH, what }
    }

    #[tokio::test]
    async fn what_was_durable_is_read_back_and_a_torn_line_is_not() {
        let state = tempfile::tempdir().unwrap();
        let dir = RunDir::new(state.path(), &RunId::generate());
        let journal = Journal::create(&dir).unwrap();
        journal.append(&notice(0).into()).unwrap();
        let (done, written) = tokio::sync::oneshot::channel();
        journal.durable(&notice(1).into(), done).unwrap();
        written.await.unwrap().unwrap();
        assert_eq!(read_events(&dir.journal()).unwrap(), [notice(0), notice(1)]);
        journal.append(&notice(2).into()).unwrap();
        journal.close().unwrap();

        let whole = fs::read(dir.journal()).unwrap();
        for cut in 0..whole.len() {
            fs::write(dir.journal(), &whole[..cut]).unwrap();
            let read = read_events(&dir.journal()).unwrap();
            assert!(read.iter().enumerate().all(|(i, event)| event.seq == i as u64));
            fs::write(dir.journal(), &whole[..cut]).unwrap();
            Journal::reopen(&dir).unwrap().close().unwrap();
            assert_eq!(read_events(&dir.journal()).unwrap(), read, "cut at {cut}");
        }
        fs::write(dir.journal(), b"{}\n{}\n").unwrap();
        assert!(matches!(read_events(&dir.journal()), Err(JournalError::Corrupt { line: 1, .. })));
    }

    #[test]
    fn a_run_that_cannot_be_read_is_named() {
        let state = tempfile::tempdir().unwrap();
        let runs: Vec<RunDir> = (0..2).map(|_| RunDir::new(state.path(), &RunId::generate())).collect();
        runs.iter().for_each(|dir| fs::create_dir_all(dir.path()).unwrap());
        fs::write(runs[0].journal(), "{broken\n").unwrap();
        let found = list_runs(state.path());
        assert!(found.readable.is_empty(), "the other one has no journal yet: {found:?}");
        let [(run, error)] = found.unreadable.as_slice() else { panic!("{found:?}") };
        assert!(runs[0].path().ends_with(run.as_str()), "{run}");
        assert!(matches!(error, JournalError::Corrupt { line: 1, .. }), "{error}");
        assert_eq!(resolve_run(state.path(), run.as_str()).unwrap(), *run);
    }

    #[test]
    fn a_run_is_found_by_either_end_of_its_id() {
        let state = tempfile::tempdir().unwrap();
        assert!(matches!(resolve_run(state.path(), "latest"), Err(JournalError::NoSuchRun { .. })));
    }
}

//! Looking back: some events of many journals, without reading the rest of them.

use std::{
    fs,
    io::{BufRead, BufReader, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use super::{Entry, Record, RunDir, RunId};
use crate::event::{EVENT_VERSION, Event, What};

/// In front of an event's kind in a line.
const TAG: &[u8] = br#""event":""#;
/// How far into a line the kind is looked for: number and time stand before it.
const HEAD: usize = 160;
/// How much of the end of a journal is read at first, in bytes.
const TAIL: u64 = 64 << 10;

/// The ids of all runs below the state directory, newest first; whether they can be read is not looked at.
pub fn newest_runs(state_dir: &Path) -> Vec<RunId> {
    let entries = fs::read_dir(state_dir.join("runs")).into_iter().flatten().flatten();
    let mut runs: Vec<RunId> =
        entries.filter_map(|entry| RunId::parse(entry.file_name().to_str()?)).collect();
    runs.sort_by(|a, b| b.cmp(a));
    runs
}

/// The events of these kinds in a journal; none where it has more than `most` bytes, cannot be read, or is of a newer
/// version.
pub fn skim(dir: &RunDir, kinds: &[&str], most: u64) -> Option<Vec<Event>> {
    let file = fs::File::open(dir.journal()).ok()?;
    if file.metadata().ok()?.len() > most {
        return None;
    }
    let mut reader = BufReader::new(file);
    let (mut events, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).ok()? == 0 || line.last() != Some(&b'\n') {
            return Some(events);
        }
        if !is_of(&line, kinds) {
            continue;
        }
        let event: Event = serde_json::from_slice(&line).ok()?;
        if let What::RunStarted(started) = &event.what
            && started.version > EVENT_VERSION
        {
            return None;
        }
        events.push(event);
    }
}

/// The first and the last record of a journal, the same one where it is the only one; none where they cannot be read.
pub(super) fn ends(dir: &RunDir) -> Option<(Record, Record)> {
    let mut file = fs::File::open(dir.journal()).ok()?;
    let mut line = Vec::new();
    BufReader::new(&file).read_until(b'\n', &mut line).ok()?;
    let first: Record = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    if matches!(&first.what, Entry::Event(What::RunStarted(started)) if started.version > EVENT_VERSION) {
        return None;
    }
    let length = file.metadata().ok()?.len();
    let mut window = TAIL.min(length);
    loop {
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(length - window)).ok()?;
        (&file).take(window).read_to_end(&mut tail).ok()?;
        // Why: a line without its end is an interrupted write, and no record.
        tail.truncate(tail.iter().rposition(|byte| *byte == b'\n')?);
        let start = tail.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        if let Some(start) = start.or((window == length).then_some(0)) {
            return Some((first, serde_json::from_slice(tail.get(start..)?).ok()?));
        }
        window = (window * 2).min(length);
    }
}

/// Whether a line may be an event of one of these kinds.
fn is_of(line: &[u8], kinds: &[&str]) -> bool {
    let head = line.get(..HEAD.min(line.len())).unwrap_or_default();
    let Some(at) = head.windows(TAG.len()).position(|window| window == TAG) else { return true };
    let kind = line.get(at + TAG.len()..).unwrap_or_default();
    kinds
        .iter()
        .any(|wanted| kind.strip_prefix(wanted.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'"')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::Level, journal::Journal};

    fn event(seq: u64, what: What) -> Event {
        Event { seq, at: jiff::Timestamp::UNIX_EPOCH, what }
    }

    #[test]
    fn both_ends_are_read_without_what_lies_between() {
        let state = tempfile::tempdir().unwrap();
        let dir = RunDir::new(state.path(), &RunId::generate());
        let journal = Journal::create(&dir).unwrap();
        assert_eq!(ends(&dir), None, "nothing happened yet");
        let said = |seq, text: String| Record::from(event(seq, What::Notice { level: Level::Info, text }));
        let first = said(0, "first".to_owned());
        journal.append(&first).unwrap();
        journal.close().unwrap();
        assert_eq!(ends(&dir), Some((first.clone(), first.clone())));
        let mut text = fs::read(dir.journal()).unwrap();
        text.extend(b"what nobody reads\n".repeat(10_000));
        let last = said(1, "x".repeat(3 * TAIL as usize));
        text.extend(serde_json::to_vec(&last).unwrap());
        text.extend(b"\n{\"seq\":2,");
        fs::write(dir.journal(), &text).unwrap();
        assert_eq!(ends(&dir), Some((first, last)));
    }

    #[test]
    fn only_the_kinds_that_are_asked_for_are_read() {
        let state = tempfile::tempdir().unwrap();
        let run = RunId::generate();
        let dir = RunDir::new(state.path(), &run);
        let journal = Journal::create(&dir).unwrap();
        let released = event(0, What::Released { host: "gpu001".to_owned() });
        let notice = event(1, What::Notice { level: Level::Info, text: "\"event\":\"released\"".to_owned() });
        journal.append(&released.clone().into()).unwrap();
        journal.append(&notice.clone().into()).unwrap();
        journal.close().unwrap();
        assert_eq!(newest_runs(state.path()), [run]);
        assert_eq!(skim(&dir, &["released"], 10_000), Some(vec![released.clone()]));
        assert_eq!(skim(&dir, &["notice"], 10_000), Some(vec![notice]));
        assert_eq!(skim(&dir, &["release"], 10_000), Some(Vec::new()));
        assert_eq!(skim(&dir, &["released"], 10), None, "too large");

        // What is not asked for need not be readable; a torn end is no event.
        let mut text = fs::read(dir.journal()).unwrap();
        text.extend(b"{\"seq\":2,\"at\":\"x\",\"what\":{\"event\":\"of_tomorrow\"}}\n{\"seq\":3,");
        fs::write(dir.journal(), &text).unwrap();
        assert_eq!(skim(&dir, &["released"], 10_000), Some(vec![released]));
        fs::write(dir.journal(), b"nonsense\n").unwrap();
        assert_eq!(skim(&dir, &["released"], 10_000), None);
        assert_eq!(skim(&RunDir::new(state.path(), &RunId::generate()), &["released"], 10_000), None);
        assert_eq!(newest_runs(&state.path().join("nowhere")), []);
    }
}

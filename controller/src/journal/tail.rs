//! Reading a journal on while its run goes on.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use super::{Entry, JournalError, Record};
use crate::event::{EVENT_VERSION, Event, What};

/// Bytes that one call reads.
const PART: u64 = 2 << 20;

/// A journal and how far it was read.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    offset: u64,
    line: usize,
}

impl Tail {
    /// Begins before the first record.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), offset: 0, line: 0 }
    }

    /// Returns the events that were written since the last call; of a large journal a part, and the rest with the next calls.
    /// An interrupted write is no record; it is read when it is whole.
    ///
    /// # Errors
    /// As [`read_events`](super::read_events).
    pub fn read(&mut self) -> Result<Vec<Event>, JournalError> {
        loop {
            let before = self.offset;
            let events = self.part()?;
            // A part may have records for a resume only; no events is what the end has.
            if !events.is_empty() || self.offset == before {
                return Ok(events);
            }
        }
    }

    fn part(&mut self) -> Result<Vec<Event>, JournalError> {
        let mut part = Vec::new();
        self.fill(&mut part).map_err(|cause| JournalError::Io { path: self.path.clone(), cause })?;
        let whole = part.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        part.truncate(whole);
        let mut events = Vec::new();
        for line in part.split_inclusive(|byte| *byte == b'\n') {
            self.line += 1;
            let record: Record = serde_json::from_slice(line).map_err(|cause| JournalError::Corrupt {
                path: self.path.clone(),
                line: self.line,
                cause,
            })?;
            let version = match &record.what {
                Entry::Event(What::RunStarted(started)) => started.version,
                Entry::Event(What::RunResumed { version, .. }) => *version,
                _ => 0,
            };
            if version > EVENT_VERSION {
                return Err(JournalError::Newer { path: self.path.clone(), found: version });
            }
            events.extend(record.into_event());
        }
        self.offset += whole as u64;
        Ok(events)
    }

    fn fill(&self, part: &mut Vec<u8>) -> io::Result<()> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        file.by_ref().take(PART).read_to_end(part)?;
        // Why: a record that is larger than a part would be waited for without end.
        if !part.contains(&b'\n') && part.len() as u64 == PART {
            file.read_to_end(part)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::event::Level;

    fn line(seq: u64) -> Vec<u8> {
        let what = What::Notice { level: Level::Info, text: format!("event {seq}") };
        let event = Event { seq, at: jiff::Timestamp::UNIX_EPOCH, what };
        let mut line = serde_json::to_vec(&Record::from(event)).unwrap();
        line.push(b'\n');
        line
    }

    #[test]
    fn each_record_is_read_once_and_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let whole: Vec<u8> = (0..4).flat_map(line).collect();
        let mut tail = Tail::new(&path);
        assert!(matches!(tail.read(), Err(JournalError::Io { .. })));
        let mut read = Vec::new();
        for end in 0..=whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            read.extend(tail.read().unwrap().into_iter().map(|event| event.seq));
            let lines = whole[..end].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(read, (0..lines).collect::<Vec<_>>(), "{end}");
        }
        fs::write(&path, [whole, b"nonsense\n".to_vec()].concat()).unwrap();
        assert!(matches!(tail.read(), Err(JournalError::Corrupt { line: 5, .. })));
    }
}

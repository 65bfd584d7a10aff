//! Writing: one thread owns the file, groups what comes together, and syncs once a group.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{Entry, Record, Replayed, RunDir};
use crate::event::What;

/// How long a record may wait for others before it is synced with them.
const GROUP: Duration = Duration::from_millis(20);
/// How long somebody may look whether the journal is in use, which locks it too.
const GLANCE: Duration = Duration::from_secs(1);
/// How many records may wait for the disk before the run waits too.
const BACKLOG: usize = 4096;
/// The same in bytes; a larger one waits until it is alone.
const BACKLOG_BYTES: usize = 32 << 20;
/// How many bytes are written at once, and what came behind them.
const GROUP_BYTES: usize = 4 << 20;

#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    #[error("cannot create {path}: {cause}; set XDG_STATE_HOME to a folder that can be written")]
    Create { path: PathBuf, cause: String },
    #[error("{path} belongs to a gpufleet that is still running")]
    Locked { path: PathBuf },
    #[error("cannot write {path}: {cause}; the run stops, because what it does could not be known later")]
    Write { path: PathBuf, cause: String },
}

/// A record on its way to the disk.
struct Line {
    line: Vec<u8>,
    /// The same with what is secret, for the sealed file.
    sealed: Option<Vec<u8>>,
    done: Option<oneshot::Sender<Result<(), WriteError>>>,
}

impl Line {
    fn bytes(&self) -> usize {
        self.line.len() + self.sealed.as_ref().map_or(0, Vec::len)
    }
}

/// The bytes that wait for the disk. `None` once nothing will be written any more.
#[derive(Debug)]
struct Backlog {
    bytes: Mutex<Option<usize>>,
    less: Condvar,
}

impl Backlog {
    fn new() -> Self {
        Self { bytes: Mutex::new(Some(0)), less: Condvar::new() }
    }

    /// Waits until there is room for so many more.
    fn add(&self, bytes: usize) {
        let is_full =
            |waiting: &mut Option<usize>| waiting.is_some_and(|n| n > 0 && n + bytes > BACKLOG_BYTES);
        let waiting = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting = self.less.wait_while(waiting, is_full).unwrap_or_else(PoisonError::into_inner);
        *waiting = waiting.map(|n| n + bytes);
    }

    fn remove(&self, bytes: usize) {
        let mut waiting = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = waiting.map(|n| n - bytes);
        self.less.notify_all();
    }
}

/// Lets go whoever waits for room, however the writing thread ends.
struct Writing(Arc<Backlog>);

impl Drop for Writing {
    fn drop(&mut self) {
        *self.0.bytes.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.less.notify_all();
    }
}

/// An open journal. Dropping it writes what is left.
#[derive(Debug)]
pub struct Journal {
    sender: Option<mpsc::SyncSender<Line>>,
    backlog: Arc<Backlog>,
    thread: Option<thread::JoinHandle<Result<(), WriteError>>>,
    path: PathBuf,
    /// Why the writing thread ended, once it did.
    failed: Arc<OnceLock<WriteError>>,
}

/// Where the writing thread writes.
struct Files {
    journal: File,
    path: PathBuf,
    sealed: Option<File>,
    sealed_path: PathBuf,
}

impl Journal {
    /// Makes the run's folder (0700, because variables may be in it) and an empty journal in it, locked.
    ///
    /// # Errors
    /// [`WriteError`] when the folder or file cannot be made.
    pub fn create(dir: &RunDir) -> Result<Self, WriteError> {
        let path = dir.journal();
        let failed =
            |cause: std::io::Error| WriteError::Create { path: path.clone(), cause: cause.to_string() };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.path()).map_err(failed)?;
        let file =
            OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        if file.try_lock().is_err() {
            return Err(WriteError::Locked { path });
        }
        Self::start(file, dir).map_err(failed)
    }

    /// Takes up the journal of a run whose process is gone. A torn last line is cut off.
    ///
    /// # Errors
    /// [`WriteError`] when it cannot be opened, or when somebody still writes it.
    pub fn reopen(dir: &RunDir) -> Result<Self, WriteError> {
        let path = dir.journal();
        let failed =
            |cause: std::io::Error| WriteError::Create { path: path.clone(), cause: cause.to_string() };
        let mut file = OpenOptions::new().read(true).append(true).open(&path).map_err(failed)?;
        let until = Instant::now() + GLANCE;
        while file.try_lock().is_err() {
            if Instant::now() >= until {
                return Err(WriteError::Locked { path });
            }
            thread::sleep(GLANCE / 50);
        }
        cut_torn_line(&mut file).map_err(failed)?;
        if let Ok(mut sealed) = OpenOptions::new().read(true).append(true).open(dir.sealed()) {
            cut_torn_line(&mut sealed).map_err(failed)?;
        }
        Self::start(file, dir).map_err(failed)
    }

    fn start(file: File, dir: &RunDir) -> std::io::Result<Self> {
        let path = dir.journal();
        fs::write(dir.process(), std::process::id().to_string())?;
        let (sender, receiver) = mpsc::sync_channel(BACKLOG);
        let files = Files { journal: file, path: path.clone(), sealed: None, sealed_path: dir.sealed() };
        let failed = Arc::new(OnceLock::new());
        let why = Arc::clone(&failed);
        let backlog = Arc::new(Backlog::new());
        let writing = Writing(Arc::clone(&backlog));
        let thread = thread::spawn(move || {
            // Why before the receiver goes: whoever finds it gone asks why.
            write_all(files, &receiver, &writing.0).inspect_err(|error| _ = why.set(error.clone()))
        });
        Ok(Self { sender: Some(sender), backlog, thread: Some(thread), path, failed })
    }

    fn broken(&self) -> WriteError {
        let ended = || WriteError::Write { path: self.path.clone(), cause: "the writer ended".to_owned() };
        self.failed.get().cloned().unwrap_or_else(ended)
    }

    fn send(
        &self,
        record: &Record,
        done: Option<oneshot::Sender<Result<(), WriteError>>>,
    ) -> Result<(), WriteError> {
        let text = |record: &Record| {
            let mut text = serde_json::to_vec(record)
                .map_err(|e| WriteError::Write { path: self.path.clone(), cause: e.to_string() })?;
            text.push(b'\n');
            Ok::<_, WriteError>(text)
        };
        let line = match &record.what {
            Entry::Replay(Replayed::Fed { host, play, op_id, fed: Some(_), secret: true }) => {
                let (host, op_id) = (host.clone(), op_id.clone());
                let open = Replayed::Fed { host, play: *play, op_id, fed: None, secret: true };
                let open = Record { what: Entry::Replay(open), ..*record };
                Line { line: text(&open)?, sealed: Some(text(record)?), done }
            }
            Entry::Replay(_) | Entry::Event(_) => Line { line: text(record)?, sealed: None, done },
        };
        let sender = self.sender.as_ref().ok_or_else(|| self.broken())?;
        self.backlog.add(line.bytes());
        sender.send(line).map_err(|_| self.broken())
    }

    /// Hands a record over; it is on disk soon. Progress is not kept.
    ///
    /// # Errors
    /// [`WriteError`] when an earlier write failed.
    pub fn append(&self, record: &Record) -> Result<(), WriteError> {
        if matches!(record.what, Entry::Event(What::Progress { .. })) {
            return Ok(());
        }
        self.send(record, None)
    }

    /// Hands a record over; `done` hears once it, and all before it, are on disk, or that the act that it announces
    /// must not happen.
    ///
    /// # Errors
    /// [`WriteError`] when an earlier write failed.
    pub fn durable(
        &self,
        record: &Record,
        done: oneshot::Sender<Result<(), WriteError>>,
    ) -> Result<(), WriteError> {
        self.send(record, Some(done))
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// [`WriteError`] of the last writes.
    pub fn close(mut self) -> Result<(), WriteError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), WriteError> {
        drop(self.sender.take());
        match self.thread.take().map(thread::JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(self.broken()),
            None => Ok(()),
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!(%error, "the journal is incomplete");
        }
    }
}

/// Ends the file with its last whole line, so that what is appended begins one.
fn cut_torn_line(file: &mut File) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    if whole < bytes.len() {
        file.set_len(whole as u64)?;
        file.sync_data()?;
    }
    Ok(())
}

impl Files {
    fn write(&mut self, lines: &[u8], sealed: &[u8]) -> std::io::Result<()> {
        if !sealed.is_empty() {
            // Why first: a record that says that its content is sealed must find it there.
            let file = match &mut self.sealed {
                Some(file) => file,
                none => none.insert(
                    OpenOptions::new().append(true).create(true).mode(0o600).open(&self.sealed_path)?,
                ),
            };
            file.write_all(sealed)?;
            file.sync_data()?;
        }
        self.journal.write_all(lines)?;
        self.journal.sync_data()
    }
}

fn write_all(mut files: Files, receiver: &mpsc::Receiver<Line>, backlog: &Backlog) -> Result<(), WriteError> {
    while let Ok(first) = receiver.recv() {
        let mut bytes = first.bytes();
        let mut lines = first.line;
        let mut sealed = first.sealed.unwrap_or_default();
        let mut waiting: Vec<_> = first.done.into_iter().collect();
        // Why: somebody who waits must not wait for company.
        while bytes < GROUP_BYTES
            && let Ok(next) = if waiting.is_empty() {
                receiver.recv_timeout(GROUP).map_err(|_| mpsc::TryRecvError::Empty)
            } else {
                receiver.try_recv()
            }
        {
            bytes += next.bytes();
            lines.extend(next.line);
            sealed.extend(next.sealed.unwrap_or_default());
            waiting.extend(next.done);
        }
        let written = files
            .write(&lines, &sealed)
            .map_err(|e| WriteError::Write { path: files.path.clone(), cause: e.to_string() });
        drop((lines, sealed));
        backlog.remove(bytes);
        for done in waiting {
            // Why: whoever asked may have been cancelled meanwhile; the record stands all the same.
            let _ = done.send(written.clone());
        }
        written?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{Event, Level},
        journal::RunId,
    };

    #[test]
    fn a_full_disk_is_named_whoever_meets_it_first() {
        let state = tempfile::tempdir().unwrap();
        let dir = RunDir::new(state.path(), &RunId::generate());
        fs::create_dir_all(dir.path()).unwrap();
        let full = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let journal = Journal::start(full, &dir).unwrap();
        let what = What::Notice { level: Level::Info, text: "begins".to_owned() };
        let record = Record::from(Event { seq: 0, at: jiff::Timestamp::UNIX_EPOCH, what });
        let (done, written) = oneshot::channel();
        journal.durable(&record, done).unwrap();
        let names = |error: WriteError| error.to_string().contains("No space left on device");
        assert!(written.blocking_recv().unwrap().is_err_and(names));
        let until = Instant::now() + Duration::from_secs(10);
        let later = loop {
            match journal.append(&record) {
                Err(error) => break error,
                Ok(()) => assert!(Instant::now() < until, "the writer goes on"),
            }
        };
        assert!(names(later));
        assert!(journal.close().is_err_and(names));
    }
}

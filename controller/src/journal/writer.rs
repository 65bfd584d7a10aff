//! Writing: one thread owns the file, groups what comes together, and syncs once a group.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::PathBuf,
    sync::mpsc,
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use super::RunDir;
use crate::event::{Event, What};

/// How long an event may wait for others before it is synced with them.
const GROUP: Duration = Duration::from_millis(20);
/// How many events may wait for the disk before the run waits too.
const BACKLOG: usize = 4096;

#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    #[error("cannot create {path}: {cause}; set XDG_STATE_HOME to a folder that can be written")]
    Create { path: PathBuf, cause: String },
    #[error("{path} belongs to a gpufleet that is still running")]
    Locked { path: PathBuf },
    #[error("cannot write {path}: {cause}; the run stops, because what it does could not be known later")]
    Write { path: PathBuf, cause: String },
}

struct Record {
    line: Vec<u8>,
    done: Option<oneshot::Sender<Result<(), WriteError>>>,
}

/// An open journal. Dropping it writes what is left.
#[derive(Debug)]
pub struct Journal {
    sender: Option<mpsc::SyncSender<Record>>,
    thread: Option<thread::JoinHandle<Result<(), WriteError>>>,
    path: PathBuf,
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
        let (sender, receiver) = mpsc::sync_channel(BACKLOG);
        let owned = path.clone();
        let thread = thread::spawn(move || write_all(file, &owned, &receiver));
        Ok(Self { sender: Some(sender), thread: Some(thread), path })
    }

    fn broken(&self) -> WriteError {
        WriteError::Write { path: self.path.clone(), cause: "the writer ended".to_owned() }
    }

    fn send(
        &self,
        event: &Event,
        done: Option<oneshot::Sender<Result<(), WriteError>>>,
    ) -> Result<(), WriteError> {
        let mut line = serde_json::to_vec(event)
            .map_err(|e| WriteError::Write { path: self.path.clone(), cause: e.to_string() })?;
        line.push(b'\n');
        let sender = self.sender.as_ref().ok_or_else(|| self.broken())?;
        sender.send(Record { line, done }).map_err(|_| self.broken())
    }

    /// Hands an event over; it is on disk soon. Progress is not kept.
    ///
    /// # Errors
    /// [`WriteError`] when an earlier write failed.
    pub fn append(&self, event: &Event) -> Result<(), WriteError> {
        if matches!(event.what, What::Progress { .. }) {
            return Ok(());
        }
        self.send(event, None)
    }

    /// Hands an event over; `done` hears once it, and all before it, are on disk, or that the act that it announces
    /// must not happen.
    ///
    /// # Errors
    /// [`WriteError`] when an earlier write failed.
    pub fn durable(
        &self,
        event: &Event,
        done: oneshot::Sender<Result<(), WriteError>>,
    ) -> Result<(), WriteError> {
        self.send(event, Some(done))
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

fn write_all(
    mut file: File,
    path: &std::path::Path,
    receiver: &mpsc::Receiver<Record>,
) -> Result<(), WriteError> {
    while let Ok(first) = receiver.recv() {
        let mut lines = first.line;
        let mut waiting: Vec<_> = first.done.into_iter().collect();
        // Why: somebody who waits must not wait for company.
        while let Ok(next) = if waiting.is_empty() {
            receiver.recv_timeout(GROUP).map_err(|_| mpsc::TryRecvError::Empty)
        } else {
            receiver.try_recv()
        } {
            lines.extend(next.line);
            waiting.extend(next.done);
        }
        let written = file
            .write_all(&lines)
            .and_then(|()| file.sync_data())
            .map_err(|e| WriteError::Write { path: path.to_owned(), cause: e.to_string() });
        for done in waiting {
            // Why: whoever asked may have been cancelled meanwhile; the record stands all the same.
            let _ = done.send(written.clone());
        }
        written?;
    }
    Ok(())
}

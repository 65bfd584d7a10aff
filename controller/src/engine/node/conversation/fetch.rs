//! `fetch`: a file of a node comes to the controller piece by piece.
//!
//! Owns when it ends: at the size that the node declared and the task allows, at the task's deadline, at an interrupt. What
//! came is compared with the digest that the node gave first. At no time is more than one piece in memory; `arriving` owns
//! the place on the controller.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus,
    message::Mode,
    op::{READ_PIECE, ReadPiece},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use tokio::time::{Instant, timeout};

use crate::{
    engine::node::{
        conversation::{
            Conversation,
            arriving::{Arriving, Refused, hex, size_text},
        },
        early_end::EarlyEnd,
    },
    interpreter::{Action, Fed, FetchFile},
};

/// The first piece of a file, and the smallest, in bytes.
const FIRST_PIECE: u64 = 128 << 10;

/// Digests of a file of the controller.
struct Local {
    sha256: String,
    sha1: String,
    md5: String,
}

fn local(path: &Path) -> io::Result<Option<Local>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (mut sha256, mut sha1, mut md5) = (Sha256::new(), sha1::Sha1::new(), md5::Context::new());
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        let count = file.read(&mut buffer)?;
        let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else { break };
        sha256.update(piece);
        sha1.update(piece);
        md5.consume(piece);
    }
    Ok(Some(Local { sha256: hex(sha256.finalize()), sha1: hex(sha1.finalize()), md5: hex(md5.finalize().0) }))
}

/// Bytes of base64 with padding; `None` for anything else.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in text.as_bytes().chunks(4) {
        let mut word = 0u32;
        for byte in chunk {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' => 0,
                _ => return None,
            };
            word = word << 6 | u32::from(value);
        }
        let missing = chunk.iter().filter(|byte| **byte == b'=').count();
        let [_, bytes @ ..] = word.to_be_bytes();
        out.extend(bytes.get(..3usize.checked_sub(missing)?)?);
        if chunk.len() != 4 {
            return None;
        }
    }
    Some(out)
}

fn text<'a>(outcome: &'a OpOutcome, name: &str) -> Option<&'a str> {
    outcome.data.get(name).and_then(Value::as_str)
}

fn failed(kind: FailureKind, why: String) -> Fed {
    Fed::Outcome(Box::new(OpOutcome::failed(kind, why)))
}

/// What a fetched file is told as.
fn outcome(fetch: &FetchFile, found: &Local, changed: bool) -> Fed {
    let mut outcome = OpOutcome::new(if changed { OpStatus::Changed } else { OpStatus::Ok });
    let mut tell = |name: &str, value: Value| {
        outcome.data.insert(name.to_owned(), value);
    };
    tell("dest", json!(fetch.dest));
    tell("checksum", json!(found.sha1));
    tell("md5sum", json!(found.md5));
    if changed {
        tell("remote_checksum", json!(found.sha1));
        tell("remote_md5sum", Value::Null);
        let what = format!("{} here", fetch.dest);
        outcome.changes.push(Change::new(
            what,
            None,
            format!("as {} on the node", fetch.src),
            Disruption::Live,
        ));
    } else {
        tell("file", json!(fetch.src));
    }
    Fed::Outcome(Box::new(outcome))
}

/// Why a file does not come.
enum NoFile {
    EarlyEnd(EarlyEnd),
    /// What the task ends with.
    Fed(Fed),
}

impl From<EarlyEnd> for NoFile {
    fn from(cut: EarlyEnd) -> Self {
        Self::EarlyEnd(cut)
    }
}

impl From<Refused> for NoFile {
    fn from(Refused(why): Refused) -> Self {
        Self::Fed(failed(FailureKind::Io, why))
    }
}

impl Conversation {
    async fn piece(
        &mut self,
        action: &Action,
        fetch: &FetchFile,
        (offset, length): (u64, u64),
        deadline: Instant,
    ) -> Result<OpOutcome, NoFile> {
        let link = self.link().await?;
        // Why rounded up: the node counts whole seconds, and what is left of the last one is cut here.
        let left = deadline.saturating_duration_since(Instant::now()).as_secs() + 1;
        let request = OpRequest {
            op: NodeOp::ReadPiece(ReadPiece {
                path: fetch.src.clone(),
                offset,
                length,
                max_size: fetch.max_size,
            }),
            mode: Mode::Apply,
            permit: None,
            run_as: self.run_as(&action.run_as),
            timeout_s: left,
            op_id: String::new(),
            secret: true,
            environment: Vec::new(),
        };
        match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) if outcome.status == OpStatus::Ok => Ok(outcome),
            Ok(outcome) => Err(NoFile::Fed(Fed::Outcome(Box::new(outcome)))),
            Err(error) => Err(NoFile::Fed(self.broken_off(error).await?)),
        }
    }

    /// Brings the file within the time of its task. A run that is told to stop does not wait for it, unless the node is out
    /// of service; what came by then is removed.
    pub(crate) async fn fetch(&mut self, action: &Action, fetch: &FetchFile) -> Result<Fed, EarlyEnd> {
        let limit = Duration::from_secs(action.timeout_s.unwrap_or(self.settings.run.task_timeout_s));
        let (stops, stays) = (self.dispatcher.stops(), self.is_out());
        let came = AtomicU64::new(0);
        let brought = tokio::select! {
            brought = timeout(limit, self.bring(action, fetch, Instant::now() + limit, &came)) => brought,
            () = stops, if !stays => return Err(EarlyEnd::Stopped),
        };
        match brought {
            Ok(Ok(fed) | Err(NoFile::Fed(fed))) => Ok(fed),
            Ok(Err(NoFile::EarlyEnd(cut))) => Err(cut),
            Err(_) => Ok(failed(
                FailureKind::TimedOut,
                format!(
                    "{} did not come within {} s, {} of it had come by then and are removed; give the task more time with \
                     `timeout`",
                    fetch.src,
                    limit.as_secs(),
                    size_text(came.load(Ordering::Relaxed))
                ),
            )),
        }
    }

    async fn bring(
        &mut self,
        action: &Action,
        fetch: &FetchFile,
        deadline: Instant,
        came: &AtomicU64,
    ) -> Result<Fed, NoFile> {
        let wrong = |why: String| Err(NoFile::Fed(failed(FailureKind::Io, why)));
        let first = self.piece(action, fetch, (0, 0), deadline).await?;
        if first.data.contains_key("missing") {
            let why = "the remote file does not exist, not transferring, ignored";
            if fetch.fail_on_missing {
                return Ok(failed(FailureKind::Invalid, why.to_owned()));
            }
            let mut outcome = OpOutcome::new(OpStatus::Ok);
            outcome.data.insert("msg".to_owned(), json!(why));
            outcome.data.insert("file".to_owned(), json!(fetch.src));
            return Ok(Fed::Outcome(Box::new(outcome)));
        }
        let size = first.data.get("size").and_then(Value::as_u64).unwrap_or_default();
        if size > fetch.max_size {
            return Ok(failed(
                FailureKind::Invalid,
                format!(
                    "{} has {} on the node, and `max_size` of the task is {}; nothing was fetched: raise it, or make the \
                     file smaller",
                    fetch.src,
                    size_text(size),
                    size_text(fetch.max_size)
                ),
            ));
        }
        let Some(digest) = text(&first, "sha256").map(str::to_owned) else {
            return wrong("the node gave no digest of the file".to_owned());
        };
        let place = PathBuf::from(&fetch.dest);
        match read_local(place.clone()).await {
            Ok(Some(found)) if found.sha256 == digest => return Ok(outcome(fetch, &found, false)),
            Ok(_) => {}
            Err(error) => return wrong(format!("cannot read {} here: {error}", fetch.dest)),
        }
        let mut arriving = Arriving::at(&place, size)?;
        let mut length = FIRST_PIECE;
        while arriving.has < size {
            let wanted = length.min(size - arriving.has);
            let asked = Instant::now();
            let piece = self.piece(action, fetch, (arriving.has, wanted), deadline).await?;
            length = next_length(length, asked.elapsed());
            let Some(bytes) = text(&piece, "content").and_then(decoded) else {
                return wrong(format!("the node sent what is no piece of {}", fetch.src));
            };
            if bytes.is_empty() {
                return wrong(format!(
                    "the node said that {} has {size} bytes, and sent {}; it changed while it was read, or the node lies",
                    fetch.src, arriving.has
                ));
            }
            if bytes.len() as u64 > wanted {
                return wrong(format!(
                    "the node sent more of {} than was asked for: {} bytes, not {wanted}; the helper there is not ours",
                    fetch.src,
                    bytes.len()
                ));
            }
            arriving.take(&bytes)?;
            came.store(arriving.has, Ordering::Relaxed);
        }
        if arriving.digest() != digest {
            return wrong(format!("checksum mismatch: {} changed on the node while it was read", fetch.src));
        }
        arriving.place()?;
        match read_local(place).await {
            Ok(Some(found)) if found.sha256 == digest => Ok(outcome(fetch, &found, true)),
            _ => {
                Ok(failed(FailureKind::Unconverged, format!("{} does not hold what was written", fetch.dest)))
            }
        }
    }
}

/// How much to ask for at once, in bytes, where so much took so long: a slow line brings small pieces in good time, and on
/// a fast one the way to and fro costs little.
fn next_length(length: u64, took: Duration) -> u64 {
    match took.as_millis() {
        ..=500 => (length * 2).min(READ_PIECE),
        501..=2000 => length,
        _ => (length / 2).max(FIRST_PIECE),
    }
}

async fn read_local(path: PathBuf) -> io::Result<Option<Local>> {
    tokio::task::spawn_blocking(move || local(&path)).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_line_brings_small_pieces_and_a_fast_one_large_ones() {
        let after = |milliseconds: u64, times: usize, from: u64| {
            (0..times).fold(from, |length, _| next_length(length, Duration::from_millis(milliseconds)))
        };
        assert_eq!(after(20, 10, FIRST_PIECE), READ_PIECE);
        assert_eq!(after(1000, 10, 4 * FIRST_PIECE), 4 * FIRST_PIECE);
        assert_eq!(after(5000, 10, READ_PIECE), FIRST_PIECE);
    }

    #[test]
    fn base64_is_read() {
        for (text, wanted) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("aGkyCg==", "hi2\n")]
        {
            assert_eq!(decoded(text).as_deref(), Some(wanted.as_bytes()), "{text}");
        }
        for bad in ["Zg", "Zg=", "Z!==", "===="] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }
}

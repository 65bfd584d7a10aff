//! `fetch`: a file of a node comes to the controller piece by piece.
//!
//! Owns the place on the controller while it is written. What came is compared with the digest that the node gave
//! first; until then it lies beside its place under another name. At no time is more than one piece in memory.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus,
    message::Mode,
    op::{READ_PIECE, ReadPiece},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::node::{Cut, NodeTask};
use crate::interpreter::{Action, Fed, FetchFile};

/// Digests of a file of the controller.
struct Local {
    sha256: String,
    sha1: String,
    md5: String,
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
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

impl NodeTask {
    async fn piece(
        &mut self,
        action: &Action,
        path: &str,
        offset: u64,
        length: u64,
    ) -> Result<Result<OpOutcome, Fed>, Cut> {
        let link = self.link().await?;
        let request = OpRequest {
            op: NodeOp::ReadPiece(ReadPiece { path: path.to_owned(), offset, length }),
            mode: Mode::Apply,
            permit: None,
            run_as: self.run_as(&action.run_as),
            timeout_s: action.timeout_s.unwrap_or(self.task_timeout_s),
            op_id: String::new(),
            secret: true,
            environment: Vec::new(),
        };
        match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) if outcome.status == OpStatus::Ok => Ok(Ok(outcome)),
            Ok(outcome) => Ok(Err(Fed::Outcome(Box::new(outcome)))),
            Err(error) => self.broken_off(error).await.map(Err),
        }
    }

    pub(super) async fn fetch(&mut self, action: &Action, fetch: &FetchFile) -> Result<Fed, Cut> {
        let first = match self.piece(action, &fetch.src, 0, 0).await? {
            Ok(first) => first,
            Err(fed) => return Ok(fed),
        };
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
        let Some(digest) = text(&first, "sha256").map(str::to_owned) else {
            return Ok(failed(FailureKind::Io, "the node gave no digest of the file".to_owned()));
        };
        let place = PathBuf::from(&fetch.dest);
        match read_local(place.clone()).await {
            Ok(Some(found)) if found.sha256 == digest => return Ok(outcome(fetch, &found, false)),
            Ok(_) => {}
            Err(error) => {
                return Ok(failed(FailureKind::Io, format!("cannot read {} here: {error}", fetch.dest)));
            }
        }
        let mut arriving = match Arriving::at(&place) {
            Ok(arriving) => arriving,
            Err(error) => {
                return Ok(failed(FailureKind::Io, format!("cannot write {} here: {error}", fetch.dest)));
            }
        };
        let mut offset = 0;
        while offset < size {
            let piece = match self.piece(action, &fetch.src, offset, READ_PIECE).await? {
                Ok(piece) => piece,
                Err(fed) => return Ok(fed),
            };
            let Some(bytes) = text(&piece, "content").and_then(decoded).filter(|bytes| !bytes.is_empty())
            else {
                break;
            };
            offset += bytes.len() as u64;
            if let Err(error) = arriving.take(&bytes) {
                return Ok(failed(FailureKind::Io, format!("cannot write {} here: {error}", fetch.dest)));
            }
        }
        if arriving.digest() != digest {
            let why = format!("checksum mismatch: {} changed on the node while it was read", fetch.src);
            return Ok(failed(FailureKind::Io, why));
        }
        if let Err(error) = arriving.place(&place) {
            return Ok(failed(FailureKind::Io, format!("cannot write {} here: {error}", fetch.dest)));
        }
        match read_local(place).await {
            Ok(Some(found)) if found.sha256 == digest => Ok(outcome(fetch, &found, true)),
            _ => {
                Ok(failed(FailureKind::Unconverged, format!("{} does not hold what was written", fetch.dest)))
            }
        }
    }
}

async fn read_local(path: PathBuf) -> io::Result<Option<Local>> {
    tokio::task::spawn_blocking(move || local(&path)).await.map_err(io::Error::other)?
}

/// A file that is not yet at its place.
struct Arriving {
    file: tempfile::NamedTempFile,
    digest: Sha256,
}

impl Arriving {
    fn at(place: &Path) -> io::Result<Self> {
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let file = tempfile::Builder::new().prefix(".gpufleet-").tempfile_in(folder)?;
        Ok(Self { file, digest: Sha256::new() })
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.file.write_all(bytes)
    }

    fn digest(&self) -> String {
        hex(self.digest.clone().finalize())
    }

    fn place(self, place: &Path) -> io::Result<()> {
        self.file.persist(place).map(|_| ()).map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_file_arrives_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a/b/file");
        let mut arriving = Arriving::at(&place).unwrap();
        arriving.take(b"ab").unwrap();
        arriving.take(b"c").unwrap();
        assert!(!place.exists());
        let digest = arriving.digest();
        arriving.place(&place).unwrap();
        let found = local(&place).unwrap().unwrap();
        assert_eq!((found.sha256, found.sha1.as_str()), (digest, "a9993e364706816aba3e25717850c26c9cd0d89d"));
        assert_eq!(found.md5, "900150983cd24fb0d6963f7d28e17f72");
        drop(Arriving::at(&folder.path().join("x")).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "what is given up leaves nothing");
        assert!(local(&folder.path().join("none")).unwrap().is_none());
    }
}

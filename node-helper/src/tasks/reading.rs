//! Kinds that only read: `slurp`, the pieces of `fetch`, `find`, `ping`.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::{
    OpOutcome, OpStatus,
    glob::Glob,
    op::{READ_PIECE, ReadPiece},
    pattern::{LineBreaks, Pattern},
    tasks::{AGES, AgeStamp, ChecksumAlgorithm, Find, FindType, Ping, SIZES, Slurp, bound},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Node, Trouble},
    os::{
        checksum::{self, base64},
        files::{At, FileError},
        tree::{self, Dir, Spot},
    },
    tasks::stat,
    world::Entry,
};

/// Largest file for `slurp`, in bytes, as its base64 must fit into one answer.
const SLURP_LIMIT: u64 = 10 * 1024 * 1024;
/// Largest number of found files; more are refused.
const MOST_FOUND: usize = 50_000;
/// Largest file in which `find` searches for text, in bytes.
const CONTAINS_LIMIT: u64 = 64 * 1024 * 1024;

fn ok(data: Map<String, Value>) -> OpOutcome {
    let mut outcome = OpOutcome::new(OpStatus::Ok);
    outcome.data = data;
    outcome
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Map<String, Value> {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub fn ping(task: &Ping) -> OpOutcome {
    ok(map([("ping", json!(task.data))]))
}

/// # Errors
/// If there is no such file, or it is too large.
pub fn slurp(task: &Slurp, node: &Node<'_>) -> Result<OpOutcome, Trouble> {
    let path = node.roots.path(&task.src);
    let (place, entry) = node.world.follow(&path)?;
    match entry {
        Entry::Absent => return Err(Trouble::invalid(format!("File not found: {}", task.src))),
        Entry::Directory { .. } => {
            return Err(Trouble::invalid(format!("source is a directory and must be a file: {}", task.src)));
        }
        _ => {}
    }
    if fs::metadata(&place).is_ok_and(|meta| meta.len() > SLURP_LIMIT) {
        return Err(Trouble::invalid(format!(
            "{} has more than {} MiB; `fetch` brings larger files",
            task.src,
            SLURP_LIMIT >> 20
        )));
    }
    let bytes = node.world.read(&place)?.unwrap_or_default();
    if bytes.len() as u64 > SLURP_LIMIT {
        return Err(Trouble::invalid(format!("{} is too large for `slurp`; use `fetch`", task.src)));
    }
    Ok(ok(map([
        ("content", json!(base64(&bytes))),
        ("encoding", json!("base64")),
        ("source", json!(task.src)),
    ])))
}

/// # Errors
/// If the path is no file, or cannot be read.
pub fn piece(task: &ReadPiece, node: &Node<'_>) -> Result<OpOutcome, Trouble> {
    let path = node.roots.path(&task.path);
    match node.world.follow(&path)?.1 {
        Entry::Absent => return Ok(ok(map([("missing", json!(true))]))),
        Entry::Directory { .. } => {
            return Err(Trouble::invalid("remote file is a directory, fetch cannot work on directories"));
        }
        _ => {}
    }
    let mut file = tree::open(&path)?;
    let size = file.metadata().at("look at", &path)?.size();
    let mut data = map([("size", json!(size))]);
    if size > task.max_size {
        return Ok(ok(data));
    }
    if task.offset == 0 {
        // No further, because the file may grow meanwhile.
        let content = node.deadline.reader((&file).take(size));
        let sha256 = checksum::of(ChecksumAlgorithm::Sha256, content).at("read", &path)?;
        data.insert("sha256".to_owned(), json!(sha256));
    }
    file.seek(SeekFrom::Start(task.offset)).at("read", &path)?;
    let mut bytes = Vec::new();
    file.take(task.length.min(READ_PIECE)).read_to_end(&mut bytes).at("read", &path)?;
    data.insert("content".to_owned(), json!(base64(&bytes)));
    Ok(ok(data))
}

struct Filter<'a> {
    task: &'a Find,
    patterns: Vec<Pattern>,
    excludes: Vec<Pattern>,
    contains: Option<Pattern>,
    now: i64,
}

impl<'a> Filter<'a> {
    fn new(task: &'a Find) -> Result<Self, Trouble> {
        let compile =
            |name: &str, text: &str| Pattern::new(name, text, LineBreaks::Plain).map_err(Trouble::invalid);
        let all = |name: &str, texts: &[String]| -> Result<Vec<Pattern>, Trouble> {
            let texts = texts.iter().filter(|_| task.use_regex);
            texts.map(|text| compile(name, &format!("^(?:{text})"))).collect()
        };
        let contains = task.contains.as_deref().map(|text| match task.read_whole_file {
            true => compile("contains", text),
            false => compile("contains", &format!("^(?:{text})")),
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Ok(Self {
            task,
            patterns: all("patterns", &task.patterns)?,
            excludes: all("excludes", &task.excludes)?,
            contains: contains.transpose()?,
            now: i64::try_from(now).unwrap_or(i64::MAX),
        })
    }

    fn named(&self, name: &str) -> Result<bool, String> {
        let any = |globs: &[String], regexps: &[Pattern]| {
            if !self.task.use_regex {
                return Ok(globs.iter().any(|pattern| Glob::new(pattern).matches(name)));
            }
            any_match(regexps, name.as_bytes())
        };
        Ok((self.task.patterns.is_empty() || any(&self.task.patterns, &self.patterns)?)
            && !any(&self.task.excludes, &self.excludes)?)
    }

    fn fits(&self, spot: &Spot, meta: &fs::Metadata) -> Result<bool, String> {
        let kind = meta.file_type();
        let typed = match self.task.file_type {
            FindType::Any => true,
            FindType::File => kind.is_file(),
            FindType::Directory => kind.is_dir(),
            FindType::Link => kind.is_symlink(),
        };
        let within = |text: Option<&String>, units, value: i64| {
            text.and_then(|text| bound(text, units))
                .is_none_or(|(least, limit)| if least { value >= limit } else { value <= limit })
        };
        let stamp = match self.task.age_stamp {
            AgeStamp::Mtime => meta.mtime(),
            AgeStamp::Atime => meta.atime(),
            AgeStamp::Ctime => meta.ctime(),
        };
        let size = i64::try_from(meta.size()).unwrap_or(i64::MAX);
        let plain = typed
            && within(self.task.age.as_ref(), AGES, self.now - stamp)
            && (!kind.is_file() || within(self.task.size.as_ref(), SIZES, size));
        match self.contains.as_ref().filter(|_| plain) {
            Some(regexp) => holds(spot, regexp, self.task.read_whole_file),
            None => Ok(plain),
        }
    }
}

/// Whether a line of the file matches, or with `whole` the file.
fn holds(spot: &Spot, regexp: &Pattern, whole: bool) -> Result<bool, String> {
    let Ok(file) = spot.open() else { return Ok(false) };
    let mut bytes = Vec::new();
    if file.take(CONTAINS_LIMIT).read_to_end(&mut bytes).is_err() {
        return Ok(false);
    }
    if whole {
        return regexp.is_match(&bytes);
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        if regexp.is_match(line)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn any_match(regexps: &[Pattern], text: &[u8]) -> Result<bool, String> {
    for regexp in regexps {
        if regexp.is_match(text)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A directory that is still to be searched.
enum Folder {
    /// By path; links are followed.
    At(PathBuf),
    /// In an open directory, without following a link; with the path to show.
    In(Spot, PathBuf),
}

impl Folder {
    fn path(&self) -> PathBuf {
        match self {
            Self::At(path) | Self::In(_, path) => path.clone(),
        }
    }

    fn open(&self) -> Result<Dir, FileError> {
        match self {
            Self::At(path) => tree::dir(path),
            Self::In(spot, _) => spot.enter(),
        }
    }
}

/// # Errors
/// If an expression cannot be compiled, or there are too many files.
pub fn find(task: &Find, node: &Node<'_>) -> Result<OpOutcome, Trouble> {
    let filter = Filter::new(task)?;
    let (mut files, mut examined, mut skipped) = (Vec::new(), 0u64, Map::new());
    let mut folders: Vec<(Folder, u32)> = Vec::new();
    for path in task.paths.iter().rev() {
        let folder = node.roots.path(path);
        if folder.is_dir() {
            folders.push((Folder::At(folder), 1));
        } else {
            skipped.insert(path.clone(), json!(format!("'{path}' is not a directory")));
        }
    }
    while let Some((folder, depth)) = folders.pop() {
        node.check_time()?;
        let read = folder.open().and_then(|dir| Ok((dir.names()?, dir)));
        let (names, dir) = match read {
            Ok(read) => read,
            Err(error) => {
                skipped.insert(shown(node, &folder.path()), json!(error.source.to_string()));
                continue;
            }
        };
        let mut below = Vec::new();
        for name in names {
            node.check_time()?;
            let spot = dir.spot(&name);
            // By the given path, so that results show it even if a link leads to the directory.
            let path = folder.path().join(&name);
            let name = name.to_string_lossy();
            examined += 1;
            let Ok(Some(mut meta)) = spot.look() else { continue };
            let (mut end, mut through) = (spot.clone(), false);
            if task.follow
                && meta.is_symlink()
                && let Ok(found) = tree::followed(&spot.path())
                && let Ok(Some(there)) = found.look()
            {
                (meta, end, through) = (there, found, true);
            }
            let deeper = task.depth.is_none_or(|most| depth < most);
            if meta.is_dir() && task.recurse && deeper && (task.hidden || !name.starts_with('.')) {
                let next = if through { Folder::At(path.clone()) } else { Folder::In(spot, path.clone()) };
                below.push((next, depth + 1));
            }
            let fits = || Ok(filter.named(&name)? && filter.fits(&end, &meta)?);
            let fits =
                fits().map_err(|why: String| Trouble::invalid(format!("{why}, {}", path.display())))?;
            if (name.starts_with('.') && !task.hidden) || !fits {
                continue;
            }
            if files.len() >= MOST_FOUND {
                return Err(Trouble::invalid(format!("more than {MOST_FOUND} files match; narrow it down")));
            }
            let mut found = map([("path", json!(shown(node, &path)))]);
            stat::brief(&mut found, &meta, node.users);
            if task.get_checksum && meta.is_file() {
                let sha1 = checksum::of(ChecksumAlgorithm::Sha1, node.deadline.reader(end.open()?))
                    .at("read", &path)?;
                found.insert("checksum".to_owned(), json!(sha1));
            }
            files.push(Value::Object(found));
        }
        folders.extend(below.into_iter().rev());
    }
    let said = if skipped.is_empty() {
        "All paths examined"
    } else {
        "Not all paths examined, check warnings for details"
    };
    Ok(ok(map([
        ("matched", json!(files.len())),
        ("files", Value::Array(files)),
        ("examined", json!(examined)),
        ("skipped_paths", Value::Object(skipped)),
        ("msg", json!(said)),
    ])))
}

/// Returns a path for results, without a replaced root.
fn shown(node: &Node<'_>, path: &Path) -> String {
    let root = node.roots.path("/");
    match path.strip_prefix(&root) {
        Ok(rest) if !node.roots.is_real() => format!("/{}", rest.display()),
        _ => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    fn found(bench: &Bench, value: Value) -> Vec<String> {
        let task: Find = serde_json::from_value(value).unwrap();
        let outcome = bench.node(|node| find(&task, node).unwrap());
        let files = outcome.data["files"].as_array().unwrap();
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn find_looks_as_ansible_does() {
        let bench = Bench::new();
        for (path, text) in
            [("srv/a.log", "one\ntwo\n"), ("srv/b.txt", ""), ("srv/.c.log", ""), ("srv/sub/d.log", "x")]
        {
            bench.write(path, text);
        }
        assert_eq!(found(&bench, json!({"paths": "/srv"})), ["/srv/a.log", "/srv/b.txt"]);
        assert_eq!(
            found(&bench, json!({"paths": "/srv", "patterns": "*.log", "recurse": true})),
            ["/srv/a.log", "/srv/sub/d.log"]
        );
        assert_eq!(
            found(&bench, json!({"paths": "/srv", "hidden": true, "excludes": ["a*", "b*"]})),
            ["/srv/.c.log"]
        );
        assert_eq!(found(&bench, json!({"paths": "/srv", "file_type": "directory"})), ["/srv/sub"]);
        assert_eq!(found(&bench, json!({"paths": "/srv", "contains": "tw"})), ["/srv/a.log"]);
        let inside = json!({"paths": "/srv", "contains": "wo"});
        assert_eq!(found(&bench, inside.clone()), Vec::<String>::new());
        let mut whole = inside;
        whole["read_whole_file"] = json!(true);
        assert_eq!(found(&bench, whole), ["/srv/a.log"]);
        assert_eq!(
            found(&bench, json!({"paths": "/srv", "size": "1", "recurse": true})),
            ["/srv/a.log", "/srv/sub/d.log"]
        );
        assert_eq!(
            found(&bench, json!({"paths": "/srv", "patterns": ["b.t", "a"], "use_regex": true})).len(),
            2
        );
        assert_eq!(found(&bench, json!({"paths": "/srv", "age": "1d"})), Vec::<String>::new());
        assert_eq!(found(&bench, json!({"paths": ["/none", "/srv"], "age": "-1d"})).len(), 2);
    }

    #[test]
    fn slurp_gives_base64_and_names_what_is_missing() {
        let bench = Bench::new();
        bench.write("etc/x", "hi2\n");
        let read = |src: &str| bench.node(|node| slurp(&Slurp { src: src.into() }, node));
        assert_eq!(read("/etc/x").unwrap().data["content"], "aGkyCg==");
        assert!(
            matches!(read("/etc/none"), Err(Trouble::Failed { message, .. }) if message == "File not found: /etc/none")
        );
        assert!(read("/etc").is_err());
    }

    #[test]
    fn pieces_make_the_file() {
        let bench = Bench::new();
        bench.write("etc/x", "0123456789");
        let read = |offset, length| {
            let task = ReadPiece { path: "/etc/x".into(), offset, length, max_size: 10 };
            bench.node(|node| piece(&task, node).unwrap()).data
        };
        let first = read(0, 4);
        assert_eq!((&first["size"], &first["content"]), (&json!(10), &json!("MDEyMw==")));
        assert_eq!(first["sha256"], json!(crate::os::files::sha256(b"0123456789")));
        assert_eq!(read(8, 4)["content"], json!("ODk="));
        assert_eq!(read(10, 4)["content"], json!(""));
        let task = ReadPiece { path: "/etc/x".into(), offset: 0, length: 4, max_size: 9 };
        let larger = bench.node(|node| piece(&task, node).unwrap()).data;
        assert_eq!(larger, map([("size", json!(10))]), "it is not even read");
    }
}

//! `copy` and `template`: a file with given content.
//!
//! Content is identified by its digest; what the node already has is not sent. It is written to a temporary file beside
//! the destination, piece by piece, and renamed once it is complete, checked, and has its owner and mode.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject, Unit,
    change::Value as Typed,
    op::PutFile,
    tasks::{ChecksumAlgorithm, FileMode},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        checksum::{self, Digests},
        civil, diff,
        files::{self, At, Fresh, Ownership},
        mode, tree,
    },
    process::Run,
    tasks::ownership::{self, Wanted},
    world::{Content, Effect, Entry, Owned, ReadError},
};

/// Largest text for a diff, in bytes.
const DIFF_LIMIT: usize = 64 * 1024;
/// Files larger than this, in bytes, are not read if their size already differs.
const LARGE: u64 = 256 * 1024 * 1024;

#[derive(Debug)]
pub struct State {
    dest: PathBuf,
    /// The destination, for messages.
    shown: String,
    /// Folders to create, the outermost first.
    folders: Vec<PathBuf>,
    entry: Entry,
    /// Digests of the present content.
    now: Option<Digests>,
    /// The present text, if a diff may be shown.
    text: Option<String>,
    /// Declared digest and size.
    wanted: (String, u64),
    /// A file on the node with the content.
    source: Option<PathBuf>,
    ownership: Wanted,
}

#[derive(Debug)]
pub enum Step {
    Folder(PathBuf),
    Content,
    Ownership(Ownership),
}

fn content(sha256: &str, size: u64) -> Typed {
    match sha256.is_empty() {
        true => Typed::quantity(size, Unit::Bytes),
        false => {
            Typed::Digest { algorithm: "sha256".to_owned(), value: sha256.to_owned(), bytes: Some(size) }
        }
    }
}

/// Returns the digests of the present content; of a large file with another size than declared only the size.
///
/// A user of the node may create a file of any size, and another size proves that it differs.
fn current(content: &Content, wanted: u64, node: &Node<'_>) -> Result<Digests, Trouble> {
    if let Content::On(path) = content {
        let size = tree::open(path)?.metadata().at("look at", path)?.len();
        if size > LARGE && size != wanted {
            return Ok(Digests { sha256: String::new(), sha1: None, md5: None, size });
        }
    }
    Ok(node.world.digests(content, node.deadline)?)
}

impl State {
    fn kept(&self, task: &PutFile) -> bool {
        !task.force && self.entry != Entry::Absent
    }

    fn bits(&self) -> u32 {
        let current = match &self.entry {
            Entry::File { owned, .. } => owned.mode,
            _ => 0o644,
        };
        self.ownership.mode.as_deref().and_then(|text| mode::resolve(text, current, false)).unwrap_or(current)
    }

    fn owned(&self) -> Owned {
        let now = match &self.entry {
            Entry::File { owned, .. } => *owned,
            _ => Owned {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                mode: 0o644,
            },
        };
        Owned {
            uid: self.ownership.uid.unwrap_or(now.uid),
            gid: self.ownership.gid.unwrap_or(now.gid),
            mode: self.bits(),
        }
    }
}

impl NodeKind for PutFile {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let world = &node.world;
        let given = node.roots.path(&self.dest);
        let (place, there) = world.follow(&given)?;
        let mut folders = Vec::new();
        let into_folder = matches!(there, Entry::Directory { .. });
        let (dest, shown) = if into_folder || self.dest.ends_with('/') {
            if self.name.is_empty() || self.name.contains('/') {
                return Err(Trouble::invalid(format!("`{}` is not the name of a file", self.name)));
            }
            let mut missing = if into_folder { None } else { Some(place.clone()) };
            while let Some(folder) = missing {
                match world.entry(&folder)? {
                    Entry::Absent => {
                        missing = folder.parent().map(Path::to_owned);
                        folders.insert(0, folder);
                    }
                    Entry::Directory { .. } | Entry::Link { .. } => break,
                    other => {
                        return Err(Trouble::invalid(format!(
                            "{} is a {}, not a directory",
                            folder.display(),
                            other.what()
                        )));
                    }
                }
            }
            (place.join(&self.name), format!("{}/{}", self.dest.trim_end_matches('/'), self.name))
        } else {
            (given, self.dest.clone())
        };
        if folders.is_empty() {
            let folder = dest.parent().unwrap_or(Path::new("/"));
            if !matches!(world.follow(folder)?.1, Entry::Directory { .. }) {
                return Err(Trouble::invalid(format!(
                    "the directory {} for {shown} does not exist; a `file` task with `state: directory` makes it",
                    Path::new(&shown).parent().unwrap_or(folder).display()
                )));
            }
        }
        let (dest, entry) = match world.entry(&dest)? {
            Entry::Link { .. } if self.follow => world.follow(&dest)?,
            entry => (dest, entry),
        };
        match &entry {
            Entry::Directory { .. } | Entry::Other { .. } => {
                return Err(Trouble::invalid(format!("{shown} is a {}, not a file", entry.what())));
            }
            _ => {}
        }
        let mut preserved = None;
        let (source, wanted) = match (&self.remote_src, &self.blob) {
            (Some(path), _) => {
                let path = node.roots.path(path);
                match world.follow(&path)? {
                    (place, Entry::File { content, owned }) => {
                        preserved = Some(mode::octal(owned.mode));
                        (Some(place), world.digest(&content, node.deadline)?)
                    }
                    (_, Entry::Absent) => {
                        return Err(Trouble::invalid(format!(
                            "there is no file {} on the node",
                            path.display()
                        )));
                    }
                    (_, other) => {
                        return Err(Trouble::invalid(format!(
                            "{} is a {}, not a file",
                            path.display(),
                            other.what()
                        )));
                    }
                }
            }
            (None, Some(blob)) => (None, (blob.sha256.clone(), blob.size)),
            (None, None) => return Err(Trouble::invalid("neither content nor a file of the node is given")),
        };
        let now = match &entry {
            Entry::File { content, .. } => Some(current(content, wanted.1, node)?),
            _ => None,
        };
        let mut text = None;
        if !self.secret
            && self.preview.is_some()
            && now.as_ref().is_none_or(|now| now.size <= DIFF_LIMIT as u64)
        {
            text = match (&entry, world.read(&dest)) {
                (Entry::Absent, _) => Some(String::new()),
                (_, Ok(bytes)) => String::from_utf8(bytes.unwrap_or_default()).ok(),
                (_, Err(ReadError::Foreseen(_))) => None,
                (_, Err(ReadError::File(error))) => return Err(error.into()),
            };
        }
        let mut ownership =
            Wanted::resolve(node.users, self.owner.as_deref(), self.group.as_deref(), self.mode.as_ref())?;
        if self.mode.as_ref().is_some_and(FileMode::is_preserve) {
            ownership.mode = preserved;
        }
        Ok(State { dest, shown, folders, entry, now, text, wanted, source, ownership })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        if state.kept(self) {
            if let Some(source) = &self.source {
                plan.data.insert("src".to_owned(), json!(source));
            }
            return Ok(plan);
        }
        for folder in &state.folders {
            let subject = Subject::file(folder.display().to_string());
            let change = Change::new(subject, Property::TYPE, Typed::Absent, "directory", Disruption::Live);
            plan.push(Step::Folder(folder.clone()), change);
        }
        let same = state.now.as_ref().is_some_and(|now| now.sha256 == state.wanted.0);
        // As in Ansible, which calls its module `file` if the content is there already, with `path` and without a
        // source; a file of the node always goes through its module `copy`.
        match (&self.remote_src, &self.source) {
            (Some(_), _) => {}
            (None, _) if same => drop(plan.data.insert("path".to_owned(), json!(state.shown))),
            (None, Some(source)) => drop(plan.data.insert("src".to_owned(), json!(source))),
            (None, None) => {}
        }
        if self.remote_src.is_none() {
            let told = if same { None } else { told_diff(self, state) };
            plan.data.insert("diff".to_owned(), Value::Array(told.into_iter().collect()));
        }
        if !same {
            let from = match (&state.entry, &state.now) {
                (Entry::Link { .. }, _) => "link".into(),
                (_, Some(_)) if self.secret => Typed::Secret,
                (_, now) => now.as_ref().map(|now| content(&now.sha256, now.size)).into(),
            };
            let to = if self.secret { Typed::Secret } else { content(&state.wanted.0, state.wanted.1) };
            let file = Subject::file(&state.shown);
            let mut change = Change::new(file, Property::CONTENT, from, to, Disruption::Live);
            if let (Some(old), Some(new)) = (&state.text, &self.preview)
                && new.len() <= DIFF_LIMIT
            {
                change.diff = Some(diff::unified(&state.shown, old, new));
            }
            plan.push(Step::Content, change);
        }
        if let Entry::File { owned, .. } = &state.entry {
            let (ownership, changes) = ownership::differences(&state.shown, *owned, &state.ownership, false)?;
            if !changes.is_empty() {
                plan.steps.push(Step::Ownership(ownership));
                plan.changes.extend(changes);
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let owned = state.owned();
        for step in &plan.steps {
            if let Step::Folder(path) = step {
                let entry = Entry::Directory { owned: Owned { mode: 0o755, ..owned } };
                effects.push(Effect::Path { path: path.clone(), entry });
            }
        }
        if plan.steps.iter().any(|step| !matches!(step, Step::Folder(_))) {
            let changed = plan.steps.iter().any(|step| matches!(step, Step::Content));
            let content = match (&state.entry, &self.preview, &state.source) {
                (Entry::File { content, .. }, ..) if !changed => content.clone(),
                (_, Some(text), _) if files::sha256(text.as_bytes()) == state.wanted.0 => {
                    Content::Known(text.as_bytes().into())
                }
                (_, _, Some(source)) => Content::On(source.clone()),
                _ => Content::Digest { sha256: state.wanted.0.clone(), size: state.wanted.1 },
            };
            effects.push(Effect::Path { path: state.dest.clone(), entry: Entry::File { owned, content } });
        }
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut data = Map::new();
        for step in &plan.steps {
            match step {
                Step::Folder(path) => tree::spot(path)?.make_dir(0o777).at("make", path)?,
                Step::Content => put(self, node, state, &mut data)?,
                Step::Ownership(ownership) => tree::own(&state.dest, *ownership)?,
            }
        }
        Ok(data)
    }

    fn subject(&self, state: &State) -> Option<PathBuf> {
        Some(state.dest.clone())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("dest".to_owned(), json!(state.shown));
        if let Some(src) = &self.remote_src {
            data.insert("src".to_owned(), json!(src));
        }
        let told = state.now.as_ref().filter(|_| !self.secret);
        if let Some(sha1) = told.and_then(|now| now.sha1.as_ref()) {
            data.insert("checksum".to_owned(), json!(sha1));
        }
        if let Some(md5) = told.filter(|_| self.remote_src.is_some()).and_then(|now| now.md5.as_ref()) {
            data.insert("md5sum".to_owned(), json!(md5));
        }
        data
    }
}

/// Returns the text before and after under Ansible's names, if a diff was requested and both may be shown.
fn told_diff(task: &PutFile, state: &State) -> Option<Value> {
    let (old, new) = (state.text.as_ref()?, task.preview.as_ref().filter(|_| task.tells_diff)?);
    let mut told = Map::new();
    told.insert("before".to_owned(), json!(old));
    told.insert("after".to_owned(), json!(new));
    told.insert("after_header".to_owned(), json!(task.source.as_ref().unwrap_or(&state.shown)));
    if state.entry != Entry::Absent {
        told.insert("before_header".to_owned(), json!(state.shown));
    }
    Some(Value::Object(told))
}

fn put(task: &PutFile, node: &Node<'_>, state: &State, data: &mut Map<String, Value>) -> Result<(), Trouble> {
    let mut fresh = Fresh::beside(&state.dest)?;
    let (mut digest, mut md5) = (Sha256::new(), md5::Context::new());
    let mut size = 0u64;
    {
        let mut sink = |piece: &[u8]| {
            digest.update(piece);
            md5.consume(piece);
            size += piece.len() as u64;
            if size > state.wanted.1 {
                return Err(Trouble::io(format!("the content for {} is longer than announced", state.shown)));
            }
            Ok(fresh.write_all(piece)?)
        };
        match (&state.source, &task.blob) {
            (Some(source), _) => copy_pieces(source, node, &mut sink)?,
            (None, Some(blob)) => node.fetch.fetch(blob, node.deadline, &mut sink)?,
            (None, None) => {}
        }
    }
    let got = files::hex(digest.finalize());
    if let Some(wanted) = &task.checksum {
        let content = fresh.content()?;
        let sha1 = checksum::of(ChecksumAlgorithm::Sha1, node.deadline.reader(content))
            .at("read", fresh.temporary())?;
        if !sha1.eq_ignore_ascii_case(wanted) {
            return Err(Trouble::invalid(format!(
                "Copied file does not match the expected checksum: {sha1} instead of {wanted}; {} was left as it is",
                state.shown
            )));
        }
    }
    if got != state.wanted.0 {
        return Err(Trouble::io(format!(
            "the content for {} has SHA-256 {got} instead of {}",
            state.shown, state.wanted.0
        )));
    }
    if let Some(command) = &task.validate {
        validate(node, command, &fresh, &state.shown)?;
    }
    if matches!(state.entry, Entry::File { .. }) {
        fresh.adopt()?;
    }
    fresh.own(Ownership { uid: state.ownership.uid, gid: state.ownership.gid, mode: Some(state.bits()) })?;
    if task.backup && matches!(state.entry, Entry::File { .. }) {
        let copy = files::back_up(&state.dest, &civil::stamp(SystemTime::now()), node.deadline)?;
        data.insert("backup_file".to_owned(), json!(copy));
    }
    fresh.place()?;
    if !task.secret {
        data.insert("md5sum".to_owned(), json!(files::hex(md5.finalize().0)));
    }
    Ok(())
}

fn copy_pieces(
    source: &Path,
    node: &Node<'_>,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    use std::io::Read as _;
    let mut file = tree::open(source)?;
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        node.check_time()?;
        match file.read(&mut buffer).at("read", source)? {
            0 => return Ok(()),
            count => sink(buffer.get(..count).unwrap_or_default())?,
        }
    }
}

/// Runs the validation command on the new content.
pub fn validate(node: &Node<'_>, command: &str, fresh: &Fresh, shown: &str) -> Result<(), Trouble> {
    let path = fresh.temporary().to_string_lossy().replace('\'', r"'\''");
    let line = command.replace("%s", &format!("'{path}'"));
    let mut run = Run::new("/bin/sh").args(["-c", &line]).user(node.user.clone());
    for (name, value) in node.environment {
        run = run.env(name, value);
    }
    let done = run.finish(node.deadline)?;
    if done.exit.success() {
        return Ok(());
    }
    Err(Trouble::failed(
        FailureKind::Invalid,
        format!(
            "{shown} was left as it is, because the new content was refused: {}",
            done.complaint(command)
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use gpufleet_protocol::{OpStatus, message::Mode, tasks::FileMode};

    use super::*;
    use crate::tasks::testing::{Bench, changed, tidy};

    fn put(bench: &mut Bench, dest: &str, text: &str) -> PutFile {
        PutFile {
            dest: dest.to_owned(),
            name: "name".to_owned(),
            blob: Some(bench.put(text)),
            remote_src: None,
            preview: Some(text.to_owned()),
            owner: None,
            group: None,
            mode: None,
            backup: false,
            force: true,
            validate: None,
            secret: false,
            follow: false,
            checksum: None,
            directory_mode: None,
            source: None,
            tells_diff: false,
        }
    }

    fn message(outcome: &gpufleet_protocol::OpOutcome) -> &str {
        match &outcome.status {
            OpStatus::Failed { message, .. } => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_is_put_once_and_looks_as_predicted() {
        let mut bench = Bench::new();
        let mut task = put(&mut bench, "/etc/motd", "hello\n");
        task.mode = Some(FileMode("0600".to_owned()));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        let applied = bench.run(&task, Mode::Apply);
        assert_eq!((&applied.status, &applied.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(
            applied.changes[0].diff.as_deref(),
            Some("--- /etc/motd (now)\n+++ /etc/motd (declared)\n@@ -0,0 +1,1 @@\n+hello\n")
        );
        assert_eq!(bench.read("etc/motd"), "hello\n");
        assert_eq!(applied.data["mode"], "0600");
        let settled = bench.snapshot();
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(changed(&settled, &bench.snapshot()), Vec::<PathBuf>::new());
    }

    /// A user of the node can create such a file with one call.
    #[test]
    fn a_huge_file_of_another_size_is_not_read() {
        let mut bench = Bench::new();
        bench.write("home/ann/.bashrc", "");
        fs::File::options()
            .write(true)
            .open(bench.path("home/ann/.bashrc"))
            .and_then(|file| file.set_len(8 << 40))
            .unwrap();
        let mut task = put(&mut bench, "/home/ann/.bashrc", "hello\n");
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(predicted.changes[0].from_text().as_deref(), Some("8796093022208 B"), "{predicted:?}");
        bench.forget();
        task.backup = true;
        let full = bench.run(&task, Mode::Apply);
        assert!(message(&full).contains("the disk has room for"), "{full:?}");
        task.backup = false;
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(bench.read("home/ann/.bashrc"), "hello\n");
    }

    #[test]
    fn the_mode_of_a_replaced_file_stays_unless_given() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let mut bench = Bench::new();
        bench.write("etc/motd", "old\n");
        fs::set_permissions(bench.path("etc/motd"), fs::Permissions::from_mode(0o640)).unwrap();
        let task = put(&mut bench, "/etc/motd", "new\n");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(fs::metadata(bench.path("etc/motd")).unwrap().mode() & 0o7777, 0o640);
        let task = PutFile { mode: Some(FileMode("g+w".to_owned())), ..task };
        let outcome = bench.run(&task, Mode::Apply);
        assert_eq!(outcome.changes[0].what(), "/etc/motd mode");
        assert_eq!(
            (outcome.changes[0].from_text().as_deref(), outcome.changes[0].to_text().as_str()),
            (Some("0640"), "0660")
        );
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_directory_gets_the_file_under_its_name() {
        let mut bench = Bench::new();
        fs::create_dir_all(bench.path("etc/conf.d")).unwrap();
        let task = put(&mut bench, "/etc/conf.d", "x");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("etc/conf.d/name"), "x");
        let task = put(&mut bench, "/srv/a/b/", "y");
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Changed);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("srv/a/b/name"), "y");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let mut bench = Bench::new();
        let task = put(&mut bench, "/srv/none/file", "x");
        let outcome = bench.run(&task, Mode::Apply);
        assert!(
            message(&outcome).contains("the directory /srv/none for /srv/none/file does not exist"),
            "{outcome:?}"
        );
    }

    #[test]
    fn wrong_content_changes_nothing() {
        let mut bench = Bench::new();
        bench.write("etc/motd", "old\n");
        let task = put(&mut bench, "/etc/motd", "new\n");
        let sha256 = task.blob.clone().unwrap().sha256;
        bench.store.0.insert(sha256, b"bad\n".to_vec());
        let outcome = bench.run(&task, Mode::Apply);
        assert!(message(&outcome).contains("instead of"), "{outcome:?}");
        assert_eq!(bench.read("etc/motd"), "old\n");
        assert!(tidy(&bench.path("etc")));
    }

    #[test]
    fn a_refused_file_stays_away() {
        let mut bench = Bench::new();
        bench.write("etc/sudoers", "old\n");
        let mut task = put(&mut bench, "/etc/sudoers", "new\n");
        task.validate = Some("grep -q old %s".to_owned());
        let outcome = bench.run(&task, Mode::Apply);
        assert!(message(&outcome).contains("left as it is"), "{outcome:?}");
        assert_eq!(bench.read("etc/sudoers"), "old\n");
        assert!(tidy(&bench.path("etc")));
        task.validate = Some("grep -q new %s".to_owned());
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
    }

    #[test]
    fn backup_force_and_links() {
        let mut bench = Bench::new();
        bench.write("etc/a", "old");
        let mut task = put(&mut bench, "/etc/a", "new");
        task.force = false;
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        task.force = true;
        task.backup = true;
        let outcome = bench.run(&task, Mode::Apply);
        let backup = outcome.data["backup_file"].as_str().unwrap();
        assert_eq!(fs::read_to_string(backup).unwrap(), "old");
        std::os::unix::fs::symlink("a", bench.path("etc/l")).unwrap();
        let task = put(&mut bench, "/etc/l", "link");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert!(fs::symlink_metadata(bench.path("etc/l")).unwrap().is_file());
        assert_eq!(bench.read("etc/a"), "new");
    }

    #[test]
    fn a_file_of_the_node_and_a_secret() {
        let mut bench = Bench::new();
        bench.write("etc/source", "text");
        let task = PutFile {
            blob: None,
            preview: None,
            remote_src: Some("/etc/source".into()),
            ..put(&mut bench, "/etc/copy", "")
        };
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("etc/copy"), "text");
        let kept = bench.run(&task, Mode::Apply).data;
        assert_eq!((&kept["md5sum"], kept.get("path")), (&json!("1cb251ec0d568de6a929b520c4aed8d1"), None));
        let secret = PutFile { secret: true, ..put(&mut bench, "/etc/copy", "password") };
        let outcome = bench.run(&secret, Mode::Apply);
        assert_eq!(outcome.changes[0].diff, None);
        assert_eq!(outcome.changes[0].to_text(), "secret content");
        assert!(!outcome.data.contains_key("checksum"));
    }

    #[test]
    fn results_tell_of_the_file_as_ansible_does() {
        let mut bench = Bench::new();
        let mut task = put(&mut bench, "/etc/motd", "hello\n");
        task.source = Some("/playbooks/files/motd".to_owned());
        let md5 = "b1946ac92492d2347c6235b4d2611184";
        let written = bench.run(&task, Mode::Apply).data;
        assert_eq!((&written["src"], &written["md5sum"]), (&json!("/playbooks/files/motd"), &json!(md5)));
        assert_eq!((written.get("path"), &written["diff"]), (None, &json!([])));
        task.tells_diff = true;
        let kept = bench.run(&task, Mode::Apply).data;
        assert_eq!((&kept["path"], &kept["diff"]), (&json!("/etc/motd"), &json!([])));
        assert!(!kept.contains_key("src") && !kept.contains_key("md5sum"), "{kept:?}");
        let mut other =
            PutFile { source: task.source.clone(), tells_diff: true, ..put(&mut bench, "/etc/motd", "x") };
        let told = json!([{
            "before": "hello\n",
            "after": "x",
            "before_header": "/etc/motd",
            "after_header": "/playbooks/files/motd",
        }]);
        assert_eq!(bench.run(&other, Mode::Predict).data["diff"], told);
        other.secret = true;
        let secret = bench.run(&other, Mode::Apply).data;
        assert_eq!((&secret["diff"], secret.get("md5sum")), (&json!([]), None));
    }

    #[test]
    fn unknown_owners_are_refused() {
        let mut bench = Bench::new();
        let task = PutFile { owner: Some("zoe".into()), ..put(&mut bench, "/etc/x", "") };
        assert_eq!(message(&bench.run(&task, Mode::Predict)), "there is no user `zoe` on this node");
    }
}

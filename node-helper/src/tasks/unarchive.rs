//! `unarchive`: a directory holds an archive's content, unpacked by the node's own `tar` or `unzip` as in Ansible.
//!
//! The archive is first compared with the directory, so that a second run unpacks nothing. An archive with a member
//! that leads out of the directory is refused.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    op::{Blob, UnpackArchive},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use self::merging::{Existing, Merge, Rules};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, At, FileError, Ownership},
        tree::{self, Dir},
    },
    process::{Finished, Run},
    tasks::{
        download::{Request, download},
        ownership::{self, Wanted},
    },
    world::{Content, Effect, Entry},
};

mod merging;

/// Largest list of an archive's members, in bytes.
const LIST_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Tar,
    Zip,
}

/// An archive as an open file, which no other process can replace.
#[derive(Debug)]
struct Staged {
    file: Arc<File>,
    format: Format,
}

/// A task with its archive, which is fetched once.
pub struct Unpacking<'a> {
    op: &'a UnpackArchive,
    staged: OnceLock<Staged>,
}

impl<'a> Unpacking<'a> {
    pub fn new(op: &'a UnpackArchive) -> Self {
        Self { op, staged: OnceLock::new() }
    }

    fn staged(&self, node: &Node<'_>) -> Result<&Staged, Trouble> {
        if let Some(staged) = self.staged.get() {
            return Ok(staged);
        }
        let file = match &self.op.blob {
            Some(blob) => pushed(blob, node)?,
            None if self.op.task.src.contains("://") => downloaded(self.op, node)?,
            None => {
                let (path, entry) = node.world.follow(&node.roots.path(&self.op.task.src))?;
                match entry {
                    Entry::File { content: Content::On(path), .. } => tree::open(&path)?,
                    // An earlier task of a prediction creates it.
                    Entry::File { .. } => return Err(Trouble::Possible),
                    _ => return Err(Trouble::invalid(format!("Source '{}' does not exist", path.display()))),
                }
            }
        };
        let format = format(&file).at("read", &self.op.task.src)?;
        Ok(self.staged.get_or_init(|| Staged { file: Arc::new(file), format }))
    }
}

fn format(mut file: &File) -> std::io::Result<Format> {
    let mut head = [0u8; 4];
    file.rewind()?;
    let count = file.read(&mut head)?;
    let zip = count == 4 && (head == *b"PK\x03\x04" || head == *b"PK\x05\x06");
    Ok(if zip { Format::Zip } else { Format::Tar })
}

/// Creates an open file without a name: no other process can open it, and nothing is left behind.
///
/// # Errors
/// If /var/tmp cannot be written.
pub fn unnamed() -> Result<File, Trouble> {
    let place = Path::new("/var/tmp");
    let (spot, file) = tree::dir(place)?.temporary("archive").at("write to", place)?;
    spot.remove().at("remove", spot.path())?;
    Ok(file)
}

fn pushed(blob: &Blob, node: &Node<'_>) -> Result<File, Trouble> {
    let mut file = unnamed()?;
    let mut digest = Sha256::new();
    node.fetch.fetch(blob, node.deadline, &mut |piece| {
        digest.update(piece);
        Ok(file.write_all(piece).at("write to", "/var/tmp")?)
    })?;
    let got = files::hex(digest.finalize());
    if got != blob.sha256 {
        return Err(Trouble::io(format!("the archive has SHA-256 {got} instead of {}", blob.sha256)));
    }
    Ok(file)
}

fn downloaded(op: &UnpackArchive, node: &Node<'_>) -> Result<File, Trouble> {
    let file = unnamed()?;
    let request = Request { timeout_s: 30, ..Request::plain(&op.task.src, op.task.validate_certs, u64::MAX) };
    download(&request, &file, node)?;
    Ok(file)
}

#[derive(Debug)]
pub struct State {
    dest: PathBuf,
    /// Why there is nothing to do.
    skipped: Option<String>,
    members: Vec<String>,
    /// The differences, in the program's words.
    differs: Vec<String>,
    /// Number of missing members.
    missing: usize,
    /// Whether the task allows existing files to differ from the archive.
    protects: bool,
    /// Paths whose owner or mode differs.
    own: Vec<Differs>,
    wanted: Wanted,
}

/// A path whose owner or mode differs.
#[derive(Debug)]
struct Differs {
    path: PathBuf,
    directory: bool,
    link: bool,
    set: Ownership,
}

fn own(paths: &[Differs]) -> Result<(), FileError> {
    paths.iter().try_for_each(|one| tree::spot(&one.path)?.own_as(one.directory, one.link, one.set))
}

#[derive(Debug)]
pub enum Step {
    Unpack,
    Own,
}

fn program(node: &Node<'_>, name: &str) -> Result<PathBuf, Trouble> {
    node.roots.tool(name).ok_or_else(|| {
        Trouble::invalid(format!("this node has no `{name}` to unpack the archive with; install it first"))
    })
}

fn finish(run: Run, node: &Node<'_>) -> Result<Finished, Trouble> {
    let done = run.user(node.user.clone()).env("LC_ALL", "C").limit(LIST_LIMIT).finish(node.deadline)?;
    if done.output.stdout.lost > 0 {
        return Err(Trouble::invalid("the archive has too many members"));
    }
    Ok(done)
}

impl Unpacking<'_> {
    /// Adds the options that select members, and the selected members.
    fn chosen(&self, run: Run, format: Format) -> Run {
        let task = &self.op.task;
        match format {
            Format::Tar => {
                let run = run.args(task.exclude.iter().map(|name| format!("--exclude={name}")));
                run.args(&task.include)
            }
            Format::Zip => {
                let run = run.args(&task.include);
                if task.exclude.is_empty() { run } else { run.arg("-x").args(&task.exclude) }
            }
        }
    }

    fn members(&self, staged: &Staged, node: &Node<'_>) -> Result<Vec<String>, Trouble> {
        let run = match staged.format {
            Format::Tar => {
                let mut run = Run::new(program(node, "tar")?).arg("--list");
                if !self.op.task.extra_opts.is_empty() {
                    run = run.arg("--show-transformed-names").args(&self.op.task.extra_opts);
                }
                self.chosen(run.arg("-f").arg(Run::INPUT), Format::Tar)
            }
            Format::Zip => {
                self.chosen(Run::new(program(node, "unzip")?).arg("-Z1").arg(Run::INPUT), Format::Zip)
            }
        };
        let done = finish(run.stdin_file(Arc::clone(&staged.file)), node)?;
        if !done.exit.success() {
            return Err(Trouble::invalid(format!(
                "Failed to find handler for \"{}\". Make sure the required command to extract the file is installed: {}",
                self.op.task.src,
                done.stderr().trim()
            )));
        }
        let members: Vec<String> = done.stdout().lines().map(str::to_owned).collect();
        if let Some(bad) = members.iter().find(|name| name.split('/').any(|part| part == "..")) {
            return Err(Trouble::invalid(format!(
                "nothing was unpacked: the member `{bad}` leads out of {}",
                self.op.task.dest
            )));
        }
        Ok(members)
    }

    fn tar_differences(
        &self,
        staged: &Staged,
        dest: &Path,
        node: &Node<'_>,
    ) -> Result<(Vec<String>, usize), Trouble> {
        let task = &self.op.task;
        let dest = tree::dir(dest)?;
        let mut run = Run::new(program(node, "tar")?).arg("--diff").directory(dest.held_path());
        if !task.extra_opts.is_empty() {
            run = run.arg("--show-transformed-names").args(&task.extra_opts);
        }
        let run = run.arg("-f").arg(Run::INPUT).stdin_file(Arc::clone(&staged.file));
        let done = finish(self.chosen(run, Format::Tar), node)?;
        let root =
            node.user.as_ref().map_or_else(|| rustix::process::geteuid().is_root(), |user| user.uid == 0);
        let (out, err) = (done.stdout(), done.stderr());
        let counts = |line: &&str| {
            let is = |end: &str| line.trim_end_matches('.').ends_with(end);
            (root && task.owner.is_none() && is("Uid differs"))
                || (root && task.group.is_none() && is("Gid differs"))
                || (task.mode.is_none() && is("Mode differs"))
                || is("Mod time differs")
                || is("Symlink differs")
                || is("Contents differ")
                || is("Size differs")
                || is("File type differs")
                || is("Cannot stat: No such file or directory")
                || line.contains("No such file or directory")
                || line.contains("Invalid owner")
                || line.contains("Invalid group")
        };
        // Lines with an empty name come from stripped components and do not count.
        let bogus = |line: &str| line.contains(": : ") || line.starts_with(": ");
        let found: Vec<String> = out
            .lines()
            .chain(err.lines())
            .filter(|line| !bogus(line))
            .filter(counts)
            .map(str::to_owned)
            .collect();
        let missing = found.iter().filter(|line| line.contains("No such file")).count();
        let told = err.lines().any(|line| line.contains("differ") || line.contains("No such file"));
        if !done.exit.success() && found.is_empty() && out.trim().is_empty() && !told {
            return Err(Trouble::io(format!("the archive cannot be compared: {}", err.trim())));
        }
        Ok((found, missing))
    }

    /// Compares length and checksum of each member with the present file.
    fn zip_differences(
        &self,
        staged: &Staged,
        dest: &Path,
        node: &Node<'_>,
    ) -> Result<(Vec<String>, usize), Trouble> {
        let run = Run::new(program(node, "unzip")?).arg("-v").arg(Run::INPUT);
        let run = run.stdin_file(Arc::clone(&staged.file));
        let done = finish(self.chosen(run, Format::Zip), node)?;
        if !done.exit.success() {
            return Err(Trouble::io(format!("the archive cannot be compared: {}", done.stderr().trim())));
        }
        let (mut found, mut missing) = (Vec::new(), 0);
        for line in done.stdout().lines() {
            let mut words = line.split_whitespace();
            let length = words.next().and_then(|word| word.parse::<u64>().ok());
            let (Some(length), Some(crc)) = (length, words.nth(5).filter(|crc| crc.len() == 8)) else {
                continue;
            };
            let Ok(crc) = u32::from_str_radix(crc, 16) else { continue };
            let Some((_, name)) = line.split_once(&format!("{crc:08x}  ")) else { continue };
            node.check_time()?;
            let path = dest.join(name.trim_end_matches('/'));
            match fs::symlink_metadata(&path) {
                Err(_) => {
                    missing += 1;
                    found.push(format!("{name}: No such file or directory"));
                }
                Ok(meta) if meta.is_dir() && name.ends_with('/') => {}
                Ok(meta) if meta.len() != length => found.push(format!("{name}: Size differs")),
                Ok(_) if crc32(node.deadline.reader(tree::open(&path)?)).at("read", &path)? != crc => {
                    found.push(format!("{name}: Contents differ"))
                }
                Ok(_) => {}
            }
        }
        Ok((found, missing))
    }
}

/// The checksum that zip archives use.
fn crc32(mut file: impl Read) -> std::io::Result<u32> {
    let mut buffer = vec![0u8; 64 * 1024];
    let mut crc = !0u32;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            return Ok(!crc);
        }
        for byte in buffer.get(..count).unwrap_or_default() {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
            }
        }
    }
}

impl Unpacking<'_> {
    /// Whether no other user can change a directory that is unpacked into.
    fn only_ours(&self, dest: &Dir, members: &[String]) -> bool {
        let mut folders: BTreeSet<&Path> = BTreeSet::new();
        for member in members {
            let path = Path::new(member.trim_start_matches('/'));
            // Members themselves too, because a directory of the archive may exist already.
            folders.extend(path.ancestors().filter(|folder| !folder.as_os_str().is_empty()));
        }
        dest.is_ours()
            && folders.into_iter().all(|folder| {
                let path = dest.path().join(folder);
                match fs::symlink_metadata(&path) {
                    Ok(meta) if meta.is_dir() || meta.is_symlink() => {
                        tree::dir_if_any(&path).is_ok_and(|found| found.is_none_or(|dir| dir.is_ours()))
                    }
                    _ => true,
                }
            })
    }

    fn unpack(&self, staged: &Staged, into: &Dir, node: &Node<'_>) -> Result<Finished, Trouble> {
        let task = &self.op.task;
        let run = match staged.format {
            Format::Tar => {
                let mut run = Run::new(program(node, "tar")?).arg("--extract");
                if task.keep_newer {
                    run = run.arg("--keep-newer-files");
                }
                self.chosen(run.args(&task.extra_opts).arg("-f").arg(Run::INPUT), Format::Tar)
            }
            Format::Zip => {
                let overwrite = if task.keep_newer { "-uo" } else { "-o" };
                let run = Run::new(program(node, "unzip")?).arg("-q").arg(overwrite);
                self.chosen(run.args(&task.extra_opts).arg(Run::INPUT), Format::Zip)
            }
        };
        finish(run.directory(into.held_path()).stdin_file(Arc::clone(&staged.file)), node)
    }

    fn rules(&self, format: Format) -> Rules {
        Rules::read(format, self.op.task.keep_newer, &self.op.task.extra_opts)
    }

    /// Unpacks into a closed directory beside the destination, and moves each file to its place.
    ///
    /// The program uses paths, and any user who may write to a directory below the destination could redirect them.
    fn unpack_aside(
        &self,
        staged: &Staged,
        dest: &Dir,
        members: &[String],
        node: &Node<'_>,
    ) -> Result<Finished, Trouble> {
        let (spot, closed) = dest.private(".gpufleet-unpack")?;
        let work = || -> Result<Finished, Trouble> {
            // One directory deeper, because the archive may change owner and mode of the directory itself.
            let inner = closed.spot("all");
            inner.make_new_dir(0o700).at("make", inner.path())?;
            let unpacked = inner.enter()?;
            let done = self.unpack(staged, &unpacked, node)?;
            if done.exit.success() {
                let rules = self.rules(staged.format);
                let directories = merging::directories(staged.format, members);
                let mut merge = Merge { existing: rules.existing, directories, node, kept: Vec::new() };
                merge.merge(&unpacked, dest, Path::new(""))?;
                merge.settle(&inner, &dest.spot("."), Path::new(""))?;
                if rules.existing == Existing::Refuse
                    && let Some(kept) = merge.kept.first()
                {
                    return Err(Trouble::failed(
                        FailureKind::Exit,
                        format!(
                            "failed to unpack {}: {} is there already, and an option of `extra_opts` keeps it; the \
                             rest was unpacked",
                            self.op.task.src,
                            dest.path().join(kept).display()
                        ),
                    ));
                }
            }
            Ok(done)
        };
        let done = work();
        let removed = spot.remove_all(&|| true);
        let done = done?;
        removed?;
        Ok(done)
    }
}

impl NodeKind for Unpacking<'_> {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let task = &self.op.task;
        let wanted =
            Wanted::resolve(node.users, task.owner.as_deref(), task.group.as_deref(), task.mode.as_ref())?;
        let (dest, there) = node.world.follow(&node.roots.path(&task.dest))?;
        let mut state = State {
            dest,
            skipped: None,
            members: Vec::new(),
            differs: Vec::new(),
            missing: 0,
            protects: task.keep_newer,
            own: Vec::new(),
            wanted,
        };
        if let Some(creates) = &task.creates
            && node.world.any_match(&node.roots.path(creates))
            && self.staged.get().is_none()
        {
            state.skipped = Some(format!("skipped, since {creates} exists"));
            return Ok(state);
        }
        match there {
            Entry::Directory { .. } if state.dest.is_dir() => {}
            Entry::Directory { .. } => return Err(Trouble::Possible),
            _ => return Err(Trouble::invalid(format!("Destination '{}' is not a directory", task.dest))),
        }
        let staged = self.staged(node)?;
        state.members = self.members(staged, node)?;
        let rules = self.rules(staged.format);
        state.protects = rules.protects();
        if let Some(option) = rules.in_place
            && !self.only_ours(&tree::dir(&state.dest)?, &state.members)
        {
            return Err(Trouble::invalid(format!(
                "`{option}` of `extra_opts` works only where the archive is unpacked in place, and other users may \
                 write in {} or below it; leave it out, or unpack as that user with `become_user`",
                task.dest
            )));
        }
        (state.differs, state.missing) = match staged.format {
            Format::Tar => self.tar_differences(staged, &state.dest, node)?,
            Format::Zip => self.zip_differences(staged, &state.dest, node)?,
        };
        if state.wanted != Wanted::default() {
            for name in &state.members {
                let path = state.dest.join(name.trim_start_matches('/').trim_end_matches('/'));
                let entry = node.world.entry(&path)?;
                let Some(owned) = entry.owned() else { continue };
                let directory = matches!(entry, Entry::Directory { .. });
                let link = matches!(entry, Entry::Link { .. });
                let wanted =
                    if link { Wanted { mode: None, ..state.wanted.clone() } } else { state.wanted.clone() };
                let (set, changes) = ownership::differences("", owned, &wanted, directory)?;
                if !changes.is_empty() {
                    state.own.push(Differs { path, directory, link, set });
                }
            }
        }
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let dest = &self.op.task.dest;
        if let Some(why) = &state.skipped {
            plan.data.insert("msg".to_owned(), json!(why));
            return Ok(plan);
        }
        let count = |count: usize| if count == 1 { "1 path".to_owned() } else { format!("{count} paths") };
        if !state.differs.is_empty() {
            let from = format!("{} of the archive missing or different", count(state.differs.len()));
            let (file, to) = (Subject::file(dest), "as in the archive");
            plan.push(Step::Unpack, Change::new(file, Property::CONTENT, from, to, Disruption::Live));
        }
        if !state.own.is_empty() {
            let from = format!("{} with another owner or mode", count(state.own.len()));
            let (tree, to) = (Subject::tree(dest), "as declared");
            plan.push(Step::Own, Change::new(tree, Property::STATE, from, to, Disruption::Live));
        }
        Ok(plan)
    }

    fn left(&self, state: &State, _: &Plan<Step>) -> Result<Plan<Step>, Trouble> {
        // Otherwise a file that stays as it is would differ from the archive for ever.
        if state.protects && state.missing == 0 {
            return Ok(Plan::default());
        }
        self.plan(state)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        if !plan.steps.iter().any(|step| matches!(step, Step::Unpack)) {
            return Vec::new();
        }
        let owned = |mode| crate::world::Owned {
            uid: state.wanted.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            gid: state.wanted.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
            mode,
        };
        let effect = |name: &String| {
            let path =
                state.dest.join(name.trim_start_matches('/').trim_start_matches("./").trim_end_matches('/'));
            let entry = if name.ends_with('/') {
                Entry::Directory { owned: owned(0o755) }
            } else {
                Entry::File {
                    owned: owned(0o644),
                    content: Content::Digest { sha256: String::new(), size: 0 },
                }
            };
            (path != state.dest).then_some(Effect::Path { path, entry })
        };
        state.members.iter().filter_map(effect).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let task = &self.op.task;
        let mut data = Map::new();
        for step in &plan.steps {
            match step {
                Step::Unpack => {
                    let staged = self.staged(node)?;
                    (node.progress)(format!("unpacking into {}", task.dest));
                    let dest = tree::dir(&state.dest)?;
                    let done = if self.only_ours(&dest, &state.members) {
                        self.unpack(staged, &dest, node)?
                    } else {
                        self.unpack_aside(staged, &dest, &state.members, node)?
                    };
                    let results =
                        json!({"rc": done.exit.shell_code(), "out": done.stdout(), "err": done.stderr()});
                    if !done.exit.success() {
                        return Err(Trouble::failed(
                            FailureKind::Exit,
                            format!("failed to unpack {}: {}", task.src, done.stderr().trim()),
                        ));
                    }
                    data.insert("extract_results".to_owned(), results);
                    // Read again, because the new files have an owner and a mode only now.
                    own(&self.observe(node)?.own)?;
                }
                Step::Own => own(&state.own)?,
            }
        }
        Ok(data)
    }

    fn subject(&self, state: &State) -> Option<PathBuf> {
        state.skipped.is_none().then(|| state.dest.clone())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("dest".to_owned(), json!(self.op.task.dest));
        data.insert("src".to_owned(), json!(self.op.task.src));
        if let Some(staged) = self.staged.get() {
            let handler = if staged.format == Format::Zip { "ZipArchive" } else { "TarArchive" };
            data.insert("handler".to_owned(), json!(handler));
        }
        if self.op.task.list_files {
            data.insert("files".to_owned(), json!(state.members));
        }
        data
    }
}

#[cfg(test)]
mod tests;

//! `unarchive`: a directory holds what an archive has, unpacked by the node's own `tar` or `unzip` as in Ansible.
//!
//! The archive is compared with what is there first, so a second run unpacks nothing. A member that leads out of the
//! directory is refused before anything is unpacked.

use std::{
    fs,
    io::Read,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind,
    op::{Blob, UnpackArchive},
};
use serde_json::{Map, Value, json};

use crate::{
    declare::{Declaration, Node, Plan, Trouble},
    os::files::{self, At, Fresh, Ownership},
    process::{Finished, Run},
    tasks::{
        download::{Request, download},
        ownership::{self, Wanted},
    },
    world::{Content, Effect, Entry},
};

/// The longest list of an archive, in bytes.
const LIST_LIMIT: usize = 64 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Tar,
    Zip,
}

/// An archive at hand, in a folder of its own unless the node had it.
#[derive(Debug)]
struct Staged {
    path: PathBuf,
    folder: Option<PathBuf>,
    format: Format,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// The task with its archive, which is brought once.
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
        let mut staged = match &self.op.blob {
            Some(blob) => pushed(blob, node)?,
            None if self.op.task.src.contains("://") => downloaded(self.op, node)?,
            None => {
                let (path, entry) = node.world.follow(&node.roots.path(&self.op.task.src))?;
                match entry {
                    Entry::File { content: Content::On(path), .. } => {
                        Staged { path, folder: None, format: Format::Tar }
                    }
                    // Why: an earlier task of a prediction brings it.
                    Entry::File { .. } => return Err(Trouble::Possible),
                    _ => return Err(Trouble::invalid(format!("Source '{}' does not exist", path.display()))),
                }
            }
        };
        staged.format = format(&staged.path)?;
        Ok(self.staged.get_or_init(|| staged))
    }
}

fn format(path: &Path) -> Result<Format, Trouble> {
    let mut head = [0u8; 4];
    let mut file = fs::File::open(path).at("read", path)?;
    let count = file.read(&mut head).at("read", path)?;
    let zip = count == 4 && (head == *b"PK\x03\x04" || head == *b"PK\x05\x06");
    Ok(if zip { Format::Zip } else { Format::Tar })
}

/// A new folder that only the task's user can enter.
fn folder() -> Result<PathBuf, Trouble> {
    let path =
        Path::new("/var/tmp").join(format!("gpufleet-archive-{}-{}", std::process::id(), files::unique()));
    fs::DirBuilder::new().mode(0o700).create(&path).at("make", &path)?;
    Ok(path)
}

fn pushed(blob: &Blob, node: &Node<'_>) -> Result<Staged, Trouble> {
    let folder = folder()?;
    let staged = Staged { path: folder.join("archive"), folder: Some(folder), format: Format::Tar };
    let mut fresh = Fresh::beside(&staged.path)?;
    node.fetch.fetch(blob, node.deadline, &mut |piece| Ok(fresh.write_all(piece)?))?;
    fresh.place()?;
    let file = fs::File::open(&staged.path).at("read", &staged.path)?;
    let (got, _) = files::sha256_of(file).at("read", &staged.path)?;
    if got != blob.sha256 {
        return Err(Trouble::io(format!("the archive has SHA-256 {got} instead of {}", blob.sha256)));
    }
    Ok(staged)
}

fn downloaded(op: &UnpackArchive, node: &Node<'_>) -> Result<Staged, Trouble> {
    let folder = folder()?;
    let staged = Staged { path: folder.join("archive"), folder: Some(folder), format: Format::Tar };
    fs::write(&staged.path, b"").at("write", &staged.path)?;
    let request = Request {
        url: &op.task.src,
        headers: &Map::new(),
        user: None,
        timeout_s: 30,
        validate_certs: op.task.validate_certs,
        use_proxy: true,
        agent: "gpufleet",
    };
    download(&request, &staged.path, node)?;
    Ok(staged)
}

#[derive(Debug)]
pub struct State {
    dest: PathBuf,
    /// Why nothing is to be done.
    skipped: Option<String>,
    members: Vec<String>,
    /// What differs, in the words of the program.
    differs: Vec<String>,
    /// Members that are not there.
    missing: usize,
    /// Paths whose owner or mode differs.
    own: Vec<(PathBuf, Ownership)>,
    wanted: Wanted,
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
    /// Options that choose members, and the members chosen.
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
                self.chosen(run.arg("-f").arg(&staged.path), Format::Tar)
            }
            Format::Zip => {
                self.chosen(Run::new(program(node, "unzip")?).arg("-Z1").arg(&staged.path), Format::Zip)
            }
        };
        let done = finish(run, node)?;
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
        let mut run = Run::new(program(node, "tar")?).arg("--diff").arg("-C").arg(dest);
        if !task.extra_opts.is_empty() {
            run = run.arg("--show-transformed-names").args(&task.extra_opts);
        }
        let done = finish(self.chosen(run.arg("-f").arg(&staged.path), Format::Tar), node)?;
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
        // Why only the program's own names count: an empty name comes from stripped components.
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

    /// Compares length and checksum of each member with the file that is there.
    fn zip_differences(
        &self,
        staged: &Staged,
        dest: &Path,
        node: &Node<'_>,
    ) -> Result<(Vec<String>, usize), Trouble> {
        let run = Run::new(program(node, "unzip")?).arg("-v").arg(&staged.path);
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
                Ok(_) if crc32(&path).at("read", &path)? != crc => {
                    found.push(format!("{name}: Contents differ"))
                }
                Ok(_) => {}
            }
        }
        Ok((found, missing))
    }
}

/// The checksum that zip archives use.
fn crc32(path: &Path) -> std::io::Result<u32> {
    let mut file = fs::File::open(path)?;
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

impl Declaration for Unpacking<'_> {
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
                    state.own.push((path, set));
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
            plan.push(Step::Unpack, Change::new(dest, Some(from), "as in the archive", Disruption::Live));
        }
        if !state.own.is_empty() {
            let from = format!("{} with another owner or mode", count(state.own.len()));
            plan.push(
                Step::Own,
                Change::new(format!("{dest} below"), Some(from), "as declared", Disruption::Live),
            );
        }
        Ok(plan)
    }

    fn left(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        // Why: files that are newer than the archive's stay, and differ for ever.
        if self.op.task.keep_newer && state.missing == 0 {
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
                    let run = match staged.format {
                        Format::Tar => {
                            let mut run =
                                Run::new(program(node, "tar")?).arg("--extract").arg("-C").arg(&state.dest);
                            if task.keep_newer {
                                run = run.arg("--keep-newer-files");
                            }
                            run = run.args(&task.extra_opts).arg("-f").arg(&staged.path);
                            self.chosen(run, Format::Tar)
                        }
                        Format::Zip => {
                            let overwrite = if task.keep_newer { "-uo" } else { "-o" };
                            let run = Run::new(program(node, "unzip")?).arg("-q").arg(overwrite);
                            let run = run.args(&task.extra_opts).arg(&staged.path);
                            let run = run.args(&task.include);
                            let run =
                                if task.exclude.is_empty() { run } else { run.arg("-x").args(&task.exclude) };
                            run.arg("-d").arg(&state.dest)
                        }
                    };
                    let done = finish(run, node)?;
                    let results =
                        json!({"rc": done.exit.shell_code(), "out": done.stdout(), "err": done.stderr()});
                    if !done.exit.success() {
                        return Err(Trouble::failed(
                            FailureKind::Exit,
                            format!("failed to unpack {}: {}", task.src, done.stderr().trim()),
                        ));
                    }
                    data.insert("extract_results".to_owned(), results);
                    // Why read again: only now the new files have an owner and a mode.
                    for (path, set) in &self.observe(node)?.own {
                        files::set_ownership(path, *set)?;
                    }
                }
                Step::Own => {
                    for (path, set) in &state.own {
                        files::set_ownership(path, *set)?;
                    }
                }
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
mod tests {
    use std::{os::unix::fs::PermissionsExt, process::Command};

    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, changed};

    /// A bench with an archive at /srv/a.tgz, of `one` and `sub/two`, and the machine's own tar.
    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("srv/d/one", "1\n");
        bench.write("srv/d/sub/two", "2\n");
        let tar = |arguments: &[&str]| {
            let done = Command::new("tar").current_dir(bench.path("srv")).args(arguments).status().unwrap();
            assert!(done.success());
        };
        tar(&["czf", "a.tgz", "-C", "d", "."]);
        bench.write("opt/keep", "");
        for name in ["tar", "unzip"] {
            bench.script(
                &format!("usr/bin/{name}"),
                &format!("#!/bin/sh\nexec /usr/bin/env PATH=/usr/bin:/bin {name} \"$@\"\n"),
            );
        }
        bench
    }

    fn op(value: Value) -> UnpackArchive {
        let mut value = value;
        value["dest"] = json!("/opt");
        if value["src"].is_null() {
            value["src"] = json!("/srv/a.tgz");
        }
        value["remote_src"] = json!(true);
        UnpackArchive { task: serde_json::from_value(value).unwrap(), blob: None }
    }

    fn run(bench: &Bench, op: &UnpackArchive, mode: Mode) -> OpOutcome {
        bench.run(&Unpacking::new(op), mode)
    }

    #[test]
    fn an_archive_is_unpacked_once() {
        let bench = bench();
        let op = op(json!({"list_files": true}));
        let before = bench.snapshot();
        assert_eq!(run(&bench, &op, Mode::Predict).status, OpStatus::Changed);
        assert_eq!(changed(&before, &bench.snapshot()), Vec::<PathBuf>::new());
        bench.forget();
        let done = run(&bench, &op, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!(
            (done.data["files"].as_array().unwrap().len(), &done.data["extract_results"]["rc"]),
            (4, &json!(0))
        );
        assert_eq!((bench.read("opt/one"), bench.read("opt/sub/two")), ("1\n".into(), "2\n".into()));
        let again = run(&bench, &op, Mode::Apply);
        assert_eq!(again.status, OpStatus::Ok, "{again:?}");
        bench.write("opt/one", "changed\n");
        assert_eq!(run(&bench, &op, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("opt/one"), "1\n");
    }

    #[test]
    fn members_are_chosen_and_modes_set() {
        let bench = bench();
        let excluded = op(json!({"exclude": ["./sub"], "mode": "u=rwX,go="}));
        assert_eq!(run(&bench, &excluded, Mode::Apply).status, OpStatus::Changed);
        assert!(!bench.path("opt/sub").exists());
        assert_eq!(fs::metadata(bench.path("opt/one")).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(run(&bench, &excluded, Mode::Apply).status, OpStatus::Ok);
        let stripped = op(json!({"extra_opts": ["--strip-components=2"], "include": ["./sub/two"]}));
        assert_eq!(run(&bench, &stripped, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("opt/two"), "2\n");
        assert_eq!(run(&bench, &stripped, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn creates_skips_without_looking_at_the_archive() {
        let bench = bench();
        let skipped = run(&bench, &op(json!({"creates": "/opt/keep", "src": "/none"})), Mode::Apply);
        assert_eq!(
            (&skipped.status, &skipped.data["msg"]),
            (&OpStatus::Ok, &json!("skipped, since /opt/keep exists"))
        );
    }

    #[test]
    fn a_member_that_leads_out_is_refused() {
        let bench = bench();
        let done = Command::new("tar")
            .current_dir(bench.path("srv"))
            .args(["cPf", "bad.tar", "--transform", "s,^,../,", "d/one"])
            .status()
            .unwrap();
        assert!(done.success());
        let bad = run(&bench, &op(json!({"src": "/srv/bad.tar"})), Mode::Apply);
        let OpStatus::Failed { message, .. } = &bad.status else { panic!("{bad:?}") };
        assert!(message.contains("leads out of /opt"), "{message}");
        let none = run(&bench, &op(json!({"src": "/srv/d/one"})), Mode::Apply);
        assert!(matches!(none.status, OpStatus::Failed { .. }));
    }

    #[test]
    fn a_pushed_archive_leaves_nothing_else() {
        let mut bench = bench();
        let bytes = fs::read(bench.path("srv/a.tgz")).unwrap();
        let blob = Blob { sha256: files::sha256(&bytes), size: bytes.len() as u64 };
        bench.store.0.insert(blob.sha256.clone(), bytes);
        let mut op = op(json!({}));
        op.blob = Some(blob);
        op.task.remote_src = false;
        assert_eq!(run(&bench, &op, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(run(&bench, &op, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn checksums_of_zip_are_right() {
        let bench = Bench::new();
        bench.write("x", "123456789");
        assert_eq!(crc32(&bench.path("x")).unwrap(), 0xCBF4_3926);
    }
}

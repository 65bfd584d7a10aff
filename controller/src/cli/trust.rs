//! Who besides us could change a file that decides what gpufleet does.
//!
//! Judges owners and modes only. What a finding means (an error, a warning, a file that is not read) is the caller's.

use std::{
    collections::HashMap,
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use gpufleet::visible::command_line;

use super::error::CommandError;

/// How many files of one kind are named; the others are counted.
const NAMED: usize = 3;
/// Where variables lie beside an inventory and beside a playbook.
const VARIABLE_FOLDERS: [&str; 2] = ["group_vars", "host_vars"];
/// Folders in folders of inventories are looked into this deep, as the inventory itself reads them.
const MAX_DEPTH: usize = 16;

/// Whether a group's write permission counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// It does not: of folders above a file, and of what a team shares where it is told apart.
    Shared,
    /// It does, unless no one else is in the group.
    Private,
}

/// How someone else can change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Owner(u32),
    Everybody(u32),
    Group(u32),
    /// Where it lies cannot be told.
    Unknown,
}

/// The users and groups that this machine's own files name.
#[derive(Clone, Debug, Default)]
struct Accounts {
    passwd: String,
    group: String,
}

struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
}

impl Accounts {
    fn of_this_machine() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self { passwd: read("/etc/passwd"), group: read("/etc/group") }
    }

    fn users(&self) -> Vec<User<'_>> {
        let user = |line| {
            let [name, _, uid, gid] = fields(line)?;
            Some(User { name, uid: uid.parse().ok()?, gid: gid.parse().ok()? })
        };
        self.passwd.lines().filter_map(user).collect()
    }

    /// The name of a group, and who is in it beside those whose first group it is.
    fn group(&self, gid: u32) -> Option<(&str, Vec<&str>)> {
        self.group.lines().find_map(|line| {
            let [name, _, id, members] = fields(line)?;
            let members = members.split(',').map(str::trim).filter(|member| !member.is_empty());
            (id.parse() == Ok(gid)).then(|| (name, members.collect()))
        })
    }
}

/// The first four fields of a line of `/etc/passwd` or `/etc/group`.
fn fields(line: &str) -> Option<[&str; 4]> {
    let mut fields = line.split(':');
    Some([fields.next()?, fields.next()?, fields.next()?, fields.next()?])
}

/// What someone else can change: a file, or a folder above it in which it can be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    path: PathBuf,
    how: How,
}

impl Open {
    /// The command that closes it.
    fn remedy(&self) -> String {
        let path = self.path.to_string_lossy();
        match self.how {
            How::Owner(_) => command_line(["chown", &rustix::process::geteuid().as_raw().to_string(), &path]),
            How::Everybody(_) => command_line(["chmod", "o-w", &path]),
            How::Group(_) => command_line(["chmod", "g-w", &path]),
            How::Unknown => command_line(["ls", "-ld", &path]),
        }
    }
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.how {
            How::Owner(uid) => write!(f, "{path} belongs to user {uid}"),
            How::Everybody(mode) => write!(f, "{path} can be written by everybody (mode {mode:04o})"),
            How::Group(mode) => write!(f, "{path} can be written by its group (mode {mode:04o})"),
            How::Unknown => write!(f, "where {path} lies cannot be told"),
        }
    }
}

/// Looks at files and remembers the folders above them.
pub struct Trust {
    uid: u32,
    gid: u32,
    /// Whoever called `sudo` is no other.
    caller: Option<u32>,
    accounts: Accounts,
    folders: HashMap<(PathBuf, bool), Option<Open>>,
}

impl Trust {
    pub fn of_this_process() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let called = std::env::var("SUDO_UID").ok().filter(|_| uid == 0);
        Self {
            uid,
            gid: rustix::process::getegid().as_raw(),
            caller: called.and_then(|text| text.parse().ok()),
            accounts: Accounts::of_this_machine(),
            folders: HashMap::new(),
        }
    }

    /// What lets someone else change the file or folder, or put another one in its place; `None` where nothing does,
    /// or where it is not there.
    pub fn open(&mut self, path: &Path, care: Care) -> Option<Open> {
        // Why these alone: a terminal or the pipe of `<(pass show vault)` is nothing that lies anywhere.
        let data = fs::metadata(path).ok().filter(|data| data.is_file() || data.is_dir())?;
        let written = std::path::absolute(path).ok()?;
        let real = fs::canonicalize(path).ok()?;
        let own = self.judge(&real, &data, care, data.is_dir());
        own.or_else(|| self.above(&written, care)).or_else(|| self.above(&real, care))
    }

    /// The same for what is yet to be made: the nearest folder above that is there counts.
    fn open_or_above(&mut self, path: &Path, care: Care) -> Option<Open> {
        // Why an error is one: `None` would say that no one else can write there.
        let Ok(path) = std::path::absolute(path) else {
            return Some(Open { path: path.to_owned(), how: How::Unknown });
        };
        let nearest = path.ancestors().find(|path| path.exists())?;
        let care = if nearest == path { care } else { Care::Shared };
        self.open(nearest, care)
    }

    fn above(&mut self, path: &Path, care: Care) -> Option<Open> {
        path.ancestors().find_map(|part| self.part(part, part == path, care))
    }

    /// A folder on the way to a file, or a link on it; of the file itself (`last`) only whether it is a link.
    fn part(&mut self, path: &Path, last: bool, care: Care) -> Option<Open> {
        let key = (path.to_owned(), last);
        if let Some(known) = self.folders.get(&key) {
            return known.clone();
        }
        let link = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_symlink);
        let link = link.filter(|data| self.is_other(data.uid()));
        let open = match (link, last) {
            (Some(data), _) => Some(Open { path: path.to_owned(), how: How::Owner(data.uid()) }),
            (None, true) => None,
            // Why shared: write access to a folder far above is a matter of the machine, not of this file.
            (None, false) => {
                let care = if care == Care::Private { Care::Shared } else { care };
                fs::metadata(path).ok().and_then(|data| self.judge(path, &data, care, true))
            }
        };
        self.folders.insert(key, open.clone());
        open
    }

    fn judge(&self, path: &Path, data: &fs::Metadata, care: Care, folder: bool) -> Option<Open> {
        let mode = data.mode() & 0o7777;
        // Why: in a folder with the sticky bit no one can replace another user's files.
        let sticky = folder && mode & 0o1000 != 0;
        let how = if self.is_other(data.uid()) {
            How::Owner(data.uid())
        } else if mode & 0o002 != 0 && !sticky {
            How::Everybody(mode)
        } else if care == Care::Private && mode & 0o020 != 0 && !sticky && !self.is_own_group(data.gid()) {
            How::Group(mode)
        } else {
            return None;
        };
        Some(Open { path: path.to_owned(), how })
    }

    const fn is_other(&self, uid: u32) -> bool {
        let is_caller = matches!(self.caller, Some(caller) if caller == uid);
        uid != self.uid && uid != 0 && !is_caller
    }

    /// Whether no one else is in a group, as far as this machine's files tell.
    fn is_own_group(&self, gid: u32) -> bool {
        let users = self.accounts.users();
        let primary: Vec<u32> = users.iter().filter(|user| user.gid == gid).map(|user| user.uid).collect();
        let (name, members) = self.accounts.group(gid).unwrap_or_default();
        let is_us = |name: &str| users.iter().any(|user| user.name == name && !self.is_other(user.uid));
        if primary.iter().any(|uid| self.is_other(*uid)) || members.iter().any(|member| !is_us(member)) {
            return false;
        }
        // Why: of a group without members the files do not tell who is in it.
        !primary.is_empty() || !members.is_empty() || gid == self.gid || is_us(name)
    }

    /// Refuses a file that someone else could have written. `what` is what is read from it.
    ///
    /// # Errors
    /// Somebody else could have written it.
    pub fn demand(&mut self, path: &Path, what: &str, care: Care) -> Result<(), CommandError> {
        match self.open(path, care) {
            None => Ok(()),
            Some(open) => Err(refusal(path, what, &open)),
        }
    }
}

/// Refuses a state folder that others can write to, or that others could put in the place of ours: what lies there says
/// which nodes are out, and what a resume does.
///
/// # Errors
/// Somebody else could have written it.
pub fn demand_state_dir(state_dir: &Path) -> Result<(), CommandError> {
    match Trust::of_this_process().open_or_above(state_dir, Care::Private) {
        None => Ok(()),
        Some(open) => Err(refusal(state_dir, "the record of runs", &open)),
    }
}

/// Whether nobody else can change what is in a folder of this user, or put another one in its place.
pub fn is_private(folder: &Path) -> bool {
    Trust::of_this_process().open_or_above(folder, Care::Private).is_none()
}

/// Why a file is not used, and what makes it usable.
fn refusal(path: &Path, what: &str, open: &Open) -> CommandError {
    let error = CommandError::user(format!(
        "{what} in {} could be another user's doing, so it is not used: {open}",
        path.display()
    ));
    error.hint(format!("look at what it says, then `{}`", open.remedy()))
}

/// A warning that names the files among these which someone else can change; `None` where there are none.
pub fn warning<'a>(trust: &mut Trust, paths: impl IntoIterator<Item = &'a Path>) -> Option<String> {
    let mut found: Vec<Open> = Vec::new();
    for path in paths {
        if let Some(open) = trust.open(path, Care::Private)
            && !found.contains(&open)
        {
            found.push(open);
        }
    }
    let first = found.first()?;
    let mut named: Vec<String> = found.iter().take(NAMED).map(Open::to_string).collect();
    if found.len() > NAMED {
        named.push(format!("{} more", found.len() - NAMED));
    }
    Some(format!(
        "other users of this machine decide what is done on the nodes: {}; `{}` ends that",
        named.join(", "),
        first.remedy()
    ))
}

/// All files that an inventory source is read from, with the variable files beside it.
pub fn inventory_files(source: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    if source.is_dir() {
        below(source, MAX_DEPTH, &mut files);
    } else if source.exists() {
        files.push(source.to_owned());
        variable_files(source.parent().unwrap_or(Path::new("")), &mut files);
    }
    files
}

/// The `group_vars` and `host_vars` of a folder.
pub fn variable_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for name in VARIABLE_FOLDERS {
        let folder = folder.join(name);
        if folder.is_dir() {
            below(&folder, MAX_DEPTH, files);
        }
    }
}

fn below(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    // Why the folder too: write access to it is enough to add files.
    files.push(folder.to_owned());
    let entries: io::Result<Vec<_>> = fs::read_dir(folder).and_then(Iterator::collect);
    for entry in entries.unwrap_or_default() {
        let path = entry.path();
        match path.is_dir() {
            true if depth > 0 => below(&path, depth - 1, files),
            true => {}
            false => files.push(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn trust() -> Trust {
        Trust { caller: None, ..Trust::of_this_process() }
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    fn put(path: &Path, mode: u32) {
        fs::write(path, "x").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_open_by_its_mode_and_by_each_folder_above_it() {
        let root = folder();
        let (inner, file) = (root.path().join("inner"), root.path().join("inner/all.yml"));
        fs::create_dir(&inner).unwrap();
        put(&file, 0o644);
        assert_eq!(trust().open(&file, Care::Private), None);

        put(&file, 0o666);
        let open = trust().open(&file, Care::Shared).unwrap();
        assert_eq!((&open.path, open.how), (&fs::canonicalize(&file).unwrap(), How::Everybody(0o666)));
        assert_eq!(open.remedy(), format!("chmod o-w {}", open.path.display()));

        put(&file, 0o644);
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).unwrap();
        let open = trust().open(&file, Care::Shared).unwrap();
        assert_eq!((open.path, open.how), (inner.clone(), How::Everybody(0o777)));
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(trust().open(&file, Care::Private), None, "nobody replaces our file in a sticky folder");
    }

    #[test]
    fn a_group_counts_where_a_file_is_ours_alone_and_the_group_is_another_one() {
        let root = folder();
        let file = root.path().join("password");
        put(&file, 0o660);
        assert_eq!(trust().open(&file, Care::Shared), None);
        assert_eq!(trust().open(&file, Care::Private), None, "our own group");
        chown(&file, None, Some(4711)).unwrap();
        assert_eq!(trust().open(&file, Care::Private).map(|open| open.how), Some(How::Group(0o660)));
        assert!(
            warning(&mut trust(), [file.as_path()])
                .is_some_and(|text| text.contains("by its group (mode 0660)"))
        );
    }

    #[test]
    fn a_group_is_our_own_where_nobody_else_is_in_it() {
        let ours = |uid: u32, gid: u32, asked: u32| {
            let passwd = "root:x:0:0::/:/bin/sh\na:x:1000:1000::/:/bin/sh\nb:x:1001:100::/:/bin/sh\nc:x:1002:100::/:/bin/sh\n";
            let group = "root:x:0:\na:x:1000:\nusers:x:100:\nteam:x:200:a,b\nalone:x:201:a\nempty:x:202:\n";
            let accounts = Accounts { passwd: passwd.to_owned(), group: group.to_owned() };
            Trust { uid, gid, caller: None, accounts, folders: HashMap::new() }.is_own_group(asked)
        };
        assert!(ours(1000, 1000, 1000));
        assert!(ours(1000, 1000, 201) && !ours(1000, 1000, 200) && !ours(1000, 1000, 202));
        assert!(!ours(1001, 100, 100), "the first group of others too");
        assert!(ours(1000, 1000, 0), "root is no other");
        assert!(ours(5000, 5000, 5000) && !ours(5000, 5000, 1000), "who stands in no file");
    }

    #[test]
    fn what_is_yet_to_be_made_is_judged_by_where_it_will_lie() {
        let root = folder();
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let made = open.join("state/gpufleet");
        assert_eq!(
            trust().open_or_above(&made, Care::Private).map(|open| open.how),
            Some(How::Everybody(0o777))
        );
        // A path from here that is not there has no ancestor that exists, though this folder does.
        let here = std::env::current_dir().unwrap();
        let relative = trust().open_or_above(Path::new("no-such-state/gpufleet"), Care::Private);
        assert_eq!(relative, trust().open_or_above(&here.join("no-such-state/gpufleet"), Care::Private));
        assert!(trust().open_or_above(Path::new(""), Care::Private).is_some(), "an error is a refusal");
    }

    #[test]
    fn another_owner_counts_also_of_a_link_on_the_way() {
        assert!(rustix::process::geteuid().is_root(), "only root can give files away; run the tests as root");
        let root = folder();
        let (ours, theirs) = (root.path().join("ours"), root.path().join("link"));
        put(&ours, 0o644);
        symlink(&ours, &theirs).unwrap();
        assert_eq!(trust().open(&theirs, Care::Shared), None);
        std::os::unix::fs::lchown(&theirs, Some(65534), None).unwrap();
        let open = trust().open(&theirs, Care::Shared).unwrap();
        assert_eq!((open.path, open.how), (theirs, How::Owner(65534)));
        chown(&ours, Some(65534), None).unwrap();
        assert_eq!(trust().open(&ours, Care::Shared).map(|open| open.how), Some(How::Owner(65534)));
        let mut called = trust();
        called.caller = Some(65534);
        assert_eq!(called.open(&ours, Care::Private), None, "who called sudo");
    }

    #[test]
    fn a_warning_names_a_few_files_and_what_closes_the_first() {
        let root = folder();
        let paths: Vec<PathBuf> = (0..5).map(|n| root.path().join(format!("it's {n}.yml"))).collect();
        paths.iter().for_each(|path| put(path, 0o646));
        let text = warning(&mut trust(), paths.iter().map(PathBuf::as_path)).unwrap();
        assert!(
            text.contains("it's 2.yml can be written by everybody (mode 0646), 2 more; `chmod o-w '"),
            "{text}"
        );
        paths.iter().for_each(|path| put(path, 0o644));
        assert_eq!(warning(&mut trust(), paths.iter().map(PathBuf::as_path)), None);
    }

    #[test]
    fn files_of_an_inventory_are_found_with_their_variables() {
        let root = folder();
        let deep = root.path().join("group_vars/all/more");
        fs::create_dir_all(&deep).unwrap();
        put(&root.path().join("hosts.ini"), 0o644);
        put(&deep.join("a.yml"), 0o644);
        for source in [root.path().join("hosts.ini"), root.path().to_owned()] {
            let files = inventory_files(&source);
            assert!(files.contains(&deep.join("a.yml")), "{files:?}");
            assert!(files.contains(&root.path().join("hosts.ini")), "{files:?}");
        }
    }
}

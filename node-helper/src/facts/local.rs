//! Facts that a machine's owner provides in `/etc/ansible/facts.d/*.fact`, and the node's Python.
//!
//! Files are JSON or INI; programs print either. As with Ansible, a broken one is replaced by the reason. Number, size
//! and time are bounded. A program is run only where nobody but root and the acting user can have put or written it, and
//! what is run is the file that was looked at, and not what is at its path by then.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Map, Value, json};

use crate::{
    deadline::Deadline,
    os::{roots::Roots, trail, tree},
    process::Run,
};

pub const FOLDER: &str = "/etc/ansible/facts.d";
/// Largest number of files that are read.
const MOST_FILES: usize = 64;
/// Largest size of a file or of a program's output, in bytes.
const MOST_BYTES: usize = 256 * 1024;
/// Time limit for all programs together.
const TIME: Duration = Duration::from_secs(10);
/// Paths at which Ansible looks for a current Python.
const PYTHONS: [&str; 3] = ["/usr/bin/python3", "/usr/libexec/platform-python", "/usr/local/bin/python3"];

/// Returns `ansible_local`.
pub(super) fn read(roots: &Roots) -> Map<String, Value> {
    let mut found = Map::new();
    let Ok(Some(folder)) = tree::dir_if_any(&roots.path(FOLDER)) else { return found };
    let names = folder.names().unwrap_or_default();
    let names = names
        .into_iter()
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.ends_with(".fact") && !name.starts_with('.'))
        .take(MOST_FILES);
    let deadline = Deadline::after(TIME);
    for name in names {
        let path = roots.path(format!("{FOLDER}/{name}"));
        let value = Fact::open(&folder, path).and_then(|fact| fact.value(&deadline));
        let value = value.unwrap_or_else(Value::String);
        found.insert(name.trim_end_matches(".fact").to_owned(), value);
    }
    found
}

/// A fact's open file.
struct Fact {
    path: PathBuf,
    file: fs::File,
    meta: fs::Metadata,
    /// A folder that lets others put programs there.
    open_folder: Option<PathBuf>,
}

impl Fact {
    /// # Errors
    /// The text that replaces the fact.
    fn open(folder: &tree::Dir, path: PathBuf) -> Result<Self, String> {
        let spot = tree::followed(&path).map_err(|error| error.to_string())?;
        let file = spot.open().map_err(|error| error.to_string())?;
        let meta = file.metadata().map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let folders = [folder, spot.dir()];
        let open_folder = folders.into_iter().find(|dir| !dir.is_ours()).map(|dir| dir.path().to_owned());
        Ok(Self { path, file, meta, open_folder })
    }

    /// # Errors
    /// The text that replaces the fact.
    fn value(self, deadline: &Deadline) -> Result<Value, String> {
        let shown = self.path.display().to_string();
        let text = if self.meta.mode() & 0o111 == 0 {
            let mut bytes = Vec::new();
            let read = self.file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes);
            read.map_err(|error| format!("cannot read {shown}: {error}"))?;
            if bytes.len() > MOST_BYTES {
                return Err(format!("{shown} has more than {} KiB", MOST_BYTES / 1024));
            }
            String::from_utf8_lossy(&bytes).into_owned()
        } else {
            let own = rustix::process::geteuid().as_raw();
            if self.meta.mode() & 0o022 != 0 || !trail::trusts(own, self.meta.uid()) {
                return Err(format!("{shown} is not run: others than root can write it"));
            }
            if let Some(folder) = &self.open_folder {
                return Err(format!("{shown} is not run: others than root can write {}", folder.display()));
            }
            let done = Run::of_open(self.file, &self.path).limit(MOST_BYTES).finish(deadline);
            let done = done.map_err(|error| format!("Failure executing fact script ({shown}): {error}"))?;
            if !done.exit.success() {
                return Err(format!("Failure executing fact script ({shown}): {}", done.complaint(&shown)));
            }
            done.stdout()
        };
        if let Ok(value) = serde_json::from_str(&text) {
            return Ok(value);
        }
        ini(&text)
            .ok_or_else(|| format!("error loading facts as JSON or ini - please check content: {shown}"))
    }
}

/// Parses sections of options like Python's `configparser`; `None` if the text is none.
fn ini(text: &str) -> Option<Value> {
    let mut sections: Map<String, Value> = Map::new();
    let mut section: Option<String> = None;
    for line in text.lines() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = bare.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            sections.entry(name).or_insert_with(|| json!({}));
            section = Some(name.to_owned());
            continue;
        }
        let at = bare.find(['=', ':'])?;
        let (name, value) = (bare.get(..at)?.trim().to_lowercase(), bare.get(at + 1..)?.trim());
        let options = sections.get_mut(section.as_deref()?)?.as_object_mut()?;
        options.insert(name, Value::from(value));
    }
    Some(Value::Object(sections))
}

/// Returns path and version of the node's Python, such as `3.12.3`.
pub(super) fn python(roots: &Roots) -> Option<(String, String)> {
    if !roots.is_real() {
        return None;
    }
    let path = PYTHONS.into_iter().find(|path| Path::new(path).exists())?;
    let done =
        Run::new(path).arg("--version").limit(1024).finish(&Deadline::after(Duration::from_secs(5))).ok()?;
    let version = done.stdout().trim().strip_prefix("Python ")?.to_owned();
    Some((path.to_owned(), version))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn facts_that_a_machine_was_given_are_read_as_ansible_reads_them() {
        let bench = Bench::new();
        let folder = "etc/ansible/facts.d";
        let mode = |name: &str, mode: u32| {
            let path = bench.path(&format!("{folder}/{name}"));
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        for (name, text, bits) in [
            ("rack.fact", "{\"row\": 3}", 0o644),
            ("site.fact", "# where\n[dc]\nName = Berlin\nfloor: 2\n", 0o644),
            ("none.fact", "just words\n", 0o644),
            ("program.fact", "#!/bin/sh\necho '[1, 2]'\n", 0o755),
            ("fails.fact", "#!/bin/sh\necho no >&2; exit 3\n", 0o755),
            ("open.fact", "#!/bin/sh\necho 1\n", 0o777),
            ("other.txt", "{}", 0o644),
        ] {
            bench.write(&format!("{folder}/{name}"), text);
            mode(name, bits);
        }
        bench.write(&format!("{folder}/large.fact"), &" ".repeat(MOST_BYTES + 1));
        let found = read(&bench.roots);
        assert_eq!(found["rack"], json!({"row": 3}));
        assert_eq!(found["site"], json!({"dc": {"name": "Berlin", "floor": "2"}}));
        assert_eq!(found["program"], json!([1, 2]));
        let said = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        assert!(said("none").starts_with("error loading facts as JSON or ini"), "{}", said("none"));
        assert!(said("fails").starts_with("Failure executing fact script"), "{}", said("fails"));
        assert!(said("open").ends_with("others than root can write it"), "{}", said("open"));
        assert!(said("large").ends_with("has more than 256 KiB"), "{}", said("large"));
        assert_eq!(found.len(), 7);
        assert!(read(&Bench::new().roots).is_empty());
    }

    fn program(bench: &Bench, name: &str, prints: &str) -> PathBuf {
        bench.script(&format!("etc/ansible/facts.d/{name}"), &format!("#!/bin/sh\necho {prints}; cat\n"));
        bench.path(&format!("etc/ansible/facts.d/{name}"))
    }

    #[test]
    fn what_was_looked_at_is_run_and_not_what_is_at_its_path_by_then() {
        let bench = Bench::new();
        let path = program(&bench, "a.fact", "1");
        let folder = tree::dir(&bench.roots.path(FOLDER)).unwrap();
        let fact = Fact::open(&folder, path.clone()).unwrap();
        let other = program(&bench, "other", "2");
        fs::rename(other, &path).unwrap();
        assert_eq!(fact.value(&Deadline::after(TIME)), Ok(json!(1)));
        let fact = Fact::open(&folder, path.clone()).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(fact.value(&Deadline::after(TIME)), Ok(json!(2)), "its input is empty, and not its text");
    }

    #[test]
    fn programs_in_a_folder_of_others_are_not_run() {
        let bench = Bench::new();
        program(&bench, "a.fact", "1");
        bench.write("etc/ansible/facts.d/b.fact", "{}");
        let folder = bench.path("etc/ansible/facts.d");
        let run = || read(&bench.roots);
        assert_eq!(run()["a"], json!(1));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let found = run();
        let said = found["a"].as_str().unwrap();
        assert!(
            said.ends_with(&format!("a.fact is not run: others than root can write {}", folder.display())),
            "{said}"
        );
        assert_eq!(found["b"], json!({}), "a file is only read");
    }
}

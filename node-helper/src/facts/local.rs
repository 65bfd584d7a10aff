//! Facts that a machine's owner provides in `/etc/ansible/facts.d/*.fact`, and the node's Python.
//!
//! Files are JSON or INI; programs print either. As with Ansible, a broken one is replaced by the reason. Number, size
//! and time are bounded, and a program that anybody but root could have written is not run.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    time::Duration,
};

use serde_json::{Map, Value, json};

use crate::{deadline::Deadline, os::roots::Roots, process::Run};

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
    let Ok(entries) = fs::read_dir(roots.path(FOLDER)) else { return found };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".fact") && !name.starts_with('.'))
        .take(MOST_FILES)
        .collect();
    names.sort();
    let deadline = Deadline::after(TIME);
    for name in names {
        let path = roots.path(format!("{FOLDER}/{name}"));
        let value = fact(&path, &deadline).unwrap_or_else(Value::String);
        found.insert(name.trim_end_matches(".fact").to_owned(), value);
    }
    found
}

/// # Errors
/// The text that replaces the fact.
fn fact(path: &Path, deadline: &Deadline) -> Result<Value, String> {
    let shown = path.display();
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| format!("cannot read {shown}: {error}"))?;
    let meta = file.metadata().map_err(|error| format!("cannot read {shown}: {error}"))?;
    if !meta.is_file() {
        return Err(format!("{shown} is no regular file"));
    }
    let text = if meta.mode() & 0o111 == 0 {
        let mut bytes = Vec::new();
        let read = file.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| format!("cannot read {shown}: {error}"))?;
        if bytes.len() > MOST_BYTES {
            return Err(format!("{shown} has more than {} KiB", MOST_BYTES / 1024));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    } else {
        let own = rustix::process::geteuid().as_raw();
        if meta.mode() & 0o022 != 0 || ![0, own].contains(&meta.uid()) {
            return Err(format!("{shown} is not run: others than root can write it"));
        }
        let done = Run::new(path).limit(MOST_BYTES).finish(deadline);
        let done = done.map_err(|error| format!("Failure executing fact script ({shown}): {error}"))?;
        if !done.exit.success() {
            return Err(format!(
                "Failure executing fact script ({shown}): {}",
                done.complaint(&shown.to_string())
            ));
        }
        done.stdout()
    };
    if let Ok(value) = serde_json::from_str(&text) {
        return Ok(value);
    }
    ini(&text).ok_or_else(|| format!("error loading facts as JSON or ini - please check content: {shown}"))
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
}

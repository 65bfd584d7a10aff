//! Other people's units that set persistence at boot, beside the persistence daemon.
//!
//! Only units that a link starts: what a person starts by hand is no matter of the next boot. Scripts that a unit runs are
//! not followed. Source: systemd.unit(5) for the order of folders, nvidia-smi(1) for `-pm`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// In the order in which systemd looks for a unit.
const FOLDERS: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
const KEYS: [&str; 3] = ["ExecStart", "ExecStartPre", "ExecStartPost"];
/// Longest unit file that is read, in bytes; real ones have a few hundred.
const LONGEST: u64 = 64 * 1024;

/// A line of a unit that sets persistence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetsPersistence {
    pub unit: String,
    /// File and line.
    pub place: String,
    pub on: bool,
}

/// Finds them below a root folder.
pub fn persistence(root: &Path) -> Vec<SetsPersistence> {
    let mut found = Vec::new();
    for unit in started(root) {
        for file in files(root, &unit) {
            let Ok(text) = fs::read(&file) else { continue };
            let shown = Path::new("/").join(file.strip_prefix(root).unwrap_or(&file));
            found.extend(lines(&String::from_utf8_lossy(&text)).map(|(line, on)| SetsPersistence {
                unit: unit.clone(),
                place: format!("{}:{line}", shown.display()),
                on,
            }));
        }
    }
    found
}

/// Returns the services that a link of another unit starts, themselves or by their timer.
fn started(root: &Path) -> BTreeSet<String> {
    let names = |folder: PathBuf| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let mut units = BTreeSet::new();
    for folder in FOLDERS.map(|folder| root.join(folder)) {
        for links in names(folder.clone()) {
            if !links.ends_with(".wants") && !links.ends_with(".requires") {
                continue;
            }
            for name in names(folder.join(links)) {
                let plain = |c: char| c.is_ascii_alphanumeric() || ":-_.@".contains(c);
                let service = match name.strip_suffix(".timer") {
                    Some(timer) => format!("{timer}.service"),
                    None => name,
                };
                if service.ends_with(".service") && service.chars().all(plain) {
                    units.insert(service);
                }
            }
        }
    }
    units
}

/// Returns the file of a unit and its drop-ins, as far as they may be read.
fn files(root: &Path, unit: &str) -> Vec<PathBuf> {
    let template = unit.split_once('@').map(|(name, _)| format!("{name}@.service"));
    let names: Vec<&str> = [Some(unit), template.as_deref()].into_iter().flatten().collect();
    let at = |name: &str| {
        let places = FOLDERS.iter().map(|folder| root.join(folder).join(name));
        // The first one counts even where it masks the others.
        places.into_iter().find(|place| place.symlink_metadata().is_ok())
    };
    let mut all: Vec<PathBuf> = names.iter().find_map(|name| at(name)).into_iter().collect();
    for (folder, name) in FOLDERS.iter().flat_map(|folder| names.iter().map(move |name| (folder, name))) {
        let entries =
            fs::read_dir(root.join(folder).join(format!("{name}.d"))).into_iter().flatten().flatten();
        let mut own: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        own.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        own.sort();
        all.extend(own);
    }
    all.retain(|path| fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() <= LONGEST));
    all
}

/// Returns the lines that set persistence, by the number of their first line, and to what.
fn lines(text: &str) -> impl Iterator<Item = (usize, bool)> {
    let mut joined: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        let (part, more) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
        match joined.last_mut().filter(|_| goes_on) {
            Some((_, whole)) => {
                whole.push(' ');
                whole.push_str(part);
            }
            None => joined.push((at + 1, part.to_owned())),
        }
        goes_on = more;
    }
    joined.into_iter().filter_map(|(at, line)| {
        let (key, command) = line.split_once('=')?;
        KEYS.contains(&key.trim()).then(|| sets(command).map(|on| (at, on)))?
    })
}

/// Returns what a command sets persistence to, if it does; the last one of several counts.
fn sets(command: &str) -> Option<bool> {
    let apart = |c: char| c.is_whitespace() || "'\"=".contains(c);
    let parts = command.split([';', '&', '|']);
    parts.rev().find_map(|part| {
        let mut words = part.split(apart).filter(|word| !word.is_empty());
        words.find(|word| {
            word.rsplit('/')
                .next()
                .is_some_and(|name| name.trim_start_matches(['-', '@', '+', '!', ':']) == "nvidia-smi")
        })?;
        words.find(|word| ["-pm", "--persistence-mode"].contains(word))?;
        match words.next()? {
            "1" | "ENABLED" => Some(true),
            "0" | "DISABLED" => Some(false),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn commands_of_units_are_read_as_systemd_and_a_shell_do() {
        for (command, on) in [
            ("/usr/bin/nvidia-smi -pm 1", Some(true)),
            ("-/usr/bin/nvidia-smi -i 0 --persistence-mode=0", Some(false)),
            ("/bin/sh -c 'nvidia-smi -pm 0; nvidia-smi -pm ENABLED'", Some(true)),
            ("/bin/sh -c \"modprobe nvidia && nvidia-smi -pm 1\"", Some(true)),
            ("/usr/bin/nvidia-smi -pl 500", None),
            ("/usr/bin/echo nvidia-smi; tool -pm 1", None),
        ] {
            assert_eq!(sets(command), on, "{command}");
        }
    }

    #[test]
    fn only_units_that_something_starts_are_told_with_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let text = "[Service]\nType=oneshot\nExecStart=/bin/sh \\\n  -c 'nvidia-smi -pm 1'\n";
        write(root, "usr/lib/systemd/system/gpu-init.service", text);
        assert_eq!(persistence(root), []);
        write(root, "etc/systemd/system/multi-user.target.wants/gpu-init.service", "");
        let one = |place: &str, on| SetsPersistence {
            unit: "gpu-init.service".to_owned(),
            place: place.to_owned(),
            on,
        };
        assert_eq!(persistence(root), [one("/usr/lib/systemd/system/gpu-init.service:3", true)]);
        write(
            root,
            "etc/systemd/system/gpu-init.service.d/off.conf",
            "[Service]\nExecStartPost=nvidia-smi -pm 0\n",
        );
        assert_eq!(persistence(root)[1..], [one("/etc/systemd/system/gpu-init.service.d/off.conf:2", false)]);
        // Masked.
        fs::remove_file(root.join("etc/systemd/system/gpu-init.service.d/off.conf")).unwrap();
        std::os::unix::fs::symlink("/dev/null", root.join("etc/systemd/system/gpu-init.service")).unwrap();
        assert_eq!(persistence(root), []);
    }
}

//! The text of unit files: assignments, and which of them count.

use std::path::PathBuf;

use gpufleet_protocol::tasks::UnitSetting;

/// The first line of a drop-in of ours.
pub const HEADER: &str = "# Written by gpufleet: `unit_settings`.\n";

/// One line of a unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub section: String,
    pub key: String,
    /// Empty where it takes back what was set before.
    pub value: String,
}

/// One file of a unit.
#[derive(Clone, Debug)]
pub struct UnitFile {
    pub path: PathBuf,
    pub assignments: Vec<Assignment>,
}

/// Settings that add up over the files, besides those of [`is_list`]'s prefixes. Source: systemd.exec(5),
/// systemd.service(5), systemd.resource-control(5), systemd.unit(5).
const LISTS: [&str; 46] = [
    "AllowedCPUs",
    "AllowedMemoryNodes",
    "AmbientCapabilities",
    "BindPaths",
    "BindReadOnlyPaths",
    "CPUAffinity",
    "CacheDirectory",
    "CapabilityBoundingSet",
    "ConfigurationDirectory",
    "DeviceAllow",
    "Documentation",
    "Environment",
    "EnvironmentFile",
    "ExecPaths",
    "IPAddressAllow",
    "IPAddressDeny",
    "InaccessiblePaths",
    "JoinsNamespaceOf",
    "LoadCredential",
    "LogExtraFields",
    "LogFilterPatterns",
    "LogsDirectory",
    "NUMAMask",
    "NoExecPaths",
    "PassEnvironment",
    "PropagatesReloadTo",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "ReloadPropagatedFrom",
    "RequiresMountsFor",
    "RestartForceExitStatus",
    "RestartPreventExitStatus",
    "RestrictAddressFamilies",
    "RuntimeDirectory",
    "SetCredential",
    "SocketBindAllow",
    "SocketBindDeny",
    "StateDirectory",
    "SuccessExitStatus",
    "SupplementaryGroups",
    "SystemCallArchitectures",
    "SystemCallFilter",
    "SystemCallLog",
    "TemporaryFileSystem",
    "UnsetEnvironment",
    "WantsMountsFor",
];
const LIST_PREFIXES: [&str; 7] = ["Exec", "Condition", "Assert", "Listen", "On", "IODevice", "IORead"];
/// Dependencies, which add up and cannot be taken back.
const DEPENDENCIES: [&str; 9] =
    ["After", "Before", "BindsTo", "Conflicts", "PartOf", "Requires", "Requisite", "Upholds", "Wants"];

/// Whether the values of a setting add up over the files.
pub fn is_list(key: &str) -> bool {
    LISTS.contains(&key)
        || DEPENDENCIES.contains(&key)
        || LIST_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// Reads the assignments of a unit file. A line that ends with a backslash goes on in the next one.
pub fn assignments(text: &str) -> Vec<Assignment> {
    let (mut all, mut section, mut joined) = (Vec::new(), String::new(), String::new());
    for line in text.lines() {
        // Comments between the lines of one assignment are left out too.
        if line.trim_start().starts_with(['#', ';']) {
            continue;
        }
        if let Some(part) = line.strip_suffix('\\') {
            joined.push_str(part);
            joined.push(' ');
            continue;
        }
        joined.push_str(line);
        let whole = std::mem::take(&mut joined);
        let whole = whole.trim();
        if let Some(name) = whole.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
        } else if let Some((key, value)) = whole.split_once('=') {
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            all.push(Assignment { section: section.clone(), key, value });
        }
    }
    all
}

/// Returns the text of a drop-in.
pub fn drop_in(entries: &[UnitSetting]) -> String {
    let mut text = HEADER.to_owned();
    let mut section = "";
    for entry in entries {
        if entry.section != section {
            text.push_str(&format!("[{}]\n", entry.section));
            section = &entry.section;
        }
        if entry.reset {
            text.push_str(&format!("{}=\n", entry.key));
        }
        for value in &entry.values {
            text.push_str(&format!("{}={}\n", entry.key, value.trim()));
        }
    }
    text
}

/// Returns what one file assigns to a setting.
pub fn values<'a>(
    assignments: &'a [Assignment],
    section: &'a str,
    key: &'a str,
) -> impl Iterator<Item = &'a str> {
    let is_it = move |one: &&Assignment| one.section == section && one.key == key;
    assignments.iter().filter(is_it).map(|one| one.value.as_str())
}

/// What all files together make of a setting that one of them declares.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The values that count.
    pub values: Vec<String>,
    /// A later file that takes the declared value away, and what it sets.
    pub beaten: Option<(PathBuf, String)>,
}

/// Judges a setting over the files in their order; `ours` is the number of the file that declares it.
pub fn outcome(files: &[UnitFile], ours: usize, entry: &UnitSetting) -> Outcome {
    let (mut all, mut beaten) = (Vec::new(), None);
    let wanted = entry.values.last().map(|value| value.trim());
    for (at, file) in files.iter().enumerate() {
        for value in values(&file.assignments, &entry.section, &entry.key) {
            let single = !is_list(&entry.key);
            let other = if single { Some(value) != wanted } else { value.is_empty() };
            if at > ours {
                // Of single values the last one counts, so that a later file may set the declared one again.
                beaten = if other {
                    Some((file.path.clone(), value.to_owned()))
                } else {
                    beaten.filter(|_| !single)
                };
            }
            if single || value.is_empty() {
                all.clear();
            }
            if !value.is_empty() {
                all.push(value.to_owned());
            }
        }
    }
    Outcome { values: all, beaten }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> UnitFile {
        UnitFile { path: path.into(), assignments: assignments(text) }
    }

    fn entry(key: &str, values: &[&str]) -> UnitSetting {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        UnitSetting { section: "Service".to_owned(), key: key.to_owned(), reset: false, values }
    }

    #[test]
    fn lines_go_on_and_comments_do_not_count() {
        let all = assignments("[Service]\nExecStart=/bin/a \\\n# no\n  -b\n;X=1\n[Unit]\nAfter = x\n");
        let told: Vec<_> =
            all.iter().map(|one| format!("{}.{}={}", one.section, one.key, one.value)).collect();
        assert_eq!(told, ["Service.ExecStart=/bin/a    -b", "Unit.After=x"]);
    }

    #[test]
    fn the_last_single_value_wins_and_lists_add_up() {
        let files = [
            file("unit", "[Service]\nLimitNOFILE=1\nCPUAffinity=0-3\n"),
            file("gpufleet.conf", "[Service]\nLimitNOFILE=9\nCPUAffinity=8\n"),
            file("override.conf", "[Service]\nLimitNOFILE=2\nCPUAffinity=9\n"),
        ];
        let limit = outcome(&files, 1, &entry("LimitNOFILE", &["9"]));
        assert_eq!(limit.beaten, Some(("override.conf".into(), "2".to_owned())));
        let cpus = outcome(&files, 1, &entry("CPUAffinity", &["8"]));
        assert_eq!(cpus, Outcome { values: ["0-3", "8", "9"].map(str::to_owned).to_vec(), beaten: None });
        let again =
            [files[1].clone(), files[2].clone(), file("z.conf", "[Service]\nLimitNOFILE=9\nCPUAffinity=\n")];
        assert_eq!(outcome(&again, 0, &entry("LimitNOFILE", &["9"])).beaten, None);
        assert_eq!(
            outcome(&again, 0, &entry("CPUAffinity", &["8"])).beaten,
            Some(("z.conf".into(), String::new()))
        );
    }
}
